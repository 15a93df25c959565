//! The entities of one type, wherever they live.

use std::{fmt, marker::PhantomData, sync::Arc, time::Duration};

use super::context::resolve;
use crate::{
    Addressed, Batch, Deadline, Entity, EntityKey, EntityRef, EntityType, Event, IntoKey, Member, Message, NodeId, Refusal, ShardId,
    TellError, TypeId, Wire,
    engine::{
        exits,
        node::{Life, Node, ToNet, ToWorker},
        types::{Standing, TypeEntry},
    },
    error::codes,
    proto::{membership::Ending, node::Command, shard::TypeOptions, sharding::shard_of, wire::Frame},
};

/// The entities of one type: a host on this node, or a proxy. Cheap to clone.
///
/// Does not keep the cluster alive: after shutdown everything answers `Shutdown`. Messages of one thread to one entity keep their order,
/// also across moves.
pub struct Region<T: EntityType> {
    node: Arc<Node>,
    entry: Arc<TypeEntry>,
    _type: PhantomData<fn() -> T>,
}

impl<T: EntityType> Clone for Region<T> {
    fn clone(&self) -> Self {
        Self::new(self.node.clone(), self.entry.clone())
    }
}

impl<T: EntityType> fmt::Debug for Region<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.entry.shards() {
            Some(shards) => write!(f, "Region({}, {shards} shards)", self.entry.name),
            None => write!(f, "Region({}, shards not known yet)", self.entry.name),
        }
    }
}

impl<T: EntityType> Region<T> {
    pub(crate) fn new(node: Arc<Node>, entry: Arc<TypeEntry>) -> Self {
        Self { node, entry, _type: PhantomData }
    }

    /// Of a type that the node hosts or has a proxy for.
    pub(super) fn find(node: &Arc<Node>) -> Option<Self> {
        let entry = node.type_entry(TypeId::of(T::TYPE))?;
        (entry.declared_by == std::any::TypeId::of::<T>()).then(|| Self::new(node.clone(), entry))
    }

    pub(super) fn node(&self) -> &Arc<Node> {
        &self.node
    }

    pub(super) fn entry(&self) -> &TypeEntry {
        &self.entry
    }

    /// The entity with this key. Makes and sends nothing.
    pub fn get(&self, key: impl IntoKey<T::Key>) -> EntityRef<T> {
        EntityRef::new(self.node.clone(), self.entry.clone(), key.into_key())
    }

    /// For messages that carry their own key: `(key, msg)` or any [`Addressed`].
    ///
    /// # Errors
    /// [`Refusal::Unaddressed`] if the message names no key; else as [`EntityRef::tell`].
    pub fn deliver(&self, m: impl Addressed<T>) -> Result<(), TellError<T::Msg>> {
        match m.address() {
            Ok((key, msg)) => self.get(key).tell(msg),
            Err(msg) => {
                self.node.metrics.shared.sends_refused.add(1);
                Err(TellError::new(Refusal::Unaddressed, msg))
            }
        }
    }

    /// Nothing to send yet: collects messages that are sent together.
    pub fn batch(&self) -> Batch<T> {
        Batch::new(self.node.clone(), self.entry.clone())
    }

