//! The network thread's side of a lane with two exits (moves.md section 13, X3, X6, X7).

use std::collections::{BTreeMap, VecDeque};

use crate::{
    Epoch, ShardKey,
    proto::{handoff::Envelope, shard::LaneId},
};

/// One thing from a lane's ring to the network thread: what it enters by, the message, what it leaves by.
#[derive(Debug, Default)]
pub(crate) struct Passage {
    pub enter: Option<Epoch>,
    pub envelope: Option<Envelope>,
    pub leave: Option<Epoch>,
}

/// What a lane lets through.
#[derive(Debug, PartialEq)]
pub(crate) enum Passed {
    /// A free item: goes into NET.
    Item(Envelope),
    /// `Leave(k)` was met: the worker is to be told `Open(k)`.
    Leave(Epoch),
    /// No room to hold it.
    Refused(Envelope),
}

/// What is kept of lanes around a change of exit. Empty at rest.
#[derive(Debug)]
pub(crate) struct Lanes {
    lanes: BTreeMap<(LaneId, ShardKey), Lane>,
    room: Room,
}

#[derive(Debug)]
struct Room {
    /// Messages held, of all lanes, and their bytes.
    held: usize,
    bytes: usize,
    held_max: usize,
    lane_max: usize,
}

/// Bytes of all messages held.
const HELD_BYTES: usize = 64 << 20;

#[derive(Debug, Default)]
struct Lane {
    /// Held since `Enter(k)`, until `Left(k)`.
    hold: Option<(Epoch, VecDeque<Passage>)>,
    messages: usize,
    bytes: usize,
    /// `Left(k)` that came before its `Enter(k)`.
    left: Vec<Epoch>,
}

impl Lanes {
    pub fn new(held_max: usize, lane_max: usize) -> Self {
        Self { lanes: BTreeMap::new(), room: Room { held: 0, bytes: 0, held_max, lane_max } }
    }

    /// True if nothing of this lane is kept: its id may be used anew.
    pub fn is_free(&self, lane: LaneId) -> bool {
        let first = ShardKey { ty: crate::TypeId(0), shard: crate::ShardId(0) };
        self.lanes.range((lane, first)..).next().is_none_or(|((id, _), _)| *id != lane)
    }

    pub fn held(&self) -> usize {
        self.room.held
    }

    /// Something from the lane's ring.
    pub fn pass(&mut self, lane: LaneId, shard: ShardKey, passage: Passage, out: &mut Vec<Passed>) {
        if passage.enter.is_none() && (self.lanes.is_empty() || !self.lanes.contains_key(&(lane, shard))) {
            return let_through(passage, out);
        }
        self.lanes.entry((lane, shard)).or_default().step(passage, &mut self.room, true, out);
        self.tidy(lane, shard);
    }

    /// `Left(lane, shard, k)` from the worker: everything that went back is in NET.
    pub fn left(&mut self, lane: LaneId, shard: ShardKey, k: Epoch, out: &mut Vec<Passed>) {
        let state = self.lanes.entry((lane, shard)).or_default();
        match state.hold.take() {
            Some((entered, queue)) if entered == k => {
                self.room.held -= state.messages;
                self.room.bytes -= state.bytes;
                (state.messages, state.bytes) = (0, 0);
                for passage in queue {
                    // What was held once has its room; it may have to wait for another change.
                    state.step(passage, &mut self.room, false, out);
                }
            }
            hold => {
                state.hold = hold;
                state.left.push(k);
            }
        }
        self.tidy(lane, shard);
    }

    fn tidy(&mut self, lane: LaneId, shard: ShardKey) {
        if self.lanes.get(&(lane, shard)).is_some_and(|l| l.hold.is_none() && l.left.is_empty()) {
            self.lanes.remove(&(lane, shard));
        }
    }

    /// Gives everything up (the node's membership is over).
    pub fn drain(&mut self) -> impl Iterator<Item = Envelope> {
        (self.room.held, self.room.bytes) = (0, 0);
        std::mem::take(&mut self.lanes).into_values().flat_map(|l| l.hold.map(|(_, q)| q).unwrap_or_default()).filter_map(|p| p.envelope)
    }

