//! A message on its way inside a node, and an answer on its way back.

use std::{any::Any, sync::Arc};

use crate::{
    CodecError, ShardKey, Time, Wire,
    proto::{
        handoff::{Ask, Envelope, ReplyBody},
        shard::Parcel,
    },
};

/// Canonical bytes of an entity's key, with their hash carried along.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Key {
    /// What was hashed.
    pub bytes: Arc<[u8]>,
    /// XXH3-64 of it.
    pub hash: u64,
}

impl Key {
    /// A key from its canonical bytes.
    pub fn new(bytes: &[u8]) -> Self {
        Self { hash: xxhash_rust::xxh3::xxh3_64(bytes), bytes: bytes.into() }
    }
}

/// A typed message whose type the carrier does not know.
pub trait AnyMessage: Send {
    /// Appends its encoding.
    fn encode_to(&self, out: &mut Vec<u8>) -> Result<(), CodecError>;
    /// Gives it back to somebody who knows the type.
    fn into_any(self: Box<Self>) -> Box<dyn Any + Send>;
    /// Its Rust type.
    fn type_id_of(&self) -> std::any::TypeId;
    /// Bytes of the value itself, for bounds.
    fn size(&self) -> usize;
}

impl<M: Wire> AnyMessage for M {
    fn encode_to(&self, out: &mut Vec<u8>) -> Result<(), CodecError> {
        self.encode(*M::VERSIONS.end(), out)
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any + Send> {
        self
    }

    fn type_id_of(&self) -> std::any::TypeId {
        std::any::TypeId::of::<M>()
    }

    fn size(&self) -> usize {
        size_of::<M>()
    }
}

/// One message for one entity: typed if it was sent on this node, encoded if it came from elsewhere.
pub enum EngineParcel {
    /// Not serialised.
    Typed {
        /// For whom.
        key: Key,
        /// Who waits for an answer.
        ask: Option<Ask>,
        /// The message: the `EntityType::Msg` of its type.
        msg: Box<dyn AnyMessage>,
    },
    /// As it travelled.
    Wire {
        /// Key, ask and bytes.
        envelope: Envelope,
        /// XXH3-64 of the key.
        hash: u64,
    },
}

impl EngineParcel {
    /// Who waits for an answer.
    pub fn ask(&self) -> Option<Ask> {
        match self {
            Self::Typed { ask, .. } => *ask,
            Self::Wire { envelope, .. } => envelope.ask,
        }
    }
}

impl EngineParcel {
    /// Its encoding; `Err`: why the type's encoder failed.
    pub fn to_envelope(&self, shard: ShardKey) -> Result<Envelope, String> {
        match self {
            Self::Wire { envelope, .. } => Ok(envelope.clone()),
            Self::Typed { key, ask, msg } => {
                let mut bytes = Vec::with_capacity(key.bytes.len() + msg.size() + 16);
                bytes.extend_from_slice(&key.bytes);
                msg.encode_to(&mut bytes).map_err(|e| e.to_string())?;
                let key_len = u8::try_from(key.bytes.len()).expect("references refuse keys above 255 bytes");
                Ok(Envelope { shard, ask: *ask, key_len, bytes: bytes.into_boxed_slice() })
            }
        }
    }
}

impl Parcel for EngineParcel {
    fn from_envelope(envelope: Envelope) -> Self {
        Self::Wire { hash: xxhash_rust::xxh3::xxh3_64(envelope.key()), envelope }
    }

    fn into_envelope(self, shard: ShardKey) -> Result<Envelope, (Self, String)> {
        match self {
            Self::Wire { envelope, .. } => Ok(envelope),
            typed => typed.to_envelope(shard).map_err(|why| (typed, why)),
        }
    }

    fn key(&self) -> &[u8] {
        match self {
            Self::Typed { key, .. } => &key.bytes,
            Self::Wire { envelope, .. } => envelope.key(),
        }
    }

    fn hash(&self) -> u64 {
        match self {
            Self::Typed { key, .. } => key.hash,
            Self::Wire { hash, .. } => *hash,
        }
    }

    fn deadline(&self) -> Option<Time> {
        self.ask().map(|ask| ask.deadline)
    }

    fn size(&self) -> usize {
        match self {
            Self::Typed { key, msg, .. } => key.bytes.len() + msg.size(),
            Self::Wire { envelope, .. } => envelope.bytes.len(),
        }
    }
}

/// What came of an ask.
pub enum Answered {
    /// The reply, not serialised: it was given on this node.
    Typed(Box<dyn Any + Send>),
    /// As it travelled, or a refusal.
    Wire(ReplyBody),
    /// The deadline passed.
    Timeout,
}
