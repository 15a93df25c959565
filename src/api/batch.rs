//! Many messages at once.

use std::{collections::HashMap, fmt, sync::Arc};

use foldhash::fast::FixedState;

use super::{
    context::{bad_key, resolve},
    reference::{AwaitRoom, is_for_now, on_worker_thread},
};
use crate::{
    Deadline, EntityKey, EntityType, IntoKey, Message, Refusal, TellError,
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
    waiting: Vec<(T::Key, Key, T::Msg)>,
    /// Those of a round that found no room and go again in the next.
    kept: Vec<(T::Key, Key, T::Msg)>,
    /// Keys with a message that was refused in this round, and why.
    stuck: HashMap<T::Key, Refusal, FixedState>,
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
        Self { node, entry, waiting: vec![], kept: vec![], stuck: HashMap::default(), scratch: vec![] }
    }

    /// Adds a message. Sends nothing.
    pub fn push(&mut self, key: impl IntoKey<T::Key>, msg: impl Message<T>) -> &mut Self {
        let id = key.into_key();
        self.scratch.clear();
        id.write_to(&mut self.scratch);
        let key = Key::new(&self.scratch);
        self.waiting.push((id, key, msg.into_msg()));
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
        self.round(false, &mut report);
        self.counted(report)
    }

    /// As [`send`](Self::send), but what finds no room waits for it, each entity's messages in their order, until the deadline. What waits stays
    /// where it is and costs no allocation. For client threads; on a worker `WouldDeadlock` at once.
    pub fn send_within(&mut self, deadline: impl Into<Deadline>) -> BatchReport<T> {
        let mut report = BatchReport { accepted: 0, refused: vec![] };
        if on_worker_thread() {
            self.give_back(&Refusal::WouldDeadlock, &mut report);
            return self.counted(report);
        }
        self.round(true, &mut report);
        // The clock is read only once there is something to wait for.
        if !self.is_empty() {
            let (node, deadline) = (self.node.clone(), resolve(&self.node, deadline));
            let mut room = AwaitRoom::new(&node);
            while !self.is_empty() && node.now() < deadline {
                room.wait();
                let before = self.len();
                self.round(true, &mut report);
                if self.len() < before {
                    room = AwaitRoom::new(&node);
                }
            }
            self.round(false, &mut report);
        }
        self.counted(report)
    }

    fn counted(&self, report: BatchReport<T>) -> BatchReport<T> {
        self.node.metrics.shared.sends_refused.add(report.refused.len() as u64);
        report
    }

    /// Offers all that waits once. What finds no room waits on if it is to be kept, and stands in the report otherwise.
    fn round(&mut self, keep: bool, report: &mut BatchReport<T>) {
        let Self { node, entry, waiting, kept, stuck, .. } = self;
        stuck.clear();
        // Left by a round that panicked in code of the user's.
        waiting.splice(0..0, kept.drain(..));
        let sent = node.batch(|exits| {
            for (id, key, msg) in waiting.drain(..) {
                let refusal = if stuck.is_empty() { None } else { stuck.get(&id).cloned() };
                let refused = match refusal.or_else(|| bad_key(key.bytes())) {
                    Some(refusal) => Err((refusal, msg)),
                    None => exits.send_letter(node, entry, Outgoing { key: &key, ask: None, reads: 0, msg }),
                };
                match refused {
                    Ok(()) => report.accepted += 1,
                    Err((refusal, msg)) => {
                        let again = keep && is_for_now(&refusal);
                        stuck.insert(id.clone(), refusal.clone());
                        if again {
                            kept.push((id, key, msg));
                        } else {
                            report.refused.push((id, TellError::new(refusal, msg)));
                        }
                    }
                }
            }
        });
        match sent {
            Some(()) => std::mem::swap(waiting, kept),
            None => self.give_back(&Refusal::Shutdown, report),
        }
    }

    fn give_back(&mut self, why: &Refusal, report: &mut BatchReport<T>) {
        report.refused.extend(self.waiting.drain(..).map(|(id, _, msg)| (id, TellError::new(why.clone(), msg))));
    }
}
