//! Lanes: one bounded queue per producer and consumer, with a reserve that user messages cannot fill, and a bell for sleepers.
//!
//! The queue inside is crossbeam's bounded array queue. Each lane has exactly one producer and one consumer, which callers may rely on:
//! room that the producer saw cannot be taken by anybody else.

use std::{
    cell::Cell,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering, fence},
    },
};

use crossbeam::{
    queue::{ArrayQueue, SegQueue},
    utils::CachePadded,
};

use crate::proto::shard::LaneId;

/// Slots that only tokens, replies, commands and reports may use.
pub const RESERVE: usize = 64;

/// User messages in one ring at most, whatever `limits.lane_items` allows to be held around a change of exit. A ring passes through all of
/// its slots even if only one is in use, so a larger one does not fit the second-level caches: 4096 slots are about a megabyte.
const RING_MAX: usize = 1024;

/// Rings a sleeping consumer awake, and costs a fence and a load when it is awake.
///
/// The consumer announces sleep (store), then looks at its queues once more; a producer publishes, then looks whether sleep was
/// announced. A sequentially consistent fence between the two steps of each side makes one of them see the other (Dekker): either the
/// consumer finds the item, or the producer finds the sleeper.
pub struct Bell {
    asleep: CachePadded<AtomicBool>,
    wake: Box<dyn Fn() + Send + Sync>,
}

impl Bell {
    /// `wake` must make the consumer return from its sleep, or from its next one.
    pub fn new(wake: impl Fn() + Send + Sync + 'static) -> Self {
        Self { asleep: CachePadded::new(AtomicBool::new(false)), wake: Box::new(wake) }
    }

    /// Called by producers after publishing. True if a sleeper was woken.
    pub fn ring(&self) -> bool {
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::Relaxed) && self.asleep.swap(false, Ordering::AcqRel) {
            (self.wake)();
            return true;
        }
        false
    }

    /// Called by the consumer before its last look at the queues.
    pub fn announce_sleep(&self) {
        self.asleep.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Called by the consumer when it is awake again, or found something after all.
    pub fn awake(&self) {
        self.asleep.store(false, Ordering::Relaxed);
    }
}

/// The queue of one lane.
pub struct Ring<T> {
    /// Whose lane it is.
    pub id: LaneId,
    queue: ArrayQueue<T>,
}

impl<T> Ring<T> {
    /// The oldest item.
    pub fn pop(&self) -> Option<T> {
        self.queue.pop()
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }
}

/// The producer's end of a lane. Not `Clone`: one producer.
pub struct LaneSender<T> {
    ring: Arc<Ring<T>>,
    bell: Arc<Bell>,
    /// Room for user messages at least, as last seen: the consumer only makes more. Asking the ring costs a line that the consumer writes.
    room: Cell<usize>,
}

impl<T> LaneSender<T> {
    /// Whether `n` more items fit, the last of them a user message.
    pub fn has_room(&self, n: usize) -> bool {
        if self.room.get() < n {
            self.room.set((self.ring.queue.capacity() - RESERVE).saturating_sub(self.ring.queue.len()));
        }
        self.room.get() >= n
    }

    /// Appends, into the reserve too. `Err` gives the item back.
    pub fn push(&self, item: T) -> Result<(), T> {
        self.room.set(self.room.get().saturating_sub(1));
        self.ring.queue.push(item)
    }

    /// Wakes the consumer if it sleeps. Once per batch.
    pub fn ring_bell(&self) -> bool {
        self.bell.ring()
    }
}

/// Where producers announce new lanes to a consumer, and where what has no lane of its own comes in.
pub struct Door<T> {
    new: SegQueue<Arc<Ring<T>>>,
    inbox: SegQueue<T>,
    bell: Arc<Bell>,
}

impl<T> Door<T> {
    /// The door of a consumer that `bell` wakes.
    pub fn new(bell: Arc<Bell>) -> Self {
        Self { new: SegQueue::new(), inbox: SegQueue::new(), bell }
    }

    /// Opens a lane for `capacity` user items, at most `RING_MAX`.
    pub fn open(&self, id: LaneId, capacity: usize) -> LaneSender<T> {
        let ring = Arc::new(Ring { id, queue: ArrayQueue::new(capacity.clamp(1, RING_MAX) + RESERVE) });
        self.new.push(ring.clone());
        self.bell.ring();
        LaneSender { ring, bell: self.bell.clone(), room: Cell::new(0) }
    }

    /// Rare traffic without order towards any lane: shutdown, resolved names, deadlines. Unbounded, so never for messages of users.
    pub fn post(&self, item: T) {
        self.inbox.push(item);
        self.bell.ring();
    }

    /// Consumer: the next new lane.
    pub fn take_new(&self) -> Option<Arc<Ring<T>>> {
        self.new.pop()
    }

    /// Consumer: the next posted item.
    pub fn take_posted(&self) -> Option<T> {
        self.inbox.pop()
    }

    /// Consumer: whether anything came that is not in a known lane.
    pub fn is_quiet(&self) -> bool {
        self.new.is_empty() && self.inbox.is_empty()
    }

    /// The consumer's bell.
    pub fn bell(&self) -> &Bell {
        &self.bell
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    fn door() -> (Door<u32>, Arc<AtomicUsize>) {
        let woken = Arc::new(AtomicUsize::new(0));
        let count = woken.clone();
        let wake = move || {
            count.fetch_add(1, Ordering::SeqCst);
        };
        (Door::new(Arc::new(Bell::new(wake))), woken)
    }

    #[test]
    fn user_messages_leave_the_reserve_free() {
        let (door, _) = door();
        let lane = door.open(LaneId(1), 2);
        assert!(lane.has_room(2) && !lane.has_room(3));
        lane.push(1).unwrap();
        lane.push(2).unwrap();
        assert!(!lane.has_room(1));
        for token in 0..RESERVE as u32 {
            lane.push(token).unwrap();
        }
        assert_eq!(lane.push(9), Err(9), "even the reserve has an end");
        let ring = door.take_new().unwrap();
        assert_eq!((ring.pop(), ring.pop(), ring.pop()), (Some(1), Some(2), Some(0)), "first in, first out");
        assert!(!lane.has_room(1), "the reserve is still in use");
        (0..RESERVE - 2).for_each(|_| _ = ring.pop());
        assert!(lane.has_room(1) && !lane.has_room(2));
    }

    #[test]
    fn only_a_sleeper_is_woken_and_only_once() {
        let (door, woken) = door();
        door.post(1);
        assert_eq!(woken.load(Ordering::SeqCst), 0, "nobody slept");
        door.bell().announce_sleep();
        door.post(2);
        door.post(3);
        assert_eq!(woken.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn no_wake_up_is_lost_between_two_threads() {
        let parked = Arc::new(Bell::new({
            let main = std::thread::current();
            move || main.unpark()
        }));
        let door = Arc::new(Door::<u32>::new(parked));
        let producer = std::thread::spawn({
            let door = door.clone();
            move || (0..20_000).for_each(|i| door.post(i))
        });
        let mut next = 0;
        while next < 20_000 {
            while let Some(i) = door.take_posted() {
                assert_eq!(i, next);
                next += 1;
            }
            door.bell().announce_sleep();
            if door.is_quiet() && next < 20_000 {
                std::thread::park();
            }
            door.bell().awake();
        }
        producer.join().unwrap();
    }
}
