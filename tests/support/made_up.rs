//! A node that is made up, its HTTP surface on real sockets, and a client that sees each byte of that.

use std::{
    io::{ErrorKind, Read, Write},
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
        model::{
            Check, EpochNumber, Handoff, Host, Incarnation, Life, Link, Location, Member, Rtt, Setting, ShardRow, SlowTurn, Status, TypeRow,
        },
    },
    metrics::{HttpRefusal, Metrics, Prometheus},
};

/// Longest wait for anything that must happen.
pub const PATIENCE: Duration = Duration::from_secs(20);

pub type Job = Box<dyn FnOnce() + Send>;
pub type Completion = Box<dyn FnOnce(EntityOutcome) + Send>;
pub type Recorded = (String, String, Vec<u8>, Duration);

/// A node that completes on a thread of its own, like the real one.
pub struct Fake {
    pub thread: Mutex<Sender<Job>>,
    pub calls: Mutex<Vec<Recorded>>,
    /// Until when each of them may be kept waiting for room.
    pub rooms: Mutex<Vec<Instant>>,
    pub held: Mutex<Vec<Completion>>,
    pub unhealthy: bool,
}

pub fn host(port: u16) -> Host {
    NodeAddr::new("127.0.0.1", port).into()
}

impl Fake {
    pub fn later(&self, job: impl FnOnce() + Send + 'static) {
        self.thread.lock().send(Box::new(job)).unwrap();
    }

    pub fn known(ty: &str) -> Result<(), SourceError> {
        if ty == "counter" { Ok(()) } else { Err(SourceError::UnknownType { name: ty.into(), known: vec!["counter".into()] }) }
    }

    pub fn act(&self, member: &NodeAddr, done: Done<()>) {
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
    fn slow_turns(&self) -> Vec<SlowTurn> {
        let turn =
            |key: &str, ended_ms_ago| SlowTurn { ty: "counter".into(), key: key.into(), shard: 4, worker: 1, took_ms: 700, ended_ms_ago };
        vec![turn("a", None), turn("b", Some(9))]
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
        self.rooms.lock().push(call.room);
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

pub struct Node {
    pub handle: ServerHandle,
    pub metrics: Arc<Metrics>,
    pub events: Arc<EventRing>,
    pub fake: Arc<Fake>,
}

impl Node {
    pub fn start() -> Self {
        Self::with(|_| {}, None, false)
    }

    pub fn with(change: impl FnOnce(&mut Limits), token: Option<&str>, unhealthy: bool) -> Self {
        let mut limits = Limits::default();
        change(&mut limits);
        let (thread, jobs): (Sender<Job>, Receiver<Job>) = channel();
        std::thread::spawn(move || jobs.iter().for_each(|job| job()));
        let fake = Arc::new(Fake {
            thread: Mutex::new(thread),
            calls: Mutex::default(),
            rooms: Mutex::default(),
            held: Mutex::default(),
            unhealthy,
        });
        let (metrics, events) = (Arc::new(Metrics::new(1)), Arc::new(EventRing::new()));
        let api = Arc::new(Api::new(fake.clone(), metrics.clone(), events.clone()));
        let handle = Server::start("127.0.0.1:0".parse().unwrap(), limits, token, metrics.clone(), api).unwrap();
        Self { handle, metrics, events, fake }
    }

    pub fn client(&self) -> Client {
        Client::connect(self.handle.addr())
    }

    pub fn get(&self, path: &str) -> Answer {
        self.client().ask(&format!("GET {path} HTTP/1.1\r\nHost: h\r\n\r\n"))
    }

    pub fn post(&self, path: &str, body: &str) -> Answer {
        self.client().ask(&post(path, body))
    }

    pub fn refused(&self, reason: HttpRefusal) -> u64 {
        self.metrics.http.refused.get(reason)
    }
}

pub fn post(path: &str, body: &str) -> String {
    format!("POST {path} HTTP/1.1\r\nHost: h\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < end, "not in time: {what}");
        std::thread::yield_now();
    }
}

#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&self.body)))
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|l| l.split_once(": ").filter(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, v)| v))
    }

    /// Checks that it is a problem object of that status and code; returns its detail.
    pub fn problem(&self, status: u16, code: &str) -> String {
        assert_eq!(self.status, status, "{} {}", self.head, String::from_utf8_lossy(&self.body));
        assert_eq!(self.header("content-type"), Some("application/problem+json"));
        let json = self.json();
        assert_eq!((&json["status"], &json["code"]), (&status.into(), &code.into()), "{json}");
        assert!(json["type"].is_string() && json["title"].is_string(), "{json}");
        json["detail"].as_str().unwrap().to_owned()
    }
}

pub struct Client {
    pub socket: TcpStream,
    pub unread: Vec<u8>,
}

impl Client {
    pub fn connect(addr: SocketAddr) -> Self {
        let socket = TcpStream::connect(addr).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket.set_write_timeout(Some(PATIENCE)).unwrap();
        socket.set_nodelay(true).unwrap();
        Self { socket, unread: Vec::new() }
    }

    pub fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.socket.write_all(bytes.as_ref()).unwrap();
    }

    pub fn ask(&mut self, request: &str) -> Answer {
        self.send(request);
        self.answer()
    }

    pub fn more(&mut self) -> usize {
        let mut bytes = [0; 65536];
        loop {
            match self.socket.read(&mut bytes) {
                Ok(n) => {
                    self.unread.extend_from_slice(&bytes[..n]);
                    return n;
                }
                Err(error) => assert_eq!(error.kind(), ErrorKind::Interrupted),
            }
        }
    }

    /// Reads up to and including `mark`.
    pub fn until(&mut self, mark: &str) -> String {
        loop {
            if let Some(at) = self.unread.windows(mark.len()).position(|w| w == mark.as_bytes()) {
                let rest = self.unread.split_off(at + mark.len());
                return String::from_utf8(std::mem::replace(&mut self.unread, rest)).unwrap();
            }
            assert!(self.more() > 0, "ended before {mark:?}: {}", String::from_utf8_lossy(&self.unread));
        }
    }

    pub fn head(&mut self) -> Answer {
        let head = self.until("\r\n\r\n");
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Answer { status, head, body: Vec::new() }
    }

    pub fn answer(&mut self) -> Answer {
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
    pub fn end(&mut self) -> Vec<u8> {
        let mut bytes = [0; 65536];
        loop {
            match self.socket.read(&mut bytes) {
                Ok(0) => break,
                Ok(n) => self.unread.extend_from_slice(&bytes[..n]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
                    break;
                }
            }
        }
        std::mem::take(&mut self.unread)
    }
}
