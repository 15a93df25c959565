//! How a producer wakes a consumer that sleeps. Checked by `loom/tests/bell.rs`.

use crossbeam::utils::CachePadded;

use super::sync::{AtomicBool, Ordering, fence, heavy_fence, light_fence};

/// Rings a sleeping consumer awake, and costs a load when it is awake.
///
/// The consumer announces sleep (store), then looks at its queues once more; a producer publishes, then looks whether sleep was
/// announced. A sequentially consistent fence between the two steps of each side makes one of them see the other (Dekker): either the
/// consumer finds the item, or the producer finds the sleeper. A consumer that sleeps seldom pays for both where the system lets it.
pub struct Bell {
    asleep: CachePadded<AtomicBool>,
    /// Both sides pay.
    shared: bool,
    wake: Box<dyn Fn() + Send + Sync>,
}

impl Bell {
    /// For a consumer that sleeps seldom. `wake` must make it return from its sleep, or from its next one.
    pub fn new(wake: impl Fn() + Send + Sync + 'static) -> Self {
        Self { asleep: CachePadded::new(AtomicBool::new(false)), shared: false, wake: Box::new(wake) }
    }

    /// For a consumer that sleeps whenever it has nothing to do, perhaps after each message.
    pub fn of_light_sleeper(wake: impl Fn() + Send + Sync + 'static) -> Self {
        Self { shared: true, ..Self::new(wake) }
    }

    /// Called by producers after publishing. True if a sleeper was woken.
    #[inline]
    pub fn ring(&self) -> bool {
        if self.shared {
            fence(Ordering::SeqCst)
        } else {
            light_fence()
        }
        if self.asleep.load(Ordering::Relaxed) && self.asleep.swap(false, Ordering::AcqRel) {
            (self.wake)();
            return true;
        }
        false
    }

    /// Called by the consumer before its last look at the queues.
    pub fn announce_sleep(&self) {
        self.asleep.store(true, Ordering::Relaxed);
        if self.shared { fence(Ordering::SeqCst) } else { heavy_fence() }
    }

    /// Called by the consumer when it is awake again, or found something after all.
    pub fn awake(&self) {
        self.asleep.store(false, Ordering::Relaxed);
    }
}
