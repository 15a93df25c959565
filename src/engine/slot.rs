//! Ask slots: who waits for which answer. An ask is answered at most once: by its reply, by its refusal or by its deadline.
//!
//! A slot is named by index and generation; its state word changes by compare-exchange, and only the winner may touch the waiter.

use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam::{atomic::AtomicCell, queue::ArrayQueue};

use crate::engine::parcel::Answered;

/// Takes the answer. Runs on whatever thread brings it: it must be quick and must not block.
pub type Waiter = Box<dyn FnOnce(Answered) + Send>;

struct Slot {
    /// Generation in the upper 63 bits, lowest bit: somebody waits.
    state: AtomicU64,
    // Boxed twice, so that the cell is one pointer wide and free of locks.
    waiter: AtomicCell<Option<Box<Waiter>>>,
}

/// All asks in flight of one node.
pub struct Slots {
    slots: Box<[Slot]>,
    free: ArrayQueue<u32>,
}

/// Index and generation of a slot as they travel: generation in the upper 40 bits.
const INDEX_BITS: u32 = 24;

impl Slots {
    /// Room for `n` asks in flight, at most 2^24.
    pub fn new(n: u32) -> Self {
        let n = n.clamp(1, 1 << INDEX_BITS);
        let free = ArrayQueue::new(n as usize);
        for i in 0..n {
            free.push(i).expect("the queue has room for every index");
        }
        let slots = (0..n).map(|_| Slot { state: AtomicU64::new(0), waiter: AtomicCell::new(None) }).collect();
        Self { slots, free }
    }

    /// Reserves a slot for `waiter`; `None` when all are in use, with the waiter dropped unanswered.
    pub fn open(&self, waiter: Waiter) -> Option<u64> {
        let index = self.free.pop()?;
        let slot = &self.slots[index as usize];
        slot.waiter.store(Some(Box::new(waiter)));
        let generation = (slot.state.load(Ordering::Relaxed) >> 1) + 1;
        slot.state.store(generation << 1 | 1, Ordering::Release);
        Some((generation & ((1 << (64 - INDEX_BITS)) - 1)) << INDEX_BITS | u64::from(index))
    }

    /// Takes the waiter of an ask, so that it can be answered; `None` if it was answered before, or never was.
    pub fn take(&self, correlation: u64) -> Option<Waiter> {
        let index = (correlation & ((1 << INDEX_BITS) - 1)) as usize;
        let slot = self.slots.get(index)?;
        let state = slot.state.load(Ordering::Acquire);
        let generation = (state >> 1) & ((1 << (64 - INDEX_BITS)) - 1);
        if state & 1 == 0 || generation != correlation >> INDEX_BITS {
            return None;
        }
        slot.state.compare_exchange(state, state & !1, Ordering::AcqRel, Ordering::Relaxed).ok()?;
        let waiter = slot.waiter.take();
        self.free.push(index as u32).expect("an index is free at most once");
        waiter.map(|w| *w)
    }

    /// Asks in flight.
    #[cfg(feature = "admin")]
    pub fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, atomic::AtomicUsize};

    use super::*;

    fn counting(n: &Arc<AtomicUsize>) -> Waiter {
        let n = n.clone();
        Box::new(move |_| {
            n.fetch_add(1, Ordering::SeqCst);
        })
    }

    // failures: row 53
    #[test]
    fn an_ask_is_answered_once() {
        let (slots, n) = (Slots::new(2), Arc::new(AtomicUsize::new(0)));
        let ask = slots.open(counting(&n)).unwrap();
        assert_eq!(slots.in_flight(), 1);
        slots.take(ask).unwrap()(Answered::Timeout);
        assert!(slots.take(ask).is_none(), "answered");
        let again = slots.open(counting(&n)).unwrap();
        assert!(slots.take(ask).is_none(), "an old answer does not hit the slot's next ask");
        assert!(slots.take(again).is_some());
        assert_eq!(n.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn room_is_bounded_and_comes_back() {
        let (slots, n) = (Slots::new(2), Arc::new(AtomicUsize::new(0)));
        let (a, _b) = (slots.open(counting(&n)).unwrap(), slots.open(counting(&n)).unwrap());
        assert!(slots.open(counting(&n)).is_none());
        assert!(slots.take(a).is_some());
        assert!(slots.open(counting(&n)).is_some());
        assert!(slots.take(u64::MAX).is_none() && slots.take(1 << INDEX_BITS | 77).is_none(), "names of no slot");
    }

    #[test]
    fn two_threads_never_both_answer() {
        let (slots, n) = (Arc::new(Slots::new(4)), Arc::new(AtomicUsize::new(0)));
        for _ in 0..2_000 {
            let ask = slots.open(counting(&n)).unwrap();
            let other = std::thread::scope(|s| {
                let t = s.spawn(|| slots.take(ask).is_some());
                let mine = slots.take(ask).is_some();
                mine as usize + t.join().unwrap() as usize
            });
            assert_eq!(other, 1);
        }
        assert_eq!(slots.in_flight(), 0);
    }
}
