//! What one observer holds against others: few, read far more often than changed, and in one piece of memory.

use std::sync::Arc;

use super::version::Mark;
use crate::NodeId;

/// Marks by subject. Cheap to clone.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct Marks {
    all: Arc<[(NodeId, Mark)]>,
    /// Whether one of them is of refused connections: looked for among all rows, and rare.
    refuses: bool,
}

impl Marks {
    fn of(all: Arc<[(NodeId, Mark)]>) -> Self {
        let refuses = all.iter().any(|&(_, mark)| mark == Mark::Refused);
        Self { all, refuses }
    }

    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub(crate) fn refuses(&self) -> bool {
        self.refuses
    }

    pub(crate) fn get(&self, subject: NodeId) -> Option<Mark> {
        self.all.binary_search_by_key(&subject, |&(id, _)| id).ok().map(|at| self.all[at].1)
    }

    pub(crate) fn has(&self, subject: NodeId) -> bool {
        self.get(subject).is_some()
    }

    /// In the order of the subjects.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (NodeId, Mark)> + '_ {
        self.all.iter().copied()
    }

    pub(crate) fn subjects(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.all.iter().map(|&(id, _)| id)
    }

    /// Holds that against the subject from now on, or nothing.
    pub(crate) fn set(&mut self, subject: NodeId, mark: Option<Mark>) {
        let mut all = self.all.to_vec();
        match (all.binary_search_by_key(&subject, |&(id, _)| id), mark) {
            (Ok(at), Some(mark)) => all[at].1 = mark,
            (Ok(at), None) => drop(all.remove(at)),
            (Err(at), Some(mark)) => all.insert(at, (subject, mark)),
            (Err(_), None) => return,
        }
        *self = Self::of(all.into());
    }

    pub(crate) fn retain(&mut self, keep: impl Fn(&NodeId) -> bool) {
        if !self.all.iter().all(|(id, _)| keep(id)) {
            *self = Self::of(self.all.iter().filter(|(id, _)| keep(id)).copied().collect());
        }
    }
}

impl FromIterator<(NodeId, Mark)> for Marks {
    fn from_iter<I: IntoIterator<Item = (NodeId, Mark)>>(all: I) -> Self {
        let mut all: Vec<(NodeId, Mark)> = all.into_iter().collect();
        all.sort_unstable_by_key(|&(id, _)| id);
        all.dedup_by_key(|(id, _)| *id);
        Self::of(all.into())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn they_say_what_a_tree_says(ops in proptest::collection::vec((0u8..4, 0u8..12), 0..60)) {
            let (mut marks, mut tree) = (Marks::default(), BTreeMap::new());
            for (op, n) in ops {
                let id = NodeId::from_raw(u128::from(n));
                let mark = [None, Some(Mark::Silent), Some(Mark::Refused)].get(usize::from(op)).copied();
                match mark {
                    Some(Some(mark)) => drop(tree.insert(id, mark)),
                    Some(None) => drop(tree.remove(&id)),
                    None => tree.retain(|have, _| have.raw() % 2 == id.raw() % 2),
                }
                match mark {
                    Some(mark) => marks.set(id, mark),
                    None => marks.retain(|have| have.raw() % 2 == id.raw() % 2),
                }
                prop_assert!(marks.iter().eq(tree.iter().map(|(&id, &mark)| (id, mark))));
                prop_assert!(marks.subjects().eq(tree.keys().copied()));
                prop_assert_eq!((marks.get(id), marks.has(id), marks.len()), (tree.get(&id).copied(), tree.contains_key(&id), tree.len()));
                prop_assert_eq!(&marks, &tree.iter().rev().map(|(&id, &mark)| (id, mark)).collect::<Marks>());
            }
        }
    }
}
