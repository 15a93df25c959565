//! One version of what is gossiped: a join semilattice, so that it converges whatever the order of merges.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::{Deref, DerefMut},
    sync::{Arc, OnceLock},
};

use super::{
    MemberStatus, Removal,
    bits::Bits,
    clock::{Dots, VectorClock},
    codec::Body,
    idmap::{Cursor, IdMap},
    leader,
    marks::Marks,
    monitors::Ring,
    roster::Roster,
    view::{Member, MemberInfo},
};
use crate::{NodeAddr, NodeId};

/// A member as gossip knows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Entry {
    /// As views show it while nobody holds it unreachable.
    pub(crate) member: Member,
    /// Order of joining, as the admitting node saw it.
    pub(crate) joined: u32,
    /// What is known of how it goes beside its status: `Left` = nothing.
    pub(crate) gone: Gone,
    /// What made it so.
    pub(crate) dots: Dots,
    /// Whose change admitted it: who knows that one knows address and roles. (0, 0) before it is numbered.
    pub(crate) born: (NodeId, u64),
}

impl Deref for Entry {
    type Target = Member;

    fn deref(&self) -> &Member {
        &self.member
    }
}

impl DerefMut for Entry {
    fn deref_mut(&mut self) -> &mut Member {
        &mut self.member
    }
}

impl From<Member> for Entry {
    /// Of which nothing else is known.
    fn from(member: Member) -> Self {
        Self { member, joined: 0, gone: Gone::Left, dots: Dots::default(), born: (NodeId::from_raw(0), 0) }
    }
}

impl Entry {
    pub(crate) fn joining(info: Arc<MemberInfo>, joined: u32) -> Self {
        Self { joined, ..Member::new(info, MemberStatus::Joining, 0).into() }
    }

    /// See [`leader::counts`].
    pub(crate) fn counts(&self) -> bool {
        leader::counts(self.status, self.up_number)
    }

    fn merge(&mut self, other: &Self) {
        self.status = self.status.max(other.status);
        self.up_number = lower_known(self.up_number, other.up_number);
        self.joined = lower_known(self.joined, other.joined);
        self.gone = self.gone.max(other.gone);
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
    /// By hand, when nobody had held it out of reach for long.
    Abrupt,
    /// Its process is known to have ended.
    Proven,
}

impl From<Gone> for Removal {
    fn from(gone: Gone) -> Self {
        match gone {
            Gone::Left => Self::Left,
            Gone::Downed => Self::Downed { proven: false },
            Gone::Abrupt => Self::Abrupt,
            Gone::Proven => Self::Downed { proven: true },
        }
    }
}

/// Keeps an id from coming back. Since when it stands is each node's own knowledge.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Tombstone {
    pub(crate) how: Gone,
    /// What made it.
    pub(crate) dots: Dots,
}

impl Tombstone {
    fn merge(&mut self, other: &Self) {
        self.how = self.how.max(other.how);
        self.dots.merge(&other.dots);
    }
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
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct Row {
    pub(crate) version: u32,
    /// The observer's counter when it changed the row; 0 before it is numbered.
    pub(crate) dot: u64,
    pub(crate) marks: Marks,
}

impl Row {
    /// Forgets what it says of strangers.
    fn cut_to(&mut self, members: &Folk) {
        self.marks.retain(|id| members.contains_key(id));
    }
}

/// The members, and what follows from them alone, as far as somebody asked: most changes are of rows and leave it as it is.
#[derive(Default, Debug)]
pub(crate) struct Folk {
    map: IdMap<Entry>,
    /// Of the members before: few come or go at a time.
    prior_roster: Option<Arc<Roster>>,
    prior_ring: Option<Arc<Ring>>,
    roster: OnceLock<Arc<Roster>>,
    ring: OnceLock<Arc<Ring>>,
    census: OnceLock<Census>,
    digest: OnceLock<u128>,
    orphans: OnceLock<bool>,
    oldest: OnceLock<Option<u32>>,
}

/// Where they stand: what is asked again and again of all of them, from one walk.
#[derive(Default, Debug)]
pub(crate) struct Census {
    /// Those that take part in convergence.
    pub(crate) counted: Bits,
    /// Those that are down.
    pub(crate) down: Bits,
    /// Those that are not up yet.
    pub(crate) joiners: Bits,
    /// Highest number of one that is up, or was.
    pub(crate) last_up: u32,
    /// Highest number of one that has joined.
    pub(crate) last_joined: u32,
    /// Stretches of the roster's order that are not just one member that is not down: several lives of one address, or down.
    pub(crate) crowds: Vec<(usize, usize)>,
}

impl Deref for Folk {
    type Target = IdMap<Entry>;

