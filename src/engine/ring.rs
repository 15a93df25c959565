//! A bounded ring of bytes between one producer and one consumer.
//!
//! What travels are records: a header of eight bytes, then the payload, aligned to sixteen bytes, never split at the end of the ring. Both
//! ends keep a copy of where they last saw the other, so that a record costs no line of the other core's as long as there is room, and
//! records to take. Positions only grow; the place in the buffer is kept beside them.
//!
//! The producer *publishes*: what it has written is seen by the consumer in batches. In front of the first record of each stands how many bytes the batch
//! has, written last, and zero before. So a consumer that waits looks at the line in which the next record will stand, and has both with one way
//! between the cores. One that finds batch behind batch looks at the tail, which says how far all of them reach.
//!
//! The consumer *releases*: what it has read is given back in batches.
//!
//! A ring may *grow*, once. Of a busy one, the lines that the producer comes to are still in the cache of the consumer's core, which has just read them, and
//! each store waits until they have come from there. In one that is larger than that cache they have left it, however few records are under way. So a
//! producer that finds the consumer behind most of the time puts the reading end of a larger ring into this one, as its last record, and goes on there.
//! A ring that has little to carry stays small, and its lines near.
//!
//! Where the lines of the other core are far, each store to one waits for its whole way back. Records that the sender has in its own memory already, as
//! those of a batch, can be copied *past* the caches instead: the line is written whole, and nobody's copy of it is asked for. The consumer has it from
//! the memory then, one line behind the other, which a processor does well. Where the lines are near that is slower, so it is [measured](super::past).
//!
//! Checked by `loom/tests/ring.rs`.

use std::{
    cell::UnsafeCell,
    mem::{self, MaybeUninit},
    ptr::{self, NonNull},
    sync::{self, atomic},
};

use crossbeam::utils::CachePadded;

use super::sync::{Arc, AtomicU32, AtomicU64, Noted, Ordering, word};

/// Payloads are aligned to this, and records are multiples of it.
pub const ALIGN: usize = 16;
const HEADER: usize = 8;
/// Records longer than one part in so many are refused: the ring would have to be empty for them.
const SHARE_MAX: usize = 4;
/// Fills the end of the buffer where the next record does not fit.
const PAD: u32 = KIND_MASK;
/// The reading end of the ring in which the producer has gone on: the last record.
const NEXT: u32 = PAD - 1;
/// A producer goes on in a larger ring if it has found the consumer behind so much more often than not. It looks about once while a ring goes round.
const BEHIND: u32 = 8;
/// A record's length leaves the lowest bits free for its kind.
const KIND_MASK: u32 = ALIGN as u32 - 1;
/// How far ahead of its records a producer asks for the lines that it will write to: four messages of 64 bytes.
const AHEAD: usize = 512;
/// A consumer that has found so many batches, one behind the other, looks at the tail for the next ones.
const ROW: u32 = 2;
/// Bytes of a line of the cache.
const LINE: usize = 64;
/// What is written past the caches at once at least.
pub const WORD: usize = size_of::<u64>();

#[repr(C, align(64))]
struct Line(UnsafeCell<MaybeUninit<[u8; LINE]>>);

/// What stands in front of each payload, behind the word by which a batch is shown: the bytes of the record, header and rounding included, and its kind.
#[derive(Copy, Clone)]
struct Header {
    len: u32,
    kind: u32,
}

struct Head {
    /// Bytes given back.
    at: AtomicU64,
    /// Records given back. Written before `at`, so that who sees `at` sees at least as many.
    items: AtomicU32,
}

/// Where the records stand. Each end has a copy at hand, so that finding a place takes no look at anything else.
#[derive(Clone)]
struct Buffer {
    lines: NonNull<Line>,
    /// Bytes for records: a line less than there are, because records begin in the middle of a unit, so that payloads begin with one.
    capacity: usize,
    noted: Noted,
}

/// Whose end is the buffer's, also if what it holds panics as it is dropped.
struct Owned(Buffer);

impl Drop for Owned {
    fn drop(&mut self) {
        let lines = NonNull::slice_from_raw_parts(self.0.lines, self.0.capacity / LINE + 1);
        // SAFETY: these are the lines that `Buffer::new` has leaked, and both ends are gone, with their copies.
        drop(unsafe { Box::from_raw(lines.as_ptr()) });
    }
}

struct Shared {
    buffer: Owned,
    /// Bytes published. Written behind the word of the batch, so it may be behind what that says.
    tail: CachePadded<AtomicU64>,
    head: CachePadded<Head>,
    /// Drops a payload of that kind.
    discard: unsafe fn(u32, *mut u8),
    growth: Growth,
    /// Not zero: the consumer wants it to stay as it is.
    stays: AtomicU32,
}

/// How many rings more may grow. A bound, nothing that memory is handed over by: no order is needed.
pub type Left = sync::Arc<atomic::AtomicU32>;

fn take_one(left: &Left) -> bool {
    left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok()
}

/// What a ring is.
enum Growth {
    /// As large as it will ever be.
    Fixed,
    /// One that may become as large as that.
    May { bytes: usize, left: Left },
    /// What became of one, for as long as it lives.
    Has { left: Left },
}

// SAFETY: the bytes between `head` and what was published belong to the consumer, all others to the producer, but for the word where the next batch begins,
// which both know as an atomic; each end is moved by one thread at a time, as whatever moves it takes it `&mut`, and hands bytes over by a releasing store that
// the other end acquires. What the payloads are made of is `Send`: whoever writes them vouches for that (`Producer::write`).
unsafe impl Send for Buffer {}
// SAFETY: as above.
unsafe impl Sync for Buffer {}

/// The bytes of a record with so long a payload.
pub const fn record(payload: usize) -> usize {
    (HEADER + payload).next_multiple_of(ALIGN)
}

/// A ring of at least so many bytes. `discard` is called for records that nobody took, when both ends are gone.
///
/// # Safety
/// `discard` must be right for every kind and payload that is ever written.
pub unsafe fn ring(bytes: usize, discard: unsafe fn(u32, *mut u8)) -> (Producer, Consumer) {
    // SAFETY: the caller's promise.
    unsafe { ends(bytes, discard, Growth::Fixed) }
}

