//! What is counted: the codec of the frame that is sent most, the way of a message through one node, and its sending to another, in virtual time
//! and without threads, so that the same instructions run each time. What it takes to deliver a message that came over a socket is not among it: the
//! modelled network of the test kit would be most of that.

use std::{hint::black_box, time::Duration};

use wingbeat::{
    AskError, Cluster, Cx, Entity, EntityRef, Epoch, HostOptions, NodeId, Promise, ShardId, ShardKey, Time, TypeId,
    proto::{
        handoff::Ask as Asker,
        wire::{Context, Cut, Message, cut, encode_message, message_in},
    },
    testkit::World,
};

use crate::entity::{Bench, BenchEntity, Count, Echo, Note, PAYLOAD_BYTES, Payload};

/// Operations of a round: the frames of a block of less than 64 KiB, and less messages than a ring holds.
const ROUND: u64 = 500;
/// Rounds that are counted, behind one that warms up.
const ROUNDS: u64 = 4;
/// Largest frame.
const FRAME_MAX: usize = 1 << 20;
const ENTITIES: u64 = 100;
/// Messages that are sent together.
const BATCH: u64 = 64;
/// So much virtual time has a round to get through: turns enough, and no heartbeat.
const TIME: Duration = Duration::from_millis(2);

/// For what takes as long as it takes, in virtual time.
const PATIENCE: Duration = Duration::from_secs(10);

/// What is counted, and what for.
pub struct Row {
    /// Its name in the file of gates.
    pub name: &'static str,
    /// A slow-down can be planted.
    pub is_codec: bool,
    run: fn(Planted),
}

/// Operations that are done and do not count, in percent of those that do: a slow-down by so much.
#[derive(Copy, Clone)]
pub struct Planted(pub u64);

/// All of them.
pub const ROWS: &[Row] = &[
    Row { name: "encode a message", is_codec: true, run: |planted| encode(false, planted) },
    Row { name: "decode a message", is_codec: true, run: |planted| decode(false, planted) },
    Row { name: "encode a request", is_codec: true, run: |planted| encode(true, planted) },
    Row { name: "decode a request", is_codec: true, run: |planted| decode(true, planted) },
    Row { name: "local tell: send", is_codec: false, run: |_| tell(1, Part::Send) },
    Row { name: "local tell: send in a batch", is_codec: false, run: |_| tell_in_batches() },
    Row { name: "local tell: handle", is_codec: false, run: |_| tell(1, Part::Handle) },
    // With the steps of virtual time, which are most of it.
    Row { name: "local ask in virtual time", is_codec: false, run: |_| ask(1) },
    // With the asking entity's own turn, and those of the worker.
    Row { name: "ask between entities", is_codec: false, run: |_| ask_inside() },
    Row { name: "remote tell: send", is_codec: false, run: |_| tell(2, Part::Send) },
];

impl Row {
    /// Does the operations; those that count inside of [`counted`].
    pub fn run(&self, planted: Planted) {
        (self.run)(planted);
    }

    /// Operations that were counted.
    pub const OPERATIONS: u64 = ROUND * ROUNDS;
}

/// Instructions count while this runs: valgrind is told so by its name.
#[inline(never)]
pub fn wingbeat_counted(work: &mut dyn FnMut()) {
    work();
}

/// What `--toggle-collect` gets.
pub const COUNTED: &str = "*wingbeat_counted*";

/// A round that warms up, then those that count.
fn rounds(mut round: impl FnMut(&mut dyn FnMut(&mut dyn FnMut()))) {
    round(&mut |work| work());
    for _ in 0..ROUNDS {
        round(&mut wingbeat_counted);
    }
}

fn context() -> Context {
    Context { sender: NodeId::from_raw(7), now: Time::from_nanos(1_000_000) }
}

fn append(i: u64, asked: bool, out: &mut Vec<u8>) {
    let shard = ShardKey { ty: TypeId(0x9e37_79b9), shard: ShardId(77) };
    let ask = asked.then(|| Asker { node: NodeId::from_raw(7), correlation: i, deadline: Time::from_nanos(2_000_000) });
    let message = Message { shard, tag: Epoch::ZERO.next(), ask, key: &i.to_le_bytes(), payload: &[7; PAYLOAD_BYTES] };
    encode_message(black_box(&message), context(), FRAME_MAX, out).expect("a message of 64 bytes is shorter than any frame may be");
}

fn encode(asked: bool, planted: Planted) {
    let mut block = Vec::with_capacity(128 * 1024);
    rounds(|count| {
        count(&mut || {
            block.clear();
            for i in 0..ROUND + planted.operations() {
                append(black_box(i), asked, &mut block);
            }
        });
        black_box(&block);
    });
}

fn decode(asked: bool, planted: Planted) {
    let mut block = vec![];
    (0..ROUND + planted.operations()).for_each(|i| append(i, asked, &mut block));
    rounds(|count| {
        count(&mut || {
            let mut rest = black_box(&block[..]);
            while !rest.is_empty() {
                rest = &rest[read(rest)..];
            }
        });
    });
}

