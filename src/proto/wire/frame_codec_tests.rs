use proptest::prelude::*;

use super::*;
use crate::{
    Term,
    proto::{
        handoff::{Ask, Envelope, Item, Mode},
        membership::MemberFrame,
        sharding::{FactState, ShardFact, ShardState, TableRow},
    },
};

const MAX: usize = 2 << 20;
const CX: Context = Context { sender: NodeId::from_raw(0xa11ce), now: Time::from_nanos(1_000_000) };

fn epochs() -> impl Strategy<Value = Epoch> {
    (0..=Epoch::ACCEPTED_MAX.get()).prop_map(|raw| Epoch::from_raw(raw).unwrap())
}

fn nodes() -> impl Strategy<Value = NodeId> {
    prop_oneof![any::<u128>().prop_map(NodeId::from_raw), Just(CX.sender)]
}

fn shards() -> impl Strategy<Value = ShardKey> {
    (any::<u32>(), 0..SHARDS_MAX).prop_map(|(ty, shard)| ShardKey { ty: TypeId(ty), shard: ShardId(shard) })
}

fn bytes(max: usize) -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any::<u8>(), 0..max)
}

fn asks() -> impl Strategy<Value = Ask> {
    let deadlines = prop_oneof![Just(Time::MAX), (CX.now.as_nanos()..u64::MAX).prop_map(Time::from_nanos)];
    (nodes(), any::<u64>(), deadlines).prop_map(|(node, correlation, deadline)| Ask { node, correlation, deadline })
}

fn items(shard: ShardKey) -> impl Strategy<Value = Item> {
    let modes = prop_oneof![Just(Mode::Settled), epochs().prop_map(Mode::Wait), epochs().prop_map(Mode::Over)];
    let envelopes = (prop::option::of(asks()), bytes(256), bytes(300))
        .prop_map(move |(ask, key, payload)| Envelope::new(shard, ask, &key, &payload).unwrap());
    prop_oneof![
        (epochs(), modes, envelopes).prop_map(|(tag, mode, envelope)| Item::Msg { tag, mode, envelope }),
        epochs().prop_map(|p| Item::Fence { p }),
        (epochs(), epochs()).prop_map(|(p, tag)| Item::Over { p, tag }),
        epochs().prop_map(|tag| Item::Settle { tag }),
    ]
}

fn handoffs(shard: ShardKey) -> impl Strategy<Value = HandoffItem> {
    prop_oneof![
        (epochs(), epochs(), any::<bool>(), bytes(500))
            .prop_map(|(epoch, base, last, bytes)| { HandoffItem::Transfer(TransferChunk { epoch, base, last, bytes: Arc::new(bytes) }) }),
        (epochs(), prop::collection::vec(nodes(), 0..5), nodes(), items(shard))
            .prop_map(|(aim, after, stream, item)| HandoffItem::Forwarded(Forwarded { aim, after, stream, item })),
        (nodes(), any::<u64>(), any::<u64>(), epochs(), prop::collection::vec(nodes(), 0..5))
            .prop_map(|(origin, route, number, aim, after)| HandoffItem::Probe { origin, route, number, aim, after }),
    ]
}

fn replies() -> impl Strategy<Value = ReplyBody> {
    prop_oneof![
        bytes(300).prop_map(|bytes| ReplyBody::Value(bytes.into())),
        prop::sample::select(DropReason::ALL).prop_map(ReplyBody::Dropped),
        Just(ReplyBody::NoReply),
        Just(ReplyBody::EntityFailed),
        ".{0,40}".prop_map(ReplyBody::Rejected),
        Just(ReplyBody::OwnerLost),
    ]
}

fn lane_frames() -> BoxedStrategy<Frame> {
    prop_oneof![
        (shards(), any::<u64>()).prop_flat_map(|(shard, number)| handoffs(shard).prop_map(move |item| Frame::Handoff {
            shard,
            number,
            item
        })),
        (shards(), any::<u64>()).prop_map(|(shard, upto)| Frame::HandoffAck { shard, upto }),
    ]
    .boxed()
}

