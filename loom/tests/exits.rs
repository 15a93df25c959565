//! A producer changes its exit while its messages are on the way: they are handled in the order in which they were sent.
//!
//! Production: the rings, and the producer's plan of tokens. The consumers are the rules X3 and X4 of the engine's design in a few lines: the network
//! thread holds what enters behind `Leave` until `Left` has come back, the worker until `Open`.

use std::{panic::catch_unwind, sync::Mutex};

use loom::thread;
use wingbeat_loom::{
    Epoch, ShardId, ShardKey, TypeId,
    exits::{Producer as Plans, Push, Word},
    faults::check,
    ring::{Consumer, Producer, push, ring},
    sync::{Arc, AtomicU64, Ordering},
};

const SHARD: ShardKey = ShardKey { ty: TypeId(1), shard: ShardId(0) };

/// What stands in a ring: what it is, and the number of a message or of an epoch; then whether the message enters.
type Record = [u64; 3];
const MSG: u64 = 0;
const LEAVE: u64 = 1;
const OPEN: u64 = 2;
const LEFT: u64 = 3;

unsafe fn discard(_: u32, _: *mut u8) {}

fn lane() -> (Producer, Consumer) {
    // SAFETY: all records are such arrays, and there is nothing to drop in them.
    unsafe { ring(512, discard) }
}

fn put(lane: &mut Producer, record: Record) {
    // SAFETY: `discard` has nothing to do for such a record.
    assert!(unsafe { push::<Record>(lane, 0, 100, record) }.is_ok(), "a ring holds all that is ever sent");
}

fn take(lane: &mut Consumer) -> Option<Record> {
    let (_, place) = lane.front()?;
    // SAFETY: each record is such an array.
    let record = unsafe { place.cast::<Record>().read() };
    lane.advance();
    Some(record)
}

/// One lane's items for the shard that must wait, tokens among them.
#[derive(Default)]
struct Hold {
    /// The token has come that lets what enters pass.
    free: bool,
    held: Vec<Record>,
}

impl Hold {
    /// What may pass of what came: itself, or nothing yet.
    fn pass(&mut self, record: Record, holds: bool) -> Option<Record> {
        let [kind, _, enters] = record;
        if holds && (!self.held.is_empty() || (kind == MSG && enters > 0 && !std::mem::take(&mut self.free))) {
            self.held.push(record);
            return None;
        }
        Some(record)
    }

    /// The token came: what may pass now.
    fn release(&mut self) -> Vec<Record> {
        if self.held.is_empty() {
            self.free = true;
        }
        std::mem::take(&mut self.held)
    }
}

/// Where a word sends.
#[derive(Copy, Clone)]
enum Exit {
    Here,
    Elsewhere,
}

impl Exit {
    fn word(self) -> Word {
        match self {
            Self::Here => Word::local(0, Epoch::ZERO.next()),
            Self::Elsewhere => Word::ELSEWHERE,
        }
    }
}

/// Who takes the next turn.
#[derive(Copy, Clone)]
enum Turn {
    Network,
    Worker,
}

/// The two consumers, which share nothing but rings and so may take their turns on one thread, in whatever pattern.
struct Consumers {
    from_client: Consumer,
    shortcut: Consumer,
    net_to_worker: Producer,
    from_net: Consumer,
    worker_to_net: Producer,
    from_worker: Consumer,
    /// Of the network thread.
    left: Hold,
    /// Of the worker.
    opened: Hold,
    handled: u64,
    /// False where they forget to hold.
    holds: bool,
}

impl Consumers {
    /// False if there was nothing to do.
    fn turn(&mut self, turn: Turn) -> bool {
        match turn {
            Turn::Network => self.network(),
            Turn::Worker => self.worker(),
        }
    }

