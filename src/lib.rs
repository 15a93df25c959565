//! Clustering for latency-sensitive services.

extern crate self as wingbeat;

pub mod config;
mod id;
#[doc(hidden)]
pub mod net;
pub mod proto;
mod time;

pub use config::Config;
pub use id::{BadAddr, Epoch, NodeAddr, NodeId, ShardId, ShardKey, Term, TypeId, address_order};
pub use time::{Deadline, Time};
