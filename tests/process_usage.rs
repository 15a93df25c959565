//! Wrong usage and wrong settings end a node before it opens anything, with 1, a code, and the thing that was wrong.
#![cfg(feature = "cli")]
#![allow(missing_docs, clippy::unwrap_used)]

mod support;

use std::fs;

use support::{
    cluster::Cluster,
    process::{Node, ended, free_addr, run, unique_name, wingbeat},
    until_holds,
};

/// Ends with 1, says nothing on standard output, and names all of these on standard error.
#[track_caller]
fn refused(args: &[&str], env: &[(&str, &str)], parts: &[&str]) {
    let done = ended(wingbeat().args(args).envs(env.iter().copied()));
    assert_eq!((done.code, done.out.as_str()), (Some(1), ""), "{args:?}: {done:?}");
    for part in parts {
        assert!(done.err.contains(part), "{args:?}: {part:?} is not in {}", done.err);
    }
}

#[test]
fn flags_that_are_wrong_are_named() {
    refused(&["node", "--bogus"], &[], &["error[E-CLI-001]", "--bogus"]);
    refused(&["nodee"], &[], &["error[E-CLI-001]", "'node'"]);
    refused(&["node", "--listen", "nonsense"], &[], &["E-CLI-001", "nonsense", "--listen"]);
    refused(&["node", "--listen", "localhost:7301"], &[], &["E-CLI-001", "localhost:7301", "127.0.0.1:7301", "node.advertise"]);
    refused(&["node", "--seed", "nope"], &[], &["E-CFG-008", "cluster.seeds", "nope", "host:port"]);
    refused(&["node", "--seed", ""], &[], &["E-CLI-001", "--seed", "an entry is empty", "found a cluster"]);
    refused(&["status", "--at", "x"], &[], &["E-CLI-002", "`--at x`"]);
    refused(&["leave", "127.0.0.1:1", "--token", "a\nb"], &[], &["E-CLI-002", "token"]);
    refused(&["sim", "x.toml", "--seeds", "0..18446744073709551615"], &[], &["E-CLI-001", "18446744073709551615 seeds", "at most 100000"]);
    refused(&["sim", "x.toml", "--seed", "-1"], &[], &["E-CLI-001", "'-1'", "0 to 18446744073709551615"]);
    refused(&["soak", "--seed", "x"], &[], &["E-CLI-001", "'x'", "0 to 18446744073709551615"]);
    refused(&["soak", "--idle", "foo"], &[], &["E-CLI-010", "foo"]);
    refused(&["soak", "--report", "/dev/null/x"], &[], &["E-CLI-065", "/dev/null/x"]);
    refused(&["bench", "all", "--report", "/dev/null/x"], &[], &["E-CLI-054", "/dev/null/x"]);
    refused(&["bench", "codec", "--report", "x"], &[], &["E-CLI-052", "`all`", "codec"]);
    refused(&["bench", "memory", "--entities", "18446744073709551615"], &[], &["E-CLI-050", "--entities"]);
    refused(&["bench", "codec", "--set", "node.workers=2"], &[], &["E-CLI-052", "codec starts none"]);
    refused(&["bench", "network-turn", "--secs", "1"], &[], &["E-CLI-052", "--secs", "network-turn"]);
    refused(&["bench", "soak", "--runs", "5"], &[], &["E-CLI-052", "soak is one run"]);
    refused(&["bench", "idle", "--entities", "5"], &[], &["E-CLI-052", "--entities", "idle"]);
    for name in ["failover", "rebalance", "leave"] {
        refused(&["bench", name, "--entities", "1"], &[], &["E-CLI-050", "--entities 1", name, "at least 10"]);
    }
    refused(&["bench", "local-ask", "--csv", "x", "--hgrm", "x"], &[], &["E-CLI-052", "--csv and --hgrm"]);
    refused(&["bench", "all", "--hgrm", "x"], &[], &["E-CLI-052", "`all`", "--report"]);
    refused(&["bench", "all", "--only", "codec,nonsense"], &[], &["E-CLI-001", "nonsense", "remote-ask-128"]);
    refused(&["bench", "codec", "--only", "timer"], &[], &["E-CLI-052", "--only", "codec"]);
    assert_eq!(run(&["--help"]).code, Some(0));
    assert_eq!(run(&["node", "--help"]).code, Some(0));
    assert_eq!(run(&["--version"]).code, Some(0));
}

