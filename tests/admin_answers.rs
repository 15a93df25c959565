//! What the HTTP surface says: answers, batches and events over real sockets, of a node that is made up.
#![cfg(feature = "admin")]
#![allow(clippy::unwrap_used, missing_docs)]

mod support;

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use support::made_up::{Client, Node, until};
use wingbeat::{
    admin::EntityOutcome,
    metrics::{HttpRefusal, Prometheus},
};

#[test]
fn every_question_has_its_shape() {
    let node = Node::start();
    assert_eq!(
        node.get("/api/v1/status").json(),
        json!({"cluster": "c", "self": {"addr": "127.0.0.1:7301", "incarnation": "000000000000feed"}, "status": "up", "size": 1,
            "leader": "127.0.0.1:7301", "deputies": [], "oldest": "127.0.0.1:7301", "coordinator": null, "view_version": 3,
            "converged": true, "moving": 0, "warnings": []})
    );
    assert_eq!(
        node.get("/api/v1/members").json(),
        json!({"members": [{"addr": "127.0.0.1:7301", "incarnation": "ffffffffffffffff", "status": "up", "reachable": false,
            "observers": ["127.0.0.1:7302"], "roles": ["r"], "up_number": 1, "app_version": "1", "shards": 3, "entities": null}]})
    );
    assert_eq!(
        node.get("/api/v1/links").json(),
        json!({"links": [{"observer": "127.0.0.1:1", "subject": "127.0.0.1:2", "phi": null, "threshold": 8.0,
            "rtt_us": {"p50": 90, "p99": null}, "loss": 0.25, "state": "reachable"}]})
    );
    assert_eq!(node.get("/api/v1/shards").json(), json!({"types": [{"type": "counter", "shards": 100, "entities": 5}]}));
    assert_eq!(
        node.get("/api/v1/shards/counter").json(),
        json!({"type": "counter", "shards": [{"shard": 0, "owner": "127.0.0.1:7301", "epoch": 4, "state": "active", "entities": 1,
            "rate_per_s": 0.5}]})
    );
    assert_eq!(
        node.get("/api/v1/shards/counter/locate?key=a%20b+c").json(),
        json!({"shard": 5, "owner": null, "epoch": 0, "state": "unowned"})
    );
    assert_eq!(
        node.get("/api/v1/handoffs").json(),
        json!({"handoffs": [{"type": "counter", "shard": 1, "from": "127.0.0.1:1", "to": "127.0.0.1:2", "epoch": 9, "state": "stopping",
            "age_ms": 12}]})
    );
    assert_eq!(node.get("/api/v1/drops").json(), json!({"drops": {"link_lost": 1, "mailbox_full": 2}, "total": 3}));
    assert_eq!(
        node.get("/api/v1/slow").json(),
        json!({"slow": [
            {"type": "counter", "key": "a", "shard": 4, "worker": 1, "took_ms": 700, "ended_ms_ago": null},
            {"type": "counter", "key": "b", "shard": 4, "worker": 1, "took_ms": 700, "ended_ms_ago": 9},
        ]})
    );
    let latency = node.get("/api/v1/latency").json();
    assert_eq!(latency["latency"][0], json!({"of": "ask", "count": 0, "p50_ns": null, "p99_ns": null, "p999_ns": null, "max_ns": null}));
    assert!(latency["latency"].as_array().unwrap().iter().any(|row| row["of"] == "http" && row["p50_ns"].as_u64() > Some(0)));
    let config = node.get("/api/v1/config").json();
    assert_eq!((&config["config"][0]["value"], &config["config"][1]["value"]), (&"\"c\"".into(), &"(hidden)".into()));
    for probe in ["alive", "ready", "startup"] {
        assert_eq!(node.get(&format!("/healthz/{probe}")).json()["status"], "ok");
    }
    assert!(node.get("/").json()["routes"].as_array().unwrap().len() > 15);
}

#[test]
fn a_failing_probe_lists_its_checks() {
    let node = Node::with(|_| {}, None, true);
    let answer = node.get("/healthz/ready");
    assert!(answer.problem(503, "E-HTTP-025").contains("member_up"));
    assert_eq!(answer.json()["checks"][0]["ok"], false);
}

