//! The authority over shards, on the oldest member: who runs which shard, under which epoch (moves.md section 4).
//!
//! Its table lives in memory: a new coordinator asks every member what it knows before it allocates anything.

mod allocate;
mod records;
mod recount;
mod requests;
#[cfg(test)]
mod tests;
mod types;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use crate::{
    Config, Epoch, NodeId, ShardKey, Term, Time, TypeId,
    proto::{
        membership::{ClusterView, MemberStatus, Removal},
        node::timers::Timers,
        sharding::{ControlFrame, FactState, Record, ShardFact, TypeInfo},
    },
};

use allocate::HostLoad;
use records::{Row, Successor};
use recount::{Recount, ShardFacts, Verdict};
use types::Types;

/// Low bits of a term, which name who holds it; a counter stands above them.
const TERM_OWNER_BITS: u32 = 24;
/// Unconfirmed records and unanswered questions are sent again after this.
const RESEND: Duration = Duration::from_secs(1);
/// Bound on requests for homes that cannot be named yet; those beyond it ask again.
const PARKED_MAX: usize = 65_536;
/// And for the home of one shard.
const ASKERS_MAX: usize = 1024;
/// Nodes whose announcements wait until they are members here: a peer could have any number of names.
const STRANGERS_MAX: usize = 64;

/// What the coordinator wants done, in order.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum CoordinatorOut {
    /// To a member's region; this node's included.
    Send(NodeId, ControlFrame),
    /// A shard is on its way from an owner.
    Moving { shard: ShardKey, from: NodeId, to: NodeId, epoch: Epoch },
    /// It has arrived.
    Moved { shard: ShardKey, to: NodeId, epoch: Epoch, took: Duration },
    /// For the operator.
    Warn { code: &'static str, text: String },
}

type Out = Vec<CoordinatorOut>;

/// The coordinator's part of one node; idle unless this node is the oldest.
#[derive(Debug)]
pub(crate) struct Coordinator {
    me: NodeId,
    config: Arc<Config>,
    view: Option<Arc<ClusterView>>,
    /// Removed nodes, and until when their right to run may last.
    removed: BTreeMap<NodeId, Time>,
    heard: Term,
    /// Moves that were called off as the old home keeps the shard.
    refused: u64,
    seat: Option<Seat>,
}

#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Due {
    /// Ask those who have not answered again.
    Recount,
    /// Send an unconfirmed record again.
    Resend(ShardKey),
    /// The owner's right to run is over.
    Rehome(ShardKey),
    /// First allocations may begin.
    Allocate,
    Rebalance,
}

/// The authority itself.
#[derive(Debug)]
struct Seat {
    term: Term,
    /// Set until every member has answered or is removed.
    recount: Option<Recount>,
    /// Behind it: to those that answered without a worker that stands still.
    rest: Recount,
    /// Shards that such a worker may have, or that who is gone may still run while they are under way from there. Their rows have no record, and get none.
    open: BTreeMap<ShardKey, ShardFacts>,
    types: Types,
    /// What nodes have announced that are no members here yet.
    strangers: BTreeMap<NodeId, (u64, Vec<TypeInfo>)>,
    rows: BTreeMap<ShardKey, Row>,
    /// Shards per host and type, by the newest records.
    counts: BTreeMap<(TypeId, NodeId), usize>,
    unconfirmed: BTreeSet<ShardKey>,
    /// Rows that had an owner and have none.
    unowned: BTreeSet<ShardKey>,
    /// Who asked for a home that cannot be named yet.
    parked: BTreeMap<ShardKey, BTreeSet<NodeId>>,
    /// The start-up rule was met once.
    started: bool,
    /// A removed node may still run shards that no survivor has heard of.
    allocate_at: Time,
    /// Newest request of each operator's node.
    requested: BTreeMap<NodeId, u64>,
    /// Hosts that said they cannot start entities of the type.
    cannot: BTreeSet<(NodeId, TypeId)>,
    timers: Timers<Due>,
}

impl Coordinator {
    pub fn new(config: Arc<Config>, me: NodeId) -> Self {
        Self { me, config, view: None, removed: BTreeMap::new(), heard: Term::default(), refused: 0, seat: None }
    }

    /// A term was heard of. False if it is an older one, or another one of the same number, whose owner had not heard of that: what came with it is void.
    pub fn hear(&mut self, term: Term) -> bool {
        let current = term == self.heard || counter(term) > counter(self.heard);
        if current {
            self.heard = term;
        }
        current
    }

    /// This node has given up its own cluster for another one, whose terms it has not heard of.
    pub fn forget(&mut self) {
        (self.heard, self.seat) = (Term::default(), None);
    }

