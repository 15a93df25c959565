//! Control frames between two members that do not reach each other go by way of a third.
//!
//! An authority that does not reach one member would never know all homes, and could give nobody what a dead one has run. Control frames are void by their
//! terms, epochs and numbers if they come late, and are repeated until answered, so that one way is as good as another.

use std::{collections::BTreeMap, time::Duration};

use crate::{NodeId, Time, proto::node::peers::Peers};

/// A link is waited for, and a passer that brings nothing back is used, for so long.
const PATIENCE: Duration = Duration::from_secs(1);
/// A passer that has brought something back is used for so long without an answer.
const SILENCE: Duration = Duration::from_secs(5);
/// The link that is gone round is dialled for once in so long.
const DIAL_EVERY: Duration = Duration::from_secs(10);

/// Who is not reached straight, and how they are.
#[derive(Debug, Default)]
pub(super) struct WaysRound(BTreeMap<NodeId, WayRound>);

#[derive(Debug)]
struct WayRound {
    /// When the first frame found no link, or came by way of another.
    since: Time,
    /// By way of whom, and since when.
    by: Option<(NodeId, Time)>,
    /// Something came back by it.
    works: bool,
    /// The first frame that was sent since then.
    unheard: Option<Time>,
    turn: usize,
    dialled: Time,
}

impl WayRound {
    fn new(now: Time) -> Self {
        Self { since: now, by: None, works: false, unheard: None, turn: 0, dialled: now }
    }
}

/// Where a control frame goes.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Way {
    /// Over the link.
    Straight,
    /// To a passer. The link is to be dialled for, if it says so.
    By(NodeId, bool),
}

impl WaysRound {
    /// The way of a control frame to that node.
    pub fn to(&mut self, now: Time, to: NodeId, peers: &Peers) -> Way {
        let linked = peers.has_link(to);
        // Round a link because the other end goes round it, but not for ever: its frames may have been late ones.
        if linked && self.0.get(&to).is_none_or(|way| !way.works || now.since(way.since) >= DIAL_EVERY) {
            self.0.remove(&to);
            return Way::Straight;
        }
        let way = self.0.entry(to).or_insert_with(|| WayRound::new(now));
        if !way.works && now.since(way.since) < PATIENCE {
            return Way::Straight;
        }
        let answers = if way.works { way.unheard.is_none_or(|since| now.since(since) < SILENCE) } else { true };
        let is_good = |(by, since)| answers && peers.may_reach(by) && (way.works || now.since(since) < PATIENCE);
        if !way.by.is_some_and(is_good) {
            let others = peers.between(to);
            way.by = way.turn.checked_rem(others.len()).map(|turn| (others[turn], now));
            (way.works, way.unheard, way.turn) = (false, None, way.turn + 1);
        }
        let Some((by, _)) = way.by else { return Way::Straight };
        way.unheard.get_or_insert(now);
        let dial = !linked && now.since(way.dialled) >= DIAL_EVERY;
        if dial {
            way.dialled = now;
        }
        Way::By(by, dial)
    }

    /// A control frame of that node came by way of another.
    pub fn came_by(&mut self, now: Time, from: NodeId, by: NodeId) {
        let way = self.0.entry(from).or_insert_with(|| WayRound::new(now));
        (way.by, way.works, way.unheard) = (Some((by, now)), true, None);
    }

    /// One came straight, or a session is new. True if others were used until now.
    pub fn came_straight(&mut self, from: NodeId) -> bool {
        self.0.remove(&from).is_some_and(|way| way.by.is_some())
    }

    /// A node is gone for good.
    pub fn removed(&mut self, node: NodeId) {
        self.0.remove(&node);
        for way in self.0.values_mut().filter(|way| way.by.is_some_and(|(by, _)| by == node)) {
            (way.by, way.works) = (None, false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NodeAddr;

    const ME: NodeId = NodeId::from_raw(1);
    const B: NodeId = NodeId::from_raw(2);
    const C: NodeId = NodeId::from_raw(3);
    const D: NodeId = NodeId::from_raw(4);

    fn at(ms: u64) -> Time {
        Time::from_nanos(1_000_000 * ms)
    }

    fn peers() -> Peers {
        let mut peers = Peers::new(ME);
        [ME, B, C, D].into_iter().for_each(|n| peers.add_member(n, NodeAddr::new("x", n.raw() as u16)));
        peers
    }

    #[test]
    fn who_is_not_reached_is_so_by_way_of_others_in_turns() {
        let (mut ways, mut peers) = (WaysRound::default(), peers());
        assert_eq!(ways.to(at(0), B, &peers), Way::Straight);
        assert_eq!(ways.to(at(999), B, &peers), Way::Straight, "dialled for");
        assert_eq!(ways.to(at(1000), B, &peers), Way::By(C, false));
        assert_eq!(ways.to(at(1900), B, &peers), Way::By(C, false));
        assert_eq!(ways.to(at(2000), B, &peers), Way::By(D, false));
        ways.came_by(at(2500), B, D);
        assert_eq!(ways.to(at(9000), B, &peers), Way::By(D, false), "it works");
        ways.came_by(at(9100), B, D);
        assert_eq!(ways.to(at(10_000), B, &peers), Way::By(D, true));
        assert_eq!(ways.to(at(10_001), B, &peers), Way::By(D, false));
        peers.remove(D);
        ways.removed(D);
        assert_eq!(ways.to(at(11_000), B, &peers), Way::By(C, false));
        peers.link_up(B, NodeAddr::new("b", 1));
        assert_eq!(ways.to(at(11_500), B, &peers), Way::Straight);
        peers.link_down(B);
        assert_eq!(ways.to(at(11_600), B, &peers), Way::Straight, "from the beginning");
    }

    #[test]
    fn a_link_that_the_other_end_goes_round_is_gone_round() {
        let (mut ways, mut peers) = (WaysRound::default(), peers());
        peers.link_up(B, NodeAddr::new("b", 1));
        assert_eq!(ways.to(at(0), B, &peers), Way::Straight);
        ways.came_by(at(100), B, C);
        assert_eq!(ways.to(at(10_000), B, &peers), Way::By(C, false));
        assert_eq!(ways.to(at(10_200), B, &peers), Way::Straight, "it may have been a late one");
        ways.came_by(at(10_300), B, C);
        assert_eq!(ways.to(at(10_400), B, &peers), Way::By(C, false));
        assert!(ways.came_straight(B) && !ways.came_straight(B));
        assert_eq!(ways.to(at(20_000), B, &peers), Way::Straight);
    }

    #[test]
    fn a_passer_that_has_worked_and_does_no_longer_is_left() {
        let (mut ways, peers) = (WaysRound::default(), peers());
        ways.came_by(at(0), B, C);
        assert_eq!([9000, 13_000, 13_999].map(|ms| ways.to(at(ms), B, &peers)), [Way::By(C, false), Way::By(C, true), Way::By(C, false)]);
        assert_eq!(ways.to(at(14_000), B, &peers), Way::By(C, false), "in turns from the first on");
        assert_eq!(ways.to(at(15_000), B, &peers), Way::By(D, false));
    }

    #[test]
    fn without_others_it_is_tried_straight() {
        let (mut ways, mut peers) = (WaysRound::default(), peers());
        [C, D].into_iter().for_each(|node| _ = peers.remove(node));
        assert_eq!([0, 1000, 5000].map(|ms| ways.to(at(ms), B, &peers)), [Way::Straight; 3]);
    }
}
