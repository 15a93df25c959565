//! A message in a ring, in the form in which it costs least: written once into the ring by its sender, read where it stands.
//!
//! One that was sent on this node stands there as the value it is; one from elsewhere, or on its way there, as its encoding. What does not
//! go the short way (see `ShardCore::approach`) is made a parcel first.

use std::{
    marker::PhantomData,
    mem::{self, ManuallyDrop, MaybeUninit, offset_of},
};

use super::{
    message::{AnyMessage, Table},
    parcel::{EngineParcel, Key},
    ring::{ALIGN, WORD, copy_past, word_past},
    signs::NO_VERSION,
};
use crate::{
    Epoch, NodeId, ShardId, ShardKey, TypeId, Wire,
    proto::{
        handoff::{Ask, Envelope},
        shard::Parcel,
    },
};

/// Longer ones travel as parcels.
pub const LETTER_MAX: usize = 2048;

/// What stands in front of a letter.
#[repr(C)]
#[derive(Copy, Clone)]
struct Head {
    shard: ShardKey,
    /// Of the word, or of the route, that it was sent by.
    tag: Epoch,
    hash: u64,
    /// Of the value; `None`: what stands there is encoded.
    table: Option<&'static Table>,
    /// Where the body begins, and its bytes.
    body: u16,
    len: u16,
    key: u8,
    reads: u8,
    asked: bool,
    /// It came from another node.
    arrived: bool,
}

/// What all letters have.
#[derive(Copy, Clone)]
pub struct Address<'a> {
    /// The shard of the key.
    pub shard: ShardKey,
    /// Of the word, or of the route, that it was sent by.
    pub tag: Epoch,
    /// The stream it came in, if it came from another node.
    pub stream: Option<NodeId>,
    /// Canonical bytes, at most 255.
    pub key: &'a [u8],
    /// XXH3-64 of the key.
    pub hash: u64,
    /// Who waits for an answer.
    pub ask: Option<Ask>,
    /// Newest version of the answer that the asker reads.
    pub reads: u8,
}

/// Where the parts of a letter stand, from its beginning: the key behind the head, stream and ask before the body.
struct Parts {
    stream: usize,
    ask: usize,
    body: usize,
}

/// Where the key stands.
const KEY: usize = size_of::<Head>();

impl Parts {
    #[inline]
    const fn of(arrived: bool, asked: bool, key_len: usize) -> Self {
        // Values want no more than eight; an encoding wants nothing.
        let end = (KEY + key_len + 7) & !7;
        if !arrived && !asked {
            return Self { stream: end, ask: end, body: end };
        }
        let stream = end.next_multiple_of(ALIGN);
        let ask = if arrived { stream + size_of::<NodeId>() } else { stream };
        Self { stream, ask, body: if asked { ask + size_of::<Ask>() } else { ask } }
    }
}

