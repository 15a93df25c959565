//! One entity without a cluster and without threads.

use std::{
    any::Any,
    cell::{Ref, RefCell},
    collections::VecDeque,
    fmt,
    rc::Rc,
    sync::Arc,
    time::Duration,
};

use crossbeam::channel::{Receiver, unbounded};

use super::{
    ground::{self, Ground},
    time::{Driver, Ticker},
};
use crate::{
    AskError, DeadLetter, Deadline, Entity, EntityKey, EntityRef, EntityType, Epoch, Failure, HostOptions, IntoKey, KeyOf, Message,
    NodeAddr, NodeId, Request, ShardId, ShardKey, Time, Topic, TypeId, Wire,
    api::decode_versions,
    engine::{
        clock::VirtualTime,
        exits::{Lanes, on_behalf},
        helper,
        lane::{Bell, Door, LaneSender, Ring},
        moment::Moment,
        node::{Job, Node, ToNet, ToWorker},
        panics,
        parcel::{Answered, EngineParcel, Key, message_of},
        signs::{self, sign_in},
        topics::Value,
        types::TypeEntry,
        worker::Worker,
    },
    proto::{
        handoff::{Envelope, HandoffItem, Item, Mode, ReplyBody, TransferChunk},
        membership::Identity,
        shard::{LaneItem, Parcel, ShardCommand, ShardReport, Sign, WatchId},
        wire::Frame,
    },
};

/// How long [`Solo::ask`] waits for an answer, in virtual time.
const PATIENCE: Duration = Duration::from_secs(10);
/// An entity that is still not at rest after so many turns at one moment never will be.
const TURNS_MAX: u32 = 1_000_000;
/// All keys of a lone entity's type are in one shard.
const SHARD: ShardId = ShardId(0);

/// One entity, without a cluster, without threads, in virtual time.
///
/// Each call runs turns until nothing is left to do at that moment; time passes in [`advance`](Self::advance), and in [`ask`](Self::ask) as
/// far as an answer takes. The entity runs on the code that runs it in production: its messages are encoded and decoded, its mailbox,
/// timers, failures and restarts are the real ones, and so is what a move takes along.
///
/// What the entity sends elsewhere goes nowhere: [`sent_to`](Self::sent_to) shows it, [`answer`](Self::answer) answers what it asks,
/// [`watched_ends`](Self::watched_ends) ends what it watches. Where it sends is a [`reference`](crate::testkit::reference), given to it by its
/// factory, or one that it resolves. Topics end at the test: [`published`](Self::published) shows its values, [`publish`](Self::publish) gives
/// it others'. It belongs to no cluster, so a node that it watches is gone at once.
///
/// The lone entities of one thread share a clock: while time passes for one of them, the others do what becomes due.
///
/// ```
/// use wingbeat::{testkit::Solo, *};
///
/// messages! { pub enum CounterMsg for Counter(String) = "doc.counter" { Add { n: u64 }, Total -> u64 } }
/// struct Count(u64);
/// impl Entity for Count {
///     type Type = Counter;
///     fn handle(&mut self, msg: CounterMsg, cx: &mut Cx<'_, Self>) {
///         match msg {
///             CounterMsg::Add(Add { n }) => self.0 += n,
///             CounterMsg::Total(Total, reply) => cx.reply(reply, self.0),
///         }
///     }
///     fn handoff(&mut self, cx: &mut Cx<'_, Self>) -> Result<Handoff, Failure> { cx.hand_over(&self.0) }
///     fn adopted(&mut self, state: HandedOver<'_>, _: &mut Cx<'_, Self>) -> Result<(), Failure> {
///         self.0 = state.decode()?;
///         Ok(())
///     }
/// }
///
/// let mut count = Solo::<Count>::new("visits", |_key| Count(0));
/// count.tell(Add { n: 2 }).tell(Add { n: 3 });
/// assert_eq!(count.ask(Total), Ok(5));
/// count.move_away().unwrap();
/// assert_eq!(count.ask(Total), Ok(5), "its state came along");
/// count.crash();
/// assert_eq!(count.ask(Total), Ok(0), "and died with its node");
/// ```
pub struct Solo<E: Entity> {
    inner: Rc<Inner>,
    id: KeyOf<E>,
    /// Sends to the entity from outside.
    entity: EntityRef<E::Type>,
}

