//! A worker thread: owns a slice of the node's shards and runs their entities.

use std::{
    any::Any,
    collections::{BTreeMap, VecDeque},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Duration,
};

use crate::{
    NodeId, ShardKey, Time, TypeId,
    engine::{
        exits,
        idle::{Idler, Rest},
        lane::Ring,
        node::{Node, ToNet, ToWorker},
        parcel::{Answered, EngineParcel},
        sys,
        types::{Env, Instance, TypeEntry},
    },
    metrics::WorkerCounters,
    proto::{
        handoff::{Ask, DropReason, ReplyBody},
        shard::{Host, LaneItem, Place, ShardCommand, ShardCore, ShardReport, StartCause, StopReason, Turn},
    },
};

/// Items taken from one lane before the next one has its turn.
const BATCH: usize = 64;

/// The longest sleep without a timer: a guard, not a tick.
const SLEEP_MAX: Duration = Duration::from_secs(3600);

/// A worker's way to the network thread and to askers.
pub struct Out {
    node: Arc<Node>,
    /// What found no room in the ring, in order (moves.md X6).
    waiting: VecDeque<ToNet>,
    used: bool,
}

impl Out {
    fn new(node: Arc<Node>) -> Self {
        Self { node, waiting: VecDeque::new(), used: false }
    }

    fn push(&mut self, item: ToNet) {
        self.used = true;
        self.waiting.push_back(item);
        if self.waiting.len() >= BATCH {
            self.flush();
        }
    }

    /// Moves what waits into the ring, as far as there is room, and rings the bell once.
    fn flush(&mut self) {
        if self.waiting.is_empty() {
            return;
        }
        let Self { node, waiting, .. } = self;
        exits::with(node, |exits| {
            while let Some(item) = waiting.pop_front() {
                if let Err(item) = exits.network().push(item) {
                    waiting.push_front(item);
                    break;
                }
            }
            exits.network().ring_bell();
        })
        .expect("a worker's lanes live as long as its thread, and no turn is inside a send");
    }

    /// Brings an answer to its asker.
    pub fn answer(&mut self, ask: Ask, answered: Answered) {
        if ask.node == self.node.id {
            self.node.complete(ask.correlation, answered);
            return;
        }
        let body = match answered {
            Answered::Wire(body) => body,
            Answered::Typed(_) | Answered::Timeout => unreachable!("answers for other nodes are encoded where they are given"),
        };
        self.push(ToNet::Reply { to: ask.node, correlation: ask.correlation, body });
    }

    /// Whether the asker is on this node, so that the reply need not be encoded.
    pub fn is_local(&self, ask: Ask) -> bool {
        ask.node == self.node.id
    }
}

/// Runs entities for this worker's `ShardCore`.
struct WorkerHost {
    node: Arc<Node>,
    types: BTreeMap<TypeId, Arc<TypeEntry>>,
    out: Out,
    index: u16,
    /// How long the last turn took at least, if that is worth a word.
    slow: Option<Duration>,
}

impl WorkerHost {
    /// Names the entity whose turn was slow, if the last one was.
    #[cold]
    fn tell_slow(&self, at: Place, key: &[u8], took: Duration) {
        self.counters().slow_turns.bump(1);
        let entity_type = self.types.get(&at.shard.ty).map_or("?", |entry| &entry.name);
        let key = String::from_utf8_lossy(key).escape_debug().to_string();
        tracing::warn!(target: "wingbeat::engine", entity_type, %key, shard = at.shard.shard.0, ?took, "slow turn: what else lives on this worker has waited");
    }

    fn counters(&self) -> &WorkerCounters {
        &self.node.metrics.workers[usize::from(self.index)]
    }

    fn turn<R>(&mut self, at: Place, what: &'static str, f: impl FnOnce(&mut Env<'_>) -> R) -> Result<R, String> {
        let Some(entry) = self.types.get(&at.shard.ty) else { return Err(format!("type {:08x} is not hosted here", at.shard.ty.0)) };
        let mut env = Env { node: &self.node, at, out: &mut self.out };
        let busy = &self.node.busy[usize::from(self.index)];
        busy.enter(at.shard);
        // The entity is dropped after a panic, so no broken state is seen again.
        let result = catch_unwind(AssertUnwindSafe(|| f(&mut env)));
        if let Some(since) = busy.leave() {
            self.slow = Some(self.node.now().since(since));
        }
        result.map_err(|panic| {
            self.counters().handler_panics.bump(1);
            let said = panic_text(&*panic);
            tracing::error!(target: "wingbeat::engine", entity_type = %entry.name, shard = at.shard.shard.0, epoch = at.epoch.get(), %said, "panic in {what}");
            said
        })
    }
}

