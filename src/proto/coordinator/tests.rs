//! The authority alone: records, resends, registration, take-over.

use super::*;
use crate::{
    NodeAddr, ShardId,
    proto::{
        membership::{Member, MemberInfo},
        sharding::{FactState, ShardFact, TypeInfo},
    },
};

const ME: NodeId = NodeId::from_raw(1);
const B: NodeId = NodeId::from_raw(2);
const C: NodeId = NodeId::from_raw(3);
const S: ShardKey = ShardKey { ty: TypeId(7), shard: ShardId(0) };

fn info() -> TypeInfo {
    TypeInfo { name: "cart".into(), ty: TypeId(7), shards: 8, host: true }
}

fn view(statuses: &[MemberStatus]) -> Arc<ClusterView> {
    let member = |(n, status): (usize, &MemberStatus)| {
        let info = MemberInfo::bare(NodeId::from_raw(n as u128 + 1), NodeAddr::new("host", n as u16));
        Member::new(info, *status, n as u32 + 1)
    };
    let members = statuses.iter().enumerate().map(member).collect();
    Arc::new(ClusterView { me: ME, members, leader: None, deputies: vec![], converged: true, version: 1 })
}

struct Fixture {
    coordinator: Coordinator,
    now: Time,
}

const UP: [MemberStatus; 3] = [MemberStatus::Up; 3];

impl Fixture {
    fn unseated() -> Self {
        Self { coordinator: Coordinator::new(Arc::new(Config::default()), ME), now: Time::from_nanos(1) }
    }

    /// Everybody has answered and hosts the type.
    fn seated() -> Self {
        let mut f = Self::unseated();
        f.run(|c, now, out| c.handle_view(now, view(&UP), out));
        for node in [ME, B, C] {
            f.facts(node, vec![]);
        }
        f
    }

    fn run(&mut self, f: impl FnOnce(&mut Coordinator, Time, &mut Out)) -> Out {
        let mut out = vec![];
        f(&mut self.coordinator, self.now, &mut out);
        self.coordinator.check();
        out
    }

    fn frame(&mut self, from: NodeId, frame: ControlFrame) -> Out {
        self.run(|c, now, out| c.handle_frame(now, from, frame, out))
    }

    fn facts(&mut self, from: NodeId, facts: Vec<ShardFact>) -> Out {
        self.answer(from, 1, facts)
    }

    fn answer(&mut self, from: NodeId, answer: u64, facts: Vec<ShardFact>) -> Out {
        let term = self.coordinator.heard();
        self.frame(from, ControlFrame::Facts { term, answer, part: 0, last: true, number: 1, types: vec![info()], facts })
    }

    /// A worker of B stands still, which was given the shard under epoch 3. C says this of it.
    fn silent(c: Option<ShardFact>) -> Self {
        let mut f = Self::unseated();
        f.run(|c, now, out| c.handle_view(now, view(&UP), out));
        f.facts(ME, vec![]);
        f.facts(B, vec![fact(FactState::Unknown, 3, (3, B))]);
        f.facts(C, c.into_iter().collect());
        f
    }

    fn is_open(&self) -> bool {
        self.coordinator.seat.as_ref().is_some_and(|seat| seat.open.contains_key(&S))
    }

    fn removed(&mut self, node: NodeId, proven: bool) -> Out {
        self.run(|c, now, out| c.handle_removed(now, node, Removal::Downed { proven }, Duration::ZERO, out))
    }

    fn wait(&mut self, ms: u64) -> Out {
        self.now = self.now + Duration::from_millis(ms);
        self.run(|c, now, out| c.handle_timeout(now, out))
    }

    fn where_is(&mut self, from: NodeId) -> Out {
        self.frame(from, ControlFrame::WhereIs { shard: S, shards: 8 })
    }

    fn owned(&mut self, from: NodeId, epoch: u64) -> Out {
        self.frame(from, ControlFrame::Owned { shard: S, epoch: Epoch(epoch), can_start: true })
    }

