//! What stands in `src/engine/sync.rs`, on loom's atomics and cells, with places for faults.

use std::collections::VecDeque;

use loom::sync::atomic;
pub use loom::sync::{Arc, atomic::Ordering};

use crate::faults::{Fault, planted};

fn store_by(order: Ordering) -> Ordering {
    if order == Ordering::Release && planted(Fault::NoRelease) { Ordering::Relaxed } else { order }
}

fn load_by(order: Ordering) -> Ordering {
    if order == Ordering::Acquire && planted(Fault::NoAcquire) { Ordering::Relaxed } else { order }
}

fn change_by(order: Ordering) -> Ordering {
    match order {
        Ordering::AcqRel if planted(Fault::NoRelease) => Ordering::Acquire,
        Ordering::AcqRel if planted(Fault::NoAcquire) => Ordering::Release,
        order => load_by(store_by(order)),
    }
}

pub fn fence(order: Ordering) {
    if !planted(Fault::NoFences) {
        atomic::fence(order);
    }
}

/// Both sides fence: loom knows no call that fences for others, so which of them pays is not told apart.
#[derive(Copy, Clone)]
pub enum Fences {
    Even,
}

impl Fences {
    pub fn uneven() -> Self {
        Self::Even
    }

    pub fn often(self) {
        fence(Ordering::SeqCst);
    }

    pub fn seldom(self) -> bool {
        fence(Ordering::SeqCst);
        true
    }
}

macro_rules! atomics {
    ($($name:ident = $inner:ident of $of:ty, ordered: $ordered:literal);+) => {
        $(
            #[derive(Debug)]
            pub struct $name(atomic::$inner);

            impl $name {
                pub fn new(value: $of) -> Self {
                    Self(atomic::$inner::new(value))
                }

                pub fn load(&self, order: Ordering) -> $of {
                    self.0.load(load_by(order))
                }

                pub fn store(&self, value: $of, order: Ordering) {
                    if $ordered {
                        self.0.swap(value, store_by(order));
                    } else {
                        self.0.store(value, store_by(order));
                    }
                }

                pub fn swap(&self, value: $of, order: Ordering) -> $of {
                    if planted(Fault::TornExchange) {
                        let old = self.0.load(Ordering::Acquire);
                        self.0.store(value, Ordering::Release);
                        return old;
                    }
                    self.0.swap(value, change_by(order))
                }

                pub fn compare_exchange(&self, old: $of, new: $of, won: Ordering, lost: Ordering) -> Result<$of, $of> {
                    if planted(Fault::TornExchange) {
                        let found = self.0.load(Ordering::Acquire);
                        if found != old {
                            return Err(found);
                        }
                        self.0.store(new, Ordering::Release);
                        return Ok(found);
                    }
                    self.0.compare_exchange(old, new, change_by(won), lost)
                }
            }
        )+
    };
}

// Nothing comes between what an exchange has read and what it writes, says the memory model; loom lets a store of another thread, made later, come
// in between. A bell has both, so its stores are exchanges here.
atomics!(
    BellState = AtomicU8 of u8, ordered: true;
    AtomicBool = AtomicBool of bool, ordered: true;
    AtomicU8 = AtomicU8 of u8, ordered: false;
    AtomicU32 = AtomicU32 of u32, ordered: false;
    AtomicU64 = AtomicU64 of u64, ordered: false
);

impl AtomicU64 {
    pub fn fetch_min(&self, value: u64, order: Ordering) -> u64 {
        if planted(Fault::TornExchange) {
            let old = self.0.load(Ordering::Acquire);
            self.0.store(old.min(value), Ordering::Release);
            return old;
        }
        self.0.fetch_min(value, change_by(order))
    }
}

/// Loom fails if two threads are in it at once, or one after the other without an order between them.
#[derive(Debug)]
pub struct UnsafeCell<T>(loom::cell::UnsafeCell<T>);

impl<T> UnsafeCell<T> {
    pub fn new(value: T) -> Self {
        Self(loom::cell::UnsafeCell::new(value))
    }

    pub fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        self.0.with_mut(f)
    }
}

/// One cell for each 16 bytes of memory: loom sees who reads and writes them; and one word, for those that are looked at by both sides.
#[derive(Clone)]
pub struct Noted(std::sync::Arc<[loom::cell::UnsafeCell<()>]>, std::sync::Arc<[AtomicU32]>);

const UNIT: usize = 16;

impl Noted {
    pub fn new(bytes: usize) -> Self {
        let units = bytes.div_ceil(UNIT);
        Self((0..units).map(|_| loom::cell::UnsafeCell::new(())).collect(), (0..units).map(|_| AtomicU32::new(0)).collect())
    }

    fn units(&self, at: usize, len: usize) -> &[loom::cell::UnsafeCell<()>] {
        &self.0[at / UNIT..(at + len).div_ceil(UNIT)]
    }

    pub fn read(&self, at: usize, len: usize) {
        self.units(at, len).iter().for_each(|unit| unit.with(|_| ()));
    }

    pub fn write(&self, at: usize, len: usize) {
        self.units(at, len).iter().for_each(|unit| unit.with_mut(|_| ()));
    }
}

/// The word of the unit there.
///
/// # Safety
/// None here.
pub unsafe fn word(noted: &Noted, at: usize, _place: *mut u8) -> &AtomicU32 {
    &noted.1[at / UNIT]
}

/// What the standard library's promises: who finds a value finds all that was done before it was put there.
pub struct OnceLock<T> {
    value: std::sync::OnceLock<T>,
    there: atomic::AtomicBool,
    making: loom::sync::Mutex<()>,
}

impl<T> OnceLock<T> {
    pub fn new() -> Self {
        Self { value: std::sync::OnceLock::new(), there: atomic::AtomicBool::new(false), making: loom::sync::Mutex::new(()) }
    }

    pub fn get(&self) -> Option<&T> {
        if self.there.load(Ordering::Acquire) { self.value.get() } else { None }
    }

    pub fn get_or_init(&self, make: impl FnOnce() -> T) -> &T {
        let _one = self.making.lock().expect("no thread panics in here");
        let value = self.value.get_or_init(make);
        self.there.store(true, Ordering::Release);
        value
    }
}

/// Stands for crossbeam's queue, which has models of its own: bounded, and what is pushed happens before it is popped.
pub struct ArrayQueue<T>(loom::sync::Mutex<VecDeque<T>>, usize);

impl<T> ArrayQueue<T> {
    pub fn new(capacity: usize) -> Self {
        Self(loom::sync::Mutex::new(VecDeque::new()), capacity)
    }

    fn all(&self) -> loom::sync::MutexGuard<'_, VecDeque<T>> {
        self.0.lock().expect("no thread panics in here")
    }

    pub fn push(&self, value: T) -> Result<(), T> {
        let mut all = self.all();
        if all.len() == self.1 {
            return Err(value);
        }
        all.push_back(value);
        Ok(())
    }

    pub fn pop(&self) -> Option<T> {
        self.all().pop_front()
    }
}
