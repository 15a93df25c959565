//! What others do to a node under pressure: peers that flood, trickle, or do not read, and entities that keep their worker. Whoever is not
//! concerned does not notice, what is refused is refused by name, and nobody is accused.
#![cfg(feature = "cli")]
#![allow(missing_docs, clippy::unwrap_used)]

mod support;

use std::{
    collections::VecDeque,
    fmt::Write,
    io::Read,
    net::{TcpListener, TcpStream},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};
use support::{
    PATIENCE,
    http::Client,
    until, until_holds,
    valve::{Flow, Valve},
};
use wingbeat::{
    AskError, Cluster, Config, Cx, DropReason, Entity, EntityRef, Event, HostOptions, MemberStatus, NodeAddr, Refusal, Region,
    channel::Receiver,
    config::{Preset, Span, Workers},
    messages,
};

/// How long pressure lasts where its length matters: longer than it takes to be found unreachable.
const STANDSTILL: Duration = Duration::from_secs(10);

messages! {
    pub enum WorkMsg for Work(String) = "test.work" {
        Part { number: u64, filler: String },
        Count -> u64,
        Weigh { filler: String } -> u64,
        Parts -> u64,
        Block -> u64,
    }
}

/// What all entities of a test have in common.
#[derive(Default)]
struct Shared {
    held: Mutex<bool>,
    let_go: Condvar,
    blocked: AtomicU64,
    misplaced: AtomicU64,
    /// Parts that all of them have handled.
    parts: AtomicU64,
}

impl Shared {
    fn block(&self) {
        let mut held = self.held.lock();
        *held = true;
        self.blocked.fetch_add(1, Ordering::SeqCst);
        while *held {
            self.let_go.wait(&mut held);
        }
    }

    fn let_go(&self) {
        *self.held.lock() = false;
        self.let_go.notify_all();
    }
}

/// Counts what it handles, and looks whether parts come in order.
struct Worker {
    shared: Arc<Shared>,
    handled: u64,
    next: u64,
}

impl Entity for Worker {
    type Type = Work;

    fn handle(&mut self, msg: WorkMsg, cx: &mut Cx<'_, Self>) {
        self.handled += 1;
        match msg {
            WorkMsg::Part(part) => {
                self.shared.misplaced.fetch_add(u64::from(part.number != self.next), Ordering::SeqCst);
                self.next = part.number + 1;
                self.shared.parts.fetch_add(1, Ordering::SeqCst);
            }
            WorkMsg::Count(Count, reply) => cx.reply(reply, self.handled),
            WorkMsg::Parts(Parts, reply) => cx.reply(reply, self.shared.parts.load(Ordering::SeqCst)),
            WorkMsg::Weigh(weigh, reply) => cx.reply(reply, weigh.filler.len() as u64),
            WorkMsg::Block(Block, reply) => {
                self.shared.block();
                cx.reply(reply, self.handled);
            }
        }
    }
}

/// Patient enough for a machine that has no time, and quick enough for a test.
fn config(name: &str) -> Config {
    let mut config = Config::preset(Preset::LocalTest);
    config.set("detector.heartbeat_interval", "600ms").unwrap();
    config.cluster.name = format!("{name}-{}", std::process::id());
    config.node.listen = "127.0.0.1:0".parse().unwrap();
    config.node.workers = Workers::Count(2);
    config.admin.listen = Some("127.0.0.1:0".parse().unwrap());
    config
}

fn start(config: Config, seed: Option<&NodeAddr>) -> Cluster {
    Cluster::builder(config).seeds(seed.map(ToString::to_string)).start().unwrap()
}

fn host(cluster: &Cluster, shared: &Arc<Shared>) -> Region<Work> {
    let shared = shared.clone();
    cluster.host::<Worker>(HostOptions::new().shards(16), move |_| Worker { shared: shared.clone(), handled: 0, next: 0 }).unwrap()
}

/// A node that hosts, and one that only sends.
fn pair(name: &str, change: impl Fn(&mut Config)) -> (Cluster, Cluster, Region<Work>, Arc<Shared>) {
    let (mut first, mut second) = (config(name), config(name));
    change(&mut first);
    change(&mut second);
    let home = start(first, None);
    let shared = Arc::new(Shared::default());
    host(&home, &shared);
    let sender = start(second, Some(home.addr()));
    let region = sender.proxy::<Work>().unwrap();
    home.wait_members(2, PATIENCE).unwrap();
    sender.wait_members(2, PATIENCE).unwrap();
    region.wait_ready(PATIENCE).unwrap();
    (home, sender, region, shared)
}

