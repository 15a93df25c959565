//! `bench leave`: one of three nodes leaves in order while all entities are asked through another one. What the asking one notices.

use std::cell::RefCell;

use super::{
    BenchArgs,
    homes::{self, Two},
    load::{self, Load},
    peers::Peer,
    report::{Report, Run},
    rig::{Error, PATIENCE},
};

/// Requests per second.
const PER_S: f64 = 10_000.0;
/// A new node has its shards after one round, so that rounds of the measurement are short; what leaves is not slowed by either.
const SETTINGS: &[(&str, &str)] = &[("sharding.rebalance_absolute", "65536"), ("sharding.rebalance_relative", "1.0")];

/// The limit is the same requests while nobody leaves. The oldest node, which gives out the shards, is the one that asks and stays.
pub fn measure(args: &BenchArgs, report: &mut Report) -> Result<(), Error> {
    let two = Two::start(args, SETTINGS)?;
    let Two { cluster, region, all, .. } = &two;
    let load = Load { all, per_s: PER_S, limit: PATIENCE };
    let leaver: RefCell<Option<Peer>> = RefCell::new(None);
    report.sum("failed");
    report.rounds(
        "the same requests while nobody leaves",
        args.runs(),
        || {
            let peer = two.third()?;
            homes::until_balanced(region, 3)?;
            leaver.replace(Some(peer));
            Ok(Run::of(&load::latencies(&load.alone(args.window() / 2)?), None))
        },
        || {
            let peer = leaver.take().ok_or("the third node was not started")?;
            let node = homes::member(cluster, &peer.addr)?;
            let held = homes::until_balanced(region, 3)?.get(&node).copied().unwrap_or(0);
            let (asked, (from, to)) = load.during(|began| {
                let from = began.elapsed();
                cluster.admin().leave(node)?;
                homes::until_gone(cluster, node)?;
                Ok((from, began.elapsed()))
            })?;
            let waits = load::latencies(asked.iter().filter(|ask| ask.meant >= from));
            let details = vec![
                ("failed", load::failed(&asked)),
                ("asked", asked.len() as f64),
                ("shards_handed_over", held as f64),
                ("left_after_ms", (to - from).as_secs_f64() * 1e3),
            ];
            Ok(Run { details, ..Run::of(&waits, None) })
        },
    )?;
    homes::check(all)
}
