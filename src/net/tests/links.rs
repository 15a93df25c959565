//! Sessions: how they come up, end, return, and what becomes of frames.

use super::*;
use crate::proto::handoff::{Ask, Envelope, Mode};

/// A user message of this size.
pub(super) fn message(bytes: usize) -> Frame {
    message_to(SHARD.shard.0, bytes)
}

/// A message of this size to that shard.
fn message_to(shard: u32, bytes: usize) -> Frame {
    let shard = ShardKey { shard: ShardId(shard), ..SHARD };
    let envelope = Envelope::new(shard, None, b"k", &vec![1; bytes]).unwrap();
    Frame::Item { shard, item: Item::Msg { tag: Epoch(1), mode: Mode::Settled, envelope } }
}

pub(super) fn limited(change: impl FnOnce(&mut crate::config::LimitsConfig)) -> Config {
    let mut config = Config::default();
    change(&mut config.limits);
    config
}

#[test]
fn simultaneous_dials_end_with_one_session_and_no_loss() {
    for round in 0..20 {
        let (mut a, mut b) = (Node::new(round), Node::new(round + 100));
        let (at_a, at_b) = (a.me.clone(), b.me.clone());
        for n in 0..10 {
            a.send(&at_b.addr, Some(at_b.id()), &numbered(n)).unwrap();
            b.send(&at_a.addr, (round % 2 == 0).then(|| at_a.id()), &numbered(n)).unwrap();
        }
        until([&mut a, &mut b], "both halves", |[a, b]| a.frames.len() == 10 && b.frames.len() == 10);
        for _ in 0..20 {
            a.turn();
            b.turn();
        }
        assert!(a.numbers().iter().copied().eq(0..10) && b.numbers().iter().copied().eq(0..10));
        assert_eq!((a.counter("links_up"), b.counter("links_up")), (1, 1), "round {round}");
        assert_eq!((a.counter("connections"), b.counter("connections")), (1, 1), "round {round}");
        assert_eq!((a.ups(), b.ups(), a.downs().len(), b.downs().len()), (1, 1, 0, 0), "round {round}: {:?} {:?}", a.links, b.links);
    }
}

#[test]
fn a_session_that_was_closed_comes_back_with_a_larger_number() {
    let (mut a, mut b) = (Node::new(1), Node::new(2));
    let (at_a, at_b) = (a.me.clone(), b.me.clone());
    b.net.dialled = 1_000;
    a.send(&at_b.addr, Some(at_b.id()), &numbered(1)).unwrap();
    until([&mut a, &mut b], "the first session", |[_, b]| b.frames.len() == 1);
    let now = b.now();
    b.net.close(now, at_a.id(), &at_a.addr);
    until([&mut a, &mut b], "the end", |[a, b]| a.downs().len() == 1 && b.downs().len() == 1);
    assert_eq!((a.downs()[0], b.downs()[0]), (&LinkDown::Reset, &LinkDown::Closed));
    a.send(&at_b.addr, Some(at_b.id()), &numbered(2)).unwrap();
    until([&mut a, &mut b], "the second session", |[_, b]| b.frames.len() == 2);
    let numbers: Vec<u64> =
        b.links.iter().filter_map(|l| if let LinkEvent::Up { session, .. } = l { Some(*session) } else { None }).collect();
    assert!(numbers[0] < numbers[1], "{numbers:?}");
}

#[test]
fn a_dial_to_a_closed_port_is_reported_on_every_try_and_frames_wait_in_order() {
    let mut a = Node::new(1);
    let addr = nobody();
    let id = NodeId::new(&addr, 9);
    for n in 0..3 {
        a.send(&addr, Some(id), &numbered(n)).unwrap();
    }
    until([&mut a], "three refusals", |[a]| a.downs().len() == 3);
    assert!(
        a.links.iter().all(|l| matches!(l, LinkEvent::Down { peer: Some(peer), cause: LinkDown::Refused, lost: 0, .. } if *peer == id))
    );
    let listen = format!("127.0.0.1:{}", addr.port).parse().unwrap();
    let mut b = Node::on(Sockets::bind(listen).unwrap(), &Config::default(), 9);
    until([&mut a, &mut b], "the frames", |[_, b]| b.frames.len() == 3);
    assert_eq!(b.numbers(), [0, 1, 2]);
}