/// Three nodes: one behind a valve that all others dial, one that is reached straight, and one that only sends; and an entity on each of the
/// first two.
struct Three {
    slow: Cluster,
    valve: Valve,
    quick: Cluster,
    sender: Cluster,
    on_slow: EntityRef<Work>,
    on_quick: EntityRef<Work>,
    shared: Arc<Shared>,
}

fn three(name: &str, change: impl Fn(&mut Config)) -> Three {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let valve = Valve::before(port);
    let mut configs = [config(name), config(name), config(name)];
    configs.iter_mut().for_each(change);
    let [mut first, second, third] = configs;
    first.node.listen = format!("127.0.0.1:{port}").parse().unwrap();
    first.node.advertise = Some(valve.addr.clone());
    let slow = start(first, None);
    slow.wait_up(PATIENCE).unwrap();
    let (quick, sender) = (start(second, Some(slow.addr())), start(third, Some(slow.addr())));
    let shared = Arc::new(Shared::default());
    [&slow, &quick, &sender].into_iter().for_each(|node| drop(node.wait_members(3, PATIENCE).unwrap()));
    [&slow, &quick].into_iter().for_each(|node| host(node, &shared).wait_ready(PATIENCE).unwrap());
    let region = sender.proxy::<Work>().unwrap();
    region.wait_ready(PATIENCE).unwrap();
    let on = |node: &Cluster| {
        until("an entity on each node", || {
            (0..100).map(|n| region.get(format!("k{n}"))).find(|entity| {
                entity.ask(Count, PATIENCE).unwrap();
                region.owner_of(entity.key()) == Ok(Some(node.id()))
            })
        })
    };
    let (on_slow, on_quick) = (on(&slow), on(&quick));
    Three { slow, valve, quick, sender, on_slow, on_quick, shared }
}

/// Watches that nobody is accused while pressure lasts.
struct Calm(Vec<Receiver<Event>>);

impl Calm {
    fn of(nodes: &[&Cluster]) -> Self {
        Self(nodes.iter().map(|node| node.events()).collect())
    }

    #[track_caller]
    fn check(&self) {
        for event in self.0.iter().flat_map(Receiver::try_iter) {
            let accuses = match &event {
                Event::Unreachable { .. } | Event::Split { .. } => true,
                Event::Member { member, .. } => matches!(member.status, MemberStatus::Down | MemberStatus::Removed),
                _ => false,
            };
            assert!(!accuses, "{event:?}");
        }
    }
}

fn metrics(node: &Cluster) -> String {
    Client::connect(node.admin_addr().unwrap()).unwrap().get("/metrics").unwrap().text()
}

/// A figure of a node's metrics page.
#[track_caller]
fn metric(node: &Cluster, name: &str) -> u64 {
    let page = metrics(node);
    let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {name} in {page}")).parse().unwrap()
}

fn part(number: u64, size: usize) -> Part {
    Part { number, filler: "7".repeat(size) }
}

