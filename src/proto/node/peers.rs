//! What the network thread knows of other nodes as ends of links: addresses, sessions, room, removals.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    NodeAddr, NodeId, ShardKey, Time,
    proto::membership::{ClusterView, Members},
};

/// The ends of links.
#[derive(Debug)]
pub(crate) struct Peers {
    pub me: NodeId,
    members: Members,
    links: BTreeMap<NodeId, Link>,
    /// So much waits for them that nothing is to be added. From one session to the next: what waits stays.
    /// Of which shards too much waits for whom; `None`: too much of all.
    blocked: BTreeSet<(NodeId, Option<ShardKey>)>,
    /// Removed for good. Kept as long as the process lives: 16 bytes each, and a late frame of such a node may come at any time.
    removed: BTreeSet<NodeId>,
    /// Those of them that have a link again, to be told so.
    told: BTreeMap<NodeId, NodeAddr>,
    /// Grows with each change of what stands above but for signs of life.
    version: u64,
}

#[derive(Debug)]
struct Link {
    addr: NodeAddr,
    last_sign: Option<Time>,
}

impl Peers {
    pub fn new(me: NodeId) -> Self {
        Self {
            me,
            members: Members::default(),
            links: BTreeMap::new(),
            blocked: BTreeSet::new(),
            removed: BTreeSet::new(),
            told: BTreeMap::new(),
            version: 0,
        }
    }

    /// Differs whenever an answer of this may differ.
    pub fn version(&self) -> u64 {
        self.version
    }

    pub fn set_view(&mut self, view: &ClusterView) {
        self.version += 1;
        self.members = view.members.clone();
    }

    #[cfg(test)]
    pub fn add_member(&mut self, node: NodeId, addr: NodeAddr) {
        use crate::proto::membership::{Member, MemberInfo, MemberStatus};
        let new = Member::new(MemberInfo::bare(node, addr), MemberStatus::Up, 1);
        self.members = self.members.iter().cloned().chain([new]).collect();
    }

    #[cfg(test)]
    pub fn set_down(&mut self, node: NodeId) {
        let down = |mut member: crate::proto::membership::Member| {
            if member.id == node {
                member.status = crate::proto::membership::MemberStatus::Down;
            }
            member
        };
        self.members = self.members.iter().cloned().map(down).collect();
    }

    pub fn link_up(&mut self, peer: NodeId, addr: NodeAddr) {
        self.version += 1;
        self.links.insert(peer, Link { addr, last_sign: None });
    }

    /// A removed node has a link, over which it is told so.
    pub fn tell_removed(&mut self, peer: NodeId, addr: NodeAddr) {
        self.told.insert(peer, addr);
    }

    /// Where a removed node that was told so is reached.
    pub fn told(&self, peer: NodeId) -> Option<NodeAddr> {
        self.told.get(&peer).cloned()
    }

    /// Where a removed node that was told so is reached, once.
    pub fn take_told(&mut self, peer: NodeId) -> Option<NodeAddr> {
        self.told.remove(&peer)
    }

    /// To whom there is a link.
    pub fn linked(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.links.keys().copied()
    }

    pub fn has_link(&self, peer: NodeId) -> bool {
        self.links.contains_key(&peer)
    }

    /// Members that may reach `to`, where this node does not, as far as the view shows: those with a link here first.
    pub fn between(&self, to: NodeId) -> Vec<NodeId> {
        let lost = self.members.find(to).map_or(&[][..], |member| &member.observers[..]);
        let may = |node| node != to && node != self.me && self.may_reach(node) && !lost.contains(&node);
        let mut between: Vec<NodeId> = self.members.iter().map(|member| member.id).filter(|node| may(*node)).collect();
        between.sort_by_key(|node| !self.has_link(*node));
        between
    }

    /// Whether that is a member whom this node does not hold unreachable.
    pub fn may_reach(&self, node: NodeId) -> bool {
        !self.is_removed(node) && self.members.find(node).is_some_and(|member| !member.observers.contains(&self.me))
    }

    pub fn link_down(&mut self, peer: NodeId) {
        self.version += 1;
        self.told.remove(&peer);
        self.links.remove(&peer);
    }

    pub fn set_blocked(&mut self, peer: NodeId, shard: Option<ShardKey>, blocked: bool) {
        self.version += 1;
        if blocked && !self.is_removed(peer) {
            self.blocked.insert((peer, shard));
        } else {
            self.blocked.remove(&(peer, shard));
        }
    }

    /// True for the first frame of a batch: all frames of one batch carry the same time.
    pub fn first_sign(&mut self, peer: NodeId, now: Time) -> bool {
        self.links.get_mut(&peer).is_some_and(|link| link.last_sign.replace(now) != Some(now))
    }

    /// The address, and whether this is news.
    pub fn remove(&mut self, node: NodeId) -> (Option<NodeAddr>, bool) {
        self.version += 1;
        let addr = self.addr(node).cloned();
        self.links.remove(&node);
        self.blocked.retain(|(peer, _)| *peer != node);
        (addr, self.removed.insert(node))
    }

    /// Whether a frame of this batch came from there before.
    pub fn has_signed(&self, peer: NodeId, now: Time) -> bool {
        self.links.get(&peer).is_some_and(|link| link.last_sign == Some(now))
    }

    /// Whether messages of that shard to that peer have no room.
    pub fn is_blocked(&self, peer: NodeId, shard: ShardKey) -> bool {
        !self.blocked.is_empty() && (self.blocked.contains(&(peer, None)) || self.blocked.contains(&(peer, Some(shard))))
    }

    pub fn is_removed(&self, node: NodeId) -> bool {
        self.removed.contains(&node)
    }

    /// A member that was declared dead and is not removed yet.
    pub fn is_down(&self, node: NodeId) -> bool {
        self.members.find(node).is_some_and(|member| member.status == crate::proto::membership::MemberStatus::Down)
    }

    pub fn is_member(&self, node: NodeId) -> bool {
        !self.is_removed(node) && self.members.find(node).is_some()
    }

    pub fn addr(&self, node: NodeId) -> Option<&NodeAddr> {
        let member = self.members.find(node).filter(|_| !self.is_removed(node));
        member.map(|m| &m.addr).or_else(|| self.links.get(&node).map(|l| &l.addr))
    }

    /// Whether an item can be sent there now: this node, or one with a known address that was not removed.
    pub fn can_send(&self, node: NodeId) -> bool {
        node == self.me || (!self.is_removed(node) && self.addr(node).is_some())
    }
}
