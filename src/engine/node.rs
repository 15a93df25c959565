//! What all threads of one node share. No lock in here is taken on the path of a message.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use crossbeam::{
    channel::{Receiver, RecvTimeoutError, Sender, TryRecvError, TrySendError, bounded},
    utils::CachePadded,
};
use parking_lot::{Condvar, Mutex, RwLock};

use crate::{
    Config, DeadLetter, NodeAddr, NodeId, Nodes, Time, TypeId, Wire,
    api::{AsEngine, Outlet},
    engine::{
        asker::Mailbox,
        clock::{Clock, Waited},
        completion::Completions,
        deadlines,
        duty::{Did, Duty},
        exits::{self, Asks, Exits, Outgoing, Way},
        lane::{Door, Item},
        letter::{Address, Letter},
        names::Names,
        panics,
        parcel::{Answered, EngineParcel},
        slot::{Slots, Waiter},
        slow_turns::{Busy, LogGate},
        topics::{Topics, Value},
        types::{TypeEntry, TypeHost, show_bytes},
        window::{Came, Window},
    },
    metrics::Metrics,
    proto::{
        handoff::{self, Ask, DropReason, Envelope, Mode, ReplyBody},
        lease::{LeaseAnswer, LeaseCall},
        membership::{ClusterView, Ending, Event, Identity, Members},
        node::{Answer, Command},
        shard::{LaneItem, Parcel, ShardCommand, ShardReport},
        wire::Frame,
    },
};

/// Takes the answer to a command. Runs on the network thread: it must be quick and must not block.
pub type Completion = Box<dyn FnOnce(Answer) + Send>;
/// What the helper thread runs.
pub type Job = Box<dyn FnOnce() + Send>;

/// What comes in to a worker.
pub enum ToWorker {
    /// From a producer's lane.
    Lane(LaneItem<EngineParcel>),
    /// From the network thread, in order with what it delivers.
    Command(ShardCommand),
    /// A type that can run here from now on; precedes its `ShardCommand::Host`.
    Type(Arc<TypeEntry>),
    /// To be run between two turns.
    Run(Job),
    /// A value for this worker's entities that have subscribed to the topic with that id.
    Publish(u64, Value),
    /// A message for all live entities of the type.
    Broadcast(TypeId, Arc<[u8]>),
    /// The ask with that number, of an entity of this worker, is answered.
    Answer(u64, Answered),
    /// A link to another node is new.
    LinkUp,
    /// Threads send nothing any more: say when what they had sent has come out of the lanes.
    Quiesce,
    /// End of the thread.
    Quit,
}

impl Item for ToWorker {
    fn of_letter(mut letter: Letter<'_>) -> Option<Self> {
        let Address { shard, tag, stream, .. } = letter.address();
        let parcel = letter.lift()?;
        Some(match (stream, parcel) {
            (Some(stream), EngineParcel::Wire { envelope, .. }) => {
                Self::Command(ShardCommand::Item { stream, shard, item: handoff::Item::Msg { tag, mode: Mode::Settled, envelope } })
            }
            (_, parcel) => Self::Lane(LaneItem::Msg { shard, tag, enter: None, parcel }),
        })
    }

    fn is_end(&self) -> bool {
        matches!(self, Self::Lane(LaneItem::End))
    }

    fn outside(&self) -> usize {
        match self {
            Self::Command(command) => match command.item() {
                Some(handoff::Item::Msg { envelope, .. }) => envelope.bytes.len(),
                _ => 0,
            },
            Self::Lane(LaneItem::Msg { parcel: EngineParcel::Wire { envelope, .. }, .. }) => envelope.bytes.len(),
            Self::Broadcast(_, bytes) => bytes.len(),
            _ => 0,
        }
    }
}

/// What comes in to the network thread.
pub enum ToNet {
    /// From a producer's lane.
    Lane(LaneItem<Envelope>),
    /// From a worker.
    Report(u16, Box<ShardReport>),
    /// An answer to an ask of another node.
    Reply {
        /// The asker's node.
        to: NodeId,
        /// Its slot.
        correlation: u64,
        /// What came of it.
        body: ReplyBody,
    },
    /// A command, made once its number is known, and who takes its answer.
    Command(Box<dyn FnOnce(u64) -> Command + Send>, Option<Completion>),
    /// A type, to be hosted here or only sent to.
    Type(Arc<TypeEntry>, bool),
    /// For everybody on those nodes whom it concerns; not for this one.
    Cast(Nodes, Box<Frame>),
    /// A name has been looked up.
    Resolved(NodeAddr, Result<Vec<SocketAddr>, String>),
    /// The lease has answered a call.
    Lease(u64, LeaseAnswer),
    /// What threads had sent to that worker has come out of its lanes.
    Quiet(u16),
    /// End of the thread: workers are told, then links are flushed and closed.
    Quit,
}

