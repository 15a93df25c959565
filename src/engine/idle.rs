//! What a thread does while it has nothing to do: yield for a while, then sleep.
//!
//! Waking a thread on another, idle core costs tens of microseconds, so threads that are in a conversation stay awake for a while. A
//! yield that itself took long means that somebody else wants the core: then it is better to sleep at once for the next millisecond.

use std::time::Duration;

use super::{bell::Bell, sys};
use crate::{Time, config::Idle};

/// A yield longer than this is the observable sign of foreign load: a stranger keeps the core for a slice, which is milliseconds. Threads of
/// one conversation that share cores keep each other waiting for tens of microseconds, and are no reason to sleep: with 50 us here, a remote
/// ask on two cores took 42 us (p99 162) where it takes 33 (p99 87).
const FOREIGN_LOAD: Duration = Duration::from_micros(200);
/// After that sign, sleep at once for so long.
const STEP_ASIDE: Duration = Duration::from_millis(1);

/// A yield longer than this: a thread that does not yield has had the core for its whole slice. Threads of one conversation do now and then, strangers
/// always.
const WHOLE_SLICE: Duration = Duration::from_millis(2);
/// The slice of an engine's thread beside strangers: a yield gives away one's own slice, of 3 ms by default, and who wakes up is preferred to a
/// running thread whose slice is longer. Measured beside others on every core: 1.9 M/s between two nodes without it, 2.5 with it. Not at all
/// times: where the threads of one conversation share cores, a remote ask takes a fifth longer.
const SHORT_SLICE: Duration = Duration::from_micros(100);
/// For so long after the last such yield.
const SHORT_FOR: Duration = Duration::from_millis(100);

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

/// Work in less than this after the last one belongs to the same conversation.
const GAP: Duration = Duration::from_millis(1);
/// So many pieces of work in one conversation mean that traffic flows. A heartbeat and its answer are fewer.
const HOT: u32 = 8;

/// A client, a worker and a network thread, and one core for everybody else: with fewer, nobody spins.
const SPIN_CORES: usize = 4;

/// Looks at the queues in front of the first yield, for a worker whose last work came from a thread of its own node: the next one is less than a
/// microsecond away if that thread has a core, and a yield would take as long. Not for work from elsewhere: whoever brings that needs a core too.
const LOOKS: u32 = 64;

/// The bell of an engine's thread with that preset, which `wake` wakes.
pub fn bell(idle: Idle, wake: impl Fn() + Send + Sync + 'static) -> Bell {
    if idle == Idle::LowCpu { Bell::new(wake) } else { Bell::of_sound_sleeper(wake) }
}

/// A thread whose producers may have missed that it sleeps looks again after so long.
pub const UNSURE: Duration = Duration::from_millis(1);

/// What found no room in a ring is offered again so long after that, should nothing else happen: who takes from the ring does not say so.
pub const AGAIN_AFTER: Duration = Duration::from_millis(1);

/// Shortens the slices of the calling thread while strangers keep it from its core.
#[derive(Debug, Default)]
struct Slices {
    /// What they were, while they are short.
    before: Option<Duration>,
    until: Time,
}

impl Slices {
    /// A yield took so long, and ended at `now`.
    fn yielded(&mut self, took: Duration, now: Time) {
        if took > WHOLE_SLICE {
            self.until = now + SHORT_FOR;
            if self.before.is_none() {
                // Who has shorter ones keeps them.
                self.before = sys::slice().filter(|&slice| slice > SHORT_SLICE && sys::set_slice(SHORT_SLICE));
            }
        } else if now >= self.until
            && let Some(before) = self.before.take()
        {
            sys::set_slice(before);
        }
    }
}

/// Idle strategy of one thread.
#[derive(Debug)]
pub struct Idler {
    looks: u32,
    spin: Duration,
    yields: Duration,
    /// Instead of `yields` while traffic flows.
    hot_yields: Duration,
    idle_since: Option<Time>,
    worked_at: Time,
    streak: u32,
    aside_until: Time,
    /// `None` where how the thread is scheduled is not the engine's to change.
    slices: Option<Slices>,
}

impl Idler {
    /// The strategy of a preset, on this machine, for a thread of users.
    pub fn new(idle: Idle) -> Self {
        Self::on(idle, sys::cores())
    }

    /// As [`new`](Self::new), for a thread of the engine.
    pub fn of_engine(idle: Idle) -> Self {
        Self { slices: Some(Slices::default()), ..Self::new(idle) }
    }