    /// Runs at this node under epoch 1, and moves to B under epoch 2.
    fn moving() -> Self {
        let mut f = Self::seated();
        f.where_is(C);
        f.owned(ME, 1);
        let answer = f.frame(C, ControlFrame::MoveRequest { id: 9, shard: S, to: B });
        assert!(answer.contains(&CoordinatorOut::Send(C, ControlFrame::MoveAnswer { id: 9, result: Ok(Epoch(2)) })));
        f
    }

    fn record(&self) -> Record {
        self.coordinator.seat.as_ref().expect("seated").rows[&S].record.expect("owned")
    }
}

fn fact(state: FactState, seen: u64, heard: (u64, NodeId)) -> ShardFact {
    ShardFact { shard: S, state, seen: Epoch(seen), base: Epoch(1), heard: Some((Epoch(heard.0), heard.1)), entities: 0 }
}

/// The n-th term of this node.
fn held(n: u64) -> Term {
    Term(n << TERM_OWNER_BITS | 1)
}

fn assign(home: NodeId, epoch: u64, base: u64, term: u64) -> CoordinatorOut {
    let frame = ControlFrame::Assign { shard: S, epoch: Epoch(epoch), home, base: Epoch(base), term: held(term) };
    CoordinatorOut::Send(home, frame)
}

fn route(to: NodeId, epoch: u64, home: NodeId) -> CoordinatorOut {
    CoordinatorOut::Send(to, ControlFrame::Route { shard: S, epoch: Epoch(epoch), home })
}

fn moves(to: NodeId, epoch: u64) -> CoordinatorOut {
    let frame = ControlFrame::Move { shard: S, epoch: Epoch(epoch), from: ME, to: B, base: Epoch(1), term: held(1) };
    CoordinatorOut::Send(to, frame)
}

#[test]
fn nothing_is_allocated_before_everybody_has_answered() {
    let mut f = Fixture::unseated();
    let out = f.run(|c, now, out| c.handle_view(now, view(&UP), out));
    assert_eq!(out.len(), 3, "all are asked, this node too");
    assert_eq!(f.where_is(C), [], "waits for the table");
    let table = ControlFrame::TableRequest { id: 4, ty: None };
    assert_eq!(f.frame(C, table), [CoordinatorOut::Send(C, ControlFrame::TakingOver { id: 4 })], "no table is better than an empty one");
    f.facts(ME, vec![]);
    f.facts(B, vec![]);
    let repeated = CoordinatorOut::Send(C, ControlFrame::Recount { term: held(1), have: 0 });
    assert_eq!(f.wait(1000), [repeated], "only who has not answered");
    let out = f.facts(C, vec![]);
    assert!(out.contains(&assign(ME, 1, 1, 1)) && out.contains(&route(C, 1, ME)), "{out:?}");
}

#[test]
fn who_asks_during_a_recount_is_answered_with_it() {
    let mut f = Fixture::unseated();
    f.run(|c, now, out| c.handle_view(now, view(&UP), out));
    f.where_is(C);
    f.facts(ME, vec![]);
    f.facts(B, vec![fact(FactState::Running(Epoch(3)), 3, (3, B))]);
    assert!(f.facts(C, vec![]).contains(&route(C, 3, B)));
    assert!(!f.wait(1000).contains(&route(C, 3, B)), "once");
    let moved = f.frame(B, ControlFrame::MoveRequest { id: 1, shard: S, to: ME });
    assert!(moved.contains(&route(C, 4, ME)), "and hears of the next one: {moved:?}");
}

#[test]
fn who_has_heard_of_no_authority_begins_above_those_before_it() {
    let mut f = Fixture::unseated();
    let mut alone = view(&UP[..1]).member(ME).expect("it is there").clone();
    alone.up_number = 3;
    let view = ClusterView { members: [alone].into_iter().collect(), ..(*view(&[])).clone() };
    f.run(|c, now, out| c.handle_view(now, Arc::new(view), out));
    f.facts(ME, vec![]);
    f.where_is(ME);
    assert_eq!(f.coordinator.heard(), held(3), "two may have been there");
    assert_eq!(f.record().epoch, Epoch((2 << 16) + 1));
}

