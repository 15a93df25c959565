//! The HTTP surface of real nodes, as any client sees it.
#![cfg(feature = "cli")]
#![allow(missing_docs, clippy::unwrap_used)]

mod support;

use std::collections::BTreeSet;

use serde_json::{Value, json};
use support::{cluster::Cluster, http::post, until, until_holds};

const ADD: &str = "/api/v1/entities/counter/a/add";

#[test]
fn every_question_is_answered_and_every_number_is_there_once() {
    let cluster = Cluster::of(3);
    let node = &cluster.nodes[1];
    for path in ["/healthz/alive", "/healthz/ready", "/healthz/startup"] {
        assert_eq!(node.get(path).json()["status"], "ok");
    }
    assert_eq!(node.post(ADD, r#"{"n": 3}"#).json()["result"], json!({"total": 3, "duplicate": false}));
    let locate = node.get("/api/v1/shards/counter/locate?key=a").json();
    let table = node.get("/api/v1/shards/counter").json();
    let row = table["shards"].as_array().unwrap().iter().find(|row| row["shard"] == locate["shard"]).unwrap();
    for field in ["owner", "epoch", "state"] {
        assert_eq!(row[field], locate[field]);
    }
    until_holds("the entity is counted at its home", || {
        let types = node.get("/api/v1/shards").json();
        types["types"].as_array().unwrap().iter().any(|row| row["type"] == "counter" && row["shards"] == 100 && row["entities"] == 1)
            && node.members().iter().any(|member| member["addr"] == locate["owner"] && member["entities"] == 1 && member["shards"] == 1)
    });
    until_holds("links to the others are measured", || {
        let links = node.get("/api/v1/links").json()["links"].as_array().unwrap().clone();
        let subjects: BTreeSet<&str> = links.iter().filter_map(|link| link["subject"].as_str()).collect();
        links.iter().all(|link| link["observer"] == *node.addr && link["state"] == "ok" && link["rtt_us"]["p50"].is_u64())
            && subjects.len() == 2
    });
    assert_eq!(node.get("/api/v1/handoffs").json(), json!({"handoffs": []}));
    assert_eq!(node.get("/api/v1/drops").json()["total"], 0);
    let config = node.get("/api/v1/config").json();
    let name = config["config"].as_array().unwrap().iter().find(|row| row["key"] == "cluster.name").unwrap();
    assert_eq!((&name["value"], &name["origin"]), (&json!(cluster.name), &json!("set")));
    let events = node.get("/api/v1/events").json();
    assert!(events["events"].as_array().unwrap().iter().any(|event| event["event"] == "member"), "{events}");

    let page = node.get("/metrics");
    assert!(page.header("content-type").is_some_and(|kind| kind.starts_with("text/plain; version=0.0.4")), "{}", page.head);
    let page = page.text();
    let mut seen = BTreeSet::new();
    for line in page.lines().filter(|line| !line.starts_with('#')) {
        let (sample, value) = line.rsplit_once(' ').unwrap();
        assert!(seen.insert(sample), "{sample} is there twice");
        assert!(sample.starts_with("wingbeat_") && value.parse::<f64>().is_ok(), "{line}");
    }
    for name in ["wingbeat_members", "wingbeat_members_up"] {
        assert!(page.contains(&format!("\n{name} 3\n")), "{name}: {page}");
    }
}

#[test]
fn requests_share_a_connection_and_are_answered_in_order() {
    let cluster = Cluster::of(2);
    let mut client = cluster.nodes[0].client();
    let requests: String = (1..=50).map(|n| post(ADD, "", &format!(r#"{{"n": 1, "id": "{n}"}}"#))).collect();
    client.send(requests).unwrap();
    for n in 1..=50 {
        assert_eq!(client.answer().unwrap().json()["result"], json!({"total": n, "duplicate": false}));
    }
    client.send("HEAD /api/v1/status HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
    let head = client.head().unwrap();
    assert!(head.status == 200 && head.header("content-length").is_some_and(|length| length != "0"), "{}", head.head);
    client.get("/api/v1/nothing").unwrap().problem(404, "E-HTTP-010");
    client.post("/api/v1/status", "").unwrap().problem(405, "E-HTTP-011");
    assert_eq!(client.get("/healthz/alive").unwrap().status, 200, "refusals leave the connection open");
}

// Wrong keys, types, operations, sizes and values: each is told what is right, and a counter moves.
#[test]
fn what_is_wrong_with_a_request_is_named_and_counted() {
    let cluster = Cluster::of(1);
    let node = &cluster.nodes[0];
    let ask = |path: &str, body: &str| node.post(path, body);
    let long = "k".repeat(256);
    assert!(ask("/api/v1/entities/plane/a/add", "{}").problem(404, "E-HTTP-014").contains("`plane`"));
    assert!(ask("/api/v1/entities/counter/a/drop", "{}").problem(404, "E-HTTP-015").contains("`add`, `get`"));
    assert!(ask(&format!("/api/v1/entities/counter/{long}/get"), "{}").problem(400, "E-HTTP-013").contains("256 bytes"));
    ask("/api/v1/entities/counter//get", "{}").problem(400, "E-HTTP-013");
    ask("/api/v1/entities/counter/%ff/get", "{}").problem(400, "E-HTTP-013");
    assert!(ask(ADD, r#"{"n": 1.5}"#).problem(400, "E-HTTP-020").contains("`n` is 1.5"));
    assert!(ask(ADD, r#"{"n": 1, "m": 2}"#).problem(400, "E-HTTP-020").contains("`m`"));
    assert!(ask(ADD, "nonsense").problem(400, "E-HTTP-020").contains("JSON"));
    assert!(ask(ADD, r#"{"n": 1, "n": 2}"#).problem(400, "E-HTTP-020").contains("duplicate field `n`"));
    let large = ask("/api/v1/entities/register/r/write", &json!({"value": "v".repeat(40_000)}).to_string());
    assert!(large.problem(400, "E-HTTP-020").contains("32768"));
    assert!(ask(&format!("{ADD}?timeout_ms=0"), "{}").problem(400, "E-HTTP-012").contains("600000"));
    assert!(ask(ADD, &"x".repeat(9 << 20)).problem(413, "E-HTTP-004").contains("8388608"));
    assert!(node.get("/api/v1/shards/plane").problem(404, "E-HTTP-014").contains("`plane`"));
    ask("/api/v1/shards/counter/100/move?to=127.0.0.1:1", "").problem(404, "E-HTTP-016");
    assert!(ask("/api/v1/members/127.0.0.1:1/down", "").problem(404, "E-HTTP-026").contains("127.0.0.1:1"));
    assert_eq!(ask(ADD, r#"{"n": 9223372036854775807}"#).status, 200);
    let over = ask(ADD, r#"{"n": 1}"#);
    assert!(over.problem(409, "E-ASK-008").contains("leaves the range"));
    let page = node.get("/metrics").text();
    for (reason, count) in
        [("unknown_type", 2), ("unknown_operation", 1), ("bad_key", 3), ("bad_body", 5), ("body_too_large", 1), ("bad_parameter", 1)]
    {
        assert!(page.contains(&format!("wingbeat_http_refused_total{{reason=\"{reason}\"}} {count}\n")), "{reason}: {page}");
    }
}

#[test]
fn keys_are_any_text_and_the_same_through_every_node() {
    let cluster = Cluster::of(3);
    for (n, key) in ["a%20b", "%E2%9C%88%2FN1", "%00", "..", "a+b", "%25", "%0d%0aHost:x"].iter().enumerate() {
        let path = |op: &str| format!("/api/v1/entities/counter/{key}/{op}");
        assert_eq!(cluster.nodes[n % 3].post(&path("add"), r#"{"n": 7}"#).json()["result"]["total"], 7, "{key}");
        assert_eq!(cluster.nodes[(n + 1) % 3].post(&path("get"), "").json()["result"]["total"], 7, "{key}");
    }
}

#[test]
fn a_batch_is_answered_line_by_line_in_order() {
    let cluster = Cluster::of(3);
    let line =
        |key: usize, id: usize| json!({"type": "counter", "key": format!("k{key}"), "op": "add", "body": {"n": 1, "id": id.to_string()}});
    let mut lines: Vec<String> = (0..3000).map(|n| line(n % 100, n).to_string()).collect();
    lines.push("not json".into());
    lines.push(json!({"type": "counter", "key": "k0", "op": "add", "body": {"n": 1}, "mode": "tell"}).to_string());
    lines.push(json!({"type": "counter", "key": "k0", "op": "nope", "body": {}}).to_string());
    let answer = cluster.nodes[0].post("/api/v1/batch?timeout_ms=20000", &lines.join("\n"));
    assert_eq!(answer.status, 200, "{}", answer.text());
    let text = answer.text();
    let rows: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(rows.len(), lines.len());
    for (n, row) in rows[..3000].iter().enumerate() {
        assert_eq!(row["result"]["total"], n / 100 + 1, "line {}: {row}", n + 1);
    }
    assert_eq!((&rows[3000]["status"], &rows[3001], &rows[3002]["status"]), (&400.into(), &json!({"status": 202}), &404.into()));
    let many = vec![lines[0].as_str(); 10_001].join("\n");
    cluster.nodes[0].post("/api/v1/batch", &many).problem(413, "E-HTTP-017");
}

#[test]
fn a_shard_moves_where_it_is_told_to_and_takes_its_entities_along() {
    let cluster = Cluster::of(3);
    assert_eq!(cluster.nodes[0].post(ADD, r#"{"n": 5}"#).status, 200);
    let before = cluster.nodes[0].get("/api/v1/shards/counter/locate?key=a").json();
    let target = cluster.nodes.iter().find(|node| before["owner"] != *node.addr).unwrap();
    let path = format!("/api/v1/shards/counter/{}/move?to={}", before["shard"], target.addr);
    let moved = cluster.nodes[2].post(&path, "");
    assert_eq!(moved.status, 202, "{}", moved.text());
    let epoch = moved.json()["epoch"].as_u64().unwrap();
    assert!(epoch > before["epoch"].as_u64().unwrap());
    let got = until("the new home answers", || {
        let got = cluster.nodes[1].post("/api/v1/entities/counter/a/get", "").json();
        (got["epoch"] == epoch).then_some(got)
    });
    assert_eq!((&got["result"]["total"], &got["served_by"]), (&json!(5), &json!(format!("{}:{}", target.addr, target.incarnation))));
    until_holds("the table shows it", || {
        let row = cluster.nodes[1].get("/api/v1/shards/counter/locate?key=a").json();
        row == json!({"shard": before["shard"], "owner": target.addr, "epoch": epoch, "state": "active"})
    });
    let again = until("the move is over", || Some(cluster.nodes[2].post(&path, "")).filter(|answer| !answer.text().contains("moving")));
    again.problem(409, "E-HTTP-018");
}

#[test]
fn a_subscriber_hears_of_a_node_that_leaves() {
    let mut cluster = Cluster::of(2);
    let mut listener = cluster.nodes[0].client();
    listener.send("GET /api/v1/events HTTP/1.1\r\nHost: h\r\nAccept: text/event-stream\r\n\r\n").unwrap();
    let head = listener.head().unwrap();
    assert_eq!((head.status, head.header("content-type")), (200, Some("text/event-stream")));
    cluster.nodes[1].signal("TERM");
    let mut left = cluster.remove(1);
    assert_eq!(left.exit_code(), 0);
    let mut statuses = vec![];
    while statuses.last().is_none_or(|status| status != "removed") {
        let event = listener.until("\n\n").unwrap();
        let Some(data) = event.lines().find_map(|line| line.strip_prefix("data: ")) else { continue };
        let event: Value = serde_json::from_str(data).unwrap();
        if event["event"] == "member" && event["data"]["addr"] == *left.addr {
            statuses.push(event["data"]["status"].as_str().unwrap().to_owned());
        }
    }
    // One that has nothing to hand over may be exiting by the time that the others hear of it.
    assert!(["leaving", "exiting", "removed"].ends_with(&statuses.iter().map(String::as_str).collect::<Vec<_>>()[..]), "{statuses:?}");
}
