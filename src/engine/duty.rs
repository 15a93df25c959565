//! Whose turn it is to do the network's work.
//!
//! A dedicated thread has the sockets and the protocol on its mind. But each message that passes over it costs a hop between threads, and on a
//! machine with few cores a share of the core that the message's own threads need. So its work is a row of turns that one thread at a time
//! does, and whoever waits for the network does the next one: a thread that waits for an answer or for room, and a worker whose last work came
//! from another node. While there are such guests the network thread stands by; it is at work again when they are gone, and at every timer that
//! nobody else has kept. A guest's turn runs no code of users but their `tracing` subscriber: it may hold locks of theirs that such code wants. What
//! would call them is left to the network thread. So what a guest does for others is short. But it is done at the guest's priority: a thread that is
//! stopped, or that gets no time, in the middle of a turn stops the network for as long. One that is woken by a link ([`window`](super::window)) and gets no
//! time holds up what came until more comes, by that link or another way, or until the network thread's next timer.
//!
//! Messages keep to their rings, whoever empties them: helping changes no order, and a thread that is not allowed to help (as somebody is at
//! work) rings the bell as ever.

use std::{
    any::Any,
    os::fd::RawFd,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::Duration,
};

use crossbeam::utils::CachePadded;
use mio::Token;
use parking_lot::Mutex;

use super::{
    asker::Mailbox,
    bell::Bell,
    lane::Door,
    node::{Node, ToWorker},
};
use crate::Time;

/// The network's work. It reads the clock itself: a reading from before the lock may be older than that of the turn before.
pub trait Turns: Send {
    /// One turn without waiting, by the network thread or by a guest, on whose thread no code of users runs. True if there was anything to do.
    fn turn(&mut self, guest: bool) -> bool;
    /// A guest's turn that looks only at that link, of which it was told.
    fn turn_for(&mut self, link: Token) -> bool;
    /// Whether guests have left something to the network thread: code of users, which it has always run, or what starts a thread.
    fn owes(&self) -> bool;
    /// What guests have left to the network thread, by that. True if there was anything.
    fn settle(&mut self) -> bool;
    /// The part of a guest's turn that passes on what this node sends, without a look at the sockets.
    fn pass_on(&mut self);
    /// Whom that turn has brought something, and who has not been told.
    fn wakes(&mut self) -> Wakes;
    /// Whether a turn has nothing to do before something comes in or a timer is due.
    fn is_quiet(&self) -> bool;
    /// When a turn has something to do even if nothing comes in.
    fn due(&self) -> Option<Time>;
    /// Whether there will be no more work.
    fn has_ended(&self) -> bool;
    /// The last act, when there is none: for the network thread, as it may take a while.
    fn finish(&mut self);
    /// The network thread goes to sleep: what becomes readable when a turn has something to do. `None`: it has.
    fn sleeper(&mut self) -> Option<RawFd>;
}

/// Who is to be woken, once the lock is free: a thread that runs at once on the core of who woke it may want to help.
#[derive(Default)]
pub struct Wakes {
    /// A thread whose answer is in its mailbox.
    pub asker: Option<&'static Mailbox>,
    /// Workers with something in their rings: a bit for each, by its number modulo 64.
    pub workers: u64,
}

impl Wakes {
    fn ring(self, workers: &[Door<ToWorker>]) {
        if self.workers != 0 {
            let of = |worker: &usize| self.workers >> (worker % 64) & 1 == 1;
            (0..workers.len()).filter(of).for_each(|worker| _ = workers[worker].ring());
        }
        if let Some(asker) = self.asker {
            asker.bell().ring();
        }
    }
}

/// What came of the wish to do a turn.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Did {
    /// A turn that found something to do.
    Work,
    /// A turn that found nothing.
    Nothing,
    /// No turn: another thread is at one.
    Busy,
    /// No turn: the work is over.
    Over,
}

/// Until when the network thread is to sleep.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Sleep {
    /// Until this is readable,
    pub sockets: RawFd,
    /// for so long at most,
    pub limit: Option<Duration>,
    // or until its bell is rung.
}

/// After a guest's last look the network thread stands by for so long before it looks itself: guests look every few microseconds.
const STAND_BY: Duration = Duration::from_micros(4);

/// The network's work and who is at it.
#[derive(Default)]
pub struct Duty {
    work: Mutex<Option<Box<dyn Turns>>>,
    /// What guests did: looks at all there is in the upper half, turns with something to do in the lower one.
    helped: CachePadded<AtomicU64>,
    /// When the network thread wakes up by itself; 0 while it is awake. Set by it under the lock.
    alarm: AtomicU64,
    /// A guest has seen that there will be no more work.
    ending: AtomicBool,
    /// A guest has left something to the network thread: what it must not do, or a look.
    owed: AtomicBool,
    /// A turn has panicked: the network thread ends of it, and of the work what is left to be told.
    panic: Mutex<Option<Broken>>,
}

