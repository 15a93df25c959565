//! What the HTTP surface sees of a node, and how entity types are put on it.

use std::{
    collections::{BTreeMap, HashMap},
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::RwLock;

use crate::{
    AskError, Config, EntityType, Epoch, Event, NodeAddr, NodeId, Refusal, Region, Request, ShardId, ShardKey, StartError, TypeId,
    admin::{
        Done, EntityCall, EntityOutcome, Listening, Mode, Probe, ServerHandle, Source, SourceError,
        model::{
            self, Check, Handoff, Host, Incarnation, Life as NodeLife, Link, Location, Rtt, Setting, ShardRow, SlowTurn, Status, TypeRow,
        },
    },
    api::reference::is_for_now,
    engine::{
        node::{Life, Node},
        slow_turns::Inside,
        types::{Standing, TypeEntry, show_bytes},
    },
    metrics::Prometheus,
    proto::{
        membership::{BLOCKED_NOW, ClusterView, MemberStatus},
        node::{Answer, Command},
        sharding::{ShardState, TableRow, TypeInfo, UNSIZED},
    },
};

/// An entity type's operations for HTTP: the bridge from JSON to its typed messages.
pub trait Operations: Send + Sync + 'static {
    /// Names of the operations.
    fn names(&self) -> &'static [&'static str];
    /// Sends one message. The body has not been looked at.
    fn call(&self, call: EntityCall<'_>, done: Box<dyn FnOnce(EntityOutcome) + Send>);
}

/// The types that HTTP can address, by name.
#[derive(Default)]
pub struct Exposed(RwLock<BTreeMap<String, Arc<dyn Operations>>>);

impl Exposed {
    /// Puts a type on the surface; a second one of the name replaces the first.
    pub fn insert(&self, name: &str, operations: Arc<dyn Operations>) {
        self.0.write().insert(name.to_owned(), operations);
    }

    /// Forgets all types: their operations hold regions, which hold the node that holds this.
    pub fn clear(&self) {
        self.0.write().clear();
    }

    fn get(&self, name: &str) -> Option<Arc<dyn Operations>> {
        self.0.read().get(name).cloned()
    }
}

impl super::Cluster {
    /// Puts a type's operations on the HTTP surface, under the type's name.
    #[doc(hidden)]
    pub fn expose<T: EntityType>(&self, operations: Arc<dyn Operations>) {
        self.node().exposed.insert(T::TYPE, operations);
    }
}

/// What a bridge gives as answer: an entity's reply, already in JSON.
pub trait JsonReply {
    /// `{"result": {..}, "served_by": "host:port:incarnation", "epoch": n}`, or why the entity refused.
    fn into_outcome(self, call: &Asked) -> EntityOutcome;
}

/// What was asked, for error texts.
#[derive(Clone, Debug)]
pub struct Asked {
    /// Entity type.
    pub ty: String,
    /// Key, in text form.
    pub key: String,
    /// Operation.
    pub op: String,
    /// How long an answer may take.
    pub timeout: Duration,
}