/// Who holds it had not heard of the other one: up numbers come again where whoever had the last one is gone.
#[test]
fn of_two_terms_with_one_number_the_first_is_held_to_and_the_other_goes_above_it() {
    let term = |owner: u64| Term(2 << TERM_OWNER_BITS | owner);
    let mut member = Fixture::unseated();
    assert!(member.coordinator.hear(term(7)));
    assert!(!member.coordinator.hear(term(9)) && member.coordinator.hear(term(7)));
    let mut f = Fixture::unseated();
    f.coordinator.hear(held(1));
    f.run(|c, now, out| c.handle_view(now, view(&UP), out));
    assert_eq!(f.coordinator.heard(), held(2));
    let refusal =
        ControlFrame::Facts { term: Term(2 << TERM_OWNER_BITS), answer: 0, part: 0, last: true, number: 0, types: vec![], facts: vec![] };
    f.frame(B, refusal);
    assert_eq!(f.coordinator.heard(), held(3), "of a lower owner");
}

#[test]
fn a_removed_member_need_not_answer() {
    let mut f = Fixture::unseated();
    f.run(|c, now, out| c.handle_view(now, view(&UP), out));
    f.facts(ME, vec![]);
    f.facts(B, vec![]);
    f.removed(C, true);
    assert!(f.where_is(B).contains(&assign(ME, 1, 1, 1)));
}

#[test]
fn first_request_assigns_and_repeats_until_owned() {
    let mut f = Fixture::seated();
    assert_eq!(f.where_is(C), [assign(ME, 1, 1, 1), route(C, 1, ME)]);
    assert!(f.wait(1000).contains(&assign(ME, 1, 1, 1)));
    assert_eq!(f.run(|c, _, out| c.handle_link_up(ME, out)), [assign(ME, 1, 1, 1)], "at once on a new session");
    assert_eq!(f.owned(B, 1), [], "not its home");
    assert_eq!(f.owned(ME, 1), []);
    assert!(f.record().confirmed && f.coordinator.is_quiet());
    assert!(!f.wait(1000).contains(&assign(ME, 1, 1, 1)));
    assert_eq!(f.where_is(B), [route(B, 1, ME)]);
}

#[test]
fn a_move_goes_to_both_ends_and_is_heard_of_by_who_asked() {
    let f = Fixture::moving();
    assert_eq!(f.record(), Record { epoch: Epoch(2), home: B, from: Some(ME), base: Epoch(1), confirmed: false });
    let mut f = f;
    let out = f.wait(1000);
    assert!(out.contains(&moves(ME, 2)) && out.contains(&moves(B, 2)), "{out:?}");
    assert_eq!(
        f.frame(C, ControlFrame::MoveRequest { id: 8, shard: S, to: C }),
        [],
        "older than one that was answered: nobody waits for it"
    );
    let again = f.frame(C, ControlFrame::MoveRequest { id: 10, shard: S, to: C });
    assert!(
        matches!(&again[..], [CoordinatorOut::Send(_, ControlFrame::MoveAnswer { result: Err(why), .. })] if why.contains("under way"))
    );
    assert!(matches!(f.owned(B, 2)[..], [CoordinatorOut::Moved { to: B, epoch: Epoch(2), .. }]));
    assert_eq!(f.record(), Record { epoch: Epoch(2), home: B, from: None, base: Epoch(1), confirmed: true });
}

#[test]
fn a_dead_target_gives_the_shard_back_to_its_old_home() {
    let mut f = Fixture::moving();
    assert!(f.removed(B, true).contains(&assign(ME, 3, 3, 1)), "base e+1 (CE-14)");
}

#[test]
fn a_dead_source_leaves_it_to_the_target() {
    // The old home is C here: this node cannot outlive its own removal.
    let mut f = Fixture::seated();
    f.where_is(C);
    f.owned(ME, 1);
    f.frame(ME, ControlFrame::MoveRequest { id: 1, shard: S, to: C });
    f.owned(C, 2);
    f.frame(ME, ControlFrame::MoveRequest { id: 2, shard: S, to: B });
    assert!(f.removed(C, true).contains(&assign(B, 4, 3, 1)), "base e: B may have it (CE-13)");
}

