//! A worker thread: owns a slice of the node's shards and runs their entities.

mod letters;

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;

use self::letters::GROUP;
use crate::{
    AskError, ShardKey, Time, TypeId,
    engine::{
        exits,
        idle::{Idler, Rest, UNSURE},
        lane::{Front, Item, Ring},
        moment::Moment,
        node::{Node, ToNet, ToWorker, Vital},
        out::{Later, OpenAsk},
        panics,
        parcel::{Answered, EngineParcel},
        senders::Senders,
        sys,
        topics::Value,
        types::Instance,
        watches::Told,
        window::{self, Sleeper},
        worker_host::WorkerHost,
    },
    metrics::SAMPLED,
    proto::{
        handoff::{DropReason, Envelope},
        shard::{Host, LaneId, LaneItem, Parcel, Place, ShardCommand, ShardCore, ShardReport},
    },
};

/// Items taken from one lane before the next one has its turn.
const BATCH: usize = 64;
/// So many times that, where that takes hardly any time and nobody else waits: what a turn costs beside what is handled in it is for more of it then.
const BATCHES: usize = 8;
/// Refused asks and messages to itself that entities get in a turn: who reacts to a refusal by trying again has no more turns than that between those of the
/// lanes, which make the room.
const LATERS: usize = 16 * BATCH;
/// So many times in a turn timers are handled, at most.
const TIMER_ROUNDS: usize = 64;

/// Looks into lanes per reading of the clock, by a worker that waits, all lanes together: a tenth of a microsecond. Each has one at least.
const LOOKS: usize = 16;

/// How often a worker that ends offers what it has for the network thread: that may have ended first.
const LAST_FLUSHES: usize = 10_000;

/// The longest sleep without a timer: a guard, not a tick.
const SLEEP_MAX: Duration = Duration::from_secs(3600);

/// What a turn took from the lanes.
#[derive(Default)]
struct Took {
    /// Something.
    worked: bool,
    /// Word that the worker is to end.
    quit: bool,
    /// The last item of those lanes.
    ended: Vec<LaneId>,
}

/// A worker without its thread: the work of one is a row of [`turn`](Self::turn)s, each a function of the moment and of what came in.
pub struct Worker {
    index: u16,
    node: Arc<Node>,
    core: ShardCore<WorkerHost>,
    host: WorkerHost,
    lanes: Vec<Ring<ToWorker>>,
    until: Time,
    /// Threads send nothing any more, and the network thread waits until what they had sent has come out of the lanes.
    quiesces: bool,
    /// A message of a sender on this node was handled in this turn.
    local: bool,
    /// The lanes of its thread are known as its own.
    known: bool,
    /// Turns that found something to do.
    worked: u32,
    /// The last work had to do with another node.
    abroad: bool,
    /// The last sleep was at the window, and ended for nothing.
    disturbed: bool,
    /// Messages whose entities are searched for at once: one behind a turn that made what was found stale, or a search in vain.
    group: usize,
    /// Last, as it says that all the others are gone.
    _done: Done,
}

/// Tells the network thread that the worker is gone, be it that its thread has panicked.
struct Done(Arc<Node>);

impl Drop for Done {
    fn drop(&mut self) {
        self.0.worker_done();
    }
}

/// Ends a worker's lanes with its thread.
struct End<'a>(&'a Arc<Node>, u16);

impl Drop for End<'_> {
    fn drop(&mut self) {
        let Self(node, index) = self;
        node.workers[usize::from(*index)].end(node.give_up_here());
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.node.workers[usize::from(self.index)].leave(std::mem::take(&mut self.lanes));
    }
}

/// Runs worker `index` until it is told to quit. The calling thread is the worker, which its bell wakes by `me`.
pub fn run(node: Arc<Node>, index: u16, seed: u64, me: &Mutex<Sleeper>) {
    panics::watch_this_thread();
    let _vital = Vital(&node);
    let mut idler = Idler::of_engine(node.config.node.idle);
    // Behind the worker. Of one that has panicked in the middle of its lanes they are gone: what stood in them is not counted.
    let _end = End(&node, index);
    let mut worker = Worker::new(node.clone(), index, seed);
    crate::api::mark_engine_thread(true);
    let clock = worker.node.clock.clone();
    let mut began = Moment::read(&clock);
    loop {
        let now = began.now;
        match worker.turn(began) {
            Step::Quit => break,
            Step::Worked => {
                idler.worked(now);
                if worker.is_sampled() {
                    worker.node.metrics.worker_turn.offer(worker.node.now().since(now));
                }
                if let Some(then) = worker.awaits_more(idler.looks()) {
                    began = then;
                    continue;
                }
            }
            Step::Timers => {
                idler.worked(now);
                // More of them may be due, and none of them is waited for as what comes in is.
                if worker.abroad {
                    worker.node.help_network();
                }
            }
            Step::Idle => match idler.rest(now) {
                // Its last work came from another node, and so does the next.
                Rest::Spin | Rest::Yield if worker.abroad && worker.node.help_network() => {}
                Rest::Spin => std::hint::spin_loop(),
                Rest::Yield => {
                    std::thread::yield_now();
                    idler.yielded(now, sys::now());
                }
                Rest::Park => worker.sleep(me),
            },
        }
        began = Moment::read(&clock);
    }
    worker.end();
}

