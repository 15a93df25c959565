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
//! Checked by `loom/tests/ring.rs`.

use std::{
    cell::{Cell, UnsafeCell},
    mem::MaybeUninit,
    ptr::{self, NonNull},
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
/// A record's length leaves the lowest bits free for its kind.
const KIND_MASK: u32 = ALIGN as u32 - 1;
/// How far ahead of its records a producer asks for the lines that it will write to: four messages of 64 bytes.
const AHEAD: usize = 512;
/// A consumer that has found so many batches, one behind the other, looks at the tail for the next ones.
const ROW: u32 = 2;
/// Bytes of a line of the cache.
const LINE: usize = 64;

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
}

// SAFETY: the bytes between `head` and what was published belong to the consumer, all others to the producer, but for the word where the next batch begins,
// which both know as an atomic; each end is held by one thread at a time, because `Producer` and `Consumer` are not `Sync`, and hands bytes over by a
// releasing store that the other end acquires. What the payloads
// are made of is `Send`: whoever writes them vouches for that (`Producer::write`).
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
    let buffer = Buffer::new(bytes.div_ceil(LINE).max(8));
    // SAFETY: the whole buffer is the producer's.
    unsafe { buffer.not_yet(0) };
    let shared = Arc::new(Shared {
        buffer: Owned(buffer.clone()),
        tail: CachePadded::new(AtomicU64::new(0)),
        head: CachePadded::new(Head { at: AtomicU64::new(0), items: AtomicU32::new(0) }),
        discard,
    });
    let producer = Producer {
        longest: buffer.capacity / SHARE_MAX,
        at: Cell::new(0),
        offset: Cell::new(0),
        published: Cell::new(0),
        batch: Cell::new(0),
        items: Cell::new(0),
        seen: Cell::new((0, 0)),
        buffer: buffer.clone(),
        shared: shared.clone(),
    };
    let release_behind = quarter(&buffer);
    (producer, Consumer { at: 0, offset: 0, items: 0, released: 0, release_behind, seen: 0, row: 0, buffer, shared })
}

/// A consumer that has taken more than so many bytes gives them back.
fn quarter(buffer: &Buffer) -> u64 {
    (buffer.capacity / 4) as u64
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
            if header.kind != PAD {
                buffer.noted.read(offset, header.len as usize);
                // SAFETY: as above; nobody uses the payload afterwards.
                unsafe { (self.discard)(header.kind, buffer.place(offset + HEADER)) };
            }
            at += u64::from(header.len);
        }
    }
}

/// The writing end.
pub struct Producer {
    /// Bytes of the longest record that can be written.
    longest: usize,
    at: Cell<u64>,
    offset: Cell<usize>,
    published: Cell<u64>,
    /// Where the batch begins that is being written.
    batch: Cell<usize>,
    items: Cell<u32>,
    /// What the consumer was last seen to have given back: bytes and records.
    seen: Cell<(u64, u32)>,
    buffer: Buffer,
    shared: Arc<Shared>,
}

impl Producer {
    /// Whether `bytes` of records, the longest of them `longest`, fit and leave `spare` bytes, and `items` of them are not more than `most` in
    /// the ring then.
    #[inline]
    pub fn has_room(&self, bytes: usize, longest: usize, spare: usize, items: u32, most: u32) -> bool {
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
        let (at, taken) = self.seen.get();
        let free = self.buffer.capacity as u64 - (self.at.get() - at);
        need <= free && u64::from(self.items.get().wrapping_sub(taken)) + u64::from(items) <= u64::from(most)
    }

    /// Where the consumer is now.
    #[inline(never)]
    fn look(&self) {
        let head = &self.shared.head;
        let at = head.at.load(Ordering::Acquire);
        self.seen.set((at, head.items.load(Ordering::Relaxed)));
    }

