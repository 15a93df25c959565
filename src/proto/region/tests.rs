//! Words and buffer; hand-off lanes are in a file of their own. The stream's table is tested in `net`, the lanes' tokens in `lanes`.

use std::{sync::Arc, time::Duration};

mod relay;

use super::*;
use crate::{
    NodeAddr, ShardId,
    proto::{
        handoff::{Ask, Forwarded, HandoffItem, Mode, TransferChunk},
        wire::Frame,
    },
};

const ME: NodeId = NodeId::from_raw(1);
const B: NodeId = NodeId::from_raw(2);
const C: NodeId = NodeId::from_raw(3);
const D: NodeId = NodeId::from_raw(4);
const S: ShardKey = ShardKey { ty: TypeId(1), shard: ShardId(5) };

fn peers() -> Peers {
    let mut peers = Peers::new(ME);
    peers.link_up(B, NodeAddr::new("b", 1));
    peers.link_up(C, NodeAddr::new("c", 1));
    peers
}

fn message(n: u8) -> Envelope {
    Envelope::new(S, None, b"k", &[n]).expect("the key is short")
}

fn at(ms: u64) -> Time {
    Time::from_nanos(1 + ms * 1_000_000)
}

struct Fixture {
    region: Region,
    peers: Peers,
    now: Time,
}

impl Fixture {
    fn new() -> Self {
        Self { region: Region::new(&Config::default(), ME, 1), peers: peers(), now: at(0) }
    }

    fn run(&mut self, f: impl FnOnce(&mut Region, Time, &Peers, &mut Vec<RegionOut>)) -> Vec<RegionOut> {
        let mut out = vec![];
        f(&mut self.region, self.now, &self.peers, &mut out);
        self.region.check();
        out
    }

    fn send(&mut self, n: u8) -> Vec<RegionOut> {
        self.run(|r, now, peers, out| r.send(now, message(n), peers, out))
    }

    fn learn(&mut self, epoch: u64, home: NodeId) -> Vec<RegionOut> {
        self.run(|r, now, peers, out| _ = r.learn(now, S, Epoch(epoch), home, peers, out))
    }

    fn running(&mut self, start: u64, cur: u64) -> Vec<RegionOut> {
        self.run(|r, now, peers, out| r.running(now, S, Epoch(start), Epoch(cur), peers, out))
    }

    fn timeout(&mut self, now: Time) -> Vec<RegionOut> {
        self.now = now;
        self.run(|r, now, peers, out| r.handle_timeout(now, peers, out))
    }
}

fn word(epoch: u64) -> RegionOut {
    RegionOut::Publish { shard: S, word: if epoch == 0 { Word::ELSEWHERE } else { Word::local(0, Epoch(epoch)) } }
}

fn sent(to: NodeId, tag: u64, mode: Mode, n: u8) -> RegionOut {
    RegionOut::Item { to, shard: S, item: Item::Msg { tag: Epoch(tag), mode, envelope: message(n) } }
}

#[test]
fn the_word_waits_for_the_worker_to_run_the_shard() {
    let mut f = Fixture::new();
    assert_eq!(f.learn(1, ME), [], "L5");
    assert_eq!(f.running(1, 1), [word(1)]);
    assert_eq!(f.running(1, 1), [], "once per epoch");
    assert_eq!(f.learn(2, B), [word(0)], "the tag leaves it");
    f.region.ended(S, Epoch(1));
    assert_eq!(f.learn(3, ME), []);
    assert_eq!(f.running(3, 3), [word(3)]);
}

#[test]
fn the_word_waits_until_nothing_is_pending() {
    let mut f = Fixture::new();
    f.learn(1, B);
    f.send(0);
    assert_eq!(f.learn(2, ME), [RegionOut::Item { to: B, shard: S, item: Item::Fence { p: Epoch(1) } }]);
    assert_eq!(f.running(2, 2), [], "L4");
    let out = f.run(|r, now, peers, out| r.stream_ack(now, S, Epoch(1), peers, out));
    assert_eq!(out, [RegionOut::Item { to: ME, shard: S, item: Item::Settle { tag: Epoch(2) } }, word(2)]);
}

