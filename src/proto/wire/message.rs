//! The frame that is sent most, a message of a settled stream, written from its parts and read where it stands. Byte for byte what
//! [`encode`](super::encode) makes of the same message.

use super::{
    Context, FrameError, HEADER_BYTES,
    frame_codec::{Header, LENGTH_BYTES, WIRE_VERSION, epoch, kind},
    item_codec::{ASK, ASKER, remaining},
};
use crate::{
    Epoch, ShardId, ShardKey, Time, TypeId,
    proto::{handoff::Ask, sharding::SHARDS_MAX},
};

/// A message of a settled stream, in parts.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct Message<'a> {
    /// The shard of the key.
    pub shard: ShardKey,
    /// Epoch of the route it is sent by.
    pub tag: Epoch,
    /// Who waits for an answer.
    pub ask: Option<Ask>,
    /// Canonical bytes of the key, at most 255.
    pub key: &'a [u8],
    /// What follows the key in an envelope.
    pub payload: &'a [u8],
}

/// Appends the frame of a message. Nothing is appended if it is longer than `max` bytes.
#[inline]
pub fn encode_message(message: &Message<'_>, cx: Context, max: usize, out: &mut Vec<u8>) -> Result<usize, FrameError> {
    let Message { shard, tag, ask, key, payload } = *message;
    let asker = ask.filter(|ask| ask.node != cx.sender);
    let flags = if ask.is_some() { ASK } else { 0 } | if asker.is_some() { ASKER } else { 0 };
    let size = HEADER_BYTES + if ask.is_some() { 8 } else { 0 } + if asker.is_some() { 16 } else { 0 } + 1 + key.len() + payload.len();
    let (Ok(length), Ok(key_len), true) = (u32::try_from(size - LENGTH_BYTES), u8::try_from(key.len()), size <= max) else {
        return Err(FrameError::TooLong { size: size as u64, max: max as u64 });
    };
    let correlation = ask.map_or(0, |ask| ask.correlation);
    let mut head = Header { flags, epoch: tag.get(), correlation, ..Header::new(kind::MSG, shard) }.bytes();
    head[..LENGTH_BYTES].copy_from_slice(&length.to_le_bytes());
    out.reserve(size);
    out.extend_from_slice(&head);
    if let Some(ask) = ask {
        out.extend_from_slice(&remaining(ask.deadline, cx.now).to_le_bytes());
    }
    if let Some(ask) = asker {
        out.extend_from_slice(&ask.node.raw().to_le_bytes());
    }
    match <[u8; 8]>::try_from(key) {
        // Most keys are numbers: copied without a call, and together with their length.
        Ok(word) => {
            let mut both = [key_len; 9];
            both[1..].copy_from_slice(&word);
            out.extend_from_slice(&both);
        }
        Err(_) => {
            out.push(key_len);
            out.extend_from_slice(key);
        }
    }
    out.extend_from_slice(payload);
    Ok(size)
}

/// The message in a whole frame, if it is one of a settled stream. `None`: something else, or nothing that makes sense;
/// [`decode`](super::decode) says what.
#[inline]
pub fn message_in(frame: &[u8], cx: Context) -> Option<Message<'_>> {
    let head = frame.first_chunk::<HEADER_BYTES>()?;
    let word = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
    let (flags, correlation) = (head[5], long(24));
    let asked = flags & ASK != 0;
    // Kind, flags and version at once.
    if word(4) & !(u32::from(ASK) << 8) != u32::from(kind::MSG) | u32::from(WIRE_VERSION) << 16 || (!asked && correlation != 0) {
        return None;
    }
    let mut rest = &frame[HEADER_BYTES..];
    let mut ask = None;
    if asked {
        let (left, after) = rest.split_first_chunk::<8>()?;
        let deadline = Time::from_nanos(cx.now.as_nanos().saturating_add(u64::from_le_bytes(*left)));
        (ask, rest) = (Some(Ask { node: cx.sender, correlation, deadline }), after);
    }
    let (key_len, after) = rest.split_first()?;
    let (key, payload) = after.split_at_checked(usize::from(*key_len))?;
    let shard = ShardKey { ty: TypeId(word(8)), shard: ShardId(word(12)) };
    if shard.shard.0 >= SHARDS_MAX {
        return None;
    }
    Some(Message { shard, tag: epoch("epoch", long(16)).ok()?, ask, key, payload })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{
        NodeId,
        proto::{
            handoff::{Envelope, Item, Mode},
            wire::{Decoded, Frame, decode, encode},
        },
    };

    const ME: NodeId = NodeId::from_raw(7);
    const PEER: NodeId = NodeId::from_raw(9);

    proptest! {
        #[test]
        fn it_is_the_frame_that_the_codec_makes(
            shard in (any::<u32>(), 0..SHARDS_MAX), tag in 0u64..1 << 39, ask: Option<(u64, u64, bool)>,
            key in proptest::collection::vec(any::<u8>(), 0..=255), payload in proptest::collection::vec(any::<u8>(), 0..300),
        ) {
            let now = Time::from_nanos(1_000_000);
            let shard = ShardKey { ty: TypeId(shard.0), shard: ShardId(shard.1) };
            let ask = ask.map(|(correlation, left, mine)| {
                let deadline = Time::from_nanos(now.as_nanos().saturating_add(left));
                Ask { node: if mine { ME } else { PEER }, correlation, deadline }
            });
            let message = Message { shard, tag: Epoch(tag), ask, key: &key, payload: &payload };
            let envelope = Envelope::new(shard, ask, &key, &payload).unwrap();
            let frame = Frame::Item { shard, item: Item::Msg { tag: Epoch(tag), mode: Mode::Settled, envelope } };
            let (mut short, mut long) = (vec![], vec![]);
            let cx = Context { sender: ME, now };
            prop_assert_eq!(encode_message(&message, cx, 1 << 20, &mut short), encode(&frame, cx, 1 << 20, &mut long));
            prop_assert_eq!(&short, &long);
            prop_assert!(encode_message(&message, cx, short.len() - 1, &mut vec![]).is_err());
            // What names another asker is read the long way.
            prop_assert_eq!(message_in(&short, cx), Some(message).filter(|_| ask.is_none_or(|ask| ask.node == ME)));
        }

        #[test]
        fn what_it_reads_is_what_the_codec_reads(mut bytes in proptest::collection::vec(any::<u8>(), 0..120), kind in 3u8..5, flags in 0u8..9) {
            let cx = Context { sender: PEER, now: Time::from_nanos(5) };
            if let Some(head) = bytes.first_chunk_mut::<HEADER_BYTES>() {
                (head[4], head[5], head[6], head[7]) = (kind, flags, WIRE_VERSION as u8, 0);
                (head[22], head[23]) = (0, 0);
            }
            if let Some(Message { shard, tag, ask, key, payload }) = message_in(&bytes, cx) {
                let envelope = Envelope::new(shard, ask, key, payload).unwrap();
                let frame = Frame::Item { shard, item: Item::Msg { tag, mode: Mode::Settled, envelope } };
                prop_assert_eq!(decode(&bytes, cx), Ok(Decoded::Frame(frame)));
            }
        }
    }
}
