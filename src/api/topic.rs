//! Topics: values for whoever wants them, on all nodes.

use std::{
    fmt,
    marker::PhantomData,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use crossbeam::channel::Receiver;
use parking_lot::Mutex;

use super::{
    cluster::Subscription,
    outlet::{Outlet, Taken},
    wire::{decode_versions, encode_versions},
};
use crate::{
    Nodes, Refusal, TypeId, Wire,
    engine::{
        exits,
        node::{Node, ToNet},
        topics::{TopicEntry, Value},
    },
    proto::wire::Frame,
};

/// Values for whoever has subscribed, on every node. Made by [`Cluster::topic`](crate::Cluster::topic); cheap to clone.
///
/// # Guaranteed
/// At most once to each subscriber that is there. Subscribers on this node come first. From one thread, values reach one subscriber on this node
/// in the order in which they were published. What a subscriber does not get because it has no room is counted
/// ([`dropped`](Self::dropped)); nobody waits for a slow one.
///
/// # Not guaranteed
/// Delivery: a value is lost where a link breaks, a queue is full, or a node joins a moment later. Order between values of different threads,
/// and between a topic and messages.
pub struct Topic<V: Wire + Clone> {
    node: Arc<Node>,
    pub(crate) entry: Arc<TopicEntry>,
    _value: PhantomData<fn() -> V>,
}

impl<V: Wire + Clone> Clone for Topic<V> {
    fn clone(&self) -> Self {
        Self { node: self.node.clone(), entry: self.entry.clone(), _value: PhantomData }
    }
}

impl<V: Wire + Clone> fmt::Debug for Topic<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Topic({})", self.entry.name)
    }
}

/// Values that may wait for one callback.
const CALLBACK_WAITING_MAX: usize = 1024;

impl<V: Wire + Clone> Topic<V> {
    pub(crate) fn new(node: Arc<Node>, name: &str) -> Self {
        // Topics of one name and another type of value are others.
        let id = xxhash_rust::xxh3::xxh3_64_with_seed(name.as_bytes(), V::ID);
        let decode = |bytes: &[u8]| decode_versions::<V>(bytes).map(|value| Arc::new(value) as Value);
        let entry = node.topics.enter(id, name, decode);
        Self { node, entry, _value: PhantomData }
    }

    /// As that node knows it: a topic that came from another node of this process names the same one.
    pub(crate) fn entry_on(&self, node: &Arc<Node>) -> Arc<TopicEntry> {
        if Arc::ptr_eq(&self.node, node) { self.entry.clone() } else { Self::new(node.clone(), self.name()).entry }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.entry.name
    }

    /// Gives the value to the subscribers here, and sends it to all other members. Does not block.
    ///
    /// # Errors
    /// [`Refusal`]: nobody got it. `TooLarge` and `Encode` are found out here, `Full` is the queue to the network thread.
    pub fn publish(&self, value: &V) -> Result<(), Refusal> {
        if self.node.is_closing() {
            return Err(Refusal::Shutdown);
        }
        let mut bytes = Vec::new();
        encode_versions(value, &mut bytes).map_err(|error| Refusal::Encode(error.to_string()))?;
        let (size, max) = (bytes.len(), self.node.config.limits.message_bytes as usize);
        if size > max {
            return Err(Refusal::TooLarge { size, max });
        }
        let cast = ToNet::Cast(Nodes::All, Box::new(Frame::Cast { ty: TypeId(0), topic: self.entry.id, bytes: bytes.into() }));
        // Room is made sure of first; the network thread takes its time, so subscribers here are first all the same.
        exits::with(&self.node, |exits| exits.tell_network(cast)).unwrap_or(Err(Refusal::Shutdown))?;
        self.entry.deliver(&self.node, &(Arc::new(value.clone()) as Value));
        Ok(())
    }

    /// Values from now on, as long as the receiver lives; at least one may wait. What comes while `capacity` of them wait is dropped and counted.
    pub fn subscribe(&self, capacity: usize) -> Receiver<V> {
        let (outlet, from) = Outlet::new(capacity);
        let give = move |value: &Value| value.downcast_ref::<V>().map_or(Taken::Yes, |value| outlet.offer(value.clone()));
        self.entry.add(&self.node, Box::new(give));
        from
    }

    /// Runs `f` on the helper thread for each value, until the subscription is dropped. At most 1024 values wait for it; more are dropped and
    /// counted.
    #[must_use = "dropping it ends the subscription"]
    pub fn on(&self, f: impl FnMut(V) + Send + 'static) -> Subscription {
        let f = Arc::new(Mutex::new(f));
        let (weak, node) = (Arc::downgrade(&f), Arc::downgrade(&self.node));
        let waiting = Arc::new(AtomicUsize::new(0));
        let give = move |value: &Value| {
            // It is not held here, or its end might come here, which is the user's.
            let Some(node) = node.upgrade().filter(|_| weak.strong_count() > 0) else { return Taken::Gone };
            let Some(value) = value.downcast_ref::<V>() else { return Taken::Yes };
            if waiting.load(Ordering::Acquire) >= CALLBACK_WAITING_MAX {
                return Taken::Full;
            }
            waiting.fetch_add(1, Ordering::AcqRel);
            let (weak, waiting, value) = (weak.clone(), waiting.clone(), value.clone());
            node.help(Box::new(move || {
                waiting.fetch_sub(1, Ordering::AcqRel);
                if let Some(f) = weak.upgrade() {
                    (*f.lock())(value);
                }
            }));
            Taken::Yes
        };
        self.entry.add(&self.node, Box::new(give));
        Subscription::keeping(f)
    }

    /// Values that subscribers on this node did not get, once for each of them.
    pub fn dropped(&self) -> u64 {
        self.entry.dropped()
    }
}
