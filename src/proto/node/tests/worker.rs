//! A model of a worker: moves.md sections 5, 6 and X4, without entities, as short as it goes.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet, VecDeque},
    rc::Rc,
    sync::Arc,
};

use crate::{
    Epoch, NodeId, ShardKey,
    proto::{
        handoff::{Envelope, Forwarded, HandoffItem, Item, Mode, TransferChunk},
        shard::{LaneId, LaneItem, ShardCommand, ShardReport},
        sharding::{FactState, ShardFact},
    },
};

/// What travels in a transfer, by a number that the chunk carries.
pub type Luggage = Rc<RefCell<Vec<Gate>>>;

pub type Gate = BTreeMap<NodeId, Stream>;

#[derive(Clone, Default, Debug)]
pub struct Stream {
    floor: Epoch,
    held: VecDeque<(Epoch, Mode, Envelope)>,
}

#[derive(Default)]
pub struct Worker {
    me: NodeId1,
    luggage: Luggage,
    shards: BTreeMap<ShardKey, Shard>,
    lanes: BTreeMap<(LaneId, ShardKey), Lane>,
    removed: BTreeSet<NodeId>,
    pub reports: VecDeque<ShardReport>,
    /// What was handled, in order.
    pub handled: Vec<Envelope>,
    /// What was dropped here, with the rule that dropped it.
    pub dropped: Vec<(Envelope, &'static str)>,
    /// Refuses the next move of a shard.
    pub refuse: bool,
    stopped: bool,
}

type NodeId1 = Option<NodeId>;

#[derive(Default)]
struct Shard {
    running: Option<(Epoch, Epoch)>,
    seen: Epoch,
    base: Epoch,
    routes: Vec<(Epoch, Epoch, Epoch, NodeId, Vec<NodeId>)>,
    awaiting: VecDeque<(Epoch, NodeId, Item)>,
    gate: Gate,
    records: BTreeMap<Epoch, NodeId>,
    asked: Epoch,
}

#[derive(Default)]
struct Lane {
    opened: BTreeMap<Epoch, bool>,
    hold: Option<(Epoch, VecDeque<LaneItem<Envelope>>)>,
    back: Option<Epoch>,
}

impl Worker {
    pub fn new(me: NodeId, luggage: Luggage) -> Self {
        Self { me: Some(me), luggage, ..Self::default() }
    }

    pub fn running(&self) -> impl Iterator<Item = (ShardKey, Epoch)> {
        self.shards.iter().filter_map(|(k, s)| s.running.map(|(_, cur)| (*k, cur)))
    }

    pub fn waiting(&self) -> usize {
        let shards = self.shards.values().map(|s| s.awaiting.len() + s.gate.values().map(|g| g.held.len()).sum::<usize>());
        shards.sum::<usize>() + self.lanes.values().filter_map(|l| l.hold.as_ref()).map(|(_, q)| q.len()).sum::<usize>()
    }

    pub fn describe(&self) -> String {
        let mut text = String::new();
        for (k, s) in &self.shards {
            let waits: Vec<_> = s.awaiting.iter().map(|(e, n, i)| (*e, *n, i.aim())).take(3).collect();
            let gate: Vec<_> =
                s.gate.iter().map(|(n, g)| (*n, g.floor, g.held.iter().map(|(t, m, _)| (*t, *m)).take(2).collect::<Vec<_>>())).collect();
            text += &format!(
                "\n  {k:?} running {:?} seen {:?} base {:?} routes {:?} awaiting {waits:?} gate {gate:?} records {:?}",
                s.running, s.seen, s.base, s.routes, s.records
            );
        }
        for (l, s) in &self.lanes {
            text += &format!("\n  {l:?} opened {:?} back {:?} hold {:?}", s.opened, s.back, s.hold.as_ref().map(|(k, q)| (*k, q.len())));
        }
        text
    }

