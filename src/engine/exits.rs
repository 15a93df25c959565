//! The two exits of a producer: the ring of a local worker, or the ring of the network thread.
//!
//! A thread owns its lanes from its first send until it ends; each thread has a set per node that it sends through.

use std::{
    cell::RefCell,
    sync::{Arc, Weak},
};

use crate::{
    Epoch, Refusal, ShardId, ShardKey, Time, TypeId, Wire,
    engine::{
        lane::LaneSender,
        letter::{Address, Draft, Drafts, LETTER_MAX, fits},
        message::AnyMessage,
        node::{Node, ToNet, ToWorker},
        parcel::{EngineParcel, Key, message_of, with_scratch},
        past::Past,
        senders::Senders,
        sys,
        types::TypeEntry,
    },
    proto::{
        handoff::{Ask, DropReason, Envelope, Plan, Producer, Push, Word},
        queue::take,
        shard::{LaneItem, Parcel},
        sharding::UNSIZED,
    },
};

/// The lanes of one producer.
pub struct Exits {
    network: LaneSender<ToNet>,
    workers: Vec<LaneSender<ToWorker>>,
    producer: Producer,
    /// The word used last, per type and shard: while it stands, the exit stays and no token is due. What `producer` knows, without a search.
    last: Vec<(TypeId, Box<[Word]>)>,
    /// Bells wait for the end of a batch.
    held: bool,
    /// Of a worker's entities, if this is a worker's.
    senders: Option<Box<Senders>>,
    /// By which way batches are written.
    writing: Past,
}

/// A message, its entity, and who waits for the answer.
pub struct Outgoing<'a, M, A> {
    /// Canonical bytes of the entity's key.
    pub key: &'a [u8],
    /// XXH3-64 of the key.
    pub hash: u64,
    /// Who waits for an answer.
    pub asks: A,
    /// The message; it is taken when it is sent.
    pub msg: &'a mut Option<M>,
}

/// Who waits for the answer to a message. By its type, so that the way of one that nobody waits for is compiled for that, whatever else is sent: with
/// one function for both kinds, telling takes a third more instructions.
pub trait Asks: Copy {
    /// Who waits, and the newest version of the answer that is read there; 0 if nobody does.
    fn asks(self) -> (Option<Ask>, u8);
}

/// Nobody waits.
#[derive(Copy, Clone)]
pub struct Nobody;

impl Asks for Nobody {
    #[inline(always)]
    fn asks(self) -> (Option<Ask>, u8) {
        (None, 0)
    }
}

impl Asks for (Option<Ask>, u8) {
    #[inline(always)]
    fn asks(self) -> (Option<Ask>, u8) {
        self
    }
}

/// What became of a message on the short way.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Way {
    /// It is in a ring.
    Sent,
    /// There was no room.
    Full,
    /// It has to go by [`send_item`](Exits::send_item).
    Long,
}

/// There is no room; whether it is the network's.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Abroad(pub bool);

impl Exits {
    /// Opens a lane to every consumer of the node.
    pub fn open(node: &Node) -> Self {
        let id = node.next_lane();
        let capacity = node.config.limits.ring_items as usize;
        Self {
            network: node.network.open(id, capacity),
            workers: node.workers.iter().map(|w| w.open(id, capacity)).collect(),
            producer: Producer::default(),
            last: vec![],
            held: false,
            senders: None,
            writing: if node.clock.is_virtual() { Past::never() } else { Past::default() },
        }
    }

    /// These are the lanes of a worker, whose entities send by them.
    pub fn belong_to(&mut self, senders: Senders) {
        self.senders = Some(Box::new(senders));
    }

    /// Of the worker whose lanes these are.
    pub fn senders(&mut self) -> Option<&mut Senders> {
        self.senders.as_deref_mut()
    }

    /// Whether a message may go to that shard now: not if its sender is an entity whose earlier messages to there may still be on their way.
    #[inline(always)]
    fn may_go(&mut self, shard: ShardKey) -> bool {
        self.senders.as_mut().is_none_or(|senders| senders.may_go(shard))
    }

    /// Sends a message by the shortest way there is. On `Err` it is still in its place, and nothing has changed (moves.md L9).
    pub fn send_letter<M: Wire, A: Asks>(&mut self, node: &Node, entry: &TypeEntry, mut letter: Outgoing<'_, M, A>) -> Result<(), Refusal> {
        match self.short_way(node, entry, &mut letter) {
            Way::Sent => Ok(()),
            Way::Full => Err(Refusal::Full),
            Way::Long => self.send_item(node, entry, letter),
        }
    }