#[test]
fn a_refused_move_stays_with_its_base() {
    let mut f = Fixture::moving();
    let out = f.frame(ME, ControlFrame::MoveRequest { id: 7, shard: S, to: C });
    let why = "shard 0 of `cart` is under way to node host:1 with epoch 2; wait until it runs there".to_owned();
    assert_eq!(out, [CoordinatorOut::Send(ME, ControlFrame::MoveAnswer { id: 7, result: Err(why) })]);
    let out = f.frame(ME, ControlFrame::MoveRefused { shard: S, epoch: Epoch(2), why: "no".into() });
    assert!(out.contains(&assign(ME, 3, 1, 1)) && out.contains(&route(B, 3, ME)), "B learns that it was called off: {out:?}");
    assert!(
        out.iter().any(|o| matches!(o, CoordinatorOut::Warn { text, .. } if text == "node host:0 keeps shard 0 of `cart`: no")),
        "{out:?}"
    );
    let stale = f.frame(ME, ControlFrame::MoveRefused { shard: S, epoch: Epoch(2), why: "no".into() });
    assert_eq!(stale, []);
}

#[test]
fn an_unproven_death_is_waited_out_and_late_owners_still_count() {
    let mut f = Fixture::moving();
    assert_eq!(f.removed(B, false), []);
    assert_eq!(f.where_is(C), [], "no route to who is gone");
    assert!(!f.wait(1999).contains(&assign(ME, 3, 3, 1)));
    assert!(f.wait(1).contains(&assign(ME, 3, 3, 1)));
}

#[test]
fn a_host_that_cannot_start_entities_passes_the_shard_on() {
    let mut f = Fixture::moving();
    let out = f.frame(B, ControlFrame::Owned { shard: S, epoch: Epoch(2), can_start: false });
    let on = ControlFrame::Move { shard: S, epoch: Epoch(3), from: B, to: ME, base: Epoch(1), term: held(1) };
    assert!(out.contains(&CoordinatorOut::Send(B, on)), "{out:?}");
}

#[test]
fn leaving_members_are_emptied_and_the_last_one_is_told_that_nobody_takes_it() {
    let mut f = Fixture::seated();
    f.where_is(C);
    f.owned(ME, 1);
    let leaving = [MemberStatus::Leaving, MemberStatus::Up, MemberStatus::Up];
    let out = f.run(|c, now, out| c.handle_view(now, view(&leaving), out));
    assert!(out.contains(&moves(B, 2)), "{out:?}");
    let mut f = Fixture::seated();
    f.where_is(C);
    f.owned(ME, 1);
    let out = f.run(|c, now, out| c.handle_view(now, view(&[MemberStatus::Leaving; 3]), out));
    assert_eq!(out, [CoordinatorOut::Send(ME, ControlFrame::NoHost { ty: S.ty })]);
    let mut f = Fixture::seated();
    f.where_is(C);
    f.owned(ME, 1);
    let mut lost = view(&leaving).members.iter().cloned().collect::<Vec<_>>();
    lost[1..].iter_mut().for_each(|m| m.reachable = false);
    let lost = ClusterView { members: lost.into_iter().collect(), ..(*view(&[])).clone() };
    assert_eq!(f.run(|c, now, out| c.handle_view(now, Arc::new(lost), out)), [], "the others are back soon, or gone");
    assert!(f.run(|c, now, out| c.handle_view(now, view(&leaving), out)).contains(&moves(B, 2)));
}

#[test]
fn a_later_term_elsewhere_makes_the_question_be_asked_above_it() {
    let mut f = Fixture::unseated();
    f.run(|c, now, out| c.handle_view(now, view(&UP), out));
    let out = f.frame(B, ControlFrame::Facts { term: held(4), answer: 0, part: 0, last: true, number: 0, types: vec![], facts: vec![] });
    assert_eq!(out.len(), 3);
    assert!(out.contains(&CoordinatorOut::Send(B, ControlFrame::Recount { term: held(5), have: 0 })));
}

