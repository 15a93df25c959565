//! How long the admin thread waits for room in queues on behalf of its clients.
//!
//! A burst that is faster than the workers finds room in a moment. Behind a node that stands still there is none for many seconds, and each request would
//! be held up by its whole allowance, one after the other, on the thread that answers every other request. So who has waited in vain is a warning to
//! those that come next: they do not wait, for as long as that one did.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Of one server.
#[derive(Debug, Default)]
pub(super) struct Patience {
    /// None is left until then.
    gone_until: Mutex<Option<Instant>>,
}

impl Patience {
    /// Until when a request that begins now may wait for room, of the `allowance` that it has.
    pub fn room(&self, now: Instant, allowance: Duration) -> Instant {
        let gone = self.gone_until.lock().is_some_and(|until| now < until);
        if gone { now } else { now + allowance }
    }

    /// One with that `allowance` has waited in vain.
    pub fn in_vain(&self, now: Instant, allowance: Duration) {
        *self.gone_until.lock() = Some(now + allowance);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_comes_behind_one_that_waited_in_vain_does_not_wait() {
        let (patience, began, second) = (Patience::default(), Instant::now(), Duration::from_secs(1));
        assert_eq!(patience.room(began, second), began + second);
        let vain = began + second;
        patience.in_vain(vain, second);
        assert_eq!(patience.room(vain, second), vain);
        assert_eq!(patience.room(vain + second / 2, second), vain + second / 2);
        assert_eq!(patience.room(vain + second, second), vain + 2 * second, "and then somebody tries again");
    }
}
