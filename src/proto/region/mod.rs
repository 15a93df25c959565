//! What a node knows of homes: routes, the senders of its streams, the buffer for unknown homes, lanes with two exits.
//!
//! moves.md sections 2, 7 and 13; everything here happens on the network thread, which alone resolves a route and appends to a link.

mod credit;
mod lanes;
mod net;
mod relay;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::Duration,
};

use crate::{
    Config, Epoch, NodeId, ShardKey, Time, TypeId,
    proto::{
        handoff::{DropReason, Envelope, Item, Mode, Word},
        node::{peers::Peers, timers::Timers},
        shard::{LaneId, LaneItem},
        sharding::{SHARDS_MAX, UNSIZED, shard_of},
    },
};

use lanes::{Lanes, Passage, Passed};
use net::{Net, Step};
pub(crate) use relay::{Known, Relay, RelayOut, give_up};

/// How long an answer about a home may take before it is asked for again.
pub(crate) const ASK_RETRY: Duration = Duration::from_secs(1);
/// Least time between two searches for messages that waited too long.
const SWEEP: Duration = Duration::from_millis(50);
/// One shard may use this part of the buffer for unknown homes.
const SHARD_SHARE: usize = 4;
/// This part of `limits.link_bytes` is sent at once of what had waited: the link says in between whether it has room.
const FLUSH_SHARE: usize = 4;
/// This part of it may be under way in the hand-off lanes to a node, and a frame.
pub(crate) const HANDOFF_SHARE: usize = 4;
/// An ask without a home is given up so long before its deadline, or a tenth of its time before.
const GIVE_UP_EARLY: Duration = Duration::from_millis(100);

/// What the region wants done, in order.
#[derive(Debug, PartialEq)]
pub(crate) enum RegionOut {
    /// An item of this node's stream, to the home: this node or a peer.
    Item { to: NodeId, shard: ShardKey, item: Item },
    /// The routing word changed.
    Publish { shard: ShardKey, word: Word },
    /// `Open(k, yes)` to the worker.
    Open { lane: LaneId, shard: ShardKey, k: Epoch, yes: bool },
    /// A message ends here.
    GiveUp(Envelope, DropReason),
    /// Ask the authority.
    WhereIs(ShardKey),
}

/// Bytes of messages that wait for a home, or for room on the link there, of all shards.
const BUFFER_BYTES: usize = 256 << 20;

#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Due {
    /// Ask for the home again: set while items wait for it.
    Where(ShardKey),
    /// Send more of what waited: set while some of it was left behind.
    Flush,
    /// Repeat what is unacknowledged of the stream: set while it is not settled.
    Fence(ShardKey),
}

/// The region of one node.
#[derive(Debug)]
pub(crate) struct Region {
    me: NodeId,
    workers: u16,
    fence_retry: Duration,
    fence_deadline: Duration,
    tell_patience: Duration,
    buffer_max: usize,
    buffer_bytes_max: usize,
    /// Bytes of waiting messages that may be sent at once.
    flush_max: usize,
    /// What is left of that until the link was asked again.
    flush_left: usize,
    shards: BTreeMap<ShardKey, Shard>,
    /// Messages that wait for a home, of all shards.
    buffered: usize,
    buffered_bytes: usize,
    buffering: BTreeSet<ShardKey>,
    sweep_at: Time,
    no_host: BTreeSet<TypeId>,
    refused: BTreeSet<TypeId>,
    lanes: Lanes,
    timers: Timers<Due>,
}

#[derive(Debug, Default)]
struct Shard {
    net: Net,
    buffer: VecDeque<Waiting>,
    /// Epoch of the local word that is published; zero = elsewhere.
    word: Epoch,
    /// "No room" is published.
    shut: bool,
    /// The stay that the worker has reported.
    running: Option<(Epoch, Epoch)>,
    /// The worker holds items for this epoch.
    wanted: Epoch,
    /// Newest record that a sender with a stale route was told of.
    hinted: BTreeMap<NodeId, Epoch>,
}

#[derive(Debug)]
struct Waiting {
    envelope: Envelope,
    until: Time,
}

