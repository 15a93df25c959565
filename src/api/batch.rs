//! Many messages at once.

use std::{
    collections::{HashMap, VecDeque},
    fmt,
    sync::Arc,
};

use foldhash::fast::FixedState;

use super::context::bad_key;
use crate::{
    EntityKey, EntityType, IntoKey, Message, Refusal, TellError,
    engine::{exits::Outgoing, letter::Drafts, node::Node, parcel::Key, types::TypeEntry},
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
    /// Whose they are, in order.
    ids: Vec<T::Key>,
    drafts: Drafts<T::Msg>,
    /// What cannot be drafted, because of its key or its size, by its place among the others.
    odd: VecDeque<(usize, Key, T::Msg)>,
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
        Self { node, entry, ids: vec![], drafts: Drafts::default(), odd: VecDeque::new(), scratch: vec![] }
    }

    /// Adds a message. Sends nothing.
    pub fn push(&mut self, key: impl IntoKey<T::Key>, msg: impl Message<T>) -> &mut Self {
        let id = key.into_key();
        self.scratch.clear();
        id.write_to(&mut self.scratch);
        let (key, hash) = (&self.scratch[..], Key::hash_of(&self.scratch));
        if Drafts::<T::Msg>::TAKES && bad_key(key).is_none() {
            self.drafts.push(key, hash, msg.into_msg());
        } else {
            self.odd.push_back((self.ids.len(), Key::hashed(key, hash), msg.into_msg()));
        }
        self.ids.push(id);
        self
    }

    /// Messages added since the last `send`.
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// Sends what is in it, each message as [`EntityRef::tell`](crate::EntityRef::tell) would, and empties it for the next round. Does not block.
    pub fn send(&mut self) -> BatchReport<T> {
        let mut report = BatchReport { accepted: 0, refused: vec![] };
        // Out of here for as long as encoders run: one that panics ends the batch.
        let (mut ids, mut drafts, mut odd) =
            (std::mem::take(&mut self.ids), std::mem::take(&mut self.drafts), std::mem::take(&mut self.odd));
        let Self { node, entry, .. } = self;
        let sent = node.batch(|exits| {
            // Keys with a message that was refused, and why.
            let mut stuck: HashMap<T::Key, Refusal, FixedState> = HashMap::default();
            for (at, id) in ids.iter().enumerate() {
                let stuck_by = if stuck.is_empty() { None } else { stuck.get(id).cloned() };
                let sent = match (next_odd(&mut odd, at), stuck_by) {
                    (None, None) => drafts.next().map_or(Ok(()), |draft| exits.send_draft(node, entry, draft)),
                    (None, Some(refusal)) => drafts.next().map_or(Ok(()), |mut draft| Err((refusal, draft.take()))),
                    (Some((_, key, msg)), refusal) => {
                        let mut msg = Some(msg);
                        let letter = Outgoing { key: key.bytes(), hash: key.hash, ask: None, reads: 0, msg: &mut msg };
                        let sent = refusal.or_else(|| bad_key(key.bytes())).map_or_else(|| exits.send_letter(node, entry, letter), Err);
                        sent.map_err(|refusal| (refusal, msg))
                    }
                };
                match sent {
                    Ok(()) => report.accepted += 1,
                    Err((refusal, msg)) => {
                        stuck.insert(id.clone(), refusal.clone());
                        report.refused.extend(msg.map(|msg| (id.clone(), TellError::new(refusal, msg))));
                    }
                }
            }
        });
        if sent.is_none() {
            for (at, id) in ids.iter().enumerate() {
                let odd = next_odd(&mut odd, at).map(|(_, _, msg)| msg);
                let msg = odd.or_else(|| drafts.next()?.take());
                report.refused.extend(msg.map(|msg| (id.clone(), TellError::new(Refusal::Shutdown, msg))));
            }
        }
        ids.clear();
        drafts.clear();
        (self.ids, self.drafts, self.odd) = (ids, drafts, odd);
        if !report.refused.is_empty() {
            self.node.metrics.shared.sends_refused.add(report.refused.len() as u64);
        }
        report
    }
}

/// The odd message with that place, if it is the next one.
#[inline]
fn next_odd<M>(odd: &mut VecDeque<(usize, Key, M)>, at: usize) -> Option<(usize, Key, M)> {
    if odd.front().is_some_and(|odd| odd.0 == at) { odd.pop_front() } else { None }
}
