//! The demo as a user runs it: real processes, a node killed at different times, and every aircraft's history right.
#![cfg(feature = "cli")]
#![allow(missing_docs, clippy::unwrap_used)]

use std::process::Command;

use serde_json::Value;

fn demo(args: &[&str]) -> Value {
    let output = Command::new(env!("CARGO_BIN_EXE_wingbeat")).args(["demo", "--max", "--json"]).args(args).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text.lines().count(), 1, "one object and nothing else: {text}");
    serde_json::from_str(&text).unwrap()
}

fn check(result: &Value, nodes: u64) {
    assert_eq!((&result["aircraft"], &result["agree"]), (&2_631.into(), &2_631.into()));
    assert_eq!((&result["flights"], &result["applied"], &result["unattributed"]), (&12_184.into(), &12_184.into(), &24.into()));
    assert_eq!((&result["nodes"], &result["killed"]), (&nodes.into(), &1.into()));
    for figure in ["resent", "moved_shards", "unavailable_ms_max", "seconds", "flights_per_s"] {
        assert!(result[figure].is_number(), "{figure} in {result}");
    }
    assert!(result["moved_shards"].as_u64().unwrap() > 0, "the shards of the killed node live elsewhere: {result}");
}

#[test]
fn every_aircraft_agrees_when_a_node_dies_early_half_way_and_late() {
    for kill_at in ["10%", "50%", "90%"] {
        check(&demo(&["--kill-at", kill_at]), 3);
    }
}

#[test]
fn five_nodes_do_as_well() {
    check(&demo(&["--nodes", "5"]), 5);
}