impl Region {
    pub fn new(config: &Config, me: NodeId, workers: u16) -> Self {
        let sharding = &config.sharding;
        Self {
            me,
            workers,
            fence_retry: sharding.fence_retry.get(),
            fence_deadline: sharding.fence_deadline.get(),
            tell_patience: sharding.handoff_timeout.get(),
            buffer_max: sharding.buffer_messages as usize,
            buffer_bytes_max: BUFFER_BYTES,
            flush_max: config.limits.link_bytes as usize / FLUSH_SHARE,
            flush_left: config.limits.link_bytes as usize / FLUSH_SHARE,
            shards: BTreeMap::new(),
            buffered: 0,
            buffered_bytes: 0,
            buffering: BTreeSet::new(),
            sweep_at: Time::MAX,
            no_host: BTreeSet::new(),
            refused: BTreeSet::new(),
            lanes: Lanes::new(config.limits.held_items as usize, config.limits.lane_items as usize),
            timers: Timers::default(),
        }
    }

    /// Something from a producer's ring.
    pub fn handle_lane(&mut self, now: Time, lane: LaneId, item: LaneItem<Envelope>, peers: &Peers, out: &mut Vec<RegionOut>) {
        let (shard, passage) = match item {
            LaneItem::Msg { shard, enter: None, parcel, .. } if self.lanes.is_free(lane) => {
                debug_assert_eq!(shard, parcel.shard, "the ring names the envelope's shard");
                return self.send(now, parcel, peers, out);
            }
            LaneItem::Msg { shard, enter, parcel, .. } => (shard, Passage { enter, envelope: Some(parcel), leave: None }),
            LaneItem::Leave { shard, k } => (shard, Passage { enter: None, envelope: None, leave: Some(k) }),
            LaneItem::Through { shard, k, k2 } => (shard, Passage { enter: Some(k), envelope: None, leave: Some(k2) }),
            // What the lane still holds is released by the worker's tokens; nothing else is kept of it.
            LaneItem::End => return,
        };
        let mut passed = vec![];
        self.lanes.pass(lane, shard, passage, &mut passed);
        self.passed(now, lane, shard, passed, peers, out);
    }

    /// `Left(lane, shard, k)`: what went back from the worker is in NET.
    pub fn handle_left(&mut self, now: Time, lane: LaneId, shard: ShardKey, k: Epoch, peers: &Peers, out: &mut Vec<RegionOut>) {
        let mut passed = vec![];
        self.lanes.left(lane, shard, k, &mut passed);
        self.passed(now, lane, shard, passed, peers, out);
    }

    fn passed(&mut self, now: Time, lane: LaneId, shard: ShardKey, passed: Vec<Passed>, peers: &Peers, out: &mut Vec<RegionOut>) {
        for passed in passed {
            match passed {
                Passed::Item(envelope) => self.send(now, envelope, peers, out),
                Passed::Refused(envelope) => out.push(RegionOut::GiveUp(envelope, DropReason::HeldFull)),
                Passed::Leave(k) => {
                    let yes = self.shards.get(&shard).is_some_and(|s| s.net.tag() == k && s.net.target() == Some(self.me));
                    out.push(RegionOut::Open { lane, shard, k, yes });
                }
            }
        }
    }

    /// True if nothing is kept of this lane.
    pub fn lane_is_free(&self, lane: LaneId) -> bool {
        self.lanes.is_free(lane)
    }

    /// A message of this node's stream: sent now, or buffered until its home is known and the link there has room.
    pub fn send(&mut self, now: Time, envelope: Envelope, peers: &Peers, out: &mut Vec<RegionOut>) {
        let key = envelope.shard;
        let shard = self.shards.entry(key).or_default();
        let goes = shard.net.target().is_some_and(|node| peers.can_send(node));
        let blocked = shard.net.target().is_some_and(|node| peers.is_blocked(node, key));
        if shard.buffer.is_empty() && goes && !blocked {
            return transmit(&mut shard.net, key, envelope, out);
        }
        if self.refused.contains(&key.ty) {
            return out.push(RegionOut::GiveUp(envelope, DropReason::TypeRefused));
        }
        // Behind a link without room only what was in the producers' rings already is buffered: their words say that there is none.
        let full = self.buffered >= self.buffer_max || self.buffered_bytes + envelope.size() > self.buffer_bytes_max;
        if full || (!goes && shard.buffer.len() >= (self.buffer_max / SHARD_SHARE).max(1)) {
            let reason = if goes { DropReason::NoCredit } else { DropReason::BufferFull };
            return out.push(RegionOut::GiveUp(envelope, reason));
        }
        let until = deadline_of(&envelope).map_or(now + self.tell_patience, |deadline| give_up_at(now, deadline));
        self.sweep_at = self.sweep_at.min(until);
        self.buffered += 1;
        self.buffered_bytes += envelope.size();
        shard.buffer.push_back(Waiting { envelope, until });
        self.buffering.insert(key);
        self.settle(now, key, peers, out);
    }

