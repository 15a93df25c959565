//! The world the nodes live in.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use crate::{
    Config, NodeId, ShardId, ShardKey, Time, TypeId,
    proto::{
        handoff::{Ask, DropReason, Envelope, Producer, Push, ReplyBody, Word},
        link::{LinkDown, LinkEvent},
        membership::{Event, MemberOutput, MemberStatus, Removal},
        node::{Answer, Command, Effect, NodeCore},
        rng::Rng,
        shard::{LaneId, LaneItem, ShardCommand},
        sharding::{ControlFrame, ShardState, TypeInfo},
        wire::Frame,
    },
};

use super::{
    members::{Script, addr, id, member},
    worker::{Luggage, Worker},
};

pub const LANE: LaneId = LaneId(1);
pub const SHARDS: u32 = 4;

pub fn info(host: bool) -> TypeInfo {
    TypeInfo { name: "probe".into(), ty: TypeId::of("probe"), shards: SHARDS, host }
}

pub fn shard(n: u32) -> ShardKey {
    ShardKey { ty: TypeId::of("probe"), shard: ShardId(n) }
}

pub struct Node {
    pub core: NodeCore<Script>,
    pub worker: Worker,
    pub alive: bool,
    /// Its worker takes nothing out of its rings.
    pub stands_still: bool,
    pub to_worker: VecDeque<ShardCommand>,
    producer: Producer,
    words: BTreeMap<ShardKey, Word>,
    published: VecDeque<(ShardKey, Word)>,
    network_ring: VecDeque<LaneItem<Envelope>>,
    worker_ring: VecDeque<LaneItem<Envelope>>,
    quiesces: bool,
    sent: BTreeMap<ShardKey, u32>,
    pub replies: Vec<(u64, ReplyBody)>,
    pub undelivered: Vec<(Envelope, DropReason)>,
    pub done: BTreeMap<u64, Answer>,
    pub events: Vec<Event>,
    pub ready: Vec<Result<(), String>>,
    pub hosting: Vec<Time>,
    pub closed: Vec<NodeId>,
}

pub struct World {
    pub now: Time,
    pub nodes: Vec<Node>,
    pub rng: Rng,
    links: BTreeMap<(usize, usize), VecDeque<Frame>>,
    sessions: BTreeMap<(usize, usize), u64>,
    /// Frames that a test keeps from arriving.
    pub lose: fn(usize, usize, &Frame) -> bool,
    /// What was handled anywhere, in the order in which it happened.
    log: Vec<Envelope>,
    statuses: Vec<MemberStatus>,
    next_id: u64,
}

impl Node {
    /// Nothing stands in a ring between its threads.
    fn is_quiet(&self) -> bool {
        self.to_worker.is_empty() && self.worker_ring.is_empty() && self.network_ring.is_empty() && self.worker.reports.is_empty()
    }
}

impl World {
    pub fn new(n: usize, seed: u64) -> Self {
        Self::with(n, seed, Config::default())
    }

    pub fn with(n: usize, seed: u64, config: Config) -> Self {
        let (config, luggage) = (Arc::new(config), Luggage::default());
        let node = |i| Node {
            core: NodeCore::with_members(config.clone(), id(i), 1, Script::new(id(i))),
            worker: Worker::new(id(i), luggage.clone()),
            alive: true,
            stands_still: false,
            to_worker: VecDeque::new(),
            producer: Producer::default(),
            words: BTreeMap::new(),
            published: VecDeque::new(),
            network_ring: VecDeque::new(),
            worker_ring: VecDeque::new(),
            quiesces: false,
            sent: BTreeMap::new(),
            replies: vec![],
            undelivered: vec![],
            done: BTreeMap::new(),
            events: vec![],
            ready: vec![],
            hosting: vec![],
            closed: vec![],
        };
        let mut world = Self {
            now: Time::from_nanos(1),
            nodes: (0..n).map(node).collect(),
            rng: Rng::new(seed),
            links: BTreeMap::new(),
            sessions: BTreeMap::new(),
            lose: |_, _, _| false,
            log: vec![],
            statuses: vec![MemberStatus::Joining; n],
            next_id: 0,
        };
        for i in 0..n {
            world.nodes[i].core.start(world.now);
            world.command(i, |_| Command::Register { info: info(true) });
        }
        world
    }

    /// A cluster of `n` up members, with every shard allocated and quiet.
    pub fn settled(n: usize, seed: u64) -> Self {
        let mut world = Self::new(n, seed);
        world.set_all(MemberStatus::Up);
        for s in 0..SHARDS {
            world.send(0, shard(s));
        }
        world.calm();
        world.clear();
        world
    }

