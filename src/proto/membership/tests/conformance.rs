//! Lines of the conformance list that no other test has for its subject; `tests/CONFORMANCE.md` says which is which.

use super::{
    super::{Ending, Event, MemberStatus, Removal},
    World, addr, fast, millis, secs,
};
use crate::{
    Config, NodeId,
    config::{DowningStrategy, Span},
    proto::rng::Rng,
};

/// Nobody downs anybody.
fn undecided() -> Config {
    let mut config = fast();
    config.downing.strategy = DowningStrategy::None;
    config
}

fn events_of(world: &World, n: usize) -> usize {
    world.nodes[&n].events.len()
}

/// What node `n` told of the member at `of`, one letter a step: Joining, Weakly up, Up, Leaving, eXiting, Down, Removed; - and + for out of
/// reach and back.
fn story(world: &World, n: usize, of: usize) -> String {
    let step = |event: &Event| match event {
        Event::Member { member, .. } if member.addr == addr(of) => Some(match member.status {
            MemberStatus::Joining => 'J',
            MemberStatus::WeaklyUp => 'W',
            MemberStatus::Up => 'U',
            MemberStatus::Leaving => 'L',
            MemberStatus::Exiting => 'X',
            MemberStatus::Down => 'D',
            MemberStatus::Removed => 'R',
        }),
        Event::Unreachable { node, .. } if node.addr_hash() == addr(of).hash64() => Some('-'),
        Event::Reachable { node } if node.addr_hash() == addr(of).hash64() => Some('+'),
        _ => None,
    };
    world.nodes[&n].events.iter().filter_map(|(_, event)| step(event)).collect()
}

#[test]
fn joining_again_as_a_member_tells_nothing() {
    let mut world = World::cluster(1, 3, &fast());
    let before: Vec<usize> = (1..=3).map(|n| events_of(&world, n)).collect();
    assert!(world.with(2, |m, now| m.join(now, &[addr(1)])).is_err());
    world.run(secs(2));
    assert_eq!((1..=3).map(|n| events_of(&world, n)).collect::<Vec<_>>(), before);
}

#[test]
fn a_joining_node_answers_heartbeats_before_gossip_says_that_it_is_up() {
    let mut slow = fast();
    slow.membership.gossip_interval = Span::secs(5);
    slow.membership.weakly_up_after = None;
    let mut world = World::new(1);
    world.start(1, slow.clone(), &[1]);
    world.start(2, slow.clone(), &[1]);
    world.run(secs(20));
    world.start(3, slow, &[1]);
    world.run(secs(5));
    for n in 1..=3 {
        assert!(!story(&world, n, 3).contains('-'), "{}", story(&world, n, 3));
        assert!(world.view(n).iter().all(|(_, _, reachable)| *reachable));
    }
}

#[test]
fn the_first_seed_is_the_oldest_though_not_the_leader() {
    for seed in 0..10 {
        let mut world = World::new(seed);
        let mut rng = Rng::new(seed);
        let mut order = vec![1, 2, 3, 4];
        for i in 0..4 {
            order.swap(i, i + rng.below(4 - i as u64) as usize);
        }
        for n in order {
            // The highest address comes first in everybody's list.
            world.start(n, fast(), &[4, 1, 2]);
            world.run(millis(rng.below(300)));
        }
        world.run_until(secs(10), "forming", |w| w.one_cluster(&[1, 2, 3, 4]));
        let view = world.nodes[&2].machine.view();
        assert_eq!(view.oldest(None).unwrap().addr, addr(4));
        assert_eq!(view.leader, Some(world.nodes[&1].id));
    }
}

#[test]
fn joiners_wait_for_enough_members_with_weakly_up_too() {
    let mut config = fast();
    config.cluster.min_members = 3;
    config.membership.weakly_up_after = Some(Span::millis(1400));
    let mut world = World::new(5);
    world.start(1, config.clone(), &[1]);
    world.start(2, config.clone(), &[1]);
    world.run(secs(5));
    assert_eq!(world.view(1), [(1, MemberStatus::Joining, true), (2, MemberStatus::Joining, true)]);
    world.start(3, config, &[1]);
    world.run_until(secs(2), "up", |w| w.one_cluster(&[1, 2, 3]));
}

