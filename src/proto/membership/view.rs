//! What a node knows of the cluster, as a snapshot for everybody outside the core.

use std::{
    fmt,
    ops::Deref,
    sync::{Arc, OnceLock, Weak},
};

use crate::{Epoch, NodeAddr, NodeId, ShardId, time::Time};

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

/// One member as a node sees it.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub struct Member {
    /// This life of it.
    pub id: NodeId,
    /// Where it is reached.
    pub addr: NodeAddr,
    /// Where it stands.
    pub status: MemberStatus,
    /// Its roles, sorted.
    pub roles: Arc<[String]>,
    /// What it says of its application's version.
    pub app_version: Arc<str>,
    /// Order of becoming up, from 1; 0 before. The lowest is the oldest.
    pub up_number: u64,
    /// The cluster's verdict.
    pub reachable: bool,
    /// Who holds it unreachable.
    pub observers: Arc<[NodeId]>,
}

/// All members of a snapshot, by address, then incarnation. A slice that is cheap to clone.
#[derive(Clone)]
pub struct Members(Arc<List>);

/// A list that somebody may hold.
#[derive(Clone)]
pub(crate) struct WeakMembers(Weak<List>);

impl WeakMembers {
    pub(crate) fn upgrade(&self) -> Option<Members> {
        self.0.upgrade().map(Members)
    }
}

impl fmt::Debug for WeakMembers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WeakMembers")
    }
}

struct List {
    members: Vec<Member>,
    /// Places in `members`, by id.
    by_id: OnceLock<Arc<[u32]>>,
    /// Place of the oldest.
    oldest: OnceLock<Option<usize>>,
}

impl Members {
    /// The member with this id.
    pub fn find(&self, id: NodeId) -> Option<&Member> {
        self.place(id).map(|at| &self[at])
    }

    /// Where it stands.
    pub(crate) fn place(&self, id: NodeId) -> Option<usize> {
        let List { members, by_id, .. } = &*self.0;
        let places = by_id.get_or_init(|| {
            let mut places: Vec<u32> = (0..).take(members.len()).collect();
            places.sort_unstable_by_key(|&at| members[at as usize].id);
            places.into()
        });
        places.binary_search_by_key(&id, |&at| members[at as usize].id).ok().map(|i| places[i] as usize)
    }

    /// Of a list in order and its places by id.
    pub(crate) fn placed(members: Vec<Member>, by_id: Arc<[u32]>) -> Self {
        debug_assert!(by_id.is_sorted_by_key(|&at| members[at as usize].id), "places are in order of the ids");
        Self(Arc::new(List { members, by_id: by_id.into(), oldest: OnceLock::new() }))
    }

    /// To look whether somebody still holds it.
    pub(crate) fn downgrade(&self) -> WeakMembers {
        WeakMembers(Arc::downgrade(&self.0))
    }

    /// Whether both are one list in memory.
    pub(crate) fn same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Deref for Members {
    type Target = [Member];

    fn deref(&self) -> &[Member] {
        &self.0.members
    }
}

impl PartialEq for Members {
    fn eq(&self, other: &Self) -> bool {
        self.same(other) || **self == **other
    }
}

impl fmt::Debug for Members {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl Default for Members {
    fn default() -> Self {
        Vec::new().into()
    }
}

impl From<Vec<Member>> for Members {
    /// The members must stand in order of their addresses, then incarnations.
    fn from(members: Vec<Member>) -> Self {
        Self(Arc::new(List { members, by_id: OnceLock::new(), oldest: OnceLock::new() }))
    }
}

impl FromIterator<Member> for Members {
    fn from_iter<I: IntoIterator<Item = Member>>(members: I) -> Self {
        members.into_iter().collect::<Vec<_>>().into()
    }
}

impl<'a> IntoIterator for &'a Members {
    type Item = &'a Member;
    type IntoIter = std::slice::Iter<'a, Member>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
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

    /// This node's own entry; `None` after its removal.
    pub fn myself(&self) -> Option<&Member> {
        self.member(self.me)
    }

    /// The oldest member that is up, leaving or exiting, of a role if given.
    pub fn oldest(&self, role: Option<&str>) -> Option<&Member> {
        let List { members, oldest, .. } = &*self.members.0;
        let of = |fits: &dyn Fn(&Member) -> bool| {
            let counts =
                |m: &&Member| m.up_number > 0 && matches!(m.status, MemberStatus::Up | MemberStatus::Leaving | MemberStatus::Exiting);
            let those = members.iter().enumerate().filter(|(_, m)| counts(m) && fits(m));
            those.min_by(|(_, a), (_, b)| (a.up_number, &a.addr, a.id).cmp(&(b.up_number, &b.addr, b.id))).map(|(at, _)| at)
        };
        let at = match role {
            None => *oldest.get_or_init(|| of(&|_| true)),
            Some(role) => of(&|m| m.roles.iter().any(|have| have == role)),
        };
        at.map(|at| &members[at])
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