#[test]
fn metrics_count_the_requests_themselves() {
    let node = Node::start();
    node.get("/api/v1/status");
    node.get("/nowhere");
    let page = node.get("/metrics");
    assert_eq!(page.header("content-type"), Some(Prometheus::CONTENT_TYPE));
    let text = String::from_utf8(page.body).unwrap();
    for line in [
        "wingbeat_http_requests_total{class=\"2xx\"} 1",
        "wingbeat_http_requests_total{class=\"4xx\"} 1",
        "wingbeat_http_refused_total{reason=\"unknown_route\"} 1",
        "wingbeat_members 1",
    ] {
        assert!(text.lines().any(|l| l == line), "{line} is not in\n{text}");
    }
}

#[test]
fn acts_on_members_and_shards_are_accepted_or_refused() {
    let node = Node::start();
    let answer = node.post("/api/v1/members/127.0.0.1:7301/leave", "");
    assert_eq!((answer.status, &answer.json()["act"]), (202, &"leave".into()));
    assert_eq!(node.post("/api/v1/members/127.0.0.1%3A7301/down", "").status, 202);
    assert!(node.post("/api/v1/members/127.0.0.1:1/down", "").problem(404, "E-HTTP-026").contains("127.0.0.1:7301"));
    assert!(node.post("/api/v1/members/nowhere/leave", "").problem(400, "E-HTTP-012").contains("no port"));
    let answer = node.post("/api/v1/shards/counter/3/move?to=127.0.0.1:2", "");
    assert_eq!((answer.status, answer.json()), (202, json!({"epoch": 7})));
    assert!(node.post("/api/v1/shards/counter/3/move?to=127.0.0.1:7301", "").problem(409, "E-HTTP-018").contains("already"));
    node.post("/api/v1/shards/counter/3/move", "").problem(400, "E-HTTP-012");
    node.post("/api/v1/shards/counter/x/move?to=h:1", "").problem(400, "E-HTTP-012");
    assert!(node.post("/api/v1/shards/counter/100/move?to=h:1", "").problem(404, "E-HTTP-016").contains("100 shards"));
    node.get("/api/v1/shards/nothing").problem(404, "E-HTTP-014");
    node.get("/api/v1/shards/counter/locate").problem(400, "E-HTTP-012");
}

#[test]
fn a_message_reaches_its_entity_and_comes_back() {
    let node = Node::start();
    let answer = node.post("/api/v1/entities/counter/a%2Fb/add?timeout_ms=250", " {\"n\": 1} ");
    assert_eq!((answer.status, &answer.json()["result"]["key"]), (200, &"a/b".into()));
    assert_eq!(answer.header("content-type"), Some("application/json"));
    assert_eq!(node.fake.calls.lock()[0], ("a/b".into(), "add".into(), b"{\"n\": 1}".to_vec(), Duration::from_millis(250)));
    assert_eq!(node.post("/api/v1/entities/counter/k/get", "").status, 200);
    assert_eq!(node.fake.calls.lock()[1].2, b"{}");
    assert_eq!(node.fake.calls.lock()[1].3, Duration::from_secs(1));
    let told = node.post("/api/v1/entities/counter/k/add?mode=tell", "{}");
    assert_eq!((told.status, told.json()), (202, json!({"status": 202})));
}

