//! The table and the arrival rules of moves.md section 5, row by row.

use super::*;
use crate::proto::sharding::{FactState, ShardFact};

#[test]
fn what_was_seen_is_answered_and_not_done_again() {
    let mut a = Bed::new(A);
    a.assign(3, 3);
    assert_eq!(a.reports(), [owned(3, true), running(3, 3)]);
    a.assign(3, 3);
    a.assign(2, 2);
    assert_eq!(a.reports(), [owned(3, true), owned(3, true)]);
    a.move_to(4, B);
    let transfer = a.handed_to(B);
    assert_eq!(transfer.len(), 1);
    a.move_to(4, B);
    a.assign(1, 1);
    assert_eq!(a.reports(), [], "CE-15: a late Assign starts nothing");
    a.take_from(B, vec![empty_transfer(4, 3, true)]);
    assert_eq!(a.reports(), []);
}

#[test]
fn a_running_home_stops_and_hands_state_mail_and_gate_over() {
    let mut a = Bed::new(A);
    a.assign(1, 1);
    a.msg(1, Mode::Settled, "m0");
    a.until(Time::ZERO);
    a.msg(1, Mode::Settled, "m1");
    a.reports();
    a.move_to(2, B);
    assert_eq!(a.reports(), [], "handing over runs code of entities: it waits for the right to run");
    assert_eq!(facts(&mut a)[0].state, FactState::Stopping(Epoch(2)));
    a.until(Time::MAX);
    assert_eq!(a.log(), ["start k@1 FirstMessage", "k:m0", "k:m1", "stop k moved"]);
    let reports = a.reports();
    assert!(matches!(&reports[0], ShardReport::Handoff { to: B, item: HandoffItem::Transfer(c), .. } if c.last && c.epoch == Epoch(2)));
    assert_eq!(reports[1..], [ShardReport::Ended { shard: S, cur: Epoch(1) }]);
    assert_eq!(a.core.entities(), 0);
    let mut b = Bed::new(B);
    let ShardReport::Handoff { item, .. } = reports[0].clone() else { unreachable!() };
    b.take_from(A, vec![item]);
    assert_eq!(b.log(), ["start k@2 Moved m0m1"]);
    assert_eq!(b.reports(), [owned(2, true), running(2, 2)]);
    a.msg(1, Mode::Settled, "m2");
    let late = a.handed_to(B);
    assert_eq!(late, [forwarded(2, &[], message(1, Mode::Settled, "m2"))]);
    b.take_from(A, late);
    assert_eq!(b.log(), ["k:m2"]);
}

#[test]
fn mail_that_could_not_run_travels_in_its_order() {
    let mut a = Bed::new(A);
    a.assign(1, 1);
    a.until(Time::ZERO);
    a.msg(1, Mode::Settled, "m0");
    a.msg(1, Mode::Settled, "m1");
    a.command(ShardCommand::Host { ty: TY });
    a.host.fail_start.insert(b"k".to_vec());
    a.until(Time::MAX);
    a.move_to(2, B);
    assert_eq!(a.log(), ["start k@1 FirstMessage"]);
    let mut b = Bed::new(B);
    b.take_from(A, a.handed_to(B));
    assert_eq!(b.log(), ["start k@2 FirstMessage", "k:m0", "k:m1"]);
}

#[test]
fn a_state_that_cannot_be_handed_over_refuses_the_move_and_all_live_on() {
    let mut a = Bed::new(A);
    a.assign(1, 1);
    a.msg(1, Mode::Settled, "m0");
    a.host.refuse_hand_over = true;
    a.reports();
    a.move_to(2, B);
    let [ShardReport::MoveRefused { epoch: Epoch(2), why, .. }] = &a.reports()[..] else { panic!("refused") };
    assert!(why.contains("entity k") && why.contains("not now"), "{why}");
    a.msg(1, Mode::Settled, "m1");
    assert_eq!(a.log(), ["start k@1 FirstMessage", "k:m0", "k:m1"]);
    a.move_to(2, B);
    assert!(matches!(a.reports()[..], [ShardReport::MoveRefused { .. }]), "said again");
    a.assign(3, 1);
    assert_eq!(a.reports(), [owned(3, true), running(1, 3)]);
    a.msg(1, Mode::Settled, "m2");
    a.msg(3, Mode::Settled, "m3");
    assert_eq!(a.log(), ["k:m2", "k:m3"]);
}

