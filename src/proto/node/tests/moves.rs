//! Moves without faults: nothing lost, nothing doubled, nothing reordered, whatever the interleaving.

use std::time::Duration;

use crate::{
    Epoch,
    proto::{
        handoff::Word,
        link::LinkEvent,
        membership::{Event, MemberStatus, Removal},
        node::Answer,
        sharding::ControlFrame,
        wire::Frame,
    },
};

use super::{
    members::{addr, id},
    world::*,
};

/// Messages of all producers, with something else now and then.
fn traffic(world: &mut World, rounds: usize, mut now_and_then: impl FnMut(&mut World, u64)) {
    for _ in 0..rounds {
        let (n, s) = (world.rng.below(world.nodes.len() as u64) as usize, world.rng.below(2) as u32);
        world.send(n, shard(s));
        for _ in 0..world.rng.below(6) {
            world.step();
        }
        let dice = world.rng.below(40);
        now_and_then(world, dice);
        if world.rng.below(30) == 0 {
            world.now = world.now + Duration::from_millis(world.rng.below(400));
            world.run_timers();
        }
    }
    world.calm();
}

#[test]
fn moves_under_traffic_lose_and_reorder_nothing() {
    for seed in 0..150 {
        let mut world = World::new(3, seed);
        world.set_all(MemberStatus::Up);
        traffic(&mut world, 200, |world, dice| {
            if dice == 0 {
                let (s, to) = (world.rng.below(2) as u32, world.rng.below(3) as usize);
                let at = world.rng.below(3) as usize;
                world.move_shard(at, shard(s), to);
            }
        });
        world.check_order();
        world.check_all_handled();
        world.check_none_moving();
    }
}

/// Moves at random in a cluster of four of which two do not reach each other: nothing is lost or reordered, and no move is left. How much was passed on.
fn moves_apart(seed: u64, lose: fn(usize, usize, &Frame) -> bool, senders: [usize; 2]) -> u64 {
    let mut world = World::new(4, seed);
    world.lose = lose;
    world.set_all(MemberStatus::Up);
    world.calm();
    for round in 0..200 {
        // Whoever has to send to a shard straight over the link that is cut loses it.
        let (n, s) = (senders[round % 2], world.rng.below(2) as u32);
        world.send(n, shard(s));
        for _ in 0..world.rng.below(6) {
            world.step();
        }
        match world.rng.below(30) {
            0 => {
                let to = world.rng.below(4) as usize;
                world.move_shard(3, shard(s), to);
            }
            1 => {
                world.now = world.now + Duration::from_millis(world.rng.below(400));
                world.run_timers();
            }
            _ => {}
        }
    }
    world.calm();
    world.check_order();
    world.check_all_handled();
    world.check_none_moving();
    for s in 0..2 {
        world.check_confirmed(shard(s));
    }
    world.nodes.iter().map(passed_on).sum()
}

fn passed_on(node: &Node) -> u64 {
    node.core.counters().iter().find(|(name, _)| *name == "frame_detours").expect("it is counted").1
}

#[test]
fn moves_between_two_that_do_not_reach_each_other_go_by_way_of_others() {
    let apart = |from, to, _: &Frame| (from, to) == (1, 2) || (from, to) == (2, 1);
    let passed_on: u64 = (0..100).map(|seed| moves_apart(seed, apart, [0, 3])).sum();
    assert!(passed_on > 100, "{passed_on}");
}

#[test]
fn the_coordinator_need_not_reach_every_member() {
    let apart = |from, to, _: &Frame| (from, to) == (0, 2) || (from, to) == (2, 0);
    let passed_on: u64 = (0..100).map(|seed| moves_apart(seed, apart, [1, 3])).sum();
    assert!(passed_on > 1000, "{passed_on}");
}

#[test]
fn a_new_coordinator_counts_by_way_of_others_what_it_does_not_reach() {
    for seed in 0..50 {
        let mut world = World::settled(4, seed);
        world.lose = |from, to, _| (from, to) == (1, 2) || (from, to) == (2, 1);
        world.break_link(1, 2);
        world.calm();
        world.crash(0);
        (1..4).for_each(|n| world.learn_removal(n, 0, Removal::Downed { proven: true }));
        world.calm();
        for s in 0..SHARDS {
            world.send(3, shard(s));
        }
        world.calm();
        let handled: usize = world.nodes.iter().map(|node| node.worker.handled.len()).sum();
        assert_eq!(handled, SHARDS as usize, "seed {seed}: every shard runs somewhere");
        world.check_one_owner();
    }
}

