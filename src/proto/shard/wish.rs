//! What an entity wants for itself beside what it sends, and how its type is run.

use std::time::Duration;

use super::Parcel;
use crate::{Epoch, NodeId, ShardKey, TypeId, proto::handoff::Envelope};

/// What an entity asked for in a turn. The host gathers it, the core carries it out when the turn is over.
#[derive(Clone, PartialEq, Debug)]
pub enum Wish<P> {
    /// This message, after that time. Replaces what stands under the same key.
    Timer {
        /// Tells the timers of one entity apart.
        key: u64,
        /// From the turn's time.
        after: Duration,
        /// Again and again.
        again: bool,
        /// The message, encoded: it has to be there for each time, and it may travel.
        message: Envelope,
    },
    /// No more of that timer.
    Cancel {
        /// Its key.
        key: u64,
    },
    /// Aside until `Unstash`.
    Stash(P),
    /// What was put aside comes next, in its order.
    Unstash,
    /// Leave memory after so long without a message from outside; `None`: what the type says.
    Idle(Option<Duration>),
    /// A message to itself, behind what waits.
    Own(P),
    /// This message when that node is removed.
    WatchNode {
        /// Which node.
        node: NodeId,
        /// The message.
        message: Envelope,
    },
    /// No more of that.
    UnwatchNode {
        /// Which node.
        node: NodeId,
    },
}

/// How the entities of one type are run here.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct TypeOptions {
    /// Leave memory after so long without a message.
    pub idle: Option<Duration>,
    /// Entities that stay in memory on one worker, about.
    pub live: Option<usize>,
    /// Messages that may wait for one entity; `None`: as the settings say.
    pub mailbox: Option<usize>,
    /// How often a message whose handler panics is given to the entity, at least once.
    pub attempts: u32,
    /// Pause after the first failure and the longest one; `None`: 100 ms, and as the settings say.
    pub backoff: Option<(Duration, Duration)>,
}

impl Default for TypeOptions {
    fn default() -> Self {
        Self { idle: None, live: None, mailbox: None, attempts: 1, backoff: None }
    }
}

/// What becomes of an entity whose code panicked.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Directive {
    /// Another instance, after a back-off that grows while it keeps failing. Its mailbox waits for it.
    Restart,
    /// As `Restart`, but what is in the mailbox becomes dead letters.
    RestartEmpty,
    /// The instance ends, and what is in its mailbox becomes dead letters. A later message starts another one at once.
    Stop,
    /// All instances of the shard on this node end as with `Stop`: for state that several of them share and that may be broken.
    Escalate,
}

/// Names a watch of an entity by another one: the home of who watches, and the slot there that the answer is for.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct WatchId {
    /// Where who watches lives.
    pub node: NodeId,
    /// Of its slot.
    pub number: u64,
}

/// What who watches says of its watch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Watching {
    /// Its name.
    pub id: WatchId,
    /// Names that it had at earlier homes, or this one, if it is asked about: under one of them it may be known.
    pub was: Vec<WatchId>,
    /// It is known under one of them, or the instance has ended.
    pub confirmed: bool,
}

/// A watch of an entity by another one, on its way with the watching one.
#[derive(Clone, PartialEq, Debug)]
pub struct WatchRecord {
    /// Type of the watched entity.
    pub ty: TypeId,
    /// Its key.
    pub target: Box<[u8]>,
    /// Names of the watch so far.
    pub was: Vec<WatchId>,
    /// As in [`Watching`].
    pub confirmed: bool,
    /// The message for the watching entity, and with it that one's key.
    pub message: Envelope,
}

/// What the entities of a shard have sent to another shard, on its way with them: until all that they sent from an earlier home has got there,
/// what they send now could overtake it.
#[derive(Clone, PartialEq, Debug)]
pub struct SentRecord {
    /// The shard that it was sent to.
    pub target: ShardKey,
    /// How many of them that type has.
    pub shards: u32,
    /// That earlier home.
    pub home: NodeId,
    /// The epoch there of the shard that sent.
    pub epoch: Epoch,
    /// What was sent since then, and waits.
    pub held: Vec<Envelope>,
}

/// What the host knows of a turn that failed.
#[derive(Debug)]
pub struct Aftermath<P: Parcel> {
    /// What is to become of the entity.
    pub directive: Directive,
    /// The message it failed on, if it is still there. Its asker has no answer yet.
    pub parcel: Option<P>,
}
