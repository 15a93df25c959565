//! The gate (moves.md section 6): puts what arrives by different paths back into each stream's order.

use std::collections::{BTreeMap, VecDeque};

use crate::{
    Epoch, NodeId,
    proto::handoff::{DropReason, Mode},
};

/// What the gate decided, in order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Out<T> {
    /// Next in its stream.
    Deliver(T),
    /// Refused.
    Drop(T, DropReason),
    /// The path under this tag is closed.
    Ack(Epoch),
}

/// A message that waits for a fence of its stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Held<T> {
    pub tag: Epoch,
    pub mode: Mode,
    pub item: T,
}

/// One stream's entry. Absent = floor zero, nothing held.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Entry<T> {
    /// Tags up to here are over.
    pub floor: Epoch,
    /// By tag, then by arrival.
    pub held: VecDeque<Held<T>>,
}

/// How much may be held.
#[derive(Copy, Clone, Debug)]
pub(super) struct Room {
    pub stream_items: usize,
    pub shard_items: usize,
    pub shard_bytes: usize,
}

/// All streams of one shard.
#[derive(Clone, Debug)]
pub(super) struct Gate<T> {
    entries: BTreeMap<NodeId, Entry<T>>,
    items: usize,
    bytes: usize,
}

impl<T> Default for Gate<T> {
    fn default() -> Self {
        Self { entries: BTreeMap::new(), items: 0, bytes: 0 }
    }
}

/// Size of a held item, for the bound.
pub(super) trait Weight {
    fn bytes(&self) -> usize;
}

impl<T: Weight> Gate<T> {
    /// No stream has an entry: a settled message under the present epoch needs no gate.
    pub fn is_clear(&self) -> bool {
        self.entries.is_empty()
    }

    /// Streams with an entry.
    pub fn streams(&self) -> impl Iterator<Item = NodeId> {
        self.entries.keys().copied()
    }

    /// A message (rules 2 to 6; rule 1 is the caller's, who knows the members).
    pub fn message(&mut self, stream: NodeId, base: Epoch, message: Held<T>, room: Room, out: &mut Vec<Out<T>>) {
        let Held { tag, mode, .. } = message;
        let floor = self.entries.get(&stream).map_or(Epoch::ZERO, |e| e.floor);
        if tag < base {
            return out.push(Out::Drop(message.item, DropReason::HomeLost));
        }
        if tag <= floor {
            return out.push(Out::Drop(message.item, DropReason::Late));
        }
        match mode {
            Mode::Over(p) => {
                self.close(stream, before(tag), tag, base, out);
                out.push(Out::Ack(p));
                out.push(Out::Deliver(message.item));
                self.release(stream, Epoch::MAX, base, out);
            }
            Mode::Wait(p) if p >= base && floor < p => self.hold(stream, message, room, out),
            Mode::Wait(_) => {
                // What is held with a tag up to this one was sent before it; what has a higher tag, after it.
                self.close(stream, before(tag), tag, base, out);
                out.push(Out::Deliver(message.item));
                self.release(stream, Epoch::MAX, base, out);
            }
            Mode::Settled => {
                let behind = self.entries.get(&stream).is_some_and(|e| e.held.iter().any(|h| h.tag <= tag));
                if behind { self.hold(stream, message, room, out) } else { out.push(Out::Deliver(message.item)) }
            }
        }
    }

    /// Rule 7.
    pub fn fence(&mut self, stream: NodeId, base: Epoch, p: Epoch, out: &mut Vec<Out<T>>) {
        self.close(stream, p, Epoch::MAX, base, out);
        out.push(Out::Ack(p));
    }

    /// Rule 8. Everything held under tags up to `tag` waits for a lower one, so raising the floor below `tag` releases it all;
    /// a newer message waits for a fence that its sender still repeats.
    pub fn over(&mut self, stream: NodeId, base: Epoch, p: Epoch, tag: Epoch, out: &mut Vec<Out<T>>) {
        self.close(stream, before(tag), Epoch::MAX, base, out);
        out.push(Out::Ack(p));
    }

