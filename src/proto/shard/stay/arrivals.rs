//! What arrives for a shard, or waits for its home (moves.md section 5).

use std::collections::VecDeque;

use super::{
    super::{
        Host, Parcel, ShardReport,
        env::{Cx, Timer},
        gate::{Held, Out, Weight},
        routes::Route,
        transfer::{self, Cargo, TAKEN_IN_BYTES},
    },
    Shard, State,
};
use crate::{
    Epoch, NodeId, Time,
    proto::handoff::{DropReason, Envelope, Forwarded, HandoffItem, Item, Mode},
};

/// Something on its way to the home of an epoch.
pub(super) enum What {
    Item { stream: NodeId, item: Item },
    Probe { origin: NodeId, route: u64, number: u64 },
}

impl What {
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Item { item: Item::Msg { envelope, .. }, .. } => envelope.bytes(),
            _ => size_of::<Self>(),
        }
    }

    pub(super) fn is_message(&self) -> bool {
        matches!(self, Self::Item { item: Item::Msg { .. }, .. })
    }
}

/// Something that waits for the home of an epoch.
pub(super) struct Waiting {
    pub(super) aim: Epoch,
    pub(super) what: What,
    since: Time,
}
impl<H: Host> Shard<H> {
    /// An item of the stream, sent here directly.
    pub fn direct(&mut self, cx: &mut Cx<'_, H>, stream: NodeId, item: Item) {
        if let Item::Msg { tag, mode: Mode::Settled, .. } = item
            && self.takes_settled(tag)
        {
            let Item::Msg { envelope, .. } = item else { return };
            return self.deliver(cx, H::Parcel::from_envelope(envelope));
        }
        self.arrive(cx, item.aim(), What::Item { stream, item });
    }

    /// The next item of a hand-off lane.
    pub fn handoff(&mut self, cx: &mut Cx<'_, H>, from: NodeId, item: HandoffItem) {
        if self.stalled.contains_key(&from) || !is_due(&item, cx) {
            let (bytes, limits) = (weight(&item), cx.env.limits);
            let queue = self.stalled.entry(from).or_default();
            let full = match item {
                HandoffItem::Transfer(_) => self.stalled_bytes + bytes > TAKEN_IN_BYTES,
                _ => queue.len() >= limits.awaiting || self.stalled_bytes + bytes > limits.awaiting_bytes,
            };
            if full {
                return self.give_up_item(cx, item, DropReason::MoveBufferFull);
            }
            self.stalled_bytes += bytes;
            return queue.push_back(item);
        }
        self.accept(cx, from, item);
    }

    pub(super) fn accept(&mut self, cx: &mut Cx<'_, H>, from: NodeId, item: HandoffItem) {
        match item {
            HandoffItem::Transfer(chunk) => self.chunk(cx, from, chunk),
            HandoffItem::Forwarded(Forwarded { aim, stream, item, .. }) => self.arrive(cx, aim, What::Item { stream, item }),
            HandoffItem::Probe { origin, route, number, aim, .. } => self.arrive(cx, aim, What::Probe { origin, route, number }),
        }
    }

    pub(super) fn give_up_item(&mut self, cx: &mut Cx<'_, H>, item: HandoffItem, reason: DropReason) {
        match item {
            HandoffItem::Transfer(chunk) => {
                let mail = transfer::messages_of(self.key, &chunk.bytes, cx.env.now);
                self.give_up(cx, Cargo { mail, ..Cargo::default() }, reason);
            }
            HandoffItem::Forwarded(f) => self.undelivered_what(cx, What::Item { stream: f.stream, item: f.item }, reason),
            HandoffItem::Probe { .. } => {}
        }
    }

    fn arrive(&mut self, cx: &mut Cx<'_, H>, aim: Epoch, what: What) {
        let since = cx.env.now;
        self.arrived(cx, Waiting { aim, what, since });
    }

