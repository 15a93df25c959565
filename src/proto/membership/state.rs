//! What this node holds of the gossiped state: a version, who has seen exactly that one, and what only this node knows of it.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Deref,
    sync::Arc,
    time::Duration,
};

use super::{
    MemberStatus,
    bits::Bits,
    clock::{Dots, VectorClock},
    idmap::IdMap,
};
pub(crate) use super::{
    version::{Entry, Folk, Gone, Mark, Row, Tombstone, Version},
    view::MemberInfo,
};
use crate::{NodeId, Time};

/// Most members of a cluster.
pub(crate) const MEMBERS_MAX: usize = 20_000;
/// Most tombstones kept; the oldest go first.
pub(crate) const TOMBSTONES_MAX: usize = 4_096;

/// Everything that is gossiped. Read like the version that it holds.
#[derive(Clone, Default, Debug)]
pub(crate) struct State {
    /// Drawn when the cluster was formed: tells it from others of the same name.
    pub(crate) uid: u64,
    pub(crate) version: Arc<Version>,
    /// When each tombstone was set, on this node's clock; it travels as an age.
    buried: BTreeMap<NodeId, Time>,
    /// None of them was set before, so that rounds in which none is due look at none.
    oldest: Option<Time>,
    /// Who has seen exactly this version.
    seen: Bits,
}

impl Deref for State {
    type Target = Version;

    fn deref(&self) -> &Version {
        &self.version
    }
}

impl State {
    /// Of a new cluster that nobody belongs to.
    pub(crate) fn founded(uid: u64) -> Self {
        Self { uid, ..Self::default() }
    }

    /// As another member sent it to one that knew nothing.
    pub(crate) fn taken_over(uid: u64, mut version: Arc<Version>, buried: Vec<(NodeId, Time)>, seen: &[u8]) -> Self {
        Version::tidy(&mut version);
        let seen = Bits::from_bytes(seen, version.members.len());
        let oldest = buried.iter().map(|&(_, since)| since).min();
        Self { uid, version, buried: buried.into_iter().collect(), oldest, seen }
    }

    /// To change it: nobody has seen what it becomes.
    pub(crate) fn edit(&mut self) -> &mut Version {
        self.seen.clear();
        Version::edit(&mut self.version)
    }

    pub(crate) fn members_mut(&mut self) -> &mut IdMap<Entry> {
        Folk::edit(&mut self.edit().members)
    }

    pub(crate) fn rows_mut(&mut self) -> &mut IdMap<Row> {
        Arc::make_mut(&mut self.edit().rows)
    }

    fn clock_mut(&mut self) -> &mut VectorClock {
        Arc::make_mut(&mut self.edit().clock)
    }

    fn tombstones_mut(&mut self) -> &mut BTreeMap<NodeId, Tombstone> {
        Arc::make_mut(&mut self.edit().tombstones)
    }

    /// Stands at another version, in which `buried` were known to be gone since then. Who has seen it is not known.
    pub(crate) fn advance(&mut self, version: Arc<Version>, buried: impl IntoIterator<Item = (NodeId, Time)>) {
        self.version = version;
        self.seen.clear();
        self.date(buried);
    }

    /// Stands at a version of the same digest: whoever has seen the one has seen the other.
    pub(crate) fn stay(&mut self, version: Arc<Version>, buried: impl IntoIterator<Item = (NodeId, Time)>) {
        self.version = version;
        self.date(buried);
    }

    /// Takes the earlier date of what lies buried, and forgets the dates of what does not.
    pub(crate) fn date(&mut self, buried: impl IntoIterator<Item = (NodeId, Time)>) {
        for (id, since) in buried {
            let known = self.buried.entry(id).or_insert(since);
            *known = since.min(*known);
            self.oldest = Some(self.oldest.map_or(since, |oldest| oldest.min(since)));
        }
        let tombstones = &self.version.tombstones;
        self.buried.retain(|id, _| tombstones.contains_key(id));
        while self.version.tombstones.len() > TOMBSTONES_MAX {
            let oldest = self.buried.iter().min_by_key(|&(id, &since)| (since, *id)).map(|(&id, _)| id);
            let Some(oldest) = oldest.or_else(|| self.version.tombstones.keys().next().copied()) else { break };
            self.unbury(oldest);
        }
    }

    /// A tombstone changes nothing that others have to see.
    fn unbury(&mut self, id: NodeId) {
        self.buried.remove(&id);
        Arc::make_mut(&mut Version::edit(&mut self.version).tombstones).remove(&id);
    }

    /// Since when a removed member is known to be gone.
    pub(crate) fn buried_since(&self, id: NodeId) -> Option<Time> {
        self.buried.get(&id).copied()
    }

    /// Takes in what the other one knows.
    #[cfg(test)]
    pub(crate) fn merge(&mut self, other: &Self) {
        if Version::merge(&mut self.version, &other.version) {
            self.seen.clear();
        }
        self.date(other.buried.clone());
    }

