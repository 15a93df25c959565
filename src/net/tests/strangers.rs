//! Peers played by hand: bytes that are wrong, late, too many, or come from too many connections.

use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
};

use super::*;
use crate::{
    config::Span,
    net::stream::Stream,
    proto::wire::{Accepted, Context, Greeting, LinkFrame, Refusal, SESSION_MAX, encode, encode_link},
};

fn quick(change: impl FnOnce(&mut crate::config::LimitsConfig)) -> Config {
    let mut config = Config::default();
    change(&mut config.limits);
    config
}

fn dial(node: &Node) -> TcpStream {
    let stream = TcpStream::connect(node.net.local_addr()).unwrap();
    stream.set_nonblocking(true).unwrap();
    stream
}

/// Whether the other side has closed the connection.
fn is_closed(stream: &mut TcpStream) -> bool {
    loop {
        match stream.read(&mut [0; 1024]) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(e) => return e.kind() != io::ErrorKind::WouldBlock,
        }
    }
}

/// A peer of its own address and life that greets by hand.
fn stranger(session: u64, port: u16) -> (NodeId, Vec<u8>) {
    stranger_who_wants(session, port, None)
}

fn stranger_who_wants(session: u64, port: u16, expects: Option<NodeId>) -> (NodeId, Vec<u8>) {
    let addr = NodeAddr::new("10.0.0.1", port);
    let node = NodeId::new(&addr, 5);
    let greeter = Greeter { cluster: "wingbeat".into(), protocol: ProtocolRange::MINE, node, addr };
    let mut hello = vec![];
    Greeting::Hello(greeter.hello(session, expects, None)).encode(&mut hello);
    (node, hello)
}

fn frame_bytes(n: u64) -> Vec<u8> {
    let mut out = vec![];
    encode(&numbered(n), Context { sender: NodeId::from_raw(0), now: Time::ZERO }, 1 << 20, &mut out).unwrap();
    out
}

// failures: row 66
#[test]
fn a_number_is_bound_for_both_protocols() {
    let sockets = Sockets::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    assert_ne!(sockets.local_addr().port(), 0);
    assert_eq!(sockets.udp.local_addr().unwrap(), sockets.tcp.local_addr().unwrap());
}

// failures: row 27
#[test]
fn a_port_in_use_is_named_with_its_protocol() {
    let taken = Sockets::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let addr = taken.local_addr();
    let error = Sockets::bind(addr).unwrap_err();
    assert_eq!((error.proto, error.addr), (Transport::Tcp, addr));
    let text = error.to_string();
    assert!(text.contains(&addr.to_string()) && text.contains("TCP"), "{text}");
    let Sockets { tcp, udp: _udp, .. } = taken;
    drop(tcp);
    let error = Sockets::bind(addr).unwrap_err();
    assert_eq!((error.proto, error.addr), (Transport::Udp, addr));
}

#[test]
fn an_address_of_no_interface_is_a_typed_error() {
    let error = Sockets::bind("192.0.2.1:0".parse().unwrap()).unwrap_err();
    assert_eq!(error.source.kind(), io::ErrorKind::AddrNotAvailable);
    let error = crate::StartError::Bind { proto: "TCP", addr: error.addr, setting: "node.listen", source: error.source };
    assert!(error.to_string().contains("no interface") && error.to_string().contains("node.listen"), "{error}");
}

// failures: row 1
#[test]
fn garbage_on_the_port_closes_the_connection_and_nothing_else() {
    let mut a = Node::new(1);
    for bytes in [&b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"[..], &[0xff; 100], &[0; 100], &[0x16, 3, 1, 2, 0, 1], &[7; 20_000]] {
        let mut stream = dial(&a);
        let _ = stream.write_all(bytes);
        until([&mut a], "closed", |_| is_closed(&mut stream));
    }
    assert_eq!(a.counter("hello_malformed"), 5);
    assert!(a.links.is_empty());
    let mut b = Node::new(2);
    b.send(&a.me.addr.clone(), None, &numbered(1)).unwrap();
    until([&mut a, &mut b], "a frame of a node", |[a, _]| a.frames.len() == 1);
}

// failures: row 2
#[test]
fn a_connection_that_says_nothing_is_closed_in_time() {
    let mut a = Node::with(&quick(|l| l.hello_deadline = Span::millis(50)), 1);
    let mut silent = dial(&a);
    let mut half = dial(&a);
    half.write_all(&stranger(1, 1).1[..10]).unwrap();
    until([&mut a], "closed", |_| is_closed(&mut silent) && is_closed(&mut half));
    assert_eq!(a.counter("hello_timeouts"), 2);
    assert_eq!(a.counter("connections"), 0);
}

