//! The ways to call entities from threads: completion queues, futures, batches; and what each costs in allocations.
#![cfg(feature = "cli")]
#![allow(missing_docs, clippy::unwrap_used)]

mod support;

use std::{
    alloc::{GlobalAlloc, Layout, System},
    future::Future,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    thread::{self, Thread},
    time::Duration,
};

use parking_lot::{Condvar, Mutex};
use support::{PATIENCE, until_holds};
use wingbeat::{
    Answer, AskError, AskQueue, Cluster, Config, Cx, Entity, HostOptions, Refusal, Region, ShutdownReason,
    config::{Preset, Workers},
    messages,
};

/// Counts allocations of threads that asked for it.
struct Counting;

thread_local! {
    static COUNTED: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: everything is passed on to the system's allocator; what is added does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if COUNTED.try_with(|c| c.get()).unwrap_or(false) {
            ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        }
        // SAFETY: as the caller promised.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: as the caller promised.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

messages! {
    pub enum CounterMsg for Counter(u64) = "test.counter" {
        Add { n: u64 },
        Total -> u64,
        Mark { n: u64 },
        Marks -> Vec<u64>,
        Block,
        Silent -> u64,
        Never -> u64,
    }
}

#[derive(Default)]
struct Gate {
    open: Mutex<bool>,
    opened: Condvar,
    blocked: AtomicUsize,
    owed: Mutex<Vec<wingbeat::Promise<u64>>>,
}

impl Gate {
    fn open(&self) {
        *self.open.lock() = true;
        self.opened.notify_all();
    }
}

struct CounterState {
    gate: Arc<Gate>,
    total: u64,
    marks: Vec<u64>,
}

impl Entity for CounterState {
    type Type = Counter;

    fn handle(&mut self, msg: CounterMsg, cx: &mut Cx<'_, Self>) {
        match msg {
            CounterMsg::Add(Add { n }) => self.total += n,
            CounterMsg::Total(_, reply) => cx.reply(reply, self.total),
            CounterMsg::Mark(Mark { n }) => self.marks.push(n),
            CounterMsg::Marks(_, reply) => cx.reply(reply, self.marks.clone()),
            CounterMsg::Block(_) => {
                self.gate.blocked.fetch_add(1, Ordering::SeqCst);
                let mut open = self.gate.open.lock();
                while !*open {
                    self.gate.opened.wait(&mut open);
                }
            }
            CounterMsg::Silent(_, _reply) => {}
            CounterMsg::Never(_, reply) => self.gate.owed.lock().push(cx.defer(reply)),
        }
    }
}

fn node(name: &str, change: impl FnOnce(&mut Config)) -> (Cluster, Region<Counter>, Arc<Gate>) {
    let mut config = Config::preset(Preset::LocalTest);
    config.cluster.name = format!("{name}-{}", std::process::id());
    config.node.listen = "127.0.0.1:0".parse().unwrap();
    config.node.workers = Workers::Count(1);
    change(&mut config);
    let cluster = Cluster::builder(config).start().unwrap();
    let gate = Arc::new(Gate::default());
    let theirs = gate.clone();
    let make = move |_: &u64| CounterState { gate: theirs.clone(), total: 0, marks: vec![] };
    let region = cluster.host::<CounterState>(HostOptions::new().shards(8), make).unwrap();
    region.wait_ready(PATIENCE).unwrap();
    (cluster, region, gate)
}

/// A node that only sends to that one.
fn sender(home: &Cluster) -> (Cluster, Region<Counter>) {
    let mut config = home.config().clone();
    config.node.listen = "127.0.0.1:0".parse().unwrap();
    let cluster = Cluster::builder(config).seeds([home.addr().to_string()]).start().unwrap();
    let region = cluster.proxy::<Counter>().unwrap();
    cluster.wait_members(2, PATIENCE).unwrap();
    region.wait_ready(PATIENCE).unwrap();
    (cluster, region)
}

fn drain(queue: &AskQueue<u64>) -> Vec<Answer<u64>> {
    let mut answers = vec![];
    while queue.in_flight() > 0 {
        assert!(queue.wait(&mut answers, PATIENCE) > 0, "{} of the answers are missing", queue.in_flight());
    }
    answers
}

