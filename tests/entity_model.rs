//! What an entity can do for itself: ask, forward, timers, stash, idle times, watches; and what its failures come to.
#![cfg(feature = "cli")]
#![allow(missing_docs, clippy::unwrap_used)]

mod support;

use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::AtomicU32, atomic::Ordering},
    time::Duration,
};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use support::{PATIENCE, until_holds};
use wingbeat::{
    AskError, Cluster, Config, Cx, Directive, DropReason, Entity, EntityId, EntityRef, Failure, HandedOver, Handoff, HostOptions, NodeId,
    PanicInfo, Passivation, Ran, Region, ShutdownReason, StopReason,
    config::{Preset, Workers},
    messages, wire,
};

#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
pub struct Log(pub Vec<String>);
wire!(Log = "test.log");

messages! {
    pub enum ActorMsg for Actor(String) = "test.actor" {
        Note { text: String },
        GetLog -> Log,
        /// Asks another one for its log and notes what came of it.
        AskOther { other: EntityId<Actor>, what: Question, millis: u64 },
        Answered { result: Result<Log, AskError> },
        /// Another one answers.
        Forward { to: EntityId<Actor> } -> Log,
        Silent -> Log,
        Never -> Log,
        Timer { key: u64, millis: u64, again: bool, text: String },
        Cancel { key: u64 },
        Load,
        Loaded,
        Idle { millis: u64 },
        WatchNode { node: NodeId },
        Bad { how: Failing } -> Log,
        Watch { other: EntityId<Actor> },
        Unwatch { other: EntityId<Actor> },
        Leave,
    }
}

#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq)]
pub enum Question {
    Log,
    Silent,
    Never,
    Bad,
}

#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq)]
pub enum Failing {
    Panic,
    GiveUp,
    /// Succeeds when it is tried for the third time.
    Twice,
    /// Fails behind having put the message aside.
    Aside,
    /// Fails once, behind having put another one aside.
    Other,
}

messages! { pub enum StubbornMsg for Stubborn(String) = "test.stubborn" { Touch -> u64 } }
messages! { pub enum HostileMsg for Hostile(String) = "test.\u{1b}[31m\nhostile" { Poke } }

/// Refuses to be handed over as long as it is told to.
struct StubbornState {
    refuses: Arc<AtomicU32>,
    touched: u64,
}

impl Entity for StubbornState {
    type Type = Stubborn;

    fn handle(&mut self, StubbornMsg::Touch(_, reply): StubbornMsg, cx: &mut Cx<'_, Self>) {
        self.touched += 1;
        cx.reply(reply, self.touched);
    }

    fn handoff(&mut self, cx: &mut Cx<'_, Self>) -> Result<Handoff, Failure> {
        match self.refuses.load(Ordering::SeqCst) {
            0 => cx.hand_over(&self.touched),
            1 => Err(Failure::new("not now")),
            _ => panic!("not even an error"),
        }
    }

    fn adopted(&mut self, state: HandedOver<'_>, _: &mut Cx<'_, Self>) -> Result<(), Failure> {
        self.touched = state.decode()?;
        Ok(())
    }
}

#[derive(Default)]
struct Shared {
    /// Starts and stops, by key.
    life: Mutex<BTreeMap<String, Vec<String>>>,
    tries: AtomicU32,
    directive: Mutex<Option<Directive>>,
    panics: Mutex<Vec<(PanicInfo, u32)>>,
    owed: Mutex<Vec<wingbeat::Promise<Log>>>,
}

thread_local! {
    static SHARED: std::cell::RefCell<Option<Arc<Shared>>> = const { std::cell::RefCell::new(None) };
}

struct Player {
    shared: Arc<Shared>,
    log: Vec<String>,
    loading: bool,
}

impl Player {
    fn live(&self, cx: &Cx<'_, Self>, what: String) {
        self.shared.life.lock().entry(cx.id().clone()).or_default().push(what);
    }
}

impl Entity for Player {
    type Type = Actor;

    fn started(&mut self, cx: &mut Cx<'_, Self>) {
        SHARED.set(Some(self.shared.clone()));
        self.live(cx, format!("{:?}", cx.cause()));
    }

