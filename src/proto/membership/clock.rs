//! Vector clock over the members: one counter per node that ever changed the state.

use super::{
    idmap::{Cursor, IdMap},
    state::MEMBERS_MAX,
};
use crate::NodeId;

/// Counts each node's changes. An entry goes only with its member's removal: pruning by age loses updates.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct VectorClock(IdMap<u64>);

/// Most changes that an element names as those that made it what it is.
pub(crate) const DOTS_MAX: usize = 8;

/// The changes that made an element of the state what it is, as (who, its counter then), by who. Nearly always it is one.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) enum Dots {
    /// Changed here, and not numbered yet.
    #[default]
    None,
    One(NodeId, u64),
    Many(Box<[(NodeId, u64)]>),
}

impl Dots {
    pub(crate) const fn one(id: NodeId, count: u64) -> Self {
        Self::One(id, count)
    }

    fn of(dots: &[(NodeId, u64)]) -> Self {
        match *dots {
            [] => Self::None,
            [(id, count)] => Self::One(id, count),
            _ => Self::Many(dots.into()),
        }
    }

    pub(crate) const fn is_empty(&self) -> bool {
        matches!(self, Self::None)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (NodeId, u64)> + '_ {
        let one = if let Self::One(id, count) = *self { Some((id, count)) } else { None };
        let many: &[(NodeId, u64)] = if let Self::Many(all) = self { all } else { &[] };
        one.into_iter().chain(many.iter().copied())
    }

    /// Both histories. Too long a one is numbered anew by who merges.
    pub(crate) fn merge(&mut self, other: &Self) {
        if self == other || other.is_empty() {
            return;
        }
        let mut all: Vec<(NodeId, u64)> = self.iter().collect();
        for (id, count) in other.iter() {
            match all.binary_search_by_key(&id, |&(id, _)| id) {
                Ok(at) => all[at].1 = all[at].1.max(count),
                Err(at) => all.insert(at, (id, count)),
            }
        }
        *self = if all.len() > DOTS_MAX { Self::None } else { Self::of(&all) };
    }

    pub(crate) fn retain(&mut self, keep: impl Fn(NodeId) -> bool) {
        if self.iter().any(|(id, _)| !keep(id)) {
            let kept: Vec<(NodeId, u64)> = self.iter().filter(|&(id, _)| keep(id)).collect();
            *self = Self::of(&kept);
        }
    }

    /// Whether who knows `clock` may lack it.
    pub(crate) fn beyond(&self, clock: &VectorClock) -> bool {
        self.is_empty() || self.iter().any(|(id, count)| count > clock.get(id))
    }
}

/// Looks up ids of a clock, best in their order.
pub(crate) struct InOrder<'a> {
    counts: &'a IdMap<u64>,
    ids: Cursor<'a>,
}

impl InOrder<'_> {
    pub(crate) fn get(&mut self, id: NodeId) -> u64 {
        self.ids.find(id).and_then(|at| self.counts.at(at)).map_or(0, |(_, count)| *count)
    }
}

/// How two versions relate.
#[cfg(test)]
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Order {
    Same,
    /// The left one lacks something the right one has.
    Older,
    /// The left one has everything of the right one, and more.
    Newer,
    Concurrent,
}

#[cfg(test)]
impl Order {
    /// From "the left has something the right lacks" and the reverse.
    pub(crate) const fn of(left_ahead: bool, right_ahead: bool) -> Self {
        match (left_ahead, right_ahead) {
            (false, false) => Self::Same,
            (false, true) => Self::Older,
            (true, false) => Self::Newer,
            (true, true) => Self::Concurrent,
        }
    }
}

impl VectorClock {
    #[cfg(test)]
    pub(crate) fn tick(&mut self, id: NodeId) {
        *self.0.get_or_insert_with(id, || 0) += 1;
    }

    /// Empty, with room for at most so many as there are members.
    pub(crate) fn with_room(count: usize) -> Self {
        Self(IdMap::with_room(count.min(MEMBERS_MAX)))
    }

