//! The entity that is measured: 64-byte messages of a fixed layout, and a state that counts them.

use wingbeat::{CodecError, Cx, Entity, EntityType, Failure, HandedOver, Handoff, Message, ReplyTag, Request, Wire};

/// Bytes of payload in every message.
pub const PAYLOAD_BYTES: usize = 64;

/// What is sent: eight words, copied as they are.
#[derive(Clone, Debug)]
pub struct Payload(pub [u64; 8]);

/// Sent without waiting.
#[derive(Clone, Debug)]
pub struct Note(pub Payload);
/// Sent and answered with the same words.
#[derive(Clone, Debug)]
pub struct Echo(pub Payload);
/// Answered with the number of notes so far; behind them in order.
#[derive(Clone, Debug)]
pub struct Count;

/// A protocol whose entities count notes, written in one way or another.
pub trait Told: EntityType<Key = u64> {
    /// Sent without waiting.
    type Note: Message<Self>;
    /// Answered with the number of notes so far.
    type Count: Request<Self, Reply = u64>;

    /// A note that is full of this number.
    fn note(number: u64) -> Self::Note;
    /// The question.
    fn count() -> Self::Count;
}

impl Told for Bench {
    type Note = Note;
    type Count = Count;

    fn note(number: u64) -> Note {
        Note(Payload([number; 8]))
    }

    fn count() -> Count {
        Count
    }
}

/// The protocol of the measured entity.
#[derive(Debug)]
pub struct Bench;

/// Its messages.
pub enum BenchMsg {
    Note(Note),
    Echo(Echo, ReplyTag<Payload>),
    Count(Count, ReplyTag<u64>),
}

impl EntityType for Bench {
    const TYPE: &'static str = "bench";
    const MESSAGES: &'static [&'static str] = &["Note", "Echo", "Count"];
    type Key = u64;
    type Msg = BenchMsg;
}

impl Message<Bench> for BenchMsg {
    fn into_msg(self) -> BenchMsg {
        self
    }
}

impl Message<Bench> for Note {
    fn into_msg(self) -> BenchMsg {
        BenchMsg::Note(self)
    }
}

impl Message<Bench> for Echo {
    fn into_msg(self) -> BenchMsg {
        BenchMsg::Echo(self, ReplyTag::default())
    }
}

impl Request<Bench> for Echo {
    type Reply = Payload;
}

impl Message<Bench> for Count {
    fn into_msg(self) -> BenchMsg {
        BenchMsg::Count(self, ReplyTag::default())
    }
}

impl Request<Bench> for Count {
    type Reply = u64;
}

impl Payload {
    fn write(&self, out: &mut Vec<u8>) {
        let mut bytes = [0; PAYLOAD_BYTES];
        for (place, word) in bytes.chunks_exact_mut(8).zip(self.0) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        out.extend_from_slice(&bytes);
    }

    fn read(input: &mut &[u8]) -> Result<Self, CodecError> {
        let (head, rest) = input
            .split_at_checked(PAYLOAD_BYTES)
            .ok_or_else(|| CodecError::Decode(format!("needs {PAYLOAD_BYTES} bytes, got {}", input.len())))?;
        *input = rest;
        let mut words = [0; 8];
        for (word, bytes) in words.iter_mut().zip(head.chunks_exact(8)) {
            *word = u64::from_le_bytes(bytes.try_into().expect("chunks of 8 have 8 bytes"));
        }
        Ok(Self(words))
    }
}

impl Wire for Payload {
    const NAME: &'static str = "bench.payload";

    fn encode(&self, _: u16, out: &mut Vec<u8>) -> Result<(), CodecError> {
        self.write(out);
        Ok(())
    }

    fn decode(_: u16, input: &mut &[u8]) -> Result<Self, CodecError> {
        Self::read(input)
    }
}

impl Wire for BenchMsg {
    const NAME: &'static str = "bench";

    fn encode(&self, _: u16, out: &mut Vec<u8>) -> Result<(), CodecError> {
        match self {
            Self::Note(Note(p)) => {
                out.push(0);
                p.write(out);
            }
            Self::Echo(Echo(p), _) => {
                out.push(1);
                p.write(out);
            }
            Self::Count(..) => out.push(2),
        }
        Ok(())
    }

    fn decode(_: u16, input: &mut &[u8]) -> Result<Self, CodecError> {
        let (tag, rest) = input.split_first().ok_or_else(|| CodecError::Decode("empty message".into()))?;
        *input = rest;
        Ok(match tag {
            0 => Self::Note(Note(Payload::read(input)?)),
            1 => Self::Echo(Echo(Payload::read(input)?), ReplyTag::default()),
            2 => Self::Count(Count, ReplyTag::default()),
            n => return Err(CodecError::UnknownMessage { entity_type: "bench".into(), variant: u16::from(*n) }),
        })
    }
}

/// Counts what it gets. Its state moves with it.
#[derive(Default)]
pub struct BenchEntity {
    notes: u64,
    sum: u64,
}

/// Its state on the way to another node.
struct Moved([u64; 2]);

impl Wire for Moved {
    const NAME: &'static str = "bench.moved";

    fn encode(&self, _: u16, out: &mut Vec<u8>) -> Result<(), CodecError> {
        self.0.iter().for_each(|word| out.extend_from_slice(&word.to_le_bytes()));
        Ok(())
    }

    fn decode(_: u16, input: &mut &[u8]) -> Result<Self, CodecError> {
        let (head, rest) =
            input.split_first_chunk::<16>().ok_or_else(|| CodecError::Decode(format!("needs 16 bytes, got {}", input.len())))?;
        *input = rest;
        let word = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().expect("two words of 8 bytes are 16"));
        Ok(Self([word(0), word(8)]))
    }
}

impl Entity for BenchEntity {
    type Type = Bench;

    fn handoff(&mut self, cx: &mut Cx<'_, Self>) -> Result<Handoff, Failure> {
        cx.hand_over(&Moved([self.notes, self.sum]))
    }

    fn adopted(&mut self, state: HandedOver<'_>, _: &mut Cx<'_, Self>) -> Result<(), Failure> {
        let Moved([notes, sum]) = state.decode()?;
        *self = Self { notes, sum };
        Ok(())
    }

    // As its documentation says where nanoseconds count.
    #[inline]
    fn handle(&mut self, msg: BenchMsg, cx: &mut Cx<'_, Self>) {
        match msg {
            BenchMsg::Note(Note(p)) => {
                self.notes += 1;
                self.sum = self.sum.wrapping_add(p.0[0]);
            }
            BenchMsg::Echo(Echo(p), reply) => cx.reply(reply, p),
            BenchMsg::Count(Count, reply) => cx.reply(reply, self.notes),
        }
    }
}
