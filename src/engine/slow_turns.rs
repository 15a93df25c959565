//! Finds workers that do not come out of an entity's code, at the cost of a few plain stores per turn.
//!
//! A worker says which entity it is in before it enters, and when it has left. The network thread looks each [`LOOK_EVERY`], and marks the turn that it
//! sees. One that it has seen for too long is reported at once, and the worker reports it when it ends. Nobody interrupts it: only the code itself can end.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use crossbeam::utils::CachePadded;

use super::types::show_bytes;
use crate::{ShardId, ShardKey, Time, TypeId};

/// A turn seen for so long is reported.
pub const SLOW: Duration = Duration::from_millis(500);
/// From one look to the next: by so much a turn is older than it has been seen. Also while nothing else happens, as nobody says that a worker is at work
/// again; that many looks are five hundredths of a percent of a core.
pub const LOOK_EVERY: Duration = Duration::from_millis(100);

/// So many bytes of a key are shown, which is all of most.
const SHOWN: usize = 24;

/// A turn that is not over.
#[derive(Clone, PartialEq, Debug)]
pub struct Inside {
    turn: u64,
    /// Where it is.
    pub shard: ShardKey,
    /// What the entity's key begins with; empty if the worker could not say.
    key: Vec<u8>,
    /// There is more of it.
    cut: bool,
    /// How long it has been seen.
    pub took: Duration,
}

impl Inside {
    /// The key for people; `show` makes a text of a whole one.
    pub fn key(&self, show: impl FnOnce(&[u8]) -> String) -> String {
        if self.cut { show_bytes(&self.key) + "…" } else { show(&self.key) }
    }
}

/// A turn of an entity's code that took long, and is over.
#[cfg(feature = "admin")]
#[derive(Clone, PartialEq, Debug)]
pub struct SlowTurn {
    /// Name of the entity's type.
    pub entity_type: String,
    /// Its key, for people.
    pub key: String,
    /// Its shard.
    pub shard: ShardId,
    /// The worker that it kept.
    pub worker: u16,
    /// How long, at least.
    pub took: Duration,
    /// When it ended.
    pub ended: Time,
}

/// So many of them are kept.
#[cfg(feature = "admin")]
const KEPT: usize = 64;

/// The last slow turns, the oldest first.
#[cfg(feature = "admin")]
#[derive(Debug, Default)]
pub struct SlowTurns(parking_lot::Mutex<std::collections::VecDeque<SlowTurn>>);

#[cfg(feature = "admin")]
impl SlowTurns {
    /// One more, in the place of the oldest if there are many.
    pub fn add(&self, turn: SlowTurn) {
        let mut turns = self.0.lock();
        if turns.len() == KEPT {
            turns.pop_front();
        }
        turns.push_back(turn);
    }

    /// Those that are kept.
    pub fn all(&self) -> Vec<SlowTurn> {
        self.0.lock().iter().cloned().collect()
    }
}

/// What one worker is doing. Written by that worker, but for `seen` and `since`, which the network thread writes.
#[derive(Debug, Default)]
pub struct Busy {
    /// Number of the turn; odd while inside.
    turn: AtomicU64,
    /// Type and shard of the turn.
    at: AtomicU64,
    /// Length of the entity's key, and the bytes that it begins with.
    key_len: AtomicU64,
    key: [AtomicU64; SHOWN / 8],
    /// The turn that was seen last.
    seen: CachePadded<AtomicU64>,
    /// When that was seen for the first time, in nanoseconds.
    since: AtomicU64,
}

