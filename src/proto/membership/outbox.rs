//! What the machine wants done, in the order in which it must be done.

use std::collections::VecDeque;

use super::{ClusterView, Ending, Event, MemberFrame, MemberOutput, Peer, Removal};
use crate::{
    NodeAddr, NodeId,
    proto::{lease::LeaseCall, queue::take},
};

/// Three queues: what the world is told goes first, so that who receives a frame's consequences knows the members; the end goes last, so
/// that farewells leave.
#[derive(Clone, Default, Debug)]
pub(crate) struct Outbox {
    world: VecDeque<MemberOutput>,
    wire: VecDeque<MemberOutput>,
    end: Option<Ending>,
}

impl Outbox {
    pub(crate) fn pop(&mut self) -> Option<MemberOutput> {
        take(&mut self.world).or_else(|| take(&mut self.wire)).or_else(|| self.end.take().map(MemberOutput::Ended))
    }

    pub(crate) fn event(&mut self, event: Event) {
        self.world.push_back(MemberOutput::Event(event));
    }

    pub(crate) fn removed(&mut self, node: NodeId, how: Removal) {
        self.world.push_back(MemberOutput::Removed { node, how });
    }

    pub(crate) fn view(&mut self, view: std::sync::Arc<ClusterView>) {
        self.world.push_back(MemberOutput::View(view));
    }

    pub(crate) fn datagram(&mut self, to: NodeAddr, bytes: Vec<u8>) {
        self.wire.push_back(MemberOutput::Datagram { to, bytes });
    }

    pub(crate) fn frame(&mut self, to: NodeAddr, frame: MemberFrame) {
        self.wire.push_back(MemberOutput::Frame { to: Peer::Addr(to), frame });
    }

    pub(crate) fn frame_to(&mut self, to: NodeId, frame: MemberFrame) {
        self.wire.push_back(MemberOutput::Frame { to: Peer::Node(to), frame });
    }

    /// To that life if it is a member; to its address if it is to learn that it no longer is.
    pub(crate) fn gossip(&mut self, to: NodeId, known: bool, addr: NodeAddr, frame: MemberFrame) {
        self.wire.push_back(MemberOutput::Frame { to: if known { Peer::Node(to) } else { Peer::Addr(addr) }, frame });
    }

    /// Which addresses a name has now.
    pub(crate) fn resolve(&mut self, name: NodeAddr) {
        self.wire.push_back(MemberOutput::Resolve(name));
    }

    /// For the lease that decides splits.
    pub(crate) fn lease(&mut self, id: u64, call: LeaseCall) {
        self.wire.push_back(MemberOutput::Lease { id, call });
    }

    pub(crate) fn end(&mut self, ending: Ending) {
        self.end = Some(ending);
    }
}
