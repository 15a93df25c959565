//! What becomes of a member whose process is stopped, killed, started again or downed, under the settings that nobody changed.
#![cfg(feature = "cli")]
#![allow(missing_docs, clippy::unwrap_used)]

mod support;

use std::time::{Duration, Instant};

use serde_json::Value;
use support::{
    cluster::Cluster,
    process::{Node, unique_name},
    until, until_holds,
};

/// The default heartbeat interval.
const H: Duration = Duration::from_secs(1);
/// What a machine that runs other tests beside may add to a time.
const LOAD: Duration = Duration::from_secs(3);

/// Members whose settings are the defaults, but for these.
fn plain(n: usize, env: &[(&str, &str)]) -> Cluster {
    let name = unique_name();
    let first = Node::start_with(&name, &[], env);
    let seed = first.addr.clone();
    let mut nodes = vec![first];
    nodes.extend((1..n).map(|_| Node::start_with(&name, &["--seed", &seed], env)));
    let cluster = Cluster { name, nodes };
    cluster.wait_formed();
    cluster
}

/// Events about the membership that a node has told so far.
fn membership_events(node: &Node) -> Vec<Value> {
    let events = node.get("/api/v1/events").json();
    let kinds = ["member", "unreachable", "reachable", "leader_changed", "split"];
    events["events"].as_array().unwrap().iter().filter(|e| kinds.iter().any(|kind| e["event"] == *kind)).cloned().collect()
}

/// Until the time has passed, the node goes on answering.
fn answers_for(node: &Node, time: Duration) {
    let began = Instant::now();
    until_holds("the time has passed", || node.get("/healthz/ready").status == 200 && began.elapsed() >= time);
}

#[test]
fn five_survive_a_stop_of_two_seconds_notice_a_kill_and_take_the_new_life_at_once() {
    let mut cluster = plain(5, &[]);
    let quiet: Vec<usize> = cluster.nodes.iter().map(|node| membership_events(node).len()).collect();
    cluster.nodes[3].signal("STOP");
    answers_for(&cluster.nodes[0], Duration::from_secs(2));
    cluster.nodes[3].signal("CONT");
    // As long again as it takes to accuse somebody, had its silence or the burst behind it been held against anyone.
    answers_for(&cluster.nodes[3], 6 * H);
    for (node, before) in cluster.nodes.iter().zip(quiet) {
        let events = membership_events(node);
        assert_eq!(events.len(), before, "{}: {:?}", node.addr, &events[before.min(events.len())..]);
    }

    let mut killed = cluster.remove(3);
    killed.kill();
    let began = Instant::now();
    until("the mark of the cluster on the killed one", || {
        let marked = |e: &Value| e["event"] == "unreachable" && e["data"]["node"] == *killed.addr;
        cluster.nodes.iter().find(|node| membership_events(node).iter().any(marked))
    });
    assert!(began.elapsed() <= 6 * H + LOAD, "noticed after {:?}", began.elapsed());

    let began = Instant::now();
    cluster.nodes.push(Node::start_with(&cluster.name, &["--listen", &killed.addr, "--seed", &cluster.nodes[0].addr], &[]));
    cluster.wait_formed();
    // The resolver alone would have taken seven heartbeats to down the old life.
    assert!(began.elapsed() < 7 * H, "a member again after {:?}", began.elapsed());
    let lives = cluster.nodes[0].members();
    assert!(lives.iter().any(|m| m["addr"] == *killed.addr && m["incarnation"] == *cluster.nodes[4].incarnation), "{lives:?}");
}

