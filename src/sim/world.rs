//! The world: nodes with their cores, the clock, and the loop that takes one event after the other.

use std::{collections::BTreeMap, io::Write, sync::Arc};

use super::{
    Options, RunResult, Scenario, ScenarioError, Shadow,
    checks::{Broken, Findings, Instances, Observed, Terms},
    clock::Clock,
    digest::Digest,
    entity::{Outgoing, SimParcel},
    ledger::Ledger,
    links::Link,
    measure::{Measure, Traffic},
    network::Network,
    outcome::is_gone,
    pool::pool,
    process::{Life, Node},
    queue::Queue,
    result::Helped,
    settings,
    undone::Undones,
};
use crate::{
    Config, NodeAddr, NodeId, ShardKey, Time, TypeId,
    proto::{
        handoff::{Envelope, Word},
        lease::{LeaseAnswer, LeaseTable},
        link::LinkEvent,
        membership::Pool,
        node::Command,
        rng::Rng,
        shard::{LaneId, LaneItem, ShardCommand},
        wire::Frame,
    },
};

/// Virtual nanoseconds at which a run begins on the world's clock.
pub(super) const BEGIN: u64 = 0;
/// What is still under way at the end of a run gets so many more seconds, so that a late message is not taken for a lost one: by default it waits for
/// a minute for a home, as long for a link with that, and as long there for the home to learn that it is one.
const DRAIN_SECONDS: u64 = 240;

/// Something that will happen.
#[allow(clippy::large_enum_variant)] // Small messages stand in place: a box for each would cost more than the copies.
pub(super) enum Event {
    /// Inside a process; void if that life is over, late if it is paused.
    Inner(u32, Inner),
    Start(u32),
    Rejoin(u32, Arc<Config>),
    Act(usize),
    Join(u32, Vec<NodeAddr>, usize),
    Leave(u32, usize),
    Resume(u32),
    Hears(u32),
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
        side: usize,
    },
}

/// What happens inside a process.
pub(super) enum Inner {
    /// As it was written: to give back the room behind it would cost more than the room.
    Datagram(Vec<u8>, u32),
    Frame {
        peer: NodeId,
        frame: Box<Frame>,
    },
    Link(LinkEvent),
    Wake(u64),
    WorkerWake(u16, u64),
    ToNet(LaneId, LaneItem<Envelope>),
    ToWorker(u16, LaneId, LaneItem<SimParcel>),
    Command(u16, ShardCommand),
    Outgoing(u16, Outgoing),
    Word(u32, ShardKey, Word),
    Hosting(u16, Time),
    Returns(u16),
    /// What clients had sent has come through the lanes.
    Quiet,
    Send {
        sender: u32,
        entity: u32,
    },
    AskEnds(u64),
    /// By an operator.
    Told(Command),
    Lease(u64, LeaseAnswer),
    /// With the settings of the next life, if there is one. A worker that stands still is waited for until then.
    Exit {
        next: Option<Arc<Config>>,
        patience: u64,
    },
}

pub(super) struct World<'a> {
    pub scenario: &'a Scenario,
    pub seed: u64,
    pub queue: Queue<Event>,
    pub now: u64,
    pub end: u64,
    pub nodes: Vec<Node>,
    pub lives: Vec<Life>,
    pub by_id: BTreeMap<NodeId, u32>,
    pub net: Network,
    pub links: BTreeMap<(u32, u32), Link>,
    pub numbers: u64,
    /// Draws of what goes wrong and how long things take.
    pub faults: Rng,
    /// Seeds of the cores.
    pub protocol: Rng,
    pub load: Rng,
    pub ledger: Ledger,
    pub measure: Measure,
    pub traffic: Traffic,
    pub instances: Instances,
    pub observed: BTreeMap<u32, Observed>,
    pub terms: Terms,
    pub findings: Findings,
    pub digest: Digest,
    pub trace: Option<(u64, u64)>,
    /// Virtual time between two lines of progress, and when the next one is due.
    pub progress: Option<(u64, u64)>,
    /// See [`Options`].
    pub large_frames: bool,
    pub shadows: Vec<&'a mut dyn Shadow>,
    pub events: u64,
    /// Entries of the scenario whose link fault comes again.
    pub repeating: BTreeMap<usize, (Vec<u32>, Vec<u32>)>,
    pub not_sent: u64,
    pub moves: u64,
    pub moves_refused: u64,
    pub undones: Undones,
    pub helped: Vec<Helped>,
    pub max_datagram: u64,
    pub ty: TypeId,
    pub pool: Pool,
    pub leases: LeaseTable,
}