/// Sends one typed request on behalf of HTTP, in the mode that was asked for.
pub fn send<T, R>(region: &Region<T>, key: T::Key, request: R, call: &EntityCall<'_>, done: Box<dyn FnOnce(EntityOutcome) + Send>)
where
    T: EntityType,
    R: Request<T>,
    R::Reply: JsonReply,
{
    let asked = Asked { ty: call.ty.into(), key: call.key.into(), op: call.op.into(), timeout: call.timeout };
    let entity = region.get(key);
    // Nobody waits for it longer than for the answer.
    let patience = call.room.saturating_duration_since(Instant::now()).min(call.timeout);
    if call.mode == Mode::Tell {
        // It would be dropped behind the answer, where whoever asks hears of it.
        if region.entry().refused().is_some() {
            return done(problem(&asked, &AskError::Dropped(crate::DropReason::TypeRefused)));
        }
        let outcome = match entity.tell_within(request, patience) {
            Ok(()) => EntityOutcome::Accepted,
            Err(refused) => {
                note_vain(call, patience, refused.reason());
                refusal(&asked, refused.reason())
            }
        };
        return done(outcome);
    }
    let done = Arc::new(parking_lot::Mutex::new(Some(done)));
    let waiter = {
        let (done, asked) = (done.clone(), asked.clone());
        move |result: Result<R::Reply, AskError>| {
            let outcome = match result {
                Ok(reply) => reply.into_outcome(&asked),
                Err(error) => problem(&asked, &error),
            };
            if let Some(done) = done.lock().take() {
                done(outcome);
            }
        }
    };
    if let Err(error) = entity.ask_raw_within(request, call.timeout, patience, waiter) {
        if let AskError::Refused(reason) = &error {
            note_vain(call, patience, reason);
        }
        if let Some(done) = done.lock().take() {
            done(problem(&asked, &error));
        }
    }
}

/// Says so where the thread has waited for room that did not come.
fn note_vain(call: &EntityCall<'_>, patience: Duration, reason: &Refusal) {
    if !patience.is_zero() && is_for_now(reason) {
        call.in_vain.set(true);
    }
}

fn refusal(asked: &Asked, refusal: &Refusal) -> EntityOutcome {
    let (status, title) = match refusal {
        Refusal::TooLarge { .. } => (413, "message too large"),
        Refusal::BadKey { .. } | Refusal::Unaddressed => (400, "bad key"),
        Refusal::Encode(_) => (400, "the message cannot be encoded"),
        _ => (503, "not accepted"),
    };
    let next = match refusal {
        Refusal::Full | Refusal::NoCredit | Refusal::Overloaded => "; it did not run: repeat it later",
        Refusal::Shutdown => "; it did not run: use another node",
        _ => "",
    };
    let detail = format!("`{}` of type `{}`: {refusal}{next}", asked.key.escape_debug(), asked.ty);
    EntityOutcome::Problem { status, code: refusal.code(), title, detail, maybe_ran: Some(false) }
}

fn problem(asked: &Asked, error: &AskError) -> EntityOutcome {
    let (status, title) = match error {
        AskError::Timeout { maybe_ran } => return EntityOutcome::timeout(&asked.ty, &asked.key, asked.timeout, *maybe_ran),
        AskError::Refused(reason) => return refusal(asked, reason),
        AskError::Dropped(crate::DropReason::UnknownType | crate::DropReason::NoHost) => (503, "no node hosts the type"),
        AskError::Dropped(crate::DropReason::TypeRefused) => (503, "the type is refused here"),
        AskError::Dropped(crate::DropReason::Expired) => (504, "dropped after its deadline"),
        AskError::Dropped(_) => (503, "not handled"),
        AskError::OwnerLost => (503, "the home was lost"),
        AskError::Shutdown => (503, "the node stopped"),
        AskError::Rejected(_) => (409, "rejected by the entity"),
        _ => (500, "the entity gave no answer"),
    };
    let maybe_ran = Some(error.ran() != crate::Ran::No);
    let next = match error {
        AskError::Dropped(crate::DropReason::TypeRefused) => ": use another node, or start this one with what the cluster has",
        _ if maybe_ran == Some(false) => "; repeating it is safe",
        _ => "",
    };
    let detail = format!("`{}` of type `{}`: {error}{next}", asked.key.escape_debug(), asked.ty);
    EntityOutcome::Problem { status, code: error.code(), title, detail, maybe_ran }
}

fn not_bound(listen: SocketAddr, source: std::io::Error) -> StartError {
    StartError::Bind { proto: "TCP", addr: listen, setting: "admin.listen", source }
}

/// Takes the address of the HTTP surface, if `admin.listen` is set: before the node joins anything, as the address may be in use.
pub(crate) fn listen(config: &crate::Config) -> Result<Option<Listening>, StartError> {
    config.admin.listen.map(|addr| Listening::bind(addr).map_err(|source| not_bound(addr, source))).transpose()
}

/// Starts the HTTP surface where it was told to listen.
pub(crate) fn serve(node: &Arc<Node>, listening: Option<Listening>) -> Result<Option<ServerHandle>, StartError> {
    let Some(listening) = listening else { return Ok(None) };
    let source = Arc::new(Surface { node: node.clone() });
    let api = Arc::new(crate::admin::Api::new(source, node.metrics.clone(), node.kept_events.clone()));
    let limits = crate::admin::Limits::from(&node.config.limits);
    let token = node.config.admin.token.as_deref();
    crate::admin::Server::start_on(listening, limits, token, node.metrics.clone(), api)
        .map(Some)
        .map_err(|source| StartError::Thread { name: "wingbeat-admin".into(), source })
}

struct Surface {
    node: Arc<Node>,
}

fn life(addr: &NodeAddr, id: NodeId) -> NodeLife {
    NodeLife { addr: addr.into(), incarnation: Incarnation(id.incarnation()) }
}

/// Keeps an event for those who ask or listen over HTTP. Nodes are `host:port`, or their id if this node does not know them any more.
pub(crate) fn keep(ring: &crate::admin::EventRing, event: &Event, view: &ClusterView) {
    let (kind, data) = event_json(event, view);
    ring.push(kind, &data);
}

fn event_json(event: &Event, view: &ClusterView) -> (&'static str, serde_json::Value) {
    use serde_json::json;
    let name = |id: NodeId| view.member(id).map_or_else(|| id.to_string(), |m| m.addr.to_string());
    let epoch = |e: &Epoch| model::EpochNumber::from(*e);
    match event {
        Event::Member { member, was } => (
            "member",
            json!({"addr": member.addr.to_string(), "incarnation": Incarnation(member.id.incarnation()), "status": member.status.name(), "was": was.map(MemberStatus::name)}),
        ),
        Event::Unreachable { node, by, why } => {
            ("unreachable", json!({"node": name(*node), "by": by.iter().map(|n| name(*n)).collect::<Vec<_>>(), "why": &**why}))
        }
        Event::Reachable { node } => ("reachable", json!({"node": name(*node)})),
        Event::LeaderChanged(node) => ("leader_changed", json!({"node": node.map(name)})),
        Event::Converged { version } => ("converged", json!({"version": version})),
        Event::Split { mine, theirs, verdict } => ("split", json!({"mine": mine, "theirs": theirs, "verdict": &**verdict})),
        Event::ShardMoving { entity_type, shard, from, to, epoch: e } => {
            ("shard_moving", json!({"type": &**entity_type, "shard": shard.0, "from": from.map(name), "to": name(*to), "epoch": epoch(e)}))
        }
        Event::ShardMoved { entity_type, shard, to, epoch: e, took } => (
            "shard_moved",
            json!({"type": &**entity_type, "shard": shard.0, "to": name(*to), "epoch": epoch(e), "took_ms": took.as_secs_f64() * 1e3}),
        ),
        Event::Warning { code, text } => ("warning", json!({"code": code, "text": &**text})),
        Event::Lagged { missed } => ("lagged", json!({"missed": missed})),
    }
}

fn state_name(state: ShardState) -> String {
    match state {
        ShardState::Starting => "starting",
        ShardState::Active => "active",
        ShardState::Moving => "moving",
        ShardState::Unowned => "unowned",
    }
    .into()
}

/// Why there is no answer of the coordinator: where none is known, nobody was asked.
fn unanswered(config: &Config, view: &ClusterView) -> SourceError {
    let role = config.sharding.coordinator_role.as_deref();
    if view.oldest(role).is_some() {
        return SourceError::Timeout("the coordinator did not answer in time; it may be moving to another node: try again".into());
    }
    let seeds = config.cluster.seeds.join(", ");
    SourceError::Unavailable(match (view.myself(), role) {
        (None, _) if seeds.is_empty() => "this node is not a member of a cluster yet; try again".into(),
        (None, _) => format!(
            "this node is not a member of a cluster yet: it asks its seeds, {seeds}; see that one of them runs and can be reached, and try again"
        ),
        (Some(_), None) => "no coordinator is known, as no member is up yet; try again".into(),
        (Some(_), Some(role)) => {
            format!("no coordinator is known: no member that is up has the role `{role}` (sharding.coordinator_role); try again")
        }
    })
}

impl Surface {
    /// Type and key of the entity whose turn it is, for people.
    fn name(&self, turn: &Inside) -> (String, String) {
        let entry = self.node.type_entry(turn.shard.ty);
        let ty = entry.as_ref().map_or_else(|| format!("{:08x}", turn.shard.ty.0), |entry| entry.name.to_string());
        (ty, turn.key(|key| entry.map_or_else(|| show_bytes(key), |entry| entry.show_key(key))))
    }

    fn entry(&self, name: &str) -> Result<Arc<TypeEntry>, SourceError> {
        let known = || {
            let mut names: Vec<String> = self.node.all_types().iter().map(|e| e.name.to_string()).collect();
            names.sort_unstable();
            names
        };
        let entry = self.node.type_entry(TypeId::of(name)).filter(|e| *e.name == *name);
        entry.ok_or_else(|| SourceError::UnknownType { name: name.to_owned(), known: known() })
    }

    fn member(&self, addr: &NodeAddr) -> Result<NodeId, SourceError> {
        let view = self.node.view();
        // Several lives of one address: the living one is meant, else the newest entry.
        let mut lives = view.members.iter().filter(|m| m.addr == *addr).collect::<Vec<_>>();
        lives.sort_by_key(|m| (m.status < MemberStatus::Down, m.up_number));
        let known = || view.members.iter().map(|m| m.addr.to_string()).collect();
        lives.last().map(|m| m.id).ok_or_else(|| SourceError::UnknownMember { addr: addr.clone(), known: known() })
    }

    /// Puts a command and turns its answer into what the surface expects.
    fn command<T: 'static>(
        &self,
        make: impl FnOnce(u64) -> Command + Send + 'static,
        done: Done<T>,
        read: impl FnOnce(Answer) -> Result<T, SourceError> + Send + 'static,
    ) {
        if self.node.life() != Life::Running {
            return done(Err(SourceError::Shutdown));
        }
        let node = self.node.clone();
        self.node.command(
            make,
            Some(Box::new(move |answer| {
                done(match answer {
                    Answer::Refused(why) => Err(SourceError::Refused(why)),
                    Answer::NoMember(_) => {
                        Err(SourceError::Refused("the member that was meant is gone; GET /api/v1/members shows who is there".into()))
                    }
                    Answer::NoAuthority => Err(unanswered(&node.config, &node.view())),
                    answer => read(answer),
                })
            })),
        );
    }

    fn rows<T: 'static>(
        &self,
        ty: Option<TypeId>,
        done: Done<T>,
        read: impl FnOnce(Vec<TypeInfo>, Vec<TableRow>, &ClusterView) -> Result<T, SourceError> + Send + 'static,
    ) {
        let node = self.node.clone();
        self.command(
            move |id| Command::Table { id, ty },
            done,
            move |answer| match answer {
                Answer::Table { types, rows } => read(types, rows, &node.view()),
                Answer::NotKnown => Err(SourceError::Unavailable(
                    "the coordinator is taking over and does not know all homes yet; try again in a few seconds".into(),
                )),
                other => Err(SourceError::Unavailable(format!("unexpected answer {other:?}"))),
            },
        );
    }
}

