//! Behaviours of whole clusters.

mod conformance;
mod gone;
mod lease;
mod lives;
mod names;
mod proof;
mod world;

use std::time::Duration;

use self::world::{World, addr, fast};
use super::{Ending, Event, MemberStatus, Removal};
use crate::{Config, NodeId, config::DowningStrategy};

const SEEDS: u64 = 20;

const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

const fn millis(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn proof() -> Config {
    let mut config = fast();
    config.downing.proof_of_death = crate::config::AutoBool::Is(true);
    config
}

#[test]
fn nodes_started_in_any_order_form_one_cluster() {
    for seed in 0..SEEDS {
        for n in [3usize, 10] {
            let mut world = World::new(seed);
            let mut rng = crate::proto::rng::Rng::new(seed);
            let all: Vec<usize> = (1..=n).collect();
            let mut order = all.clone();
            for i in 0..n {
                order.swap(i, i + rng.below((n - i) as u64) as usize);
            }
            for &i in &order {
                world.start(i, fast(), &all[..3]);
                world.run(millis(rng.below(100)));
            }
            world.run_until(secs(10), "forming", |w| w.one_cluster(&all));
            let oldest = world.nodes[&2].machine.view().oldest(None).unwrap().addr.clone();
            assert_eq!(oldest, addr(1), "the first seed is the oldest, seed {seed}");
        }
    }
}

#[test]
fn three_are_up_well_under_a_second_after_the_first_seed_formed() {
    for seed in 0..SEEDS {
        let mut world = World::new(seed);
        world.start(1, fast(), &[1]);
        world.run(millis(50));
        world.start(2, fast(), &[1]);
        world.start(3, fast(), &[1]);
        let took = world.run_until(secs(2), "up", |w| w.all_up(&[1, 2, 3]));
        assert!(took < millis(300), "seed {seed}: {took:?}");
    }
}

#[test]
fn a_crashed_one_of_ten_or_three_is_detected_and_removed() {
    for seed in 0..SEEDS {
        for n in [10usize, 3] {
            let mut world = World::cluster(seed, n, &fast());
            let victim = 1 + (seed as usize % n);
            let id = world.nodes[&victim].id;
            world.crash(victim);
            let left: Vec<usize> = (1..=n).filter(|&i| i != victim).collect();
            let took = world.run_until(secs(15), "removal", |w| w.one_cluster(&left));
            assert!(took > secs(2), "no removal before stable_after: {took:?}");
            for i in left {
                assert_eq!(world.nodes[&i].removed, [(id, Removal::Downed { proven: false })]);
                assert!(world.nodes[&i].machine.is_removed(id));
            }
        }
    }
}

/// One that comes and goes keeps the picture from standing still, on the side that lives or on the one that loses.
#[test]
fn an_unsteady_picture_is_judged_in_part() {
    for (unsteady, with) in [(5, [1, 2, 3, 4].as_slice()), (7, &[6])] {
        for seed in 0..5 {
            let mut world = World::cluster(seed, 7, &fast());
            world.split(&[1, 2, 3, 4, 5], &[6, 7]);
            let gone = |w: &World| w.ended(6).is_some() && (1..=4).all(|n| !w.view(n).iter().any(|&(m, ..)| m == 6 || m == 7));
            for round in 0.. {
                match round % 2 {
                    0 => world.split(with, &[unsteady]),
                    _ => with.iter().for_each(|&a| {
                        world.cut.remove(&(a, unsteady));
                        world.cut.remove(&(unsteady, a));
                    }),
                }
                world.run(millis(1300));
                assert!((1..=4).all(|n| world.ended(n).is_none()), "{}", world.describe());
                if gone(&world) {
                    break;
                }
                assert!(round < 20, "{} comes and goes, seed {seed}: {}", unsteady, world.describe());
            }
        }
    }
}

/// Somebody is always out of reach, so that there is no convergence, and all who were up at first die.
#[test]
fn a_cluster_lives_on_when_all_its_members_are_replaced_one_by_one() {
    const FIRST: usize = 13;
    for (seed, pause) in [(1, 2000), (2, 2000), (3, 2200), (4, 2200), (6, 2500)] {
        let mut world = World::cluster(seed, FIRST, &fast());
        for (round, dies) in [7, 3, 12, 9, 5, 13, 2, 11, 4, 8, 6, 10, 1].into_iter().enumerate() {
            let newest = FIRST + 1 + round;
            let knows: Vec<usize> = (newest - 3..newest).collect();
            world.start(newest, fast(), if round < 3 { &[1] } else { &knows });
            world.crash(dies);
            world.run(millis(pause));
            assert!(world.nodes.keys().all(|&n| world.ended(n).is_none()), "seed {seed}, {newest}: {}", world.describe());
        }
        let last: Vec<usize> = (FIRST + 1..=2 * FIRST).collect();
        world.run_until(secs(10), "one cluster", |w| w.one_cluster(&last));
    }
}

/// The one who leads the whole may raise joiners, if it does not lead a side that would grow by them until it is the larger one.
#[test]
fn joins_pass_the_lost_on_the_side_that_would_live() {
    let mut config = fast();
    config.membership.converge_past_unreachable = true;
    for (small, large, may_raise) in [([4, 5], [1, 2, 3], true), ([1, 2], [3, 4, 5], false)] {
        for seed in 0..5 {
            let mut world = World::cluster(seed, 5, &config);
            let [small_side, large_side] = [[&small[..], &[6, 7]].concat(), [&large[..], &[8]].concat()];
            world.split(&small_side, &large_side);
            let lost = |w: &World, of: usize| w.view(of).iter().filter(|m| !m.2).count();
            world.run_until(secs(5), "a cut", |w| lost(w, large[0]) == 2 && lost(w, small[0]) == 3);
            (6..=7).for_each(|n| world.start(n, config.clone(), &small));
            world.start(8, config.clone(), &large);
            let up = |w: &World, of: usize, joiner: usize| w.view(of).contains(&(joiner, MemberStatus::Up, true));
            let since = world.now;
            while world.now.since(since) < millis(1000) {
                world.run(millis(10));
                assert!(!up(&world, small[0], 6) && !up(&world, small[0], 7), "{}", world.describe());
            }
            assert_eq!(up(&world, large[0], 8), may_raise, "seed {seed}: {}", world.describe());
            let ended = |w: &World, of: &[usize]| of.iter().all(|&n| w.ended(n).is_some());
            world.run_until(secs(10), "resolution", |w| w.one_cluster(&large_side) && ended(w, &small));
        }
    }
}

#[test]
fn a_leaver_is_removed_when_it_is_drained_and_ends() {
    for seed in 0..SEEDS {
        let mut world = World::cluster(seed, 3, &fast());
        let leaver = 1 + (seed as usize % 3);
        let id = world.nodes[&leaver].id;
        let rest: Vec<usize> = (1..=3).filter(|&i| i != leaver).collect();
        world.with(leaver, |m, now| m.leave(now, id)).unwrap();
        world.run(secs(3));
        assert!(world.view(rest[0]).contains(&(leaver, MemberStatus::Exiting, true)), "waits for its hand-offs");
        world.with(leaver, |m, now| m.set_drained(now, true));
        let took = world.run_until(secs(2), "end", |w| w.ended(leaver).is_some());
        assert_eq!(world.ended(leaver), Some(&Ending::Left));
        // The leader tells it as it removes it: less than a heartbeat.
        assert!(took < millis(60), "{took:?}");
        world.reap();
        world.run_until(secs(3), "removal", |w| w.one_cluster(&rest));
        assert_eq!(world.nodes[&rest[0]].removed, [(id, Removal::Left)]);
    }
}

#[test]
fn leaving_alone_ends_at_once_and_so_does_leaving_before_joining() {
    let mut world = World::new(1);
    world.start(1, fast(), &[]);
    world.start(2, fast(), &[3]);
    for n in [1, 2] {
        let id = world.nodes[&n].id;
        world.with(n, |m, now| m.leave(now, id)).unwrap();
        assert_eq!(world.ended(n), Some(&Ending::Left));
    }
}

#[test]
fn a_leaver_whose_hand_offs_take_too_long_counts_as_downed() {
    let mut config = fast();
    config.shutdown.leave_timeout = crate::config::Span::millis(2000);
    let mut world = World::cluster(3, 3, &config);
    let id = world.nodes[&2].id;
    world.with(2, |m, now| m.leave(now, id)).unwrap();
    world.run_until(secs(4), "end", |w| w.ended(2).is_some());
    assert_eq!(world.ended(2), Some(&Ending::Overdue));
    world.run(secs(2));
    assert_eq!(world.nodes[&1].removed, [(id, Removal::Downed { proven: false })]);
}

#[test]
fn all_leaving_at_once_all_end() {
    for seed in 0..SEEDS {
        let mut world = World::cluster(seed, 3, &fast());
        for n in 1..=3 {
            let id = world.nodes[&n].id;
            world.with(n, |m, now| m.leave(now, id)).unwrap();
            world.with(n, |m, now| m.set_drained(now, true));
        }
        world.run_until(secs(30), "ends", |w| w.nodes.values().all(|n| n.ended.is_some()));
        assert!((1..=3).all(|n| world.ended(n) == Some(&Ending::Left)), "seed {seed}\n{}", world.describe());
    }
}

// failures: row 13
#[test]
fn another_cluster_name_is_refused_for_good_with_both_names() {
    let mut world = World::new(1);
    world.start(1, fast(), &[1]);
    let mut other = fast();
    other.cluster.name = "other".into();
    world.start(2, other, &[1, 2]);
    world.run(secs(1));
    let Some(Ending::Refused(why)) = world.ended(2) else { panic!("{}", world.describe()) };
    assert!(why.contains("cluster.name") && why.contains("wingbeat") && why.contains("other"), "{why}");
}

#[test]
fn another_must_match_setting_is_refused_by_name() {
    let mut world = World::new(1);
    world.start(1, fast(), &[1]);
    let mut other = fast();
    other.detector.monitors = 4;
    other.downing.strategy = DowningStrategy::KeepOldest;
    world.start(2, other, &[1, 2]);
    world.run(secs(1));
    let Some(Ending::Refused(why)) = world.ended(2) else { panic!("{}", world.describe()) };
    assert!(why.contains("detector.monitors is `5` here and `4`") && why.contains("downing.strategy"), "{why}");
}

#[test]
fn the_larger_side_of_a_split_lives_and_the_other_ends() {
    for seed in 0..SEEDS {
        let mut world = World::cluster(seed, 5, &fast());
        world.split(&[1, 3, 5], &[2, 4]);
        world.run_until(secs(15), "resolution", |w| w.one_cluster(&[1, 3, 5]) && w.ended(2).is_some() && w.ended(4).is_some());
        assert!(matches!(world.ended(2), Some(Ending::Downed(_))));
        let decided = world.nodes[&1].events.iter().find(|(_, e)| matches!(e, Event::Split { .. })).unwrap().0;
        for n in [2, 4] {
            let lag = world.nodes[&n].ended.as_ref().unwrap().0.since(decided);
            assert!(lag <= world.nodes[&1].machine.lag_bound(), "seed {seed}: {lag:?}");
        }
    }
}

#[test]
fn a_healed_split_goes_on_as_if_nothing_was() {
    for seed in 0..SEEDS {
        let mut world = World::cluster(seed, 5, &fast());
        world.split(&[1, 2, 3], &[4, 5]);
        world.run(millis(1600));
        world.cut.clear();
        world.run_until(secs(5), "healing", |w| w.one_cluster(&[1, 2, 3, 4, 5]));
        assert!(world.nodes.values().all(|n| n.removed.is_empty()));
    }
}

#[test]
fn members_of_clusters_refuse_to_join_another() {
    let mut world = World::new(2);
    for (n, seeds) in [(1, [1]), (2, [1]), (3, [3]), (4, [3])] {
        world.start(n, fast(), &seeds);
        world.run(millis(100));
    }
    world.run(secs(2));
    let refused = world.with(1, |m, now| m.join(now, &[addr(3)]));
    assert!(refused.unwrap_err().contains("belongs to a cluster of 2"));
    world.run(secs(5));
    assert!(world.one_cluster(&[1, 2]) && world.one_cluster(&[3, 4]));
}

#[test]
fn a_node_alone_may_join_later() {
    for seed in 0..SEEDS {
        let mut world = World::new(seed);
        world.start(1, fast(), &[]);
        world.start(2, fast(), &[]);
        world.run(secs(1));
        assert!(world.one_cluster(&[1]) && world.one_cluster(&[2]));
        world.with(2, |m, now| m.join(now, &[addr(1)])).unwrap();
        if seed % 2 == 0 {
            // At the same time the other way round.
            world.with(1, |m, now| m.join(now, &[addr(2)])).unwrap();
        }
        world.run_until(secs(3), "joining", |w| w.one_cluster(&[1, 2]));
    }
}

// failures: row 21
#[test]
fn nobody_but_the_first_seed_forms_a_cluster() {
    let mut world = World::new(1);
    world.start(2, fast(), &[1, 2]);
    world.run(secs(25));
    assert_eq!(world.view(2), [(2, MemberStatus::Joining, true)]);
    let warnings = world.nodes[&2].events.iter().filter(|(_, e)| matches!(e, Event::Warning { .. })).count();
    assert_eq!(warnings, 2);
    world.start(1, fast(), &[1, 2]);
    world.run_until(secs(3), "forming", |w| w.one_cluster(&[1, 2]));
}

#[test]
fn a_settled_cluster_has_no_events() {
    for seed in 0..SEEDS / 5 {
        let mut world = World::cluster(seed, 5, &fast());
        let before: Vec<usize> = world.nodes.values().map(|n| n.events.len()).collect();
        world.run(secs(60));
        let after: Vec<usize> = world.nodes.values().map(|n| n.events.len()).collect();
        assert_eq!(before, after, "seed {seed}");
    }
}

// failures: row 42
#[test]
fn a_node_that_was_away_accuses_nobody_on_waking() {
    for seed in 0..SEEDS {
        let mut world = World::cluster(seed, 5, &fast());
        world.nodes.get_mut(&2).unwrap().paused = true;
        world.run(millis(1500));
        world.nodes.get_mut(&2).unwrap().paused = false;
        let from = world.nodes[&2].events.len();
        world.run_until(secs(5), "recovery", |w| w.one_cluster(&[1, 2, 3, 4, 5]));
        let accused = world.nodes[&2].events[from..].iter().any(|(_, e)| matches!(e, Event::Unreachable { .. }));
        assert!(!accused, "seed {seed}: {:?}", &world.nodes[&2].events[from..]);
    }
}

// failures: row 43
#[test]
fn a_starved_node_is_slower_to_accuse_until_it_runs_well_again() {
    for seed in 0..SEEDS {
        let mut world = World::cluster(seed, 5, &fast());
        let (calm, beat) = (world.nodes[&2].machine.floor(), millis(200));
        let from = world.nodes[&2].events.len();
        for _ in 0..20 {
            // Each pause is short enough for the others.
            world.nodes.get_mut(&2).unwrap().paused = true;
            world.run(millis(450));
            world.nodes.get_mut(&2).unwrap().paused = false;
            world.run(millis(50));
        }
        assert_eq!(world.nodes[&2].machine.floor(), calm + 4 * beat, "seed {seed}: as slow as it gets");
        let accused = world.nodes[&2].events[from..].iter().any(|(_, e)| matches!(e, Event::Unreachable { .. }));
        assert!(!accused && world.one_cluster(&[1, 2, 3, 4, 5]), "seed {seed}: {}", world.describe());
        world.run(50 * beat);
        assert_eq!(world.nodes[&2].machine.floor(), calm, "seed {seed}: it has been punctual for long");
    }
}

// failures: row 42
#[test]
fn a_node_that_was_removed_while_away_learns_it() {
    for seed in 0..SEEDS {
        let mut world = World::cluster(seed, 5, &fast());
        world.nodes.get_mut(&4).unwrap().paused = true;
        world.run_until(secs(20), "removal", |w| w.one_cluster(&[1, 2, 3, 5]));
        world.run(secs(2));
        world.nodes.get_mut(&4).unwrap().paused = false;
        world.run_until(secs(2), "learning", |w| w.ended(4).is_some());
        assert!(matches!(world.ended(4), Some(Ending::Downed(_))));
    }
}

#[test]
fn an_operator_downs_a_healthy_node() {
    for seed in 0..SEEDS {
        let mut world = World::cluster(seed, 3, &fast());
        let id = world.nodes[&3].id;
        world.with(1 + seed as usize % 3, |m, now| m.down(now, id)).unwrap();
        world.run_until(secs(1), "end", |w| w.ended(3).is_some());
        world.reap();
        world.run_until(secs(2), "removal", |w| w.one_cluster(&[1, 2]));
    }
}

#[test]
fn joiners_wait_until_enough_are_there() {
    let mut config = fast();
    config.cluster.min_members = 3;
    config.membership.weakly_up_after = None;
    let mut world = World::new(5);
    world.start(1, config.clone(), &[1]);
    world.start(2, config.clone(), &[1]);
    world.run(secs(5));
    assert_eq!(world.view(1), [(1, MemberStatus::Joining, true), (2, MemberStatus::Joining, true)]);
    world.start(3, config, &[1]);
    world.run_until(secs(2), "up", |w| w.one_cluster(&[1, 2, 3]));
}

#[test]
fn lost_datagrams_delay_but_do_not_harm() {
    for seed in 0..SEEDS {
        let mut config = fast();
        config.detector.acceptable_pause = crate::config::Span::millis(2000);
        let mut world = World::new(seed);
        world.loss = 0.1;
        for n in 1..=5 {
            world.start(n, config.clone(), &[1, 2]);
        }
        world.run_until(secs(20), "forming", |w| w.one_cluster(&[1, 2, 3, 4, 5]));
        world.run(secs(30));
        assert!(world.nodes.values().all(|n| n.removed.is_empty()));
        assert!(world.max_datagram_seen <= 1200);
    }
}

#[test]
fn the_same_seed_runs_the_same() {
    let trace = |seed| {
        let mut world = World::new(seed);
        world.loss = 0.05;
        for n in 1..=5 {
            world.start(n, fast(), &[1, 2]);
        }
        world.run(secs(5));
        world.crash(2);
        world.run(secs(8));
        world.nodes.values().flat_map(|n| n.events.iter().map(|(t, e)| format!("{t:?} {e:?}"))).collect::<Vec<_>>()
    };
    assert_eq!(trace(7), trace(7));
    assert_ne!(trace(7), trace(8));
}

// failures: row 1
#[test]
fn random_and_mutated_datagrams_only_move_counters() {
    let mut world = World::cluster(1, 3, &fast());
    let mut rng = crate::proto::rng::Rng::new(9);
    let before = world.nodes[&1].machine.view().clone();
    for round in 0..2000 {
        let mut bytes: Vec<u8> = (0..rng.below(300)).map(|_| rng.next_u64() as u8).collect();
        if round % 2 == 0 && bytes.len() > 4 {
            bytes[..4].copy_from_slice(b"wb\x01\x00");
        }
        world.with(1, |m, now| m.handle_datagram(now, &bytes));
    }
    assert_eq!(world.nodes[&1].machine.view(), &before);
    let dropped: u64 =
        world.nodes[&1].machine.counters().iter().filter(|(name, _)| name.starts_with("datagrams_dropped")).map(|(_, n)| n).sum();
    assert_eq!(dropped, 2000);
}

#[test]
fn splits_of_ten_leave_one_side() {
    for seed in 0..SEEDS / 5 {
        for (here, there) in [
            (vec![1, 2, 3, 4, 5, 6], vec![7, 8, 9, 10]),
            (vec![5, 6, 7, 8, 9, 10], vec![1, 2, 3, 4]),
            (vec![1, 3, 5, 7, 9], vec![2, 4, 6, 8, 10]),
            (vec![1, 2, 3, 4, 5, 6, 7, 8, 9], vec![10]),
        ] {
            let mut world = World::cluster(seed, 10, &fast());
            world.split(&here, &there);
            world.run_until(secs(20), "resolution", |w| w.one_cluster(&here) && there.iter().all(|&n| w.ended(n).is_some()));
            assert!(here.iter().all(|&n| world.ended(n).is_none()));
            let decided = world.nodes.values().flat_map(|n| n.events.iter()).filter(|(_, e)| matches!(e, Event::Split { .. }));
            let (first, last) = decided.fold((None, None), |(a, b): (Option<crate::Time>, Option<crate::Time>), (t, _)| {
                (Some(a.map_or(*t, |a| a.min(*t))), Some(b.map_or(*t, |b| b.max(*t))))
            });
            let lag = last.unwrap().since(first.unwrap());
            assert!(lag <= world.nodes[&here[0]].machine.lag_bound(), "seed {seed}: {lag:?}");
        }
    }
}

#[test]
fn several_that_crash_at_once_are_removed_together() {
    for seed in 0..SEEDS {
        let mut world = World::cluster(seed, 10, &fast());
        for n in [1, 2, 5, 9] {
            world.crash(n);
        }
        world.run_until(secs(20), "removal", |w| w.one_cluster(&[3, 4, 6, 7, 8, 10]));
    }
}

#[test]
fn a_cut_between_two_removes_nobody() {
    for seed in 0..SEEDS {
        let mut world = World::cluster(seed, 5, &fast());
        world.split(&[2], &[4]);
        world.run(secs(20));
        assert!(world.nodes.values().all(|n| n.removed.is_empty() && n.ended.is_none()));
        assert!(!world.nodes.values().any(|n| n.events.iter().any(|(_, e)| matches!(e, Event::Unreachable { .. }))), "seed {seed}");
    }
}

#[test]
fn forty_nodes_whose_state_needs_links_form_one_cluster() {
    for seed in 0..1 {
        let mut world = World::new(seed);
        let all: Vec<usize> = (1..=40).collect();
        for &n in &all {
            world.start(n, fast(), &all[..3]);
        }
        world.run_until(secs(20), "forming", |w| w.one_cluster(&all));
        assert!(world.max_datagram_seen <= 1200);
        world.crash(17);
        let left: Vec<usize> = all.iter().copied().filter(|&n| n != 17).collect();
        world.run_until(secs(20), "removal", |w| w.one_cluster(&left));
    }
}

// failures: rows 17, 19
#[test]
fn of_two_nodes_with_one_address_the_second_is_refused_with_both_ids() {
    let mut world = World::cluster(4, 3, &fast());
    let (mine, theirs) = (world.nodes[&1].machine.me, world.nodes[&2].id);
    let clone = crate::NodeId::new(&addr(2), 4711);
    let now = world.now;
    let machine = &mut world.nodes.get_mut(&1).unwrap().machine;
    let request = super::JoinRequest {
        addr: addr(2),
        incarnation: 4711,
        roles: vec![],
        app_version: String::new(),
        cluster: "wingbeat".into(),
        protocol: (1, 1),
        settings: vec![],
    };
    machine.handle_frame(now, clone, &addr(2), super::MemberFrame::Join(Box::new(request)));
    machine.handle_frame(now, theirs, &addr(2), super::MemberFrame::IAm);
    let (mut reason, mut warned) = (None, vec![]);
    while let Some(output) = machine.poll_output() {
        match output {
            super::MemberOutput::Frame {
                to: super::Peer::Node(to),
                frame: super::MemberFrame::JoinRefused { joiner, permanent: true, reason: r },
            } => {
                assert_eq!((to, joiner), (clone, clone));
                reason = Some(r);
            }
            super::MemberOutput::Event(Event::Warning { code, text }) => warned.push((code, text.to_string())),
            _ => {}
        }
    }
    let reason = reason.unwrap();
    assert_eq!(warned, [("W-JOIN-005", reason.clone())], "who runs the cluster hears of it too");
    assert!(reason.contains(&clone.to_string()) && reason.contains(&theirs.to_string()), "{reason}");
    assert!(world.nodes[&1].machine.view().member(clone).is_none() && mine != clone);
}

#[test]
fn churn_beside_three_keeps_gossip_in_one_datagram() {
    let mut world = World::cluster(6, 3, &fast());
    for round in 0..5 {
        for n in [4, 5, 6] {
            world.start(n, fast(), &[1, 2, 3]);
        }
        world.run_until(secs(5), "joining", |w| w.one_cluster(&[1, 2, 3, 4, 5, 6]));
        for n in [4, 5, 6] {
            let id = world.nodes[&n].id;
            if round % 2 == 0 {
                world.with(1, |m, now| m.down(now, id)).unwrap();
            } else {
                world.with(n, |m, now| m.leave(now, id)).unwrap();
                world.with(n, |m, now| m.set_drained(now, true));
            }
        }
        world.run_until(secs(5), "going", |w| [4, 5, 6].iter().all(|&n| w.ended(n).is_some()));
        world.reap();
        world.run_until(secs(10), "removal", |w| w.one_cluster(&[1, 2, 3]));
    }
    let by_link: u64 = world.nodes.values().map(|n| n.machine.counters.get(super::counters::Count::StateByLink)).sum();
    assert_eq!(by_link, 0, "all states fitted into datagrams");
}

#[test]
fn who_is_declared_dead_before_it_was_out_of_reach_for_long_may_run_for_a_lease() {
    for (waits, removal) in [(secs(0), Removal::Abrupt), (secs(60), Removal::Downed { proven: false })] {
        let mut config = fast();
        config.downing.strategy = DowningStrategy::None;
        let mut world = World::cluster(6, 3, &config);
        let id = world.nodes[&3].id;
        for n in [1, 2] {
            world.cut.extend([(n, 3), (3, n)]);
        }
        let lost = |w: &World| !w.nodes[&1].machine.view().member(id).is_some_and(|m| m.reachable);
        if !waits.is_zero() {
            world.run_until(secs(20), "out of reach", lost);
            world.run(waits);
        }
        world.with(1, |m, now| m.down(now, id)).unwrap();
        world.run_until(secs(20), "removal", |w| [1, 2].iter().all(|n| !w.nodes[n].removed.is_empty()));
        for n in [1, 2] {
            assert_eq!(world.nodes[&n].removed, [(id, removal)], "as node {n} hears");
        }
    }
}

#[test]
fn a_minority_cut_off_by_loss_of_one_direction_ends_alone() {
    for seed in 0..SEEDS {
        let mut world = World::cluster(seed, 5, &fast());
        // Node 3 hears nobody, but is heard.
        for n in [1, 2, 4, 5] {
            world.cut.insert((n, 3));
        }
        world.run_until(secs(20), "resolution", |w| w.ended(3).is_some());
        world.reap();
        world.run_until(secs(20), "removal", |w| w.one_cluster(&[1, 2, 4, 5]));
    }
}

/// Marks "unreachable" that any node told the world of, from `since` on.
fn marks(world: &World, since: crate::Time) -> Vec<(usize, crate::NodeId)> {
    let told = |events: &[(crate::Time, Event)]| -> Vec<crate::NodeId> {
        let late = events.iter().filter(|(at, _)| *at >= since);
        late.filter_map(|(_, e)| if let Event::Unreachable { node, .. } = e { Some(*node) } else { None }).collect()
    };
    world.nodes.iter().flat_map(|(&n, node)| told(&node.events).into_iter().map(move |id| (n, id))).collect()
}

fn counter(world: &World, n: usize, name: &str) -> u64 {
    world.nodes[&n].machine.counters().into_iter().find(|(have, _)| *have == name).unwrap().1
}

#[test]
fn a_fifth_of_all_datagrams_lost_accuses_nobody_and_hides_no_crash() {
    for seed in 0..3 {
        let mut world = World::cluster(seed, 20, &fast());
        let start = world.now;
        world.loss = 0.2;
        world.run(secs(20));
        assert_eq!(marks(&world, start), [], "seed {seed}");
        let victim = world.nodes[&7].id;
        world.crash(7);
        let took = world.run_until(secs(4), "detection", |w| w.nodes[&1].machine.view().member(victim).is_none_or(|m| !m.reachable));
        assert!(took <= millis(2000), "seed {seed}: {took:?}, ten heartbeats at most");
    }
}

#[test]
fn a_crash_is_marked_within_six_heartbeats() {
    for seed in 0..SEEDS {
        let mut world = World::cluster(seed, 12, &fast());
        world.run(secs(10));
        let victim = world.nodes[&5].id;
        world.crash(5);
        let marked = |w: &World| w.nodes.values().any(|n| n.machine.view().member(victim).is_none_or(|m| !m.reachable));
        let took = world.run_until(secs(4), "detection", marked);
        assert!(took > millis(600) && took <= millis(1200), "seed {seed}: {took:?}");
    }
}

#[test]
fn an_observer_that_loses_all_replies_accuses_nobody() {
    for seed in 0..5 {
        let mut world = World::cluster(seed, 20, &fast());
        world.run(secs(5));
        let start = world.now;
        world.deaf.insert(9);
        world.run(secs(10));
        assert_eq!(marks(&world, start), [], "seed {seed}");
        assert!(world.nodes.values().all(|n| n.machine.view().converged), "{}", world.describe());
    }
}

#[test]
fn a_node_that_receives_nothing_goes_alone() {
    for seed in 0..5 {
        let mut world = World::cluster(seed, 20, &fast());
        world.run(secs(5));
        let (start, sick) = (world.now, world.nodes[&9].id);
        for other in (1..=20).filter(|&n| n != 9) {
            world.cut.insert((other, 9));
        }
        world.run(secs(8));
        assert!(matches!(world.ended(9), Some(Ending::Downed(_))), "seed {seed}\n{}", world.describe());
        world.reap();
        let rest: Vec<usize> = (1..=20).filter(|&n| n != 9).collect();
        world.run_until(secs(15), "removal", |w| w.one_cluster(&rest));
        assert!(marks(&world, start).iter().all(|&(_, id)| id == sick), "seed {seed}");
    }
}

#[test]
fn gossip_takes_to_links_where_no_datagram_gets_through() {
    for seed in 0..5 {
        let mut world = World::new(seed);
        world.udp_blocked = true;
        for n in 1..=5 {
            world.start(n, fast(), &[1]);
        }
        let all: Vec<usize> = (1..=5).collect();
        world.run_until(secs(10), "forming over links", |w| w.one_cluster(&all));
        let warned = |n: &world::Node| n.events.iter().any(|(_, e)| matches!(e, Event::Warning { code: "W-NET-001", .. }));
        assert!(world.nodes.values().any(warned));
        world.run(secs(10));
        assert!(world.one_cluster(&all), "{}", world.describe());
        world.udp_blocked = false;
        world.run(secs(5));
        let before: Vec<u64> = all.iter().map(|&n| counter(&world, n, "frames_out")).collect();
        world.run(secs(5));
        let after: Vec<u64> = all.iter().map(|&n| counter(&world, n, "frames_out")).collect();
        assert_eq!(before, after, "datagrams again, seed {seed}");
    }
}

/// Two, cut off from the one through which three joins, hears of three by three itself: it is told who beats it, and answers.
#[test]
fn who_is_not_known_introduces_itself() {
    let mut config = fast();
    config.detector.acceptable_pause = crate::config::Span::millis(5_000);
    let mut world = World::cluster(1, 2, &config);
    world.split(&[1], &[2]);
    world.start(3, config.clone(), &[1]);
    world.split(&[2], &[3]);
    let knows = |w: &World, n: usize, other: usize| w.view(n).iter().any(|&(m, ..)| m == other);
    world.run_until(secs(2), "joining through one", |w| knows(w, 3, 2));
    assert!(!knows(&world, 2, 3));
    world.cut.remove(&(3, 2));
    world.cut.remove(&(2, 3));
    world.run_until(secs(2), "an introduction", |w| knows(w, 2, 3));
    let (id, at) = (world.nodes[&2].id, world.now);
    world.run_until(secs(1), "an answer", |w| w.nodes[&3].machine.watch.subject(id).unwrap().last_reply().is_some_and(|t| t > at));
}

#[test]
fn an_answer_older_than_its_time_to_live_is_dropped() {
    let mut config = fast();
    config.membership.gossip_ttl = crate::config::Span::millis(250);
    let mut world = World::new(1);
    world.latency = millis(200);
    for n in 1..=3 {
        world.start(n, config.clone(), &[1]);
    }
    world.run(secs(10));
    let dropped: u64 =
        (1..=3).map(|n| counter(&world, n, "gossip_dropped_older_than_ttl") + counter(&world, n, "gossip_dropped_unasked")).sum();
    assert!(dropped > 0);
    assert!(!world.one_cluster(&[1, 2, 3]));
}
