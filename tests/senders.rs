//! An entity that moves stays one sender: what it sends from its new home comes behind what it had sent from the old one.
#![allow(missing_docs, clippy::unwrap_used)]

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    time::Duration,
};

use wingbeat::{
    AskError, Cluster, Config, Cx, Entity, EntityId, EntityType, Failure, HandedOver, Handoff, HostOptions, RegisterError, ShardId,
    ShutdownReason, config::Preset, messages, testkit::World,
};

thread_local! {
    /// What each sink got of each source, in its order.
    static GOT: RefCell<BTreeMap<(u64, u64), Vec<u64>>> = const { RefCell::new(BTreeMap::new()) };
    /// What sources could not send.
    static REFUSED: RefCell<Vec<String>> = const { RefCell::new(vec![]) };
    /// Sources that have come to a new home.
    static ADOPTED: Cell<u64> = const { Cell::new(0) };
}

messages! {
    pub enum SourceMsg for Source(u64) = "test.source" {
        /// Sends the next number to that many sinks.
        Go { sinks: u64, ask: bool },
        Said { answer: Result<u64, String> },
        /// To another source: of the same shard.
        Pass { from: u64, n: u64 },
    }
}
messages! {
    pub enum SinkMsg for Sink(u64) = "test.sink" {
        Put { from: u64, n: u64 },
        PutAndSay { from: u64, n: u64 } -> u64,
    }
}

fn got(at: u64, from: u64, n: u64) {
    GOT.with_borrow_mut(|got| got.entry((at, from)).or_default().push(n));
}

/// Counts what it has sent, and takes the count along.
struct Sources {
    sent: u64,
}

impl Entity for Sources {
    type Type = Source;

    fn handle(&mut self, msg: SourceMsg, cx: &mut Cx<'_, Self>) {
        let from = *cx.id();
        match msg {
            SourceMsg::Go(Go { sinks, ask }) => {
                self.sent += 1;
                let n = self.sent;
                for sink in 0..sinks {
                    let sink = cx.resolve(&EntityId::<Sink>::new(sink)).unwrap();
                    if ask && n % 2 == 0 {
                        let said = |answer: Result<u64, AskError>| Said { answer: answer.map_err(|e| e.to_string()) };
                        cx.ask(&sink, PutAndSay { from, n }, Duration::from_secs(30), said);
                    } else if let Err(error) = cx.tell(&sink, Put { from, n }) {
                        REFUSED.with_borrow_mut(|refused| refused.push(error.to_string()));
                    }
                }
                let other = cx.resolve(&EntityId::<Source>::new(from + 100)).unwrap();
                if from < 100 {
                    cx.tell(&other, Pass { from, n }).unwrap();
                }
            }
            SourceMsg::Said(_) => {}
            SourceMsg::Pass(Pass { from, n }) => got(*cx.id(), from, n),
        }
    }

    fn handoff(&mut self, cx: &mut Cx<'_, Self>) -> Result<Handoff, Failure> {
        cx.hand_over(&self.sent)
    }

    fn adopted(&mut self, state: HandedOver<'_>, _: &mut Cx<'_, Self>) -> Result<(), Failure> {
        self.sent = state.decode()?;
        ADOPTED.set(ADOPTED.get() + 1);
        Ok(())
    }
}

struct Sinks;

impl Entity for Sinks {
    type Type = Sink;

    fn handle(&mut self, msg: SinkMsg, cx: &mut Cx<'_, Self>) {
        match msg {
            SinkMsg::Put(Put { from, n }) => got(*cx.id(), from, n),
            SinkMsg::PutAndSay(PutAndSay { from, n }, reply) => {
                got(*cx.id(), from, n);
                cx.reply(reply, n);
            }
        }
    }

    fn handoff(&mut self, cx: &mut Cx<'_, Self>) -> Result<Handoff, Failure> {
        cx.hand_over(&0u64)
    }

    fn adopted(&mut self, _: HandedOver<'_>, _: &mut Cx<'_, Self>) -> Result<(), Failure> {
        Ok(())
    }
}

fn both(node: &Cluster) -> Result<(), RegisterError> {
    node.host::<Sources>(HostOptions::new().shards(1), |_| Sources { sent: 0 })?;
    node.host::<Sinks>(HostOptions::new().shards(4), |_| Sinks).map(drop)
}

fn world(seed: u64, jitter: Duration, config: impl FnOnce(&mut Config)) -> World {
    let mut settings = Config::preset(Preset::LocalTest);
    config(&mut settings);
    GOT.take();
    REFUSED.take();
    World::simulated(3).seed(seed).config(settings).network(Duration::from_millis(1), jitter, 0.0).on_each(both).start()
}

