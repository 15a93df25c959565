//! Keys of a shard's entities: short ones, as numbers are, where their entities are listed; others one behind the other, as a block of its own for each
//! would cost more than the key.

use std::num::NonZeroU32;

/// Keys of no more bytes than that are short.
const SHORT_MAX: usize = 8;

/// A short key, or where a long one stands.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) struct KeyAt {
    /// One more than the length of a short key; else more than that, by the place where it stands.
    at: NonZeroU32,
    /// All of a short key, and zeros.
    short: [u8; SHORT_MAX],
}

/// Of a short key that has all the room.
const FULL: u32 = SHORT_MAX as u32 + 1;
/// Of the first long one.
const LONG: u32 = FULL + 1;

/// Less garbage than this is not worth a compaction.
const GARBAGE_MIN: usize = 4096;

/// The long keys, each behind its length.
#[derive(Default)]
pub(super) struct Keys {
    bytes: Vec<u8>,
    garbage: usize,
}

impl Keys {
    /// Adds a key of at most 255 bytes.
    pub fn add(&mut self, key: &[u8]) -> KeyAt {
        let length = u8::try_from(key.len()).expect("keys are at most 255 bytes long, or they would not have fitted an envelope");
        let mut short = [0; SHORT_MAX];
        let at = if let Some(place) = short.get_mut(..key.len()) {
            place.copy_from_slice(key);
            u32::from(length) + 1
        } else {
            let at = u32::try_from(self.bytes.len())
                .ok()
                .and_then(|at| at.checked_add(LONG))
                .expect("the keys of one shard take less than 4 GiB");
            if self.bytes.capacity() - self.bytes.len() <= key.len() {
                self.bytes.reserve_exact(room(self.bytes.len()).max(key.len() + 1));
            }
            self.bytes.push(length);
            self.bytes.extend_from_slice(key);
            at
        };
        KeyAt { at: NonZeroU32::MIN.saturating_add(at - 1), short }
    }

    /// The key.
    #[inline]
    pub fn get<'a>(&'a self, key: &'a KeyAt) -> &'a [u8] {
        match key.long() {
            Some(at) => &self.bytes[at + 1..][..usize::from(self.bytes[at])],
            None => &key.short[..key.at.get() as usize - 1],
        }
    }

    /// Where the key begins, if that is not where it is listed.
    #[inline]
    pub fn first(&self, key: &KeyAt) -> Option<&u8> {
        self.bytes.get(key.long()?)
    }

    /// Whether it is that key.
    #[inline]
    pub fn is(&self, at: &KeyAt, key: &[u8]) -> bool {
        // Most keys are numbers: a word is compared without a call.
        match <[u8; SHORT_MAX]>::try_from(key) {
            Ok(key) => at.at.get() == FULL && at.short == key,
            Err(_) => self.is_other(at, key),
        }
    }

    /// As [`is`](Self::is), of keys of any length.
    #[inline(never)]
    fn is_other(&self, at: &KeyAt, key: &[u8]) -> bool {
        self.get(at) == key
    }

    /// The key that stands there is not needed any more.
    pub fn forget(&mut self, at: &KeyAt) {
        if at.long().is_some() {
            self.garbage += 1 + self.get(at).len();
        }
    }

    /// So much is not needed any more that it pays to copy the rest, which is a look at so many slots, also of those whose keys are short.
    pub fn is_half_empty(&self, slots: usize) -> bool {
        self.garbage >= slots.max(GARBAGE_MIN) && self.garbage * 2 > self.bytes.len()
    }
}

impl KeyAt {
    /// Where it stands, if it is a long one.
    #[inline]
    fn long(&self) -> Option<usize> {
        self.at.get().checked_sub(LONG).map(|at| at as usize)
    }
}

/// By how much a table of that length grows: a quarter, so that little of a large one stands empty.
pub(super) fn room(len: usize) -> usize {
    (len / 4).max(8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_come_back_and_garbage_is_counted() {
        let mut keys = Keys::default();
        let all: Vec<Vec<u8>> = (0..=255usize).map(|n| vec![n as u8; n]).collect();
        let at: Vec<KeyAt> = all.iter().map(|key| keys.add(key)).collect();
        assert!(at.iter().zip(&all).all(|(at, key)| keys.get(at) == key.as_slice()));
        let others = |n: usize| all.iter().enumerate().filter(move |(other, _)| *other != n);
        assert!(at.iter().zip(&all).enumerate().all(|(n, (at, key))| keys.is(at, key) && !others(n).any(|(_, other)| keys.is(at, other))));
        assert_eq!(size_of::<Option<KeyAt>>(), 12);
        at.iter().take(150).for_each(|at| keys.forget(at));
        assert!(!keys.is_half_empty(256));
        at.iter().skip(150).for_each(|at| keys.forget(at));
        assert!(keys.is_half_empty(256) && !keys.is_half_empty(1 << 20));
    }

    #[test]
    fn short_keys_are_told_apart_by_their_length_and_each_byte() {
        let mut keys = Keys::default();
        let mut all: Vec<Vec<u8>> =
            [&b""[..], b"\0", b"a", b"a\0", b"\0a", &[0; 7], &[0; 8], &[0; 9], b"a number", b"a number!"].map(Vec::from).into();
        all.extend((0..8).map(|n| (0..8).map(|at| u8::from(at == n)).collect()));
        all.extend((0..9).map(|n| (0..9).map(|at| u8::from(at == n)).collect()));
        let at: Vec<KeyAt> = all.iter().map(|key| keys.add(key)).collect();
        for (n, at) in at.iter().enumerate() {
            assert_eq!(keys.get(at), all[n]);
            assert_eq!((0..all.len()).filter(|other| keys.is(at, &all[*other])).collect::<Vec<_>>(), [n]);
        }
    }
}
