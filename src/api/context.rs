//! What an entity can do during a turn.

use std::{marker::PhantomData, sync::Arc};

use crate::{
    AskError, Deadline, Entity, EntityId, EntityRef, EntityType, Epoch, Failure, Handoff, KeyOf, Message, NodeAddr, NodeId, Refusal,
    ReplyTag, ShardId, StartCause, TellError, Time, Wire,
    engine::{
        message::AnyMessage,
        node::Node,
        parcel::{Answered, Key},
        types::Env,
        worker::Out,
    },
    proto::{
        handoff::{Ask, ReplyBody},
        shard::{Place, Turn},
    },
};

/// What an entity can do during a turn. Nothing here blocks.
pub struct Cx<'a, E: Entity> {
    id: &'a KeyOf<E>,
    key: &'a Key,
    cause: StartCause,
    node: &'a Arc<Node>,
    at: Place,
    out: &'a mut Out,
    ask: Option<Ask>,
    turn: Turn,
    _entity: PhantomData<fn() -> E>,
}

impl<'a, E: Entity> Cx<'a, E> {
    pub(crate) fn new(id: &'a KeyOf<E>, key: &'a Key, cause: StartCause, ask: Option<Ask>, env: &'a mut Env<'_>) -> Self {
        Self { id, key, cause, node: env.node, at: env.at, out: env.out, ask, turn: Turn::Continue, _entity: PhantomData }
    }

    /// Ends the turn: an ask that nobody answered gets `NoReply` at once.
    pub(crate) fn finish(self) -> Turn {
        if let Some(ask) = self.ask {
            self.out.answer(ask, Answered::Wire(ReplyBody::NoReply));
        }
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

    /// When the asker gives up; `None` if nobody asked. An ask that is past it is dropped before it runs.
    pub fn deadline(&self) -> Option<Time> {
        self.ask.map(|a| a.deadline)
    }

    /// A reference to this entity.
    pub fn this(&self) -> EntityRef<E::Type> {
        let entry = self.node.type_entry(self.at.shard.ty).expect("a running entity's type is registered");
        EntityRef::from_parts(self.node.clone(), entry, self.id.clone(), self.key.clone())
    }

    /// A reference to an entity of a type that this node hosts or has a proxy for; `None` if it has neither.
    pub fn resolve<T: EntityType>(&self, id: &EntityId<T>) -> Option<EntityRef<T>> {
        EntityRef::resolve(self.node, id)
    }

    /// Answers the ask of this turn; a message that was told answers nobody. Without reply or `defer` the asker gets `NoReply` at once.
    pub fn reply<V: Wire>(&mut self, tag: ReplyTag<V>, value: V) {
        let ReplyTag { .. } = tag;
        let Some(ask) = self.ask.take() else { return };
        let answered = if self.out.is_local(ask) { Answered::Typed(AnyMessage::new(value)) } else { Answered::Wire(encode_reply(&value)) };
        self.out.answer(ask, answered);
    }

    /// Answers no: the asker gets `AskError::Rejected`.
    pub fn reject<V: Wire>(&mut self, tag: ReplyTag<V>, why: impl Into<String>) {
        let ReplyTag { .. } = tag;
        if let Some(ask) = self.ask.take() {
            self.out.answer(ask, Answered::Wire(ReplyBody::Rejected(why.into())));
        }
    }

    /// Takes the answer along, to be given later from any thread.
    #[must_use = "dropping a promise answers `NoReply`"]
    pub fn defer<V: Wire>(&mut self, tag: ReplyTag<V>) -> Promise<V> {
        let ReplyTag { .. } = tag;
        Promise { node: self.node.clone(), ask: self.ask.take(), _value: PhantomData }
    }

    /// At most once, never blocks; as [`EntityRef::tell`].
    pub fn tell<T: EntityType>(&mut self, to: &EntityRef<T>, msg: impl Message<T>) -> Result<(), TellError<T::Msg>> {
        to.tell(msg)
    }

    /// Leaves memory after this turn. What arrives later starts the next incarnation.
    pub fn passivate(&mut self) {
        if self.turn == Turn::Continue {
            self.turn = Turn::Passivate;
        }
    }

    /// Ends this instance as failed after this turn; the next message starts another one after a back-off.
    pub fn fail(&mut self, why: impl Into<Failure>) {
        let why = why.into();
        tracing::warn!(target: "wingbeat::engine", entity_type = E::Type::TYPE, shard = self.at.shard.shard.0, epoch = self.at.epoch.get(), %why, "an entity gave up");
        self.turn = Turn::Failed;
    }

    /// Encodes the live state for the next owner. For [`Entity::handoff`].
    pub fn hand_over<S: Wire>(&mut self, state: &S) -> Result<Handoff, Failure> {
        let mut bytes = Vec::new();
        state.encode(*S::VERSIONS.end(), &mut bytes)?;
        Ok(Handoff { state: Some(bytes) })
    }
}

/// A reply as it travels. One that cannot be encoded is an answer too: it ran, and its reply was lost on the way.
pub(crate) fn encode_reply<V: Wire>(value: &V) -> ReplyBody {
    let mut bytes = Vec::new();
    match value.encode(*V::VERSIONS.end(), &mut bytes) {
        Ok(()) => ReplyBody::Value(bytes),
        Err(error) => ReplyBody::Rejected(format!("the reply `{}` could not be encoded: {error}", V::NAME)),
    }
}

/// An answer owed. `Send`, does not block. Dropping it answers `NoReply`.
#[must_use = "dropping a promise answers `NoReply`"]
pub struct Promise<V: Wire> {
    node: Arc<Node>,
    ask: Option<Ask>,
    _value: PhantomData<fn(V)>,
}

impl<V: Wire> Promise<V> {
    /// Gives the answer.
    pub fn fulfil(mut self, value: V) {
        let Some(ask) = self.ask.take() else { return };
        if ask.node == self.node.id {
            self.node.complete(ask.correlation, Answered::Typed(AnyMessage::new(value)));
        } else {
            self.node.answer(ask, encode_reply(&value));
        }
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
            V::decode(*V::VERSIONS.end(), &mut bytes.as_slice()).map_err(|e| AskError::Undecodable(e.to_string()))
        }
        Answered::Timeout => Err(AskError::Timeout { maybe_ran: true }),
    }
}

/// Why a key cannot be used; `None` if it can.
pub(crate) fn bad_key(bytes: &[u8]) -> Option<Refusal> {
    let max = super::KEY_BYTES_MAX;
    match bytes.len() {
        0 => Some(Refusal::BadKey { why: format!("it is empty; a key has 1 to {max} bytes") }),
        n if n > max => Some(Refusal::BadKey { why: format!("it has {n} bytes, at most {max}") }),
        _ => None,
    }
}