    /// Sends a message straight into the ring that its shard's word names, if nothing has changed since the last one. Unless it is sent it is
    /// still in its place, and nothing has changed (moves.md L9). It says no more than that, as a refusal is long to hand on.
    #[inline(always)]
    pub fn short_way<M: Wire, A: Asks>(&mut self, node: &Node, entry: &TypeEntry, letter: &mut Outgoing<'_, M, A>) -> Way {
        let Outgoing { key, hash, asks, .. } = *letter;
        let (ask, reads) = asks.asks();
        let msg = &mut *letter.msg;
        let (shard, word) = entry.route(hash);
        if !self.may_go(shard) {
            return Way::Long;
        }
        if self.last_word(entry, shard.shard) != Some(word) {
            return Way::Long;
        }
        if let Some((worker, tag)) = word.exit()
            && fits::<M>()
        {
            let ring = &mut self.workers[usize::from(worker)];
            let sent = ring.letter(&Address { shard, tag, stream: None, key, hash, ask, reads }, msg);
            if self.held {
                ring.wrote();
            } else {
                ring.ring_bell();
            }
            return if sent { Way::Sent } else { Way::Full };
        }
        if word != Word::ELSEWHERE {
            return Way::Long;
        }
        let Some(message) = &*msg else { return Way::Long };
        let address = Address { shard, tag: Epoch::ZERO, stream: None, key, hash, ask, reads };
        let way = self.send_encoded(node, &address, message);
        if way == Way::Sent {
            // Dropped last: it is of the user's making, and its end may panic.
            *msg = None;
        }
        way
    }

    /// As [`send_letter`](Self::send_letter), with a message that is written already. On `Err` it is given back.
    #[inline(always)]
    pub fn send_draft<M: Wire>(&mut self, node: &Node, entry: &TypeEntry, mut draft: Draft<'_, M>) -> Result<(), (Refusal, Option<M>)> {
        let (shard, word) = entry.route(draft.hash());
        let stands = self.may_go(shard) && self.last_word(entry, shard.shard) == Some(word);
        if let Some((worker, tag)) = word.exit()
            && stands
        {
            let ring = &mut self.workers[usize::from(worker)];
            let sent = ring.draft::<M, false>(&mut draft, shard, tag);
            if !self.held {
                ring.ring_bell();
            }
            return if sent { Ok(()) } else { Err((Refusal::Full, draft.take())) };
        }
        if stands && word == Word::ELSEWHERE {
            match self.send_encoded(node, &draft.abroad(shard), draft.message()) {
                Way::Sent => return Ok(()),
                Way::Full => return Err((Refusal::Full, draft.take())),
                Way::Long => {}
            }
        }
        let mut msg = draft.take();
        let letter = Outgoing { key: draft.key(), hash: draft.hash(), asks: Nobody, msg: &mut msg };
        self.send_item(node, entry, letter).map_err(|refusal| (refusal, msg))
    }

    /// Sends those of the drafts at the front for which nothing has changed since the last message to their shards, as
    /// [`send_draft`](Self::send_draft) would: how many. None of an entity's, which are looked at one by one.
    pub fn send_drafts<M: Wire>(&mut self, node: &Node, entry: &TypeEntry, drafts: &mut Drafts<M>) -> usize {
        debug_assert!(self.held, "who sends many rings the bells at the end");
        if self.senders.is_some() {
            return 0;
        }
        let bytes = drafts.bytes();
        let writing = self.writing.begin(bytes, sys::ticks);
        let sent = if writing.past {
            let sent = self.send_drafts_by::<M, true>(node, entry, drafts);
            // Here, as it is a part of what this way costs.
            self.workers.iter_mut().for_each(LaneSender::settle);
            sent
        } else {
            self.send_drafts_by::<M, false>(node, entry, drafts)
        };
        self.writing.end(writing, bytes - drafts.bytes(), sys::ticks);
        sent
    }

    /// In a loop of its own, as they are nearly all. `PAST`: past the caches.
    #[inline(never)]
    fn send_drafts_by<M: Wire, const PAST: bool>(&mut self, node: &Node, entry: &TypeEntry, drafts: &mut Drafts<M>) -> usize {
        let Self { network, workers, last, .. } = self;
        let Some(last) = words_of(last, entry.id) else { return 0 };
        with_scratch(|scratch| {
            drafts.send_while(|draft| {
                let (shard, word) = entry.route(draft.hash());
                if last.get(shard.shard.0 as usize) != Some(&word) {
                    return;
                }
                if let Some((worker, tag)) = word.exit() {
                    workers[usize::from(worker)].draft::<M, PAST>(draft, shard, tag);
                } else if word == Word::ELSEWHERE && encoded(network, node, &draft.abroad(shard), draft.message(), scratch) == Way::Sent {
                    drop(draft.take());
                }
            })
        })
    }