    /// A member is gone for good. The caller ticks its clock.
    pub(crate) fn remove(&mut self, id: NodeId, how: Gone, now: Time) {
        self.members_mut().remove(&id);
        self.tombstones_mut().insert(id, Tombstone { how, dots: Dots::default() });
        self.edit().wipe(&BTreeSet::from([id]));
        self.date([(id, now)]);
    }

    /// Raises a member's status; false if it stands there or beyond already.
    pub(crate) fn raise(&mut self, id: NodeId, status: MemberStatus) -> bool {
        if self.status(id).is_none_or(|is| is >= status) {
            return false;
        }
        if let Some(entry) = self.members_mut().get_mut(&id) {
            entry.status = status;
            entry.dots = Dots::default();
        }
        true
    }

    /// Forgets tombstones older than `age`.
    pub(crate) fn expire(&mut self, now: Time, age: Duration) {
        if self.oldest.is_none_or(|oldest| now.since(oldest) < age) {
            return;
        }
        let old: Vec<NodeId> = self.buried.iter().filter(|&(_, &since)| now.since(since) >= age).map(|(&id, _)| id).collect();
        old.into_iter().for_each(|id| self.unbury(id));
        self.oldest = self.buried.values().min().copied();
    }

    /// Numbers what was changed here as one change of `me`.
    pub(crate) fn stamp(&mut self, me: NodeId) {
        let count = self.clock.get(me) + 1;
        self.clock_mut().set(me, count);
        let new = |m: &Entry| m.born.1 == 0 || m.dots.is_empty();
        if self.members.values().any(new) {
            for m in self.members_mut().values_mut_where(new) {
                if m.born.1 == 0 {
                    m.born = (me, count);
                }
                if m.dots.is_empty() {
                    m.dots = Dots::one(me, count);
                }
            }
        }
        if self.tombstones.values().any(|t| t.dots.is_empty()) {
            self.tombstones_mut().values_mut().filter(|t| t.dots.is_empty()).for_each(|t| t.dots = Dots::one(me, count));
        }
        if self.rows.get(&me).is_some_and(|row| row.dot == 0)
            && let Some(row) = self.rows_mut().get_mut(&me)
        {
            row.dot = count;
        }
    }

    /// Whether it has seen this version.
    pub(crate) fn has_seen(&self, id: NodeId) -> bool {
        self.members.rank(&id).is_some_and(|at| self.has_seen_at(at))
    }

    /// Whether the member at this place in their order has.
    pub(crate) fn has_seen_at(&self, at: usize) -> bool {
        self.seen.has(at)
    }

    /// It has; false if that was known, or it is no member.
    pub(crate) fn see(&mut self, id: NodeId) -> bool {
        self.members.rank(&id).is_some_and(|at| self.seen.insert(at))
    }

    /// Takes over who has seen this version, of the members from the given place on (a multiple of 64): whether that is news, and whether
    /// more are known here to have.
    pub(crate) fn learn_seen(&mut self, bitmap: &[u8], from: usize) -> (bool, bool) {
        let members = self.members.len();
        self.seen.learn(bitmap, from, members)
    }

    /// One bit per member in order of their ids.
    pub(crate) fn seen_bitmap(&self) -> Vec<u8> {
        self.seen.to_bytes(self.members.len())
    }

    /// Names the seen set.
    pub(crate) fn seen_digest(&self) -> u64 {
        self.seen.digest()
    }

    pub(crate) fn seen_count(&self) -> usize {
        self.seen.count()
    }

    pub(crate) fn clear_seen(&mut self) {
        self.seen.clear();
    }

