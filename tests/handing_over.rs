//! What travels of what an entity gives when its shard moves.
#![allow(missing_docs, clippy::unwrap_used)]

use std::{
    cell::{Cell, RefCell},
    time::Duration,
};

use wingbeat::{
    Cluster, CodecError, Cx, Entity, EntityId, Failure, HandedOver, Handoff, HostOptions, RegisterError, ShardId, Wire, messages,
    testkit::{Solo, World},
};

messages! {
    pub enum CountMsg for Count(u64) = "test.count" { Add { n: u64 }, Total -> u64 }
}
messages! {
    pub enum PartMsg for Part(u64) = "test.part" { Go {}, Refuse {}, Tick { of: u64 } }
}

/// What cannot be encoded, and has begun to.
struct Full;

impl Wire for Full {
    const NAME: &'static str = "test.full";

    fn encode(&self, _: u16, out: &mut Vec<u8>) -> Result<(), CodecError> {
        out.extend_from_slice(b"half of it");
        Err(CodecError::Encode("no".into()))
    }

    fn decode(_: u16, _: &mut &[u8]) -> Result<Self, CodecError> {
        Err(CodecError::Decode("no".into()))
    }
}

/// Gives all it has, or less if that cannot be given.
#[derive(Default)]
struct Careful(u64);

impl Entity for Careful {
    type Type = Count;

    fn handle(&mut self, msg: CountMsg, cx: &mut Cx<'_, Self>) {
        match msg {
            CountMsg::Add(Add { n }) => self.0 += n,
            CountMsg::Total(Total, reply) => cx.reply(reply, self.0),
        }
    }

    fn handoff(&mut self, cx: &mut Cx<'_, Self>) -> Result<Handoff, Failure> {
        let less = cx.hand_over(&self.0)?;
        Ok(cx.hand_over(&Full).unwrap_or(less))
    }

    fn adopted(&mut self, state: HandedOver<'_>, _: &mut Cx<'_, Self>) -> Result<(), Failure> {
        self.0 = state.decode()?;
        Ok(())
    }
}

#[test]
fn a_state_that_cannot_be_given_leaves_the_one_that_was() {
    let mut count = Solo::<Careful>::new(7u64, |_| Careful::default());
    count.tell(Add { n: 5 });
    count.move_away().unwrap();
    assert_eq!(count.ask(Total).unwrap(), 5);
}

/// Gives what it was at another time.
#[derive(Default)]
struct Late {
    total: u64,
    given: Option<Handoff>,
}

impl Entity for Late {
    type Type = Count;

    fn handle(&mut self, msg: CountMsg, cx: &mut Cx<'_, Self>) {
        match msg {
            CountMsg::Add(Add { n }) => {
                self.total += n;
                self.given = cx.hand_over(&self.total).ok();
            }
            CountMsg::Total(Total, reply) => cx.reply(reply, self.total),
        }
    }

    fn handoff(&mut self, _: &mut Cx<'_, Self>) -> Result<Handoff, Failure> {
        Ok(self.given.take().unwrap_or(Handoff::nothing()))
    }

    fn adopted(&mut self, state: HandedOver<'_>, _: &mut Cx<'_, Self>) -> Result<(), Failure> {
        self.total = state.decode()?;
        Ok(())
    }
}

#[test]
fn a_state_of_an_earlier_turn_calls_the_move_off() {
    let mut count = Solo::<Late>::new(7u64, |_| Late::default());
    count.tell(Add { n: 5 });
    let why = count.move_away().map(drop).unwrap_err().to_string();
    assert!(why.contains("made in another turn"), "{why}");
    assert_eq!(count.ask(Total).unwrap(), 5);
}

thread_local!(static SEEN: RefCell<Vec<String>> = const { RefCell::new(vec![]) });

/// Sets a timer as it hands over.
#[derive(Default)]
struct Ticking {
    refuses: bool,
}

impl Entity for Ticking {
    type Type = Part;

    fn handle(&mut self, msg: PartMsg, cx: &mut Cx<'_, Self>) {
        match msg {
            PartMsg::Go(_) => {}
            PartMsg::Refuse(_) => self.refuses = true,
            PartMsg::Tick(Tick { of }) => SEEN.with_borrow_mut(|seen| seen.push(format!("{} got the tick of {of}", cx.id()))),
        }
    }

    fn handoff(&mut self, cx: &mut Cx<'_, Self>) -> Result<Handoff, Failure> {
        if *cx.id() == 1 {
            cx.timer_once(1, Duration::from_millis(1), Tick { of: 1 });
        }
        if self.refuses { Err(Failure::new("not now")) } else { Ok(Handoff::nothing()) }
    }
}

fn ticking(node: &Cluster) -> Result<(), RegisterError> {
    node.host::<Ticking>(HostOptions::new().shards(1), |_| Ticking::default()).map(drop)
}

