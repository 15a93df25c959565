//! The table of moves.md section 4: which record follows which event.

use std::collections::{BTreeMap, VecDeque};

use crate::{
    Epoch, NodeId, ShardKey, Time,
    proto::sharding::{ControlFrame, Record, ShardState},
};

/// So many nodes that asked for a shard are told of its new homes; others learn it from those that forward, or ask again.
const INTERESTED_MAX: usize = 32;

/// What the authority keeps of one shard.
#[derive(Debug, Default)]
pub(super) struct Row {
    /// The newest record; `None` = nobody owns it.
    pub record: Option<Record>,
    /// Highest epoch ever used, or heard of.
    pub floor: Epoch,
    /// Since when it is under way from an earlier owner, and from which.
    pub moving: Option<(Time, NodeId)>,
    /// When the record was confirmed.
    pub confirmed_at: Time,
    /// Not moved by the authority's own choice before this.
    pub not_before: Time,
    /// The owner's right to run may last until then.
    pub hold: Option<Time>,
    /// A slow move was reported.
    pub reported: bool,
    pub entities: u32,
    pub rate_per_s: f32,
    interested: VecDeque<NodeId>,
}

/// The record that follows a removal or a refusal: its epoch is the next one.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Successor {
    /// At this node, with this base.
    At { home: NodeId, base: Base },
    /// At any host, without state.
    Any,
}

/// Base of a successor.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Base {
    /// That of the record before.
    Unchanged,
    /// Epoch of the record before.
    Former,
    /// The epoch of the new record: a start without state.
    New,
}

impl Row {
    /// A row without an owner, whose epochs begin above `floor`.
    pub fn new(floor: Epoch, now: Time) -> Self {
        Self { floor, confirmed_at: now, ..Self::default() }
    }

    /// Remembers who is to hear of the next record.
    pub fn interest(&mut self, node: NodeId) {
        if !self.interested.contains(&node) {
            if self.interested.len() == INTERESTED_MAX {
                self.interested.pop_front();
            }
            self.interested.push_back(node);
        }
    }

    pub fn interested(&self) -> impl Iterator<Item = NodeId> {
        self.interested.iter().copied()
    }

    pub fn forget(&mut self, node: NodeId) {
        self.interested.retain(|&n| n != node);
    }

    /// Who runs it, if that is settled: what may be moved.
    pub fn settled_home(&self) -> Option<NodeId> {
        self.record.filter(|r| r.confirmed && self.hold.is_none()).map(|r| r.home)
    }

    /// What who asks for its home is told; `None` while that may not be named.
    pub fn route(&self, shard: ShardKey, removed: &BTreeMap<NodeId, Time>) -> Option<ControlFrame> {
        let record = self.record.filter(|r| self.hold.is_none() && !removed.contains_key(&r.home))?;
        Some(ControlFrame::Route { shard, epoch: record.epoch, home: record.home })
    }

    pub fn state(&self) -> ShardState {
        match self.record {
            None => ShardState::Unowned,
            Some(_) if self.hold.is_some() => ShardState::Unowned,
            Some(Record { confirmed: true, .. }) => ShardState::Active,
            Some(_) if self.moving.is_some() => ShardState::Moving,
            Some(_) => ShardState::Starting,
        }
    }
}

/// Rows "n removed", "A removed", "B removed", "both removed"; `None` if the record stands.
pub(super) fn after_removal(record: &Record, is_gone: impl Fn(NodeId) -> bool) -> Option<Successor> {
    let home_gone = is_gone(record.home);
    match record.from.filter(|_| !record.confirmed) {
        None => home_gone.then_some(Successor::Any),
        Some(from) => match (is_gone(from), home_gone) {
            (false, false) => None,
            (true, false) => Some(Successor::At { home: record.home, base: Base::Former }),
            (false, true) => Some(Successor::At { home: from, base: Base::New }),
            (true, true) => Some(Successor::Any),
        },
    }
}

/// Row "MoveRefused by A"; `None` if that is not a move of this record.
pub(super) fn after_refusal(record: &Record, epoch: Epoch, by: NodeId) -> Option<Successor> {
    (record.epoch == epoch && !record.confirmed && record.from == Some(by)).then_some(Successor::At { home: by, base: Base::Unchanged })
}

impl Base {
    pub fn of(self, former: &Record, epoch: Epoch) -> Epoch {
        match self {
            Self::Unchanged => former.base,
            Self::Former => former.epoch,
            Self::New => epoch,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: NodeId = NodeId::from_raw(1);
    const B: NodeId = NodeId::from_raw(2);

    fn record(from: Option<NodeId>, home: NodeId, confirmed: bool) -> Record {
        Record { epoch: Epoch(7), home, from, base: Epoch(3), confirmed }
    }

    fn base(successor: Option<Successor>, former: &Record) -> Option<(NodeId, u64)> {
        match successor {
            Some(Successor::At { home, base }) => Some((home, base.of(former, Epoch(8)).get())),
            _ => None,
        }
    }

    #[test]
    fn removals_follow_the_table() {
        for confirmed in [false, true] {
            let at_a = record(None, A, confirmed);
            assert_eq!(after_removal(&at_a, |n| n == A), Some(Successor::Any));
            assert_eq!(after_removal(&at_a, |n| n == B), None);
        }
        let moving = record(Some(A), B, false);
        assert_eq!(base(after_removal(&moving, |n| n == A), &moving), Some((B, 7)), "B may have it: base is the move's epoch");
        assert_eq!(base(after_removal(&moving, |n| n == B), &moving), Some((A, 8)), "A keeps running, or starts without state");
        assert_eq!(after_removal(&moving, |_| true), Some(Successor::Any));
        assert_eq!(after_removal(&moving, |_| false), None);
        let moved = record(Some(A), B, true);
        assert_eq!(after_removal(&moved, |n| n == A), None, "a confirmed move has one owner");
    }

    #[test]
    fn only_the_old_home_refuses_and_only_its_move() {
        let moving = record(Some(A), B, false);
        assert_eq!(base(after_refusal(&moving, Epoch(7), A), &moving), Some((A, 3)));
        assert_eq!(after_refusal(&moving, Epoch(6), A), None);
        assert_eq!(after_refusal(&moving, Epoch(7), B), None);
        assert_eq!(after_refusal(&record(Some(A), B, true), Epoch(7), A), None);
    }

    #[test]
    fn the_interested_are_bounded() {
        let mut row = Row::default();
        (0..100).for_each(|n| row.interest(NodeId::from_raw(n)));
        row.interest(NodeId::from_raw(99));
        assert_eq!(row.interested().count(), INTERESTED_MAX);
    }
}
