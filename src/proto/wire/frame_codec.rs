//! Layout of frames on a link (protocols.md section 6): a fixed header of 32 bytes, then what the kind needs.
//!
//! Header, little-endian: length 4 (of what follows it), kind 1, flags 1, version 2, type 4, shard 4, epoch 8, correlation 8. Fields that a
//! kind does not use are zero, and so is every flag that it does not know: what decodes encodes to the same bytes again.

use std::sync::Arc;

use serde::{Serialize, de::DeserializeOwned};

use super::{
    Frame, Malformed, Reader, Writer,
    item_codec::{self, ItemHead},
};
use crate::{
    Epoch, NodeId, ShardId, ShardKey, Time, TypeId,
    proto::{
        handoff::{DropReason, Forwarded, HandoffItem, ReplyBody, TransferChunk},
        sharding::{ControlFrame, SHARDS_MAX, TERM_ACCEPTED_MAX},
    },
};

/// Bytes of the header of every frame.
pub const HEADER_BYTES: usize = 32;
/// Version of the layouts written here.
pub const WIRE_VERSION: u16 = 1;

pub(super) const LENGTH_BYTES: usize = 4;
/// Largest number of removals that a forwarded item may be made to wait for: the bound on the members of a cluster.
const AFTER_MAX: usize = 10_000;

/// A receiver that does not know the kind skips the frame.
pub(super) const OPTIONAL: u8 = 1;
/// The last chunk of a transfer. Shares its bit with nothing else.
const LAST: u8 = 1 << 5;

/// Kinds; new ones at the end, never reused.
pub(super) mod kind {
    pub const MEMBER: u8 = 1;
    pub const CONTROL: u8 = 2;
    pub const MSG: u8 = 3;
    pub const FENCE: u8 = 4;
    pub const OVER: u8 = 5;
    pub const SETTLE: u8 = 6;
    pub const TRANSFER: u8 = 7;
    pub const FORWARDED: u8 = 8;
    pub const PROBE: u8 = 9;
    pub const HANDOFF_ACK: u8 = 10;
    pub const STREAM_ACK: u8 = 11;
    pub const PROBE_ACK: u8 = 12;
    pub const REPLY: u8 = 13;
    pub const CAST: u8 = 14;
    /// See `part`, as the next one: frames of the link, which `decode` does not know.
    pub const PART: u8 = 15;
    pub const TAKEN: u8 = 16;
    pub const DETOUR: u8 = 17;
}

/// What both ends know without saying it.
#[derive(Copy, Clone, Debug)]
pub struct Context {
    /// The node that sends the frame: whose stream a direct item belongs to.
    pub sender: NodeId,
    /// The moment on the clock of the node that encodes or decodes: deadlines travel as remaining time.
    pub now: Time,
}

/// Where the first frame of a buffer ends.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Cut {
    /// This many bytes, length included, are the first frame.
    Frame(usize),
    /// The frame is not whole yet; the buffer must come to hold this many bytes before looking again makes sense.
    Wait(usize),
}

/// What came of a whole frame.
#[derive(Clone, PartialEq, Debug)]
#[allow(clippy::large_enum_variant)] // Small messages stand in place: a box for each would cost more than the copies.
pub enum Decoded {
    /// A frame.
    Frame(Frame),
    /// A frame of a kind that this version does not know and that its sender marked as dispensable.
    Skipped(u8),
}

