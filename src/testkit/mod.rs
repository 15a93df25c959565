//! Tests of what is built on wingbeat.
//!
//! * [`Solo`] runs one entity without a cluster.
mod ground;
mod solo;
mod time;

pub use {ground::reference, solo::Solo};