    fn deref(&self) -> &IdMap<Entry> {
        &self.map
    }
}

impl PartialEq for Folk {
    fn eq(&self, other: &Self) -> bool {
        self.map == other.map
    }
}

impl Eq for Folk {}

impl Clone for Folk {
    /// To be changed: what was derived does not hold.
    fn clone(&self) -> Self {
        Self { map: self.map.clone(), ..self.next() }
    }
}

impl Folk {
    /// Access to change them. Whoever shares them keeps what was.
    pub(crate) fn edit(this: &mut Arc<Self>) -> &mut IdMap<Entry> {
        let folk = Arc::make_mut(this);
        let map = std::mem::take(&mut folk.map);
        *folk = Self { map, ..folk.next() };
        &mut folk.map
    }

    fn next(&self) -> Self {
        let prior_roster = self.roster.get().or(self.prior_roster.as_ref()).cloned();
        let prior_ring = self.ring.get().or(self.prior_ring.as_ref()).cloned();
        Self { prior_roster, prior_ring, ..Self::default() }
    }

    /// Where it stands in the order. Found at once where a roster was made: nearly always.
    pub(crate) fn rank(&self, id: &NodeId) -> Option<usize> {
        self.roster.get().map_or_else(|| self.map.rank(id), |roster| roster.rank(*id))
    }

    /// Who stands at a place in the order.
    pub(crate) fn nth(&self, rank: u32) -> &Entry {
        self.map.at(rank as usize).expect("whoever has a place in the order is a member").1
    }

    pub(crate) fn get(&self, id: &NodeId) -> Option<&Entry> {
        self.map.at(self.rank(id)?).map(|(_, entry)| entry)
    }

    pub(crate) fn contains_key(&self, id: &NodeId) -> bool {
        self.rank(id).is_some()
    }

    /// Statuses of those, who come in order, as far as they are members.
    pub(crate) fn statuses<'a>(&'a self, ids: impl Iterator<Item = &'a NodeId>) -> impl Iterator<Item = (NodeId, MemberStatus)> {
        let mut places = Cursor::of(self.map.keys().as_slice());
        ids.filter_map(move |&id| places.find(id).and_then(|at| self.map.at(at)).map(|(id, m)| (id, m.status)))
    }

    /// Names them by id, number and standing.
    pub(crate) fn digest(&self) -> u128 {
        *self.digest.get_or_init(|| {
            let mut bytes = Vec::with_capacity(self.len() * 22);
            for (id, m) in &self.map {
                bytes.extend_from_slice(&id.raw().to_le_bytes());
                bytes.extend_from_slice(&m.up_number.to_le_bytes());
                bytes.extend_from_slice(&[m.status as u8, m.gone as u8]);
            }
            xxhash_rust::xxh3::xxh3_128(&bytes)
        })
    }

    /// Who they are.
    pub(crate) fn roster(&self) -> &Arc<Roster> {
        self.roster.get_or_init(|| Roster::after(self.prior_roster.as_ref(), self))
    }

    /// Who observes whom.
    pub(crate) fn ring(&self) -> &Arc<Ring> {
        self.ring.get_or_init(|| {
            let down = &self.census().down;
            let alive = self.keys().enumerate().filter(|&(at, _)| !down.has(at)).map(|(_, &id)| id);
            Ring::renewed(self.prior_ring.as_ref(), alive.collect())
        })
    }

