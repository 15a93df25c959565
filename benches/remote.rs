//! Messages and requests between two nodes of one process over TCP on loopback: groups `remote-tell` and `remote-ask`, each beside its raw limit.
//!
//! `wingbeat bench remote-...` measures the same between two processes.
#![allow(missing_docs)] // Written by criterion's macros.

mod common;

use std::time::Duration;

use common::{
    ENTITIES, at_rate,
    entity::{Bench, BenchEntity},
    limits, must, rig,
};
use criterion::{Criterion, criterion_group, criterion_main};
use wingbeat::HostOptions;

fn remote(c: &mut Criterion) {
    let home = must(rig::start(&[], &[]));
    let hosted = must(home.host::<BenchEntity>(HostOptions::new(), |_| BenchEntity::default()).map_err(Into::into));
    must(hosted.wait_ready(rig::PATIENCE).map_err(Into::into));
    let away = must(rig::start(&[], &[home.addr().to_string()]));
    let region = must(away.proxy::<Bench>().map_err(Into::into));
    let all = must(rig::warm(&region, ENTITIES));
    common::tell(c, "remote-tell", &all, &region, |n| at_rate(n, must(limits::raw_stream(n).map_err(Into::into))));
    common::ask(c, "remote-ask", &all, |n| {
        let seen = must(limits::ping_pong(Duration::from_millis(50)));
        Duration::from_nanos(seen.value_at_quantile(0.5)) * u32::try_from(n).unwrap_or(u32::MAX)
    });
}

criterion_group!(benches, remote);
criterion_main!(benches);