    /// Home and tag for a message that is sent now, if there is a short way: a home that is another node, a settled stream, room, and nothing
    /// in front. The caller sends it.
    pub fn short_way(&mut self, shard: ShardKey, peers: &Peers) -> Option<(NodeId, Epoch)> {
        let (me, key) = (self.me, shard);
        let shard = self.shards.get_mut(&key)?;
        let to = shard.net.target().filter(|to| *to != me && shard.buffer.is_empty() && shard.net.is_settled())?;
        if !peers.can_send(to) || peers.is_blocked(to, key) {
            return None;
        }
        let (tag, mode) = shard.net.stamp();
        debug_assert_eq!(mode, Mode::Settled, "nothing is unacknowledged");
        Some((to, tag))
    }

    /// Whether `sender`'s route for that shard is as new as this node's.
    pub fn is_up_to_date(&self, shard: ShardKey, aim: Epoch) -> bool {
        let known = self.shards.get(&shard).and_then(|shard| shard.net.known());
        known.is_none_or(|(epoch, home)| epoch <= aim || home == self.me)
    }

    /// Whether anything is kept of the shard, or may be. Of shards that nobody has, a peer could name any number: no more are kept than one worker keeps.
    pub fn may_keep(&self, shard: ShardKey) -> bool {
        shard.shard.0 < SHARDS_MAX && (self.shards.len() < SHARDS_MAX as usize || self.shards.contains_key(&shard))
    }

    /// A record was heard of. True if it is news, and may be kept.
    pub fn learn(&mut self, now: Time, shard: ShardKey, epoch: Epoch, home: NodeId, peers: &Peers, out: &mut Vec<RegionOut>) -> bool {
        if !self.may_keep(shard) || !self.shards.entry(shard).or_default().net.learn(epoch, home) {
            return false;
        }
        self.no_host.remove(&shard.ty);
        if let Some(state) = self.shards.get_mut(&shard) {
            // All were told of an older one, which says no more than nothing.
            state.hinted.clear();
        }
        if home == self.me {
            // Nobody else need tell this node if the move is called off: it asks while the shard does not run here.
            let state = self.shards.entry(shard).or_default();
            state.wanted = state.wanted.max(epoch);
            if !self.timers.is_set(Due::Where(shard)) {
                self.timers.set(Due::Where(shard), now + ASK_RETRY);
            }
        }
        self.step(now, shard, peers, out, |net, step| {
            net.follow(step);
        });
        true
    }

    /// The gate of the stream's home has met the end of a path.
    pub fn stream_ack(&mut self, now: Time, shard: ShardKey, p: Epoch, peers: &Peers, out: &mut Vec<RegionOut>) {
        if self.shards.contains_key(&shard) {
            self.step(now, shard, peers, out, |net, step| net.stream_ack(p, step));
        }
    }

    /// The worker runs the shard.
    pub fn running(&mut self, now: Time, shard: ShardKey, start: Epoch, cur: Epoch, peers: &Peers, out: &mut Vec<RegionOut>) {
        self.shards.entry(shard).or_default().running = Some((start, cur));
        self.settle(now, shard, peers, out);
    }

    /// The stay that ended with `cur` is over.
    pub fn ended(&mut self, shard: ShardKey, cur: Epoch) {
        let shard = self.shards.entry(shard).or_default();
        shard.running = shard.running.filter(|&(_, running)| running > cur);
    }

