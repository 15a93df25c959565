//! Typed address of one entity, and the ways to send to it.

use std::{cell::Cell, fmt, sync::Arc, time::Duration};

use super::{
    context::{bad_key, read_answer, resolve},
    hosting::key_of,
};
use crate::{
    AskError, Deadline, EntityId, EntityType, Message, Refusal, Request, TellError, Time, TypeId, Wire,
    engine::{
        asker::Asker,
        clock::Clock,
        exits::{Nobody, Outgoing},
        node::Node,
        parcel::{Answered, Key, version_byte},
        slot::Waiter,
        slot_table::UNTIMED,
        sys,
        types::TypeEntry,
    },
    proto::handoff::Ask,
};

thread_local! {
    static ON_ENGINE: Cell<bool> = const { Cell::new(false) };
}

/// The calling thread does the work of a worker or of the network thread from now on, or no longer: what would block answers `WouldDeadlock` meanwhile.
pub(crate) fn mark_engine_thread(yes: bool) {
    ON_ENGINE.set(yes);
}

/// The calling thread does work of the engine for as long as this lives: what is logged in it may be heard by code that asks.
pub(crate) struct AsEngine(bool);

impl AsEngine {
    pub fn enter() -> Self {
        Self(ON_ENGINE.replace(true))
    }
}

impl Drop for AsEngine {
    fn drop(&mut self) {
        ON_ENGINE.set(self.0);
    }
}

/// Whether the calling thread is a worker or the network thread of any node of this process.
pub(crate) fn on_engine_thread() -> bool {
    ON_ENGINE.get()
}

/// Typed address of one entity. `Send + Sync + Clone`; resolves nothing until used. Stays on its node: messages carry [`id`](Self::id).
///
/// Messages that one thread sends to one entity keep their order, also across moves of its shard.
pub struct EntityRef<T: EntityType> {
    pub(super) node: Arc<Node>,
    entry: Arc<TypeEntry>,
    id: T::Key,
    key: Key,
}

impl<T: EntityType> Clone for EntityRef<T> {
    fn clone(&self) -> Self {
        Self { node: self.node.clone(), entry: self.entry.clone(), id: self.id.clone(), key: self.key.clone() }
    }
}

impl<T: EntityType> PartialEq for EntityRef<T> {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id && Arc::ptr_eq(&self.node, &other.node)
    }
}

impl<T: EntityType> Eq for EntityRef<T> {}

impl<T: EntityType> fmt::Debug for EntityRef<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", T::TYPE, self.id)
    }
}

/// Never implemented: what it is asked for says what to do instead.
#[doc(hidden)]
#[diagnostic::on_unimplemented(
    message = "an `EntityRef` stays on its node and cannot be part of a message",
    label = "use `EntityId<{Self}>` here",
    note = "send `reference.id()`; the receiver gets a reference from it with `cx.resolve(&id)` or `cluster.resolve(&id)`"
)]
pub trait StaysOnItsNode {}

impl<T: EntityType + StaysOnItsNode> serde::Serialize for EntityRef<T> {
    fn serialize<S: serde::Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
        Err(serde::ser::Error::custom("a reference stays on its node"))
    }
}

impl<'de, T: EntityType + StaysOnItsNode> serde::Deserialize<'de> for EntityRef<T> {
    fn deserialize<D: serde::Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
        Err(serde::de::Error::custom("a reference stays on its node"))
    }
}

impl<T: EntityType> EntityRef<T> {
    pub(crate) fn new(node: Arc<Node>, entry: Arc<TypeEntry>, id: T::Key) -> Self {
        let key = key_of(&id);
        Self { node, entry, id, key }
    }

    pub(crate) fn resolve(node: &Arc<Node>, id: &EntityId<T>) -> Option<Self> {
        let entry = node.type_entry(TypeId::of(T::TYPE)).filter(|entry| entry.declared_by == std::any::TypeId::of::<T>())?;
        Some(Self::new(node.clone(), entry, id.key().clone()))
    }

    /// Type and key.
    pub(crate) fn address(&self) -> (TypeId, Box<[u8]>) {
        (self.entry.id, self.key.bytes().into())
    }