    /// Comes to a place where a record of so many bytes fits, if `spare` bytes are left then and no more than `most` records are in the ring. False if not:
    /// then nothing has changed.
    #[inline(never)]
    fn make_room(&self, len: usize, spare: usize, most: u32) -> bool {
        let (offset, left) = (self.offset.get(), self.buffer.capacity - self.offset.get());
        let pad = if len > left { left } else { 0 };
        if len > self.longest || !self.has_room(len + pad, 0, spare, 1, most) {
            return false;
        }
        if pad > 0 {
            self.buffer.noted.write(offset, HEADER);
            // SAFETY: the rest of the buffer is free, as was just seen, and at least one unit long, since a record that reached its end would have
            // set the offset to zero.
            unsafe { self.buffer.set_header(offset, Header { len: left as u32, kind: PAD }) };
            self.at.set(self.at.get() + left as u64);
            self.offset.set(0);
        }
        true
    }

    /// Appends a record that `fill` writes, if `spare` bytes are left then and no more than `most` records are in the ring; false if not, and
    /// then `fill` was not called. Not seen by the consumer before [`publish`](Self::publish).
    ///
    /// # Safety
    /// `fill` gets `payload` bytes, aligned to [`ALIGN`], that hold nothing, and must make of them what the ring's `discard` and its consumer expect
    /// for `kind`. It must be `Send`.
    #[inline(always)]
    pub unsafe fn write(&self, kind: u32, payload: usize, spare: usize, most: u32, fill: impl FnOnce(*mut u8)) -> bool {
        let Some(place) = self.begin(payload, spare, most) else { return false };
        fill(place);
        // SAFETY: begun just now, and filled by the caller.
        unsafe { self.append(kind, payload) };
        true
    }

    /// Where the payload is to be written that is [appended](Self::append) next: the first half of [`write`](Self::write), which is for who has one place to
    /// write at. `None`: there is no room.
    #[inline(always)]
    pub fn begin(&self, payload: usize, spare: usize, most: u32) -> Option<*mut u8> {
        let len = record(payload);
        let stands_here = len <= self.longest && len <= self.buffer.capacity - self.offset.get();
        let has_room = stands_here && self.fits((len + spare + ALIGN) as u64, 1, most);
        if !has_room && !self.make_room(len, spare, most) {
            return None;
        }
        let offset = self.offset.get();
        self.buffer.noted.write(offset, len);
        let place = self.buffer.place(offset);
        // Two lines, as most messages have, or three, as requests do, that will be written soon. They are in the consumer's cache, and a store to one of those
        // would wait for the way between the cores, and all stores behind it as well. Behind the end of the buffer that is for nothing, as it is where the
        // ring is all but full.
        (0..2).for_each(|line| fetch_to_write(place.wrapping_add(AHEAD + line * LINE)));
        if len > 2 * LINE {
            fetch_to_write(place.wrapping_add(AHEAD + 2 * LINE));
        }
        // SAFETY: `len` bytes are free there, and do not reach beyond the end.
        Some(unsafe { place.add(HEADER) })
    }

    /// Appends the record whose payload was written.
    ///
    /// # Safety
    /// It was [begun](Self::begin) with this length right before, and there stands now what [`write`](Self::write) wants of its `fill`.
    #[inline(always)]
    pub unsafe fn append(&self, kind: u32, payload: usize) {
        debug_assert!(kind < PAD);
        let (offset, len) = (self.offset.get(), record(payload));
        // SAFETY: the producer's, as `begin` has seen. The line where it begins is written to at last, as a consumer that waits looks at it.
        unsafe { self.buffer.set_header(offset, Header { len: len as u32, kind }) };
        self.at.set(self.at.get() + len as u64);
        self.offset.set(if offset + len == self.buffer.capacity { 0 } else { offset + len });
        self.items.set(self.items.get().wrapping_add(1));
    }

    /// Bytes written and not published.
    #[inline]
    pub fn unpublished(&self) -> u64 {
        self.at.get() - self.published.get()
    }

