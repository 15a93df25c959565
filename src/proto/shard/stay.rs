//! A node's states for one shard (moves.md section 5).

mod arrivals;

use std::{
    collections::{BTreeMap, VecDeque},
    mem::offset_of,
    sync::Arc,
};

use self::arrivals::{Waiting, What, is_due, weight};
use super::{
    Host, Parcel, ShardReport, StopReason,
    entities::Entities,
    env::{Cx, Timer, Turns},
    gate::Gate,
    routes::{Linger, Routes},
    states::States,
    transfer::{self, Cargo, TAKEN_IN_BYTES},
};
use crate::{
    Epoch, NodeId, ShardKey, Time,
    proto::{
        handoff::{DropReason, Envelope, HandoffItem, Item, TransferChunk},
        sharding::{FactState, ShardFact},
        wheel::TimerId,
    },
};

/// To end so many entities takes longer than another frame.
const AHEAD_BYTES: usize = 4 << 10;

/// What this node does with the shard.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum State {
    /// Nothing of it is here.
    None,
    /// Parts of its transfer for that epoch have come.
    Receiving(Epoch),
    /// It runs here, for the stay `start..=cur`. Without the type's factory it is only kept (`parked`).
    Running,
    /// It is to be handed over, and still runs.
    Stopping { epoch: Epoch, to: NodeId },
}

/// A transfer on its way in.
struct Incoming {
    from: NodeId,
    epoch: Epoch,
    cargo: Cargo,
}

/// One shard, as this worker knows it. What a message looks at comes first, with that of its entities behind it, in two lines of the cache.
#[repr(C, align(64))]
pub(super) struct Shard<H: Host> {
    pub(super) state: State,
    pub(super) cur: Epoch,
    /// Runs here by the record, but not in fact: what came with it, and from whom.
    parked: Option<Box<(Cargo, NodeId)>>,
    pub(super) key: ShardKey,
    pub(super) start: Epoch,
    pub(super) entities: Entities<H>,
    pub(super) number: u32,
    /// Highest epoch acted on: never forgotten (A5).
    pub(super) seen: Epoch,
    pub(super) base: Epoch,
    /// The Move refused last, and why.
    refused: Option<(Epoch, String)>,
    /// The epoch under which the shard left last.
    handed: Option<Epoch>,
    /// Newest record heard of.
    record: Option<(Epoch, NodeId)>,
    /// The highest aim asked for.
    asked: Epoch,
    pub(super) gate: Gate<Envelope>,
    pub(super) routes: Routes,
    awaiting: VecDeque<Waiting>,
    awaiting_bytes: usize,
    /// When the first message in there is given up: its home does not come to run, or the one before it does not stop (failures, row 47).
    gives_up_at: Option<(Time, TimerId)>,
    incoming: Option<Box<Incoming>>,
    /// Hand-off lanes whose front waits for a removal (CE-9).
    stalled: BTreeMap<NodeId, VecDeque<HandoffItem>>,
    stalled_bytes: usize,
}

impl<H: Host> Shard<H> {
    pub fn new(key: ShardKey, number: u32) -> Self {
        const { assert!(offset_of!(Self, entities) + offset_of!(Entities<H>, handled) < 2 * 64, "what a message looks at") };
        Self {
            state: State::None,
            cur: Epoch::ZERO,
            parked: None,
            key,
            start: Epoch::ZERO,
            entities: Entities::default(),
            number,
            seen: Epoch::ZERO,
            base: Epoch::ZERO,
            refused: None,
            handed: None,
            record: None,
            asked: Epoch::ZERO,
            gate: Gate::default(),
            routes: Routes::default(),
            awaiting: VecDeque::new(),
            awaiting_bytes: 0,
            gives_up_at: None,
            incoming: None,
            stalled: BTreeMap::new(),
            stalled_bytes: 0,
        }
    }

    /// Its entities run here.
    #[inline]
    pub fn runs(&self) -> bool {
        matches!(self.state, State::Running | State::Stopping { .. }) && self.parked.is_none()
    }

