//! Workers that stand still, in a handler that does not return, while coordinators come and go.

use std::time::Duration;

use crate::{
    ShardKey,
    proto::{
        handoff::HandoffItem,
        membership::{MemberStatus, Removal},
        node::{Answer, Command},
        shard::ShardCommand,
        sharding::{ControlFrame, ShardState},
        wire::Frame,
    },
};

use super::world::*;

const DOWNED: Removal = Removal::Downed { proven: false };
const PROVEN: Removal = Removal::Downed { proven: true };

/// The worker of node 2 stands still, and the coordinator is gone. What lived on these two.
fn without_coordinator() -> (World, Vec<ShardKey>, Vec<ShardKey>) {
    let mut world = World::settled(4, 1);
    let (lost, held) = (homed(&world, 0), homed(&world, 2));
    assert!(!lost.is_empty() && !held.is_empty());
    world.nodes[2].stands_still = true;
    lose(&mut world, 0, PROVEN);
    (world, lost, held)
}

fn lose(world: &mut World, n: usize, how: Removal) {
    world.crash(n);
    (0..4).for_each(|at| world.learn_removal(at, n, how));
}

/// What lives on that node.
fn homed(world: &World, n: usize) -> Vec<ShardKey> {
    (0..SHARDS).map(shard).filter(|key| world.home(*key) == Some(n)).collect()
}

#[test]
fn shards_of_other_workers_are_placed_while_one_stands_still() {
    let mut world = World::settled(4, 1);
    let (lost, held) = (homed(&world, 0), homed(&world, 2));
    assert!(!lost.is_empty() && !held.is_empty());
    (0..2).for_each(|_| held.iter().for_each(|key| world.send(3, *key)));
    world.drive();
    world.nodes[2].stands_still = true;
    lose(&mut world, 0, PROVEN);
    lost.iter().for_each(|key| world.send(3, *key));
    world.pass(Duration::from_millis(2900));
    assert!(lost.iter().all(|key| world.home(*key).is_none()), "the worker may still answer");
    world.pass(Duration::from_millis(200));
    assert!(lost.iter().all(|key| matches!(world.home(*key), Some(1 | 3))), "who stands still is given nothing more");
    held.iter().for_each(|key| world.send(3, *key));
    world.pass(Duration::from_secs(60));
    // Its shards are given to nobody, and nobody moves them.
    let table = world.command(3, |id| Command::Table { id, ty: None });
    let to = world.move_shard(3, held[0], 1);
    world.drive();
    let Answer::Table { rows, .. } = &world.nodes[3].done[&table] else { panic!("{:?}", world.nodes[3].done[&table]) };
    for row in rows {
        let held = held.contains(&row.shard);
        assert_eq!(
            (row.state, row.owner.is_some()),
            if held { (ShardState::Unowned, false) } else { (ShardState::Active, true) },
            "{row:?}"
        );
    }
    assert!(matches!(&world.nodes[3].done[&to], Answer::Refused(why) if why.contains("stands still")));
    world.nodes[2].stands_still = false;
    world.calm();
    assert_eq!(homed(&world, 2), held, "it goes on where it was");
    world.check_confirmed(held[0]);
    let handled = |key: &ShardKey| world.nodes[2].worker.handled.iter().filter(|message| message.shard == *key).count();
    assert!(held.iter().all(|key| handled(key) == 3), "nothing is lost");
    world.check_order();
}

#[test]
fn what_a_silent_worker_may_run_waits_for_the_right_to_run_of_its_node() {
    let (mut world, _, held) = without_coordinator();
    world.pass(Duration::from_secs(5));
    lose(&mut world, 2, DOWNED);
    world.pass(Duration::from_millis(1900));
    assert!(held.iter().all(|key| world.home(*key).is_none()), "the dead node may still run it");
    world.pass(Duration::from_millis(200));
    assert!(held.iter().all(|key| world.home(*key).is_some()));
    world.check_confirmed(held[0]);
}

