//! Entities that misbehave, messages that do not fit and calls at the wrong time, in virtual time: what `entities.rs` does on sockets.
#![allow(missing_docs, clippy::unwrap_used)]

use std::{cell::RefCell, collections::BTreeMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use wingbeat::{
    AskError, Cluster, Config, Cx, DropReason, Entity, EntityRef, HostOptions, Promise, QueryError, Ran, Refusal, RegisterError, config,
    messages,
    testkit::{World, WorldBuilder},
};

messages! {
    pub enum JobMsg for Job(String) = "test.job" {
        Count -> u64,
        Panic -> u64,
        Blob { bytes: Vec<u8> } -> u64,
        Flood -> (u64, String),
        Fill { left: u64 },
        AskInside -> String,
        Silent -> u64,
        Later -> u64,
    }
}

const SECOND: Duration = Duration::from_secs(1);
const LONG: Duration = Duration::from_secs(30);

/// What all entities of a test have in common.
#[derive(Default)]
struct Shared {
    starts: Mutex<BTreeMap<String, u32>>,
    owed: Mutex<Vec<Promise<u64>>>,
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
            JobMsg::Blob(blob, reply) => cx.reply(reply, blob.bytes.len() as u64),
            JobMsg::Flood(Flood, reply) => {
                let this = cx.this();
                let mut sent = 0;
                let refused = loop {
                    match this.tell(Fill { left: 0 }) {
                        Ok(()) => sent += 1,
                        Err(refused) => break refused,
                    }
                };
                cx.reply(reply, (sent, refused.code().to_owned()));
            }
            JobMsg::Fill(_) => {}
            JobMsg::AskInside(AskInside, reply) => {
                let error = cx.this().ask(Count, SECOND).unwrap_err();
                cx.reply(reply, error.code().to_owned());
            }
            JobMsg::Silent(Silent, _reply) => {}
            JobMsg::Later(Later, reply) => self.shared.owed.lock().push(cx.defer(reply)),
        }
    }
}

fn host(node: &Cluster, shared: &Arc<Shared>, shards: u32) -> Result<(), RegisterError> {
    let shared = shared.clone();
    let options = HostOptions::<Worker>::new().shards(shards);
    let region = node.host(options, move |key| {
        *shared.starts.lock().entry(key.clone()).or_default() += 1;
        assert!(!key.starts_with("unborn"), "no entity of this key on purpose");
        Worker { shared: shared.clone(), count: 0 }
    });
    region.map(drop)
}

/// The first node hosts, the others only send.
fn world(nodes: usize, change: impl Fn(WorldBuilder) -> WorldBuilder) -> (World, Arc<Shared>) {
    let shared = Arc::new(Shared::default());
    let (theirs, first) = (shared.clone(), RefCell::new(true));
    let builder = World::simulated(nodes).seed(7).on_each(move |node| match first.replace(false) {
        true => host(node, &theirs, 16),
        false => node.proxy::<Job>().map(drop),
    });
    let world = change(builder).start();
    for i in 0..nodes {
        world.node(i).region::<Job>().unwrap().wait_ready(LONG).unwrap();
    }
    (world, shared)
}

fn count(entity: &EntityRef<Job>) -> u64 {
    entity.ask(Count, LONG).unwrap()
}

// failures: row 4
#[test]
fn a_message_above_the_limit_comes_back_at_the_call() {
    let mut config = Config::preset(config::Preset::LocalTest);
    config.limits.message_bytes = 1000;
    let (world, _) = world(2, |builder| builder.config(config.clone()));
    let entity = world.entity::<Job>(1, "a");
    assert_eq!(entity.ask(Blob { bytes: vec![7; 900] }, SECOND), Ok(900));
    let refused = entity.tell(Blob { bytes: vec![7; 1001] }).unwrap_err();
    assert!(matches!(refused.reason(), Refusal::TooLarge { max: 1000, .. }), "{refused}");
    let JobMsg::Blob(back, _) = refused.into_message() else { panic!("another message came back") };
    assert_eq!(back.bytes.len(), 1001);
    assert_eq!(count(&entity), 2, "nothing that was refused has arrived");
}

// failures: row 14
#[test]
fn another_number_of_shards_is_refused_with_both() {
    let (world, shared) = world(1, |builder| builder);
    let other = World::simulated(2).seed(1).start();
    host(&other.node(0), &shared, 16).unwrap();
    other.node(0).region::<Job>().unwrap().wait_ready(LONG).unwrap();
    host(&other.node(1), &shared, 17).unwrap();
    let Err(QueryError::Refused { why }) = other.node(1).region::<Job>().unwrap().wait_ready(LONG) else { panic!("not refused") };
    assert!(why.contains("16") && why.contains("17") && why.contains("test.job"), "{why}");
    let twice = host(&world.node(0), &shared, 3).unwrap_err();
    assert!(matches!(twice, RegisterError::Mismatch { .. }), "{twice}");
}

