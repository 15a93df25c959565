//! What was under way when a link ended, and who counts it.

use super::*;

/// Two nodes with a link: the second has read so many frames of the first, and taken one.
fn one_taken_of(frames: u64) -> (Node, Node) {
    let (mut a, mut b) = (Node::new(1), Node::new(2));
    let at_b = b.me.clone();
    a.send(&at_b.addr, Some(at_b.id()), &numbered(0)).unwrap();
    until([&mut a, &mut b], "up", |[_, b]| b.frames.len() == 1);
    b.takes = false;
    (1..frames).for_each(|n| a.send(&at_b.addr, Some(at_b.id()), &numbered(n)).unwrap());
    until([&mut a, &mut b], "read", |[_, b]| b.counter("link_bytes_in") >= frames * 32);
    (a, b)
}

#[test]
fn closing_forgets_what_was_read_and_not_handed_out() {
    let (mut a, mut b) = one_taken_of(100);
    let (at_a, at_b) = (a.me.clone(), b.me.clone());
    let now = b.now();
    b.net.close(now, at_a.id(), &at_a.addr);
    b.takes = true;
    until([&mut a, &mut b], "down", |[a, b]| a.downs().len() == 1 && b.downs() == [&LinkDown::Closed]);
    assert_eq!(b.frames.len(), 1);
    assert_eq!(b.counter("link_bytes_discarded"), 99 * 32);
    // The next session tells how many of them were not taken in.
    a.send(&at_b.addr, Some(at_b.id()), &numbered(100)).unwrap();
    until([&mut a, &mut b], "the next session", |[_, b]| b.frames.len() == 2);
    assert_eq!(a.counter("frames_lost_in_flight"), 99);
}

#[test]
fn whoever_dials_anybody_at_an_address_says_what_it_took_of_the_last_one_there() {
    let (mut a, mut b) = one_taken_of(100);
    let at_a = a.me.clone();
    let now = b.now();
    b.net.close(now, at_a.id(), &at_a.addr);
    b.takes = true;
    until([&mut a, &mut b], "down", |[a, _]| a.downs().len() == 1);
    b.send(&at_a.addr, None, &numbered(1)).unwrap();
    until([&mut a, &mut b], "the next session", |[a, _]| a.frames.len() == 1);
    assert_eq!(a.counter("frames_lost_in_flight"), 99);
}

#[test]
fn what_was_counted_as_a_link_was_closed_is_not_counted_again() {
    let (mut a, mut b) = one_taken_of(6);
    let (at_a, at_b) = (a.me.clone(), b.me.clone());
    let now = a.now();
    a.net.close(now, at_b.id(), &at_b.addr);
    let counted = a.counter("frames_lost_in_flight");
    assert!((5..=6).contains(&counted), "{counted}: of those behind which nothing came");
    let now = b.now();
    b.net.close(now, at_a.id(), &at_a.addr);
    b.takes = true;
    a.send(&at_b.addr, Some(at_b.id()), &numbered(7)).unwrap();
    until([&mut a, &mut b], "the next session", |[_, b]| b.frames.len() == 2);
    assert_eq!(a.counter("frames_lost_in_flight"), counted);
}
