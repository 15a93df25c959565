//! When the asks of a node end at the latest, without a message per ask. Checked by `loom/tests/deadlines.rs`.
//!
//! Nearly every ask is answered long before its deadline, so nothing is done for it but a look: each block of slots has a bound below the
//! deadlines in it, and all blocks have one below theirs, the alarm. An asker lowers what lies above its deadline, which it seldom does: deadlines
//! come later and later, and a bound stays low when its ask is answered. Somebody (the network thread) looks at the alarm; when it is due, at
//! the bounds; and at the slots of a block whose bound is due.
//!
//! Two threads must not miss each other: an asker shows its slot first and reads the bound then, who sweeps clears the bound first and reads the
//! slots then, with a full fence between on both sides; the same holds for a bound and the alarm.

use super::sync::{AtomicU64, Ordering, fence};

/// Slots of one block.
pub const BLOCK: usize = 64;
/// Bounds in units of 2^20 ns (1.05 ms), rounded up: deadlines that are closer together are one alarm.
pub const COARSE: u32 = 20;
/// Bounds in nanoseconds, where time costs nothing.
pub const EXACT: u32 = 0;
/// No deadline.
const NEVER: u64 = u64::MAX;

/// Bounds of the deadlines of a table of slots.
pub struct Deadlines {
    blocks: Box<[AtomicU64]>,
    alarm: AtomicU64,
    /// The unit of bounds is two to the power of this, in nanoseconds.
    unit: u32,
}

impl Deadlines {
    /// For so many slots, with bounds in units of 2^`unit` ns.
    pub fn new(slots: usize, unit: u32) -> Self {
        let blocks = (0..slots.div_ceil(BLOCK)).map(|_| AtomicU64::new(NEVER)).collect();
        Self { blocks, alarm: AtomicU64::new(NEVER), unit }
    }

    /// The first tick that is not before that moment, in nanoseconds.
    const fn tick_of(&self, due: u64) -> u64 {
        due.div_ceil(1 << self.unit)
    }

    /// The slot can be seen, with a deadline at `due` (in nanoseconds). True if who sweeps must be told, since it may wait for something later.
    pub fn add(&self, slot: usize, due: u64) -> bool {
        let tick = self.tick_of(due);
        fence(Ordering::SeqCst);
        let block = &self.blocks[slot / BLOCK];
        if block.load(Ordering::Relaxed) > tick {
            block.fetch_min(tick, Ordering::Relaxed);
            fence(Ordering::SeqCst);
        }
        self.alarm.load(Ordering::Relaxed) > tick && self.alarm.fetch_min(tick, Ordering::Relaxed) > tick
    }

    /// When to sweep, in nanoseconds; `None` if nothing has a deadline.
    pub fn due(&self) -> Option<u64> {
        match self.alarm.load(Ordering::Relaxed) {
            NEVER => None,
            tick => Some(tick.saturating_mul(1 << self.unit)),
        }
    }

    /// Looks at the blocks that are due. `scan` looks at one block's slots, ends what is due, and returns the earliest deadline of the others.
    /// By one thread at a time.
    pub fn sweep(&self, now: u64, mut scan: impl FnMut(std::ops::Range<usize>) -> Option<u64>) {
        let now = now >> self.unit;
        self.alarm.swap(NEVER, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let mut next = NEVER;
        for (at, block) in self.blocks.iter().enumerate() {
            if block.load(Ordering::Relaxed) <= now {
                block.swap(NEVER, Ordering::Relaxed);
                fence(Ordering::SeqCst);
                if let Some(due) = scan(at * BLOCK..(at + 1) * BLOCK) {
                    block.fetch_min(self.tick_of(due), Ordering::Relaxed);
                }
            }
            next = next.min(block.load(Ordering::Relaxed));
        }
        self.alarm.fetch_min(next, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1 << COARSE;

    #[test]
    fn an_earlier_deadline_moves_the_alarm_and_a_later_one_does_not() {
        let deadlines = Deadlines::new(200, COARSE);
        assert_eq!(deadlines.due(), None);
        assert!(deadlines.add(3, 10 * MS));
        assert!(!deadlines.add(150, 10 * MS), "the same tick");
        assert!(!deadlines.add(4, 12 * MS) && !deadlines.add(199, u64::MAX - MS));
        assert!(deadlines.add(70, 5 * MS - 1));
        assert_eq!(deadlines.due(), Some(5 * MS));
    }

    #[test]
    fn only_blocks_that_are_due_are_looked_at_and_the_alarm_is_the_next_bound() {
        let deadlines = Deadlines::new(200, COARSE);
        for (slot, due) in [(3, 10), (70, 5), (150, 30)] {
            deadlines.add(slot, due * MS);
        }
        let mut looked = vec![];
        deadlines.sweep(10 * MS, |slots| {
            looked.push(slots.start);
            (slots.start == 64).then_some(20 * MS + 1)
        });
        assert_eq!(looked, [0, 64]);
        assert_eq!(deadlines.due(), Some(21 * MS), "what is left in the second block, rounded up");
        deadlines.sweep(40 * MS, |_| None);
        assert_eq!(deadlines.due(), None, "nothing wakes a node without asks");
    }
}
