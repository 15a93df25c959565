//! `bench growth`: what a node of a large cluster sends and does between two heartbeats, beside one of a small cluster. Simulated and counted, so
//! that nothing else on the machine changes it.

use wingbeat::{
    Config,
    sim::{self, Options, Scenario},
};

use super::{
    BenchArgs,
    report::{Report, Run},
    rig::Error,
};

/// Nodes of the small cluster, of one between, and of the large one.
const SIZES: [u32; 3] = [10, 100, 1000];
/// Virtual seconds of a run; the first of them form the cluster and count as well, in clusters of all sizes.
const VIRTUAL_S: u32 = 30;

/// What a node does between two of its heartbeats.
#[derive(Copy, Clone, PartialEq, Debug)]
struct PerBeat {
    /// Sent.
    bytes: f64,
    /// Datagrams that arrive and timers that fire.
    events: f64,
}

fn simulated(nodes: u32, seed: u64) -> Result<PerBeat, Error> {
    let text = format!("name = \"growth\"\nnodes = {nodes}\nstart_spread = \"1s\"\nduration = \"{VIRTUAL_S}s\"\n");
    let scenario = Scenario::parse(&text, &[])?;
    let result = sim::run(&scenario, seed, &Options::default())?;
    if let Some(violation) = result.violations.first() {
        return Err(format!("seed {seed} broke {} with {nodes} nodes: {}", violation.invariant, violation.what).into());
    }
    // The scenario sets no interval.
    let beat = Config::default().detector.heartbeat_interval.get().as_secs_f64();
    let bytes = result.bytes_per_node_per_s.mean.ok_or("the simulator counted no bytes")?;
    Ok(PerBeat { bytes: bytes * beat, events: result.events as f64 / f64::from(nodes) / result.virtual_s * beat })
}

/// A seed more with each round.
pub fn measure(args: &BenchArgs, report: &mut Report) -> Result<(), Error> {
    report.figure("bytes_per_node_per_heartbeat");
    let [small, between, large] = SIZES;
    let (mut small_seed, mut seed) = (0, 0);
    report.rounds(
        "10 nodes",
        args.runs(),
        || {
            small_seed += 1;
            let few = simulated(small, small_seed)?;
            Ok(Run { details: vec![("events", few.events)], ..Run::figure(few.bytes) })
        },
        || {
            seed += 1;
            let (few, some, many) = (simulated(small, seed)?, simulated(between, seed)?, simulated(large, seed)?);
            let details = vec![
                ("bytes_at_100", some.bytes),
                ("events_at_100", some.events),
                ("events_at_1000", many.events),
                ("events_growth", many.events / few.events),
                ("growth", (many.bytes / few.bytes).max(many.events / few.events)),
            ];
            Ok(Run { details, ..Run::figure(many.bytes) })
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_the_same_whenever_they_are_taken() {
        let once = simulated(3, 1).unwrap();
        assert_eq!(once, simulated(3, 1).unwrap());
        assert!(once.bytes > 0.0 && once.events > 0.0);
    }
}