    /// Shows the consumer what was written. False if it has seen all.
    #[inline]
    pub fn publish(&self) -> bool {
        let bytes = self.unpublished();
        if bytes > 0 {
            let next = self.offset.get();
            // SAFETY: this batch is not shown, so the consumer has come to its beginning at most; a unit behind its end was left free.
            let batch = unsafe {
                self.buffer.not_yet(next);
                self.buffer.batch(self.batch.replace(next))
            };
            batch.store(bytes as u32, Ordering::Release);
            self.published.set(self.at.get());
            self.shared.tail.store(self.at.get(), Ordering::Release);
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
    /// Behind that it gives back what it has read, also in the middle of a row of records.
    release_behind: u64,
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
            if header.kind != PAD {
                return Some((header.kind, self.buffer.place(self.offset + HEADER)));
            }
            self.skip(header.len);
        }
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

    /// Shows `f` kind and payload of the records at the front, the oldest first, until it has seen enough. They stay there.
    #[inline]
    pub fn ahead(&mut self, mut f: impl FnMut(u32, *mut u8) -> bool) {
        if self.at == self.seen {
            self.look();
        }
        let (mut at, mut offset) = (self.at, self.offset);
        while at != self.seen {
            // SAFETY: a published record that was not released begins here.
            let header = unsafe { self.buffer.header(offset) };
            if header.kind != PAD && !f(header.kind, self.buffer.place(offset + HEADER)) {
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
            (self.released, self.release_behind) = (self.at, self.at + quarter(&self.buffer));
            self.shared.head.items.store(self.items, Ordering::Relaxed);
            self.shared.head.at.store(self.at, Ordering::Release);
        }
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

/// Writes a value as the payload of a record.
///
/// # Safety
/// As [`Producer::write`]; `T` needs at most the alignment of a payload.
pub unsafe fn push<T>(producer: &Producer, kind: u32, most: u32, value: T) -> Result<(), T> {
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

    fn push_value(producer: &Producer, value: Arc<u64>) -> Result<(), Arc<u64>> {
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

    fn write_bytes(producer: &Producer, bytes: &[u8]) -> bool {
        // SAFETY: kind 1 is bytes: their number, then themselves.
        unsafe {
            producer.write(1, 8 + bytes.len(), 0, MOST, |place| {
                place.cast::<u64>().write(bytes.len() as u64);
                place.add(8).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
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
        let (producer, mut consumer) = small();
        let (mut written, mut read) = (0u64, 0u64);
        let record = |n: u64| vec![n as u8; (n * 7 % 100) as usize];
        while read < 300 {
            while written < 300 && write_bytes(&producer, &record(written)) {
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
        let (producer, mut consumer) = small();
        let (mut written, mut shown, mut read, mut random) = (0u64, 0, 0, 1u32);
        let record = |n: u64| vec![n as u8; (n * 13 % 70) as usize];
        for _ in 0..if cfg!(miri) { 1_000 } else { 100_000 } {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            match random >> 29 {
                0..3 => written += u64::from(write_bytes(&producer, &record(written))),
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
        let (producer, mut consumer) = small();
        let mut n = 0;
        while write_bytes(&producer, &[1; 24]) {
            n += 1;
        }
        assert_eq!(n, 512 / 48, "32 bytes of payload, 8 of header, rounded to 16");
        assert!(!write_bytes(&producer, &[0; 1000]), "longer than the ring");
        producer.publish();
        while read_bytes(&mut consumer).is_some() {}
        assert!(producer.has_room(48, 48, 0, 3, 3) && !producer.has_room(48, 48, 0, 4, 3));
        assert!(!producer.has_room(400, 48, 200, 1, 3), "what is spared counts");
    }

    #[test]
    fn what_nobody_took_is_dropped_once() {
        let value = Arc::new(7u64);
        let (producer, mut consumer) = small();
        for _ in 0..40 {
            push_value(&producer, value.clone()).unwrap();
            push_value(&producer, value.clone()).unwrap();
            producer.publish();
            assert_eq!(take_value(&mut consumer), Some(value.clone()));
            assert_eq!(take_value(&mut consumer), Some(value.clone()));
        }
        (0..3).for_each(|_| push_value(&producer, value.clone()).unwrap());
        producer.publish();
        drop(take_value(&mut consumer));
        assert_eq!(Arc::strong_count(&value), 3);
        drop(consumer);
        push_value(&producer, value.clone()).unwrap();
        assert_eq!(Arc::strong_count(&value), 4);
        drop(producer);
        assert_eq!(Arc::strong_count(&value), 1, "also what was published last");
    }

    #[test]
    fn two_threads_hand_over_what_was_written() {
        let rounds = if cfg!(miri) { 200 } else { 100_000u64 };
        let (producer, mut consumer) = small();
        let writer = std::thread::spawn(move || {
            for n in 0..rounds {
                let mut value = Arc::new(n);
                while let Err(back) = push_value(&producer, value) {
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
