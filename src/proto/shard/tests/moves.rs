//! The counter-examples of moves.md section 12 that the home side answers.

use super::*;

/// A home under epoch 1, its stream's first message under way; then a move to B under 2.
fn moved() -> (Bed, Bed) {
    let (mut a, mut b) = (Bed::new(A), Bed::new(B));
    a.assign(1, 1);
    a.move_to(2, B);
    b.take_from(A, a.handed_to(B));
    b.reports();
    (a, b)
}

#[test]
fn ce_1_a_message_of_the_new_tag_waits_for_the_fence_behind_the_old_one() {
    let (mut a, mut b) = moved();
    b.msg(2, wait(1), "m1");
    a.msg(1, Mode::Settled, "m0");
    a.item(Item::Fence { p: Epoch(1) });
    b.take_from(A, a.handed_to(B));
    assert_eq!(b.log(), ["start k@2 FirstMessage", "k:m0", "k:m1"]);
    assert_eq!(b.reports(), [ack(1)]);
}

#[test]
fn ce_3_a_home_under_a_later_epoch_still_forwards_by_the_old_route() {
    let (mut a, mut b) = moved();
    a.msg(1, Mode::Settled, "m0");
    let m0 = a.handed_to(B);
    b.move_to(3, A);
    a.take_from(B, b.handed_to(A));
    assert_eq!(a.handed_to(B), [], "home again");
    a.item(Item::Fence { p: Epoch(1) });
    a.msg(1, Mode::Settled, "m1");
    assert_eq!(a.log(), [""; 0], "epoch 1 goes by B, whoever is home now");
    let rest = a.handed_to(B);
    b.take_from(A, m0);
    b.take_from(A, rest);
    a.take_from(B, b.handed_to(A));
    assert_eq!(a.log(), ["start k@3 FirstMessage", "k:m0", "drop m1 late"]);
}

#[test]
fn ce_5_the_gate_travels() {
    let (mut a, mut b) = moved();
    b.msg(2, wait(1), "m1");
    b.move_to(3, C);
    let mut c = Bed::new(C);
    c.take_from(B, b.handed_to(C));
    a.msg(1, Mode::Settled, "m0");
    a.item(Item::Fence { p: Epoch(1) });
    b.take_from(A, a.handed_to(B));
    c.take_from(B, b.handed_to(C));
    assert_eq!(c.log(), ["start k@3 FirstMessage", "k:m0", "k:m1"]);
}

#[test]
fn ce_9_what_a_removed_node_was_on_the_way_with_is_given_up_before_what_was_retargeted() {
    let (mut a, mut b) = moved();
    b.move_to(3, C);
    let mut c = Bed::new(C);
    c.take_from(B, b.handed_to(C));
    a.msg(1, Mode::Settled, "m0");
    b.take_from(A, a.handed_to(B));
    let unread = b.handed_to(C);
    a.record(3, C);
    a.removed(B);
    a.msg(1, Mode::Settled, "m1");
    c.take_from(A, a.handed_to(C));
    assert_eq!(c.log(), [""; 0], "the lane from A waits until C has processed the removal too");
    c.forwarded(A, 3, &[], message(1, Mode::Settled, "m2"));
    c.take_from(B, unread);
    c.removed(B);
    assert_eq!(c.log(), ["start k@3 FirstMessage", "k:m0", "k:m1", "k:m2"]);
}

#[test]
fn ce_10_what_comes_behind_over_is_late() {
    let (mut a, mut b) = moved();
    a.msg(1, Mode::Settled, "m0");
    let unread = a.handed_to(B);
    b.msg(2, Mode::Over(Epoch(1)), "m1");
    b.take_from(A, unread);
    assert_eq!(b.log(), ["start k@2 FirstMessage", "k:m1", "drop m0 late"]);
    assert_eq!(b.reports(), [ack(1)]);
}