    fn stopped(&mut self, why: StopReason, cx: &mut Cx<'_, Self>) {
        self.live(cx, format!("{why}"));
    }

    fn handoff(&mut self, cx: &mut Cx<'_, Self>) -> Result<Handoff, Failure> {
        cx.hand_over(&Log(self.log.clone()))
    }

    fn adopted(&mut self, state: HandedOver<'_>, _: &mut Cx<'_, Self>) -> Result<(), Failure> {
        self.log = state.decode::<Log>()?.0;
        Ok(())
    }

    fn supervise(panic: &PanicInfo, restarts: u32) -> Directive {
        let shared = SHARED.with_borrow(|shared| shared.clone()).unwrap();
        shared.panics.lock().push((panic.clone(), restarts));
        shared.directive.lock().unwrap_or(Directive::Restart)
    }

    fn handle(&mut self, msg: ActorMsg, cx: &mut Cx<'_, Self>) {
        if self.loading && !matches!(msg, ActorMsg::Loaded(_)) {
            return cx.stash(msg);
        }
        match msg {
            ActorMsg::Note(note) => self.log.push(note.text),
            ActorMsg::GetLog(_, reply) => cx.reply(reply, Log(self.log.clone())),
            ActorMsg::AskOther(AskOther { other, what, millis }) => {
                let other = cx.resolve(&other).unwrap();
                let (limit, then) = (Duration::from_millis(millis), |result| Answered { result });
                match what {
                    Question::Log => cx.ask(&other, GetLog, limit, then),
                    Question::Silent => cx.ask(&other, Silent, limit, then),
                    Question::Never => cx.ask(&other, Never, limit, then),
                    Question::Bad => cx.ask(&other, Bad { how: Failing::Panic }, limit, then),
                }
            }
            ActorMsg::Answered(Answered { result }) => self.log.push(match result {
                Ok(log) => format!("got {}", log.0.join(",")),
                Err(error) => error.code().to_owned(),
            }),
            ActorMsg::Forward(Forward { to }, reply) => cx.forward(reply, &cx.resolve(&to).unwrap(), GetLog),
            ActorMsg::Silent(_, _reply) => {}
            ActorMsg::Never(_, reply) => self.shared.owed.lock().push(cx.defer(reply)),
            ActorMsg::Timer(Timer { key, millis, again, text }) => match again {
                true => cx.timer_every(key, Duration::from_millis(millis), Note { text }),
                false => cx.timer_once(key, Duration::from_millis(millis), Note { text }),
            },
            ActorMsg::Cancel(Cancel { key }) => cx.timer_cancel(key),
            ActorMsg::Load(_) => self.loading = true,
            ActorMsg::Loaded(_) => {
                self.loading = false;
                cx.unstash();
            }
            ActorMsg::Idle(Idle { millis }) => cx.idle_timeout(Some(Duration::from_millis(millis))),
            ActorMsg::WatchNode(WatchNode { node }) => cx.watch_node(node, Note { text: "gone".into() }),
            ActorMsg::Watch(Watch { other }) => {
                let text = format!("{other} ended");
                cx.watch(&cx.resolve(&other).unwrap(), Note { text });
            }
            ActorMsg::Unwatch(Unwatch { other }) => cx.unwatch(&cx.resolve(&other).unwrap()),
            ActorMsg::Leave(_) => cx.passivate(),
            ActorMsg::Bad(Bad { how }, reply) => match how {
                Failing::Panic => panic!("on purpose"),
                Failing::Aside => {
                    cx.stash(ActorMsg::Bad(Bad { how }, reply));
                    panic!("put aside");
                }
                Failing::Other if self.shared.tries.fetch_add(1, Ordering::SeqCst) == 0 => {
                    cx.stash(ActorMsg::Note(Note { text: "other".into() }));
                    panic!("put another one aside");
                }
                Failing::Other => cx.reply(reply, Log(vec!["at last".into()])),
                Failing::GiveUp => cx.fail(Failure::new("on purpose")),
                Failing::Twice if self.shared.tries.fetch_add(1, Ordering::SeqCst) < 2 => panic!("try again"),
                Failing::Twice => cx.reply(reply, Log(vec!["at last".into()])),
            },
        }
    }
}

