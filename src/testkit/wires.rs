//! A model of the network between the nodes of a world: datagrams that get lost, and a connection per pair of nodes, as a sequence of
//! numbered sessions in which frames arrive in order.
//!
//! What the sockets promise the cores (`proto::link`) holds here: within a session nothing is lost, reordered or doubled; a session that
//! ends says how many frames it took along; what no session had begun to send waits for the next one.

use std::{
    cell::RefCell,
    collections::{BTreeMap, VecDeque},
    rc::Rc,
    sync::Weak,
    time::Duration,
};

use super::story::{Story, readable};
use crate::{
    NodeAddr, NodeId, Time, TypeId,
    config::Config,
    engine::node::Node,
    net::{NetEvent, Unsent, check_room},
    proto::{
        handoff::{HandoffItem, Item, ReplyBody},
        link::{LinkDown, LinkEvent},
        rng::Rng,
        wire::{Context, Decoded, Frame, FrameError, decode, encode},
    },
};

/// A session in which nothing got through for so long is given up.
const STALL: Duration = Duration::from_secs(10);
/// A dial without an answer is given up after this long.
const DIAL_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause before a new dial while frames wait; doubles with each failure, up to the second one. As the real links have it.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));
/// How often the end of a connection tries to get through a cut.
const RESET_RETRY: Duration = Duration::from_secs(1);
/// A segment that was lost is sent again after this long, doubled each time.
const RETRANSMIT: Duration = Duration::from_millis(200);
/// Datagrams that the system keeps for a process that does not read them.
const DATAGRAMS_KEPT: usize = 256;

/// How the paths between nodes are.
#[derive(Copy, Clone, Debug)]
pub(super) struct Paths {
    /// One way.
    pub latency: Duration,
    /// Up to so much more.
    pub jitter: Duration,
    /// Share of datagrams lost, and of segments that are sent again.
    pub loss: f64,
}

/// Number of a process, across restarts.
pub(super) type LifeNo = usize;
type Pair = (usize, usize);

/// Something on its way.
enum Event {
    Datagram { to: usize, from: usize, bytes: Vec<u8> },
    Arrive { pair: Pair, session: u64, side: usize, bytes: Vec<u8> },
    Dialed { pair: Pair, attempt: u64, side: usize, back: Duration },
    DialEnds { pair: Pair, attempt: u64, side: usize, refused: bool },
    Opened { pair: Pair, session: u64, side: usize },
    Break { pair: Pair, session: u64 },
    Stalled { pair: Pair, session: u64 },
    Flush { pair: Pair, session: u64 },
    Redial { pair: Pair, side: usize },
}

struct Life {
    node: usize,
    id: NodeId,
    over: bool,
    inbox: VecDeque<NetEvent>,
    datagrams: usize,
    /// Knows the names of types.
    names: Weak<Node>,
}

struct Host {
    addr: NodeAddr,
    life: Option<LifeNo>,
    paused: bool,
}

/// A frame that waits for a session.
struct Waiting {
    /// The life that it is meant for; any if none.
    meant: Option<NodeId>,
    since: Time,
    bytes: Vec<u8>,
}

/// The connection of a pair; side 0 is the lower number.
#[derive(Default)]
struct Link {
    /// Number of the open session; 0 = none.
    session: u64,
    lives: [LifeNo; 2],
    /// That side knows of the session.
    up: [bool; 2],
    outbox: [VecDeque<Waiting>; 2],
    /// What the session has taken and cannot get through, by sending side.
    stuck: [VecDeque<Vec<u8>>; 2],
    /// Frames do not arrive before this, by sending side.
    last: [Time; 2],
    in_flight: [u64; 2],
    /// Whom that side was told to be blocked.
    blocked: [Option<NodeId>; 2],
    /// Each side dials by itself.
    dial: [Option<u64>; 2],
    failures: [u32; 2],
    redial_due: [bool; 2],
    stalled: bool,
    flushing: bool,
    /// The process at the other end is gone, and the end of the session is on its way.
    dying: bool,
}

impl Link {
    fn waiting_bytes(&self, side: usize) -> usize {
        let outbox: usize = self.outbox[side].iter().map(|waiting| waiting.bytes.len()).sum();
        outbox + self.stuck[side].iter().map(Vec::len).sum::<usize>()
    }
}

