//! Each ask with a deadline is ended by a sweep, or the sweeper knows when to come back.

use std::sync::Mutex;

use loom::thread;
use wingbeat_loom::{
    deadlines::COARSE,
    faults::{Fault, check, must_find},
    slot_table::SlotTable,
    sync::Arc,
};

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Nanoseconds of the unit that bounds are kept in.
const TICK: u64 = 1 << COARSE;

/// An ask with its deadline in the past is there; while it is swept, another one is opened, with its deadline at `due`.
fn opened_during_a_sweep(due: u64) {
    let table = Arc::new(SlotTable::new(2, COARSE));
    let old = table.open(Box::new(1u32), TICK).unwrap();
    assert!(table.watch(old, TICK), "the first deadline is the earliest");
    let theirs = table.clone();
    let opener = thread::spawn(move || {
        let ask = theirs.open(Box::new(2u32), due).unwrap();
        (ask, theirs.watch(ask, due))
    });
    table.expire(2 * TICK, |_, _| {});
    // What the sweeper goes to sleep on.
    let wakes_at = table.next_due();
    let (ask, told) = opener.join().unwrap();
    assert!(!table.is_open(old));
    let comes_back = wakes_at.is_some_and(|at| at <= due);
    assert!(!table.is_open(ask) || comes_back || told, "nobody ends the ask");
    if table.is_open(ask) {
        assert!(table.next_due().is_some_and(|at| at <= due), "the alarm is behind the deadline");
        table.expire(due, |_, _| {});
        assert!(!table.is_open(ask), "the bound of its block is behind the deadline");
    }
    assert_eq!(table.in_flight(), 0);
}

#[test]
fn no_deadline_is_forgotten() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(|e| e.into_inner());
    check(Some(3), || opened_during_a_sweep(2 * TICK));
    check(Some(3), || opened_during_a_sweep(3 * TICK));
}

#[test]
fn without_fences_or_whole_exchanges_one_is() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(|e| e.into_inner());
    must_find(Fault::NoFences, Some(3), || opened_during_a_sweep(3 * TICK));
    must_find(Fault::TornExchange, Some(3), || opened_during_a_sweep(3 * TICK));
}
