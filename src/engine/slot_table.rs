//! A table of waiters: an ask is answered at most once. Checked by `loom/tests/slot_table.rs`.
//!
//! A slot is named by index and generation; its state word changes by compare-exchange, and only the winner may touch the waiter.

use std::ops::Range;

use super::{
    deadlines::{BLOCK, Deadlines},
    sync::{ArrayQueue, AtomicU32, AtomicU64, OnceLock, Ordering, UnsafeCell},
};

/// Alone on its cache lines: the slots next to each other are in the hands of different threads.
#[repr(align(128))]
struct Slot<W> {
    /// Generation in the upper 63 bits, lowest bit: somebody waits.
    state: AtomicU64,
    /// Belongs to one thread at a time: to who reserved the slot, until its state says that somebody waits; then to nobody, until one thread wins
    /// the exchange of the state; then to that one, until it gives the slot back.
    waiter: UnsafeCell<Option<W>>,
    /// The peer that has the request, under its number, below the ask's generation. Written and read by the network thread only.
    peer: AtomicU64,
    /// When the ask ends at the latest, in nanoseconds. Written by the opener before the state says that somebody waits.
    due: AtomicU64,
}

// SAFETY: `waiter` is the only field that is not `Sync`. It is touched by one thread at a time, as said there, each of which sees what the
// one before has done: the opener's store of the state releases to the winner's exchange, and the winner's push of the index to the pop of
// the next opener. It may be touched by different threads because a waiter is `Send`.
unsafe impl<W: Send> Sync for Slot<W> {}

impl<W> Slot<W> {
    /// Whether somebody waits here for the answer to that ask.
    fn is_of(&self, correlation: u64) -> bool {
        let state = self.state.load(Ordering::Acquire);
        state & 1 == 1 && (state >> 1) & GENERATION_MASK == correlation >> INDEX_BITS
    }
}

/// All asks in flight of one node, and who waits for them.
pub struct SlotTable<W> {
    /// Made when the first of their slots is used.
    chunks: Box<[OnceLock<Chunk<W>>]>,
    /// At most so many slots.
    room: u32,
    /// So many have been in use at a time.
    used: AtomicU32,
    /// Those of them that are free: few asks in flight touch little memory.
    free: ArrayQueue<u32>,
    deadlines: Deadlines,
}

type Chunk<W> = Box<[Slot<W>]>;

/// Slots of a chunk; whole blocks of the deadlines.
const CHUNK: usize = 16 * BLOCK;

/// Of an ask whose asker watches the clock itself.
pub const UNTIMED: u64 = u64::MAX;

/// Index and generation of a slot as they travel: generation in the upper 40 bits.
pub const INDEX_BITS: u32 = 24;
/// The bits of the index.
pub const INDEX_MASK: u64 = (1 << INDEX_BITS) - 1;
const GENERATION_MASK: u64 = (1 << (64 - INDEX_BITS)) - 1;

impl<W> SlotTable<W> {
    /// Room for `n` asks in flight, at most 2^24, whose deadlines are kept to 2^`unit` ns.
    pub fn new(n: u32, unit: u32) -> Self {
        let room = n.clamp(1, 1 << INDEX_BITS);
        let chunks = (0..(room as usize).div_ceil(CHUNK)).map(|_| OnceLock::new()).collect();
        let deadlines = Deadlines::new(room as usize, unit);
        Self { chunks, room, used: AtomicU32::new(0), free: ArrayQueue::new(room as usize), deadlines }
    }

    fn slot(&self, index: u64) -> Option<&Slot<W>> {
        self.chunks.get(index as usize / CHUNK)?.get()?.get(index as usize % CHUNK)
    }

    /// The slots of such numbers, as far as they exist.
    fn slots(&self, range: Range<usize>) -> impl Iterator<Item = (&Slot<W>, u64)> {
        let chunks = self.chunks.iter().enumerate().take(range.end.div_ceil(CHUNK)).skip(range.start / CHUNK);
        let slots = chunks.flat_map(|(at, chunk)| chunk.get().into_iter().flatten().zip((at * CHUNK) as u64..));
        slots.skip(range.start % CHUNK).take(range.len())
    }

    fn all(&self) -> impl Iterator<Item = (&Slot<W>, u64)> {
        self.slots(0..self.chunks.len() * CHUNK)
    }

    /// Takes a free slot: of those that have been in use, if there is one.
    fn reserve(&self) -> Option<(&Slot<W>, u64)> {
        if let Some(index) = self.free.pop() {
            return Some((self.slot(u64::from(index)).expect("a free slot was in use before"), u64::from(index)));
        }
        loop {
            let used = self.used.load(Ordering::Relaxed);
            if used == self.room {
                return None;
            }
            if self.used.compare_exchange(used, used + 1, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
                let slot = || Slot {
                    state: AtomicU64::new(0),
                    waiter: UnsafeCell::new(None),
                    peer: AtomicU64::new(0),
                    due: AtomicU64::new(UNTIMED),
                };
                let (chunk, at) = (used as usize / CHUNK, used as usize % CHUNK);
                let slots = CHUNK.min(self.room as usize - chunk * CHUNK);
                let chunk = self.chunks[chunk].get_or_init(|| (0..slots).map(|_| slot()).collect());
                return Some((&chunk[at], u64::from(used)));
            }
        }
    }