#[test]
fn what_an_entity_asks_for_as_it_hands_over_is_its_own_if_the_move_is_called_off() {
    let mut a = Bed::new(A);
    a.assign(1, 1);
    let tell = |a: &mut Bed, key: &str, what: &str| {
        a.lane(LaneItem::Msg { shard: S, tag: Epoch(1), enter: None, parcel: letter(key, what) });
    };
    tell(&mut a, "one", "m");
    tell(&mut a, "two", "m");
    a.log();
    a.host.wishes.push(Wish::Own(letter("one", "note")));
    a.host.refuse_hand_over = true;
    a.move_to(2, B);
    assert_eq!(a.log(), ["one:note"]);
    tell(&mut a, "two", "n");
    assert_eq!(a.log(), ["two:n"]);
}

#[test]
fn what_an_entity_asks_for_as_it_hands_over_travels_with_it() {
    let mut a = Bed::new(A);
    a.assign(1, 1);
    a.lane(LaneItem::Msg { shard: S, tag: Epoch(1), enter: None, parcel: letter("one", "m") });
    a.host.wishes.push(Wish::Own(letter("one", "note")));
    a.move_to(2, B);
    let mut b = Bed::new(B);
    b.take_from(A, a.handed_to(B));
    assert_eq!(b.log(), ["start one@2 Moved m", "one:note"]);
}

#[test]
fn many_states_are_on_their_way_while_their_instances_end_and_none_starts_before_all_have() {
    for states in [3, 300] {
        let mut a = Bed::new(A);
        a.assign(1, 1);
        for key in 0..states {
            let parcel = letter(&format!("{key:03}"), "a state of twenty by");
            a.lane(LaneItem::Msg { shard: S, tag: Epoch(1), enter: None, parcel });
        }
        a.log();
        a.move_to(2, B);
        let (mut log, mut items) = (a.log(), a.handed_to(B));
        let ahead = states > 3;
        assert_eq!(log.first().is_some_and(|line| line == "hurry"), ahead, "a few are not worth a frame");
        log.retain(|line| line != "hurry");
        assert!(log.len() == states && log.iter().all(|line| line.starts_with("stop ")), "{log:?}");
        assert_eq!(items.len(), 1 + usize::from(ahead));
        let last = items.pop().unwrap();
        let mut b = Bed::new(B);
        b.take_from(A, items);
        assert_eq!(b.log(), [""; 0]);
        b.take_from(A, vec![last]);
        for _ in 0..states {
            b.pass(Duration::from_nanos(1));
        }
        assert_eq!(b.log().iter().filter(|line| line.ends_with("Moved a state of twenty by")).count(), states);
    }
}

#[test]
fn a_running_home_takes_a_higher_epoch_and_what_waited_for_it() {
    // CE-16: the sender knew record 3 first.
    let mut a = Bed::new(A);
    a.assign(1, 1);
    a.reports();
    a.msg(3, Mode::Settled, "m0");
    a.msg(3, Mode::Settled, "m1");
    assert_eq!(a.reports(), [ShardReport::Unknown { shard: S, aim: Epoch(3) }], "asked once");
    assert_eq!(a.log(), [""; 0]);
    a.assign(3, 3);
    assert_eq!(a.reports(), [owned(3, true), running(1, 3)]);
    assert_eq!(a.log(), ["start k@3 FirstMessage", "k:m0", "k:m1"]);
}