/// Gives a test's answer to a request, or lets it wait.
type Answers = Box<dyn FnMut(&Envelope) -> Option<ReplyBody>>;
/// Makes the type's entry for a node: present with a host.
type MakeEntry = Box<dyn Fn() -> TypeEntry>;

struct Inner {
    ground: Rc<Ground>,
    time: Arc<Ticker>,
    key: Key,
    shard: ShardKey,
    make_entry: MakeEntry,
    state: RefCell<State>,
}

struct State {
    home: Home,
    epoch: Epoch,
    /// Nodes where asks may have been opened, this one's predecessors among them.
    askers: Vec<Arc<Node>>,
    /// Asks that end at that moment, by node and slot.
    sent: Vec<Envelope>,
    /// What the entity has published: number of the topic, and the value.
    published: Vec<(u64, Box<[u8]>)>,
    /// Watches of entities elsewhere.
    watches: Vec<(Envelope, WatchId)>,
    answers: Vec<(TypeId, Answers)>,
    /// Types that the entity can resolve references of.
    known: Vec<MakeEntry>,
    /// What the entity's shard hands over, while it moves.
    leaving: Vec<TransferChunk>,
    refused: Option<String>,
    dropped: Vec<DeadLetter>,
}

/// A node that does nothing but run the entity.
struct Home {
    node: Arc<Node>,
    worker: Worker,
    lanes: Lanes,
    rings: Vec<Ring<ToNet>>,
    jobs: Receiver<Job>,
    commands: LaneSender<ToWorker>,
    /// What found no room among the commands, in order.
    waiting: VecDeque<ToWorker>,
    letters: Receiver<DeadLetter>,
}

impl Home {
    fn new(ground: &Ground, entry: TypeEntry, known: impl Iterator<Item = TypeEntry>) -> Self {
        let number = ground.next_home();
        let me = Identity { addr: NodeAddr::new("solo", 1), incarnation: number };
        let door = || Arc::new(Bell::new(|| {}));
        let (helper, jobs) = unbounded();
        let workers = Box::new([Door::new(door())]);
        let node = Arc::new(Node::new(ground::config(), me, workers, Door::new(door()), helper, None, ground.time.clock()));
        node.set_hosting_until(Time::MAX);
        let entry = node.enter_type(entry);
        known.for_each(|entry| drop(node.enter_type(entry)));
        ground.welcome(&node);
        let commands = node.workers[0].open(node.next_lane(), node.config.limits.ring_items as usize);
        let waiting = [ToWorker::Type(entry.clone()), ToWorker::Command(ShardCommand::Host { ty: entry.id })].into();
        let (worker, letters) = (Worker::new(node.clone(), 0, number), node.dead_letters());
        Self { worker, node, lanes: Lanes::default(), rings: vec![], jobs, commands, waiting, letters }
    }

    fn command(&mut self, command: ShardCommand) {
        self.waiting.push_back(ToWorker::Command(command));
    }

    /// One turn, if there is anything to do. What it reported stands in the rings then.
    fn turn(&mut self, now: Time) -> bool {
        while let Some(item) = self.waiting.pop_front() {
            if let Err(item) = self.commands.push(item) {
                self.waiting.push_front(item);
                break;
            }
        }
        self.commands.ring_bell();
        if self.worker.is_quiet() && self.worker.due().is_none_or(|due| due > now) {
            return false;
        }
        let Self { worker, lanes, .. } = self;
        crate::api::mark_engine_thread(true);
        panics::watch_this_thread();
        on_behalf(lanes, || worker.turn(Moment::at(now)));
        crate::api::mark_engine_thread(false);
        true
    }
}