/// The network of a world.
pub(super) struct Wires {
    pub paths: Paths,
    link_bytes: usize,
    frame_bytes: usize,
    /// How long frames wait for a session with the life that they are for.
    patience: Duration,
    rng: Rng,
    now: Time,
    began: Time,
    hosts: Vec<Host>,
    lives: Vec<Life>,
    links: BTreeMap<Pair, Link>,
    /// Group of each node; nothing passes between two.
    groups: Vec<usize>,
    queue: BTreeMap<(Time, u64), Event>,
    serial: u64,
    numbers: u64,
    story: Rc<RefCell<Story>>,
}

fn pair_of(a: usize, b: usize) -> (Pair, usize) {
    if a < b { ((a, b), 0) } else { ((b, a), 1) }
}

fn node_at(pair: Pair, side: usize) -> usize {
    if side == 0 { pair.0 } else { pair.1 }
}

impl Wires {
    pub fn new(addrs: Vec<NodeAddr>, paths: Paths, config: &Config, rng: Rng, now: Time, story: Rc<RefCell<Story>>) -> Self {
        Self {
            paths,
            link_bytes: config.limits.link_bytes as usize,
            frame_bytes: config.limits.frame_bytes as usize,
            patience: config.sharding.handoff_timeout.get(),
            rng,
            now,
            began: now,
            groups: vec![0; addrs.len()],
            hosts: addrs.into_iter().map(|addr| Host { addr, life: None, paused: false }).collect(),
            lives: vec![],
            links: BTreeMap::new(),
            queue: BTreeMap::new(),
            serial: 0,
            numbers: 0,
            story,
        }
    }

    // ---- processes ------------------------------------------------------------------------------------------------------------

    /// A process starts on that node.
    pub fn born(&mut self, node: usize, id: NodeId) -> LifeNo {
        let life = self.lives.len();
        self.lives.push(Life { node, id, over: false, inbox: VecDeque::new(), datagrams: 0, names: Weak::new() });
        self.hosts[node].life = Some(life);
        self.hosts[node].paused = false;
        life
    }

    /// Who knows the names of types.
    pub fn named_by(&mut self, life: LifeNo, node: Weak<Node>) {
        self.lives[life].names = node;
    }

    pub fn set_paused(&mut self, node: usize, paused: bool) {
        self.hosts[node].paused = paused;
    }

    /// The process is gone: its system ends the connections, and peers hear of it when the news gets through.
    pub fn died(&mut self, life: LifeNo) {
        let node = self.lives[life].node;
        self.lives[life].over = true;
        // Lives are remembered, so their room is not.
        self.lives[life].inbox = VecDeque::new();
        self.hosts[node].life = None;
        let mut news = vec![];
        for (pair, link) in self.links.iter_mut().filter(|(pair, _)| pair.0 == node || pair.1 == node) {
            let side = usize::from(pair.1 == node);
            link.outbox[side].clear();
            link.blocked[side] = None;
            (link.dial[side], link.failures[side], link.redial_due[side]) = (None, 0, false);
            link.up[side] = false;
            link.dying = link.session > 0;
            if link.session > 0 {
                news.push((*pair, link.session));
            }
        }
        for (pair, session) in news {
            let after = self.latency();
            self.after(after, Event::Break { pair, session });
        }
    }

    /// Cuts all paths between the groups; nodes in none of them form one more.
    pub fn cut(&mut self, groups: &[&[usize]]) {
        self.groups.fill(groups.len());
        for (group, nodes) in groups.iter().enumerate() {
            nodes.iter().for_each(|node| self.groups[*node] = group);
        }
    }

    /// All paths are open again; what is stuck goes on with the next retransmission.
    pub fn heal(&mut self) {
        self.groups.fill(0);
        let mut flushes = vec![];
        for (pair, link) in self.links.iter_mut().filter(|(_, link)| link.stalled && !link.flushing) {
            link.flushing = true;
            flushes.push((*pair, link.session));
        }
        for (pair, session) in flushes {
            let after = RETRANSMIT.mul_f64(5.0 * self.rng.unit());
            self.after(after, Event::Flush { pair, session });
        }
    }

    fn is_cut(&self, a: usize, b: usize) -> bool {
        self.groups[a] != self.groups[b]
    }

