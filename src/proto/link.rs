//! What the cores are told of links. A link is a sequence of numbered sessions; within one, frames arrive in order (moves.md A3), but that a message
//! may arrive before a large frame that was sent earlier, if that is not of its shard, and an answer before any.

use std::time::Duration;

use crate::{NodeAddr, NodeId, ShardKey};

/// Pause behind a first try to reach a peer in vain, and behind a session that has hardly begun; the next ones take place only while frames wait, and the
/// pause doubles with each failure. Where a dial is reset it begins shorter, and a session that had lasted and is reset is followed by a dial at once.
pub const PAUSE_MIN: Duration = Duration::from_millis(50);
/// Longest pause, whatever the settings.
pub const PAUSE_MAX: Duration = Duration::from_secs(2);

/// Longest pause between two tries. Who comes back knowing nobody founds a cluster of its own if it does not hear of this one within
/// `membership.seed_timeout`, so a member that looks for it must not wait as long.
pub fn longest_pause(seed_timeout: Duration) -> Duration {
    (seed_timeout * 2 / 5).clamp(PAUSE_MIN, PAUSE_MAX)
}

/// A change of a link, reported to a core before any frame of the state it announces.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LinkEvent {
    /// A session is up: both sides have said who they are. All frames of earlier sessions were delivered or thrown away before.
    Up {
        /// Who answers there.
        peer: NodeId,
        /// The address it advertises.
        addr: NodeAddr,
        /// Grows with each session of this pair.
        session: u64,
    },
    /// The session ended, or none came about.
    Down {
        /// The peer, if it had said who it is.
        peer: Option<NodeId>,
        /// The address that was dialled, or that the peer had advertised.
        addr: NodeAddr,
        /// Why.
        cause: LinkDown,
        /// Frames accepted for sending that were not written whole to the session, or written with no chance to know (counted as lost).
        lost: u64,
    },
    /// What waits for the peer is over its bound: user messages to it are refused until `Writable`. Control frames are still taken.
    Blocked {
        /// The slow peer.
        peer: NodeId,
        /// Whose messages; `None`: those of all shards, however many were blocked by themselves.
        shard: Option<ShardKey>,
    },
    /// There is room again.
    Writable {
        /// The peer.
        peer: NodeId,
        /// As it was blocked.
        shard: Option<ShardKey>,
    },
}

/// Why a session ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LinkDown {
    /// Nothing listens on the port: the process is gone.
    Refused,
    /// The peer reset or closed the connection.
    Reset,
    /// No connection, greeting or frame in time.
    TimedOut,
    /// The host name has no address: the resolver's error.
    Unresolved(String),
    /// The peer refused the greeting for good (other cluster, other protocol range): its reason.
    Rejected(String),
    /// The address leads back to this node.
    Itself,
    /// The peer broke the protocol.
    Protocol(String),
    /// Another life of the node answers at its address.
    OtherIncarnation(NodeId),
    /// A node of another address answers: the name leads elsewhere, which tells nothing of the one that was meant.
    Elsewhere(NodeId),
    /// Closed by this side.
    Closed,
}
