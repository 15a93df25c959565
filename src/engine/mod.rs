//! The threads of a node: fixed workers own shards, one network thread sees to sockets and `NodeCore`, one helper runs callbacks.
//! Where there is a [lease], or a [name](names) to look up, a thread waits for that.
//!
//! The path of a message, from `tell` to `handle`, is short as long as nothing stands in its way:
//! 1. [`EntityRef::tell`](crate::EntityRef::tell) has key and hash ready; `node::Node::send_letter` finds the calling thread's lanes;
//! 2. `exits::Exits::short_way` loads the shard's routing word and writes the message as a [letter](letter) into the ring of the local
//!    worker, or, encoded, into that of the network thread;
//! 3. in a turn of the network, `network::Network::short_way` appends it to the link of the node where the shard lives;
//! 4. in a turn of the network there, `Port::arrived` writes it from the link's buffer into the worker's ring;
//! 5. on the worker, `worker::Worker::look_ahead` looks at some letters where they stand; `ShardCore::approach` and `come_near` go towards their
//!    entities, a step for all of them before the next one, so that the waits for memory overlap (`Worker::run_straight` takes all steps for one message
//!    at a time where many wait and entities are few);
//! 6. `worker::Worker::run` hands them, under one guard against panics, by `ShardCore::short_way` to `WorkerHost::handle_letter`;
//! 7. which calls the instance's `handle`; that takes the message and calls the entity's.
//!
//! Turns of the network are the network thread's, or of whoever waits for it: see [duty]. Who waits and sleeps is woken by the link: see [window].
//!
//! A [`Batch`](crate::Batch) writes its messages as [drafts](letter::Drafts) of letters; `exits::Exits::send_drafts` finds their
//! rings and copies them, through the caches or [past](past) them.
//!
//! What cannot go the short way (a route that changes, an entity that is not live, or one with something in its mailbox) is made a
//! [parcel](parcel) where that turns out, and goes on by `NodeCore::handle_lane`, `ShardCore::handle_lane` and the host's `handle`, which know
//! every case. Both ways share each ring, so their order is that of the ring.
//!
//! What entities send goes the same ways. One that has moved may have to wait with it until what it had sent before has arrived: see [senders] and
//! [settling].
//!
//! `tests/UNSAFE.md` lists the functions with unsafe code, and what covers each of them. The lock-free structures among them run under loom in the crate
//! `loom/`, which exchanges [sync] beneath their sources.

pub mod asker;
pub mod bell;
pub mod carrier;
pub mod clock;
pub mod completion;
pub mod deadlines;
pub mod doze;
pub mod duty;
pub mod exits;
pub mod helper;
pub mod idle;
pub mod lane;
pub mod lease;
pub mod letter;
pub mod mailbox;
pub mod message;
pub mod moment;
pub mod names;
pub mod network;
pub mod news;
pub mod node;
pub mod out;
pub mod panics;
pub mod parcel;
pub mod past;
pub mod port;
pub mod ring;
pub mod senders;
pub mod settling;
pub mod short_ways;
pub mod signs;
pub mod slot;
pub mod slot_table;
pub mod slow_turns;
pub mod sync;
pub mod sys;
pub mod topics;
pub mod types;
pub mod watches;
pub mod window;
pub mod worker;
pub mod worker_host;

use std::{
    io,
    net::SocketAddr,
    sync::{Arc, OnceLock},
    thread::JoinHandle,
    time::Duration,
};

use crossbeam::channel::{Receiver, bounded, unbounded};
use parking_lot::Mutex;

use crate::{
    Config, Lease, NodeAddr, StartError,
    config::Workers,
    engine::{
        carrier::Carrier,
        clock::Clock,
        doze::Doze,
        lane::{Bell, Door},
        network::Network,
        node::{Job, Node, ToNet},
        window::{Sleeper, Window},
        worker::Worker,
    },
    net::{Net, Sockets, Transport},
    proto::membership::Identity,
};

/// A running node's threads.
pub struct Engine {
    /// What they share.
    pub node: Arc<Node>,
    threads: Vec<JoinHandle<()>>,
}