/// Why bytes are no frame, or a frame no bytes. The link closes; nothing after it can be trusted.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FrameError {
    /// Longer than the limit, as its length says or as it would be written.
    #[error("frame of {size} bytes, limits.frame_bytes is {max}")]
    TooLong {
        /// Its size.
        size: u64,
        /// The limit.
        max: u64,
    },
    /// Too short for a header.
    #[error("frame of {size} bytes, a header alone has {HEADER_BYTES}")]
    TooShort {
        /// Its size.
        size: u64,
    },
    /// Another version of the layouts than the greeting agreed on.
    #[error("frame of wire version {version}, this link speaks {WIRE_VERSION}")]
    UnsupportedVersion {
        /// What stands there.
        version: u16,
    },
    /// A kind that this version does not know and may not skip.
    #[error("UnsupportedFrame({0}): this node does not know the kind, and it is not marked as optional; upgrade this node")]
    UnsupportedFrame(u8),
    /// The kind is known, the rest is not as it should be.
    #[error("{frame} frame: {what}")]
    Malformed {
        /// Name of the kind.
        frame: &'static str,
        /// What is wrong.
        what: Malformed,
    },
}

/// Finds the end of the first frame in `input`. Looks at the length only, so that a frame above `max` bytes is refused before room for it is made.
#[inline]
pub fn cut(input: &[u8], max: usize) -> Result<Cut, FrameError> {
    let Some(raw) = input.first_chunk::<LENGTH_BYTES>() else { return Ok(Cut::Wait(LENGTH_BYTES)) };
    let size = u64::from(u32::from_le_bytes(*raw)) + LENGTH_BYTES as u64;
    if size < HEADER_BYTES as u64 {
        return Err(FrameError::TooShort { size });
    }
    if size > max as u64 {
        return Err(FrameError::TooLong { size, max: max as u64 });
    }
    let size = size as usize;
    Ok(if input.len() < size { Cut::Wait(size) } else { Cut::Frame(size) })
}

/// The fields of a header, without length and version.
#[derive(Copy, Clone, Debug)]
pub(super) struct Header {
    pub kind: u8,
    pub flags: u8,
    pub shard: ShardKey,
    pub epoch: u64,
    pub correlation: u64,
}

pub(super) const NO_SHARD: ShardKey = ShardKey { ty: TypeId(0), shard: ShardId(0) };

impl Header {
    #[inline]
    pub fn new(kind: u8, shard: ShardKey) -> Self {
        Self { kind, flags: 0, shard, epoch: 0, correlation: 0 }
    }

    #[inline]
    pub fn bytes(&self) -> [u8; HEADER_BYTES] {
        let mut raw = [0; HEADER_BYTES];
        raw[4] = self.kind;
        raw[5] = self.flags;
        raw[6..8].copy_from_slice(&WIRE_VERSION.to_le_bytes());
        raw[8..12].copy_from_slice(&self.shard.ty.0.to_le_bytes());
        raw[12..16].copy_from_slice(&self.shard.shard.0.to_le_bytes());
        raw[16..24].copy_from_slice(&self.epoch.to_le_bytes());
        raw[24..32].copy_from_slice(&self.correlation.to_le_bytes());
        raw
    }

    fn read(r: &mut Reader<'_>) -> Result<(Self, u16), Malformed> {
        let (kind, flags, version) = (r.u8("kind")?, r.u8("flags")?, r.u16("version")?);
        let shard = ShardKey { ty: TypeId(r.u32("type")?), shard: ShardId(r.u32("shard")?) };
        Ok((Self { kind, flags, shard, epoch: r.u64("epoch")?, correlation: r.u64("correlation")? }, version))
    }

    /// The header as it must be if the kind uses only what `used` holds.
    fn only(self, used: Self) -> Result<Self, Malformed> {
        let unknown = |field, value| Err(Malformed::Unknown { field, value });
        if self.flags & !used.flags != 0 {
            return unknown("flags", self.flags.into());
        }
        if used.shard == NO_SHARD && self.shard != NO_SHARD {
            return unknown("shard", self.shard.shard.0.into());
        }
        if used.epoch == 0 && self.epoch != 0 {
            return unknown("epoch", self.epoch);
        }
        if used.correlation == 0 && self.correlation != 0 {
            return unknown("correlation", self.correlation);
        }
        Ok(self)
    }
}

