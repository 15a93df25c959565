//! The answer reaches the thread that waits for it, asleep or awake, ask after ask.

use std::sync::Mutex;

use loom::thread;
use wingbeat_loom::{
    bell::Bell,
    faults::{Fault, check, must_find},
    mailbox::Inbox,
};

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn inbox() -> Inbox<Box<u32>> {
    let owner = thread::current();
    Inbox::new(Bell::new(move || owner.unpark()))
}

fn asks(n: u32) {
    let mut inbox = inbox();
    for ask in 0..n {
        let place = inbox.lend().expect("the answer before was taken");
        // Not joined: the bell of one answer may come while the next one is waited for.
        thread::spawn(move || place.put(Box::new(ask)));
        let answer = loop {
            if let Some(answer) = inbox.take() {
                break answer;
            }
            assert!(inbox.mailbox().bell().announce_sleep());
            if !inbox.mailbox().is_full() {
                thread::park();
            }
            inbox.mailbox().bell().awake();
        };
        assert_eq!(*answer, ask);
    }
}

/// An ask ends without an answer, by whichever thread, and the next one has its answer.
fn given_up() {
    let mut inbox = inbox();
    let place = inbox.lend().expect("nobody has it");
    let other = thread::spawn(move || drop(place));
    let place = loop {
        match inbox.lend() {
            Some(place) => break place,
            None => thread::yield_now(),
        }
    };
    assert!(inbox.lend().is_none(), "one at a time");
    place.put(Box::new(7));
    assert_eq!(inbox.take().as_deref(), Some(&7));
    other.join().unwrap();
}

#[test]
fn a_waiting_thread_gets_each_answer() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(|e| e.into_inner());
    check(None, || asks(1));
    check(Some(3), || asks(2));
    check(Some(3), given_up);
}

#[test]
fn a_mailbox_without_order_or_fences_is_found() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(|e| e.into_inner());
    for fault in [Fault::NoRelease, Fault::NoAcquire, Fault::NoFences] {
        must_find(fault, None, || asks(1));
    }
}
