//! What happens next: events ordered by time, then by the order in which they were scheduled.

use std::{cmp::Reverse, collections::BinaryHeap};

/// A queue of events `E` in virtual nanoseconds.
///
/// The heap holds indices only, so that sifting moves 24 bytes whatever the size of an event.
#[derive(Debug)]
pub(super) struct Queue<E> {
    heap: BinaryHeap<Reverse<(u64, u64, u32)>>,
    slots: Vec<Option<E>>,
    free: Vec<u32>,
    sequence: u64,
}

impl<E> Queue<E> {
    pub(super) fn new() -> Self {
        Self { heap: BinaryHeap::new(), slots: Vec::new(), free: Vec::new(), sequence: 0 }
    }

    pub(super) fn push(&mut self, at: u64, event: E) {
        let slot = match self.free.pop() {
            Some(slot) => {
                self.slots[slot as usize] = Some(event);
                slot
            }
            None => {
                self.slots.push(Some(event));
                (self.slots.len() - 1) as u32
            }
        };
        self.sequence += 1;
        self.heap.push(Reverse((at, self.sequence, slot)));
    }

    /// The next event, if it is not later than `until`.
    pub(super) fn pop(&mut self, until: u64) -> Option<(u64, E)> {
        let Reverse((at, _, slot)) = *self.heap.peek()?;
        if at > until {
            return None;
        }
        self.heap.pop();
        self.free.push(slot);
        let event = self.slots[slot as usize].take().expect("a slot in the heap is filled until it is popped");
        Some((at, event))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_times_keep_their_order() {
        let mut q = Queue::new();
        for (at, e) in [(5, 'c'), (1, 'a'), (5, 'd'), (1, 'b'), (9, 'z')] {
            q.push(at, e);
        }
        let mut out = String::new();
        while let Some((_, e)) = q.pop(5) {
            out.push(e);
        }
        assert_eq!(out, "abcd");
        q.push(9, 'y');
        assert_eq!((q.pop(9), q.pop(9), q.pop(9)), (Some((9, 'z')), Some((9, 'y')), None));
    }
}
