//! Node processes form a cluster, answer as the README says, and are told apart by who answers at their address.
#![cfg(feature = "cli")]
#![allow(missing_docs, clippy::unwrap_used)]

mod support;

use serde_json::json;
use support::{
    cluster::Cluster,
    http,
    process::{Node, free_addr, unique_name},
    until, until_holds,
};

#[test]
fn three_nodes_form_and_answer_as_the_readme_says() {
    // The README's lines: the first node's list names itself, and nothing else is set.
    let name = unique_name();
    let port = free_addr();
    let start = |args: &[&str]| Node::start_with(&name, args, &[]);
    let first = start(&["--listen", &port, "--seed", &port]);
    let nodes = vec![start(&["--seed", &port]), start(&["--seed", &port])];
    let mut cluster = Cluster { name: name.clone(), nodes };
    cluster.nodes.insert(0, first);
    cluster.wait_formed();
    let [one, two, three] = &cluster.nodes[..] else { panic!("three were started") };

    let added = two.post("/api/v1/entities/counter/visits/add", r#"{"n": 5, "id": "first"}"#);
    assert_eq!((added.status, &added.json()["result"]), (200, &json!({"total": 5, "duplicate": false})));
    let got = three.post("/api/v1/entities/counter/visits/get", "{}").json();
    assert_eq!(got["result"], json!({"total": 5}));
    let homes: Vec<String> = cluster.nodes.iter().map(|node| format!("{}:{}", node.addr, node.incarnation)).collect();
    assert!(homes.iter().any(|home| got["served_by"] == home.as_str()), "{got} is from none of {homes:?}");
    assert_eq!(got["served_by"], added.json()["served_by"]);
    assert!(got["epoch"].as_u64().is_some_and(|epoch| epoch > 0), "{got}");

    let status = one.status();
    assert_eq!((&status["cluster"], &status["size"], &status["status"]), (&json!(name), &json!(3), &json!("up")));
    assert_eq!(status["self"], json!({"addr": one.addr, "incarnation": one.incarnation}));
    assert_eq!((&status["oldest"], &status["coordinator"]), (&json!(one.addr), &json!(one.addr)));
    for node in &cluster.nodes {
        assert_eq!(node.status()["leader"], status["leader"]);
    }
}

#[test]
fn a_node_that_is_started_again_on_its_address_joins_anew() {
    let mut cluster = Cluster::of(3);
    let mut old = cluster.remove(2);
    old.kill();
    // At once, while the others still hold the old life for alive (failures: rows 18, 19).
    let args = ["--listen", &old.addr, "--seed", &cluster.nodes[0].addr];
    let again = Node::start(&cluster.name, &args);
    assert_ne!(again.incarnation, old.incarnation);
    cluster.nodes.push(again);
    cluster.wait_formed();
    let lives: Vec<String> = cluster.nodes[0]
        .members()
        .iter()
        .filter(|m| m["addr"] == *old.addr)
        .map(|m| m["incarnation"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(lives, [cluster.nodes[2].incarnation.clone()]);
    assert_eq!(cluster.nodes[2].post("/api/v1/entities/counter/a/add", r#"{"n": 1}"#).status, 200);
}

#[test]
fn the_only_seed_started_again_by_the_same_command_is_told_of_the_others() {
    let mut cluster = Cluster::of(3);
    let mut first = cluster.remove(0);
    first.kill();
    cluster.nodes.push(Node::start(&cluster.name, &["--listen", &first.addr]));
    // Formed by three, its next life among them: before, it was alone in a cluster of its own.
    cluster.wait_formed();
    assert!(cluster.nodes[2].log().contains("Superseded"), "{}", cluster.nodes[2].log());
}

#[test]
fn the_only_seed_and_another_one_started_again_at_once_are_one_with_the_rest() {
    let mut cluster = Cluster::of(5);
    let mut killed: Vec<Node> = (0..2).map(|_| cluster.remove(0)).collect();
    killed.iter_mut().for_each(Node::kill);
    let seed = killed[0].addr.clone();
    cluster.nodes.push(Node::start(&cluster.name, &["--listen", &seed]));
    for node in &killed[1..] {
        cluster.nodes.push(Node::start(&cluster.name, &["--listen", &node.addr, "--seed", &seed]));
    }
    cluster.wait_formed();
}

#[test]
fn a_node_started_again_while_the_only_seed_is_dead_is_told_of_the_others() {
    let mut cluster = Cluster::of(5);
    let (mut last, mut seed) = (cluster.remove(4), cluster.remove(0));
    seed.kill();
    last.kill();
    cluster.nodes.push(Node::start(&cluster.name, &["--listen", &last.addr, "--seed", &seed.addr]));
    cluster.wait_formed();
}

#[test]
fn a_downed_node_ends_with_3() {
    let mut cluster = Cluster::of(3);
    let answer = cluster.nodes[0].post(&format!("/api/v1/members/{}/down", cluster.nodes[2].addr), "");
    assert_eq!(answer.status, 202, "{}", answer.text());
    let mut downed = cluster.remove(2);
    assert_eq!(downed.exit_code(), 3);
    assert!(downed.log().contains("error[E-CLI-014]"), "{}", downed.log());
    cluster.wait_formed();
    // The same address can join again, as a new life.
    cluster.nodes.push(Node::start(&cluster.name, &["--listen", &downed.addr, "--seed", &cluster.nodes[0].addr]));
    cluster.wait_formed();
    let unknown = cluster.nodes[0].post("/api/v1/members/127.0.0.1:1/down", "");
    assert_eq!(unknown.status, 404, "{}", unknown.text());
}

#[test]
fn a_second_node_on_an_address_in_use_is_refused_with_the_protocol_and_the_setting() {
    let name = unique_name();
    let node = Node::start(&name, &[]);
    // failures: row 27
    let second =
        support::process::ended(support::process::wingbeat().args(["node", "--listen", &node.addr]).env("WINGBEAT_CLUSTER__NAME", &name));
    assert_eq!(second.code, Some(1), "{second:?}");
    for part in ["E-START-002", "TCP", &node.addr, "node.listen"] {
        assert!(second.err.contains(part), "{part}: {}", second.err);
    }
    let admin = node.admin.to_string();
    let third = support::process::ended(
        support::process::wingbeat()
            .args(["node", "--listen", "127.0.0.1:0", "--admin", &admin, "--seed", &node.addr])
            .env("WINGBEAT_CLUSTER__NAME", &name),
    );
    assert_eq!(third.code, Some(1), "{third:?}");
    assert!(third.err.contains(&admin) && third.err.contains("admin.listen"), "{}", third.err);
    assert!(!third.err.contains("wingbeat::membership"), "it never joined: {}", third.err);
    // A UDP port alone in use is named as such.
    let addr = free_addr();
    let _udp = std::net::UdpSocket::bind(&addr).unwrap();
    let fourth = support::process::run(&["node", "--listen", &addr]);
    assert_eq!(fourth.code, Some(1), "{fourth:?}");
    assert!(fourth.err.contains("UDP") && fourth.err.contains(&addr), "{}", fourth.err);
}

#[test]
fn writes_are_refused_without_the_token() {
    let node =
        Node::start_with(&unique_name(), &[], &[("WINGBEAT_CLUSTER__PRESET", "local_test"), ("WINGBEAT_ADMIN__TOKEN", "s3cret-word")]);
    until_holds("ready", || node.get("/healthz/ready").status == 200);
    let add = "/api/v1/entities/counter/a/add";
    let down = format!("/api/v1/members/{}/down", node.addr);
    for path in [add, "/api/v1/batch", &down, &down.replace("down", "leave"), "/api/v1/shards/counter/0/move?to=127.0.0.1:1"] {
        node.post(path, r#"{"n": 1}"#).problem(401, "E-HTTP-008");
    }
    let with = |token: &str| {
        let mut client = node.client();
        client.send(http::post(add, &format!("Authorization: Bearer {token}\r\n"), r#"{"n": 1}"#)).unwrap();
        client.answer().unwrap()
    };
    with("wrong").problem(401, "E-HTTP-008");
    assert_eq!(with("s3cret-word").json()["result"], json!({"total": 1, "duplicate": false}), "refused writes have not counted");
    let shown = node.get("/api/v1/config").text();
    assert!(!shown.contains("s3cret-word"), "{shown}");
    let cli = |token: &[&str]| {
        let mut args = vec!["leave", &node.addr, "--at"];
        let admin = node.admin.to_string();
        args.push(&admin);
        args.extend_from_slice(token);
        support::process::run(&args)
    };
    let refused = cli(&[]);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.err.contains("--token"), "{}", refused.err);
    assert_eq!(cli(&["--token", "s3cret-word"]).code, Some(0));
    let mut node = node;
    assert_eq!(node.exit_code(), 0, "a node that was told to leave ends with 0");
}

#[test]
fn a_node_of_another_cluster_is_refused_with_both_names() {
    let name = unique_name();
    let node = Node::start(&name, &[]);
    // failures: row 13
    let mut other = Node::start(&format!("{name}-x"), &["--seed", &node.addr]);
    assert_eq!(other.exit_code(), 1);
    let log = other.log();
    assert!(log.contains("E-CLI-015") && log.contains(&format!("{name}-x")) && log.contains(&format!("`{name}`")), "{log}");
    assert_eq!(node.members().len(), 1);
}

#[test]
fn acts_of_the_command_line_reach_the_cluster() {
    let mut cluster = Cluster::of(2);
    let at = cluster.nodes[0].admin.to_string();
    let status = support::process::run(&["status", "--json", "--at", &at]);
    assert_eq!(status.code, Some(0), "{status:?}");
    assert_eq!(serde_json::from_str::<serde_json::Value>(&status.out).unwrap()["size"], 2);
    cluster.nodes[0].post("/api/v1/entities/counter/a/add", r#"{"n": 1}"#);
    for args in [
        &["members"][..],
        &["links"],
        &["shards"],
        &["shards", "counter"],
        &["shards", "counter", "--map"],
        &["where", "counter", "a"],
        &["handoffs"],
        &["events"],
        &["drops"],
        &["latency"],
        &["config"],
        &["config", "--diff"],
    ] {
        for json in [false, true] {
            let mut all = args.to_vec();
            all.extend(["--at", &at]);
            if json {
                all.push("--json");
            }
            let done = support::process::run(&all);
            assert_eq!(done.code, Some(0), "{all:?}: {done:?}");
            assert_eq!(serde_json::from_str::<serde_json::Value>(&done.out).is_ok_and(|v| v.is_object()), json, "{all:?}: {}", done.out);
        }
    }
    let member = cluster.nodes[1].addr.clone();
    assert_eq!(support::process::run(&["leave", &member, "--at", &at]).code, Some(0));
    let mut left = cluster.remove(1);
    assert_eq!(left.exit_code(), 0, "{}", left.log());
    cluster.wait_formed();
    let nobody = support::process::run(&["leave", &member, "--at", &at]);
    assert_eq!(nobody.code, Some(1), "{nobody:?}");
    let gone = left.admin.to_string();
    let follower = std::thread::spawn({
        let at = at.clone();
        move || support::process::run(&["events", "-f", "--at", &at])
    });
    support::until_holds("it follows", || {
        cluster.nodes[0].get("/metrics").text().contains("\nwingbeat_http_subscribers 1\n") || follower.is_finished()
    });
    let mut last = cluster.remove(0);
    last.kill();
    let ended = follower.join().unwrap();
    assert!(ended.code == Some(2) && ended.err.contains("E-CLI-003"), "{ended:?}");
    let unreachable = support::process::run(&["status", "--at", &gone]);
    assert_eq!(unreachable.code, Some(2), "{unreachable:?}");
    until("no answer where nobody listens", || support::http::Client::connect(left.admin).err());
}
