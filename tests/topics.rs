//! What reaches many: topics, broadcasts, singletons, and who hears that a node is gone.
#![cfg(feature = "cli")]
#![allow(missing_docs, clippy::unwrap_used)]

mod support;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::{Condvar, Mutex};
use support::{PATIENCE, until_holds};
use wingbeat::{
    AskError, Cluster, Config, Cx, Entity, HostOptions, NodeId, Nodes, Refusal, Region, ShutdownReason, Singleton, StopReason, Topic,
    config::{Preset, Workers},
    messages, wire,
};

/// Whether who holds its worker goes on.
static GATE: (Mutex<bool>, Condvar) = (Mutex::new(false), Condvar::new());

messages! {
    pub enum ReaderMsg for Reader(String) = "test.reader" {
        News { text: String },
        Listen,
        Ignore,
        Leave,
        Hold,
        Seen -> Vec<String>,
    }
}
wire!(News = "test.news");

messages! { pub enum CounterMsg for TheCounter(Singleton) = "test.the_counter" { Next -> u64 } }

struct ReaderState {
    topic: Topic<News>,
    seen: Vec<String>,
    live: Arc<AtomicU32>,
}

impl Entity for ReaderState {
    type Type = Reader;

    fn started(&mut self, _: &mut Cx<'_, Self>) {
        self.live.fetch_add(1, Ordering::SeqCst);
    }

    fn stopped(&mut self, _: StopReason, _: &mut Cx<'_, Self>) {
        self.live.fetch_sub(1, Ordering::SeqCst);
    }

    fn handle(&mut self, msg: ReaderMsg, cx: &mut Cx<'_, Self>) {
        match msg {
            ReaderMsg::News(news) => self.seen.push(news.text),
            ReaderMsg::Listen(_) => cx.subscribe(&self.topic),
            ReaderMsg::Ignore(_) => cx.unsubscribe(&self.topic),
            ReaderMsg::Leave(_) => cx.passivate(),
            ReaderMsg::Hold(_) => GATE.1.wait_while(&mut GATE.0.lock(), |open| !*open),
            ReaderMsg::Seen(_, reply) => cx.reply(reply, self.seen.clone()),
        }
    }
}

struct CounterState {
    last: u64,
}

impl Entity for CounterState {
    type Type = TheCounter;

    fn handle(&mut self, CounterMsg::Next(_, reply): CounterMsg, cx: &mut Cx<'_, Self>) {
        self.last += 1;
        cx.reply(reply, self.last);
    }

    fn handoff(&mut self, cx: &mut Cx<'_, Self>) -> Result<wingbeat::Handoff, wingbeat::Failure> {
        cx.hand_over(&self.last)
    }

    fn adopted(&mut self, state: wingbeat::HandedOver<'_>, _: &mut Cx<'_, Self>) -> Result<(), wingbeat::Failure> {
        self.last = state.decode()?;
        Ok(())
    }
}

struct Node {
    cluster: Cluster,
    readers: Region<Reader>,
    live: Arc<AtomicU32>,
}

fn start(name: &str, n: usize) -> Vec<Node> {
    start_with(name, n, |_| ())
}

fn start_with(name: &str, n: usize, set: impl Fn(&mut Config)) -> Vec<Node> {
    let mut nodes: Vec<Node> = vec![];
    for i in 0..n {
        let mut config = Config::preset(Preset::LocalTest);
        config.cluster.name = format!("{name}-{}", std::process::id());
        config.node.listen = "127.0.0.1:0".parse().unwrap();
        config.node.workers = Workers::Count(2);
        set(&mut config);
        let seeds = nodes.first().map(|first| first.cluster.addr().to_string());
        let cluster = Cluster::builder(config).seeds(seeds).roles([format!("r{i}")]).start().unwrap();
        let (topic, live) = (cluster.topic::<News>("news"), Arc::new(AtomicU32::new(0)));
        let mine = live.clone();
        let make = move |_: &String| ReaderState { topic: topic.clone(), seen: vec![], live: mine.clone() };
        let readers = cluster.host::<ReaderState>(HostOptions::new().shards(16), make).unwrap();
        readers.wait_ready(PATIENCE).unwrap();
        nodes.push(Node { cluster, readers, live });
    }
    nodes.iter().for_each(|node| drop(node.cluster.wait_members(n, PATIENCE).unwrap()));
    nodes
}