    pub fn command(&mut self, command: ShardCommand) {
        if self.stopped {
            return;
        }
        match command {
            ShardCommand::Assign { shard, epoch, base } => self.assign(shard, epoch, base),
            ShardCommand::Move { shard, epoch, to } => self.hand_over(shard, epoch, to),
            ShardCommand::Record { shard, epoch, home } => {
                let state = self.shards.entry(shard).or_default();
                state.records.insert(epoch, home);
                // Moves to this node that were called off: what waits for them goes on to the newest home.
                let aims: BTreeSet<Epoch> = state.awaiting.iter().map(|(aim, ..)| *aim).filter(|aim| *aim < epoch).collect();
                if state.running.is_none() && Some(home) != self.me && !self.removed.contains(&home) {
                    for aim in aims {
                        state.seen = state.seen.max(aim);
                        state.routes.push((aim, aim, epoch, home, vec![]));
                    }
                }
                self.run_awaiting(shard);
            }
            ShardCommand::Item { stream, shard, item } => self.arrive(shard, item.aim(), stream, item),
            ShardCommand::Handoff { shard, item, .. } => match item {
                HandoffItem::Transfer(chunk) => self.take_over(shard, &chunk),
                HandoffItem::Forwarded(Forwarded { aim, after, stream, item }) => {
                    assert!(after.iter().all(|n| self.removed.contains(n)), "CE-9: removals come first");
                    self.arrive(shard, aim, stream, item);
                }
                HandoffItem::Probe { .. } => {}
            },
            ShardCommand::Removed { node } => self.remove(node),
            ShardCommand::Open { lane, shard, k, yes } => {
                let state = self.lanes.entry((lane, shard)).or_default();
                match state.hold.take() {
                    Some((entered, queue)) if entered == k => {
                        if !yes {
                            state.back = Some(k);
                        }
                        queue.into_iter().for_each(|item| self.lane(lane, item));
                    }
                    hold => {
                        state.hold = hold;
                        state.opened.insert(k, yes);
                    }
                }
            }
            ShardCommand::Recount { id } => {
                let fact = |(shard, s): (&ShardKey, &Shard)| ShardFact {
                    shard: *shard,
                    state: s.running.map_or(FactState::None, |(_, cur)| FactState::Running(cur)),
                    seen: s.seen,
                    base: s.base,
                    heard: None,
                    entities: 0,
                };
                self.reports.push_back(ShardReport::Facts { id, facts: self.shards.iter().map(fact).collect() });
            }
            ShardCommand::Stop => {
                self.stopped = true;
                let running = self.shards.iter_mut().filter_map(|(&shard, s)| Some((shard, s.running.take()?.1)));
                self.reports.extend(running.map(|(shard, cur)| ShardReport::Ended { shard, cur }));
            }
            ShardCommand::Host { .. } | ShardCommand::ProbeAck { .. } => {}
        }
    }

    /// X4.
    pub fn lane(&mut self, lane: LaneId, item: LaneItem<Envelope>) {
        let shard = match &item {
            LaneItem::Msg { shard, .. } | LaneItem::Leave { shard, .. } | LaneItem::Through { shard, .. } => *shard,
            LaneItem::End => return,
        };
        let state = self.lanes.entry((lane, shard)).or_default();
        if let Some((_, queue)) = &mut state.hold {
            return queue.push_back(item);
        }
        match item {
            LaneItem::Msg { enter: Some(k), shard, tag, parcel } => {
                let plain = LaneItem::Msg { enter: None, shard, tag, parcel };
                match state.opened.remove(&k) {
                    Some(yes) => {
                        if !yes {
                            state.back = Some(k);
                        }
                        self.lane(lane, plain);
                    }
                    None => state.hold = Some((k, [plain].into())),
                }
            }
            LaneItem::Msg { tag, parcel, .. } => {
                let runs = self.shards.get(&shard).and_then(|s| s.running).is_some_and(|(start, cur)| start <= tag && tag <= cur);
                if runs && state.back.is_none() {
                    self.handled.push(parcel);
                } else {
                    self.reports.push_back(ShardReport::Back { lane, envelope: parcel });
                }
            }
            LaneItem::Leave { k, .. } => {
                state.back = None;
                self.reports.push_back(ShardReport::Left { lane, shard, k });
            }
            LaneItem::Through { .. } | LaneItem::End => {}
        }
    }