#[test]
fn an_assign_cancels_a_stop_that_waits() {
    let mut a = Bed::new(A);
    a.assign(1, 1);
    a.msg(1, Mode::Settled, "m0");
    a.until(Time::ZERO);
    a.move_to(2, B);
    a.removed(B);
    a.reports();
    a.assign(3, 1);
    assert_eq!(a.reports(), [owned(3, true), running(1, 3)]);
    a.until(Time::MAX);
    a.msg(3, Mode::Settled, "m1");
    assert_eq!(a.log(), ["start k@1 FirstMessage", "k:m0", "k:m1"]);
    assert_eq!(a.reports(), []);
}

#[test]
fn a_start_without_state_drops_what_it_replaces() {
    let mut b = Bed::new(B);
    b.take_from(A, vec![empty_transfer(2, 1, false)]);
    assert_eq!(facts(&mut b)[0].state, FactState::Receiving(Epoch(2)));
    b.removed(A);
    assert_eq!(facts(&mut b)[0].state, FactState::None);
    b.assign(3, 3);
    assert_eq!(b.reports(), [owned(3, true), running(3, 3)]);
    b.msg(2, Mode::Settled, "m0");
    b.msg(3, Mode::Settled, "m1");
    assert_eq!(b.log(), ["drop m0 home_lost", "start k@3 FirstMessage", "k:m1"], "tags below the base are refused (CE-12)");
}

/// What A hands over to B: a message waits for an entity that cannot start.
fn a_shard_with_mail() -> TransferChunk {
    let mut a = Bed::new(A);
    a.assign(1, 1);
    a.until(Time::ZERO);
    a.msg(1, Mode::Settled, "m0");
    a.host.fail_start.insert(b"k".to_vec());
    a.until(Time::MAX);
    a.move_to(2, B);
    let [HandoffItem::Transfer(chunk)] = <[HandoffItem; 1]>::try_from(a.handed_to(B)).unwrap() else { panic!("a transfer") };
    chunk
}

#[test]
fn a_partial_transfer_that_an_assign_overtakes_becomes_dead_letters() {
    let mut chunk = a_shard_with_mail();
    chunk.last = false;
    let mut b = Bed::new(B);
    b.take_from(A, vec![HandoffItem::Transfer(chunk)]);
    b.assign(3, 3);
    assert_eq!(b.log(), ["drop m0 home_lost"]);
}

#[test]
fn what_is_handed_over_to_a_worker_that_was_stopped_becomes_dead_letters() {
    let mut b = Bed::new(B);
    b.command(ShardCommand::Stop);
    b.take_from(A, vec![HandoffItem::Transfer(a_shard_with_mail())]);
    b.take_from(A, vec![forwarded(2, &[], message(1, Mode::Settled, "m1"))]);
    assert_eq!(b.log(), ["drop m0 shutdown", "drop m1 shutdown"]);
}

#[test]
fn a_superseded_move_sends_on_what_waited_for_it() {
    let mut b = Bed::new(B);
    b.record(2, B);
    b.msg(2, Mode::Settled, "m0");
    assert_eq!(b.reports(), [], "it is coming: nothing to ask");
    b.record(3, A);
    assert_eq!(b.handed_to(A), [forwarded(3, &[], message(2, Mode::Settled, "m0"))]);
    b.take_from(A, vec![empty_transfer(2, 1, true)]);
    assert_eq!(b.core.entities(), 0);
    assert_eq!(
        facts(&mut b)[0],
        ShardFact { shard: S, state: FactState::None, seen: Epoch(2), base: Epoch(0), heard: Some((Epoch(3), A)), entities: 0 }
    );
}

