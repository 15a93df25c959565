//! Lives of nodes: several clusters in one process, and the end in phases, with tasks of the program's own.
#![allow(missing_docs, clippy::unwrap_used)]

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use parking_lot::Mutex;
use wingbeat::{
    Cluster, Config, Cx, Entity, Failure, HandedOver, Handoff, HostOptions, JoinError, Phase, QueryError, Region, RegisterError,
    ShutdownReason, ShutdownReport, StopReason, channel,
    config::{Preset, Workers},
    messages,
    testkit::{World, WorldBuilder},
};

const SECOND: Duration = Duration::from_secs(1);
/// A handler has begun that will not return.
static HELD: AtomicBool = AtomicBool::new(false);
/// As `HELD`, of a handler that goes on once it may.
static STAYS: AtomicBool = AtomicBool::new(false);
/// The key of one that tells why it was stopped.
const TELLS: u64 = 77;
static TOLD: Mutex<Vec<StopReason>> = Mutex::new(vec![]);
static GATE: Mutex<()> = Mutex::new(());
const LONG: Duration = Duration::from_secs(60);
const STUCK: u64 = 99;

messages! { pub enum PingMsg for Ping(u64) = "life.ping" { Hello -> u64, Count -> u64, Hold, Stay } }

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    fn add(&self, line: impl Into<String>) {
        self.0.lock().push(line.into());
    }

    fn lines(&self) -> Vec<String> {
        self.0.lock().clone()
    }
}

#[derive(Default)]
struct State {
    counted: u64,
}

impl Entity for State {
    type Type = Ping;

    fn handle(&mut self, msg: PingMsg, cx: &mut Cx<'_, Self>) {
        match msg {
            PingMsg::Hello(Hello, reply) => cx.reply(reply, *cx.id()),
            PingMsg::Count(Count, reply) => {
                self.counted += 1;
                cx.reply(reply, self.counted);
            }
            // Its thread stays behind until the process of this test ends.
            PingMsg::Stay(_) => {
                STAYS.store(true, Ordering::SeqCst);
                drop(GATE.lock());
            }
            PingMsg::Hold(_) => loop {
                HELD.store(true, Ordering::SeqCst);
                std::thread::park();
            },
        }
    }

    fn stopped(&mut self, why: StopReason, cx: &mut Cx<'_, Self>) {
        if *cx.id() == TELLS {
            TOLD.lock().push(why);
        }
    }

    fn handoff(&mut self, cx: &mut Cx<'_, Self>) -> Result<Handoff, Failure> {
        // The key of one that cannot be handed over.
        if *cx.id() == STUCK { Err(Failure::new("on purpose")) } else { cx.hand_over(&self.counted) }
    }

    fn adopted(&mut self, state: HandedOver<'_>, _: &mut Cx<'_, Self>) -> Result<(), Failure> {
        self.counted = state.decode()?;
        Ok(())
    }
}

fn host(node: &Cluster) -> Result<(), RegisterError> {
    node.host::<State>(HostOptions::new(), |_| State::default()).map(drop)
}

#[test]
fn several_clusters_in_one_process_know_nothing_of_each_other() {
    let node = |cluster: &str, seed: Option<&Cluster>| {
        let mut config = Config::preset(Preset::LocalTest);
        config.cluster.name = format!("{cluster}-{}", std::process::id());
        config.node.listen = "127.0.0.1:0".parse().unwrap();
        config.node.workers = Workers::Count(1);
        let node = Cluster::builder(config).seeds(seed.map(|seed| seed.addr().to_string())).start().unwrap();
        let pings = node.host::<State>(HostOptions::new(), |_| State::default()).unwrap();
        (node, pings)
    };
    let (red, red_pings) = node("red", None);
    let (blue, blue_pings) = node("blue", None);
    let (second_red, second_pings) = node("red", Some(&red));
    second_red.wait_members(2, LONG).unwrap();
    // One thread, one type, one key: two entities.
    for n in 1..=20 {
        assert_eq!((red_pings.get(7).ask(Count, LONG), blue_pings.get(7).ask(Count, LONG)), (Ok(n), Ok(n)));
    }
    assert_eq!(second_pings.get(7).ask(Count, LONG), Ok(21));
    assert_eq!((red.view().members.len(), blue.view().members.len()), (2, 1));
    // A node that looks for its cluster where another one is does not join that.
    let (lost, _) = node("green", Some(&blue));
    let error = lost.wait_up(Duration::from_millis(500)).unwrap_err();
    assert!(matches!(error, JoinError::Refused { .. } | JoinError::Timeout { .. } | JoinError::Shutdown), "{error}");
    assert_eq!(blue.view().members.len(), 1);
    red.shutdown(ShutdownReason::Requested).wait(LONG).unwrap();
    assert_eq!(blue_pings.get(7).ask(Count, LONG), Ok(21));
    assert_eq!(red_pings.get(7).ask(Count, LONG).unwrap_err().to_string(), "not sent: this node is shutting down");
}

