//! Tests of what is built on wingbeat.
//!
//! * [`Solo`] runs one entity: no cluster, no thread, virtual time. For what an entity does: its answers, what it sends, its timers, what
//!   it hands over when it moves.
//! * [`World::simulated`] runs several nodes in one thread and in virtual time, over a network that delays, loses and is cut as the test
//!   wants; nodes are killed, restarted and stopped. A run is a function of the test and its seed, so a failure is repeated by its seed.
//!   For what entities do together, and what becomes of them when something breaks.
//! * [`World::real`] runs the same test on threads and sockets of this machine.
//! * [`Probe`] records what arrives at entities of a type; [`assert_wire_unchanged`] holds the numbers of messages.
//!
//! Nothing has to be switched on: the module is part of the library, and a program that does not use it does not contain it.
//!
//! # What is simulated, and what is not
//!
//! Everything above the sockets is what runs in production, turn by turn: entities, mailboxes, asks, timers, routing, moves, membership,
//! and the codecs of all messages. Modelled are the clock, the order in which threads get their turns (the seed decides), and the network:
//! a datagram arrives after the latency or not at all; a connection delivers in order, stalls while its path is cut, breaks when nothing
//! gets through for ten seconds or when its peer dies, and takes along what it had accepted. A turn costs ten microseconds of virtual time,
//! whatever it does: speed is measured on real nodes.
//!
//! Not there in virtual time: the HTTP surface, signals, and name resolution. A test that waits on anything but the library (a channel's `recv`, a
//! lock, another thread) waits for ever, as nobody passes time meanwhile: look at it in [`World::eventually`].
//!
//! # One line apart
//!
//! ```
//! use std::time::Duration;
//! use wingbeat::{testkit::World, *};
//!
//! messages! { pub enum LampMsg for Lamp(String) = "doc.lamp" { Switch -> bool } }
//! struct State { on: bool }
//! impl Entity for State {
//!     type Type = Lamp;
//!     fn handle(&mut self, LampMsg::Switch(Switch, reply): LampMsg, cx: &mut Cx<'_, Self>) {
//!         self.on = !self.on;
//!         cx.reply(reply, self.on);
//!     }
//! }
//!
//! fn any_node_switches_the_same_lamp(world: testkit::WorldBuilder) {
//!     let world = world.on_each(|node| node.host::<State>(HostOptions::new(), |_| State { on: false }).map(drop)).start();
//!     for (node, on) in [(0, true), (1, false), (2, true)] {
//!         assert_eq!(world.entity::<Lamp>(node, "porch").ask(Switch, Duration::from_secs(5)), Ok(on));
//!     }
//! }
//! any_node_switches_the_same_lamp(World::simulated(3));
//! any_node_switches_the_same_lamp(World::real(3));
//! ```

mod carrier;
mod driver;
mod fence;
mod ground;
mod probe;
mod real;
mod solo;
mod story;
mod time;
mod twin;
mod unchanged;
mod wires;
mod world;

#[doc(hidden)]
pub use twin::{Life, Story, Turn, Twin};
pub(crate) use world::SEED_VARIABLE;
pub use {
    ground::reference,
    probe::Probe,
    solo::Solo,
    unchanged::assert_wire_unchanged,
    world::{World, WorldBuilder},
};
