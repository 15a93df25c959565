//! Virtual time, and who passes it on a thread.

use std::{
    cell::RefCell,
    rc::{Rc, Weak},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread::ThreadId,
    time::Duration,
};

use crate::{
    Time,
    engine::clock::{Clock, VirtualTime},
};

/// Where every virtual clock begins.
const BEGIN: Time = Time::from_nanos(1_000_000_000);

/// The least that time moves on when nobody has anything to do.
const TICK: Duration = Duration::from_nanos(1);

/// Makes things happen in virtual time, on one thread.
pub(super) trait Driver {
    /// Does what there is to do at this moment, or some of it. How long that takes; `None` if there was nothing to do.
    fn step(&self) -> Option<Duration>;
    /// When there is something to do again.
    fn due(&self) -> Option<Time>;
}

/// A clock that its driver moves.
#[derive(Debug)]
pub(super) struct Ticker {
    now: AtomicU64,
    home: ThreadId,
    /// Names its drivers on that thread.
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

    /// Says for whom time passes, for as long as the driver lives.
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
    pub fn elapsed(&self) -> Duration {
        self.now().since(BEGIN)
    }

    fn drivers(&self) -> Vec<Rc<dyn Driver>> {
        let find = |drivers: &RefCell<Vec<(u64, Weak<dyn Driver>)>>| {
            drivers.borrow().iter().filter(|(number, _)| *number == self.number).filter_map(|(_, driver)| driver.upgrade()).collect()
        };
        // Fails only while the thread is torn down, and all drivers with it.
        DRIVERS.try_with(find).unwrap_or_default()
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
        let drivers = self.drivers();
        let took = drivers.iter().filter_map(|driver| driver.step()).max();
        let next = match took {
            Some(took) => self.now() + took,
            // Without drivers nothing happens any longer, and the wait is over.
            None => drivers.iter().filter_map(|driver| driver.due()).min().map_or(until, |due| due.max(self.now() + TICK)),
        };
        self.set(next.min(until));
    }
}
