//! Links: a connection per pair of nodes, as a sequence of numbered sessions in which frames arrive in order.

use std::collections::{BTreeMap, VecDeque};

use super::{
    entity::{Note, Outgoing, SimParcel},
    process::Node,
    settings,
    world::{Event, Inner, World},
};
use crate::{
    NodeAddr, NodeId, ShardKey, Time,
    proto::{
        handoff::{DropReason, Forwarded, HandoffItem, Item},
        link::{LinkDown, LinkEvent, PAUSE_MIN, longest_pause},
        shard::{LaneItem, ShardReport},
        wire::Frame,
    },
};

/// A session in which nothing got through for so long is given up.
const STALL: u64 = 10_000_000_000;
/// A dial without an answer is given up after this long.
const DIAL_TIMEOUT: u64 = 5_000_000_000;
/// How often the end of a connection tries to get through a cut.
const RESET_RETRY: u64 = 1_000_000_000;
/// A segment that was lost is sent again after this long, doubled each time.
const RETRANSMIT: u64 = 200_000_000;
/// A large frame takes so much longer at most.
const LARGE_DELAY: u64 = 300_000_000;

/// A frame that waits for a session.
struct Waiting {
    /// The life that it is meant for; any if none.
    meant: Option<NodeId>,
    since: u64,
    frame: Box<Frame>,
}

type Outbox = VecDeque<Waiting>;

/// The connection of a pair (a, b) with a < b; side 0 is a.
#[derive(Default)]
pub(super) struct Link {
    /// Number of the open session; 0 = none.
    session: u64,
    /// When it came up.
    since: u64,
    lives: [u32; 2],
    /// That side knows of the session.
    up: [bool; 2],
    outbox: [Outbox; 2],
    /// Each side dials by itself, and waits between two dials.
    dials: [Dial; 2],
    /// Frames do not arrive before this, by sending side.
    last: [u64; 2],
    /// When the last of all has arrived, and the last of each shard, where messages go past large frames.
    passed: [Passed; 2],
    stuck: [VecDeque<Box<Frame>>; 2],
    stalled: bool,
    flushing: bool,
    in_flight: [u64; 2],
    /// The process at the other end is gone, and the end of the session is on its way.
    dying: bool,
}

/// How a side tries to open a session.
#[derive(Default)]
struct Dial {
    /// The attempt under way.
    attempt: Option<u64>,
    /// In a row.
    failures: u32,
    redial_due: bool,
}

#[derive(Default)]
struct Passed {
    all: u64,
    shards: BTreeMap<ShardKey, u64>,
}

impl Passed {
    /// When a frame arrives that would be there at that moment, if nothing held it up.
    fn arrives(&mut self, frame: &Frame, at: u64) -> u64 {
        let (shard, passes) = match frame {
            Frame::Reply { .. } => return at,
            Frame::Item { shard, item } => (Some(*shard), matches!(item, Item::Msg { .. })),
            Frame::Handoff { shard, .. } | Frame::HandoffAck { shard, .. } => (Some(*shard), false),
            Frame::Detour { frame, .. } => return self.arrives(frame, at),
            Frame::StreamAck { shard, .. } | Frame::ProbeAck { shard, .. } => (Some(*shard), false),
            Frame::Member(_) | Frame::Control(_) | Frame::Cast { .. } => (None, false),
        };
        let mut at = at.max(if passes { 0 } else { self.all });
        if let Some(shard) = shard {
            let last = self.shards.entry(shard).or_default();
            at = at.max(*last);
            *last = at;
        }
        self.all = self.all.max(at);
        at
    }
}

fn pair_of(a: u32, b: u32) -> ((u32, u32), usize) {
    if a < b { ((a, b), 0) } else { ((b, a), 1) }
}

fn node_at(pair: (u32, u32), side: usize) -> u32 {
    if side == 0 { pair.0 } else { pair.1 }
}

