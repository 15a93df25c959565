//! From observers' rows to the cluster's verdict.

use std::{collections::BTreeSet, ops::Range, sync::Arc};

use super::{
    idmap::{Cursor, IdMap},
    monitors::Ring,
    pool::Pool,
    state::{Mark, Version},
};
use crate::{NodeId, config::DetectorVerdict};

/// Who is held unreachable, and by whom.
#[derive(Clone, PartialEq, Default, Debug)]
pub(crate) struct Verdict {
    /// Convicted subjects with all observers that hold a mark against them.
    pub(crate) unreachable: IdMap<Arc<[NodeId]>>,
    /// Convicted subjects whose port refuses connections, as a majority of their monitors found.
    pub(crate) gone: BTreeSet<NodeId>,
}

impl Verdict {
    /// Names what a view shows of it that hides some members.
    pub(crate) fn digest(&self, hidden: &BTreeSet<NodeId>) -> u128 {
        let by: usize = self.unreachable.values().map(|by| by.len()).sum();
        let mut bytes = Vec::with_capacity(self.unreachable.len() * 24 + (by + hidden.len()) * 16);
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
    pub(crate) version: &'a Arc<Version>,
    /// Who judges. Never convicts itself.
    pub(crate) me: NodeId,
    pub(crate) rule: DetectorVerdict,
    pub(crate) monitors: usize,
}

/// All that is held against one subject.
struct Case {
    subject: NodeId,
    /// On the ring; nowhere once it is down.
    place: Option<usize>,
    /// In the marks.
    against: Range<usize>,
    /// What the judge holds itself.
    own: Option<Mark>,
    convicted: bool,
}

/// Who elects whom, for as long as nobody else is discounted: where the electors of a place stand is found by counting, not by walking.
struct Electors {
    /// How many are not discounted before each place, and in all.
    before: Vec<u32>,
    most: usize,
}

impl Electors {
    fn new(discounted: &[bool], most: usize) -> Self {
        let mut count = 0;
        let counts = discounted.iter().map(|&discounted| {
            let before = count;
            count += u32::from(!discounted);
            before
        });
        let mut before: Vec<u32> = counts.collect();
        before.push(count);
        Self { before, most }
    }

    /// How many elect who stands there: the nearest before it that are not discounted.
    fn of(&self, at: usize) -> usize {
        let others = self.before[self.before.len() - 1] - (self.before[at + 1] - self.before[at]);
        self.most.min(others as usize)
    }

    /// Whether one that is not discounted is among those.
    fn has(&self, at: usize, by: usize) -> bool {
        let between = if by < at { 0 } else { self.before[self.before.len() - 1] } + self.before[at] - self.before[by + 1];
        by != at && (between as usize) < self.most
    }
}

/// Places of those that each accuses, by its own.
struct Accused {
    starts: Vec<u32>,
    places: Vec<u32>,
}

impl Accused {
    fn of(&self, by: usize) -> &[u32] {
        &self.places[self.starts[by] as usize..self.starts[by + 1] as usize]
    }
}

/// The cases, and who is no elector of others, by place on the ring.
struct Docket<'a> {
    court: Court<'a>,
    ring: &'a Ring,
    /// Who is never convicted.
    exempt: Option<NodeId>,
    /// Where the judge stands on the ring.
    judge: Option<usize>,
    /// Places of observers and what they hold, by subject, then observer's id. There can be thousands.
    marks: Vec<(u32, Mark)>,
    cases: Vec<Case>,
    discounted: Vec<bool>,
    /// Some accuse others and are accused themselves: the judge counted its own side alone.
    contested: bool,
}

