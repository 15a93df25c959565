//! Where threads sleep until a socket has something: beside the poller that turns look into, and in an order.

use std::{
    io,
    os::fd::{AsRawFd as _, BorrowedFd, RawFd},
};

use mio::{Registry, Token, unix::SourceFd};

use super::sys;

/// Two pollers that threads sleep in. What comes in by a link wakes who sleeps in the first one, and only if nobody does who sleeps in the second one.
/// Each thing that comes is reported once, so who is woken has to look, whatever others do meanwhile.
#[derive(Debug)]
pub struct Watchers {
    guests: Registry,
    thread: Registry,
}

impl Watchers {
    /// Of these pollers.
    pub fn new(guests: &Registry, thread: &Registry) -> io::Result<Self> {
        Ok(Self { guests: guests.try_clone()?, thread: thread.try_clone()? })
    }

    /// By a link comes what anybody may take.
    pub fn link(&self, socket: BorrowedFd<'_>, token: Token) -> io::Result<()> {
        // In this order: the kernel asks who watched first.
        sys::watch_alone(&self.guests, socket, token, false)?;
        sys::watch_alone(&self.thread, socket, token, true)
    }

    /// Takes a link's socket out of both.
    pub fn forget(&self, socket: BorrowedFd<'_>) {
        for poller in [&self.guests, &self.thread] {
            // Fails only if it was never in there.
            let _ = poller.deregister(&mut SourceFd(&socket.as_raw_fd()));
        }
    }

    /// Datagrams and new connections are for the network thread.
    pub fn other(&self, socket: BorrowedFd<'_>, token: Token) -> io::Result<()> {
        sys::watch_alone(&self.thread, socket, token, false)
    }

    /// What is readable as long as something has been reported to the second one.
    pub fn thread(&self) -> RawFd {
        self.thread.as_raw_fd()
    }
}
