//! What an entity has of its own: timers, stash, idle time, watched nodes; and what becomes of it and its messages when it fails.

use super::*;

/// What an entity asks for, by the text of a message: `once:KEY:MILLIS:TEXT`, `every:..`, `cancel:KEY`, `stash:..`, `unstash`, `idle:MILLIS`,
/// `own:TEXT`, `node:NODE:TEXT`.
pub(super) fn wish(book: &mut Book, key: &str, payload: &str, parcel: &Letter) {
    let words: Vec<&str> = payload.split(':').collect();
    let millis = |at: usize| Duration::from_millis(words[at].parse().unwrap());
    let number = |at: usize| words[at].parse().unwrap();
    book.wishes.extend(match words[0] {
        "once" | "every" => {
            let message = envelope(key, words[3]);
            Some(Wish::Timer { key: number(1), after: millis(2), again: words[0] == "every", message })
        }
        "cancel" => Some(Wish::Cancel { key: number(1) }),
        "stash" => Some(Wish::Stash(Letter { envelope: envelope(key, words[1]), ..parcel.clone() })),
        "unstash" => Some(Wish::Unstash),
        "idle" => Some(Wish::Idle(Some(millis(1)))),
        "own" => Some(Wish::Own(letter(key, words[1]))),
        "node" => Some(Wish::WatchNode { node: NodeId::from_raw(u128::from(number(1))), message: envelope(key, words[2]) }),
        _ => None,
    });
}

fn home() -> Bed {
    let mut bed = Bed::new(A);
    bed.assign(1, 1);
    bed.reports();
    bed
}

fn tell(bed: &mut Bed, payload: &str) {
    bed.lane(LaneItem::Msg { shard: S, tag: Epoch(1), enter: None, parcel: letter("k", payload) });
}

/// What was logged, without the first word of each line's key.
fn said(bed: &mut Bed) -> Vec<String> {
    bed.log().into_iter().filter(|line| !line.starts_with("start")).collect()
}

const MS: Duration = Duration::from_millis(1);

#[test]
fn a_timer_fires_once_or_each_period_and_the_same_key_replaces() {
    let mut a = home();
    for text in ["once:1:50:late", "once:1:20:early", "every:2:30:tick", "once:3:10:never", "cancel:3"] {
        tell(&mut a, text);
    }
    a.log();
    a.pass(19 * MS);
    assert_eq!(a.log(), [""; 0]);
    a.pass(MS);
    assert_eq!(a.log(), ["k:early"]);
    a.pass(10 * MS);
    assert_eq!(a.log(), ["k:tick"]);
    a.pass(95 * MS);
    assert_eq!(a.log(), ["k:tick"], "missed periods are not made up for");
    a.pass(29 * MS);
    assert_eq!(a.log(), [""; 0], "and the next one is not cut short");
    a.pass(MS);
    assert_eq!(a.log(), ["k:tick"]);
    tell(&mut a, "cancel:2");
    a.pass(1000 * MS);
    assert_eq!((a.log(), a.core.env.timers.len()), (vec!["k:cancel:2".to_owned()], 0));
}

#[test]
fn timers_end_with_their_instance_and_wait_while_nothing_may_run() {
    let mut a = home();
    tell(&mut a, "every:1:20:tick");
    a.until(a.now);
    for _ in 0..100 {
        a.pass(10 * MS);
    }
    a.log();
    a.until(Time::MAX);
    a.pass(50 * MS);
    assert_eq!(a.log(), ["k:tick"], "once for all the time that it could not run");
    tell(&mut a, "bye");
    tell(&mut a, "every:1:20:tick");
    tell(&mut a, "boom");
    a.pass(100 * MS);
    assert_eq!(said(&mut a), ["k:bye", "stop k passivated", "k:every:1:20:tick", "k:boom", "stop k failed"]);
    a.pass(Duration::from_secs(60));
    assert_eq!((said(&mut a), a.core.env.timers.len()), (vec![], 0));
}

#[test]
fn what_was_put_aside_comes_next_in_its_order() {
    let mut a = home();
    ["stash:s1", "stash:s2", "m1", "unstash", "m2"].iter().for_each(|text| tell(&mut a, text));
    assert_eq!(said(&mut a), ["k:stash:s1", "k:stash:s2", "k:m1", "k:unstash", "k:s1", "k:s2", "k:m2"]);
    (0..5).for_each(|n| tell(&mut a, &format!("stash:s{n}")));
    assert_eq!(said(&mut a).last().unwrap(), "drop s4 stash_full", "it is bounded like the mailbox");
    tell(&mut a, "bye");
    assert_eq!(said(&mut a), ["k:bye", "stop k passivated", "k:s0", "k:s1", "k:s2", "k:s3"], "it is not lost with its instance");
    tell(&mut a, "stash:x");
    tell(&mut a, "boom");
    a.pass(100 * MS);
    assert_eq!(said(&mut a), ["k:stash:x", "k:boom", "stop k failed", "k:x"]);
}