    /// The worker holds items for an epoch that has not begun there: the authority is asked until it has, or a newer record is known.
    /// Returns that record if it is known already.
    pub fn unknown(&mut self, now: Time, shard: ShardKey, aim: Epoch, peers: &Peers, out: &mut Vec<RegionOut>) -> Option<(Epoch, NodeId)> {
        let state = self.shards.entry(shard).or_default();
        state.wanted = state.wanted.max(aim);
        state.forget_wanted(self.me, peers);
        let known = state.net.known().filter(|_| state.wanted == Epoch::ZERO);
        self.settle(now, shard, peers, out);
        known
    }

    /// A session to `peer` is up: what is unacknowledged there goes again.
    pub fn link_up(&mut self, now: Time, peer: NodeId, peers: &Peers, out: &mut Vec<RegionOut>) {
        let concerned = |net: &Net| net.entry_of_pending() == Some(peer) || (!net.is_settled() && net.target() == Some(peer));
        let keys: Vec<_> = self.shards.iter().filter(|(_, s)| concerned(&s.net)).map(|(k, _)| *k).collect();
        for key in keys {
            self.step(now, key, peers, out, |net, step| net.repeat(step));
        }
        self.retry_buffered(now, peers, out);
    }

    /// The link with `peer` has room, or no more: producers are told, and what waits for room goes.
    pub fn room_changed(&mut self, now: Time, peer: NodeId, shard: Option<ShardKey>, peers: &Peers, out: &mut Vec<RegionOut>) {
        let concerned: Vec<_> = match shard {
            // Of what is left of the last budget: many shards get room at once, and the link is heard before the next.
            Some(shard) => vec![shard],
            None => {
                self.flush_left = self.flush_max;
                self.shards.iter().filter(|(_, s)| s.net.target() == Some(peer)).map(|(key, _)| *key).collect()
            }
        };
        for key in concerned {
            self.settle(now, key, peers, out);
        }
    }

    /// Members, and with them addresses, changed.
    pub fn retry_buffered(&mut self, now: Time, peers: &Peers, out: &mut Vec<RegionOut>) {
        for key in self.buffering.clone() {
            self.settle(now, key, peers, out);
        }
    }

    /// There is another authority: what waits for an answer asks again at once.
    pub fn ask_again(&mut self, now: Time, peers: &Peers, out: &mut Vec<RegionOut>) {
        let waiting: Vec<_> = self.shards.iter().filter(|(_, s)| s.waits()).map(|(k, _)| *k).collect();
        for key in waiting {
            self.timers.clear(Due::Where(key));
            self.settle(now, key, peers, out);
        }
    }

    /// A removal was learned (and is known to `peers`).
    pub fn removed(&mut self, now: Time, node: NodeId, peers: &Peers, out: &mut Vec<RegionOut>) {
        let keys: Vec<_> = self.shards.keys().copied().collect();
        for key in keys {
            let shard = self.shards.get_mut(&key).expect("the key was just read");
            shard.hinted.remove(&node);
            let concerned = shard.net.target() == Some(node);
            if !shard.net.is_settled() || concerned {
                // Any removal may have taken a fence with it, at its entry or in the chain behind it.
                self.step(now, key, peers, out, |net, step| {
                    net.repeat(step);
                    net.follow(step);
                });
            }
        }
    }

    /// No node hosts the type, says the authority: what waits goes on waiting for hosts.
    pub fn no_host(&mut self, ty: TypeId) {
        self.no_host.insert(ty);
    }

    /// The number of shards is known: what waited for it is sent to its shards, in the order in which it came.
    pub fn sized(&mut self, now: Time, ty: TypeId, shards: u32, peers: &Peers, out: &mut Vec<RegionOut>) {
        self.no_host.remove(&ty);
        let key = ShardKey { ty, shard: UNSIZED };
        let Some(unsized_) = self.shards.remove(&key) else { return };
        self.buffered -= unsized_.buffer.len();
        self.buffered_bytes -= bytes_of(&unsized_.buffer);
        self.buffering.remove(&key);
        self.timers.clear(Due::Where(key));
        for Waiting { mut envelope, .. } in unsized_.buffer {
            envelope.shard.shard = shard_of(xxhash_rust::xxh3::xxh3_64(envelope.key()), shards);
            self.send(now, envelope, peers, out);
        }
    }

