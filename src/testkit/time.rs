//! Virtual time, and who passes it on a thread.

use std::{
    cell::RefCell,
    rc::{Rc, Weak},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread::ThreadId,
};

use crate::{
    Time,
    engine::clock::{Clock, VirtualTime},
};

/// Where every virtual clock begins.
const BEGIN: Time = Time::from_nanos(1_000_000_000);

/// Makes things happen in virtual time, on one thread.
pub(super) trait Driver {
    /// See [`VirtualTime::pass`].
    fn pass(&self, until: Time);
}

/// A clock that its driver moves.
#[derive(Debug)]
pub(super) struct Ticker {
    now: AtomicU64,
    home: ThreadId,
    /// Names its driver on that thread.
    number: u64,
}

static NUMBERS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static DRIVERS: RefCell<Vec<(u64, Weak<dyn Driver>)>> = const { RefCell::new(Vec::new()) };
}

impl Ticker {
    /// A clock at its beginning, which belongs to the calling thread.
    pub fn new() -> Arc<Self> {
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        Arc::new(Self { now: AtomicU64::new(BEGIN.as_nanos()), home: std::thread::current().id(), number })
    }

    /// The clock for a node.
    pub fn clock(self: &Arc<Self>) -> Clock {
        Clock::Virtual(self.clone())
    }

    /// Says who passes time, for as long as the driver lives.
    pub fn driven_by(&self, driver: &Rc<impl Driver + 'static>) {
        let driver: Weak<dyn Driver> = Rc::downgrade(&(driver.clone() as Rc<dyn Driver>));
        DRIVERS.with_borrow_mut(|drivers| {
            drivers.retain(|(_, driver)| driver.strong_count() > 0);
            drivers.push((self.number, driver));
        });
    }

    /// The moment it is.
    pub fn now(&self) -> Time {
        Time::from_nanos(self.now.load(Ordering::Acquire))
    }

    /// Moves the clock, never back.
    pub fn set(&self, now: Time) {
        self.now.fetch_max(now.as_nanos(), Ordering::AcqRel);
    }

    /// How long it has run.
    pub fn elapsed(&self) -> std::time::Duration {
        self.now().since(BEGIN)
    }
}

impl VirtualTime for Ticker {
    fn now(&self) -> Time {
        Ticker::now(self)
    }

    fn pass(&self, until: Time) {
        assert!(
            std::thread::current().id() == self.home,
            "a call that waits in virtual time came from another thread than the one that made the world: nodes in virtual time have no \
             threads of their own, so only that one can pass time; use `World::real` for a test with threads"
        );
        let driver = DRIVERS.try_with(|drivers| {
            let drivers = drivers.borrow();
            drivers.iter().find(|(number, _)| *number == self.number).and_then(|(_, driver)| driver.upgrade())
        });
        match driver.ok().flatten() {
            Some(driver) => driver.pass(until),
            // Whoever moved this clock is gone: nothing happens any longer, so the wait is over.
            None => self.set(until),
        }
    }
}