    // ---- time -----------------------------------------------------------------------------------------------------------------

    /// When something happens next.
    pub fn due(&self) -> Option<Time> {
        self.queue.first_key_value().map(|((at, _), _)| *at)
    }

    /// Lets happen what is due. True if something was.
    pub fn advance(&mut self, now: Time) -> bool {
        let mut any = false;
        self.now = now;
        while let Some(entry) = self.queue.first_entry().filter(|entry| entry.key().0 <= now) {
            any = true;
            match entry.remove() {
                Event::Datagram { to, from, bytes } => self.datagram_arrives(to, from, bytes),
                Event::Arrive { pair, session, side, bytes } => self.frame_arrives(pair, session, side, &bytes),
                Event::Dialed { pair, attempt, side, back } => self.dialed(pair, attempt, side, back),
                Event::DialEnds { pair, attempt, side, refused } => self.dial_ends(pair, attempt, side, refused),
                Event::Opened { pair, session, side } => self.opened(pair, session, side),
                Event::Break { pair, session } => self.broken_by_peer(pair, session),
                Event::Stalled { pair, session } => self.stalled(pair, session),
                Event::Flush { pair, session } => self.flush(pair, session),
                Event::Redial { pair, side } => self.redial(pair, side),
            }
        }
        any
    }

    fn at(&mut self, at: Time, event: Event) {
        self.serial += 1;
        self.queue.insert((at, self.serial), event);
    }

    fn after(&mut self, d: Duration, event: Event) {
        self.at(self.now + d, event);
    }

    fn latency(&mut self) -> Duration {
        self.paths.latency + self.paths.jitter.mul_f64(self.rng.unit())
    }

    fn is_lost(&mut self) -> bool {
        self.paths.loss > 0.0 && self.rng.chance(self.paths.loss)
    }

    fn tell(&self, line: String) {
        self.story.borrow_mut().tell(self.now.since(self.began), line);
    }

    // ---- what a process sees --------------------------------------------------------------------------------------------------

    pub fn next(&mut self, life: LifeNo) -> Option<NetEvent> {
        let life = &mut self.lives[life];
        let event = life.inbox.pop_front();
        life.datagrams -= usize::from(matches!(event, Some(NetEvent::Datagram { .. })));
        event
    }

    pub fn has_events(&self, life: LifeNo) -> bool {
        !self.lives[life].inbox.is_empty()
    }

    fn link_event(&mut self, life: LifeNo, event: LinkEvent) {
        if !self.lives[life].over {
            self.lives[life].inbox.push_back(NetEvent::Link(event));
        }
    }

    /// Bytes that wait for a session or for a path.
    pub fn unsent_bytes(&self, life: LifeNo) -> usize {
        let node = self.lives[life].node;
        let mine = self.links.iter().filter(|(pair, _)| pair.0 == node || pair.1 == node);
        mine.map(|(pair, link)| link.waiting_bytes(usize::from(pair.1 == node))).sum()
    }

    // ---- datagrams ------------------------------------------------------------------------------------------------------------

    fn index_of(&self, addr: &NodeAddr) -> Option<usize> {
        self.hosts.iter().position(|host| host.addr == *addr)
    }

    pub fn send_datagram(&mut self, now: Time, life: LifeNo, to: &NodeAddr, bytes: &[u8]) {
        self.now = now;
        let from = self.lives[life].node;
        self.story.borrow_mut().note(now.since(self.began), bytes);
        let Some(to) = self.index_of(to) else { return };
        let (lost, after) = (self.is_lost(), self.latency());
        if !lost && !self.is_cut(from, to) {
            self.after(after, Event::Datagram { to, from, bytes: bytes.to_vec() });
        }
    }

    fn datagram_arrives(&mut self, to: usize, from: usize, bytes: Vec<u8>) {
        // A datagram goes to whoever has the port when it arrives.
        let Some(life) = self.hosts[to].life else { return };
        let from = std::net::SocketAddr::from(([127, 0, 0, 1], self.hosts[from].addr.port));
        let life = &mut self.lives[life];
        if life.datagrams < DATAGRAMS_KEPT {
            life.datagrams += 1;
            life.inbox.push_back(NetEvent::Datagram { bytes, from });
        }
    }

    // ---- frames ---------------------------------------------------------------------------------------------------------------

