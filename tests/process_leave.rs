//! A node that leaves hands its shards over first: clients of the others notice nothing, and nothing is lost.
#![cfg(feature = "cli")]
#![allow(missing_docs, clippy::unwrap_used)]

mod support;

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use serde_json::Value;
use support::{cluster::Cluster, http::Client, process::Node, until_holds};

/// Entities that are counted on: more than there are nodes and spread over many shards.
const COUNTERS: usize = 40;
const CLIENTS: usize = 4;

/// Clients that count through one node, each on its own connection and one request after the other, until told to stop.
struct Counting {
    stop: Arc<AtomicBool>,
    answered: Arc<AtomicU64>,
    clients: Vec<JoinHandle<Vec<u64>>>,
}

impl Counting {
    fn start(admin: SocketAddr) -> Self {
        let (stop, answered) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let clients = (0..CLIENTS).map(|number| {
            let (stop, answered) = (stop.clone(), answered.clone());
            thread::spawn(move || {
                let mut client = Client::connect(admin).unwrap();
                let mut added = vec![0; COUNTERS];
                // A turn over all counters is finished, so that each has been used before the first stop.
                while !stop.load(Ordering::Relaxed) {
                    for (counter, sum) in added.iter_mut().enumerate() {
                        let body = format!(r#"{{"n": 1, "id": "{number}-{sum}"}}"#);
                        let path = format!("/api/v1/entities/counter/c{counter}/add?timeout_ms=20000");
                        let answer = client.post(&path, &body).unwrap();
                        assert_eq!(answer.status, 200, "c{counter}: {}", answer.text());
                        assert_eq!(answer.json()["result"]["duplicate"], false, "{}", answer.text());
                        *sum += 1;
                        answered.fetch_add(1, Ordering::Relaxed);
                    }
                }
                added
            })
        });
        let clients = clients.collect();
        Self { stop, answered, clients }
    }

    /// Waits until that many more requests were answered.
    #[track_caller]
    fn wait_more(&self, more: u64) {
        let goal = self.answered.load(Ordering::Relaxed) + more;
        until_holds("clients are answered", || {
            self.answered.load(Ordering::Relaxed) >= goal || self.clients.iter().any(JoinHandle::is_finished)
        });
    }

    /// Stops them; how often each counter was added to.
    fn finish(self) -> Vec<u64> {
        self.stop.store(true, Ordering::Relaxed);
        let mut sums = vec![0; COUNTERS];
        for client in self.clients {
            let added = client.join().unwrap_or_else(|_| panic!("a client saw an error"));
            sums.iter_mut().zip(added).for_each(|(sum, n)| *sum += n);
        }
        sums
    }
}

#[track_caller]
fn total(node: &Node, counter: usize) -> u64 {
    let answer = node.post(&format!("/api/v1/entities/counter/c{counter}/get?timeout_ms=20000"), "{}");
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()["result"]["total"].as_u64().unwrap()
}

/// Nobody's request fails and no count is lost while `leaver` leaves by `leave` and clients count through `through`.
fn leaves_unnoticed(leaver: impl Fn(&Cluster) -> usize, leave: impl Fn(&Cluster, usize)) {
    let mut cluster = Cluster::of(3);
    let leaver = leaver(&cluster);
    let through = (leaver + 1) % 3;
    let counting = Counting::start(cluster.nodes[through].admin);
    counting.wait_more((2 * COUNTERS * CLIENTS) as u64);
    leave(&cluster, leaver);
    let mut left = cluster.remove(leaver);
    assert_eq!(left.exit_code(), 0, "{}", left.log());
    assert!(!left.log().contains("warning:"), "everything was handed over in time: {}", left.log());
    counting.wait_more((2 * COUNTERS * CLIENTS) as u64);
    let sums = counting.finish();
    cluster.wait_formed();
    cluster.wait_one_owner_each("counter");
    for (counter, sum) in sums.iter().enumerate() {
        for node in &cluster.nodes {
            assert_eq!(total(node, counter), *sum, "c{counter} at {}", node.addr);
        }
    }
    for node in &cluster.nodes {
        let drops = node.get("/api/v1/drops").json();
        assert_eq!(drops["total"], 0, "{drops}");
        assert!(node.members().iter().all(|member| member["addr"] != *left.addr), "{} is removed", left.addr);
    }
}

#[test]
fn the_coordinator_leaves_on_sigterm_and_nobody_notices() {
    leaves_unnoticed(Cluster::coordinator, |cluster, leaver| cluster.nodes[leaver].signal("TERM"));
}

#[test]
fn another_node_leaves_on_sigterm_and_nobody_notices() {
    leaves_unnoticed(|cluster| (cluster.coordinator() + 1) % 3, |cluster, leaver| cluster.nodes[leaver].signal("TERM"));
}

#[test]
fn a_node_that_is_told_to_leave_over_http_does_as_with_sigterm() {
    leaves_unnoticed(
        |cluster| (cluster.coordinator() + 2) % 3,
        |cluster, leaver| {
            let by = (leaver + 2) % 3;
            let answer = cluster.nodes[by].post(&format!("/api/v1/members/{}/leave", cluster.nodes[leaver].addr), "");
            assert_eq!(answer.status, 202, "{}", answer.text());
        },
    );
}

#[test]
fn a_rolling_restart_loses_no_count() {
    let mut cluster = Cluster::of(3);
    let counting = Counting::start(cluster.nodes[2].admin);
    counting.wait_more((2 * COUNTERS * CLIENTS) as u64);
    // Each of the others once, the oldest first; the new life joins through the one that clients use.
    let through = cluster.nodes[2].addr.clone();
    for _ in 0..2 {
        let mut old = cluster.remove(0);
        old.signal("TERM");
        assert_eq!(old.exit_code(), 0, "{}", old.log());
        cluster.nodes.push(Node::start(&cluster.name, &["--listen", &old.addr, "--seed", &through]));
        cluster.wait_formed();
    }
    counting.wait_more((2 * COUNTERS * CLIENTS) as u64);
    let sums = counting.finish();
    for (counter, sum) in sums.iter().enumerate() {
        assert_eq!(total(&cluster.nodes[0], counter), *sum, "c{counter}");
    }
}

#[test]
fn a_second_signal_ends_a_leaving_node_at_once() {
    // A node cannot leave a cluster whose other member is stopped: nobody takes its shards or its farewell.
    for (signal, code) in [("TERM", 143), ("INT", 130)] {
        let mut cluster = Cluster::of(2);
        let added = cluster.nodes[1].post("/api/v1/entities/counter/a/add", r#"{"n": 1}"#);
        assert_eq!(added.status, 200, "{}", added.text());
        cluster.nodes[0].signal("STOP");
        let mut leaver = cluster.remove(1);
        leaver.signal("TERM");
        until_holds("the first signal is taken", || leaver.log().contains("leaving the cluster"));
        // Signals within a few milliseconds count as one, so the impatient try again.
        until_holds("the second signal ends it", || {
            leaver.signal(signal);
            !leaver.is_running()
        });
        assert_eq!(leaver.exit_code(), code, "{}", leaver.log());
        cluster.nodes[0].signal("CONT");
    }
}

#[test]
fn a_lone_node_leaves_at_once() {
    for signal in ["TERM", "INT"] {
        let mut node = Node::start(&support::process::unique_name(), &[]);
        until_holds("ready", || node.get("/healthz/ready").status == 200);
        let added: Value = node.post("/api/v1/entities/counter/a/add", r#"{"n": 1}"#).json();
        assert_eq!(added["result"]["total"], 1);
        let began = std::time::Instant::now();
        node.signal(signal);
        assert_eq!(node.exit_code(), 0, "{}", node.log());
        assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    }
}

#[test]
fn a_node_that_is_not_a_member_yet_ends_at_once() {
    let mut node = Node::start(&support::process::unique_name(), &["--seed", &support::process::free_addr()]);
    // failures: row 21: it forms no cluster of its own, and says whom it asks.
    assert_eq!(node.get("/healthz/ready").status, 503);
    assert_eq!(node.status()["status"], "joining");
    node.signal("TERM");
    let began = std::time::Instant::now();
    assert_eq!(node.exit_code(), 0, "{}", node.log());
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
}

/// Nothing that tells a node to end is lost, however early it comes.
#[test]
fn a_signal_while_a_node_starts_ends_it() {
    for step in 0..24u32 {
        let mut node = std::process::Command::new(env!("CARGO_BIN_EXE_wingbeat"))
            .args(["node", "--listen", "127.0.0.1:0", "--exit-with-parent"])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let due = std::time::Instant::now() + Duration::from_micros(250) * step;
        while std::time::Instant::now() < due {
            std::hint::spin_loop();
        }
        let told = std::process::Command::new("kill").args(["-TERM", &node.id().to_string()]).status().unwrap();
        assert!(told.success());
        until_holds("it ends", || node.try_wait().unwrap().is_some());
    }
}
