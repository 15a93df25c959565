//! Turns of entities: order, the right to run, supervision, bounds, load.

use super::*;

fn home() -> Bed {
    let mut bed = Bed::new(A);
    bed.assign(1, 1);
    bed.reports();
    bed
}

fn tell(key: &str, payload: &str) -> LaneItem<Letter> {
    LaneItem::Msg { shard: S, tag: Epoch(1), enter: None, parcel: letter(key, payload) }
}

fn ask(payload: &str, deadline: Time) -> LaneItem<Letter> {
    let mut parcel = letter("k", payload);
    parcel.envelope.ask = Some(Ask { node: R, correlation: 1, deadline });
    LaneItem::Msg { shard: S, tag: Epoch(1), enter: None, parcel }
}

#[test]
fn nothing_runs_before_the_right_to_run_is_known() {
    let mut a = Bed::bare(A);
    a.command(ShardCommand::Host { ty: TY });
    a.assign(1, 1);
    a.lane(tell("k", "m0"));
    assert_eq!(a.log(), [""; 0]);
    a.until(a.now + Duration::from_secs(1));
    assert_eq!(a.log(), ["start k@1 FirstMessage", "k:m0"]);
}

#[test]
fn past_the_right_to_run_messages_wait_in_order_and_within_bounds() {
    let mut a = home();
    a.lane(tell("k", "m0"));
    a.until(a.now);
    (1..6).for_each(|n| a.lane(tell("k", &format!("m{n}"))));
    a.lane(tell("j", "n0"));
    assert_eq!(a.log(), ["start k@1 FirstMessage", "k:m0", "drop m5 mailbox_full"]);
    a.until(Time::MAX);
    assert_eq!(a.log(), ["k:m1", "k:m2", "k:m3", "k:m4", "start j@1 FirstMessage", "j:n0"]);
    a.lane(tell("k", "m6"));
    assert_eq!(a.log(), ["k:m6"]);
}

#[test]
fn all_mailboxes_together_are_bounded() {
    let mut a = home();
    a.until(Time::ZERO);
    (0..50).for_each(|n| a.lane(tell(&format!("k{n}"), "m")));
    assert_eq!(a.log(), vec!["drop m mailbox_full"; 10], "ten times the limit of one");
    a.until(Time::MAX);
    assert_eq!(a.core.entities(), 40);
}

#[test]
fn what_waits_for_starts_that_fail_is_bounded_too() {
    let mut a = home();
    a.host.fail_start = (0..50).map(|n| format!("k{n}").into_bytes()).collect();
    (0..50).for_each(|n| a.lane(tell(&format!("k{n}"), "m")));
    let log = a.log();
    let of = |what: &str| log.iter().filter(|line| line.starts_with(what)).count();
    assert_eq!((of("start "), of("drop m mailbox_full")), (40, 10), "{log:?}");
    a.host.fail_start.clear();
    a.pass(Duration::from_secs(1));
    assert_eq!(a.core.entities(), 40);
}

// failures: row 53
#[test]
fn an_ask_past_its_deadline_neither_runs_nor_starts_anything() {
    let mut a = home();
    a.lane(ask("m0", a.now));
    assert_eq!(a.log(), ["drop m0 expired"]);
    let soon = a.now + Duration::from_millis(5);
    a.until(Time::ZERO);
    a.lane(ask("m1", soon));
    a.now = soon;
    a.until(Time::MAX);
    assert_eq!(a.log(), ["drop m1 expired"]);
    assert!(a.core.shards[0].entities.is_empty());
}

