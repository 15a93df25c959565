//! Where one of those sleeps who wait for the network: what comes in wakes it at once, and nobody else.
//!
//! A guest of the network's work ([`duty`](super::duty)) that goes to sleep would be woken by the network thread, which is woken first: two wake-ups, where
//! each costs more than all the rest of a request. So one of them, whoever comes first, sleeps on the links itself. The network thread goes on sleeping on
//! them too: the kernel wakes it for what comes while nobody is at the window, also while who was there is still at work. Others than the one at the window
//! wait to be told, as ever.

use std::{
    io,
    os::fd::AsRawFd as _,
    sync::Arc,
    thread::{self, Thread},
    time::Duration,
};

use mio::{Events, Poll, Registry, Token, Waker, event::Event};
use parking_lot::{Mutex, MutexGuard};

use super::{doze::BELL, node::Node, sys};

/// Reports of links taken at once. What is left of them ends the next sleep.
const REPORTS: usize = 64;

/// The place to sleep in.
pub struct Window {
    seat: Mutex<Place>,
    waker: Arc<Waker>,
}

struct Place {
    poll: Poll,
    events: Events,
}

/// The right to sleep at the window.
struct Seat<'a> {
    place: MutexGuard<'a, Place>,
    waker: &'a Arc<Waker>,
}

impl Window {
    /// One, and what the links have to report to.
    pub fn new() -> io::Result<(Self, Registry)> {
        let poll = Poll::new()?;
        let (waker, registry) = (Arc::new(Waker::new(poll.registry(), BELL)?), poll.registry().try_clone()?);
        Ok((Self { seat: Mutex::new(Place { poll, events: Events::with_capacity(REPORTS) }), waker }, registry))
    }

    fn sit(&self) -> Option<Seat<'_>> {
        Some(Seat { place: self.seat.try_lock()?, waker: &self.waker })
    }
}

/// Which links have something.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Came {
    /// None.
    Nothing,
    /// This one.
    By(Token),
    /// More than one.
    ByMany,
}

impl Seat<'_> {
    /// Sleeps until somebody wakes who sits here, a link has something, or so long. May return sooner.
    fn sleep(&mut self, limit: Duration) -> Came {
        let Place { poll, events } = &mut *self.place;
        // The poller counts milliseconds, in 32 bits, and would round up.
        let whole = Duration::from_millis(limit.as_millis().min(i32::MAX as u128) as u64);
        if whole.is_zero() {
            sys::wait_for([poll.as_raw_fd(); 2], Some(limit));
        }
        let slept = poll.poll(events, Some(whole));
        // Behind a signal, and on kernels before 5.11 at the limit, a link may have reported that nobody was told of: nobody else will be.
        if (slept.is_err() || events.is_empty()) && poll.poll(events, Some(Duration::ZERO)).is_err() {
            return Came::Nothing;
        }
        let mut links = events.iter().map(Event::token).filter(|&token| token != BELL);
        match (links.next(), links.next()) {
            (None, _) => Came::Nothing,
            (Some(link), None) => Came::By(link),
            (Some(_), Some(_)) => Came::ByMany,
        }
    }
}

/// A thread that sleeps now and then, for who wakes it.
pub struct Sleeper {
    thread: Thread,
    window: Option<Arc<Waker>>,
}

impl Sleeper {
    /// The calling thread.
    pub fn here() -> Self {
        Self { thread: thread::current(), window: None }
    }

    /// Ends its sleep, or the next one.
    pub fn wake(&self) {
        match &self.window {
            // The only error is that it is gone, and then nobody sleeps there.
            Some(window) => _ = window.wake(),
            None => self.thread.unpark(),
        }
    }
}

/// The calling thread, which is `me`, sleeps until it is woken: at the window of the node whose network it waits for, if there is one and it is free.
/// `lie_down` announces the sleep, looks once more, and says how long it may be, if there is reason for one; `get_up` takes that back. It may return
/// sooner. If what ended it came by a link, the thread does a turn of the network's work before this returns. False: that was in vain, as somebody else is
/// awake and at that work, so a sleep at the window is disturbed for nothing.
pub fn sleep(helps: Option<&Node>, me: &Mutex<Sleeper>, lie_down: impl FnOnce() -> Option<Duration>, get_up: impl FnOnce()) -> bool {
    let at = helps.and_then(|node| Some((node, node.window.as_ref()?.sit()?)));
    let Some((node, mut seat)) = at else {
        if let Some(limit) = lie_down() {
            thread::park_timeout(limit);
        }
        get_up();
        return true;
    };
    // Before the sleep is announced, so that who wakes this thread knows where it is.
    me.lock().window = Some(seat.waker.clone());
    let came = lie_down().map_or(Came::Nothing, |limit| seat.sleep(limit));
    get_up();
    drop(seat);
    me.lock().window = None;
    // The network thread has not heard of it.
    node.look_at_links(came)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use mio::{Interest, net::UnixStream};

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    /// A window with three links, and their other ends.
    fn window() -> (Window, Vec<UnixStream>, Vec<UnixStream>) {
        let (window, registry) = Window::new().unwrap();
        let (mut here, there): (Vec<_>, Vec<_>) = (0..3).map(|_| UnixStream::pair().unwrap()).unzip();
        for (n, link) in here.iter_mut().enumerate() {
            registry.register(link, Token(2 + n), Interest::READABLE).unwrap();
        }
        (window, here, there)
    }

    #[test]
    fn one_sits_there_and_hears_which_link_has_something() {
        let (window, _here, mut there) = window();
        let mut seat = window.sit().expect("it is free");
        assert!(window.sit().is_none());
        there[1].write_all(b"x").unwrap();
        assert_eq!(seat.sleep(LONG), Came::By(Token(3)));
        (0..3).for_each(|n| there[n].write_all(b"x").unwrap());
        assert_eq!(seat.sleep(LONG), Came::ByMany);
        assert_eq!(seat.sleep(Duration::from_millis(3)), Came::Nothing, "what was said once is not said again");
        drop(seat);
        assert!(window.sit().is_some());
    }

    #[test]
    fn a_short_sleep_takes_as_long_as_it_should() {
        let (window, _here, _there) = window();
        let mut seat = window.sit().expect("it is free");
        let (limit, began) = (Duration::from_micros(300), sys::now());
        while sys::now().since(began) < limit {
            assert_eq!(seat.sleep(limit), Came::Nothing);
        }
        assert!(sys::now().since(began) < LONG);
    }

    #[test]
    fn who_sleeps_is_woken_where_it_is_also_before() {
        let (window, _here, _there) = window();
        let me = Arc::new(Mutex::new(Sleeper::here()));
        let wakes = || {
            let me = me.clone();
            thread::spawn(move || me.lock().wake())
        };
        let began = sys::now();
        for sits in [true, false, true] {
            let mut seat = sits.then(|| window.sit()).flatten();
            me.lock().window = seat.as_ref().map(|seat| seat.waker.clone());
            let other = wakes();
            match &mut seat {
                Some(seat) => assert_eq!(seat.sleep(LONG), Came::Nothing),
                None => thread::park_timeout(LONG),
            }
            other.join().unwrap();
        }
        assert!(sys::now().since(began) < LONG);
    }
}
