//! The members that a view shows: what is gossiped as it stands, which is shared, and beside it what is shown otherwise.

use std::{
    fmt,
    sync::{Arc, Weak},
};

use super::{
    idmap::Cursor,
    version::{Entry, Folk},
    view::Member,
};
use crate::NodeId;

/// All members of a snapshot, by address, then incarnation. Cheap to make, clone and drop: what is gossiped is shown as it stands, and beside it who is held
/// unreachable.
#[derive(Clone, Default)]
pub struct Members(Arc<Shown>);

/// A list that somebody may hold.
#[derive(Clone)]
pub(crate) struct WeakMembers(Weak<Shown>);

impl WeakMembers {
    pub(crate) fn upgrade(&self) -> Option<Members> {
        self.0.upgrade().map(Members)
    }
}

impl fmt::Debug for WeakMembers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WeakMembers")
    }
}

#[derive(Default)]
struct Shown {
    folk: Arc<Folk>,
    /// Those that are shown otherwise than they stand there, by their place by id.
    judged: Vec<(u32, Member)>,
    /// Those that are not shown, by their place by id.
    hidden: Vec<u32>,
    /// Places by id of the shown in order of their addresses, where some are not.
    order: Vec<u32>,
}

impl Shown {
    fn order(&self) -> &[u32] {
        if self.hidden.is_empty() { &self.folk.roster().by_address } else { &self.order }
    }

    fn at(&self, rank: u32) -> &Member {
        match self.judged.binary_search_by_key(&rank, |&(at, _)| at) {
            Ok(nth) => &self.judged[nth].1,
            Err(_) => &self.folk.nth(rank).member,
        }
    }

    fn is_hidden(&self, rank: u32) -> bool {
        !self.hidden.is_empty() && self.hidden.binary_search(&rank).is_ok()
    }

    /// Whoever is not shown as they stand among the others.
    fn odd(&self) -> impl Iterator<Item = NodeId> {
        let hidden = self.hidden.iter().map(|&rank| self.folk.nth(rank).id);
        self.judged.iter().map(|(_, member)| member.id).chain(hidden)
    }
}

/// What became of one whom one of two lists shows, or both otherwise.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Step<'a> {
    pub(crate) was: Option<&'a Member>,
    pub(crate) is: Option<&'a Member>,
}

