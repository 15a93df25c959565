//! Entities that misbehave, messages that do not fit and calls at the wrong time, through the public interface.
#![cfg(feature = "cli")]
#![allow(missing_docs, clippy::unwrap_used)]

mod support;

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};
use serde_json::Value;
use support::{PATIENCE, http::Client, until_holds};
use wingbeat::{
    ActError, Addressed, AskError, Cluster, Config, Cx, DropReason, Entity, EntityRef, Event, HostOptions, Message, Promise, QueryError,
    Ran, Refusal, Region, RegisterError, ShutdownReason,
    config::{Preset, Span, Workers},
    messages,
};

messages! {
    pub enum JobMsg for Job(String) = "test.job" {
        Count -> u64,
        Panic -> u64,
        Block -> u64,
        Blob { bytes: Vec<u8> } -> u64,
        Flood { with: Vec<u8> } -> (u64, String),
        Cycle { left: u64 },
        AskInside -> Vec<String>,
        Silent -> u64,
        Later -> u64,
    }
}
messages! {
    pub enum OtherMsg for Other(String) = "test.other" { Poke -> u64 }
}

/// What all entities of a test have in common.
#[derive(Default)]
struct Shared {
    open: Mutex<bool>,
    opened: Condvar,
    blocked: AtomicU32,
    owed: Mutex<Vec<Promise<u64>>>,
    /// Starts of entities, by key.
    starts: Mutex<BTreeMap<String, u32>>,
}

impl Shared {
    fn open(&self) {
        *self.open.lock() = true;
        self.opened.notify_all();
    }

    fn block(&self) {
        self.blocked.fetch_add(1, Ordering::SeqCst);
        let mut open = self.open.lock();
        while !*open {
            self.opened.wait(&mut open);
        }
    }

    fn wait_blocked(&self, n: u32) {
        until_holds("a handler blocks", || self.blocked.load(Ordering::SeqCst) >= n);
    }

    fn starts(&self, key: &str) -> u32 {
        self.starts.lock().get(key).copied().unwrap_or(0)
    }
}

struct Worker {
    shared: Arc<Shared>,
    count: u64,
}

impl Entity for Worker {
    type Type = Job;

    fn handle(&mut self, msg: JobMsg, cx: &mut Cx<'_, Self>) {
        self.count += 1;
        match msg {
            JobMsg::Count(Count, reply) => cx.reply(reply, self.count),
            JobMsg::Panic(Panic, _reply) => panic!("on purpose"),
            JobMsg::Block(Block, reply) => {
                self.shared.block();
                cx.reply(reply, self.count);
            }
            JobMsg::Blob(blob, reply) => cx.reply(reply, blob.bytes.len() as u64),
            JobMsg::Flood(flood, reply) => {
                let this = cx.this();
                let mut sent = 0;
                let refused = loop {
                    match this.tell(Cycle { left: 0 }) {
                        Ok(()) => sent += 1,
                        Err(refused) => break refused,
                    }
                };
                drop(flood);
                cx.reply(reply, (sent, refused.code().to_owned()));
            }
            // Two messages for each, to the partner in the cycle: queues fill sooner or later.
            JobMsg::Cycle(Cycle { left }) => {
                let partner = if cx.id() == "a" { "b" } else { "a" };
                let partner = cx.resolve(&wingbeat::EntityId::<Job>::new(partner)).unwrap();
                for _ in 0..2 {
                    if left > 0 && partner.tell(Cycle { left: left - 1 }).is_err() {
                        self.shared.blocked.fetch_add(1, Ordering::SeqCst);
                    }
                }
            }
            JobMsg::AskInside(AskInside, reply) => {
                let this = cx.this();
                let asked = this.ask(Count, Duration::from_secs(5)).unwrap_err();
                let told = this.tell_within(Cycle { left: 0 }, Duration::from_secs(5)).unwrap_err();
                cx.reply(reply, vec![asked.code().to_owned(), told.code().to_owned()]);
            }
            JobMsg::Silent(Silent, _reply) => {}
            JobMsg::Later(Later, reply) => self.shared.owed.lock().push(cx.defer(reply)),
        }
    }
}

fn config(name: &str) -> Config {
    let mut config = Config::preset(Preset::LocalTest);
    config.cluster.name = format!("{name}-{}", std::process::id());
    config.node.listen = "127.0.0.1:0".parse().unwrap();
    config.node.workers = Workers::Count(2);
    // A node that only sends does not look here: it takes the number of the hosts.
    config.sharding.shards = 40;
    config
}

fn host(cluster: &Cluster, shared: &Arc<Shared>) -> Region<Job> {
    let shared = shared.clone();
    let region = cluster.host::<Worker>(HostOptions::new().shards(16), move |key| {
        *shared.starts.lock().entry(key.clone()).or_default() += 1;
        assert!(!key.starts_with("unborn"), "no entity of this key on purpose");
        Worker { shared: shared.clone(), count: 0 }
    });
    region.unwrap()
}

