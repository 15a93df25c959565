//! A message on its way inside a node, and an answer on its way back.

use std::{cell::Cell, sync::Arc};

use crate::{
    ShardKey, Time, Wire,
    engine::{message::AnyMessage, signs::sign_in},
    proto::{
        handoff::{Ask, Envelope, ReplyBody},
        shard::{Parcel, Sign},
    },
};

/// Keys up to this length travel in place.
const KEY_INLINE: usize = 22;

#[derive(Clone)]
enum KeyBytes {
    Inline { len: u8, bytes: [u8; KEY_INLINE] },
    Shared(Arc<[u8]>),
}

/// Canonical bytes of an entity's key, with their hash carried along. A clone of a short one touches no memory that others write.
#[derive(Clone)]
pub struct Key {
    bytes: KeyBytes,
    /// XXH3-64 of the bytes.
    pub hash: u64,
}

impl Key {
    /// A key from its canonical bytes.
    #[inline]
    pub fn new(bytes: &[u8]) -> Self {
        Self::hashed(bytes, Self::hash_of(bytes))
    }

    /// XXH3-64 of the bytes.
    #[inline]
    pub fn hash_of(bytes: &[u8]) -> u64 {
        xxhash_rust::xxh3::xxh3_64(bytes)
    }

    /// A key from its canonical bytes and their hash.
    #[inline]
    pub fn hashed(bytes: &[u8], hash: u64) -> Self {
        let mut inline = [0; KEY_INLINE];
        let bytes = match (<[u8; 8]>::try_from(bytes), inline.get_mut(..bytes.len())) {
            // Most keys are numbers: a word is copied without a call.
            (Ok(word), _) => {
                inline[..8].copy_from_slice(&word);
                KeyBytes::Inline { len: 8, bytes: inline }
            }
            (_, Some(room)) => {
                room.copy_from_slice(bytes);
                KeyBytes::Inline { len: bytes.len() as u8, bytes: inline }
            }
            (_, None) => KeyBytes::Shared(bytes.into()),
        };
        Self { bytes, hash }
    }

    /// What was hashed.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        match &self.bytes {
            KeyBytes::Inline { len, bytes } => &bytes[..usize::from(*len)],
            KeyBytes::Shared(bytes) => bytes,
        }
    }
}

/// Room for encoding that a thread keeps.
const SCRATCH_KEPT_BYTES: usize = 64 << 10;

