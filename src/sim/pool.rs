//! The pool in which the nodes of one world share what they know of it.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::proto::membership::{Keeper, Pool, Shelves};

/// A world runs in one thread, so that the lock is never waited for; but a node's core may be moved between threads, and so must what it holds.
struct Locked(Mutex<Shelves>);

impl Keeper for Locked {
    fn with(&self, visit: &mut dyn FnMut(&mut Shelves)) {
        visit(&mut self.0.lock());
    }
}

/// An empty one.
pub(super) fn pool() -> Pool {
    Pool::new(Arc::new(Locked(Mutex::default())))
}