#[test]
fn what_waits_too_long_for_a_life_that_cannot_be_reached_is_counted_and_forgotten() {
    let mut config = limited(|limits| limits.link_bytes = 64 << 10);
    config.sharding.handoff_timeout = crate::config::Span::millis(100);
    let mut a = Node::with(&config, 1);
    let addr = nobody();
    let id = NodeId::new(&addr, 9);
    for n in 0..3 {
        a.send(&addr, Some(id), &message_to(n, 60_000)).unwrap();
    }
    assert_eq!(blocked(&a.links).len(), 0, "nobody has heard of it yet");
    until([&mut a], "there is no room", |[a]| a.links.iter().any(|event| matches!(event, LinkEvent::Blocked { .. })));
    until([&mut a], "nothing waits", |[a]| a.net.unsent_bytes() == 0);
    until([&mut a], "there is room", |[a]| blocked(&a.links).is_empty());
    assert_eq!(a.counter("frames_lost"), 3);
    let told = |event: &LinkEvent| if let LinkEvent::Down { peer, lost, .. } = event { Some((*peer, *lost)) } else { None };
    assert!(a.links.iter().filter_map(told).all(|(peer, _)| peer == Some(id)));
    assert_eq!(a.links.iter().filter_map(told).map(|(_, lost)| lost).sum::<u64>(), 3);
    // Who comes back hears what is said from then on.
    let listen = format!("127.0.0.1:{}", addr.port).parse().unwrap();
    let mut b = Node::on(Sockets::bind(listen).unwrap(), &Config::default(), 9);
    a.send(&addr, Some(id), &numbered(4)).unwrap();
    until([&mut a, &mut b], "the frame", |[_, b]| b.frames.len() == 1);
}

#[test]
fn asks_that_wait_for_a_session_have_as_much_less_time() {
    let (mut a, addr) = (Node::new(1), nobody());
    let (me, id) = (a.me.id(), NodeId::new(&addr, 9));
    let ask = |correlation, deadline, mode| {
        let envelope = Envelope::new(SHARD, Some(Ask { node: me, correlation, deadline }), b"k", &[1]).unwrap();
        Frame::Item { shard: SHARD, item: Item::Msg { tag: Epoch(1), mode, envelope } }
    };
    let (long, waits) = (Duration::from_secs(100), Duration::from_millis(20));
    let deadline = a.now() + long;
    for (n, mode) in [Mode::Settled, Mode::Wait(Epoch(2)), Mode::Over(Epoch(2))].into_iter().enumerate() {
        a.send(&addr, Some(id), &ask(n as u64, deadline, mode)).unwrap();
    }
    let soon = a.now() + Duration::from_millis(1);
    a.send(&addr, Some(id), &ask(4, soon, Mode::Settled)).unwrap();
    a.send(&addr, Some(id), &ask(5, Time::MAX, Mode::Settled)).unwrap();
    let later = a.now() + waits;
    until([&mut a], "a while", |[a]| a.now() >= later);
    let listen = format!("127.0.0.1:{}", addr.port).parse().unwrap();
    let mut b = Node::on(Sockets::bind(listen).unwrap(), &Config::default(), 9);
    until([&mut a, &mut b], "the asks", |[_, b]| b.left.len() == 5);
    assert!(b.left[..3].iter().all(|left| *left + waits <= long && *left > long / 2), "{:?}", b.left);
    assert!(b.left[3].is_zero() && b.left[4] > long);
}

#[test]
fn a_try_without_frames_reports_and_does_not_repeat() {
    let mut a = Node::new(1);
    let addr = nobody();
    let now = a.now();
    a.net.connect(now, &addr, None);
    until([&mut a], "a refusal", |[a]| a.downs() == [&LinkDown::Refused]);
    until([&mut a], "nothing is wanted any longer", |[a]| a.net.links_info().is_empty());
    assert_eq!(a.counter("dials"), 1);
}

#[test]
fn frames_for_a_life_that_is_over_are_dropped_and_the_one_that_answers_is_named() {
    let (mut a, mut b) = (Node::new(1), Node::new(2));
    let at_b = b.me.clone();
    let old = NodeId::new(&at_b.addr, 77);
    a.send(&at_b.addr, Some(old), &numbered(1)).unwrap();
    a.send(&at_b.addr, Some(old), &numbered(2)).unwrap();
    until([&mut a, &mut b], "the report", |[a, _]| a.downs().len() == 1);
    assert_eq!(
        a.links,
        [LinkEvent::Down { peer: Some(old), addr: at_b.addr.clone(), cause: LinkDown::OtherIncarnation(at_b.id()), lost: 2 }]
    );
    // Mixed with frames for the life that answers, those arrive.
    a.send(&at_b.addr, Some(old), &numbered(3)).unwrap();
    a.send(&at_b.addr, Some(at_b.id()), &numbered(4)).unwrap();
    a.send(&at_b.addr, None, &numbered(5)).unwrap();
    until([&mut a, &mut b], "the right ones", |[a, b]| b.frames.len() == 2 && a.downs().len() == 2);
    assert_eq!(b.numbers(), [4, 5]);
    assert_eq!(a.counter("frames_lost"), 3);
}

