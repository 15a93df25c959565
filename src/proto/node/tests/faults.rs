//! Crashes and broken links.

use std::time::Duration;

use crate::{
    Config, Epoch, Term, Time,
    config::Span,
    proto::{
        handoff::{Ask, DropReason, Envelope, Forwarded, HandoffItem, Item, Mode, ReplyBody, Word},
        membership::{Ending, MemberOutput, MemberStatus, Removal},
        node::{Answer, Command, Effect},
        shard::ShardReport,
    },
};

use super::{members::id, world::*};

const DOWNED: Removal = Removal::Downed { proven: false };
const PROVEN: Removal = Removal::Downed { proven: true };

#[test]
fn a_dead_home_is_replaced_when_its_right_to_run_is_over() {
    let mut world = World::settled(3, 1);
    let lost: Vec<_> = (0..SHARDS).map(shard).filter(|k| world.home(*k) == Some(2)).collect();
    world.crash(2);
    world.drive();
    (0..2).for_each(|at| world.learn_removal(at, 2, DOWNED));
    world.send(0, lost[0]);
    world.pass(Duration::from_millis(1900));
    assert_eq!(world.home(lost[0]), None, "the dead node may still run it");
    world.pass(Duration::from_millis(200));
    assert!(lost.iter().all(|k| world.home(*k).is_some()), "re-homed, whether asked for or not");
    world.calm();
    assert!(world.nodes[..2].iter().any(|n| n.worker.handled.iter().any(|m| m.shard == lost[0])), "what waited is delivered");
}

#[test]
fn a_proven_death_needs_no_wait() {
    let mut world = World::settled(3, 1);
    let lost = (0..SHARDS).map(shard).find(|k| world.home(*k) == Some(2)).expect("node 2 hosts something");
    world.crash(2);
    (0..2).for_each(|at| world.learn_removal(at, 2, PROVEN));
    world.drive();
    assert!(world.home(lost).is_some());
}

#[test]
fn crashes_under_moves_keep_order_and_one_owner() {
    for seed in 0..150 {
        let mut world = World::new(4, seed);
        world.set_all(MemberStatus::Up);
        let victim = world.rng.below(4) as usize;
        let mut to_learn: Vec<usize> = vec![];
        for round in 0..240 {
            let (n, s) = (world.rng.below(4) as usize, world.rng.below(2) as u32);
            if world.nodes[n].alive {
                world.send(n, shard(s));
            }
            (0..world.rng.below(6)).for_each(|_| _ = world.step());
            if world.rng.below(25) == 0 {
                let (at, to) = (world.rng.below(4) as usize, world.rng.below(4) as usize);
                if world.nodes[at].alive {
                    world.move_shard(at, shard(s), to);
                }
            }
            if round == 120 {
                world.crash(victim);
                to_learn = (0..4).filter(|n| *n != victim).collect();
            }
            if !to_learn.is_empty() && world.rng.below(6) == 0 {
                let i = world.rng.below(to_learn.len() as u64) as usize;
                let at = to_learn.swap_remove(i);
                world.learn_removal(at, victim, DOWNED);
            }
            if world.rng.below(20) == 0 {
                world.now = world.now + Duration::from_millis(world.rng.below(500));
                world.run_timers();
            }
        }
        to_learn.into_iter().for_each(|at| world.learn_removal(at, victim, DOWNED));
        world.calm();
        world.check_order();
        for (n, node) in world.nodes.iter().enumerate().filter(|(_, node)| node.alive) {
            assert_eq!(node.worker.waiting(), 0, "seed {seed}, node {n}: nothing waits for ever{}", node.worker.describe());
            assert_eq!(node.core.region.buffered(), 0, "seed {seed}, node {n}");
            assert_eq!(node.core.region.held(), 0, "seed {seed}, node {n}");
            assert_eq!(node.core.relay.unacknowledged(), 0, "seed {seed}, node {n}");
        }
        assert!((0..2).all(|s| world.home(shard(s)).is_some()), "seed {seed}: every shard has an owner");
        world.check_none_moving();
    }
}

#[test]
fn broken_links_lose_only_what_was_in_them_and_keep_order() {
    for seed in 0..100 {
        let mut world = World::new(3, seed);
        world.set_all(MemberStatus::Up);
        for _ in 0..200 {
            let (n, s) = (world.rng.below(3) as usize, world.rng.below(2) as u32);
            world.send(n, shard(s));
            (0..world.rng.below(6)).for_each(|_| _ = world.step());
            match world.rng.below(40) {
                0 => {
                    let to = world.rng.below(3) as usize;
                    world.move_shard(n, shard(s), to);
                }
                1 => {
                    let other = (n + 1) % 3;
                    world.break_link(n, other);
                }
                2 => {
                    world.now = world.now + Duration::from_millis(world.rng.below(800));
                    world.run_timers();
                }
                _ => {}
            }
        }
        world.calm();
        world.check_order();
        for (n, node) in world.nodes.iter().enumerate() {
            assert_eq!(node.worker.waiting(), 0, "seed {seed}, node {n}: nothing waits for ever{}", node.worker.describe());
            assert_eq!(node.core.relay.unacknowledged(), 0, "seed {seed}, node {n}");
        }
        assert!((0..2).all(|s| world.home(shard(s)).is_some()), "seed {seed}: every shard has an owner");
        world.check_none_moving();
    }
}