#[test]
fn the_short_way_is_open_where_the_long_one_would_send_at_once() {
    let mut f = Fixture::new();
    let short = |f: &mut Fixture| f.region.short_way(S, &f.peers);
    assert_eq!(short(&mut f), None, "no home is known");
    f.learn(1, B);
    assert_eq!(short(&mut f), Some((B, Epoch(1))));
    assert_eq!(f.learn(2, C), [RegionOut::Item { to: B, shard: S, item: Item::Fence { p: Epoch(1) } }], "the path was used");
    assert_eq!(short(&mut f), None, "a fence is outstanding, and every message says so");
    assert_eq!(f.send(0), [sent(C, 2, Mode::Wait(Epoch(1)), 0)]);
    f.run(|r, now, peers, out| r.stream_ack(now, S, Epoch(1), peers, out));
    assert_eq!(short(&mut f), Some((C, Epoch(2))));
    f.peers.set_blocked(C, Some(ShardKey { shard: ShardId(S.shard.0 + 1), ..S }), true);
    assert_eq!(short(&mut f), Some((C, Epoch(2))), "another one has no room");
    f.peers.set_blocked(C, Some(S), true);
    assert_eq!(short(&mut f), None, "no room");
    f.peers.set_blocked(C, Some(S), false);
    f.peers.set_blocked(C, None, true);
    assert_eq!(short(&mut f), None, "no room for any");
    assert_eq!(f.send(1), [RegionOut::Publish { shard: S, word: Word::NO_ROOM }], "buffered, and producers are told");
    f.peers.set_blocked(C, None, false);
    assert_eq!(short(&mut f), None, "not in front of what is buffered");
    let out = f.run(|r, now, peers, out| r.room_changed(now, C, None, peers, out));
    assert!(out.contains(&sent(C, 2, Mode::Settled, 1)));
    assert_eq!(short(&mut f), Some((C, Epoch(2))));
    f.learn(3, ME);
    assert_eq!(short(&mut f), None, "here, by the worker's ring");
    assert!(f.region.is_up_to_date(S, Epoch(3)) && f.region.is_up_to_date(S, Epoch(2)), "who sends here need not be told");
    f.learn(4, B);
    assert!(f.region.is_up_to_date(S, Epoch(4)) && !f.region.is_up_to_date(S, Epoch(3)));
}

#[test]
fn moves_between_peers_do_not_touch_the_word() {
    let mut f = Fixture::new();
    assert_eq!(f.learn(1, B), []);
    assert_eq!(f.learn(2, C), []);
}

#[test]
fn a_leave_opens_the_worker_only_under_the_same_tag() {
    let mut f = Fixture::new();
    f.learn(1, ME);
    f.running(1, 1);
    let leave = |k| LaneItem::Leave { shard: S, k: Epoch(k) };
    let open = |yes| RegionOut::Open { lane: LaneId(3), shard: S, k: Epoch(1), yes };
    assert_eq!(f.run(|r, now, peers, out| r.handle_lane(now, LaneId(3), leave(1), peers, out)), [open(true)]);
    f.learn(2, B);
    assert_eq!(f.run(|r, now, peers, out| r.handle_lane(now, LaneId(3), leave(1), peers, out)), [open(false)], "L3");
}

#[test]
fn what_waits_for_a_home_goes_in_order_when_it_is_known() {
    let mut f = Fixture::new();
    assert_eq!(f.send(0), [RegionOut::WhereIs(S)]);
    assert_eq!(f.send(1), [], "asked once");
    assert_eq!(f.timeout(at(1000)), [RegionOut::WhereIs(S)], "and again while something waits");
    assert_eq!(f.learn(1, B), [sent(B, 1, Mode::Settled, 0), sent(B, 1, Mode::Settled, 1)]);
    assert_eq!(f.region.next_timeout().filter(|t| *t < at(59_000)), None);
    assert_eq!(f.send(2), [sent(B, 1, Mode::Settled, 2)]);
}

#[test]
fn a_buffer_that_was_emptied_takes_no_memory() {
    let mut f = Fixture::new();
    let room = |f: &Fixture| f.region.shards[&S].buffer.capacity();
    (0..10).for_each(|n| _ = f.send(n));
    assert!(room(&f) >= 10);
    f.learn(1, B);
    assert_eq!((f.region.buffered(), room(&f)), (0, 0), "sent");
    f.learn(2, NodeId::from_raw(99));
    f.send(0);
    f.run(|r, _, _, out| r.set_refused(S.ty, true, out));
    assert_eq!((f.region.buffered(), room(&f)), (0, 0), "given up");
}

#[test]
fn a_home_without_an_address_is_waited_for() {
    let mut f = Fixture::new();
    let joiner = NodeId::from_raw(9);
    f.learn(1, joiner);
    assert_eq!(f.send(0), [RegionOut::WhereIs(S)]);
    f.peers.link_up(joiner, NodeAddr::new("j", 1));
    assert_eq!(f.run(|r, now, peers, out| r.retry_buffered(now, peers, out)), [sent(joiner, 1, Mode::Settled, 0)]);
}

