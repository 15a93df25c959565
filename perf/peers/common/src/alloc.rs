//! Weighs what is in use while a measurement asks for it. Costs the look at one word per allocation otherwise.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicBool, AtomicI64, Ordering},
};

/// The system's allocator with a scale.
pub struct Weighing;

static ON: AtomicBool = AtomicBool::new(false);
static IN_USE: AtomicI64 = AtomicI64::new(0);

/// A block of the usual allocators: 8 bytes of its own, and a multiple of 16 in all.
fn block(size: usize) -> i64 {
    (size + 8).next_multiple_of(16).max(32) as i64
}

fn note(change: i64) {
    if ON.load(Ordering::Relaxed) {
        IN_USE.fetch_add(change, Ordering::Relaxed);
    }
}

// SAFETY: every call is passed on unchanged to the system's allocator, which keeps the contract; the scale is static atomics and allocates nothing.
unsafe impl GlobalAlloc for Weighing {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(block(layout.size()));
        // SAFETY: the caller keeps the contract of the call passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        note(-block(layout.size()));
        // SAFETY: `ptr` came from `System` with this layout.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        note(block(new_size) - block(layout.size()));
        // SAFETY: `ptr` came from `System` with this layout, and the caller vouches for `new_size`.
        unsafe { System.realloc(ptr, layout, new_size) }
    }
}

/// Bytes that the whole process has in use behind `work` and had not before, each block rounded up to what an allocator needs for it.
pub async fn weighed<R>(work: impl Future<Output = R>) -> (R, i64) {
    let before = IN_USE.load(Ordering::Relaxed);
    ON.store(true, Ordering::Relaxed);
    let result = work.await;
    ON.store(false, Ordering::Relaxed);
    (result, IN_USE.load(Ordering::Relaxed) - before)
}