    /// The entity's key.
    pub fn key(&self) -> &T::Key {
        &self.id
    }

    /// The address as data, to be put into messages.
    pub fn id(&self) -> EntityId<T> {
        EntityId::new(&self.id)
    }

    /// At most once, never blocks. `Ok`: accepted by a queue; if it is dropped later it is counted and offered as a dead letter. `Err`:
    /// you have it back.
    ///
    /// # Errors
    /// [`TellError`] with the [`Refusal`] and the message; nothing was queued.
    // Taken in where it is called, as the other ways to send are: so the message is written once, from where `move_made` takes it.
    #[inline(always)]
    pub fn tell(&self, msg: impl Message<T>) -> Result<(), TellError<T::Msg>> {
        let mut msg = Some(msg.into_msg());
        match self.offer(&mut msg) {
            Ok(()) => Ok(()),
            Err(refusal) => Err(self.refused(refusal, msg)),
        }
    }

    #[cold]
    pub(super) fn refused(&self, refusal: Refusal, msg: Option<T::Msg>) -> TellError<T::Msg> {
        self.count_refusal();
        TellError::new(refusal, msg.expect(REFUSED_STAYS))
    }

    /// Counted once for each message that its sender gets back, not for each try.
    pub(crate) fn count_refusal(&self) {
        self.node.metrics.shared.sends_refused.add(1);
    }

    /// Sends the message, or leaves it in its place. By reference, because each move of it costs. A function of its own, so that what it takes
    /// does not depend on how many call it.
    #[inline(never)]
    fn offer(&self, msg: &mut Option<T::Msg>) -> Result<(), Refusal> {
        let key = self.key.bytes();
        match bad_key(key) {
            Some(refusal) => Err(refusal),
            None => self.node.send_letter(&self.entry, Outgoing { key, hash: self.key.hash, asks: Nobody, msg }),
        }
    }

    /// As [`tell`](Self::tell), but waits for room until the deadline. For client threads; on a worker `WouldDeadlock` at once. If it waits for
    /// another node, the thread does turns of this node's network meanwhile, as in [`ask`](Self::ask).
    ///
    /// # Errors
    /// [`TellError`] with the [`Refusal`] and the message; nothing was queued.
    #[inline(always)]
    pub fn tell_within(&self, msg: impl Message<T>, deadline: impl Into<Deadline>) -> Result<(), TellError<T::Msg>> {
        let mut msg = Some(msg.into_msg());
        let refusal = if on_engine_thread() { Some(Refusal::WouldDeadlock) } else { self.offer(&mut msg).err() };
        match refusal {
            None => Ok(()),
            // The clock is read only once there is something to wait for.
            Some(refusal) if is_for_now(&refusal) => self.tell_when_there_is_room(msg, resolve(&self.node, deadline)),
            Some(refusal) => Err(self.refused(refusal, msg)),
        }
    }

    #[cold]
    fn tell_when_there_is_room(&self, mut msg: Option<T::Msg>, deadline: Time) -> Result<(), TellError<T::Msg>> {
        let mut room = AwaitRoom::new(&self.node);
        loop {
            match self.offer(&mut msg) {
                Err(refusal) if is_for_now(&refusal) && self.node.now() < deadline => room.wait(self.is_abroad()),
                done => return done.map_err(|refusal| self.refused(refusal, msg)),
            }
        }
    }

    /// Asks and blocks the calling thread for the answer. On a worker, and in a hook that the network thread calls, `WouldDeadlock` at once.
    ///
    /// If the answer comes from another node, the thread does turns of this node's network while it waits, on its own stack: some kilobytes, and
    /// what your `tracing` subscriber needs.
    ///
    /// # Errors
    /// [`AskError`]; its `ran()` tells whether the request was handled.
    #[inline(always)]
    pub fn ask<R: Request<T>>(&self, req: R, deadline: impl Into<Deadline>) -> Result<R::Reply, AskError> {
        self.ask_made(&mut Some(req.into_msg()), newest::<R::Reply>(), deadline.into()).and_then(read_answer)
    }

