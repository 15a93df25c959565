//! The network thread of a node of a simulated cluster, for real: it takes its turns as production does, with its own core, sockets' calls and readers
//! of its view, and hears what the node hears whose twin it is. A cluster of ten thousand needs no ten thousand machines to see how long such turns are.
//!
//! It is made of the same settings, identity and seed, so it says what the other one says; what it does not is counted as astray. The settings must say how
//! many workers there are: left open, a simulated node has two.
//!
//! What a turn takes is on the thread's clock. Beside the simulation that is what it takes in a process that has thousands of other nodes in its memory, of
//! which a real one has none: [`Story::again`] gives it a life of its own. Sending datagrams is real; reading them, and the writes of links, are not there. Each
//! turn has what comes in at one moment: what would pile up behind a long one comes in turns of its own.

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
    time::Duration,
};

use xxhash_rust::xxh3::Xxh3;

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
        link::LinkEvent,
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
    /// On the thread's own clock, which stands still while somebody else has the core.
    pub took: Duration,
}

/// Goes along with one node of a simulated cluster whose scenario has no workload: workers have nothing to do, and nobody would do it.
pub struct Twin {
    of: u32,
    udp: Rc<Postbox>,
    time: Arc<Stopped>,
    body: Option<Body>,
    /// All that has happened to it.
    story: Story,
    taken: Vec<Turn>,
    /// Datagrams of its node so far.
    compared: u64,
    astray: u64,
}

/// The turns of a life, and what it has said in all of them.
#[derive(Clone, Debug)]
pub struct Life {
    /// In order.
    pub turns: Vec<Turn>,
    /// Of the datagrams that it has sent since its birth, in order.
    pub said: u64,
}

/// What has happened to a twin.
#[derive(Default)]
pub struct Story(Vec<(Time, Scene)>);

impl fmt::Debug for Story {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Story of {} scenes", self.0.len())
    }
}

impl Story {
    /// The life of another one to whom the same happens, on this thread: the same turns, at another moment of the machine, and by itself. On a thread that does
    /// nothing else it also has memory that no simulation has left in pieces.
    ///
    /// # Errors
    /// As for [`Twin::of`].
    pub fn again(&self) -> io::Result<Life> {
        let mut twin = Twin::of(0)?;
        for (now, scene) in &self.0 {
            twin.play(*now, scene.clone());
            // There is nobody to compare it with.
            twin.body.iter().for_each(|body| body.talk.borrow_mut().said.clear());
        }
        Ok(twin.life())
    }
}

/// What happened to a twin at one moment.
#[derive(Clone)]
enum Scene {
    Born {
        config: Arc<Config>,
        me: Identity,
        seed: u64,
    },
    /// Nothing: a timer is due.
    Woken,
    Heard(Incoming),
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
        Ok(Self { of: node, udp, time: Arc::default(), body: None, story: Story::default(), taken: vec![], compared: 0, astray: 0 })
    }

    /// Its life so far.
    pub fn life(&self) -> Life {
        let said = self.body.as_ref().map_or(0, |body| body.talk.borrow().all_said.digest());
        Life { turns: self.taken.clone(), said }
    }

    /// What has happened to it so far.
    pub fn story(&self) -> &Story {
        &self.story
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

    fn play(&mut self, now: Time, scene: Scene) {
        self.time.set(now);
        match scene {
            Scene::Born { config, me, seed } => return self.live(config, me, seed),
            Scene::Woken => {}
            Scene::Heard(what) => self.body.iter().for_each(|body| body.talk.borrow_mut().events.push_back(what.clone())),
        }
        self.turns(now);
    }

    fn live(&mut self, config: Arc<Config>, me: Identity, seed: u64) {
        self.astray = self.astray();
        let talk = Rc::new(RefCell::new(Talk::default()));
        let ears = Ears { me: me.id(), frame_bytes: config.limits.frame_bytes as usize, udp: self.udp.clone(), talk: talk.clone() };
        let stepped = engine::stepped(config, me, ears, seed, Clock::Virtual(self.time.clone()));
        let lanes = stepped.workers.iter().map(|_| Lanes::default()).collect();
        self.body = Some(Body { stepped, lanes, talk });
    }

    /// Takes turns until there is nothing to do, and looks at the clock for those of the network.
    fn turns(&mut self, now: Time) {
        let Some(Body { stepped, lanes, .. }) = &mut self.body else { return };
        crate::api::mark_engine_thread(true);
        loop {
            let before = engine::sys::worked();
            stepped.network.turn(now);
            self.taken.push(Turn { at: now.since(self.time.began()), took: engine::sys::worked().saturating_sub(before) });
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
        let scene = Scene::Born { config: config.clone(), me: me.clone(), seed };
        self.story.0.push((now, scene.clone()));
        self.play(now, scene);
    }

    fn hears(&mut self, now: Time, what: Heard<'_>) {
        let Some(scene) = Scene::of(now, what) else { return };
        self.story.0.push((now, scene.clone()));
        self.play(now, scene);
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
    /// All that was said.
    all_said: Xxh3,
}

#[derive(Clone)]
enum Incoming {
    Datagram(Vec<u8>),
    Link(LinkEvent),
    /// As it comes from a socket: to read it is part of the turn.
    Frame(Context, Vec<u8>),
}

impl Scene {
    fn of(now: Time, what: Heard<'_>) -> Option<Self> {
        Some(Self::Heard(match what {
            Heard::Datagram(bytes) => Incoming::Datagram(bytes.to_vec()),
            Heard::Link(event) => Incoming::Link(event.clone()),
            Heard::Timer => return Some(Self::Woken),
            Heard::Frame { peer, frame } => {
                let (from, mut bytes) = (Context { sender: peer, now }, vec![]);
                // What the other node's link has carried fits into one.
                encode(frame, from, usize::MAX, &mut bytes).ok()?;
                Incoming::Frame(from, bytes)
            }
        }))
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
            Incoming::Datagram(bytes) => Some(NetEvent::Datagram { bytes, from: SocketAddr::from((Ipv4Addr::LOCALHOST, 1)) }),
            Incoming::Link(event) => Some(NetEvent::Link(event)),
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
        let mut talk = self.talk.borrow_mut();
        talk.all_said.update(bytes);
        talk.said.push_back(bytes.to_vec());
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