impl Item for ToNet {
    fn of_letter(mut letter: Letter<'_>) -> Option<Self> {
        let Address { shard, tag, .. } = letter.address();
        match letter.lift()? {
            EngineParcel::Wire { envelope, .. } => Some(Self::Lane(LaneItem::Msg { shard, tag, enter: None, parcel: envelope })),
            EngineParcel::Typed { .. } => unreachable!("only encodings are written into the ring of the network thread"),
        }
    }

    fn is_end(&self) -> bool {
        matches!(self, Self::Lane(LaneItem::End))
    }

    fn outside(&self) -> usize {
        match self {
            Self::Lane(LaneItem::Msg { parcel, .. }) => parcel.bytes.len(),
            Self::Reply { body, .. } => body.size(),
            Self::Cast(_, frame) => match &**frame {
                Frame::Cast { bytes, .. } => bytes.len(),
                _ => 0,
            },
            _ => 0,
        }
    }
}

/// How far a node is in its life.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Life {
    /// Serves.
    Running,
    /// Membership is over.
    Ended(Ending),
    /// One of its threads has panicked: which.
    Failed(String),
    /// All threads have ended.
    Stopped,
}

/// What the network thread counts, by name. The same name may be in both lists.
#[derive(Clone, Debug, Default)]
#[cfg_attr(not(feature = "admin"), allow(dead_code, reason = "only the HTTP surface reads them"))]
pub struct CoreCounters {
    /// Of the pure core.
    pub protocol: Vec<(&'static str, u64)>,
    /// Of the sockets.
    pub sockets: Vec<(&'static str, u64)>,
}

/// The shared part of a node.
pub struct Node {
    /// All settings.
    pub config: Arc<Config>,
    /// This life.
    pub id: NodeId,
    /// What is advertised.
    pub addr: NodeAddr,
    /// Where its time comes from.
    pub clock: Clock,
    /// Doors of the workers.
    pub workers: Box<[Door<ToWorker>]>,
    /// Workers whose threads have not come to their end.
    workers_left: AtomicUsize,
    /// Door of the network thread.
    pub network: Door<ToNet>,
    /// What is behind that door, for whoever waits for it.
    pub duty: Duty,
    /// Where one who waits for it sleeps. `None` where nobody can be chosen to be woken.
    pub window: Option<Window>,
    /// Asks in flight.
    pub slots: Slots,
    /// Those of them that stay for as long as an entity is watched.
    pub watches: AtomicUsize,
    /// Counters.
    pub metrics: Arc<Metrics>,
    /// What each worker is in.
    pub busy: Box<[Arc<Busy>]>,
    /// Who wants which published values.
    pub topics: Topics,
    /// To the helper thread.
    pub helper: Sender<Job>,
    /// What is looked up.
    pub names: Names,
    hosting_until: CachePadded<AtomicU64>,
    next_lane: AtomicU32,
    /// Set at the start of shutdown: sends are refused from then on.
    closing: AtomicBool,
    types: RwLock<BTreeMap<TypeId, Arc<TypeEntry>>>,
    view: Mutex<Arc<ClusterView>>,
    view_changed: Condvar,
    life: Mutex<Life>,
    life_changed: Condvar,
    /// How membership ended, if it has.
    ending: OnceLock<Ending>,
    events: Mutex<EventHub>,
    dead_letters: Mutex<Vec<Outlet<DeadLetter>>>,
    dead_letter_log: LogGate,
    /// Of messages that could not be read.
    pub unreadable_log: LogGate,
    /// Of handlers that panicked.
    pub panic_log: LogGate,
    /// To the thread that asks the lease, if there is one.
    lease: Option<Sender<(u64, LeaseCall)>>,
    moving: AtomicU64,
    core_counters: Mutex<CoreCounters>,
    /// The last turns that took long.
    #[cfg(feature = "admin")]
    pub slow_turns: super::slow_turns::SlowTurns,
    /// Types that HTTP can address.
    #[cfg(feature = "admin")]
    pub exposed: crate::api::surface::Exposed,
    /// The last events, for the HTTP surface.
    #[cfg(feature = "admin")]
    pub kept_events: Arc<crate::admin::EventRing>,
}

/// Events that may wait for a subscriber before it misses some.
const EVENTS_WAITING: usize = 1000;
/// And dead letters.
const LETTERS_WAITING: usize = 1024;

/// Called on the helper thread with each event, as long as its owner keeps it.
type Watcher = std::sync::Weak<dyn Fn(&Event) + Send + Sync>;

#[derive(Default)]
struct EventHub {
    subscribers: Vec<Outlet<Event>>,
    watchers: Vec<Watcher>,
}

impl Node {
    /// The shared part, before any thread runs.
    pub fn new(
        config: Arc<Config>,
        me: Identity,
        workers: Box<[Door<ToWorker>]>,
        network: Door<ToNet>,
        helper: Sender<Job>,
        lease: Option<Sender<(u64, LeaseCall)>>,
        clock: Clock,
    ) -> Self {
        let id = me.id();
        let metrics = Arc::new(Metrics::new(workers.len()));
        let unit = if clock.is_virtual() { deadlines::EXACT } else { deadlines::COARSE };
        let busy = workers.iter().map(|_| Arc::default()).collect();
        let topics = Topics::new(workers.len());
        let view = ClusterView { me: id, members: Members::default(), leader: None, deputies: vec![], converged: false, version: 0 };
        Self {
            id,
            addr: me.addr,
            clock,
            workers_left: AtomicUsize::new(workers.len()),
            workers,
            network,
            duty: Duty::default(),
            window: None,
            helper,
            names: Names::default(),
            slots: Slots::new(config.limits.asks, unit),
            watches: AtomicUsize::new(0),
            metrics,
            busy,
            topics,
            hosting_until: CachePadded::new(AtomicU64::new(0)),
            next_lane: AtomicU32::new(0),
            closing: AtomicBool::new(false),
            types: RwLock::default(),
            view: Mutex::new(Arc::new(view)),
            view_changed: Condvar::new(),
            life: Mutex::new(Life::Running),
            life_changed: Condvar::new(),
            ending: OnceLock::new(),
            events: Mutex::default(),
            moving: AtomicU64::new(0),
            core_counters: Mutex::default(),
            #[cfg(feature = "admin")]
            slow_turns: super::slow_turns::SlowTurns::default(),
            #[cfg(feature = "admin")]
            exposed: crate::api::surface::Exposed::default(),
            #[cfg(feature = "admin")]
            kept_events: Arc::default(),
            dead_letters: Mutex::default(),
            dead_letter_log: LogGate::default(),
            unreadable_log: LogGate::default(),
            panic_log: LogGate::default(),
            lease,
            config,
        }
    }

    /// One that no thread works for, with one worker and so many items to a ring.
    #[cfg(test)]
    pub fn lone(ring_items: Option<u32>) -> Arc<Self> {
        let mut config = Config::preset(crate::config::Preset::LocalTest);
        config.limits.ring_items = ring_items.unwrap_or(config.limits.ring_items);
        let me = Identity { addr: NodeAddr::new("here", 1), incarnation: 1 };
        let bell = || Arc::new(crate::engine::lane::Bell::new(|| {}));
        let workers = Box::new([Door::new(bell())]);
        Arc::new(Self::new(Arc::new(config), me, workers, Door::new(bell()), crossbeam::channel::unbounded().0, None, Clock::Machine))
    }

    /// The moment it is on this node.
    pub fn now(&self) -> Time {
        self.clock.now()
    }

    /// A name for a new lane. Never reused: 2^32 threads do not come and go in the life of a process.
    pub fn next_lane(&self) -> crate::proto::shard::LaneId {
        crate::proto::shard::LaneId(self.next_lane.fetch_add(1, Ordering::Relaxed))
    }

    // ---- right to run ----

    /// Until when entities may run: a worker loads it with each reading of the clock.
    pub fn hosting_until(&self) -> Time {
        Time::from_nanos(self.hosting_until.load(Ordering::Acquire))
    }

    /// Network thread only.
    pub fn set_hosting_until(&self, until: Time) {
        self.hosting_until.store(until.as_nanos(), Ordering::Release);
    }

    // ---- types ----

    /// The type with this id.
    pub fn type_entry(&self, id: TypeId) -> Option<Arc<TypeEntry>> {
        self.types.read().get(&id).cloned()
    }

    /// All types, by id.
    #[cfg(feature = "admin")]
    pub fn all_types(&self) -> Vec<Arc<TypeEntry>> {
        self.types.read().values().cloned().collect()
    }

    /// Takes a type in, or finds it: the entry that stands afterwards.
    pub fn enter_type(&self, entry: TypeEntry) -> Arc<TypeEntry> {
        self.types.write().entry(entry.id).or_insert_with(|| Arc::new(entry)).clone()
    }

    // ---- sending ----

    /// Sends the message in `slot` from the calling thread. On `Err` it is still there: nothing was queued.
    pub fn send(self: &Arc<Self>, entry: &TypeEntry, slot: &mut Option<EngineParcel>) -> Result<(), crate::Refusal> {
        if self.closing.load(Ordering::Relaxed) {
            return Err(crate::Refusal::Shutdown);
        }
        exits::with(self, |exits| exits.send(self, entry, slot)).unwrap_or(Err(crate::Refusal::Shutdown))
    }

    /// Sends a message from the calling thread. On `Err` it is still in its place: nothing was queued.
    #[inline(always)]
    pub fn send_letter<M: Wire, A: Asks>(
        self: &Arc<Self>,
        entry: &TypeEntry,
        mut letter: Outgoing<'_, M, A>,
    ) -> Result<(), crate::Refusal> {
        if self.closing.load(Ordering::Relaxed) {
            return Err(crate::Refusal::Shutdown);
        }
        match exits::with(self, |exits| exits.short_way(self, entry, &mut letter)) {
            Some(Way::Sent) => Ok(()),
            Some(Way::Full) => Err(crate::Refusal::Full),
            Some(Way::Long) => self.send_long(entry, letter),
            None => Err(crate::Refusal::Shutdown),
        }
    }

    /// A message that cannot go the short way.
    #[inline(never)]
    fn send_long<M: Wire, A: Asks>(self: &Arc<Self>, entry: &TypeEntry, letter: Outgoing<'_, M, A>) -> Result<(), crate::Refusal> {
        exits::with(self, |exits| exits.send_item(self, entry, letter)).unwrap_or(Err(crate::Refusal::Shutdown))
    }

    /// As [`send_letter`](Self::send_letter), by a thread that waits for the answer next. True: the message is in the ring of the network thread,
    /// which was not told; [`pass_on`](Self::pass_on) comes next.
    #[inline]
    pub fn send_and_wait<M: Wire, A: Asks>(
        self: &Arc<Self>,
        entry: &TypeEntry,
        mut letter: Outgoing<'_, M, A>,
    ) -> Result<bool, crate::Refusal> {
        if self.closing.load(Ordering::Relaxed) {
            return Err(crate::Refusal::Shutdown);
        }
        match exits::with(self, |exits| exits.batch_abroad_untold(|exits| exits.short_way(self, entry, &mut letter))) {
            Some((Way::Sent, untold)) => Ok(untold),
            Some((Way::Full, _)) => Err(crate::Refusal::Full),
            Some((Way::Long, _)) => {
                let sent = exits::with(self, |exits| exits.batch_abroad_untold(|exits| exits.send_item(self, entry, letter)));
                sent.map_or(Err(crate::Refusal::Shutdown), |(sent, untold)| sent.map(|()| untold))
            }
            None => Err(crate::Refusal::Shutdown),
        }
    }

    /// Runs `f` with the calling thread's exits, and one bell for all that it sends. `None`: nothing can be sent any more.
    pub fn batch<R>(self: &Arc<Self>, f: impl FnOnce(&mut Exits) -> R) -> Option<R> {
        if self.closing.load(Ordering::Relaxed) {
            return None;
        }
        exits::with(self, |exits| exits.batch(f))
    }

    /// Reserves a slot for `waiter`, whose ask this node ends within a millisecond of its deadline; `None` if all are in use.
    pub fn open_ask(&self, deadline: Time, waiter: Waiter) -> Option<Ask> {
        let due = deadline.as_nanos();
        let correlation = self.slots.open(waiter, due)?;
        if self.slots.watch(correlation, due) {
            self.network.bell().ring();
        }
        Some(Ask { node: self.id, correlation, deadline })
    }

    /// When to call `expire_asks`.
    pub fn asks_due(&self) -> Option<Time> {
        self.slots.next_due().map(Time::from_nanos)
    }

    /// Ends the asks whose deadlines have passed. By one thread at a time. `left`: for a guest, as in [`complete_untold`](Self::complete_untold).
    pub fn expire_asks(&self, now: Time, mut left: Option<&mut Vec<Job>>) {
        self.slots.expire(now.as_nanos(), |correlation, waiter| {
            self.metrics.shared.ask_timeouts.add(1);
            self.answer_waiter(waiter, correlation, Answered::Timeout, left.as_deref_mut());
        });
    }

    /// Gives a waiter its answer. On a guest's thread no code of users is called: that is added to what is `left` to the network thread.
    fn answer_waiter(&self, waiter: Waiter, correlation: u64, answered: Answered, left: Option<&mut Vec<Job>>) {
        match (waiter, left) {
            (waiter @ Waiter::Call(_), Some(left)) => left.push(Box::new(move || waiter.answer(correlation, answered, &[]))),
            (Waiter::Queue(room, tag), Some(left)) => {
                let queue = room.put_unhooked(tag, answered);
                if queue.calls() {
                    left.push(Box::new(move || {
                        queue.wake();
                        Arc::into_inner(queue).into_iter().for_each(Completions::end);
                    }));
                } else if let Some(last) = Arc::into_inner(queue) {
                    left.push(Box::new(move || last.end()));
                }
            }
            (waiter, _) => waiter.answer(correlation, answered, &self.workers),
        }
    }

    /// Completes an ask of this node.
    pub fn complete(&self, correlation: u64, answered: Answered) {
        if let Some(waiter) = self.take_waiter(correlation) {
            waiter.answer(correlation, answered, &self.workers);
        }
    }

    /// Who waits for an answer that has come. One that nobody waits for any more is counted.
    pub fn take_waiter(&self, correlation: u64) -> Option<Waiter> {
        let waiter = self.slots.take(correlation);
        if waiter.is_none() {
            self.metrics.shared.replies_late.add(1);
        }
        waiter
    }

    /// As [`complete`](Self::complete) in a turn of the network; by a guest, with what is `left` to the network thread. A thread that waits for the
    /// answer is not woken: whom the caller has to wake.
    pub fn complete_untold(&self, correlation: u64, answered: Answered, left: Option<&mut Vec<Job>>) -> Option<&'static Mailbox> {
        match self.slots.take(correlation) {
            Some(Waiter::Thread(place)) => return Some(place.put_untold(answered)),
            Some(waiter) => self.answer_waiter(waiter, correlation, answered, left),
            None => self.metrics.shared.replies_late.add(1),
        }
        None
    }

    /// Ends all asks in flight, as the node has stopped: they may have run.
    pub fn end_asks(&self) {
        for correlation in self.slots.open_asks() {
            if let Some(waiter) = self.slots.take(correlation) {
                waiter.answer(correlation, Answered::Stopped, &self.workers);
            }
        }
    }

    /// Brings an answer to its asker, from any thread. Entities answer by `Out::answer`, which keeps to the worker what stays there.
    pub fn answer(&self, ask: Ask, body: ReplyBody) {
        if ask.node == self.id {
            self.complete(ask.correlation, Answered::Wire(body));
        } else {
            self.network.post(ToNet::Reply { to: ask.node, correlation: ask.correlation, body });
        }
    }

    // ---- the network's work ----

    /// The calling thread, which waits for the network, does a turn of its work. True if there was something to do.
    pub fn help_network(&self) -> bool {
        let _as_the_network = AsEngine::enter();
        self.duty.help(self) == Did::Work
    }

    /// The calling thread was told that links have something, and nobody else was: it looks, or leaves that to the network thread where somebody is at
    /// work, as that may take as long as code of users does. False: who is at work had seen it before, or may have.
    pub fn look_at_links(&self, came: Came) -> bool {
        let _as_the_network = AsEngine::enter();
        let did = match came {
            Came::Nothing => return true,
            Came::By(link) => self.duty.help_with(self, link),
            Came::ByMany => self.duty.help(self),
        };
        if did == Did::Busy {
            self.duty.leave_look(self.network.bell());
        }
        did == Did::Work
    }

    /// Something was put into a ring of the network thread by a thread that has no more to do: it passes that on itself, rather than wake up
    /// another one for it.
    pub fn pass_on(&self) {
        let _as_the_network = AsEngine::enter();
        match self.duty.pass_on(self) {
            Did::Busy => _ = self.network.ring(),
            Did::Over => self.network.look_at_late(),
            Did::Work | Did::Nothing => {}
        }
    }

    /// Puts a command to the network thread.
    pub fn command(&self, make: impl FnOnce(u64) -> Command + Send + 'static, completion: Option<Completion>) {
        self.network.post(ToNet::Command(Box::new(make), completion));
    }

    /// Puts a command to the network thread and waits for its answer. `Disconnected`: the node has stopped.
    pub fn command_and_wait(&self, make: impl FnOnce(u64) -> Command + Send + 'static, deadline: Time) -> Result<Answer, RecvTimeoutError> {
        let (tx, rx) = bounded(1);
        self.command(make, Some(Box::new(move |answer| drop(tx.send(answer)))));
        let came = || match rx.try_recv() {
            Err(TryRecvError::Empty) => None,
            came => Some(came.map_err(|_| RecvTimeoutError::Disconnected)),
        };
        match self.clock.wait(deadline, came) {
            Waited::Found(came) => came,
            Waited::Late => Err(RecvTimeoutError::Timeout),
            Waited::Machine => rx.recv_timeout(deadline.since(self.now())),
        }
    }

    // ---- what is given up ----

    /// Counts a message that is given up and offers it as a dead letter. Does not answer its asker.
    pub fn bury(&self, shard: crate::ShardKey, parcel: &EngineParcel, reason: DropReason) {
        // A watch is no message: who watches hears of it.
        if parcel.sign().is_none() {
            self.bury_parts(shard, parcel.key(), parcel.encoded(), reason);
        }
    }

    /// What the lanes of the network thread do with what comes behind its end.
    pub fn give_up_abroad(self: &Arc<Self>) -> impl Fn(ToNet) + Send + Sync + 'static {
        self.give_up_late(|node, item| match item {
            ToNet::Lane(LaneItem::Msg { shard, parcel, .. }) => node.too_late(shard, &EngineParcel::from_envelope(parcel)),
            ToNet::Cast(..) => node.metrics.shared.casts_unsent.add(1),
            _ => {}
        })
    }

