//! Numbered hand-off lanes, one per (shard, from, to): nothing is lost or doubled while both ends live.
//!
//! Two members that do not reach each other may both stay, as others reach both. What is in a lane between them goes by way of one of those: any way
//! will do, as numbers say what was had and what is missing.
//!
//! Only so much is under way straight to one node, all lanes together. What comes then waits in its lane for acknowledgements.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque, btree_map::Entry},
    ops::RangeBounds,
    time::Duration,
};

use super::{
    Region,
    credit::{Credit, wire_bytes},
};
use crate::{
    Epoch, NodeId, ShardKey, Time,
    proto::{
        handoff::{DropReason, Envelope, Forwarded, HandoffItem, Item},
        node::{peers::Peers, timers::Timers},
        shard::messages_of,
        wire::Frame,
    },
};

/// So many items of a lane are under way by way of somebody else: its links carry other things too.
const WINDOW: u64 = 16;
/// Items that begin to go by way of others at once, all lanes together.
const ROUND: usize = 128;

/// One sender's incoming lanes: each lasts as long as its node, and a peer can name any shard.
const LANES_MAX: usize = 1 << 20;
/// Bytes of what waits in incoming lanes, all together. What is more is not taken, and repeated by its sender; a large shard is in chunks that go on at once.
const WAITING_BYTES_MAX: usize = 256 << 20;

/// What a lane wants done.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum RelayOut {
    /// Over the link to that node.
    Frame(NodeId, Frame),
    /// To the worker of the shard.
    Deliver { from: NodeId, shard: ShardKey, item: HandoffItem },
    /// So many items are not taken, nor acknowledged.
    Refused(usize),
    /// A forwarded message ends here.
    GiveUp(Envelope, DropReason),
}

/// What this node knows that decides on what others hand over.
#[derive(Copy, Clone)]
pub(crate) struct Known<'a> {
    pub peers: &'a Peers,
    pub region: &'a Region,
    /// Not once this node may be removed at any moment, and somebody else run what it is given.
    pub takes_shards: bool,
    /// Whether a coordinator was answered without the worker of a shard, which stands still.
    pub is_silent: &'a dyn Fn(ShardKey) -> bool,
}

/// Both sides of all hand-off lanes of this node.
#[derive(Debug)]
pub(crate) struct Relay {
    out: BTreeMap<(ShardKey, NodeId), OutLane>,
    inn: BTreeMap<(ShardKey, NodeId), InLane>,
    /// How many of these each sender has.
    opened: BTreeMap<NodeId, usize>,
    /// Bytes of what waits in them.
    held: usize,
    /// At most.
    pub held_max: usize,
    /// Of the nodes that something was given for.
    credits: BTreeMap<NodeId, Credit>,
    /// Incoming lanes whose acknowledgement is due.
    acks: BTreeSet<(ShardKey, NodeId)>,
    me: NodeId,
    /// When a lane tries again by itself.
    timers: Timers<(ShardKey, NodeId)>,
    retry: Duration,
    /// A forwarded message waits so long for a link.
    patience: Duration,
    lane_max: usize,
    /// Bytes under way to one node.
    credit_max: usize,
    unacknowledged: usize,
}

#[derive(Debug, Default)]
struct OutLane {
    /// Number of the newest item.
    last: u64,
    queue: VecDeque<Queued>,
    /// What is queued is given to the present or next session, as there is credit.
    emitted: bool,
    /// What that has, up to this number.
    sent: u64,
    /// While there is no session, or nothing comes of it: by way of whom its frames go as well.
    by: Option<Passer>,
    /// Tries without an acknowledgement.
    tries: u32,
    /// The next one.
    again: Time,
}

#[derive(Debug)]
struct Passer {
    node: NodeId,
    /// What it was given, up to this number.
    upto: u64,
}

#[derive(Debug)]
struct Queued {
    number: u64,
    since: Time,
    /// What it draws of the credit, also once a question stands in its place.
    bytes: usize,
    item: HandoffItem,
}

#[derive(Debug, Default)]
struct InLane {
    delivered: u64,
    /// By way of whom the last frame came, if not straight: so go acknowledgements.
    by: Option<NodeId>,
    /// Behind one that waits for removals to be processed here (CE-9), or for its move to be heard of.
    waiting: VecDeque<HandoffItem>,
}