// failures: row 10
#[test]
fn a_peer_that_does_not_read_is_blocked_then_writable_again_and_nothing_is_lost() {
    let config = limited(|l| l.link_bytes = 1 << 20);
    let (mut a, mut b) = (Node::with(&config, 1), Node::with(&config, 2));
    let at_b = b.me.clone();
    a.send(&at_b.addr, Some(at_b.id()), &numbered(0)).unwrap();
    until([&mut a, &mut b], "up", |[_, b]| b.frames.len() == 1);
    let mut sent = 0;
    // Only `a` works now: the kernel's buffers fill up, then the outbox.
    let refused = loop {
        match a.send(&at_b.addr, Some(at_b.id()), &message(60_000)) {
            Ok(()) => sent += 1,
            Err(unsent) => break unsent,
        }
        a.turn();
        assert!(sent < 5_000, "nothing is refused");
    };
    assert!(matches!(refused, Unsent::Blocked { max, .. } if max == 1 << 20), "{refused:?}");
    assert_eq!(a.links.iter().filter(|l| matches!(l, LinkEvent::Blocked { .. })).count(), 1);
    a.send(&at_b.addr, Some(at_b.id()), &numbered(1)).expect("control passes");
    let writable = |a: &Node| a.links.iter().any(|l| matches!(l, LinkEvent::Writable { .. }));
    assert!(!writable(&a));
    until([&mut a, &mut b], "writable and all there", |[a, b]| writable(a) && b.frames.len() == 2 && b.sizes.len() == sent);
    assert!(a.downs().is_empty());
}

// failures: row 10
#[test]
fn a_peer_that_takes_nothing_is_closed_at_four_times_the_bound() {
    let config = limited(|l| l.link_bytes = 64 << 10);
    let (mut a, mut b) = (Node::with(&config, 1), Node::with(&config, 2));
    let at_b = b.me.clone();
    a.send(&at_b.addr, Some(at_b.id()), &numbered(0)).unwrap();
    until([&mut a, &mut b], "up", |[_, b]| b.frames.len() == 1);
    let reply = |bytes| Frame::Reply { correlation: 1, body: crate::proto::handoff::ReplyBody::Value(vec![0; bytes].into()) };
    // What is large may be refused before: its asker hears of it.
    let refused = |a: &mut Node| loop {
        a.turn();
        match a.send(&at_b.addr, Some(at_b.id()), &reply(100_000)) {
            Ok(()) => {}
            Err(unsent) => return unsent,
        }
    };
    assert!(matches!(refused(&mut a), Unsent::Blocked { .. }) && a.downs().is_empty());
    let big = reply(10_000);
    let mut sent = 0;
    while a.send(&at_b.addr, Some(at_b.id()), &big).is_ok() {
        sent += 1;
        a.turn();
        assert!(sent < 5_000, "nothing is refused");
    }
    until([&mut a], "closed", |[a]| a.downs() == [&LinkDown::TimedOut]);
    assert!(a.links.iter().any(|l| matches!(l, LinkEvent::Down { lost, .. } if *lost > 1)));
    assert_eq!(a.counter("sessions_too_slow"), 1);
}

#[test]
fn what_a_removed_peer_had_not_answered_counts_as_lost() {
    let (mut a, mut b) = (Node::new(1), Node::new(2));
    let at_b = b.me.clone();
    a.send(&at_b.addr, Some(at_b.id()), &numbered(0)).unwrap();
    b.send(&a.me.addr.clone(), Some(a.me.id()), &numbered(0)).unwrap();
    until([&mut a, &mut b], "both ways", |[a, b]| a.frames.len() == 1 && b.frames.len() == 1);
    // From here on it stands still.
    (1..6).for_each(|n| a.send(&at_b.addr, Some(at_b.id()), &numbered(n)).unwrap());
    until([&mut a], "all is written", |[a]| a.net.unsent_bytes() == 0);
    let now = a.now();
    a.net.close(now, at_b.id(), &at_b.addr);
    assert!((5..=6).contains(&a.counter("frames_lost_in_flight")), "{}", a.counter("frames_lost_in_flight"));
    assert_eq!(a.counter("frames_lost"), 0);
}

#[test]
fn frames_not_yet_written_are_carried_over_to_the_next_session() {
    let config = limited(|l| l.link_bytes = 8 << 20);
    let (mut a, mut b) = (Node::with(&config, 1), Node::with(&config, 2));
    let (at_a, at_b) = (a.me.clone(), b.me.clone());
    a.send(&at_b.addr, Some(at_b.id()), &numbered(0)).unwrap();
    until([&mut a, &mut b], "up", |[_, b]| b.frames.len() == 1);
    let total = 20_000_000 / 1_000;
    let mut payload = 0;
    while a.net.unsent_bytes() < 4 << 20 {
        let frame = Frame::Reply { correlation: payload, body: crate::proto::handoff::ReplyBody::Value(vec![0; 1_000].into()) };
        a.send(&at_b.addr, Some(at_b.id()), &frame).unwrap();
        payload += 1;
        if payload % 100 == 0 {
            a.turn();
        }
        assert!(payload < total, "the kernel takes everything");
    }
    let now = b.now();
    b.net.close(now, at_a.id(), &at_a.addr);
    until([&mut a, &mut b], "all that was not written", |[a, b]| a.ups() == 2 && a.net.unsent_bytes() == 0 && b.sizes.len() > 1_000);
    let lost = |n: &Node| n.counter("frames_lost") + n.counter("frames_lost_in_flight");
    until([&mut a, &mut b], "the account", |[a, b]| b.sizes.len() as u64 + lost(a) == payload);
}

