//! The HTTP surface over real sockets, with a node that is made up.
#![cfg(feature = "admin")]
#![allow(clippy::unwrap_used, missing_docs)]

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    sync::{
        Arc,
        mpsc::{Receiver, Sender, channel},
    },
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use serde_json::{Value, json};
use wingbeat::{
    NodeAddr,
    admin::{
        Api, Done, EntityCall, EntityOutcome, EntityType, EventRing, Limits, Probe, Server, ServerHandle, Source, SourceError,
        model::{Check, EpochNumber, Handoff, Host, Incarnation, Life, Link, Location, Member, Rtt, Setting, ShardRow, Status, TypeRow},
    },
    metrics::{HttpRefusal, Metrics, Prometheus},
};

/// Longest wait for anything that must happen.
const PATIENCE: Duration = Duration::from_secs(20);

type Job = Box<dyn FnOnce() + Send>;
type Completion = Box<dyn FnOnce(EntityOutcome) + Send>;
type Recorded = (String, String, Vec<u8>, Duration);

/// A node that completes on a thread of its own, like the real one.
struct Fake {
    thread: Mutex<Sender<Job>>,
    calls: Mutex<Vec<Recorded>>,
    held: Mutex<Vec<Completion>>,
    unhealthy: bool,
}

fn host(port: u16) -> Host {
    NodeAddr::new("127.0.0.1", port).into()
}

impl Fake {
    fn later(&self, job: impl FnOnce() + Send + 'static) {
        self.thread.lock().send(Box::new(job)).unwrap();
    }

    fn known(ty: &str) -> Result<(), SourceError> {
        if ty == "counter" { Ok(()) } else { Err(SourceError::UnknownType { name: ty.into(), known: vec!["counter".into()] }) }
    }

    fn act(&self, member: &NodeAddr, done: Done<()>) {
        let (known, addr) = (member.port == 7301, member.clone());
        self.later(move || {
            done(if known { Ok(()) } else { Err(SourceError::UnknownMember { addr, known: vec!["127.0.0.1:7301".into()] }) })
        });
    }
}