impl Engine {
    /// Ends all threads but the helper, whose queue may still hold callbacks of users, and those that wait for the lease and for names, and waits for
    /// them, so long at most. Names those that are left behind: something on them has not returned.
    pub fn stop(self, patience: Duration) -> Vec<String> {
        self.node.begin_closing();
        self.node.network.post(ToNet::Quit);
        let (deadline, mut left) = (sys::now() + patience, vec![]);
        for thread in self.threads {
            while !thread.is_finished() && sys::now() < deadline {
                std::thread::park_timeout(ENDING);
            }
            if !thread.is_finished() {
                left.push(thread.thread().name().unwrap_or_default().to_owned());
            } else if thread.join().is_err() {
                tracing::error!(target: "wingbeat::engine", "a thread of the engine had panicked");
            }
        }
        // Nobody is left to bring an answer, and nobody to see a deadline pass.
        self.node.end_asks();
        left
    }
}

/// How often it is looked whether a thread has ended.
const ENDING: Duration = Duration::from_millis(1);

/// Number of worker threads that a setting means on this machine.
fn workers(setting: Workers) -> u16 {
    match setting {
        Workers::Count(n) => n.max(1),
        _ => u16::try_from(sys::cores().saturating_sub(1)).unwrap_or(u16::MAX - 1).max(1),
    }
}

/// What is advertised: as set, or where the node listens.
fn advertised(config: &Config, bound: SocketAddr) -> NodeAddr {
    match &config.node.advertise {
        // A port of 0 is known only once the sockets are bound.
        Some(addr) if addr.port == 0 => NodeAddr::new(&addr.host, bound.port()),
        Some(addr) => addr.clone(),
        None => NodeAddr::from(bound),
    }
}

/// The configuration, with what depends on where the node is. No firewall refuses in the name of a process that lives where that listens itself at the
/// loopback's address that it advertises; a forwarder there may, and of a name nobody knows where else it leads.
fn decided(mut config: Arc<Config>, me: &NodeAddr, bound: SocketAddr) -> Arc<Config> {
    let proof = config.downing.proof_of_death.or(bound.ip().is_loopback() && *me == NodeAddr::from(bound));
    Arc::make_mut(&mut config).downing.proof_of_death = proof;
    config
}

/// A node without threads: whoever has it takes their turns, at moments of its own choice.
pub struct Stepped<N> {
    /// What the parts share.
    pub node: Arc<Node>,
    /// What the network thread would do.
    pub network: Network<N>,
    /// What the workers would do.
    pub workers: Vec<Worker>,
    /// What the helper thread would run.
    pub jobs: Receiver<Job>,
}

/// Builds a node that starts now on the clock that is given, and has no threads. The configuration has been validated.
pub fn stepped<N: Carrier>(config: Arc<Config>, me: Identity, net: N, seed: u64, clock: Clock) -> Stepped<N> {
    let count = workers(config.node.workers);
    let door = || Arc::new(Bell::new(|| {}));
    let (helper, jobs) = unbounded();
    let doors = (0..count).map(|_| Door::new(door())).collect();
    let node = Arc::new(Node::new(config, me.clone(), doors, Door::new(door()), helper, None, clock));
    let workers = (0..count).map(|index| Worker::new(node.clone(), index, seed ^ u64::from(index))).collect();
    let now = node.now();
    Stepped { network: Network::new(node.clone(), net, me, seed, now), node, workers, jobs }
}

/// What a thread runs.
type Body = Box<dyn FnOnce() + Send>;

/// Binds the sockets and starts the threads of a node. The configuration has been validated. `wrap` may put something between node and
/// sockets.
pub fn start<N: Carrier + Send + 'static>(
    config: Arc<Config>,
    lease: Option<Box<dyn Lease>>,
    wrap: impl FnOnce(Net) -> N,
) -> Result<Engine, StartError> {
    start_by(config, lease, wrap, |name, body| std::thread::Builder::new().name(name.to_owned()).spawn(body))
}

