//! A list that is cheap to clone and to change: it stands in parts, and those that nobody changes are shared.

use std::{iter::FusedIterator, slice, sync::Arc};

/// Values of a part, about; at most twice as many.
const PART: usize = 64;

/// A list of values. A clone costs a count of references for each part, a change the copy of one.
#[derive(Clone, Debug)]
pub(crate) struct Parts<V> {
    /// None of them is empty.
    parts: Vec<Arc<Vec<V>>>,
    /// The place of the first value of each part.
    starts: Vec<u32>,
    len: usize,
}

impl<V> Default for Parts<V> {
    fn default() -> Self {
        Self { parts: vec![], starts: vec![], len: 0 }
    }
}

impl<V: PartialEq> PartialEq for Parts<V> {
    fn eq(&self, other: &Self) -> bool {
        let same = || self.parts.iter().zip(&other.parts).all(|(a, b)| Arc::ptr_eq(a, b));
        self.len == other.len && ((self.parts.len() == other.parts.len() && same()) || self.iter().eq(other.iter()))
    }
}

impl<V: Eq> Eq for Parts<V> {}

impl<V> Parts<V> {
    /// Which part has the value at that place, and where.
    fn locate(&self, at: usize) -> (usize, usize) {
        // Most lists have one part, or a few.
        let part = self.starts.partition_point(|&start| start as usize <= at).saturating_sub(1);
        (part, at - self.starts.get(part).map_or(0, |&start| start as usize))
    }

    pub(crate) fn get(&self, at: usize) -> Option<&V> {
        let (part, at) = self.locate(at);
        self.parts.get(part)?.get(at)
    }

    pub(crate) fn iter(&self) -> Iter<'_, V> {
        Iter { front: [].iter(), parts: self.parts.iter(), back: [].iter(), left: self.len }
    }

    /// Those from a place on.
    pub(crate) fn from(&self, at: usize) -> impl Iterator<Item = &V> {
        let (part, at) = self.locate(at);
        self.parts.get(part..).unwrap_or_default().iter().flat_map(|part| part.iter()).skip(at)
    }

    /// Places of the values that stand in parts which the other list does not share, in order.
    pub(crate) fn beyond(&self, other: &Self) -> impl Iterator<Item = usize> {
        let mut known: Vec<*const Vec<V>> = other.parts.iter().map(Arc::as_ptr).collect();
        known.sort_unstable();
        let own = self.parts.iter().zip(&self.starts).filter(move |(part, _)| known.binary_search(&Arc::as_ptr(part)).is_err());
        own.flat_map(|(part, &start)| start as usize..start as usize + part.len())
    }

    /// Of each part from that one on, where it starts.
    fn count_from(&mut self, part: usize) {
        self.starts.truncate(part);
        let mut start = part.checked_sub(1).map_or(0, |before| self.starts[before] as usize + self.parts[before].len());
        for part in &self.parts[part..] {
            self.starts.push(u32::try_from(start).expect("lists of this crate are bounded far below u32::MAX"));
            start += part.len();
        }
        self.len = start;
    }
}

impl<V: Clone> Parts<V> {
    pub(crate) fn get_mut(&mut self, at: usize) -> Option<&mut V> {
        let (part, at) = self.locate(at);
        self.parts.get_mut(part).and_then(|part| Arc::make_mut(part).get_mut(at))
    }

    /// Of the values for which that holds, each; what is shared and has none of them stays so.
    pub(crate) fn iter_mut_where(&mut self, fits: impl Fn(&V) -> bool + Copy) -> impl Iterator<Item = &mut V> {
        let parts = self.parts.iter_mut().filter(move |part| part.iter().any(fits));
        parts.flat_map(Arc::make_mut).filter(move |value| fits(value))
    }

    /// At a place within the list or at its end.
    pub(crate) fn insert(&mut self, at: usize, value: V) {
        let (part, at) = self.locate(at);
        let is_last = part + 1 >= self.parts.len();
        let Some(values) = self.parts.get_mut(part).filter(|values| !(is_last && at == values.len() && at >= PART)) else {
            // What is read in order fills one part after the other.
            self.parts.push(Arc::new(vec![value]));
            return self.count_from(self.parts.len() - 1);
        };
        let values = Arc::make_mut(values);
        values.insert(at, value);
        if values.len() > 2 * PART {
            let rest = values.split_off(PART);
            self.parts.insert(part + 1, Arc::new(rest));
        }
        self.count_from(part);
    }

    /// # Panics
    /// Beyond the end.
    pub(crate) fn remove(&mut self, at: usize) -> V {
        let (part, at) = self.locate(at);
        let values = Arc::make_mut(&mut self.parts[part]);
        let value = values.remove(at);
        if values.is_empty() {
            self.parts.remove(part);
        }
        self.count_from(part);
        value
    }

    /// Keeps those of which `keeps` says so, in order.
    pub(crate) fn retain(&mut self, keeps: &[bool]) {
        for (part, &start) in self.parts.iter_mut().zip(&self.starts) {
            let keeps = &keeps[start as usize..start as usize + part.len()];
            if !keeps.iter().all(|keep| *keep) {
                let mut keeps = keeps.iter();
                Arc::make_mut(part).retain(|_| keeps.next() == Some(&true));
            }
        }
        self.parts.retain(|part| !part.is_empty());
        self.count_from(0);
    }
}