#[test]
fn what_waits_for_the_right_to_run_is_given_up_in_the_end_and_state_is_not() {
    let mut a = home();
    a.lane(tell("k", "m0"));
    a.until(Time::ZERO);
    a.lane(tell("k", "m1"));
    a.lane(tell("new", "m2"));
    a.pass(PATIENCE - Duration::from_nanos(1));
    a.lane(tell("k", "m3"));
    assert_eq!(a.log(), ["start k@1 FirstMessage", "k:m0"]);
    a.pass(Duration::from_nanos(1));
    assert_eq!(a.log(), ["drop m1 fenced", "drop m3 fenced", "drop m2 fenced"]);
    a.lane(tell("k", "m4"));
    a.until(Time::MAX);
    assert_eq!(a.log(), ["k:m4"], "the same instance");
    // Who was without it for less time, and again, loses nothing.
    a.until(Time::ZERO);
    a.lane(tell("new", "m5"));
    a.pass(PATIENCE - Duration::from_nanos(1));
    assert_eq!(a.log(), [""; 0]);
    a.until(Time::MAX);
    assert_eq!(a.log(), ["start new@1 FirstMessage", "new:m5"]);
    assert_eq!(a.core.env.give_up_at, None, "nothing is given up any longer");
    // Nor behind the end.
    a.until(Time::ZERO);
    a.lane(tell("k", "m6"));
    assert!(a.core.env.give_up_at.is_some());
    a.command(ShardCommand::Stop);
    assert_eq!(a.core.env.give_up_at, None);
}

// failures: row 45
#[test]
fn a_failed_entity_starts_again_after_a_back_off_that_doubles() {
    let mut a = home();
    a.lane(tell("k", "boom"));
    a.lane(tell("k", "m1"));
    a.lane(tell("k", "boom"));
    a.lane(tell("k", "m2"));
    assert_eq!(a.log(), ["start k@1 FirstMessage", "k:boom", "stop k failed"]);
    assert_eq!(a.core.poll_timeout(), Some(a.now + Duration::from_millis(100)));
    a.pass(Duration::from_millis(99));
    assert_eq!(a.log(), [""; 0]);
    a.pass(Duration::from_millis(1));
    assert_eq!(a.log(), ["start k@1 Restarted", "k:m1", "k:boom", "stop k failed"], "a good turn between failures forgets them");
    a.pass(Duration::from_millis(100));
    assert_eq!(a.log(), ["start k@1 Restarted", "k:m2"]);
    for wait in [100, 200, 400, 800] {
        a.lane(tell("k", "boom"));
        a.pass(Duration::from_millis(wait - 1));
        a.lane(tell("k", "boom"));
        let before = a.log();
        assert_eq!(before.last().unwrap(), "stop k failed");
        a.pass(Duration::from_millis(1));
        assert_eq!(a.log(), ["start k@1 Restarted", "k:boom", "stop k failed"]);
        a.core.shards[0].entities.slot(0).unwrap().side.as_mut().unwrap().failures -= 1;
        a.pass(Duration::from_secs(9));
    }
}

#[test]
fn failures_are_forgotten_when_no_message_comes() {
    let mut a = home();
    a.lane(tell("k", "boom"));
    a.pass(Duration::from_millis(100));
    assert!(!a.core.shards[0].entities.is_empty());
    a.pass(Duration::from_secs(10));
    assert!(a.core.shards[0].entities.is_empty());
    a.pass(Duration::from_secs(10));
    assert_eq!(a.core.poll_timeout(), None);
}

// failures: row 48
#[test]
fn an_entity_that_keeps_failing_to_start_opens_the_circuit() {
    let mut a = home();
    a.host.fail_start.insert(b"k".to_vec());
    a.lane(tell("k", "m0"));
    for _ in 0..3 {
        a.pass(Duration::from_secs(1));
    }
    assert_eq!(a.log().len(), 4, "m0 waits, and four starts failed");
    a.lane(tell("k", "m1"));
    a.pass(Duration::from_secs(1));
    assert_eq!(a.log(), ["start k@1 Restarted", "open k cannot", "drop m0 circuit_open", "drop m1 circuit_open"], "in their order");
    a.lane(tell("k", "m2"));
    assert_eq!(a.log(), ["drop m2 circuit_open"]);
    a.host.fail_start.clear();
    a.pass(Duration::from_secs(2));
    a.lane(tell("k", "m3"));
    assert_eq!(a.log(), ["start k@1 Restarted", "k:m3"]);
}