impl Busy {
    /// The worker goes into the code of the entity with that key.
    #[inline]
    pub fn enter(&self, shard: ShardKey, key: &[u8]) {
        self.at.store(u64::from(shard.shard.0) << 32 | u64::from(shard.ty.0), Ordering::Relaxed);
        self.key_len.store(key.len() as u64, Ordering::Relaxed);
        // Most keys are numbers.
        match <[u8; 8]>::try_from(key) {
            Ok(word) => self.key[0].store(u64::from_le_bytes(word), Ordering::Relaxed),
            Err(_) => self.long_key(key),
        }
        self.turn.store(self.turn.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
    }

    /// Of another length than a number's.
    #[cold]
    fn long_key(&self, key: &[u8]) {
        for (word, bytes) in self.key.iter().zip(key.chunks(8)) {
            let mut all = [0; 8];
            all[..bytes.len()].copy_from_slice(bytes);
            word.store(u64::from_le_bytes(all), Ordering::Relaxed);
        }
    }

    /// The worker is out again. True: the turn was seen, and may have been [slow](Self::slow).
    #[inline]
    pub fn leave(&self) -> bool {
        let turn = self.turn.load(Ordering::Relaxed);
        self.turn.store(turn.wrapping_add(1), Ordering::Release);
        self.seen.load(Ordering::Acquire) == turn
    }

    /// How long the turn that was seen last had been seen by then, if that is slow.
    #[cold]
    pub fn slow(&self, until: Time) -> Option<Duration> {
        Some(until.since(Time::from_nanos(self.since.load(Ordering::Relaxed)))).filter(|took| *took >= SLOW)
    }

    /// Whether the worker is in an entity's code. For that worker.
    #[inline]
    pub fn is_inside(&self) -> bool {
        self.turn.load(Ordering::Relaxed) % 2 == 1
    }

    /// The shard whose entity the worker is in, if it is in one. For that worker.
    #[inline]
    pub fn shard_inside(&self) -> Option<ShardKey> {
        self.is_inside().then(|| unpack(self.at.load(Ordering::Relaxed)))
    }

    /// The number of the turn that is not over.
    fn turn(&self) -> Option<u64> {
        Some(self.turn.load(Ordering::Acquire)).filter(|turn| turn % 2 == 1)
    }

    /// That turn, seen for so long, if it is still not over. What is said of one that ends just now may belong to the next.
    fn describe(&self, turn: u64, took: Duration) -> Option<Inside> {
        let at = self.at.load(Ordering::Acquire);
        let mut key: Vec<u8> = self.key.iter().flat_map(|word| word.load(Ordering::Acquire).to_le_bytes()).collect();
        let length = self.key_len.load(Ordering::Acquire) as usize;
        key.truncate(length);
        let (shard, cut) = (unpack(at), length > SHOWN);
        (self.turn.load(Ordering::Relaxed) == turn).then_some(Inside { turn, shard, key, cut, took })
    }

    /// The turn that is slow and not over.
    #[cfg(any(test, feature = "admin"))]
    pub fn stuck(&self, now: Time) -> Option<Inside> {
        let turn = self.turn().filter(|turn| self.seen.load(Ordering::Acquire) == *turn)?;
        self.describe(turn, self.slow(now)?)
    }
}

/// The two halves that `enter` has put together.
#[inline]
fn unpack(at: u64) -> ShardKey {
    ShardKey { ty: TypeId(at as u32), shard: ShardId((at >> 32) as u32) }
}

/// The network thread's eye on the workers.
#[derive(Debug)]
pub struct Watch {
    /// Per worker the turn that was reported last.
    told: Vec<u64>,
}

impl Watch {
    /// For so many workers.
    pub fn new(workers: usize) -> Self {
        Self { told: vec![0; workers] }
    }

