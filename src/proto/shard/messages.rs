//! What the network thread and a worker say to each other about shards, in the same lanes as messages.

use std::time::Duration;

use crate::{
    Epoch, NodeId, ShardKey, TypeId,
    proto::{
        handoff::{Envelope, Forwarded, HandoffItem, Item},
        sharding::ShardFact,
    },
};

/// A producer's pair of exits on one node: one per client thread, one per worker. Never reused before both `End`s have met.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LaneId(pub u32);

/// What a producer puts into the ring of a worker (P = parcel) or of the network thread (P = `Envelope`). moves.md section 13.
#[derive(Clone, PartialEq, Debug)]
pub enum LaneItem<P> {
    /// A message. `tag` is the epoch of the word used (`Epoch::ZERO` in the ring of the network thread);
    /// `enter` is set on the first item after a change of exit: `Enter(k)`.
    Msg {
        /// Its shard.
        shard: ShardKey,
        /// Epoch of the word it was routed by.
        tag: Epoch,
        /// k of `Enter(k)`.
        enter: Option<Epoch>,
        /// The message.
        parcel: P,
    },
    /// The producer has changed its exit for this shard: `Leave(k)`.
    Leave {
        /// Which shard.
        shard: ShardKey,
        /// Epoch of the local word concerned.
        k: Epoch,
    },
    /// `Enter(k)` and `Leave(k2)` at once, without an item: the middle part of a change k -> k2, in the ring of the network thread only.
    Through {
        /// Which shard.
        shard: ShardKey,
        /// Entered.
        k: Epoch,
        /// Left.
        k2: Epoch,
    },
    /// Last item of the lane.
    End,
}

/// Network thread -> worker, in order with the items it delivers.
#[derive(Clone, PartialEq, Debug)]
pub enum ShardCommand {
    /// This node can run the type (registered, with a factory). Before it, shards that arrive are held and not started.
    Host {
        /// Which type.
        ty: TypeId,
    },
    /// From the authority: run it, under `epoch`, as new or on.
    Assign {
        /// Which shard.
        shard: ShardKey,
        /// Its epoch.
        epoch: Epoch,
        /// Its base.
        base: Epoch,
    },
    /// From the authority: stop it and hand it over to `to`. Sent to the old home only.
    Move {
        /// Which shard.
        shard: ShardKey,
        /// The epoch it will have there.
        epoch: Epoch,
        /// The new home.
        to: NodeId,
    },
    /// The newest record known for the shard: hints for forwarding, and that moves to this node were superseded.
    Record {
        /// Which shard.
        shard: ShardKey,
        /// Its epoch.
        epoch: Epoch,
        /// Its home.
        home: NodeId,
    },
    /// A direct item of the stream (`stream`, `shard`): from a peer, or from this node's own NET.
    Item {
        /// Sender's node.
        stream: NodeId,
        /// Which shard.
        shard: ShardKey,
        /// What.
        item: Item,
    },
    /// An item of a hand-off lane, in order, without holes or doubles.
    Handoff {
        /// Who handed it over.
        from: NodeId,
        /// Which shard.
        shard: ShardKey,
        /// What.
        item: HandoffItem,
    },
    /// That node was removed. Its links are closed; nothing of it follows.
    Removed {
        /// Who.
        node: NodeId,
    },
    /// `Open(k, yes)` for a lane (moves.md X3, X4).
    Open {
        /// Which lane.
        lane: LaneId,
        /// Which shard.
        shard: ShardKey,
        /// Epoch of the local word.
        k: Epoch,
        /// NET's tag is still k.
        yes: bool,
    },
    /// A probe of this node's came back.
    ProbeAck {
        /// Which shard.
        shard: ShardKey,
        /// Number of the route.
        route: u64,
        /// Number of the probe.
        number: u64,
    },
    /// A new coordinator asks: report all facts.
    Recount {
        /// Comes back in the report.
        id: u64,
    },
    /// Stop every entity for good (shutdown, or the node was downed): nothing is handed over.
    Stop,
}

impl ShardCommand {
    /// What it brings of a stream, straight or passed on.
    pub fn item(&self) -> Option<&Item> {
        match self {
            Self::Item { item, .. } | Self::Handoff { item: HandoffItem::Forwarded(Forwarded { item, .. }), .. } => Some(item),
            _ => None,
        }
    }
}

/// Worker -> network thread, in the worker's ring to it.
#[derive(Clone, PartialEq, Debug)]
pub enum ShardReport {
    /// The shard runs here, for the stay [start..cur].
    Running {
        /// Which shard.
        shard: ShardKey,
        /// First epoch of the stay.
        start: Epoch,
        /// Newest epoch of the stay.
        cur: Epoch,
    },
    /// The stay that ended with `cur` is over.
    Ended {
        /// Which shard.
        shard: ShardKey,
        /// Its last epoch.
        cur: Epoch,
    },
    /// For the authority.
    Owned {
        /// Which shard.
        shard: ShardKey,
        /// The record it confirms.
        epoch: Epoch,
        /// Entities can run here.
        can_start: bool,
    },
    /// For the authority.
    MoveRefused {
        /// Which shard.
        shard: ShardKey,
        /// The record it refuses.
        epoch: Epoch,
        /// Why.
        why: String,
    },
    /// Append to the hand-off lane (shard, this node, to).
    Handoff {
        /// To whom.
        to: NodeId,
        /// Which shard.
        shard: ShardKey,
        /// What.
        item: HandoffItem,
    },
    /// The gate met the fence or the end of the stream's path.
    StreamAck {
        /// The stream's node.
        stream: NodeId,
        /// Which shard.
        shard: ShardKey,
        /// The closed path.
        p: Epoch,
    },
    /// A probe arrived at the home.
    ProbeAck {
        /// The origin.
        origin: NodeId,
        /// Which shard.
        shard: ShardKey,
        /// Its number for the route.
        route: u64,
        /// Number of the probe.
        number: u64,
    },
    /// A local item that met the end of the stay: a new item of NET.
    Back {
        /// The lane it came by.
        lane: LaneId,
        /// What.
        envelope: Envelope,
    },
    /// Behind what went back: `Left(lane, shard, k)`.
    Left {
        /// Which lane.
        lane: LaneId,
        /// Which shard.
        shard: ShardKey,
        /// Epoch of the local word.
        k: Epoch,
    },
    /// The lane's last item was met, behind what went back.
    End {
        /// Which lane.
        lane: LaneId,
    },
    /// Items wait for an epoch that is not known here: ask the authority once.
    Unknown {
        /// Which shard.
        shard: ShardKey,
        /// Their aim.
        aim: Epoch,
    },
    /// Answer to `Recount`: the facts of all shards this worker knows of.
    Facts {
        /// Of the question.
        id: u64,
        /// What is known.
        facts: Vec<ShardFact>,
    },
    /// Whether something that entities had sent which have left may still be on its way from here. Before `Ended` of their shard.
    Settling {
        /// It may.
        under_way: bool,
    },
    /// Per shard run here: live entities, and messages handled in that time. About once a second, only if it changed.
    Load {
        /// Rows.
        loads: Vec<(ShardKey, u32, u32)>,
        /// In how long.
        over: Duration,
    },
}
