//! Streams of what happens on a node: bounded, and never waited for.

use std::{
    fmt,
    ops::Deref,
    sync::{Arc, Weak},
};

use crossbeam::channel::{Iter, Receiver, Sender, unbounded};

/// What comes to one listener, as from the [`Receiver`] of a channel, whose methods it has. It ends, behind the last value, when the node has
/// stopped.
///
/// The node forgets it when it and its clones are dropped. Clones share its values, as those of a receiver do; a receiver that is cloned out of it
/// does not keep it.
pub struct Stream<T> {
    from: Receiver<T>,
    kept: Arc<()>,
}

impl<T> Clone for Stream<T> {
    fn clone(&self) -> Self {
        Self { from: self.from.clone(), kept: self.kept.clone() }
    }
}

impl<T> fmt::Debug for Stream<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stream({} waiting)", self.from.len())
    }
}

impl<T> Deref for Stream<T> {
    type Target = Receiver<T>;

    fn deref(&self) -> &Receiver<T> {
        &self.from
    }
}

/// Waits for each value.
impl<T> Iterator for Stream<T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        self.from.recv().ok()
    }
}

impl<'a, T> IntoIterator for &'a Stream<T> {
    type Item = T;
    type IntoIter = Iter<'a, T>;

    fn into_iter(self) -> Iter<'a, T> {
        self.from.iter()
    }
}

/// The node's end of a stream, for one thread at a time.
pub(crate) struct Outlet<T> {
    to: Sender<T>,
    room: usize,
    kept: Weak<()>,
}

impl<T> Outlet<T> {
    /// A stream in which so many values may wait, at least one.
    pub fn new(room: usize) -> (Self, Stream<T>) {
        // The bound is kept here: a channel that had it would take the memory for all of them at once.
        let ((to, from), kept) = (unbounded(), Arc::new(()));
        (Self { to, room: room.max(1), kept: Arc::downgrade(&kept) }, Stream { from, kept })
    }

    /// Whether somebody has the other end. A channel tells that only to who sends.
    pub fn is_kept(&self) -> bool {
        self.kept.strong_count() > 0
    }

    /// What lives as long as somebody has the other end.
    pub fn kept(&self) -> Weak<()> {
        self.kept.clone()
    }

    /// Puts a value in. False: it has no room.
    pub fn offer(&self, value: T) -> bool {
        // The one error is that it was dropped a moment ago.
        self.to.len() < self.room && (self.to.send(value).is_ok() || !self.is_kept())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_bounded_kept_by_its_clones_and_ends_with_its_outlet() {
        let (outlet, stream) = Outlet::new(2);
        assert_eq!([1, 2, 3].map(|n| outlet.offer(n)), [true, true, false]);
        let second = stream.clone();
        drop(stream);
        assert!(outlet.is_kept());
        assert_eq!((second.recv(), outlet.offer(4)), (Ok(1), true));
        drop(outlet);
        assert_eq!((&second).into_iter().collect::<Vec<_>>(), [2, 4]);
        assert_eq!(second.count(), 0);
    }

    #[test]
    fn who_drops_a_stream_is_missed_before_anything_is_sent() {
        let (outlet, stream) = Outlet::<u8>::new(usize::MAX);
        drop(stream);
        assert!(!outlet.is_kept());
    }
}
