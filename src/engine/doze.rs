//! Where the network thread sleeps: until a socket has something that wakes nobody else, its bell is rung, or a timer is due.
//!
//! Apart from the sockets' own poller, which whoever helps the thread looks into meanwhile ([`duty`](super::duty)). What a helper finds there is
//! done, and need not wake anybody; but if it found the bell there it would take that away from the sleeper, whom nobody rings twice. And apart from
//! the [`window`](super::window), at which a helper sleeps.

use std::{io, os::fd::AsRawFd as _, sync::Arc, time::Duration};

use mio::{Events, Poll, Registry, Token, Waker};

use super::{duty::Sleep, sys};

/// No socket is reported as this.
pub const BELL: Token = Token(usize::MAX);
/// Reports of sockets taken at once. What is left of them ends the next sleep.
const REPORTS: usize = 256;

/// The network thread's place to sleep.
pub struct Doze {
    /// Has the waker, and what sockets report where they choose whom to wake.
    poll: Poll,
    events: Events,
    waker: Arc<Waker>,
}

impl Doze {
    /// A place of its own.
    pub fn new() -> io::Result<Self> {
        let poll = Poll::new()?;
        let waker = Arc::new(Waker::new(poll.registry(), BELL)?);
        Ok(Self { poll, events: Events::with_capacity(REPORTS), waker })
    }

    /// Ends the sleep, or the next one.
    pub fn waker(&self) -> Arc<Waker> {
        self.waker.clone()
    }

    /// What sockets report to that choose whom to wake.
    pub fn registry(&self) -> &Registry {
        self.poll.registry()
    }

    /// Sleeps. May return sooner. True: a socket has something that nobody else was woken for, and that is reported once.
    pub fn sleep(&mut self, sleep: Sleep) -> bool {
        sys::wait_for([sleep.sockets, self.poll.as_raw_fd()], sleep.limit);
        // Rung is rung once. An error means that it is found again, and the next sleep is none.
        self.poll.poll(&mut self.events, Some(Duration::ZERO)).is_ok() && self.events.iter().any(|event| event.token() != BELL)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::sys::now;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn a_ring_ends_one_sleep_also_if_it_came_before() {
        let sockets = Poll::new().unwrap();
        let mut doze = Doze::new().unwrap();
        let sleep = |limit| Sleep { sockets: sockets.as_raw_fd(), limit: Some(limit) };
        let began = now();
        doze.waker().wake().unwrap();
        doze.waker().wake().unwrap();
        doze.sleep(sleep(LONG));
        let waker = doze.waker();
        std::thread::spawn(move || waker.wake().unwrap());
        doze.sleep(sleep(LONG));
        assert!(now().since(began) < LONG);
        let began = now();
        doze.sleep(sleep(Duration::from_millis(3)));
        assert!(now().since(began) >= Duration::from_millis(3), "what was rung has been heard");
    }

    #[test]
    fn what_a_socket_reports_is_no_bell_whatever_it_is_called() {
        let sockets = Poll::new().unwrap();
        let mut doze = Doze::new().unwrap();
        let (mut here, mut there) = mio::net::UnixStream::pair().unwrap();
        // Datagrams are reported as 0.
        doze.registry().register(&mut here, Token(0), mio::Interest::READABLE).unwrap();
        let sleep = || Sleep { sockets: sockets.as_raw_fd(), limit: Some(Duration::ZERO) };
        assert!(!doze.sleep(sleep()));
        doze.waker().wake().unwrap();
        assert!(!doze.sleep(sleep()), "a bell is nothing to look for at the sockets");
        std::io::Write::write_all(&mut there, b"x").unwrap();
        doze.waker().wake().unwrap();
        assert!(doze.sleep(sleep()));
        assert!(!doze.sleep(sleep()), "it is said once");
    }

    #[test]
    fn a_socket_ends_it_for_as_long_as_nobody_has_looked() {
        let mut sockets = Poll::new().unwrap();
        let waker = Waker::new(sockets.registry(), Token(0)).unwrap();
        waker.wake().unwrap();
        let mut doze = Doze::new().unwrap();
        let sleep = |sockets: &Poll, limit| Sleep { sockets: sockets.as_raw_fd(), limit: Some(limit) };
        let began = now();
        doze.sleep(sleep(&sockets, LONG));
        doze.sleep(sleep(&sockets, LONG));
        assert!(now().since(began) < LONG);
        sockets.poll(&mut Events::with_capacity(1), Some(Duration::ZERO)).unwrap();
        let began = now();
        doze.sleep(sleep(&sockets, Duration::from_millis(3)));
        assert!(now().since(began) >= Duration::from_millis(3), "a helper has seen to it");
    }
}
