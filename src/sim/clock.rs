//! A node's monotonic clock against the clock of the world.

use super::world::BEGIN;
use crate::Time;

/// A node's monotonic clock: another start on each node, and a rate of its own.
#[derive(Copy, Clone, Debug)]
pub(super) struct Clock {
    local: u64,
    world: u64,
    /// Millionths of a local nanosecond per nanosecond.
    rate: u64,
}

impl Clock {
    pub(super) fn new(start: u64) -> Self {
        Self { local: start, world: BEGIN, rate: 1_000_000 }
    }

    pub(super) fn local(&self, world: u64) -> Time {
        if self.rate == 1_000_000 {
            return Time::from_nanos(self.local + (world - self.world));
        }
        Time::from_nanos(self.local + (u128::from(world - self.world) * u128::from(self.rate) / 1_000_000) as u64)
    }

    /// The first moment of the world at which the clock shows at least `local`.
    pub(super) fn world(&self, local: Time) -> u64 {
        let rest = local.as_nanos().saturating_sub(self.local);
        if self.rate == 1_000_000 {
            return self.world.saturating_add(rest);
        }
        let nanos = (u128::from(rest) * 1_000_000).div_ceil(u128::from(self.rate));
        self.world.saturating_add(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    pub(super) fn set(&mut self, now: u64, rate: Option<f64>, leap: u64) {
        self.local = self.local(now).as_nanos() + leap;
        self.world = now;
        if let Some(rate) = rate {
            self.rate = (rate * 1e6) as u64;
        }
    }
}
