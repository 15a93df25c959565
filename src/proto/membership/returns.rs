//! Members that came back while the other side of a split may not know.
//!
//! A cut that ends for a few heartbeats can be noticed by one side alone. If that is the side that loses, it must not begin its wait anew when the same cut
//! is there again, as the other side does not: that one would take over while this one runs. It is the same cut if all who came back are lost again, and
//! silent: nobody of a side that has missed the return is in reach then. Only a side that loses counts so, to stop; who lives waits for as long as ever.

use std::{collections::BTreeMap, time::Duration};

use super::{Membership, idmap::Cursor};
use crate::{NodeId, Time};

/// Who is in contact for so many heartbeats is held reachable on the other side too: three replies in a row show it.
const NOTICED: u32 = 3;

/// Of each that came back the last time.
#[derive(Default, Debug)]
pub(crate) struct Returns {
    of: BTreeMap<NodeId, Return>,
    /// What was known when the last of them came back: that all have seen this version does not show that they see this node.
    version: u128,
}

#[derive(Copy, Clone, Debug)]
struct Return {
    /// Since when it had been out of reach.
    lost: Time,
    /// When it was in contact again.
    met: Time,
    /// When this node heard it last; `None` if it does not observe it.
    heard: Option<Time>,
}

/// How long what takes.
#[derive(Copy, Clone, Debug)]
pub(super) struct Pace {
    heartbeat: Duration,
    /// Silence after which a loss is seen.
    patience: Duration,
}

impl Return {
    /// Whether the contact was so short that the other side may have missed it. `lost`: when it was found to be lost again.
    fn is_short(&self, lost: Time, pace: Pace) -> bool {
        let until = self.heard.unwrap_or(lost - pace.patience);
        until.since(self.met) < NOTICED * pace.heartbeat
    }

    fn is_silent(&self, now: Time, pace: Pace) -> bool {
        self.heard.is_none_or(|at| now.since(at) >= pace.patience)
    }
}

impl Returns {
    pub(super) fn is_empty(&self) -> bool {
        self.of.is_empty()
    }

    /// It lives, as this node observes.
    pub(super) fn hear(&mut self, now: Time, id: NodeId) {
        if let Some(known) = self.of.get_mut(&id) {
            known.heard = Some(now);
        }
    }

    /// This node no longer observes it: that it is not heard now says nothing.
    pub(super) fn unobserve(&mut self, id: NodeId) {
        if let Some(known) = self.of.get_mut(&id) {
            known.heard = None;
        }
    }

    /// It came back, having been out of reach since `new.lost`.
    fn note(&mut self, id: NodeId, new: Return, now: Time, pace: Pace) {
        let known = self.of.entry(id).or_insert(new);
        if !known.is_short(new.lost, pace) {
            *known = new;
        } else if known.is_silent(now, pace) {
            *known = Return { lost: known.lost, ..new };
        }
    }

    /// Who has been lost for so long if the other side has missed that it was back. `again`: since when it is lost, if it is.
    pub(super) fn lost_for(&self, span: Duration, now: Time, pace: Pace, again: impl Fn(NodeId) -> Option<Time>) -> Vec<NodeId> {
        let missed = |id: NodeId, known: &Return| known.is_short(again(id).unwrap_or(now), pace);
        let long = || self.of.iter().filter(|&(&id, known)| now.since(known.lost) >= span && missed(id, known));
        let same = long().all(|(&id, known)| again(id).is_some() && known.is_silent(now, pace));
        if same { long().map(|(&id, _)| id).collect() } else { vec![] }
    }
}

impl Membership {
    /// Notes who came back, and forgets it once the other side must have seen it too.
    pub(super) fn follow_returns(&mut self, now: Time, unreachable: &[NodeId]) {
        let pace = self.contact_pace();
        let Self { returns, split, state, standing, watch, me, .. } = self;
        let is_lost = |id: NodeId| unreachable.binary_search(&id).is_ok();
        if let Some(split) = split {
            // They have had replies, or somebody was heard for some heartbeats.
            let met = now - 2 * pace.heartbeat;
            let mut still_lost = Cursor::of(unreachable);
            for (id, lost) in split.all_lost().filter(|&(id, _)| still_lost.find(id).is_none() && state.is_in(id)) {
                let heard = watch.subject(id).map(|_| now);
                returns.note(id, Return { lost, met, heard }, now, pace);
                returns.version = state.digest();
            }
        }
        if returns.of.is_empty() {
            return;
        }
        returns.of.retain(|&id, known| state.is_in(id) && (is_lost(id) || known.is_short(now, pace)));
        let held = || state.rows.values().any(|row| row.marks.has(*me));
        if standing.converged && state.digest() != returns.version && !held() {
            *returns = Returns::default();
        }
    }