#[test]
fn members_show_their_own_versions_and_roles() {
    let mut world = World::new(1);
    for n in 1..=3 {
        let mut config = fast();
        config.cluster.app_version = format!("1.{n}");
        config.cluster.roles = vec![format!("role-{n}")];
        world.start(n, config, &[1]);
    }
    world.run_until(secs(5), "forming", |w| w.one_cluster(&[1, 2, 3]));
    for n in 1..=3 {
        let shown = world.nodes[&n].machine.view().members.iter().map(|m| (m.app_version.to_string(), m.roles.to_vec()));
        let expected = (1..=3).map(|n| (format!("1.{n}"), vec![format!("role-{n}")]));
        assert!(shown.eq(expected), "node {n}");
    }
}

/// A member's whole life, as everybody tells it.
#[test]
fn each_step_of_a_life_is_told_once_and_in_order() {
    let mut world = World::new(1);
    world.start(1, fast(), &[1]);
    world.run(secs(2));
    world.start(2, fast(), &[1]);
    world.run_until(secs(2), "the second", |w| w.one_cluster(&[1, 2]));
    world.start(3, fast(), &[2]);
    world.run_until(secs(2), "the third, through the second", |w| w.one_cluster(&[1, 2, 3]));
    // Where nobody else must see it, or one round of gossip brings both, a joiner goes up in the step in which it appears.
    assert!((1..=3).all(|n| ["JU", "U"].contains(&story(&world, 1, n).as_str())), "{}", story(&world, 1, 3));
    assert_eq!(story(&world, 2, 3), "JU", "who admitted it has seen it join");
    // Out of reach and back.
    world.split(&[3], &[1, 2]);
    world.run(millis(1600));
    world.cut.clear();
    world.run_until(secs(5), "healing", |w| w.one_cluster(&[1, 2, 3]));
    assert!(story(&world, 1, 3).ends_with("U-+"), "{}", story(&world, 1, 3));
    // Leaves.
    let third = world.nodes[&3].id;
    world.with(3, |m, now| m.leave(now, third)).unwrap();
    world.run_until(secs(2), "exiting", |w| w.view(1).contains(&(3, MemberStatus::Exiting, true)));
    world.with(3, |m, now| m.set_drained(now, true));
    world.run_until(secs(2), "the end", |w| w.ended(3).is_some());
    world.reap();
    world.run_until(secs(3), "removal", |w| w.one_cluster(&[1, 2]));
    let told = story(&world, 1, 3);
    assert!(told.ends_with("XR") && told.matches('R').count() == 1, "{told}");
    // Dies.
    world.crash(2);
    world.run_until(secs(10), "removal", |w| w.one_cluster(&[1]));
    let told = story(&world, 1, 2);
    assert!(told.ends_with("U-DR") || told.ends_with("U-R"), "{told}");
}

#[test]
fn joiners_on_both_sides_of_a_cut_are_weakly_up_until_it_heals() {
    let mut config = undecided();
    config.membership.weakly_up_after = Some(Span::millis(600));
    let mut world = World::cluster(2, 4, &config);
    world.split(&[1, 2, 5], &[3, 4, 6]);
    world.run(secs(3));
    world.start(5, config.clone(), &[1]);
    world.start(6, config, &[3]);
    let weakly = |w: &World, of: usize, joiner: usize| w.view(of).contains(&(joiner, MemberStatus::WeaklyUp, true));
    world.run_until(secs(5), "weakly up", |w| weakly(w, 2, 5) && weakly(w, 5, 5) && weakly(w, 4, 6) && weakly(w, 6, 6));
    assert!(world.view(1).iter().all(|m| m.0 != 6) && world.view(3).iter().all(|m| m.0 != 5), "{}", world.describe());
    world.cut.clear();
    world.run_until(secs(10), "up", |w| w.one_cluster(&[1, 2, 3, 4, 5, 6]));
}

#[test]
fn when_leaders_die_in_a_row_the_next_address_leads() {
    let mut world = World::cluster(3, 4, &undecided());
    for leader in [1, 2, 3] {
        let (dead, left) = (world.nodes[&leader].id, (leader + 1..=4).collect::<Vec<_>>());
        world.crash(leader);
        let lost = |w: &World, n: usize| w.view(n).contains(&(leader, MemberStatus::Up, false));
        world.run_until(secs(5), "out of reach", |w| left.iter().all(|&n| lost(w, n)));
        let next = world.nodes[&left[0]].id;
        assert!(left.iter().all(|n| world.nodes[n].machine.view().leader == Some(next)), "{}", world.describe());
        // Nobody but an operator downs it.
        world.run(secs(5));
        assert!(left.iter().all(|&n| lost(&world, n)));
        world.with(*left.last().unwrap(), |m, now| m.down(now, dead)).unwrap();
        world.run_until(secs(5), "removal", |w| w.one_cluster(&left));
    }
}