    /// Asks with the request that was made of `msg`, whose answer is read up to that version.
    #[inline(never)]
    fn ask_made(&self, msg: &mut Option<T::Msg>, reads: u8, deadline: Deadline) -> Result<Answered, AskError> {
        if on_engine_thread() {
            return Err(AskError::WouldDeadlock);
        }
        let now = self.node.now();
        let deadline = deadline.resolve(now);
        let mut asker = Asker::take(self.node.config.node.idle);
        let (correlation, untold) = match self.open_and_wait(msg, reads, deadline, &mut asker) {
            Ok(opened) => opened,
            Err(error) => {
                asker.keep();
                return Err(error);
            }
        };
        if untold {
            self.node.pass_on();
        }
        let answered = asker.wait(&self.node.clock, self.is_abroad().then_some(&self.node), now, deadline).or_else(|| {
            match self.node.slots.take(correlation) {
                Some(_) => {
                    self.node.metrics.shared.ask_timeouts.add(1);
                    None
                }
                // Who takes the slot decides: it is gone, so the answer is on its way.
                None => asker.wait_on(&self.node.clock),
            }
        });
        if asker.is_sampled() {
            self.node.metrics.ask.offer(self.node.now().since(now));
        }
        asker.keep();
        // For the next ask.
        self.node.slots.fetch(correlation);
        answered.ok_or(AskError::Timeout { maybe_ran: true })
    }

    /// Asks; `then` runs exactly once, on the helper thread.
    pub fn ask_then<R: Request<T>>(
        &self,
        req: R,
        deadline: impl Into<Deadline>,
        then: impl FnOnce(Result<R::Reply, AskError>) + Send + 'static,
    ) {
        let (node, deadline) = (self.node.clone(), resolve(&self.node, deadline));
        let then = Arc::new(parking_lot::Mutex::new(Some(then)));
        let once = then.clone();
        let waiter = Waiter::Call(Box::new(move |answered| {
            let then = once.lock().take().expect("a slot is answered at most once");
            node.help(Box::new(move || then(read_answer(answered))));
        }));
        let asked = self.open(&mut Some(req.into_msg()), newest::<R::Reply>(), deadline, waiter);
        if let Err(error) = asked
            && let Some(then) = then.lock().take()
        {
            self.node.help(Box::new(move || then(Err(error))));
        }
    }

    /// Asks, waiting at most `patience` for room in a queue; `waiter` runs on the thread that brings the answer, so it must be quick.
    /// On `Err` it is dropped without a call.
    #[cfg(feature = "admin")]
    pub(crate) fn ask_raw_within<R: Request<T>>(
        &self,
        req: R,
        deadline: impl Into<Deadline>,
        patience: Duration,
        waiter: impl FnOnce(Result<R::Reply, AskError>) + Send + 'static,
    ) -> Result<(), AskError> {
        if let Some(refusal) = bad_key(self.key.bytes()) {
            return Err(AskError::Refused(refusal));
        }
        let deadline = resolve(&self.node, deadline);
        let waiter = Waiter::Call(Box::new(move |answered| waiter(read_answer(answered))));
        let give_up = self.node.now() + patience;
        let ask = self.node.open_ask(deadline, waiter).ok_or(AskError::Refused(Refusal::Overloaded))?;
        let (slot, reads) = (Unsent { node: &self.node, correlation: ask.correlation }, newest::<R::Reply>());
        let (mut msg, mut room) = (Some(req.into_msg()), AwaitRoom::new(&self.node));
        loop {
            match self
                .node
                .send_letter(&self.entry, Outgoing { key: self.key.bytes(), hash: self.key.hash, asks: (Some(ask), reads), msg: &mut msg })
            {
                Ok(()) => {
                    slot.sent();
                    return Ok(());
                }
                Err(refusal) if is_for_now(&refusal) && self.node.now() < give_up => {}
                Err(refusal) => {
                    self.count_refusal();
                    return if slot.withdraw() { Err(AskError::Refused(refusal)) } else { Ok(()) };
                }
            }
            room.wait(self.is_abroad());
        }
    }