    /// A local item routed by a word of this stay may go straight to its entity (section 13, X4).
    #[inline]
    pub fn takes(&self, tag: Epoch) -> bool {
        // A stay begins at its own epoch at the latest.
        self.runs() && (tag == self.cur || self.start <= tag && tag < self.cur)
    }

    /// A message of a settled stream from another node may.
    #[inline]
    pub fn takes_settled(&self, tag: Epoch) -> bool {
        tag == self.cur && self.gate.is_clear() && self.runs()
    }

    #[inline]
    pub fn turns<'a>(&self, cx: &'a mut Cx<'_, H>) -> Turns<'a, H> {
        Turns { env: cx.env, host: cx.host, shard: self.key, number: self.number, epoch: self.cur }
    }

    /// Straight to the entity.
    pub fn deliver(&mut self, cx: &mut Cx<'_, H>, parcel: H::Parcel) {
        let mut turns = self.turns(cx);
        self.entities.deliver(&mut turns, parcel);
    }

    // ---- records ------------------------------------------------------------------------------------------------------------

    /// Assign: run it, as new or on.
    pub fn assign(&mut self, cx: &mut Cx<'_, H>, epoch: Epoch, base: Epoch) {
        self.learn(cx, epoch, cx.env.me);
        if epoch <= self.seen {
            return self.answer(cx);
        }
        if matches!(self.state, State::Running | State::Stopping { .. }) {
            (self.seen, self.cur, self.state, self.refused) = (epoch, epoch, State::Running, None);
        } else {
            self.abandon_transfer(cx);
            self.give_up_gate(cx, DropReason::HomeLost);
            self.routes.drop_below(base);
            (self.seen, self.cur, self.start, self.base) = (epoch, epoch, base, base);
            (self.state, self.refused, self.handed) = (State::Running, None, None);
            if !cx.env.hosted.contains(&self.key.ty) {
                self.parked = Some(Box::new((Cargo::default(), cx.env.me)));
            }
        }
        self.confirm(cx);
    }

    /// Move: hand it over to `to`.
    pub fn move_to(&mut self, cx: &mut Cx<'_, H>, epoch: Epoch, to: NodeId) {
        self.learn(cx, epoch, to);
        if epoch <= self.seen {
            return self.answer(cx);
        }
        if cx.env.removed.contains(&to) {
            // The record that must follow names this node, or takes the shard from both.
            return;
        }
        match self.state {
            State::Running | State::Stopping { .. } if to != cx.env.me => {
                (self.seen, self.state) = (epoch, State::Stopping { epoch, to });
                self.stop(cx);
            }
            State::Receiving(_) => {}
            State::None => self.refuse(cx, epoch, "the shard does not run here".into()),
            _ => self.refuse(cx, epoch, "the shard is here already".into()),
        }
    }

    /// The newest record, from wherever. Older ones are known to be superseded.
    pub fn record(&mut self, cx: &mut Cx<'_, H>, epoch: Epoch, home: NodeId) {
        let old = self.record;
        if !self.learn(cx, epoch, home) || cx.env.removed.contains(&home) {
            return;
        }
        let idle = matches!(self.state, State::None);
        if let Some((planned, me)) = old
            && me == cx.env.me
            && home != me
            && idle
            && planned > self.seen
        {
            self.seen = planned;
            self.pin(cx, planned, planned, epoch, home);
        }
        self.sift(cx);
    }

    /// Remembers the newest record; routes that have lost their target follow it.
    fn learn(&mut self, cx: &Cx<'_, H>, epoch: Epoch, home: NodeId) -> bool {
        let newer = self.record.is_none_or(|(known, _)| epoch > known);
        if newer {
            self.record = Some((epoch, home));
            if !cx.env.removed.contains(&home) {
                self.routes.retarget(epoch, home);
            }
        }
        newer
    }

    /// Says again what is known.
    fn answer(&mut self, cx: &mut Cx<'_, H>) {
        let shard = self.key;
        if let Some((epoch, why)) = self.refused.clone().filter(|r| r.0 == self.seen) {
            cx.report(ShardReport::MoveRefused { shard, epoch, why });
        } else if self.state == State::Running {
            cx.report(ShardReport::Owned { shard, epoch: self.cur, can_start: self.parked.is_none() });
        }
    }