fn config(name: &str) -> Config {
    let mut config = Config::preset(Preset::LocalTest);
    config.cluster.name = format!("{name}-{}", std::process::id());
    config.node.listen = "127.0.0.1:0".parse().unwrap();
    config.node.workers = Workers::Count(2);
    config
}

fn host(cluster: &Cluster, shared: &Arc<Shared>, options: HostOptions<Player>) -> Region<Actor> {
    let shared = shared.clone();
    let region =
        cluster.host::<Player>(options.shards(16), move |_| Player { shared: shared.clone(), log: vec![], loading: false }).unwrap();
    region.wait_ready(PATIENCE).unwrap();
    region
}

fn alone(name: &str, options: HostOptions<Player>) -> (Cluster, Region<Actor>, Arc<Shared>) {
    let shared = Arc::new(Shared::default());
    let cluster = Cluster::builder(config(name)).start().unwrap();
    let region = host(&cluster, &shared, options);
    (cluster, region, shared)
}

fn log(entity: &EntityRef<Actor>) -> Vec<String> {
    entity.ask(GetLog, PATIENCE).unwrap().0
}

fn note(entity: &EntityRef<Actor>, text: &str) {
    entity.tell(Note { text: text.into() }).unwrap();
}

fn life(shared: &Shared, key: &str) -> Vec<String> {
    shared.life.lock().get(key).cloned().unwrap_or_default()
}

#[test]
fn an_ask_from_inside_comes_back_as_a_message() {
    let (_cluster, region, shared) = alone("inside", HostOptions::new());
    let (a, b, never) = (region.get("a"), region.get("b"), region.get("never"));
    note(&b, "hello");
    for what in [Question::Log, Question::Silent, Question::Bad] {
        a.tell(AskOther { other: b.id(), what, millis: 10_000 }).unwrap();
    }
    // Of an entity that has not failed, and with time for it to be asked on a busy machine.
    a.tell(AskOther { other: never.id(), what: Question::Never, millis: 2_000 }).unwrap();
    let expected = ["E-ASK-003", "E-ASK-006", "E-ASK-007", "got hello"];
    until_holds("all four answers have come", || {
        let mut seen = log(&a);
        seen.sort();
        seen == expected
    });
    // To itself, and to a key that cannot be: both are answered in turns of their own.
    a.tell(AskOther { other: a.id(), what: Question::Silent, millis: 10_000 }).unwrap();
    a.tell(AskOther { other: EntityId::new(""), what: Question::Log, millis: 10_000 }).unwrap();
    until_holds("both have come", || log(&a).len() == 6);
    assert!(log(&a).contains(&"E-ASK-001".to_owned()));
    assert_eq!(std::mem::take(&mut *shared.owed.lock()).len(), 1, "it was asked");
    assert_eq!(log(&a).len(), 6, "what comes after the deadline is dropped");
}

#[test]
fn a_forwarded_request_is_answered_by_the_other_entity() {
    let (home, region, shared) = alone("forward", HostOptions::new());
    let other = Cluster::builder(config("forward")).seeds([home.addr().to_string()]).start().unwrap();
    let there = host(&other, &shared, HostOptions::new());
    home.wait_members(2, PATIENCE).unwrap();
    for n in 0..20 {
        let (a, b) = (region.get(format!("a{n}")), there.get(format!("b{n}")));
        note(&b, &format!("I am b{n}"));
        assert_eq!(log(&b).len(), 1, "it has arrived before another sender asks");
        assert_eq!(a.ask(Forward { to: b.id() }, PATIENCE), Ok(Log(vec![format!("I am b{n}")])));
    }
    // Where the one that forwards lives.
    let letters = [&home, &other].map(Cluster::dead_letters);
    let refused = region.get("a").ask(Forward { to: EntityId::new("") }, PATIENCE).unwrap_err();
    assert_eq!((refused.code(), refused.ran()), ("E-ASK-002", Ran::No), "{refused}");
    let mut found = None;
    until_holds("a dead letter, as nobody else would hear of one that was told", || {
        found = letters.iter().find_map(|letters| letters.try_recv().ok());
        found.is_some()
    });
    let letter = found.expect("just seen");
    assert_eq!((&*letter.entity_type, letter.reason), ("test.actor", wingbeat::DropReason::Unaddressed));
}