#[test]
fn one_shard_does_not_use_up_the_buffer_of_all() {
    let mut config = Config::default();
    config.sharding.buffer_messages = 8;
    let mut f = Fixture { region: Region::new(&config, ME, 1), ..Fixture::new() };
    f.send(0);
    assert_eq!(f.send(1), []);
    assert_eq!(f.send(2), [RegionOut::GiveUp(message(2), DropReason::BufferFull)]);
    for n in 10..13 {
        for _ in 0..2 {
            let envelope = Envelope { shard: ShardKey { shard: ShardId(n), ..S }, ..message(0) };
            f.run(|r, now, peers, out| r.send(now, envelope, peers, out));
        }
    }
    assert_eq!(f.region.buffered(), 8);
    let envelope = Envelope { shard: ShardKey { shard: ShardId(20), ..S }, ..message(0) };
    let out = f.run(|r, now, peers, out| r.send(now, envelope, peers, out));
    assert!(matches!(out[..], [RegionOut::GiveUp(_, DropReason::BufferFull)]));
}

// failures: row 40
#[test]
fn what_waits_for_a_home_is_bounded_in_bytes() {
    let mut f = Fixture::new();
    f.region.buffer_bytes_max = 3 * message(0).size();
    f.send(0);
    assert_eq!((f.send(1), f.send(2)), (vec![], vec![]));
    assert_eq!(f.send(3), [RegionOut::GiveUp(message(3), DropReason::BufferFull)]);
    f.learn(1, B);
    assert_eq!(f.region.buffered(), 0, "what had room is on its way");
    f.learn(2, NodeId::from_raw(99));
    f.send(4);
    assert_eq!(f.region.buffered(), 1, "and there is room again");
}

#[test]
fn a_shard_whose_last_waiting_message_is_given_up_has_room_again() {
    let mut f = Fixture::new();
    // Others use up what goes in one part.
    (f.region.flush_max, f.region.flush_left) = (0, 0);
    let asked = Envelope { ask: Some(Ask { node: ME, correlation: 1, deadline: at(500) }), ..message(1) };
    f.run(|r, now, peers, out| r.send(now, asked.clone(), peers, out));
    assert_eq!(f.learn(1, B), [RegionOut::Publish { shard: S, word: Word::NO_ROOM }]);
    let out = f.timeout(at(500));
    assert_eq!(out, [RegionOut::GiveUp(asked, DropReason::Expired), RegionOut::Publish { shard: S, word: Word::ELSEWHERE }]);
}

// failures: row 54
#[test]
fn what_nobody_hosts_ends_with_a_reason() {
    let mut f = Fixture::new();
    f.send(0);
    let ask = Ask { node: ME, correlation: 1, deadline: at(500) };
    let asked = Envelope { ask: Some(ask), ..message(1) };
    f.run(|r, now, peers, out| r.send(now, asked.clone(), peers, out));
    // Given up in time for its asker to hear it.
    let other = Envelope { shard: ShardKey { ty: TypeId(99), ..S }, ..asked.clone() };
    f.run(|r, now, peers, out| r.send(now, other.clone(), peers, out));
    f.region.no_host(S.ty);
    let out = f.timeout(at(450));
    assert!(out.contains(&RegionOut::GiveUp(asked, DropReason::NoHost)), "{out:?}");
    assert!(out.contains(&RegionOut::GiveUp(other, DropReason::Expired)), "{out:?}");
    let out = f.timeout(at(60_000));
    assert!(out.contains(&RegionOut::GiveUp(message(0), DropReason::NoHost)), "{out:?}");
    assert_eq!(f.region.buffered(), 0);
}

#[test]
fn a_refused_type_keeps_nothing() {
    let mut f = Fixture::new();
    f.send(0);
    let out = f.run(|r, _, _, out| r.set_refused(S.ty, true, out));
    assert_eq!(out, [RegionOut::GiveUp(message(0), DropReason::TypeRefused)]);
    assert_eq!(f.send(1), [RegionOut::GiveUp(message(1), DropReason::TypeRefused)]);
    f.run(|r, _, _, out| r.set_refused(S.ty, false, out));
    assert_eq!(f.send(2), [RegionOut::WhereIs(S)]);
}

#[test]
fn a_removed_home_buffers_until_a_newer_one_is_known() {
    let mut f = Fixture::new();
    f.learn(1, B);
    f.send(0);
    f.peers.remove(B);
    assert_eq!(f.run(|r, now, peers, out| r.removed(now, B, peers, out)), []);
    assert_eq!(f.send(1), [RegionOut::WhereIs(S)]);
    let over = RegionOut::Item { to: C, shard: S, item: Item::Over { p: Epoch(1), tag: Epoch(2) } };
    assert_eq!(f.learn(2, C), [over, sent(C, 2, Mode::Over(Epoch(1)), 1)]);
}