#[test]
fn a_message_to_itself_comes_behind_what_waits() {
    let mut a = home();
    a.until(a.now);
    ["own:later", "m1"].iter().for_each(|text| tell(&mut a, text));
    a.until(Time::MAX);
    assert_eq!(said(&mut a), ["k:own:later", "k:m1", "k:later"]);
}

#[test]
fn an_idle_entity_leaves_memory_and_its_own_timers_do_not_keep_it() {
    let mut a = home();
    a.host.options.idle = Some(400 * MS);
    tell(&mut a, "every:1:100:tick");
    for _ in 0..39 {
        a.pass(10 * MS);
    }
    assert_eq!(a.core.entities(), 1);
    tell(&mut a, "m1");
    for _ in 0..39 {
        a.pass(10 * MS);
    }
    assert_eq!(a.core.entities(), 1, "a message from outside keeps it");
    for _ in 0..20 {
        a.pass(10 * MS);
    }
    assert_eq!(a.core.entities(), 0);
    assert_eq!(a.log().last().unwrap(), "stop k passivated");
    a.pass(Duration::from_secs(5));
    assert_eq!(a.core.env.timers.len(), 0, "nobody is looked for where nobody is");
}

#[test]
fn an_entity_that_starts_with_its_own_timer_is_idle_from_then_on() {
    let (mut a, mut b) = (home(), Bed::new(B));
    tell(&mut a, "once:1:50:rang");
    a.host.stateless = true;
    a.move_to(2, B);
    b.host.options.idle = Some(400 * MS);
    b.now = Time::from_nanos(77_000_000_000);
    b.take_from(A, a.handed_to(B));
    (0..44).for_each(|_| b.pass(10 * MS));
    assert_eq!((b.log(), b.core.entities()), (vec!["start k@2 FirstMessage".to_owned(), "k:rang".to_owned()], 1));
    (0..12).for_each(|_| b.pass(10 * MS));
    assert_eq!(b.core.entities(), 0);
}

#[test]
fn an_entity_may_choose_an_idle_time_of_its_own() {
    let mut a = home();
    a.host.options.idle = Some(100 * MS);
    tell(&mut a, "idle:1000");
    for _ in 0..5 {
        a.pass(150 * MS);
    }
    tell(&mut a, "m1");
    a.pass(900 * MS);
    assert_eq!(a.core.entities(), 1);
    a.pass(120 * MS);
    a.pass(120 * MS);
    assert_eq!(a.core.entities(), 0);
}

#[test]
fn many_idle_entities_leave_in_several_turns() {
    let mut a = home();
    a.host.options.idle = Some(400 * MS);
    for n in 0..3000 {
        a.lane(LaneItem::Msg { shard: S, tag: Epoch(1), enter: None, parcel: letter(&format!("k{n}"), "m") });
    }
    a.pass(500 * MS);
    assert!((1..3000).contains(&a.core.entities()), "{}", a.core.entities());
    (0..4).for_each(|_| a.pass(MS));
    assert_eq!(a.core.entities(), 0);
}

#[test]
fn timers_stash_and_watches_travel() {
    let (mut a, mut b) = (home(), Bed::new(B));
    ["once:1:50:rang", "every:2:200:tick", "stash:aside", "node:13:gone"].iter().for_each(|text| tell(&mut a, text));
    a.host.open_asks = vec![letter("k", "moved"), letter("j", "moved")];
    a.host.stateless = true;
    a.pass(20 * MS);
    a.move_to(2, B);
    assert_eq!(a.core.env.timers.values().filter(|timer| matches!(timer, Timer::Own { .. })).count(), 0);
    b.now = Time::from_nanos(77_000_000_000);
    b.take_from(A, a.handed_to(B));
    assert_eq!(b.log(), ["start k@2 FirstMessage", "k:aside", "k:moved", "start j@2 FirstMessage", "j:moved"]);
    b.pass(29 * MS);
    assert_eq!(b.log(), [""; 0]);
    b.pass(MS);
    assert_eq!(b.log(), ["k:rang"]);
    b.pass(150 * MS);
    assert_eq!(b.log(), ["k:tick"]);
    b.removed(R);
    assert_eq!(b.log(), ["k:gone"]);
    b.removed(C);
    assert_eq!(b.log(), [""; 0]);
}

