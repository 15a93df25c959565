//! What the lock-free structures of the engine are made of. They name it by `super::sync`, so that the crate `loom/` can put in what loom checks
//! instead, and runs these very sources.

pub use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering, fence},
};
use std::{cell, sync::atomic::compiler_fence};

pub use crossbeam::queue::ArrayQueue;

use super::sys;

/// Whether [`heavy_fence`] does the work of both. Decided by the first one: until then light ones are full fences.
static HEAVY_DOES_BOTH: OnceLock<bool> = OnceLock::new();

/// A full fence where the other side has a [`heavy_fence`], for the side that is passed often. Costs nothing where the system can have all
/// threads of a process pass a fence at once: what is between a store and a look then waits for no line of another core's.
#[inline(always)]
pub fn light_fence() {
    if HEAVY_DOES_BOTH.get() == Some(&true) { compiler_fence(Ordering::SeqCst) } else { fence(Ordering::SeqCst) }
}

/// A full fence where the other side has a [`light_fence`], for the side that is passed seldom: it costs a call of the system, and interrupts the
/// threads of this process that run at that moment.
pub fn heavy_fence() {
    if *HEAVY_DOES_BOTH.get_or_init(sys::can_fence_all) { sys::fence_all() } else { fence(Ordering::SeqCst) }
}

/// A cell that hands out its address for the time of a call.
#[derive(Debug, Default)]
pub struct UnsafeCell<T>(cell::UnsafeCell<T>);

impl<T> UnsafeCell<T> {
    /// With that in it.
    pub const fn new(value: T) -> Self {
        Self(cell::UnsafeCell::new(value))
    }

    /// What is behind the pointer is the caller's for as long as `f` runs, if the caller says so.
    #[inline(always)]
    pub fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        f(self.0.get())
    }
}

/// Notes accesses to raw memory for loom, which does not see them by itself. Nothing at all here.
pub struct Noted;

impl Noted {
    /// For memory of so many bytes.
    #[inline(always)]
    pub fn new(_bytes: usize) -> Self {
        Self
    }

    /// `len` bytes from `at` on are read.
    #[inline(always)]
    pub fn read(&self, _at: usize, _len: usize) {}

    /// `len` bytes from `at` on are written.
    #[inline(always)]
    pub fn write(&self, _at: usize, _len: usize) {}
}