impl Relay {
    pub fn new(me: NodeId, retry: Duration, patience: Duration, lane_max: usize, credit_max: usize) -> Self {
        Self {
            me,
            out: BTreeMap::new(),
            inn: BTreeMap::new(),
            opened: BTreeMap::new(),
            held: 0,
            held_max: WAITING_BYTES_MAX,
            credits: BTreeMap::new(),
            acks: BTreeSet::new(),
            timers: Timers::default(),
            retry,
            patience,
            lane_max,
            credit_max,
            unacknowledged: 0,
        }
    }

    /// Appends to the lane (shard, this node, to).
    pub fn push(&mut self, now: Time, to: NodeId, shard: ShardKey, item: HandoffItem, peers: &Peers, out: &mut Vec<RelayOut>) {
        if peers.is_removed(to) {
            return give_up(now, shard, item, DropReason::RouteLost, out);
        }
        let lane = self.out.entry((shard, to)).or_default();
        // Signs without a message have room of their own, as their senders repeat them; the state of a shard always has.
        let room = if is_message(&item) { self.lane_max } else { self.lane_max * 2 };
        if lane.queue.len() >= room && !matches!(item, HandoffItem::Transfer(_)) {
            return give_up(now, shard, item, DropReason::MoveBufferFull, out);
        }
        if lane.queue.is_empty() {
            lane.emitted = true;
            lane.tries = 0;
            lane.again = now + self.retry * if peers.has_link(to) { 10 } else { 1 };
            self.timers.set((shard, to), lane.again);
        }
        lane.last += 1;
        self.unacknowledged += 1;
        lane.queue.push_back(Queued { number: lane.last, since: now, bytes: wire_bytes(&item), item });
        if lane.emitted {
            let credit = self.credits.entry(to).or_insert_with(|| Credit::new(self.credit_max));
            lane.emit(lane.queue.len() - 1, (shard, to), credit, out);
        }
        lane.pass_on(self.me, (shard, to), usize::MAX, peers, out);
    }

    /// The receiver has taken over everything up to `upto`. True if the lane is empty now.
    pub fn acknowledged(&mut self, now: Time, from: NodeId, shard: ShardKey, upto: u64, peers: &Peers, out: &mut Vec<RelayOut>) -> bool {
        // Of what was never sent nothing is believed.
        let Some(lane) = self.out.get_mut(&(shard, from)).filter(|lane| upto <= lane.last) else { return false };
        let before = lane.queue.len();
        let arrived = lane.queue.partition_point(|queued| queued.number <= upto);
        let drawn = lane.drawn(arrived);
        lane.queue.drain(..arrived);
        if let Some(credit) = self.credits.get_mut(&from) {
            credit.give_back(drawn);
        }
        self.unacknowledged -= before - lane.queue.len();
        if lane.queue.is_empty() {
            lane.queue = VecDeque::new();
            self.timers.clear((shard, from));
            if peers.has_link(from) {
                lane.by = None;
            }
        } else if lane.queue.len() < before {
            lane.tries = 0;
            lane.again = now + self.retry * if peers.has_link(from) { 10 } else { 1 };
            self.timers.set((shard, from), lane.again);
            lane.pass_on(self.me, (shard, from), usize::MAX, peers, out);
        }
        let all = before > 0 && lane.queue.is_empty();
        self.go_on(now, from, peers, out);
        all
    }

    /// There may be credit again for what is in the lanes to that node.
    fn go_on(&mut self, now: Time, to: NodeId, peers: &Peers, out: &mut Vec<RelayOut>) {
        let Some(credit) = self.credits.get_mut(&to) else { return };
        while let Some(shard) = credit.next() {
            // What waited may have gone round meanwhile.
            let Some(lane) = self.out.get_mut(&(shard, to)).filter(|lane| lane.under_way() < lane.queue.len()) else { continue };
            if lane.under_way() == 0 {
                lane.again = now + self.retry * if peers.has_link(to) { 10 } else { 1 };
                self.timers.set((shard, to), lane.again);
            }
            lane.send_next((shard, to), credit, out);
        }
    }

    /// The session to `peer` is gone with everything in it; or, if none had `ended`, what had waited for one.
    pub fn link_down(&mut self, now: Time, peer: NodeId, ended: bool) {
        self.credits.remove(&peer);
        for ((shard, to), lane) in self.out.iter_mut().filter(|((_, to), lane)| *to == peer && !lane.queue.is_empty()) {
            // Without credit, it had no part in the session.
            let had_part = lane.under_way() > 0;
            (lane.emitted, lane.sent) = (false, 0);
            // What waits in vain may be thrown away again and again: that puts no try off.
            if ended {
                // A session in which nothing was acknowledged counts for a try. The next one is not put off by sessions that end again and again.
                lane.tries += u32::from(had_part);
                lane.again = lane.again.min(now + self.retry);
                self.timers.set((*shard, *to), lane.again);
            }
        }
    }

