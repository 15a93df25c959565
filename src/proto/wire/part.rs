//! Frames of the link itself: large frames travel in parts, between which smaller ones find room, and parts are acknowledged, so that few are
//! under way at a time.
//!
//! Messages of a shard may go past what is large and belongs to other shards, and answers past everything. All else stays where it was put: the
//! simulator loses messages of a node that leaves if what says so may go past them.

use super::{
    FrameError, HEADER_BYTES, Malformed,
    frame_codec::{Header, LENGTH_BYTES, NO_SHARD, WIRE_VERSION, kind},
};

/// The last part of its frame.
const LAST: u8 = 1;

/// A frame of the link itself.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum LinkFrame<'a> {
    /// The next bytes of a frame, its length among the first of them.
    Part {
        /// The bytes.
        bytes: &'a [u8],
        /// They end it.
        last: bool,
    },
    /// So many bytes of parts were taken in since the session began.
    Taken(u64),
}

/// What a frame may go past.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Order {
    /// A message: what is not of this shard.
    Message(u64),
    /// An answer: anything.
    Reply,
    /// Something else of this shard: nothing.
    Shard(u64),
    /// Nothing.
    Other,
}

/// Appends a frame of the link. At most `u32::MAX` bytes with its header.
pub fn encode_link(frame: LinkFrame<'_>, out: &mut Vec<u8>) {
    let (header, bytes) = match frame {
        LinkFrame::Part { bytes, last } => (Header { flags: if last { LAST } else { 0 }, ..Header::new(kind::PART, NO_SHARD) }, bytes),
        LinkFrame::Taken(upto) => (Header { correlation: upto, ..Header::new(kind::TAKEN, NO_SHARD) }, &[][..]),
    };
    let length = u32::try_from(HEADER_BYTES - LENGTH_BYTES + bytes.len()).expect("a part is far shorter than 4 GiB");
    let mut head = header.bytes();
    head[..LENGTH_BYTES].copy_from_slice(&length.to_le_bytes());
    out.extend_from_slice(&head);
    out.extend_from_slice(bytes);
}

/// What stands in a whole frame, if it is one of the link. `None`: it is not, and [`decode`](super::decode) says what it is.
#[inline]
pub fn link_frame_in(frame: &[u8]) -> Option<Result<LinkFrame<'_>, FrameError>> {
    let kind = *frame.get(LENGTH_BYTES)?;
    (kind == kind::PART || kind == kind::TAKEN).then(|| read(kind, frame))
}

fn read(kind: u8, frame: &[u8]) -> Result<LinkFrame<'_>, FrameError> {
    let Some((head, bytes)) = frame.split_first_chunk::<HEADER_BYTES>() else {
        return Err(FrameError::TooShort { size: frame.len() as u64 });
    };
    let version = u16::from_le_bytes([head[6], head[7]]);
    if version != WIRE_VERSION {
        return Err(FrameError::UnsupportedVersion { version });
    }
    let name = if kind == kind::PART { "part" } else { "taken" };
    let malformed = |what| Err(FrameError::Malformed { frame: name, what });
    let (flags, upto) = (head[5], u64::from_le_bytes([head[24], head[25], head[26], head[27], head[28], head[29], head[30], head[31]]));
    if flags & !LAST != 0 || (kind == kind::TAKEN && flags != 0) {
        return malformed(Malformed::Unknown { field: "flags", value: flags.into() });
    }
    if head[8..24].iter().any(|byte| *byte != 0) || (kind == kind::PART && upto != 0) {
        return malformed(Malformed::Unknown { field: "header", value: upto });
    }
    match kind {
        kind::PART => Ok(LinkFrame::Part { bytes, last: flags & LAST != 0 }),
        _ if bytes.is_empty() => Ok(LinkFrame::Taken(upto)),
        _ => malformed(Malformed::Trailing { left: bytes.len() }),
    }
}

/// Whether a whole frame, as this node wrote it, is an item of a hand-off lane: those are given to each session anew, as there is credit.
pub fn is_handoff(frame: &[u8]) -> bool {
    matches!(frame.get(LENGTH_BYTES), Some(&(kind::TRANSFER | kind::FORWARDED | kind::PROBE)))
}