#[test]
fn ce_12_a_start_without_state_refuses_older_tags() {
    let mut a = Bed::new(A);
    a.assign(1, 1);
    a.move_to(2, B);
    a.removed(B);
    a.assign(3, 3);
    a.msg(1, Mode::Settled, "m0");
    assert_eq!(a.log(), ["drop m0 home_lost"]);
}

#[test]
fn ce_17_old_bytes_behind_a_fence_are_late_not_reordered() {
    let (mut a, mut b) = moved();
    a.item(Item::Fence { p: Epoch(1) });
    a.msg(1, Mode::Settled, "m0");
    b.msg(2, wait(1), "m1");
    b.take_from(A, a.handed_to(B));
    assert_eq!(b.log(), ["start k@2 FirstMessage", "k:m1", "drop m0 late"]);
}

#[test]
fn ce_23_a_gate_taken_over_after_the_removal_releases_what_it_holds() {
    let (mut a, mut b) = moved();
    b.msg(2, wait(1), "m1");
    b.move_to(3, A);
    a.removed(R);
    a.take_from(B, b.handed_to(A));
    assert_eq!(a.log(), ["start k@3 FirstMessage", "k:m1"]);
    a.forwarded(B, 3, &[], message(1, Mode::Settled, "m0"));
    assert_eq!(a.log(), ["drop m0 sender_removed"]);
}

#[test]
fn ce_26_what_waited_for_an_epoch_that_never_was_goes_through_the_gate() {
    let mut b = Bed::new(B);
    b.msg(2, Mode::Settled, "m0");
    // Record 3 was A's; the news about 2 never came. Move 4 A -> B did.
    b.take_from(A, vec![empty_transfer(4, 1, true)]);
    b.msg(4, Mode::Settled, "m1");
    assert_eq!(b.log(), ["start k@4 FirstMessage", "k:m0", "k:m1"]);
}

#[test]
fn ce_27_the_choice_for_a_forgotten_epoch_is_pinned_also_when_it_is_this_node() {
    let (mut a, _) = moved();
    let route = a.core.shards[0].routes.iter().next().unwrap().id;
    a.core.shards[0].routes.by_id(route).unwrap().probe = Some(77);
    a.command(ShardCommand::ProbeAck { shard: S, route, number: 77 });
    a.record(3, A);
    a.msg(1, Mode::Settled, "m0");
    a.item(Item::Fence { p: Epoch(1) });
    assert_eq!(a.reports().iter().filter(|r| matches!(r, ShardReport::Handoff { .. })).count(), 0);
    a.take_from(C, vec![empty_transfer(3, 1, true)]);
    assert_eq!(a.log(), ["start k@3 FirstMessage", "k:m0"]);
    assert_eq!(a.reports(), [owned(3, true), running(3, 3), ack(1)]);
    assert_eq!(a.core.shards[0].routes.iter().count(), 0, "such a route goes when the node is home");
}

#[test]
fn a_stalled_lane_is_bounded_and_dies_with_its_node() {
    let mut c = Bed::new(C);
    c.assign(3, 3);
    for n in 0..5 {
        c.forwarded(A, 3, &[B], message(3, Mode::Settled, &format!("m{n}")));
    }
    assert_eq!(c.log(), ["drop m3 move_buffer_full", "drop m4 move_buffer_full"]);
    c.removed(A);
    assert_eq!(c.log(), ["drop m0 link_lost", "drop m1 link_lost", "drop m2 link_lost"]);
}

#[test]
fn back_and_forth_many_times_keeps_state_and_order() {
    let (mut a, mut b) = (Bed::new(A), Bed::new(B));
    a.assign(1, 1);
    for epoch in 1..40 {
        let (from, to, at, next) = if epoch % 2 == 1 { (&mut a, &mut b, A, B) } else { (&mut b, &mut a, B, A) };
        from.msg(epoch, Mode::Settled, ".");
        from.move_to(epoch + 1, next);
        from.msg(epoch, Mode::Settled, ",");
        to.take_from(at, from.handed_to(next));
    }
    let state = b.core.with_entity(S, b"k", |e| e.1.clone()).unwrap();
    assert_eq!(state, ".,".repeat(39));
}