#[test]
fn a_timer_starts_an_entity_that_moved_without_state_and_a_start_replaces_what_travelled() {
    let (mut a, mut b) = (home(), Bed::new(B));
    tell(&mut a, "once:1:50:rang");
    a.host.stateless = true;
    a.move_to(2, B);
    b.take_from(A, a.handed_to(B));
    assert_eq!((b.log(), b.core.entities()), (vec![], 0), "nothing runs before it is due");
    b.move_to(3, A);
    a.take_from(B, b.handed_to(A));
    a.log();
    a.pass(50 * MS);
    assert_eq!(a.log(), ["start k@3 FirstMessage", "k:rang"]);
}

#[test]
fn a_node_that_is_gone_already_is_told_at_once() {
    let mut a = home();
    a.removed(R);
    tell(&mut a, "node:13:gone");
    assert_eq!(said(&mut a), ["k:node:13:gone", "k:gone"]);
}

// failures: row 49
#[test]
fn a_message_that_fails_again_and_again_is_given_up_and_the_next_one_runs() {
    let mut a = home();
    (a.host.directive, a.host.options.attempts) = (Some(Directive::Restart), 3);
    tell(&mut a, "boom");
    tell(&mut a, "m1");
    assert_eq!(said(&mut a), ["k:boom", "failure 1", "stop k failed"]);
    a.pass(100 * MS);
    assert_eq!(said(&mut a), ["k:boom", "failure 2", "stop k failed"]);
    a.pass(200 * MS);
    assert_eq!(said(&mut a), ["k:boom", "failure 3", "stop k failed", "drop boom poison"]);
    a.pass(400 * MS);
    assert_eq!(said(&mut a), ["k:m1"], "the mailbox was kept");
    tell(&mut a, "boom");
    a.pass(100 * MS);
    assert_eq!(said(&mut a).len(), 6, "a good turn begins the count again");
}

#[test]
fn a_message_that_failed_once_is_never_given_up_as_one_that_did_not_run() {
    let failed = || {
        let mut a = home();
        (a.host.directive, a.host.options.attempts) = (Some(Directive::Restart), 2);
        ["boom", "m1"].iter().for_each(|text| tell(&mut a, text));
        assert_eq!(said(&mut a), ["k:boom", "failure 1", "stop k failed"]);
        a
    };
    // It never starts again.
    let mut a = failed();
    a.host.fail_start.insert(b"k".to_vec());
    (0..6).for_each(|_| a.pass(Duration::from_secs(10)));
    assert_eq!(said(&mut a), ["open k cannot", "drop boom poison", "drop m1 circuit_open"]);
    // Its retry ends without it, and the one behind it has not failed.
    let mut a = failed();
    a.host.directive = None;
    a.pass(Duration::from_secs(10));
    a.host.fail_start.insert(b"k".to_vec());
    (0..6).for_each(|_| a.pass(Duration::from_secs(10)));
    let end = said(&mut a);
    assert_eq!(end.last().map(String::as_str), Some("drop m1 circuit_open"), "{end:?}");
    // The node stops meanwhile.
    let mut a = failed();
    a.command(ShardCommand::Stop);
    assert_eq!(said(&mut a), ["drop boom poison", "drop m1 shutdown"]);
    // Its shard moves meanwhile: what was told is tried there, and an asker hears now.
    let (mut a, mut b) = (failed(), Bed::new(B));
    a.move_to(2, B);
    b.take_from(A, a.handed_to(B));
    assert_eq!((said(&mut a), said(&mut b)), (vec![], vec!["k:boom".to_owned(), "stop k failed".to_owned()]));
    let (mut a, mut b) = (home(), Bed::new(B));
    (a.host.directive, a.host.options.attempts) = (Some(Directive::Restart), 2);
    let mut asks = letter("k", "boom");
    asks.envelope.ask = Some(Ask { node: R, correlation: 1, deadline: Time::MAX });
    a.lane(LaneItem::Msg { shard: S, tag: Epoch(1), enter: None, parcel: asks });
    tell(&mut a, "m1");
    a.move_to(2, B);
    b.take_from(A, a.handed_to(B));
    assert_eq!(said(&mut a), ["k:boom", "failure 1", "stop k failed", "drop boom poison"]);
    assert_eq!(said(&mut b), ["k:m1"]);
}

