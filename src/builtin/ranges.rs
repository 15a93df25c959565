//! A set of numbers kept as ranges: what was seen of a numbered stream costs memory by its holes, not by its length.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Numbers, as ranges that do not touch each other.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ranges {
    /// First number of a range to its last.
    spans: BTreeMap<u64, u64>,
    /// How many numbers there are in all of them.
    len: u64,
}

impl Ranges {
    /// Adds a number; false if it was there.
    pub fn insert(&mut self, number: u64) -> bool {
        let below = self.spans.range(..=number).next_back().map(|(&first, &last)| (first, last));
        if below.is_some_and(|(_, last)| number <= last) {
            return false;
        }
        let joins_below = below.filter(|&(_, last)| last.checked_add(1) == Some(number));
        let above = number.checked_add(1).and_then(|next| self.spans.remove(&next));
        let last = above.unwrap_or(number);
        match joins_below {
            Some((first, _)) => self.spans.insert(first, last),
            None => self.spans.insert(number, last),
        };
        self.len += 1;
        true
    }

    /// Forgets every number up to and with `bound`.
    pub fn remove_up_to(&mut self, bound: u64) {
        while let Some((&first, &last)) = self.spans.first_key_value() {
            if first > bound {
                return;
            }
            self.spans.remove(&first);
            self.len -= last.min(bound) - first + 1;
            if last > bound {
                self.spans.insert(bound + 1, last);
            }
        }
    }

    /// Whether the number is in the set.
    pub fn contains(&self, number: u64) -> bool {
        self.spans.range(..=number).next_back().is_some_and(|(_, &last)| number <= last)
    }

    /// Whether `insert(number)` would add a range instead of making one longer.
    pub fn would_split(&self, number: u64) -> bool {
        let below = self.spans.range(..=number).next_back();
        let touches_below = below.is_some_and(|(_, &last)| number <= last.saturating_add(1));
        let touches_above = number.checked_add(1).is_some_and(|next| self.spans.contains_key(&next));
        !touches_below && !touches_above
    }

    /// How many numbers.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// How many ranges: what the set costs.
    pub fn spans(&self) -> usize {
        self.spans.len()
    }

    /// The lowest number.
    pub fn first(&self) -> Option<u64> {
        self.spans.first_key_value().map(|(&first, _)| first)
    }

    /// The highest number.
    pub fn last(&self) -> Option<u64> {
        self.spans.last_key_value().map(|(_, &last)| last)
    }

    /// Numbers missing between the lowest and the highest.
    pub fn gaps(&self) -> u64 {
        match (self.first(), self.last()) {
            (Some(first), Some(last)) => (last - first) - (self.len - 1),
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn neighbours_join_into_one_range() {
        let mut set = Ranges::default();
        assert!(set.insert(1) && set.insert(3));
        assert_eq!((set.spans(), set.gaps()), (2, 1));
        assert!(set.insert(2));
        assert_eq!((set.spans(), set.len(), set.gaps()), (1, 3, 0));
        assert!(!set.insert(2));
    }

    #[test]
    fn the_largest_number_does_not_overflow() {
        let mut set = Ranges::default();
        assert!(set.insert(u64::MAX) && !set.insert(u64::MAX) && set.insert(u64::MAX - 1));
        assert_eq!((set.spans(), set.last()), (1, Some(u64::MAX)));
    }

    #[test]
    fn it_holds_what_an_ordinary_set_holds() {
        let mut rng = 7u64;
        let (mut set, mut plain) = (Ranges::default(), BTreeSet::new());
        for step in 0..4_000u64 {
            rng = rng.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let number = (rng >> 33) % 500;
            if step % 97 == 0 {
                set.remove_up_to(number);
                plain.retain(|&kept| kept > number);
            } else {
                let grows = set.would_split(number);
                let before = set.spans();
                assert_eq!(set.insert(number), plain.insert(number));
                assert_eq!(set.spans() > before, grows);
            }
            assert_eq!(set.len(), plain.len() as u64);
            assert_eq!((set.first(), set.last()), (plain.first().copied(), plain.last().copied()));
            assert_eq!(set.contains(number), plain.contains(&number));
        }
    }
}
