//! The answer reaches the thread that waits for it, asleep or awake, ask after ask.

use std::sync::Mutex;

use loom::thread;
use wingbeat_loom::{
    bell::Bell,
    faults::{Fault, check, must_find},
    mailbox::Mailbox,
    sync::Arc,
};

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn asks(n: u32) {
    let owner = thread::current();
    let mailbox = Arc::new(Mailbox::new(Bell::new(move || owner.unpark())));
    for ask in 0..n {
        let theirs = mailbox.clone();
        // Not joined: the bell of one answer may come while the next one is waited for.
        thread::spawn(move || theirs.put(Box::new(ask)));
        let answer = loop {
            if let Some(answer) = mailbox.take() {
                break answer;
            }
            assert!(mailbox.bell().announce_sleep());
            if !mailbox.is_full() {
                thread::park();
            }
            mailbox.bell().awake();
        };
        assert_eq!(*answer, ask);
    }
}

#[test]
fn a_waiting_thread_gets_each_answer() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(|e| e.into_inner());
    check(None, || asks(1));
    check(Some(3), || asks(2));
}

#[test]
fn a_mailbox_without_order_or_fences_is_found() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(|e| e.into_inner());
    for fault in [Fault::NoRelease, Fault::NoAcquire, Fault::NoFences] {
        must_find(fault, None, || asks(1));
    }
}
