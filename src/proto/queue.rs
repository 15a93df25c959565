//! Queues that are short nearly always.

use std::collections::VecDeque;

/// Room that a queue keeps when it is empty.
const ROOM: usize = 64;

/// The front of the queue. If that was the last of many, their room is given back.
pub(crate) fn take<T>(queue: &mut VecDeque<T>) -> Option<T> {
    let first = queue.pop_front();
    if queue.is_empty() {
        if queue.capacity() > ROOM {
            *queue = VecDeque::new();
        } else {
            // Begins at the front again: going round in its room, a short queue would touch all of it.
            queue.clear();
        }
    }
    first
}