#[test]
fn the_next_leader_decides_a_split_whose_leader_dies_meanwhile() {
    for seed in 0..10 {
        let mut world = World::cluster(seed, 7, &fast());
        world.split(&[1, 2, 3, 4, 5], &[6, 7]);
        world.run(millis(1200 + 100 * seed));
        world.crash(1);
        world.run_until(secs(20), "resolution", |w| w.one_cluster(&[2, 3, 4, 5]) && [6, 7].iter().all(|&n| w.ended(n).is_some()));
    }
}

#[test]
fn a_cluster_on_its_way_out_takes_nobody_in() {
    let mut world = World::cluster(1, 3, &fast());
    for n in 1..=3 {
        let id = world.nodes[&n].id;
        world.with(n, |m, now| m.leave(now, id)).unwrap();
    }
    world.run(secs(1));
    world.start(4, fast(), &[1, 2, 3]);
    world.run(secs(3));
    assert!(world.view(4).iter().all(|(n, status, _)| *n != 4 || *status != MemberStatus::Up), "{}", world.describe());
    for n in 1..=3 {
        world.with(n, |m, now| m.set_drained(now, true));
    }
    world.run_until(secs(30), "the end", |w| (1..=3).all(|n| w.ended(n).is_some()));
}

#[test]
fn a_link_cut_before_the_first_heartbeat_is_found_out() {
    for seed in 0..10 {
        let mut world = World::cluster(seed, 3, &fast());
        world.start(4, fast(), &[1]);
        let id = world.nodes[&4].id;
        world.run_until(secs(1), "admitted", |w| w.nodes[&1].machine.view().member(id).is_some());
        world.split(&[4], &[1, 2, 3]);
        world.run_until(secs(3), "out of reach", |w| (1..=3).all(|n| w.nodes[&n].machine.view().member(id).is_some_and(|m| !m.reachable)));
    }
}

#[test]
fn with_auto_down_a_split_makes_two_clusters_of_which_a_heal_leaves_one() {
    let mut config = undecided();
    config.membership.auto_down_after = Some(Span::secs(1));
    let mut world = World::cluster(4, 5, &config);
    // Who has hardly begun gives way at once.
    world.run(secs(60));
    world.split(&[1, 2], &[3, 4, 5]);
    world.run_until(secs(10), "two clusters", |w| w.one_cluster(&[1, 2]) && w.one_cluster(&[3, 4, 5]));
    world.cut.clear();
    world.run(secs(2));
    assert!((1..=5).all(|n| world.ended(n).is_none()), "a notice from who is no member is not trusted\n{}", world.describe());
    world.run_until(secs(20), "the lesser one ends", |w| (1..=2).all(|n| matches!(w.ended(n), Some(Ending::Downed(_)))));
    world.run(secs(20));
    assert!((3..=5).all(|n| world.ended(n).is_none()) && world.one_cluster(&[3, 4, 5]));
}

#[test]
fn auto_down_waits_its_time_and_only_for_who_stays_away() {
    let mut config = undecided();
    config.membership.auto_down_after = Some(Span::secs(3));
    let mut world = World::cluster(6, 3, &config);
    // Back in time.
    world.split(&[3], &[1, 2]);
    world.run_until(secs(5), "out of reach", |w| w.view(1).contains(&(3, MemberStatus::Up, false)));
    world.run(secs(2));
    world.cut.clear();
    world.run_until(secs(5), "back", |w| w.one_cluster(&[1, 2, 3]));
    world.run(secs(5));
    assert!(world.one_cluster(&[1, 2, 3]));
    // The leader dies, and the one that takes its place waits from when it found out.
    world.crash(1);
    let noticed = world.run_until(secs(5), "out of reach", |w| w.view(2).contains(&(1, MemberStatus::Up, false)));
    let took = world.run_until(secs(10), "removal", |w| w.one_cluster(&[2, 3]));
    assert!(took >= millis(2900) && took <= millis(4500), "{noticed:?} {took:?}");
    assert!(matches!(world.nodes[&3].removed[..], [(_, Removal::Downed { proven: false })]));
}

