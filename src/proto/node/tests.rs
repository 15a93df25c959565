//! Several `NodeCore`s with a scripted membership and model workers; every queue is a FIFO of its own, served in random order.

mod members;
mod worker;
mod world;

mod faults;
mod moves;
mod protocol;
mod silent;