fn read(bytes: &[u8]) -> usize {
    let Ok(Cut::Frame(size)) = cut(black_box(bytes), FRAME_MAX) else { panic!("the block ends with a frame") };
    black_box(message_in(&bytes[..size], context()).expect("each frame is that of a message"));
    size
}

impl Planted {
    fn operations(self) -> u64 {
        ROUND * self.0 / 100
    }
}

/// Started entities that live on the first of so many nodes, as the last one sees them.
fn world(nodes: usize) -> (World, Vec<EntityRef<Bench>>) {
    let host = |node: &Cluster| node.host::<BenchEntity>(HostOptions::new().shards(16), |_| BenchEntity::default()).map(drop);
    let world = World::simulated(nodes).network(TIME / 20, Duration::ZERO, 0.0).on_each(host).start();
    let seen = |key| world.entity::<Bench>(nodes - 1, key);
    let ask = |key| assert_eq!(seen(key).ask(Count, PATIENCE), Ok(0));
    (0..ENTITIES).for_each(ask);
    // The shards have moved by then to where they stay.
    world.run_for(PATIENCE);
    let all: Vec<_> = (0u64..).filter(|key| world.owner_of::<Bench>(*key) == 0).take(ENTITIES as usize).collect();
    all.iter().copied().for_each(ask);
    let all = all.into_iter().map(seen).collect();
    (world, all)
}

#[derive(Copy, Clone, PartialEq)]
enum Part {
    Send,
    Handle,
}

fn tell(nodes: usize, part: Part) {
    let (world, all) = world(nodes);
    let mut told = 0;
    rounds(|count| {
        let mut send = || {
            for i in 0..ROUND {
                let sent = all[(i % ENTITIES) as usize].tell(Note(Payload([i; 8])));
                sent.expect("the ring has room for a round");
            }
        };
        let mut handle = || world.run_for(TIME);
        match part {
            Part::Send => {
                count(&mut send);
                handle();
            }
            Part::Handle => {
                send();
                count(&mut handle);
            }
        }
        told += ROUND;
    });
    let handled: u64 = all.iter().map(|entity| entity.ask(Count, PATIENCE).expect("it is there")).sum();
    assert_eq!(handled, told);
}

fn tell_in_batches() {
    let (world, all) = world(1);
    let region = world.node(0).region::<Bench>().expect("the type is hosted there");
    let (mut batch, mut told) = (region.batch(), 0);
    rounds(|count| {
        count(&mut || {
            let mut i = 0;
            while i < ROUND {
                let end = ROUND.min(i + BATCH);
                for i in i..end {
                    batch.push(*all[(i % ENTITIES) as usize].key(), Note(Payload([i; 8])));
                }
                let report = batch.send();
                assert_eq!(report.accepted as u64, end - i, "the ring has room for a round");
                i = end;
            }
        });
        world.run_for(TIME);
        told += ROUND;
    });
    let handled: u64 = all.iter().map(|entity| entity.ask(Count, PATIENCE).expect("it is there")).sum();
    assert_eq!(handled, told);
}

fn ask(nodes: usize) {
    let (_world, all) = world(nodes);
    rounds(|count| {
        count(&mut || {
            for i in 0..ROUND {
                let answer = all[(i % ENTITIES) as usize].ask(Echo(Payload([i; 8])), PATIENCE);
                assert!(answer.is_ok_and(|words| words.0 == [i; 8]));
            }
        });
    });
}

wingbeat::messages! {
    /// Messages of an entity that asks others, one after the other.
    pub enum ChainMsg for Chain(u64) = "gates.chain" {
        /// So many times.
        Ask { times: u64 } -> u64,
        Answered { was: u64 },
    }
}

/// Asks the entities of the measurement in turn.
struct Asking {
    all: Vec<EntityRef<Bench>>,
    left: u64,
    over: Option<Promise<u64>>,
}

impl Entity for Asking {
    type Type = Chain;

    fn handle(&mut self, msg: ChainMsg, cx: &mut Cx<'_, Self>) {
        match msg {
            ChainMsg::Ask(Ask { times }, reply) => (self.left, self.over) = (times, Some(cx.defer(reply))),
            ChainMsg::Answered(Answered { was }) => self.left = was - 1,
        }
        let left = self.left;
        if left > 0 {
            let then = move |answer: Result<Payload, AskError>| {
                assert!(answer.is_ok_and(|words| words.0 == [left; 8]));
                Answered { was: left }
            };
            cx.ask(&self.all[(left % ENTITIES) as usize], Echo(Payload([left; 8])), PATIENCE, then);
        } else if let Some(over) = self.over.take() {
            over.fulfil(left);
        }
    }
}

fn ask_inside() {
    let (world, all) = world(1);
    let hosted = world.node(0).host::<Asking>(HostOptions::new(), move |_| Asking { all: all.clone(), left: 0, over: None });
    let asking = hosted.expect("nobody else has that type").get(0);
    rounds(|count| count(&mut || assert_eq!(asking.ask(Ask { times: ROUND }, PATIENCE), Ok(0))));
}
