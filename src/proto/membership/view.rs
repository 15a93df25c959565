//! What a node knows of the cluster, as a snapshot for everybody outside the core.

use std::{cmp::Ordering, ops::Deref, sync::Arc};

use super::members::Members;
use crate::{Epoch, NodeAddr, NodeId, ShardId, id::address_order, time::Time};

/// Where a member stands in its life.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[non_exhaustive]
pub enum MemberStatus {
    /// Announced; counts for nothing yet.
    Joining,
    /// Joined without convergence; hosts nothing.
    WeaklyUp,
    /// A full member.
    Up,
    /// Told to leave; hands its shards off.
    Leaving,
    /// On its way out.
    Exiting,
    /// Declared dead.
    Down,
    /// No longer a member. Final for this incarnation.
    Removed,
}

impl MemberStatus {
    /// Lower-case name, as in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Joining => "joining",
            Self::WeaklyUp => "weakly_up",
            Self::Up => "up",
            Self::Leaving => "leaving",
            Self::Exiting => "exiting",
            Self::Down => "down",
            Self::Removed => "removed",
        }
    }
}

impl std::fmt::Display for MemberStatus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

/// What never changes in the life of a node.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct MemberInfo {
    /// This life of it.
    pub id: NodeId,
    /// Where it is reached.
    pub addr: NodeAddr,
    /// Its roles, sorted.
    pub roles: Arc<[String]>,
    /// What it says of its application's version.
    pub app_version: Arc<str>,
}

impl MemberInfo {
    /// Of one without roles.
    #[cfg(test)]
    pub(crate) fn bare(id: NodeId, addr: NodeAddr) -> Self {
        Self { id, addr, roles: [].into(), app_version: "".into() }
    }
}

/// One member as a node sees it. What never changes of it is read as if it stood here too: `member.id`, `addr`, `roles`, `app_version`.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Member {
    pub(crate) info: Arc<MemberInfo>,
    /// Where it stands.
    pub status: MemberStatus,
    /// The cluster's verdict.
    pub reachable: bool,
    /// Order of becoming up, from 1; 0 before. The lowest is the oldest.
    pub up_number: u32,
    /// Who holds it unreachable.
    pub observers: Observers,
}

impl Deref for Member {
    type Target = MemberInfo;

    fn deref(&self) -> &MemberInfo {
        &self.info
    }
}

impl Member {
    /// One that everybody reaches.
    pub(crate) fn new(info: impl Into<Arc<MemberInfo>>, status: MemberStatus, up_number: u32) -> Self {
        Self { info: info.into(), status, reachable: true, up_number, observers: Observers::default() }
    }

    /// Whether it can be the oldest.
    pub(crate) fn is_of_age(&self) -> bool {
        self.up_number > 0 && matches!(self.status, MemberStatus::Up | MemberStatus::Leaving | MemberStatus::Exiting)
    }

    /// By address, then incarnation.
    pub(super) fn comes_before(&self, other: &Self) -> bool {
        address_order((&self.addr, self.id), (&other.addr, other.id)).is_lt()
    }

    /// The older first.
    pub(crate) fn age_order(&self, other: &Self) -> Ordering {
        let by_address = || address_order((&self.addr, self.id), (&other.addr, other.id));
        self.up_number.cmp(&other.up_number).then_with(by_address)
    }
}

/// Who holds a member unreachable: mostly nobody.
#[derive(Clone, Default, Debug)]
pub struct Observers(Option<Arc<[NodeId]>>);

impl PartialEq for Observers {
    fn eq(&self, other: &Self) -> bool {
        let same = || self.0.as_ref().zip(other.0.as_ref()).is_some_and(|(one, other)| Arc::ptr_eq(one, other));
        same() || **self == **other
    }
}

impl Eq for Observers {}

impl Deref for Observers {
    type Target = [NodeId];

    fn deref(&self) -> &[NodeId] {
        self.0.as_deref().unwrap_or_default()
    }
}

impl From<Arc<[NodeId]>> for Observers {
    fn from(observers: Arc<[NodeId]>) -> Self {
        Self(Some(observers))
    }
}

