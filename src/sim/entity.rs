//! The entities of the simulator and the host that runs them: `probe` records who sent what, and its record moves with it.

use crate::{
    Epoch, NodeId, ShardKey, Time,
    proto::{
        handoff::{DropReason, Envelope, ReplyBody},
        shard::{Host, Parcel, Place, ShardReport, StartCause, StopReason, Turn},
    },
};

/// First bytes of each message of the workload, so that messages can be found inside a transfer.
const MARK: [u8; 8] = *b"\xf1wbprobe";
const PAYLOAD: usize = 8 + 8 + 4 + 4;

/// What a message of the workload says.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) struct Note {
    /// Its number in the ledger.
    pub id: u64,
    pub sender: u32,
    pub seq: u32,
}

impl Note {
    pub(super) fn encode(self) -> [u8; PAYLOAD] {
        let mut out = [0; PAYLOAD];
        out[..8].copy_from_slice(&MARK);
        out[8..16].copy_from_slice(&self.id.to_le_bytes());
        out[16..20].copy_from_slice(&self.sender.to_le_bytes());
        out[20..].copy_from_slice(&self.seq.to_le_bytes());
        out
    }

    pub(super) fn decode(payload: &[u8]) -> Option<Self> {
        let rest = payload.strip_prefix(&MARK)?;
        Some(Self {
            id: u64::from_le_bytes(rest.get(..8)?.try_into().ok()?),
            sender: u32::from_le_bytes(rest.get(8..12)?.try_into().ok()?),
            seq: u32::from_le_bytes(rest.get(12..16)?.try_into().ok()?),
        })
    }

    /// The messages that lie somewhere in `bytes`.
    pub(super) fn find_in(bytes: &[u8]) -> impl Iterator<Item = Self> {
        bytes.windows(PAYLOAD).filter(|w| w[0] == MARK[0]).filter_map(Self::decode)
    }
}

/// Key of an entity by its number.
pub(super) fn key_of(entity: u32) -> String {
    format!("e{entity}")
}

/// Number of an entity by its key.
pub(super) fn entity_of(key: &[u8]) -> Option<u32> {
    std::str::from_utf8(key.strip_prefix(b"e")?).ok()?.parse().ok()
}

/// A message on a worker's ring. Local ones are encoded too: what an encoder might do wrong is no subject here.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct SimParcel(pub Envelope);

impl Parcel for SimParcel {
    fn from_envelope(envelope: Envelope) -> Self {
        Self(envelope)
    }

    fn into_envelope(self, shard: ShardKey) -> Result<Envelope, (Self, String)> {
        debug_assert_eq!(shard, self.0.shard, "an envelope knows its shard");
        Ok(self.0)
    }

    fn key(&self) -> &[u8] {
        self.0.key()
    }

    fn hash(&self) -> u64 {
        xxhash_rust::xxh3::xxh3_64(self.0.key())
    }

    fn deadline(&self) -> Option<Time> {
        self.0.ask.map(|a| a.deadline)
    }

    fn size(&self) -> usize {
        64 + self.0.bytes.len()
    }
}

/// One `probe`: per sender the highest number and how many came.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct Probe {
    entity: u32,
    senders: Vec<(u32, u32, u32)>,
}

impl Probe {
    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.senders.len() * 12);
        for (sender, highest, count) in &self.senders {
            for x in [sender, highest, count] {
                out.extend_from_slice(&x.to_le_bytes());
            }
        }
        out
    }

    fn decode(entity: u32, state: &[u8]) -> Option<Self> {
        let word = |c: &[u8]| u32::from_le_bytes([c[0], c[1], c[2], c[3]]);
        state
            .len()
            .is_multiple_of(12)
            .then(|| Self { entity, senders: state.chunks_exact(12).map(|c| (word(c), word(&c[4..]), word(&c[8..]))).collect() })
    }

    fn note(&mut self, note: Note) {
        match self.senders.iter_mut().find(|(s, ..)| *s == note.sender) {
            Some((_, highest, count)) => {
                *highest = note.seq.max(*highest);
                *count += 1;
            }
            None => self.senders.push((note.sender, note.seq, 1)),
        }
    }
}

/// What a worker puts into its ring to the network thread.
#[derive(Clone, PartialEq, Debug)]
#[allow(clippy::large_enum_variant)] // Small messages stand in place: a box for each would cost more than the copies.
pub(super) enum Outgoing {
    Report(ShardReport),
    Reply { to: NodeId, correlation: u64, body: ReplyBody },
}

/// What the checkers and the ledger must know of a worker's step.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Happened {
    Started {
        entity: u32,
        at: Place,
        state: Option<u64>,
    },
    Stopped {
        entity: u32,
        why: StopReason,
    },
    HandedOver {
        entity: u32,
        state: u64,
    },
    Handled {
        note: Note,
        entity: u32,
        epoch: Epoch,
        ask: bool,
    },
    Undelivered {
        note: Option<Note>,
        reason: DropReason,
    },
    /// The shard's stay here began or ended.
    Running {
        shard: ShardKey,
        yes: bool,
    },
    Wrong(String),
}

