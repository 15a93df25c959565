//! A node of a cluster.

use std::{
    fmt, io,
    net::SocketAddr,
    sync::{Arc, Weak},
    time::Duration,
};

use crossbeam::channel::{Receiver, RecvTimeoutError};

use super::{
    context::resolve,
    hosting::host_of,
    shutdown::{Phase, Reaper, ShutdownHandle, ShutdownReason, ShutdownReport},
};
use crate::{
    Config, Deadline, Entity, EntityId, EntityRef, EntityType, HostOptions, KeyOf, Lease, NodeAddr, NodeId, Region, ShardId, Singleton,
    Time, Topic, TypeId, Wire,
    config::ConfigErrors,
    engine::{
        self,
        carrier::Carrier,
        node::{Life, Node, ToNet},
        sys::GiveBackPages,
        types::TypeEntry,
    },
    error::codes,
    metrics::Latency,
    net::Net,
    proto::{
        handoff::DropReason,
        membership::{ClusterView, Ending, Event, MemberStatus},
        node::{Answer, Command},
        sharding::SHARDS_MAX,
    },
};

/// A node of a cluster. Cheap to clone.
///
/// Dropping the last clone starts an orderly shutdown and does not wait for it; regions and references do not keep the node alive.
#[derive(Clone)]
pub struct Cluster {
    inner: Arc<Inner>,
}

struct Inner {
    node: Arc<Node>,
    reaper: Reaper,
    #[cfg(feature = "admin")]
    admin: Option<SocketAddr>,
    /// Last, as it counts when the node is gone, if nobody else has it; none where there are many nodes in one process, and none has threads.
    pages: Option<GiveBackPages>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.reaper.request(ShutdownReason::Requested);
        if self.node.life() != Life::Stopped {
            // Its threads are at work, which this would hold up, and give the pages back at their end.
            self.pages.iter_mut().for_each(GiveBackPages::leave);
        }
    }
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cluster({} {})", self.addr(), self.id())
    }
}

impl Cluster {
    /// From a [`Config`], or from a name and defaults. What the builder sets wins over environment, file and defaults.
    pub fn builder(config: impl Into<Config>) -> ClusterBuilder {
        ClusterBuilder { config: config.into(), lease: None }
    }

    /// The handle of a node whose threads somebody else sees to.
    pub(crate) fn of(node: Arc<Node>, reaper: Reaper) -> Self {
        let inner = Inner {
            node,
            reaper,
            #[cfg(feature = "admin")]
            admin: None,
            pages: None,
        };
        Self { inner: Arc::new(inner) }
    }

    /// Ends the node at once, without leaving the cluster.
    pub(crate) fn kill(&self) {
        self.inner.reaper.kill();
    }

    pub(crate) fn node(&self) -> &Arc<Node> {
        &self.inner.node
    }

    /// This life of this node.
    pub fn id(&self) -> NodeId {
        self.node().id
    }

    /// What it advertises.
    pub fn addr(&self) -> &NodeAddr {
        &self.node().addr
    }

    /// Time on this node's clock.
    pub fn now(&self) -> Time {
        self.node().now()
    }

    /// The moment it is for calendars; see [`Cx::wall_clock`](crate::Cx::wall_clock).
    pub fn wall_clock(&self) -> std::time::SystemTime {
        self.node().clock.wall()
    }

    /// All settings in force.
    pub fn config(&self) -> &Config {
        &self.node().config
    }

    /// A consistent snapshot of the membership; an `Arc` clone.
    pub fn view(&self) -> Arc<ClusterView> {
        self.node().view()
    }

    /// Waits until this node is up.
    ///
    /// # Errors
    /// [`JoinError`]: not in time, or refused; the node goes on trying unless it was refused for good. On a worker thread at once.
    pub fn wait_up(&self, deadline: impl Into<Deadline>) -> Result<Arc<ClusterView>, JoinError> {
        self.wait_members(1, deadline)
    }