    /// Whether messages wait here that are no signs.
    pub fn buffers_messages(&self) -> bool {
        let waiting = self.buffering.iter().filter_map(|key| self.shards.get(key)).flat_map(|shard| &shard.buffer);
        self.buffered > 0 && waiting.into_iter().any(|waiting| waiting.envelope.ask.is_none() || deadline_of(&waiting.envelope).is_some())
    }

    /// The authority refused (or took in) this node's idea of the type.
    pub fn set_refused(&mut self, ty: TypeId, refused: bool, out: &mut Vec<RegionOut>) {
        if !refused {
            self.refused.remove(&ty);
        } else if self.refused.insert(ty) {
            for key in self.buffering.iter().filter(|key| key.ty == ty).copied().collect::<Vec<_>>() {
                self.give_up_buffer(key, DropReason::TypeRefused, out);
                if self.shards.get_mut(&key).is_some_and(|shard| std::mem::take(&mut shard.shut)) {
                    out.push(RegionOut::Publish { shard: key, word: Word::ELSEWHERE });
                }
            }
        }
    }

    /// The node's membership is over: nothing is kept.
    pub fn end(&mut self, out: &mut Vec<RegionOut>) {
        for key in self.buffering.clone() {
            self.give_up_buffer(key, DropReason::Shutdown, out);
        }
        out.extend(self.lanes.drain().map(|envelope| RegionOut::GiveUp(envelope, DropReason::Shutdown)));
        for (&key, shard) in &mut self.shards {
            if std::mem::take(&mut shard.word) != Epoch::ZERO || std::mem::take(&mut shard.shut) {
                out.push(RegionOut::Publish { shard: key, word: Word::ELSEWHERE });
            }
        }
        self.shards.clear();
        self.sweep_at = Time::MAX;
        self.timers = Timers::default();
    }

    fn give_up_buffer(&mut self, key: ShardKey, reason: DropReason, out: &mut Vec<RegionOut>) {
        let Some(shard) = self.shards.get_mut(&key) else { return };
        self.buffered -= shard.buffer.len();
        self.buffered_bytes -= bytes_of(&shard.buffer);
        self.buffering.remove(&key);
        self.timers.clear(Due::Where(key));
        out.extend(std::mem::take(&mut shard.buffer).into_iter().map(|w| RegionOut::GiveUp(w.envelope, reason)));
    }

    pub fn handle_timeout(&mut self, now: Time, peers: &Peers, out: &mut Vec<RegionOut>) {
        let mut flush = false;
        while let Some(due) = self.timers.pop(now) {
            match due {
                Due::Where(key) => self.settle(now, key, peers, out),
                Due::Flush => flush = true,
                Due::Fence(key) => self.step(now, key, peers, out, |net, step| net.repeat(step)),
            }
        }
        // One part only: what this leaves behind is due at once, and the link is heard before.
        if flush {
            self.flush_left = self.flush_max;
            self.retry_buffered(now, peers, out);
        }
        if self.sweep_at <= now {
            self.sweep(now, peers, out);
        }
    }

    pub fn next_timeout(&self) -> Option<Time> {
        let sweep = Some(self.sweep_at).filter(|&t| t != Time::MAX);
        sweep.into_iter().chain(self.timers.next()).min()
    }

    /// Drops what waited too long.
    fn sweep(&mut self, now: Time, peers: &Peers, out: &mut Vec<RegionOut>) {
        let mut next = Time::MAX;
        for key in self.buffering.clone() {
            let Some(shard) = self.shards.get_mut(&key) else { continue };
            // What only waits for room has a home: it is not given up while that lives, unless its asker has.
            let goes = shard.net.target().is_some_and(|node| peers.can_send(node));
            for mut waiting in std::mem::take(&mut shard.buffer) {
                if goes && deadline_of(&waiting.envelope).is_none() {
                    waiting.until = now + self.tell_patience;
                }
                if waiting.until > now {
                    next = next.min(waiting.until);
                    shard.buffer.push_back(waiting);
                } else {
                    self.buffered -= 1;
                    self.buffered_bytes -= waiting.envelope.size();
                    // Who hosts a type says how many shards it has.
                    let hosted = key.shard != UNSIZED && !self.no_host.contains(&key.ty);
                    let reason = if hosted { DropReason::Expired } else { DropReason::NoHost };
                    out.push(RegionOut::GiveUp(waiting.envelope, reason));
                }
            }
            if shard.buffer.is_empty() {
                self.buffering.remove(&key);
                // There is room again, if that was all that there was none for.
                self.settle(now, key, peers, out);
            }
        }
        self.sweep_at = if next == Time::MAX { next } else { next.max(now + SWEEP) };
    }