    fn refuse(&mut self, cx: &mut Cx<'_, H>, epoch: Epoch, why: String) {
        self.seen = epoch;
        self.refused = Some((epoch, why.clone()));
        cx.report(ShardReport::MoveRefused { shard: self.key, epoch, why });
    }

    /// This node runs `cur` now.
    fn confirm(&mut self, cx: &mut Cx<'_, H>) {
        self.routes.arrived(cx.env.me, self.cur);
        let can_start = self.parked.is_none();
        cx.report(ShardReport::Owned { shard: self.key, epoch: self.cur, can_start });
        if can_start {
            cx.report(ShardReport::Running { shard: self.key, start: self.start, cur: self.cur });
        }
        self.sift(cx);
    }

    // ---- the old home -------------------------------------------------------------------------------------------------------

    /// Goes on with the stop: at once, unless the right to run is suspended (handing over runs code of entities).
    pub fn stop(&mut self, cx: &mut Cx<'_, H>) {
        let State::Stopping { epoch, to } = self.state else { return };
        if self.parked.is_none() && !cx.env.may_run_on(cx.host) {
            return cx.env.stops.push(self.number);
        }
        let mut cargo = match self.parked.take() {
            Some(parked) => parked.0,
            None => {
                let mut turns = self.turns(cx);
                match self.entities.hand_over(&mut turns) {
                    Ok(states) => {
                        let states = self.send_ahead(cx, states, epoch, to);
                        let mut turns = self.turns(cx);
                        self.entities.leave(&mut turns);
                        self.entities.pack(&mut turns, states)
                    }
                    Err(why) => {
                        self.state = State::Running;
                        return self.refuse(cx, epoch, why);
                    }
                }
            }
        };
        for (stream, entry) in self.gate.take() {
            cargo.floors.push((stream, entry.floor));
            cargo.held.extend(entry.held.into_iter().map(|held| (stream, held)));
        }
        let mut chunks = transfer::encode(cargo, cx.env.now).into_iter().peekable();
        while let Some(bytes) = chunks.next() {
            let last = chunks.peek().is_none();
            self.send_chunk(cx, (epoch, to), bytes, last);
        }
        self.end(cx);
        self.handed = Some(epoch);
        self.pin(cx, self.start, self.cur, epoch, to);
        self.sift(cx);
    }

    /// Many states are on their way while their instances end. Nobody starts there before the last chunk has come, which is behind that.
    fn send_ahead(&mut self, cx: &mut Cx<'_, H>, states: States, epoch: Epoch, to: NodeId) -> States {
        if states.bytes() < AHEAD_BYTES {
            return states;
        }
        for bytes in transfer::encode(Cargo { states, ..Cargo::default() }, cx.env.now) {
            self.send_chunk(cx, (epoch, to), bytes, false);
        }
        cx.host.hurry();
        States::default()
    }

    fn send_chunk(&mut self, cx: &mut Cx<'_, H>, (epoch, to): (Epoch, NodeId), bytes: Vec<u8>, last: bool) {
        let chunk = TransferChunk { epoch, base: self.base, last, bytes: Arc::new(bytes) };
        cx.report(ShardReport::Handoff { to, shard: self.key, item: HandoffItem::Transfer(chunk) });
    }

    fn end(&mut self, cx: &mut Cx<'_, H>) {
        self.state = State::None;
        cx.env.ended.push(self.key);
        cx.report(ShardReport::Ended { shard: self.key, cur: self.cur });
    }

    // ---- the new home -------------------------------------------------------------------------------------------------------

