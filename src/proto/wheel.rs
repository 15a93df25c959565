//! A hierarchical timer wheel (Varghese and Lauck 1987), as pure as the rest of the core.
//!
//! Six levels of 64 slots; the finest slot is 2^18 ns (about a quarter of a millisecond), the coarsest level reaches about half a
//! year, and what lies beyond waits in its last slot and is dealt again. What is due within the present slot stands in a heap, so that timers fire at
//! their moments and in order, as from a sorted list. A timer that is cancelled is forgotten at once and its entry stays (lazy cancel): it is
//! thrown away where it is met, or looked for when there are more of its kind than timers.

use std::{cmp::Reverse, collections::BinaryHeap};

use crate::Time;

const SLOT_BITS: u32 = 18;
const LEVEL_BITS: u32 = 6;
const SLOTS: usize = 1 << LEVEL_BITS;
const LEVELS: usize = 6;
/// Entries of a slot that has come which are dealt to finer ones in one go: a slot of the coarser levels may hold a million.
const DEAL: usize = 1024;
/// A slot with so few entries is looked through for the first of them; else its begin is taken for that.
const FEW: usize = 8;
/// Entries that are looked at for each timer that is cancelled, while more entries than timers are of cancelled ones, and a few.
const SWEEP: usize = 4;
const STALE_MIN: usize = 1024;
/// Values of a block.
const BLOCK: usize = 1024;
/// A slot keeps room for so many when it is empty, and so many timers keep theirs when none is set.
const KEPT: usize = 1024;

/// Names a timer that is set. Of one that has fired or was cancelled it names nothing.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct TimerId {
    /// They count up. The entry of a cancelled one is gone before as many timers are set as there are numbers.
    number: u32,
    cell: u32,
}

/// What stands in a slot for a timer: a quarter of a cache line, as that is what setting one of many waits for. In the order in which they fire.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Entry {
    due: Time,
    id: TimerId,
}

/// Values by cell, in blocks, so that to grow moves none.
#[derive(Debug)]
struct Values<T>(Vec<Vec<T>>);

impl<T: Copy> Values<T> {
    fn get(&self, cell: u32) -> T {
        self.0[cell as usize / BLOCK][cell as usize % BLOCK]
    }

    fn set(&mut self, cell: u32, value: T) {
        let block = cell as usize / BLOCK;
        if block == self.0.len() {
            self.0.push(Vec::with_capacity(BLOCK));
        }
        match self.0[block].get_mut(cell as usize % BLOCK) {
            Some(place) => *place = value,
            None => self.0[block].push(value),
        }
    }
}

fn tick_of(at: Time) -> u64 {
    at.as_nanos() >> SLOT_BITS
}

/// Timers that carry a `T`. Those of one moment fire in the order in which they were set. None fires early, and none later than the call of [`pop`](Self::pop) behind its
/// moment, but for those of a slot with more than a thousand, which is dealt some at a time.
#[derive(Debug)]
pub struct Wheel<T> {
    /// The slot of the finest level up to which all are empty, as what is due in it or before is near.
    tick: u64,
    slots: Vec<Vec<Entry>>,
    /// One bit per slot of each level: it may have entries.
    occupied: [u64; LEVELS],
    /// The tick at which the first of these begins.
    begins: u64,
    /// Of a slot that has come, what is not yet dealt.
    dealing: Vec<Entry>,
    near: BinaryHeap<Reverse<Entry>>,
    /// The numbers of those that are set, by cell; else zero. By themselves, so that to cancel one of many does not wait for memory.
    cells: Vec<u32>,
    values: Values<T>,
    free: Vec<u32>,
    /// The last number.
    number: u32,
    len: usize,
    /// In slots and being dealt, those of cancelled timers included.
    entries: usize,
    /// Where cancelled ones are looked for next: slot and place in it.
    sweeping: (usize, usize),
    next: Option<Time>,
}

impl<T: Copy> Wheel<T> {
    /// An empty wheel that starts at `now`.
    pub fn new(now: Time) -> Self {
        Self {
            tick: tick_of(now),
            slots: (0..LEVELS * SLOTS).map(|_| Vec::new()).collect(),
            occupied: [0; LEVELS],
            begins: u64::MAX,
            dealing: Vec::new(),
            near: BinaryHeap::new(),
            cells: Vec::new(),
            values: Values(Vec::new()),
            free: Vec::new(),
            number: 0,
            len: 0,
            entries: 0,
            sweeping: (0, 0),
            next: None,
        }
    }