/// What a turn has panicked with, and the work, in which it may have left anything.
struct Broken(Box<dyn Any + Send>, Box<dyn Turns>);

/// A look at all there is, in `helped`.
const LOOK: u64 = 1 << 32;

impl Broken {
    /// Tells whom turns before had brought something, and does what they had left to the network thread: nobody comes back for it. Then that ends.
    fn end(self, workers: &[Door<ToWorker>]) -> ! {
        let Self(panic, mut work) = self;
        let told = catch_unwind(AssertUnwindSafe(|| {
            work.wakes().ring(workers);
            work.settle();
            drop(work);
        }));
        if told.is_err() {
            tracing::error!(target: "wingbeat::engine", "what was left of the network's work panicked as well");
        }
        resume_unwind(panic)
    }
}

/// There is no work.
enum Lost {
    /// Any more, or yet.
    Over,
    /// From now on, because of a panic.
    Panic,
}

impl Duty {
    /// There is work from now on.
    pub fn begin(&self, work: Box<dyn Turns>) {
        *self.work.lock() = Some(work);
    }

    /// There is none any more: waits for the turn that somebody may be in.
    pub fn end(&self) {
        let work = self.work.lock().take();
        // A guest may have come behind the last turn, and its own may have panicked.
        let broken = self.panic.lock().take().map(|Broken(_, work)| work);
        work.into_iter().chain(broken).for_each(|mut work| _ = work.settle());
    }

    /// One turn by a thread of `node` that has to wait anyway, unless somebody is at one. If the network thread sleeps and there is more to do, or
    /// earlier, than it knows, it is woken.
    pub fn help(&self, node: &Node) -> Did {
        self.guest(node.network.bell(), &node.workers, LOOK, |work| work.turn(true))
    }

    /// As [`help`](Self::help), but of the sockets it looks only at that link, of which nobody else was told. That is no reason for the network thread to
    /// stand by.
    pub fn help_with(&self, node: &Node, link: Token) -> Did {
        self.guest(node.network.bell(), &node.workers, 0, |work| work.turn_for(link))
    }

    /// The network thread is to look at all there is, once whoever is at work is done: who was told of something found it so.
    pub fn leave_look(&self, bell: &Bell) {
        self.owed.store(true, Ordering::Relaxed);
        bell.ring();
    }

    /// As [`help`](Self::help), but only what this node sends is passed on. That is no reason for the network thread to stand by.
    pub fn pass_on(&self, node: &Node) -> Did {
        self.guest(node.network.bell(), &node.workers, 0, |work| {
            work.pass_on();
            true
        })
    }

    /// The network thread's next turn.
    pub fn turn(&self, node: &Node) -> Did {
        self.turn_for(&node.workers)
    }

    #[inline]
    fn guest(&self, bell: &Bell, workers: &[Door<ToWorker>], look: u64, turn: impl FnOnce(&mut dyn Turns) -> bool) -> Did {
        let done = self.locked(|work| {
            let worked = turn(work);
            let alarm = self.alarm.load(Ordering::Relaxed);
            let ended = work.has_ended();
            if ended {
                // That is for the network thread to see.
                self.ending.store(true, Ordering::Relaxed);
            }
            let owes = work.owes();
            if owes {
                self.owed.store(true, Ordering::Relaxed);
            }
            let wake = alarm != 0 && (ended || owes || !work.is_quiet() || work.due().is_some_and(|due| due.as_nanos() < alarm));
            // Only under the lock, so no addition is lost.
            let helped = self.helped.load(Ordering::Relaxed);
            self.helped.store(helped.wrapping_add(look) + u64::from(worked), Ordering::Relaxed);
            (worked, work.wakes(), wake)
        });
        match done {
            Ok(Some((worked, wakes, wake))) => {
                wakes.ring(workers);
                if wake {
                    bell.ring();
                }
                if worked { Did::Work } else { Did::Nothing }
            }
            Ok(None) => Did::Busy,
            Err(Lost::Over) => Did::Over,
            Err(Lost::Panic) => {
                // The network thread fails of it, as if it had been its own turn.
                bell.ring();
                Did::Over
            }
        }
    }

