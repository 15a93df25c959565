//! The HTTP/1.1 server: one thread, its own `mio::Poll`, every resource bounded.

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use mio::{Poll, Waker, net::TcpListener};

use super::{
    gate::Gate,
    http::Request,
    reactor::{Reactor, WAKER},
    responder::{Outlet, Responder},
};
use crate::{config::LimitsConfig, metrics::Metrics};

/// What answers requests.
pub trait Handler: Send + Sync + 'static {
    /// Called on the admin thread, returns at once. The responder may be used later, from any thread.
    fn handle(&self, request: Request, responder: Responder);
}

/// Bounds of the server.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Limits {
    /// Connections at once.
    pub connections: usize,
    /// Headers of one request.
    pub headers: usize,
    /// Bytes of one body.
    pub body_bytes: usize,
    /// From the first byte of a request (or the connection) to the end of its head.
    pub head_deadline: Duration,
    /// From the end of the head to the end of the body.
    pub body_deadline: Duration,
    /// Between requests.
    pub idle: Duration,
    /// Without any byte of an answer being taken.
    pub write_deadline: Duration,
    /// From a whole request to its answer; above every deadline that a client may ask for.
    pub answer_deadline: Duration,
    /// Between signs of life on an answer without end.
    pub stream_keep_alive: Duration,
    /// What answers under way get when the server shuts down.
    pub grace: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self::from(&LimitsConfig::default())
    }
}

impl From<&LimitsConfig> for Limits {
    fn from(config: &LimitsConfig) -> Self {
        Self {
            connections: config.http_connections as usize,
            headers: config.http_headers as usize,
            body_bytes: config.http_body as usize,
            head_deadline: Duration::from_secs(10),
            body_deadline: Duration::from_secs(30),
            idle: Duration::from_secs(75),
            write_deadline: Duration::from_secs(30),
            answer_deadline: Duration::from_secs(660),
            stream_keep_alive: Duration::from_secs(15),
            grace: Duration::from_secs(2),
        }
    }
}

/// The server before it runs.
#[derive(Debug)]
pub struct Server;

impl Server {
    /// Binds and starts the thread.
    ///
    /// # Errors
    /// The address cannot be bound, or the thread cannot be started; the error names the address.
    pub fn start(
        listen: SocketAddr,
        limits: Limits,
        token: Option<&str>,
        metrics: Arc<Metrics>,
        handler: Arc<dyn Handler>,
    ) -> Result<ServerHandle, io::Error> {
        let named = |error: io::Error| io::Error::new(error.kind(), format!("admin.listen: cannot bind TCP {listen}: {error}"));
        Self::start_on(Listening::bind(listen).map_err(named)?, limits, token, metrics, handler)
    }

    /// As [`Server::start`], on an address that has been bound before.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start_on(
        listening: Listening,
        limits: Limits,
        token: Option<&str>,
        metrics: Arc<Metrics>,
        handler: Arc<dyn Handler>,
    ) -> Result<ServerHandle, io::Error> {
        let Listening { listener, addr } = listening;
        let named = |what: &str, error: io::Error| io::Error::new(error.kind(), format!("admin.listen: cannot {what} TCP {addr}: {error}"));
        let poll = Poll::new().map_err(|e| named("poll", e))?;
        let waker = Waker::new(poll.registry(), WAKER).map_err(|e| named("poll", e))?;
        let (to, completions) = crossbeam::channel::unbounded();
        let outlet = Arc::new(Outlet::new(to, waker));
        let stop = Arc::new(AtomicBool::new(false));
        let reactor =
            Reactor::new(poll, listener, limits, Gate::new(addr, token), metrics, handler, outlet.clone(), completions, stop.clone())
                .map_err(|e| named("listen on", e))?;
        let thread = std::thread::Builder::new()
            .name("wingbeat-admin".into())
            .spawn(move || reactor.run())
            .map_err(|e| named("start the thread for", e))?;
        Ok(ServerHandle { addr, stop, outlet, thread: Some(thread) })
    }
}

/// The bound address of a server that does not answer yet; clients wait.
#[derive(Debug)]
pub struct Listening {
    listener: TcpListener,
    addr: SocketAddr,
}

impl Listening {
    /// Binds.
    ///
    /// # Errors
    /// The address cannot be bound.
    pub fn bind(listen: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::from_std(crate::net::listen_tcp(listen)?);
        let addr = listener.local_addr()?;
        Ok(Self { listener, addr })
    }
}

/// A running server. Dropping it shuts the server down.
pub struct ServerHandle {
    addr: SocketAddr,
    stop: Arc<AtomicBool>,
    outlet: Arc<Outlet>,
    thread: Option<JoinHandle<()>>,
}

impl ServerHandle {
    /// The address it listens on, with the real port if 0 was asked for.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Stops accepting, gives answers under way a short grace, and waits for the thread. Idempotent.
    pub fn shutdown(&mut self) {
        self.stop.store(true, Ordering::Release);
        self.outlet.wake();
        if let Some(thread) = self.thread.take()
            // A completion may hold the last handle: the thread cannot wait for itself.
            && thread.thread().id() != std::thread::current().id()
        {
            // A panic of the thread has been printed; the node goes on without its HTTP surface.
            let _ = thread.join();
        }
    }
}

impl Drop for ServerHandle {
    fn drop(&mut self) {
        self.shutdown();
    }
}

impl std::fmt::Debug for ServerHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServerHandle").field("addr", &self.addr).finish_non_exhaustive()
    }
}
