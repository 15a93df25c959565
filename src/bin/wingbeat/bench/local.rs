//! Messages and requests within one node.

use std::time::{Duration, Instant};

use wingbeat::{EntityRef, HostOptions};

use super::{
    BenchArgs, Error, PATIENCE, alloc,
    entity::{Bench, BenchEntity, Count, Echo, Note, Payload},
    limits, node, report,
    report::{Report, Run},
};

/// References to all measured entities, each of them live.
fn entities(args: &BenchArgs, region: &wingbeat::Region<Bench>) -> Result<Vec<EntityRef<Bench>>, Error> {
    region.wait_ready(PATIENCE)?;
    let all: Vec<_> = (0..args.entities).map(|key| region.get(key)).collect();
    for entity in &all {
        entity.ask(Count, PATIENCE)?;
    }
    Ok(all)
}

/// Sends notes round robin for about `window`, then waits until all were handled: how many, and in which time.
pub fn tell_for(all: &[EntityRef<Bench>], window: Duration) -> Result<(u64, Duration), Error> {
    let (began, mut sent) = (Instant::now(), 0u64);
    while began.elapsed() < window {
        for _ in 0..64 {
            let entity = &all[(sent % all.len() as u64) as usize];
            entity.tell_within(Note(Payload([sent; 8])), PATIENCE).map_err(|e| e.to_string())?;
            sent += 1;
        }
    }
    // Behind all notes in order: when the last entities have answered, everything before was handled.
    for entity in all {
        entity.ask(Count, PATIENCE)?;
    }
    Ok((sent, began.elapsed()))
}

/// How many notes all entities have handled.
pub fn handled(all: &[EntityRef<Bench>]) -> Result<u64, Error> {
    let mut sum = 0;
    for entity in all {
        sum += entity.ask(Count, PATIENCE)?;
    }
    Ok(sum)
}

/// `local-tell`.
pub fn tell(args: &BenchArgs) -> Result<Report, Error> {
    let cluster = node(args, &[])?;
    let region = cluster.host::<BenchEntity>(HostOptions::new(), |_| BenchEntity::default())?;
    let all = entities(args, &region)?;
    let (mut report, window) = (report(args), Duration::from_secs_f64(args.secs));
    let mut total = 0;
    for _ in 0..args.runs {
        let throughput = Some(limits::channel_tell((args.secs * 5e6) as u64, args.entities));
        report.limit("Q_xb: crossbeam channel with entity look-up", Run { throughput, ..Run::default() });
        let (run, allocated) = alloc::counted(|| tell_for(&all, window));
        let (sent, took) = run?;
        total += sent;
        report.run(Run {
            throughput: Some(sent as f64 / took.as_secs_f64()),
            latency: None,
            allocations: Some(allocated as f64 / sent as f64),
        });
    }
    let seen = handled(&all)?;
    if seen != total {
        return Err(format!("{total} messages were sent and {seen} handled").into());
    }
    Ok(report)
}

/// Asks round robin, one in flight, for `window`.
pub fn ask_for(all: &[EntityRef<Bench>], window: Duration) -> Result<Run, Error> {
    let (began, mut seen, mut i) = (Instant::now(), limits::histogram(), 0u64);
    while began.elapsed() < window {
        let sent = Instant::now();
        let back = all[(i % all.len() as u64) as usize].ask(Echo(Payload([i; 8])), PATIENCE)?;
        seen.saturating_record(sent.elapsed().as_nanos() as u64);
        if back.0 != [i; 8] {
            return Err(format!("request {i} got the answer of another: {:?}", back.0).into());
        }
        i += 1;
    }
    Ok(Run::of(&seen, Some(i as f64 / began.elapsed().as_secs_f64())))
}

/// `local-ask`.
pub fn ask(args: &BenchArgs) -> Result<Report, Error> {
    let cluster = node(args, &[])?;
    let region = cluster.host::<BenchEntity>(HostOptions::new(), |_| BenchEntity::default())?;
    let all = entities(args, &region)?;
    let (mut report, window) = (report(args), Duration::from_secs_f64(args.secs));
    for _ in 0..args.runs {
        let limit = limits::channel_ask(window / 2, args.entities);
        report.limit("X_ask: crossbeam channels with entity look-up", Run::of(&limit, None));
        report.run(ask_for(&all, window)?);
    }
    Ok(report)
}