impl Address<'_> {
    /// Bytes of a letter with so long a body.
    #[inline(always)]
    pub fn size(&self, body: usize) -> usize {
        Parts::of(self.stream.is_some(), self.ask.is_some(), self.key.len()).body + body
    }

    /// Writes all, the body by `put`. From its end to its beginning: a consumer that waits looks at the line where it begins, and would take that away between
    /// two stores to it.
    ///
    /// # Safety
    /// `size(body)` bytes, aligned to [`ALIGN`], are the caller's there.
    #[inline(always)]
    unsafe fn write(&self, place: *mut u8, table: Option<&'static Table>, body: usize, put: impl FnOnce(*mut u8)) {
        let (asked, arrived) = (self.ask.is_some(), self.stream.is_some());
        debug_assert!(body <= LETTER_MAX && self.key.len() <= usize::from(u8::MAX));
        let parts = Parts::of(arrived, asked, self.key.len());
        let head = Head {
            shard: self.shard,
            tag: self.tag,
            hash: self.hash,
            table,
            // `LETTER_MAX`, and the 255 bytes of a key that references do not refuse.
            body: parts.body as u16,
            len: body as u16,
            key: self.key.len() as u8,
            reads: self.reads,
            asked,
            arrived,
        };
        // SAFETY: all of it lies within the `size(body)` bytes, and each part begins where it is aligned.
        unsafe {
            put(place.add(parts.body));
            if let Some(stream) = self.stream {
                place.add(parts.stream).cast::<NodeId>().write(stream);
            }
            if let Some(ask) = self.ask {
                place.add(parts.ask).cast::<Ask>().write(ask);
            }
            let key = place.add(KEY);
            match <[u8; 8]>::try_from(self.key) {
                // Most keys are numbers: a word is copied without a call.
                Ok(word) => key.cast::<[u8; 8]>().write(word),
                Err(_) => key.copy_from_nonoverlapping(self.key.as_ptr(), self.key.len()),
            }
            place.cast::<Head>().write(head);
        }
    }

    /// Writes a letter with a value, by moving that.
    ///
    /// # Safety
    /// As many bytes as `size(size_of::<M>())`, aligned to [`ALIGN`], are the caller's there; `M` [fits](fits). What `message` points to is not used
    /// afterwards.
    #[inline(always)]
    pub unsafe fn write_value<M: Wire>(&self, place: *mut u8, message: *const M) {
        // SAFETY: the caller's bytes; `fits` says that the body's place is aligned for an `M`. The value is the caller's to give away.
        unsafe {
            self.write(place, Some(Table::of::<M>()), size_of::<M>(), |body| body.cast::<M>().copy_from_nonoverlapping(message, 1));
        }
    }

    /// As [`write_value`](Self::write_value), of one that was made somewhere else just now.
    ///
    /// # Safety
    /// As that of [`write_value`](Self::write_value).
    #[inline(always)]
    pub unsafe fn write_made<M: Wire>(&self, place: *mut u8, message: *const M) {
        // SAFETY: as in `write_value`.
        unsafe { self.write(place, Some(Table::of::<M>()), size_of::<M>(), |body| move_made(message, body.cast::<M>())) };
    }

    /// Writes a letter with an encoding.
    ///
    /// # Safety
    /// As many bytes as `size(encoded.len())`, aligned to [`ALIGN`], are the caller's there.
    #[inline]
    pub unsafe fn write_encoded(&self, place: *mut u8, encoded: &[u8]) {
        // SAFETY: the caller's bytes.
        unsafe { self.write(place, None, encoded.len(), |body| body.copy_from_nonoverlapping(encoded.as_ptr(), encoded.len())) }
    }
}

/// Moves a value that was written just now, field by field, as it is made: in words. A reading that spans two stores waits until both have left for the cache,
/// and all stores before them, those into a ring that another core looks at among them; one that lies within a store does not. A copy is made of readings of
/// two words.
///
/// # Safety
/// `from` holds a value that nobody uses afterwards, and `to` has room for it.
#[inline(always)]
unsafe fn move_made<M>(from: *const M, to: *mut M) {
    let words = size_of::<M>() / WORD;
    // SAFETY: the caller's, and both are aligned to words where they are taken for such. What is in a word is moved as it is, whatever it is.
    unsafe {
        if align_of::<M>() < WORD || words > WORDS_MOVED {
            return to.copy_from_nonoverlapping(from, 1);
        }
        for at in 0..words {
            let word = from.cast::<MaybeUninit<u64>>().add(at).read();
            // So that the compiler does not make two of them one.
            to.cast::<MaybeUninit<u64>>().add(at).write_volatile(word);
        }
    }
}

/// Longer values are copied.
const WORDS_MOVED: usize = 16;

/// Whether values of this type can stand in a letter.
pub const fn fits<M>() -> bool {
    size_of::<M>() <= LETTER_MAX && align_of::<M>() <= 8
}

/// A letter in the ring of the caller. Dropping it drops what was not taken.
pub struct Letter<'a> {
    place: *mut u8,
    /// The value was taken. Not in here, so that it is known also when a panic has taken this away.
    taken: &'a mut bool,
    _ring: PhantomData<&'a mut [u8]>,
}

