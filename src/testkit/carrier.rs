//! One node's side of the modelled network, where production has sockets.

use std::{
    cell::RefCell,
    fmt, io,
    net::{IpAddr, SocketAddr},
    os::fd::RawFd,
    rc::Rc,
    time::Duration,
};

use super::wires::{LifeNo, Wires};
use crate::{
    NodeAddr, NodeId, Time,
    engine::carrier::Carrier,
    net::{NetEvent, Unsent},
    proto::wire::{Frame, Message},
};

pub(super) struct SimCarrier {
    pub wires: Rc<RefCell<Wires>>,
    pub life: LifeNo,
}

impl Carrier for SimCarrier {
    fn poll(&mut self, _: Option<Duration>, now: impl Fn() -> Time) -> io::Result<Time> {
        Ok(now())
    }

    fn sleeper(&mut self) -> Option<RawFd> {
        None
    }

    fn next(&mut self, _: impl FnMut(NodeId, &Message<'_>) -> bool) -> Option<NetEvent> {
        self.wires.borrow_mut().next(self.life)
    }

    fn send_message(&mut self, _: Time, _: NodeId, _: &Message<'_>) -> bool {
        false
    }

    fn has_events(&self) -> bool {
        self.wires.borrow().has_events(self.life)
    }

    fn has_work(&self) -> bool {
        self.has_events()
    }

    fn poll_timeout(&self) -> Option<Time> {
        None
    }

    fn handle_timeout(&mut self, _: Time) {}

    fn send_datagram(&mut self, now: Time, to: &NodeAddr, bytes: &[u8]) {
        self.wires.borrow_mut().send_datagram(now, self.life, to, bytes);
    }

    fn send_frame(&mut self, now: Time, to: &NodeAddr, node: Option<NodeId>, frame: &Frame) -> Result<(), Unsent> {
        self.wires.borrow_mut().send_frame(now, self.life, to, node, frame)
    }

    fn flush(&mut self, _: Time) {}

    fn finish(&mut self, _: Time, _: impl Fn() -> Time) {}

    fn close(&mut self, now: Time, node: NodeId, addr: &NodeAddr) {
        self.wires.borrow_mut().close(now, self.life, node, addr);
    }

    fn resolved(&mut self, _: Time, _: &NodeAddr, _: Result<Vec<SocketAddr>, String>) {}

    fn log_stranger(&mut self, _: IpAddr, _: &dyn fmt::Display) {}

    fn unsent_bytes(&self) -> usize {
        self.wires.borrow().unsent_bytes(self.life)
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        vec![]
    }
}