/// Its own coordinator had a term like the one there, with another owner.
#[test]
fn a_node_that_is_alone_joins_another_cluster_if_nothing_runs_on_it() {
    for _ in 0..4 {
        let (home, region, _) = alone("join", HostOptions::new());
        let (other, there, _) = alone("join", HostOptions::new());
        other.admin().join(&[home.addr().clone()]).unwrap();
        home.wait_members(2, PATIENCE).unwrap();
        other.wait_members(2, PATIENCE).unwrap();
        there.wait_ready(PATIENCE).unwrap();
        for n in 0..8 {
            let key = format!("a{n}");
            note(&there.get(key.clone()), "from there");
            until_holds("the note is here", || log(&region.get(key.clone())) == ["from there"]);
        }
        let (late, runs, _) = alone("join", HostOptions::new());
        note(&runs.get("b"), "runs");
        assert_eq!(log(&runs.get("b")), ["runs"]);
        let refused = late.admin().join(&[home.addr().clone()]).unwrap_err();
        assert!(refused.to_string().contains("have homes already"), "{refused}");
        assert_eq!(log(&runs.get("b")), ["runs"], "and nothing has changed");
    }
}

#[test]
fn timers_come_as_messages_until_they_are_cancelled() {
    let (_cluster, region, _) = alone("timers", HostOptions::new());
    let a = region.get("a");
    a.tell(Timer { key: 1, millis: 20, again: false, text: "once".into() }).unwrap();
    a.tell(Timer { key: 2, millis: 5, again: true, text: "tick".into() }).unwrap();
    a.tell(Timer { key: 3, millis: 1_000, again: false, text: "never".into() }).unwrap();
    a.tell(Cancel { key: 3 }).unwrap();
    let count = |what: &str| log(&a).iter().filter(|text| *text == what).count();
    until_holds("the first timers have fired", || count("once") == 1 && count("tick") >= 3);
    a.tell(Cancel { key: 2 }).unwrap();
    let ticks = count("tick");
    a.tell(Timer { key: 4, millis: 1_000, again: false, text: "later".into() }).unwrap();
    until_holds("another one has fired", || count("later") == 1);
    assert_eq!((count("tick"), count("once"), count("never")), (ticks, 1, 0));
}

#[test]
fn what_is_stashed_is_handled_in_order_after_loading_and_its_askers_are_answered() {
    let (_cluster, region, _) = alone("stash", HostOptions::new());
    let a = region.get("a");
    a.tell(Load).unwrap();
    let (tx, rx) = wingbeat::channel::bounded(1);
    (0..50).for_each(|n| note(&a, &n.to_string()));
    a.ask_then(GetLog, PATIENCE, move |answer| tx.send(answer).unwrap());
    (50..60).for_each(|n| note(&a, &n.to_string()));
    assert!(rx.try_recv().is_err());
    a.tell(Loaded).unwrap();
    let numbers = |n: u32| (0..n).map(|n| n.to_string()).collect::<Vec<_>>();
    assert_eq!(rx.recv_timeout(PATIENCE).unwrap(), Ok(Log(numbers(50))));
    assert_eq!(log(&a), numbers(60));
}

#[test]
fn more_than_the_stash_holds_is_a_dead_letter_and_its_asker_is_told() {
    let mut config = config("stash-full");
    config.limits.mailbox = 8;
    let shared = Arc::new(Shared::default());
    let cluster = Cluster::builder(config).start().unwrap();
    let a = host(&cluster, &shared, HostOptions::new()).get("a");
    let letters = cluster.dead_letters();
    a.tell(Load).unwrap();
    (0..8).for_each(|n| note(&a, &n.to_string()));
    let error = a.ask(GetLog, PATIENCE).unwrap_err();
    assert_eq!((&error, error.ran()), (&AskError::Dropped(DropReason::StashFull), Ran::No));
    assert_eq!(letters.recv_timeout(PATIENCE).unwrap().reason, DropReason::StashFull);
    a.tell(Loaded).unwrap();
    assert_eq!(log(&a).len(), 8);
}