/// What a whole frame, as this node wrote it, may go past.
pub fn order_of(frame: &[u8]) -> Order {
    let shard = || frame.get(8..16).and_then(<[u8]>::first_chunk).map_or(0, |bytes| u64::from_le_bytes(*bytes));
    match frame.get(LENGTH_BYTES) {
        Some(&kind::MSG) => Order::Message(shard()),
        Some(&kind::REPLY) => Order::Reply,
        Some(&(kind::MEMBER | kind::CONTROL | kind::CAST)) | None => Order::Other,
        Some(_) => Order::Shard(shard()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{
        super::{Context, Cut, Frame, cut, decode, encode},
        *,
    };
    use crate::{
        Epoch, NodeId, ShardId, ShardKey, Time, TypeId,
        proto::handoff::{Envelope, Item, Mode, ReplyBody},
    };

    fn link(frame: LinkFrame<'_>) -> Vec<u8> {
        let mut out = vec![];
        encode_link(frame, &mut out);
        assert_eq!(cut(&out, 1 << 20), Ok(Cut::Frame(out.len())));
        out
    }

    #[test]
    fn what_is_written_is_read_and_nothing_else() {
        for frame in [LinkFrame::Part { bytes: b"some", last: false }, LinkFrame::Part { bytes: b"", last: true }, LinkFrame::Taken(7)] {
            let bytes = link(frame);
            assert_eq!(link_frame_in(&bytes), Some(Ok(frame)));
            for at in LENGTH_BYTES + 1..HEADER_BYTES {
                let mut other = bytes.clone();
                other[at] ^= 0x80;
                let read = link_frame_in(&other);
                assert!(
                    matches!(read, Some(Err(_))) || matches!((frame, &read), (LinkFrame::Taken(_), Some(Ok(LinkFrame::Taken(_))))),
                    "byte {at} of {frame:?}: {read:?}"
                );
            }
            assert!(matches!(link_frame_in(&bytes[..HEADER_BYTES - 1]), Some(Err(FrameError::TooShort { .. }))));
        }
        let mut long = link(LinkFrame::Taken(7));
        long.push(0);
        assert!(matches!(link_frame_in(&long), Some(Err(FrameError::Malformed { frame: "taken", .. }))));
        let last_taken = {
            let mut bytes = link(LinkFrame::Taken(7));
            bytes[5] = LAST;
            bytes
        };
        assert!(matches!(link_frame_in(&last_taken), Some(Err(FrameError::Malformed { .. }))));
        assert_eq!(link_frame_in(&[]), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(mut bytes in proptest::collection::vec(any::<u8>(), 0..80), kind in 15u8..17, flags in 0u8..3, quiet: bool) {
            if let Some(head) = bytes.first_chunk_mut::<HEADER_BYTES>() {
                if quiet {
                    head[8..].fill(0);
                }
                (head[4], head[5], head[6], head[7]) = (kind, flags, WIRE_VERSION as u8, 0);
            }
            let length = (bytes.len() as u32).wrapping_sub(LENGTH_BYTES as u32).to_le_bytes();
            bytes.iter_mut().zip(length).for_each(|(byte, new)| *byte = new);
            if let Some(Ok(frame)) = link_frame_in(&bytes) {
                prop_assert_eq!(link(frame), bytes);
            }
        }
    }

    #[test]
    fn messages_are_in_the_order_of_their_shard_and_answers_in_none() {
        let cx = Context { sender: NodeId::from_raw(1), now: Time::ZERO };
        let order = |frame: &Frame| {
            let mut out = vec![];
            encode(frame, cx, 1 << 20, &mut out).unwrap();
            assert_eq!(link_frame_in(&out), None);
            assert!(decode(&out, cx).is_ok());
            order_of(&out)
        };
        let shard = ShardKey { ty: TypeId(5), shard: ShardId(1) };
        let envelope = Envelope::new(shard, None, b"key", b"message").unwrap();
        let number = 5 | 1 << 32;
        assert_eq!(order(&Frame::Item { shard, item: Item::Msg { tag: Epoch(1), mode: Mode::Settled, envelope } }), Order::Message(number));
        assert_eq!(order(&Frame::Item { shard, item: Item::Fence { p: Epoch(1) } }), Order::Shard(number));
        assert_eq!(order(&Frame::HandoffAck { shard, upto: 3 }), Order::Shard(number));
        assert_eq!(order(&Frame::Cast { ty: TypeId(5), topic: 0, bytes: Box::new([1]) }), Order::Other);
        assert_eq!(order(&Frame::Reply { correlation: 3, body: ReplyBody::NoReply }), Order::Reply);
    }
}