    /// "An item with aim x arrives", first rule that fits. Each turn of the loop raises the aim.
    pub(super) fn arrived(&mut self, cx: &mut Cx<'_, H>, item: Waiting) {
        let Waiting { mut aim, what, since } = item;
        loop {
            let here = matches!(self.state, State::Running | State::Stopping { .. });
            if here && self.start <= aim && aim <= self.cur {
                return if self.parked.is_none() { self.admit(cx, what) } else { self.wait(cx, Waiting { aim, what, since }) };
            }
            if let Some(route) = self.routes.find(aim) {
                match route.node {
                    Some(node) if node == cx.env.me => {
                        aim = route.aim;
                        continue;
                    }
                    Some(node) => {
                        let item = carry(route, what, cx.env.now);
                        return cx.report(ShardReport::Handoff { to: node, shard: self.key, item });
                    }
                    None => {
                        let lost = route.aim;
                        self.ask(cx, above(lost));
                        return self.wait(cx, Waiting { aim, what, since });
                    }
                }
            }
            if aim > self.seen {
                let coming = matches!(self.state, State::Receiving(epoch) if epoch == aim);
                match self.target(cx, aim) {
                    // A newer record elsewhere: the one that named this node never came to anything.
                    Some((epoch, home)) if home != cx.env.me && !coming && !here => {
                        self.seen = aim;
                        self.pin(cx, aim, aim, epoch, home);
                        continue;
                    }
                    _ => {
                        self.ask(cx, aim);
                        return self.wait(cx, Waiting { aim, what, since });
                    }
                }
            }
            if here {
                return if self.parked.is_none() { self.admit(cx, what) } else { self.wait(cx, Waiting { aim, what, since }) };
            }
            match self.target(cx, aim) {
                Some((epoch, home)) => self.pin(cx, aim, aim, epoch, home),
                None => {
                    self.ask(cx, above(aim));
                    return self.wait(cx, Waiting { aim, what, since });
                }
            }
        }
    }

    /// The newest known record above `aim` whose home is a member.
    fn target(&self, cx: &Cx<'_, H>, aim: Epoch) -> Option<(Epoch, NodeId)> {
        self.record.filter(|(epoch, home)| *epoch > aim && !cx.env.removed.contains(home))
    }

    pub(super) fn pin(&mut self, cx: &mut Cx<'_, H>, lo: Epoch, hi: Epoch, aim: Epoch, node: NodeId) {
        let (id, used) = (cx.env.number(), cx.env.now);
        self.routes.add(Route { lo, hi, aim, node: Some(node), after: vec![], id, used, probe: None });
        cx.env.timers.insert(used + cx.env.linger, Timer::Route { shard: self.number, route: id });
    }

    fn ask(&mut self, cx: &mut Cx<'_, H>, aim: Epoch) {
        if aim > self.asked && self.record.is_none_or(|(epoch, home)| epoch < aim || cx.env.removed.contains(&home)) {
            self.asked = aim;
            cx.report(ShardReport::Unknown { shard: self.key, aim });
        }
    }

    /// Into `awaiting`, within its bounds.
    fn wait(&mut self, cx: &mut Cx<'_, H>, item: Waiting) {
        let (bytes, limits) = (item.what.bytes(), cx.env.limits);
        // Signs without a message have room of their own: losing one costs its sender a second.
        let items = if item.what.is_message() { limits.awaiting } else { limits.awaiting * 2 };
        if self.awaiting.len() >= items || self.awaiting_bytes + bytes > limits.awaiting_bytes {
            return self.undelivered_what(cx, item.what, DropReason::MoveBufferFull);
        }
        self.awaiting_bytes += bytes;
        self.awaiting.push_back(item);
        if self.gives_up_at.is_none() {
            self.set_patience(cx);
        }
    }

    /// Brings the timer in line with what waits.
    pub(super) fn set_patience(&mut self, cx: &mut Cx<'_, H>) {
        let first = self.awaiting.iter().find(|item| item.what.is_message()).map(|item| item.since);
        let due = first.into_iter().chain(self.gate.first_held()).min().map(|since| since + cx.env.limits.patience);
        if due == self.gives_up_at.map(|(at, _)| at) {
            return;
        }
        let timers = &mut cx.env.timers;
        if let Some((_, before)) = self.gives_up_at.take() {
            timers.cancel(before);
        }
        self.gives_up_at = due.map(|due| (due, timers.insert(due, Timer::Wait { shard: self.number })));
    }

