//! Where a worker's shards stand, by their names: looked up for every message.

use super::index::{Index, Tag};
use crate::{ShardKey, TypeId};

/// Shards below this number, of so many types, are found by their number alone. Both come from other nodes too, so they are bounded.
const DIRECT_SHARDS: u32 = 4096;
const DIRECT_TYPES: usize = 64;

const NONE: u32 = u32::MAX;

/// Places by the numbers of their shards.
struct Direct {
    ty: TypeId,
    places: Vec<u32>,
}

/// From shards to places.
pub(super) struct Numbers {
    /// Of the first type there was, and empty before that. Apart, as most workers have one type, or one that gets most messages.
    first: Direct,
    more: Vec<Direct>,
    others: Index,
    len: usize,
}

impl Default for Numbers {
    fn default() -> Self {
        Self { first: Direct { ty: TypeId(0), places: vec![] }, more: vec![], others: Index::default(), len: 0 }
    }
}

impl Numbers {
    /// As [`find`](Self::find), where that takes no search; of a shard that is not in here perhaps a place that there is not.
    #[inline(always)]
    pub fn at_hand(&self, shard: ShardKey) -> Option<u32> {
        if self.first.ty == shard.ty { self.first.places.get(shard.shard.0 as usize).copied() } else { None }
    }

    /// The place of a shard. `tag` is that of its name, and `is` says whether it stands at a place.
    #[inline]
    pub fn find(&self, shard: ShardKey, tag: impl FnOnce() -> Tag, is: impl FnMut(u32) -> bool) -> Option<u32> {
        if shard.shard.0 < DIRECT_SHARDS
            && let Some(Direct { places, .. }) = self.types().find(|direct| direct.ty == shard.ty)
        {
            return places.get(shard.shard.0 as usize).copied().filter(|at| *at != NONE);
        }
        self.others.find(tag(), is)
    }

    /// Adds a shard that is not in here.
    pub fn insert(&mut self, shard: ShardKey, tag: Tag, at: u32) {
        if self.len == 0 {
            self.first.ty = shard.ty;
        }
        self.len += 1;
        if self.types().all(|direct| direct.ty != shard.ty) && self.types().count() < DIRECT_TYPES {
            self.more.push(Direct { ty: shard.ty, places: vec![] });
        }
        let direct = std::iter::once(&mut self.first).chain(&mut self.more).find(|direct| direct.ty == shard.ty);
        match direct {
            Some(Direct { places, .. }) if shard.shard.0 < DIRECT_SHARDS => {
                let index = shard.shard.0 as usize;
                if index >= places.len() {
                    places.resize(index + 1, NONE);
                }
                places[index] = at;
            }
            _ => self.others.insert(tag, at),
        }
    }

    fn types(&self) -> impl Iterator<Item = &Direct> {
        std::iter::once(&self.first).chain(&self.more)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.len
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ShardId;

    #[test]
    fn shards_of_all_kinds_are_found() {
        let mut numbers = Numbers::default();
        let shard = |n: u32| ShardKey { ty: TypeId(n % 100), shard: ShardId(n.wrapping_mul(0x9e37_79b9) >> (n % 24)) };
        let all: Vec<ShardKey> = (0..2000).map(shard).collect();
        let tag = |shard: ShardKey| super::super::index::tag(u64::from(shard.ty.0) << 32 | u64::from(shard.shard.0), 7);
        let find = |numbers: &Numbers, shard| numbers.find(shard, || tag(shard), |at| all[at as usize] == shard);
        for (shard, at) in all.iter().zip(0..) {
            if find(&numbers, *shard).is_none() {
                numbers.insert(*shard, tag(*shard), at);
            }
        }
        assert!(all.iter().all(|shard| find(&numbers, *shard).is_some_and(|at| all[at as usize] == *shard)));
        assert!(all.iter().all(|shard| numbers.at_hand(*shard).is_none_or(|at| find(&numbers, *shard) == Some(at))));
        assert_eq!(find(&numbers, ShardKey { ty: TypeId(3), shard: ShardId(u32::MAX) }), None);
        assert_eq!(find(&numbers, ShardKey { ty: TypeId(300), shard: ShardId(0) }), None);
        assert!(numbers.types().count() == DIRECT_TYPES && numbers.others.len() > 0);
    }
}
