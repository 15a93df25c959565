//! The pure protocol: no socket, no clock, no thread, no random source of its own.
//!
//! Time, randomness (a seeded generator) and bytes come in; effects go out. The same code runs in production and in the simulator.

pub mod coordinator;
pub mod handoff;
pub mod lease;
pub mod link;
pub mod membership;
pub mod node;
pub(crate) mod queue;
pub mod region;
pub mod rng;
pub mod shard;
pub mod sharding;
pub mod wheel;
pub mod wire;
