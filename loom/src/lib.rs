//! The lock-free structures of wingbeat's engine, from their very sources, on loom's atomics. The models are under `tests/`; each also plants
//! faults, and shows that loom finds them.
#![allow(dead_code, missing_docs)]

#[path = "../../src/engine/bell.rs"]
pub mod bell;
#[path = "../../src/engine/deadlines.rs"]
pub mod deadlines;
pub mod exits;
pub mod faults;
#[path = "../../src/id.rs"]
mod id;
#[path = "../../src/engine/mailbox.rs"]
pub mod mailbox;
#[path = "../../src/engine/ring.rs"]
pub mod ring;
#[path = "../../src/engine/slot_table.rs"]
pub mod slot_table;
pub mod sync;

pub use id::{Epoch, ShardId, ShardKey, TypeId};