#[test]
fn the_stash_holds_what_the_host_says_that_a_mailbox_does() {
    let (cluster, region, _) = alone("stash-host", HostOptions::new().mailbox(3));
    let (a, letters) = (region.get("a"), cluster.dead_letters());
    a.tell(Load).unwrap();
    (0..5).for_each(|n| note(&a, &n.to_string()));
    a.tell(Loaded).unwrap();
    assert_eq!(log(&a), ["0", "1", "2"]);
    assert!((0..2).all(|_| letters.recv_timeout(PATIENCE).unwrap().reason == DropReason::StashFull));
}

#[test]
fn idle_entities_leave_memory_and_come_back_with_the_next_message() {
    let options = HostOptions::new().passivation(Passivation::idle(Duration::from_millis(200)));
    let (_cluster, region, shared) = alone("idle", options);
    let (a, b, c) = (region.get("a"), region.get("b"), region.get("c"));
    note(&a, "x");
    b.tell(Timer { key: 1, millis: 20, again: true, text: "tick".into() }).unwrap();
    c.tell(Idle { millis: 60_000 }).unwrap();
    note(&c, "x");
    until_holds("two are gone", || ["a", "b"].iter().all(|key| life(&shared, key).last().is_some_and(|last| last == "passivated")));
    assert_eq!(life(&shared, "c"), ["FirstMessage"], "it has chosen a longer time");
    assert_eq!(log(&a), [""; 0], "another instance, which knows nothing of the first");
    assert_eq!(life(&shared, "a")[..3], ["FirstMessage", "passivated", "FirstMessage"]);
    assert_eq!(log(&c), ["x"]);
}

#[test]
fn an_entity_hears_that_a_node_was_removed() {
    let (home, region, shared) = alone("watch-node", HostOptions::new());
    let other = Cluster::builder(config("watch-node")).seeds([home.addr().to_string()]).start().unwrap();
    host(&other, &shared, HostOptions::new());
    home.wait_members(2, PATIENCE).unwrap();
    let entities: Vec<_> = (0..20).map(|n| region.get(format!("e{n}"))).collect();
    for entity in &entities {
        entity.tell(WatchNode { node: other.id() }).unwrap();
        entity.tell(WatchNode { node: NodeId::from_raw(7) }).unwrap();
        until_holds("a node that nobody knows is gone", || log(entity) == ["gone"]);
    }
    // Some of them live there and move back first, with their watches.
    assert!(other.shutdown(ShutdownReason::Requested).wait(PATIENCE).is_some());
    for entity in &entities {
        until_holds("it has heard", || log(entity) == ["gone", "gone"]);
    }
}

#[test]
fn an_entity_hears_once_that_another_one_has_ended() {
    let (_cluster, region, _) = alone("watch", HostOptions::new());
    let (watcher, other) = (region.get("watcher"), region.get("other"));
    let watch = || watcher.tell(Watch { other: other.id() }).unwrap();
    watch();
    until_holds("one that is not live has ended", || log(&watcher).len() == 1);
    note(&other, "x");
    assert_eq!(log(&other), ["x"]);
    // Twice is once.
    watch();
    watch();
    assert_eq!(log(&watcher).len(), 1);
    note(&other, "y");
    assert_eq!((log(&other).len(), log(&watcher).len()), (2, 1));
    other.tell(Leave).unwrap();
    until_holds("it has left", || log(&watcher).len() == 2);
    assert_eq!(log(&other), [""; 0]);
    watch();
    assert_eq!(log(&watcher).len(), 2);
    assert_eq!(other.ask(Bad { how: Failing::Panic }, PATIENCE), Err(AskError::EntityFailed));
    until_holds("it has failed", || log(&watcher).len() == 3);
    assert_eq!(log(&other), [""; 0]);
    watch();
    assert_eq!(log(&watcher).len(), 3);
    watcher.tell(Unwatch { other: other.id() }).unwrap();
    assert_eq!(log(&watcher).len(), 3);
    other.tell(Leave).unwrap();
    assert_eq!(log(&other), [""; 0]);
    // A watch of one that cannot be, and one that ends with the watcher.
    watcher.tell(Watch { other: EntityId::new("") }).unwrap();
    until_holds("what cannot be has ended", || log(&watcher).len() == 4);
    watch();
    watcher.tell(Leave).unwrap();
    assert_eq!(log(&watcher), [""; 0]);
    other.tell(Leave).unwrap();
    assert_eq!((log(&other), log(&watcher)), (vec![], vec![]));
}

