//! Many messages at once.

use std::{collections::HashMap, fmt, sync::Arc};

use foldhash::fast::FixedState;

use super::{context::bad_key, hosting::key_of, reference::give_back};
use crate::{
    EntityType, IntoKey, Message, Refusal, TellError,
    engine::{message::AnyMessage, node::Node, parcel::EngineParcel, types::TypeEntry},
};

/// Messages for many entities, sent together; what is refused comes back in one list. Its memory is kept from round to round.
///
/// # Guaranteed
/// Messages to one entity keep their order, also relative to what the thread sent before and sends after. If one is refused, those after it
/// *for the same entity* are refused too, so that a later one never overtakes it.
///
/// # Not guaranteed
/// A batch is no transaction: some may be accepted and others refused.
#[must_use = "nothing is sent before `send`"]
pub struct Batch<T: EntityType> {
    node: Arc<Node>,
    entry: Arc<TypeEntry>,
    waiting: Vec<(T::Key, T::Msg)>,
}

/// What became of a batch.
#[must_use = "refused messages are in here"]
#[non_exhaustive]
pub struct BatchReport<T: EntityType> {
    /// Messages that were accepted.
    pub accepted: usize,
    /// Those that were not, in order, each with its key and reason.
    pub refused: Vec<(T::Key, TellError<T::Msg>)>,
}

impl<T: EntityType> fmt::Debug for Batch<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Batch({}, {} waiting)", T::TYPE, self.len())
    }
}

impl<T: EntityType> fmt::Debug for BatchReport<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BatchReport").field("accepted", &self.accepted).field("refused", &self.refused).finish()
    }
}

impl<T: EntityType> Batch<T> {
    pub(crate) fn new(node: Arc<Node>, entry: Arc<TypeEntry>) -> Self {
        Self { node, entry, waiting: vec![] }
    }

    /// Adds a message. Sends nothing.
    pub fn push(&mut self, key: impl IntoKey<T::Key>, msg: impl Message<T>) -> &mut Self {
        self.waiting.push((key.into_key(), msg.into_msg()));
        self
    }

    /// Messages added since the last `send`.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Sends what is in it, each message as [`EntityRef::tell`](crate::EntityRef::tell) would, and empties it for the next round. Does not block.
    pub fn send(&mut self) -> BatchReport<T> {
        let mut report = BatchReport { accepted: 0, refused: vec![] };
        // Keys with a message that was refused, and why.
        let mut stuck: HashMap<T::Key, Refusal, FixedState> = HashMap::default();
        for (id, msg) in self.waiting.drain(..) {
            let key = key_of(&id);
            let refusal = match stuck.get(&id) {
                Some(refusal) => Some(refusal.clone()),
                None => bad_key(key.bytes()),
            };
            if let Some(refusal) = refusal {
                report.refused.push((id, TellError::new(refusal, msg)));
                continue;
            }
            let mut parcel = Some(EngineParcel::told(key, AnyMessage::new(msg)));
            match self.node.send(&self.entry, &mut parcel) {
                Ok(()) => report.accepted += 1,
                Err(refusal) => {
                    stuck.insert(id.clone(), refusal.clone());
                    report.refused.push((id, TellError::new(refusal, give_back(parcel))));
                }
            }
        }
        self.node.metrics.shared.sends_refused.add(report.refused.len() as u64);
        report
    }
}
