//! Topics: who on this node wants which values, and how they get there.

use std::{
    any::Any,
    collections::HashMap,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

use foldhash::fast::FixedState;
use parking_lot::{Mutex, RwLock};

use super::{
    exits,
    node::{Life, Node, ToWorker},
};
use crate::{CodecError, api::Taken};

/// A published value, shared by its readers on this node.
pub type Value = Arc<dyn Any + Send + Sync>;

/// Gives a value to one subscriber that is no entity. Must not block.
pub type Sink = Box<dyn Fn(&Value) -> Taken + Send + Sync>;

/// Decodes what another node has published.
pub type Decode = fn(&[u8]) -> Result<Value, CodecError>;

/// Topics beyond which those that nobody uses any more are looked for; and so again whenever they are twice as many.
const KEPT: usize = 64;
/// Values of other nodes that may wait for the helper thread, per topic.
const WAITING_MAX: usize = 1024;

/// One topic, as this node knows it.
pub struct TopicEntry {
    /// From its name and the name of its values.
    pub id: u64,
    /// Its name.
    pub name: Arc<str>,
    decode: Decode,
    sinks: Mutex<Vec<Sink>>,
    /// How many of them there were at the last look: the network thread does not wait for who gives them a value.
    sinks_seen: AtomicUsize,
    /// Entities that have subscribed, by worker.
    pub entities: Box<[AtomicUsize]>,
    dropped: AtomicU64,
    waiting: AtomicUsize,
}

impl TopicEntry {
    /// Adds a subscriber, under the lock that [`Topics::end`] takes.
    pub fn add(&self, node: &Node, sink: Sink) {
        let mut sinks = self.sinks.lock();
        if node.life() != Life::Stopped {
            sinks.push(sink);
        }
        self.sinks_seen.store(sinks.len(), Ordering::Relaxed);
    }

    /// Values that subscribers on this node did not get, once for each of them.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// So many subscribers more.
    pub fn count_dropped(&self, n: usize) {
        self.dropped.fetch_add(n as u64, Ordering::Relaxed);
    }

    /// A value that nobody on this node gets.
    fn dropped_for_all(&self) {
        self.count_dropped(self.sinks_seen.load(Ordering::Relaxed) + self.entities_of(0..self.entities.len()));
    }

    /// Subscribed entities of these workers.
    fn entities_of(&self, workers: impl IntoIterator<Item = usize>) -> usize {
        workers.into_iter().map(|worker| self.entities[worker].load(Ordering::Acquire)).sum()
    }

    /// Whether somebody on this node may get its values.
    fn has_subscribers(&self) -> bool {
        !self.sinks.lock().is_empty() || self.entities_of(0..self.entities.len()) > 0
    }

    /// Gives a value to everybody on this node, from the calling thread.
    pub fn deliver(&self, node: &Arc<Node>, value: &Value) {
        let mut sinks = self.sinks.lock();
        sinks.retain(|sink| {
            let taken = sink(value);
            self.count_dropped(usize::from(taken == Taken::Full));
            taken != Taken::Gone
        });
        self.sinks_seen.store(sinks.len(), Ordering::Relaxed);
        drop(sinks);
        let all = 0..self.entities.len();
        if self.entities_of(all.clone()) > 0 {
            let publish = || ToWorker::Publish(self.id, value.clone());
            let without_room = exits::with(node, |exits| exits.tell_workers(publish)).unwrap_or_else(|| all.collect());
            self.count_dropped(self.entities_of(without_room));
        }
    }
}

/// All topics of a node.
pub struct Topics {
    by_id: RwLock<HashMap<u64, Arc<TopicEntry>, FixedState>>,
    /// How many there may be before the unused ones are looked for.
    sweep_at: AtomicUsize,
    workers: usize,
}

impl Topics {
    /// None yet, on a node with so many workers.
    pub fn new(workers: usize) -> Self {
        Self { by_id: RwLock::default(), sweep_at: AtomicUsize::new(KEPT), workers }
    }

    /// The node has stopped: nothing more comes to anybody.
    pub fn end(&self) {
        for entry in self.by_id.read().values() {
            // What they keep may use the topic as it is dropped.
            let sinks = std::mem::take(&mut *entry.sinks.lock());
            drop(sinks);
        }
    }

    /// The topic with this id, made if it is not there. One that nobody has a handle to, nor gets values of, is forgotten at some time.
    pub fn enter(&self, id: u64, name: &str, decode: Decode) -> Arc<TopicEntry> {
        let make = || {
            Arc::new(TopicEntry {
                id,
                name: name.into(),
                decode,
                sinks: Mutex::default(),
                sinks_seen: AtomicUsize::new(0),
                entities: (0..self.workers).map(|_| AtomicUsize::new(0)).collect(),
                dropped: AtomicU64::new(0),
                waiting: AtomicUsize::new(0),
            })
        };
        let mut by_id = self.by_id.write();
        let entry = by_id.entry(id).or_insert_with(make).clone();
        if by_id.len() > self.sweep_at.load(Ordering::Relaxed) {
            // Under the lock nobody else comes to have one.
            by_id.retain(|_, entry| Arc::strong_count(entry) > 1 || entry.has_subscribers());
            self.sweep_at.store((2 * by_id.len()).max(KEPT), Ordering::Relaxed);
        }
        entry
    }

    /// Brings a value of another node to its readers here. Decoding is done on the helper thread, as it is code of users.
    pub fn arrived(&self, node: &Arc<Node>, id: u64, bytes: Box<[u8]>) {
        // Nobody here has ever asked for the topic.
        let Some(entry) = self.by_id.read().get(&id).cloned() else { return };
        if entry.waiting.fetch_add(1, Ordering::AcqRel) >= WAITING_MAX {
            entry.waiting.fetch_sub(1, Ordering::AcqRel);
            return entry.dropped_for_all();
        }
        let here = node.clone();
        node.help(Box::new(move || {
            entry.waiting.fetch_sub(1, Ordering::AcqRel);
            match catch_unwind(AssertUnwindSafe(|| (entry.decode)(&bytes))) {
                Ok(Ok(value)) => entry.deliver(&here, &value),
                Ok(Err(error)) => {
                    entry.dropped_for_all();
                    tracing::warn!(target: "wingbeat::engine", topic = %entry.name, %error, "a published value could not be read");
                }
                Err(panic) => {
                    entry.dropped_for_all();
                    // The helper thread counts and tells of it.
                    resume_unwind(panic);
                }
            }
        }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sink(given: &Arc<AtomicUsize>) -> Sink {
        let given = given.clone();
        Box::new(move |_| {
            given.fetch_add(1, Ordering::SeqCst);
            Taken::Gone
        })
    }

    #[test]
    fn topics_that_nobody_uses_are_forgotten() {
        let node = Node::lone(None);
        let enter = |id| node.topics.enter(id, "news", |_| Ok(Arc::new(())));
        let kept = enter(0);
        enter(1).add(&node, sink(&Arc::default()));
        enter(2).entities[0].store(1, Ordering::SeqCst);
        (3..10_000).for_each(|id| drop(enter(id)));
        let by_id = node.topics.by_id.read();
        assert!(by_id.len() <= KEPT + 1, "{}", by_id.len());
        assert!((0..3).all(|id| by_id.contains_key(&id)) && Arc::ptr_eq(&by_id[&0], &kept));
    }

    #[test]
    fn a_value_that_nobody_gets_is_counted_for_each_who_is_there() {
        let (node, given) = (Node::lone(None), Arc::default());
        let topic = node.topics.enter(7, "news", |_| Ok(Arc::new(())));
        [sink(&given), sink(&given)].into_iter().for_each(|sink| topic.add(&node, sink));
        topic.entities[0].store(3, Ordering::SeqCst);
        // Its helper has ended, so that as many as may wait do.
        (0..WAITING_MAX).for_each(|_| node.topics.arrived(&node, 7, Box::default()));
        assert_eq!(topic.dropped(), 0);
        node.topics.arrived(&node, 7, Box::default());
        assert_eq!((topic.dropped(), given.load(Ordering::SeqCst)), (5, 0));
        topic.entities[0].store(0, Ordering::SeqCst);
        topic.deliver(&node, &(Arc::new(()) as Value));
        assert_eq!((topic.sinks.lock().len(), topic.dropped()), (0, 5), "who is gone misses nothing");
    }
}