#[test]
fn a_message_that_cannot_be_sent_says_why_and_counts() {
    let node = Node::start();
    let at = |path: &str, body: &str| node.post(&format!("/api/v1/entities/{path}"), body);
    assert!(at("plane/k/add", "{}").problem(404, "E-HTTP-014").contains("`counter`"));
    assert!(at("counter/k/fly", "{}").problem(404, "E-HTTP-015").contains("`get`"));
    assert!(at("counter//add", "{}").problem(400, "E-HTTP-013").contains("empty"));
    assert!(at(&format!("counter/{}/add", "k".repeat(256)), "{}").problem(400, "E-HTTP-013").contains("255"));
    assert!(at("counter/%ff/add", "{}").problem(400, "E-HTTP-013").contains("UTF-8"));
    assert!(at("counter/k/add", "[1]").problem(400, "E-HTTP-020").contains("JSON object"));
    assert!(at("counter/k/add?timeout_ms=600001", "{}").problem(400, "E-HTTP-012").contains("1 to 600000"));
    assert!(at("counter/k/add?timeout=5", "{}").problem(400, "E-HTTP-012").contains("timeout_ms"));
    assert!(at("counter/k/add?mode=reliable", "{}").problem(501, "E-HTTP-022").contains("does not exist"));
    let late = at("counter/k/slow?timeout_ms=5", "{}");
    assert!(late.problem(504, "E-ASK-003").contains("may have run"));
    assert_eq!(late.json()["maybe_ran"], true);
    for (reason, count) in [
        (HttpRefusal::UnknownType, 1),
        (HttpRefusal::UnknownOperation, 1),
        (HttpRefusal::BadKey, 3),
        (HttpRefusal::BadBody, 1),
        (HttpRefusal::BadParameter, 2),
        (HttpRefusal::NotImplemented, 1),
        (HttpRefusal::Timeout, 1),
    ] {
        assert_eq!(node.refused(reason), count, "{reason:?}");
    }
    assert_eq!(node.fake.calls.lock().len(), 1, "only the late one was sent");
}

#[test]
fn a_node_that_loses_a_request_still_answers() {
    let node = Node::start();
    assert_eq!(node.post("/api/v1/entities/counter/k/lose", "{}").json()["maybe_ran"], true);
    node.post("/api/v1/entities/counter/k/panic", "{}").problem(500, "E-HTTP-023");
    let node = Node::with(|l| l.answer_deadline = Duration::from_millis(20), None, false);
    node.post("/api/v1/entities/counter/k/hold", "{}").problem(500, "E-HTTP-023");
    assert_eq!(node.metrics.http.counters.http_handlers_silent.get(), 1);
    let held = node.fake.held.lock().pop().unwrap();
    held(EntityOutcome::Accepted);
    assert_eq!(node.get("/api/v1/status").status, 200, "a late answer goes nowhere");
}

// ---------------------------------------------------------------- batch

#[test]
fn a_batch_is_answered_line_by_line_in_order() {
    let node = Node::start();
    let mut body = String::new();
    for n in 0..1000 {
        body += &format!("{{\"type\":\"counter\",\"key\":\"k{}\",\"op\":\"echo\",\"body\":{{\"n\":{n}}}}}\n", n % 7);
    }
    let answer = node.post("/api/v1/batch?timeout_ms=77", &body);
    assert_eq!((answer.status, answer.header("content-type")), (200, Some("application/x-ndjson")));
    let lines: Vec<String> = String::from_utf8(answer.body).unwrap().lines().map(String::from).collect();
    assert_eq!(lines, (0..1000).map(|n| format!("{{\"n\":{n}}}")).collect::<Vec<_>>());
    let calls = node.fake.calls.lock();
    assert!(calls.iter().enumerate().all(|(n, call)| call.2 == format!("{{\"n\":{n}}}").into_bytes() && call.3.as_millis() == 77));
    // They wait for room together: the thread that sends them answers everybody else, too.
    let rooms: BTreeSet<Instant> = node.fake.rooms.lock().iter().copied().collect();
    assert!(rooms.len() == 1 && rooms.iter().all(|until| until.saturating_duration_since(Instant::now()) <= Duration::from_secs(1)));
}

