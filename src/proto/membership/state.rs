//! The gossiped state: a join semilattice, so that it converges whatever the order of merges.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use super::{
    MemberStatus, Removal,
    clock::{Dots, VectorClock},
    idmap::{IdMap, IdSet},
};
use crate::{NodeAddr, NodeId, Time};

/// Most members of a cluster.
pub(crate) const MEMBERS_MAX: usize = 20_000;
/// Most tombstones kept; the oldest go first.
pub(crate) const TOMBSTONES_MAX: usize = 4_096;

/// What never changes in the life of a node.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Info {
    pub(crate) id: NodeId,
    pub(crate) addr: NodeAddr,
    pub(crate) roles: Arc<[String]>,
    pub(crate) app_version: Arc<str>,
}

/// A member as gossip knows it.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Entry {
    pub(crate) info: Arc<Info>,
    pub(crate) status: MemberStatus,
    /// 0 before it was up.
    pub(crate) up_number: u32,
    /// Order of joining, as the admitting node saw it.
    pub(crate) joined: u32,
    /// Down, and its process is known to be gone.
    pub(crate) proven: bool,
    /// What made it so.
    pub(crate) dots: Dots,
    /// Whose change admitted it: who knows that one knows address and roles. (0, 0) before it is numbered.
    pub(crate) born: (NodeId, u64),
}

impl Entry {
    pub(crate) fn joining(info: Arc<Info>, joined: u32) -> Self {
        Self {
            info,
            status: MemberStatus::Joining,
            up_number: 0,
            joined,
            proven: false,
            dots: Dots::default(),
            born: (NodeId::from_raw(0), 0),
        }
    }

    fn merge(&mut self, other: &Self) {
        self.status = self.status.max(other.status);
        self.up_number = lower_known(self.up_number, other.up_number);
        self.joined = lower_known(self.joined, other.joined);
        self.proven |= other.proven;
        self.dots.merge(&other.dots);
        // Of two admissions either will do, as long as all name the same.
        self.born = if self.born.1 == 0 {
            other.born
        } else if other.born.1 == 0 {
            self.born
        } else {
            self.born.min(other.born)
        };
    }
}

/// Two leaders of a split may number a member differently: the lower number wins, 0 is none.
fn lower_known(a: u32, b: u32) -> u32 {
    if a == 0 || b == 0 { a.max(b) } else { a.min(b) }
}

/// How a member went, the weightier last.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Gone {
    Left,
    Downed,
    Proven,
}

impl From<Gone> for Removal {
    fn from(gone: Gone) -> Self {
        match gone {
            Gone::Left => Self::Left,
            Gone::Downed => Self::Downed { proven: false },
            Gone::Proven => Self::Downed { proven: true },
        }
    }
}

/// Keeps an id from coming back.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Tombstone {
    pub(crate) how: Gone,
    /// What made it.
    pub(crate) dots: Dots,
    /// When it was set, on this node's clock; it travels as an age.
    pub(crate) since: Time,
}

/// What an observer holds against a subject.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Mark {
    /// Its replies stayed away.
    Silent,
    /// Its monitors together missed more of its replies than chance allows.
    Convicted,
    /// Its links were reset and its port refuses connections.
    Refused,
}

/// One observer's verdicts; the newer whole row wins.
#[derive(Clone, PartialEq, Default, Debug)]
pub(crate) struct Row {
    pub(crate) version: u32,
    /// The observer's counter when it changed the row; 0 before it is numbered.
    pub(crate) dot: u64,
    pub(crate) marks: BTreeMap<NodeId, Mark>,
}

/// Everything that is gossiped.
#[derive(Clone, Default, Debug)]
pub(crate) struct State {
    /// Drawn when the cluster was formed: tells it from others of the same name.
    pub(crate) uid: u64,
    pub(crate) members: IdMap<Entry>,
    pub(crate) tombstones: BTreeMap<NodeId, Tombstone>,
    pub(crate) rows: IdMap<Row>,
    pub(crate) clock: VectorClock,
    /// Who has seen exactly this version.
    pub(crate) seen: IdSet,
}