impl Court<'_> {
    /// Judges all rows. `prior`: what was found last, of which whatever still holds is shared.
    ///
    /// First as everybody would who holds no mark itself: a monitor is discounted while that verdict holds it unreachable, so that across a split, or when
    /// monitors die with their subject, those who can still speak decide. Others' rows alone discount nobody, so that a sick observer cannot make
    /// itself the only judge. (With `quorum`, two rows do.)
    ///
    /// If this node holds marks beyond that, anew, without the word of those whom it holds unreachable itself. And where some accuse others and are
    /// accused as well, as when a split has just ended, without the word of those whom it does not reach.
    pub(crate) fn judge(&self, pool: Option<&Pool>, prior: &Arc<Verdict>) -> Arc<Verdict> {
        let verdict = self.found(pool, prior);
        if *verdict == **prior { Arc::clone(prior) } else { verdict }
    }

    fn found(&self, pool: Option<&Pool>, prior: &Verdict) -> Arc<Verdict> {
        let own = self.version.rows.get(&self.me).map(|row| &row.marks);
        let pool = pool.filter(|_| self.rule == DetectorVerdict::Pooled);
        let fits = |common: &Verdict| {
            let beyond = own.is_some_and(|own| own.subjects().any(|id| !common.unreachable.contains_key(&id)));
            !beyond && !common.unreachable.contains_key(&self.me)
        };
        if let Some(common) = pool.and_then(|pool| pool.judged(self.version)).filter(|common| fits(common)) {
            return common;
        }
        let mut docket = Docket::new(*self, Some(self.me));
        docket.decide();
        if docket.doubts() {
            docket.begin_anew();
            docket.decide();
        } else if let Some(pool) = pool.filter(|_| !docket.has(self.me) && !docket.contested) {
            // As everybody would have judged.
            let common = Arc::new(docket.verdict(prior));
            pool.found(self.version, &common);
            return common;
        }
        Arc::new(docket.verdict(prior))
    }

    /// Nothing of anybody reaches the judge: everybody else is out of reach.
    pub(crate) fn nobody_else(&self) -> Arc<Verdict> {
        let others = self.version.members.keys().filter(|id| **id != self.me);
        let by: Arc<[NodeId]> = [self.me].into();
        Arc::new(Verdict { unreachable: others.map(|&id| (id, Arc::clone(&by))).collect(), ..Verdict::default() })
    }
}

impl<'a> Docket<'a> {
    /// Rows of the dead do not count.
    fn new(court: Court<'a>, exempt: Option<NodeId>) -> Self {
        let members = &court.version.members;
        let (roster, ring) = (members.roster(), members.ring());
        let ids = &roster.ids;
        let all = court.version.rows.values().map(|row| row.marks.len()).sum();
        let mut found: Vec<(u32, u32, Mark)> = Vec::with_capacity(all);
        let mut places = ring.in_order();
        for (&observer, row) in court.version.rows.iter().filter(|(_, row)| !row.marks.is_empty()) {
            // The dead stand nowhere on the ring.
            let Some(place) = places.of(observer) else { continue };
            // Who accuses many has them side by side.
            let mut dense = (row.marks.len() * 8 > ids.len()).then(|| Cursor::of(ids));
            for (subject, mark) in row.marks.iter().filter(|&(subject, _)| subject != observer) {
                let rank = dense.as_mut().map_or_else(|| roster.rank(subject), |dense| dense.find(subject));
                if let Some(rank) = rank {
                    found.push((rank as u32, place as u32, mark));
                }
            }
        }
        let judge = ring.place_of(court.me);
        let mut docket = Self { court, ring, exempt, judge, marks: vec![], cases: vec![], discounted: vec![], contested: false };
        let Some(&(_, observer, mark)) = found.first() else { return docket };
        // By subject: they come in order of the observers already.
        let mut next = vec![0usize; ids.len() + 1];
        found.iter().for_each(|&(rank, ..)| next[rank as usize + 1] += 1);
        docket.cases.reserve(found.len().min(ids.len()));
        let mut places = ring.in_order();
        for rank in 0..ids.len() {
            if next[rank + 1] > 0 {
                let (subject, against) = (ids[rank], next[rank]..next[rank] + next[rank + 1]);
                docket.cases.push(Case { subject, place: places.of(subject), against, own: None, convicted: false });
            }
            next[rank + 1] += next[rank];
        }
        docket.marks = vec![(observer, mark); found.len()];
        for (rank, observer, mark) in found {
            let at = &mut next[rank as usize];
            docket.marks[*at] = (observer, mark);
            *at += 1;
        }
        if let Some(judge) = judge {
            let marks = &docket.marks;
            let own = |case: &Case| marks[case.against.clone()].iter().find(|&&(by, _)| by as usize == judge).map(|&(_, mark)| mark);
            docket.cases.iter_mut().for_each(|case| case.own = own(case));
        }
        docket.discounted = docket.discounted_at_first();
        docket
    }

