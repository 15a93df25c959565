//! What a thread does while it has nothing to do: yield for a while, then sleep.
//!
//! Waking a thread on another, idle core costs tens of microseconds, so threads that are in a conversation stay awake for a while. A
//! yield that itself took long means that somebody else wants the core: then it is better to sleep at once for the next millisecond.

use std::time::Duration;

use crate::{Time, config::Idle};

/// A yield longer than this is the observable sign of foreign load.
const FOREIGN_LOAD: Duration = Duration::from_micros(50);
/// After that sign, sleep at once for so long.
const STEP_ASIDE: Duration = Duration::from_millis(1);

/// What to do in this idle turn.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Rest {
    /// Look again at once.
    Spin,
    /// Give the core away, then look again.
    Yield,
    /// Sleep until woken or until the next timer.
    Park,
}

/// Idle strategy of one thread.
#[derive(Debug)]
pub struct Idler {
    spin: Duration,
    yields: Duration,
    idle_since: Option<Time>,
    aside_until: Time,
}

impl Idler {
    /// The strategy of a preset.
    pub fn new(idle: Idle) -> Self {
        let (spin, yields) = match idle {
            Idle::LowLatency => (Duration::from_micros(200), Duration::from_millis(20)),
            Idle::LowCpu => (Duration::ZERO, Duration::ZERO),
            _ => (Duration::ZERO, Duration::from_micros(60)),
        };
        Self { spin, yields, idle_since: None, aside_until: Time::ZERO }
    }

    /// The last turn found work.
    pub fn worked(&mut self) {
        self.idle_since = None;
    }

    /// The last turn found nothing.
    pub fn rest(&mut self, now: Time) -> Rest {
        let since = *self.idle_since.get_or_insert(now);
        let idle = now.since(since);
        if idle < self.spin {
            Rest::Spin
        } else if idle < self.yields && now >= self.aside_until {
            Rest::Yield
        } else {
            Rest::Park
        }
    }

    /// A yield was made between these two readings.
    pub fn yielded(&mut self, before: Time, after: Time) {
        if after.since(before) > FOREIGN_LOAD {
            self.aside_until = after + STEP_ASIDE;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(us: u64) -> Time {
        Time::from_nanos(1 + us * 1000)
    }

    #[test]
    fn balanced_yields_then_parks() {
        let mut idler = Idler::new(Idle::Balanced);
        assert_eq!(idler.rest(at(0)), Rest::Yield);
        assert_eq!(idler.rest(at(59)), Rest::Yield);
        assert_eq!(idler.rest(at(61)), Rest::Park);
        idler.worked();
        assert_eq!(idler.rest(at(62)), Rest::Yield);
    }

    #[test]
    fn foreign_load_sends_it_to_sleep() {
        let mut idler = Idler::new(Idle::LowLatency);
        idler.yielded(at(0), at(80));
        idler.rest(at(100));
        assert_eq!(idler.rest(at(400)), Rest::Park);
        assert_eq!(idler.rest(at(1200)), Rest::Yield);
    }

    #[test]
    fn low_cpu_parks_at_once() {
        assert_eq!(Idler::new(Idle::LowCpu).rest(at(0)), Rest::Park);
    }
}
