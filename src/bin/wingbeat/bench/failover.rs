//! `bench failover`: the process of one of three nodes is killed. How long until its entities answer from their new homes, and where the time goes.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use wingbeat::{Cluster, Config, Event, HostOptions, MemberStatus, NodeId, Region, ShardId, config::AutoSpan};

use super::{
    BenchArgs,
    entity::{Bench, BenchEntity},
    homes, limits,
    load::{self, Asked, Load},
    peers::{self, Peer},
    remote,
    report::{Report, Run},
    rig::{self, Error, PATIENCE},
};

/// Requests per second to one entity of each shard of the node that is killed: each is asked every few milliseconds, as what was asked before its
/// route changed is lost, and the first answer is seen late by that.
const PER_S: f64 = 4000.0;
/// A request that was lost with its node must not keep a round waiting for long.
const LIMIT: Duration = Duration::from_secs(10);
/// Requests go before the kill, so that links and routes are as they are under load.
const BEFORE: Duration = Duration::from_millis(100);
/// A third of the shards comes to each new node at once.
const SETTINGS: &[(&str, &str)] =
    &[("sharding.shards", "30"), ("sharding.rebalance_absolute", "65536"), ("sharding.rebalance_relative", "1.0")];
/// How long an entity may take to answer once its shard may run: the must of this row.
const START: Duration = Duration::from_millis(200);

/// The parts of the way from the kill to the answer, or the most that each may take.
#[derive(Copy, Clone, PartialEq, Debug)]
struct Parts {
    /// Until the first survivor holds the node unreachable.
    detection: Duration,
    /// From then until a survivor has decided that it is down.
    stable_after: Duration,
    /// From then until the first of its entities runs elsewhere.
    right_to_run: Duration,
    /// From then until all of them have answered.
    start: Duration,
}

impl Parts {
    /// The most that each may take by the settings. A process that is proven gone needs no still picture, and nobody waits for its right to run
    /// to end; what proves it travels by gossip there and back.
    fn bounds(config: &Config) -> Self {
        let (beat, gossip) = (config.detector.heartbeat_interval.get(), config.membership.gossip_interval.get());
        if config.downing.proof_of_death.holds() {
            return Self { detection: 2 * gossip, stable_after: 2 * gossip, right_to_run: Duration::ZERO, start: START };
        }
        let detector = &config.detector;
        // So many standard deviations late is a beat of which the detector is sure, at most: the tail of a normal distribution.
        let deviations = (2.0 * std::f64::consts::LN_10 * detector.threshold).sqrt();
        let late = detector.min_std_deviation.get().mul_f64(deviations);
        let stable_after = match config.downing.stable_after {
            AutoSpan::After(span) => span.get(),
            // Of up to five members.
            _ => 7 * beat,
        };
        Self {
            detection: beat + detector.acceptable_pause.get() + late + 2 * gossip,
            stable_after,
            // By so much may the other side of a split decide later.
            right_to_run: config.sharding.lease_margin.get() + 4 * beat + 2 * gossip,
            start: START,
        }
    }

    fn sum(&self) -> Duration {
        self.detection + self.stable_after + self.right_to_run + self.start
    }