    /// Whether the next message leaves this node.
    #[inline]
    pub(crate) fn is_abroad(&self) -> bool {
        self.entry.route(self.key.hash).1.exit().is_none()
    }

    /// Sends a message that somebody else has sent, and may wait for an answer to. Who passes it on cannot have it back: refused, it is a dead letter.
    pub(crate) fn pass_on(&self, msg: T::Msg, ask: Option<Ask>, reads: u8) -> Result<(), Refusal> {
        let (key, hash) = (self.key.bytes(), self.key.hash);
        let letter = Outgoing { key, hash, asks: (ask, reads), msg: &mut Some(msg) };
        let passed = bad_key(key).map_or_else(|| self.node.send_letter(&self.entry, letter), Err);
        passed.inspect_err(|refusal| self.node.bury_parts(self.entry.shard_of(hash), key, None, refusal.as_drop()))
    }

    /// Asks; the number of the ask. On `Err` nothing was sent, and `waiter` is dropped unanswered.
    pub(crate) fn open(&self, msg: &mut Option<T::Msg>, reads: u8, deadline: Time, waiter: Waiter) -> Result<u64, AskError> {
        self.open_or_back(msg, reads, deadline, waiter).inspect_err(|_| self.count_refusal()).map_err(AskError::Refused)
    }

    /// As `open`, by a thread that watches the deadline and waits next: also whether the network thread has got something it was not told of.
    fn open_and_wait(&self, msg: &mut Option<T::Msg>, reads: u8, deadline: Time, asker: &mut Asker) -> Result<(u64, bool), AskError> {
        let opened = self.send_ask(
            msg,
            reads,
            || asker.open(&self.node).map(|correlation| Ask { node: self.node.id, correlation, deadline }),
            |letter| self.node.send_and_wait(&self.entry, letter),
        );
        opened.inspect_err(|_| self.count_refusal()).map_err(AskError::Refused)
    }

    /// As `open` with a deadline that the node watches, for an entity of that worker of `asker`; the number is one of `asker`'s. A reference of
    /// another node (of this process) answers through a slot of its own.
    pub(crate) fn open_for(
        &self,
        asker: &Arc<Node>,
        worker: u16,
        msg: &mut Option<T::Msg>,
        reads: u8,
        deadline: Time,
    ) -> Result<u64, AskError> {
        if Arc::ptr_eq(&self.node, asker) {
            return self.open(msg, reads, deadline, Waiter::Entity(worker));
        }
        let Some(mine) = asker.slots.open(Waiter::Entity(worker), UNTIMED) else {
            self.count_refusal();
            return Err(AskError::Refused(Refusal::Overloaded));
        };
        let slot = Unsent { node: asker, correlation: mine };
        let home = asker.clone();
        let waiter = Waiter::Call(Box::new(move |answered| home.complete(mine, answered)));
        self.open(msg, reads, deadline, waiter).map(|_| slot.sent())
    }

    /// As `open`, but what is refused stays in its place, and is not counted.
    pub(crate) fn open_or_back(&self, msg: &mut Option<T::Msg>, reads: u8, deadline: Time, waiter: Waiter) -> Result<u64, Refusal> {
        let opened =
            self.send_ask(msg, reads, || self.node.open_ask(deadline, waiter), |letter| self.node.send_letter(&self.entry, letter));
        opened.map(|(correlation, ())| correlation)
    }

    #[inline]
    fn send_ask<S: Default>(
        &self,
        msg: &mut Option<T::Msg>,
        reads: u8,
        open: impl FnOnce() -> Option<Ask>,
        send: impl FnOnce(Outgoing<'_, T::Msg, (Option<Ask>, u8)>) -> Result<S, Refusal>,
    ) -> Result<(u64, S), Refusal> {
        if let Some(refusal) = bad_key(self.key.bytes()) {
            return Err(refusal);
        }
        let ask = open().ok_or(Refusal::Overloaded)?;
        let slot = Unsent { node: &self.node, correlation: ask.correlation };
        let letter = Outgoing { key: self.key.bytes(), hash: self.key.hash, asks: (Some(ask), reads), msg };
        match send(letter) {
            Err(refusal) if slot.withdraw() => Err(refusal),
            sent => Ok((slot.sent(), sent.unwrap_or_default())),
        }
    }
}

/// Of a message.
const REFUSED_STAYS: &str = "what is refused stays in its place";

/// The slot of an ask whose request is not sent yet. Should it never be, because it is refused or its encoder panics, the slot is free again.
struct Unsent<'a> {
    node: &'a Node,
    correlation: u64,
}