/// What the network thread counts that is no counter: it goes down as well.
const GO_DOWN_TOO: &[&str] = &[BLOCKED_NOW, "route_buffered", "lane_held", "handoff_unacknowledged", "net_links_up", "net_connections"];

fn addr_in(view: &ClusterView, node: NodeId) -> Option<Host> {
    view.member(node).map(|m| Host::from(&m.addr))
}

impl Source for Surface {
    fn health(&self, probe: Probe) -> Vec<Check> {
        let running = self.node.life() == Life::Running;
        let alive = Check { name: "threads".into(), ok: running, detail: if running { "serving".into() } else { "shutting down".into() } };
        let view = self.node.view();
        let up = view.myself().is_some_and(|m| matches!(m.status, MemberStatus::Up | MemberStatus::Leaving));
        let status = view.myself().map_or("not a member yet", |m| m.status.name());
        let member = Check { name: "member_up".into(), ok: up, detail: format!("status of this node: {status}") };
        match probe {
            Probe::Alive => vec![alive],
            Probe::Startup => vec![alive, member],
            Probe::Ready => {
                let closing = self.node.is_closing();
                let types = self.node.all_types().into_iter().map(|entry| {
                    let (ok, detail) = match entry.standing() {
                        Standing::Ready => (true, "homes can be looked up".to_owned()),
                        Standing::Asked => (false, "the coordinator has not taken the type in yet".to_owned()),
                        Standing::Refused(why) => (false, why),
                    };
                    Check { name: format!("type_{}", entry.name), ok, detail }
                });
                let serving =
                    Check { name: "accepting".into(), ok: !closing, detail: if closing { "shutting down" } else { "yes" }.into() };
                [alive, member, serving].into_iter().chain(types).collect()
            }
        }
    }

