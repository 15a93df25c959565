//! The world: nodes with their cores, the clock, and the loop that takes one event after the other.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt,
    sync::Arc,
};

use foldhash::fast::FixedState;

use super::{
    Options, RunResult, Scenario, ScenarioError,
    checks::{Broken, Findings, Instances, Observed, Terms},
    digest::Digest,
    entity::{Happened, Note, Outgoing, SimHost, SimParcel},
    lanes::{Client, Fifo},
    ledger::{Answered, Ledger},
    links::Link,
    measure::{Measure, Subject, Traffic},
    network::{Fate, Network},
    queue::Queue,
    settings,
};
use crate::{
    Config, NodeAddr, NodeId, ShardKey, Time, TypeId,
    config::OnDowned,
    proto::{
        handoff::{Envelope, ReplyBody, Word},
        link::LinkEvent,
        membership::{Ending, Identity},
        node::{Answer, Command, Effect, NodeCore},
        rng::Rng,
        shard::{LaneId, LaneItem, ShardCommand, ShardCore},
        sharding::{ControlFrame, TypeInfo},
        wire::Frame,
    },
};

/// Virtual nanoseconds at which a run begins on the world's clock.
pub(super) const BEGIN: u64 = 0;
/// A process that ends lets its threads finish for this long.
const EXIT_AFTER: u64 = 50_000_000;
/// Time between a process's end and its new start when it rejoins.
const REJOIN_AFTER: u64 = 500_000_000;
/// What is still under way at the end of a run gets so many more seconds, so that a late message is not taken for a lost one.
const DRAIN_SECONDS: u64 = 60;
/// Steps between two calls of the cores' own checks.
const CHECK_EVERY: u64 = if cfg!(debug_assertions) { 256 } else { 4096 };
/// A core that asks to be woken more often than this at one instant is in a loop.
const WAKES_MAX: u32 = 100_000;

/// Something that will happen.
#[allow(clippy::large_enum_variant)] // Small messages stand in place: a box for each would cost more than the copies.
pub(super) enum Event {
    /// Inside a process; void if that life is over, late if it is paused.
    Inner(u32, Inner),
    Start(u32, Vec<NodeAddr>),
    StartAgain(u32),
    Act(usize),
    Leave(u32),
    Resume(u32),
    Lift(u64),
    Repeat(usize),
    Send(u64),
    Arrive {
        pair: (u32, u32),
        session: u64,
        side: usize,
        frame: Box<Frame>,
    },
    Dialed {
        pair: (u32, u32),
        attempt: u64,
        side: usize,
        back: u64,
    },
    DialEnds {
        pair: (u32, u32),
        attempt: u64,
        side: usize,
        refused: bool,
    },
    Opened {
        pair: (u32, u32),
        session: u64,
        side: usize,
    },
    Break {
        pair: (u32, u32),
        session: u64,
    },
    Stalled {
        pair: (u32, u32),
        session: u64,
    },
    Flush {
        pair: (u32, u32),
        session: u64,
    },
    Redial {
        pair: (u32, u32),
    },
}

/// What happens inside a process.
pub(super) enum Inner {
    Datagram(Box<[u8]>, u32),
    Frame { peer: NodeId, frame: Box<Frame> },
    Link(LinkEvent),
    Wake(u64),
    WorkerWake(u16, u64),
    ToNet(LaneId, LaneItem<Envelope>),
    ToWorker(u16, LaneId, LaneItem<SimParcel>),
    Command(u16, ShardCommand),
    Outgoing(u16, Outgoing),
    Word(u32, ShardKey, Word),
    Hosting(u16, Time),
    Send { sender: u32, entity: u32 },
    AskEnds(u64),
    Exit { rejoin: bool },
}

/// One start of a node.
#[derive(Copy, Clone, Debug)]
pub(super) struct Life {
    pub node: u32,
    pub generation: u32,
    pub id: NodeId,
    pub over: bool,
}

/// A worker thread.
pub(super) struct Worker {
    pub core: ShardCore<SimHost>,
    pub host: SimHost,
    pub wake_at: u64,
    pub to_net: Fifo,
    pub from_net: Fifo,
    pub hosting: Fifo,
}

/// A running process.
pub(super) struct Process {
    pub life: u32,
    pub id: NodeId,
    pub core: NodeCore,
    pub wake_at: u64,
    pub wakes: (u64, u32),
    pub workers: Vec<Worker>,
    pub clients: Vec<Client>,
    pub words: HashMap<ShardKey, Word, FixedState>,
    pub hosting_until: Time,
    pub removed: BTreeSet<NodeId>,
    pub ending: bool,
    pub steps: u64,
}

