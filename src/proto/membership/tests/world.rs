//! Machines in virtual time: latency, loss, cuts, crashes, pauses; links as direct delivery of frames in order.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use super::super::datagram::{self, Part};
use super::super::{Ending, Event, Identity, MemberFrame, MemberOutput, MemberStatus, Membership, Peer, Removal};
use crate::{
    Config, NodeAddr, NodeId, Time,
    config::{Preset, Span},
    proto::{
        lease::{LeaseAnswer, LeaseCall, LeaseTable},
        link::{LinkDown, LinkEvent},
        rng::Rng,
    },
};

/// Intervals of `local_test`.
pub(super) fn fast() -> Config {
    let mut config = Config::default();
    config.cluster.preset = Preset::LocalTest;
    config.membership.gossip_interval = Span::millis(200);
    config.membership.seed_timeout = Span::millis(1000);
    config.membership.join_retry = Span::millis(200);
    config.detector.heartbeat_interval = Span::millis(200);
    config.detector.acceptable_pause = Span::millis(600);
    config.detector.first_interval = Span::millis(200);
    config.detector.min_std_deviation = Span::millis(20);
    config
}

fn is_reply(bytes: &[u8]) -> bool {
    let (_, mut parts) = datagram::read(bytes).unwrap();
    matches!(Part::read(&mut parts), Ok(Some(Part::BeatReply { .. })))
}

pub(super) fn addr(n: usize) -> NodeAddr {
    NodeAddr::new("127.0.0.1", 7300 + n as u16)
}

/// Another name of that node than it advertises.
pub(super) fn name(n: usize) -> NodeAddr {
    NodeAddr::new("node", addr(n).port)
}

/// The name of all nodes in [`World::pods`].
pub(super) fn pods() -> NodeAddr {
    NodeAddr::new("pods", 7300)
}

pub(super) struct Node {
    pub(super) machine: Membership,
    pub(super) id: NodeId,
    pub(super) paused: bool,
    pub(super) events: Vec<(Time, Event)>,
    pub(super) removed: Vec<(NodeId, Removal)>,
    pub(super) ended: Option<(Time, Ending)>,
}

enum Delivery {
    Datagram(Vec<u8>),
    Frame(NodeId, MemberFrame),
    Link(LinkEvent),
    Lease(u64, LeaseAnswer),
    /// The addresses of a name, as they are when they come.
    Resolved(NodeAddr),
}

pub(super) struct World {
    pub(super) now: Time,
    pub(super) nodes: BTreeMap<usize, Node>,
    pub(super) loss: f64,
    pub(super) latency: Duration,
    pub(super) jitter: Duration,
    pub(super) cut: BTreeSet<(usize, usize)>,
    /// They lose every reply to a heartbeat of theirs.
    pub(super) deaf: BTreeSet<usize>,
    /// No datagram gets through.
    pub(super) udp_blocked: bool,
    pub(super) max_datagram_seen: usize,
    /// Frames sent to who goes by a name that no node advertises.
    pub(super) by_name: BTreeMap<NodeAddr, u64>,
    /// Where those are who go by one name.
    pub(super) pods: Vec<NodeAddr>,
    /// Datagrams sent, by who and to whom.
    pub(super) sent: BTreeMap<(usize, usize), u64>,
    pub(super) leases: LeaseTable,
    /// The lease does not answer them.
    pub(super) no_lease: BTreeSet<usize>,
    /// Calls to the lease: when, by whom, what, and what it answered.
    pub(super) lease_calls: Vec<(Time, usize, LeaseCall, Option<LeaseAnswer>)>,
    queue: BTreeMap<(Time, u64), (usize, Delivery)>,
    order: u64,
    /// Sessions between nodes, by the ids that said hello.
    links: BTreeSet<(usize, usize)>,
    last_frame: BTreeMap<(usize, usize), Time>,
    rng: Rng,
    lives: u64,
}