#[test]
fn buffers_that_a_burst_has_grown_go_back_to_their_usual_size() {
    let (mut a, mut b) = (Node::new(1), Node::new(2));
    let at_b = b.me.clone();
    let room = |node: &Node| {
        let (_, conn) = node.net.conns.iter().next().expect("a link");
        (conn.inbox.room().max(conn.assembly.room()), conn.outbox.is_large())
    };
    a.send(&at_b.addr, Some(at_b.id()), &numbered(0)).unwrap();
    until([&mut a, &mut b], "up", |[_, b]| b.frames.len() == 1);
    let usual = room(&b);
    assert_eq!(usual, (64 << 10, false));
    a.send(&at_b.addr, Some(at_b.id()), &message(500_000)).unwrap();
    until([&mut a, &mut b], "there", |[_, b]| b.sizes.len() == 1);
    assert!(room(&b).0 > usual.0 && room(&a).1);
    for node in [&mut a, &mut b] {
        // A look finds the burst, the next one finds nothing, and then nobody looks any longer. The greeting has its timer, too.
        let mut looks = 0;
        while let Some(at) = node.net.poll_timeout() {
            node.net.handle_timeout(at);
            looks += 1;
            assert!(looks <= 4, "it looks for ever");
        }
        assert!(room(node) <= usual, "{:?}", room(node));
    }
    a.send(&at_b.addr, Some(at_b.id()), &message(500_000)).unwrap();
    until([&mut a, &mut b], "there again", |[_, b]| b.sizes.len() == 2);
}

// failures: row 40
#[test]
fn a_link_without_memory_is_closed_and_counted_and_comes_back() {
    let (mut a, mut b) = (Node::new(1), Node::new(2));
    let at_b = b.me.clone();
    a.send(&at_b.addr, Some(at_b.id()), &numbered(0)).unwrap();
    until([&mut a, &mut b], "up", |[_, b]| b.frames.len() == 1);
    let id = *b.net.sessions.values().next().unwrap();
    b.net.conns.get_mut(id).unwrap().assembly.starved = true;
    a.send(&at_b.addr, Some(at_b.id()), &message(500_000)).unwrap();
    until([&mut a, &mut b], "closed", |[a, b]| b.downs() == [&LinkDown::TimedOut] && a.downs().len() == 1);
    assert_eq!(b.counter("memory_exhausted"), 1);
    a.send(&at_b.addr, Some(at_b.id()), &message(500_000)).unwrap();
    a.send(&at_b.addr, Some(at_b.id()), &numbered(1)).unwrap();
    until([&mut a, &mut b], "back", |[_, b]| b.numbers() == [0, 1] && !b.sizes.is_empty());
}

#[test]
fn small_messages_go_past_large_ones_of_other_shards() {
    let (mut a, mut b) = (Node::new(1), Node::new(2));
    let at_b = b.me.clone();
    a.send(&at_b.addr, Some(at_b.id()), &numbered(0)).unwrap();
    until([&mut a, &mut b], "up", |[_, b]| b.frames.len() == 1);
    let (large, small) = (message(1_000_000), message(100));
    let beside = message_to(SHARD.shard.0 + 1, 100);
    for frame in [&large, &large, &small] {
        a.send(&at_b.addr, Some(at_b.id()), frame).unwrap();
    }
    // All that the socket takes, and nobody reads.
    (0..5).for_each(|_| a.turn());
    a.send(&at_b.addr, Some(at_b.id()), &beside).unwrap();
    a.send(&at_b.addr, Some(at_b.id()), &numbered(1)).unwrap();
    until([&mut a, &mut b], "all", |[_, b]| b.frames.len() == 2 && b.sizes.len() == 4);
    let size = |frame: &Frame| format!("{frame:?}").len();
    assert_eq!(b.sizes, [size(&beside), size(&large), size(&large), size(&small)]);
    // What is no message has kept its place, and all are counted as what they are.
    assert_eq!((a.counter("frames_out"), b.counter("frames_in")), (6, 6));
    let (sent, received) = (a.net.links_info()[0].frames_out, b.net.links_info()[0].frames_in);
    assert_eq!((sent, received), (6, 6));
}

#[test]
fn what_a_session_has_sent_a_part_of_goes_with_the_next() {
    let (mut a, mut b) = (Node::new(1), Node::new(2));
    let (at_a, at_b) = (a.me.clone(), b.me.clone());
    a.send(&at_b.addr, Some(at_b.id()), &numbered(0)).unwrap();
    until([&mut a, &mut b], "up", |[_, b]| b.frames.len() == 1);
    for _ in 0..3 {
        a.send(&at_b.addr, Some(at_b.id()), &message(1_000_000)).unwrap();
    }
    until([&mut a, &mut b], "some of it", |[_, b]| b.net.conns.iter().any(|(_, conn)| conn.assembly.len() > 0));
    let now = b.now();
    b.net.close(now, at_a.id(), &at_a.addr);
    until([&mut a, &mut b], "all of it", |[_, b]| b.sizes.len() == 3);
    assert_eq!((a.counter("frames_lost"), a.counter("frames_lost_in_flight"), b.counter("sessions_up")), (0, 0, 2));
}