/// As [`ring`], of one that may grow to so many bytes, once. Of all that share `left` so many can have grown at a time.
///
/// # Safety
/// As that of [`ring`].
pub unsafe fn growing(bytes: usize, to: usize, left: Left, discard: unsafe fn(u32, *mut u8)) -> (Producer, Consumer) {
    // SAFETY: the caller's promise.
    unsafe { ends(bytes, discard, Growth::May { bytes: to, left }) }
}

/// # Safety
/// As that of [`ring`].
unsafe fn ends(bytes: usize, discard: unsafe fn(u32, *mut u8), growth: Growth) -> (Producer, Consumer) {
    let buffer = Buffer::new(bytes.div_ceil(LINE).max(8));
    // SAFETY: the whole buffer is the producer's.
    unsafe { buffer.not_yet(0) };
    let shared = Arc::new(Shared {
        buffer: Owned(buffer.clone()),
        tail: CachePadded::new(AtomicU64::new(0)),
        head: CachePadded::new(Head { at: AtomicU64::new(0), items: AtomicU32::new(0) }),
        discard,
        growth,
        stays: AtomicU32::new(0),
    });
    let producer = Producer {
        longest: buffer.capacity / SHARE_MAX,
        at: 0,
        offset: 0,
        published: 0,
        batch: 0,
        items: 0,
        seen: 0,
        taken: 0,
        behind: 0,
        before: None,
        past: false,
        buffer: buffer.clone(),
        shared: shared.clone(),
    };
    let release_each = (buffer.capacity / 4) as u64;
    let consumer =
        Consumer { at: 0, offset: 0, items: 0, released: 0, release_behind: release_each, release_each, seen: 0, row: 0, buffer, shared };
    (producer, consumer)
}

impl Buffer {
    /// For records of so many lines.
    fn new(lines: usize) -> Self {
        let all: Box<[Line]> = (0..=lines).map(|_| Line(UnsafeCell::new(MaybeUninit::uninit()))).collect();
        let lines = NonNull::from(Box::leak(all));
        assert!(u32::try_from(lines.len() * LINE).is_ok(), "a lane of 2^20 items has 128 MiB");
        Self { lines: lines.cast(), capacity: (lines.len() - 1) * LINE, noted: Noted::new(lines.len() * LINE) }
    }

    #[inline]
    fn place(&self, offset: usize) -> *mut u8 {
        debug_assert!(offset <= self.capacity);
        // SAFETY: callers pass offsets up to the capacity; the lines are interior mutable and stand in one piece, behind this one pointer.
        unsafe { self.lines.as_ptr().cast::<u8>().add(ALIGN - HEADER + offset) }
    }

    /// # Safety
    /// A record that is the caller's begins there.
    #[inline]
    unsafe fn header(&self, offset: usize) -> Header {
        self.noted.read(offset, HEADER);
        // SAFETY: the caller's record begins with a header: the word, and behind it what is read here.
        let what = unsafe { self.place(offset).cast::<u32>().add(1).read() };
        Header { len: what & !KIND_MASK, kind: what & KIND_MASK }
    }

    /// # Safety
    /// The header is the caller's to write.
    #[inline]
    unsafe fn set_header(&self, offset: usize, Header { len, kind }: Header) {
        debug_assert!(len & KIND_MASK == 0 && kind <= PAD);
        // SAFETY: the caller's; the word in front is not touched.
        unsafe { self.place(offset).cast::<u32>().add(1).write(len | kind) };
    }

    /// The word of the batch that begins there: its bytes, or zero.
    ///
    /// # Safety
    /// The caller is the consumer, which stands there, or the producer, which has come there and has not shown what is before.
    #[inline]
    unsafe fn batch(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: a header begins there, aligned to eight, and of those who may look at it now nobody uses the word otherwise: what was there before the ring
        // went round was released by the consumer before the producer came there, and the consumer comes there behind the batch before, which the producer
        // shows only when this word is zero.
        unsafe { word(&self.noted, offset, self.place(offset)) }
    }

