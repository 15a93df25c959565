//! What a new user does: makes a crate, adds the library without its default features, and copies the programs of the README and of each page
//! of the guide as they are shown. They compile without a warning, run, and print what their pages say.
#![cfg(feature = "cli")]
#![allow(missing_docs, clippy::unwrap_used)]

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::LazyLock,
};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");
/// Pages of the guide, in the order in which it names them.
const PAGES: &[&str] = &["start", "entity", "shard", "ask", "ordering", "delivery", "moves", "failure", "testing", "configuration"];

/// Blocks of code as a reader sees them: what stands behind the three backticks, and the lines below without those that are hidden.
fn blocks(markdown: &str) -> Vec<(&str, String)> {
    let (mut blocks, mut open): (Vec<(&str, String)>, bool) = (vec![], false);
    for line in markdown.lines() {
        match (line.strip_prefix("```"), open) {
            (Some(kind), false) => blocks.push((kind, String::new())),
            (None, true) if line != "#" && !line.starts_with("# ") => {
                let (_, text) = blocks.last_mut().unwrap();
                text.push_str(line);
                text.push('\n');
            }
            _ => {}
        }
        open ^= line.starts_with("```");
    }
    blocks
}

/// The first program of a page, and what it is said to print.
fn program(page: &str) -> (String, String) {
    let markdown = fs::read_to_string(format!("{ROOT}/src/guide/{page}.md")).unwrap();
    let blocks = blocks(&markdown);
    let at = blocks.iter().position(|(kind, _)| kind.is_empty()).unwrap_or_else(|| panic!("{page} has no program"));
    let prints = blocks[at..].iter().find(|(kind, _)| *kind == "text").unwrap_or_else(|| panic!("{page} does not say what it prints"));
    (blocks[at].1.clone(), prints.1.clone())
}

/// The crate of the new user, made once. It is none of this workspace.
fn new_crate() -> &'static Path {
    static MADE: LazyLock<PathBuf> = LazyLock::new(make_crate);
    &MADE
}

fn make_crate() -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("walk");
    let bin = dir.join("src/bin");
    drop(fs::remove_dir_all(&bin));
    fs::create_dir_all(&bin).unwrap();
    let manifest = format!(
        "[package]\nname = \"walk\"\nversion = \"0.1.0\"\nedition = \"2024\"\n\n[workspace]\n\n[profile.dev]\ndebug = false\n\n[profile.abort]\ninherits = \"dev\"\npanic = \"abort\"\n\n\
         [dependencies]\n\
         wingbeat = {{ path = {ROOT:?}, default-features = false }}\nserde = {{ version = \"1\", features = [\"derive\"] }}\n"
    );
    fs::write(dir.join("Cargo.toml"), manifest).unwrap();
    fs::copy(format!("{ROOT}/Cargo.lock"), dir.join("Cargo.lock")).unwrap();
    for page in PAGES {
        fs::write(bin.join(format!("{page}.rs")), program(page).0).unwrap();
    }
    let readme = fs::read_to_string(format!("{ROOT}/README.md")).unwrap();
    for (n, (_, text)) in blocks(&readme).iter().filter(|(kind, _)| *kind == "rust").enumerate() {
        fs::write(bin.join(format!("readme{}.rs", n + 1)), text).unwrap();
    }
    dir
}

fn cargo(dir: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO"));
    // Everything was fetched to build this test.
    command.args(args).arg("--offline").current_dir(dir).env("CARGO_TARGET_DIR", dir.join("target")).env_remove("CARGO_ENCODED_RUSTFLAGS");
    let output = command.output().unwrap();
    assert!(output.status.success(), "cargo {args:?}:\n{}", String::from_utf8_lossy(&output.stderr));
    output
}

#[test]
fn the_readme_and_every_page_of_the_guide_can_be_followed_in_a_new_crate() {
    let dir = new_crate();
    let built = String::from_utf8(cargo(dir, &["build", "--bins"]).stderr).unwrap();
    assert!(!built.contains("warning"), "{built}");
    for bin in PAGES.iter().map(|page| (*page, Some(program(page).1))).chain([("readme1", None), ("readme2", None)]) {
        let run = Command::new(dir.join("target/debug").join(bin.0)).env("RUST_BACKTRACE", "0").output().unwrap();
        let (out, err) = (String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
        assert!(run.status.success(), "{}: {:?}\n{out}{err}", bin.0, run.status);
        if let Some(prints) = bin.1 {
            assert_eq!(out, prints, "{}", bin.0);
        }
    }
    let tested = cargo(dir, &["test", "--bin", "testing"]);
    let tested = String::from_utf8_lossy(&tested.stdout);
    assert!(tested.contains("2 passed; 0 failed"), "{tested}");
}

// failures: row 45
#[test]
fn a_program_whose_panics_abort_is_told_so_when_its_node_starts() {
    let dir = new_crate();
    cargo(dir, &["build", "--bin", "readme1", "--profile", "abort"]);
    let run = Command::new(dir.join("target/abort/readme1")).output().unwrap();
    assert_eq!((run.status.code(), String::from_utf8_lossy(&run.stderr).trim_end()), (Some(1), "Error: PanicAbort"));
}

#[test]
fn every_page_of_the_guide_is_walked() {
    let pages = fs::read_dir(format!("{ROOT}/src/guide")).unwrap().map(|entry| entry.unwrap().path());
    let mut pages: Vec<String> = pages
        .filter(|path| path.extension().is_some_and(|e| e == "md"))
        .map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned())
        .collect();
    pages.sort();
    let mut walked: Vec<_> = PAGES.iter().map(|page| (*page).to_owned()).collect();
    walked.sort();
    assert_eq!(pages, walked);
    // Each says what holds and what does not.
    for page in PAGES {
        let text = fs::read_to_string(format!("{ROOT}/src/guide/{page}.md")).unwrap();
        assert!(text.contains("\n# Guaranteed\n") && text.contains("\n# Not guaranteed\n"), "{page}");
    }
}