    fn on(idle: Idle, cores: usize) -> Self {
        let us = Duration::from_micros;
        // Who spins keeps its core. Where the threads of a conversation have to share cores, the one that is to answer waits for that long:
        // measured on two, a remote ask took 550 us with 200 us of spinning, and 50 us without.
        let spin = if cores >= SPIN_CORES { us(200) } else { us(0) };
        let (spin, yields, hot_yields) = match idle {
            Idle::LowLatency => (spin, us(20_000), us(20_000)),
            Idle::LowCpu => (us(0), us(0), us(0)),
            _ => (us(0), us(60), us(1_000)),
        };
        let looks = if cores > 1 && idle != Idle::LowCpu { LOOKS } else { 0 };
        Self { looks, spin, yields, hot_yields, idle_since: None, worked_at: Time::ZERO, streak: 0, aside_until: Time::ZERO, slices: None }
    }

    /// How often to look again before [`rest`](Self::rest) is asked, if the last work came from this node.
    pub fn looks(&self) -> u32 {
        self.looks
    }

    /// The turn that began at `now` found work.
    pub fn worked(&mut self, now: Time) {
        self.streak = if now.since(self.worked_at) < GAP { self.streak.saturating_add(1) } else { 0 };
        self.worked_at = now;
        self.idle_since = None;
    }

    /// The last turn found nothing.
    pub fn rest(&mut self, now: Time) -> Rest {
        let since = *self.idle_since.get_or_insert(now);
        let idle = now.since(since);
        let yields = if self.streak >= HOT { self.hot_yields } else { self.yields };
        if idle < self.spin {
            Rest::Spin
        } else if idle < yields && now >= self.aside_until {
            Rest::Yield
        } else {
            Rest::Park
        }
    }

    /// A yield was made by this thread between these two readings.
    pub fn yielded(&mut self, before: Time, after: Time) {
        let took = after.since(before);
        if took > FOREIGN_LOAD {
            self.aside_until = after + STEP_ASIDE;
        }
        if let Some(slices) = &mut self.slices {
            slices.yielded(took, after);
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
        idler.worked(at(61));
        assert_eq!(idler.rest(at(62)), Rest::Yield);
    }

    #[test]
    fn a_conversation_keeps_it_awake_and_silence_ends_that() {
        let mut idler = Idler::new(Idle::Balanced);
        for i in 0..=u64::from(HOT) {
            idler.worked(at(5_000 + i * 500));
        }
        let last = 5_000 + u64::from(HOT) * 500;
        assert_eq!(idler.rest(at(last + 10)), Rest::Yield);
        assert_eq!(idler.rest(at(last + 900)), Rest::Yield);
        assert_eq!(idler.rest(at(last + 1_100)), Rest::Park);
        idler.worked(at(last + 200_000));
        assert_eq!(idler.rest(at(last + 200_010)), Rest::Yield);
        assert_eq!(idler.rest(at(last + 200_100)), Rest::Park, "one piece of work after a silence is no conversation");
    }

    #[test]
    fn foreign_load_sends_it_to_sleep() {
        let mut idler = Idler::new(Idle::LowLatency);
        idler.yielded(at(0), at(150));
        assert_eq!(idler.rest(at(160)), Rest::Yield, "another thread of the conversation had its turn");
        idler.yielded(at(200), at(450));
        assert_eq!(idler.rest(at(800)), Rest::Park);
        assert_eq!(idler.rest(at(1500)), Rest::Yield);
    }

    #[test]
    fn low_latency_spins_only_where_there_are_cores_to_spare() {
        assert_eq!(Idler::on(Idle::LowLatency, 4).rest(at(0)), Rest::Spin);
        assert_eq!(Idler::on(Idle::LowLatency, 2).rest(at(0)), Rest::Yield);
    }

    #[test]
    fn low_cpu_parks_at_once() {
        assert_eq!(Idler::new(Idle::LowCpu).rest(at(0)), Rest::Park);
        assert_eq!(Idler::new(Idle::LowCpu).looks(), 0);
    }

    #[test]
    fn nobody_looks_twice_on_one_core() {
        assert_eq!((Idler::on(Idle::Balanced, 1).looks(), Idler::on(Idle::Balanced, 2).looks()), (0, LOOKS));
    }

    #[test]
    fn slices_are_short_beside_strangers_and_only_those_of_the_engines_threads() {
        let run = |mut idler: Idler| {
            let of = |idler: &mut Idler, began, took| {
                idler.yielded(at(began), at(began + took));
                sys::slice()
            };
            [of(&mut idler, 0, 1_900), of(&mut idler, 3_000, 3_100), of(&mut idler, 50_000, 100), of(&mut idler, 107_000, 100)]
        };
        let engine = std::thread::spawn(move || (sys::slice(), run(Idler::of_engine(Idle::Balanced)))).join().unwrap();
        let users = std::thread::spawn(move || (sys::slice(), run(Idler::new(Idle::Balanced)))).join().unwrap();
        let (usual, short) = (users.0, users.0.map(|usual| usual.min(SHORT_SLICE)));
        assert_eq!(engine, (usual, [usual, short, short, usual]));
        assert_eq!(users.1, [usual; 4]);
    }
}