/// A host with its clock; a process runs on it or not.
pub(super) struct Node {
    pub addr: NodeAddr,
    pub config: Arc<Config>,
    pub process: Option<Box<Process>>,
    /// Number in `World::lives` of the running process.
    pub life: Option<u32>,
    pub starts: u32,
    pub paused: bool,
    pub resumed_at: u64,
    pub late: Vec<Inner>,
    pub told_to_leave: bool,
    pub clock: Clock,
}

/// A node's monotonic clock: another start on each node, and a rate of its own.
#[derive(Copy, Clone, Debug)]
pub(super) struct Clock {
    local: u64,
    world: u64,
    /// Millionths of a local nanosecond per nanosecond.
    rate: u64,
}

impl Clock {
    fn new(start: u64) -> Self {
        Self { local: start, world: BEGIN, rate: 1_000_000 }
    }

    pub(super) fn local(&self, world: u64) -> Time {
        if self.rate == 1_000_000 {
            return Time::from_nanos(self.local + (world - self.world));
        }
        Time::from_nanos(self.local + (u128::from(world - self.world) * u128::from(self.rate) / 1_000_000) as u64)
    }

    /// The first moment of the world at which the clock shows at least `local`.
    fn world(&self, local: Time) -> u64 {
        let rest = local.as_nanos().saturating_sub(self.local);
        if self.rate == 1_000_000 {
            return self.world.saturating_add(rest);
        }
        let nanos = (u128::from(rest) * 1_000_000).div_ceil(u128::from(self.rate));
        self.world.saturating_add(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    pub(super) fn set(&mut self, now: u64, rate: Option<f64>, leap: u64) {
        self.local = self.local(now).as_nanos() + leap;
        self.world = now;
        if let Some(rate) = rate {
            self.rate = (rate * 1e6) as u64;
        }
    }
}

pub(super) struct World<'a> {
    pub scenario: &'a Scenario,
    seed: u64,
    pub queue: Queue<Event>,
    pub now: u64,
    end: u64,
    pub nodes: Vec<Node>,
    pub lives: Vec<Life>,
    pub by_id: BTreeMap<NodeId, u32>,
    pub net: Network,
    pub links: BTreeMap<(u32, u32), Link>,
    pub numbers: u64,
    /// Draws of what goes wrong and how long things take.
    pub faults: Rng,
    /// Seeds of the cores.
    protocol: Rng,
    pub load: Rng,
    pub ledger: Ledger,
    pub measure: Measure,
    pub traffic: Traffic,
    pub instances: Instances,
    observed: BTreeMap<u32, Observed>,
    terms: Terms,
    pub findings: Findings,
    digest: Digest,
    trace: Option<(u64, u64)>,
    events: u64,
    /// Entries of the scenario whose link fault comes again.
    pub repeating: BTreeSet<usize>,
    pub not_sent: u64,
    pub moves: u64,
    moves_refused: u64,
    max_datagram: u64,
    pub ty: TypeId,
}

impl<'a> World<'a> {
    pub(super) fn new(scenario: &'a Scenario, seed: u64, options: &Options) -> Result<Self, ScenarioError> {
        let root = Rng::new(seed);
        let mut clocks = root.split(4);
        let nodes = settings::configs(scenario)?
            .into_iter()
            .zip(0..)
            .map(|(config, i)| Node {
                addr: settings::address(i),
                config,
                process: None,
                life: None,
                starts: 0,
                paused: false,
                resumed_at: 0,
                late: Vec::new(),
                told_to_leave: false,
                clock: Clock::new(1_000_000_000 + clocks.below(1 << 50)),
            })
            .collect();
        let nanos = |d: std::time::Duration| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX);
        let mut world = Self {
            scenario,
            seed,
            queue: Queue::new(),
            now: BEGIN,
            end: nanos(scenario.duration),
            nodes,
            lives: Vec::new(),
            by_id: BTreeMap::new(),
            net: Network::new(&scenario.network),
            links: BTreeMap::new(),
            numbers: 0,
            faults: root.split(1),
            protocol: root.split(2),
            load: root.split(3),
            ledger: Ledger::default(),
            measure: Measure::new(scenario.actions.first().map(|a| nanos(a.at))),
            traffic: Traffic::new(scenario.nodes),
            instances: Instances::default(),
            observed: BTreeMap::new(),
            terms: Terms::default(),
            findings: Findings::default(),
            digest: Digest::new(seed),
            trace: options.trace.map(|(a, b)| (nanos(a), nanos(b))),
            events: 0,
            repeating: BTreeSet::new(),
            not_sent: 0,
            moves: 0,
            moves_refused: 0,
            max_datagram: 0,
            ty: TypeId::of("probe"),
        };
        for i in 0..scenario.started {
            let at = nanos(scenario.start_spread) / u64::from(scenario.started) * u64::from(i);
            world.queue.push(at, Event::Start(i, Vec::new()));
        }
        for (i, a) in scenario.actions.iter().enumerate() {
            world.queue.push(nanos(a.at), Event::Act(i));
        }
        if let Some(w) = &scenario.workload {
            world.queue.push(nanos(w.from), Event::Send(0));
        }
        Ok(world)
    }