    pub fn heard(&self) -> Term {
        self.heard
    }

    pub fn is_seated(&self) -> bool {
        self.seat.is_some()
    }

    /// Moves that old homes refused, in all seats of this node.
    pub fn moves_refused(&self) -> u64 {
        self.refused
    }

    /// Nothing of the authority's work is open.
    pub fn is_quiet(&self) -> bool {
        self.seat.as_ref().is_none_or(|s| s.recount.is_none() && s.unconfirmed.is_empty())
    }

    pub fn handle_view(&mut self, now: Time, view: Arc<ClusterView>, out: &mut Out) {
        let seated = view.oldest(self.config.sharding.coordinator_role.as_deref()).is_some_and(|m| m.id == self.me);
        self.view = Some(view);
        match (seated, self.seat.is_some()) {
            (false, _) => self.seat = None,
            (true, false) => self.take_seat(now, out),
            (true, true) => self.ask_members(now, out),
        }
        self.take_strangers(now, out);
        self.review(now, out);
    }

    /// The node's membership is over.
    pub fn end(&mut self) {
        self.seat = None;
    }

    /// Above every term heard of, and this node's alone: two that take the seat in turn, or in two parts of a cluster, may not have heard of each other.
    ///
    /// Who has just come may have heard of none, and be all that is left: as the oldest takes the seat, those before it had lower up numbers, and a
    /// counter that is never below one's own is above theirs.
    fn next_term(&self) -> Term {
        let number = self.view.as_ref().and_then(|v| v.myself()).map_or(0, |m| m.up_number.into());
        let counter = (counter(self.heard) + 1).max(number);
        // Incarnations are random.
        let owner = self.me.incarnation() & ((1 << TERM_OWNER_BITS) - 1);
        Term(counter.min(u64::MAX >> TERM_OWNER_BITS) << TERM_OWNER_BITS | owner)
    }

    fn take_seat(&mut self, now: Time, out: &mut Out) {
        self.heard = self.next_term();
        self.seat = Some(Seat {
            term: self.heard,
            recount: Some(Recount::default()),
            rest: Recount::default(),
            open: BTreeMap::new(),
            types: Types::default(),
            strangers: BTreeMap::new(),
            rows: BTreeMap::new(),
            counts: BTreeMap::new(),
            unconfirmed: BTreeSet::new(),
            unowned: BTreeSet::new(),
            parked: BTreeMap::new(),
            started: false,
            allocate_at: self.removed.values().copied().max().unwrap_or(Time::ZERO),
            requested: BTreeMap::new(),
            cannot: BTreeSet::new(),
            timers: Timers::default(),
        });
        self.ask_members(now, out);
    }

    /// Asks the members that were not asked yet.
    fn ask_members(&mut self, now: Time, out: &mut Out) {
        let (Some(seat), Some(view)) = (&mut self.seat, &self.view) else { return };
        let Some(recount) = &mut seat.recount else { return };
        for member in view.members.iter().filter(|m| !self.removed.contains_key(&m.id)) {
            if recount.ask(member.id) {
                out.push(CoordinatorOut::Send(member.id, ControlFrame::Recount { term: seat.term, have: 0 }));
            }
        }
        seat.timers.set_by(Due::Recount, now + RESEND);
    }

    /// A member is gone for good. `lag`: see `Membership::lag_bound`.
    pub fn handle_removed(&mut self, now: Time, node: NodeId, how: Removal, lag: Duration, out: &mut Out) {
        let sharding = &self.config.sharding;
        let until = match how {
            Removal::Downed { proven: false } => now + sharding.lease_margin.get() + lag,
            Removal::Abrupt => now + sharding.lease.get() + sharding.lease_margin.get() + lag,
            Removal::Downed { proven: true } | Removal::Left => now,
        };
        self.removed.insert(node, until);
        let Some(seat) = &mut self.seat else { return };
        seat.types.forget(node);
        seat.strangers.remove(&node);
        seat.requested.remove(&node);
        seat.cannot.retain(|(n, _)| *n != node);
        seat.rows.values_mut().for_each(|row| row.forget(node));
        seat.parked.retain(|_, askers| {
            askers.remove(&node);
            !askers.is_empty()
        });
        if let Some(recount) = &mut seat.recount {
            seat.allocate_at = seat.allocate_at.max(until);
            recount.removed(node);
            return self.finish_recount(now, out);
        }
        seat.rest.removed(node);
        if !seat.open.is_empty() {
            seat.allocate_at = seat.allocate_at.max(until);
            self.reconsider(now, |_, facts| facts.retain(|(n, _)| *n != node), out);
        }
        let Some(seat) = &self.seat else { return };
        let concerned = |row: &Row| row.record.is_some_and(|r| r.home == node || r.from == Some(node));
        let keys: Vec<_> = seat.rows.iter().filter(|(_, row)| concerned(row)).map(|(k, _)| *k).collect();
        for key in keys {
            self.rehome(now, key, now, out);
        }
    }

