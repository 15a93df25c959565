//! Something that goes along with one node of a run: it hears what that node's network thread hears, at the same moments of the same clock.

use std::sync::Arc;

use crate::{
    Config, NodeAddr, NodeId, Time,
    proto::{link::LinkEvent, membership::Identity, wire::Frame},
};

/// What comes in to a node's network thread from outside.
#[derive(Copy, Clone, Debug)]
#[allow(missing_docs)]
pub enum Heard<'a> {
    Datagram(&'a [u8]),
    Frame {
        peer: NodeId,
        frame: &'a Frame,
    },
    Link(&'a LinkEvent),
    /// Nothing, but a timer is due.
    Timer,
}

/// Follows one node. It has no part in the run, which is the same with and without it.
pub trait Shadow {
    /// Which one, by its number in the scenario.
    fn node(&self) -> u32;
    /// A life of it begins: its core is made of these.
    fn born(&mut self, now: Time, config: &Arc<Config>, me: &Identity, seed: u64);
    /// Told before the node itself.
    fn hears(&mut self, now: Time, what: Heard<'_>);
    /// What the node sends then.
    fn sends(&mut self, to: &NodeAddr, datagram: &[u8]);
}
