//! What drives a `NodeCore`, and what it wants done.

use std::sync::Arc;

use crate::{
    Epoch, NodeAddr, NodeId, ShardKey, Time, TypeId,
    proto::{
        handoff::{DropReason, Envelope, ReplyBody, Word},
        lease::LeaseCall,
        membership::{ClusterView, Ending, Event, LinkReport},
        shard::ShardCommand,
        sharding::{TableRow, TypeInfo},
        wire::Frame,
    },
};

/// What a handle, the admin surface or a scenario asks of a node. `id` comes back in `Effect::Done`.
#[derive(Clone, PartialEq, Debug)]
pub enum Command {
    /// Announce a type: hosted here, or only sent to.
    Register {
        /// How.
        info: TypeInfo,
    },
    /// Join through these seeds.
    Join {
        /// Comes back.
        id: u64,
        /// Whom to ask.
        seeds: Vec<NodeAddr>,
    },
    /// A member is to leave in order (this node, if it names this node).
    Leave {
        /// Comes back.
        id: u64,
        /// Who.
        node: NodeId,
    },
    /// A member is declared dead.
    Down {
        /// Comes back.
        id: u64,
        /// Who.
        node: NodeId,
    },
    /// Move one shard, through the coordinator.
    MoveShard {
        /// Comes back.
        id: u64,
        /// Which.
        shard: ShardKey,
        /// Where to.
        to: NodeId,
    },
    /// The table of one type, or of all, cluster-wide.
    Table {
        /// Comes back.
        id: u64,
        /// Of which type; all if `None`.
        ty: Option<TypeId>,
    },
    /// The observations of this node.
    Links {
        /// Comes back.
        id: u64,
    },
    /// What this node knows of one shard without asking: home, epoch.
    Locate {
        /// Comes back.
        id: u64,
        /// Which.
        shard: ShardKey,
    },
}

/// What became of a command.
#[derive(Clone, PartialEq, Debug)]
pub enum Answer {
    /// Accepted.
    Accepted,
    /// The epoch the moved shard will have.
    Epoch(Epoch),
    /// The table.
    Table {
        /// Known types.
        types: Vec<TypeInfo>,
        /// Rows of the shards that were ever allocated.
        rows: Vec<TableRow>,
    },
    /// The observations.
    Links(Vec<LinkReport>),
    /// Home and epoch as this node believes.
    Located(Option<(NodeId, Epoch)>),
    /// There is no such member.
    NoMember(NodeId),
    /// Refused: why, and what to do.
    Refused(String),
    /// The authority did not answer in time.
    NoAuthority,
    /// It is taking over, and has not heard of all homes.
    NotKnown,
}

/// What a `NodeCore` wants done, in this order.
#[derive(Clone, PartialEq, Debug)]
pub enum Effect {
    /// Send a datagram.
    Datagram {
        /// To whom.
        to: NodeAddr,
        /// What.
        bytes: Vec<u8>,
    },
    /// Append a frame to the link with that node; dial if there is none. Frames wait in the link's outbox until the session is up.
    Frame {
        /// Address to dial.
        to: NodeAddr,
        /// The life that is meant; any if `None`. If another life answers, the frames are dropped and `LinkDown::OtherIncarnation` is reported.
        node: Option<NodeId>,
        /// What.
        frame: Frame,
    },
    /// Close the link with a removed node and throw away what came from it and was not yet handled (moves.md A2).
    CloseLink {
        /// Who.
        node: NodeId,
        /// Where.
        addr: NodeAddr,
    },
    /// Put a command into the ring of a worker.
    Worker {
        /// Which one.
        worker: u16,
        /// What.
        command: ShardCommand,
    },
    /// Publish a routing word, visible to producers from now on.
    Publish {
        /// Of which shard.
        shard: ShardKey,
        /// The word.
        word: Word,
    },
    /// The right to run ends at this moment; `Time::MAX` = no end in sight, `Time::ZERO` = now.
    HostingUntil(Time),
    /// An ask of this node is answered: complete its slot.
    Reply {
        /// Slot and generation.
        correlation: u64,
        /// What came of it.
        body: ReplyBody,
    },
    /// A message is given up here: count it and offer it as a dead letter. (Its asker is answered by a `Reply` or frame of its own.)
    Undelivered {
        /// The message.
        envelope: Envelope,
        /// Why.
        reason: DropReason,
    },
    /// The snapshot for handles changed.
    View(Arc<ClusterView>),
    /// For subscribers.
    Event(Event),
    /// A type was taken in by the coordinator (`Ok`), or refused there.
    TypeReady {
        /// Which type.
        ty: TypeId,
        /// Taken in, or why not.
        result: Result<(), String>,
    },
    /// The number of shards of a type is known, after it was registered without one. Precedes every `Publish` for the type.
    TypeSized {
        /// Which type.
        ty: TypeId,
        /// How many.
        shards: u32,
    },
    /// A command is answered.
    Done {
        /// Of the command.
        id: u64,
        /// What came of it.
        answer: Answer,
    },
    /// This node leaves, and nothing lives here any more. Take nothing of its threads from now on, and call `handle_quiet` once all that was taken before has
    /// come through the lanes.
    Quiesce,
    /// Look that name up, which is answered by `handle_resolved`.
    Resolve(NodeAddr),
    /// Ask the lease that decides splits; an `Acquire` is answered by `handle_lease`.
    Lease {
        /// Comes back.
        id: u64,
        /// What.
        call: LeaseCall,
    },
    /// This node's membership is over; stop serving. Emitted once.
    Ended(Ending),
}