    /// A session to `peer` is up: what the last one may have lost goes again.
    pub fn link_up(&mut self, now: Time, peer: NodeId, out: &mut Vec<RelayOut>) {
        for ((shard, to), lane) in self.out.iter_mut().filter(|((_, to), _)| *to == peer) {
            lane.by = None;
            if lane.queue.is_empty() || lane.emitted {
                continue;
            }
            let credit = self.credits.entry(peer).or_insert_with(|| Credit::new(self.credit_max));
            lane.emit(0, (*shard, *to), credit, out);
            // Sessions that come and go and bring nothing over put no try off.
            let again = now + self.retry * 10;
            lane.again = if lane.tries > 1 { again.min(lane.again) } else { again };
            self.timers.set((*shard, *to), lane.again);
        }
    }

    /// An item of the lane (shard, from, this node), which came straight or by way of somebody else.
    pub fn receive(
        &mut self,
        (from, by): (NodeId, Option<NodeId>),
        shard: ShardKey,
        number: u64,
        item: HandoffItem,
        known: Known<'_>,
        out: &mut Vec<RelayOut>,
    ) {
        let lane = match self.inn.entry((shard, from)) {
            Entry::Occupied(lane) => lane.into_mut(),
            Entry::Vacant(place) => {
                let opened = self.opened.entry(from).or_default();
                if *opened == LANES_MAX {
                    return out.push(RelayOut::Refused(1));
                }
                *opened += 1;
                place.insert(InLane::default())
            }
        };
        lane.by = by;
        self.acks.insert((shard, from));
        let taken = lane.delivered + lane.waiting.len() as u64;
        // A number beyond the next one comes where those before it were given up while there was no session. The sender repeats the lane behind them.
        if number == taken + 1 {
            if lane.waiting.is_empty() && known.fate_of(&item, shard, from) == Fate::Goes {
                lane.delivered += 1;
                out.push(RelayOut::Deliver { from, shard, item });
            } else if self.held + wire_bytes(&item) <= self.held_max {
                self.held += wire_bytes(&item);
                lane.waiting.push_back(item);
                lane.deliver(shard, from, &mut self.held, known, out);
            } else {
                out.push(RelayOut::Refused(1));
            }
        }
    }

    /// A removal was processed here: lanes that waited for it go on; lanes with the removed node end.
    pub fn removed(&mut self, now: Time, node: NodeId, known: Known<'_>, out: &mut Vec<RelayOut>) {
        self.credits.remove(&node);
        let gone: Vec<_> = self.out.keys().filter(|(_, to)| *to == node).copied().collect();
        for key in gone {
            self.timers.clear(key);
            let lane = self.out.remove(&key).expect("the key was just read");
            self.unacknowledged -= lane.queue.len();
            // Never sent again: it may have been passed on.
            lane.queue.into_iter().for_each(|queued| give_up(now, key.0, queued.item, DropReason::RouteLost, out));
        }
        let gone: Vec<_> = self.inn.keys().filter(|(_, from)| *from == node).copied().collect();
        for key in gone {
            let lane = self.inn.remove(&key).expect("the key was just read");
            self.held -= lane.bytes();
            self.acks.remove(&key);
            lane.waiting.into_iter().for_each(|item| give_up(now, key.0, item, DropReason::RouteLost, out));
        }
        self.opened.remove(&node);
        self.go_in(.., known, out);
    }

    /// What is known of that shard has changed, or of its worker.
    pub fn heard_of(&mut self, shard: ShardKey, known: Known<'_>, out: &mut Vec<RelayOut>) {
        self.go_in((shard, NodeId::from_raw(0))..=(shard, NodeId::from_raw(u128::MAX)), known, out);
    }

    /// Delivers of the lanes in that range what waits for nothing any more.
    pub fn go_in(&mut self, lanes: impl RangeBounds<(ShardKey, NodeId)>, known: Known<'_>, out: &mut Vec<RelayOut>) {
        for (&(shard, from), lane) in self.inn.range_mut(lanes).filter(|(_, lane)| !lane.waiting.is_empty()) {
            lane.deliver(shard, from, &mut self.held, known, out);
            self.acks.insert((shard, from));
        }
    }