/// Name of a kind, for errors and counters.
fn name(kind: u8) -> &'static str {
    match kind {
        kind::MEMBER => "member",
        kind::CONTROL => "control",
        kind::MSG => "message",
        kind::FENCE => "fence",
        kind::OVER => "over",
        kind::SETTLE => "settle",
        kind::TRANSFER => "transfer",
        kind::FORWARDED => "forwarded",
        kind::PROBE => "probe",
        kind::HANDOFF_ACK => "hand-off acknowledgement",
        kind::STREAM_ACK => "stream acknowledgement",
        kind::PROBE_ACK => "probe acknowledgement",
        kind::REPLY => "reply",
        kind::CAST => "cast",
        kind::DETOUR => "detour",
        _ => "unknown",
    }
}

/// Appends `frame` to `out` and returns its size. `out` is as before if the frame is longer than `max` bytes.
pub fn encode(frame: &Frame, cx: Context, max: usize, out: &mut Vec<u8>) -> Result<usize, FrameError> {
    let start = out.len();
    let mut w = Writer(std::mem::take(out));
    let written = write(frame, cx, &mut w);
    *out = w.0;
    let size = out.len() - start;
    let problem = match (written, u32::try_from(size - LENGTH_BYTES)) {
        (Ok(()), Ok(length)) if size <= max => {
            out[start..start + LENGTH_BYTES].copy_from_slice(&length.to_le_bytes());
            return Ok(size);
        }
        (Ok(()), _) => FrameError::TooLong { size: size as u64, max: max as u64 },
        (Err(what), _) => FrameError::Malformed { frame: name(out[start + 4]), what },
    };
    out.truncate(start);
    Err(problem)
}

fn write(frame: &Frame, cx: Context, w: &mut Writer) -> Result<(), Malformed> {
    match frame {
        Frame::Item { shard, item } => {
            let head = ItemHead::of(item, cx.sender);
            let header = Header { kind: head.kind, flags: head.flags, shard: *shard, epoch: head.epoch, correlation: head.correlation };
            w.0.reserve(HEADER_BYTES + item_codec::size_hint(item));
            w.bytes(&header.bytes());
            item_codec::write_body(item, head.flags, cx.now, w);
        }
        Frame::Reply { correlation, body } => {
            w.bytes(&Header { correlation: *correlation, ..Header::new(kind::REPLY, NO_SHARD) }.bytes());
            write_reply(body, w);
        }
        Frame::Member(member) => return write_postcard(kind::MEMBER, "member frame", member, w),
        Frame::Control(control) => return write_postcard(kind::CONTROL, "control frame", control, w),
        Frame::Handoff { shard, number, item } => write_handoff(*shard, *number, item, cx, w),
        Frame::Detour { from, to, frame } => {
            let shard = match &**frame {
                Frame::Handoff { shard, .. } | Frame::HandoffAck { shard, .. } => Some(*shard),
                Frame::Control(_) => Some(NO_SHARD),
                _ => None,
            };
            let header = Header { flags: OPTIONAL, ..Header::new(kind::DETOUR, shard.unwrap_or(NO_SHARD)) };
            w.bytes(&header.bytes()).u128(from.raw()).u128(to.raw());
            if shard.is_none() {
                return Err(Malformed::Layout { field: "frame", why: "of a kind that goes by no detour" });
            }
            let start = w.0.len();
            write(frame, cx, w)?;
            let length = u32::try_from(w.0.len() - start - LENGTH_BYTES).unwrap_or(u32::MAX);
            w.0[start..start + LENGTH_BYTES].copy_from_slice(&length.to_le_bytes());
        }
        Frame::HandoffAck { shard, upto } => {
            w.bytes(&Header { correlation: *upto, ..Header::new(kind::HANDOFF_ACK, *shard) }.bytes());
        }
        Frame::StreamAck { shard, p } => {
            w.bytes(&Header { epoch: p.get(), ..Header::new(kind::STREAM_ACK, *shard) }.bytes());
        }
        Frame::Cast { ty, topic, bytes } => {
            let shard = ShardKey { ty: *ty, ..NO_SHARD };
            w.bytes(&Header { flags: OPTIONAL, correlation: *topic, ..Header::new(kind::CAST, shard) }.bytes()).bytes(bytes);
        }
        Frame::ProbeAck { shard, route, number } => {
            w.bytes(&Header { correlation: *route, ..Header::new(kind::PROBE_ACK, *shard) }.bytes()).u64(*number);
        }
    }
    Ok(())
}

