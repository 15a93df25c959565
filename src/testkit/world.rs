//! Several nodes in one process: simulated, or real.

use std::{
    cell::{Cell, RefCell},
    fmt,
    rc::Rc,
    sync::Arc,
    time::Duration,
};

use super::{driver::Sim, real::Real, wires::Paths};
use crate::{
    Cluster, Config, EntityRef, EntityType, IntoKey, NodeAddr, NodeId, RegisterError, ShardKey, Time, TypeId,
    config::{Preset, Workers},
    engine::{
        clock::{VirtualTime, Waited},
        node::Life,
        sys,
    },
    proto::node::{Answer, Command},
};

/// Sets the seed of worlds that name none.
pub(crate) const SEED_VARIABLE: &str = "WINGBEAT_TEST_SEED";
/// How long nodes may take to form a cluster, and shards to be found.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often a condition is looked at.
const LOOK: Duration = Duration::from_millis(1);
/// The most that a step takes where nothing ever happens.
const IDLE_STEP: Duration = Duration::from_secs(1);
/// Port of the first simulated node.
const FIRST_PORT: u16 = 7301;

type OnEach = Rc<dyn Fn(&Cluster) -> Result<(), RegisterError>>;

/// Several nodes in one process, for tests.
///
/// [`simulated`](Self::simulated): no thread and no socket; one thread, the one that made the world, takes the turns of all nodes in virtual
/// time, over a network that loses, delays and is cut as the test wants. What a run does is a function of the test and its seed.
/// [`real`](Self::real): threads, sockets on loopback and the machine's clock. The handles are the usual ones in both, and the same test
/// runs on both:
///
/// ```
/// use std::time::Duration;
/// use wingbeat::{testkit::World, *};
///
/// messages! { pub enum CounterMsg for Counter(String) = "doc.hits" { Add { n: u64 } -> u64 } }
/// struct Count(u64);
/// impl Entity for Count {
///     type Type = Counter;
///     fn handle(&mut self, msg: CounterMsg, cx: &mut Cx<'_, Self>) {
///         let CounterMsg::Add(Add { n }, reply) = msg;
///         self.0 += n;
///         cx.reply(reply, self.0);
///     }
/// }
///
/// let world = World::simulated(3) // or `World::real(3)`
///     .on_each(|node| node.host::<Count>(HostOptions::new(), |_| Count(0)).map(drop))
///     .start();
/// let second = Duration::from_secs(1);
/// assert_eq!(world.entity::<Counter>(0, "home").ask(Add { n: 2 }, second), Ok(2));
/// assert_eq!(world.entity::<Counter>(1, "home").ask(Add { n: 3 }, second), Ok(5));
/// let owner = world.owner_of::<Counter>("home");
/// world.kill(owner);
/// let witness = world.entity::<Counter>((owner + 1) % 3, "home");
/// world.eventually(Duration::from_secs(30), || witness.ask(Add { n: 1 }, second).is_ok());
/// assert_ne!(world.owner_of::<Counter>("home"), owner);
/// ```
///
/// A call that waits (`ask`, `wait_up`, `ShutdownHandle::wait`, ..) lets virtual time pass until what it waits for has come, and no further. One
/// that waits on something else than the library, such as `recv` on a channel, would wait for ever: look with `try_recv` in
/// [`eventually`](Self::eventually). A simulated world and its handles stay on the thread that made the world.
///
/// A test that fails prints the seed that repeats its run, and the story of the last events.
pub struct World {
    backend: Backend,
    nodes: RefCell<Vec<Option<Cluster>>>,
    config: Config,
    on_each: RefCell<Vec<OnEach>>,
    seed: u64,
    /// The story was printed.
    told: Cell<bool>,
}

enum Backend {
    Simulated(Rc<Sim>),
    Real(Box<Real>),
}

