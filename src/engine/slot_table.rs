//! A table of waiters: an ask is answered at most once. Checked by `loom/tests/slot_table.rs`.
//!
//! A slot is named by index and generation; its state word changes by compare-exchange, and only the winner may touch the waiter.
//!
//! A thread that asks and waits, ask after ask, has a slot of its own, its [seat](Seat): no free one is looked for, which is a few lines of the cache
//! that go from one core to the other and back with every ask. Seats are besides the slots that there is room for.

use std::{ops::Range, sync::atomic};

use super::{
    deadlines::{BLOCK, Deadlines},
    ring::fetch_to_write,
    sync::{ArrayQueue, AtomicU32, AtomicU64, OnceLock, Ordering, UnsafeCell},
};

/// Alone on its cache lines: the slots next to each other are in the hands of different threads.
#[repr(align(128))]
struct Slot<W> {
    /// Generation in the upper 62 bits, below it [`TAKEN`] and [`WAITS`].
    state: AtomicU64,
    /// Belongs to one thread at a time: to who reserved the slot, until its state says that somebody waits; then to nobody, until one thread wins
    /// the exchange of the state; then to that one, until the state says that it is done.
    waiter: UnsafeCell<Option<W>>,
    /// The peer that has the request, under its number, below the ask's generation. Written and read by the network thread only.
    peer: AtomicU64,
    /// When the ask ends at the latest, in nanoseconds. Written by the opener before the state says that somebody waits.
    due: AtomicU64,
}

/// Somebody waits.
const WAITS: u64 = 1;
/// Who has won takes the waiter out.
const TAKEN: u64 = 2;
const FLAGS: u32 = 2;

// SAFETY: `waiter` is the only field that is not `Sync`. It is touched by one thread at a time, as said there, each of which sees what the
// one before has done: the opener's store of the state releases to the winner's exchange, and the winner's store behind that to the look of the
// next opener. It may be touched by different threads because a waiter is `Send`.
unsafe impl<W: Send> Sync for Slot<W> {}

impl<W> Slot<W> {
    /// Whether somebody waits here for the answer to that ask.
    fn is_of(&self, correlation: u64) -> bool {
        let state = self.state.load(Ordering::Acquire);
        state & WAITS != 0 && generation(state) == correlation >> INDEX_BITS
    }

    /// Somebody waits from now on: the ask's name, in the slot of that number. The waiter comes back if somebody waits here, or somebody who did is
    /// still being taken out.
    ///
    /// # Safety
    /// One thread at a time.
    #[inline]
    unsafe fn open(&self, index: u64, waiter: W, due: u64) -> Result<u64, W> {
        let before = self.state.load(Ordering::Acquire);
        if before & (WAITS | TAKEN) != 0 {
            return Err(waiter);
        }
        // SAFETY: nobody opens it but the caller, and nobody takes a waiter out before the state below says that there is one.
        self.waiter.with_mut(|place| unsafe { *place = Some(waiter) });
        self.due.store(due, Ordering::Relaxed);
        let state = ((before >> FLAGS) + 1) << FLAGS | WAITS;
        self.state.store(state, Ordering::Release);
        Ok(name(state, index))
    }
}

/// The lowest bits of it, as they travel.
fn generation(state: u64) -> u64 {
    (state >> FLAGS) & GENERATION_MASK
}

/// The name of the ask in the slot of that number.
fn name(state: u64, index: u64) -> u64 {
    generation(state) << INDEX_BITS | index
}

/// A slot that one thread has for its asks, of which there is one at a time. For one table, to which it is to be given [back](SlotTable::leave).
#[derive(Debug)]
pub struct Seat {
    table: u64,
    index: u64,
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
    /// Slots that have numbers behind all others, made when the first one is used; how many have been, and which of them nobody sits in.
    seats: OnceLock<Chunk<W>>,
    seats_used: AtomicU32,
    free_seats: ArrayQueue<u32>,
    /// Which table a seat is of.
    id: u64,
    deadlines: Deadlines,
}

