//! Where items of past stays go (moves.md sections 5 and 10).

use std::time::Duration;

use crate::{Epoch, NodeId, Time};

/// One past stay, or one epoch that never began here.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Route {
    /// First epoch it is for.
    pub lo: Epoch,
    /// Last epoch it is for.
    pub hi: Epoch,
    /// The epoch whose home it leads to.
    pub aim: Epoch,
    /// That home; `None` while none is known. May be this node, before it runs `aim`.
    pub node: Option<NodeId>,
    /// Targets of this route that were removed: who receives must have processed that.
    pub after: Vec<NodeId>,
    /// Its number in probes.
    pub id: u64,
    /// When something was last forwarded, or it was added.
    pub used: Time,
    /// The probe under way; taken back by anything forwarded behind it.
    pub probe: Option<u64>,
}

/// What a timer of a route came to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Linger {
    /// The route is gone.
    Gone,
    /// Look again then.
    Later(Time),
    /// Probe it now.
    Probe,
}

/// All routes of a shard; newest last, and newest first in force.
#[derive(Clone, Default, Debug)]
pub(super) struct Routes(Vec<Route>);

impl Routes {
    /// The route for `aim`.
    pub fn find(&mut self, aim: Epoch) -> Option<&mut Route> {
        self.0.iter_mut().rev().find(|r| r.lo <= aim && aim <= r.hi)
    }

    /// The route with the number `id`.
    pub fn by_id(&mut self, id: u64) -> Option<&mut Route> {
        self.0.iter_mut().find(|r| r.id == id)
    }

    /// Pins a route. Older ones that it covers whole can never be used again.
    pub fn add(&mut self, route: Route) {
        assert!(route.lo <= route.hi && route.hi < route.aim, "a route leads to a later epoch: {route:?}");
        self.0.retain(|r| r.lo < route.lo || r.hi > route.hi);
        // Most shards have one at a time, and those that once left have none for the rest of the run.
        self.0.reserve_exact(1);
        self.0.push(route);
    }

    /// Drops those that do not hold it.
    fn keep(&mut self, holds: impl FnMut(&Route) -> bool) {
        self.0.retain(holds);
        if self.0.is_empty() {
            self.0 = Vec::new();
        }
    }

    /// This node runs `cur` now: routes that led to it here have done their work.
    pub fn arrived(&mut self, me: NodeId, cur: Epoch) {
        self.keep(|r| r.node != Some(me) || r.aim > cur);
    }

    /// A life without state began: nothing below its base is accepted anywhere.
    pub fn drop_below(&mut self, base: Epoch) {
        self.keep(|r| r.hi >= base);
    }

    /// Whoever led there is retargeted later.
    pub fn removed(&mut self, node: NodeId) {
        for route in self.0.iter_mut().filter(|r| r.node == Some(node)) {
            route.node = None;
            route.probe = None;
            route.after.push(node);
        }
    }

    /// Routes without a target follow the newest record.
    pub fn retarget(&mut self, epoch: Epoch, home: NodeId) {
        for route in self.0.iter_mut().filter(|r| r.node.is_none() && r.aim < epoch) {
            (route.aim, route.node) = (epoch, Some(home));
        }
    }

    /// The timer of route `id` fired.
    pub fn linger(&mut self, id: u64, now: Time, linger: Duration) -> Linger {
        match self.by_id(id) {
            None => Linger::Gone,
            Some(r) if r.used + linger > now => Linger::Later(r.used + linger),
            Some(_) => Linger::Probe,
        }
    }

    /// The probe `number` of route `id` came back. True if the route is dropped.
    pub fn acked(&mut self, id: u64, number: u64) -> bool {
        let before = self.0.len();
        self.keep(|r| r.id != id || r.probe != Some(number));
        self.0.len() < before
    }

    pub fn iter(&self) -> impl Iterator<Item = &Route> {
        self.0.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(lo: u64, hi: u64, aim: u64, node: u128, id: u64) -> Route {
        Route {
            lo: Epoch(lo),
            hi: Epoch(hi),
            aim: Epoch(aim),
            node: Some(NodeId::from_raw(node)),
            after: vec![],
            id,
            used: Time::from_nanos(10),
            probe: None,
        }
    }

    #[test]
    fn the_newest_route_for_an_epoch_is_in_force_and_covers_older_ones() {
        let mut routes = Routes::default();
        routes.add(route(1, 1, 2, 7, 1));
        routes.add(route(3, 5, 6, 8, 2));
        assert_eq!((routes.find(Epoch(1)).unwrap().id, routes.find(Epoch(4)).unwrap().id), (1, 2));
        assert!(routes.find(Epoch(2)).is_none() && routes.find(Epoch(6)).is_none());
        routes.add(route(1, 5, 8, 9, 3));
        assert_eq!(routes.iter().map(|r| r.id).collect::<Vec<_>>(), [3]);
    }

    #[test]
    fn a_removed_target_is_replaced_by_the_newest_record_and_remembered() {
        let mut routes = Routes::default();
        routes.add(route(1, 1, 2, 7, 1));
        routes.removed(NodeId::from_raw(7));
        routes.retarget(Epoch(2), NodeId::from_raw(9));
        assert_eq!(routes.find(Epoch(1)).unwrap().node, None, "the record of the lost target itself leads nowhere");
        routes.retarget(Epoch(3), NodeId::from_raw(9));
        let r = routes.find(Epoch(1)).unwrap();
        assert_eq!((r.node, r.aim, r.after.clone()), (Some(NodeId::from_raw(9)), Epoch(3), vec![NodeId::from_raw(7)]));
    }

    #[test]
    fn routes_to_here_and_below_a_base_go() {
        let mut routes = Routes::default();
        routes.add(route(1, 1, 3, 5, 1));
        routes.add(route(2, 2, 4, 6, 2));
        routes.arrived(NodeId::from_raw(5), Epoch(3));
        assert_eq!(routes.iter().map(|r| r.id).collect::<Vec<_>>(), [2]);
        routes.drop_below(Epoch(3));
        assert_eq!((routes.iter().count(), routes.0.capacity()), (0, 0), "no memory for no routes");
    }
}
