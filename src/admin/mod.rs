//! The HTTP surface of a node: health, status, entity operations, metrics.

pub mod model;
pub mod source;

pub use source::{Done, EntityCall, EntityOutcome, EntityType, Mode, Probe, Source, SourceError};