// failures: rows 2, 9
#[test]
fn a_frame_that_trickles_in_is_given_up() {
    let mut a = Node::with(&quick(|l| l.frame_deadline = Span::millis(100)), 1);
    let mut slow = dial(&a);
    slow.write_all(&stranger(1, 1).1).unwrap();
    until([&mut a], "up", |[a]| a.ups() == 1);
    slow.write_all(&frame_bytes(1)).unwrap();
    // A frame of a million bytes, a few per turn: none of it late by itself, but never whole in time.
    slow.write_all(&1_000_000u32.to_le_bytes()).unwrap();
    until([&mut a], "closed", |[a]| {
        let _ = slow.write_all(&[0]);
        !a.downs().is_empty()
    });
    assert_eq!(a.downs(), [&LinkDown::TimedOut]);
    assert_eq!(a.counter("frame_timeouts"), 1);
    assert_eq!(a.frames.len(), 1, "what was whole was handed out");
}

// failures: row 3
#[test]
fn a_length_above_the_limit_closes_before_room_is_made() {
    let mut a = Node::new(1);
    let mut stream = dial(&a);
    let (_, mut bytes) = stranger(1, 1);
    bytes.extend(frame_bytes(1));
    bytes.extend(u32::MAX.to_le_bytes());
    stream.write_all(&bytes).unwrap();
    until([&mut a], "closed", |[a]| a.downs().len() == 1);
    let LinkDown::Protocol(why) = a.downs()[0] else { panic!("{:?}", a.downs()) };
    assert!(why.contains("4294967299 bytes") && why.contains("2097152"), "{why}");
    assert_eq!(a.numbers(), [1]);
}

#[test]
fn an_unknown_kind_closes_the_link_unless_it_is_optional() {
    let mut a = Node::new(1);
    let mut stream = dial(&a);
    let (_, mut bytes) = stranger(1, 1);
    let mut unknown = frame_bytes(1);
    unknown[4..6].copy_from_slice(&[99, 1]);
    bytes.extend(&unknown);
    bytes.extend(frame_bytes(2));
    unknown[5] = 0;
    bytes.extend(&unknown);
    bytes.extend(frame_bytes(3));
    stream.write_all(&bytes).unwrap();
    until([&mut a], "closed", |[a]| a.downs().len() == 1);
    assert!(matches!(a.downs()[0], LinkDown::Protocol(why) if why.contains("UnsupportedFrame(99)")));
    assert_eq!((a.numbers(), a.counter("frames_skipped")), (vec![2], 1));
}

#[test]
fn a_new_hello_of_the_same_life_replaces_its_session_and_its_unread_bytes() {
    let mut a = Node::new(1);
    let (node, hello) = stranger(1, 1);
    let mut first = dial(&a);
    first.write_all(&hello).unwrap();
    until([&mut a], "up", |[a]| a.ups() == 1);
    a.takes = false;
    first.write_all(&frame_bytes(1)).unwrap();
    until([&mut a], "read", |[a]| a.counter("link_bytes_in") as usize == hello.len() + 32);
    let mut second = dial(&a);
    second.write_all(&[stranger_who_wants(9, 1, Some(a.me.id())).1, frame_bytes(2)].concat()).unwrap();
    until([&mut a], "the second session", |[a]| a.counter("sessions_up") == 2);
    a.takes = true;
    until([&mut a], "the frame of the second session", |[a]| !a.frames.is_empty());
    assert_eq!(a.frames, [(node, 2)]);
    assert!(matches!(
        a.links[..],
        [LinkEvent::Up { .. }, LinkEvent::Down { cause: LinkDown::Reset, .. }, LinkEvent::Up { session: 9, .. }]
    ));
    until([&mut a], "the first connection is closed", |_| is_closed(&mut first));
    // A greeting that was under way since before is no reason to close the session.
    let mut late = dial(&a);
    late.write_all(&stranger(8, 1).1).unwrap();
    until([&mut a], "refused", |_| is_closed(&mut late));
    assert_eq!(a.counter("links_up"), 1);
    assert!(!is_closed(&mut second));
    // Nor is one of a peer that may not know whom it has dialled.
    let mut unnamed = dial(&a);
    unnamed.write_all(&stranger(10, 1).1).unwrap();
    until([&mut a], "refused", |_| is_closed(&mut unnamed));
    assert_eq!(a.counter("links_up"), 1);
    assert!(!is_closed(&mut second));
}

