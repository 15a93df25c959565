//! Many messages at once.

use std::{
    collections::{HashMap, VecDeque},
    fmt, mem,
    sync::Arc,
};

use foldhash::fast::FixedState;

use super::{
    context::{bad_key, resolve},
    reference::{AwaitRoom, is_for_now, on_engine_thread},
};
use crate::{
    Deadline, EntityKey, EntityType, IntoKey, Message, Refusal, TellError,
    engine::{
        exits::{Abroad, Nobody, Outgoing},
        letter::Drafts,
        node::Node,
        parcel::Key,
        types::TypeEntry,
    },
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
    waiting: Waiting<T>,
    /// Those of a round that found no room and go again in the next.
    kept: Waiting<T>,
    /// Keys with a message that was refused in this round, and why.
    stuck: HashMap<T::Key, Refusal, FixedState>,
    /// Room for the bytes of a key.
    scratch: Vec<u8>,
}

/// Messages in their order.
struct Waiting<T: EntityType> {
    /// Whose they are.
    ids: Vec<T::Key>,
    drafts: Drafts<T::Msg>,
    /// What cannot be drafted, because of its key or its size, by its place among the others.
    odd: VecDeque<(usize, Key, T::Msg)>,
}

impl<T: EntityType> Default for Waiting<T> {
    fn default() -> Self {
        Self { ids: vec![], drafts: Drafts::default(), odd: VecDeque::new() }
    }
}

impl<T: EntityType> Waiting<T> {
    /// Adds a message, which is made where it is going to stand; `scratch` is room for the bytes of its key.
    #[inline(always)]
    fn push(&mut self, id: T::Key, msg: impl FnOnce() -> T::Msg, scratch: &mut Vec<u8>) {
        scratch.clear();
        id.write_to(scratch);
        match <[u8; 8]>::try_from(&scratch[..]) {
            // Most keys are numbers: where their length is known, so is all that follows from it.
            Ok(key) if Drafts::<T::Msg>::TAKES => self.drafts.push(&key, Key::hash_of(&key), msg()),
            _ => self.push_any(scratch, msg()),
        }
        self.ids.push(id);
    }

    /// Adds a message, whose key is added next.
    #[inline(never)]
    fn push_any(&mut self, key: &[u8], msg: T::Msg) {
        let hash = Key::hash_of(key);
        if Drafts::<T::Msg>::TAKES && bad_key(key).is_none() {
            self.drafts.push(key, hash, msg);
        } else {
            self.odd.push_back((self.ids.len(), Key::hashed(key, hash), msg));
        }
    }

    /// Adds a message that was refused for now.
    #[inline(never)]
    fn push_again(&mut self, id: T::Key, msg: T::Msg, scratch: &mut Vec<u8>) {
        self.push(id, || msg, scratch);
    }

    /// Gives all back for that reason.
    fn give_back(&mut self, why: &Refusal, report: &mut BatchReport<T>) {
        let Self { ids, drafts, odd } = self;
        for (at, id) in ids.drain(..).enumerate() {
            let msg = next_odd(odd, at).map(|(_, _, msg)| msg).or_else(|| drafts.next()?.take());
            report.refused.extend(msg.map(|msg| (id, TellError::new(why.clone(), msg))));
        }
        drafts.clear();
    }
}

