//! `bench codec`: the envelope of a 64-byte message, written and read, beside postcard with the same fields.

use std::{
    hint::black_box,
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};
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

/// The fields of the envelope, as postcard writes them.
#[derive(Serialize, Deserialize, PartialEq, Debug)]
struct Plain<'a> {
    kind: u8,
    flags: u8,
    version: u16,
    ty: u32,
    shard: u32,
    epoch: u64,
    correlation: u64,
    #[serde(with = "serde_bytes")]
    key: &'a [u8],
    #[serde(with = "serde_bytes")]
    payload: &'a [u8],
}

const TYPE: u32 = 0x9e37_79b9;
const SHARD: u32 = 77;

fn context() -> Context {
    Context { sender: NodeId::from_raw(7), now: Time::from_nanos(1_000_000) }
}

/// Fixed layout and postcard in turns.
pub fn measure(args: &BenchArgs, report: &mut Report) -> Result<(), Error> {
    report.figure("ns_per_envelope");
    report.rounds(
        "postcard: the same fields, borrowed",
        args.runs,
        || timed(args.window() / 4, write_postcard, read_postcard),
        || timed(args.window() / 2, write_fixed, read_fixed),
    )
}

type Write = fn(u64, &[u8; PAYLOAD_BYTES], &mut Vec<u8>) -> Result<(), Error>;
/// Bytes of the first message, and the sum of the numbers that were written into it.
type Read = fn(&[u8]) -> Result<(usize, u64), Error>;

/// Writes a block, reads it, and so on; fails if it does not read what was written.
fn timed(window: Duration, write: Write, read: Read) -> Result<Run, Error> {
    let (mut block, payload) = (Vec::with_capacity(BLOCK), [7u8; PAYLOAD_BYTES]);
    let (mut encoding, mut decoding, mut done) = (Duration::ZERO, Duration::ZERO, 0u64);
    let (result, allocated) = alloc::counted(|| {
        let began = Instant::now();
        while began.elapsed() < window {
            block.clear();
            let start = Instant::now();
            for i in done..done + MESSAGES {
                write(black_box(i), black_box(&payload), &mut block)?;
            }
            encoding += start.elapsed();
            let (start, mut rest, mut sum) = (Instant::now(), black_box(&block[..]), 0);
            while !rest.is_empty() {
                let (size, number) = read(rest)?;
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

fn write_fixed(i: u64, payload: &[u8; PAYLOAD_BYTES], out: &mut Vec<u8>) -> Result<(), Error> {
    let shard = ShardKey { ty: TypeId(TYPE), shard: ShardId(SHARD) };
    let message = Message { shard, tag: Epoch::ZERO.next(), ask: None, key: &i.to_le_bytes(), payload };
    encode_message(&message, context(), FRAME_MAX, out)?;
    Ok(())
}

fn read_fixed(bytes: &[u8]) -> Result<(usize, u64), Error> {
    let Cut::Frame(size) = cut(bytes, FRAME_MAX)? else { return Err("the block ends within a frame".into()) };
    let message = message_in(&bytes[..size], context()).ok_or("not the frame of a message")?;
    black_box((message.shard, message.tag, message.payload));
    Ok((size, u64::from_le_bytes(message.key.try_into()?)))
}

/// Length, then what postcard makes of the fields, as every stream of its messages has to have it.
fn write_postcard(i: u64, payload: &[u8; PAYLOAD_BYTES], out: &mut Vec<u8>) -> Result<(), Error> {
    let key = i.to_le_bytes();
    let plain = Plain { kind: 3, flags: 0, version: 1, ty: TYPE, shard: SHARD, epoch: 5, correlation: 0, key: &key, payload };
    let start = out.len();
    out.extend_from_slice(&[0; 4]);
    postcard::serialize_with_flavor(&plain, Append(out))?;
    let size = (out.len() - start - 4) as u32;
    out[start..start + 4].copy_from_slice(&size.to_le_bytes());
    Ok(())
}

/// Postcard's way to write behind what is there, without a copy.
struct Append<'a>(&'a mut Vec<u8>);

impl postcard::ser_flavors::Flavor for Append<'_> {
    type Output = ();

    fn try_extend(&mut self, bytes: &[u8]) -> postcard::Result<()> {
        self.0.extend_from_slice(bytes);
        Ok(())
    }

    fn try_push(&mut self, byte: u8) -> postcard::Result<()> {
        self.0.push(byte);
        Ok(())
    }

    fn finalize(self) -> postcard::Result<()> {
        Ok(())
    }
}

fn read_postcard(bytes: &[u8]) -> Result<(usize, u64), Error> {
    let size = u32::from_le_bytes(*bytes.first_chunk::<4>().ok_or("the block ends within a length")?) as usize;
    let plain: Plain<'_> = postcard::from_bytes(bytes.get(4..4 + size).ok_or("the block ends within a message")?)?;
    black_box((plain.ty, plain.shard, plain.epoch, plain.correlation, plain.payload));
    Ok((4 + size, u64::from_le_bytes(plain.key.try_into()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_layouts_read_what_they_wrote_and_fit_into_a_block() {
        for (write, read) in [(write_fixed as Write, read_fixed as Read), (write_postcard, read_postcard)] {
            let mut block = vec![];
            for i in 0..MESSAGES {
                write(i, &[9; PAYLOAD_BYTES], &mut block).unwrap();
            }
            assert!(block.len() <= BLOCK, "{} bytes", block.len());
            let (mut rest, mut i) = (&block[..], 0);
            while !rest.is_empty() {
                let (size, number) = read(rest).unwrap();
                assert_eq!(number, i);
                (rest, i) = (&rest[size..], i + 1);
            }
            assert_eq!(i, MESSAGES);
            assert!(read(&block[..30]).is_err());
        }
    }
}