impl<'a> Letter<'a> {
    /// The letter that was written there. `taken` says whether its value is gone already, and is told when it goes.
    ///
    /// # Safety
    /// A letter was written there by one of the methods of [`Address`]; it stays where it is for `'a` and is looked at by nobody else; `taken` was
    /// false for the first `Letter` made of it, and every later one gets what the one before has left there.
    #[inline]
    pub unsafe fn at(place: *mut u8, taken: &'a mut bool) -> Self {
        Self { place, taken, _ring: PhantomData }
    }

    #[inline]
    fn head(&self) -> Head {
        // SAFETY: a letter stands there, as `at` was promised, and begins with its head.
        unsafe { self.place.cast::<Head>().read() }
    }

    /// All but the body.
    #[inline]
    pub fn address(&self) -> Address<'a> {
        let Head { shard, tag, hash, body, reads, asked, arrived, .. } = self.head();
        let stream = usize::from(body) - if asked { size_of::<Ask>() } else { 0 } - if arrived { size_of::<NodeId>() } else { 0 };
        // SAFETY: a stream stands there if the letter has arrived, as `Address::write` put it.
        let stream = arrived.then(|| unsafe { self.place.add(stream).cast::<NodeId>().read() });
        Address { shard, tag, stream, key: self.key(), hash, ask: self.asker().0.copied(), reads }
    }

    /// The shard of the key, by what it was sent, its hash, and whether it came from another node: what the way to the entity begins with.
    #[inline]
    pub fn route(&self) -> (ShardKey, Epoch, u64, bool) {
        let Head { shard, tag, hash, arrived, .. } = self.head();
        (shard, tag, hash, arrived)
    }

    /// Canonical bytes of the entity's key.
    #[inline]
    pub fn key(&self) -> &'a [u8] {
        // SAFETY: the key stands behind the head, as `Address::write` put it, and stays for `'a`.
        unsafe { std::slice::from_raw_parts(self.place.add(KEY).cast_const(), usize::from((*self.place.cast::<Head>()).key)) }
    }

    /// The key, if it has eight bytes, nobody waits for an answer and the letter was sent on this node, as most are: one look says so.
    #[inline(always)]
    pub fn plain_key(&self) -> Option<&'a [u8; 8]> {
        const { assert!(offset_of!(Head, key) + 3 == offset_of!(Head, arrived)) };
        // SAFETY: a letter begins with its head, which ends with four bytes: the key's length, `reads`, `asked` and `arrived`. So many bytes of a key stand
        // behind it, as `Address::write` put them, and stay for `'a`.
        unsafe {
            let plain = self.place.add(offset_of!(Head, key)).cast::<[u8; 4]>().read() == [8, 0, 0, 0];
            plain.then(|| &*self.place.add(KEY).cast::<[u8; 8]>())
        }
    }

    /// Who waits for an answer, and the newest version of it that is read there.
    #[inline]
    pub fn asker(&self) -> (Option<&'a Ask>, u8) {
        let Head { body, reads, asked, .. } = self.head();
        // SAFETY: an ask stands right before the body of a request, as `Address::write` put it, and stays for `'a`.
        (asked.then(|| unsafe { &*self.place.add(usize::from(body) - size_of::<Ask>()).cast::<Ask>() }), reads)
    }

    #[inline]
    fn body(&self) -> *mut u8 {
        // SAFETY: the body stands there, as `Address::write` put it.
        unsafe { self.place.add(usize::from(self.head().body)) }
    }

    /// The encoding, if it is one. A request's has the version of its answer in front, as in an envelope.
    #[inline]
    pub fn encoded(&self) -> Option<&'a [u8]> {
        let Head { table, len, .. } = self.head();
        // SAFETY: an encoding of so many bytes stands there for `'a`.
        table.is_none().then(|| unsafe { std::slice::from_raw_parts(self.body().cast_const(), usize::from(len)) })
    }

    /// The encoded message, if it is encoded.
    #[inline]
    pub fn message(&self) -> Option<&'a [u8]> {
        self.encoded().map(|bytes| bytes.get(usize::from(self.head().asked)..).unwrap_or_default())
    }

    /// Gives the value of the letter to `f`, if there is a letter and its value is an `M` that was not taken; else what `or` finds. One call of `f` for
    /// both, so that the compiler takes it in.
    #[inline(always)]
    pub fn hand_to<M: Wire, R, E>(
        mut letter: Option<&mut Self>,
        f: impl FnOnce(M) -> R,
        or: impl FnOnce(Option<&mut Self>) -> Result<M, E>,
    ) -> Result<R, E> {
        let message = match letter.as_mut().and_then(|letter| letter.give_away::<M>()) {
            // SAFETY: an `M` stands there, which nobody has taken before, and nobody will again.
            Some(value) => unsafe { value.read() },
            None => or(letter)?,
        };
        Ok(f(message))
    }

    /// Where the value stands, which the caller has from now on, if it is an `M` that was not taken.
    #[inline(always)]
    fn give_away<M: Wire>(&mut self) -> Option<*const M> {
        // SAFETY: a letter stands there, and begins with its head.
        let table = unsafe { (*self.place.cast::<Head>()).table };
        // The table was written together with an `M`.
        let given = !*self.taken && Table::is_for::<M>(table);
        given.then(|| {
            *self.taken = true;
            self.body().cast_const().cast()
        })
    }

    /// The value, if it is an `M` that was not taken.
    #[cfg(test)]
    pub fn take<M: Wire>(&mut self) -> Option<M> {
        Self::hand_to(Some(self), |message| message, |_| Err(())).ok()
    }

    /// Whether it is no message but a sign.
    #[inline]
    pub fn is_sign(&self) -> bool {
        self.head().asked && self.encoded().is_some_and(|bytes| bytes.first() == Some(&NO_VERSION))
    }

    /// As what goes every way; `None` if it was taken.
    pub fn lift(&mut self) -> Option<EngineParcel> {
        if *self.taken {
            return None;
        }
        let Address { shard, key, ask, reads, .. } = self.address();
        Some(match (self.head().table, self.encoded()) {
            (Some(table), _) => {
                *self.taken = true;
                // SAFETY: a value of the table's type stands there, and nobody takes it any more.
                let msg = unsafe { AnyMessage::lift(table, self.body()) };
                EngineParcel::Typed { key: Key::new(key), ask, reads, msg }
            }
            (None, encoded) => {
                let bytes = encoded.unwrap_or_default();
                EngineParcel::from_envelope(Envelope::new(shard, ask, key, bytes).expect("the key of a letter has at most 255 bytes"))
            }
        })
    }
}

