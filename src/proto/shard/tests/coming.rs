//! A shard that moves in has its entities started some at a time; nothing shows that, except that nobody waits for all of them.

use super::*;

/// Entities `k0` to `k..` of a shard whose home A is under epoch 1, and the items that hand it over to B under 2.
fn leaving(count: usize) -> Vec<HandoffItem> {
    let mut a = Bed::new(A);
    a.assign(1, 1);
    for n in 0..count {
        a.lane(LaneItem::Msg { shard: S, tag: Epoch(1), enter: None, parcel: letter(&format!("k{n}"), &format!("m{n}")) });
    }
    a.move_to(2, B);
    a.handed_to(B)
}

fn arrived(count: usize) -> Bed {
    let mut b = Bed::new(B);
    b.take_from(A, leaving(count));
    b
}

fn tell(bed: &mut Bed, key: &str, payload: &str) {
    bed.lane(LaneItem::Msg { shard: S, tag: Epoch(2), enter: None, parcel: letter(key, payload) });
}

fn starts(log: &[String]) -> Vec<&str> {
    log.iter().filter(|line| line.starts_with("start ")).map(String::as_str).collect()
}

/// All of them start until nothing is left to do, each with its state.
fn rest(bed: &mut Bed, began: &[String], count: usize) {
    let mut log = began.to_vec();
    while bed.core.poll_timeout().is_some_and(|due| due < bed.now + Duration::from_millis(1)) {
        bed.pass(Duration::from_nanos(1));
        log.extend(bed.log());
    }
    let mut all: Vec<String> = starts(&log).into_iter().map(str::to_owned).collect();
    all.sort();
    let mut expected: Vec<String> = (0..count).map(|n| format!("start k{n}@2 Moved m{n}")).collect();
    expected.sort();
    assert_eq!(all, expected);
}

#[test]
fn few_start_at_once_and_many_some_at_a_time() {
    let mut b = arrived(32);
    assert_eq!((starts(&b.log()).len(), b.core.entities()), (32, 32));
    let mut b = arrived(200);
    let began = b.log();
    assert_eq!(starts(&began).len(), 32);
    rest(&mut b, &began, 200);
    assert_eq!((b.core.entities(), b.core.env.timers.len()), (200, 0), "nothing is left behind");
}

#[test]
fn of_very_many_all_but_a_bound_start_at_once() {
    let mut b = arrived(5_000);
    let began = b.log();
    assert_eq!(starts(&began).len(), 5_000 - 4_096);
    rest(&mut b, &began, 5_000);
}

#[test]
fn who_gets_a_message_starts_for_that() {
    let mut b = arrived(200);
    let mut log = b.log();
    tell(&mut b, "k150", "n");
    tell(&mut b, "new", "n");
    let answered = b.log();
    assert_eq!(answered, ["start k150@2 Moved m150", "k150:n", "start new@2 FirstMessage", "new:n"]);
    log.extend(answered.into_iter().filter(|line| !line.contains("new")));
    rest(&mut b, &log, 200);
}

#[test]
fn who_searches_much_has_more_of_them_started() {
    let mut b = arrived(2_000);
    b.log();
    (0..100).for_each(|n| tell(&mut b, &format!("new{n}"), "n"));
    b.log();
    b.pass(Duration::from_nanos(1));
    assert_eq!(b.core.entities(), 2_100, "a hundred searches of two thousand cost as much as to start them");
}

#[test]
fn a_shard_that_moves_on_takes_along_who_has_not_started() {
    let mut b = arrived(200);
    tell(&mut b, "k150", "n");
    b.log();
    b.move_to(3, C);
    assert_eq!(b.log().iter().filter(|line| line.starts_with("stop ")).count(), 33, "only who has started is stopped");
    let mut c = Bed::new(C);
    c.take_from(B, b.handed_to(C));
    b.pass(Duration::from_secs(1));
    assert_eq!((b.log(), b.core.entities()), (vec![], 0));
    let mut log = c.log();
    while c.core.entities() < 200 {
        c.pass(Duration::from_nanos(1));
        log.extend(c.log());
    }
    for n in 0..200 {
        let state = if n == 150 { "m150n".to_owned() } else { format!("m{n}") };
        assert!(log.contains(&format!("start k{n}@3 Moved {state}")), "k{n}");
    }
}

