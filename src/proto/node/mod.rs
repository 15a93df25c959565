//! `NodeCore`: composes the machines of the network thread; one of the two faces that engine and simulator drive.

mod commands;
mod control;
mod effects;
mod flush;
mod hosting;
mod members;
mod membership;
pub(crate) mod peers;
mod registration;
mod reports;
#[cfg(test)]
mod tests;
pub(crate) mod timers;
mod ways_round;

pub use effects::{Answer, Command, Effect};
pub use members::Members;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

use crate::{
    Config, Epoch, NodeAddr, NodeId, ShardKey, Term, Time, TypeId,
    proto::{
        coordinator::{Coordinator, CoordinatorOut},
        handoff::{DropReason, Envelope, Forwarded, HandoffItem, Item, ReplyBody},
        lease::LeaseAnswer,
        link::{LinkDown, LinkEvent},
        membership::{ClusterView, Identity, MemberFrame, Membership, Pool},
        queue::take,
        region::{HANDOFF_SHARE, Known, Region, RegionOut, Relay, RelayOut},
        shard::{LaneId, LaneItem, ShardCommand},
        sharding::{ControlFrame, UNSIZED, shard_of},
        wire::Frame,
    },
};

use commands::Requests;
use flush::Flush;
use hosting::Hosting;
use peers::Peers;
use registration::Registration;
use reports::Survey;
use timers::Timers;
use ways_round::{Way, WaysRound};

/// Room that the list of what the region wants keeps; it is longer only around a change of routes.
const REGION_OUT_KEPT: usize = 64;

/// Everything of a node that is not an entity.
///
/// Drive it with the `handle_*` verbs, then take its effects, in order, until there are none; call `handle_timeout` at `poll_timeout`.
/// `M` is the membership machine; only tests use another one.
pub struct NodeCore<M = Membership> {
    config: Arc<Config>,
    me: NodeId,
    workers: u16,
    membership: M,
    peers: Peers,
    ways_round: WaysRound,
    region: Region,
    region_out: Vec<RegionOut>,
    relay: Relay,
    coordinator: Coordinator,
    authority: Option<NodeId>,
    registration: Registration,
    requests: Requests,
    survey: Option<Survey>,
    survey_id: u64,
    /// Number of the newest answer to any of them.
    answers: u64,
    /// Whose question was the newest.
    surveyed: Option<(Term, NodeId)>,
    /// Newest `Owned` of each shard, for an authority that asks again.
    owned: BTreeMap<ShardKey, (Epoch, bool)>,
    /// Newest refused move of each shard, likewise.
    refusals: BTreeMap<ShardKey, (Epoch, String)>,
    /// Newest epoch under which each shard was handed over from here, and the base that went with it.
    handed: BTreeMap<ShardKey, (Epoch, Epoch)>,
    /// Shards that workers were told to run, or handed, and have not ended since: the newest epoch of each.
    given: BTreeMap<ShardKey, Epoch>,
    moves: BTreeMap<ShardKey, MoveSeen>,
    /// Types no other node hosts, so that a leaving node need not wait for a taker.
    stranded: BTreeSet<TypeId>,
    hosting: Hosting,
    /// Names the cluster of the newest view.
    cluster: u64,
    /// The coordinator has not seen the newest view, as this node has no right to run.
    seat_waits: bool,
    /// Shards whose `Owned` came after the last survey began.
    since_survey: BTreeSet<ShardKey>,
    /// Workers whose entities have left behind what they had sent, and since when: it may still be on its way, and is lost if this node is removed.
    settling: BTreeMap<u16, Time>,
    /// This node is on its way out, as the newest view says.
    leaving: bool,
    drained: bool,
    /// It was drained as it was exiting, or has stopped its workers to be: it may be removed at any moment, and somebody else run what it is given.
    done: bool,
    /// All leave, and what runs here was told to stop.
    abandoned: bool,
    ended: bool,
    /// Of what was sent here, as this node leaves.
    flush: Option<Flush>,
    /// Nodes that messages were sent to when there was no link.
    dialled_for: BTreeSet<NodeId>,
    timers: Timers<Due>,
    effects: VecDeque<Effect>,
    /// Control frames of this node to itself: handled before a verb returns, never from within another one.
    inbox: VecDeque<ControlFrame>,
    counts: Counts,
    /// Grows with each step of the region but the short way.
    routes: u64,
    /// Of the verb that runs.
    now: Time,
}