#[test]
fn a_refusal_that_comes_late_is_no_answer() {
    let mut f = Fixture::unseated();
    f.run(|c, now, out| c.handle_view(now, view(&UP), out));
    f.facts(ME, vec![]);
    f.facts(C, vec![]);
    let term = f.coordinator.heard();
    // B was asked under an older term as well, and had heard of this one by then.
    f.frame(B, ControlFrame::Facts { term, answer: 0, part: 0, last: true, number: 0, types: vec![], facts: vec![] });
    assert!(!f.coordinator.is_quiet(), "it is still asked");
    let runs = ShardFact { base: Epoch(2), entities: 7, ..fact(FactState::Running(Epoch(5)), 5, (5, B)) };
    f.facts(B, vec![runs]);
    assert_eq!(f.record().home, B);
    let table = f.frame(C, ControlFrame::TableRequest { id: 1, ty: None });
    let rows = table.iter().find_map(|out| match out {
        CoordinatorOut::Send(_, ControlFrame::TableAnswer { rows, .. }) => Some(rows),
        _ => None,
    });
    assert_eq!(rows.unwrap().iter().map(|row| (row.shard, row.entities)).collect::<Vec<_>>(), [(S, 7)]);
}

#[test]
fn a_home_may_say_behind_its_answer_that_it_runs_what_nobody_was_given_since() {
    let mut f = Fixture::unseated();
    // What it may have run is not given away at once.
    f.removed(NodeId::from_raw(9), false);
    f.run(|c, now, out| c.handle_view(now, view(&UP), out));
    let heard = ShardFact { shard: S, state: FactState::None, seen: Epoch(0), base: Epoch(0), heard: Some((Epoch(3), B)), entities: 0 };
    f.facts(ME, vec![]);
    f.facts(C, vec![]);
    f.facts(B, vec![heard]);
    f.owned(B, 3);
    assert_eq!(f.record(), Record { epoch: Epoch(3), home: B, from: None, base: Epoch(3), confirmed: true });
}

#[test]
fn what_a_node_announces_before_it_is_a_member_waits_until_it_is() {
    let mut f = Fixture::seated();
    let d = NodeId::from_raw(4);
    let other = TypeInfo { name: "user".into(), ty: TypeId(8), shards: 3, host: true };
    let register = ControlFrame::Register { number: 1, types: vec![other.clone()] };
    assert_eq!(f.frame(d, register.clone()), []);
    assert!(f.coordinator.seat.as_ref().is_some_and(|seat| seat.types.get(TypeId(8)).is_none()), "it binds nobody");
    let out = f.run(|c, now, out| c.handle_view(now, view(&[MemberStatus::Up; 4]), out));
    let registered = |out: &Out| out.iter().any(|o| matches!(o, CoordinatorOut::Send(to, ControlFrame::Registered { .. }) if *to == d));
    assert!(registered(&out), "at once: {out:?}");
    assert!(f.coordinator.seat.as_ref().is_some_and(|seat| seat.types.hosts(d, TypeId(8)) && seat.strangers.is_empty()));
    // No more than so many wait, and who is gone does not.
    let mut f = Fixture::seated();
    (10..10_000).for_each(|n| drop(f.frame(NodeId::from_raw(n), register.clone())));
    assert_eq!(f.coordinator.seat.as_ref().map(|seat| seat.strangers.len()), Some(STRANGERS_MAX));
    f.removed(NodeId::from_raw(10), true);
    assert_eq!(f.coordinator.seat.as_ref().map(|seat| seat.strangers.len()), Some(STRANGERS_MAX - 1));
}