    pub fn send_frame(&mut self, now: Time, life: LifeNo, to: &NodeAddr, meant: Option<NodeId>, frame: &Frame) -> Result<(), Unsent> {
        self.now = now;
        let from = self.lives[life].node;
        let Some(to) = self.index_of(to) else { return Ok(()) };
        let mut bytes = vec![];
        let cx = Context { sender: self.lives[life].id, now };
        match encode(frame, cx, self.frame_bytes, &mut bytes) {
            Ok(_) => {}
            Err(FrameError::TooLong { size, max }) => return Err(Unsent::TooLarge { size, max }),
            // As with the real links: the codec writes all values of its types.
            Err(_) => return Err(Unsent::TooLarge { size: 0, max: self.frame_bytes as u64 }),
        }
        self.story.borrow_mut().note(now.since(self.began), &bytes);
        if let Some(what) = self.describe(life, frame) {
            self.tell(format!("n{from} -> n{to}: {what}"));
        }
        if to == from {
            // Nobody dials itself; a core that sends to its own address means itself.
            let peer = self.lives[life].id;
            self.take_in(life, peer, &bytes);
            return Ok(());
        }
        let (pair, side) = pair_of(from, to);
        let link_bytes = self.link_bytes;
        let link = self.links.entry(pair).or_default();
        check_room(frame, link.waiting_bytes(side), link_bytes)?;
        if link.session > 0 && link.up[side] && link.lives[side] == life && !link.dying {
            let (peer, session) = (self.lives[link.lives[1 - side]].id, link.session);
            if let Some(other) = meant.filter(|meant| *meant != peer) {
                let (addr, cause) = (self.hosts[to].addr.clone(), LinkDown::OtherIncarnation(peer));
                self.link_event(life, LinkEvent::Down { peer: Some(other), addr, cause, lost: 1 });
                return Ok(());
            }
            self.transmit(pair, session, side, bytes);
        } else {
            link.outbox[side].push_back(Waiting { meant, since: now, bytes });
            self.dial(pair, side);
        }
        self.look_at_room(pair, side, life, meant);
        Ok(())
    }

    /// Tells a process that a link has no more room.
    fn look_at_room(&mut self, pair: Pair, side: usize, life: LifeNo, meant: Option<NodeId>) {
        let link_bytes = self.link_bytes;
        let Some(link) = self.links.get_mut(&pair) else { return };
        let Some(peer) = meant.filter(|_| link.blocked[side].is_none() && link.waiting_bytes(side) > link_bytes) else { return };
        link.blocked[side] = Some(peer);
        self.link_event(life, LinkEvent::Blocked { peer, shard: None });
    }

    /// Tells a process that a link has room again.
    fn look_for_room(&mut self, pair: Pair, side: usize) {
        let link_bytes = self.link_bytes;
        let Some(link) = self.links.get_mut(&pair) else { return };
        if link.waiting_bytes(side) < link_bytes / 2
            && let Some(peer) = link.blocked[side].take()
            && let Some(life) = self.hosts[node_at(pair, side)].life
        {
            self.link_event(life, LinkEvent::Writable { peer, shard: None });
        }
    }

    /// Puts a frame on the wire of an open session.
    fn transmit(&mut self, pair: Pair, session: u64, side: usize, bytes: Vec<u8>) {
        let cut = self.is_cut(pair.0, pair.1);
        let mut delay = self.latency();
        let mut again = RETRANSMIT;
        while again < STALL && self.is_lost() {
            delay += again;
            again *= 2;
        }
        let Some(link) = self.links.get_mut(&pair) else { return };
        link.in_flight[side] += 1;
        if cut || !link.stuck[side].is_empty() {
            link.stuck[side].push_back(bytes);
            if !std::mem::replace(&mut link.stalled, true) {
                self.after(STALL, Event::Stalled { pair, session });
            }
            return;
        }
        let at = link.last[side].max(self.now + delay);
        link.last[side] = at;
        self.at(at, Event::Arrive { pair, session, side, bytes });
    }