/// What a panic said.
fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned()).or_else(|| panic.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "a panic without text".to_owned())
}

impl Host for WorkerHost {
    type Parcel = EngineParcel;
    type Entity = Box<dyn Instance>;

    fn start(&mut self, at: Place, key: &[u8], cause: StartCause, state: Option<(&[u8], NodeId)>) -> Result<Self::Entity, String> {
        let host = self.types.get(&at.shard.ty).and_then(|e| e.host.get()).cloned();
        let Some(host) = host else { return Err("the type is not hosted here".to_owned()) };
        let started = self.turn(at, "start", |env| host.start(env, key, cause, state))?;
        if let Some(took) = self.slow.take() {
            self.tell_slow(at, key, took);
        }
        self.counters().entities_started.bump(u64::from(started.is_ok()));
        started
    }

    fn handle(&mut self, at: Place, entity: &mut Self::Entity, parcel: EngineParcel) -> Turn {
        let ask = parcel.ask();
        self.counters().messages_handled.bump(1);
        let turn = self.turn(at, "handle", |env| entity.handle(env, parcel));
        if let Some(took) = self.slow.take() {
            self.tell_slow(at, entity.key(), took);
        }
        match turn {
            Ok(turn) => turn,
            Err(_) => {
                // If the handler had answered before it panicked, the slot is empty and this answer is dropped there.
                if let Some(ask) = ask {
                    self.out.answer(ask, Answered::Wire(ReplyBody::EntityFailed));
                }
                Turn::Failed
            }
        }
    }

    fn hand_over(&mut self, at: Place, entity: &mut Self::Entity) -> Result<Option<Vec<u8>>, String> {
        let state = self.turn(at, "handoff", |env| entity.hand_over(env))?;
        if let Some(took) = self.slow.take() {
            self.tell_slow(at, entity.key(), took);
        }
        state
    }

    fn stop(&mut self, at: Place, entity: Self::Entity, why: StopReason) {
        self.counters().entities_stopped.bump(1);
        // A panic in `stopped` or in a destructor is counted and logged by `turn`; the instance is gone either way.
        let _ = self.turn(at, "stopped", |env| entity.stop(env, why));
    }

    fn undelivered(&mut self, shard: ShardKey, parcel: EngineParcel, reason: DropReason) {
        if reason == DropReason::Expired {
            self.counters().asks_expired.bump(1);
        }
        self.node.bury(shard, &parcel, reason);
        if let Some(ask) = parcel.ask() {
            self.out.answer(ask, Answered::Wire(ReplyBody::Dropped(reason)));
        }
    }

    fn report(&mut self, report: ShardReport) {
        self.out.push(ToNet::Report(self.index, report));
    }
}

/// A worker without its thread: the work of one is a row of [`turn`](Self::turn)s, each a function of the moment and of what came in.
pub struct Worker {
    index: u16,
    node: Arc<Node>,
    core: ShardCore<WorkerHost>,
    host: WorkerHost,
    lanes: Vec<Arc<Ring<ToWorker>>>,
    until: Time,
}

/// Runs worker `index` until it is told to quit. The calling thread is the worker.
pub fn run(node: Arc<Node>, index: u16, seed: u64) {
    let mut idler = Idler::new(node.config.node.idle);
    let mut worker = Worker::new(node, index, seed);
    crate::api::mark_worker_thread(true);
    loop {
        let now = sys::now();
        match worker.turn(now) {
            Step::Quit => break,
            Step::Worked => idler.worked(now),
            Step::Idle => match idler.rest(now) {
                Rest::Spin => std::hint::spin_loop(),
                Rest::Yield => {
                    std::thread::yield_now();
                    idler.yielded(now, sys::now());
                }
                Rest::Park => worker.sleep(),
            },
        }
    }
    worker.end();
}