#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Due {
    /// Register again: no answer came.
    Register,
    /// The authority did not answer an operator.
    Request(u64),
    /// A new coordinator is answered without the workers that have not.
    Survey,
    /// What was sent here is not waited for any longer.
    Flush,
}

/// The newest move that was announced here.
#[derive(Debug)]
struct MoveSeen {
    epoch: Epoch,
    to: NodeId,
    since: Time,
    stage: MoveStage,
}

/// How far a move is, as far as this node has heard.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum MoveStage {
    Going,
    /// A newer record is in force: it was called off, or has arrived, of which this node may hear yet.
    Overtaken,
    Arrived,
}

#[derive(Debug, Default)]
struct Counts {
    undelivered: BTreeMap<DropReason, u64>,
    frames_lost: u64,
    frames_discarded: u64,
    replies_dropped: u64,
    control_dropped: u64,
    route_hints: u64,
    /// Frames between others that were passed on.
    detours: u64,
}

impl NodeCore {
    /// A node that has done nothing yet.
    pub fn new(config: Arc<Config>, me: Identity, workers: u16, seed: u64, now: Time) -> Self {
        let membership = Membership::new(config.clone(), me.clone(), seed, now);
        Self::with_members(config, me.id(), workers, membership)
    }

    /// Shares what it knows of the cluster with the other nodes that have the pool.
    #[must_use]
    pub fn pooled(mut self, pool: Pool) -> Self {
        self.membership = self.membership.pooled(pool);
        self
    }

    /// Names the cluster that this node belongs to; 0 while there is none.
    pub fn cluster(&self) -> u64 {
        self.membership.cluster()
    }
}

impl<M: Members> NodeCore<M> {
    fn with_members(config: Arc<Config>, me: NodeId, workers: u16, membership: M) -> Self {
        let relay = Relay::new(
            me,
            config.sharding.fence_retry.get(),
            config.sharding.handoff_timeout.get(),
            config.sharding.buffer_messages as usize,
            config.limits.link_bytes as usize / HANDOFF_SHARE,
        );
        Self {
            me,
            workers: workers.max(1),
            membership,
            peers: Peers::new(me),
            ways_round: WaysRound::default(),
            region: Region::new(&config, me, workers.max(1)),
            region_out: vec![],
            relay,
            coordinator: Coordinator::new(config.clone(), me),
            authority: None,
            registration: Registration::default(),
            requests: Requests::default(),
            survey: None,
            survey_id: 0,
            answers: 0,
            surveyed: None,
            owned: BTreeMap::new(),
            refusals: BTreeMap::new(),
            handed: BTreeMap::new(),
            given: BTreeMap::new(),
            moves: BTreeMap::new(),
            stranded: BTreeSet::new(),
            hosting: Hosting::new(&config),
            cluster: 0,
            seat_waits: false,
            since_survey: BTreeSet::new(),
            settling: BTreeMap::new(),
            leaving: false,
            drained: false,
            done: false,
            abandoned: false,
            ended: false,
            flush: None,
            dialled_for: BTreeSet::new(),
            timers: Timers::default(),
            effects: VecDeque::new(),
            inbox: VecDeque::new(),
            counts: Counts::default(),
            routes: 0,
            now: Time::ZERO,
            config,
        }
    }

    /// Begins: membership asks its seeds, or forms a cluster.
    pub fn start(&mut self, now: Time) {
        self.membership.start(now);
        self.finish(now);
    }

    /// A datagram arrived.
    pub fn handle_datagram(&mut self, now: Time, bytes: &[u8]) {
        self.now = now;
        self.membership.handle_datagram(now, bytes);
        self.finish(now);
    }

    /// Datagrams so far that no member of this cluster can have sent.
    pub fn strange_datagrams(&self) -> u64 {
        self.membership.strange_datagrams()
    }

