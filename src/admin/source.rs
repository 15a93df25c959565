//! All that the HTTP surface sees of a node.

use std::{
    cell::Cell,
    sync::Arc,
    time::{Duration, Instant},
};

use super::model::{Check, Handoff, Link, Location, Member, Setting, ShardRow, SlowTurn, Status, TypeRow};
use crate::{NodeAddr, metrics::Prometheus};

/// What is called with the answer, once, from any thread. Cheap: the answer is put into JSON on the admin thread.
///
/// Dropped without a call, the client gets a 500.
pub type Done<T> = Box<dyn FnOnce(Result<T, SourceError>) + Send>;

/// The node behind the HTTP surface.
///
/// Every method is called on the admin thread and returns at once; what needs another thread or another node takes a [`Done`].
/// Completions must arrive within the node's own deadlines (queries: a few seconds); the surface gives up after 11 minutes.
pub trait Source: Send + Sync + 'static {
    /// The checks behind a health probe; the probe holds if all do.
    fn health(&self, probe: Probe) -> Vec<Check>;
    /// This node's view in short.
    fn status(&self) -> Status;
    /// The members in this node's view, in address order.
    fn members(&self, done: Done<Vec<Member>>);
    /// What is set, by key. The surface hides the value of `admin.token`.
    fn config(&self) -> Vec<Setting>;
    /// Accepted and not handled messages, by label of the reason.
    fn drops(&self) -> Vec<(&'static str, u64)>;
    /// Turns of entities that took long: those that have not ended, then the last that have, the newest first.
    fn slow_turns(&self) -> Vec<SlowTurn>;
    /// Adds what the node measures beside [`crate::metrics::Metrics`], which the surface prints itself.
    fn metrics(&self, out: &mut Prometheus);
    /// The entity types that HTTP can address, with their operations. Called once per request.
    fn entity_types(&self) -> Arc<[EntityType]>;
    /// How nodes see each other, as far as this node knows.
    fn links(&self, done: Done<Vec<Link>>);
    /// All sharded types of the cluster.
    fn types(&self, done: Done<Vec<TypeRow>>);
    /// The shards of one type, cluster-wide, by number.
    fn table(&self, ty: &str, done: Done<Vec<ShardRow>>);
    /// The shard of a key and its home.
    fn locate(&self, ty: &str, key: &str, done: Done<Location>);
    /// The shards on the move.
    fn handoffs(&self, done: Done<Vec<Handoff>>);
    /// Starts the move of one shard; the answer is the epoch that it will have.
    fn move_shard(&self, ty: &str, shard: u32, to: &NodeAddr, done: Done<u64>);
    /// Tells a member to leave; answered when that is under way.
    fn leave(&self, member: &NodeAddr, done: Done<()>);
    /// Declares a member dead; answered when that is under way.
    fn down(&self, member: &NodeAddr, done: Done<()>);
    /// Sends one message to an entity. Type and operation are ones of [`Source::entity_types`], the key fits its bounds, the body starts
    /// like a JSON object. Calls of one thread for one entity keep their order.
    fn entity(&self, call: EntityCall<'_>, done: Box<dyn FnOnce(EntityOutcome) + Send>);
}

/// Which health probe.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Probe {
    /// Its threads turn; failing it means that a restart helps.
    Alive,
    /// It is up and can look up homes: send traffic.
    Ready,
    /// It has finished starting.
    Startup,
}

/// An entity type that HTTP can address.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EntityType {
    /// Its stable name.
    pub name: String,
    /// Names of its operations.
    pub operations: Vec<String>,
}

/// How a message is sent.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Answers the entity's reply.
    #[default]
    Ask,
    /// Answers as soon as a queue has accepted it.
    Tell,
    /// Answers when it is delivered.
    Reliable,
}

/// One message to one entity.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct EntityCall<'a> {
    /// Name of the entity type.
    pub ty: &'a str,
    /// Key of the entity, 1 to 255 bytes.
    pub key: &'a str,
    /// Name of the operation.
    pub op: &'a str,
    /// JSON object with the operation's fields.
    pub body: &'a [u8],
    /// How to send it; never [`Mode::Reliable`] yet, the surface refuses that itself.
    pub mode: Mode,
    /// How long to wait for the reply.
    pub timeout: Duration,
    /// Until when the caller may be kept waiting for room in a queue.
    pub room: Instant,
    /// To be set if it was, and there was none.
    pub in_vain: &'a Cell<bool>,
}

/// What became of a message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum EntityOutcome {
    /// The entity's reply: `{"result": {..}, "served_by": "host:port:incarnation", "epoch": n}`, on one line.
    Answer {
        /// The JSON text.
        json: Vec<u8>,
    },
    /// A told message is in a queue.
    Accepted,
    /// It failed.
    Problem {
        /// HTTP status.
        status: u16,
        /// Stable code, e.g. `E-ASK-003`.
        code: &'static str,
        /// What kind of failure, in a few words.
        title: &'static str,
        /// What failed, with value and limit, and what to do next.
        detail: String,
        /// Whether the message may have been handled; `None` where that is no question.
        maybe_ran: Option<bool>,
    },
}

impl EntityOutcome {
    /// No answer within the deadline: 504.
    pub fn timeout(call_ty: &str, key: &str, timeout: Duration, maybe_ran: bool) -> Self {
        let hint = if maybe_ran {
            "it may have run: ask for the state, or repeat it only if that does no harm"
        } else {
            "it did not run: repeating it is safe"
        };
        Self::Problem {
            status: 504,
            code: "E-ASK-003",
            title: "no answer in time",
            detail: format!("`{}` of type `{call_ty}` did not answer within {} ms; {hint}", key.escape_debug(), timeout.as_millis()),
            maybe_ran: Some(maybe_ran),
        }
    }

    /// The body does not fit the operation: 400. `why` names the field, what it got and what it expects.
    pub fn wrong_body(ty: &str, op: &str, why: &str) -> Self {
        Self::Problem {
            status: 400,
            code: "E-HTTP-020",
            title: "the body does not fit the operation",
            detail: format!("body of `{op}` of type `{ty}`: {why}"),
            maybe_ran: None,
        }
    }
}

/// Why a question or an act was not answered as asked.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SourceError {
    /// No such entity type: 404.
    #[error("no entity type `{}`; known: {}", super::problem::shorten(name), list(known))]
    UnknownType {
        /// What was asked for.
        name: String,
        /// Those that exist.
        known: Vec<String>,
    },
    /// No such shard: 404.
    #[error("the type has {shards} shards, numbered from 0")]
    UnknownShard {
        /// How many there are.
        shards: u32,
    },
    /// No such member: 404.
    #[error("no member has the address `{addr}`; members: {}", list(known))]
    UnknownMember {
        /// What was asked for.
        addr: NodeAddr,
        /// Those that exist.
        known: Vec<String>,
    },
    /// No key of the type: 400.
    #[error("{0}")]
    BadKey(String),
    /// Understood and refused as things stand: 409.
    #[error("{0}")]
    Refused(String),
    /// Not possible at the moment: 503.
    #[error("{0}")]
    Unavailable(String),
    /// Somebody did not answer in time: 504.
    #[error("{0}")]
    Timeout(String),
    /// The node is shutting down: 503.
    #[error("the node is shutting down; ask another one")]
    Shutdown,
}

/// Names for a message, or a word for there being none.
pub(super) fn list<T: AsRef<str>>(names: &[T]) -> String {
    if names.is_empty() {
        return "none".into();
    }
    names.iter().map(|n| format!("`{}`", n.as_ref().escape_debug())).collect::<Vec<_>>().join(", ")
}
