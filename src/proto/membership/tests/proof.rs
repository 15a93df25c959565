//! Up to when a node is proven to be a member, across splits and pauses.

use super::{super::Event, fast, millis, secs, world::World};
use crate::{Config, Time, config::AutoSpan, config::Span};

const BEAT: std::time::Duration = millis(200);

/// Nobody is downed while the test runs.
fn patient() -> Config {
    let mut config = fast();
    config.downing.stable_after = AutoSpan::After(Span::secs(600));
    config
}

fn proven(world: &World, n: usize) -> Time {
    world.nodes[&n].machine.proven().unwrap()
}

/// Runs for so long, and nothing after that time is proven of those at any step.
fn proves_nothing_after(world: &mut World, span: std::time::Duration, nodes: &[usize], cut: Time) {
    for _ in 0..span.as_millis() / 50 {
        world.run(millis(50));
        for &n in nodes {
            assert!(proven(world, n) <= cut, "n{n} at {:?}: {:?}, cut off at {cut:?}: {}", world.now, proven(world, n), world.describe());
        }
    }
}

fn proves_all(world: &mut World, nodes: &[usize]) {
    let since = world.now;
    world.run_until(secs(3), "proof", |w| nodes.iter().all(|&n| proven(w, n) >= since));
}

#[test]
fn who_would_stop_proves_nothing_since_it_was_cut_off() {
    for seed in 0..10 {
        let mut world = World::cluster(seed, 7, &patient());
        proves_all(&mut world, &[1, 2, 3, 4, 5, 6, 7]);
        let cut = world.now;
        world.split(&[1, 2, 3, 4], &[5, 6, 7]);
        world.run(secs(2));
        proves_nothing_after(&mut world, secs(10), &[5, 6, 7], cut + 2 * BEAT);
        proves_all(&mut world, &[1, 2, 3, 4]);
        world.cut.clear();
        proves_all(&mut world, &[5, 6, 7]);
    }
}

#[test]
fn who_was_paused_over_the_cut_proves_nothing_when_it_hears_its_side() {
    for seed in 0..10 {
        let mut world = World::cluster(seed, 7, &patient());
        world.run(millis(60 * seed));
        let cut = world.now;
        world.nodes.get_mut(&7).unwrap().paused = true;
        world.split(&[1, 2, 3, 4], &[5, 6, 7]);
        world.run(secs(8));
        world.nodes.get_mut(&7).unwrap().paused = false;
        proves_nothing_after(&mut world, secs(10), &[7], cut);
        world.cut.clear();
        proves_all(&mut world, &[7]);
    }
}

#[test]
fn two_that_were_alone_and_hear_each_other_prove_nothing() {
    for seed in 0..10 {
        let mut world = World::cluster(seed, 7, &patient());
        world.run(millis(60 * seed));
        let cut = world.now;
        world.split(&[1, 2, 3, 4, 5], &[6, 7]);
        world.split(&[6], &[7]);
        world.run(secs(5));
        world.cut.retain(|link| ![(6, 7), (7, 6)].contains(link));
        proves_nothing_after(&mut world, secs(10), &[6, 7], cut);
        world.cut.clear();
        proves_all(&mut world, &[6, 7]);
    }
}

#[test]
fn when_the_others_of_its_side_are_gone_the_lost_are_not_back() {
    for seed in 0..10 {
        let mut world = World::cluster(seed, 9, &patient());
        world.run(millis(60 * seed));
        let cut = world.now;
        world.split(&[1, 2, 3, 4, 5], &[6, 7, 8, 9]);
        world.run(secs(3));
        [6, 7, 8].into_iter().for_each(|n| world.crash(n));
        proves_nothing_after(&mut world, secs(10), &[9], cut + 2 * BEAT);
    }
}

#[test]
fn a_pause_is_proven_to_be_over_with_the_next_beats_whoever_died_meanwhile() {
    for dead in [None, Some(1), Some(2), Some(3), Some(4), Some(5), Some(6)] {
        let mut world = World::cluster(1, 7, &patient());
        world.nodes.get_mut(&7).unwrap().paused = true;
        world.run(secs(8));
        dead.into_iter().for_each(|n| world.crash(n));
        world.nodes.get_mut(&7).unwrap().paused = false;
        let back = world.now;
        let took = world.run_until(secs(3), "proof", |w| proven(w, 7) >= back);
        assert!(took <= 2 * BEAT, "{took:?}, {dead:?}");
    }
}

#[test]
fn a_bad_link_does_not_keep_who_is_paused_again_and_again_from_its_proof() {
    let mut world = World::cluster(1, 5, &patient());
    world.split(&[1], &[2]);
    for _ in 0..10 {
        world.nodes.get_mut(&1).unwrap().paused = true;
        world.run(millis(700));
        world.nodes.get_mut(&1).unwrap().paused = false;
        let back = world.now;
        world.run_until(2 * BEAT, "proof", |w| proven(w, 1) >= back);
        world.run(millis(1300));
    }
}