#[test]
fn watches_go_along_when_shards_move_and_end_with_a_dead_node() {
    let (home, region, shared) = alone("watch-moves", HostOptions::new());
    let pairs: Vec<_> = (0..16).map(|n| (region.get(format!("watcher{n}")), region.get(format!("other{n}")))).collect();
    for (watcher, other) in &pairs {
        note(other, "x");
        assert_eq!(log(other), ["x"]);
        watcher.tell(Watch { other: other.id() }).unwrap();
        assert_eq!(log(watcher), [""; 0]);
    }
    // Half of the shards move there: some with watchers, some with those that are watched.
    let there = Arc::new(Shared::default());
    let second = Cluster::builder(config("watch-moves")).seeds([home.addr().to_string()]).start().unwrap();
    host(&second, &there, HostOptions::new());
    home.wait_members(2, PATIENCE).unwrap();
    until_holds("shards have moved", || there.life.lock().len() >= 8);
    let lives_there = |key: &str| life(&there, key).last().is_some_and(|last| last == "Moved" || last == "FirstMessage");
    for (watcher, other) in &pairs[..8] {
        assert_eq!((log(watcher), log(other)), (vec![], vec!["x".to_owned()]), "a move is no end");
        other.tell(Leave).unwrap();
        until_holds("it has heard", || log(watcher).len() == 1);
    }
    // The rest: those that are watched over there end with their node.
    let rest = &pairs[8..];
    let settled = || rest.iter().all(|(_, other)| log(other) == ["x"]);
    assert!(settled());
    let doomed: Vec<bool> = rest.iter().map(|(_, other)| lives_there(other.key())).collect();
    let survives: Vec<bool> = rest.iter().map(|(watcher, _)| !lives_there(watcher.key())).collect();
    home.admin().down(second.id()).unwrap();
    for (((watcher, _), doomed), survives) in rest.iter().zip(doomed).zip(survives) {
        if doomed && survives {
            until_holds("it has heard of the dead node", || watcher.ask(GetLog, PATIENCE).is_ok_and(|log| log.0.len() == 1));
        }
    }
    drop((second, shared));
}

#[test]
fn timers_stash_and_open_asks_survive_a_move() {
    let (home, region, shared) = alone("travel", HostOptions::new());
    let (a, never) = (region.get("a"), region.get("never"));
    a.tell(Timer { key: 1, millis: 10, again: true, text: "tick".into() }).unwrap();
    until_holds("it ticks", || !log(&a).is_empty());
    a.tell(AskOther { other: never.id(), what: Question::Never, millis: 600_000 }).unwrap();
    until_holds("it has asked", || shared.owed.lock().len() == 1);
    a.tell(Load).unwrap();
    note(&a, "aside");
    let there = Arc::new(Shared::default());
    let other = Cluster::builder(config("travel")).seeds([home.addr().to_string()]).start().unwrap();
    host(&other, &there, HostOptions::new());
    home.wait_members(2, PATIENCE).unwrap();
    let shard = region.shard_of(&"a".to_owned()).unwrap();
    until_holds("it has moved", || {
        // Refused while it moves by itself, and once it is there.
        let _ = home.admin().move_shard::<Actor>(shard, other.id());
        !life(&there, "a").is_empty()
    });
    let moved = log(&a);
    let at = |text: &str| moved.iter().position(|line| line == text);
    assert!(at("aside").is_some(), "what was put aside is handled there: {moved:?}");
    assert!(at("E-ASK-005").is_some(), "the open ask has ended with the move: {moved:?}");
    until_holds("it ticks there", || log(&a).len() > moved.len() + 2);
    assert_eq!(life(&shared, "a").last().unwrap(), "moved");
    shared.owed.lock().clear();
    assert_eq!(log(&a).iter().filter(|line| line.starts_with("E-ASK")).count(), 1, "an ask has one answer");
}

