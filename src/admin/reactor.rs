//! The loop of the admin thread.

use std::{
    collections::VecDeque,
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use crossbeam::channel::Receiver;
use mio::{
    Events, Interest, Poll, Token,
    net::{TcpListener, TcpStream},
};

use super::{
    connection::{Common, Connection, Turn},
    gate::Gate,
    http::Request,
    problem::Problem,
    responder::{Completion, ExchangeId, Outlet, Responder},
    server::{Handler, Limits},
};
use crate::{
    metrics::{HttpRefusal, Metrics},
    net::{Reserve, close_hard, out_of_descriptors},
};

const LISTENER: Token = Token(0);
/// The token of wake-ups from other threads.
pub(super) const WAKER: Token = Token(1);
const FIRST_CONNECTION: usize = 2;
/// Connections beyond the limit that are told so at the same time; further ones are closed without a word.
const SURPLUS_MAX: usize = 32;
/// Connections accepted before others get their turn.
const ACCEPTS_PER_TURN: usize = 64;
/// How long nothing is accepted after the system refused, for example for want of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Lines in the log about that are so far apart.
const LINES_EVERY: Duration = Duration::from_secs(10);
const SCRATCH_BYTES: usize = 64 << 10;
const EVENTS_PER_POLL: usize = 256;

pub(super) struct Reactor {
    poll: Poll,
    listener: Option<TcpListener>,
    limits: Limits,
    gate: Gate,
    metrics: Arc<Metrics>,
    handler: Arc<dyn Handler>,
    outlet: Arc<Outlet>,
    completions: Receiver<(ExchangeId, Completion)>,
    stop: Arc<AtomicBool>,
    /// By token; a freed slot is used again under another generation.
    slots: Vec<Option<Connection>>,
    free: Vec<usize>,
    served: usize,
    surplus: usize,
    generations: u64,
    /// Slots with something to do: readiness is announced once, so nothing may fall out of here.
    ready: VecDeque<usize>,
    acceptable: bool,
    accept_again: Option<Instant>,
    /// For one connection when the process has no descriptor left.
    reserve: Reserve,
    /// The next line in the log about what could not be accepted is due then.
    next_line: Option<Instant>,
    /// Not later than the earliest deadline of any connection.
    next_deadline: Option<Instant>,
    /// Set when shutting down.
    ends_at: Option<Instant>,
    scratch: Vec<u8>,
}

impl Reactor {
    #[expect(clippy::too_many_arguments, reason = "called once, with everything that the loop owns")]
    pub fn new(
        poll: Poll,
        mut listener: TcpListener,
        limits: Limits,
        gate: Gate,
        metrics: Arc<Metrics>,
        handler: Arc<dyn Handler>,
        outlet: Arc<Outlet>,
        completions: Receiver<(ExchangeId, Completion)>,
        stop: Arc<AtomicBool>,
    ) -> io::Result<Self> {
        poll.registry().register(&mut listener, LISTENER, Interest::READABLE)?;
        Ok(Self {
            poll,
            listener: Some(listener),
            limits,
            gate,
            metrics,
            handler,
            outlet,
            completions,
            stop,
            slots: Vec::new(),
            free: Vec::new(),
            served: 0,
            surplus: 0,
            generations: 0,
            ready: VecDeque::new(),
            acceptable: true,
            accept_again: None,
            reserve: Reserve::new(),
            next_line: None,
            next_deadline: None,
            ends_at: None,
            scratch: vec![0; SCRATCH_BYTES],
        })
    }

    /// Runs until told to stop.
    pub fn run(mut self) {
        let mut events = Events::with_capacity(EVENTS_PER_POLL);
        loop {
            self.outlet.sleeping();
            let wait = self.wait(Instant::now());
            if let Err(error) = self.poll.poll(&mut events, wait)
                && error.kind() != io::ErrorKind::Interrupted
            {
                tracing::error!(target: "wingbeat::admin", %error, "the HTTP surface ends: its poll failed");
                return;
            }
            self.outlet.running();
            let now = Instant::now();
            for event in &events {
                match event.token() {
                    LISTENER => self.acceptable = true,
                    WAKER => {}
                    Token(token) => {
                        let slot = token - FIRST_CONNECTION;
                        // Whoever has reset the connection reads no answer.
                        if event.is_error() {
                            self.close(slot);
                        } else if let Some(Some(connection)) = self.slots.get_mut(slot) {
                            connection.readable();
                            if event.is_read_closed() {
                                connection.half_closed();
                            }
                            self.ready.push_back(slot);
                        }
                    }
                }
            }
            if self.stop.load(Ordering::Acquire) && self.ends_at.is_none() {
                self.wind_down(now);
            }
            self.accept(now);
            self.take_completions(now);
            for _ in 0..self.ready.len() {
                if let Some(slot) = self.ready.pop_front() {
                    self.drive(slot, now);
                }
            }
            self.expire(now);
            if let Some(ends_at) = self.ends_at
                && (now >= ends_at || self.slots.iter().flatten().all(Connection::is_done))
            {
                return;
            }
        }
    }

    fn wait(&self, now: Instant) -> Option<Duration> {
        let told_to_stop = self.stop.load(Ordering::Acquire) && self.ends_at.is_none();
        if told_to_stop || !self.ready.is_empty() || self.acceptable && self.accept_again.is_none() || !self.completions.is_empty() {
            return Some(Duration::ZERO);
        }
        let next = [self.next_deadline, self.accept_again, self.ends_at].into_iter().flatten().min()?;
        // Rounded up, so that the thread does not wake up just before the deadline, over and over.
        Some(next.saturating_duration_since(now) + Duration::from_millis(1))
    }

    fn common<'a>(limits: &'a Limits, gate: &'a Gate, metrics: &'a Metrics, now: Instant) -> Common<'a> {
        Common { limits, gate, metrics: &metrics.http, now }
    }

    fn accept(&mut self, now: Instant) {
        if self.accept_again.is_some_and(|at| now < at) {
            return;
        }
        if self.accept_again.take().is_some() {
            // Somebody else may have been faster when it was given up.
            self.reserve.restore();
        }
        for _ in 0..ACCEPTS_PER_TURN {
            let Some(listener) = self.listener.as_ref().filter(|_| self.acceptable) else {
                self.acceptable = false;
                return;
            };
            match listener.accept() {
                Ok((socket, _)) => self.welcome(socket, now),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.acceptable = false,
                Err(error) if matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted) => {}
                Err(error) => {
                    self.accept_failed(&error, now);
                    return;
                }
            }
        }
    }

    /// Nothing can be accepted, and the next try would fail as well: pauses. A client is rather closed than left to wait.
    fn accept_failed(&mut self, error: &io::Error, now: Instant) {
        if self.next_line.is_none_or(|at| at <= now) {
            self.next_line = Some(now + LINES_EVERY);
            tracing::warn!(target: "wingbeat::admin", %error, "no connection can be accepted; those that are open go on, and it is tried again each 100 ms");
        }
        if out_of_descriptors(error) {
            if self.reserve.release()
                && let Some(Ok((socket, _))) = self.listener.as_ref().map(TcpListener::accept)
            {
                close_hard(&socket);
                self.metrics.http.refused.add(HttpRefusal::Connections);
            }
            self.reserve.restore();
        }
        self.accept_again = Some(now + ACCEPT_PAUSE);
    }

    fn welcome(&mut self, mut socket: TcpStream, now: Instant) {
        if self.served >= self.limits.connections {
            self.make_room();
        }
        let full = self.served >= self.limits.connections;
        if full && self.surplus >= SURPLUS_MAX {
            self.metrics.http.refused.add(HttpRefusal::Connections);
            return;
        }
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        // Fails only on sockets that are gone already, which shows at the first read.
        let _ = socket.set_nodelay(true);
        let token = Token(FIRST_CONNECTION + slot);
        if self.poll.registry().register(&mut socket, token, Interest::READABLE | Interest::WRITABLE).is_err() {
            self.free.push(slot);
            return;
        }
        self.generations += 1;
        self.metrics.http.counters.http_connections_accepted.add(1);
        let common = Self::common(&self.limits, &self.gate, &self.metrics, now);
        let connection = if full {
            self.surplus += 1;
            Connection::turned_away(socket, self.generations, &common)
        } else {
            self.served += 1;
            Connection::new(socket, self.generations, &common)
        };
        self.slots[slot] = Some(connection);
        self.ready.push_back(slot);
    }

    /// One connection gives way, if one can: the oldest whose client has gone before its answer came, or else the one that has been idle longest behind its
    /// answers, or else the oldest that has asked for nothing yet. Clients that are impatient, idle, silent or dripping keep nobody out. Once half of all have
    /// asked for nothing yet, that is no burst which gets to its first requests in a moment, and no idle one gives way to it.
    fn make_room(&mut self) {
        let those = || self.slots.iter().enumerate().filter_map(|(slot, c)| Some((slot, c.as_ref()?)));
        let oldest = |is: fn(&Connection) -> bool| {
            let oldest = those().filter(|(_, c)| is(c)).min_by_key(|(_, c)| c.generation);
            oldest.map(|(slot, _)| slot)
        };
        let idlest = || those().filter_map(|(slot, c)| Some((c.idle_until()?, slot))).min().map(|(_, slot)| slot);
        let newcomers = those().filter(|(_, c)| c.is_half_open()).count();
        let gives_way = oldest(Connection::is_given_up)
            .or_else(|| if 2 * newcomers < self.limits.connections { idlest() } else { None })
            .or_else(|| oldest(Connection::is_half_open));
        if let Some(slot) = gives_way {
            self.metrics.http.refused.add(HttpRefusal::Connections);
            self.close(slot);
        }
    }

    fn take_completions(&mut self, now: Instant) {
        // Only what is there now: answers that arrive meanwhile wait for the next turn.
        for _ in 0..self.completions.len() {
            let Ok((id, completion)) = self.completions.try_recv() else { return };
            // Formatting is done before the connection is looked at, so that a panic in it leaves nothing half done.
            let completion = match completion {
                Completion::Make(make) => Completion::Answer(
                    catch_unwind(AssertUnwindSafe(make)).unwrap_or_else(|_| Problem::internal("making the answer panicked").into()),
                ),
                other => other,
            };
            let common = Self::common(&self.limits, &self.gate, &self.metrics, now);
            let Some(Some(connection)) = self.slots.get_mut(id.slot) else { continue };
            if connection.generation != id.generation || !connection.owes(id.exchange) {
                if let Completion::Begin { flow, .. } = completion {
                    flow.closed.store(true, Ordering::Release);
                }
                continue;
            }
            match completion {
                Completion::Answer(response) => connection.answer(response, &common),
                Completion::Make(_) => {}
                Completion::Begin { content_type, keep_alive, flow } => connection.begin(content_type, keep_alive, flow, &common),
                Completion::More(bytes) => connection.more(bytes, &common),
                Completion::End => connection.end(),
                Completion::Overrun => {
                    self.metrics.http.counters.http_subscribers_dropped.add(1);
                    self.metrics.http.refused.add(HttpRefusal::SlowReader);
                    self.close(id.slot);
                    continue;
                }
            }
            self.ready.push_back(id.slot);
        }
    }

    fn drive(&mut self, slot: usize, now: Instant) {
        let common = Self::common(&self.limits, &self.gate, &self.metrics, now);
        let Some(Some(connection)) = self.slots.get_mut(slot) else { return };
        let generation = connection.generation;
        match connection.drive(&common, &mut self.scratch) {
            Turn::Wait => self.note_deadline(slot),
            Turn::Again => {
                self.note_deadline(slot);
                self.ready.push_back(slot);
            }
            Turn::Closed => self.close(slot),
            Turn::Request(request, exchange) => {
                self.note_deadline(slot);
                self.hand_over(request, ExchangeId { slot, generation, exchange });
            }
        }
    }

    fn hand_over(&self, request: Request, id: ExchangeId) {
        let responder = Responder::new(id, self.outlet.clone());
        // The responder is dropped by the unwinding, which answers the client.
        if catch_unwind(AssertUnwindSafe(|| self.handler.handle(request, responder))).is_err() {
            tracing::error!(target: "wingbeat::admin", "a request made its handler panic; it was answered with 500");
        }
    }

    fn note_deadline(&mut self, slot: usize) {
        let deadline = self.slots.get(slot).and_then(Option::as_ref).and_then(Connection::deadline);
        if let Some(deadline) = deadline {
            self.next_deadline = Some(self.next_deadline.map_or(deadline, |next| next.min(deadline)));
        }
    }

    fn expire(&mut self, now: Instant) {
        if self.next_deadline.is_none_or(|next| now < next) {
            return;
        }
        self.next_deadline = None;
        for slot in 0..self.slots.len() {
            let Some(connection) = &mut self.slots[slot] else { continue };
            if connection.deadline().is_some_and(|at| at <= now) {
                let common = Self::common(&self.limits, &self.gate, &self.metrics, now);
                if connection.expire(&common) {
                    self.ready.push_back(slot);
                } else {
                    self.close(slot);
                }
            }
            self.note_deadline(slot);
        }
    }

    fn close(&mut self, slot: usize) {
        let Some(mut connection) = self.slots.get_mut(slot).and_then(Option::take) else { return };
        connection.closed();
        // A socket leaves the poll when it is dropped as well.
        let _ = self.poll.registry().deregister(&mut connection.socket);
        self.metrics.http.counters.http_connections_closed.add(1);
        if connection.surplus {
            self.surplus -= 1;
        } else {
            self.served -= 1;
        }
        self.free.push(slot);
        // Room for those who wait in the system's queue.
        self.accept_again = None;
    }

    fn wind_down(&mut self, now: Instant) {
        self.ends_at = Some(now + self.limits.grace);
        if let Some(mut listener) = self.listener.take() {
            // Dropping it would do as well.
            let _ = self.poll.registry().deregister(&mut listener);
        }
        self.acceptable = false;
        for slot in 0..self.slots.len() {
            match self.slots[slot].as_mut().map(Connection::wind_down) {
                Some(true) => self.ready.push_back(slot),
                Some(false) => self.close(slot),
                None => {}
            }
        }
    }
}
