//! The two contiguous buffers of a connection.

use std::{collections::TryReserveError, io, time::Duration};

use super::bulk::{Bulk, LARGE_BYTES, PART_BYTES};
use crate::{
    Time,
    proto::wire::{LinkFrame, encode_link, is_handoff, link_frame_in, shorten_ask},
};

/// Room that an outbox keeps, whatever it needed.
const OUTBOX_BYTES: usize = 64 << 10;
/// Room for one read at least.
const READ_BYTES_MIN: usize = 16 << 10;

/// Room in which a use of that many bytes does not make a buffer grow: one that is given just this stays as it is while it is used as before.
fn room_for(bytes: usize) -> usize {
    (bytes + 1).checked_next_power_of_two().unwrap_or(bytes)
}

/// Bytes read and not yet parsed, in one piece.
#[derive(Debug, Default)]
pub struct Inbox {
    /// Initialised as a whole; only `start..end` means something.
    raw: Vec<u8>,
    start: usize,
    end: usize,
    /// Most that was unread at once since room was last given back.
    most: usize,
    /// As if the system had no more memory.
    #[cfg(test)]
    pub starved: bool,
}

impl Inbox {
    /// What was read and not yet consumed.
    pub fn unread(&self) -> &[u8] {
        &self.raw[self.start..self.end]
    }

    /// How much that is.
    pub fn len(&self) -> usize {
        self.end - self.start
    }

