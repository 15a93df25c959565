//! What the core has said of the short ways of messages between nodes, kept as long as it holds: the network thread asks once, not for each
//! message.

use crate::{Epoch, NodeId, ShardKey, TypeId, proto::node::NodeCore};

/// Answers are kept for shards below this number, of so many types, and for so many in all: both come from other nodes too. A type may have as
/// many shards as that, and a few such types have room.
const SHARDS_MAX: u32 = 1 << 16;
const TYPES_MAX: usize = 256;
const KEPT_MAX: usize = 1 << 18;

/// An answer, and the version of the core's routes that it belongs to.
#[derive(Copy, Clone, Default)]
struct Kept {
    to_at: u64,
    to: Option<(NodeId, Epoch)>,
    from_at: u64,
    from: Option<(NodeId, Epoch)>,
}

/// Answers by shard.
#[derive(Default)]
pub struct ShortWays {
    types: Vec<(TypeId, Vec<Kept>)>,
    /// Answers there is room for, of all types.
    kept: usize,
}

impl ShortWays {
    /// See [`NodeCore::short_way_to`].
    #[inline]
    pub fn to(&mut self, core: &mut NodeCore, shard: ShardKey) -> Option<(NodeId, Epoch)> {
        let Some(kept) = self.kept(shard) else { return core.short_way_to(shard) };
        if kept.to_at != core.routes_version() {
            kept.to = core.short_way_to(shard);
            kept.to_at = core.routes_version();
        }
        debug_assert_eq!(kept.to, core.short_way_to(shard), "the answer holds as long as the version stands");
        kept.to
    }

    /// See [`NodeCore::short_way_from`].
    #[inline]
    pub fn from(&mut self, core: &NodeCore, peer: NodeId, shard: ShardKey, tag: Epoch) -> bool {
        let Some(kept) = self.kept(shard) else { return core.short_way_from(peer, shard, tag) };
        if kept.from_at != core.routes_version() || kept.from != Some((peer, tag)) {
            kept.from = core.short_way_from(peer, shard, tag).then_some((peer, tag));
            kept.from_at = core.routes_version();
        }
        debug_assert_eq!(kept.from.is_some(), core.short_way_from(peer, shard, tag), "the answer holds as long as the version stands");
        kept.from.is_some()
    }

    #[inline]
    fn kept(&mut self, shard: ShardKey) -> Option<&mut Kept> {
        if shard.shard.0 >= SHARDS_MAX {
            return None;
        }
        let at = match self.types.iter().position(|(ty, _)| *ty == shard.ty) {
            Some(at) => at,
            None if self.types.len() >= TYPES_MAX => return None,
            None => {
                self.types.push((shard.ty, vec![]));
                self.types.len() - 1
            }
        };
        let shards = &mut self.types[at].1;
        let index = shard.shard.0 as usize;
        if index >= shards.len() {
            let more = index + 1 - shards.len();
            if self.kept + more > KEPT_MAX {
                return None;
            }
            self.kept += more;
            // A version is never `u64::MAX`.
            shards.resize(index + 1, Kept { to_at: u64::MAX, from_at: u64::MAX, ..Kept::default() });
        }
        Some(&mut shards[index])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ShardId;

    #[test]
    fn what_peers_name_is_bounded_in_memory() {
        let mut ways = ShortWays::default();
        let shard = |ty, shard| ShardKey { ty: TypeId(ty), shard: ShardId(shard) };
        assert!(ways.kept(shard(1, 65_535)).is_some(), "a type may have as many shards");
        (2..30).for_each(|ty| _ = ways.kept(shard(ty, 65_535)));
        let kept: usize = ways.types.iter().map(|(_, shards)| shards.len()).sum();
        assert!(kept * size_of::<Kept>() <= 32 << 20, "{kept} answers");
        assert!(ways.kept(shard(1, 7)).is_some(), "those that are known go on");
    }
}