#[test]
fn who_holds_a_session_that_this_node_has_lost_is_dialled_again_as_the_one_wanted() {
    let mut a = Node::new(1);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let addr = NodeAddr::from(listener.local_addr().unwrap());
    let node = NodeId::new(&addr, 5);
    let greeter = Greeter { cluster: "wingbeat".into(), protocol: ProtocolRange::MINE, node, addr: addr.clone() };
    let next_hello = |a: &mut Node| {
        let mut stream = None;
        until([a], "a connection", |_| {
            stream = listener.accept().ok();
            stream.is_some()
        });
        let mut stream = stream.unwrap().0;
        stream.set_nonblocking(true).unwrap();
        let (mut bytes, mut greeting) = (vec![], None);
        until([a], "its greeting", |_| {
            let mut read = [0; 1024];
            bytes.extend(stream.read(&mut read).map_or(&[][..], |n| &read[..n]));
            greeting = Greeting::decode(&bytes).unwrap();
            greeting.is_some()
        });
        let Some((Greeting::Hello(hello), _)) = greeting else { panic!("{greeting:?}") };
        (stream, hello)
    };
    let answer = |stream: &mut TcpStream, greeting: Greeting| {
        let mut bytes = vec![];
        greeting.encode(&mut bytes);
        stream.write_all(&bytes).unwrap();
    };
    a.send(&addr, None, &numbered(1)).unwrap();
    let (mut first, hello) = next_hello(&mut a);
    assert_eq!(hello.expects, None);
    answer(&mut first, Greeting::Refusal(Refusal::Known { answers: node }));
    let (mut second, hello) = next_hello(&mut a);
    assert_eq!(hello.expects, Some(node));
    let welcome = greeter.welcome(Accepted { version: 1, session: hello.session }, None);
    answer(&mut second, Greeting::Welcome(welcome));
    until([&mut a], "the session", |[a]| a.ups() == 1 && a.net.unsent_bytes() == 0);
    assert_eq!((a.counter("dials"), a.counter("frames_lost"), a.downs().len()), (2, 0, 0));
}

#[test]
fn frames_before_the_end_of_a_connection_are_handed_out_before_it_is_reported() {
    let mut a = Node::new(1);
    let mut stream = dial(&a);
    let (_, mut bytes) = stranger(1, 1);
    for n in 0..5_000 {
        bytes.extend(frame_bytes(n));
    }
    bytes.extend(&frame_bytes(0)[..9]);
    stream.set_nonblocking(false).unwrap();
    stream.write_all(&bytes).unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    until([&mut a], "down", |[a]| a.downs().len() == 1);
    assert_eq!(a.frames.len(), 5_000);
    assert_eq!(a.counter("link_bytes_discarded"), 9);
}

#[test]
fn frames_before_the_end_of_a_connection_are_handed_out_though_a_write_fails() {
    let mut a = Node::new(1);
    let mut stream = dial(&a);
    let (node, hello) = stranger(1, 1);
    stream.write_all(&hello).unwrap();
    until([&mut a], "up", |[a]| a.ups() == 1);
    until([&mut a], "the answer", |_| stream.read(&mut [0; 1024]).is_ok());
    // More than is read in a turn, and no more than there is room for on this side.
    let frames: Vec<u8> = (0..5_000).flat_map(frame_bytes).collect();
    let (_, conn) = a.net.conns.iter().next().unwrap();
    let Stream::Plain(socket) = &conn.stream;
    socket2::SockRef::from(socket).set_recv_buffer_size(1 << 20).unwrap();
    stream.set_nonblocking(false).unwrap();
    stream.write_all(&frames).unwrap();
    drop(stream);
    let start = Instant::now();
    while socket.peek(&mut vec![0; frames.len()]).unwrap_or(0) < frames.len() {
        assert!(start.elapsed() < PATIENCE, "it has not arrived");
    }
    while a.downs().is_empty() {
        assert!(start.elapsed() < PATIENCE);
        // The first answer of a node that does not know of the end makes the other side say so, and the next one fails.
        let _ = a.send(&NodeAddr::new("10.0.0.1", 1), Some(node), &numbered(1));
        a.turn();
    }
    assert_eq!(a.frames.len(), 5_000);
}