    /// A session to that node is up: what it has not confirmed goes again at once.
    pub fn handle_link_up(&mut self, peer: NodeId, out: &mut Out) {
        let Some(seat) = &self.seat else { return };
        out.extend(seat.questions().filter(|(to, _)| *to == peer).map(|(to, frame)| CoordinatorOut::Send(to, frame)));
        for key in &seat.unconfirmed {
            out.extend(seat.announcements(*key).filter(|(to, _)| *to == peer).map(|(to, frame)| CoordinatorOut::Send(to, frame)));
        }
    }

    pub fn handle_timeout(&mut self, now: Time, out: &mut Out) {
        while let Some(due) = self.seat.as_mut().and_then(|s| s.timers.pop(now)) {
            match due {
                Due::Recount => self.repeat_recount(now, out),
                Due::Resend(key) => self.resend(now, key, out),
                Due::Rehome(key) => self.rehome(now, key, now, out),
                Due::Allocate => self.reconsider(now, |_, _| (), out),
                Due::Rebalance => {
                    self.review(now, out);
                    self.rebalance(now, out);
                }
            }
        }
    }

    pub fn next_timeout(&self) -> Option<Time> {
        self.seat.as_ref()?.timers.next()
    }

    fn repeat_recount(&mut self, now: Time, out: &mut Out) {
        let Some(seat) = &mut self.seat else { return };
        out.extend(seat.questions().map(|(to, frame)| CoordinatorOut::Send(to, frame)));
        if !seat.asked().is_complete() {
            seat.timers.set(Due::Recount, now + RESEND);
        }
    }

    /// Once everybody has answered: the table, then what waited for it.
    fn finish_recount(&mut self, now: Time, out: &mut Out) {
        let Some(seat) = &mut self.seat else { return };
        let Some(recount) = seat.recount.take_if(|r| r.is_complete()) else { return };
        seat.timers.clear(Due::Recount);
        let (answers, all) = recount.conclude();
        // Who runs shards of a type has the number of shards that is in force.
        let mut order: Vec<_> = answers.iter().map(|(node, known)| (known.facts.is_empty(), *node)).collect();
        order.sort();
        for (_, node) in order {
            if !answers[&node].types.is_empty() {
                requests::take_in(seat, node, answers[&node].number, &answers[&node].types, out);
            }
        }
        for (node, known) in answers.iter().filter(|(_, known)| known.is_partial()) {
            seat.ask_on(now, *node, known.answer);
        }
        for (key, facts) in all {
            self.restore(now, key, facts, out);
        }
        self.warn_of_open(out);
        self.review(now, out);
        self.plan_rebalance(now);
    }

    fn warn_of_open(&self, out: &mut Out) {
        let Some(seat) = self.seat.as_ref().filter(|s| !s.open.is_empty() && !s.rest.is_complete()) else { return };
        let nodes: Vec<String> = seat.rest.waiting().map(|(node, _)| node.to_string()).collect();
        out.push(CoordinatorOut::Warn {
            code: "silent_worker",
            text: format!(
                "{} shards are given to nobody until workers that stand still have answered, or their nodes are gone: {}; see there which handler does not return",
                seat.open.len(),
                nodes.join(", ")
            ),
        });
    }

    /// A member that has answered without some of its workers says more.
    fn take_rest(&mut self, now: Time, node: NodeId, out: &mut Out) {
        let Some(seat) = &mut self.seat else { return };
        let Some(known) = seat.rest.take(node) else { return };
        if known.is_partial() {
            seat.ask_on(now, node, known.answer);
        }
        let news: BTreeMap<ShardKey, ShardFact> = known.facts.into_iter().map(|f| (f.shard, f)).collect();
        let waits = |facts: &ShardFacts| facts.iter().any(|(n, f)| *n == node && f.state == FactState::Unknown);
        let tell = |key: ShardKey, facts: &mut ShardFacts| {
            if waits(facts) {
                facts.retain(|(n, _)| *n != node);
                facts.extend(news.get(&key).map(|fact| (node, *fact)));
            }
        };
        self.reconsider(now, tell, out);
        self.plan_rebalance(now);
    }