fn news(text: &str) -> News {
    News { text: text.into() }
}

fn seen(region: &Region<Reader>, key: &str) -> Vec<String> {
    region.get(key).ask(Seen, PATIENCE).unwrap()
}

#[test]
fn a_published_value_reaches_subscribers_of_all_kinds_on_all_nodes() {
    let nodes = start("topic", 3);
    let channels: Vec<_> = nodes.iter().map(|node| node.cluster.topic::<News>("news").subscribe(100)).collect();
    let called = Arc::new(AtomicU64::new(0));
    let subscriptions: Vec<_> = nodes
        .iter()
        .map(|node| {
            let called = called.clone();
            node.cluster.topic::<News>("news").on(move |_| _ = called.fetch_add(1, Ordering::SeqCst))
        })
        .collect();
    let keys: Vec<String> = (0..12).map(|n| format!("reader{n}")).collect();
    for key in &keys {
        nodes[0].readers.get(key).tell(Listen).unwrap();
        assert_eq!(seen(&nodes[0].readers, key), [""; 0]);
    }
    let topic = nodes[1].cluster.topic::<News>("news");
    assert_eq!(topic.name(), "news");
    for n in 0..10 {
        topic.publish(&news(&n.to_string())).unwrap();
    }
    let all: Vec<String> = (0..10).map(|n| n.to_string()).collect();
    // Here at once, elsewhere soon, and once.
    assert_eq!(channels[1].try_iter().map(|news| news.text).collect::<Vec<_>>(), all);
    for channel in [&channels[0], &channels[2]] {
        let got: Vec<String> = (0..10).map(|_| channel.recv_timeout(PATIENCE).unwrap().text).collect();
        assert_eq!(got, all);
    }
    for key in &keys {
        until_holds("each entity has all", || seen(&nodes[0].readers, key).len() == 10);
        assert_eq!(seen(&nodes[2].readers, key), all, "{key}");
    }
    until_holds("each callback has run", || called.load(Ordering::SeqCst) == 30);
    // Who has had enough gets no more, and other topics are others.
    nodes[0].readers.get(&keys[0]).tell(Ignore).unwrap();
    nodes[0].readers.get(&keys[1]).tell(Leave).unwrap();
    drop(subscriptions);
    assert_eq!(seen(&nodes[0].readers, &keys[0]).len(), 10);
    nodes[1].cluster.topic::<News>("other").publish(&news("other")).unwrap();
    nodes[1].cluster.topic::<String>("news").publish(&"other".to_owned()).unwrap();
    topic.publish(&news("last")).unwrap();
    for channel in &channels {
        assert_eq!(channel.recv_timeout(PATIENCE).unwrap().text, "last");
    }
    until_holds("the others have it", || keys[2..].iter().all(|key| seen(&nodes[0].readers, key).len() == 11));
    assert_eq!((seen(&nodes[0].readers, &keys[0]).len(), seen(&nodes[0].readers, &keys[1])), (10, vec![]));
    assert_eq!(called.load(Ordering::SeqCst), 30);
    assert!(channels.iter().all(|channel| channel.try_recv().is_err()));
    assert_eq!(topic.dropped(), 0);
}

#[test]
fn a_slow_subscriber_misses_values_which_are_counted_and_holds_up_nobody() {
    let nodes = start("slow", 1);
    let topic = nodes[0].cluster.topic::<News>("news");
    let (slow, fast) = (topic.subscribe(3), topic.subscribe(1000));
    for n in 0..100 {
        topic.publish(&news(&n.to_string())).unwrap();
    }
    assert_eq!((slow.len(), fast.len(), topic.dropped()), (3, 100, 97));
    drop(slow);
    topic.publish(&news("x")).unwrap();
    assert_eq!(topic.dropped(), 97, "who is gone misses nothing");
}

