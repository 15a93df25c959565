//! What can go wrong with one message.

use std::{error::Error, fmt, ops::RangeInclusive, sync::Arc};

use serde::{Deserialize, Serialize};

use crate::{
    error::codes,
    proto::handoff::{Bytes, DropReason, ReplyBody},
};

/// Why nothing was queued anywhere. The sender still has the message.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Refusal {
    /// A queue of this node on the way to the entity has no room. Try again when the region's `on_room` calls, or shed load.
    #[error("a queue of this node on the way to the entity is full: wait for room, or raise `limits.ring_items`")]
    Full,
    /// The home does not read as fast as this node sends.
    #[error("the link to the entity's home has no room: wait for room, or raise `limits.link_bytes`")]
    NoCredit,
    /// As many asks of this node wait for answers as `limits.asks` allows.
    #[error("as many asks wait for answers as may: try again, or raise `limits.asks`")]
    Overloaded,
    /// The message is larger than `limits.message_bytes`.
    #[error("{size} bytes, at most {max}: send less, or raise `limits.message_bytes` on all nodes")]
    TooLarge {
        /// Encoded size.
        size: usize,
        /// The limit.
        max: usize,
    },
    /// The key cannot travel.
    #[error("not a usable key: {why}")]
    BadKey {
        /// What is wrong with it.
        why: String,
    },
    /// [`Addressed::address`](crate::Addressed::address) found no key.
    #[error("the message carries no key")]
    Unaddressed,
    /// The type is neither hosted nor proxied here.
    #[error("the type is not started here")]
    NotStarted,
    /// A blocking call was made on a thread that would have to do the work it waits for.
    #[error("waiting on a thread that others wait for would deadlock")]
    WouldDeadlock,
    /// This node is shutting down, or has ended; [`Cluster::wait_up`](crate::Cluster::wait_up) tells whether it was refused, and why.
    #[error("this node is shutting down")]
    Shutdown,
    /// The message has no encoding.
    #[error("{0}")]
    Encode(String),
}

impl Refusal {
    /// What the refusal of a message comes to whose sender cannot take it back.
    pub(crate) fn as_drop(&self) -> DropReason {
        match self {
            Self::Full | Self::Overloaded => DropReason::Overloaded,
            Self::NoCredit => DropReason::NoCredit,
            Self::TooLarge { .. } => DropReason::TooLarge,
            Self::Encode(_) => DropReason::Undecodable,
            Self::Unaddressed | Self::BadKey { .. } => DropReason::Unaddressed,
            Self::NotStarted => DropReason::UnknownType,
            Self::WouldDeadlock | Self::Shutdown => DropReason::Shutdown,
        }
    }
}

/// A message was not accepted; [`into_message`](Self::into_message) gives it back.
///
/// One pointer wide: only a refusal allocates.
pub struct TellError<M> {
    refused: Box<(Refusal, M)>,
}

impl<M> TellError<M> {
    pub(crate) fn new(reason: Refusal, message: M) -> Self {
        Self { refused: Box::new((reason, message)) }
    }

    /// Why it was not accepted.
    pub fn reason(&self) -> &Refusal {
        &self.refused.0
    }

    /// The message, unchanged.
    pub fn into_message(self) -> M {
        self.refused.1
    }

    /// Stable code of the reason.
    pub fn code(&self) -> &'static str {
        self.refused.0.code()
    }
}

impl<M> fmt::Debug for TellError<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TellError({:?})", self.reason())
    }
}

impl<M> fmt::Display for TellError<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not accepted: {}", self.reason())
    }
}

impl<M> Error for TellError<M> {}

/// What became of an ask that was given up for that reason.
const fn fate(reason: &DropReason) -> &'static str {
    match reason {
        DropReason::LinkLost | DropReason::RouteLost => "given up, and may have run",
        _ => "did not run",
    }
}

