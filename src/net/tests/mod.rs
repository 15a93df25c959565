//! Several `Net`s over loopback in one thread, polled until a condition holds or a deadline passes.

use std::time::Instant;

use super::*;
use crate::{
    Epoch, ShardId, ShardKey, TypeId,
    proto::{handoff::Item, link::LinkDown},
};

mod links;
mod lost;
mod names;
mod redial;
mod strangers;

const PATIENCE: Duration = Duration::from_secs(20);
const SHARD: ShardKey = ShardKey { ty: TypeId(7), shard: ShardId(3) };

/// A frame that carries a number.
fn numbered(n: u64) -> Frame {
    Frame::HandoffAck { shard: SHARD, upto: n }
}

struct Node {
    net: Net,
    me: Identity,
    start: Instant,
    /// Time stands still.
    stopped: Option<Time>,
    frames: Vec<(NodeId, u64)>,
    sizes: Vec<usize>,
    /// What is left to asks as they come.
    left: Vec<Duration>,
    links: Vec<LinkEvent>,
    datagrams: Vec<Vec<u8>>,
    resolve: Vec<NodeAddr>,
    traffic: usize,
    /// Whether events are taken.
    takes: bool,
    /// Whether what is to be written is written at the end of a turn.
    flushes: bool,
}

impl Node {
    fn with(config: &Config, incarnation: u64) -> Self {
        let sockets = Sockets::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        Self::on(sockets, config, incarnation)
    }

    fn new(incarnation: u64) -> Self {
        Self::with(&Config::default(), incarnation)
    }

    fn on(sockets: Sockets, config: &Config, incarnation: u64) -> Self {
        let me = Identity { addr: sockets.local_addr().into(), incarnation };
        let net = Net::new(sockets, config, &me, incarnation).unwrap();
        Self {
            net,
            me,
            start: Instant::now(),
            stopped: None,
            frames: vec![],
            sizes: vec![],
            left: vec![],
            links: vec![],
            datagrams: vec![],
            resolve: vec![],
            traffic: 0,
            takes: true,
            flushes: true,
        }
    }

    fn now(&self) -> Time {
        self.stopped.unwrap_or_else(|| Time::from_nanos(self.start.elapsed().as_nanos() as u64 + 1))
    }

    /// From now on it is so much later, and stays so.
    fn stop_after(&mut self, time: Duration) {
        self.stopped = Some(self.now() + time);
    }

    fn turn(&mut self) {
        let (start, stopped) = (self.start, self.stopped);
        let clock = || stopped.unwrap_or_else(|| Time::from_nanos(start.elapsed().as_nanos() as u64 + 1));
        let now = self.net.poll(Some(Duration::from_millis(1)), clock).unwrap();
        while self.takes
            && let Some(event) = self.net.next(|_, _| false)
        {
            match event {
                NetEvent::Datagram { bytes, .. } => self.datagrams.push(bytes),
                NetEvent::Traffic(_) => self.traffic += 1,
                NetEvent::Link(event) => self.links.push(event),
                NetEvent::Frame { peer, frame: Frame::HandoffAck { upto, .. } } => self.frames.push((peer, upto)),
                NetEvent::Frame { frame, .. } => {
                    if let Frame::Item { item: Item::Msg { envelope, .. }, .. } = &frame
                        && let Some(ask) = envelope.ask
                    {
                        self.left.push(ask.deadline.since(now));
                    }
                    self.sizes.push(format!("{frame:?}").len());
                }
                NetEvent::Resolve { addr } => self.resolve.push(addr),
            }
        }
        self.net.handle_timeout(now);
        if self.flushes {
            self.net.flush(now);
        }
    }

    fn send(&mut self, to: &NodeAddr, node: Option<NodeId>, frame: &Frame) -> Result<(), Unsent> {
        let now = self.now();
        self.net.send_frame(now, to, node, frame)
    }

    fn numbers(&self) -> Vec<u64> {
        self.frames.iter().map(|(_, n)| *n).collect()
    }

    fn ups(&self) -> usize {
        self.links.iter().filter(|l| matches!(l, LinkEvent::Up { .. })).count()
    }

    fn downs(&self) -> Vec<&LinkDown> {
        self.links.iter().filter_map(|l| if let LinkEvent::Down { cause, .. } = l { Some(cause) } else { None }).collect()
    }

    fn counter(&self, name: &str) -> u64 {
        self.net.counters().iter().find(|(n, _)| *n == name).unwrap().1
    }
}

/// An address on which nothing listens.
fn nobody() -> NodeAddr {
    Sockets::bind("127.0.0.1:0".parse().unwrap()).unwrap().local_addr().into()
}

/// Turns all until the condition holds.
#[track_caller]
fn until<const N: usize>(mut nodes: [&mut Node; N], what: &str, mut done: impl FnMut(&[&mut Node; N]) -> bool) {
    let start = Instant::now();
    while !done(&nodes) {
        assert!(start.elapsed() < PATIENCE, "not reached: {what}; links: {:?}", nodes.iter().map(|n| &n.links).collect::<Vec<_>>());
        for node in &mut nodes {
            node.turn();
        }
    }
}

#[test]
fn frames_arrive_in_order_both_ways_and_datagrams_too() {
    let (mut a, mut b) = (Node::new(1), Node::new(2));
    let (at_a, at_b) = (a.me.clone(), b.me.clone());
    for n in 0..5_000 {
        a.send(&at_b.addr, Some(at_b.id()), &numbered(n)).unwrap();
    }
    until([&mut a, &mut b], "first half", |[_, b]| b.frames.len() == 5_000);
    for n in 0..5_000 {
        b.send(&at_a.addr, Some(at_a.id()), &numbered(n)).unwrap();
        a.send(&at_b.addr, None, &numbered(5_000 + n)).unwrap();
    }
    let now = a.now();
    a.net.send_datagram(now, &at_b.addr, b"hint");
    until([&mut a, &mut b], "all", |[a, b]| a.frames.len() == 5_000 && b.frames.len() == 10_000 && b.datagrams.len() == 1);
    assert!(b.numbers().iter().copied().eq(0..10_000) && a.numbers().iter().copied().eq(0..5_000));
    assert!(b.frames.iter().all(|(peer, _)| *peer == at_a.id()));
    assert_eq!((a.ups(), b.ups(), a.downs().len(), b.downs().len()), (1, 1, 0, 0));
    assert!(a.traffic > 0 && b.traffic > 0);
    assert_eq!(b.datagrams, [b"hint"]);
}
