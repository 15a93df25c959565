//! Watches of entities by entities of one worker.
//!
//! A watch is a sign to the watched entity: its worker notes the watch's name, says whether there is an instance, and answers the slot of that name when
//! the instance ends. Should that instance move, its watches travel with it, so that it is known under the same names there. Should who watches
//! move, the watch gets another name at the new home, which is told with the old one: if that is not known where the watched entity lives, the
//! instance has ended meanwhile. The same is asked, with one name, when an answer may have been lost: as the link that it came by broke, or a node is
//! gone.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, atomic::Ordering},
};

use foldhash::fast::FixedState;

use super::{
    node::Node,
    parcel::Answered,
    signs::{self, Repeated, Said},
    slot::Waiter,
    slot_table::UNTIMED,
};
use crate::{
    ShardKey, Time, TypeId,
    proto::{
        handoff::Envelope,
        shard::{WAS_MAX, WatchId, WatchRecord, Watching},
    },
};

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
    /// If it came with its entity from another node: its names there, and whether one of them is known.
    pub moved_in: Option<(Vec<WatchId>, bool)>,
}

/// A watch.
struct Open {
    number: u64,
    message: Envelope,
    /// It came with its entity.
    moved_in: bool,
    was: Vec<WatchId>,
    /// It is known where the watched entity lives, or that has ended.
    confirmed: bool,
    /// Its sign is on its way, or is to be.
    asked: bool,
}

/// A sign of a watch.
enum Step {
    /// Of the one with that number, while there is one.
    Watch(u64),
    Unwatch(Target, Watching),
}

/// The open watches of one worker's entities.
#[derive(Default)]
pub struct Watches {
    by_watcher: BTreeMap<Watcher, BTreeMap<Target, Open>>,
    /// By their numbers.
    ends_of: HashMap<u64, (Watcher, Target), FixedState>,
    steps: Repeated<Step>,
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

/// An entity that hears that who it watches has ended: its shard, and the message.
pub type Told = (ShardKey, Envelope);

impl Watches {
    /// Has the message brought to its entity when the instance of the other one ends. `Err` gives it back: to be brought at once.
    pub fn open(&mut self, node: &Arc<Node>, worker: u16, new: NewWatch) -> Result<(), Envelope> {
        let NewWatch { shard, target, message, moved_in } = new;
        let watcher: Watcher = (shard, message.key().into());
        // In front of the new one, which may need its slot here, and its place there.
        let old = self.take(&watcher, &target);
        let came = moved_in.is_some() || old.as_ref().is_some_and(|old| old.moved_in);
        if let Some(old) = old {
            self.unwatch(node, target.clone(), old);
        }
        let Some(number) = open_slot(node, worker) else { return Err(message) };
        let (was, confirmed) = moved_in.unwrap_or_default();
        self.ends_of.insert(number, (watcher.clone(), target.clone()));
        let open = Open { number, message, moved_in: came, was, confirmed, asked: true };
        self.by_watcher.entry(watcher).or_default().insert(target, open);
        self.steps.push(Step::Watch(number));
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
        let Open { number, was, confirmed, .. } = closed;
        self.ends_of.remove(&number);
        close_slot(node, number);
        let id = WatchId { node: node.id, number };
        self.steps.push(Step::Unwatch(target, Watching { id, was, confirmed }));
    }

    fn take(&mut self, watcher: &Watcher, target: &Target) -> Option<Open> {
        let all = self.by_watcher.get_mut(watcher)?;
        let open = all.remove(target)?;
        if all.is_empty() {
            self.by_watcher.remove(watcher);
        }
        Some(open)
    }

    /// What an answer to a sign of these means, or to the slot of one. Whom it tells something.
    pub fn answered(&mut self, now: Time, node: &Node, correlation: u64, answered: &Answered) -> Option<Told> {
        if self.ends_of.contains_key(&correlation) {
            return self.ended(node, correlation);
        }
        match self.steps.answered(now, correlation, answered)? {
            (Step::Watch(number), Said::Yes) => {
                if let Some(open) = self.find(number) {
                    (open.was, open.confirmed, open.asked) = (vec![], true, false);
                }
                None
            }
            (Step::Watch(number), Said::Done) => self.ended(node, number),
            (Step::Unwatch(..), _) => None,
        }
    }

