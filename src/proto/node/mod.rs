//! `NodeCore`: composes the machines of the network thread; one of the two faces that engine and simulator drive.

mod effects;

pub use effects::{Answer, Command, Effect};

use std::sync::Arc;

use crate::{
    Config, NodeAddr, NodeId, Time,
    proto::{
        handoff::{Envelope, ReplyBody},
        link::LinkEvent,
        membership::{ClusterView, Identity},
        shard::{LaneId, LaneItem, ShardReport},
        wire::Frame,
    },
};

/// Everything of a node that is not an entity.
pub struct NodeCore {}

#[allow(unused_variables, missing_docs)]
impl NodeCore {
    pub fn new(config: Arc<Config>, me: Identity, workers: u16, seed: u64, now: Time) -> Self {
        Self {}
    }
    pub fn start(&mut self, now: Time) {}
    pub fn handle_datagram(&mut self, now: Time, bytes: &[u8]) {}
    /// A frame from an up session.
    pub fn handle_frame(&mut self, now: Time, peer: NodeId, frame: Frame) {}
    pub fn handle_link(&mut self, now: Time, event: LinkEvent) {}
    pub fn handle_command(&mut self, now: Time, command: Command) {}
    /// An item of a producer's ring to the network thread.
    pub fn handle_lane(&mut self, now: Time, lane: LaneId, item: LaneItem<Envelope>) {}
    /// A report from a worker, in the order of that worker's ring.
    pub fn handle_report(&mut self, now: Time, worker: u16, report: ShardReport) {}
    /// An answer given on this node to an ask of another one (or of this one): goes straight to the asker's node.
    pub fn handle_reply(&mut self, now: Time, to: NodeId, correlation: u64, body: ReplyBody) {}
    pub fn handle_timeout(&mut self, now: Time) {}
    pub fn poll_timeout(&self) -> Option<Time> {
        None
    }
    pub fn poll_effect(&mut self) -> Option<Effect> {
        None
    }
    pub fn view(&self) -> &Arc<ClusterView> {
        unreachable!("interface only")
    }
    pub fn addr_of(&self, node: NodeId) -> Option<&NodeAddr> {
        None
    }
    /// Counters by stable name, for metrics.
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        vec![]
    }
    /// Asserts the invariants (debug builds and the simulator, after every step).
    pub fn check(&self) {}
}