    fn status(&self) -> Status {
        let node = &self.node;
        let view = node.view();
        let addr = |id: Option<NodeId>| id.and_then(|id| addr_in(&view, id));
        let oldest = view.oldest(None).map(|m| Host::from(&m.addr));
        let coordinator = view.oldest(node.config.sharding.coordinator_role.as_deref()).map(|m| Host::from(&m.addr));
        let mut warnings = node.config.warnings();
        // That it waits for others is over once it is up.
        if view.myself().is_some_and(|m| m.status >= MemberStatus::Up) {
            warnings.retain(|warning| warning.code != "W-CFG-004");
        }
        let mut warnings: Vec<String> = warnings.iter().map(ToString::to_string).collect();
        let up = view.members.iter().filter(|m| m.status == MemberStatus::Up).count();
        for entry in node.all_types() {
            if let Some(why) = entry.refused() {
                warnings.push(format!("type `{}` is refused by the coordinator: {why}", entry.name));
            }
            let Some(shards) = entry.shards() else { continue };
            if (shards as usize) < up {
                warnings.push(format!("type `{}` has {shards} shards for {up} members: some host nothing", entry.name));
            } else if (shards as usize) < 10 * up {
                warnings
                    .push(format!("type `{}` has {shards} shards, fewer than ten times the {up} members: load will be uneven", entry.name));
            }
        }
        if node.core_counters().protocol.iter().any(|(name, now)| *name == BLOCKED_NOW && *now > 0) {
            warnings.push("udp_blocked: no datagrams come, so gossip and heartbeats go over TCP; open UDP on the port".into());
        }
        for (_, inside) in node.stuck_turns() {
            let (ty, key) = self.name(&inside);
            warnings.push(format!(
                "entity `{key}` of type `{ty}`, shard {}, has not come out of its code for {:.1} s: what else lives on its worker waits",
                inside.shard.shard.0,
                inside.took.as_secs_f64()
            ));
        }
        Status {
            cluster: node.config.cluster.name.clone(),
            myself: life(&node.addr, node.id),
            status: view
                .myself()
                .map_or_else(|| if node.life() == Life::Running { "joining".into() } else { "removed".into() }, |m| m.status.name().into()),
            size: view.members.len(),
            leader: addr(view.leader),
            deputies: view.deputies.iter().filter_map(|d| addr_in(&view, *d)).collect(),
            oldest,
            coordinator,
            view_version: view.version,
            converged: view.converged,
            moving: node.moving(),
            warnings,
        }
    }