/// Why an ask has no answer.
///
/// Serialisable, so that an answer can be a field of the message that an entity makes of it.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error, Serialize, Deserialize)]
#[non_exhaustive]
pub enum AskError {
    /// Nothing was queued.
    #[error("not sent: {0}")]
    Refused(Refusal),
    /// It was queued, and given up; [`ran`](Self::ran) says whether it may have run all the same, as only the word of that may be lost.
    #[error("{fate}: {0}", fate = fate(.0))]
    Dropped(DropReason),
    /// The deadline passed.
    #[error("no answer in time; it {}", if *.maybe_ran { "may have run" } else { "did not run" })]
    Timeout {
        /// Whether it may have run; what the library says of its own asks, as a message may be handled while nobody waits any more.
        maybe_ran: bool,
    },
    /// The node that had it was removed.
    #[error("its home was lost; it may have run")]
    OwnerLost,
    /// The entity that asked moved to another node, and the answer cannot follow.
    #[error("the asking entity moved; it may have run")]
    Moved,
    /// The handler gave no answer.
    #[error("it ran and ended without an answer")]
    NoReply,
    /// The handler panicked.
    #[error("it panicked while running")]
    EntityFailed,
    /// The handler answered no.
    #[error("it ran and was rejected: {0}")]
    Rejected(String),
    /// The save that the answer waited for failed.
    #[error("it ran, but its effects were not saved")]
    NotSaved,
    /// The bytes of the answer are not of the declared type.
    #[error("it ran, the answer is unreadable: {0}")]
    Undecodable(String),
    /// A blocking ask on a thread that would have to run the answer.
    #[error("not sent: waiting on a thread that others wait for would deadlock; entities use `cx.ask`")]
    WouldDeadlock,
    /// This node stopped before the answer came.
    #[error("this node stopped before the answer came; it may have run")]
    Shutdown,
}

/// Whether a request was handled.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Ran {
    /** It was not, and will not be: safe to retry. */
    No,
    /** Nobody knows. */
    Maybe,
    /** It was. */
    Yes,
}

impl AskError {
    /// Whether the request was handled.
    pub fn ran(&self) -> Ran {
        match self {
            // It may have arrived, and the word of that not.
            Self::Dropped(DropReason::LinkLost | DropReason::RouteLost) => Ran::Maybe,
            Self::Refused(_) | Self::Dropped(_) | Self::Timeout { maybe_ran: false } | Self::WouldDeadlock => Ran::No,
            Self::Timeout { maybe_ran: true } | Self::OwnerLost | Self::Moved | Self::Shutdown => Ran::Maybe,
            Self::NoReply | Self::EntityFailed | Self::Rejected(_) | Self::NotSaved | Self::Undecodable(_) => Ran::Yes,
        }
    }

    /// What arrived as the answer: its bytes, or the error it stands for.
    pub(crate) fn check(body: ReplyBody) -> Result<Bytes, Self> {
        match body {
            ReplyBody::Value(bytes) => Ok(bytes),
            ReplyBody::Dropped(reason) => Err(Self::Dropped(reason)),
            ReplyBody::NoReply => Err(Self::NoReply),
            ReplyBody::EntityFailed => Err(Self::EntityFailed),
            ReplyBody::Rejected(why) => Err(Self::Rejected(why)),
            ReplyBody::OwnerLost => Err(Self::OwnerLost),
        }
    }
}

impl From<Refusal> for AskError {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::WouldDeadlock => Self::WouldDeadlock,
            other => Self::Refused(other),
        }
    }
}

impl<M> From<TellError<M>> for AskError {
    fn from(error: TellError<M>) -> Self {
        Self::from(error.refused.0)
    }
}