// failures: row 11
#[test]
fn ten_thousand_connections_from_one_address_leave_a_cluster_at_work() {
    const FLOOD: u64 = 10_000;
    // Fewer than a stranger's half-open connections may be, so that the node and not this test closes them.
    const OPEN: usize = 300;
    let (home, sender, region, _) = pair("flood", |_| {});
    let (entity, calm) = (region.get("a"), Calm::of(&[&home, &sender]));
    let port = home.addr().port;
    let mut open = VecDeque::new();
    for n in 0..FLOOD {
        open.push_back(TcpStream::connect(("127.0.0.1", port)).unwrap());
        if open.len() > OPEN {
            // The node closes the oldest, without a word.
            let closed = open.pop_front().map(|mut oldest| oldest.read(&mut [0]));
            assert!(!matches!(closed, Some(Ok(1))), "{closed:?}");
        }
        if n % 500 == 0 {
            assert_eq!(entity.ask(Count, PATIENCE), Ok(n / 500 + 1), "an old peer goes on");
            // The peer, and strangers up to their share of `limits.half_open`.
            let connections = metric(&home, "wingbeat_net_connections");
            assert!(connections <= 200, "{connections} connections are kept");
        }
    }
    until_holds("all were taken in", || metric(&home, "wingbeat_net_accepted_total") > FLOOD);
    // A slow machine may find some of them late for their greeting before it needs their place.
    let evicted = metric(&home, "wingbeat_net_per_ip_evicted_total") + metric(&home, "wingbeat_net_hello_timeouts_total");
    assert!(evicted >= FLOOD - OPEN as u64, "{evicted} were closed for those that came after them");
    // The oldest are gone, the newest not yet: a newcomer of the same address finds room.
    let third = start(config("flood"), Some(home.addr()));
    third.wait_members(3, PATIENCE).unwrap();
    let again = third.proxy::<Work>().unwrap();
    again.wait_ready(PATIENCE).unwrap();
    assert_eq!(again.get("a").ask(Count, PATIENCE), Ok(FLOOD / 500 + 1), "a new peer is heard");
    calm.check();
    assert_eq!(metric(&sender, "wingbeat_net_sessions_down_total"), 0);
}

// failures: row 9
#[test]
fn a_frame_that_trickles_ends_its_link_and_nobody_else_waits() {
    let log = Log::of_this_process();
    let cluster = three("trickle", |config| config.limits.frame_deadline = Span::millis(500));
    let Three { slow, valve, quick, sender, on_slow, on_quick, .. } = &cluster;
    let calm = Calm::of(&[slow, quick, sender]);
    valve.set(Flow::Trickle);
    // At a byte now and then this would take minutes.
    on_slow.tell(part(0, 100_000)).unwrap();
    until_holds("the frame is given up", || {
        assert!(on_quick.ask(Count, PATIENCE).is_ok(), "others are not concerned");
        metric(slow, "wingbeat_net_frame_timeouts_total") > 0
    });
    assert!(log.line(&["FrameTimeout", "limits.frame_deadline"]).is_some(), "with peer, limit and reason");
    valve.set(Flow::Open);
    until_holds("the link is back", || on_slow.ask(Count, Duration::from_secs(5)).is_ok());
    calm.check();
}

// failures: row 10
#[test]
fn a_peer_that_reads_nothing_for_ten_seconds_concerns_those_alone_who_write_to_it() {
    let cluster = three("deaf", |config| {
        config.limits.message_bytes = 64 << 10;
        config.limits.frame_bytes = 128 << 10;
        config.limits.link_bytes = 256 << 10;
        // The valve may close in the middle of a frame; how long that may last is another test's subject.
        config.limits.frame_deadline = Span::secs(120);
    });
    let Three { slow, valve, quick, sender, on_slow, on_quick, shared } = &cluster;
    let calm = Calm::of(&[slow, quick, sender]);
    let letters = [slow.dead_letters(), quick.dead_letters(), sender.dead_letters()];
    let before = on_slow.ask(Count, PATIENCE).unwrap();
    valve.set(Flow::Closed);
    let began = Instant::now();
    let (mut sent, mut refused, mut answered) = (0, 0_u64, 0_u64);
    while began.elapsed() < STANDSTILL || refused < 100 || answered < 100 {
        match on_slow.tell(part(sent, 2000)) {
            Ok(()) => sent += 1,
            Err(error) => {
                assert!(matches!(error.reason(), Refusal::NoCredit | Refusal::Full), "{error}");
                refused += u64::from(*error.reason() == Refusal::NoCredit);
                // This thread's ring, which may be full, is emptied whatever a peer does.
                let asked = Instant::now();
                let answer = loop {
                    match on_quick.ask(Count, PATIENCE) {
                        Err(AskError::Refused(Refusal::Full)) if asked.elapsed() < STANDSTILL / 2 => thread::yield_now(),
                        answer => break answer,
                    }
                };
                assert!(answer.is_ok(), "others are not concerned: {answer:?}");
                answered += 1;
            }
        }
        // What the kernel takes on three sockets, what the link may hold, and what was in rings when it had no more.
        assert!(sent * 2000 < 64 << 20, "the link has no end");
        assert!(began.elapsed() < PATIENCE, "{refused} were refused and {answered} answered");
    }
    calm.check();
    let late = on_slow.ask(Count, Duration::from_millis(10)).unwrap_err();
    assert!(matches!(late, AskError::Timeout { .. } | AskError::Refused(Refusal::NoCredit)), "{late}");
    valve.set(Flow::Open);
    until_holds("all that was accepted has arrived", || on_slow.ask(Count, PATIENCE).is_ok_and(|handled| handled > before + sent));
    assert_eq!(shared.misplaced.load(Ordering::SeqCst), 0, "in order");
    assert_eq!(metric(slow, "wingbeat_net_sessions_down_total"), 0, "over the link that was there");
    assert!(letters.iter().all(|letters| letters.try_recv().is_err()), "nothing was given up");
    calm.check();
}

