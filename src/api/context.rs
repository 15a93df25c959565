//! What an entity can do during a turn.

use std::{
    fmt,
    marker::PhantomData,
    sync::Arc,
    time::{Duration, SystemTime},
};

use super::{hosting::key_of, reference::newest};
use crate::{
    AskError, ClusterView, CodecError, Deadline, DropReason, Entity, EntityId, EntityRef, EntityType, Epoch, Failure, Handoff, KeyOf,
    Message, MsgOf, NodeAddr, NodeId, Refusal, Region, ReplyTag, Request, ShardId, StartCause, TellError, Time, Topic, Wire,
    engine::{
        message::AnyMessage,
        node::Node,
        out::{Later, OpenAsk, Out, Then},
        panics,
        parcel::{Answered, EngineParcel, version_byte, with_scratch},
        topics::Value,
        types::Env,
        watches::{Closed, NewWatch},
    },
    proto::{
        handoff::{Ask, Envelope, ReplyBody},
        shard::{Parcel, Place, Turn, Wish},
    },
};

/// What an entity can do during a turn. Nothing here blocks.
///
/// There is no way from here to the [`Cluster`](crate::Cluster): an entity that kept its handle would keep its own node from ending, and one that is
/// tested alone has none. What entities need of it is here.
///
/// # When the shard moves
/// Timers, stashed messages, watches of nodes and the mailbox travel to the new home, as messages. An open [`ask`](Self::ask) is answered
/// `Moved` through its `then` on the old home, and the message that `then` makes travels. A [`Promise`] answers through the old node, as long as
/// that lives.
///
/// # What belongs to the instance
/// Timers, watches and the idle time end when the instance does: when it passivates, fails or is stopped. What it has stashed goes back to the
/// front of the mailbox, for the next one.
pub struct Cx<'a, E: Entity> {
    id: &'a KeyOf<E>,
    cause: StartCause,
    node: &'a Arc<Node>,
    at: &'a Place,
    out: &'a mut Out,
    /// Who waits for an answer, and has none yet.
    ask: Option<&'a Ask>,
    /// Newest version of the answer that the asker reads.
    reads: u8,
    turn: Turn,
    _entity: PhantomData<fn() -> E>,
}

impl<'a, E: Entity> Cx<'a, E> {
    /// All by reference: for many turns nobody looks at most of it.
    #[inline]
    pub(crate) fn new(id: &'a KeyOf<E>, cause: StartCause, ask: Option<&'a Ask>, reads: u8, env: &'a mut Env<'_>) -> Self {
        Self { id, cause, node: env.node, at: env.at, out: env.out, ask, reads, turn: Turn::Continue, _entity: PhantomData }
    }

    /// Ends the turn: an ask that nobody answered gets `NoReply` at once.
    #[inline]
    pub(crate) fn finish(self) -> Turn {
        if let Some(ask) = self.ask {
            self.out.answer(*ask, Answered::Wire(ReplyBody::NoReply));
        }
        self.turn
    }

    /// What the turn has come to so far.
    pub(crate) fn turn(&self) -> Turn {
        self.turn
    }

