//! What a command tells. Its exit code is about what was asked, whoever reads: a reader that has gone is no failure and no end, and standard error may be
//! closed, or on a full disk.

use std::{
    fmt::Display,
    io::{self, Write},
};

use crate::fail::Failure;

/// Writes lines to standard output. False: whoever read them has gone.
pub fn heard(text: &str) -> Result<bool, Failure> {
    let mut out = io::stdout().lock();
    match writeln!(out, "{text}").and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Failure::usage("E-CLI-006", format!("standard output: {error}"), "redirect it to where it can be written")),
    }
}

/// As [`heard`], for who has nothing to stop.
pub fn say(text: &str) -> Result<(), Failure> {
    heard(text).map(drop)
}

/// Writes a line to standard error.
pub fn note(text: impl Display) {
    let _ = writeln!(io::stderr(), "{text}");
}