/// Collects what the engine says at the level of warnings and above.
#[derive(Default)]
struct Log(Mutex<Vec<String>>);

impl Log {
    /// The log of this process, from the first call on.
    fn of_this_process() -> &'static Self {
        struct Collector(&'static Log);

        impl tracing::Subscriber for Collector {
            fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
                *metadata.level() <= tracing::Level::WARN
            }

            fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
                tracing::span::Id::from_u64(1)
            }

            fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

            fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

            fn event(&self, event: &tracing::Event<'_>) {
                let mut line = Line(String::new());
                event.record(&mut line);
                self.0.0.lock().push(line.0);
            }

            fn enter(&self, _: &tracing::span::Id) {}

            fn exit(&self, _: &tracing::span::Id) {}
        }

        struct Line(String);

        impl tracing::field::Visit for Line {
            fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
                write!(self.0, "{}={value:?} ", field.name()).unwrap();
            }
        }

        static LOG: OnceLock<&'static Log> = OnceLock::new();
        LOG.get_or_init(|| {
            let log: &'static Log = Box::leak(Box::default());
            tracing::subscriber::set_global_default(Collector(log)).unwrap();
            log
        })
    }

    /// The first line with all these in it.
    fn line(&self, parts: &[&str]) -> Option<String> {
        self.0.lock().iter().find(|line| parts.iter().all(|part| line.contains(part))).cloned()
    }
}

#[test]
fn a_small_message_waits_for_no_more_than_a_part_of_what_is_large() {
    const SIZE: usize = 1_000_000;
    // One worker handles in the order in which messages come in.
    let cluster = three("large", |config| config.node.workers = Workers::Count(1));
    let Three { slow, valve, quick, sender, on_slow, shared, .. } = &cluster;
    let calm = Calm::of(&[slow, quick, sender]);
    let region = sender.proxy::<Work>().unwrap();
    let shard = |entity: &EntityRef<Work>| region.shard_of(entity.key());
    let others = (0..300).map(|n| region.get(format!("k{n}"))).filter(|other| shard(other) != shard(on_slow));
    let beside = others.into_iter().find(|other| {
        other.ask(Count, PATIENCE).unwrap();
        region.owner_of(other.key()) == Ok(Some(slow.id()))
    });
    let beside = beside.expect("a node has several shards");
    let letters = sender.dead_letters();
    valve.set(Flow::Closed);
    // More than the kernel takes and the link may hold: from then on this shard has no room, and others do.
    let mut sent = 0;
    until("there is no room for what is large", || match on_slow.tell(part(sent, SIZE)) {
        Ok(()) => {
            sent += 1;
            None
        }
        Err(error) => (*error.reason() == Refusal::NoCredit).then_some(()),
    });
    let (tx, rx) = wingbeat::channel::bounded(1);
    beside.ask_then(Parts, PATIENCE, move |answer| tx.send(answer).unwrap());
    valve.set(Flow::Open);
    let before = rx.recv_timeout(PATIENCE).unwrap();
    assert!(matches!(before, Ok(0 | 1)), "{before:?} of {sent} large ones were handled before it");
    until_holds("all has arrived", || {
        sent -= letters.try_iter().count() as u64;
        beside.ask(Parts, PATIENCE) == Ok(sent)
    });
    assert!(sent * SIZE as u64 > 16 << 20, "{sent} were sent");
    assert_eq!(shared.misplaced.load(Ordering::SeqCst), 0);
    until_holds("there is room again", || on_slow.tell(part(sent, 10)).is_ok());
    calm.check();
}

