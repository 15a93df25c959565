//! The sockets of a node: one UDP socket, one TCP listener, one link per peer. Knows nothing of the protocol but links, and what may go past what
//! on one: large frames travel in parts (`bulk`), between which messages of other shards and answers leave.
//!
//! Owned by the network thread, whose turn is: `poll`, `next` until `None`, let the core work, `send_*`, `flush`. All time comes in.

mod accept;
mod buffer;
mod bulk;
mod conn;
mod counters;
mod dial;
mod greet;
mod session;
mod stream;
mod sys;
#[cfg(test)]
mod tests;
mod udp;
mod watchers;

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap, HashMap, VecDeque},
    fmt, io,
    net::{IpAddr, SocketAddr},
    os::fd::{AsFd as _, AsRawFd as _, RawFd},
    time::Duration,
};

use mio::{Events, Interest, Poll, Registry, Token, net::TcpListener};

use self::{
    accept::Accept,
    conn::{ConnId, Conns},
    counters::Counters,
    dial::Dial,
    udp::Udp,
    watchers::Watchers,
};
use crate::{
    Config, NodeAddr, NodeId, Time,
    proto::{
        link::{LinkEvent, longest_pause},
        membership::Identity,
        rng::Rng,
        wire::{Frame, Greeter, Message, Previous, ProtocolRange},
    },
};

/// Tries to find one number that is free for TCP and for UDP.
const PORT_TRIES: u32 = 16;
/// Events taken from the kernel per turn.
const EVENTS_PER_TURN: usize = 1024;
/// Sessions that ended and whose counts are kept for the peer's return.
const ENDED_MAX: usize = 1024;

const UDP: Token = Token(0);
const LISTENER: Token = Token(1);
const FIRST_CONN: usize = 2;

pub(crate) use session::check_room;
#[cfg(feature = "admin")]
pub(crate) use sys::{Reserve, close_hard, listen_tcp, out_of_descriptors};

type Map<K, V> = HashMap<K, V, foldhash::fast::RandomState>;

/// A protocol of the transport layer.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Transport {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
        })
    }
}

/// An address could not be bound.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {addr} ({proto}): {source}")]
pub struct BindError {
    /// For which protocol.
    pub proto: Transport,
    /// What was to be bound.
    pub addr: SocketAddr,
    /// What the system says.
    #[source]
    pub source: io::Error,
}

/// The bound sockets of a node that does not know its own address yet.
#[derive(Debug)]
pub struct Sockets {
    tcp: std::net::TcpListener,
    udp: std::net::UdpSocket,
    local: SocketAddr,
}

impl Sockets {
    /// Binds one number for TCP and UDP. Port 0 takes a number that is free for both.
    pub fn bind(listen: SocketAddr) -> Result<Self, BindError> {
        let mut tries = 0;
        loop {
            tries += 1;
            match Self::bind_pair(listen) {
                Err(e) if listen.port() == 0 && e.proto == Transport::Udp && tries < PORT_TRIES => {}
                other => return other,
            }
        }
    }

    fn bind_pair(listen: SocketAddr) -> Result<Self, BindError> {
        let failed = |proto, addr| move |source| BindError { proto, addr, source };
        let tcp = sys::listen_tcp(listen).map_err(failed(Transport::Tcp, listen))?;
        let local = tcp.local_addr().map_err(failed(Transport::Tcp, listen))?;
        let udp = sys::bind_udp(local).map_err(failed(Transport::Udp, local))?;
        Ok(Self { tcp, udp, local })
    }

    /// What was bound, with the number that port 0 became.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }
}