// failures: row 69
#[test]
fn the_number_of_one_peer_is_not_used_up_by_another() {
    let mut a = Node::new(1);
    let (mut first, mut second) = (dial(&a), dial(&a));
    first.write_all(&stranger(SESSION_MAX, 1).1).unwrap();
    second.write_all(&stranger(SESSION_MAX - 1, 2).1).unwrap();
    until([&mut a], "the one that has a successor", |[a]| a.ups() == 1);
    let (mut b, mut c) = (Node::new(2), Node::new(3));
    let (at_a, at_b) = (a.me.clone(), b.me.clone());
    a.send(&at_b.addr, Some(at_b.id()), &numbered(1)).unwrap();
    c.send(&at_a.addr, None, &numbered(2)).unwrap();
    until([&mut a, &mut b, &mut c], "links", |[a, b, _]| b.numbers() == [1] && a.numbers() == [2]);
    let numbers = [&b, &c].map(|node| node.net.links_info()[0].session);
    assert!(numbers.iter().all(|number| *number < 10), "{numbers:?}");
    until([&mut a], "the other is none", |[a]| is_closed(&mut first) && a.counter("hello_malformed") == 1);
}

#[test]
fn two_nodes_find_back_from_a_number_that_is_the_last() {
    let (mut a, mut b) = (Node::new(1), Node::new(2));
    let (at_a, at_b) = (a.me.clone(), b.me.clone());
    let greeter = Greeter { cluster: "wingbeat".into(), protocol: ProtocolRange::MINE, node: at_b.id(), addr: at_b.addr.clone() };
    let mut hello = vec![];
    Greeting::Hello(greeter.hello(SESSION_MAX - 1, Some(at_a.id()), None)).encode(&mut hello);
    let mut damaged = dial(&a);
    damaged.write_all(&hello).unwrap();
    until([&mut a], "up", |[a]| a.ups() == 1);
    drop(damaged);
    until([&mut a], "down", |[a]| a.downs().len() == 1);
    a.send(&at_b.addr, Some(at_b.id()), &numbered(1)).unwrap();
    until([&mut a, &mut b], "a link", |[_, b]| b.numbers() == [1]);
}

#[test]
fn who_is_refused_for_good_is_one_line_among_those_of_strangers() {
    let mut a = Node::new(1);
    let addr = NodeAddr::new("10.0.0.1", 1);
    let greeter = Greeter { cluster: "other".into(), protocol: ProtocolRange::MINE, node: NodeId::new(&addr, 5), addr };
    let mut hello = vec![];
    Greeting::Hello(greeter.hello(1, None, None)).encode(&mut hello);
    dial(&a).write_all(&hello).unwrap();
    until([&mut a], "refused", |[a]| a.counter("hello_refused") == 1);
    assert_ne!(a.net.strangers.0, Time::ZERO);
}

#[test]
fn a_name_whose_node_dials_from_elsewhere_is_looked_up_again() {
    let mut a = Node::new(1);
    let name = NodeAddr::new("node-b.test", 4000);
    let hint = |a: &mut Node| {
        let now = a.now();
        a.net.send_datagram(now, &name, b"hint");
    };
    hint(&mut a);
    until([&mut a], "the question", |[a]| a.resolve.len() == 1);
    let now = a.now();
    a.net.resolved(now, &name, Ok(vec![SocketAddr::from(([127, 0, 0, 9], 4000))]));
    hint(&mut a);
    let node = NodeId::new(&name, 5);
    let greeter = Greeter { cluster: "wingbeat".into(), protocol: ProtocolRange::MINE, node, addr: name.clone() };
    let mut hello = vec![];
    Greeting::Hello(greeter.hello(1, None, None)).encode(&mut hello);
    let mut stream = dial(&a);
    stream.write_all(&hello).unwrap();
    until([&mut a], "up", |[a]| a.ups() == 1);
    assert_eq!(a.resolve.len(), 1);
    hint(&mut a);
    until([&mut a], "the next question", |[a]| a.resolve.len() == 2);
}

#[test]
fn what_keeps_all_connections_from_being_accepted_is_a_pause() {
    let mut a = Node::new(1);
    a.net.accept.shut_down();
    until([&mut a], "a failure", |[a]| a.counter("accepts_failed") == 1);
    assert!(!a.net.has_work(), "it is not asked again at once");
    until([&mut a], "the next try", |[a]| a.counter("accepts_failed") == 2);
}