#[test]
fn a_downed_process_that_is_to_rejoin_starts_anew_on_its_addresses() {
    let env = [
        ("WINGBEAT_CLUSTER__PRESET", "local_test"),
        ("WINGBEAT_DETECTOR__HEARTBEAT_INTERVAL", "600ms"),
        ("WINGBEAT_MEMBERSHIP__ON_DOWNED", "rejoin"),
    ];
    let mut cluster = plain(3, &env);
    let life = |cluster: &Cluster, addr: &str| {
        let lives = cluster.nodes[1].members();
        let of: Vec<&Value> = lives.iter().filter(|m| m["addr"] == *addr && m["status"] == "up").collect();
        (of.len() == 1).then(|| of[0]["incarnation"].as_str().unwrap().to_owned())
    };
    // A member, and then the only seed, which forms no second cluster.
    for victim in [2, 0] {
        let addr = cluster.nodes[victim].addr.clone();
        let before = cluster.nodes[victim].incarnation.clone();
        let answer = cluster.nodes[1].post(&format!("/api/v1/members/{addr}/down"), "");
        assert_eq!(answer.status, 202, "{}", answer.text());
        until_holds("a new life is up", || life(&cluster, &addr).is_some_and(|now| now != before));
        let again = life(&cluster, &addr).unwrap();
        // While it starts again its port is closed for a moment.
        until_holds("the same address answers as the new life", || {
            let answer = cluster.nodes[victim].client().get("/api/v1/status");
            answer.is_ok_and(|answer| answer.json()["self"]["incarnation"] == *again)
        });
        cluster.nodes[victim].incarnation = again;
        cluster.wait_formed();
        let added = cluster.nodes[victim].post("/api/v1/entities/counter/a/add?timeout_ms=20000", r#"{"n": 1}"#);
        assert_eq!(added.status, 200, "{}", added.text());
    }
    for node in &mut cluster.nodes {
        node.signal("TERM");
    }
    for node in &mut cluster.nodes {
        assert_eq!(node.exit_code(), 0, "{}", node.log());
    }
}

#[test]
fn a_process_that_was_removed_while_it_stood_still_rejoins_when_it_runs_again() {
    let env = [
        ("WINGBEAT_CLUSTER__PRESET", "local_test"),
        ("WINGBEAT_DETECTOR__HEARTBEAT_INTERVAL", "600ms"),
        ("WINGBEAT_MEMBERSHIP__ON_DOWNED", "rejoin"),
    ];
    let cluster = plain(3, &env);
    let addr = &cluster.nodes[2].addr;
    let before = &cluster.nodes[2].incarnation;
    cluster.nodes[2].signal("STOP");
    let lives = || -> Vec<Value> { cluster.nodes[0].members().into_iter().filter(|m| m["addr"] == **addr).collect() };
    until_holds("it is removed", || lives().is_empty());
    cluster.nodes[2].signal("CONT");
    until_holds("it is a new member", || lives().iter().any(|m| m["status"] == "up" && m["incarnation"] != **before));
    cluster.wait_formed();
}

/// What a process has of threads and descriptors.
#[cfg(target_os = "linux")]
fn holdings(pid: u32) -> (usize, usize) {
    let count = |what: &str| std::fs::read_dir(format!("/proc/{pid}/{what}")).unwrap().count();
    (count("task"), count("fd"))
}

#[test]
#[cfg(target_os = "linux")]
fn a_life_that_is_over_leaves_no_thread_and_no_descriptor_in_its_process() {
    let env = [("WINGBEAT_CLUSTER__PRESET", "local_test"), ("WINGBEAT_MEMBERSHIP__ON_DOWNED", "rejoin")];
    let cluster = plain(3, &env);
    let (node, addr) = (&cluster.nodes[2], &cluster.nodes[2].addr);
    let up = || -> Option<String> {
        let lives = cluster.nodes[0].members();
        let of: Vec<&Value> = lives.iter().filter(|m| m["addr"] == *addr && m["status"] == "up").collect();
        (of.len() == 1).then(|| of[0]["incarnation"].as_str().unwrap().to_owned())
    };
    cluster.wait_formed();
    let before = holdings(node.pid());
    for _ in 0..3 {
        let life = up().unwrap();
        let answer = cluster.nodes[0].post(&format!("/api/v1/members/{addr}/down"), "");
        assert_eq!(answer.status, 202, "{}", answer.text());
        until_holds("a new life is up", || up().is_some_and(|now| now != life));
        cluster.wait_formed();
    }
    // A connection of this test, or one between the nodes that is about to close, may be there or not; three lives would leave three.
    until_holds("threads and descriptors are as before", || {
        let now = holdings(node.pid());
        now.0 <= before.0 && now.1 <= before.1 + 2
    });
}