#[test]
fn a_side_that_was_paused_as_a_whole_does_not_prove_itself() {
    for seed in 0..6 {
        for (nodes, here, monitors) in [(7, 3, 2), (13, 6, 5), (20, 9, 3)] {
            let mut config = patient();
            config.detector.monitors = monitors;
            let mut world = World::cluster(seed, nodes, &config);
            world.run(millis(60 * seed));
            let cut = world.now;
            let (left, gone): (Vec<usize>, Vec<usize>) = ((1..=nodes - here).collect(), (nodes - here + 1..=nodes).collect());
            world.split(&left, &gone);
            gone.iter().for_each(|n| world.nodes.get_mut(n).unwrap().paused = true);
            world.run(secs(8));
            gone.iter().for_each(|n| world.nodes.get_mut(n).unwrap().paused = false);
            proves_nothing_after(&mut world, secs(6), &gone, cut);
        }
    }
}

#[test]
fn a_side_came_to_lose_with_the_loss_that_made_it_so() {
    let mut world = World::cluster(1, 5, &patient());
    world.crash(5);
    world.crash(4);
    world.run(secs(10));
    proves_all(&mut world, &[1, 2, 3]);
    let cut = world.now;
    world.split(&[1], &[2, 3]);
    world.run_until(secs(3), "doubt", |w| w.nodes[&2].events.iter().any(|(_, e)| matches!(e, Event::Warning { code: "W-DOWN-001", .. })));
    assert!(proven(&world, 2) + 3 * BEAT >= cut, "not from the first loss on: {:?}, {cut:?}", proven(&world, 2));
    assert!(proven(&world, 2) <= cut + 2 * BEAT, "{:?}, {cut:?}", proven(&world, 2));
}

/// The leader of such a side downs all of it, and some of them may not hear that: they run nothing any longer by their own clocks.
#[test]
fn a_side_whose_leader_would_stop_it_proves_nothing_on_any_of_it() {
    for seed in 0..10 {
        let mut world = World::cluster(seed, 7, &patient());
        // As 7 is out of reach, the two that join wait.
        world.split(&[7], &[1, 2, 3, 4, 5, 6]);
        world.run(secs(5));
        for joiner in [8, 9] {
            world.split(&[7], &[joiner]);
            world.start(joiner, patient(), &[1]);
        }
        let known = |w: &World, n: usize| w.view(n).iter().filter(|(node, ..)| *node > 7).count();
        world.run_until(secs(5), "joiners known", |w| (1..=6).all(|n| known(w, n) == 2));
        proves_all(&mut world, &[1, 2, 3, 4, 5, 6]);
        let cut = world.now;
        // Four to three that are up, but whoever leads those may have raised the two.
        world.split(&[1, 2, 8, 9], &[3, 4, 5, 6]);
        // A joiner takes longer to be missed.
        world.run(secs(3));
        proves_nothing_after(&mut world, secs(10), &[3, 4, 5, 6], cut + 4 * BEAT);
    }
}

/// One joins just before the cut, and was never met by the other side: it does not agree that anybody there is silent.
#[test]
fn who_is_answered_by_a_joiner_alone_proves_nothing() {
    for seed in 0..10 {
        let mut world = World::cluster(seed, 3, &patient());
        world.run(secs(3));
        world.crash(3);
        world.run(secs(10));
        proves_all(&mut world, &[1, 2]);
        world.split(&[1], &[4]);
        world.start(4, patient(), &[2]);
        world.run_until(secs(5), "the joiner is known", |w| w.view(2).iter().any(|(node, ..)| *node == 4));
        let cut = world.now;
        world.split(&[1], &[2, 4]);
        world.run(secs(2));
        proves_nothing_after(&mut world, secs(20), &[2], cut + 2 * BEAT);
    }
}

/// All replies that were missed while it was alone are not the loss of its links, by which it would hold the next cut for bad luck.
#[test]
fn who_was_alone_sees_the_next_cut_in_time() {
    for seed in 0..30 {
        let mut world = World::cluster(seed, 4, &patient());
        world.loss = 0.05;
        world.run(secs(1));
        world.split(&[4], &[1, 2, 3]);
        world.run(7 * BEAT);
        world.cut.clear();
        world.run(BEAT);
        world.split(&[2, 4], &[1, 3]);
        let lost = |w: &World, n: usize| w.view(n).iter().filter(|(node, _, reachable)| [1, 3].contains(node) && !reachable).count();
        world.run_until(20 * BEAT, "the second cut is seen", |w| [2, 4].iter().all(|&n| lost(w, n) == 2));
    }
}

#[test]
fn who_hears_but_one_that_hears_all_is_proven_by_that() {
    for seed in 0..10 {
        let mut world = World::cluster(seed, 4, &patient());
        world.run(millis(60 * seed));
        // Half of them are not enough without the first member.
        world.cut.extend([(1, 4), (3, 4)]);
        world.run(secs(10));
        assert!(world.nodes[&4].machine.in_doubt(), "seed {seed}: {}", world.describe());
        for _ in 0..100 {
            world.run(millis(50));
            assert!(world.now.since(proven(&world, 4)) < 3 * BEAT, "seed {seed}: {}", world.describe());
        }
        // Nor does that one hear them any longer: at first it does not know.
        let cut = world.now;
        world.split(&[1, 3], &[2, 4]);
        proves_nothing_after(&mut world, secs(2), &[4], cut);
        proves_nothing_after(&mut world, secs(10), &[2, 4], cut + 2 * BEAT);
        world.cut.clear();
        proves_all(&mut world, &[1, 2, 3, 4]);
    }
}
