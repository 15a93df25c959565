//! Gossip: push-pull of the state, event-driven where something changed, by rounds otherwise.

use std::collections::BTreeMap;

use super::{
    MemberFrame, MemberStatus, Membership, Phase,
    codec::{self, Delta, Lacks},
    counters::Count,
    datagram::{self, Bad, Envelope, Part},
    pack,
    state::State,
};
use crate::{
    Config, NodeAddr, NodeId, Time,
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
    /// Number of the last ask.
    ask: u32,
    /// Who was asked what it has: the number, the version that was meant, and when.
    asked: BTreeMap<NodeId, (u32, u128, Time)>,
    /// The last answer could not be used: ask for everything.
    missed: bool,
    /// Digests of the present version and its seen set, until one of them changes.
    digest: Option<u128>,
    seen_digest: Option<u64>,
}

impl Spread {
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            counter: 0,
            cluster: xxhash_rust::xxh3::xxh3_64(config.cluster.name.as_bytes()),
            round_at: None,
            pending: false,
            last_burst: None,
            reported: 0,
            was_converged: false,
            told: BTreeMap::new(),
            ask: 0,
            asked: BTreeMap::new(),
            missed: false,
            digest: None,
            seen_digest: None,
        }
    }

    /// The version is another one.
    pub(crate) fn changed(&mut self) {
        self.pending = true;
        (self.digest, self.seen_digest) = (None, None);
    }

    /// The seen set of the version is another one.
    pub(crate) fn seen_changed(&mut self) {
        self.seen_digest = None;
    }
}

impl Membership {
    /// Opens a datagram and takes its parts.
    /// `real`: it came as a datagram, not in a frame.
    pub(super) fn take_datagram(&mut self, now: Time, bytes: &[u8], real: bool) {
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
        if real {
            self.tunnel.take_datagram(now);
        }
        self.take_sign_of_life(now, from);
        while parts.left() > 0 && self.phase == Phase::Member {
            match Part::read(&mut parts) {
                Ok(Some(part)) => self.take_part(now, from, envelope.counter, part),
                Ok(None) => self.counters.add(Count::DropPart),
                Err(_) => return self.counters.add(Count::DropMalformed),
            }
        }
    }

    /// An answer that came over a link.
    pub(super) fn take_gossip_frame(&mut self, now: Time, from: NodeId, state: &[u8]) {
        if self.speaks(now, from) {
            match pack::unpack(state) {
                Ok(bytes) => self.take_delta(now, from, &bytes),
                Err(_) => self.counters.add(Count::FrameMalformed),
            }
        }
    }

    /// An ask that came over a link.
    pub(super) fn take_ask_frame(&mut self, now: Time, from: NodeId, ask: u32, digest: u128, clock: &[u8]) {
        if self.speaks(now, from) {
            self.answer_ask(now, from, ask, digest, clock);
        }
    }

    /// Whether gossip of that node counts.
    fn speaks(&mut self, now: Time, from: NodeId) -> bool {
        if self.phase != Phase::Member {
            return false;
        }
        if self.is_out(from) {
            self.tell(now, from);
            return false;
        }
        if !self.state.members.contains_key(&from) {
            self.counters.add(Count::FrameStranger);
            return false;
        }
        true
    }

    /// Whether the envelope is of this cluster, of a member, and new.
    fn accept(&mut self, now: Time, envelope: &Envelope) -> Result<(), Count> {
        if self.phase != Phase::Member {
            return Err(Count::DropNotMember);
        }
        if envelope.group != self.group() {
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
        if self.watch.window(from).take(envelope.counter) { Ok(()) } else { Err(Count::DropReplay) }
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
            self.send_notice(now, id);
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
            Part::Status { digest, .. } if digest != self.digest() => self.ask(now, from, digest),
            Part::Status { seen, .. } => {
                if seen != self.seen_digest() {
                    self.send_seen(from);
                }
            }
            Part::Delta(bytes) => self.take_delta(now, from, bytes),
            Part::Ask { ask, digest, clock } => self.answer_ask(now, from, ask, digest, clock),
            Part::Seen { digest, bitmap } if digest == self.digest() => {
                if self.learn_bitmap(bitmap) {
                    self.send_seen(from);
                }
            }
            Part::Mark { digest } if digest == self.digest() => drop(self.learn_seen(&[from])),
            Part::Seen { .. } | Part::Mark { .. } => {}
        }
    }