    /// The word that a node has published last.
    pub fn word(&self, node: usize, shard: ShardKey) -> Word {
        let node = &self.nodes[node];
        let newest = node.published.iter().rev().find(|(key, _)| *key == shard).map(|(_, word)| *word);
        newest.or_else(|| node.words.get(&shard).copied()).unwrap_or_default()
    }

    pub fn clear(&mut self) {
        self.log.clear();
        for node in &mut self.nodes {
            node.worker.handled.clear();
            node.worker.dropped.clear();
            node.events.clear();
            node.undelivered.clear();
        }
    }

    pub fn set_all(&mut self, status: MemberStatus) {
        self.statuses = vec![status; self.nodes.len()];
        self.publish_members(|_| true);
    }

    pub fn set_status(&mut self, n: usize, status: MemberStatus) {
        self.statuses[n] = status;
        self.publish_members(|_| true);
    }

    fn publish_members(&mut self, to: impl Fn(usize) -> bool) {
        let all = self.statuses.iter().enumerate().filter(|(_, s)| !matches!(s, MemberStatus::Removed | MemberStatus::Joining));
        let members: Vec<_> = all.map(|(n, s)| member(n, *s)).collect();
        for n in (0..self.nodes.len()).filter(|&n| to(n)) {
            if self.nodes[n].alive {
                self.nodes[n].core.membership.set_members(members.clone());
                self.poke(n);
            }
        }
    }

    fn poke(&mut self, n: usize) {
        self.nodes[n].core.finish(self.now);
        self.take_effects(n);
    }

    pub fn crash(&mut self, n: usize) {
        self.nodes[n].alive = false;
        self.statuses[n] = MemberStatus::Removed;
        self.links.retain(|(from, to), _| *to != n || *from == n);
        for other in 0..self.nodes.len() {
            self.sessions.remove(&(n, other));
            if self.sessions.remove(&(other, n)).is_some() {
                self.link_event(other, LinkEvent::Down { peer: Some(id(n)), addr: addr(n), cause: LinkDown::Reset, lost: 0 });
            }
        }
    }

    /// `at` learns that `n` was removed.
    pub fn learn_removal(&mut self, at: usize, n: usize, how: Removal) {
        if !self.nodes[at].alive {
            return;
        }
        self.nodes[at].core.membership.outputs.push_back(MemberOutput::Removed { node: id(n), how });
        self.publish_members(|m| m == at);
        self.links.remove(&(n, at));
        assert!(self.nodes[at].closed.contains(&id(n)) || !self.nodes[at].core.peers.can_send(id(n)));
    }

    pub fn command(&mut self, n: usize, command: impl FnOnce(u64) -> Command) -> u64 {
        self.next_id += 1;
        let command = command(self.next_id);
        self.nodes[n].core.handle_command(self.now, command);
        self.take_effects(n);
        self.next_id
    }

    /// The session between two nodes breaks; what was in it is gone.
    pub fn break_link(&mut self, a: usize, b: usize) {
        for (from, to) in [(a, b), (b, a)] {
            let lost = self.links.remove(&(from, to)).map_or(0, |q| q.len()) as u64;
            self.sessions.remove(&(from, to));
            self.link_event(from, LinkEvent::Down { peer: Some(id(to)), addr: addr(to), cause: LinkDown::Reset, lost });
        }
    }

    /// A control frame of that node arrives.
    pub fn control(&mut self, n: usize, from: usize, frame: ControlFrame) {
        self.frame(n, from, Frame::Control(frame));
    }

    /// A frame of that node arrives.
    pub fn frame(&mut self, n: usize, from: usize, frame: Frame) {
        self.nodes[n].core.handle_frame(self.now, id(from), frame);
        self.take_effects(n);
    }

    pub fn link_event(&mut self, n: usize, event: LinkEvent) {
        if self.nodes[n].alive {
            self.nodes[n].core.handle_link(self.now, event);
            self.take_effects(n);
        }
    }

    /// The producer of node `n` sends its next message to the shard.
    pub fn send(&mut self, n: usize, key: ShardKey) {
        self.send_with(n, key, None);
    }

    pub fn send_with(&mut self, n: usize, key: ShardKey, ask: Option<Ask>) {
        let node = &mut self.nodes[n];
        let number = node.sent.entry(key).or_default();
        *number += 1;
        let mut payload = vec![n as u8];
        payload.extend(number.to_le_bytes());
        let parcel = Envelope::new(key, ask, b"k", &payload).expect("the key is short");
        let word = node.words.get(&key).copied().unwrap_or_default();
        let plan = node.producer.plan(key, word);
        for token in plan.tokens.into_iter().flatten() {
            match token {
                Push::LeaveNetwork(k) => node.network_ring.push_back(LaneItem::Leave { shard: key, k }),
                Push::LeaveWorker(_, k) => node.worker_ring.push_back(LaneItem::Leave { shard: key, k }),
                Push::Through(k, k2) => node.network_ring.push_back(LaneItem::Through { shard: key, k, k2 }),
            }
        }
        let enter = plan.enter;
        match plan.exit {
            Some((_, tag)) => node.worker_ring.push_back(LaneItem::Msg { shard: key, tag, enter, parcel }),
            None => node.network_ring.push_back(LaneItem::Msg { shard: key, tag: crate::Epoch::ZERO, enter, parcel }),
        }
        node.producer.done(key, word);
    }