/// Takes what came in to a door, in order per lane.
pub(super) fn drain(node: &Node, rings: &mut Vec<Ring<ToNet>>) -> Vec<ToNet> {
    while let Some(ring) = node.network.take_new() {
        rings.push(ring);
    }
    let mut taken = vec![];
    rings.retain_mut(|ring| {
        let mut open = true;
        while let Some(item) = ring.pop() {
            open &= !matches!(item, ToNet::Lane(LaneItem::End));
            taken.push(item);
        }
        open
    });
    taken.extend(std::iter::from_fn(|| node.network.take_posted()));
    taken
}

impl Inner {
    /// Runs turns until nothing is left to do at this moment.
    fn settle(&self) {
        for _ in 0..TURNS_MAX {
            if !self.step() {
                return;
            }
        }
        panic!("the entity does not come to rest: it still has something to do after {TURNS_MAX} turns at one moment");
    }

    /// One turn, and what came of it. False if there was nothing to do.
    fn step(&self) -> bool {
        let mut state = self.state.borrow_mut();
        let now = self.time.now();
        let mut worked = self.take_in(&mut state);
        worked |= state.home.turn(now);
        worked |= self.take_in(&mut state);
        for asker in state.askers.iter().filter(|asker| asker.asks_due().is_some_and(|due| due <= now)) {
            worked = true;
            asker.expire_asks(now, None);
        }
        let (home, ground) = (state.home.jobs.clone(), self.ground.jobs.clone());
        let letters: Vec<_> = state.home.letters.try_iter().collect();
        state.dropped.extend(letters);
        let metrics = state.home.node.metrics.clone();
        // A callback may use the entity's references, and so find the state borrowed.
        drop(state);
        for job in home.try_iter().chain(ground.try_iter()) {
            worked = true;
            helper::run_one(job, &metrics);
        }
        worked
    }

    /// Takes in what the entity and the test have sent since the last time.
    fn take_in(&self, state: &mut State) -> bool {
        let outside = self.ground.drain();
        let node = state.home.node.clone();
        let own = drain(&node, &mut state.home.rings);
        let worked = !outside.is_empty() || !own.is_empty();
        outside.into_iter().chain(own).for_each(|item| self.incoming(state, item));
        worked
    }

    /// What a network thread would get.
    fn incoming(&self, state: &mut State, item: ToNet) {
        match item {
            ToNet::Lane(LaneItem::Msg { parcel, .. }) => self.message(state, parcel),
            ToNet::Report(_, report) => match *report {
                ShardReport::Handoff { item: HandoffItem::Transfer(chunk), .. } => state.leaving.push(chunk),
                ShardReport::MoveRefused { why, .. } => state.refused = Some(why),
                _ => {}
            },
            ToNet::Cast(_, frame) => {
                if let Frame::Cast { ty: TypeId(0), topic, bytes } = *frame {
                    state.published.push((topic, bytes));
                }
            }
            ToNet::Reply { to, correlation, body } => reply(state, to, correlation, body),
            // Membership, routes and lookups are what a lone entity has none of.
            _ => {}
        }
    }