impl Drop for Letter<'_> {
    fn drop(&mut self) {
        if !*self.taken
            && let Some(table) = self.head().table
        {
            *self.taken = true;
            // SAFETY: a value of the table's type stands there, and nobody takes it any more.
            unsafe { (table.drop_at)(self.body()) }
        }
    }
}

/// The unit of drafts: what letters are aligned to.
#[repr(C, align(16))]
struct Unit(MaybeUninit<[u8; ALIGN]>);

/// Messages that wait to be sent, each as the letter that it is going to be but for its shard: what is left to do then is to copy them.
pub struct Drafts<M: Wire> {
    units: Vec<Unit>,
    /// Where the oldest begins.
    next: usize,
    _values: PhantomData<M>,
}

impl<M: Wire> Default for Drafts<M> {
    fn default() -> Self {
        Self { units: vec![], next: 0, _values: PhantomData }
    }
}

impl<M: Wire> Drafts<M> {
    /// Whether such messages can be drafted.
    pub const TAKES: bool = fits::<M>();

    /// Adds a message to a key of at most 255 bytes. In line, as all lengths are known where that of the key is.
    #[inline(always)]
    pub fn push(&mut self, key: &[u8], hash: u64, message: M) {
        assert!(Self::TAKES && key.len() <= usize::from(u8::MAX), "only what stands in a letter is drafted");
        let nowhere = ShardKey { ty: TypeId(0), shard: ShardId(0) };
        let draft = Address { shard: nowhere, tag: Epoch::ZERO, stream: None, key, hash, ask: None, reads: 0 };
        let units = draft.size(size_of::<M>()).div_ceil(ALIGN);
        self.units.reserve(units);
        let message = ManuallyDrop::new(message);
        // SAFETY: room for so many units was just made behind those in use; the message is moved there, and used here no more.
        unsafe {
            draft.write_value::<M>(self.units.as_mut_ptr().add(self.units.len()).cast(), &raw const *message);
            self.units.set_len(self.units.len() + units);
        }
    }

