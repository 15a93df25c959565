//! A thread that waits for the answer to its ask: it stays awake for a while, as in [`idle`](super::idle), and parks only then.

use std::{
    cell::{Cell, UnsafeCell},
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
    thread::Thread,
};

use super::{
    clock::{Clock, Waited},
    idle::{Idler, Rest},
    lane::Bell,
    parcel::Answered,
    sys,
};
use crate::{Time, config::Idle};

/// Looks at the answer before the first yield: an entity of this node answers within a microsecond when its worker is awake.
const LOOKS: u32 = 64;

/// Where the answer for a blocked thread is put. One ask at a time.
pub struct Mailbox {
    /// Belongs to who made the state `WRITING`, and while it is `FULL` to the mailbox's owner.
    answer: UnsafeCell<Option<Answered>>,
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
// `Answered` is `Send`, so it may go from one to the other.
unsafe impl Sync for Mailbox {}

const _: () = {
    const fn is_send<T: Send>() {}
    is_send::<Answered>();
};

impl Mailbox {
    fn new(owner: Thread) -> Self {
        Self { answer: UnsafeCell::new(None), state: AtomicU8::new(EMPTY), bell: Bell::new(move || owner.unpark()) }
    }

    /// Gives the answer. Once per ask: the slot sees to that.
    pub fn put(&self, answered: Answered) {
        let free = self.state.compare_exchange(EMPTY, WRITING, Ordering::Acquire, Ordering::Relaxed).is_ok();
        assert!(free, "an ask is answered at most once, and the next one is opened when its mailbox is empty");
        // SAFETY: this thread made the state `WRITING`: nobody else touches the answer before it is `FULL`.
        unsafe { *self.answer.get() = Some(answered) };
        self.state.store(FULL, Ordering::Release);
        self.bell.ring();
    }

    fn is_full(&self) -> bool {
        self.state.load(Ordering::Acquire) == FULL
    }

    /// The answer, if it is there. For the mailbox's only owner.
    fn take(&self) -> Option<Answered> {
        if !self.is_full() {
            return None;
        }
        // SAFETY: the state is `FULL`, so nobody writes until it is `EMPTY` again; the owner, which is one thread, is the only one to take.
        let answer = unsafe { (*self.answer.get()).take() };
        self.state.store(EMPTY, Ordering::Release);
        answer
    }
}

/// The waiting side, which belongs to one thread.
pub struct Asker {
    mailbox: Arc<Mailbox>,
    idler: Idler,
    preset: Idle,
}

thread_local! {
    static ASKER: Cell<Option<Asker>> = const { Cell::new(None) };
}

impl Asker {
    /// The calling thread's. Taken for the time of one ask, so that an ask within an ask (from an encoder, say) has one of its own.
    pub fn take(preset: Idle) -> Self {
        match ASKER.take() {
            Some(asker) if asker.preset == preset => asker,
            _ => Self { mailbox: Arc::new(Mailbox::new(std::thread::current())), idler: Idler::new(preset), preset },
        }
    }

    /// Where the answer is to be put.
    pub fn mailbox(&self) -> Arc<Mailbox> {
        self.mailbox.clone()
    }

    /// Waits for the answer until `deadline`; `None` if it was not there by then.
    pub fn wait(&mut self, clock: &Clock, deadline: Time) -> Option<Answered> {
        match clock.wait(deadline, || self.mailbox.take()) {
            Waited::Found(answer) => return Some(answer),
            Waited::Late => return None,
            Waited::Machine => {}
        }
        for _ in 0..LOOKS {
            if self.mailbox.is_full() {
                return self.open();
            }
            std::hint::spin_loop();
        }
        loop {
            let now = sys::now();
            if self.mailbox.is_full() {
                return self.open();
            }
            if now >= deadline {
                return None;
            }
            match self.idler.rest(now) {
                Rest::Spin => std::hint::spin_loop(),
                Rest::Yield => {
                    std::thread::yield_now();
                    self.idler.yielded(now, sys::now());
                }
                Rest::Park => {
                    self.mailbox.bell.announce_sleep();
                    if !self.mailbox.is_full() {
                        std::thread::park_timeout(deadline.since(now));
                    }
                    self.mailbox.bell.awake();
                }
            }
        }
    }

    /// Waits for an answer that is on its way: somebody else took the slot.
    pub fn wait_on(&mut self, clock: &Clock) -> Option<Answered> {
        self.wait(clock, Time::MAX)
    }

    fn open(&mut self) -> Option<Answered> {
        self.idler.worked(sys::now());
        self.mailbox.take()
    }

    /// Keeps it for the thread's next ask. Not for one whose answer may still come.
    pub fn keep(self) {
        // Fails only while the thread is torn down.
        let _ = ASKER.try_with(|slot| slot.set(Some(self)));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{engine::message::AnyMessage, proto::handoff::ReplyBody};

    #[test]
    fn an_answer_reaches_a_waiting_thread_whether_it_yields_or_sleeps() {
        for preset in [Idle::LowLatency, Idle::Balanced, Idle::LowCpu] {
            for round in 0..500u64 {
                let mut asker = Asker::take(preset);
                let mailbox = asker.mailbox();
                let other = std::thread::spawn(move || mailbox.put(Answered::Typed(AnyMessage::new(round))));
                let Some(Answered::Typed(answer)) = asker.wait(&Clock::Machine, sys::now() + Duration::from_secs(20)) else {
                    panic!("no answer in round {round}")
                };
                assert_eq!(answer.take::<u64>().ok(), Some(round));
                other.join().unwrap();
                asker.keep();
            }
        }
    }

    #[test]
    fn the_deadline_ends_waiting_and_a_late_answer_can_be_waited_for() {
        let mut asker = Asker::take(Idle::Balanced);
        assert!(asker.wait(&Clock::Machine, sys::now()).is_none());
        asker.mailbox().put(Answered::Wire(ReplyBody::NoReply));
        assert!(matches!(asker.wait_on(&Clock::Machine), Some(Answered::Wire(ReplyBody::NoReply))));
    }
}
