//! Nodes to which the system gives too little: descriptors, threads, time on a core.
#![cfg(feature = "cli")]
#![allow(missing_docs, clippy::unwrap_used)]

mod support;

use std::{
    io::{ErrorKind, Read as _},
    net::TcpStream,
    thread,
    time::{Duration, Instant},
};

use support::{
    cluster::Cluster,
    http::Client,
    process::{Node, ended, limited, unique_name},
    until_holds,
};

/// Nodes whose machine has no time for them, as in [`Node::start`].
const PATIENT: [(&str, &str); 2] = [("WINGBEAT_CLUSTER__PRESET", "local_test"), ("WINGBEAT_DETECTOR__HEARTBEAT_INTERVAL", "600ms")];

/// A figure of a metrics page, read over a connection that is there already.
#[track_caller]
fn metric(client: &mut Client, name: &str) -> u64 {
    let page = client.get("/metrics").unwrap().text();
    let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {name} in {page}")).parse().unwrap()
}

// failures: row 39
#[test]
fn a_node_without_descriptors_refuses_connections_and_keeps_those_it_has() {
    const DESCRIPTORS: usize = 48;
    let name = unique_name();
    let poor = Node::start_by(limited(&[&format!("-n {DESCRIPTORS}")]), &name, &[], &PATIENT);
    let mut cluster = Cluster { name, nodes: vec![poor] };
    cluster.add(&[]);
    cluster.wait_formed();
    let (poor, rich) = (&cluster.nodes[0], &cluster.nodes[1]);
    let mut own = poor.client();
    assert_eq!(metric(&mut own, "wingbeat_net_descriptors_exhausted_total"), 0);
    let key = (0..)
        .map(|n| format!("k{n}"))
        .find(|key| {
            assert_eq!(rich.post(&format!("/api/v1/entities/counter/{key}/add"), r#"{"n": 1}"#).status, 200);
            rich.get(&format!("/api/v1/shards/counter/locate?key={key}")).json()["owner"] == *poor.addr
        })
        .unwrap();
    let mut through = rich.client();
    let mut ask = || {
        let answer = through.post(&format!("/api/v1/entities/counter/{key}/get?timeout_ms=20000"), "{}").unwrap();
        assert_eq!((answer.status, &answer.json()["result"]["total"]), (200, &1.into()), "{}", answer.text());
    };

    // More than it has descriptors for. Those that it took in it holds until they should have greeted.
    let mut strangers: Vec<TcpStream> = (0..2 * DESCRIPTORS).map(|_| TcpStream::connect(&poor.addr).unwrap()).collect();
    until_holds("there is none left", || metric(&mut own, "wingbeat_net_descriptors_exhausted_total") > 0);
    let (began, before) = (Instant::now(), metric(&mut own, "wingbeat_net_descriptors_exhausted_total"));
    let mut refused = 0;
    until_holds("it is out of descriptors again and again", || {
        ask();
        strangers.extend(TcpStream::connect(&poor.addr));
        refused = metric(&mut own, "wingbeat_net_descriptors_exhausted_total") - before;
        refused >= 10
    });
    // Each time it pauses for a tenth of a second; figures on the page are up to a fifth of a second old.
    let at_most = began.elapsed().as_millis() as u64 / 100 + 4;
    assert!(refused <= at_most, "{refused} refusals in {:?}: it spins", began.elapsed());
    assert!(poor.log().contains("descriptor"), "{}", poor.log());
    // The link with the other node stands, and nobody was accused.
    assert_eq!(metric(&mut own, "wingbeat_net_sessions_down_total"), 0);
    assert_eq!(rich.members_that_are("up").len(), 2);
    assert!(!rich.log().contains("unreachable"), "{}", rich.log());
    // Who asks over HTTP then is not left to wait.
    let mut late = TcpStream::connect(poor.admin).unwrap();
    late.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let closed = late.read(&mut [0; 1]);
    assert!(matches!(&closed, Ok(0)) || closed.as_ref().is_err_and(|e| e.kind() == ErrorKind::ConnectionReset), "{closed:?}");
    assert!(metric(&mut own, "wingbeat_http_refused_total{reason=\"connections\"}") > 0);
    drop(strangers);
    // It sees a moment later that they have gone, and resets who asks until then.
    until_holds("it has descriptors again", || {
        let mut clients: Vec<_> = (0..8).map(|_| poor.client()).collect();
        clients.iter_mut().all(|client| client.get("/healthz/live").is_ok())
    });
    cluster.add(&[]);
    cluster.wait_formed();
}

// failures: row 44
#[cfg(target_os = "linux")]
#[test]
fn a_thread_that_finds_no_memory_is_named_and_the_node_does_not_start() {
    // Room for some of the threads: each takes a stack of this size.
    let mut command = limited(&["-v 4000000"]);
    command.args(["node", "--listen", "127.0.0.1:0"]).env("RUST_MIN_STACK", (512 << 20).to_string()).env("WINGBEAT_NODE__WORKERS", "16");
    let done = ended(&mut command);
    assert_eq!((done.code, done.out.as_str()), (Some(1), ""), "{done:?}");
    assert!(done.err.contains("E-START-004") && done.err.contains("`wingbeat-w"), "{}", done.err);
}

// failures: row 43
#[test]
fn a_node_that_gets_a_tenth_of_its_time_accuses_nobody_and_stays() {
    let cluster = Cluster::of(3);
    let starved = &cluster.nodes[2];
    let began = Instant::now();
    // Longer than a healthy node takes to be found unreachable, in slices each of which a heartbeat survives.
    while began.elapsed() < Duration::from_secs(8) {
        starved.signal("STOP");
        thread::park_timeout(Duration::from_millis(900));
        starved.signal("CONT");
        thread::park_timeout(Duration::from_millis(100));
    }
    cluster.wait_formed();
    for node in &cluster.nodes {
        let log = node.log();
        assert!(!log.contains("removed") && !log.contains("split"), "{log}");
    }
    // Whoever ran late has looked at itself first.
    assert!(!starved.log().contains("unreachable"), "{}", starved.log());
    assert!(metric(&mut starved.client(), "wingbeat_detector_late_wakeups_total") > 0);
}