fn control_frames() -> BoxedStrategy<Frame> {
    prop_oneof![
        (shards(), epochs(), nodes()).prop_map(|(shard, epoch, home)| Frame::Control(ControlFrame::Route { shard, epoch, home })),
        (shards(), epochs(), ".{0,40}").prop_map(|(shard, epoch, why)| Frame::Control(ControlFrame::MoveRefused { shard, epoch, why })),
    ]
    .boxed()
}

fn frames() -> impl Strategy<Value = Frame> {
    prop_oneof![
        shards().prop_flat_map(|shard| items(shard).prop_map(move |item| Frame::Item { shard, item })),
        lane_frames(),
        (nodes(), nodes(), prop_oneof![lane_frames(), control_frames()]).prop_map(|(from, to, frame)| Frame::Detour {
            from,
            to,
            frame: Box::new(frame)
        }),
        (shards(), epochs()).prop_map(|(shard, p)| Frame::StreamAck { shard, p }),
        (shards(), any::<u64>(), any::<u64>()).prop_map(|(shard, route, number)| Frame::ProbeAck { shard, route, number }),
        (any::<u64>(), replies()).prop_map(|(correlation, body)| Frame::Reply { correlation, body }),
        (any::<u32>(), any::<u64>(), bytes(300)).prop_map(|(ty, topic, bytes)| Frame::Cast { ty: TypeId(ty), topic, bytes: bytes.into() }),
        control_frames(),
    ]
}

fn encoded(frame: &Frame) -> Vec<u8> {
    let mut out = b"before".to_vec();
    let size = encode(frame, CX, MAX, &mut out).unwrap();
    assert_eq!(out.len(), 6 + size);
    out.split_off(6)
}

fn message(payload: usize, ask: Option<Ask>) -> Frame {
    let shard = ShardKey { ty: TypeId(1), shard: ShardId(2) };
    let envelope = Envelope::new(shard, ask, b"key", &vec![7; payload]).unwrap();
    Frame::Item { shard, item: Item::Msg { tag: Epoch::ZERO.next(), mode: Mode::Settled, envelope } }
}

proptest! {
    #[test]
    fn what_was_encoded_decodes_and_encodes_to_the_same_bytes(frame in frames()) {
        let raw = encoded(&frame);
        prop_assert_eq!(cut(&raw, MAX), Ok(Cut::Frame(raw.len())));
        prop_assert_eq!(decode(&raw, CX), Ok(Decoded::Frame(frame)));
    }

    #[test]
    fn every_prefix_of_a_frame_waits_and_every_shortened_frame_is_an_error_or_another_frame(frame in frames()) {
        let raw = encoded(&frame);
        for end in 0..raw.len() {
            prop_assert_eq!(cut(&raw[..end], MAX), Ok(Cut::Wait(if end < 4 { 4 } else { raw.len() })));
            // Only what ends in bytes of free length can be shortened and still be a frame.
            if let Ok(Decoded::Frame(other)) = decode(&raw[..end], CX) {
                prop_assert_ne!(&other, &frame);
            }
        }
    }

    #[test]
    fn any_bytes_are_a_frame_or_an_error(raw in bytes(300), kind in 0..19u8, flags in any::<u8>()) {
        let mut raw = raw;
        if raw.len() >= 8 {
            raw[4..8].copy_from_slice(&[kind, flags & 0x3f, 1, 0]);
        }
        let _ = cut(&raw, MAX);
        if let Ok(Decoded::Frame(frame)) = decode(&raw, CX) {
            let again = encoded(&frame);
            prop_assert_eq!(decode(&again, CX), Ok(Decoded::Frame(frame)));
        }
    }

    #[test]
    fn one_flipped_bit_never_panics(frame in frames(), at in any::<prop::sample::Index>(), bit in 0..8u8) {
        let mut raw = encoded(&frame);
        let at = at.index(raw.len());
        raw[at] ^= 1 << bit;
        let _ = cut(&raw, MAX);
        let _ = decode(&raw, CX);
    }

    #[test]
    fn any_bytes_are_a_member_frame_or_an_error(raw in bytes(200)) {
        if let Ok(member) = postcard::from_bytes::<MemberFrame>(&raw) {
            let frame = Frame::Member(member);
            prop_assert_eq!(decode(&encoded(&frame), CX), Ok(Decoded::Frame(frame)));
        }
        let whole = [&Header::new(kind::MEMBER, NO_SHARD).bytes()[..], &raw].concat();
        let _ = decode(&whole, CX);
    }
}