    /// Whether those of the drafts, of which there are so many, that go by some exit would find room there, for a good part of them. `Err` says
    /// whether one of the exits without room is the network's. A look, as to offer them all again costs a hundred times as much.
    pub fn look_for_room<M: Wire>(&mut self, entry: &TypeEntry, drafts: &Drafts<M>, count: usize) -> Result<(), Abroad> {
        let (mut abroad, mut seen) = (false, None);
        for hash in drafts.hashes() {
            // Shards that have moved have words of their own, and share the ring.
            let word = entry.route(hash).1;
            let exit = word.exit().map(|(worker, _)| worker).ok_or(word == Word::NO_ROOM);
            if seen.replace(exit) == Some(exit) {
                continue;
            }
            let has_room = match exit {
                Ok(worker) => self.workers[usize::from(worker)].has_much_room(count),
                Err(no_room) => {
                    abroad = true;
                    !no_room && self.network.has_much_room(count)
                }
            };
            if has_room {
                return Ok(());
            }
        }
        Err(Abroad(abroad))
    }

    /// Writes a message to a shard elsewhere, encoded, into the ring of the network thread, where the last one to that shard went too. One that
    /// is too long for that, or has no encoding, goes the long way, which says so.
    #[inline(never)]
    fn send_encoded<M: Wire>(&mut self, node: &Node, address: &Address<'_>, message: &M) -> Way {
        let way = with_scratch(|scratch| encoded(&mut self.network, node, address, message, scratch));
        if way != Way::Long && !self.held {
            self.network.ring_bell();
        }
        way
    }

    /// Sends a message as an item, which goes every way. On `Err` it is still in its place.
    #[inline(never)]
    pub fn send_item<M: Wire, A: Asks>(&mut self, node: &Node, entry: &TypeEntry, letter: Outgoing<'_, M, A>) -> Result<(), Refusal> {
        let Outgoing { key, hash, asks, msg } = letter;
        let (ask, reads) = asks.asks();
        let Some(message) = msg.take() else { return Ok(()) };
        let mut parcel = Some(EngineParcel::Typed { key: Key::hashed(key, hash), ask, reads, msg: AnyMessage::new(message) });
        self.send(node, entry, &mut parcel).inspect_err(|_| *msg = Some(give_back(parcel)))
    }

    /// The word by which the last message to that shard went.
    #[inline]
    fn last_word(&self, entry: &TypeEntry, shard: ShardId) -> Option<Word> {
        words_of(&self.last, entry.id)?.get(shard.0 as usize).copied()
    }

    /// Runs `f` with one bell for all that it sends.
    pub fn batch<R>(&mut self, f: impl FnOnce(&mut Self) -> R) -> R {
        self.held = true;
        let batch = Held(self);
        f(batch.0)
    }

    /// Runs `f` with one bell for all that it sends, but for what the network thread got. True: it got something, and was not told.
    pub fn batch_abroad_untold<R>(&mut self, f: impl FnOnce(&mut Self) -> R) -> (R, bool) {
        self.batch(|exits| {
            let result = f(exits);
            (result, exits.network.publish())
        })
    }

    /// Wakes whoever has got something and sleeps.
    pub fn ring_bells(&mut self) {
        self.workers.iter_mut().filter(|ring| ring.has_news()).for_each(|ring| _ = ring.ring_bell());
        if self.network.has_news() {
            self.network.ring_bell();
        }
    }

    /// The ring of the network thread.
    pub fn network(&mut self) -> &mut LaneSender<ToNet> {
        &mut self.network
    }

    /// Puts an item into the ring of each worker. Which of them had no room.
    pub fn tell_workers(&mut self, mut make: impl FnMut() -> ToWorker) -> Vec<usize> {
        let mut takes = |ring: &mut LaneSender<ToWorker>| ring.has_room(1) && ring.push(make()).is_ok();
        let full = (0..self.workers.len()).filter(|worker| !takes(&mut self.workers[*worker])).collect();
        self.workers.iter_mut().for_each(|ring| _ = ring.ring_bell());
        full
    }

    /// Puts something for other nodes into the ring of the network thread. `Err`: it has no room.
    pub fn tell_network(&mut self, item: ToNet) -> Result<(), Refusal> {
        if !self.network.has_room(1) {
            return Err(Refusal::Full);
        }
        let pushed = self.network.push(item).map_err(|_| Refusal::Full);
        self.network.ring_bell();
        pushed
    }