    /// Waits until this node and `n` members in all are up.
    ///
    /// # Errors
    /// [`JoinError`]: not in time, or refused; the node goes on trying unless it was refused for good. On a worker thread at once.
    pub fn wait_members(&self, n: usize, deadline: impl Into<Deadline>) -> Result<Arc<ClusterView>, JoinError> {
        if super::reference::on_engine_thread() {
            return Err(JoinError::WouldDeadlock);
        }
        let up = |view: &Arc<ClusterView>| view.members.iter().filter(|m| m.status == MemberStatus::Up).count();
        let myself_up = |view: &Arc<ClusterView>| view.myself().is_some_and(|m| m.status == MemberStatus::Up);
        let node = self.node();
        // The last view of a node that has ended still shows it up.
        let enough = |view: &Arc<ClusterView>| (node.serves() && myself_up(view) && up(view) >= n).then(|| view.clone());
        node.wait_view(resolve(node, deadline), enough).ok_or_else(|| match node.ending() {
            Some(Ending::Refused(why)) => JoinError::Refused { why: why.clone() },
            None if node.serves() => JoinError::Timeout { up: up(&self.view()), wanted: n },
            _ => JoinError::Shutdown,
        })
    }

    /// A bounded stream of events that begins with the present members. The engine never waits for a reader: one that is too slow misses events, which
    /// are counted, and [`Event::Lagged`] says how many in front of the first behind them.
    pub fn events(&self) -> Receiver<Event> {
        self.node().events()
    }

    /// Runs `f` on the helper thread for each event, until the subscription is dropped.
    #[must_use = "dropping it ends the subscription"]
    pub fn on_event(&self, f: impl FnMut(&Event) + Send + 'static) -> Subscription {
        let f = parking_lot::Mutex::new(f);
        let watcher: Arc<dyn Fn(&Event) + Send + Sync> = Arc::new(move |event: &Event| (*f.lock())(event));
        self.node().watch_events(Arc::downgrade(&watcher) as Weak<_>);
        Subscription::keeping(watcher)
    }

    /// A bounded stream of the messages that are accepted and then given up on this node, from now on.
    pub fn dead_letters(&self) -> Receiver<DeadLetter> {
        self.node().dead_letters()
    }

    /// What this node measures in time, since it began: how long requests of its threads and turns of its workers take, and how late its timers are.
    /// Requests and turns of workers are sampled.
    pub fn latency(&self) -> Vec<Latency> {
        self.node().metrics.latencies()
    }

    /// Hosts `E` here, or gives a proxy where [`HostOptions::on_role`] names a role that this node lacks. The factory runs on the worker that
    /// will own the entity.
    ///
    /// # Errors
    /// [`RegisterError`]; nothing was registered. A shard count that differs from the cluster's is found out by the coordinator, and
    /// told by [`Region::wait_ready`].
    pub fn host<E: Entity>(
        &self,
        options: HostOptions<E>,
        factory: impl Fn(&KeyOf<E>) -> E + Send + Sync + 'static,
    ) -> Result<Region<E::Type>, RegisterError> {
        if let Some(role) = options.role.as_ref().filter(|role| !self.config().cluster.roles.contains(role)) {
            tracing::debug!(target: "wingbeat::engine", entity_type = E::Type::TYPE, %role, "not hosted here: this node lacks the role");
            return self.proxy();
        }
        let mut run = options.run;
        run.live = run.live.map(|limit| limit.div_ceil(self.node().workers.len().max(1)));
        let host = host_of::<E>(Arc::new(factory), run);
        let entry = self.enter::<E::Type>(Some(options.shards))?;
        if self.node().host(&entry, host).is_err() {
            return Err(RegisterError::Duplicate { name: entry.name.to_string() });
        }
        self.node().network.post(ToNet::Type(entry.clone(), true));
        Ok(Region::new(self.node().clone(), entry))
    }

    /// Sends to entities that other nodes host. Needs no implementation, and takes the number of shards from the cluster. What
    /// [`host`](Self::host) made before, if it did.
    ///
    /// # Errors
    /// [`RegisterError`] if another Rust type uses the name on this node, or during shutdown.
    pub fn proxy<T: EntityType>(&self) -> Result<Region<T>, RegisterError> {
        if let Some(region) = self.region() {
            return Ok(region);
        }
        let entry = self.enter::<T>(None)?;
        self.node().network.post(ToNet::Type(entry.clone(), false));
        Ok(Region::new(self.node().clone(), entry))
    }

