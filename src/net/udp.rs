//! Datagrams, and the addresses behind names.

use std::{
    collections::BTreeMap,
    io,
    net::{IpAddr, Ipv6Addr, SocketAddr},
    time::Duration,
};

use mio::net::UdpSocket;

use super::{Net, NetEvent};
use crate::{NodeAddr, Time};

/// Largest datagram there is.
const DATAGRAM_BYTES_MAX: usize = 64 << 10;
/// Datagrams taken per turn, so that a flood of them cannot starve the links.
const DATAGRAMS_PER_TURN: usize = 256;
/// How long a name's address is used for datagrams before it is asked for again.
const NAME_TTL: Duration = Duration::from_secs(30);
/// How long a name without an address is left alone.
const UNKNOWN_TTL: Duration = Duration::from_secs(1);
/// Names remembered: more than a cluster has members.
const NAMES_MAX: usize = 4096;

/// The UDP socket and what it needs.
#[derive(Debug)]
pub(super) struct Udp {
    pub socket: UdpSocket,
    /// There may be datagrams to read.
    pub ready: bool,
    buffer: Vec<u8>,
    v6: bool,
    names: BTreeMap<NodeAddr, Name>,
}

/// What is known of a name.
#[derive(Debug)]
struct Name {
    addr: Option<SocketAddr>,
    /// When it was asked for last.
    asked: Time,
}

impl Udp {
    pub fn new(socket: UdpSocket, v6: bool) -> Self {
        Self { socket, ready: true, buffer: vec![0; DATAGRAM_BYTES_MAX], v6, names: BTreeMap::new() }
    }

    /// The address in the form that the socket's family wants; `None` if it cannot send there.
    fn reachable(&self, addr: SocketAddr) -> Option<SocketAddr> {
        match (self.v6, addr.ip()) {
            (true, IpAddr::V4(ip)) => Some(SocketAddr::new(ip.to_ipv6_mapped().into(), addr.port())),
            (false, IpAddr::V6(ip)) => ip.to_ipv4_mapped().map(|ip| SocketAddr::new(ip.into(), addr.port())),
            _ => Some(addr),
        }
    }
}

/// The socket address that `addr` names without asking a resolver.
pub(super) fn literal(addr: &NodeAddr) -> Option<SocketAddr> {
    addr.host.parse::<IpAddr>().ok().map(|ip| SocketAddr::new(ip, addr.port))
}

/// The same address whatever the family of the socket that saw it.
pub(super) fn canonical(addr: SocketAddr) -> SocketAddr {
    SocketAddr::new(addr.ip().to_canonical(), addr.port())
}

impl Net {
    /// Sends one datagram, or drops and counts it: datagrams are hints and are repeated by who needs them.
    pub fn send_datagram(&mut self, now: Time, to: &NodeAddr, bytes: &[u8]) {
        let Some(target) = literal(to).or_else(|| self.known_name(now, to)).and_then(|addr| self.udp.reachable(addr)) else {
            self.counters.datagrams_unresolved += 1;
            return;
        };
        match self.udp.socket.send_to(bytes, target) {
            Ok(_) => self.counters.datagrams_out += 1,
            Err(_) => self.counters.datagrams_unsent += 1,
        }
    }

    /// The address of a name, asked for if it is unknown or old.
    fn known_name(&mut self, now: Time, to: &NodeAddr) -> Option<SocketAddr> {
        let known = self.udp.names.get_mut(to);
        if let Some(name) = known {
            if now.since(name.asked) > if name.addr.is_some() { NAME_TTL } else { UNKNOWN_TTL } {
                name.asked = now;
                self.events.push_back(NetEvent::Resolve { addr: to.clone() });
            }
            return name.addr;
        }
        if self.udp.names.len() >= NAMES_MAX {
            self.udp.names.clear();
        }
        self.udp.names.insert(to.clone(), Name { addr: None, asked: now });
        self.events.push_back(NetEvent::Resolve { addr: to.clone() });
        None
    }

    /// Remembers what the resolver found, for datagrams. An error leaves the last good answer in place.
    pub(super) fn remember_name(&mut self, addr: &NodeAddr, found: &[SocketAddr]) {
        let reachable = |a: &&SocketAddr| self.udp.v6 || a.is_ipv4() || matches!(a.ip(), IpAddr::V6(ip) if is_mapped(ip));
        let best = found.iter().find(reachable).copied();
        if let Some(name) = self.udp.names.get_mut(addr)
            && best.is_some()
        {
            name.addr = best;
        }
    }

    /// Reads datagrams before anything else is read.
    pub(super) fn read_datagrams(&mut self) {
        for _ in 0..DATAGRAMS_PER_TURN {
            if !self.udp.ready {
                return;
            }
            match self.udp.socket.recv_from(&mut self.udp.buffer) {
                Ok((n, from)) => {
                    self.counters.datagrams_in += 1;
                    let bytes = self.udp.buffer[..n].to_vec();
                    self.events.push_back(NetEvent::Datagram { bytes, from: canonical(from) });
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => self.udp.ready = false,
                // What an earlier datagram met (an unreachable port, say) is reported here and concerns nobody.
                Err(_) => {}
            }
        }
    }
}

fn is_mapped(ip: Ipv6Addr) -> bool {
    ip.to_ipv4_mapped().is_some()
}