    /// Sends `msg` to every entity of the type that is live on those nodes; starts none. Does not block.
    ///
    /// # Guaranteed
    /// At most once to each instance that is live when the message comes to its worker.
    ///
    /// # Not guaranteed
    /// Delivery: it is lost where a link breaks or a queue is full (`casts_unsent` counts), and an entity may miss it, or get it in both its homes, while
    /// its shard moves. Order to other messages.
    ///
    /// # Errors
    /// [`TellError`] with the [`Refusal`] and the message; nobody got it.
    pub fn broadcast(&self, to: Nodes, msg: impl Message<T>) -> Result<(), TellError<T::Msg>> {
        let msg = msg.into_msg();
        let mut bytes = Vec::new();
        let refusal = match msg.encode(*T::Msg::VERSIONS.end(), &mut bytes) {
            _ if self.node.is_closing() => Some(Refusal::Shutdown),
            Err(error) => Some(Refusal::Encode(error.to_string())),
            Ok(()) => {
                let (size, max) = (bytes.len(), self.node.config.limits.message_bytes as usize);
                (size > max).then_some(Refusal::TooLarge { size, max })
            }
        };
        let sent = refusal.map_or(Ok(()), Err).and_then(|()| {
            let here = nodes_here(&to, &self.node);
            let sent = exits::with(&self.node, |exits| {
                if to != Nodes::Here {
                    let frame = Frame::Cast { ty: self.entry.id, topic: 0, bytes: bytes.as_slice().into() };
                    exits.tell_network(ToNet::Cast(to, Box::new(frame)))?;
                }
                if here {
                    let bytes: Arc<[u8]> = bytes.into();
                    let without_room = exits.tell_workers(|| ToWorker::Broadcast(self.entry.id, bytes.clone()));
                    self.node.metrics.shared.casts_unsent.add(without_room.len() as u64);
                }
                Ok(())
            });
            sent.unwrap_or(Err(Refusal::Shutdown))
        });
        sent.map_err(|refusal| {
            self.node.metrics.shared.sends_refused.add(1);
            TellError::new(refusal, msg)
        })
    }

    /// Whether this node only sends to the type.
    pub fn is_proxy(&self) -> bool {
        !self.entry.is_hosted()
    }

    /// How many shards the type has. A proxy takes the number of the hosts: `None` until it has heard it, which
    /// [`wait_ready`](Self::wait_ready) waits for.
    pub fn shards(&self) -> Option<u32> {
        self.entry.shards()
    }

    /// The shard of a key; `None` as long as [`shards`](Self::shards) is.
    pub fn shard_of(&self, key: &T::Key) -> Option<ShardId> {
        let mut bytes = Vec::with_capacity(32);
        key.write_to(&mut bytes);
        let hash = xxhash_rust::xxh3::xxh3_64(&bytes);
        self.entry.shards().map(|shards| shard_of(hash, shards))
    }

    /// Waits until homes can be looked up here: this node is up and the coordinator has taken the type in, which for a proxy means that
    /// some node hosts it or has. What a readiness probe waits for. Messages may be sent before: they wait in a bounded buffer.
    ///
    /// # Errors
    /// [`QueryError`]: refused (another shard count is in force, or a cluster does not take the node in), not in time, or shutting down. On a worker
    /// thread at once.
    pub fn wait_ready(&self, deadline: impl Into<Deadline>) -> Result<(), QueryError> {
        if super::reference::on_engine_thread() {
            return Err(QueryError::WouldDeadlock);
        }
        let standing = self.entry.wait_standing(&self.node, resolve(&self.node, deadline));
        self.serves()?;
        match standing {
            Standing::Ready => Ok(()),
            Standing::Refused(why) => Err(QueryError::Refused { why }),
            Standing::Asked => Err(QueryError::Timeout),
        }
    }

    /// What a question comes to on a node that serves no more.
    pub(super) fn serves(&self) -> Result<(), QueryError> {
        match self.node.ending() {
            _ if self.node.serves() => Ok(()),
            Some(Ending::Refused(why)) => Err(QueryError::Refused { why: why.clone() }),
            _ => Err(QueryError::Shutdown),
        }
    }