/// Whoever reads has gone, or has no room: the exit code is still about what was asked.
#[cfg(target_os = "linux")]
#[test]
fn exit_codes_do_not_depend_on_who_reads() {
    let file = std::env::temp_dir().join(format!("{}.toml", unique_name()));
    fs::write(&file, "nodes = 2\nduration = \"5s\"\n[expect]\nmembers_up = 7\n").unwrap();
    let full = || fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let closed = || {
        let (read, write) = std::io::pipe().unwrap();
        drop(read);
        write
    };
    let sim = |args: &[&str]| {
        let mut command = wingbeat();
        command.arg("sim").arg(&file).args(args);
        command
    };
    assert_eq!(ended(&mut sim(&[])).code, Some(3));
    for args in [&[][..], &["--json"], &["--seeds", "1..4"], &["--minimise"]] {
        assert_eq!(sim(args).stdout(closed()).stderr(closed()).status().unwrap().code(), Some(3), "{args:?}");
        assert_eq!(
            sim(args).stdout(full()).stderr(full()).status().unwrap().code(),
            Some(1),
            "{args:?}: what was not written is a failure"
        );
    }
    for args in [&["--help"][..], &["help"], &["node", "--help"], &["--version"]] {
        assert_eq!(wingbeat().args(args).stdout(closed()).status().unwrap().code(), Some(0), "{args:?}");
        let done = wingbeat().args(args).stdout(full()).output().unwrap();
        assert!(done.status.code() == Some(1) && String::from_utf8_lossy(&done.stderr).contains("E-CLI-006"), "{args:?}: {done:?}");
    }
    assert_eq!(wingbeat().args(["status", "--at", "127.0.0.1:1"]).stderr(full()).status().unwrap().code(), Some(2));
    assert_eq!(wingbeat().arg("nodee").stderr(full()).status().unwrap().code(), Some(1));
    fs::remove_file(&file).unwrap();
}

#[test]
fn what_is_wrong_with_a_scenario_names_the_file_or_the_flag() {
    let file = std::env::temp_dir().join(format!("{}.toml", unique_name()));
    let path = file.to_str().unwrap();
    fs::write(&file, "nodes = 2\nduration = \"5s\"\n[config]\n\"a.b\" = 1\n\"detector.threshold\" = \"x\"\n[expect]\nmembers_up = 2\n")
        .unwrap();
    refused(&["sim", path], &[], &["error[E-SIM-002]", ".toml: line 4: ", "\n  line 5: "]);
    refused(&["sim", path, "--set", "nodes="], &[], &["error[E-SIM-002]: --set nodes=: `nodes` is \"\""]);
    refused(&["sim", path, "--trace", "1sss..2"], &[], &["E-CLI-001", "\"1sss..2\" is no window", "200ms..1s"]);
    fs::write(&file, b"name = \"n\xfe\"\n").unwrap();
    refused(&["sim", path], &[], &["error[E-SIM-004]", "is no UTF-8 text: byte 9 "]);
    fs::write(&file, "nodes = 2\nduration = \"5s\"\n[expect]\nmembers_up = 2\n").unwrap();
    let done = run(&["sim", path, "--minimise", "--json"]);
    let result: serde_json::Value = serde_json::from_str(&done.out).unwrap();
    assert_eq!((done.code, &result["members_up"]), (Some(0), &serde_json::json!(2)), "{done:?}");
    assert!(done.err.contains("nothing to shrink"), "{done:?}");
    fs::remove_file(&file).unwrap();
}

#[test]
fn commands_that_do_not_exist_yet_are_not_taken_for_misspelt_ones() {
    for args in [&["partitions"][..], &["leaders"], &["store", "get", "x"], &["doctor"], &["top"], &["drain"], &["rebalance"]] {
        refused(args, &[], &["error[E-CLI-007]", &format!("`{}` is not available in this version", args[0]), "--help"]);
    }
    refused(&["plan", "leave", "--at", "127.0.0.1:1"], &[], &["E-CLI-007", "`plan`", "dry run"]);
}

// failures: rows 24, 25
#[test]
fn settings_that_are_wrong_are_named_all_at_once() {
    let file = std::env::temp_dir().join(format!("{}.toml", unique_name()));
    let path = file.to_str().unwrap();
    fs::write(&file, "[membership]\ngossip_intervall = \"1s\"\n[detector]\nheartbeat_interval = \"0s\"\n[sharding]\nshards = -1\n")
        .unwrap();
    let env = [("WINGBEAT_NODE__WORKRES", "2"), ("WINGBEAT_NODE__WORKERS", "0")];
    let parts = [
        "E-CLI-010",
        "4 errors",
        "gossip_intervall (line 2): unknown key; did you mean `membership.gossip_interval`?",
        "heartbeat_interval (line 4): 0s",
        "-1 is out of range: at least 1, at most 1048576",
        "did you mean WINGBEAT_NODE__WORKERS?",
    ];
    let done = ended(wingbeat().args(["node", "--config", path]).envs(env));
    let count = done.err.lines().filter(|line| line.contains("E-CFG-")).count();
    assert!(count >= 4, "{}", done.err);
    for part in parts.iter().filter(|part| !part.ends_with("errors")) {
        assert!(done.err.contains(part), "{part}: {}", done.err);
    }
    assert_eq!(done.code, Some(1));
    fs::remove_file(&file).unwrap();
    refused(&["node", "--config", path], &[], &["E-CFG-001", path]);
}

// failures: row 23
#[test]
fn an_address_that_nobody_reaches_is_refused_with_a_suggestion() {
    refused(&["node", "--listen", "0.0.0.0:0"], &[], &["0.0.0.0:0", "node.advertise", "node.insecure"]);
}

// failures: row 29
#[test]
fn an_address_of_no_interface_is_named() {
    let env = [("WINGBEAT_NODE__INSECURE", "true")];
    refused(&["node", "--listen", "192.0.2.1:7301"], &env, &["E-START-002", "TCP 192.0.2.1:7301", "node.listen"]);
}

