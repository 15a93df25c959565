//! Signs: requests that travel as messages do, in their order, and are none.
//!
//! A sign reads no version of an answer, by which it is told from a request. What else stands in it is which one it is. A build that knows it not
//! answers it as a message that it cannot read.
//!
//! Each is answered at once where it comes to, or when it is given up on its way. What is lost with a link is answered by nobody, so all are sent again
//! when one is new ([`Repeated`]): one that comes twice says nothing new.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use super::{
    exits,
    node::Node,
    parcel::{Answered, EngineParcel, Key},
    slot::Waiter,
    slot_table::UNTIMED,
    types::TypeEntry,
};
use crate::{
    Epoch, NodeId, Refusal, ShardId, ShardKey, Time, TypeId,
    proto::{
        handoff::{Ask, Bytes, DropReason, Envelope, ReplyBody},
        shard::{Sign, WatchId, Watching, ids, put_ids},
        wire::{self, Malformed, Reader, Writer},
    },
};

/// What stands in front of a sign instead of the version of an answer: versions begin at 1.
pub const NO_VERSION: u8 = 0;
/// To hear when the instance ends. Behind it stands what [`watching`] writes.
const WATCH: &[u8] = &[NO_VERSION, 0];
/// To hear no more of that; likewise.
const UNWATCH: &[u8] = &[NO_VERSION, 1];
/// To hear that it has come to where the shard runs, behind all that its sender had sent there.
pub const MARK: &[u8] = &[NO_VERSION, 2];
/// What marks came to: behind it stand an epoch and shards.
const SETTLED: &[u8] = &[NO_VERSION, 3];

/// What became of a sign.
pub enum Way {
    /// It is in a ring.
    Sent,
    /// There is no room now.
    Later,
    /// It cannot be sent.
    Never,
}

/// What an answer to a sign says.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Said {
    /// Yes: of a watch, that there is an instance, and it is watched.
    Yes,
    /// It has come there, or never will.
    Done,
}

/// The answer that says yes; any other says [`Said::Done`].
pub fn yes() -> ReplyBody {
    ReplyBody::Value([].as_slice().into())
}

/// What an answer says. `None`: nothing of whom the sign is for. It did not get there, and may the next time.
fn said(answered: &Answered) -> Option<Said> {
    use DropReason::{
        BufferFull, Expired, Fenced, HandoffTimeout, HeldFull, HomeLost, Late, LinkLost, MoveBufferFull, NoCredit, Overloaded, RouteLost,
        Shutdown,
    };
    match answered {
        Answered::Wire(ReplyBody::Value(_)) => Some(Said::Yes),
        // Where it went first is not where it may have been passed on to.
        Answered::Wire(ReplyBody::OwnerLost) => None,
        Answered::Wire(ReplyBody::Dropped(reason)) => match reason {
            BufferFull | HeldFull | MoveBufferFull | NoCredit | Overloaded => None,
            Expired | Fenced | HandoffTimeout | HomeLost | Late | LinkLost | RouteLost | Shutdown => None,
            _ => Some(Said::Done),
        },
        _ => Some(Said::Done),
    }
}

/// One in so many slots of a node may be taken by the signs of one kind and worker that are under way.
const SHARE: usize = 32;
/// Signs that are sent at once, at most.
const AT_ONCE: usize = 256;
/// What found no room, or did not get there, is sent again so long after that.
const AGAIN_AFTER: Duration = Duration::from_millis(1);
/// Signs that are sent again until they are answered. Each has a slot while it is under way.
pub struct Repeated<S> {
    /// In their order.
    unsent: VecDeque<S>,
    /// When to try these.
    again_at: Time,
    /// By the number of the ask.
    open: BTreeMap<u64, S>,
}

impl<S> Default for Repeated<S> {
    fn default() -> Self {
        Self { unsent: VecDeque::new(), again_at: Time::ZERO, open: BTreeMap::new() }
    }
}

impl<S> Repeated<S> {
    /// Is to be sent with the next [`send`](Self::send).
    pub fn push(&mut self, sign: S) {
        self.again_at = Time::ZERO;
        self.unsent.push_back(sign);
    }

    /// Nothing is to be sent, and nothing was sent that is not answered.
    pub fn is_empty(&self) -> bool {
        self.unsent.is_empty() && self.open.is_empty()
    }