/// Settings of a world that is about to start.
#[must_use = "`start` makes the world"]
pub struct WorldBuilder {
    nodes: usize,
    simulated: bool,
    seed: Option<u64>,
    config: Config,
    paths: Paths,
    on_each: Vec<OnEach>,
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "World({})", self.what())
    }
}

impl fmt::Debug for WorldBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WorldBuilder({} nodes)", self.nodes)
    }
}

impl WorldBuilder {
    fn new(nodes: usize, simulated: bool) -> Self {
        assert!(nodes > 0, "a world has at least one node");
        let config = Config::preset(Preset::LocalTest);
        let paths = Paths { latency: Duration::from_micros(250), jitter: Duration::from_micros(100), loss: 0.0 };
        Self { nodes, simulated, seed: None, config, paths, on_each: vec![] }
    }

    /// What decides everything that is left to chance. Without it: the environment variable `WINGBEAT_TEST_SEED`, or a new one for each run.
    /// Chance on a real network is nobody's to decide.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Settings of all nodes. Addresses and seeds are the world's own, and two workers are what `auto` means. Without it: the preset
    /// `local_test`.
    pub fn config(mut self, config: Config) -> Self {
        self.config = config;
        self
    }

    /// How simulated paths are: a message takes `latency` and up to `jitter` more, one way; `loss` is the share of datagrams that is lost,
    /// and of segments that are sent again after a while. Without it: 250 µs, 100 µs, no loss. A real network is what it is.
    pub fn network(mut self, latency: Duration, jitter: Duration, loss: f64) -> Self {
        assert!((0.0..=1.0).contains(&loss), "a share of {loss} cannot be lost: it is between 0 and 1");
        self.paths = Paths { latency, jitter, loss };
        self
    }

    /// Runs on each node when it starts, and again when it is restarted: where types are hosted.
    pub fn on_each(mut self, f: impl Fn(&Cluster) -> Result<(), RegisterError> + 'static) -> Self {
        self.on_each.push(Rc::new(f));
        self
    }

    /// Starts the nodes and waits until all are up and see each other.
    ///
    /// # Panics
    /// If the configuration is refused, if a type cannot be hosted, or if the nodes do not form a cluster within a minute.
    #[track_caller]
    pub fn start(self) -> World {
        let Self { nodes, simulated, seed, mut config, paths, on_each } = self;
        let seed = seed.or_else(seed_of_environment).unwrap_or_else(|| sys::random_u64() % 1_000_000_000);
        config.admin.listen = None;
        if !matches!(config.node.workers, Workers::Count(_)) {
            config.node.workers = Workers::Count(2);
        }
        let backend = match simulated {
            true => {
                let addrs: Vec<_> = (0..nodes).map(simulated_addr).collect();
                config.cluster.seeds = addrs.iter().map(ToString::to_string).collect();
                Backend::Simulated(Sim::new(addrs, &config, paths, seed))
            }
            false => Backend::Real(Box::new(Real::new(nodes))),
        };
        let nodes = RefCell::new((0..nodes).map(|_| None).collect());
        let world = World { backend, nodes, config, on_each: RefCell::new(on_each), seed, told: Cell::new(false) };
        let count = world.len();
        (0..count).for_each(|i| world.begin(i));
        for i in 0..count {
            if let Err(error) = world.node(i).wait_members(count, PATIENCE) {
                world.fail(format_args!("n{i} does not see {count} nodes up: {error}"));
            }
        }
        world
    }
}

fn simulated_addr(index: usize) -> NodeAddr {
    NodeAddr::new("127.0.0.1", FIRST_PORT + u16::try_from(index).expect("a world has fewer nodes than there are ports"))
}

#[track_caller]
fn seed_of_environment() -> Option<u64> {
    let text = std::env::var(SEED_VARIABLE).ok()?;
    match text.parse() {
        Ok(seed) => Some(seed),
        Err(_) => panic!("{SEED_VARIABLE} is {text:?}, and must be a number"),
    }
}

