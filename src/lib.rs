//! Clustering for latency-sensitive services.

extern crate self as wingbeat;

#[cfg(feature = "admin")]
#[doc(hidden)]
pub mod builtin;
pub mod config;
mod id;
pub mod proto;
mod time;

pub use config::Config;
pub use id::{BadAddr, Epoch, NodeAddr, NodeId, ShardId, ShardKey, Term, TypeId, address_order};
pub use time::{Deadline, Time};
