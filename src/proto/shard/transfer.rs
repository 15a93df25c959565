//! What travels when a shard moves: entity states, mailboxes and gate, in chunks.
//!
//! Layout of a chunk: records, each a kind byte and its fields, little-endian. A state too large for one chunk goes on in the next one.

use std::time::Duration;

use super::{
    SentRecord, WatchId, WatchRecord,
    env::{HELD_BYTES, MAILBOX_BYTES, SENT_BYTES},
    gate::{Held, Weight},
    states::{ENTITY, Record, States},
};
use crate::{
    Epoch, NodeId, ShardId, ShardKey, Time, TypeId,
    proto::{
        handoff::{Ask, Envelope, Mode},
        sharding::SHARDS_MAX,
        wire::{self, Malformed, Reader, Writer},
    },
};

/// Most bytes of a chunk; only one that carries a single larger message exceeds it.
pub(super) const CHUNK_BYTES: usize = 64 << 10;
/// Most bytes of a state in one record, so that it fits a chunk with its key.
const PART_BYTES: usize = CHUNK_BYTES - 512;
/// At least as large as the fields of any record without key, state and message.
const FIELDS_BYTES: usize = 80;
/// Most state of one shard: one with more does not move.
pub(super) const TRANSFER_BYTES: usize = 256 << 20;
/// Largest whole transfer that is taken in: so much state, all that waits for entities, is held of streams or was sent by them and waits, and the
/// fields of the records.
pub(super) const TAKEN_IN_BYTES: usize = (TRANSFER_BYTES + MAILBOX_BYTES + HELD_BYTES + SENT_BYTES) / 4 * 5;

const MORE: u8 = 2;
const MAIL: u8 = 3;
const STREAM: u8 = 4;
const HELD: u8 = 5;
const TIMER: u8 = 6;
const NODE: u8 = 7;
const WATCH: u8 = 8;
const SENT: u8 = 9;
const SENT_HELD: u8 = 10;
const WATCHED: u8 = 11;

/// A timer of an entity on its way.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct TimerRecord {
    pub key: Box<[u8]>,
    /// The entity's name for it.
    pub timer: u64,
    pub due: Time,
    pub every: Option<Duration>,
    pub message: Envelope,
}

/// Everything of a shard that changes its home.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct Cargo {
    /// Of entities.
    pub states: States,
    /// Waiting messages, per entity in their order.
    pub mail: Vec<Envelope>,
    /// Floors of streams.
    pub floors: Vec<(NodeId, Epoch)>,
    /// Held messages, per stream in their order.
    pub held: Vec<(NodeId, Held<Envelope>)>,
    /// Of entities.
    pub timers: Vec<TimerRecord>,
    /// Messages for entities that watch a node.
    pub nodes: Vec<(NodeId, Envelope)>,
    /// Of entities, by entities.
    pub watches: Vec<WatchRecord>,
    /// Of entities, by others: keys, and who watches.
    pub watched: Vec<(Box<[u8]>, WatchId)>,
    /// By entities, to other shards.
    pub sent: Vec<SentRecord>,
    /// Bytes of all of it.
    pub bytes: usize,
}

impl Cargo {
    /// All messages in it that somebody has sent.
    pub fn into_messages(self) -> impl Iterator<Item = Envelope> {
        let held = self.held.into_iter().map(|(_, held)| held.item);
        self.mail.into_iter().chain(held).chain(self.sent.into_iter().flat_map(|record| record.held))
    }

    /// The record of what was sent to that shard, which is this one or came before it.
    fn sent_to(&mut self, record: SentRecord) -> &mut SentRecord {
        let at = self.sent.iter().rposition(|known| known.target == record.target).unwrap_or_else(|| {
            self.sent.push(record);
            self.sent.len() - 1
        });
        &mut self.sent[at]
    }
}

impl Weight for Envelope {
    fn bytes(&self) -> usize {
        self.size()
    }
}