impl World {
    /// So many nodes in virtual time.
    pub fn simulated(nodes: usize) -> WorldBuilder {
        WorldBuilder::new(nodes, true)
    }

    /// So many nodes with threads, sockets on loopback, and the machine's clock.
    pub fn real(nodes: usize) -> WorldBuilder {
        WorldBuilder::new(nodes, false)
    }

    /// Number of nodes, those that were killed among them.
    #[allow(clippy::len_without_is_empty)] // A world has at least one node.
    pub fn len(&self) -> usize {
        self.nodes.borrow().len()
    }

    /// The seed of this run.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// The handle of a node.
    ///
    /// # Panics
    /// If it was killed and not restarted.
    #[track_caller]
    pub fn node(&self, i: usize) -> Cluster {
        self.check(i);
        let node = self.nodes.borrow()[i].clone();
        node.unwrap_or_else(|| panic!("n{i} was killed, and was not restarted"))
    }

    /// A reference to an entity, as that node has it.
    ///
    /// # Panics
    /// If the node was killed, or neither hosts the type nor has a proxy for it.
    #[track_caller]
    pub fn entity<T: EntityType>(&self, i: usize, key: impl IntoKey<T::Key>) -> EntityRef<T> {
        match self.node(i).region::<T>() {
            Some(region) => region.get(key),
            None => panic!("n{i} neither hosts `{}` nor has a proxy for it: register it in `on_each`", T::TYPE),
        }
    }

    /// The moment it is, on the clock of the world.
    pub fn now(&self) -> Time {
        match &self.backend {
            Backend::Simulated(sim) => sim.time.now(),
            Backend::Real(_) => sys::now(),
        }
    }

    /// Lets time pass.
    pub fn run_for(&self, d: Duration) {
        self.run_until(self.now() + d);
    }

    /// Lets the next thing happen: everything that has something to do takes one turn, or, if nothing has, time goes on to the next moment at
    /// which something does. For a test that looks at its nodes as closely as possible. On real nodes a millisecond passes.
    pub fn step(&self) {
        match &self.backend {
            Backend::Simulated(sim) => sim.time.pass(self.now() + IDLE_STEP),
            Backend::Real(_) => self.run_for(LOOK),
        }
    }

    fn run_until(&self, until: Time) {
        match &self.backend {
            Backend::Simulated(sim) => {
                while sim.time.now() < until {
                    sim.time.pass(until);
                }
            }
            Backend::Real(real) => real.run_until(until),
        }
    }

    /// Lets time pass until the condition holds. It is looked at every millisecond, and may itself make calls that wait.
    ///
    /// # Panics
    /// With the story of the last events and the seed, if it does not hold within that time.
    #[track_caller]
    pub fn eventually(&self, within: Duration, mut holds: impl FnMut() -> bool) {
        let deadline = self.now() + within;
        while !holds() {
            let now = self.now();
            if now >= deadline {
                self.fail(format_args!("what was waited for did not come to hold within {within:?}"));
            }
            self.run_until((now + LOOK).min(deadline));
        }
    }

    /// Ends a node as if its process had been killed: it says nothing to anybody, and its state is gone. The handles that are left of it
    /// answer `Shutdown`.
    #[track_caller]
    pub fn kill(&self, i: usize) {
        let node = self.node(i);
        self.nodes.borrow_mut()[i] = None;
        match &self.backend {
            Backend::Simulated(sim) => sim.kill(i),
            Backend::Real(real) => real.kill(i, &node),
        }
    }

    /// A new life on the same address, under a new incarnation: kills the node if it lives. What [`on_each`](WorldBuilder::on_each) does is
    /// done again. Does not wait until it is up. All nodes are each other's seeds, and the first node is the first of them: started while it
    /// is cut off from the others, it founds a cluster of its own.
    #[track_caller]
    pub fn restart(&self, i: usize) {
        self.check(i);
        if self.nodes.borrow()[i].is_some() {
            self.kill(i);
        }
        self.begin(i);
    }