// failures: row 46
#[test]
fn a_handler_that_blocks_for_five_seconds_is_named_and_no_other_worker_notices() {
    let log = Log::of_this_process();
    let (home, sender, region, shared) = pair("block", |_| {});
    let calm = Calm::of(&[&home, &sender]);
    let stuck = region.get("the sleeper");
    // Shards are dealt out to workers by their number.
    let parity = |entity: &EntityRef<Work>| region.shard_of(entity.key()).unwrap().0 % 2;
    let free = (0..).map(|n| region.get(format!("k{n}"))).find(|entity| parity(entity) != parity(&stuck)).unwrap();
    let waiting = thread::spawn({
        let stuck = stuck.clone();
        move || stuck.ask(Block, PATIENCE)
    });
    until_holds("a handler blocks", || shared.blocked.load(Ordering::SeqCst) > 0);
    let (began, mut answered) = (Instant::now(), 0);
    while began.elapsed() < Duration::from_secs(5) || answered < 100 {
        answered += 1;
        assert_eq!(free.ask(Count, PATIENCE), Ok(answered));
    }
    let held = began.elapsed();
    let meanwhile = log.line(&["an entity's code does not return", "test.work"]);
    assert!(meanwhile.is_some(), "type and shard are named while it lasts");
    shared.let_go();
    assert_eq!(waiting.join().unwrap(), Ok(1));
    let line = until("the turn is named when it ends", || log.line(&["slow turn", "key=the sleeper"]));
    let took = line.split("took=").nth(1).and_then(|rest| rest.split("s ").next()).and_then(|secs| secs.parse::<f64>().ok());
    // It is measured from when it was first seen.
    assert!(took.is_some_and(|took| took > 4.0 && took < held.as_secs_f64() + 60.0), "{line}");
    calm.check();
}

// failures: row 40
#[test]
fn what_waits_for_a_worker_is_bounded_in_bytes_and_refused_as_overload() {
    const SIZE: usize = 900 << 10;
    let (home, sender, region, shared) = pair("bytes", |config| config.node.workers = Workers::Count(1));
    let calm = Calm::of(&[&home, &sender]);
    let (letters, entity) = (home.dead_letters(), region.get("a"));
    let waiting = thread::spawn({
        let entity = entity.clone();
        move || entity.ask(Block, PATIENCE)
    });
    until_holds("a handler blocks", || shared.blocked.load(Ordering::SeqCst) > 0);
    let mut sent = 0;
    let first = until("messages are given up where they wait", || {
        entity.tell_within(part(sent, SIZE), PATIENCE).unwrap();
        sent += 1;
        letters.try_recv().ok()
    });
    assert_eq!((first.reason, &*first.key), (DropReason::Overloaded, &b"a"[..]));
    assert!(sent * (SIZE as u64) < 224 << 20, "{sent} messages of {SIZE} bytes are held");
    // Whoever asks is told, and at once. What is short has room still, though it comes between what has none.
    let weigh = || Weigh { filler: "7".repeat(SIZE) };
    assert_eq!(entity.ask(weigh(), PATIENCE), Err(AskError::Dropped(DropReason::Overloaded)));
    let (tx, rx) = wingbeat::channel::bounded(1);
    entity.ask_then(Count, PATIENCE, move |answer| tx.send(answer).unwrap());
    assert_eq!(entity.ask(weigh(), PATIENCE), Err(AskError::Dropped(DropReason::Overloaded)));
    shared.let_go();
    assert_eq!(waiting.join().unwrap(), Ok(1));
    let handled = rx.recv_timeout(PATIENCE).unwrap().unwrap();
    // Beside the parts: the block, this count, and the two requests that were refused.
    let dropped = metric(&home, "wingbeat_messages_dropped_total{reason=\"overloaded\"}");
    assert_eq!((handled - 2) + (dropped - 2), sent, "{handled} were handled and {dropped} dropped");
    assert_eq!(entity.ask(weigh(), PATIENCE), Ok(SIZE as u64));
    assert_eq!(shared.misplaced.load(Ordering::SeqCst), 0, "what was dropped came last");
    calm.check();
}