    pub(super) fn run(mut self) -> Result<RunResult, ScenarioError> {
        #[allow(clippy::disallowed_methods)]
        let started = std::time::Instant::now();
        self.run_until(self.end);
        let mut result = self.membership_result();
        let end = self.end;
        for second in 1..=DRAIN_SECONDS {
            let (lives, nodes) = (&self.lives, &self.nodes);
            if !self.ledger.is_open(|life| is_gone(lives, nodes, life)) {
                break;
            }
            self.run_until(end + second * 1_000_000_000);
        }
        self.message_result(&mut result);
        result.wall_s = started.elapsed().as_secs_f64();
        Ok(result)
    }

    fn run_until(&mut self, until: u64) {
        while let Some((at, event)) = self.queue.pop(until) {
            self.now = at;
            self.events += 1;
            self.event(event);
            let was_up = self.measure.all_up_since;
            self.measure.settle(at);
            if was_up.is_none() && self.measure.all_up_since.is_some() {
                self.traffic.restart(at);
            }
            self.check_instances();
        }
        self.now = until;
    }

    fn event(&mut self, event: Event) {
        match event {
            Event::Inner(life, inner) => self.inner(life, inner),
            Event::Start(node, seeds) => self.start(node, seeds),
            Event::StartAgain(node) => self.start_again(node),
            Event::Act(i) => self.act(i),
            Event::Leave(node) => self.leave(node),
            Event::Resume(node) => self.resume(node),
            Event::Lift(id) => self.lift(id),
            Event::Repeat(i) => self.repeat_link(i),
            Event::Send(k) => self.tick(k),
            Event::Arrive { pair, session, side, frame } => self.frame_arrives(pair, session, side, frame),
            Event::Dialed { pair, attempt, side, back } => self.dialed(pair, attempt, side, back),
            Event::DialEnds { pair, attempt, side, refused } => self.dial_ends(pair, attempt, side, refused),
            Event::Opened { pair, session, side } => self.opened(pair, session, side),
            Event::Break { pair, session } => self.broken_by_peer(pair, session),
            Event::Stalled { pair, session } => self.stalled(pair, session),
            Event::Flush { pair, session } => self.flush(pair, session),
            Event::Redial { pair } => self.redial(pair),
        }
    }

    /// Everything that happens goes through here: into the digest, and to the reader of a trace.
    pub(super) fn log(&mut self, kind: u64, node: u32, x: u64, what: impl FnOnce() -> String) {
        self.digest.add(self.now);
        self.digest.add(kind << 32 | u64::from(node));
        self.digest.add(x);
        if let Some((from, to)) = self.trace
            && (from..=to).contains(&self.now)
        {
            let (s, ns) = (self.now / 1_000_000_000, self.now % 1_000_000_000);
            eprintln!("{s:>5}.{ns:09}  n{node:<5} {}", self.with_names(what()));
        }
    }

    /// Ids of lives as `n3` or, after restarts, `n3+1`.
    fn with_names(&self, mut text: String) -> String {
        let mut from = 0;
        while let Some(at) = text.as_bytes()[from..].windows(32).position(|w| w.iter().all(u8::is_ascii_hexdigit)).map(|at| at + from) {
            let known = u128::from_str_radix(&text[at..at + 32], 16).ok().and_then(|raw| self.by_id.get(&NodeId::from_raw(raw)));
            from = match known.map(|l| self.lives[*l as usize]) {
                Some(Life { node, generation, .. }) => {
                    let name = if generation > 0 { format!("n{node}+{generation}") } else { format!("n{node}") };
                    text.replace_range(at..at + 32, &name);
                    at + name.len()
                }
                None => at + 32,
            };
        }
        text
    }

    /// Schedules something inside the process that runs on `node` now.
    pub(super) fn inside(&mut self, life: u32, at: u64, inner: Inner) {
        self.queue.push(at, Event::Inner(life, inner));
    }

    pub(super) fn violated(&mut self, broken: Broken) {
        let nodes = broken.lives.iter().map(|l| self.lives[*l as usize].node).collect::<Vec<_>>();
        let (invariant, what) = (broken.invariant, broken.what);
        self.log(99, nodes.first().copied().unwrap_or(0), 0, || format!("VIOLATION {invariant}: {what}"));
        self.findings.add(invariant, self.now, nodes, what);
    }

    // Life and death of processes.

