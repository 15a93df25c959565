//! Host names: what they lead to, and who answers there.

use super::*;

#[test]
fn simultaneous_dials_under_another_name_settle_on_one_session() {
    for round in 0..20 {
        let (mut a, mut b) = (Node::new(round), Node::new(round + 100));
        let names = [NodeAddr::new("localhost", a.me.addr.port), NodeAddr::new("localhost", b.me.addr.port)];
        a.send(&names[1], None, &numbered(1)).unwrap();
        b.send(&names[0], None, &numbered(1)).unwrap();
        for (node, name) in [(&mut a, &names[1]), (&mut b, &names[0])] {
            assert_eq!(node.net.next(|_, _| false), Some(NetEvent::Resolve { addr: name.clone() }));
            let now = node.now();
            node.net.resolved(now, name, Ok(vec![SocketAddr::from(([127, 0, 0, 1], name.port))]));
        }
        until([&mut a, &mut b], "one session", |[a, b]| {
            a.counter("links_up") == 1
                && b.counter("links_up") == 1
                && a.counter("connections") == 1
                && b.counter("connections") == 1
                && a.net.links_info()[0].session == b.net.links_info()[0].session
        });
        a.send(&names[1], None, &numbered(2)).unwrap();
        b.send(&names[0], None, &numbered(2)).unwrap();
        until([&mut a, &mut b], "frames under the other name", |[a, b]| a.numbers().contains(&2) && b.numbers().contains(&2));
    }
}

/// The name of a seed is none that its node advertises.
#[test]
fn a_dial_by_another_name_uses_the_session_that_is_up() {
    for lower_dials in [false, true] {
        let (mut a, mut b) = (Node::new(1), Node::new(2));
        if (a.me.id() < b.me.id()) != lower_dials {
            std::mem::swap(&mut a, &mut b);
        }
        let (at_a, name) = (a.me.clone(), NodeAddr::new("localhost", b.me.addr.port));
        // Each numbers its dials by itself.
        b.net.dialled = 1_000;
        b.send(&at_a.addr, Some(at_a.id()), &numbered(1)).unwrap();
        until([&mut a, &mut b], "a session", |[a, _]| a.numbers() == [1]);
        a.send(&name, None, &numbered(2)).unwrap();
        until([&mut a, &mut b], "the question", |[a, _]| !a.resolve.is_empty());
        let (now, there) = (a.now(), b.net.local_addr());
        a.net.resolved(now, &name, Ok(vec![there]));
        // What waited there needs no flush.
        a.flushes = false;
        until([&mut a, &mut b], "a frame under the other name", |[_, b]| b.numbers() == [2]);
        a.flushes = true;
        a.send(&name, None, &numbered(3)).unwrap();
        until([&mut a, &mut b], "another one", |[_, b]| b.numbers() == [2, 3]);
        assert_eq!((a.ups(), b.ups(), a.downs().len(), b.downs().len()), (1, 1, 0, 0), "{:?} {:?}", a.links, b.links);
        assert_eq!((a.counter("dials"), b.counter("dials"), a.net.links_info().len()), (1, 1, 1));
    }
}

// failures: row 20
#[test]
fn a_name_is_resolved_by_the_caller_and_errors_are_passed_on() {
    let (mut a, mut b) = (Node::new(1), Node::new(2));
    let name = NodeAddr::new("node-b.test", b.me.addr.port);
    a.send(&name, None, &numbered(1)).unwrap();
    let now = a.now();
    a.net.send_datagram(now, &name, b"early");
    until([&mut a], "the question", |[a]| !a.resolve.is_empty());
    a.net.resolved(now, &name, Err("no such host".into()));
    until([&mut a], "the error", |[a]| a.downs().len() == 1);
    assert_eq!(a.downs()[0], &LinkDown::Unresolved("no such host".into()));
    until([&mut a], "the next question", |[a]| a.resolve.len() == 3);
    // The closed port comes first: the next address of the name is tried before anything is reported.
    let found = vec![SocketAddr::from(([127, 0, 0, 1], nobody().port)), SocketAddr::from(([127, 0, 0, 1], name.port))];
    let now = a.now();
    a.net.resolved(now, &name, Ok(found));
    until([&mut a, &mut b], "the frame", |[_, b]| b.frames.len() == 1);
    assert_eq!(a.downs().len(), 1);
    assert_eq!(a.counter("datagrams_unresolved"), 1);
    assert!(a.links.iter().any(|l| matches!(l, LinkEvent::Up { addr, .. } if *addr == b.me.addr)));
}

