//! What the lock-free structures of the engine are made of. They name it by `super::sync`, so that the crate `loom/` can put in what loom checks
//! instead, and runs these very sources.

/// What a bell keeps its state in. By a name of its own, as loom has to be told more of it.
pub use std::sync::atomic::AtomicU8 as BellState;
pub use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering, fence},
};
use std::{
    cell,
    sync::{Once, atomic::compiler_fence},
};

pub use crossbeam::queue::ArrayQueue;

use super::sys;

/// Whether the system can have all threads of this process pass a fence at once.
static CAN_FENCE_ALL: OnceLock<bool> = OnceLock::new();

/// Two full fences between a store and a look, one on each side, so that one of the sides sees the other's store (Dekker).
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Fences {
    /// Both sides pay for their own.
    Even,
    /// The side that is passed seldom pays for both, by a call that interrupts the threads of this process that run at that moment. The other
    /// one costs nothing: what is between its store and its look then waits for no line of another core's.
    Uneven,
}

impl Fences {
    /// As uneven as the system lets them be. Decided once for a process, which may take milliseconds.
    pub fn uneven() -> Self {
        if *CAN_FENCE_ALL.get_or_init(sys::can_fence_all) { Self::Uneven } else { Self::Even }
    }

    /// That of the side that is passed often.
    #[inline(always)]
    pub fn often(self) {
        match self {
            Self::Even => fence(Ordering::SeqCst),
            Self::Uneven => compiler_fence(Ordering::SeqCst),
        }
    }

    /// That of the side that is passed seldom. False: the system has refused what it had promised, so the sides may miss each other this time.
    #[must_use]
    pub fn seldom(self) -> bool {
        match self {
            Self::Even => {
                fence(Ordering::SeqCst);
                true
            }
            Self::Uneven => {
                let fenced = sys::fence_all();
                if !fenced {
                    static SAID: Once = Once::new();
                    SAID.call_once(|| tracing::warn!(target: "wingbeat::engine", "the system refuses `membarrier`, which it has allowed before: threads that have nothing to do look for work each millisecond; allow the call, or set `node.idle = \"low_cpu\"`, which does without"));
                }
                fenced
            }
        }
    }
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
#[derive(Clone)]
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

/// The word there, `at` bytes into the noted memory.
///
/// # Safety
/// Four bytes that are aligned to four and live as long as what is noted; as long as the reference is used nobody uses them but as such a word.
#[inline(always)]
pub unsafe fn word(_noted: &Noted, _at: usize, place: *mut u8) -> &AtomicU32 {
    // SAFETY: the caller's promise.
    unsafe { AtomicU32::from_ptr(place.cast()) }
}