    /// Asks a member for what this node lacks of its version, unless somebody was asked for that very version just now.
    fn ask(&mut self, now: Time, to: NodeId, digest: u128) {
        let patience = self.config.membership.gossip_interval.get() / 4;
        let ttl = self.config.membership.gossip_ttl.get();
        let asked = &mut self.spread.asked;
        asked.retain(|_, (_, _, at)| now.since(*at) <= ttl);
        if asked.iter().any(|(&id, &(_, version, at))| (version == digest || id == to) && now.since(at) < patience) {
            return;
        }
        self.spread.ask = self.spread.ask.checked_add(1).unwrap_or(1);
        let number = self.spread.ask;
        self.spread.asked.insert(to, (number, digest, now));
        let mut clock = Writer::default();
        if !std::mem::take(&mut self.spread.missed) {
            codec::encode_clock(&mut clock, &self.state.clock);
        }
        self.counters.add(Count::AskSent);
        let mine = self.digest();
        if datagram::ENVELOPE_BYTES + datagram::PART_BYTES + 20 + clock.0.len() <= self.datagram_max() {
            self.send_parts(to, &[Part::Ask { ask: number, digest: mine, clock: &clock.0 }]);
        } else {
            self.counters.add(Count::FramesOut);
            self.out.frame_to(to, MemberFrame::Ask { ask: number, digest: mine, clock: clock.0 });
        }
    }

    /// Sends what the asking member lacks, and asks back if it has what is missing here.
    fn answer_ask(&mut self, now: Time, from: NodeId, ask: u32, digest: u128, clock: &[u8]) {
        if digest == self.digest() {
            return;
        }
        let Ok((known, ahead)) = codec::decode_clock(&mut Reader::new(clock), &self.state) else {
            return self.counters.add(Count::DropMalformed);
        };
        // Equal clocks and different digests: the whole state brings both together.
        let all = clock.is_empty();
        if !self.send_delta(now, from, ask, if all { Lacks::Everything } else { Lacks::Beyond(&known) }) && !ahead {
            self.send_delta(now, from, ask, Lacks::Everything);
        }
        if ahead {
            self.ask(now, from, digest);
        }
    }

    /// What another member sent of its state.
    fn take_delta(&mut self, now: Time, from: NodeId, bytes: &[u8]) {
        let Delta { ask, digest, part, seen } = match codec::decode(&mut Reader::new(bytes), &self.state, now) {
            Ok(delta) => delta,
            Err(_) => {
                self.spread.missed = true;
                self.counters.add(Count::GossipMissed);
                return self.counters.add(Count::DropMalformed);
            }
        };
        if part.uid != self.state.uid {
            return self.counters.add(Count::FrameForeign);
        }
        if ask == 0 {
            // What nobody asked for counts if it is about the sender or about this node.
            let about = |id: &NodeId| *id == from || *id == self.me;
            if !(part.members.keys().all(about) && part.tombstones.keys().all(about) && part.rows.is_empty() && part.clock.len() == 0) {
                return self.counters.add(Count::GossipUnasked);
            }
        } else {
            let ttl = self.config.membership.gossip_ttl.get();
            match self.spread.asked.get(&from) {
                Some(&(number, _, at)) if number == ask && now.since(at) <= ttl => {}
                Some(&(number, _, _)) if number == ask => return self.counters.add(Count::GossipExpired),
                _ => return self.counters.add(Count::GossipUnasked),
            }
            self.spread.asked.remove(&from);
        }
        self.receive(from, digest, &part, &seen);
    }

