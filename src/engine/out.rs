//! A worker's way out: to the network thread, to askers, and to its own entities by topics.

use std::{
    any::Any,
    collections::{BTreeMap, HashMap, VecDeque},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, atomic::Ordering},
};

use foldhash::fast::FixedState;

use crate::{
    AskError, ShardKey, Time,
    engine::{
        exits,
        idle::AGAIN_AFTER,
        lane::Item,
        message::AnyMessage,
        moment::Moment,
        node::{Node, ToNet},
        panics,
        parcel::{Answered, EngineParcel, Key},
        settling::Settling,
        slot::Waiter,
        topics::{TopicEntry, Value},
        watches::{Closed, Watches},
    },
    proto::{
        handoff::{Ask, DropReason},
        queue::take,
        rng::Rng,
        shard::{Wish, mailboxes},
    },
};

/// Items for the network thread that are moved into its ring at once.
const PUSHED_MAX: usize = 64;
/// Above so much that waits for room there a worker takes nothing in.
const WAITING_MAX: usize = 4096;
const WAITING_BYTES_MAX: usize = 16 << 20;

/// A worker's way to the network thread and to askers.
pub struct Out {
    node: Arc<Node>,
    /// What found no room in the ring, in order (moves.md X6).
    waiting: VecDeque<ToNet>,
    /// Bytes of it that stand outside of the records of the ring.
    waiting_bytes: usize,
    /// When the first of it came that was not offered yet.
    waits_since: Moment,
    /// When to try that again.
    again_at: Option<Time>,
    /// Something was pushed since this was last looked at.
    pub used: bool,
    /// This worker's number.
    pub index: u16,
    /// What the entity at work wants for itself.
    pub wishes: Vec<Wish<EngineParcel>>,
    /// Asks of this worker's entities whose answers were not handed to them yet.
    pub asks: HashMap<u64, OpenAsk, FixedState>,
    /// Answers of this worker's entities to each other, by the number of the ask. Each of them is still among `asks`.
    answers: VecDeque<(u64, Answered)>,
    /// Number of the message that is being handled.
    pub handling: u16,
    /// For entities.
    pub rng: Rng,
    topics: BTreeMap<u64, Subscribers>,
    /// Entities that this worker's entities watch.
    pub watches: Watches,
    /// What entities had sent that have left.
    pub settling: Settling,
    /// Where entities that hand over put their states.
    pub states: StateBuffer,
    /// What comes to this worker's entities in its next turns.
    later: VecDeque<Later>,
}

/// What comes to an entity in a later turn of its worker: who reacts to a refusal by trying again must not keep the worker from making room.
pub enum Later {
    /// A message to itself.
    Own(ShardKey, EngineParcel),
    /// An ask that was refused.
    Refused(OpenAsk, AskError),
}

/// Where an entity that hands over puts its state. Apart from what is to travel already, which an encoder of the user's could spoil.
#[derive(Default)]
pub struct StateBuffer {
    bytes: Vec<u8>,
    /// Bytes of the state; what stands behind it is half of one.
    len: usize,
    /// Of the turn.
    number: u64,
}

/// Room for a state that is kept for the next one.
const STATE_KEPT_BYTES: usize = 64 << 10;

impl StateBuffer {
    /// A turn begins in which one may be put here.
    pub fn begin(&mut self) {
        self.bytes.clear();
        self.bytes.shrink_to(STATE_KEPT_BYTES);
        self.len = 0;
        self.number += 1;
    }

    /// Puts a state here: one that stands there already is replaced, if this one can be written. The number of the turn, to know it by.
    pub fn put<E>(&mut self, write: impl FnOnce(&mut Vec<u8>) -> Result<(), E>) -> Result<u64, E> {
        // An encoder may have panicked, and somebody may have caught that.
        self.bytes.truncate(self.len);
        let written = write(&mut self.bytes);
        // One that takes away what was there has broken its contract, and has nothing but its own.
        self.len = self.len.min(self.bytes.len());
        written?;
        self.bytes.drain(..self.len);
        self.len = self.bytes.len();
        Ok(self.number)
    }

    /// Appends what was put here in the turn with that number, and forgets it. False if that was not the last one.
    pub fn take(&mut self, number: u64, out: &mut Vec<u8>) -> bool {
        let same = number == self.number;
        if same {
            out.extend_from_slice(&self.bytes[..self.len]);
            self.begin();
        }
        same
    }
}

/// Makes a message of a published value, if it is of the right type.
pub type Convert = Box<dyn Fn(&Value) -> Option<AnyMessage>>;