/// One node that hosts.
fn alone(name: &str, change: impl FnOnce(&mut Config)) -> (Cluster, Region<Job>, Arc<Shared>) {
    let mut config = config(name);
    change(&mut config);
    let cluster = Cluster::builder(config).start().unwrap();
    let shared = Arc::new(Shared::default());
    let region = host(&cluster, &shared);
    region.wait_ready(PATIENCE).unwrap();
    (cluster, region, shared)
}

/// A node that hosts, and one that only sends.
fn pair(name: &str, change: impl Fn(&mut Config)) -> (Cluster, Cluster, Region<Job>, Arc<Shared>) {
    let mut first = config(name);
    change(&mut first);
    let home = Cluster::builder(first).start().unwrap();
    let shared = Arc::new(Shared::default());
    host(&home, &shared);
    let mut second = config(name);
    change(&mut second);
    let sender = Cluster::builder(second).seeds([home.addr().to_string()]).start().unwrap();
    let region = sender.proxy::<Job>().unwrap();
    home.wait_members(2, PATIENCE).unwrap();
    sender.wait_members(2, PATIENCE).unwrap();
    region.wait_ready(PATIENCE).unwrap();
    (home, sender, region, shared)
}

fn ask(entity: &EntityRef<Job>) -> u64 {
    entity.ask(Count, PATIENCE).unwrap()
}

#[test]
fn what_takes_time_is_measured() {
    let (home, sender, region, _) = pair("latency", |_| {});
    let of = |node: &Cluster, name| node.latency().into_iter().find(|measured| measured.of == name).unwrap();
    assert_eq!((of(&home, "ask").count, of(&home, "handoff").max), (0, Duration::ZERO));
    let entity = region.get("a");
    (1..=200).for_each(|n| assert_eq!(ask(&entity), n));
    let asked = of(&sender, "ask");
    let wingbeat::Latency { count, p50, p99, p999, max, .. } = asked;
    assert!(count >= 3 && Duration::ZERO < p50 && p50 <= p99 && p99 <= p999 && p999 <= max && max < PATIENCE, "{asked:?}");
    until_holds("turns are measured where they are taken", || of(&home, "worker_turn").count > 0 && of(&home, "network_turn").count > 0);
    assert_eq!(of(&home, "ask").count, 0, "nobody asked there");
    host(&sender, &Arc::default()).wait_ready(PATIENCE).unwrap();
    let shard = region.shard_of(&"a".to_owned()).unwrap();
    until_holds("a move begins", || home.admin().move_shard::<Job>(shard, sender.id()).is_ok());
    until_holds("moves are measured by who coordinates them", || of(&home, "handoff").max > Duration::ZERO);
}

// failures: row 4
#[test]
fn a_message_above_the_limit_comes_back_at_the_call() {
    let (_home, sender, region, _) = pair("large", |config| config.limits.message_bytes = 1000);
    let entity = region.get("a");
    assert_eq!(entity.ask(Blob { bytes: vec![7; 900] }, PATIENCE), Ok(900));
    let refused = entity.tell(Blob { bytes: vec![7; 1001] }).unwrap_err();
    let Refusal::TooLarge { size, max: 1000 } = *refused.reason() else { panic!("{refused}") };
    assert!((1001..1020).contains(&size), "{size}");
    assert_eq!(refused.code(), "E-TELL-004");
    let JobMsg::Blob(back, _) = refused.into_message() else { panic!("another message came back") };
    assert_eq!(back.bytes, vec![7; 1001]);
    let asked = entity.ask(Blob { bytes: vec![7; 2000] }, PATIENCE).unwrap_err();
    assert!(matches!(asked, AskError::Refused(Refusal::TooLarge { .. })) && asked.ran() == Ran::No, "{asked}");
    assert_eq!(ask(&entity), 2, "nothing that was refused has arrived");
    drop(sender);
}

// failures: row 14
#[test]
fn another_number_of_shards_is_refused_with_both_and_the_node_stays_a_member() {
    let (home, _region, shared) = alone("shards", |_| {});
    let other = Cluster::builder(config("shards")).seeds([home.addr().to_string()]).start().unwrap();
    let again = shared.clone();
    let region = other.host::<Worker>(HostOptions::new().shards(17), move |_| Worker { shared: again.clone(), count: 0 }).unwrap();
    let Err(QueryError::Refused { why }) = region.wait_ready(PATIENCE) else { panic!("not refused") };
    assert!(why.contains("16") && why.contains("17") && why.contains("test.job"), "{why}");
    assert_eq!(other.wait_members(2, PATIENCE).unwrap().members.len(), 2, "the node stays a member");
    let error = region.get("a").ask(Count, Duration::from_secs(5)).unwrap_err();
    assert_eq!((&error, error.ran()), (&AskError::Dropped(DropReason::TypeRefused), Ran::No));
    // By its own number of shards it would name a wrong one.
    assert!(matches!(region.locate(&"a".to_owned(), PATIENCE), Err(QueryError::Refused { .. })));
    assert!(matches!(region.table(PATIENCE), Err(QueryError::Refused { .. })));
    // On one node the number is known at once.
    let here = shared.clone();
    let twice = home.host::<Worker>(HostOptions::new().shards(3), move |_| Worker { shared: here.clone(), count: 0 }).unwrap_err();
    assert!(matches!(twice, RegisterError::Mismatch { .. }), "{twice}");
    assert!(twice.to_string().contains('3') && twice.to_string().contains("16"), "{twice}");
}