#[test]
fn a_move_that_is_refused_leaves_who_has_not_started() {
    let mut b = arrived(200);
    let began = b.log();
    b.host.refuse_hand_over = true;
    b.move_to(3, C);
    assert_eq!(b.log(), [""; 0]);
    rest(&mut b, &began, 200);
}

#[test]
fn timers_come_with_their_entities_before_those_have_started() {
    let mut a = Bed::new(A);
    a.assign(1, 1);
    let mut tell_a = |n: usize, payload: &str| {
        a.lane(LaneItem::Msg { shard: S, tag: Epoch(1), enter: None, parcel: letter(&format!("k{n}"), payload) });
    };
    (0..200).for_each(|n| tell_a(n, "once:1:20:tick"));
    a.move_to(2, B);
    let items = a.handed_to(B);
    let mut b = Bed::new(B);
    b.take_from(A, items);
    let began = b.log();
    // So late that all timers are due before the first of them has started by itself.
    b.pass(Duration::from_millis(20));
    let log = [began, b.log()].concat();
    assert_eq!((starts(&log).len(), b.core.entities()), (200, 200));
    for n in 0..200 {
        assert!(log.contains(&format!("start k{n}@2 Moved once:1:20:tick")) && log.contains(&format!("k{n}:tick")), "k{n}");
    }
}

#[test]
fn a_start_that_fails_is_tried_again_with_the_state() {
    let mut b = arrived(200);
    let mut log = b.log();
    b.host.fail_start.insert(b"k150".to_vec());
    tell(&mut b, "k150", "n");
    assert_eq!(b.log(), ["start k150@2 Moved m150"]);
    b.host.fail_start.clear();
    b.pass(Duration::from_secs(1));
    log.extend(b.log());
    assert!(log.windows(2).any(|lines| lines == ["start k150@2 Moved m150", "k150:n"]), "{log:?}");
    rest(&mut b, &log, 200);
}

#[test]
fn without_the_right_to_run_nobody_starts_and_nothing_is_lost() {
    let mut b = arrived(200);
    let mut log = b.log();
    b.until(b.now);
    tell(&mut b, "k150", "n");
    for _ in 0..5 {
        b.pass(Duration::from_nanos(1));
    }
    assert_eq!(b.log(), [""; 0]);
    b.until(Time::MAX);
    let then = b.log();
    assert!(then.contains(&"k150:n".to_owned()));
    log.extend(then);
    rest(&mut b, &log, 200);
}

#[test]
fn who_watches_an_entity_that_has_not_started_waits_for_its_end() {
    let mut b = arrived(200);
    b.log();
    tell(&mut b, "k150", "watch");
    tell(&mut b, "nobody", "watch");
    assert_eq!(b.log(), ["start k150@2 Moved m150", "watch 6 has ended"]);
    tell(&mut b, "k150", "bye");
    assert_eq!(b.log(), ["k150:bye", "stop k150 passivated", "watch 4 has ended"]);
}

#[test]
fn what_has_not_started_when_the_node_stops_starts_for_that_as_it_may_save_its_state() {
    let stops = |log: &[String]| log.iter().filter(|line| line.starts_with("stop ")).count();
    let mut b = arrived(200);
    let began = starts(&b.log()).len();
    b.command(ShardCommand::Stop);
    let log = b.log();
    assert_eq!((began + starts(&log).len(), stops(&log)), (200, 200));
    b.pass(Duration::from_secs(1));
    assert_eq!((b.log(), b.core.entities()), (vec![], 0));
    let mut b = arrived(200);
    b.until(b.now);
    let began = starts(&b.log()).len();
    b.command(ShardCommand::Stop);
    let log = b.log();
    assert_eq!((starts(&log).len(), stops(&log)), (0, began), "who may not run does not start");
}