    /// Nothing is shown there yet.
    ///
    /// # Safety
    /// The caller is the producer, which has come there and has not shown what is before, or nobody else has the buffer yet.
    #[inline]
    unsafe fn not_yet(&self, offset: usize) {
        self.noted.write(offset, size_of::<u32>());
        // SAFETY: the caller's promise.
        unsafe { self.batch(offset) }.store(0, Ordering::Relaxed);
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let buffer = &self.buffer.0;
        let (mut at, tail) = (self.head.at.load(Ordering::Acquire), self.tail.load(Ordering::Acquire));
        while at < tail {
            let offset = (at % buffer.capacity as u64) as usize;
            // SAFETY: both ends are gone, so all that was published and not released is ours, record by record.
            let header = unsafe { buffer.header(offset) };
            let payload = buffer.place(offset + HEADER);
            if header.kind != PAD {
                buffer.noted.read(offset, header.len as usize);
                // SAFETY: as above; nobody uses the payload afterwards.
                match header.kind {
                    NEXT => drop(unsafe { payload.cast::<Consumer>().read() }),
                    kind => unsafe { (self.discard)(kind, payload) },
                }
            }
            at += u64::from(header.len);
        }
        if let Growth::Has { left } = &self.growth {
            left.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The writing end.
pub struct Producer {
    /// Bytes of the longest record that can be written.
    longest: usize,
    at: u64,
    offset: usize,
    published: u64,
    /// Where the batch begins that is being written.
    batch: usize,
    items: u32,
    /// Bytes that the consumer was last seen to have given back,
    seen: u64,
    /// and records.
    taken: u32,
    /// Goes up by one when the consumer is looked at and was behind, and down by two when it was not.
    behind: u32,
    /// The ring that this has grown out of, until the consumer has come from there.
    before: Option<Arc<Shared>>,
    /// Something was written past the caches, and no fence has come since.
    past: bool,
    buffer: Buffer,
    shared: Arc<Shared>,
}

impl Producer {
    /// Whether `bytes` of records, the longest of them `longest`, fit and leave `spare` bytes, and `items` of them are not more than `most` in
    /// the ring then.
    #[inline]
    pub fn has_room(&mut self, bytes: usize, longest: usize, spare: usize, items: u32, most: u32) -> bool {
        // In the worst case the longest one does not fit at the end of the buffer by one unit. Behind all of them is the word of the next batch.
        let need = (bytes + longest + spare + ALIGN) as u64;
        self.fits(need, items, most) || {
            self.look();
            self.fits(need, items, most)
        }
    }

    /// Whether there is room for so many bytes, and `items` more are not more than `most`, by what the consumer was last seen to have given back.
    #[inline(always)]
    fn fits(&self, need: u64, items: u32, most: u32) -> bool {
        let free = self.buffer.capacity as u64 - (self.at - self.seen);
        need <= free && u64::from(self.items.wrapping_sub(self.taken)) + u64::from(items) <= u64::from(most)
    }

    /// Where the consumer is now.
    #[inline(never)]
    fn look(&mut self) {
        let head = &self.shared.head;
        let at = head.at.load(Ordering::Acquire);
        if at != self.seen {
            self.behind = if at < self.published { self.behind + 1 } else { self.behind.saturating_sub(2) };
        }
        let mut items = head.items.load(Ordering::Relaxed);
        if at > 0 {
            self.before = None;
        } else if let Some(before) = &self.before {
            // It has come over if more is given back here than there, and has not if less.
            let there = before.head.items.load(Ordering::Acquire);
            items = if items.wrapping_sub(there).cast_signed() > 0 { items } else { there };
        }
        (self.seen, self.taken) = (at, items);
    }

    /// Comes to a place where a record of so many bytes fits, if `spare` bytes are left then and no more than `most` records are in the ring. False if not:
    /// then nothing has changed.
    #[inline(never)]
    fn make_room(&mut self, len: usize, spare: usize, most: u32) -> bool {
        let has_room = self.come_to(len, spare, most);
        // Now that there is room, as a rule: a ring without any cannot say where it goes on.
        if has_room && self.behind >= BEHIND {
            self.grow();
            return self.come_to(len, spare, most);
        }
        has_room
    }

    /// As [`make_room`](Self::make_room), in this ring.
    fn come_to(&mut self, len: usize, spare: usize, most: u32) -> bool {
        let (offset, left) = (self.offset, self.buffer.capacity - self.offset);
        let pad = if len > left { left } else { 0 };
        if len > self.longest || !self.has_room(len + pad, 0, spare, 1, most) {
            return false;
        }
        if pad > 0 {
            self.buffer.noted.write(offset, HEADER);
            // SAFETY: the rest of the buffer is free, as was just seen, and at least one unit long, since a record that reached its end would have
            // set the offset to zero.
            unsafe { self.buffer.set_header(offset, Header { len: left as u32, kind: PAD }) };
            self.at += left as u64;
            self.offset = 0;
        }
        true
    }

    /// Goes on in a larger ring, if this one may grow, and has room to say so: whether it does. Done by itself where the consumer is behind most of the time.
    #[cold]
    pub fn grow(&mut self) -> bool {
        const { assert!(align_of::<Consumer>() <= ALIGN) };
        let (shared, len) = (self.shared.clone(), record(size_of::<Consumer>()));
        let may_grow = match &shared.growth {
            Growth::May { bytes, left } if shared.stays.load(Ordering::Relaxed) == 0 => Some((*bytes, left)),
            _ => None,
        };
        if may_grow.is_some() && !self.come_to(len, 0, u32::MAX) {
            return false;
        }
        self.behind = 0;
        let Some((bytes, left)) = may_grow.filter(|(_, left)| take_one(left)) else { return false };
        // SAFETY: what is written there is what is written here.
        let (mut next, consumer) = unsafe { ends(bytes, shared.discard, Growth::Has { left: left.clone() }) };
        // Records that are under way here count there: their bound is one for both.
        (next.items, next.taken, next.before) = (self.items, self.taken, Some(shared.clone()));
        next.shared.head.items.store(self.taken, Ordering::Relaxed);
        let offset = self.offset;
        self.buffer.noted.write(offset, len);
        // SAFETY: `len` bytes are free there, as was just seen, and do not reach beyond the end. The consumer takes it, or `Shared` drops it.
        unsafe { self.buffer.place(offset + HEADER).cast::<Consumer>().write(consumer) };
        // SAFETY: the payload was written.
        unsafe { self.add(NEXT, len) };
        self.publish();
        *self = next;
        true
    }

    /// Appends a record that `fill` writes, if `spare` bytes are left then and no more than `most` records are in the ring; false if not, and
    /// then `fill` was not called. Not seen by the consumer before [`publish`](Self::publish).
    ///
    /// # Safety
    /// `fill` gets `payload` bytes, aligned to [`ALIGN`], that hold nothing, and must make of them what the ring's `discard` and its consumer expect
    /// for `kind`. It must be `Send`.
    #[inline(always)]
    pub unsafe fn write(&mut self, kind: u32, payload: usize, spare: usize, most: u32, fill: impl FnOnce(*mut u8)) -> bool {
        let Some(place) = self.begin(payload, spare, most) else { return false };
        fill(place);
        // SAFETY: begun just now, and filled by the caller.
        unsafe { self.append(kind, payload) };
        true
    }

    /// Where the payload is to be written that is [appended](Self::append) next: the first half of [`write`](Self::write), which is for who has one place to
    /// write at. `None`: there is no room.
    #[inline(always)]
    pub fn begin(&mut self, payload: usize, spare: usize, most: u32) -> Option<*mut u8> {
        let place = self.reach(payload, spare, most)?;
        // Two lines, as most messages have, or three, as requests do, that will be written soon. They are in the consumer's cache, and a store to one of those
        // would wait for the way between the cores, and all stores behind it as well. Behind the end of the buffer that is for nothing, as it is where the
        // ring is all but full.
        (0..2).for_each(|line| fetch_to_write(place.wrapping_add(AHEAD + line * LINE)));
        if record(payload) > 2 * LINE {
            fetch_to_write(place.wrapping_add(AHEAD + 2 * LINE));
        }
        // SAFETY: the whole record lies within the buffer, and its payload stands behind its header.
        Some(unsafe { place.add(HEADER) })
    }

    /// Where a record with such a payload can be written, header first. `None`: there is no room.
    #[inline(always)]
    fn reach(&mut self, payload: usize, spare: usize, most: u32) -> Option<*mut u8> {
        let len = record(payload);
        let stands_here = len <= self.longest && len <= self.buffer.capacity - self.offset;
        let has_room = stands_here && self.fits((len + spare + ALIGN) as u64, 1, most);
        if !has_room && !self.make_room(len, spare, most) {
            return None;
        }
        // `len` bytes are free there, and do not reach beyond the end.
        self.buffer.noted.write(self.offset, len);
        Some(self.buffer.place(self.offset))
    }

    /// As [`write`](Self::write), past the caches, with `copy` for `fill`, which is told whether to go that way: what a batch begins with goes through them, as
    /// both ends look at the word that stands in front of it.
    ///
    /// # Safety
    /// As [`write`](Self::write). If it is told to go past the caches `copy` writes by [`word_past`] and [`copy_past`] alone, `payload` rounded up to whole
    /// words, which are its own. It is this thread that goes on with the producer until [`settle`](Self::settle) or [`publish`](Self::publish).
    #[inline(always)]
    pub unsafe fn write_past(&mut self, kind: u32, payload: usize, spare: usize, most: u32, copy: impl FnOnce(*mut u8, bool)) -> bool {
        // So that what is left behind the payload is no or one word, which is written as well: lines are written whole.
        const { assert!(HEADER == WORD && ALIGN == 2 * WORD) };
        debug_assert!(kind < NEXT);
        let Some(place) = self.reach(payload, spare, most) else { return false };
        let (past, offset) = (self.unpublished() > 0, self.offset);
        let (len, end) = (record(payload), HEADER + payload.next_multiple_of(WORD));
        // SAFETY: `len` bytes are free there. Where no batch begins nobody looks at the word of one.
        unsafe {
            copy(place.add(HEADER), past);
            if !past {
                self.append(kind, payload);
                return true;
            }
            word_past(place, [0, len as u32 | kind]);
            if end < len {
                word_past(place.add(end), [0, 0]);
            }
        }
        self.past = true;
        self.go_by(offset, len);
        self.items = self.items.wrapping_add(1);
        true
    }

    /// What was written past the caches waits no more in front of them.
    #[inline]
    pub fn settle(&mut self) {
        if self.past {
            self.past = false;
            fence_past();
            #[cfg(test)]
            SETTLED.set(SETTLED.get() + 1);
        }
    }

    /// Appends the record whose payload was written.
    ///
    /// # Safety
    /// It was [begun](Self::begin) with this length right before, and there stands now what [`write`](Self::write) wants of its `fill`.
    #[inline(always)]
    pub unsafe fn append(&mut self, kind: u32, payload: usize) {
        debug_assert!(kind < NEXT);
        // SAFETY: the caller's promise.
        unsafe { self.add(kind, record(payload)) };
        self.items = self.items.wrapping_add(1);
    }

    /// # Safety
    /// So many bytes are free here, and the payload was written.
    #[inline(always)]
    unsafe fn add(&mut self, kind: u32, len: usize) {
        let offset = self.offset;
        // SAFETY: the producer's, as it has seen. The line where it begins is written to at last, as a consumer that waits looks at it.
        unsafe { self.buffer.set_header(offset, Header { len: len as u32, kind }) };
        self.go_by(offset, len);
    }

    /// A record of so many bytes was written here. `offset` was read before that, as the compiler cannot know that a record is no part of this.
    #[inline(always)]
    fn go_by(&mut self, offset: usize, len: usize) {
        self.at += len as u64;
        self.offset = if offset + len == self.buffer.capacity { 0 } else { offset + len };
    }

    /// Bytes written and not published.
    #[inline]
    pub fn unpublished(&self) -> u64 {
        self.at - self.published
    }

    /// Shows the consumer what was written. False if it has seen all.
    #[inline]
    pub fn publish(&mut self) -> bool {
        let bytes = self.unpublished();
        if bytes > 0 {
            let next = self.offset;
            self.settle();
            // SAFETY: this batch is not shown, so the consumer has come to its beginning at most; a unit behind its end was left free.
            let batch = unsafe {
                self.buffer.not_yet(next);
                self.buffer.batch(mem::replace(&mut self.batch, next))
            };
            batch.store(bytes as u32, Ordering::Release);
            self.published = self.at;
            self.shared.tail.store(self.at, Ordering::Release);
        }
        bytes > 0
    }
}

impl Drop for Producer {
    fn drop(&mut self) {
        self.publish();
    }
}

/// The reading end.
pub struct Consumer {
    at: u64,
    offset: usize,
    items: u32,
    released: u64,
    /// Behind that it gives back what it has read, also in the middle of a row of records: so many bytes behind the last time.
    release_behind: u64,
    release_each: u64,
    /// Up to where the producer was last seen to have published.
    seen: u64,
    /// So many batches were found one behind the other.
    row: u32,
    buffer: Buffer,
    shared: Arc<Shared>,
}

impl Consumer {
    /// Kind and payload of the oldest record. It stays in the ring until [`advance`](Self::advance): who moves the payload out must not look at
    /// it again.
    #[inline]
    pub fn front(&mut self) -> Option<(u32, *mut u8)> {
        loop {
            if self.at == self.seen && !self.look() {
                self.release();
                return None;
            }
            // SAFETY: a published record that was not released begins here.
            let header = unsafe { self.buffer.header(self.offset) };
            match header.kind {
                PAD => self.skip(header.len),
                NEXT => self.go_on(header.len),
                kind => return Some((kind, self.buffer.place(self.offset + HEADER))),
            }
        }
    }

    /// The record at the front is the reading end of the ring in which the producer has gone on.
    #[cold]
    fn go_on(&mut self, len: u32) {
        self.buffer.noted.read(self.offset, len as usize);
        // SAFETY: the producer has moved it there, and it is not looked at again, as the record is given back right here.
        let mut next = unsafe { self.buffer.place(self.offset + HEADER).cast::<Self>().read() };
        self.skip(len);
        self.release();
        // As few records may be under way there as here, so they are given back as often.
        (next.items, next.release_each) = (self.items, self.release_each);
        *self = next;
        self.give_back();
    }

    /// The ring is to stay as small as it is: both ends are of one thread, which has its lines anyway.
    pub fn stay(&self) {
        self.shared.stays.store(1, Ordering::Relaxed);
    }

    /// Payload of the oldest record, if that stands right here, was seen, and is of this kind. It stays, as in [`front`](Self::front).
    #[inline(always)]
    pub fn front_of(&self, kind: u32) -> Option<*mut u8> {
        if self.at == self.seen {
            return None;
        }
        // SAFETY: a published record that was not released begins here.
        let header = unsafe { self.buffer.header(self.offset) };
        (header.kind == kind).then(|| self.buffer.place(self.offset + HEADER))
    }

    /// Looks for the oldest record: whether it is of this kind, and [`front_of`](Self::front_of) has it.
    #[inline(never)]
    pub fn comes_to(&mut self, kind: u32) -> bool {
        self.front().is_some_and(|(found, _)| found == kind)
    }

    /// Where the producer is now: whether there is something. What a message reaches into is fetched at once, not line by line as it is read: each
    /// comes from the producer's core.
    #[inline]
    fn look(&mut self) -> bool {
        let tail = if self.row < ROW { 0 } else { self.shared.tail.load(Ordering::Acquire) };
        // The tail may be behind the word, which says for sure whether something is there.
        self.seen = if tail > self.at { tail } else { self.at + u64::from(self.next_batch()) };
        let waits = self.seen != self.at;
        self.row = if waits { self.row.saturating_add(1) } else { 0 };
        if waits {
            let place = self.buffer.place(self.offset);
            (1..=2).for_each(|line| fetch_to_read(place.wrapping_add(line * LINE)));
        }
        waits
    }

    /// Bytes of the batch that begins where all others that were seen end; zero if it is not there.
    #[inline]
    fn next_batch(&self) -> u32 {
        debug_assert!(self.at == self.seen);
        // SAFETY: the consumer has come there.
        unsafe { self.buffer.batch(self.offset) }.load(Ordering::Acquire)
    }

    /// Shows `f` kind and payload of the records at the front, the oldest first, until it has seen enough, or all of this ring's. They stay there.
    #[inline]
    pub fn ahead(&mut self, mut f: impl FnMut(u32, *mut u8) -> bool) {
        if self.at == self.seen {
            self.look();
        }
        let (mut at, mut offset) = (self.at, self.offset);
        while at != self.seen {
            // SAFETY: a published record that was not released begins here.
            let header = unsafe { self.buffer.header(offset) };
            if header.kind == NEXT || (header.kind != PAD && !f(header.kind, self.buffer.place(offset + HEADER))) {
                return;
            }
            at += u64::from(header.len);
            offset += header.len as usize;
            if offset == self.buffer.capacity {
                offset = 0;
            }
        }
    }

    #[inline]
    fn skip(&mut self, len: u32) {
        self.at += u64::from(len);
        self.offset += len as usize;
        if self.offset == self.buffer.capacity {
            self.offset = 0;
        }
    }

    /// The record at the front was taken.
    #[inline]
    pub fn advance(&mut self) {
        debug_assert!(self.at < self.seen, "there is a record at the front");
        // SAFETY: as in `front`, which was called before.
        let header = unsafe { self.buffer.header(self.offset) };
        // The payload was read since `front`, and is not afterwards.
        self.buffer.noted.read(self.offset, header.len as usize);
        self.skip(header.len);
        self.items = self.items.wrapping_add(1);
        if self.at > self.release_behind {
            self.release();
        }
    }

    /// Gives back what was taken.
    #[inline]
    pub fn release(&mut self) {
        if self.released != self.at {
            self.give_back();
        }
    }

    #[inline]
    fn give_back(&mut self) {
        (self.released, self.release_behind) = (self.at, self.at + self.release_each);
        self.shared.head.items.store(self.items, Ordering::Relaxed);
        self.shared.head.at.store(self.at, Ordering::Release);
    }

    /// Bytes that wait, as last seen; looked at anew if there were none. Of the first of batches that were published one by one only that one's.
    #[inline]
    pub fn waiting(&mut self) -> u64 {
        if self.at == self.seen {
            self.look();
        }
        self.seen - self.at
    }

    /// Whether nothing was published that has not been taken.
    pub fn is_empty(&self) -> bool {
        self.seen == self.at && self.next_batch() == 0
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        self.release();
    }
}

/// Has what stands there fetched into the cache, for a look at it soon. Only a hint.
#[inline(always)]
pub fn fetch<T: ?Sized>(what: &T) {
    fetch_to_read(ptr::from_ref(what).cast());
}

/// Has the line there fetched into the cache, whatever it is of. Only a hint.
#[inline(always)]
fn fetch_to_read(place: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a hint reads nothing, and never faults.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(place.cast());
    }
    let _ = place;
}

/// Has the line there fetched into the cache as this core's own, for a store to it soon. Only a hint.
#[inline(always)]
pub fn fetch_to_write(place: *mut u8) {
    // The compiler's own hint becomes one for reading where not all processors of the target are known to have this; those that lack it ignore it.
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a hint reads and writes nothing, and never faults.
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) place, options(nostack, preserves_flags));
    }
    let _ = place;
}