#[test]
fn without_the_type_a_shard_is_kept_and_handed_on_as_it_came() {
    let mut a = Bed::new(A);
    a.assign(1, 1);
    a.msg(1, Mode::Settled, "m0");
    a.move_to(2, B);
    let mut b = Bed::bare(B);
    b.until(Time::MAX);
    b.take_from(A, a.handed_to(B));
    assert_eq!(b.reports(), [owned(2, false)]);
    b.msg(2, Mode::Settled, "m1");
    b.lane(LaneItem::Msg { shard: S, tag: Epoch(2), enter: None, parcel: letter("k", "m2") });
    assert!(matches!(b.reports()[..], [ShardReport::Back { .. }]));
    b.move_to(3, C);
    assert_eq!(b.log(), [""; 0]);
    let mut c = Bed::new(C);
    c.take_from(B, b.handed_to(C));
    assert_eq!(c.log(), ["start k@3 Moved m0", "k:m1"]);
}

#[test]
fn a_type_that_is_hosted_later_starts_what_was_kept() {
    let mut b = Bed::bare(B);
    b.until(Time::MAX);
    b.assign(1, 1);
    assert_eq!(b.reports(), [owned(1, false)]);
    b.msg(1, Mode::Settled, "m0");
    b.command(ShardCommand::Host { ty: TY });
    assert_eq!(b.reports(), [owned(1, true), running(1, 1)]);
    assert_eq!(b.log(), ["start k@1 FirstMessage", "k:m0"]);
}

#[test]
fn a_node_without_a_route_follows_the_newest_record_and_pins_it() {
    let mut a = Bed::new(A);
    a.assign(4, 4);
    a.move_to(5, B);
    a.reports();
    a.msg(2, Mode::Settled, "m0");
    assert_eq!(a.handed_to(B), [forwarded(5, &[], message(2, Mode::Settled, "m0"))]);
    a.record(6, C);
    a.msg(2, Mode::Settled, "m1");
    assert_eq!(a.handed_to(B), [forwarded(5, &[], message(2, Mode::Settled, "m1"))], "pinned");
    a.removed(B);
    a.msg(2, Mode::Settled, "m2");
    assert_eq!(a.handed_to(C), [forwarded(6, &[B], message(2, Mode::Settled, "m2"))]);
}

#[test]
fn an_item_without_any_record_waits_and_is_asked_for_once() {
    let mut a = Bed::new(A);
    a.msg(2, Mode::Settled, "m0");
    a.msg(2, Mode::Settled, "m1");
    a.msg(1, Mode::Settled, "m2");
    assert_eq!(a.reports(), [ShardReport::Unknown { shard: S, aim: Epoch(2) }]);
    a.record(4, B);
    let sent = a.handed_to(B);
    assert_eq!(sent.len(), 3);
    assert_eq!(sent[2], forwarded(4, &[], message(1, Mode::Settled, "m2")));
}

#[test]
fn what_waits_is_bounded_and_the_newest_is_refused() {
    let mut a = Bed::new(A);
    (0..5).for_each(|n| a.msg(1, Mode::Settled, &format!("m{n}")));
    assert_eq!(a.log(), ["drop m3 move_buffer_full", "drop m4 move_buffer_full"]);
    a.item(Item::Fence { p: Epoch(1) });
    a.assign(1, 1);
    assert_eq!(a.reports()[1..], [owned(1, true), running(1, 1), ack(1)]);
    assert_eq!(a.log(), ["start k@1 FirstMessage", "k:m0", "k:m1", "k:m2"]);
}

