//! Gossip: push-pull of the state, event-driven where something changed, by rounds otherwise.

use std::collections::BTreeMap;

use super::{
    MemberFrame, MemberStatus, Membership, Phase,
    clock::Order,
    codec,
    counters::Count,
    datagram::{self, Bad, Envelope, Part},
    state::State,
};
use crate::{
    Config, NodeId, Time,
    proto::wire::{Reader, Writer},
};

/// Whom a change is pushed to at once.
const BURST: usize = 3;
/// Whom the leader tells at once that all have seen.
const CONVERGED_BURST: usize = 8;
/// Least share of the rounds that go to an unreachable node while there is one.
const UNREACHABLE_SHARE: f64 = 0.2;
/// Least share of the rounds that go to a deputy.
const DEPUTY_SHARE: f64 = 0.1;

/// When and to whom to gossip, and who this node is in datagrams.
#[derive(Clone, Debug)]
pub(crate) struct Spread {
    session: u64,
    counter: u64,
    cluster: u64,
    round_at: Option<Time>,
    /// A change waits to be pushed.
    pending: bool,
    last_burst: Option<Time>,
    /// The version this node has reported seen to the leader.
    reported: u128,
    was_converged: bool,
    /// When a removed or downed node was last told so.
    told: BTreeMap<NodeId, Time>,
}

impl Spread {
    pub(crate) fn new(config: &Config, session: u64) -> Self {
        Self {
            session,
            counter: 0,
            cluster: xxhash_rust::xxh3::xxh3_64(config.cluster.name.as_bytes()),
            round_at: None,
            pending: false,
            last_burst: None,
            reported: 0,
            was_converged: false,
            told: BTreeMap::new(),
        }
    }

    pub(crate) fn changed(&mut self) {
        self.pending = true;
    }
}

impl Membership {
    /// Opens a datagram and takes its parts.
    pub(super) fn take_datagram(&mut self, now: Time, bytes: &[u8]) {
        self.counters.add(Count::DatagramsIn);
        let (envelope, mut parts) = match datagram::read(bytes) {
            Ok(read) => read,
            Err(bad) => {
                return self.counters.add(match bad {
                    Bad::Truncated => Count::DropTruncated,
                    Bad::Magic => Count::DropMagic,
                    Bad::Version => Count::DropVersion,
                    Bad::Key => Count::DropKey,
                });
            }
        };
        if let Err(why) = self.accept(now, &envelope) {
            return self.counters.add(why);
        }
        let from = envelope.sender;
        self.take_sign_of_life(now, from);
        while parts.left() > 0 && self.phase == Phase::Member {
            match Part::read(&mut parts) {
                Ok(Some(part)) => self.take_part(now, from, envelope.counter, part),
                Ok(None) => self.counters.add(Count::DropPart),
                Err(_) => return self.counters.add(Count::DropMalformed),
            }
        }
    }

    /// State that came over a link.
    pub(super) fn take_gossip_frame(&mut self, now: Time, from: NodeId, state: &[u8]) {
        if self.phase != Phase::Member {
            return;
        }
        if self.is_out(from) {
            return self.tell(now, from);
        }
        if !self.state.members.contains_key(&from) {
            return self.counters.add(Count::FrameStranger);
        }
        let mut r = Reader::new(state);
        match codec::decode(&mut r, &self.state, now).and_then(|s| r.end().map(|()| s)) {
            Ok(remote) if remote.uid == self.state.uid => self.receive(now, from, &remote),
            Ok(_) => self.counters.add(Count::FrameForeign),
            Err(_) => self.counters.add(Count::FrameMalformed),
        }
    }

    /// Whether the envelope is of this cluster, of a member, and new.
    fn accept(&mut self, now: Time, envelope: &Envelope) -> Result<(), Count> {
        if self.phase != Phase::Member {
            return Err(Count::DropNotMember);
        }
        if envelope.cluster != self.spread.cluster || envelope.uid != self.state.uid {
            return Err(Count::DropCluster);
        }
        let from = envelope.sender;
        if self.is_out(from) {
            self.tell(now, from);
            return Err(Count::DropRemoved);
        }
        if from == self.me || !self.state.members.contains_key(&from) {
            return Err(Count::DropSender);
        }
        let window = self.watch.window(from, envelope.session);
        if window.session() != envelope.session {
            return Err(Count::DropSession);
        }
        if window.take(envelope.counter) { Ok(()) } else { Err(Count::DropReplay) }
    }