fn start_move<T: EntityType>(world: &World, shard: u32, to: usize) {
    // Refused where it is already, and while an earlier move is not over.
    let _ = world.node(0).admin().move_shard::<T>(ShardId(shard), world.node(to).id());
}

/// A key of each shard of the sinks.
const SINKS: u64 = 12;

fn inversions() -> Vec<String> {
    let wrong = |(at, row): (&(u64, u64), &Vec<u64>)| {
        let sorted = row.windows(2).all(|pair| pair[0] < pair[1]);
        (!sorted).then(|| format!("{at:?}: {row:?}"))
    };
    GOT.with_borrow(|got| got.iter().filter_map(wrong).collect())
}

fn missing(sent: u64) -> usize {
    GOT.with_borrow(|got| got.values().map(|row| sent as usize - row.len()).sum())
}

/// Sources that tell and ask while they move again and again. How often they sent.
fn wander(world: &World, moves: usize, mut also: impl FnMut(&World, usize)) -> u64 {
    let mut sent = 0;
    for turn in 0..moves {
        for step in 0..40 {
            for source in 0..3 {
                world.entity::<Source>(0, source).tell(Go { sinks: SINKS, ask: true }).unwrap();
            }
            sent += 1;
            if step == 10 {
                start_move::<Source>(world, 0, turn % 3);
                also(world, turn);
            }
            world.run_for(Duration::from_millis(1));
        }
        world.run_for(Duration::from_millis(if turn % 2 == 0 { 100 } else { 3 }));
    }
    world.run_for(Duration::from_secs(30));
    sent
}

const JITTER: Duration = Duration::from_millis(20);

#[test]
fn what_it_sends_from_its_new_home_overtakes_nothing() {
    for seed in 0..3 {
        let world = world(seed, JITTER, |_| {});
        let sent = wander(&world, 15, |_, _| {});
        assert_eq!(inversions(), [""; 0], "seed {seed}");
        assert_eq!((missing(sent), REFUSED.take()), (0, vec![]), "seed {seed}");
    }
}

#[test]
fn nor_while_those_move_that_it_sends_to() {
    for seed in 0..3 {
        let world = world(seed, JITTER, |_| {});
        let sent = wander(&world, 15, |world, turn| {
            (0..4).for_each(|shard| start_move::<Sink>(world, shard, (turn + shard as usize) % 3));
        });
        assert_eq!(inversions(), [""; 0], "seed {seed}");
        assert_eq!((missing(sent), REFUSED.take()), (0, vec![]), "seed {seed}");
    }
}

#[test]
fn nor_as_nodes_leave() {
    for seed in 0..3 {
        let world = world(seed, JITTER, |_| {});
        let sent = wander(&world, 9, |world, turn| {
            let home = world.owner_of::<Source>(1u64);
            if turn % 3 == 2 && home != 0 {
                world.node(home).shutdown(ShutdownReason::Requested);
            }
        });

        assert_eq!(inversions(), [""; 0], "seed {seed}");
        assert_eq!((missing(sent), REFUSED.take()), (0, vec![]), "seed {seed}");
    }
}

#[test]
fn nobody_waits_for_a_home_that_has_died() {
    for seed in 0..3 {
        let world = world(seed, JITTER, |_| {});
        start_move::<Source>(&world, 0, 1);
        world.run_for(Duration::from_secs(10));
        assert_eq!(world.owner_of::<Source>(1u64), 1);
        let go = |n: u64| {
            for _ in 0..n {
                (0..3).for_each(|source| world.entity::<Source>(0, source).tell(Go { sinks: SINKS, ask: false }).unwrap());
                world.run_for(Duration::from_millis(1));
            }
        };
        go(20);
        start_move::<Source>(&world, 0, 2);
        ADOPTED.set(0);
        // Three, and those that they send to.
        world.eventually(Duration::from_secs(10), || ADOPTED.get() == 6);
        world.kill(1);
        go(20);
        world.run_for(Duration::from_secs(60));
        go(20);
        world.run_for(Duration::from_secs(1));
        assert_eq!((inversions(), REFUSED.take()), (vec![], vec![]), "seed {seed}");
        let last = |row: &Vec<u64>| row.ends_with(&(41..=60).collect::<Vec<_>>());
        GOT.with_borrow(|got| assert!(got.values().all(last), "seed {seed}: {got:?}"));
    }
}
