//! Time as the library sees it: nanoseconds since an arbitrary start, given in from outside.

use std::{
    ops::{Add, Sub},
    time::Duration,
};

/// A moment on one node's own clock; virtual under the test kit and in the simulator.
///
/// Nanoseconds since an arbitrary start that is never 0. Means nothing on another node, so it is not serialisable.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Time(u64);

impl Time {
    /// Before every other moment.
    pub const ZERO: Self = Self(0);
    /// After every other moment: "never" as a deadline, "always" as a limit.
    pub const MAX: Self = Self(u64::MAX);

    /// The moment `nanos` nanoseconds after the clock's start.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since the clock's start.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Time passed since `earlier`; zero if that is later.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Time {
    type Output = Self;

    fn add(self, d: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl Sub<Duration> for Time {
    type Output = Self;

    fn sub(self, d: Duration) -> Self {
        Self(self.0.saturating_sub(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)))
    }
}

/// When to give up. `Duration`s convert; the engine resolves them on its own clock when it accepts the call.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Deadline {
    /// So long after the call was accepted.
    After(Duration),
    /// At a moment of this node's clock.
    At(Time),
}

impl Deadline {
    /// The moment meant, for a call accepted at `now`.
    pub fn resolve(self, now: Time) -> Time {
        match self {
            Self::After(d) => now + d,
            Self::At(t) => t,
        }
    }
}

impl From<Duration> for Deadline {
    fn from(d: Duration) -> Self {
        Self::After(d)
    }
}

impl From<Time> for Deadline {
    fn from(t: Time) -> Self {
        Self::At(t)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_saturates() {
        assert_eq!(Time::MAX + Duration::from_secs(1), Time::MAX);
        assert_eq!(Time::ZERO - Duration::from_secs(1), Time::ZERO);
        assert_eq!(Time::ZERO.since(Time::from_nanos(5)), Duration::ZERO);
    }

    #[test]
    fn a_deadline_is_resolved_on_the_callees_clock() {
        let now = Time::from_nanos(7);
        assert_eq!(Deadline::from(Duration::from_nanos(3)).resolve(now), Time::from_nanos(10));
        assert_eq!(Deadline::from(Time::from_nanos(4)).resolve(now), Time::from_nanos(4));
    }
}
