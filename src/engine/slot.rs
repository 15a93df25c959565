//! Ask slots: who waits for which answer. An ask is answered at most once: by its reply, by its refusal or by its deadline.

use crate::engine::{asker::Place, completion::Room, lane::Door, node::ToWorker, panics, parcel::Answered, slot_table::SlotTable};

/// Who takes the answer.
pub enum Waiter {
    /// A thread that waits for it.
    Thread(Place),
    /// Runs on the thread that brings the answer, which may be any of the engine's and the user's that keeps a promise, but for a guest's: that leaves it to
    /// the network thread. It must be quick and must not block.
    Call(Box<dyn FnOnce(Answered) + Send>),
    /// An entity of this worker, which knows the ask by its number.
    Entity(u16),
    /// A queue that somebody empties, with the asker's name for the ask.
    Queue(Room, u64),
}

impl Waiter {
    /// Gives the answer to the ask with that number.
    pub fn answer(self, correlation: u64, answered: Answered, workers: &[Door<ToWorker>]) {
        match self {
            Self::Thread(place) => place.put(answered),
            Self::Call(call) => {
                // Code of users, on a thread that others need. Whom it owes something hears of it as it is dropped.
                if panics::caught(|| call(answered)).is_none() {
                    tracing::error!(target: "wingbeat::engine", "what waited for an answer panicked");
                }
            }
            // Bounded by the asks that a worker's entities may have (`Out::may_ask`).
            Self::Entity(worker) => workers[usize::from(worker)].post(ToWorker::Answer(correlation, answered)),
            Self::Queue(room, tag) => room.put(tag, answered),
        }
    }
}

/// All asks in flight of one node.
pub type Slots = SlotTable<Waiter>;