#[test]
fn thousands_of_asks_in_flight_come_back_once_each() {
    let (_cluster, region, _) = node("queue", |_| {});
    (0..100).for_each(|key| region.get(key).tell(Add { n: key }).unwrap());
    let queue = AskQueue::new(5_000);
    let mut answers = vec![];
    for tag in 0..5_000 {
        let entity = region.get(tag % 100);
        let mut asked = entity.ask_into(Total, PATIENCE, tag, &queue);
        while let Err(refused) = asked {
            // The ring to the worker is smaller than the queue.
            assert_eq!(*refused.reason(), Refusal::Full);
            queue.poll(&mut answers);
            asked = entity.ask_into(Total, PATIENCE, tag, &queue);
        }
    }
    answers.extend(drain(&queue));
    answers.sort_by_key(|answer| answer.tag);
    assert_eq!(answers.len(), 5_000);
    for (answer, tag) in answers.iter().zip(0..) {
        assert_eq!((answer.tag, &answer.result), (tag, &Ok(tag % 100)));
    }
}

#[test]
fn a_queue_that_owes_as_much_as_it_holds_refuses_and_gives_the_message_back() {
    let (_cluster, region, _) = node("full", |_| {});
    let queue = AskQueue::new(2);
    let entity = region.get(1);
    for tag in 0..2 {
        entity.ask_into(Total, PATIENCE, tag, &queue).unwrap();
    }
    let refused = entity.ask_into(Total, PATIENCE, 2, &queue).unwrap_err();
    assert_eq!(*refused.reason(), Refusal::Full);
    assert!(matches!(refused.into_message(), CounterMsg::Total(..)));
    assert_eq!(drain(&queue).len(), 2);
    entity.ask_into(Total, PATIENCE, 3, &queue).unwrap();
    assert_eq!(drain(&queue)[0].tag, 3);
    assert_eq!(queue.wait(&mut vec![], PATIENCE), 0, "nobody waits for what was not asked");
}

#[test]
fn every_accepted_ask_ends_with_its_deadline_or_with_the_node() {
    let (cluster, region, gate) = node("ends", |_| {});
    let queue = AskQueue::new(8);
    let entity = region.get(1);
    entity.ask_into(Silent, PATIENCE, 1, &queue).unwrap();
    entity.ask_into(Never, Duration::from_secs(2), 2, &queue).unwrap();
    let answers = drain(&queue);
    assert_eq!(answers[0].result, Err(AskError::NoReply));
    assert_eq!(answers[1].result, Err(AskError::Timeout { maybe_ran: true }));
    entity.ask_into(Never, Duration::from_secs(3600), 3, &queue).unwrap();
    let (tx, rx) = wingbeat::channel::bounded(1);
    entity.ask_then(Never, Duration::from_secs(3600), move |answer| tx.send(answer).unwrap());
    until_holds("all are there", || gate.owed.lock().len() == 3);
    assert!(cluster.shutdown(ShutdownReason::Requested).wait(PATIENCE).is_some());
    assert_eq!(drain(&queue)[0].result, Err(AskError::Shutdown), "no deadline has passed");
    assert_eq!(rx.recv_timeout(PATIENCE).unwrap(), Err(AskError::Shutdown));
}

#[test]
fn a_wake_hook_lets_another_loop_sleep() {
    let (_cluster, region, _) = node("wake", |_| {});
    let queue = AskQueue::new(64);
    let me = thread::current();
    let woken = Arc::new(AtomicUsize::new(0));
    let count = woken.clone();
    queue.set_wake(Arc::new(move || {
        count.fetch_add(1, Ordering::SeqCst);
        me.unpark();
    }));
    (0..64).for_each(|tag| region.get(tag).ask_into(Total, PATIENCE, tag, &queue).unwrap());
    let mut answers = vec![];
    while answers.len() < 64 {
        if queue.poll(&mut answers) == 0 {
            thread::park_timeout(PATIENCE);
        }
    }
    assert!((1..=64).contains(&woken.load(Ordering::SeqCst)));
}

