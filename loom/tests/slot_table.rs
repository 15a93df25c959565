//! An ask is answered once, by one thread, whoever tries: its reply, its deadline, the end of its peer.

use std::sync::Mutex;

use loom::thread;
use wingbeat_loom::{
    deadlines::COARSE,
    faults::{Fault, check, must_find},
    slot_table::{SlotTable, UNTIMED},
    sync::Arc,
};

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Two threads answer the same ask while a third opens the next, which gets its slot if it is free by then.
fn race() {
    let table = Arc::new(SlotTable::new(1, COARSE));
    let ask = table.open(Box::new(1u32), UNTIMED).unwrap();
    let takers: Vec<_> = (0..2)
        .map(|_| {
            let table = table.clone();
            thread::spawn(move || {
                table.take(ask).is_some_and(|waiter| {
                    assert_eq!(*waiter, 1, "an answer does not reach the waiter of the slot's next ask");
                    true
                })
            })
        })
        .collect();
    let next = table.open(Box::new(2u32), UNTIMED);
    let taken = takers.into_iter().map(|taker| taker.join().unwrap()).filter(|taken| *taken).count();
    assert_eq!(taken, 1);
    if let Some(next) = next {
        assert!(next != ask && table.is_open(next) && !table.is_open(ask));
        assert_eq!(table.take(next).as_deref(), Some(&2));
    }
    assert_eq!(table.in_flight(), 0);
}

/// The opener hands the ask on by a queue of no memory order at all, and another thread answers it.
fn handed_over() {
    let table = Arc::new(SlotTable::new(1, COARSE));
    let name = Arc::new(loom::sync::atomic::AtomicU64::new(u64::MAX));
    let (theirs, named) = (table.clone(), name.clone());
    let taker = thread::spawn(move || {
        let ask = named.load(loom::sync::atomic::Ordering::Relaxed);
        theirs.take(ask).is_some()
    });
    let ask = table.open(Box::new(1u32), UNTIMED).unwrap();
    name.store(ask, loom::sync::atomic::Ordering::Relaxed);
    let taken = taker.join().unwrap();
    assert_eq!(table.take(ask).is_none(), taken);
}

/// Two threads reserve and release slots, of which there is one for each, and which are made only then: neither gets the other's, and none is lost.
fn reused() {
    let table = Arc::new(SlotTable::new(2, COARSE));
    let twice = |table: &SlotTable<Box<u32>>, mine: u32| {
        for value in [mine, mine + 1] {
            let ask = table.open(Box::new(value), UNTIMED).expect("each thread has one at a time");
            assert_eq!(table.take(ask).as_deref(), Some(&value));
        }
    };
    let theirs = table.clone();
    let other = thread::spawn(move || twice(&theirs, 10));
    twice(&table, 20);
    other.join().unwrap();
    assert!(table.open(Box::new(1), UNTIMED).is_some() && table.open(Box::new(2), UNTIMED).is_some());
    assert!(table.open(Box::new(3), UNTIMED).is_none());
}

/// A thread asks again in its seat while another one still takes out who waited there.
fn seated() {
    let table = Arc::new(SlotTable::new(1, COARSE));
    let mut seat = table.sit().expect("there is one");
    assert!(table.sit().is_none());
    let ask = table.open_at(&mut seat, Box::new(1u32)).unwrap();
    let theirs = table.clone();
    let taker = thread::spawn(move || assert_eq!(theirs.take(ask).as_deref(), Some(&1)));
    let mut waiter = Box::new(2);
    let next = loop {
        match table.open_at(&mut seat, waiter) {
            Ok(next) => break next,
            Err(back) => waiter = back,
        }
        thread::yield_now();
    };
    assert!(table.take(ask).is_none());
    assert_eq!(table.take(next).as_deref(), Some(&2));
    taker.join().unwrap();
    table.leave(seat);
    assert!(table.sit().is_some());
}

#[test]
fn an_ask_is_answered_once_and_an_old_answer_misses_the_next_ask() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(|e| e.into_inner());
    check(Some(3), race);
    check(None, handed_over);
    check(Some(3), reused);
    check(Some(3), seated);
}

#[test]
fn a_torn_exchange_or_one_without_order_is_found() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(|e| e.into_inner());
    must_find(Fault::TornExchange, Some(3), race);
    must_find(Fault::NoRelease, None, handed_over);
    must_find(Fault::NoAcquire, None, handed_over);
    must_find(Fault::NoRelease, Some(3), seated);
    must_find(Fault::NoAcquire, Some(3), seated);
}