// failures: row 50
#[test]
fn an_entity_that_cannot_be_handed_over_stays_where_it_is_with_its_state() {
    let refuses = Arc::new(AtomicU32::new(1));
    let node = |seed: Option<&Cluster>| {
        let seeds = seed.map(|first| first.addr().to_string());
        let cluster = Cluster::builder(config("stubborn")).seeds(seeds).start().unwrap();
        let refuses = refuses.clone();
        let make = move |_: &String| StubbornState { refuses: refuses.clone(), touched: 0 };
        let region = cluster.host::<StubbornState>(HostOptions::new().shards(1), make).unwrap();
        region.wait_ready(PATIENCE).unwrap();
        (cluster, region)
    };
    let (home, region) = node(None);
    let entity = region.get("a");
    assert_eq!(entity.ask(Touch, PATIENCE), Ok(1));
    let (other, _) = node(Some(&home));
    home.wait_members(2, PATIENCE).unwrap();
    let mut touched = 1;
    for how in [1, 2] {
        refuses.store(how, Ordering::SeqCst);
        for _ in 0..10 {
            let _ = home.admin().move_shard::<Stubborn>(wingbeat::ShardId(0), other.id());
            touched += 1;
            assert_eq!(entity.ask(Touch, PATIENCE), Ok(touched), "it works on, and has lost nothing");
        }
    }
    refuses.store(0, Ordering::SeqCst);
    until_holds("it moves when it lets itself be moved", || {
        touched += 1;
        assert_eq!(entity.ask(Touch, PATIENCE), Ok(touched));
        home.admin().move_shard::<Stubborn>(wingbeat::ShardId(0), other.id()).is_err_and(|why| !why.to_string().contains("moving"))
    });
}

// failures: row 8
#[test]
fn a_type_with_a_hostile_name_is_refused_and_its_name_escaped() {
    let cluster = Cluster::builder(config("hostile")).start().unwrap();
    let refused = cluster.proxy::<Hostile>().unwrap_err();
    let text = refused.to_string();
    assert!(text.contains("\\u{1b}[31m\\n") && !text.contains('\u{1b}') && !text.contains('\n'), "{text}");
    assert_eq!(refused.code(), "E-REG-004");
}

// failures: row 45
#[test]
fn a_panic_is_reported_with_message_and_place_and_the_directive_is_followed() {
    let (cluster, region, shared) = alone("supervise", HostOptions::new());
    let letters = cluster.dead_letters();
    let a = region.get("a");
    note(&a, "x");
    assert_eq!(a.ask(Bad { how: Failing::Panic }, PATIENCE), Err(AskError::EntityFailed));
    let letter = letters.recv_timeout(PATIENCE).unwrap();
    assert_eq!((&*letter.key, letter.reason), (&b"a"[..], DropReason::Poison));
    // Behind both.
    until_holds("its host is asked what comes next", || !shared.panics.lock().is_empty());
    let panics = std::mem::take(&mut *shared.panics.lock());
    let (panic, restarts) = &panics[0];
    assert_eq!((panics.len(), panic.message.as_str(), panic.handling, *restarts), (1, "on purpose", "Bad", 0));
    assert!(panic.location.contains("entity_model.rs:"), "{}", panic.location);
    assert_eq!(log(&a), [""; 0]);
    // Given up by itself: nobody is asked.
    assert_eq!(a.ask(Bad { how: Failing::GiveUp }, PATIENCE), Err(AskError::NoReply));
    assert_eq!((log(&a), shared.panics.lock().len()), (vec![], 0));
    assert_eq!(life(&shared, "a"), ["FirstMessage", "failed", "Restarted", "failed", "Restarted"]);
    // Stopped: the next message starts another one at once, without a back-off.
    let long = Duration::from_secs(600);
    let (_other, stopping, stopped) = alone("stops", HostOptions::new().backoff(long, long));
    *stopped.directive.lock() = Some(Directive::Stop);
    let stops = stopping.get("a");
    assert_eq!(stops.ask(Bad { how: Failing::Panic }, PATIENCE), Err(AskError::EntityFailed));
    assert_eq!(log(&stops), [""; 0]);
    assert_eq!(life(&stopped, "a").last().unwrap(), "FirstMessage");
    // Escalated: the whole shard ends, and only that.
    let shard = |key: &String| region.shard_of(key).unwrap();
    let keys: Vec<String> = (0..200).map(|n| n.to_string()).collect();
    let same = keys.iter().find(|key| shard(key) == shard(&"a".to_owned())).unwrap();
    let far = keys.iter().find(|key| shard(key) != shard(&"a".to_owned())).unwrap();
    note(&region.get(same), "x");
    note(&region.get(far), "x");
    *shared.directive.lock() = Some(Directive::Escalate);
    assert_eq!((log(&region.get(same)), log(&region.get(far))), (vec!["x".to_owned()], vec!["x".to_owned()]));
    assert_eq!(a.ask(Bad { how: Failing::Panic }, PATIENCE), Err(AskError::EntityFailed));
    assert_eq!((log(&region.get(same)), log(&region.get(far))), (vec![], vec!["x".to_owned()]));
    assert_eq!(life(&shared, same), ["FirstMessage", "failed", "FirstMessage"]);
}