    fn connect(&mut self, a: usize, b: usize) {
        for (from, to) in [(a, b), (b, a)] {
            let session = self.sessions.entry((from, to)).or_default();
            *session += 1;
            let session = *session;
            self.link_event(from, LinkEvent::Up { peer: id(to), addr: addr(to), session });
        }
    }

    fn take_effects(&mut self, n: usize) {
        self.nodes[n].core.check();
        while let Some(effect) = self.nodes[n].core.poll_effect() {
            let node = &mut self.nodes[n];
            match effect {
                Effect::Frame { to, frame, .. } => {
                    let to = (to.port - 7301) as usize;
                    if self.nodes[to].alive && !(self.lose)(n, to, &frame) {
                        self.links.entry((n, to)).or_default().push_back(frame);
                        if !self.sessions.contains_key(&(n, to)) {
                            self.connect(n, to);
                        }
                    }
                }
                Effect::Worker { command, .. } => node.to_worker.push_back(command),
                Effect::Publish { shard, word } => node.published.push_back((shard, word)),
                Effect::Reply { correlation, body } => node.replies.push((correlation, body)),
                Effect::Undelivered { envelope, reason } => node.undelivered.push((envelope, reason)),
                Effect::Done { id, answer } => drop(node.done.insert(id, answer)),
                Effect::Event(event) => node.events.push(event),
                Effect::TypeReady { result, .. } => node.ready.push(result),
                Effect::HostingUntil(time) => node.hosting.push(time),
                Effect::CloseLink { node: peer, .. } => node.closed.push(peer),
                Effect::Quiesce => node.quiesces = true,
                Effect::Datagram { .. }
                | Effect::View(_)
                | Effect::TypeSized { .. }
                | Effect::Resolve(_)
                | Effect::Lease { .. }
                | Effect::Ended(_) => {}
            }
        }
        self.nodes[n].core.check();
    }

    /// One thing happens somewhere, chosen at random. False if nothing can.
    pub fn step(&mut self) -> bool {
        let mut choices: Vec<(usize, usize)> = vec![];
        for (n, node) in self.nodes.iter().enumerate().filter(|(_, node)| node.alive) {
            let ready = [
                !node.to_worker.is_empty() && !node.stands_still,
                !node.worker_ring.is_empty() && !node.stands_still,
                !node.network_ring.is_empty(),
                !node.worker.reports.is_empty(),
                !node.published.is_empty(),
                node.quiesces && node.is_quiet(),
            ];
            choices.extend(ready.iter().enumerate().filter(|(_, r)| **r).map(|(what, _)| (n, what)));
        }
        choices.extend(self.links.iter().filter(|(_, q)| !q.is_empty()).map(|((from, to), _)| (*to, 10 + from)));
        choices.retain(|(n, _)| self.nodes[*n].alive);
        let Some(i) = self.rng.index(choices.len()) else { return false };
        let (n, what) = choices[i];
        let now = self.now;
        let node = &mut self.nodes[n];
        let handled = node.worker.handled.len();
        match what {
            // The network thread's ring to the worker and the producer's ring are different rings.
            0 => node.worker.command(node.to_worker.pop_front().expect("checked")),
            1 => node.worker.lane(LANE, node.worker_ring.pop_front().expect("checked")),
            2 => node.core.handle_lane(now, LANE, node.network_ring.pop_front().expect("checked")),
            3 => node.core.handle_report(now, 0, node.worker.reports.pop_front().expect("checked")),
            5 => {
                node.quiesces = false;
                node.core.handle_quiet(now);
            }
            4 => drop(node.published.pop_front().map(|(shard, word)| node.words.insert(shard, word))),
            from => {
                let from = from - 10;
                let frame = self.links.get_mut(&(from, n)).and_then(VecDeque::pop_front).expect("checked");
                node.core.handle_frame(now, id(from), frame);
            }
        }
        self.log.extend_from_slice(&self.nodes[n].worker.handled[handled..]);
        self.take_effects(n);
        self.check_one_owner();
        true
    }

