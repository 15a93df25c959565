//! `bench handoff`: a shard that moves to and fro between two processes while its entities are asked. How long its messages wait.

use std::time::{Duration, Instant};

use wingbeat::{ActError, Cluster, Epoch, Event, NodeId, Region, ShardId};

use super::{
    BenchArgs,
    entity::Bench,
    homes::{self, Two},
    limits,
    load::{self, Load},
    report::{Report, Run},
    rig::{Error, PATIENCE},
};

/// Requests per second: a wait is seen short by at most the time between two.
const PER_S: f64 = 10_000.0;
/// Between the end of a move and the next one.
const PAUSE: Duration = Duration::from_millis(2);
/// Between two tries.
const AGAIN: Duration = Duration::from_millis(1);
/// A request that waited for the shard was meant to go before the news of the move, or is the next one: who comes later finds the shard where it runs, and
/// waits for what has nothing to do with it.
const NEWS: Duration = Duration::from_nanos((1e9 / PER_S) as u64);

/// Moves: when each was asked for and when it was over, since the first request.
type Moves = Vec<(Duration, Duration)>;

/// The limit is a link that carries as much state there and one byte back, an entry being made for each entity.
pub fn measure(args: &BenchArgs, report: &mut Report) -> Result<(), Error> {
    let Two { cluster, region, other, all, .. } = &Two::start(args, &[("sharding.shards", "1")])?;
    let homes = [cluster.id(), homes::member(cluster, &other.addr)?];
    let mut next = usize::from(region.owner_of(all[0].key())? == Some(homes[0]));
    let load = Load { all, per_s: PER_S, limit: PATIENCE };
    report.sum("failed");
    report.rounds(
        "link round trip and copy of the state",
        args.runs(),
        || Ok(Run::of(&limits::copy(args.window() / 4, args.entities())?, None)),
        || {
            let (asked, moves) = load.during(|began| {
                let mut moves = Moves::new();
                while moves.is_empty() || began.elapsed() < args.window() {
                    // Before the first one as well: a load that has only just begun is none yet.
                    load::pause_until(Instant::now() + PAUSE);
                    moves.push(to(cluster, region, homes[next], began)?);
                    next = 1 - next;
                }
                Ok(moves)
            })?;
            let mut waits = limits::histogram();
            let mut lengths = limits::histogram();
            for (from, to) in &moves {
                let wait = load::longest(&asked, *from, *to + NEWS).ok_or("nothing was asked during a move")?;
                waits.saturating_record(wait.as_nanos() as u64);
                lengths.saturating_record((*to - *from).as_nanos() as u64);
            }
            let usual = load::latencies(&asked).value_at_quantile(0.5);
            let details = vec![
                ("moves", moves.len() as f64),
                ("move_p50_us", lengths.value_at_quantile(0.5) as f64 / 1e3),
                ("ask_p50_us", usual as f64 / 1e3),
                ("failed", load::failed(&asked)),
            ];
            Ok(Run { details, ..Run::of(&waits, None) })
        },
    )?;
    homes::check(all)
}

/// Moves the shard there and waits until it runs.
fn to(cluster: &Cluster, region: &Region<Bench>, home: NodeId, began: Instant) -> Result<(Duration, Duration), Error> {
    let (events, end) = (region.events(), Instant::now() + PATIENCE);
    let (from, epoch): (Duration, Epoch) = loop {
        let from = began.elapsed();
        match cluster.admin().move_shard::<Bench>(ShardId(0), home) {
            Ok(epoch) => break (from, epoch),
            // Its record of the move before may be confirmed a moment after the shard runs.
            Err(ActError::Refused(_)) if Instant::now() < end => load::pause_until(Instant::now() + AGAIN),
            Err(error) => return Err(error.into()),
        }
    };
    loop {
        match events.recv_deadline(end)? {
            Event::ShardMoved { epoch: reached, .. } if reached >= epoch => return Ok((from, began.elapsed())),
            _ => {}
        }
    }
}