/// It is the message that the turn failed on, wherever that has put it.
#[test]
fn a_message_that_is_put_aside_before_a_panic_is_tried_as_often_as_another() {
    for attempts in [1, 3] {
        let (cluster, region, shared) = alone("aside", HostOptions::new().attempts(attempts));
        let letters = cluster.dead_letters();
        let a = region.get("a");
        let failed = a.ask(Bad { how: Failing::Aside }, PATIENCE).unwrap_err();
        assert_eq!(failed.code(), "E-ASK-007", "{failed}");
        assert_eq!(letters.recv_timeout(PATIENCE).unwrap().reason, wingbeat::DropReason::Poison);
        assert!(log(&a).is_empty(), "the next instance has nothing of it");
        assert_eq!((shared.panics.lock().len(), letters.try_recv().is_err()), (attempts as usize, true));
    }
}

#[test]
fn what_was_put_aside_beside_a_message_that_is_tried_again_is_not_lost() {
    let (_cluster, region, _) = alone("other", HostOptions::new().attempts(2));
    let a = region.get("a");
    assert_eq!(a.ask(Bad { how: Failing::Other }, PATIENCE), Ok(Log(vec!["at last".into()])));
    until_holds("it comes back as its instance ends", || log(&a) == ["other"]);
}

// failures: row 49
#[test]
fn a_poison_message_is_tried_as_often_as_the_host_says_and_then_a_dead_letter_with_its_bytes() {
    let (cluster, region, shared) = alone("poison", HostOptions::new().attempts(3));
    let letters = cluster.dead_letters();
    let a = region.get("a");
    assert_eq!(a.ask(Bad { how: Failing::Twice }, PATIENCE), Ok(Log(vec!["at last".into()])), "its asker has waited");
    assert_eq!(life(&shared, "a"), ["FirstMessage", "failed", "Restarted", "failed", "Restarted"]);
    let failing = a.ask(Bad { how: Failing::Panic }, PATIENCE).unwrap_err();
    assert_eq!((&failing, failing.ran()), (&AskError::EntityFailed, Ran::Yes));
    let letter = letters.recv_timeout(PATIENCE).unwrap();
    assert_eq!(letter.reason, DropReason::Poison);
    // Number of the message, then its fields.
    assert_eq!(letter.bytes.as_deref(), Some(&[13, 0, 0][..]));
    assert_eq!(shared.panics.lock().iter().map(|(_, restarts)| *restarts).collect::<Vec<_>>(), [0, 1, 0, 1, 2]);
    note(&a, "next");
    assert_eq!(log(&a), ["next"]);
    assert!(letters.try_recv().is_err());
}

#[test]
fn a_host_without_the_role_only_sends() {
    let shared = Arc::new(Shared::default());
    let home = Cluster::builder(config("role")).roles(["stage"]).start().unwrap();
    let region = host(&home, &shared, HostOptions::new().on_role("stage"));
    let other = Cluster::builder(config("role")).seeds([home.addr().to_string()]).start().unwrap();
    let there = Arc::new(Shared::default());
    let proxy = host(&other, &there, HostOptions::new().on_role("stage"));
    assert_eq!((region.is_proxy(), proxy.is_proxy()), (false, true));
    (0..40).for_each(|n| note(&proxy.get(n.to_string()), "x"));
    assert!((0..40).all(|n| log(&proxy.get(n.to_string())) == ["x"]));
    assert!(there.life.lock().is_empty());
}