    /// E1: at most one live instance of a shard.
    pub fn check_one_owner(&self) {
        let mut owners: BTreeMap<ShardKey, usize> = BTreeMap::new();
        for (n, node) in self.nodes.iter().enumerate().filter(|(_, node)| node.alive) {
            for (key, _) in node.worker.running() {
                if let Some(other) = owners.insert(key, n) {
                    panic!("{key:?} runs on nodes {other} and {n}");
                }
            }
        }
    }

    /// Runs until nothing is under way.
    pub fn drive(&mut self) {
        for _ in 0..200_000 {
            if !self.step() {
                return;
            }
        }
        panic!("no end of it: {}", self.choices());
    }

    fn choices(&self) -> String {
        let links: Vec<_> = self.links.iter().filter(|(_, q)| !q.is_empty()).map(|(k, q)| (k, q.len(), q.front())).collect();
        format!("{links:?}")
    }

    /// Time passes; what is due is done.
    pub fn pass(&mut self, time: Duration) {
        let until = self.now + time;
        loop {
            self.drive();
            let next = self.nodes.iter().filter(|n| n.alive).filter_map(|n| n.core.poll_timeout()).min().filter(|t| *t <= until);
            self.now = self.now.max(next.unwrap_or(until));
            if next.is_none() {
                return;
            }
            self.run_timers();
        }
    }

    pub fn run_timers(&mut self) {
        for n in 0..self.nodes.len() {
            if self.nodes[n].alive && self.nodes[n].core.poll_timeout().is_some_and(|t| t <= self.now) {
                self.nodes[n].core.handle_timeout(self.now);
                self.take_effects(n);
            }
        }
    }

    /// Long enough for every retry.
    pub fn calm(&mut self) {
        self.pass(Duration::from_secs(30));
    }

    pub fn home(&self, key: ShardKey) -> Option<usize> {
        let runs = |node: &Node| node.alive && node.worker.running().any(|(k, _)| k == key);
        self.nodes.iter().position(runs)
    }

    pub fn move_shard(&mut self, at: usize, key: ShardKey, to: usize) -> u64 {
        self.command(at, |cmd| Command::MoveShard { id: cmd, shard: key, to: id(to) })
    }

    /// E3 and E4: per (producer, shard), at all homes together, numbers only grow.
    pub fn check_order(&self) {
        let mut last: BTreeMap<(u8, ShardKey), u32> = BTreeMap::new();
        for message in &self.log {
            let (producer, number) = read(message);
            let before = last.insert((producer, message.shard), number).unwrap_or(0);
            assert!(number > before, "{:?}: {number} of producer {producer} after {before}", message.shard);
        }
    }

    /// The coordinator has heard that it runs where it was given to.
    pub fn check_confirmed(&mut self, key: ShardKey) {
        let cmd = self.command(3, |id| Command::Table { id, ty: None });
        self.pass(Duration::from_secs(2));
        let Some(Answer::Table { rows, .. }) = self.nodes[3].done.get(&cmd) else { panic!("{:?}", self.nodes[3].done.get(&cmd)) };
        let row = rows.iter().find(|row| row.shard == key).expect("it was sent to");
        assert_eq!((row.state, row.from, row.owner), (ShardState::Active, None, self.home(key).map(id)));
    }

    /// Nobody waits for the arrival of a shard, as nothing moves any longer.
    pub fn check_none_moving(&self) {
        for (n, node) in self.nodes.iter().enumerate().filter(|(_, node)| node.alive) {
            assert_eq!(node.core.moving(), 0, "node {n}: {:?}", node.core.moves);
        }
    }

    /// Every message sent was handled once.
    pub fn check_all_handled(&self) {
        let mut handled: BTreeMap<(u8, ShardKey), Vec<u32>> = BTreeMap::new();
        for node in &self.nodes {
            assert!(node.worker.dropped.is_empty(), "{:?}", node.worker.dropped);
            assert!(node.undelivered.is_empty(), "{:?}", node.undelivered);
            assert_eq!(node.worker.waiting(), 0, "{}", node.worker.describe());
            for message in &node.worker.handled {
                let (producer, number) = read(message);
                handled.entry((producer, message.shard)).or_default().push(number);
            }
        }
        for (n, node) in self.nodes.iter().enumerate() {
            for (key, sent) in &node.sent {
                let mut numbers = handled.remove(&(n as u8, *key)).unwrap_or_default();
                numbers.sort();
                assert!(numbers.iter().copied().eq(1..=*sent), "node {n}, {key:?}: sent {sent}, handled {numbers:?}");
            }
        }
    }
}

pub fn read(message: &Envelope) -> (u8, u32) {
    let payload = message.payload();
    (payload[0], u32::from_le_bytes(payload[1..5].try_into().expect("4 bytes")))
}
