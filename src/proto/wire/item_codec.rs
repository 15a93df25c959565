//! Layout of the items of a stream, alike in a direct frame and inside a forwarded one.
//!
//! A message: mode's epoch 8 while unsettled, remaining time 8 if somebody waits for an answer, the asker's id 16 if it is not the node whose
//! stream it is, key length 1, key, payload up to the end of the frame.

use std::time::Duration;

use super::{
    HEADER_BYTES, Malformed, Reader, Writer,
    frame_codec::{LENGTH_BYTES, epoch, kind},
};
use crate::{
    NodeId, ShardKey, Time,
    proto::handoff::{Ask, Envelope, Item, Mode},
};

/// Somebody waits for an answer: the remaining time follows.
pub(super) const ASK: u8 = 1 << 1;
/// The asker is not the node whose stream it is: its id follows.
pub(super) const ASKER: u8 = 1 << 2;
/// Mode: the mode's epoch follows.
const WAIT: u8 = 1 << 3;
/// Mode: the mode's epoch follows.
const OVER: u8 = 1 << 4;

/// What of an item stands in a header.
#[derive(Copy, Clone, Debug)]
pub(super) struct ItemHead {
    pub kind: u8,
    pub flags: u8,
    pub epoch: u64,
    pub correlation: u64,
}

impl ItemHead {
    /// The head of an item of the stream of `stream`.
    pub fn of(item: &Item, stream: NodeId) -> Self {
        let plain = |kind, epoch| Self { kind, flags: 0, epoch, correlation: 0 };
        match item {
            Item::Msg { tag, mode, envelope } => {
                let mut flags = match mode {
                    Mode::Settled => 0,
                    Mode::Wait(_) => WAIT,
                    Mode::Over(_) => OVER,
                };
                if let Some(ask) = envelope.ask {
                    flags |= if ask.node == stream { ASK } else { ASK | ASKER };
                }
                Self { kind: kind::MSG, flags, epoch: tag.get(), correlation: envelope.ask.map_or(0, |ask| ask.correlation) }
            }
            Item::Fence { p } => plain(kind::FENCE, p.get()),
            Item::Over { tag, .. } => plain(kind::OVER, tag.get()),
            Item::Settle { tag } => plain(kind::SETTLE, tag.get()),
        }
    }
}

/// At least the size of what `write_body` appends.
pub(super) fn size_hint(item: &Item) -> usize {
    match item {
        Item::Msg { envelope, .. } => 33 + envelope.bytes.len(),
        _ => 8,
    }
}

pub(super) fn write_body(item: &Item, flags: u8, now: Time, w: &mut Writer) {
    match item {
        Item::Msg { mode, envelope, .. } => {
            if let Mode::Wait(p) | Mode::Over(p) = mode {
                w.u64(p.get());
            }
            if let Some(ask) = envelope.ask {
                w.u64(remaining(ask.deadline, now));
                if flags & ASKER != 0 {
                    w.u128(ask.node.raw());
                }
            }
            w.u8(envelope.key_len).bytes(&envelope.bytes);
        }
        Item::Over { p, .. } => {
            w.u64(p.get());
        }
        Item::Fence { .. } | Item::Settle { .. } => {}
    }
}

/// Nanoseconds until `deadline`; "never" stays "never" on the other clock.
pub(super) fn remaining(deadline: Time, now: Time) -> u64 {
    if deadline == Time::MAX { u64::MAX } else { deadline.as_nanos().saturating_sub(now.as_nanos()) }
}

/// Takes what it has waited from the time that is left to the ask of a message, in a whole frame as this node wrote it: with none left it expires where it
/// arrives.
pub fn shorten_ask(frame: &mut [u8], waited: Duration) {
    let (Some(&kind::MSG), Some(&flags)) = (frame.get(LENGTH_BYTES), frame.get(LENGTH_BYTES + 1)) else { return };
    let at = HEADER_BYTES + if flags & (WAIT | OVER) == 0 { 0 } else { 8 };
    if flags & ASK != 0
        && let Some(field) = frame.get_mut(at..).and_then(<[u8]>::first_chunk_mut)
        && let left = u64::from_le_bytes(*field)
        && left != u64::MAX
    {
        *field = left.saturating_sub(u64::try_from(waited.as_nanos()).unwrap_or(u64::MAX)).to_le_bytes();
    }
}

/// Reads what follows `head` up to the end of the frame.
pub(super) fn read_body(head: ItemHead, shard: ShardKey, stream: NodeId, now: Time, r: &mut Reader<'_>) -> Result<Item, Malformed> {
    if head.kind != kind::MSG && (head.flags != 0 || head.correlation != 0) {
        return Err(Malformed::Unknown { field: "flags or correlation", value: u64::from(head.flags) | head.correlation });
    }
    let of_header = epoch("epoch", head.epoch)?;
    Ok(match head.kind {
        kind::MSG => {
            let mode = match head.flags & (WAIT | OVER) {
                0 => Mode::Settled,
                WAIT => Mode::Wait(epoch("mode's epoch", r.u64("mode's epoch")?)?),
                OVER => Mode::Over(epoch("mode's epoch", r.u64("mode's epoch")?)?),
                both => return Err(Malformed::Unknown { field: "mode", value: both.into() }),
            };
            Item::Msg { tag: of_header, mode, envelope: read_envelope(head, shard, stream, now, r)? }
        }
        kind::FENCE => Item::Fence { p: of_header },
        kind::OVER => Item::Over { p: epoch("lost path", r.u64("lost path")?)?, tag: of_header },
        kind::SETTLE => Item::Settle { tag: of_header },
        other => return Err(Malformed::Unknown { field: "item kind", value: other.into() }),
    })
}

fn read_envelope(head: ItemHead, shard: ShardKey, stream: NodeId, now: Time, r: &mut Reader<'_>) -> Result<Envelope, Malformed> {
    if head.flags & !(ASK | ASKER | WAIT | OVER) != 0 {
        return Err(Malformed::Unknown { field: "flags", value: head.flags.into() });
    }
    let ask = match head.flags & (ASK | ASKER) {
        0 if head.correlation == 0 => None,
        0 => return Err(Malformed::Unknown { field: "correlation", value: head.correlation }),
        ASKER => return Err(Malformed::Unknown { field: "flags", value: head.flags.into() }),
        flags => {
            let left = r.u64("remaining time")?;
            let node = if flags & ASKER == 0 { stream } else { NodeId::from_raw(r.u128("asker")?) };
            if flags & ASKER != 0 && node == stream {
                return Err(Malformed::Layout { field: "asker", why: "named although it is the sender" });
            }
            let deadline = Time::from_nanos(now.as_nanos().saturating_add(left));
            Some(Ask { node, correlation: head.correlation, deadline })
        }
    };
    let key_len = r.u8("key length")?;
    if usize::from(key_len) > r.left() {
        return Err(Malformed::Truncated { field: "key", needed: key_len.into(), left: r.left() });
    }
    Ok(Envelope { shard, ask, key_len, bytes: r.rest().into() })
}
