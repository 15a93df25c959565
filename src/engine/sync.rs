//! What the lock-free structures of the engine are made of. They name it by `super::sync`, so that the crate `loom/` can put in what loom checks
//! instead, and runs these very sources.

use std::cell;
pub use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering, fence},
};

pub use crossbeam::queue::ArrayQueue;

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
