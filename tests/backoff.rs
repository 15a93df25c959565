//! How an entity that fails is started again, as its host and the settings say.
#![allow(missing_docs, clippy::unwrap_used)]

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    time::Duration,
};

use wingbeat::{
    AskError, Cluster, Cx, Directive, DropReason, Entity, Failure, HostOptions, PanicInfo, StopReason, Time, messages,
    testkit::{Solo, World},
};

messages! { pub enum FrailMsg for Frail(u64) = "backoff.frail" { Break, Fine -> u64, BreakAndEmpty, Note } }

#[derive(Default)]
struct Seen {
    starts: RefCell<Vec<Time>>,
    /// So many starts give up.
    give_up: Cell<u32>,
}

struct State(Rc<Seen>);

impl Entity for State {
    type Type = Frail;

    fn started(&mut self, cx: &mut Cx<'_, Self>) {
        self.0.starts.borrow_mut().push(cx.now());
        if self.0.give_up.get() > 0 {
            self.0.give_up.set(self.0.give_up.get() - 1);
            cx.fail(Failure::new("nothing to start with"));
        }
    }

    fn handle(&mut self, msg: FrailMsg, cx: &mut Cx<'_, Self>) {
        match msg {
            FrailMsg::Break(_) => panic!("on purpose"),
            FrailMsg::BreakAndEmpty(_) => panic!("nothing that waits may stay"),
            FrailMsg::Note(_) => {}
            FrailMsg::Fine(Fine, reply) => cx.reply(reply, *cx.id()),
        }
    }

    fn supervise(panic: &PanicInfo, _: u32) -> Directive {
        if panic.handling == "BreakAndEmpty" { Directive::RestartEmpty } else { Directive::Restart }
    }

    fn stopped(&mut self, why: StopReason, _: &mut Cx<'_, Self>) {
        assert_eq!(why, StopReason::Failed);
    }
}

/// Pauses between starts, in whole milliseconds.
fn pauses(seen: &Seen) -> Vec<u128> {
    let starts = seen.starts.borrow();
    starts.windows(2).map(|pair| pair[1].since(pair[0]).as_millis()).collect()
}

fn frail(options: HostOptions<State>) -> (Solo<State>, Rc<Seen>) {
    let seen = Rc::<Seen>::default();
    let theirs = seen.clone();
    (Solo::hosted(options, 7, move |_| State(theirs.clone())), seen)
}

#[test]
fn pauses_double_from_the_first_to_the_longest() {
    let (mut entity, seen) = frail(HostOptions::new().backoff(Duration::from_secs(1), Duration::from_secs(5)));
    for _ in 0..5 {
        entity.tell(Break);
    }
    assert_eq!(entity.ask_within(Fine, Duration::from_secs(60)), Ok(7), "it waits for its turn");
    assert_eq!(pauses(&seen), [1000, 2000, 4000, 5000, 5000]);
    // A turn that succeeded has ended the row.
    entity.tell(Break);
    assert_eq!(entity.ask(Fine), Ok(7));
    assert_eq!(pauses(&seen).last(), Some(&1000));
}

#[test]
fn without_a_word_of_the_host_the_settings_say_how_long() {
    let (mut entity, seen) = frail(HostOptions::new());
    for _ in 0..9 {
        entity.tell(Break);
    }
    assert_eq!(entity.ask_within(Fine, Duration::from_secs(60)), Ok(7));
    assert_eq!(pauses(&seen), [100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000]);
}

#[test]
fn an_entity_that_gives_up_when_it_starts_is_a_failed_start() {
    let (mut entity, seen) = frail(HostOptions::new());
    seen.give_up.set(2);
    assert_eq!(entity.ask(Fine), Ok(7), "the third one starts, and what waited is handled");
    assert_eq!(pauses(&seen), [100, 200]);
}

// failures: row 48
#[test]
fn a_start_that_keeps_failing_opens_the_circuit() {
    let (mut entity, seen) = frail(HostOptions::new().backoff(Duration::from_millis(10), Duration::from_secs(1)));
    seen.give_up.set(6);
    assert_eq!(entity.ask(Fine), Err(AskError::Dropped(DropReason::CircuitOpen)));
    assert_eq!(pauses(&seen), [10, 20, 40, 80]);
    assert_eq!(entity.ask(Fine), Err(AskError::Dropped(DropReason::CircuitOpen)), "at once, before the pause is over");
    entity.advance(Duration::from_secs(2));
    assert_eq!(entity.ask(Fine), Err(AskError::Dropped(DropReason::CircuitOpen)), "one more try");
    entity.advance(Duration::from_secs(2));
    assert_eq!(entity.ask(Fine), Ok(7));
}

// failures: row 45
#[test]
fn what_waits_for_an_entity_that_failed_is_kept_or_becomes_dead_letters_as_it_says() {
    let (mut entity, seen) = frail(HostOptions::new());
    // All but the first wait for the next instance, which breaks on the second: the third is kept.
    entity.tell(Break).tell(Break).tell(Note);
    entity.advance(Duration::from_secs(1));
    let reasons: Vec<_> = entity.dropped().into_iter().map(|letter| letter.reason).collect();
    assert_eq!(reasons, [DropReason::Poison, DropReason::Poison]);
    entity.tell(Break).tell(BreakAndEmpty).tell(Note).tell(Note);
    entity.advance(Duration::from_secs(1));
    let reasons: Vec<_> = entity.dropped().into_iter().map(|letter| letter.reason).collect();
    assert_eq!(reasons, [DropReason::Poison, DropReason::Poison, DropReason::Stopped, DropReason::Stopped]);
    assert_eq!(entity.ask(Fine), Ok(7));
    assert_eq!(pauses(&seen).len(), 4);
}

thread_local! {
    /// Messages panic when they are dropped.
    static ARMED: Cell<bool> = const { Cell::new(false) };
    /// Entities that take them start.
    static READY: Cell<bool> = const { Cell::new(false) };
}

/// Goes off when it is dropped.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
struct Mine;

impl Drop for Mine {
    fn drop(&mut self) {
        assert!(std::thread::panicking() || !ARMED.replace(false), "a message's end");
    }
}

messages! { enum MinedMsg for Mined(u64) = "backoff.mined" { Put { mine: Mine }, Whole -> u64 } }

struct Starts;

impl Entity for Starts {
    type Type = Mined;

    fn started(&mut self, cx: &mut Cx<'_, Self>) {
        if !READY.get() {
            cx.fail(Failure::new("not yet"));
        }
    }

    fn handle(&mut self, msg: MinedMsg, cx: &mut Cx<'_, Self>) {
        if let MinedMsg::Whole(Whole, reply) = msg {
            cx.reply(reply, *cx.id());
        }
    }
}

#[test]
fn a_message_that_panics_when_it_is_given_up_ends_nothing_but_itself() {
    let host = |node: &Cluster| node.host::<Starts>(HostOptions::new().shards(1), |_| Starts).map(drop);
    let world = World::simulated(1).seed(1).on_each(host).start();
    // Messages stay what they are once their home is known.
    READY.set(true);
    for _ in 0..3 {
        assert_eq!(world.entity::<Mined>(0, 4u64).ask(Whole, Duration::from_secs(60)), Ok(4));
    }
    READY.set(false);
    let mined = world.entity::<Mined>(0, 3u64);
    mined.tell(Put { mine: Mine }).unwrap();
    ARMED.set(true);
    world.run_for(Duration::from_secs(60));
    assert!(!ARMED.get(), "given up when the circuit opened");
    READY.set(true);
    assert_eq!(mined.ask(Whole, Duration::from_secs(60)), Ok(3));
}