/// Cuts a cargo into chunks; at least one, if only an empty one.
pub(super) fn encode(cargo: Cargo, now: Time) -> Vec<Vec<u8>> {
    let mut out = put_states(cargo.states);
    for &(stream, floor) in &cargo.floors {
        out.next(0).u8(STREAM).u128(stream.raw()).u64(floor.get());
    }
    for timer in &cargo.timers {
        let (rest, every) = (nanos(timer.due.since(now)), timer.every.map_or(0, nanos));
        let w = out.next(timer.message.bytes.len()).u8(TIMER).u64(timer.timer).u64(rest).u64(every);
        put_envelope(w, &timer.message, now);
    }
    for (node, message) in &cargo.nodes {
        put_envelope(out.next(message.bytes.len()).u8(NODE).u128(node.raw()), message, now);
    }
    for watch in &cargo.watches {
        let key_len = u8::try_from(watch.target.len()).expect("keys are at most 255 bytes long, or they would not have fitted an envelope");
        let ids = watch.was.len().min(WAS_MAX);
        let w = out.next(watch.target.len() + WATCH_ID_BYTES * ids + watch.message.bytes.len());
        w.u8(WATCH).u32(watch.ty.0).u8(key_len).bytes(&watch.target).u8(u8::from(watch.confirmed));
        put_ids(w, &watch.was);
        put_envelope(w, &watch.message, now);
    }
    for (key, id) in &cargo.watched {
        let key_len = u8::try_from(key.len()).expect("keys are at most 255 bytes long, or they would not have fitted an envelope");
        out.next(key.len()).u8(WATCHED).u128(id.node.raw()).u64(id.number).u8(key_len).bytes(key);
    }
    for record in &cargo.sent {
        put_sent(out.next(0).u8(SENT), record);
        for message in &record.held {
            put_envelope(put_sent(out.next(message.bytes.len()).u8(SENT_HELD), record), message, now);
        }
    }
    for envelope in &cargo.mail {
        put_envelope(out.next(envelope.bytes.len()).u8(MAIL), envelope, now);
    }
    for (stream, held) in &cargo.held {
        let (kind, p) = match held.mode {
            Mode::Settled => (0, Epoch::ZERO),
            Mode::Wait(p) => (1, p),
            Mode::Over(p) => (2, p),
        };
        let w = out.next(held.item.bytes.len()).u8(HELD).u128(stream.raw()).u64(held.tag.get()).u8(kind).u64(p.get());
        put_envelope(w, &held.item, now);
    }
    out.finish()
}

/// Adds a chunk to what came before it. What stands in front of malformed bytes has been added.
pub(super) fn decode(cargo: &mut Cargo, shard: ShardKey, chunk: &[u8], now: Time) -> Result<(), Malformed> {
    cargo.bytes += chunk.len();
    let mut r = Reader::new(chunk);
    while r.left() > 0 {
        let taken = cargo.states.take_front(&chunk[chunk.len() - r.left()..]);
        r.bytes("states", taken)?;
        if r.left() == 0 {
            break;
        }
        match r.u8("kind")? {
            // Those that are whole were taken above.
            ENTITY => {
                let n = usize::from(r.u8("key length")?);
                r.bytes("key", n)?;
                let n = r.count("state", 1, TRANSFER_BYTES)?;
                r.bytes("state", n)?;
            }
            MORE => {
                let n = r.count("state", 1, TRANSFER_BYTES)?;
                let part = r.bytes("state", n)?;
                if !cargo.states.extend_last(part) {
                    return Err(Malformed::Unknown { field: "kind", value: u64::from(MORE) });
                }
            }
            MAIL => cargo.mail.push(envelope(&mut r, shard, now)?),
            TIMER => {
                let timer = r.u64("timer")?;
                let due = now + Duration::from_nanos(r.u64("rest of the timer")?);
                let every = Some(r.u64("period")?).filter(|n| *n > 0).map(Duration::from_nanos);
                let message = envelope(&mut r, shard, now)?;
                cargo.timers.push(TimerRecord { key: message.key().into(), timer, due, every, message });
            }
            NODE => {
                let node = NodeId::from_raw(r.u128("watched node")?);
                cargo.nodes.push((node, envelope(&mut r, shard, now)?));
            }
            WATCH => {
                let ty = TypeId(r.u32("watched type")?);
                let n = usize::from(r.u8("key length")?);
                let target = r.bytes("watched key", n)?.into();
                let confirmed = r.u8("confirmed")? != 0;
                let was = ids(&mut r)?;
                cargo.watches.push(WatchRecord { ty, target, was, confirmed, message: envelope(&mut r, shard, now)? });
            }
            WATCHED => {
                let id = watch_id(&mut r)?;
                let n = usize::from(r.u8("key length")?);
                cargo.watched.push((r.bytes("key", n)?.into(), id));
            }
            kind @ (SENT | SENT_HELD) => {
                let record = sent(&mut r)?;
                let message = if kind == SENT_HELD { Some(envelope(&mut r, record.target, now)?) } else { None };
                cargo.sent_to(record).held.extend(message);
            }
            STREAM => cargo.floors.push((NodeId::from_raw(r.u128("stream")?), epoch(&mut r, "floor")?)),
            HELD => {
                let stream = NodeId::from_raw(r.u128("stream")?);
                let tag = epoch(&mut r, "tag")?;
                let kind = r.u8("mode")?;
                let p = epoch(&mut r, "path")?;
                let mode = match kind {
                    0 => Mode::Settled,
                    1 => Mode::Wait(p),
                    2 => Mode::Over(p),
                    _ => return Err(Malformed::Unknown { field: "mode", value: u64::from(kind) }),
                };
                let item = envelope(&mut r, shard, now)?;
                cargo.held.push((stream, Held { tag, mode, since: Time::ZERO, item }));
            }
            kind => return Err(Malformed::Unknown { field: "kind", value: u64::from(kind) }),
        }
    }
    Ok(())
}