#[test]
fn a_settled_message_of_the_sender_has_the_header_a_key_length_key_and_payload_only() {
    let raw = encoded(&message(5, None));
    assert_eq!(raw.len(), HEADER_BYTES + 1 + 3 + 5);
    let own = Ask { node: CX.sender, correlation: 9, deadline: Time::MAX };
    assert_eq!(encoded(&message(5, Some(own))).len(), raw.len() + 8, "remaining time");
    let other = Ask { node: NodeId::from_raw(1), ..own };
    assert_eq!(encoded(&message(5, Some(other))).len(), raw.len() + 8 + 16, "remaining time and asker");
}

#[test]
fn deadlines_travel_as_remaining_time() {
    let deadline = CX.now + std::time::Duration::from_nanos(500);
    let ask = Ask { node: CX.sender, correlation: 1, deadline };
    let there = Context { now: Time::from_nanos(77), ..CX };
    let Ok(Decoded::Frame(Frame::Item { item: Item::Msg { envelope, .. }, .. })) = decode(&encoded(&message(0, Some(ask))), there) else {
        panic!("not a message");
    };
    assert_eq!(envelope.ask.unwrap().deadline, Time::from_nanos(577));
    let past = Ask { deadline: Time::from_nanos(1), ..ask };
    let Ok(Decoded::Frame(Frame::Item { item: Item::Msg { envelope, .. }, .. })) = decode(&encoded(&message(0, Some(past))), there) else {
        panic!("not a message");
    };
    assert_eq!(envelope.ask.unwrap().deadline, there.now, "already over");
}

// failures: row 3
#[test]
fn the_limit_is_checked_from_the_length_alone() {
    let length = u32::MAX.to_le_bytes();
    assert_eq!(cut(&length, MAX), Err(FrameError::TooLong { size: u64::from(u32::MAX) + 4, max: MAX as u64 }));
    assert_eq!(cut(&[3, 0, 0, 0], MAX), Err(FrameError::TooShort { size: 7 }));
    assert_eq!(cut(&(MAX as u32 - 4).to_le_bytes(), MAX), Ok(Cut::Wait(MAX)));
}

// failures: row 4
#[test]
fn a_frame_above_the_limit_is_not_encoded() {
    let mut out = vec![1, 2, 3];
    assert!(matches!(encode(&message(100, None), CX, 135, &mut out), Err(FrameError::TooLong { size: 136, max: 135 })));
    assert_eq!(out, [1, 2, 3], "nothing of it is left");
    assert_eq!(encode(&message(100, None), CX, 136, &mut out), Ok(136));
}

#[test]
fn an_unknown_kind_is_skipped_only_if_it_is_optional() {
    let mut raw = encoded(&message(5, None));
    raw[4] = 200;
    assert_eq!(decode(&raw, CX), Err(FrameError::UnsupportedFrame(200)));
    raw[5] = OPTIONAL;
    raw[6] = 9;
    assert_eq!(decode(&raw, CX), Ok(Decoded::Skipped(200)));
}

