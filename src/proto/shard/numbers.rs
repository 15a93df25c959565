//! Where a worker's shards stand, by their names: looked up for every message.

use super::index::{Index, Tag};
use crate::{ShardKey, TypeId};

/// Shards below this number, of so many types, are found by their number alone. Both come from other nodes too, so they are bounded.
const DIRECT_SHARDS: u32 = 4096;
const DIRECT_TYPES: usize = 64;

const NONE: u32 = u32::MAX;

/// From shards to places.
#[derive(Default)]
pub(super) struct Numbers {
    direct: Vec<(TypeId, Vec<u32>)>,
    others: Index,
    len: usize,
}

impl Numbers {
    /// As [`find`](Self::find), where that takes no search; of a shard that is not in here perhaps a place that there is not. Most workers have one
    /// type, or one that gets most messages, so that a loop would be for nothing.
    #[inline(always)]
    pub fn at_hand(&self, shard: ShardKey) -> Option<u32> {
        let (ty, places) = self.direct.first()?;
        if *ty == shard.ty { places.get(shard.shard.0 as usize).copied() } else { None }
    }

    /// The place of a shard. `tag` is that of its name, and `is` says whether it stands at a place.
    #[inline]
    pub fn find(&self, shard: ShardKey, tag: impl FnOnce() -> Tag, is: impl FnMut(u32) -> bool) -> Option<u32> {
        if shard.shard.0 < DIRECT_SHARDS
            && let Some((_, places)) = self.direct.iter().find(|(ty, _)| *ty == shard.ty)
        {
            return places.get(shard.shard.0 as usize).copied().filter(|at| *at != NONE);
        }
        self.others.find(tag(), is)
    }

    /// Adds a shard that is not in here.
    pub fn insert(&mut self, shard: ShardKey, tag: Tag, at: u32) {
        self.len += 1;
        let known = self.direct.iter().position(|(ty, _)| *ty == shard.ty);
        let place = known.or_else(|| {
            (self.direct.len() < DIRECT_TYPES).then(|| {
                self.direct.push((shard.ty, vec![]));
                self.direct.len() - 1
            })
        });
        match place {
            Some(place) if shard.shard.0 < DIRECT_SHARDS => {
                let (places, index) = (&mut self.direct[place].1, shard.shard.0 as usize);
                if index >= places.len() {
                    places.resize(index + 1, NONE);
                }
                places[index] = at;
            }
            _ => self.others.insert(tag, at),
        }
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
        assert!(numbers.direct.len() == DIRECT_TYPES && numbers.others.len() > 0);
    }
}
