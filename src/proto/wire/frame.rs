//! What travels on a link.

use crate::{
    Epoch, NodeId, ShardKey, TypeId,
    proto::{
        handoff::{HandoffItem, Item, ReplyBody},
        membership::MemberFrame,
        sharding::ControlFrame,
    },
};

/// One frame of a link. The sender is the link's peer.
#[derive(Clone, PartialEq, Debug)]
pub enum Frame {
    /// Joining, leaving, and state too large for a datagram.
    Member(MemberFrame),
    /// Between the authority over shards and the regions.
    Control(ControlFrame),
    /// An item of the stream (link's peer, shard), direct to the home of its aim.
    Item {
        /// The shard.
        shard: ShardKey,
        /// What.
        item: Item,
    },
    /// An item of the numbered hand-off lane (shard, link's peer, this node).
    Handoff {
        /// The shard.
        shard: ShardKey,
        /// Number in the lane, from 1, without holes.
        number: u64,
        /// What.
        item: HandoffItem,
    },
    /// Everything in the lane up to this number has been taken over.
    HandoffAck {
        /// The shard.
        shard: ShardKey,
        /// Highest contiguous number.
        upto: u64,
    },
    /// A frame between two members that do not reach each other, by way of one that reaches both. Nodes that do not know it skip it.
    Detour {
        /// Whose it is.
        from: NodeId,
        /// Whom it is for.
        to: NodeId,
        /// A `Handoff` or `HandoffAck`, as numbers say what came before it in its lane, or a `Control`, which is void if it comes late: those may go any way.
        frame: Box<Frame>,
    },
    /// The home has met the fence, or the end, of the path under tag `p`.
    StreamAck {
        /// The shard.
        shard: ShardKey,
        /// The closed path.
        p: Epoch,
    },
    /// A probe reached the home.
    ProbeAck {
        /// The shard.
        shard: ShardKey,
        /// The origin's number for the route.
        route: u64,
        /// The probe's number.
        number: u64,
    },
    /// The answer to an ask of this node.
    Reply {
        /// The ask's slot and generation.
        correlation: u64,
        /// What came of it.
        body: ReplyBody,
    },
    /// For everybody on the node whom it concerns, at most once; in no stream, so in no order to items. Nodes that do not know it skip it.
    Cast {
        /// For the live entities of this type; 0 if it is for a topic.
        ty: TypeId,
        /// For the subscribers of the topic with this id; 0 if it is for a type.
        topic: u64,
        /// The encoded message or value.
        bytes: Box<[u8]>,
    },
}
