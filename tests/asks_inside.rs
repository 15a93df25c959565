//! Entities that ask each other: on one worker, on several, and on other nodes.
#![allow(missing_docs, clippy::unwrap_used)]

use std::{
    cell::RefCell,
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use wingbeat::{
    AskError, Cluster, Cx, Directive, Entity, EntityId, Failure, HandedOver, Handoff, HostOptions, PanicInfo, Promise, RegisterError,
    ShardId, messages,
    testkit::{World, WorldBuilder},
};

messages! {
    pub enum CrowdMsg for Crowd(u64) = "test.crowd" {
        /// Asks so many others, and this one among them, all at once: the keys of those that answered.
        AskAll { n: u64 } -> Vec<u64>,
        Who -> u64,
        Answered { who: Result<u64, String> },
    }
}

const LONG: Duration = Duration::from_secs(60);

#[derive(Default)]
struct One {
    asked: u64,
    answered: Vec<u64>,
    waits: Option<Promise<Vec<u64>>>,
}

impl Entity for One {
    type Type = Crowd;

    fn handle(&mut self, msg: CrowdMsg, cx: &mut Cx<'_, Self>) {
        match msg {
            CrowdMsg::AskAll(AskAll { n }, reply) => {
                (self.asked, self.waits) = (n, Some(cx.defer(reply)));
                for key in 0..n {
                    let other = cx.resolve(&EntityId::<Crowd>::new(key)).unwrap();
                    let then = |who: Result<u64, AskError>| Answered { who: who.map_err(|error| error.to_string()) };
                    cx.ask(&other, Who, LONG, then);
                }
            }
            CrowdMsg::Who(Who, reply) => cx.reply(reply, *cx.id()),
            CrowdMsg::Answered(Answered { who }) => {
                self.answered.push(who.unwrap());
                if self.answered.len() as u64 == self.asked
                    && let Some(waits) = self.waits.take()
                {
                    waits.fulfil(std::mem::take(&mut self.answered));
                }
            }
        }
    }
}

fn crowd(node: &Cluster) -> Result<(), RegisterError> {
    node.host::<One>(HostOptions::new().shards(16), |_| One::default()).map(drop)
}

/// More than are handled in one turn of a worker.
const MANY: u64 = 300;

fn all_answer(world: WorldBuilder) {
    let world = world.on_each(crowd).start();
    for round in 0..3 {
        let answered = world.entity::<Crowd>(0, 7u64).ask(AskAll { n: MANY }, LONG).unwrap();
        let keys: BTreeSet<u64> = answered.iter().copied().collect();
        assert_eq!((answered.len() as u64, keys), (MANY, (0..MANY).collect()), "round {round}");
    }
}

#[test]
fn each_answer_comes_once_on_one_node() {
    all_answer(World::simulated(1).seed(1));
    all_answer(World::real(1));
}

#[test]
fn each_answer_comes_once_among_nodes() {
    all_answer(World::simulated(3).seed(2));
    all_answer(World::real(2));
}

messages! {
    pub enum AgainMsg for Again(u64) = "test.again" { Begin { n: u64 }, Ping -> u64, Got { answered: bool } }
}

/// Asks again when it is refused.
struct Stubborn {
    refused: Arc<AtomicU64>,
    answered: Arc<AtomicU64>,
}

impl Stubborn {
    fn ask(cx: &mut Cx<'_, Self>) {
        let other = cx.resolve(&EntityId::<Again>::new(2)).unwrap();
        cx.ask(&other, Ping, LONG, |answer: Result<u64, AskError>| Got { answered: answer.is_ok() });
    }
}

impl Entity for Stubborn {
    type Type = Again;

    fn handle(&mut self, msg: AgainMsg, cx: &mut Cx<'_, Self>) {
        match msg {
            AgainMsg::Begin(Begin { n }) => (0..n).for_each(|_| Self::ask(cx)),
            AgainMsg::Ping(Ping, reply) => cx.reply(reply, 1),
            AgainMsg::Got(Got { answered: true }) => _ = self.answered.fetch_add(1, Ordering::Relaxed),
            AgainMsg::Got(Got { answered: false }) => {
                self.refused.fetch_add(1, Ordering::Relaxed);
                Self::ask(cx);
            }
        }
    }
}

#[test]
fn who_asks_again_when_it_is_refused_does_not_stop_its_worker() {
    let (refused, answered) = (Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default());
    let counted = (refused.clone(), answered.clone());
    let world = World::real(1)
        .on_each(move |node| {
            let (refused, answered) = counted.clone();
            let make = move |_: &u64| Stubborn { refused: refused.clone(), answered: answered.clone() };
            node.host::<Stubborn>(HostOptions::new().shards(1), make).map(drop)
        })
        .start();
    assert_eq!(world.entity::<Again>(0, 2u64).ask(Ping, LONG), Ok(1));
    const ALL: u64 = 20_000;
    world.entity::<Again>(0, 1u64).tell(Begin { n: ALL }).unwrap();
    world.eventually(LONG, || {
        assert_eq!(world.entity::<Again>(0, 2u64).ask(Ping, LONG), Ok(1), "others are served meanwhile");
        answered.load(Ordering::Relaxed) == ALL
    });
    assert!(refused.load(Ordering::Relaxed) > ALL / 2, "most of them found no room at first");
}

messages! { pub enum PoliteMsg for Polite(String) = "test.polite" { Try {}, Noted { outside: bool }, Said -> bool } }

thread_local!(static INSIDE: std::cell::Cell<bool> = const { std::cell::Cell::new(false) });

/// Asks somebody whom it cannot.
#[derive(Default)]
struct Refused {
    outside: Option<bool>,
}

impl Entity for Refused {
    type Type = Polite;

    fn handle(&mut self, msg: PoliteMsg, cx: &mut Cx<'_, Self>) {
        match msg {
            PoliteMsg::Try(_) => {
                INSIDE.set(true);
                let nobody = cx.resolve(&EntityId::<Polite>::new(String::new())).unwrap();
                cx.ask(&nobody, Said, LONG, |answer: Result<bool, AskError>| {
                    assert!(matches!(answer, Err(AskError::Refused(_))), "{answer:?}");
                    Noted { outside: !INSIDE.get() }
                });
                INSIDE.set(false);
            }
            PoliteMsg::Noted(Noted { outside }) => self.outside = Some(outside),
            PoliteMsg::Said(Said, reply) => cx.reply(reply, self.outside == Some(true)),
        }
    }
}

#[test]
fn what_comes_of_a_refused_ask_is_made_outside_of_the_turn() {
    let world = World::real(1).on_each(|node| node.host::<Refused>(HostOptions::new(), |_| Refused::default()).map(drop)).start();
    let polite = world.entity::<Polite>(0, "p");
    polite.tell(Try {}).unwrap();
    world.eventually(LONG, || polite.ask(Said, LONG) == Ok(true));
}

messages! {
    pub enum TanglesMsg for Tangles(u64) = "test.tangles" {
        Tangle { seed: u64, n: u64 },
        Do { what: u64 } -> u64,
        Late {},
        Came { id: u64 },
    }
}

#[derive(Default)]
struct Counts {
    asked: u64,
    ended: u64,
    came: Vec<u64>,
}

thread_local!(static COUNTS: RefCell<Counts> = RefCell::default());

/// Asks others that answer, do not, panic before or after, end, or answer late; and refuses to move now and then.
#[derive(Default)]
struct Tangled {
    owed: Vec<Promise<u64>>,
    refuses: bool,
}

impl Tangled {
    fn ask(cx: &mut Cx<'_, Self>, to: u64, what: u64) {
        let id = COUNTS.with_borrow_mut(|counts| {
            counts.asked += 1;
            counts.asked
        });
        let other = cx.resolve(&EntityId::<Tangles>::new(to)).unwrap();
        cx.ask(&other, Do { what }, Duration::from_secs(2), move |_: Result<u64, AskError>| {
            COUNTS.with_borrow_mut(|counts| counts.ended += 1);
            Came { id }
        });
    }
}

impl Entity for Tangled {
    type Type = Tangles;

    fn handle(&mut self, msg: TanglesMsg, cx: &mut Cx<'_, Self>) {
        match msg {
            TanglesMsg::Tangle(Tangle { seed, n }) => {
                for i in 0..n {
                    let random =
                        (seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(i.wrapping_mul(1_442_695_040_888_963_407))) >> 33;
                    Self::ask(cx, random % 40, random / 40);
                }
                self.refuses = seed % 5 == 0;
            }
            TanglesMsg::Do(Do { what }, reply) => match what % 60 {
                0 => {
                    cx.reply(reply, what);
                    panic!("on purpose, behind the answer");
                }
                1 => panic!("on purpose, in front of the answer"),
                2 => {
                    cx.reply(reply, what);
                    cx.passivate();
                }
                3 => {
                    cx.reply(reply, what);
                    cx.fail(Failure::new("on purpose"));
                }
                4 => {
                    self.owed.push(cx.defer(reply));
                    cx.timer_once(what, Duration::from_millis(what % 7), Late {});
                }
                5 => {
                    let other = cx.resolve(&EntityId::<Tangles>::new(what % 39)).unwrap();
                    cx.forward(reply, &other, Do { what: 7 });
                }
                6 => drop(cx.defer(reply)),
                _ => cx.reply(reply, what),
            },
            TanglesMsg::Late(_) => self.owed.drain(..).for_each(|owed| owed.fulfil(1)),
            TanglesMsg::Came(Came { id }) => COUNTS.with_borrow_mut(|counts| counts.came.push(id)),
        }
    }

    fn handoff(&mut self, cx: &mut Cx<'_, Self>) -> Result<Handoff, Failure> {
        if std::mem::take(&mut self.refuses) && cx.id().is_multiple_of(13) {
            return Err(Failure::new("not now"));
        }
        let other = *cx.id() / 2;
        Self::ask(cx, other, 7);
        cx.hand_over(&1u64)
    }

    fn adopted(&mut self, _: HandedOver<'_>, _: &mut Cx<'_, Self>) -> Result<(), Failure> {
        Ok(())
    }

    fn supervise(_: &PanicInfo, _: u32) -> Directive {
        Directive::Restart
    }
}

fn tangles(node: &Cluster) -> Result<(), RegisterError> {
    node.host::<Tangled>(HostOptions::new().shards(4), |_| Tangled::default()).map(drop)
}

#[test]
fn each_ask_ends_once_and_its_message_comes_once_while_shards_move_and_entities_fail() {
    for seed in 0..3 {
        COUNTS.with_borrow_mut(|counts| *counts = Counts::default());
        let world = World::simulated(2).seed(seed).on_each(tangles).start();
        for round in 0..60u64 {
            for k in 0..5 {
                let to = world.entity::<Tangles>((k % 2) as usize, (round * 7 + k) % 40);
                to.tell(Tangle { seed: seed * 1000 + round * 10 + k, n: 30 }).unwrap();
            }
            world.run_for(Duration::from_millis(3));
            if round % 3 == 0 {
                // One of the two has it, and the other one refuses.
                let shard = ShardId((round / 3 % 4) as u32);
                let moved = [0, 1].map(|i| world.node(i).admin().move_shard::<Tangles>(shard, world.node(1 - i).id()).is_ok());
                assert!(moved.contains(&true), "{moved:?}");
            }
        }
        world.run_for(Duration::from_secs(40));
        COUNTS.with_borrow(|counts| {
            let once: BTreeSet<u64> = counts.came.iter().copied().collect();
            assert!(counts.asked > 5_000, "{}", counts.asked);
            assert_eq!((counts.ended, once.len()), (counts.asked, counts.came.len()), "seed {seed}");
        });
    }
}