    fn assign(&mut self, key: ShardKey, e: Epoch, base: Epoch) {
        let shard = self.shards.entry(key).or_default();
        if e <= shard.seen {
            return;
        }
        shard.seen = e;
        shard.running = match shard.running {
            Some((start, _)) => Some((start, e)),
            None => {
                for (_, stream) in std::mem::take(&mut shard.gate) {
                    self.dropped.extend(stream.held.into_iter().map(|(_, _, m)| (m, "home lost")));
                }
                shard.routes.retain(|r| r.1 >= base);
                shard.base = base;
                Some((e, e))
            }
        };
        self.own(key, e);
    }

    fn own(&mut self, key: ShardKey, e: Epoch) {
        let shard = self.shards.entry(key).or_default();
        let (start, cur) = shard.running.expect("owned shards run");
        self.reports.push_back(ShardReport::Running { shard: key, start, cur });
        self.reports.push_back(ShardReport::Owned { shard: key, epoch: e, can_start: true });
        self.run_awaiting(key);
    }

    fn run_awaiting(&mut self, key: ShardKey) {
        for (aim, stream, item) in std::mem::take(&mut self.shards.entry(key).or_default().awaiting) {
            match self.shards[&key].running {
                Some((_, cur)) if aim <= cur => self.gate(key, stream, item),
                _ => self.arrive(key, aim, stream, item),
            }
        }
    }

    fn hand_over(&mut self, key: ShardKey, e: Epoch, to: NodeId) {
        let shard = self.shards.entry(key).or_default();
        if e <= shard.seen {
            return;
        }
        let Some((start, cur)) = shard.running else { return };
        shard.seen = e;
        if std::mem::take(&mut self.refuse) {
            return self.reports.push_back(ShardReport::MoveRefused { shard: key, epoch: e, why: "it may not be".into() });
        }
        shard.running = None;
        self.reports.push_back(ShardReport::Ended { shard: key, cur });
        let mut luggage = self.luggage.borrow_mut();
        luggage.push(std::mem::take(&mut shard.gate));
        let bytes = Arc::new((luggage.len() as u64 - 1).to_le_bytes().to_vec());
        let chunk = TransferChunk { epoch: e, base: shard.base, last: true, bytes };
        self.reports.push_back(ShardReport::Handoff { to, shard: key, item: HandoffItem::Transfer(chunk) });
        shard.routes.push((start, cur, e, to, vec![]));
    }

    fn take_over(&mut self, key: ShardKey, chunk: &TransferChunk) {
        let shard = self.shards.entry(key).or_default();
        if chunk.epoch <= shard.seen || shard.running.is_some() {
            return;
        }
        shard.seen = chunk.epoch;
        shard.base = chunk.base;
        shard.running = Some((chunk.epoch, chunk.epoch));
        let number = u64::from_le_bytes(chunk.bytes[..].try_into().expect("8 bytes")) as usize;
        shard.gate = self.luggage.borrow()[number].clone();
        for node in self.removed.clone() {
            self.release(key, node, Epoch::MAX);
        }
        self.own(key, chunk.epoch);
    }

    fn remove(&mut self, node: NodeId) {
        self.removed.insert(node);
        for key in self.shards.keys().copied().collect::<Vec<_>>() {
            let shard = self.shards.get_mut(&key).expect("just read");
            let newest = shard.records.iter().rev().find(|(_, home)| !self.removed.contains(home)).map(|(e, n)| (*e, *n));
            for route in shard.routes.iter_mut().filter(|r| r.3 == node) {
                if let Some((aim, home)) = newest.filter(|(e, _)| *e > route.2) {
                    (route.2, route.3) = (aim, home);
                }
                route.4.push(node);
            }
            self.release(key, node, Epoch::MAX);
        }
    }

