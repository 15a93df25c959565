//! The producer's side of a change of exit.

#[path = "../../src/proto/handoff/producer.rs"]
pub mod producer;
#[path = "../../src/proto/handoff/word.rs"]
pub mod word;

pub use producer::{Plan, Producer, Push};
pub use word::Word;
