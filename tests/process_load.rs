//! Under load, a node that is killed takes its state along and nothing else, and one that leaves takes nothing: each shard has one owner
//! afterwards, and no message that arrived did so twice or out of order.
#![cfg(feature = "cli")]
#![allow(missing_docs, clippy::unwrap_used)]

mod support;

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
};

use serde_json::{Value, json};
use support::{
    cluster::Cluster,
    http::{Client, post},
    until, until_holds,
};

/// Entities that are sent to, by each sender in turn: spread over many shards of all nodes.
const PROBES: u64 = 30;
/// Requests that a sender has on the way; their answers are read in the order of the requests.
const PIPELINED: u64 = 10;

/// What became of one sender's messages, by probe.
#[derive(Default)]
struct Sent {
    /// Numbers up to this one were sent.
    last: u64,
    /// Answered 200 or 202.
    accepted: u64,
    /// Answered by a problem that says it did not run.
    refused: u64,
    /// Answered by a problem that says it may have run.
    unknown: u64,
}

/// Clients that send numbered notes, each to all probes in turn and through one node, until told to stop.
struct Load {
    stop: Arc<AtomicBool>,
    rounds: Vec<Arc<AtomicU64>>,
    senders: Vec<JoinHandle<(String, BTreeMap<u64, Sent>)>>,
}

