//! What travels of what an entity gives when its shard moves.
#![allow(missing_docs, clippy::unwrap_used)]

use std::{cell::RefCell, time::Duration};

use wingbeat::{
    Cluster, CodecError, Cx, Entity, Failure, HandedOver, Handoff, HostOptions, RegisterError, ShardId, Wire, messages,
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
