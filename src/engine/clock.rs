//! Where a node's time comes from: the machine, or whoever steps the node.
//!
//! The threads of a node do their work in turns, which are functions of a moment and of what came in. Production runs each kind of turn on
//! a thread of its own; a driver may run all of them on one thread and say what time it is. Then a call that blocks has nobody who would
//! wake it up: it lets time pass instead, until what it waits for has come.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use super::sys;
use crate::Time;

/// Passes time on a node that has no threads.
pub trait VirtualTime: Send + Sync {
    /// The moment it is.
    fn now(&self) -> Time;

    /// Has something happen, or moves time forward, to `until` at most. Called by who waits, until the wait is over.
    fn pass(&self, until: Time);
}

/// What calendars show when virtual time begins: 2020-01-01.
const CALENDAR: Duration = Duration::from_secs(1_577_836_800);

/// Where a node's time comes from.
#[derive(Clone)]
pub enum Clock {
    /// The machine's clock; other threads do the work.
    Machine,
    /// Somebody steps the node.
    Virtual(Arc<dyn VirtualTime>),
}

impl Clock {
    /// The moment it is.
    pub fn now(&self) -> Time {
        match self {
            Self::Machine => sys::now(),
            Self::Virtual(time) => time.now(),
        }
    }

    /// Whether somebody steps the node.
    pub const fn is_virtual(&self) -> bool {
        matches!(self, Self::Virtual(_))
    }

    /// The moment it is for calendars.
    pub fn wall(&self) -> SystemTime {
        match self {
            Self::Machine => SystemTime::now(),
            Self::Virtual(time) => SystemTime::UNIX_EPOCH + CALENDAR + Duration::from_nanos(time.now().as_nanos()),
        }
    }

    /// Under virtual time, what takes the place of a sleep: lets time pass until `found` has something, or until `deadline`.
    pub fn wait<R>(&self, deadline: Time, mut found: impl FnMut() -> Option<R>) -> Waited<R> {
        let Self::Virtual(time) = self else { return Waited::Machine };
        loop {
            if let Some(found) = found() {
                return Waited::Found(found);
            }
            if time.now() >= deadline {
                return Waited::Late;
            }
            time.pass(deadline);
        }
    }
}

/// What came of a wait.
pub enum Waited<R> {
    /// Time is the machine's: the caller sleeps as threads do.
    Machine,
    /// It came.
    Found(R),
    /// The deadline passed.
    Late,
}