#[test]
fn the_death_of_the_coordinator_loses_no_assignment() {
    let mut world = World::settled(3, 11);
    let homes: Vec<_> = (0..SHARDS).map(|s| world.home(shard(s))).collect();
    let before: Vec<_> = (0..SHARDS).map(|s| world.nodes[2].core.region.known(shard(s))).collect();
    world.crash(0);
    (1..3).for_each(|at| world.learn_removal(at, 0, DOWNED));
    world.calm();
    // What no survivor had heard of is allocated when it is asked for.
    (0..SHARDS).for_each(|s| world.send(2, shard(s)));
    world.calm();
    for s in 0..SHARDS {
        let home = world.home(shard(s));
        match homes[s as usize] {
            Some(0) => assert!(home.is_some_and(|h| h > 0), "shard {s} has a new home"),
            other => assert_eq!(home, other, "shard {s} stays"),
        }
    }
    assert!(world.nodes[1].core.coordinator.is_seated());
    for s in 0..SHARDS {
        let after = world.nodes[2].core.region.known(shard(s)).expect("it was used");
        assert!(before[s as usize].is_none_or(|(epoch, _)| epoch <= after.0), "epochs never go back");
    }
    assert!(world.nodes[1..].iter().all(|n| n.undelivered.is_empty()));
}

#[test]
fn asks_are_answered_wherever_their_message_ends() {
    let mut config = Config::default();
    config.sharding.buffer_messages = 4;
    let mut world = World::with(1, 1, config);
    let deadline = world.now + Duration::from_secs(2);
    let ask = |correlation| Some(Ask { node: id(0), correlation, deadline });
    // Nobody is up: the buffer takes its share, the rest is refused at once, and what waits expires.
    world.send_with(0, shard(0), ask(1));
    world.send_with(0, shard(0), ask(2));
    world.drive();
    assert_eq!(world.nodes[0].replies, [(2, ReplyBody::Dropped(DropReason::BufferFull))]);
    world.pass(Duration::from_secs(3));
    assert_eq!(world.nodes[0].replies[1], (1, ReplyBody::Dropped(DropReason::Expired)));
    assert_eq!(world.nodes[0].undelivered.len(), 2, "each is a dead letter as well");
}

#[test]
fn a_downed_node_stops_at_once_and_answers_what_waits() {
    let mut world = World::settled(2, 2);
    let table = world.command(1, |id| Command::Table { id, ty: None });
    world.nodes[1].core.membership.outputs.push_back(MemberOutput::Ended(Ending::Downed("by others".into())));
    world.nodes[1].core.finish(world.now);
    let mut effects = vec![];
    while let Some(effect) = world.nodes[1].core.poll_effect() {
        effects.push(effect);
    }
    assert_eq!(effects[0], Effect::HostingUntil(Time::ZERO));
    assert!(matches!(&effects[1], Effect::Worker { command: crate::proto::shard::ShardCommand::Stop, .. }));
    assert!(effects.contains(&Effect::Done { id: table, answer: Answer::NoAuthority }));
    assert!(matches!(effects.last(), Some(Effect::Ended(_))));
    let late = world.command(1, |id| Command::Links { id });
    assert!(matches!(&world.nodes[1].done[&late], Answer::Refused(why) if why.contains("start it again")));
    // A worker had sent these on before it was told to stop: one to the next home, one back.
    let envelope = |text: &[u8]| Envelope::new(shard(1), None, b"k", text).expect("the key is short");
    let item = Item::Msg { tag: Epoch(1), mode: Mode::Settled, envelope: envelope(b"on") };
    let item = HandoffItem::Forwarded(Forwarded { aim: Epoch(2), after: vec![], stream: id(0), item });
    let now = world.now;
    let core = &mut world.nodes[1].core;
    core.handle_report(now, 0, ShardReport::Handoff { to: id(0), shard: shard(1), item });
    core.handle_report(now, 0, ShardReport::Back { lane: LANE, envelope: envelope(b"back") });
    world.send(1, shard(0));
    world.drive();
    let undelivered = &world.nodes[1].undelivered;
    assert_eq!(undelivered.len(), 3);
    assert!(undelivered.iter().all(|(_, reason)| *reason == DropReason::Shutdown));
}