    /// Who elects nobody before anybody is convicted.
    fn discounted_at_first(&self) -> Vec<bool> {
        let mut discounted = vec![false; self.ring.len()];
        if self.court.rule != DetectorVerdict::Pooled {
            let doubted = self.cases.iter().filter(|case| case.against.len() > 1 && Some(case.subject) != self.exempt);
            doubted.filter_map(|case| case.place).for_each(|at| discounted[at] = true);
        }
        discounted
    }

    fn accused_by_judge(&self) -> impl Iterator<Item = &Case> {
        self.cases.iter().filter(|case| case.own.is_some())
    }

    /// Whether the judge itself holds others unreachable than were convicted.
    fn doubts(&self) -> bool {
        self.accused_by_judge().any(|case| !case.convicted)
    }

    /// Whom the judge itself holds unreachable elects nobody, be it that they accuse others whom the judge can hear.
    fn begin_anew(&mut self) {
        let mut discounted = self.discounted_at_first();
        self.accused_by_judge().filter_map(|case| case.place).for_each(|at| discounted[at] = true);
        self.cases.iter_mut().for_each(|case| case.convicted = false);
        (self.discounted, self.contested) = (discounted, false);
    }

    fn has(&self, subject: NodeId) -> bool {
        self.cases.iter().any(|case| case.subject == subject)
    }

    /// Convicts until nobody is left to be convicted; who is convicted together is judged together.
    fn decide(&mut self) {
        loop {
            let electors = self.electors();
            let open = |case: &Case| !case.convicted && Some(case.subject) != self.exempt;
            let convicts = |(_, case): &(usize, &Case)| open(case) && self.convicts(case, Mark::Silent, &electors);
            let more: Vec<usize> = self.cases.iter().enumerate().filter(convicts).map(|(at, _)| at).collect();
            if more.is_empty() {
                return;
            }
            if !self.contested && self.accuses_itself(&more) {
                self.contested = true;
                self.hear_own_side();
                continue;
            }
            for at in more {
                self.cases[at].convicted = true;
                if let Some(place) = self.cases[at].place {
                    self.discounted[place] = true;
                }
            }
        }
    }

    /// Whether some of those are accused by others of them.
    fn accuses_itself(&self, cases: &[usize]) -> bool {
        let mut accused = vec![false; self.ring.len()];
        cases.iter().filter_map(|&at| self.cases[at].place).for_each(|place| accused[place] = true);
        let mut marks = cases.iter().flat_map(|&at| &self.marks[self.cases[at].against.clone()]);
        marks.any(|&(by, _)| accused[by as usize])
    }

    /// Whom the judge does not reach elects nobody: along monitors that get replies, from itself on, and not by those it holds unreachable itself. Who is
    /// not observed by the judge needs two such monitors, as one link that a cut has left would make both sides one.
    ///
    /// When a split ends, the marks of both sides meet in one state, and each convicts the other. They are withdrawn within some heartbeats by those
    /// who live. The marks of a side that has stopped meanwhile are not, and would keep the others apart until those stop as well. It is the same
    /// with those that fall silent after they have accused others.
    fn hear_own_side(&mut self) {
        let n = self.ring.len();
        let Some(mine) = self.judge else { return };
        let mut silent_to_me = vec![false; n];
        self.cases.iter().filter(|case| case.own.is_some()).filter_map(|case| case.place).for_each(|at| silent_to_me[at] = true);
        let accused_by = self.accused_by();
        let needed = self.court.monitors.min(2);
        let (mut reached, mut replies_to, mut open) = (vec![false; n], vec![0; n], vec![mine]);
        // By whom each was accused last of those that are looked at, one after the other.
        let mut accuser = vec![n; n];
        reached[mine] = true;
        while let Some(at) = open.pop() {
            accused_by.of(at).iter().for_each(|&place| accuser[place as usize] = at);
            // It observes one more for each whom it holds unreachable.
            let replies = (at + 1..n).chain(0..at).filter(|&place| accuser[place] != at);
            for place in replies.take(self.court.monitors).filter(|&place| !silent_to_me[place]) {
                replies_to[place] += 1;
                if (at == mine || replies_to[place] >= needed) && !std::mem::replace(&mut reached[place], true) {
                    open.push(place);
                }
            }
        }
        self.discounted.iter_mut().zip(reached).for_each(|(discounted, reached)| *discounted |= !reached);
    }