    /// Where they stand.
    pub(crate) fn census(&self) -> &Census {
        self.census.get_or_init(|| {
            let (mut census, roster) = (Census::default(), self.roster());
            for (m, at) in self.values().zip(0..) {
                if m.counts() {
                    census.counted.insert(at);
                }
                if m.status >= MemberStatus::Down {
                    census.down.insert(at);
                }
                if m.status < MemberStatus::Up {
                    census.joiners.insert(at);
                }
                (census.last_up, census.last_joined) = (census.last_up.max(m.up_number), census.last_joined.max(m.joined));
            }
            let mut at = 0;
            // Lives of one address are neighbours by id as well.
            for lives in roster.ids.chunk_by(|a, b| a.addr_hash() == b.addr_hash()) {
                let places = at..at + lives.len();
                at = places.end;
                if lives.len() > 1 || census.down.has(places.start) {
                    let first = roster.by_id[places].iter().min().map_or(0, |&at| at as usize);
                    census.crowds.push((first, first + lives.len()));
                }
            }
            census.crowds.sort_unstable();
            census
        })
    }

    /// Those that take part in convergence, by id.
    pub(crate) fn counted(&self) -> impl Iterator<Item = NodeId> + '_ {
        let ids = self.keys().as_slice();
        self.census().counted.iter().map(|at| ids[at])
    }

    /// Those that are down, by id.
    pub(crate) fn down(&self) -> impl Iterator<Item = (NodeId, &Entry)> {
        self.census().down.iter().filter_map(|at| self.map.at(at))
    }

    /// Those that are not up yet, by id.
    pub(crate) fn joiners(&self) -> impl Iterator<Item = NodeId> + '_ {
        let ids = self.keys().as_slice();
        self.census().joiners.iter().map(|at| ids[at])
    }

    /// Whether the change that made one of them is not numbered.
    fn has_orphans(&self) -> bool {
        *self.orphans.get_or_init(|| self.values().any(|m| m.dots.is_empty()))
    }

    /// Place by id of the oldest member.
    pub(crate) fn oldest(&self) -> Option<u32> {
        *self.oldest.get_or_init(|| {
            let counted = self.values().zip(0..).filter(|(m, _)| m.is_of_age());
            counted.min_by(|(a, _), (b, _)| a.age_order(b)).map(|(_, at)| at)
        })
    }
}

impl FromIterator<Entry> for Folk {
    fn from_iter<I: IntoIterator<Item = Entry>>(entries: I) -> Self {
        let mut entries: Vec<Entry> = entries.into_iter().collect();
        entries.sort_by_key(|m| m.id);
        Self { map: entries.into_iter().map(|m| (m.id, m)).collect(), ..Self::default() }
    }
}

/// Members, tombstones, rows and the clock that covers them. Each part is shared with other versions until it is changed, and what follows
/// from a version is worked out once.
#[derive(Default, Debug)]
pub(crate) struct Version {
    pub(crate) members: Arc<Folk>,
    pub(crate) tombstones: Arc<BTreeMap<NodeId, Tombstone>>,
    pub(crate) rows: Arc<IdMap<Row>>,
    pub(crate) clock: Arc<VectorClock>,
    digest: OnceLock<u128>,
    whole: OnceLock<Arc<Body>>,
}

impl Clone for Version {
    /// To be changed: what was derived does not hold.
    fn clone(&self) -> Self {
        let Self { members, tombstones, rows, clock, .. } = self;
        let (members, tombstones, rows, clock) = (members.clone(), tombstones.clone(), rows.clone(), clock.clone());
        Self { members, tombstones, rows, clock, digest: OnceLock::new(), whole: OnceLock::new() }
    }
}

impl PartialEq for Version {
    fn eq(&self, other: &Self) -> bool {
        self.members == other.members && self.tombstones == other.tombstones && self.rows == other.rows && self.clock == other.clock
    }
}

