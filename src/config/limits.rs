//! `[limits]`

use super::{
    Span,
    setting::{DAY, HOUR, Spec, table},
};

table! {
    /// Every bound on what comes from outside, and on what waits.
    LimitsConfig in limits {
        /// Largest encoded message.
        message_bytes: u32 = 1 << 20, Spec::int(64, 64 << 20).unit("bytes").cost("a large message delays those that are sent to its shard behind it");
        /// Largest frame between nodes; what moves with a shard travels in parts of 64 KiB.
        frame_bytes: u32 = 2 << 20, Spec::int(128 << 10, 256 << 20).unit("bytes").cost("memory per link");
        /// Messages that wait for one entity.
        mailbox: u32 = 10_000, Spec::int(1, 10_000_000).unit("messages").cost("memory, and latency of the last in the queue");
        /// Messages in the ring between two threads, with 128 bytes for each: of long ones fewer. The rings of up to two busy threads to each worker and to the
        /// network thread grow to 2 MiB, for as many messages, and stay so until their threads end.
        ring_items: u32 = 2048, Spec::int(64, 1 << 20).unit("messages").cost("memory per pair of threads, and latency of the last in a full ring");
        /// Messages of one thread to one shard that are held while the way there changes.
        lane_items: u32 = 4096, Spec::int(64, 1 << 20).unit("messages").cost("memory: the messages themselves");
        /// Bytes that wait to be sent to one peer, and up to twice as many of large messages and what must stay behind them.
        link_bytes: u32 = 16 << 20, Spec::int(64 << 10, 1 << 30).unit("bytes").cost("memory per peer");
        /// Time within which a frame that has begun must be whole.
        frame_deadline: Span = Span::secs(10), Spec::span(100, HOUR);
        /// Connections that have not said who they are.
        half_open: u32 = 256, Spec::int(1, 65_536).unit("connections");
        /// Time within which a connection must say who it is.
        hello_deadline: Span = Span::secs(5), Spec::span(100, HOUR);
        /// Asks that wait for an answer, per node.
        asks: u32 = 65_536, Spec::int(16, 16 << 20).unit("asks").cost("memory per slot");
        /// Items held behind fences and by moving shards, per shard.
        held_items: u32 = 10_000, Spec::int(16, 10_000_000).unit("messages").cost("memory: the messages themselves");
        /// Control frames without acknowledgement, per peer.
        control_backlog: u32 = 20_000, Spec::int(16, 10_000_000).unit("frames").unused();
        /// Age of a control frame without acknowledgement at which the peer is given up.
        control_age: Span = Span::millis(6 * HOUR), Spec::span(1000, 30 * DAY).unused();
        /// Largest body of an HTTP request.
        http_body: u32 = 8 << 20, Spec::int(1024, 1 << 30).unit("bytes");
        /// Header lines of an HTTP request.
        http_headers: u32 = 64, Spec::int(8, 1024).unit("lines");
        /// HTTP connections at a time.
        http_connections: u32 = 256, Spec::int(1, 65_536).unit("connections");
    }
}
