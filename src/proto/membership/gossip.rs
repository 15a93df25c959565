//! Gossip: push-pull of the state, event-driven where something changed, by rounds otherwise.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use super::{
    MemberFrame, MemberStatus, Membership, Phase,
    codec::{self, Body, Head, Lacks},
    counters::Count,
    datagram::{self, Bad, Envelope, Part},
    frame::Packed,
    pack,
    pool::Answer,
    state::{Entry, MEMBERS_MAX, Version},
};
use crate::{
    Config, NodeAddr, NodeId, Time,
    proto::wire::{Malformed, Reader, Writer},
};

/// Largest state that goes as it is, whatever a frame may have.
const PLAIN_MAX: usize = 1 << 20;
/// Whom a change is pushed to at once.
const BURST: usize = 3;
/// Pushes in a row after which it is a storm.
const STORM: u32 = 2;
/// Whom a change is pushed to in a storm.
const STORM_BURST: usize = 2;
/// Whom the leader tells at once that all have seen, and whom a change for which shards wait is pushed to.
const WIDE_BURST: usize = 8;
/// What of seen sets is sent in answers to statuses, at most, in a quarter of an interval: one, or so many bytes. A deputy hears of a tenth of
/// all nodes in each interval; in quarters, so that no second gets the share of two.
const SEEN_BYTES: usize = 1024;
/// Least share of the rounds that go to an unreachable node while there is one.
const UNREACHABLE_SHARE: f64 = 0.2;
/// Least share of the rounds that go to a deputy.
const DEPUTY_SHARE: f64 = 0.1;

/// Asks of one member whose answers are taken.
const ASKS_MAX: usize = 16;

/// A member was asked what it has.
#[derive(Copy, Clone, Debug)]
struct Asked {
    number: u32,
    /// The version that was meant.
    version: u128,
    at: Time,
}

/// When and to whom to gossip, and who this node is in datagrams.
#[derive(Clone, Debug)]
pub(crate) struct Spread {
    counter: u64,
    cluster: u64,
    round_at: Option<Time>,
    /// A change waits to be pushed.
    pending: bool,
    /// It is one for which shards wait.
    urgent: bool,
    last_burst: Option<Time>,
    /// Pushes each of which came within a round of the one before.
    in_a_row: u32,
    /// The version this node has reported seen to the leader.
    reported: u128,
    was_converged: bool,
    /// When a removed or downed node was last told so.
    told: BTreeMap<NodeId, Time>,
    /// Number of the last ask.
    ask: u32,
    /// Who was asked what it has, the newest last: answers to some of them may be under way at once where a round trip takes longer than it takes to ask again.
    asked: BTreeMap<NodeId, VecDeque<Asked>>,
    /// The last answer could not be used: ask for everything.
    missed: bool,
    last_ask: Option<Time>,
    /// Since when bytes of seen sets are counted, and how many went out in answers.
    seen_sent: (Time, usize),
    /// In a storm: whom to ask next, and the version that it told of.
    next_ask: Option<(NodeId, u128)>,
}

/// Elements of a state as they came.
#[derive(Copy, Clone)]
pub(super) enum Elements<'a> {
    /// In a datagram.
    Plain(&'a [u8]),
    /// Over a link.
    Packed(&'a Packed),
}

impl Spread {
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            counter: 0,
            cluster: xxhash_rust::xxh3::xxh3_64(config.cluster.name.as_bytes()),
            round_at: None,
            pending: false,
            urgent: false,
            last_burst: None,
            in_a_row: 0,
            reported: 0,
            was_converged: false,
            told: BTreeMap::new(),
            ask: 0,
            asked: BTreeMap::new(),
            missed: false,
            last_ask: None,
            seen_sent: (Time::ZERO, 0),
            next_ask: None,
        }
    }

    /// Others push as well, and what comes a little later says more at once.
    pub(super) const fn storms(&self) -> bool {
        self.in_a_row > STORM
    }

    /// The version is another one.
    pub(crate) fn changed(&mut self) {
        self.pending = true;
    }

    /// The next push goes at once and to more: a process is proven gone, and what it ran has no home until the coordinator hears of that. For what this node
    /// itself adds to that: there are a few such changes for each process, however many members pass them on.
    pub(super) const fn hurry(&mut self) {
        self.urgent = true;
    }
}

