//! Watches of entities by entities of one worker.
//!
//! A watch is a request without a message, a sign: the watched entity's worker keeps it, and answers when the instance ends. Should that instance
//! move, the answer says so, and the watch is sent again, to the new home; should its node die, the ask ends as asks do. When the watching entity
//! moves, its watches travel and are made anew. Who watches no more says so with another sign, for which it keeps the slot of its ask until that is
//! sent: so signs that find no room are no more than there are slots.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use foldhash::fast::FixedState;

use super::{
    node::Node,
    parcel::Answered,
    signs::{self, UNWATCH, WATCH, Way, says_nothing},
    slot::Waiter,
    slot_table::UNTIMED,
};
use crate::{
    ShardKey, Time, TypeId,
    proto::{
        handoff::{DropReason, Envelope, ReplyBody},
        shard::WatchRecord,
    },
};

/// Signs that found no room are sent again so many at a time, and so long after they found none.
const AGAIN: usize = 64;
const AGAIN_AFTER: Duration = Duration::from_millis(1);

/// Who watches: shard and key.
type Watcher = (ShardKey, Box<[u8]>);
/// Who is watched: type and key.
type Target = (TypeId, Box<[u8]>);

/// A watch that begins.
pub struct NewWatch {
    /// Shard of who watches.
    pub shard: ShardKey,
    /// Type and key of the watched entity.
    pub target: (TypeId, Box<[u8]>),
    /// The message for who watches, and with it that one's key.
    pub message: Envelope,
    /// It came with its entity from another node.
    pub moved_in: bool,
}

/// A watch.
struct Open {
    correlation: u64,
    message: Envelope,
    moved_in: bool,
    /// Its sign is on its way, or there.
    sent: bool,
}

/// A sign that found no room.
enum Unsent {
    /// Of the watch with that number.
    Watch(u64),
    Unwatch(u64, Target),
}

/// The open watches of one worker's entities.
#[derive(Default)]
pub struct Watches {
    by_watcher: BTreeMap<Watcher, BTreeMap<Target, Open>>,
    /// By their numbers.
    ends_of: HashMap<u64, (Watcher, Target), FixedState>,
    /// In their order.
    unsent: VecDeque<Unsent>,
    /// When to try these again.
    again_at: Time,
}

/// What an answer to a watch means.
pub enum Ended {
    /// The watcher gets this message.
    Tell(Envelope),
    /// It is watched on, elsewhere.
    WatchedOn,
}

/// Which watches of an entity end.
pub enum Closed {
    /// Its instance is gone.
    All,
    /// It could not be started. What moved in waits for the next try, as what came with it does.
    OfThisStart,
    /// It watches that one no more.
    Of((TypeId, Box<[u8]>)),
}

impl Watches {
    /// Has the message brought to its entity when the instance of the other one ends. `Err` gives it back: to be brought at once.
    pub fn open(&mut self, node: &Arc<Node>, worker: u16, new: NewWatch) -> Result<(), Envelope> {
        self.begin(node, worker, new, |target, correlation| send(node, target, WATCH, correlation))
    }

    fn begin(&mut self, node: &Arc<Node>, worker: u16, new: NewWatch, send: impl FnOnce(&Target, u64) -> Way) -> Result<(), Envelope> {
        let NewWatch { shard, target, message, mut moved_in } = new;
        let watcher: Watcher = (shard, message.key().into());
        // In front of the new one, which may need its slot here, and its place there.
        if let Some(open) = self.by_watcher.get_mut(&watcher)
            && let Some(old) = open.remove(&target)
        {
            if open.is_empty() {
                self.by_watcher.remove(&watcher);
            }
            moved_in |= old.moved_in;
            self.unwatch(node, target.clone(), old);
        }
        let Some(correlation) = node.slots.open(Waiter::Entity(worker), UNTIMED) else { return Err(message) };
        let way = send(&target, correlation);
        if matches!(way, Way::Never) {
            drop(node.slots.take(correlation));
            return Err(message);
        }
        let sent = matches!(way, Way::Sent);
        if !sent {
            self.unsent.push_back(Unsent::Watch(correlation));
        }
        self.ends_of.insert(correlation, (watcher.clone(), target.clone()));
        let open = Open { correlation, message, moved_in, sent };
        self.by_watcher.entry(watcher).or_default().insert(target, open);
        Ok(())
    }

    /// Ends watches of an entity.
    pub fn close(&mut self, node: &Arc<Node>, shard: ShardKey, watcher: &[u8], which: &Closed) {
        if self.by_watcher.is_empty() {
            return;
        }
        let at = (shard, Box::from(watcher));
        let Some(open) = self.by_watcher.get_mut(&at) else { return };
        let closed: Vec<(Target, Open)> = match which {
            Closed::All => std::mem::take(open).into_iter().collect(),
            Closed::OfThisStart => open.extract_if(.., |_, open| !open.moved_in).collect(),
            Closed::Of(target) => open.remove_entry(target).into_iter().collect(),
        };
        if open.is_empty() {
            self.by_watcher.remove(&at);
        }
        closed.into_iter().for_each(|(target, closed)| self.unwatch(node, target, closed));
    }