    pub(super) fn start(&mut self, index: u32, seeds: Vec<NodeAddr>) {
        let node = &mut self.nodes[index as usize];
        if node.life.is_some() {
            return;
        }
        let incarnation = self.protocol.next_u64();
        let seed = self.protocol.next_u64();
        let me = Identity { addr: node.addr.clone(), incarnation };
        let id = me.id();
        let life = self.lives.len() as u32;
        self.lives.push(Life { node: index, generation: node.starts, id, over: false });
        self.by_id.insert(id, life);
        node.starts += 1;
        node.life = Some(life);
        node.paused = false;
        node.told_to_leave = false;
        node.late.clear();
        let now = node.clock.local(self.now);
        let config = match seeds.is_empty() {
            true => node.config.clone(),
            false => {
                let mut own = Config::clone(&node.config);
                own.cluster.seeds = seeds.iter().map(ToString::to_string).collect();
                Arc::new(own)
            }
        };
        let workers = settings::workers(&config);
        let worker = |w: u16| Worker {
            core: ShardCore::new(config.clone(), id, w, seed ^ u64::from(w + 1)),
            host: SimHost::default(),
            wake_at: u64::MAX,
            to_net: Fifo::default(),
            from_net: Fifo::default(),
            hosting: Fifo::default(),
        };
        let process = Process {
            life,
            id,
            core: NodeCore::new(config.clone(), me, workers, seed, now),
            wake_at: u64::MAX,
            wakes: (0, 0),
            workers: (0..workers).map(worker).collect(),
            clients: Vec::new(),
            words: HashMap::default(),
            hosting_until: Time::ZERO,
            removed: BTreeSet::new(),
            ending: false,
            steps: 0,
        };
        node.process = Some(Box::new(process));
        self.measure.born(life, id, self.now);
        self.observed.insert(life, Observed::default());
        self.log(1, index, id.incarnation(), || format!("starts as {id}"));
        let info = self.scenario.workload.as_ref().map(|w| TypeInfo { name: "probe".into(), ty: self.ty, shards: w.shards, host: true });
        self.net_step(life, |core, now| {
            core.start(now);
            if let Some(info) = info {
                core.handle_command(now, Command::Register { info });
            }
        });
    }

    /// The process on `node` is gone from one moment to the next, with its memory.
    pub(super) fn kill(&mut self, index: u32) {
        let node = &mut self.nodes[index as usize];
        let Some(life) = node.life.take() else { return };
        node.process = None;
        node.paused = false;
        node.late.clear();
        self.lives[life as usize].over = true;
        self.instances.forget(life);
        self.measure.gone(life);
        self.observed.remove(&life);
        self.links_of_dead(index);
        if self.nodes.iter().all(|n| n.life.is_none()) {
            // Without anybody left nothing remembers a term or an epoch, until records are durable.
            self.terms = Terms::default();
            self.instances.forget_epochs();
        }
    }

    pub(super) fn resume(&mut self, index: u32) {
        let now = self.now;
        let node = &mut self.nodes[index as usize];
        if !node.paused {
            return;
        }
        node.paused = false;
        node.resumed_at = now;
        let Some(life) = node.life else { return };
        for inner in std::mem::take(&mut node.late) {
            self.queue.push(now, Event::Inner(life, inner));
        }
        self.log(2, index, 0, || "runs again".into());
    }

    pub(super) fn is_running(&self, index: u32) -> bool {
        self.nodes[index as usize].life.is_some()
    }