#[test]
fn a_node_whose_worker_stands_still_may_be_the_next_coordinator() {
    let (mut world, _, held) = without_coordinator();
    world.pass(Duration::from_secs(5));
    lose(&mut world, 1, PROVEN);
    (0..SHARDS).for_each(|s| world.send(3, shard(s)));
    world.pass(Duration::from_secs(4));
    for key in (0..SHARDS).map(shard).filter(|key| !held.contains(key)) {
        assert_eq!(world.home(key), Some(3));
    }
    world.nodes[2].stands_still = false;
    world.calm();
    assert!(held.iter().all(|key| world.home(*key) == Some(2)));
    world.check_confirmed(held[0]);
}

#[test]
fn an_answer_that_was_lost_is_given_again() {
    let (mut world, lost, held) = without_coordinator();
    lost.iter().for_each(|key| world.send(3, *key));
    world.pass(Duration::from_secs(2));
    world.lose = |from, to, _| (from, to) == (2, 1);
    world.pass(Duration::from_secs(2));
    assert!(lost.iter().all(|key| world.home(*key).is_none()));
    world.lose = |_, _, _| false;
    world.pass(Duration::from_secs(2));
    assert!(lost.iter().all(|key| world.home(*key).is_some()));
    world.lose = |from, to, _| (from, to) == (2, 1);
    world.nodes[2].stands_still = false;
    world.pass(Duration::from_secs(2));
    world.lose = |_, _, _| false;
    world.calm();
    world.check_confirmed(held[0]);
}

#[test]
fn what_came_behind_the_question_is_in_the_answer() {
    let mut world = World::settled(4, 1);
    let key = homed(&world, 3)[0];
    world.nodes[2].stands_still = true;
    world.lose = |from, to, frame| (from, to) == (3, 2) && matches!(frame, Frame::Handoff { .. });
    world.move_shard(0, key, 2);
    world.drive();
    lose(&mut world, 0, PROVEN);
    world.pass(Duration::from_secs(5));
    // It is sent again.
    world.lose = |_, _, _| false;
    world.pass(Duration::from_secs(10));
    assert_eq!(world.nodes[3].core.relay.unacknowledged(), 0);
    lose(&mut world, 3, PROVEN);
    world.send(1, key);
    world.pass(Duration::from_secs(5));
    assert_eq!(world.home(key), None);
    world.nodes[2].stands_still = false;
    world.calm();
    assert_eq!(world.home(key), Some(2));
}

#[test]
fn workers_that_stand_still_under_moves_and_crashes_keep_order_and_one_owner() {
    for seed in 0..150 {
        let mut world = World::new(4, seed);
        world.set_all(MemberStatus::Up);
        let mut to_learn: Vec<(usize, usize)> = vec![];
        for round in 0..400 {
            let (n, s) = (world.rng.below(4) as usize, world.rng.below(2) as u32);
            if world.nodes[n].alive {
                world.send(n, shard(s));
            }
            (0..world.rng.below(6)).for_each(|_| _ = world.step());
            if world.rng.below(20) == 0 {
                let (at, to) = (world.rng.below(4) as usize, world.rng.below(4) as usize);
                if world.nodes[at].alive {
                    world.move_shard(at, shard(s), to);
                }
            }
            if world.rng.below(40) == 0 {
                world.nodes[n].stands_still ^= true;
            }
            // Coordinators go one after the other.
            if let Some(victim) = [130, 260].iter().position(|at| *at == round) {
                world.crash(victim);
                to_learn.extend((0..4).filter(|at| *at != victim).map(|at| (at, victim)));
            }
            if !to_learn.is_empty() && world.rng.below(2) == 0 {
                let i = world.rng.below(to_learn.len() as u64) as usize;
                let (at, victim) = to_learn.swap_remove(i);
                world.learn_removal(at, victim, DOWNED);
            }
            if world.rng.below(20) == 0 {
                world.now = world.now + Duration::from_millis(world.rng.below(400));
                world.run_timers();
            }
            if to_learn.is_empty() && world.rng.below(60) == 0 {
                world.pass(Duration::from_secs(5));
            }
        }
        to_learn.into_iter().for_each(|(at, victim)| world.learn_removal(at, victim, DOWNED));
        if seed % 2 == 0 {
            world.pass(Duration::from_secs(10));
        }
        world.nodes.iter_mut().for_each(|node| node.stands_still = false);
        world.calm();
        world.check_order();
        for (n, node) in world.nodes.iter().enumerate().filter(|(_, node)| node.alive) {
            assert_eq!(node.worker.waiting(), 0, "seed {seed}, node {n}: nothing waits for ever{}", node.worker.describe());
            assert_eq!(node.core.region.buffered(), 0, "seed {seed}, node {n}");
            assert_eq!(node.core.relay.unacknowledged(), 0, "seed {seed}, node {n}");
        }
        assert!((0..2).all(|s| world.home(shard(s)).is_some()), "seed {seed}: every shard has an owner");
        (0..2).for_each(|s| world.check_confirmed(shard(s)));
        world.check_none_moving();
    }
}