#[test]
fn an_older_announcement_that_comes_late_takes_nothing_back() {
    let mut f = Fixture::seated();
    let other = TypeInfo { name: "other".into(), ty: TypeId::of("other"), ..info() };
    let registered = |number| CoordinatorOut::Send(B, ControlFrame::Registered { term: held(1), number, refused: vec![] });
    assert!(f.frame(B, ControlFrame::Register { number: 2, types: vec![info(), other.clone()] }).contains(&registered(2)));
    assert!(f.frame(B, ControlFrame::Register { number: 1, types: vec![info()] }).contains(&registered(1)));
    assert!(f.coordinator.seat.as_ref().is_some_and(|seat| seat.types.hosts(B, other.ty)));
}

#[test]
fn a_successor_restores_the_table_and_begins_new_shards_above_all_epochs() {
    let mut f = Fixture::unseated();
    f.coordinator.hear(held(1));
    f.run(|c, now, out| c.handle_view(now, view(&UP), out));
    let runs = ShardFact { base: Epoch(2), ..fact(FactState::Running(Epoch(5)), 5, (5, B)) };
    f.facts(ME, vec![]);
    f.facts(C, vec![]);
    let out = f.facts(B, vec![runs]);
    assert!(!out.iter().any(|o| matches!(o, CoordinatorOut::Send(_, ControlFrame::Assign { .. } | ControlFrame::Move { .. }))));
    assert_eq!(f.record(), Record { epoch: Epoch(5), home: B, from: None, base: Epoch(2), confirmed: true });
    let fresh = ShardKey { shard: ShardId(3), ..S };
    let out = f.frame(C, ControlFrame::WhereIs { shard: fresh, shards: 8 });
    let first = Epoch((1 << 16) + 1);
    assert!(out.contains(&CoordinatorOut::Send(C, ControlFrame::Route { shard: fresh, epoch: first, home: ME })), "{out:?}");
}

#[test]
fn a_successor_keeps_an_open_move_open() {
    let mut f = Fixture::unseated();
    f.run(|c, now, out| c.handle_view(now, view(&UP), out));
    let stops = ShardFact {
        shard: S,
        state: FactState::Stopping(Epoch(2)),
        seen: Epoch(2),
        base: Epoch(1),
        heard: Some((Epoch(2), B)),
        entities: 0,
    };
    f.facts(B, vec![]);
    f.facts(C, vec![]);
    let out = f.facts(ME, vec![stops]);
    assert!(out.contains(&moves(ME, 2)) && out.contains(&moves(B, 2)), "{out:?}");
}

#[test]
fn what_a_dead_node_may_still_run_is_not_started_by_a_successor() {
    let mut f = Fixture::unseated();
    f.removed(NodeId::from_raw(9), false);
    f.run(|c, now, out| c.handle_view(now, view(&UP), out));
    for node in [ME, B, C] {
        f.facts(node, vec![]);
    }
    assert_eq!(f.where_is(C), [], "no survivor has heard of it, but the dead one may run it");
    f.wait(1000);
    assert!(f.wait(1000).contains(&assign(ME, 1, 1, 1)));
}

#[test]
fn a_request_that_names_another_number_of_shards_is_refused() {
    let mut f = Fixture::seated();
    let out = f.frame(C, ControlFrame::WhereIs { shard: S, shards: 9 });
    assert!(matches!(&out[..], [CoordinatorOut::Send(C, ControlFrame::Registered { refused, .. })] if refused[0].1.contains('9')));
    assert_eq!(f.frame(C, ControlFrame::WhereIs { shard: ShardKey { shard: ShardId(8), ..S }, shards: 8 }), []);
}

#[test]
fn who_was_declared_dead_all_of_a_sudden_may_run_for_a_lease() {
    let mut f = Fixture::seated();
    f.where_is(C);
    f.owned(ME, 1);
    f.frame(C, ControlFrame::MoveRequest { id: 1, shard: S, to: B });
    f.owned(B, 2);
    f.run(|c, now, out| c.handle_removed(now, B, Removal::Abrupt, Duration::ZERO, out));
    let sharding = Config::default().sharding;
    let most = (sharding.lease.get() + sharding.lease_margin.get()).as_millis() as u64;
    assert!(!f.wait(most - 1).iter().any(|out| matches!(out, CoordinatorOut::Send(_, ControlFrame::Assign { .. }))));
    assert!(f.wait(1).iter().any(|out| matches!(out, CoordinatorOut::Send(_, ControlFrame::Assign { .. }))));
}

