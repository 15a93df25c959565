//! Types and rules of moving a shard that coordinator, region and shard share.

mod bytes;
mod items;
mod producer;
mod reason;
mod word;

pub use bytes::Bytes;
pub use items::{Ask, Envelope, Forwarded, HandoffItem, Item, Mode, ReplyBody, TransferChunk};
pub use producer::{Plan, Producer, Push};
pub use reason::DropReason;
pub use word::Word;