#[test]
fn who_was_told_to_leave_has_left_though_its_only_peer_is_gone() {
    let world = World::simulated(2).seed(1).config(Config::preset(Preset::Lan)).start();
    let last = world.node(1);
    // The side of the lower address would live, so this one is to stop.
    world.kill(0);
    let told = last.shutdown(ShutdownReason::Signal(15)).wait(2 * LONG).unwrap();
    assert_eq!(told.reason, ShutdownReason::Signal(15), "{told:?}");
    assert!(
        told.overran.iter().any(|late| late.to_string().contains("removed from the cluster before it had left: keep-majority")),
        "{told:?}"
    );
}

// failures: row 55
#[test]
fn who_waits_for_a_node_that_ends_is_told_so_and_why() {
    let world = World::real(1).start();
    let node = |seed: &str| {
        let mut config = Config::preset(Preset::LocalTest);
        config.cluster.name = "another".into();
        config.node.listen = "127.0.0.1:0".parse().unwrap();
        let node = Cluster::builder(config).seeds([seed]).start().unwrap();
        (node.proxy::<Ping>().unwrap(), node)
    };
    let waits = |(pings, node): &(Region<Ping>, Cluster)| {
        let (pings, node) = (pings.clone(), node.clone());
        (thread::spawn(move || pings.wait_ready(Duration::MAX)), thread::spawn(move || node.wait_up(Duration::MAX).map(drop)))
    };
    // Another cluster refuses it.
    let refused = node(&world.node(0).addr().to_string());
    let (ready, up) = waits(&refused);
    let (ready, up) = (ready.join().unwrap().unwrap_err(), up.join().unwrap().unwrap_err());
    assert!(matches!(&ready, QueryError::Refused { why } if why.contains("another")), "{ready}");
    assert!(matches!(&up, JoinError::Refused { why } if why.contains("another")), "{up}");
    assert!(refused.1.shutdown(ShutdownReason::Requested).wait(LONG).is_some());
    assert_eq!((refused.0.wait_ready(LONG), refused.1.wait_up(LONG).map(drop)), (Err(ready), Err(up)), "it is told so later as well");
    // Nobody is where it looks.
    let alone = node("127.0.0.1:1");
    let (ready, up) = waits(&alone);
    assert!(alone.1.shutdown(ShutdownReason::Requested).wait(LONG).is_some());
    assert_eq!((ready.join().unwrap(), up.join().unwrap()), (Err(QueryError::Shutdown), Err(JoinError::Shutdown)));
}

/// Tasks run in the order of their phases; the node serves before it leaves, and refuses after.
fn tasks_run_in_their_phases(world: WorldBuilder) {
    let world = world.on_each(host).start();
    let (node, log) = (world.node(1), Log::default());
    let ping = world.entity::<Ping>(1, 7);
    assert_eq!(ping.ask(Hello, LONG), Ok(7));
    for (phase, name) in [(Phase::Flush, "flush"), (Phase::DrainRequests, "drain"), (Phase::StopAccepting, "stop")] {
        let (log, ping) = (log.clone(), ping.clone());
        node.on_shutdown(phase, name, LONG, move || log.add(format!("{name}: {}", ping.ask(Hello, LONG).is_ok()))).unwrap();
    }
    let handle = node.shutdown(ShutdownReason::Requested);
    let report = handle.wait(LONG).unwrap();
    assert_eq!(log.lines(), ["stop: true", "drain: true", "flush: false"]);
    assert_eq!((report.reason, report.overran), (ShutdownReason::Requested, vec![]));
    assert_eq!(handle.phase(), Some(Phase::StopEngine));
    let late = node.on_shutdown(Phase::Flush, "late", LONG, || unreachable!("it is over"));
    assert_eq!(late, Err(RegisterError::Shutdown));
}

#[test]
fn tasks_run_in_their_phases_in_virtual_time() {
    tasks_run_in_their_phases(World::simulated(2).seed(1));
}

#[test]
fn tasks_run_in_their_phases_on_threads() {
    tasks_run_in_their_phases(World::real(2));
}

#[test]
fn what_overruns_or_fails_is_named_and_holds_nothing_up() {
    let world = World::real(1).on_each(host).start();
    let (node, log) = (world.node(0), Log::default());
    let (release, wait) = channel::bounded::<()>(1);
    node.on_shutdown(Phase::StopAccepting, "door", Duration::from_millis(50), move || assert!(wait.recv().is_err())).unwrap();
    node.on_shutdown(Phase::DrainRequests, "drain", LONG, || panic!("on purpose")).unwrap();
    let also = log.clone();
    node.on_shutdown(Phase::Flush, "flush", LONG, move || also.add("flushed")).unwrap();
    let report = node.shutdown(ShutdownReason::Requested).wait(LONG).unwrap();
    let overran: Vec<_> = report.overran.iter().map(ToString::to_string).collect();
    assert_eq!(overran, ["stop accepting: `door` was not done within 50ms", "drain requests: `drain` panicked"]);
    assert_eq!(log.lines(), ["flushed"]);
    drop(release);
}

