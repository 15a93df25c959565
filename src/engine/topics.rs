//! Topics: who on this node wants which values, and how they get there.

use std::{
    any::Any,
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

use foldhash::fast::FixedState;
use parking_lot::{Mutex, RwLock};

use super::{
    exits,
    node::{Node, ToWorker},
};
use crate::CodecError;

/// A published value, shared by its readers on this node.
pub type Value = Arc<dyn Any + Send + Sync>;

/// What became of a value at one subscriber.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Taken {
    /// It has it.
    Yes,
    /// It has no room.
    Full,
    /// It is gone.
    Gone,
}

/// Gives a value to one subscriber. Must not block.
pub type Sink = Box<dyn Fn(&Value) -> Taken + Send + Sync>;

/// Decodes what another node has published.
pub type Decode = fn(&[u8]) -> Result<Value, CodecError>;

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
    /// Entities of this node that have subscribed.
    pub entities: AtomicUsize,
    dropped: AtomicU64,
    waiting: AtomicUsize,
}

impl TopicEntry {
    /// Adds a subscriber.
    pub fn add(&self, sink: Sink) {
        self.sinks.lock().push(sink);
    }

    /// Values that a subscriber on this node did not get, counted once for each.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Counts values that were dropped.
    pub fn count_dropped(&self, n: u64) {
        self.dropped.fetch_add(n, Ordering::Relaxed);
    }

    /// Gives a value to everybody on this node, from the calling thread.
    pub fn deliver(&self, node: &Arc<Node>, value: &Value) {
        self.sinks.lock().retain(|sink| {
            let taken = sink(value);
            self.count_dropped(u64::from(taken == Taken::Full));
            taken != Taken::Gone
        });
        if self.entities.load(Ordering::Acquire) > 0 {
            let publish = || ToWorker::Publish(self.id, value.clone());
            let without_room = exits::with(node, |exits| exits.to_workers(publish)).unwrap_or(node.workers.len());
            self.count_dropped(without_room as u64);
        }
    }
}

/// All topics of a node.
#[derive(Default)]
pub struct Topics {
    by_id: RwLock<HashMap<u64, Arc<TopicEntry>, FixedState>>,
}

impl Topics {
    /// The topic with this id, made if it is not there.
    pub fn enter(&self, id: u64, name: &str, decode: Decode) -> Arc<TopicEntry> {
        let make = || {
            Arc::new(TopicEntry {
                id,
                name: name.into(),
                decode,
                sinks: Mutex::default(),
                entities: AtomicUsize::new(0),
                dropped: AtomicU64::new(0),
                waiting: AtomicUsize::new(0),
            })
        };
        self.by_id.write().entry(id).or_insert_with(make).clone()
    }

    /// Brings a value of another node to its readers here. Decoding is done on the helper thread, as it is code of users.
    pub fn arrived(&self, node: &Arc<Node>, id: u64, bytes: Box<[u8]>) {
        // Nobody here has ever asked for the topic.
        let Some(entry) = self.by_id.read().get(&id).cloned() else { return };
        if entry.waiting.fetch_add(1, Ordering::AcqRel) >= WAITING_MAX {
            entry.waiting.fetch_sub(1, Ordering::AcqRel);
            return entry.count_dropped(1);
        }
        let here = node.clone();
        node.help(Box::new(move || {
            entry.waiting.fetch_sub(1, Ordering::AcqRel);
            match (entry.decode)(&bytes) {
                Ok(value) => entry.deliver(&here, &value),
                Err(error) => {
                    entry.count_dropped(1);
                    tracing::warn!(target: "wingbeat::engine", topic = %entry.name, %error, "a published value could not be read");
                }
            }
        }));
    }
}