    fn details(&self) -> Vec<(&'static str, f64)> {
        let all = [
            ("detection_ms", self.detection),
            ("stable_after_ms", self.stable_after),
            ("right_to_run_ms", self.right_to_run),
            ("start_ms", self.start),
        ];
        all.map(|(name, part)| (name, ms(part))).into()
    }
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// What the survivors saw.
#[derive(Debug, Default)]
struct Log {
    unreachable: BTreeMap<NodeId, Instant>,
    down: BTreeMap<NodeId, Instant>,
    /// When an entity was last started on a survivor.
    started: BTreeMap<u64, Instant>,
}

impl Log {
    /// The first survivor to see something counts.
    fn note(&mut self, event: &Event, now: Instant) {
        let (of, node) = match event {
            Event::Unreachable { node, .. } => (&mut self.unreachable, *node),
            Event::Member { member, .. } if member.status >= MemberStatus::Down => (&mut self.down, member.id),
            _ => return,
        };
        of.entry(node).or_insert(now);
    }
}

/// A node of this process that survives.
struct Survivor {
    cluster: Cluster,
    region: Region<Bench>,
    _events: wingbeat::Subscription,
}

fn survivor(settings: &peers::Settings, seeds: &[String], log: &Arc<Mutex<Log>>) -> Result<Survivor, Error> {
    let cluster = rig::start(settings, seeds)?;
    let (seen, starts) = (Arc::clone(log), Arc::clone(log));
    let _events = cluster.on_event(move |event| seen.lock().note(event, Instant::now()));
    let region = cluster.host::<BenchEntity>(HostOptions::new(), move |key| {
        starts.lock().started.insert(*key, Instant::now());
        BenchEntity::default()
    })?;
    region.wait_ready(PATIENCE)?;
    Ok(Survivor { cluster, region, _events })
}

/// The limit is the sum of what each part may take by the settings, and for the latency a round trip.
pub fn measure(args: &BenchArgs, report: &mut Report) -> Result<(), Error> {
    let settings = peers::settings(args, SETTINGS);
    let log = Arc::new(Mutex::new(Log::default()));
    let first = survivor(&settings, &[], &log)?;
    let seed = first.cluster.addr().to_string();
    let _second = survivor(&settings, std::slice::from_ref(&seed), &log)?;
    let all = rig::warm(&first.region, args.entities())?;
    let bounds = Parts::bounds(first.cluster.config());
    let victim: RefCell<Option<Peer>> = RefCell::new(None);
    report.figure("whole_path_ms");
    report.rounds(
        "the most that each part may take by the settings",
        args.runs(),
        || {
            let peer = Peer::start(&settings, Some(&seed))?;
            homes::until_balanced(&first.region, 3)?;
            victim.replace(Some(peer));
            let trip = remote::trip(args.window() / 8)?;
            Ok(Run { figure: Some(ms(bounds.sum())), details: bounds.details(), ..trip })
        },
        || {
            let mut peer = victim.take().ok_or("the third node was not started")?;
            let node = homes::member(&first.cluster, &peer.addr)?;
            homes::until_balanced(&first.region, 3)?;
            let table = first.region.table(PATIENCE)?;
            let mut shards: BTreeSet<ShardId> = table.iter().filter(|row| row.owner == Some(node)).map(|row| row.shard).collect();
            let mut is_first = |key: &u64| first.region.shard_of(key).is_some_and(|shard| shards.remove(&shard));
            let there: Vec<_> = all.iter().filter(|entity| is_first(entity.key())).cloned().collect();
            if there.is_empty() {
                return Err("no entity lives on the third node; give more --entities".into());
            }
            let load = Load { all: &there, per_s: PER_S, limit: LIMIT };
            log.lock().started.clear();
            let (asked, (began, killed)) = load.during(|began| {
                load::pause_until(began + BEFORE);
                peer.kill()?;
                let killed = began.elapsed();
                let is_back = || there.iter().all(|entity| log.lock().started.contains_key(entity.key()));
                homes::until("the entities of the killed node run elsewhere", || Ok(is_back().then_some(())))?;
                Ok((began, killed))
            })?;
            let log = log.lock();
            let path = Path::of(&log, node, began, killed, &asked, there.len())?;
            let mut waits = limits::histogram();
            path.answers.iter().for_each(|wait| waits.saturating_record(wait.as_nanos() as u64));
            let mut details = path.parts.details();
            details.push(("decision_to_answer_ms", waits.value_at_quantile(0.99) as f64 / 1e6));
            // What the killed node had taken in and not answered is lost with it.
            details.push(("requests_lost_with_the_node", asked.iter().filter(|ask| ask.failed.is_some()).count() as f64));
            Ok(Run { figure: Some(ms(path.parts.sum())), details, ..Run::of(&waits, None) })
        },
    )
}

/// What came of a kill.
struct Path {
    parts: Parts,
    /// For each entity, from the decision to its first answer.
    answers: Vec<Duration>,
}

impl Path {
    fn of(log: &Log, node: NodeId, began: Instant, killed: Duration, asked: &[Asked], entities: usize) -> Result<Self, Error> {
        let since = |at: Option<&Instant>| at.map(|at| at.saturating_duration_since(began));
        let down = since(log.down.get(&node)).ok_or("the killed node was never seen down")?;
        // What is proven gone may be down in the first view that shows it unreachable.
        let unreachable = since(log.unreachable.get(&node)).map_or(down, |at| at.min(down));
        let running = since(log.started.values().min()).ok_or("no entity was started")?;
        let mut first: BTreeMap<usize, Duration> = BTreeMap::new();
        // What was asked before the kill may have been answered by the killed node.
        for ask in asked.iter().filter(|ask| ask.meant > killed && ask.failed.is_none()) {
            let done = first.entry(ask.entity).or_insert(Duration::MAX);
            *done = (*done).min(ask.done());
        }
        if first.len() < entities {
            return Err(format!("{} of {entities} entities of the killed node never answered", entities - first.len()).into());
        }
        let last = first.values().max().copied().unwrap_or_default();
        let parts = Parts {
            detection: unreachable.saturating_sub(killed),
            stable_after: down.saturating_sub(unreachable),
            right_to_run: running.saturating_sub(down),
            start: last.saturating_sub(running),
        };
        Ok(Self { parts, answers: first.values().map(|done| done.saturating_sub(down)).collect() })
    }
}

#[cfg(test)]
mod tests {
    use wingbeat::config::Preset;

    use super::*;

    #[test]
    fn bounds_follow_the_settings() {
        let mut config = Config::preset(Preset::LocalTest);
        assert_eq!(Parts::bounds(&config).sum(), Duration::from_secs(1), "proven gone: what the target says");
        config.set("downing.proof_of_death", "false").unwrap();
        let bounds = Parts::bounds(&config);
        assert_eq!((bounds.detection.as_millis(), bounds.stable_after), (1806, Duration::from_secs(2)));
        let usual = Parts::bounds(&Config::default());
        assert_eq!(
            (usual.detection.as_millis(), usual.stable_after),
            (6606, Duration::from_secs(7)),
            "four and a half heartbeats, and gossip"
        );
    }

    #[test]
    fn the_parts_make_up_the_whole() {
        let (began, node, ms) = (Instant::now(), NodeId::from_raw(7), Duration::from_millis);
        let mut log = Log::default();
        log.unreachable.insert(node, began + ms(150));
        log.down.insert(node, began + ms(180));
        log.started.extend([(1, began + ms(200)), (2, began + ms(230))]);
        let ask = |entity, meant, took| Asked { entity, meant: ms(meant), took: ms(took), failed: None };
        // The first is an answer of the killed node.
        let asked = [ask(0, 90, 1), ask(0, 120, 85), ask(1, 121, 114), ask(0, 240, 1)];
        let path = Path::of(&log, node, began, ms(100), &asked, 2).unwrap();
        let parts = Parts { detection: ms(50), stable_after: ms(30), right_to_run: ms(20), start: ms(35) };
        assert_eq!((path.parts, path.parts.sum()), (parts, ms(135)));
        assert_eq!(path.answers, [ms(25), ms(55)]);
        assert!(Path::of(&log, node, began, ms(100), &asked[..2], 2).is_err(), "one never answered");
    }
}
