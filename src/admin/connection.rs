//! One connection: its socket, what it waits for, and what it still has to write.

use std::{
    collections::VecDeque,
    io::{self, Read, Write},
    net::Shutdown,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use mio::net::TcpStream;

use super::{
    exchange::{Exchange, RequestBounds, Step, Waiting},
    gate::Gate,
    http::{CONTINUE, Method, Request, Response},
    problem::Problem,
    responder::Flow,
    server::Limits,
};
use crate::metrics::{HttpMetrics, HttpRefusal};

/// Bytes read from one connection before others get their turn.
const READ_BYTES_PER_TURN: usize = 256 << 10;
/// Answers up to this size share a write with their head.
const JOIN_BYTES_MAX: usize = 16 << 10;
/// After a refusal, what the client still sends is read so that it sees the answer and not a reset; so many bytes and so long.
const LINGER_BYTES: usize = 16 << 20;
const LINGER: Duration = Duration::from_secs(5);

/// Where a connection stands.
enum State {
    /// Reads a request.
    Reading,
    /// The node owes an answer.
    Owed { exchange: u64, since: Instant, head_only: bool, keep: bool },
    /// An answer without end.
    Streaming { exchange: u64, keep_alive: &'static [u8], flow: Arc<Flow> },
    /// Writes what is left, then ends.
    Ending,
    /// Reads and forgets, until the client ends as well.
    Lingering { left: usize },
}

/// What a turn of a connection led to.
pub(super) enum Turn {
    /// Nothing more to do before the socket or the node says something.
    Wait,
    /// It used up its share and has more to do.
    Again,
    /// A request, to be answered under this number.
    Request(Request, u64),
    /// It has ended.
    Closed,
}

enum Piece {
    Own(Vec<u8>),
    Shared(Arc<[u8]>),
}

impl Piece {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Own(bytes) => bytes,
            Self::Shared(bytes) => bytes,
        }
    }
}

/// What the connections of a server have in common.
pub(super) struct Common<'a> {
    pub limits: &'a Limits,
    pub gate: &'a Gate,
    pub metrics: &'a HttpMetrics,
    pub now: Instant,
}

pub(super) struct Connection {
    pub socket: TcpStream,
    pub generation: u64,
    /// Beyond the limit: only there to be told so.
    pub surplus: bool,
    exchange: Exchange,
    exchanges: u64,
    state: State,
    waiting: Option<Waiting>,
    deadline: Option<Instant>,
    readable: bool,
    /// The client has ended its side: with a request owed, it waits for the answer or is gone.
    half_closed: bool,
    out: VecDeque<Piece>,
    written: usize,
    /// Set while the client takes nothing of what is to be written.
    stalled_until: Option<Instant>,
}

impl Connection {
    pub fn new(socket: TcpStream, generation: u64, common: &Common<'_>) -> Self {
        Self {
            socket,
            generation,
            surplus: false,
            exchange: Exchange::new(),
            exchanges: 0,
            state: State::Reading,
            waiting: Some(Waiting::Request),
            deadline: Some(common.now + common.limits.head_deadline),
            readable: true,
            half_closed: false,
            out: VecDeque::new(),
            written: 0,
            stalled_until: None,
        }
    }

    /// One that is told at once why it cannot stay.
    pub fn turned_away(socket: TcpStream, generation: u64, common: &Common<'_>) -> Self {
        let mut connection = Self { surplus: true, ..Self::new(socket, generation, common) };
        connection.refuse(Problem::too_many_connections(common.limits.connections), common);
        connection
    }

    /// When it wants to be looked at without anything happening.
    pub fn deadline(&self) -> Option<Instant> {
        self.stalled_until.into_iter().chain(self.deadline).min()
    }

    /// Whether it has not got as far as the end of a first request's head: the kind of which somebody can open any number.
    pub fn is_half_open(&self) -> bool {
        self.exchanges == 0 && !self.surplus && matches!(self.state, State::Reading) && !matches!(self.exchange.waiting(), Waiting::Body)
    }

    /// When it is closed, as its client has its answers and asks for no more: who has been idle longer has less time left. `None` where anything is under way,
    /// or something has come that is not read yet.
    pub fn idle_until(&self) -> Option<Instant> {
        let between = matches!(self.state, State::Reading) && self.exchange.waiting() == Waiting::Request && self.out.is_empty();
        self.deadline.filter(|_| between && self.exchanges > 0 && !self.readable)
    }

    pub fn readable(&mut self) {
        self.readable = true;
    }

    pub fn half_closed(&mut self) {
        self.half_closed = true;
    }