// failures: row 45
#[test]
fn a_handler_that_panics_fails_its_entity_and_nobody_else() {
    let (world, shared) = world(2, |builder| builder);
    let (bad, good) = (world.entity::<Job>(1, "bad"), world.entity::<Job>(1, "good"));
    assert_eq!((count(&bad), count(&bad), count(&good)), (1, 2, 1));
    let error = bad.ask(Panic, SECOND).unwrap_err();
    assert_eq!((error.code(), error.ran()), ("E-ASK-007", Ran::Yes), "{error}");
    assert_eq!(count(&good), 2);
    (0..3).for_each(|_| bad.tell(Count).unwrap());
    let began = world.now();
    assert_eq!((count(&bad), shared.starts.lock()["bad"]), (4, 2), "its mailbox was kept");
    assert!(world.now().since(began) > Duration::from_millis(10), "the back-off takes virtual time");
    assert_eq!((count(&good), shared.starts.lock()["good"]), (3, 1));
}

// failures: row 45
#[test]
fn a_factory_that_panics_fails_the_messages_and_not_the_node() {
    let (world, shared) = world(1, |builder| builder);
    let letters = world.node(0).dead_letters();
    let error = world.entity::<Job>(0, "unborn").ask(Count, Duration::from_secs(300)).unwrap_err();
    assert_eq!((&error, error.ran()), (&AskError::Dropped(DropReason::CircuitOpen), Ran::No));
    assert!(shared.starts.lock()["unborn"] > 1, "it was tried again before that");
    let letter = letters.try_recv().unwrap();
    assert_eq!((&*letter.key, letter.reason), (&b"unborn"[..], DropReason::CircuitOpen));
    assert_eq!(count(&world.entity::<Job>(0, "good")), 1);
}

// failures: rows 49, 50
#[test]
fn a_handler_that_forgets_to_answer_or_waits_is_told_at_once() {
    let (world, _) = world(2, |builder| builder);
    for via in 0..2 {
        let entity = world.entity::<Job>(via, "a");
        let began = world.now();
        assert_eq!(entity.ask(Silent, SECOND), Err(AskError::NoReply));
        assert_eq!(entity.ask(AskInside, SECOND), Ok(AskError::WouldDeadlock.code().to_owned()));
        assert!(world.now().since(began) < SECOND / 10, "no deadline was waited for");
    }
}

// failures: row 51
#[test]
fn an_entity_that_floods_itself_gets_its_messages_back() {
    let (world, _) = world(1, |builder| builder);
    let entity = world.entity::<Job>(0, "a");
    let (sent, code) = entity.ask(Flood, SECOND).unwrap();
    assert!(sent > 0, "{sent}");
    assert_eq!(code, Refusal::Full.code());
    // The entity and the test are two senders: there is no order between their messages.
    world.run_for(SECOND);
    assert_eq!(count(&entity), sent + 2, "what was taken has arrived");
}

#[test]
fn a_promise_is_kept_later_and_a_dropped_one_answers_too() {
    let (world, shared) = world(2, |builder| builder);
    let entity = world.entity::<Job>(1, "a");
    let (tx, rx) = wingbeat::channel::bounded(2);
    for _ in 0..2 {
        let tx = tx.clone();
        entity.ask_then(Later, LONG, move |answer| tx.send(answer).unwrap());
    }
    world.eventually(SECOND, || shared.owed.lock().len() == 2);
    assert!(rx.is_empty());
    let mut owed = std::mem::take(&mut *shared.owed.lock()).into_iter();
    owed.next().unwrap().fulfil(42);
    drop(owed);
    world.eventually(SECOND, || rx.len() == 2);
    let answers: Vec<_> = rx.try_iter().collect();
    assert_eq!(answers, [Ok(42), Err(AskError::NoReply)]);
}

#[test]
fn what_is_sent_before_anybody_hosts_the_type_waits_for_its_host() {
    let world = World::simulated(2).seed(3).start();
    let region = world.node(1).proxy::<Job>().unwrap();
    (0..5u8).for_each(|n| region.get("a").tell(Blob { bytes: vec![n] }).unwrap());
    assert_eq!(region.wait_ready(SECOND), Err(QueryError::Timeout));
    host(&world.node(0), &Arc::default(), 16).unwrap();
    region.wait_ready(LONG).unwrap();
    assert_eq!(region.shards(), Some(16));
    assert_eq!(count(&region.get("a")), 6, "the ask came after all that was told before");
}