/// What the sockets have to say, in the order in which it must be handled.
#[derive(Clone, PartialEq, Debug)]
pub enum NetEvent {
    /// A datagram, from anybody: nothing about it was checked.
    Datagram {
        /// Its content.
        bytes: Vec<u8>,
        /// Where it came from, as the network says.
        from: SocketAddr,
    },
    /// Something was read from the link of this peer, whose session is up: a sign of life. Once per turn and peer.
    Traffic(NodeId),
    /// A link changed.
    Link(LinkEvent),
    /// A frame of a session that is up.
    Frame {
        /// Its sender.
        peer: NodeId,
        /// The frame.
        frame: Frame,
    },
    /// A name must be resolved, on another thread; the answer goes to [`Net::resolved`].
    Resolve {
        /// Name and port.
        addr: NodeAddr,
    },
}

/// Why a frame was not accepted for sending. Nothing of it was kept.
#[derive(Copy, Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Unsent {
    /// Larger than a frame may be.
    #[error("frame of {size} bytes, limits.frame_bytes is {max}; send less at once, or raise the limit on all nodes")]
    TooLarge {
        /// Its size.
        size: u64,
        /// `limits.frame_bytes`.
        max: u64,
    },
    /// A user message or a large reply for a peer that was reported as blocked, and that has twice `limits.link_bytes` waiting.
    #[error("the peer reads too slowly: {waiting} bytes wait for it, limits.link_bytes is {max}")]
    Blocked {
        /// Bytes waiting.
        waiting: u64,
        /// `limits.link_bytes`.
        max: u64,
    },
    /// Any frame for whoever answers at an address where nobody does, and as many as may wait do.
    #[error("nobody answers there: {waiting} frames wait for whoever does, the limit is {max}")]
    Unanswered {
        /// Frames waiting.
        waiting: u64,
        /// As many as may.
        max: u64,
    },
    /// Any frame for a peer that has four times `limits.link_bytes` waiting. If its session was up it is closed.
    #[error("the peer takes nothing: {waiting} bytes wait for it, the limit is {max}")]
    Overflow {
        /// Bytes waiting.
        waiting: u64,
        /// Four times `limits.link_bytes`.
        max: u64,
    },
}

/// Limits, in the units they are compared in.
#[derive(Copy, Clone, Debug)]
struct Limits {
    frame_bytes: usize,
    link_bytes: usize,
    frame_deadline: Duration,
    hello_deadline: Duration,
    half_open: usize,
}

/// State of one link, for display.
#[derive(Clone, PartialEq, Debug)]
pub struct LinkInfo {
    /// The peer, once it has said who it is.
    pub peer: Option<NodeId>,
    /// The address it advertises, or that is dialled.
    pub addr: NodeAddr,
    /// `up`, `blocked`, `dialling` or `waiting`.
    pub state: &'static str,
    /// Number of the session; 0 without one.
    pub session: u64,
    /// Whether this side dialled.
    pub dialled: bool,
    /// Since when the session is up.
    pub since: Option<Time>,
    /// Bytes waiting to be written.
    pub waiting_bytes: u64,
    /// Frames written whole since then.
    pub frames_out: u64,
    /// Frames taken in since then.
    pub frames_in: u64,
}

/// What is due at a moment.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Timer {
    /// A connection's greeting or frame.
    Conn(ConnId),
    /// A look at a link whose buffers are larger than usual.
    Settle(ConnId),
    /// A dial's next try.
    Dial(NodeAddr),
    /// Accepting goes on.
    Accept,
}

/// What is kept of a session that ended, to count exactly what was lost in it.
#[derive(Copy, Clone, Debug)]
struct Ended {
    session: u64,
    /// Largest number that was said to that peer since then, or that of the session.
    last: u64,
    sent: u64,
    received: u64,
    /// Frames written whole behind which nothing came from the peer.
    unanswered: u64,
    at: Time,
}

