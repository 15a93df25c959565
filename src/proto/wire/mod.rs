//! Frames, envelopes, codecs and their limits.

mod bytes;
mod frame;
mod frame_codec;
mod hello;
mod item_codec;
mod message;
mod part;

pub use bytes::{Malformed, Reader, Writer};
pub use frame::Frame;
pub(crate) use frame_codec::epoch;
pub use frame_codec::{Context, Cut, Decoded, FrameError, HEADER_BYTES, WIRE_VERSION, cut, decode, encode};
pub use hello::{
    Accepted, Extension, GREETING_BYTES_MAX, Greeter, Greeting, Hello, MAGIC, Pair, Previous, ProtocolRange, Refusal, SESSION_MAX, Welcome,
};
pub use item_codec::shorten_ask;
pub use message::{Message, encode_message, message_in};
pub use part::{LinkFrame, Order, encode_link, is_handoff, link_frame_in, order_of};
