//! The node's end of a channel to one listener, which it never waits for.

use crossbeam::channel::{Receiver, Sender, unbounded};

/// What became of a value at one listener.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Taken {
    /// It has it.
    Yes,
    /// It has no room.
    Full,
    /// It is gone.
    Gone,
}

/// For one thread at a time.
pub(crate) struct Outlet<T> {
    to: Sender<T>,
    room: usize,
    /// Values that found no room since the listener was told of such.
    missed: u64,
}

impl<T> Outlet<T> {
    /// A channel in which so many values may wait, at least one.
    pub fn new(room: usize) -> (Self, Receiver<T>) {
        // The bound is kept here: a channel that had it would take the memory for all of them at once, until a value is sent behind the end of its receiver.
        let (to, from) = unbounded();
        (Self { to, room: room.max(1), missed: 0 }, from)
    }

    /// Puts a value in.
    pub fn offer(&self, value: T) -> Taken {
        // Who is gone has left nothing behind.
        if self.to.len() >= self.room {
            Taken::Full
        } else if self.to.send(value).is_ok() {
            Taken::Yes
        } else {
            Taken::Gone
        }
    }

    /// Puts the value in everywhere, and forgets who is gone: how many have no room. `lagged` makes the word for a listener who has room again, that
    /// it has missed so many, if there is one.
    pub fn offer_all(all: &mut Vec<Self>, value: &T, lagged: impl Fn(u64) -> Option<T>) -> u64
    where
        T: Clone,
    {
        let mut missed = 0;
        all.retain_mut(|outlet| {
            let word = if outlet.missed > 0 { lagged(outlet.missed) } else { None };
            let taken = match word.map(|word| outlet.offer(word)) {
                None => outlet.offer(value.clone()),
                Some(Taken::Yes) => {
                    outlet.missed = 0;
                    outlet.offer(value.clone())
                }
                Some(taken) => taken,
            };
            if taken == Taken::Full {
                outlet.missed += 1;
                missed += 1;
            }
            taken != Taken::Gone
        });
        missed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_is_bounded_and_ends_with_the_outlet() {
        let (outlet, from) = Outlet::new(2);
        assert_eq!([1, 2, 3].map(|n| outlet.offer(n)), [Taken::Yes, Taken::Yes, Taken::Full]);
        assert_eq!((from.recv(), outlet.offer(4)), (Ok(1), Taken::Yes));
        drop(outlet);
        assert_eq!(from.iter().collect::<Vec<_>>(), [2, 4]);
    }

    #[test]
    fn who_is_gone_is_forgotten_and_misses_nothing() {
        let ((kept, from), (gone, dropped), (full, _full)) = (Outlet::new(9), Outlet::new(1), Outlet::new(1));
        assert_eq!((gone.offer(0), full.offer(0)), (Taken::Yes, Taken::Yes));
        drop(dropped);
        let mut all = vec![kept, gone, full];
        assert_eq!((Outlet::offer_all(&mut all, &7, |_| None), all.len()), (1, 2));
        assert_eq!(from.try_iter().collect::<Vec<_>>(), [7]);
    }

    #[test]
    fn who_has_room_again_is_told_first_how_much_it_has_missed() {
        let (outlet, from) = Outlet::new(2);
        let mut all = vec![outlet];
        let mut offer = |value: i64| Outlet::offer_all(&mut all, &value, |missed| Some(-(missed as i64)));
        assert_eq!([1, 2, 3, 4].map(&mut offer), [0, 0, 1, 1]);
        assert_eq!((from.recv(), offer(5)), (Ok(1), 1), "there is room for the word alone");
        assert_eq!(from.try_iter().collect::<Vec<_>>(), [2, -2]);
        assert_eq!((offer(6), from.try_iter().collect::<Vec<_>>()), (0, vec![-1, 6]));
    }
}