    /// Whether all that count have seen this version, those left out for whom `excused` holds.
    pub(crate) fn seen_by_all(&self, excused: impl Fn(&NodeId) -> bool) -> bool {
        let counted = &self.members.census().counted;
        self.seen.covers(counted) || counted.beyond(&self.seen).all(|at| self.members.roster().ids.get(at).is_some_and(&excused))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use crate::NodeAddr;

    use super::*;

    pub(crate) fn info(n: u16) -> Arc<MemberInfo> {
        let addr = NodeAddr::new("10.0.0.1", n);
        Arc::new(MemberInfo::bare(NodeId::new(&addr, u64::from(n)), addr))
    }

    /// One change by replica `who`, as the machine would make it.
    fn act(state: &mut State, who: usize, op: u8, on: u16) {
        let me = info(who as u16).id;
        let subject = info(on);
        let id = subject.id;
        if state.tombstones.contains_key(&me) || state.tombstones.contains_key(&id) {
            return;
        }
        state.members_mut().get_or_insert_with(me, || Entry::joining(info(who as u16), 1));
        match op {
            0 => {
                let joined = state.members.values().map(|m| m.joined).max().unwrap_or(0) + 1;
                state.members_mut().get_or_insert_with(id, || Entry::joining(subject, joined));
            }
            1 => {
                let next = state.members.values().map(|m| m.up_number).max().unwrap_or(0) + 1;
                if let Some(m) = state.members_mut().get_mut(&id).filter(|m| m.status < MemberStatus::Up) {
                    (m.status, m.up_number, m.dots) = (MemberStatus::Up, next, Dots::default());
                }
            }
            2 => drop(state.raise(id, MemberStatus::Leaving)),
            3 => drop(state.raise(id, MemberStatus::Down)),
            4 => {
                let member = state.members.contains_key(&id);
                let row = state.rows_mut().get_or_insert_with(me, Row::default);
                (row.version, row.dot) = (row.version + 1, 0);
                row.marks.set(id, (member && !row.marks.has(id)).then_some(Mark::Silent));
            }
            _ if id != me && state.members.contains_key(&id) => state.remove(id, Gone::Downed, Time::from_nanos(1)),
            _ => {}
        }
        state.stamp(me);
    }

    /// Everything but the seen set and the times of removal.
    fn content(s: &State) -> &Version {
        &s.version
    }

    proptest! {
        #[test]
        fn merges_converge_whatever_the_order(
            ops in proptest::collection::vec((0usize..4, 0u8..6, 0u16..7, 0usize..4, any::<bool>()), 0..60),
            order in Just((0..4usize).collect::<Vec<_>>()).prop_shuffle(),
        ) {
            let mut replicas = vec![State::default(); 4];
            for (who, op, on, peer, exchange) in ops {
                if exchange && who != peer {
                    let theirs = replicas[peer].clone();
                    replicas[who].merge(&theirs);
                } else {
                    act(&mut replicas[who], who, op, on);
                }
            }
            let fold = |ids: &[usize]| ids.iter().fold(State::default(), |mut all, &i| { all.merge(&replicas[i]); all });
            let (straight, shuffled) = (fold(&[0, 1, 2, 3]), fold(&order));
            prop_assert_eq!(content(&straight), content(&shuffled));
            prop_assert_eq!(straight.digest(), shuffled.digest());
            let mut pairs = [fold(&[0, 1]), fold(&[2, 3])];
            let right = pairs[1].clone();
            pairs[0].merge(&right);
            prop_assert_eq!(content(&straight), content(&pairs[0]));
            let again = straight.clone();
            pairs[0].merge(&again);
            prop_assert_eq!(content(&straight), content(&pairs[0]));
            for replica in &replicas {
                let mut with = straight.clone();
                with.merge(replica);
                prop_assert_eq!(content(&straight), content(&with));
            }
            prop_assert!(straight.clock.len() <= straight.members.len());
        }
    }

    #[test]
    fn removal_wipes_every_trace_but_the_tombstone() {
        let mut state = State::default();
        for n in 1..=3 {
            act(&mut state, 0, 0, n);
            act(&mut state, usize::from(n), 4, 1);
        }
        let gone = info(2).id;
        let before = state.clone();
        state.remove(gone, Gone::Left, Time::from_nanos(1));
        assert!(!state.members.contains_key(&gone) && !state.rows.contains_key(&gone) && state.clock.get(gone) == 0);
        state.stamp(info(0).id);
        let mut old = before.clone();
        old.merge(&state);
        assert_eq!(content(&old), content(&state));
    }

    #[test]
    fn gossip_older_than_the_tombstone_brings_nobody_back_under_a_new_life() {
        let mut state = State::default();
        act(&mut state, 0, 0, 2);
        let old = state.clone();
        state.remove(info(2).id, Gone::Downed, Time::from_nanos(1));
        state.expire(Time::from_nanos(1) + Duration::from_secs(86_400), Duration::from_secs(86_400));
        assert!(state.tombstones.is_empty());
        let addr = NodeAddr::new("10.0.0.1", 2);
        let fresh = Arc::new(MemberInfo::bare(NodeId::new(&addr, 99), addr));
        state.members_mut().insert(fresh.id, Entry::joining(fresh.clone(), 5));
        state.merge(&old);
        // The old life is another id: it neither replaces nor downs the new one, and the detector finds it dead.
        assert_eq!(state.status(fresh.id), Some(MemberStatus::Joining));
    }

    #[test]
    fn tombstones_go_when_each_is_due() {
        let at = |s: u64| Time::from_nanos(1) + Duration::from_secs(s);
        let age = Duration::from_secs(100);
        let mut state = State::default();
        act(&mut state, 0, 0, 3);
        for (n, s) in [(1, 20), (2, 10)] {
            state.remove(info(n).id, Gone::Left, at(s));
        }
        // Known to others for longer than here.
        state.date([(info(1).id, at(5))]);
        let mut left = |s| {
            state.expire(at(s), age);
            state.tombstones.len()
        };
        assert_eq!([104, 105, 109, 110, 111].map(&mut left), [2, 1, 1, 0, 0]);
        assert_eq!(state.oldest, None);
    }
}