    /// Sends the message in `slot` by the exit that its shard's word names. On `Err` it is still there, and nothing has changed
    /// (moves.md L9). Taken from where it stands, because each move of it copies a few cache lines.
    pub fn send(&mut self, node: &Node, entry: &TypeEntry, slot: &mut Option<EngineParcel>) -> Result<(), Refusal> {
        let Some(parcel) = slot.as_ref() else { return Ok(()) };
        let shard = entry.shard_of(parcel.hash());
        if parcel.sign().is_none()
            && !self.may_go(shard)
            && let Some(senders) = &mut self.senders
            && let Some(target) = senders.waits_for(shard, parcel.hash())
        {
            senders.hold(target, encode(node, target, parcel)?)?;
            // What was encoded goes last: it is of the user's making, and its end may panic.
            *slot = None;
            return Ok(());
        }
        let word = entry.word(shard.shard);
        if word == Word::NO_ROOM {
            return Err(Refusal::NoCredit);
        }
        // Without a shard there is one exit, and nothing to remember: the network thread finds the shard in front of all later messages.
        let at = (shard.shard != UNSIZED).then(|| self.last_words(entry));
        let last = at.map_or(Word::ELSEWHERE, |at| self.last[at].1[shard.shard.0 as usize]);
        let plan =
            if last == word { Plan { tokens: [None, None], exit: word.exit(), enter: None } } else { self.producer.plan(shard, word) };
        // At most two tokens and the item go into one ring.
        if plan.tokens[0].is_some() && !self.network.has_room(3) {
            return Err(Refusal::Full);
        }
        // One who leaves many shards of a busy worker comes to the end of the reserve too.
        if let Some(Push::LeaveWorker(worker, _)) = plan.tokens[0]
            && !self.workers[usize::from(worker)].has_reserve()
        {
            return Err(Refusal::Full);
        }
        let target = match plan.exit {
            Some((worker, tag)) => {
                if !self.workers[usize::from(worker)].has_room(3) {
                    return Err(Refusal::Full);
                }
                Target::Worker(worker, tag)
            }
            None => {
                if !self.network.has_room(3) {
                    return Err(Refusal::Full);
                }
                Target::Network(encode(node, shard, parcel)?)
            }
        };
        for token in plan.tokens.into_iter().flatten() {
            let pushed = match token {
                Push::LeaveNetwork(k) => self.network.push(ToNet::Lane(LaneItem::Leave { shard, k })).is_ok(),
                Push::LeaveWorker(worker, k) => {
                    self.workers[usize::from(worker)].push(ToWorker::Lane(LaneItem::Leave { shard, k })).is_ok()
                }
                Push::Through(k, k2) => self.network.push(ToNet::Lane(LaneItem::Through { shard, k, k2 })).is_ok(),
            };
            assert!(pushed, "room for the tokens was seen, and a lane has one producer");
            if let Push::LeaveWorker(worker, _) = token {
                self.workers[usize::from(worker)].ring_bell();
            } else {
                self.network.ring_bell();
            }
        }
        let enter = plan.enter;
        let pushed = match target {
            Target::Worker(worker, tag) => {
                let ring = &mut self.workers[usize::from(worker)];
                let parcel = slot.take().expect("it was looked at above");
                let pushed = ring.push(ToWorker::Lane(LaneItem::Msg { shard, tag, enter, parcel }));
                pushed.map_err(drop).map(|()| ring.ring_bell())
            }
            Target::Network(parcel) => {
                let pushed = self.network.push(ToNet::Lane(LaneItem::Msg { shard, tag: Epoch::ZERO, enter, parcel }));
                pushed.map_err(drop).map(|()| self.network.ring_bell())
            }
        };
        assert!(pushed.is_ok(), "room for the item was seen, and a lane has one producer");
        if last != word
            && let Some(at) = at
        {
            self.last[at].1[shard.shard.0 as usize] = word;
            self.producer.done(shard, word);
        }
        // What was encoded goes last: it is of the user's making, and its end may panic.
        *slot = None;
        Ok(())
    }

    /// Sends what entities have sent and may go now, as far as there is room. What can never be sent is given back with the reason.
    pub fn send_held(&mut self, node: &Node, now: Time) -> Vec<(Envelope, DropReason)> {
        let mut given_up = vec![];
        let Some(mut senders) = self.senders.take() else { return given_up };
        for (shard, target, mut waiting) in senders.take_open(now) {
            let (entry, before) = (node.type_entry(target.ty), waiting.len());
            while let Some(message) = take(&mut waiting) {
                // Whoever it is for may have ended.
                if node.is_closing() {
                    given_up.push((message, DropReason::Shutdown));
                    continue;
                }
                let mut slot = Some(EngineParcel::from_envelope(message));
                let sent = match &entry {
                    Some(entry) => self.send(node, entry, &mut slot),
                    None => self.send_abroad(&mut slot),
                };
                let (Err(refusal), Some(EngineParcel::Wire { envelope, .. })) = (sent, slot) else { continue };
                if matches!(refusal, Refusal::Full | Refusal::NoCredit) {
                    waiting.push_front(envelope);
                    break;
                }
                given_up.push((envelope, refusal.as_drop()));
            }
            senders.put_back(now, (shard, target), waiting.len() < before, waiting);
        }
        self.senders = Some(senders);
        given_up
    }

    /// Sends a message of a type that this node does not know, and so nobody else from here: the network thread finds the home of its shard.
    fn send_abroad(&mut self, slot: &mut Option<EngineParcel>) -> Result<(), Refusal> {
        if !self.network.has_room(1) {
            return Err(Refusal::Full);
        }
        if let Some(EngineParcel::Wire { envelope, .. }) = slot.take() {
            let item = LaneItem::Msg { shard: envelope.shard, tag: Epoch::ZERO, enter: None, parcel: envelope };
            assert!(self.network.push(ToNet::Lane(item)).is_ok(), "room for the item was seen, and a lane has one producer");
            self.network.ring_bell();
        }
        Ok(())
    }

