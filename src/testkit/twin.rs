//! The network thread of a node of a simulated cluster, for real: it takes its turns as production does, with its own core, sockets' calls and readers
//! of its view, and hears what the node hears whose twin it is. A cluster of ten thousand needs no ten thousand machines to see how long such turns are.
//!
//! It is made of the same settings, identity and seed, so it says what the other one says; what it does not is counted as astray. The settings must say how
//! many workers there are: left open, a simulated node has two.
//!
//! What a turn takes is on the machine's clock, so that whoever takes the core away counts. Sending datagrams is real; reading them, and the writes of links,
//! are not there. Each turn has what comes in at one moment: what would pile up behind a long one comes in turns of its own.

use std::{
    cell::RefCell,
    collections::VecDeque,
    fmt, io,
    net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket},
    os::fd::RawFd,
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use crate::{
    Config, NodeAddr, NodeId, Time,
    engine::{
        self, Stepped,
        carrier::Carrier,
        clock::{Clock, VirtualTime},
        exits::{Lanes, on_behalf},
        moment::Moment,
    },
    net::{NetEvent, Unsent},
    proto::{
        membership::Identity,
        wire::{Context, Decoded, Frame, FrameError, Message, decode, encode},
    },
    sim::{Heard, Shadow},
};

/// A turn that was taken.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Turn {
    /// Of the run.
    pub at: Duration,
    /// On the machine's clock.
    pub took: Duration,
}

/// Goes along with one node of a simulated cluster whose scenario has no workload: workers have nothing to do, and nobody would do it.
pub struct Twin {
    of: u32,
    udp: Rc<Postbox>,
    time: Arc<Stopped>,
    body: Option<Body>,
    taken: Vec<Turn>,
    /// Datagrams of its node so far.
    compared: u64,
    astray: u64,
}

/// One life of it.
struct Body {
    stepped: Stepped<Ears>,
    /// Of the workers.
    lanes: Vec<Lanes>,
    talk: Rc<RefCell<Talk>>,
}

impl fmt::Debug for Twin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Twin of n{}, {} turns", self.of, self.taken.len())
    }
}

impl Twin {
    /// Of the node of that number.
    ///
    /// # Errors
    /// If there is no socket to be had: datagrams go as far as one of this machine that nobody reads.
    pub fn of(node: u32) -> io::Result<Self> {
        let [udp, sink] = [UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?, UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?];
        udp.set_nonblocking(true)?;
        let udp = Rc::new(Postbox { to: sink.local_addr()?, udp, _sink: sink });
        Ok(Self { of: node, udp, time: Arc::default(), body: None, taken: vec![], compared: 0, astray: 0 })
    }

    /// All turns so far, in order.
    pub fn taken(&self) -> &[Turn] {
        &self.taken
    }

    /// Datagrams that its node has sent so far.
    pub fn compared(&self) -> u64 {
        self.compared
    }

    /// Datagrams that one of the two sent and the other did not, so far. A few have only come in another order, as a turn does with what has come in all
    /// that is due at its moment. Frames are not compared.
    pub fn astray(&self) -> u64 {
        self.astray + self.body.as_ref().map_or(0, |body| body.talk.borrow().said.len() as u64)
    }

    /// Takes turns until there is nothing to do, and looks at the clock for those of the network.
    fn turns(&mut self, now: Time) {
        let Some(Body { stepped, lanes, .. }) = &mut self.body else { return };
        crate::api::mark_engine_thread(true);
        loop {
            let began = Instant::now();
            stepped.network.turn(now);
            self.taken.push(Turn { at: now.since(self.time.began()), took: began.elapsed() });
            // A coordinator asks its own workers as well what they run.
            for (worker, lanes) in stepped.workers.iter_mut().zip(&mut *lanes).filter(|(worker, _)| !worker.is_quiet()) {
                on_behalf(lanes, || worker.turn(Moment::at(now)));
            }
            if stepped.network.is_quiet() {
                break;
            }
        }
        crate::api::mark_engine_thread(false);
    }
}

impl Shadow for Twin {
    fn node(&self) -> u32 {
        self.of
    }

    fn born(&mut self, now: Time, config: &Arc<Config>, me: &Identity, seed: u64) {
        self.astray = self.astray();
        self.time.set(now);
        let talk = Rc::new(RefCell::new(Talk::default()));
        let ears = Ears { me: me.id(), frame_bytes: config.limits.frame_bytes as usize, udp: self.udp.clone(), talk: talk.clone() };
        let stepped = engine::stepped(config.clone(), me.clone(), ears, seed, Clock::Virtual(self.time.clone()));
        let lanes = stepped.workers.iter().map(|_| Lanes::default()).collect();
        self.body = Some(Body { stepped, lanes, talk });
    }

    fn hears(&mut self, now: Time, what: Heard<'_>) {
        let Some(body) = &self.body else { return };
        self.time.set(now);
        body.talk.borrow_mut().hear(now, what);
        self.turns(now);
    }

