//! `bench codec`: the envelope of a 64-byte message, written and read, beside prost with the same fields.

use std::{
    hint::black_box,
    time::{Duration, Instant},
};

use bytes::{Buf, BufMut};
use prost::{
    DecodeError, Message as _,
    encoding::{self, DecodeContext, WireType},
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
/// Largest frame.
const FRAME_MAX: usize = 1 << 20;

/// The fields of the envelope, as a message of prost's: what its derive would write, without its macros.
#[derive(Clone, Default, PartialEq, Debug)]
struct Plain {
    kind: u32,
    flags: u32,
    version: u32,
    ty: u32,
    shard: u32,
    epoch: u64,
    correlation: u64,
    key: Vec<u8>,
    payload: Vec<u8>,
}

/// The short fields, in the order of their numbers.
macro_rules! for_numbers {
    ($do:ident, $($rest:tt)*) => {
        $do!(uint32, 1, kind, $($rest)*);
        $do!(uint32, 2, flags, $($rest)*);
        $do!(uint32, 3, version, $($rest)*);
        $do!(fixed32, 4, ty, $($rest)*);
        $do!(uint32, 5, shard, $($rest)*);
        $do!(uint64, 6, epoch, $($rest)*);
        $do!(uint64, 7, correlation, $($rest)*);
    };
}

impl prost::Message for Plain {
    fn encode_raw(&self, out: &mut impl BufMut) {
        macro_rules! number {
            ($codec:ident, $tag:literal, $field:ident,) => {
                if self.$field != 0 {
                    encoding::$codec::encode($tag, &self.$field, out);
                }
            };
        }
        for_numbers!(number,);
        encoding::bytes::encode(8, &self.key, out);
        encoding::bytes::encode(9, &self.payload, out);
    }

    fn merge_field(&mut self, tag: u32, wire: WireType, input: &mut impl Buf, cx: DecodeContext) -> Result<(), DecodeError> {
        match tag {
            1 => encoding::uint32::merge(wire, &mut self.kind, input, cx),
            2 => encoding::uint32::merge(wire, &mut self.flags, input, cx),
            3 => encoding::uint32::merge(wire, &mut self.version, input, cx),
            4 => encoding::fixed32::merge(wire, &mut self.ty, input, cx),
            5 => encoding::uint32::merge(wire, &mut self.shard, input, cx),
            6 => encoding::uint64::merge(wire, &mut self.epoch, input, cx),
            7 => encoding::uint64::merge(wire, &mut self.correlation, input, cx),
            8 => encoding::bytes::merge(wire, &mut self.key, input, cx),
            9 => encoding::bytes::merge(wire, &mut self.payload, input, cx),
            _ => encoding::skip_field(wire, tag, input, cx),
        }
    }

    fn encoded_len(&self) -> usize {
        let mut len = encoding::bytes::encoded_len(8, &self.key) + encoding::bytes::encoded_len(9, &self.payload);
        macro_rules! number {
            ($codec:ident, $tag:literal, $field:ident,) => {
                if self.$field != 0 {
                    len += encoding::$codec::encoded_len($tag, &self.$field);
                }
            };
        }
        for_numbers!(number,);
        len
    }

    fn clear(&mut self) {
        let (mut key, mut payload) = (std::mem::take(&mut self.key), std::mem::take(&mut self.payload));
        key.clear();
        payload.clear();
        *self = Self { key, payload, ..Self::default() };
    }
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
        "prost: the same fields, in a message that is used again",
        args.runs(),
        || timed(args.window() / 4, &mut Prost::default()),
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

/// Length, then what prost makes of the fields, as every stream of its messages has to have it. One message is used again and again, so that nothing
/// is allocated.
#[derive(Default)]
struct Prost(Plain);

impl Layout for Prost {
    #[inline]
    fn write(&mut self, i: u64, payload: &[u8; PAYLOAD_BYTES], out: &mut Vec<u8>) -> Result<(), Error> {
        let Self(plain) = self;
        plain.clear();
        (plain.kind, plain.version, plain.ty, plain.shard, plain.epoch) = (3, 1, TYPE, SHARD, 1);
        plain.key.extend_from_slice(&i.to_le_bytes());
        plain.payload.extend_from_slice(payload);
        plain.encode_length_delimited(out)?;
        Ok(())
    }

    #[inline]
    fn read(&mut self, bytes: &[u8]) -> Result<(usize, u64), Error> {
        let (Self(plain), mut rest) = (self, bytes);
        plain.clear();
        plain.merge_length_delimited(&mut rest)?;
        black_box((plain.ty, plain.shard, plain.epoch, plain.correlation, &plain.payload));
        Ok((bytes.len() - rest.len(), u64::from_le_bytes(plain.key.as_slice().try_into()?)))
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
        comes_back(Prost::default());
    }
}
