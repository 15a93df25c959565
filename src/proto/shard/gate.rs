//! The gate (moves.md section 6): puts what arrives by different paths back into each stream's order.

use std::collections::VecDeque;

use crate::{
    Epoch, NodeId, Time,
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
    /// When it came to this home.
    pub since: Time,
    pub item: T,
}

impl<T> Held<T> {
    /// The path whose fence it waits for itself.
    fn fence(&self) -> Option<Epoch> {
        if let Mode::Wait(p) = self.mode { Some(p) } else { None }
    }
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
    entries: Entries<T>,
    items: usize,
    bytes: usize,
}

impl<T> Default for Gate<T> {
    fn default() -> Self {
        Self { entries: Entries(vec![]), items: 0, bytes: 0 }
    }
}

/// By stream, with room for those that are there and no more. A stream that lost a home keeps its entry here until its node is removed, so that after
/// some crashes most shards have one, for good: a tree takes the same room for one as for eleven.
#[derive(Clone, Debug)]
struct Entries<T>(Vec<(NodeId, Entry<T>)>);

impl<T> Entries<T> {
    fn at(&self, stream: NodeId) -> Result<usize, usize> {
        self.0.binary_search_by_key(&stream, |(of, _)| *of)
    }

    fn get(&self, stream: NodeId) -> Option<&Entry<T>> {
        self.at(stream).ok().map(|at| &self.0[at].1)
    }

    fn get_mut(&mut self, stream: NodeId) -> Option<&mut Entry<T>> {
        self.at(stream).ok().map(|at| &mut self.0[at].1)
    }

    /// Made if there is none.
    fn entry(&mut self, stream: NodeId) -> &mut Entry<T> {
        let at = self.at(stream).unwrap_or_else(|at| {
            if self.0.len() == self.0.capacity() {
                self.0.reserve_exact((self.0.len() / 4).max(1));
            }
            self.0.insert(at, (stream, Entry { floor: Epoch::ZERO, held: VecDeque::new() }));
            at
        });
        &mut self.0[at].1
    }

    fn remove(&mut self, stream: NodeId) -> Option<Entry<T>> {
        let (_, entry) = self.0.remove(self.at(stream).ok()?);
        if self.0.is_empty() {
            self.0 = vec![];
        }
        Some(entry)
    }
}

/// Size of a held item, for the bound.
pub(super) trait Weight {
    fn bytes(&self) -> usize;
}

impl<T: Weight> Gate<T> {
    /// No stream has an entry: a settled message under the present epoch needs no gate.
    pub fn is_clear(&self) -> bool {
        self.entries.0.is_empty()
    }

    /// Streams with an entry.
    pub fn streams(&self) -> impl Iterator<Item = NodeId> {
        self.entries.0.iter().map(|(stream, _)| *stream)
    }

    /// Messages held.
    pub fn held(&self) -> usize {
        self.items
    }

    /// Since when the one that came first of those has waited for its fence; others wait behind it.
    pub fn first_held(&self) -> Option<Time> {
        self.entries.0.iter().flat_map(|(_, e)| &e.held).filter(|held| held.fence().is_some()).map(|held| held.since).min()
    }