    /// This entity's key.
    pub fn id(&self) -> &'a KeyOf<E> {
        self.id
    }

    /// Its shard.
    pub fn shard(&self) -> ShardId {
        self.at.shard.shard
    }

    /// The shard's epoch here: give it to storage as a fencing token.
    pub fn epoch(&self) -> Epoch {
        self.at.epoch
    }

    /// Why this instance was started.
    pub fn cause(&self) -> StartCause {
        self.cause
    }

    /// This node.
    pub fn node_id(&self) -> NodeId {
        self.node.id
    }

    /// What this node advertises.
    pub fn node_addr(&self) -> &'a NodeAddr {
        &self.node.addr
    }

    /// Time of this turn. One clock read per turn.
    pub fn now(&self) -> Time {
        self.at.now
    }

    /// The moment it is for calendars and people: for what is written down, not for measuring, as this clock may be set back. Under the test kit it
    /// begins in 2020 and goes with virtual time.
    pub fn wall_clock(&self) -> SystemTime {
        self.node.clock.wall()
    }

    /// The members of the cluster, as this node sees them; an `Arc` clone.
    pub fn view(&self) -> Arc<ClusterView> {
        self.node.view()
    }

    /// The entities of another type that this node hosts or has a proxy for; `None` if it has neither.
    pub fn region<T: EntityType>(&self) -> Option<Region<T>> {
        Region::find(self.node)
    }

    /// When the asker gives up; `None` if nobody asked. An ask that is past it is dropped before it runs.
    pub fn deadline(&self) -> Option<Time> {
        self.ask.map(|a| a.deadline)
    }

    /// A reference to this entity.
    pub fn this(&self) -> EntityRef<E::Type> {
        let entry = self.node.type_entry(self.at.shard.ty).expect("a running entity's type is registered");
        EntityRef::new(self.node.clone(), entry, self.id.clone())
    }

    /// A reference to an entity of a type that this node hosts or has a proxy for; `None` if it has neither.
    pub fn resolve<T: EntityType>(&self, id: &EntityId<T>) -> Option<EntityRef<T>> {
        EntityRef::resolve(self.node, id)
    }

    /// Answers the ask of this turn; a message that was told answers nobody. Without reply or `defer` the asker gets `NoReply` at once.
    pub fn reply<V: Wire>(&mut self, tag: ReplyTag<V>, value: V) {
        let ReplyTag { .. } = tag;
        let Some(ask) = self.ask.take() else { return };
        let answered = if self.out.is_local(*ask) {
            Answered::Typed(AnyMessage::new(value))
        } else {
            Answered::Wire(encode_reply(&value, self.reads))
        };
        self.out.answer(*ask, answered);
    }

    /// Answers no: the asker gets `AskError::Rejected`.
    pub fn reject<V: Wire>(&mut self, tag: ReplyTag<V>, why: impl Into<String>) {
        let ReplyTag { .. } = tag;
        if let Some(ask) = self.ask.take() {
            self.out.answer(*ask, Answered::Wire(ReplyBody::Rejected(why.into())));
        }
    }

    /// Takes the answer along, to be given later from any thread.
    pub fn defer<V: Wire>(&mut self, tag: ReplyTag<V>) -> Promise<V> {
        let ReplyTag { .. } = tag;
        Promise { node: self.node.clone(), ask: self.ask.take().copied(), reads: self.reads, _value: PhantomData }
    }

    /// Lets another entity answer this turn's asker, directly. A message that was told is told on. `to` is of this node's cluster: what is forwarded
    /// into another one of this process is not answered, so [`ask`](Self::ask) there.
    ///
    /// If the request is not accepted there, it becomes a dead letter, and the asker gets `AskError::Dropped` with the reason, so nothing waits for nothing.
    ///
    /// Whether the request [`ran`](AskError::ran) is then said of the entity that it was forwarded to: what this one did before, it has done.
    pub fn forward<T: EntityType, R: Request<T>>(&mut self, tag: ReplyTag<R::Reply>, to: &EntityRef<T>, req: R) {
        let ReplyTag { .. } = tag;
        let ask = self.ask.take().copied();
        if let Err(refusal) = to.pass_on(req.into_msg(), ask, self.reads)
            && let Some(ask) = ask
        {
            self.out.answer(ask, Answered::Wire(ReplyBody::Dropped(refusal.as_drop())));
        }
    }

    /// Asks without waiting: the answer, or why there is none, comes to this entity as the message that `then` makes of it, like any other
    /// message and in no fixed order to others. `then` runs once, on this worker, outside of a turn, also where the request is refused; it stays on this
    /// node, so it need not be `Send`.
    ///
    /// The message comes to the entity, not to the instance: if it has left memory meanwhile, it is started. If its shard moves before there is
    /// an answer, `then` gets `AskError::Moved`, and its message goes to the new home. Nothing comes if this node dies.
    pub fn ask<T, R, M>(
        &mut self,
        to: &EntityRef<T>,
        req: R,
        deadline: impl Into<Deadline>,
        then: impl FnOnce(Result<R::Reply, AskError>) -> M + 'static,
    ) where
        T: EntityType,
        R: Request<T>,
        M: Message<E::Type>,
    {
        let deadline = deadline.into().resolve(self.at.now);
        let key = key_of(self.id);
        let asked = match self.out.may_ask() {
            true => to.open_for(self.node, self.out.index, &mut Some(req.into_msg()), newest::<R::Reply>(), deadline),
            false => {
                to.count_refusal();
                Err(AskError::Refused(Refusal::Overloaded))
            }
        };
        let then: Then = Box::new(move |answered| {
            let result = answered.and_then(read_answer::<R::Reply>);
            AnyMessage::new(then(result).into_msg())
        });
        let open = OpenAsk { shard: self.at.shard, key, then };
        match asked {
            Ok(correlation) => _ = self.out.asks.insert(correlation, open),
            Err(error) => self.out.later(Later::Refused(open, error)),
        }
    }

    /// Sends this entity `msg` after that time. The same `key` replaces what stands under it; a message of it that waits in the mailbox
    /// already still comes.
    ///
    /// Never early; late by as long as the worker is busy, or the entity may not run. A timer that moves keeps the time it has left.
    pub fn timer_once(&mut self, key: u64, after: Duration, msg: impl Message<E::Type>) {
        self.timer(key, after, false, msg.into_msg());
    }

    /// Sends this entity `msg` after each `every`, at least a millisecond. The same `key` replaces. A late timer fires once, not once for each
    /// period that was missed.
    pub fn timer_every(&mut self, key: u64, every: Duration, msg: impl Message<E::Type>) {
        self.timer(key, every, true, msg.into_msg());
    }

    /// Ends the timer with this key, if there is one.
    pub fn timer_cancel(&mut self, key: u64) {
        self.out.wishes.push(Wish::Cancel { key });
    }

    fn timer(&mut self, key: u64, after: Duration, again: bool, msg: MsgOf<E>) {
        if let Some(message) = self.encoded(msg) {
            self.out.wishes.push(Wish::Timer { key, after, again, message });
        }
    }

    /// A message to itself in the form that can wait and travel. One that cannot be encoded is a dead letter.
    fn encoded(&mut self, msg: MsgOf<E>) -> Option<Envelope> {
        let parcel = EngineParcel::told(key_of(self.id), AnyMessage::new(msg));
        let (envelope, max) = (parcel.to_envelope(self.at.shard), self.node.config.limits.message_bytes as usize);
        let size = envelope.as_ref().map_or(0, |envelope| envelope.payload().len());
        let (reason, why) = match envelope {
            Ok(envelope) if size <= max => return Some(envelope),
            Ok(_) => (
                DropReason::TooLarge,
                format!("{size} bytes, limits.message_bytes is {max}; make it shorter, or raise the limit on all nodes"),
            ),
            Err(why) => (DropReason::Undecodable, why),
        };
        tracing::error!(target: "wingbeat::engine", entity_type = E::Type::TYPE, %why, "a message of an entity to itself cannot wait or travel");
        self.node.bury(self.at.shard, &parcel, reason);
        None
    }

    /// Puts a message aside, with its asker, until [`unstash`](Self::unstash): for what cannot be handled before something is loaded.
    ///
    /// Bounded like the mailbox; what is beyond that becomes a dead letter (`StashFull`), and its asker is told.
    pub fn stash(&mut self, msg: MsgOf<E>) {
        let parcel =
            EngineParcel::Typed { key: key_of(self.id), ask: self.ask.take().copied(), reads: self.reads, msg: AnyMessage::new(msg) };
        self.out.wishes.push(Wish::Stash(parcel));
    }

    /// What was put aside comes next, in its order, before anything newer.
    pub fn unstash(&mut self) {
        self.out.wishes.push(Wish::Unstash);
    }

    /// Leave memory after so long without a message from outside, whatever the host's [`Passivation`](crate::Passivation) says; `None`: what
    /// that says.
    pub fn idle_timeout(&mut self, after: Option<Duration>) {
        self.out.wishes.push(Wish::Idle(after));
    }

    /// The topic of this name for values of this type, on all nodes; as [`Cluster::topic`](crate::Cluster::topic).
    pub fn topic<V: Wire + Clone>(&self, name: &str) -> Topic<V> {
        Topic::new(self.node.clone(), name)
    }

    /// Values of the topic arrive as messages from now on, at most once each, until this instance ends: subscribe in
    /// [`Entity::started`], which runs on every new home.
    pub fn subscribe<V: Wire + Clone + Message<E::Type>>(&mut self, topic: &Topic<V>) {
        let convert = |value: &Value| value.downcast_ref::<V>().map(|value| AnyMessage::new(value.clone().into_msg()));
        let entry = topic.entry_on(self.node);
        self.out.subscribe(&entry, self.at.shard, &key_of(self.id), Box::new(convert));
    }

    /// No more of that.
    pub fn unsubscribe<V: Wire + Clone>(&mut self, topic: &Topic<V>) {
        self.out.unsubscribe(Some(topic.entry.id), self.at.shard, key_of(self.id).bytes());
    }

    /// Sends this entity `msg` once, when the instance of `to` that is live now ends: it passivates, fails or is stopped, or its node dies. At
    /// once if there is none, if this node has no room for another watch (seven eighths of `limits.asks`), or if `to` has twice as many watchers as
    /// may wait in its mailbox. Watching the same entity again replaces.
    ///
    /// A move is no end: the watch goes along, on both sides; but one of `to` that hands no state over ends the instance. On the new home of
    /// *this* entity the watched type must be known (hosted, or a proxy), else `msg` comes at once. In no fixed order to messages of the watched
    /// entity.
    pub fn watch<T: EntityType>(&mut self, to: &EntityRef<T>, msg: impl Message<E::Type>) {
        let Some(message) = self.encoded(msg.into_msg()) else { return };
        let target = to.address();
        if bad_key(&target.1).is_some() {
            return self.out.later(Later::Own(self.at.shard, EngineParcel::from_envelope(message)));
        }
        let (node, shard) = (self.node, self.at.shard);
        let open = NewWatch { shard, target, message, moved_in: None };
        if let Err(message) = self.out.watches.open(node, self.out.index, open) {
            self.out.later(Later::Own(shard, EngineParcel::from_envelope(message)));
        }
    }

    /// No more of that.
    pub fn unwatch<T: EntityType>(&mut self, to: &EntityRef<T>) {
        let key = key_of(self.id);
        self.out.watches.close(self.node, self.at.shard, key.bytes(), &Closed::Of(to.address()));
    }

    /// Sends this entity `msg` once, when that node has been removed from the cluster: it has left, or was declared dead and taken out. At
    /// once if this node knows no such member. The same node again replaces.
    pub fn watch_node(&mut self, node: NodeId, msg: impl Message<E::Type>) {
        let Some(message) = self.encoded(msg.into_msg()) else { return };
        let gone = self.node.view().member(node).is_none();
        if gone {
            self.out.later(Later::Own(self.at.shard, EngineParcel::from_envelope(message)));
        } else {
            self.out.wishes.push(Wish::WatchNode { node, message });
        }
    }

    /// No more of that.
    pub fn unwatch_node(&mut self, node: NodeId) {
        self.out.wishes.push(Wish::UnwatchNode { node });
    }

    /// 64 random bits, good enough for jitter and sampling, not for secrets.
    pub fn random(&mut self) -> u64 {
        self.out.rng.next_u64()
    }

    /// At most once, never blocks; as [`EntityRef::tell`].
    ///
    /// # Errors
    /// [`TellError`] with the [`Refusal`] and the message; nothing was queued.
    pub fn tell<T: EntityType>(&mut self, to: &EntityRef<T>, msg: impl Message<T>) -> Result<(), TellError<T::Msg>> {
        to.tell(msg)
    }

    /// Leaves memory after this turn: if that is [`Entity::started`] or [`Entity::adopted`], behind the message that it was started for, unless
    /// that sets an [`idle_timeout`](Self::idle_timeout). What arrives later starts the next incarnation.
    pub fn passivate(&mut self) {
        if self.turn == Turn::Continue {
            self.turn = Turn::Passivate;
        }
    }

    /// Ends this instance as failed after this turn; the next message starts another one after a back-off. For [`Entity::handle`], and for
    /// [`Entity::adopted`] and [`Entity::started`], where it is a start that failed: what waits for the entity, also the state that was handed over,
    /// waits for the next try.
    pub fn fail(&mut self, why: impl Into<Failure>) {
        let why = why.into();
        tracing::warn!(target: "wingbeat::engine", entity_type = E::Type::TYPE, shard = self.at.shard.shard.0, epoch = self.at.epoch.get(), %why, "an entity gave up");
        self.turn = Turn::Failed;
    }

    /// Encodes the live state for the next owner, in each version that this build writes: the next owner's build takes the newest that it
    /// reads. For [`Entity::handoff`].
    ///
    /// # Errors
    /// [`Failure`]: the state cannot be encoded. Give it on, and the move is called off.
    pub fn hand_over<S: Wire>(&mut self, state: &S) -> Result<Handoff, Failure> {
        let given = self.out.states.put(|out| super::wire::encode_versions(state, out))?;
        Ok(Handoff { given: Some(given) })
    }
}