    /// A frame from an up session.
    pub fn handle_frame(&mut self, now: Time, peer: NodeId, frame: Frame) {
        self.now = now;
        if self.ended || self.peers.is_removed(peer) {
            // It may be of the other part of this cluster, if both have removed each other.
            if let Frame::Member(frame @ (MemberFrame::Knock { .. } | MemberFrame::Answer { .. })) = &frame
                && let Some(addr) = self.peers.told(peer).filter(|_| !self.ended)
            {
                self.membership.handle_frame(now, peer, &addr, frame.clone());
                return self.finish(now);
            }
            self.counts.frames_discarded += 1;
            // Whoever sends it hears of the loss.
            if !matches!(frame, Frame::Member(_))
                && let Some(addr) = self.peers.take_told(peer)
            {
                self.effects.push_back(Effect::CloseLink { node: peer, addr });
            }
            if let Frame::Item { item: Item::Msg { envelope, .. }, .. } = frame {
                self.give_up(envelope, if self.ended { DropReason::Shutdown } else { DropReason::SenderRemoved });
            }
            return;
        }
        if self.peers.first_sign(peer, now) {
            self.membership.handle_sign_of_life(now, peer);
        }
        match frame {
            Frame::Member(frame) => match self.peers.addr(peer).cloned() {
                Some(addr) => self.membership.handle_frame(now, peer, &addr, frame),
                None => self.counts.frames_discarded += 1,
            },
            Frame::Control(frame) => {
                self.ways_round.came_straight(peer);
                self.handle_control(now, peer, frame);
            }
            Frame::Item { shard, item } => {
                // Of who is no member nothing is kept. Its routes are as new as the cluster that it comes to.
                if self.peers.is_member(peer)
                    && let Some((epoch, home)) = self.region.hint(shard, item.aim(), peer)
                {
                    self.counts.route_hints += 1;
                    self.send_control(peer, ControlFrame::Route { shard, epoch, home });
                }
                self.tell_worker(shard, ShardCommand::Item { stream: peer, shard, item });
            }
            frame @ (Frame::Handoff { .. } | Frame::HandoffAck { .. }) => self.handle_handoff(now, (peer, None), frame),
            Frame::Detour { from, to, frame } => self.handle_detour(now, peer, from, to, frame),
            Frame::StreamAck { shard, p } => self.with_region(|region, peers, out| region.stream_ack(now, shard, p, peers, out)),
            Frame::ProbeAck { shard, route, number } => self.tell_worker(shard, ShardCommand::ProbeAck { shard, route, number }),
            Frame::Reply { correlation, body } => self.effects.push_back(Effect::Reply { correlation, body }),
            // Has no part in the protocol: whoever drives the core brings it to its readers.
            Frame::Cast { .. } => {}
        }
        self.finish(now);
    }

    /// A frame of a hand-off lane of `from`, which came straight or by way of somebody else.
    fn handle_handoff(&mut self, now: Time, (from, by): (NodeId, Option<NodeId>), frame: Frame) {
        match frame {
            Frame::Handoff { shard, number, item } => {
                self.with_known(|relay, known, out| relay.receive((from, by), shard, number, item, known, out));
            }
            Frame::HandoffAck { shard, upto } => {
                let mut all = false;
                self.with_relay(|relay, peers, out| all = relay.acknowledged(now, from, shard, upto, peers, out));
                if all {
                    self.note_moved(now, shard, Some(from), None);
                }
            }
            _ => self.counts.frames_discarded += 1,
        }
    }

    /// A frame between two nodes that do not reach each other: for this one, or to be passed on, once.
    fn handle_detour(&mut self, now: Time, peer: NodeId, from: NodeId, to: NodeId, frame: Box<Frame>) {
        let has_room = |to| match &*frame {
            Frame::Handoff { shard, .. } | Frame::HandoffAck { shard, .. } => !self.peers.is_blocked(to, *shard),
            _ => true,
        };
        if !self.peers.is_member(peer) {
            self.counts.frames_discarded += 1;
        } else if to == self.me && from != self.me && self.peers.is_member(from) {
            match *frame {
                Frame::Control(frame) => {
                    self.ways_round.came_by(now, from, peer);
                    self.handle_control(now, from, frame);
                }
                frame => self.handle_handoff(now, (from, Some(peer)), frame),
            }
        } else if from == peer && to != self.me && self.peers.may_reach(to) && has_room(to) {
            self.counts.detours += 1;
            self.send_frame(to, Frame::Detour { from, to, frame });
        } else {
            // Its sender goes on trying, by way of others.
            self.counts.frames_discarded += 1;
        }
    }