    fn chunk(&mut self, cx: &mut Cx<'_, H>, from: NodeId, chunk: TransferChunk) {
        let TransferChunk { epoch, base, last, bytes } = chunk;
        if epoch <= self.seen || !matches!(self.state, State::None | State::Receiving(_)) {
            let mail = transfer::messages_of(self.key, &bytes, cx.env.now);
            return self.give_up(cx, Cargo { mail, ..Cargo::default() }, DropReason::HomeLost);
        }
        self.learn(cx, epoch, cx.env.me);
        if self.incoming.as_ref().is_some_and(|i| (i.from, i.epoch) != (from, epoch)) {
            self.abandon_transfer(cx);
        }
        let mut incoming = self.incoming.take().unwrap_or_else(|| Box::new(Incoming { from, epoch, cargo: Cargo::default() }));
        self.state = State::Receiving(epoch);
        self.unpack(cx, &mut incoming.cargo, &bytes);
        if !last {
            self.incoming = Some(incoming);
            return;
        }
        (self.start, self.cur, self.seen, self.base) = (epoch, epoch, epoch, base);
        (self.state, self.refused, self.handed) = (State::Running, None, None);
        if cx.env.hosted.contains(&self.key.ty) {
            self.install(cx, incoming.cargo, from);
        } else {
            self.parked = Some(Box::new((incoming.cargo, from)));
        }
        self.confirm(cx);
    }

    fn unpack(&mut self, cx: &mut Cx<'_, H>, cargo: &mut Cargo, bytes: &[u8]) {
        if cargo.bytes + bytes.len() > TAKEN_IN_BYTES {
            tracing::error!(shard = ?self.key, limit = TAKEN_IN_BYTES, "transfer exceeds its limit: the rest is not taken in");
            cargo.bytes = TAKEN_IN_BYTES;
            let mail = transfer::messages_of(self.key, bytes, cx.env.now);
            return self.give_up(cx, Cargo { mail, ..Cargo::default() }, DropReason::MoveBufferFull);
        }
        if let Err(error) = transfer::decode(cargo, self.key, bytes, cx.env.now) {
            tracing::error!(shard = ?self.key, %error, "malformed transfer: the rest of this chunk is not taken in");
        }
    }

    /// The type is hosted now: what was only kept starts.
    pub fn host(&mut self, cx: &mut Cx<'_, H>) {
        if let Some(parked) = self.parked.take() {
            let (cargo, from) = *parked;
            self.install(cx, cargo, from);
            self.confirm(cx);
        }
    }

    fn install(&mut self, cx: &mut Cx<'_, H>, cargo: Cargo, from: NodeId) {
        for (stream, floor) in cargo.floors {
            self.gate.adopt_floor(stream, floor);
        }
        for (stream, held) in cargo.held {
            self.gate.adopt_held(cx.env.now, stream, held);
        }
        self.watch_gate(cx);
        // In front of the instances: what an instance sends when it starts comes behind it.
        for record in cargo.sent {
            let settled = cx.env.removed.contains(&record.home);
            let turns = self.turns(cx);
            let at = turns.place();
            turns.host.sent(at, record, settled);
        }
        // And what an instance sets when it starts replaces what came with it.
        for timer in cargo.timers {
            self.entities.adopt_timer(&mut self.turns(cx), timer);
        }
        // Of nodes that are gone by now: mail.
        let (gone, nodes): (Vec<_>, Vec<_>) = cargo.nodes.into_iter().partition(|(node, _)| cx.env.removed.contains(node));
        for (node, message) in nodes {
            self.entities.adopt_watch(&mut self.turns(cx), node, message);
        }
        for (key, watch) in &cargo.watched {
            self.entities.adopt_watched(&mut self.turns(cx), key, *watch);
        }
        for watch in cargo.watches {
            let turns = self.turns(cx);
            let at = turns.place();
            turns.host.watch(at, watch);
        }
        self.entities.expect(&mut self.turns(cx), cargo.states, from);
        for envelope in gone.into_iter().map(|(_, message)| message).chain(cargo.mail) {
            self.entities.deliver_moved(&mut self.turns(cx), H::Parcel::from_envelope(envelope));
        }
        for (key, _) in &cargo.watched {
            self.entities.end_unless_it_came(&mut self.turns(cx), key);
        }
        // Removals learned before the gate came here (CE-23).
        let gone: Vec<_> = self.gate.streams().filter(|stream| cx.env.removed.contains(stream)).collect();
        for stream in gone {
            self.release_removed(cx, stream);
        }
    }