/// The messages in one chunk, which may begin in the middle of an entity's state.
pub(crate) fn messages_of(shard: ShardKey, chunk: &[u8], now: Time) -> Vec<Envelope> {
    let mut cargo = Cargo::default();
    cargo.states.push(&[], &[]);
    if let Err(error) = decode(&mut cargo, shard, chunk, now) {
        tracing::error!(?shard, %error, "malformed transfer: the rest of this chunk is not given up");
    }
    cargo.into_messages().collect()
}

/// States of most shards are a chunk as they are.
fn put_states(states: States) -> Chunks {
    if states.bytes() <= PART_BYTES {
        return Chunks { done: vec![], open: Writer(states.into_bytes()) };
    }
    let mut out = Chunks::default();
    for run in states.runs(PART_BYTES) {
        if run.len() <= PART_BYTES {
            out.next(run.len()).bytes(run);
        } else {
            put_large(&mut out, run);
        }
    }
    out
}

/// An entity that no chunk has room for.
fn put_large(out: &mut Chunks, record: &[u8]) {
    let Some(Record { key, state, .. }) = Record::at(record, 0) else { return };
    let (first, rest) = state.split_at(state.len().min(PART_BYTES));
    let mut whole = States::default();
    whole.push(key, first);
    whole.runs(0).for_each(|first| _ = out.next(first.len()).bytes(first));
    for part in rest.chunks(PART_BYTES) {
        out.next(part.len()).u8(MORE).count(part.len()).bytes(part);
    }
}

/// Names of a watch that are kept: one for each move of who watches since the last answer.
pub(crate) const WAS_MAX: usize = 8;
/// Bytes of one.
const WATCH_ID_BYTES: usize = 24;

/// Names of a watch.
pub(crate) fn put_ids(w: &mut Writer, was: &[WatchId]) {
    let was = &was[..was.len().min(WAS_MAX)];
    w.u8(was.len() as u8);
    was.iter().for_each(|id| _ = w.u128(id.node.raw()).u64(id.number));
}

/// What [`put_ids`] has written.
pub(crate) fn ids(r: &mut Reader<'_>) -> Result<Vec<WatchId>, Malformed> {
    let n = r.u8("names of a watch")?;
    (0..n).map(|_| watch_id(r)).collect()
}

fn watch_id(r: &mut Reader<'_>) -> Result<WatchId, Malformed> {
    Ok(WatchId { node: NodeId::from_raw(r.u128("who watches")?), number: r.u64("number of a watch")? })
}

fn put_sent<'a>(w: &'a mut Writer, record: &SentRecord) -> &'a mut Writer {
    w.u32(record.target.ty.0).u32(record.target.shard.0).u32(record.shards).u128(record.home.raw()).u64(record.epoch.get())
}

fn sent(r: &mut Reader<'_>) -> Result<SentRecord, Malformed> {
    let too_large = |field, value: u32, max: u32| Malformed::TooLarge { field, value: value.into(), max: max.into() };
    let (ty, shard, shards) = (TypeId(r.u32("target type")?), r.u32("target shard")?, r.u32("shards of its type")?);
    // There is room kept for each of them.
    if shards > SHARDS_MAX {
        return Err(too_large("shards of its type", shards, SHARDS_MAX));
    }
    if shard >= shards {
        return Err(too_large("target shard", shard, shards.saturating_sub(1)));
    }
    let target = ShardKey { ty, shard: ShardId(shard) };
    let home = NodeId::from_raw(r.u128("earlier home")?);
    Ok(SentRecord { target, shards, home, epoch: epoch(r, "earlier epoch")?, held: vec![] })
}

