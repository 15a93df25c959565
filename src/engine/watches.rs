//! Watches of entities by entities of one worker.
//!
//! A watch is a request without a message: the watched entity's worker keeps it, and answers when the instance ends. Should that instance move,
//! the answer says so, and the watch is sent again, to the new home; should its node die, the ask ends as asks do. When the watching entity
//! moves, its watches travel and are made anew.

use std::collections::{BTreeMap, HashMap};

use foldhash::fast::FixedState;

use super::{
    node::Node,
    parcel::{Answered, EngineParcel, Key},
    slot::Waiter,
    slot_table::UNTIMED,
};
use crate::{
    ShardKey, Time, TypeId,
    proto::{
        handoff::{Ask, Bytes, DropReason, Envelope, ReplyBody},
        shard::WatchRecord,
    },
};

/// Who watches: shard and key.
type Watcher = (ShardKey, Box<[u8]>);

struct Open {
    correlation: u64,
    ty: TypeId,
    target: Key,
    message: Envelope,
}

/// The open watches of one worker's entities.
#[derive(Default)]
pub struct Watches {
    by_watcher: BTreeMap<Watcher, Vec<Open>>,
    watcher_of: HashMap<u64, Watcher, FixedState>,
}

/// What an answer to a watch means.
pub enum Ended {
    /// The watcher gets this message.
    Tell(Envelope),
    /// It is watched on, elsewhere.
    WatchedOn,
}

impl Watches {
    /// Has `message` brought to its entity when the instance of `target` ends. `Err` gives it back: to be brought at once.
    pub fn open(
        &mut self,
        node: &std::sync::Arc<Node>,
        worker: u16,
        shard: ShardKey,
        ty: TypeId,
        target: Key,
        message: Envelope,
    ) -> Result<(), Envelope> {
        let Some(entry) = node.type_entry(ty) else { return Err(message) };
        let Some(correlation) = node.slots.open(Waiter::Entity(worker), UNTIMED) else { return Err(message) };
        let ask = Ask { node: node.id, correlation, deadline: Time::MAX };
        let sign = watch_of(entry.shard_of(target.hash), ask, target.bytes());
        let mut parcel = Some(EngineParcel::Wire { envelope: sign, hash: target.hash });
        if node.send(&entry, &mut parcel).is_err() {
            drop(node.slots.take(correlation));
            return Err(message);
        }
        let watcher: Watcher = (shard, message.key().into());
        self.close(node, shard, message.key(), Some((ty, target.bytes())));
        self.watcher_of.insert(correlation, watcher.clone());
        self.by_watcher.entry(watcher).or_default().push(Open { correlation, ty, target, message });
        Ok(())
    }

    /// Ends one watch of an entity, or all of them.
    pub fn close(&mut self, node: &Node, shard: ShardKey, watcher: &[u8], target: Option<(TypeId, &[u8])>) {
        if self.by_watcher.is_empty() {
            return;
        }
        let at = (shard, Box::from(watcher));
        let Some(open) = self.by_watcher.get_mut(&at) else { return };
        let meant = |open: &mut Open| target.is_none_or(|(ty, key)| open.ty == ty && open.target.bytes() == key);
        for closed in open.extract_if(.., meant) {
            self.watcher_of.remove(&closed.correlation);
            drop(node.slots.take(closed.correlation));
        }
        if open.is_empty() {
            self.by_watcher.remove(&at);
        }
    }

    /// What the answer to that ask means, and for an entity of which shard; `None` if it was no watch, or is none any more.
    pub fn answered(
        &mut self,
        node: &std::sync::Arc<Node>,
        worker: u16,
        correlation: u64,
        answered: &Answered,
    ) -> Option<(ShardKey, Ended)> {
        let at = self.watcher_of.remove(&correlation)?;
        let open = self.by_watcher.get_mut(&at)?;
        let Open { ty, target, message, .. } = open.swap_remove(open.iter().position(|open| open.correlation == correlation)?);
        if open.is_empty() {
            self.by_watcher.remove(&at);
        }
        let shard = at.0;
        Some((
            shard,
            match answered {
                Answered::Wire(ReplyBody::Dropped(DropReason::HomeLost)) => match self.open(node, worker, shard, ty, target, message) {
                    Ok(()) => Ended::WatchedOn,
                    Err(message) => Ended::Tell(message),
                },
                _ => Ended::Tell(message),
            },
        ))
    }

    /// All watches of a shard's entities, to travel with them.
    pub fn leave(&mut self, node: &Node, shard: ShardKey) -> Vec<WatchRecord> {
        let watchers: Vec<Watcher> = self.by_watcher.keys().filter(|(of, _)| *of == shard).cloned().collect();
        let open: Vec<Open> = watchers.iter().filter_map(|watcher| self.by_watcher.remove(watcher)).flatten().collect();
        let record = |open: Open| {
            self.watcher_of.remove(&open.correlation);
            drop(node.slots.take(open.correlation));
            WatchRecord { ty: open.ty, target: open.target.bytes().into(), message: open.message }
        };
        open.into_iter().map(record).collect()
    }
}

/// A watch as it travels: a request that reads no version of an answer.
fn watch_of(shard: ShardKey, ask: Ask, target: &[u8]) -> Envelope {
    let key_len = u8::try_from(target.len()).expect("references refuse keys above 255 bytes");
    let bytes: Bytes = [target, &[NO_VERSION]].concat().into();
    Envelope { shard, ask: Some(ask), key_len, bytes }
}

/// What stands in front of a watch instead of the version of an answer: versions begin at 1.
pub const NO_VERSION: u8 = 0;

/// Who watches with this message, if it is a watch and no message.
pub fn watch_in(envelope: &Envelope) -> Option<Ask> {
    envelope.ask.filter(|_| envelope.payload() == [NO_VERSION])
}
