//! Rules that the public interface keeps: enums and structs of options can grow.

use std::{fs, path::Path};

/// Where what users see is declared.
const PLACES: &[&str] = &[
    "src/api",
    "src/config",
    "src/time.rs",
    "src/id.rs",
    "src/proto/membership/view.rs",
    "src/proto/handoff/reason.rs",
    "src/proto/shard/wish.rs",
];
/// Names that look like it and are no part of the interface, or have a reason to be closed.
const CLOSED: &[&str] = &[
    // Between the core and who drives it.
    "Wish", // There is no other way for it to be: who decides by it is to have an arm for each.
    "Ran", "Deadline",
];

fn files(at: &Path, out: &mut Vec<std::path::PathBuf>) {
    if at.is_file() {
        return out.push(at.to_owned());
    }
    for entry in fs::read_dir(at).expect("the sources are there") {
        files(&entry.expect("the sources are there").path(), out);
    }
}

#[test]
fn every_public_enum_may_grow() {
    let (mut sources, mut seen, mut open) = (vec![], 0, vec![]);
    PLACES.iter().for_each(|place| files(&Path::new(env!("CARGO_MANIFEST_DIR")).join(place), &mut sources));
    for file in sources {
        let text = fs::read_to_string(&file).expect("sources are text");
        let mut attributes: Vec<&str> = vec![];
        for line in text.lines().map(str::trim) {
            if line.starts_with("#[") {
                attributes.push(line);
            } else if let Some(rest) = line.strip_prefix("pub enum ") {
                let name: String = rest.chars().take_while(|c| c.is_alphanumeric()).collect();
                // A name that a macro puts in is checked where the macro is written.
                seen += 1;
                if !attributes.iter().any(|a| a.contains("non_exhaustive")) && !CLOSED.contains(&name.as_str()) {
                    open.push(format!("{}: {name}", file.display()));
                }
            } else if !line.starts_with("//") {
                attributes.clear();
            }
        }
    }
    assert!(seen > 15, "only {seen} enums were found");
    assert!(open.is_empty(), "add #[non_exhaustive] to {open:#?}");
}

/// Rows of the catalogue of failures that a user can bring about.
const ROWS: &[u32] = &[4, 8, 9, 10, 11, 39, 40, 43, 44, 45, 46, 47, 48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 68];

#[test]
fn every_failure_that_a_user_can_bring_about_has_a_test_through_the_public_interface() {
    let mut sources = vec![];
    files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests"), &mut sources);
    let rust = sources.iter().filter(|file| file.extension().is_some_and(|e| e == "rs"));
    let text: String = rust.map(|file| fs::read_to_string(file).expect("sources are text")).collect();
    let marks = text.lines().filter_map(|line| line.trim().strip_prefix("// failures: row"));
    let tested: Vec<u32> =
        marks.flat_map(|mark| mark.trim_start_matches('s').split([',', ':']).filter_map(|row| row.trim().parse().ok())).collect();
    let missing: Vec<_> = ROWS.iter().filter(|row| !tested.contains(row)).collect();
    assert!(missing.is_empty(), "rows without a test: {missing:?}");
}

/// Rows and test of each mark in a file: the function that it stands in front of, or, at its indented lines, in.
fn marks(text: &str) -> Vec<(String, String)> {
    let lines: Vec<&str> = text.lines().collect();
    let name = |line: &str| {
        let rest = line.trim_start().strip_prefix("fn ")?;
        Some(rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>())
    };
    let mut found = vec![];
    for (at, line) in lines.iter().enumerate() {
        let Some(rows) = line.trim_start().strip_prefix("// failures: row") else { continue };
        let next = lines[at..].iter().find_map(|line| name(line)).unwrap_or_default();
        let around = lines[..at].iter().rev().filter(|line| line.starts_with("fn ")).find_map(|line| name(line)).unwrap_or_default();
        let rows = rows.trim_start_matches('s').split(':').next().unwrap_or_default();
        for row in rows.split(',') {
            // Where the test stands in a module of its source file, its marks are indented as well.
            found.push((row.trim().to_owned(), if lines[at + 1].trim_start().starts_with("#[") { next.clone() } else { around.clone() }));
        }
    }
    found
}

#[test]
fn the_table_of_failures_names_every_test_that_is_marked() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let table = fs::read_to_string(root.join("tests/CONFORMANCE.md")).expect("the table is there");
    let line = |row: &str| table.lines().find(|line| line.starts_with(&format!("| {row} |"))).unwrap_or_default();
    let mut sources = vec![];
    [root.join("src"), root.join("tests")].iter().for_each(|place| files(place, &mut sources));
    let (mut missing, mut seen) = (vec![], 0);
    for file in sources.iter().filter(|file| file.extension().is_some_and(|e| e == "rs")) {
        let text = fs::read_to_string(file).expect("sources are text");
        let path = file.strip_prefix(root).expect("it was found there").display().to_string();
        for (row, test) in marks(&text).into_iter().filter(|(row, _)| row.parse::<u32>().is_ok()) {
            seen += 1;
            if !line(&row).contains(&format!("`{test}`")) || !line(&row).contains(&path) {
                missing.push(format!("row {row}: {path}: `{test}`"));
            }
        }
    }
    assert!(seen > 60, "only {seen} marks were found");
    assert!(missing.is_empty(), "tests/CONFORMANCE.md does not name {missing:#?}");
}