impl Unsent<'_> {
    /// The request is sent, under this number.
    fn sent(self) -> u64 {
        std::mem::ManuallyDrop::new(self).correlation
    }

    /// Nobody waits any more. False if the waiter has had its answer, as its time ran out meanwhile.
    fn withdraw(&self) -> bool {
        self.node.slots.take(self.correlation).is_some()
    }
}

impl Drop for Unsent<'_> {
    fn drop(&mut self) {
        drop(self.node.slots.take(self.correlation));
    }
}

/// Newest version of a value that this build reads, as it travels.
pub(crate) fn newest<V: Wire>() -> u8 {
    version_byte(*V::VERSIONS.end())
}

/// Whether there may be room a moment later: in the ring, or on the link.
pub(crate) fn is_for_now(refusal: &Refusal) -> bool {
    matches!(refusal, Refusal::Full | Refusal::NoCredit)
}

/// How a thread waits for room in a ring: the consumer empties one within a fraction of a millisecond, if it is awake.
pub(super) struct AwaitRoom<'a> {
    node: &'a Node,
    backoff: crossbeam::utils::Backoff,
    since: Time,
}

impl<'a> AwaitRoom<'a> {
    const AWAKE: Duration = Duration::from_millis(1);
    const NAP: Duration = Duration::from_micros(200);

    pub(super) fn new(node: &'a Node) -> Self {
        Self { node, backoff: crossbeam::utils::Backoff::new(), since: node.now() }
    }