/// The odd message with that place, if it is the next one.
#[inline]
fn next_odd<M>(odd: &mut VecDeque<(usize, Key, M)>, at: usize) -> Option<(usize, Key, M)> {
    if odd.front().is_some_and(|odd| odd.0 == at) { odd.pop_front() } else { None }
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
        Self { node, entry, waiting: Waiting::default(), kept: Waiting::default(), stuck: HashMap::default(), scratch: vec![] }
    }

    /// Adds a message. Sends nothing.
    // Taken in wherever it is called, so that the message is made where it is going to stand: handed over, it is written in one way and read in another,
    // which waits until all stores before it have left for the cache.
    #[inline(always)]
    pub fn push(&mut self, key: impl IntoKey<T::Key>, msg: impl Message<T>) -> &mut Self {
        self.waiting.push(key.into_key(), || msg.into_msg(), &mut self.scratch);
        self
    }

    /// Messages added since the last `send`.
    pub fn len(&self) -> usize {
        self.waiting.ids.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.waiting.ids.is_empty()
    }

    /// Sends what is in it, each message as [`EntityRef::tell`](crate::EntityRef::tell) would, and empties it for the next round. Does not block.
    pub fn send(&mut self) -> BatchReport<T> {
        let mut report = BatchReport { accepted: 0, refused: vec![] };
        self.round(false, &mut report);
        self.counted(report)
    }

    /// As [`send`](Self::send), but what finds no room waits for it, each entity's messages in their order, until the deadline. What waits stays
    /// where it is and costs no allocation. Where it waits for other nodes, the thread does turns of this node's network meanwhile, on its own stack. For
    /// client threads; on a worker `WouldDeadlock` at once.
    pub fn send_within(&mut self, deadline: impl Into<Deadline>) -> BatchReport<T> {
        let mut report = BatchReport { accepted: 0, refused: vec![] };
        if on_engine_thread() {
            self.waiting.give_back(&Refusal::WouldDeadlock, &mut report);
            return self.counted(report);
        }
        self.round(true, &mut report);
        // The clock is read only once there is something to wait for.
        if !self.is_empty() {
            let (node, deadline) = (self.node.clone(), resolve(&self.node, deadline));
            let mut room = AwaitRoom::new(&node);
            while !self.is_empty() && node.now() < deadline {
                let (before, looked) = (self.len(), self.look_for_room());
                if looked.is_ok() {
                    self.round(true, &mut report);
                }
                if self.len() < before {
                    room = AwaitRoom::new(&node);
                } else {
                    // Also where there was some, but not enough: a change of exit wants room at the network for its token.
                    room.wait(looked != Err(Abroad(false)));
                }
            }
            self.round(false, &mut report);
        }
        self.counted(report)
    }

    /// Whether it makes sense to offer what waits again.
    fn look_for_room(&self) -> Result<(), Abroad> {
        if !self.waiting.odd.is_empty() {
            return Ok(());
        }
        self.node.batch(|exits| exits.look_for_room(&self.entry, &self.waiting.drafts, self.len())).unwrap_or(Ok(()))
    }

    fn counted(&self, report: BatchReport<T>) -> BatchReport<T> {
        if !report.refused.is_empty() {
            self.node.metrics.shared.sends_refused.add(report.refused.len() as u64);
        }
        report
    }

    /// Offers all that waits once. What finds no room waits on if it is to be kept, and stands in the report otherwise.
    fn round(&mut self, keep: bool, report: &mut BatchReport<T>) {
        // Out of here for as long as encoders run: one that panics ends the batch.
        let (mut waiting, mut kept, mut stuck) = (mem::take(&mut self.waiting), mem::take(&mut self.kept), mem::take(&mut self.stuck));
        let Self { node, entry, scratch, .. } = self;
        stuck.clear();
        let sent = node.batch(|exits| {
            let Waiting { ids, drafts, odd } = &mut waiting;
            let mut at = if odd.is_empty() { exits.send_drafts(node, entry, drafts) } else { 0 };
            report.accepted += at;
            if at == ids.len() {
                ids.clear();
                drafts.clear();
                return;
            }
            let mut ids = ids.drain(..);
            ids.by_ref().take(at).for_each(drop);
            while let Some(id) = ids.next() {
                let stuck_by = if stuck.is_empty() { None } else { stuck.get(&id).cloned() };
                let odd_one = next_odd(odd, at);
                at += 1;
                let sent = match (odd_one, stuck_by) {
                    (None, None) => drafts.next().map_or(Ok(()), |draft| exits.send_draft(node, entry, draft)),
                    (None, Some(refusal)) => drafts.next().map_or(Ok(()), |mut draft| Err((refusal, draft.take()))),
                    (Some((_, key, msg)), refusal) => {
                        let mut msg = Some(msg);
                        let letter = Outgoing { key: key.bytes(), hash: key.hash, asks: Nobody, msg: &mut msg };
                        let sent = refusal.or_else(|| bad_key(key.bytes())).map_or_else(|| exits.send_letter(node, entry, letter), Err);
                        sent.map_err(|refusal| (refusal, msg))
                    }
                };
                match sent {
                    Ok(()) => {
                        report.accepted += 1;
                        if stuck.is_empty() && odd.is_empty() {
                            let straight = exits.send_drafts(node, entry, drafts);
                            ids.by_ref().take(straight).for_each(drop);
                            (at, report.accepted) = (at + straight, report.accepted + straight);
                        }
                    }
                    Err((refusal, msg)) => {
                        let Some(msg) = msg else { continue };
                        // A long batch may last longer than the node.
                        let refusal = if is_for_now(&refusal) && node.is_closing() { Refusal::Shutdown } else { refusal };
                        let again = keep && is_for_now(&refusal);
                        stuck.insert(id.clone(), refusal.clone());
                        if again {
                            kept.push_again(id, msg, scratch);
                        } else {
                            report.refused.push((id, TellError::new(refusal, msg)));
                        }
                    }
                }
            }
            drafts.clear();
        });
        if sent.is_some() {
            mem::swap(&mut waiting, &mut kept);
        } else {
            waiting.give_back(&Refusal::Shutdown, report);
        }
        (self.waiting, self.kept, self.stuck) = (waiting, kept, stuck);
    }
}
