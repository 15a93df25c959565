//! From observers' rows to the cluster's verdict.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    MemberStatus,
    monitors::Ring,
    state::{Mark, State},
};
use crate::{NodeId, config::DetectorVerdict};

/// Who is held unreachable, and by whom.
#[derive(Clone, PartialEq, Default, Debug)]
pub(crate) struct Verdict {
    /// Convicted subjects with all observers that hold a mark against them.
    pub(crate) unreachable: BTreeMap<NodeId, Vec<NodeId>>,
    /// Convicted subjects whose port refuses connections, as a majority of their monitors found.
    pub(crate) gone: BTreeSet<NodeId>,
}

impl Verdict {
    /// Names what a view shows of it that hides some members.
    pub(crate) fn digest(&self, hidden: &BTreeSet<NodeId>) -> u128 {
        let mut bytes = vec![];
        for (subject, by) in &self.unreachable {
            bytes.extend_from_slice(&subject.raw().to_le_bytes());
            by.iter().for_each(|id| bytes.extend_from_slice(&id.raw().to_le_bytes()));
            bytes.extend_from_slice(&(by.len() as u64).to_le_bytes());
        }
        hidden.iter().for_each(|id| bytes.extend_from_slice(&id.raw().to_le_bytes()));
        xxhash_rust::xxh3::xxh3_128(&bytes)
    }
}

/// How the rows are judged.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Court<'a> {
    pub(crate) state: &'a State,
    pub(crate) ring: &'a Ring,
    /// Who judges. Never convicts itself.
    pub(crate) me: NodeId,
    pub(crate) rule: DetectorVerdict,
    pub(crate) monitors: usize,
}

type Marks = BTreeMap<NodeId, BTreeMap<NodeId, Mark>>;