    /// `helps`: room comes of this node's network, whose work it does meanwhile.
    pub(super) fn wait(&mut self, helps: bool) {
        if let Clock::Virtual(time) = &self.node.clock {
            return time.pass(time.now() + Self::NAP);
        }
        if helps && self.node.help_network() {
            return;
        }
        if self.backoff.is_completed() && sys::now().since(self.since) > Self::AWAKE {
            std::thread::park_timeout(Self::NAP);
        } else {
            self.backoff.snooze();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        any::TypeId as RustTypeId,
        panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    };

    use super::*;
    use crate::CodecError;

    struct Fuse;

    /// Goes off when it is encoded, if it is set; behind its deadline if there is a node whose asks it ends before.
    struct Charge(bool);

    thread_local! {
        static LATE: std::cell::RefCell<Option<Arc<Node>>> = const { std::cell::RefCell::new(None) };
    }

    impl Wire for Charge {
        const NAME: &'static str = "charge";

        fn encode(&self, _: u16, out: &mut Vec<u8>) -> Result<(), CodecError> {
            if self.0 {
                LATE.with_borrow(|node| node.iter().for_each(|node| node.end_asks()));
                resume_unwind(Box::new("an encoder's end"));
            }
            out.push(1);
            Ok(())
        }

        fn decode(_: u16, _: &mut &[u8]) -> Result<Self, CodecError> {
            Err(CodecError::Decode("not needed".into()))
        }
    }

    impl EntityType for Fuse {
        const TYPE: &'static str = "fuse";
        type Key = u64;
        type Msg = Charge;
    }

    impl Message<Fuse> for Charge {
        fn into_msg(self) -> Charge {
            self
        }
    }

    impl Request<Fuse> for Charge {
        type Reply = u64;
    }

    #[test]
    fn an_ask_whose_encoder_panics_leaves_no_slot_behind() {
        let node = Node::lone(None);
        // Its shards are elsewhere, so that messages are encoded at once.
        let entry = Arc::new(TypeEntry::new("fuse", 8, RustTypeId::of::<Fuse>()));
        let fuse = EntityRef::<Fuse>::new(node.clone(), entry, 7);
        // The first message to a shard goes another way than those behind it.
        for set in [true, false, true] {
            let asked = catch_unwind(AssertUnwindSafe(|| fuse.open(&mut Some(Charge(set)), 0, Time::MAX, Waiter::Entity(0)).unwrap()));
            assert_eq!(asked.is_err(), set);
            let queued =
                catch_unwind(AssertUnwindSafe(|| fuse.open_or_back(&mut Some(Charge(set)), 0, Time::MAX, Waiter::Entity(0)).unwrap()));
            assert_eq!(queued.is_err(), set);
            for correlation in asked.into_iter().chain(queued) {
                assert!(node.slots.take(correlation).is_some());
            }
            assert_eq!(node.slots.in_flight(), 0);
        }
        let queue = crate::AskQueue::new(1);
        for set in [true, true, false] {
            let asked = catch_unwind(AssertUnwindSafe(|| fuse.ask_into(Charge(set), Time::MAX, 0, &queue).is_ok()));
            assert_eq!((asked.is_err(), queue.in_flight()), (set, usize::from(!set)), "no room of the queue is lost either");
        }
    }

    #[test]
    fn nor_does_one_of_an_entity_of_another_node() {
        let (node, asker) = (Node::lone(None), Node::lone(None));
        let entry = Arc::new(TypeEntry::new("fuse", 8, RustTypeId::of::<Fuse>()));
        let fuse = EntityRef::<Fuse>::new(node.clone(), entry, 7);
        for set in [true, false, true] {
            let asked = catch_unwind(AssertUnwindSafe(|| fuse.open_for(&asker, 0, &mut Some(Charge(set)), 0, Time::MAX).unwrap()));
            assert_eq!(asked.is_err(), set);
            assert_eq!((asker.slots.in_flight(), node.slots.in_flight()), (usize::from(!set), usize::from(!set)));
            node.end_asks();
            asker.end_asks();
        }
    }

    mod other {
        crate::messages! { pub enum OtherMsg for Other(u64) = "fuse" { Go } }
    }

    #[test]
    fn a_reference_is_of_the_type_that_was_declared() {
        let node = Node::lone(None);
        node.enter_type(TypeEntry::new("fuse", 8, RustTypeId::of::<Fuse>()));
        assert!(EntityRef::<Fuse>::resolve(&node, &EntityId::new(7u64)).is_some());
        assert!(EntityRef::<other::Other>::resolve(&node, &EntityId::new(7u64)).is_none(), "another one of that name");
    }

    #[test]
    fn an_encoder_that_panics_behind_its_deadline_leaves_room_for_the_answer_that_there_is() {
        let node = Node::lone(None);
        let entry = Arc::new(TypeEntry::new("fuse", 8, RustTypeId::of::<Fuse>()));
        let fuse = EntityRef::<Fuse>::new(node.clone(), entry, 7);
        let queue = crate::AskQueue::new(1);
        LATE.set(Some(node.clone()));
        let asked = catch_unwind(AssertUnwindSafe(|| fuse.ask_into(Charge(true), Time::MAX, 3, &queue).is_ok()));
        LATE.set(None);
        assert_eq!((asked.is_err(), queue.in_flight(), node.slots.in_flight()), (true, 1, 0));
        assert!(fuse.ask_into(Charge(false), Time::MAX, 4, &queue).is_err(), "the answer has not been taken");
        let mut answers = vec![];
        assert_eq!((queue.poll(&mut answers), queue.in_flight(), answers[0].tag), (1, 0, 3));
    }

    #[test]
    fn who_does_the_engines_work_for_a_while_must_not_wait_meanwhile() {
        for before in [false, true] {
            mark_engine_thread(before);
            let during = catch_unwind(|| {
                let _outer = AsEngine::enter();
                drop(AsEngine::enter());
                let during = on_engine_thread();
                assert!(!during, "ends as it was, however it ends");
            });
            assert_eq!((during.is_err(), on_engine_thread()), (true, before));
        }
        mark_engine_thread(false);
    }
}