#[test]
fn what_arrives_behind_an_answer_to_the_recount_still_counts() {
    let none = ShardFact { shard: S, state: FactState::None, seen: Epoch(0), base: Epoch(0), heard: Some((Epoch(3), C)), entities: 0 };
    for owned_first in [true, false] {
        let mut f = Fixture::unseated();
        f.run(|c, now, out| c.handle_view(now, view(&UP), out));
        if owned_first {
            f.owned(B, 4);
        }
        f.facts(B, vec![none]);
        if !owned_first {
            f.owned(B, 4);
        }
        f.facts(ME, vec![]);
        f.removed(C, false);
        assert_eq!(f.record(), Record { epoch: Epoch(4), home: B, from: None, base: Epoch(4), confirmed: true });
    }
}

#[test]
fn what_arrives_behind_the_recount_is_taken_over_before_it_is_given_away() {
    let mut f = Fixture::unseated();
    f.run(|c, now, out| c.handle_view(now, view(&UP), out));
    let handed = ShardFact {
        shard: S,
        state: FactState::HandedOver(Epoch(3)),
        seen: Epoch(3),
        base: Epoch(1),
        heard: Some((Epoch(3), C)),
        entities: 0,
    };
    f.facts(ME, vec![handed]);
    f.facts(B, vec![]);
    f.removed(C, false);
    f.where_is(ME);
    let out = f.owned(B, 4);
    assert!(out.contains(&route(ME, 4, B)), "{out:?}");
    assert_eq!(f.record(), Record { epoch: Epoch(4), home: B, from: None, base: Epoch(4), confirmed: true });
    f.wait(10_000);
    assert_eq!(f.record().home, B);
    f.owned(ME, 2);
    assert_eq!(f.record().home, B, "an older one is no news");
}

#[test]
fn successors_that_have_not_heard_of_each_other_have_terms_of_their_own() {
    let take = |me: NodeId| {
        let mut c = Coordinator::new(Arc::new(Config::default()), me);
        c.hear(held(3));
        let members = view(&UP).members.iter().filter(|m| m.up_number >= me.raw() as u32).cloned().collect();
        c.handle_view(Time::from_nanos(1), Arc::new(ClusterView { me, members, ..(*view(&UP)).clone() }), &mut vec![]);
        c.heard()
    };
    assert_eq!(take(ME), held(4));
    assert!(take(B) > held(3) && take(B) != take(ME));
}

#[test]
fn what_a_silent_worker_may_have_is_given_to_nobody_until_it_has_answered() {
    let mut f = Fixture::silent(None);
    assert!(f.is_open());
    assert_eq!(f.where_is(C), [], "who asks waits");
    let answer = f.frame(C, ControlFrame::MoveRequest { id: 1, shard: S, to: C });
    assert!(
        matches!(&answer[..], [CoordinatorOut::Send(_, ControlFrame::MoveAnswer { result: Err(why), .. })] if why.contains("stands still"))
    );
    let fresh = |n| ShardKey { shard: ShardId(n), ..S };
    for n in 1..6 {
        let out = f.frame(C, ControlFrame::WhereIs { shard: fresh(n), shards: 8 });
        let given = |out: &CoordinatorOut| matches!(out, CoordinatorOut::Send(ME | C, ControlFrame::Assign { .. }));
        assert!(out.iter().any(given), "others are placed, where no worker stands still: {out:?}");
    }
    let again = |have| CoordinatorOut::Send(B, ControlFrame::Recount { term: held(1), have });
    assert!(f.wait(1000).contains(&again(1)));
    f.owned(B, 3);
    assert!(f.is_open(), "what stands behind that in its ring is not known");
    f.answer(B, 2, vec![fact(FactState::Unknown, 3, (3, B))]);
    assert!(f.wait(1000).contains(&again(2)) && f.is_open(), "another worker has answered");
    let out = f.answer(B, 3, vec![fact(FactState::Running(Epoch(3)), 3, (3, B))]);
    assert!(out.contains(&route(C, 3, B)), "who waited is answered: {out:?}");
    assert_eq!(f.record(), Record { epoch: Epoch(3), home: B, from: None, base: Epoch(1), confirmed: true });
    assert!(!f.wait(1000).iter().any(|out| matches!(out, CoordinatorOut::Send(_, ControlFrame::Recount { .. }))));
    assert_eq!(f.where_is(C), [route(C, 3, B)]);
}

