//! Worlds of the test kit: several nodes in one process, simulated and real.
#![allow(missing_docs, clippy::unwrap_used)]

use std::{
    cell::RefCell,
    panic::AssertUnwindSafe,
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use wingbeat::{
    AskError, Cluster, Config, Cx, Entity, Failure, HandedOver, Handoff, HostOptions, MemberStatus, Promise, Ran, Refusal, RegisterError,
    ShutdownReason,
    config::Preset,
    messages,
    testkit::{Probe, World, WorldBuilder},
};

messages! {
    pub enum HitsMsg for Hits(String) = "test.hits" { Add { n: u64 } -> u64, Total -> u64, Note { n: u64 } }
}
messages! {
    pub enum LogMsg for Log(u64) = "test.log" { Line { text: String }, Silent -> u64 }
}

const SECOND: Duration = Duration::from_secs(1);
const LONG: Duration = Duration::from_secs(30);

struct Count(u64);

impl Entity for Count {
    type Type = Hits;

    fn handle(&mut self, msg: HitsMsg, cx: &mut Cx<'_, Self>) {
        match msg {
            HitsMsg::Add(Add { n }, reply) => {
                self.0 += n;
                cx.reply(reply, self.0);
            }
            HitsMsg::Total(Total, reply) => cx.reply(reply, self.0),
            HitsMsg::Note(Note { n }) => self.0 += n,
        }
    }

    fn handoff(&mut self, cx: &mut Cx<'_, Self>) -> Result<Handoff, Failure> {
        cx.hand_over(&self.0)
    }

    fn adopted(&mut self, state: HandedOver<'_>, _: &mut Cx<'_, Self>) -> Result<(), Failure> {
        self.0 = state.decode()?;
        Ok(())
    }
}

fn hits(node: &Cluster) -> Result<(), RegisterError> {
    node.host::<Count>(HostOptions::new().shards(16), |_| Count(0)).map(drop)
}

fn three() -> WorldBuilder {
    World::simulated(3).seed(1).on_each(hits)
}

/// A key whose entity lives on that node.
fn key_on(world: &World, node: usize) -> String {
    let via = (0..world.len()).find(|i| *i != node).unwrap_or(node);
    let keys = (0..1000).map(|n| format!("k{n}"));
    let mut found = keys.filter(|key| {
        world.entity::<Hits>(via, key.as_str()).ask(Total, LONG).unwrap();
        world.owner_of::<Hits>(key.as_str()) == node
    });
    found.next().unwrap()
}

fn up(world: &World, seen_by: usize) -> usize {
    world.node(seen_by).view().members.iter().filter(|member| member.status == MemberStatus::Up).count()
}

// ---- the same body on both kinds of world -----------------------------------------------------------------------------------

/// State moves with a node that leaves, and dies with one that is killed; asks say which.
fn a_leave_keeps_state_and_a_death_loses_it(world: World) {
    let key = key_on(&world, 2);
    let entity = world.entity::<Hits>(0, key.as_str());
    assert_eq!(entity.ask(Add { n: 5 }, LONG), Ok(5));
    let report = world.node(2).shutdown(ShutdownReason::Requested).wait(LONG).unwrap();
    assert_eq!((report.reason, report.overran), (ShutdownReason::Requested, vec![]));
    assert_eq!(entity.ask(Add { n: 1 }, LONG), Ok(6), "its state came along");
    let owner = world.owner_of::<Hits>(key.as_str());
    assert_ne!(owner, 2);
    let witness = world.entity::<Hits>(1 - owner, key.as_str());
    world.kill(owner);
    world.restart(2);
    world.eventually(LONG, || up(&world, 1 - owner) == 2);
    world.eventually(LONG, || witness.ask(Total, SECOND) == Ok(0));
    assert_ne!(world.owner_of::<Hits>(key.as_str()), owner);
}

#[test]
fn a_leave_keeps_state_and_a_death_loses_it_in_virtual_time() {
    a_leave_keeps_state_and_a_death_loses_it(World::simulated(3).on_each(hits).start());
}

#[test]
fn a_leave_keeps_state_and_a_death_loses_it_on_sockets() {
    a_leave_keeps_state_and_a_death_loses_it(World::real(3).on_each(hits).start());
}

/// The smaller side of a split stops; the larger one goes on with what was there, and a new life of the other joins it.
fn a_cut_costs_the_smaller_side_its_entities(world: World) {
    let key = key_on(&world, 2);
    let inside = world.entity::<Hits>(2, key.as_str());
    assert_eq!(inside.ask(Add { n: 5 }, LONG), Ok(5));
    let lonely = world.node(2);
    world.cut(&[&[2]]);
    let outside = world.entity::<Hits>(0, key.as_str());
    assert!(outside.ask(Total, SECOND).is_err(), "its home is out of reach, and nobody else may run it yet");
    world.eventually(LONG, || outside.ask(Total, SECOND) == Ok(0));
    world.eventually(LONG, || lonely.shutdown(ShutdownReason::Requested).wait(SECOND).is_some());
    let report = lonely.shutdown(ShutdownReason::Requested).wait(SECOND).unwrap();
    assert!(matches!(report.reason, ShutdownReason::Downed(_)), "{report:?}");
    assert_eq!(inside.tell(Note { n: 1 }).unwrap_err().reason(), &Refusal::Shutdown);
    world.heal();
    world.restart(2);
    world.eventually(LONG, || (0..3).all(|i| up(&world, i) == 3));
    assert_eq!(world.entity::<Hits>(2, key.as_str()).ask(Add { n: 1 }, LONG), Ok(1));
}

#[test]
fn a_cut_costs_the_smaller_side_its_entities_in_virtual_time() {
    a_cut_costs_the_smaller_side_its_entities(three().start());
}

#[test]
fn a_cut_costs_the_smaller_side_its_entities_on_sockets() {
    a_cut_costs_the_smaller_side_its_entities(World::real(3).on_each(hits).start());
}

/// What is sent to a node that stands still waits for it.
fn a_short_pause_costs_time_and_nothing_else(world: World) {
    let key = key_on(&world, 1);
    let entity = world.entity::<Hits>(0, key.as_str());
    let pause = Duration::from_millis(300);
    let began = world.now();
    world.pause(1, pause);
    for n in 1..=50 {
        entity.tell(Note { n }).unwrap();
    }
    assert_eq!(entity.ask(Total, LONG), Ok(50 * 51 / 2));
    assert!(world.now().since(began) >= pause * 9 / 10, "{:?}", world.now().since(began));
    assert_eq!(up(&world, 0), 3);
}

#[test]
fn a_short_pause_costs_time_and_nothing_else_in_virtual_time() {
    a_short_pause_costs_time_and_nothing_else(three().start());
}

#[test]
fn a_short_pause_costs_time_and_nothing_else_on_sockets() {
    a_short_pause_costs_time_and_nothing_else(World::real(3).on_each(hits).start());
}

#[test]
fn a_node_that_cannot_leave_in_order_can_be_killed() {
    let world = World::real(2).on_each(hits).start();
    world.cut(&[&[0], &[1]]);
    let leaving = world.node(1).shutdown(ShutdownReason::Requested);
    assert!(leaving.wait(Duration::from_millis(50)).is_none(), "nobody hears that it wants to leave");
    let began = world.now();
    world.kill(1);
    assert!(leaving.wait(Duration::ZERO).is_some());
    assert!(world.now().since(began) < 5 * SECOND, "it was not waited for");
}

// ---- virtual time -----------------------------------------------------------------------------------------------------------

#[test]
fn an_entity_is_reached_from_every_node_and_time_passes_as_far_as_needed() {
    let latency = Duration::from_millis(10);
    let world = three().network(latency, Duration::ZERO, 0.0).start();
    let owner = 0;
    let key = key_on(&world, owner);
    for i in 0..3 {
        // The first one looks the home up.
        world.entity::<Hits>(i, key.as_str()).ask(Total, SECOND).unwrap();
        let began = world.now();
        assert_eq!(world.entity::<Hits>(i, key.as_str()).ask(Add { n: 1 }, SECOND), Ok(i as u64 + 1));
        let took = world.now().since(began);
        let expected = if i == owner { Duration::ZERO } else { 2 * latency };
        assert!(took >= expected && took < expected + Duration::from_millis(1), "n{i}: {took:?}");
    }
}

#[test]
fn a_long_pause_costs_a_node_its_membership() {
    let world = three().start();
    world.pause(1, Duration::from_secs(60));
    world.eventually(LONG, || up(&world, 0) == 2 && up(&world, 2) == 2);
    assert_eq!(up(&world, 1), 3, "it has seen nothing of that");
    let paused = world.node(1);
    let report = paused.shutdown(ShutdownReason::Requested).wait(Duration::from_secs(120)).unwrap();
    assert!(matches!(report.reason, ShutdownReason::Downed(_)), "{report:?}");
}

#[test]
fn an_ask_whose_home_is_out_of_reach_takes_its_deadline_and_no_real_time() {
    let world = three().start();
    let key = key_on(&world, 2);
    world.cut(&[&[2]]);
    let (began, really) = (world.now(), std::time::Instant::now());
    let limit = Duration::from_millis(700);
    let error = world.entity::<Hits>(0, key.as_str()).ask(Add { n: 1 }, limit).unwrap_err();
    assert_eq!((&error, error.ran()), (&AskError::Timeout { maybe_ran: true }, Ran::Maybe));
    assert_eq!(world.now().since(began), limit, "virtual time");
    assert!(really.elapsed() < 30 * limit, "{:?}", really.elapsed());
}

#[test]
fn a_cut_takes_along_what_was_under_way_and_every_ask_ends() {
    let world = three().start();
    let key = key_on(&world, 2);
    let entity = world.entity::<Hits>(0, key.as_str());
    world.cut(&[&[2]]);
    let (tx, rx) = wingbeat::channel::unbounded();
    for _ in 0..10 {
        let tx = tx.clone();
        entity.tell(Note { n: 1 }).unwrap();
        entity.ask_then(Add { n: 1 }, 4 * LONG, move |answer| tx.send(answer).unwrap());
    }
    let began = world.now();
    world.eventually(LONG, || rx.len() == 10);
    assert!(rx.try_iter().all(|answer| answer == Err(AskError::OwnerLost)), "their home was removed");
    assert!(world.now().since(began) > SECOND, "which took its time");
    world.heal();
    world.run_for(LONG);
    assert_eq!(entity.ask(Total, SECOND), Ok(0), "what was under way to the old home is not repeated");
}

#[test]
fn a_probe_records_and_answers_nothing() {
    let world = three().start();
    let probe = Probe::<Log>::host(&world);
    world.entity::<Log>(0, 7u64).tell(Line { text: "a".into() }).unwrap();
    assert_eq!(world.entity::<Log>(2, 7u64).ask(Silent, SECOND), Err(AskError::NoReply));
    let received = probe.received(7u64);
    assert!(matches!(&received[..], [LogMsg::Line(Line { text }), LogMsg::Silent(..)] if text == "a"));
    assert_eq!((probe.received(8u64).len(), probe.count()), (0, 2));
    world.restart(0);
    world.eventually(LONG, || world.entity::<Log>(0, 8u64).ask(Silent, SECOND) == Err(AskError::NoReply));
    assert!(!probe.received(8u64).is_empty(), "it is hosted on the new life too");
}

#[test]
fn loss_costs_time_and_never_order() {
    let world = three().network(Duration::from_millis(1), Duration::from_millis(4), 0.2).start();
    let probe = Probe::<Log>::host(&world);
    for n in 0..200 {
        world.entity::<Log>(1, 7u64).tell(Line { text: n.to_string() }).unwrap();
        world.run_for(Duration::from_millis(1));
    }
    world.eventually(LONG, || probe.count() == 200);
    let lines = probe.received(7u64).into_iter().map(|msg| match msg {
        LogMsg::Line(Line { text }) => text.parse::<u64>().unwrap(),
        LogMsg::Silent(..) => panic!("nobody asked"),
    });
    assert!(lines.eq(0..200), "in order, none lost, none twice");
}

#[test]
fn a_link_that_takes_nothing_gives_messages_back_and_loses_none() {
    let mut config = Config::preset(Preset::LocalTest);
    config.limits.message_bytes = 64 << 10;
    config.limits.frame_bytes = 128 << 10;
    config.limits.link_bytes = 256 << 10;
    let world = World::simulated(2).seed(4).config(config).start();
    let probe = Probe::<Log>::host(&world);
    let (near, log) = (world.entity::<Log>(1, 7u64), world.entity::<Log>(0, 7u64));
    assert_eq!((near.ask(Silent, SECOND), log.ask(Silent, SECOND)), (Err(AskError::NoReply), Err(AskError::NoReply)));
    let sender = if world.owner_of::<Log>(7u64) == 0 { &near } else { &log };
    let line = |n: u64| Line { text: format!("{n:0>4000}") };
    let mut sent = 0;
    for _ in 0..3 {
        world.cut(&[&[0], &[1]]);
        let refused = loop {
            match sender.tell_within(line(sent), Duration::from_millis(20)) {
                Ok(()) => sent += 1,
                Err(refused) => break refused,
            }
            assert!(sent < 10_000, "the link has no end");
        };
        assert_eq!(refused.reason(), &Refusal::NoCredit);
        world.heal();
        sender.tell_within(refused.into_message(), LONG).unwrap();
        sent += 1;
        world.eventually(LONG, || probe.count() as u64 == sent + 2);
    }
    let lines = probe.received(7u64).into_iter().skip(2).map(|msg| match msg {
        LogMsg::Line(Line { text }) => text.parse::<u64>().unwrap(),
        LogMsg::Silent(..) => panic!("nobody asked"),
    });
    assert!(lines.eq(0..sent), "in order, none lost, none twice");
}

#[test]
fn callbacks_may_wait_as_on_the_helper_thread() {
    let world = three().start();
    let entity = world.entity::<Hits>(1, "a");
    let (again, (tx, rx)) = (entity.clone(), wingbeat::channel::bounded(1));
    entity.ask_then(Add { n: 2 }, SECOND, move |first| tx.send((first, again.ask(Add { n: 3 }, SECOND))).unwrap());
    assert!(rx.try_recv().is_err(), "nothing happens unless time passes");
    world.eventually(SECOND, || !rx.is_empty());
    assert_eq!(rx.try_recv(), Ok((Ok(2), Ok(5))));
}

/// Owes its answers for ever.
#[derive(Default)]
struct Debtor(Vec<Promise<u64>>);

impl Entity for Debtor {
    type Type = Log;

    fn handle(&mut self, msg: LogMsg, cx: &mut Cx<'_, Self>) {
        if let LogMsg::Silent(_, reply) = msg {
            self.0.push(cx.defer(reply));
        }
    }
}

#[test]
fn an_ask_of_a_node_that_ends_is_called_back() {
    let world = World::simulated(2).start();
    let home = world.node(0);
    home.host::<Debtor>(HostOptions::new(), |_| Debtor::default()).unwrap();
    let debtor = world.node(1).proxy::<Log>().unwrap().get(0);
    let (tx, rx) = wingbeat::channel::bounded(1);
    debtor.ask_then(Silent, LONG, move |answer| tx.send(answer).unwrap());
    world.run_for(SECOND);
    drop(world.node(1).shutdown(ShutdownReason::Requested));
    world.eventually(LONG / 2, || !rx.is_empty());
    assert_eq!(rx.try_recv(), Ok(Err(AskError::Shutdown)));
}

#[test]
fn callbacks_of_one_node_do_not_run_inside_each_other() {
    let world = three().start();
    let entity = world.entity::<Hits>(1, "a");
    let (inside, done) = (Arc::new(parking_lot::Mutex::new(())), Arc::new(AtomicUsize::new(0)));
    for _ in 0..3 {
        let (again, inside, done) = (entity.clone(), inside.clone(), done.clone());
        entity.ask_then(Add { n: 1 }, SECOND, move |_| {
            let alone = inside.try_lock().expect("one at a time");
            again.ask(Add { n: 1 }, SECOND).unwrap();
            drop(alone);
            done.fetch_add(1, Ordering::SeqCst);
        });
    }
    world.eventually(SECOND, || done.load(Ordering::SeqCst) == 3);
}

#[test]
fn steps_show_every_moment_of_a_move() {
    let world = three().start();
    let entity = world.entity::<Hits>(0, "a");
    assert_eq!(entity.ask(Add { n: 4 }, SECOND), Ok(4));
    let (from, node) = (world.owner_of::<Hits>("a"), world.node(0));
    let shard = node.region::<Hits>().unwrap().shard_of(&"a".to_owned()).unwrap();
    node.admin().move_shard::<Hits>(shard, world.node((from + 1) % 3).id()).unwrap();
    let (tx, rx) = wingbeat::channel::unbounded();
    let (mut sent, began) = (0, world.now());
    while world.now().since(began) < SECOND {
        world.step();
        if sent < 500 {
            sent += 1;
            let tx = tx.clone();
            entity.ask_then(Add { n: 1 }, SECOND, move |total| tx.send(total).unwrap());
        }
    }
    let totals: Vec<_> = rx.try_iter().map(Result::unwrap).collect();
    assert!(totals.iter().copied().eq(5..505), "in order, through the move: {totals:?}");
    assert_ne!(world.owner_of::<Hits>("a"), from);
}

#[test]
fn operators_move_shards_in_virtual_time() {
    let world = three().start();
    let entity = world.entity::<Hits>(0, "a");
    assert_eq!(entity.ask(Add { n: 4 }, SECOND), Ok(4));
    let (from, node) = (world.owner_of::<Hits>("a"), world.node(0));
    let to = (from + 1) % 3;
    let shard = node.region::<Hits>().unwrap().shard_of(&"a".to_owned()).unwrap();
    node.admin().move_shard::<Hits>(shard, world.node(to).id()).unwrap();
    world.eventually(LONG, || world.owner_of::<Hits>("a") == to);
    assert_eq!(entity.ask(Total, SECOND), Ok(4));
}

#[test]
fn a_restarted_node_is_a_new_member_on_the_old_address() {
    let world = three().start();
    let (id, addr) = (world.node(1).id(), world.node(1).addr().clone());
    let old = world.entity::<Hits>(1, "a");
    world.restart(1);
    assert_ne!(world.node(1).id(), id);
    assert_eq!(world.node(1).addr(), &addr);
    assert_eq!(old.tell(Note { n: 1 }).unwrap_err().reason(), &Refusal::Shutdown, "what is left of the old life");
    world.eventually(LONG, || (0..3).all(|i| up(&world, i) == 3));
    assert_eq!(world.entity::<Hits>(1, "a").ask(Add { n: 1 }, LONG), Ok(1));
}

// ---- seeds and stories ------------------------------------------------------------------------------------------------------

fn eventful(seed: u64) -> String {
    let world = World::simulated(4).seed(seed).network(Duration::from_millis(2), Duration::from_millis(3), 0.05).on_each(hits).start();
    for i in 0..4 {
        for n in 0..10u64 {
            world.entity::<Hits>(i, format!("k{n}")).tell(Note { n }).unwrap();
        }
    }
    world.run_for(SECOND);
    world.cut(&[&[0, 1, 2], &[3]]);
    world.run_for(3 * SECOND);
    world.kill(1);
    world.pause(0, Duration::from_millis(700));
    world.heal();
    world.restart(1);
    world.run_for(20 * SECOND);
    world.story()
}

#[test]
fn a_seed_names_a_run_to_the_last_event() {
    let (once, again, other) = (eventful(11), eventful(11), eventful(12));
    assert_eq!(once, again);
    assert_ne!(once, other);
    assert!(once.contains("n1 is killed") && once.contains("the network is cut"), "{once}");
}

#[test]
fn a_condition_that_does_not_come_to_hold_tells_the_story_and_the_seed() {
    let fails = |seed: Option<u64>| {
        let world = World::simulated(2).on_each(hits);
        let world = if let Some(seed) = seed { world.seed(seed) } else { world }.start();
        world.entity::<Hits>(1, "a").tell(Note { n: 1 }).unwrap();
        world.kill(0);
        let panic = std::panic::catch_unwind(AssertUnwindSafe(|| world.eventually(SECOND, || false))).unwrap_err();
        (world.seed(), *panic.downcast::<String>().unwrap())
    };
    let (seed, said) = fails(None);
    assert!(said.starts_with("what was waited for did not come to hold within 1s\n"), "{said}");
    assert!(said.contains("n0 is killed\n"), "{said}");
    assert!(said.contains(&format!("World::simulated(2).seed({seed})")), "{said}");
    assert_eq!(fails(Some(seed)), (seed, said), "the seed repeats it");
}

/// Fails, when it is run by the test below.
#[test]
fn fails_on_purpose() {
    if std::env::var_os("FAIL_ON_PURPOSE").is_some() {
        let world = World::simulated(2).on_each(hits).start();
        world.entity::<Hits>(1, "a").tell(Note { n: 1 }).unwrap();
        world.run_for(SECOND);
        panic!("an assertion of the test");
    }
}

#[test]
fn any_failure_prints_the_seed_and_the_variable_repeats_it() {
    let fails = |seed: Option<&str>| {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "fails_on_purpose", "--nocapture"]).env("FAIL_ON_PURPOSE", "1").env_remove("WINGBEAT_TEST_SEED");
        if let Some(seed) = seed {
            child.env("WINGBEAT_TEST_SEED", seed);
        }
        let out = child.output().unwrap();
        assert!(!out.status.success());
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        said.split_once("what happened:\n").unwrap_or_else(|| panic!("no story: {said}")).1.to_owned()
    };
    let story = fails(None);
    let (_, hint) = story.split_once("WINGBEAT_TEST_SEED=").unwrap();
    let seed = hint.split_whitespace().next().unwrap();
    assert!(story.contains(&format!("this was World::simulated(2).seed({seed});")), "{story}");
    let told = |story: &str| story.lines().take_while(|line| !line.starts_with("this was")).map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(told(&fails(Some(seed))), told(&story));
}

