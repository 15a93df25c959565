//! What travels between nodes about one shard.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{Bytes, DropReason};
use crate::{Epoch, NodeId, ShardKey, Time};

/// One message for one entity, encoded. Key and payload stand in one piece.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Envelope {
    /// The shard of the key.
    pub shard: ShardKey,
    /// Present if somebody waits for an answer.
    pub ask: Option<Ask>,
    /// Length of the key, the first bytes of `bytes`.
    pub key_len: u8,
    /// Key, then payload.
    pub bytes: Bytes,
}

/// Who waits for an answer, and how long.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Ask {
    /// The node that asked: the reply goes straight there.
    pub node: NodeId,
    /// Slot index and generation on that node.
    pub correlation: u64,
    /// When the asker gives up, on the clock of the node that holds the envelope. Travels as remaining time.
    pub deadline: Time,
}

impl Envelope {
    /// Joins key and payload. `None` if the key is longer than 255 bytes.
    pub fn new(shard: ShardKey, ask: Option<Ask>, key: &[u8], payload: &[u8]) -> Option<Self> {
        let key_len = u8::try_from(key.len()).ok()?;
        Some(Self { shard, ask, key_len, bytes: [key, payload].concat().into() })
    }

    /// Bytes it occupies, for bounds.
    pub fn size(&self) -> usize {
        self.bytes.len() + size_of::<Self>()
    }

    /// Canonical bytes of the entity's key.
    pub fn key(&self) -> &[u8] {
        &self.bytes[..usize::from(self.key_len)]
    }

    /// The encoded message.
    pub fn payload(&self) -> &[u8] {
        &self.bytes[usize::from(self.key_len)..]
    }
}

/// How a message relates to the fence of its stream (moves.md sections 3 and 6). Repeated in every unsettled message.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Mode {
    /// No fence of this stream is outstanding.
    Settled,
    /// The fence of the path under tag `p` has not been acknowledged: hold until it arrives.
    Wait(Epoch),
    /// The path under tag `p` is over, its entry node gone: what still comes from there is late.
    Over(Epoch),
}

/// What a stream (sender node x shard) carries, in order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Item {
    /// A message sent under `tag`.
    Msg {
        /// The epoch the sender believed when it sent.
        tag: Epoch,
        /// Relation to the stream's fence.
        mode: Mode,
        /// The message.
        envelope: Envelope,
    },
    /// Behind the last message that was sent under tag `p`.
    Fence {
        /// Tag and aim of the closed path.
        p: Epoch,
    },
    /// The path under tag `p` is over without a fence.
    Over {
        /// The lost path.
        p: Epoch,
        /// The sender's present tag.
        tag: Epoch,
    },
    /// Nothing is outstanding; the gate may forget the stream.
    Settle {
        /// The sender's present tag.
        tag: Epoch,
    },
}

impl Item {
    /// The epoch whose home a *direct* item is under way to.
    pub fn aim(&self) -> Epoch {
        match *self {
            Self::Msg { tag, .. } | Self::Over { tag, .. } | Self::Settle { tag } => tag,
            Self::Fence { p } => p,
        }
    }
}

/// An item that an earlier home passes on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Forwarded {
    /// The epoch whose home it is under way to now.
    pub aim: Epoch,
    /// Handled only by a node that has processed the removal of all of these (CE-9).
    pub after: Vec<NodeId>,
    /// Whose stream it belongs to.
    pub stream: NodeId,
    /// What it is.
    pub item: Item,
}

/// What travels in the numbered hand-off lane of (shard, from, to).
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum HandoffItem {
    /// A part of the shard's state.
    Transfer(TransferChunk),
    /// An item that arrived after the shard had left.
    Forwarded(Forwarded),
    /// Asks whether everything forwarded along a route before has reached the home.
    Probe {
        /// The node whose route it is.
        origin: NodeId,
        /// That node's number for the route.
        route: u64,
        /// Number of the probe; an older one's answer counts for nothing (CE-25).
        number: u64,
        /// The epoch whose home it is under way to now, like `Forwarded::aim`: it takes the way of what it asks about.
        aim: Epoch,
        /// As in `Forwarded`.
        after: Vec<NodeId>,
    },
}

/// A part of a Transfer: the parts of one epoch follow each other in the lane.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TransferChunk {
    /// The epoch the new home will run.
    pub epoch: Epoch,
    /// Tags below it are refused (moves.md section 2).
    pub base: Epoch,
    /// The last chunk: the transfer is complete.
    pub last: bool,
    /// Entity states, mailboxes and gate, in the layout of `proto::shard`; bounded by `limits.frame_bytes`. Shared, as they are kept until they are
    /// acknowledged.
    pub bytes: Arc<Vec<u8>>,
}

/// What answers an ask.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub enum ReplyBody {
    /// The encoded reply.
    Value(Bytes),
    /// It did not run.
    Dropped(DropReason),
    /// It ran and gave no answer.
    NoReply,
    /// It panicked while running.
    EntityFailed,
    /// It ran and was rejected.
    Rejected(String),
    /// Its home was lost; it may have run.
    OwnerLost,
}

/// What stands in a frame beside a reply, at most.
const AROUND: usize = 256;

impl ReplyBody {
    /// Bytes of what it brings along.
    pub fn size(&self) -> usize {
        match self {
            Self::Value(bytes) => bytes.len(),
            Self::Rejected(why) => why.len(),
            _ => 0,
        }
    }

    /// Itself, or what says that it fits into no frame of so many bytes: it ran, and its asker hears of it.
    pub fn fitted(self, frame_bytes: usize) -> Self {
        let size = self.size();
        if size.saturating_add(AROUND) <= frame_bytes {
            return self;
        }
        Self::Rejected(format!(
            "the reply has {size} bytes, and limits.frame_bytes is {frame_bytes}; answer with less, or raise the limit on all nodes"
        ))
    }
}