    pub(crate) fn set(&mut self, id: NodeId, count: u64) {
        if count > 0 {
            self.0.insert(id, count);
        }
    }

    pub(crate) fn merge(&mut self, other: &Self) {
        self.0.merge(&other.0, |mine, theirs| *mine = (*mine).max(*theirs));
    }

    pub(crate) fn retain(&mut self, mut keep: impl FnMut(NodeId) -> bool) {
        self.0.retain(|&id, _| keep(id));
    }

    pub(crate) fn get(&self, id: NodeId) -> u64 {
        self.0.get(&id).copied().unwrap_or(0)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (NodeId, u64)> + '_ {
        self.0.iter().map(|(&id, &count)| (id, count))
    }

    /// To look up ids most of which come in their order.
    pub(crate) fn in_order(&self) -> InOrder<'_> {
        InOrder { counts: &self.0, ids: Cursor::of(self.0.keys().as_slice()) }
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether an entry for which `counts` holds is higher here than there.
    #[cfg(test)]
    fn ahead_of(&self, other: &Self, counts: impl Fn(NodeId) -> bool) -> bool {
        self.0.iter().any(|(&id, &count)| count > other.get(id) && counts(id))
    }

    #[cfg(test)]
    fn compare(&self, other: &Self) -> Order {
        Order::of(self.ahead_of(other, |_| true), other.ahead_of(self, |_| true))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clock(entries: &[(u128, u64)]) -> VectorClock {
        let mut clock = VectorClock::default();
        for &(id, count) in entries {
            clock.set(NodeId::from_raw(id), count);
        }
        clock
    }

    #[test]
    fn the_four_ways_to_relate() {
        let (a, b, c) = (1, 2, 3);
        for (left, right, order) in [
            (clock(&[]), clock(&[]), Order::Same),
            (clock(&[(a, 1)]), clock(&[(a, 1)]), Order::Same),
            (clock(&[(a, 1)]), clock(&[(a, 2)]), Order::Older),
            (clock(&[(a, 2), (b, 1)]), clock(&[(a, 2)]), Order::Newer),
            (clock(&[(a, 2), (b, 1)]), clock(&[(a, 1), (b, 2)]), Order::Concurrent),
            (clock(&[(a, 1)]), clock(&[(c, 1)]), Order::Concurrent),
        ] {
            assert_eq!(left.compare(&right), order, "{left:?} {right:?}");
        }
    }

    #[test]
    fn a_merge_is_not_older_than_either() {
        let (left, right) = (clock(&[(1, 2), (2, 1)]), clock(&[(1, 1), (3, 4)]));
        let mut merged = left.clone();
        merged.merge(&right);
        assert_eq!((merged.compare(&left), merged.compare(&right)), (Order::Newer, Order::Newer));
    }

    #[test]
    fn whatever_the_order_of_looking_up_it_says_the_same() {
        let clock = clock(&[(2, 1), (3, 7), (5, 2), (8, 9), (9, 4), (20, 3), (21, 6), (22, 5)]);
        for step in 1..24u128 {
            let mut near = clock.in_order();
            for n in 0..100 {
                let id = NodeId::from_raw(n * step % 24);
                assert_eq!(near.get(id), clock.get(id), "{id} in steps of {step}");
            }
        }
    }

    #[test]
    fn a_tick_makes_newer() {
        let before = clock(&[(1, 1)]);
        let mut after = before.clone();
        after.tick(NodeId::from_raw(2));
        assert_eq!(before.compare(&after), Order::Older);
    }

    #[test]
    fn pruning_by_age_would_lose_updates() {
        // {b:4} was {a:5, b:4} before pruning: it would have been newer, and now looks concurrent with what it had overtaken.
        let full = clock(&[(1, 5), (2, 4)]);
        let old = clock(&[(1, 3), (2, 4)]);
        let mut pruned = full.clone();
        pruned.retain(|id| id != NodeId::from_raw(1));
        assert_eq!((full.compare(&old), pruned.compare(&old)), (Order::Newer, Order::Older));
    }
}