#[test]
fn what_a_worker_has_no_room_for_is_counted_for_each_of_its_subscribers() {
    let nodes = start_with("workers", 1, |config| (config.node.workers, config.limits.ring_items) = (Workers::Count(1), 64));
    let (topic, readers) = (nodes[0].cluster.topic::<News>("news"), &nodes[0].readers);
    for key in ["a", "b", "c"] {
        readers.get(key).tell(Listen).unwrap();
        assert_eq!(seen(readers, key), [""; 0]);
    }
    readers.get("busy").tell(Hold).unwrap();
    for n in 0..300 {
        // The ring of the network thread is as short.
        while topic.publish(&news(&n.to_string())) == Err(Refusal::Full) {
            std::thread::yield_now();
        }
    }
    *GATE.0.lock() = true;
    GATE.1.notify_all();
    // Its ring is full until it goes on.
    while readers.get("busy").ask(Seen, PATIENCE) == Err(AskError::Refused(Refusal::Full)) {
        std::thread::yield_now();
    }
    let got: usize = ["a", "b", "c"].iter().map(|key| seen(readers, key).len()).sum();
    assert_eq!(got as u64 + topic.dropped(), 900);
    assert!(topic.dropped() >= 3, "the ring was full");
}

#[test]
fn streams_end_when_the_node_has_stopped() {
    let nodes = start("ends", 1);
    let (topic, readers) = (nodes[0].cluster.topic::<News>("news"), nodes[0].readers.clone());
    let (values, events, letters) = (topic.subscribe(10), nodes[0].cluster.events(), nodes[0].cluster.dead_letters());
    topic.publish(&news("last")).unwrap();
    assert!(nodes[0].cluster.shutdown(ShutdownReason::Requested).wait(PATIENCE).is_some());
    drop(nodes);
    assert_eq!(values.iter().map(|news| news.text).collect::<Vec<_>>(), ["last"]);
    assert!(events.iter().count() > 0, "the end comes behind what was seen");
    assert_eq!((letters.iter().count(), topic.subscribe(1).iter().count()), (0, 0));
    readers.events().iter().for_each(drop);
}

// failures: rows 4, 55
#[test]
fn what_cannot_be_published_is_refused_with_the_reason() {
    let nodes = start("refused", 1);
    let topic = nodes[0].cluster.topic::<News>("news");
    let values = topic.subscribe(10);
    let max = nodes[0].cluster.config().limits.message_bytes as usize;
    let refused = topic.publish(&news(&"x".repeat(max + 1))).unwrap_err();
    assert!(matches!(refused, Refusal::TooLarge { size, max: limit } if size > max && limit == max), "{refused}");
    let back = nodes[0].readers.broadcast(Nodes::All, news(&"x".repeat(max + 1))).unwrap_err();
    assert_eq!(back.code(), "E-TELL-004");
    assert!(nodes[0].cluster.shutdown(ShutdownReason::Requested).wait(PATIENCE).is_some());
    assert_eq!(topic.publish(&news("late")), Err(Refusal::Shutdown));
    assert_eq!(*nodes[0].readers.broadcast(Nodes::Here, news("late")).unwrap_err().reason(), Refusal::Shutdown);
    assert!(values.try_recv().is_err(), "nobody got it");
}

