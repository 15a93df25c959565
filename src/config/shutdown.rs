//! `[shutdown]`

use super::{
    Span,
    setting::{HOUR, Spec, table},
};

table! {
    /// Leaving in order.
    ShutdownConfig in shutdown {
        /// Added to leave_timeout: requests under way are answered while shards are handed off. So long, too, but half of leave_timeout at most, is waited for what was sent here to arrive.
        drain_timeout: Span = Span::secs(5), Spec::span(0, HOUR);
        /// Time for shards to be handed off before the node goes all the same.
        leave_timeout: Span = Span::secs(30), Spec::span(100, HOUR);
    }
}