    fn turn_for(&self, workers: &[Door<ToWorker>]) -> Did {
        let turn = |work: &mut dyn Turns| {
            self.owed.store(false, Ordering::Relaxed);
            let settled = work.settle();
            (work.turn(false) || settled, work.has_ended(), work.wakes())
        };
        match self.locked(turn) {
            Ok(Some((worked, ended, wakes))) => {
                wakes.ring(workers);
                if ended {
                    // Behind that, so that nobody waits for it. A guest that is at work now finds nothing to do.
                    self.last_act();
                    return Did::Over;
                }
                if worked { Did::Work } else { Did::Nothing }
            }
            Ok(None) => Did::Busy,
            Err(Lost::Over | Lost::Panic) => match self.panic.lock().take() {
                Some(broken) => broken.end(workers),
                None => Did::Over,
            },
        }
    }

    /// Does the last act, as soon as nobody else is at work.
    fn last_act(&self) {
        if let Some(work) = self.work.lock().as_mut() {
            work.finish();
        }
    }

    /// Does something with the work, unless somebody else is at it. What a panic leaves behind is nobody's any more.
    #[inline]
    fn locked<R>(&self, f: impl FnOnce(&mut dyn Turns) -> R) -> Result<Option<R>, Lost> {
        let Some(mut guard) = self.work.try_lock() else { return Ok(None) };
        let work = guard.as_mut().ok_or(Lost::Over)?;
        catch_unwind(AssertUnwindSafe(|| f(&mut **work))).map(Some).map_err(|panic| {
            // While nobody else sees that there is no work.
            *self.panic.lock() = guard.take().map(|work| Broken(panic, work));
            Lost::Panic
        })
    }

    /// The network thread wants to sleep. If nobody is at work and there is nothing to do, it has announced that when this returns. Followed by
    /// [`awake`](Self::awake) in any case.
    pub fn lie_down(&self, bell: &Bell, now: impl FnOnce() -> Time, unsure: Duration) -> Option<Sleep> {
        let mut guard = self.work.try_lock()?;
        let work = guard.as_mut()?;
        let longest = if bell.announce_sleep() { None } else { Some(unsure) };
        // Who leaves something rings behind that: it is seen here, or the announcement there.
        if self.owed.load(Ordering::Relaxed) || work.owes() || !work.is_quiet() {
            return None;
        }
        let sockets = work.sleeper()?;
        let now = now();
        let limit = work.due().map(|due| due.since(now)).into_iter().chain(longest).min();
        // Guests see this after they have taken the lock, and wake this thread if they leave something to do before.
        self.alarm.store(limit.map_or(u64::MAX, |limit| (now + limit).as_nanos()), Ordering::Relaxed);
        Some(Sleep { sockets, limit })
    }

    /// The network thread is awake.
    pub fn awake(&self, bell: &Bell) {
        self.alarm.store(0, Ordering::Relaxed);
        bell.awake();
    }

    /// Whether the network thread is needed, as far as `seen` shows, which it keeps for that.
    pub fn needs_me(&self, seen: &mut Seen, now: Time) -> bool {
        let helped = self.helped.load(Ordering::Relaxed);
        seen.worked = helped as u32 != seen.helped as u32;
        if helped / LOOK != seen.helped / LOOK {
            seen.at = now;
        }
        seen.helped = helped;
        now.since(seen.at) >= STAND_BY || self.ending.load(Ordering::Relaxed) || self.owed.load(Ordering::Relaxed)
    }
}