/// All sockets of a node.
pub struct Net {
    poll: Poll,
    /// Where threads sleep, if that is not `poll`.
    watchers: Option<Watchers>,
    kernel_events: Events,
    udp: Udp,
    accept: Accept,
    greeter: Greeter,
    limits: Limits,
    /// Between two tries to reach a peer.
    longest_pause: Duration,
    /// How long frames wait for a session with the life that they are for.
    patience: Duration,
    rng: Rng,
    local: SocketAddr,
    now: Time,
    /// Position in the order of what happened here.
    serial: u64,
    /// Dials so far, by which sessions are numbered. What peers say of numbers does not come in here.
    dialled: u64,
    conns: Conns,
    /// Sessions that are up.
    sessions: Map<NodeId, ConnId>,
    /// Who answers at an address: as advertised, and as dialled.
    by_addr: Map<NodeAddr, NodeId>,
    dials: BTreeMap<NodeAddr, Dial>,
    ended: BTreeMap<NodeId, Ended>,
    events: VecDeque<NetEvent>,
    /// Connections with bytes to parse.
    parsing: VecDeque<ConnId>,
    /// Connections whose socket may have something to read. mio reports a socket once; what a budget left unread is remembered here.
    ready: VecDeque<ConnId>,
    /// Connections with frames to write.
    dirty: Vec<ConnId>,
    timers: BinaryHeap<Reverse<(Time, Timer)>>,
    counters: Counters,
    /// When the next line about a stranger may be logged, and how many were kept back.
    strangers: (Time, u64),
}

/// Lines about strangers are so far apart: what anybody can send must not fill the log.
const STRANGERS_EVERY: Duration = Duration::from_secs(1);

impl Net {
    /// Takes the bound sockets into service as node `me`. `seed` feeds the jitter of reconnects.
    pub fn new(sockets: Sockets, config: &Config, me: &Identity, seed: u64) -> io::Result<Self> {
        let Sockets { tcp, udp, local } = sockets;
        let poll = Poll::new()?;
        let mut udp = mio::net::UdpSocket::from_std(udp);
        let mut tcp = TcpListener::from_std(tcp);
        poll.registry().register(&mut udp, UDP, Interest::READABLE)?;
        poll.registry().register(&mut tcp, LISTENER, Interest::READABLE)?;
        let limits = &config.limits;
        Ok(Self {
            poll,
            watchers: None,
            kernel_events: Events::with_capacity(EVENTS_PER_TURN),
            udp: Udp::new(udp, local.is_ipv6()),
            accept: Accept::new(tcp),
            greeter: Greeter { cluster: config.cluster.name.clone(), protocol: ProtocolRange::MINE, node: me.id(), addr: me.addr.clone() },
            limits: Limits {
                frame_bytes: limits.frame_bytes as usize,
                link_bytes: limits.link_bytes as usize,
                frame_deadline: limits.frame_deadline.get(),
                hello_deadline: limits.hello_deadline.get(),
                half_open: limits.half_open as usize,
            },
            longest_pause: longest_pause(config.membership.seed_timeout.get()),
            patience: config.sharding.handoff_timeout.get(),
            rng: Rng::new(seed),
            local,
            now: Time::ZERO,
            serial: 0,
            dialled: 0,
            conns: Conns::default(),
            sessions: Map::default(),
            by_addr: Map::default(),
            dials: BTreeMap::new(),
            ended: BTreeMap::new(),
            events: VecDeque::new(),
            parsing: VecDeque::new(),
            ready: VecDeque::new(),
            dirty: vec![],
            timers: BinaryHeap::new(),
            counters: Counters::default(),
            strangers: (Time::ZERO, 0),
        })
    }

    /// From now on, and before there is a link, what comes in wakes who sleeps in the poller `guests`, if it comes by a link and somebody does, and else who
    /// sleeps in `thread`. What links are reported as is for [`read_from`](Self::read_from); nothing is reported as the largest token. An error of the kind
    /// `Unsupported` or `InvalidInput`: not on this system, and nothing was changed.
    pub fn watched_by(&mut self, guests: &Registry, thread: &Registry) -> io::Result<()> {
        let watchers = Watchers::new(guests, thread)?;
        watchers.other(self.udp.socket.as_fd(), UDP)?;
        watchers.other(self.accept.listener.as_fd(), LISTENER)?;
        self.watchers = Some(watchers);
        Ok(())
    }

