//! Who observes whom: neighbours on the ring of hashed ids.

use std::sync::Arc;

use super::{
    idmap::{Cursor, Stretches},
    roster::{GONE, moves},
};
use crate::NodeId;

/// Where a member stands on the ring.
type Placed = (u64, NodeId);

/// Members sorted by their place on the ring.
#[derive(Debug)]
pub(crate) struct Ring {
    places: Vec<Placed>,
    /// The members in the order in which they were given.
    of: Vec<NodeId>,
    /// Where each of those stands.
    at: Vec<u32>,
    stretches: Stretches,
}

/// Looks up places on a ring, best in order of the ids.
pub(crate) struct Places<'a> {
    ring: &'a Ring,
    ids: Cursor<'a>,
}

impl Places<'_> {
    /// Where it stands.
    pub(crate) fn of(&mut self, id: NodeId) -> Option<usize> {
        self.ids.find(id).map(|nth| self.ring.at[nth] as usize)
    }
}

fn place(id: NodeId) -> (u64, NodeId) {
    (xxhash_rust::xxh3::xxh3_64(&id.raw().to_le_bytes()), id)
}

/// Members in the order of their places.
pub(crate) fn by_place(mut members: Vec<NodeId>) -> Vec<NodeId> {
    members.sort_by_cached_key(|&id| place(id));
    members
}

impl Ring {
    /// Of these, by id. The id is hashed again, so that nodes of one host do not stand side by side.
    pub(crate) fn new(members: impl Iterator<Item = NodeId>) -> Self {
        let of: Vec<NodeId> = members.collect();
        debug_assert!(of.is_sorted(), "members come in order of their ids");
        let mut sorted: Vec<_> = of.iter().zip(0..).map(|(&id, nth)| (place(id), nth)).collect();
        sorted.sort_unstable();
        Self::sorted(of, &sorted)
    }

    /// Of members by id, and their places in order, each with whose it is.
    fn sorted(of: Vec<NodeId>, places: &[((u64, NodeId), u32)]) -> Self {
        let mut at = vec![0; of.len()];
        for (&(_, nth), stands) in places.iter().zip(0..) {
            at[nth as usize] = stands;
        }
        let stretches = Stretches::of(&of);
        Self { places: places.iter().map(|&(place, _)| place).collect(), of, at, stretches }
    }

    /// Of these, by id, most of whom stand on the prior one; that one itself if all do. Few come or go at a time, and sorting is what costs.
    pub(crate) fn renewed(prior: Option<&Arc<Self>>, members: Vec<NodeId>) -> Arc<Self> {
        let Some(prior) = prior else { return Arc::new(Self::new(members.into_iter())) };
        if prior.of == members {
            return Arc::clone(prior);
        }
        let (moved, came) = moves(&prior.of, &members);
        if came.len() * 8 > members.len() {
            return Arc::new(Self::new(members.into_iter()));
        }
        let mut new: Vec<_> = came.into_iter().map(|nth| (place(members[nth as usize]), nth)).collect();
        new.sort_unstable();
        let mut stays = vec![GONE; prior.len()];
        for (&stood, &nth) in prior.at.iter().zip(&moved) {
            stays[stood as usize] = nth;
        }
        let (mut places, mut new) = (Vec::with_capacity(members.len()), new.into_iter().peekable());
        for (&place, nth) in prior.places.iter().zip(stays).filter(|&(_, nth)| nth != GONE) {
            while let Some(before) = new.next_if(|(new, _)| *new < place) {
                places.push(before);
            }
            places.push((place, nth));
        }
        places.extend(new);
        Arc::new(Self::sorted(members, &places))
    }

    pub(crate) fn len(&self) -> usize {
        self.places.len()
    }

    /// Whom `observer` observes: the next `count` on the ring; those for which `skip` holds are met on the way and observed too, without
    /// counting.
    pub(crate) fn subjects(&self, observer: NodeId, count: usize, skip: impl Fn(NodeId) -> bool) -> Vec<NodeId> {
        self.walk(observer, count, skip, |at, step, n| (at + step) % n)
    }

    /// Who observes `subject`: the reverse of [`Ring::subjects`].
    pub(crate) fn observers(&self, subject: NodeId, count: usize, skip: impl Fn(NodeId) -> bool) -> Vec<NodeId> {
        self.walk(subject, count, skip, |at, step, n| (at + n - step) % n)
    }

    /// Where it stands.
    pub(crate) fn place_of(&self, id: NodeId) -> Option<usize> {
        self.stretches.find(&self.of, id).map(|nth| self.at[nth] as usize)
    }

    /// Who stands at a place.
    pub(crate) fn at(&self, place: usize) -> NodeId {
        self.places[place].1
    }

