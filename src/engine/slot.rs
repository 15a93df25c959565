//! Ask slots: who waits for which answer. An ask is answered at most once: by its reply, by its refusal or by its deadline.
//!
//! A slot is named by index and generation; its state word changes by compare-exchange, and only the winner may touch the waiter.

use std::{
    cell::UnsafeCell,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use crossbeam::queue::ArrayQueue;

use crate::engine::{asker::Mailbox, completion::Completions, lane::Door, node::ToWorker, parcel::Answered};

/// Who takes the answer.
pub enum Waiter {
    /// A thread that waits for it.
    Thread(Arc<Mailbox>),
    /// Runs on whatever thread brings the answer: it must be quick and must not block.
    Call(Box<dyn FnOnce(Answered) + Send>),
    /// An entity of this worker, which knows the ask by its number.
    Entity(u16),
    /// A queue that somebody empties, with the asker's name for the ask.
    Queue(Arc<Completions>, u64),
}

impl Waiter {
    /// Gives the answer to the ask with that number.
    pub fn answer(self, correlation: u64, answered: Answered, workers: &[Door<ToWorker>]) {
        match self {
            Self::Thread(mailbox) => mailbox.put(answered),
            Self::Call(call) => call(answered),
            // Bounded by the number of slots.
            Self::Entity(worker) => workers[usize::from(worker)].post(ToWorker::Answer(correlation, answered)),
            Self::Queue(queue, tag) => queue.put(tag, answered),
        }
    }
}

struct Slot {
    /// Generation in the upper 63 bits, lowest bit: somebody waits.
    state: AtomicU64,
    /// Belongs to one thread at a time: to who took the slot's index from `free`, until its state says that somebody waits; then to nobody,
    /// until one thread wins the exchange of the state; then to that one, until it gives the index back.
    waiter: UnsafeCell<Option<Waiter>>,
    /// The peer that has the request, under its number, below the ask's generation. Written and read by the network thread only.
    peer: AtomicU64,
}

// SAFETY: `waiter` is the only field that is not `Sync`. It is touched by one thread at a time, as said there, each of which sees what the
// one before has done: the opener's store of the state releases to the winner's exchange, and the winner's push of the index to the pop of
// the next opener. It may be touched by different threads because a `Waiter` is `Send`.
unsafe impl Sync for Slot {}

const _: () = {
    const fn is_send<T: Send>() {}
    is_send::<Waiter>();
};

/// All asks in flight of one node.
pub struct Slots {
    slots: Box<[Slot]>,
    free: ArrayQueue<u32>,
}

/// Index and generation of a slot as they travel: generation in the upper 40 bits.
const INDEX_BITS: u32 = 24;
const INDEX_MASK: u64 = (1 << INDEX_BITS) - 1;
const GENERATION_MASK: u64 = (1 << (64 - INDEX_BITS)) - 1;

impl Slots {
    /// Room for `n` asks in flight, at most 2^24.
    pub fn new(n: u32) -> Self {
        let n = n.clamp(1, 1 << INDEX_BITS);
        let free = ArrayQueue::new(n as usize);
        for i in 0..n {
            free.push(i).expect("the queue has room for every index");
        }
        let slots = (0..n).map(|_| Slot { state: AtomicU64::new(0), waiter: UnsafeCell::new(None), peer: AtomicU64::new(0) }).collect();
        Self { slots, free }
    }

    /// Reserves a slot for `waiter`; `None` when all are in use, with the waiter dropped unanswered.
    pub fn open(&self, waiter: Waiter) -> Option<u64> {
        let index = self.free.pop()?;
        let slot = &self.slots[index as usize];
        debug_assert_eq!(slot.state.load(Ordering::Relaxed) & 1, 0, "nobody waits in a free slot");
        // SAFETY: the index came out of `free`, where it stands at most once, so no other thread opens this slot; nobody takes its waiter
        // before the state below says that there is one.
        unsafe { *slot.waiter.get() = Some(waiter) };
        let generation = (slot.state.load(Ordering::Relaxed) >> 1) + 1;
        slot.state.store(generation << 1 | 1, Ordering::Release);
        Some((generation & GENERATION_MASK) << INDEX_BITS | u64::from(index))
    }

    /// Takes the waiter of an ask, so that it can be answered; `None` if it was answered before, or never was.
    pub fn take(&self, correlation: u64) -> Option<Waiter> {
        let index = (correlation & INDEX_MASK) as usize;
        let slot = self.slots.get(index)?;
        let state = slot.state.load(Ordering::Acquire);
        let generation = (state >> 1) & GENERATION_MASK;
        if state & 1 == 0 || generation != correlation >> INDEX_BITS {
            return None;
        }
        slot.state.compare_exchange(state, state & !1, Ordering::AcqRel, Ordering::Relaxed).ok()?;
        // SAFETY: the exchange can be won once per generation, and it was here; the slot is not opened again before its index is in `free`.
        let waiter = unsafe { (*slot.waiter.get()).take() };
        self.free.push(index as u32).expect("an index is free at most once");
        waiter
    }

    /// Whether somebody waits for the answer to that ask.
    pub fn is_open(&self, correlation: u64) -> bool {
        let Some(slot) = self.slots.get((correlation & INDEX_MASK) as usize) else { return false };
        let state = slot.state.load(Ordering::Acquire);
        state & 1 == 1 && (state >> 1) & GENERATION_MASK == correlation >> INDEX_BITS
    }

    /// Notes which peer the request went to, by a number of at most 24 bits that the network thread has given it.
    pub fn sent_to(&self, correlation: u64, peer: u32) {
        if let Some(slot) = self.slots.get((correlation & INDEX_MASK) as usize) {
            slot.peer.store(correlation & !INDEX_MASK | u64::from(peer) & INDEX_MASK, Ordering::Relaxed);
        }
    }

    /// Asks in flight whose requests went to `peer`. Walks all slots: for when a peer died.
    pub fn at(&self, peer: u32) -> impl Iterator<Item = u64> {
        self.slots.iter().zip(0u64..).filter_map(move |(slot, index)| {
            let (state, noted) = (slot.state.load(Ordering::Acquire), slot.peer.load(Ordering::Relaxed));
            let asks = state & 1 == 1 && (state >> 1) & GENERATION_MASK == noted >> INDEX_BITS;
            (asks && noted & INDEX_MASK == u64::from(peer)).then_some(noted & !INDEX_MASK | index)
        })
    }

    /// All asks in flight, for the end of the node.
    pub fn open_asks(&self) -> impl Iterator<Item = u64> {
        self.slots.iter().zip(0u64..).filter_map(|(slot, index)| {
            let state = slot.state.load(Ordering::Acquire);
            (state & 1 == 1).then_some(((state >> 1) & GENERATION_MASK) << INDEX_BITS | index)
        })
    }

    /// Asks in flight.
    #[cfg(any(test, feature = "admin"))]
    pub fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    fn counting(n: &Arc<AtomicUsize>) -> Waiter {
        let n = n.clone();
        Waiter::Call(Box::new(move |_| {
            n.fetch_add(1, Ordering::SeqCst);
        }))
    }

    // failures: row 53
    #[test]
    fn an_ask_is_answered_once() {
        let (slots, n) = (Slots::new(2), Arc::new(AtomicUsize::new(0)));
        let ask = slots.open(counting(&n)).unwrap();
        assert_eq!(slots.in_flight(), 1);
        slots.take(ask).unwrap().answer(ask, Answered::Timeout, &[]);
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
    fn a_dead_peer_has_the_asks_that_went_to_it_and_are_still_open() {
        let (slots, n) = (Slots::new(8), Arc::new(AtomicUsize::new(0)));
        let asks: Vec<u64> = (0..4).map(|_| slots.open(counting(&n)).unwrap()).collect();
        slots.sent_to(asks[0], 1);
        slots.sent_to(asks[1], 2);
        slots.sent_to(asks[2], 1);
        drop(slots.take(asks[2]));
        let reopened: Vec<u64> = (0..5).map(|_| slots.open(counting(&n)).unwrap()).collect();
        assert!(reopened.iter().any(|ask| ask & INDEX_MASK == asks[2] & INDEX_MASK), "the slot serves another ask");
        assert_eq!(slots.at(1).collect::<Vec<_>>(), [asks[0]], "not the answered one, and not its slot's next");
        slots.sent_to(asks[1], 1);
        assert_eq!(slots.at(1).collect::<Vec<_>>(), asks[..2], "an ask is where it went last");
        assert_eq!(slots.at(0).count(), 0, "an ask that never left is at no peer");
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
