//! `ShardCore`: everything that happens to the entities of one worker's shards.

mod host;
mod messages;

pub use host::{Host, Parcel, Place, StartCause, StopReason, Turn};
pub use messages::{LaneId, LaneItem, ShardCommand, ShardReport};

use std::sync::Arc;

use crate::{Config, Epoch, NodeId, ShardKey, Time};

/// The shards of one worker.
pub struct ShardCore<H: Host> {
    _h: std::marker::PhantomData<H>,
}

#[allow(unused_variables, missing_docs)]
impl<H: Host> ShardCore<H> {
    pub fn new(config: Arc<Config>, me: NodeId, worker: u16, seed: u64) -> Self {
        Self { _h: std::marker::PhantomData }
    }
    /// An item of a producer's ring to this worker. `hosting_until`: read once per turn; past it nothing is handled (moves.md 14, R1).
    pub fn handle_lane(&mut self, now: Time, lane: LaneId, item: LaneItem<H::Parcel>, host: &mut H) {}
    pub fn handle_command(&mut self, now: Time, command: ShardCommand, host: &mut H) {}
    /// The right to run, as the worker read it at the start of its turn. From past to future: what waited is handled.
    pub fn set_hosting_until(&mut self, now: Time, until: Time, host: &mut H) {}
    pub fn handle_timeout(&mut self, now: Time, host: &mut H) {}
    pub fn poll_timeout(&self) -> Option<Time> {
        None
    }
    pub fn entities(&self) -> usize {
        0
    }
    /// Runs `f` on a live entity (test kit and simulator).
    pub fn with_entity<R>(&mut self, shard: ShardKey, key: &[u8], f: impl FnOnce(&mut H::Entity) -> R) -> Option<R> {
        None
    }
    /// Live instances: (shard, key, epoch), for checkers.
    pub fn live(&self) -> impl Iterator<Item = (ShardKey, &[u8], Epoch)> {
        std::iter::empty()
    }
    pub fn check(&self) {}
}