impl Source for Fake {
    fn health(&self, _: Probe) -> Vec<Check> {
        vec![Check { name: "member_up".into(), ok: !self.unhealthy, detail: "status is joining; wait for a seed".into() }]
    }
    fn status(&self) -> Status {
        Status {
            cluster: "c".into(),
            myself: Life { addr: host(7301), incarnation: Incarnation(0xfeed) },
            status: "up".into(),
            size: 1,
            leader: Some(host(7301)),
            deputies: vec![],
            oldest: Some(host(7301)),
            coordinator: None,
            view_version: 3,
            converged: true,
            moving: 0,
            warnings: vec![],
        }
    }
    fn members(&self, done: Done<Vec<Member>>) {
        done(Ok(vec![Member {
            addr: host(7301),
            incarnation: Incarnation(u64::MAX),
            status: "up".into(),
            reachable: false,
            observers: vec![host(7302)],
            roles: vec!["r".into()],
            up_number: 1,
            app_version: "1".into(),
            shards: Some(3),
            entities: None,
        }]));
    }
    fn config(&self) -> Vec<Setting> {
        let setting =
            |key: &str, value: &str| Setting { key: key.into(), value: value.into(), default: String::new(), origin: "file".into() };
        vec![setting("cluster.name", "\"c\""), setting("admin.token", "\"secret\"")]
    }
    fn drops(&self) -> Vec<(&'static str, u64)> {
        vec![("mailbox_full", 2), ("link_lost", 1)]
    }
    fn metrics(&self, out: &mut Prometheus) {
        out.gauge("members", "Members.", 1u64);
    }
    fn entity_types(&self) -> Arc<[EntityType]> {
        let operations = ["add", "get", "hold", "lose", "panic", "slow", "big", "echo"].map(String::from).to_vec();
        Arc::new([EntityType { name: "counter".into(), operations }])
    }
    fn links(&self, done: Done<Vec<Link>>) {
        self.later(move || {
            done(Ok(vec![Link {
                observer: host(1),
                subject: host(2),
                phi: Some(f64::INFINITY),
                threshold: 8.0,
                rtt_us: Rtt { p50: Some(90), p99: None },
                loss: 0.25,
                state: "reachable".into(),
            }]));
        });
    }
    fn types(&self, done: Done<Vec<TypeRow>>) {
        self.later(move || done(Ok(vec![TypeRow { ty: "counter".into(), shards: 100, entities: Some(5) }])));
    }
    fn table(&self, ty: &str, done: Done<Vec<ShardRow>>) {
        let known = Self::known(ty);
        let row = ShardRow {
            shard: 0,
            owner: Some(host(7301)),
            epoch: EpochNumber(4),
            state: "active".into(),
            entities: Some(1),
            rate_per_s: Some(0.5),
        };
        self.later(move || done(known.map(|()| vec![row])));
    }
    fn locate(&self, ty: &str, key: &str, done: Done<Location>) {
        let known = Self::known(ty);
        let shard = key.len() as u32;
        self.later(move || done(known.map(|()| Location { shard, owner: None, epoch: EpochNumber(0), state: "unowned".into() })));
    }
    fn handoffs(&self, done: Done<Vec<Handoff>>) {
        let row = Handoff {
            ty: "counter".into(),
            shard: 1,
            from: Some(host(1)),
            to: Some(host(2)),
            epoch: EpochNumber(9),
            state: "stopping".into(),
            age_ms: Some(12),
        };
        done(Ok(vec![row]));
    }
    fn move_shard(&self, _: &str, shard: u32, to: &NodeAddr, done: Done<u64>) {
        let here = to.port == 7301;
        self.later(move || {
            done(match (shard, here) {
                (100.., _) => Err(SourceError::UnknownShard { shards: 100 }),
                (_, true) => Err(SourceError::Refused("the shard is there already".into())),
                _ => Ok(7),
            });
        });
    }
    fn leave(&self, member: &NodeAddr, done: Done<()>) {
        self.act(member, done);
    }
    fn down(&self, member: &NodeAddr, done: Done<()>) {
        self.act(member, done);
    }
    fn entity(&self, call: EntityCall<'_>, done: Completion) {
        self.calls.lock().push((call.key.into(), call.op.into(), call.body.into(), call.timeout));
        if call.mode == wingbeat::admin::Mode::Tell {
            return done(EntityOutcome::Accepted);
        }
        let (key, body) = (call.key.to_owned(), call.body.to_vec());
        match call.op {
            "hold" => self.held.lock().push(done),
            "lose" => drop(done),
            "panic" => panic!("on purpose"),
            "slow" => {
                let timeout = call.timeout;
                self.later(move || done(EntityOutcome::timeout("counter", &key, timeout, true)));
            }
            "big" => self.later(move || done(EntityOutcome::Answer { json: vec![b'1'; 16 << 20] })),
            "echo" => self.later(move || done(EntityOutcome::Answer { json: body })),
            _ => self.later(move || {
                let json = json!({"result": {"key": key}, "served_by": "127.0.0.1:7301:00000000000000ff", "epoch": 1});
                done(EntityOutcome::Answer { json: json.to_string().into_bytes() });
            }),
        }
    }
}

struct Node {
    handle: ServerHandle,
    metrics: Arc<Metrics>,
    events: Arc<EventRing>,
    fake: Arc<Fake>,
}

impl Node {
    fn start() -> Self {
        Self::with(|_| {}, None, false)
    }

    fn with(change: impl FnOnce(&mut Limits), token: Option<&str>, unhealthy: bool) -> Self {
        let mut limits = Limits::default();
        change(&mut limits);
        let (thread, jobs): (Sender<Job>, Receiver<Job>) = channel();
        std::thread::spawn(move || jobs.iter().for_each(|job| job()));
        let fake = Arc::new(Fake { thread: Mutex::new(thread), calls: Mutex::default(), held: Mutex::default(), unhealthy });
        let (metrics, events) = (Arc::new(Metrics::new(1)), Arc::new(EventRing::new()));
        let api = Arc::new(Api::new(fake.clone(), metrics.clone(), events.clone()));
        let handle = Server::start("127.0.0.1:0".parse().unwrap(), limits, token, metrics.clone(), api).unwrap();
        Self { handle, metrics, events, fake }
    }

