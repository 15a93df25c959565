//! From requests to calls of the [`Source`], and from its answers to JSON.

use std::{collections::BTreeMap, sync::Arc};

use serde::Serialize;

use super::{
    batch::{self, Held},
    entities,
    events::EventRing,
    http::{JSON, Method, Request, Response},
    model::{Check, LatencyRow, Setting},
    patience::Patience,
    problem::{Problem, shorten},
    query::{Query, check_key},
    responder::Responder,
    route_table::{Found, ROUTES, Route, find},
    server::Handler,
    source::{Done, Probe, Source, SourceError},
};
use crate::{
    NodeAddr,
    metrics::{HttpRefusal, Metrics, Prometheus},
};

/// Content type of server-sent events.
const EVENT_STREAM: &str = "text/event-stream";
/// A comment that keeps the connection of a subscriber alive.
const EVENT_STREAM_COMMENT: &[u8] = b":\n\n";
/// Settings whose values are not shown.
const SECRETS: &[&str] = &["admin.token"];

/// All routes of a node.
pub struct Api {
    source: Arc<dyn Source>,
    metrics: Arc<Metrics>,
    events: Arc<EventRing>,
    patience: Patience,
    held: Arc<Held>,
}

impl Api {
    /// Routes for the node behind `source`, whose events are pushed to `events`.
    pub fn new(source: Arc<dyn Source>, metrics: Arc<Metrics>, events: Arc<EventRing>) -> Self {
        Self { source, metrics, events, patience: Patience::default(), held: Arc::default() }
    }

    fn route(&self, request: &Request, found: &Found<'_>, responder: Responder) -> Result<(), (Problem, Responder)> {
        let arg = |at: usize| found.args.get(at).map_or("", |a| &**a);
        // Gives the responder back with the problem, because whoever answers needs it.
        macro_rules! need {
            ($result:expr) => {
                match $result {
                    Ok(value) => value,
                    Err(problem) => return Err((problem, responder)),
                }
            };
        }
        match found.route {
            Route::Index => responder.respond(index()),
            Route::Alive => self.probe(Probe::Alive, responder),
            Route::Ready => self.probe(Probe::Ready, responder),
            Route::Startup => self.probe(Probe::Startup, responder),
            Route::Status => responder.respond(Response::json(200, &self.source.status())),
            Route::Members => self.source.members(answer(responder, |members| wrapped("members", members))),
            Route::Links => self.source.links(answer(responder, |links| wrapped("links", links))),
            Route::Types => self.source.types(answer(responder, |types| wrapped("types", types))),
            Route::Table => {
                #[derive(Serialize)]
                struct Table<'a, R> {
                    #[serde(rename = "type")]
                    ty: &'a str,
                    shards: R,
                }
                let ty = arg(0).to_owned();
                self.source.table(arg(0), answer(responder, move |shards| Response::json(200, &Table { ty: &ty, shards })));
            }
            Route::Locate => {
                let query = need!(Query::parse(&request.query, &["key"]));
                let key = need!(query.need("key", "the key of an entity"));
                need!(check_key(key));
                self.source.locate(arg(0), key, answer(responder, |location| Response::json(200, &location)));
            }
            Route::Move => {
                let query = need!(Query::parse(&request.query, &["to"]));
                let to = need!(query.need("to", "the `host:port` of a member").and_then(member));
                let shard = need!(shard_number(arg(1)));
                let accepted = |epoch| Response::json(202, &BTreeMap::from([("epoch", super::model::EpochNumber(epoch))]));
                self.source.move_shard(arg(0), shard, &to, answer(responder, accepted));
            }
            Route::Handoffs => self.source.handoffs(answer(responder, |handoffs| wrapped("handoffs", handoffs))),
            Route::Drops => responder.respond(drops(&self.source.drops())),
            Route::Latency => {
                let rows: Vec<LatencyRow> = self.metrics.latencies().iter().map(LatencyRow::from).collect();
                responder.respond(wrapped("latency", rows));
            }
            Route::Slow => responder.respond(wrapped("slow", self.source.slow_turns())),
            Route::Events => {
                let asked = need!(Query::parse(&request.query, &["last_event_id"]).and_then(|query| query.last_event_id()));
                // A header that is no number is from somebody else's stream: as if none was given.
                let told = request.header("last-event-id").and_then(|id| id.trim().parse().ok());
                self.events(request, told.or(asked), responder);
            }
            Route::Config => responder.respond(wrapped("config", shown(self.source.config()))),
            Route::Metrics => responder.respond(self.metrics_page()),
            Route::Leave | Route::Down => {
                need!(Query::parse(&request.query, &[]));
                let addr = need!(member(arg(0)));
                let shown = addr.to_string();
                let act = if found.route == Route::Leave { "leave" } else { "down" };
                let done = answer(responder, move |()| Response::json(202, &serde_json::json!({"act": act, "addr": shown, "status": 202})));
                if found.route == Route::Leave { self.source.leave(&addr, done) } else { self.source.down(&addr, done) }
            }
            Route::Entity => {
                let (ty, key, op) = (arg(0), arg(1), arg(2));
                return entities::send(&*self.source, ty, key, op, &self.patience, request, responder);
            }
            Route::Batch => return batch::run(&*self.source, &self.metrics, (&self.patience, &self.held), request, responder),
        }
        Ok(())
    }

    fn probe(&self, probe: Probe, responder: Responder) {
        #[derive(Serialize)]
        struct Healthy {
            status: &'static str,
            checks: Vec<Check>,
        }
        let checks = self.source.health(probe);
        let failed: Vec<&str> = checks.iter().filter(|c| !c.ok).map(|c| c.name.as_str()).collect();
        if failed.is_empty() {
            return responder.respond(Response::json(200, &Healthy { status: "ok", checks }));
        }
        let detail = format!("does not hold: {}; see `checks` for what to do", failed.join(", "));
        let problem = Problem::new(HttpRefusal::Unavailable, 503, "E-HTTP-025", "unhealthy", detail);
        responder.respond(match serde_json::to_value(&checks) {
            Ok(checks) => problem.with("checks", checks).into(),
            Err(_) => problem.into(),
        });
    }

    fn events(&self, request: &Request, last_seen: Option<u64>, responder: Responder) {
        let wants_stream = request.header("accept").is_some_and(|accept| accept.to_ascii_lowercase().contains(EVENT_STREAM));
        if !wants_stream || request.method == Method::Head {
            let ring = self.events.clone();
            return responder.respond_with(move || Response::new(200, JSON, ring.to_json(last_seen.unwrap_or(0))));
        }
        let missed = self.events.subscribe(last_seen, responder.stream(EVENT_STREAM, EVENT_STREAM_COMMENT));
        self.metrics.shared.events_lagged.add(missed);
    }

    fn metrics_page(&self) -> Response {
        let mut page = Prometheus::new();
        self.metrics.write(&mut page);
        page.gauge("http_subscribers", "Subscribers to events.", self.events.subscribers());
        self.source.metrics(&mut page);
        Response::new(200, Prometheus::CONTENT_TYPE, page.finish().into_bytes())
    }
}