    /// Something has become known of the shards that were left open.
    fn reconsider(&mut self, now: Time, tell: impl Fn(ShardKey, &mut ShardFacts), out: &mut Out) {
        let open = self.seat.as_mut().map(|s| std::mem::take(&mut s.open)).unwrap_or_default();
        for (key, mut facts) in open {
            tell(key, &mut facts);
            self.restore(now, key, facts, out);
        }
        self.review(now, out);
    }

    /// Rebuilds the row of one shard from what is known of it.
    fn restore(&mut self, now: Time, key: ShardKey, facts: ShardFacts, out: &mut Out) {
        let Some(seat) = &mut self.seat else { return };
        seat.started = true;
        let allocate_at = seat.allocate_at;
        let (floor, verdict) = recount::judge(&facts);
        let mut row = Row::new(floor, now);
        // Who runs it says so again only when that changes.
        row.entities = facts.iter().fold(0, |sum: u32, (_, fact)| sum.saturating_add(fact.entities));
        // Whoever has heard of a home may be sending to it, and is to hear of the next one before the old one is gone.
        facts.iter().filter(|(_, f)| f.heard.is_some()).for_each(|(node, _)| row.interest(*node));
        seat.rows.insert(key, row);
        let is_early = matches!(verdict, Verdict::Receives { .. }) && allocate_at > now;
        if is_early {
            seat.timers.set_by(Due::Allocate, allocate_at);
        }
        if is_early || recount::is_open(&facts) {
            return drop(seat.open.insert(key, facts));
        }
        match verdict {
            Verdict::Runs { home, epoch, base } => seat.put(key, Some(Record { epoch, home, from: None, base, confirmed: true })),
            Verdict::Keep { home, base } | Verdict::Receives { home, base } => {
                self.make(now, key, home, None, |_| base, out);
            }
            Verdict::Moving { from, to, epoch, base } => {
                seat.put(key, Some(Record { epoch, home: to, from: Some(from), base, confirmed: false }));
                if let Some(row) = seat.rows.get_mut(&key) {
                    row.moving = Some((now, from));
                }
                self.resend(now, key, out);
                // A later home may have gone of which nobody who answered has heard, and may still have the right to run.
                self.rehome(now, key, allocate_at, out);
            }
            Verdict::Unowned => {
                // Its last home may be one that is gone and still has the right to run.
                let homes = facts.iter().filter_map(|(_, f)| f.heard).filter_map(|(_, home)| self.removed.get(&home));
                seat.allocate_at = homes.copied().max().unwrap_or(Time::ZERO).max(seat.allocate_at);
                seat.put(key, None);
            }
        }
        self.answer_parked(key, out);
    }

    /// Who asked for the shard's home before there was one hears of it.
    fn answer_parked(&mut self, key: ShardKey, out: &mut Out) {
        let Some(seat) = &mut self.seat else { return };
        let Some(row) = seat.rows.get_mut(&key) else { return };
        let Some(route) = row.route(key, &self.removed) else { return };
        for asker in seat.parked.remove(&key).unwrap_or_default() {
            row.interest(asker);
            out.push(CoordinatorOut::Send(asker, route.clone()));
        }
    }

    /// Sends a record that is still unconfirmed, and sets the time for the next try.
    fn resend(&mut self, now: Time, key: ShardKey, out: &mut Out) {
        let late = self.config.sharding.handoff_timeout.get();
        let Some(seat) = &mut self.seat else { return };
        if !seat.unconfirmed.contains(&key) {
            return;
        }
        out.extend(seat.announcements(key).filter(|(to, _)| !self.removed.contains_key(to)).map(|(to, f)| CoordinatorOut::Send(to, f)));
        seat.timers.set(Due::Resend(key), now + RESEND);
        let Some(row) = seat.rows.get_mut(&key) else { return };
        if let (false, Some((since, from)), Some(record)) = (row.reported, row.moving, row.record)
            && now.since(since) > late
        {
            row.reported = true;
            out.push(CoordinatorOut::Warn {
                code: "slow_move",
                text: format!(
                    "shard {key:?} is under way from {from} to {} for {} s, longer than sharding.handoff_timeout; it stays where it is until its home has stopped it",
                    record.home,
                    now.since(since).as_secs()
                ),
            });
        }
    }

    /// Rows of the table that begin with a removal: acts once the right to run of who is gone is over, and not before `least`.
    fn rehome(&mut self, now: Time, key: ShardKey, least: Time, out: &mut Out) {
        let Some(seat) = &mut self.seat else { return };
        let Some(row) = seat.rows.get_mut(&key) else { return };
        let Some(record) = row.record else { return };
        row.hold = None;
        let Some(successor) = records::after_removal(&record, |n| self.removed.contains_key(&n)) else { return };
        let ends = [Some(record.home), record.from];
        let until = ends.into_iter().flatten().filter_map(|n| self.removed.get(&n)).copied().fold(least, Time::max);
        if until > now {
            row.hold = Some(until);
            return seat.timers.set(Due::Rehome(key), until);
        }
        self.succeed(now, key, successor, out);
    }