#[test]
fn a_task_that_waits_too_long_in_virtual_time_is_named() {
    let world = World::simulated(2).seed(3).on_each(host).start();
    let (node, other) = (world.node(1), world.entity::<Ping>(1, 1));
    world.cut(&[&[0], &[1]]);
    // Asks what the other side of a cut has, for longer than it may.
    let keys = (0..50).map(|n| world.entity::<Ping>(1, n)).collect::<Vec<_>>();
    let wait = move || keys.iter().for_each(|ping| drop(ping.ask(Hello, 20 * SECOND)));
    node.on_shutdown(Phase::DrainRequests, "asks", SECOND, wait).unwrap();
    let report = node.shutdown(ShutdownReason::Requested).wait(10 * LONG).unwrap();
    assert_eq!(report.overran[0].to_string(), "drain requests: `asks` was not done within 1s");
    drop(other);
}

#[test]
fn a_node_that_the_cluster_removes_runs_its_tasks_and_one_that_is_killed_does_not() {
    let world = World::simulated(3).seed(2).on_each(host).start();
    let log = Log::default();
    for i in [1, 2] {
        let log = log.clone();
        world.node(i).on_shutdown(Phase::StopAccepting, "door", SECOND, move || log.add(format!("n{i}"))).unwrap();
    }
    world.node(0).admin().down(world.node(1).id()).unwrap();
    world.kill(2);
    world.eventually(LONG, || !log.lines().is_empty());
    let report = world.node(1).shutdown(ShutdownReason::Requested).wait(LONG).unwrap();
    assert!(matches!(report.reason, ShutdownReason::Downed(_)), "{report:?}");
    assert_eq!(log.lines(), ["n1"]);
}

#[test]
fn what_was_not_handed_over_in_time_is_in_the_report() {
    let world = World::simulated(2).on_each(host).start();
    assert_eq!(world.entity::<Ping>(0, STUCK).ask(Count, LONG), Ok(1));
    let home = world.owner_of::<Ping>(STUCK);
    let report = world.node(home).shutdown(ShutdownReason::Requested).wait(LONG).unwrap();
    assert_eq!(report.reason, ShutdownReason::Requested);
    let overran: Vec<_> = report.overran.iter().map(ToString::to_string).collect();
    assert!(overran.iter().any(|line| line.starts_with("leave the cluster: hand-offs were not done")), "{overran:?}");
    // Begun anew, once the other node knows.
    world.eventually(LONG, || world.entity::<Ping>(1 - home, STUCK).ask(Count, LONG) == Ok(1));
}

/// Ends the node though one of its handlers does not return: what it says of that.
fn ended_beside_a_handler(world: &World) -> ShutdownReport {
    let node = world.node(0);
    let leave = node.config().shutdown.leave_timeout.get() + node.config().shutdown.drain_timeout.get();
    node.shutdown(ShutdownReason::Requested).wait(leave + LONG).unwrap()
}

// failures: row 47
#[test]
fn a_handler_that_never_returns_does_not_keep_the_node_from_ending() {
    let world = World::real(1).on_each(host).start();
    world.entity::<Ping>(0, 1).tell(Hold).unwrap();
    world.eventually(LONG, || HELD.load(Ordering::SeqCst));
    let report = ended_beside_a_handler(&world);
    let overran: Vec<_> = report.overran.iter().map(ToString::to_string).collect();
    assert!(overran.iter().any(|line| line.starts_with("stop the engine: thread `wingbeat-w")), "{overran:?}");
}

#[test]
fn a_handler_that_returns_behind_the_end_leaves_no_thread_and_no_socket_behind() {
    let gate = GATE.lock();
    let world = World::real(1).on_each(host).start();
    world.entity::<Ping>(0, 1).tell(Stay).unwrap();
    world.eventually(LONG, || STAYS.load(Ordering::SeqCst));
    let report = ended_beside_a_handler(&world);
    assert!(!report.overran.is_empty());
    let port = world.node(0).addr().port;
    assert!(std::net::TcpListener::bind(("127.0.0.1", port)).is_err(), "its network thread waits for the worker");
    drop(gate);
    world.eventually(LONG, || std::net::TcpListener::bind(("127.0.0.1", port)).is_ok());
}

#[test]
fn what_the_last_node_runs_ends_in_order() {
    let world = World::real(1).on_each(host).start();
    assert_eq!(world.entity::<Ping>(0, TELLS).ask(Count, LONG), Ok(1));
    world.node(0).shutdown(ShutdownReason::Requested).wait(LONG).unwrap();
    assert_eq!(*TOLD.lock(), [StopReason::Shutdown]);
}