    /// Runs `f` once, on the helper thread, when what had no room for a message to this key may have some again: for who was refused with `Full` or
    /// `NoCredit` and has something else to do meanwhile. At once if there is room. Room that is there may be gone again when `f` sends: it is refused
    /// then, and may ask again. At the end of the node `f` runs, or is dropped.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use wingbeat::*;
    /// # messages! { pub enum LogMsg for Log(String) = "doc.log" { Line { text: String } } }
    /// fn send(logs: Region<Log>, line: LogMsg) {
    ///     if let Err(refused) = logs.get("app").tell(line) {
    ///         match refused.reason() {
    ///             Refusal::Full | Refusal::NoCredit => {
    ///                 let again = logs.clone();
    ///                 logs.on_room(&"app".into(), move || send(again, refused.into_message()));
    ///             }
    ///             reason => eprintln!("lost: {reason}"),
    ///         }
    ///     }
    /// }
    /// ```
    pub fn on_room(&self, key: &T::Key, f: impl FnOnce() + Send + 'static) {
        let mut bytes = Vec::with_capacity(32);
        key.write_to(&mut bytes);
        let shard = self.entry.shard_of(xxhash_rust::xxh3::xxh3_64(&bytes));
        let node = Arc::downgrade(&self.node);
        let job = Box::new(move || {
            if let Some(node) = node.upgrade() {
                node.help(Box::new(f));
            }
        });
        if let Err((word, job)) = self.entry.when_room(shard.shard, job) {
            // The link has room; what may have none is a ring, which its consumer empties in the turn that takes this up.
            match word.exit() {
                Some((worker, _)) => self.node.workers[usize::from(worker)].post(ToWorker::Run(job)),
                None => self.node.command(move |id| Command::Locate { id, shard }, Some(Box::new(|_| job()))),
            }
        }
        // Nobody publishes a word any more.
        if self.node.life() == Life::Stopped {
            self.entry.call_waiters(|_| true);
        }
    }

    /// Events of the cluster, from now on; see [`Cluster::events`](crate::Cluster::events).
    pub fn events(&self) -> crossbeam::channel::Receiver<Event> {
        self.node.events()
    }
}

/// Which nodes are meant.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Nodes {
    /// All members.
    All,
    /// This one.
    Here,
    /// Those with this role.
    Role(String),
    /// These.
    Only(Vec<NodeId>),
}

impl Nodes {
    /// Whether that member is meant by one who is `me`.
    pub(crate) fn contain(&self, me: NodeId, member: &Member) -> bool {
        match self {
            Self::All => true,
            Self::Here => member.id == me,
            Self::Role(role) => member.roles.contains(role),
            Self::Only(nodes) => nodes.contains(&member.id),
        }
    }
}

/// Whether this node is meant. It may not be a member yet.
fn nodes_here(nodes: &Nodes, node: &Node) -> bool {
    match nodes {
        Nodes::All | Nodes::Here => true,
        Nodes::Role(role) => node.config.cluster.roles.contains(role),
        Nodes::Only(only) => only.contains(&node.id),
    }
}

/// How a type is hosted. What is not set comes from the settings. The shard count must match on every host.
#[must_use = "options do nothing before they are given to `Cluster::host`"]
pub struct HostOptions<E: Entity> {
    pub(crate) shards: Option<u32>,
    pub(crate) role: Option<String>,
    pub(crate) run: TypeOptions,
    _entity: PhantomData<fn() -> E>,
}

impl<E: Entity> Default for HostOptions<E> {
    fn default() -> Self {
        Self { shards: None, role: None, run: TypeOptions::default(), _entity: PhantomData }
    }
}

impl<E: Entity> Clone for HostOptions<E> {
    fn clone(&self) -> Self {
        Self { shards: self.shards, role: self.role.clone(), run: self.run, _entity: PhantomData }
    }
}

impl<E: Entity> fmt::Debug for HostOptions<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostOptions {{ shards: {:?}, role: {:?}, run: {:?} }}", self.shards, self.role, self.run)
    }
}

impl<E: Entity> HostOptions<E> {
    /// Nothing set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Number of shards, 1 to 1,048,576: about ten times the largest planned number of nodes. Fixed while any node is up.
    pub fn shards(mut self, n: u32) -> Self {
        self.shards = Some(n);
        self
    }

