//! Maps by node id, in order: read and walked far more often than they grow.

use std::ops::{Index, RangeInclusive};

use super::parts::{self, Parts};
use crate::NodeId;

/// A map from node ids, walked in their order.
///
/// The ids stand by themselves, densely. They begin with a hash, so that where one stands can be guessed: a search looks at a few of them
/// that are side by side, whatever their number.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct IdMap<V> {
    ids: Vec<NodeId>,
    values: Parts<V>,
}

impl<V> Default for IdMap<V> {
    fn default() -> Self {
        Self { ids: vec![], values: Parts::default() }
    }
}

/// Where the id stands among those that are in order, or where it belongs.
pub(crate) fn search(ids: &[NodeId], id: NodeId) -> Result<usize, usize> {
    // What is read or received in order goes to the end.
    if ids.last().is_none_or(|&last| last < id) {
        return Err(ids.len());
    }
    let guess = ((u128::from(id.addr_hash()) * ids.len() as u128) >> 64) as usize;
    let (mut step, mut low, mut high) = (8, guess, guess);
    while low > 0 && ids[low] > id {
        (high, low, step) = (low, low.saturating_sub(step), step * 2);
    }
    while high < ids.len() && ids[high] < id {
        (low, high, step) = (high, (high + step).min(ids.len()), step * 2);
    }
    let end = ids.len().min(high + 1);
    ids[low..end].binary_search(&id).map(|at| low + at).map_err(|at| low + at)
}

/// Finds ids of a list that stands for long without a search: where those begin whose hashes are in each of as many stretches as there are ids, about.
#[derive(Default, Debug)]
pub(crate) struct Stretches {
    starts: Vec<u32>,
    /// Bits of a hash that do not tell the stretch.
    low: u32,
}

impl Stretches {
    /// Of ids in order.
    pub(crate) fn of(ids: &[NodeId]) -> Self {
        let low = (ids.len() as u64).leading_zeros().clamp(u64::BITS - 31, u64::BITS - 1);
        let mut stretches = Self { starts: vec![0; (1 << (u64::BITS - low)) + 1], low };
        for &id in ids {
            let after = stretches.stretch(id) + 1;
            stretches.starts[after] += 1;
        }
        let mut before = 0;
        for start in &mut stretches.starts {
            before += *start;
            *start = before;
        }
        stretches
    }

    fn stretch(&self, id: NodeId) -> usize {
        (id.addr_hash() >> self.low) as usize
    }

    /// Where it stands in the list that this was made of.
    pub(crate) fn find(&self, ids: &[NodeId], id: NodeId) -> Option<usize> {
        let at = self.stretch(id);
        let (from, to) = (self.starts[at] as usize, self.starts[at + 1] as usize);
        ids[from..to].binary_search(&id).ok().map(|nth| from + nth)
    }
}

/// Looks up ids near the one that was looked up last: best if they come in order.
pub(crate) struct Cursor<'a> {
    ids: &'a [NodeId],
    at: usize,
}

/// How far ahead an id is looked for before it is searched.
const NEAR: usize = 8;

impl<'a> Cursor<'a> {
    pub(crate) fn of(ids: &'a [NodeId]) -> Self {
        Self { ids, at: 0 }
    }

    /// Where it stands.
    pub(crate) fn find(&mut self, id: NodeId) -> Option<usize> {
        let ahead = &self.ids[self.at..];
        let next = ahead.iter().take(NEAR).position(|&have| have >= id);
        self.at = match next {
            // What stands before it is lower.
            Some(on) if on > 0 || ahead[0] == id => self.at + on,
            _ => match search(self.ids, id) {
                Ok(at) | Err(at) => at,
            },
        };
        (self.ids.get(self.at) == Some(&id)).then_some(self.at)
    }
}

impl<V> IdMap<V> {
    pub(crate) fn with_room(count: usize) -> Self {
        Self { ids: Vec::with_capacity(count), values: Parts::default() }
    }