    /// That watch has ended here: the other side has nobody to tell any more.
    fn unwatch(&mut self, node: &Arc<Node>, target: Target, closed: Open) {
        let Open { correlation, sent, .. } = closed;
        self.ends_of.remove(&correlation);
        // The slot of one whose sign waits is free when that has its turn.
        if !sent {
            return;
        }
        match send(node, &target, UNWATCH, correlation) {
            Way::Later => self.unsent.push_back(Unsent::Unwatch(correlation, target)),
            Way::Sent | Way::Never => drop(node.slots.take(correlation)),
        }
    }

    /// What the answer to that ask means, and for an entity of which shard; `None` if it was no watch, or is none any more.
    pub fn answered(
        &mut self,
        now: Time,
        node: &Arc<Node>,
        worker: u16,
        correlation: u64,
        answered: &Answered,
    ) -> Option<(ShardKey, Ended)> {
        let (shard, target, Open { message, moved_in, .. }) = self.forget(correlation)?;
        let new = NewWatch { shard, target, message, moved_in };
        let watched_on = match answered {
            Answered::Wire(ReplyBody::Dropped(DropReason::HomeLost)) => self.open(node, worker, new),
            Answered::Wire(ReplyBody::Dropped(reason)) if says_nothing(*reason) => {
                self.again_at = now + AGAIN_AFTER;
                self.begin(node, worker, new, |_, _| Way::Later)
            }
            _ => Err(new.message),
        };
        Some((shard, watched_on.map_or_else(Ended::Tell, |()| Ended::WatchedOn)))
    }

    /// The watch with that number, which is none any more, with its two ends.
    fn forget(&mut self, correlation: u64) -> Option<(ShardKey, Target, Open)> {
        let (watcher, target) = self.ends_of.remove(&correlation)?;
        let all = self.by_watcher.get_mut(&watcher)?;
        let open = all.remove(&target)?;
        if all.is_empty() {
            self.by_watcher.remove(&watcher);
        }
        Some((watcher.0, target, open))
    }

    /// All watches of a shard's entities, to travel with them.
    pub fn leave(&mut self, node: &Arc<Node>, shard: ShardKey) -> Vec<WatchRecord> {
        let first: Watcher = (shard, Box::default());
        let watchers: Vec<Watcher> = self.by_watcher.range(first..).map(|(at, _)| at).take_while(|(of, _)| *of == shard).cloned().collect();
        let open: Vec<(Target, Open)> = watchers.iter().filter_map(|watcher| self.by_watcher.remove(watcher)).flatten().collect();
        let mut records = vec![];
        for (target, open) in open {
            records.push(WatchRecord { ty: target.0, target: target.1.clone(), message: open.message.clone() });
            self.unwatch(node, target, open);
        }
        records
    }

    /// When to call [`send_again`](Self::send_again).
    pub fn due(&self) -> Option<Time> {
        (!self.unsent.is_empty()).then_some(self.again_at)
    }

    /// Tries signs again that found no room. Shard and message of those who cannot watch after all.
    pub fn send_again(&mut self, node: &Arc<Node>, now: Time) -> Vec<(ShardKey, Envelope)> {
        let mut told = vec![];
        if self.due().is_none_or(|due| due > now) {
            return told;
        }
        for _ in 0..self.unsent.len().min(AGAIN) {
            let Some(unsent) = self.unsent.pop_front() else { break };
            match unsent {
                Unsent::Watch(correlation) => {
                    let way = match self.ends_of.get(&correlation) {
                        Some((_, target)) => send(node, target, WATCH, correlation),
                        None => Way::Never,
                    };
                    match way {
                        Way::Sent => self.has_gone(correlation),
                        Way::Later => self.later(now, Unsent::Watch(correlation)),
                        Way::Never => {
                            drop(node.slots.take(correlation));
                            told.extend(self.forget(correlation).map(|(shard, _, open)| (shard, open.message)));
                        }
                    }
                }
                // Once the slot is empty the other side has ended by itself.
                Unsent::Unwatch(correlation, target) if node.slots.is_open(correlation) => {
                    match send(node, &target, UNWATCH, correlation) {
                        Way::Later => self.later(now, Unsent::Unwatch(correlation, target)),
                        Way::Sent | Way::Never => drop(node.slots.take(correlation)),
                    }
                }
                Unsent::Unwatch(..) => {}
            }
        }
        told
    }

    fn later(&mut self, now: Time, unsent: Unsent) {
        self.again_at = now + AGAIN_AFTER;
        self.unsent.push_back(unsent);
    }

    fn has_gone(&mut self, correlation: u64) {
        let open = self.ends_of.get(&correlation).and_then(|(watcher, target)| self.by_watcher.get_mut(watcher)?.get_mut(target));
        open.into_iter().for_each(|open| open.sent = true);
    }
}

fn send(node: &Arc<Node>, (ty, target): &Target, sign: &[u8], correlation: u64) -> Way {
    signs::to_entity(node, *ty, target, sign, correlation)
}