impl<'a> World<'a> {
    pub(super) fn new(
        scenario: &'a Scenario,
        seed: u64,
        options: &Options,
        shadows: Vec<&'a mut dyn Shadow>,
    ) -> Result<Self, ScenarioError> {
        let root = Rng::new(seed);
        let mut clocks = root.split(4);
        let nodes = settings::configs(scenario, &mut root.split(5))?
            .into_iter()
            .zip(0..)
            .map(|(config, i)| Node {
                addr: settings::address(i),
                config,
                process: None,
                life: None,
                starts: 0,
                paused: false,
                pause_ends: 0,
                resumed_at: 0,
                written_off: false,
                late: Vec::new(),
                told_to_leave: false,
                downed: None,
                deaf_until: 0,
                clock: Clock::new(1_000_000_000 + clocks.below(1 << 50)),
            })
            .collect();
        let nanos = |d: std::time::Duration| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX);
        let start_at = |i: u32| nanos(scenario.start_spread) / u64::from(scenario.started.max(1)) * u64::from(i);
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
            measure: Measure::new(scenario.actions.first().map(|a| nanos(a.at)), scenario.started),
            traffic: Traffic::new(scenario.nodes),
            instances: Instances::default(),
            observed: BTreeMap::new(),
            terms: Terms::default(),
            findings: Findings::default(),
            digest: Digest::new(seed),
            trace: options.trace.map(|(a, b)| (nanos(a), nanos(b))),
            large_frames: options.large_frames,
            shadows,
            progress: options.progress.map(|every| (nanos(every).max(1), nanos(every))),
            events: 0,
            repeating: BTreeMap::new(),
            not_sent: 0,
            moves: 0,
            moves_refused: 0,
            undones: Undones::default(),
            helped: Vec::new(),
            max_datagram: 0,
            ty: TypeId::of("probe"),
            pool: pool(),
            leases: LeaseTable::default(),
        };
        for i in 0..scenario.started {
            world.queue.push(start_at(i), Event::Start(i));
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
        while let Some((every, due)) = self.progress.filter(|(_, due)| *due < self.end) {
            self.run_until(due);
            self.progress = Some((every, due + every));
            let (wall, virt) = (started.elapsed().as_secs_f64(), due as f64 / 1e9);
            let (events, running) = (self.events, self.lives.iter().filter(|l| !l.over).count());
            // Nobody need read it.
            let _ =
                writeln!(std::io::stderr(), "{virt} s of {} s, {events} events in {wall:.1} s, {running} nodes run", self.end as f64 / 1e9);
        }
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
            let (was_up, ever) = (self.measure.all_up_since, self.measure.ever_all_up);
            self.measure.settle(at);
            if was_up.is_none() && self.measure.all_up_since.is_some() {
                self.traffic.restart(at, !ever);
            }
            self.check_instances();
        }
        self.now = until;
    }

    fn event(&mut self, event: Event) {
        match event {
            Event::Inner(life, inner) => self.inner(life, inner),
            Event::Start(node) => {
                self.start_beside(node, None);
                self.measure.started();
            }
            Event::Rejoin(node, config) => self.start(node, config),
            Event::Act(i) => self.act(i),
            Event::Join(node, seeds, action) => self.join(node, seeds, action),
            Event::Leave(node, action) => self.leave(node, action),
            Event::Resume(node) => self.pause_ends(node),
            Event::Hears(node) => self.hears(node),
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
            Event::Redial { pair, side } => self.redial(pair, side),
        }
    }

    /// Schedules something inside the process that runs on `node` now.
    pub(super) fn inside(&mut self, life: u32, at: u64, inner: Inner) {
        self.queue.push(at, Event::Inner(life, inner));
    }

    /// Who follows that node.
    pub(super) fn shadows_of(&mut self, node: u32) -> impl Iterator<Item = &mut &'a mut dyn Shadow> {
        self.shadows.iter_mut().filter(move |shadow| shadow.node() == node)
    }

    pub(super) fn violated(&mut self, broken: Broken) {
        let nodes = broken.lives.iter().map(|l| self.lives[*l as usize].node).collect::<Vec<_>>();
        let (invariant, what) = (broken.invariant, broken.what);
        self.log(99, nodes.first().copied().unwrap_or(0), 0, || format!("VIOLATION {invariant}: {what}"));
        self.findings.add(invariant, self.now, nodes, what);
    }
}