    /// Hosts a singleton: one instance in the cluster, on the member where its only shard lives, or a proxy where
    /// [`HostOptions::on_role`] names a role that this node lacks.
    ///
    /// It starts with its first message; where it must run from the beginning, send it one. When its node leaves, it moves like any entity,
    /// with its state; when its node dies, another member starts it anew. A count of shards in the options is not looked at.
    ///
    /// # Errors
    /// [`RegisterError`]; nothing was registered.
    pub fn singleton<E: Entity<Type: EntityType<Key = Singleton>>>(
        &self,
        options: HostOptions<E>,
        factory: impl Fn() -> E + Send + Sync + 'static,
    ) -> Result<EntityRef<E::Type>, RegisterError> {
        self.host(options.shards(1), move |Singleton| factory()).map(|region| region.get(Singleton))
    }

    /// The singleton of a type, on nodes that merely send to it.
    ///
    /// # Errors
    /// As [`proxy`](Self::proxy).
    pub fn only<T: EntityType<Key = Singleton>>(&self) -> Result<EntityRef<T>, RegisterError> {
        self.proxy().map(|region: Region<T>| region.get(Singleton))
    }

    /// The topic of this name for values of this type, on all nodes.
    pub fn topic<V: Wire + Clone>(&self, name: &str) -> Topic<V> {
        Topic::new(self.node().clone(), name)
    }

    /// Runs `f` on the helper thread once, when that node has been removed from the cluster: it has left, or was declared dead and taken out.
    /// At once if this node knows no such member.
    #[must_use = "dropping it ends the subscription"]
    pub fn watch_node(&self, node: NodeId, f: impl FnOnce(NodeId) + Send + 'static) -> Subscription {
        let once = Arc::new(parking_lot::Mutex::new(Some(f)));
        let mine = once.clone();
        let tell = move || {
            if let Some(f) = mine.lock().take() {
                f(node);
            }
        };
        let tell = Arc::new(tell);
        let watcher = tell.clone();
        let subscription = self.on_event(move |event| {
            if matches!(event, Event::Member { member, .. } if member.id == node && member.status == MemberStatus::Removed) {
                watcher();
            }
        });
        // After the subscription, so that a removal in between is not missed; `f` is there once.
        if self.view().member(node).is_none_or(|m| m.status == MemberStatus::Removed) {
            // The subscription keeps it.
            let tell = Arc::downgrade(&tell);
            self.node().help(Box::new(move || _ = tell.upgrade().map(|tell| tell())));
        }
        subscription
    }

    /// What `host` or `proxy` made before.
    pub fn region<T: EntityType>(&self) -> Option<Region<T>> {
        Region::find(self.node())
    }

    /// A reference to an entity of a type that this node hosts or has a proxy for.
    pub fn resolve<T: EntityType>(&self, id: &EntityId<T>) -> Option<EntityRef<T>> {
        EntityRef::resolve(self.node(), id)
    }