#[test]
fn a_broadcast_reaches_every_live_entity_of_the_nodes_meant_and_starts_none() {
    let nodes = start("broadcast", 3);
    let keys: Vec<String> = (0..40).map(|n| format!("reader{n}")).collect();
    keys.iter().for_each(|key| assert_eq!(seen(&nodes[0].readers, key), [""; 0]));
    let live = || nodes.iter().map(|node| node.live.load(Ordering::SeqCst)).collect::<Vec<_>>();
    until_holds("nothing moves any more", || {
        let before = live();
        keys.iter().for_each(|key| drop(seen(&nodes[0].readers, key)));
        before == live() && before.iter().all(|n| *n > 0)
    });
    let count = |text: &str| keys.iter().filter(|key| seen(&nodes[1].readers, key).iter().any(|line| line == text)).count() as u32;
    nodes[1].readers.broadcast(Nodes::All, news("all")).unwrap();
    until_holds("all have it", || count("all") == 40);
    for (to, text) in [(Nodes::Here, "here"), (Nodes::Role("r2".into()), "role"), (Nodes::Only(vec![nodes[0].cluster.id()]), "only")] {
        nodes[1].readers.broadcast(to, news(text)).unwrap();
    }
    until_holds("those meant have it", || (count("here"), count("role"), count("only")) == (live()[1], live()[2], live()[0]));
    assert_eq!(live().iter().sum::<u32>(), 40, "nobody was started");
    assert!(keys.iter().all(|key| seen(&nodes[0].readers, key).len() == 2), "each once");
}

#[test]
fn a_singleton_is_one_wherever_it_is_asked() {
    let nodes = start("singleton", 3);
    let made = Arc::new(AtomicU32::new(0));
    for node in &nodes[..2] {
        let made = made.clone();
        let make = move || {
            made.fetch_add(1, Ordering::SeqCst);
            CounterState { last: 0 }
        };
        node.cluster.singleton::<CounterState>(HostOptions::new(), make).unwrap();
    }
    let counter = nodes[2].cluster.only::<TheCounter>().unwrap();
    for n in 1..=9 {
        let from = nodes[n % 3].cluster.only::<TheCounter>().unwrap();
        assert_eq!(from.ask(Next, PATIENCE), Ok(n as u64));
    }
    assert_eq!(made.load(Ordering::SeqCst), 1);
    // It moves with its state when its node leaves.
    let (first, second) = (nodes[0].cluster.clone(), nodes[1].cluster.clone());
    let home = if second.region::<TheCounter>().is_some() && has(&second) { second } else { first };
    assert!(home.shutdown(ShutdownReason::Requested).wait(PATIENCE).is_some());
    until_holds("it counts on", || counter.ask(Next, Duration::from_secs(5)).is_ok_and(|n| n >= 10));
    assert_eq!(made.load(Ordering::SeqCst), 2);
}

/// Whether the singleton lives there: its only shard does.
fn has(cluster: &Cluster) -> bool {
    let moved = cluster.admin().move_shard::<TheCounter>(wingbeat::ShardId(0), cluster.id());
    // Told to move to where it is.
    moved.is_err()
}

#[test]
fn a_watcher_hears_once_that_a_node_was_removed() {
    let nodes = start("watch", 2);
    let (tx, rx) = wingbeat::channel::bounded(10);
    let other = nodes[1].cluster.id();
    let send = |tx: &wingbeat::channel::Sender<NodeId>| {
        let tx = tx.clone();
        move |node| tx.send(node).unwrap()
    };
    let watching = nodes[0].cluster.watch_node(other, send(&tx));
    let ended = nodes[0].cluster.watch_node(other, send(&tx));
    drop(ended);
    let _unknown = nodes[0].cluster.watch_node(NodeId::from_raw(3), send(&tx));
    assert_eq!(rx.recv_timeout(PATIENCE), Ok(NodeId::from_raw(3)), "nobody knows it, so it is gone");
    assert!(rx.try_recv().is_err());
    assert!(nodes[1].cluster.shutdown(ShutdownReason::Requested).wait(PATIENCE).is_some());
    assert_eq!(rx.recv_timeout(PATIENCE), Ok(other));
    assert!(rx.recv_timeout(Duration::from_millis(100)).is_err(), "once, and not for the one that was dropped");
    drop(watching);
}
