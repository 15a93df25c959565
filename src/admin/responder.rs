//! How answers get from any thread of the node to the admin thread.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering, fence},
    },
};

use crossbeam::channel::Sender;
use mio::Waker;

use super::{http::Response, problem::Problem};

/// Most bytes on their way to one subscriber; one that lags further behind is cut off.
pub(super) const STREAM_BYTES_MAX: usize = 2 << 20;

/// Which exchange of which connection an answer is for. A connection that has ended since has another generation.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) struct ExchangeId {
    pub slot: usize,
    pub generation: u64,
    pub exchange: u64,
}

/// What reaches the admin thread.
pub(super) enum Completion {
    /// The whole answer.
    Answer(Response),
    /// The whole answer, to be made on the admin thread.
    Make(Box<dyn FnOnce() -> Response + Send>),
    /// An answer without end begins.
    Begin { content_type: &'static str, keep_alive: &'static [u8], flow: Arc<Flow> },
    /// More of it.
    More(Arc<[u8]>),
    /// Its end.
    End,
    /// The subscriber does not read; what is queued is lost.
    Overrun,
}

/// The way to the admin thread. Unbounded as a queue; what is in it is bounded by one answer per connection and by [`STREAM_BYTES_MAX`].
pub(super) struct Outlet {
    to: Sender<(ExchangeId, Completion)>,
    waker: Waker,
    /// The thread runs or is being woken; saves a system call per completion.
    awake: AtomicBool,
}

impl Outlet {
    pub fn new(to: Sender<(ExchangeId, Completion)>, waker: Waker) -> Self {
        Self { to, waker, awake: AtomicBool::new(false) }
    }

    fn send(&self, exchange: ExchangeId, completion: Completion) {
        // Fails only after the server has ended, and its connections with it.
        if self.to.send((exchange, completion)).is_ok() {
            self.wake();
        }
    }

    /// Makes the admin thread look at what is new.
    pub fn wake(&self) {
        // Either this sees that the thread is about to sleep, or the thread sees what was put there before.
        fence(Ordering::SeqCst);
        if !self.awake.swap(true, Ordering::SeqCst) {
            // Failing means that the poll is gone, and nobody waits for this.
            let _ = self.waker.wake();
        }
    }

    /// Called by the admin thread before it looks for work a last time and sleeps: what comes later wakes it.
    pub fn sleeping(&self) {
        self.awake.store(false, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Called by the admin thread when it runs: what comes meanwhile is found without a wake-up.
    pub fn running(&self) {
        self.awake.store(true, Ordering::SeqCst);
    }
}

/// Bytes between a writer and the socket of its subscriber.
#[derive(Debug, Default)]
pub(super) struct Flow {
    pub pending: AtomicUsize,
    pub closed: AtomicBool,
}

/// An answer owed. `Send`; dropped without an answer, the client gets a 500.
#[must_use = "dropping a responder answers 500"]
pub struct Responder {
    owed: Option<(ExchangeId, Arc<Outlet>)>,
}

impl Responder {
    pub(super) fn new(exchange: ExchangeId, outlet: Arc<Outlet>) -> Self {
        Self { owed: Some((exchange, outlet)) }
    }

    /// Answers.
    pub fn respond(self, response: Response) {
        self.complete(Completion::Answer(response));
    }

    /// Answers with what `make` returns. It runs on the admin thread, so that the caller is not kept by formatting.
    pub fn respond_with(self, make: impl FnOnce() -> Response + Send + 'static) {
        self.complete(Completion::Make(Box::new(make)));
    }

    /// Begins an answer without end; `keep_alive` is sent whenever nothing else was for 15 s. It ends when the writer is dropped.
    pub fn stream(mut self, content_type: &'static str, keep_alive: &'static [u8]) -> StreamWriter {
        let flow = Arc::new(Flow::default());
        let to = self.owed.take().map(|(exchange, outlet)| {
            outlet.send(exchange, Completion::Begin { content_type, keep_alive, flow: flow.clone() });
            (exchange, outlet)
        });
        StreamWriter { to, flow }
    }

    fn complete(mut self, completion: Completion) {
        if let Some((exchange, outlet)) = self.owed.take() {
            outlet.send(exchange, completion);
        }
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        if let Some((exchange, outlet)) = self.owed.take() {
            outlet.send(exchange, Completion::Answer(Problem::internal("the request was dropped without an answer").into()));
        }
    }
}

impl fmt::Debug for Responder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Responder").field(&self.owed.as_ref().map(|(exchange, _)| exchange)).finish()
    }
}

/// The writing end of an answer without end.
pub struct StreamWriter {
    /// `None` only if the responder was spent, which its signature excludes.
    to: Option<(ExchangeId, Arc<Outlet>)>,
    flow: Arc<Flow>,
}

impl StreamWriter {
    /// Sends bytes; never blocks. `false` if the subscriber is gone or was cut off because it does not read.
    pub fn send(&self, bytes: Arc<[u8]>) -> bool {
        let Some((exchange, outlet)) = &self.to else { return false };
        if self.flow.closed.load(Ordering::Acquire) {
            return false;
        }
        let before = self.flow.pending.fetch_add(bytes.len(), Ordering::AcqRel);
        if before + bytes.len() > STREAM_BYTES_MAX {
            if !self.flow.closed.swap(true, Ordering::AcqRel) {
                outlet.send(*exchange, Completion::Overrun);
            }
            return false;
        }
        outlet.send(*exchange, Completion::More(bytes));
        true
    }

    /// Whether the subscriber is gone.
    pub fn is_closed(&self) -> bool {
        self.flow.closed.load(Ordering::Acquire)
    }
}

impl Drop for StreamWriter {
    fn drop(&mut self) {
        if let Some((exchange, outlet)) = self.to.take() {
            outlet.send(exchange, Completion::End);
        }
    }
}

impl fmt::Debug for StreamWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamWriter").field("flow", &self.flow).finish_non_exhaustive()
    }
}
