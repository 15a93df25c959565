//! Who is woken by what comes over a link: alone in its process, as it counts what the system knows of the engine's threads.
#![cfg(target_os = "linux")]
#![allow(missing_docs, clippy::unwrap_used)]

use std::{fs, time::Duration};

use wingbeat::{Cluster, Config, Cx, Entity, HostOptions, config::Idle, config::Preset, messages, testkit::World};

messages! {
    pub enum EchoMsg for Echo(u64) = "test.echo" { Say { n: u64 } -> u64 }
}

#[derive(Default)]
struct Wall;

impl Entity for Wall {
    type Type = Echo;

    fn handle(&mut self, EchoMsg::Say(Say { n }, reply): EchoMsg, cx: &mut Cx<'_, Self>) {
        cx.reply(reply, n);
    }
}

/// How often the network threads of this process have gone to sleep.
fn sleeps() -> u64 {
    let of = |task: fs::DirEntry| {
        let read = |file| fs::read_to_string(task.path().join(file)).unwrap_or_default();
        let status = read("status");
        let slept =
            status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")).and_then(|n| n.trim().parse::<u64>().ok());
        slept.filter(|_| read("comm").trim() == "wingbeat-net").unwrap_or(0)
    };
    fs::read_dir("/proc/self/task").unwrap().filter_map(Result::ok).map(of).sum()
}

#[test]
fn requests_between_nodes_that_sleep_wake_no_network_thread() {
    const ASKS: u64 = 1_000;
    const TRIES: usize = 10;
    let mut config = Config::preset(Preset::LocalTest);
    config.node.idle = Idle::LowCpu;
    let host = |node: &Cluster| node.host::<Wall>(HostOptions::new().shards(16), |_| Wall).map(drop);
    let world = World::real(2).config(config).on_each(host).start();
    assert_eq!(world.entity::<Echo>(0, 1u64).ask(Say { n: 0 }, Duration::from_secs(30)), Ok(0));
    let home = world.owner_of::<Echo>(1u64);
    let there = world.entity::<Echo>(1 - home, 1u64);
    let say = |n| assert_eq!(there.ask(Say { n }, Duration::from_secs(30)), Ok(n));
    // The worker knows from then on where its work comes from.
    (0..100).for_each(say);
    // Of two threads, each of which would be woken by each; heartbeats and gossip are a few. Where a stranger keeps a thread from its core, another one may be
    // woken instead, so the best of some tries counts.
    let mut tries = vec![];
    while tries.iter().all(|&slept| slept >= ASKS / 4) {
        assert!(tries.len() < TRIES, "network threads were woken {tries:?} times by {ASKS} requests each");
        let before = sleeps();
        (0..ASKS).for_each(say);
        tries.push(sleeps() - before);
    }
}