    /// What the lanes of a worker do with what comes behind its end.
    pub fn give_up_here(self: &Arc<Self>) -> impl Fn(ToWorker) + Send + Sync + 'static {
        self.give_up_late(|node, item| match item {
            ToWorker::Lane(LaneItem::Msg { shard, parcel, .. }) => node.too_late(shard, &parcel),
            ToWorker::Command(ShardCommand::Item { shard, item: handoff::Item::Msg { envelope, .. }, .. }) => {
                node.too_late(shard, &EngineParcel::from_envelope(envelope));
            }
            _ => {}
        })
    }

    fn give_up_late<T>(self: &Arc<Self>, f: impl Fn(&Arc<Self>, T) + Send + Sync + 'static) -> impl Fn(T) + Send + Sync + 'static {
        let node = Arc::downgrade(self);
        move |item| {
            let node = node.upgrade();
            // On the thread of whoever had put it there.
            let done = panics::caught(|| match &node {
                Some(node) => f(node, item),
                None => drop(item),
            });
            if done.is_none() {
                tracing::error!(target: "wingbeat::engine", "a message panicked as it was dropped");
            }
        }
    }

    /// A message was accepted while the thread that was to take it ended.
    fn too_late(self: &Arc<Self>, shard: crate::ShardKey, parcel: &EngineParcel) {
        self.bury(shard, parcel, DropReason::Shutdown);
        let Some(ask) = parcel.ask().filter(|ask| ask.node == self.id) else { return };
        let answered = Answered::Wire(ReplyBody::Dropped(DropReason::Shutdown));
        match self.slots.take(ask.correlation) {
            None => {}
            Some(waiter @ (Waiter::Thread(_) | Waiter::Entity(_))) => waiter.answer(ask.correlation, answered, &self.workers),
            // Code of users, which must not run on the thread of whoever happens to send.
            Some(waiter) => {
                let node = self.clone();
                self.help(Box::new(move || waiter.answer(ask.correlation, answered, &node.workers)));
            }
        }
    }

    /// As [`bury`](Self::bury), with what is left of the message.
    pub fn bury_parts(&self, shard: crate::ShardKey, key: &[u8], bytes: Option<&[u8]>, reason: DropReason) {
        self.metrics.drops.add(reason, 1);
        let entity_type =
            || -> Arc<str> { self.type_entry(shard.ty).map_or_else(|| format!("{:08x}", shard.ty.0).into(), |e| e.name.clone()) };
        if let Some(kept_back) = self.dead_letter_log.pass(self.now()) {
            let key = show_bytes(key);
            tracing::warn!(target: "wingbeat::engine", entity_type = %entity_type(), %key, shard = shard.shard.0, %reason, kept_back, "a message was given up; lines like this come once a second at most");
        }
        let mut listeners = self.dead_letters.lock();
        if listeners.is_empty() {
            return;
        }
        let letter = DeadLetter { entity_type: entity_type(), key: key.into(), reason, bytes: bytes.map(Into::into) };
        self.metrics.shared.dead_letters_missed.add(Outlet::offer_all(&mut listeners, &letter, |_| None));
    }

    /// A bounded stream of dead letters from now on.
    pub fn dead_letters(&self) -> Receiver<DeadLetter> {
        let (outlet, stream) = Outlet::new(LETTERS_WAITING);
        self.open(&mut self.dead_letters.lock(), outlet);
        stream
    }

    /// Adds a stream to the others of its kind, under the lock that [`set_life`](Self::set_life) takes to end them.
    fn open<T>(&self, streams: &mut Vec<Outlet<T>>, outlet: Outlet<T>) {
        if self.life() != Life::Stopped {
            streams.push(outlet);
        }
    }

    // ---- membership as seen from outside ----

    /// The newest snapshot.
    pub fn view(&self) -> Arc<ClusterView> {
        self.view.lock().clone()
    }

    /// Network thread only.
    pub fn set_view(&self, view: Arc<ClusterView>) {
        *self.view.lock() = view;
        self.view_changed.notify_all();
    }

    /// Waits until `holds` gives something for the newest snapshot; `None` at the deadline, or once the node serves no more.
    pub fn wait_view<R>(&self, deadline: Time, mut holds: impl FnMut(&Arc<ClusterView>) -> Option<R>) -> Option<R> {
        let mut look = || holds(&self.view()).map(Some).or_else(|| (!self.serves()).then_some(None));
        match self.clock.wait(deadline, &mut look) {
            Waited::Found(found) => return found,
            Waited::Late => return None,
            Waited::Machine => {}
        }
        let mut view = self.view.lock();
        loop {
            if let Some(found) = holds(&view) {
                return Some(found);
            }
            let left = deadline.since(self.now());
            if left.is_zero() || !self.serves() {
                return None;
            }
            self.view_changed.wait_for(&mut view, left);
        }
    }

    /// Publishes an event.
    pub fn publish(&self, event: Event) {
        #[cfg(feature = "admin")]
        crate::api::surface::keep(&self.kept_events, &event, &self.view());
        let mut hub = self.events.lock();
        let lagged = |missed| Some(Event::Lagged { missed });
        self.metrics.shared.events_lagged.add(Outlet::offer_all(&mut hub.subscribers, &event, lagged));
        hub.watchers.retain(|w| w.strong_count() > 0);
        for watcher in &hub.watchers {
            let (watcher, event) = (watcher.clone(), event.clone());
            // Not if it has ended meanwhile.
            self.help(Box::new(move || _ = watcher.upgrade().map(|watcher| watcher(&event))));
        }
    }

    /// A bounded stream of events, which begins with the present members.
    pub fn events(&self) -> Receiver<Event> {
        let (mut hub, view) = (self.events.lock(), self.view());
        let (outlet, stream) = Outlet::new(EVENTS_WAITING + 2 * view.members.len());
        for member in &view.members {
            outlet.offer(Event::Member { member: member.clone(), was: None });
        }
        self.open(&mut hub.subscribers, outlet);
        stream
    }

    /// Runs `f` on the helper thread for each event, for as long as the caller keeps it.
    pub fn watch_events(&self, f: Watcher) {
        self.events.lock().watchers.push(f);
    }

    /// A worker's thread has come to its end, and so has what it says.
    pub fn worker_done(&self) {
        self.workers_left.fetch_sub(1, Ordering::Release);
        self.network.bell().ring();
    }

    /// Whether all of them have.
    pub fn has_no_workers(&self) -> bool {
        self.workers_left.load(Ordering::Acquire) == 0
    }

    /// Gives a job to the helper thread; what comes after its end is dropped.
    pub fn help(&self, job: Job) {
        if self.helper.send(job).is_err() {
            self.metrics.shared.callbacks_lost.add(1);
        }
    }

    /// Has the lease asked; the answer to that number goes to the network thread. A release has none. One that hangs is asked no more until it comes
    /// back: it may do so in hours, and would then be asked for splits that are long over.
    pub fn ask_lease(&self, id: u64, call: LeaseCall) {
        let why = match self.lease.as_ref().map(|lease| lease.try_send((id, call))) {
            Some(Ok(())) => return,
            Some(Err(TrySendError::Full((_, call)))) => {
                self.metrics.shared.lease_calls_refused.add(1);
                tracing::warn!(target: "wingbeat::membership", ?call, "the lease is not asked: it has not come back from earlier calls");
                "it has not come back from earlier calls"
            }
            Some(Err(TrySendError::Disconnected(_))) | None => "this node has none",
        };
        self.network.post(ToNet::Lease(id, LeaseAnswer::Failed(why.into())));
    }

    // ---- what the network thread says of itself ----

    /// Shards on the move, as far as this node knows.
    #[cfg(feature = "admin")]
    pub fn moving(&self) -> u64 {
        self.moving.load(Ordering::Relaxed)
    }

    /// Turns of entities that last for long and are not over, and the workers that they keep.
    #[cfg(feature = "admin")]
    pub fn stuck_turns(&self) -> Vec<(u16, super::slow_turns::Inside)> {
        let now = self.now();
        (0..).zip(&self.busy).filter_map(|(worker, busy)| Some((worker, busy.stuck(now)?))).collect()
    }

    /// The counters of the pure core and the sockets, at most about a second old.
    #[cfg(feature = "admin")]
    pub fn core_counters(&self) -> CoreCounters {
        self.core_counters.lock().clone()
    }

    /// Network thread only.
    pub fn set_core_state(&self, moving: u64, counters: CoreCounters) {
        self.moving.store(moving, Ordering::Relaxed);
        *self.core_counters.lock() = counters;
    }

    // ---- life ----

    /// Whether shutdown has begun: sends are refused.
    pub fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Relaxed)
    }

    /// Refuses sends from now on. True for the first caller.
    pub fn begin_closing(&self) -> bool {
        let first = !self.closing.swap(true, Ordering::AcqRel);
        self.wake_waiters();
        first
    }

    /// Whether it takes messages and is a member, or may become one.
    pub fn serves(&self) -> bool {
        !self.is_closing() && self.life() == Life::Running
    }

    /// How membership ended, if it has; also when the node has stopped since.
    pub fn ending(&self) -> Option<&Ending> {
        self.ending.get()
    }

    /// Wakes who waits for what may not come any more. Nobody falls asleep between a look at the node's life and this.
    fn wake_waiters(&self) {
        drop(self.view.lock());
        self.view_changed.notify_all();
        self.types.read().values().for_each(|entry| entry.wake());
    }

    /// Where the node stands in its life.
    pub fn life(&self) -> Life {
        self.life.lock().clone()
    }

    /// A step in the node's life; steps back are ignored.
    pub fn set_life(&self, life: Life) {
        let mut now = self.life.lock();
        if *now != Life::Stopped && (*now == Life::Running || life == Life::Stopped) {
            if let Life::Ended(ending) = &life {
                self.ending.get_or_init(|| ending.clone());
            }
            *now = life;
        }
        let stopped = *now == Life::Stopped;
        drop(now);
        self.life_changed.notify_all();
        self.wake_waiters();
        if stopped {
            self.network.look_at_late();
            self.workers.iter().for_each(Door::look_at_late);
            // They will find that the node is gone.
            self.types.read().values().for_each(|entry| entry.call_waiters(|_| true));
            self.events.lock().subscribers.clear();
            self.dead_letters.lock().clear();
            self.topics.end();
            let close = || {
                self.network.close();
                self.workers.iter().for_each(Door::close);
            };
            // Each time with one message less.
            while panics::caught(close).is_none() {
                tracing::error!(target: "wingbeat::engine", "a message panicked as it was dropped");
            }
        }
    }

    /// Behind the end, when who waits for it has been told, as it is code of users: drops what makes entities, which may hold on to this node.
    pub fn drop_hosts(&self) {
        let hosts: Vec<_> = self.types.read().values().filter_map(|entry| entry.take_host()).collect();
        if panics::caught(|| drop(hosts)).is_none() {
            tracing::error!(target: "wingbeat::engine", "what a factory had kept panicked as it was dropped");
        }
    }

    /// Has a type hosted here. `Err`: it is already.
    pub fn host(&self, entry: &TypeEntry, host: Arc<dyn TypeHost>) -> Result<(), Arc<dyn TypeHost>> {
        entry.set_host(host)?;
        if self.life() == Life::Stopped {
            // Nobody comes any more who would take it out.
            drop(entry.take_host());
        }
        Ok(())
    }

    /// Waits until `holds` for the node's life, at most `limit`.
    pub fn wait_life(&self, limit: Duration, mut holds: impl FnMut(&Life) -> bool) -> bool {
        let deadline = self.now() + limit;
        let mut life = self.life.lock();
        while !holds(&life) {
            let left = deadline.since(self.now());
            if left.is_zero() {
                return false;
            }
            self.life_changed.wait_for(&mut life, left);
        }
        true
    }
}

/// Ends the node's life should the calling thread panic: a bug of the library's then, and without the thread nothing is kept that the node promises.
pub struct Vital<'a>(pub &'a Node);

impl Drop for Vital<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            // Whoever ends the node logs it: a second panic here would end the process.
            let name = thread::current().name().unwrap_or("?").to_owned();
            self.0.begin_closing();
            self.0.set_life(Life::Failed(format!("its thread `{name}` panicked")));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_end_with_the_node_and_later_ones_have_ended() {
        let node = Node::lone(None);
        let (events, letters) = (node.events(), node.dead_letters());
        node.publish(Event::Warning { code: "x", text: "y".into() });
        node.set_life(Life::Stopped);
        assert_eq!((events.iter().count(), letters.iter().count()), (1, 0), "the last event comes first");
        assert_eq!((node.events().iter().count(), node.dead_letters().iter().count()), (0, 0));
    }
}
