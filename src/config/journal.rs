//! `[journal]`

use super::setting::{Spec, table};

table! {
    /// The node's durable log.
    JournalConfig in journal {
        /// Records are on disk before they are acknowledged.
        sync: bool = true, Spec::any().cost("off: a power cut loses what was acknowledged").unused();
        /// Events between two snapshots of an entity.
        snapshot_every: u32 = 1000, Spec::int(1, 10_000_000).unit("events").unused();
    }
}