    /// The oldest one, which is none any more when this is dropped.
    #[inline]
    pub fn next(&mut self) -> Option<Draft<'_, M>> {
        if self.next == self.units.len() {
            return None;
        }
        // SAFETY: a draft that was not handed out before begins there.
        let mut draft = unsafe { Draft { place: self.units.as_mut_ptr().add(self.next).cast(), taken: false, _values: PhantomData } };
        self.next += draft.size().div_ceil(ALIGN);
        Some(draft)
    }

    /// Offers them to `send`, the oldest first, until it leaves one as it was, which stays: how many it moved or took out.
    #[inline(always)]
    pub fn send_while(&mut self, mut send: impl FnMut(&mut Draft<'_, M>)) -> usize {
        let mut sent = 0;
        while self.next != self.units.len() {
            // SAFETY: a draft that was not handed out before begins there.
            let place = unsafe { self.units.as_mut_ptr().add(self.next).cast() };
            let draft = ManuallyDrop::new(Draft { place, taken: false, _values: PhantomData });
            let mut offered = Offered { draft, next: &mut self.next };
            send(&mut offered.draft);
            if !offered.draft.taken {
                break;
            }
            sent += 1;
        }
        sent
    }

    /// Bytes of those that wait.
    pub fn bytes(&self) -> usize {
        (self.units.len() - self.next) * ALIGN
    }

    /// The hashes of the keys of those that wait, in their order.
    pub fn hashes(&self) -> impl Iterator<Item = u64> + '_ {
        let mut at = self.next;
        std::iter::from_fn(move || {
            let rest = self.units.get(at..).filter(|rest| !rest.is_empty())?;
            // SAFETY: a draft that was not handed out begins there, and with its head; nobody changes it while the drafts are borrowed.
            let head = unsafe { &*rest.as_ptr().cast::<Head>() };
            at += (usize::from(head.body) + size_of::<M>()).div_ceil(ALIGN);
            Some(head.hash)
        })
    }

    /// Drops what is left, and keeps the room.
    pub fn clear(&mut self) {
        while let Some(draft) = self.next() {
            drop(draft);
        }
        self.units.clear();
        self.next = 0;
    }
}

/// A draft that is still among the others; no more once it is taken, also if whoever was offered it has panicked.
struct Offered<'a, 'b, M: Wire> {
    draft: ManuallyDrop<Draft<'a, M>>,
    next: &'b mut usize,
}

impl<M: Wire> Drop for Offered<'_, '_, M> {
    #[inline]
    fn drop(&mut self) {
        if self.draft.taken {
            *self.next += self.draft.size().div_ceil(ALIGN);
        }
    }
}

impl<M: Wire> Drop for Drafts<M> {
    fn drop(&mut self) {
        self.clear();
    }
}

/// A message that waits to be sent.
pub struct Draft<'a, M: Wire> {
    place: *mut u8,
    taken: bool,
    _values: PhantomData<&'a mut M>,
}