    fn is_out(&self, id: NodeId) -> bool {
        self.state.tombstones.contains_key(&id) || self.state.status(id) == Some(MemberStatus::Down)
    }

    /// A node that does not know it yet learns from the state that it is down or removed.
    fn tell(&mut self, now: Time, id: NodeId) {
        let every = self.config.detector.heartbeat_interval.get();
        if self.spread.told.get(&id).is_none_or(|&at| now.since(at) >= every) {
            let Self { spread, state, .. } = self;
            spread.told.retain(|id, _| state.tombstones.contains_key(id) || state.members.contains_key(id));
            spread.told.insert(id, now);
            self.send_state(now, id);
        }
    }

    fn take_part(&mut self, now: Time, from: NodeId, counter: u64, part: Part<'_>) {
        match part {
            Part::Hint { subject, run } => self.take_hint(now, from, counter, subject, run),
            Part::Beat(seq) => {
                self.suspicion.take_beat(now, from);
                self.counters.add(Count::BeatsAnswered);
                self.send_parts(from, &[Part::BeatReply(seq)]);
            }
            Part::BeatReply(seq) => self.take_reply(now, from, seq),
            Part::Status { digest, .. } if digest != self.state.digest() => self.send_state(now, from),
            Part::Status { seen, .. } => {
                if seen != self.state.seen_digest() {
                    self.send_seen(from);
                }
            }
            Part::State(bytes) => {
                let mut r = Reader::new(bytes);
                match codec::decode(&mut r, &self.state, now).and_then(|s| r.end().map(|()| s)) {
                    Ok(remote) if remote.uid == self.state.uid => self.receive(now, from, &remote),
                    Ok(_) => self.counters.add(Count::DropCluster),
                    Err(_) => self.counters.add(Count::DropMalformed),
                }
            }
            Part::Seen { digest, bitmap } if digest == self.state.digest() => {
                let ids: Vec<NodeId> = self.state.members.keys().copied().collect();
                let theirs: Vec<NodeId> = codec::from_bitmap(bitmap, &ids).collect();
                if self.learn_seen(&theirs) {
                    self.send_seen(from);
                }
            }
            Part::Mark { digest } if digest == self.state.digest() => drop(self.learn_seen(&[from])),
            Part::Seen { .. } | Part::Mark { .. } => {}
        }
    }

    /// Another member's state.
    fn receive(&mut self, now: Time, from: NodeId, remote: &State) {
        match self.state.compare(remote) {
            Order::Same => {
                self.counters.add(Count::GossipSame);
                let theirs: Vec<NodeId> = remote.seen.iter().copied().collect();
                if self.learn_seen(&theirs) {
                    self.send_seen(from);
                }
            }
            Order::Newer => {
                self.counters.add(Count::GossipOlder);
                self.send_state(now, from);
            }
            Order::Older => {
                self.counters.add(Count::GossipNewer);
                self.state.merge(remote);
                self.state.seen = remote.seen.clone();
                self.changed();
                self.report_seen(&[from]);
            }
            Order::Concurrent => {
                self.counters.add(Count::GossipMerged);
                self.state.merge(remote);
                self.state.seen.clear();
                self.changed();
                self.send_state(now, from);
            }
        }
    }

    /// Takes over who has seen this version; true if this node knows of some that `theirs` lacks.
    fn learn_seen(&mut self, theirs: &[NodeId]) -> bool {
        let before = self.state.seen.len();
        let known = theirs.iter().filter(|id| self.state.members.contains_key(id)).copied().collect::<Vec<_>>();
        let common = known.iter().filter(|id| self.state.seen.contains(id)).count();
        self.state.seen.extend(known);
        self.dirty |= self.state.seen.len() > before;
        before > common
    }

    /// Tells the leader and `also` that this node has seen the version.
    pub(super) fn report_seen(&mut self, also: &[NodeId]) {
        if !self.state.seen.contains(&self.me) {
            return;
        }
        let digest = self.state.digest();
        self.spread.reported = digest;
        let mut to = also.to_vec();
        to.extend(self.standing.leader.filter(|l| *l != self.me && !also.contains(l)));
        for id in to {
            self.send_parts(id, &[Part::Mark { digest }]);
        }
    }

