//! Hand-off lanes: what goes again, by way of others, and in bounds.

use super::*;

/// Enough for all that a test sends, unless it is about that.
const CREDIT: usize = 1 << 20;

struct Lane {
    relay: Relay,
    peers: Peers,
    region: Region,
    takes_shards: bool,
}

impl Lane {
    fn new() -> Self {
        let relay = Relay::new(ME, Duration::from_secs(1), Duration::from_secs(60), 3, CREDIT);
        Self { relay, peers: peers(), region: Region::new(&Config::default(), ME, 1), takes_shards: true }
    }

    fn run(&mut self, f: impl FnOnce(&mut Relay, &Peers, &mut Vec<RelayOut>)) -> Vec<RelayOut> {
        self.run_known(|relay, known, out| f(relay, known.peers, out))
    }

    fn run_known(&mut self, f: impl FnOnce(&mut Relay, Known<'_>, &mut Vec<RelayOut>)) -> Vec<RelayOut> {
        let mut out = vec![];
        f(
            &mut self.relay,
            Known { peers: &self.peers, region: &self.region, takes_shards: self.takes_shards, is_silent: &|_| false },
            &mut out,
        );
        self.relay.check();
        out
    }

    fn push(&mut self, item: HandoffItem) -> Vec<RelayOut> {
        self.run(|relay, peers, out| relay.push(at(0), B, S, item, peers, out))
    }

    fn receive(&mut self, number: u64, item: HandoffItem) -> Vec<RelayOut> {
        self.receive_by(None, number, item)
    }

    fn receive_by(&mut self, by: Option<NodeId>, number: u64, item: HandoffItem) -> Vec<RelayOut> {
        self.run_known(|relay, known, out| relay.receive((B, by), S, number, item, known, out))
    }

    fn removed(&mut self, node: NodeId) -> Vec<RelayOut> {
        self.peers.remove(node);
        self.run_known(|relay, known, out| relay.removed(at(0), node, known, out))
    }

    fn learn(&mut self, epoch: u64, home: NodeId) {
        self.region.learn(at(0), S, Epoch(epoch), home, &self.peers, &mut vec![]);
    }

    fn acks(&mut self) -> Vec<RelayOut> {
        self.run(|relay, _, out| relay.flush_acks(out))
    }
}

fn forwarded(n: u8, after: &[NodeId]) -> HandoffItem {
    let item = Item::Msg { tag: Epoch(1), mode: Mode::Settled, envelope: message(n) };
    HandoffItem::Forwarded(Forwarded { aim: Epoch(2), after: after.to_vec(), stream: C, item })
}

fn transfer() -> HandoffItem {
    HandoffItem::Transfer(TransferChunk { epoch: Epoch(2), base: Epoch(1), last: true, bytes: Arc::default() })
}

fn frame(number: u64, item: HandoffItem) -> RelayOut {
    RelayOut::Frame(B, Frame::Handoff { shard: S, number, item })
}

fn deliver(item: HandoffItem) -> RelayOut {
    RelayOut::Deliver { from: B, shard: S, item }
}

fn ack(upto: u64) -> RelayOut {
    RelayOut::Frame(B, Frame::HandoffAck { shard: S, upto })
}

#[test]
fn a_new_session_repeats_what_is_unacknowledged() {
    let mut lane = Lane::new();
    assert_eq!(lane.push(transfer()), [frame(1, transfer())]);
    assert_eq!(lane.push(forwarded(0, &[])), [frame(2, forwarded(0, &[]))]);
    assert_eq!(lane.acknowledged(at(0), 1), (false, vec![]));
    lane.relay.link_down(at(0), B, true);
    assert_eq!(lane.push(forwarded(1, &[])), [], "behind what is repeated");
    assert_eq!(lane.run(|relay, _, out| relay.link_up(at(1), B, out)), [frame(2, forwarded(0, &[])), frame(3, forwarded(1, &[]))]);
    assert_eq!(lane.run(|relay, _, out| relay.link_up(at(1), B, out)), [], "the session has it already");
    assert_eq!(lane.acknowledged(at(0), 3), (true, vec![]));
    assert_eq!(lane.relay.next_timeout(), None);
}

#[test]
fn a_lane_whose_link_is_down_dials_by_itself() {
    let mut lane = Lane::new();
    lane.push(transfer());
    lane.relay.link_down(at(0), B, true);
    assert_eq!(lane.relay.next_timeout(), Some(at(1000)));
    assert_eq!(lane.run(|relay, peers, out| relay.handle_timeout(at(1000), peers, out)), [frame(1, transfer())]);
    assert_eq!(lane.run(|relay, _, out| relay.link_up(at(1001), B, out)), [], "what was to be sent waits in the link");
}

/// A frame to B, or back to it, by way of another node.
fn by(node: NodeId, frame: Frame) -> RelayOut {
    RelayOut::Frame(node, Frame::Detour { from: ME, to: B, frame: Box::new(frame) })
}

fn numbered(number: u64, item: HandoffItem) -> Frame {
    Frame::Handoff { shard: S, number, item }
}

/// A lane to B, which cannot be reached, and two members who may reach it: C with a link, and D without.
fn apart() -> Lane {
    let mut lane = Lane::new();
    [ME, B, C, D].into_iter().for_each(|n| lane.peers.add_member(n, NodeAddr::new("x", n.raw() as u16)));
    lane.peers.link_down(B);
    lane
}

impl Lane {
    fn timeout(&mut self) -> (Time, Vec<RelayOut>) {
        let now = self.relay.next_timeout().unwrap();
        (now, self.run(|relay, peers, out| relay.handle_timeout(now, peers, out)))
    }

