//! Commands, registration, and frames that must not be believed.

use std::time::Duration;

use crate::{
    Epoch, ShardId, ShardKey, Term, TypeId,
    proto::{
        handoff::Item,
        membership::{Event, MemberOutput, MemberStatus, Removal},
        node::{Answer, Command, Effect},
        sharding::{ControlFrame, ShardState, TERM_ACCEPTED_MAX, TypeInfo, UNSIZED},
        wire::Frame,
    },
};

use super::{members::id, world::*};

#[test]
fn the_table_names_every_shard_and_its_home() {
    let mut world = World::settled(3, 1);
    let cmd = world.command(2, |id| Command::Table { id, ty: None });
    world.drive();
    let Answer::Table { types, rows } = &world.nodes[2].done[&cmd] else { panic!("{:?}", world.nodes[2].done) };
    assert_eq!((types.len(), rows.len()), (1, SHARDS as usize));
    for row in rows {
        assert_eq!(row.state, ShardState::Active);
        assert_eq!(row.owner, world.home(row.shard).map(id));
    }
}

#[test]
fn a_batch_of_a_peer_goes_past_the_core_behind_what_its_sign_of_life_has_brought_about() {
    let mut world = World::settled(3, 1);
    let at = |ms| world.now + Duration::from_millis(ms);
    let moments = [1, 2, 3, 4].map(at);
    let core = &mut world.nodes[0].core;
    core.membership.signs.clear();
    assert!(core.sign(moments[0], id(1)) && core.sign(moments[0], id(1)));
    assert_eq!(core.membership.signs, [id(1)], "once per batch");
    core.membership.outputs.push_back(MemberOutput::Event(Event::Reachable { node: id(1) }));
    assert!(!core.sign(moments[1], id(1)));
    assert!(matches!(core.poll_effect(), Some(Effect::Event(Event::Reachable { .. }))));
    assert!(core.sign(moments[1], id(1)));
    assert_eq!(core.membership.signs, [id(1), id(1)]);
    // Nor does a stranger, or who was removed.
    assert!(!core.sign(moments[2], id(7)));
    world.crash(2);
    world.learn_removal(0, 2, Removal::Left);
    let core = &mut world.nodes[0].core;
    assert!(!core.sign(moments[3], id(2)));
    assert_eq!(core.membership.signs, [id(1), id(1)]);
}

#[test]
fn moves_that_make_no_sense_are_refused_with_the_reason() {
    let mut world = World::settled(2, 1);
    let key = shard(0);
    let home = world.home(key).expect("it runs");
    let ask = |world: &mut World, key, to: usize| {
        let cmd = world.move_shard(1, key, to);
        world.drive();
        world.nodes[1].done[&cmd].clone()
    };
    assert!(matches!(ask(&mut world, key, home), Answer::Refused(why) if why.contains("already")));
    assert!(matches!(ask(&mut world, shard(SHARDS), 1 - home), Answer::Refused(why) if why.contains("4 shards")));
    let cmd = world.command(1, |cmd| Command::MoveShard { id: cmd, shard: key, to: id(9) });
    assert_eq!(world.nodes[1].done[&cmd], Answer::NoMember(id(9)));
    world.set_status(1 - home, MemberStatus::Leaving);
    world.calm();
    let home = world.home(key).expect("it runs");
    assert!(matches!(ask(&mut world, key, 1 - home), Answer::Refused(why) if why.contains("leaving")));
}

// failures: row 14
#[test]
fn another_number_of_shards_is_refused_with_both() {
    let mut world = World::settled(2, 1);
    let odd = TypeInfo { name: "cart".into(), ty: TypeId::of("cart"), shards: 7, host: true };
    world.command(0, |_| Command::Register { info: TypeInfo { shards: 9, ..odd.clone() } });
    world.drive();
    world.command(1, |_| Command::Register { info: odd.clone() });
    world.drive();
    assert_eq!(world.nodes[0].ready, [Ok(()), Ok(())]);
    let refused = world.nodes[1].ready[1].as_ref().expect_err("the numbers differ");
    assert!(["`cart`", "7 shards", "9 is in force"].iter().all(|part| refused.contains(part)), "{refused}");
    world.command(1, |_| Command::Register { info: TypeInfo { shards: 8, ..odd } });
    assert!(world.nodes[1].ready[2].as_ref().is_err_and(|why| why.contains("cannot have 8 as well")));
}