    fn step(&mut self, now: Time, key: ShardKey, peers: &Peers, out: &mut Vec<RegionOut>, f: impl FnOnce(&mut Net, &mut Step<'_>)) {
        let Some(shard) = self.shards.get_mut(&key) else { return };
        let mut sent = vec![];
        let is_removed = |node| peers.is_removed(node);
        f(&mut shard.net, &mut Step { now, deadline: now + self.fence_deadline, is_removed: &is_removed, out: &mut sent });
        out.extend(sent.into_iter().map(|(to, item)| RegionOut::Item { to, shard: key, item }));
        self.settle(now, key, peers, out);
    }

    /// Brings word, buffer and timers in line with the stream's state.
    fn settle(&mut self, now: Time, key: ShardKey, peers: &Peers, out: &mut Vec<RegionOut>) {
        let Some(shard) = self.shards.get_mut(&key) else { return };
        if shard.word != Epoch::ZERO && shard.word != shard.net.tag() {
            shard.word = Epoch::ZERO;
            out.push(RegionOut::Publish { shard: key, word: Word::ELSEWHERE });
        }
        let target = shard.net.target().filter(|node| peers.can_send(*node));
        if let Some(to) = target.filter(|_| !shard.buffer.is_empty()) {
            while !peers.is_blocked(to, key) && self.flush_left > 0 {
                let Some(waiting) = shard.buffer.pop_front() else { break };
                self.buffered -= 1;
                self.buffered_bytes -= waiting.envelope.size();
                if deadline_of(&waiting.envelope).is_some() && waiting.until <= now {
                    out.push(RegionOut::GiveUp(waiting.envelope, DropReason::Expired));
                } else {
                    self.flush_left = self.flush_left.saturating_sub(waiting.envelope.bytes.len().max(1));
                    transmit(&mut shard.net, key, waiting.envelope, out);
                }
            }
            if shard.buffer.is_empty() {
                self.buffering.remove(&key);
                // Each shard has a buffer of its own, and most are never used again.
                shard.buffer = VecDeque::new();
            } else if !peers.is_blocked(to, key) {
                self.timers.set(Due::Flush, now);
            }
        }
        let shut = target.is_some_and(|to| to != self.me && (peers.is_blocked(to, key) || !shard.buffer.is_empty()));
        if shut != shard.shut {
            shard.shut = shut;
            out.push(RegionOut::Publish { shard: key, word: if shut { Word::NO_ROOM } else { Word::ELSEWHERE } });
        }
        let tag = shard.net.tag();
        let runs = shard.running.is_some_and(|(start, cur)| start <= tag && tag <= cur);
        if shard.word == Epoch::ZERO && shard.net.target() == Some(self.me) && shard.net.is_settled() && shard.buffer.is_empty() && runs {
            shard.word = tag;
            out.push(RegionOut::Publish { shard: key, word: Word::local(key.worker(self.workers), tag) });
        }
        if shard.net.is_settled() {
            self.timers.clear(Due::Fence(key));
        } else if !self.timers.is_set(Due::Fence(key)) {
            let at = now + self.fence_retry;
            self.timers.set(Due::Fence(key), shard.net.fence_deadline().map_or(at, |deadline| deadline.min(at).max(now)));
        }
        shard.forget_wanted(self.me, peers);
        if !shard.waits() || (target.is_some() && shard.wanted == Epoch::ZERO) {
            self.timers.clear(Due::Where(key));
        } else if !self.timers.is_set(Due::Where(key)) {
            self.timers.set(Due::Where(key), now + ASK_RETRY);
            out.push(RegionOut::WhereIs(key));
        }
    }

    /// A sender with a stale route, to be told of the newest record: once per sender, shard and record.
    pub fn hint(&mut self, shard: ShardKey, aim: Epoch, sender: NodeId) -> Option<(Epoch, NodeId)> {
        let me = self.me;
        let shard = self.shards.get_mut(&shard)?;
        let (epoch, home) = shard.net.known().filter(|&(epoch, home)| epoch > aim && home != me)?;
        let told = shard.hinted.entry(sender).or_default();
        (*told < epoch).then(|| {
            *told = epoch;
            (epoch, home)
        })
    }

    pub fn known(&self, shard: ShardKey) -> Option<(Epoch, NodeId)> {
        self.shards.get(&shard)?.net.known()
    }

    /// Every shard heard of, with the newest record.
    pub fn heard(&self) -> impl Iterator<Item = (ShardKey, Epoch, NodeId)> {
        self.shards.iter().filter_map(|(key, s)| s.net.known().map(|(epoch, home)| (*key, epoch, home)))
    }

    /// Shards that the workers have reported to run.
    pub fn hosted(&self) -> impl Iterator<Item = ShardKey> {
        self.shards.iter().filter(|(_, s)| s.running.is_some()).map(|(key, _)| *key)
    }

    /// Messages that wait for a home.
    pub fn buffered(&self) -> usize {
        self.buffered
    }

    /// Messages held around changes of exit.
    pub fn held(&self) -> usize {
        self.lanes.held()
    }

    pub fn check(&self) {
        let (mut buffered, mut bytes) = (0, 0);
        for (key, shard) in &self.shards {
            shard.net.check();
            buffered += shard.buffer.len();
            bytes += bytes_of(&shard.buffer);
            assert_eq!(!shard.buffer.is_empty(), self.buffering.contains(key), "{key:?}: who buffers is known");
            let asked = self.timers.is_set(Due::Where(*key)) || shard.net.target().is_some();
            assert!(shard.buffer.is_empty() || asked, "{key:?}: what waits for a home is asked for");
            assert!(!shard.shut || shard.word == Epoch::ZERO, "{key:?}: a local word has room");
            assert_eq!(!shard.net.is_settled(), self.timers.is_set(Due::Fence(*key)), "{key:?}: what is unacknowledged is repeated");
            let word = shard.word;
            assert!(word == Epoch::ZERO || (word == shard.net.tag() && shard.net.target() == Some(self.me)), "{key:?}: X1");
        }
        assert_eq!((buffered, bytes), (self.buffered, self.buffered_bytes), "buffered messages are counted");
        assert!(self.buffered <= self.buffer_max && bytes <= self.buffer_bytes_max, "the buffer is bounded");
        self.lanes.check();
    }
}

fn bytes_of(buffer: &VecDeque<Waiting>) -> usize {
    buffer.iter().map(|waiting| waiting.envelope.size()).sum()
}

impl Shard {
    fn waits(&self) -> bool {
        !self.buffer.is_empty() || self.wanted != Epoch::ZERO
    }