    fn message(&self, state: &mut State, mut envelope: Envelope) {
        if envelope.shard.ty == self.shard.ty && envelope.key() == self.key.bytes() {
            envelope.shard = self.shard;
            let (stream, tag) = (state.home.node.id, state.epoch);
            let item = Item::Msg { tag, mode: Mode::Settled, envelope };
            return state.home.command(ShardCommand::Item { stream, shard: self.shard, item });
        }
        match sign_in(&envelope) {
            Some(Sign::Watch(ask, watching)) => {
                state.watches.retain(|(_, id)| *id != watching.id && !watching.was.contains(id));
                state.watches.push((envelope, watching.id));
                return reply(state, ask.node, ask.correlation, signs::yes());
            }
            Some(Sign::Unwatch(ask, watching)) => {
                state.watches.retain(|(_, id)| *id != watching.id && !watching.was.contains(id));
                return reply(state, ask.node, ask.correlation, ReplyBody::NoReply);
            }
            Some(Sign::OfShard(ask)) => return reply(state, ask.node, ask.correlation, ReplyBody::NoReply),
            None => {}
        }
        if let Some(ask) = envelope.ask {
            let answers = state.answers.iter_mut().filter(|(ty, _)| *ty == envelope.shard.ty);
            if let Some(body) = answers.map(|(_, answer)| answer(&envelope)).find_map(|body| body) {
                reply(state, ask.node, ask.correlation, body);
            }
        }
        state.sent.push(envelope);
    }

    /// Lets time pass until `done`, or until the moment.
    fn run(&self, until: Time, mut done: impl FnMut() -> bool) {
        loop {
            self.settle();
            let now = self.time.now();
            if done() || now >= until {
                return;
            }
            self.time.pass(until);
        }
    }
}

impl Driver for Inner {
    fn step(&self) -> Option<Duration> {
        assert!(
            self.state.try_borrow_mut().is_ok(),
            "a call that waits was made inside a turn: nothing could happen before its end, neither here nor on a worker thread"
        );
        Inner::step(self).then_some(Duration::ZERO)
    }

    fn due(&self) -> Option<Time> {
        let state = self.state.borrow();
        state.askers.iter().filter_map(|asker| asker.asks_due()).chain(state.home.worker.due()).min()
    }
}

fn reply(state: &State, to: NodeId, correlation: u64, body: ReplyBody) {
    if let Some(asker) = state.askers.iter().find(|asker| asker.id == to) {
        asker.complete(correlation, Answered::Wire(body));
    }
}

impl Inner {
    /// The entity's shard is to run here.
    fn assign(&self) {
        let mut state = self.state.borrow_mut();
        let epoch = state.epoch;
        state.home.command(ShardCommand::Assign { shard: self.shard, epoch, base: epoch });
        drop(state);
        self.settle();
    }

    fn new_home(&self) -> Home {
        let state = self.state.borrow();
        Home::new(&self.ground, (self.make_entry)(), state.known.iter().map(|make| make()))
    }

    fn move_away(&self) -> Result<(), Failure> {
        let mut next = self.new_home();
        let mut state = self.state.borrow_mut();
        let (shard, epoch, from, to) = (self.shard, state.epoch.next(), state.home.node.id, next.node.id);
        state.refused = None;
        state.home.command(ShardCommand::Move { shard, epoch, to });
        drop(state);
        self.settle();
        let mut state = self.state.borrow_mut();
        state.epoch = epoch;
        if let Some(why) = state.refused.take() {
            return Err(Failure::new(why));
        }
        for chunk in std::mem::take(&mut state.leaving) {
            next.command(ShardCommand::Handoff { from, shard, item: HandoffItem::Transfer(chunk) });
        }
        state.askers.push(next.node.clone());
        state.home = next;
        let metrics = state.home.node.metrics.clone();
        drop(state);
        self.settle();
        match metrics.shared.adoptions_failed.get() {
            0 => Ok(()),
            _ => Err(Failure::new("`adopted` did not take the state that was handed over, and the instance started as new")),
        }
    }
}

impl<E: Entity> Solo<E> {
    /// The entity with this key. The factory makes it, as [`Cluster::host`](crate::Cluster::host)'s does, with its first message; it need
    /// not be `Send`.
    pub fn new(key: impl IntoKey<KeyOf<E>>, factory: impl Fn(&KeyOf<E>) -> E + 'static) -> Self {
        Self::hosted(HostOptions::new(), key, factory)
    }

