//! `[partitions]`

use super::{
    Span,
    setting::{DAY, Spec, table},
};

table! {
    /// Partitions: paths with instances on several nodes.
    PartitionsConfig in partitions {
        /// Instances move by themselves when load differs.
        rebalance: bool = true, Spec::any().unused();
        /// An instance stays on a node at least this long.
        min_dwell: Span = Span::secs(60), Spec::span(0, DAY).unused();
    }
}