#[test]
fn a_node_that_only_sends_takes_the_number_of_shards_from_the_cluster() {
    let sender = Cluster::builder(config("sized")).start().unwrap();
    let region = sender.proxy::<Job>().unwrap();
    let letters = sender.dead_letters();
    assert_eq!((region.shards(), region.shard_of(&"a".to_owned())), (None, None));
    // Sent before anybody hosts the type: they wait, in order, and so does who asks.
    let entity = region.get("a");
    for n in 0..5u8 {
        entity.tell(Blob { bytes: vec![n] }).unwrap();
    }
    let (tx, rx) = wingbeat::channel::bounded(1);
    entity.ask_then(Count, PATIENCE, move |answer| tx.send(answer).unwrap());
    let error = region.wait_ready(Duration::from_millis(100)).unwrap_err();
    assert_eq!(error, QueryError::Timeout);
    let home = Cluster::builder(config("sized")).seeds([sender.addr().to_string()]).start().unwrap();
    let shared = Arc::new(Shared::default());
    host(&home, &shared);
    region.wait_ready(PATIENCE).unwrap();
    assert_eq!(region.shards(), Some(16), "not the 40 of this node's own settings");
    assert_eq!(rx.recv_timeout(PATIENCE).unwrap(), Ok(6), "the ask came after all that was told before");
    assert_eq!(ask(&entity), 7);
    assert!(letters.try_recv().is_err(), "nothing was given up");
    // The number is known here now, so this node can host the type with no other one.
    let here = shared.clone();
    let other = sender.host::<Worker>(HostOptions::new().shards(17), move |_| Worker { shared: here.clone(), count: 0 }).unwrap_err();
    assert!(matches!(other, RegisterError::Mismatch { .. }), "{other}");
    let here = shared.clone();
    let both = sender.host::<Worker>(HostOptions::new(), move |_| Worker { shared: here.clone(), count: 0 }).unwrap();
    both.wait_ready(PATIENCE).unwrap();
    assert_eq!((both.shards(), both.is_proxy()), (Some(16), false));
}

// failures: row 20
#[test]
fn a_seed_without_address_is_tried_again_and_nobody_waits_for_it() {
    let mut config = config("unresolvable");
    config.cluster.seeds = vec!["no-such-host.invalid:7301".into()];
    let cluster = Cluster::builder(config).start().unwrap();
    let began = Instant::now();
    let error = cluster.wait_up(Duration::from_millis(700)).unwrap_err();
    assert_eq!(error.code(), "E-JOIN-003", "{error}");
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    assert!(cluster.view().members.iter().all(|member| member.status != wingbeat::MemberStatus::Up));
    // The node that cannot join ends as any other.
    assert!(cluster.shutdown(ShutdownReason::Requested).wait(PATIENCE).is_some());
}

// failures: row 45
#[test]
fn a_handler_that_panics_fails_its_entity_and_nobody_else() {
    let (_home, _sender, region, shared) = pair("panic", |_| {});
    let (bad, good) = (region.get("bad"), region.get("good"));
    assert_eq!((ask(&bad), ask(&bad), ask(&good)), (1, 2, 1));
    let error = bad.ask(Panic, PATIENCE).unwrap_err();
    assert_eq!((error.code(), error.ran()), ("E-ASK-007", Ran::Yes), "{error}");
    assert_eq!(ask(&good), 2);
    // What comes next starts another instance, after a back-off; its mailbox was kept.
    let told: Vec<_> = (0..3).map(|_| bad.tell(Count)).collect();
    assert!(told.iter().all(Result::is_ok));
    assert_eq!((ask(&bad), shared.starts("bad")), (4, 2));
    assert_eq!((ask(&good), shared.starts("good")), (3, 1));
}

// failures: row 45
#[test]
fn one_that_panics_among_many_that_wait_takes_nobody_along() {
    let (_cluster, region, shared) = alone("crowd", |config| config.node.workers = Workers::Count(1));
    let (bad, good) = (region.get("bad"), region.get("good"));
    assert_eq!((ask(&bad), ask(&good)), (1, 1));
    region.get("door").tell(Block).unwrap();
    shared.wait_blocked(1);
    for n in 0..200 {
        if n == 100 {
            bad.tell(Panic).unwrap();
        }
        bad.tell(Count).unwrap();
        good.tell(Count).unwrap();
    }
    shared.open();
    assert_eq!((ask(&good), shared.starts("good")), (202, 1));
    assert_eq!((ask(&bad), shared.starts("bad")), (101, 2), "one hundred came behind the panic");
}

// failures: rows 45, 48
#[test]
fn a_factory_that_panics_fails_the_messages_and_not_the_node() {
    let (cluster, region, shared) = alone("unborn", |_| {});
    let letters = cluster.dead_letters();
    let error = region.get("unborn").ask(Count, PATIENCE).unwrap_err();
    assert_eq!((&error, error.ran()), (&AskError::Dropped(DropReason::CircuitOpen), Ran::No));
    assert!(shared.starts("unborn") > 1, "it was tried again before that");
    let letter = letters.recv_timeout(PATIENCE).unwrap();
    assert_eq!((&*letter.entity_type, &*letter.key, letter.reason), ("test.job", &b"unborn"[..], DropReason::CircuitOpen));
    assert_eq!(ask(&region.get("good")), 1);
}

