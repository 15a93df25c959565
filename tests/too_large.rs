//! What a node takes without a limit, because it does not leave, and what becomes of it when it has to.
#![allow(missing_docs, clippy::unwrap_used)]

use std::time::Duration;

use wingbeat::{
    AskError, AskQueue, Cluster, Config, Cx, DropReason, Entity, Failure, HandedOver, Handoff, HostOptions, Ran, RegisterError,
    ShutdownReason, config::Preset, messages, testkit::World,
};

messages! {
    pub enum BallastMsg for Ballast(u64) = "test.ballast" { Load { size: u64 } -> u64, Weight -> u64 }
}
messages! {
    pub enum HeapMsg for Heap(u64) = "test.heap" { Keep { bytes: Vec<u8> }, Later { bytes: Vec<u8> }, Give { size: u64 } -> Vec<u8>, No { size: u64 } -> u64, Kept -> u64 }
}

const LONG: Duration = Duration::from_secs(30);
/// More than any frame has room for.
const HUGE: usize = 3 << 20;

/// Puts aside what it gets.
#[derive(Default)]
struct Aside(u64);

impl Entity for Aside {
    type Type = Heap;

    fn handle(&mut self, msg: HeapMsg, cx: &mut Cx<'_, Self>) {
        match msg {
            HeapMsg::Keep(keep) => {
                self.0 += 1;
                cx.stash(HeapMsg::Keep(keep));
            }
            HeapMsg::Later(Later { bytes }) => cx.timer_once(1, Duration::from_secs(3600), Keep { bytes }),
            HeapMsg::Give(Give { size }, reply) => cx.reply(reply, vec![7; size as usize]),
            HeapMsg::No(No { size }, reply) => cx.reject(reply, "n".repeat(size as usize)),
            HeapMsg::Kept(Kept, reply) => cx.reply(reply, self.0),
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

fn host(node: &Cluster) -> Result<(), RegisterError> {
    node.host::<Aside>(HostOptions::new().shards(16), |_| Aside::default()).map(drop)
}

#[test]
fn an_answer_that_fits_into_no_frame_is_an_error_that_says_so() {
    let world = World::simulated(2).on_each(host).start();
    assert_eq!(world.entity::<Heap>(0, 1u64).ask(Kept, LONG), Ok(0));
    let home = world.owner_of::<Heap>(1u64);
    let (here, there) = (world.entity::<Heap>(home, 1u64), world.entity::<Heap>(1 - home, 1u64));
    assert_eq!(here.ask(Give { size: HUGE as u64 }, LONG).map(|bytes| bytes.len()), Ok(HUGE), "nothing bounds it within the node");
    for error in [there.ask(Give { size: HUGE as u64 }, LONG).unwrap_err(), there.ask(No { size: HUGE as u64 }, LONG).unwrap_err()] {
        assert!(matches!(error, AskError::Rejected { .. }) && error.ran() == Ran::Yes, "{error:?}");
        assert!(error.to_string().contains("limits.frame_bytes is 2097152"), "{error}");
    }
}

#[test]
fn a_message_that_fits_into_no_frame_does_not_keep_its_shard_from_moving() {
    let world = World::simulated(2).on_each(host).start();
    assert_eq!(world.entity::<Heap>(0, 1u64).ask(Kept, LONG), Ok(0));
    let home = world.owner_of::<Heap>(1u64);
    let (here, there) = (world.entity::<Heap>(home, 1u64), world.entity::<Heap>(1 - home, 1u64));
    let dead = world.node(home).dead_letters();
    here.tell(Keep { bytes: vec![1; HUGE] }).unwrap();
    here.tell(Keep { bytes: vec![2; 8] }).unwrap();
    here.tell(Later { bytes: vec![3; HUGE] }).unwrap();
    assert_eq!(here.ask(Kept, LONG), Ok(2));
    let letter = dead.try_recv().unwrap();
    assert_eq!((letter.reason, dead.len()), (DropReason::TooLarge, 0), "what waits for a timer has to be able to travel");
    let shard = world.node(0).region::<Heap>().unwrap().shard_of(&1).unwrap();
    let target = world.node(1 - home).id();
    world.eventually(LONG, || world.node(0).admin().move_shard::<Heap>(shard, target).is_ok());
    world.eventually(LONG, || world.owner_of::<Heap>(1u64) == 1 - home);
    assert_eq!((here.ask(Kept, LONG), there.ask(Kept, LONG)), (Ok(3), Ok(3)), "what fits came along, and was put aside once more");
    let letter = dead.try_recv().unwrap();
    assert_eq!((letter.reason, dead.len()), (DropReason::TooLarge, 0));
}

/// Links that hold little.
fn narrow() -> Config {
    let mut config = Config::preset(Preset::LocalTest);
    config.limits.link_bytes = 512 << 10;
    config.limits.frame_bytes = 256 << 10;
    config.limits.message_bytes = 128 << 10;
    config
}

/// A state of some size.
#[derive(Default)]
struct Loaded(Vec<u8>);

impl Entity for Loaded {
    type Type = Ballast;

    fn handle(&mut self, msg: BallastMsg, cx: &mut Cx<'_, Self>) {
        match msg {
            BallastMsg::Load(Load { size }, reply) => {
                self.0 = vec![7; size as usize];
                cx.reply(reply, size);
            }
            BallastMsg::Weight(Weight, reply) => cx.reply(reply, self.0.iter().filter(|byte| **byte == 7).count() as u64),
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

#[test]
fn a_node_that_leaves_hands_over_many_times_what_a_link_holds() {
    const ENTITIES: u64 = 64;
    let loaded = |node: &Cluster| node.host::<Loaded>(HostOptions::new().shards(16), |_| Loaded::default()).map(drop);
    let world = World::real(2).config(narrow()).on_each(loaded).start();
    for key in 0..ENTITIES {
        assert_eq!(world.entity::<Ballast>(0, key).ask(Load { size: 500_000 }, LONG), Ok(500_000));
    }
    // Half of 32 MB; what waits for a link is bounded by 2 MiB.
    world.node(0).shutdown(ShutdownReason::Requested).wait(LONG).unwrap();
    for key in 0..ENTITIES {
        assert_eq!(world.entity::<Ballast>(1, key).ask(Weight, LONG), Ok(500_000), "entity {key}");
    }
}

#[test]
fn more_large_answers_than_a_link_holds_cost_no_link() {
    const ASKS: usize = 64;
    let world = World::real(2).config(narrow()).on_each(host).start();
    assert_eq!(world.entity::<Heap>(0, 1u64).ask(Kept, LONG), Ok(0));
    let home = world.owner_of::<Heap>(1u64);
    let there = world.entity::<Heap>(1 - home, 1u64);
    let queue = AskQueue::new(ASKS);
    let mut answers = vec![];
    for _ in 0..4 {
        for tag in 0..ASKS as u64 {
            there.ask_into(Give { size: 200_000 }, LONG, tag, &queue).unwrap();
        }
        while queue.in_flight() > 0 {
            queue.wait(&mut answers, LONG);
        }
    }
    let refused = answers.iter().filter_map(|answer| answer.result.as_ref().err());
    for error in refused {
        assert!(matches!(error, AskError::Rejected { .. }) && error.to_string().contains("limits.link_bytes"), "{error:?}");
    }
    assert_eq!(answers.len(), 4 * ASKS);
    assert_eq!(there.ask(Kept, LONG), Ok(0));
}