impl Version {
    /// Access to change it. Whoever shares it keeps what was.
    pub(crate) fn edit(this: &mut Arc<Self>) -> &mut Self {
        let version = Arc::make_mut(this);
        (version.digest, version.whole) = (OnceLock::new(), OnceLock::new());
        version
    }

    /// Takes in what the other one knows; false, and nothing is touched, if it knew all of it.
    pub(crate) fn merge(this: &mut Arc<Self>, other: &Self) -> bool {
        fn absorbs<V: Clone + PartialEq>(mine: Option<&V>, theirs: &V, merge: impl Fn(&mut V, &V)) -> bool {
            mine.is_some_and(|mine| {
                mine == theirs || {
                    let mut both = mine.clone();
                    merge(&mut both, theirs);
                    both == *mine
                }
            })
        }
        let tombstones = !other.tombstones.iter().all(|(id, t)| absorbs(this.tombstones.get(id), t, Tombstone::merge));
        let members = !Arc::ptr_eq(&this.members, &other.members)
            && !other.members.iter().all(|(id, m)| absorbs(this.members.get(id), m, Entry::merge) || this.tombstones.contains_key(id));
        let known = |id: &NodeId| this.members.contains_key(id) || other.members.contains_key(id);
        let rows = other.rows.iter().any(|(id, row)| this.rows.get(id).is_none_or(|mine| mine.version < row.version) && known(id));
        let clock = other.clock.iter().any(|(id, count)| this.clock.get(id) < count && known(&id));
        if !(tombstones || members || rows || clock) {
            return false;
        }
        let version = Self::edit(this);
        let buried: BTreeSet<NodeId> = other.tombstones.keys().copied().filter(|id| !version.tombstones.contains_key(id)).collect();
        if tombstones {
            let mine = Arc::make_mut(&mut version.tombstones);
            for (&id, theirs) in &*other.tombstones {
                mine.entry(id).and_modify(|t| t.merge(theirs)).or_insert_with(|| theirs.clone());
            }
        }
        if members {
            Folk::edit(&mut version.members).merge(&other.members, Entry::merge);
        }
        version.forget_buried();
        if rows {
            let (mine, members) = (Arc::make_mut(&mut version.rows), &version.members);
            let mut newer = IdMap::default();
            for (&id, theirs) in other.rows.iter().filter(|(id, _)| members.contains_key(id)) {
                if mine.get(&id).is_none_or(|mine| mine.version < theirs.version) {
                    let mut row = theirs.clone();
                    row.cut_to(members);
                    newer.insert(id, row);
                }
            }
            mine.merge(&newer, |mine, newer| mine.clone_from(newer));
        }
        if clock {
            let mine = Arc::make_mut(&mut version.clock);
            mine.merge(&other.clock);
            if other.clock.iter().any(|(id, _)| !version.members.contains_key(&id)) {
                mine.retain(|id| version.members.contains_key(&id));
            }
        }
        version.wipe(&buried);
        // What was known here says nothing of the buried; what came may.
        let stale = |dots: &Dots| dots.iter().any(|(id, _)| version.tombstones.contains_key(&id));
        if other.members.values().any(|m| stale(&m.dots)) || other.tombstones.values().any(|t| stale(&t.dots)) {
            version.wipe_dots(&version.tombstones.keys().copied().collect());
        }
        true
    }

    fn forget_buried(&mut self) {
        let Self { members, tombstones, .. } = self;
        if tombstones.keys().any(|id| members.contains_key(id)) {
            Folk::edit(members).retain(|id, _| !tombstones.contains_key(id));
        }
    }

    /// What nobody should send is dropped: all that a merge relies on holds of what this node knows already.
    pub(crate) fn tidy(this: &mut Arc<Self>) {
        let Self { members, tombstones, rows, clock, .. } = &**this;
        let stale = |dots: &Dots| dots.iter().any(|(id, _)| tombstones.contains_key(&id));
        let strange = |id: &NodeId| !members.contains_key(id);
        if clock.iter().any(|(id, _)| strange(&id))
            || rows.iter().any(|(id, row)| strange(id) || row.marks.subjects().any(|id| strange(&id)))
            || (!tombstones.is_empty() && members.values().map(|m| &m.dots).chain(tombstones.values().map(|t| &t.dots)).any(stale))
        {
            let other = std::mem::take(this);
            Self::merge(this, &other);
        }
    }