/// A node that had a cluster of its own, with terms above those there.
#[test]
fn who_moves_to_another_cluster_leaves_the_terms_of_its_own_behind() {
    let mut world = World::new(2, 1);
    world.set_status(0, MemberStatus::Up);
    world.calm();
    world.nodes[1].core.coordinator.hear(Term::new(1 << 40));
    world.nodes[1].core.membership.cluster = 2;
    world.set_status(1, MemberStatus::Up);
    world.calm();
    (0..SHARDS).for_each(|n| world.send(0, shard(n)));
    world.calm();
    let mut homes: Vec<_> = (0..SHARDS).map(|n| world.home(shard(n))).collect();
    homes.sort_unstable();
    homes.dedup();
    assert_eq!(homes, [Some(0), Some(1)], "and runs what it is given there");
}

#[test]
fn who_runs_shards_moves_to_no_other_cluster() {
    let mut world = World::new(1, 1);
    world.set_status(0, MemberStatus::Up);
    world.send(0, shard(0));
    world.calm();
    assert_eq!(world.home(shard(0)), Some(0));
    let told = world.command(0, |id| Command::Join { id, seeds: vec![] });
    assert!(matches!(&world.nodes[0].done[&told], Answer::Refused(why) if why.contains("have homes already")), "{:?}", world.nodes[0].done);
    // It began to run them while it was on its way.
    world.nodes[0].core.membership.cluster = 2;
    world.set_status(0, MemberStatus::Up);
    world.drive();
    assert_eq!(world.home(shard(0)), None);
}

#[test]
fn what_was_accepted_waits_for_a_blocked_link_and_control_passes() {
    let mut world = World::settled(2, 2);
    let key = (0..SHARDS).map(shard).find(|k| world.home(*k) == Some(1)).expect("node 1 hosts something");
    world.link_event(0, crate::proto::link::LinkEvent::Blocked { peer: id(1), shard: None });
    assert_eq!(world.word(0, key), Word::NO_ROOM, "senders get their messages back");
    // These were in a ring when the word changed.
    (0..3).for_each(|_| world.send(0, key));
    world.drive();
    assert_eq!((world.nodes[0].core.region.buffered(), world.nodes[1].worker.handled.len()), (3, 0));
    world.pass(Duration::from_secs(300));
    assert_eq!(world.nodes[0].core.region.buffered(), 3, "they have a home, and are not given up while it lives");
    world.link_event(0, crate::proto::link::LinkEvent::Writable { peer: id(1), shard: None });
    world.drive();
    assert_eq!((world.nodes[0].core.region.buffered(), world.nodes[1].worker.handled.len()), (0, 3));
    assert_eq!(world.word(0, key), Word::ELSEWHERE);
    // A move away from the node behind the link needs no room for messages.
    world.link_event(0, crate::proto::link::LinkEvent::Blocked { peer: id(1), shard: None });
    world.send(0, key);
    world.move_shard(0, key, 0);
    world.calm();
    assert_eq!(world.home(key), Some(0), "control passes");
    world.link_event(0, crate::proto::link::LinkEvent::Writable { peer: id(1), shard: None });
    world.send(0, key);
    world.calm();
    assert!(world.nodes[0].undelivered.is_empty());
    assert_eq!(world.nodes.iter().map(|n| n.worker.handled.len()).sum::<usize>(), 5);
    world.check_order();
}

#[test]
fn an_unanswering_authority_is_said_to_be_one() {
    let mut world = World::settled(2, 2);
    world.lose = |_, to, _| to == 0;
    let id = world.command(1, |id| Command::Table { id, ty: None });
    world.pass(Duration::from_millis(2900));
    assert!(!world.nodes[1].done.contains_key(&id));
    world.pass(Duration::from_millis(200));
    assert_eq!(world.nodes[1].done[&id], Answer::NoAuthority);
}

#[test]
fn too_few_members_allocate_nothing() {
    let mut config = Config::default();
    config.cluster.min_members = 3;
    config.sharding.handoff_timeout = Span::millis(600_000);
    let mut world = World::with(3, 4, config);
    world.set_status(0, MemberStatus::Up);
    world.set_status(1, MemberStatus::Up);
    world.send(0, shard(0));
    world.calm();
    assert_eq!(world.home(shard(0)), None);
    world.set_status(2, MemberStatus::Up);
    world.drive();
    assert!(world.home(shard(0)).is_some(), "on the event, not on a tick");
    assert_eq!(world.nodes.iter().map(|n| n.worker.handled.len()).sum::<usize>(), 1);
}