/// A reply as it travels: its version, then its bytes. The version is the newest that both sides read, or the oldest of this side, which the
/// asker will then name in its error. A reply that cannot be encoded is an answer too: it ran, and its reply was lost on the way.
pub(crate) fn encode_reply<V: Wire>(value: &V, reads: u8) -> ReplyBody {
    let version = u16::from(reads).clamp(*V::VERSIONS.start(), *V::VERSIONS.end());
    with_scratch(|bytes| {
        bytes.push(version_byte(version));
        match value.encode(version, bytes) {
            Ok(()) if bytes.first() == Some(&version_byte(version)) => ReplyBody::Value(bytes.as_slice().into()),
            Ok(()) => ReplyBody::Rejected(format!(
                "the encoder of the reply `{}` took away what stood in the buffer: `Wire::encode` appends",
                V::NAME
            )),
            Err(error) => ReplyBody::Rejected(format!("the reply `{}` could not be encoded: {error}", V::NAME)),
        }
    })
}

/// An answer owed. `Send`, does not block. Dropping it answers `NoReply`. Either calls the hook of an asker's queue, or wakes the task that waits, on the
/// calling thread.
#[must_use = "dropping a promise answers `NoReply`"]
pub struct Promise<V: Wire> {
    node: Arc<Node>,
    ask: Option<Ask>,
    reads: u8,
    _value: PhantomData<fn(V)>,
}

