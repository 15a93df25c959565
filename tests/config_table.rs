//! The table of all settings in the guide is the one that the code has.

use std::fmt::Write as _;

use wingbeat::Config;

/// Set to anything, this writes the file instead of comparing it.
const WRITE: &str = "WINGBEAT_WRITE_DOCS";
const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/guide/configuration.md");

fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('<', "&lt;").replace('[', "\\[").replace('\n', " ")
}

/// What comes before the tables is written by hand.
fn page(kept: &str) -> String {
    let mut out = kept.split("\n# \\[").next().unwrap_or_default().to_owned();
    let mut table = "";
    for setting in Config::reference() {
        let (of, name) = setting.key.split_once('.').expect("a key has a table and a name");
        if of != table {
            table = of;
            let _ = write!(out, "\n# \\[{of}\\]\n\n| key | default | range | meaning |\n| --- | --- | --- | --- |\n");
        }
        let mut meaning = setting.meaning().to_owned();
        if !setting.follows().is_empty() {
            let _ = write!(meaning, " Default: {}.", setting.follows());
        }
        if !setting.cost().is_empty() {
            let _ = write!(meaning, " Cost: {}.", setting.cost());
        }
        if setting.must_match() {
            meaning.push_str(" Must be equal on all nodes.");
        }
        if setting.must_match_by_type() {
            meaning.push_str(" Must be equal on all hosts of a type.");
        }
        if !setting.has_effect() {
            meaning.push_str(" No effect in this version.");
        }
        let default = setting.default_text();
        let default = if default.is_empty() { String::new() } else { format!("`{default}`") };
        let _ = writeln!(out, "| `{name}` | {default} | {} | {} |", cell(&setting.range()), cell(&meaning));
    }
    out
}

#[test]
fn the_table_in_the_guide_is_that_of_the_code() {
    let kept = std::fs::read_to_string(FILE).expect("the page is there");
    let now = page(&kept);
    if std::env::var_os(WRITE).is_some() {
        return std::fs::write(FILE, &now).expect("the page can be written");
    }
    assert!(kept == now, "src/guide/configuration.md is old: run this test with {WRITE}=1 and look at what has changed");
}
