//! Messages and requests to entities of another process.

use std::{
    io::{BufRead, BufReader, Read, Write},
    process::{Child, Command, ExitCode, Stdio},
    time::{Duration, Instant},
};

use wingbeat::{AskError, Cluster, EntityRef, HostOptions};

use super::{
    BenchArgs, Error, PATIENCE,
    entity::{Bench, BenchEntity, Count, Echo, Payload},
    limits, local, node, report,
    report::{Report, Run},
};

/// The other process: hosts the entities until its standard input ends.
pub fn peer(args: &BenchArgs) -> ExitCode {
    let serve = || -> Result<(), Error> {
        let cluster = node(args, &[])?;
        let region = cluster.host::<BenchEntity>(HostOptions::new(), |_| BenchEntity::default())?;
        region.wait_ready(PATIENCE)?;
        println!("{}", cluster.addr());
        std::io::stdout().flush()?;
        // Ends when whoever measures ends, however that happens.
        std::io::stdin().read_to_end(&mut Vec::new())?;
        Ok(())
    };
    match serve() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}

/// A pair of processes: this one with a proxy, and one that hosts.
struct Pair {
    _cluster: Cluster,
    child: Child,
    all: Vec<EntityRef<Bench>>,
}

impl Drop for Pair {
    fn drop(&mut self) {
        // It may have ended already; there is nobody to tell if it cannot be ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn pair(args: &BenchArgs) -> Result<Pair, Error> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["bench", "peer"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    if let Some(idle) = &args.idle {
        command.args(["--idle", idle]);
    }
    let mut child = command.spawn()?;
    let mut first = String::new();
    BufReader::new(child.stdout.take().ok_or("the peer has no standard output")?).read_line(&mut first)?;
    let cluster = node(args, &[first.trim().to_owned()])?;
    let region = cluster.proxy::<Bench>()?;
    region.wait_ready(PATIENCE)?;
    let all: Vec<_> = (0..args.entities).map(|key| region.get(key)).collect();
    for entity in &all {
        entity.ask(Count, PATIENCE)?;
    }
    Ok(Pair { _cluster: cluster, child, all })
}

/// `remote-tell`.
pub fn tell(args: &BenchArgs) -> Result<Report, Error> {
    let pair = pair(args)?;
    let (mut report, window) = (report(args), Duration::from_secs_f64(args.secs));
    let mut total = 0;
    for _ in 0..args.runs {
        let throughput = Some(limits::raw_stream((args.secs * 2e7) as u64)?);
        report.limit("S_raw: framed TCP stream, 64 KiB writes", Run { throughput, ..Run::default() });
        let (run, allocated) = super::alloc::counted(|| local::tell_for(&pair.all, window));
        let (sent, took) = run?;
        total += sent;
        let allocations = Some(allocated as f64 / sent as f64);
        report.run(Run { throughput: Some(sent as f64 / took.as_secs_f64()), latency: None, allocations });
    }
    let seen = local::handled(&pair.all)?;
    if seen != total {
        return Err(format!("{total} messages were sent and {seen} handled").into());
    }
    Ok(report)
}

/// `remote-ask`.
pub fn ask(args: &BenchArgs) -> Result<Report, Error> {
    let pair = pair(args)?;
    let (mut report, window) = (report(args), Duration::from_secs_f64(args.secs));
    for _ in 0..args.runs {
        let limit = limits::ping_pong(window / 2)?;
        report.limit("R_spin: TCP ping-pong, both sides polling", Run::of(&limit, None));
        report.run(if args.window == 1 { local::ask_for(&pair.all, window)? } else { ask_many(&pair.all, args.window, window)? });
    }
    Ok(report)
}

/// Asks with `window` requests in flight: each answer lets the next request go.
fn ask_many(all: &[EntityRef<Bench>], in_flight: u32, window: Duration) -> Result<Run, Error> {
    let (tx, rx) = wingbeat::channel::unbounded::<(Instant, Result<Payload, AskError>)>();
    let (began, mut seen, mut sent, mut done) = (Instant::now(), limits::histogram(), 0u64, 0u64);
    let ask = |sent: u64| {
        let (tx, at) = (tx.clone(), Instant::now());
        all[(sent % all.len() as u64) as usize].ask_then(Echo(Payload([sent; 8])), PATIENCE, move |answer| drop(tx.send((at, answer))));
    };
    while done < sent || began.elapsed() < window {
        while sent - done < u64::from(in_flight) && began.elapsed() < window {
            ask(sent);
            sent += 1;
        }
        let Ok((at, answer)) = rx.recv_timeout(PATIENCE) else { return Err("no answer in time".into()) };
        answer?;
        seen.saturating_record(at.elapsed().as_nanos() as u64);
        done += 1;
    }
    Ok(Run::of(&seen, Some(done as f64 / began.elapsed().as_secs_f64())))
}