impl Head {
    /// Since when those among the elements lie buried, on this node's clock.
    pub(super) fn buried(&self, now: Time, part: &Version) -> Vec<(NodeId, Time)> {
        let ages = self.ages.iter().map(|&age| now - Duration::from_secs(u64::from(age)));
        part.tombstones.keys().copied().zip(ages.chain(std::iter::repeat(now))).collect()
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
        let from = envelope.sender;
        if let Err(why) = self.accept(now, &envelope) {
            self.counters.add(why);
            if why == Count::DropSender
                && let Ok(Some(Part::Delta(bytes))) = Part::read(&mut parts)
            {
                self.take_introduction(now, from, &mut Reader::new(bytes), None);
            }
            return;
        }
        if real {
            self.tunnel.take_datagram(now);
        }
        self.hear_member(now, from);
        self.watch.met(now, from);
        while parts.left() > 0 && self.phase == Phase::Member {
            match Part::read(&mut parts) {
                Ok(Some(part)) => self.take_part(now, from, envelope.counter, part),
                Ok(None) => self.counters.add(Count::DropPart),
                Err(_) => return self.counters.add(Count::DropMalformed),
            }
        }
    }

    /// An answer that came over a link.
    pub(super) fn take_gossip_frame(&mut self, now: Time, from: NodeId, head: &[u8], body: &Packed) {
        if self.speaks(now, from) {
            self.take_delta(now, from, &mut Reader::new(head), Some(body));
        } else if self.phase == Phase::Member && !self.is_out(from) {
            self.take_introduction(now, from, &mut Reader::new(head), Some(body));
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
        match self.state.status(from) {
            Some(status) if status < MemberStatus::Down && from != self.me => {}
            _ if self.is_out(from) => {
                self.tell(now, from);
                return Err(Count::DropRemoved);
            }
            _ => return Err(Count::DropSender),
        }
        if self.watch.window(from).take(envelope.counter) { Ok(()) } else { Err(Count::DropReplay) }
    }

    pub(super) fn is_out(&self, id: NodeId) -> bool {
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
            Part::Beat { seq, doubt } => {
                self.suspicion.take_beat(now, from);
                self.counters.add(Count::BeatsAnswered);
                let lost = self.verdict.unreachable.contains_key(&from);
                let reply = Part::BeatReply { seq, lost };
                match self.heard(now).filter(|_| doubt && !lost) {
                    Some(members) => self.send_parts(from, &[reply, Part::Heard { seq, members: &members }]),
                    None => self.send_parts(from, &[reply]),
                }
            }
            Part::Heard { seq, members } => self.take_heard(from, seq, members),
            Part::BeatReply { seq, lost } => self.take_reply(now, from, seq, lost),
            Part::Status { digest, .. } if digest != self.state.digest() => self.ask(now, from, digest),
            Part::Status { seen, .. } => {
                if seen != self.state.seen_digest() && self.may_answer_seen(now) {
                    self.send_seen(from);
                }
            }
            Part::Delta(bytes) => self.take_delta(now, from, &mut Reader::new(bytes), None),
            Part::Ask { ask, digest, clock } => self.answer_ask(now, from, ask, digest, clock),
            Part::Seen { digest, first, bitmap } if digest == self.state.digest() => {
                if self.learn_bitmap(bitmap, first) {
                    self.send_seen_of(from, first, bitmap.len());
                }
            }
            Part::Mark { digest } if digest == self.state.digest() => self.dirty |= self.state.see(from),
            Part::Seen { .. } | Part::Mark { .. } => {}
        }
    }