/// What is at the front of a lane, as an item.
fn long_way(lane: &mut Ring<ToWorker>) -> Option<ToWorker> {
    lane.with_next(|front| match front {
        Front::Item(item) => item,
        Front::Letter(letter) => ToWorker::of_letter(letter).expect("nobody has taken its message"),
    })
}

/// What a turn came to.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// There was something to do.
    Worked,
    /// Nothing but timers had something to do.
    Timers,
    /// There was nothing to do.
    Idle,
    /// It was told to quit.
    Quit,
}

impl Worker {
    /// Worker `index` of a node.
    pub fn new(node: Arc<Node>, index: u16, seed: u64) -> Self {
        let core = ShardCore::new(node.config.clone(), node.id, index, seed);
        let host = WorkerHost::new(node.clone(), index, seed);
        Self {
            index,
            core,
            host,
            lanes: vec![],
            until: Time::ZERO,
            quiesces: false,
            local: false,
            known: false,
            worked: 0,
            abroad: false,
            disturbed: false,
            group: GROUP,
            _done: Done(node.clone()),
            node,
        }
    }

    /// One turn without waiting, by the thread that has the worker's lanes.
    pub fn turn(&mut self, began: Moment) -> Step {
        let now = began.now;
        let door = &self.node.workers[usize::from(self.index)];
        while let Some(mut lane) = door.take_new() {
            if lane.own {
                lane.stay_small();
            }
            // Where one thread does everybody's work, its messages go the ways that they go on threads of their own.
            lane.own &= !self.node.clock.is_virtual();
            self.lanes.push(lane);
        }
        if !self.known {
            self.known = true;
            self.take_lanes();
        }
        self.host.moments.begin(began);
        self.look_at_right();
        let mut took = Took::default();
        let abroad = std::mem::take(&mut self.abroad);
        let mut lanes = std::mem::take(&mut self.lanes);
        let clogged = self.host.out.is_clogged();
        for at in 0..if clogged { 0 } else { lanes.len() } {
            let mut batches = 1;
            while self.batch(&mut lanes[at], &mut took)
                && batches < BATCHES
                && began.is_just_now(&self.node.clock)
                && self.goes_on(&lanes, at)
            {
                batches += 1;
            }
            lanes[at].release();
        }
        let Took { mut worked, mut quit, ended } = took;
        self.lanes = lanes;
        // Answers free the room of their asks before they come here, so that a turn takes all that can have been asked for until now: were it fewer, entities
        // that ask in each turn would leave more and more behind.
        for _ in 0..BATCH + self.host.out.asks.len() {
            let Some(item) = self.node.workers[usize::from(self.index)].take_posted() else { break };
            worked = true;
            match item {
                ToWorker::Answer(correlation, answered) => self.answer(correlation, answered),
                ToWorker::Run(job) => job(),
                ToWorker::LinkUp => self.host.link_up(),
                ToWorker::Quit => quit = true,
                ToWorker::Lane(_)
                | ToWorker::Command(_)
                | ToWorker::Type(_)
                | ToWorker::Publish(..)
                | ToWorker::Broadcast(..)
                | ToWorker::Quiesce => {
                    unreachable!("what has an order comes in lanes")
                }
            }
        }
        // Those that are there now: what they lead to comes in the next turn.
        for _ in 0..self.host.out.answers() {
            let Some((correlation, answered)) = self.host.out.take_answer() else { break };
            worked = true;
            self.answer(correlation, answered);
        }
        for _ in 0..self.host.out.laters().min(LATERS) {
            let Some(later) = self.host.out.take_later() else { break };
            worked = true;
            match later {
                Later::Own(shard, parcel) => self.own(shard, &mut Some(parcel)),
                Later::Refused(open, error) => self.then(open, Err(error)),
            }
        }
        worked |= self.host.out.watches.has_unsent() && self.watch(now);
        worked |= self.host.settles() && self.settle(now);
        let timers = self.timers(now);
        if cfg!(debug_assertions) && (worked || timers) {
            self.core.check();
        }
        if !ended.is_empty() {
            // `End` is the last item of its lane.
            self.lanes.retain(|lane| !ended.contains(&lane.id));
        }
        if self.quiesces && self.lanes.iter().all(Ring::is_empty) {
            self.quiesces = false;
            self.host.out.push(ToNet::Quiet(self.index));
        }
        if self.host.out.flush_untold() {
            if self.lanes.iter().all(Ring::is_empty) {
                // There is nothing else to do, and that is sooner than to tell another thread.
                self.node.pass_on();
            } else {
                self.node.network.ring();
            }
        }
        let used = std::mem::take(&mut self.host.out.used);
        worked |= used;
        let handled = std::mem::take(&mut self.host.handled);
        let counters = self.host.counters();
        counters.messages_handled.bump(handled);
        counters.turns.bump(u64::from(worked));
        self.abroad |= used || !worked && abroad;
        match (quit, worked, timers) {
            (true, ..) => Step::Quit,
            (_, true, _) => Step::Worked,
            (_, _, true) => Step::Timers,
            _ => Step::Idle,
        }
    }