/// Two keys whose entities live on different workers of one node: shards are dealt out by their number.
fn on_two_workers(region: &Region<Job>) -> (String, String) {
    let keys: Vec<String> = (0..100).map(|n| format!("k{n}")).collect();
    let first = keys[0].clone();
    let parity = |key: &String| region.shard_of(key).unwrap().0 % 2;
    let second = keys.iter().find(|key| parity(key) != parity(&first)).unwrap().clone();
    (first, second)
}

// failures: row 46
#[test]
fn a_handler_that_blocks_holds_up_its_own_worker_only() {
    let (home, sender, region, shared) = pair("block", |_| {});
    let (stuck, free) = on_two_workers(&region);
    let waiting = {
        let entity = region.get(&stuck);
        thread::spawn(move || entity.ask(Block, PATIENCE))
    };
    shared.wait_blocked(1);
    for n in 1..=100 {
        assert_eq!(ask(&region.get(&free)), n);
    }
    // Longer than it takes to be found unreachable: heartbeats do not depend on workers.
    let began = Instant::now();
    until_holds("some heartbeats", || began.elapsed() > Duration::from_secs(2));
    assert!(sender.view().members.iter().all(|member| member.reachable), "{:?}", sender.view());
    shared.open();
    assert_eq!(waiting.join().unwrap(), Ok(1));
    drop(home);
}

// failures: rows 46, 47
#[test]
fn a_handler_that_does_not_return_is_named_and_its_shard_runs_nowhere_else() {
    let (home, sender, region, shared) = pair("stuck", |config| {
        config.sharding.handoff_timeout = Span::millis(700);
        config.node.workers = Workers::Count(1);
        config.admin.listen = Some("127.0.0.1:0".parse().unwrap());
    });
    let entity = region.get("stuck");
    let waiting = {
        let entity = entity.clone();
        thread::spawn(move || entity.ask(Block, PATIENCE))
    };
    shared.wait_blocked(1);
    let get = |path: &str| Client::connect(home.admin_addr().unwrap()).unwrap().get(path).unwrap();
    let shard = region.shard_of(&"stuck".to_owned()).unwrap();
    until_holds("the status names entity, type, shard and age", || {
        let warnings = get("/api/v1/status").json()["warnings"].to_string();
        warnings.contains(&format!("entity `stuck` of type `test.job`, shard {}", shard.0)) && warnings.contains(" s: ")
    });
    assert!(get("/metrics").text().contains("\nwingbeat_workers_stuck 1\n"));
    let slow_turns = || {
        let all = get("/api/v1/slow").json()["slow"].as_array().unwrap().clone();
        let ours = |turn: &Value| turn["type"] == "test.job" && turn["key"] == "stuck" && turn["shard"] == shard.0 && turn["worker"] == 0;
        all.into_iter().filter(ours).collect::<Vec<_>>()
    };
    let under_way = slow_turns();
    assert!(
        under_way.len() == 1 && under_way[0]["ended_ms_ago"].is_null() && under_way[0]["took_ms"].as_u64() >= Some(500),
        "{under_way:?}"
    );

    let again = Arc::new(Shared::default());
    let mut third = config("stuck");
    third.sharding.handoff_timeout = Span::millis(700);
    let other = Cluster::builder(third).seeds([home.addr().to_string()]).start().unwrap();
    host(&other, &again).wait_ready(PATIENCE).unwrap();
    let events = home.events();
    // The shard has to move to the other node, by itself or because it is told to, and cannot.
    until_holds("a move of the shard has begun", || match home.admin().move_shard::<Job>(shard, other.id()) {
        Ok(_) => true,
        Err(why) => why.to_string().contains("moving"),
    });
    until_holds("the move is reported as slow", || {
        events.try_iter().any(|event| matches!(event, Event::Warning { code: "slow_move", text } if text.contains("handoff_timeout")))
    });
    let moves = get("/api/v1/handoffs").json()["handoffs"].clone();
    let stuck = moves.as_array().unwrap().iter().find(|one| one["shard"] == shard.0).unwrap().clone();
    assert!(stuck["age_ms"].as_u64().is_some_and(|age| age >= 700), "{stuck}");
    // What senders send on, to where the shard is to be, is refused after the same time: no message waits for ever.
    let letters = other.dead_letters();
    until_holds("a message is refused", || {
        entity.tell(Count).unwrap();
        letters.try_iter().any(|letter| letter.reason == DropReason::HandoffTimeout)
    });
    let error = entity.ask(Count, PATIENCE).unwrap_err();
    assert_eq!((&error, error.ran()), (&AskError::Dropped(DropReason::HandoffTimeout), Ran::No));
    assert_eq!(again.starts("stuck"), 0, "never a second instance");
    shared.open();
    assert_eq!(waiting.join().unwrap(), Ok(1));
    until_holds("the shard is served again", || entity.ask(Count, Duration::from_secs(1)).is_ok());
    until_holds("nothing is stuck", || get("/api/v1/status").json()["warnings"].to_string().matches("has not come out").count() == 0);
    let page = get("/metrics").text();
    // One was held up here; a machine that stands still makes others slow.
    let slow =
        page.split("\nwingbeat_worker_slow_turns_total{worker=\"0\"} ").nth(1).and_then(|rest| rest.lines().next()?.parse::<u64>().ok());
    assert!(slow >= Some(1), "{slow:?}");
    let over = slow_turns();
    assert!(over.iter().any(|turn| turn["ended_ms_ago"].is_u64() && turn["took_ms"].as_u64() >= Some(700)), "{over:?}");
    assert!(
        page.contains("\nwingbeat_worker_turns_total{worker=\"0\"} ") && !page.contains("wingbeat_worker_turns_total{worker=\"0\"} 0\n")
    );
    drop(sender);
}