impl Members {
    /// Those members; who is held unreachable by whom, and who is not shown.
    pub(crate) fn of<'a>(
        folk: Arc<Folk>,
        unreachable: impl Iterator<Item = (&'a NodeId, &'a Arc<[NodeId]>)>,
        hidden: impl Iterator<Item = &'a NodeId>,
    ) -> Self {
        let rank = |id| folk.rank(id).map(|rank| rank as u32);
        let mut places = Cursor::of(folk.keys().as_slice());
        let judged = unreachable.filter_map(|(&id, by)| {
            let rank = places.find(id)? as u32;
            Some((rank, Member { reachable: false, observers: Arc::clone(by).into(), ..folk.nth(rank).member.clone() }))
        });
        let (judged, hidden): (Vec<_>, Vec<u32>) = (judged.collect(), hidden.filter_map(rank).collect());
        let shown = |rank: &&u32| hidden.binary_search(rank).is_err();
        let order = if hidden.is_empty() { vec![] } else { folk.roster().by_address.iter().filter(shown).copied().collect() };
        Self(Arc::new(Shown { folk, judged, hidden, order }))
    }

    /// The member with this id.
    pub fn find(&self, id: NodeId) -> Option<&Member> {
        self.shown(id).map(|(_, member)| member)
    }

    /// With its place by id.
    fn shown(&self, id: NodeId) -> Option<(u32, &Member)> {
        let rank = self.0.folk.rank(&id)? as u32;
        (!self.0.is_hidden(rank)).then(|| (rank, self.0.at(rank)))
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.folk.len() - self.0.hidden.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All, by address, then incarnation.
    pub fn iter(&self) -> Iter<'_> {
        Iter { members: self, order: self.0.order().iter() }
    }

    /// To look whether somebody still holds it.
    pub(crate) fn downgrade(&self) -> WeakMembers {
        WeakMembers(Arc::downgrade(&self.0))
    }

    /// Whether both show the same because they are made of the same.
    fn same(&self, other: &Self) -> bool {
        let bare = |shown: &Shown| shown.judged.is_empty() && shown.hidden.is_empty();
        Arc::ptr_eq(&self.0, &other.0) || (Arc::ptr_eq(&self.0.folk, &other.0.folk) && bare(&self.0) && bare(&other.0))
    }

    /// What another, later list shows otherwise, by address, then incarnation.
    pub(crate) fn steps<'a>(&'a self, later: &'a Self) -> Vec<Step<'a>> {
        if self.same(later) {
            return vec![];
        }
        let mut ids: Vec<NodeId> = self.0.folk.beyond(&later.0.folk).chain(later.0.folk.beyond(&self.0.folk)).collect();
        ids.extend([&self.0, &later.0].into_iter().flat_map(|shown| shown.odd()));
        ids.sort_unstable();
        ids.dedup();
        let (mut gone, mut others) = (vec![], vec![]);
        for id in ids {
            match (self.shown(id), later.shown(id)) {
                (Some((_, was)), Some((_, is))) if was == is => {}
                (was, Some((rank, is))) => others.push((rank, Step { was: was.map(|(_, was)| was), is: Some(is) })),
                (Some((rank, was)), None) => gone.push((rank, Step { was: Some(was), is: None })),
                (None, None) => {}
            }
        }
        let in_order = |steps: &mut Vec<(u32, Step<'a>)>, of: &Self| {
            let stands = &of.0.folk.roster().by_id;
            steps.sort_unstable_by_key(|&(rank, _)| stands[rank as usize]);
        };
        in_order(&mut gone, self);
        in_order(&mut others, later);
        let (mut steps, mut gone) = (Vec::with_capacity(gone.len() + others.len()), gone.into_iter().map(|(_, step)| step).peekable());
        for (_, step) in others {
            let before = |gone: &Step<'a>| gone.was.zip(step.is).is_some_and(|(was, is)| was.comes_before(is));
            while let Some(gone) = gone.next_if(before) {
                steps.push(gone);
            }
            steps.push(step);
        }
        steps.extend(gone);
        steps
    }

    /// The oldest of those that fit.
    pub(super) fn oldest(&self, fits: Option<&dyn Fn(&Member) -> bool>) -> Option<&Member> {
        let Some(fits) = fits.or(if self.0.hidden.is_empty() { None } else { Some(&|_| true) }) else {
            return self.0.folk.oldest().map(|rank| self.0.at(rank));
        };
        self.iter().filter(|m| m.is_of_age() && fits(m)).min_by(|a, b| a.age_order(b))
    }
}

/// Members by address, then incarnation.
#[derive(Clone, Debug)]
pub struct Iter<'a> {
    members: &'a Members,
    order: std::slice::Iter<'a, u32>,
}

impl<'a> Iterator for Iter<'a> {
    type Item = &'a Member;

    fn next(&mut self) -> Option<&'a Member> {
        self.order.next().map(|&rank| self.members.0.at(rank))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.order.size_hint()
    }
}

impl DoubleEndedIterator for Iter<'_> {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.order.next_back().map(|&rank| self.members.0.at(rank))
    }
}

impl ExactSizeIterator for Iter<'_> {}

impl PartialEq for Members {
    fn eq(&self, other: &Self) -> bool {
        self.same(other) || self.iter().eq(other)
    }
}

impl fmt::Debug for Members {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self).finish()
    }
}

impl FromIterator<Member> for Members {
    fn from_iter<I: IntoIterator<Item = Member>>(members: I) -> Self {
        let folk = Arc::new(members.into_iter().map(Entry::from).collect());
        Self(Arc::new(Shown { folk, ..Shown::default() }))
    }
}

impl<'a> IntoIterator for &'a Members {
    type Item = &'a Member;
    type IntoIter = Iter<'a>;

    fn into_iter(self) -> Iter<'a> {
        self.iter()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::{
        super::{MemberInfo, MemberStatus},
        *,
    };
    use crate::{NodeAddr, id::address_order};