    /// Rule 9.
    pub fn settle(&mut self, stream: NodeId, tag: Epoch) {
        if self.entries.get(&stream).is_some_and(|e| e.held.is_empty() && e.floor < tag) {
            self.entries.remove(&stream);
        }
    }

    /// Rule 10: the sender's node is gone, so nothing comes that would have to go first.
    pub fn removed(&mut self, stream: NodeId, out: &mut Vec<Out<T>>) {
        if let Some(entry) = self.entries.remove(&stream) {
            for held in entry.held {
                self.items -= 1;
                self.bytes -= held.item.bytes();
                out.push(if held.tag <= entry.floor { Out::Drop(held.item, DropReason::Late) } else { Out::Deliver(held.item) });
            }
        }
    }

    /// Everything, to travel or to be given up.
    pub fn take(&mut self) -> BTreeMap<NodeId, Entry<T>> {
        (self.items, self.bytes) = (0, 0);
        std::mem::take(&mut self.entries)
    }

    /// Puts in an entry's floor that travelled here.
    pub fn adopt_floor(&mut self, stream: NodeId, floor: Epoch) {
        let entry = self.entry(stream);
        entry.floor = entry.floor.max(floor);
    }

    /// Puts in a held message that travelled here, behind those that came before it. Never refused: it was within bounds where it comes from.
    pub fn adopt_held(&mut self, stream: NodeId, held: Held<T>) {
        self.items += 1;
        self.bytes += held.item.bytes();
        self.entry(stream).held.push_back(held);
    }

    /// Asserts that the totals are those of the entries, and each queue in the order of tags.
    pub fn check(&self) {
        let all = || self.entries.values().flat_map(|e| &e.held);
        assert_eq!(all().count(), self.items, "held items");
        assert_eq!(all().map(|h| h.item.bytes()).sum::<usize>(), self.bytes, "held bytes");
    }

    fn entry(&mut self, stream: NodeId) -> &mut Entry<T> {
        self.entries.entry(stream).or_insert_with(|| Entry { floor: Epoch::ZERO, held: VecDeque::new() })
    }

    fn hold(&mut self, stream: NodeId, message: Held<T>, room: Room, out: &mut Vec<Out<T>>) {
        let bytes = message.item.bytes();
        let full = self.items >= room.shard_items || self.bytes + bytes > room.shard_bytes;
        let entry = self.entry(stream);
        if full || entry.held.len() >= room.stream_items {
            return out.push(Out::Drop(message.item, DropReason::HeldFull));
        }
        let at = entry.held.iter().rposition(|h| h.tag <= message.tag).map_or(0, |at| at + 1);
        entry.held.insert(at, message);
        self.items += 1;
        self.bytes += bytes;
    }

    fn close(&mut self, stream: NodeId, floor: Epoch, upto: Epoch, base: Epoch, out: &mut Vec<Out<T>>) {
        self.adopt_floor(stream, floor);
        self.release(stream, upto, base, out);
    }

    /// Delivers from the front what waits for nothing any more, of tags up to `upto`.
    fn release(&mut self, stream: NodeId, upto: Epoch, base: Epoch, out: &mut Vec<Out<T>>) {
        let Some(entry) = self.entries.get_mut(&stream) else { return };
        while let Some(front) = entry.held.front() {
            let free = match front.mode {
                Mode::Wait(p) => p < base || p <= entry.floor,
                Mode::Settled | Mode::Over(_) => true,
            };
            if !free || front.tag > upto {
                break;
            }
            let Some(held) = entry.held.pop_front() else { break };
            self.items -= 1;
            self.bytes -= held.item.bytes();
            if held.tag < base {
                out.push(Out::Drop(held.item, DropReason::HomeLost));
            } else if held.tag <= entry.floor {
                out.push(Out::Drop(held.item, DropReason::Late));
            } else {
                if matches!(held.mode, Mode::Wait(_)) {
                    entry.floor = entry.floor.max(before(held.tag));
                }
                out.push(Out::Deliver(held.item));
            }
        }
    }
}

fn before(tag: Epoch) -> Epoch {
    Epoch(tag.0.saturating_sub(1))
}