impl<V: Clone> FromIterator<V> for Parts<V> {
    fn from_iter<I: IntoIterator<Item = V>>(values: I) -> Self {
        let mut parts = Self::default();
        let mut values = values.into_iter().peekable();
        while values.peek().is_some() {
            parts.parts.push(Arc::new(values.by_ref().take(PART).collect()));
        }
        parts.count_from(0);
        parts
    }
}

/// The owned values in order.
pub(crate) type IntoIter<V> = std::iter::FlatMap<std::vec::IntoIter<Arc<Vec<V>>>, Vec<V>, fn(Arc<Vec<V>>) -> Vec<V>>;

impl<V: Clone> IntoIterator for Parts<V> {
    type Item = V;
    type IntoIter = IntoIter<V>;

    fn into_iter(self) -> IntoIter<V> {
        self.parts.into_iter().flat_map(Arc::unwrap_or_clone)
    }
}

/// Values in order.
#[derive(Debug)]
pub(crate) struct Iter<'a, V> {
    front: slice::Iter<'a, V>,
    parts: slice::Iter<'a, Arc<Vec<V>>>,
    back: slice::Iter<'a, V>,
    left: usize,
}

impl<V> Clone for Iter<'_, V> {
    fn clone(&self) -> Self {
        Self { front: self.front.clone(), parts: self.parts.clone(), back: self.back.clone(), left: self.left }
    }
}

impl<'a, V> Iterator for Iter<'a, V> {
    type Item = &'a V;

    #[inline]
    fn next(&mut self) -> Option<&'a V> {
        loop {
            if let Some(value) = self.front.next() {
                self.left -= 1;
                return Some(value);
            }
            match self.parts.next() {
                Some(part) => self.front = part.iter(),
                None => {
                    let value = self.back.next()?;
                    self.left -= 1;
                    return Some(value);
                }
            }
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl<V> DoubleEndedIterator for Iter<'_, V> {
    fn next_back(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(value) = self.back.next_back() {
                self.left -= 1;
                return Some(value);
            }
            match self.parts.next_back() {
                Some(part) => self.back = part.iter(),
                None => {
                    let value = self.front.next_back()?;
                    self.left -= 1;
                    return Some(value);
                }
            }
        }
    }
}

impl<V> ExactSizeIterator for Iter<'_, V> {}
impl<V> FusedIterator for Iter<'_, V> {}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn parts_say_what_a_list_says_and_a_clone_stays_as_it_was(ops in proptest::collection::vec((0u8..6, 0usize..1000, any::<u16>()), 0..120)) {
            let (mut parts, mut list) = (Parts::default(), vec![]);
            for (op, at, value) in ops {
                let (before, was) = (parts.clone(), list.clone());
                let at = at % (list.len() + 1);
                match op {
                    0 | 1 => {
                        parts.insert(at, value);
                        list.insert(at, value);
                    }
                    2 if at < list.len() => prop_assert_eq!(parts.remove(at), list.remove(at)),
                    3 => {
                        parts.get_mut(at).into_iter().for_each(|v| *v = value);
                        list.get_mut(at).into_iter().for_each(|v| *v = value);
                    }
                    4 => {
                        let keeps: Vec<bool> = list.iter().map(|v| v % 11 != value % 11).collect();
                        parts.retain(&keeps);
                        list.retain(|v| v % 11 != value % 11);
                    }
                    _ => {
                        for n in 0..value % 150 {
                            parts.insert(list.len(), n);
                            list.push(n);
                        }
                        parts.iter_mut_where(|v| v % 7 == value % 7).for_each(|v| *v ^= 1);
                        list.iter_mut().filter(|v| **v % 7 == value % 7).for_each(|v| *v ^= 1);
                    }
                }
                let at = at.min(list.len());
                prop_assert!(parts.iter().eq(&list) && parts.iter().rev().eq(list.iter().rev()) && before.iter().eq(&was));
                prop_assert_eq!((parts.iter().len(), parts.get(at)), (list.len(), list.get(at)));
                prop_assert!(parts.from(at).eq(&list[at..]));
                prop_assert_eq!(&parts, &list.iter().copied().collect());
                prop_assert_eq!(parts == before, list == was);
                // What both share is the same in both.
                let own: Vec<usize> = parts.beyond(&before).collect();
                prop_assert!(own.is_sorted());
                let shared = list.iter().enumerate().filter(|(at, _)| own.binary_search(at).is_err()).map(|(_, value)| value);
                let theirs: Vec<usize> = before.beyond(&parts).collect();
                prop_assert!(theirs.is_sorted());
                prop_assert!(shared.eq(was.iter().enumerate().filter(|(at, _)| theirs.binary_search(at).is_err()).map(|(_, value)| value)));
                prop_assert_eq!(parts.clone().into_iter().collect::<Vec<_>>(), list.clone());
                prop_assert!(parts.parts.iter().all(|part| (1..=2 * PART).contains(&part.len())));
            }
        }
    }
}
