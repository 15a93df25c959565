//! What tests of whole nodes share: waiting for a condition, a small HTTP client, child processes.
#![allow(dead_code, missing_docs, clippy::unwrap_used)]

pub mod cluster;
pub mod http;
#[cfg(feature = "admin")]
pub mod made_up;
pub mod process;
pub mod valve;

use std::{
    thread,
    time::{Duration, Instant},
};

/// Longest wait for anything that must happen; far more than it takes, because other tests have the cores too.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Looks again and again until there is something to return; fails at the deadline, naming what did not come.
#[track_caller]
pub fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < end, "not in time: {what}");
        // Not a wait for a moment: only a pause between two looks.
        thread::park_timeout(Duration::from_millis(5));
    }
}

/// As [`until`], for a condition.
#[track_caller]
pub fn until_holds(what: &str, mut holds: impl FnMut() -> bool) {
    until(what, || holds().then_some(()));
}