#[test]
fn what_a_silent_worker_had_after_all_not_is_given_to_another() {
    let mut f = Fixture::silent(None);
    f.where_is(C);
    let out = f.answer(B, 2, vec![fact(FactState::None, 4, (4, B))]);
    assert!(out.contains(&assign(ME, 5, 5, 1)), "{out:?}");
}

#[test]
fn what_a_silent_worker_may_have_waits_for_the_right_to_run_of_its_node() {
    let mut f = Fixture::silent(None);
    f.where_is(C);
    assert_eq!(f.removed(B, false), []);
    assert!(!f.wait(1999).contains(&assign(ME, 1, 1, 1)));
    assert!(f.wait(1).contains(&assign(ME, 1, 1, 1)));
    let mut f = Fixture::silent(None);
    f.where_is(C);
    assert!(f.removed(B, true).contains(&assign(ME, 1, 1, 1)));
}

#[test]
fn a_silent_worker_does_not_hide_who_runs_a_shard_under_the_newest_epoch() {
    let runs = |epoch| fact(FactState::Running(Epoch(epoch)), epoch, (epoch, C));
    let f = Fixture::silent(Some(runs(4)));
    assert_eq!(f.record(), Record { epoch: Epoch(4), home: C, from: None, base: Epoch(1), confirmed: true });
    // Under an older one it may be on its way to the silent worker.
    assert!(Fixture::silent(Some(runs(2))).is_open());
    // It may have left the silent worker, which handed it over as it woke.
    let mut f = Fixture::silent(Some(fact(FactState::None, 0, (4, C))));
    assert!(f.is_open());
    f.owned(C, 4);
    assert_eq!(f.record().home, C);
    // Both ends of a hand-over to the silent worker; then only that end.
    let mut f = Fixture::silent(Some(fact(FactState::HandedOver(Epoch(3)), 3, (3, B))));
    assert!(f.is_open());
    f.removed(C, false);
    assert!(f.is_open());
    let out = f.answer(B, 2, vec![fact(FactState::Running(Epoch(3)), 3, (3, B))]);
    assert!(!out.iter().any(|out| matches!(out, CoordinatorOut::Send(_, ControlFrame::Assign { .. }))));
    assert_eq!((f.record().home, f.record().epoch), (B, Epoch(3)));
}

#[test]
fn what_is_under_way_from_a_dead_node_is_not_started_before_its_right_to_run_is_over() {
    let receives = fact(FactState::Receiving(Epoch(2)), 0, (2, B));
    let mut f = Fixture::unseated();
    f.run(|c, now, out| c.handle_view(now, view(&UP), out));
    f.facts(ME, vec![]);
    f.facts(B, vec![receives]);
    f.removed(C, false);
    f.where_is(ME);
    assert!(!f.wait(1999).contains(&assign(B, 3, 2, 1)), "instances may still end there");
    let out = f.wait(1);
    assert!(out.contains(&assign(B, 3, 2, 1)) && out.contains(&route(ME, 3, B)), "{out:?}");
    // What arrives meanwhile has its state.
    let mut f = Fixture::unseated();
    f.removed(C, false);
    f.run(|c, now, out| c.handle_view(now, view(&UP[..2]), out));
    f.facts(ME, vec![]);
    f.facts(B, vec![receives]);
    f.owned(B, 2);
    assert_eq!(f.record(), Record { epoch: Epoch(2), home: B, from: None, base: Epoch(2), confirmed: true });
}
