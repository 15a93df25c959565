//! What carries datagrams and frames between nodes: the sockets, or a model of them. Chosen when a node is built, so that calls cost nothing.

use std::{io, net::SocketAddr, os::fd::RawFd, time::Duration};

use mio::Token;

use crate::{
    NodeAddr, NodeId, Time,
    net::{Net, NetEvent, Unsent},
    proto::wire::{Frame, Message},
};

/// The network as the network thread sees it. Contract: that of [`Net`], call by call.
pub trait Carrier {
    /// See [`Net::poll`].
    fn poll(&mut self, timeout: Option<Duration>, now: impl Fn() -> Time) -> io::Result<Time>;
    /// See [`Net::read_from`]. Who cannot tell one link from another looks at all there is.
    fn read_from(&mut self, _link: Token, now: Time) -> io::Result<()> {
        self.poll(Some(Duration::ZERO), || now).map(drop)
    }
    /// See [`Net::sleeper`].
    fn sleeper(&mut self) -> Option<RawFd>;
    /// See [`Net::next`].
    fn next(&mut self, take: impl FnMut(NodeId, &Message<'_>) -> bool) -> Option<NetEvent>;
    /// See [`Net::send_message`].
    fn send_message(&mut self, now: Time, to: NodeId, message: &Message<'_>) -> bool;
    /// See [`Net::has_events`].
    fn has_events(&self) -> bool;
    /// See [`Net::has_work`].
    fn has_work(&self) -> bool;
    /// See [`Net::poll_timeout`].
    fn poll_timeout(&self) -> Option<Time>;
    /// See [`Net::handle_timeout`].
    fn handle_timeout(&mut self, now: Time);
    /// See [`Net::send_datagram`].
    fn send_datagram(&mut self, now: Time, to: &NodeAddr, bytes: &[u8]);
    /// See [`Net::send_frame`].
    fn send_frame(&mut self, now: Time, to: &NodeAddr, node: Option<NodeId>, frame: &Frame) -> Result<(), Unsent>;
    /// See [`Net::flush`].
    fn flush(&mut self, now: Time);
    /// See [`Net::finish`].
    fn finish(&mut self, until: Time, now: impl Fn() -> Time);
    /// See [`Net::close`].
    fn close(&mut self, now: Time, node: NodeId, addr: &NodeAddr);
    /// See [`Net::resolved`].
    fn resolved(&mut self, now: Time, addr: &NodeAddr, result: Result<Vec<SocketAddr>, String>);
    /// See [`Net::log_stranger`].
    fn log_stranger(&mut self, ip: std::net::IpAddr, what: &dyn std::fmt::Display);
    /// See [`Net::unsent_bytes`].
    fn unsent_bytes(&self) -> usize;
    /// See [`Net::counters`].
    fn counters(&self) -> Vec<(&'static str, u64)>;
}

impl Carrier for Net {
    fn poll(&mut self, timeout: Option<Duration>, now: impl Fn() -> Time) -> io::Result<Time> {
        Net::poll(self, timeout, now)
    }

    fn read_from(&mut self, link: Token, now: Time) -> io::Result<()> {
        Net::read_from(self, link, now)
    }

    fn sleeper(&mut self) -> Option<RawFd> {
        Net::sleeper(self)
    }

    fn next(&mut self, take: impl FnMut(NodeId, &Message<'_>) -> bool) -> Option<NetEvent> {
        Net::next(self, take)
    }

    fn send_message(&mut self, now: Time, to: NodeId, message: &Message<'_>) -> bool {
        Net::send_message(self, now, to, message)
    }

    fn has_events(&self) -> bool {
        Net::has_events(self)
    }

    fn has_work(&self) -> bool {
        Net::has_work(self)
    }

    fn poll_timeout(&self) -> Option<Time> {
        Net::poll_timeout(self)
    }

    fn handle_timeout(&mut self, now: Time) {
        Net::handle_timeout(self, now);
    }

    fn send_datagram(&mut self, now: Time, to: &NodeAddr, bytes: &[u8]) {
        Net::send_datagram(self, now, to, bytes);
    }

    fn send_frame(&mut self, now: Time, to: &NodeAddr, node: Option<NodeId>, frame: &Frame) -> Result<(), Unsent> {
        Net::send_frame(self, now, to, node, frame)
    }

    fn flush(&mut self, now: Time) {
        Net::flush(self, now);
    }

    fn finish(&mut self, until: Time, now: impl Fn() -> Time) {
        Net::finish(self, until, now);
    }

    fn close(&mut self, now: Time, node: NodeId, addr: &NodeAddr) {
        Net::close(self, now, node, addr);
    }

    fn resolved(&mut self, now: Time, addr: &NodeAddr, result: Result<Vec<SocketAddr>, String>) {
        Net::resolved(self, now, addr, result);
    }

    fn log_stranger(&mut self, ip: std::net::IpAddr, what: &dyn std::fmt::Display) {
        Net::log_stranger(self, ip, what);
    }

    fn unsent_bytes(&self) -> usize {
        Net::unsent_bytes(self)
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        Net::counters(self)
    }
}