    /// Differs whenever [`short_way_to`](Self::short_way_to) or [`short_way_from`](Self::short_way_from) may have another answer: what they said
    /// holds as long as this stands, so that it need not be asked for each message.
    pub fn routes_version(&self) -> u64 {
        // Both only grow.
        self.routes + self.peers.version()
    }

    /// The short way of messages to a shard, whose producer's lane [is free](Self::lane_is_free): the other node where it lives, and the tag
    /// under which they are sent there, straight over the link. `None`: they go by `handle_lane`.
    pub fn short_way_to(&mut self, shard: ShardKey) -> Option<(NodeId, Epoch)> {
        if self.ended { None } else { self.region.short_way(shard, &self.peers) }
    }

    /// Whether messages of the settled stream of `peer`, sent under `tag`, may go straight to their worker. Else they go by `handle_frame`.
    pub fn short_way_from(&self, peer: NodeId, shard: ShardKey, tag: Epoch) -> bool {
        !self.ended && !self.peers.is_removed(peer) && self.region.is_up_to_date(shard, tag)
    }

    /// A frame of that peer has come, which is a sign of life: taken for one once per batch. Whether messages and replies of this batch may go past this
    /// core, as what came of the sign is nothing. Else they go by `handle_frame`, and the effects of both in their order.
    pub fn sign(&mut self, now: Time, peer: NodeId) -> bool {
        if self.ended || self.peers.is_removed(peer) {
            return false;
        }
        if self.peers.first_sign(peer, now) {
            self.now = now;
            self.membership.handle_sign_of_life(now, peer);
            self.finish(now);
        }
        self.peers.has_signed(peer, now) && !self.ended && !self.peers.is_removed(peer) && self.effects.is_empty()
    }

    /// Where a reply to that node may be sent straight over the link, behind all that was to be sent before. `None`: it goes by `handle_reply`.
    pub fn reply_way(&self, to: NodeId) -> Option<&NodeAddr> {
        self.peers.addr(to).filter(|_| to != self.me && !self.peers.is_removed(to) && self.effects.is_empty())
    }

    /// A link changed its state.
    pub fn handle_link(&mut self, now: Time, event: LinkEvent) {
        self.now = now;
        if let LinkEvent::Up { peer, addr, .. } = &event
            && self.peers.is_removed(*peer)
        {
            // It may not know yet that it was removed, or had ever been taken in; nothing it says counts.
            self.peers.tell_removed(*peer, addr.clone());
            let frame = Frame::Member(MemberFrame::Removed { node: *peer });
            return self.effects.push_back(Effect::Frame { to: addr.clone(), node: Some(*peer), frame });
        }
        self.membership.handle_link(now, &event);
        match event {
            LinkEvent::Up { peer, addr, .. } => {
                self.peers.link_up(peer, addr);
                if self.ways_round.came_straight(peer) {
                    // What had waited for this session is older than what went round it.
                    self.registration.forget();
                }
                self.with_region(|region, peers, out| region.link_up(now, peer, peers, out));
                self.with_relay(|relay, _, out| relay.link_up(now, peer, out));
                self.with_coordinator(now, |coordinator, out| coordinator.handle_link_up(peer, out));
                self.mark_again(peer);
                if self.authority == Some(peer) {
                    self.ask_authority_again(now);
                }
            }
            LinkEvent::Down { peer, cause, lost, .. } => {
                self.counts.frames_lost += lost;
                if let Some(peer) = peer {
                    // What waits for a session goes on waiting when a dial fails.
                    let ended = self.peers.has_link(peer);
                    if ended || lost > 0 {
                        self.relay.link_down(now, peer, ended);
                    }
                    self.peers.link_down(peer);
                    if ended && cause == LinkDown::TimedOut {
                        // What was said over it may not have come, and is said again only over a new one; a reset link is dialled by the membership.
                        self.send_frame(peer, Frame::Member(MemberFrame::WhoAreYou));
                    }
                }
            }
            LinkEvent::Blocked { peer, shard } => self.set_blocked(now, peer, shard, true),
            LinkEvent::Writable { peer, shard } => self.set_blocked(now, peer, shard, false),
        }
        self.finish(now);
    }

