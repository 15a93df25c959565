//! Messages and requests to entities of another process.

use std::{
    io::{BufRead, BufReader, Read, Write},
    process::{Child, Command, ExitCode, Stdio},
    time::{Duration, Instant},
};

use wingbeat::{AskQueue, Cluster, EntityRef, HostOptions, Region};

use super::{
    BenchArgs, alloc,
    entity::{Bench, BenchEntity, Echo, Payload},
    limits, local, open_loop,
    report::{Report, Run},
    rig::{self, Error, PATIENCE},
};

/// The other process: hosts the entities until its standard input ends.
pub fn peer(args: &BenchArgs) -> ExitCode {
    let serve = || -> Result<(), Error> {
        let cluster = rig::start(&args.settings(), &[])?;
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
    region: Region<Bench>,
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
    command.args(["bench", "peer", "--idle", args.idle()]).stdin(Stdio::piped()).stdout(Stdio::piped());
    for (key, value) in &args.set {
        command.args(["--set", &format!("{key}={value}")]);
    }
    let mut child = command.spawn()?;
    let mut first = String::new();
    BufReader::new(child.stdout.take().ok_or("the peer has no standard output")?).read_line(&mut first)?;
    let cluster = rig::start(&args.settings(), &[first.trim().to_owned()])?;
    let region = cluster.proxy::<Bench>()?;
    let all = rig::warm(&region, args.entities())?;
    Ok(Pair { _cluster: cluster, child, region, all })
}

/// The framed stream that throughput is compared with.
const STREAM: &str = "S_raw: framed TCP stream, 64 KiB writes";

fn stream(args: &BenchArgs) -> Result<Run, Error> {
    let throughput = Some(limits::raw_stream((args.secs * 1e7) as u64)?);
    Ok(Run { throughput, ..Run::default() })
}

/// `remote-tell`.
pub fn tell(args: &BenchArgs, report: &mut Report) -> Result<(), Error> {
    let pair = pair(args)?;
    let mut total = 0;
    report.rounds(
        STREAM,
        args.runs,
        || stream(args),
        || {
            let (run, sent) = local::tell_for(&pair.all, (!args.single).then_some(&pair.region), args.window())?;
            total += sent;
            Ok(run)
        },
    )?;
    local::nothing_is_lost(&pair.all, total)
}

/// `remote-ask`.
pub fn ask(args: &BenchArgs, report: &mut Report) -> Result<(), Error> {
    let pair = pair(args)?;
    if let Some(rate) = args.rate {
        let rate = open_loop::rate_of(rate, &pair.all, args.window())?;
        report.compare_tails();
        return report.rounds(
            "R_spin: TCP ping-pong, both sides polling",
            args.runs,
            || Ok(Run::of(&limits::ping_pong(args.window() / 2)?, None)),
            || open_loop::at_rate(&pair.all, rate, args.window()),
        );
    }
    if args.window > 1 {
        return report.rounds(STREAM, args.runs, || stream(args), || ask_many(&pair.all, args.window, args.window()));
    }
    report.rounds(
        "R_spin: TCP ping-pong, both sides polling",
        args.runs,
        || Ok(Run::of(&limits::ping_pong(args.window() / 2)?, None)),
        || local::ask_for(&pair.all, args.window()),
    )
}

/// Asks with `window` requests in flight: each answer lets the next request go.
fn ask_many(all: &[EntityRef<Bench>], in_flight: u32, window: Duration) -> Result<Run, Error> {
    let queue = AskQueue::new(in_flight as usize);
    let mut seen = limits::histogram();
    let (result, allocated) = alloc::counted(|| {
        let (began, mut sent, mut done) = (Instant::now(), 0u64, 0u64);
        let mut at = vec![began; in_flight as usize];
        let (mut free, mut answers) = ((0..u64::from(in_flight)).collect::<Vec<u64>>(), Vec::with_capacity(in_flight as usize));
        let due = |began: Instant| began.elapsed() < window;
        while done < sent || due(began) {
            while let Some(tag) = free.pop_if(|_| due(began)) {
                at[tag as usize] = Instant::now();
                all[(sent % all.len() as u64) as usize].ask_into(Echo(Payload([sent; 8])), PATIENCE, tag, &queue)?;
                sent += 1;
            }
            if queue.wait(&mut answers, PATIENCE) == 0 {
                return Err("no answer in time".into());
            }
            for answer in answers.drain(..) {
                answer.result?;
                seen.saturating_record(at[answer.tag as usize].elapsed().as_nanos() as u64);
                free.push(answer.tag);
                done += 1;
            }
        }
        Ok::<_, Error>((done, began.elapsed()))
    });
    let (done, took) = result?;
    let allocations = Some(allocated as f64 / done as f64);
    Ok(Run { allocations, ..Run::of(&seen, Some(done as f64 / took.as_secs_f64())) })
}