    fn frame_arrives(&mut self, pair: Pair, session: u64, side: usize, bytes: &[u8]) {
        // What was on its way when the path was cut still arrives: it is less than a round trip.
        let Some(link) = self.links.get_mut(&pair).filter(|link| link.session == session) else { return };
        link.in_flight[side] = link.in_flight[side].saturating_sub(1);
        let (to, peer) = (link.lives[1 - side], self.lives[link.lives[side]].id);
        if !self.lives[to].over {
            self.take_in(to, peer, bytes);
        }
    }

    fn take_in(&mut self, to: LifeNo, peer: NodeId, bytes: &[u8]) {
        match decode(bytes, Context { sender: peer, now: self.now }) {
            Ok(Decoded::Frame(frame)) => self.lives[to].inbox.push_back(NetEvent::Frame { peer, frame }),
            Ok(Decoded::Skipped(_)) => {}
            Err(error) => panic!("a frame that was encoded cannot be decoded: {error}"),
        }
    }

    // ---- opening --------------------------------------------------------------------------------------------------------------

    fn dial(&mut self, pair: Pair, side: usize) {
        let (there, back) = (self.latency(), self.latency());
        let Some(link) = self.links.get_mut(&pair) else { return };
        // A new life does not wait for the end of a session that its predecessor had.
        if (link.session > 0 && !link.dying) || link.dial[side].is_some() || link.redial_due[side] {
            return;
        }
        self.numbers += 1;
        let attempt = self.numbers;
        link.dial[side] = Some(attempt);
        self.after(there, Event::Dialed { pair, attempt, side, back });
    }

    /// A dial of `side` reaches the other host.
    fn dialed(&mut self, pair: Pair, attempt: u64, side: usize, back: Duration) {
        let (from, to) = (node_at(pair, side), node_at(pair, 1 - side));
        let cut = self.is_cut(from, to);
        let Some(link) = self.links.get_mut(&pair).filter(|link| link.dial[side] == Some(attempt)) else { return };
        let (Some(here), there) = (self.hosts[from].life, self.hosts[to].life) else {
            link.dial[side] = None;
            return;
        };
        let Some(there) = there.filter(|_| !cut && !self.hosts[to].paused) else {
            let refused = !cut && there.is_none();
            return self.after(if refused { back } else { DIAL_TIMEOUT }, Event::DialEnds { pair, attempt, side, refused });
        };
        link.dial[side] = None;
        link.failures[side] = 0;
        if link.session > 0 && !link.dying {
            // The other side was faster: its session serves both.
            return;
        }
        if link.session > 0 {
            // Who accepts finds out that the other end of its old session is gone.
            self.end_session(pair, &LinkDown::Reset);
        }
        self.numbers += 1;
        let session = self.numbers;
        let Some(link) = self.links.get_mut(&pair) else { return };
        link.session = session;
        link.lives[side] = here;
        link.lives[1 - side] = there;
        link.up = [false; 2];
        link.in_flight = [0; 2];
        link.dying = false;
        // What the other side sends reaches the dialler behind its own news of the session.
        link.last[1 - side] = self.now + back;
        link.last[side] = self.now;
        self.after(back, Event::Opened { pair, session, side });
        self.opened(pair, session, 1 - side);
    }

    /// `side` learns that the session is up.
    fn opened(&mut self, pair: Pair, session: u64, side: usize) {
        let Some(link) = self.links.get_mut(&pair).filter(|link| link.session == session) else { return };
        let (life, other) = (link.lives[side], link.lives[1 - side]);
        if self.lives[life].over {
            return;
        }
        link.up[side] = true;
        let peer = self.lives[other].id;
        let addr = self.hosts[node_at(pair, 1 - side)].addr.clone();
        let mut wrong: BTreeMap<NodeId, u64> = BTreeMap::new();
        let mut right = vec![];
        for Waiting { meant, bytes, .. } in std::mem::take(&mut link.outbox[side]) {
            match meant.filter(|meant| *meant != peer) {
                Some(meant) => *wrong.entry(meant).or_default() += 1,
                None => right.push(bytes),
            }
        }
        for (meant, lost) in wrong {
            let cause = LinkDown::OtherIncarnation(peer);
            self.link_event(life, LinkEvent::Down { peer: Some(meant), addr: addr.clone(), cause, lost });
        }
        self.link_event(life, LinkEvent::Up { peer, addr, session });
        for bytes in right {
            self.transmit(pair, session, side, bytes);
        }
        self.look_for_room(pair, side);
    }

