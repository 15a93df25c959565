//! Framing of datagrams: header with the id of the key that seals it, who sends, then parts. A datagram is a hint, never more.

use std::time::Duration;

use super::{
    codec::{read_varint, varint},
    state::MEMBERS_MAX,
};
use crate::{
    NodeId,
    proto::wire::{Malformed, Reader, Writer},
};

const MAGIC: [u8; 2] = *b"wb";
const VERSION: u8 = 1;
/// Key id of an unsealed datagram.
const UNSEALED: u8 = 0;
/// Bytes before the first part: header, sender, cluster.
pub(crate) const ENVELOPE_BYTES: usize = 2 + 1 + 1 + 8 + 16 + 8;
/// Kind and length before each part's body, at most.
pub(crate) const PART_BYTES: usize = 4;
const WINDOW: u64 = 1024;
/// Room for what most datagrams carry: a beat, its reply, a status.
const SHORT_BYTES: usize = 96;

/// From whom, and which one.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct Envelope {
    /// Of the sender's datagrams; a sender has one life, so that it never falls back.
    pub(crate) counter: u64,
    pub(crate) sender: NodeId,
    /// Of the cluster's name and its formation.
    pub(crate) group: u64,
}

/// What a datagram is made of.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Part<'a> {
    /// A heartbeat; wants `BeatReply` with the same number. Of a sender in `doubt`, also `Heard`.
    Beat { seq: u64, doubt: bool },
    /// Of who holds the asker `lost`, it shows that the two reach each other and not that the asker is still a member.
    BeatReply { seq: u64, lost: bool },
    /// Digest of the sender's version, its own counter in it, digest of its seen set.
    Status { digest: u128, counter: u64, seen: u64 },
    /// What the receiver lacks, or says that it lacks.
    Delta(&'a [u8]),
    /// The sender's version is another one: its number for the answer, its digest, and its clock.
    Ask { ask: u32, digest: u128, clock: &'a [u8] },
    /// Who has seen the version, one bit per member from the given one on.
    Seen { digest: u128, first: usize, bitmap: &'a [u8] },
    /// The sender has seen the version.
    Mark { digest: u128 },
    /// The sender, a monitor of the subject, missed so many replies in a row.
    Hint { subject: NodeId, run: u8 },
    /// To a beat: from whom the sender, which is in no doubt itself, has such proof, and how old that is.
    Heard { seq: u64, members: &'a [u8] },
}

/// Writes a member and its age, for `Part::Heard`.
pub(crate) fn write_heard(w: &mut Writer, id: NodeId, age: Duration) {
    varint(w.u128(id.raw()), u64::try_from(age.as_micros()).unwrap_or(u64::MAX).saturating_add(1));
}

/// The members of `Part::Heard` with the most that their ages may be.
pub(crate) fn read_heard(bytes: &[u8]) -> Result<Vec<(NodeId, Duration)>, Malformed> {
    let mut r = Reader::new(bytes);
    let mut members = vec![];
    while r.left() > 0 {
        members.push((NodeId::from_raw(r.u128("heard")?), Duration::from_micros(read_varint(&mut r, "age")?)));
    }
    Ok(members)
}

/// Why a datagram was thrown away.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Bad {
    Truncated,
    Magic,
    Version,
    Key,
}

/// Starts a datagram.
pub(crate) fn open(envelope: &Envelope) -> Writer {
    let mut w = Writer(Vec::with_capacity(SHORT_BYTES));
    w.bytes(&MAGIC).u8(VERSION).u8(UNSEALED).u64(envelope.counter);
    w.u128(envelope.sender.raw()).u64(envelope.group);
    w
}

/// Reads what stands before the parts.
pub(crate) fn read(bytes: &[u8]) -> Result<(Envelope, Reader<'_>), Bad> {
    if bytes.len() < ENVELOPE_BYTES {
        return Err(if bytes.starts_with(&MAGIC) || bytes.len() < MAGIC.len() { Bad::Truncated } else { Bad::Magic });
    }
    let mut r = Reader::new(bytes);
    envelope(&mut r).unwrap_or(Err(Bad::Truncated)).map(|e| (e, r))
}

fn envelope(r: &mut Reader<'_>) -> Result<Result<Envelope, Bad>, Malformed> {
    if r.bytes("magic", MAGIC.len())? != MAGIC {
        return Ok(Err(Bad::Magic));
    }
    if r.u8("version")? != VERSION {
        return Ok(Err(Bad::Version));
    }
    if r.u8("key id")? != UNSEALED {
        return Ok(Err(Bad::Key));
    }
    let counter = r.u64("counter")?;
    let sender = NodeId::from_raw(r.u128("sender")?);
    Ok(Ok(Envelope { counter, sender, group: r.u64("group")? }))
}

impl<'a> Part<'a> {
    /// Appends it.
    pub(crate) fn write(&self, w: &mut Writer) {
        let at = w.0.len();
        // Kind and length; nearly all are shorter than 128 bytes, so that one byte does for it.
        w.bytes(&[0, 0]);
        let body = &mut *w;
        let kind: u8 = match *self {
            Self::Beat { seq, doubt } => {
                varint(body, seq);
                if doubt { 10 } else { 1 }
            }
            Self::BeatReply { seq, lost } => {
                varint(body, seq);
                if lost { 9 } else { 2 }
            }
            Self::Status { digest, counter, seen } => {
                varint(body.u128(digest).u64(seen), counter);
                3
            }
            Self::Delta(bytes) => {
                body.bytes(bytes);
                4
            }
            Self::Seen { digest, first, bitmap } => {
                varint(body.u128(digest), (first / 64) as u64);
                body.bytes(bitmap);
                5
            }
            Self::Mark { digest } => {
                body.u128(digest);
                6
            }
            Self::Hint { subject, run } => {
                body.u128(subject.raw()).u8(run);
                7
            }
            Self::Ask { ask, digest, clock } => {
                body.u32(ask).u128(digest).bytes(clock);
                8
            }
            Self::Heard { seq, members } => {
                varint(body, seq);
                body.bytes(members);
                11
            }
        };
        let len = w.0.len() - at - 2;
        w.0[at] = kind;
        if len < 0x80 {
            w.0[at + 1] = len as u8;
        } else {
            let mut long = Writer::default();
            varint(&mut long, len as u64);
            w.0.splice(at + 1..at + 2, long.0);
        }
    }

    /// The next part; `Ok(None)` for a kind that is not known here.
    pub(crate) fn read(r: &mut Reader<'a>) -> Result<Option<Self>, Malformed> {
        let kind = r.u8("part")?;
        let len = usize::try_from(read_varint(r, "part length")?).unwrap_or(usize::MAX);
        let mut b = Reader::new(r.bytes("part body", len)?);
        let part = match kind {
            1 | 10 => Self::Beat { seq: read_varint(&mut b, "beat")?, doubt: kind == 10 },
            2 | 9 => Self::BeatReply { seq: read_varint(&mut b, "beat reply")?, lost: kind == 9 },
            3 => Self::Status { digest: b.u128("digest")?, seen: b.u64("seen")?, counter: read_varint(&mut b, "counter")? },
            4 => Self::Delta(b.rest()),
            5 => {
                let (digest, first) = (b.u128("digest")?, read_varint(&mut b, "first")?);
                let max = MEMBERS_MAX as u64 / 64;
                if first > max {
                    return Err(Malformed::TooLarge { field: "first", value: first, max });
                }
                Self::Seen { digest, first: first as usize * 64, bitmap: b.rest() }
            }
            6 => Self::Mark { digest: b.u128("digest")? },
            8 => Self::Ask { ask: b.u32("ask")?, digest: b.u128("digest")?, clock: b.rest() },
            7 => Self::Hint { subject: NodeId::from_raw(b.u128("subject")?), run: b.u8("run")? },
            11 => Self::Heard { seq: read_varint(&mut b, "heard")?, members: b.rest() },
            _ => return Ok(None),
        };
        b.end()?;
        Ok(Some(part))
    }
}

/// Which numbers of a sender have come: duplicates and what is older than the window are refused.
#[derive(Clone, Debug)]
pub(crate) struct ReplayWindow {
    highest: u64,
    bits: [u64; (WINDOW / 64) as usize],
}

impl ReplayWindow {
    /// The window of a sender of which nothing came yet.
    pub(crate) const fn new() -> Self {
        Self { highest: 0, bits: [0; (WINDOW / 64) as usize] }
    }

    /// Takes a number; false if it was there or is too old. Numbers begin with 1.
    pub(crate) fn take(&mut self, counter: u64) -> bool {
        if counter == 0 || counter.saturating_add(WINDOW) <= self.highest {
            return false;
        }
        if counter > self.highest {
            let mut skipped = (counter - self.highest).min(WINDOW);
            let mut n = counter - skipped + 1;
            // A word at a time: most senders are heard rarely, and have sent hundreds meanwhile.
            while skipped > 0 {
                let here = (64 - n % 64).min(skipped);
                *self.slot(n).0 &= !(u64::MAX >> (64 - here) << (n % 64));
                (n, skipped) = (n.wrapping_add(here), skipped - here);
            }
            self.highest = counter;
        }
        let (word, bit) = self.slot(counter);
        let fresh = *word & bit == 0;
        *word |= bit;
        fresh
    }

    fn slot(&mut self, n: u64) -> (&mut u64, u64) {
        let i = n % WINDOW;
        (&mut self.bits[(i / 64) as usize], 1 << (i % 64))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn envelope() -> Envelope {
        Envelope { counter: 2, sender: NodeId::from_raw(3), group: 4 }
    }

    #[test]
    fn parts_come_back() {
        let parts = [
            Part::Beat { seq: 1, doubt: false },
            Part::Beat { seq: 1, doubt: true },
            Part::BeatReply { seq: 2, lost: false },
            Part::BeatReply { seq: 300, lost: true },
            Part::Status { digest: 3, counter: 4, seen: 5 },
            Part::Delta(b"state"),
            Part::Ask { ask: 1, digest: 2, clock: b"clock" },
            Part::Seen { digest: 6, first: 128, bitmap: b"\x05" },
            Part::Mark { digest: 7 },
            Part::Hint { subject: NodeId::from_raw(8), run: 9 },
            Part::Heard { seq: 300, members: b"members" },
        ];
        let mut w = open(&envelope());
        assert_eq!(w.0.len(), ENVELOPE_BYTES);
        parts.iter().for_each(|p| p.write(&mut w));
        let (head, mut r) = read(&w.0).unwrap();
        assert_eq!(head, envelope());
        for part in parts {
            assert_eq!(Part::read(&mut r), Ok(Some(part)));
        }
        r.end().unwrap();
    }

    // failures: row 1
    #[test]
    fn what_is_wrong_with_a_header_is_told_apart() {
        let good = open(&envelope()).0;
        let with = |at: usize, to: u8| {
            let mut bytes = good.clone();
            bytes[at] = to;
            read(&bytes).err()
        };
        assert_eq!((with(0, 0), with(2, 9), with(3, 9)), (Some(Bad::Magic), Some(Bad::Version), Some(Bad::Key)));
        for cut in 0..good.len() {
            assert_eq!(read(&good[..cut]).err(), Some(Bad::Truncated), "cut at {cut}");
        }
    }

    #[test]
    fn an_unknown_kind_is_skipped() {
        let mut w = Writer::default();
        w.u8(200).u8(3).bytes(b"abc");
        Part::Beat { seq: 4, doubt: false }.write(&mut w);
        let mut r = Reader::new(&w.0);
        assert_eq!((Part::read(&mut r), Part::read(&mut r)), (Ok(None), Ok(Some(Part::Beat { seq: 4, doubt: false }))));
    }

    #[test]
    fn the_window_takes_each_number_once() {
        let mut window = ReplayWindow::new();
        assert!([1, 3, 2, 200].iter().all(|&n| window.take(n)));
        assert!(![0, 1, 2, 3, 200].iter().any(|&n| window.take(n)));
        assert!(window.take(5000) && window.take(4800) && !window.take(4800) && !window.take(3976) && window.take(3977));
    }

    proptest! {
        #[test]
        fn the_window_agrees_with_a_set(numbers in proptest::collection::vec(1u64..3000, 0..300)) {
            let (mut window, mut seen, mut highest) = (ReplayWindow::new(), std::collections::BTreeSet::new(), 0);
            for n in numbers {
                let expected = n + WINDOW > highest && seen.insert(n);
                highest = highest.max(n);
                prop_assert_eq!(window.take(n), expected);
            }
        }

        #[test]
        fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut whole = open(&envelope()).0;
            whole.extend_from_slice(&bytes);
            let (_, mut r) = read(&whole).unwrap();
            while r.left() > 0 && Part::read(&mut r).is_ok() {}
            let _ = read(&bytes);
        }
    }
}
