//! Takes the turns of all nodes of a world, on one thread and in virtual time.
//!
//! A round: everything that has something to do takes one turn, in an order that the seed decides. Then the clock moves by what a turn
//! costs, or, if nobody had anything to do, to the next moment at which somebody has.

use std::{cell::RefCell, rc::Rc, sync::Arc, time::Duration};

use crossbeam::channel::Receiver;

use super::{
    carrier::SimCarrier,
    story::{Story, readable},
    time::{Driver, Ticker},
    wires::{LifeNo, Paths, Wires},
};
use crate::{
    Cluster, Config, DeadLetter, Event, NodeAddr, NodeId, Time,
    api::{Awaits, End, Reaper},
    engine::{
        self,
        exits::{Lanes, on_behalf},
        helper,
        moment::Moment,
        network::Network,
        node::{self, Job, Node, ToNet},
        panics,
        worker::{Step, Worker},
    },
    metrics::Metrics,
    proto::{membership::Identity, rng::Rng},
};

/// What a round of turns takes. More than nothing, so that entities that never rest do not stop the clock.
const ROUND: Duration = Duration::from_micros(10);

/// All nodes of a world.
pub(super) struct Sim {
    pub time: Arc<Ticker>,
    pub wires: Rc<RefCell<Wires>>,
    pub story: Rc<RefCell<Story>>,
    addrs: Vec<NodeAddr>,
    machine: RefCell<Machine>,
}

struct Machine {
    seats: Vec<Option<Seat>>,
    /// Who is called what in the story.
    names: Vec<(NodeId, usize)>,
    /// Order of turns.
    order: Rng,
    /// Incarnations, and seeds of cores.
    lives: Rng,
}

/// One running node.
struct Seat {
    life: LifeNo,
    node: Arc<Node>,
    network: Network<SimCarrier>,
    workers: Vec<(Option<Worker>, Lanes)>,
    jobs: Receiver<Job>,
    /// Lanes of the thread that would run the jobs, and whether it is in one: one of them waits.
    helper: Lanes,
    calls: bool,
    end: End,
    /// What the node had come to when its threads were told to end.
    ending: Option<node::Life>,
    paused_until: Time,
    events: Receiver<Event>,
    letters: Receiver<DeadLetter>,
}

/// Whose turn it is.
#[derive(Copy, Clone)]
enum Turn {
    Network(usize),
    Worker(usize, usize),
}

impl Seat {
    fn due(&self) -> Option<Time> {
        let workers = self.workers.iter().filter_map(|(worker, _)| worker.as_ref()?.due());
        workers.chain(self.network.due()).min()
    }

    fn network_is_ready(&self, now: Time) -> bool {
        !self.network.is_quiet() || self.network.due().is_some_and(|due| due <= now)
    }

    fn worker_is_ready(&self, index: usize, now: Time) -> bool {
        self.workers[index].0.as_ref().is_some_and(|worker| !worker.is_quiet() || worker.due().is_some_and(|due| due <= now))
    }

    fn work(&mut self, index: usize, now: Time) {
        let (slot, lanes) = &mut self.workers[index];
        let Some(worker) = slot else { return };
        crate::api::mark_engine_thread(true);
        panics::watch_this_thread();
        let step = on_behalf(lanes, || worker.turn(Moment::at(now)));
        if step == Step::Quit
            && let Some(worker) = slot.take()
        {
            on_behalf(lanes, || worker.end());
        }
        crate::api::mark_engine_thread(false);
    }
}

/// A callback, and where it runs.
struct Callback {
    seat: usize,
    life: LifeNo,
    job: Job,
    lanes: Lanes,
    metrics: Arc<Metrics>,
}

impl Sim {
    pub fn new(addrs: Vec<NodeAddr>, config: &Config, paths: Paths, seed: u64) -> Rc<Self> {
        let root = Rng::new(seed);
        let (time, story) = (Ticker::new(), Rc::new(RefCell::new(Story::default())));
        let wires = Wires::new(addrs.clone(), paths, config, root.split(1), time.now(), story.clone());
        let seats = addrs.iter().map(|_| None).collect();
        let machine = Machine { seats, names: vec![], order: root.split(2), lives: root.split(3) };
        let sim = Rc::new(Self { time, wires: Rc::new(RefCell::new(wires)), story, addrs, machine: RefCell::new(machine) });
        sim.time.driven_by(&sim);
        sim
    }

    /// Adds a line to the story.
    pub fn tell(&self, line: String) {
        self.story.borrow_mut().tell(self.time.elapsed(), line);
    }