/// What is blocked after these events.
fn blocked(links: &[LinkEvent]) -> std::collections::BTreeSet<Option<ShardKey>> {
    let mut blocked = std::collections::BTreeSet::new();
    for event in links {
        match event {
            LinkEvent::Blocked { shard, .. } => assert!(blocked.insert(*shard), "{shard:?} is blocked twice"),
            LinkEvent::Writable { shard, .. } => drop(blocked.remove(shard)),
            _ => {}
        }
    }
    blocked
}

#[test]
fn large_messages_to_many_shards_are_bounded_as_those_to_one() {
    let config = limited(|limits| limits.link_bytes = 4 << 20);
    let (mut a, mut b) = (Node::with(&config, 1), Node::new(2));
    let at_b = b.me.clone();
    a.send(&at_b.addr, Some(at_b.id()), &numbered(0)).unwrap();
    until([&mut a, &mut b], "up", |[_, b]| b.frames.len() == 1);
    let mut sent = 0;
    for shard in 0..60 {
        let blocked = blocked(&a.links);
        if !blocked.contains(&None) && !blocked.contains(&Some(ShardKey { shard: ShardId(shard), ..SHARD })) {
            a.send(&at_b.addr, Some(at_b.id()), &message_to(shard, 1_000_000)).unwrap();
            sent += 1;
        }
        a.turn();
    }
    assert!((6..=9).contains(&sent), "{sent}");
    a.send(&at_b.addr, Some(at_b.id()), &numbered(1)).unwrap();
    until([&mut a, &mut b], "all", |[_, b]| b.frames.len() == 2 && b.sizes.len() == sent);
    until([&mut a, &mut b], "room", |[a, _]| blocked(&a.links).is_empty());
    assert_eq!(a.counter("sessions_too_slow"), 0);
}

#[test]
fn what_is_blocked_gets_room_again_whatever_becomes_of_sessions() {
    let config = limited(|limits| limits.link_bytes = 512 << 10);
    let mut ever = 0;
    for seed in 0..12 {
        let mut rng = Rng::new(seed);
        // Its largest frame is what the link may hold.
        let mut config = config.clone();
        (config.limits.frame_bytes, config.limits.message_bytes) = (400 << 10, 300 << 10);
        let (mut a, mut b) = (Node::with(&config, seed + 1), Node::with(&config, seed + 1000));
        let (at_a, at_b) = (a.me.clone(), b.me.clone());
        for _ in 0..100 {
            for _ in 0..rng.below(12) {
                let (blocked, shard) = (blocked(&a.links), rng.below(6) as u32);
                if !blocked.contains(&None) && !blocked.contains(&Some(ShardKey { shard: ShardId(shard), ..SHARD })) {
                    let size = [10, 1000, 60_000, 100_000, 300_000][rng.below(5) as usize];
                    // One that comes while the events are under way may be refused.
                    let _ = a.send(&at_b.addr, Some(at_b.id()), &message_to(shard, size));
                }
            }
            if rng.below(3) > 0 {
                a.turn();
            }
            if rng.below(3) == 0 {
                b.turn();
            }
            if rng.below(20) == 0 {
                let now = b.now();
                b.net.close(now, at_a.id(), &at_a.addr);
            }
        }
        until([&mut a, &mut b], "drained", |[a, _]| a.net.unsent_bytes() == 0);
        until([&mut a, &mut b], "room", |[a, _]| blocked(&a.links).is_empty());
        ever += a.links.iter().filter(|event| matches!(event, LinkEvent::Blocked { .. })).count();
    }
    assert!(ever > 20, "{ever}");
}

#[test]
fn parts_count_as_not_sent_until_they_are_taken_in() {
    let (mut a, mut b) = (Node::new(1), Node::new(2));
    let at_b = b.me.clone();
    a.send(&at_b.addr, Some(at_b.id()), &numbered(0)).unwrap();
    until([&mut a, &mut b], "up", |[_, b]| b.frames.len() == 1);
    a.send(&at_b.addr, Some(at_b.id()), &message(65_000 + 1_000)).unwrap();
    for _ in 0..100 {
        a.send(&at_b.addr, Some(at_b.id()), &message_to(9, 1_000)).unwrap();
    }
    (0..10).for_each(|_| a.turn());
    assert!(a.net.unsent_bytes() > 60_000, "a socket that is closed now takes all of it back");
    until([&mut a, &mut b], "taken in", |[a, _]| a.net.unsent_bytes() == 0);
    drop(a);
    until([&mut b], "the end", |[b]| b.downs().len() == 1);
    assert_eq!(b.sizes.len(), 101);
}

// failures: row 13
#[test]
fn another_cluster_is_rejected_and_not_asked_in_a_storm() {
    let mut green = Config::default();
    green.cluster.name = "green".into();
    let (mut a, mut b) = (Node::new(1), Node::with(&green, 2));
    let at_b = b.me.clone();
    a.send(&at_b.addr, None, &numbered(1)).unwrap();
    until([&mut a, &mut b], "the refusal", |[a, _]| a.downs().len() == 1);
    let LinkDown::Rejected(reason) = a.downs()[0] else { panic!("{:?}", a.downs()) };
    assert!(reason.contains("`green`") && reason.contains("`wingbeat`"), "{reason}");
    assert!(matches!(a.links[0], LinkEvent::Down { lost: 1, .. }));
    let mut sent = 0;
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(600) {
        sent += u64::from(a.send(&at_b.addr, None, &numbered(2)).is_ok());
        a.turn();
        b.turn();
    }
    assert!(sent > 10);
    assert_eq!((a.counter("dials"), b.links.len()), (1, 0));
}

