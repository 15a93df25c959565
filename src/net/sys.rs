//! The only place with socket calls of the operating system that neither `std` nor `mio` offers.

use std::{
    fs::File,
    io,
    net::{SocketAddr, TcpListener, UdpSocket},
    os::fd::{AsFd, BorrowedFd},
    time::Duration,
};

use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};

/// Connections that the kernel may keep ready for `accept`.
const BACKLOG: i32 = 1024;
/// Receive buffer asked for on the UDP socket: a burst of gossip from a thousand nodes.
const UDP_BUFFER_BYTES: usize = 4 << 20;

/// A listening TCP socket that a restarted process can bind again at once. Port 0 takes any that is free.
pub fn listen_tcp(addr: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM, Some(Protocol::TCP))?;
    // Connections of the previous process in TIME_WAIT would otherwise hold the port for a minute. Where any port will do that comes after: two
    // that ask at once would be given the same one, and the second could not listen.
    socket.set_reuse_address(addr.port() != 0)?;
    socket.set_nonblocking(true)?;
    socket.bind(&addr.into())?;
    socket.set_reuse_address(true)?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// A UDP socket. Without address reuse: two processes on one port would each get some of the datagrams.
pub fn bind_udp(addr: SocketAddr) -> io::Result<UdpSocket> {
    let socket = Socket::new(Domain::for_address(addr), Type::DGRAM, Some(Protocol::UDP))?;
    socket.set_nonblocking(true)?;
    socket.bind(&addr.into())?;
    // The kernel caps it as it is configured to; a smaller buffer only means more loss in bursts.
    let _ = socket.set_recv_buffer_size(UDP_BUFFER_BYTES);
    Ok(socket.into())
}

/// After so long without a packet a link asks whether the other end is there, and again every [`PROBE_EVERY`]: a system whose process is paused
/// answers, one behind a way that drops packets does not.
const PROBE_AFTER: Duration = Duration::from_secs(10);
const PROBE_EVERY: Duration = Duration::from_secs(5);
/// A link whose bytes or probes were not acknowledged for so long is over, or one whose peer had no room for so long. The system by itself goes on for a
/// quarter of an hour, in which what is sent waits. Longer than most members live on that are paused.
const SILENT_MAX: Duration = Duration::from_secs(30);

/// Has what comes in by the socket reported to the poller, once, as `token`; with `writable` also when it takes more. Of all pollers that watch a socket by
/// this the first one is asked in which somebody sleeps, and no other one wakes up. The socket is watched until it is closed.
#[cfg(target_os = "linux")]
pub fn watch_alone(poller: &mio::Registry, socket: BorrowedFd<'_>, token: mio::Token, writable: bool) -> io::Result<()> {
    let kinds = libc::EPOLLIN | libc::EPOLLET | libc::EPOLLEXCLUSIVE | if writable { libc::EPOLLOUT } else { 0 };
    let mut event = libc::epoll_event { events: kinds as u32, u64: token.0 as u64 };
    let (poller, socket) = (std::os::fd::AsRawFd::as_raw_fd(poller), std::os::fd::AsRawFd::as_raw_fd(&socket));
    // SAFETY: both descriptors are open for the whole call, as the poller and the socket are borrowed, and the call reads one living `epoll_event`.
    let failed = unsafe { libc::epoll_ctl(poller, libc::EPOLL_CTL_ADD, socket, &mut event) };
    if failed == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Only Linux chooses among those who sleep.
#[cfg(not(target_os = "linux"))]
pub fn watch_alone(_: &mio::Registry, _: BorrowedFd<'_>, _: mio::Token, _: bool) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Gives a link's socket its options.
pub fn prepare(socket: BorrowedFd<'_>) -> io::Result<()> {
    let socket = SockRef::from(&socket);
    socket.set_tcp_nodelay(true)?;
    socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(PROBE_AFTER).with_interval(PROBE_EVERY))?;
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(SILENT_MAX))?;
    Ok(())
}

/// Whether an error of `accept` means that there are no descriptors left.
pub fn out_of_descriptors(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}

/// Whether an error of `accept` is one of the connection that was to be taken, so that the next try may find none: Linux reports those of the network
/// there (accept(2)).
pub fn is_of_connection(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(
            libc::ECONNABORTED
                | libc::EINTR
                | libc::EPROTO
                | libc::ENOPROTOOPT
                | libc::EOPNOTSUPP
                | libc::ENETDOWN
                | libc::ENETUNREACH
                | libc::EHOSTDOWN
                | libc::EHOSTUNREACH
        )
    )
}

/// A descriptor held back, so that one connection can be taken and closed when there are no others left: otherwise it would stay in the
/// listener's queue and wake the thread for ever.
#[derive(Debug)]
pub struct Reserve(Option<File>);

impl Reserve {
    /// Takes the descriptor.
    pub fn new() -> Self {
        Self(File::open("/dev/null").ok())
    }

    /// Makes room for one `accept`. Whether there was something to give up.
    pub fn release(&mut self) -> bool {
        self.0.take().is_some()
    }

    /// Takes the descriptor again.
    pub fn restore(&mut self) {
        if self.0.is_none() {
            *self = Self::new();
        }
    }
}

/// Makes dropping the stream send a reset, so that a peer that floods leaves nothing in TIME_WAIT here.
pub fn close_hard(stream: &impl AsFd) {
    let _ = SockRef::from(stream).set_linger(Some(Duration::ZERO));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_ends_when_nothing_is_acknowledged() {
        let listener = listen_tcp(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        let stream = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        prepare(stream.as_fd()).unwrap();
        let socket = SockRef::from(&stream);
        assert!(socket.keepalive().unwrap() && socket.tcp_nodelay().unwrap());
        assert_eq!((socket.tcp_keepalive_time().unwrap(), socket.tcp_keepalive_interval().unwrap()), (PROBE_AFTER, PROBE_EVERY));
        #[cfg(target_os = "linux")]
        assert_eq!(socket.tcp_user_timeout().unwrap(), Some(SILENT_MAX));
    }

    #[test]
    fn all_who_ask_for_any_port_at_once_get_one() {
        let ask = || {
            for _ in 0..300 {
                let held: Vec<_> = (0..4).map(|_| listen_tcp(SocketAddr::from(([127, 0, 0, 1], 0)))).collect();
                assert!(held.iter().all(Result::is_ok), "{held:?}");
            }
        };
        std::thread::scope(|scope| (0..8).for_each(|_| drop(scope.spawn(ask))));
    }
}