#[test]
fn each_line_of_a_batch_fails_alone() {
    let node = Node::start();
    let lines = [
        r#"{"type":"counter","key":"k","op":"get"}"#,
        r#"{"type":"counter","key":"k","op":"add","mode":"tell"}"#,
        r#"{"type":"counter","key":"k","op":"lose"}"#,
        "",
        r#"{"type":"counter","key":"","op":"get"}"#,
        r#"{"type":"plane","key":"k","op":"get"}"#,
        r#"{"type":"counter","key":"k","op":"get","bdy":{}}"#,
        r#"{"type":"counter","key":"k","op":"get","body":7}"#,
        r#"{"type":"counter","key":"k","op":"get","mode":"shout"}"#,
        r#"{"type":"counter","key":"k","op":"get","mode":"reliable"}"#,
        "\u{0}",
        r#"{"type":"counter","key":"\u00e9","op":"slow","body":{ "a" : 1 }}"#,
        r#"{"type":"counter","key":"k","op":"get","body":null}"#,
        r#"{"type":"counter","key":"k","op":"get","key":"l"}"#,
        "",
        " ",
    ];
    let answer = node.post("/api/v1/batch", &(lines.join("\r\n") + "\r\n"));
    let answers: Vec<Value> = String::from_utf8(answer.body).unwrap().lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!(answers.len(), lines.len());
    assert_eq!(answers[0]["result"]["key"], "k");
    assert_eq!(answers[1], json!({"status": 202}));
    let status: Vec<u64> = answers[2..].iter().map(|a| a["status"].as_u64().unwrap()).collect();
    assert_eq!(status, [500, 400, 400, 404, 400, 400, 400, 501, 400, 504, 400, 400, 400, 400]);
    node.post("/api/v1/entities/counter/k/get", "null").problem(400, "E-HTTP-020");
    assert_eq!((&answers[2]["maybe_ran"], &answers[11]["maybe_ran"]), (&true.into(), &true.into()));
    assert!(answers[6]["detail"].as_str().unwrap().contains("line 7") && answers[6]["detail"].as_str().unwrap().contains("bdy"));
    assert!(answers[11]["detail"].as_str().unwrap().contains('é'));
    assert_eq!(node.refused(HttpRefusal::NotImplemented), 1);
}

#[test]
fn a_batch_has_a_limit_of_lines() {
    let node = Node::start();
    assert_eq!(node.post("/api/v1/batch", "").body, b"");
    for (body, lines) in [("\n", 1), ("\r\n", 1), ("\n\n", 2), ("{}", 1), ("{}\n", 1), ("{}\r\n\r\n", 2), ("{}\n{}", 2), ("\n{}", 2)] {
        let answers = node.post("/api/v1/batch", body).body;
        assert_eq!(String::from_utf8(answers).unwrap().lines().count(), lines, "{body:?}");
    }
    let full = "{}\n".repeat(10_000);
    let answer = node.post("/api/v1/batch", &full);
    assert_eq!(answer.body.iter().filter(|b| **b == b'\n').count(), 10_000);
    assert!(node.post("/api/v1/batch", &(full + "{}")).problem(413, "E-HTTP-017").contains("10000"));
    assert_eq!(node.refused(HttpRefusal::TooManyLines), 1);
}

