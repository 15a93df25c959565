//! A place for one answer at a time, for one thread that waits for it. Checked by `loom/tests/mailbox.rs`.
//!
//! The owner lends out the right to put one in, and gets it back with the answer. So who answers writes without an exchange: the owner looks at the
//! state all the time, and each change of it costs the way to the owner's core and back.

use std::mem::{ManuallyDrop, MaybeUninit};

use super::{
    bell::Bell,
    sync::{AtomicU8, Ordering, UnsafeCell},
};

/// Where the answer for a blocked thread is put. One ask at a time.
///
/// State and answer begin a line of the cache, so that a short answer comes with one way between the cores.
#[repr(C, align(128))]
pub struct Mailbox<A> {
    state: AtomicU8,
    /// While the state is `FULL` an answer, which is the owner's; else nothing, and the room belongs to who has the [`Place`].
    answer: UnsafeCell<MaybeUninit<A>>,
    bell: Bell,
}

/// Nothing is there.
const EMPTY: u8 = 0;
/// The answer is there, for the owner alone.
const FULL: u8 = 1;
/// No answer will come.
const GONE: u8 = 2;

// SAFETY: `answer` is the only field that is not `Sync`. There is at most one `Place`, whose owner alone writes the answer, and is it no more with
// the store of `FULL`. The inbox, of which there is one, reads behind a look that sees that store, and makes the state `EMPTY` again before it lends
// out the next `Place`. An answer is `Send`, so it may go from one thread to the other.
unsafe impl<A: Send> Sync for Mailbox<A> {}

impl<A> Mailbox<A> {
    /// The owner's bell.
    pub fn bell(&self) -> &Bell {
        &self.bell
    }

    /// Whether the answer is there.
    pub fn is_full(&self) -> bool {
        self.state.load(Ordering::Acquire) == FULL
    }
}

/// The owner's end.
pub struct Inbox<A: 'static> {
    mailbox: &'static Mailbox<A>,
    /// The place was given away, and no answer was taken since.
    lent: bool,
}

impl<A: Send> Inbox<A> {
    /// An empty one; `bell` wakes its owner. Its memory stays for good, as whoever brought the last answer may still look whether somebody sleeps; a
    /// count of owners instead would go from one core to the other and back with every ask.
    pub fn new(bell: Bell) -> Self {
        let mailbox = Mailbox { answer: UnsafeCell::new(MaybeUninit::uninit()), state: AtomicU8::new(EMPTY), bell };
        Self { mailbox: Box::leak(Box::new(mailbox)), lent: false }
    }

    /// What others see of it.
    pub fn mailbox(&self) -> &'static Mailbox<A> {
        self.mailbox
    }

    /// The right to put in one answer; `None` while the answer to the ask before may still come.
    pub fn lend(&mut self) -> Option<Place<A>> {
        if self.lent {
            if self.mailbox.state.load(Ordering::Acquire) != GONE {
                return None;
            }
            self.mailbox.state.store(EMPTY, Ordering::Relaxed);
        }
        self.lent = true;
        Some(Place(self.mailbox))
    }

    /// Whether no answer can come any more that nobody has taken.
    pub fn is_free(&self) -> bool {
        !self.lent || self.mailbox.state.load(Ordering::Acquire) == GONE
    }

    /// The answer, if it is there.
    pub fn take(&mut self) -> Option<A> {
        if !self.mailbox.is_full() {
            return None;
        }
        // SAFETY: the state is `FULL`: an answer is there, and nobody writes before the next `Place` is lent out, which is not before it is `EMPTY`.
        let answer = self.mailbox.answer.with_mut(|place| unsafe { (*place).assume_init_read() });
        self.mailbox.state.store(EMPTY, Ordering::Relaxed);
        self.lent = false;
        Some(answer)
    }
}

/// The right to put in one answer.
pub struct Place<A: Send + 'static>(&'static Mailbox<A>);

impl<A: Send> Place<A> {
    /// Gives the answer.
    pub fn put(self, answered: A) {
        self.put_untold(answered).bell.ring();
    }

    /// As [`put`](Self::put), but leaves the bell to the caller.
    pub fn put_untold(self, answered: A) -> &'static Mailbox<A> {
        let mailbox = ManuallyDrop::new(self).0;
        // SAFETY: the only `Place` was this one, and the owner does not touch the answer before the state is `FULL`. Nothing is there to be dropped.
        mailbox.answer.with_mut(|place| unsafe { _ = (*place).write(answered) });
        mailbox.state.store(FULL, Ordering::Release);
        mailbox
    }
}

impl<A: Send> Drop for Place<A> {
    fn drop(&mut self) {
        self.0.state.store(GONE, Ordering::Release);
    }
}
