//! Maps and sets by node id, as sorted arrays: read and walked far more often than they grow.

use std::ops::{Index, RangeInclusive};

use crate::NodeId;

/// A map from node ids, walked in their order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct IdMap<V>(Vec<(NodeId, V)>);

impl<V> Default for IdMap<V> {
    fn default() -> Self {
        Self(vec![])
    }
}

impl<V> IdMap<V> {
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn place(&self, id: NodeId) -> Result<usize, usize> {
        // What is read or received in order goes to the end.
        match self.0.last() {
            Some((last, _)) if *last < id => Err(self.0.len()),
            _ => self.0.binary_search_by_key(&id, |&(id, _)| id),
        }
    }

    pub(crate) fn get(&self, id: &NodeId) -> Option<&V> {
        self.place(*id).ok().map(|at| &self.0[at].1)
    }

    pub(crate) fn get_mut(&mut self, id: &NodeId) -> Option<&mut V> {
        self.place(*id).ok().map(|at| &mut self.0[at].1)
    }

    pub(crate) fn contains_key(&self, id: &NodeId) -> bool {
        self.place(*id).is_ok()
    }

    pub(crate) fn insert(&mut self, id: NodeId, value: V) -> Option<V> {
        match self.place(id) {
            Ok(at) => Some(std::mem::replace(&mut self.0[at].1, value)),
            Err(at) => {
                self.0.insert(at, (id, value));
                None
            }
        }
    }

    pub(crate) fn get_or_insert_with(&mut self, id: NodeId, value: impl FnOnce() -> V) -> &mut V {
        let at = match self.place(id) {
            Ok(at) => at,
            Err(at) => {
                self.0.insert(at, (id, value()));
                at
            }
        };
        &mut self.0[at].1
    }

    pub(crate) fn remove(&mut self, id: &NodeId) -> Option<V> {
        self.place(*id).ok().map(|at| self.0.remove(at).1)
    }

    pub(crate) fn retain(&mut self, mut keep: impl FnMut(&NodeId, &mut V) -> bool) {
        self.0.retain_mut(|(id, value)| keep(id, value));
    }

    /// Takes in the other's elements; `both` settles what stands here already.
    pub(crate) fn merge<'a>(&mut self, other: &'a Self, mut both: impl FnMut(&mut V, &'a V))
    where
        V: Clone,
    {
        let (mut at, sorted) = (0, self.0.len());
        for (id, theirs) in &other.0 {
            at += self.0[at..sorted].partition_point(|(mine, _)| mine < id);
            match self.0[..sorted].get_mut(at) {
                Some((mine, value)) if mine == id => both(value, theirs),
                _ => self.0.push((*id, theirs.clone())),
            }
        }
        if self.0.len() > sorted && sorted > 0 {
            self.0.sort_by_key(|&(id, _)| id);
        }
    }

    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = (&NodeId, &V)> + ExactSizeIterator + Clone {
        self.0.iter().map(|(id, value)| (id, value))
    }

    pub(crate) fn keys(&self) -> impl DoubleEndedIterator<Item = &NodeId> + ExactSizeIterator + Clone {
        self.0.iter().map(|(id, _)| id)
    }

    pub(crate) fn values(&self) -> impl DoubleEndedIterator<Item = &V> + ExactSizeIterator + Clone {
        self.0.iter().map(|(_, value)| value)
    }

    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        self.0.iter_mut().map(|(_, value)| value)
    }

    pub(crate) fn range(&self, ids: RangeInclusive<NodeId>) -> impl Iterator<Item = (&NodeId, &V)> {
        let from = self.0.partition_point(|(id, _)| id < ids.start());
        self.0[from..].iter().take_while(move |(id, _)| id <= ids.end()).map(|(id, value)| (id, value))
    }
}

impl<V> Index<&NodeId> for IdMap<V> {
    type Output = V;

    fn index(&self, id: &NodeId) -> &V {
        self.get(id).expect("the caller knows that the node is in the map")
    }
}

impl<V> Extend<(NodeId, V)> for IdMap<V> {
    fn extend<I: IntoIterator<Item = (NodeId, V)>>(&mut self, more: I) {
        for (id, value) in more {
            self.insert(id, value);
        }
    }
}