    pub(super) fn contact_pace(&self) -> Pace {
        Pace { heartbeat: self.config.detector.heartbeat_interval.get(), patience: self.watch.patience() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACE: Pace = Pace { heartbeat: Duration::from_secs(1), patience: Duration::from_secs(4) };

    fn at(seconds: u64) -> Time {
        Time::ZERO + Duration::from_secs(seconds)
    }

    fn id(n: u16) -> NodeId {
        NodeId::new(&crate::NodeAddr::new("h", n), 1)
    }

    /// 1 and 2 were lost at 34 s and came back at 41 s.
    fn back(observed: bool) -> Returns {
        let mut returns = Returns::default();
        for n in [1, 2] {
            returns.note(id(n), Return { lost: at(34), met: at(41), heard: observed.then_some(at(41)) }, at(41), PACE);
        }
        returns
    }

    fn lost_for_seven(returns: &Returns, now: Time, lost: &[u16]) -> usize {
        let again = |node| lost.iter().any(|&n| id(n) == node).then_some(now);
        returns.lost_for(Duration::from_secs(7), now, PACE, again).len()
    }

    #[test]
    fn the_same_cut_counts_from_the_first() {
        for observed in [true, false] {
            assert_eq!(lost_for_seven(&back(observed), at(45), &[1, 2]), 2);
            assert_eq!(lost_for_seven(&back(observed), at(45), &[1, 2, 3]), 2, "more are lost");
        }
    }

    #[test]
    fn it_is_another_cut_while_one_of_them_is_in_reach_or_heard() {
        assert_eq!(lost_for_seven(&back(true), at(45), &[1]), 0);
        let mut returns = back(true);
        returns.hear(at(43), id(2));
        assert_eq!(lost_for_seven(&returns, at(45), &[1, 2]), 0);
        assert_eq!(lost_for_seven(&returns, at(47), &[1, 2]), 2, "it has fallen silent");
    }

    #[test]
    fn what_the_other_side_must_have_noticed_does_not_count() {
        let mut returns = back(true);
        [1, 2].into_iter().for_each(|n| returns.hear(at(44), id(n)));
        assert_eq!(lost_for_seven(&returns, at(49), &[1, 2]), 0, "heard for three heartbeats");
        assert_eq!(lost_for_seven(&back(false), at(48), &[1, 2]), 0, "in reach for longer than a loss takes to be seen");
    }

    #[test]
    fn who_is_no_longer_observed_was_in_contact_until_it_was_lost_again() {
        let mut returns = back(true);
        [1, 2].into_iter().for_each(|n| returns.unobserve(id(n)));
        assert_eq!(lost_for_seven(&returns, at(45), &[1, 2]), 2, "at once");
        assert_eq!(lost_for_seven(&returns, at(60), &[1, 2]), 0, "much later");
        returns.hear(at(42), id(1));
        assert_eq!(lost_for_seven(&returns, at(60), &[1, 2]), 1, "observed again, and silent since then");
    }

    #[test]
    fn a_return_within_a_return_changes_nothing_and_one_after_another_cut_keeps_the_first_loss() {
        let mut returns = back(true);
        let new = |lost, met| Return { lost: at(lost), met: at(met), heard: Some(at(met)) };
        returns.note(id(1), new(42, 43), at(43), PACE);
        assert_eq!((returns.of[&id(1)].lost, returns.of[&id(1)].met), (at(34), at(41)));
        returns.note(id(1), new(46, 47), at(47), PACE);
        assert_eq!((returns.of[&id(1)].lost, returns.of[&id(1)].met), (at(34), at(47)));
    }
}