    /// Lets a node stand still for so long, as under a debugger or a stopped virtual machine. It neither reads nor sends; what arrives
    /// waits. Returns at once: time passes in other calls.
    #[track_caller]
    pub fn pause(&self, i: usize, d: Duration) {
        let node = self.node(i);
        match &self.backend {
            Backend::Simulated(sim) => sim.pause(i, d),
            Backend::Real(real) => real.pause(i, &node, d),
        }
    }

    /// Cuts all links between the groups, both ways; nodes in none of them form one more. Replaces what was cut before.
    #[track_caller]
    pub fn cut(&self, groups: &[&[usize]]) {
        groups.iter().flat_map(|group| group.iter()).for_each(|i| self.check(*i));
        self.tell(format!("the network is cut: {groups:?}"));
        match &self.backend {
            Backend::Simulated(sim) => sim.wires.borrow_mut().cut(groups),
            Backend::Real(real) => real.cut(groups, &self.nodes.borrow()),
        }
    }

    /// Ends what [`cut`](Self::cut) did.
    pub fn heal(&self) {
        self.tell("the network is whole again".to_owned());
        match &self.backend {
            Backend::Simulated(sim) => sim.wires.borrow_mut().heal(),
            Backend::Real(real) => real.cut(&[], &self.nodes.borrow()),
        }
    }

    /// The node whose shard the entity's key belongs to, as the nodes that live believe, the newest belief first.
    ///
    /// # Panics
    /// If none of them knows: a shard has a home once something was sent to it.
    #[track_caller]
    pub fn owner_of<T: EntityType>(&self, key: impl IntoKey<T::Key>) -> usize {
        let key = key.into_key();
        let nodes: Vec<Cluster> =
            self.nodes.borrow().iter().flatten().filter(|node| node.node().life() == Life::Running).cloned().collect();
        let found = nodes.iter().filter_map(|node| {
            let shard = node.region::<T>()?.shard_of(&key)?;
            locate(node, ShardKey { ty: TypeId::of(T::TYPE), shard })
        });
        let newest = found.max_by_key(|(_, epoch)| *epoch).and_then(|(home, _)| self.index_of(home));
        newest.unwrap_or_else(|| panic!("no node knows a home for `{}` {key}: send something to it first", T::TYPE))
    }

    /// The last events, and a digest of all events: two runs that did the same have the same story.
    pub fn story(&self) -> String {
        match &self.backend {
            Backend::Simulated(sim) => sim.story.borrow().to_string(),
            Backend::Real(real) => real.story(),
        }
    }

    /// Does on all nodes that live, and on all that will be restarted.
    #[track_caller]
    pub(super) fn also_on_each(&self, f: impl Fn(&Cluster) -> Result<(), RegisterError> + 'static) {
        let nodes: Vec<_> = self.nodes.borrow().iter().flatten().cloned().collect();
        for node in &nodes {
            f(node).unwrap_or_else(|error| panic!("a node could not be set up: {error}"));
        }
        self.on_each.borrow_mut().push(Rc::new(f));
    }

    // ---- private ------------------------------------------------------------------------------------------------------------

    #[track_caller]
    fn check(&self, i: usize) {
        let n = self.len();
        assert!(i < n, "there is no node {i}: this world has {n}, counted from 0");
    }