    /// A message (rules 2 to 6; rule 1 is the caller's, who knows the members).
    pub fn message(&mut self, stream: NodeId, base: Epoch, message: Held<T>, room: Room, out: &mut Vec<Out<T>>) {
        let Held { tag, mode, .. } = message;
        let floor = self.entries.get(stream).map_or(Epoch::ZERO, |e| e.floor);
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
                let behind = self.entries.get(stream).is_some_and(|e| e.held.iter().any(|h| h.tag <= tag));
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

    /// Streams whose fence has been waited for since then or longer: its sender may not reach this home any more, and be no less a member for that. What
    /// comes by the old path afterwards is late, as if the sender had given that up.
    pub fn lapse(&mut self, then: Time, base: Epoch) -> Vec<(NodeId, Vec<Out<T>>)> {
        let lapsed = self.entries.0.iter().filter_map(|(stream, entry)| {
            let last = entry.held.iter().rposition(|held| held.fence().is_some() && held.since <= then)?;
            Some((*stream, entry.held.range(..=last).filter_map(Held::fence).max()?))
        });
        let lapsed: Vec<_> = lapsed.collect();
        let close = |(stream, p)| {
            let mut out = vec![];
            self.close(stream, p, Epoch::MAX, base, &mut out);
            (stream, out)
        };
        lapsed.into_iter().map(close).collect()
    }

    /// Rule 9.
    pub fn settle(&mut self, stream: NodeId, tag: Epoch) {
        if self.entries.get(stream).is_some_and(|e| e.held.is_empty() && e.floor < tag) {
            self.entries.remove(stream);
        }
    }

    /// Rule 10: the sender's node is gone, so nothing comes that would have to go first.
    pub fn removed(&mut self, stream: NodeId, out: &mut Vec<Out<T>>) {
        if let Some(entry) = self.entries.remove(stream) {
            for held in entry.held {
                self.items -= 1;
                self.bytes -= held.item.bytes();
                out.push(if held.tag <= entry.floor { Out::Drop(held.item, DropReason::Late) } else { Out::Deliver(held.item) });
            }
        }
    }

    /// Everything, to travel or to be given up.
    pub fn take(&mut self) -> Vec<(NodeId, Entry<T>)> {
        (self.items, self.bytes) = (0, 0);
        std::mem::take(&mut self.entries.0)
    }

    /// Puts in an entry's floor that travelled here.
    pub fn adopt_floor(&mut self, stream: NodeId, floor: Epoch) {
        let entry = self.entry(stream);
        entry.floor = entry.floor.max(floor);
    }

    /// Puts in a held message that travelled here, behind those that came before it. Never refused: it was within bounds where it comes from.
    pub fn adopt_held(&mut self, now: Time, stream: NodeId, held: Held<T>) {
        self.items += 1;
        self.bytes += held.item.bytes();
        self.entry(stream).held.push_back(Held { since: now, ..held });
    }

    /// Asserts that the totals are those of the entries, and each queue in the order of tags.
    pub fn check(&self) {
        let all = || self.entries.0.iter().flat_map(|(_, e)| &e.held);
        assert_eq!(all().count(), self.items, "held items");
        assert_eq!(all().map(|h| h.item.bytes()).sum::<usize>(), self.bytes, "held bytes");
    }

    fn entry(&mut self, stream: NodeId) -> &mut Entry<T> {
        self.entries.entry(stream)
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
        let Some(entry) = self.entries.get_mut(stream) else { return };
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
        if entry.held.is_empty() {
            // The entry may stay for long.
            entry.held = VecDeque::new();
        }
    }
}

fn before(tag: Epoch) -> Epoch {
    Epoch(tag.0.saturating_sub(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Weight for &'static str {
        fn bytes(&self) -> usize {
            self.len()
        }
    }

    const R: NodeId = NodeId::from_raw(1);
    const ROOM: Room = Room { stream_items: 3, shard_items: 4, shard_bytes: 20 };

    #[derive(Default)]
    struct Bed {
        gate: Gate<&'static str>,
        base: u64,
        now: Time,
    }

    impl Bed {
        fn on(&mut self, stream: NodeId, tag: u64, mode: Mode, item: &'static str) -> Vec<Out<&'static str>> {
            let mut out = vec![];
            self.gate.message(stream, Epoch(self.base), Held { tag: Epoch(tag), mode, since: self.now, item }, ROOM, &mut out);
            self.gate.check();
            out
        }
        fn msg(&mut self, tag: u64, mode: Mode, item: &'static str) -> Vec<Out<&'static str>> {
            self.on(R, tag, mode, item)
        }
        fn fence(&mut self, p: u64) -> Vec<Out<&'static str>> {
            let mut out = vec![];
            self.gate.fence(R, Epoch(self.base), Epoch(p), &mut out);
            self.gate.check();
            out
        }
        fn over(&mut self, p: u64, tag: u64) -> Vec<Out<&'static str>> {
            let mut out = vec![];
            self.gate.over(R, Epoch(self.base), Epoch(p), Epoch(tag), &mut out);
            self.gate.check();
            out
        }
    }

    fn wait(p: u64) -> Mode {
        Mode::Wait(Epoch(p))
    }

    fn run(items: &[&'static str]) -> Vec<Out<&'static str>> {
        items.iter().map(|i| Out::Deliver(*i)).collect()
    }

    fn and_ack(items: &[&'static str], p: u64) -> Vec<Out<&'static str>> {
        let mut out = run(items);
        out.push(Out::Ack(Epoch(p)));
        out
    }

    #[test]
    fn a_fence_is_not_waited_for_for_ever() {
        let mut bed = Bed { now: Time::from_nanos(5), ..Bed::default() };
        assert_eq!(bed.msg(2, wait(1), "m"), []);
        assert_eq!(bed.msg(2, Mode::Settled, "n"), []);
        bed.now = Time::from_nanos(6);
        assert_eq!(bed.on(NodeId::from_raw(2), 2, wait(1), "of another"), []);
        assert_eq!(bed.gate.first_held(), Some(Time::from_nanos(5)));
        assert_eq!(bed.gate.lapse(Time::from_nanos(4), Epoch(0)), []);
        assert_eq!(bed.gate.lapse(Time::from_nanos(5), Epoch(0)), [(R, run(&["m", "n"]))]);
        bed.gate.check();
        assert_eq!((bed.gate.held(), bed.gate.first_held()), (1, Some(Time::from_nanos(6))));
        assert_eq!(bed.msg(1, Mode::Settled, "old"), [Out::Drop("old", DropReason::Late)]);
        assert_eq!(bed.msg(2, wait(1), "next"), run(&["next"]));
        assert_eq!(bed.fence(1), and_ack(&[], 1), "its sender learns of it");
    }

    #[test]
    fn rule_2_tags_below_the_base_are_lost_with_their_home() {
        let mut bed = Bed { base: 3, ..Bed::default() };
        assert_eq!(bed.msg(2, Mode::Settled, "m"), [Out::Drop("m", DropReason::HomeLost)]);
        assert_eq!(bed.msg(3, wait(2), "n"), run(&["n"]), "nothing can come from below the base: no need to wait for it");
    }

    #[test]
    fn rule_3_tags_up_to_the_floor_are_late() {
        let mut bed = Bed::default();
        assert_eq!(bed.fence(2), and_ack(&[], 2));
        assert_eq!(bed.msg(2, Mode::Settled, "m"), [Out::Drop("m", DropReason::Late)]);
        assert_eq!(bed.msg(3, Mode::Settled, "n"), run(&["n"]));
    }

    #[test]
    fn rule_4_over_closes_what_is_below_its_tag() {
        let mut bed = Bed::default();
        assert_eq!(bed.msg(3, wait(2), "a"), []);
        assert_eq!(bed.msg(3, Mode::Over(Epoch(2)), "b"), [Out::Deliver("a"), Out::Ack(Epoch(2)), Out::Deliver("b")]);
        assert_eq!(bed.msg(2, Mode::Settled, "m"), [Out::Drop("m", DropReason::Late)]);
        assert_eq!(bed.msg(3, Mode::Over(Epoch(2)), "c"), [Out::Ack(Epoch(2)), Out::Deliver("c")], "acknowledged each time");
    }

    #[test]
    fn rule_5_waits_for_its_fence_and_not_after_it() {
        let mut bed = Bed::default();
        assert_eq!(bed.msg(2, wait(1), "a"), []);
        assert_eq!(bed.msg(1, Mode::Settled, "old"), run(&["old"]), "this is what is waited for");
        assert_eq!(bed.fence(1), and_ack(&["a"], 1));
        assert_eq!(bed.msg(2, wait(1), "b"), run(&["b"]));
        let mut bed = Bed::default();
        bed.fence(3);
        assert_eq!(bed.msg(5, wait(3), "c"), run(&["c"]));
        assert_eq!(bed.msg(4, Mode::Settled, "d"), [Out::Drop("d", DropReason::Late)], "delivered under 5: all below is over");
    }

    #[test]
    fn rule_6_a_settled_message_stays_behind_what_is_held() {
        let mut bed = Bed::default();
        bed.msg(2, wait(1), "a");
        assert_eq!(bed.msg(2, Mode::Settled, "b"), []);
        assert_eq!(bed.msg(1, Mode::Settled, "old"), run(&["old"]));
        assert_eq!(bed.fence(1), and_ack(&["a", "b"], 1));
    }

    #[test]
    fn rule_7_a_repeated_fence_is_acknowledged_again() {
        let mut bed = Bed::default();
        assert_eq!((bed.fence(1), bed.fence(1)), (and_ack(&[], 1), and_ack(&[], 1)));
        bed.msg(3, wait(2), "a");
        assert_eq!(bed.fence(1), and_ack(&[], 1), "an older fence releases nothing");
        assert_eq!(bed.fence(2), and_ack(&["a"], 2));
    }

    #[test]
    fn rule_8_over_without_a_message_releases_what_waits_for_lower_tags_only() {
        let mut bed = Bed::default();
        bed.msg(3, wait(1), "a");
        bed.msg(4, wait(3), "b");
        assert_eq!(bed.over(1, 3), and_ack(&["a"], 1));
        assert_eq!(bed.fence(3), and_ack(&["b"], 3));
    }

    #[test]
    fn rule_9_settle_forgets_only_what_has_nothing_left_to_guard() {
        let mut bed = Bed::default();
        bed.fence(2);
        bed.gate.settle(R, Epoch(2));
        assert!(!bed.gate.is_clear(), "a tag at the floor is not above it");
        bed.msg(4, wait(3), "a");
        bed.gate.settle(R, Epoch(4));
        assert!(!bed.gate.is_clear());
        bed.fence(3);
        bed.gate.settle(R, Epoch(4));
        assert!(bed.gate.is_clear());
    }

    #[test]
    fn rule_10_a_removed_sender_leaves_nothing_behind() {
        let mut bed = Bed::default();
        bed.msg(2, wait(1), "a");
        bed.msg(3, wait(2), "b");
        let mut out = vec![];
        bed.gate.removed(R, &mut out);
        assert_eq!(out, run(&["a", "b"]));
        assert!(bed.gate.is_clear());
        bed.gate.check();
    }

    #[test]
    fn held_messages_are_bounded_per_stream_and_shard_and_the_newest_is_refused() {
        let mut bed = Bed::default();
        assert_eq!([bed.msg(2, wait(1), "a"), bed.msg(2, wait(1), "b"), bed.msg(2, wait(1), "c")].concat(), []);
        assert_eq!(bed.msg(2, wait(1), "d"), [Out::Drop("d", DropReason::HeldFull)]);
        let other = NodeId::from_raw(2);
        assert_eq!(bed.on(other, 2, wait(1), "a"), []);
        assert_eq!(bed.on(other, 2, wait(1), "b"), [Out::Drop("b", DropReason::HeldFull)]);
        assert_eq!(bed.fence(1), and_ack(&["a", "b", "c"], 1), "a gap, no reorder");
        assert_eq!(bed.msg(3, wait(2), "more than twenty bytes long"), [Out::Drop("more than twenty bytes long", DropReason::HeldFull)]);
    }

    #[test]
    fn an_entry_that_stays_takes_no_more_room_than_it_needs() {
        let mut bed = Bed::default();
        let room = |bed: &Bed| bed.gate.entries.0.capacity();
        assert_eq!(room(&bed), 0);
        bed.msg(2, wait(1), "m");
        assert_eq!(bed.fence(1), and_ack(&["m"], 1));
        assert_eq!(room(&bed), 1);
        let held = bed.gate.entries.get(R).map(|entry| entry.held.capacity());
        assert_eq!(held, Some(0), "what was held is gone");
        for stream in 2..=100 {
            bed.gate.adopt_floor(NodeId::from_raw(stream), Epoch(1));
        }
        assert!(room(&bed) <= 125, "{} for 100", room(&bed));
        assert!(bed.gate.streams().is_sorted());
        for stream in 1..=100 {
            bed.gate.removed(NodeId::from_raw(stream), &mut vec![]);
        }
        assert_eq!(room(&bed), 0, "no memory for no streams");
    }
}
