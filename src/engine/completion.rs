//! A queue of answers: many asks in flight from one thread, without a thread or an allocation for each.

use std::sync::{
    Arc, Weak,
    atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering},
};

use crossbeam::queue::ArrayQueue;
use parking_lot::{Mutex, RwLock};

use super::{
    asker::{Asker, Awake},
    clock::{Clock, Waited},
    node::Node,
    panics,
    parcel::Answered,
    sync::fence,
    sys,
    window::{self, Sleeper},
};
use crate::{Deadline, config::Idle};

/// Called when a queue may have become non-empty.
pub type Wake = Arc<dyn Fn() + Send + Sync>;

/// Answers that wait to be taken. Room for an answer is reserved when its ask is accepted, so that none is ever lost.
pub struct Completions {
    ready: ArrayQueue<(u64, Answered)>,
    /// Asks accepted whose answers have not been taken.
    reserved: AtomicUsize,
    wake: RwLock<Option<Wake>>,
    /// The node of its last ask, and where that is.
    node: RwLock<Weak<Node>>,
    node_at: AtomicPtr<Node>,
    /// That went to another node.
    abroad: AtomicBool,
    /// Threads that wait for an answer.
    sleepers: Mutex<Vec<Arc<Mutex<Sleeper>>>>,
    sleeping: AtomicUsize,
}

/// Room for one answer. Given back as it is dropped: its ask was not accepted, or its encoder panicked, and nobody has taken its slot before.
pub struct Room(Option<Arc<Completions>>);

impl Room {
    /// Puts the answer in.
    pub fn put(self, tag: u64, answered: Answered) {
        let queue = self.put_unhooked(tag, answered);
        queue.wake();
        Arc::into_inner(queue).into_iter().for_each(Completions::end);
    }

    /// As [`put`](Self::put), but leaves it to the caller to call the hook. One that is set behind this is called by who sets it.
    pub fn put_unhooked(mut self, tag: u64, answered: Answered) -> Arc<Completions> {
        let queue = self.0.take().expect("it is there until it is used, which takes all of it");
        queue.put(tag, answered);
        queue
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        if let Some(queue) = &self.0 {
            queue.release();
        }
    }
}

impl Completions {
    /// Room for so many asks in flight and answers not taken, together.
    pub fn new(capacity: usize) -> Self {
        Self {
            ready: ArrayQueue::new(capacity.max(1)),
            reserved: AtomicUsize::new(0),
            wake: RwLock::new(None),
            node: RwLock::default(),
            node_at: AtomicPtr::default(),
            abroad: AtomicBool::new(false),
            // Mostly one thread waits: its first sleep allocates nothing.
            sleepers: Mutex::new(Vec::with_capacity(1)),
            sleeping: AtomicUsize::new(0),
        }
    }

    /// Takes room for one answer; `None` if there is none.
    pub fn reserve(self: &Arc<Self>) -> Option<Room> {
        let more = |n: usize| (n < self.ready.capacity()).then_some(n + 1);
        self.reserved.fetch_update(Ordering::AcqRel, Ordering::Relaxed, more).ok()?;
        Some(Room(Some(self.clone())))
    }

    fn release(&self) {
        self.reserved.fetch_sub(1, Ordering::AcqRel);
    }

    /// Asks in flight and answers not taken.
    pub fn reserved(&self) -> usize {
        self.reserved.load(Ordering::Acquire)
    }

    fn put(&self, tag: u64, answered: Answered) {
        let put = self.ready.push((tag, answered));
        assert!(put.is_ok(), "each ask in flight has room in its queue");
        // The other side announces its sleep before its last look at the queue.
        fence(Ordering::SeqCst);
        if self.sleeping.load(Ordering::Relaxed) > 0 {
            self.sleepers.lock().drain(..).for_each(|sleeper| sleeper.lock().wake());
        }
    }

    /// Whether each answer calls a hook of the user's.
    pub fn calls(&self) -> bool {
        self.wake.read().is_some()
    }

    /// Calls the hook, if there is one. It runs on a thread that others wait for, so a panic ends here; and without the lock, so it may set
    /// another one.
    pub fn wake(&self) {
        let Some(wake) = self.wake.read().clone() else { return };
        // It may be the last one as well.
        if panics::caught(move || wake()).is_none() {
            tracing::error!(target: "wingbeat::engine", "the wake hook of a queue of answers panicked");
        }
    }

    /// Nobody empties it any more: its answers, and its hook, are code of users as they are dropped.
    pub fn end(self) {
        if panics::caught(move || drop(self)).is_none() {
            tracing::error!(target: "wingbeat::engine", "an answer that nobody took panicked as it was dropped");
        }
    }

    /// Takes the oldest answer.
    pub fn take(&self) -> Option<(u64, Answered)> {
        let taken = self.ready.pop()?;
        self.release();
        Some(taken)
    }

    /// Called from now on after each answer that is put in.
    pub fn set_wake(&self, wake: Wake) {
        // The old one goes without the lock: its end is the user's.
        let before = self.wake.write().replace(wake);
        drop(before);
        if !self.ready.is_empty() {
            self.wake();
        }
    }

