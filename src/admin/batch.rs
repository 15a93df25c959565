//! Many messages in one request: `POST /api/v1/batch`.
//!
//! Lines are sent in order without waiting for each other. The node keeps the order of messages from one thread to one entity, so each
//! key sees its lines in order while different keys proceed at once.

use std::{
    borrow::Cow,
    cell::Cell,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use super::{
    entities::{ACCEPTED, EMPTY_BODY, check},
    http::{Request, Response},
    patience::Patience,
    problem::Problem,
    query::Query,
    responder::Responder,
    source::{EntityCall, EntityOutcome, EntityType, Mode, Source},
};
use crate::metrics::Metrics;

/// Most lines of one batch.
pub const LINES_MAX: usize = 10_000;
/// Bytes of answers that one batch gathers, and all that gather at a time. What would be more is answered by a problem in its place.
const ANSWERS_MAX: usize = 64 << 20;
const HELD_MAX: usize = 256 << 20;
/// How long the lines of a batch wait for room in queues, all together: it is a burst of a client like any other, but the thread that sends it answers
/// every other request, too.
const ROOM_WAIT: Duration = Duration::from_secs(1);
/// Content type of lines of JSON.
const NDJSON: &str = "application/x-ndjson";

/// One line. Texts without escapes and the body are borrowed from it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line<'a> {
    #[serde(rename = "type", borrow)]
    ty: Cow<'a, str>,
    #[serde(borrow)]
    key: Cow<'a, str>,
    #[serde(borrow)]
    op: Cow<'a, str>,
    #[serde(borrow, default, deserialize_with = "given")]
    body: Option<&'a RawValue>,
    #[serde(default)]
    mode: Mode,
}

/// A body that is there. `null` is one, and no object.
fn given<'de: 'a, 'a, D: Deserializer<'de>>(from: D) -> Result<Option<&'a RawValue>, D::Error> {
    <&RawValue>::deserialize(from).map(Some)
}

/// Sends every line and answers when the last one has its outcome.
pub(super) fn run(
    source: &dyn Source,
    metrics: &Arc<Metrics>,
    (patience, held): (&Patience, &Arc<Held>),
    request: &Request,
    responder: Responder,
) -> Result<(), (Problem, Responder)> {
    let timeout = match Query::parse(&request.query, &["timeout_ms"]).and_then(|q| q.timeout()) {
        Ok(timeout) => timeout,
        Err(problem) => return Err((problem, responder)),
    };
    let body = &request.body[..];
    // The last line may have its end or not; further ones are blank lines, which have their answers as well.
    let lines = body.strip_suffix(b"\n").map_or(body, |rest| rest.strip_suffix(b"\r").unwrap_or(rest));
    let count = if body.is_empty() { 0 } else { 1 + lines.iter().filter(|b| **b == b'\n').count() };
    if count > LINES_MAX {
        return Err((Problem::too_many_lines(LINES_MAX), responder));
    }
    metrics.http.counters.http_batch_lines.add(count as u64);
    let batch = Arc::new(Batch {
        outcomes: (0..count).map(|_| OnceLock::new()).collect(),
        // One more than lines, for this function: the answer is not made before all are sent.
        open: AtomicUsize::new(count + 1),
        responder: Mutex::new(Some(responder)),
        metrics: metrics.clone(),
        bytes: AtomicUsize::new(0),
        held: held.clone(),
    });
    let (types, in_vain) = (source.entity_types(), Cell::new(false));
    let room = patience.room(Instant::now(), ROOM_WAIT);
    for (at, line) in lines.split(|b| *b == b'\n').take(count).enumerate() {
        let mut owed = OwedLine { batch: batch.clone(), at, answered: false };
        if let Err(problem) = send(source, &types, line, (timeout, room, &in_vain), &mut owed) {
            owed.settle(Outcome::Refused(Box::new(problem)));
        }
    }
    if in_vain.get() {
        patience.in_vain(Instant::now(), ROOM_WAIT);
    }
    batch.settled();
    Ok(())
}