    /// Timers that are set.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether none is set.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Sets a timer. One that lies in the past is due at once.
    pub fn insert(&mut self, due: Time, value: T) -> TimerId {
        // Zero is no number.
        self.number = self.number.wrapping_add(1).max(1);
        let cell = match self.free.pop() {
            Some(cell) => {
                self.cells[cell as usize] = self.number;
                cell
            }
            None => {
                self.cells.push(self.number);
                u32::try_from(self.cells.len() - 1).expect("so many timers do not fit into memory")
            }
        };
        self.values.set(cell, value);
        self.len += 1;
        self.next = Some(self.next.map_or(due, |next| next.min(due)));
        let id = TimerId { number: self.number, cell };
        let entry = Entry { due, id };
        if tick_of(due) <= self.tick {
            self.near.push(Reverse(entry));
        } else {
            self.entries += 1;
            self.place(entry);
        }
        id
    }

    /// The timer does not fire. False if it has fired, or was cancelled before.
    pub fn cancel(&mut self, id: TimerId) -> bool {
        let is_set = self.is_set(id);
        if is_set {
            self.release(id);
            if self.entries > 2 * self.len + STALE_MIN {
                self.sweep();
            }
        }
        is_set
    }

    /// Takes the first timer, if it is due. After `None` nothing more is, or [`next`](Self::next) is in the past: more is to be dealt first.
    pub fn pop(&mut self, now: Time) -> Option<(Time, T)> {
        if self.next.is_none_or(|next| next > now) {
            return None;
        }
        loop {
            self.deal();
            if !self.dealing.is_empty() {
                self.next = Some(Time::from_nanos(self.tick << SLOT_BITS));
                return None;
            }
            // Whatever is near is due before any slot begins.
            match self.near.peek() {
                Some(Reverse(first)) if first.due > now => break,
                Some(&Reverse(first)) => {
                    self.near.pop();
                    if self.is_set(first.id) {
                        let value = self.values.get(first.id.cell);
                        self.release(first.id);
                        return Some((first.due, value));
                    }
                }
                None if self.begins > tick_of(now) => break,
                None => self.open(),
            }
        }
        // Nothing begins before.
        self.tick = self.tick.max(tick_of(now));
        self.next = self.look_ahead();
        None
    }

    /// The moment at which [`pop`](Self::pop) should be called; `None`: nothing is set. Never late; early by a slot at most where many timers are set, or
    /// if the first was cancelled.
    pub fn next(&self) -> Option<Time> {
        self.next
    }

    /// Cancels all.
    pub fn clear(&mut self) {
        let number = self.number;
        *self = Self { number, ..Self::new(Time::from_nanos(self.tick << SLOT_BITS)) };
    }

    /// What those that are set carry.
    #[cfg(test)]
    pub fn values(&self) -> impl Iterator<Item = T> {
        let near = self.near.iter().map(|Reverse(entry)| entry);
        self.slots
            .iter()
            .flatten()
            .chain(&self.dealing)
            .chain(near)
            .filter(|entry| self.is_set(entry.id))
            .map(|entry| self.values.get(entry.id.cell))
    }

    fn is_set(&self, id: TimerId) -> bool {
        self.cells.get(id.cell as usize) == Some(&id.number)
    }

    fn release(&mut self, id: TimerId) {
        self.cells[id.cell as usize] = 0;
        self.free.push(id.cell);
        self.len -= 1;
        if self.len == 0 && self.cells.len() > KEPT {
            (self.cells, self.values, self.free) = (Vec::new(), Values(Vec::new()), Vec::new());
        }
    }

    fn place(&mut self, entry: Entry) {
        // The level is that of the highest bit in which the due tick differs from the present one.
        let due = tick_of(entry.due);
        let differ = due ^ self.tick;
        let level = ((63 - (differ | 1).leading_zeros()) / LEVEL_BITS).min(LEVELS as u32 - 1) as usize;
        let span = LEVEL_BITS * level as u32;
        // What lies beyond the wheel is in the slot that comes round last.
        let begins = (due >> span).min((self.tick >> span) + SLOTS as u64 - 1);
        let slot = begins as usize % SLOTS;
        self.slots[level * SLOTS + slot].push(entry);
        self.occupied[level] |= 1 << slot;
        self.begins = self.begins.min(begins << span);
    }

    /// The next occupied slot of a level, and the tick at which it begins.
    fn next_occupied(&self, level: usize) -> Option<(usize, u64)> {
        if self.occupied[level] == 0 {
            return None;
        }
        let span = LEVEL_BITS * level as u32;
        let here = self.tick >> span;
        let ahead = u64::from(self.occupied[level].rotate_right((here as u32 + 1) % SLOTS as u32).trailing_zeros()) + 1;
        Some((level * SLOTS + (here + ahead) as usize % SLOTS, (here + ahead) << span))
    }

