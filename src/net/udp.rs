//! Datagrams, and the addresses behind names.

use std::{
    collections::BTreeMap,
    io,
    net::{IpAddr, SocketAddr},
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
    /// From when on it is asked for again.
    due: Time,
}

impl Udp {
    pub fn new(socket: UdpSocket, v6: bool) -> Self {
        Self { socket, ready: true, buffer: vec![0; DATAGRAM_BYTES_MAX], v6, names: BTreeMap::new() }
    }

    /// What is known of a name.
    fn name(&mut self, addr: &NodeAddr) -> &mut Name {
        if !self.names.contains_key(addr) {
            if self.names.len() >= NAMES_MAX {
                self.names.clear();
            }
            self.names.insert(addr.clone(), Name { addr: None, due: Time::ZERO });
        }
        self.names.get_mut(addr).expect("it was put there if there was none")
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
        let name = self.udp.name(to);
        let addr = name.addr;
        if name.due <= now {
            name.due = now + if addr.is_some() { NAME_TTL } else { UNKNOWN_TTL };
            self.events.push_back(NetEvent::Resolve { addr: to.clone() });
        }
        addr
    }

    /// Remembers what the resolver found, for datagrams. An error leaves the last good answer in place, and an address that is still one of the name's
    /// stays: links may have shown that it is the one.
    pub(super) fn remember_name(&mut self, addr: &NodeAddr, found: &[SocketAddr]) {
        let first = found.iter().find(|a| self.udp.reachable(**a).is_some()).copied();
        if let Some(name) = self.udp.names.get_mut(addr)
            && first.is_some()
        {
            name.addr = name.addr.filter(|known| found.contains(known)).or(first);
            name.due = self.now + NAME_TTL;
        }
    }

    /// A link that was dialled by this name has come up there: datagrams take the same way.
    pub(super) fn name_leads_to(&mut self, addr: &NodeAddr, ip: IpAddr) {
        let there = SocketAddr::new(ip, addr.port);
        // A link may be of another family than the socket for datagrams.
        if literal(addr).is_none() && self.udp.reachable(there).is_some() {
            let due = self.now + NAME_TTL;
            *self.udp.name(addr) = Name { addr: Some(there), due };
        }
    }

    /// The node of this name has dialled from there. If that is not where datagrams go, the name may have another address now.
    pub(super) fn name_is_heard_from(&mut self, addr: &NodeAddr, ip: IpAddr) {
        if let Some(name) = self.udp.names.get_mut(addr)
            && name.addr.is_some_and(|known| known.ip().to_canonical() != ip)
        {
            name.due = Time::ZERO;
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