impl World {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            now: Time::from_nanos(1_000_000_000),
            nodes: BTreeMap::new(),
            loss: 0.0,
            latency: Duration::from_micros(200),
            jitter: Duration::from_micros(100),
            cut: BTreeSet::new(),
            deaf: BTreeSet::new(),
            udp_blocked: false,
            max_datagram_seen: 0,
            by_name: BTreeMap::new(),
            pods: vec![],
            sent: BTreeMap::new(),
            leases: LeaseTable::default(),
            no_lease: BTreeSet::new(),
            lease_calls: vec![],
            queue: BTreeMap::new(),
            order: 0,
            links: BTreeSet::new(),
            last_frame: BTreeMap::new(),
            rng: Rng::new(seed),
            lives: 0,
        }
    }

    /// Starts node `n` with the given seeds.
    pub(super) fn start(&mut self, n: usize, mut config: Config, seeds: &[usize]) {
        config.cluster.seeds = seeds.iter().map(|&s| addr(s).to_string()).collect();
        self.start_as(n, config);
    }

    /// Starts node `n` with the seeds that are in its settings.
    pub(super) fn start_as(&mut self, n: usize, config: Config) {
        let incarnation = self.rng.next_u64();
        self.start_life(n, config, incarnation);
    }

    /// Starts node `n` as that life of it.
    pub(super) fn start_life(&mut self, n: usize, config: Config, incarnation: u64) {
        self.lives += 1;
        let me = Identity { addr: addr(n), incarnation };
        let id = me.id();
        let mut machine = Membership::new(Arc::new(config), me, self.rng.next_u64(), self.now);
        machine.start(self.now);
        self.nodes.insert(n, Node { machine, id, paused: false, events: vec![], removed: vec![], ended: None });
        self.drain(n);
    }

    /// The process is gone: links are reset, its port refuses.
    pub(super) fn crash(&mut self, n: usize) {
        self.nodes.remove(&n);
        self.queue.retain(|_, (to, _)| *to != n);
        let peers: Vec<usize> = self.links.iter().filter(|(a, _)| *a == n).map(|&(_, b)| b).collect();
        for peer in peers {
            self.links.remove(&(n, peer));
            self.links.remove(&(peer, n));
            if !self.cut.contains(&(n, peer)) {
                self.link_event(peer, LinkEvent::Down { peer: None, addr: addr(n), cause: LinkDown::Reset, lost: 0 });
            }
        }
    }

    /// Cuts everything between the two groups, both ways; links just fall silent.
    pub(super) fn split(&mut self, one: &[usize], other: &[usize]) {
        for &a in one {
            for &b in other {
                self.cut.extend([(a, b), (b, a)]);
            }
        }
    }

    /// Calls a machine, then carries out what it wants.
    pub(super) fn with<T>(&mut self, n: usize, f: impl FnOnce(&mut Membership, Time) -> T) -> T {
        let now = self.now;
        let result = f(&mut self.nodes.get_mut(&n).unwrap().machine, now);
        self.drain(n);
        result
    }

    /// Runs for so long.
    pub(super) fn run(&mut self, time: Duration) {
        let until = self.now + time;
        while self.step(until) {}
        self.now = until;
    }

    /// Runs until `done` or a limit; the time it took.
    pub(super) fn run_until(&mut self, limit: Duration, what: &str, done: impl Fn(&Self) -> bool) -> Duration {
        let start = self.now;
        while !done(self) {
            assert!(self.now < start + limit, "{what}: not within {limit:?}\n{}", self.describe());
            if !self.step(start + limit) {
                self.now = start + limit;
            }
        }
        self.now.since(start)
    }

    /// One delivery or time-out at or before `until`; false if there is none.
    fn step(&mut self, until: Time) -> bool {
        let delivery = self.queue.iter().find(|(_, (to, _))| self.nodes.get(to).is_some_and(|n| !n.paused)).map(|(&key, _)| key);
        let timer = self.nodes.iter().filter(|(_, n)| !n.paused).filter_map(|(&i, n)| n.machine.poll_timeout().map(|t| (t, i))).min();
        let (at, is_timer) = match (delivery, timer) {
            (Some((d, _)), Some((t, _))) => (d.min(t), t < d),
            (Some((d, _)), None) => (d, false),
            (None, Some((t, _))) => (t, true),
            (None, None) => return false,
        };
        if at > until {
            return false;
        }
        self.now = self.now.max(at);
        if is_timer {
            let n = timer.unwrap().1;
            self.with(n, |m, now| m.handle_timeout(now));
            let due = self.nodes[&n].machine.poll_timeout();
            assert!(due.is_none_or(|t| t > self.now), "the machine of {n} wants to be called again at once");
            return true;
        }
        let (to, delivery) = self.queue.remove(&delivery.unwrap()).unwrap();
        match delivery {
            Delivery::Datagram(bytes) => self.with(to, |m, now| m.handle_datagram(now, &bytes)),
            Delivery::Lease(id, answer) => self.with(to, |m, now| m.handle_lease(now, id, answer)),
            Delivery::Resolved(name) => {
                // Every resolver has an order of its own.
                let mut found = self.pods.clone();
                let first = self.rng.below(found.len() as u64) as usize;
                found.rotate_left(first);
                self.with(to, |m, now| m.handle_resolved(now, &name, found));
            }
            Delivery::Link(event) => self.with(to, |m, now| m.handle_link(now, &event)),
            Delivery::Frame(from, frame) => {
                let from_addr = self.addr_of(from);
                if let Some(from_addr) = from_addr {
                    self.with(to, |m, now| m.handle_frame(now, from, &from_addr, frame));
                }
            }
        }
        true
    }

    fn addr_of(&self, id: NodeId) -> Option<NodeAddr> {
        (0..64).map(addr).find(|a| a.hash64() == id.addr_hash())
    }

    fn drain(&mut self, n: usize) {
        let node = self.nodes.get(&n).unwrap();
        node.machine.check();
        while let Some(output) = self.nodes.get_mut(&n).unwrap().machine.poll_output() {
            match output {
                MemberOutput::Datagram { to, bytes } => {
                    self.max_datagram_seen = self.max_datagram_seen.max(bytes.len());
                    let to = usize::from(to.port) - 7300;
                    *self.sent.entry((n, to)).or_default() += 1;
                    let lost = self.udp_blocked || (self.deaf.contains(&to) && is_reply(&bytes));
                    if !lost && !self.cut.contains(&(n, to)) && self.nodes.contains_key(&to) && !self.rng.chance(self.loss) {
                        self.post(to, Delivery::Datagram(bytes));
                    }
                }
                MemberOutput::Frame { to, frame } => self.send_frame(n, &to, frame),
                MemberOutput::View(_) => {}
                MemberOutput::Resolve(name) => self.look_up(n, name),
                MemberOutput::Lease { id, call } => self.call_lease(n, id, call),
                MemberOutput::Event(event) => {
                    let now = self.now;
                    self.nodes.get_mut(&n).unwrap().events.push((now, event));
                }
                MemberOutput::Removed { node, how } => self.nodes.get_mut(&n).unwrap().removed.push((node, how)),
                MemberOutput::Ended(ending) => {
                    let now = self.now;
                    self.nodes.get_mut(&n).unwrap().ended = Some((now, ending));
                }
            }
        }
    }

    fn call_lease(&mut self, n: usize, id: u64, call: LeaseCall) {
        let answer = match self.no_lease.contains(&n) {
            true => None,
            false => self.leases.call(self.now, &call),
        };
        self.lease_calls.push((self.now, n, call, answer.clone()));
        if let Some(answer) = answer {
            self.post(n, Delivery::Lease(id, answer));
        }
    }

    fn send_frame(&mut self, from: usize, to: &Peer, frame: MemberFrame) {
        let (dialled, meant) = match to {
            Peer::Addr(addr) => (addr.clone(), None),
            Peer::Node(id) => match self.addr_of(*id) {
                Some(addr) => (addr, Some(*id)),
                None => return,
            },
        };
        if dialled == pods() {
            self.look_up(from, dialled.clone());
            // Nobody is dialled before that, and this node not at all.
            let other = self.pods.iter().map(|pod| usize::from(pod.port) - 7300).find(|n| *n != from && self.nodes.contains_key(n));
            return match other {
                Some(other) => self.send_frame(from, &Peer::Addr(addr(other)), frame),
                None => self.link_event(from, LinkEvent::Down { peer: None, addr: dialled, cause: LinkDown::Refused, lost: 1 }),
            };
        }
        let to = usize::from(dialled.port) - 7300;
        if dialled != addr(to) {
            *self.by_name.entry(dialled.clone()).or_default() += 1;
        }
        if from == to {
            return self.link_event(from, LinkEvent::Down { peer: None, addr: dialled, cause: LinkDown::Itself, lost: 1 });
        }
        if self.cut.contains(&(from, to)) {
            return;
        }
        let Some(there) = self.nodes.get(&to) else {
            return self.link_event(from, LinkEvent::Down { peer: None, addr: dialled, cause: LinkDown::Refused, lost: 1 });
        };
        let (there, here) = (there.id, self.nodes[&from].id);
        if let Some(meant) = meant.filter(|&meant| meant != there) {
            let cause = LinkDown::OtherIncarnation(there);
            return self.link_event(from, LinkEvent::Down { peer: Some(meant), addr: addr(to), cause, lost: 1 });
        }
        if self.links.insert((from, to)) {
            self.links.insert((to, from));
            self.link_event(from, LinkEvent::Up { peer: there, addr: addr(to), session: self.lives });
            self.link_event(to, LinkEvent::Up { peer: here, addr: addr(from), session: self.lives });
        }
        // In order: not before the last one of this pair.
        let last = self.last_frame.get(&(from, to)).copied().unwrap_or(Time::ZERO);
        let at = (self.now + self.latency).max(last + Duration::from_nanos(1));
        self.last_frame.insert((from, to), at);
        self.order += 1;
        self.queue.insert((at, self.order), (to, Delivery::Frame(here, frame)));
    }

    fn look_up(&mut self, asker: usize, name: NodeAddr) {
        self.order += 1;
        self.queue.insert((self.now + self.latency / 4, self.order), (asker, Delivery::Resolved(name)));
    }

    fn link_event(&mut self, to: usize, event: LinkEvent) {
        self.order += 1;
        self.queue.insert((self.now + self.latency / 2, self.order), (to, Delivery::Link(event)));
    }

    fn post(&mut self, to: usize, delivery: Delivery) {
        let delay = self.latency + self.jitter.mul_f64(self.rng.unit());
        self.order += 1;
        self.queue.insert((self.now + delay, self.order), (to, delivery));
    }

    /// Ends nodes that said so, as a process would.
    pub(super) fn reap(&mut self) {
        let ended: Vec<usize> = self.nodes.iter().filter(|(_, n)| n.ended.is_some()).map(|(&i, _)| i).collect();
        for n in ended {
            self.crash(n);
        }
    }

    pub(super) fn view(&self, n: usize) -> Vec<(usize, MemberStatus, bool)> {
        self.nodes[&n].machine.view().members.iter().map(|m| (usize::from(m.addr.port) - 7300, m.status, m.reachable)).collect()
    }

    /// A request to take somebody in is on its way to that node.
    pub(super) fn is_asked_to_admit(&self, n: usize) -> bool {
        self.queue.values().any(|(to, what)| *to == n && matches!(what, Delivery::Frame(_, MemberFrame::Join(_))))
    }

    /// Whether each of `nodes` shows exactly `nodes`, all up, reachable, with one leader, converged.
    pub(super) fn one_cluster(&self, nodes: &[usize]) -> bool {
        let expected: Vec<(usize, MemberStatus, bool)> = nodes.iter().map(|&n| (n, MemberStatus::Up, true)).collect();
        nodes.iter().all(|n| {
            self.nodes.get(n).is_some_and(|node| {
                let view = node.machine.view();
                node.ended.is_none() && self.view(*n) == expected && view.converged && view.leader == Some(self.nodes[&nodes[0]].id)
            })
        })
    }

    pub(super) fn all_up(&self, nodes: &[usize]) -> bool {
        let expected: Vec<(usize, MemberStatus, bool)> = nodes.iter().map(|&n| (n, MemberStatus::Up, true)).collect();
        nodes.iter().all(|&n| self.view(n) == expected)
    }

    pub(super) fn ended(&self, n: usize) -> Option<&Ending> {
        self.nodes[&n].ended.as_ref().map(|(_, e)| e)
    }

    pub(super) fn describe(&self) -> String {
        self.nodes
            .iter()
            .map(|(n, node)| {
                let view = node.machine.view();
                format!("{n}: {:?} converged {} ended {:?}\n", self.view(*n), view.converged, node.ended)
            })
            .collect()
    }

    /// Nodes 1..=n, node 1 the first seed, started in the given order with small gaps.
    pub(super) fn cluster(seed: u64, n: usize, config: &Config) -> Self {
        let mut world = Self::new(seed);
        let all: Vec<usize> = (1..=n).collect();
        for &i in &all {
            world.start(i, config.clone(), &all[..3.min(n)]);
        }
        world.run_until(Duration::from_secs(20), "forming", |w| w.one_cluster(&all));
        world
    }
}
