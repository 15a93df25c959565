//! `wingbeat bench`: measurements that need whole clusters do what they say, and what cannot be measured says so. No figure is judged here.
#![cfg(feature = "cli")]
#![allow(missing_docs, clippy::unwrap_used)]

mod support;

use std::fs;

use serde_json::Value;
use support::process::run;

/// What one short round of a measurement says.
#[track_caller]
fn measured(args: &[&str]) -> Value {
    let mut all = vec!["bench"];
    all.extend(args);
    all.extend(["--secs", "0.1", "--runs", "1", "--json"]);
    let done = run(&all);
    assert_eq!(done.code, Some(0), "{args:?}: {}", done.err);
    serde_json::from_str(&done.out).unwrap()
}

fn number(said: &Value, pointer: &str) -> f64 {
    said.pointer(pointer).and_then(Value::as_f64).unwrap_or_else(|| panic!("no {pointer} in {said}"))
}

#[test]
fn a_shard_is_handed_over_to_and_fro_and_nothing_fails() {
    let said = measured(&["handoff", "--entities", "50"]);
    assert_eq!(number(&said, "/failed"), 0.0, "{said}");
    assert!(number(&said, "/details/moves") >= 1.0 && number(&said, "/latency_ns/p99") > 0.0, "{said}");
    assert!(number(&said, "/limit/latency_ns/p99") > 0.0 && number(&said, "/ratio_p99") > 0.0, "{said}");
}

#[test]
fn nothing_fails_while_a_node_leaves() {
    let said = measured(&["leave", "--entities", "100"]);
    assert_eq!(number(&said, "/failed"), 0.0, "{said}");
    assert!(number(&said, "/details/shards_handed_over") > 0.0 && number(&said, "/latency_ns/max") > 0.0, "{said}");
}

#[test]
fn a_third_node_gets_its_share_within_the_rounds_that_the_settings_ask_for() {
    let said = measured(&["rebalance", "--set", "sharding.shards=40", "--set", "sharding.rebalance_interval=100ms"]);
    assert_eq!(number(&said, "/failed"), 0.0, "{said}");
    assert_eq!(number(&said, "/limit/seconds"), 0.4, "{said}");
    assert!(number(&said, "/seconds") > 0.0, "{said}");
}

#[test]
fn the_parts_of_a_failover_make_up_its_whole_path() {
    let said = measured(&["failover", "--entities", "100"]);
    let parts = ["detection_ms", "stable_after_ms", "right_to_run_ms", "start_ms"].map(|part| number(&said, &format!("/details/{part}")));
    let (whole, bound) = (number(&said, "/whole_path_ms"), number(&said, "/limit/whole_path_ms"));
    assert!(whole > 0.0 && bound == 1000.0 && (number(&said, "/ratio") - whole / bound).abs() < 0.01, "{said}");
    // Each part is a median of its own; of one or two rounds they differ little.
    assert!(parts.iter().sum::<f64>() <= 2.0 * whole + 1.0, "{said}");
    assert!(number(&said, "/latency_ns/p50") > 0.0, "{said}");
}

#[test]
fn heartbeats_are_timed_on_both_nodes() {
    let said = measured(&["heartbeat-delay", "--entities", "10"]);
    assert!(number(&said, "/details/timers") >= 5.0 && number(&said, "/latency_ns/p999") > 0.0, "{said}");
}

#[test]
fn messages_of_serde_and_requests_on_one_core_arrive() {
    assert!(number(&measured(&["remote-tell", "--serde", "--entities", "10"]), "/throughput_per_s") > 0.0);
    let said = measured(&["remote-ask", "--one-core", "--direct", "--entities", "10"]);
    // A request that is alone in flight is written alone.
    assert!(number(&said, "/details/writes_per_message") >= 1.0 && number(&said, "/details/reads_per_message") >= 1.0, "{said}");
    assert!(number(&said, "/latency_ns/p50") > 0.0 && said["limit"]["name"].as_str().unwrap().starts_with("R_same"), "{said}");
}

#[test]
fn entities_tell_and_ask_each_other() {
    for args in [&["local-tell", "--inside"][..], &["local-tell", "--inside", "--single"]] {
        assert!(number(&measured(&[args, &["--entities", "10"]].concat()), "/throughput_per_s") > 0.0);
    }
    let said = measured(&["local-ask", "--inside", "--entities", "10"]);
    assert!(number(&said, "/latency_ns/p50") > 0.0 && number(&said, "/latency_ns/p99") > 0.0, "{said}");
}

#[test]
fn neither_the_envelope_nor_what_it_is_compared_with_allocates() {
    let said = measured(&["codec"]);
    assert!(number(&said, "/limit/ns_per_envelope") > 0.0 && number(&said, "/allocations_per_message") < 0.01, "{said}");
}

#[test]
fn what_does_not_exist_is_refused_by_name() {
    for (args, named) in [(&["journal"][..], "no journal"), (&["store"], "no replicated store"), (&["remote-tell", "--tls"], "--tls")] {
        let done = run(&[&["bench"], args].concat());
        assert_eq!((done.code, done.out.as_str()), (Some(1), ""), "{args:?}");
        assert!(done.err.contains("error[E-CLI-053]") && done.err.contains(named), "{args:?}: {}", done.err);
    }
    for args in [["timer", "--one-core"], ["local-ask", "--serde"], ["local-ask", "--direct"]] {
        let done = run(&[&["bench"], &args[..]].concat());
        assert!(done.code == Some(1) && done.err.contains("error[E-CLI-052]") && done.err.contains(args[1]), "{args:?}: {}", done.err);
    }
}

#[test]
fn all_writes_its_page_and_no_file_that_says_nothing() {
    let dir = std::env::temp_dir().join(format!("wingbeat-bench-{}", std::process::id()));
    let path = dir.to_string_lossy().into_owned();
    // What an earlier run has left.
    fs::create_dir_all(&dir).unwrap();
    fs::write(dir.join("codec.csv"), "old").unwrap();
    let done = run(&["bench", "all", "--report", &path, "--only", "codec", "--secs", "0.05", "--runs", "1"]);
    let read = |file: &str| fs::read_to_string(dir.join(file)).unwrap();
    let (page, csv) = (read("bench.md"), read("codec.csv"));
    let files = fs::read_dir(&dir).unwrap().count();
    fs::remove_dir_all(&dir).unwrap();
    assert_eq!((done.code, files), (Some(0), 2), "{}", done.err);
    assert!(page.contains("--only codec") && page.contains("| envelope, write and read |") && !page.contains("remote"), "{page}");
    assert!(!page.contains("Not complete") && csv.starts_with("round,"), "{page}{csv}");
}

#[cfg(target_os = "linux")]
#[test]
fn a_file_that_cannot_be_written_is_no_measurement_that_failed() {
    let done = run(&["bench", "codec", "--secs", "0.05", "--runs", "1", "--csv", "/dev/full"]);
    assert!(done.code == Some(1) && done.out.contains("ratio") && done.err.contains("error[E-CLI-054]: /dev/full"), "{}", done.err);
    let file = std::env::temp_dir().join(format!("wingbeat-bench-{}.csv", std::process::id()));
    let done = run(&["bench", "journal", "--csv", &file.to_string_lossy()]);
    assert!(done.code == Some(1) && !file.exists(), "{}", done.err);
}