#[test]
fn a_hook_on_the_network_thread_must_not_wait() {
    let (cluster, counters, _gate) = node("hooks", |_| {});
    let (queue, (said, hears)) = (AskQueue::new(8), wingbeat::channel::bounded(1));
    let counter = counters.get(2);
    queue.set_wake(Arc::new(move || drop(said.try_send(counter.ask(Total, PATIENCE)))));
    // Its deadline is the network thread's to see.
    counters.get(1).ask_into(Never, Duration::from_millis(20), 1, &queue).unwrap();
    assert_eq!(hears.recv_timeout(PATIENCE).unwrap(), Err(AskError::WouldDeadlock));
    assert!(cluster.shutdown(ShutdownReason::Requested).wait(PATIENCE).is_some());
}

/// Asks as its thread is torn down.
struct LastWords(Region<Counter>, wingbeat::channel::Sender<Result<u64, AskError>>);

impl Drop for LastWords {
    fn drop(&mut self) {
        drop(self.1.send(self.0.get(7).ask(Total, PATIENCE)));
    }
}

thread_local!(static LAST_WORDS: std::cell::RefCell<Option<LastWords>> = const { std::cell::RefCell::new(None) });

#[test]
fn the_end_of_what_a_thread_keeps_may_ask() {
    let (cluster, counters, _gate) = node("last-words", |_| {});
    let (said, hears) = wingbeat::channel::bounded(1);
    let asks = move || {
        // In front of what the library keeps, so that this is gone behind it.
        LAST_WORDS.set(Some(LastWords(counters.clone(), said)));
        counters.get(7).ask(Total, PATIENCE).unwrap();
    };
    thread::spawn(asks).join().unwrap();
    let answer = hears.recv_timeout(PATIENCE).unwrap();
    assert!(matches!(answer, Ok(0) | Err(AskError::Refused(Refusal::Shutdown) | AskError::Shutdown)), "{answer:?}");
    assert!(cluster.shutdown(ShutdownReason::Requested).wait(PATIENCE).is_some());
}

#[test]
fn an_ask_into_a_queue_allocates_nothing_of_its_own() {
    let (_cluster, region, _) = node("allocations", |_| {});
    let queue = AskQueue::new(256);
    let entity = region.get(1);
    let mut answers = Vec::with_capacity(256);
    let mut round = || {
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        COUNTED.set(true);
        (0..200).for_each(|tag| entity.ask_into(Total, PATIENCE, tag, &queue).unwrap());
        while queue.in_flight() > 0 {
            queue.wait(&mut answers, PATIENCE);
        }
        COUNTED.set(false);
        answers.clear();
        ALLOCATIONS.load(Ordering::Relaxed) - before
    };
    // Until the shard's home is known here, the network's work is done by who waits, and that allocates.
    until_holds("messages go straight to their worker", || round() == 0);
    assert_eq!((0..10).map(|_| round()).sum::<u64>(), 0, "allocations for 2000 asks");
}

/// Runs a future on this thread.
fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park_timeout(PATIENCE),
        }
    }
}

#[test]
fn answers_are_futures_for_any_runtime() {
    let (_cluster, region, gate) = node("futures", |_| {});
    region.get(7).tell(Add { n: 7 }).unwrap();
    let sum = block_on(async {
        // Sent at once, and in this order.
        let asks: Vec<_> = (0..10).map(|key| region.get(key).ask_async(Total, PATIENCE)).collect();
        let mut sum = 0;
        for ask in asks {
            sum += ask.await.unwrap();
        }
        sum
    });
    assert_eq!(sum, 7);
    assert_eq!(block_on(region.get(1).ask_async(Never, Duration::from_secs(2))), Err(AskError::Timeout { maybe_ran: true }));
    let dropped = region.get(1).ask_async(Never, PATIENCE);
    drop(dropped);
    until_holds("it runs all the same", || gate.owed.lock().len() == 2);
}

// Other threads that wait do the network's work meanwhile, so answers and results come by their hands.
#[test]
fn a_callback_may_wait_for_answers_of_other_nodes_and_for_the_cluster() {
    let (home, _, _) = node("callback", |_| {});
    let (_cluster, region) = sender(&home);
    let helpers = AtomicBool::new(true);
    thread::scope(|scope| {
        let _stop = Stop(&helpers);
        scope.spawn(|| {
            while helpers.load(Ordering::Relaxed) {
                region.get(1).ask(Total, PATIENCE).unwrap();
            }
        });
        for key in 0..300 {
            let (tx, rx) = wingbeat::channel::bounded(1);
            let (entity, queue) = (region.get(key), AskQueue::new(1));
            queue.set_wake(Arc::new(|| {}));
            let everywhere = region.clone();
            region.get(2).ask_then(Total, PATIENCE, move |_| {
                let awaited = block_on(entity.ask_async(Total, PATIENCE));
                entity.ask_into(Total, PATIENCE, 0, &queue).unwrap();
                let drained = drain(&queue);
                let known = everywhere.table(PATIENCE).map(|table| table.len());
                _ = tx.send((awaited, drained[0].result.clone(), known));
            });
            assert_eq!(rx.recv_timeout(PATIENCE).unwrap(), (Ok(0), Ok(0), Ok(8)));
        }
    });
}

