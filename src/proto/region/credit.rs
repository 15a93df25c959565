//! How much of the hand-off lanes to one node may be under way: its link carries other things too, and is closed when too much waits in it.

use std::collections::VecDeque;

use crate::{
    ShardKey,
    proto::{
        handoff::{Forwarded, HandoffItem, Item},
        queue::take,
    },
};

/// What stands in a frame beside what is counted, at most.
const FIELDS_BYTES: usize = 128;

/// Of all lanes to one node.
#[derive(Debug)]
pub(super) struct Credit {
    max: usize,
    /// Bytes given to the session and not acknowledged.
    used: usize,
    /// The lanes of what found no room, in the order in which it came: one entry for each item.
    short: VecDeque<ShardKey>,
}

impl Credit {
    pub fn new(max: usize) -> Self {
        Self { max, used: 0, short: VecDeque::new() }
    }

    pub fn used(&self) -> usize {
        self.used
    }

    /// Whether one more item may go, however long it is: so the longest goes, too, and is not passed by short ones for ever.
    pub fn has_room(&self) -> bool {
        self.used < self.max
    }

    pub fn draw(&mut self, bytes: usize) {
        self.used += bytes;
    }

    pub fn give_back(&mut self, bytes: usize) {
        self.used -= bytes;
    }

    /// An item of that lane waits for room.
    pub fn wait(&mut self, shard: ShardKey) {
        self.short.push_back(shard);
    }

    /// The lane whose turn it is, if there is room.
    pub fn next(&mut self) -> Option<ShardKey> {
        if self.has_room() { take(&mut self.short) } else { None }
    }
}

/// Bytes of its frame, or a few more.
pub(super) fn wire_bytes(item: &HandoffItem) -> usize {
    let content = match item {
        HandoffItem::Transfer(chunk) => chunk.bytes.len(),
        HandoffItem::Forwarded(Forwarded { after, item, .. }) => {
            let message = if let Item::Msg { envelope, .. } = item { envelope.bytes.len() } else { 0 };
            message + size_of_val(&**after)
        }
        HandoffItem::Probe { after, .. } => size_of_val(&**after),
    };
    FIELDS_BYTES + content
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{
        Epoch, NodeId, ShardId, Time, TypeId,
        proto::{
            handoff::{Ask, Envelope, Mode, TransferChunk},
            wire::{Context, Frame, encode},
        },
    };

    #[test]
    fn no_frame_is_longer_than_what_it_draws() {
        const S: ShardKey = ShardKey { ty: TypeId(1), shard: ShardId(2) };
        let (node, now, after) = (NodeId::from_raw(u128::MAX), Time::from_nanos(1), vec![NodeId::from_raw(3); 50]);
        let ask = Ask { node, correlation: u64::MAX, deadline: Time::MAX };
        let envelope = Envelope::new(S, Some(ask), &[1; 255], &[2; 700]).expect("the key is short enough");
        let message = Item::Msg { tag: Epoch(u64::MAX), mode: Mode::Wait(Epoch(u64::MAX)), envelope };
        let passed = |item| HandoffItem::Forwarded(Forwarded { aim: Epoch(2), after: after.clone(), stream: node, item });
        let chunk = TransferChunk { epoch: Epoch(2), base: Epoch(1), last: true, bytes: Arc::new(vec![0; 5000]) };
        for item in [
            HandoffItem::Transfer(chunk),
            passed(message),
            passed(Item::Over { p: Epoch(1), tag: Epoch(2) }),
            HandoffItem::Probe { origin: node, route: 1, number: 2, aim: Epoch(3), after: after.clone() },
        ] {
            let (drawn, mut bytes) = (wire_bytes(&item), vec![]);
            encode(&Frame::Handoff { shard: S, number: 1, item }, Context { sender: node, now }, 1 << 20, &mut bytes).expect("it is short");
            assert!(bytes.len() <= drawn && drawn <= bytes.len() + FIELDS_BYTES, "{} of {drawn}", bytes.len());
        }
    }
}
