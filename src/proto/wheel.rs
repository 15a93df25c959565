//! A hierarchical timer wheel (Varghese and Lauck 1987), as pure as the rest of the core.
//!
//! Six levels of 64 slots; the finest slot is 2^18 ns (about a quarter of a millisecond), the coarsest level reaches about half a
//! year, and what lies beyond waits in its last slot and is dealt again. Timers are never moved on cancellation: a timer that no longer
//! matters is recognised by its owner when it fires (lazy cancel), because its token no longer fits.

use crate::Time;

const SLOT_BITS: u32 = 18;
const LEVEL_BITS: u32 = 6;
const SLOTS: usize = 1 << LEVEL_BITS;
const LEVELS: usize = 6;

/// Timers that carry a `T`. A timer never fires early; it fires at most one slot (0.26 ms) after its time was passed to [`Wheel::advance`].
#[derive(Debug)]
pub struct Wheel<T> {
    /// The tick that has been fired up to, in slots of the finest level.
    tick: u64,
    slots: Vec<Vec<(u64, T)>>,
    /// One bit per slot of each level: occupied.
    occupied: [u64; LEVELS],
    len: usize,
}

impl<T> Wheel<T> {
    /// An empty wheel that starts at `now`.
    pub fn new(now: Time) -> Self {
        Self { tick: now.as_nanos() >> SLOT_BITS, slots: (0..LEVELS * SLOTS).map(|_| Vec::new()).collect(), occupied: [0; LEVELS], len: 0 }
    }

    /// Number of timers that have not fired.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no timer is set.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Sets a timer. One that lies in the past fires at the next `advance`.
    pub fn insert(&mut self, at: Time, value: T) {
        // Round up, so that nothing fires early.
        let due = (at.as_nanos().saturating_add((1 << SLOT_BITS) - 1) >> SLOT_BITS).max(self.tick + 1);
        self.place(due, value);
        self.len += 1;
    }

    fn place(&mut self, due: u64, value: T) {
        // The level is that of the highest bit in which the due tick differs from the present one.
        let differ = due ^ self.tick;
        let level = ((63 - (differ | 1).leading_zeros()) / LEVEL_BITS).min(LEVELS as u32 - 1) as usize;
        let span = LEVEL_BITS * level as u32;
        let slot = if differ >> (LEVEL_BITS * LEVELS as u32) == 0 {
            (due >> span) as usize % SLOTS
        } else {
            // Beyond the wheel: the slot that comes round last.
            ((self.tick >> span) as usize + SLOTS - 1) % SLOTS
        };
        self.slots[level * SLOTS + slot].push((due, value));
        self.occupied[level] |= 1 << slot;
    }

    /// The moment by which `advance` should be called; `None` = nothing is set. At most one slot of the level early, never late.
    pub fn next_due(&self) -> Option<Time> {
        let mut best: Option<u64> = None;
        for level in 0..LEVELS {
            if let Some(tick) = self.next_occupied(level) {
                best = Some(best.map_or(tick, |b| b.min(tick)));
            }
        }
        best.map(|tick| Time::from_nanos(tick << SLOT_BITS))
    }

    /// First tick after the present one at which the next occupied slot of `level` begins.
    fn next_occupied(&self, level: usize) -> Option<u64> {
        if self.occupied[level] == 0 {
            return None;
        }
        let span = LEVEL_BITS * level as u32;
        let here = self.tick >> span;
        let ahead = self.occupied[level].rotate_right((here as u32 + 1) % SLOTS as u32).trailing_zeros() as u64 + 1;
        Some((here + ahead) << span)
    }

    /// Passes time up to `now` and appends what is due to `fired`, earliest slot first.
    pub fn advance(&mut self, now: Time, fired: &mut Vec<T>) {
        let target = now.as_nanos() >> SLOT_BITS;
        while self.tick < target {
            let Some(next) = (0..LEVELS).filter_map(|level| self.next_occupied(level)).min() else { break };
            if next > target {
                break;
            }
            self.tick = next;
            // Coarse levels first: what they hold is dealt to finer ones, down to the slot that is due now.
            for level in (0..LEVELS).rev() {
                let span = LEVEL_BITS * level as u32;
                if next & ((1 << span) - 1) != 0 {
                    continue;
                }
                let slot = (next >> span) as usize % SLOTS;
                if self.occupied[level] & (1 << slot) == 0 {
                    continue;
                }
                self.occupied[level] &= !(1 << slot);
                let mut due_here = std::mem::take(&mut self.slots[level * SLOTS + slot]);
                for (due, value) in due_here.drain(..) {
                    if due <= self.tick {
                        self.len -= 1;
                        fired.push(value);
                    } else {
                        self.place(due, value);
                    }
                }
                // Give the allocation back, unless dealing put something into this very slot again.
                let home = &mut self.slots[level * SLOTS + slot];
                if home.is_empty() && due_here.capacity() <= 1024 {
                    *home = due_here;
                }
            }
        }
        self.tick = self.tick.max(target);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    const SLOT: u64 = 1 << SLOT_BITS;

    proptest! {
        #[test]
        fn fires_what_a_sorted_list_would_fire(
            start in 0u64..1 << 45,
            steps in prop::collection::vec((prop::collection::vec(0u64..1 << 44, 0..8), 0u64..1 << 42), 1..40),
        ) {
            let mut now = Time::from_nanos(start);
            let mut wheel = Wheel::new(now);
            let mut list: Vec<u64> = Vec::new();
            let mut fired = Vec::new();
            for (inserts, step) in steps {
                for delay in inserts {
                    let at = now + Duration::from_nanos(delay);
                    wheel.insert(at, at.as_nanos());
                    list.push(at.as_nanos());
                }
                now = now + Duration::from_nanos(step);
                fired.clear();
                wheel.advance(now, &mut fired);
                for at in &fired {
                    prop_assert!(*at <= now.as_nanos(), "fired early");
                    let i = list.iter().position(|x| x == at);
                    prop_assert!(i.is_some(), "fired twice or never set");
                    list.swap_remove(i.unwrap());
                }
                for at in &list {
                    prop_assert!(*at + SLOT > (now.as_nanos() >> SLOT_BITS) << SLOT_BITS, "{at} is late at {}", now.as_nanos());
                }
                prop_assert_eq!(wheel.len(), list.len());
                if let (Some(due), Some(first)) = (wheel.next_due(), list.iter().min()) {
                    prop_assert!(due.as_nanos() <= first + SLOT, "would sleep past the first timer");
                    prop_assert!(due > now - Duration::from_nanos(SLOT));
                }
                prop_assert_eq!(wheel.next_due().is_none(), list.is_empty());
            }
        }
    }

    #[test]
    fn a_timer_beyond_the_wheel_still_fires() {
        let mut wheel = Wheel::new(Time::ZERO);
        let far = Time::ZERO + Duration::from_secs(3600 * 24 * 2000);
        wheel.insert(far, "far");
        let (mut fired, mut steps) = (Vec::new(), 0);
        while let Some(due) = wheel.next_due() {
            wheel.advance(due, &mut fired);
            steps += 1;
            assert!(steps < 1000, "does not end");
        }
        assert_eq!(fired, ["far"]);
    }
}
