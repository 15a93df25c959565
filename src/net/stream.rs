//! The one type through which links reach their sockets.

use std::{
    io::{self, Read, Write},
    net::{Shutdown, SocketAddr},
    os::fd::AsFd,
};

use mio::{Interest, Registry, Token, net::TcpStream};

use super::{sys, watchers::Watchers};

/// What carries a link. A sealed transport becomes another variant; nothing outside this file knows which one it is.
#[derive(Debug)]
pub enum Stream {
    /// TCP as it is.
    Plain(TcpStream),
}

/// How far the connecting of a dialled stream got.
#[derive(Debug)]
pub enum Progress {
    /// Not decided yet.
    Pending,
    /// Connected.
    Done,
    /// Failed.
    Failed(io::Error),
}

impl Stream {
    /// Begins to connect.
    pub fn dial(addr: SocketAddr) -> io::Result<Self> {
        TcpStream::connect(addr).map(Self::Plain)
    }

    /// Watches for both directions at once, so that interests never change, and has the watchers do so.
    pub fn register(&mut self, registry: &Registry, watchers: Option<&Watchers>, token: Token) -> io::Result<()> {
        let Self::Plain(tcp) = self;
        registry.register(tcp, token, Interest::READABLE | Interest::WRITABLE)?;
        watchers.map_or(Ok(()), |watchers| watchers.link(tcp.as_fd(), token))
    }

    /// Stops watching: what a forked process has of the socket would go on being reported.
    pub fn deregister(&mut self, registry: &Registry, watchers: Option<&Watchers>) {
        let Self::Plain(tcp) = self;
        // Fails only if it was never registered, and then there is nothing to undo.
        let _ = registry.deregister(tcp);
        watchers.into_iter().for_each(|watchers| watchers.forget(tcp.as_fd()));
    }

    /// How far connecting got; to be asked after the socket became writable.
    pub fn progress(&self) -> Progress {
        let Self::Plain(tcp) = self;
        match tcp.take_error() {
            Ok(Some(error)) | Err(error) => return Progress::Failed(error),
            Ok(None) => {}
        }
        match tcp.peer_addr() {
            Ok(_) => Progress::Done,
            Err(e) if e.kind() == io::ErrorKind::NotConnected || e.raw_os_error() == Some(libc::EINPROGRESS) => Progress::Pending,
            Err(e) => Progress::Failed(e),
        }
    }

    /// Sets the options of a link's socket once it is connected.
    pub fn prepare(&self) {
        let Self::Plain(tcp) = self;
        // Without TCP_NODELAY the link is slower, not wrong.
        let _ = sys::prepare(tcp.as_fd());
    }

    /// Says that nothing more comes, and lets the kernel deliver what was written.
    pub fn finish(&self) {
        let Self::Plain(tcp) = self;
        let _ = tcp.shutdown(Shutdown::Write);
    }

    /// Makes closing forget everything at once.
    pub fn abort(&self) {
        let Self::Plain(tcp) = self;
        sys::close_hard(tcp);
    }

    /// Reads what is there.
    pub fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let Self::Plain(tcp) = self;
        tcp.read(into)
    }

    /// Writes what fits.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Self::Plain(tcp) = self;
        tcp.write(bytes)
    }
}
