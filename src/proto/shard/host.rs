//! What `ShardCore` asks of whoever runs entities: the engine's worker in production, the simulator's in a virtual world.
//!
//! A trait and not a queue of effects: a handler runs at the point where the core decides that it runs, so that no second order of
//! events exists between deciding and running, and a message on the steady path is touched once.

use std::fmt;

use crate::{
    Epoch, NodeId, ShardKey, Time, TypeId,
    proto::{
        handoff::{Ask, DropReason, Envelope},
        shard::{Aftermath, Directive, SentRecord, ShardReport, TypeOptions, WatchId, WatchRecord, Watching, Wish},
    },
};

/// A message on its way to an entity of this worker: typed when it came from this node, encoded when it came from elsewhere.
pub trait Parcel: Sized {
    /// Takes an encoded message in.
    fn from_envelope(envelope: Envelope) -> Self;
    /// Encodes it, to go elsewhere. `Err` carries it back with the reason (the type's encoder failed).
    fn into_envelope(self, shard: ShardKey) -> Result<Envelope, (Self, String)>;
    /// Canonical bytes of the entity's key.
    fn key(&self) -> &[u8];
    /// XXH3-64 of the key.
    fn hash(&self) -> u64;
    /// When the asker gives up; `None` for a tell.
    fn deadline(&self) -> Option<Time>;
    /// Bytes it occupies, for bounds.
    fn size(&self) -> usize;
    /// What it is, if it is no message.
    fn sign(&self) -> Option<Sign> {
        None
    }
}

/// What an asker wants of an entity that gets no message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Sign {
    /// To hear when the instance ends, and now whether there is one.
    Watch(Ask, Watching),
    /// To hear no more of that.
    Unwatch(Ask, Watching),
    /// Something of the shard as a whole, which the host knows.
    OfShard(Ask),
}

/// Where and when a turn takes place.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Place {
    /// The shard.
    pub shard: ShardKey,
    /// Its epoch here.
    pub epoch: Epoch,
    /// The turn's clock read.
    pub now: Time,
}

/// Why an entity starts.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum StartCause {
    /// A message arrived for it.
    FirstMessage,
    /// Its shard moved here.
    Moved,
    /// Its predecessor failed.
    Restarted,
}

/// Why an entity stops.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum StopReason {
    /// It asked to leave memory, or was idle for long enough.
    Passivated,
    /// It was idle for longest where its type has a bound on entities in memory.
    Evicted,
    /// Its shard moves.
    Moved,
    /// It failed.
    Failed,
    /// The node lost its right to run.
    Fenced,
    /// The node shuts down.
    Shutdown,
}

/// What a turn came to.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Turn {
    /// The entity lives on.
    Continue,
    /// It asked to leave memory; the next message starts a new incarnation.
    Passivate,
    /// It panicked, or gave up. The core drops the instance and starts another one for the next message, after a back-off that grows with each failure in a row.
    Failed,
}

/// Runs entities for a `ShardCore`.
pub trait Host {
    /// A message.
    type Parcel: Parcel;
    /// A live instance.
    type Entity;

    /// Makes the instance of `key`. `state` is what its predecessor handed over, if it did. `Err`: why it cannot start.
    fn start(&mut self, at: &Place, key: &[u8], cause: StartCause, state: Option<(&[u8], NodeId)>) -> Result<Self::Entity, String>;
    /// One message, one turn. The host answers the ask, if it is one. Never unwinds.
    fn handle(&mut self, at: &Place, entity: &mut Self::Entity, parcel: Self::Parcel) -> Turn;
    /// Appends the state of the instance of `key` for the next owner: `Ok(false)` = it starts fresh there; `Err` = the move must be called off.
    /// The reason is boxed, as then the result comes back in registers: by way of memory it takes a third of the call.
    fn hand_over(&mut self, at: &Place, key: &[u8], entity: &mut Self::Entity, out: &mut Vec<u8>) -> Result<bool, Box<str>>;
    /// Last call before the instance of `key` is dropped.
    fn stop(&mut self, at: &Place, key: &[u8], entity: Self::Entity, why: StopReason);
    /// So many starts of that entity have failed in a row that nothing waits for it until its back-off has ended: why the last one did, which those whose
    /// messages are given up do not hear.
    fn circuit_opened(&mut self, _at: &Place, _key: &[u8], _why: &str) {}
    /// Encodes a message, to go elsewhere, as [`Parcel::into_envelope`]. Never unwinds.
    fn encode(&mut self, shard: ShardKey, parcel: Self::Parcel) -> Result<Envelope, (Self::Parcel, String)> {
        parcel.into_envelope(shard)
    }
    /// An accepted message will not be handled: count it, offer it as a dead letter, answer its asker.
    fn undelivered(&mut self, shard: ShardKey, parcel: Self::Parcel, reason: DropReason);
    /// Passes a report on to the network thread, behind everything reported before. Never fails: the ring keeps a reserve for it,
    /// and what finds no room waits in the worker's own queue (moves.md X6).
    fn report(&mut self, report: ShardReport);