    /// Takes in another member's state, or the part of it that was missing here.
    fn receive(&mut self, from: NodeId, digest: u128, part: &State, seen: &[u8]) {
        let before = self.digest();
        let clock = self.state.clock.clone();
        self.state.merge(part);
        let after = self.state.digest();
        if after == before && clock == self.state.clock {
            self.counters.add(Count::GossipSame);
            if after == digest {
                if self.learn_bitmap(seen) {
                    self.send_seen(from);
                }
            } else {
                self.send_status(from);
            }
            return;
        }
        self.state.seen.clear();
        if after == digest {
            self.counters.add(Count::GossipNewer);
            let ids: Vec<NodeId> = self.state.members.keys().copied().collect();
            self.state.seen = codec::from_bitmap(seen, &ids).collect();
            self.changed();
            self.report_seen(&[from]);
        } else {
            self.counters.add(Count::GossipMerged);
            self.changed();
            self.send_status(from);
        }
        if self.state.has_orphans() {
            self.counters.add(Count::Adopted);
            self.touch();
        }
    }

    /// The same of a bitmap over the members.
    fn learn_bitmap(&mut self, bitmap: &[u8]) -> bool {
        let (mut more, mut new) = (false, vec![]);
        for (i, (&id, _, mine)) in self.state.with_seen().enumerate() {
            let theirs = bitmap.get(i / 8).is_some_and(|b| b >> (i % 8) & 1 == 1);
            more |= mine && !theirs;
            if theirs && !mine {
                new.push(id);
            }
        }
        self.learn_seen(&new);
        more
    }

    /// Names the present version.
    pub(super) fn digest(&mut self) -> u128 {
        let Self { spread, state, .. } = self;
        *spread.digest.get_or_insert_with(|| state.digest())
    }

    fn seen_digest(&mut self) -> u64 {
        let Self { spread, state, .. } = self;
        *spread.seen_digest.get_or_insert_with(|| state.seen_digest())
    }

    fn group(&self) -> u64 {
        self.spread.cluster ^ self.state.uid
    }

    /// Takes over who has seen this version; true if this node knows of some that `theirs` lacks.
    fn learn_seen(&mut self, theirs: &[NodeId]) -> bool {
        let before = self.state.seen.len();
        let known = theirs.iter().filter(|id| self.state.members.contains_key(id)).copied().collect::<Vec<_>>();
        let common = known.iter().filter(|id| self.state.seen.contains(id)).count();
        self.state.seen.extend(known);
        if self.state.seen.len() > before {
            self.dirty = true;
            self.spread.seen_changed();
        }
        before > common
    }

