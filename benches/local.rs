//! Messages and requests within one node: groups `local-tell` and `local-ask`, each beside its raw limit.
#![allow(missing_docs)] // Written by criterion's macros.

mod common;

use std::time::Duration;

use common::{ENTITIES, at_rate, entity::BenchEntity, limits, must, rig};
use criterion::{Criterion, criterion_group, criterion_main};
use wingbeat::HostOptions;

fn local(c: &mut Criterion) {
    let cluster = must(rig::start(&[], &[]));
    let region = must(cluster.host::<BenchEntity>(HostOptions::new(), |_| BenchEntity::default()).map_err(Into::into));
    let all = must(rig::warm(&region, ENTITIES));
    common::tell(c, "local-tell", &all, &region, |n| at_rate(n, limits::channel_tell(n, ENTITIES)));
    common::ask(c, "local-ask", &all, |n| {
        let seen = limits::channel_ask(Duration::from_millis(50), ENTITIES);
        Duration::from_nanos(seen.value_at_quantile(0.5)) * u32::try_from(n).unwrap_or(u32::MAX)
    });
}

criterion_group!(benches, local);
criterion_main!(benches);