/// Ends what others do while this is true, also if the test fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

#[test]
fn a_batch_keeps_the_order_per_entity_and_gives_back_what_was_refused() {
    let (_cluster, region, gate) = node("batch", |config| config.limits.ring_items = 64);
    let mut batch = region.batch();
    for n in 0..40 {
        batch.push(n % 4, Mark { n });
    }
    assert_eq!(batch.len(), 40);
    let report = batch.send();
    assert_eq!((report.accepted, report.refused.len(), batch.is_empty()), (40, 0, true));
    assert_eq!(region.get(1).ask(Marks, PATIENCE), Ok((0..40).filter(|n| n % 4 == 1).collect()));
    // Its shard is known to be here, so that what is sent to it goes into the worker's ring.
    assert_eq!(region.get(5).ask(Marks, PATIENCE), Ok(vec![]));
    // The worker stands still, so that the ring fills.
    region.get(9).tell(Block).unwrap();
    until_holds("it stands still", || gate.blocked.load(Ordering::SeqCst) == 1);
    for n in 0..200 {
        batch.push(5u64, Mark { n });
    }
    let report = batch.send();
    assert!((1..200).contains(&report.accepted), "{}", report.accepted);
    assert_eq!(report.accepted + report.refused.len(), 200);
    let back: Vec<u64> = report
        .refused
        .into_iter()
        .map(|(key, refused)| {
            assert_eq!((key, refused.reason()), (5, &Refusal::Full));
            let CounterMsg::Mark(Mark { n }) = refused.into_message() else { panic!("another message came back") };
            n
        })
        .collect();
    assert_eq!(back, (report.accepted as u64..200).collect::<Vec<_>>(), "the end of the row, in order");
    gate.open();
    for n in back {
        region.get(5).tell_within(Mark { n }, PATIENCE).unwrap();
    }
    until_holds("all has come, in order", || region.get(5).ask(Marks, PATIENCE).is_ok_and(|marks| marks == (0..200).collect::<Vec<_>>()));
}

#[test]
fn a_batch_waits_for_room_and_keeps_the_order_per_entity() {
    let (_cluster, region, gate) = node("patient-batch", |config| config.limits.ring_items = 64);
    let mut batch = region.batch();
    // Their shards are known to be here, so that no message goes by the longer ring of the network thread.
    (0..2).for_each(|key| assert_eq!(region.get(key).ask(Marks, PATIENCE), Ok(vec![])));
    region.get(9).tell(Block).unwrap();
    until_holds("it stands still", || gate.blocked.load(Ordering::SeqCst) == 1);
    for n in 0..200 {
        batch.push(n % 2, Mark { n });
    }
    let report = batch.send_within(Duration::from_millis(5));
    assert!((1..200).contains(&report.accepted) && batch.is_empty(), "{report:?} {batch:?}");
    assert!(report.refused.iter().all(|(_, refused)| *refused.reason() == Refusal::Full));
    let accepted = report.accepted as u64;
    assert_eq!(accepted + report.refused.len() as u64, 200);
    for (key, refused) in report.refused {
        batch.push(key, refused.into_message());
    }
    let opener = thread::spawn(move || gate.open());
    let report = batch.send_within(PATIENCE);
    assert_eq!((report.accepted as u64, report.refused.len()), (200 - accepted, 0));
    opener.join().unwrap();
    for key in 0..2 {
        let wanted: Vec<u64> = (0..200).filter(|n| n % 2 == key).collect();
        until_holds("all has come, in order", || region.get(key).ask(Marks, PATIENCE).is_ok_and(|marks| marks == wanted));
    }
}