const _: () = {
    const fn is_send<T: Send>() {}
    is_send::<Waiter>();
};

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };

    use super::*;
    use crate::engine::{
        deadlines::COARSE,
        slot_table::{INDEX_BITS, INDEX_MASK, UNTIMED},
    };

    fn counting(n: &Arc<AtomicUsize>) -> Waiter {
        let n = n.clone();
        Waiter::Call(Box::new(move |_| {
            n.fetch_add(1, Ordering::SeqCst);
        }))
    }

    #[test]
    fn a_waiter_that_panics_does_not_end_the_thread_that_brings_its_answer() {
        let waiter = Waiter::Call(Box::new(|_| std::panic::resume_unwind(Box::new("on purpose"))));
        waiter.answer(1, Answered::Timeout, &[]);
    }

    // failures: row 53
    #[test]
    fn an_ask_is_answered_once() {
        let (slots, n) = (Slots::new(2, COARSE), Arc::new(AtomicUsize::new(0)));
        let ask = slots.open(counting(&n), UNTIMED).unwrap();
        assert_eq!(slots.in_flight(), 1);
        slots.take(ask).unwrap().answer(ask, Answered::Timeout, &[]);
        assert!(slots.take(ask).is_none(), "answered");
        let again = slots.open(counting(&n), UNTIMED).unwrap();
        assert!(slots.take(ask).is_none(), "an old answer does not hit the slot's next ask");
        assert!(slots.take(again).is_some());
        assert_eq!(n.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn room_is_bounded_and_comes_back() {
        let (slots, n) = (Slots::new(2, COARSE), Arc::new(AtomicUsize::new(0)));
        let (a, _b) = (slots.open(counting(&n), UNTIMED).unwrap(), slots.open(counting(&n), UNTIMED).unwrap());
        assert!(slots.open(counting(&n), UNTIMED).is_none());
        assert!(slots.take(a).is_some());
        assert!(slots.open(counting(&n), UNTIMED).is_some());
        assert!(slots.take(u64::MAX).is_none() && slots.take(1 << INDEX_BITS | 77).is_none(), "names of no slot");
    }

    #[test]
    fn seats_are_besides_the_room_and_go_from_one_to_the_next() {
        let (slots, other, n) = (Slots::new(1, COARSE), Slots::new(1, COARSE), Arc::new(AtomicUsize::new(0)));
        let mut seat = slots.sit().unwrap();
        assert!(slots.sit().is_none(), "as many as there is room for");
        let asks = [slots.open(counting(&n), UNTIMED).unwrap(), slots.open_at(&mut seat, counting(&n)).ok().unwrap()];
        assert_eq!(slots.open_asks().collect::<Vec<_>>(), asks);
        assert!(slots.open_at(&mut seat, counting(&n)).is_err(), "one ask at a time");
        slots.sent_to(asks[1], 1);
        assert_eq!(slots.at(1).collect::<Vec<_>>(), asks[1..]);
        assert!(slots.take(asks[1]).is_some() && slots.take(asks[1]).is_none() && !slots.is_open(asks[1]));
        let next = slots.open_at(&mut seat, counting(&n)).ok().unwrap();
        assert!(slots.take(asks[1]).is_none(), "an old answer does not hit the next ask");
        assert!(slots.take(next).is_some());
        assert!(other.open_at(&mut seat, counting(&n)).is_err(), "of another table");
        slots.leave(seat);
        let mut seat = slots.sit().expect("it is free again");
        assert!(slots.open_at(&mut seat, counting(&n)).is_ok());
        slots.leave(seat);
        assert!(slots.sit().is_none(), "whoever waits there goes on");
    }

    #[test]
    fn a_dead_peer_has_the_asks_that_went_to_it_and_are_still_open() {
        let (slots, n) = (Slots::new(8, COARSE), Arc::new(AtomicUsize::new(0)));
        let asks: Vec<u64> = (0..4).map(|_| slots.open(counting(&n), UNTIMED).unwrap()).collect();
        slots.sent_to(asks[0], 1);
        slots.sent_to(asks[1], 2);
        slots.sent_to(asks[2], 1);
        drop(slots.take(asks[2]));
        let reopened: Vec<u64> = (0..5).map(|_| slots.open(counting(&n), UNTIMED).unwrap()).collect();
        assert!(reopened.iter().any(|ask| ask & INDEX_MASK == asks[2] & INDEX_MASK), "the slot serves another ask");
        assert_eq!(slots.at(1).collect::<Vec<_>>(), [asks[0]], "not the answered one, and not its slot's next");
        slots.sent_to(asks[1], 1);
        assert_eq!(slots.at(1).collect::<Vec<_>>(), asks[..2], "an ask is where it went last");
        assert_eq!(slots.at(0).count(), 0, "an ask that never left is at no peer");
    }

    #[test]
    fn a_late_note_of_an_ask_that_is_over_does_not_hide_its_slots_next() {
        let (slots, n) = (Slots::new(1, COARSE), Arc::new(AtomicUsize::new(0)));
        let old = slots.open(counting(&n), UNTIMED).unwrap();
        drop(slots.take(old));
        let next = slots.open(counting(&n), UNTIMED).unwrap();
        slots.sent_to(next, 1);
        // The sign that ends the old one, in the lane of another worker.
        slots.sent_to(old, 1);
        assert_eq!(slots.at(1).collect::<Vec<_>>(), [next]);
    }

    #[test]
    fn two_threads_never_both_answer() {
        let (slots, n) = (Arc::new(Slots::new(4, COARSE)), Arc::new(AtomicUsize::new(0)));
        for _ in 0..2_000 {
            let ask = slots.open(counting(&n), UNTIMED).unwrap();
            let other = std::thread::scope(|s| {
                let t = s.spawn(|| slots.take(ask).is_some());
                let mine = slots.take(ask).is_some();
                mine as usize + t.join().unwrap() as usize
            });
            assert_eq!(other, 1);
        }
        assert_eq!(slots.in_flight(), 0);
    }
}
