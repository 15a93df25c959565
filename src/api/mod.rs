//! What a program that uses the library sees.

mod ask;
mod batch;
mod cluster;
mod context;
mod entity;
mod error;
mod hosting;
mod key;
mod lease;
mod messages;
mod outlet;
mod query;
mod reference;
mod region;
mod shutdown;
#[cfg(feature = "admin")]
#[doc(hidden)]
pub mod surface;
mod topic;
mod wire;

#[doc(hidden)]
pub use wire::private as __private;
pub use {
    ask::{Answer, AskFuture, AskQueue},
    batch::{Batch, BatchReport},
    cluster::{ActError, Admin, Cluster, ClusterBuilder, DeadLetter, JoinError, RegisterError, StartError, Subscription},
    context::{Cx, Promise},
    entity::{Directive, Entity, Failure, HandedOver, Handoff, KeyOf, MsgOf, PanicInfo, StartCause, StopReason},
    error::{AskError, CodecError, Ran, Refusal, TellError},
    key::{Addressed, EntityId, EntityKey, IntoKey, KEY_BYTES_MAX, Singleton},
    lease::{Lease, LeaseError, MemoryLease},
    messages::{EntityType, Message, ReplyTag, Request},
    query::{RegionStats, ShardInfo},
    reference::EntityRef,
    region::{HostOptions, Nodes, Passivation, QueryError, Region},
    shutdown::{Overrun, Phase, ShutdownHandle, ShutdownReason, ShutdownReport},
    topic::Topic,
    wire::{Added, Wire, wire_id},
};
pub(crate) use {
    context::encode_reply,
    hosting::{Factory, host_of},
    outlet::{Outlet, Taken},
    reference::{AsEngine, mark_engine_thread},
    shutdown::{Awaits, End, Reaper},
    wire::decode_versions,
};