// failures: row 46
#[test]
fn a_slow_handler_is_named_where_nothing_else_happens() {
    let (node, region, shared) = alone("quiet", |config| {
        config.node.workers = Workers::Count(1);
        config.admin.listen = Some("127.0.0.1:0".parse().unwrap());
    });
    region.get("slow").tell(Block).unwrap();
    shared.wait_blocked(1);
    let began = Instant::now();
    until_holds("two seconds", || began.elapsed() > Duration::from_secs(2));
    shared.open();
    assert_eq!(ask(&region.get("slow")), 2);
    let slow = Client::connect(node.admin_addr().unwrap()).unwrap().get("/api/v1/slow").unwrap().json()["slow"].clone();
    let named = |turn: &Value| turn["key"] == "slow" && turn["ended_ms_ago"].is_u64() && turn["took_ms"].as_u64() >= Some(500);
    assert!(slow.as_array().unwrap().iter().any(named), "{slow}");
}

/// A handler does not return, and the coordinator leaves, which hosts nothing. The next one is the node of that handler, or another.
fn coordinator_leaves(name: &str, stuck_is_next: bool) {
    let first = Cluster::builder(config(name)).start().unwrap();
    let start = |shared: &Arc<Shared>| {
        let node = Cluster::builder(config(name)).seeds([first.addr().to_string()]).start().unwrap();
        let region = host(&node, shared);
        region.wait_ready(PATIENCE).unwrap();
        (node, region)
    };
    let (stuck, awake) = (Arc::new(Shared::default()), Arc::new(Shared::default()));
    let (one, two) = if stuck_is_next { (start(&stuck), start(&awake)) } else { (start(&awake), start(&stuck)) };
    let region = if stuck_is_next { &two.1 } else { &one.1 };
    for (node, _) in [&one, &two] {
        node.wait_members(3, PATIENCE).unwrap();
    }
    // Who was silent for a moment gets no shards.
    until_holds("the coordinator reaches all", || {
        let members = &first.view().members;
        members.len() == 3 && members.iter().all(|member| member.reachable)
    });
    let keys: Vec<String> = (0..4).map(|n| n.to_string()).collect();
    keys.iter().for_each(|key| assert_eq!(ask(&region.get(key.as_str())), 1));
    let blocked = region.get(keys.iter().find(|key| stuck.starts(key) > 0).unwrap().as_str());
    let waiting = {
        let entity = blocked.clone();
        thread::spawn(move || entity.ask(Block, PATIENCE))
    };
    stuck.wait_blocked(1);
    first.shutdown(ShutdownReason::Requested).wait(PATIENCE).unwrap();
    one.0.wait_members(2, PATIENCE).unwrap();

    let used: Vec<_> = keys.iter().map(|key| region.shard_of(key).unwrap()).collect();
    let fresh = (0..).map(|n| format!("new {n}")).find(|key| !used.contains(&region.shard_of(key).unwrap())).unwrap();
    let asked = Instant::now();
    assert_eq!(ask(&region.get(fresh.as_str())), 1);
    assert!(asked.elapsed() < PATIENCE / 3, "{:?}", asked.elapsed());
    assert_eq!(awake.starts(&fresh), 1, "where no worker stands still");
    assert!(!waiting.is_finished());
    (0..3).for_each(|_| blocked.tell(Cycle { left: 0 }).unwrap());
    stuck.open();
    assert_eq!(waiting.join().unwrap(), Ok(2));
    assert_eq!(ask(&blocked), 6, "nothing is lost");
    keys.iter().for_each(|key| assert_eq!(stuck.starts(key) + awake.starts(key), 1, "never a second instance"));
}

// failures: row 47
#[test]
fn a_handler_that_does_not_return_holds_up_no_new_coordinator() {
    coordinator_leaves("silent", false);
}

// failures: row 47
#[test]
fn a_coordinator_may_have_a_handler_that_does_not_return() {
    coordinator_leaves("silent-next", true);
}

// failures: row 51
#[test]
fn an_entity_that_sends_to_itself_without_end_is_refused_and_not_deadlocked() {
    let (_cluster, region, _) = alone("flood", |config| config.limits.ring_items = 64);
    let (sent, code) = region.get("a").ask(Flood { with: vec![] }, PATIENCE).unwrap();
    assert_eq!(code, "E-TELL-001");
    // The lane, and what the network thread keeps for a full worker while the route is new.
    assert!((1..=70_000).contains(&sent), "{sent}");
    until_holds("what was accepted has run", || ask(&region.get("a")) > sent);
}