#[test]
fn what_is_passed_on_is_of_members_and_goes_one_way_round_once() {
    let mut world = World::settled(4, 1);
    for peer in [1, 2] {
        world.link_event(3, LinkEvent::Up { peer: id(peer), addr: addr(peer), session: 1 });
    }
    let ack = |n: &mut World, at: usize, peer: usize, from: usize, to: usize| {
        let frame = Box::new(Frame::HandoffAck { shard: shard(0), upto: 1 });
        let count = |world: &World, name| world.nodes[at].core.counters().iter().find(|(n, _)| *n == name).map_or(0, |(_, n)| *n);
        let before = (count(n, "frame_detours"), count(n, "frames_discarded"));
        n.frame(at, peer, Frame::Detour { from: id(from), to: id(to), frame });
        (count(n, "frame_detours") - before.0, count(n, "frames_discarded") - before.1)
    };
    assert_eq!(ack(&mut world, 3, 1, 1, 2), (1, 0), "passed on");
    assert_eq!(ack(&mut world, 3, 1, 0, 2), (0, 1), "not the peer's own");
    assert_eq!(ack(&mut world, 3, 1, 1, 9), (0, 1), "to nobody");
    assert_eq!(ack(&mut world, 3, 1, 0, 3), (0, 0), "for this node");
    assert_eq!(ack(&mut world, 3, 1, 1, 3), (0, 0), "for this node, and of the peer itself");
    assert_eq!(ack(&mut world, 3, 1, 1, 1), (1, 0), "back again, as it wants");
    world.link_event(3, LinkEvent::Blocked { peer: id(2), shard: None });
    assert_eq!(ack(&mut world, 3, 1, 1, 2), (0, 1), "there is no room");
    world.link_event(3, LinkEvent::Writable { peer: id(2), shard: None });
    assert_eq!(ack(&mut world, 3, 1, 9, 3), (0, 1), "of nobody");
    assert_eq!(ack(&mut world, 3, 1, 3, 3), (0, 1), "of this node");
    assert_eq!(ack(&mut world, 3, 9, 9, 2), (0, 1), "by nobody");
    world.learn_removal(3, 0, Removal::Downed { proven: false });
    assert_eq!(ack(&mut world, 3, 1, 0, 3), (0, 1), "of one that was removed");
}

// failures: row 50
#[test]
fn refused_moves_lose_and_reorder_nothing_and_are_counted() {
    let mut counted = 0;
    for seed in 0..100 {
        let mut world = World::new(3, seed);
        world.set_all(MemberStatus::Up);
        traffic(&mut world, 200, |world, dice| {
            if dice < 2 {
                let (s, to) = (world.rng.below(2) as u32, world.rng.below(3) as usize);
                if dice == 1
                    && let Some(home) = world.home(shard(s))
                {
                    world.nodes[home].worker.refuse = true;
                }
                world.move_shard(0, shard(s), to);
            }
        });
        world.check_order();
        world.check_all_handled();
        world.check_none_moving();
        let at =
            world.nodes.iter().map(|node| node.core.counters().iter().find(|(name, _)| *name == "moves_refused").map_or(0, |(_, n)| *n));
        let at: Vec<u64> = at.collect();
        assert_eq!(at[1..], [0, 0], "the first is the coordinator");
        counted += at[0];
    }
    assert!(counted > 100, "{counted}");
}

#[test]
fn every_shard_has_one_home_after_start() {
    let world = World::settled(3, 1);
    let homes: Vec<_> = (0..SHARDS).map(|s| world.home(shard(s)).expect("it runs")).collect();
    for n in 0..3 {
        assert!((1..=2).contains(&homes.iter().filter(|h| **h == n).count()), "{homes:?}");
    }
    assert!(world.nodes.iter().all(|n| n.ready == [Ok(())]), "every node's type was taken in");
}

#[test]
fn a_leaving_node_hands_everything_off_and_says_when() {
    for leaver in 0..3 {
        let mut world = World::settled(3, 7 + leaver as u64);
        world.set_status(leaver, MemberStatus::Leaving);
        assert!(!world.nodes[leaver].core.membership.drained, "node {leaver} still hosts");
        traffic(&mut world, 60, |_, _| {});
        assert!((0..SHARDS).all(|s| world.home(shard(s)).is_some_and(|h| h != leaver)));
        assert!(!world.nodes[leaver].core.membership.drained, "not all know that it leaves");
        world.set_status(leaver, MemberStatus::Exiting);
        traffic(&mut world, 60, |_, _| {});
        world.drive();
        assert!(world.nodes[leaver].core.membership.drained);
        world.check_order();
    }
}

#[test]
fn who_has_said_that_it_is_done_is_given_nothing() {
    let mut world = World::new(3, 1);
    world.set_all(MemberStatus::Up);
    world.calm();
    world.set_status(2, MemberStatus::Leaving);
    let term = world.nodes[0].core.coordinator.heard();
    let assign = |epoch| ControlFrame::Assign { shard: shard(0), epoch: Epoch(epoch), home: id(2), base: Epoch(epoch), term };
    world.control(2, 0, assign(1));
    assert!(!world.nodes[2].core.membership.drained, "a worker runs it in a moment, and not all know that it leaves");
    world.calm();
    let home = world.home(shard(0));
    assert!(home.is_some_and(|home| home < 2), "it ran, and the authority took it away: {home:?}");
    world.set_status(2, MemberStatus::Exiting);
    world.drive();
    assert!(world.nodes[2].core.membership.drained);
    world.control(2, 0, assign(9));
    world.calm();
    assert!(world.nodes[2].core.membership.drained);
    assert_eq!(world.home(shard(0)), home, "the others may have removed it already");
}