#[test]
fn only_what_may_come_late_goes_by_detours() {
    let shard = ShardKey { ty: TypeId(1), shard: ShardId(2) };
    let detour = |frame| Frame::Detour { from: NodeId::from_raw(3), to: NodeId::from_raw(4), frame: Box::new(frame) };
    let ack = || Frame::HandoffAck { shard, upto: 7 };
    let mut out = b"before".to_vec();
    for other in [detour(ack()), message(5, None)] {
        assert!(matches!(encode(&detour(other), CX, MAX, &mut out), Err(FrameError::Malformed { frame: "detour", .. })));
        assert_eq!(out, b"before");
    }
    let good = encoded(&detour(ack()));
    let inner = HEADER_BYTES + 32;
    let with = |at: usize, bytes: &[u8]| {
        let mut raw = good.clone();
        raw[at..at + bytes.len()].copy_from_slice(bytes);
        decode(&raw, CX)
    };
    assert_eq!(with(0, &[]), Ok(Decoded::Frame(detour(ack()))));
    let refused = |decoded| matches!(decoded, Err(FrameError::Malformed { frame: "detour", .. }));
    assert!(refused(with(inner, &[0])), "another length");
    assert!(refused(with(inner + 6, &[9])), "another version");
    assert!(refused(with(inner + 8, &[9])), "another shard");
    for kind in
        (0..=u8::MAX).filter(|kind| ![kind::TRANSFER, kind::FORWARDED, kind::PROBE, kind::HANDOFF_ACK, kind::CONTROL].contains(kind))
    {
        assert!(refused(with(inner + 4, &[kind])), "{kind}");
    }
    // Older nodes skip it.
    assert!(refused(with(5, &[0])));
}

#[test]
fn errors_name_kind_field_value_and_limit() {
    let mut raw = encoded(&message(5, None));
    raw[16..24].copy_from_slice(&u64::MAX.to_le_bytes());
    let text = decode(&raw, CX).unwrap_err().to_string();
    assert_eq!(text, format!("message frame: epoch: {}, at most {}", u64::MAX, Epoch::ACCEPTED_MAX.get()));
    let mut raw = encoded(&message(0, None));
    raw[HEADER_BYTES] = 4;
    assert_eq!(decode(&raw, CX).unwrap_err().to_string(), "message frame: key: needs 4 bytes, 3 are left");
    let mut raw = encoded(&message(5, None));
    raw[6] = 2;
    assert_eq!(decode(&raw, CX), Err(FrameError::UnsupportedVersion { version: 2 }));
}

