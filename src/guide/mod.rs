//! The guide: from nothing to a running cluster, then one page for each concept, with what is guaranteed and what is not.
//!
//! Each page has one program that can be copied into a new crate and run as it stands; a test does so, and compares what they print.
//!
//! * [`start`]: a cluster in a few minutes.
//! * [`entity`]: state behind a key; what it can do, how long it lives.
//! * [`shard`]: how entities are spread over nodes.
//! * [`ask`]: requests and answers, from threads, runtimes and entities.
//! * [`ordering`]: what comes in which order.
//! * [`delivery`]: what becomes of a message.
//! * [`moves`]: what happens when a shard changes its node.
//! * [`failure`]: panics, dead nodes, splits.
//! * [`life`]: from the start of a node to its end.
//! * [`versions`]: two builds in one cluster.
//! * [`testing`]: one entity in virtual time, or a cluster of several nodes.
//! * [`configuration`]: every setting.

#[doc = include_str!("start.md")]
pub mod start {}

#[doc = include_str!("entity.md")]
pub mod entity {}

#[doc = include_str!("shard.md")]
pub mod shard {}

#[doc = include_str!("ask.md")]
pub mod ask {}

#[doc = include_str!("ordering.md")]
pub mod ordering {}

#[doc = include_str!("delivery.md")]
pub mod delivery {}

#[doc = include_str!("moves.md")]
pub mod moves {}

#[doc = include_str!("failure.md")]
pub mod failure {}

#[doc = include_str!("life.md")]
pub mod life {}

#[doc = include_str!("versions.md")]
pub mod versions {}

#[allow(clippy::test_attr_in_doctest, reason = "the page shows them, and a test runs them in a crate of its own")]
#[doc = include_str!("testing.md")]
pub mod testing {}

#[doc = include_str!("configuration.md")]
pub mod configuration {}
