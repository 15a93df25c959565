//! What time it is in the middle of a worker's turn.
//!
//! The right to run holds for a turn of an entity that begins in time, not for all that a turn of the worker finds: handlers may be slow, and the
//! process may stand still between two of them. But a reading of the clock per message would be a good part of a message. So there is one for some
//! of them, fewer where they are slow, and in between it is seen by a counter of the processor whether it was hardly any time ago.

use std::time::Duration;

use super::{clock::Clock, sys};
use crate::Time;

/// Messages that are handled per reading of the clock, at most.
pub const PACE: usize = 16;
/// What takes so long between two readings of the clock is slow: for a while each message has one of its own.
const SLOW: Duration = Duration::from_millis(1);
/// Less than that, of the processor's counter: what goes fast needs no reading of the clock.
const SOON_TICKS: u64 = 1 << 20;
/// Some twenty microseconds.
const TURN_TICKS: u64 = 1 << 16;

/// A reading of the clock.
#[derive(Copy, Clone, Debug)]
pub struct Moment {
    /// What it said.
    pub now: Time,
    /// What the processor's counter stood at before: who stands still between the two is late by that.
    ticks: Option<u64>,
}

impl Moment {
    /// Reads the clock.
    #[inline]
    pub fn read(clock: &Clock) -> Self {
        match clock {
            Clock::Machine => {
                let ticks = sys::ticks();
                Self { now: sys::now(), ticks }
            }
            Clock::Virtual(time) => Self::at(time.now()),
        }
    }

    /// A moment that only others are compared with: costs less than to read the clock.
    #[inline]
    pub fn mark(clock: &Clock) -> Self {
        match clock {
            Clock::Machine => Self { now: Time::ZERO, ticks: sys::ticks() },
            Clock::Virtual(time) => Self::at(time.now()),
        }
    }

    /// Whoever moves time says that it is then.
    pub const fn at(now: Time) -> Self {
        Self { now, ticks: None }
    }

    /// Whether it was hardly any time ago, which costs less than to read the clock.
    #[inline]
    pub fn is_soon(self, clock: &Clock) -> bool {
        self.is_within(SOON_TICKS, clock)
    }

    /// Whether it was less time ago than a turn may take without harm.
    pub fn is_just_now(self, clock: &Clock) -> bool {
        self.is_within(TURN_TICKS, clock)
    }

    #[inline]
    fn is_within(self, ticks: u64, clock: &Clock) -> bool {
        match clock {
            Clock::Machine => self.ticks.zip(sys::ticks()).is_some_and(|(then, now)| now.wrapping_sub(then) < ticks),
            Clock::Virtual(time) => time.now() == self.now,
        }
    }
}

/// The moment it is for what a worker handles.
pub struct Moments {
    clock: Clock,
    last: Moment,
    /// Messages handled since.
    since: usize,
    /// Before it has been so many, the clock is read again.
    pace: usize,
}

impl Moments {
    /// Those of one worker.
    pub const fn new(clock: Clock) -> Self {
        Self { clock, last: Moment::at(Time::ZERO), since: 0, pace: PACE }
    }

    /// A turn of the worker began then. If the turn before has handled anything, nothing but that lies between the two, unless somebody moves time.
    pub fn begin(&mut self, began: Moment) {
        if self.since > 0 && began.ticks.is_some() {
            self.set_pace(began);
        }
        (self.last, self.since) = (began, 0);
    }

    /// The last reading.
    #[inline]
    pub const fn last(&self) -> Moment {
        self.last
    }

    /// So many messages may be handled before the next reading.
    #[inline]
    pub const fn left(&self) -> usize {
        self.pace.saturating_sub(self.since)
    }

    /// Nothing has been slow of late.
    #[inline]
    pub const fn is_fast(&self) -> bool {
        self.pace == PACE
    }

    /// So many messages of one lane may be handled before others have their turns, and what the messages have led to is seen to: fewer where they are
    /// slow, as all of that waits for them.
    #[inline]
    pub const fn most(&self, most: usize) -> usize {
        if self.is_fast() { most } else { self.pace }
    }

    /// So many messages were handled.
    #[inline]
    pub const fn handled(&mut self, count: usize) {
        self.since += count;
    }

    /// What was handled may have been many turns of entities: the next thing has a reading of its own.
    pub const fn end_row(&mut self) {
        self.since = self.pace;
    }

    /// Reads the clock, unless all goes fast and it was hardly any time ago. Whether it was read.
    #[inline(never)]
    pub fn renew(&mut self) -> bool {
        self.since = 0;
        if self.is_fast() && self.last.is_soon(&self.clock) {
            return false;
        }
        let read = Moment::read(&self.clock);
        self.set_pace(read);
        self.last = read;
        true
    }

    /// What was handled since the last reading took until then.
    fn set_pace(&mut self, until: Moment) {
        self.pace = if until.now.since(self.last.now) >= SLOW { 1 } else { PACE.min(2 * self.pace) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(us: u64) -> Moment {
        Moment { now: Time::from_nanos(us * 1000), ticks: Some(us * 1000) }
    }

    #[test]
    fn behind_a_turn_that_was_slow_each_message_has_a_reading_of_its_own() {
        let mut moments = Moments::new(Clock::Machine);
        moments.begin(at(0));
        moments.handled(1);
        moments.begin(at(999));
        assert_eq!((moments.left(), moments.most(64)), (PACE, 64));
        moments.handled(1);
        moments.begin(at(1_999));
        assert_eq!((moments.left(), moments.most(64)), (1, 1));
        // It gets faster, or has nothing to do.
        for pace in [2, 4, 8] {
            moments.handled(1);
            moments.begin(at(2_000));
            assert_eq!((moments.left(), moments.most(64)), (pace, pace));
        }
        moments.begin(at(9_000_000));
        assert_eq!(moments.most(64), 8);
        moments.handled(1);
        moments.begin(at(9_000_001));
        assert_eq!(moments.most(64), 64);
    }
}
