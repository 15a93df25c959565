//! Many messages at once.

use std::{collections::HashMap, fmt, sync::Arc};

use foldhash::fast::FixedState;

use super::context::bad_key;
use crate::{
    EntityKey, EntityType, IntoKey, Message, Refusal, TellError,
    engine::{exits::Outgoing, node::Node, parcel::Key, types::TypeEntry},
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
    /// Whose, and what; without the message once that is sent.
    waiting: Vec<(T::Key, Key, Option<T::Msg>)>,
    /// Room for the bytes of a key.
    scratch: Vec<u8>,
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
        Self { node, entry, waiting: vec![], scratch: vec![] }
    }

    /// Adds a message. Sends nothing.
    pub fn push(&mut self, key: impl IntoKey<T::Key>, msg: impl Message<T>) -> &mut Self {
        let id = key.into_key();
        self.scratch.clear();
        id.write_to(&mut self.scratch);
        let key = Key::new(&self.scratch);
        self.waiting.push((id, key, Some(msg.into_msg())));
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
        // Out of here for as long as encoders run: one that panics ends the batch.
        let mut waiting = std::mem::take(&mut self.waiting);
        let Self { node, entry, .. } = self;
        let sent = node.batch(|exits| {
            // Keys with a message that was refused, and why.
            let mut stuck: HashMap<T::Key, Refusal, FixedState> = HashMap::default();
            for (id, key, msg) in &mut *waiting {
                let refusal = if stuck.is_empty() { None } else { stuck.get(id).cloned() };
                let sent = match refusal.or_else(|| bad_key(key.bytes())) {
                    Some(refusal) => Err(refusal),
                    None => exits.send_letter(node, entry, Outgoing { key, ask: None, reads: 0, msg }),
                };
                match sent {
                    Ok(()) => report.accepted += 1,
                    Err(refusal) => {
                        stuck.insert(id.clone(), refusal.clone());
                        report.refused.extend(msg.take().map(|msg| (id.clone(), TellError::new(refusal, msg))));
                    }
                }
            }
        });
        if sent.is_none() {
            let refused = |(id, _, msg): (T::Key, Key, Option<T::Msg>)| Some((id, TellError::new(Refusal::Shutdown, msg?)));
            report.refused.extend(waiting.drain(..).filter_map(refused));
        }
        waiting.clear();
        self.waiting = waiting;
        if !report.refused.is_empty() {
            self.node.metrics.shared.sends_refused.add(report.refused.len() as u64);
        }
        report
    }
}