    fn succeed(&mut self, now: Time, key: ShardKey, successor: Successor, out: &mut Out) {
        let former = self.seat.as_ref().and_then(|s| s.rows.get(&key)?.record);
        match (successor, former) {
            (Successor::At { home, base }, Some(former)) => {
                self.make(now, key, home, None, |epoch| base.of(&former, epoch), out);
            }
            _ => match self.choose(key.ty, None) {
                Some(home) => {
                    self.make(now, key, home, None, |epoch| epoch, out);
                }
                None => {
                    if let Some(seat) = &mut self.seat {
                        seat.put(key, None);
                    }
                }
            },
        }
    }

    /// Makes the next record of a shard, and tells whom it concerns.
    fn make(
        &mut self,
        now: Time,
        key: ShardKey,
        home: NodeId,
        from: Option<NodeId>,
        base: impl FnOnce(Epoch) -> Epoch,
        out: &mut Out,
    ) -> Option<Epoch> {
        let seat = self.seat.as_mut()?;
        let first = seat.first_epoch();
        let row = seat.rows.entry(key).or_insert_with(|| Row::new(first, now));
        // Whoever knew of later epochs may be gone, an earlier authority with them: this one's numbers begin above all that could be.
        let epoch = row.floor.max(first).next();
        let former = row.record;
        let moved_from = from.or(former.map(|r| r.home).filter(|&h| h != home));
        row.reported = false;
        row.hold = None;
        row.moving = match moved_from {
            Some(old) => Some((row.moving.map_or(now, |(since, _)| since), old)),
            None => None,
        };
        if let Some(old) = moved_from {
            out.push(CoordinatorOut::Moving { shard: key, from: old, to: home, epoch });
        }
        let askers = seat.parked.remove(&key).unwrap_or_default();
        askers.into_iter().for_each(|asker| row.interest(asker));
        let mut told: BTreeSet<NodeId> = row.interested().collect();
        told.extend(former.into_iter().flat_map(|r| [Some(r.home), r.from]).flatten());
        seat.put(key, Some(Record { epoch, home, from, base: base(epoch), confirmed: false }));
        self.resend(now, key, out);
        // Assign and Move say it all; the others hear of the new home.
        let rest = told.into_iter().filter(|n| *n != home && Some(*n) != from && !self.removed.contains_key(n));
        out.extend(rest.map(|n| CoordinatorOut::Send(n, ControlFrame::Route { shard: key, epoch, home })));
        Some(epoch)
    }

    /// `Owned(e)` of the newest record: a shard moves again only after this.
    pub fn handle_owned(&mut self, now: Time, from: NodeId, key: ShardKey, epoch: Epoch, can_start: bool, out: &mut Out) {
        let Some(seat) = &mut self.seat else { return };
        // A shard that its type does not have would be counted and moved like any other.
        if seat.types.get(key.ty).is_some_and(|info| (1..=key.shard.0).contains(&info.shards)) {
            return tracing::debug!(shard = ?key, ?from, "a node says that it runs a shard that its type does not have");
        }
        if let Some(recount) = &mut seat.recount {
            return recount.owned(from, key, epoch);
        }
        if let Some(mut facts) = seat.open.remove(&key) {
            recount::heed(&mut facts, from, key, epoch);
            self.restore(now, key, facts, out);
            return self.review(now, out);
        }
        // At the floor as well, if nobody was given the shard since: a home may say so behind its answer to the recount.
        let is_news = |row: &Row| row.floor < epoch || (row.floor == epoch && row.record.is_none());
        if seat.rows.get(&key).is_none_or(is_news) {
            return self.adopt(now, key, Record { epoch, home: from, from: None, base: epoch, confirmed: true }, out);
        }
        let Some(row) = seat.rows.get_mut(&key) else { return };
        let Some(record) = row.record.filter(|r| r.epoch == epoch && r.home == from && !r.confirmed) else { return };
        row.confirmed_at = now;
        row.hold = None;
        if let Some((since, _)) = row.moving.take() {
            out.push(CoordinatorOut::Moved { shard: key, to: from, epoch, took: now.since(since) });
        }
        seat.put(key, Some(Record { confirmed: true, from: None, ..record }));
        if !can_start {
            seat.cannot.insert((from, key.ty));
        }
        self.vacate(now, key, out);
    }