    /// Asks a member for what this node lacks of its version, unless somebody was asked for that very version just now; in a storm, where
    /// everybody has another one, only so often.
    fn ask(&mut self, now: Time, to: NodeId, digest: u128) {
        if self.spread.storms() && self.pace().is_some_and(|at| at > now) {
            self.spread.next_ask = Some((to, digest));
            return;
        }
        let patience = self.config.membership.gossip_interval.get() / 4;
        let ttl = self.config.membership.gossip_ttl.get();
        let asked = &mut self.spread.asked;
        asked.retain(|_, asks| {
            asks.retain(|ask| now.since(ask.at) <= ttl);
            !asks.is_empty()
        });
        let all = asked.iter().flat_map(|(&id, asks)| asks.iter().map(move |ask| (id, ask)));
        if all.into_iter().any(|(id, ask)| (ask.version == digest || id == to) && now.since(ask.at) < patience) {
            return;
        }
        self.spread.ask = self.spread.ask.checked_add(1).unwrap_or(1);
        let number = self.spread.ask;
        self.spread.last_ask = Some(now);
        let asks = self.spread.asked.entry(to).or_default();
        if asks.len() == ASKS_MAX {
            asks.pop_front();
        }
        asks.push_back(Asked { number, version: digest, at: now });
        let mut clock = Writer::default();
        if !std::mem::take(&mut self.spread.missed) {
            codec::encode_clock(&mut clock, &self.state.clock);
        }
        self.counters.add(Count::AskSent);
        let mine = self.state.digest();
        if datagram::ENVELOPE_BYTES + datagram::PART_BYTES + 20 + clock.0.len() <= self.datagram_max() {
            self.send_parts(to, &[Part::Ask { ask: number, digest: mine, clock: &clock.0 }]);
        } else {
            self.counters.add(Count::FramesOut);
            self.out.frame_to(to, MemberFrame::Ask { ask: number, digest: mine, clock: clock.0 });
        }
    }

    /// When the next one may be asked in a storm.
    fn pace(&self) -> Option<Time> {
        let pause = self.config.membership.gossip_interval.get() / 4;
        self.spread.last_ask.map(|at| at + pause)
    }

    /// Sends what the asking member lacks, and asks back if it has what is missing here.
    fn answer_ask(&mut self, now: Time, from: NodeId, ask: u32, digest: u128, clock: &[u8]) {
        if digest == self.state.digest() {
            return;
        }
        let version = &self.state.version;
        let answer = || {
            let (known, ahead) = codec::decode_clock(clock, version)?;
            let body = if clock.is_empty() { Some(whole(version)) } else { codec::encode(version, Lacks::Beyond(&known)).map(Arc::new) };
            Ok(Answer { body, ahead })
        };
        let answer = if let Some(pool) = &self.pool { pool.answer(version, clock, answer) } else { answer() };
        let Ok(Answer { body, ahead }) = answer else { return self.counters.add(Count::DropMalformed) };
        match body {
            Some(body) => {
                self.counters.add(if clock.is_empty() { Count::StateSent } else { Count::DeltaSent });
                self.send_elements(now, from, ask, &body);
            }
            // Equal clocks and different digests: the whole state brings both together.
            None if !ahead => {
                self.counters.add(Count::StateSent);
                let body = whole(&self.state.version);
                self.send_elements(now, from, ask, &body);
            }
            None => {}
        }
        if ahead {
            self.ask(now, from, digest);
        }
    }

