//! What an idle entity costs in memory, beside its key and its state.
#![cfg(feature = "cli")]
#![allow(missing_docs, clippy::unwrap_used)]

mod support;

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicI64, AtomicU64, Ordering},
    time::{Duration, Instant},
};

use support::{PATIENCE, until_holds};
use wingbeat::{
    AskQueue, Cluster, Config, Cx, Entity, HostOptions,
    config::{Preset, Workers},
    messages,
};

/// Knows how many bytes are in use, each block rounded up to what an allocator needs for it.
struct Counting;

static IN_USE: AtomicI64 = AtomicI64::new(0);

/// A block of the usual allocators: 8 bytes of its own, and a multiple of 16 in all.
fn block(size: usize) -> i64 {
    i64::try_from((size + 8).next_multiple_of(16).max(32)).unwrap_or(i64::MAX)
}

// SAFETY: everything is passed on to the system's allocator; what is added does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        IN_USE.fetch_add(block(layout.size()), Ordering::Relaxed);
        // SAFETY: as the caller promised.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        IN_USE.fetch_sub(block(layout.size()), Ordering::Relaxed);
        // SAFETY: as the caller promised.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

messages! { pub enum CellMsg for Cell(u64) = "test.cell" { Add { n: u64 }, Total -> u64 } }

static STARTED: AtomicU64 = AtomicU64::new(0);

struct CellState {
    total: u64,
}

impl Entity for CellState {
    type Type = Cell;

    fn started(&mut self, _: &mut Cx<'_, Self>) {
        STARTED.fetch_add(1, Ordering::Relaxed);
    }

    fn handle(&mut self, msg: CellMsg, cx: &mut Cx<'_, Self>) {
        match msg {
            CellMsg::Add(Add { n }) => self.total += n,
            CellMsg::Total(_, reply) => cx.reply(reply, self.total),
        }
    }
}

/// Bytes per entity over key and state.
const OVER_MAX: i64 = 80;

#[test]
fn an_idle_entity_costs_little_beside_its_key_and_state() {
    // A million at full speed; fewer where the core's invariants are checked after every step, which says the same per entity.
    let n: u64 = if cfg!(debug_assertions) { 20_000 } else { 1_000_000 };
    let mut config = Config::preset(Preset::LocalTest);
    config.cluster.name = format!("memory-{}", std::process::id());
    config.node.listen = "127.0.0.1:0".parse().unwrap();
    config.node.workers = Workers::Count(1);
    let cluster = Cluster::builder(config).start().unwrap();
    let region = cluster.host::<CellState>(HostOptions::new().shards(100), |_| CellState { total: 0 }).unwrap();
    region.wait_ready(PATIENCE).unwrap();
    // Threads, lanes and tables of shards are there before anything is counted.
    (0..1000).for_each(|key| assert_eq!(region.get(key).ask(Total, PATIENCE), Ok(0)));
    let (before, first) = (IN_USE.load(Ordering::Relaxed), STARTED.load(Ordering::Relaxed));
    let began = Instant::now();
    // By a thread that ends, so that its rings do, which are no entities'.
    let teller = region.clone();
    let tell = move || (1000..1000 + n).for_each(|key| teller.get(key).tell_within(Add { n: 1 }, PATIENCE).unwrap());
    std::thread::spawn(tell).join().unwrap();
    until_holds("all have started", || STARTED.load(Ordering::Relaxed) - first == n);
    let took = began.elapsed();
    let queue = AskQueue::new(1);
    region.get(1000).ask_into(Total, Duration::from_secs(60), 0, &queue).unwrap();
    let mut answers = vec![];
    queue.wait(&mut answers, PATIENCE);
    assert_eq!(answers[0].result, Ok(1));
    // The worker has looked into all lanes between two answers.
    (0..2).for_each(|key| assert_eq!(region.get(key).ask(Total, PATIENCE), Ok(0)));
    let each = (IN_USE.load(Ordering::Relaxed) - before) / n as i64;
    let over = each - (size_of::<u64>() + size_of::<CellState>()) as i64;
    println!("{n} entities: {over} bytes each over key and state, {:.0} started per second", n as f64 / took.as_secs_f64());
    assert!(over <= OVER_MAX, "{over} bytes each over key and state, at most {OVER_MAX}");
}
