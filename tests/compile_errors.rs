//! The likeliest mistakes, and what the compiler says to them: that is a part of the interface. After a change that is meant, run this with
//! `TRYBUILD=overwrite` and read what has changed.

#![cfg(feature = "cli")]

use std::process::Command;

/// The texts are those of this compiler; others say the same in other words.
const FROZEN_WITH: &str = "rustc 1.95.";

#[test]
fn mistakes_are_told_in_words_that_say_what_to_do() {
    let version = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into())).arg("--version").output();
    let version = version.map(|out| String::from_utf8_lossy(&out.stdout).into_owned()).unwrap_or_default();
    if !version.starts_with(FROZEN_WITH) {
        eprintln!("not compared: the texts are those of {FROZEN_WITH}x, this is {version}");
        return;
    }
    trybuild::TestCases::new().compile_fail("tests/compile/*.rs");
}