    fn members(&self, done: Done<Vec<model::Member>>) {
        let view = self.node.view();
        let complete = move |rows: Option<Vec<TableRow>>| {
            // In one walk through all shards, as this is the network thread.
            let sums = rows.map(|rows| {
                let mut sums: HashMap<NodeId, (u64, u64)> = HashMap::new();
                for (owner, entities) in rows.iter().filter_map(|row| Some((row.owner?, row.entities))) {
                    let sum = sums.entry(owner).or_default();
                    *sum = (sum.0 + 1, sum.1 + u64::from(entities));
                }
                sums
            });
            let of = |id: NodeId| sums.as_ref().map(|sums| sums.get(&id).copied().unwrap_or_default());
            let member = |m: &crate::Member| model::Member {
                addr: Host::from(&m.addr),
                incarnation: Incarnation(m.id.incarnation()),
                status: m.status.name().into(),
                reachable: m.reachable,
                observers: m.observers.iter().filter_map(|o| addr_in(&view, *o)).collect(),
                roles: m.roles.to_vec(),
                up_number: m.up_number.into(),
                app_version: m.app_version.to_string(),
                shards: of(m.id).map(|(shards, _)| shards),
                entities: of(m.id).map(|(_, entities)| entities),
            };
            view.members.iter().map(member).collect()
        };
        // Without an answer of the coordinator the counts are unknown, and the members are not.
        self.node.command(
            |id| Command::Table { id, ty: None },
            Some(Box::new(move |answer| {
                done(Ok(match answer {
                    Answer::Table { rows, .. } => complete(Some(rows)),
                    _ => complete(None),
                }));
            })),
        );
    }

