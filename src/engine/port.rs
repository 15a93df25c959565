//! The network thread's way to one worker: a ring, and what found no room in it.

use std::collections::VecDeque;

use crate::{
    Config, NodeId,
    engine::{
        lane::{Item as _, LaneSender},
        letter::Address,
        node::ToWorker,
    },
    proto::{handoff::Item, queue::take, shard::ShardCommand, wire::Message},
};

/// The network thread's ring to a worker is so many times as large as that of other threads: many senders stand behind it, and what finds no
/// room in it goes a long way.
const FACTOR: usize = 8;
/// So much may wait for a worker whose ring is full, before newer messages are refused.
const WAITING_MAX: usize = 1 << 16;
/// Their bytes, with those of long messages in its ring.
const WAITING_BYTES_MAX: usize = 128 << 20;

/// The network thread's way to one worker.
pub struct Port {
    lane: LaneSender<ToWorker>,
    /// What found no room, in order. What streams bring, and what is repeated, is bounded by `WAITING_MAX` and `WAITING_BYTES_MAX`; other commands are few.
    pub waiting: VecDeque<ToWorker>,
    /// Bytes of the messages in there.
    waiting_bytes: usize,
    /// Something was written that the worker is not shown yet.
    pub used: bool,
    /// The worker has got something and was not told.
    pub untold: bool,
}

impl Port {
    /// Items in its ring.
    pub fn items(config: &Config) -> usize {
        (config.limits.ring_items as usize).saturating_mul(FACTOR).min(WAITING_MAX)
    }

    pub fn new(lane: LaneSender<ToWorker>) -> Self {
        Self { lane, waiting: VecDeque::new(), waiting_bytes: 0, used: false, untold: false }
    }

    /// In order: into the ring, or behind what waits.
    pub fn push(&mut self, item: ToWorker) {
        self.used = true;
        let rest = if self.waiting.is_empty() { self.lane.push(item) } else { Err(item) };
        if let Err(item) = rest {
            self.waiting_bytes += item.outside();
            self.waiting.push_back(item);
        }
    }

    /// Whether a message of so many bytes may wait. A short one may when a long one may not, as it may when it comes as a letter.
    pub fn has_room(&self, bytes: usize) -> bool {
        self.waiting.len() < WAITING_MAX && self.waiting_bytes + self.lane.outside() + bytes <= WAITING_BYTES_MAX
    }

    /// Whether it may wait: what comes once, like the state of a shard, always. What a coordinator repeats, each second for as long as the
    /// worker stands still, as far as there is room.
    pub fn takes(&self, command: &ShardCommand) -> bool {
        match (command.item(), command) {
            (Some(Item::Msg { envelope, .. }), _) => self.has_room(envelope.bytes.len()),
            (Some(_), _) | (None, ShardCommand::Assign { .. } | ShardCommand::Move { .. }) => self.has_room(0),
            (None, _) => true,
        }
    }

    /// A message of another node, as a letter. False: it has to be a command, behind what waits, or because it is no letter.
    #[inline]
    pub fn arrived(&mut self, stream: NodeId, message: &Message<'_>) -> bool {
        if !self.waiting.is_empty() {
            return false;
        }
        let Message { shard, tag, ask, key, payload } = *message;
        let hash = xxhash_rust::xxh3::xxh3_64(key);
        let reads = if ask.is_some() { payload.first().copied().unwrap_or(0) } else { 0 };
        let written = self.lane.encoded(&Address { shard, tag, stream: Some(stream), key, hash, ask, reads }, payload);
        self.used |= written;
        written
    }

    /// Moves what waits into the ring, as far as there is room, and shows the worker what is there. True if something of that had waited.
    pub fn flush(&mut self) -> bool {
        let mut moved = false;
        while let Some(item) = take(&mut self.waiting) {
            let bytes = item.outside();
            if let Err(item) = self.lane.push(item) {
                self.waiting.push_front(item);
                break;
            }
            moved = true;
            self.waiting_bytes -= bytes;
        }
        if std::mem::take(&mut self.used) || moved {
            self.lane.publish();
            self.untold = true;
        }
        moved
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{
        Epoch, ShardId, ShardKey, TypeId,
        engine::{bell::Bell, lane::Door},
        proto::{
            handoff::{Envelope, Forwarded, HandoffItem, Mode, TransferChunk},
            shard::LaneId,
        },
    };

    const S: ShardKey = ShardKey { ty: TypeId(1), shard: ShardId(2) };
    const A: NodeId = NodeId::from_raw(1);

    fn message(bytes: usize) -> Item {
        let envelope = Envelope::new(S, None, b"k", &vec![0; bytes]).expect("the key is short");
        Item::Msg { tag: Epoch(1), mode: Mode::Settled, envelope }
    }

    /// Straight, and passed on.
    fn both(item: Item) -> [ShardCommand; 2] {
        let passed = Forwarded { aim: Epoch(2), after: vec![], stream: A, item: item.clone() };
        [
            ShardCommand::Item { stream: A, shard: S, item },
            ShardCommand::Handoff { from: A, shard: S, item: HandoffItem::Forwarded(passed) },
        ]
    }

    // failures: row 40
    #[test]
    fn what_streams_bring_to_a_worker_that_stands_still_is_bounded_and_state_is_not() {
        let door = Door::<ToWorker>::new(Arc::new(Bell::new(|| {})));
        let port = || Port::new(door.open(LaneId(1), 1));
        let over = || Item::Over { p: Epoch(1), tag: Epoch(2) };
        let chunk = TransferChunk { epoch: Epoch(2), base: Epoch(1), last: true, bytes: Arc::default() };
        let state = ShardCommand::Handoff { from: A, shard: S, item: HandoffItem::Transfer(chunk) };
        let assign = ShardCommand::Assign { shard: S, epoch: Epoch(2), base: Epoch(1) };
        let repeated = [assign, ShardCommand::Move { shard: S, epoch: Epoch(2), to: A }];

        for n in 0..2 {
            let (mut port, mut taken) = (port(), 0);
            while taken < 2 * WAITING_MAX && port.takes(&both(over())[n]) {
                port.push(ToWorker::Command(both(over())[n].clone()));
                taken += 1;
            }
            assert!(port.waiting.len() == WAITING_MAX, "{taken} signs");
            assert!(both(message(1)).iter().chain(&both(over())).chain(&repeated).all(|command| !port.takes(command)));
            assert!(port.takes(&state));
        }

        const LONG: usize = 16 << 20;
        for n in 0..2 {
            let (mut port, mut taken) = (port(), 0);
            let long = both(message(LONG))[n].clone();
            while taken < 20 && port.takes(&long) {
                port.push(ToWorker::Command(long.clone()));
                taken += 1;
            }
            assert_eq!(taken, WAITING_BYTES_MAX / LONG - 1, "with their keys");
            assert!(both(message(1)).iter().chain(&both(over())).all(|command| port.takes(command)), "what is short has room still");
        }
    }
}