    /// Starts a node, under a new incarnation.
    pub fn start(&self, index: usize, config: Arc<Config>) -> Cluster {
        let mut machine = self.machine.borrow_mut();
        let me = Identity { addr: self.addrs[index].clone(), incarnation: machine.lives.next_u64() };
        let (id, seed) = (me.id(), machine.lives.next_u64());
        let life = self.wires.borrow_mut().born(index, id);
        let carrier = SimCarrier { wires: self.wires.clone(), life };
        let stepped = engine::stepped(config, me, carrier, seed, self.time.clock());
        self.wires.borrow_mut().named_by(life, Arc::downgrade(&stepped.node));
        let reaper = Reaper::new(stepped.node.clone());
        let seat = Seat {
            life,
            network: stepped.network,
            workers: stepped.workers.into_iter().map(|worker| (Some(worker), Lanes::default())).collect(),
            jobs: stepped.jobs,
            helper: Lanes::default(),
            calls: false,
            end: reaper.end(),
            ending: None,
            paused_until: Time::ZERO,
            events: stepped.node.events(),
            letters: stepped.node.dead_letters(),
            node: stepped.node.clone(),
        };
        machine.names.push((id, index));
        machine.seats[index] = Some(seat);
        drop(machine);
        self.tell(format!("n{index} starts"));
        Cluster::of(stepped.node, reaper)
    }

    /// Ends a node as if its process had been killed.
    pub fn kill(&self, index: usize) {
        let Some(seat) = self.machine.borrow_mut().seats[index].take() else { return };
        self.tell(format!("n{index} is killed"));
        self.vacate(seat, |_| {});
    }

    /// A node is gone: nobody may wait for it. `last` is what it does once its asks have ended.
    fn vacate(&self, mut seat: Seat, last: impl FnOnce(&mut Seat)) {
        self.wires.borrow_mut().died(seat.life);
        seat.node.begin_closing();
        seat.node.end_asks();
        last(&mut seat);
        let life = seat.ending.clone().unwrap_or_else(|| seat.node.life());
        seat.end.finish(self.time.now(), life);
    }

    /// Lets a node stand still for so long.
    pub fn pause(&self, index: usize, d: Duration) {
        let mut machine = self.machine.borrow_mut();
        let Some(seat) = &mut machine.seats[index] else { return };
        seat.paused_until = seat.paused_until.max(self.time.now() + d);
        self.wires.borrow_mut().set_paused(index, true);
        drop(machine);
        self.tell(format!("n{index} stands still for {d:?}"));
    }

    /// The node with this id, in whatever life.
    pub fn index_of(&self, id: NodeId) -> Option<usize> {
        self.machine.borrow().names.iter().find(|(known, _)| *known == id).map(|(_, index)| *index)
    }

    /// Runs one job of a helper thread, if there is one.
    fn call_back(&self) -> bool {
        let callback = self.machine.borrow_mut().next_callback(self.time.now());
        let Some(Callback { seat, life, job, mut lanes, metrics }) = callback else { return false };
        // A callback may wait, and so pass time: nothing is borrowed here. Others of its thread come behind it.
        on_behalf(&mut lanes, || helper::run_one(job, &metrics));
        if let Some(seat) = self.machine.borrow_mut().seats[seat].as_mut().filter(|seat| seat.life == life) {
            (seat.helper, seat.calls) = (lanes, false);
        }
        true
    }

    /// A turn for everybody. False if nobody had anything to do.
    fn round(&self) -> bool {
        let now = self.time.now();
        let mut machine = self.machine.borrow_mut();
        let mut worked = self.wires.borrow_mut().advance(now);
        worked |= machine.turns(now);
        let gone = self.look(&mut machine, now, &mut worked);
        drop(machine);
        // The helper thread of one that ends in order has told everybody by then.
        let calls_back = |seat: &mut Seat| {
            let Seat { jobs, helper, node, .. } = seat;
            jobs.try_iter().for_each(|job| on_behalf(helper, || helper::run_one(job, &node.metrics)));
        };
        gone.into_iter().for_each(|seat| self.vacate(seat, calls_back));
        worked
    }

    /// What nodes say of themselves, and the way of those that end. Returns those that have ended.
    fn look(&self, machine: &mut Machine, now: Time, worked: &mut bool) -> Vec<Seat> {
        let mut gone = vec![];
        let Machine { seats, names, .. } = machine;
        for (index, place) in seats.iter_mut().enumerate() {
            let Some(seat) = place else { continue };
            if seat.paused_until > now {
                continue;
            }
            if seat.paused_until > Time::ZERO {
                seat.paused_until = Time::ZERO;
                self.wires.borrow_mut().set_paused(index, false);
                self.tell(format!("n{index} goes on"));
            }
            for event in seat.events.try_iter() {
                if let Some(what) = told(&event, names) {
                    self.tell(format!("n{index} sees {what}"));
                }
            }
            for letter in seat.letters.try_iter() {
                self.tell(format!("n{index} gives up a message for {} {}: {}", letter.entity_type, readable(&letter.key), letter.reason));
            }
            if seat.ending.is_none() && seat.end.step(now) == Awaits::Threads {
                seat.ending = Some(seat.node.life());
                seat.node.network.post(ToNet::Quit);
                *worked = true;
                self.tell(format!("n{index} ends"));
            }
            if seat.ending.is_some()
                && seat.network.is_done(now)
                && let Some(seat) = place.take()
            {
                gone.push(seat);
            }
        }
        gone
    }
}