    /// Takes the oldest items from a lane: whether as many as a lane has before the next one.
    fn batch(&mut self, lane: &mut Ring<ToWorker>, took: &mut Took) -> bool {
        let (id, mut left) = (lane.id, self.host.moments.most(BATCH));
        if lane.is_empty() || !self.core.has_room(id, BATCH) {
            return false;
        }
        loop {
            let handled = self.letters(lane, left);
            (took.worked, left) = (took.worked | (handled > 0), left - handled);
            if handled > 0 && !self.host.moments.is_fast() {
                return false;
            }
            let next = if left > 0 { long_way(lane) } else { None };
            let Some(item) = next else { return left == 0 };
            (took.worked, left) = (true, left - 1);
            match item {
                ToWorker::Quit => took.quit = true,
                ToWorker::Lane(LaneItem::End) => {
                    took.ended.push(id);
                    self.item(id, ToWorker::Lane(LaneItem::End));
                }
                item => self.item(id, item),
            }
        }
    }

    /// Nobody waits for the end of the turn, as far as is known, but that lane.
    fn goes_on(&self, lanes: &[Ring<ToWorker>], at: usize) -> bool {
        let out = &self.host.out;
        !out.used
            && !out.has_unflushed()
            && self.node.hosting_until() == self.until
            && out.answers() + out.laters() == 0
            && lanes.iter().enumerate().all(|(other, lane)| other == at || lane.is_empty())
            && self.node.workers[usize::from(self.index)].is_quiet()
    }

    /// The lanes of the calling thread are this worker's, whose entities send by them.
    #[cold]
    fn take_lanes(&self) {
        let config = &self.node.config;
        let (items, patience) = (config.limits.mailbox as usize, config.sharding.handoff_timeout.get());
        let senders = Senders::new(self.host.busy.clone(), items, patience);
        exits::with(&self.node, |exits| exits.belong_to(senders)).expect("the thread has begun, and no turn is inside a send");
    }

    /// Sends signs of watches.
    #[cold]
    fn watch(&mut self, now: Time) -> bool {
        let is_due = self.host.out.watches.due().is_some_and(|due| due <= now);
        for told in self.host.out.watches.send(&self.node, self.index, now) {
            self.tell(Some(told));
        }
        is_due
    }

    /// Sends what entities have sent that waits because they have moved, once it may go, and what has to be said for that.
    #[cold]
    fn settle(&mut self, now: Time) -> bool {
        let mut worked = self.host.out.settling.send(&self.node, self.index, now);
        if self.host.out.settling.ends() {
            self.host.report(ShardReport::Settling { under_way: false });
        }
        if self.host.held_due().is_some_and(|due| due <= now) {
            worked = true;
            let given_up = exits::with(&self.node, |exits| exits.send_held(&self.node, now)).unwrap_or_default();
            given_up.into_iter().for_each(|(message, reason)| self.give_up(message, reason));
            self.host.look_at_held();
        }
        worked
    }

    /// The right to run is what it is at that moment.
    fn look_at_right(&mut self) {
        let until = self.node.hosting_until();
        if until != self.until {
            self.until = until;
            self.core.set_hosting_until(self.host.moments.last().now, until, &mut self.host);
        }
    }

    /// The moment it is for the next message.
    #[inline]
    fn moment(&mut self) -> Time {
        if self.host.moments.left() == 0 && self.host.moments.renew() {
            self.look_at_right();
            if !self.host.moments.is_fast() {
                // What was handled may have answered somebody, who need not wait for what comes next.
                self.host.out.flush();
            }
        }
        self.host.moments.last().now
    }

    /// Handles the timers that were due when the turn began: whether there were any. A reading of the clock for some of them.
    fn timers(&mut self, began: Time) -> bool {
        let mut any = false;
        for _ in 0..TIMER_ROUNDS {
            if self.core.poll_timeout().is_none_or(|due| due > began) {
                break;
            }
            any = true;
            let now = self.moment();
            self.core.handle_timeout(now, &mut self.host);
            self.host.moments.end_row();
        }
        any
    }

    fn item(&mut self, lane: LaneId, item: ToWorker) {
        let now = self.moment();
        match item {
            ToWorker::Lane(item) => self.core.handle_lane(now, lane, item, &mut self.host),
            ToWorker::Command(command) => {
                let is_message = matches!(command, ShardCommand::Item { .. });
                self.core.handle_command(now, command, &mut self.host);
                if !is_message {
                    // What became of a shard must not wait for entities that run later in this turn.
                    self.host.out.flush();
                }
            }
            ToWorker::Type(entry) => self.host.types.insert(entry),
            ToWorker::Publish(topic, value) => self.publish(topic, value),
            ToWorker::Broadcast(ty, bytes) => self.broadcast(ty, &bytes),
            ToWorker::Quiesce => self.quiesces = true,
            ToWorker::Quit => {}
            ToWorker::Run(_) | ToWorker::Answer(..) | ToWorker::LinkUp => unreachable!("what has no order is posted"),
        }
        // Many entities may have had their turns in it.
        self.host.moments.end_row();
    }

    /// Looks into the lanes again, so often at most, if the last turn's work was of this node. If there is more, when that was not yet known: the clock
    /// is read between the looks, where nobody waits for it, and seldom, as what comes while it is read waits for that.
    fn awaits_more(&mut self, looks: u32) -> Option<Moment> {
        let local = std::mem::take(&mut self.local) && self.host.out.answers() == 0;
        let rounds = (LOOKS / self.lanes.len().max(1)).max(1);
        (0..if local { looks } else { 0 }).find_map(|_| {
            let then = Moment::read(&self.node.clock);
            (0..rounds).any(|_| self.lanes.iter().any(|lane| !lane.is_empty())).then_some(then)
        })
    }

    /// Whether the turn just now is one of those whose length is measured.
    fn is_sampled(&mut self) -> bool {
        let before = self.worked;
        self.worked = before.wrapping_add(1);
        before.is_multiple_of(SAMPLED)
    }