    /// What another member sent of its state: a head, then elements, those of a frame apart.
    fn take_delta(&mut self, now: Time, from: NodeId, r: &mut Reader<'_>, body: Option<&Packed>) {
        let read = self.read_delta(r, body);
        let Ok((head, part)) = read else {
            self.spread.missed = true;
            self.counters.add(Count::GossipMissed);
            return self.counters.add(Count::DropMalformed);
        };
        if head.uid != self.state.uid {
            return self.counters.add(Count::FrameForeign);
        }
        if head.ask == 0 {
            // What nobody asked for counts if it is about the sender or about this node.
            let about = |id: &NodeId| *id == from || *id == self.me;
            if !(part.members.keys().all(about) && part.tombstones.keys().all(about) && part.rows.is_empty() && part.clock.len() == 0) {
                return self.counters.add(Count::GossipUnasked);
            }
        } else {
            let ttl = self.config.membership.gossip_ttl.get();
            let asks = self.spread.asked.get_mut(&from);
            let ask = asks.and_then(|asks| asks.iter().position(|ask| ask.number == head.ask).and_then(|at| asks.remove(at)));
            match ask {
                Some(ask) if now.since(ask.at) <= ttl => {}
                Some(_) => return self.counters.add(Count::GossipExpired),
                None => return self.counters.add(Count::GossipUnasked),
            }
        }
        self.receive(now, from, &head, &part);
    }

    fn read_delta(&self, r: &mut Reader<'_>, body: Option<&Packed>) -> Result<(Head, Arc<Version>), Malformed> {
        let head = Head::read(r)?;
        let elements = body.map_or(Elements::Plain(r.rest()), Elements::Packed);
        Ok((head, self.read_elements(&self.state.version, elements)?))
    }

    /// One that is no member here says that it is one: news of its joining may be late, and it is not answered until then. Its words about itself are all
    /// that is taken of it. Datagrams are believed as far as those of members are: whoever sends them knows the number that was drawn for this cluster.
    fn take_introduction(&mut self, now: Time, from: NodeId, r: &mut Reader<'_>, body: Option<&Packed>) {
        if from == self.me || self.state.members.len() >= MEMBERS_MAX {
            return;
        }
        let Ok((head, part)) = self.read_delta(r, body) else { return self.counters.add(Count::DropMalformed) };
        let itself = |m: &Entry| m.status < MemberStatus::Down && codec::fits(&m.info) && m.info.addr.hash64() == from.addr_hash();
        let alone = part.members.len() == 1 && part.tombstones.is_empty() && part.rows.is_empty() && part.clock.len() == 0;
        if head.uid == self.state.uid && head.ask == 0 && alone && part.members.get(&from).is_some_and(itself) {
            self.counters.add(Count::Introduced);
            self.receive(now, from, &head, &part);
        } else {
            self.counters.add(Count::GossipUnasked);
        }
    }

    /// Elements that one who knows `known` can read.
    pub(super) fn read_elements(&self, known: &Arc<Version>, elements: Elements<'_>) -> Result<Arc<Version>, Malformed> {
        let bytes = match elements {
            Elements::Plain(bytes) => bytes,
            Elements::Packed(packed) => packed,
        };
        let read = || match elements {
            Elements::Plain(bytes) => codec::decode(bytes, known),
            Elements::Packed(packed) => codec::decode(&pack::unpack(packed)?, known),
        };
        if let Some(pool) = &self.pool { pool.read(known, bytes, read) } else { read().map(Arc::new) }
    }

    /// Takes in another member's state, or the part of it that was missing here.
    fn receive(&mut self, now: Time, from: NodeId, head: &Head, part: &Arc<Version>) {
        let before = Arc::clone(&self.state.version);
        let mut version = Arc::clone(&before);
        if let Some(pool) = &self.pool {
            pool.merge(&mut version, part);
        } else {
            Version::merge(&mut version, part);
        }
        let same = version.digest() == before.digest() && version.clock == before.clock;
        let buried = head.buried(now, part);
        if same {
            self.state.stay(version, buried);
        } else {
            self.state.advance(version, buried);
        }
        let alike = self.state.digest() == head.digest;
        if same {
            self.counters.add(Count::GossipSame);
            if !alike {
                self.send_status(from);
            } else if self.learn_bitmap(&head.seen, 0) {
                self.send_seen(from);
            }
            return;
        }
        if alike {
            self.counters.add(Count::GossipNewer);
            self.state.learn_seen(&head.seen, 0);
            self.changed();
            self.report_seen(&[from]);
        } else {
            self.counters.add(Count::GossipMerged);
            self.changed();
            self.send_status(from);
        }
        // By the leader alone: two that number the same change at once can leave it without a number again where they meet, and all of many never end.
        if self.leads() && self.state.has_orphans() {
            self.counters.add(Count::Adopted);
            self.touch();
        }
    }