    /// The link with a peer has room, or no more.
    fn set_blocked(&mut self, now: Time, peer: NodeId, shard: Option<ShardKey>, blocked: bool) {
        self.peers.set_blocked(peer, shard, blocked);
        self.with_region(|region, peers, out| region.room_changed(now, peer, shard, peers, out));
    }

    /// An item of a producer's ring to the network thread.
    pub fn handle_lane(&mut self, now: Time, lane: LaneId, mut item: LaneItem<Envelope>) {
        self.now = now;
        if self.ended {
            if let LaneItem::Msg { parcel, .. } = item {
                self.give_up(parcel, DropReason::Shutdown);
            }
            return;
        }
        if let LaneItem::Msg { shard, parcel, .. } = &mut item
            && shard.shard == UNSIZED
        {
            // The number may have become known while the message was in the ring.
            if let shards @ 1.. = self.registration.shards(shard.ty) {
                parcel.shard.shard = shard_of(xxhash_rust::xxh3::xxh3_64(parcel.key()), shards);
                *shard = parcel.shard;
            }
        }
        self.with_region(|region, peers, out| region.handle_lane(now, lane, item, peers, out));
        self.finish(now);
    }

    /// True if nothing is kept of this lane: behind its `End`, its id may be given to another producer.
    pub fn lane_is_free(&self, lane: LaneId) -> bool {
        self.region.lane_is_free(lane)
    }

    /// An answer given on this node to an ask of another one (or of this one): goes straight to the asker's node.
    pub fn handle_reply(&mut self, _now: Time, to: NodeId, correlation: u64, body: ReplyBody) {
        self.reply(to, correlation, body);
    }

    /// A name was looked up, by `Resolve` or to dial it.
    pub fn handle_resolved(&mut self, now: Time, name: &NodeAddr, found: Vec<NodeAddr>) {
        self.membership.handle_resolved(now, name, found);
        self.finish(now);
    }

    /// The lease answered the `Acquire` of that number.
    pub fn handle_lease(&mut self, now: Time, id: u64, answer: LeaseAnswer) {
        self.membership.handle_lease(now, id, answer);
        self.finish(now);
    }

    /// The moment named by `poll_timeout` has come.
    pub fn handle_timeout(&mut self, now: Time) {
        self.now = now;
        self.membership.handle_timeout(now);
        self.with_region(|region, peers, out| region.handle_timeout(now, peers, out));
        self.with_relay(|relay, peers, out| relay.handle_timeout(now, peers, out));
        self.with_coordinator(now, |coordinator, out| coordinator.handle_timeout(now, out));
        while let Some(due) = self.timers.pop(now) {
            match due {
                Due::Register => self.register(now),
                Due::Request(id) => self.request_expired(id),
                Due::Survey => self.answer_survey(),
                Due::Flush => self.flush_expired(),
            }
        }
        self.finish(now);
    }

    /// When `handle_timeout` is due; `None` = only events wake this node.
    pub fn poll_timeout(&self) -> Option<Time> {
        let parts = [
            self.membership.poll_timeout(),
            self.region.next_timeout(),
            self.relay.next_timeout(),
            self.coordinator.next_timeout(),
            self.timers.next(),
        ];
        parts.into_iter().flatten().min()
    }

