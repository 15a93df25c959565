//! Who the members are, in the orders in which they are walked. Few come or go at a time, so that a roster is made of the one before it.

use std::sync::{Arc, OnceLock};

use super::{
    codec::short,
    idmap::{IdMap, Stretches},
    version::Entry,
};
use crate::{NodeId, id::address_order};

/// A set of members.
#[derive(Debug)]
pub(crate) struct Roster {
    /// By id.
    pub(crate) ids: Vec<NodeId>,
    /// By address, then incarnation.
    pub(crate) order: Vec<NodeId>,
    /// Where each of the order stands by id.
    pub(crate) by_address: Vec<u32>,
    /// Where each by id stands in the order.
    pub(crate) by_id: Arc<[u32]>,
    stretches: Stretches,
    short: OnceLock<ShortIds>,
}

/// The last four bytes of ids.
#[derive(Debug)]
struct ShortIds {
    /// In order, each with its member's place by id.
    places: Vec<(u32, u32)>,
    unique: bool,
}

/// Whose id ends in given bytes.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Alike {
    Nobody,
    One(NodeId),
    Several,
}

/// No place: gone.
pub(crate) const GONE: u32 = u32::MAX;

/// Where those who were among the old ones stand among the new ones, and where the new ones stand who were not. Both lists are sorted.
pub(crate) fn moves(old: &[NodeId], new: &[NodeId]) -> (Vec<u32>, Vec<u32>) {
    let (mut moved, mut came, mut new) = (Vec::with_capacity(old.len()), vec![], new.iter().zip(0..).peekable());
    for &id in old {
        while let Some((_, at)) = new.next_if(|&(&other, _)| other < id) {
            came.push(at);
        }
        moved.push(new.next_if(|&(&other, _)| other == id).map_or(GONE, |(_, at)| at));
    }
    came.extend(new.map(|(_, at)| at));
    (moved, came)
}

/// Places of those that the sorted list `new` does not have any more.
pub(crate) fn gone(old: &[NodeId], new: &[NodeId]) -> impl Iterator<Item = usize> {
    let mut at = 0;
    old.iter().enumerate().filter_map(move |(place, id)| {
        while new.get(at).is_some_and(|other| other < id) {
            at += 1;
        }
        (new.get(at) != Some(id)).then_some(place)
    })
}

impl Roster {
    /// Of these members.
    fn new(members: &IdMap<Entry>) -> Self {
        let all: Vec<&Entry> = members.values().collect();
        let mut by_address: Vec<u32> = (0..).take(all.len()).collect();
        by_address.sort_by(|&a, &b| compare(all[a as usize], all[b as usize]));
        Self::of(members, by_address)
    }

    fn of(members: &IdMap<Entry>, by_address: Vec<u32>) -> Self {
        let ids = members.keys().as_slice().to_vec();
        let order = by_address.iter().map(|&at| ids[at as usize]).collect();
        let mut by_id = vec![0; ids.len()];
        for (&at, stands) in by_address.iter().zip(0..) {
            by_id[at as usize] = stands;
        }
        let stretches = Stretches::of(&ids);
        Self { ids, order, by_address, by_id: by_id.into(), stretches, short: OnceLock::new() }
    }

    /// Of these members, most of which are on the prior one; that one itself if all are. Comparing addresses is what costs.
    pub(crate) fn after(prior: Option<&Arc<Self>>, members: &IdMap<Entry>) -> Arc<Self> {
        let Some(prior) = prior else { return Arc::new(Self::new(members)) };
        if prior.ids == members.keys().as_slice() {
            return Arc::clone(prior);
        }
        let (moved, came) = moves(&prior.ids, members.keys().as_slice());
        if came.len() * 8 > members.len() {
            return Arc::new(Self::new(members));
        }
        let kept = prior.by_address.iter().map(|&at| moved[at as usize]).filter(|&at| at != GONE);
        let mut by_address = Vec::with_capacity(members.len());
        by_address.extend(kept);
        for new in came {
            let entry = |at: u32| members.at(at as usize).map(|(_, entry)| entry);
            let before = |&at: &u32| entry(at).zip(entry(new)).is_some_and(|(a, b)| compare(a, b).is_lt());
            by_address.insert(by_address.partition_point(before), new);
        }
        Arc::new(Self::of(members, by_address))
    }

    /// Where it stands by id.
    pub(crate) fn rank(&self, id: NodeId) -> Option<usize> {
        self.stretches.find(&self.ids, id)
    }

    /// By the last four bytes of each id.
    fn short(&self) -> &ShortIds {
        self.short.get_or_init(|| {
            let mut places: Vec<(u32, u32)> = self.ids.iter().map(|&id| short(id)).zip(0..).collect();
            places.sort_unstable();
            let unique = places.windows(2).all(|two| two[0].0 != two[1].0);
            ShortIds { places, unique }
        })
    }

    /// Whether no two ids end alike.
    pub(crate) fn all_differ(&self) -> bool {
        self.short().unique
    }

    /// Whose ids end in these four bytes.
    pub(crate) fn alike(&self, key: u32) -> Alike {
        let places = &self.short().places;
        let from = places.partition_point(|&(k, _)| k < key);
        let mut alike = places[from..].iter().take_while(|&&(k, _)| k == key);
        match (alike.next(), alike.next()) {
            (None, _) => Alike::Nobody,
            (Some(&(_, at)), None) => Alike::One(self.ids[at as usize]),
            _ => Alike::Several,
        }
    }
}

fn compare(a: &Entry, b: &Entry) -> std::cmp::Ordering {
    address_order((&a.info.addr, a.info.id), (&b.info.addr, b.info.id))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::{super::MemberInfo, *};
    use crate::NodeAddr;

    fn members(ports: &BTreeSet<u16>) -> IdMap<Entry> {
        let info = |&port: &u16| {
            // Several lives of each address.
            let addr = NodeAddr::new("h", port / 3 + 1);
            let id = NodeId::new(&addr, u64::from(port));
            (id, Entry::joining(Arc::new(MemberInfo::bare(id, addr)), 1))
        };
        ports.iter().map(info).collect()
    }

    proptest! {
        #[test]
        fn a_roster_is_the_same_whether_made_anew_or_of_the_one_before(before in proptest::collection::btree_set(0u16..60, 0..60),
                                                                       after in proptest::collection::btree_set(0u16..60, 0..60)) {
            let (old, new) = (members(&before), members(&after));
            let prior = Arc::new(Roster::new(&old));
            let (fresh, made) = (Roster::new(&new), Roster::after(Some(&prior), &new));
            prop_assert_eq!((&fresh.ids, &fresh.order, &fresh.by_address), (&made.ids, &made.order, &made.by_address));
            prop_assert!(made.by_id.iter().zip(&made.ids).all(|(&at, id)| made.order[at as usize] == *id));
            prop_assert_eq!(Arc::ptr_eq(&prior, &made), before == after);
            let left: Vec<NodeId> = gone(&prior.ids, &made.ids).map(|at| prior.ids[at]).collect();
            prop_assert!(left.iter().eq(old.keys().filter(|id| !new.contains_key(id))));
            prop_assert!(made.ids.iter().all(|&id| made.alike(short(id)) == Alike::One(id) || !made.all_differ()));
        }
    }
}