    /// A node runs a shard under a later epoch than any known here: an earlier authority moved it there, and the hand-over arrived behind
    /// that node's answer to the recount. (Its base is not known: the record's own epoch is the one that lets nothing old in.)
    fn adopt(&mut self, now: Time, key: ShardKey, record: Record, out: &mut Out) {
        let Some(seat) = &mut self.seat else { return };
        seat.started = true;
        seat.put(key, Some(record));
        let askers = seat.parked.remove(&key).unwrap_or_default();
        let Some(row) = seat.rows.get_mut(&key) else { return };
        (row.hold, row.moving, row.reported, row.confirmed_at) = (None, None, false, now);
        askers.into_iter().for_each(|asker| row.interest(asker));
        let told: Vec<NodeId> = row.interested().filter(|n| *n != record.home && !self.removed.contains_key(n)).collect();
        out.extend(
            told.into_iter().map(|n| CoordinatorOut::Send(n, ControlFrame::Route { shard: key, epoch: record.epoch, home: record.home })),
        );
        self.vacate(now, key, out);
    }

    pub fn handle_refused(&mut self, now: Time, from: NodeId, key: ShardKey, epoch: Epoch, why: &str, out: &mut Out) {
        let pause = self.config.sharding.rebalance_interval.get();
        let Some(row) = self.seat.as_mut().and_then(|s| s.rows.get_mut(&key)) else { return };
        let Some(successor) = row.record.and_then(|r| records::after_refusal(&r, epoch, from)) else { return };
        row.not_before = now + pause;
        self.refused += 1;
        let name = self.seat.as_ref().and_then(|seat| seat.types.get(key.ty)).map_or("?", |info| &info.name);
        let text = format!("{} keeps shard {} of `{name}`: {}", self.named(from), key.shard.0, why.escape_debug());
        out.push(CoordinatorOut::Warn { code: "move_refused", text });
        self.succeed(now, key, successor, out);
    }

    /// A node for people: by its address, if it is a member.
    fn named(&self, id: NodeId) -> String {
        let member = self.view.as_ref().and_then(|view| view.member(id));
        member.map_or_else(|| format!("node {id}"), |member| format!("node {}", member.addr))
    }

    /// Acts on whatever changed: members, hosts, time.
    fn review(&mut self, now: Time, out: &mut Out) {
        let Some(seat) = self.seat.as_ref().filter(|s| s.recount.is_none()) else { return };
        let waiting: Vec<_> = seat.parked.keys().chain(&seat.unowned).copied().collect();
        for key in waiting {
            self.place(now, key, out);
        }
        let Some(seat) = &self.seat else { return };
        let settled: Vec<_> = seat.rows.iter().filter(|(_, row)| row.settled_home().is_some()).map(|(k, _)| *k).collect();
        for key in settled {
            self.vacate(now, key, out);
        }
    }

    /// Gives a shard without an owner a home, if that may be done now.
    fn place(&mut self, now: Time, key: ShardKey, out: &mut Out) {
        let Some(home) = self.choose(key.ty, None).filter(|_| self.may_allocate(now)) else { return };
        let is_free = |s: &Seat| s.rows.get(&key).is_none_or(|row| row.record.is_none()) && !s.open.contains_key(&key);
        if self.seat.as_ref().is_some_and(is_free) {
            self.make(now, key, home, None, |epoch| epoch, out);
        }
    }

    /// Start-up rule: membership is up, its least size was reached, and so many members have registered.
    fn may_allocate(&mut self, now: Time) -> bool {
        let min = self.config.cluster.min_members as usize;
        let (Some(seat), Some(view)) = (&mut self.seat, &self.view) else { return false };
        if seat.recount.is_some() {
            return false;
        }
        if seat.allocate_at > now {
            seat.timers.set(Due::Allocate, seat.allocate_at);
            return false;
        }
        if !seat.started {
            let up = view.members.iter().filter(|m| m.status == MemberStatus::Up);
            let (up, registered) = up.fold((0, 0), |(up, reg), m| (up + 1, reg + usize::from(seat.types.is_registered(m.id))));
            let ever = view.members.iter().map(|m| m.up_number).max().unwrap_or(0) as usize;
            seat.started = ever.max(up) >= min && registered >= min.min(up) && up > 0;
        }
        seat.started
    }