    pub(crate) fn len(&self) -> usize {
        self.ids.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// Where it stands in the order.
    pub(crate) fn rank(&self, id: &NodeId) -> Option<usize> {
        search(&self.ids, *id).ok()
    }

    /// What stands at a place in the order.
    pub(crate) fn at(&self, place: usize) -> Option<(NodeId, &V)> {
        Some((*self.ids.get(place)?, self.values.get(place)?))
    }

    pub(crate) fn get(&self, id: &NodeId) -> Option<&V> {
        self.rank(id).and_then(|at| self.values.get(at))
    }

    pub(crate) fn contains_key(&self, id: &NodeId) -> bool {
        self.rank(id).is_some()
    }

    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = (&NodeId, &V)> + ExactSizeIterator + Clone {
        self.ids.iter().zip(self.values.iter())
    }

    pub(crate) fn keys(&self) -> std::slice::Iter<'_, NodeId> {
        self.ids.iter()
    }

    pub(crate) fn values(&self) -> parts::Iter<'_, V> {
        self.values.iter()
    }

    pub(crate) fn range(&self, ids: RangeInclusive<NodeId>) -> impl Iterator<Item = (&NodeId, &V)> {
        let (Ok(from) | Err(from)) = search(&self.ids, *ids.start());
        let within = self.ids[from..].iter().take_while(move |id| *id <= ids.end());
        within.zip(self.values.from(from))
    }

    /// Whose values may be others than in the other map, in order: both share the rest in memory.
    pub(crate) fn beyond(&self, other: &Self) -> impl Iterator<Item = NodeId> {
        self.values.beyond(&other.values).map(|at| self.ids[at])
    }
}

impl<V: Clone> IdMap<V> {
    pub(crate) fn get_mut(&mut self, id: &NodeId) -> Option<&mut V> {
        self.rank(id).and_then(|at| self.values.get_mut(at))
    }

    pub(crate) fn insert(&mut self, id: NodeId, value: V) -> Option<V> {
        match search(&self.ids, id) {
            Ok(at) => self.values.get_mut(at).map(|old| std::mem::replace(old, value)),
            Err(at) => {
                self.ids.insert(at, id);
                self.values.insert(at, value);
                None
            }
        }
    }

    pub(crate) fn get_or_insert_with(&mut self, id: NodeId, value: impl FnOnce() -> V) -> &mut V {
        let at = match search(&self.ids, id) {
            Ok(at) => at,
            Err(at) => {
                self.ids.insert(at, id);
                self.values.insert(at, value());
                at
            }
        };
        self.values.get_mut(at).expect("a value stands where its id does")
    }

    pub(crate) fn remove(&mut self, id: &NodeId) -> Option<V> {
        self.rank(id).map(|at| {
            self.ids.remove(at);
            self.values.remove(at)
        })
    }

    pub(crate) fn retain(&mut self, mut keep: impl FnMut(&NodeId, &V) -> bool) {
        let keeps: Vec<bool> = self.iter().map(|(id, value)| keep(id, value)).collect();
        if keeps.contains(&false) {
            self.values.retain(&keeps);
            let mut keeps = keeps.into_iter();
            self.ids.retain(|_| keeps.next() == Some(true));
        }
    }

