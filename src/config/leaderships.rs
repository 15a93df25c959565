//! `[leaderships]`

use super::{
    Span,
    setting::{HOUR, Spec, table},
};

table! {
    /// Leaderships over a ledger.
    LeadershipsConfig in leaderships {
        /// Silence after which a member of the group is out.
        session: Span = Span::secs(10), Spec::span(100, HOUR).unused();
        /// Time without a beat after which a leader is none.
        threshold: Span = Span::secs(30), Spec::span(100, HOUR).unused();
        /// Every process publishes to all partitions this often.
        publish_interval: Span = Span::secs(2), Spec::span(10, HOUR).unused();
    }
}