    fn acknowledged(&mut self, now: Time, upto: u64) -> (bool, Vec<RelayOut>) {
        let mut all = false;
        let out = self.run(|relay, peers, out| all = relay.acknowledged(now, B, S, upto, peers, out));
        (all, out)
    }
}

#[test]
fn who_does_not_reach_the_other_end_tries_by_way_of_others_in_turns() {
    let mut lane = apart();
    let message = |n| forwarded(n, &[]);
    // Straight first: it is dialled for.
    assert_eq!(lane.push(transfer()), [frame(1, transfer())]);
    assert_eq!(lane.timeout(), (at(1000), vec![frame(1, transfer())]));
    assert_eq!(lane.timeout(), (at(2000), vec![frame(1, transfer()), by(C, numbered(1, transfer()))]));
    assert_eq!(lane.push(message(0)), [frame(2, message(0)), by(C, numbered(2, message(0)))], "behind it, both ways");
    let both = |to| [by(to, numbered(1, transfer())), by(to, numbered(2, message(0)))];
    let straight = frame(1, transfer());
    assert_eq!(lane.timeout(), (at(3000), [vec![straight.clone()], both(D).to_vec()].concat()), "all were tried once");
    assert_eq!(lane.timeout(), (at(5000), [vec![straight.clone()], both(C).to_vec()].concat()));
    // What waits for the link is thrown away: that puts nothing off.
    lane.relay.link_down(at(5500), B, false);
    assert_eq!(lane.timeout(), (at(7000), [vec![straight, frame(2, message(0))], both(D).to_vec()].concat()));
    assert_eq!(lane.acknowledged(at(7100), 3), (false, vec![]), "of what was never sent");
    assert_eq!(lane.acknowledged(at(7100), 1), (false, vec![]));
    assert_eq!(lane.relay.next_timeout(), Some(at(8100)));
    lane.peers.link_up(B, NodeAddr::new("b", 1));
    assert_eq!(lane.run(|relay, _, out| relay.link_up(at(7200), B, out)), [], "it waited in the link");
    assert_eq!(lane.push(transfer()), [frame(3, transfer())], "straight alone");
    assert_eq!(lane.acknowledged(at(7300), 3), (true, vec![]));
    assert_eq!(lane.relay.next_timeout(), None);
}

#[test]
fn a_link_that_only_this_end_believes_in_is_gone_round() {
    let mut lane = apart();
    lane.peers.link_up(B, NodeAddr::new("b", 1));
    assert_eq!(lane.push(transfer()), [frame(1, transfer())]);
    assert_eq!(lane.timeout(), (at(10_000), vec![frame(1, transfer())]), "the other end may be slow");
    assert_eq!(lane.timeout(), (at(30_000), vec![frame(1, transfer()), by(C, numbered(1, transfer()))]));
}

#[test]
fn only_so_much_is_under_way_by_way_of_others() {
    let mut lane = apart();
    lane.relay = Relay::new(ME, Duration::from_secs(1), Duration::from_secs(60), 100, CREDIT);
    (0..40).for_each(|_| drop(lane.push(transfer())));
    let passed = |out: &[RelayOut]| out.iter().filter(|out| matches!(out, RelayOut::Frame(_, Frame::Detour { .. }))).count();
    lane.timeout();
    assert_eq!(passed(&lane.timeout().1), 16);
    assert_eq!(passed(&lane.push(transfer())), 0);
    assert_eq!(passed(&lane.acknowledged(at(2100), 10).1), 10, "as much as has arrived");
    lane.peers.set_blocked(C, None, true);
    assert_eq!(passed(&lane.acknowledged(at(2200), 20).1), 0, "their link has no room");
    lane.peers.set_blocked(C, None, false);
    assert_eq!(passed(&lane.acknowledged(at(2300), 21).1), 11);
    assert_eq!(lane.acknowledged(at(2400), 41), (true, vec![]));
    // Of many lanes together as well.
    let shard = |n| ShardKey { shard: crate::ShardId(n), ..S };
    for n in 0..300 {
        lane.run(|relay, peers, out| relay.push(at(2500), B, shard(n), transfer(), peers, out));
    }
    let mut sent = vec![];
    while lane.relay.next_timeout().unwrap() < at(7000) {
        sent.push(passed(&lane.timeout().1));
    }
    assert!(sent.iter().all(|count| *count <= 128) && sent.iter().sum::<usize>() >= 300, "{sent:?}");
}

/// So many bytes of a shard's state.
fn chunk(bytes: usize) -> HandoffItem {
    HandoffItem::Transfer(TransferChunk { epoch: Epoch(2), base: Epoch(1), last: false, bytes: Arc::new(vec![0; bytes]) })
}

/// A lane with a link and credit for two chunks of 1000 bytes.
fn short_of_credit() -> Lane {
    let mut lane = Lane::new();
    lane.relay = Relay::new(ME, Duration::from_secs(1), Duration::from_secs(60), 100, 1500);
    lane.peers.add_member(B, NodeAddr::new("b", 1));
    lane.peers.link_up(B, NodeAddr::new("b", 1));
    lane
}

const OTHER: ShardKey = ShardKey { ty: S.ty, shard: crate::ShardId(77) };

#[test]
fn what_is_under_way_to_a_node_is_bounded_in_bytes_of_all_lanes() {
    let mut lane = short_of_credit();
    let sent = |n| frame(n, chunk(1000));
    let other = RelayOut::Frame(B, Frame::Handoff { shard: OTHER, number: 1, item: chunk(9000) });
    assert_eq!(lane.push(chunk(1000)), [sent(1)]);
    assert_eq!(lane.push(chunk(1000)), [sent(2)]);
    assert_eq!(lane.push(chunk(1000)), []);
    assert_eq!(lane.run(|relay, peers, out| relay.push(at(0), B, OTHER, chunk(9000), peers, out)), []);
    assert_eq!(lane.push(chunk(1000)), [], "behind those that wait");
    assert_eq!(lane.acknowledged(at(0), 1), (false, vec![sent(3)]));
    assert_eq!(lane.acknowledged(at(0), 1), (false, vec![]));
    assert_eq!(lane.acknowledged(at(0), 2), (false, vec![other]), "in the order in which they came, however long they are");
    assert_eq!(lane.acknowledged(at(0), 3), (false, vec![]));
    let all = lane.run(|relay, peers, out| assert!(relay.acknowledged(at(0), B, OTHER, 1, peers, out)));
    assert_eq!(all, [sent(4)]);
    assert_eq!(lane.acknowledged(at(0), 4), (true, vec![]));
    assert_eq!(lane.push(chunk(9000)), [frame(5, chunk(9000))], "what is longer than all credit goes alone");
    assert_eq!(lane.push(chunk(1)), []);
}

#[test]
fn a_lost_acknowledgement_holds_up_no_lane_for_ever() {
    let mut lane = short_of_credit();
    lane.peers.add_member(C, NodeAddr::new("c", 1));
    let sent = |n| frame(n, chunk(1000));
    (0..3).for_each(|_| drop(lane.push(chunk(1000))));
    lane.run(|relay, peers, out| relay.push(at(0), B, OTHER, chunk(1), peers, out));
    assert_eq!(lane.timeout(), (at(10_000), vec![sent(1), sent(2)]), "what is under way, and no more");
    // The other lane waits for this one, and has no reason to go round the link.
    assert_eq!(lane.timeout(), (at(20_000), vec![]));
    let other = RelayOut::Frame(B, Frame::Handoff { shard: OTHER, number: 1, item: chunk(1) });
    assert_eq!(lane.acknowledged(at(20_000), 2), (false, vec![sent(3), other.clone()]));
    assert_eq!(lane.acknowledged(at(20_000), 3), (true, vec![]));
    assert_eq!(lane.timeout(), (at(30_000), vec![other]), "from when it was sent");
}

#[test]
fn a_new_session_gets_what_there_is_credit_for() {
    let mut lane = short_of_credit();
    let sent = |n| frame(n, chunk(1000));
    (0..5).for_each(|_| drop(lane.push(chunk(1000))));
    assert_eq!(lane.acknowledged(at(0), 1), (false, vec![sent(3)]));
    lane.relay.link_down(at(0), B, true);
    assert_eq!(lane.acknowledged(at(0), 2), (false, vec![]), "by another way: a session gets the rest");
    assert_eq!(lane.run(|relay, _, out| relay.link_up(at(1), B, out)), [sent(3), sent(4)]);
    assert_eq!(lane.acknowledged(at(2), 5), (true, vec![]), "also what was not sent straight");
    assert_eq!(lane.push(chunk(1000)), [frame(6, chunk(1000))]);
    assert_eq!(lane.push(chunk(1000)), [frame(7, chunk(1000))], "all credit is back");
}

#[test]
fn sessions_that_end_again_and_again_put_no_try_off() {
    let mut lane = short_of_credit();
    lane.peers.add_member(C, NodeAddr::new("c", 1));
    lane.push(chunk(1000));
    let mut round = vec![];
    for now in (0..5000).step_by(500).map(at) {
        if lane.relay.next_timeout().is_some_and(|due| due <= now) {
            round.extend(lane.timeout().1.into_iter().filter(|out| matches!(out, RelayOut::Frame(_, Frame::Detour { .. }))));
        }
        lane.relay.link_down(now, B, true);
        lane.peers.link_down(B);
        lane.peers.link_up(B, NodeAddr::new("b", 1));
        lane.run(|relay, _, out| relay.link_up(now, B, out));
    }
    assert!(round.contains(&by(C, numbered(1, chunk(1000)))), "{round:?}");
}

#[test]
fn a_hand_over_of_many_times_the_credit_arrives_once_and_in_order() {
    const ITEMS: u8 = 90;
    let (mut here, mut there) = (short_of_credit(), Lane::new());
    let content =
        |n: u8| HandoffItem::Transfer(TransferChunk { epoch: Epoch(2), base: Epoch(1), last: false, bytes: Arc::new(vec![n; 400]) });
    let mut link: VecDeque<RelayOut> = (0..ITEMS).flat_map(|n| here.push(content(n))).collect();
    let (mut arrived, mut turn) = (vec![], 0);
    while let Some(RelayOut::Frame(_, Frame::Handoff { number, item, .. })) = link.pop_front() {
        turn += 1;
        assert!(link.len() < 3, "{} frames of more than 500 bytes", link.len() + 1);
        arrived.extend(there.receive(number, item));
        if turn % 10 == 0 {
            // The acknowledgement is lost with the session.
            there.acks();
            link.clear();
            here.relay.link_down(at(turn), B, true);
            link.extend(here.run(|relay, _, out| relay.link_up(at(turn), B, out)));
        }
        for ack in there.acks() {
            let RelayOut::Frame(_, Frame::HandoffAck { upto, .. }) = ack else { panic!("{ack:?}") };
            link.extend(here.acknowledged(at(turn), upto).1);
        }
    }
    assert_eq!(arrived, (0..ITEMS).map(|n| deliver(content(n))).collect::<Vec<_>>());
    assert_eq!(here.relay.unacknowledged(), 0);
}

#[test]
fn acknowledgements_go_the_way_that_things_came() {
    let mut lane = Lane::new();
    let came = |lane: &mut Lane, number, by| lane.receive_by(by, number, transfer());
    assert_eq!(came(&mut lane, 1, Some(C)), [deliver(transfer())]);
    let by_c = |upto| by(C, Frame::HandoffAck { shard: S, upto });
    assert_eq!(lane.acks(), [by_c(1)], "whatever link this end believes in");
    assert_eq!(came(&mut lane, 1, Some(C)), []);
    assert_eq!(came(&mut lane, 2, Some(C)), [deliver(transfer())]);
    assert_eq!(lane.acks(), [by_c(2)]);
    assert_eq!(came(&mut lane, 2, None), []);
    assert_eq!(lane.acks(), [ack(2)]);
}

#[test]
fn numbers_that_were_had_are_dropped_and_acknowledged_once_per_batch() {
    let mut lane = Lane::new();
    assert_eq!(lane.receive(1, transfer()), [deliver(transfer())]);
    assert_eq!(lane.receive(1, transfer()), []);
    assert_eq!(lane.receive(3, forwarded(0, &[])), [], "a hole is not skipped");
    assert_eq!(lane.receive(2, forwarded(0, &[])), [deliver(forwarded(0, &[]))]);
    assert_eq!(lane.acks(), [ack(2)]);
    assert_eq!(lane.acks(), []);
}

#[test]
fn a_lane_waits_for_removals_to_be_processed_here() {
    let mut lane = Lane::new();
    [ME, B, C].into_iter().for_each(|n| lane.peers.add_member(n, NodeAddr::new("x", n.raw() as u16)));
    assert_eq!(lane.receive(1, forwarded(0, &[C])), [], "CE-9");
    assert_eq!(lane.receive(2, forwarded(1, &[])), []);
    assert_eq!(lane.acks(), [ack(0)], "not taken over yet");
    let both = [deliver(forwarded(0, &[C])), deliver(forwarded(1, &[]))];
    assert_eq!(lane.removed(C), both);
    assert_eq!(lane.acks(), [ack(2)]);
}

// failures: row 40
#[test]
fn what_waits_in_all_lanes_is_bounded_and_what_is_more_comes_again() {
    let mut lane = Lane::new();
    [ME, B, C].into_iter().for_each(|n| lane.peers.add_member(n, NodeAddr::new("x", n.raw() as u16)));
    let items = [forwarded(0, &[C]), forwarded(1, &[]), forwarded(2, &[])];
    lane.relay.held_max = items[..2].iter().map(super::super::credit::wire_bytes).sum();
    for (number, item) in (1..).zip(items.clone()) {
        assert_eq!(lane.receive(number, item), if number < 3 { vec![] } else { vec![RelayOut::Refused(1)] });
    }
    lane.relay.check();
    assert_eq!(lane.acks(), [ack(0)]);
    assert_eq!(lane.removed(C), items[..2].iter().cloned().map(deliver).collect::<Vec<_>>());
    assert_eq!(lane.acks(), [ack(2)], "its sender repeats the rest");
    assert_eq!(lane.receive(3, items[2].clone()), [deliver(items[2].clone())]);
    lane.relay.check();
    lane.peers.remove(B);
    lane.run_known(|relay, known, out| relay.removed(at(0), B, known, out));
    lane.relay.check();
}

/// A lane in which a shard and a message wait behind a removal; then something changes, and the removal is processed.
fn after_a_wait(change: impl FnOnce(&mut Lane)) -> (Lane, Vec<RelayOut>) {
    let mut lane = Lane::new();
    [ME, B, C].into_iter().for_each(|n| lane.peers.add_member(n, NodeAddr::new("x", n.raw() as u16)));
    let items = [forwarded(0, &[C]), transfer(), forwarded(1, &[])];
    (1..).zip(items).for_each(|(number, item)| assert_eq!(lane.receive(number, item), []));
    change(&mut lane);
    let out = lane.removed(C);
    (lane, out)
}

#[test]
fn a_shard_that_waits_is_not_taken_from_who_is_down_meanwhile_by_a_move_that_was_not_heard_of() {
    let (mut lane, out) = after_a_wait(|lane| lane.peers.set_down(B));
    assert_eq!(out, [deliver(forwarded(0, &[C])), RelayOut::Refused(2)]);
    assert_eq!(lane.acks(), [ack(1)], "its sender keeps the rest");
    assert_eq!(lane.receive(3, forwarded(1, &[])), [], "a hole is not skipped");
    assert_eq!(lane.receive(2, transfer()), [RelayOut::Refused(1)]);
    lane.learn(1, ME);
    assert_eq!(lane.receive(2, transfer()), [RelayOut::Refused(1)], "that was an earlier move");
    lane.learn(2, ME);
    assert_eq!(lane.receive(2, transfer()), [deliver(transfer())]);
    assert_eq!(lane.receive(3, forwarded(1, &[])), [deliver(forwarded(1, &[]))]);
    assert_eq!(lane.acks(), [ack(3)]);
}

#[test]
fn a_shard_that_waits_is_not_taken_by_who_may_be_removed_meanwhile() {
    let (mut lane, out) = after_a_wait(|lane| lane.takes_shards = false);
    assert_eq!(out, [deliver(forwarded(0, &[C])), RelayOut::Refused(2)]);
    assert_eq!(lane.acks(), [ack(1)], "its sender has it until it hears of this node's removal");
}

#[test]
fn a_shard_that_has_another_home_by_now_is_not_taken_from_who_is_down() {
    let (mut lane, _) = after_a_wait(|lane| lane.peers.set_down(B));
    lane.learn(2, ME);
    lane.learn(3, D);
    assert_eq!(lane.receive(2, transfer()), [RelayOut::Refused(1)]);
    lane.learn(4, ME);
    assert_eq!(lane.receive(2, transfer()), [deliver(transfer())], "as what the newest record says is behind it");
}

#[test]
fn what_a_removed_node_had_not_acknowledged_is_given_up() {
    let mut lane = Lane::new();
    lane.push(transfer());
    lane.push(forwarded(0, &[]));
    let lost = |n| RelayOut::GiveUp(message(n), DropReason::RouteLost);
    assert_eq!(lane.removed(B), [lost(0)]);
    assert_eq!(lane.push(forwarded(1, &[])), [lost(1)], "its lane is not opened again");
    assert_eq!(lane.relay.unacknowledged(), 0);
}

#[test]
fn at_the_end_what_was_sent_may_have_run_and_what_waits_is_its_senders() {
    let mut lane = Lane::new();
    lane.push(forwarded(0, &[]));
    [ME, B, C].into_iter().for_each(|n| lane.peers.add_member(n, NodeAddr::new("x", n.raw() as u16)));
    lane.receive(1, forwarded(1, &[C]));
    let end = lane.run(|relay, _, out| relay.end(at(0), out));
    assert_eq!(end, [RelayOut::GiveUp(message(0), DropReason::RouteLost), RelayOut::Refused(1)]);
}

#[test]
fn forwarded_messages_do_not_wait_for_ever_for_a_link() {
    let mut lane = Lane::new();
    lane.push(transfer());
    lane.push(forwarded(0, &[]));
    lane.peers.link_down(B);
    lane.relay.link_down(at(0), B, true);
    let (mut given_up, mut sent) = (vec![], 0);
    let mut now = at(0);
    while now < at(60_000) {
        given_up.clear();
        now = lane.relay.next_timeout().unwrap();
        let out = lane.run(|relay, peers, out| relay.handle_timeout(now, peers, out));
        sent += out.iter().filter(|out| matches!(out, RelayOut::Frame(..))).count();
        given_up.extend(out.into_iter().filter(|out| matches!(out, RelayOut::GiveUp(..))));
    }
    assert_eq!((now, given_up), (at(60_000), vec![RelayOut::GiveUp(message(0), DropReason::LinkLost)]));
    // Only as often as there is another try is anything sent.
    assert!(sent <= 8, "{sent}");
    // The state goes on waiting, and numbers have no holes.
    lane.relay.link_down(now, B, true);
    let nothing = HandoffItem::Probe { origin: ME, route: 0, number: 0, aim: Epoch(2), after: vec![] };
    assert_eq!(lane.run(|relay, _, out| relay.link_up(now, B, out)), [frame(1, transfer()), frame(2, nothing)]);
}

#[test]
fn a_lane_with_a_link_gives_nothing_up() {
    let mut lane = Lane::new();
    lane.push(forwarded(0, &[]));
    let out = lane.run(|relay, peers, out| relay.handle_timeout(at(600_000), peers, out));
    assert_eq!(out, [frame(1, forwarded(0, &[]))], "it may have been taken over there");
}

#[test]
fn a_full_lane_refuses_messages_but_no_fence() {
    let mut lane = Lane::new();
    (0..3).for_each(|n| drop(lane.push(forwarded(n, &[]))));
    assert_eq!(lane.push(forwarded(3, &[])), [RelayOut::GiveUp(message(3), DropReason::MoveBufferFull)]);
    let fence = HandoffItem::Forwarded(Forwarded { aim: Epoch(2), after: vec![], stream: C, item: Item::Fence { p: Epoch(1) } });
    assert_eq!(lane.push(fence.clone()), [frame(4, fence)]);
}