    /// Gives up the messages that have waited for too long for a home, and the fences that others have waited for. Signs without a message go on waiting:
    /// their senders repeat them.
    pub fn expire(&mut self, cx: &mut Cx<'_, H>) {
        // The timer has fired.
        self.gives_up_at = None;
        let (now, patience) = (cx.env.now, cx.env.limits.patience);
        let late = |item: &Waiting| item.what.is_message() && item.since + patience <= now;
        let (late, kept): (VecDeque<_>, VecDeque<_>) = std::mem::take(&mut self.awaiting).into_iter().partition(late);
        self.awaiting = kept;
        for item in late {
            self.awaiting_bytes -= item.what.bytes();
            self.undelivered_what(cx, item.what, DropReason::HandoffTimeout);
        }
        for (stream, out) in self.gate.lapse(now - patience, self.base) {
            self.pass(cx, stream, out);
        }
        self.set_patience(cx);
    }

    /// Looks again at all that waits, in order. A running home takes everything aimed up to its epoch (CE-16, CE-26).
    pub(super) fn sift(&mut self, cx: &mut Cx<'_, H>) {
        self.awaiting_bytes = 0;
        for item in std::mem::take(&mut self.awaiting) {
            if self.runs() && item.aim <= self.cur { self.admit(cx, item.what) } else { self.arrived(cx, item) }
        }
        self.set_patience(cx);
    }

    /// At the home: through the gate.
    fn admit(&mut self, cx: &mut Cx<'_, H>, what: What) {
        let (stream, item) = match what {
            What::Probe { origin, route, number } => {
                return cx.report(ShardReport::ProbeAck { origin, shard: self.key, route, number });
            }
            What::Item { stream, item } => (stream, item),
        };
        if cx.env.removed.contains(&stream) {
            return self.undelivered_what(cx, What::Item { stream, item }, DropReason::SenderRemoved);
        }
        let (base, room, mut out) = (self.base, cx.env.limits.room, vec![]);
        match item {
            Item::Msg { tag, mode, envelope } => {
                self.gate.message(stream, base, Held { tag, mode, since: cx.env.now, item: envelope }, room, &mut out);
            }
            Item::Fence { p } => self.gate.fence(stream, base, p, &mut out),
            Item::Over { p, tag } => self.gate.over(stream, base, p, tag, &mut out),
            Item::Settle { tag } => self.gate.settle(stream, tag),
        }
        self.pass(cx, stream, out);
        self.watch_gate(cx);
    }

    /// What waits in the gate has a timer; one that comes first may be gone when it fires.
    pub(super) fn watch_gate(&mut self, cx: &mut Cx<'_, H>) {
        if self.gives_up_at.is_none() && self.gate.held() > 0 {
            self.set_patience(cx);
        }
    }

    pub(super) fn release_removed(&mut self, cx: &mut Cx<'_, H>, stream: NodeId) {
        let mut out = vec![];
        self.gate.removed(stream, &mut out);
        self.pass(cx, stream, out);
    }

    fn pass(&mut self, cx: &mut Cx<'_, H>, stream: NodeId, out: Vec<Out<Envelope>>) {
        for out in out {
            match out {
                Out::Deliver(envelope) => self.deliver(cx, H::Parcel::from_envelope(envelope)),
                Out::Drop(envelope, reason) => self.undelivered(cx, envelope, reason),
                Out::Ack(p) => cx.report(ShardReport::StreamAck { stream, shard: self.key, p }),
            }
        }
    }
}

/// The least epoch that can be the answer.
fn above(aim: Epoch) -> Epoch {
    Epoch(aim.0 + 1).min(Epoch::MAX)
}

/// Along a route.
fn carry(route: &mut Route, what: What, now: Time) -> HandoffItem {
    let (aim, after) = (route.aim, route.after.clone());
    match what {
        What::Item { stream, item } => {
            (route.used, route.probe) = (now, None);
            HandoffItem::Forwarded(Forwarded { aim, after, stream, item })
        }
        What::Probe { origin, route, number } => HandoffItem::Probe { origin, route, number, aim, after },
    }
}

pub(super) fn is_due<H>(item: &HandoffItem, cx: &Cx<'_, H>) -> bool {
    match item {
        HandoffItem::Transfer(_) => true,
        HandoffItem::Forwarded(Forwarded { after, .. }) | HandoffItem::Probe { after, .. } => {
            after.iter().all(|node| cx.env.removed.contains(node))
        }
    }
}

pub(super) fn weight(item: &HandoffItem) -> usize {
    match item {
        HandoffItem::Transfer(chunk) => chunk.bytes.len(),
        HandoffItem::Forwarded(Forwarded { item: Item::Msg { envelope, .. }, .. }) => envelope.bytes(),
        _ => size_of::<HandoffItem>(),
    }
}
