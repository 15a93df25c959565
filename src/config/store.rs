//! `[store]`

use super::{
    Span,
    setting::{DAY, Spec, table},
};

table! {
    /// The replicated store.
    StoreConfig in store {
        /// Copies of each value.
        replicas: u8 = 3, Spec::int(1, 9).unit("copies").must_match().unused();
        /// Replicas compare themselves this often.
        anti_entropy_interval: Span = Span::secs(60), Spec::span(1000, DAY).unused();
    }
}