    fn inner(&mut self, life: u32, inner: Inner) {
        let index = self.lives[life as usize].node;
        let node = &mut self.nodes[index as usize];
        if node.life != Some(life) {
            return;
        }
        if node.paused {
            node.late.push(inner);
            return;
        }
        match inner {
            Inner::Datagram(bytes, from) => {
                self.log(10, index, u64::from(from), || format!("datagram from n{from}, {} bytes", bytes.len()));
                self.digest.add_bytes(&bytes);
                self.net_step(life, |core, now| core.handle_datagram(now, &bytes));
            }
            Inner::Frame { peer, frame } => {
                if node.process.as_ref().is_some_and(|p| p.removed.contains(&peer)) {
                    return self.frame_lost(&frame);
                }
                self.log(11, index, peer.incarnation(), || format!("frame from {peer}: {}", Brief(&frame)));
                self.seen(&frame, life);
                self.net_step(life, |core, now| core.handle_frame(now, peer, *frame));
            }
            Inner::Link(event) => {
                self.log(12, index, 0, || format!("link: {event:?}"));
                self.net_step(life, |core, now| core.handle_link(now, event));
            }
            Inner::Wake(at) => {
                let Some(p) = node.process.as_mut().filter(|p| p.wake_at == at) else { return };
                p.wake_at = u64::MAX;
                p.wakes = if p.wakes.0 == at { (at, p.wakes.1 + 1) } else { (at, 1) };
                if p.wakes.1 > WAKES_MAX {
                    p.wake_at = 0;
                    let what = "the node's core asks again and again to be woken at one instant".to_owned();
                    return self.violated(Broken { invariant: "R3", lives: vec![life], what });
                }
                self.log(13, index, 0, || "timer".into());
                self.net_step(life, NodeCore::handle_timeout);
            }
            Inner::WorkerWake(w, at) => {
                let Some(p) = node.process.as_mut().filter(|p| p.workers[usize::from(w)].wake_at == at) else { return };
                p.workers[usize::from(w)].wake_at = u64::MAX;
                self.log(14, index, u64::from(w), || format!("timer of worker {w}"));
                self.worker_step(life, w, ShardCore::handle_timeout);
            }
            Inner::ToNet(lane, item) => {
                self.log(15, index, u64::from(lane.0), || format!("lane {} to net: {}", lane.0, brief_lane(&item)));
                self.net_step(life, |core, now| core.handle_lane(now, lane, item));
            }
            Inner::ToWorker(w, lane, item) => {
                self.log(16, index, u64::from(lane.0) << 16 | u64::from(w), || {
                    format!("lane {} to worker {w}: {}", lane.0, brief_lane(&item))
                });
                self.worker_step(life, w, |core, now, host| core.handle_lane(now, lane, item, host));
            }
            Inner::Command(w, command) => {
                self.log(17, index, u64::from(w), || format!("to worker {w}: {}", brief(&command)));
                self.worker_step(life, w, |core, now, host| core.handle_command(now, command, host));
            }
            Inner::Outgoing(w, Outgoing::Report(report)) => {
                self.log(18, index, u64::from(w), || format!("from worker {w}: {}", brief(&report)));
                self.net_step(life, |core, now| core.handle_report(now, w, report));
            }
            Inner::Outgoing(w, Outgoing::Reply { to, correlation, body }) => {
                self.log(19, index, correlation, || format!("reply of worker {w} to {to}: {correlation}"));
                self.net_step(life, |core, now| core.handle_reply(now, to, correlation, body));
            }
            Inner::Word(client, shard, word) => {
                self.log(20, index, word.bits(), || format!("client {client} sees {shard:?}: {word:?}"));
                if let Some(c) = node_client(&mut self.nodes[index as usize], client) {
                    c.words.insert(shard, word);
                }
            }
            Inner::Hosting(w, until) => {
                self.log(21, index, until.as_nanos(), || format!("worker {w} may run until {until:?}"));
                self.worker_step(life, w, |core, now, host| core.set_hosting_until(now, until, host));
            }
            Inner::Send { sender, entity } => self.client_sends(life, sender, entity),
            Inner::AskEnds(id) => self.ledger.answered(id, Answered::TimedOut),
            Inner::Exit { rejoin } => {
                self.log(22, index, u64::from(rejoin), || "process ends".into());
                self.kill(index);
                if rejoin {
                    self.queue.push(self.now + REJOIN_AFTER, Event::StartAgain(index));
                }
            }
        }
    }

    // Steps of the cores.

    pub(super) fn net_step(&mut self, life: u32, step: impl FnOnce(&mut NodeCore, Time)) {
        let index = self.lives[life as usize].node;
        let node = &mut self.nodes[index as usize];
        let now = node.clock.local(self.now);
        let Some(mut p) = node.process.take() else { return };
        step(&mut p.core, now);
        while let Some(effect) = p.core.poll_effect() {
            self.effect(index, &mut p, effect);
        }
        p.steps += 1;
        if p.steps % CHECK_EVERY == 0 {
            p.core.check();
        }
        let node = &mut self.nodes[index as usize];
        if let Some(at) = p.core.poll_timeout() {
            let at = node.clock.world(at).max(self.now);
            if at < p.wake_at {
                p.wake_at = at;
                self.queue.push(at, Event::Inner(life, Inner::Wake(at)));
            }
        }
        node.process = Some(p);
    }

    /// A clock was set: what the cores wait for comes at another moment of the world.
    pub(super) fn rearm(&mut self, index: u32) {
        let Some(p) = self.nodes[index as usize].process.as_mut() else { return };
        p.wake_at = u64::MAX;
        p.workers.iter_mut().for_each(|w| w.wake_at = u64::MAX);
        let (life, workers) = (p.life, p.workers.len() as u16);
        self.net_step(life, |_, _| ());
        for w in 0..workers {
            self.worker_step(life, w, |_, _, _| ());
        }
    }

