//! What the core has said of the short ways of messages between nodes, kept as long as it holds: the network thread asks once, not for each
//! message.

use crate::{Epoch, NodeId, ShardKey, TypeId, proto::node::NodeCore};

/// Answers are kept for shards below this number, of so many types: both come from other nodes too.
const SHARDS_MAX: u32 = 1 << 16;
const TYPES_MAX: usize = 256;

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
pub struct ShortWays(Vec<(TypeId, Vec<Kept>)>);

impl ShortWays {
    /// See [`NodeCore::short_way_to`].
    #[inline]
    pub fn to(&mut self, core: &mut NodeCore, shard: ShardKey) -> Option<(NodeId, Epoch)> {
        let Some(kept) = self.kept(shard) else { return core.short_way_to(shard) };
        if kept.to_at != core.routes_version() {
            kept.to = core.short_way_to(shard);
            kept.to_at = core.routes_version();
        }
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
        kept.from.is_some()
    }

    #[inline]
    fn kept(&mut self, shard: ShardKey) -> Option<&mut Kept> {
        if shard.shard.0 >= SHARDS_MAX {
            return None;
        }
        let at = match self.0.iter().position(|(ty, _)| *ty == shard.ty) {
            Some(at) => at,
            None if self.0.len() >= TYPES_MAX => return None,
            None => {
                self.0.push((shard.ty, vec![]));
                self.0.len() - 1
            }
        };
        let shards = &mut self.0[at].1;
        let index = shard.shard.0 as usize;
        if index >= shards.len() {
            // A version is never `u64::MAX`.
            shards.resize(index + 1, Kept { to_at: u64::MAX, from_at: u64::MAX, ..Kept::default() });
        }
        Some(&mut shards[index])
    }
}
