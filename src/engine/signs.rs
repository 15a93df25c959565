//! Signs: requests that travel as messages do, in their order, and are none.
//!
//! A sign reads no version of an answer, by which it is told from a request. What else stands in it is which one it is. A build that knows it not
//! answers it as a message that it cannot read.

use std::sync::Arc;

use super::{
    node::Node,
    parcel::{EngineParcel, Key},
};
use crate::{
    Epoch, Refusal, ShardId, ShardKey, Time, TypeId,
    proto::{
        handoff::{Ask, Bytes, DropReason, Envelope},
        shard::Sign,
        wire::{Malformed, Reader, Writer},
    },
};

/// What stands in front of a sign instead of the version of an answer: versions begin at 1.
pub const NO_VERSION: u8 = 0;
/// To hear when the instance ends.
pub const WATCH: &[u8] = &[NO_VERSION];
/// To hear no more of that.
pub const UNWATCH: &[u8] = &[NO_VERSION, 1];
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

/// Whether a sign that was given up for this reason says nothing of whom it is for: it did not get there, and may the next time.
pub fn says_nothing(reason: DropReason) -> bool {
    use DropReason::{BufferFull, HandoffTimeout, HeldFull, Late, LinkLost, MoveBufferFull, NoCredit, Overloaded, RouteLost};
    matches!(reason, BufferFull | HandoffTimeout | HeldFull | Late | LinkLost | MoveBufferFull | NoCredit | Overloaded | RouteLost)
}

/// The sign in an envelope, if it is one and no message.
pub fn sign_in(envelope: &Envelope) -> Option<Sign> {
    let ask = envelope.ask?;
    match envelope.payload() {
        WATCH => Some(Sign::Watch(ask)),
        UNWATCH => Some(Sign::Unwatch(ask)),
        sign if sign.starts_with(MARK) || sign.starts_with(SETTLED) => Some(Sign::OfShard(ask)),
        _ => None,
    }
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
    let epoch = r.u64("epoch")?;
    let epoch = Epoch::from_raw(epoch).ok_or(Malformed::TooLarge { field: "epoch", value: epoch, max: Epoch::MAX.get() })?;
    let mut targets = vec![];
    while r.left() > 0 {
        targets.push(ShardKey { ty: TypeId(r.u32("type")?), shard: ShardId(r.u32("shard")?) });
    }
    Ok((epoch, targets))
}

/// Sends a sign to the entity of that type with that key, from the calling thread.
pub fn to_entity(node: &Arc<Node>, ty: TypeId, key: &[u8], sign: &[u8], correlation: u64) -> Way {
    let hash = Key::hash_of(key);
    send(node, ty, |_| Some(hash), key, sign, correlation)
}

/// Sends a sign to a shard, from the calling thread.
pub fn to_shard(node: &Arc<Node>, shard: ShardKey, sign: &[u8], correlation: u64) -> Way {
    // As each entity does whose hash is the number of its shard; its key is looked at by nobody.
    let hash = u64::from(shard.shard.0);
    send(node, shard.ty, |shards| (shard.shard.0 < shards?).then_some(hash), &[0], sign, correlation)
}

fn send(node: &Arc<Node>, ty: TypeId, hash: impl FnOnce(Option<u32>) -> Option<u64>, key: &[u8], sign: &[u8], correlation: u64) -> Way {
    let Some(entry) = node.type_entry(ty) else { return Way::Never };
    let Some(hash) = hash(entry.shards()) else { return Way::Never };
    let ask = Ask { node: node.id, correlation, deadline: Time::MAX };
    let key_len = u8::try_from(key.len()).expect("references refuse keys above 255 bytes");
    let bytes: Bytes = [key, sign].concat().into();
    let envelope = Envelope { shard: entry.shard_of(hash), ask: Some(ask), key_len, bytes };
    match node.send(&entry, &mut Some(EngineParcel::Wire { envelope, hash })) {
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
    fn a_message_is_no_sign() {
        assert!(sign_in(&envelope(&[1, 2], true)).is_none(), "a request whose answer has a version");
        assert!(sign_in(&envelope(MARK, false)).is_none(), "nobody waits for an answer");
        assert!(sign_in(&envelope(&[NO_VERSION, 99], true)).is_none(), "of a later build");
    }
}
