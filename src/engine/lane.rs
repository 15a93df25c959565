//! Lanes: one bounded queue per producer and consumer, with a reserve that user messages cannot fill, and a bell for sleepers.
//!
//! The queue inside is a [`ring`] of bytes: items are moved in whole, messages on their short way are written in place as
//! [letters](super::letter). Each lane has exactly one producer and one consumer, which callers may rely on: room that the producer saw
//! cannot be taken by anybody else.

use std::{
    cell::Cell,
    marker::PhantomData,
    mem::ManuallyDrop,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicBool, AtomicUsize, Ordering, fence},
    },
    thread::{self, ThreadId},
};

use crossbeam::queue::SegQueue;
use parking_lot::Mutex;

pub use super::bell::Bell;
use super::{
    letter::{Address, Draft, LETTER_MAX, Letter, fits},
    panics,
    ring::{self, Consumer, Producer},
};
use crate::{Epoch, ShardKey, Wire, proto::shard::LaneId};

/// Slots that only tokens, replies, commands and reports may use.
pub const RESERVE: usize = 64;

/// What a lane carries beside letters.
pub trait Item: Sized + Send {
    /// A letter as an item; `None` if there is nothing in it any more.
    fn of_letter(letter: Letter<'_>) -> Option<Self>;

    /// Bytes of a message that stand outside of the ring, because it is too long for a letter.
    fn outside(&self) -> usize {
        0
    }

    /// Whether it is the last one of its lane.
    fn is_end(&self) -> bool {
        false
    }
}

/// User messages find no room in a lane whose items have so many bytes outside of its ring: their number alone would be no bound.
pub const OUTSIDE_MAX: usize = 32 << 20;

/// Kinds of records.
const ITEM: u32 = 0;
const LETTER: u32 = 1;

/// Bytes of a ring for each user item it is to hold: a message of 64 bytes to a short key, as a letter.
const ITEM_BYTES: usize = 128;

/// What the ring of a busy lane grows to: more than the cache of its own that a core has, on most processors, and a part of the one that it shares.
const GROWN_BYTES: usize = 2 << 20;
/// So many lanes of a consumer have grown at a time, which is what a core has of the cache that it shares. Where more are busy their producers wait for the
/// consumer, and not for lines.
const GROWN_MAX: u32 = 2;

/// Unpublished records are shown, and their consumer woken, after so many bytes: a batch costs the other core's line once, and the consumer
/// need not wait for the end of a long one.
const PUBLISH_BYTES: u64 = 4096;

/// # Safety
/// A record of that kind, of a lane of `T`, stands there and is not used afterwards.
unsafe fn discard<T: Item>(kind: u32, place: *mut u8) {
    // SAFETY: items are moved in by `push`, letters written by `LaneSender`; the caller uses it no more.
    let dropped = panics::caught(|| unsafe {
        match kind {
            ITEM => drop(place.cast::<T>().read()),
            _ => drop(Letter::at(place, &mut false)),
        }
    });
    // The end of a message is of the user's making, and this may be the end of a thread: a panic there would be the end of the process.
    if dropped.is_none() {
        tracing::error!(target: "wingbeat::engine", "a message panicked as it was dropped");
    }
}

/// The consumer's end of a lane.
pub struct Ring<T> {
    /// Whose lane it is.
    pub id: LaneId,
    consumer: Consumer,
    opened_by: ThreadId,
    /// Who takes from it puts into it as well, so nobody has its lines meanwhile.
    pub own: bool,
    /// The letter at the front has lost its value.
    taken: bool,
    /// Bytes of the items in it that stand outside. A bound, nothing that memory is handed over by: no order is needed.
    outside: Arc<AtomicUsize>,
    _items: PhantomData<T>,
}

/// The oldest record of a ring.
pub enum Front<'a, T> {
    /// Taken out.
    Item(T),
    /// Where it stands.
    Letter(Letter<'a>),
}

/// What becomes of a letter that was looked at.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Look {
    /// It is gone, and the next one comes.
    Next,
    /// It is gone, and no other one comes.
    Last,
    /// It stays where it is.
    Stays,
}