// failures: row 4
#[test]
fn a_frame_above_the_limit_is_refused_at_the_call() {
    let config = limited(|l| l.frame_bytes = 1_000);
    let mut a = Node::with(&config, 1);
    let refused = a.send(&nobody(), None, &message(2_000)).unwrap_err();
    assert!(matches!(refused, Unsent::TooLarge { size: 2034, max: 1_000 }), "{refused:?}");
    assert!(a.net.links_info().is_empty(), "and no dial stays behind");
}

#[test]
fn a_node_with_nothing_to_do_waits() {
    let (mut a, mut b) = (Node::new(1), Node::new(2));
    let at_b = b.me.clone();
    a.send(&at_b.addr, None, &numbered(1)).unwrap();
    until([&mut a, &mut b], "the frame", |[_, b]| b.frames.len() == 1);
    until([&mut a, &mut b], "quiet", |[a, b]| !a.net.has_work() && !b.net.has_work());
    let (start, clock, mut polls) = (a.start, Instant::now(), 0);
    while clock.elapsed() < Duration::from_millis(30) {
        a.net.poll(Some(Duration::from_millis(30)), || Time::from_nanos(start.elapsed().as_nanos() as u64)).unwrap();
        polls += 1;
    }
    assert!(polls <= 3, "a wait may be cut short, if the process is stopped and goes on, say: {polls}");
    assert!(a.net.next(|_, _| false).is_none());
    // Somebody else may wait for it.
    let sockets = a.net.sleeper().expect("there is no work");
    let wait = |limit| crate::engine::sys::wait_for([sockets; 2], Some(limit));
    let (clock, mut waits) = (Instant::now(), 0);
    while clock.elapsed() < Duration::from_millis(3) {
        wait(Duration::from_millis(3));
        waits += 1;
    }
    assert!(waits <= 3, "{waits}");
    let at_a = a.me.clone();
    let now = b.now();
    b.net.send_datagram(now, &at_a.addr, b"one");
    wait(PATIENCE);
    assert!(clock.elapsed() < PATIENCE);
    a.net.poll(Some(Duration::ZERO), || Time::from_nanos(start.elapsed().as_nanos() as u64)).unwrap();
    assert!(a.net.sleeper().is_none(), "the datagram is there, and nobody has taken it");
}

#[test]
fn datagrams_come_first_and_a_bounded_number_per_turn() {
    let (mut a, mut b) = (Node::new(1), Node::new(2));
    let at_b = b.me.clone();
    a.send(&at_b.addr, None, &numbered(0)).unwrap();
    until([&mut a, &mut b], "up", |[_, b]| b.frames.len() == 1);
    let now = a.now();
    a.send(&at_b.addr, None, &numbered(1)).unwrap();
    a.net.flush(now);
    for n in 0..300u16 {
        a.net.send_datagram(now, &at_b.addr, &n.to_le_bytes());
    }
    // Loopback has delivered all of it by now.
    let start = b.start;
    b.net.poll(Some(PATIENCE), || Time::from_nanos(start.elapsed().as_nanos() as u64 + 1)).unwrap();
    let events: Vec<NetEvent> = std::iter::from_fn(|| b.net.next(|_, _| false)).collect();
    let datagrams = events.iter().take_while(|e| matches!(e, NetEvent::Datagram { .. })).count();
    assert_eq!(datagrams, 256);
    assert!(matches!(events[datagrams..], [NetEvent::Traffic(_), NetEvent::Frame { .. }]));
    assert!(b.net.has_work(), "the rest is not forgotten");
    until([&mut b], "the rest", |[b]| b.datagrams.len() == 44);
}

#[test]
fn ipv6_works_as_ipv4_does() {
    let Ok(sockets) = Sockets::bind("[::1]:0".parse().unwrap()) else { return };
    let mut a = Node::on(sockets, &Config::default(), 1);
    let mut b = Node::on(Sockets::bind("[::1]:0".parse().unwrap()).unwrap(), &Config::default(), 2);
    let at_b = b.me.clone();
    assert!(at_b.addr.to_string().starts_with("[::1]:"));
    a.send(&at_b.addr, Some(at_b.id()), &numbered(1)).unwrap();
    let now = a.now();
    a.net.send_datagram(now, &at_b.addr, b"six");
    until([&mut a, &mut b], "both", |[_, b]| b.frames.len() == 1 && b.datagrams.len() == 1);
}

