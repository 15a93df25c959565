//! Clustering for latency-sensitive services.

extern crate self as wingbeat;

mod api;
#[cfg(feature = "admin")]
#[doc(hidden)]
pub mod admin;
pub mod config;
mod error;
mod id;
#[doc(hidden)]
pub mod metrics;
pub mod proto;
mod time;

#[doc(hidden)]
pub use api::__private;
pub use api::*;
pub use config::{Config, ConfigError, ConfigErrors};
pub use error::{ActError, JoinError, QueryError, RegisterError, StartError};
pub use id::{BadAddr, Epoch, NodeAddr, NodeId, ShardId, ShardKey, Term, TypeId, address_order};
pub use proto::handoff::DropReason;
pub use time::{Deadline, Time};