    fn effect(&mut self, index: u32, p: &mut Process, effect: Effect) {
        match effect {
            Effect::Datagram { to, bytes } => self.send_datagram(index, &to, bytes),
            Effect::Frame { to, node, frame } => {
                if let Frame::Control(ControlFrame::Assign { term, .. } | ControlFrame::Move { term, .. } | ControlFrame::Recount { term }) =
                    &frame
                    && let Some(broken) = self.terms.acted(*term, p.life)
                {
                    self.violated(broken);
                }
                self.send_frame(index, p.life, &to, node, frame);
            }
            Effect::CloseLink { node, addr } => {
                p.removed.insert(node);
                self.close_link(index, p.life, node, &addr);
            }
            Effect::Worker { worker, command } => {
                if let ShardCommand::Assign { shard, epoch, .. } = &command {
                    self.log(30, index, epoch.get(), || format!("assigned {shard:?} at {}", epoch.get()));
                }
                let at = p.workers[usize::from(worker)].from_net.next(self.now, &mut self.faults);
                self.inside(p.life, at, Inner::Command(worker, command));
            }
            Effect::Publish { shard, word } => {
                self.log(31, index, word.bits(), || format!("publishes {shard:?}: {word:?}"));
                p.words.insert(shard, word);
                for (i, c) in p.clients.iter_mut().enumerate() {
                    let at = c.publishes.next(self.now, &mut self.faults);
                    self.queue.push(at, Event::Inner(p.life, Inner::Word(i as u32, shard, word)));
                }
            }
            Effect::HostingUntil(until) => {
                p.hosting_until = until;
                for (w, worker) in p.workers.iter_mut().enumerate() {
                    let at = worker.hosting.next(self.now, &mut self.faults);
                    self.queue.push(at, Event::Inner(p.life, Inner::Hosting(w as u16, until)));
                }
            }
            Effect::Reply { correlation, body } => {
                self.log(32, index, correlation, || format!("ask {correlation} ends: {}", brief(&body)));
                let answer = if matches!(body, ReplyBody::Dropped(_) | ReplyBody::OwnerLost) { Answered::Dropped } else { Answered::Reply };
                self.ledger.answered(correlation, answer);
                if let ReplyBody::Dropped(reason) = body {
                    self.ledger.dropped(correlation, reason);
                }
            }
            Effect::Undelivered { envelope, reason } => {
                let note = Note::decode(envelope.payload());
                self.log(33, index, note.map_or(0, |n| n.id), || format!("gives up {note:?}: {reason}"));
                if let Some(note) = note {
                    self.ledger.dropped(note.id, reason);
                }
            }
            Effect::View(view) => {
                self.log(34, index, view.version, || format!("view {}: {}", view.version, brief_view(&view)));
                let (lives, by_id) = (&self.lives, &self.by_id);
                let generation = |id: NodeId| by_id.get(&id).map(|l| (lives[*l as usize].node, lives[*l as usize].generation));
                let was = self.measure.view(p.life).cloned();
                let wrong = self.observed.get_mut(&p.life).and_then(|o| o.step(was.as_deref(), &view, generation));
                if let Some((invariant, what)) = wrong {
                    self.violated(Broken { invariant, lives: vec![p.life], what });
                }
                let mut measure = std::mem::take(&mut self.measure);
                measure.saw(p.life, view, self.now, |id| self.subject(id));
                self.measure = measure;
            }
            Effect::Event(event) => self.log(35, index, 0, || format!("event: {}", brief(&event))),
            Effect::TypeReady { ty, result } => {
                if let Err(why) = result {
                    let what = format!("type {:08x} was refused: {why}", ty.0);
                    self.violated(Broken { invariant: "E7", lives: vec![p.life], what });
                }
            }
            Effect::Done { id, answer } => {
                self.log(36, index, id, || format!("command {id}: {}", brief(&answer)));
                if id > 0 && matches!(answer, Answer::Refused(_) | Answer::NoAuthority | Answer::NoMember(_)) {
                    self.moves_refused += 1;
                }
            }
            Effect::Ended(how) => {
                self.log(37, index, 0, || format!("membership is over: {how:?}"));
                if p.ending {
                    return;
                }
                p.ending = true;
                let rejoin = matches!(how, Ending::Downed(_)) && self.nodes[index as usize].config.membership.on_downed == OnDowned::Rejoin;
                self.measure.not_live(p.life);
                // As the engine's shutdown: workers stop what they run, then the process ends.
                for w in 0..p.workers.len() {
                    let at = p.workers[w].from_net.next(self.now, &mut self.faults);
                    self.inside(p.life, at, Inner::Command(w as u16, ShardCommand::Stop));
                }
                self.inside(p.life, self.now + EXIT_AFTER, Inner::Exit { rejoin });
            }
        }
    }

    fn worker_step(&mut self, life: u32, w: u16, step: impl FnOnce(&mut ShardCore<SimHost>, Time, &mut SimHost)) {
        let index = self.lives[life as usize].node;
        let node = &mut self.nodes[index as usize];
        let now = node.clock.local(self.now);
        let clock = node.clock;
        let Some(p) = node.process.as_mut() else { return };
        p.steps += 1;
        let check = p.steps % CHECK_EVERY == 0;
        let worker = &mut p.workers[usize::from(w)];
        step(&mut worker.core, now, &mut worker.host);
        if check {
            worker.core.check();
        }
        if let Some(at) = worker.core.poll_timeout() {
            let at = clock.world(at).max(self.now);
            if at < worker.wake_at {
                worker.wake_at = at;
                self.queue.push(at, Event::Inner(life, Inner::WorkerWake(w, at)));
            }
        }
        for outgoing in worker.host.outgoing.drain(..) {
            let at = worker.to_net.next(self.now, &mut self.faults);
            self.queue.push(at, Event::Inner(life, Inner::Outgoing(w, outgoing)));
        }
        if !worker.host.happened.is_empty() {
            let mut happened = std::mem::take(&mut worker.host.happened);
            for h in happened.drain(..) {
                self.happened(life, index, h);
            }
            if let Some(p) = self.nodes[index as usize].process.as_mut() {
                p.workers[usize::from(w)].host.happened = happened;
            }
        }
    }

