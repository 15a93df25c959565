//! Entities that record what arrives.

use std::{collections::BTreeMap, fmt, marker::PhantomData, sync::Arc};

use parking_lot::Mutex;

use super::World;
use crate::{Cx, Entity, EntityKey, EntityType, HostOptions, IntoKey, MsgOf, Wire};

/// Encoded messages by canonical key, in order of arrival.
type Arrived = Mutex<BTreeMap<Vec<u8>, Vec<Vec<u8>>>>;

/// Hosts `T` on every node of a world, with entities that record what arrives and answer nothing: who asks one gets `NoReply`.
///
/// What was recorded is the probe's, not the entity's: it outlives moves and nodes.
pub struct Probe<T: EntityType> {
    arrived: Arc<Arrived>,
    _type: PhantomData<fn() -> T>,
}

impl<T: EntityType> fmt::Debug for Probe<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Probe({})", T::TYPE)
    }
}

struct Recorder<T: EntityType> {
    arrived: Arc<Arrived>,
    _type: PhantomData<fn() -> T>,
}

impl<T: EntityType> Entity for Recorder<T> {
    type Type = T;

    fn handle(&mut self, msg: MsgOf<Self>, cx: &mut Cx<'_, Self>) {
        let mut bytes = vec![];
        if let Err(error) = msg.encode(*T::Msg::VERSIONS.end(), &mut bytes) {
            panic!("a probe cannot keep a message of `{}`: {error}", T::TYPE);
        }
        self.arrived.lock().entry(canonical(cx.id())).or_default().push(bytes);
    }
}

fn canonical(key: &impl EntityKey) -> Vec<u8> {
    let mut bytes = vec![];
    key.write_to(&mut bytes);
    bytes
}

impl<T: EntityType> Probe<T> {
    /// Hosts it on all nodes of the world, and on those that will be restarted.
    ///
    /// # Panics
    /// If a node hosts the type already.
    #[track_caller]
    pub fn host(world: &World) -> Self {
        let arrived = Arc::<Arrived>::default();
        let theirs = arrived.clone();
        world.also_on_each(move |node| {
            let arrived = theirs.clone();
            let recorder = move |_: &T::Key| Recorder::<T> { arrived: arrived.clone(), _type: PhantomData };
            node.host(HostOptions::new(), recorder).map(drop)
        });
        Self { arrived, _type: PhantomData }
    }

    /// What has arrived for this entity so far, on whatever node, in order of arrival.
    ///
    /// # Panics
    /// If a message cannot be read back: its encoding does not fit its decoding.
    #[track_caller]
    pub fn received(&self, key: impl IntoKey<T::Key>) -> Vec<T::Msg> {
        let arrived = self.arrived.lock();
        let messages = arrived.get(&canonical(&key.into_key())).map_or(&[][..], Vec::as_slice);
        let read = |bytes: &Vec<u8>| T::Msg::decode(*T::Msg::VERSIONS.end(), &mut &bytes[..]);
        messages.iter().map(|bytes| read(bytes).unwrap_or_else(|e| panic!("a message of `{}` cannot be read back: {e}", T::TYPE))).collect()
    }

    /// How many messages have arrived, for whichever entity.
    pub fn count(&self) -> usize {
        self.arrived.lock().values().map(Vec::len).sum()
    }
}