#[test]
fn every_must_match_setting_is_refused_by_its_name() {
    let mine = fast();
    for (key, value) in mine.must_match() {
        // Another value of the same kind.
        let other = match key.as_str() {
            "cluster.name" | "downing.referee" | "downing.quorum_size" => continue,
            "downing.strategy" => toml::Value::from("keep-oldest"),
            "detector.verdict" => toml::Value::from("one"),
            _ => match value.as_str() {
                "true" => toml::Value::from(false),
                "false" => toml::Value::from(true),
                text => match text.parse::<i64>() {
                    Ok(n) => toml::Value::from(n + 1),
                    Err(_) => toml::Value::from("7s"),
                },
            },
        };
        let mut theirs = fast();
        if theirs.set(&key, &other).is_err() || theirs.must_match() == mine.must_match() {
            continue;
        }
        let mut world = World::new(1);
        world.start(1, fast(), &[1]);
        world.start(2, theirs, &[1, 2]);
        world.run(secs(2));
        let Some(Ending::Refused(why)) = world.ended(2) else { panic!("{key}: {}", world.describe()) };
        assert!(why.contains(&key), "{key}: {why}");
    }
}

/// Whom the datagrams of a settled cluster go to: everybody, about equally often.
#[test]
fn gossip_spreads_over_all() {
    let mut world = World::cluster(7, 10, &fast());
    world.sent.clear();
    world.run(secs(40));
    for n in 1..=10 {
        let others: Vec<u64> = (1..=10).filter(|&to| to != n).map(|to| world.sent.get(&(n, to)).copied().unwrap_or(0)).collect();
        let mean = others.iter().sum::<u64>() / 9;
        assert!(others.iter().all(|&k| k > 0), "{n}: {others:?}");
        // Five of them get a heartbeat each interval as well.
        assert!(others.iter().all(|&k| k < 3 * mean), "{n}: {others:?}");
    }
}

/// At least one round in five goes to somebody out of reach, so that a heal is found out soon.
#[test]
fn gossip_goes_on_to_who_is_out_of_reach() {
    let mut world = World::cluster(8, 10, &undecided());
    world.split(&[10], &[1, 2, 3, 4, 5, 6, 7, 8, 9]);
    world.run(secs(5));
    world.sent.clear();
    world.run(secs(100));
    // Nine nodes, five rounds a second each; heartbeats of its monitors come on top.
    let rounds = 9 * 500;
    let to_lost: u64 = (1..=9).map(|n| world.sent.get(&(n, 10)).copied().unwrap_or(0)).sum();
    assert!(to_lost >= rounds / 6, "{to_lost} of {rounds}");
    world.cut.clear();
    let took = world.run_until(secs(10), "healing", |w| w.one_cluster(&(1..=10).collect::<Vec<_>>()));
    assert!(took < secs(2), "{took:?}");
}

/// Random joins, crashes, leaves, cuts and heals: every machine's own checks hold at every step (`World` calls them), and nobody observes
/// more than it should.
#[test]
fn random_operations_keep_the_monitors_right() {
    for seed in 0..3 {
        let mut rng = Rng::new(seed);
        let mut world = World::cluster(seed, 6, &undecided());
        let mut next = 7;
        for _ in 0..60 {
            let alive: Vec<usize> = world.nodes.keys().copied().collect();
            let one = alive[rng.below(alive.len() as u64) as usize];
            match rng.below(6) {
                0 if next < 24 => {
                    world.start(next, undecided(), &[one]);
                    next += 1;
                }
                1 if alive.len() > 4 => {
                    let id: NodeId = world.nodes[&one].id;
                    world.crash(one);
                    let by = *world.nodes.keys().next().unwrap();
                    drop(world.with(by, |m, now| m.down(now, id)));
                }
                2 => {
                    let other = alive[rng.below(alive.len() as u64) as usize];
                    world.split(&[one], &[other]);
                }
                3 => world.cut.clear(),
                _ => {}
            }
            world.run(millis(50 + rng.below(400)));
            for (n, node) in &world.nodes {
                let links = node.machine.links(world.now);
                assert!(links.iter().all(|l| l.subject != node.id), "{n} observes itself");
                let members = node.machine.view().members.len();
                assert!(links.len() < members.max(2), "{n}: {} of {members}", links.len());
            }
        }
        world.cut.clear();
        world.run(secs(20));
        let all: Vec<usize> = world.nodes.iter().filter(|(_, n)| n.ended.is_none()).map(|(&n, _)| n).collect();
        assert!(world.one_cluster(&all), "{}", world.describe());
    }
}
