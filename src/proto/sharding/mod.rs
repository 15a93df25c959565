//! What a node tells others about shards, beside the items themselves.

use serde::{Deserialize, Serialize};

pub use crate::id::SHARDS_MAX;
use crate::{Epoch, NodeId, ShardId, ShardKey, Term, TypeId};

/// The shard of every message of a type whose number of shards this node has not heard yet. Never leaves the node.
pub const UNSIZED: ShardId = ShardId(u32::MAX);

/// Largest term that is taken from outside. An authority's epochs begin at 2^16 for each step of the upper 40 bits of its term, so that the lower half of all
/// epochs has room for this many (see [`Epoch::ACCEPTED_MAX`]).
pub const TERM_ACCEPTED_MAX: Term = Term::new((1 << 47) - 1);

/// The shard of a key with this hash, where a type has `shards` of them (at least one).
#[inline]
pub fn shard_of(hash: u64, shards: u32) -> ShardId {
    ShardId((hash % u64::from(shards)) as u32)
}

/// How many shards a type has, for who looks for one per message: a division of 64 bits takes up to ninety cycles, and was two fifths of what sending a message
/// of a batch cost on a Cascade Lake.
#[derive(Copy, Clone, Debug)]
pub struct Shards {
    count: u32,
    /// 2^64 divided by the count, rounded down, or one less.
    reciprocal: u64,
}

impl Shards {
    /// So many, at least one.
    pub fn new(count: u32) -> Self {
        Self { count, reciprocal: u64::MAX / u64::from(count) }
    }

    /// What [`shard_of`] says.
    #[inline]
    pub fn of(self, hash: u64) -> ShardId {
        let count = u64::from(self.count);
        // The quotient, or one less: rounding takes less than one from it.
        let quotient = ((u128::from(hash) * u128::from(self.reciprocal)) >> 64) as u64;
        let left = hash.wrapping_sub(quotient.wrapping_mul(count));
        ShardId(if left >= count { left - count } else { left } as u32)
    }
}

/// A record of a shard (moves.md section 2).
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Record {
    /// Grows by 1 per record.
    pub epoch: Epoch,
    /// Where it runs, or is to run.
    pub home: NodeId,
    /// The other owner while a move is unconfirmed.
    pub from: Option<NodeId>,
    /// Tags below it are refused.
    pub base: Epoch,
    /// The home has said `Owned`.
    pub confirmed: bool,
}

/// What a region knows of one shard when a new coordinator asks.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ShardFact {
    /// Which.
    pub shard: ShardKey,
    /// What this node does with it.
    pub state: FactState,
    /// Highest epoch acted on here, or that may be.
    pub seen: Epoch,
    /// Of the life that runs here, or was handed over.
    pub base: Epoch,
    /// Newest record heard of: epoch and home.
    pub heard: Option<(Epoch, NodeId)>,
    /// Live entities of it here.
    pub entities: u32,
}

/// A node's part in a shard.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum FactState {
    /// Nothing of it is here.
    None,
    /// Runs, under epochs up to this.
    Running(Epoch),
    /// Stopping for the move with this epoch.
    Stopping(Epoch),
    /// A transfer for this epoch is coming in.
    Receiving(Epoch),
    /// Handed over under this epoch, not all acknowledged.
    HandedOver(Epoch),
    /// Its worker was given it, or may be, and has not answered.
    Unknown,
}

/// How a type is hosted; must match on every host.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TypeInfo {
    /// Stable name.
    pub name: String,
    /// Its id.
    pub ty: TypeId,
    /// Number of shards; 0 if the node only sends and takes the number that is in force.
    pub shards: u32,
    /// Hosts it, or only sends.
    pub host: bool,
}

