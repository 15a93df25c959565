//! Keys of a shard's entities, one behind the other: a block of its own for each would cost more than the key.

use std::num::NonZeroU32;

/// Where a key stands.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) struct KeyAt(NonZeroU32);

/// Less garbage than this is not worth a compaction.
const GARBAGE_MIN: usize = 4096;

/// Each key behind its length, from the second byte on.
#[derive(Default)]
pub(super) struct Keys {
    bytes: Vec<u8>,
    garbage: usize,
}

impl Keys {
    /// Adds a key of at most 255 bytes.
    pub fn add(&mut self, key: &[u8]) -> KeyAt {
        if self.bytes.is_empty() {
            self.bytes.push(0);
        }
        let at = u32::try_from(self.bytes.len()).ok().and_then(NonZeroU32::new).expect("the keys of one shard take less than 4 GiB");
        let length = u8::try_from(key.len()).expect("keys are at most 255 bytes long, or they would not have fitted an envelope");
        if self.bytes.capacity() - self.bytes.len() <= key.len() {
            self.bytes.reserve_exact(room(self.bytes.len()).max(key.len() + 1));
        }
        self.bytes.push(length);
        self.bytes.extend_from_slice(key);
        KeyAt(at)
    }

    /// Makes room for so many bytes of keys and their lengths.
    pub fn reserve(&mut self, bytes: usize) {
        self.bytes.reserve_exact(bytes + 1);
    }

    /// The key that stands there.
    #[inline]
    pub fn get(&self, at: KeyAt) -> &[u8] {
        let at = at.0.get() as usize;
        let length = usize::from(self.bytes[at]);
        &self.bytes[at + 1..][..length]
    }

    /// Where the key begins.
    #[inline]
    pub fn first(&self, at: KeyAt) -> Option<&u8> {
        self.bytes.get(at.0.get() as usize)
    }

    /// Whether that key stands there.
    #[inline]
    pub fn is(&self, at: KeyAt, key: &[u8]) -> bool {
        let place = at.0.get() as usize;
        // Most keys are numbers: a word is compared without a call.
        match (<&[u8; 8]>::try_from(key), self.bytes.get(place..place + 9).and_then(<[u8]>::first_chunk::<9>)) {
            (Ok(key), Some([8, there @ ..])) => there == key,
            _ => self.is_long(at, key),
        }
    }

    /// As [`is`](Self::is), of keys of any length.
    #[inline(never)]
    fn is_long(&self, at: KeyAt, key: &[u8]) -> bool {
        self.get(at) == key
    }

    /// The key that stands there is not needed any more.
    pub fn forget(&mut self, at: KeyAt) {
        self.garbage += 1 + self.get(at).len();
    }

    /// So much is not needed any more that it pays to copy the rest.
    pub fn is_half_empty(&self) -> bool {
        self.garbage >= GARBAGE_MIN && self.garbage * 2 > self.bytes.len()
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
        assert!(at.iter().zip(&all).all(|(at, key)| keys.get(*at) == key.as_slice()));
        assert_eq!(size_of::<Option<KeyAt>>(), 4);
        at.iter().take(150).for_each(|at| keys.forget(*at));
        assert!(!keys.is_half_empty());
        at.iter().skip(150).for_each(|at| keys.forget(*at));
        assert!(keys.is_half_empty());
    }
}