    /// The entry of a type. `host`: it is to be hosted here, with this number of shards or that of the settings.
    fn enter<T: EntityType>(&self, host: Option<Option<u32>>) -> Result<Arc<TypeEntry>, RegisterError> {
        if self.node().is_closing() {
            return Err(RegisterError::Shutdown);
        }
        let name = T::TYPE.to_owned();
        if name.is_empty() || name.len() > 255 || name.chars().any(char::is_control) {
            let why = "the name of a type has 1 to 255 bytes and no control characters".to_owned();
            return Err(RegisterError::Invalid { name: name.escape_debug().to_string(), why });
        }
        let count = host.map(|shards| shards.unwrap_or(self.node().config.sharding.shards));
        if let Some(count) = count.filter(|n| *n == 0 || *n > SHARDS_MAX) {
            return Err(RegisterError::Invalid { name, why: format!("{count} shards; a type has 1 to {SHARDS_MAX}") });
        }
        let entry = TypeEntry::new(T::TYPE, count.unwrap_or(0), std::any::TypeId::of::<T>());
        #[cfg(feature = "admin")]
        let entry = entry.with_keys(super::key::read_typed::<T::Key>);
        let entry = self.node().enter_type(entry);
        if *entry.name != *name {
            let why = format!("its id on the wire is that of `{}`; rename one of them", entry.name);
            return Err(RegisterError::Invalid { name, why });
        }
        if entry.declared_by != std::any::TypeId::of::<T>() {
            return Err(RegisterError::Duplicate { name });
        }
        // A host that names no number takes the one that this node knows already.
        if let Some(count) = count
            && let Err(standing) = entry.declare(count)
            && host.is_some_and(|shards| shards.is_some())
        {
            let (here, cluster) = (count.to_string(), standing.to_string());
            return Err(RegisterError::Mismatch { name, setting: "number of shards", here, cluster });
        }
        Ok(entry)
    }

    /// What an operator does.
    pub fn admin(&self) -> Admin {
        Admin { node: self.node().clone() }
    }

    /// Where the HTTP surface listens, if `admin.listen` is set.
    #[cfg(feature = "admin")]
    pub fn admin_addr(&self) -> Option<SocketAddr> {
        self.inner.admin
    }

    /// Starts an orderly shutdown: hands the shards off, leaves the cluster, ends all threads. Idempotent, does not block.
    pub fn shutdown(&self, why: ShutdownReason) -> ShutdownHandle {
        self.inner.reaper.request(why);
        self.inner.reaper.handle()
    }

    /// Has `task` run once in that phase of an orderly shutdown, whatever starts it: a call, a signal, the last handle that is dropped, or the
    /// node's removal from the cluster. Tasks of one phase run at the same time, each on a thread of its own; one that is not done after `timeout`
    /// is left behind, and named in [`ShutdownReport::overran`]. A task that keeps a clone of this handle keeps the node alive until it has run.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use wingbeat::*;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let cluster = Cluster::builder("doc").listen("127.0.0.1:0".parse()?).start()?;
    /// cluster.on_shutdown(Phase::StopAccepting, "front door", Duration::from_secs(2), || println!("no new clients"))?;
    /// cluster.on_shutdown(Phase::Flush, "last words", Duration::from_secs(5), || println!("all is written"))?;
    /// let report = cluster.shutdown(ShutdownReason::Requested).wait(Duration::from_secs(60)).expect("it ends in time");
    /// assert!(report.overran.is_empty());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`RegisterError::Shutdown`]: that phase has begun, or is over; the task does not run.
    pub fn on_shutdown(
        &self,
        phase: Phase,
        name: &str,
        timeout: Duration,
        task: impl FnOnce() + Send + 'static,
    ) -> Result<(), RegisterError> {
        self.inner.reaper.add(phase, name, timeout, Box::new(task))
    }

    /// From now on SIGINT or SIGTERM starts an orderly shutdown, and a second one ends the process at once. Does not block;
    /// [`run_until_signal`](Self::run_until_signal) does the same first.
    pub fn leave_on_signal(&self) {
        super::shutdown::leave_on_signal(&self.inner.reaper);
    }

    /// SIGINT or SIGTERM starts an orderly shutdown, a second one ends the process at once. Blocks until the node has stopped, for
    /// whatever reason.
    pub fn run_until_signal(&self) -> ShutdownReport {
        super::shutdown::run_until_signal(&self.inner.reaper)
    }
}

/// Ends when dropped.
#[must_use = "dropping it ends the subscription"]
pub struct Subscription {
    _keep: Box<dyn std::any::Any + Send + Sync>,
}

impl Subscription {
    /// Lasts as long as it keeps that alive.
    pub(crate) fn keeping(keep: impl Send + Sync + 'static) -> Self {
        Self { _keep: Box::new(keep) }
    }
}

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Subscription")
    }
}