/// Runs the entities of one worker and remembers what happened until the driver asks.
#[derive(Debug, Default)]
pub(super) struct SimHost {
    pub outgoing: Vec<Outgoing>,
    pub happened: Vec<Happened>,
}

impl Host for SimHost {
    type Parcel = SimParcel;
    type Entity = Probe;

    fn start(&mut self, at: &Place, key: &[u8], _cause: StartCause, state: Option<(&[u8], NodeId)>) -> Result<Probe, String> {
        let Some(entity) = entity_of(key) else {
            self.happened.push(Happened::Wrong(format!("an entity with the key {key:?}, which nobody uses, was started")));
            return Err("no such key".into());
        };
        self.happened.push(Happened::Started { entity, at: *at, state: state.map(|(s, _)| xxhash_rust::xxh3::xxh3_64(s)) });
        match state {
            None => Ok(Probe { entity, senders: Vec::new() }),
            Some((bytes, _)) => Ok(Probe::decode(entity, bytes).unwrap_or_else(|| {
                self.happened.push(Happened::Wrong(format!("entity {entity} got a state of {} bytes that is none", bytes.len())));
                Probe { entity, senders: Vec::new() }
            })),
        }
    }

    fn handle(&mut self, at: &Place, entity: &mut Probe, parcel: SimParcel) -> Turn {
        let Some(note) = Note::decode(parcel.0.payload()) else {
            self.happened.push(Happened::Wrong(format!("entity {} got a message that nobody sent", entity.entity)));
            return Turn::Continue;
        };
        if entity_of(parcel.0.key()) != Some(entity.entity) {
            self.happened.push(Happened::Wrong(format!("entity {} got a message for {:?}", entity.entity, parcel.0.key())));
        }
        entity.note(note);
        self.happened.push(Happened::Handled { note, entity: entity.entity, epoch: at.epoch, ask: parcel.0.ask.is_some() });
        if let Some(ask) = parcel.0.ask {
            self.outgoing.push(Outgoing::Reply {
                to: ask.node,
                correlation: ask.correlation,
                body: ReplyBody::Value(note.id.to_le_bytes().as_slice().into()),
            });
        }
        Turn::Continue
    }

    fn hand_over(&mut self, _at: &Place, _key: &[u8], entity: &mut Probe, out: &mut Vec<u8>) -> Result<bool, Box<str>> {
        let bytes = entity.encode();
        self.happened.push(Happened::HandedOver { entity: entity.entity, state: xxhash_rust::xxh3::xxh3_64(&bytes) });
        out.extend_from_slice(&bytes);
        Ok(true)
    }

    fn stop(&mut self, _at: &Place, _key: &[u8], entity: Probe, why: StopReason) {
        self.happened.push(Happened::Stopped { entity: entity.entity, why });
    }

    fn undelivered(&mut self, _shard: ShardKey, parcel: SimParcel, reason: DropReason) {
        self.happened.push(Happened::Undelivered { note: Note::decode(parcel.0.payload()), reason });
        if let Some(ask) = parcel.0.ask {
            self.outgoing.push(Outgoing::Reply { to: ask.node, correlation: ask.correlation, body: ReplyBody::Dropped(reason) });
        }
    }

    fn report(&mut self, report: ShardReport) {
        match report {
            ShardReport::Running { shard, .. } => self.happened.push(Happened::Running { shard, yes: true }),
            ShardReport::Ended { shard, .. } => self.happened.push(Happened::Running { shard, yes: false }),
            _ => {}
        }
        self.outgoing.push(Outgoing::Report(report));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_are_found_inside_other_bytes() {
        let note = Note { id: 7, sender: 2, seq: 9 };
        let bytes = [b"xyz".as_slice(), &note.encode(), b"\xf1w", &Note { id: 8, ..note }.encode()].concat();
        assert_eq!(Note::find_in(&bytes).map(|n| n.id).collect::<Vec<_>>(), [7, 8]);
        assert_eq!(Note::decode(b"short"), None);
    }

    #[test]
    fn a_record_survives_its_move() {
        let mut p = Probe { entity: 3, senders: vec![] };
        for seq in [1, 2, 5] {
            p.note(Note { id: 0, sender: 4, seq });
        }
        assert_eq!(Probe::decode(3, &p.encode()).unwrap(), p);
        assert_eq!(Probe::decode(3, b"x"), None);
        assert_eq!((entity_of(key_of(12).as_bytes()), entity_of(b"e"), entity_of(b"12")), (Some(12), None, None));
    }
}