/// Sends one line; takes the debt over only if that succeeds.
fn send(
    source: &dyn Source,
    types: &[EntityType],
    line: &[u8],
    (timeout, room, in_vain): (Duration, Instant, &Cell<bool>),
    owed: &mut OwedLine,
) -> Result<(), Problem> {
    let line = std::str::from_utf8(line).map_err(|_| Problem::wrong_body(format!("line {}: not UTF-8", owed.at + 1)))?;
    let line: Line<'_> = serde_json::from_str(line).map_err(|error| {
        let detail = format!("line {}: {error}; a line is {{\"type\",\"key\",\"op\",\"body\",\"mode\"}}", owed.at + 1);
        Problem::wrong_body(detail)
    })?;
    let body = line.body.map_or(EMPTY_BODY, |raw| raw.get().as_bytes());
    let call = EntityCall { ty: &line.ty, key: &line.key, op: &line.op, body, mode: line.mode, timeout, room, in_vain };
    check(types, &call).map_err(|problem| Problem { detail: format!("line {}: {}", owed.at + 1, problem.detail), ..problem })?;
    let mut taken = OwedLine { batch: owed.batch.clone(), at: owed.at, answered: false };
    owed.answered = true;
    source.entity(call, Box::new(move |outcome| taken.settle(Outcome::Node(outcome))));
    Ok(())
}

enum Outcome {
    Node(EntityOutcome),
    Refused(Box<Problem>),
}

/// Bytes of answers in the batches of a server that are not whole yet.
#[derive(Debug, Default)]
pub(super) struct Held(AtomicUsize);

struct Batch {
    outcomes: Box<[OnceLock<Outcome>]>,
    open: AtomicUsize,
    responder: Mutex<Option<Responder>>,
    metrics: Arc<Metrics>,
    /// Of the answers so far.
    bytes: AtomicUsize,
    held: Arc<Held>,
}

impl Batch {
    /// One more line, or the sending of all of them, is done. The last one answers, on the admin thread.
    fn settled(self: &Arc<Self>) {
        if self.open.fetch_sub(1, Ordering::AcqRel) != 1 {
            return;
        }
        if let Some(responder) = self.responder.lock().take() {
            let batch = self.clone();
            responder.respond_with(move || batch.response());
        }
    }

    /// The outcome of a line, or if its answer is too much a problem.
    fn bounded(&self, outcome: Outcome) -> Outcome {
        let Outcome::Node(EntityOutcome::Answer { json }) = &outcome else { return outcome };
        // A counter only: whatever it guards is written and read under the outcome's own lock.
        let here = self.bytes.fetch_add(json.len(), Ordering::Relaxed) + json.len();
        let all = self.held.0.fetch_add(json.len(), Ordering::Relaxed) + json.len();
        if here <= ANSWERS_MAX && all <= HELD_MAX {
            return outcome;
        }
        self.bytes.fetch_sub(json.len(), Ordering::Relaxed);
        self.held.0.fetch_sub(json.len(), Ordering::Relaxed);
        let limit = if here > ANSWERS_MAX { ANSWERS_MAX } else { HELD_MAX };
        Outcome::Refused(Box::new(Problem::answers_too_large(json.len(), limit)))
    }

    fn response(&self) -> Response {
        let mut body = Vec::with_capacity(self.outcomes.len() * 96 + self.bytes.load(Ordering::Relaxed));
        for outcome in &self.outcomes {
            match outcome.get() {
                Some(Outcome::Node(EntityOutcome::Answer { json })) => body.extend_from_slice(json),
                Some(Outcome::Node(EntityOutcome::Accepted)) => body.extend_from_slice(ACCEPTED),
                Some(Outcome::Node(EntityOutcome::Problem { status, code, title, detail, maybe_ran })) => {
                    self.put(&mut body, &Problem::of_outcome(*status, code, title, detail.clone(), *maybe_ran));
                }
                Some(Outcome::Refused(problem)) => self.put(&mut body, problem),
                None => self.put(&mut body, &Problem::unanswered()),
            }
            body.push(b'\n');
        }
        Response::new(200, NDJSON, body)
    }

    fn put(&self, body: &mut Vec<u8>, problem: &Problem) {
        self.metrics.http.refused.add(problem.refusal);
        body.extend_from_slice(&problem.to_json());
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        self.held.0.fetch_sub(*self.bytes.get_mut(), Ordering::Relaxed);
    }
}

/// A line without an outcome yet; dropped, it counts as unanswered.
struct OwedLine {
    batch: Arc<Batch>,
    at: usize,
    answered: bool,
}

impl OwedLine {
    fn settle(&mut self, outcome: Outcome) {
        if !std::mem::replace(&mut self.answered, true) {
            // Set once only: `answered` was not set before.
            let _ = self.batch.outcomes[self.at].set(self.batch.bounded(outcome));
            self.batch.settled();
        }
    }
}

impl Drop for OwedLine {
    fn drop(&mut self) {
        self.settle(Outcome::Node(EntityOutcome::unanswered()));
    }
}
