//! Faults that are planted into the atomics, so that each model shows that it would find them.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::atomic::{AtomicU8, Ordering},
};

/// What is wrong.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Fault {
    /// Nothing.
    None,
    /// Fences do nothing.
    NoFences,
    /// Stores that release are relaxed.
    NoRelease,
    /// Loads that acquire are relaxed.
    NoAcquire,
    /// An exchange is a load and a store.
    TornExchange,
}

/// Each test program runs one model at a time.
static PLANTED: AtomicU8 = AtomicU8::new(Fault::None as u8);

/// Whether that fault is planted.
pub fn planted(fault: Fault) -> bool {
    PLANTED.load(Ordering::Relaxed) == fault as u8
}

/// Runs `model` in all interleavings that differ, with at most so many preemptions in each if a number is given.
pub fn check(preemptions: Option<usize>, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions;
    builder.check(model);
}

/// Runs `model` with the fault planted. Fails if loom finds nothing wrong with it.
pub fn must_find(fault: Fault, preemptions: Option<usize>, model: impl Fn() + Sync + Send + 'static) {
    PLANTED.store(fault as u8, Ordering::Relaxed);
    let found = catch_unwind(AssertUnwindSafe(|| check(preemptions, model)));
    PLANTED.store(Fault::None as u8, Ordering::Relaxed);
    assert!(found.is_err(), "{fault:?} was planted, and the model does not see it");
}