    /// As [`new`](Self::new), hosted with these options: when it leaves memory, how often a message is tried. A count of shards and a role
    /// are not looked at.
    pub fn hosted(options: HostOptions<E>, key: impl IntoKey<KeyOf<E>>, factory: impl Fn(&KeyOf<E>) -> E + 'static) -> Self {
        let options = options.run;
        let id = key.into_key();
        let ground = Ground::of_thread();
        let time = ground.time.clone();
        let factory = ground::local_factory::<E>(factory);
        let make_entry: MakeEntry = Box::new(move || {
            let entry = TypeEntry::new(E::Type::TYPE, 1, std::any::TypeId::of::<E::Type>());
            let host = crate::api::host_of::<E>(factory.clone(), options);
            assert!(entry.set_host(host).is_ok(), "the entry was made just now, and has no host yet");
            entry
        });
        let entity = ground::reference_on::<E::Type>(&ground.node, id.clone());
        let home = Home::new(&ground, make_entry(), std::iter::empty());
        let mut bytes = vec![];
        id.write_to(&mut bytes);
        let shard = ShardKey { ty: TypeId::of(E::Type::TYPE), shard: SHARD };
        let state = State {
            askers: vec![ground.node.clone(), home.node.clone()],
            home,
            epoch: Epoch(1),
            sent: vec![],
            published: vec![],
            watches: vec![],
            answers: vec![],
            known: vec![],
            leaving: vec![],
            refused: None,
            dropped: vec![],
        };
        // What the test, or another entity, has sent to nowhere before is nothing of this one's.
        drop(ground.drain());
        let inner = Rc::new(Inner { ground, time, key: Key::new(&bytes), shard, make_entry, state: RefCell::new(state) });
        inner.time.driven_by(&inner);
        inner.assign();
        Self { inner, id, entity }
    }

    /// Its key.
    pub fn key(&self) -> &KeyOf<E> {
        &self.id
    }

    /// The moment it is.
    pub fn now(&self) -> Time {
        self.inner.time.now()
    }

    /// Tells it something.
    ///
    /// # Panics
    /// If the message is refused: the key cannot travel, or the message has no encoding or is too large.
    #[track_caller]
    pub fn tell(&mut self, msg: impl Message<E::Type>) -> &mut Self {
        if let Err(refused) = self.entity.tell(msg) {
            panic!("`{}` did not accept the message: {}", E::Type::TYPE, refused.reason());
        }
        self.inner.settle();
        self
    }

    /// Asks it something, for ten seconds of virtual time at most. Time passes only as far as the answer takes: none for one that is given
    /// at once.
    ///
    /// # Errors
    /// [`AskError`], as [`EntityRef::ask`].
    pub fn ask<R: Request<E::Type>>(&mut self, req: R) -> Result<R::Reply, AskError> {
        self.ask_within(req, PATIENCE)
    }

    /// As [`ask`](Self::ask), with another deadline.
    ///
    /// # Errors
    /// [`AskError`], as [`EntityRef::ask`].
    pub fn ask_within<R: Request<E::Type>>(&mut self, req: R, deadline: impl Into<Deadline>) -> Result<R::Reply, AskError> {
        let deadline = deadline.into().resolve(self.now());
        let (tx, rx) = crossbeam::channel::bounded(1);
        self.entity.ask_then(req, deadline, move |answer| drop(tx.send(answer)));
        let mut answer = None;
        self.inner.run(deadline, || {
            answer = answer.take().or_else(|| rx.try_recv().ok());
            answer.is_some()
        });
        answer.unwrap_or(Err(AskError::Timeout { maybe_ran: true }))
    }

    /// Passes time; what becomes due happens in order, each at its moment.
    pub fn advance(&mut self, d: Duration) -> &mut Self {
        self.inner.run(self.now() + d, || false);
        self
    }

    /// Moves it to another node: `handoff`, its bytes, a new instance, `adopted`. Waiting messages and timers go along.
    ///
    /// # Errors
    /// What [`Entity::handoff`] said against it, and then the old instance works on; or that `adopted` did not take the state, and then the
    /// new instance has started as new.
    pub fn move_away(&mut self) -> Result<&mut Self, Failure> {
        self.inner.settle();
        self.inner.move_away()?;
        Ok(self)
    }