    fn config(&self) -> Vec<Setting> {
        let config = &self.node.config;
        let setting = |s: &crate::config::Setting| {
            let (value, default) = (config.get(s.key).unwrap_or_default(), s.default_text());
            let origin = match config.is_set(s.key) {
                true => "set",
                false if value == default => "default",
                // By a preset, or by another setting.
                false => "derived",
            };
            Setting { key: s.key.into(), value, default, origin: origin.into() }
        };
        Config::reference().iter().map(setting).collect()
    }

    fn drops(&self) -> Vec<(&'static str, u64)> {
        self.node.metrics.drops.all()
    }

    fn slow_turns(&self) -> Vec<SlowTurn> {
        let (node, now) = (&self.node, self.node.now());
        let ms = |span: Duration| u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
        let stuck = node.stuck_turns().into_iter().map(|(worker, inside)| {
            let (ty, key) = self.name(&inside);
            SlowTurn { ty, key, shard: inside.shard.shard.0, worker, took_ms: ms(inside.took), ended_ms_ago: None }
        });
        let ended = node.slow_turns.all().into_iter().rev().map(|turn| SlowTurn {
            ty: turn.entity_type,
            key: turn.key,
            shard: turn.shard.0,
            worker: turn.worker,
            took_ms: ms(turn.took),
            ended_ms_ago: Some(ms(now.since(turn.ended))),
        });
        stuck.chain(ended).collect()
    }