    fn dial_ends(&mut self, pair: Pair, attempt: u64, side: usize, refused: bool) {
        let Some(link) = self.links.get_mut(&pair).filter(|link| link.dial[side] == Some(attempt)) else { return };
        link.dial[side] = None;
        if link.session > 0 {
            // The other side got through meanwhile.
            return;
        }
        // Whom the dial was for, if that is one life.
        let first = link.outbox[side].front().map(|waiting| waiting.meant);
        let same = link.outbox[side].iter().all(|waiting| Some(waiting.meant) == first);
        // What has waited for too long does not any longer, and is told of with the one it was for.
        let mut told = BTreeMap::from([(first.flatten().filter(|_| same), 0)]);
        let (now, patience) = (self.now, self.patience);
        link.outbox[side].retain(|waiting| {
            let keeps = waiting.meant.is_none() || now < waiting.since + patience;
            if !keeps {
                *told.entry(waiting.meant).or_default() += 1;
            }
            keeps
        });
        let addr = self.hosts[node_at(pair, 1 - side)].addr.clone();
        let cause = if refused { LinkDown::Refused } else { LinkDown::TimedOut };
        if let Some(life) = self.hosts[node_at(pair, side)].life {
            for (peer, lost) in told {
                self.link_event(life, LinkEvent::Down { peer, addr: addr.clone(), cause: cause.clone(), lost });
            }
        }
        self.look_for_room(pair, side);
        self.redial_later(pair, side);
    }

    /// Dials again after a while, if frames wait.
    fn redial_later(&mut self, pair: Pair, side: usize) {
        let share = self.rng.unit();
        let Some(link) = self.links.get_mut(&pair) else { return };
        if !link.outbox[side].is_empty() && !std::mem::replace(&mut link.redial_due[side], true) {
            let base = BACKOFF.0.saturating_mul(1 << link.failures[side].min(16)).min(BACKOFF.1);
            link.failures[side] += 1;
            self.after(base.mul_f64(0.75 + share / 2.0), Event::Redial { pair, side });
        }
    }

    fn redial(&mut self, pair: Pair, side: usize) {
        let Some(link) = self.links.get_mut(&pair) else { return };
        link.redial_due[side] = false;
        let host = &self.hosts[node_at(pair, side)];
        if link.outbox[side].is_empty() || host.life.is_none() {
            return;
        }
        if host.paused { self.redial_later(pair, side) } else { self.dial(pair, side) }
    }

    // ---- ending ---------------------------------------------------------------------------------------------------------------

    /// Ends the session on both sides; each that knew of it is told.
    fn end_session(&mut self, pair: Pair, cause: &LinkDown) {
        let Some(link) = self.links.get_mut(&pair).filter(|link| link.session > 0) else { return };
        link.session = 0;
        (link.stalled, link.flushing, link.dying) = (false, false, false);
        let mut stuck = std::mem::take(&mut link.stuck);
        let in_flight = std::mem::take(&mut link.in_flight);
        let up = std::mem::take(&mut link.up);
        let (lives, now) = (link.lives, self.now);
        for side in 0..2 {
            if !up[side] || self.lives[lives[side]].over {
                continue;
            }
            let peer = self.lives[lives[1 - side]].id;
            // The system had taken some of what is stuck; the rest was never written and waits for the next session.
            let taken = self.rng.below(stuck[side].len() as u64 + 1) as usize;
            let kept = stuck[side].split_off(taken);
            let lost = in_flight[side].saturating_sub(kept.len() as u64);
            let Some(link) = self.links.get_mut(&pair) else { return };
            kept.into_iter().rev().for_each(|bytes| link.outbox[side].push_front(Waiting { meant: Some(peer), since: now, bytes }));
            let addr = self.hosts[node_at(pair, 1 - side)].addr.clone();
            self.link_event(lives[side], LinkEvent::Down { peer: Some(peer), addr, cause: cause.clone(), lost });
            self.look_for_room(pair, side);
        }
        self.tell(format!("the link of n{} and n{} breaks: {cause:?}", pair.0, pair.1));
        (0..2).for_each(|side| self.redial_later(pair, side));
    }

