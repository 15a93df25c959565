//! What `NodeCore` needs of the membership machine; tests put a scripted one in its place.

use std::{sync::Arc, time::Duration};

use crate::{
    NodeAddr, NodeId, Time,
    proto::{
        lease::LeaseAnswer,
        link::LinkEvent,
        membership::{ClusterView, LinkReport, MemberFrame, MemberOutput, Membership},
    },
};

/// The verbs of [`Membership`], with its meanings.
#[allow(missing_docs)]
pub trait Members {
    fn start(&mut self, now: Time);
    fn handle_datagram(&mut self, now: Time, bytes: &[u8]);
    fn handle_frame(&mut self, now: Time, from: NodeId, from_addr: &NodeAddr, frame: MemberFrame);
    fn handle_sign_of_life(&mut self, now: Time, from: NodeId);
    fn handle_link(&mut self, now: Time, event: &LinkEvent);
    fn join(&mut self, now: Time, seeds: &[NodeAddr]) -> Result<(), String>;
    fn leave(&mut self, now: Time, node: NodeId) -> Result<(), String>;
    fn down(&mut self, now: Time, node: NodeId) -> Result<(), String>;
    fn set_drained(&mut self, now: Time, drained: bool);
    /// Which addresses a name has.
    fn handle_resolved(&mut self, _now: Time, _name: &NodeAddr, _found: Vec<NodeAddr>) {}
    /// The lease that decides splits has answered.
    fn handle_lease(&mut self, _now: Time, _id: u64, _answer: LeaseAnswer) {}
    fn handle_timeout(&mut self, now: Time);
    fn poll_timeout(&self) -> Option<Time>;
    fn poll_output(&mut self) -> Option<MemberOutput>;
    fn view(&self) -> &Arc<ClusterView>;
    fn links(&self, now: Time) -> Vec<LinkReport>;
    fn counters(&self) -> Vec<(&'static str, u64)>;
    /// Datagrams that no member of this cluster can have sent.
    fn strange_datagrams(&self) -> u64 {
        0
    }
    /// Names the cluster that this node belongs to; 0: none.
    fn cluster(&self) -> u64;
    fn lag_bound(&self) -> Duration;
    fn proven(&self) -> Option<Time>;
    fn check(&self);
}

impl Members for Membership {
    fn start(&mut self, now: Time) {
        self.start(now);
    }
    fn handle_datagram(&mut self, now: Time, bytes: &[u8]) {
        self.handle_datagram(now, bytes);
    }
    fn handle_frame(&mut self, now: Time, from: NodeId, from_addr: &NodeAddr, frame: MemberFrame) {
        self.handle_frame(now, from, from_addr, frame);
    }
    fn handle_sign_of_life(&mut self, now: Time, from: NodeId) {
        self.handle_sign_of_life(now, from);
    }
    fn handle_link(&mut self, now: Time, event: &LinkEvent) {
        self.handle_link(now, event);
    }
    fn join(&mut self, now: Time, seeds: &[NodeAddr]) -> Result<(), String> {
        self.join(now, seeds)
    }
    fn leave(&mut self, now: Time, node: NodeId) -> Result<(), String> {
        self.leave(now, node)
    }
    fn down(&mut self, now: Time, node: NodeId) -> Result<(), String> {
        self.down(now, node)
    }
    fn set_drained(&mut self, now: Time, drained: bool) {
        self.set_drained(now, drained);
    }
    fn handle_resolved(&mut self, now: Time, name: &NodeAddr, found: Vec<NodeAddr>) {
        self.handle_resolved(now, name, found);
    }
    fn handle_lease(&mut self, now: Time, id: u64, answer: LeaseAnswer) {
        self.handle_lease(now, id, answer);
    }
    fn handle_timeout(&mut self, now: Time) {
        self.handle_timeout(now);
    }
    fn poll_timeout(&self) -> Option<Time> {
        self.poll_timeout()
    }
    fn poll_output(&mut self) -> Option<MemberOutput> {
        self.poll_output()
    }
    fn view(&self) -> &Arc<ClusterView> {
        self.view()
    }
    fn links(&self, now: Time) -> Vec<LinkReport> {
        self.links(now)
    }
    fn counters(&self) -> Vec<(&'static str, u64)> {
        self.counters()
    }
    fn strange_datagrams(&self) -> u64 {
        self.strange_datagrams()
    }
    fn cluster(&self) -> u64 {
        self.cluster()
    }
    fn lag_bound(&self) -> Duration {
        self.lag_bound()
    }
    fn proven(&self) -> Option<Time> {
        self.proven()
    }
    fn check(&self) {
        self.check();
    }
}