    pub fn check(&self) {
        let held = self.lanes.values().map(|l| (l.messages, l.bytes)).fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1));
        assert_eq!(held, (self.room.held, self.room.bytes), "held messages are counted");
        for lane in self.lanes.values() {
            assert!(lane.left.len() <= 1, "an exit is left once before the other is entered");
            let queued = || lane.hold.iter().flat_map(|(_, q)| q).filter_map(|p| p.envelope.as_ref());
            let counted = (queued().count(), queued().map(Envelope::size).sum());
            assert_eq!(counted, (lane.messages, lane.bytes), "held messages of a lane are counted");
        }
    }
}

impl Lane {
    fn step(&mut self, mut passage: Passage, room: &mut Room, bounded: bool, out: &mut Vec<Passed>) {
        if self.hold.is_none()
            && let Some(k) = passage.enter
        {
            match self.left.iter().position(|&left| left == k) {
                Some(at) => drop(self.left.swap_remove(at)),
                None => self.hold = Some((k, VecDeque::new())),
            }
            passage.enter = None;
        }
        let Some((_, queue)) = &mut self.hold else { return let_through(passage, out) };
        if let Some(bytes) = passage.envelope.as_ref().map(Envelope::size) {
            if bounded && (room.held >= room.held_max || self.messages >= room.lane_max || room.bytes + bytes > HELD_BYTES) {
                // The newest message is refused, never its tokens.
                out.extend(passage.envelope.take().map(Passed::Refused));
            } else {
                (room.held, room.bytes) = (room.held + 1, room.bytes + bytes);
                (self.messages, self.bytes) = (self.messages + 1, self.bytes + bytes);
            }
        }
        if passage.enter.is_some() || passage.envelope.is_some() || passage.leave.is_some() {
            queue.push_back(passage);
        }
    }
}