impl Court<'_> {
    /// Judges all rows.
    ///
    /// A monitor is discounted while the judge's own row or the verdict itself hold it unreachable: across a split, or when monitors die with
    /// their subject, those who can still speak decide. Others' rows alone discount nobody, so that a sick observer cannot make itself the
    /// only judge. (With `quorum`, two rows do.)
    pub(crate) fn judge(&self) -> Verdict {
        let marks = self.marks();
        let mut convicted = BTreeSet::new();
        loop {
            let more: Vec<NodeId> = marks
                .keys()
                .copied()
                .filter(|subject| !convicted.contains(subject) && self.convicts(&marks, &convicted, *subject, Mark::Silent))
                .collect();
            if more.is_empty() {
                break;
            }
            convicted.extend(more);
        }
        let gone = convicted.iter().copied().filter(|&s| self.convicts(&marks, &convicted, s, Mark::Refused)).collect();
        let unreachable = convicted.iter().map(|id| (*id, marks[id].keys().copied().collect())).collect();
        Verdict { unreachable, gone }
    }

    /// Nothing of anybody reaches the judge: everybody else is out of reach.
    pub(crate) fn nobody_else(&self) -> Verdict {
        let others = self.state.members.keys().filter(|id| **id != self.me);
        Verdict { unreachable: others.map(|&id| (id, vec![self.me])).collect(), ..Verdict::default() }
    }

    fn convicts(&self, marks: &Marks, convicted: &BTreeSet<NodeId>, subject: NodeId, least: Mark) -> bool {
        let against = &marks[&subject];
        if self.rule == DetectorVerdict::One && least == Mark::Silent {
            return !against.is_empty();
        }
        let pooled = self.rule == DetectorVerdict::Pooled;
        let discounted = |id: NodeId| id != self.me && (convicted.contains(&id) || self.doubted(marks, id));
        let mut electors: BTreeSet<NodeId> = self.ring.observers(subject, self.monitors, discounted).into_iter().collect();
        if !pooled {
            electors.extend(against.keys());
        }
        electors.retain(|&id| id != subject && !discounted(id));
        let accusers = electors.iter().filter(|id| against.get(id).is_some_and(|&m| m >= least)).count();
        if electors.is_empty() {
            return against.get(&self.me).is_some_and(|&m| m >= least);
        }
        // Who convicts has counted the others' runs; one of them must have come to the same.
        let tested = pooled && least == Mark::Silent && accusers > 1 && electors.iter().any(|id| against.get(id) == Some(&Mark::Convicted));
        tested || accusers * 2 > electors.len()
    }

    fn doubted(&self, marks: &Marks, id: NodeId) -> bool {
        let pooled = self.rule == DetectorVerdict::Pooled;
        marks.get(&id).is_some_and(|against| against.contains_key(&self.me) || (!pooled && against.len() > 1))
    }

    /// Marks by subject; rows of the dead do not count.
    fn marks(&self) -> Marks {
        let mut marks = Marks::new();
        for (&observer, row) in &*self.state.rows {
            if self.state.status(observer).is_none_or(|s| s >= MemberStatus::Down) {
                continue;
            }
            for (&subject, &mark) in row.marks.iter().filter(|&(&s, _)| s != self.me && s != observer) {
                marks.entry(subject).or_default().insert(observer, mark);
            }
        }
        marks
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::{
        super::state::{Entry, Info, Row},
        *,
    };
    use crate::NodeAddr;

    struct World {
        state: State,
        ids: Vec<NodeId>,
        ring: Ring,
    }

    impl World {
        fn new(n: u16) -> Self {
            let mut state = State::default();
            let mut ids = vec![];
            for port in 1..=n {
                let addr = NodeAddr::new("h", port);
                let id = NodeId::new(&addr, 1);
                let info = Arc::new(Info { id, addr, roles: [].into(), app_version: "".into() });
                state.members_mut().insert(id, Entry { status: MemberStatus::Up, ..Entry::joining(info, 1) });
                ids.push(id);
            }
            let ring = Ring::new(ids.iter().copied());
            Self { state, ids, ring }
        }

        fn mark(&mut self, observer: usize, subjects: &[usize], mark: Mark) {
            let row = Row { version: 1, dot: 1, marks: subjects.iter().map(|&s| (self.ids[s], mark)).collect() };
            self.state.rows_mut().insert(self.ids[observer], row);
        }

        fn verdict(&self, me: usize, rule: DetectorVerdict) -> Vec<usize> {
            let court = Court { state: &self.state, ring: &self.ring, me: self.ids[me], rule, monitors: 5 };
            court
                .judge()
                .unreachable
                .keys()
                .map(|id| self.ids.iter().position(|i| i == id).unwrap())
                .collect::<BTreeSet<_>>()
                .into_iter()
                .collect()
        }
    }

    #[test]
    fn one_observer_suffices_under_one_and_all_must_withdraw() {
        let mut w = World::new(5);
        w.mark(0, &[3], Mark::Silent);
        w.mark(1, &[3], Mark::Silent);
        assert_eq!(w.verdict(2, DetectorVerdict::One), [3]);
        w.mark(0, &[], Mark::Silent);
        assert_eq!(w.verdict(2, DetectorVerdict::One), [3]);
        w.mark(1, &[], Mark::Silent);
        assert!(w.verdict(2, DetectorVerdict::One).is_empty());
    }

    #[test]
    fn a_majority_of_the_monitors_convicts() {
        let mut w = World::new(6);
        for (observer, expected) in [(0, vec![]), (1, vec![]), (2, vec![5])] {
            w.mark(observer, &[5], Mark::Silent);
            assert_eq!(w.verdict(3, DetectorVerdict::Quorum), expected, "with {} marks", observer + 1);
        }
    }

    #[test]
    fn the_single_observer_of_two_nodes_decides() {
        let mut w = World::new(2);
        w.mark(0, &[1], Mark::Silent);
        assert_eq!(w.verdict(0, DetectorVerdict::Quorum), [1]);
    }

    #[test]
    fn a_cut_between_two_of_three_convicts_nobody() {
        let mut w = World::new(3);
        w.mark(0, &[1], Mark::Silent);
        w.mark(1, &[0], Mark::Silent);
        for me in 0..3 {
            assert!(w.verdict(me, DetectorVerdict::Quorum).is_empty(), "as {me} sees it");
        }
    }

    #[test]
    fn both_sides_of_every_split_see_the_other() {
        for n in 2..=9u16 {
            for small in 1..n {
                let mut w = World::new(n);
                let here: Vec<usize> = (0..usize::from(small)).collect();
                let there: Vec<usize> = (usize::from(small)..usize::from(n)).collect();
                for &observer in &here {
                    // Whoever of the other side it observes, once it has walked past those it holds unreachable.
                    w.mark(observer, &there, Mark::Silent);
                }
                assert_eq!(w.verdict(0, DetectorVerdict::Quorum), there, "{small} of {n}");
            }
        }
    }

    // failures: row 43
    #[test]
    fn a_sick_observer_convicts_nobody_for_others() {
        for n in 3..=9u16 {
            let mut w = World::new(n);
            let all: Vec<usize> = (1..usize::from(n)).collect();
            w.mark(0, &all, Mark::Silent);
            for &me in &all {
                assert!(w.verdict(me, DetectorVerdict::Quorum).is_empty(), "as {me} of {n} sees it");
            }
        }
    }

    #[test]
    fn two_dead_of_three_are_seen_by_the_third() {
        let mut w = World::new(3);
        w.mark(0, &[1, 2], Mark::Silent);
        assert_eq!(w.verdict(0, DetectorVerdict::Quorum), [1, 2]);
    }

    #[test]
    fn rows_of_the_downed_do_not_count() {
        let mut w = World::new(2);
        w.mark(1, &[0], Mark::Silent);
        w.state.raise(w.ids[1], MemberStatus::Down);
        assert!(w.verdict(0, DetectorVerdict::One).is_empty());
    }

    #[test]
    fn gone_needs_refusals_from_a_majority() {
        let mut w = World::new(3);
        let court = |w: &World| {
            Court { state: &w.state, ring: &w.ring, me: w.ids[0], rule: DetectorVerdict::Quorum, monitors: 5 }.judge().gone.len()
        };
        w.mark(0, &[2], Mark::Refused);
        assert_eq!(court(&w), 0);
        w.mark(1, &[2], Mark::Silent);
        assert_eq!(court(&w), 0);
        w.mark(1, &[2], Mark::Refused);
        assert_eq!(court(&w), 1);
    }
}