// failures: row 51
#[test]
fn a_cycle_of_entities_that_multiply_messages_ends() {
    let (_cluster, region, shared) = alone("cycle", |config| config.limits.ring_items = 64);
    region.get("a").tell(Cycle { left: 14 }).unwrap();
    until_holds("sends were refused in the cycle", || shared.blocked.load(Ordering::SeqCst) > 0);
    let mut last = (0, 0);
    until_holds("the cycle has ended", || {
        let now = (ask(&region.get("a")), ask(&region.get("b")));
        let ended = now == (last.0 + 1, last.1 + 1);
        last = now;
        ended
    });
}

// failures: row 52
#[test]
fn waiting_inside_a_handler_is_an_error_at_once() {
    let (_cluster, region, _) = alone("inside", |_| {});
    let began = Instant::now();
    let codes = region.get("a").ask(AskInside, PATIENCE).unwrap();
    assert_eq!(codes, ["E-ASK-011", "E-TELL-008"]);
    assert!(began.elapsed() < Duration::from_secs(4), "it waited for {:?}", began.elapsed());
}

// failures: row 53
#[test]
fn a_reply_after_the_deadline_is_dropped() {
    for remote in [false, true] {
        let (_home, _sender, region, shared) = if remote {
            let (home, sender, region, shared) = pair("late", |_| {});
            (home, Some(sender), region, shared)
        } else {
            let (home, region, shared) = alone("late", |_| {});
            (home, None, region, shared)
        };
        let entity = region.get("a");
        assert_eq!(ask(&entity), 1);
        let error = entity.ask(Later, Duration::from_secs(2)).unwrap_err();
        assert_eq!((&error, error.ran()), (&AskError::Timeout { maybe_ran: true }, Ran::Maybe));
        until_holds("the promise is there", || !shared.owed.lock().is_empty());
        let promise = shared.owed.lock().pop().unwrap();
        // The deadline travels as what is left of it: at a distance it is a little later.
        until_holds("its deadline has passed", || promise.is_expired());
        promise.fulfil(7);
        // The next answer is not mistaken for the late one.
        assert_eq!(ask(&entity), 3);
        assert_eq!(entity.ask(Silent, PATIENCE), Err(AskError::NoReply), "no answer at all is told at once");
        let pending = {
            let entity = entity.clone();
            thread::spawn(move || entity.ask(Later, PATIENCE))
        };
        until_holds("the promise is there", || !shared.owed.lock().is_empty());
        shared.owed.lock().clear();
        assert_eq!(pending.join().unwrap(), Err(AskError::NoReply), "a promise that is dropped answers as well");
    }
}

// failures: row 54
#[test]
fn a_type_that_nobody_hosts_is_a_typed_error() {
    let (_home, sender, _region, _) = pair("nobody", |_| {});
    let others = sender.proxy::<Other>().unwrap();
    let letters = sender.dead_letters();
    // A host may be about to start: the ask waits for one, and its asker hears in time that there was none.
    // In time by a tenth of a second at most, which is little on a busy machine.
    let mut answers = (0..5).map(|_| others.get("a").ask(Poke, Duration::from_secs(2)).unwrap_err());
    let error = answers.find(|error| !matches!(error, AskError::Timeout { .. })).unwrap();
    assert_eq!((&error, error.ran()), (&AskError::Dropped(DropReason::NoHost), Ran::No));
    until_holds("it is a dead letter", || letters.try_iter().any(|letter| letter.reason == DropReason::NoHost));
}

#[test]
fn what_was_sent_on_a_node_has_arrived_when_that_has_left() {
    for _ in 0..5 {
        let (home, sender, region, _shared) = pair("leaver", |_| {});
        let here = home.proxy::<Job>().unwrap();
        for n in 0..20 {
            for key in 0..50 {
                region.get(format!("small-{key}")).tell(Cycle { left: 0 }).unwrap();
            }
            // They leave in parts, and what comes behind them goes past them.
            region.get(format!("large-{}", n % 4)).tell(Blob { bytes: vec![0; 400_000] }).unwrap();
        }
        sender.shutdown(ShutdownReason::Requested).wait(PATIENCE).unwrap();
        let handled = |key: String| ask(&here.get(key)) - 1;
        assert_eq!((0..50).map(|key| handled(format!("small-{key}"))).sum::<u64>(), 1000);
        assert_eq!((0..4).map(|key| handled(format!("large-{key}"))).sum::<u64>(), 20);
    }
}

