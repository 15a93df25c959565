//! Messages and requests to entities of another process.

use std::time::Duration;

use wingbeat::{Cluster, EntityRef, Region};

use super::{
    BenchArgs,
    entity::{Bench, Told},
    limits, local, open_loop,
    peers::{self, Peer},
    report::{Report, Run},
    rig::{self, Error},
    scrape::{ADMIN, Calls},
    serde_entity::Derived,
};

/// A pair of processes: this one with a proxy, and one that hosts.
struct Pair<T: Told> {
    cluster: Cluster,
    _peer: Peer,
    region: Region<T>,
    all: Vec<EntityRef<T>>,
}

fn pair<T: Told>(args: &BenchArgs) -> Result<Pair<T>, Error> {
    let settings = args.settings();
    let peer = Peer::with(&settings, args.serde.then_some("--serde"))?;
    let cluster = rig::start(&peers::settings(args, &[ADMIN]), std::slice::from_ref(&peer.addr))?;
    let region = cluster.proxy::<T>()?;
    let all = rig::warm(&region, args.entities())?;
    Ok(Pair { cluster, _peer: peer, region, all })
}

/// The framed stream that throughput is compared with.
const STREAM: &str = "S_raw: framed TCP stream, 64 KiB writes";

fn stream(args: &BenchArgs) -> Result<Run, Error> {
    let throughput = Some(limits::raw_stream((args.secs() * 1e7) as u64)?);
    Ok(Run { throughput, ..Run::default() })
}

/// The round trip that latency is compared with.
pub fn trip(window: Duration) -> Result<Run, Error> {
    let seen = limits::ping_pong(window)?;
    let doubt = if limits::is_one_core() { None } else { limits::doubt(&seen) };
    Ok(Run { doubt, ..Run::of(&seen, None) })
}

/// `remote-tell`.
pub fn tell(args: &BenchArgs, report: &mut Report) -> Result<(), Error> {
    if args.serde { tell_to::<Derived>(args, report) } else { tell_to::<Bench>(args, report) }
}

fn tell_to<T: Told>(args: &BenchArgs, report: &mut Report) -> Result<(), Error> {
    let pair = pair::<T>(args)?;
    let mut total = 0;
    report.rounds(
        STREAM,
        args.runs(),
        || stream(args),
        || {
            let before = Calls::of(&pair.cluster)?;
            let (run, sent) = local::tell_for(&pair.all, (!args.single).then_some(&pair.region), args.window())?;
            total += sent;
            Ok(Run { details: Calls::of(&pair.cluster)?.per_message(&before, sent as f64), ..run })
        },
    )?;
    local::nothing_is_lost(&pair.all, total)
}

/// `remote-ask`.
pub fn ask(args: &BenchArgs, report: &mut Report) -> Result<(), Error> {
    let pair = pair::<Bench>(args)?;
    if let Some(rate) = args.rate {
        let rate = open_loop::rate_of(rate, &pair.all, args.window(), report)?;
        report.compare_tails();
        // What the machine itself does to requests at this rate: one stall of milliseconds delays all that are due meanwhile.
        let limit = || {
            let raw = Run::of(&limits::ping_pong_at_rate(args.window() / 2, rate)?, None);
            let [.., p999, longest] = raw.latency.unwrap_or_default().map(|ns| ns as f64 / 1e3);
            Ok(Run { details: vec![("at_this_rate_p999_us", p999), ("at_this_rate_longest_us", longest)], ..trip(args.window() / 2)? })
        };
        return report.rounds(limits::ping_pong_name(), args.runs(), limit, || open_loop::at_rate(&pair.all, rate, args.window()));
    }
    if args.window > 1 {
        return report.rounds(STREAM, args.runs(), || stream(args), || local::ask_many(&pair.all, args.window, args.window()));
    }
    report.rounds(
        limits::ping_pong_name(),
        args.runs(),
        || trip(args.window() / 2),
        || {
            let before = Calls::of(&pair.cluster)?;
            let run = local::ask_for(&pair.all, args.window())?;
            let asked = run.seen.as_ref().map_or(0, |seen| seen.len()) as f64;
            Ok(Run { details: Calls::of(&pair.cluster)?.per_message(&before, asked), ..run })
        },
    )
}