impl<V: Wire> fmt::Debug for Promise<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Promise({})", V::NAME)
    }
}

impl<V: Wire> Promise<V> {
    /// Gives the answer.
    pub fn fulfil(mut self, value: V) {
        let Some(ask) = self.ask else { return };
        if ask.node == self.node.id {
            self.node.complete(ask.correlation, Answered::Typed(AnyMessage::new(value)));
        } else {
            self.node.answer(ask, encode_reply(&value, self.reads));
        }
        // Before that an encoder may have panicked: then there is no reply.
        self.ask = None;
    }

    /// Answers no: the asker gets [`AskError::Rejected`].
    pub fn reject(mut self, why: impl Into<String>) {
        if let Some(ask) = self.ask.take() {
            self.node.answer(ask, ReplyBody::Rejected(why.into()));
        }
    }

    /// The asker gave up.
    pub fn is_expired(&self) -> bool {
        self.ask.is_some_and(|ask| self.node.now() >= ask.deadline)
    }
}

impl<V: Wire> Drop for Promise<V> {
    fn drop(&mut self) {
        if let Some(ask) = self.ask.take() {
            self.node.answer(ask, ReplyBody::NoReply);
        }
    }
}

/// Resolves a deadline on the node's clock.
pub(crate) fn resolve(node: &Node, deadline: impl Into<Deadline>) -> Time {
    deadline.into().resolve(node.now())
}