#[test]
fn a_call_that_waits_inside_a_turn_or_on_another_thread_says_so() {
    struct Waits(Rc<RefCell<Option<AskError>>>);
    impl Entity for Waits {
        type Type = Hits;
        fn handle(&mut self, _: HitsMsg, cx: &mut Cx<'_, Self>) {
            self.0.replace(cx.this().ask(Total, SECOND).err());
        }
    }
    let mut solo = wingbeat::testkit::Solo::new("a", {
        let seen = Rc::new(RefCell::new(None));
        move |_| Waits(seen.clone())
    });
    solo.tell(Note { n: 1 });
    assert_eq!(solo.state().unwrap().0.take(), Some(AskError::WouldDeadlock));

    let world = three().start();
    let entity = world.entity::<Hits>(0, "a");
    let there = std::thread::spawn(move || entity.ask(Total, SECOND)).join().unwrap_err();
    let said = there.downcast::<&str>().map(|said| said.to_string()).or_else(|there| there.downcast::<String>().map(|said| *said)).unwrap();
    assert!(said.contains("`World::real`"), "{said}");
}

#[test]
fn handles_outlive_their_world_and_answer_shutdown() {
    let world = three().start();
    let (node, entity) = (world.node(0), world.entity::<Hits>(0, "a"));
    drop(world);
    assert_eq!(entity.ask(Total, SECOND), Err(AskError::Refused(Refusal::Shutdown)));
    assert!(node.wait_members(1, SECOND).is_err());
}