#[test]
fn a_probe_drops_a_route_only_with_its_own_number_and_without_traffic_since() {
    // CE-25.
    let mut a = Bed::new(A);
    a.assign(1, 1);
    a.move_to(2, B);
    a.reports();
    a.pass(Duration::from_secs(30));
    let [HandoffItem::Probe { origin: A, route, number: first, aim: Epoch(2), .. }] = a.handed_to(B)[..] else { panic!("a probe") };
    a.msg(1, Mode::Settled, "m0");
    a.command(ShardCommand::ProbeAck { shard: S, route, number: first });
    a.msg(1, Mode::Settled, "m1");
    assert_eq!(a.handed_to(B).len(), 2, "m0 was forwarded since");
    a.pass(Duration::from_secs(30));
    let probes = a.handed_to(B);
    let [HandoffItem::Probe { number: second, .. }] = probes[..] else { panic!("a probe") };
    a.command(ShardCommand::ProbeAck { shard: S, route, number: first });
    assert_eq!(a.core.shards[0].routes.iter().count(), 1);
    a.command(ShardCommand::ProbeAck { shard: S, route, number: second });
    assert_eq!(a.core.shards[0].routes.iter().count(), 0);
    a.pass(Duration::from_secs(90));
    assert_eq!(a.reports(), [], "nothing left to probe");

    let mut b = Bed::new(B);
    b.take_from(A, vec![empty_transfer(2, 1, true)]);
    b.reports();
    b.take_from(A, probes);
    assert_eq!(b.reports(), [ShardReport::ProbeAck { origin: A, shard: S, route, number: second }]);
}

#[test]
fn a_probe_takes_the_way_of_what_it_asks_about() {
    let mut b = Bed::new(B);
    b.assign(2, 2);
    b.move_to(3, C);
    b.reports();
    let probe = |aim| HandoffItem::Probe { origin: A, route: 9, number: 4, aim: Epoch(aim), after: vec![] };
    b.take_from(A, vec![probe(2)]);
    assert_eq!(b.handed_to(C), [probe(3)]);
}

#[test]
fn after_stop_nothing_runs_and_everything_is_accounted_for() {
    let mut a = Bed::new(A);
    a.assign(1, 1);
    a.msg(1, Mode::Settled, "m0");
    a.msg(2, Mode::Settled, "m1");
    a.msg(1, wait(1), "m2");
    a.reports();
    a.log();
    a.command(ShardCommand::Stop);
    assert_eq!(a.log(), ["stop k shutdown", "drop m2 shutdown", "drop m1 shutdown"]);
    assert_eq!(a.reports(), [ShardReport::Ended { shard: S, cur: Epoch(1) }]);
    a.msg(1, Mode::Settled, "m3");
    a.forwarded(B, 1, &[], message(1, Mode::Settled, "m4"));
    a.lane(LaneItem::Msg { shard: S, tag: Epoch(1), enter: Some(Epoch(1)), parcel: letter("k", "m5") });
    a.lane(LaneItem::Leave { shard: S, k: Epoch(1) });
    a.lane(LaneItem::End);
    assert_eq!(a.log(), ["drop m3 shutdown", "drop m4 shutdown", "drop m5 shutdown"]);
    assert_eq!(a.reports(), [ShardReport::Left { lane: LaneId(1), shard: S, k: Epoch(1) }, ShardReport::End { lane: LaneId(1) }]);
}

#[test]
fn a_node_without_its_right_stops_fenced() {
    let mut a = Bed::new(A);
    a.assign(1, 1);
    a.msg(1, Mode::Settled, "m0");
    a.until(Time::ZERO);
    a.msg(1, Mode::Settled, "m1");
    a.command(ShardCommand::Stop);
    assert_eq!(a.log(), ["start k@1 FirstMessage", "k:m0", "stop k fenced", "drop m1 fenced"]);
}

#[test]
fn facts_name_every_shard_that_was_ever_heard_of() {
    let mut a = Bed::new(A);
    a.assign(1, 1);
    a.move_to(2, B);
    a.command(ShardCommand::Record { shard: ShardKey { ty: TY, shard: ShardId(1) }, epoch: Epoch(9), home: C });
    let facts = facts(&mut a);
    assert_eq!(
        facts.iter().map(|f| (f.shard.shard.0, f.state)).collect::<Vec<_>>(),
        [(1, FactState::None), (3, FactState::HandedOver(Epoch(2)))]
    );
    assert_eq!(facts[1].heard, Some((Epoch(2), B)));
}

