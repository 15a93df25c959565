//! `bench rebalance`: a third node comes up beside two that run all shards. How long until it has its share, under load.

use std::time::Duration;

use wingbeat::MemberStatus;

use super::{
    BenchArgs,
    homes::{self, Two},
    limits,
    load::{self, Load},
    report::{Report, Run},
    rig::{Error, PATIENCE},
};

/// Requests per second.
const PER_S: f64 = 2000.0;
const NODES: usize = 3;

/// The limit is the time that the settings ask for: so many rounds as it takes to move a third of the shards, a part of them in each.
pub fn measure(args: &BenchArgs, report: &mut Report) -> Result<(), Error> {
    let two = Two::start(args, &[])?;
    let Two { cluster, region, all, .. } = &two;
    let load = Load { all, per_s: PER_S, limit: PATIENCE };
    let sharding = &cluster.config().sharding;
    let shards = homes::until_balanced(region, NODES - 1)?.values().sum();
    let rounds = rounds(shards, sharding.rebalance_absolute as usize, sharding.rebalance_relative);
    let asked_for = rounds as f64 * sharding.rebalance_interval.get().as_secs_f64();
    report.figure("seconds");
    report.sum("failed");
    report.rounds(
        "rounds that the settings ask for",
        args.runs(),
        || {
            let copy = limits::copy(args.window() / 8, args.entities() / NODES as u64)?;
            let details = vec![("rounds", rounds as f64), ("copy_of_the_state_p50_us", copy.value_at_quantile(0.5) as f64 / 1e3)];
            Ok(Run { details, ..Run::figure(asked_for) })
        },
        || {
            homes::until_balanced(region, NODES - 1)?;
            let (asked, (took, node, _comes)) = load.during(|began| {
                let comes = two.third()?;
                let node = homes::member(cluster, &comes.addr)?;
                let is_up = || cluster.view().member(node).is_some_and(|member| member.status == MemberStatus::Up);
                homes::until("the third node is up", || Ok(is_up().then_some(())))?;
                let from = began.elapsed();
                homes::until_balanced(region, NODES)?;
                Ok((began.elapsed() - from, node, comes))
            })?;
            cluster.admin().leave(node)?;
            homes::until_gone(cluster, node)?;
            let details = vec![
                ("failed", load::failed(&asked)),
                ("longest_wait_ms", load::longest(&asked, Duration::ZERO, Duration::MAX).unwrap_or_default().as_secs_f64() * 1e3),
            ];
            Ok(Run { details, ..Run::figure(took.as_secs_f64()) })
        },
    )?;
    homes::check(all)
}

/// Rounds in which a third of the shards moves, when a round moves at most so many, or such a share of them.
fn rounds(shards: usize, absolute: usize, relative: f64) -> usize {
    let in_a_round = ((shards as f64 * relative) as usize).min(absolute).max(1);
    (shards / NODES).div_ceil(in_a_round)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_keep_both_limits() {
        assert_eq!(rounds(100, 20, 0.1), 4);
        assert_eq!(rounds(1000, 20, 0.1), 17);
        assert_eq!(rounds(10, 20, 0.001), 3, "at least one in a round");
        assert_eq!(rounds(100, 65_536, 1.0), 1);
    }
}