fn nanos(d: Duration) -> u64 {
    u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)
}

fn put_envelope(w: &mut Writer, envelope: &Envelope, now: Time) {
    match envelope.ask {
        None => w.u8(0),
        Some(ask) => {
            let rest = nanos(ask.deadline.since(now));
            w.u8(1).u128(ask.node.raw()).u64(ask.correlation).u64(rest)
        }
    };
    w.u8(envelope.key_len).count(envelope.bytes.len()).bytes(&envelope.bytes);
}

fn envelope(r: &mut Reader<'_>, shard: ShardKey, now: Time) -> Result<Envelope, Malformed> {
    let ask = match r.u8("ask")? {
        0 => None,
        1 => Some(Ask {
            node: NodeId::from_raw(r.u128("asker")?),
            correlation: r.u64("correlation")?,
            deadline: now + Duration::from_nanos(r.u64("rest of the deadline")?),
        }),
        value => return Err(Malformed::Unknown { field: "ask", value: u64::from(value) }),
    };
    let key_len = r.u8("key length")?;
    let n = r.count("message", 1, TRANSFER_BYTES)?;
    if n < usize::from(key_len) {
        return Err(Malformed::Truncated { field: "key", needed: usize::from(key_len), left: n });
    }
    Ok(Envelope { shard, ask, key_len, bytes: r.bytes("message", n)?.into() })
}

fn epoch(r: &mut Reader<'_>, field: &'static str) -> Result<Epoch, Malformed> {
    wire::epoch(field, r.u64(field)?)
}

#[derive(Default)]
struct Chunks {
    done: Vec<Vec<u8>>,
    open: Writer,
}

impl Chunks {
    /// Where the next record goes, with `variable` bytes beside its fields.
    fn next(&mut self, variable: usize) -> &mut Writer {
        if !self.open.0.is_empty() && self.open.0.len() + FIELDS_BYTES + variable > CHUNK_BYTES {
            self.done.push(std::mem::take(&mut self.open.0));
        }
        &mut self.open
    }