/// Frames of all kinds that name epochs, each with that one in one place.
fn with_epoch(epoch: Epoch) -> Vec<Frame> {
    let (shard, node, low) = (ShardKey { ty: TypeId(1), shard: ShardId(2) }, NodeId::from_raw(3), Epoch(1));
    let message = |tag, mode| Item::Msg { tag, mode, envelope: Envelope::new(shard, None, b"key", b"payload").unwrap() };
    let transfer = |epoch, base| HandoffItem::Transfer(TransferChunk { epoch, base, last: true, bytes: Arc::default() });
    let forwarded = |aim, item| HandoffItem::Forwarded(Forwarded { aim, after: vec![node], stream: node, item });
    let fact = |state, seen, base, heard| {
        let facts = vec![ShardFact { shard, state, seen, base, heard: Some((heard, node)), entities: 0 }];
        ControlFrame::Facts { term: Term::new(1), answer: 1, part: 0, last: true, number: 1, types: vec![], facts }
    };
    let items = [
        message(epoch, Mode::Settled),
        message(low, Mode::Wait(epoch)),
        message(low, Mode::Over(epoch)),
        Item::Fence { p: epoch },
        Item::Over { p: epoch, tag: low },
        Item::Over { p: low, tag: epoch },
        Item::Settle { tag: epoch },
    ];
    let handoffs = [
        transfer(epoch, low),
        transfer(low, epoch),
        forwarded(epoch, Item::Fence { p: low }),
        forwarded(low, Item::Fence { p: epoch }),
        HandoffItem::Probe { origin: node, route: 1, number: 1, aim: epoch, after: vec![] },
    ];
    let row = TableRow { shard, owner: None, from: None, epoch, state: ShardState::Active, entities: 0, rate_per_s: 0.0, moving_ms: None };
    let control = [
        ControlFrame::Route { shard, epoch, home: node },
        ControlFrame::Assign { shard, epoch, home: node, base: low, term: Term::new(1) },
        ControlFrame::Assign { shard, epoch: low, home: node, base: epoch, term: Term::new(1) },
        ControlFrame::Move { shard, epoch, from: node, to: node, base: low, term: Term::new(1) },
        ControlFrame::Move { shard, epoch: low, from: node, to: node, base: epoch, term: Term::new(1) },
        ControlFrame::Owned { shard, epoch, can_start: true },
        ControlFrame::MoveRefused { shard, epoch, why: String::new() },
        ControlFrame::MoveAnswer { id: 1, result: Ok(epoch) },
        ControlFrame::TableAnswer { id: 1, last: true, types: vec![], rows: vec![row] },
        fact(FactState::Running(epoch), low, low, low),
        fact(FactState::Stopping(epoch), low, low, low),
        fact(FactState::Receiving(epoch), low, low, low),
        fact(FactState::HandedOver(epoch), low, low, low),
        fact(FactState::None, epoch, low, low),
        fact(FactState::None, low, epoch, low),
        fact(FactState::None, low, low, epoch),
    ];
    let items = items.map(|item| Frame::Item { shard, item });
    let handoffs = handoffs.map(|item| Frame::Handoff { shard, number: 1, item });
    let by_detour = |frame: Frame| Frame::Detour { from: node, to: CX.sender, frame: Box::new(frame) };
    let straight = handoffs.into_iter().chain(control.map(Frame::Control));
    items
        .into_iter()
        .chain([Frame::StreamAck { shard, p: epoch }])
        .chain(straight.flat_map(|frame| [by_detour(frame.clone()), frame]))
        .collect()
}

/// Control frames that name a term.
fn with_term(term: Term) -> Vec<Frame> {
    let (shard, node, epoch) = (ShardKey { ty: TypeId(1), shard: ShardId(2) }, NodeId::from_raw(3), Epoch(1));
    let frames = [
        ControlFrame::Registered { term, number: 1, refused: vec![] },
        ControlFrame::Assign { shard, epoch, home: node, base: epoch, term },
        ControlFrame::Move { shard, epoch, from: node, to: node, base: epoch, term },
        ControlFrame::Recount { term, have: 0 },
        ControlFrame::Facts { term, answer: 1, part: 0, last: true, number: 1, types: vec![], facts: vec![] },
        ControlFrame::Sized { term, types: vec![] },
    ];
    frames.map(Frame::Control).into()
}

// failures: row 69
#[test]
fn numbers_from_which_others_count_on_are_taken_from_the_lower_half() {
    let refused = |frame: &Frame| matches!(decode(&encoded(frame), CX), Err(FrameError::Malformed { .. }));
    let taken = |frame: &Frame| decode(&encoded(frame), CX) == Ok(Decoded::Frame(frame.clone()));
    assert!(with_epoch(Epoch::ACCEPTED_MAX).iter().all(taken) && with_term(TERM_ACCEPTED_MAX).iter().all(taken));
    for above in [Epoch::ACCEPTED_MAX.get() + 1, Epoch::MAX.get(), u64::MAX] {
        with_epoch(Epoch(above)).iter().for_each(|frame| assert!(refused(frame), "{frame:?}"));
    }
    for above in [TERM_ACCEPTED_MAX.get() + 1, u64::MAX] {
        with_term(Term::new(above)).iter().for_each(|frame| assert!(refused(frame), "{frame:?}"));
    }
    let text = decode(&encoded(&with_term(Term::new(u64::MAX))[0]), CX).unwrap_err().to_string();
    assert_eq!(text, format!("control frame: term: {}, at most {}", u64::MAX, TERM_ACCEPTED_MAX.get()));
}