fn write_postcard<T: Serialize>(kind: u8, field: &'static str, value: &T, w: &mut Writer) -> Result<(), Malformed> {
    w.bytes(&Header::new(kind, NO_SHARD).bytes());
    postcard::to_io(value, &mut w.0).map(|_| ()).map_err(|_| Malformed::Layout { field, why: "cannot be written" })
}

fn write_handoff(shard: ShardKey, number: u64, item: &HandoffItem, cx: Context, w: &mut Writer) {
    let header = |kind| Header { correlation: number, ..Header::new(kind, shard) };
    match item {
        HandoffItem::Transfer(chunk) => {
            let flags = if chunk.last { LAST } else { 0 };
            w.bytes(&Header { flags, epoch: chunk.epoch.get(), ..header(kind::TRANSFER) }.bytes());
            w.u64(chunk.base.get()).bytes(&chunk.bytes);
        }
        HandoffItem::Forwarded(f) => {
            w.bytes(&Header { epoch: f.aim.get(), ..header(kind::FORWARDED) }.bytes());
            write_after(&f.after, w);
            w.u128(f.stream.raw());
            let head = ItemHead::of(&f.item, f.stream);
            w.u8(head.kind).u8(head.flags).u64(head.epoch).u64(head.correlation);
            item_codec::write_body(&f.item, head.flags, cx.now, w);
        }
        HandoffItem::Probe { origin, route, number, aim, after } => {
            w.bytes(&Header { epoch: aim.get(), ..header(kind::PROBE) }.bytes()).u128(origin.raw()).u64(*route).u64(*number);
            write_after(after, w);
        }
    }
}

fn write_after(after: &[NodeId], w: &mut Writer) {
    w.count(after.len());
    for node in after {
        w.u128(node.raw());
    }
}

fn read_after(r: &mut Reader<'_>) -> Result<Vec<NodeId>, Malformed> {
    let count = r.count("after", 16, AFTER_MAX)?;
    (0..count).map(|_| Ok(NodeId::from_raw(r.u128("after")?))).collect()
}

fn write_reply(body: &ReplyBody, w: &mut Writer) {
    match body {
        ReplyBody::Value(value) => w.u8(0).bytes(value),
        ReplyBody::Dropped(reason) => w.u8(1).u16(reason_number(*reason)),
        ReplyBody::NoReply => w.u8(2),
        ReplyBody::EntityFailed => w.u8(3),
        ReplyBody::Rejected(why) => w.u8(4).bytes(why.as_bytes()),
        ReplyBody::OwnerLost => w.u8(5),
    };
}

/// A reason travels as the number in its stable code, which is never reused.
fn reason_number(reason: DropReason) -> u16 {
    reason.code().bytes().filter(u8::is_ascii_digit).fold(0, |n, digit| n * 10 + u16::from(digit - b'0'))
}

