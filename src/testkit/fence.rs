//! Cuts between real nodes: sockets that take and give nothing while their path is cut.

use std::{
    collections::{BTreeMap, VecDeque},
    fmt, io,
    net::{IpAddr, SocketAddr},
    os::fd::RawFd,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::RwLock;

use crate::{
    NodeAddr, NodeId, Time,
    engine::carrier::Carrier,
    net::{Net, NetEvent, Unsent},
    proto::{
        link::LinkEvent,
        wire::{Frame, Message},
    },
};

/// Frames kept while their path is cut.
const KEPT: usize = 1 << 16;

/// Which paths of a world are cut.
#[derive(Debug, Default)]
pub(super) struct Fence {
    /// Group of each node, by the port it advertises.
    groups: RwLock<BTreeMap<u16, usize>>,
    version: AtomicU64,
}

impl Fence {
    /// From now on, nothing passes between two groups.
    pub fn set(&self, groups: BTreeMap<u16, usize>) {
        *self.groups.write() = groups;
        self.version.fetch_add(1, Ordering::Release);
    }

    fn is_cut(&self, a: u16, b: u16) -> bool {
        let groups = self.groups.read();
        groups.get(&a) != groups.get(&b)
    }
}

/// The sockets of a node, behind the fence.
pub(super) struct Fenced {
    net: Net,
    me: u16,
    fence: Arc<Fence>,
    version: u64,
    /// Sessions that are up.
    up: BTreeMap<NodeId, NodeAddr>,
    kept: VecDeque<(NodeAddr, Option<NodeId>, Frame)>,
    now: Time,
}

impl Fenced {
    pub fn new(net: Net, fence: Arc<Fence>) -> Self {
        let me = net.local_addr().port();
        Self { net, me, fence, version: 0, up: BTreeMap::new(), kept: VecDeque::new(), now: Time::ZERO }
    }

    fn is_cut(&self, port: u16) -> bool {
        self.fence.is_cut(self.me, port)
    }

    /// The fence has changed: sessions behind it end, and what waited for paths that are open now goes on.
    fn turn_over(&mut self) {
        for (peer, addr) in self.up.clone() {
            if self.is_cut(addr.port) {
                self.net.close(self.now, peer, &addr);
            }
        }
        for (to, node, frame) in std::mem::take(&mut self.kept) {
            if self.is_cut(to.port) {
                self.kept.push_back((to, node, frame));
            } else if let Err(why) = self.net.send_frame(self.now, &to, node, &frame) {
                tracing::warn!(target: "wingbeat::testkit", %why, "a frame was lost behind a cut");
            }
        }
    }
}

impl Carrier for Fenced {
    fn poll(&mut self, timeout: Option<Duration>, now: impl Fn() -> Time) -> io::Result<Time> {
        let polled = self.net.poll(timeout, now);
        if let Ok(now) = polled {
            self.now = now;
        }
        let version = self.fence.version.load(Ordering::Acquire);
        if version != self.version {
            self.version = version;
            self.turn_over();
        }
        polled
    }

    fn sleeper(&mut self) -> Option<RawFd> {
        self.net.sleeper()
    }

    fn next(&mut self, _: impl FnMut(NodeId, &Message<'_>) -> bool) -> Option<NetEvent> {
        loop {
            // Each frame is looked at here, so none is taken where it stands.
            let event = self.net.next(|_, _| false)?;
            match &event {
                NetEvent::Datagram { from, .. } if self.is_cut(from.port()) => continue,
                NetEvent::Frame { peer, .. } if self.up.get(peer).is_some_and(|addr| self.is_cut(addr.port)) => continue,
                NetEvent::Link(LinkEvent::Up { peer, addr, .. }) => {
                    self.up.insert(*peer, addr.clone());
                    if self.is_cut(addr.port) {
                        // It was being dialled when the path was cut.
                        self.net.close(self.now, *peer, addr);
                    }
                }
                NetEvent::Link(LinkEvent::Down { peer: Some(peer), .. }) => drop(self.up.remove(peer)),
                _ => {}
            }
            return Some(event);
        }
    }

    fn send_message(&mut self, _: Time, _: NodeId, _: &Message<'_>) -> bool {
        false
    }

    fn has_events(&self) -> bool {
        self.net.has_events()
    }

    fn has_work(&self) -> bool {
        self.net.has_work() || self.fence.version.load(Ordering::Acquire) != self.version
    }

    fn poll_timeout(&self) -> Option<Time> {
        self.net.poll_timeout()
    }

    fn handle_timeout(&mut self, now: Time) {
        self.net.handle_timeout(now);
    }

    fn send_datagram(&mut self, now: Time, to: &NodeAddr, bytes: &[u8]) {
        if !self.is_cut(to.port) {
            self.net.send_datagram(now, to, bytes);
        }
    }

    fn send_frame(&mut self, now: Time, to: &NodeAddr, node: Option<NodeId>, frame: &Frame) -> Result<(), Unsent> {
        if !self.is_cut(to.port) {
            return self.net.send_frame(now, to, node, frame);
        }
        if self.kept.len() >= KEPT {
            return Err(Unsent::Overflow { waiting: self.kept.len() as u64, max: KEPT as u64 });
        }
        self.kept.push_back((to.clone(), node, frame.clone()));
        Ok(())
    }

    fn flush(&mut self, now: Time) {
        self.net.flush(now);
    }

    fn finish(&mut self, until: Time, now: impl Fn() -> Time) {
        self.net.finish(until, now);
    }

    fn close(&mut self, now: Time, node: NodeId, addr: &NodeAddr) {
        self.kept.retain(|(_, meant, _)| *meant != Some(node));
        self.net.close(now, node, addr);
    }

    fn resolved(&mut self, now: Time, addr: &NodeAddr, result: Result<Vec<SocketAddr>, String>) {
        self.net.resolved(now, addr, result);
    }

    fn log_stranger(&mut self, ip: IpAddr, what: &dyn fmt::Display) {
        self.net.log_stranger(ip, what);
    }

    fn unsent_bytes(&self) -> usize {
        self.net.unsent_bytes()
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        self.net.counters()
    }
}
