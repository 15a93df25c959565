//! How soon a peer is dialled again.

use super::{
    links::{limited, message},
    *,
};

/// Two with a session between them, the first of which has frames that the second has not read.
fn full(lasts: Duration) -> [Node; 2] {
    let config = limited(|l| l.link_bytes = 1 << 20);
    let (mut a, mut b) = (Node::with(&config, 1), Node::with(&config, 2));
    let at_b = b.me.clone();
    a.send(&at_b.addr, Some(at_b.id()), &numbered(0)).unwrap();
    until([&mut a, &mut b], "up", |[_, b]| b.frames.len() == 1);
    while a.send(&at_b.addr, Some(at_b.id()), &message(60_000)).is_ok() {
        a.turn();
    }
    a.stop_after(lasts);
    let (now, at_a) = (b.now(), a.me.clone());
    b.net.close(now, at_a.id(), &at_a.addr);
    [a, b]
}

#[test]
fn a_session_that_lasted_is_dialled_again_at_once_for_what_waits() {
    let [mut a, mut b] = full(Config::default().membership.seed_timeout.get());
    until([&mut a, &mut b], "the next session, in no time", |[a, _]| a.ups() == 2);
}

#[test]
fn a_session_that_ends_as_soon_as_it_is_up_is_dialled_behind_a_pause() {
    let [mut a, mut b] = full(Duration::ZERO);
    until([&mut a, &mut b], "the end", |[a, _]| a.downs() == [&LinkDown::Reset]);
    (0..20).for_each(|_| a.turn());
    assert_eq!(a.counter("dials"), 1);
    a.stop_after(Duration::from_millis(63));
    until([&mut a, &mut b], "the next session", |[a, _]| a.ups() == 2);
}

#[test]
fn a_dial_that_is_reset_is_soon_followed_by_the_next_one() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let addr = NodeAddr::from(listener.local_addr().unwrap());
    let mut a = Node::new(1);
    a.stop_after(Duration::ZERO);
    a.send(&addr, None, &numbered(1)).unwrap();
    for pause in [3, 5] {
        let before = a.downs().len();
        until([&mut a], "it is let in", |_| listener.accept().is_ok());
        until([&mut a], "the port closes as it answers", |[a]| a.downs().len() > before);
        a.stop_after(Duration::from_millis(pause));
    }
    drop(listener);
    until([&mut a], "it is closed", |[a]| a.downs() == [&LinkDown::Reset, &LinkDown::Reset, &LinkDown::Refused]);
}