    /// The node's membership is over. What was sent may have arrived and run; and what waits here is still its sender's.
    pub fn end(&mut self, now: Time, out: &mut Vec<RelayOut>) {
        let handed = std::mem::take(&mut self.out).into_iter().map(|((shard, _), lane)| (shard, lane.queue));
        for (shard, queue) in handed {
            queue.into_iter().for_each(|queued| give_up(now, shard, queued.item, DropReason::RouteLost, out));
        }
        let waiting = std::mem::take(&mut self.inn).into_values().map(|lane| lane.waiting.len()).sum();
        out.push(RelayOut::Refused(waiting));
        self.opened.clear();
        self.held = 0;
        self.unacknowledged = 0;
        self.credits.clear();
        self.acks.clear();
        self.timers = Timers::default();
    }

    /// Acknowledges what was received since the last call: once per batch of frames, not per item.
    pub fn flush_acks(&mut self, out: &mut Vec<RelayOut>) {
        for (shard, from) in std::mem::take(&mut self.acks) {
            let (upto, by) = self.inn.get(&(shard, from)).map_or((0, None), |lane| (lane.delivered, lane.by));
            let frame = Frame::HandoffAck { shard, upto };
            // Where there is a link, but the other end goes round it, that end has seen more of it.
            out.push(match by {
                Some(by) => detour(self.me, by, from, frame),
                None => RelayOut::Frame(from, frame),
            });
        }
    }

    pub fn handle_timeout(&mut self, now: Time, peers: &Peers, out: &mut Vec<RelayOut>) {
        let me = self.me;
        let (mut left, mut others) = (ROUND, (me, vec![]));
        while let Some((shard, to)) = self.timers.pop(now) {
            let Some(lane) = self.out.get_mut(&(shard, to)).filter(|lane| !lane.queue.is_empty()) else { continue };
            let (mut overdue, reached) = (Time::MAX, peers.has_link(to));
            if !reached {
                // Whom it waits for may never be reached, and stay a member, as others reach it. It keeps what it has of the shard: that is nowhere else.
                overdue = lane.give_up(now, self.patience, shard, me, out);
            }
            // Also round a link that brings nothing over: only this end may still believe in it.
            let goes_round = lane.tries > 0;
            if lane.again <= now && reached && lane.emitted && lane.under_way() == 0 {
                // Its turn comes when what is under way to that node in other lanes has arrived, straight or not: those have their own tries.
                lane.again = now + self.retry * 10;
            } else if lane.again <= now && goes_round && left == 0 {
                lane.again = now + self.retry;
            } else if lane.again <= now {
                if !lane.emitted {
                    let credit = self.credits.entry(to).or_insert_with(|| Credit::new(self.credit_max));
                    lane.emit(0, (shard, to), credit, out);
                } else if !peers.is_blocked(to, shard) {
                    // A slow reader is not helped by the same bytes again, and who is not reached needs but one that is dialled for.
                    lane.repeat((shard, to), if reached { usize::MAX } else { 1 }, out);
                }
                if goes_round {
                    if others.0 != to {
                        others = (to, peers.between(to));
                    }
                    // By another one with each try.
                    let next = (lane.tries as usize - 1).checked_rem(others.1.len());
                    lane.by = next.map(|next| Passer { node: others.1[next], upto: 0 });
                    left -= lane.pass_on(me, (shard, to), left, peers, out);
                }
                lane.tries += 1;
                let (pause, rounds) = match (reached, goes_round) {
                    (true, _) => (10, lane.tries),
                    // None of the others is asked again before all were.
                    (false, true) => (1, (lane.tries - 1) / u32::try_from(others.1.len().max(1)).unwrap_or(u32::MAX)),
                    (false, false) => (1, 0),
                };
                lane.again = now + self.retry * pause * 2u32.pow(rounds.min(5));
            }
            // Those that came together are given up together.
            self.timers.set((shard, to), lane.again.min(overdue.max(now + self.retry)));
        }
    }

    pub fn next_timeout(&self) -> Option<Time> {
        self.timers.next()
    }

    /// Items that were handed over and are not acknowledged.
    pub fn unacknowledged(&self) -> usize {
        self.unacknowledged
    }

