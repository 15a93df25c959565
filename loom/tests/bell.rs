//! No wake-up is lost: a consumer that sleeps is woken by whoever brings something.

use std::sync::Mutex;

use loom::thread;
use wingbeat_loom::{
    bell::Bell,
    faults::{Fault, check, must_find},
    sync::{Arc, AtomicBool, Ordering},
};

/// Faults are planted for the whole program.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// So many producers bring one thing each; the consumer sleeps, as the engine's threads do, until all are there. Loom fails if it sleeps for ever.
fn sleeper(producers: usize) {
    let consumer = thread::current();
    let bell = Arc::new(Bell::new(move || consumer.unpark()));
    let things: Vec<Arc<AtomicBool>> = (0..producers).map(|_| Arc::new(AtomicBool::new(false))).collect();
    let threads: Vec<_> = things
        .iter()
        .map(|thing| {
            let (bell, thing) = (bell.clone(), thing.clone());
            thread::spawn(move || {
                // Nothing but the fence of the bell stands between this store and the look at the sleeper.
                thing.store(true, Ordering::Relaxed);
                bell.ring();
            })
        })
        .collect();
    let all_there = || things.iter().all(|thing| thing.load(Ordering::Relaxed));
    while !all_there() {
        assert!(bell.announce_sleep());
        if !all_there() {
            thread::park();
        }
        bell.awake();
    }
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn a_sleeper_is_woken_by_each_of_two_producers() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(|e| e.into_inner());
    check(Some(3), || sleeper(2));
    check(None, || sleeper(1));
}

#[test]
fn without_the_fences_a_wake_up_is_lost() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(|e| e.into_inner());
    must_find(Fault::NoFences, None, || sleeper(1));
}

/// A consumer ends while a producer brings something: it finds it in its very last look, or the producer finds that it is gone.
fn last_look() {
    let bell = Arc::new(Bell::new(|| unreachable!("it does not sleep")));
    let thing = Arc::new(AtomicBool::new(false));
    let producer = thread::spawn({
        let (bell, thing) = (bell.clone(), thing.clone());
        move || {
            thing.store(true, Ordering::Relaxed);
            bell.is_awake() || !bell.is_gone()
        }
    });
    assert!(bell.announce_end());
    let found = thing.load(Ordering::Relaxed);
    let relies_on_it = producer.join().unwrap();
    assert!(found || !relies_on_it, "nobody looks at it any more");
}

#[test]
fn what_comes_to_a_consumer_that_ends_is_seen_by_one_of_the_two() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(|e| e.into_inner());
    check(None, last_look);
    must_find(Fault::NoFences, None, last_look);
}