    /// Section 5: the first rule that fits.
    fn arrive(&mut self, key: ShardKey, x: Epoch, stream: NodeId, item: Item) {
        let me = self.me.expect("a worker knows its node");
        let shard = self.shards.entry(key).or_default();
        if shard.running.is_some_and(|(start, cur)| start <= x && x <= cur) {
            return self.gate(key, stream, item);
        }
        if let Some(i) = shard.routes.iter().position(|r| r.0 <= x && x <= r.1) {
            let newest = shard.records.iter().rev().find(|(_, home)| !self.removed.contains(home)).map(|(e, n)| (*e, *n));
            let route = &mut shard.routes[i];
            if self.removed.contains(&route.3) {
                match newest.filter(|(e, _)| *e > route.2) {
                    Some((aim, home)) => (route.2, route.3) = (aim, home),
                    None => return shard.awaiting.push_back((x, stream, item)),
                }
            }
            let (aim, to, after) = (route.2, route.3, route.4.clone());
            if to == me {
                return self.arrive(key, aim, stream, item);
            }
            let item = HandoffItem::Forwarded(Forwarded { aim, after, stream, item });
            return self.reports.push_back(ShardReport::Handoff { to, shard: key, item });
        }
        if x > shard.seen {
            shard.awaiting.push_back((x, stream, item));
            if std::mem::replace(&mut shard.asked, x) == x {
                return;
            }
            return self.reports.push_back(ShardReport::Unknown { shard: key, aim: x });
        }
        if shard.running.is_some() {
            return self.gate(key, stream, item);
        }
        let next = shard.records.iter().rev().find(|(e, home)| **e > x && !self.removed.contains(home)).map(|(e, n)| (*e, *n));
        match next {
            Some((aim, home)) => {
                shard.routes.push((x, x, aim, home, vec![]));
                self.arrive(key, x, stream, item);
            }
            None => shard.awaiting.push_back((x, stream, item)),
        }
    }

    /// Section 6.
    fn gate(&mut self, key: ShardKey, stream: NodeId, item: Item) {
        let shard = self.shards.entry(key).or_default();
        let base = shard.base;
        let entry = shard.gate.entry(stream).or_default();
        match item {
            Item::Msg { envelope, .. } if self.removed.contains(&stream) => self.dropped.push((envelope, "sender removed")),
            Item::Msg { tag, envelope, .. } if tag < base => self.dropped.push((envelope, "home lost")),
            Item::Msg { tag, envelope, .. } if tag <= entry.floor => self.dropped.push((envelope, "late")),
            Item::Msg { tag, mode, envelope } => match mode {
                Mode::Over(p) => {
                    entry.floor = entry.floor.max(Epoch(tag.get() - 1));
                    self.release(key, stream, Epoch::ZERO);
                    self.reports.push_back(ShardReport::StreamAck { stream, shard: key, p });
                    self.handled.push(envelope);
                }
                Mode::Wait(p) if p >= base && entry.floor < p => entry.held.push_back((tag, mode, envelope)),
                Mode::Wait(_) => {
                    entry.floor = entry.floor.max(Epoch(tag.get() - 1));
                    self.handled.push(envelope);
                }
                Mode::Settled if entry.held.iter().any(|(held, ..)| *held <= tag) => entry.held.push_back((tag, mode, envelope)),
                Mode::Settled => self.handled.push(envelope),
            },
            Item::Fence { p } => {
                entry.floor = entry.floor.max(p);
                self.release(key, stream, Epoch::ZERO);
                self.reports.push_back(ShardReport::StreamAck { stream, shard: key, p });
            }
            Item::Over { p, tag } => {
                entry.floor = entry.floor.max(Epoch(tag.get() - 1));
                self.release(key, stream, Epoch::MAX);
                self.reports.push_back(ShardReport::StreamAck { stream, shard: key, p });
            }
            Item::Settle { tag } => {
                if entry.held.is_empty() && entry.floor < tag {
                    shard.gate.remove(&stream);
                }
            }
        }
    }

    fn release(&mut self, key: ShardKey, stream: NodeId, all_below: Epoch) {
        let Some(shard) = self.shards.get_mut(&key) else { return };
        let base = shard.base;
        let Some(entry) = shard.gate.get_mut(&stream) else { return };
        while let Some((tag, mode, message)) = entry.held.pop_front() {
            let free = match mode {
                Mode::Wait(p) => p < base || p <= entry.floor || p < all_below,
                _ => true,
            };
            if !free {
                entry.held.push_front((tag, mode, message));
                return;
            }
            if tag <= entry.floor {
                self.dropped.push((message, "late"));
                continue;
            }
            if matches!(mode, Mode::Wait(_)) {
                entry.floor = entry.floor.max(Epoch(tag.get() - 1));
            }
            self.handled.push(message);
        }
    }
}