    pub fn check(&self) {
        let queued: usize = self.out.values().map(|l| l.queue.len()).sum();
        assert_eq!(queued, self.unacknowledged, "unacknowledged items are counted");
        for (key, lane) in &self.out {
            let numbers = lane.queue.iter().map(|queued| queued.number);
            assert!(numbers.eq(lane.last + 1 - lane.queue.len() as u64..=lane.last), "numbers have no holes");
            assert!(lane.sent <= lane.last, "what was never there is not under way");
            assert!(lane.by.as_ref().is_none_or(|by| by.upto <= lane.last), "nobody passes on what was never there");
            assert_eq!(lane.queue.is_empty(), !self.timers.is_set(*key), "who waits for an acknowledgement has a deadline");
        }
        let mut used: BTreeMap<NodeId, usize> = BTreeMap::new();
        for ((_, to), lane) in &self.out {
            *used.entry(*to).or_default() += lane.drawn(lane.queue.len());
            let waits = lane.emitted && lane.under_way() < lane.queue.len();
            let has_room = self.credits.get(to).is_none_or(Credit::has_room);
            assert!(!waits || !has_room, "what may go has gone: who waits for credit does so behind what will be acknowledged");
        }
        assert!(used.iter().all(|(to, used)| self.credits.get(to).map_or(0, Credit::used) == *used), "what is under way is counted");
        // A lane lasts as long as its node, and there is one for each shard that ever moved between the two.
        let rooms = self.out.values().map(|l| (l.queue.len(), l.queue.capacity()));
        let mut rooms = rooms.chain(self.inn.values().map(|l| (l.waiting.len(), l.waiting.capacity())));
        assert!(rooms.all(|(len, room)| len > 0 || room == 0), "an empty lane holds no memory");
        assert_eq!(self.held, self.inn.values().map(InLane::bytes).sum::<usize>(), "what waits is counted");
        assert_eq!(self.inn.len(), self.opened.values().sum::<usize>(), "lanes are counted by sender");
    }
}

impl OutLane {
    /// So many of the oldest are with the session, and not acknowledged.
    fn under_way(&self) -> usize {
        self.queue.front().map_or(0, |front| (self.sent + 1).saturating_sub(front.number) as usize)
    }

    /// What those of the first so many have of the credit.
    fn drawn(&self, first: usize) -> usize {
        self.queue.range(..first.min(self.under_way())).map(|queued| queued.bytes).sum()
    }

    /// Gives what stands behind the first so many to the session with that node, as there is credit; the rest waits for its turn.
    fn emit(&mut self, first: usize, (shard, to): (ShardKey, NodeId), credit: &mut Credit, out: &mut Vec<RelayOut>) {
        self.emitted = true;
        for _ in first..self.queue.len() {
            if credit.has_room() {
                self.send_next((shard, to), credit, out);
            } else {
                credit.wait(shard);
            }
        }
    }

    /// Gives the oldest that the session with that node has not to it.
    fn send_next(&mut self, (shard, to): (ShardKey, NodeId), credit: &mut Credit, out: &mut Vec<RelayOut>) {
        let Some(queued) = self.queue.get(self.under_way()) else { return };
        self.sent = queued.number;
        credit.draw(queued.bytes);
        out.push(RelayOut::Frame(to, queued.frame(shard)));
    }

    /// Gives what it was given once more.
    fn repeat(&self, (shard, to): (ShardKey, NodeId), most: usize, out: &mut Vec<RelayOut>) {
        out.extend(self.frames(shard).take(self.under_way().min(most)).map(|frame| RelayOut::Frame(to, frame)));
    }

    /// Gives the passer, if there is one, what it may have more, of so many items at most: how many.
    fn pass_on(&mut self, me: NodeId, (shard, to): (ShardKey, NodeId), most: usize, peers: &Peers, out: &mut Vec<RelayOut>) -> usize {
        let (Some(by), Some(front)) = (&mut self.by, self.queue.front()) else { return 0 };
        if peers.is_removed(by.node) || peers.is_blocked(by.node, shard) {
            return 0;
        }
        let acknowledged = front.number - 1;
        let from = by.upto.max(acknowledged);
        let upto = self.last.min(acknowledged + WINDOW).min(from.saturating_add(most as u64)).max(from);
        by.upto = upto;
        let (by, skip, count) = (by.node, (from - acknowledged) as usize, (upto - from) as usize);
        out.extend(self.frames(shard).skip(skip).take(count).map(|frame| detour(me, by, to, frame)));
        count
    }

