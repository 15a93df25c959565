//! A place for one answer at a time, for one thread that waits for it. Checked by `loom/tests/mailbox.rs`.

use super::{
    bell::Bell,
    sync::{AtomicU8, Ordering, UnsafeCell},
};

/// Where the answer for a blocked thread is put. One ask at a time.
pub struct Mailbox<A> {
    /// Belongs to who made the state `WRITING`, and while it is `FULL` to the mailbox's owner.
    answer: UnsafeCell<Option<A>>,
    state: AtomicU8,
    bell: Bell,
}

/// Nothing is there.
const EMPTY: u8 = 0;
/// One thread puts an answer in.
const WRITING: u8 = 1;
/// The answer is there, for the owner alone.
const FULL: u8 = 2;

// SAFETY: `answer` is the only field that is not `Sync`. A thread writes it after it has turned `EMPTY` into `WRITING`, which one can; the
// owner takes it after it has seen `FULL`, which that thread stores behind its write, and makes the state `EMPTY` again behind its own. An
// answer is `Send`, so it may go from one to the other.
unsafe impl<A: Send> Sync for Mailbox<A> {}

impl<A> Mailbox<A> {
    /// An empty one; `bell` wakes its owner.
    pub fn new(bell: Bell) -> Self {
        Self { answer: UnsafeCell::new(None), state: AtomicU8::new(EMPTY), bell }
    }

    /// The owner's bell.
    pub fn bell(&self) -> &Bell {
        &self.bell
    }

    /// Gives the answer. Once per ask: the slot sees to that.
    pub fn put(&self, answered: A) {
        self.put_untold(answered);
        self.bell.ring();
    }

    /// As [`put`](Self::put), but leaves the bell to the caller.
    pub fn put_untold(&self, answered: A) {
        let free = self.state.compare_exchange(EMPTY, WRITING, Ordering::Acquire, Ordering::Relaxed).is_ok();
        assert!(free, "an ask is answered at most once, and the next one is opened when its mailbox is empty");
        // SAFETY: this thread made the state `WRITING`: nobody else touches the answer before it is `FULL`.
        self.answer.with_mut(|place| unsafe { *place = Some(answered) });
        self.state.store(FULL, Ordering::Release);
    }

    /// Whether the answer is there.
    pub fn is_full(&self) -> bool {
        self.state.load(Ordering::Acquire) == FULL
    }

    /// The answer, if it is there. For the mailbox's only owner.
    pub fn take(&self) -> Option<A> {
        if !self.is_full() {
            return None;
        }
        // SAFETY: the state is `FULL`, so nobody writes until it is `EMPTY` again; the owner, which is one thread, is the only one to take.
        let answer = self.answer.with_mut(|place| unsafe { (*place).take() });
        self.state.store(EMPTY, Ordering::Release);
        answer
    }
}
