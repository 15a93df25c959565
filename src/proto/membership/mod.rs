//! Who belongs to the cluster: gossip, life cycle, failure detection, downing.

mod view;

use std::{sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};

pub use view::{ClusterView, Event, LinkReport, Member, MemberStatus};

use crate::{Config, NodeAddr, NodeId, Time, proto::link::LinkEvent};

/// Who this node is.
#[derive(Clone, PartialEq, Debug)]
pub struct Identity {
    /// What it advertises.
    pub addr: NodeAddr,
    /// Random, new with each start.
    pub incarnation: u64,
}

impl Identity {
    /// The node's id.
    pub fn id(&self) -> NodeId {
        NodeId::new(&self.addr, self.incarnation)
    }
}

/// Membership's frames on a link. Layout: postcard, within the frame limit.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum MemberFrame {
    /// Placeholder.
    Nothing,
}

/// Where a frame of membership goes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Peer {
    /// To a known life of a node; dropped if another life answers at its address.
    Node(NodeId),
    /// To whoever answers at the address (a seed).
    Addr(NodeAddr),
}

/// Why a member is gone.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Removal {
    /// It left in order and had handed everything off.
    Left,
    /// It was downed. `proven`: its process is known to be gone, so nobody need wait for its right to run to end.
    Downed {
        /// Known to be gone.
        proven: bool,
    },
}

/// Why this node's membership is over.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Ending {
    /// It left.
    Left,
    /// It was downed, by others or by its own resolver.
    Downed(String),
    /// A cluster refused it for good.
    Refused(String),
}

/// What membership wants done.
#[derive(Clone, PartialEq, Debug)]
pub enum MemberOutput {
    /// Send a datagram, at most `membership.max_datagram` bytes.
    Datagram {
        /// To whom.
        to: NodeAddr,
        /// What.
        bytes: Vec<u8>,
    },
    /// Send a frame over the link to that peer; dial if there is none.
    Frame {
        /// To whom.
        to: Peer,
        /// What.
        frame: MemberFrame,
    },
    /// `view` changed.
    View(Arc<ClusterView>),
    /// Tell the world.
    Event(Event),
    /// A member is gone for good. Emitted before the `View` that lacks it.
    Removed {
        /// Who.
        node: NodeId,
        /// How.
        how: Removal,
    },
    /// This node's membership is over; entities must stop at once (if downed) and the process should end.
    Ended(Ending),
}

/// The membership machine of one node.
pub struct Membership {
    _config: Arc<Config>,
}

#[allow(unused_variables, missing_docs)]
impl Membership {
    pub fn new(config: Arc<Config>, me: Identity, seed: u64, now: Time) -> Self {
        Self { _config: config }
    }
    /// Begins: asks the seeds, forms a cluster if this is the first seed, or a singleton cluster without seeds.
    pub fn start(&mut self, now: Time) {}
    /// A datagram arrived. Bad ones are counted by reason.
    pub fn handle_datagram(&mut self, now: Time, bytes: &[u8]) {}
    pub fn handle_frame(&mut self, now: Time, from: NodeId, from_addr: &NodeAddr, frame: MemberFrame) {}
    /// Any frame of a peer is a sign of life (cheap; called per batch of frames, not per frame).
    pub fn handle_sign_of_life(&mut self, now: Time, from: NodeId) {}
    pub fn handle_link(&mut self, now: Time, event: &LinkEvent) {}
    pub fn join(&mut self, now: Time, seeds: &[NodeAddr]) -> Result<(), String> {
        Ok(())
    }
    pub fn leave(&mut self, now: Time, node: NodeId) -> Result<(), String> {
        Ok(())
    }
    pub fn down(&mut self, now: Time, node: NodeId) -> Result<(), String> {
        Ok(())
    }
    /// An exiting node withholds its seen mark until its hand-offs are done (at most `shutdown.leave_timeout`).
    pub fn set_drained(&mut self, now: Time, drained: bool) {}
    pub fn handle_timeout(&mut self, now: Time) {}
    pub fn poll_timeout(&self) -> Option<Time> {
        None
    }
    pub fn poll_output(&mut self) -> Option<MemberOutput> {
        None
    }
    pub fn view(&self) -> &Arc<ClusterView> {
        unreachable!("interface only")
    }
    /// Whether this id was a member and is gone for good.
    pub fn is_removed(&self, node: NodeId) -> bool {
        false
    }
    pub fn links(&self, now: Time) -> Vec<LinkReport> {
        vec![]
    }
    /// Counters by stable name (datagrams by kind and discard reason, gossip outcomes, ..), for metrics.
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        vec![]
    }
    /// Upper bound on the time by which the losing side of a split may decide later than the winning one; see `downing`.
    pub fn lag_bound(&self) -> Duration {
        Duration::ZERO
    }
    /// Asserts the invariants.
    pub fn check(&self) {}
}