    fn find(&mut self, number: u64) -> Option<&mut Open> {
        let (watcher, target) = self.ends_of.get(&number)?;
        self.by_watcher.get_mut(watcher)?.get_mut(target)
    }

    fn ended(&mut self, node: &Node, number: u64) -> Option<Told> {
        let (watcher, target) = self.ends_of.remove(&number)?;
        close_slot(node, number);
        let open = self.take(&watcher, &target)?;
        Some((watcher.0, open.message))
    }

    /// All watches of a shard's entities, to travel with them.
    pub fn leave(&mut self, node: &Node, shard: ShardKey) -> Vec<WatchRecord> {
        let first: Watcher = (shard, Box::default());
        let watchers: Vec<Watcher> = self.by_watcher.range(first..).map(|(at, _)| at).take_while(|(of, _)| *of == shard).cloned().collect();
        let open = watchers.iter().filter_map(|watcher| self.by_watcher.remove(watcher)).flatten();
        let leaves = |((ty, target), open): (Target, Open)| {
            let Open { number, message, mut was, confirmed, .. } = open;
            self.ends_of.remove(&number);
            close_slot(node, number);
            // The first is the one that is known for certain, if one is; each of the others may be, where its sign has come.
            if was.len() >= WAS_MAX {
                was.remove(1);
            }
            was.push(WatchId { node: node.id, number });
            WatchRecord { ty, target, was, confirmed, message }
        };
        open.map(leaves).collect()
    }

    /// What was said by either side may not have come: all who are watched are asked about.
    pub fn ask_again(&mut self, node: &Node) {
        self.steps.repeat(node);
        for open in self.by_watcher.values_mut().flat_map(BTreeMap::values_mut).filter(|open| !open.asked) {
            open.asked = true;
            open.was = vec![WatchId { node: node.id, number: open.number }];
            self.steps.push(Step::Watch(open.number));
        }
    }

    /// Whether [`send`](Self::send) has something to do, some time.
    #[inline]
    pub fn has_unsent(&self) -> bool {
        self.steps.has_unsent()
    }

    /// When to call [`send`](Self::send).
    pub fn due(&self) -> Option<Time> {
        self.steps.due()
    }

    /// Sends signs that are due. Who cannot watch after all.
    pub fn send(&mut self, node: &Arc<Node>, worker: u16, now: Time) -> Vec<Told> {
        let Self { by_watcher, ends_of, steps } = self;
        let never = steps.send(node, worker, now, |step, correlation| match step {
            Step::Watch(number) => {
                let (watcher, target) = ends_of.get(number)?;
                let open = by_watcher.get(watcher)?.get(target)?;
                let id = WatchId { node: node.id, number: *number };
                let sign = signs::watching(true, &Watching { id, was: open.was.clone(), confirmed: open.confirmed });
                Some(signs::to_entity(node, Some(watcher.0), (target.0, &target.1), &sign, correlation))
            }
            Step::Unwatch(target, watching) => {
                Some(signs::to_entity(node, None, (target.0, &target.1), &signs::watching(false, watching), correlation))
            }
        });
        let told = |step| if let Step::Watch(number) = step { self.ended(node, number) } else { None };
        never.into_iter().filter_map(told).collect()
    }
}

/// A slot for the answer to a watch. `None` if there is none, or what would be left is too little for signs, which need one each.
fn open_slot(node: &Node, worker: u16) -> Option<u64> {
    let most = node.config.limits.asks as usize / 8 * 7;
    let room = node.watches.fetch_add(1, Ordering::Relaxed) < most;
    let slot = if room { node.slots.open(Waiter::Entity(worker), UNTIMED) } else { None };
    if slot.is_none() {
        node.watches.fetch_sub(1, Ordering::Relaxed);
    }
    slot
}

fn close_slot(node: &Node, number: u64) {
    // Empty already if it was answered.
    drop(node.slots.take(number));
    node.watches.fetch_sub(1, Ordering::Relaxed);
}