    fn abandon_transfer(&mut self, cx: &mut Cx<'_, H>) {
        if let Some(incoming) = self.incoming.take() {
            self.give_up(cx, incoming.cargo, DropReason::HomeLost);
        }
        if matches!(self.state, State::Receiving(_)) {
            self.state = State::None;
        }
    }

    fn give_up(&mut self, cx: &mut Cx<'_, H>, cargo: Cargo, reason: DropReason) {
        cargo.into_messages().for_each(|envelope| self.undelivered(cx, envelope, reason));
    }

    fn give_up_gate(&mut self, cx: &mut Cx<'_, H>, reason: DropReason) {
        for held in self.gate.take().into_iter().flat_map(|(_, entry)| entry.held) {
            self.undelivered(cx, held.item, reason);
        }
    }

    fn undelivered(&self, cx: &mut Cx<'_, H>, envelope: Envelope, reason: DropReason) {
        cx.host.undelivered(envelope.shard, H::Parcel::from_envelope(envelope), reason);
    }

    fn undelivered_what(&self, cx: &mut Cx<'_, H>, what: What, reason: DropReason) {
        // Fences and their kin are repeated by their senders; nobody waits for a probe.
        if let What::Item { item: Item::Msg { envelope, .. }, .. } = what {
            self.undelivered(cx, envelope, reason);
        }
    }

    // ---- removals, probes, the end ------------------------------------------------------------------------------------------

    /// That node is gone; `cx.env.removed` names it already.
    pub fn removed(&mut self, cx: &mut Cx<'_, H>, node: NodeId) {
        for item in self.stalled.remove(&node).into_iter().flatten() {
            self.stalled_bytes -= weight(&item);
            self.give_up_item(cx, item, DropReason::LinkLost);
        }
        if self.incoming.as_ref().is_some_and(|incoming| incoming.from == node) {
            self.abandon_transfer(cx);
        }
        if matches!(self.state, State::Stopping { to, .. } if to == node) {
            self.state = State::Running;
        }
        if self.runs() {
            self.release_removed(cx, node);
            let mut turns = self.turns(cx);
            self.entities.node_removed(&mut turns, node);
        }
        self.routes.removed(node);
        match self.record {
            Some((_, home)) if home == node => self.asked = Epoch::ZERO,
            Some((epoch, home)) if !cx.env.removed.contains(&home) => self.routes.retarget(epoch, home),
            _ => {}
        }
        if matches!(self.state, State::Running | State::Stopping { .. }) {
            // The record it runs by is one that names a member, whatever newer ones say.
            self.routes.retarget(self.cur, cx.env.me);
            self.routes.arrived(cx.env.me, self.cur);
        }
        for from in self.stalled.keys().copied().collect::<Vec<_>>() {
            let mut queue = self.stalled.remove(&from).unwrap_or_default();
            while queue.front().is_some_and(|item| is_due(item, cx)) {
                let Some(item) = queue.pop_front() else { break };
                self.stalled_bytes -= weight(&item);
                self.accept(cx, from, item);
            }
            if !queue.is_empty() {
                self.stalled.insert(from, queue);
            }
        }
        self.sift(cx);
    }

    /// A route's timer.
    pub fn linger(&mut self, cx: &mut Cx<'_, H>, id: u64) {
        let (now, linger) = (cx.env.now, cx.env.linger);
        let due = match self.routes.linger(id, now, linger) {
            Linger::Gone => return,
            Linger::Later(due) => due,
            Linger::Probe => {
                let number = cx.env.number();
                if let Some(route) = self.routes.by_id(id)
                    && let Some(to) = route.node.filter(|node| *node != cx.env.me)
                {
                    route.probe = Some(number);
                    let (aim, after, origin) = (route.aim, route.after.clone(), cx.env.me);
                    let item = HandoffItem::Probe { origin, route: id, number, aim, after };
                    cx.report(ShardReport::Handoff { to, shard: self.key, item });
                }
                now + linger
            }
        };
        cx.env.timers.insert(due, Timer::Route { shard: self.number, route: id });
    }