impl Load {
    fn start(through: &[SocketAddr], mode: &'static str) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let rounds: Vec<Arc<AtomicU64>> = through.iter().map(|_| Arc::default()).collect();
        let senders = through.iter().enumerate().map(|(number, admin)| {
            let (stop, rounds, admin) = (stop.clone(), rounds[number].clone(), *admin);
            thread::spawn(move || {
                let sender = format!("s{number}");
                let mut client = Client::connect(admin).unwrap();
                let mut all: BTreeMap<u64, Sent> = BTreeMap::new();
                let mut seq = 0;
                while !stop.load(Ordering::Relaxed) {
                    seq += 1;
                    for first in (0..PROBES).step_by(PIPELINED as usize) {
                        let probes = first..first + PIPELINED;
                        let body = format!(r#"{{"sender": "{sender}", "seq": {seq}}}"#);
                        let path = |probe: u64| format!("/api/v1/entities/probe/p{probe}/note?mode={mode}&timeout_ms=20000");
                        let requests: String = probes.clone().map(|probe| post(&path(probe), "", &body)).collect();
                        client.send(requests).unwrap();
                        for probe in probes {
                            let answer = client.answer().unwrap();
                            let sent = all.entry(probe).or_default();
                            sent.last = seq;
                            match answer.status {
                                200 | 202 => sent.accepted += 1,
                                _ if answer.json()["maybe_ran"] == false => sent.refused += 1,
                                _ => sent.unknown += 1,
                            }
                        }
                    }
                    rounds.fetch_add(1, Ordering::Relaxed);
                }
                (sender, all)
            })
        });
        let senders = senders.collect();
        Self { stop, rounds, senders }
    }

    /// Waits until each sender has gone round so many times more.
    #[track_caller]
    fn wait_rounds(&self, more: u64) {
        for rounds in &self.rounds {
            let goal = rounds.load(Ordering::Relaxed) + more;
            until_holds("senders go on", || rounds.load(Ordering::Relaxed) >= goal || self.senders.iter().any(JoinHandle::is_finished));
        }
    }

    fn finish(self) -> Vec<(String, BTreeMap<u64, Sent>)> {
        self.stop.store(true, Ordering::Relaxed);
        self.senders.into_iter().map(|sender| sender.join().unwrap_or_else(|_| panic!("a sender was cut off"))).collect()
    }
}

/// Which node is home of each probe.
#[track_caller]
fn homes(cluster: &Cluster, asked: usize) -> Vec<String> {
    let node = &cluster.nodes[asked];
    let home = |probe: u64| {
        until("a probe has a home", || {
            let row = node.get(&format!("/api/v1/shards/probe/locate?key=p{probe}")).json();
            row["owner"].as_str().filter(|_| row["state"] == "active").map(str::to_owned)
        })
    };
    (0..PROBES).map(home).collect()
}

fn survives_a_kill(victim: impl Fn(&Cluster) -> usize, mode: &'static str) {
    let mut cluster = Cluster::of(3);
    let victim = victim(&cluster);
    let through: Vec<SocketAddr> = (0..3).filter(|n| *n != victim).map(|n| cluster.nodes[n].admin).collect();
    let load = Load::start(&through, mode);
    load.wait_rounds(10);
    let before = homes(&cluster, (victim + 1) % 3);
    let mut killed = cluster.remove(victim);
    killed.kill();
    cluster.wait_formed();
    cluster.wait_one_owner_each("probe");
    load.wait_rounds(10);
    let sent = load.finish();
    cluster.wait_one_owner_each("probe");

    let mut lost_homes = 0;
    for probe in 0..PROBES {
        let path = format!("/api/v1/entities/probe/p{probe}/report?timeout_ms=20000");
        // The last told messages are on their way still: the report of another node than the sender's does not wait for them.
        let report = |sender: &str, expected: u64| {
            until(&format!("the last message of {sender} has arrived at p{probe}"), || {
                let answer = cluster.nodes[0].post(&path, "{}");
                assert_eq!(answer.status, 200, "{}", answer.text());
                let row = answer.json()["result"]["senders"][sender].clone();
                (row["last"] == expected).then_some(row)
            })
        };
        let stayed = before[probe as usize] != killed.addr;
        lost_homes += u32::from(!stayed);
        for (sender, by_probe) in &sent {
            let sent = &by_probe[&probe];
            let row: Value = report(sender, sent.last);
            let number = |name: &str| row[name].as_u64().unwrap();
            assert_eq!((number("duplicates"), number("reordered")), (0, 0), "{sender} at p{probe}: {row}");
            if stayed {
                assert_eq!(number("first"), 1, "{sender} at p{probe}, whose home was not killed: {row}");
                assert_eq!((sent.refused, sent.unknown), (0, 0), "{sender} at p{probe}, whose home was not killed");
                assert_eq!((number("gaps"), number("count")), (0, sent.last), "{sender} at p{probe}, whose home was not killed: {row}");
            } else {
                // What the killed node had is gone with it; what was accepted since the new start is all there, but what was on the way.
                assert!(number("count") <= sent.accepted + sent.unknown, "{sender} at p{probe}: {row}");
            }
        }
    }
    assert!(lost_homes > 0, "the killed node was home of a part of the probes");
}

#[test]
fn the_coordinators_node_is_killed_under_load() {
    survives_a_kill(Cluster::coordinator, "ask");
}

#[test]
fn another_node_is_killed_under_load() {
    survives_a_kill(|cluster| (cluster.coordinator() + 1) % 3, "ask");
}

#[test]
fn the_coordinators_node_is_killed_under_told_load() {
    survives_a_kill(Cluster::coordinator, "tell");
}

/// A node that leaves loses nothing: every message that was accepted has arrived, once and in order.
fn leaves_under_load(leaver: impl Fn(&Cluster) -> usize, mode: &'static str) {
    let mut cluster = Cluster::of(3);
    let leaver = leaver(&cluster);
    let through: Vec<SocketAddr> = (0..3).filter(|n| *n != leaver).map(|n| cluster.nodes[n].admin).collect();
    let load = Load::start(&through, mode);
    load.wait_rounds(10);
    let mut left = cluster.remove(leaver);
    left.signal("TERM");
    assert_eq!(left.exit_code(), 0, "{}", left.log());
    cluster.add(&[]);
    cluster.wait_formed();
    load.wait_rounds(10);
    let sent = load.finish();
    for probe in 0..PROBES {
        let path = format!("/api/v1/entities/probe/p{probe}/report?timeout_ms=20000");
        for (sender, by_probe) in &sent {
            let sent = &by_probe[&probe];
            assert_eq!((sent.refused, sent.unknown, sent.accepted), (0, 0, sent.last), "{sender} at p{probe}");
            let row = until(&format!("the last message of {sender} has arrived at p{probe}"), || {
                let row = cluster.nodes[0].post(&path, "{}").json()["result"]["senders"][sender].clone();
                (row["last"] == sent.last).then_some(row)
            });
            let expected = json!({"count": sent.last, "first": 1, "last": sent.last, "gaps": 0, "duplicates": 0, "reordered": 0});
            assert_eq!(row, expected, "{sender} at p{probe}");
        }
    }
}

#[test]
fn the_coordinators_node_leaves_under_told_load_and_another_joins() {
    leaves_under_load(Cluster::coordinator, "tell");
}

#[test]
fn another_node_leaves_under_asked_load_and_another_joins() {
    leaves_under_load(|cluster| (cluster.coordinator() + 1) % 3, "ask");
}

#[test]
fn a_killed_node_is_replaced() {
    let mut cluster = Cluster::of(3);
    let victim = cluster.coordinator();
    let through: Vec<SocketAddr> = (0..3).filter(|n| *n != victim).map(|n| cluster.nodes[n].admin).collect();
    let load = Load::start(&through, "ask");
    load.wait_rounds(10);
    let mut killed = cluster.remove(victim);
    killed.kill();
    cluster.add(&[]);
    cluster.wait_formed();
    cluster.wait_one_owner_each("probe");
    load.wait_rounds(10);
    // The newcomer takes its part.
    until_holds("the newcomer is home of shards", || {
        let members = cluster.nodes[2].members();
        members.iter().any(|member| member["addr"] == *cluster.nodes[2].addr && member["shards"].as_u64() > Some(0))
    });
    let sent = load.finish();
    for probe in 0..PROBES {
        let answer = cluster.nodes[2].post(&format!("/api/v1/entities/probe/p{probe}/report?timeout_ms=20000"), "{}");
        let report = answer.json();
        for (sender, by_probe) in &sent {
            let row = &report["result"]["senders"][sender];
            assert_eq!((&row["duplicates"], &row["reordered"]), (&0.into(), &0.into()), "{sender} at p{probe}: {report}");
            assert_eq!(row["last"], by_probe[&probe].last, "{sender} at p{probe}: {report}");
        }
    }
}

#[test]
fn a_stopped_node_that_was_removed_ends_itself_when_it_runs_again() {
    let mut cluster = Cluster::of(3);
    for probe in 0..PROBES {
        let noted = cluster.nodes[0].post(&format!("/api/v1/entities/probe/p{probe}/note"), r#"{"sender": "s", "seq": 1}"#);
        assert_eq!(noted.status, 200, "{}", noted.text());
    }
    let mut stopped = cluster.remove(2);
    stopped.signal("STOP");
    cluster.wait_formed();
    cluster.wait_one_owner_each("probe");
    stopped.signal("CONT");
    assert_eq!(stopped.exit_code(), 3, "{}", stopped.log());
    cluster.wait_formed();
}

/// A request in flight to a node that dies is answered as soon as the node is out, not when the asker's patience ends.
#[test]
fn what_a_dead_home_was_asked_fails_when_it_is_removed() {
    let mut cluster = Cluster::of(3);
    let asked = cluster.coordinator();
    let (key, home) = (0..)
        .find_map(|k| {
            let key = format!("k{k}");
            assert_eq!(cluster.nodes[asked].post(&format!("/api/v1/entities/counter/{key}/add"), r#"{"n":1}"#).status, 200);
            let row = cluster.nodes[asked].get(&format!("/api/v1/shards/counter/locate?key={key}")).json();
            let home = cluster.nodes.iter().position(|node| row["owner"] == node.addr.as_str())?;
            (home != asked).then_some((key, home))
        })
        .expect("keys are spread over all nodes");
    let mut killed = cluster.remove(home);
    killed.signal("STOP");
    let asked = cluster.nodes.iter().find(|node| node.addr == node.status()["coordinator"]).expect("the coordinator's node runs");
    let mut client = asked.client();
    client.send(post(&format!("/api/v1/entities/counter/{key}/get?timeout_ms=60000"), "", "{}")).unwrap();
    // The surface takes requests in turn: when a later one is answered, this one is on its way.
    asked.status();
    killed.kill();
    client.answer().unwrap().problem(503, "E-ASK-004");
}
