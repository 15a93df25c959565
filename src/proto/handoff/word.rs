//! The routing word of a shard.

use std::fmt;

use crate::Epoch;

/// What producers load to choose an exit: "elsewhere", or the local worker and the epoch of the stay.
///
/// Layout of the `u64`: 0 = elsewhere, 1 = elsewhere and no room on the way there; otherwise worker + 1 in the upper 24 bits, epoch in the
/// lower 40.
#[derive(Copy, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Word(u64);

impl Word {
    /// The exit is the network thread.
    pub const ELSEWHERE: Self = Self(0);

    /// The exit is the ring of the network thread, and producers are to give messages back to their senders: the link has no room.
    pub const NO_ROOM: Self = Self(1);

    /// The exit is the ring of `worker`, for the stay that contains `epoch`.
    pub const fn local(worker: u16, epoch: Epoch) -> Self {
        Self((worker as u64 + 1) << 40 | epoch.get())
    }

    /// The word from the bits that were published.
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// The bits to publish.
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// Worker and epoch; `None` = elsewhere.
    pub const fn exit(self) -> Option<(u16, Epoch)> {
        if self.0 >> 40 == 0 { None } else { Some(((self.0 >> 40) as u16 - 1, Epoch(self.0 & Epoch::MAX.get()))) }
    }
}

impl fmt::Debug for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.exit() {
            None if *self == Self::NO_ROOM => f.write_str("elsewhere, no room"),
            None => f.write_str("elsewhere"),
            Some((worker, epoch)) => write!(f, "worker {worker} at {}", epoch.get()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn worker_and_epoch_fit_side_by_side() {
        for (worker, epoch) in [(0, Epoch(1)), (u16::MAX - 1, Epoch::MAX), (3, Epoch(7))] {
            assert_eq!(Word::local(worker, epoch).exit(), Some((worker, epoch)));
        }
        assert_eq!((Word::ELSEWHERE.exit(), Word::NO_ROOM.exit()), (None, None));
    }
}
