//! One message to one entity.

use std::{
    cell::Cell,
    time::{Duration, Instant},
};

use super::{
    http::{JSON, Request, Response},
    patience::Patience,
    problem::Problem,
    query::{Query, check_key},
    responder::Responder,
    source::{EntityCall, EntityOutcome, EntityType, Mode, Source},
};

/// The body of an operation that needs none.
pub(super) const EMPTY_BODY: &[u8] = b"{}";
/// What a told message is answered.
pub(super) const ACCEPTED: &[u8] = b"{\"status\":202}";

/// How long a message waits for room in a queue before it is refused: the thread that sends it answers every other request, too.
const ROOM_WAIT: Duration = Duration::from_millis(250);

/// `POST /api/v1/entities/{type}/{key}/{op}`.
pub(super) fn send(
    source: &dyn Source,
    ty: &str,
    key: &str,
    op: &str,
    patience: &Patience,
    request: &Request,
    responder: Responder,
) -> Result<(), (Problem, Responder)> {
    let (types, in_vain) = (source.entity_types(), Cell::new(false));
    let checked = Query::parse(&request.query, &["timeout_ms", "mode"]).and_then(|query| {
        let (mode, timeout) = (query.mode()?, query.timeout()?);
        let call = EntityCall {
            ty,
            key,
            op,
            body: body_or_empty(&request.body),
            mode,
            timeout,
            room: patience.room(Instant::now(), ROOM_WAIT),
            in_vain: &in_vain,
        };
        check(&types, &call)?;
        Ok(call)
    });
    match checked {
        Ok(call) => source.entity(call, completion(responder)),
        Err(problem) => return Err((problem, responder)),
    }
    if in_vain.get() {
        patience.in_vain(Instant::now(), ROOM_WAIT);
    }
    Ok(())
}

/// Refuses what the node need not be asked about.
pub(super) fn check(types: &[EntityType], call: &EntityCall<'_>) -> Result<(), Problem> {
    let Some(ty) = types.iter().find(|t| t.name == call.ty) else {
        let known: Vec<&str> = types.iter().map(|t| t.name.as_str()).collect();
        return Err(Problem::unknown_type(call.ty, &known));
    };
    if !ty.operations.iter().any(|op| op == call.op) {
        return Err(Problem::unknown_operation(&ty.name, call.op, &ty.operations));
    }
    check_key(call.key)?;
    if call.mode == Mode::Reliable {
        return Err(Problem::no_reliable_mode());
    }
    if call.body.first() != Some(&b'{') {
        return Err(Problem::wrong_body(format!("body of `{}` of type `{}`: expected a JSON object, as in `{{}}`", call.op, call.ty)));
    }
    Ok(())
}

fn body_or_empty(body: &[u8]) -> &[u8] {
    let body = body.trim_ascii();
    if body.is_empty() { EMPTY_BODY } else { body }
}

/// Answers one request. What was dropped without an outcome may have run, and the answer says so.
fn completion(responder: Responder) -> Box<dyn FnOnce(EntityOutcome) + Send> {
    let mut owed = Owed(Some(responder));
    Box::new(move |outcome| owed.answer(outcome))
}

struct Owed(Option<Responder>);

impl Owed {
    fn answer(&mut self, outcome: EntityOutcome) {
        let Some(responder) = self.0.take() else { return };
        responder.respond(match outcome {
            EntityOutcome::Answer { json } => Response::new(200, JSON, with_newline(json)),
            EntityOutcome::Accepted => Response::new(202, JSON, with_newline(ACCEPTED.to_vec())),
            EntityOutcome::Problem { status, code, title, detail, maybe_ran } => {
                Problem::of_outcome(status, code, title, detail, maybe_ran).into()
            }
        });
    }
}

impl Drop for Owed {
    fn drop(&mut self) {
        self.answer(EntityOutcome::unanswered());
    }
}

fn with_newline(mut json: Vec<u8>) -> Vec<u8> {
    json.push(b'\n');
    json
}