    /// Host only on nodes with this role; on others `host` gives a proxy.
    pub fn on_role(mut self, role: impl Into<String>) -> Self {
        self.role = Some(role.into());
        self
    }

    /// When entities leave memory by themselves. Default: never.
    pub fn passivation(mut self, passivation: Passivation) -> Self {
        self.run.idle = passivation.idle;
        self.run.live = passivation.limit;
        self
    }

    /// Messages that may wait for one entity while it is suspended, backs off or moves in; at least 1. Default: `limits.mailbox`.
    pub fn mailbox(mut self, capacity: usize) -> Self {
        self.run.mailbox = Some(capacity.max(1));
        self
    }

    /// How long an entity that failed pauses before it is started again: `first` after one failure, twice as long after each further one in a row,
    /// `longest` at most. A turn that succeeds ends the row. Default: 100 ms, and `sharding.restart_backoff`.
    pub fn backoff(mut self, first: Duration, longest: Duration) -> Self {
        self.run.backoff = Some((first, longest.max(first)));
        self
    }

    /// How often a message whose handler panics is given to the entity, at least 1, which is the default. After that it becomes a dead letter
    /// (`Poison`), and its asker, if there is one, gets `EntityFailed`.
    ///
    /// Until the next attempt it stands in front of what waits, also of what its entity had put aside before it, which comes back behind it. Where it is given
    /// up before that, as its entity does not start any more or its node stops, it is `Poison` as well: its asker must not be told that it did not run. If
    /// its shard moves meanwhile, an asker hears that at once, and a message that was told is tried on the new home as if it had not been before.
    ///
    /// Above 1 a handler that panicked half way runs again from the start, and messages sent on this node are encoded before they run, so that
    /// their bytes are there for the next attempt and for the dead letter.
    pub fn attempts(mut self, n: u32) -> Self {
        self.run.attempts = n.max(1);
        self
    }
}

/// When entities leave memory by themselves.
///
/// An entity that leaves runs [`Entity::stopped`] with `Passivated`, or `Evicted` where it makes room; the next message starts another instance. Timers and watches end
/// with the instance, what it put aside goes back to its mailbox. Messages that it sent to itself (timers, watches) do not count as use.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Passivation {
    /// After so long without a message, and a quarter of that later at most.
    pub idle: Option<Duration>,
    /// When more than so many are live on a node.
    pub limit: Option<usize>,
}

impl Passivation {
    /// Only when they ask for it.
    pub fn never() -> Self {
        Self::default()
    }

    /// After so long without a message from outside.
    pub fn idle(after: Duration) -> Self {
        Self { idle: Some(after), limit: None }
    }

    /// And when more than about `entities` of the type are live on a node: for each that starts beyond that, one of the same shard leaves that was not
    /// used for long, which is found among some that are looked at. One with messages that wait or are stashed stays. The bound is divided evenly
    /// among the node's workers, and may be exceeded by one entity for each shard.
    pub fn limit(mut self, entities: usize) -> Self {
        self.limit = Some(entities);
        self
    }
}

/// Why a question was not answered.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QueryError {
    /// Nobody answered in time.
    #[error("no answer in time: the coordinator was not reached")]
    Timeout,
    /// There is a new coordinator, which has not heard of all homes.
    #[error("the coordinator is taking over and does not know all homes yet; try again in a few seconds")]
    TakingOver,
    /// This node is shutting down.
    #[error("shutting down")]
    Shutdown,
    /// Called on a worker or the network thread, which others wait for.
    #[error("waiting on a thread that others wait for would deadlock")]
    WouldDeadlock,
    /// The coordinator does not take the type in, or a cluster this node.
    #[error("refused: {why}")]
    Refused {
        /// The reason, with both values.
        why: String,
    },
}

codes! {
    QueryError {
        Timeout = "E-QRY-001", Shutdown = "E-QRY-002", Refused = "E-QRY-003", WouldDeadlock = "E-QRY-004", TakingOver = "E-QRY-005",
    }
}