/// Frames between the authority over shards and the regions. Layout: postcard, within the frame limit.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum ControlFrame {
    /// Region -> coordinator: this node hosts these types (all of them, each time). Repeated until `Registered`. Numbers of announcements grow.
    Register { number: u64, types: Vec<TypeInfo> },
    /// Coordinator -> region: the announcement of that number was taken in; each refused type with the reason.
    Registered { term: Term, number: u64, refused: Vec<(TypeId, String)> },
    /// Region -> coordinator: where is this shard?
    WhereIs { shard: ShardKey, shards: u32 },
    /// Coordinator -> region: no node hosts the type (yet).
    NoHost { ty: TypeId },
    /// Anyone who knows better -> anyone: a hint, only a higher epoch is taken.
    Route { shard: ShardKey, epoch: Epoch, home: NodeId },
    /// Authority -> home.
    Assign { shard: ShardKey, epoch: Epoch, home: NodeId, base: Epoch, term: Term },
    /// Authority -> both ends.
    Move { shard: ShardKey, epoch: Epoch, from: NodeId, to: NodeId, base: Epoch, term: Term },
    /// Home -> authority. `can_start` is false if it holds the shard but cannot run its entities.
    Owned { shard: ShardKey, epoch: Epoch, can_start: bool },
    /// Old home -> authority.
    MoveRefused { shard: ShardKey, epoch: Epoch, why: String },
    /// New coordinator -> regions: what do you know? Repeated until answered, and while an answer leaves facts unknown. `have`: the number of the newest
    /// answer that came whole; 0 if none did.
    Recount { term: Term, have: u64 },
    /// Region -> new coordinator, in as many parts as needed; the parts of one answer have one number, from 1, and later answers higher ones. 0: it has heard
    /// of that term, and is to be asked above it. The types are an announcement.
    Facts { term: Term, answer: u64, part: u32, last: bool, number: u64, types: Vec<TypeInfo>, facts: Vec<ShardFact> },
    /// Operator's node -> coordinator.
    MoveRequest { id: u64, shard: ShardKey, to: NodeId },
    /// Coordinator -> operator's node: the epoch it will have, or why not.
    MoveAnswer { id: u64, result: Result<Epoch, String> },
    /// Any node -> coordinator: the table of a type (all types if none).
    TableRequest { id: u64, ty: Option<TypeId> },
    /// Coordinator -> asker, in parts.
    TableAnswer { id: u64, last: bool, types: Vec<TypeInfo>, rows: Vec<TableRow> },
    /// Region -> coordinator, about once a second while it changes: live entities and messages handled per second, per shard run here.
    Load { loads: Vec<(ShardKey, u32, f32)> },
    /// Coordinator -> region that only sends: the numbers of shards that are in force. Precedes the `Registered` of the same announcement;
    /// alone when a host has come.
    Sized { term: Term, types: Vec<(TypeId, u32)> },
    /// Who leaves -> whom it has a link to: has all come that was in front of this?
    Flush { number: u64 },
    /// The answer: it has.
    Flushed { number: u64 },
    /// Coordinator -> asker for the table: it is taking over, and has not heard of all homes.
    TakingOver { id: u64 },
}

impl ControlFrame {
    /// Asks for something, or announces what its sender would use. Who has just become a member may know that before the node does that it asks.
    pub fn is_question(&self) -> bool {
        matches!(
            self,
            Self::Register { .. } | Self::WhereIs { .. } | Self::MoveRequest { .. } | Self::TableRequest { .. } | Self::Flush { .. }
        )
    }

    /// The authority's term, where one is named.
    pub fn term(&self) -> Option<Term> {
        match *self {
            Self::Registered { term, .. }
            | Self::Assign { term, .. }
            | Self::Move { term, .. }
            | Self::Recount { term, .. }
            | Self::Facts { term, .. }
            | Self::Sized { term, .. } => Some(term),
            Self::Register { .. }
            | Self::WhereIs { .. }
            | Self::NoHost { .. }
            | Self::Route { .. }
            | Self::Owned { .. }
            | Self::MoveRefused { .. }
            | Self::MoveRequest { .. }
            | Self::MoveAnswer { .. }
            | Self::Flush { .. }
            | Self::Flushed { .. }
            | Self::TableRequest { .. }
            | Self::TableAnswer { .. }
            | Self::TakingOver { .. }
            | Self::Load { .. } => None,
        }
    }
}

/// One row of the coordinator's table.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct TableRow {
    pub shard: ShardKey,
    pub owner: Option<NodeId>,
    /// The other owner while a move is unconfirmed.
    pub from: Option<NodeId>,
    pub epoch: Epoch,
    /// `starting`, `active`, `moving` or `unowned`.
    pub state: ShardState,
    pub entities: u32,
    pub rate_per_s: f32,
    /// Since when it is on the move, in milliseconds before the answer.
    pub moving_ms: Option<u32>,
}

/// Where a shard stands, as the coordinator sees it.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub enum ShardState {
    /// It has been given to a home that has not said yet that it runs.
    Starting,
    /// It runs.
    Active,
    /// Its home hands it over to another one.
    Moving,
    /// It has no home: nobody has sent to it yet, or no node hosts its type; or the coordinator is new, and cannot know yet who has it.
    Unowned,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shard_is_what_the_division_leaves() {
        let hashes = [0, 1, 63, 64, 0xdead_beef, u64::from(u32::MAX), 1 << 32, 0x9e37_79b9_7f4a_7c15, u64::MAX];
        for count in (1..=1_000).chain([4_095, 4_096, 4_097, SHARDS_MAX - 1, SHARDS_MAX, u32::MAX - 1, u32::MAX]) {
            let shards = Shards::new(count);
            // Multiples and their neighbours are where a quotient may be one off.
            let last = u64::MAX / u64::from(count) * u64::from(count);
            let edges =
                [u64::from(count), last, last / 2].into_iter().flat_map(|edge| [edge.wrapping_sub(1), edge, edge.saturating_add(1)]);
            for hash in hashes.into_iter().chain(edges) {
                assert_eq!(shards.of(hash), shard_of(hash, count), "{hash:#x} of {count}");
            }
        }
    }
}