    /// Hosts that may be given shards of the type, in address order, with their load.
    fn hosts(&self, ty: TypeId) -> Vec<HostLoad> {
        let (Some(seat), Some(view)) = (&self.seat, &self.view) else { return vec![] };
        let fit = view.members.iter().filter(|m| m.status == MemberStatus::Up && m.reachable && !self.removed.contains_key(&m.id));
        let fit = fit.filter(|m| seat.types.hosts(m.id, ty) && !seat.cannot.contains(&(m.id, ty)));
        let (silent, awake): (Vec<_>, Vec<_>) = fit
            .map(|m| HostLoad { node: m.id, shards: seat.counts.get(&(ty, m.id)).copied().unwrap_or(0), movable: vec![] })
            .partition(|host| seat.rest.waits_for(host.node));
        // A shard may come to the very worker that stands still.
        if awake.is_empty() { silent } else { awake }
    }

    /// Whether somebody else hosts the type but is not reached now.
    fn may_host_later(&self, ty: TypeId, except: NodeId) -> bool {
        let (Some(seat), Some(view)) = (&self.seat, &self.view) else { return false };
        let hosts = |id: NodeId| seat.types.hosts(id, ty) && !seat.cannot.contains(&(id, ty)) && !self.removed.contains_key(&id);
        view.members.iter().any(|m| m.status == MemberStatus::Up && !m.reachable && m.id != except && hosts(m.id))
    }

    fn choose(&self, ty: TypeId, except: Option<NodeId>) -> Option<NodeId> {
        allocate::least(&self.hosts(ty), except)
    }

    /// Moves a shard away from a home that leaves, or cannot start its entities; it stays if there is no other host.
    fn vacate(&mut self, now: Time, key: ShardKey, out: &mut Out) {
        let (Some(seat), Some(view)) = (&self.seat, &self.view) else { return };
        let Some(row) = seat.rows.get(&key).filter(|row| row.not_before <= now) else { return };
        let Some(home) = row.settled_home() else { return };
        let leaving = view.member(home).is_some_and(|m| matches!(m.status, MemberStatus::Leaving | MemberStatus::Exiting));
        if !leaving && !seat.cannot.contains(&(home, key.ty)) {
            return;
        }
        match self.choose(key.ty, Some(home)) {
            Some(to) => drop(self.make_move(now, key, to, out)),
            // The leaving home need not wait for somebody to take it. For who is out of reach it waits: that one is back soon, or gone.
            None if leaving && !self.may_host_later(key.ty, home) => {
                out.push(CoordinatorOut::Send(home, ControlFrame::NoHost { ty: key.ty }))
            }
            None => {}
        }
    }

    fn make_move(&mut self, now: Time, key: ShardKey, to: NodeId, out: &mut Out) -> Option<Epoch> {
        let record = self.seat.as_ref()?.rows.get(&key)?.record?;
        debug_assert!(record.confirmed && record.home != to, "only a confirmed shard moves, and elsewhere");
        self.make(now, key, to, Some(record.home), |_| record.base, out)
    }

    /// Soon: what just changed may be the first of several changes.
    fn plan_rebalance(&mut self, now: Time) {
        let at = now + self.config.membership.gossip_interval.get();
        if let Some(seat) = &mut self.seat {
            seat.timers.set_by(Due::Rebalance, at);
        }
    }

    fn rebalance(&mut self, now: Time, out: &mut Out) {
        let sharding = &self.config.sharding;
        let dwell = sharding.min_dwell.get();
        let (threshold, absolute, relative) = (sharding.rebalance_threshold, sharding.rebalance_absolute, sharding.rebalance_relative);
        let interval = sharding.rebalance_interval.get();
        let (Some(seat), Some(view)) = (&mut self.seat, &self.view) else { return };
        seat.timers.set(Due::Rebalance, now + interval);
        let mut moves = vec![];
        let seat = self.seat.as_ref().expect("it was just there");
        for ty in seat.types.names().map(|t| t.ty) {
            // Who is out of reach cannot stop its shards, and may soon be gone with all of them.
            if view.members.iter().any(|m| !m.reachable && seat.types.hosts(m.id, ty)) {
                continue;
            }
            let mut hosts = self.hosts(ty);
            let (mut total, mut under_way) = (0, 0);
            for (key, row) in seat.rows_of(ty) {
                total += 1;
                under_way += usize::from(row.moving.is_some());
                let free = row.not_before <= now && now.since(row.confirmed_at) >= dwell;
                if let (Some(home), true) = (row.settled_home(), free)
                    && let Some(host) = hosts.iter_mut().find(|h| h.node == home)
                {
                    host.movable.push(*key);
                }
            }
            let limit = allocate::limit(total, absolute, relative).saturating_sub(under_way);
            moves.extend(allocate::rebalance(hosts, threshold, limit));
        }
        for (key, to) in moves {
            self.make_move(now, key, to, out);
        }
    }