/// Bytes and values that do not fit each other.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CodecError {
    /// The value has no encoding.
    #[error("encode: {0}")]
    Encode(String),
    /// The bytes are no such value.
    #[error("decode: {0}")]
    Decode(String),
    /// A newer node sent a message that this build does not have.
    #[error("{entity_type} has no message {variant} in this build")]
    UnknownMessage {
        /// Name of the type.
        entity_type: Arc<str>,
        /// Number of the message.
        variant: u16,
    },
    /// The two sides share no version of the value.
    #[error("{name}: this node reads versions {ours:?}, got {theirs}")]
    Version {
        /// Stable name of the value's type.
        name: &'static str,
        /// What this build reads and writes.
        ours: RangeInclusive<u16>,
        /// What was asked for.
        theirs: u16,
    },
}

codes! {
    Refusal {
        Full = "E-TELL-001", NoCredit = "E-TELL-002", Overloaded = "E-TELL-003", TooLarge = "E-TELL-004", BadKey = "E-TELL-005",
        Unaddressed = "E-TELL-006", NotStarted = "E-TELL-007", WouldDeadlock = "E-TELL-008", Shutdown = "E-TELL-009", Encode = "E-TELL-010",
    }
    AskError {
        Refused = "E-ASK-001", Dropped = "E-ASK-002", Timeout = "E-ASK-003", OwnerLost = "E-ASK-004", Moved = "E-ASK-005",
        NoReply = "E-ASK-006", EntityFailed = "E-ASK-007", Rejected = "E-ASK-008", NotSaved = "E-ASK-009", Undecodable = "E-ASK-010",
        WouldDeadlock = "E-ASK-011", Shutdown = "E-ASK-012",
    }
    CodecError { Encode = "E-WIRE-001", Decode = "E-WIRE-002", UnknownMessage = "E-WIRE-003", Version = "E-WIRE-004" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_message_comes_back_unchanged() {
        let error = TellError::new(Refusal::TooLarge { size: 11, max: 10 }, String::from("hello"));
        assert_eq!(error.to_string(), "not accepted: 11 bytes, at most 10: send less, or raise `limits.message_bytes` on all nodes");
        assert_eq!(error.code(), "E-TELL-004");
        assert_eq!(error.into_message(), "hello");
        assert_eq!(size_of::<TellError<[u8; 400]>>(), size_of::<usize>());
    }

    #[test]
    fn only_what_surely_did_not_run_is_safe_to_retry() {
        assert_eq!(AskError::Refused(Refusal::Full).ran(), Ran::No);
        assert_eq!(AskError::Dropped(DropReason::MailboxFull).ran(), Ran::No);
        assert_eq!(AskError::Dropped(DropReason::RouteLost).ran(), Ran::Maybe);
        assert_eq!(AskError::Dropped(DropReason::LinkLost).ran(), Ran::Maybe);
        assert_eq!(AskError::Timeout { maybe_ran: false }.ran(), Ran::No);
        assert_eq!(AskError::Timeout { maybe_ran: true }.ran(), Ran::Maybe);
        assert_eq!(AskError::OwnerLost.ran(), Ran::Maybe);
        assert_eq!(AskError::Shutdown.ran(), Ran::Maybe);
        assert_eq!(AskError::NoReply.ran(), Ran::Yes);
    }

    #[test]
    fn every_reply_body_has_its_outcome() {
        assert_eq!(AskError::check(ReplyBody::Value(vec![7].into())), Ok(vec![7].into()));
        for (body, code) in [
            (ReplyBody::Dropped(DropReason::Expired), "E-ASK-002"),
            (ReplyBody::NoReply, "E-ASK-006"),
            (ReplyBody::EntityFailed, "E-ASK-007"),
            (ReplyBody::Rejected("no".into()), "E-ASK-008"),
            (ReplyBody::OwnerLost, "E-ASK-004"),
        ] {
            assert_eq!(AskError::check(body).unwrap_err().code(), code);
        }
    }

    #[test]
    fn an_ask_error_fits_into_a_message() {
        let error = AskError::Refused(Refusal::BadKey { why: "256 bytes, at most 255".into() });
        let bytes = postcard::to_stdvec(&error).unwrap();
        assert_eq!(postcard::from_bytes::<AskError>(&bytes), Ok(error));
    }
}