    fn client(&self) -> Client {
        Client::connect(self.handle.addr())
    }

    fn get(&self, path: &str) -> Answer {
        self.client().ask(&format!("GET {path} HTTP/1.1\r\nHost: h\r\n\r\n"))
    }

    fn post(&self, path: &str, body: &str) -> Answer {
        self.client().ask(&post(path, body))
    }

    fn refused(&self, reason: HttpRefusal) -> u64 {
        self.metrics.http.refused.get(reason)
    }
}

fn post(path: &str, body: &str) -> String {
    format!("POST {path} HTTP/1.1\r\nHost: h\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < end, "not in time: {what}");
        std::thread::yield_now();
    }
}

#[derive(Debug)]
struct Answer {
    status: u16,
    head: String,
    body: Vec<u8>,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&self.body)))
    }

    fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|l| l.split_once(": ").filter(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, v)| v))
    }

    /// Checks that it is a problem object of that status and code; returns its detail.
    fn problem(&self, status: u16, code: &str) -> String {
        assert_eq!(self.status, status, "{} {}", self.head, String::from_utf8_lossy(&self.body));
        assert_eq!(self.header("content-type"), Some("application/problem+json"));
        let json = self.json();
        assert_eq!((&json["status"], &json["code"]), (&status.into(), &code.into()), "{json}");
        assert!(json["type"].is_string() && json["title"].is_string(), "{json}");
        json["detail"].as_str().unwrap().to_owned()
    }
}

struct Client {
    socket: TcpStream,
    unread: Vec<u8>,
}

impl Client {
    fn connect(addr: SocketAddr) -> Self {
        let socket = TcpStream::connect(addr).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket.set_write_timeout(Some(PATIENCE)).unwrap();
        socket.set_nodelay(true).unwrap();
        Self { socket, unread: Vec::new() }
    }

    fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.socket.write_all(bytes.as_ref()).unwrap();
    }

    fn ask(&mut self, request: &str) -> Answer {
        self.send(request);
        self.answer()
    }

    fn more(&mut self) -> usize {
        let mut bytes = [0; 65536];
        let n = self.socket.read(&mut bytes).unwrap();
        self.unread.extend_from_slice(&bytes[..n]);
        n
    }

    /// Reads up to and including `mark`.
    fn until(&mut self, mark: &str) -> String {
        loop {
            if let Some(at) = self.unread.windows(mark.len()).position(|w| w == mark.as_bytes()) {
                let rest = self.unread.split_off(at + mark.len());
                return String::from_utf8(std::mem::replace(&mut self.unread, rest)).unwrap();
            }
            assert!(self.more() > 0, "ended before {mark:?}: {}", String::from_utf8_lossy(&self.unread));
        }
    }

    fn head(&mut self) -> Answer {
        let head = self.until("\r\n\r\n");
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Answer { status, head, body: Vec::new() }
    }

    fn answer(&mut self) -> Answer {
        let mut answer = self.head();
        let length: usize = answer.header("content-length").unwrap().parse().unwrap();
        while self.unread.len() < length {
            assert!(self.more() > 0, "the body is cut: {} of {length}", self.unread.len());
        }
        let rest = self.unread.split_off(length);
        answer.body = std::mem::replace(&mut self.unread, rest);
        answer
    }

    /// Waits for the end of the connection; what came before it.
    fn end(&mut self) -> Vec<u8> {
        let mut bytes = [0; 65536];
        loop {
            match self.socket.read(&mut bytes) {
                Ok(0) => break,
                Ok(n) => self.unread.extend_from_slice(&bytes[..n]),
                Err(error) => {
                    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
                    break;
                }
            }
        }
        std::mem::take(&mut self.unread)
    }
}