    /// The first slot has come: what is in it is dealt next.
    fn open(&mut self) {
        self.tick = self.begins;
        for level in 0..LEVELS {
            let Some(at) = self.here(level).filter(|at| self.occupied[level] & 1 << (at % SLOTS) != 0) else { continue };
            self.occupied[level] &= !(1 << (at % SLOTS));
            if self.dealing.is_empty() {
                // Each has the room that the other had.
                std::mem::swap(&mut self.dealing, &mut self.slots[at]);
            } else {
                self.dealing.append(&mut self.slots[at]);
            }
        }
        self.begins = (0..LEVELS).filter_map(|level| self.next_occupied(level)).map(|(_, begins)| begins).min().unwrap_or(u64::MAX);
    }

    /// The slot of a level that begins at the present tick.
    fn here(&self, level: usize) -> Option<usize> {
        let span = LEVEL_BITS * level as u32;
        (self.tick & ((1 << span) - 1) == 0).then(|| level * SLOTS + (self.tick >> span) as usize % SLOTS)
    }

    /// Puts some of what has come where it belongs now.
    fn deal(&mut self) {
        if self.dealing.is_empty() {
            return;
        }
        for _ in 0..DEAL {
            let Some(entry) = self.dealing.pop() else { break };
            if tick_of(entry.due) > self.tick {
                self.place(entry);
                continue;
            }
            self.entries -= 1;
            if self.is_set(entry.id) {
                self.near.push(Reverse(entry));
            }
        }
        if self.dealing.is_empty() && self.dealing.capacity() > KEPT {
            self.dealing = Vec::new();
        }
    }

    fn look_ahead(&self) -> Option<Time> {
        if let Some(Reverse(first)) = self.near.peek() {
            return Some(first.due);
        }
        let first = |level: usize| {
            let (at, begins) = self.next_occupied(level)?;
            let ends = begins + (1 << (LEVEL_BITS * level as u32));
            let few = if self.slots[at].len() > FEW { &[] } else { self.slots[at].as_slice() };
            // It may have been swept, or be the last of the wheel and have entries for behind its end: either is found out when it begins.
            let first = few.iter().map(|entry| entry.due).min().filter(|due| tick_of(*due) < ends);
            first.or(Some(Time::from_nanos(begins << SLOT_BITS)))
        };
        (0..LEVELS).filter_map(first).min()
    }