    /// Whether a turn has nothing to do before something comes in or a timer is due.
    pub fn is_quiet(&self) -> bool {
        self.node.workers[usize::from(self.index)].is_quiet()
            && (self.host.out.is_clogged() || self.lanes.iter().all(|l| l.is_empty() || !self.core.has_room(l.id, BATCH)))
            && self.host.out.is_quiet()
            && self.node.hosting_until() == self.until
    }

    /// When a turn has something to do even if nothing comes in.
    pub fn due(&self) -> Option<Time> {
        let (due, out) = (self.core.poll_timeout(), &self.host.out);
        // Nothing of it in the steady state.
        if out.watches.has_unsent() || self.host.settles() || out.due().is_some() {
            return [due, out.due(), out.watches.due(), out.settling.due(), self.host.held_due()].into_iter().flatten().min();
        }
        due
    }

    /// A live instance, for tests.
    pub fn instance(&self, shard: ShardKey, key: &[u8]) -> Option<&dyn Instance> {
        self.core.entity(shard, key).map(|instance| &**instance)
    }

    /// Last act of a worker that was told to quit.
    pub fn end(mut self) {
        let door = self.node.clone();
        let now = Moment::read(&door.clock);
        self.host.moments.begin(now);
        self.look_at_right();
        // In front of `Quit` as well, unless it does not come from the network thread. What was accepted before its senders saw the end is given up.
        self.core.handle_command(now.now, ShardCommand::Stop, &mut self.host);
        let door = &door.workers[usize::from(self.index)];
        let mut lanes = std::mem::take(&mut self.lanes);
        lanes.extend(std::iter::from_fn(|| door.take_new()));
        for lane in &mut lanes {
            while let Some(item) = long_way(lane) {
                self.item(lane.id, item);
            }
        }
        self.lanes = lanes;
        while let Some(later) = self.host.out.take_later() {
            match later {
                Later::Own(shard, parcel) => self.host.undelivered(shard, parcel, DropReason::Stopped),
                Later::Refused(open, _) => self.host.discard(open.shard.ty, open),
            }
        }
        for message in self.host.with_senders(Senders::take_all).unwrap_or_default() {
            self.give_up(message, DropReason::Stopped);
        }
        while let Some((_, answered)) = self.host.out.take_answer() {
            self.host.out.guarded("an ask", "drop of an answer", || drop(answered));
        }
        for (_, open) in std::mem::take(&mut self.host.out.asks) {
            self.host.discard(open.shard.ty, open);
        }
        // There may be more of it than the ring has room for.
        for _ in 0..LAST_FLUSHES {
            self.host.out.flush();
            if !self.host.out.has_unflushed() {
                break;
            }
            self.node.pass_on();
            std::thread::yield_now();
        }
    }

    /// A message to another shard cannot be sent.
    fn give_up(&mut self, message: Envelope, reason: DropReason) {
        self.host.undelivered(message.shard, EngineParcel::from_envelope(message), reason);
    }

    /// An ask of one of this worker's entities is answered: the entity gets the message that its `then` makes of it.
    fn answer(&mut self, correlation: u64, answered: Answered) {
        let Some(open) = self.host.out.asks.remove(&correlation) else {
            let (now, out) = (self.moment(), &mut self.host.out);
            out.settling.answered(now, correlation, &answered);
            let told = out.watches.answered(now, &self.node, correlation, &answered);
            // One that its entity left without.
            out.guarded("an ask", "drop of an answer", || drop(answered));
            return self.tell(told);
        };
        self.then(open, Ok(answered));
    }

    /// What an ask of one of this worker's entities has come to.
    fn then(&mut self, open: OpenAsk, answered: Result<Answered, AskError>) {
        let shard = open.shard;
        let at = Place { shard, epoch: crate::Epoch::ZERO, now: self.moment() };
        let mut message = self.host.then(at, open, answered);
        self.own(shard, &mut message);
    }

    /// An entity hears that who it watches has ended.
    fn tell(&mut self, told: Option<Told>) {
        if let Some((shard, message)) = told {
            self.own(shard, &mut Some(EngineParcel::from_envelope(message)));
        }
    }

    /// A message of an entity to itself, wherever it lives now. By reference, because each move of it costs: to a live entity for which nothing else
    /// waits it goes at once.
    fn own(&mut self, shard: ShardKey, slot: &mut Option<EngineParcel>) {
        let now = self.moment();
        self.host.moments.handled(1);
        if let Some(EngineParcel::Typed { key, .. }) = slot {
            let Self { core, host, .. } = self;
            let key = key.clone();
            let turn = core.own_way(now, shard, key.bytes(), key.hash, host, |host, at, entity| host.handle_parcel(at, entity, slot));
            if turn.is_ok() {
                return;
            }
        }
        let Some(parcel) = slot.take() else { return };
        if let Err(parcel) = self.core.handle_own(now, shard, parcel, &mut self.host) {
            // It moved, or the node stops: the message goes the way of any other.
            let entry = self.host.types.get(shard.ty).cloned();
            let mut slot = Some(parcel);
            let send = || entry.map_or(Err(crate::Refusal::NotStarted), |entry| self.node.send(&entry, &mut slot));
            let sent = self.host.guarded(shard.ty, "encode", send);
            if let Some(parcel) = slot {
                let reason = match sent {
                    Some(Err(refusal)) => refusal.as_drop(),
                    Some(Ok(())) | None => DropReason::Undecodable,
                };
                self.host.undelivered(shard, parcel, reason);
            }
        }
    }