    /// What was reported goes on its way at once, as there is more to do before the next report.
    fn hurry(&mut self) {}

    /// The moment it is behind a turn of an entity, in a call of the core that came `then` and may have more of them.
    fn now(&mut self, then: Time) -> Time {
        then
    }

    /// Has what stands there fetched into the cache, for a look at it soon. Only a hint.
    #[inline(always)]
    fn fetch<T>(what: &T) {
        let _ = what;
    }
    /// As [`fetch`](Self::fetch), all that an entity's turn begins with.
    #[inline(always)]
    fn fetch_entity(entity: &Self::Entity) {
        let _ = entity;
    }
    /// How the entities of a type are run here.
    fn options(&self, ty: TypeId) -> TypeOptions {
        let _ = ty;
        TypeOptions::default()
    }
    /// Whether [`take_wishes`](Self::take_wishes) has any.
    fn has_wishes(&self) -> bool {
        true
    }
    /// What the entity asked for in the start or turn that has just ended, in its order.
    fn take_wishes(&mut self) -> Vec<Wish<Self::Parcel>> {
        vec![]
    }
    /// What is to become of an entity whose turn has just failed, the `failures`th in a row.
    fn aftermath(&mut self, at: Place, failures: u32) -> Aftermath<Self::Parcel> {
        let _ = (at, failures);
        Aftermath { directive: Directive::Restart, parcel: None }
    }
    /// A [sign](Sign::Watch) is answered: `true`, the instance is watched; `false`, there is none, or it is watched no more.
    fn watch_answered(&mut self, ask: Ask, watched: bool) {
        let _ = (ask, watched);
    }
    /// An instance that is watched has ended.
    fn watched_ended(&mut self, watch: WatchId) {
        let _ = watch;
    }
    /// That node is gone for good.
    fn removed(&mut self, node: NodeId) {
        let _ = node;
    }
    /// The shard is about to leave: the watches of its entities, to travel.
    fn leaving_watches(&mut self, at: Place) -> Vec<WatchRecord> {
        let _ = at;
        vec![]
    }
    /// A watch that moved in.
    fn watch(&mut self, at: Place, watch: WatchRecord) {
        let _ = (at, watch);
    }
    /// The shard leaves, and all its instances have ended: what they have sent to other shards, to travel.
    fn leaving_sent(&mut self, at: Place) -> Vec<SentRecord> {
        let _ = at;
        vec![]
    }
    /// What the shard's entities had sent before it moved in. `settled`: its home then is gone.
    fn sent(&mut self, at: Place, record: SentRecord, settled: bool) {
        let _ = (at, record, settled);
    }
    /// A [sign](Sign::OfShard) for the shard has its turn: all that came to it by the same way before is with its entities, or waits for them.
    fn shard_sign(&mut self, at: Place, parcel: Self::Parcel) {
        let _ = (at, parcel);
    }
    /// The shard is about to leave: what its entities' open asks come to, as messages to those entities.
    fn leaving(&mut self, at: Place) -> Vec<Self::Parcel> {
        let _ = at;
        vec![]
    }
}

impl fmt::Display for StopReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Passivated => "passivated",
            Self::Evicted => "evicted",
            Self::Moved => "moved",
            Self::Failed => "failed",
            Self::Fenced => "fenced",
            Self::Shutdown => "shutdown",
        })
    }
}