impl World<'_> {
    pub(super) fn send_frame(&mut self, from: u32, life: u32, to: &NodeAddr, meant: Option<NodeId>, frame: Frame) {
        let frame = Box::new(frame);
        let Some(to) = settings::index_of(to).filter(|i| *i < self.scenario.nodes) else {
            return self.log(80, from, 0, || format!("frame to {to}, which is nowhere"));
        };
        if to == from {
            // Nobody dials itself; a core that sends to its own address means itself.
            let peer = self.lives[life as usize].id;
            return self.inside(life, self.now, Inner::Frame { peer, frame });
        }
        let (pair, side) = pair_of(from, to);
        self.log(81, from, u64::from(to), || format!("frame to n{to}: {:.200}", format!("{frame:?}")));
        let link = self.links.entry(pair).or_default();
        if link.session > 0 && link.up[side] && link.lives[side] == life && !link.dying {
            let (peer, session) = (self.lives[link.lives[1 - side] as usize].id, link.session);
            if meant.is_some_and(|m| m != peer) {
                self.frame_lost(&frame);
                let (addr, cause) = (self.nodes[to as usize].addr.clone(), LinkDown::OtherIncarnation(peer));
                return self.inside(life, self.now, Inner::Link(LinkEvent::Down { peer: meant, addr, cause, lost: 1 }));
            }
            self.transmit(pair, session, side, frame);
        } else {
            link.outbox[side].push_back(Waiting { meant, since: self.now, frame });
            self.dial(pair, side);
        }
    }

    /// Puts a frame on the wire of an open session.
    fn transmit(&mut self, pair: (u32, u32), session: u64, side: usize, mut frame: Box<Frame>) {
        let (from, to) = (node_at(pair, side), node_at(pair, 1 - side));
        self.traffic.sent(from, size_of(&frame), self.now, self.measure.ever_all_up);
        let local = self.nodes[from as usize].clock.local(self.now);
        deadlines(&mut frame, |at| Time::from_nanos(at.as_nanos().saturating_sub(local.as_nanos())));
        let Some(link) = self.links.get_mut(&pair) else { return };
        link.in_flight[side] += 1;
        let cut = self.net.cut(from, to) || self.net.cut(to, from);
        if cut || !link.stuck[side].is_empty() {
            link.stuck[side].push_back(frame);
            if !std::mem::replace(&mut link.stalled, true) {
                self.queue.push(self.now + STALL, Event::Stalled { pair, session });
            }
            return;
        }
        let mut delay = self.net.latency(from, to, &mut self.faults);
        let loss = self.net.loss(from, to, &mut self.faults);
        let mut again = RETRANSMIT;
        while loss > 0.0 && again < STALL && self.faults.chance(loss) {
            delay += again;
            again *= 2;
        }
        let at = if self.large_frames {
            if self.faults.chance(0.05) {
                delay += self.faults.below(LARGE_DELAY);
            }
            link.last[side].max(link.passed[side].arrives(&frame, self.now + delay))
        } else {
            link.last[side] = link.last[side].max(self.now + delay);
            link.last[side]
        };
        self.queue.push(at, Event::Arrive { pair, session, side, frame });
    }

    pub(super) fn frame_arrives(&mut self, pair: (u32, u32), session: u64, side: usize, mut frame: Box<Frame>) {
        let Some(link) = self.links.get_mut(&pair) else { return };
        if link.session != session {
            return self.frame_lost(&frame);
        }
        link.in_flight[side] = link.in_flight[side].saturating_sub(1);
        let to = link.lives[1 - side];
        let peer = self.lives[link.lives[side] as usize].id;
        if self.lives[to as usize].over {
            return self.frame_lost(&frame);
        }
        let local = self.nodes[node_at(pair, 1 - side) as usize].clock.local(self.now);
        deadlines(&mut frame, |rest| Time::from_nanos(local.as_nanos().saturating_add(rest.as_nanos())));
        self.inside(to, self.now, Inner::Frame { peer, frame });
    }

    // Opening.

    fn dial(&mut self, pair: (u32, u32), side: usize) {
        let Some(link) = self.links.get_mut(&pair) else { return };
        let dial = &mut link.dials[side];
        if link.session > 0 || dial.attempt.is_some() || dial.redial_due {
            return;
        }
        self.numbers += 1;
        let attempt = self.numbers;
        dial.attempt = Some(attempt);
        let (from, to) = (node_at(pair, side), node_at(pair, 1 - side));
        let there = self.net.latency(from, to, &mut self.faults);
        let back = self.net.latency(to, from, &mut self.faults);
        self.queue.push(self.now + there, Event::Dialed { pair, attempt, side, back });
    }

    /// A dial of `side` reaches the other host.
    pub(super) fn dialed(&mut self, pair: (u32, u32), attempt: u64, side: usize, back: u64) {
        let (from, to) = (node_at(pair, side), node_at(pair, 1 - side));
        let Some(link) = self.links.get_mut(&pair).filter(|l| l.dials[side].attempt == Some(attempt)) else { return };
        let (Some(here), there) = (self.nodes[from as usize].life, self.nodes[to as usize].life) else {
            link.dials[side].attempt = None;
            return;
        };
        if link.session > 0 {
            // The other side was faster.
            link.dials[side] = Dial::default();
            return;
        }
        let cut = self.net.cut(from, to) || self.net.cut(to, from);
        let Node { paused, pause_ends, .. } = self.nodes[to as usize];
        if there.is_some() && !cut && paused && pause_ends < self.now + DIAL_TIMEOUT {
            // Its host accepts, and the process finds the connection when it runs again.
            return self.queue.push(pause_ends, Event::Dialed { pair, attempt, side, back });
        }
        let Some(there) = there.filter(|_| !cut && !paused) else {
            let refused = !cut && there.is_none();
            let at = self.now + if refused { back } else { DIAL_TIMEOUT };
            return self.queue.push(at, Event::DialEnds { pair, attempt, side, refused });
        };
        self.numbers += 1;
        let session = self.numbers;
        link.dials[side] = Dial::default();
        (link.session, link.since) = (session, self.now);
        link.lives[side] = here;
        link.lives[1 - side] = there;
        link.up = [false; 2];
        link.in_flight = [0; 2];
        link.dying = false;
        // What the other side sends reaches the dialler behind its own news of the session.
        link.last[1 - side] = self.now + back;
        link.last[side] = self.now;
        self.queue.push(self.now + back, Event::Opened { pair, session, side });
        self.opened(pair, session, 1 - side);
    }

    /// `side` learns that the session is up.
    pub(super) fn opened(&mut self, pair: (u32, u32), session: u64, side: usize) {
        let Some(link) = self.links.get_mut(&pair).filter(|l| l.session == session) else { return };
        let (life, other) = (link.lives[side], link.lives[1 - side]);
        if self.lives[life as usize].over {
            return;
        }
        link.up[side] = true;
        let peer = self.lives[other as usize].id;
        let addr = self.nodes[node_at(pair, 1 - side) as usize].addr.clone();
        let mut wrong: Vec<(NodeId, u64)> = Vec::new();
        let mut right = Vec::new();
        for Waiting { meant, frame, .. } in std::mem::take(&mut link.outbox[side]) {
            match meant {
                Some(m) if m != peer => {
                    match wrong.iter_mut().find(|(id, _)| *id == m) {
                        Some((_, n)) => *n += 1,
                        None => wrong.push((m, 1)),
                    }
                    lost(&mut self.ledger, &frame);
                }
                _ => right.push(frame),
            }
        }
        for (meant, lost) in wrong {
            let cause = LinkDown::OtherIncarnation(peer);
            self.inside(life, self.now, Inner::Link(LinkEvent::Down { peer: Some(meant), addr: addr.clone(), cause, lost }));
        }
        self.inside(life, self.now, Inner::Link(LinkEvent::Up { peer, addr, session }));
        for frame in right {
            self.transmit(pair, session, side, frame);
        }
    }

    pub(super) fn dial_ends(&mut self, pair: (u32, u32), attempt: u64, side: usize, refused: bool) {
        let Some(link) = self.links.get_mut(&pair).filter(|l| l.dials[side].attempt == Some(attempt)) else { return };
        link.dials[side].attempt = None;
        if link.session > 0 {
            return;
        }
        // Whom the dial was for, if that is one life.
        let first = link.outbox[side].front().map(|waiting| waiting.meant);
        let same = link.outbox[side].iter().all(|waiting| Some(waiting.meant) == first);
        let peer = first.flatten().filter(|_| same);
        let cause = if refused { LinkDown::Refused } else { LinkDown::TimedOut };
        let dialled = BTreeMap::from([(peer, 0)]);
        self.give_up_frames(pair, side, dialled, &cause);
        self.redial_later(pair, side);
    }

    /// A dial was in vain: what has waited for too long does not any longer. All of `told` are told of, also without frames.
    fn give_up_frames(&mut self, pair: (u32, u32), side: usize, mut told: BTreeMap<Option<NodeId>, u64>, cause: &LinkDown) {
        let node = &self.nodes[node_at(pair, side) as usize];
        let (Some(life), Some(link)) = (node.life, self.links.get_mut(&pair)) else { return };
        let patience = node.config.sharding.handoff_timeout.get().as_nanos() as u64;
        let outbox = std::mem::take(&mut link.outbox[side]);
        let (gone, kept) = outbox.into_iter().partition(|waiting| waiting.meant.is_some() && self.now >= waiting.since + patience);
        link.outbox[side] = kept;
        for waiting in Outbox::into_iter(gone) {
            lost(&mut self.ledger, &waiting.frame);
            *told.entry(waiting.meant).or_default() += 1;
        }
        for (peer, lost) in told {
            let addr = self.nodes[node_at(pair, 1 - side) as usize].addr.clone();
            self.inside(life, self.now, Inner::Link(LinkEvent::Down { peer, addr, cause: cause.clone(), lost }));
        }
    }

    fn redial_later(&mut self, pair: (u32, u32), side: usize) {
        let Some(link) = self.links.get_mut(&pair) else { return };
        let dial = &mut link.dials[side];
        if !link.outbox[side].is_empty() && !std::mem::replace(&mut dial.redial_due, true) {
            let longest = longest_pause(self.nodes[node_at(pair, side) as usize].config.membership.seed_timeout.get()).as_nanos() as u64;
            let base = ((PAUSE_MIN.as_nanos() as u64) << dial.failures.min(16)).min(longest);
            dial.failures += 1;
            let at = self.now + base * 3 / 4 + self.faults.below(base / 2);
            self.queue.push(at, Event::Redial { pair, side });
        }
    }

    pub(super) fn redial(&mut self, pair: (u32, u32), side: usize) {
        let Some(link) = self.links.get_mut(&pair) else { return };
        link.dials[side].redial_due = false;
        let Node { life, paused, .. } = self.nodes[node_at(pair, side) as usize];
        match life.is_some() && !link.outbox[side].is_empty() {
            true if paused => self.redial_later(pair, side),
            true => self.dial(pair, side),
            false => {}
        }
    }

    // Ending.

    /// Ends the session on both sides; each that knew of it is told.
    fn end_session(&mut self, pair: (u32, u32), cause: &LinkDown) {
        let Some(link) = self.links.get_mut(&pair) else { return };
        if link.session == 0 {
            return;
        }
        link.session = 0;
        link.stalled = false;
        link.flushing = false;
        link.dying = false;
        let mut stuck = std::mem::take(&mut link.stuck);
        let in_flight = std::mem::take(&mut link.in_flight);
        let up = std::mem::take(&mut link.up);
        let lives = link.lives;
        for side in 0..2 {
            if !up[side] || self.lives[lives[side] as usize].over {
                continue;
            }
            let peer = self.lives[lives[1 - side] as usize].id;
            // The kernel had taken some of what is stuck; the rest was never written and waits for the next session, but for what that gets anyhow.
            let taken = self.faults.below(stuck[side].len() as u64 + 1) as usize;
            let kept = stuck[side].drain(taken..).filter(|frame| !matches!(**frame, Frame::Handoff { .. }));
            for mut frame in kept.rev() {
                let local = self.nodes[node_at(pair, side) as usize].clock.local(self.now);
                deadlines(&mut frame, |rest| Time::from_nanos(local.as_nanos().saturating_add(rest.as_nanos())));
                link.outbox[side].push_front(Waiting { meant: Some(peer), since: self.now, frame });
            }
            let addr = self.nodes[node_at(pair, 1 - side) as usize].addr.clone();
            let event = LinkEvent::Down { peer: Some(peer), addr, cause: cause.clone(), lost: in_flight[side] };
            self.queue.push(self.now, Event::Inner(lives[side], Inner::Link(event)));
        }
        for frame in stuck.iter().flatten() {
            lost(&mut self.ledger, frame);
        }
        (0..2).for_each(|side| self.dial_anew(pair, side, cause));
    }

    /// What waits has the peer dialled at once if the session had lasted and was reset.
    fn dial_anew(&mut self, pair: (u32, u32), side: usize, cause: &LinkDown) {
        let node = &self.nodes[node_at(pair, side) as usize];
        let Some(link) = self.links.get(&pair) else { return };
        let lasted = self.now - link.since >= longest_pause(node.config.membership.seed_timeout.get()).as_nanos() as u64;
        if !lasted || *cause != LinkDown::Reset || node.life.is_none() || node.paused {
            self.redial_later(pair, side);
        } else if !link.outbox[side].is_empty() {
            self.dial(pair, side);
        }
    }

    /// A core closes the link with a removed node.
    pub(super) fn close_link(&mut self, from: u32, life: u32, node: NodeId, addr: &NodeAddr) {
        let Some(to) = settings::index_of(addr).filter(|i| *i < self.scenario.nodes && *i != from) else { return };
        let (pair, side) = pair_of(from, to);
        let Some(link) = self.links.get_mut(&pair) else { return };
        let outbox = std::mem::take(&mut link.outbox[side]);
        let (gone, kept): (Outbox, Outbox) = outbox.into_iter().partition(|waiting| waiting.meant == Some(node));
        link.outbox[side] = kept;
        let open = link.session > 0 && link.lives[side] == life && self.lives[link.lives[1 - side] as usize].id == node;
        // Its own side is told here, and not by the end of the session.
        link.up[side] &= !open;
        for waiting in &gone {
            lost(&mut self.ledger, &waiting.frame);
        }
        if open {
            self.end_session(pair, &LinkDown::Reset);
        }
        if open || !gone.is_empty() {
            let event = LinkEvent::Down { peer: Some(node), addr: addr.clone(), cause: LinkDown::Closed, lost: gone.len() as u64 };
            self.inside(life, self.now, Inner::Link(event));
        }
    }

    pub(super) fn reset(&mut self, a: u32, b: u32) {
        if a != b {
            self.end_session(pair_of(a, b).0, &LinkDown::Reset);
        }
    }

    /// The process on that node is gone: its host ends the connections, peers hear of it when the news gets through.
    pub(super) fn links_of_dead(&mut self, node: u32) {
        let mut news = Vec::new();
        for (pair, link) in self.links.iter_mut().filter(|(p, _)| p.0 == node || p.1 == node) {
            let side = usize::from(pair.1 == node);
            for waiting in std::mem::take(&mut link.outbox[side]) {
                lost(&mut self.ledger, &waiting.frame);
            }
            link.up[side] = false;
            // The next process there has not dialled in vain yet.
            link.dials[side] = Dial::default();
            link.dying = link.session > 0;
            if link.session > 0 {
                news.push((*pair, link.session, side));
            }
        }
        for (pair, session, side) in news {
            let at = self.now + self.net.latency(node_at(pair, side), node_at(pair, 1 - side), &mut self.faults);
            self.queue.push(at, Event::Break { pair, session });
        }
    }

    pub(super) fn broken_by_peer(&mut self, pair: (u32, u32), session: u64) {
        if self.links.get(&pair).is_none_or(|l| l.session != session) {
            return;
        }
        if self.net.cut(pair.0, pair.1) || self.net.cut(pair.1, pair.0) {
            return self.queue.push(self.now + RESET_RETRY, Event::Break { pair, session });
        }
        self.end_session(pair, &LinkDown::Reset);
    }

    pub(super) fn stalled(&mut self, pair: (u32, u32), session: u64) {
        let Some(link) = self.links.get_mut(&pair).filter(|l| l.session == session && l.stalled) else { return };
        if link.flushing && !self.net.cut(pair.0, pair.1) && !self.net.cut(pair.1, pair.0) {
            link.stalled = false;
            return;
        }
        self.end_session(pair, &LinkDown::TimedOut);
    }

    /// Some cut was lifted: what is stuck goes on with the next retransmission.
    pub(super) fn flush_all(&mut self) {
        for (pair, link) in &mut self.links {
            if link.stalled && !link.flushing {
                link.flushing = true;
                let at = self.now + self.faults.below(5 * RETRANSMIT);
                self.queue.push(at, Event::Flush { pair: *pair, session: link.session });
            }
        }
    }

    pub(super) fn flush(&mut self, pair: (u32, u32), session: u64) {
        let cut = self.net.cut(pair.0, pair.1) || self.net.cut(pair.1, pair.0);
        let Some(link) = self.links.get_mut(&pair).filter(|l| l.session == session) else { return };
        link.flushing = false;
        if cut {
            return;
        }
        link.stalled = false;
        for side in 0..2 {
            let (from, to) = (node_at(pair, side), node_at(pair, 1 - side));
            for frame in std::mem::take(&mut link.stuck[side]) {
                let behind = link.last[side].max(link.passed[side].all);
                let at = behind.max(self.now + self.net.latency(from, to, &mut self.faults));
                link.last[side] = at;
                self.queue.push(at, Event::Arrive { pair, session, side, frame });
            }
        }
    }

    // Messages inside frames.

    /// A frame is thrown away; messages of the workload in it were in the session.
    pub(super) fn frame_lost(&mut self, frame: &Frame) {
        lost(&mut self.ledger, frame);
    }

    /// Something comes to a process that is gone. What was inside of it is given up, as the threads of a node do that shuts down; of one that
    /// crashed nothing is said, and what was on its way to it is lost with the session.
    pub(super) fn too_late(&mut self, life: u32, inner: &Inner) {
        let envelope = match inner {
            Inner::Frame { frame, .. } => return self.frame_lost(frame),
            Inner::ToNet(_, LaneItem::Msg { parcel, .. })
            | Inner::ToWorker(_, _, LaneItem::Msg { parcel: SimParcel(parcel), .. })
            | Inner::Outgoing(_, Outgoing::Report(ShardReport::Back { envelope: parcel, .. })) => Some(parcel),
            Inner::Command(_, command) => match command.item() {
                Some(Item::Msg { envelope, .. }) => Some(envelope),
                _ => None,
            },
            _ => None,
        };
        if let Some(note) = envelope.and_then(|e| Note::decode(e.payload())).filter(|_| !self.lives[life as usize].crashed) {
            self.ledger.dropped(note.id, DropReason::Shutdown);
        }
    }

    /// Messages of the workload in this frame are now in the memory of that life.
    pub(super) fn seen(&mut self, frame: &Frame, life: u32) {
        match frame {
            Frame::Item { item, .. } => {
                if let Some(note) = note_of(item) {
                    self.ledger.seen_at(note.id, life);
                }
            }
            Frame::Handoff { item: HandoffItem::Forwarded(Forwarded { item, .. }), .. } => {
                if let Some(note) = note_of(item) {
                    self.ledger.seen_at(note.id, life);
                }
            }
            Frame::Handoff { item: HandoffItem::Transfer(chunk), .. } => {
                for note in Note::find_in(&chunk.bytes) {
                    self.ledger.seen_at(note.id, life);
                }
            }
            // Whoever passes it on has nothing to answer for: it is sent again.
            Frame::Detour { to, frame, .. } if *to == self.lives[life as usize].id => self.seen(frame, life),
            _ => {}
        }
    }
}