// failures: row 55
#[test]
fn calls_after_the_end_are_typed_errors_and_ending_twice_is_ending_once() {
    let (cluster, region, shared) = alone("ended", |_| {});
    let entity = region.get("a");
    assert_eq!(ask(&entity), 1);
    let handle = cluster.shutdown(ShutdownReason::Requested);
    let again = cluster.shutdown(ShutdownReason::Signal(15));
    let report = handle.wait(PATIENCE).unwrap();
    assert_eq!(again.wait(PATIENCE).unwrap(), report);
    assert_eq!(report.reason, ShutdownReason::Requested, "the first reason counts");
    assert_eq!(report.overran, vec![]);
    let refused = entity.tell(Count).unwrap_err();
    assert_eq!(*refused.reason(), Refusal::Shutdown);
    assert!(matches!(refused.into_message(), JobMsg::Count(..)), "the message comes back");
    assert_eq!(entity.ask(Count, PATIENCE), Err(AskError::Refused(Refusal::Shutdown)));
    let (tx, rx) = wingbeat::channel::bounded(1);
    entity.ask_then(Count, PATIENCE, move |answer| tx.send(answer).unwrap());
    assert_eq!(rx.recv_timeout(PATIENCE).unwrap(), Err(AskError::Refused(Refusal::Shutdown)));
    assert_eq!(cluster.proxy::<Other>().unwrap_err().code(), "E-REG-005");
    assert_eq!(cluster.wait_up(Duration::from_secs(5)).unwrap_err().code(), "E-JOIN-004");
    assert_eq!(region.wait_ready(Duration::ZERO), Err(QueryError::Shutdown), "nobody can be asked here any more");
    let began = Instant::now();
    assert_eq!(cluster.admin().leave(cluster.id()), Err(ActError::Shutdown));
    assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
    let kept = Arc::new(());
    let mine = kept.clone();
    region.on_room(&"a".to_owned(), move || drop(mine));
    until_holds("the callback has run, or was dropped", || Arc::strong_count(&kept) == 1);
    drop(shared);
}

// failures: row 55
#[test]
fn dropping_the_last_handle_ends_the_node_without_waiting_for_it() {
    let (cluster, region, _) = alone("dropped", |_| {});
    let clone = cluster.clone();
    drop(cluster);
    let entity = region.get("a");
    assert_eq!(ask(&entity), 1, "a clone keeps the node alive");
    let port: u16 = clone.addr().port;
    let began = Instant::now();
    drop(clone);
    assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
    until_holds("sends are refused", || entity.tell(Count).is_err_and(|refused| *refused.reason() == Refusal::Shutdown));
    until_holds("the port is free", || std::net::TcpListener::bind(("127.0.0.1", port)).is_ok());
}

// failures: row 55
#[test]
fn a_type_may_be_hosted_before_the_node_is_up_and_only_once() {
    let cluster = Cluster::builder(config("early")).start().unwrap();
    let shared = Arc::new(Shared::default());
    let region = host(&cluster, &shared);
    // Sent before a home can be known: it waits.
    assert_eq!(ask(&region.get("a")), 1);
    let here = shared.clone();
    let twice = cluster.host::<Worker>(HostOptions::new().shards(16), move |_| Worker { shared: here.clone(), count: 0 }).unwrap_err();
    assert_eq!(twice.code(), "E-REG-001", "{twice}");
    assert!(twice.to_string().contains("test.job"), "{twice}");
    assert_eq!(ask(&region.get("a")), 2);
    let none = cluster.host::<Worker>(HostOptions::new().shards(0), |_| unreachable!()).unwrap_err();
    assert_eq!(none.code(), "E-REG-004", "{none}");
}

// failures: row 56
#[test]
fn a_key_that_cannot_travel_is_refused_with_its_size_and_the_limit() {
    let (_home, _sender, region, _) = pair("keys", |_| {});
    for (key, size) in [(String::new(), "empty"), ("k".repeat(256), "256"), ("k".repeat(10 << 20), "10485760")] {
        let entity = region.get(&key);
        let refused = entity.tell(Count).unwrap_err();
        assert_eq!(refused.code(), "E-TELL-005");
        let text = refused.to_string();
        assert!(text.contains(size) && text.contains("255") && text.len() < 200, "{text}");
        assert!(matches!(entity.ask(Count, PATIENCE), Err(AskError::Refused(Refusal::BadKey { .. }))));
    }
    // Everything else is a key like any other, wherever it lives.
    let hostile = ["\0", "\u{1b}[31m\n", "../../etc/passwd", "a b", "ключ", "%00", &"é".repeat(127), &"k".repeat(255)];
    for key in hostile {
        assert_eq!(ask(&region.get(key)), 1, "{key:?}");
    }
    for key in hostile {
        assert_eq!(ask(&region.get(key)), 2, "{key:?}");
    }
}

// failures: row 57
#[test]
fn a_flood_of_dead_letters_is_counted_and_its_readers_are_bounded() {
    let (cluster, region, shared) = alone("letters", |config| {
        config.limits.mailbox = 10;
        config.limits.ring_items = 1 << 14;
    });
    let letters = cluster.dead_letters();
    let entity = region.get("a");
    assert_eq!(ask(&entity), 1);
    // While the worker blocks, the lane fills; what does not fit into the mailbox behind it is given up.
    let waiting = {
        let entity = entity.clone();
        thread::spawn(move || entity.ask(Block, PATIENCE))
    };
    shared.wait_blocked(1);
    let mut accepted = 0;
    while accepted < 5000 {
        match entity.tell_within(Count, Duration::from_secs(1)) {
            Ok(()) => accepted += 1,
            Err(refused) => panic!("{refused}"),
        }
    }
    shared.open();
    assert_eq!(waiting.join().unwrap(), Ok(2));
    let handled = ask(&entity) - 1;
    let mut dead = 0;
    while let Ok(letter) = letters.recv_timeout(Duration::from_millis(200)) {
        assert_eq!((&*letter.key, letter.reason), (&b"a"[..], DropReason::MailboxFull));
        dead += 1;
    }
    assert!(dead <= 1024, "{dead} letters waited for one reader");
    assert!(handled <= 2 + accepted, "{handled}");
}