    /// Where the words of a type are kept.
    fn last_words(&mut self, entry: &TypeEntry) -> usize {
        self.last.iter().position(|(id, _)| *id == entry.id).unwrap_or_else(|| {
            let shards = entry.shards().expect("a message with a shard is of a type whose number of shards is known");
            self.last.push((entry.id, vec![Word::ELSEWHERE; shards as usize].into_boxed_slice()));
            self.last.len() - 1
        })
    }
}

/// The words by which the last messages to the shards of that type went.
#[inline]
fn words_of(last: &[(TypeId, Box<[Word]>)], ty: TypeId) -> Option<&[Word]> {
    let (first, more) = last.split_first()?;
    // Looked at without a loop: most threads send to one type, or most of their messages.
    let found = if first.0 == ty { first } else { more.iter().find(|(of, _)| *of == ty)? };
    Some(&found.1)
}

/// Writes a message to a shard elsewhere, encoded, into the ring of the network thread, whose bell is not rung. `scratch` is room for the encoding.
#[inline(always)]
fn encoded<M: Wire>(network: &mut LaneSender<ToNet>, node: &Node, address: &Address<'_>, message: &M, scratch: &mut Vec<u8>) -> Way {
    scratch.clear();
    if address.ask.is_some() {
        scratch.push(address.reads);
    }
    let encoded = message.encode(*M::VERSIONS.end(), scratch).is_ok();
    // An encoder that took that byte away is told so on the long way.
    let whole = address.ask.is_none() || scratch.first() == Some(&address.reads);
    if !encoded || !whole || scratch.len() > LETTER_MAX.min(node.config.limits.message_bytes as usize) {
        Way::Long
    } else if network.encoded(address, scratch) {
        Way::Sent
    } else {
        Way::Full
    }
}

/// Encodes from a borrow, so that a refusal can give the message back as it was.
fn encode(node: &Node, shard: ShardKey, parcel: &EngineParcel) -> Result<Envelope, Refusal> {
    let envelope = parcel.to_envelope(shard).map_err(Refusal::Encode)?;
    let (size, max) = (message_of(&envelope).len(), node.config.limits.message_bytes as usize);
    if size > max { Err(Refusal::TooLarge { size, max }) } else { Ok(envelope) }
}

/// The message of a parcel that was refused.
fn give_back<M: Wire>(parcel: Option<EngineParcel>) -> M {
    match parcel {
        Some(EngineParcel::Typed { msg, .. }) => msg.take().expect("the parcel was made from an `M` by the caller"),
        _ => unreachable!("a refusal gives the parcel back as it was made, and it was made typed"),
    }
}

/// A batch. Its end rings the bells, also if code of the user's has panicked in it: what was accepted before has been promised.
struct Held<'a>(&'a mut Exits);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.held = false;
        self.0.ring_bells();
    }
}

enum Target {
    /// With the tag of the stay.
    Worker(u16, Epoch),
    Network(Envelope),
}

/// The exits of one thread through one node.
struct Owned {
    node: Weak<Node>,
    /// Where the node stands, or stood: no other one can as long as it is known here.
    at: usize,
    exits: Exits,
}

impl Drop for Owned {
    /// `End` is the last item of every ring of the lane (moves.md X7). Should a ring be full to the end of its reserve, the consumer
    /// keeps an idle lane: nothing else depends on it.
    fn drop(&mut self) {
        for worker in &mut self.exits.workers {
            if worker.push(ToWorker::Lane(LaneItem::End)).is_ok() {
                worker.ring_bell();
            }
        }
        if self.exits.network.push(ToNet::Lane(LaneItem::End)).is_ok() {
            self.exits.network.ring_bell();
        }
    }
}

thread_local! {
    static OWNED: RefCell<Vec<Owned>> = const { RefCell::new(Vec::new()) };
}

/// Runs `f` with the exits of the calling thread through `node`, opened on first use. `None` while the thread is being torn down.
pub fn with<R>(node: &Arc<Node>, f: impl FnOnce(&mut Exits) -> R) -> Option<R> {
    OWNED
        .try_with(|owned| {
            // Borrowed already only if an encoder of the user's, or the end of a message, sends while that message is being sent: `Wire::encode` says not to.
            let mut owned = owned.try_borrow_mut().ok()?;
            // Those used last are the first ones.
            if owned.first().is_none_or(|first| first.at != Arc::as_ptr(node).addr()) {
                bring_to_front(&mut owned, node);
            }
            Some(f(&mut owned.first_mut()?.exits))
        })
        .ok()
        .flatten()
}

#[inline(never)]
fn bring_to_front(owned: &mut Vec<Owned>, node: &Arc<Node>) {
    let position = owned.iter().position(|o| o.at == Arc::as_ptr(node).addr());
    let position = position.unwrap_or_else(|| open(owned, node));
    owned.swap(0, position);
}