impl<M: Wire> Draft<'_, M> {
    #[inline]
    fn head(&self) -> &Head {
        // SAFETY: a letter stands there, and begins with its head.
        unsafe { &*self.place.cast::<Head>() }
    }

    /// Bytes of the letter.
    #[inline]
    pub fn size(&mut self) -> usize {
        usize::from(self.head().body) + size_of::<M>()
    }

    /// XXH3-64 of the key.
    #[inline]
    pub fn hash(&self) -> u64 {
        self.head().hash
    }

    /// Canonical bytes of the entity's key.
    pub fn key(&self) -> &[u8] {
        // SAFETY: the key stands where `Address::write` put it, in the room of the drafts, which are borrowed for as long as this lives.
        unsafe { std::slice::from_raw_parts(self.place.add(KEY), usize::from(self.head().key)) }
    }

    /// Where it goes, if that shard is elsewhere.
    #[inline]
    pub fn abroad(&self, shard: ShardKey) -> Address<'_> {
        Address { shard, tag: Epoch::ZERO, stream: None, key: self.key(), hash: self.hash(), ask: None, reads: 0 }
    }

    /// The message, which was not taken.
    pub fn message(&self) -> &M {
        assert!(!self.taken, "a draft is asked for what was not taken out of it");
        let body = usize::from(self.head().body);
        // SAFETY: a message stands there, and stays for as long as the draft is borrowed.
        unsafe { &*self.place.add(body).cast::<M>() }
    }

    /// The message, if it was not taken before.
    pub fn take(&mut self) -> Option<M> {
        let body = usize::from(self.head().body);
        let there = !std::mem::replace(&mut self.taken, true);
        // SAFETY: a message stands there, and `taken` says that nobody has it and lets nobody have it again.
        there.then(|| unsafe { self.place.add(body).cast::<M>().read() })
    }

    /// Moves it into a ring, as a letter to that shard.
    ///
    /// # Safety
    /// `size()` bytes, aligned to [`ALIGN`], are the caller's there, and hold nothing.
    #[inline]
    pub unsafe fn move_to(&mut self, place: *mut u8, shard: ShardKey, tag: Epoch) {
        debug_assert!(!self.taken, "what was sent is dropped at once");
        self.taken = true;
        let head = *self.head();
        let body = usize::from(head.body);
        // SAFETY: the caller's bytes; head, key and value are moved there, and nobody uses them here any more. In pieces whose lengths are known,
        // as most keys are words: a copy of unknown length is a call.
        unsafe {
            place.add(body).cast::<M>().copy_from_nonoverlapping(self.place.add(body).cast::<M>(), 1);
            if body == KEY + 8 {
                place.add(KEY).cast::<MaybeUninit<[u8; 8]>>().copy_from_nonoverlapping(self.place.add(KEY).cast(), 1);
            } else {
                place.add(KEY).copy_from_nonoverlapping(self.place.add(KEY), usize::from(head.key));
            }
            place.cast::<Head>().write(Head { shard, tag, ..head });
        }
    }

    /// As [`move_to`](Self::move_to), past the caches.
    ///
    /// # Safety
    /// As that of [`move_to`](Self::move_to), for `size()` bytes rounded up to whole words.
    #[inline(always)]
    pub unsafe fn move_past(&mut self, place: *mut u8, shard: ShardKey, tag: Epoch) {
        const { assert!(offset_of!(Head, shard) == 0 && offset_of!(Head, tag) == WORD) };
        debug_assert!(!self.taken, "what was sent is dropped at once");
        self.taken = true;
        let (body, message) = (usize::from(self.head().body), size_of::<M>());
        let words = |size: usize| (size - ALIGN).div_ceil(WORD);
        // SAFETY: the caller's bytes; all of it is moved there, but for the two words that are written instead, and nobody uses it here any more. A draft has
        // whole units, so there are as many words. Most keys are one, and then it is known how many.
        unsafe {
            word_past(place, mem::transmute::<ShardKey, [u32; 2]>(shard));
            word_past(place.add(WORD), mem::transmute::<Epoch, [u32; 2]>(tag));
            let (place, from) = (place.add(ALIGN), self.place.add(ALIGN).cast_const());
            if body == KEY + WORD {
                copy_past(place, from, words(KEY + WORD + message));
            } else {
                copy_past(place, from, words(body + message));
            }
        }
    }
}

impl<M: Wire> Drop for Draft<'_, M> {
    #[inline]
    fn drop(&mut self) {
        if !self.taken {
            drop(self.take());
        }
    }
}