/// A message that was accepted and then given up.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct DeadLetter {
    /// Name of the entity type, or its id in hex where the name is not known.
    pub entity_type: Arc<str>,
    /// Canonical bytes of the entity's key.
    pub key: Arc<[u8]>,
    /// Why.
    pub reason: DropReason,
    /// The encoded message, if it had been encoded.
    pub bytes: Option<Arc<[u8]>>,
}

/// Settings of a node that is about to start.
#[must_use = "`start` makes the node"]
pub struct ClusterBuilder {
    config: Config,
    lease: Option<Box<dyn Lease>>,
}

impl fmt::Debug for ClusterBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClusterBuilder").field("config", &self.config).field("lease", &self.lease.is_some()).finish()
    }
}

impl ClusterBuilder {
    /// Where to listen, TCP and UDP; port 0 takes a free one.
    pub fn listen(mut self, addr: SocketAddr) -> Self {
        self.config.node.listen = addr;
        self.config.mark_set("node.listen");
        self
    }

    /// What others are told to dial.
    pub fn advertise(mut self, addr: NodeAddr) -> Self {
        self.config.node.advertise = Some(addr);
        self.config.mark_set("node.advertise");
        self
    }

    /// Whom to ask at the start, in this order. The node whose own address comes first may form a new cluster.
    pub fn seeds<I: IntoIterator<Item: Into<String>>>(mut self, seeds: I) -> Self {
        self.config.cluster.seeds = seeds.into_iter().map(Into::into).collect();
        self.config.mark_set("cluster.seeds");
        self
    }

    /// What this node is for.
    pub fn roles<I: IntoIterator<Item: Into<String>>>(mut self, roles: I) -> Self {
        self.config.cluster.roles = roles.into_iter().map(Into::into).collect();
        self.config.mark_set("cluster.roles");
        self
    }

    /// Number of worker threads.
    pub fn workers(mut self, workers: crate::config::Workers) -> Self {
        self.config.node.workers = workers;
        self.config.mark_set("node.workers");
        self
    }

    /// Where the HTTP surface listens. Without the feature `admin` there is none, and `start` says so.
    pub fn admin(mut self, listen: SocketAddr) -> Self {
        self.config.admin.listen = Some(listen);
        self.config.mark_set("admin.listen");
        self
    }

    /// What decides which side of a split lives with `downing.strategy = "lease-majority"`, which needs one; no other strategy asks it.
    pub fn lease(mut self, lease: impl Lease) -> Self {
        self.lease = Some(Box::new(lease));
        self
    }

    /// Checks everything before it opens a socket; reports all that is wrong at once.
    ///
    /// # Errors
    /// [`StartError`]; nothing is left behind.
    pub fn start(self) -> Result<Cluster, StartError> {
        self.start_behind(|net| net)
    }

    /// As `start`, with something between node and sockets.
    pub(crate) fn start_behind<N: Carrier + Send + 'static>(self, wrap: impl FnOnce(Net) -> N) -> Result<Cluster, StartError> {
        if cfg!(panic = "abort") {
            return Err(StartError::PanicAbort);
        }
        self.config.validate_with(self.lease.is_some())?;
        let config = Arc::new(self.config);
        #[cfg(feature = "admin")]
        let listening = super::surface::listen(&config)?;
        let engine = engine::start(config, self.lease, wrap)?;
        let node = engine.node.clone();
        #[cfg(feature = "admin")]
        let (admin, server) = match super::surface::serve(&node, listening) {
            Ok(server) => (server.as_ref().map(|s| s.addr()), server),
            Err(error) => {
                engine.stop(ACT_LIMIT);
                return Err(error);
            }
        };
        let reaper = Reaper::spawn(
            engine,
            #[cfg(feature = "admin")]
            server,
        )?;
        let inner = Inner {
            node,
            reaper,
            #[cfg(feature = "admin")]
            admin,
            pages: Some(GiveBackPages::default()),
        };
        Ok(Cluster { inner: Arc::new(inner) })
    }
}

/// What an operator does. Each act is idempotent and returns when it is accepted; its progress shows in [`Cluster::events`].
#[derive(Clone)]
pub struct Admin {
    node: Arc<Node>,
}

impl fmt::Debug for Admin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Admin({})", self.node.addr)
    }
}