    /// Whether this node's own seen mark may stand: not while it exits and its hand-offs are under way.
    pub(super) fn may_mark(&self) -> bool {
        self.status().is_some_and(|s| s < MemberStatus::Exiting || self.farewell.drained)
    }

    /// Sets the mark that was withheld.
    pub(super) fn give_mark(&mut self) {
        if self.phase == Phase::Member && self.may_mark() && self.state.seen.insert(self.me) {
            self.dirty = true;
            self.report_seen(&[]);
            for to in self.choose(BURST, |_| true) {
                self.send_seen(to);
            }
        }
    }

    /// Pushes what changed, at most once in a tenth of the interval.
    pub(super) fn flush_changes(&mut self, now: Time) {
        if self.state.members.len() > 1 {
            let interval = self.config.membership.gossip_interval.get();
            let offset = interval.mul_f64(self.rng.unit());
            self.spread.round_at.get_or_insert(now + offset);
        } else {
            self.spread.round_at = None;
        }
        if self.burst_due().is_some_and(|at| at <= now) {
            self.spread.pending = false;
            self.spread.last_burst = Some(now);
            for to in self.choose(BURST, |m| !m.state.seen.contains(&m.subject)) {
                self.send_state(now, to);
            }
        }
        let converged = self.standing.converged;
        if converged && !self.spread.was_converged && self.leads() {
            for to in self.choose(CONVERGED_BURST, |_| true) {
                self.send_seen(to);
            }
        }
        self.spread.was_converged = converged;
    }

    /// Pushes what changed without waiting: this node ends.
    pub(super) fn flush_last(&mut self, now: Time) {
        self.spread.last_burst = None;
        self.flush_changes(now);
    }

    /// When gossip is due.
    pub(super) fn gossip_due(&self) -> Option<Time> {
        if self.phase != Phase::Member {
            return None;
        }
        [self.spread.round_at, self.burst_due()].into_iter().flatten().min()
    }

    fn burst_due(&self) -> Option<Time> {
        let pause = self.config.membership.gossip_interval.get() / 10;
        (self.spread.pending && self.state.members.len() > 1).then(|| self.spread.last_burst.map_or(Time::ZERO, |at| at + pause))
    }

    /// Rounds that are due.
    pub(super) fn gossip_on(&mut self, now: Time) {
        if self.phase != Phase::Member {
            return;
        }
        if self.spread.round_at.is_some_and(|at| at <= now) {
            self.round(now);
            let interval = self.config.membership.gossip_interval.get();
            let hurry = self.state.seen.len() * 2 < self.state.members.len();
            self.spread.round_at = Some(now + if hurry { interval / 3 } else { interval });
        }
        if self.burst_due().is_some_and(|at| at <= now) {
            self.flush_changes(now);
        }
        let (age, state) = (self.config.membership.tombstones.get(), &mut self.state);
        if state.tombstones.values().any(|t| now.since(t.since) >= age) {
            state.expire(now, age);
        }
    }

    /// One round: a target that is behind if possible, sometimes an unreachable one, sometimes a deputy.
    fn round(&mut self, now: Time) {
        let reduce = f64::from(self.config.membership.reduce_above) / self.state.members.len().max(1) as f64;
        let bias = self.config.membership.unseen_probability * reduce.min(1.0);
        let behind = if self.rng.chance(bias) { self.choose(1, |m| !m.state.seen.contains(&m.subject)) } else { vec![] };
        let target = if behind.is_empty() { self.choose(1, |_| true) } else { behind }.first().copied();
        if let Some(to) = target {
            self.gossip_to(now, to);
        }
        let lost: Vec<NodeId> = self.lost().collect();
        let live = self.state.members.len().saturating_sub(lost.len() + 1);
        if !lost.is_empty() {
            let share = (lost.len() as f64 / (live + 1) as f64).max(UNREACHABLE_SHARE);
            if self.rng.chance(share)
                && let Some(i) = self.rng.index(lost.len())
            {
                self.send_status(lost[i]);
            }
        }
        let deputies: Vec<NodeId> = self.standing.deputies.iter().copied().filter(|&d| d != self.me).collect();
        if !deputies.is_empty() && (live < deputies.len() || target.is_none_or(|t| !deputies.contains(&t))) {
            let share = (deputies.len() as f64 / (live + lost.len()).max(1) as f64).max(DEPUTY_SHARE);
            if self.rng.chance(share)
                && let Some(i) = self.rng.index(deputies.len())
            {
                self.gossip_to(now, deputies[i]);
            }
        }
    }