impl Machine {
    fn next_callback(&mut self, now: Time) -> Option<Callback> {
        let awake = self.seats.iter_mut().enumerate().filter_map(|(i, seat)| Some((i, seat.as_mut().filter(|s| s.paused_until <= now)?)));
        awake.into_iter().filter(|(_, seat)| !seat.calls).find_map(|(index, seat)| {
            let job = seat.jobs.try_recv().ok()?;
            let (lanes, metrics) = (std::mem::take(&mut seat.helper), seat.node.metrics.clone());
            seat.calls = true;
            Some(Callback { seat: index, life: seat.life, job, lanes, metrics })
        })
    }

    /// One turn for everybody who has something to do. True if somebody had.
    fn turns(&mut self, now: Time) -> bool {
        let mut ready = vec![];
        for (index, seat) in self.seats.iter().enumerate() {
            let Some(seat) = seat.as_ref().filter(|seat| seat.paused_until <= now) else { continue };
            if seat.network_is_ready(now) {
                ready.push(Turn::Network(index));
            }
            ready.extend((0..seat.workers.len()).filter(|w| seat.worker_is_ready(*w, now)).map(|w| Turn::Worker(index, w)));
        }
        let any = !ready.is_empty();
        while !ready.is_empty() {
            let turn = ready.swap_remove(self.order.below(ready.len() as u64) as usize);
            match turn {
                Turn::Network(index) => {
                    crate::api::mark_engine_thread(true);
                    if let Some(seat) = self.seats[index].as_mut() {
                        seat.network.turn(now);
                    }
                    crate::api::mark_engine_thread(false);
                }
                Turn::Worker(index, worker) => drop(self.seats[index].as_mut().map(|seat| seat.work(worker, now))),
            }
        }
        any
    }

    /// When somebody has something to do.
    fn due(&self, now: Time) -> Option<Time> {
        let seats = self.seats.iter().flatten();
        seats.filter_map(|seat| if seat.paused_until > now { Some(seat.paused_until) } else { seat.due() }).min()
    }
}

impl Driver for Sim {
    fn step(&self) -> Option<Duration> {
        assert!(
            self.machine.try_borrow_mut().is_ok(),
            "a call that waits was made inside the turn of an entity: nothing could happen before its end, neither here nor on a worker thread"
        );
        if self.call_back() { Some(Duration::ZERO) } else { self.round().then_some(ROUND) }
    }

    fn due(&self) -> Option<Time> {
        let (nodes, network) = (self.machine.borrow().due(self.time.now()), self.wires.borrow().due());
        nodes.into_iter().chain(network).min()
    }
}

/// An event in words; `None` for what says nothing to users.
pub(super) fn told(event: &Event, names: &[(NodeId, usize)]) -> Option<String> {
    let name = |id: NodeId| names.iter().find(|(known, _)| *known == id).map_or_else(|| id.to_string(), |(_, index)| format!("n{index}"));
    match event {
        Event::Member { member, was } => {
            let was = was.map_or("new", |was| was.name());
            Some(format!("{} {was} -> {}", name(member.id), member.status.name()))
        }
        Event::Unreachable { node, why, .. } => Some(format!("{} unreachable: {why}", name(*node))),
        Event::Reachable { node } => Some(format!("{} reachable", name(*node))),
        Event::LeaderChanged(leader) => Some(leader.map_or_else(|| "no leader".to_owned(), |leader| format!("{} lead", name(leader)))),
        Event::Split { mine, theirs, verdict } => Some(format!("a split, {mine} here and {theirs} there: {verdict}")),
        Event::ShardMoving { entity_type, shard, from, to, epoch } => {
            let from = from.map_or_else(|| "nowhere".to_owned(), name);
            Some(format!("shard {} of {entity_type} move from {from} to {}, epoch {}", shard.0, name(*to), epoch.get()))
        }
        Event::ShardMoved { entity_type, shard, to, .. } => Some(format!("shard {} of {entity_type} at {}", shard.0, name(*to))),
        Event::Warning { code, text } => Some(format!("a warning {code}: {text}")),
        _ => None,
    }
}