#[cold]
fn open(owned: &mut Vec<Owned>, node: &Arc<Node>) -> usize {
    owned.retain(|o| o.node.strong_count() > 0);
    owned.push(Owned { node: Arc::downgrade(node), at: Arc::as_ptr(node).addr(), exits: Exits::open(node) });
    owned.len() - 1
}

/// The lanes of one thread, kept for it by a driver that does the work of several threads on one.
#[derive(Default)]
pub struct Lanes(Vec<Owned>);

/// Runs `f` with these lanes in the place of the calling thread's own.
pub fn on_behalf<R>(lanes: &mut Lanes, f: impl FnOnce() -> R) -> R {
    let swap = |lanes: &mut Lanes| OWNED.with_borrow_mut(|owned| std::mem::swap(owned, &mut lanes.0));
    swap(lanes);
    let result = f();
    swap(lanes);
    result
}

#[cfg(test)]
mod tests {
    use std::{
        any::TypeId as RustTypeId,
        panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    };

    use super::*;
    use crate::{
        CodecError, ShardId,
        engine::{
            lane::{Front, Look, Ring},
            ring::SETTLED,
        },
    };

    const SHARDS: u32 = 300;

    /// What a node's threads would have, without the threads.
    struct Bed {
        node: Arc<Node>,
        exits: Exits,
        network: Ring<ToNet>,
        worker: Ring<ToWorker>,
        entry: TypeEntry,
    }

    impl Bed {
        fn new() -> Self {
            let node = Node::lone(Some(64));
            let exits = Exits::open(&node);
            let (network, worker) = (node.network.take_new().unwrap(), node.workers[0].take_new().unwrap());
            Self { node, exits, network, worker, entry: TypeEntry::new("thing", SHARDS, RustTypeId::of::<()>()) }
        }

        fn publish(&self, word: Word) {
            assert!((0..SHARDS).all(|shard| self.entry.publish(ShardId(shard), word)));
        }

        fn send<M: Wire>(&mut self, key: &Key, msg: M) -> Result<(), (Refusal, M)> {
            let mut msg = Some(msg);
            let sent =
                self.exits.send_letter(&self.node, &self.entry, Outgoing { key: key.bytes(), hash: key.hash, asks: Nobody, msg: &mut msg });
            sent.map_err(|refusal| (refusal, msg.expect("what is refused stays")))
        }

        /// A key of each shard.
        fn keys(&self) -> Vec<Key> {
            let mut keys: Vec<Key> = (0..20 * u64::from(SHARDS)).map(|n| Key::new(&n.to_le_bytes())).collect();
            keys.sort_by_key(|key| self.entry.shard_of(key.hash));
            keys.dedup_by_key(|key| self.entry.shard_of(key.hash));
            assert_eq!(keys.len(), SHARDS as usize);
            keys
        }
    }

    #[test]
    fn a_batch_that_panics_rings_its_bells_and_holds_none_back_later() {
        let Bed { mut exits, mut network, .. } = Bed::new();
        let batch = AssertUnwindSafe(|| {
            exits.batch(|exits| {
                assert!(exits.network.push(ToNet::Quiet(0)).is_ok());
                resume_unwind(Box::new("an encoder's end"))
            })
        });
        assert!(catch_unwind(batch).is_err());
        assert!(network.pop().is_some(), "what was sent before is seen");
        assert!(!exits.held, "and what is sent afterwards waits for no end of a batch");
    }

    #[test]
    fn who_waits_with_drafts_sees_which_exit_has_room_again_without_a_try() {
        let mut bed = Bed::new();
        let draft = |key: &Key, msg: u64| {
            let mut drafts = Drafts::default();
            drafts.push(key.bytes(), key.hash, msg);
            drafts
        };
        let key = &bed.keys()[0];
        for (word, abroad) in [(Word::ELSEWHERE, true), (Word::local(0, Epoch(1)), false)] {
            bed.publish(word);
            while bed.network.pop().is_some() || bed.worker.pop().is_some() {}
            let drafts = draft(key, 7);
            assert_eq!(bed.exits.look_for_room(&bed.entry, &drafts, 1), Ok(()));
            while bed.send(key, 1u64).is_ok() {}
            assert_eq!(bed.exits.look_for_room(&bed.entry, &drafts, 1), Err(Abroad(abroad)));
            let Bed { exits, network, worker, entry, .. } = &mut bed;
            let mut pop = || if abroad { network.pop().is_some() } else { worker.pop().is_some() };
            let after = (1..).take_while(|_| pop()).find(|_| exits.look_for_room(entry, &drafts, 1_000).is_ok());
            let after = after.expect("the ring is empty in the end, and then has room for whatever comes");
            assert!((16..64).contains(&after), "a quarter of 64, and what the end of the ring takes: {after}");
        }
        bed.publish(Word::NO_ROOM);
        assert_eq!(
            bed.exits.look_for_room(&bed.entry, &draft(key, 7), 1),
            Err(Abroad(true)),
            "of a slow peer's shard the network says when"
        );
        assert_eq!(bed.exits.look_for_room(&bed.entry, &Drafts::<u64>::default(), 0), Err(Abroad(false)));
    }

