//! What happened in a world, for the reader of a failed test.

use std::{
    collections::VecDeque,
    fmt::{self, Write},
    time::Duration,
};

/// Lines that are kept.
const LINES: usize = 200;

/// The last events of a world.
#[derive(Debug, Default)]
pub(super) struct Story {
    lines: VecDeque<(Duration, String)>,
    forgotten: u64,
    /// Of everything that happened, also of what is not told.
    digest: u64,
}

impl Story {
    /// Adds a line.
    pub fn tell(&mut self, at: Duration, line: String) {
        self.note(at, line.as_bytes());
        if self.lines.len() == LINES {
            self.lines.pop_front();
            self.forgotten += 1;
        }
        self.lines.push_back((at, line));
    }

    /// Something too small to be told, which makes two runs differ nevertheless.
    pub fn note(&mut self, at: Duration, what: &[u8]) {
        let salted = self.digest ^ (at.as_nanos() as u64).rotate_left(32);
        self.digest = xxhash_rust::xxh3::xxh3_64_with_seed(what, salted);
    }
}

impl fmt::Display for Story {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.forgotten > 0 {
            writeln!(f, "      ... {} earlier events", self.forgotten)?;
        }
        for (at, line) in &self.lines {
            writeln!(f, "{:>11.6} s  {line}", at.as_secs_f64())?;
        }
        write!(f, "      digest of all events: {:016x}", self.digest)
    }
}

/// Bytes as people read them: text if it is text, else hexadecimal.
pub(super) fn readable(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) if !text.is_empty() && !text.chars().any(char::is_control) => format!("{text:?}"),
        _ => bytes.iter().fold("0x".to_owned(), |mut hex, byte| {
            // Writing to a `String` cannot fail.
            let _ = write!(hex, "{byte:02x}");
            hex
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_lines_are_kept_and_the_digest_knows_all() {
        let tell = |first: &str| {
            let mut story = Story::default();
            story.tell(Duration::ZERO, first.to_owned());
            for i in 0..LINES as u64 {
                story.tell(Duration::from_millis(i), format!("line {i}"));
            }
            story.to_string()
        };
        let told = tell("a");
        assert!(told.starts_with("      ... 1 earlier events\n   0.000000 s  line 0\n"), "{told}");
        assert_eq!(told, tell("a"));
        assert_ne!(told, tell("b"), "what was forgotten counts");
    }

    #[test]
    fn keys_are_shown_as_people_read_them() {
        assert_eq!((readable(b"N1").as_str(), readable(&[0, 255]).as_str(), readable(b"").as_str()), ("\"N1\"", "0x00ff", "0x"));
    }
}