// failures: row 11
#[test]
fn thousands_of_connections_from_one_address_leave_room_for_peers() {
    let config = quick(|l| l.half_open = 32);
    let (mut a, mut b) = (Node::with(&config, 1), Node::new(2));
    let at_a = a.me.clone();
    b.send(&at_a.addr, None, &numbered(0)).unwrap();
    until([&mut a, &mut b], "a peer", |[a, _]| a.frames.len() == 1);
    let mut open = VecDeque::new();
    for n in 0..1_500 {
        open.push_back(dial(&a));
        if open.len() > 100 {
            open.pop_front();
        }
        if n % 10 == 0 {
            a.turn();
            b.turn();
        }
        assert!(a.counter("connections") <= 33, "connections are bounded");
    }
    until([&mut a], "all were accepted", |[a]| a.counter("accepted") == 1_501);
    assert!(a.counter("per_ip_evicted") > 1_000, "{:?}", a.net.counters());
    b.send(&at_a.addr, None, &numbered(1)).unwrap();
    let mut c = Node::new(3);
    c.send(&at_a.addr, None, &numbered(2)).unwrap();
    until([&mut a, &mut b, &mut c], "peers old and new", |[a, ..]| a.frames.len() == 3);
    assert_eq!(b.downs().len(), 0);
    assert_eq!(a.accept_counts(), (a.counter("connections") as usize, 0..=24));
}

// failures: row 11
#[test]
fn the_oldest_strangers_of_an_address_make_room_and_the_newest_may_still_greet() {
    let mut a = Node::with(&quick(|l| l.half_open = 32), 1);
    let mut strangers = vec![];
    for n in 1..=40 {
        strangers.push(dial(&a));
        until([&mut a], "taken in", |[a]| a.counter("accepted") == n);
    }
    // One address has three quarters of the room.
    until([&mut a], "the first are closed", |_| strangers[..16].iter_mut().all(is_closed));
    assert!(strangers[16..].iter_mut().all(|stream| !is_closed(stream)));
    let (_, hello) = stranger(1, 1);
    strangers[16].write_all(&hello).unwrap();
    until([&mut a], "the oldest that is left has greeted", |[a]| a.ups() == 1);
    for n in 41..=80 {
        strangers.push(dial(&a));
        until([&mut a], "taken in", |[a]| a.counter("accepted") == n);
    }
    assert!(!is_closed(&mut strangers[16]) && a.counter("links_up") == 1, "who has greeted is no stranger");
}

impl Node {
    /// Accepted connections as counted per address, and the range that half-open ones must be in.
    fn accept_counts(&self) -> (usize, std::ops::RangeInclusive<usize>) {
        let (all, half_open, listed) = self.net.accept.totals();
        assert_eq!(half_open, listed, "one account of half-open connections");
        assert!((0..=24).contains(&half_open), "{half_open}");
        (all, 0..=24)
    }
}

/// A node with that deadline for frames, and a peer of it that has sent the first part of a large one.
fn part_of_a_large_frame(deadline: Span) -> (Node, TcpStream) {
    let mut node = Node::with(&quick(|limits| limits.frame_deadline = deadline), 1);
    let mut stream = dial(&node);
    let (_, hello) = stranger(1, 4000);
    stream.write_all(&hello).unwrap();
    until([&mut node], "up", |[node]| node.ups() == 1);
    let mut frame = vec![7; 20_000];
    frame[..4].copy_from_slice(&1_500_000u32.to_le_bytes());
    let mut part = vec![];
    encode_link(LinkFrame::Part { bytes: &frame, last: false }, &mut part);
    stream.write_all(&part).unwrap();
    (node, stream)
}

/// On a slow link the next part stands behind all that was to go before it.
#[test]
fn a_large_frame_may_take_its_time_while_others_come() {
    let (mut node, mut stream) = part_of_a_large_frame(Span::secs(20));
    for n in 0..5 {
        stream.write_all(&frame_bytes(n)).unwrap();
        until([&mut node], "another frame", |[node]| node.frames.len() as u64 == n + 1);
        node.start -= Duration::from_secs(12);
        node.turn();
    }
    assert_eq!((node.downs(), node.counter("frame_timeouts")), (vec![], 0));
    node.start -= Duration::from_secs(21);
    until([&mut node], "the end, as nothing comes any more", |[node]| node.downs() == [&LinkDown::TimedOut]);
}

// failures: row 9
#[test]
fn a_large_frame_whose_parts_stop_coming_ends_its_link() {
    let (mut node, _stream) = part_of_a_large_frame(Span::millis(100));
    until([&mut node], "the end", |[node]| node.downs() == [&LinkDown::TimedOut]);
    assert_eq!(node.counter("frame_timeouts"), 1);
}