#[test]
fn a_sender_takes_the_number_that_is_in_force_and_keeps_what_waits_in_order() {
    let mut world = World::new(3, 1);
    let info = |shards, host| TypeInfo { name: "cart".into(), ty: TypeId::of("cart"), shards, host };
    let waiting = crate::ShardKey { ty: TypeId::of("cart"), shard: UNSIZED };
    world.command(2, |_| Command::Register { info: info(0, false) });
    world.set_all(MemberStatus::Up);
    (0..3).for_each(|_| world.send(2, waiting));
    world.calm();
    assert_eq!(world.nodes[2].core.region.buffered(), 3);
    assert_eq!(world.nodes[2].ready.len(), 1, "only the type that every node of this world has: nobody knows the number of the other");
    world.command(1, |_| Command::Register { info: info(9, true) });
    world.drive();
    assert_eq!(world.nodes[2].ready[1], Ok(()), "on the event, not on a tick");
    assert_eq!(world.nodes[2].core.region.buffered(), 0);
    assert_eq!(world.nodes[1].worker.handled.len(), 3);
    // What was in the ring at that moment goes the same way.
    world.send(2, waiting);
    world.drive();
    assert_eq!(world.nodes[1].worker.handled.len(), 4);
    assert!(world.nodes[1].worker.handled.iter().all(|envelope| envelope.shard.shard.0 < 9));
    world.check_order();
    // Who comes later hears it at once; another number is still refused, on a node that sends too.
    world.command(0, |_| Command::Register { info: info(0, false) });
    world.drive();
    assert_eq!(world.nodes[0].ready[1], Ok(()));
    world.command(0, |_| Command::Register { info: info(10, true) });
    assert!(world.nodes[0].ready[2].as_ref().is_err_and(|why| why.contains("cannot have 10 as well")));
}

#[test]
fn a_number_of_shards_that_was_lost_on_the_way_is_asked_for_again() {
    let mut world = World::new(3, 1);
    let info = |shards, host| TypeInfo { name: "cart".into(), ty: TypeId::of("cart"), shards, host };
    world.command(2, |_| Command::Register { info: info(0, false) });
    world.set_all(MemberStatus::Up);
    world.calm();
    world.lose = |_, to, frame| to == 2 && matches!(frame, Frame::Control(ControlFrame::Sized { .. }));
    world.command(1, |_| Command::Register { info: info(9, true) });
    world.drive();
    assert_eq!(world.nodes[2].ready.len(), 1);
    world.lose = |_, _, _| false;
    world.pass(std::time::Duration::from_secs(2));
    assert_eq!(world.nodes[2].ready[1..], [Ok(())]);
}

#[test]
fn decisions_of_an_older_term_are_void() {
    let mut world = World::settled(2, 1);
    let key = shard(0);
    let (epoch, home) = world.nodes[1].core.region.known(key).or(world.nodes[0].core.region.known(key)).expect("it is known");
    world.nodes[1].core.coordinator.hear(Term(5));
    let stale = ControlFrame::Assign { shard: key, epoch: Epoch(epoch.get() + 5), home: id(1), base: epoch, term: Term(4) };
    world.nodes[1].core.handle_frame(world.now, id(0), Frame::Control(stale));
    world.drive();
    assert_eq!(world.home(key).map(id), Some(home));
}

// failures: row 69
#[test]
fn whoever_counts_on_from_the_largest_numbers_that_are_taken_has_room() {
    for seed in 0..20 {
        let mut world = World::settled(4, seed);
        let (epoch, term) = (Epoch::ACCEPTED_MAX, TERM_ACCEPTED_MAX);
        for s in 0..SHARDS {
            let home = world.home(shard(s)).expect("it runs");
            let node = (home + 1) % 4;
            let signs = [Item::Fence { p: epoch }, Item::Over { p: epoch, tag: epoch }, Item::Settle { tag: epoch }];
            signs.into_iter().for_each(|item| world.frame(home, node, Frame::Item { shard: shard(s), item }));
            (0..4).filter(|n| *n != home).for_each(|n| {
                world.control(n, home, ControlFrame::Route { shard: shard(s), epoch, home: id(home) });
                world.frame(n, home, Frame::StreamAck { shard: shard(s), p: epoch });
            });
            if home > 0 {
                world.control(0, home, ControlFrame::Owned { shard: shard(s), epoch, can_start: true });
            }
            world.drive();
        }
        world.calm();
        (0..4).for_each(|n| world.control(n, (n + 1) % 4, ControlFrame::Recount { term, have: 0 }));
        world.calm();
        // Those who come after have heard of nothing higher, and go on from there.
        for gone in 0..2 {
            world.crash(gone);
            (gone + 1..4).for_each(|n| world.learn_removal(n, gone, Removal::Downed { proven: true }));
            world.calm();
            for s in 0..SHARDS {
                world.move_shard(3, shard(s), 2 + s as usize % 2);
                world.send(3, shard(s));
            }
            world.calm();
        }
        let highest = (0..SHARDS).filter_map(|s| world.nodes[3].core.region.known(shard(s))).map(|(epoch, _)| epoch).max();
        assert!(highest > Some(epoch), "{highest:?}");
        assert!(world.nodes[3].core.coordinator.heard() > term);
    }
}