    /// The marks again, by who holds them.
    fn accused_by(&self) -> Accused {
        let against = |case: &Case| self.marks[case.against.clone()].iter().map(|&(by, _)| by as usize);
        let placed = || self.cases.iter().filter_map(|case| Some((case, case.place?)));
        let mut ends = vec![0u32; self.ring.len() + 1];
        placed().flat_map(|(case, _)| against(case)).for_each(|by| ends[by] += 1);
        let mut all = 0;
        for end in &mut ends {
            all += *end;
            *end = all;
        }
        let mut places = vec![0; all as usize];
        for (case, place) in placed() {
            for by in against(case) {
                ends[by] -= 1;
                places[ends[by] as usize] = place as u32;
            }
        }
        Accused { starts: ends, places }
    }

    fn electors(&self) -> Electors {
        Electors::new(&self.discounted, self.court.monitors)
    }

    fn convicts(&self, case: &Case, least: Mark, all: &Electors) -> bool {
        let rule = self.court.rule;
        let against = &self.marks[case.against.clone()];
        let heard = || against.iter().filter(|&&(by, _)| !self.discounted[by as usize]);
        if rule == DetectorVerdict::One && least == Mark::Silent {
            // Once the judge counts its own side alone, so it does with these.
            return !self.contested || heard().next().is_some();
        }
        if against.iter().all(|&(_, mark)| mark < least) {
            return false;
        }
        // Whoever is down has no monitors any more. The same for every judge: nobody is shown to have come back because it was downed.
        let Some(at) = case.place else { return true };
        let pooled = rule == DetectorVerdict::Pooled;
        let (mut electors, mut accusers, mut tested) = (all.of(at), 0, false);
        for &(by, mark) in heard() {
            if !all.has(at, by as usize) {
                if pooled {
                    continue;
                }
                electors += 1;
            }
            accusers += usize::from(mark >= least);
            tested |= mark == Mark::Convicted;
        }
        if electors == 0 {
            return case.own.is_some_and(|mark| mark >= least);
        }
        // Who convicts has counted the others' runs; one of them must have come to the same.
        (pooled && least == Mark::Silent && accusers > 1 && tested) || accusers * 2 > electors
    }