    /// For good: nothing is handed over.
    pub fn shut(&mut self, cx: &mut Cx<'_, H>, why: StopReason) {
        let reason = if why == StopReason::Fenced { DropReason::Fenced } else { DropReason::Shutdown };
        let here = matches!(self.state, State::Running | State::Stopping { .. });
        let mut turns = self.turns(cx);
        if why == StopReason::Shutdown {
            // What they were handed over is nowhere else, and they may save it as they stop.
            self.entities.take_in_all(&mut turns);
        }
        for parcel in self.entities.stop_all(&mut turns, why, None) {
            turns.undelivered(parcel, reason);
        }
        self.give_up_gate(cx, reason);
        self.abandon_transfer(cx);
        if let Some(parked) = self.parked.take() {
            self.give_up(cx, parked.0, reason);
        }
        self.awaiting_bytes = 0;
        for item in std::mem::take(&mut self.awaiting) {
            self.undelivered_what(cx, item.what, reason);
        }
        self.set_patience(cx);
        self.stalled_bytes = 0;
        for item in std::mem::take(&mut self.stalled).into_values().flatten() {
            self.give_up_item(cx, item, reason);
        }
        if here {
            self.end(cx);
        }
    }

    /// For a new authority; `None` if nothing is known.
    pub fn fact(&self) -> Option<ShardFact> {
        let state = match self.state {
            State::None => match self.handed {
                Some(epoch) if epoch == self.seen => FactState::HandedOver(epoch),
                _ => FactState::None,
            },
            State::Receiving(epoch) => FactState::Receiving(epoch),
            State::Running => FactState::Running(self.cur),
            State::Stopping { epoch, .. } => FactState::Stopping(epoch),
        };
        let known = self.seen > Epoch::ZERO || self.record.is_some() || state != FactState::None;
        let entities = self.entities.live();
        known.then_some(ShardFact { shard: self.key, state, seen: self.seen, base: self.base, heard: self.record, entities })
    }

    /// Items that wait for an epoch, a fence or a removal.
    #[cfg(test)]
    pub fn waiting(&self) -> usize {
        self.awaiting.len() + self.gate.held() + self.stalled.values().map(VecDeque::len).sum::<usize>()
    }

    /// Asserts the invariants. Returns messages in mailboxes, and their bytes.
    pub fn check(&self) -> (usize, usize) {
        let here = matches!(self.state, State::Running | State::Stopping { .. });
        assert!(
            !here || (self.start <= self.cur && self.cur <= self.seen && self.base <= self.cur),
            "{:?}: a stay within what was seen",
            self.key
        );
        assert!(self.runs() || (self.entities.is_empty() && self.gate.is_clear()), "{:?}: entities only where they run", self.key);
        assert_eq!(self.incoming.is_some(), matches!(self.state, State::Receiving(_)), "{:?}: receiving", self.key);
        assert!(self.parked.is_none() || here, "{:?}: parked only by the record", self.key);
        assert!(!self.runs() || self.awaiting.iter().all(|item| item.aim > self.cur), "{:?}: a home runs what waits", self.key);
        assert_eq!(self.awaiting.iter().map(|item| item.what.bytes()).sum::<usize>(), self.awaiting_bytes, "{:?}: bytes waiting", self.key);
        let waits = self.awaiting.iter().any(|item| item.what.is_message()) || self.gate.held() > 0;
        assert!(!waits || self.gives_up_at.is_some(), "{:?}: a message that waits is given up some day", self.key);
        assert_eq!(self.stalled.values().flatten().map(weight).sum::<usize>(), self.stalled_bytes, "{:?}: bytes stalled", self.key);
        assert!(self.routes.iter().all(|r| r.lo <= r.hi && r.hi < r.aim), "{:?}: routes lead forward", self.key);
        self.gate.check();
        self.entities.check()
    }
}
