//! A hash of everything that happened, in order: equal for equal seeds.

/// The running hash of a run.
#[derive(Clone, Debug)]
pub(super) struct Digest(u64);

impl Digest {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed ^ 0x9e37_79b9_7f4a_7c15)
    }

    pub(super) fn add(&mut self, x: u64) {
        // Folded 64x64 multiplication, as in wyhash: one multiplication per word.
        let product = u128::from(self.0 ^ x) * 0xa076_1d64_78bd_642f;
        self.0 = (product as u64) ^ ((product >> 64) as u64) ^ self.0.rotate_left(23).wrapping_add(0xe703_7ed1_a0b4_28db);
    }

    pub(super) fn add_bytes(&mut self, bytes: &[u8]) {
        self.add(xxhash_rust::xxh3::xxh3_64(bytes));
    }

    pub(super) fn value(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_and_content_count() {
        let of = |words: &[u64]| {
            let mut d = Digest::new(1);
            words.iter().for_each(|w| d.add(*w));
            d.value()
        };
        assert_eq!(of(&[1, 2, 3]), of(&[1, 2, 3]));
        assert_ne!(of(&[1, 2, 3]), of(&[2, 1, 3]));
        assert_ne!(of(&[1, 2]), of(&[1, 2, 0]));
    }
}