impl State {
    /// Takes in what the other one knows. Does not touch the seen set beyond dropping who is gone.
    pub(crate) fn merge(&mut self, other: &Self) {
        for (&id, theirs) in &other.tombstones {
            let mine = self.tombstones.entry(id).or_insert_with(|| theirs.clone());
            mine.how = mine.how.max(theirs.how);
            mine.since = mine.since.min(theirs.since);
            mine.dots.merge(&theirs.dots);
        }
        self.members.merge(&other.members, Entry::merge);
        for (&id, theirs) in &other.rows {
            match self.rows.get_mut(&id) {
                Some(mine) if mine.version >= theirs.version => {}
                Some(mine) => *mine = theirs.clone(),
                None => drop(self.rows.insert(id, theirs.clone())),
            }
        }
        self.clock.merge(&other.clock);
        self.normalise();
    }

    /// A member is gone for good. The caller ticks its clock.
    pub(crate) fn remove(&mut self, id: NodeId, how: Gone, now: Time) {
        self.members.remove(&id);
        self.tombstones.insert(id, Tombstone { how, since: now, dots: Dots::default() });
        self.normalise();
    }

    /// Raises a member's status; false if it stands there or beyond already.
    pub(crate) fn raise(&mut self, id: NodeId, status: MemberStatus) -> bool {
        match self.members.get_mut(&id) {
            Some(entry) if entry.status < status => {
                entry.status = status;
                entry.dots = Dots::default();
                true
            }
            _ => false,
        }
    }

    /// Forgets tombstones older than `age`.
    pub(crate) fn expire(&mut self, now: Time, age: Duration) {
        self.tombstones.retain(|_, t| now.since(t.since) < age);
    }

    /// Numbers what was changed here as one change of `me`.
    pub(crate) fn stamp(&mut self, me: NodeId) {
        self.clock.tick(me);
        let count = self.clock.get(me);
        for m in self.members.values_mut().filter(|m| m.born.1 == 0) {
            m.born = (me, count);
        }
        let members = self.members.values_mut().map(|m| &mut m.dots);
        for dots in members.chain(self.tombstones.values_mut().map(|t| &mut t.dots)).filter(|d| d.is_empty()) {
            *dots = Dots::one(me, count);
        }
        if let Some(row) = self.rows.get_mut(&me).filter(|row| row.dot == 0) {
            row.dot = count;
        }
    }

    /// Whether something stands here that no member's counter covers: the last change of one that was removed before all had heard of it.
    pub(crate) fn has_orphans(&self) -> bool {
        self.members.values().map(|m| &m.dots).chain(self.tombstones.values().map(|t| &t.dots)).any(Dots::is_empty)
    }

    /// Names this version by what it says.
    pub(crate) fn digest(&self) -> u128 {
        let mut bytes = Vec::with_capacity(self.members.len() * 32 + self.rows.len() * 20);
        for (&id, m) in &self.members {
            bytes.extend_from_slice(&id.raw().to_le_bytes());
            bytes.extend_from_slice(&self.clock.get(id).to_le_bytes());
            bytes.extend_from_slice(&m.up_number.to_le_bytes());
            bytes.extend_from_slice(&[m.status as u8, u8::from(m.proven)]);
        }
        for (&id, row) in &self.rows {
            bytes.extend_from_slice(&id.raw().to_le_bytes());
            bytes.extend_from_slice(&row.version.to_le_bytes());
        }
        xxhash_rust::xxh3::xxh3_128(&bytes)
    }

    /// Names the seen set.
    pub(crate) fn seen_digest(&self) -> u64 {
        let mut bytes = Vec::with_capacity(self.seen.len() * 16);
        for id in self.seen.iter() {
            bytes.extend_from_slice(&id.raw().to_le_bytes());
        }
        xxhash_rust::xxh3::xxh3_64(&bytes)
    }

    /// Members in order of their ids, and whether each has seen this version.
    pub(crate) fn with_seen(&self) -> impl Iterator<Item = (&NodeId, &Entry, bool)> {
        let mut seen = self.seen.iter().peekable();
        self.members.iter().map(move |(id, m)| {
            while seen.next_if(|s| *s < id).is_some() {}
            (id, m, seen.next_if_eq(&id).is_some())
        })
    }

    /// The status of a member.
    pub(crate) fn status(&self, id: NodeId) -> Option<MemberStatus> {
        self.members.get(&id).map(|m| m.status)
    }

