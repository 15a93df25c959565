//! Each unsafe block stands in `tests/UNSAFE.md`, beside what covers it.
#![allow(missing_docs, clippy::unwrap_used)]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

/// Functions and implementations that have unsafe code, by file.
type Found = BTreeMap<String, BTreeSet<String>>;

fn walk(dir: &Path, root: &Path, found: &mut Found) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            walk(&path, root, found);
        } else if path.extension().is_some_and(|end| end == "rs") {
            let names = unsafe_in(&fs::read_to_string(&path).unwrap());
            if !names.is_empty() {
                found.insert(path.strip_prefix(root).unwrap().display().to_string(), names);
            }
        }
    }
}

/// Where there is unsafe code in front of the tests of a file: the function it is in, or `Trait for Type`.
fn unsafe_in(source: &str) -> BTreeSet<String> {
    let (mut names, mut function) = (BTreeSet::new(), String::from("no function"));
    for line in source.lines().take_while(|line| *line != "mod tests {") {
        // Without comments, and without types of functions.
        let line = line.split("//").next().unwrap_or_default().replace("unsafe fn(", "(");
        let words: Vec<&str> = line.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty()).collect();
        let behind = |word: &str| words.iter().position(|other| *other == word).map(|at| at + 1);
        if let Some(name) = behind("fn").and_then(|at| words.get(at)) {
            function = (*name).to_owned();
        }
        match (behind("unsafe"), behind("for")) {
            (Some(at), Some(to)) if words.get(at) == Some(&"impl") => _ = names.insert(format!("{} for {}", words[to - 2], words[to])),
            (Some(_), _) => _ = names.insert(function.clone()),
            (None, _) => {}
        }
    }
    names
}

/// The second column of the table by the first, without the quotes.
fn table() -> Found {
    let text = include_str!("UNSAFE.md");
    let rows = text.lines().filter_map(|line| line.strip_prefix("| `"));
    rows.map(|row| {
        let columns: Vec<&str> = row.split(" | ").collect();
        let names = columns[1].split(", ").map(|name| name.trim_matches('`').to_owned());
        (columns[0].trim_matches('`').to_owned(), names.collect())
    })
    .collect()
}

#[test]
fn each_unsafe_block_is_in_the_table_and_the_table_has_no_other() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = Found::new();
    walk(&root.join("src"), root, &mut found);
    let table = table();
    for (file, names) in &found {
        let listed = table.get(file).unwrap_or_else(|| panic!("{file} has unsafe code, and no row in tests/UNSAFE.md"));
        assert_eq!(names, listed, "left: in {file}, right: in tests/UNSAFE.md");
    }
    assert!(table.keys().all(|file| found.contains_key(file)), "rows of files without unsafe code: {:?}", table.keys());
}

#[test]
fn unsafe_code_is_found_wherever_it_stands() {
    let source = "unsafe impl<T: Send> Send for Thing<T> {}\nfn a() {\n    let f: unsafe fn(u8);\n    unsafe { b() }\n}\n// unsafe\nunsafe fn c() {}\nmod tests {\nfn d() { unsafe {} }";
    let names: Vec<String> = unsafe_in(source).into_iter().collect();
    assert_eq!(names, ["Send for Thing", "a", "c"]);
}
