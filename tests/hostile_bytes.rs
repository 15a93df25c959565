//! What a member does with bytes that no member sends: nothing panics, nothing is allocated before its bound is checked, nobody is misled.
#![allow(missing_docs, clippy::unwrap_used)]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    sync::Arc,
    time::{Duration, Instant},
};

use proptest::prelude::*;
use wingbeat::{
    Config, NodeAddr, NodeId, Time,
    proto::membership::{Identity, JoinRequest, MemberFrame, MemberOutput, MemberStatus, Membership},
};

/// Counts the bytes that each thread has, and the most that it had.
struct Counting;

thread_local! {
    static HELD: Cell<i64> = const { Cell::new(0) };
    static MOST: Cell<i64> = const { Cell::new(0) };
}

fn note(bytes: i64) {
    // A thread that ends has no counters any more.
    let _ = HELD.try_with(|held| {
        held.set(held.get() + bytes);
        let _ = MOST.try_with(|most| most.set(most.get().max(held.get())));
    });
}

// SAFETY: every call is passed on unchanged to the system's allocator, which keeps the contract; counting touches two cells of the thread and
// allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(layout.size() as i64);
        // SAFETY: the caller keeps `alloc`'s contract, which is that of the call passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        note(-(layout.size() as i64));
        // SAFETY: `ptr` came from `System` with this layout, as every allocation of this allocator does.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The most bytes that `f` had at once, beyond what was there before.
fn most(f: impl FnOnce()) -> i64 {
    let before = HELD.with(Cell::get);
    MOST.with(|most| most.set(before));
    f();
    MOST.with(Cell::get) - before
}

fn s(n: u64) -> Time {
    Time::from_nanos(n * 1_000_000_000)
}

fn addr(n: u16) -> NodeAddr {
    NodeAddr::new("127.0.0.1", n)
}

/// A node alone in its cluster that has admitted another one, which then says what it likes.
struct Victim {
    machine: Membership,
    stranger: NodeId,
    now: Time,
}

fn drain(machine: &mut Membership) -> Vec<MemberOutput> {
    std::iter::from_fn(|| machine.poll_output()).collect()
}

impl Victim {
    fn new() -> Self {
        let config = Arc::new(Config::default());
        let mut machine = Membership::new(config.clone(), Identity { addr: addr(1), incarnation: 1 }, 1, s(1));
        machine.start(s(1));
        machine.handle_timeout(s(2));
        let stranger = NodeId::new(&addr(2), 7);
        let request = JoinRequest {
            addr: addr(2),
            incarnation: 7,
            roles: vec![],
            app_version: String::new(),
            cluster: config.cluster.name.clone(),
            protocol: (1, 1),
            settings: config.must_match(),
        };
        machine.handle_frame(s(3), stranger, &addr(2), MemberFrame::Join(Box::new(request)));
        let outputs = drain(&mut machine);
        assert!(machine.view().member(stranger).is_some(), "{outputs:?}");
        Self { machine, stranger, now: s(3) }
    }

    /// The frames and datagrams that one frame of the stranger leads to.
    fn take(&mut self, frame: MemberFrame) -> usize {
        self.machine.handle_frame(self.now, self.stranger, &addr(2), frame);
        drain(&mut self.machine).iter().filter(|o| matches!(o, MemberOutput::Frame { .. } | MemberOutput::Datagram { .. })).count()
    }

    /// Header, counter, sender and cluster of a datagram of the stranger that is taken; the machine's own datagrams name the cluster.
    fn envelope(&mut self) -> Vec<u8> {
        self.machine.handle_timeout(s(5));
        let sent = drain(&mut self.machine).into_iter().find_map(|o| match o {
            MemberOutput::Datagram { bytes, .. } => Some(bytes[28..36].to_vec()),
            _ => None,
        });
        [&b"wb\x01\0"[..], &1u64.to_le_bytes(), &self.stranger.raw().to_le_bytes(), &sent.unwrap()].concat()
    }

    /// Datagrams that were dropped whole.
    fn dropped(&self) -> u64 {
        self.machine.counters().iter().filter(|(name, _)| name.starts_with("datagrams_dropped")).map(|(_, n)| n).sum()
    }

    /// It still is what it was.
    fn is_well(&self) {
        let view = self.machine.view();
        assert!(view.myself().is_some_and(|m| m.status == MemberStatus::Up) && view.members.len() == 2, "{view:?}");
        self.machine.check();
    }
}

/// What goes before a state, and the state, as one that joins gets them, not deflated; the first byte of the state says so.
fn state_of_the_cluster() -> (Vec<u8>, Vec<u8>) {
    let mut victim = Victim::new();
    let request = |incarnation| {
        MemberFrame::Join(Box::new(JoinRequest {
            addr: addr(3),
            incarnation,
            roles: vec!["a".into()],
            app_version: "1".into(),
            cluster: Config::default().cluster.name,
            protocol: (1, 1),
            settings: Config::default().must_match(),
        }))
    };
    let joiner = NodeId::new(&addr(3), 9);
    // Those that come at once are admitted together, a moment later.
    victim.machine.handle_frame(s(4), joiner, &addr(3), request(9));
    victim.machine.handle_timeout(s(5));
    let state = drain(&mut victim.machine).into_iter().find_map(|o| match o {
        MemberOutput::Frame { frame: MemberFrame::JoinAccepted { head, body, .. }, .. } => Some((head, body.to_vec())),
        _ => None,
    });
    state.unwrap()
}