    /// Reserves a slot for `waiter`; `None` when all are in use, with the waiter dropped unanswered. `due`: the ask's deadline in nanoseconds, or
    /// [`UNTIMED`]. [`watch`](Self::watch) has it kept.
    pub fn open(&self, waiter: W, due: u64) -> Option<u64> {
        let (slot, index) = self.reserve()?;
        debug_assert_eq!(slot.state.load(Ordering::Relaxed) & 1, 0, "nobody waits in a free slot");
        // SAFETY: a slot is free at most once, and `reserve` has given this one to this thread, so no other one opens it; nobody takes its waiter before
        // the state below says that there is one.
        slot.waiter.with_mut(|place| unsafe { *place = Some(waiter) });
        slot.due.store(due, Ordering::Relaxed);
        let generation = (slot.state.load(Ordering::Relaxed) >> 1) + 1;
        slot.state.store(generation << 1 | 1, Ordering::Release);
        Some((generation & GENERATION_MASK) << INDEX_BITS | index)
    }

    /// Sees to it that the ask ends at its deadline; after `open`, with the same `due`. True if who calls `expire` must be told that
    /// [`next_due`](Self::next_due) is earlier now.
    pub fn watch(&self, correlation: u64, due: u64) -> bool {
        due != UNTIMED && self.deadlines.add((correlation & INDEX_MASK) as usize, due)
    }

    /// When to call `expire`, in nanoseconds: no ask is then ended later than one unit after its deadline.
    pub fn next_due(&self) -> Option<u64> {
        self.deadlines.due()
    }

    /// Takes the waiters whose deadlines have passed. By one thread at a time.
    pub fn expire(&self, now: u64, mut ended: impl FnMut(u64, W)) {
        self.deadlines.sweep(now, |block| {
            let open = self.slots(block).filter_map(|(slot, index)| {
                let state = slot.state.load(Ordering::Acquire);
                // Of this ask, or of a later one of the slot: then this one is over, and taking it fails.
                let due = slot.due.load(Ordering::Relaxed);
                (state & 1 == 1 && due != UNTIMED).then_some((state, index, due))
            });
            let mut next = None;
            for (state, index, due) in open {
                if due > now {
                    next = Some(next.map_or(due, |next: u64| next.min(due)));
                } else {
                    let correlation = ((state >> 1) & GENERATION_MASK) << INDEX_BITS | index;
                    self.take(correlation).into_iter().for_each(|waiter| ended(correlation, waiter));
                }
            }
            next
        });
    }

    /// Takes the waiter of an ask, so that it can be answered; `None` if it was answered before, or never was.
    pub fn take(&self, correlation: u64) -> Option<W> {
        let index = correlation & INDEX_MASK;
        let slot = self.slot(index)?;
        let state = slot.state.load(Ordering::Acquire);
        let generation = (state >> 1) & GENERATION_MASK;
        if state & 1 == 0 || generation != correlation >> INDEX_BITS {
            return None;
        }
        slot.state.compare_exchange(state, state & !1, Ordering::AcqRel, Ordering::Relaxed).ok()?;
        // SAFETY: the exchange can be won once per generation, and it was here; the slot is not opened again before its index is in `free`.
        let waiter = slot.waiter.with_mut(|place| unsafe { (*place).take() });
        self.free.push(index as u32).expect("an index is free at most once");
        waiter
    }

    /// Whether somebody waits for the answer to that ask.
    pub fn is_open(&self, correlation: u64) -> bool {
        self.slot(correlation & INDEX_MASK).is_some_and(|slot| slot.is_of(correlation))
    }

    /// Notes which peer the request went to, by a number of at most 24 bits that the network thread has given it. Not that of an ask that is over, which
    /// may come behind that of its slot's next one.
    pub fn sent_to(&self, correlation: u64, peer: u32) {
        if let Some(slot) = self.slot(correlation & INDEX_MASK).filter(|slot| slot.is_of(correlation)) {
            slot.peer.store(correlation & !INDEX_MASK | u64::from(peer) & INDEX_MASK, Ordering::Relaxed);
        }
    }

    /// Asks in flight whose requests went to `peer`. Walks all slots: for when a peer died.
    pub fn at(&self, peer: u32) -> impl Iterator<Item = u64> {
        self.all().filter_map(move |(slot, index)| {
            let (state, noted) = (slot.state.load(Ordering::Acquire), slot.peer.load(Ordering::Relaxed));
            let asks = state & 1 == 1 && (state >> 1) & GENERATION_MASK == noted >> INDEX_BITS;
            (asks && noted & INDEX_MASK == u64::from(peer)).then_some(noted & !INDEX_MASK | index)
        })
    }

    /// All asks in flight, for the end of the node.
    pub fn open_asks(&self) -> impl Iterator<Item = u64> {
        self.all().filter_map(|(slot, index)| {
            let state = slot.state.load(Ordering::Acquire);
            (state & 1 == 1).then_some(((state >> 1) & GENERATION_MASK) << INDEX_BITS | index)
        })
    }

    /// Asks in flight. Walks all slots.
    #[allow(dead_code)] // Without the feature `admin` only tests ask.
    pub fn in_flight(&self) -> usize {
        self.open_asks().count()
    }
}
