//! What the producer wrote is whole when the consumer reads it, and is not overwritten before it was read.

use std::sync::Mutex;

use loom::thread;
use wingbeat_loom::{
    faults::{Fault, check, must_find},
    ring::{Consumer, Left, Producer, copy_past, growing, push, ring},
};

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Four records of the smallest ring leave some of it at its end, so that five go round behind a gap.
const WORDS: usize = 13;
const MOST: u32 = 100;

unsafe fn discard(_: u32, _: *mut u8) {}

fn write<const WORDS: usize>(producer: &mut Producer, n: u64) -> bool {
    // SAFETY: `discard` has nothing to do for such a value, which is `Send`.
    unsafe { push::<[u64; WORDS]>(producer, 0, MOST, [n; WORDS]) }.is_ok()
}

fn read<const WORDS: usize>(consumer: &mut Consumer) -> Option<u64> {
    let (_, place) = consumer.front()?;
    // SAFETY: each record is such a value.
    let value = unsafe { place.cast::<[u64; WORDS]>().read() };
    consumer.advance();
    assert_eq!(value, [value[0]; WORDS]);
    Some(value[0])
}

/// The consumer takes so many records in order, and then there is nothing left of what the writer has written.
fn take_all<const WORDS: usize>(mut consumer: Consumer, records: u64, writer: thread::JoinHandle<()>) {
    let mut next = 0;
    while next < records {
        match read::<WORDS>(&mut consumer) {
            Some(n) => {
                assert_eq!(n, next);
                next += 1;
            }
            None => thread::yield_now(),
        }
    }
    writer.join().unwrap();
    assert!(consumer.is_empty());
}

/// The producer writes `records`, publishing behind each `batch`; the consumer takes them in order.
fn passage<const WORDS: usize>(records: u64, batch: u64) {
    // SAFETY: all records are such values.
    let (mut producer, consumer) = unsafe { ring(512, discard) };
    let writer = thread::spawn(move || {
        for n in 0..records {
            while !write::<WORDS>(&mut producer, n) {
                producer.publish();
                thread::yield_now();
            }
            if (n + 1) % batch == 0 {
                producer.publish();
            }
        }
    });
    take_all::<WORDS>(consumer, records, writer);
}

#[test]
fn records_come_out_whole_and_in_order_also_when_the_ring_goes_round() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(|e| e.into_inner());
    check(Some(3), || passage::<WORDS>(2, 1));
    check(Some(1), || passage::<WORDS>(5, 1));
    check(Some(1), || passage::<WORDS>(6, 3));
    // The consumer waits where a batch of the round before had begun.
    check(Some(1), || passage::<WORDS>(7, 1));
    // No gap at the end: what is not yet there is marked right in front of what was not taken.
    check(Some(1), || passage::<15>(6, 1));
}

/// As [`passage`], of a ring that grows in front of a record.
fn passage_into_a_larger_one(records: u64, grows_at: u64) {
    // SAFETY: all records are such values.
    let (mut producer, consumer) = unsafe { growing(1024, 1024, Left::new(1.into()), discard) };
    let writer = thread::spawn(move || {
        for n in 0..records {
            if n == grows_at {
                assert!(producer.grow());
            }
            assert!(write::<2>(&mut producer, n));
            if n % 2 == 0 {
                producer.publish();
            }
        }
    });
    take_all::<2>(consumer, records, writer);
}

/// As [`passage`], past the caches behind the first record of each batch.
fn passage_past(records: u64, batch: u64) {
    // SAFETY: all records are such values.
    let (mut producer, consumer) = unsafe { ring(512, discard) };
    let writer = thread::spawn(move || {
        for n in 0..records {
            // SAFETY: `discard` has nothing to do for such a value, which is `Send`, and has whole words; nothing but the copy is done with either.
            let written = |producer: &mut Producer| unsafe {
                let value = Value([n; WORDS]);
                producer.write_past(0, size_of::<[u64; WORDS]>(), 0, MOST, |place, past| match past {
                    true => copy_past(place, (&raw const value).cast(), WORDS),
                    false => place.cast::<[u64; WORDS]>().write(value.0),
                })
            };
            while !written(&mut producer) {
                producer.publish();
                thread::yield_now();
            }
            if (n + 1) % batch == 0 {
                producer.publish();
            }
        }
        producer.publish();
    });
    take_all::<WORDS>(consumer, records, writer);
}

#[repr(align(16))]
struct Value([u64; WORDS]);

#[test]
fn records_written_past_the_caches_come_out_whole_and_in_order() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(|e| e.into_inner());
    check(Some(2), || passage_past(3, 3));
    check(Some(1), || passage_past(6, 2));
    check(Some(1), || passage_past(7, 3));
    must_find(Fault::NoRelease, Some(2), || passage_past(2, 2));
    must_find(Fault::NoAcquire, Some(2), || passage_past(2, 2));
}

#[test]
fn records_come_out_in_order_where_the_producer_goes_on_in_a_larger_ring() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(|e| e.into_inner());
    (0..3).for_each(|grows_at| check(Some(2), move || passage_into_a_larger_one(3, grows_at)));
    // What nobody took is dropped behind both ends, in both rings.
    check(Some(2), || {
        // SAFETY: all records are such values.
        let (mut producer, mut consumer) = unsafe { growing(1024, 1024, Left::new(1.into()), discard) };
        let writer = thread::spawn(move || {
            assert!(write::<2>(&mut producer, 0));
            assert!(producer.grow());
            assert!(write::<2>(&mut producer, 1));
        });
        let first = read::<2>(&mut consumer);
        assert!(first.is_none_or(|n| n == 0));
        drop(consumer);
        writer.join().unwrap();
    });
    // All records are in the larger one.
    must_find(Fault::NoRelease, Some(2), || passage_into_a_larger_one(2, 0));
    must_find(Fault::NoAcquire, Some(2), || passage_into_a_larger_one(2, 0));
}

#[test]
fn each_side_may_end_first_and_what_nobody_took_is_dropped_behind_both() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(|e| e.into_inner());
    check(None, || {
        // SAFETY: all records are such values.
        let (mut producer, mut consumer) = unsafe { ring(512, discard) };
        let writer = thread::spawn(move || {
            assert!(write::<WORDS>(&mut producer, 0) && write::<WORDS>(&mut producer, 1));
        });
        let first = read::<WORDS>(&mut consumer);
        assert!(first.is_none_or(|n| n == 0));
        drop(consumer);
        writer.join().unwrap();
    });
}

#[test]
fn an_end_that_does_not_release_or_acquire_is_found() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(|e| e.into_inner());
    must_find(Fault::NoRelease, Some(2), || passage::<WORDS>(2, 1));
    must_find(Fault::NoAcquire, Some(2), || passage::<WORDS>(2, 1));
}
