//! Entities that ask each other: on one worker, on several, and on other nodes.
#![allow(missing_docs, clippy::unwrap_used)]

use std::{collections::BTreeSet, time::Duration};

use wingbeat::{
    AskError, Cluster, Cx, Entity, EntityId, HostOptions, Promise, RegisterError, messages,
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