fn note_of(item: &Item) -> Option<Note> {
    let Item::Msg { envelope, .. } = item else { return None };
    Note::decode(envelope.payload())
}

/// Direct items are lost with their session; what is handed off is sent again by its node.
fn lost(ledger: &mut super::ledger::Ledger, frame: &Frame) {
    if let Frame::Item { item, .. } = frame
        && let Some(note) = note_of(item)
    {
        ledger.link_lost(note.id);
    }
}

/// Deadlines travel as remaining time.
fn deadlines(frame: &mut Frame, change: impl Fn(Time) -> Time) {
    let item = match frame {
        Frame::Item { item, .. } => item,
        Frame::Handoff { item: HandoffItem::Forwarded(f), .. } => &mut f.item,
        Frame::Detour { frame, .. } => return deadlines(frame, change),
        _ => return,
    };
    if let Item::Msg { envelope, .. } = item
        && let Some(ask) = &mut envelope.ask
    {
        ask.deadline = change(ask.deadline);
    }
}

/// Bytes of a frame on the wire, near enough for counting.
fn size_of(frame: &Frame) -> u64 {
    fn encoded(x: &impl serde::Serialize) -> u64 {
        postcard::serialize_with_flavor(x, postcard::ser_flavors::Size::default()).unwrap_or(0) as u64
    }
    const HEADER: u64 = 24;
    let item = |i: &Item| if let Item::Msg { envelope, .. } = i { 16 + envelope.bytes.len() as u64 } else { 16 };
    HEADER
        + match frame {
            Frame::Member(f) => encoded(f),
            Frame::Control(f) => encoded(f),
            Frame::Item { item: i, .. } => item(i),
            Frame::Handoff { item: HandoffItem::Transfer(c), .. } => 32 + c.bytes.len() as u64,
            Frame::Handoff { item: HandoffItem::Forwarded(f), .. } => 40 + item(&f.item),
            Frame::Reply { body, .. } => encoded(body),
            Frame::Cast { bytes, .. } => bytes.len() as u64,
            Frame::Detour { frame, .. } => HEADER + 8 + size_of(frame),
            Frame::Handoff { .. } | Frame::HandoffAck { .. } | Frame::StreamAck { .. } | Frame::ProbeAck { .. } => 24,
        }
}