// The unsafe above is for an interpreter to judge: `cargo +nightly miri test --lib engine::letter`.
#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{Time, engine::message::tests};

    type Counted = tests::Counted<3>;

    #[repr(align(16))]
    struct Room([u8; 512]);

    fn address(key: &[u8], asked: bool, arrived: bool) -> Address<'_> {
        let ask = Ask { node: NodeId::from_raw(7), correlation: 3, deadline: Time::from_nanos(9) };
        Address {
            shard: ShardKey { ty: TypeId(1), shard: ShardId(2) },
            tag: Epoch(5),
            stream: arrived.then_some(NodeId::from_raw(8)),
            key,
            hash: 11,
            ask: asked.then_some(ask),
            reads: if asked { 4 } else { 0 },
        }
    }

    #[test]
    fn what_was_made_just_now_is_moved_with_its_gaps() {
        struct Gaps {
            small: u8,
            whole: Arc<()>,
            short: u16,
        }
        let alive = Arc::new(());
        let (made, bytes) = (ManuallyDrop::new(Gaps { small: 1, whole: alive.clone(), short: 2 }), [3u8; 13]);
        let (mut room, mut other) = (MaybeUninit::<Gaps>::uninit(), [0; 13]);
        // SAFETY: `made` is not dropped, and both rooms are of the types of what comes there.
        let moved = unsafe {
            move_made(&raw const *made, room.as_mut_ptr());
            move_made(&raw const bytes, &raw mut other);
            room.assume_init()
        };
        assert_eq!((moved.small, moved.short, Arc::strong_count(&moved.whole), other), (1, 2, 2, bytes));
        drop(moved);
        assert_eq!(Arc::strong_count(&alive), 1);
    }

    #[test]
    fn every_form_comes_out_as_it_was_written() {
        let alive = Arc::new(());
        for (asked, arrived, made, len) in (0..8 * 33).map(|n| (n & 1 == 1, n & 2 == 2, n & 4 == 4, n >> 3)) {
            let key: Vec<u8> = (0..len as u8).collect();
            let (there, mut room, mut taken) = (address(&key, asked, arrived), Room([0; 512]), false);
            assert!(there.size(size_of::<Counted>()) <= 512);
            // SAFETY: the room is large and aligned enough, and holds one letter at a time.
            let mut letter = unsafe {
                let value = ManuallyDrop::new(tests::Counted(alive.clone(), [len, 1, 2]));
                match made {
                    true => there.write_made(room.0.as_mut_ptr(), &raw const *value),
                    false => there.write_value(room.0.as_mut_ptr(), &raw const *value),
                }
                Letter::at(room.0.as_mut_ptr(), &mut taken)
            };
            let seen = letter.address();
            assert_eq!((seen.shard, seen.tag, seen.stream, seen.key), (there.shard, there.tag, there.stream, there.key));
            assert_eq!((seen.hash, seen.ask, seen.reads), (there.hash, there.ask, there.reads));
            assert!(letter.encoded().is_none() && !letter.is_sign());
            let plain = letter.plain_key().map(|key| &key[..]);
            assert_eq!(plain, (len == 8 && !asked && !arrived).then_some(&key[..]));
            match len % 3 {
                0 => assert_eq!(letter.take::<Counted>().unwrap().1, [len, 1, 2]),
                1 => {
                    let parcel = letter.lift().unwrap();
                    assert_eq!((parcel.key(), parcel.ask(), Arc::strong_count(&alive)), (&key[..], there.ask, 2));
                    assert!(letter.lift().is_none() && letter.take::<Counted>().is_none(), "it is out");
                }
                _ => assert!(letter.take::<u64>().is_none(), "another type"),
            }
            drop(letter);
            assert_eq!(Arc::strong_count(&alive), 1, "dropped once, whatever became of it");

            taken = false;
            let body = [vec![4; usize::from(asked)], vec![9; len as usize]].concat();
            // SAFETY: as above; the first letter is gone.
            let mut letter = unsafe {
                there.write_encoded(room.0.as_mut_ptr(), &body);
                Letter::at(room.0.as_mut_ptr(), &mut taken)
            };
            assert_eq!((letter.encoded(), letter.message()), (Some(&body[..]), Some(&body[usize::from(asked)..])));
            assert_eq!((letter.address().key, letter.address().ask), (&key[..], there.ask));
            let parcel = letter.lift().unwrap();
            assert_eq!((parcel.key(), parcel.encoded(), parcel.ask()), (&key[..], Some(&body[usize::from(asked)..]), there.ask));
        }
    }

    #[test]
    fn drafts_are_sent_given_back_or_dropped_once() {
        let alive = Arc::new(());
        let mut drafts = Drafts::default();
        for round in 0..3u64 {
            for n in 0..10u64 {
                let key = vec![n as u8; 3 * n as usize + 1];
                drafts.push(&key, n, tests::Counted::<3>(alive.clone(), [round, n, 3]));
            }
            assert_eq!(Arc::strong_count(&alive), 11);
            assert!(drafts.hashes().eq(0..10));
            for n in 0..8u64 {
                let mut draft = drafts.next().unwrap();
                assert_eq!((draft.hash(), draft.key()), (n, &vec![n as u8; 3 * n as usize + 1][..]));
                match n % 3 {
                    0 => assert_eq!(draft.take().unwrap().1, [round, n, 3]),
                    1 => {
                        let (mut room, mut taken) = (Room([0; 512]), false);
                        let shard = ShardKey { ty: TypeId(4), shard: ShardId(5) };
                        assert!(draft.size() <= 512);
                        // SAFETY: the room is large and aligned enough, and holds one letter.
                        let mut letter = unsafe {
                            match round {
                                1 => draft.move_past(room.0.as_mut_ptr(), shard, Epoch(6)),
                                _ => draft.move_to(room.0.as_mut_ptr(), shard, Epoch(6)),
                            }
                            Letter::at(room.0.as_mut_ptr(), &mut taken)
                        };
                        assert!(draft.take().is_none());
                        let seen = letter.address();
                        assert_eq!((seen.shard, seen.tag, seen.hash, seen.key, seen.ask), (shard, Epoch(6), n, draft.key(), None));
                        assert_eq!(letter.take::<Counted>().unwrap().1, [round, n, 3]);
                    }
                    _ => {}
                }
                drop(draft);
                assert_eq!(Arc::strong_count(&alive), 10 - n as usize);
            }
            assert!(drafts.hashes().eq(8..10), "those that were not handed out");
            drafts.clear();
            assert!(Arc::strong_count(&alive) == 1 && drafts.next().is_none() && drafts.hashes().next().is_none());
        }
        for n in 0..9u64 {
            drafts.push(&vec![n as u8; 2 * n as usize], n, tests::Counted::<3>(alive.clone(), [n; 3]));
        }
        let mut met = 0;
        let sent = drafts.send_while(|draft| {
            assert_eq!(draft.hash(), met);
            met += 1;
            if met < 6 {
                let (mut room, mut taken) = (Room([0; 512]), false);
                // SAFETY: as above.
                let mut letter = unsafe {
                    draft.move_to(room.0.as_mut_ptr(), ShardKey { ty: TypeId(4), shard: ShardId(5) }, Epoch(6));
                    Letter::at(room.0.as_mut_ptr(), &mut taken)
                };
                assert_eq!((letter.key(), letter.take::<Counted>().unwrap().1), (draft.key(), [draft.hash(); 3]));
            }
        });
        assert_eq!((sent, met, Arc::strong_count(&alive)), (5, 6, 5), "the first that was left alone was the last one offered");
        assert_eq!(drafts.next().map(|draft| draft.hash()), Some(5), "and it is still there");
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drafts.send_while(|_| panic!("as asked"))));
        assert!(caught.is_err() && drafts.next().is_some_and(|draft| draft.hash() == 6), "what nobody has taken stays, also if they panic");
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            drafts.send_while(|draft| {
                drop(draft.take());
                panic!("as asked");
            })
        }));
        assert!(caught.is_err() && drafts.next().is_some_and(|draft| draft.hash() == 8), "what was taken is gone");
        drop(drafts);
        assert_eq!(Arc::strong_count(&alive), 1);
    }
}