    fn metrics(&self, out: &mut Prometheus) {
        let view = self.node.view();
        out.gauge("members", "Members in this node's view.", view.members.len() as u64);
        let up = view.members.iter().filter(|m| m.status == MemberStatus::Up).count();
        out.gauge("members_up", "Members that are up.", up as u64);
        out.gauge(
            "members_unreachable",
            "Members that the cluster holds unreachable.",
            view.members.iter().filter(|m| !m.reachable).count() as u64,
        );
        out.gauge("converged", "1 if everybody has seen this view.", u64::from(view.converged));
        out.gauge("shards_moving", "Shards on the move, as far as this node knows.", self.node.moving());
        out.gauge("asks_in_flight", "Requests of this node that wait for an answer.", self.node.slots.in_flight() as u64);
        let stuck = self.node.stuck_turns().len();
        out.gauge("workers_stuck", "Workers that an entity's code keeps for long.", stuck);
        let counters = self.node.core_counters();
        // What was given up is on the page by reason already.
        let given_up = |name: &str| crate::DropReason::ALL.iter().any(|reason| reason.label() == name);
        let protocol = counters.protocol.iter().filter(|(name, _)| !given_up(name)).map(|(name, value)| ((*name).to_owned(), *value));
        let sockets = counters.sockets.iter().map(|(name, value)| (format!("net_{name}"), *value));
        for (name, value) in protocol.chain(sockets) {
            match GO_DOWN_TOO.contains(&&*name) {
                true => out.gauge(&name, "As of now, on the network thread; see the name.", value),
                false => out.counter(&name, "Counted by the network thread; see the name.", value),
            }
        }
    }

    fn entity_types(&self) -> Arc<[crate::admin::EntityType]> {
        let exposed = self.node.exposed.0.read();
        let names = |ops: &Arc<dyn Operations>| ops.names().iter().map(|n| (*n).to_owned()).collect();
        exposed.iter().map(|(name, ops)| crate::admin::EntityType { name: name.clone(), operations: names(ops) }).collect()
    }

    fn links(&self, done: Done<Vec<Link>>) {
        let node = self.node.clone();
        self.command(
            |id| Command::Links { id },
            done,
            move |answer| {
                let Answer::Links(reports) = answer else { return Err(SourceError::Unavailable("unexpected answer".into())) };
                let view = node.view();
                let observer = Host::from(&node.addr);
                let link = |r: crate::proto::membership::LinkReport| {
                    Some(Link {
                        observer: observer.clone(),
                        subject: addr_in(&view, r.subject)?,
                        // Adding zero makes no phi of -0.
                        phi: Some(r.phi + 0.0).filter(|p| p.is_finite()),
                        threshold: r.threshold,
                        rtt_us: Rtt { p50: r.rtt_us_p50, p99: r.rtt_us_p99 },
                        loss: r.loss,
                        state: r.state.into(),
                    })
                };
                Ok(reports.into_iter().filter_map(link).collect())
            },
        );
    }

    fn types(&self, done: Done<Vec<TypeRow>>) {
        self.rows(None, done, |types, rows, _| {
            let entities = |ty: TypeId| rows.iter().filter(|r| r.shard.ty == ty).map(|r| u64::from(r.entities)).sum();
            Ok(types.iter().map(|t| TypeRow { ty: t.name.clone(), shards: t.shards, entities: Some(entities(t.ty)) }).collect())
        });
    }

    fn table(&self, ty: &str, done: Done<Vec<ShardRow>>) {
        let entry = match self.entry(ty) {
            Ok(entry) => entry,
            Err(error) => return done(Err(error)),
        };
        self.rows(Some(entry.id), done, |_, mut rows, view| {
            rows.sort_by_key(|r| r.shard);
            let row = |r: &TableRow| ShardRow {
                shard: r.shard.shard.0,
                owner: r.owner.and_then(|o| addr_in(view, o)),
                epoch: r.epoch.into(),
                state: state_name(r.state),
                entities: Some(u64::from(r.entities)),
                rate_per_s: Some(f64::from(r.rate_per_s)),
            };
            Ok(rows.iter().map(row).collect())
        });
    }

