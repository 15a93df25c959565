//! Deadlines by key, at most one each, ordered by time.

use std::collections::{BTreeMap, BTreeSet};

use crate::Time;

/// What is due when. A key that is set again only moves.
#[derive(Debug)]
pub(crate) struct Timers<K> {
    by_time: BTreeSet<(Time, K)>,
    of: BTreeMap<K, Time>,
}

impl<K> Default for Timers<K> {
    fn default() -> Self {
        Self { by_time: BTreeSet::new(), of: BTreeMap::new() }
    }
}

impl<K: Ord + Copy> Timers<K> {
    pub fn set(&mut self, key: K, at: Time) {
        self.clear(key);
        self.of.insert(key, at);
        self.by_time.insert((at, key));
    }

    /// As [`set`](Self::set), but only moves a key forward: what is due is not put off by whoever asks for it again and again.
    pub fn set_by(&mut self, key: K, at: Time) {
        if self.of.get(&key).is_none_or(|due| at < *due) {
            self.set(key, at);
        }
    }

    pub fn clear(&mut self, key: K) {
        if let Some(at) = self.of.remove(&key) {
            self.by_time.remove(&(at, key));
        }
    }

    /// Takes one that is due.
    pub fn pop(&mut self, now: Time) -> Option<K> {
        let &(at, key) = self.by_time.first()?;
        (at <= now).then(|| {
            self.clear(key);
            key
        })
    }

    pub fn is_set(&self, key: K) -> bool {
        self.of.contains_key(&key)
    }

    pub fn next(&self) -> Option<Time> {
        self.by_time.first().map(|&(at, _)| at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_has_one_deadline_and_comes_out_in_order() {
        let mut t = Timers::default();
        let at = Time::from_nanos;
        t.set('a', at(5));
        t.set('b', at(3));
        t.set('a', at(1));
        assert_eq!((t.next(), t.pop(at(0))), (Some(at(1)), None));
        assert_eq!((t.pop(at(9)), t.pop(at(9)), t.pop(at(9))), (Some('a'), Some('b'), None));
        assert!(!t.is_set('a'));
    }
}