#[test]
fn a_timer_that_is_set_while_handing_over_is_of_that_entity_wherever_it_lives_then() {
    for refuses in [true, false] {
        SEEN.with_borrow_mut(Vec::clear);
        let world = World::simulated(2).seed(1).on_each(ticking).start();
        (1..4u64).for_each(|key| world.entity::<Part>(0, key).tell(Go {}).unwrap());
        if refuses {
            world.entity::<Part>(0, 3u64).tell(Refuse {}).unwrap();
        }
        world.run_for(Duration::from_secs(5));
        let home = world.owner_of::<Part>(1u64);
        let moved = world.node(home).admin().move_shard::<Part>(ShardId(0), world.node(1 - home).id());
        assert!(moved.is_ok(), "{moved:?}");
        world.run_for(Duration::from_secs(1));
        // Whoever is next in a turn gets nothing of others.
        world.entity::<Part>(0, 3u64).tell(Go {}).unwrap();
        world.run_for(Duration::from_secs(1));
        assert_eq!(
            (world.owner_of::<Part>(1u64) == home, SEEN.with_borrow(Clone::clone)),
            (refuses, vec!["1 got the tick of 1".to_owned()])
        );
    }
}

messages! {
    pub enum WatchedMsg for Watched(u64) = "test.watched" { Start {}, Later {} }
}
messages! {
    pub enum EyeMsg for Eye(u64) = "test.eye" { Watch { of: u64 }, Ended { of: u64 }, End {} }
}

/// Has a timer that travels.
struct Timed;

impl Entity for Timed {
    type Type = Watched;

    fn handle(&mut self, msg: WatchedMsg, cx: &mut Cx<'_, Self>) {
        if let WatchedMsg::Start(_) = msg {
            cx.timer_once(1, Duration::from_secs(3600), Later {});
        }
    }

    fn handoff(&mut self, cx: &mut Cx<'_, Self>) -> Result<Handoff, Failure> {
        cx.hand_over(&7u64)
    }

    fn adopted(&mut self, _: HandedOver<'_>, _: &mut Cx<'_, Self>) -> Result<(), Failure> {
        Ok(())
    }
}

thread_local!(static FAILS: Cell<bool> = const { Cell::new(false) });

/// Says whose end it has heard of. The next start of number 1 fails if that is wanted.
struct Watching;

impl Entity for Watching {
    type Type = Eye;

    fn handle(&mut self, msg: EyeMsg, cx: &mut Cx<'_, Self>) {
        match msg {
            EyeMsg::Watch(Watch { of }) if of < 1_000 => cx.watch(&cx.resolve(&EntityId::<Watched>::new(of)).unwrap(), Ended { of }),
            EyeMsg::Watch(Watch { of }) => cx.watch(&cx.resolve(&EntityId::<Eye>::new(of)).unwrap(), Ended { of }),
            EyeMsg::Ended(Ended { of }) => SEEN.with_borrow_mut(|seen| seen.push(format!("{} heard of {of}", cx.id()))),
            EyeMsg::End(_) => cx.passivate(),
        }
    }

    fn started(&mut self, cx: &mut Cx<'_, Self>) {
        if *cx.id() == 1 && FAILS.replace(false) {
            cx.fail(Failure::new("on purpose"));
        }
    }

    fn handoff(&mut self, cx: &mut Cx<'_, Self>) -> Result<Handoff, Failure> {
        cx.hand_over(&7u64)
    }

    fn adopted(&mut self, _: HandedOver<'_>, _: &mut Cx<'_, Self>) -> Result<(), Failure> {
        Ok(())
    }
}

fn watching(node: &Cluster) -> Result<(), RegisterError> {
    node.host::<Timed>(HostOptions::new().shards(1), |_| Timed)?;
    node.host::<Watching>(HostOptions::new().shards(1), |_| Watching).map(drop)
}

/// Two nodes, and how one of them gives a type's only shard to the other.
fn two() -> World {
    SEEN.with_borrow_mut(Vec::clear);
    World::simulated(2).seed(1).on_each(watching).start()
}

fn move_away<T: wingbeat::EntityType<Key = u64>>(world: &World) {
    let home = world.owner_of::<T>(1u64);
    world.node(home).admin().move_shard::<T>(ShardId(0), world.node(1 - home).id()).unwrap();
    world.run_for(Duration::from_secs(10));
    assert_eq!(world.owner_of::<T>(1u64), 1 - home);
}

#[test]
fn a_move_is_no_end_for_who_watches_entities_that_have_timers() {
    for beside in [true, false] {
        let world = two();
        // More than start at once.
        (0..200).for_each(|key| world.entity::<Watched>(0, key).tell(Start {}).unwrap());
        world.entity::<Eye>(0, 1u64).tell(Watch { of: 0 }).unwrap();
        world.run_for(Duration::from_secs(5));
        if (world.owner_of::<Eye>(1u64) == world.owner_of::<Watched>(1u64)) != beside {
            move_away::<Eye>(&world);
        }
        (0..200).for_each(|of| world.entity::<Eye>(0, 1u64).tell(Watch { of }).unwrap());
        world.run_for(Duration::from_secs(1));
        move_away::<Watched>(&world);
        assert_eq!(SEEN.with_borrow(Clone::clone), [""; 0], "beside: {beside}");
    }
}

#[test]
fn a_watch_outlives_a_first_start_that_fails_on_the_new_home() {
    for fails in [false, true] {
        let world = two();
        for key in [1u64, 2_000] {
            world.entity::<Eye>(0, key).tell(Watch { of: 2_000 }).unwrap();
        }
        world.run_for(Duration::from_secs(5));
        FAILS.set(fails);
        move_away::<Eye>(&world);
        world.entity::<Eye>(0, 2_000u64).tell(End {}).unwrap();
        world.run_for(Duration::from_secs(5));
        let heard = SEEN.with_borrow(Clone::clone);
        assert!(heard.contains(&"1 heard of 2000".to_owned()), "fails: {fails}: {heard:?}");
    }
}
