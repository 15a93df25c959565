//! Tests of what is built on wingbeat.
//!
//! * [`Solo`] runs one entity without a cluster.
mod carrier;
mod driver;
mod fence;
mod ground;
mod probe;
mod real;
mod solo;
mod story;
mod time;
mod unchanged;
mod wires;
mod world;

pub(crate) use world::SEED_VARIABLE;
pub use {
    ground::reference,
    probe::Probe,
    solo::Solo,
    unchanged::assert_wire_unchanged,
    world::{World, WorldBuilder},
};