/// This worker's entities that have subscribed to one topic.
struct Subscribers {
    entry: Arc<TopicEntry>,
    by_entity: BTreeMap<(ShardKey, Box<[u8]>), Convert>,
}

/// Makes a message of an answer.
pub type Then = Box<dyn FnOnce(Result<Answered, AskError>) -> AnyMessage>;

/// An ask of an entity: whose it is, and what its answer is to become.
pub struct OpenAsk {
    /// Shard of the entity.
    pub shard: ShardKey,
    /// The entity.
    pub key: Key,
    /// What to make of the answer.
    pub then: Then,
}

impl Out {
    /// The way out of worker `index`.
    pub fn new(node: Arc<Node>, index: u16, seed: u64) -> Self {
        Self {
            node,
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            waits_since: Moment::at(Time::ZERO),
            again_at: None,
            used: false,
            index,
            wishes: vec![],
            asks: HashMap::default(),
            answers: VecDeque::new(),
            handling: 0,
            rng: Rng::new(seed),
            topics: BTreeMap::new(),
            watches: Watches::default(),
            settling: Settling::default(),
            states: StateBuffer::default(),
            later: VecDeque::new(),
        }
    }

    /// An entity gets the values of a topic from now on.
    pub fn subscribe(&mut self, entry: &Arc<TopicEntry>, shard: ShardKey, key: &Key, convert: Convert) {
        let empty = || Subscribers { entry: entry.clone(), by_entity: BTreeMap::new() };
        let subscribers = self.topics.entry(entry.id).or_insert_with(empty);
        if subscribers.by_entity.insert((shard, key.bytes().into()), convert).is_none() {
            entry.entities[usize::from(self.index)].fetch_add(1, Ordering::AcqRel);
        }
    }

    /// It gets no more of that topic, or of any.
    pub fn unsubscribe(&mut self, topic: Option<u64>, shard: ShardKey, key: &[u8]) {
        if self.topics.is_empty() {
            return;
        }
        let at = (shard, Box::from(key));
        for (_, subscribers) in self.topics.iter_mut().filter(|(id, _)| topic.is_none_or(|topic| topic == **id)) {
            if subscribers.by_entity.remove(&at).is_some() {
                subscribers.entry.entities[usize::from(self.index)].fetch_sub(1, Ordering::AcqRel);
            }
        }
        self.topics.retain(|_, subscribers| !subscribers.by_entity.is_empty());
    }

    /// An instance did not come to life: its subscriptions and watches end, but for those that its predecessor had.
    pub fn start_failed(&mut self, node: &Arc<Node>, shard: ShardKey, key: &[u8]) {
        self.unsubscribe(None, shard, key);
        self.watches.close(node, shard, key, &Closed::OfThisStart);
    }

    /// Runs code of users that is no turn of an entity's, but of something with that name. `None`: it panicked, which is counted and told as a
    /// handler's panic is.
    pub fn guarded<R>(&self, of: &str, what: &'static str, f: impl FnOnce() -> R) -> Option<R> {
        let told = |panic: Box<dyn Any + Send>| {
            self.node.metrics.workers[usize::from(self.index)].handler_panics.bump(1);
            let (location, said) = panics::told(panic);
            tracing::error!(target: "wingbeat::engine", of, what, %location, %said, "code of users panicked outside of a turn");
        };
        catch_unwind(AssertUnwindSafe(f)).map_err(told).ok()
    }

    /// Queues an item for the network thread. It leaves with others, unless the first of them has waited: somebody waits for that.
    pub fn push(&mut self, item: ToNet) {
        self.used = true;
        self.waiting_bytes += item.outside();
        self.waiting.push_back(item);
        match self.waiting.len() {
            1 => self.waits_since = Moment::mark(&self.node.clock),
            PUSHED_MAX.. => self.flush(),
            // Not for each of them, where they are many at a time.
            some if some.is_power_of_two() && !self.waits_since.is_just_now(&self.node.clock) => self.flush(),
            _ => {}
        }
    }

    /// Moves what waits into the ring, as far as there is room, and rings the bell once.
    pub fn flush(&mut self) {
        if self.flush_untold() {
            self.node.network.ring();
        }
    }

    /// So much waits for room in the ring of the network thread that the worker is to make no more: it takes nothing in until there is room. What would be
    /// handed to it waits in front of it, and is refused by bounds and by name.
    pub fn is_clogged(&self) -> bool {
        self.waiting.len() > WAITING_MAX || self.waiting_bytes > WAITING_BYTES_MAX
    }