#[test]
fn a_node_that_dials_itself_is_told_so() {
    let mut a = Node::new(1);
    let name = NodeAddr::new("localhost", a.me.addr.port);
    a.send(&name, None, &numbered(1)).unwrap();
    until([&mut a], "the question", |[a]| !a.resolve.is_empty());
    let (now, local) = (a.now(), a.net.local_addr());
    a.net.resolved(now, &name, Ok(vec![local]));
    until([&mut a], "the answer", |[a]| matches!(a.downs()[..], [LinkDown::Itself]));
}

#[test]
fn a_name_that_leads_back_and_to_others_leads_to_those() {
    let (mut a, mut b) = (Node::new(1), Node::new(2));
    let name = NodeAddr::new("localhost", a.me.addr.port);
    a.send(&name, None, &numbered(1)).unwrap();
    until([&mut a], "the question", |[a]| !a.resolve.is_empty());
    let (now, all) = (a.now(), vec![a.net.local_addr(), b.net.local_addr()]);
    a.net.resolved(now, &name, Ok(all));
    until([&mut a, &mut b], "the frame", |[_, b]| b.frames.len() == 1);
    assert!(a.downs().is_empty());
}

#[test]
fn who_answers_where_a_stale_name_leads_is_not_another_life_of_who_was_meant() {
    let (mut a, mut b, mut c) = (Node::new(1), Node::new(2), Node::new(3));
    let name = NodeAddr::new("localhost", a.me.addr.port);
    let meant = NodeId::new(&name, 7);
    a.send(&name, Some(meant), &numbered(1)).unwrap();
    until([&mut a], "the question", |[a]| !a.resolve.is_empty());
    let (now, all) = (a.now(), vec![b.net.local_addr(), c.net.local_addr()]);
    a.net.resolved(now, &name, Ok(all));
    until([&mut a, &mut b, &mut c], "the report", |[a, ..]| !a.downs().is_empty());
    // Both of its addresses were tried, and the frame waits for the next time.
    let elsewhere = LinkEvent::Down { peer: Some(meant), addr: name.clone(), cause: LinkDown::Elsewhere(c.me.id()), lost: 0 };
    assert_eq!(a.links, [elsewhere]);
    assert_eq!((a.counter("dials"), a.counter("frames_lost")), (2, 0));
    // Who is heard without being asked for does not take it either.
    a.send(&name, None, &numbered(2)).unwrap();
    until([&mut a], "the next question", |[a]| a.resolve.len() > 1);
    let (now, there) = (a.now(), vec![b.net.local_addr()]);
    a.net.resolved(now, &name, Ok(there));
    until([&mut a, &mut b, &mut c], "who answers has its own", |[_, b, _]| b.frames.len() == 1);
    assert_eq!((b.numbers(), a.counter("frames_lost")), (vec![2], 0));
}

#[test]
fn datagrams_go_where_the_link_to_a_name_goes() {
    let (mut a, mut b) = (Node::new(1), Node::new(2));
    let name = NodeAddr::new("node-b.test", b.me.addr.port);
    // Nobody is at the first address.
    let found = || Ok(vec![SocketAddr::from(([127, 0, 0, 1], nobody().port)), SocketAddr::from(([127, 0, 0, 1], name.port))]);
    a.send(&name, None, &numbered(1)).unwrap();
    until([&mut a], "the question", |[a]| !a.resolve.is_empty());
    let now = a.now();
    a.net.resolved(now, &name, found());
    until([&mut a, &mut b], "the frame", |[_, b]| b.frames.len() == 1);
    let now = a.now();
    a.net.send_datagram(now, &name, b"one");
    a.net.resolved(now, &name, found());
    a.net.send_datagram(now, &name, b"two");
    until([&mut a, &mut b], "both", |[_, b]| b.datagrams == [b"one", b"two"]);
    // Once the name has it no more it is forgotten.
    a.net.resolved(now, &name, Ok(vec![a.net.local_addr()]));
    a.net.send_datagram(now, &name, b"three");
    until([&mut a], "elsewhere", |[a]| a.datagrams == [b"three"]);
}