    /// Drops what is said of those that were just buried, and by them.
    pub(crate) fn wipe(&mut self, buried: &BTreeSet<NodeId>) {
        self.forget_buried();
        if buried.is_empty() {
            return;
        }
        let Self { members, rows, clock, .. } = self;
        if rows.iter().any(|(id, row)| !members.contains_key(id) || !row.marks.subjects().all(|id| members.contains_key(&id))) {
            let rows = Arc::make_mut(rows);
            rows.retain(|id, _| members.contains_key(id));
            let strange = |row: &Row| !row.marks.subjects().all(|id| members.contains_key(&id));
            rows.values_mut_where(strange).for_each(|row| row.cut_to(members));
        }
        if buried.iter().any(|&id| clock.get(id) > 0) {
            Arc::make_mut(clock).retain(|id| !buried.contains(&id));
        }
        self.wipe_dots(buried);
    }

    /// A removed member's counter is gone, so nothing may be numbered by it.
    fn wipe_dots(&mut self, buried: &BTreeSet<NodeId>) {
        let stale = |dots: &Dots| dots.iter().any(|(id, _)| buried.contains(&id));
        let Self { members, tombstones, .. } = self;
        if members.values().any(|m| stale(&m.dots)) {
            let those = Folk::edit(members).values_mut_where(|m| stale(&m.dots));
            those.for_each(|m| m.dots.retain(|id| !buried.contains(&id)));
        }
        if tombstones.values().any(|t| stale(&t.dots)) {
            Arc::make_mut(tombstones).values_mut().for_each(|t| t.dots.retain(|id| !buried.contains(&id)));
        }
    }

    /// Whether something stands here that no member's counter covers: the last change of one that was removed before all had heard of it.
    pub(crate) fn has_orphans(&self) -> bool {
        self.members.has_orphans() || self.tombstones.values().any(|t| t.dots.is_empty())
    }

    /// Names this version by what it says.
    pub(crate) fn digest(&self) -> u128 {
        *self.digest.get_or_init(|| {
            let mut bytes = Vec::with_capacity(16 + self.clock.len() * 24 + self.rows.len() * 20);
            bytes.extend_from_slice(&self.members.digest().to_le_bytes());
            for (id, count) in self.clock.iter() {
                bytes.extend_from_slice(&id.raw().to_le_bytes());
                bytes.extend_from_slice(&count.to_le_bytes());
            }
            for (&id, row) in &*self.rows {
                bytes.extend_from_slice(&id.raw().to_le_bytes());
                bytes.extend_from_slice(&row.version.to_le_bytes());
            }
            xxhash_rust::xxh3::xxh3_128(&bytes)
        })
    }

    /// The status of a member.
    pub(crate) fn status(&self, id: NodeId) -> Option<MemberStatus> {
        self.members.get(&id).map(|m| m.status)
    }

    /// It is a member, and not down.
    pub(crate) fn is_in(&self, id: NodeId) -> bool {
        self.status(id).is_some_and(|status| status < MemberStatus::Down)
    }

    /// The member that advertises this address.
    pub(crate) fn at(&self, addr: &NodeAddr) -> Option<&Entry> {
        let hash = addr.hash64();
        let range = NodeId::from_raw(u128::from(hash) << 64)..=NodeId::from_raw(u128::from(hash) << 64 | u128::from(u64::MAX));
        self.members.range(range).map(|(_, m)| m).next()
    }

    /// All of it as it travels, made by `encode` once.
    pub(crate) fn whole(&self, encode: impl FnOnce() -> Body) -> &Arc<Body> {
        self.whole.get_or_init(|| Arc::new(encode()))
    }
}
