//! How a producer wakes a consumer that sleeps. Checked by `loom/tests/bell.rs`.

use crossbeam::utils::CachePadded;

use super::sync::{AtomicBool, Fences, Ordering};

/// Rings a sleeping consumer awake, and costs a fence and a load when it is awake; only the load, if the consumer seldom sleeps and the system
/// lets it pay for both fences.
///
/// The consumer announces sleep (store), then looks at its queues once more; a producer publishes, then looks whether sleep was
/// announced. A sequentially consistent fence between the two steps of each side makes one of them see the other (Dekker): either the
/// consumer finds the item, or the producer finds the sleeper.
pub struct Bell {
    asleep: CachePadded<AtomicBool>,
    fences: Fences,
    wake: Box<dyn Fn() + Send + Sync>,
}

impl Bell {
    /// `wake` must make the consumer return from its sleep, or from its next one.
    pub fn new(wake: impl Fn() + Send + Sync + 'static) -> Self {
        Self { asleep: CachePadded::new(AtomicBool::new(false)), fences: Fences::Even, wake: Box::new(wake) }
    }

    /// For a consumer that gets many messages between two sleeps.
    pub fn of_sound_sleeper(wake: impl Fn() + Send + Sync + 'static) -> Self {
        Self { fences: Fences::uneven(), ..Self::new(wake) }
    }

    /// Called by producers after publishing. True if a sleeper was woken.
    #[inline]
    pub fn ring(&self) -> bool {
        if self.is_asleep() && self.asleep.swap(false, Ordering::AcqRel) {
            (self.wake)();
            return true;
        }
        false
    }

    /// Called by producers after publishing: whether the consumer has to be woken, by [`ring`](Self::ring).
    #[inline]
    pub fn is_asleep(&self) -> bool {
        self.fences.often();
        self.asleep.load(Ordering::Relaxed)
    }

    /// Called by the consumer before its last look at the queues. False: somebody may bring something and not ring this time, so it must look
    /// again soon.
    #[must_use]
    pub fn announce_sleep(&self) -> bool {
        self.asleep.store(true, Ordering::Relaxed);
        self.fences.seldom()
    }

    /// Called by the consumer when it is awake again, or found something after all.
    pub fn awake(&self) {
        self.asleep.store(false, Ordering::Relaxed);
    }
}
