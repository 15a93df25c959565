//! What `downing.strategy = "lease-majority"` asks which side of a split lives.

use std::{fmt, sync::Arc, time::Duration};

use parking_lot::Mutex;

use crate::{NodeId, Term, engine::sys, proto::lease::LeaseTable};

/// A lock with a time limit outside the cluster, for `downing.strategy = "lease-majority"`.
///
/// Called on a thread of its own, one call at a time; may block, but an answer that takes longer than two heartbeats counts as none.
pub trait Lease: Send + 'static {
    /// Takes the lease for `owner`, until `ttl` after this call. Its holder gets it again, for longer and under the same term; everybody
    /// else gets `None` until it ends or is released. Terms of later holders are higher.
    ///
    /// # Errors
    /// [`LeaseError`]: it could not be asked. The call is repeated for a while; a side that never gets an answer stops.
    fn acquire(&mut self, name: &str, owner: NodeId, ttl: Duration) -> Result<Option<Term>, LeaseError>;

    /// Gives the lease back, if it is still held under this term.
    ///
    /// # Errors
    /// [`LeaseError`]: it could not be asked; the lease ends by itself.
    fn release(&mut self, name: &str, term: Term) -> Result<(), LeaseError>;
}

/// The lease could not be asked; whether it was given is not known.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the lease cannot be asked: {why}")]
#[non_exhaustive]
pub struct LeaseError {
    /// Why.
    pub why: String,
}

impl LeaseError {
    /// From the words of whatever keeps the lease.
    pub fn new(why: impl Into<String>) -> Self {
        Self { why: why.into() }
    }
}

/// A lease in the memory of this process: for tests, and for several nodes in one process.
///
/// Clones are the same lease; give one to each node. Nodes in other processes cannot ask it: two of them with a `MemoryLease` each would
/// both live after a split, so a cluster of processes needs a [`Lease`] that all of them reach.
#[derive(Clone, Default)]
pub struct MemoryLease {
    table: Arc<Mutex<LeaseTable>>,
}

impl MemoryLease {
    /// Held by nobody.
    pub fn new() -> Self {
        Self::default()
    }
}

impl fmt::Debug for MemoryLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MemoryLease")
    }
}

impl Lease for MemoryLease {
    fn acquire(&mut self, name: &str, owner: NodeId, ttl: Duration) -> Result<Option<Term>, LeaseError> {
        Ok(self.table.lock().acquire(sys::now(), name, owner, ttl))
    }

    fn release(&mut self, name: &str, term: Term) -> Result<(), LeaseError> {
        self.table.lock().release(name, term);
        Ok(())
    }
}
