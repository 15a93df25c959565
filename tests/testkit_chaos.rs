//! Nodes are killed, restarted, stopped and cut off at random, in virtual time: a lower epoch never runs behind a higher one, and once the
//! faults are over every node reaches every entity.
#![allow(missing_docs, clippy::unwrap_used)]

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use wingbeat::{Cluster, Cx, Entity, Epoch, HostOptions, JoinError, MemberStatus, messages, proto::rng::Rng, testkit::World};

messages! {
    pub enum CellMsg for Cell(u64) = "test.cell" { Touch, Epochs -> u64 }
}

const SECOND: Duration = Duration::from_secs(1);
const KEYS: u64 = 20;

/// What the entities of a world have seen: the highest epoch of each, and what came behind it.
#[derive(Default)]
struct Seen {
    highest: BTreeMap<u64, Epoch>,
    wrong: Vec<String>,
}

struct State(Arc<Mutex<Seen>>);

impl Entity for State {
    type Type = Cell;

    fn handle(&mut self, msg: CellMsg, cx: &mut Cx<'_, Self>) {
        let (key, epoch) = (*cx.id(), cx.epoch());
        let mut seen = self.0.lock();
        let highest = *seen.highest.entry(key).and_modify(|highest| *highest = epoch.max(*highest)).or_insert(epoch);
        if epoch < highest {
            seen.wrong.push(format!("{key} runs on {} at epoch {} behind {}", cx.node_addr(), epoch.get(), highest.get()));
        }
        if let CellMsg::Epochs(Epochs, reply) = msg {
            cx.reply(reply, epoch.get());
        }
    }
}

fn is_over(node: &Cluster) -> bool {
    matches!(node.wait_up(Duration::ZERO), Err(JoinError::Shutdown | JoinError::Refused { .. }))
}

fn up(node: &Cluster) -> usize {
    node.view().members.iter().filter(|member| member.status == MemberStatus::Up).count()
}

fn chaos(seed: u64) {
    let mut rng = Rng::new(seed);
    let n = 3 + (seed % 3) as usize;
    let seen = Arc::new(Mutex::new(Seen::default()));
    let theirs = seen.clone();
    let world = World::simulated(n)
        .seed(seed)
        .network(Duration::from_micros(500), Duration::from_millis(seed % 4), (seed % 4) as f64 * 0.02)
        .on_each(move |node| {
            let seen = theirs.clone();
            node.host::<State>(HostOptions::new().shards(16), move |_| State(seen.clone())).map(drop)
        })
        .start();
    let (mut dead, mut is_cut) = (None, false);
    // Where no member is left, nobody remembers epochs: the README says so.
    let restart = |i: usize, dead: Option<usize>| {
        let is_member = |i: usize| dead != Some(i) && world.node(i).wait_up(Duration::ZERO).is_ok();
        if !(0..n).any(is_member) {
            seen.lock().highest.clear();
        }
        world.restart(i);
    };
    for _ in 0..30 {
        let i = rng.below(n as u64) as usize;
        match (rng.below(10), dead) {
            (0, None) => {
                world.kill(i);
                dead = Some(i);
            }
            // Everybody has to have removed the old life by then: the first node founds a cluster of its own if nobody takes it in.
            (1 | 2, Some(gone)) => {
                world.heal();
                world.run_for(10 * SECOND);
                restart(gone, dead);
                world.run_for(5 * SECOND);
                (dead, is_cut) = (None, false);
            }
            // A pause in the very moment of a split is what the README says is not covered.
            (3, _) if dead != Some(i) && !is_cut => world.pause(i, Duration::from_millis(rng.below(3000))),
            (4, _) => {
                world.cut(&[&[i]]);
                is_cut = true;
            }
            (5 | 6, _) => {
                world.heal();
                is_cut = false;
            }
            _ => {}
        }
        for key in 0..KEYS {
            let via = rng.below(n as u64) as usize;
            if dead != Some(via) {
                // A node that was downed gives it back.
                let _ = world.entity::<Cell>(via, key).tell(Touch);
            }
        }
        world.run_for(Duration::from_millis(rng.below(1500)));
    }
    world.heal();
    world.run_for(10 * SECOND);
    for i in 0..n {
        if dead == Some(i) || is_over(&world.node(i)) {
            restart(i, dead);
            if dead == Some(i) {
                dead = None;
            }
            world.run_for(2 * SECOND);
        }
    }
    world.eventually(120 * SECOND, || (0..n).all(|i| up(&world.node(i)) == n));
    for key in 0..KEYS {
        let epochs: Vec<u64> = (0..n).map(|i| world.entity::<Cell>(i, key).ask(Epochs, 30 * SECOND).unwrap()).collect();
        assert!(epochs.is_sorted(), "{epochs:?}");
    }
    assert_eq!(seen.lock().wrong, Vec::<String>::new());
}

#[test]
fn faults_at_random_break_no_promise() {
    (1..=6).for_each(chaos);
}