    fn forget_wanted(&mut self, me: NodeId, peers: &Peers) {
        let (wanted, runs) = (self.wanted, self.running.is_some_and(|(_, cur)| cur >= self.wanted));
        // A record that names this node is no news to the worker: the move may have been called off since. And one that names a removed node no answer.
        let is_answer = |(epoch, home): (Epoch, NodeId)| (epoch > wanted || (epoch == wanted && home != me)) && !peers.is_removed(home);
        if runs || self.net.known().is_some_and(is_answer) {
            self.wanted = Epoch::ZERO;
        }
    }
}

fn transmit(net: &mut Net, shard: ShardKey, envelope: Envelope, out: &mut Vec<RegionOut>) {
    let to = net.target().expect("a message is sent only when there is a route");
    let (tag, mode) = net.stamp();
    out.push(RegionOut::Item { to, shard, item: Item::Msg { tag, mode, envelope } });
}

/// When the asker gives up. Who watches never does, and counts as one that tells.
fn deadline_of(envelope: &Envelope) -> Option<Time> {
    envelope.ask.map(|ask| ask.deadline).filter(|deadline| *deadline != Time::MAX)
}

/// When an ask that waits for a home is given up: so early that its asker still hears that it did not run, and why.
fn give_up_at(now: Time, deadline: Time) -> Time {
    let left = deadline.since(now);
    now + (left - (left / 10).min(GIVE_UP_EARLY))
}