#[test]
fn what_nobody_takes_over_stops_before_its_node_says_that_it_is_done() {
    let mut world = World::settled(2, 1);
    world.lose = |_, _, frame| matches!(frame, Frame::Control(ControlFrame::Move { .. }));
    world.set_status(1, MemberStatus::Leaving);
    world.calm();
    world.control(1, 0, ControlFrame::NoHost { ty: shard(0).ty });
    assert!(!world.nodes[1].core.membership.drained, "it hosts");
    world.set_status(1, MemberStatus::Exiting);
    assert!(!world.nodes[1].core.membership.drained, "it hosts until its workers have stopped");
    world.calm();
    assert!((0..SHARDS).all(|s| world.home(shard(s)) != Some(1)));
    assert!(world.nodes[1].core.membership.drained);
}

#[test]
fn who_leaves_with_all_others_stops_before_it_says_so() {
    let mut world = World::settled(2, 1);
    for status in [MemberStatus::Leaving, MemberStatus::Exiting] {
        (0..2).for_each(|n| world.set_status(n, status));
        assert!(world.nodes.iter().all(|n| !n.core.membership.drained), "it hosts, as {status:?}");
    }
    world.calm();
    assert!((0..SHARDS).all(|s| world.home(shard(s)).is_none()));
    assert!(world.nodes.iter().all(|n| n.core.membership.drained), "nobody is there to take them");
}

#[test]
fn a_joiner_gets_its_share_with_as_few_moves_as_it_takes() {
    let mut world = World::new(3, 3);
    world.set_status(0, MemberStatus::Up);
    world.set_status(1, MemberStatus::Up);
    (0..SHARDS).for_each(|s| world.send(0, shard(s)));
    world.calm();
    world.clear();
    world.set_status(2, MemberStatus::Up);
    world.calm();
    let moved = world.nodes[0].events.iter().filter(|e| matches!(e, Event::ShardMoved { .. })).count();
    assert_eq!(moved, 1);
    assert!((0..SHARDS).any(|s| world.home(shard(s)) == Some(2)));
}

#[test]
fn moves_are_announced_once_on_the_coordinator_and_on_both_ends() {
    let mut world = World::settled(3, 5);
    let key = (0..SHARDS).map(shard).find(|k| world.home(*k) == Some(1)).expect("node 1 hosts something");
    let id = world.move_shard(2, key, 2);
    world.calm();
    assert!(matches!(world.nodes[2].done[&id], Answer::Epoch(_)), "{:?}", world.nodes[2].done);
    for node in &world.nodes {
        let of_key = |e: &&Event| match e {
            Event::ShardMoving { shard, .. } | Event::ShardMoved { shard, .. } => *shard == key.shard,
            _ => false,
        };
        let seen: Vec<_> = node.events.iter().filter(of_key).collect();
        assert!(matches!(seen[..2], [Event::ShardMoving { .. }, Event::ShardMoved { .. }]), "{seen:?}");
    }
}

#[test]
fn a_new_home_learns_of_it_also_if_the_shard_overtakes_the_news() {
    let mut world = World::settled(3, 1);
    let key = (0..SHARDS).map(shard).find(|key| world.home(*key) == Some(1)).expect("each has some");
    world.lose = |_, to, frame| to == 2 && matches!(frame, Frame::Control(ControlFrame::Move { .. }));
    world.move_shard(1, key, 2);
    world.drive();
    assert_eq!(world.home(key), Some(2));
    assert_eq!(world.word(2, key), Word::local(0, Epoch(2)));
}

#[test]
fn who_leaves_waits_until_the_others_have_what_was_sent_but_not_for_ever() {
    for link_breaks in [false, true] {
        let mut world = World::settled(3, 1);
        world.lose = |_, to, frame| to == 0 && matches!(frame, Frame::Control(ControlFrame::Flush { .. }));
        world.set_status(2, MemberStatus::Leaving);
        world.calm();
        world.set_status(2, MemberStatus::Exiting);
        world.pass(Duration::from_secs(4));
        assert!(!world.nodes[2].core.membership.drained, "node 0 has not confirmed");
        if link_breaks {
            world.lose = |_, _, _| false;
            world.break_link(2, 0);
            world.send(0, shard(0));
            world.send(2, shard(0));
            world.drive();
            world.pass(Duration::from_millis(900));
        } else {
            world.pass(Duration::from_secs(1));
        }
        assert!(world.nodes[2].core.membership.drained, "{link_breaks}");
        let warned = world.nodes[2].events.iter().any(|event| matches!(event, Event::Warning { code: "W-LEAVE-002", .. }));
        assert_eq!(warned, !link_breaks);
    }
}