    /// The next thing to do, in order.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        if self.effects.is_empty() {
            // One acknowledgement for all that came since the effects were last taken.
            self.with_relay(|relay, _, out| relay.flush_acks(out));
        }
        take(&mut self.effects)
    }

    /// The cluster as this node sees it.
    pub fn view(&self) -> &Arc<ClusterView> {
        self.membership.view()
    }

    /// Where a node is reached, if that is known.
    pub fn addr_of(&self, node: NodeId) -> Option<&NodeAddr> {
        self.peers.addr(node)
    }

    /// Shards whose move was announced here and has not been seen to arrive.
    pub fn moving(&self) -> u64 {
        self.moves.values().filter(|m| m.stage == MoveStage::Going).count() as u64
    }

    /// Counters by stable name, for metrics: membership's, undelivered messages by reason, and those of links and routes.
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        let mut all = self.membership.counters();
        all.extend(self.counts.undelivered.iter().map(|(reason, n)| (reason.label(), *n)));
        all.extend([
            ("frames_lost", self.counts.frames_lost),
            ("frames_discarded", self.counts.frames_discarded),
            ("replies_dropped", self.counts.replies_dropped),
            ("control_dropped", self.counts.control_dropped),
            ("route_hints", self.counts.route_hints),
            ("frame_detours", self.counts.detours),
            ("moves_refused", self.coordinator.moves_refused()),
            ("route_buffered", self.region.buffered() as u64),
            ("lane_held", self.region.held() as u64),
            ("handoff_unacknowledged", self.relay.unacknowledged() as u64),
        ]);
        all
    }

    /// Asserts the invariants (debug builds and the simulator, after every step).
    pub fn check(&self) {
        self.membership.check();
        self.region.check();
        self.relay.check();
        self.coordinator.check();
        assert!(self.inbox.is_empty(), "what a node says to itself is handled before the verb returns");
        assert!(!self.ended || !self.coordinator.is_seated(), "no authority after the end");
        assert!(
            self.ended || self.seat_waits || self.authority != Some(self.me) || self.coordinator.is_seated(),
            "the oldest member is the authority"
        );
    }

    /// Ends every verb: whatever the step led to inside this node.
    fn finish(&mut self, now: Time) {
        self.settle(now);
        self.update_hosting(now);
        self.update_drained(now);
        self.settle(now);
    }

    /// Handles what membership wants, and what this node says to itself.
    fn settle(&mut self, now: Time) {
        loop {
            if let Some(output) = self.membership.poll_output() {
                self.handle_output(now, output);
            } else if let Some(frame) = self.inbox.pop_front() {
                self.handle_control(now, self.me, frame);
            } else {
                break;
            }
        }
    }

    fn tell_worker(&mut self, shard: ShardKey, command: ShardCommand) {
        self.effects.push_back(Effect::Worker { worker: shard.worker(self.workers), command });
    }

    fn tell_workers(&mut self, command: &ShardCommand) {
        self.effects.extend((0..self.workers).map(|worker| Effect::Worker { worker, command: command.clone() }));
    }

    /// Over the link, if the node can be reached at all; what is repeated until answered may be dropped here.
    fn send_frame(&mut self, to: NodeId, frame: Frame) -> bool {
        let addr = self.peers.addr(to).filter(|_| !self.peers.is_removed(to)).cloned();
        if let Some(addr) = addr {
            self.effects.push_back(Effect::Frame { to: addr, node: Some(to), frame });
            return true;
        }
        false
    }

    fn send_control(&mut self, to: NodeId, frame: ControlFrame) {
        if to == self.me {
            return self.inbox.push_back(frame);
        }
        if self.peers.is_removed(to) {
            return self.counts.control_dropped += 1;
        }
        let frame = Frame::Control(frame);
        let sent = match self.ways_round.to(self.now, to, &self.peers) {
            Way::Straight => self.send_frame(to, frame),
            Way::By(by, dial) => {
                if dial {
                    self.send_frame(to, Frame::Member(MemberFrame::WhoAreYou));
                }
                self.send_frame(by, Frame::Detour { from: self.me, to, frame: Box::new(frame) })
            }
        };
        self.counts.control_dropped += u64::from(!sent);
    }

    fn tell_authority(&mut self, frame: ControlFrame) {
        if let Some(authority) = self.authority {
            self.send_control(authority, frame);
        }
    }

    fn reply(&mut self, to: NodeId, correlation: u64, body: ReplyBody) {
        if to == self.me {
            self.effects.push_back(Effect::Reply { correlation, body });
        } else if !self.send_frame(to, Frame::Reply { correlation, body }) {
            self.counts.replies_dropped += 1;
        }
    }

    /// A message ends here: counted, offered as a dead letter, its asker answered.
    fn give_up(&mut self, envelope: Envelope, reason: DropReason) {
        *self.counts.undelivered.entry(reason).or_default() += 1;
        if let Some(ask) = envelope.ask {
            self.reply(ask.node, ask.correlation, ReplyBody::Dropped(reason));
        }
        self.effects.push_back(Effect::Undelivered { envelope, reason });
    }

    fn with_region(&mut self, f: impl FnOnce(&mut Region, &Peers, &mut Vec<RegionOut>)) {
        self.routes += 1;
        // Kept from call to call: this is on the path of many messages. Nothing below comes back here.
        let mut outs = std::mem::take(&mut self.region_out);
        f(&mut self.region, &self.peers, &mut outs);
        for out in outs.drain(..) {
            match out {
                RegionOut::Item { to, shard, item } if to == self.me => {
                    self.tell_worker(shard, ShardCommand::Item { stream: to, shard, item });
                }
                // Whether it can be sent was checked where it was stamped; a fence for a node gone since is repeated or given up.
                RegionOut::Item { to, shard, item } => {
                    if !self.peers.has_link(to) {
                        self.dialled_for.insert(to);
                    }
                    self.send_frame(to, Frame::Item { shard, item });
                }
                // Who sends to a type without having it registered has no words.
                RegionOut::Publish { shard, .. } if self.registration.shards(shard.ty) == 0 => {}
                RegionOut::Publish { shard, word } => self.effects.push_back(Effect::Publish { shard, word }),
                RegionOut::Open { lane, shard, k, yes } => self.tell_worker(shard, ShardCommand::Open { lane, shard, k, yes }),
                RegionOut::GiveUp(envelope, reason) => self.give_up(envelope, reason),
                // The authority says it without being asked again, once it has heard of a host.
                RegionOut::WhereIs(shard) if shard.shard == UNSIZED => {}
                RegionOut::WhereIs(shard) => {
                    let shards = self.registration.shards(shard.ty);
                    self.tell_authority(ControlFrame::WhereIs { shard, shards });
                }
            }
        }
        outs.shrink_to(REGION_OUT_KEPT);
        self.region_out = outs;
    }

    fn with_relay(&mut self, f: impl FnOnce(&mut Relay, &Peers, &mut Vec<RelayOut>)) {
        self.with_known(|relay, known, out| f(relay, known.peers, out));
    }

    fn with_known(&mut self, f: impl FnOnce(&mut Relay, Known<'_>, &mut Vec<RelayOut>)) {
        let mut out = vec![];
        let (survey, workers) = (&self.survey, self.workers);
        let is_silent = |shard: ShardKey| survey.as_ref().is_some_and(|s| s.was_answered_without(shard.worker(workers)));
        let known = Known { peers: &self.peers, region: &self.region, takes_shards: !self.done, is_silent: &is_silent };
        f(&mut self.relay, known, &mut out);
        for out in out {
            match out {
                RelayOut::Frame(to, frame) => drop(self.send_frame(to, frame)),
                RelayOut::Deliver { from, shard, mut item } => {
                    // Whom this node was told of as removed, the worker was, too. Who was gone before this node came it would wait for in vain.
                    if let HandoffItem::Forwarded(Forwarded { after, .. }) | HandoffItem::Probe { after, .. } = &mut item {
                        after.retain(|node| self.peers.is_removed(*node));
                    }
                    if let HandoffItem::Transfer(chunk) = &item {
                        self.give(shard, chunk.epoch);
                    }
                    self.tell_worker(shard, ShardCommand::Handoff { from, shard, item });
                }
                RelayOut::Refused(items) => self.counts.frames_discarded += items as u64,
                RelayOut::GiveUp(envelope, reason) => self.give_up(envelope, reason),
            }
        }
    }

    fn with_coordinator(&mut self, now: Time, f: impl FnOnce(&mut Coordinator, &mut Vec<CoordinatorOut>)) {
        let mut out = vec![];
        f(&mut self.coordinator, &mut out);
        for out in out {
            self.coordinator_out(now, out);
        }
    }
}