    /// Loses it with its node: no `handoff`, no `stopped`. The next message starts a new instance elsewhere.
    pub fn crash(&mut self) -> &mut Self {
        self.inner.settle();
        let home = self.inner.new_home();
        let mut state = self.inner.state.borrow_mut();
        state.epoch = state.epoch.next();
        state.askers.push(home.node.clone());
        state.home = home;
        drop(state);
        self.inner.assign();
        self
    }

    /// Answers what it asks of entities of `T`, from now on: `f` gets key and message of every request to `T`, and has an answer for a
    /// request `R`, or `None`. A request that nobody answers times out.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use wingbeat::{testkit::{self, Solo}, *};
    /// messages! { pub enum FuelMsg for Fuel(u64) = "doc.fuel" { Level -> u64 } }
    /// messages! { pub enum PlaneMsg for Plane(String) = "doc.plane" { Check, Seen -> Option<u64> } }
    /// struct State { tank: EntityRef<Fuel>, seen: std::sync::Arc<std::sync::atomic::AtomicU64> }
    /// # use std::sync::{Arc, atomic::{AtomicU64, Ordering}};
    /// impl Entity for State {
    ///     type Type = Plane;
    ///     fn handle(&mut self, msg: PlaneMsg, cx: &mut Cx<'_, Self>) {
    ///         match msg {
    ///             PlaneMsg::Check(Check) => {
    ///                 let seen = self.seen.clone();
    ///                 self.tank.ask_then(Level, Duration::from_secs(1), move |level| seen.store(level.unwrap_or(0), Ordering::SeqCst));
    ///             }
    ///             PlaneMsg::Seen(Seen, reply) => cx.reply(reply, Some(self.seen.load(Ordering::SeqCst))),
    ///         }
    ///     }
    /// }
    /// let mut plane = Solo::<State>::new("N1", |_| State { tank: testkit::reference(7u64), seen: Arc::default() });
    /// plane.answer::<Fuel, Level>(|tank, msg| matches!(msg, FuelMsg::Level(..)).then_some(tank * 6));
    /// plane.tell(Check);
    /// assert_eq!(plane.ask(Seen), Ok(Some(42)));
    /// assert_eq!(plane.sent_to::<Fuel>().len(), 1);
    /// ```
    pub fn answer<T: EntityType, R: Request<T>>(&mut self, mut f: impl FnMut(&T::Key, &T::Msg) -> Option<R::Reply> + 'static) -> &mut Self {
        let answer: Answers = Box::new(move |envelope| {
            let (key, msg) = read::<T>(envelope).unwrap_or_else(|why| panic!("{why}"));
            f(&key, &msg).map(|value| crate::api::encode_reply(&value, EngineParcel::from_envelope(envelope.clone()).reads()))
        });
        self.inner.state.borrow_mut().answers.push((TypeId::of(T::TYPE), answer));
        self
    }

    /// Lets it resolve the ids of entities of `T`, as if its node had a proxy for the type.
    pub fn proxy<T: EntityType>(&mut self) -> &mut Self {
        let make = || TypeEntry::new(T::TYPE, 0, std::any::TypeId::of::<T>());
        let mut state = self.inner.state.borrow_mut();
        state.home.node.enter_type(make());
        state.known.push(Box::new(make));
        drop(state);
        self
    }

    /// Takes what it sent to entities of `T` since the last call, in order, requests among it.
    ///
    /// # Panics
    /// If something of it cannot be read back: its encoding does not fit its decoding.
    #[track_caller]
    pub fn sent_to<T: EntityType>(&mut self) -> Vec<(T::Key, T::Msg)> {
        self.inner.settle();
        let mut state = self.inner.state.borrow_mut();
        let ty = TypeId::of(T::TYPE);
        let (mine, others) = std::mem::take(&mut state.sent).into_iter().partition(|envelope| envelope.shard.ty == ty);
        state.sent = others;
        let mine: Vec<Envelope> = mine;
        mine.iter().map(|envelope| read::<T>(envelope).unwrap_or_else(|why| panic!("{why}"))).collect()
    }

