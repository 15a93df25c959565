//! What is wrong with a configuration.

use std::{error::Error, fmt};

/// One thing that is wrong with a configuration.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ConfigError {
    /// Stable code, `E-CFG-nnn`.
    pub code: &'static str,
    /// The key, the table, the environment variable or the file concerned.
    pub key: String,
    /// What is wrong, what would be right, and what to do.
    pub why: String,
    /// Line in the file, from 1, where it came from a file.
    pub line: Option<u32>,
}

impl ConfigError {
    pub(super) fn new(code: &'static str, key: impl Into<String>, why: impl Into<String>) -> Self {
        Self { code, key: key.into(), why: why.into(), line: None }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.code, self.key)?;
        if let Some(line) = self.line {
            write!(f, " (line {line})")?;
        }
        write!(f, ": {}", self.why)
    }
}

impl Error for ConfigError {}

/// Everything that is wrong, not only the first thing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConfigErrors(pub Vec<ConfigError>);

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_slice() {
            [one] => write!(f, "{one}"),
            all => {
                write!(f, "{} errors in the configuration:", all.len())?;
                all.iter().try_for_each(|e| write!(f, "\n  {e}"))
            }
        }
    }
}

impl Error for ConfigErrors {}
