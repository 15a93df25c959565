//! How a command ends: its exit code, and what is said when it did not work.

use std::{fmt, process::ExitCode};

/// Exit codes that scripts rely on.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Wrong usage or configuration.
    Usage = 1,
    /// Unreachable, or no answer in time.
    Unreachable = 2,
    /// What was asked about is unhealthy, or an expectation failed.
    Unhealthy = 3,
    /// Interrupted by a signal from the keyboard (128 + 2).
    Interrupted = 130,
    /// Told to end (128 + 15).
    Terminated = 143,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        ExitCode::from(exit as u8)
    }
}

/// Why a command did not do what it was asked: what was wrong, where, and what to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Stable, never reused.
    pub code: &'static str,
    pub exit: Exit,
    pub what: String,
    pub next: String,
}

impl Failure {
    pub fn usage(code: &'static str, what: impl Into<String>, next: impl Into<String>) -> Self {
        Self { code, exit: Exit::Usage, what: what.into(), next: next.into() }
    }

    pub fn unreachable(code: &'static str, what: impl Into<String>, next: impl Into<String>) -> Self {
        Self { code, exit: Exit::Unreachable, what: what.into(), next: next.into() }
    }

    pub fn unhealthy(code: &'static str, what: impl Into<String>, next: impl Into<String>) -> Self {
        Self { code, exit: Exit::Unhealthy, what: what.into(), next: next.into() }
    }
}

/// A seed, as a flag gives it.
pub fn seed(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("a seed is a whole number from 0 to {}", u64::MAX))
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error[{}]: {}", self.code, self.what)?;
        match self.next.is_empty() {
            true => Ok(()),
            false => write!(f, "\n  next: {}", self.next),
        }
    }
}