    /// Starts a node.
    #[track_caller]
    fn begin(&self, i: usize) {
        let mut config = self.config.clone();
        let node = match &self.backend {
            Backend::Simulated(sim) => {
                let addr = simulated_addr(i);
                // Nobody listens there: a configuration has to name what it advertises.
                config.node.listen = std::net::SocketAddr::from(([127, 0, 0, 1], addr.port));
                config.node.advertise = Some(addr);
                if let Err(errors) = config.validate() {
                    panic!("the configuration is wrong:\n{errors}");
                }
                sim.start(i, Arc::new(config))
            }
            Backend::Real(real) => real.start(i, config),
        };
        let on_each = self.on_each.borrow().clone();
        for f in on_each {
            f(&node).unwrap_or_else(|error| panic!("n{i} could not be set up: {error}"));
        }
        self.nodes.borrow_mut()[i] = Some(node);
    }

    fn index_of(&self, id: NodeId) -> Option<usize> {
        match &self.backend {
            Backend::Simulated(sim) => sim.index_of(id),
            Backend::Real(real) => real.index_of(id),
        }
    }

    fn tell(&self, line: String) {
        match &self.backend {
            Backend::Simulated(sim) => sim.tell(line),
            Backend::Real(real) => real.tell(line),
        }
    }

    /// What repeats this run.
    fn what(&self) -> String {
        let (n, seed) = (self.len(), self.seed);
        match &self.backend {
            Backend::Simulated(_) => format!("World::simulated({n}).seed({seed}); {SEED_VARIABLE}={seed} repeats it without a change"),
            Backend::Real(_) => format!("World::real({n}), which chance has a part in"),
        }
    }

    #[track_caller]
    fn fail(&self, why: fmt::Arguments<'_>) -> ! {
        self.told.set(true);
        panic!("{why}\n{}\nthis was {}", self.story(), self.what());
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() && !self.told.get() {
            eprintln!("what happened:\n{}\nthis was {}", self.story(), self.what());
        }
        let nodes = std::mem::take(&mut *self.nodes.borrow_mut());
        match &self.backend {
            Backend::Simulated(sim) => (0..nodes.len()).for_each(|i| sim.kill(i)),
            Backend::Real(real) => real.end(&nodes),
        }
    }
}

/// Where a node believes the shard to be.
fn locate(node: &Cluster, shard: ShardKey) -> Option<(NodeId, crate::Epoch)> {
    let (tx, rx) = crossbeam::channel::bounded(1);
    let shared = node.node();
    shared.command(move |id| Command::Locate { id, shard }, Some(Box::new(move |answer| drop(tx.send(answer)))));
    let answer = match shared.clock.wait(shared.now() + PATIENCE, || rx.try_recv().ok()) {
        Waited::Found(answer) => Some(answer),
        Waited::Late => None,
        Waited::Machine => rx.recv_timeout(PATIENCE).ok(),
    };
    match answer {
        Some(Answer::Located(found)) => found,
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variable_of_the_seed_is_no_wrong_setting() {
        let config = Config::default().with_env_from([(SEED_VARIABLE, "7")]).unwrap();
        assert_eq!(config.cluster.name, Config::default().cluster.name);
        let other = Config::default().with_env_from([("WINGBEAT_TEST_SEEDS", "7")]);
        assert!(other.is_err());
    }

    #[test]
    #[should_panic(expected = "there is no node 2: this world has 2, counted from 0")]
    fn a_node_that_is_not_there_is_named() {
        World::simulated(2).seed(1).start().kill(2);
    }

    #[test]
    #[should_panic(expected = "n0 was killed, and was not restarted")]
    fn a_node_that_was_killed_has_no_handle() {
        let world = World::simulated(1).seed(1).start();
        world.kill(0);
        world.node(0);
    }

    #[test]
    #[should_panic(expected = "a share of 1.5 cannot be lost")]
    fn more_than_everything_cannot_be_lost() {
        let _ = World::simulated(1).network(Duration::ZERO, Duration::ZERO, 1.5);
    }

    #[test]
    #[should_panic(expected = "sharding.lease")]
    fn a_wrong_configuration_is_reported_as_ever() {
        let mut config = Config::default();
        config.sharding.lease = crate::config::Span::millis(1);
        let _ = World::simulated(1).config(config).start();
    }
}
