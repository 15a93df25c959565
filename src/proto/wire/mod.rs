//! Frames, envelopes, codecs and their limits.

mod bytes;
mod frame;

pub use bytes::{Malformed, Reader, Writer};
pub use frame::Frame;