/// As [`start`], with threads from elsewhere.
fn start_by<N: Carrier + Send + 'static>(
    config: Arc<Config>,
    lease: Option<Box<dyn Lease>>,
    wrap: impl FnOnce(Net) -> N,
    mut threads: impl FnMut(&str, Body) -> io::Result<JoinHandle<()>>,
) -> Result<Engine, StartError> {
    let mut spawn = |name: &str, body: Body| threads(name, body).map_err(|source| StartError::Thread { name: name.to_owned(), source });
    let sockets = Sockets::bind(config.node.listen).map_err(|e| StartError::Bind {
        proto: match e.proto {
            Transport::Tcp => "TCP",
            Transport::Udp => "UDP",
        },
        addr: e.addr,
        setting: "node.listen",
        source: e.source,
    })?;
    let me = Identity { addr: advertised(&config, sockets.local_addr()), incarnation: sys::random_u64() };
    let config = decided(config, &me.addr, sockets.local_addr());
    let workers = workers(config.node.workers);
    let mut net = Net::new(sockets, &config, &me, sys::random_u64()).map_err(StartError::Network)?;
    let doze = Doze::new().map_err(StartError::Network)?;
    let waker = doze.waker();
    let (window, links) = Window::new().map_err(StartError::Network)?;
    let window = match net.watched_by(&links, doze.registry()) {
        Ok(()) => Some(window),
        // Nobody chooses there whom to wake.
        Err(error) if matches!(error.kind(), io::ErrorKind::Unsupported | io::ErrorKind::InvalidInput) => None,
        Err(error) => return Err(StartError::Network(error)),
    };
    let net = wrap(net);

    let idle = config.node.idle;
    let sleepers: Arc<[OnceLock<Mutex<Sleeper>>]> = (0..workers).map(|_| OnceLock::new()).collect();
    let doors = (0..usize::from(workers)).map(|i| {
        let sleepers = sleepers.clone();
        Door::new(Arc::new(idle::bell(idle, move || {
            if let Some(worker) = sleepers[i].get() {
                worker.lock().wake();
            }
        })))
    });
    let network_door = Door::new(Arc::new(idle::bell(idle, move || {
        // The only error is that it is gone, and then nobody sleeps there.
        let _ = waker.wake();
    })));
    let (jobs, job_queue) = unbounded();
    let with_queue = |lease| {
        let (calls, queue) = bounded(lease::WAITING_MAX);
        (calls, (lease, queue))
    };
    let (calls, lease) = lease.map(with_queue).unzip();
    let mut node = Node::new(config, me.clone(), doors.collect(), network_door, jobs, calls, Clock::Machine);
    node.window = window;
    let node = Arc::new(node);

    let mut engine = Engine { node: node.clone(), threads: vec![] };
    let spawned = (|| {
        let metrics = node.metrics.clone();
        // Not joined: it ends when the last handle and thread that could give it a job is gone.
        spawn("wingbeat-help", Box::new(move || helper::run(&job_queue, &metrics)))?;
        if let Some((lease, queue)) = lease {
            // Nor is this one. It starts with the node: a split is no moment to find that it cannot.
            let node = Arc::downgrade(&node);
            spawn("wingbeat-lease", Box::new(move || lease::run(lease, &queue, &node)))?;
        }
        for index in 0..workers {
            let (node, sleepers) = (node.clone(), sleepers.clone());
            let pin = node.config.node.pin.get(usize::from(index)).copied();
            let body = move || {
                let me = sleepers[usize::from(index)].get_or_init(|| Mutex::new(Sleeper::here()));
                if let Some(core) = pin
                    && let Err(error) = sys::pin(core)
                {
                    tracing::warn!(target: "wingbeat::engine", core, %error, "a worker could not be bound to its core");
                }
                let seed = node.id.incarnation() ^ u64::from(index);
                worker::run(node, index, seed, me);
            };
            engine.threads.push(spawn(&format!("wingbeat-w{index}"), Box::new(body))?);
        }
        let (node, id) = (node.clone(), me.id());
        engine.threads.push(spawn("wingbeat-net", Box::new(move || network::run(node, net, doze, me, id.incarnation())))?);
        Ok(())
    })();
    match spawned {
        Ok(()) => Ok(engine),
        Err(error) => {
            // Without a network thread nobody tells the workers to quit. They have nothing to finish.
            for door in &node.workers {
                door.post(node::ToWorker::Quit);
            }
            for thread in engine.threads {
                let _ = thread.join();
            }
            Err(error)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::{LeaseError, NodeId, Term, config::Preset, engine::node::Life, proto::lease::LeaseCall};

    /// Says that it was asked.
    struct Probe(crossbeam::channel::Sender<()>);

    impl Lease for Probe {
        fn acquire(&mut self, _: &str, _: NodeId, _: Duration) -> Result<Option<Term>, LeaseError> {
            self.0.send(()).map_err(|error| LeaseError::new(error.to_string()))?;
            Ok(None)
        }

        fn release(&mut self, _: &str, _: Term) -> Result<(), LeaseError> {
            Ok(())
        }
    }

    #[test]
    fn a_refused_port_proves_a_death_where_only_this_machine_can_refuse() {
        let proves = |text: &str, host: &str, bound: &str| {
            let mut config = Config::default();
            config.set("downing.proof_of_death", text).unwrap();
            decided(Arc::new(config), &NodeAddr::new(host, 7301), bound.parse().unwrap()).downing.proof_of_death.holds()
        };
        assert_eq!(Config::default().downing.proof_of_death, crate::config::AutoBool::Auto);
        let places = [
            ("127.0.0.1", "127.0.0.1:7301", true),
            ("127.0.0.2", "127.0.0.2:7301", true),
            ("::1", "[::1]:7301", true),
            // A forwarder stands there, or may.
            ("127.0.0.1", "127.0.0.1:7401", false),
            ("127.0.0.1", "10.0.0.1:7301", false),
            ("127.0.0.1", "0.0.0.0:7301", false),
            ("localhost", "127.0.0.1:7301", false),
            ("10.0.0.1", "10.0.0.1:7301", false),
        ];
        for (host, bound, expected) in places {
            assert_eq!(proves("auto", host, bound), expected, "{host} at {bound}");
            assert!(proves("true", host, bound) && !proves("false", host, bound), "what is set holds anywhere");
        }
    }

    // failures: row 20
    #[test]
    fn a_callback_that_blocks_delays_neither_a_name_nor_the_lease() {
        let config = |seeds: Vec<String>| {
            let mut config = Config::preset(Preset::LocalTest);
            config.node.listen = "127.0.0.1:0".parse().unwrap();
            config.node.advertise = Some(NodeAddr::new("localhost", 0));
            config.node.workers = Workers::Count(1);
            config.cluster.seeds = seeds;
            Arc::new(config)
        };
        let patience = Duration::from_secs(20);
        let first = start(config(vec![]), None, |net| net).unwrap();
        let ((goes_on, blocks), (asked, calls)) = (unbounded::<()>(), unbounded());
        let second = start_by(
            config(vec![first.node.addr.to_string()]),
            Some(Box::new(Probe(asked))),
            |net| net,
            |name, body| {
                let blocks = (name == "wingbeat-help").then(|| blocks.clone());
                std::thread::Builder::new().spawn(move || {
                    // As in a callback, until the test lets go.
                    let _ = blocks.map(|blocks| blocks.recv());
                    body();
                })
            },
        )
        .unwrap();
        let formed = |view: &Arc<crate::ClusterView>| (view.members.iter().count() == 2).then_some(());
        assert!(second.node.wait_view(sys::now() + patience, formed).is_some(), "it has found its seed by name");
        let acquire = LeaseCall::Acquire { name: "l".into(), owner: second.node.id, ttl: patience };
        second.node.ask_lease(1, acquire);
        calls.recv_timeout(patience).expect("the lease is asked");
        drop(goes_on);
        assert_eq!((second.stop(patience), first.stop(patience)), (vec![], vec![]));
    }

    #[test]
    fn a_lease_that_hangs_collects_no_calls() {
        const CALLS: u64 = 10;
        let mut config = Config::preset(Preset::LocalTest);
        config.node.listen = "127.0.0.1:0".parse().unwrap();
        config.node.workers = Workers::Count(1);
        let patience = Duration::from_secs(20);
        // Nobody takes what it says, so that it hangs in its first call.
        let (asked, calls) = bounded(0);
        let engine = start(Arc::new(config), Some(Box::new(Probe(asked))), |net| net).unwrap();
        for id in 0..CALLS {
            engine.node.ask_lease(id, LeaseCall::Acquire { name: "l".into(), owner: engine.node.id, ttl: patience });
        }
        let made = CALLS - engine.node.metrics.shared.lease_calls_refused.get();
        assert!((1..=2).contains(&made), "{made}");
        for _ in 0..made {
            calls.recv_timeout(patience).expect("what was not refused is asked");
        }
        drop(calls);
        assert!(engine.stop(patience).is_empty());
    }

    #[test]
    fn a_thread_that_panics_ends_the_nodes_life_and_the_others_end_in_order() {
        fn bug<T>() -> T {
            std::panic::resume_unwind(Box::new("on purpose"))
        }
        type Break = fn(&Node);
        let breaks: [(&str, Break); 2] = [
            ("wingbeat-w0", |node| node.workers[0].post(node::ToWorker::Run(Box::new(bug)))),
            ("wingbeat-net", |node| node.command(|_| bug(), None)),
        ];
        for (name, breaks) in breaks {
            let mut config = Config::preset(Preset::LocalTest);
            config.node.listen = "127.0.0.1:0".parse().unwrap();
            config.node.workers = Workers::Count(2);
            let patience = Duration::from_secs(20);
            let engine = start(Arc::new(config), None, |net| net).unwrap();
            breaks(&engine.node);
            let failed = |life: &Life| matches!(life, Life::Failed(why) if why.contains(name));
            assert!(engine.node.wait_life(patience, failed), "{name}: {:?}", engine.node.life());
            assert_eq!(engine.stop(patience), [""; 0], "{name}");
        }
    }

    // failures: row 44
    #[test]
    fn whichever_thread_cannot_be_started_is_named_and_nothing_is_left_behind() {
        let names = ["wingbeat-help", "wingbeat-lease", "wingbeat-w0", "wingbeat-w1", "wingbeat-net"];
        for (refused, name) in names.into_iter().enumerate() {
            let mut config = Config::named("threads");
            config.node.listen = "127.0.0.1:0".parse().unwrap();
            config.node.listen = Sockets::bind(config.node.listen).unwrap().local_addr();
            config.node.workers = Workers::Count(2);
            let listen = config.node.listen;
            let (running, mut started) = (Arc::new(AtomicUsize::new(0)), vec![]);
            let error = start_by(
                Arc::new(config),
                Some(Box::new(crate::MemoryLease::new())),
                |net| net,
                |name, body| {
                    if started.len() == refused {
                        return Err(io::ErrorKind::WouldBlock.into());
                    }
                    started.push(name.to_owned());
                    running.fetch_add(1, Ordering::SeqCst);
                    let running = running.clone();
                    std::thread::Builder::new().spawn(move || {
                        body();
                        running.fetch_sub(1, Ordering::SeqCst);
                    })
                },
            );
            let error = error.err().expect("a thread is missing");
            assert_eq!((error.code(), &started[..]), ("E-START-004", &names.map(str::to_owned)[..refused]));
            assert!(error.to_string().contains(&format!("`{name}`")) && error.to_string().contains("node.workers"), "{error}");
            Sockets::bind(listen).expect("the sockets are closed");
            let deadline = sys::now() + Duration::from_secs(20);
            // The helper and who asks the lease go when they see that nobody can give them anything to do.
            while running.load(Ordering::SeqCst) > 0 {
                assert!(sys::now() < deadline, "{} threads run on", running.load(Ordering::SeqCst));
                std::thread::park_timeout(ENDING);
            }
        }
    }
}