fn let_through(passage: Passage, out: &mut Vec<Passed>) {
    out.extend(passage.envelope.map(Passed::Item));
    out.extend(passage.leave.map(Passed::Leave));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ShardId, TypeId};

    const S: ShardKey = ShardKey { ty: TypeId(1), shard: ShardId(2) };
    const L: LaneId = LaneId(7);

    fn message(n: u8) -> Envelope {
        Envelope::new(S, None, b"k", &[n]).expect("the key is short")
    }

    fn item(n: u8, enter: Option<u64>) -> Passage {
        Passage { enter: enter.map(Epoch), envelope: Some(message(n)), leave: None }
    }

    fn run(lanes: &mut Lanes, f: impl FnOnce(&mut Lanes, &mut Vec<Passed>)) -> Vec<Passed> {
        let mut out = vec![];
        f(lanes, &mut out);
        lanes.check();
        out
    }

    fn pass(lanes: &mut Lanes, passage: Passage) -> Vec<Passed> {
        run(lanes, |lanes, out| lanes.pass(L, S, passage, out))
    }

    fn left(lanes: &mut Lanes, k: u64) -> Vec<Passed> {
        run(lanes, |lanes, out| lanes.left(L, S, Epoch(k), out))
    }

    #[test]
    fn a_free_lane_is_not_kept() {
        let mut lanes = Lanes::new(10, 10);
        assert_eq!(pass(&mut lanes, item(0, None)), [Passed::Item(message(0))]);
        let leave = Passage { leave: Some(Epoch(1)), ..Passage::default() };
        assert_eq!(pass(&mut lanes, leave), [Passed::Leave(Epoch(1))]);
        assert!(lanes.is_free(L));
    }

    #[test]
    fn an_exit_is_entered_when_the_other_is_drained() {
        let mut lanes = Lanes::new(10, 10);
        assert_eq!(pass(&mut lanes, item(1, Some(1))), [], "L2: m0 may still be in the worker's ring");
        assert_eq!(pass(&mut lanes, item(2, None)), []);
        assert!(!lanes.is_free(L) && lanes.is_free(LaneId(8)) && lanes.is_free(LaneId(6)));
        assert_eq!(left(&mut lanes, 1), [Passed::Item(message(1)), Passed::Item(message(2))]);
        assert!(lanes.is_free(L));
    }

    #[test]
    fn left_may_come_first() {
        let mut lanes = Lanes::new(10, 10);
        assert_eq!(left(&mut lanes, 1), []);
        assert_eq!(pass(&mut lanes, item(1, Some(1))), [Passed::Item(message(1))]);
        assert!(lanes.is_free(L));
    }

    #[test]
    fn tokens_wait_behind_what_is_held() {
        let mut lanes = Lanes::new(10, 10);
        pass(&mut lanes, item(1, Some(1)));
        let leave = Passage { leave: Some(Epoch(3)), ..Passage::default() };
        assert_eq!(pass(&mut lanes, leave), []);
        assert_eq!(pass(&mut lanes, item(2, Some(3))), [], "entered again before the first change was over");
        assert_eq!(left(&mut lanes, 1), [Passed::Item(message(1)), Passed::Leave(Epoch(3))]);
        assert_eq!(left(&mut lanes, 3), [Passed::Item(message(2))]);
        assert!(lanes.is_free(L));
    }

    #[test]
    fn through_holds_only_the_second_exit_back() {
        let mut lanes = Lanes::new(10, 10);
        let through = || Passage { enter: Some(Epoch(1)), envelope: None, leave: Some(Epoch(3)) };
        assert_eq!(pass(&mut lanes, through()), [], "L8: what went back under 1 is to be in NET first");
        assert_eq!(left(&mut lanes, 1), [Passed::Leave(Epoch(3))]);
        assert!(lanes.is_free(L));
    }

    #[test]
    fn overflow_refuses_the_newest_message_but_never_a_token() {
        let mut lanes = Lanes::new(10, 1);
        pass(&mut lanes, item(1, Some(1)));
        assert_eq!(pass(&mut lanes, item(2, None)), [Passed::Refused(message(2))]);
        let leave = Passage { leave: Some(Epoch(3)), ..Passage::default() };
        assert_eq!(pass(&mut lanes, leave), []);
        assert_eq!(pass(&mut lanes, item(3, Some(3))), [Passed::Refused(message(3))]);
        assert_eq!(left(&mut lanes, 1), [Passed::Item(message(1)), Passed::Leave(Epoch(3))]);
        assert_eq!(pass(&mut lanes, item(4, None)), [], "the refused message has left its Enter behind (L9)");
        assert_eq!(left(&mut lanes, 3), [Passed::Item(message(4))]);
    }

    #[test]
    fn the_node_bounds_all_lanes_together_and_a_first_item_leaves_its_enter() {
        let mut lanes = Lanes::new(1, 10);
        pass(&mut lanes, item(1, Some(1)));
        let other = run(&mut lanes, |lanes, out| lanes.pass(LaneId(9), S, item(2, Some(1)), out));
        assert_eq!(other, [Passed::Refused(message(2))]);
        assert!(!lanes.is_free(LaneId(9)), "its Enter waits for Left");
        let released = run(&mut lanes, |lanes, out| lanes.left(LaneId(9), S, Epoch(1), out));
        assert_eq!(released, []);
        assert!(lanes.is_free(LaneId(9)));
    }

    // failures: row 40
    #[test]
    fn long_messages_are_held_up_to_their_bytes() {
        let mut lanes = Lanes::new(1000, 1000);
        let long = |enter: Option<u64>| Passage {
            enter: enter.map(Epoch),
            envelope: Envelope::new(S, None, b"k", &vec![0; HELD_BYTES / 2 - 1000]),
            leave: None,
        };
        assert_eq!((pass(&mut lanes, long(Some(1))), pass(&mut lanes, long(None))), (vec![], vec![]));
        assert!(matches!(pass(&mut lanes, long(None))[..], [Passed::Refused(_)]));
        assert_eq!(pass(&mut lanes, item(1, None)), [], "a short one has room still");
        assert_eq!(left(&mut lanes, 1).len(), 3);
        assert_eq!((lanes.room.held, lanes.room.bytes), (0, 0));
    }
}