    /// Says in the log that something arrived that no member sends; counters have the whole number.
    pub fn log_stranger(&mut self, ip: IpAddr, what: &dyn std::fmt::Display) {
        let (next, kept_back) = self.strangers;
        if self.now < next {
            self.strangers.1 += 1;
            return;
        }
        self.strangers = (self.now + STRANGERS_EVERY, 0);
        tracing::warn!(target: "wingbeat::net", %ip, %what, kept_back, "refused from a stranger; lines like this come once a second at most");
    }

    /// What was bound.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Waits for sockets or `timeout`, then reads what budgets allow: datagrams first, then new connections, then links. Does not
    /// wait if a budget left something unread. Returns the moment after waiting. The caller takes the events by [`next`](Self::next).
    pub fn poll(&mut self, timeout: Option<Duration>, now: impl Fn() -> Time) -> io::Result<Time> {
        let timeout = if self.has_work() { Some(Duration::ZERO) } else { timeout };
        self.counters.polls += 1;
        self.counters.polls_asleep += u64::from(timeout != Some(Duration::ZERO));
        match self.poll.poll(&mut self.kernel_events, timeout) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => self.kernel_events.clear(),
            other => other?,
        }
        self.now = now();
        self.take_kernel_events();
        self.read_datagrams();
        self.accept_connections();
        self.read_links();
        Ok(self.now)
    }

    /// As [`poll`](Self::poll), but does not wait, and looks only at the link that was reported to who slept in the poller for guests, if it is one by then.
    pub fn read_from(&mut self, link: Token, now: Time) -> io::Result<()> {
        let up = |id: &ConnId| self.conns.get(*id).is_some_and(|conn| conn.session().is_some());
        let Some(id) = link.0.checked_sub(FIRST_CONN).and_then(|index| self.conns.at(index)).filter(up) else {
            return self.poll(Some(Duration::ZERO), || now).map(drop);
        };
        self.counters.polls += 1;
        self.counters.polls_asleep += 1;
        self.now = now;
        // It may be another one that has come to its place, and has nothing yet.
        self.conn_readable(id, false);
        self.read_links();
        Ok(())
    }

    /// The caller is about to wait by itself: this becomes readable when [`poll`](Self::poll) has something, and is closed when the sockets are. Where
    /// threads sleep in pollers of their own, it is that of [`watched_by`](Self::watched_by), which the caller empties. `None`: there is work already.
    pub fn sleeper(&mut self) -> Option<RawFd> {
        let idle = !self.has_work();
        self.counters.polls_asleep += u64::from(idle);
        idle.then(|| self.watchers.as_ref().map_or_else(|| self.poll.as_raw_fd(), Watchers::thread))
    }

    /// The next event; `None` when everything read so far is handed out. Messages of settled streams are offered to `take` where they stand,
    /// in their order among the events; what it does not take comes as an event.
    pub fn next(&mut self, mut take: impl FnMut(NodeId, &Message<'_>) -> bool) -> Option<NetEvent> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Some(event);
            }
            let id = *self.parsing.front()?;
            if let Some(event) = self.parse_one(id, &mut take) {
                return Some(event);
            }
        }
    }

    /// When [`handle_timeout`](Self::handle_timeout) must be called at the latest.
    pub fn poll_timeout(&self) -> Option<Time> {
        self.timers.peek().map(|Reverse((at, _))| *at)
    }

    /// Does what is due: tries dials again, closes connections that were too slow to greet or to finish a frame, gives back room in buffers.
    pub fn handle_timeout(&mut self, now: Time) {
        self.now = self.now.max(now);
        while let Some(Reverse((at, _))) = self.timers.peek()
            && *at <= now
        {
            let Some(Reverse((_, timer))) = self.timers.pop() else { return };
            match timer {
                Timer::Conn(id) => self.conn_due(id, now),
                Timer::Settle(id) => self.settle(id, now),
                Timer::Dial(addr) => self.dial_due(&addr, now),
                Timer::Accept => self.accept.resume(),
            }
        }
    }

    /// Whether `poll` would not wait.
    pub fn has_work(&self) -> bool {
        !self.ready.is_empty() || !self.events.is_empty() || !self.parsing.is_empty() || self.udp.ready || self.accept.has_work()
    }

    /// Whether [`next`](Self::next) has something that sending led to.
    pub fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// Bytes accepted for sending and not yet given to the kernel, those waiting for a session included, and parts that were not acknowledged: a socket
    /// that is closed before the acknowledgement comes takes back what the peer has not read.
    pub fn unsent_bytes(&self) -> usize {
        let waiting: usize = self.dials.values().map(Dial::bytes).sum();
        let unsent = |conn: &conn::Conn| conn.outbox.len() + conn.outbox.under_way();
        self.conns.iter().filter(|(_, conn)| conn.session().is_some()).map(|(_, conn)| unsent(conn)).sum::<usize>() + waiting
    }

    /// Counters by stable name.
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        let mut list = self.counters.list();
        list.extend([("links_up", self.sessions.len() as u64), ("connections", self.conns.len() as u64)]);
        list
    }

    /// All links: those that are up, and those that are wanted.
    pub fn links_info(&self) -> Vec<LinkInfo> {
        let up = self.conns.iter().filter_map(|(_, conn)| {
            let session = conn.session()?;
            Some(LinkInfo {
                peer: Some(session.peer),
                addr: session.addr.clone(),
                state: if session.blocked { "blocked" } else { "up" },
                session: session.number,
                dialled: conn.dialled.is_some(),
                since: Some(session.since),
                waiting_bytes: conn.outbox.len() as u64,
                frames_out: conn.outbox.written().saturating_sub(1),
                frames_in: session.received,
            })
        });
        let wanted = self.dials.iter().map(|(addr, dial)| LinkInfo {
            peer: dial.expects(),
            addr: addr.clone(),
            state: if dial.is_connecting() { "dialling" } else { "waiting" },
            session: 0,
            dialled: true,
            since: None,
            waiting_bytes: dial.bytes() as u64,
            frames_out: 0,
            frames_in: 0,
        });
        up.chain(wanted).collect()
    }

    fn take_kernel_events(&mut self) {
        let events = std::mem::replace(&mut self.kernel_events, Events::with_capacity(0));
        for event in &events {
            match event.token() {
                UDP => self.udp.ready = true,
                LISTENER => self.accept.ready = true,
                Token(n) => {
                    let Some(id) = self.conns.at(n - FIRST_CONN) else { continue };
                    if event.is_writable() || event.is_error() {
                        self.conn_writable(id);
                    }
                    if event.is_readable() || event.is_error() || event.is_read_closed() {
                        self.conn_readable(id, event.is_read_closed());
                    }
                }
            }
        }
        self.kernel_events = events;
    }

    fn link(&mut self, event: LinkEvent) {
        self.events.push_back(NetEvent::Link(event));
    }

    fn arm(&mut self, at: Time, timer: Timer) {
        self.timers.push(Reverse((at, timer)));
    }

    fn next_serial(&mut self) -> u64 {
        self.serial += 1;
        self.serial
    }

    /// What this node took of the last session with `peer`.
    fn previous(&self, peer: NodeId) -> Option<Previous> {
        self.ended.get(&peer).map(|e| Previous { session: e.session, received: e.received })
    }

    /// Whom it had the last session with at that address. Another life that answers there takes what is said of it for its own only if the numbers of the two
    /// sessions are the same by chance.
    fn last_life_at(&self, addr: &NodeAddr) -> Option<NodeId> {
        let hash = addr.hash64();
        let there = self.ended.iter().filter(|(node, _)| node.addr_hash() == hash);
        there.max_by_key(|(_, ended)| ended.at).map(|(node, _)| *node)
    }

    fn forget_ip(&mut self, ip: IpAddr) {
        self.accept.forget(ip);
    }
}