#[test]
fn a_passivated_entity_leaves_memory_and_the_next_message_starts_another() {
    let mut a = home();
    a.lane(tell("k", "bye"));
    assert_eq!((a.core.entities(), a.core.shards[0].entities.is_empty()), (0, true));
    a.until(Time::ZERO);
    a.lane(tell("k", "m0"));
    a.lane(tell("k", "bye"));
    a.lane(tell("k", "m1"));
    a.log();
    a.until(Time::MAX);
    assert_eq!(a.log(), ["start k@1 FirstMessage", "k:m0", "k:bye", "stop k passivated", "start k@1 FirstMessage", "k:m1"]);
}

#[test]
fn state_that_moved_in_waits_for_the_right_to_run_and_for_a_start_that_works() {
    let mut a = home();
    a.lane(tell("k", "m0"));
    a.move_to(2, B);
    let transfer = a.handed_to(B);
    let mut b = Bed::new(B);
    b.until(Time::ZERO);
    b.host.fail_start.insert(b"k".to_vec());
    b.take_from(A, transfer);
    b.msg(2, Mode::Settled, "m1");
    assert_eq!(b.log(), [""; 0]);
    b.until(Time::MAX);
    assert_eq!(b.log(), ["start k@2 Moved m0"]);
    b.host.fail_start.clear();
    b.pass(Duration::from_millis(100));
    assert_eq!(b.log(), ["start k@2 Moved m0", "k:m1"]);
    b.host.fail_start.insert(b"k".to_vec());
}

#[test]
fn state_that_could_not_be_started_moves_on() {
    let mut a = home();
    a.lane(tell("k", "m0"));
    a.move_to(2, B);
    let mut b = Bed::new(B);
    b.host.fail_start.insert(b"k".to_vec());
    b.take_from(A, a.handed_to(B));
    b.move_to(3, C);
    let mut c = Bed::new(C);
    c.take_from(B, b.handed_to(C));
    assert_eq!(c.log(), ["start k@3 Moved m0"]);
}

#[test]
fn the_load_is_reported_about_once_a_second_and_only_when_it_changed() {
    let mut a = home();
    a.lane(tell("k", "m0"));
    a.lane(tell("j", "m1"));
    a.lane(tell("j", "bye"));
    assert_eq!(a.core.poll_timeout(), Some(a.now + Duration::from_secs(1)));
    let over = Duration::from_secs(1);
    let loads = |live, handled| [ShardReport::Load { loads: vec![(S, live, handled)], over }];
    a.pass(over);
    assert_eq!(a.reports(), loads(1, 3));
    a.pass(over);
    assert_eq!((a.reports(), a.core.poll_timeout()), (loads(1, 0).to_vec(), None), "nothing was handled since");
    a.pass(10 * over);
    a.lane(tell("k", "m2"));
    a.pass(over);
    assert_eq!(a.reports(), loads(1, 1), "in the last second, not in eleven");
    a.move_to(2, B);
    a.reports();
    a.pass(over);
    assert_eq!(a.reports(), loads(0, 0));
}

#[test]
fn an_idle_entity_costs_a_slot_its_key_and_a_cell() {
    // Key pointer and length, side pointer, tag; the instance is the host's.
    assert!(size_of::<Option<crate::proto::shard::entities::Slot<Book>>>() <= 32 + size_of::<<Book as Host>::Entity>());
}