    fn network(&mut self) -> bool {
        let ready = if let Some([kind, ..]) = take(&mut self.from_worker) {
            assert_eq!(kind, LEFT);
            self.left.release()
        } else if let Some(record) = take(&mut self.from_client) {
            self.left.pass(record, self.holds).into_iter().collect()
        } else {
            return false;
        };
        for [kind, n, _] in ready {
            put(&mut self.net_to_worker, if kind == LEAVE { [OPEN, n, 0] } else { [MSG, n, 0] });
            self.net_to_worker.publish();
        }
        true
    }

    fn worker(&mut self) -> bool {
        let ready = if let Some(record) = take(&mut self.from_net) {
            if record[0] == OPEN { self.opened.release() } else { vec![record] }
        } else if let Some(record) = take(&mut self.shortcut) {
            self.opened.pass(record, self.holds).into_iter().collect()
        } else {
            return false;
        };
        for [kind, n, _] in ready {
            if kind == LEAVE {
                put(&mut self.worker_to_net, [LEFT, n, 0]);
                self.worker_to_net.publish();
            } else {
                assert_eq!(n, self.handled, "in the order in which they were sent");
                self.handled += 1;
            }
        }
        true
    }
}

/// So many messages while the words are published one after the other, and the consumers take their turns in that pattern.
fn change(messages: u64, words: &[Exit], turns: &[Turn], holds: bool) {
    let word = Arc::new(AtomicU64::new(Word::ELSEWHERE.bits()));
    let ((mut to_net, from_client), (mut to_worker, shortcut)) = (lane(), lane());
    let ((net_to_worker, from_net), (worker_to_net, from_worker)) = (lane(), lane());
    let (left, opened) = (Hold::default(), Hold::default());
    let mut consumers =
        Consumers { from_client, shortcut, net_to_worker, from_net, worker_to_net, from_worker, left, opened, handled: 0, holds };

    let published = word.clone();
    let client = thread::spawn(move || {
        let mut plans = Plans::default();
        for n in 0..messages {
            let word = Word::from_bits(published.load(Ordering::Acquire));
            let plan = plans.plan(SHARD, word);
            for token in plan.tokens.into_iter().flatten() {
                match token {
                    Push::LeaveNetwork(k) => put(&mut to_net, [LEAVE, k.get(), 0]),
                    Push::LeaveWorker(_, k) => put(&mut to_worker, [LEAVE, k.get(), 0]),
                    Push::Through(..) => unreachable!("all of this is within one stay"),
                }
            }
            let exit = if plan.exit.is_some() { &mut to_worker } else { &mut to_net };
            put(exit, [MSG, n, plan.enter.map_or(0, Epoch::get)]);
            plans.done(SHARD, word);
            to_net.publish();
            to_worker.publish();
        }
    });

    let mut words = words.iter();
    while consumers.handled < messages {
        if let Some(next) = words.next() {
            word.store(next.word().bits(), Ordering::Release);
        }
        let worked = turns.iter().fold(false, |worked, turn| consumers.turn(*turn) || worked);
        if !worked {
            thread::yield_now();
        }
    }
    client.join().unwrap();
}

/// Patterns in which each consumer lags behind the other.
const PATTERNS: [&[Turn]; 4] = [
    &[Turn::Network, Turn::Worker],
    &[Turn::Worker, Turn::Network],
    &[Turn::Worker, Turn::Worker, Turn::Worker, Turn::Network],
    &[Turn::Network, Turn::Network, Turn::Network, Turn::Worker],
];

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

#[test]
fn messages_keep_their_order_when_a_shortcut_opens_and_closes() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(|e| e.into_inner());
    for turns in PATTERNS {
        check(Some(2), move || change(2, &[Exit::Here], turns, true));
        check(Some(2), move || change(3, &[Exit::Here, Exit::Elsewhere], turns, true));
    }
}

#[test]
fn consumers_that_do_not_hold_are_found() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(|e| e.into_inner());
    let finds = |turns: &'static [Turn]| catch_unwind(|| check(Some(2), move || change(2, &[Exit::Here], turns, false))).is_err();
    assert!(PATTERNS.into_iter().any(finds), "tokens that nobody heeds must invert an order");
}
