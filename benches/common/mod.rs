//! The entity, the nodes and the raw limits of `wingbeat bench`, for criterion.
#![allow(dead_code, unused_imports)] // Each bench uses a part, and has no tests.

#[path = "../../src/bin/wingbeat/bench/entity.rs"]
pub mod entity;
#[path = "../../src/bin/wingbeat/bench/limits.rs"]
pub mod limits;
#[path = "../../src/bin/wingbeat/bench/one_core.rs"]
pub mod one_core;
#[path = "../../src/bin/wingbeat/bench/rig.rs"]
pub mod rig;

use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput};
use wingbeat::{EntityRef, Region};

use entity::{Bench, Echo, Payload};

/// Entities that messages go to, round robin.
pub const ENTITIES: u64 = 1000;

/// A step of the set-up or of a measurement that must not fail.
pub fn must<T>(result: Result<T, rig::Error>) -> T {
    result.unwrap_or_else(|error| panic!("the bench cannot go on: {error}"))
}

/// Time of so many pieces of work at that rate.
pub fn at_rate(n: u64, per_second: f64) -> Duration {
    Duration::from_secs_f64(n as f64 / per_second)
}

/// Notes, from the first send until all are handled.
pub fn tell(c: &mut Criterion, group: &str, all: &[EntityRef<Bench>], region: &Region<Bench>, mut limit: impl FnMut(u64) -> Duration) {
    let mut group = c.benchmark_group(group);
    group.throughput(Throughput::Elements(1)).sample_size(10).measurement_time(Duration::from_secs(5));
    group.bench_function(BenchmarkId::from_parameter("wingbeat"), |b| {
        b.iter_custom(|n| {
            let began = Instant::now();
            let mut teller = rig::Teller::new(all, Some(region.batch()));
            must(teller.tell(n));
            must(teller.finish());
            began.elapsed()
        });
    });
    group.bench_function(BenchmarkId::from_parameter("limit"), |b| b.iter_custom(&mut limit));
    group.finish();
}

/// Requests, one in flight.
pub fn ask(c: &mut Criterion, group: &str, all: &[EntityRef<Bench>], mut limit: impl FnMut(u64) -> Duration) {
    let mut group = c.benchmark_group(group);
    group.sample_size(10).measurement_time(Duration::from_secs(5));
    let mut i = 0;
    group.bench_function(BenchmarkId::from_parameter("wingbeat"), |b| {
        b.iter(|| {
            i += 1;
            must(all[(i % all.len() as u64) as usize].ask(Echo(Payload([i; 8])), rig::PATIENCE).map_err(Into::into))
        });
    });
    group.bench_function(BenchmarkId::from_parameter("limit"), |b| b.iter_custom(&mut limit));
    group.finish();
}