    /// The sign that is answered, and what that says. `None`: it is none of these, or is sent again.
    pub fn answered(&mut self, now: Time, correlation: u64, answered: &Answered) -> Option<(S, Said)> {
        let sign = self.open.remove(&correlation)?;
        match said(answered) {
            Some(said) => Some((sign, said)),
            None => {
                self.later(now, sign);
                None
            }
        }
    }

    /// Whether something is to be sent.
    #[inline]
    pub fn has_unsent(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// When [`send`](Self::send) has something to do.
    pub fn due(&self) -> Option<Time> {
        (!self.unsent.is_empty()).then_some(self.again_at)
    }

    /// Sends what is due, some at a time, each by `send` and under the number that this gets; `None` from there: it need not be sent any more.
    /// What can never be sent.
    pub fn send(&mut self, node: &Arc<Node>, worker: u16, now: Time, mut send: impl FnMut(&S, u64) -> Option<Way>) -> Vec<S> {
        let mut never = vec![];
        if self.due().is_none_or(|due| due > now) {
            return never;
        }
        // Most slots are for asks.
        let room = (node.config.limits.asks as usize / SHARE).max(1).saturating_sub(self.open.len());
        if room == 0 {
            self.again_at = now + AGAIN_AFTER;
        }
        for _ in 0..self.unsent.len().min(AT_ONCE).min(room) {
            let Some(sign) = self.unsent.pop_front() else { break };
            let Some(correlation) = node.slots.open(Waiter::Entity(worker), UNTIMED) else {
                self.later(now, sign);
                break;
            };
            let way = send(&sign, correlation);
            if !matches!(way, Some(Way::Sent)) {
                drop(node.slots.take(correlation));
            }
            match way {
                Some(Way::Sent) => _ = self.open.insert(correlation, sign),
                Some(Way::Later) => self.later(now, sign),
                Some(Way::Never) => never.push(sign),
                None => {}
            }
        }
        never
    }

    fn later(&mut self, now: Time, sign: S) {
        self.again_at = now + AGAIN_AFTER;
        self.unsent.push_back(sign);
    }

    /// What has no answer may have been lost: it is sent again.
    pub fn repeat(&mut self, node: &Node) {
        for (correlation, sign) in std::mem::take(&mut self.open) {
            drop(node.slots.take(correlation));
            self.push(sign);
        }
    }
}

/// The sign in an envelope, if it is one and no message.
pub fn sign_in(envelope: &Envelope) -> Option<Sign> {
    let ask = envelope.ask?;
    match envelope.payload().split_at_checked(2)? {
        (WATCH, rest) => Some(Sign::Watch(ask, read_watching(ask.node, rest).ok()?)),
        (UNWATCH, rest) => Some(Sign::Unwatch(ask, read_watching(ask.node, rest).ok()?)),
        (MARK | SETTLED, _) => Some(Sign::OfShard(ask)),
        _ => None,
    }
}

/// The sign of one who watches at this node, or no more: `watches`.
pub fn watching(watches: bool, what: &Watching) -> Vec<u8> {
    let mut w = Writer(if watches { WATCH } else { UNWATCH }.to_vec());
    w.u64(what.id.number).u8(u8::from(what.confirmed));
    put_ids(&mut w, &what.was);
    w.0
}

fn read_watching(node: NodeId, bytes: &[u8]) -> Result<Watching, Malformed> {
    let mut r = Reader::new(bytes);
    let (number, confirmed) = (r.u64("number of a watch")?, r.u8("confirmed")? != 0);
    Ok(Watching { id: WatchId { node, number }, was: ids(&mut r)?, confirmed })
}

/// The sign that tells a shard's home: what its entities had sent to those shards, at another home under that epoch, has got there.
pub fn settled(epoch: Epoch, targets: &[ShardKey]) -> Vec<u8> {
    let mut w = Writer(SETTLED.to_vec());
    w.u64(epoch.get());
    targets.iter().for_each(|target| _ = w.u32(target.ty.0).u32(target.shard.0));
    w.0
}

/// What that sign says, if it is one; as many shards as stand in it.
pub fn settled_in(envelope: &Envelope) -> Option<Result<(Epoch, Vec<ShardKey>), Malformed>> {
    Some(read(envelope.payload().strip_prefix(SETTLED)?))
}

fn read(bytes: &[u8]) -> Result<(Epoch, Vec<ShardKey>), Malformed> {
    let mut r = Reader::new(bytes);
    let epoch = wire::epoch("epoch", r.u64("epoch")?)?;
    let mut targets = vec![];
    while r.left() > 0 {
        targets.push(ShardKey { ty: TypeId(r.u32("type")?), shard: ShardId(r.u32("shard")?) });
    }
    Ok((epoch, targets))
}

/// Sends a sign to the entity of that type with that key, from the calling thread, for one of that shard: behind what that has sent.
pub fn to_entity(node: &Arc<Node>, from: Option<ShardKey>, (ty, key): (TypeId, &[u8]), sign: &[u8], correlation: u64) -> Way {
    let (hash, Some(entry)) = (Key::hash_of(key), node.type_entry(ty)) else { return Way::Never };
    let held = |from| exits::with(node, |exits| exits.senders()?.held(from, entry.shard_of(hash), hash)).flatten();
    if from.and_then(held).is_some() {
        return Way::Later;
    }
    send(node, &entry, hash, key, sign, correlation)
}

/// Sends a sign to a shard, from the calling thread.
pub fn to_shard(node: &Arc<Node>, shard: ShardKey, sign: &[u8], correlation: u64) -> Way {
    let Some(entry) = node.type_entry(shard.ty).filter(|entry| entry.shards().is_some_and(|shards| shard.shard.0 < shards)) else {
        return Way::Never;
    };
    // As each entity does whose hash is the number of its shard; its key is looked at by nobody.
    send(node, &entry, u64::from(shard.shard.0), &[0], sign, correlation)
}

fn send(node: &Arc<Node>, entry: &TypeEntry, hash: u64, key: &[u8], sign: &[u8], correlation: u64) -> Way {
    let ask = Ask { node: node.id, correlation, deadline: Time::MAX };
    let key_len = u8::try_from(key.len()).expect("references refuse keys above 255 bytes");
    let bytes: Bytes = [key, sign].concat().into();
    let envelope = Envelope { shard: entry.shard_of(hash), ask: Some(ask), key_len, bytes };
    match node.send(entry, &mut Some(EngineParcel::Wire { envelope, hash })) {
        Ok(()) => Way::Sent,
        Err(Refusal::Full | Refusal::NoCredit) => Way::Later,
        Err(_) => Way::Never,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NodeId;

    const SHARD: ShardKey = ShardKey { ty: TypeId(1), shard: ShardId(2) };

    fn envelope(payload: &[u8], asked: bool) -> Envelope {
        let ask = Ask { node: NodeId::from_raw(1), correlation: 2, deadline: Time::MAX };
        Envelope::new(SHARD, asked.then_some(ask), &[0], payload).unwrap()
    }

    #[test]
    fn what_is_settled_is_read_as_it_was_written() {
        let other = ShardKey { ty: TypeId(7), shard: ShardId(8) };
        let sign = envelope(&settled(Epoch(9), &[SHARD, other]), true);
        assert!(matches!(sign_in(&sign), Some(Sign::OfShard(_))));
        assert_eq!(settled_in(&sign).unwrap().unwrap(), (Epoch(9), vec![SHARD, other]));
        assert!(settled_in(&envelope(MARK, true)).is_none());
        let whole = settled(Epoch(9), &[SHARD]);
        for cut in SETTLED.len()..whole.len() {
            let read = settled_in(&envelope(&whole[..cut], true)).unwrap();
            assert_eq!(read.ok().map(|(_, targets)| targets.len()), (cut == whole.len() - 8).then_some(0), "{cut}");
        }
    }

    #[test]
    fn a_watch_is_read_as_it_was_written() {
        let id = |n| WatchId { node: NodeId::from_raw(1), number: n };
        for (watches, confirmed, was) in [(true, true, vec![id(7), id(8)]), (false, false, vec![])] {
            let what = Watching { id: id(6), was, confirmed };
            let whole = watching(watches, &what);
            match sign_in(&envelope(&whole, true)) {
                Some(Sign::Watch(ask, read)) => assert!(watches && ask.correlation == 2 && read == what),
                Some(Sign::Unwatch(_, read)) => assert!(!watches && read == what),
                other => panic!("{other:?}"),
            }
            assert!((0..whole.len()).all(|cut| sign_in(&envelope(&whole[..cut], true)).is_none()));
        }
    }

    #[test]
    fn a_message_is_no_sign() {
        assert!(sign_in(&envelope(&[1, 2], true)).is_none(), "a request whose answer has a version");
        assert!(sign_in(&envelope(MARK, false)).is_none(), "nobody waits for an answer");
        assert!(sign_in(&envelope(&[NO_VERSION, 99], true)).is_none(), "of a later build");
    }
}