/// How long an operator's act may take to be accepted; the authority's own deadline is shorter.
const ACT_LIMIT: Duration = Duration::from_secs(5);

impl Admin {
    /// Joins through any member, and gives up the cluster of its own. Refused when this node is in a cluster of two or more, and where a shard of its own
    /// cluster has a home already, as it may have another one there. If one comes to have a home before this node is admitted, its membership ends as
    /// [`Superseded`](crate::ShutdownReason::Superseded).
    ///
    /// # Errors
    /// [`ActError`]; nothing was changed.
    pub fn join(&self, seeds: &[NodeAddr]) -> Result<(), ActError> {
        let seeds = seeds.to_vec();
        self.act(move |id| Command::Join { id, seeds }).map(drop)
    }

    /// Tells a member to leave in order.
    ///
    /// # Errors
    /// [`ActError`]; nothing was changed.
    pub fn leave(&self, node: NodeId) -> Result<(), ActError> {
        self.act(move |id| Command::Leave { id, node }).map(drop)
    }

    /// Declares a node dead. It never returns under this id; if it lives it stops.
    ///
    /// # Errors
    /// [`ActError`]; nothing was changed.
    pub fn down(&self, node: NodeId) -> Result<(), ActError> {
        self.act(move |id| Command::Down { id, node }).map(drop)
    }

    /// Moves one shard; the answer is the epoch that it will have there.
    ///
    /// # Errors
    /// [`ActError`]; nothing was changed.
    pub fn move_shard<T: EntityType>(&self, shard: ShardId, to: NodeId) -> Result<crate::Epoch, ActError> {
        let shard = crate::ShardKey { ty: TypeId::of(T::TYPE), shard };
        match self.act(move |id| Command::MoveShard { id, shard, to })? {
            Answer::Epoch(epoch) => Ok(epoch),
            other => Err(ActError::Refused(format!("unexpected answer {other:?}"))),
        }
    }

    fn act(&self, make: impl FnOnce(u64) -> Command + Send + 'static) -> Result<Answer, ActError> {
        if super::reference::on_engine_thread() {
            return Err(ActError::WouldDeadlock);
        }
        if !self.node.serves() {
            return Err(ActError::Shutdown);
        }
        match self.node.command_and_wait(make, self.node.now() + ACT_LIMIT) {
            Ok(Answer::NoMember(node)) => Err(ActError::NoMember(node)),
            Ok(Answer::Refused(why)) => Err(ActError::Refused(why)),
            Ok(Answer::NoAuthority) | Err(RecvTimeoutError::Timeout) => Err(ActError::NoAuthority),
            Err(RecvTimeoutError::Disconnected) => Err(ActError::Shutdown),
            Ok(answer) => Ok(answer),
        }
    }
}

/// What to do about an address that could not be bound.
fn advice(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::AddrInUse => "stop what uses it, or choose another address; port 0 takes any that is free",
        io::ErrorKind::PermissionDenied => "ports below 1024 need a privilege: choose a higher one",
        io::ErrorKind::AddrNotAvailable => "no interface of this machine has this address: correct it",
        _ => "choose another address",
    }
}

