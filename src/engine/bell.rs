//! How a producer wakes a consumer that sleeps. Checked by `loom/tests/bell.rs`.

use crossbeam::utils::CachePadded;

use super::sync::{BellState, Fences, Ordering};

/// What the consumer is.
const AWAKE: u8 = 0;
const ASLEEP: u8 = 1;
/// It has ended, and looks at nothing any more.
const GONE: u8 = 2;

/// Rings a sleeping consumer awake, and costs a fence and a load when it is awake; only the load, if the consumer seldom sleeps and the system
/// lets it pay for both fences.
///
/// The consumer announces sleep (store), then looks at its queues once more; a producer publishes, then looks whether sleep was
/// announced. A sequentially consistent fence between the two steps of each side makes one of them see the other (Dekker): either the
/// consumer finds the item, or the producer finds the sleeper. A consumer that ends does the same: either its last look finds the item, or the
/// producer finds that it is gone.
pub struct Bell {
    state: CachePadded<BellState>,
    fences: Fences,
    wake: Box<dyn Fn() + Send + Sync>,
}

impl Bell {
    /// `wake` must make the consumer return from its sleep, or from its next one.
    pub fn new(wake: impl Fn() + Send + Sync + 'static) -> Self {
        Self { state: CachePadded::new(BellState::new(AWAKE)), fences: Fences::Even, wake: Box::new(wake) }
    }

    /// For a consumer that gets many messages between two sleeps.
    pub fn of_sound_sleeper(wake: impl Fn() + Send + Sync + 'static) -> Self {
        Self { fences: Fences::uneven(), ..Self::new(wake) }
    }

    /// Called by producers after publishing. True if a sleeper was woken.
    #[inline]
    pub fn ring(&self) -> bool {
        !self.is_awake() && self.wake()
    }

    /// Called by producers after publishing. False: the consumer sleeps and has to be woken, or is gone.
    #[inline]
    pub fn is_awake(&self) -> bool {
        self.fences.often();
        self.state.load(Ordering::Relaxed) == AWAKE
    }

    /// Wakes the consumer, if it sleeps and nobody else does. True if it did.
    pub fn wake(&self) -> bool {
        let slept = self.state.compare_exchange(ASLEEP, AWAKE, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        if slept {
            (self.wake)();
        }
        slept
    }

    /// Called by who found that it is not awake: whether it has ended. What it did before it said so is seen then.
    pub fn is_gone(&self) -> bool {
        self.state.load(Ordering::Acquire) == GONE
    }

    /// Called by the consumer before its last look at the queues. False: somebody may bring something and not ring this time, so it must look
    /// again soon.
    #[must_use]
    pub fn announce_sleep(&self) -> bool {
        self.state.store(ASLEEP, Ordering::Relaxed);
        self.fences.seldom()
    }

    /// Called by the consumer when it is awake again, or found something after all.
    pub fn awake(&self) {
        self.state.store(AWAKE, Ordering::Relaxed);
    }

    /// Called by the consumer, which will not sleep any more, before the very last look at the queues. False: somebody may bring something and not see
    /// that it is gone, so somebody has to look again later.
    #[must_use]
    pub fn announce_end(&self) -> bool {
        self.state.store(GONE, Ordering::Release);
        self.fences.seldom()
    }
}