    /// An ask goes through `node`, to another one or not: its clock and its settings are those of who waits, who helps its network meanwhile. Of
    /// several it is the last one.
    pub fn asked_by(&self, node: &Arc<Node>, abroad: bool) {
        if self.abroad.load(Ordering::Relaxed) != abroad {
            self.abroad.store(abroad, Ordering::Relaxed);
        }
        let at = Arc::as_ptr(node).cast_mut();
        if self.node_at.load(Ordering::Relaxed) != at {
            *self.node.write() = Arc::downgrade(node);
            self.node_at.store(at, Ordering::Relaxed);
        }
    }

    /// Waits until there is an answer, at most until the deadline.
    pub fn wait(&self, deadline: impl Into<Deadline>) {
        let node = self.node.read().upgrade();
        if node.is_none() {
            // The next node may stand where that one stood.
            self.node_at.store(std::ptr::null_mut(), Ordering::Relaxed);
        }
        let (clock, idle) = node.as_ref().map_or((&Clock::Machine, Idle::default()), |node| (&node.clock, node.config.node.idle));
        let mut now = clock.now();
        let deadline = deadline.into().resolve(now);
        if !matches!(clock.wait(deadline, || (!self.ready.is_empty()).then_some(())), Waited::Machine) {
            return;
        }
        let helps = node.as_deref().filter(|_| self.abroad.load(Ordering::Relaxed));
        let (mut asker, mut at_window) = (Asker::take(idle), helps);
        while let Awake::Tired(left) = asker.stay_awake(helps, now, deadline, |_| !self.ready.is_empty()) {
            let me = asker.sleeper();
            let lie_down = || {
                self.sleepers.lock().push(me.clone());
                self.sleeping.fetch_add(1, Ordering::Relaxed);
                fence(Ordering::SeqCst);
                self.ready.is_empty().then_some(left)
            };
            let get_up = || {
                self.sleeping.fetch_sub(1, Ordering::Relaxed);
                self.sleepers.lock().retain(|sleeper| !Arc::ptr_eq(sleeper, me));
            };
            if !window::sleep(at_window, me, lie_down, get_up) {
                at_window = None;
            }
            now = sys::now();
        }
        asker.keep();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn room_is_reserved_before_the_answer_and_comes_back_when_it_is_taken() {
        let queue = Arc::new(Completions::new(2));
        let rooms = [queue.reserve(), queue.reserve(), queue.reserve()].map(|room| room.ok_or(()));
        let [Ok(first), Ok(second), Err(())] = rooms else { panic!("two of three find room") };
        first.put(7, Answered::Timeout);
        assert!(queue.reserve().is_none(), "an answer that was not taken has its room");
        assert_eq!(queue.take().map(|(tag, _)| tag), Some(7));
        let third = queue.reserve();
        assert!(queue.take().is_none() && third.is_some());
        drop(second);
        assert_eq!(queue.reserved(), 1);
    }

    #[test]
    fn a_sleeper_is_woken_by_each_answer_and_no_answer_is_missed() {
        let queue = Arc::new(Completions::new(1));
        let woken = Arc::new(AtomicUsize::new(0));
        let count = woken.clone();
        queue.set_wake(Arc::new(move || _ = count.fetch_add(1, Ordering::SeqCst)));
        let deadline = Duration::from_secs(60);
        let other = std::thread::spawn({
            let queue = queue.clone();
            move || {
                for tag in 0..5_000 {
                    let room = loop {
                        match queue.reserve() {
                            Some(room) => break room,
                            None => std::thread::yield_now(),
                        }
                    };
                    room.put(tag, Answered::Timeout);
                }
            }
        });
        for expected in 0..5_000 {
            queue.wait(deadline);
            assert_eq!(queue.take().map(|(tag, _)| tag), Some(expected));
        }
        other.join().unwrap();
        assert_eq!(woken.load(Ordering::SeqCst), 5_000);
        queue.wait(Duration::ZERO);
    }

    #[test]
    fn what_is_left_in_a_queue_that_nobody_empties_may_panic_as_it_ends() {
        struct Bad;
        impl Drop for Bad {
            fn drop(&mut self) {
                panic!("on purpose");
            }
        }
        let (queue, bad) = (Arc::new(Completions::new(1)), Bad);
        queue.set_wake(Arc::new(move || _ = &bad));
        let room = queue.reserve().expect("it is empty");
        drop(queue);
        room.put(1, Answered::Timeout);
    }

    #[test]
    fn a_hook_that_panics_or_sets_another_one_harms_nobody() {
        let queue = Arc::new(Completions::new(2));
        let (again, woken) = (queue.clone(), Arc::new(AtomicUsize::new(0)));
        let count = woken.clone();
        queue.set_wake(Arc::new(move || {
            let count = count.clone();
            again.set_wake(Arc::new(move || _ = count.fetch_add(1, Ordering::SeqCst)));
            panic!("on purpose");
        }));
        let rooms: Vec<Room> = (0..2).filter_map(|_| queue.reserve()).collect();
        (1..3).zip(rooms).for_each(|(tag, room)| room.put(tag, Answered::Timeout));
        // Set while an answer was there, and called for the next one.
        assert_eq!(woken.load(Ordering::SeqCst), 2);
        assert_eq!(queue.take().map(|(tag, _)| tag), Some(1));
    }
}