// failures: row 44
#[cfg(target_os = "linux")]
#[test]
fn a_thread_that_cannot_be_started_is_a_start_error() {
    // No machine has room for a stack of this size.
    let done = ended(wingbeat().args(["node", "--listen", "127.0.0.1:0"]).env("RUST_MIN_STACK", (1_u64 << 47).to_string()));
    assert_eq!(done.code, Some(1), "{done:?}");
    assert!(done.err.contains("E-START-004") && done.err.contains("thread"), "{}", done.err);
}

// failures: row 20
#[test]
fn a_seed_without_address_is_logged_by_name_and_the_node_goes_on() {
    let node = Node::start(&unique_name(), &["--seed", "no-such-host.invalid:7301"]);
    until_holds("the log names the seed", || node.log().contains("no-such-host.invalid"));
    assert_eq!(node.status()["status"], "joining");
    assert_eq!(node.get("/healthz/alive").status, 200);
    assert!(node.get("/healthz/ready").problem(503, "E-HTTP-025").contains("member_up"));
    // There is no coordinator that could be late.
    for path in ["/api/v1/shards", "/api/v1/shards/counter", "/api/v1/shards/counter/locate?key=a", "/api/v1/handoffs"] {
        let detail = node.get(path).problem(503, "E-HTTP-019");
        assert!(detail.contains("not a member of a cluster yet") && detail.contains("no-such-host.invalid:7301"), "{path}: {detail}");
    }
    for args in [&["shards"][..], &["shards", "counter"], &["where", "counter", "a"]] {
        let done = ended(wingbeat().args(args).args(["--at", &node.admin.to_string()]));
        assert!(done.code == Some(2) && done.err.contains("not a member of a cluster yet"), "{args:?}: {done:?}");
    }
}

// failures: row 22
#[test]
fn a_node_that_is_its_own_only_seed_forms_a_cluster_at_once() {
    let addr = free_addr();
    let node = Node::start_with(&unique_name(), &["--listen", &addr, "--seed", &addr], &[]);
    until_holds("up", || node.status()["status"] == "up");
    // Where more are expected it waits for them.
    let env = [("WINGBEAT_CLUSTER__MIN_MEMBERS", "2"), ("WINGBEAT_CLUSTER__PRESET", "local_test")];
    let name = unique_name();
    let first = Node::start_with(&name, &[], &env);
    let warned = || first.status()["warnings"].to_string().contains("W-CFG-004");
    assert!(warned());
    assert!(first.get("/api/v1/shards").problem(503, "E-HTTP-019").contains("no member is up yet"));
    let second = Node::start_with(&name, &["--seed", &first.addr], &env);
    for node in [&first, &second] {
        until_holds("both up", || node.members_that_are("up").len() == 2);
    }
    assert!(!warned(), "it waits for nobody any more");
}

// failures: row 67
#[test]
fn too_few_shards_are_warned_about() {
    let name = unique_name();
    let start = |args: &[&str], shards: &str| {
        Node::start_with(&name, args, &[("WINGBEAT_CLUSTER__PRESET", "local_test"), ("WINGBEAT_SHARDING__SHARDS", shards)])
    };
    let first = start(&[], "1");
    let second = start(&["--seed", &first.addr], "1");
    let cluster = Cluster { name: name.clone(), nodes: vec![first, second] };
    cluster.wait_formed();
    let warnings = cluster.nodes[1].status()["warnings"].to_string();
    assert!(warnings.contains("`counter` has 1 shards for 2 members"), "{warnings}");
    // failures: row 14: a node with another number stays a member, and says what is refused.
    let other = start(&["--seed", &cluster.nodes[0].addr], "19");
    until_holds("the refusal is in the status", || {
        let warnings = other.status()["warnings"].to_string();
        warnings.contains("`counter` is refused") && warnings.contains("19") && warnings.contains("1 in the cluster")
    });
    until_holds("it is a member", || cluster.nodes[0].members_that_are("up").len() == 3);
    let answer = other.post("/api/v1/entities/counter/a/add?timeout_ms=5000", r#"{"n": 1}"#);
    assert_eq!((answer.status, &answer.json()["maybe_ran"]), (503, &false.into()), "{}", answer.text());
    let told = other.post("/api/v1/entities/counter/a/add?mode=tell", r#"{"n": 1}"#);
    let problems = [&answer, &told].map(|answer| answer.problem(503, "E-ASK-002"));
    assert_eq!((&problems[0], answer.json()), (&problems[1], told.json()), "who tells hears the same");
    let line = r#"{"type": "counter", "key": "a", "op": "add", "body": {"n": 1}, "mode": "tell"}"#;
    let line = other.post("/api/v1/batch", line).json();
    assert_eq!((&line["status"], &line["code"], &line["maybe_ran"]), (&503.into(), &"E-ASK-002".into(), &false.into()), "{line}");
    assert_eq!(cluster.nodes[0].post("/api/v1/entities/counter/a/add", r#"{"n": 1}"#).json()["result"]["total"], 1);
}
