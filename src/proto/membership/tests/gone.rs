//! Processes that are proven gone by ports that refuse.

use super::{
    super::{MemberFrame, Removal},
    SEEDS, millis, proof, secs,
    world::{World, addr},
};

/// A cluster in which every pair has talked over a link.
fn linked(seed: u64, n: usize) -> World {
    let mut world = World::cluster(seed, n, &proof());
    for (a, b) in (1..=n).flat_map(|a| (1..=n).map(move |b| (a, b))).filter(|(a, b)| a != b) {
        world.with(a, |m, _| m.say(addr(b), MemberFrame::WhoAreYou));
    }
    world.run(secs(1));
    world
}

#[test]
fn a_dead_process_is_removed_at_once_where_refused_ports_prove_it() {
    let mut quick = 0;
    for seed in 0..SEEDS {
        for n in [10usize, 5, 4, 3, 2] {
            let mut world = linked(seed, n);
            let victim = 1 + (seed as usize % n);
            let id = world.nodes[&victim].id;
            world.crash(victim);
            let left: Vec<usize> = (1..=n).filter(|&i| i != victim).collect();
            let took = world.run_until(secs(15), "removal", |w| w.one_cluster(&left));
            // A few round trips of 0.4 ms, where each member is told by who knows; if not, it hears by gossip.
            let is_quick = took < millis(5);
            assert!(is_quick || n > 5 && took < millis(1500), "seed {seed}, {n} nodes: {took:?}");
            quick += u64::from(is_quick && n > 5);
            for i in left {
                assert_eq!(world.nodes[&i].removed, [(id, Removal::Downed { proven: true })]);
            }
        }
    }
    assert!(quick * 2 > SEEDS, "{quick} of {SEEDS}: of ten, most are told by who knows as well");
}

#[test]
fn several_that_die_together_are_removed_at_once_too() {
    let mut slow = vec![];
    for seed in 0..SEEDS {
        let mut world = linked(seed, 5);
        for pair in [[4, 5], [2, 3]] {
            let left: Vec<usize> = (1..pair[0]).collect();
            pair.into_iter().for_each(|n| world.crash(n));
            let took = world.run_until(secs(15), "removal", |w| w.one_cluster(&left));
            slow.extend((took >= millis(10)).then_some((seed, took)));
        }
    }
    assert!(slow.is_empty(), "{slow:?}");
}

#[test]
fn a_split_proves_no_death() {
    for seed in 0..SEEDS {
        let mut world = World::cluster(seed, 5, &proof());
        world.split(&[1, 2, 3], &[4, 5]);
        world.run_until(secs(15), "resolution", |w| w.one_cluster(&[1, 2, 3]));
        assert!(world.nodes[&1].removed.iter().all(|(_, how)| *how == Removal::Downed { proven: false }));
    }
}