// failures: row 45
#[test]
fn what_waits_becomes_dead_letters_if_the_directive_says_so() {
    for (directive, starts_at_once) in [(Directive::RestartEmpty, false), (Directive::Stop, true), (Directive::Escalate, true)] {
        let mut a = home();
        a.host.directive = Some(directive);
        a.lane(LaneItem::Msg { shard: S, tag: Epoch(1), enter: None, parcel: letter("other", "m") });
        a.until(a.now);
        ["boom", "m1", "m2"].iter().for_each(|text| tell(&mut a, text));
        a.until(Time::MAX);
        let log = said(&mut a);
        assert!(log.contains(&"drop boom poison".to_owned()), "{directive:?}: {log:?}");
        assert_eq!(log.iter().filter(|line| line.ends_with(" stopped")).count(), 2, "{directive:?}: {log:?}");
        let others = usize::from(directive != Directive::Escalate);
        assert_eq!(a.core.entities(), others, "{directive:?}");
        tell(&mut a, "m3");
        assert_eq!(a.core.entities(), others + usize::from(starts_at_once), "{directive:?}");
        a.pass(100 * MS);
        assert_eq!(said(&mut a).last().unwrap(), "k:m3");
    }
}

#[test]
fn what_is_stashed_is_bounded_in_bytes_too() {
    let mut a = home();
    a.core.env.limits.mailbox_bytes = 40;
    for _ in 0..4 {
        tell(&mut a, "stash:aaaaaaaaaaaaaaaaaaaaaaaaaaaaa");
    }
    assert!(a.core.env.waiting_bytes <= 40, "{} bytes wait", a.core.env.waiting_bytes);
}

/// A request that is given up after so long.
fn ask(bed: &mut Bed, tag: u64, payload: &str, rest: Duration) {
    let ask = Ask { node: R, correlation: 9, deadline: bed.now + rest };
    let envelope = Envelope::new(S, Some(ask), b"k", payload.as_bytes()).unwrap();
    bed.lane(LaneItem::Msg { shard: S, tag: Epoch(tag), enter: None, parcel: Letter { envelope, bad: false } });
}

#[test]
fn who_watches_one_that_never_starts_hears_of_it() {
    let mut a = home();
    a.host.fail_start.insert(b"k".to_vec());
    tell(&mut a, "m1");
    tell(&mut a, "watch");
    for _ in 0..100 {
        a.pass(Duration::from_secs(1));
    }
    let log = said(&mut a);
    assert!(log.contains(&"drop m1 circuit_open".to_owned()), "{log:?}");
    a.host.fail_start.clear();
    tell(&mut a, "bye");
    let log = [log, said(&mut a)].concat();
    assert!(log.contains(&"watch 1 has ended".to_owned()), "{log:?}");
}

#[test]
fn who_watches_one_whose_only_message_expired_hears_of_it() {
    // It fails once; its only message is given up before the next start.
    let mut a = home();
    a.host.fail_start.insert(b"k".to_vec());
    ask(&mut a, 1, "m1", 50 * MS);
    tell(&mut a, "watch");
    a.host.fail_start.clear();
    for _ in 0..30 {
        a.pass(Duration::from_secs(1));
    }
    tell(&mut a, "bye");
    let log = said(&mut a);
    assert!(log.contains(&"watch 1 has ended".to_owned()), "{log:?}");
}

#[test]
fn the_same_without_a_failure_where_it_may_not_run() {
    let mut a = home();
    a.until(a.now);
    ask(&mut a, 1, "m1", 50 * MS);
    tell(&mut a, "watch");
    a.now = a.now + 100 * MS;
    a.until(Time::MAX);
    for _ in 0..30 {
        a.pass(Duration::from_secs(1));
    }
    let log = said(&mut a);
    assert!(log.contains(&"watch 1 has ended".to_owned()), "{log:?}");
}

#[test]
fn a_timer_that_moved_in_outlives_a_start_that_failed() {
    let (mut a, mut b) = (home(), Bed::new(B));
    tell(&mut a, "once:1:60000:rang");
    tell(&mut a, "node:13:gone");
    a.host.stateless = true;
    a.move_to(2, B);
    b.take_from(A, a.handed_to(B));
    b.host.fail_start.insert(b"k".to_vec());
    ask(&mut b, 2, "m1", 50 * MS);
    b.host.fail_start.clear();
    for _ in 0..70 {
        b.pass(Duration::from_secs(1));
    }
    b.removed(R);
    let log = b.log();
    assert!(log.contains(&"k:rang".to_owned()) && log.contains(&"k:gone".to_owned()), "{log:?}");
}