// failures: row 69
#[test]
fn what_a_node_states_that_is_no_member_is_void_and_counted() {
    let mut world = World::settled(3, 4);
    let key = (0..SHARDS).map(shard).find(|k| world.home(*k) == Some(1)).expect("node 1 hosts something");
    let known = |world: &World| (0..3).map(|n| world.nodes[n].core.region.known(key)).collect::<Vec<_>>();
    let (epoch, before, term) = (Epoch(1000), known(&world), world.nodes[0].core.coordinator.heard());
    let dropped = |world: &World, n: usize| world.nodes[n].core.counts.control_dropped;
    let to_me = |n: usize| ControlFrame::Assign { shard: key, epoch, home: id(n), base: epoch, term };
    for n in 0..3 {
        let statements = [
            ControlFrame::Route { shard: key, epoch, home: id(7) },
            to_me(n),
            ControlFrame::Move { shard: key, epoch, from: id(1), to: id(7), base: epoch, term },
            ControlFrame::Owned { shard: key, epoch, can_start: true },
            ControlFrame::Recount { term: Term(term.get() << 1), have: 0 },
        ];
        let counted = dropped(&world, n);
        let said = statements.len() as u64;
        statements.into_iter().for_each(|frame| world.control(n, 7, frame));
        assert_eq!(dropped(&world, n) - counted, said, "at node {n}");
    }
    world.calm();
    assert_eq!((known(&world), world.nodes[0].core.coordinator.heard()), (before, term));
    // It may ask: the members may know of it later than it does.
    let ask = ControlFrame::WhereIs { shard: key, shards: SHARDS };
    let counted = dropped(&world, 0);
    world.control(0, 7, ask.clone());
    world.control(0, 7, ControlFrame::Register { number: 1, types: vec![info(false)] });
    assert_eq!(dropped(&world, 0) - counted, 1, "an answer for which there is no way: its types wait until it is a member");
    world.control(1, 7, ask);
    assert_eq!(dropped(&world, 1), 6, "node 1 is not the authority");
    // Nor is a member given what no type of its own has.
    for other in [ShardKey { ty: TypeId(5), shard: ShardId(0) }, shard(SHARDS)] {
        let counted = dropped(&world, 2);
        world.control(2, 0, ControlFrame::Assign { shard: other, epoch, home: id(2), base: epoch, term });
        world.control(2, 0, ControlFrame::Move { shard: other, epoch, from: id(1), to: id(2), base: epoch, term });
        world.calm();
        assert_eq!((dropped(&world, 2) - counted, world.nodes[2].core.given.get(&other)), (2, None));
    }
}

#[test]
fn a_stale_sender_is_told_once() {
    let mut world = World::settled(3, 6);
    let key = (0..SHARDS).map(shard).find(|k| world.home(*k) == Some(1)).expect("node 1 hosts something");
    world.send(2, key);
    world.calm();
    // Node 2 hears of the new home from the old one only.
    world.lose = |from, to, frame| from == 0 && to == 2 && matches!(frame, Frame::Control(ControlFrame::Route { .. }));
    world.move_shard(0, key, 0);
    world.calm();
    let hints = |world: &World| world.nodes[1].core.counters().iter().find(|(n, _)| *n == "route_hints").expect("it is counted").1;
    let before = hints(&world);
    (0..3).for_each(|_| world.send(2, key));
    world.calm();
    assert_eq!(hints(&world) - before, 1);
    assert_eq!(world.nodes[2].core.region.known(key).map(|(_, home)| home), Some(id(0)));
    world.check_order();
}

#[test]
fn a_type_without_hosts_waits_for_one() {
    let mut world = World::new(2, 1);
    let user = |host| TypeInfo { name: "user".into(), ty: TypeId::of("user"), shards: 3, host };
    let key = crate::ShardKey { ty: TypeId::of("user"), shard: crate::ShardId(1) };
    world.command(0, |_| Command::Register { info: user(false) });
    world.set_all(MemberStatus::Up);
    world.send(0, key);
    world.calm();
    assert_eq!(world.home(key), None);
    world.command(1, |_| Command::Register { info: user(true) });
    world.drive();
    assert_eq!(world.home(key), Some(1), "on the event, not on a tick");
    assert_eq!(world.nodes[1].worker.handled.len(), 1);
}