// SAFETY: the pointers inside are to the ring's own memory, and what stands there is `Send`: items by the bound, letters because values in
// them are `Wire`, which demands it.
unsafe impl<T: Item> Send for Ring<T> {}

/// The record at the front is gone when this is: what an unwinding reader has had must not come out of the ring again.
struct Gone<'a>(&'a mut Consumer, &'a mut bool);

impl Drop for Gone<'_> {
    #[inline]
    fn drop(&mut self) {
        *self.1 = false;
        self.0.advance();
    }
}

impl<T> Drop for Ring<T> {
    fn drop(&mut self) {
        // Whose value is gone must not be dropped as what nobody took.
        if self.taken {
            self.consumer.advance();
        }
    }
}

impl<T: Item> Ring<T> {
    /// Hands the oldest record to `f`; `None` if there is none. It is gone then, also if `f` panics.
    #[inline]
    pub fn with_next<R>(&mut self, f: impl FnOnce(Front<'_, T>) -> R) -> Option<R> {
        let (kind, place) = self.consumer.front()?;
        let gone = Gone(&mut self.consumer, &mut self.taken);
        // SAFETY: items are moved in by `push` and letters written by `LaneSender`, each under its kind; the record is looked at only here and
        // in `letters`, which leaves word of what it took, and gone with `advance`, which comes when `f` has ended, so what it got cannot outlive it.
        let front = unsafe {
            match kind {
                ITEM => Front::Item(place.cast::<T>().read()),
                _ => Front::Letter(Letter::at(place, &mut *gone.1)),
            }
        };
        if let Front::Item(item) = &front
            && item.outside() > 0
        {
            self.outside.fetch_sub(item.outside(), Ordering::Relaxed);
        }
        Some(f(front))
    }

    /// Shows `f` the letters at the front, for as long as it wants to see more. They stay there.
    #[inline]
    pub fn ahead(&mut self, mut f: impl FnMut(&Letter<'_>) -> bool) {
        self.consumer.ahead(|kind, place| {
            kind == LETTER && {
                let mut taken = false;
                // SAFETY: a letter of this kind was written by `LaneSender`, and stays until `advance`. Nothing can be taken out of it by a reference.
                let letter = ManuallyDrop::new(unsafe { Letter::at(place, &mut taken) });
                f(&letter)
            }
        });
    }

    /// Hands letter after letter to `f`, for as long as that wants another one. One that it is not done with, or in which it panicked, stays at the
    /// front for [`with_next`](Self::with_next), without its value if that was taken.
    #[inline]
    pub fn letters(&mut self, mut f: impl FnMut(&mut Letter<'_>) -> Look) {
        loop {
            let Some(place) = self.consumer.front_of(LETTER) else {
                if self.consumer.comes_to(LETTER) {
                    continue;
                }
                return;
            };
            // SAFETY: a letter of this kind was written by `LaneSender`, and is gone only with `advance`; `taken` is false when a record comes to the
            // front, and goes from one look at it to the next.
            let mut letter = ManuallyDrop::new(unsafe { Letter::at(place, &mut self.taken) });
            let look = f(&mut letter);
            if look == Look::Stays {
                return;
            }
            drop(ManuallyDrop::into_inner(letter));
            self.taken = false;
            self.consumer.advance();
            if look == Look::Last {
                return;
            }
        }
    }

    /// The oldest item, whatever it is.
    pub fn pop(&mut self) -> Option<T> {
        loop {
            let item = self.with_next(|front| match front {
                Front::Item(item) => Some(item),
                Front::Letter(letter) => T::of_letter(letter),
            })?;
            if item.is_some() {
                self.consumer.release();
                return item;
            }
        }
    }

    /// Gives the producer the room back of what was taken.
    pub fn release(&mut self) {
        self.consumer.release();
    }

    /// Whether at least as much is known to wait as a producer shows at once while it goes on writing.
    #[inline]
    pub fn is_busy(&mut self) -> bool {
        self.consumer.waiting() >= PUBLISH_BYTES
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.consumer.is_empty()
    }

    /// Its ring stays as small as it is: one thread has both ends.
    pub fn stay_small(&self) {
        self.consumer.stay();
    }
}

/// The producer's end of a lane. Not `Clone`: one producer.
pub struct LaneSender<T> {
    producer: Producer,
    /// User items that may be in it.
    items: u32,
    /// Something was appended since the bell was rung last.
    news: Cell<bool>,
    bell: Arc<Bell>,
    late: Weak<Late<T>>,
    /// As in `Ring`.
    outside: Arc<AtomicUsize>,
    _items: PhantomData<T>,
}

// SAFETY: as that of `Ring`.
unsafe impl<T: Item> Send for LaneSender<T> {}

impl<T: Item> LaneSender<T> {
    const RECORD: usize = ring::record(size_of::<T>());
    /// Bytes that only what is no user message may use.
    const RESERVE_BYTES: usize = RESERVE * Self::RECORD;

    /// Whether `n` more items fit, the last of them a user message.
    pub fn has_room(&mut self, n: usize) -> bool {
        self.outside() < OUTSIDE_MAX && self.producer.has_room(n * Self::RECORD, Self::RECORD, Self::RESERVE_BYTES, n as u32, self.items)
    }

    /// Whether `n` more items fit, or a quarter of all.
    pub fn has_much_room(&mut self, n: usize) -> bool {
        self.has_room(n.min(self.items as usize / 4).max(1))
    }

    /// Bytes of the items in it that stand outside of its ring.
    pub fn outside(&self) -> usize {
        self.outside.load(Ordering::Relaxed)
    }

    /// Whether one that is no user message fits.
    pub fn has_reserve(&mut self) -> bool {
        self.producer.has_room(Self::RECORD, Self::RECORD, 0, 1, self.items + RESERVE as u32)
    }

    /// Appends, into the reserve too. `Err` gives the item back. Seen by the consumer after [`publish`](Self::publish) at the latest.
    pub fn push(&mut self, item: T) -> Result<(), T> {
        let outside = item.outside();
        // SAFETY: `discard` and `Ring` expect a `T` under this kind, and a `T` is `Send`.
        let pushed = unsafe { ring::push(&mut self.producer, ITEM, self.items + RESERVE as u32, item) };
        if outside > 0 && pushed.is_ok() {
            // Before it is shown to the consumer, as that may be in `wrote` already.
            self.outside.fetch_add(outside, Ordering::Relaxed);
        }
        self.wrote();
        pushed
    }

    /// Appends a letter with the value in `slot`, if user messages have room; else it stays there. Moved from there into the ring at once,
    /// because each move of it costs. [`wrote`](Self::wrote) comes next, or the bell.
    #[inline(always)]
    pub fn letter<M: Wire>(&mut self, address: &Address<'_>, slot: &mut Option<M>) -> bool {
        // Most keys are numbers: where their length is known, so is all that follows from it.
        match <&[u8; 8]>::try_from(address.key) {
            Ok(key) => self.letter_to(Address { key, ..*address }, slot),
            Err(_) => self.letter_to_any(*address, slot),
        }
    }

    /// The address comes by value, as one whose place is known outside of a function has to stand in memory.
    #[inline(never)]
    fn letter_to_any<M: Wire>(&mut self, address: Address<'_>, slot: &mut Option<M>) -> bool {
        self.letter_to(address, slot)
    }

    #[inline(always)]
    fn letter_to<M: Wire>(&mut self, address: Address<'_>, slot: &mut Option<M>) -> bool {
        let Some(message) = slot.as_ref().filter(|_| fits::<M>()) else { return false };
        let (size, message) = (address.size(size_of::<M>()), &raw const *message);
        let Some(place) = self.producer.begin(size, Self::RESERVE_BYTES, self.items) else { return false };
        // SAFETY: so many bytes were just begun there, and are written; `discard` and `Ring` expect a letter under this kind, whose value is `Send`, because it
        // is `Wire`, and `fits`. That has moved into the ring then, so the slot is overwritten without a look at it.
        unsafe {
            address.write_made::<M>(place, message);
            self.producer.append(LETTER, size);
            (&raw mut *slot).write(None);
        }
        true
    }

    /// Appends a draft as a letter to that shard, if user messages have room; else it stays what it is. `PAST`: past the caches.
    #[inline(always)]
    pub fn draft<M: Wire, const PAST: bool>(&mut self, draft: &mut Draft<'_, M>, shard: ShardKey, tag: Epoch) -> bool {
        let (size, spare, most) = (draft.size(), Self::RESERVE_BYTES, self.items);
        // SAFETY: `discard` and `Ring` expect a letter under this kind, whose value is `Send`, because it is `Wire`. What `move_past` writes are the words that
        // there is room for; who sends batches settles them, or rings their bells where that unwinds, before another thread can have the lane.
        let written = unsafe {
            if PAST {
                self.producer.write_past(LETTER, size, spare, most, |place, past| match past {
                    true => draft.move_past(place, shard, tag),
                    false => draft.move_to(place, shard, tag),
                })
            } else {
                self.producer.write(LETTER, size, spare, most, |place| draft.move_to(place, shard, tag))
            }
        };
        self.wrote();
        written
    }

    /// What was written past the caches waits no more in front of them.
    #[inline]
    pub fn settle(&mut self) {
        self.producer.settle();
    }

    /// Appends a letter with an encoding, if user messages have room.
    #[inline]
    pub fn encoded(&mut self, address: &Address<'_>, bytes: &[u8]) -> bool {
        let size = address.size(bytes.len());
        // SAFETY: `discard` and `Ring` expect a letter under this kind, and bytes are `Send`.
        let written = bytes.len() <= LETTER_MAX
            && unsafe { self.producer.write(LETTER, size, Self::RESERVE_BYTES, self.items, |place| address.write_encoded(place, bytes)) };
        self.wrote();
        written
    }

    /// Whether the bell was not rung since something was appended.
    pub fn has_news(&self) -> bool {
        self.news.get()
    }

    /// Something was appended, and the bell is to be rung later: shows it to the consumer if it is much.
    #[inline]
    pub fn wrote(&mut self) {
        self.news.set(true);
        if self.producer.unpublished() >= PUBLISH_BYTES {
            self.ring_bell();
        }
    }

    /// Shows the consumer what was appended, and leaves it to the caller to wake it. True if there was anything.
    #[inline]
    pub fn publish(&mut self) -> bool {
        self.producer.publish();
        self.news.replace(false)
    }

    /// Shows the consumer what was appended, and wakes it if it sleeps. Once per batch. True if a sleeper was woken.
    #[inline]
    pub fn ring_bell(&mut self) -> bool {
        self.news.set(false);
        self.producer.publish();
        !self.bell.is_awake() && wake(&self.bell, &self.late)
    }
}

/// Something was put into a lane, and its consumer is not awake. True if it was woken.
#[inline(never)]
fn wake<T: Item>(bell: &Bell, late: &Weak<Late<T>>) -> bool {
    if bell.is_gone() {
        // Without the door there is nobody left to count it.
        late.upgrade().iter().for_each(|late| late.look());
    }
    bell.wake()
}

/// What becomes of what is put into the lanes of a consumer that has ended: somebody had been promised that it is handled, or that it is said if it is not.
struct Late<T> {
    /// Lanes that their consumer has not seen.
    new: SegQueue<Ring<T>>,
    /// Those that it has left.
    left: Mutex<Vec<Ring<T>>>,
    /// Gives up what nobody handles. Set when the consumer ends.
    give_up: OnceLock<Box<dyn Fn(T) + Send + Sync>>,
}

impl<T: Item> Late<T> {
    /// Takes what came behind the consumer's end, if that has come.
    fn look(&self) {
        let Some(give_up) = self.give_up.get() else { return };
        let mut found = vec![];
        let mut left = self.left.lock();
        left.extend(std::iter::from_fn(|| self.new.pop()));
        left.retain_mut(|lane| {
            let first = found.len();
            found.extend(std::iter::from_fn(|| lane.pop()));
            !found[first..].last().is_some_and(T::is_end)
        });
        drop(left);
        // It calls code of users, which may send.
        found.into_iter().for_each(give_up);
    }
}

/// Where producers announce new lanes to a consumer, and where what has no lane of its own comes in.
pub struct Door<T> {
    late: Arc<Late<T>>,
    inbox: SegQueue<T>,
    /// Its consumer has ended.
    closed: AtomicBool,
    bell: Arc<Bell>,
    /// So many of its lanes may still grow.
    may_grow: ring::Left,
}

impl<T: Item> Door<T> {
    /// The door of a consumer that `bell` wakes.
    pub fn new(bell: Arc<Bell>) -> Self {
        let late = Late { new: SegQueue::new(), left: Mutex::new(vec![]), give_up: OnceLock::new() };
        Self {
            late: Arc::new(late),
            inbox: SegQueue::new(),
            closed: AtomicBool::new(false),
            bell,
            may_grow: ring::Left::new(GROWN_MAX.into()),
        }
    }

    /// Opens a lane for `capacity` user items. A ring passes through all of its bytes even if only one item is in use, so a large one falls
    /// out of the caches of both cores: it becomes one when it has much to carry.
    pub fn open(&self, id: LaneId, capacity: usize) -> LaneSender<T> {
        let items = u32::try_from(capacity.max(1)).expect("the setting is at most 2^20");
        let bytes = (items as usize * ITEM_BYTES).max(2 * LaneSender::<T>::RECORD * items.min(8) as usize)
            + LaneSender::<T>::RESERVE_BYTES
            + ring::ALIGN;
        // SAFETY: only `LaneSender` writes, and `discard` knows its kinds.
        let (producer, consumer) = unsafe {
            match bytes {
                ..GROWN_BYTES => ring::growing(bytes, GROWN_BYTES, self.may_grow.clone(), discard::<T>),
                _ => ring::ring(bytes, discard::<T>),
            }
        };
        let outside = Arc::new(AtomicUsize::new(0));
        let opened_by = thread::current().id();
        self.late.new.push(Ring { id, consumer, opened_by, own: false, taken: false, outside: outside.clone(), _items: PhantomData });
        self.bell.ring();
        let (bell, late) = (self.bell.clone(), Arc::downgrade(&self.late));
        LaneSender { producer, items, news: Cell::new(false), bell, late, outside, _items: PhantomData }
    }

    /// The consumer looks at these lanes no more, nor at new ones.
    pub fn leave(&self, lanes: Vec<Ring<T>>) {
        self.late.left.lock().extend(lanes);
    }

    /// The consumer has ended, and has [left](Self::leave) its lanes: what is still in them, or comes later, is given up.
    pub fn end(&self, give_up: impl Fn(T) + Send + Sync + 'static) {
        let _ = self.late.give_up.set(Box::new(give_up));
        // If the system refuses the fence, what one of them put in at this moment is found by the look of whoever comes next.
        let _ = self.bell.announce_end();
        self.late.look();
    }

    /// Gives up what has come into the lanes of a consumer that has ended.
    pub fn look_at_late(&self) {
        self.late.look();
    }

    /// Rare traffic without order towards any lane: shutdown, resolved names, commands. Unbounded, so never for messages of users. Dropped once the
    /// consumer has ended.
    pub fn post(&self, item: T) {
        self.inbox.push(item);
        self.bell.ring();
        // Either this sees that it is closed, or who closes it sees the item.
        fence(Ordering::SeqCst);
        if self.closed.load(Ordering::Relaxed) {
            self.drop_posted();
        }
    }

    /// The consumer has ended: drops what is posted, as somebody may wait for it to be answered or dropped.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.drop_posted();
    }

    fn drop_posted(&self) {
        while self.inbox.pop().is_some() {}
    }

    /// Consumer: the next new lane.
    pub fn take_new(&self) -> Option<Ring<T>> {
        let mut ring = self.late.new.pop()?;
        ring.own = ring.opened_by == thread::current().id();
        Some(ring)
    }

    /// Consumer: the next posted item.
    pub fn take_posted(&self) -> Option<T> {
        self.inbox.pop()
    }

    /// Consumer: whether anything came that is not in a known lane.
    pub fn is_quiet(&self) -> bool {
        self.late.new.is_empty() && self.inbox.is_empty()
    }

    /// Called by producers after publishing. True if the consumer was woken; if it has ended, what came is given up.
    pub fn ring(&self) -> bool {
        if self.bell.is_awake() {
            return false;
        }
        if self.bell.is_gone() {
            self.late.look();
        }
        self.bell.wake()
    }

    /// The consumer's bell.
    pub fn bell(&self) -> &Bell {
        &self.bell
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ShardId, TypeId, engine::letter::Drafts};

    impl Item for u32 {
        fn of_letter(mut letter: Letter<'_>) -> Option<Self> {
            letter.take()
        }

        fn outside(&self) -> usize {
            if *self >= LONG { OUTSIDE_MAX / 2 } else { 0 }
        }
    }

    struct Posted(#[allow(dead_code, reason = "its end is what counts")] crossbeam::channel::Sender<()>);

    impl Item for Posted {
        fn of_letter(_: Letter<'_>) -> Option<Self> {
            None
        }
    }

    /// Numbers from here on are long messages.
    const LONG: u32 = 1 << 30;

    fn door() -> (Door<u32>, Arc<AtomicUsize>) {
        let woken = Arc::new(AtomicUsize::new(0));
        let count = woken.clone();
        let wake = move || {
            count.fetch_add(1, Ordering::SeqCst);
        };
        (Door::new(Arc::new(Bell::new(wake))), woken)
    }

    fn address() -> Address<'static> {
        let shard = ShardKey { ty: TypeId(1), shard: ShardId(2) };
        Address { shard, tag: crate::Epoch::ZERO, stream: None, key: &[1; 8], hash: 3, ask: None, reads: 0 }
    }

    #[test]
    fn what_is_posted_to_a_consumer_that_has_ended_is_dropped() {
        let door = Door::new(Arc::new(Bell::new(|| {})));
        let (before, after) = (crossbeam::channel::bounded::<()>(1), crossbeam::channel::bounded::<()>(1));
        door.post(Posted(before.0));
        door.close();
        door.post(Posted(after.0));
        assert!([before.1, after.1].iter().all(|sent| sent.recv().is_err()), "who waits for it is told");
    }

    #[test]
    fn what_comes_into_the_lanes_of_a_consumer_that_has_ended_is_given_up() {
        let (door, _) = door();
        let given_up = Arc::new(Mutex::new(vec![]));
        let taken = || std::mem::take(&mut *given_up.lock());
        let (mut lane, mut unseen) = (door.open(LaneId(1), 8), door.open(LaneId(2), 8));
        let mut ring = door.take_new().unwrap();
        lane.push(1).unwrap();
        lane.ring_bell();
        assert_eq!(ring.pop(), Some(1));
        // Written, and not shown before the consumer's last look.
        lane.push(2).unwrap();
        unseen.push(3).unwrap();
        unseen.ring_bell();
        door.leave(vec![ring]);
        door.look_at_late();
        door.end({
            let given_up = given_up.clone();
            move |item| given_up.lock().push(item)
        });
        assert_eq!(taken(), [3], "its consumer had not looked at that lane");
        assert!(!lane.ring_bell());
        assert_eq!(taken(), [2]);
        let mut later = door.open(LaneId(3), 8);
        later.push(4).unwrap();
        later.publish();
        assert!(taken().is_empty(), "nobody was told");
        door.look_at_late();
        assert_eq!(taken(), [4]);
    }

    // failures: row 51
    #[test]
    fn user_messages_leave_the_reserve_free() {
        let (door, _) = door();
        let mut lane = door.open(LaneId(1), 2);
        assert!(lane.has_room(2) && !lane.has_room(3));
        lane.push(1).unwrap();
        lane.push(2).unwrap();
        assert!(!lane.has_room(1));
        for token in 0..RESERVE as u32 {
            lane.push(token).unwrap();
        }
        assert_eq!(lane.push(9), Err(9), "even the reserve has an end");
        lane.ring_bell();
        let mut ring = door.take_new().unwrap();
        assert_eq!((ring.pop(), ring.pop(), ring.pop()), (Some(1), Some(2), Some(0)), "first in, first out");
        assert!(!lane.has_room(1), "the reserve is still in use");
        (0..RESERVE - 2).for_each(|_| _ = ring.pop());
        assert!(lane.has_room(1) && !lane.has_room(2));
    }

    // failures: row 40
    #[test]
    fn long_messages_are_bounded_by_their_bytes() {
        let (door, _) = door();
        let mut lane = door.open(LaneId(1), 1000);
        let mut ring = door.take_new().unwrap();
        for n in [1, LONG, 2, LONG] {
            assert!(lane.has_room(1));
            lane.push(n).unwrap();
        }
        assert!(!lane.has_room(1) && lane.outside() == OUTSIDE_MAX);
        lane.push(3).expect("what is no user message goes on");
        assert!(lane.letter(&address(), &mut Some(4u32)), "and so do short ones");
        lane.ring_bell();
        assert_eq!((ring.pop(), ring.pop()), (Some(1), Some(LONG)));
        assert!(lane.has_room(1));
        while ring.pop().is_some() {}
        assert_eq!(lane.outside(), 0);
    }

    #[test]
    fn items_and_letters_keep_their_order_and_letters_leave_the_reserve_free() {
        let (door, woken) = door();
        let mut lane = door.open(LaneId(1), 100);
        let address = address();
        let mut ring = door.take_new().unwrap();
        assert!(door.bell().announce_sleep());
        for n in 0..100 {
            if n % 3 == 0 { lane.push(n).unwrap() } else { assert!(lane.letter(&address, &mut Some(n))) }
        }
        let mut slot = Some(7u32);
        assert!(!lane.letter(&address, &mut slot) && slot == Some(7), "as many as user messages may be");
        assert!(!lane.encoded(&address, &[0; 10]));
        lane.push(100).unwrap();
        assert!(lane.has_news());
        lane.ring_bell();
        assert!(!lane.has_news());
        assert_eq!(woken.load(Ordering::SeqCst), 1, "one bell for all of them, or what went beyond a batch");
        let mut next = 0;
        while let Some(n) = ring.with_next(|front| match front {
            Front::Item(n) => n,
            Front::Letter(mut letter) => letter.take().unwrap(),
        }) {
            assert_eq!(n, next);
            next += 1;
        }
        assert_eq!(next, 101);
    }

    /// Letters and items pass through the lane, whose consumer is behind, in order.
    fn flood(lane: &mut LaneSender<u32>, ring: &mut Ring<u32>) {
        const RECORDS: u32 = if cfg!(miri) { 2_000 } else { 5_000 };
        let (address, mut next) = (address(), 0);
        let mut read = |ring: &mut Ring<u32>, most: u32| {
            let upto = next + most;
            while next < upto {
                ring.letters(|letter| {
                    assert_eq!(letter.take(), Some(next));
                    next += 1;
                    if next < upto { Look::Next } else { Look::Last }
                });
                if next < upto && next % 7 == 0 {
                    assert_eq!(ring.pop(), Some(next));
                    next += 1;
                }
            }
            ring.release();
            next
        };
        let (mut written, mut taken) = (0, 0);
        while taken < RECORDS {
            while written < RECORDS {
                let sent = if written % 7 == 0 {
                    lane.has_room(1) && lane.push(written).is_ok()
                } else {
                    lane.letter(&address, &mut Some(written))
                };
                if !sent {
                    break;
                }
                written += 1;
            }
            lane.ring_bell();
            taken = read(ring, (written - taken).div_ceil(2));
        }
    }

    #[test]
    fn the_rings_of_some_busy_lanes_grow_and_not_that_of_a_thread_to_itself() {
        let (door, _) = door();
        let (mut lane, mut ring) = (door.open(LaneId(0), 100), door.take_new().unwrap());
        assert!(ring.own);
        ring.stay_small();
        flood(&mut lane, &mut ring);
        let grown = || GROWN_MAX - door.may_grow.load(Ordering::Relaxed);
        assert_eq!(grown(), 0, "both ends are this thread's");
        let lanes: Vec<_> = (1..GROWN_MAX + 3)
            .map(|n| {
                let (mut lane, mut ring) = (door.open(LaneId(n), 100), door.take_new().unwrap());
                flood(&mut lane, &mut ring);
                assert_eq!(grown(), n.min(GROWN_MAX));
                (lane, ring)
            })
            .collect();
        drop(lanes);
        assert_eq!(grown(), 0, "and others may");
    }

    #[test]
    fn drafts_come_out_in_order_whichever_way_they_were_written() {
        const RECORDS: u32 = if cfg!(miri) { 1_000 } else { 20_000 };
        let (door, _) = door();
        let (mut lane, mut ring) = (door.open(LaneId(0), 50), door.take_new().unwrap());
        let shard = |n: u32| ShardKey { ty: TypeId(n), shard: ShardId(!n) };
        let key = |n: u32| vec![n as u8; n as usize * 7 % 40];
        let (mut written, mut read) = (0, 0);
        while read < RECORDS {
            let mut drafts = Drafts::default();
            (written..written + 60).for_each(|n| drafts.push(&key(n), u64::from(n), n));
            let mut at = written;
            let sent = drafts.send_while(|draft| {
                // Rows of each, as batches are, and either way behind either.
                match at / 9 % 3 {
                    0 => _ = lane.draft::<u32, false>(draft, shard(at), Epoch(at.into())),
                    _ => _ = lane.draft::<u32, true>(draft, shard(at), Epoch(at.into())),
                }
                at += 1;
            });
            written += sent as u32;
            lane.ring_bell();
            // The consumer is behind, so the ring grows in between.
            let upto = written - (written - read) / 3;
            ring.letters(|letter| {
                let seen = letter.address();
                assert_eq!((seen.shard, seen.tag, seen.key, seen.hash), (shard(read), Epoch(read.into()), &key(read)[..], read.into()));
                assert_eq!(letter.take(), Some(read));
                read += 1;
                if read < upto { Look::Next } else { Look::Last }
            });
            ring.release();
        }
        assert_eq!(door.may_grow.load(Ordering::Relaxed), GROWN_MAX - 1);
    }

    #[test]
    fn what_a_reader_had_that_panicked_does_not_come_again() {
        let (door, _) = door();
        let mut lane = door.open(LaneId(1), 10);
        let address = address();
        assert!(lane.letter(&address, &mut Some(1u32)));
        lane.push(2).unwrap();
        lane.push(3).unwrap();
        lane.ring_bell();
        let mut ring = door.take_new().unwrap();
        for expected in [1, 2] {
            let read = std::panic::AssertUnwindSafe(|| {
                ring.with_next(|front| {
                    let n = match front {
                        Front::Item(n) => n,
                        Front::Letter(mut letter) => letter.take().unwrap(),
                    };
                    assert_eq!(n, expected);
                    std::panic::resume_unwind(Box::new("a reader's end"));
                })
            });
            assert!(std::panic::catch_unwind(read).is_err());
        }
        assert_eq!((ring.pop(), ring.pop()), (Some(3), None), "values are moved out, so a second look would use them twice");
    }

    #[test]
    fn only_a_sleeper_is_woken_and_only_once() {
        let (door, woken) = door();
        door.post(1);
        assert_eq!(woken.load(Ordering::SeqCst), 0, "nobody slept");
        assert!(door.bell().announce_sleep());
        door.post(2);
        door.post(3);
        assert_eq!(woken.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn no_wake_up_is_lost_between_two_threads() {
        let main = std::thread::current();
        no_wake_up_is_lost(Bell::new(move || main.unpark()));
    }

    #[test]
    fn no_wake_up_is_lost_where_the_sleeper_pays_for_both_fences() {
        let main = std::thread::current();
        no_wake_up_is_lost(Bell::of_sound_sleeper(move || main.unpark()));
    }

    /// `parked` wakes the calling thread.
    fn no_wake_up_is_lost(parked: Bell) {
        let parked = Arc::new(parked);
        let posts = if cfg!(miri) { 200 } else { 20_000 };
        let door = Arc::new(Door::<u32>::new(parked));
        let producer = std::thread::spawn({
            let door = door.clone();
            move || (0..posts).for_each(|i| door.post(i))
        });
        let mut next = 0;
        while next < posts {
            while let Some(i) = door.take_posted() {
                assert_eq!(i, next);
                next += 1;
            }
            assert!(door.bell().announce_sleep());
            if door.is_quiet() && next < posts {
                std::thread::park();
            }
            door.bell().awake();
        }
        producer.join().unwrap();
    }
}