    /// Whether there is nothing.
    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// The first `n` unread bytes were parsed.
    pub fn consume(&mut self, n: usize) {
        self.start += n;
        debug_assert!(self.start <= self.end, "parsed beyond what was read");
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Space to read into. The buffer holds `least` bytes, and grows only if those at its end do not suffice for a frame of `wanted` bytes:
    /// what a peer announces is made room for as it arrives, not before. An error if there is no memory for it: a peer must not be able to end
    /// the process.
    pub fn space(&mut self, least: usize, wanted: usize) -> Result<&mut [u8], TryReserveError> {
        if self.raw.len() < least {
            self.grow(least)?;
        }
        let free = self.raw.len() - self.end;
        if free < READ_BYTES_MIN.min(self.raw.len()) && self.start > 0 {
            self.raw.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        if self.end == self.raw.len() {
            let doubled = self.raw.len().saturating_mul(2).min(wanted.max(self.raw.len() + READ_BYTES_MIN));
            self.grow(doubled)?;
        }
        Ok(&mut self.raw[self.end..])
    }

    fn grow(&mut self, to: usize) -> Result<(), TryReserveError> {
        let more = to - self.raw.len();
        #[cfg(test)]
        let more = if self.starved { usize::MAX } else { more };
        self.raw.try_reserve_exact(more)?;
        self.raw.resize(to, 0);
        Ok(())
    }

    /// So many bytes were read into the space.
    pub fn filled(&mut self, n: usize) {
        self.end += n;
        self.most = self.most.max(self.len());
        debug_assert!(self.end <= self.raw.len(), "read beyond the space");
    }

    /// The room that it has.
    pub fn room(&self) -> usize {
        self.raw.len()
    }

    /// Gives back the room that was not needed since the last call, down to `least` bytes.
    pub fn settle(&mut self, least: usize) {
        let needed = room_for(self.most).max(least);
        if needed < self.raw.len() {
            self.raw.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
            self.raw.truncate(needed);
            self.raw.shrink_to_fit();
        }
        self.most = self.len();
    }
}

/// Frames accepted for sending: those that leave next in one piece, each behind its length, and what waits behind large ones.
#[derive(Debug, Default)]
pub struct Outbox {
    raw: Vec<u8>,
    /// An acknowledgement, which leaves with the next frame that begins, and how much of it has left.
    front: Vec<u8>,
    front_written: usize,
    bulk: Bulk,
    /// Bytes that have gone past `bulk` since something of that left.
    passed: usize,
    /// When it was written last.
    now: Time,
    /// Written up to here.
    head: usize,
    /// First byte of the frame that `head` is in, or `head` itself.
    frame: usize,
    /// Frames written whole since the session began, greeting included; those of the link itself do not count.
    written: u64,
    /// Most that it held when it was written since room was last given back.
    most: usize,
}

/// What is left of an outbox whose session ended.
#[derive(Debug, Default)]
pub struct Rest {
    /// Whole frames that the peer cannot have.
    pub bytes: Vec<u8>,
    /// How many those are.
    pub frames: u64,
    /// How many were written in part, or had left in parts and were not written to the end; those of hand-off lanes; and the one that is given up.
    pub lost: u64,
    /// A part of the first large one has left: it is carried once more.
    pub torn: bool,
    /// Size of the frame in the middle of which a second session has ended. Perhaps the peer ends them because of it.
    pub given_up: Option<usize>,
}

impl Outbox {
    /// Bytes not yet written.
    pub fn len(&self) -> usize {
        self.ready() + self.bulk.len()
    }

    /// Those of them that leave next.
    #[inline]
    pub fn ready(&self) -> usize {
        self.raw.len() - self.head + self.front.len() - self.front_written
    }

    /// What is compared with the bound: of what leaves next and what waits behind large frames, the larger.
    #[inline]
    pub fn waiting(&self) -> usize {
        self.ready().max(self.bulk.len())
    }

    /// Bytes that wait behind large frames.
    #[inline]
    pub fn behind(&self) -> usize {
        self.bulk.len()
    }

    /// What waits behind large frames.
    #[inline]
    pub fn bulk(&mut self) -> &mut Bulk {
        &mut self.bulk
    }

    /// Bytes of parts that were written and not acknowledged.
    pub fn under_way(&self) -> usize {
        self.bulk.under_way()
    }

    /// Whether everything is written.
    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends the frame that `encode` writes.
    #[inline]
    pub fn push<R, E>(&mut self, encode: impl FnOnce(&mut Vec<u8>) -> Result<R, E>) -> Result<R, E> {
        let begin = self.raw.len();
        let result = encode(&mut self.raw)?;
        if !self.bulk.lets_pass(&self.raw[begin..]) {
            self.put_back(begin);
        } else if self.bulk.len() > 0 {
            self.count_passed(self.raw.len() - begin);
        }
        Ok(result)
    }

    /// So many bytes go past what waits: of that as many follow, or it would wait for as long as others come.
    fn count_passed(&mut self, bytes: usize) {
        self.passed += bytes;
        while self.passed >= PART_BYTES {
            let before = self.raw.len();
            if !self.bulk.pop(self.now, &mut self.raw) {
                self.passed = PART_BYTES;
                return;
            }
            self.passed -= (self.raw.len() - before).min(self.passed);
        }
    }

    /// What stands from there on waits.
    fn put_back(&mut self, begin: usize) {
        let large = self.raw.len() - begin > LARGE_BYTES;
        let mut frame = if large { self.bulk.take_spare() } else { vec![] };
        if large && begin == 0 {
            std::mem::swap(&mut self.raw, &mut frame);
        } else {
            frame.extend_from_slice(&self.raw[begin..]);
            self.raw.truncate(begin);
        }
        self.bulk.push(frame);
    }

    /// Appends whole frames.
    pub fn append(&mut self, frames: &[u8]) {
        self.append_rest(frames, false);
    }

    /// Appends whole frames. `torn`: a session has ended in the middle of the first large one.
    pub fn append_rest(&mut self, mut frames: &[u8], mut torn: bool) {
        while !frames.is_empty() {
            let (frame, rest) = frames.split_at(frame_len(frames));
            if self.bulk.lets_pass(frame) {
                self.raw.extend_from_slice(frame);
                if self.bulk.len() > 0 {
                    self.count_passed(frame.len());
                }
            } else {
                self.bulk.push(frame.to_vec());
                if frame.len() > LARGE_BYTES && std::mem::take(&mut torn) {
                    self.bulk.tried_before();
                }
            }
            frames = rest;
        }
    }

    /// Whether an acknowledgement may be put here: the last one has not begun to leave, and the next says more.
    pub fn takes_acknowledgement(&self) -> bool {
        self.front_written == 0
    }

    /// Tells the peer that so many bytes of parts were taken in, before all that waits.
    pub fn acknowledge(&mut self, upto: u64) {
        self.front.clear();
        encode_link(LinkFrame::Taken(upto), &mut self.front);
    }

    /// Frames written whole.
    pub fn written(&self) -> u64 {
        self.written
    }

    /// Writes until nothing may leave or the socket takes no more. Whether the socket takes more.
    pub fn write(&mut self, now: Time, mut write: impl FnMut(&[u8]) -> io::Result<usize>) -> io::Result<bool> {
        self.now = now;
        loop {
            self.most = self.most.max(self.raw.len());
            while self.ready() > 0 {
                match write(self.first()) {
                    Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                    Ok(n) => self.wrote(n),
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                    Err(e) => return Err(e),
                }
            }
            if self.ready() > 0 {
                if self.frame > self.raw.len() / 2 {
                    self.raw.drain(..self.frame);
                    self.head -= self.frame;
                    self.frame = 0;
                }
                return Ok(false);
            }
            self.raw.clear();
            (self.head, self.frame) = (0, 0);
            while self.raw.len() < PART_BYTES && self.bulk.pop(now, &mut self.raw) {}
            if self.raw.is_empty() {
                return Ok(true);
            }
        }
    }

    /// Whether the acknowledgement is next: it does not stand in another frame.
    fn is_front_next(&self) -> bool {
        !self.front.is_empty() && (self.front_written > 0 || self.head == self.frame)
    }

    /// What is to be written next.
    fn first(&self) -> &[u8] {
        if self.is_front_next() {
            return &self.front[self.front_written..];
        }
        let end = if self.front.is_empty() { self.raw.len() } else { self.frame + frame_len(&self.raw[self.frame..]) };
        &self.raw[self.head..end]
    }

    /// So much of that was.
    fn wrote(&mut self, bytes: usize) {
        if !self.is_front_next() {
            self.head += bytes;
            return self.account();
        }
        self.front_written += bytes;
        if self.front_written == self.front.len() {
            self.front.clear();
            self.front_written = 0;
        }
    }

    /// Whether it has more room than it keeps when it is seldom used.
    pub fn is_large(&self) -> bool {
        self.raw.capacity().max(self.bulk.spare()) > OUTBOX_BYTES
    }

    /// Gives back the room that was not needed since the last call, but for a little.
    pub fn settle(&mut self) {
        self.bulk.settle();
        let most = self.most.max(self.raw.len());
        self.raw.shrink_to(room_for(most).max(OUTBOX_BYTES));
        self.most = self.raw.len();
    }

    /// Takes what a next session can carry; a greeting is nothing to carry.
    pub fn into_rest(self) -> Rest {
        let mut rest = Rest::default();
        let (mut frames, mut torn) = (&self.raw[self.frame..], self.head > self.frame);
        let mut greeting = self.written == 0;
        while !frames.is_empty() {
            let (frame, behind) = frames.split_at(frame_len(frames));
            match link_frame_in(frame) {
                _ if std::mem::take(&mut greeting) => {}
                // The peer lacks the end of the frame, which is not in `bulk` any more. Of another part, the frame is.
                Some(Ok(LinkFrame::Part { last: true, .. })) => rest.lost += 1,
                Some(_) => {}
                None if torn => rest.lost += 1,
                None => _ = rest.carry(frame),
            }
            (frames, torn) = (behind, false);
        }
        for (frame, tries) in self.bulk.into_frames() {
            if tries > 1 {
                rest.given_up = Some(frame.len());
                rest.lost += 1;
            } else {
                rest.torn |= rest.carry(&frame) && tries == 1;
            }
        }
        rest
    }

    /// Follows the boundaries up to what is written.
    fn account(&mut self) {
        while self.frame < self.head {
            let next = self.frame + frame_len(&self.raw[self.frame..]);
            if next > self.head {
                break;
            }
            self.written += u64::from(is_whole(&self.raw[self.frame..next]));
            self.frame = next;
        }
    }
}

impl Rest {
    /// Whether it is carried.
    fn carry(&mut self, frame: &[u8]) -> bool {
        let handoff = is_handoff(frame);
        if handoff {
            // Else the next session would get it twice, the one after that three times, as long as they end before it is written.
            self.lost += 1;
        } else {
            self.bytes.extend_from_slice(frame);
            self.frames += 1;
        }
        !handoff
    }
}

/// Whether the peer counts a frame when it has got this one.
fn is_whole(frame: &[u8]) -> bool {
    link_frame_in(frame).is_none_or(|frame| matches!(frame, Ok(LinkFrame::Part { last: true, .. })))
}

/// Length of the frame at the front of an outbox, as its prefix says.
fn frame_len(bytes: &[u8]) -> usize {
    let raw = bytes.first_chunk::<4>().expect("an outbox holds whole frames, each with a length of 4 bytes");
    u32::from_le_bytes(*raw) as usize + 4
}

/// Takes what they have waited from the time that is left to the asks in a run of whole frames.
pub fn shorten_asks(mut frames: &mut [u8], waited: Duration) {
    while !frames.is_empty() {
        let (frame, rest) = frames.split_at_mut(frame_len(frames));
        shorten_ask(frame, waited);
        frames = rest;
    }
}

/// Frames in a run of whole frames.
pub fn count_frames(mut bytes: &[u8]) -> u64 {
    let mut n = 0;
    while !bytes.is_empty() {
        bytes = &bytes[frame_len(bytes)..];
        n += 1;
    }
    n
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{
        Epoch, NodeId, ShardId, ShardKey, TypeId,
        net::bulk::Assembly,
        proto::{
            handoff::{Envelope, Forwarded, HandoffItem, Item, Mode, ReplyBody, TransferChunk},
            rng::Rng,
            wire::{Context, Frame, Order, encode, order_of},
        },
    };

    fn frame(content: &[u8]) -> Vec<u8> {
        [&(content.len() as u32).to_le_bytes()[..], content].concat()
    }

    #[test]
    fn an_inbox_keeps_what_is_not_parsed_over_compaction_and_growth() {
        let mut inbox = Inbox::default();
        let data: Vec<u8> = (0..100_000u32).map(|n| n as u8).collect();
        let (mut given, mut taken) = (0, 0);
        while taken < data.len() {
            let space = inbox.space(1024, 40_000).unwrap();
            let n = space.len().min(data.len() - given).min(700);
            space[..n].copy_from_slice(&data[given..given + n]);
            inbox.filled(n);
            given += n;
            if inbox.len() > 30_000 || given == data.len() {
                let n = inbox.len().min(29_000);
                assert_eq!(inbox.unread()[..n], data[taken..taken + n]);
                inbox.consume(n);
                taken += n;
            }
        }
        assert!(inbox.is_empty());
    }

    // failures: row 40
    #[test]
    fn an_inbox_without_memory_says_so_and_keeps_what_it_has() {
        let mut inbox = Inbox { starved: true, ..Inbox::default() };
        assert!(inbox.space(1024, 1 << 20).is_err());
        inbox.starved = false;
        let n = inbox.space(1024, 1 << 20).unwrap().len();
        inbox.filled(n);
        inbox.starved = true;
        assert!(inbox.space(1024, 1 << 20).is_err());
        assert_eq!(inbox.unread(), &[0; 1024]);
        inbox.consume(n);
        assert_eq!(inbox.space(1024, 1 << 20).unwrap().len(), n, "room that is there needs no memory");
    }

    #[test]
    fn an_inbox_keeps_the_room_that_it_uses_and_gives_back_what_it_does_not() {
        let (usual, wanted) = (64 << 10, 2 << 20);
        let mut inbox = Inbox::default();
        // A burst as large as the budget behind a part of a frame.
        let burst = |inbox: &mut Inbox, bytes: usize| {
            let mut left = bytes;
            while left > 0 {
                let n = inbox.space(usual, wanted).unwrap().len().min(left);
                inbox.filled(n);
                left -= n;
            }
            inbox.consume(bytes);
        };
        for bytes in [usual - 1, usual, usual + 1, 3 * usual, 900_000] {
            burst(&mut inbox, bytes);
            inbox.settle(usual);
            let room = inbox.room();
            for _ in 0..10 {
                burst(&mut inbox, bytes);
                assert_eq!(inbox.room(), room, "{bytes} bytes again make it grow");
                inbox.settle(usual);
                assert_eq!(inbox.room(), room, "{bytes} bytes again make it shrink");
            }
        }
        burst(&mut inbox, 1);
        inbox.settle(usual);
        assert_eq!((inbox.room(), inbox.raw.capacity()), (usual, usual));
        // What is unread stays as it is, wherever it stood.
        burst(&mut inbox, 900_000);
        inbox.settle(usual);
        inbox.space(usual, wanted).unwrap()[..8].copy_from_slice(b"consumed");
        inbox.filled(8);
        inbox.consume(3);
        inbox.settle(usual);
        assert_eq!((inbox.room(), inbox.unread()), (usual, &b"sumed"[..]));
    }

    #[test]
    fn an_outbox_keeps_the_room_that_it_uses_and_gives_back_what_it_does_not() {
        let mut outbox = Outbox::default();
        let burst = |outbox: &mut Outbox, frames: usize| {
            (0..frames).for_each(|_| outbox.append(&frame(&[7; 1000])));
            assert!(outbox.write(Time::ZERO, |bytes| Ok(bytes.len())).unwrap());
        };
        burst(&mut outbox, 1);
        assert!(!outbox.is_large());
        for frames in [70, 300, 5000] {
            burst(&mut outbox, frames);
            outbox.settle();
            let room = outbox.raw.capacity();
            for _ in 0..10 {
                burst(&mut outbox, frames);
                assert_eq!(outbox.raw.capacity(), room);
                outbox.settle();
                assert_eq!(outbox.raw.capacity(), room);
            }
        }
        // What waits for a socket that takes nothing needs its room.
        (0..1000).for_each(|_| outbox.append(&frame(&[7; 1000])));
        outbox.settle();
        outbox.settle();
        assert!(outbox.raw.capacity() >= outbox.len() && outbox.is_large());
        assert!(outbox.write(Time::ZERO, |bytes| Ok(bytes.len())).unwrap());
        outbox.settle();
        outbox.settle();
        assert!(!outbox.is_large() && outbox.raw.capacity() > 0);
    }

    #[test]
    fn an_outbox_tells_whole_frames_from_a_torn_one() {
        for cut in 0..=37 {
            let mut outbox = Outbox::default();
            for content in [&b"greets"[..], b"first", b"second", b"the third"] {
                outbox.append(&frame(content));
            }
            let total = outbox.len();
            let mut room = cut.min(total);
            let takes_more = outbox
                .write(Time::ZERO, |bytes| {
                    let n = bytes.len().min(room);
                    room -= n;
                    if n == 0 { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(n) }
                })
                .unwrap();
            assert_eq!(takes_more, cut >= total);
            let written = outbox.written();
            let rest = outbox.into_rest();
            let ends = [10, 19, 29, total];
            assert_eq!(written, ends.iter().filter(|end| **end <= cut).count() as u64, "cut at {cut}");
            assert_eq!(rest.lost, u64::from(cut > 10 && cut < total && !ends.contains(&cut)), "cut at {cut}");
            assert_eq!(written.saturating_sub(1) + rest.lost + rest.frames, 3, "cut at {cut}");
        }
    }

    #[test]
    fn what_each_session_is_given_anew_is_not_carried_to_the_next() {
        let handoff = |item| bytes_of(&Frame::Handoff { shard: shard(1), number: 1, item });
        let chunk = TransferChunk { epoch: Epoch(2), base: Epoch(1), last: true, bytes: Arc::new(vec![0; 2 * LARGE_BYTES]) };
        let fence = Forwarded { aim: Epoch(2), after: vec![], stream: NodeId::from_raw(1), item: Item::Fence { p: Epoch(1) } };
        let probe = HandoffItem::Probe { origin: NodeId::from_raw(1), route: 1, number: 1, aim: Epoch(2), after: vec![] };
        let ack = bytes_of(&Frame::HandoffAck { shard: shard(1), upto: 7 });
        let detour = Frame::Handoff { shard: shard(1), number: 1, item: probe.clone() };
        let detour = bytes_of(&Frame::Detour { from: NodeId::from_raw(1), to: NodeId::from_raw(2), frame: Box::new(detour) });
        let mut outbox = Outbox::default();
        outbox.append(&frame(b"greets"));
        outbox.append(&handoff(HandoffItem::Transfer(chunk)));
        outbox.append(&ack);
        outbox.append(&handoff(HandoffItem::Forwarded(fence)));
        outbox.append(&detour);
        outbox.append(&handoff(probe));
        let rest = outbox.into_rest();
        assert_eq!((rest.bytes, rest.frames, rest.lost), ([ack, detour].concat(), 2, 3));
    }

    #[test]
    fn of_a_large_frame_that_has_left_in_part_nothing_is_lost_but_with_its_end() {
        let reply = |bytes: usize| bytes_of(&Frame::Reply { correlation: 1, body: ReplyBody::Value(vec![1; bytes].into()) });
        let (large, small) = (reply(80_000), reply(10));
        let all = 10 + 3 * 32 + large.len() + 2 * small.len();
        let mut ever_lost = false;
        for cut in (10..all).step_by(7) {
            let mut outbox = Outbox::default();
            outbox.append(&frame(b"greets"));
            outbox.append(&large);
            outbox.append(&small);
            let (mut room, mut taken) = (cut, 0);
            loop {
                let takes_more = outbox.write(Time::ZERO, |bytes| {
                    let n = bytes.len().min(room);
                    room -= n;
                    if n == 0 { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(n) }
                });
                // As much as two parts is under way, then the rest.
                if !takes_more.unwrap() || outbox.is_empty() || taken > 0 {
                    break;
                }
                taken = 2 * (PART_BYTES - 32);
                outbox.bulk().taken(Time::ZERO, taken as u64).unwrap();
                outbox.append(&small);
            }
            let (written, rest) = (outbox.written(), outbox.into_rest());
            let known = if taken > 0 { 3 } else { 2 };
            assert_eq!(written - 1 + rest.lost + rest.frames, known, "cut at {cut}");
            assert!(rest.lost <= 1);
            ever_lost |= rest.lost == 1;
            assert_eq!(count_frames(&rest.bytes), rest.frames);
        }
        assert!(ever_lost);
    }

    fn bytes_of(frame: &Frame) -> Vec<u8> {
        let mut out = vec![];
        encode(frame, Context { sender: NodeId::from_raw(1), now: Time::ZERO }, 4 << 20, &mut out).unwrap();
        out
    }

    fn shard(number: u32) -> ShardKey {
        ShardKey { ty: TypeId(1), shard: ShardId(number) }
    }

    fn message(to: u32, number: u64, bytes: usize) -> Vec<u8> {
        let envelope = Envelope::new(shard(to), None, &number.to_le_bytes(), &vec![7; bytes]).unwrap();
        bytes_of(&Frame::Item { shard: shard(to), item: Item::Msg { tag: Epoch(1), mode: Mode::Settled, envelope } })
    }

    fn push(outbox: &mut Outbox, frame: &[u8]) {
        let pushed: Result<_, ()> = outbox.push(|out| {
            out.extend_from_slice(frame);
            Ok(())
        });
        pushed.unwrap();
    }

    /// A socket that takes so much.
    fn write(outbox: &mut Outbox, mut room: usize, wire: &mut Vec<u8>) {
        let result = outbox.write(Time::ZERO, |bytes| {
            let n = bytes.len().min(room);
            room -= n;
            wire.extend_from_slice(&bytes[..n]);
            if n == 0 { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(n) }
        });
        result.unwrap();
    }

    #[test]
    fn what_waits_has_its_share_of_a_link_that_is_always_full() {
        let mut outbox = Outbox::default();
        outbox.append(&frame(b"greets"));
        let small = message(2, 0, 1000);
        (0..1000).for_each(|_| push(&mut outbox, &small));
        push(&mut outbox, &message(1, 0, 70_000));
        let control = bytes_of(&Frame::HandoffAck { shard: shard(9), upto: 1 });
        push(&mut outbox, &control);
        let mut sent = 0;
        while outbox.behind() > 0 {
            assert!(sent < 4 << 20, "{} bytes wait still", outbox.behind());
            (0..70).for_each(|_| push(&mut outbox, &small));
            let mut wire = vec![];
            write(&mut outbox, 64 << 10, &mut wire);
            sent += wire.len();
            assert!(outbox.ready() > 64 << 10, "it is full all the time");
            let under_way = outbox.under_way();
            let upto = outbox.bulk().sent();
            if under_way > 0 {
                outbox.bulk().taken(Time::ZERO, upto).unwrap();
            }
        }
    }

    #[test]
    fn an_acknowledgement_leaves_before_all_that_has_not_begun_and_only_the_last() {
        for cut in 0..40 {
            let mut outbox = Outbox::default();
            outbox.append(&frame(b"greets"));
            outbox.append(&frame(b"a frame of some bytes"));
            outbox.append(&frame(b"another"));
            let mut wire = vec![];
            write(&mut outbox, cut, &mut wire);
            for upto in [5, 6] {
                assert!(outbox.takes_acknowledgement());
                outbox.acknowledge(upto);
            }
            for _ in 0..100 {
                write(&mut outbox, 7, &mut wire);
            }
            assert!(outbox.is_empty() && outbox.takes_acknowledgement());
            let mut acknowledgement = vec![];
            encode_link(LinkFrame::Taken(6), &mut acknowledgement);
            let at = [0, 10, 35, 46].into_iter().find(|at| *at >= cut).unwrap();
            assert_eq!(wire[at..at + 32], acknowledgement, "cut at {cut}");
            assert_eq!((wire.len(), outbox.written()), (46 + 32, 3));
        }
    }

    #[test]
    fn over_sessions_that_end_anywhere_each_frame_arrives_in_order_or_is_counted() {
        let mut ended = 0;
        for seed in 0..30 {
            let mut rng = Rng::new(seed);
            let fresh = || {
                let mut outbox = Outbox::default();
                outbox.append(&frame(b"greets"));
                outbox
            };
            let (mut outbox, mut assembly, mut wire, mut greeting) = (fresh(), Assembly::default(), vec![], true);
            let (mut sent, mut arrived): (Vec<Vec<u8>>, Vec<Vec<u8>>) = (vec![], vec![]);
            let (mut lost, mut before) = (0, 0);
            for step in 0..1500 {
                for number in 0..if step < 500 { rng.below(4) } else { 0 } {
                    let (size, number) = ([10, 1_000, 40_000, 65_600, 200_000][rng.below(5) as usize], step * 4 + number);
                    let to = rng.below(4) as u32;
                    let frame = match rng.below(8) {
                        0 => bytes_of(&Frame::Reply { correlation: number, body: ReplyBody::Value(vec![1; size].into()) }),
                        1 => bytes_of(&Frame::Cast { ty: TypeId(2), topic: number, bytes: vec![1; size].into() }),
                        2 => bytes_of(&Frame::Item { shard: shard(to), item: Item::Fence { p: Epoch(number) } }),
                        _ => message(to, number, size),
                    };
                    push(&mut outbox, &frame);
                    sent.push(frame);
                }
                write(&mut outbox, rng.below(150_000) as usize, &mut wire);
                let ends = step < 500 && rng.below(60) == 0;
                if ends || rng.below(3) > 0 {
                    while wire.len() >= 4 && wire.len() >= frame_len(&wire) {
                        let frame: Vec<u8> = wire.drain(..frame_len(&wire)).collect();
                        match link_frame_in(&frame) {
                            _ if std::mem::take(&mut greeting) => {}
                            Some(Ok(LinkFrame::Part { bytes, last })) => {
                                arrived.extend(assembly.add(bytes, last, 4 << 20).unwrap().map(<[u8]>::to_vec));
                            }
                            Some(other) => panic!("{other:?}"),
                            None => arrived.push(frame),
                        }
                    }
                    if let Some(upto) = assembly.news() {
                        outbox.bulk().taken(Time::ZERO, upto).unwrap();
                    }
                }
                if ends {
                    ended += 1;
                    assert_eq!(outbox.written().saturating_sub(1), (arrived.len() - before) as u64, "seed {seed}");
                    let rest = std::mem::take(&mut outbox).into_rest();
                    lost += rest.lost;
                    assert_eq!(arrived.len() as u64 + lost + rest.frames, sent.len() as u64, "seed {seed}");
                    outbox = fresh();
                    outbox.append_rest(&rest.bytes, rest.torn);
                    (assembly, wire, greeting, before) = (Assembly::default(), vec![], true, arrived.len());
                }
            }
            assert!(outbox.is_empty() && arrived.len() as u64 + lost == sent.len() as u64, "seed {seed}");
            let of = |frames: &[Vec<u8>], holds: &dyn Fn(Order) -> bool| {
                frames.iter().filter(|frame| holds(order_of(frame))).cloned().collect::<Vec<_>>()
            };
            let in_order = |holds: &dyn Fn(Order) -> bool| {
                let all = of(&sent, holds);
                let mut all = all.iter();
                assert!(of(&arrived, holds).iter().all(|frame| all.any(|sent| sent == frame)), "seed {seed}");
            };
            for number in 0..4u64 {
                in_order(&|order| matches!(order, Order::Message(shard) | Order::Shard(shard) if shard == 1 | number << 32));
            }
            in_order(&|order| matches!(order, Order::Shard(_) | Order::Other));
        }
        assert!(ended > 100);
    }
}