    /// The member that advertises this address.
    pub(crate) fn at(&self, addr: &NodeAddr) -> Option<&Entry> {
        let hash = addr.hash64();
        let range = NodeId::from_raw(u128::from(hash) << 64)..=NodeId::from_raw(u128::from(hash) << 64 | u128::from(u64::MAX));
        self.members.range(range).map(|(_, m)| m).next()
    }

    fn normalise(&mut self) {
        let Self { members, tombstones, rows, clock, seen, .. } = self;
        let before = members.len();
        for id in tombstones.keys() {
            members.remove(id);
        }
        if members.len() < before {
            seen.retain(|id| members.contains_key(id));
        }
        rows.retain(|id, _| members.contains_key(id));
        for row in rows.values_mut() {
            row.marks.retain(|id, _| members.contains_key(id));
        }
        clock.retain(|id| members.contains_key(&id));
        // A removed member's counter is gone, so nothing may be numbered by it.
        if !tombstones.is_empty() {
            let buried = |id: NodeId| tombstones.contains_key(&id);
            for m in members.values_mut() {
                m.dots.retain(|id| !buried(id));
            }
            let gone: BTreeSet<NodeId> =
                tombstones.values().flat_map(|t| t.dots.iter().map(|(id, _)| id)).filter(|&id| buried(id)).collect();
            for t in tombstones.values_mut().filter(|_| !gone.is_empty()) {
                t.dots.retain(|id| !gone.contains(&id));
            }
        }
        while tombstones.len() > TOMBSTONES_MAX {
            let oldest = tombstones.iter().min_by_key(|(id, t)| (t.since, **id)).map(|(&id, _)| id);
            oldest.map(|id| tombstones.remove(&id));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    pub(crate) fn info(n: u16) -> Arc<Info> {
        let addr = NodeAddr::new("10.0.0.1", n);
        Arc::new(Info { id: NodeId::new(&addr, u64::from(n)), addr, roles: [].into(), app_version: "".into() })
    }

    /// One change by replica `who`, as the machine would make it.
    fn act(state: &mut State, who: usize, op: u8, on: u16) {
        let me = info(who as u16).id;
        let subject = info(on);
        let id = subject.id;
        if state.tombstones.contains_key(&me) || state.tombstones.contains_key(&id) {
            return;
        }
        state.members.get_or_insert_with(me, || Entry::joining(info(who as u16), 1));
        match op {
            0 => {
                let joined = state.members.values().map(|m| m.joined).max().unwrap_or(0) + 1;
                state.members.get_or_insert_with(id, || Entry::joining(subject, joined));
            }
            1 => {
                let next = state.members.values().map(|m| m.up_number).max().unwrap_or(0) + 1;
                if let Some(m) = state.members.get_mut(&id).filter(|m| m.status < MemberStatus::Up) {
                    (m.status, m.up_number, m.dots) = (MemberStatus::Up, next, Dots::default());
                }
            }
            2 => drop(state.raise(id, MemberStatus::Leaving)),
            3 => drop(state.raise(id, MemberStatus::Down)),
            4 => {
                let row = state.rows.get_or_insert_with(me, Row::default);
                (row.version, row.dot) = (row.version + 1, 0);
                if row.marks.remove(&id).is_none() && state.members.contains_key(&id) {
                    row.marks.insert(id, Mark::Silent);
                }
            }
            _ if id != me && state.members.contains_key(&id) => state.remove(id, Gone::Downed, Time::from_nanos(1)),
            _ => {}
        }
        state.stamp(me);
    }

    /// Everything but the seen set and the times of removal.
    fn content(s: &State) -> impl PartialEq + std::fmt::Debug {
        let removed: Vec<(NodeId, Gone, Dots)> = s.tombstones.iter().map(|(&id, t)| (id, t.how, t.dots.clone())).collect();
        (s.members.clone(), removed, s.rows.clone(), s.clock.clone())
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
        let fresh = Arc::new(Info { id: NodeId::new(&addr, 99), addr, roles: [].into(), app_version: "".into() });
        state.members.insert(fresh.id, Entry::joining(fresh.clone(), 5));
        state.merge(&old);
        // The old life is another id: it neither replaces nor downs the new one, and the detector finds it dead.
        assert_eq!(state.status(fresh.id), Some(MemberStatus::Joining));
    }
}