/// The node did not start; nothing is left behind.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// Settings are wrong: all of them are named.
    #[error("the configuration is wrong:\n{0}")]
    Config(#[from] ConfigErrors),
    /// A socket could not be bound.
    #[error("cannot bind {proto} {addr}: {source}; {} (`{setting}`)", advice(source))]
    Bind {
        /// `TCP` or `UDP`.
        proto: &'static str,
        /// Which address.
        addr: SocketAddr,
        /// The setting that names it.
        setting: &'static str,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The system gave no thread.
    #[error(
        "cannot start the thread `{name}`: {source}; raise the limits of threads and memory (`ulimit -u`, `ulimit -v`), or lower `node.workers`"
    )]
    Thread {
        /// Its name.
        name: String,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The network poller or its waker could not be made.
    #[error("cannot set up the network thread: {0}")]
    Network(#[source] io::Error),
    /// Handlers' panics could not be caught.
    #[error("built with panic=abort; a handler's panic must unwind: remove `panic = \"abort\"` from the profile")]
    PanicAbort,
}

codes! { StartError { Config = "E-START-001", Bind = "E-START-002", Thread = "E-START-004", PanicAbort = "E-START-005", Network = "E-START-006" } }

/// Nothing was registered on this node, which stays a member.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// The name is in use on this node.
    #[error("`{name}` is already registered on this node")]
    Duplicate {
        /// Name of the type.
        name: String,
    },
    /// A setting differs from what is in force.
    #[error("`{name}`: {setting} is {here} here and {cluster} in force")]
    Mismatch {
        /// Name of the type.
        name: String,
        /// Which setting.
        setting: &'static str,
        /// Its value here.
        here: String,
        /// The value in force.
        cluster: String,
    },
    /// The declaration is not usable.
    #[error("`{name}`: {why}")]
    Invalid {
        /// Name of the type.
        name: String,
        /// Why.
        why: String,
    },
    /// The node is shutting down.
    #[error("this node is shutting down")]
    Shutdown,
}

codes! { RegisterError { Duplicate = "E-REG-001", Mismatch = "E-REG-002", Invalid = "E-REG-004", Shutdown = "E-REG-005" } }

/// The node is not a member yet.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JoinError {
    /// A cluster refused it for good.
    #[error("refused: {why}")]
    Refused {
        /// Its reason.
        why: String,
    },
    /// Not in time; the node goes on trying.
    #[error("{up} of {wanted} members up in time; check that the seeds are reachable, or wait longer")]
    Timeout {
        /// Members up.
        up: usize,
        /// Members wanted.
        wanted: usize,
    },
    /// The node is shutting down.
    #[error("shutting down")]
    Shutdown,
    /// Asked on a worker or the network thread, which must not wait.
    #[error("waiting on a thread that others wait for would deadlock")]
    WouldDeadlock,
}

codes! { JoinError { Refused = "E-JOIN-002", Timeout = "E-JOIN-003", Shutdown = "E-JOIN-004", WouldDeadlock = "E-JOIN-005" } }

/// Nothing was changed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ActError {
    /// There is no such member.
    #[error("no member {0}")]
    NoMember(NodeId),
    /// Refused as things stand.
    #[error("refused: {0}")]
    Refused(String),
    /// The coordinator, or this node's network thread, did not answer.
    #[error("the authority did not answer in time")]
    NoAuthority,
    /// Called on a worker or the network thread.
    #[error("waiting on a thread that others wait for would deadlock")]
    WouldDeadlock,
    /// This node is shutting down, or has ended.
    #[error("this node is shutting down; ask another one")]
    Shutdown,
}