/// What an answer means to an asker who expects a `V`.
pub(crate) fn read_answer<V: Wire>(answered: Answered) -> Result<V, AskError> {
    match answered {
        Answered::Typed(any) => any.take().map_err(|_| AskError::Undecodable(format!("the reply is no `{}`", V::NAME))),
        Answered::Wire(body) => {
            let bytes = AskError::check(body)?;
            let (version, mut input) = bytes.split_first().map_or((0, &[][..]), |(version, rest)| (u16::from(*version), rest));
            let value = if V::VERSIONS.contains(&version) {
                // Of the user's making, between an asker that was promised an outcome and its answer.
                let panicked = || Err(CodecError::Decode(format!("the decoder of `{}` panicked", V::NAME)));
                panics::caught(|| V::decode(version, &mut input)).unwrap_or_else(panicked)
            } else {
                Err(CodecError::Version { name: V::NAME, ours: V::VERSIONS, theirs: version })
            };
            value.map_err(|e| AskError::Undecodable(e.to_string()))
        }
        Answered::Timeout => Err(AskError::Timeout { maybe_ran: true }),
        Answered::Stopped => Err(AskError::Shutdown),
    }
}

/// Why a key cannot be used; `None` if it can.
#[inline]
pub(crate) fn bad_key(bytes: &[u8]) -> Option<Refusal> {
    match bytes.len() {
        n if (1..=super::KEY_BYTES_MAX).contains(&n) => None,
        n => Some(why_bad(n)),
    }
}

#[cold]
fn why_bad(bytes: usize) -> Refusal {
    let max = super::KEY_BYTES_MAX;
    let why = match bytes {
        0 => format!("it is empty; a key has 1 to {max} bytes"),
        n => format!("it has {n} bytes, at most {max}"),
    };
    Refusal::BadKey { why }
}