    /// One whom a test knows by a number, and where it stands: not there, up, leaving, held unreachable, hidden.
    type Stand = u8;

    fn member(n: usize, stand: Stand) -> Member {
        // Several lives of each address.
        let addr = NodeAddr::new("h", n as u16 / 3 + 1);
        let status = if stand == 2 { MemberStatus::Leaving } else { MemberStatus::Up };
        Member::new(MemberInfo::bare(NodeId::new(&addr, n as u64), addr), status, n as u32 % 7)
    }

    fn folk(stands: &[Stand]) -> Folk {
        stands.iter().enumerate().filter(|&(_, &stand)| stand > 0).map(|(n, &stand)| member(n, stand).into()).collect()
    }

    fn list(folk: Arc<Folk>, stands: &[Stand]) -> Members {
        let those = |which| (0..).zip(stands).filter(move |&(_, &stand)| stand == which).map(|(n, _)| member(n, 1).id);
        let by: Arc<[NodeId]> = [NodeId::from_raw(1)].into();
        let unreachable: BTreeMap<NodeId, Arc<[NodeId]>> = those(3).map(|id| (id, by.clone())).collect();
        let hidden: std::collections::BTreeSet<NodeId> = those(4).collect();
        Members::of(folk, unreachable.iter(), hidden.iter())
    }

    /// As it is expected to be shown, in order.
    fn shown(stands: &[Stand]) -> Vec<Member> {
        let mut all: Vec<Member> = (0..)
            .zip(stands)
            .filter(|&(_, &stand)| matches!(stand, 1..4))
            .map(|(n, &stand)| {
                let by: Arc<[NodeId]> = [NodeId::from_raw(1)].into();
                let plain = member(n, stand);
                if stand == 3 { Member { reachable: false, observers: by.into(), ..plain } } else { plain }
            })
            .collect();
        all.sort_by(|a, b| address_order((&a.addr, a.id), (&b.addr, b.id)));
        all
    }

    proptest! {
        #[test]
        fn a_list_shows_those_of_whom_it_was_made_and_what_became_of_them(
            before in proptest::collection::vec(0u8..5, 300),
            changes in proptest::collection::vec((0usize..300, 0u8..5), 0..20),
        ) {
            let mut after = before.clone();
            changes.iter().for_each(|&(n, stand)| after[n] = stand);
            let old = Arc::new(folk(&before));
            // Shares with the old one what did not change.
            let mut new = Arc::clone(&old);
            for &(n, _) in &changes {
                let now = member(n, after[n]);
                match after[n] {
                    0 => drop(Folk::edit(&mut new).remove(&now.id)),
                    _ => drop(Folk::edit(&mut new).insert(now.id, now.into())),
                }
            }
            let (old, new) = (list(old, &before), list(new, &after));
            for (list, expected) in [(&old, shown(&before)), (&new, shown(&after))] {
                prop_assert!(list.iter().eq(&expected) && list.iter().rev().eq(expected.iter().rev()));
                prop_assert_eq!((list.len(), list.is_empty()), (expected.len(), expected.is_empty()));
                let by_id: BTreeMap<NodeId, &Member> = expected.iter().map(|m| (m.id, m)).collect();
                prop_assert!((0..300).map(|n| member(n, 1).id).all(|id| list.find(id) == by_id.get(&id).copied()));
                prop_assert_eq!(list.oldest(None), expected.iter().filter(|m| m.is_of_age()).min_by(|a, b| a.age_order(b)));
            }
            let steps = old.steps(&new);
            let of = |m: &Member| (m.addr.clone(), m.id);
            let ends = |n: usize| -> [Option<Member>; 2] { [&old, &new].map(|list| list.find(member(n, 1).id).cloned()) };
            let mut expected: Vec<[Option<Member>; 2]> = (0..300).map(ends).filter(|[was, is]| was != is).collect();
            expected.sort_by_key(|[was, is]| was.as_ref().or(is.as_ref()).map(of));
            prop_assert!(steps.iter().map(|step| [step.was, step.is].map(|m| m.cloned())).eq(expected));
        }
    }
}
