//! Seeds that are written under another name than their node advertises.

use super::{
    Ending, MemberStatus, SEEDS, fast, millis, secs,
    world::{World, addr, name, pods},
};
use crate::{Config, NodeAddr, config::Span};

/// With the names of these as seeds.
fn seeded(seeds: &[usize]) -> Config {
    let mut config = fast();
    config.cluster.seeds = seeds.iter().map(|&n| name(n).to_string()).collect();
    config
}

/// Node 1 founds it, as it finds out that the first seed is itself.
fn cluster(seed: u64, seeds: &[usize]) -> World {
    let mut world = World::new(seed);
    for n in 1..=3 {
        world.start_as(n, seeded(seeds));
    }
    world.run_until(secs(10), "forming", |w| w.one_cluster(&[1, 2, 3]));
    world
}

#[test]
fn a_first_seed_that_has_left_and_is_back_gives_way_to_the_cluster_that_it_founded() {
    for seed in 0..SEEDS {
        let mut world = cluster(seed, &[1]);
        let leaver = world.nodes[&1].id;
        world.with(1, |m, now| m.leave(now, leaver)).unwrap();
        world.with(1, |m, now| m.set_drained(now, true));
        world.run_until(secs(5), "leaving", |w| w.ended(1).is_some());
        world.reap();
        world.run_until(secs(5), "removal", |w| w.one_cluster(&[2, 3]));
        world.start_as(1, seeded(&[1]));
        world.run(millis(10));
        assert_eq!(world.view(1).len(), 1, "it has a cluster of its own");
        world.run_until(secs(5), "told", |w| matches!(w.ended(1), Some(Ending::Superseded(by)) if by.contains(&addr(2))));
        let next = seeded(&[1]).asking(&addr(1), [addr(2), addr(3)]);
        world.reap();
        world.start_as(1, next);
        world.run_until(secs(5), "joining", |w| w.one_cluster(&[1, 2, 3]));
    }
}

/// They ask all by the names of the seeds and by the addresses that the life before knew.
#[test]
fn where_no_side_lived_the_first_seed_founds_a_new_cluster_as_all_say_that_they_have_none() {
    for seed in 0..SEEDS {
        let mut world = World::new(seed);
        for n in 1..=3 {
            world.start_as(n, seeded(&[1, 2, 3]).rejoining(&addr(n), (1..=3).map(addr)));
        }
        world.run_until(secs(20), "forming", |w| w.one_cluster(&[1, 2, 3]));
    }
}

/// One of three says that it has no cluster; the others refuse, which proves nothing as they may be two that went on.
#[test]
fn one_that_goes_by_two_names_speaks_for_one() {
    let mut world = World::new(1);
    for n in [1, 2] {
        world.start_as(n, seeded(&[1, 2]).rejoining(&addr(n), (1..=4).map(addr)));
    }
    world.run(secs(30));
    for n in [1, 2] {
        assert_eq!(world.view(n), [(n, MemberStatus::Joining, true)], "{}", world.describe());
    }
}

#[test]
fn two_that_are_told_by_name_to_join_each_other_do() {
    for seed in 0..SEEDS {
        let mut world = World::new(seed);
        world.start(1, fast(), &[]);
        world.start(2, fast(), &[]);
        world.run(secs(1));
        for (n, other) in [(1, 2), (2, 1)] {
            world.with(n, |m, now| m.join(now, &[name(other)])).unwrap();
        }
        world.run_until(secs(3), "joining", |w| w.one_cluster(&[1, 2]));
    }
}

#[test]
fn members_that_go_by_the_name_of_a_seed_are_looked_for_once_in_a_while_and_whoever_follows_them_is_found() {
    for seed in 0..SEEDS / 4 {
        let mut world = cluster(seed, &[1, 2]);
        world.by_name.clear();
        world.run(secs(100));
        let asked = |w: &World, who: &NodeAddr| w.by_name.get(who).copied().unwrap_or_default();
        for n in [1, 2] {
            assert!((1..=3).contains(&asked(&world, &name(n))), "seed {seed}: {:?}", world.by_name);
        }
        // The name goes on being asked when its member is dead.
        let before = asked(&world, &name(2));
        world.crash(2);
        world.run(secs(20));
        assert!(asked(&world, &name(2)) > before + 10, "seed {seed}: {:?}", world.by_name);
    }
}

/// As they are seen from outside.
fn seen(n: usize) -> NodeAddr {
    NodeAddr::new(&format!("10.0.0.{n}"), addr(n).port)
}

/// Whoever is there under one name is everybody's only seed, by the addresses that they advertise or by others.
fn behind_one_name(seed: u64, addr: fn(usize) -> NodeAddr) -> World {
    let mut world = World::new(seed);
    world.pods = (1..=3).map(addr).collect();
    world
}

fn start_behind(world: &mut World, n: usize) {
    let mut config = fast();
    config.cluster.seeds = vec![pods().to_string()];
    world.start_as(n, config);
}

// failures: row 22
#[test]
fn nodes_behind_one_name_form_one_cluster() {
    for (seed, addr) in (0..SEEDS).flat_map(|seed| [addr, seen].map(|addr| (seed, addr))) {
        let mut world = behind_one_name(seed, addr);
        for step in 0..3 {
            start_behind(&mut world, 1 + (seed as usize + step) % 3);
            world.run(millis(400 * (seed / 3 % 6)));
        }
        world.run_until(secs(10), "forming", |w| w.one_cluster(&[1, 2, 3]));
        let again = 1 + seed as usize % 3;
        world.crash(again);
        start_behind(&mut world, again);
        world.run_until(secs(10), "joining again", |w| w.one_cluster(&[1, 2, 3]));
    }
}

#[test]
fn an_address_of_a_name_at_which_nobody_is_is_not_waited_for() {
    for seed in 0..SEEDS {
        let mut world = World::new(seed);
        let mut config = fast();
        config.membership.seed_timeout = Span::secs(5);
        // Of another one, or of the first that is there itself.
        let seeds = if seed % 2 == 0 { vec![addr(1), pods()] } else { vec![pods(), addr(2)] };
        world.pods = vec![if seed % 2 == 0 { addr(2) } else { addr(1) }, addr(9)];
        config.cluster.seeds = seeds.iter().map(ToString::to_string).collect();
        world.start_as(1, config.clone());
        world.start_as(2, config);
        world.run_until(secs(4), "forming", |w| w.one_cluster(&[1, 2]));
    }
}

#[test]
fn a_node_behind_the_name_that_is_silent_is_waited_for_until_the_name_has_it_no_more() {
    for (seed, addr) in (0..SEEDS).flat_map(|seed| [addr, seen].map(|addr| (seed, addr))) {
        let mut world = behind_one_name(seed, addr);
        world.split(&[1], &[2, 3]);
        start_behind(&mut world, 2);
        start_behind(&mut world, 3);
        world.run(secs(10));
        for n in [2, 3] {
            assert_eq!(world.view(n), [(n, MemberStatus::Joining, true)], "the silent one may have a cluster: {}", world.describe());
        }
        world.pods.remove(0);
        world.run_until(secs(5), "forming", |w| w.one_cluster(&[2, 3]));
    }
}
