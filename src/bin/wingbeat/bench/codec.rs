//! `bench codec`: the envelope of a 64-byte message, written and read, beside prost with the same fields.

use std::{
    hint::black_box,
    time::{Duration, Instant},
};

use prost::encoding::{
    self, DecodeContext, WireType, check_wire_type, decode_key, decode_varint, encode_key, encode_varint, encoded_len_varint, key_len,
};
use wingbeat::{
    Epoch, NodeId, ShardId, ShardKey, Time, TypeId,
    proto::wire::{Context, Cut, Message, cut, encode_message, message_in},
};

use super::{
    BenchArgs, alloc,
    entity::PAYLOAD_BYTES,
    report::{Report, Run},
    rig::Error,
};

/// A link writes so much at a time.
const BLOCK: usize = 64 * 1024;
/// Messages of a block: less than a block in either layout.
const MESSAGES: u64 = 500;
/// Of the limit, per message: those of whoever measures are spread over all.
const ALLOCATIONS_MAX: f64 = 0.01;
/// Largest frame.
const FRAME_MAX: usize = 1 << 20;

/// The fields of the envelope, written and read by what prost offers to those who write a message by hand. Its trait has no place for bytes that are
/// borrowed from what is read, and its derive copies them.
#[derive(Default)]
struct Plain<'a> {
    kind: u32,
    flags: u32,
    version: u32,
    ty: u32,
    shard: u32,
    epoch: u64,
    correlation: u64,
    key: &'a [u8],
    payload: &'a [u8],
}

/// The short fields, in the order of their numbers.
macro_rules! for_numbers {
    ($do:ident) => {
        $do!(uint32, 1, kind);
        $do!(uint32, 2, flags);
        $do!(uint32, 3, version);
        $do!(fixed32, 4, ty);
        $do!(uint32, 5, shard);
        $do!(uint64, 6, epoch);
        $do!(uint64, 7, correlation);
    };
}

impl<'a> Plain<'a> {
    /// Behind its length, as every stream of such messages has to have it.
    #[inline]
    fn encode(&self, out: &mut Vec<u8>) {
        encode_varint(self.encoded_len() as u64, out);
        macro_rules! number {
            ($codec:ident, $tag:literal, $field:ident) => {
                if self.$field != 0 {
                    encoding::$codec::encode($tag, &self.$field, out);
                }
            };
        }
        for_numbers!(number);
        for (tag, bytes) in [(8, self.key), (9, self.payload)] {
            encode_key(tag, WireType::LengthDelimited, out);
            encode_varint(bytes.len() as u64, out);
            out.extend_from_slice(bytes);
        }
    }

    #[inline]
    fn encoded_len(&self) -> usize {
        let bytes = |tag: u32, bytes: &[u8]| key_len(tag) + encoded_len_varint(bytes.len() as u64) + bytes.len();
        let mut len = bytes(8, self.key) + bytes(9, self.payload);
        macro_rules! number {
            ($codec:ident, $tag:literal, $field:ident) => {
                if self.$field != 0 {
                    len += encoding::$codec::encoded_len($tag, &self.$field);
                }
            };
        }
        for_numbers!(number);
        len
    }

    /// The first message of the input, which loses it.
    #[inline]
    fn decode(input: &mut &'a [u8]) -> Result<Self, Error> {
        let (mut message, mut rest) = (Self::default(), delimited(input)?);
        while !rest.is_empty() {
            let ((tag, wire), input, cx) = (decode_key(&mut rest)?, &mut rest, DecodeContext::default());
            match tag {
                1 => encoding::uint32::merge(wire, &mut message.kind, input, cx)?,
                2 => encoding::uint32::merge(wire, &mut message.flags, input, cx)?,
                3 => encoding::uint32::merge(wire, &mut message.version, input, cx)?,
                4 => encoding::fixed32::merge(wire, &mut message.ty, input, cx)?,
                5 => encoding::uint32::merge(wire, &mut message.shard, input, cx)?,
                6 => encoding::uint64::merge(wire, &mut message.epoch, input, cx)?,
                7 => encoding::uint64::merge(wire, &mut message.correlation, input, cx)?,
                8 => message.key = bytes(wire, input)?,
                9 => message.payload = bytes(wire, input)?,
                _ => encoding::skip_field(wire, tag, input, cx)?,
            }
        }
        Ok(message)
    }
}

/// A field of bytes.
#[inline]
fn bytes<'a>(wire: WireType, input: &mut &'a [u8]) -> Result<&'a [u8], Error> {
    check_wire_type(WireType::LengthDelimited, wire)?;
    delimited(input)
}

/// So many bytes as the number before them says; the input loses both.
#[inline]
fn delimited<'a>(input: &mut &'a [u8]) -> Result<&'a [u8], Error> {
    let len = decode_varint(input)?;
    let (bytes, rest) = input.split_at_checked(usize::try_from(len)?).ok_or("the input ends within a field")?;
    *input = rest;
    Ok(bytes)
}

const TYPE: u32 = 0x9e37_79b9;
const SHARD: u32 = 77;

fn context() -> Context {
    Context { sender: NodeId::from_raw(7), now: Time::from_nanos(1_000_000) }
}