#[test]
fn a_watch_of_a_node_that_was_removed_meanwhile_is_told_on_the_new_home() {
    for stateless in [false, true] {
        let (mut a, mut b) = (home(), Bed::new(B));
        tell(&mut a, "node:13:gone");
        a.host.stateless = stateless;
        a.move_to(2, B);
        b.removed(R);
        b.take_from(A, a.handed_to(B));
        for _ in 0..10 {
            b.pass(Duration::from_secs(1));
        }
        let log = b.log();
        assert!(log.contains(&"k:gone".to_owned()), "stateless {stateless}: {log:?}");
    }
}

#[test]
fn who_watches_no_more_is_not_told() {
    let mut a = home();
    ["m1", "watch", "unwatch", "bye"].iter().for_each(|text| tell(&mut a, text));
    assert_eq!(said(&mut a), ["k:m1", "k:bye", "stop k passivated"]);
}

#[test]
fn who_watched_from_a_node_that_is_gone_takes_no_room() {
    let mut a = home();
    a.core.env.limits.mailbox = 1;
    ["m1", "w#1", "w#2", "w#3"].iter().for_each(|text| tell(&mut a, text));
    assert_eq!(said(&mut a), ["k:m1", "watch 3 has ended"], "there is a bound");
    a.removed(R);
    tell(&mut a, "w#4");
    tell(&mut a, "bye");
    assert_eq!(said(&mut a), ["k:bye", "stop k passivated", "watch 4 has ended"]);
}

#[test]
fn a_watch_is_known_by_its_names_for_as_long_as_the_instance_lives() {
    let mut a = home();
    ["m1", "w#1", "2was1", "2was1", "a#2", "3was2"].iter().for_each(|text| tell(&mut a, text));
    assert_eq!(said(&mut a), ["k:m1"]);
    tell(&mut a, "bye");
    assert_eq!(said(&mut a), ["k:bye", "stop k passivated", "watch 3 has ended"]);
    ["m2", "a#3", "4was3", "w#5"].iter().for_each(|text| tell(&mut a, text));
    let log = said(&mut a);
    assert_eq!(log[log.len() - 2..], ["watch 3 has ended", "watch 4 has ended"], "the next instance is another one: {log:?}");
}

#[test]
fn a_watch_travels_with_the_state_of_who_is_watched_and_ends_without_one() {
    for stateless in [false, true] {
        let (mut a, mut b) = (home(), Bed::new(B));
        tell(&mut a, "m1");
        tell(&mut a, "w#1");
        a.host.stateless = stateless;
        a.log();
        a.move_to(2, B);
        let ended = a.log().contains(&"watch 1 has ended".to_owned());
        b.take_from(A, a.handed_to(B));
        let item = LaneItem::Msg { shard: S, tag: Epoch(2), enter: None, parcel: letter("k", "bye") };
        b.lane(item);
        let told = b.log().contains(&"watch 1 has ended".to_owned());
        assert_eq!((ended, told), (stateless, !stateless));
    }
}

#[test]
fn what_travels_finds_room_where_it_comes_to() {
    let (mut a, mut b) = (home(), Bed::new(B));
    for bed in [&mut a, &mut b] {
        bed.core.env.limits.mailbox = 4;
    }
    (0..4).for_each(|n| tell(&mut a, &format!("stash:s{n}")));
    a.host.open_asks = (0..4).map(|n| letter("k", &format!("o{n}"))).collect();
    a.move_to(2, B);
    b.host.fail_start.insert(b"k".to_vec());
    b.take_from(A, a.handed_to(B));
    // What comes later has none.
    b.lane(LaneItem::Msg { shard: S, tag: Epoch(2), enter: None, parcel: letter("k", "late") });
    b.host.fail_start.clear();
    b.pass(Duration::from_secs(1));
    let dropped: Vec<String> = b.log().into_iter().filter(|line| line.starts_with("drop")).collect();
    assert_eq!(dropped, ["drop late mailbox_full"]);
}

#[test]
fn what_an_open_ask_comes_to_travels_though_the_mailbox_is_full() {
    let (mut a, mut b) = (home(), Bed::new(B));
    for bed in [&mut a, &mut b] {
        bed.core.env.limits.mailbox = 4;
    }
    tell(&mut a, "m");
    a.log();
    // As it hands over, it has something to say to itself; and it has asked.
    a.host.at_hand_over = (0..4).map(|n| (b"k".to_vec(), Wish::Own(letter("k", &format!("own{n}"))))).collect();
    a.host.open_asks = (0..4).map(|n| letter("k", &format!("answer{n}"))).collect();
    a.move_to(2, B);
    assert_eq!(a.log(), ["stop k moved"]);
    b.take_from(A, a.handed_to(B));
    assert_eq!(said(&mut b).len(), 8);
}
