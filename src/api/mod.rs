//! What a program that uses the library sees.

mod error;
mod key;
mod messages;
mod wire;

#[doc(hidden)]
pub use wire::private as __private;
pub use {
    error::{AskError, CodecError, Ran, Refusal, TellError},
    key::{Addressed, EntityId, EntityKey, IntoKey, KEY_BYTES_MAX},
    messages::{EntityType, Message, ReplyTag, Request},
    wire::{Added, Wire, wire_id},
};
