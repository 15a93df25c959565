//! What is counted of the sockets.

macro_rules! counters {
    ($($(#[$m:meta])* $name:ident,)+) => {
        /// Counters of a node's sockets.
        #[derive(Clone, Default, Debug)]
        pub struct Counters { $($(#[$m])* pub $name: u64,)+ }

        impl Counters {
            /// All of them, by stable name.
            pub fn list(&self) -> Vec<(&'static str, u64)> { vec![$((stringify!($name), self.$name)),+] }
        }
    };
}

counters! {
    /// Datagrams received.
    datagrams_in,
    /// Datagrams sent.
    datagrams_out,
    /// Datagrams not sent: the name is not resolved yet, or has no address of the socket's family.
    datagrams_unresolved,
    /// Datagrams not sent: the socket had no room or refused them.
    datagrams_unsent,
    /// Bytes read from links.
    link_bytes_in,
    /// Calls of the system that read from links, those that found nothing among them.
    link_reads,
    /// Calls of the system that wrote to links, greetings apart.
    link_writes,
    /// Calls of the system that ask what is ready.
    polls,
    /// Those of them that waited for it.
    polls_asleep,
    /// Frames taken in.
    frames_in,
    /// Frames accepted for sending.
    frames_out,
    /// Frames refused by `send_frame`.
    frames_refused,
    /// Frames of unknown optional kinds, skipped.
    frames_skipped,
    /// Frames accepted for sending that certainly did not arrive.
    frames_lost,
    /// Frames written whole of which the peer said later that it had not taken them in; of a peer that was removed, those behind which nothing came from it.
    frames_lost_in_flight,
    /// Bytes read and thrown away with their session.
    link_bytes_discarded,
    /// Sessions that came up.
    sessions_up,
    /// Sessions that ended.
    sessions_down,
    /// Sessions closed because the peer read too slowly.
    sessions_too_slow,
    /// Links closed because a frame stayed incomplete for too long.
    frame_timeouts,
    /// Links closed because of bytes that are no frame.
    frames_malformed,
    /// Dials begun.
    dials,
    /// Dials that failed.
    dials_failed,
    /// Connections accepted.
    accepted,
    /// Accepted connections closed before a greeting, to make room for newer ones.
    half_open_evicted,
    /// Accepted connections closed because their address had too many.
    per_ip_evicted,
    /// Accepted connections that did not greet in time.
    hello_timeouts,
    /// Accepted connections whose first bytes were no greeting.
    hello_malformed,
    /// Greetings refused, those of simultaneous dials included.
    hello_refused,
    /// Times that no descriptor was left for a connection.
    descriptors_exhausted,
    /// Times that accepting failed for another reason, and paused.
    accepts_failed,
    /// Connections closed because there was no memory for what they carried.
    memory_exhausted,
}