// ---------------------------------------------------------------- answers

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
    ];
    let answer = node.post("/api/v1/batch", &(lines.join("\r\n") + "\r\n"));
    let answers: Vec<Value> = String::from_utf8(answer.body).unwrap().lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!(answers.len(), lines.len());
    assert_eq!(answers[0]["result"]["key"], "k");
    assert_eq!(answers[1], json!({"status": 202}));
    let status: Vec<u64> = answers[2..].iter().map(|a| a["status"].as_u64().unwrap()).collect();
    assert_eq!(status, [500, 400, 400, 404, 400, 400, 400, 501, 400, 504]);
    assert_eq!((&answers[2]["maybe_ran"], &answers[11]["maybe_ran"]), (&true.into(), &true.into()));
    assert!(answers[6]["detail"].as_str().unwrap().contains("line 7") && answers[6]["detail"].as_str().unwrap().contains("bdy"));
    assert!(answers[11]["detail"].as_str().unwrap().contains('é'));
    assert_eq!(node.refused(HttpRefusal::NotImplemented), 1);
}

#[test]
fn a_batch_has_a_limit_of_lines() {
    let node = Node::start();
    assert_eq!(node.post("/api/v1/batch", "").body, b"");
    assert_eq!(node.post("/api/v1/batch", "\n").status, 200);
    let full = "{}\n".repeat(10_000);
    let answer = node.post("/api/v1/batch", &full);
    assert_eq!(answer.body.iter().filter(|b| **b == b'\n').count(), 10_000);
    assert!(node.post("/api/v1/batch", &(full + "{}")).problem(413, "E-HTTP-017").contains("10000"));
    assert_eq!(node.refused(HttpRefusal::TooManyLines), 1);
}

// ---------------------------------------------------------------- HTTP

