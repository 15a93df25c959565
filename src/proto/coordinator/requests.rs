//! What regions and operators ask of the authority.

use crate::{
    Epoch, NodeId, ShardKey, Term, Time, TypeId,
    proto::{
        membership::MemberStatus,
        sharding::{ControlFrame, TableRow, TypeInfo},
    },
};

use super::{ASKERS_MAX, Coordinator, CoordinatorOut, Out, PARKED_MAX, Recount, STRANGERS_MAX, Seat, counter};

/// Rows in one frame of a table.
const ROWS_PER_FRAME: usize = 500;

/// Takes in what a node announced, and answers it. Who waits for the number of shards of a type hears it.
pub(super) fn take_in(seat: &mut Seat, from: NodeId, number: u64, types: &[TypeInfo], out: &mut Out) {
    let new: Vec<TypeId> = types.iter().filter(|t| t.shards > 0 && seat.types.get(t.ty).is_none()).map(|t| t.ty).collect();
    let refused = seat.types.register(from, types);
    let in_force = |ty: TypeId| seat.types.get(ty).map(|known| (ty, known.shards));
    let asked = types.iter().filter(|t| t.shards == 0 && refused.iter().all(|(ty, _)| *ty != t.ty)).map(|t| t.ty);
    let (known, unknown): (Vec<TypeId>, Vec<_>) = asked.partition(|ty| in_force(*ty).is_some());
    if !known.is_empty() {
        let types = known.into_iter().filter_map(in_force).collect();
        out.push(CoordinatorOut::Send(from, ControlFrame::Sized { term: seat.term, types }));
    }
    out.extend(unknown.into_iter().map(|ty| CoordinatorOut::Send(from, ControlFrame::NoHost { ty })));
    for number in new.into_iter().filter_map(in_force) {
        let others = seat.types.users(number.0).filter(|node| *node != from);
        out.extend(others.map(|node| CoordinatorOut::Send(node, ControlFrame::Sized { term: seat.term, types: vec![number] })));
    }
    out.push(CoordinatorOut::Send(from, ControlFrame::Registered { term: seat.term, number, refused }));
}

impl Coordinator {
    /// A frame for the authority; nothing happens while this node is not it, and the sender asks again.
    pub fn handle_frame(&mut self, now: Time, from: NodeId, frame: ControlFrame, out: &mut Out) {
        if self.seat.is_none() || self.removed.contains_key(&from) {
            return;
        }
        match frame {
            ControlFrame::Register { number, types } => self.register(now, from, number, &types, out),
            ControlFrame::WhereIs { shard, shards } => self.where_is(now, from, shard, shards, out),
            ControlFrame::Owned { shard, epoch, can_start } => self.handle_owned(now, from, shard, epoch, can_start, out),
            ControlFrame::MoveRefused { shard, epoch, why } => self.handle_refused(now, from, shard, epoch, &why, out),
            ControlFrame::Facts { term, answer, part, last, number, types, facts } => {
                // Who refuses the question names the term that it holds to.
                if term > self.seat_term() || (answer == 0 && term != self.seat_term() && counter(term) == counter(self.seat_term())) {
                    self.raise_term(now, term, out);
                } else if term == self.seat_term() && answer > 0 {
                    let Some(seat) = &mut self.seat else { return };
                    let asked = seat.recount.as_mut().unwrap_or(&mut seat.rest);
                    asked.answer(from, (answer, part), last, (number, types), facts);
                    self.finish_recount(now, out);
                    self.take_rest(now, from, out);
                }
            }
            ControlFrame::MoveRequest { id, shard, to } => {
                // Ids grow. One that comes behind a later one is none that anybody waits for: members' may go more ways than one.
                let member = self.view.as_ref().is_some_and(|view| view.is_member(from));
                let newest = self.seat.as_mut().filter(|_| member).map(|seat| seat.requested.entry(from).or_default());
                if newest.is_some_and(|newest| id < std::mem::replace(newest, id.max(*newest))) {
                    return;
                }
                let result = self.move_request(now, shard, to, out);
                out.push(CoordinatorOut::Send(from, ControlFrame::MoveAnswer { id, result }));
            }
            ControlFrame::TableRequest { id, ty } => self.table(now, from, id, ty, out),
            ControlFrame::Load { loads } => {
                for (shard, entities, rate) in loads {
                    let row = self.seat.as_mut().and_then(|s| s.rows.get_mut(&shard));
                    if let Some(row) = row.filter(|row| row.record.is_some_and(|r| r.home == from)) {
                        (row.entities, row.rate_per_s) = (entities, rate);
                    }
                }
            }
            // For regions.
            ControlFrame::Registered { .. }
            | ControlFrame::NoHost { .. }
            | ControlFrame::Route { .. }
            | ControlFrame::Assign { .. }
            | ControlFrame::Move { .. }
            | ControlFrame::Recount { .. }
            | ControlFrame::Sized { .. }
            | ControlFrame::MoveAnswer { .. }
            | ControlFrame::Flush { .. }
            | ControlFrame::Flushed { .. }
            | ControlFrame::TableAnswer { .. }
            | ControlFrame::TakingOver { .. } => {}
        }
    }