    fn happened(&mut self, life: u32, index: u32, h: Happened) {
        let broken = match h {
            Happened::Started { entity, at, state } => {
                self.log(40, index, u64::from(entity), || format!("entity {entity} starts in {:?} at {}", at.shard, at.epoch.get()));
                self.instances.started(entity, life, state)
            }
            Happened::Stopped { entity, why } => {
                self.log(41, index, u64::from(entity), || format!("entity {entity} stops: {why}"));
                self.instances.stopped(entity, life)
            }
            Happened::HandedOver { entity, state } => {
                self.log(42, index, state, || format!("entity {entity} is handed over"));
                self.instances.handed_over(entity, state);
                None
            }
            Happened::Handled { note, entity, epoch, .. } => {
                self.log(43, index, note.id, || format!("entity {entity} handles {note:?} at {}", epoch.get()));
                self.ledger.seen_at(note.id, life);
                let order = self.ledger.delivered(note, entity).err().map(|wrong| Broken {
                    invariant: if wrong == super::ledger::Wrong::Duplicate { "E4" } else { "E3" },
                    lives: vec![life],
                    what: format!("entity {entity}, sender {}, number {} (message {}): {wrong:?}", note.sender, note.seq, note.id),
                });
                if let Some(broken) = order {
                    self.violated(broken);
                }
                self.instances.turn(entity, life, epoch)
            }
            Happened::Undelivered { note, reason } => {
                self.log(44, index, note.map_or(0, |n| n.id), || format!("worker gives up {note:?}: {reason}"));
                if let Some(note) = note {
                    self.ledger.dropped(note.id, reason);
                }
                None
            }
            Happened::Running { shard, yes } => {
                self.log(45, index, u64::from(shard.shard.0), || format!("{shard:?} {}", if yes { "runs" } else { "ended" }));
                self.instances.shard(shard, life, yes);
                None
            }
            Happened::Wrong(what) => Some(Broken { invariant: "E6", lives: vec![life], what }),
        };
        if let Some(broken) = broken {
            self.violated(broken);
        }
    }

    fn check_instances(&mut self) {
        let (lives, nodes, now) = (&self.lives, &self.nodes, self.now);
        let live = |life: u32| {
            let l = lives[life as usize];
            let node = &nodes[l.node as usize];
            !l.over && !node.paused && node.process.as_ref().is_some_and(|p| p.life == life && node.clock.local(now) < p.hosting_until)
        };
        let found = self.instances.check(now, live);
        for broken in found {
            self.violated(broken);
        }
    }

    fn send_datagram(&mut self, from: u32, to: &NodeAddr, bytes: Vec<u8>) {
        let size = bytes.len() as u64;
        self.max_datagram = self.max_datagram.max(size);
        self.traffic.sent(from, size, self.now, self.measure.ever_all_up);
        let Some(to) = settings::index_of(to).filter(|i| *i < self.scenario.nodes) else {
            return self.log(50, from, 0, || format!("datagram to {to}, which is nowhere"));
        };
        let fate = self.net.datagram(from, to, &mut self.faults);
        self.log(51, from, u64::from(to), || format!("datagram to n{to}, {size} bytes: {fate:?}"));
        let Fate::Arrives(delay, twice) = fate else { return };
        // A datagram goes to whoever has the port when it arrives; the life is looked up now, as starts are rare beside datagrams.
        let Some(life) = self.nodes[to as usize].life else { return };
        let bytes = bytes.into_boxed_slice();
        if let Some(second) = twice {
            self.inside(life, self.now + second, Inner::Datagram(bytes.clone(), from));
        }
        self.inside(life, self.now + delay, Inner::Datagram(bytes, from));
    }

    fn subject(&self, id: NodeId) -> Option<Subject> {
        let life = *self.by_id.get(&id)?;
        let l = self.lives[life as usize];
        let node = &self.nodes[l.node as usize];
        let live = self.measure_live(life);
        let running = !l.over;
        let settled = !node.paused && (node.resumed_at == 0 || self.now.saturating_sub(node.resumed_at) > 5_000_000_000);
        let replaced = node.starts > l.generation + 1;
        Some(Subject {
            life,
            live,
            in_majority: live && !node.paused && self.reaches_majority(l.node),
            blameless: running && settled && !node.told_to_leave && !self.net.was_touched(l.node),
            expected_to_go: node.told_to_leave || replaced,
        })
    }

