//! Lanes with two exits, the worker's side (moves.md section 13).

use super::*;

const L: LaneId = LaneId(1);

fn tell(tag: u64, enter: Option<u64>, payload: &str) -> LaneItem<Letter> {
    LaneItem::Msg { shard: S, tag: Epoch(tag), enter: enter.map(Epoch), parcel: letter("k", payload) }
}

fn leave(k: u64) -> LaneItem<Letter> {
    LaneItem::Leave { shard: S, k: Epoch(k) }
}

fn open(k: u64, yes: bool) -> ShardCommand {
    ShardCommand::Open { lane: L, shard: S, k: Epoch(k), yes }
}

fn back(payload: &str) -> ShardReport {
    ShardReport::Back { lane: L, envelope: envelope("k", payload) }
}

fn left(k: u64) -> ShardReport {
    ShardReport::Left { lane: L, shard: S, k: Epoch(k) }
}

fn home(epoch: u64) -> Bed {
    let mut bed = Bed::new(A);
    bed.assign(epoch, epoch);
    bed.reports();
    bed
}

#[test]
fn a_settled_lane_runs_at_once() {
    let mut a = home(1);
    a.lane(tell(1, None, "m0"));
    assert_eq!(a.log(), ["start k@1 FirstMessage", "k:m0"]);
}

#[test]
fn l1_what_enters_waits_until_the_old_exit_is_drained() {
    let mut a = home(1);
    a.lane(tell(1, Some(1), "m1"));
    a.lane(tell(1, None, "m2"));
    assert_eq!(a.log(), [""; 0]);
    a.msg(1, Mode::Settled, "m0");
    a.command(open(1, true));
    a.lane(tell(1, None, "m3"));
    assert_eq!(a.log(), ["start k@1 FirstMessage", "k:m0", "k:m1", "k:m2", "k:m3"]);
    assert_eq!(a.reports(), []);
}

#[test]
fn an_open_that_comes_first_is_remembered_once() {
    let mut a = home(1);
    a.command(open(1, true));
    a.lane(tell(1, Some(1), "m0"));
    assert_eq!(a.log(), ["start k@1 FirstMessage", "k:m0"]);
    assert!(a.core.exits.is_clear());
}

#[test]
fn l3_a_lane_that_is_opened_with_no_goes_back_until_it_leaves() {
    let mut a = home(1);
    a.lane(tell(1, Some(1), "m0"));
    a.lane(tell(1, None, "m1"));
    a.command(open(1, false));
    a.lane(tell(1, None, "m2"));
    a.lane(leave(1));
    assert_eq!(a.reports(), [back("m0"), back("m1"), back("m2"), left(1)]);
    assert_eq!(a.log(), [""; 0]);
    assert!(a.core.exits.is_clear());
}

#[test]
fn l5_what_comes_before_the_shard_runs_goes_back() {
    let mut a = Bed::new(A);
    a.lane(tell(1, None, "m0"));
    assert_eq!(a.reports(), [back("m0")]);
}

#[test]
fn l6_what_comes_after_the_stay_goes_back_and_is_not_forwarded() {
    let mut a = home(1);
    a.lane(tell(1, None, "m0"));
    a.move_to(2, B);
    a.reports();
    a.lane(tell(1, None, "m1"));
    a.lane(leave(1));
    assert_eq!(a.reports(), [back("m1"), left(1)]);
}

#[test]
fn l7_a_tag_of_an_earlier_stay_is_not_taken_by_a_later_one() {
    let mut a = home(1);
    a.move_to(2, B);
    a.take_from(B, vec![empty_transfer(3, 1, true)]);
    a.reports();
    a.lane(tell(1, None, "m0"));
    assert_eq!(a.reports(), [back("m0")]);
    a.lane(tell(3, None, "m1"));
    assert_eq!(a.log(), ["start k@3 FirstMessage", "k:m1"]);
}

#[test]
fn l8_a_change_between_two_stays_is_held_like_any_other() {
    let mut a = home(1);
    a.move_to(2, B);
    a.take_from(B, vec![empty_transfer(3, 1, true)]);
    a.reports();
    a.lane(tell(1, None, "m0"));
    a.lane(leave(1));
    a.lane(tell(3, Some(3), "m1"));
    assert_eq!(a.reports(), [back("m0"), left(1)]);
    assert_eq!(a.log(), [""; 0], "m0 is in the network's lane");
    a.msg(3, Mode::Settled, "m0");
    a.command(open(3, true));
    assert_eq!(a.log(), ["start k@3 FirstMessage", "k:m0", "k:m1"]);
}