    /// Takes what it published on the topic of this name for values of this type since the last call, in order.
    ///
    /// # Panics
    /// If a value cannot be read back: its encoding does not fit its decoding.
    #[track_caller]
    pub fn published<V: Wire + Clone>(&mut self, topic: &str) -> Vec<V> {
        self.inner.settle();
        let mut state = self.inner.state.borrow_mut();
        let id = Topic::<V>::new(state.home.node.clone(), topic).entry.id;
        let mine = state.published.extract_if(.., |(topic, _)| *topic == id);
        let read = |bytes: &[u8]| decode_versions(bytes).unwrap_or_else(|why| panic!("a value of `{topic}` cannot be read back: {why}"));
        mine.map(|(_, bytes)| read(&bytes)).collect()
    }

    /// Publishes a value as another node would: the entity gets it if it has subscribed.
    pub fn publish<V: Wire + Clone>(&mut self, topic: &str, value: V) -> &mut Self {
        let node = self.inner.state.borrow().home.node.clone();
        Topic::<V>::new(node.clone(), topic).entry.deliver(&node, &(Arc::new(value) as Value));
        self.inner.settle();
        self
    }

    /// Ends the entity with this key that it watches: what it has asked to be told then, it is told. False if it watches no such entity.
    pub fn watched_ends<T: EntityType>(&mut self, key: impl IntoKey<T::Key>) -> bool {
        self.inner.settle();
        let (ty, mut bytes) = (TypeId::of(T::TYPE), vec![]);
        key.into_key().write_to(&mut bytes);
        let mut state = self.inner.state.borrow_mut();
        let ended: Vec<_> = state.watches.extract_if(.., |(watch, _)| watch.shard.ty == ty && watch.key() == &*bytes).collect();
        // One that was ended by the entity itself has nobody who waits for it.
        let open = |id: &WatchId| state.askers.iter().any(|node| node.id == id.node && node.slots.is_open(id.number));
        let watched = ended.iter().any(|(_, id)| open(id));
        ended.into_iter().for_each(|(_, id)| reply(&state, id.node, id.number, ReplyBody::NoReply));
        drop(state);
        self.inner.settle();
        watched
    }

    /// Takes what was accepted for it and then given up, since the last call.
    pub fn dropped(&mut self) -> Vec<DeadLetter> {
        self.inner.settle();
        std::mem::take(&mut self.inner.state.borrow_mut().dropped)
    }

    /// Its state; `None` if it is not in memory.
    pub fn state(&self) -> Option<Ref<'_, E>> {
        let state = self.inner.state.borrow();
        Ref::filter_map(state, |state| {
            let instance = state.home.worker.instance(self.inner.shard, self.inner.key.bytes())?;
            let entity: &dyn Any = instance.entity();
            entity.downcast_ref()
        })
        .ok()
    }

    /// Whether it is in memory: it was started, and has neither passivated nor failed since.
    pub fn is_live(&self) -> bool {
        self.state().is_some()
    }
}

/// Key and message as `T` has them.
fn read<T: EntityType>(envelope: &Envelope) -> Result<(T::Key, T::Msg), String> {
    let key = T::Key::read_from(envelope.key()).map_err(|e| format!("a key of `{}` cannot be read back: {e}", T::TYPE))?;
    let msg = T::Msg::decode(*T::Msg::VERSIONS.end(), &mut message_of(envelope));
    Ok((key, msg.map_err(|e| format!("a message of `{}` cannot be read back: {e}", T::TYPE))?))
}

impl<E: Entity> fmt::Debug for Solo<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Solo({}/{})", E::Type::TYPE, self.id)
    }
}