// failures: row 51
#[test]
fn a_full_queue_gives_the_message_back_and_takes_it_later() {
    let (_cluster, region, shared) = alone("full", |config| config.limits.ring_items = 64);
    let entity = region.get("a");
    assert_eq!(ask(&entity), 1);
    let waiting = {
        let entity = entity.clone();
        thread::spawn(move || entity.ask(Block, PATIENCE))
    };
    shared.wait_blocked(1);
    let mut accepted = 0;
    let mut refused = loop {
        match entity.tell(Blob { bytes: accepted.to_string().into_bytes() }) {
            Ok(()) => accepted += 1,
            Err(refused) => break refused,
        }
        assert!(accepted < 1000, "the queue has no end");
    };
    assert_eq!(*refused.reason(), Refusal::Full);
    refused = entity.tell_within(refused.into_message(), Duration::from_millis(50)).unwrap_err();
    let message = refused.into_message();
    let JobMsg::Blob(blob, _) = &message else { panic!("another message came back") };
    assert_eq!(blob.bytes, accepted.to_string().into_bytes());
    shared.open();
    entity.tell_within(message, PATIENCE).unwrap();
    assert_eq!(waiting.join().unwrap(), Ok(2));
    // An ask does not wait for room either.
    let mut handled = Err(AskError::Refused(Refusal::Full));
    until_holds("there is room for an ask", || {
        handled = entity.ask(Count, PATIENCE);
        handled != Err(AskError::Refused(Refusal::Full))
    });
    assert_eq!(handled, Ok(accepted + 4), "all that was accepted has run, and what came back once");
}

// failures: row 66
#[test]
fn port_0_is_one_number_for_both_protocols_and_free_again_at_once() {
    let (cluster, _region, _) = alone("port", |_| {});
    let addr = ("127.0.0.1", cluster.addr().port);
    assert_ne!(addr.1, 0);
    assert!(std::net::TcpListener::bind(addr).is_err() && std::net::UdpSocket::bind(addr).is_err());
    assert!(cluster.shutdown(ShutdownReason::Requested).wait(PATIENCE).is_some());
    let mut config = config("port");
    config.node.listen = format!("127.0.0.1:{}", addr.1).parse().unwrap();
    let again = Cluster::builder(config.clone()).start().unwrap();
    let taken = Cluster::builder(config).start().unwrap_err();
    assert!(taken.to_string().contains("TCP") && taken.to_string().contains(&addr.1.to_string()), "{taken}");
    drop(again);
}

// failures: row 68
#[test]
fn a_message_without_a_key_comes_back() {
    struct Line(&'static str);
    impl Addressed<Job> for Line {
        fn address(self) -> Result<(String, JobMsg), JobMsg> {
            match self.0.split_once(':') {
                Some((key, _)) => Ok((key.to_owned(), Count.into_msg())),
                None => Err(Count.into_msg()),
            }
        }
    }
    let (_cluster, region, _) = alone("unaddressed", |_| {});
    region.deliver(Line("a:1")).unwrap();
    let refused = region.deliver(Line("no key")).unwrap_err();
    assert_eq!((refused.reason(), refused.code()), (&Refusal::Unaddressed, "E-TELL-006"));
    assert!(matches!(refused.into_message(), JobMsg::Count(..)));
    assert_eq!(ask(&region.get("a")), 2);
}

messages! { pub enum SpotMsg for Spot(u64) = "test.spot" { Touch } }

struct Still;

impl Entity for Still {
    type Type = Spot;

    fn handle(&mut self, _: SpotMsg, _: &mut Cx<'_, Self>) {}
}

#[test]
fn a_key_in_a_url_is_what_its_type_reads_there() {
    let mut config = config("typed-keys");
    config.admin.listen = Some("127.0.0.1:0".parse().unwrap());
    let cluster = Cluster::builder(config).start().unwrap();
    let spots = cluster.host::<Still>(HostOptions::new().shards(100), |_| Still).unwrap();
    spots.wait_ready(PATIENCE).unwrap();
    let locate = |key: &str| {
        Client::connect(cluster.admin_addr().unwrap()).unwrap().get(&format!("/api/v1/shards/test.spot/locate?key={key}")).unwrap()
    };
    for key in [0, 42, u64::MAX] {
        spots.get(key).tell(Touch).unwrap();
        until_holds("it has a home there", || locate(&key.to_string()).json()["state"] == "active");
        assert_eq!(locate(&key.to_string()).json()["shard"], spots.shard_of(&key).unwrap().0, "{key}");
    }
    assert!(locate("k1").problem(400, "E-HTTP-013").contains("`k1` is no key of this type"));
}