    /// Tells the leader and `also` that this node has seen the version.
    pub(super) fn report_seen(&mut self, also: &[NodeId]) {
        if !self.state.seen.contains(&self.me) {
            return;
        }
        let digest = self.digest();
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
            self.spread.seen_changed();
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
                self.send_status(to);
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

    /// Tells some others how this node ends: it will answer nobody who asks.
    pub(super) fn tell_own_end(&mut self, now: Time) {
        let me = self.me;
        for to in self.choose(BURST, |_| true) {
            self.send_delta(now, to, 0, Lacks::About(me));
        }
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
            self.round();
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
    fn round(&mut self) {
        let reduce = f64::from(self.config.membership.reduce_above) / self.state.members.len().max(1) as f64;
        let bias = self.config.membership.unseen_probability * reduce.min(1.0);
        let behind = if self.rng.chance(bias) { self.choose(1, |m| !m.state.seen.contains(&m.subject)) } else { vec![] };
        let target = if behind.is_empty() { self.choose(1, |_| true) } else { behind }.first().copied();
        if let Some(to) = target {
            self.send_status(to);
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
                self.send_status(deputies[i]);
            }
        }
    }

    /// Members held unreachable that are not down yet.
    pub(super) fn lost(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.verdict.unreachable.keys().copied().filter(|id| self.state.status(*id).is_some_and(|s| s < MemberStatus::Down))
    }

    /// So many random reachable others that fit.
    pub(super) fn choose(&mut self, count: usize, fits: impl Fn(&Candidate<'_>) -> bool) -> Vec<NodeId> {
        let Self { state, verdict, me, rng, standing, .. } = self;
        let may = |subject: NodeId| {
            subject != *me
                && state.status(subject).is_some_and(|s| s < MemberStatus::Down)
                && !verdict.unreachable.contains_key(&subject)
                && fits(&Candidate { state, subject })
        };
        // Where most fit, a few draws find them; the rest of the work is for where few do.
        let mut chosen: Vec<NodeId> = vec![];
        for _ in 0..count * 4 {
            if let Some(i) = rng.index(standing.order.len())
                && chosen.len() < count
                && !chosen.contains(&standing.order[i])
                && may(standing.order[i])
            {
                chosen.push(standing.order[i]);
            }
        }
        if chosen.len() == count {
            return chosen;
        }
        let mut pool: Vec<NodeId> = state.members.keys().copied().filter(|&id| may(id)).collect();
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
        let (digest, seen) = (self.digest(), self.seen_digest());
        let counter = self.state.clock.get(self.me);
        self.send_parts(to, &[Part::Status { digest, counter, seen }]);
    }

    fn send_seen(&mut self, to: NodeId) {
        let (digest, bitmap) = (self.digest(), codec::seen_bitmap(&self.state));
        if datagram::ENVELOPE_BYTES + datagram::PART_BYTES + 16 + bitmap.len() <= self.datagram_max() {
            self.send_parts(to, &[Part::Seen { digest, bitmap: &bitmap }]);
        }
    }

    /// Tells a node that was downed or removed what became of it.
    pub(super) fn send_notice(&mut self, now: Time, to: NodeId) {
        self.send_delta(now, to, 0, Lacks::About(to));
    }

    /// What the receiver lacks, in a datagram, or over the link when it is too large for one; false if it lacks nothing.
    fn send_delta(&mut self, now: Time, to: NodeId, ask: u32, lacks: Lacks<'_>) -> bool {
        let mut w = Writer::default();
        let digest = self.digest();
        if !codec::encode(&mut w, &self.state, digest, ask, lacks, now) {
            return false;
        }
        self.counters.add(if matches!(lacks, Lacks::Everything) { Count::StateSent } else { Count::DeltaSent });
        if datagram::ENVELOPE_BYTES + datagram::PART_BYTES + w.0.len() <= self.datagram_max() {
            self.send_parts(to, &[Part::Delta(&w.0)]);
        } else if let Some(addr) = self.addrs.get(&to) {
            self.counters.add(Count::StateByLink);
            self.counters.add(Count::FramesOut);
            let known = self.state.members.contains_key(&to);
            self.out.gossip(to, known, addr.clone(), MemberFrame::Gossip { state: pack::pack(w.0) });
        }
        true
    }

    /// The state for one that knows nothing of it.
    pub(super) fn whole_state(&mut self, now: Time) -> Vec<u8> {
        let mut w = Writer::default();
        let digest = self.digest();
        codec::encode(&mut w, &self.state, digest, 0, Lacks::Everything, now);
        pack::pack(w.0)
    }

    /// In a datagram, or in a frame where datagrams do not get through.
    pub(super) fn send_parts(&mut self, to: NodeId, parts: &[Part<'_>]) {
        if self.tunnel.carries(to) {
            if let Some((_, datagram)) = self.datagram_of(to, parts) {
                self.counters.add(Count::FramesOut);
                self.out.frame_to(to, MemberFrame::Datagram { datagram, blocked: self.tunnel.blocked });
            }
        } else {
            self.send_real(to, parts);
        }
    }

    /// In a datagram whatever becomes of it.
    pub(super) fn send_real(&mut self, to: NodeId, parts: &[Part<'_>]) {
        if let Some((addr, bytes)) = self.datagram_of(to, parts) {
            self.counters.add(Count::DatagramsOut);
            self.counters.add_n(Count::BytesOut, bytes.len() as u64);
            self.out.datagram(addr, bytes);
        }
    }

    fn datagram_of(&mut self, to: NodeId, parts: &[Part<'_>]) -> Option<(NodeAddr, Vec<u8>)> {
        let addr = self.addrs.get(&to)?.clone();
        self.spread.counter += 1;
        let envelope = Envelope { counter: self.spread.counter, sender: self.me, group: self.group() };
        let mut w = datagram::open(&envelope);
        for part in parts {
            part.write(&mut w);
        }
        Some((addr, w.0))
    }

    pub(super) fn datagram_max(&self) -> usize {
        usize::from(self.config.membership.max_datagram)
    }
}

/// Whom `choose` asks about.
pub(super) struct Candidate<'a> {
    state: &'a State,
    subject: NodeId,
}