    /// Looks at some entries, and throws away those of cancelled timers.
    fn sweep(&mut self) {
        for _ in 0..SWEEP {
            let (slot, at) = self.sweeping;
            match self.slots[slot].get(at).map(|entry| self.is_set(entry.id)) {
                Some(true) => self.sweeping.1 += 1,
                Some(false) => {
                    self.slots[slot].swap_remove(at);
                    self.entries -= 1;
                    if self.slots[slot].is_empty() && self.slots[slot].capacity() > KEPT {
                        self.slots[slot] = Vec::new();
                    }
                }
                None => self.sweeping = ((slot + 1) % self.slots.len(), 0),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, time::Duration};

    use proptest::prelude::*;

    use super::*;

    const SLOT: u64 = 1 << SLOT_BITS;

    const fn at(nanos: u64) -> Time {
        Time::from_nanos(nanos)
    }

    /// All that is due, however much of it is dealt at a time.
    fn fire<T: Copy>(wheel: &mut Wheel<T>, now: Time) -> Vec<(Time, T)> {
        let mut fired = Vec::new();
        while wheel.next().is_some_and(|next| next <= now) {
            fired.extend(std::iter::from_fn(|| wheel.pop(now)));
        }
        fired
    }

    /// A span of some power of two, so that all levels have their share.
    fn span() -> impl Strategy<Value = u64> {
        (0u32..56).prop_flat_map(|bits| 0..1u64 << bits)
    }

    proptest! {
        #[test]
        fn fires_what_a_sorted_list_would_fire(
            start in span(),
            steps in prop::collection::vec((prop::collection::vec(span(), 0..8), prop::collection::vec(any::<prop::sample::Index>(), 0..6), span()), 1..60),
        ) {
            let mut now = at(start);
            let mut wheel = Wheel::new(at(start / 2));
            let (mut list, mut ids, mut count) = (BTreeSet::new(), Vec::new(), 0u32);
            for (inserts, cancels, step) in steps {
                for delay in inserts {
                    // Some of one moment, and some in the past.
                    for due in [now + Duration::from_nanos(delay), now - Duration::from_nanos(delay), now + Duration::from_nanos(delay)] {
                        count += 1;
                        ids.push((wheel.insert(due, count), (due, count)));
                        list.insert((due, count));
                    }
                }
                for cancel in cancels {
                    if ids.is_empty() {
                        continue;
                    }
                    let (id, timer) = ids[cancel.index(ids.len())];
                    prop_assert_eq!(wheel.cancel(id), list.remove(&timer));
                    prop_assert!(!wheel.cancel(id));
                }
                now = now + Duration::from_nanos(step);
                let fired = fire(&mut wheel, now);
                let due: Vec<(Time, u32)> = list.iter().filter(|(due, _)| *due <= now).copied().collect();
                list.retain(|(due, _)| *due > now);
                prop_assert_eq!(fired, due);
                prop_assert_eq!(wheel.len(), list.len());
                if let Some((first, ..)) = list.first() {
                    prop_assert!(wheel.next().is_some_and(|next| next <= *first), "would sleep past the first timer");
                }
                prop_assert!(wheel.next().is_none_or(|next| next > now), "would not sleep");
            }
        }
    }

    #[test]
    fn a_timer_beyond_the_wheel_still_fires() {
        let mut wheel = Wheel::new(Time::ZERO);
        let far = Time::ZERO + Duration::from_secs(3600 * 24 * 2000);
        wheel.insert(far, "far");
        let mut steps = 0;
        while wheel.next().is_some_and(|next| next < far) {
            assert_eq!(wheel.pop(wheel.next().expect("looked at")), None);
            steps += 1;
            assert!(steps < 1000, "does not end");
        }
        assert_eq!(fire(&mut wheel, far), [(far, "far")]);
        assert_eq!((wheel.next(), wheel.len()), (None, 0));
    }

    #[test]
    fn few_timers_are_waited_for_to_their_moment() {
        let mut wheel = Wheel::new(Time::ZERO);
        let due = at(10_000_000_007);
        for n in 0..FEW as u64 {
            wheel.insert(due + Duration::from_nanos(n), n);
        }
        assert_eq!(wheel.pop(at(1)), None);
        assert_eq!(wheel.next(), Some(due));
        assert_eq!((wheel.pop(due), wheel.pop(due)), (Some((due, 0)), None));
        assert_eq!(wheel.next(), Some(due + Duration::from_nanos(1)));
    }

    #[test]
    fn many_that_are_due_at_once_come_some_at_a_time_and_in_order() {
        const MANY: u64 = 100_000;
        let mut wheel = Wheel::new(Time::ZERO);
        let due = at(60_000_000_000);
        for n in 0..MANY {
            wheel.insert(due, n);
        }
        assert_eq!(wheel.pop(due), None, "the first of them is not known yet");
        assert!(wheel.dealing.len() > MANY as usize - 2 * DEAL, "and not many have been looked at");
        assert!(wheel.next().is_some_and(|next| next <= due));
        assert!(fire(&mut wheel, due).into_iter().map(|(_, n)| n).eq(0..MANY));
        assert!(wheel.cells.capacity() + wheel.free.capacity() + wheel.dealing.capacity() <= 4 * KEPT, "and their room is given back");
    }

    #[test]
    fn timers_that_are_set_again_and_again_leave_little_behind() {
        let mut wheel = Wheel::new(Time::ZERO);
        let hour = Duration::from_secs(3600);
        let mut ids: Vec<TimerId> = (0..5000).map(|n| wheel.insert(at(n) + hour, n)).collect();
        for n in 0..200_000u64 {
            let now = at(n * 1000);
            assert_eq!(wheel.pop(now), None);
            let mine = &mut ids[n as usize % 5000];
            assert!(wheel.cancel(*mine));
            *mine = wheel.insert(now + hour, n);
            let there: usize = wheel.slots.iter().map(Vec::len).sum();
            assert!(n % 5000 != 0 || there == wheel.entries && there < 4 * 5000, "{there} entries after {n}");
        }
        assert_eq!(fire(&mut wheel, at(SLOT) + 2 * hour).len(), 5000);
    }

    #[test]
    fn all_are_cancelled_at_once_and_their_names_stay_void() {
        let mut wheel = Wheel::new(Time::ZERO);
        let old = wheel.insert(at(SLOT * 9), 1);
        wheel.clear();
        let new = wheel.insert(at(SLOT * 9), 2);
        assert!(!wheel.cancel(old));
        assert_eq!(fire(&mut wheel, at(SLOT * 9)), [(at(SLOT * 9), 2)]);
        assert!(!wheel.cancel(new));
    }
}
