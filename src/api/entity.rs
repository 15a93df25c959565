//! What a host knows of an entity: the state behind one key, and what it does.

use std::{error::Error, fmt};

pub use crate::proto::shard::{Directive, StartCause, StopReason};
use crate::{CodecError, Cx, EntityType, NodeId, Wire};

/// Key of the entity's type.
pub type KeyOf<E> = <<E as Entity>::Type as EntityType>::Key;
/// Messages of the entity's type.
pub type MsgOf<E> = <<E as Entity>::Type as EntityType>::Msg;

/// The state behind one key and what it does. At most one instance is live in the cluster.
///
/// Runs on one worker thread and stays there, so it need not be `Send`: a move goes by bytes. Order on a new home: factory, `adopted` if
/// state was handed over, `started`, then the queue.
///
/// # What a panic comes to
/// A panic in any of these is caught, counted and logged with entity, message and place; the node and all other entities go on. The instance
/// is dropped, and `supervise` says what comes next: by default another instance, after a back-off that doubles with each failure in a
/// row ([`HostOptions::backoff`](crate::HostOptions::backoff)). Whoever asked gets `EntityFailed`. The message that the handler panicked on becomes a dead letter
/// ([`DropReason::Poison`](crate::DropReason::Poison)), at once or after the number of [`attempts`](crate::HostOptions::attempts) that the host
/// grants. An entity that fails five times to start opens its circuit: what is sent to it then is refused until its back-off is over.
///
/// # Not guaranteed
/// What a handler had done before it panicked stands: messages it sent are on their way, and state that it shares with others may be half
/// changed. `stopped` may not run: a process can be killed.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not implement `Entity`, so no node can host it",
    label = "nothing to run here",
    note = "implement it for the struct that holds the state (`impl Entity for PlaneState {{ type Type = Plane; .. }}`) and host that; a node that only sends uses `cluster.proxy()`"
)]
pub trait Entity: Sized + 'static {
    /// The protocol it speaks.
    type Type: EntityType;

    /// One message, one turn. Where nanoseconds count, `#[inline]` lets the engine's own part take it in also where the two are compiled apart: the message is
    /// then read where its sender has put it, and not copied once more.
    fn handle(&mut self, msg: MsgOf<Self>, cx: &mut Cx<'_, Self>);

    /// First call of every instance, before its first message.
    fn started(&mut self, cx: &mut Cx<'_, Self>) {
        let _ = cx;
    }

    /// Before the shard moves: hand the live state over with [`Cx::hand_over`]. Without this method the next instance starts as new.
    ///
    /// # Errors
    /// [`Failure`]: the move is called off, says why in the log and in its answer, and this instance works on.
    fn handoff(&mut self, cx: &mut Cx<'_, Self>) -> Result<Handoff, Failure> {
        let _ = cx;
        Ok(Handoff::nothing())
    }

    /// On the new home, with what [`handoff`](Self::handoff) gave.
    ///
    /// # Errors
    /// [`Failure`]: another instance starts as new, which is logged and counted. What this one had set up for itself (timers, watches,
    /// subscriptions) ends with it.
    fn adopted(&mut self, state: HandedOver<'_>, cx: &mut Cx<'_, Self>) -> Result<(), Failure> {
        let _ = (state, cx);
        Ok(())
    }

    /// Last call before the instance is dropped; what it sends still goes out, unless the node ends: that sends nothing any more then
    /// ([`Refusal::Shutdown`](crate::Refusal::Shutdown)).
    fn stopped(&mut self, why: StopReason, cx: &mut Cx<'_, Self>) {
        let _ = (why, cx);
    }

    /// What becomes of an entity whose handler panicked; `restarts` counts its failures in a row before this one. Not called for
    /// [`Cx::fail`], which is a [`Directive::Restart`].
    fn supervise(panic: &PanicInfo, restarts: u32) -> Directive {
        let _ = (panic, restarts);
        Directive::Restart
    }
}

/// A panic of a handler.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct PanicInfo {
    /// What it said.
    pub message: String,
    /// File, line and column. Known as long as no panic hook was set that does not call its predecessor.
    pub location: String,
    /// Name of the message that was being handled.
    pub handling: &'static str,
}

/// What an entity gives to its next owner. Made by [`Cx::hand_over`], which has taken the state, so it is good for that turn alone.
#[derive(Debug)]
pub struct Handoff {
    /// The turn in which a state was put into the worker's buffer.
    pub(crate) given: Option<u64>,
}

impl Handoff {
    /// The next instance starts fresh.
    pub fn nothing() -> Self {
        Self { given: None }
    }
}

/// State from the previous owner.
#[derive(Debug)]
pub struct HandedOver<'a> {
    pub(crate) state: &'a [u8],
    pub(crate) from: NodeId,
}

impl HandedOver<'_> {
    /// The state, as the previous owner gave it to [`Cx::hand_over`], in the newest version that both builds know.
    ///
    /// # Errors
    /// [`CodecError`]: the builds share no version, or the bytes are no `T`.
    pub fn decode<T: Wire>(&self) -> Result<T, CodecError> {
        super::wire::decode_versions(self.state)
    }

    /// The previous owner's node.
    pub fn from(&self) -> NodeId {
        self.from
    }
}

/// Why a hook gave up. Any error converts with `?`.
pub struct Failure(pub(crate) Box<dyn Error + Send + Sync>);

impl Failure {
    /// A failure with a text of its own.
    pub fn new(why: impl Into<String>) -> Self {
        Self(why.into().into())
    }
}

impl<E: Error + Send + Sync + 'static> From<E> for Failure {
    fn from(error: E) -> Self {
        Self(Box::new(error))
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Failure({})", self.0)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