codes! { ActError { NoMember = "E-ACT-001", Refused = "E-ACT-003", NoAuthority = "E-ACT-004", WouldDeadlock = "E-ACT-005", Shutdown = "E-ACT-006" } }

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Cx, config::Preset, engine::sys};

    crate::messages! { pub enum CupMsg for Cup(u64) = "cluster.cup" { Fill } }
    crate::messages! { pub enum JugMsg for Jug(u64) = "cluster.jug" { Pour } }

    crate::messages! { pub enum MugMsg for Mug(u64) = "cluster.mug" { Sip } }

    struct Filled;

    impl Entity for Filled {
        type Type = Cup;

        fn handle(&mut self, _: CupMsg, _: &mut Cx<'_, Self>) {}
    }

    struct Poured(EntityRef<Cup>);

    impl Entity for Poured {
        type Type = Jug;

        fn handle(&mut self, _: JugMsg, _: &mut Cx<'_, Self>) {
            assert!(self.0.tell(Fill).is_ok());
        }
    }

    #[test]
    fn a_subscription_that_has_ended_is_not_called_any_more() {
        let mut config = Config::preset(Preset::LocalTest);
        config.node.listen = "127.0.0.1:0".parse().unwrap();
        let cluster = Cluster::builder(config).start().unwrap();
        let (goes_on, waits) = crossbeam::channel::bounded::<()>(0);
        cluster.node().help(Box::new(move || _ = waits.recv()));
        let calls = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let count = || {
            let calls = calls.clone();
            move || _ = calls.fetch_add(1, std::sync::atomic::Ordering::SeqCst)
        };
        let (on_event, on_removal) = (count(), count());
        let ended = (cluster.on_event(move |_| on_event()), cluster.watch_node(NodeId::from_raw(7), move |_| on_removal()));
        let stays = count();
        // The node has events of its own meanwhile.
        let _stays = cluster.on_event(move |event| {
            if let Event::Warning { code: "test", .. } = event {
                stays();
            }
        });
        cluster.node().publish(Event::Warning { code: "test", text: "".into() });
        drop(ended);
        let (done, is_done) = crossbeam::channel::bounded(1);
        cluster.node().help(Box::new(move || _ = done.send(())));
        goes_on.send(()).unwrap();
        is_done.recv_timeout(Duration::from_secs(60)).unwrap();
        assert_eq!(calls.load(std::sync::atomic::Ordering::SeqCst), 1, "who has stayed");
    }

    struct Sipped(Arc<std::sync::atomic::AtomicU64>);

    impl Entity for Sipped {
        type Type = Mug;

        fn handle(&mut self, _: MugMsg, _: &mut Cx<'_, Self>) {
            self.0.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        }
    }

    #[test]
    fn what_a_batch_had_accepted_while_its_node_ended_is_handled_or_counted_as_dropped() {
        let limit = Duration::from_secs(60);
        for round in 0..5 {
            let mut config = Config::preset(Preset::LocalTest);
            config.node.listen = "127.0.0.1:0".parse().unwrap();
            let cluster = Cluster::builder(config).start().unwrap();
            let handled = Arc::new(std::sync::atomic::AtomicU64::new(0));
            let count = handled.clone();
            let mugs = cluster.host::<Sipped>(HostOptions::new(), move |_| Sipped(count.clone())).unwrap();
            mugs.wait_ready(limit).unwrap();
            let node = cluster.node().clone();
            let (began, begun) = crossbeam::channel::bounded::<()>(1);
            let sender = std::thread::spawn(move || {
                let (mut batch, mut accepted) = (mugs.batch(), 0);
                loop {
                    (0..50_000).for_each(|n| _ = batch.push(n % 8, Sip));
                    let _ = began.try_send(());
                    let report = batch.send();
                    accepted += report.accepted as u64;
                    if report.refused.iter().any(|(_, error)| *error.reason() == crate::Refusal::Shutdown) {
                        return accepted;
                    }
                }
            });
            begun.recv_timeout(limit).unwrap();
            cluster.shutdown(ShutdownReason::Requested).wait(limit).unwrap();
            let accepted = sender.join().unwrap();
            let dropped: u64 = node.metrics.drops.all().iter().map(|(_, n)| n).sum();
            let handled = handled.load(std::sync::atomic::Ordering::SeqCst);
            assert_eq!(handled + dropped, accepted, "round {round}: {handled} were handled, {dropped} dropped");
        }
    }

    #[test]
    fn a_factory_that_keeps_a_region_does_not_keep_the_node_beyond_its_end() {
        let mut config = Config::preset(Preset::LocalTest);
        config.node.listen = "127.0.0.1:0".parse().unwrap();
        let limit = Duration::from_secs(60);
        let cluster = Cluster::builder(config).start().unwrap();
        let cups = cluster.host::<Filled>(HostOptions::new(), |_| Filled).unwrap();
        let jugs = cluster.host::<Poured>(HostOptions::new(), move |_| Poured(cups.get(1))).unwrap();
        jugs.wait_ready(limit).unwrap();
        jugs.get(1).tell(Pour).unwrap();
        let node = Arc::downgrade(cluster.node());
        assert!(cluster.shutdown(ShutdownReason::Requested).wait(limit).is_some());
        drop((cluster, jugs));
        let until = sys::now() + limit;
        while node.strong_count() > 0 {
            assert!(sys::now() < until, "{} keep it", node.strong_count());
            std::thread::park_timeout(Duration::from_millis(1));
        }
    }
}