/// Straight, or by way of others.
fn is_handoff(frame: &Frame) -> bool {
    matches!(frame, Frame::Handoff { .. } | Frame::Detour { .. })
}

fn is_move(frame: &Frame) -> bool {
    matches!(frame, Frame::Control(ControlFrame::Move { .. }))
}

/// A shard comes from node 3 to node 2, which has not heard of the move, and has answered the next coordinator without its worker.
fn with_handover_to_silent_worker() -> (World, ShardKey) {
    let mut world = World::settled(4, 1);
    let key = homed(&world, 3)[0];
    world.lose = |from, to, frame| to == 2 && (from == 3 && is_handoff(frame) || from == 0 && is_move(frame));
    world.move_shard(3, key, 2);
    world.drive();
    world.nodes[2].stands_still = true;
    lose(&mut world, 0, PROVEN);
    world.lose = |from, to, frame| to == 2 && (is_handoff(frame) || from == 1 && is_move(frame));
    world.pass(Duration::from_secs(4));
    world.lose = |from, to, frame| to == 2 && from == 1 && is_move(frame);
    world.pass(Duration::from_secs(60));
    assert!(!was_given(&world, key), "the coordinator was not told of it");
    (world, key)
}

/// Whether the hand-over of the shard stands in the ring of node 2's worker.
fn was_given(world: &World, key: ShardKey) -> bool {
    let is_it =
        |command: &ShardCommand| matches!(command, ShardCommand::Handoff { shard, item: HandoffItem::Transfer(_), .. } if *shard == key);
    world.nodes[2].to_worker.iter().any(is_it)
}

#[test]
fn a_handover_to_a_silent_worker_waits_until_its_move_is_heard_of() {
    let (mut world, key) = with_handover_to_silent_worker();
    world.lose = |_, to, frame| to == 2 && is_handoff(frame);
    world.pass(Duration::from_secs(2));
    assert!(was_given(&world, key), "its sender need not say it again");
    world.nodes[2].stands_still = false;
    world.calm();
    assert_eq!(world.home(key), Some(2));
    world.check_confirmed(key);
    world.check_none_moving();
}

#[test]
fn a_handover_to_a_silent_worker_goes_to_it_when_that_has_answered() {
    let (mut world, key) = with_handover_to_silent_worker();
    world.lose = |from, to, frame| to == 2 && (is_handoff(frame) || from == 1 && is_move(frame));
    world.nodes[2].stands_still = false;
    world.drive();
    assert_eq!(world.home(key), Some(2));
    world.lose = |_, _, _| false;
    world.calm();
    world.check_confirmed(key);
    world.check_none_moving();
}