#[test]
fn l11_a_stopping_home_still_takes_items_of_its_stay() {
    let mut a = home(1);
    a.until(Time::ZERO);
    a.move_to(2, B);
    a.lane(tell(1, None, "m0"));
    assert_eq!(a.reports(), []);
    a.until(Time::MAX);
    assert_eq!(a.log(), ["start k@1 FirstMessage", "k:m0", "stop k moved"]);
}

#[test]
fn tokens_held_in_the_queue_keep_their_place() {
    let mut a = home(1);
    a.lane(tell(1, Some(1), "m0"));
    a.lane(leave(1));
    a.lane(tell(4, Some(4), "m1"));
    a.command(open(1, true));
    assert_eq!(a.log(), ["start k@1 FirstMessage", "k:m0"]);
    assert_eq!(a.reports(), [left(1)]);
    a.assign(4, 4);
    a.reports();
    a.command(open(4, true));
    assert_eq!(a.log(), ["k:m1"]);
    assert!(a.core.exits.is_clear());
}

// failures: row 51
#[test]
fn l9_holds_are_bounded_and_never_refuse_a_sign() {
    let mut a = home(1);
    a.lane(tell(1, Some(1), "m0"));
    (1..5).for_each(|n| a.lane(tell(1, None, &format!("m{n}"))));
    a.lane(leave(1));
    assert_eq!(a.log(), ["drop m3 held_full", "drop m4 held_full"]);
    // The room of the worker is used up: even a first item is refused, and leaves its Enter.
    a.core.handle_lane(a.now, LaneId(2), tell(1, Some(1), "n0"), &mut a.host);
    a.core.handle_lane(a.now, LaneId(2), tell(1, None, "n1"), &mut a.host);
    assert_eq!(a.log(), ["drop n0 held_full", "drop n1 held_full"]);
    a.command(open(1, true));
    assert_eq!(a.log(), ["start k@1 FirstMessage", "k:m0", "k:m1", "k:m2"]);
    assert_eq!(a.reports(), [left(1)]);
    a.core.handle_lane(a.now, LaneId(2), tell(1, None, "n2"), &mut a.host);
    assert_eq!(a.log(), [""; 0], "still held by the Enter that stayed");
    a.command(ShardCommand::Open { lane: LaneId(2), shard: S, k: Epoch(1), yes: true });
    assert_eq!(a.log(), ["k:n2"]);
}

// failures: row 51
#[test]
fn a_lane_of_which_much_is_held_keeps_the_rest_in_its_ring() {
    let mut a = home(1);
    assert!(a.core.has_room(LaneId(1), 100), "nothing of it is held");
    a.lane(tell(1, Some(1), "m0"));
    assert!(a.core.has_room(LaneId(1), 2) && !a.core.has_room(LaneId(1), 3), "three in all");
    assert!(a.core.has_room(LaneId(2), 100), "of another lane nothing is held");
    a.lane(tell(1, None, "m1"));
    assert!(!a.core.has_room(LaneId(1), 2));
    a.command(open(1, true));
    assert!(a.core.has_room(LaneId(1), 100));
    assert_eq!(a.log()[1..], ["k:m0", "k:m1"], "none was refused");
}

#[test]
fn the_end_of_a_lane_is_passed_on_behind_what_is_held() {
    let mut a = home(1);
    a.lane(tell(1, Some(1), "m0"));
    a.lane(leave(1));
    a.lane(LaneItem::End);
    assert_eq!(a.reports(), []);
    a.command(open(1, false));
    assert_eq!(a.reports(), [back("m0"), left(1), ShardReport::End { lane: L }]);
    assert!(a.core.exits.is_clear());
    a.lane(LaneItem::End);
    assert_eq!(a.reports(), [ShardReport::End { lane: L }], "the number of the lane is used again");
}

#[test]
fn the_end_of_a_stay_makes_going_back_a_matter_of_tags() {
    let mut a = home(1);
    a.command(open(1, false));
    a.lane(tell(1, Some(1), "m0"));
    assert!(!a.core.exits.is_clear());
    a.move_to(2, B);
    assert!(a.core.exits.is_clear());
    a.reports();
    a.lane(tell(1, None, "m1"));
    assert_eq!(a.reports(), [back("m1")]);
}

#[test]
fn what_cannot_be_encoded_ends_here() {
    let mut a = Bed::new(A);
    a.lane(LaneItem::Msg { shard: S, tag: Epoch(1), enter: None, parcel: Letter { bad: true, ..letter("k", "m0") } });
    assert_eq!((a.log(), a.reports()), (vec!["drop m0 undecodable".to_string()], vec![]));
}