    fn gossip_to(&mut self, now: Time, to: NodeId) {
        if self.state.seen.contains(&to) { self.send_status(to) } else { self.send_state(now, to) }
    }

    /// Members held unreachable that are not down yet.
    pub(super) fn lost(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.verdict.unreachable.keys().copied().filter(|id| self.state.status(*id).is_some_and(|s| s < MemberStatus::Down))
    }

    /// So many random reachable others that fit.
    fn choose(&mut self, count: usize, fits: impl Fn(&Candidate<'_>) -> bool) -> Vec<NodeId> {
        let Self { state, verdict, me, rng, .. } = self;
        let mut pool: Vec<NodeId> = state
            .members
            .iter()
            .filter(|(id, m)| **id != *me && m.status < MemberStatus::Down && !verdict.unreachable.contains_key(id))
            .map(|(&id, _)| id)
            .filter(|&subject| fits(&Candidate { state, subject }))
            .collect();
        let take = count.min(pool.len());
        for i in 0..take {
            let j = i + rng.below((pool.len() - i) as u64) as usize;
            pool.swap(i, j);
        }
        pool.truncate(take);
        pool
    }

    fn send_status(&mut self, to: NodeId) {
        self.counters.add(Count::StatusSent);
        let (digest, seen) = (self.state.digest(), self.state.seen_digest());
        let counter = self.state.clock.get(self.me);
        self.send_parts(to, &[Part::Status { digest, counter, seen }]);
    }

    fn send_seen(&mut self, to: NodeId) {
        let (digest, bitmap) = (self.state.digest(), codec::seen_bitmap(&self.state));
        if datagram::ENVELOPE_BYTES + datagram::PART_BYTES + 16 + bitmap.len() <= self.datagram_max() {
            self.send_parts(to, &[Part::Seen { digest, bitmap: &bitmap }]);
        }
    }

    /// The state in a datagram, or over the link when it is too large for one.
    pub(super) fn send_state(&mut self, now: Time, to: NodeId) {
        let bytes = self.encoded(now);
        self.counters.add(Count::StateSent);
        if datagram::ENVELOPE_BYTES + datagram::PART_BYTES + bytes.len() <= self.datagram_max() {
            self.send_parts(to, &[Part::State(&bytes)]);
        } else if let Some(addr) = self.addrs.get(&to) {
            self.counters.add(Count::StateByLink);
            self.counters.add(Count::FramesOut);
            let known = self.state.members.contains_key(&to);
            self.out.gossip(to, known, addr.clone(), MemberFrame::Gossip { state: bytes });
        }
    }

    /// The state as it travels.
    pub(super) fn encoded(&self, now: Time) -> Vec<u8> {
        let mut w = Writer::default();
        codec::encode(&mut w, &self.state, now);
        w.0
    }

    pub(super) fn send_parts(&mut self, to: NodeId, parts: &[Part<'_>]) {
        let Some(addr) = self.addrs.get(&to) else { return };
        self.spread.counter += 1;
        let envelope = Envelope {
            session: self.spread.session,
            counter: self.spread.counter,
            sender: self.me,
            cluster: self.spread.cluster,
            uid: self.state.uid,
        };
        let mut w = datagram::open(&envelope);
        for part in parts {
            part.write(&mut w);
        }
        self.counters.add(Count::DatagramsOut);
        self.counters.add_n(Count::BytesOut, w.0.len() as u64);
        self.out.datagram(addr.clone(), w.0);
    }

    pub(super) fn datagram_max(&self) -> usize {
        usize::from(self.config.membership.max_datagram)
    }
}

/// Whom `choose` asks about.
struct Candidate<'a> {
    state: &'a State,
    subject: NodeId,
}