/// Ten entities that do not start, with as many messages as may wait on the worker.
fn fill(bed: &mut Bed) {
    for n in 0..10 {
        bed.host.fail_start.insert(format!("full{n}").into_bytes());
        (0..4).for_each(|m| tell(bed, &format!("full{n}"), &format!("w{m}")));
    }
}

#[test]
fn a_message_that_could_not_wait_for_its_entity_starts_it() {
    let mut b = arrived(200);
    fill(&mut b);
    b.log();
    tell(&mut b, "k3", "n");
    tell(&mut b, "k150", "n");
    assert_eq!(b.log(), ["k3:n", "start k150@2 Moved m150", "k150:n"]);
}

#[test]
fn who_is_searched_for_in_vain_many_times_has_all_of_them_started() {
    let mut b = arrived(4_000);
    for n in 0..30 {
        tell(&mut b, &format!("new{n}"), "m");
    }
    assert_eq!(b.core.entities(), 4_030);
}

#[test]
fn an_entity_that_escalates_ends_the_instances_and_no_state_that_has_none() {
    let mut b = arrived(200);
    let began = starts(&b.log()).len();
    b.host.directive = Some(Directive::Escalate);
    tell(&mut b, "k3", "boom");
    let stops = b.log().iter().filter(|line| line.starts_with("stop ")).count();
    tell(&mut b, "k150", "n");
    assert_eq!((stops, b.log()), (began, vec!["start k150@2 Moved m150".to_owned(), "k150:n".to_owned()]));
}

/// Entities `k0` to `k..` with a timer each, moved from A to B.
fn arrived_with_timers(count: usize) -> Bed {
    let mut a = Bed::new(A);
    a.assign(1, 1);
    for n in 0..count {
        a.lane(LaneItem::Msg { shard: S, tag: Epoch(1), enter: None, parcel: letter(&format!("k{n}"), "once:1:20000:tick") });
    }
    a.move_to(2, B);
    let mut b = Bed::new(B);
    b.take_from(A, a.handed_to(B));
    b.log();
    b
}

#[test]
fn who_watches_one_that_came_with_a_timer_waits_for_its_end_too() {
    let mut b = arrived_with_timers(200);
    tell(&mut b, "k150", "watch");
    assert_eq!(b.log(), ["start k150@2 Moved once:1:20000:tick"]);
}

#[test]
fn a_message_that_could_not_wait_starts_one_that_came_with_a_timer_too() {
    let mut b = arrived_with_timers(200);
    fill(&mut b);
    b.log();
    tell(&mut b, "k150", "n");
    assert_eq!(b.log(), ["start k150@2 Moved once:1:20000:tick", "k150:n"]);
}

#[test]
fn an_entity_that_escalates_leaves_the_state_of_who_could_not_start_yet() {
    let mut b = arrived(200);
    b.log();
    b.host.fail_start.insert(b"k150".to_vec());
    tell(&mut b, "k150", "n");
    b.host.fail_start.clear();
    b.host.directive = Some(Directive::Escalate);
    tell(&mut b, "k3", "boom");
    b.log();
    b.host.directive = None;
    b.pass(Duration::from_secs(1));
    let mut log = b.log();
    tell(&mut b, "k150", "n2");
    log.extend(b.log());
    assert!(log.contains(&"start k150@2 Moved m150".to_owned()), "{log:?}");
}

#[test]
fn an_entity_that_escalates_leaves_the_timers_of_who_has_not_started() {
    let mut b = arrived_with_timers(200);
    b.host.directive = Some(Directive::Escalate);
    tell(&mut b, "k3", "boom");
    b.host.directive = None;
    b.log();
    b.pass(Duration::from_secs(21));
    b.pass(Duration::from_secs(21));
    let log = b.log();
    assert_eq!(log.iter().filter(|l| l.starts_with("k") && l.ends_with(":tick")).count(), 200 - 32);
}