    /// Whether nobody waits for the answer any more, in all likelihood: most clients that give up close the connection, and few that have only sent all do.
    pub fn is_given_up(&self) -> bool {
        self.half_closed && matches!(self.state, State::Owed { .. })
    }

    /// Does what can be done now.
    pub fn drive(&mut self, common: &Common<'_>, scratch: &mut [u8]) -> Turn {
        let mut share = READ_BYTES_PER_TURN;
        loop {
            match self.flush(common) {
                Ok(true) => {}
                Ok(false) => return Turn::Wait,
                Err(_) => return self.closed(),
            }
            match self.state {
                State::Owed { .. } => return Turn::Wait,
                State::Reading => match self.exchange.step(bounds(common.limits), common.gate) {
                    Step::Continue => self.out.push_back(Piece::Own(CONTINUE.to_vec())),
                    Step::Refuse(problem) => self.refuse(problem, common),
                    Step::Whole(request, keep) => {
                        self.exchanges += 1;
                        let exchange = self.exchanges;
                        self.state = State::Owed { exchange, since: common.now, head_only: request.method == Method::Head, keep };
                        self.waiting = None;
                        self.deadline = Some(common.now + common.limits.answer_deadline);
                        return Turn::Request(request, exchange);
                    }
                    Step::More => match self.read(common, scratch, &mut share) {
                        Some(turn) => return turn,
                        None => continue,
                    },
                },
                State::Ending => {
                    // Everything is written; a client that still sends must not see a reset before it has read.
                    if self.socket.shutdown(Shutdown::Write).is_err() {
                        return self.closed();
                    }
                    self.state = State::Lingering { left: LINGER_BYTES };
                    self.deadline = Some(common.now + LINGER);
                }
                State::Streaming { .. } | State::Lingering { .. } => match self.read(common, scratch, &mut share) {
                    Some(turn) => return turn,
                    None => continue,
                },
            }
        }
    }

    /// Whether the exchange is still the one that an answer is for.
    pub fn owes(&self, number: u64) -> bool {
        matches!(self.state, State::Owed { exchange, .. } | State::Streaming { exchange, .. } if exchange == number)
    }

    /// Takes the answer of the node.
    pub fn answer(&mut self, mut response: Response, common: &Common<'_>) {
        let State::Owed { since, head_only, keep, .. } = self.state else { return };
        common.metrics.latency.record(common.now.saturating_duration_since(since));
        let body = std::mem::take(&mut response.body);
        self.put(&response, body, keep, head_only, common);
        self.state = if keep { State::Reading } else { State::Ending };
        self.deadline = None;
    }

    /// The node begins an answer without end.
    pub fn begin(&mut self, content_type: &'static str, keep_alive: &'static [u8], flow: Arc<Flow>, common: &Common<'_>) {
        let State::Owed { exchange, head_only, .. } = self.state else { return };
        let response = Response::new(200, content_type, Vec::new());
        common.metrics.answered(200);
        self.out.push_back(Piece::Own(response.write_head(false, None)));
        if head_only {
            flow.closed.store(true, Ordering::Release);
            self.state = State::Ending;
        } else {
            self.state = State::Streaming { exchange, keep_alive, flow };
        }
        self.deadline = Some(common.now + common.limits.stream_keep_alive);
    }

    /// More of an answer without end.
    pub fn more(&mut self, bytes: Arc<[u8]>, common: &Common<'_>) {
        if matches!(self.state, State::Streaming { .. }) && !bytes.is_empty() {
            common.metrics.counters.http_events_sent.add(1);
            self.out.push_back(Piece::Shared(bytes));
            self.deadline = Some(common.now + common.limits.stream_keep_alive);
        }
    }

    /// The end of an answer without end.
    pub fn end(&mut self) {
        if let State::Streaming { flow, .. } = &self.state {
            flow.closed.store(true, Ordering::Release);
            self.state = State::Ending;
        }
    }

    /// The time that [`Connection::deadline`] named has come. `false` if the connection has to go.
    pub fn expire(&mut self, common: &Common<'_>) -> bool {
        if self.stalled_until.is_some_and(|at| at <= common.now) {
            common.metrics.refused.add(HttpRefusal::SlowReader);
            if matches!(self.state, State::Streaming { .. }) {
                common.metrics.counters.http_subscribers_dropped.add(1);
            }
            return false;
        }
        match &self.state {
            State::Reading => match self.exchange.waiting() {
                Waiting::Request => return false,
                Waiting::Head => self.refuse(Problem::too_slow("head", common.limits.head_deadline.as_secs_f64()), common),
                Waiting::Body => self.refuse(Problem::too_slow("body", common.limits.body_deadline.as_secs_f64()), common),
            },
            State::Owed { .. } => {
                common.metrics.counters.http_handlers_silent.add(1);
                self.answer(Problem::unanswered().into(), common);
            }
            State::Streaming { keep_alive, .. } => {
                self.out.push_back(Piece::Own(keep_alive.to_vec()));
                self.deadline = Some(common.now + common.limits.stream_keep_alive);
            }
            State::Ending => self.deadline = None,
            State::Lingering { .. } => return false,
        }
        true
    }

