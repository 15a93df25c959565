//! Counts allocations, or weighs what is in use, while a measurement asks for it.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicI64, AtomicU8, AtomicU64, Ordering},
};

/// The system's allocator, with counters that are off unless a measurement is on.
pub struct Counting;

/// What is counted: nothing, allocations, or bytes in use.
static MODE: AtomicU8 = AtomicU8::new(OFF);
const OFF: u8 = 0;
const COUNTS: u8 = 1;
const WEIGHS: u8 = 2;

static COUNT: AtomicU64 = AtomicU64::new(0);
static IN_USE: AtomicI64 = AtomicI64::new(0);

/// A block of the usual allocators: 8 bytes of its own, and a multiple of 16 in all.
fn block(size: usize) -> i64 {
    i64::try_from((size + 8).next_multiple_of(16).max(32)).unwrap_or(i64::MAX)
}

fn note(freed: Option<usize>, taken: Option<usize>) {
    match MODE.load(Ordering::Relaxed) {
        COUNTS if taken.is_some() => {
            COUNT.fetch_add(1, Ordering::Relaxed);
        }
        WEIGHS => {
            IN_USE.fetch_add(taken.map_or(0, block) - freed.map_or(0, block), Ordering::Relaxed);
        }
        _ => {}
    }
}

// SAFETY: every call is passed on unchanged to the system's allocator, which keeps the contract; counting touches static atomics and
// allocates nothing. Used by every test of this binary.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(None, Some(layout.size()));
        // SAFETY: the caller keeps `alloc`'s contract, which is that of the call passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        note(Some(layout.size()), None);
        // SAFETY: `ptr` came from `System` with this layout, as every allocation of this allocator does.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        note(Some(layout.size()), Some(new_size));
        // SAFETY: `ptr` came from `System` with this layout, and the caller vouches for `new_size`.
        unsafe { System.realloc(ptr, layout, new_size) }
    }
}

/// Allocations of the whole process while `f` runs.
pub fn counted<R>(f: impl FnOnce() -> R) -> (R, u64) {
    let before = COUNT.load(Ordering::Relaxed);
    let result = while_it(COUNTS, f);
    (result, COUNT.load(Ordering::Relaxed) - before)
}

/// Bytes that the whole process has in use behind `f` and had not before, each block rounded up to what an allocator needs for it.
pub fn weighed<R>(f: impl FnOnce() -> R) -> (R, i64) {
    let before = IN_USE.load(Ordering::Relaxed);
    let result = while_it(WEIGHS, f);
    (result, IN_USE.load(Ordering::Relaxed) - before)
}

fn while_it<R>(mode: u8, f: impl FnOnce() -> R) -> R {
    MODE.store(mode, Ordering::Relaxed);
    let result = f();
    MODE.store(OFF, Ordering::Relaxed);
    result
}