    fn seat_term(&self) -> Term {
        self.seat.as_ref().map_or(Term(0), |s| s.term)
    }

    /// A member has heard of a later term than this one: asks again above it.
    fn raise_term(&mut self, now: Time, term: Term, out: &mut Out) {
        self.heard = self.heard.max(term);
        self.heard = self.next_term();
        let Some(seat) = &mut self.seat else { return };
        seat.term = self.heard;
        if seat.recount.is_some() {
            seat.recount = Some(Recount::default());
            self.ask_members(now, out);
        }
    }

    fn register(&mut self, now: Time, from: NodeId, number: u64, types: &[TypeInfo], out: &mut Out) {
        let Some(seat) = self.seat.as_mut().filter(|s| s.recount.is_none()) else { return };
        if !self.view.as_ref().is_some_and(|view| view.is_member(from)) {
            // It may be one, and know that first. Until this node knows it, what it says binds nobody. It says it again, too.
            if seat.strangers.len() < STRANGERS_MAX || seat.strangers.contains_key(&from) {
                seat.strangers.insert(from, (number, types.to_vec()));
            }
            return;
        }
        take_in(seat, from, number, types, out);
        seat.cannot.retain(|(node, _)| *node != from);
        self.review(now, out);
        self.plan_rebalance(now);
    }

    /// Takes in those that have announced their types before they were members here.
    pub(super) fn take_strangers(&mut self, now: Time, out: &mut Out) {
        let (Some(seat), Some(view)) = (&mut self.seat, &self.view) else { return };
        if seat.recount.is_some() {
            return;
        }
        let known: Vec<_> = seat.strangers.extract_if(.., |node, _| view.is_member(*node)).collect();
        for (node, (number, types)) in known {
            self.register(now, node, number, &types, out);
        }
    }

    fn where_is(&mut self, now: Time, from: NodeId, key: ShardKey, shards: u32, out: &mut Out) {
        let Some(seat) = &mut self.seat else { return };
        if shards > 0
            && let Some(why) = seat.types.mismatch(key.ty, shards)
        {
            let refused = vec![(key.ty, why)];
            return out.push(CoordinatorOut::Send(from, ControlFrame::Registered { term: seat.term, number: 0, refused }));
        }
        if seat.types.get(key.ty).is_some_and(|info| key.shard.0 >= info.shards) {
            return;
        }
        if let Some(row) = seat.rows.get_mut(&key) {
            row.interest(from);
            if let Some(route) = row.route(key, &self.removed) {
                return out.push(CoordinatorOut::Send(from, route));
            }
        }
        if seat.parked.len() < PARKED_MAX || seat.parked.contains_key(&key) {
            let askers = seat.parked.entry(key).or_default();
            if askers.len() < ASKERS_MAX {
                askers.insert(from);
            }
        }
        if seat.recount.is_some() {
            return;
        }
        self.place(now, key, out);
        if self.choose(key.ty, None).is_none() {
            out.push(CoordinatorOut::Send(from, ControlFrame::NoHost { ty: key.ty }));
        }
    }

