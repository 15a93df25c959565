//! Clustering for latency-sensitive services: sharded entities with state, one live instance each, on fixed threads and without an async runtime.
//!
//! The [`guide`] begins at the beginning.

extern crate self as wingbeat;

#[cfg(feature = "admin")]
#[doc(hidden)]
pub mod admin;
mod api;
#[cfg(feature = "admin")]
#[doc(hidden)]
pub mod builtin;
pub mod config;
mod engine;
mod error;
pub mod guide;
mod id;
#[doc(hidden)]
pub mod metrics;
#[doc(hidden)]
pub mod net;
#[doc(hidden)]
pub mod proto;
#[doc(hidden)]
pub mod sim;
pub mod testkit;
mod time;

#[doc(hidden)]
pub use api::__private;
pub use api::*;
pub use config::{Config, ConfigError, ConfigErrors};
pub use crossbeam::channel;
pub use id::{BadAddr, Epoch, NodeAddr, NodeId, ShardId, ShardKey, Term, TypeId, address_order};
pub use metrics::Latency;
pub use proto::{
    handoff::DropReason,
    membership::{ClusterView, Event, Member, MemberInfo, MemberStatus, Members, Observers},
    sharding::ShardState,
};
pub use time::{Deadline, Time};

/// Compiles and runs what the README shows.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