/// Decodes one whole frame, as [`cut`] found it.
pub fn decode(input: &[u8], cx: Context) -> Result<Decoded, FrameError> {
    let mut r = Reader::new(input);
    let header = r.u32("length").and_then(|_| Header::read(&mut r));
    let (header, version) = header.map_err(|_| FrameError::TooShort { size: input.len() as u64 })?;
    let known = (kind::MEMBER..=kind::CAST).contains(&header.kind) || header.kind == kind::DETOUR;
    if !known {
        return if header.flags & OPTIONAL != 0 {
            Ok(Decoded::Skipped(header.kind))
        } else {
            Err(FrameError::UnsupportedFrame(header.kind))
        };
    }
    if version != WIRE_VERSION {
        return Err(FrameError::UnsupportedVersion { version });
    }
    let frame = read(header, cx, &mut r).and_then(|frame| r.end().map(|()| frame));
    frame.map(Decoded::Frame).map_err(|what| FrameError::Malformed { frame: name(header.kind), what })
}

fn read(header: Header, cx: Context, r: &mut Reader<'_>) -> Result<Frame, Malformed> {
    let number = header.shard.shard.0;
    if number >= SHARDS_MAX {
        return Err(Malformed::TooLarge { field: "shard", value: number.into(), max: u64::from(SHARDS_MAX) - 1 });
    }
    let Header { shard, correlation, .. } = header;
    // A sample of all that kinds use; each kind below says which of it.
    let used = Header { kind: header.kind, flags: 0, shard: ShardKey { ty: TypeId(1), shard: ShardId(1) }, epoch: 1, correlation: 1 };
    Ok(match header.kind {
        kind::MSG | kind::FENCE | kind::OVER | kind::SETTLE => {
            let head = ItemHead { kind: header.kind, flags: header.flags, epoch: header.epoch, correlation };
            Frame::Item { shard, item: item_codec::read_body(head, shard, cx.sender, cx.now, r)? }
        }
        kind::REPLY => {
            header.only(Header { shard: NO_SHARD, epoch: 0, ..used })?;
            Frame::Reply { correlation, body: read_reply(r)? }
        }
        kind::CAST => {
            header.only(Header { flags: OPTIONAL, epoch: 0, ..used })?;
            if header.flags != OPTIONAL || shard.shard != NO_SHARD.shard {
                return Err(Malformed::Unknown { field: "flags", value: header.flags.into() });
            }
            Frame::Cast { ty: shard.ty, topic: correlation, bytes: r.rest().into() }
        }
        kind::MEMBER => Frame::Member(read_postcard(header, "member frame", r)?),
        kind::CONTROL => Frame::Control(read_control(header, r)?),
        kind::HANDOFF_ACK => {
            header.only(Header { epoch: 0, ..used })?;
            Frame::HandoffAck { shard, upto: correlation }
        }
        kind::DETOUR => {
            header.only(Header { flags: OPTIONAL, epoch: 0, correlation: 0, ..used })?;
            if header.flags != OPTIONAL {
                return Err(Malformed::Unknown { field: "flags", value: header.flags.into() });
            }
            let (from, to) = (NodeId::from_raw(r.u128("from")?), NodeId::from_raw(r.u128("to")?));
            Frame::Detour { from, to, frame: Box::new(read_inner(shard, cx, r)?) }
        }
        kind::STREAM_ACK => {
            header.only(Header { correlation: 0, ..used })?;
            Frame::StreamAck { shard, p: epoch("epoch", header.epoch)? }
        }
        kind::PROBE_ACK => {
            header.only(Header { epoch: 0, ..used })?;
            Frame::ProbeAck { shard, route: correlation, number: r.u64("probe number")? }
        }
        _ => Frame::Handoff { shard, number: correlation, item: read_handoff(header, used, cx, r)? },
    })
}

/// The frame in a detour, which ends it: of that shard, and no detour itself.
fn read_inner(shard: ShardKey, cx: Context, r: &mut Reader<'_>) -> Result<Frame, Malformed> {
    let length = r.u32("length")? as usize;
    if length != r.left() {
        return Err(Malformed::Unknown { field: "length", value: length as u64 });
    }
    let (header, version) = Header::read(r)?;
    if version != WIRE_VERSION || header.shard != shard {
        return Err(Malformed::Layout { field: "frame", why: "not of the version and shard of the detour" });
    }
    match header.kind {
        kind::TRANSFER | kind::FORWARDED | kind::PROBE | kind::HANDOFF_ACK | kind::CONTROL => read(header, cx, r),
        other => Err(Malformed::Unknown { field: "kind", value: other.into() }),
    }
}