#[test]
fn a_node_that_stops_in_order_loses_nothing() {
    let (mut a, mut b) = (Node::new(1), Node::new(2));
    let (at_a, at_b) = (a.me.clone(), b.me.clone());
    a.send(&at_b.addr, None, &numbered(0)).unwrap();
    until([&mut a, &mut b], "up", |[_, b]| b.frames.len() == 1);
    for n in 1..1_000 {
        a.send(&at_b.addr, None, &numbered(n)).unwrap();
        b.send(&at_a.addr, None, &numbered(n)).unwrap();
    }
    // What the other end has to read is more than it has room for, and what this one has not read would make its end a reset.
    let filler = Frame::Reply { correlation: 1, body: crate::proto::handoff::ReplyBody::Value(vec![0; 10_000].into()) };
    (0..100).for_each(|_| a.send(&at_b.addr, None, &filler).unwrap());
    let now = b.now();
    b.net.flush(now);
    let now = a.now();
    a.net.flush(now);
    assert_eq!(a.net.unsent_bytes(), 0, "the system has all of it");
    let start = a.start;
    std::thread::scope(|scope| {
        let clock = move || Time::from_nanos(start.elapsed().as_nanos() as u64 + 1);
        let until_later = a.now() + PATIENCE;
        let mut net = a.net;
        let end = scope.spawn(move || {
            net.finish(until_later, clock);
            clock() < until_later
        });
        until([&mut b], "all", |[b]| b.frames.len() == 1_000 && b.sizes.len() == 100 && b.downs() == [&LinkDown::Reset]);
        assert!(end.join().unwrap(), "it has waited for no longer than its peer needed");
    });
}

#[test]
fn a_peer_that_does_not_close_is_waited_for_until_the_end_of_patience() {
    let (mut a, mut b) = (Node::new(1), Node::new(2));
    let at_b = b.me.clone();
    a.send(&at_b.addr, None, &numbered(0)).unwrap();
    until([&mut a, &mut b], "up", |[_, b]| b.frames.len() == 1);
    let (start, last) = (a.start, a.now() + Duration::from_millis(20));
    a.net.finish(last, || Time::from_nanos(start.elapsed().as_nanos() as u64 + 1));
    assert!(a.now() >= last);
}

#[test]
fn a_large_frame_that_the_peer_does_not_take_is_given_up() {
    let mut small = Config::default();
    (small.limits.frame_bytes, small.limits.message_bytes) = (200 << 10, 100 << 10);
    let (mut a, mut b) = (Node::new(1), Node::with(&small, 2));
    let at_b = b.me.clone();
    a.send(&at_b.addr, Some(at_b.id()), &message(500_000)).unwrap();
    a.send(&at_b.addr, Some(at_b.id()), &numbered(1)).unwrap();
    until([&mut a, &mut b], "what stands behind it", |[_, b]| b.numbers() == [1]);
    assert_eq!((a.counter("frames_lost"), b.counter("sessions_up"), b.sizes.len()), (1, 3, 0));
}

#[test]
fn of_sessions_that_ended_the_oldest_is_forgotten() {
    let (mut a, mut b) = (Node::new(1), Node::new(2));
    let at_b = b.me.clone();
    a.send(&at_b.addr, None, &numbered(0)).unwrap();
    until([&mut a, &mut b], "up", |[_, b]| b.frames.len() == 1);
    let id = |n: usize| NodeId::from_raw(n as u128);
    for n in 0..ENDED_MAX {
        let at = Time::from_nanos((ENDED_MAX - n) as u64);
        a.net.ended.insert(id(n), Ended { session: 1, last: 1, sent: 0, received: 0, unanswered: 0, at });
    }
    let now = a.now();
    a.net.close(now, at_b.id(), &at_b.addr);
    assert_eq!(a.net.ended.len(), ENDED_MAX);
    assert!(a.net.ended.contains_key(&id(0)) && !a.net.ended.contains_key(&id(ENDED_MAX - 1)));
}

#[test]
fn frames_for_whoever_answers_are_bounded_in_number() {
    let (mut a, addr) = (Node::new(1), nobody());
    (0..64).for_each(|n| a.send(&addr, None, &numbered(n)).unwrap());
    assert_eq!(a.send(&addr, None, &numbered(64)), Err(Unsent::Unanswered { waiting: 64, max: 64 }));
}