impl Handler for Api {
    fn handle(&self, request: Request, responder: Responder) {
        let result = match find(request.method.clone(), &request.path) {
            Ok(found) => self.route(&request, &found, responder),
            Err(problem) => Err((problem, responder)),
        };
        if let Err((problem, responder)) = result {
            responder.respond(problem.into());
        }
    }
}

impl std::fmt::Debug for Api {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Api").field("events", &self.events).finish_non_exhaustive()
    }
}

/// A completion that answers; the JSON is made on the admin thread.
fn answer<T: Send + 'static>(responder: Responder, make: impl FnOnce(T) -> Response + Send + 'static) -> Done<T> {
    Box::new(move |result: Result<T, SourceError>| {
        responder.respond_with(move || match result {
            Ok(value) => make(value),
            Err(error) => Problem::from(error).into(),
        });
    })
}

/// `{"name": rows}`.
fn wrapped(name: &'static str, rows: impl Serialize) -> Response {
    Response::json(200, &BTreeMap::from([(name, rows)]))
}

fn index() -> Response {
    #[derive(Serialize)]
    struct Row {
        method: &'static str,
        path: &'static str,
    }
    let rows: Vec<Row> = ROUTES.iter().map(|(method, path, _)| Row { method: method.name(), path }).collect();
    wrapped("routes", rows)
}

fn drops(counts: &[(&'static str, u64)]) -> Response {
    #[derive(Serialize)]
    struct Drops {
        drops: BTreeMap<&'static str, u64>,
        total: u64,
    }
    Response::json(200, &Drops { drops: counts.iter().copied().collect(), total: counts.iter().map(|(_, n)| n).sum() })
}

/// Without the values that must not be seen.
fn shown(mut settings: Vec<Setting>) -> Vec<Setting> {
    for setting in settings.iter_mut().filter(|s| SECRETS.contains(&s.key.as_str()) && s.value != s.default) {
        setting.value = "(hidden)".into();
    }
    settings
}

fn member(text: &str) -> Result<NodeAddr, Problem> {
    text.parse().map_err(|error: crate::BadAddr| Problem::bad_parameter(error.to_string()))
}

fn shard_number(text: &str) -> Result<u32, Problem> {
    let bad = || Problem::bad_parameter(format!("`{}` is not the number of a shard; shards are numbered from 0", shorten(text)));
    if text.bytes().all(|b| b.is_ascii_digit()) { text.parse().map_err(|_| bad()) } else { Err(bad()) }
}