    fn frames(&self, shard: ShardKey) -> impl Iterator<Item = Frame> + '_ {
        self.queue.iter().map(move |queued| queued.frame(shard))
    }

    /// Gives up messages that have waited for too long, and says when the next has. In the place of each stands a question whose answer nobody waits for:
    /// numbers have no holes.
    fn give_up(&mut self, now: Time, patience: Duration, shard: ShardKey, me: NodeId, out: &mut Vec<RelayOut>) -> Time {
        for queued in self.queue.iter_mut().filter(|queued| is_message(&queued.item)) {
            if queued.since + patience > now {
                return queued.since + patience;
            }
            if let HandoffItem::Forwarded(Forwarded { aim, .. }) = &queued.item {
                let nothing = HandoffItem::Probe { origin: me, route: 0, number: 0, aim: *aim, after: vec![] };
                give_up(now, shard, std::mem::replace(&mut queued.item, nothing), DropReason::LinkLost, out);
            }
        }
        Time::MAX
    }
}

impl Queued {
    fn frame(&self, shard: ShardKey) -> Frame {
        Frame::Handoff { shard, number: self.number, item: self.item.clone() }
    }
}

impl InLane {
    /// Of what waits.
    fn bytes(&self) -> usize {
        self.waiting.iter().map(wire_bytes).sum()
    }

    /// `held`: bytes of what waits in all lanes.
    fn deliver(&mut self, shard: ShardKey, from: NodeId, held: &mut usize, known: Known<'_>, out: &mut Vec<RelayOut>) {
        while let Some(item) = self.waiting.pop_front() {
            match known.fate_of(&item, shard, from) {
                Fate::Goes => {
                    *held -= wire_bytes(&item);
                    self.delivered += 1;
                    out.push(RelayOut::Deliver { from, shard, item });
                }
                Fate::Waits => return self.waiting.push_front(item),
                // Its sender has it, and what comes behind it, until it hears of a removal: its own, or this node's.
                Fate::Refused => {
                    *held -= wire_bytes(&item) + self.bytes();
                    out.push(RelayOut::Refused(1 + self.waiting.len()));
                    break;
                }
            }
        }
        self.waiting = VecDeque::new();
    }
}

/// A frame of the lane to `to`, or back, by way of `by`.
fn detour(me: NodeId, by: NodeId, to: NodeId, frame: Frame) -> RelayOut {
    RelayOut::Frame(by, Frame::Detour { from: me, to, frame: Box::new(frame) })
}

/// What is to be done with the first item of a lane that was not delivered.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Fate {
    Goes,
    /// For a removal that it comes behind to be processed here, or for news of the move that it comes by.
    Waits,
    /// It is a shard that this node must not run any more.
    Refused,
}

impl Known<'_> {
    fn fate_of(&self, item: &HandoffItem, shard: ShardKey, from: NodeId) -> Fate {
        match item {
            HandoffItem::Forwarded(Forwarded { after, .. }) if after.iter().any(|&node| self.peers.is_member(node)) => Fate::Waits,
            HandoffItem::Transfer(_) if !self.takes_shards => Fate::Refused,
            HandoffItem::Transfer(chunk) if !self.is_expected(shard, chunk.epoch) => {
                // It may be gone for others, and a shard of its another's, where nobody knew of this move.
                if self.peers.is_down(from) {
                    Fate::Refused
                // The coordinator was told all that such a worker may run. The next one asks whoever knows of the move, and announces it anew.
                } else if (self.is_silent)(shard) {
                    Fate::Waits
                } else {
                    Fate::Goes
                }
            }
            _ => Fate::Goes,
        }
    }

    /// Whether this node has heard of a move to here under that epoch, and of none elsewhere since.
    fn is_expected(&self, shard: ShardKey, epoch: Epoch) -> bool {
        self.region.known(shard).is_some_and(|(known, home)| known >= epoch && home == self.peers.me)
    }
}

fn is_message(item: &HandoffItem) -> bool {
    matches!(item, HandoffItem::Forwarded(Forwarded { item: Item::Msg { .. }, .. }))
}

/// Ends an item with the messages in it: those that waited in a shard's mailboxes and gate travel inside its Transfer.
pub(crate) fn give_up(now: Time, shard: ShardKey, item: HandoffItem, reason: DropReason, out: &mut Vec<RelayOut>) {
    match item {
        HandoffItem::Forwarded(Forwarded { item: Item::Msg { envelope, .. }, .. }) => out.push(RelayOut::GiveUp(envelope, reason)),
        HandoffItem::Transfer(chunk) => {
            out.extend(messages_of(shard, &chunk.bytes, now).into_iter().map(|envelope| RelayOut::GiveUp(envelope, reason)));
        }
        HandoffItem::Forwarded(_) | HandoffItem::Probe { .. } => {}
    }
}