type Chunk<W> = Box<[Slot<W>]>;

/// Slots of a chunk; whole blocks of the deadlines.
const CHUNK: usize = 16 * BLOCK;

/// Seats, at most: threads beyond that use the slots of all.
const SEATS: u32 = 256;

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
        static TABLES: atomic::AtomicU64 = atomic::AtomicU64::new(0);
        let room = n.clamp(1, 1 << INDEX_BITS);
        let chunks = (0..(room as usize).div_ceil(CHUNK)).map(|_| OnceLock::new()).collect();
        let deadlines = Deadlines::new(room as usize, unit);
        Self {
            chunks,
            room,
            used: AtomicU32::new(0),
            free: ArrayQueue::new(room as usize),
            seats: OnceLock::new(),
            seats_used: AtomicU32::new(0),
            free_seats: ArrayQueue::new(seats_beside(room).max(1) as usize),
            id: TABLES.fetch_add(1, atomic::Ordering::Relaxed),
            deadlines,
        }
    }

    fn slot(&self, index: u64) -> Option<&Slot<W>> {
        if let Some(seat) = index.checked_sub(u64::from(self.room)) {
            return self.seats.get()?.get(seat as usize);
        }
        self.chunks.get(index as usize / CHUNK)?.get()?.get(index as usize % CHUNK)
    }

    /// The slots of such numbers, as far as they exist.
    fn slots(&self, range: Range<usize>) -> impl Iterator<Item = (&Slot<W>, u64)> {
        let chunks = self.chunks.iter().enumerate().take(range.end.div_ceil(CHUNK)).skip(range.start / CHUNK);
        let slots = chunks.flat_map(|(at, chunk)| chunk.get().into_iter().flatten().zip((at * CHUNK) as u64..));
        slots.skip(range.start % CHUNK).take(range.len())
    }

    fn all(&self) -> impl Iterator<Item = (&Slot<W>, u64)> {
        let seats = self.seats.get().into_iter().flatten().zip(u64::from(self.room)..);
        self.slots(0..self.chunks.len() * CHUNK).chain(seats)
    }

    /// Takes a free slot: of those that have been in use, if there is one.
    fn reserve(&self) -> Option<(&Slot<W>, u64)> {
        if let Some(index) = self.free.pop() {
            return Some((self.slot(u64::from(index)).expect("a free slot was in use before"), u64::from(index)));
        }
        let used = one_more(&self.used, self.room)?;
        let (chunk, at) = (used as usize / CHUNK, used as usize % CHUNK);
        let slots = CHUNK.min(self.room as usize - chunk * CHUNK);
        Some((&self.chunks[chunk].get_or_init(|| made(slots))[at], u64::from(used)))
    }

    /// Reserves a slot for `waiter`; `None` when all are in use, with the waiter dropped unanswered. `due`: the ask's deadline in nanoseconds, or
    /// [`UNTIMED`]. [`watch`](Self::watch) has it kept.
    pub fn open(&self, waiter: W, due: u64) -> Option<u64> {
        let (slot, index) = self.reserve()?;
        // SAFETY: a slot is free at most once, and `reserve` has given this one to this thread, so no other one opens it.
        unsafe { slot.open(index, waiter, due) }.ok()
    }

    /// A slot for a thread's own asks, if there is one.
    pub fn sit(&self) -> Option<Seat> {
        let most = seats_beside(self.room);
        let seat = self.free_seats.pop().or_else(|| one_more(&self.seats_used, most))?;
        self.seats.get_or_init(|| made(most as usize));
        Some(Seat { table: self.id, index: u64::from(self.room) + u64::from(seat) })
    }

    /// As [`open`](Self::open), in the thread's own slot, for an ask whose asker watches the clock itself. The waiter comes back if that slot is of
    /// another table, or the ask before is not over.
    #[inline]
    pub fn open_at(&self, seat: &mut Seat, waiter: W) -> Result<u64, W> {
        match self.slot(seat.index).filter(|_| seat.table == self.id) {
            // SAFETY: there is one `Seat` of that number, and it is the caller's for the time of this call.
            Some(slot) => unsafe { slot.open(seat.index, waiter, UNTIMED) },
            None => Err(waiter),
        }
    }

    /// Gives the slot to the next one. One in which somebody waits stays as it is, and nobody gets it.
    pub fn leave(&self, seat: Seat) {
        if seat.table == self.id && self.slot(seat.index).is_some_and(|slot| slot.state.load(Ordering::Acquire) & (WAITS | TAKEN) == 0) {
            self.free_seats.push((seat.index - u64::from(self.room)) as u32).expect("nobody sits in a free seat");
        }
    }

    /// Has the slot of that ask fetched into the cache, to be written to soon. Only a hint.
    #[inline]
    pub fn fetch(&self, correlation: u64) {
        if let Some(slot) = self.slot(correlation & INDEX_MASK) {
            fetch_to_write(std::ptr::from_ref(slot).cast_mut().cast());
        }
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
                (state & WAITS != 0 && due != UNTIMED).then_some((state, index, due))
            });
            let mut next = None;
            for (state, index, due) in open {
                if due > now {
                    next = Some(next.map_or(due, |next: u64| next.min(due)));
                } else {
                    let correlation = name(state, index);
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
        if state & WAITS == 0 || generation(state) != correlation >> INDEX_BITS {
            return None;
        }
        let over = state & !WAITS;
        slot.state.compare_exchange(state, over | TAKEN, Ordering::AcqRel, Ordering::Relaxed).ok()?;
        // SAFETY: the exchange can be won once per generation, and it was here; the slot is not opened again before the store below.
        let waiter = slot.waiter.with_mut(|place| unsafe { (*place).take() });
        slot.state.store(over, Ordering::Release);
        if index < u64::from(self.room) {
            self.free.push(index as u32).expect("an index is free at most once");
        }
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
            let asks = state & WAITS != 0 && generation(state) == noted >> INDEX_BITS;
            (asks && noted & INDEX_MASK == u64::from(peer)).then_some(noted & !INDEX_MASK | index)
        })
    }

    /// All asks in flight, for the end of the node.
    pub fn open_asks(&self) -> impl Iterator<Item = u64> {
        self.all().filter_map(|(slot, index)| {
            let state = slot.state.load(Ordering::Acquire);
            (state & WAITS != 0).then_some(name(state, index))
        })
    }

    /// Asks in flight. Walks all slots.
    #[allow(dead_code)] // Without the feature `admin` only tests ask.
    pub fn in_flight(&self) -> usize {
        self.open_asks().count()
    }
}

/// Seats there may be beside so many slots: no more than those, nor than there are numbers.
const fn seats_beside(room: u32) -> u32 {
    let (left, most) = ((1 << INDEX_BITS) - room, if room < SEATS { room } else { SEATS });
    if left < most { left } else { most }
}

const _: () = assert!(seats_beside(1) == 1 && seats_beside(65_536) == SEATS && seats_beside(1 << INDEX_BITS) == 0);

/// So many new slots.
fn made<W>(slots: usize) -> Chunk<W> {
    let slot = || Slot { state: AtomicU64::new(0), waiter: UnsafeCell::new(None), peer: AtomicU64::new(0), due: AtomicU64::new(UNTIMED) };
    (0..slots).map(|_| slot()).collect()
}

/// Counts one more, below `most`: how many there were.
fn one_more(count: &AtomicU32, most: u32) -> Option<u32> {
    loop {
        let used = count.load(Ordering::Relaxed);
        if used == most {
            return None;
        }
        if count.compare_exchange(used, used + 1, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            return Some(used);
        }
    }
}
