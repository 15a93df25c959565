//! A thread that waits for the answer to its ask: it stays awake for a while, as in [`idle`](super::idle), and parks only then.

use std::{
    cell::Cell,
    sync::{Arc, Weak},
    thread,
    time::Duration,
};

use parking_lot::Mutex;

use super::{
    clock::{Clock, Waited},
    idle::{self, Idler, Rest},
    lane::Bell,
    mailbox,
    node::Node,
    parcel::Answered,
    slot::Waiter,
    slot_table::{Seat, UNTIMED},
    sys,
    window::{self, Sleeper},
};
use crate::{Time, config::Idle, metrics::SAMPLED};

/// Looks at the answer before the first yield: an entity of this node answers within a microsecond when its worker is awake.
const LOOKS: u32 = 64;

/// Where the answer for a blocked thread is put. One ask at a time.
pub type Mailbox = mailbox::Mailbox<Answered>;
/// The right to put one there.
pub type Place = mailbox::Place<Answered>;

const _: () = {
    const fn is_send<T: Send>() {}
    is_send::<Answered>();
};

/// What came of waiting without sleep.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Awake {
    /// It is there.
    Ready,
    /// The deadline has passed.
    Late,
    /// Time to sleep, for so long at most.
    Tired(Duration),
}

/// Where one thread at a time asks and waits: a mailbox, the thread that its bell wakes, and a slot of the node that it asked through last.
struct Desk {
    inbox: mailbox::Inbox<Answered>,
    owner: Arc<Mutex<Sleeper>>,
    seat: Option<(Weak<Node>, Seat)>,
    /// Asks from here, by whatever thread.
    asked: u32,
}

/// Desks without an owner. As many are made as threads have waited at a time.
static FREE: Mutex<Vec<Desk>> = Mutex::new(vec![]);

impl Desk {
    /// One for the calling thread.
    fn take() -> Self {
        let free = FREE.lock().pop();
        if let Some(desk) = free {
            *desk.owner.lock() = Sleeper::here();
            return desk;
        }
        let owner = Arc::new(Mutex::new(Sleeper::here()));
        let woken = Arc::clone(&owner);
        // One sleep for one answer: fences on both sides are cheapest.
        let bell = Bell::new(move || woken.lock().wake());
        Self { inbox: mailbox::Inbox::new(bell), owner, seat: None, asked: 0 }
    }

    /// The seat at that node's table, if it has one left.
    fn seat(&mut self, node: &Arc<Node>) -> Option<&mut Seat> {
        if !self.seat.as_ref().is_some_and(|(at, _)| std::ptr::eq(at.as_ptr(), Arc::as_ptr(node))) {
            self.leave();
            self.seat = node.slots.sit().map(|seat| (Arc::downgrade(node), seat));
        }
        self.seat.as_mut().map(|(_, seat)| seat)
    }

    fn leave(&mut self) {
        if let Some((at, seat)) = self.seat.take()
            && let Some(node) = at.upgrade()
        {
            node.slots.leave(seat);
        }
    }
}

/// The waiting side, which belongs to one thread.
pub struct Asker {
    /// `None` only while it is dropped.
    desk: Option<Desk>,
    idler: Idler,
    preset: Idle,
    /// No answer can come any more.
    settled: bool,
}

impl Drop for Asker {
    fn drop(&mut self) {
        let Some(mut desk) = self.desk.take() else { return };
        // An encoder may have panicked, and nothing was sent.
        if self.settled || desk.inbox.is_free() {
            FREE.lock().push(desk);
        } else {
            desk.leave();
        }
    }
}

thread_local! {
    /// Boxed, as it is taken and put back for each ask.
    static ASKER: Cell<Option<Box<Asker>>> = const { Cell::new(None) };
}

impl Asker {
    /// The calling thread's, or one of its own for an ask within an ask (a `tracing` subscriber's, say) or behind the end of what the thread keeps. Taken
    /// for the time of one ask.
    pub fn take(preset: Idle) -> Box<Self> {
        match ASKER.try_with(Cell::take).ok().flatten() {
            Some(mut asker) if asker.preset == preset => {
                asker.settled = false;
                asker
            }
            _ => Box::new(Self { desk: Some(Desk::take()), idler: Idler::new(preset), preset, settled: false }),
        }
    }

    fn desk(&mut self) -> &mut Desk {
        self.desk.as_mut().expect("it goes when the asker is dropped")
    }

