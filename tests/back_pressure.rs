//! A sender that is faster than the link gets its messages back; what was accepted arrives.
#![cfg(feature = "cli")]
#![allow(missing_docs, clippy::unwrap_used)]

mod support;

use std::{
    net::TcpListener,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use support::{
    until_holds,
    valve::{Flow, Valve},
};
use wingbeat::{
    Cluster, Config, Cx, Entity, HostOptions, NodeAddr, Refusal,
    config::{Preset, Workers},
    messages, wire,
};

const PATIENCE: Duration = Duration::from_secs(30);

messages! { pub enum SinkMsg for Sink(String) = "test.sink" { Part { number: u64, filler: Vec<u8> }, Seen -> Parts } }

#[derive(Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Parts(u64);
wire!(Parts = "test.parts");

/// Counts parts that come in order.
struct InOrder {
    next: u64,
    misplaced: Arc<AtomicU64>,
}

impl Entity for InOrder {
    type Type = Sink;

    fn handle(&mut self, msg: SinkMsg, cx: &mut Cx<'_, Self>) {
        match msg {
            SinkMsg::Part(part) => {
                self.misplaced.fetch_add(u64::from(part.number != self.next), Ordering::SeqCst);
                self.next = part.number + 1;
            }
            SinkMsg::Seen(Seen, reply) => cx.reply(reply, Parts(self.next)),
        }
    }
}

/// A node that others reach through a valve.
fn behind_a_valve(name: &str, seed: Option<&NodeAddr>) -> (Cluster, Valve) {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let valve = Valve::before(port);
    let mut config = Config::preset(Preset::LocalTest);
    config.cluster.name = format!("{name}-{}", std::process::id());
    config.node.listen = format!("127.0.0.1:{port}").parse().unwrap();
    config.node.advertise = Some(valve.addr.clone());
    config.node.workers = Workers::Count(1);
    config.limits.message_bytes = 64 << 10;
    config.limits.frame_bytes = 128 << 10;
    config.limits.link_bytes = 256 << 10;
    let seeds = seed.map(ToString::to_string);
    (Cluster::builder(config).seeds(seeds).start().unwrap(), valve)
}

#[test]
fn a_link_that_takes_nothing_gives_messages_back_and_loses_none() {
    let (home, home_valve) = behind_a_valve("pressure", None);
    let misplaced = Arc::new(AtomicU64::new(0));
    let counted = misplaced.clone();
    let _hosts = home.host::<InOrder>(HostOptions::new().shards(4), move |_| InOrder { next: 0, misplaced: counted.clone() }).unwrap();
    let (sender, sender_valve) = behind_a_valve("pressure", Some(home.addr()));
    let region = sender.proxy::<Sink>().unwrap();
    sender.wait_members(2, PATIENCE).unwrap();
    region.wait_ready(PATIENCE).unwrap();
    let sink = region.get("a");
    assert_eq!(sink.ask(Seen, PATIENCE), Ok(Parts(0)));
    let letters = [home.dead_letters(), sender.dead_letters()];
    let mut number = 0;
    for _ in 0..3 {
        // Whoever dialled, both directions stand still.
        [&home_valve, &sender_valve].into_iter().for_each(|valve| valve.set(Flow::Closed));
        let refused = loop {
            let part = Part { number, filler: vec![7; 2000] };
            match sink.tell_within(part, Duration::from_secs(2)) {
                Ok(()) => number += 1,
                Err(refused) => break refused,
            }
            assert!(number < 1_000_000, "the link has no end");
        };
        assert_eq!(*refused.reason(), Refusal::NoCredit);
        let SinkMsg::Part(back) = refused.into_message() else { panic!("another message came back") };
        assert_eq!((back.number, back.filler.len()), (number, 2000));
        assert!(sink.ask(Seen, Duration::from_millis(10)).is_err());
        let (room, hear) = wingbeat::channel::bounded(1);
        region.on_room(&"a".into(), move || room.send(()).unwrap());
        assert!(hear.recv_timeout(Duration::from_millis(50)).is_err(), "there is no room yet");
        [&home_valve, &sender_valve].into_iter().for_each(|valve| valve.set(Flow::Open));
        hear.recv_timeout(PATIENCE).unwrap();
        sink.tell_within(back, PATIENCE).unwrap();
        number += 1;
        until_holds("all has arrived", || sink.ask(Seen, PATIENCE) == Ok(Parts(number)));
    }
    assert_eq!(misplaced.load(Ordering::SeqCst), 0);
    assert!(letters.iter().all(|letters| letters.try_recv().is_err()), "nothing was given up");
}
