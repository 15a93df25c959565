//! `bench simulator`: events per second of one core, beside what its queue alone could do.

use std::{
    cmp::Reverse,
    collections::BinaryHeap,
    time::{Duration, Instant},
};

use wingbeat::sim::{self, Options, Scenario};

use super::{
    BenchArgs,
    report::{Report, Run},
    rig::Error,
};

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

/// Runs seed after seed.
pub fn measure(args: &BenchArgs, report: &mut Report) -> Result<(), Error> {
    let scenario = Scenario::parse(SCENARIO, &[])?;
    let mut seed = 0;
    report.rounds(
        "binary heap of times",
        args.runs(),
        || Ok(Run { throughput: Some(heap(args.window() / 4)), ..Run::default() }),
        || {
            let (began, mut events) = (Instant::now(), 0);
            while began.elapsed() < args.window() {
                seed += 1;
                let r = sim::run(&scenario, seed, &Options::default())?;
                if let Some(v) = r.violations.first() {
                    return Err(format!("seed {seed} broke {}: {}", v.invariant, v.what).into());
                }
                events += r.events;
            }
            Ok(Run { throughput: Some(events as f64 / began.elapsed().as_secs_f64()), ..Run::default() })
        },
    )
}

/// Events per second that only leave a queue and enter it again.
fn heap(window: Duration) -> f64 {
    let mut heap: BinaryHeap<Reverse<(u64, u64, u32)>> = (0..PENDING as u64).map(|i| Reverse((i * 7919 % 1_000_003, i, 0))).collect();
    let (began, mut events, mut draw) = (Instant::now(), 0u64, 1u64);
    while began.elapsed() < window {
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