    /// Live in the sense of the contract, for a life whose measurements are being taken.
    fn measure_live(&self, life: u32) -> bool {
        let l = self.lives[life as usize];
        let node = &self.nodes[l.node as usize];
        !l.over && node.life == Some(life) && !node.told_to_leave
    }

    fn reaches_majority(&self, index: u32) -> bool {
        let running: Vec<u32> = (0..self.scenario.nodes).filter(|i| self.is_running(*i)).collect();
        let reached = running
            .iter()
            .filter(|i| !self.nodes[**i as usize].paused && (**i == index || !self.net.cut(index, **i) && !self.net.cut(**i, index)))
            .count();
        reached * 2 > running.len()
    }

    /// What the membership came to at the end of the run.
    fn membership_result(&mut self) -> RunResult {
        let [detect, known, removal] = self.measure.crash_times();
        let (survivor_groups, survivors) = self.measure.survivors();
        let (view_changes_max, flips_max) = self.measure.maxima();
        let (bytes_per_node_per_s, peak) = self.traffic.rates(self.end);
        let seconds = |t: u64| t as f64 / 1e9;
        RunResult {
            scenario: self.scenario.name.clone(),
            seed: self.seed,
            nodes: self.scenario.nodes,
            virtual_s: seconds(self.end),
            converged_at_s: self.measure.converged_since.map(seconds),
            all_up_at_s: self.measure.all_up_since.map(seconds),
            members_up: self.measure.members_up(),
            sizes_seen: self.measure.sizes.len() as u64,
            detect_s: detect.0,
            known_s: known.0,
            removal_s: removal.0,
            undetected: detect.1,
            unknown: known.1,
            unremoved: removal.1,
            view_changes_max,
            false_unreachable: self.measure.false_unreachable,
            false_removals: self.measure.false_removals,
            removed: self.measure.removed(),
            flips_max,
            survivor_groups,
            survivors,
            bytes_per_node_per_s,
            peak_bytes_per_node_per_s: peak,
            ..RunResult::default()
        }
    }

    /// What became of the messages and what was violated; then the expectations.
    fn message_result(mut self, r: &mut RunResult) {
        let (lives, nodes) = (&self.lives, &self.nodes);
        let sums = self.ledger.sums(|life| is_gone(lives, nodes, life));
        for (sender, entity, seq, life) in &sums.examples {
            let node = self.lives[*life as usize].node;
            let what =
                format!("message {seq} of sender {sender} to entity {entity} was neither delivered nor reported; last seen at node {node}");
            self.findings.add("E8", self.now, vec![node], what);
        }
        r.events = self.events;
        r.max_datagram_bytes = self.max_datagram;
        r.dual_active_s = self.instances.dual_max() as f64 / 1e9;
        r.sent = sums.sent;
        r.delivered = sums.delivered;
        r.dropped = sums.dropped;
        r.lost = sums.lost;
        r.reordered = sums.reordered;
        r.duplicated = sums.duplicated;
        r.undelivered = sums.undelivered;
        r.replies = sums.replies;
        r.timeouts = sums.timeouts;
        r.not_sent = self.not_sent;
        r.moves = self.moves;
        r.moves_refused = self.moves_refused;
        r.violations = self.findings.list;
        r.violations_more = self.findings.more;
        r.digest = format!("{:016x}", self.digest.value());
        for (name, why) in self.scenario.expect.judge(r) {
            r.failed.push(name.to_owned());
            r.failed_why.push(why);
        }
    }
}

/// Whether what that life holds will never be seen again: its process is gone, or stays paused to the end.
fn is_gone(lives: &[Life], nodes: &[Node], life: u32) -> bool {
    let l = lives[life as usize];
    l.over || nodes[l.node as usize].paused
}

fn node_client(node: &mut Node, client: u32) -> Option<&mut Client> {
    node.process.as_mut()?.clients.get_mut(client as usize)
}

/// A short text of something long.
fn brief(x: &impl fmt::Debug) -> String {
    let mut text = format!("{x:?}");
    if text.len() > 240 {
        let cut = (0..=240).rev().find(|i| text.is_char_boundary(*i)).unwrap_or(0);
        text.truncate(cut);
        text.push_str("..");
    }
    text
}

fn brief_lane<P: fmt::Debug>(item: &LaneItem<P>) -> String {
    brief(item)
}

fn brief_view(view: &crate::proto::membership::ClusterView) -> String {
    view.members.iter().map(|m| format!("{}{}{} ", m.addr.host, if m.reachable { ":" } else { "!" }, m.status.name())).collect()
}

struct Brief<'a>(&'a Frame);

impl fmt::Display for Brief<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&brief(self.0))
    }
}
