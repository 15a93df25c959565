//! `bench simulator`: events per second of one core, beside what its queue alone could do.

use std::{cmp::Reverse, collections::BinaryHeap, time::Instant};

use wingbeat::sim::{self, Options, Scenario};

use super::{BenchArgs, Error, report::Report, report::Run};

/// A cluster under load with moves and a crash: every kind of event, in the mix of a usual scenario.
const SCENARIO: &str = r#"
name = "bench"
nodes = 5
start_spread = "1s"
duration = "60s"
[workload]
entities = 100
shards = 20
senders = 5
rate = 500
from = "10s"
until = "55s"
[[at]]
time = "20s"
do = "move"
shards = "random:10"
to = "random:5"
[[at]]
time = "30s"
do = "crash"
nodes = "random:1"
"#;

/// Events that wait at a time in such a run, about.
const PENDING: usize = 256;

/// Runs seeds until the time is over.
pub fn measure(args: &BenchArgs) -> Result<Report, Error> {
    let scenario = Scenario::parse(SCENARIO, &[])?;
    let config =
        serde_json::json!({ "secs": args.secs, "runs": args.runs, "nodes": scenario.nodes, "virtual_s": scenario.duration.as_secs() });
    let mut report = Report::new("simulator", config);
    let mut seed = 0;
    for _ in 0..args.runs {
        report.limit("binary heap of times", Run { throughput: Some(heap(args.secs / 4.0)), ..Run::default() });
        let (began, mut events) = (Instant::now(), 0);
        while began.elapsed().as_secs_f64() < args.secs {
            seed += 1;
            let r = sim::run(&scenario, seed, &Options::default())?;
            if let Some(v) = r.violations.first() {
                return Err(format!("seed {seed} broke {}: {}", v.invariant, v.what).into());
            }
            events += r.events;
        }
        report.run(Run { throughput: Some(events as f64 / began.elapsed().as_secs_f64()), ..Run::default() });
    }
    Ok(report)
}

/// Events per second that only leave a queue and enter it again.
fn heap(secs: f64) -> f64 {
    let mut heap: BinaryHeap<Reverse<(u64, u64, u32)>> = (0..PENDING as u64).map(|i| Reverse((i * 7919 % 1_000_003, i, 0))).collect();
    let (began, mut events, mut draw) = (Instant::now(), 0u64, 1u64);
    while began.elapsed().as_secs_f64() < secs {
        for _ in 0..4096 {
            let Some(Reverse((at, _, slot))) = heap.pop() else { return 0.0 };
            draw = draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            events += 1;
            heap.push(Reverse((at + (draw >> 44), PENDING as u64 + events, slot)));
        }
    }
    std::hint::black_box(&heap);
    events as f64 / began.elapsed().as_secs_f64()
}
