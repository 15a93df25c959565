//! The two contiguous buffers of a connection.

use std::{collections::TryReserveError, io};

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

/// Frames accepted for sending, each behind its length, in one piece.
#[derive(Debug, Default)]
pub struct Outbox {
    raw: Vec<u8>,
    /// Written up to here.
    head: usize,
    /// First byte of the frame that `head` is in, or `head` itself.
    frame: usize,
    /// Frames written whole since the session began, greeting included.
    written: u64,
    /// Most that it held when it was written since room was last given back.
    most: usize,
}

/// What is left of an outbox whose session ended.
#[derive(Debug, Default)]
pub struct Rest {
    /// Whole frames of which nothing was written.
    pub bytes: Vec<u8>,
    /// How many those are.
    pub frames: u64,
    /// Whether one frame was written in part.
    pub torn: bool,
}

impl Outbox {
    /// Bytes not yet written.
    pub fn len(&self) -> usize {
        self.raw.len() - self.head
    }

    /// Whether everything is written.
    pub fn is_empty(&self) -> bool {
        self.head == self.raw.len()
    }

    /// Where to append a frame.
    pub fn tail(&mut self) -> &mut Vec<u8> {
        &mut self.raw
    }

    /// Appends whole frames.
    pub fn append(&mut self, frames: &[u8]) {
        self.raw.extend_from_slice(frames);
    }

    /// Frames written whole.
    pub fn written(&self) -> u64 {
        self.written
    }

    /// Writes until all is written or the socket takes no more. Whether all is written.
    pub fn write(&mut self, mut write: impl FnMut(&[u8]) -> io::Result<usize>) -> io::Result<bool> {
        self.most = self.most.max(self.raw.len());
        while self.head < self.raw.len() {
            match write(&self.raw[self.head..]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => self.head += n,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        self.account();
        let done = self.is_empty();
        if done {
            self.raw.clear();
            (self.head, self.frame) = (0, 0);
        } else if self.frame > self.raw.len() / 2 {
            self.raw.drain(..self.frame);
            self.head -= self.frame;
            self.frame = 0;
        }
        Ok(done)
    }

    /// Whether it has more room than it keeps when it is seldom used.
    pub fn is_large(&self) -> bool {
        self.raw.capacity() > OUTBOX_BYTES
    }

    /// Gives back the room that was not needed since the last call, but for a little.
    pub fn settle(&mut self) {
        let most = self.most.max(self.raw.len());
        self.raw.shrink_to(room_for(most).max(OUTBOX_BYTES));
        self.most = self.raw.len();
    }

    /// Takes what a next session can carry.
    pub fn into_rest(self) -> Rest {
        let torn = self.head > self.frame;
        let first_whole = if torn { self.frame + frame_len(&self.raw[self.frame..]) } else { self.frame };
        let bytes = self.raw[first_whole..].to_vec();
        Rest { frames: count_frames(&bytes), bytes, torn }
    }

    /// As `into_rest`, for a session whose greeting was not written whole: that is no frame to carry.
    pub fn into_rest_without_first(self) -> Rest {
        let first = if self.raw.is_empty() { 0 } else { frame_len(&self.raw) };
        let bytes = self.raw[first..].to_vec();
        Rest { frames: count_frames(&bytes), bytes, torn: false }
    }

    /// Follows the boundaries up to what is written.
    fn account(&mut self) {
        while self.frame < self.head {
            let next = self.frame + frame_len(&self.raw[self.frame..]);
            if next > self.head {
                break;
            }
            self.frame = next;
            self.written += 1;
        }
    }
}

/// Length of the frame at the front of an outbox, as its prefix says.
fn frame_len(bytes: &[u8]) -> usize {
    let raw = bytes.first_chunk::<4>().expect("an outbox holds whole frames, each with a length of 4 bytes");
    u32::from_le_bytes(*raw) as usize + 4
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
    use super::*;

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
            assert!(outbox.write(|bytes| Ok(bytes.len())).unwrap());
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
        assert!(outbox.write(|bytes| Ok(bytes.len())).unwrap());
        outbox.settle();
        outbox.settle();
        assert!(!outbox.is_large() && outbox.raw.capacity() > 0);
    }

    #[test]
    fn an_outbox_tells_whole_frames_from_a_torn_one() {
        for cut in 0..=27 {
            let mut outbox = Outbox::default();
            for content in [&b"first"[..], b"second", b"the third"] {
                outbox.append(&frame(content));
            }
            let total = outbox.len();
            let mut room = cut.min(total);
            let done = outbox
                .write(|bytes| {
                    let n = bytes.len().min(room);
                    room -= n;
                    if n == 0 { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(n) }
                })
                .unwrap();
            assert_eq!(done, cut >= total);
            let written = outbox.written();
            let rest = outbox.into_rest();
            let ends = [9, 19, total];
            assert_eq!(written, ends.iter().filter(|end| **end <= cut).count() as u64, "cut at {cut}");
            assert_eq!(rest.torn, cut < total && cut != 0 && !ends.contains(&cut), "cut at {cut}");
            assert_eq!(written + u64::from(rest.torn) + rest.frames, 3, "cut at {cut}");
        }
    }
}