    fn finish(mut self) -> Vec<Vec<u8>> {
        if !self.open.0.is_empty() || self.done.is_empty() {
            self.done.push(self.open.0);
        }
        self.done
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const S: ShardKey = ShardKey { ty: TypeId(1), shard: ShardId(2) };
    const ID: WatchId = WatchId { node: NodeId::from_raw(11), number: 12 };
    const OTHER: ShardKey = ShardKey { ty: TypeId(1), shard: ShardId(3) };

    #[test]
    fn as_much_state_as_moves_is_taken_in() {
        let mut states = States::default();
        states.push(b"k", &vec![1; TRANSFER_BYTES - 7]);
        assert_eq!(states.bytes(), TRANSFER_BYTES);
        let chunks = encode(Cargo { states, ..Cargo::default() }, Time::ZERO);
        let bytes: usize = chunks.iter().map(|chunk| chunk.len()).sum();
        assert!((TRANSFER_BYTES + 1..TAKEN_IN_BYTES).contains(&bytes), "{bytes}");
    }

    fn cargo(states: &[usize]) -> Cargo {
        let ask = Ask { node: NodeId::from_raw(9), correlation: 4, deadline: Time::from_nanos(150) };
        let message = |n: u8| Envelope::new(S, (n == 2).then_some(ask), b"key", &[n; 5]).unwrap();
        Cargo {
            states: states.iter().fold(States::default(), |mut all, &n| {
                all.push(b"k", &vec![n as u8; n]);
                all
            }),
            mail: vec![message(1), message(2)],
            floors: vec![(NodeId::from_raw(3), Epoch(4))],
            held: vec![
                (NodeId::from_raw(3), Held { tag: Epoch(6), mode: Mode::Wait(Epoch(5)), since: Time::ZERO, item: message(3) }),
                (NodeId::from_raw(3), Held { tag: Epoch(6), mode: Mode::Settled, since: Time::ZERO, item: message(2) }),
            ],
            timers: vec![TimerRecord {
                key: b"key"[..].into(),
                timer: 7,
                due: Time::from_nanos(160),
                every: Some(Duration::from_nanos(9)),
                message: message(4),
            }],
            nodes: vec![(NodeId::from_raw(5), message(6))],
            watches: vec![WatchRecord {
                ty: TypeId(8),
                target: b"other"[..].into(),
                was: vec![ID, ID],
                confirmed: true,
                message: message(7),
            }],
            watched: vec![(b"key"[..].into(), ID)],
            sent: vec![
                SentRecord { target: S, shards: 8, home: NodeId::from_raw(6), epoch: Epoch(3), held: vec![message(8), message(9)] },
                SentRecord { target: OTHER, shards: 8, home: NodeId::from_raw(7), epoch: Epoch(4), held: vec![] },
            ],
            bytes: 0,
        }
    }

    #[test]
    fn what_was_packed_is_unpacked_and_asks_keep_their_remaining_time() {
        let sent = cargo(&[0, 10, CHUNK_BYTES, 3 * CHUNK_BYTES + 1]);
        let chunks = encode(sent.clone(), Time::from_nanos(100));
        assert!(chunks.len() > 4 && chunks.iter().all(|c| c.len() <= CHUNK_BYTES));
        let mut got = Cargo::default();
        for chunk in &chunks {
            decode(&mut got, S, chunk, Time::from_nanos(1_000)).unwrap();
        }
        assert_eq!(got.mail[1].ask.unwrap().deadline, Time::from_nanos(1_050));
        assert_eq!(got.timers[0].due, Time::from_nanos(1_060));
        got.timers[0].due = sent.timers[0].due;
        got.mail[1].ask = sent.mail[1].ask;
        got.held[1].1.item.ask = sent.mail[1].ask;
        assert_eq!(got.bytes, chunks.iter().map(|c| c.len()).sum::<usize>());
        got.bytes = 0;
        assert_eq!(got, sent);
    }

    #[test]
    fn each_chunk_gives_up_the_messages_in_it() {
        let sent = cargo(&[0, 10, CHUNK_BYTES, 3 * CHUNK_BYTES + 1]);
        let chunks = encode(sent.clone(), Time::ZERO);
        assert!(chunks.len() > 3, "states are cut");
        let lost: Vec<Envelope> = chunks.iter().flat_map(|chunk| messages_of(S, chunk, Time::ZERO)).collect();
        assert_eq!(lost.len(), 6);
        assert!(sent.into_messages().all(|message| lost.contains(&message)));
    }

    #[test]
    fn a_shard_that_there_cannot_be_was_not_sent_to() {
        for (shard, shards) in [(8, 8), (SHARDS_MAX, SHARDS_MAX + 1), (u32::MAX, u32::MAX)] {
            let target = ShardKey { ty: TypeId(1), shard: ShardId(shard) };
            let record = SentRecord { target, shards, home: NodeId::from_raw(6), epoch: Epoch(3), held: vec![] };
            let chunks = encode(Cargo { sent: vec![record], ..Cargo::default() }, Time::ZERO);
            assert!(matches!(decode(&mut Cargo::default(), S, &chunks[0], Time::ZERO), Err(Malformed::TooLarge { .. })));
        }
    }

    #[test]
    fn an_empty_shard_is_one_empty_chunk() {
        assert_eq!(encode(Cargo::default(), Time::ZERO).len(), 1);
    }

    #[test]
    fn every_cut_is_refused() {
        let [chunk] = &encode(cargo(&[10]), Time::ZERO)[..] else { panic!("one chunk") };
        let mut whole = 0;
        for cut in 0..chunk.len() {
            whole += usize::from(decode(&mut Cargo::default(), S, &chunk[..cut], Time::ZERO).is_ok());
        }
        assert_eq!(whole, 14, "only cuts between records are readable");
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300), kind in 0u8..13) {
            let mut cargo = Cargo::default();
            let _ = decode(&mut cargo, S, &[&[kind][..], &bytes].concat(), Time::MAX);
            let _ = encode(cargo, Time::MAX);
        }

        #[test]
        fn a_flipped_byte_never_panics(at in 0usize..200, to in any::<u8>()) {
            let mut chunk = encode(cargo(&[10, 20]), Time::ZERO)[0].to_vec();
            let at = at % chunk.len();
            chunk[at] = to;
            let _ = decode(&mut Cargo::default(), S, &chunk, Time::ZERO);
        }
    }
}