    pub fn check(&self) {
        let Some(seat) = &self.seat else { return };
        // Debug builds call this in each turn of the network thread, where tests count allocations: a sum of hashes needs none.
        let one = |ty: TypeId, home: NodeId| xxhash_rust::xxh3::xxh3_64_with_seed(&home.raw().to_le_bytes(), u64::from(ty.0));
        let mut rows = 0u64;
        for (key, row) in &seat.rows {
            let Some(record) = row.record else { continue };
            rows = rows.wrapping_add(one(key.ty, record.home));
            assert!(record.epoch <= row.floor && record.base <= record.epoch, "{key:?}: {record:?} above {:?}", row.floor);
            assert_eq!(!record.confirmed, seat.unconfirmed.contains(key), "{key:?}: unconfirmed records are known");
            assert!(record.confirmed || seat.timers.is_set(Due::Resend(*key)), "{key:?}: an unconfirmed record is sent again");
            assert!(record.from.is_none() || !record.confirmed, "{key:?}: a confirmed record has one owner");
        }
        let is_left_out = |key: &ShardKey| seat.rows.get(key).is_some_and(|row| row.record.is_none()) && !seat.unowned.contains(key);
        assert!(seat.open.keys().all(is_left_out), "what a worker that stands still may have is nobody else's");
        let is_asked = |(node, fact): &(NodeId, ShardFact)| fact.state != FactState::Unknown || seat.rest.waits_for(*node);
        assert!(seat.open.values().flatten().all(is_asked), "who does not know is asked again");
        assert!(seat.asked().is_complete() || seat.timers.is_set(Due::Recount), "a question is repeated");
        let counted = seat.counts.iter().fold(0u64, |sum, ((ty, home), n)| sum.wrapping_add(one(*ty, *home).wrapping_mul(*n as u64)));
        assert_eq!(rows, counted, "shards per host are counted: {:?}", seat.counts);
    }
}

/// Its number, without its owner.
const fn counter(term: Term) -> u64 {
    term.0 >> TERM_OWNER_BITS
}

impl Seat {
    /// A coordinator that cannot know all epochs that were used begins above them (moves.md section 14, F3).
    fn first_epoch(&self) -> Epoch {
        let before = counter(self.term).saturating_sub(1);
        Epoch(before.min((Epoch::MAX.get() >> 16) - 1) << 16)
    }

    /// Whom it waits for.
    fn asked(&self) -> &Recount {
        self.recount.as_ref().unwrap_or(&self.rest)
    }

    fn questions(&self) -> impl Iterator<Item = (NodeId, ControlFrame)> {
        self.asked().waiting().map(|(node, have)| (node, ControlFrame::Recount { term: self.term, have }))
    }

    fn ask_on(&mut self, now: Time, node: NodeId, have: u64) {
        self.rest.ask_on(node, have);
        self.timers.set_by(Due::Recount, now + RESEND);
    }

    fn rows_of(&self, ty: TypeId) -> impl Iterator<Item = (&ShardKey, &Row)> {
        let key = |n| ShardKey { ty, shard: crate::ShardId(n) };
        self.rows.range(key(0)..=key(u32::MAX))
    }

    /// Replaces the newest record, with everything that is counted by it.
    fn put(&mut self, key: ShardKey, record: Option<Record>) {
        let row = self.rows.entry(key).or_default();
        if let Some(old) = std::mem::replace(&mut row.record, record) {
            let count = self.counts.get_mut(&(key.ty, old.home)).expect("every record is counted");
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&(key.ty, old.home));
            }
        }
        self.unconfirmed.remove(&key);
        self.unowned.remove(&key);
        self.timers.clear(Due::Resend(key));
        match record {
            Some(record) => {
                row.floor = row.floor.max(record.epoch);
                *self.counts.entry((key.ty, record.home)).or_default() += 1;
                if !record.confirmed {
                    self.unconfirmed.insert(key);
                }
            }
            None => drop(self.unowned.insert(key)),
        }
    }

    /// What an unconfirmed record says to its ends.
    fn announcements(&self, key: ShardKey) -> impl Iterator<Item = (NodeId, ControlFrame)> + use<> {
        let term = self.term;
        let record = self.rows.get(&key).and_then(|row| row.record).filter(|r| !r.confirmed);
        record.into_iter().flat_map(move |Record { epoch, home, from, base, .. }| match from {
            None => vec![(home, ControlFrame::Assign { shard: key, epoch, home, base, term })],
            Some(from) => {
                let frame = ControlFrame::Move { shard: key, epoch, from, to: home, base, term };
                vec![(from, frame.clone()), (home, frame)]
            }
        })
    }
}