    /// Who has seen this version, of the members from the given place on; true if more are known here to have.
    fn learn_bitmap(&mut self, bitmap: &[u8], first: usize) -> bool {
        let (news, more) = self.state.learn_seen(bitmap, first);
        self.dirty |= news;
        more
    }

    fn group(&self) -> u64 {
        self.spread.cluster ^ self.state.uid
    }

    /// Tells the leader and `also` that this node has seen the version.
    pub(super) fn report_seen(&mut self, also: &[NodeId]) {
        if !self.state.has_seen(self.me) {
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
        if self.phase == Phase::Member && self.may_mark() && self.state.see(self.me) {
            self.dirty = true;
            self.report_seen(&[]);
            for to in self.choose(BURST, Whom::Anyone) {
                self.send_seen(to);
            }
        }
    }

    /// Pushes what changed, at most once in a tenth of the interval, in a storm of changes in a quarter of it, and what is urgent at once.
    pub(super) fn flush_changes(&mut self, now: Time) {
        if self.state.members.len() > 1 {
            let interval = self.config.membership.gossip_interval.get();
            let offset = interval.mul_f64(self.rng.unit());
            self.spread.round_at.get_or_insert(now + offset);
        } else {
            (self.spread.round_at, self.spread.urgent) = (None, false);
        }
        if self.burst_due().is_some_and(|at| at <= now) {
            let interval = self.config.membership.gossip_interval.get();
            let follows = self.spread.last_burst.is_some_and(|at| now.since(at) < interval);
            // What is urgent makes no storm: what follows it need not wait for longer.
            let urgent = std::mem::take(&mut self.spread.urgent);
            let in_a_row = if follows { self.spread.in_a_row } else { 0 };
            self.spread.in_a_row = in_a_row.saturating_add(u32::from(!urgent));
            let burst = match (urgent, self.spread.storms()) {
                (true, _) => WIDE_BURST,
                (false, true) => STORM_BURST,
                (false, false) => BURST,
            };
            self.spread.pending = false;
            self.spread.last_burst = Some(now);
            for to in self.choose(burst, Whom::Behind) {
                self.send_status(to);
            }
        }
        let converged = self.standing.converged;
        if converged && !self.spread.was_converged && self.leads() {
            for to in self.choose(WIDE_BURST, Whom::Anyone) {
                self.send_seen(to);
            }
        }
        self.spread.was_converged = converged;
    }

    /// Tells some others how this node ends: it will answer nobody who asks.
    pub(super) fn tell_own_end(&mut self, now: Time) {
        let me = self.me;
        for to in self.choose(BURST, Whom::Anyone) {
            self.send_about(now, to, me);
        }
    }

    /// When gossip is due.
    pub(super) fn gossip_due(&self) -> Option<Time> {
        if self.phase != Phase::Member {
            return None;
        }
        let ask_at = self.spread.next_ask.and_then(|_| self.pace());
        [self.spread.round_at, self.burst_due(), ask_at].into_iter().flatten().min()
    }

    fn burst_due(&self) -> Option<Time> {
        let interval = self.config.membership.gossip_interval.get();
        let pause = match (self.spread.urgent, self.spread.storms()) {
            (true, _) => Duration::ZERO,
            (false, true) => interval / 4,
            (false, false) => interval / 10,
        };
        (self.spread.pending && self.state.members.len() > 1).then(|| self.spread.last_burst.map_or(Time::ZERO, |at| at + pause))
    }

    /// Rounds that are due.
    pub(super) fn gossip_on(&mut self, now: Time) {
        if self.phase != Phase::Member {
            return;
        }
        if self.spread.round_at.is_some_and(|at| at <= now) {
            self.round();
            self.refresh_view();
            let interval = self.config.membership.gossip_interval.get();
            let hurry = self.state.seen_count() * 2 < self.state.members.len();
            self.spread.round_at = Some(now + if hurry { interval / 3 } else { interval });
        }
        if self.pace().is_none_or(|at| at <= now)
            && let Some((to, digest)) = self.spread.next_ask.take()
            && digest != self.state.digest()
            && self.state.members.contains_key(&to)
        {
            self.ask(now, to, digest);
        }
        if self.burst_due().is_some_and(|at| at <= now) {
            self.flush_changes(now);
        }
        self.state.expire(now, self.config.membership.tombstones.get());
    }

    /// One round: a target that is behind if possible, sometimes an unreachable one, sometimes a deputy.
    fn round(&mut self) {
        let reduce = f64::from(self.config.membership.reduce_above) / self.state.members.len().max(1) as f64;
        let bias = self.config.membership.unseen_probability * reduce.min(1.0);
        let behind = if self.rng.chance(bias) { self.choose(1, Whom::Behind) } else { vec![] };
        let target = if behind.is_empty() { self.choose(1, Whom::Anyone) } else { behind }.first().copied();
        if let Some(to) = target {
            self.send_status(to);
        }
        let lost = self.all_lost();
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
        let those = self.state.members.statuses(self.verdict.unreachable.keys());
        those.filter(|&(_, status)| status < MemberStatus::Down).map(|(id, _)| id)
    }

    /// The same in a list. They can be half of all, so that the list has its room at once.
    pub(super) fn all_lost(&self) -> Vec<NodeId> {
        let mut lost = Vec::with_capacity(self.verdict.unreachable.len());
        lost.extend(self.lost());
        lost
    }

    /// So many random reachable others. For a node that may be cut off those that it knows to be silent are not, whatever the others hold: it may be one of
    /// few, who have to find each other.
    pub(super) fn choose(&mut self, count: usize, whom: Whom) -> Vec<NodeId> {
        let Self { state, verdict, me, rng, watch, .. } = self;
        let members = &state.members;
        let may = |at: usize| {
            // The cheapest first: mostly all have seen what there is.
            (whom == Whom::Anyone || !state.has_seen_at(at))
                && members.at(at).is_some_and(|(id, m)| {
                    id != *me && m.status < MemberStatus::Down && !verdict.unreachable.contains_key(&id) && !watch.knows_silent(id)
                })
        };
        let order = &members.roster().order;
        // Where most fit, a few draws find them; the rest of the work is for where few do.
        let mut chosen: Vec<NodeId> = vec![];
        for _ in 0..count * 4 {
            if let Some(i) = rng.index(order.len())
                && chosen.len() < count
                && !chosen.contains(&order[i])
                && members.rank(&order[i]).is_some_and(may)
            {
                chosen.push(order[i]);
            }
        }
        if chosen.len() == count {
            return chosen;
        }
        let mut pool: Vec<NodeId> = members.keys().enumerate().filter(|&(at, _)| may(at)).map(|(_, &id)| id).collect();
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

    /// Whether a seen set may be sent to one more that did not say what is in its own.
    fn may_answer_seen(&mut self, now: Time) -> bool {
        let bytes = self.state.members.len().div_ceil(8);
        let (since, sent) = &mut self.spread.seen_sent;
        if now.since(*since) >= self.config.membership.gossip_interval.get() / 4 {
            (*since, *sent) = (now, 0);
        }
        *sent += bytes;
        *sent <= SEEN_BYTES.max(bytes)
    }

    /// In as many datagrams as it takes.
    fn send_seen(&mut self, to: NodeId) {
        let (digest, bitmap) = (self.state.digest(), self.state.seen_bitmap());
        let room = self.datagram_max() - datagram::ENVELOPE_BYTES - datagram::PART_BYTES - 16 - 3;
        let stretch = (room / 8 * 8).max(8);
        for (i, bitmap) in bitmap.chunks(stretch).enumerate() {
            self.send_parts(to, &[Part::Seen { digest, first: i * stretch * 8, bitmap }]);
        }
    }

    /// Only the stretch of which a datagram told: so many bytes from the place of a member on.
    fn send_seen_of(&mut self, to: NodeId, first: usize, bytes: usize) {
        let (digest, bitmap) = (self.state.digest(), self.state.seen_bitmap());
        let rest = bitmap.get(first / 8..).unwrap_or(&[]);
        self.send_parts(to, &[Part::Seen { digest, first, bitmap: &rest[..bytes.min(rest.len())] }]);
    }

    /// Tells a node that was downed or removed what became of it.
    pub(super) fn send_notice(&mut self, now: Time, to: NodeId) {
        self.send_about(now, to, to);
    }

    /// Tells one that does not seem to know this node who it is.
    pub(super) fn introduce_myself(&mut self, now: Time, to: NodeId) {
        let me = self.me;
        self.send_about(now, to, me);
    }

    /// What is said of a node, to one that did not ask.
    fn send_about(&mut self, now: Time, to: NodeId, node: NodeId) {
        if let Some(body) = codec::encode(&self.state.version, Lacks::About(node)) {
            self.counters.add(Count::DeltaSent);
            self.send_elements(now, to, 0, &body);
        }
    }

    /// What goes before elements.
    pub(super) fn head(&self, now: Time, ask: u32, body: &Body, seen: Vec<u8>) -> Vec<u8> {
        let age = |id: &NodeId| {
            self.state.buried_since(*id).map_or(0, |at| u32::try_from(now.since(at).as_secs()).unwrap_or(u32::MAX).min(codec::SMALL_MAX))
        };
        let ages = body.buried.iter().map(age).collect();
        let mut w = Writer::default();
        Head { uid: self.state.uid, ask, digest: self.state.digest(), ages, seen }.write(&mut w);
        w.0
    }

    /// In a datagram, or over the link when they are too large for one.
    fn send_elements(&mut self, now: Time, to: NodeId, ask: u32, body: &Body) {
        // What nobody asked for is small: who gets it looks at nothing else.
        let seen = if ask == 0 { vec![] } else { self.state.seen_bitmap() };
        let mut head = self.head(now, ask, body, seen);
        if datagram::ENVELOPE_BYTES + datagram::PART_BYTES + head.len() + body.bytes().len() <= self.datagram_max() {
            head.extend_from_slice(body.bytes());
            self.send_parts(to, &[Part::Delta(&head)]);
        } else if let Some(addr) = self.addr_of(to).cloned() {
            self.counters.add(Count::StateByLink);
            self.counters.add(Count::FramesOut);
            let known = self.state.members.contains_key(&to);
            self.out.gossip(to, known, addr, MemberFrame::Gossip { head, body: body.packed(self.plain_max()).clone() });
        }
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
        let addr = self.addr_of(to)?.clone();
        self.spread.counter += 1;
        let envelope = Envelope { counter: self.spread.counter, sender: self.me, group: self.group() };
        let mut w = datagram::open(&envelope);
        for part in parts {
            part.write(&mut w);
        }
        Some((addr, w.0))
    }

    /// States up to this go as they are: they fit into a frame, and who is asked does not stand still to deflate them. A node that takes larger frames than
    /// others by default do does not send them.
    pub(super) fn plain_max(&self) -> usize {
        (self.config.limits.frame_bytes as usize / 2).min(PLAIN_MAX)
    }

    pub(super) fn datagram_max(&self) -> usize {
        usize::from(self.config.membership.max_datagram)
    }
}

/// All of a version, for one that knows nothing of it.
pub(super) fn whole(version: &Version) -> Arc<Body> {
    Arc::clone(version.whole(|| codec::encode(version, Lacks::Everything).unwrap_or_default()))
}

/// Whom `choose` looks for.
#[derive(Copy, Clone, PartialEq, Eq)]
pub(super) enum Whom {
    Anyone,
    /// Who has not seen this version, as far as is known here.
    Behind,
}