    /// Takes in the other's elements; `both` settles what stands here already.
    pub(crate) fn merge<'a>(&mut self, other: &'a Self, mut both: impl FnMut(&mut V, &'a V)) {
        let mut new: Vec<(NodeId, &'a V)> = vec![];
        for (&id, theirs) in other {
            match self.get_mut(&id) {
                Some(mine) => both(mine, theirs),
                None => new.push((id, theirs)),
            }
        }
        if new.is_empty() {
            return;
        }
        // Ids lie in one piece, of which each insertion would move the half; of the values it moves a part.
        let (mut ids, mut old) = (Vec::with_capacity(self.len() + new.len()), std::mem::take(&mut self.ids).into_iter().peekable());
        for (id, value) in new {
            while let Some(before) = old.next_if(|before| *before < id) {
                ids.push(before);
            }
            self.values.insert(ids.len(), value.clone());
            ids.push(id);
        }
        ids.extend(old);
        self.ids = ids;
    }

    /// Those for which that holds, to be changed. What is shared and has none of them stays so.
    pub(crate) fn values_mut_where(&mut self, fits: impl Fn(&V) -> bool + Copy) -> impl Iterator<Item = &mut V> {
        self.values.iter_mut_where(fits)
    }
}

impl<V> Index<&NodeId> for IdMap<V> {
    type Output = V;

    fn index(&self, id: &NodeId) -> &V {
        self.get(id).expect("the caller knows that the node is in the map")
    }
}

impl<V: Clone> Extend<(NodeId, V)> for IdMap<V> {
    fn extend<I: IntoIterator<Item = (NodeId, V)>>(&mut self, more: I) {
        for (id, value) in more {
            self.insert(id, value);
        }
    }
}

impl<V: Clone> FromIterator<(NodeId, V)> for IdMap<V> {
    fn from_iter<I: IntoIterator<Item = (NodeId, V)>>(all: I) -> Self {
        let all = all.into_iter();
        let mut map = Self::with_room(all.size_hint().0);
        map.extend(all);
        map
    }
}

impl<'a, V> IntoIterator for &'a IdMap<V> {
    type Item = (&'a NodeId, &'a V);
    type IntoIter = std::iter::Zip<std::slice::Iter<'a, NodeId>, parts::Iter<'a, V>>;

    fn into_iter(self) -> Self::IntoIter {
        self.ids.iter().zip(self.values.iter())
    }
}

impl<V: Clone> IntoIterator for IdMap<V> {
    type Item = (NodeId, V);
    type IntoIter = std::iter::Zip<std::vec::IntoIter<NodeId>, parts::IntoIter<V>>;

    fn into_iter(self) -> Self::IntoIter {
        self.ids.into_iter().zip(self.values)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    /// In the same order as the numbers, spread evenly or crowded at an end.
    fn id(n: u8, spread: u32) -> NodeId {
        NodeId::from_raw(if spread == 128 { u128::MAX - u128::from(255 - n) } else { u128::from(n) << spread })
    }

    proptest! {
        #[test]
        fn a_map_says_what_a_tree_says(ops in proptest::collection::vec((0u8..3, 0u8..100, any::<u8>()), 0..200),
                                    spread in prop_oneof![Just(0u32), Just(121), Just(128)]) {
            let id = |n: u8| id(n, spread);
            let mut map = IdMap::default();
            let mut tree = BTreeMap::new();
            for (op, n, v) in ops {
                match op {
                    0 => prop_assert_eq!(map.insert(id(n), v), tree.insert(id(n), v)),
                    1 => prop_assert_eq!(map.remove(&id(n)), tree.remove(&id(n))),
                    _ => {
                        let other: IdMap<u8> = [id(n), id(v % 100), id(3)].into_iter().map(|id| (id, v)).collect();
                        map.merge(&other, |mine, theirs| *mine = (*mine).max(*theirs));
                        for (id, theirs) in other {
                            tree.entry(id).and_modify(|mine| *mine = (*mine).max(theirs)).or_insert(theirs);
                        }
                    }
                }
                prop_assert!(map.iter().eq(tree.iter()));
                prop_assert!(map.range(id(3)..=id(9)).eq(tree.range(id(3)..=id(9))));
                prop_assert_eq!(map.get(&id(n)), tree.get(&id(n)));
                prop_assert_eq!(map.rank(&id(n)), tree.keys().position(|have| *have == id(n)));
                let ids = map.keys().as_slice();
                prop_assert_eq!(Stretches::of(ids).find(ids, id(n)), map.rank(&id(n)));
            }
        }
    }
}