fn read_postcard<T: DeserializeOwned>(header: Header, field: &'static str, r: &mut Reader<'_>) -> Result<T, Malformed> {
    header.only(Header::new(header.kind, NO_SHARD))?;
    let (value, rest) = postcard::take_from_bytes(r.rest())
        .map_err(|_| Malformed::Layout { field, why: "not the layout of its version, or a number out of its range" })?;
    if rest.is_empty() { Ok(value) } else { Err(Malformed::Trailing { left: rest.len() }) }
}

fn read_control(header: Header, r: &mut Reader<'_>) -> Result<ControlFrame, Malformed> {
    let frame: ControlFrame = read_postcard(header, "control frame", r)?;
    match frame.term() {
        Some(term) if term > TERM_ACCEPTED_MAX => {
            Err(Malformed::TooLarge { field: "term", value: term.get(), max: TERM_ACCEPTED_MAX.get() })
        }
        _ => Ok(frame),
    }
}

fn read_handoff(header: Header, used: Header, cx: Context, r: &mut Reader<'_>) -> Result<HandoffItem, Malformed> {
    Ok(match header.kind {
        kind::TRANSFER => {
            header.only(Header { flags: LAST, ..used })?;
            HandoffItem::Transfer(TransferChunk {
                epoch: epoch("epoch", header.epoch)?,
                base: epoch("base", r.u64("base")?)?,
                last: header.flags & LAST != 0,
                bytes: Arc::new(r.rest().to_vec()),
            })
        }
        kind::FORWARDED => {
            header.only(used)?;
            let aim = epoch("aim", header.epoch)?;
            let after = read_after(r)?;
            let stream = NodeId::from_raw(r.u128("stream")?);
            let head = ItemHead {
                kind: r.u8("item kind")?,
                flags: r.u8("item flags")?,
                epoch: r.u64("item epoch")?,
                correlation: r.u64("item correlation")?,
            };
            let item = item_codec::read_body(head, header.shard, stream, cx.now, r)?;
            HandoffItem::Forwarded(Forwarded { aim, after, stream, item })
        }
        _ => {
            header.only(used)?;
            let aim = epoch("aim", header.epoch)?;
            let (origin, route, number) = (NodeId::from_raw(r.u128("origin")?), r.u64("route")?, r.u64("probe number")?);
            HandoffItem::Probe { origin, route, number, aim, after: read_after(r)? }
        }
    })
}

fn read_reply(r: &mut Reader<'_>) -> Result<ReplyBody, Malformed> {
    Ok(match r.u8("outcome")? {
        0 => ReplyBody::Value(r.rest().into()),
        1 => {
            let number = r.u16("reason")?;
            let known = DropReason::ALL.iter().find(|reason| reason_number(**reason) == number);
            ReplyBody::Dropped(*known.ok_or(Malformed::Unknown { field: "reason", value: number.into() })?)
        }
        2 => ReplyBody::NoReply,
        3 => ReplyBody::EntityFailed,
        4 => ReplyBody::Rejected(std::str::from_utf8(r.rest()).map_err(|_| Malformed::Text("rejection"))?.to_owned()),
        5 => ReplyBody::OwnerLost,
        other => return Err(Malformed::Unknown { field: "outcome", value: other.into() }),
    })
}

/// An epoch from outside.
pub(crate) fn epoch(field: &'static str, raw: u64) -> Result<Epoch, Malformed> {
    Epoch::from_raw(raw).ok_or(Malformed::TooLarge { field, value: raw, max: Epoch::ACCEPTED_MAX.get() })
}

#[cfg(test)]
#[path = "frame_codec_tests.rs"]
mod tests;