/// What the network thread has seen of its guests.
#[derive(Default)]
pub struct Seen {
    helped: u64,
    at: Time,
    /// They had something to do since the last look.
    pub worked: bool,
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, atomic::AtomicUsize};

    use super::*;

    /// Work that can be told what to say.
    #[derive(Default)]
    struct Plan {
        turns: AtomicUsize,
        worked: AtomicBool,
        quiet: AtomicBool,
        done: AtomicBool,
        panics: AtomicBool,
        owes: AtomicBool,
        settled: AtomicUsize,
        due: AtomicU64,
    }

    struct Made(Arc<Plan>);

    impl Turns for Made {
        fn turn(&mut self, _: bool) -> bool {
            assert!(!self.0.panics.load(Ordering::Relaxed), "on purpose");
            self.0.turns.fetch_add(1, Ordering::Relaxed);
            self.0.worked.load(Ordering::Relaxed)
        }

        fn turn_for(&mut self, _: Token) -> bool {
            self.turn(true)
        }

        fn owes(&self) -> bool {
            self.0.owes.load(Ordering::Relaxed)
        }

        fn settle(&mut self) -> bool {
            let owed = self.0.owes.swap(false, Ordering::Relaxed);
            self.0.settled.fetch_add(usize::from(owed), Ordering::Relaxed);
            owed
        }

        fn pass_on(&mut self) {
            self.turn(true);
        }

        fn wakes(&mut self) -> Wakes {
            Wakes::default()
        }

        fn is_quiet(&self) -> bool {
            self.0.quiet.load(Ordering::Relaxed)
        }

        fn due(&self) -> Option<Time> {
            Some(Time::from_nanos(self.0.due.load(Ordering::Relaxed)))
        }

        fn has_ended(&self) -> bool {
            self.0.done.load(Ordering::Relaxed)
        }

        fn finish(&mut self) {}

        fn sleeper(&mut self) -> Option<RawFd> {
            Some(7)
        }
    }

    struct Bed {
        duty: Duty,
        plan: Arc<Plan>,
        bell: Bell,
        rung: Arc<AtomicUsize>,
    }

    fn bed() -> Bed {
        let (rung, plan) = (Arc::new(AtomicUsize::new(0)), Arc::new(Plan::default()));
        let count = rung.clone();
        let bell = Bell::new(move || _ = count.fetch_add(1, Ordering::Relaxed));
        plan.quiet.store(true, Ordering::Relaxed);
        plan.due.store(1_000, Ordering::Relaxed);
        let duty = Duty::default();
        duty.begin(Box::new(Made(plan.clone())));
        Bed { duty, plan, bell, rung }
    }

    fn help(duty: &Duty, bell: &Bell) -> Did {
        duty.guest(bell, &[], LOOK, |work| work.turn(true))
    }

    fn at(ns: u64) -> Time {
        Time::from_nanos(ns)
    }

    const UNSURE: Duration = Duration::from_secs(1);

    #[test]
    fn one_thread_at_a_time_is_at_work() {
        let Bed { duty, bell, plan, .. } = bed();
        let at_work = duty.work.lock();
        let other = std::thread::scope(|s| s.spawn(|| (help(&duty, &bell), duty.turn_for(&[]))).join().unwrap());
        assert_eq!(other, (Did::Busy, Did::Busy));
        drop(at_work);
        assert_eq!(help(&duty, &bell), Did::Nothing);
        plan.worked.store(true, Ordering::Relaxed);
        assert_eq!((help(&duty, &bell), duty.turn_for(&[])), (Did::Work, Did::Work));
        assert_eq!(plan.turns.load(Ordering::Relaxed), 3);
    }

    #[test]
    fn a_guest_wakes_the_sleeper_if_it_leaves_more_to_do_or_earlier() {
        let Bed { duty, bell, plan, rung } = bed();
        assert_eq!(duty.lie_down(&bell, || at(400), UNSURE), Some(Sleep { sockets: 7, limit: Some(Duration::from_nanos(600)) }));
        help(&duty, &bell);
        assert_eq!(rung.load(Ordering::Relaxed), 0, "its alarm is early enough, and nothing was left behind");
        plan.due.store(999, Ordering::Relaxed);
        help(&duty, &bell);
        assert_eq!(rung.load(Ordering::Relaxed), 1);
        duty.awake(&bell);
        plan.quiet.store(false, Ordering::Relaxed);
        help(&duty, &bell);
        assert_eq!(rung.load(Ordering::Relaxed), 1, "awake, it looks for itself");
        assert_eq!(duty.lie_down(&bell, || at(600), UNSURE), None, "there is something to do");
        duty.awake(&bell);
        plan.quiet.store(true, Ordering::Relaxed);
        assert!(duty.lie_down(&bell, || at(600), UNSURE).is_some());
        plan.quiet.store(false, Ordering::Relaxed);
        help(&duty, &bell);
        assert_eq!(rung.load(Ordering::Relaxed), 2, "something was left");
    }

    #[test]
    fn the_network_thread_stands_by_while_it_is_helped() {
        let Bed { duty, bell, plan, .. } = bed();
        let (mut seen, stand_by) = (Seen::default(), STAND_BY.as_nanos() as u64);
        assert!(duty.needs_me(&mut seen, at(stand_by)));
        help(&duty, &bell);
        assert!(!duty.needs_me(&mut seen, at(stand_by + 10)) && !seen.worked);
        plan.worked.store(true, Ordering::Relaxed);
        help(&duty, &bell);
        assert!(!duty.needs_me(&mut seen, at(stand_by + 30)) && seen.worked);
        assert!(!duty.needs_me(&mut seen, at(stand_by + 31)) && !seen.worked, "work counts once");
        assert!(duty.needs_me(&mut seen, at(2 * stand_by + 30)), "the guest has gone");
        duty.guest(&bell, &[], 0, |work| work.turn(true));
        assert!(duty.needs_me(&mut seen, at(2 * stand_by + 31)) && seen.worked, "who only passes on looks for nothing that came");
        plan.done.store(true, Ordering::Relaxed);
        help(&duty, &bell);
        assert!(duty.needs_me(&mut seen, at(2 * stand_by + 32)), "the end is for it to see");
    }

    #[test]
    fn what_a_guest_must_not_do_is_done_by_the_network_thread_at_once() {
        let Bed { duty, bell, plan, rung } = bed();
        let (mut seen, settled) = (Seen::default(), || plan.settled.load(Ordering::Relaxed));
        plan.owes.store(true, Ordering::Relaxed);
        assert_eq!(duty.lie_down(&bell, || at(400), UNSURE), None, "it has been left something");
        duty.awake(&bell);
        plan.owes.store(false, Ordering::Relaxed);
        assert!(duty.lie_down(&bell, || at(400), UNSURE).is_some());
        plan.owes.store(true, Ordering::Relaxed);
        help(&duty, &bell);
        assert_eq!((rung.load(Ordering::Relaxed), settled()), (1, 0));
        assert!(duty.needs_me(&mut seen, at(500)), "though somebody has just helped");
        assert_eq!((duty.turn_for(&[]), settled()), (Did::Work, 1));
        assert!(!duty.needs_me(&mut seen, at(500)), "that is done");
        plan.owes.store(true, Ordering::Relaxed);
        help(&duty, &bell);
        duty.end();
        assert_eq!(settled(), 2, "also at the end");
    }

    #[test]
    fn a_look_that_somebody_was_in_the_way_of_is_the_network_threads() {
        let Bed { duty, bell, plan, rung } = bed();
        let mut seen = Seen::default();
        assert!(duty.lie_down(&bell, || at(400), UNSURE).is_some());
        help(&duty, &bell);
        duty.leave_look(&bell);
        assert_eq!(rung.load(Ordering::Relaxed), 1, "it is woken for that");
        duty.awake(&bell);
        assert_eq!(duty.lie_down(&bell, || at(500), UNSURE), None, "and does not sleep before it has looked");
        duty.awake(&bell);
        assert!(duty.needs_me(&mut seen, at(500)), "though somebody has just helped");
        let turns = plan.turns.load(Ordering::Relaxed);
        assert_eq!((duty.turn_for(&[]), plan.turns.load(Ordering::Relaxed)), (Did::Nothing, turns + 1));
        assert!(!duty.needs_me(&mut seen, at(500)) && duty.lie_down(&bell, || at(600), UNSURE).is_some());
    }

    #[test]
    fn the_network_thread_fails_of_a_guests_panic_and_the_guest_does_not() {
        let Bed { duty, bell, plan, rung } = bed();
        duty.lie_down(&bell, || at(1), UNSURE);
        plan.panics.store(true, Ordering::Relaxed);
        plan.owes.store(true, Ordering::Relaxed);
        assert_eq!(help(&duty, &bell), Did::Over);
        assert_eq!((rung.load(Ordering::Relaxed), help(&duty, &bell)), (1, Did::Over), "it is woken for that");
        assert_eq!(plan.settled.load(Ordering::Relaxed), 0, "that is code of users");
        assert!(catch_unwind(AssertUnwindSafe(|| duty.turn_for(&[]))).is_err());
        assert_eq!((plan.settled.load(Ordering::Relaxed), Arc::strong_count(&plan)), (1, 1), "what guests had left is done all the same");
        assert_eq!(duty.turn_for(&[]), Did::Over);
    }

    #[test]
    fn what_a_panic_of_the_network_threads_own_turn_leaves_is_nobodys() {
        let Bed { duty, bell, plan, .. } = bed();
        plan.panics.store(true, Ordering::Relaxed);
        assert!(catch_unwind(AssertUnwindSafe(|| duty.turn_for(&[]))).is_err());
        plan.panics.store(false, Ordering::Relaxed);
        assert_eq!((help(&duty, &bell), plan.turns.load(Ordering::Relaxed)), (Did::Over, 0));
    }

    #[test]
    fn work_is_dropped_at_the_end() {
        let Bed { duty, bell, plan, .. } = bed();
        plan.done.store(true, Ordering::Relaxed);
        assert_eq!((duty.turn_for(&[]), help(&duty, &bell)), (Did::Over, Did::Nothing));
        duty.end();
        assert_eq!((help(&duty, &bell), Arc::strong_count(&plan)), (Did::Over, 1));
    }
}
