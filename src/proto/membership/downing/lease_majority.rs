//! `lease-majority`: the side whose leader gets a lease outside the cluster lives; the larger side asks first.
//!
//! The lease is given to one at a time, so two sides cannot both get it while it is held. What remains is time: the side that won must hold
//! it until the other one has asked in vain, or may ask no more. All waiting times follow from `lag`, by which two sides begin to see the
//! same split apart at most, and from the length of a heartbeat; see [`Waits`].

use std::{cmp::Ordering, time::Duration};

use super::{Decision, Voter, keep_majority};

/// The side with fewer members asks later; of two equal ones that without the lowest address.
pub(super) fn decide(voters: &[Voter]) -> Decision {
    let count = |reachable: bool| voters.iter().filter(|v| v.reachable == reachable && v.counts()).count();
    let late = match count(true).cmp(&count(false)) {
        Ordering::Greater => false,
        Ordering::Less => true,
        Ordering::Equal => keep_majority::first(voters, Voter::counts)
            .or_else(|| keep_majority::first(voters, |_| true))
            .is_some_and(|lowest| !lowest.reachable),
    };
    Decision::AskLease { late }
}

/// What the sides of a split wait for, counted from when a side first lost somebody (`f`) unless said otherwise.
///
/// A side that stands still asks at `f + stable` or later; the smaller one `late` after that. Who could not ask by then, because its
/// picture never stood still or the lease gave no answer, asks once more at `f + forced`, and never after `f + last_ask`. Two sides have
/// their `f` at most `lag` apart. So from the moment at which one side has got the lease, at `f + stable` at the earliest, the other one has
/// its answer within `apart`, and the lease is held for longer than that.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct Waits {
    /// The smaller side waits so long more.
    pub(crate) late: Duration,
    /// An answer that takes longer is no answer.
    pub(crate) answer: Duration,
    /// Between two tries.
    pub(crate) again: Duration,
    /// From `f`: asks, whether the picture stands still or not.
    pub(crate) forced: Duration,
    /// From `f`: asks no more.
    pub(crate) last_ask: Duration,
    /// From the first side's decision to the last side's.
    pub(crate) apart: Duration,
    /// From the grant: held so long.
    pub(crate) hold: Duration,
}

impl Waits {
    pub(crate) fn new(stable: Duration, lag: Duration, heartbeat: Duration) -> Self {
        let (late, answer, again) = (2 * heartbeat, 2 * heartbeat, heartbeat);
        let forced = stable + lag + late;
        let last_ask = forced + again;
        let apart = last_ask + answer + lag - stable;
        // Clocks of the sides and of the lease do not run alike.
        let hold = apart + 2 * heartbeat;
        Self { late, answer, again, forced, last_ask, apart, hold }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::tests::split, *};

    #[test]
    fn the_smaller_side_asks_later() {
        for (text, late) in [
            ("A,C,E|B,D", false),
            ("B,D|A,C,E", true),
            ("A,B|C,D", false),
            ("C,D|A,B", true),
            // Joining members are not counted.
            ("A,B|C,d,e,f", false),
            ("C,d,e,f|A,B", true),
            ("a|b", false),
            ("b|a", true),
        ] {
            assert_eq!(decide(&split(text)), Decision::AskLease { late }, "{text}");
        }
    }

    /// Every pair of sides, on a grid of when each begins to see the split, how long each takes to ask and how long answers take: the
    /// second side has its answer while the first one holds the lease.
    #[test]
    fn the_lease_is_held_until_the_other_side_has_its_answer() {
        let beat = Duration::from_secs(1);
        let lag = 4 * beat + 2 * beat;
        for stable in [7, 10, 30].map(|n| n * beat) {
            let w = Waits::new(stable, lag, beat);
            assert!(stable + w.late < w.forced, "a side that stands still from the start is not forced");
            for apart in 0..=6 {
                for first_asks in [stable, w.forced] {
                    for (second_asks, answered) in [(stable + w.late, Duration::ZERO), (w.forced, w.answer), (w.last_ask, w.answer)] {
                        // The first side's loss is at 0, the second one's up to `lag` later.
                        let (given, refused) = (first_asks, apart * beat + second_asks + answered);
                        assert!(refused < given + w.hold, "{stable:?}, {apart}: {given:?} {refused:?}");
                        assert!(refused.saturating_sub(given) <= w.apart);
                    }
                }
            }
        }
    }
}