    /// A published value, for the entities of this worker that have subscribed.
    fn publish(&mut self, topic: u64, value: Value) {
        for (shard, parcel) in self.host.out.published(topic, &value) {
            let now = self.moment();
            self.host.moments.handled(1);
            // One that has left meanwhile has no subscription any more.
            if let Err(parcel) = self.core.handle_own(now, shard, parcel, &mut self.host) {
                self.host.discard(shard.ty, parcel);
            }
        }
        self.host.out.guarded("a topic", "drop of a value", || drop(value));
    }

    /// A message for every entity of the type that is live on this worker.
    fn broadcast(&mut self, ty: TypeId, message: &[u8]) {
        for (shard, key) in self.core.live_of(ty) {
            if let Some(envelope) = Envelope::new(shard, None, &key, message) {
                let now = self.moment();
                self.host.moments.handled(1);
                let _ = self.core.handle_own(now, shard, EngineParcel::from_envelope(envelope), &mut self.host);
            }
        }
    }

    /// Sleeps until a producer rings, or the next timer; if its last work came from another node, until something comes from there, too.
    fn sleep(&mut self, me: &Mutex<Sleeper>) {
        let bell = self.node.workers[usize::from(self.index)].bell();
        let lie_down = || {
            let longest = if bell.announce_sleep() { SLEEP_MAX } else { UNSURE };
            let limit = self.due().map_or(longest, |due| due.since(sys::now()).min(longest));
            let sleeps = self.is_quiet() && !limit.is_zero();
            self.host.counters().parks.bump(u64::from(sleeps));
            sleeps.then_some(limit)
        };
        let at_window = (self.abroad && !self.disturbed).then_some(&*self.node);
        self.disturbed = !window::sleep(at_window, me, lie_down, || bell.awake());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    use super::*;
    use crate::{
        AskError, CodecError, Cx, Entity, EntityRef, Epoch, NodeAddr, ShardId, Wire,
        config::Preset,
        engine::{
            clock::{Clock, VirtualTime},
            lane::{Bell, Door, LaneSender},
            letter::Address,
            message::AnyMessage,
            parcel::Key,
            types::TypeEntry,
        },
        proto::{
            handoff::{Ask, ReplyBody},
            membership::Identity,
        },
    };

    crate::messages! { pub enum SlowMsg for Slow(String) = "worker.slow" { Work { takes: u64, number: u64 }, Rest { after: u64 }, Wonder -> bool, Heard { refused: bool }, Tardy -> () } }

    /// A clock that moves while entities start and handlers run.
    struct Hand {
        now: AtomicU64,
        /// What a start takes, in milliseconds.
        start: AtomicU64,
        /// And what it comes to.
        fails: AtomicBool,
        /// Runs when a handler begins.
        look: parking_lot::Mutex<Option<Box<dyn FnMut() + Send>>>,
    }

    impl VirtualTime for Hand {
        fn now(&self) -> Time {
            Time::from_nanos(self.now.load(Ordering::Relaxed))
        }

        fn pass(&self, _: Time) {}
    }

    impl Hand {
        fn take(&self, ms: u64) {
            self.now.fetch_add(ms * 1_000_000, Ordering::Relaxed);
        }

        fn take_look(&self) {
            if let Some(look) = &mut *self.look.lock() {
                look();
            }
        }
    }

    /// What was handled, and when it began, in milliseconds.
    type Done = Arc<parking_lot::Mutex<Vec<(u64, u64)>>>;

    struct Handler(Arc<Hand>, Done, EntityRef<Slow>);

    impl Handler {
        fn work(&self, takes: u64, number: u64) {
            self.0.take_look();
            self.1.lock().push((number, self.0.now().as_nanos() / 1_000_000));
            self.0.take(takes);
        }
    }

    impl Entity for Handler {
        type Type = Slow;

        fn handle(&mut self, msg: SlowMsg, cx: &mut Cx<'_, Self>) {
            match msg {
                SlowMsg::Work(Work { takes, number }) => self.work(takes, number),
                // Timers of its own, all due at once.
                SlowMsg::Rest(Rest { after }) => {
                    (0..40).for_each(|n| cx.timer_once(n, Duration::from_millis(after), Work { takes: 100, number: n }));
                }
                SlowMsg::Wonder(Wonder, _) => {
                    for _ in 0..2 {
                        cx.ask(&self.2, Wonder, Duration::MAX, |answer| Heard { refused: matches!(answer, Err(AskError::Refused(_))) });
                    }
                }
                SlowMsg::Heard(Heard { refused }) => self.work(0, u64::from(refused)),
                SlowMsg::Tardy(Tardy, reply) => {
                    self.work(100, 0);
                    cx.reply(reply, ());
                }
            }
        }
    }

    struct Bed {
        hand: Arc<Hand>,
        node: Arc<Node>,
        worker: Worker,
        lane: LaneSender<ToWorker>,
        shard: ShardKey,
        done: Done,
    }

    impl Bed {
        fn new() -> Self {
            Self::with(|_| {})
        }

        /// A worker with one live entity, at one second.
        fn with(change: impl FnOnce(&mut crate::Config)) -> Self {
            let (now, start, fails) = (AtomicU64::new(1_000_000_000), AtomicU64::new(0), AtomicBool::new(false));
            let hand = Arc::new(Hand { now, start, fails, look: parking_lot::Mutex::default() });
            let bell = || Arc::new(Bell::new(|| {}));
            let me = Identity { addr: NodeAddr::new("here", 1), incarnation: 1 };
            let mut config = crate::Config::preset(Preset::LocalTest);
            change(&mut config);
            let config = Arc::new(config);
            let helper = crossbeam::channel::unbounded().0;
            let node = Arc::new(Node::new(
                config,
                me,
                Box::new([Door::new(bell())]),
                Door::new(bell()),
                helper,
                None,
                Clock::Virtual(hand.clone()),
            ));
            let (done, entry) = (Done::default(), TypeEntry::new("worker.slow", 1, std::any::TypeId::of::<Slow>()));
            let shard = ShardKey { ty: entry.id, shard: ShardId(0) };
            let make = {
                let (hand, done) = (hand.clone(), done.clone());
                // Of a type whose shards are elsewhere, as far as is known.
                let elsewhere = Arc::new(TypeEntry::new("worker.other", 8, std::any::TypeId::of::<Slow>()));
                let other = EntityRef::<Slow>::new(node.clone(), elsewhere, "o".into());
                move |_: &String| {
                    hand.take(hand.start.load(Ordering::Relaxed));
                    assert!(!hand.fails.load(Ordering::Relaxed), "it cannot start");
                    Handler(hand.clone(), done.clone(), other.clone())
                }
            };
            assert!(entry.set_host(crate::api::host_of::<Handler>(Arc::new(make), crate::proto::shard::TypeOptions::default())).is_ok());
            let mut lane = node.workers[0].open(node.next_lane(), 1000);
            let commands = [ShardCommand::Host { ty: shard.ty }, ShardCommand::Assign { shard, epoch: Epoch(1), base: Epoch(1) }];
            let items = [ToWorker::Type(Arc::new(entry))].into_iter().chain(commands.map(ToWorker::Command));
            items.for_each(|item| assert!(lane.push(item).is_ok()));
            let mut bed = Self { worker: Worker::new(node.clone(), 0, 1), hand, node, lane, shard, done };
            bed.may_run_for(3_600_000);
            bed.send(SlowMsg::Work(Work { takes: 0, number: 0 }));
            assert_eq!(bed.turn(), [(0, 1_000)]);
            bed
        }

        fn may_run_for(&self, ms: u64) {
            self.node.set_hosting_until(self.hand.now() + Duration::from_millis(ms));
        }

        fn send(&mut self, message: SlowMsg) {
            self.send_to(b"k", message);
        }

        fn send_to(&mut self, key: &[u8], message: SlowMsg) {
            Self::send_by(&mut self.lane, self.shard, key, message);
        }

        fn send_by(lane: &mut LaneSender<ToWorker>, shard: ShardKey, key: &[u8], message: SlowMsg) {
            Self::ask_by(lane, shard, key, None, message);
        }

        fn ask_by(lane: &mut LaneSender<ToWorker>, shard: ShardKey, key: &[u8], ask: Option<Ask>, message: SlowMsg) {
            let hash = xxhash_rust::xxh3::xxh3_64(key);
            let address = Address { shard, tag: Epoch(1), stream: None, key, hash, ask, reads: 0 };
            assert!(lane.letter(&address, &mut Some(message)), "there is room");
            lane.publish();
        }

        /// What a turn has handled.
        fn turn(&mut self) -> Vec<(u64, u64)> {
            let now = self.hand.now();
            self.worker.turn(Moment::at(now));
            std::mem::take(&mut *self.done.lock())
        }
    }

    #[test]
    fn a_turn_of_slow_handlers_ends_with_the_right_to_run() {
        // Few messages, each looked for ahead; and so many that they go straight.
        for count in [30, 300] {
            let mut bed = Bed::new();
            (1..=count).for_each(|number| bed.send(SlowMsg::Work(Work { takes: 100, number })));
            bed.may_run_for(2_000);
            let turns: Vec<_> = (0..6).map(|_| bed.turn()).collect();
            // The first ones show that they are slow, and each of the others is looked at.
            assert_eq!(turns[0].len(), GROUP);
            assert!(turns[1..].iter().all(|turn| turn.len() <= 2), "{turns:?}");
            let mut all = turns.concat();
            assert_eq!(all.last(), Some(&(20, 2_900)));
            bed.may_run_for(3_600_000);
            (0..count).for_each(|_| all.extend(bed.turn()));
            assert_eq!(all.iter().map(|(number, _)| *number).collect::<Vec<_>>(), (1..=count).collect::<Vec<_>>(), "in order, and once");
        }
    }

    #[test]
    fn a_lane_goes_on_while_nobody_else_waits_and_that_takes_no_time() {
        let mut bed = Bed::new();
        let work = |takes, number| SlowMsg::Work(Work { takes, number });
        (1..=900).for_each(|number| bed.send(work(0, number)));
        assert_eq!(bed.turn().len(), BATCH * BATCHES);
        let mut other = bed.node.workers[0].open(bed.node.next_lane(), 1000);
        (1001..=1100).for_each(|number| Bed::send_by(&mut other, bed.shard, b"k", work(0, number)));
        let from_other = |done: &[(u64, u64)]| done.iter().filter(|(number, _)| *number > 1000).count();
        let done = bed.turn();
        assert_eq!((done.len(), from_other(&done)), (2 * BATCH, BATCH), "each has its turn");
        let done = bed.turn();
        assert_eq!((done.len(), from_other(&done)), (100, 100 - BATCH), "the first has its turn, and the other its rest");
        let rest = 900 - BATCH * (BATCHES + 2);
        assert_eq!(bed.turn().len(), rest);
        (0..200).for_each(|number| bed.send(work(1, number)));
        assert_eq!(bed.turn().len(), GROUP, "timers and others wait for the end of a turn");
    }

    #[test]
    fn a_pause_in_the_middle_of_a_turn_is_seen() {
        let mut bed = Bed::new();
        // The process stands still behind the third of them.
        (1..=60).for_each(|number| bed.send(SlowMsg::Work(Work { takes: if number == 3 { 10_000 } else { 0 }, number })));
        bed.may_run_for(2_000);
        assert_eq!(bed.turn().len(), GROUP, "no more than are handled per reading of the clock");
    }

    #[test]
    fn an_answer_waits_for_one_slow_handler_at_most() {
        let mut bed = Bed::new();
        bed.may_run_for(3_600_000);
        let other = crate::NodeId::from_raw(7);
        for correlation in 0..40 {
            let ask = Some(Ask { node: other, correlation, deadline: Time::MAX });
            Bed::ask_by(&mut bed.lane, bed.shard, b"k", ask, SlowMsg::Tardy(Tardy, crate::ReplyTag::default()));
        }
        // How many have left when a handler begins, and in the end.
        let left = Arc::new(parking_lot::Mutex::new(vec![]));
        let look = {
            let (node, left, mut rings, mut count) = (bed.node.clone(), left.clone(), vec![], 0u64);
            move || {
                rings.extend(std::iter::from_fn(|| node.network.take_new()));
                rings.iter_mut().for_each(|ring: &mut Ring<ToNet>| {
                    while ring.pop().is_some_and(|item| matches!(item, ToNet::Reply { .. })) {
                        count += 1
                    }
                });
                left.lock().push(count);
            }
        };
        *bed.hand.look.lock() = Some(Box::new(look));
        let mut turns = 0;
        while left.lock().len() < 40 {
            bed.turn();
            turns += 1;
        }
        bed.hand.take_look();
        let left = std::mem::take(&mut *left.lock());
        assert!(left.iter().zip(0u64..).all(|(left, before)| left + 1 >= before), "{left:?}");
        assert_eq!(left.last(), Some(&40));
        assert!(turns > 20, "{turns} turns: whatever is not in a lane has its turn between slow handlers");
    }

    #[test]
    fn timers_that_are_due_at_once_end_with_the_right_to_run() {
        let mut bed = Bed::new();
        bed.send(SlowMsg::Rest(Rest { after: 10 }));
        bed.turn();
        bed.hand.take(10);
        bed.may_run_for(1_000);
        assert_eq!(bed.turn().len(), 10, "those that began in time");
        bed.may_run_for(3_600_000);
        let mut more = 0;
        for _ in 0..10 {
            bed.hand.take(100);
            more += bed.turn().len();
        }
        assert_eq!(more, 30, "the others, later");
    }

    #[test]
    fn a_timer_that_is_set_behind_a_slow_turn_is_not_early() {
        let mut bed = Bed::new();
        (1..=3).for_each(|number| bed.send(SlowMsg::Work(Work { takes: if number == 3 { 10_000 } else { 0 }, number })));
        bed.send(SlowMsg::Rest(Rest { after: 100 }));
        assert_eq!(bed.turn().len(), 3, "all of one row");
        for _ in 0..3 {
            assert_eq!(bed.turn(), [], "it is 11 s, and the timers are due 100 ms later");
        }
        bed.hand.take(100);
        assert_eq!(bed.turn().first().map(|(_, at)| *at), Some(11_100));
    }

    #[test]
    fn a_message_does_not_run_behind_a_start_that_outlasts_the_right() {
        let mut bed = Bed::new();
        bed.hand.start.store(5_000, Ordering::Relaxed);
        bed.may_run_for(2_000);
        bed.send_to(b"late", SlowMsg::Work(Work { takes: 0, number: 1 }));
        assert_eq!(bed.turn(), [], "it may not run any more");
        bed.may_run_for(2_000);
        assert_eq!(bed.turn(), [(1, 6_000)]);
    }

    #[test]
    fn a_start_that_fails_late_is_tried_again_only_behind_its_pause() {
        let mut bed = Bed::new();
        bed.hand.start.store(5_000, Ordering::Relaxed);
        bed.hand.fails.store(true, Ordering::Relaxed);
        bed.send_to(b"bad", SlowMsg::Work(Work { takes: 0, number: 1 }));
        bed.turn();
        assert_eq!(bed.hand.now(), Time::from_nanos(6_000_000_000), "one start");
        bed.turn();
        assert_eq!(bed.hand.now(), Time::from_nanos(6_000_000_000), "its pause is not over");
        bed.hand.fails.store(false, Ordering::Relaxed);
        bed.hand.take(100);
        assert_eq!(bed.turn(), [(1, 11_100)]);
    }

    /// Goes off when it is encoded, or dropped.
    struct Charge {
        encoded: bool,
        dropped: bool,
    }

    impl Drop for Charge {
        fn drop(&mut self) {
            if self.dropped {
                std::panic::resume_unwind(Box::new("a message's end"));
            }
        }
    }

    impl Wire for Charge {
        const NAME: &'static str = "charge";

        fn encode(&self, _: u16, out: &mut Vec<u8>) -> Result<(), CodecError> {
            if self.encoded {
                std::panic::resume_unwind(Box::new("an encoder"));
            }
            out.push(1);
            Ok(())
        }

        fn decode(_: u16, _: &mut &[u8]) -> Result<Self, CodecError> {
            Err(CodecError::Decode("not needed".into()))
        }
    }

    #[test]
    fn code_of_users_outside_of_turns_may_panic_and_the_worker_goes_on() {
        let mut bed = Bed::new();
        let elsewhere = ShardKey { shard: ShardId(9), ..bed.shard };
        let charge = |encoded, dropped| AnyMessage::new(Charge { encoded, dropped });
        let parcel = |encoded, dropped| EngineParcel::told(Key::new(b"k"), charge(encoded, dropped));
        for (encoded, dropped) in [(true, false), (false, true), (true, true)] {
            // To a shard that is not here, both ways.
            let item = LaneItem::Msg { shard: elsewhere, tag: Epoch(1), enter: None, parcel: parcel(encoded, dropped) };
            assert!(bed.lane.push(ToWorker::Lane(item)).is_ok());
            bed.worker.host.out.later(Later::Own(elsewhere, parcel(encoded, dropped)));
        }
        // An answer that its entity has left without, and a value of a topic.
        bed.node.workers[0].post(ToWorker::Answer(77, Answered::Typed(charge(false, true))));
        assert!(bed.lane.push(ToWorker::Publish(7, Arc::new(Charge { encoded: false, dropped: true }))).is_ok());
        bed.send(SlowMsg::Work(Work { takes: 0, number: 1 }));
        assert_eq!(bed.turn(), [(1, 1_000)]);
        // One each, and for what could not be encoded also its end.
        assert_eq!(bed.node.metrics.workers[0].handler_panics.get(), 3 * 2 + 2 + 2);
    }

    #[test]
    fn answers_are_taken_as_fast_as_entities_ask() {
        const ROOM: usize = 300;
        for posted in [true, false] {
            let mut bed = Bed::with(|config| config.limits.asks = ROOM as u32);
            let (mut rings, mut heard) = (vec![], vec![]);
            for _ in 0..100 {
                (0..BATCH).for_each(|_| bed.send(SlowMsg::Wonder(Wonder, crate::ReplyTag::default())));
                heard.extend(bed.turn());
                rings.extend(std::iter::from_fn(|| bed.node.network.take_new()));
                rings.iter_mut().for_each(|ring| while ring.pop().is_some() {});
                // All are answered at once, by other threads or by entities of this worker.
                for correlation in bed.node.slots.open_asks().collect::<Vec<_>>() {
                    let no_reply = Answered::Wire(ReplyBody::NoReply);
                    if posted {
                        bed.node.complete(correlation, no_reply);
                    } else {
                        let ask = Ask { node: bed.node.id, correlation, deadline: Time::MAX };
                        bed.worker.host.out.answer(ask, no_reply);
                    }
                }
                let waiting = bed.worker.host.out.asks.len();
                assert!(waiting <= 2 * BATCH, "{waiting} wait, which is more than a turn has asked for");
            }
            assert_eq!(heard.iter().filter(|(refused, _)| *refused == 1).count(), 0, "there was room for all");
            assert_eq!(heard.len(), 2 * BATCH * 99);
        }
    }

    #[test]
    fn what_a_workers_entities_ask_for_is_bounded_until_they_have_heard() {
        const ROOM: usize = 100;
        let mut bed = Bed::with(|config| config.limits.asks = ROOM as u32);
        let ask = |bed: &mut Bed| (0..BATCH).for_each(|_| bed.send(SlowMsg::Wonder(Wonder, crate::ReplyTag::default())));
        let refused = |heard: Vec<(u64, u64)>| heard.iter().filter(|(refused, _)| *refused == 1).count();
        ask(&mut bed);
        assert_eq!(refused(bed.turn()), 2 * BATCH - ROOM);
        // Their slots are free again, but their entities have not heard.
        for correlation in bed.node.slots.open_asks().collect::<Vec<_>>() {
            bed.node.complete(correlation, Answered::Wire(ReplyBody::NoReply));
        }
        assert_eq!((bed.node.slots.in_flight(), bed.worker.host.out.asks.len()), (0, ROOM));
        ask(&mut bed);
        assert_eq!(refused(bed.turn()), 2 * BATCH);
        assert_eq!(bed.worker.host.out.asks.len(), 0, "and now they have");
    }

    #[test]
    fn what_has_waited_for_the_right_to_run_ends_with_it() {
        let mut bed = Bed::new();
        bed.may_run_for(0);
        (1..=300).for_each(|number| bed.send(SlowMsg::Work(Work { takes: 100, number })));
        (0..10).for_each(|_| assert_eq!(bed.turn(), [], "it may not run"));
        let mut all = vec![];
        for _ in 0..3 {
            bed.may_run_for(2_000);
            let done = bed.turn();
            assert_eq!(done.len(), 20, "all wait in one mailbox, and as many are handled as begin in time: {done:?}");
            assert_eq!(bed.turn(), [], "it is over");
            all.extend(done);
        }
        bed.may_run_for(3_600_000);
        all.extend(bed.turn());
        assert_eq!(all.iter().map(|(number, _)| *number).collect::<Vec<_>>(), (1..=300).collect::<Vec<_>>(), "in order, and once");
    }
}