    #[test]
    fn batches_keep_their_order_while_both_ways_of_writing_them_are_tried() {
        let mut bed = Bed::new();
        let key = Key::new(&[7; 8]);
        bed.publish(Word::local(0, Epoch(1)));
        assert!(bed.send(&key, 0u64).is_ok() && bed.worker.pop().is_some());
        let (mut drafts, mut past, mut n) = (Drafts::default(), 0, 0);
        SETTLED.set(0);
        for _ in 0..200 {
            (n..n + 20).for_each(|n| drafts.push(key.bytes(), key.hash, n));
            let Bed { node, exits, worker, entry, .. } = &mut bed;
            past += u32::from(exits.writing.begin(drafts.bytes(), sys::ticks).past);
            assert_eq!(exits.batch(|exits| exits.send_drafts(node, entry, &mut drafts)), 20);
            drafts.clear();
            worker.letters(|letter| {
                assert_eq!(letter.take::<u64>(), Some(n));
                n += 1;
                Look::Next
            });
        }
        assert!(n == 4_000 && past > 0 && past < 200, "{n} {past}");
        assert_eq!(SETTLED.get(), past, "batches went that way when it was their turn");
    }

    #[test]
    fn drafts_for_other_nodes_go_in_one_row_with_those_for_this_one() {
        let mut bed = Bed::new();
        let keys = bed.keys();
        let home = |n: usize| if n.is_multiple_of(3) { Word::local(0, Epoch(1)) } else { Word::ELSEWHERE };
        for (n, key) in keys.iter().enumerate() {
            assert!(bed.entry.publish(bed.entry.shard_of(key.hash).shard, home(n)));
        }
        // Whoever goes another way than before looks first.
        for key in &keys {
            bed.send(key, 0u64).unwrap();
            while bed.network.pop().is_some() || bed.worker.pop().is_some() {}
        }
        let mut drafts = Drafts::default();
        keys[..30].iter().enumerate().for_each(|(n, key)| drafts.push(key.bytes(), key.hash, n as u64));
        let Bed { node, exits, network, worker, entry } = &mut bed;
        assert_eq!(exits.batch(|exits| exits.send_drafts(node, entry, &mut drafts)), 30);
        assert!(drafts.next().is_none());
        let of = |here: bool| (0..30u64).filter(move |n| n.is_multiple_of(3) == here);
        let here = std::iter::from_fn(|| {
            worker.with_next(|front| match front {
                Front::Letter(mut letter) => letter.take::<u64>().expect("as it was sent"),
                Front::Item(_) => panic!("messages alone"),
            })
        });
        assert_eq!(here.collect::<Vec<_>>(), of(true).collect::<Vec<_>>());
        let abroad = std::iter::from_fn(|| {
            network.with_next(|front| match front {
                Front::Letter(letter) => u64::decode(1, &mut letter.encoded().expect("as it travels")).unwrap(),
                Front::Item(_) => panic!("messages alone"),
            })
        });
        assert_eq!(abroad.collect::<Vec<_>>(), of(false).collect::<Vec<_>>());
    }

    #[test]
    fn a_change_of_exit_is_refused_while_the_old_one_has_no_room_for_its_token() {
        let mut bed = Bed::new();
        let keys = bed.keys();
        bed.publish(Word::local(0, Epoch(1)));
        for key in &keys {
            bed.send(key, 1u64).unwrap();
            while bed.network.pop().is_some() || bed.worker.pop().is_some() {}
        }
        while bed.send(&keys[0], 2u64).is_ok() {}
        bed.publish(Word::ELSEWHERE);
        let mut refused = vec![];
        for key in &keys {
            match bed.send(key, 3u64) {
                Ok(()) => {}
                Err((Refusal::Full, 3)) => refused.push(key),
                Err((refusal, _)) => panic!("{refusal:?}"),
            }
            while bed.network.pop().is_some() {}
        }
        assert!(!refused.is_empty() && refused.len() < keys.len(), "the reserve is large, and has an end");
        while bed.worker.pop().is_some() {}
        assert!(bed.send(refused[0], 3u64).is_ok(), "nothing has changed meanwhile");
    }

    /// As large as what stands in a letter may be.
    struct Large([u8; LETTER_MAX]);

    impl Wire for Large {
        const NAME: &'static str = "large";

        fn encode(&self, _: u16, out: &mut Vec<u8>) -> Result<(), CodecError> {
            // With the version of the answer in front.
            out.extend_from_slice(&self.0[1..]);
            Ok(())
        }