/// Writes a word, of two halves, past the caches. Others see such words in any order, so [`Producer::publish`] has a fence in front of what shows them.
///
/// # Safety
/// The word there is the caller's to write, and aligned.
#[inline(always)]
pub unsafe fn word_past(place: *mut u8, word: [u32; 2]) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: the caller's word; every processor of this kind has the instruction.
    unsafe {
        let word = mem::transmute::<[u32; 2], u64>(word);
        std::arch::asm!("movnti [{}], {}", in(reg) place, in(reg) word, options(nostack, preserves_flags));
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    // SAFETY: the caller's word.
    unsafe {
        place.cast::<[u32; 2]>().write(word);
    }
}

/// Copies so many words past the caches, as [`word_past`].
///
/// # Safety
/// They can be read at `from`, where they need not have a value, and are the caller's to write at `place`; both are aligned to [`ALIGN`], and apart.
#[inline(always)]
pub unsafe fn copy_past(place: *mut u8, from: *const u8, words: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: the caller's words. What has no value is copied by the processor's own instructions, for which there is no such thing.
    unsafe {
        for unit in 0..words / 2 {
            let (place, from) = (place.add(unit * ALIGN), from.add(unit * ALIGN));
            std::arch::asm!("movaps {what}, [{from}]", "movntps [{place}], {what}", what = out(xmm_reg) _, from = in(reg) from, place = in(reg) place,
                options(nostack, preserves_flags));
        }
        if words % 2 == 1 {
            let (place, from) = (place.add((words - 1) * WORD), from.add((words - 1) * WORD));
            std::arch::asm!("mov {what}, [{from}]", "movnti [{place}], {what}", what = out(reg) _, from = in(reg) from, place = in(reg) place,
                options(nostack, preserves_flags));
        }
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    // SAFETY: the caller's words.
    unsafe {
        place.cast::<MaybeUninit<u64>>().copy_from_nonoverlapping(from.cast(), words);
    }
}

#[cfg(test)]
thread_local! {
    /// How often this thread has found something past the caches that was to be settled.
    pub static SETTLED: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

/// What was written past the caches is seen by all before what is stored behind this.
#[inline]
fn fence_past() {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a fence; every processor of this kind has it.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}

/// Writes a value as the payload of a record.
///
/// # Safety
/// As [`Producer::write`]; `T` needs at most the alignment of a payload.
pub unsafe fn push<T>(producer: &mut Producer, kind: u32, most: u32, value: T) -> Result<(), T> {
    const { assert!(align_of::<T>() <= ALIGN) };
    let value = std::mem::ManuallyDrop::new(value);
    // SAFETY: the payload is as large and as aligned as a `T`; the value is moved there, and dropped here only if it was not.
    let pushed =
        unsafe { producer.write(kind, size_of::<T>(), 0, most, |place| ptr::copy_nonoverlapping(&raw const *value, place.cast(), 1)) };
    if pushed { Ok(()) } else { Err(std::mem::ManuallyDrop::into_inner(value)) }
}

// The unsafe above is for an interpreter to judge: `cargo +nightly miri test --lib engine::ring`.
#[cfg(test)]
mod tests {
    use super::*;

    /// Kind 0: a value. Kind 1: raw bytes.
    unsafe fn discard(kind: u32, place: *mut u8) {
        if kind == 0 {
            // SAFETY: the tests below write such a value under this kind.
            drop(unsafe { place.cast::<Arc<u64>>().read() });
        }
    }

    const MOST: u32 = u32::MAX / 2;

    fn small() -> (Producer, Consumer) {
        // SAFETY: `discard` knows both kinds that the tests write.
        unsafe { ring(512, discard) }
    }

    fn that_grows(left: &Left) -> (Producer, Consumer) {
        // SAFETY: as above.
        unsafe { growing(512, 4096, left.clone(), discard) }
    }

    /// Records of 16 bytes, of which the consumer takes `most` at a time, until so many were written. How many were in the ring at most.
    fn pass(producer: &mut Producer, consumer: &mut Consumer, records: std::ops::Range<u64>, most: usize) -> usize {
        let (mut written, mut read, mut under_way) = (records.start, records.start, 0);
        while read < records.end {
            while written < records.end && push_value(producer, Arc::new(written)).is_ok() {
                producer.publish();
                written += 1;
            }
            under_way = under_way.max(written - read);
            for _ in 0..most {
                let Some(value) = take_value(consumer) else { break };
                assert_eq!(*value, read, "in order");
                read += 1;
            }
            consumer.release();
        }
        under_way as usize
    }

    fn push_value(producer: &mut Producer, value: Arc<u64>) -> Result<(), Arc<u64>> {
        // SAFETY: kind 0 is such a value.
        unsafe { push(producer, 0, MOST, value) }
    }

    fn take_value(consumer: &mut Consumer) -> Option<Arc<u64>> {
        let (kind, place) = consumer.front()?;
        assert_eq!(kind, 0);
        // SAFETY: kind 0 is such a value, and it is not looked at again.
        let value = unsafe { place.cast::<Arc<u64>>().read() };
        consumer.advance();
        Some(value)
    }

    fn write_bytes(producer: &mut Producer, bytes: &[u8]) -> bool {
        // SAFETY: kind 1 is bytes: their number, then themselves.
        unsafe {
            producer.write(1, 8 + bytes.len(), 0, MOST, |place| {
                place.cast::<u64>().write(bytes.len() as u64);
                place.add(8).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
            })
        }
    }

    /// As [`write_bytes`], past the caches.
    fn write_bytes_past(producer: &mut Producer, bytes: &[u8]) -> bool {
        let words = 1 + bytes.len().div_ceil(WORD);
        let mut record = vec![0u128; words.div_ceil(2)];
        let from = record.as_mut_ptr().cast::<u8>();
        // SAFETY: as many words as the record begins, at `from` and of the ring's.
        unsafe {
            from.cast::<u64>().write(bytes.len() as u64);
            from.add(WORD).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
            producer.write_past(1, WORD + bytes.len(), 0, MOST, |place, past| match past {
                true => copy_past(place, from, words),
                false => place.copy_from_nonoverlapping(from, WORD + bytes.len()),
            })
        }
    }

    fn read_bytes(consumer: &mut Consumer) -> Option<Vec<u8>> {
        let (kind, place) = consumer.front()?;
        assert_eq!((kind, place as usize % ALIGN), (1, 0));
        // SAFETY: kind 1 is bytes behind their number.
        let bytes = unsafe { std::slice::from_raw_parts(place.add(8), place.cast::<u64>().read() as usize).to_vec() };
        consumer.advance();
        Some(bytes)
    }

    #[test]
    fn records_of_all_lengths_come_out_in_order_and_whole() {
        let (mut producer, mut consumer) = small();
        let (mut written, mut read) = (0u64, 0u64);
        let record = |n: u64| vec![n as u8; (n * 7 % 100) as usize];
        while read < 300 {
            // Each length both ways, as a hundred lengths are no multiple of three.
            let write = |producer: &mut Producer, n| {
                if n % 3 > 0 { write_bytes_past(producer, &record(n)) } else { write_bytes(producer, &record(n)) }
            };
            while written < 300 && write(&mut producer, written) {
                written += 1;
            }
            assert_eq!(consumer.front(), None, "nothing is seen before it was published");
            assert!(producer.publish() && !producer.publish());
            while let Some(bytes) = read_bytes(&mut consumer) {
                assert_eq!(bytes, record(read));
                read += 1;
            }
        }
        assert!(consumer.is_empty());
    }

    #[test]
    fn batches_come_out_one_by_one_and_many_at_a_time() {
        let (mut producer, mut consumer) = small();
        let (mut written, mut shown, mut read, mut random) = (0u64, 0, 0, 1u32);
        let record = |n: u64| vec![n as u8; (n * 13 % 70) as usize];
        for _ in 0..if cfg!(miri) { 1_000 } else { 100_000 } {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            match random >> 29 {
                0..2 => written += u64::from(write_bytes(&mut producer, &record(written))),
                2 => written += u64::from(write_bytes_past(&mut producer, &record(written))),
                3..5 => {
                    assert_eq!(producer.publish(), shown < written);
                    shown = written;
                }
                5 => assert_eq!(consumer.waiting() > 0, read < shown),
                _ => match read_bytes(&mut consumer) {
                    Some(bytes) => {
                        assert_eq!(bytes, record(read));
                        read += 1;
                    }
                    None => assert_eq!(read, shown),
                },
            }
            assert_eq!(consumer.is_empty(), read == shown, "what is shown is there, and nothing else");
        }
        assert!(read > 100);
    }

    #[test]
    fn it_is_bounded_in_bytes_and_in_records() {
        let (mut producer, mut consumer) = small();
        let mut n = 0;
        while write_bytes(&mut producer, &[1; 24]) {
            n += 1;
        }
        assert_eq!(n, 512 / 48, "32 bytes of payload, 8 of header, rounded to 16");
        assert!(!write_bytes(&mut producer, &[0; 1000]), "longer than the ring");
        producer.publish();
        while read_bytes(&mut consumer).is_some() {}
        assert!(producer.has_room(48, 48, 0, 3, 3) && !producer.has_room(48, 48, 0, 4, 3));
        assert!(!producer.has_room(400, 48, 200, 1, 3), "what is spared counts");
    }

    #[test]
    fn a_ring_grows_once_when_its_consumer_is_behind() {
        let left = Left::new(2.into());
        let (mut producer, mut consumer) = that_grows(&left);
        let few = pass(&mut producer, &mut consumer, 0..64, 12);
        assert_eq!(left.load(Ordering::Relaxed), 2, "not at once");
        pass(&mut producer, &mut consumer, 64..1_000, 12);
        assert_eq!(left.load(Ordering::Relaxed), 1);
        let many = pass(&mut producer, &mut consumer, 1_000..2_000, 12);
        assert_eq!((few, many, left.load(Ordering::Relaxed)), (512 / 16 - 1, 4096 / 16 - 1, 1));
        drop(producer);
        assert_eq!(left.load(Ordering::Relaxed), 1, "its consumer may have something to read");
        drop(consumer);
        assert_eq!(left.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn a_ring_stays_small_whose_consumer_keeps_up_or_wants_it_so_or_that_is_one_too_many() {
        let left = Left::new(1.into());
        let (mut producer, mut consumer) = that_grows(&left);
        for n in 0..1_000 {
            push_value(&mut producer, Arc::new(n)).unwrap();
            producer.publish();
            assert_eq!(take_value(&mut consumer).as_deref(), Some(&n));
            assert_eq!(take_value(&mut consumer), None);
        }
        assert_eq!(left.load(Ordering::Relaxed), 1, "it is never behind");
        consumer.stay();
        pass(&mut producer, &mut consumer, 0..1_000, 12);
        assert_eq!(left.load(Ordering::Relaxed), 1, "both ends are of one thread");
        let (mut first, mut second) = (that_grows(&left), that_grows(&left));
        pass(&mut first.0, &mut first.1, 0..1_000, 12);
        assert_eq!(pass(&mut second.0, &mut second.1, 0..1_000, 12), 512 / 16 - 1);
        assert_eq!(left.load(Ordering::Relaxed), 0);
        drop(first);
        pass(&mut second.0, &mut second.1, 0..1_000, 12);
        assert_eq!(pass(&mut second.0, &mut second.1, 0..1_000, 12), 4096 / 16 - 1, "now it may");
        let left = Left::new(1.into());
        let (mut producer, _consumer) = that_grows(&left);
        let accepted = (0..1_000).filter(|_| push_value(&mut producer, Arc::new(1)).is_ok() && producer.publish()).count();
        assert_eq!((accepted, left.load(Ordering::Relaxed)), (512 / 16 - 1, 1), "its consumer stands still, however often it is tried");
    }

    #[test]
    fn records_are_bounded_in_number_while_a_ring_grows() {
        let left = Left::new(1.into());
        let (mut producer, mut consumer) = that_grows(&left);
        let put = |producer: &mut Producer| {
            // SAFETY: kind 0 is such a value.
            unsafe { push(producer, 0, 10, Arc::new(0u64)) }.is_ok()
        };
        assert_eq!((0..20).filter(|_| put(&mut producer)).count(), 10);
        producer.publish();
        assert!(producer.grow() && !producer.grow(), "once");
        assert!(!put(&mut producer), "there are ten in the small one");
        for taken in [3, 7, 10, 1, 9, 10] {
            (0..taken).for_each(|_| drop(take_value(&mut consumer).unwrap()));
            consumer.release();
            assert_eq!((0..20).filter(|_| put(&mut producer)).count(), taken, "what is given back is seen at once, there and here");
            producer.publish();
        }
        assert_eq!(std::iter::from_fn(|| take_value(&mut consumer)).count(), 10);
    }

    #[test]
    fn who_looks_ahead_sees_no_more_than_the_small_ring() {
        let (mut producer, mut consumer) = that_grows(&Left::new(1.into()));
        let ahead = |consumer: &mut Consumer| {
            let mut kinds = vec![];
            consumer.ahead(|kind, _| {
                kinds.push(kind);
                true
            });
            kinds
        };
        push_value(&mut producer, Arc::new(1)).unwrap();
        assert!(producer.grow());
        push_value(&mut producer, Arc::new(2)).unwrap();
        push_value(&mut producer, Arc::new(3)).unwrap();
        producer.publish();
        assert_eq!(ahead(&mut consumer), [0]);
        assert_eq!(take_value(&mut consumer).as_deref(), Some(&1));
        assert!(ahead(&mut consumer).is_empty(), "where it goes on is no record");
        assert!(!consumer.is_empty());
        assert_eq!(take_value(&mut consumer).as_deref(), Some(&2));
        assert_eq!(ahead(&mut consumer), [0]);
    }

    #[test]
    fn what_nobody_took_is_dropped_once() {
        let value = Arc::new(7u64);
        let (mut producer, mut consumer) = small();
        for _ in 0..40 {
            push_value(&mut producer, value.clone()).unwrap();
            push_value(&mut producer, value.clone()).unwrap();
            producer.publish();
            assert_eq!(take_value(&mut consumer), Some(value.clone()));
            assert_eq!(take_value(&mut consumer), Some(value.clone()));
        }
        (0..3).for_each(|_| push_value(&mut producer, value.clone()).unwrap());
        producer.publish();
        drop(take_value(&mut consumer));
        assert_eq!(Arc::strong_count(&value), 3);
        drop(consumer);
        push_value(&mut producer, value.clone()).unwrap();
        assert_eq!(Arc::strong_count(&value), 4);
        drop(producer);
        assert_eq!(Arc::strong_count(&value), 1, "also what was published last");
    }

    #[test]
    fn what_nobody_took_of_a_ring_that_has_grown_is_dropped_once() {
        let value = Arc::new(7u64);
        for taken in 0..=4 {
            let left = Left::new(1.into());
            let (mut producer, mut consumer) = that_grows(&left);
            (0..2).for_each(|_| push_value(&mut producer, value.clone()).unwrap());
            assert!(producer.grow());
            (0..2).for_each(|_| push_value(&mut producer, value.clone()).unwrap());
            producer.publish();
            (0..taken).for_each(|_| drop(take_value(&mut consumer)));
            assert_eq!(Arc::strong_count(&value), 5 - taken);
            drop(consumer);
            push_value(&mut producer, value.clone()).unwrap();
            drop(producer);
            assert_eq!((Arc::strong_count(&value), left.load(Ordering::Relaxed)), (1, 1));
        }
    }

    /// What neither loom nor an interpreter sees: that stores past the caches, which keep no order, are there before they are shown.
    #[test]
    fn what_was_written_past_the_caches_is_there_for_another_core() {
        const WORDS: usize = 13;
        #[repr(align(16))]
        struct Value([u64; WORDS]);
        let (batches, batch) = if cfg!(miri) { (40, 5) } else { (100_000, 5) };
        // SAFETY: `discard` has nothing to do for such a value.
        let (mut producer, mut consumer) = unsafe { ring(16 << 10, |_, _| {}) };
        let writer = std::thread::spawn(move || {
            for n in 0..batches * batch {
                let value = Value([n; WORDS]);
                let mut written = || {
                    // SAFETY: kind 0 is such a value, which has whole words.
                    unsafe {
                        producer.write_past(0, size_of::<[u64; WORDS]>(), 0, MOST, |place, past| match past {
                            true => copy_past(place, (&raw const value).cast(), WORDS),
                            false => place.cast::<[u64; WORDS]>().write(value.0),
                        })
                    }
                };
                while !written() {
                    std::thread::yield_now();
                }
                if (n + 1) % batch == 0 {
                    producer.publish();
                }
            }
        });
        for n in 0..batches * batch {
            let place = loop {
                match consumer.front() {
                    Some((_, place)) => break place,
                    None => std::thread::yield_now(),
                }
            };
            // SAFETY: kind 0 is such a value.
            assert_eq!(unsafe { place.cast::<[u64; WORDS]>().read() }, [n; WORDS]);
            consumer.advance();
        }
        writer.join().unwrap();
    }

    #[test]
    fn what_was_written_past_the_caches_is_settled_before_it_is_shown() {
        let left = Left::new(1.into());
        let (mut producer, _consumer) = that_grows(&left);
        let settled = || SETTLED.replace(0);
        settled();
        assert!(write_bytes(&mut producer, &[1]) && write_bytes(&mut producer, &[2]) && producer.publish());
        assert_eq!(settled(), 0, "there is nothing past the caches");
        assert!(write_bytes_past(&mut producer, &[1]) && producer.publish());
        assert_eq!(settled(), 0, "a batch begins through them");
        assert!(
            write_bytes(&mut producer, &[1])
                && write_bytes_past(&mut producer, &[2])
                && write_bytes_past(&mut producer, &[3])
                && producer.publish()
        );
        assert_eq!(settled(), 1, "by what shows it");
        assert!(write_bytes_past(&mut producer, &[1]) && write_bytes_past(&mut producer, &[2]));
        producer.settle();
        assert!(settled() == 1 && producer.publish() && settled() == 0, "once");
        assert!(write_bytes_past(&mut producer, &[1]) && write_bytes_past(&mut producer, &[2]) && producer.grow());
        assert_eq!(settled(), 1, "by what goes on elsewhere");
        assert!(write_bytes_past(&mut producer, &[1]) && write_bytes_past(&mut producer, &[2]));
        drop(producer);
        assert_eq!(settled(), 1, "by its end");
    }

    #[test]
    fn two_threads_hand_over_what_was_written() {
        let rounds = if cfg!(miri) { 200 } else { 100_000u64 };
        let left = Left::new(1.into());
        let (mut producer, mut consumer) = that_grows(&left);
        let writer = std::thread::spawn(move || {
            for n in 0..rounds {
                let mut value = Arc::new(n);
                while let Err(back) = push_value(&mut producer, value) {
                    producer.publish();
                    value = back;
                    std::thread::yield_now();
                }
                if n % 3 == 0 {
                    producer.publish();
                }
            }
        });
        let mut next = 0;
        while next < rounds {
            match take_value(&mut consumer) {
                Some(value) => {
                    assert_eq!(*value, next);
                    next += 1;
                }
                None => std::thread::yield_now(),
            }
        }
        writer.join().unwrap();
    }
}