impl<V> FromIterator<(NodeId, V)> for IdMap<V> {
    fn from_iter<I: IntoIterator<Item = (NodeId, V)>>(all: I) -> Self {
        let mut map = Self::default();
        map.extend(all);
        map
    }
}

impl<'a, V> IntoIterator for &'a IdMap<V> {
    type Item = (&'a NodeId, &'a V);
    type IntoIter = std::iter::Map<std::slice::Iter<'a, (NodeId, V)>, fn(&'a (NodeId, V)) -> (&'a NodeId, &'a V)>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter().map(|(id, value)| (id, value))
    }
}

impl<V> IntoIterator for IdMap<V> {
    type Item = (NodeId, V);
    type IntoIter = std::vec::IntoIter<(NodeId, V)>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

/// A set of node ids, walked in their order.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct IdSet(Vec<NodeId>);

impl IdSet {
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn contains(&self, id: &NodeId) -> bool {
        self.0.binary_search(id).is_ok()
    }

    /// False if it was there.
    pub(crate) fn insert(&mut self, id: NodeId) -> bool {
        self.0.binary_search(&id).map_err(|at| self.0.insert(at, id)).is_err()
    }

    #[cfg(test)]
    pub(crate) fn remove(&mut self, id: &NodeId) -> bool {
        self.0.binary_search(id).map(|at| self.0.remove(at)).is_ok()
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    pub(crate) fn retain(&mut self, mut keep: impl FnMut(&NodeId) -> bool) {
        self.0.retain(|id| keep(id));
    }

    pub(crate) fn iter(&self) -> std::slice::Iter<'_, NodeId> {
        self.0.iter()
    }
}

impl Extend<NodeId> for IdSet {
    fn extend<I: IntoIterator<Item = NodeId>>(&mut self, more: I) {
        let sorted = self.0.len();
        self.0.extend(more);
        match self.0.len() - sorted {
            0 => {}
            1 => {
                let id = self.0.remove(sorted);
                self.insert(id);
            }
            _ => {
                self.0.sort();
                self.0.dedup();
            }
        }
    }
}

impl FromIterator<NodeId> for IdSet {
    fn from_iter<I: IntoIterator<Item = NodeId>>(all: I) -> Self {
        let mut set = Self::default();
        set.extend(all);
        set
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use super::*;

    fn id(n: u8) -> NodeId {
        NodeId::from_raw(u128::from(n))
    }

    proptest! {
        #[test]
        fn both_say_what_the_trees_say(ops in proptest::collection::vec((0u8..5, 0u8..20, any::<u8>()), 0..60)) {
            let (mut map, mut set) = (IdMap::default(), IdSet::default());
            let (mut tree, mut ids) = (BTreeMap::new(), BTreeSet::new());
            for (op, n, v) in ops {
                match op {
                    0 => prop_assert_eq!(map.insert(id(n), v), tree.insert(id(n), v)),
                    1 => prop_assert_eq!(map.remove(&id(n)), tree.remove(&id(n))),
                    2 => prop_assert_eq!(set.insert(id(n)), ids.insert(id(n))),
                    3 => {
                        let more = [id(n), id(v % 20), id(n / 2)];
                        set.extend(more);
                        ids.extend(more);
                    }
                    _ => {
                        let other: IdMap<u8> = [id(n), id(v % 20), id(3)].into_iter().map(|id| (id, v)).collect();
                        map.merge(&other, |mine, theirs| *mine = (*mine).max(*theirs));
                        for (id, theirs) in other {
                            tree.entry(id).and_modify(|mine| *mine = (*mine).max(theirs)).or_insert(theirs);
                        }
                    }
                }
                prop_assert!(map.iter().eq(tree.iter()));
                prop_assert!(set.iter().eq(ids.iter()));
                prop_assert!(map.range(id(3)..=id(9)).eq(tree.range(id(3)..=id(9))));
                prop_assert_eq!((map.get(&id(n)), set.contains(&id(n))), (tree.get(&id(n)), ids.contains(&id(n))));
            }
        }
    }
}
