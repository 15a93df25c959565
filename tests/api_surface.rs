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
    "Wish",
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
const ROWS: &[u32] = &[4, 8, 45, 46, 47, 48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 68];

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