    fn verdict(&self, prior: &Verdict) -> Verdict {
        let convicted = || self.cases.iter().filter(|case| case.convicted);
        let electors = self.electors();
        let gone = convicted().filter(|case| self.convicts(case, Mark::Refused, &electors)).map(|case| case.subject).collect();
        let mut before = Cursor::of(prior.unreachable.keys().as_slice());
        let mut known = |case: &Case| {
            let by = || self.marks[case.against.clone()].iter().map(|&(by, _)| self.ring.at(by as usize));
            let known = before.find(case.subject).and_then(|at| prior.unreachable.at(at)).map(|(_, by)| by);
            known.filter(|known| known.iter().copied().eq(by())).cloned().unwrap_or_else(|| by().collect())
        };
        Verdict { unreachable: convicted().map(|case| (case.subject, known(case))).collect(), gone }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::{
        super::{
            Member, MemberInfo, MemberStatus,
            state::{Entry, Row, State},
        },
        *,
    };
    use crate::NodeAddr;

    struct World {
        state: State,
        ids: Vec<NodeId>,
    }

    impl World {
        fn new(n: u16) -> Self {
            let mut state = State::default();
            let mut ids = vec![];
            for port in 1..=n {
                let addr = NodeAddr::new("h", port);
                let id = NodeId::new(&addr, 1);
                let up = Member::new(MemberInfo::bare(id, addr), MemberStatus::Up, 0);
                state.members_mut().insert(id, Entry { joined: 1, ..up.into() });
                ids.push(id);
            }
            Self { state, ids }
        }

        fn mark(&mut self, observer: usize, subjects: &[usize], mark: Mark) {
            let marks = subjects.iter().map(|&s| (self.ids[s], mark)).collect();
            let row = Row { version: 1, dot: 1, marks };
            self.state.rows_mut().insert(self.ids[observer], row);
        }

        fn verdict(&self, me: usize, rule: DetectorVerdict) -> Vec<usize> {
            let court = Court { version: &self.state.version, me: self.ids[me], rule, monitors: 5 };
            court
                .judge(None, &Arc::default())
                .unreachable
                .keys()
                .map(|id| self.ids.iter().position(|i| i == id).unwrap())
                .collect::<BTreeSet<_>>()
                .into_iter()
                .collect()
        }
    }

    #[test]
    fn electors_are_counted_as_they_would_be_walked() {
        let mut rng = crate::proto::rng::Rng::new(7);
        for round in 0..500 {
            let (n, most) = (1 + round % 12, 1 + rng.below(6) as usize);
            let discounted: Vec<bool> = (0..n).map(|_| rng.below(3) == 0).collect();
            let electors = Electors::new(&discounted, most);
            for at in 0..n {
                let before = (0..at).rev().chain((at + 1..n).rev());
                let walked: Vec<usize> = before.filter(|&place| !discounted[place]).take(most).collect();
                assert_eq!(electors.of(at), walked.len(), "of {at} in {discounted:?}");
                for by in (0..n).filter(|&by| !discounted[by]) {
                    assert_eq!(electors.has(at, by), walked.contains(&by), "{by} of {at} in {discounted:?}");
                }
            }
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

    #[test]
    fn when_the_marks_of_both_sides_meet_each_side_believes_its_own() {
        let rules = [DetectorVerdict::Pooled, DetectorVerdict::Quorum, DetectorVerdict::One];
        for (n, rule) in (4..=12u16).flat_map(|n| rules.map(|rule| (n, rule))) {
            for small in 2..=n / 2 {
                let mut w = World::new(n);
                let here: Vec<usize> = (0..usize::from(small)).collect();
                let there: Vec<usize> = (usize::from(small)..usize::from(n)).collect();
                for (side, other) in [(&here, &there), (&there, &here)] {
                    for &observer in side {
                        w.mark(observer, other, Mark::Convicted);
                    }
                }
                for me in 0..usize::from(n) {
                    let expected = if here.contains(&me) { &there } else { &here };
                    assert_eq!(&w.verdict(me, rule), expected, "as {me} sees it, {small} of {n}, {rule:?}");
                }
            }
        }
    }

    #[test]
    fn one_link_that_a_cut_has_left_does_not_make_both_sides_one() {
        let (n, here) = (20usize, 0..9usize);
        let observed = |w: &World, observer: usize| -> Vec<usize> {
            // On past those it holds unreachable.
            let is_cut_off = |id: NodeId| (0..n).any(|at| w.ids[at] == id && here.contains(&at) != here.contains(&observer));
            let observed = w.state.members.ring().subjects(w.ids[observer], 5, is_cut_off);
            (0..n).filter(|&at| observed.contains(&w.ids[at])).collect()
        };
        let unmarked = World::new(n as u16);
        let left = here.clone().flat_map(|a| observed(&unmarked, a).into_iter().filter(|b| *b >= 9).map(move |b| (a, b)));
        for (a, b) in left {
            let mut w = World::new(n as u16);
            for observer in 0..n {
                let other = |at: &usize| here.contains(at) != here.contains(&observer) && ![(a, b), (b, a)].contains(&(observer, *at));
                let marks: Vec<usize> = observed(&w, observer).into_iter().filter(other).collect();
                w.mark(observer, &marks, Mark::Convicted);
            }
            for me in (0..n).filter(|&me| me != a && me != b) {
                let side: Vec<usize> = (0..n).filter(|&at| here.contains(&at) != here.contains(&me)).collect();
                assert_eq!(w.verdict(me, DetectorVerdict::Pooled), side, "as {me} sees it, with {a} and {b} in contact");
            }
        }
    }

    #[test]
    fn the_marks_of_a_side_that_has_stopped_convict_nobody() {
        let mut w = World::new(9);
        let (stopped, living) = ([0, 7, 8], [1, 2, 3, 4, 5, 6]);
        for observer in living {
            w.mark(observer, &stopped, Mark::Silent);
        }
        // Each of them had accused some.
        w.mark(0, &[1, 2, 5, 6], Mark::Convicted);
        w.mark(7, &[1, 3, 4, 5], Mark::Convicted);
        w.mark(8, &[2, 3, 4, 6], Mark::Convicted);
        for me in living {
            assert_eq!(w.verdict(me, DetectorVerdict::Pooled), stopped, "as {me} sees it");
        }
    }

    #[test]
    fn the_dead_that_had_accused_each_other_hide_nobody() {
        let mut w = World::new(60);
        let (living, dead): (Vec<usize>, Vec<usize>) = ((0..25).collect(), (25..60).collect());
        for &observer in &living {
            // It looks on past those it holds unreachable; the next five of some are all dead.
            let is_dead = |id: NodeId| w.ids[25..].contains(&id);
            let observed = w.state.members.ring().subjects(w.ids[observer], 5, is_dead);
            let marks: Vec<usize> = (25..60).filter(|&at| observed.contains(&w.ids[at])).collect();
            w.mark(observer, &marks, Mark::Convicted);
        }
        for pair in dead.chunks_exact(2) {
            w.mark(pair[0], &[pair[1]], Mark::Convicted);
        }
        for me in living {
            assert_eq!(w.verdict(me, DetectorVerdict::Pooled), dead, "as {me} sees it");
        }
    }

    #[test]
    fn who_is_silent_for_the_judge_accuses_nobody_whom_it_hears() {
        // 2 and 4 were cut off, and are anew. At first 3 alone holds that against them, then 0 does as well.
        let rows: [(usize, &[usize], &[usize]); 2] = [(3, &[3], &[]), (0, &[3, 0], &[2, 4])];
        for (me, observers, expected) in rows {
            let mut w = World::new(5);
            for cut_off in [2, 4] {
                w.mark(cut_off, &[0, 1, 3], Mark::Convicted);
            }
            for &observer in observers {
                w.mark(observer, &[2, 4], Mark::Convicted);
            }
            assert_eq!(w.verdict(me, DetectorVerdict::Pooled), expected, "as {me} sees it");
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
    fn who_is_down_stays_out_of_reach_for_every_judge() {
        let mut w = World::new(6);
        w.mark(0, &[5], Mark::Silent);
        w.state.raise(w.ids[5], MemberStatus::Down);
        for me in 0..5 {
            for rule in [DetectorVerdict::Pooled, DetectorVerdict::Quorum, DetectorVerdict::One] {
                assert_eq!(w.verdict(me, rule), [5], "as {me} sees it, {rule:?}");
            }
        }
    }

    #[test]
    fn gone_needs_refusals_from_a_majority() {
        let mut w = World::new(3);
        let court = |w: &World| {
            Court { version: &w.state.version, me: w.ids[0], rule: DetectorVerdict::Quorum, monitors: 5 }
                .judge(None, &Arc::default())
                .gone
                .len()
        };
        w.mark(0, &[2], Mark::Refused);
        assert_eq!(court(&w), 0);
        w.mark(1, &[2], Mark::Silent);
        assert_eq!(court(&w), 0);
        w.mark(1, &[2], Mark::Refused);
        assert_eq!(court(&w), 1);
    }
}