    /// A process closes the link with a removed node.
    pub fn close(&mut self, now: Time, life: LifeNo, node: NodeId, addr: &NodeAddr) {
        self.now = now;
        let from = self.lives[life].node;
        let Some(to) = self.index_of(addr).filter(|to| *to != from) else { return };
        let (pair, side) = pair_of(from, to);
        let Some(link) = self.links.get_mut(&pair) else { return };
        let before = link.outbox[side].len();
        link.outbox[side].retain(|waiting| waiting.meant != Some(node));
        let gone = (before - link.outbox[side].len()) as u64;
        let open = link.session > 0 && link.lives[side] == life && self.lives[link.lives[1 - side]].id == node;
        // Its own side is told here, and not by the end of the session.
        link.up[side] &= !open;
        // What came from that life and was not yet handled is forgotten.
        self.lives[life].inbox.retain(|event| !matches!(event, NetEvent::Frame { peer, .. } if *peer == node));
        if open {
            self.end_session(pair, &LinkDown::Reset);
        }
        if open || gone > 0 {
            let event = LinkEvent::Down { peer: Some(node), addr: addr.clone(), cause: LinkDown::Closed, lost: gone };
            self.link_event(life, event);
        }
        self.look_for_room(pair, side);
    }

    fn broken_by_peer(&mut self, pair: Pair, session: u64) {
        if self.links.get(&pair).is_none_or(|link| link.session != session) {
            return;
        }
        if self.is_cut(pair.0, pair.1) {
            return self.after(RESET_RETRY, Event::Break { pair, session });
        }
        self.end_session(pair, &LinkDown::Reset);
    }

    fn stalled(&mut self, pair: Pair, session: u64) {
        let cut = self.is_cut(pair.0, pair.1);
        let Some(link) = self.links.get_mut(&pair).filter(|link| link.session == session && link.stalled) else { return };
        if link.flushing && !cut {
            link.stalled = false;
            return;
        }
        self.end_session(pair, &LinkDown::TimedOut);
    }

    fn flush(&mut self, pair: Pair, session: u64) {
        let cut = self.is_cut(pair.0, pair.1);
        let Some(link) = self.links.get_mut(&pair).filter(|link| link.session == session) else { return };
        link.flushing = false;
        if cut {
            return;
        }
        link.stalled = false;
        for side in 0..2 {
            let Some(link) = self.links.get_mut(&pair) else { return };
            for bytes in std::mem::take(&mut link.stuck[side]) {
                let delay = self.latency();
                let Some(link) = self.links.get_mut(&pair) else { return };
                let at = link.last[side].max(self.now + delay);
                link.last[side] = at;
                self.at(at, Event::Arrive { pair, session, side, bytes });
            }
            self.look_for_room(pair, side);
        }
    }

    // ---- the story ------------------------------------------------------------------------------------------------------------

    /// A frame in a few words, if it is one that users know of.
    fn describe(&self, life: LifeNo, frame: &Frame) -> Option<String> {
        let name = |ty: TypeId| {
            let entry = self.lives[life].names.upgrade().and_then(|node| node.type_entry(ty));
            entry.map_or_else(|| format!("{:08x}", ty.0), |entry| entry.name.to_string())
        };
        match frame {
            Frame::Item { item: Item::Msg { envelope, .. }, shard } => {
                let what = if envelope.ask.is_some() { "ask" } else { "tell" };
                Some(format!("{what} {} {}, {} bytes", name(shard.ty), readable(envelope.key()), envelope.payload().len()))
            }
            Frame::Handoff { item: HandoffItem::Transfer(chunk), shard, .. } => {
                let (n, size) = (shard.shard.0, chunk.bytes.len());
                Some(format!("shard {n} of {} moves, {size} bytes, epoch {}", name(shard.ty), chunk.epoch.get()))
            }
            Frame::Handoff { item: HandoffItem::Forwarded(forwarded), shard, .. } => match &forwarded.item {
                Item::Msg { envelope, .. } => Some(format!("forwards a message for {} {}", name(shard.ty), readable(envelope.key()))),
                _ => None,
            },
            Frame::Detour { frame, .. } => self.describe(life, frame).map(|what| format!("{what}, by way of a third node")),
            Frame::Reply { body, .. } => Some(match body {
                ReplyBody::Value(bytes) => format!("reply, {} bytes", bytes.len()),
                other => format!("reply: {other:?}"),
            }),
            _ => None,
        }
    }
}