    /// Whether something waits for room in the ring of the network thread.
    pub fn has_unflushed(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// As [`flush`](Self::flush), but leaves the bell to the caller. False: there was nothing.
    pub fn flush_untold(&mut self) -> bool {
        if self.waiting.is_empty() {
            return false;
        }
        let Self { node, waiting, waiting_bytes, used, again_at, .. } = self;
        *again_at = None;
        exits::with(node, |exits| {
            // A burst of answers may wait by the thousand; their room, 300 bytes each, is not kept for the next one.
            while let Some(item) = take(waiting) {
                let bytes = item.outside();
                if let Err(item) = exits.network().push(item) {
                    waiting.push_front(item);
                    *again_at = Some(node.now() + AGAIN_AFTER);
                    break;
                }
                *waiting_bytes -= bytes;
                // As long as there comes to be room, the worker stays awake for more.
                *used = true;
            }
            exits.network().publish();
        })
        .expect("a worker's lanes live as long as its thread, and no turn is inside a send");
        true
    }

    /// Brings an answer to its asker. One of this very worker gets it by no way that other threads use.
    pub fn answer(&mut self, ask: Ask, answered: Answered) {
        if ask.node == self.node.id {
            match self.node.take_waiter(ask.correlation) {
                Some(Waiter::Entity(worker)) if worker == self.index => self.answers.push_back((ask.correlation, answered)),
                Some(waiter) => waiter.answer(ask.correlation, answered, &self.node.workers),
                None => {}
            }
            return;
        }
        let body = match answered {
            Answered::Wire(body) => body,
            Answered::Typed(_) | Answered::Timeout | Answered::Stopped => {
                unreachable!("answers for other nodes are encoded where they are given")
            }
        };
        self.push(ToNet::Reply { to: ask.node, correlation: ask.correlation, body });
    }

    /// Whether the asker is on this node, so that the reply need not be encoded.
    pub fn is_local(&self, ask: Ask) -> bool {
        ask.node == self.node.id
    }

    /// Whether there is room for one more ask of this worker's entities. Its slot is free again when an answer is on its way, which is not the end of it.
    pub fn may_ask(&self) -> bool {
        self.asks.len() < self.node.config.limits.asks as usize
    }

    /// Answers that wait for their askers on this worker.
    pub fn answers(&self) -> usize {
        self.answers.len()
    }

    /// The oldest of them.
    pub fn take_answer(&mut self) -> Option<(u64, Answered)> {
        take(&mut self.answers)
    }

    /// Something comes to an entity in a later turn of the worker. As much may wait as in mailboxes.
    pub fn later(&mut self, later: Later) {
        if self.later.len() < mailboxes(&self.node.config) {
            return self.later.push_back(later);
        }
        match later {
            Later::Own(shard, parcel) => self.node.bury(shard, &parcel, DropReason::MailboxFull),
            Later::Refused(OpenAsk { shard, key, .. }, _) => self.node.bury_parts(shard, key.bytes(), None, DropReason::MailboxFull),
        }
    }

    /// How much of that waits.
    pub fn laters(&self) -> usize {
        self.later.len()
    }

    /// The oldest of it.
    pub fn take_later(&mut self) -> Option<Later> {
        take(&mut self.later)
    }

    /// No entity has an answer or a message for itself under way, and what was pushed is in the ring or [waits](Self::due) for room there.
    pub fn is_quiet(&self) -> bool {
        (self.waiting.is_empty() || self.again_at.is_some()) && self.answers.is_empty() && self.later.is_empty()
    }

    /// When to try again to move into the ring what found no room.
    pub fn due(&self) -> Option<Time> {
        self.again_at
    }

    /// What the subscribers of a topic get for a published value.
    pub fn published(&self, topic: u64, value: &Value) -> Vec<(ShardKey, EngineParcel)> {
        let Some(subscribers) = self.topics.get(&topic) else { return vec![] };
        let message = |((shard, key), convert): (&(ShardKey, Box<[u8]>), &Convert)| {
            let made = self.guarded(&subscribers.entry.name, "a published value becomes a message", || convert(value));
            if made.is_none() {
                subscribers.entry.count_dropped(1);
            }
            Some((*shard, EngineParcel::told(Key::new(key), made.flatten()?)))
        };
        subscribers.by_entity.iter().filter_map(message).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::handoff::ReplyBody;

    #[test]
    fn a_state_is_replaced_only_by_one_that_could_be_written() {
        let mut buffer = StateBuffer::default();
        let put = |buffer: &mut StateBuffer, state: &[u8], result: Result<(), ()>| {
            buffer.put(|out| {
                out.extend_from_slice(state);
                result
            })
        };
        buffer.begin();
        assert_eq!(put(&mut buffer, b"one", Ok(())), Ok(1));
        let taken = |buffer: &mut StateBuffer, number| {
            let mut out = b"before ".to_vec();
            buffer.take(number, &mut out).then_some(out)
        };
        assert_eq!((put(&mut buffer, b"half of tw", Err(())), taken(&mut buffer, 1)), (Err(()), Some(b"before one".to_vec())));
        buffer.begin();
        assert_eq!((put(&mut buffer, b"one", Ok(())), put(&mut buffer, b"three", Ok(()))), (Ok(3), Ok(3)));
        let caught = catch_unwind(AssertUnwindSafe(|| {
            buffer.put(|out| -> Result<(), ()> {
                out.push(4);
                std::panic::resume_unwind(Box::new("an encoder"))
            })
        }));
        assert_eq!((caught.is_err(), taken(&mut buffer, 3)), (true, Some(b"before three".to_vec())));
        assert_eq!(taken(&mut buffer, 3), None, "it was for that turn");
        // An encoder that breaks its contract spoils nothing but its own entity's.
        buffer.begin();
        put(&mut buffer, b"five", Ok(())).unwrap();
        let clears = |out: &mut Vec<u8>| {
            out.clear();
            out.resize(100 << 10, 6);
            Ok::<_, ()>(())
        };
        let turn = buffer.put(clears).unwrap();
        assert!(taken(&mut buffer, turn).is_some() && buffer.bytes.capacity() <= STATE_KEPT_BYTES, "a large one is not kept");
    }

    #[test]
    fn room_for_answers_that_once_waited_by_the_thousand_is_given_back() {
        let node = Node::lone(Some(64));
        let mut out = Out::new(node.clone(), 0, 1);
        (0..2_000).for_each(|_| out.push(ToNet::Quiet(0)));
        assert!(out.waiting.capacity() >= 1_000, "the ring is full");
        assert!(out.is_quiet() && out.due().is_some(), "nothing to do before it is tried again");
        let mut network = node.network.take_new().expect("the first flush has opened it");
        let mut taken = 0;
        while taken < 2_000 {
            out.flush();
            let before = taken;
            while network.pop().is_some() {
                taken += 1;
            }
            assert!(taken > before, "each flush fills the ring");
        }
        assert!(out.waiting.capacity() <= PUSHED_MAX, "{}", out.waiting.capacity());
        assert_eq!(out.due(), None);
        assert_eq!(out.waiting_bytes, 0);
    }

    #[test]
    fn who_has_too_much_that_waits_for_room_takes_nothing_in() {
        let node = Node::lone(Some(64));
        let mut out = Out::new(node.clone(), 0, 1);
        let reply = |bytes| ToNet::Reply { to: node.id, correlation: 1, body: ReplyBody::Value(vec![0; bytes].into()) };
        // What is in the ring does not count.
        while !out.has_unflushed() {
            out.push(reply(1));
            out.flush();
        }
        (0..WAITING_MAX).for_each(|_| out.push(reply(1)));
        assert!(out.is_clogged());
        let mut network = node.network.take_new().expect("the first flush has opened it");
        while out.has_unflushed() {
            while network.pop().is_some() {}
            out.flush();
        }
        assert!(!out.is_clogged() && out.waiting_bytes == 0);
        while !out.is_clogged() {
            out.push(reply(WAITING_BYTES_MAX / 4));
        }
        assert!(out.waiting.len() < WAITING_MAX, "bytes count as well");
    }

    #[test]
    fn a_value_that_makes_no_message_as_its_code_panics_is_counted() {
        let node = Node::lone(None);
        let topic = node.topics.enter(7, "news", |_| Ok(Arc::new(())));
        let mut out = Out::new(node.clone(), 0, 1);
        let shard = ShardKey { ty: crate::TypeId(1), shard: crate::ShardId(2) };
        out.subscribe(&topic, shard, &Key::new(b"k"), Box::new(|_| std::panic::resume_unwind(Box::new("on purpose"))));
        assert!(out.published(7, &(Arc::new(()) as Value)).is_empty());
        assert_eq!((topic.dropped(), node.metrics.workers[0].handler_panics.get()), (1, 1));
    }
}