// failures: row 56
#[test]
fn the_longest_key_travels() {
    let mut a = home();
    let mut parcel = letter("k", "m0");
    parcel.envelope = Envelope { key_len: 255, bytes: vec![b'x'; 255].into(), ..parcel.envelope };
    a.lane(LaneItem::Msg { shard: S, tag: Epoch(1), enter: None, parcel });
    a.move_to(2, B);
    assert!(matches!(a.handed_to(B)[..], [HandoffItem::Transfer(_)]));
}

#[test]
fn many_entities_of_many_shards_are_found_again() {
    let mut a = home();
    let shard = |n: u32| ShardKey { ty: TY, shard: ShardId(n) };
    for n in 0..50 {
        a.command(ShardCommand::Assign { shard: shard(n), epoch: Epoch(2), base: Epoch(1) });
    }
    for n in 0..5_000u32 {
        let parcel = letter(&format!("key {n}"), "m");
        a.core.handle_lane(a.now, LaneId(1), LaneItem::Msg { shard: shard(n % 50), tag: Epoch(2), enter: None, parcel }, &mut a.host);
    }
    a.core.check();
    assert_eq!((a.core.entities(), a.core.live().count()), (5_000, 5_000));
    for n in (0..5_000u32).step_by(3) {
        let parcel = letter(&format!("key {n}"), "bye");
        a.core.handle_lane(a.now, LaneId(1), LaneItem::Msg { shard: shard(n % 50), tag: Epoch(2), enter: None, parcel }, &mut a.host);
    }
    a.core.check();
    for n in 0..5_000u32 {
        let found = a.core.with_entity(shard(n % 50), format!("key {n}").as_bytes(), |e| e.1.clone());
        assert_eq!(found, (n % 3 != 0).then(|| "m".to_string()));
    }
}

#[test]
fn keys_short_and_long_are_found_when_the_long_ones_have_been_copied_together() {
    let mut a = home();
    let (short, long) = (|n: u32| n.to_string(), |n: u32| format!("a key of some length, number {n}"));
    for n in 0..500 {
        a.lane(tell(&short(n), "m"));
        a.lane(tell(&long(n), "m"));
    }
    // Most of what the long ones take is garbage then.
    (0..500).filter(|n| n % 4 > 0).for_each(|n| a.lane(tell(&long(n), "bye")));
    a.core.check();
    let mut is_there = |key: String| a.core.with_entity(S, key.as_bytes(), |entity| entity.1.clone()).is_some();
    for n in 0..500 {
        assert_eq!((is_there(short(n)), is_there(long(n))), (true, n % 4 == 0), "{n}");
    }
}

#[test]
fn the_short_way_ends_at_the_live_entity_of_that_key_or_nowhere() {
    let mut bed = home();
    bed.lane(tell("k", "m1"));
    bed.lane(tell("other", "m2"));
    let short_way = |bed: &mut Bed, near: &str, key: &str| {
        let hash = xxhash_rust::xxh3::xxh3_64(near.as_bytes());
        let mut approach = [bed.core.opens_short_way(bed.now).then(|| bed.core.approach((S, Epoch(1), hash, false)))??];
        bed.core.come_near(&mut approach);
        let turn = bed.core.short_way(approach[0], key.as_bytes(), &mut bed.host, |host, at, entity| {
            host.log.push(format!("{}@{} short", entity.0, at.epoch.get()));
            Turn::Continue
        });
        turn.ok()
    };
    bed.log();
    assert!(short_way(&mut bed, "k", "k").is_some());
    assert_eq!(bed.log(), ["k@1 short"]);
    assert_eq!(short_way(&mut bed, "k", "other"), None, "two keys of one tag are told apart");
    assert_eq!(short_way(&mut bed, "absent", "absent"), None, "it starts on the long way");
    bed.lane(tell("k", "bye"));
    assert_eq!(short_way(&mut bed, "k", "k"), None, "it has left memory");
    bed.until(bed.now);
    assert_eq!(short_way(&mut bed, "other", "other"), None, "nothing runs past the right to run");
    assert!(!bed.log().iter().any(|line| line.ends_with("short")));
}