    fn mailbox(&self) -> &'static Mailbox {
        self.desk.as_ref().expect("it goes when the asker is dropped").inbox.mailbox()
    }

    /// How the thread is woken that waits here.
    pub fn sleeper(&self) -> &Arc<Mutex<Sleeper>> {
        &self.desk.as_ref().expect("it goes when the asker is dropped").owner
    }

    /// Reserves a slot for an ask whose answer comes here; `None` if all are in use.
    pub fn open(&mut self, node: &Arc<Node>) -> Option<u64> {
        let place = match self.desk().inbox.lend() {
            Some(place) => place,
            None => {
                // The answer to another ask may still come to that one.
                self.desk().leave();
                self.desk = Some(Desk::take());
                self.desk().inbox.lend()?
            }
        };
        let waiter = Waiter::Thread(place);
        let opened = match self.desk().seat(node) {
            Some(seat) => node.slots.open_at(seat, waiter),
            None => Err(waiter),
        };
        opened.map_or_else(|waiter| node.slots.open(waiter, UNTIMED), Some)
    }

    /// Waits for the answer, from `now` until `deadline`; `None` if it was not there by then. `helps`: the answer comes by this node's network, whose
    /// work it does meanwhile.
    pub fn wait(&mut self, clock: &Clock, helps: Option<&Node>, mut now: Time, deadline: Time) -> Option<Answered> {
        match clock.wait(deadline, || self.desk().inbox.take()) {
            Waited::Found(answer) => return Some(answer),
            Waited::Late => return None,
            Waited::Machine => {}
        }
        let mut at_window = helps;
        loop {
            match self.stay_awake(helps, now, deadline, |mailbox| mailbox.is_full()) {
                Awake::Ready => return self.desk().inbox.take(),
                Awake::Late => return None,
                Awake::Tired(left) => {
                    let mailbox = self.mailbox();
                    let lie_down = || {
                        let sure = mailbox.bell().announce_sleep();
                        (!mailbox.is_full()).then_some(if sure { left } else { left.min(idle::UNSURE) })
                    };
                    if !window::sleep(at_window, self.sleeper(), lie_down, || mailbox.bell().awake()) {
                        at_window = None;
                    }
                    now = sys::now();
                }
            }
        }
    }

    /// Looks for what is waited for, from `now` until it is there, until `deadline`, or until it is better to sleep. The first looks do without the
    /// clock, as reading it takes a good part of the time that an answer of this node does.
    pub fn stay_awake(&mut self, helps: Option<&Node>, mut now: Time, deadline: Time, is_there: impl Fn(&Mailbox) -> bool) -> Awake {
        let mailbox = self.mailbox();
        let is_there = || is_there(mailbox);
        for _ in 0..if helps.is_some() { 0 } else { LOOKS } {
            if is_there() {
                self.idler.worked(now);
                return Awake::Ready;
            }
            std::hint::spin_loop();
        }
        loop {
            if is_there() {
                self.idler.worked(now);
                return Awake::Ready;
            }
            if now >= deadline {
                return Awake::Late;
            }
            match self.idler.rest(now) {
                Rest::Spin | Rest::Yield if helps.is_some_and(|node| node.help_network()) => {}
                Rest::Spin => std::hint::spin_loop(),
                Rest::Yield => {
                    thread::yield_now();
                    let before = now;
                    now = sys::now();
                    self.idler.yielded(before, now);
                    continue;
                }
                Rest::Park => return Awake::Tired(deadline.since(now)),
            }
            now = sys::now();
        }
    }

    /// Waits for an answer that is on its way: somebody else took the slot.
    pub fn wait_on(&mut self, clock: &Clock) -> Option<Answered> {
        self.wait(clock, None, sys::now(), Time::MAX)
    }

    /// Whether the ask that has just ended is one of those whose time is measured: the first one is, and then one in so many.
    pub fn is_sampled(&mut self) -> bool {
        let asked = &mut self.desk().asked;
        let before = std::mem::replace(asked, asked.wrapping_add(1));
        before.is_multiple_of(SAMPLED)
    }

    /// Keeps it for the thread's next ask. Not for one whose answer may still come.
    pub fn keep(mut self: Box<Self>) {
        self.settled = true;
        // Fails only while the thread is torn down.
        let _ = ASKER.try_with(|slot| slot.set(Some(self)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{engine::message::AnyMessage, proto::handoff::ReplyBody};

    #[test]
    fn an_answer_reaches_a_waiting_thread_whether_it_yields_or_sleeps() {
        for preset in [Idle::LowLatency, Idle::Balanced, Idle::LowCpu] {
            for round in 0..500u64 {
                let mut asker = Asker::take(preset);
                let place = asker.desk().inbox.lend().expect("the answer before was taken");
                let other = thread::spawn(move || place.put(Answered::Typed(AnyMessage::new(round))));
                let Some(Answered::Typed(answer)) = asker.wait(&Clock::Machine, None, sys::now(), sys::now() + Duration::from_secs(20))
                else {
                    panic!("no answer in round {round}")
                };
                assert_eq!(answer.take::<u64>().ok(), Some(round));
                other.join().unwrap();
                asker.keep();
            }
        }
    }

    #[test]
    fn a_desk_goes_to_the_next_thread_unless_its_answer_may_still_come() {
        // Who is done with it keeps it; else its place is lent out, or was and is given up.
        let desk_of = |settled: bool, lends: bool| {
            let waits = move || {
                let mut asker = Asker::take(Idle::Balanced);
                let desk = std::ptr::from_ref(asker.mailbox()).addr();
                let place = asker.desk().inbox.lend().filter(|_| lends);
                if settled {
                    asker.keep();
                }
                (desk, place)
            };
            thread::spawn(waits).join().unwrap()
        };
        // Tests run beside one another, so others take and give back meanwhile.
        let is_free = |desk| FREE.lock().iter().any(|free| std::ptr::from_ref(free.inbox.mailbox()).addr() == desk);
        let lost: Vec<(usize, Option<Place>)> = (0..20).map(|_| desk_of(false, true)).collect();
        assert!(!lost.iter().any(|(desk, place)| place.is_some() && is_free(*desk)));
        assert!((0..20).any(|_| is_free(desk_of(true, false).0)));
        assert!((0..20).any(|_| is_free(desk_of(false, false).0)), "nothing comes for who asked in vain");
    }

    #[test]
    fn the_deadline_ends_waiting_and_a_late_answer_can_be_waited_for() {
        let mut asker = Asker::take(Idle::Balanced);
        let place = asker.desk().inbox.lend().unwrap();
        assert!(asker.wait(&Clock::Machine, None, sys::now(), sys::now()).is_none());
        place.put(Answered::Wire(ReplyBody::NoReply));
        assert!(matches!(asker.wait_on(&Clock::Machine), Some(Answered::Wire(ReplyBody::NoReply))));
    }
}