/// Closing, dialling and sending at random: whatever happens, a receiver sees each sender's numbers grow, and sessions come and go in turn.
#[test]
fn under_random_closes_nothing_is_reordered_or_doubled() {
    for seed in 0..5 {
        let mut rng = Rng::new(seed);
        let mut nodes = [Node::new(seed), Node::new(seed + 100), Node::new(seed + 200)];
        let ids: Vec<Identity> = nodes.iter().map(|n| n.me.clone()).collect();
        let mut number = 0;
        for _ in 0..400 {
            let (from, to) = (rng.below(3) as usize, rng.below(3) as usize);
            if from != to {
                let node = Some(ids[to].id());
                for _ in 0..rng.below(20) {
                    number += 1;
                    nodes[from].send(&ids[to].addr, node, &numbered(number)).unwrap();
                }
                let now = nodes[from].now();
                match rng.below(12) {
                    0 => nodes[from].net.close(now, ids[to].id(), &ids[to].addr),
                    1 => nodes[from].net.connect(now, &ids[to].addr, node),
                    _ => nodes[from].net.flush(now),
                }
            }
            nodes[rng.below(3) as usize].turn();
        }
        // At the end everybody still reaches everybody; what was sent into a session that the other side had closed is lost.
        let last = number;
        let heard = |node: &Node, peer: &Identity| node.frames.iter().any(|(from, n)| *from == peer.id() && *n > last);
        let start = Instant::now();
        while !(0..3).all(|me| (0..3).all(|peer| me == peer || heard(&nodes[me], &ids[peer]))) {
            assert!(start.elapsed() < PATIENCE, "seed {seed}: not everybody reaches everybody");
            for node in &mut nodes {
                let me = node.me.id();
                for to in ids.iter().filter(|to| to.id() != me) {
                    number += 1;
                    node.send(&to.addr, Some(to.id()), &numbered(number)).unwrap();
                }
            }
            for _ in 0..5 {
                nodes.iter_mut().for_each(Node::turn);
            }
        }
        for (node, me) in nodes.iter().zip(&ids) {
            for peer in ids.iter().filter(|peer| peer.id() != me.id()) {
                let seen: Vec<u64> = node.frames.iter().filter(|(from, _)| *from == peer.id()).map(|(_, n)| *n).collect();
                assert!(seen.is_sorted_by(|a, b| a < b), "seed {seed}: {seen:?}");
                let mut up = 0;
                for link in &node.links {
                    match link {
                        LinkEvent::Up { peer: who, session, .. } if *who == peer.id() => {
                            assert!(up == 0, "seed {seed}: up twice");
                            up = *session;
                        }
                        LinkEvent::Down { peer: Some(who), .. } if *who == peer.id() => up = 0,
                        _ => {}
                    }
                }
                assert_ne!(up, 0, "seed {seed}: not up in the end");
            }
        }
    }
}

#[test]
fn sockets_may_move_to_their_thread() {
    fn sendable<T: Send>() {}
    sendable::<Net>();
    sendable::<Sockets>();
}

/// A thread that sleeps in the poller: where it is, and what it hears of.
#[cfg(target_os = "linux")]
fn sleeps_in(mut poll: Poll) -> std::thread::JoinHandle<(Poll, Vec<Token>)> {
    let (tx, rx) = std::sync::mpsc::channel();
    let sleeper = std::thread::spawn(move || {
        tx.send(std::fs::read_link("/proc/thread-self").unwrap()).unwrap();
        let mut events = Events::with_capacity(8);
        poll.poll(&mut events, Some(PATIENCE)).unwrap();
        let heard = events.iter().map(mio::event::Event::token).collect();
        (poll, heard)
    });
    let stat = std::path::Path::new("/proc").join(rx.recv().unwrap()).join("stat");
    let start = Instant::now();
    while !std::fs::read_to_string(&stat).unwrap().rsplit(')').next().unwrap().starts_with(" S") {
        assert!(start.elapsed() < PATIENCE, "it does not sleep");
    }
    sleeper
}

#[cfg(target_os = "linux")]
#[test]
fn what_comes_by_a_link_wakes_the_guest_that_sleeps_and_nobody_else() {
    let (mut a, mut b) = (Node::new(1), Node::new(2));
    let (guests, mut thread) = (Poll::new().unwrap(), Poll::new().unwrap());
    b.net.watched_by(guests.registry(), thread.registry()).unwrap();
    let mut events = Events::with_capacity(8);
    let mut heard = |limit| {
        thread.poll(&mut events, Some(limit)).unwrap();
        events.iter().map(mio::event::Event::token).collect::<Vec<_>>()
    };
    let at_b = b.me.addr.clone();
    a.send(&at_b, None, &numbered(0)).unwrap();
    until([&mut a, &mut b], "up", |[_, b]| b.frames.len() == 1);
    let say = |a: &mut Node, n| {
        a.send(&at_b, None, &numbered(n)).unwrap();
        let now = a.now();
        a.net.flush(now);
    };
    heard(Duration::ZERO);

    let guest = sleeps_in(guests);
    say(&mut a, 1);
    let (guests, links) = guest.join().unwrap();
    assert_eq!((links.len(), heard(Duration::ZERO)), (1, vec![]), "the guest, by the one link");
    let now = b.now();
    b.net.read_from(links[0], now).unwrap();
    let of_b = |b: &mut Node| std::iter::from_fn(|| b.net.next(|_, _| false)).filter(|e| matches!(e, NetEvent::Frame { .. })).count();
    assert_eq!(of_b(&mut b), 1);

    // Nobody sleeps there, as the guest is at work.
    say(&mut a, 2);
    assert_eq!(heard(PATIENCE), links);
    // What is told of no link looks at all there is.
    let now = b.now();
    b.net.read_from(Token(1 << 20), now).unwrap();
    assert_eq!(of_b(&mut b), 1);

    let guest = sleeps_in(guests);
    let now = a.now();
    a.net.send_datagram(now, &at_b, b"one");
    assert_eq!(heard(PATIENCE), [UDP], "datagrams are none of its business");
    say(&mut a, 3);
    assert_eq!(guest.join().unwrap().1, links);
}