    fn locate(&self, ty: &str, key: &str, done: Done<Location>) {
        let entry = match self.entry(ty) {
            Ok(entry) => entry,
            Err(error) => return done(Err(error)),
        };
        if let Some(why) = entry.refused() {
            return done(Err(SourceError::Refused(why)));
        }
        let bytes = match (entry.read_key)(key) {
            Ok(bytes) => bytes,
            Err(why) => return done(Err(SourceError::BadKey(why))),
        };
        let shard = entry.shard_of(xxhash_rust::xxh3::xxh3_64(&bytes));
        if shard.shard == UNSIZED {
            let why = "it is not known here how many shards the type has, as no node hosts it; host it, or try again later";
            return done(Err(SourceError::Unavailable(why.into())));
        }
        self.rows(Some(entry.id), done, move |_, rows, view| {
            let row = rows.iter().find(|r| r.shard == shard);
            Ok(Location {
                shard: shard.shard.0,
                owner: row.and_then(|r| r.owner).and_then(|o| addr_in(view, o)),
                epoch: row.map_or(Epoch::ZERO, |r| r.epoch).into(),
                state: row.map_or_else(|| state_name(ShardState::Unowned), |r| state_name(r.state)),
            })
        });
    }

    fn handoffs(&self, done: Done<Vec<Handoff>>) {
        self.rows(None, done, |types, rows, view| {
            let name = |ty: TypeId| types.iter().find(|t| t.ty == ty).map_or_else(|| format!("{:08x}", ty.0), |t| t.name.clone());
            let moving = rows.iter().filter(|r| matches!(r.state, ShardState::Moving | ShardState::Starting));
            let row = |r: &TableRow| Handoff {
                ty: name(r.shard.ty),
                shard: r.shard.shard.0,
                from: r.from.and_then(|n| addr_in(view, n)),
                to: r.owner.and_then(|o| addr_in(view, o)),
                epoch: r.epoch.into(),
                state: state_name(r.state),
                age_ms: r.moving_ms.map(u64::from),
            };
            Ok(moving.map(row).collect())
        });
    }

    fn move_shard(&self, ty: &str, shard: u32, to: &NodeAddr, done: Done<u64>) {
        let found = self.entry(ty).and_then(|entry| {
            // Where the number here is not the one in force, the coordinator looks.
            let shards = if entry.refused().is_some() { u32::MAX } else { entry.shards().unwrap_or(0) };
            if shard >= shards { Err(SourceError::UnknownShard { shards }) } else { Ok((entry, self.member(to)?)) }
        });
        let (entry, to) = match found {
            Ok(found) => found,
            Err(error) => return done(Err(error)),
        };
        let shard = ShardKey { ty: entry.id, shard: ShardId(shard) };
        self.command(
            move |id| Command::MoveShard { id, shard, to },
            done,
            |answer| match answer {
                Answer::Epoch(epoch) => Ok(epoch.get()),
                other => Err(SourceError::Unavailable(format!("unexpected answer {other:?}"))),
            },
        );
    }

    fn leave(&self, member: &NodeAddr, done: Done<()>) {
        match self.member(member) {
            Ok(node) => self.command(move |id| Command::Leave { id, node }, done, |_| Ok(())),
            Err(error) => done(Err(error)),
        }
    }

    fn down(&self, member: &NodeAddr, done: Done<()>) {
        match self.member(member) {
            Ok(node) => self.command(move |id| Command::Down { id, node }, done, |_| Ok(())),
            Err(error) => done(Err(error)),
        }
    }

    fn entity(&self, call: EntityCall<'_>, done: Box<dyn FnOnce(EntityOutcome) + Send>) {
        match self.node.exposed.get(call.ty) {
            Some(operations) => operations.call(call, done),
            None => done(EntityOutcome::Problem {
                status: 404,
                code: "E-HTTP-014",
                title: "unknown entity type",
                detail: format!("type `{}` is not on this node's HTTP surface", call.ty.escape_debug()),
                maybe_ran: Some(false),
            }),
        }
    }
}