    fn move_request(&mut self, now: Time, key: ShardKey, to: NodeId, out: &mut Out) -> Result<Epoch, String> {
        let Some(seat) = self.seat.as_ref().filter(|s| s.recount.is_none()) else {
            return Err("the coordinator is taking over and does not know all homes yet; try again in a few seconds".into());
        };
        let info = seat.types.get(key.ty).ok_or_else(|| format!("no node has registered a type with id {:08x}", key.ty.0))?;
        let (name, shards) = (info.name.clone(), info.shards);
        if key.shard.0 >= shards {
            return Err(format!("type `{name}` has {shards} shards, 0 to {}; there is no shard {}", shards - 1, key.shard.0));
        }
        let member = self.view.as_ref().and_then(|v| v.member(to)).filter(|m| !self.removed.contains_key(&m.id));
        let member = member.ok_or_else(|| format!("node {to} is no member"))?;
        if member.status != MemberStatus::Up {
            return Err(format!("node {} is {}, not up; choose another one", member.addr, member.status.name()));
        }
        if !member.reachable {
            return Err(format!("node {} is unreachable; choose another one, or wait until it is back", member.addr));
        }
        if !seat.types.hosts(to, key.ty) {
            return Err(format!("node {} does not host `{name}`; register the type there, or choose another node", member.addr));
        }
        let Some((row, record)) = seat.rows.get(&key).and_then(|row| Some((row, row.record?))) else {
            if seat.open.contains_key(&key) {
                return Err(format!(
                    "it is not known where shard {} of `{name}` runs, as a worker that may have it stands still, or a node that had it is just gone; try again later",
                    key.shard.0
                ));
            }
            if !self.may_allocate(now) {
                return Err("nothing is allocated yet: `cluster.min_members` is not reached".into());
            }
            let epoch = self.make(now, key, to, None, |epoch| epoch, out);
            return epoch.ok_or_else(|| "this node is the coordinator no more".into());
        };
        if row.settled_home().is_none() {
            let epoch = record.epoch.get();
            return Err(format!(
                "shard {} of `{name}` is under way to {} with epoch {epoch}; wait until it runs there",
                key.shard.0,
                self.named(record.home)
            ));
        }
        if record.home == to {
            return Err(format!("shard {} of `{name}` runs on that node already", key.shard.0));
        }
        self.make_move(now, key, to, out).ok_or_else(|| "this node is the coordinator no more".into())
    }

    fn table(&self, now: Time, from: NodeId, id: u64, ty: Option<TypeId>, out: &mut Out) {
        let Some(seat) = &self.seat else { return };
        if seat.recount.is_some() {
            return out.push(CoordinatorOut::Send(from, ControlFrame::TakingOver { id }));
        }
        let types: Vec<_> = seat.types.names().filter(|t| ty.is_none_or(|ty| t.ty == ty)).cloned().collect();
        let row = |(key, row): (&ShardKey, &super::Row)| TableRow {
            shard: *key,
            owner: row.record.filter(|r| !self.removed.contains_key(&r.home)).map(|r| r.home),
            from: row.record.filter(|r| !r.confirmed).and_then(|r| r.from),
            epoch: row.record.map_or(row.floor, |r| r.epoch),
            state: row.state(),
            entities: row.entities,
            rate_per_s: row.rate_per_s,
            moving_ms: row.moving.map(|(since, _)| u32::try_from(now.since(since).as_millis()).unwrap_or(u32::MAX)),
        };
        let rows: Vec<TableRow> = seat.rows.iter().filter(|(key, _)| ty.is_none_or(|ty| key.ty == ty)).map(row).collect();
        let parts = rows.chunks(ROWS_PER_FRAME).map(<[TableRow]>::to_vec).collect::<Vec<_>>();
        let last = parts.len().max(1) - 1;
        for part in 0..=last {
            let rows = parts.get(part).cloned().unwrap_or_default();
            let types = if part == 0 { types.clone() } else { vec![] };
            out.push(CoordinatorOut::Send(from, ControlFrame::TableAnswer { id, last: part == last, types, rows }));
        }
    }
}
