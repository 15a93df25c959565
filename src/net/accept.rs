//! Taking connections in, within bounds that strangers cannot break.

use std::{
    collections::VecDeque,
    io,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use mio::{
    Token,
    net::{TcpListener, TcpStream},
};

use super::{
    FIRST_CONN, Map, Net, Timer,
    conn::{Conn, ConnId},
    stream::Stream,
    sys,
    udp::canonical,
};
use crate::{Time, proto::link::LinkDown};

/// Connections accepted per turn, so that a flood of them cannot starve the links.
const ACCEPTS_PER_TURN: usize = 128;
/// Pause when nothing can be accepted.
const FAILED_PAUSE: Duration = Duration::from_millis(100);
/// Lines about it in the log are so far apart.
const FAILED_EVERY: Duration = Duration::from_secs(10);
/// Accepted connections that one address may have: as many as a cluster of the largest size would need from one machine.
const PER_IP_MAX: u32 = 1024;

/// The listener and what it has let in.
#[derive(Debug)]
pub(super) struct Accept {
    pub listener: TcpListener,
    /// There may be connections to accept.
    pub ready: bool,
    paused: bool,
    reserve: sys::Reserve,
    /// When the next line about that may be logged.
    next_line: Time,
    /// Accepted and not greeted, oldest first; entries of connections that got further are skipped when they come up.
    half_open: VecDeque<(IpAddr, ConnId)>,
    per_ip: Map<IpAddr, Counts>,
}

/// Accepted connections of one address.
#[derive(Copy, Clone, Default, Debug)]
struct Counts {
    all: u32,
    half_open: u32,
}

impl Accept {
    pub fn new(listener: TcpListener) -> Self {
        Self {
            listener,
            ready: true,
            paused: false,
            reserve: sys::Reserve::new(),
            next_line: Time::ZERO,
            half_open: VecDeque::new(),
            per_ip: Map::default(),
        }
    }

    pub fn has_work(&self) -> bool {
        self.ready && !self.paused
    }

    pub fn resume(&mut self) {
        self.paused = false;
        self.reserve.restore();
    }

    /// Nothing is accepted any more.
    pub fn close(&mut self) {
        self.paused = true;
    }

    /// A connection of this address is closed.
    pub fn forget(&mut self, ip: IpAddr) {
        if let Some(counts) = self.per_ip.get_mut(&ip) {
            counts.all -= 1;
            if counts.all == 0 {
                self.per_ip.remove(&ip);
            }
        }
    }

    /// A connection of this address is no longer half open.
    pub fn greeted(&mut self, ip: IpAddr, id: ConnId) {
        if let Some(counts) = self.per_ip.get_mut(&ip) {
            counts.half_open -= 1;
        }
        self.half_open.retain(|(_, other)| *other != id);
    }

    fn admit(&mut self, ip: IpAddr, id: ConnId) {
        let counts = self.per_ip.entry(ip).or_default();
        counts.all += 1;
        counts.half_open += 1;
        self.half_open.push_back((ip, id));
    }

    /// Accepted connections, half-open ones by address, and half-open ones in the list.
    #[cfg(test)]
    pub fn totals(&self) -> (usize, usize, usize) {
        let sum = |of: fn(&Counts) -> u32| self.per_ip.values().map(|c| of(c) as usize).sum();
        (sum(|c| c.all), sum(|c| c.half_open), self.half_open.len())
    }

    /// From now on nothing can be accepted.
    #[cfg(test)]
    pub fn shut_down(&self) {
        socket2::SockRef::from(&self.listener).shutdown(std::net::Shutdown::Read).unwrap();
    }

    fn oldest_of(&self, ip: IpAddr) -> Option<ConnId> {
        self.half_open.iter().find(|(other, _)| *other == ip).map(|(_, id)| *id)
    }
}

impl Net {
    pub(super) fn accept_connections(&mut self) {
        for _ in 0..ACCEPTS_PER_TURN {
            if !self.accept.has_work() {
                return;
            }
            match self.accept.listener.accept() {
                Ok((stream, from)) => self.admit(stream, canonical(from)),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => self.accept.ready = false,
                // The connection broke before it was taken: the next one is asked for.
                Err(e) if sys::is_of_connection(&e) => {}
                Err(e) => self.accept_failed(&e),
            }
        }
    }

    fn admit(&mut self, stream: TcpStream, from: SocketAddr) {
        self.counters.accepted += 1;
        let ip = from.ip();
        if !self.make_room(ip) {
            self.counters.per_ip_evicted += 1;
            sys::close_hard(&stream);
            return;
        }
        let deadline = self.now + self.limits.hello_deadline;
        let serial = self.next_serial();
        let id = self.conns.insert(Conn::new(Stream::Plain(stream), ip, None, serial, deadline));
        self.accept.admit(ip, id);
        self.arm(deadline, Timer::Conn(id));
        let Some(conn) = self.conns.get_mut(id) else { return };
        conn.stream.prepare();
        if conn.stream.register(self.poll.registry(), self.watchers.as_ref(), Token(FIRST_CONN + id.index as usize)).is_err() {
            self.end(id, LinkDown::Reset);
        }
        // What came with the connection is reported by the registration.
    }

    /// Closes the oldest half-open connection where a bound is reached: first those of the same address. False if the address has too many.
    fn make_room(&mut self, ip: IpAddr) -> bool {
        let counts = self.accept.per_ip.get(&ip).copied().unwrap_or_default();
        // One address may not fill the whole room for strangers.
        let share = (self.limits.half_open - self.limits.half_open / 4).max(1);
        let own = if counts.half_open as usize >= share || counts.all >= PER_IP_MAX { self.accept.oldest_of(ip) } else { None };
        if let Some(oldest) = own {
            self.counters.per_ip_evicted += 1;
            self.evict(oldest);
        } else if counts.all >= PER_IP_MAX {
            return false;
        } else if self.accept.half_open.len() >= self.limits.half_open.max(1)
            && let Some((_, oldest)) = self.accept.half_open.front().copied()
        {
            self.counters.half_open_evicted += 1;
            self.evict(oldest);
        }
        true
    }

    fn evict(&mut self, id: ConnId) {
        if let Some(conn) = self.conns.get(id) {
            conn.stream.abort();
        }
        self.end(id, LinkDown::Closed);
    }

    /// Nothing can be accepted, and the next try would fail as well: pauses. Those who are connected go on.
    fn accept_failed(&mut self, error: &io::Error) {
        let exhausted = sys::out_of_descriptors(error);
        let count = if exhausted { &mut self.counters.descriptors_exhausted } else { &mut self.counters.accepts_failed };
        *count += 1;
        if self.now >= self.accept.next_line {
            self.accept.next_line = self.now + FAILED_EVERY;
            let connections = self.conns.len();
            if exhausted {
                tracing::warn!(target: "wingbeat::net", %error, connections, "no descriptor is left for a connection, which was closed; links that are up go on. Raise the process's limit of open files (`ulimit -n`)");
            } else {
                tracing::warn!(target: "wingbeat::net", %error, connections, "no connection can be accepted; links that are up go on");
            }
        }
        if exhausted {
            self.refuse_one();
        }
        self.accept.paused = true;
        let at = self.now + FAILED_PAUSE;
        self.arm(at, Timer::Accept);
    }

    /// Takes one connection by means of the reserve, and closes it.
    fn refuse_one(&mut self) {
        if self.accept.reserve.release()
            && let Ok((stream, _)) = self.accept.listener.accept()
        {
            sys::close_hard(&stream);
        }
        self.accept.reserve.restore();
    }
}
