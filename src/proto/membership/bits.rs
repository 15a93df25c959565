//! Sets of members, one bit for each in the order of their ids.

/// A set of places in a list.
#[derive(Clone, Default, Debug)]
pub(crate) struct Bits {
    /// The last word is not 0.
    words: Vec<u64>,
}

impl PartialEq for Bits {
    fn eq(&self, other: &Self) -> bool {
        self.words == other.words
    }
}

impl Bits {
    /// The low bits of each byte first; what lies at `len` or beyond is ignored.
    pub(crate) fn from_bytes(bytes: &[u8], len: usize) -> Self {
        let mut bits = Self::default();
        bits.learn(bytes, 0, len);
        bits
    }

    /// So many places, a byte for each eight.
    pub(crate) fn to_bytes(&self, len: usize) -> Vec<u8> {
        let mut bytes: Vec<u8> = self.words.iter().flat_map(|w| w.to_le_bytes()).collect();
        bytes.resize(len.div_ceil(8), 0);
        bytes
    }

    pub(crate) fn has(&self, at: usize) -> bool {
        self.words.get(at / 64).is_some_and(|w| w >> (at % 64) & 1 == 1)
    }

    /// False if it was there.
    pub(crate) fn insert(&mut self, at: usize) -> bool {
        if self.words.len() <= at / 64 {
            self.words.resize(at / 64 + 1, 0);
        }
        let word = &mut self.words[at / 64];
        let before = *word;
        *word |= 1 << (at % 64);
        *word != before
    }

    pub(crate) fn clear(&mut self) {
        self.words.clear();
    }

    pub(crate) fn count(&self) -> usize {
        self.words.iter().map(|w| w.count_ones() as usize).sum()
    }

    /// Whether all of `others` are here.
    pub(crate) fn covers(&self, others: &Self) -> bool {
        others.words.iter().enumerate().all(|(i, &w)| w & !self.words.get(i).copied().unwrap_or(0) == 0)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.words.iter().enumerate().flat_map(|(i, &word)| places(i, word))
    }

    /// Those that are here and not among `others`.
    pub(crate) fn beyond<'a>(&'a self, others: &'a Self) -> impl Iterator<Item = usize> + 'a {
        self.words.iter().enumerate().flat_map(|(i, &word)| places(i, word & !others.words.get(i).copied().unwrap_or(0)))
    }

    /// Takes over those of `bytes`, which begin at the place `from` (a multiple of 64), below `len`: whether that brought any, and whether
    /// some that are here in that stretch are not among them.
    pub(crate) fn learn(&mut self, bytes: &[u8], from: usize, len: usize) -> (bool, bool) {
        let (mut news, mut more) = (false, false);
        let end = len.div_ceil(64);
        if self.words.len() < end {
            self.words.resize(end, 0);
        }
        for (chunk, at) in bytes.chunks(8).zip(from / 64..end) {
            let mut raw = [0; 8];
            raw[..chunk.len()].copy_from_slice(chunk);
            let mut theirs = u64::from_le_bytes(raw);
            if len < (at + 1) * 64 {
                theirs &= (1 << (len - at * 64)) - 1;
            }
            let mine = &mut self.words[at];
            news |= theirs & !*mine != 0;
            more |= *mine & !theirs != 0;
            *mine |= theirs;
        }
        while self.words.last() == Some(&0) {
            self.words.pop();
        }
        (news, more)
    }

    /// Names the set.
    pub(crate) fn digest(&self) -> u64 {
        let bytes: Vec<u8> = self.words.iter().flat_map(|w| w.to_le_bytes()).collect();
        xxhash_rust::xxh3::xxh3_64(&bytes)
    }
}

/// Of the bits of a word.
fn places(word: usize, mut left: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let at = left.trailing_zeros() as usize;
        left &= left.wrapping_sub(1);
        (at < 64).then_some(word * 64 + at)
    })
}

#[cfg(test)]
impl FromIterator<usize> for Bits {
    fn from_iter<I: IntoIterator<Item = usize>>(places: I) -> Self {
        let mut bits = Self::default();
        for at in places {
            bits.insert(at);
        }
        bits
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_says_what_a_tree_says(mine in proptest::collection::btree_set(0usize..200, 0..40),
                                    theirs in proptest::collection::btree_set(0usize..200, 0..40), len in 0usize..200, from in 0usize..4) {
            let from = from * 64;
            let mut bits: Bits = mine.iter().copied().collect();
            let others: Bits = theirs.iter().copied().collect();
            prop_assert_eq!(bits.count(), mine.len());
            prop_assert!((0..210).all(|i| bits.has(i) == mine.contains(&i)));
            prop_assert_eq!(bits.covers(&others), theirs.is_subset(&mine));
            prop_assert!(bits.iter().eq(mine.iter().copied()));
            prop_assert!(bits.beyond(&others).eq(mine.difference(&theirs).copied()));
            let told: BTreeSet<usize> = theirs.range(from..len.max(from)).copied().collect();
            let mine_there: BTreeSet<usize> = mine.range(from..len.next_multiple_of(64).max(from)).copied().collect();
            let (news, more) = bits.learn(&others.to_bytes(256)[from / 8..], from, len);
            prop_assert_eq!((news, more), (!told.is_subset(&mine), !mine_there.is_subset(&told)));
            prop_assert!((0..210).all(|i| bits.has(i) == (mine.contains(&i) || told.contains(&i))));
            prop_assert_eq!(&Bits::from_bytes(&bits.to_bytes(200), 200), &bits);
            prop_assert_eq!(bits.digest(), Bits::from_bytes(&bits.to_bytes(200), 200).digest());
        }
    }
}