    /// Looks at worker `index`: a turn that turns out to be slow just now.
    pub fn look(&mut self, now: Time, index: usize, busy: &Busy) -> Option<Inside> {
        let turn = busy.turn()?;
        if busy.seen.load(Ordering::Relaxed) != turn {
            busy.since.store(now.as_nanos(), Ordering::Relaxed);
            busy.seen.store(turn, Ordering::Release);
        }
        if self.told[index] == turn {
            return None;
        }
        let inside = busy.describe(turn, busy.slow(now)?)?;
        self.told[index] = turn;
        Some(inside)
    }
}

/// Lets a log line through once a second, and says how many it kept back since the last one.
#[derive(Debug, Default)]
pub struct LogGate {
    /// When the next line may pass, in nanoseconds.
    next: AtomicU64,
    kept_back: AtomicU64,
}

/// Lines that one gate lets through are so far apart.
const LOG_EVERY: Duration = Duration::from_secs(1);

impl LogGate {
    /// How many lines were kept back before this one; `None`: keep this one back as well. From any thread.
    pub fn pass(&self, now: Time) -> Option<u64> {
        let next = self.next.load(Ordering::Relaxed);
        let after = (now + LOG_EVERY).as_nanos();
        // Of several threads that come at once, one passes.
        let passes = now.as_nanos() >= next && self.next.compare_exchange(next, after, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        match passes {
            true => Some(self.kept_back.swap(0, Ordering::Relaxed)),
            false => {
                self.kept_back.fetch_add(1, Ordering::Relaxed);
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHARD: ShardKey = ShardKey { ty: TypeId(0xfeed_beef), shard: ShardId(7) };

    fn at(ms: u64) -> Time {
        Time::from_nanos(1_000_000 * (ms + 1))
    }

    // failures: rows 46, 47
    #[test]
    fn a_turn_that_lasts_is_reported_once_and_named_when_it_ends() {
        let (busy, mut watch) = (Busy::default(), Watch::new(1));
        busy.enter(SHARD, b"k1");
        assert_eq!((watch.look(at(0), 0, &busy), watch.look(at(499), 0, &busy), busy.stuck(at(499))), (None, None, None));
        let slow = |ms| Some(Inside { turn: 1, shard: SHARD, key: b"k1".to_vec(), cut: false, took: Duration::from_millis(ms) });
        assert_eq!(watch.look(at(500), 0, &busy), slow(500));
        assert_eq!(watch.look(at(700), 0, &busy), None);
        assert_eq!(busy.stuck(at(900)), slow(900));
        assert_eq!((busy.leave(), busy.slow(at(950))), (true, Some(Duration::from_millis(950))));
        assert_eq!(busy.stuck(at(950)), None);
        busy.enter(SHARD, b"k2");
        assert_eq!((busy.stuck(at(960)), busy.leave()), (None, false), "the next turn is not to blame");
        // Also one that is over before it has been looked at again.
        busy.enter(SHARD, b"k3");
        watch.look(at(1_000), 0, &busy);
        assert_eq!((busy.leave(), busy.slow(at(1_500))), (true, Some(Duration::from_millis(500))));
        busy.enter(SHARD, b"k4");
        watch.look(at(2_000), 0, &busy);
        assert_eq!((busy.leave(), busy.slow(at(2_499))), (true, None));
    }

    #[test]
    fn a_key_of_any_length_is_shown_as_far_as_there_is_room() {
        let shown = |key: &[u8]| {
            let (busy, mut watch) = (Busy::default(), Watch::new(1));
            // What the turn before has left behind is not shown.
            busy.enter(SHARD, &[b'x'; 40]);
            busy.leave();
            busy.enter(SHARD, key);
            watch.look(at(0), 0, &busy);
            watch.look(at(500), 0, &busy).unwrap().key(show_bytes)
        };
        assert_eq!(shown(b""), "");
        assert_eq!(shown(b"a number"), "a number");
        assert_eq!(shown(b"of thirteen b"), "of thirteen b");
        assert_eq!(shown(b"four and twenty bytes!!!"), "four and twenty bytes!!!");
        assert_eq!(shown(b"five and twenty bytes!!!!"), "five and twenty bytes!!!…");
        assert_eq!(shown(b"a\nb"), "a\\nb");
    }

    // failures: row 57
    #[test]
    fn a_flood_is_one_line_a_second_that_says_how_much_it_stands_for() {
        let gate = LogGate::default();
        assert_eq!(gate.pass(at(0)), Some(0));
        for _ in 0..1000 {
            assert_eq!(gate.pass(at(999)), None);
        }
        assert_eq!(gate.pass(at(1000)), Some(1000));
        assert_eq!(gate.pass(at(1001)), None);
        assert_eq!(gate.pass(at(5000)), Some(1));
    }

    #[cfg(feature = "admin")]
    #[test]
    fn the_last_slow_turns_are_kept() {
        let turns = SlowTurns::default();
        let turn = |n: u64| SlowTurn {
            entity_type: "counter".into(),
            key: n.to_string(),
            shard: SHARD.shard,
            worker: 0,
            took: SLOW,
            ended: at(n),
        };
        assert_eq!(turns.all(), []);
        (0..100).for_each(|n| turns.add(turn(n)));
        assert_eq!(turns.all(), (36..100).map(turn).collect::<Vec<_>>());
    }

    #[test]
    fn many_short_turns_are_nothing_to_report() {
        let (busy, mut watch) = (Busy::default(), Watch::new(1));
        for ms in (0..10_000).step_by(200) {
            busy.enter(SHARD, b"k");
            assert_eq!(watch.look(at(ms), 0, &busy), None);
            assert_eq!((busy.leave(), busy.slow(at(ms))), (true, None));
            assert_eq!(watch.look(at(ms + 1), 0, &busy), None);
        }
    }
}