    fn sends(&mut self, _: &NodeAddr, datagram: &[u8]) {
        let Some(body) = &self.body else { return };
        let said = body.talk.borrow_mut().said.pop_front();
        self.compared += 1;
        if said.as_deref() != Some(datagram) {
            self.astray += 1;
        }
    }
}

/// The clock of the run, which moves between turns only.
#[derive(Default)]
struct Stopped {
    now: AtomicU64,
    began: AtomicU64,
}

impl Stopped {
    fn set(&self, now: Time) {
        self.now.fetch_max(now.as_nanos(), Ordering::Relaxed);
        // The first time only.
        let _ = self.began.compare_exchange(0, now.as_nanos(), Ordering::Relaxed, Ordering::Relaxed);
    }

    fn began(&self) -> Time {
        Time::from_nanos(self.began.load(Ordering::Relaxed))
    }
}

impl VirtualTime for Stopped {
    fn now(&self) -> Time {
        Time::from_nanos(self.now.load(Ordering::Relaxed))
    }

    fn pass(&self, until: Time) {
        // Nobody waits on this node.
        self.set(until);
    }
}

/// Where datagrams go, at the price of sending them.
struct Postbox {
    udp: UdpSocket,
    to: SocketAddr,
    _sink: UdpSocket,
}

/// What has come in and is not handled yet, and what was said and not compared yet.
#[derive(Default)]
struct Talk {
    events: VecDeque<Incoming>,
    said: VecDeque<Vec<u8>>,
}

enum Incoming {
    Event(NetEvent),
    /// As it comes from a socket: to read it is part of the turn.
    Frame(Context, Vec<u8>),
}

impl Talk {
    fn hear(&mut self, now: Time, what: Heard<'_>) {
        self.events.extend(match what {
            Heard::Datagram(bytes) => {
                Some(Incoming::Event(NetEvent::Datagram { bytes: bytes.to_vec(), from: SocketAddr::from((Ipv4Addr::LOCALHOST, 1)) }))
            }
            Heard::Frame { peer, frame } => {
                let (from, mut bytes) = (Context { sender: peer, now }, vec![]);
                // What the other node's link has carried fits into one.
                encode(frame, from, usize::MAX, &mut bytes).ok().map(|_| Incoming::Frame(from, bytes))
            }
            Heard::Link(event) => Some(Incoming::Event(NetEvent::Link(event.clone()))),
            Heard::Timer => None,
        });
    }
}

/// The twin's side of the network.
struct Ears {
    me: NodeId,
    frame_bytes: usize,
    udp: Rc<Postbox>,
    talk: Rc<RefCell<Talk>>,
}

impl Carrier for Ears {
    fn poll(&mut self, _: Option<Duration>, now: impl Fn() -> Time) -> io::Result<Time> {
        Ok(now())
    }

    fn sleeper(&mut self) -> Option<RawFd> {
        None
    }

    fn next(&mut self, _: impl FnMut(NodeId, &Message<'_>) -> bool) -> Option<NetEvent> {
        match self.talk.borrow_mut().events.pop_front()? {
            Incoming::Event(event) => Some(event),
            Incoming::Frame(from, bytes) => match decode(&bytes, from) {
                Ok(Decoded::Frame(frame)) => Some(NetEvent::Frame { peer: from.sender, frame }),
                Ok(Decoded::Skipped(_)) | Err(_) => None,
            },
        }
    }

    fn send_message(&mut self, _: Time, _: NodeId, _: &Message<'_>) -> bool {
        false
    }

    fn has_events(&self) -> bool {
        false
    }

    fn has_work(&self) -> bool {
        !self.talk.borrow().events.is_empty()
    }

    fn poll_timeout(&self) -> Option<Time> {
        None
    }

    fn handle_timeout(&mut self, _: Time) {}

    fn send_datagram(&mut self, _: Time, _: &NodeAddr, bytes: &[u8]) {
        // Nobody reads it, and so it may find no room.
        let _ = self.udp.udp.send_to(bytes, self.udp.to);
        self.talk.borrow_mut().said.push_back(bytes.to_vec());
    }

    fn send_frame(&mut self, now: Time, _: &NodeAddr, _: Option<NodeId>, frame: &Frame) -> Result<(), Unsent> {
        match encode(frame, Context { sender: self.me, now }, self.frame_bytes, &mut vec![]) {
            Err(FrameError::TooLong { size, max }) => Err(Unsent::TooLarge { size, max }),
            _ => Ok(()),
        }
    }

    fn flush(&mut self, _: Time) {}

    fn finish(&mut self, _: Time, _: impl Fn() -> Time) {}

    fn close(&mut self, _: Time, _: NodeId, _: &NodeAddr) {}

    fn resolved(&mut self, _: Time, _: &NodeAddr, _: Result<Vec<SocketAddr>, String>) {}

    fn log_stranger(&mut self, _: IpAddr, _: &dyn fmt::Display) {}

    fn unsent_bytes(&self) -> usize {
        0
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        vec![]
    }
}
