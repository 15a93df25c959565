//! What the machine takes to bring word to a thread that sleeps on another core, and back: each request does that some times, and on a shared machine it
//! takes half as long again in some minutes as in others.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
    thread::{self, JoinHandle, Thread},
    time::{Duration, Instant},
};

use super::watch::Second;
use crate::bench::one_core::{bind_to, cores};

const HERE: u8 = 0;
const THERE: u8 = 1;
const OVER: u8 = 2;

/// A thread that answers the one that has made this, each of them bound to a core of its own where there is more than one: left to itself the system wakes
/// the other one where it was woken from, which tells nothing of the way between two cores.
pub struct Floor {
    word: Arc<AtomicU8>,
    other: Option<JoinHandle<()>>,
}

impl Floor {
    pub fn start() -> io::Result<Self> {
        let (word, me) = (Arc::new(AtomicU8::new(HERE)), thread::current());
        let theirs = word.clone();
        let all = cores().unwrap_or_default();
        let own = if let [first, .., last] = all[..] { bind_to(first).is_ok().then_some(last) } else { None };
        let answer = move || {
            // Where it cannot be bound, both are on one core all the time.
            _ = own.map(bind_to);
            answer(&theirs, &me);
        };
        let other = Some(thread::Builder::new().name("soak-floor".into()).spawn(answer)?);
        Ok(Self { word, other })
    }

    /// How long a round trip takes.
    pub fn trip(&self) -> Duration {
        let sent = Instant::now();
        self.send(THERE);
        while self.word.load(Ordering::Acquire) != HERE {
            thread::park();
        }
        sent.elapsed()
    }

    fn send(&self, word: u8) {
        self.word.store(word, Ordering::Release);
        self.other.iter().for_each(|other| other.thread().unpark());
    }
}

impl Drop for Floor {
    fn drop(&mut self) {
        self.send(OVER);
        // It has nothing that could panic.
        let _ = self.other.take().map(JoinHandle::join);
    }
}

fn answer(word: &AtomicU8, asker: &Thread) {
    loop {
        match word.load(Ordering::Acquire) {
            OVER => return,
            THERE => {
                word.store(HERE, Ordering::Release);
                asker.unpark();
            }
            _ => thread::park(),
        }
    }
}

/// The middle one of those trips, in nanoseconds; 0 if there were none. Empties the list.
pub fn median(trips: &mut Vec<Duration>) -> u64 {
    trips.sort_unstable();
    let middle = trips.get(trips.len() / 2).map_or(0, |trip| trip.as_nanos() as u64);
    trips.clear();
    middle
}

/// Medians of the seconds without faults, by third of the time between these.
pub fn by_third(seconds: &[Second], from: Duration, upto: Duration) -> [u64; 3] {
    let (from, length) = (from.as_secs_f64(), upto.saturating_sub(from).as_secs_f64() / 3.0);
    [0, 1, 2].map(|third| {
        let begin = from + length * f64::from(third);
        let within = seconds.iter().filter(|second| !second.fault && (begin..begin + length).contains(&second.at));
        let mut all: Vec<_> = within.map(|second| Duration::from_nanos(second.floor_ns)).collect();
        median(&mut all)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trip_goes_there_and_back() {
        let floor = Floor::start().unwrap();
        assert!((0..100).all(|_| floor.trip() > Duration::ZERO));
    }

    #[test]
    fn thirds_have_their_calm_seconds() {
        let second = |at, floor_ns, fault| Second { at, floor_ns, fault, ..Second::default() };
        let seconds = [
            second(5.0, 1, false),
            second(11.0, 20, false),
            second(12.0, 30, false),
            second(13.0, 10, false),
            second(21.0, 50, false),
            second(22.0, 900, true),
        ];
        let secs = Duration::from_secs;
        assert_eq!(by_third(&seconds, secs(10), secs(40)), [20, 50, 0]);
    }
}