// failures: row 69
#[test]
fn shards_that_no_type_can_have_are_refused_in_every_frame() {
    let frames = |number: u32| {
        let (shard, node, epoch) = (ShardKey { ty: TypeId(1), shard: ShardId(number) }, NodeId::from_raw(3), Epoch(1));
        let message = Item::Msg { tag: epoch, mode: Mode::Settled, envelope: Envelope::new(shard, None, b"key", b"payload").unwrap() };
        let facts = vec![ShardFact { shard, state: FactState::None, seen: epoch, base: epoch, heard: None, entities: 0 }];
        let straight = [
            Frame::Item { shard, item: message },
            Frame::Item { shard, item: Item::Fence { p: epoch } },
            Frame::StreamAck { shard, p: epoch },
            Frame::ProbeAck { shard, route: 1, number: 1 },
        ];
        let both = [
            Frame::Handoff {
                shard,
                number: 1,
                item: HandoffItem::Transfer(TransferChunk { epoch, base: epoch, last: true, bytes: Arc::default() }),
            },
            Frame::HandoffAck { shard, upto: 1 },
            Frame::Control(ControlFrame::Route { shard, epoch, home: node }),
            Frame::Control(ControlFrame::Move { shard, epoch, from: node, to: node, base: epoch, term: Term::new(1) }),
            Frame::Control(ControlFrame::Owned { shard, epoch, can_start: true }),
            Frame::Control(ControlFrame::Facts { term: Term::new(1), answer: 1, part: 0, last: true, number: 1, types: vec![], facts }),
        ];
        let by_detour = |frame: Frame| Frame::Detour { from: node, to: CX.sender, frame: Box::new(frame) };
        straight.into_iter().chain(both.into_iter().flat_map(move |frame| [by_detour(frame.clone()), frame])).collect::<Vec<_>>()
    };
    for frame in frames(SHARDS_MAX - 1) {
        assert_eq!(decode(&encoded(&frame), CX), Ok(Decoded::Frame(frame.clone())));
    }
    for frame in [SHARDS_MAX, u32::MAX - 1, u32::MAX].into_iter().flat_map(frames) {
        let bytes = encoded(&frame);
        assert!(matches!(decode(&bytes, CX), Err(FrameError::Malformed { .. })), "{frame:?}");
        assert!(super::super::message::message_in(&bytes, CX).is_none(), "nor by the short way: {frame:?}");
    }
    let text = decode(&encoded(&frames(u32::MAX)[0]), CX).unwrap_err().to_string();
    assert_eq!(text, format!("message frame: shard: {}, at most {}", u32::MAX, SHARDS_MAX - 1));
}

#[test]
fn reasons_travel_under_numbers_of_their_own() {
    let numbers: std::collections::BTreeSet<u16> = DropReason::ALL.iter().map(|r| reason_number(*r)).collect();
    assert_eq!(numbers.len(), DropReason::ALL.len());
    assert!(!numbers.contains(&0));
}

// failures: row 3
#[test]
fn a_huge_list_is_refused_before_room_is_made() {
    let header = Header { epoch: 1, correlation: 1, ..Header::new(kind::FORWARDED, ShardKey { ty: TypeId(1), shard: ShardId(1) }) };
    let raw = [&header.bytes()[..], &u32::MAX.to_le_bytes()].concat();
    let what = Malformed::TooLarge { field: "after", value: u64::from(u32::MAX), max: AFTER_MAX as u64 };
    assert_eq!(decode(&raw, CX), Err(FrameError::Malformed { frame: "forwarded", what }));
}