#[test]
fn an_epoch_the_worker_waits_for_is_asked_for_until_it_is_settled() {
    let mut f = Fixture::new();
    let unknown = |f: &mut Fixture| {
        let mut known = None;
        let out = f.run(|r, now, peers, out| known = r.unknown(now, S, Epoch(4), peers, out));
        (out, known)
    };
    assert_eq!(unknown(&mut f), (vec![RegionOut::WhereIs(S)], None));
    f.learn(4, ME);
    assert_eq!(f.timeout(at(1000)), [RegionOut::WhereIs(S)], "this node's own move may have been called off");
    assert_eq!(f.learn(5, B), []);
    assert_eq!(f.timeout(at(2000)), []);
    assert_eq!(unknown(&mut f), (vec![], Some((Epoch(5), B))), "known already");
    f.peers.remove(B);
    f.run(|r, now, peers, out| r.removed(now, B, peers, out));
    assert_eq!(unknown(&mut f), (vec![RegionOut::WhereIs(S)], None), "whose home is removed says nothing");
    assert_eq!(f.timeout(at(3000)), [RegionOut::WhereIs(S)]);
    f.learn(6, C);
    assert_eq!((f.timeout(at(4000)), unknown(&mut f)), (vec![], (vec![], Some((Epoch(6), C)))));
}

#[test]
fn a_move_to_this_node_is_asked_about_until_it_arrives() {
    let mut f = Fixture::new();
    assert_eq!(f.learn(1, ME), []);
    assert_eq!(f.timeout(at(1000)), [RegionOut::WhereIs(S)], "it may have been called off");
    f.running(1, 1);
    assert_eq!(f.timeout(at(2000)), []);
}

#[test]
fn nothing_is_repeated_after_the_end() {
    let mut f = Fixture::new();
    f.learn(1, B);
    f.send(0);
    f.learn(2, C);
    assert!(f.region.next_timeout().is_some(), "the fence is pending");
    f.run(|r, _, _, out| r.end(out));
    assert_eq!(f.region.next_timeout(), None);
}

#[test]
fn what_waited_for_room_goes_in_parts_and_producers_hear_when_there_is_room() {
    let mut f = Fixture::new();
    (f.region.flush_max, f.region.flush_left) = (4, 4);
    let room = |f: &mut Fixture, blocked| {
        f.peers.set_blocked(B, None, blocked);
        f.run(|r, now, peers, out| r.room_changed(now, B, Some(S), peers, out))
    };
    let publish = |word| RegionOut::Publish { shard: S, word };
    f.learn(1, B);
    assert_eq!(room(&mut f, true), [publish(Word::NO_ROOM)]);
    for n in 0..5 {
        assert_eq!(f.send(n), [], "no question where its home is");
    }
    // Each message has two bytes: the link is asked whether it has room after two of them.
    assert_eq!(room(&mut f, false), [sent(B, 1, Mode::Settled, 0), sent(B, 1, Mode::Settled, 1)]);
    assert_eq!(f.send(5), [], "behind those that wait");
    assert_eq!(f.region.next_timeout(), Some(at(0)), "the rest goes with the next turn");
    assert_eq!(f.timeout(at(0)), [sent(B, 1, Mode::Settled, 2), sent(B, 1, Mode::Settled, 3)]);
    assert_eq!(f.timeout(at(0)), [sent(B, 1, Mode::Settled, 4), sent(B, 1, Mode::Settled, 5), publish(Word::ELSEWHERE)]);
    assert_eq!(f.send(6), [sent(B, 1, Mode::Settled, 6)]);
    // A home that is elsewhere has room.
    assert_eq!(room(&mut f, true), [publish(Word::NO_ROOM)]);
    f.send(7);
    f.region.flush_left = 4;
    let out = f.learn(2, C);
    assert_eq!(out[1..], [sent(C, 2, Mode::Wait(Epoch(1)), 7), publish(Word::ELSEWHERE)], "behind a fence on the old way");
}

#[test]
fn a_sign_that_waited_for_a_home_goes_there_when_it_is_known_as_what_is_told_does() {
    for deadline in [None, Some(Time::MAX)] {
        let mut f = Fixture::new();
        let ask = deadline.map(|deadline| Ask { node: ME, correlation: 7, deadline });
        let waits = Envelope::new(S, ask, b"k", &[0]).expect("the key is short");
        f.run(|r, now, peers, out| r.send(now, waits.clone(), peers, out));
        // The record comes in front of a timer that is late.
        f.now = at(61_000);
        let item = Item::Msg { tag: Epoch(1), mode: Mode::Settled, envelope: waits };
        assert_eq!(f.learn(1, B), [RegionOut::Item { to: B, shard: S, item }], "{deadline:?}");
    }
}