impl From<Observers> for Arc<[NodeId]> {
    fn from(observers: Observers) -> Self {
        observers.0.unwrap_or_default()
    }
}

/// A consistent snapshot of the membership, members in address order.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub struct ClusterView {
    /// This node.
    pub me: NodeId,
    /// All members, this node included unless it was removed; by address, then incarnation.
    pub members: Members,
    /// The leader, if there is one.
    pub leader: Option<NodeId>,
    /// The next ones after the leader.
    pub deputies: Vec<NodeId>,
    /// Everybody has seen this state and nobody is unreachable.
    pub converged: bool,
    /// Grows by one with each change of this snapshot on this node.
    pub version: u64,
}

impl ClusterView {
    /// The member with this id.
    pub fn member(&self, id: NodeId) -> Option<&Member> {
        self.members.find(id)
    }

    pub(crate) fn is_member(&self, id: NodeId) -> bool {
        self.member(id).is_some()
    }

    /// This node's own entry; `None` after its removal.
    pub fn myself(&self) -> Option<&Member> {
        self.member(self.me)
    }

    /// The oldest member that is up, leaving or exiting, of a role if given.
    pub fn oldest(&self, role: Option<&str>) -> Option<&Member> {
        match role {
            None => self.members.oldest(None),
            Some(role) => self.members.oldest(Some(&|m| m.roles.iter().any(|have| have == role))),
        }
    }
}

/// What happened in the cluster, as one node saw it.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub enum Event {
    /// A member appeared or changed its status; `was` is `None` for a new one.
    Member {
        /// As it is now.
        member: Member,
        /// What it was.
        was: Option<MemberStatus>,
    },
    /// The cluster holds a member unreachable.
    Unreachable {
        /// Whom.
        node: NodeId,
        /// Who says so.
        by: Arc<[NodeId]>,
        /// Why.
        why: Arc<str>,
    },
    /// The cluster holds a member reachable again.
    Reachable {
        /// Whom.
        node: NodeId,
    },
    /// Another leader, or none.
    LeaderChanged(Option<NodeId>),
    /// All have seen the same state.
    Converged {
        /// Version of the snapshot.
        version: u64,
    },
    /// The resolver decided about a split.
    Split {
        /// Members on this side.
        mine: usize,
        /// Members on the other side.
        theirs: usize,
        /// What was decided, in words.
        verdict: Arc<str>,
    },
    /// A shard is on its way.
    ShardMoving {
        /// Name of the type.
        entity_type: Arc<str>,
        /// Which shard.
        shard: ShardId,
        /// Old home.
        from: Option<NodeId>,
        /// New home.
        to: NodeId,
        /// The epoch it will have there.
        epoch: Epoch,
    },
    /// A shard runs at its new home.
    ShardMoved {
        /// Name of the type.
        entity_type: Arc<str>,
        /// Which shard.
        shard: ShardId,
        /// New home.
        to: NodeId,
        /// Its epoch there.
        epoch: Epoch,
        /// Since when it was on its way, on the coordinator's clock.
        took: std::time::Duration,
    },
    /// Something an operator should know.
    Warning {
        /// Stable code.
        code: &'static str,
        /// In words.
        text: Arc<str>,
    },
    /// This reader of [`Cluster::events`](crate::Cluster::events) was too slow. The view, not the events behind this, says how things stand.
    Lagged {
        /// Events that it does not get.
        missed: u64,
    },
}

/// State of the observation of one peer, for `GET /api/v1/links`.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub struct LinkReport {
    /// Who is observed.
    pub subject: NodeId,
    /// Suspicion level now.
    pub phi: f64,
    /// Where it convicts.
    pub threshold: f64,
    /// Median round trip of heartbeats, microseconds; `None` before the first reply.
    pub rtt_us_p50: Option<u64>,
    /// 99th percentile of it.
    pub rtt_us_p99: Option<u64>,
    /// Share of heartbeats without a reply, of the last window.
    pub loss: f64,
    /// `ok`, `suspect`, `unreachable` or `new`.
    pub state: &'static str,
    /// When the last reply came.
    pub last_reply: Option<Time>,
}