        fn decode(_: u16, _: &mut &[u8]) -> Result<Self, CodecError> {
            Err(CodecError::Decode("not needed".into()))
        }
    }

    #[test]
    fn the_longest_letter_finds_room_in_the_smallest_ring_wherever_that_stands() {
        let mut bed = Bed::new();
        let key = Key::new(&[7; 255]);
        let ask = Ask { node: bed.node.id, correlation: 1, deadline: crate::Time::MAX };
        for word in [Word::ELSEWHERE, Word::local(0, Epoch(1))] {
            bed.publish(word);
            for n in 0..200u8 {
                let letter = Outgoing { key: key.bytes(), hash: key.hash, asks: (Some(ask), n), msg: &mut Some(Large([n; LETTER_MAX])) };
                assert!(bed.exits.send_letter(&bed.node, &bed.entry, letter).is_ok(), "{word:?} {n}");
                // Of many lengths, so that it has to stand everywhere.
                assert!(bed.send(&Key::new(&vec![7; usize::from(n)]), u64::from(n)).is_ok());
                let mut taken = 0;
                let mut look = |ask: Option<Ask>, reads| {
                    taken += 1;
                    assert!(ask.is_none() || reads == n);
                };
                while bed
                    .network
                    .with_next(|front| match front {
                        Front::Letter(letter) => look(letter.address().ask, letter.address().reads),
                        Front::Item(_) => {}
                    })
                    .is_some()
                {}
                while bed
                    .worker
                    .with_next(|front| match front {
                        Front::Letter(mut letter) => {
                            look(letter.address().ask, letter.address().reads);
                            assert!(letter.take::<Large>().is_none_or(|large| large.0 == [n; LETTER_MAX]));
                        }
                        Front::Item(_) => {}
                    })
                    .is_some()
                {}
                assert!(n < 2 || taken >= 1, "{word:?} {n}");
            }
        }
    }

    /// Its encoder puts its own buffer in the place of the given one.
    struct Instead;

    impl Wire for Instead {
        const NAME: &'static str = "instead";

        fn encode(&self, _: u16, out: &mut Vec<u8>) -> Result<(), CodecError> {
            *out = vec![0, 2, 5];
            Ok(())
        }

        fn decode(_: u16, _: &mut &[u8]) -> Result<Self, CodecError> {
            Err(CodecError::Decode("not needed".into()))
        }
    }

    #[test]
    fn an_encoder_that_takes_away_what_stood_there_is_told_so_on_either_way() {
        let mut bed = Bed::new();
        let key = Key::new(&[7; 8]);
        bed.publish(Word::ELSEWHERE);
        let ask = Ask { node: bed.node.id, correlation: 1, deadline: crate::Time::MAX };
        // The first message to a shard goes another way than those behind it.
        for _ in 0..2 {
            let letter = Outgoing { key: key.bytes(), hash: key.hash, asks: (Some(ask), 1), msg: &mut Some(Instead) };
            let refused = bed.exits.send_letter(&bed.node, &bed.entry, letter).unwrap_err();
            assert!(matches!(&refused, Refusal::Encode(why) if why.contains("appends")), "{refused:?}");
            assert!(bed.send(&key, 1u64).is_ok());
        }
    }

    /// Goes off when it is dropped, if it is set.
    struct Mine(bool);

    impl Drop for Mine {
        fn drop(&mut self) {
            if self.0 {
                resume_unwind(Box::new("a message's end"));
            }
        }
    }

    impl Wire for Mine {
        const NAME: &'static str = "mine";

        fn encode(&self, _: u16, out: &mut Vec<u8>) -> Result<(), CodecError> {
            out.push(1);
            Ok(())
        }

        fn decode(_: u16, _: &mut &[u8]) -> Result<Self, CodecError> {
            Err(CodecError::Decode("not needed".into()))
        }
    }

    #[test]
    fn a_message_that_panics_when_it_is_dropped_was_sent_whole() {
        let mut bed = Bed::new();
        let key = Key::new(&[7; 8]);
        bed.publish(Word::local(0, Epoch(1)));
        assert!(bed.send(&key, Mine(false)).is_ok());
        while bed.network.pop().is_some() || bed.worker.pop().is_some() {}
        bed.publish(Word::ELSEWHERE);
        assert!(catch_unwind(AssertUnwindSafe(|| bed.send(&key, Mine(true)).is_ok())).is_err());
        assert!(bed.send(&key, Mine(false)).is_ok());
        assert!(matches!(bed.worker.pop(), Some(ToWorker::Lane(LaneItem::Leave { .. }))));
        assert!(bed.worker.pop().is_none(), "the exit is left once");
        assert!(matches!(bed.network.pop(), Some(ToNet::Lane(LaneItem::Msg { enter: Some(Epoch(1)), .. }))));
        assert!(matches!(bed.network.pop(), Some(ToNet::Lane(LaneItem::Msg { enter: None, .. }))));
    }
}