    /// To look up ids that come in their order.
    pub(crate) fn in_order(&self) -> Places<'_> {
        Places { ring: self, ids: Cursor::of(&self.of) }
    }

    /// Those after a node, the nearest first; all but itself.
    pub(crate) fn after(&self, id: NodeId) -> impl Iterator<Item = NodeId> + '_ {
        let (before, after) = self.around(id);
        after.iter().chain(before).map(|&(_, id)| id)
    }

    /// Those before a node, the nearest first; all but itself.
    pub(crate) fn before(&self, id: NodeId) -> impl Iterator<Item = NodeId> + '_ {
        let (before, after) = self.around(id);
        before.iter().rev().chain(after.iter().rev()).map(|&(_, id)| id)
    }

    /// Whose places are lower, and whose are higher.
    fn around(&self, id: NodeId) -> (&[Placed], &[Placed]) {
        self.place_of(id).map_or((&[], &[]), |at| (&self.places[..at], &self.places[at + 1..]))
    }

    fn walk(&self, from: NodeId, count: usize, skip: impl Fn(NodeId) -> bool, place: impl Fn(usize, usize, usize) -> usize) -> Vec<NodeId> {
        let n = self.places.len();
        let Some(at) = self.place_of(from) else { return vec![] };
        let (mut met, mut counted) = (vec![], 0);
        for step in 1..n {
            if counted == count {
                break;
            }
            let (_, id) = self.places[place(at, step, n)];
            met.push(id);
            counted += usize::from(!skip(id));
        }
        met
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring(n: u128) -> (Ring, Vec<NodeId>) {
        let ids: Vec<_> = (1..=n).map(NodeId::from_raw).collect();
        (Ring::new(ids.iter().copied()), ids)
    }

    #[test]
    fn everybody_is_observed_by_so_many_and_never_by_itself() {
        for n in [1, 2, 3, 6, 7, 50] {
            let (ring, ids) = ring(n);
            for &id in &ids {
                let expected = 5.min(n as usize - 1);
                let (subjects, observers) = (ring.subjects(id, 5, |_| false), ring.observers(id, 5, |_| false));
                assert_eq!((subjects.len(), observers.len()), (expected, expected));
                assert!(!subjects.contains(&id) && !observers.contains(&id));
                for subject in subjects {
                    assert!(ring.observers(subject, 5, |_| false).contains(&id));
                }
            }
        }
    }

    #[test]
    fn unreachable_ones_are_met_without_counting() {
        let (ring, ids) = ring(20);
        let plain = ring.subjects(ids[0], 3, |_| false);
        let with = ring.subjects(ids[0], 3, |id| id == plain[0] || id == plain[2]);
        assert_eq!(with.len(), 5);
        assert_eq!(with[..3], plain[..]);
    }

    #[test]
    fn a_ring_is_the_same_whether_made_anew_or_of_the_one_before() {
        type Fits = fn(u128) -> bool;
        let ids = |fits: Fits| (1..=60).filter(|&n| fits(n)).map(NodeId::from_raw).collect::<Vec<_>>();
        let before: Fits = |n| n % 9 > 0;
        let prior = Arc::new(Ring::new(ids(before).into_iter()));
        let after: [Fits; 5] = [|n| n % 7 > 0, |n| n > 3, before, |n| n < 5, |_| false];
        for fits in after {
            let (fresh, made) = (Ring::new(ids(fits).into_iter()), Ring::renewed(Some(&prior), ids(fits)));
            assert_eq!((&fresh.places, &fresh.of, &fresh.at), (&made.places, &made.of, &made.at));
            assert!(ids(|_| true).into_iter().all(|id| made.place_of(id) == made.places.iter().position(|place| place.1 == id)));
            assert_eq!(Arc::ptr_eq(&prior, &made), prior.of == made.of);
        }
    }

    #[test]
    fn before_is_where_the_observers_are_and_after_where_the_subjects_are() {
        let (ring, ids) = ring(9);
        for &id in &ids {
            let (before, after): (Vec<_>, Vec<_>) = (ring.before(id).collect(), ring.after(id).collect());
            assert_eq!((before.len(), &before[..4]), (8, &ring.observers(id, 4, |_| false)[..]));
            assert_eq!((after.len(), &after[..4]), (8, &ring.subjects(id, 4, |_| false)[..]));
        }
        assert_eq!(ring.before(NodeId::from_raw(99)).count(), 0);
    }

    #[test]
    fn a_stranger_observes_nobody() {
        assert!(ring(5).0.subjects(NodeId::from_raw(99), 5, |_| false).is_empty());
    }
}