// failures: row 40
#[test]
fn the_answers_of_a_batch_are_bounded_in_bytes() {
    let node = Node::start();
    // The fake's answer has 16 MiB.
    let lines = [r#"{"type":"counter","key":"k","op":"get"}"#].into_iter().chain([r#"{"type":"counter","key":"k","op":"big"}"#; 5]);
    let batch = lines.collect::<Vec<_>>().join("\n");
    for _ in 0..5 {
        let answer = node.post("/api/v1/batch", &batch);
        let answers: Vec<&[u8]> = answer.body.trim_ascii_end().split(|b| *b == b'\n').collect();
        assert_eq!(answers.len(), 6);
        let (whole, refused): (Vec<_>, Vec<_>) = answers[1..].iter().partition(|line| line.len() == 16 << 20);
        assert_eq!((whole.len(), refused.len()), (3, 2), "what an earlier batch held is given back");
        let problem: Value = serde_json::from_slice(refused[0]).unwrap();
        assert_eq!((&problem["code"], &problem["status"], &problem["maybe_ran"]), (&"E-HTTP-027".into(), &413.into(), &true.into()));
    }
    assert_eq!(node.refused(HttpRefusal::AnswersTooLarge), 10);
}

// ---------------------------------------------------------------- events

fn subscribe(node: &Node, header: &str) -> Client {
    let mut client = node.client();
    client.send(format!("GET /api/v1/events HTTP/1.1\r\nHost: h\r\nAccept: text/event-stream\r\n{header}\r\n"));
    let head = client.head();
    assert_eq!((head.status, head.header("content-type")), (200, Some("text/event-stream")));
    client
}

#[test]
fn events_are_listed() {
    let node = Node::start();
    assert_eq!(node.get("/api/v1/events").json(), json!({"events": [], "newest": 0}));
    node.events.push("member", &json!({"addr": "a:1"}));
    let json = node.get("/api/v1/events").json();
    assert_eq!((&json["events"][0]["id"], &json["events"][0]["data"]["addr"]), (&1.into(), &"a:1".into()));
    (2..=3).for_each(|n| node.events.push("member", &n));
    let ids = |query: &str| {
        let json = node.get(&format!("/api/v1/events?last_event_id={query}")).json();
        assert_eq!(json["newest"], 3);
        json["events"].as_array().unwrap().iter().map(|event| event["id"].as_u64().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!((ids("0"), ids("1"), ids("3")), (vec![1, 2, 3], vec![2, 3], vec![]));
    assert_eq!(ids("99"), [1, 2, 3], "an id from before a restart means everything");
    for bad in ["", "x", "-1", "1.5", "18446744073709551616"] {
        assert!(node.get(&format!("/api/v1/events?last_event_id={bad}")).problem(400, "E-HTTP-012").contains("last_event_id"));
    }
    let stream = "GET /api/v1/events?last_event_id=x HTTP/1.1\r\nHost: h\r\nAccept: text/event-stream\r\n\r\n";
    node.client().ask(stream).problem(400, "E-HTTP-012");
}

#[test]
fn subscribers_get_what_they_missed_and_what_comes() {
    let node = Node::start();
    for n in 1..=3 {
        node.events.push("member", &n);
    }
    let mut fresh = subscribe(&node, "");
    let mut again = subscribe(&node, "Last-Event-ID: 1\r\n");
    let mut future = subscribe(&node, "Last-Event-ID: 99\r\n");
    until("subscribed", || node.events.subscribers() == 3);
    node.events.push("leader", &json!({"node": "a:1"}));
    assert!(again.until("\n\n").starts_with("retry: "));
    for id in [2, 3] {
        assert!(again.until("\n\n").starts_with(&format!("id: {id}\nevent: member\ndata: {{\"id\":{id},")));
    }
    assert!(again.until("\n\n").starts_with("id: 4\nevent: leader\ndata: {\"id\":4,\"event\":\"leader\","));
    fresh.until("\n\n");
    assert!(fresh.until("\n\n").starts_with("id: 4\n"));
    future.until("\n\n");
    assert!(future.until("\n\n").starts_with("id: 1\n"), "an id from before a restart means everything");
}

#[test]
fn a_subscriber_that_was_away_too_long_is_told_what_is_lost() {
    let node = Node::start();
    for n in 0..1010 {
        node.events.push("member", &n);
    }
    let mut late = subscribe(&node, "Last-Event-ID: 4\r\n");
    late.until("\n\n");
    assert_eq!(late.until("\n\n"), "event: lagged\ndata: {\"missed\":6}\n\n");
    assert!(late.until("\n\n").starts_with("id: 11\n"));
    assert_eq!(node.metrics.shared.events_lagged.get(), 6);
}

#[test]
fn subscribers_get_signs_of_life() {
    let node = Node::with(|l| l.stream_keep_alive = Duration::from_millis(5), None, false);
    let mut client = subscribe(&node, "");
    client.until("retry: 1000\n\n");
    client.until(":\n\n:\n\n");
}

#[test]
fn a_subscriber_that_does_not_read_is_cut_off() {
    let node = Node::start();
    let _deaf = subscribe(&node, "");
    let gone = subscribe(&node, "");
    until("subscribed", || node.events.subscribers() == 2);
    drop(gone);
    let text = "x".repeat(1000);
    until("cut off", || {
        node.events.push("noise", &text);
        node.events.subscribers() == 0
    });
    until("counted", || node.metrics.http.counters.http_subscribers_dropped.get() >= 1);
    assert_eq!(node.get("/healthz/alive").status, 200);
}