    /// The server ends: `true` if this connection is worth the grace.
    pub fn wind_down(&mut self) -> bool {
        match &mut self.state {
            State::Reading => !self.out.is_empty(),
            State::Owed { keep, .. } => {
                *keep = false;
                true
            }
            State::Streaming { .. } => {
                self.end();
                true
            }
            State::Ending => true,
            State::Lingering { .. } => false,
        }
    }

    /// Whether nothing is left that the client should see.
    pub fn is_done(&self) -> bool {
        matches!(self.state, State::Lingering { .. })
    }

    /// Marks the connection as gone for those who still write to it.
    pub fn closed(&mut self) -> Turn {
        if let State::Streaming { flow, .. } = &self.state {
            flow.closed.store(true, Ordering::Release);
        }
        Turn::Closed
    }

    fn refuse(&mut self, problem: Problem, common: &Common<'_>) {
        let mut response = Response::from(problem);
        let body = std::mem::take(&mut response.body);
        self.put(&response, body, false, false, common);
        self.state = State::Ending;
        self.deadline = None;
    }

    fn put(&mut self, response: &Response, body: Vec<u8>, keep: bool, head_only: bool, common: &Common<'_>) {
        common.metrics.answered(response.status);
        if let Some(reason) = response.refused {
            common.metrics.refused.add(reason);
        }
        let mut head = response.write_head(keep, Some(body.len()));
        if head_only {
            self.out.push_back(Piece::Own(head));
        } else if body.len() <= JOIN_BYTES_MAX {
            head.extend_from_slice(&body);
            self.out.push_back(Piece::Own(head));
        } else {
            self.out.extend([Piece::Own(head), Piece::Own(body)]);
        }
    }

    /// Writes what it can; `true` if nothing is left.
    fn flush(&mut self, common: &Common<'_>) -> io::Result<bool> {
        while let Some(piece) = self.out.front() {
            let left = &piece.bytes()[self.written..];
            match (&self.socket).write(left) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => {
                    common.metrics.counters.http_sent_bytes.add(n as u64);
                    if let (State::Streaming { flow, .. }, Piece::Shared(_)) = (&self.state, piece) {
                        flow.pending.fetch_sub(n, Ordering::AcqRel);
                    }
                    self.stalled_until = None;
                    self.written += n;
                    if self.written == piece.bytes().len() {
                        self.written = 0;
                        self.out.pop_front();
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.stalled_until.get_or_insert(common.now + common.limits.write_deadline);
                    return Ok(false);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Reads once. `None` to go on.
    fn read(&mut self, common: &Common<'_>, scratch: &mut [u8], share: &mut usize) -> Option<Turn> {
        if matches!(self.state, State::Reading) {
            self.await_part(common);
        }
        if !self.readable {
            return Some(Turn::Wait);
        }
        if *share == 0 {
            return Some(Turn::Again);
        }
        let room = scratch.len().min(*share);
        match (&self.socket).read(&mut scratch[..room]) {
            Ok(0) => Some(self.closed()),
            Ok(n) => {
                *share -= n;
                common.metrics.counters.http_received_bytes.add(n as u64);
                match &mut self.state {
                    State::Reading => self.exchange.push(&scratch[..n]),
                    State::Lingering { left } => {
                        *left = left.saturating_sub(n);
                        if *left == 0 {
                            return Some(Turn::Closed);
                        }
                    }
                    // A subscriber has nothing to say.
                    _ => {}
                }
                None
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.readable = false;
                Some(Turn::Wait)
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => None,
            Err(_) => Some(self.closed()),
        }
    }

    /// Each part of a request has its own deadline, counted from when it is waited for.
    fn await_part(&mut self, common: &Common<'_>) {
        let waiting = self.exchange.waiting();
        if self.waiting == Some(waiting) {
            return;
        }
        self.waiting = Some(waiting);
        let limit = match waiting {
            Waiting::Request => common.limits.idle,
            Waiting::Head => common.limits.head_deadline,
            Waiting::Body => common.limits.body_deadline,
        };
        self.deadline = Some(common.now + limit);
    }
}

fn bounds(limits: &Limits) -> RequestBounds {
    RequestBounds { headers: limits.headers, body_bytes: limits.body_bytes }
}