#[test]
fn one_connection_serves_many_requests() {
    let node = Node::start();
    let mut client = node.client();
    for n in 0..50 {
        let answer = client.ask(&post(&format!("/api/v1/entities/counter/k{n}/add"), "{}"));
        assert_eq!(answer.json()["result"]["key"], format!("k{n}"));
        assert_eq!(answer.header("connection"), Some("keep-alive"));
    }
    assert_eq!(node.metrics.http.counters.http_connections_accepted.get(), 1);
    let last = client.ask("GET /healthz/alive HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
    assert_eq!(last.header("connection"), Some("close"));
    assert_eq!(client.end(), b"");
}

#[test]
fn no_answer_from_another_thread_is_overlooked() {
    let node = Node::start();
    std::thread::scope(|scope| {
        for c in 0..4 {
            let mut client = node.client();
            scope.spawn(move || {
                for n in 0..2000 {
                    let answer = client.ask(&post(&format!("/api/v1/entities/counter/k{c}-{n}/add"), "{}"));
                    assert_eq!(answer.json()["result"]["key"], format!("k{c}-{n}"));
                }
            });
        }
    });
    assert_eq!(node.metrics.http.by_class[1].get(), 8000);
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let node = Node::start();
    let mut client = node.client();
    let many: String = (0..200).map(|n| post(&format!("/api/v1/entities/counter/k{n}/add"), "{\"pad\": \"xxxxxxxxxxxxxxxxxx\"}")).collect();
    client.send(many + "GET /nowhere HTTP/1.1\r\nHost: h\r\n\r\n");
    for n in 0..200 {
        assert_eq!(client.answer().json()["result"]["key"], format!("k{n}"));
    }
    client.answer().problem(404, "E-HTTP-010");
}

#[test]
fn a_request_may_arrive_byte_by_byte() {
    let node = Node::start();
    let mut client = node.client();
    for byte in post("/api/v1/entities/counter/k/echo", "{\"n\": 1}").as_bytes() {
        client.send([*byte]);
    }
    assert_eq!(client.answer().json(), json!({"n": 1}));
}

#[test]
fn a_body_may_come_in_chunks() {
    let node = Node::start();
    let mut client = node.client();
    let head = "POST /api/v1/entities/counter/k/echo HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n";
    assert_eq!(client.ask(&format!("{head}5;x=1\r\n{{\"n\":\r\n3\r\n 1}}\r\n0\r\nTrailer: 1\r\n\r\n")).json(), json!({"n": 1}));
    assert!(client.ask(&format!("{head}900000\r\n")).problem(413, "E-HTTP-004").contains("8388608"));
    client.end();
}

#[test]
fn a_client_that_asks_before_a_large_body_is_answered_first() {
    let node = Node::start();
    let mut client = node.client();
    let body = format!("{{\"x\":\"{}\"}}", "y".repeat(2 << 20));
    let head = format!(
        "POST /api/v1/entities/counter/k/echo HTTP/1.1\r\nHost: h\r\nContent-Length: {}\r\nExpect: 100-continue\r\n\r\n",
        body.len()
    );
    client.send(&head);
    assert_eq!(client.head().status, 100);
    client.send(&body);
    assert_eq!(client.answer().body.len(), body.len() + 1);
    client.send(&head);
    client.send(&body);
    let first = client.head();
    let answer = if first.status == 100 { client.answer() } else { first };
    assert_eq!(answer.status, 200);
    let too_large = head.replace(&body.len().to_string(), "8388609");
    assert!(client.ask(&too_large).problem(413, "E-HTTP-004").contains("8388609"), "no 100 before a refusal");
    client.end();
}

#[test]
fn a_body_that_is_too_large_is_refused_before_it_is_read() {
    let node = Node::with(|l| l.body_bytes = 1000, None, false);
    let mut client = node.client();
    let answer = client.ask(&post("/api/v1/batch", &"x".repeat(1001)));
    let detail = answer.problem(413, "E-HTTP-004");
    assert!(detail.contains("1001") && detail.contains("1000") && detail.contains("limits.http_body"), "{detail}");
    assert_eq!((answer.header("connection"), node.refused(HttpRefusal::BodyTooLarge)), (Some("close"), 1));
    let reading = "GET /metrics HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n5000\r\n";
    let usual = Node::start();
    assert!(usual.client().ask(reading).problem(413, "E-HTTP-004").contains("16384"));
    // What the client still sends does not make it lose the answer.
    let mut client = node.client();
    client.send("POST /api/v1/batch HTTP/1.1\r\nHost: h\r\nContent-Length: 4000000\r\n\r\n");
    client.send(vec![b'x'; 4_000_000]);
    client.answer().problem(413, "E-HTTP-004");
}

#[test]
fn heads_have_limits() {
    let node = Node::start();
    let long = format!("GET /{} HTTP/1.1\r\nHost: h\r\n\r\n", "x".repeat(20_000));
    assert!(node.client().ask(&long).problem(431, "E-HTTP-002").contains("16384"));
    let many = format!("GET / HTTP/1.1\r\nHost: h\r\n{}\r\n", "A: b\r\n".repeat(64));
    assert!(node.client().ask(&many).problem(431, "E-HTTP-003").contains("64"));
    assert_eq!((node.refused(HttpRefusal::HeadTooLarge), node.refused(HttpRefusal::TooManyHeaders)), (1, 1));
}

#[test]
fn a_slow_client_is_told_and_cut_off() {
    // Long enough for a client on a busy machine to get from connecting to sending.
    let short = Duration::from_millis(300);
    let node = Node::with(|l| (l.head_deadline, l.body_deadline) = (short, short), None, false);
    assert!(node.client().ask("GET / HT").problem(408, "E-HTTP-005").contains("head"));
    assert!(node.client().ask("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nab").problem(408, "E-HTTP-005").contains("body"));
    assert_eq!(node.refused(HttpRefusal::SlowRequest), 2);
    let mut idle = node.client();
    assert_eq!(idle.end(), b"", "a silent connection is closed without a word");
    let node = Node::with(|l| l.idle = Duration::from_millis(5), None, false);
    let mut idle = node.client();
    idle.ask("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
    assert_eq!(idle.end(), b"");
}

#[test]
fn a_client_that_does_not_read_is_cut_off() {
    let node = Node::with(|l| l.write_deadline = Duration::from_millis(50), None, false);
    let mut client = node.client();
    client.send(post("/api/v1/entities/counter/k/big", "{}"));
    until("cut off", || node.refused(HttpRefusal::SlowReader) == 1);
    until("closed", || node.metrics.http.counters.http_connections_closed.get() == 1);
    let patient = Node::start();
    let mut reader = patient.client();
    assert_eq!(reader.ask(&post("/api/v1/entities/counter/k/big", "{}")).body.len(), (16 << 20) + 1);
}

#[test]
fn a_head_request_gets_no_body() {
    let node = Node::start();
    let mut client = node.client();
    let full = client.ask("GET /api/v1/status HTTP/1.1\r\nHost: h\r\n\r\n");
    client.send(
        "HEAD /api/v1/status HTTP/1.1\r\nHost: h\r\n\r\nHEAD /api/v1/events HTTP/1.1\r\nHost: h\r\nAccept: text/event-stream\r\n\r\n",
    );
    let head = client.head();
    assert_eq!(head.header("content-length"), Some(full.body.len().to_string().as_str()));
    assert_eq!(client.head().status, 200);
    assert_eq!(client.ask("GET /healthz/alive HTTP/1.1\r\nHost: h\r\n\r\n").status, 200);
}

#[test]
fn old_clients_are_served_and_closed() {
    let node = Node::start();
    let mut client = node.client();
    assert_eq!(client.ask("GET /healthz/alive HTTP/1.0\r\n\r\n").status, 200);
    assert_eq!(client.end(), b"");
}

#[test]
fn wrong_paths_and_methods_are_told_apart() {
    let node = Node::start();
    assert!(node.get("/api/v1/member").problem(404, "E-HTTP-010").contains("/api/v1/members"));
    let answer = node.post("/api/v1/status", "");
    answer.problem(405, "E-HTTP-011");
    assert_eq!(answer.header("allow"), Some("GET, HEAD"));
    let answer = node.get("/api/v1/batch");
    answer.problem(405, "E-HTTP-011");
    assert_eq!(answer.header("allow"), Some("POST"));
    assert_eq!((node.refused(HttpRefusal::UnknownRoute), node.refused(HttpRefusal::Method)), (1, 2));
}

#[test]
fn writes_need_the_token_when_one_is_set() {
    let node = Node::with(|_| {}, Some("s3cret"), false);
    for path in ["/api/v1/entities/counter/k/get", "/api/v1/batch", "/api/v1/members/127.0.0.1:7301/leave"] {
        let answer = node.post(path, "{}");
        answer.problem(401, "E-HTTP-008");
        assert!(answer.header("www-authenticate").unwrap().starts_with("Bearer"));
    }
    let with = |token: &str| {
        let head = "POST /api/v1/entities/counter/k/get HTTP/1.1\r\nHost: h\r\nContent-Length: 0";
        node.client().ask(&format!("{head}\r\nAuthorization: {token}\r\n\r\n")).status
    };
    assert_eq!([with("Bearer s3cret"), with("Bearer wrong"), with("Basic s3cret")], [200, 401, 401]);
    assert_eq!(node.get("/api/v1/status").status, 200, "reads are open");
    assert_eq!(node.refused(HttpRefusal::Unauthorized), 5);
}

#[test]
fn without_token_only_this_machine_writes() {
    let (metrics, events) = (Arc::new(Metrics::new(1)), Arc::new(EventRing::new()));
    let inner = Node::start();
    let api = Arc::new(Api::new(inner.fake.clone(), metrics.clone(), events));
    let open = Server::start("0.0.0.0:0".parse().unwrap(), Limits::default(), None, metrics, api).unwrap();
    let addr = SocketAddr::from(([127, 0, 0, 1], open.addr().port()));
    assert!(Client::connect(addr).ask(&post("/api/v1/batch", "")).problem(403, "E-HTTP-009").contains("admin.token"));
    assert_eq!(Client::connect(addr).ask("GET /healthz/alive HTTP/1.1\r\nHost: h\r\n\r\n").status, 200);
    let page = "POST /api/v1/batch HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\nOrigin: http://evil.example\r\n\r\n";
    inner.client().ask(page).problem(403, "E-HTTP-009");
}

#[test]
fn garbage_is_refused_and_harms_nobody() {
    let node = Node::start();
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed
    };
    let mut told = 0;
    for _ in 0..200 {
        let mut client = node.client();
        let bytes: Vec<u8> = (0..next() % 600 + 1).map(|_| next() as u8).collect();
        client.send(&bytes);
        client.socket.shutdown(std::net::Shutdown::Write).unwrap();
        told += u64::from(client.end().starts_with(b"HTTP/1.1 400"));
    }
    assert!(told > 150, "{told} of 200 were told");
    assert_eq!(node.get("/healthz/alive").status, 200);
}

#[test]
fn connections_are_bounded_and_come_back() {
    let node = Node::start();
    let mut clients: Vec<Client> = (0..256).map(|_| node.client()).collect();
    for client in &mut clients {
        client.send("GET /healthz/alive HTTP/1.1\r\nHost: h\r\n\r\n");
    }
    clients.iter_mut().for_each(|c| assert_eq!(c.answer().status, 200));
    let mut told = 0;
    for _ in 0..44 {
        let mut surplus = node.client();
        let text = String::from_utf8(surplus.end()).unwrap();
        if text.starts_with("HTTP/1.1 503") {
            assert!(text.contains("limits.http_connections") && text.contains("256"), "{text}");
            told += 1;
        }
    }
    assert_eq!((told, node.refused(HttpRefusal::Connections)), (44, 44));
    assert_eq!(clients[255].ask("GET /healthz/alive HTTP/1.1\r\nHost: h\r\n\r\n").status, 200, "those inside are served");
    clients.clear();
    until("room again", || node.client().socket_answers());
}

#[test]
fn clients_that_never_finish_a_request_keep_nobody_out() {
    let node = Node::start();
    let mut served = node.client();
    assert_eq!(served.ask("GET /healthz/alive HTTP/1.1\r\nHost: h\r\n\r\n").status, 200);
    let mut slow: Vec<Client> = (0..300).map(|_| node.client()).collect();
    for client in slow.iter_mut().skip(1).step_by(2) {
        // Those that were closed meanwhile cannot be written to.
        let _ = client.socket.write_all(b"GET /healthz/alive HTTP/1.1\r\nX-");
    }
    assert_eq!(node.get("/healthz/alive").status, 200, "the oldest of them gave way");
    assert_eq!(served.ask("GET /healthz/alive HTTP/1.1\r\nHost: h\r\n\r\n").status, 200, "whoever was served stays");
    assert!(node.refused(HttpRefusal::Connections) >= 45);
    assert_eq!(slow[0].end(), b"");
}

impl Client {
    fn socket_answers(mut self) -> bool {
        self.socket.write_all(b"GET /healthz/alive HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n").is_ok()
            && self.end().starts_with(b"HTTP/1.1 200")
    }
}

#[test]
fn shutdown_gives_answers_under_way_their_time() {
    let mut node = Node::start();
    let mut waiting = node.client();
    waiting.send(post("/api/v1/entities/counter/k/hold", "{}"));
    until("taken up", || !node.fake.held.lock().is_empty());
    let mut idle = node.client();
    idle.ask("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
    let addr = node.handle.addr();
    let held = node.fake.held.lock().pop().unwrap();
    let answering = std::thread::spawn(move || {
        let mut idle = idle;
        assert_eq!(idle.end(), b"", "idle connections end first");
        held(EntityOutcome::Accepted);
    });
    node.handle.shutdown();
    answering.join().unwrap();
    assert_eq!(waiting.answer().status, 202);
    assert_eq!(waiting.end(), b"");
    assert!(TcpStream::connect(addr).is_err());
    node.handle.shutdown();
}

// failures: row 27
#[test]
fn a_port_in_use_is_named() {
    let node = Node::start();
    let api = Arc::new(Api::new(node.fake.clone(), node.metrics.clone(), node.events.clone()));
    let error = Server::start(node.handle.addr(), Limits::default(), None, node.metrics.clone(), api).err().unwrap();
    assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse);
    assert!(error.to_string().contains(&node.handle.addr().to_string()), "{error}");
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