/// Fixed layout and prost in turns.
pub fn measure(args: &BenchArgs, report: &mut Report) -> Result<(), Error> {
    report.figure("ns_per_envelope");
    report.rounds(
        "prost: the same fields, borrowed from what is read",
        args.runs(),
        || {
            let run = timed(args.window() / 4, &mut Prost)?;
            // A limit that allocates is lower than it need be.
            match run.allocations {
                Some(each) if each > ALLOCATIONS_MAX => Err(format!("the limit allocates {each:.2} times per message").into()),
                _ => Ok(run),
            }
        },
        || timed(args.window() / 2, &mut Fixed),
    )
}

/// A layout: writes messages behind each other, and reads them.
trait Layout {
    /// Appends the message with that number.
    fn write(&mut self, i: u64, payload: &[u8; PAYLOAD_BYTES], out: &mut Vec<u8>) -> Result<(), Error>;
    /// Bytes of the first message, and its number.
    fn read(&mut self, bytes: &[u8]) -> Result<(usize, u64), Error>;
}

/// Writes a block, reads it, and so on; fails if it does not read what was written.
fn timed<L: Layout>(window: Duration, layout: &mut L) -> Result<Run, Error> {
    let (mut block, payload) = (Vec::with_capacity(BLOCK), [7u8; PAYLOAD_BYTES]);
    let (mut encoding, mut decoding, mut done) = (Duration::ZERO, Duration::ZERO, 0u64);
    let (result, allocated) = alloc::counted(|| {
        let began = Instant::now();
        while began.elapsed() < window {
            block.clear();
            let start = Instant::now();
            for i in done..done + MESSAGES {
                layout.write(black_box(i), black_box(&payload), &mut block)?;
            }
            encoding += start.elapsed();
            let (start, mut rest, mut sum) = (Instant::now(), black_box(&block[..]), 0);
            while !rest.is_empty() {
                let (size, number) = layout.read(rest)?;
                (rest, sum) = (&rest[size..], sum + number);
            }
            decoding += start.elapsed();
            let wanted: u64 = (done..done + MESSAGES).sum();
            if sum != wanted {
                return Err(format!("what was written adds up to {wanted}, what was read to {sum}").into());
            }
            done += MESSAGES;
        }
        Ok::<_, Error>(())
    });
    result?;
    let each = |took: Duration| took.as_nanos() as f64 / done as f64;
    let details = vec![("encode_ns", each(encoding)), ("decode_ns", each(decoding)), ("bytes", block.len() as f64 / MESSAGES as f64)];
    Ok(Run { details, allocations: Some(allocated as f64 / done as f64), ..Run::figure(each(encoding + decoding)) })
}

/// What travels between nodes.
struct Fixed;

impl Layout for Fixed {
    #[inline]
    fn write(&mut self, i: u64, payload: &[u8; PAYLOAD_BYTES], out: &mut Vec<u8>) -> Result<(), Error> {
        let shard = ShardKey { ty: TypeId(TYPE), shard: ShardId(SHARD) };
        let message = Message { shard, tag: Epoch::ZERO.next(), ask: None, key: &i.to_le_bytes(), payload };
        encode_message(&message, context(), FRAME_MAX, out)?;
        Ok(())
    }

    #[inline]
    fn read(&mut self, bytes: &[u8]) -> Result<(usize, u64), Error> {
        let Cut::Frame(size) = cut(bytes, FRAME_MAX)? else { return Err("the block ends within a frame".into()) };
        let message = message_in(&bytes[..size], context()).ok_or("not the frame of a message")?;
        black_box((message.shard, message.tag, message.payload));
        Ok((size, u64::from_le_bytes(message.key.try_into()?)))
    }
}

/// What prost makes of the same fields.
struct Prost;

impl Layout for Prost {
    #[inline]
    fn write(&mut self, i: u64, payload: &[u8; PAYLOAD_BYTES], out: &mut Vec<u8>) -> Result<(), Error> {
        Plain { kind: 3, version: 1, ty: TYPE, shard: SHARD, epoch: 1, key: &i.to_le_bytes(), payload, ..Plain::default() }.encode(out);
        Ok(())
    }

    #[inline]
    fn read(&mut self, bytes: &[u8]) -> Result<(usize, u64), Error> {
        let mut rest = bytes;
        let plain = Plain::decode(&mut rest)?;
        black_box((plain.ty, plain.shard, plain.epoch, plain.correlation, plain.payload));
        Ok((bytes.len() - rest.len(), u64::from_le_bytes(plain.key.try_into()?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn comes_back<L: Layout>(mut layout: L) {
        let mut block = vec![];
        for i in 0..MESSAGES {
            layout.write(i, &[9; PAYLOAD_BYTES], &mut block).unwrap();
        }
        assert!(block.len() <= BLOCK, "{} bytes", block.len());
        let (mut rest, mut i) = (&block[..], 0);
        while !rest.is_empty() {
            let (size, number) = layout.read(rest).unwrap();
            assert_eq!(number, i);
            (rest, i) = (&rest[size..], i + 1);
        }
        assert_eq!(i, MESSAGES);
        assert!(layout.read(&block[..30]).is_err());
    }

    #[test]
    fn both_layouts_read_what_they_wrote_and_fit_into_a_block() {
        comes_back(Fixed);
        comes_back(Prost);
    }
}