thread_local! {
    static SCRATCH: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Runs `f` with an empty buffer that the thread keeps. Taken, not borrowed: an encoder of the user's may make a reference, whose key is written into
/// another one, as is what a thread sends while it is torn down.
pub fn with_scratch<R>(f: impl FnOnce(&mut Vec<u8>) -> R) -> R {
    let mut scratch = SCRATCH.try_with(Cell::take).unwrap_or_default();
    scratch.clear();
    let result = f(&mut scratch);
    scratch.shrink_to(SCRATCH_KEPT_BYTES);
    let _ = SCRATCH.try_with(|kept| kept.set(scratch));
    result
}

/// One message for one entity: typed if it was sent on this node, encoded if it came from elsewhere.
pub enum EngineParcel {
    /// Not serialised.
    Typed {
        /// For whom.
        key: Key,
        /// Who waits for an answer.
        ask: Option<Ask>,
        /// Newest version of the answer that the asker reads; 0 if nobody waits.
        reads: u8,
        /// The message: the `EntityType::Msg` of its type.
        msg: AnyMessage,
    },
    /// As it travelled.
    Wire {
        /// Key, ask and bytes.
        envelope: Envelope,
        /// XXH3-64 of the key.
        hash: u64,
    },
}

/// A version as it travels: in one byte.
pub fn version_byte(version: u16) -> u8 {
    // 0 stands for no answer at all.
    u8::try_from(version).unwrap_or(u8::MAX).max(1)
}

impl EngineParcel {
    /// A message that nobody waits for an answer to.
    pub fn told(key: Key, msg: AnyMessage) -> Self {
        Self::Typed { key, ask: None, reads: 0, msg }
    }

    /// Newest version of the answer that the asker reads.
    pub fn reads(&self) -> u8 {
        match self {
            Self::Typed { reads, .. } => *reads,
            Self::Wire { envelope, .. } => match envelope.ask {
                Some(_) => envelope.payload().first().copied().unwrap_or(0),
                None => 0,
            },
        }
    }

    /// The message as it is encoded, if it is. A request has the version of its answer in front.
    pub fn encoded(&self) -> Option<&[u8]> {
        match self {
            Self::Typed { .. } => None,
            Self::Wire { envelope, .. } => Some(message_of(envelope)),
        }
    }

    /// Who waits for an answer.
    pub fn ask(&self) -> Option<Ask> {
        match self {
            Self::Typed { ask, .. } => *ask,
            Self::Wire { envelope, .. } => envelope.ask,
        }
    }
}

/// The message in an envelope.
pub fn message_of(envelope: &Envelope) -> &[u8] {
    envelope.payload().get(usize::from(envelope.ask.is_some())..).unwrap_or(&[])
}

impl EngineParcel {
    /// The message, if it stands there typed and as an `M`; else nothing changes.
    pub fn take_from<M: Wire>(slot: &mut Option<Self>) -> Option<M> {
        match slot.take() {
            Some(Self::Typed { msg, key, ask, reads }) => msg.take().map_err(|msg| *slot = Some(Self::Typed { key, ask, reads, msg })).ok(),
            other => {
                *slot = other;
                None
            }
        }
    }

    /// Its encoding; `Err`: why the type's encoder failed.
    pub fn to_envelope(&self, shard: ShardKey) -> Result<Envelope, String> {
        match self {
            Self::Wire { envelope, .. } => Ok(envelope.clone()),
            Self::Typed { key, ask, reads, msg } => {
                let key_len = u8::try_from(key.bytes().len()).expect("references refuse keys above 255 bytes");
                with_scratch(|scratch| {
                    scratch.extend_from_slice(key.bytes());
                    if ask.is_some() {
                        scratch.push(*reads);
                    }
                    msg.encode_to(scratch).map_err(|e| e.to_string())?;
                    // Or the message would go to another entity.
                    let reads = ask.is_none() || scratch.get(key.bytes().len()) == Some(reads);
                    if !scratch.starts_with(key.bytes()) || !reads {
                        return Err("its encoder took away what stood in the buffer: `Wire::encode` appends".to_owned());
                    }
                    Ok(Envelope { shard, ask: *ask, key_len, bytes: scratch.as_slice().into() })
                })
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
            Self::Typed { key, .. } => key.bytes(),
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

    fn sign(&self) -> Option<Sign> {
        match self {
            Self::Typed { .. } => None,
            Self::Wire { envelope, .. } => sign_in(envelope),
        }
    }

    fn size(&self) -> usize {
        match self {
            Self::Typed { key, msg, .. } => key.bytes().len() + msg.size(),
            Self::Wire { envelope, .. } => envelope.bytes.len(),
        }
    }
}

/// What came of an ask.
pub enum Answered {
    /// The reply, not serialised: it was given on this node.
    Typed(AnyMessage),
    /// As it travelled, or a refusal.
    Wire(ReplyBody),
    /// The deadline passed.
    Timeout,
    /// This node has stopped.
    Stopped,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CodecError, ShardId, TypeId};

    /// Breaks its contract.
    struct Replaces;

    impl Wire for Replaces {
        const NAME: &'static str = "replaces";

        fn encode(&self, _: u16, out: &mut Vec<u8>) -> Result<(), CodecError> {
            *out = b"x".to_vec();
            Ok(())
        }

        fn decode(_: u16, _: &mut &[u8]) -> Result<Self, CodecError> {
            Err(CodecError::Decode("not needed".into()))
        }
    }

    #[test]
    fn an_encoder_that_takes_away_what_stood_there_does_not_change_the_address() {
        let parcel = EngineParcel::told(Key::new(b"somebody"), AnyMessage::new(Replaces));
        let why = parcel.to_envelope(ShardKey { ty: TypeId(1), shard: ShardId(0) }).unwrap_err();
        assert!(why.contains("appends"), "{why}");
    }
}