/// Elements, not deflated, behind a head of uid, digest and ask, without ages and marks.
fn delta(elements: &[u8]) -> MemberFrame {
    MemberFrame::Gossip { head: vec![0; 8 + 16 + 4 + 1 + 1], body: [&[0u8][..], elements].concat().into() }
}

fn varint(mut n: u64) -> Vec<u8> {
    let mut out = vec![];
    while n >= 0x80 {
        out.push(n as u8 | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
    out
}

#[test]
fn huge_counts_allocate_nothing() {
    let mut victim = Victim::new();
    for count in [100_000, 20_000, u64::from(u32::MAX), u64::MAX] {
        // As the number of actors; with none of them, of members; with none of those, of rows, and of tombstones.
        for place in 0..4 {
            let elements = [vec![0; place], varint(count), vec![1; 64]].concat();
            let held = most(|| assert!(victim.take(delta(&elements)) <= 1));
            assert!(held < 16 * 128 + 8_192, "{count} at {place}: {held} bytes held");
        }
        // As the number of ages; with none of them, of the bytes that say who has seen it.
        for place in 0..2 {
            let head = [vec![0; 28 + place], varint(count), vec![1; 64]].concat();
            let held = most(|| assert!(victim.take(MemberFrame::Gossip { head, body: vec![0, 0, 0, 0, 0].into() }) <= 1));
            assert!(held < 16 * 128 + 8_192, "{count} at {place} of the head: {held} bytes held");
        }
    }
    victim.is_well();
}

#[test]
fn a_clock_of_a_hundred_thousand_entries_is_refused_in_good_time() {
    let mut victim = Victim::new();
    let clock: Vec<u8> = (0..100_000u32).flat_map(|n| [&n.to_le_bytes()[..], &[1]].concat()).collect();
    let bytes = clock.len() as i64;
    let began = Instant::now();
    let held = most(|| {
        let said = victim.take(MemberFrame::Ask { ask: 1, digest: 5, clock });
        assert!(said <= 2);
    });
    assert!(held <= 4 * bytes, "{held} bytes held for {bytes}");
    assert!(began.elapsed() < Duration::from_secs(5));
    victim.is_well();
}

#[test]
fn a_bomb_is_inflated_to_its_bound_and_no_further() {
    let bomb = miniz_oxide::deflate::compress_to_vec(&vec![0; 200 << 20], 1);
    assert!(bomb.len() < 2 << 20);
    let mut victim = Victim::new();
    let held = most(|| assert!(victim.take(MemberFrame::Gossip { head: vec![0; 30], body: [&[1u8][..], &bomb].concat().into() }) <= 1));
    assert!(held < 48 << 20, "{held} bytes held");
    victim.is_well();
    // To a joiner, too.
    let mut config = Config::default();
    config.cluster.seeds = vec!["127.0.0.1:2".into()];
    let mut joiner = Membership::new(Arc::new(config), Identity { addr: addr(1), incarnation: 1 }, 1, s(1));
    joiner.start(s(1));
    let (head, body) = (vec![0; 30], [&[1u8][..], &bomb].concat().into());
    let me = NodeId::new(&addr(1), 1);
    let held = most(|| joiner.handle_frame(s(1), NodeId::new(&addr(2), 7), &addr(2), MemberFrame::JoinAccepted { joiner: me, head, body }));
    assert!(held < 48 << 20, "{held} bytes held");
    assert_eq!(joiner.view().members.len(), 1);
}

/// Whoever answers each question with a state that is never the one it claims keeps nobody busy: what is asked stays in step with time.
#[test]
fn deltas_that_go_round_in_circles_do_not_multiply() {
    let mut victim = Victim::new();
    let mut said = 0;
    for round in 0..2_000u32 {
        victim.now = victim.now + Duration::from_millis(1);
        // A question whose digest is always another one, and an answer that brings nothing.
        said += victim.take(MemberFrame::Ask { ask: round, digest: u128::from(round) + 1, clock: vec![9, 9, 9, 9, 1] });
        let head = [&[0; 24][..], &round.to_le_bytes(), &[0, 0]].concat();
        said += victim.take(MemberFrame::Gossip { head, body: vec![0, 0, 0, 0, 0].into() });
        victim.machine.handle_timeout(victim.now);
        said += drain(&mut victim.machine).len();
    }
    // At most an answer and a question for each, and the little that two seconds bring by themselves.
    assert!(said <= 2 * 2_000 + 100, "{said} answers to 4000 frames");
    victim.is_well();
}

#[test]
fn an_envelope_of_a_member_is_taken() {
    let mut victim = Victim::new();
    let envelope = victim.envelope();
    victim.machine.handle_datagram(s(5), &envelope);
    assert_eq!(victim.dropped(), 0, "{:?}", victim.machine.counters());
    victim.machine.handle_datagram(s(5), &envelope);
    assert_eq!(victim.dropped(), 1, "the second time it is a repetition");
}

/// Counters near their end would overflow in who counts on from there.
#[test]
fn counters_at_their_end_are_refused() {
    let (head, whole) = state_of_the_cluster();
    let me = NodeId::new(&addr(3), 9);
    assert_eq!(feed_joiner(me, head.clone(), whole.clone()), 3, "undamaged it is taken");
    for at in 1..whole.len() {
        // Those that are the last to be taken, too: who counts on from there has room.
        for high in [u64::MAX, u64::MAX >> 2, u64::from(u32::MAX), u64::from(u32::MAX >> 1), (1 << 23) - 1].map(varint) {
            let mut state = whole.clone();
            state.splice(at..=at, high);
            feed_joiner(me, head.clone(), state);
        }
    }
}

/// Gives a state to a joiner, as the seed that it asked would; then lets time pass.
fn feed_joiner(me: NodeId, head: Vec<u8>, body: Vec<u8>) -> usize {
    let mut config = Config::default();
    config.cluster.seeds = vec!["127.0.0.1:1".into()];
    let mut joiner = Membership::new(Arc::new(config), Identity { addr: addr(3), incarnation: me.incarnation() }, 1, s(1));
    joiner.start(s(1));
    let body = body.into();
    joiner.handle_frame(s(1), NodeId::new(&addr(1), 1), &addr(1), MemberFrame::JoinAccepted { joiner: me, head, body });
    for n in 2..6 {
        joiner.handle_timeout(s(n));
        drop(drain(&mut joiner));
    }
    joiner.view().members.len()
}

#[test]
fn numbers_at_their_end_in_any_part_are_borne() {
    let mut victim = Victim::new();
    let envelope = victim.envelope();
    let number = varint(u64::MAX);
    let status = [&[7; 24][..], &number].concat();
    let parts = [(1, &number), (10, &number), (2, &number), (9, &number), (11, &number), (3, &status)];
    let parts: Vec<u8> = parts.iter().flat_map(|(kind, body)| [&[*kind, body.len() as u8][..], body].concat()).collect();
    for counter in [2, u64::MAX] {
        let mut datagram = [&envelope[..], &parts].concat();
        datagram[4..12].copy_from_slice(&counter.to_le_bytes());
        victim.machine.handle_datagram(s(5), &datagram);
    }
    assert_eq!(victim.dropped(), 0, "{:?}", victim.machine.counters());
    for n in 6..12 {
        victim.machine.handle_timeout(s(n));
        drop(drain(&mut victim.machine));
    }
    victim.machine.check();
}

fn small_bytes() -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(any::<u8>(), 0..300)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn any_frame_of_a_member_is_borne(kind in 0..5u8, bytes in small_bytes(), ask in any::<u32>(), digest in any::<u128>()) {
        let mut victim = Victim::new();
        let frame = match kind {
            0 => MemberFrame::Gossip { head: bytes, body: vec![0, 0, 0, 0, 0].into() },
            1 => MemberFrame::Gossip { head: vec![0; 30], body: bytes.into() },
            2 => delta(&bytes),
            3 => MemberFrame::Ask { ask, digest, clock: bytes },
            _ => MemberFrame::Datagram { datagram: bytes, blocked: digest.is_multiple_of(2) },
        };
        let held = most(|| assert!(victim.take(frame) <= 2));
        prop_assert!(held < 1 << 20, "{} bytes held", held);
        victim.is_well();
    }

    #[test]
    fn any_datagram_is_borne(bytes in small_bytes(), magic in any::<bool>()) {
        let mut victim = Victim::new();
        let bytes = if magic { [&b"wb\x01\0"[..], &bytes].concat() } else { bytes };
        let held = most(|| victim.machine.handle_datagram(s(4), &bytes));
        prop_assert!(held < 65_536, "{} bytes held", held);
        victim.is_well();
    }

    #[test]
    fn any_parts_of_a_member_are_borne(bytes in small_bytes()) {
        let mut victim = Victim::new();
        let whole = [victim.envelope(), bytes].concat();
        let held = most(|| victim.machine.handle_datagram(s(5), &whole));
        prop_assert!(held < 65_536, "{} bytes held", held);
        victim.is_well();
    }

    #[test]
    fn a_damaged_state_harms_no_joiner(at in any::<prop::sample::Index>(), to in small_bytes(), cut in any::<prop::sample::Index>(),
                                            ask_head in any::<bool>()) {
        let (mut head, mut body) = state_of_the_cluster();
        let state = if ask_head { &mut head } else { &mut body };
        let at = at.index(state.len());
        let end = (at + to.len().min(4)).min(state.len());
        state.splice(at..end, to.iter().copied().take(4));
        if to.len().is_multiple_of(7) {
            state.truncate(cut.index(state.len()));
        }
        feed_joiner(NodeId::new(&addr(3), 9), head, body);
    }
}