fn facts(bed: &mut Bed) -> Vec<ShardFact> {
    bed.command(ShardCommand::Recount { id: 1 });
    match bed.host.reports.pop() {
        Some(ShardReport::Facts { id: 1, facts }) => facts,
        other => panic!("facts, not {other:?}"),
    }
}

// failures: row 47
#[test]
fn what_waits_for_a_home_that_does_not_stop_is_refused_and_the_end_of_its_path_is_kept() {
    let mut b = Bed::new(B);
    let second = Duration::from_secs(1);
    b.record(2, B);
    b.msg(2, Mode::Settled, "m0");
    b.pass(PATIENCE - second);
    b.msg(2, Mode::Settled, "m1");
    b.item(Item::Fence { p: Epoch(1) });
    assert_eq!(b.log(), [] as [&str; 0]);
    b.pass(second);
    assert_eq!(b.log(), ["drop m0 handoff_timeout"]);
    assert_eq!(b.core.poll_timeout(), Some(b.now + PATIENCE - second), "the next one has its own time");
    b.pass(PATIENCE);
    assert_eq!(b.log(), ["drop m1 handoff_timeout"]);
    b.msg(2, Mode::Settled, "m2");
    b.take_from(A, vec![empty_transfer(2, 1, true)]);
    assert_eq!(b.log(), ["start k@2 FirstMessage", "k:m2"], "the shard came after all");
    b.pass(2 * PATIENCE);
    assert_eq!(b.log(), [] as [&str; 0], "and nothing of it is given up");
}

#[test]
fn a_table_of_shards_has_little_room_to_spare() {
    let mut bed = Bed::new(A);
    for shard in 0..130 {
        bed.command(ShardCommand::Record { shard: ShardKey { ty: TY, shard: ShardId(shard) }, epoch: Epoch(1), home: B });
    }
    let (len, room) = (bed.core.shards.len(), bed.core.shards.capacity());
    assert!(len == 130 && room <= len + len / 4, "room for {room}");
}

#[test]
fn wishes_of_others_are_told_of_when_one_escalates_as_the_move_is_called_off() {
    let mut a = Bed::new(A);
    a.assign(1, 1);
    for key in ["one", "two", "three"] {
        a.lane(LaneItem::Msg { shard: S, tag: Epoch(1), enter: None, parcel: letter(key, "m") });
    }
    a.log();
    a.host.directive = Some(Directive::Escalate);
    a.host.at_hand_over = vec![
        (b"one".to_vec(), Wish::Own(letter("one", "boom"))),
        (b"two".to_vec(), Wish::Own(letter("two", "note"))),
        (b"two".to_vec(), Wish::Stash(letter("two", "asked"))),
    ];
    a.host.refuses = Some(b"three".to_vec());
    a.move_to(2, B);
    let log = a.log();
    assert!(log.iter().any(|l| l.contains("note")) && log.iter().any(|l| l.contains("asked")), "{log:?}");
}

#[test]
fn mail_behind_the_rest_of_a_large_state_in_a_transfer_that_is_given_up_becomes_dead_letters() {
    let mut a = Bed::new(A);
    a.assign(1, 1);
    let tell = |a: &mut Bed, key: &str, what: &str| {
        a.lane(LaneItem::Msg { shard: S, tag: Epoch(1), enter: None, parcel: letter(key, what) });
    };
    tell(&mut a, "big", &"x".repeat(100_000));
    a.host.fail_start.insert(b"bad".to_vec());
    tell(&mut a, "bad", "waits");
    a.log();
    a.move_to(2, B);
    let items = a.handed_to(B);
    assert_eq!(items.len(), 3, "a state in two parts, and what comes behind all states");
    let mut b = Bed::new(B);
    b.forwarded(A, 2, &[R], message(1, Mode::Settled, "first"));
    b.take_from(A, items);
    b.log();
    b.removed(A);
    assert_eq!(b.log(), ["drop first link_lost", "drop waits link_lost"]);
}