/// What a turn came to.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// There was something to do.
    Worked,
    /// There was nothing to do.
    Idle,
    /// It was told to quit.
    Quit,
}

impl Worker {
    /// Worker `index` of a node.
    pub fn new(node: Arc<Node>, index: u16, seed: u64) -> Self {
        let core = ShardCore::new(node.config.clone(), node.id, index, seed);
        let host = WorkerHost { node: node.clone(), types: BTreeMap::new(), out: Out::new(node.clone()), index, slow: None };
        Self { index, core, host, lanes: vec![], until: Time::ZERO, node }
    }

    /// One turn without waiting, by the thread that has the worker's lanes.
    pub fn turn(&mut self, now: Time) -> Step {
        let door = &self.node.workers[usize::from(self.index)];
        while let Some(lane) = door.take_new() {
            self.lanes.push(lane);
        }
        let until = self.node.hosting_until();
        if until != self.until {
            self.until = until;
            self.core.set_hosting_until(now, until, &mut self.host);
        }
        let mut worked = false;
        let mut quit = false;
        let mut ended = vec![];
        for i in 0..self.lanes.len() {
            let lane = self.lanes[i].clone();
            for _ in 0..BATCH {
                let Some(item) = lane.pop() else { break };
                worked = true;
                match item {
                    ToWorker::Lane(item) => {
                        if matches!(item, LaneItem::End) {
                            ended.push(lane.id);
                        }
                        self.core.handle_lane(now, lane.id, item, &mut self.host);
                    }
                    ToWorker::Command(command) => {
                        let is_message = matches!(command, ShardCommand::Item { .. });
                        self.core.handle_command(now, command, &mut self.host);
                        if !is_message {
                            // What became of a shard must not wait for entities that run later in this turn.
                            self.host.out.flush();
                        }
                    }
                    ToWorker::Type(entry) => drop(self.host.types.insert(entry.id, entry)),
                    ToWorker::Run(job) => job(),
                    ToWorker::Quit => quit = true,
                }
            }
        }
        while let Some(posted) = self.node.workers[usize::from(self.index)].take_posted() {
            match posted {
                ToWorker::Quit => quit = true,
                ToWorker::Run(job) => job(),
                ToWorker::Lane(_) | ToWorker::Command(_) | ToWorker::Type(_) => unreachable!("what has an order comes in lanes"),
            }
        }
        if self.core.poll_timeout().is_some_and(|due| due <= now) {
            self.core.handle_timeout(now, &mut self.host);
            worked = true;
        }
        if cfg!(debug_assertions) && worked {
            self.core.check();
        }
        if !ended.is_empty() {
            // `End` is the last item of its lane.
            self.lanes.retain(|lane| !ended.contains(&lane.id));
        }
        self.host.out.flush();
        worked |= std::mem::take(&mut self.host.out.used);
        match (quit, worked) {
            (true, _) => Step::Quit,
            (_, true) => Step::Worked,
            _ => Step::Idle,
        }
    }

    /// Whether a turn has nothing to do before something comes in or a timer is due.
    pub fn is_quiet(&self) -> bool {
        self.node.workers[usize::from(self.index)].is_quiet()
            && self.lanes.iter().all(|l| l.is_empty())
            && self.host.out.waiting.is_empty()
            && self.node.hosting_until() == self.until
    }

    /// When a turn has something to do even if nothing comes in.
    pub fn due(&self) -> Option<Time> {
        self.core.poll_timeout()
    }

    /// A live instance, for tests.
    pub fn instance(&self, shard: ShardKey, key: &[u8]) -> Option<&dyn Instance> {
        self.core.entity(shard, key).map(|instance| &**instance)
    }

    /// Last act of a worker that was told to quit.
    pub fn end(mut self) {
        self.host.out.flush();
        self.node.network.post(ToNet::WorkerDone);
    }

    /// Sleeps until a producer rings, or the next timer.
    fn sleep(&mut self) {
        let door = &self.node.workers[usize::from(self.index)];
        door.bell().announce_sleep();
        if self.is_quiet() {
            let limit = self.due().map_or(SLEEP_MAX, |due| due.since(sys::now()));
            if !limit.is_zero() {
                self.host.counters().parks.bump(1);
                std::thread::park_timeout(limit);
            }
        }
        door.bell().awake();
    }
}
