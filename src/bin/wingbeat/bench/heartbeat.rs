//! `bench heartbeat-delay`: how late heartbeats leave while a link carries all that it can.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use hdrhistogram::Histogram;
use wingbeat::{Cluster, HostOptions};

use super::{
    BenchArgs,
    entity::{Bench, BenchEntity},
    limits, local,
    peers::{self, Settings},
    report::{Report, Run},
    rig::{self, Error},
    scrape::{ADMIN, Page},
};

/// Heartbeats come so often that a run of seconds has enough of them for a percentile of three nines; what follows the interval keeps its usual
/// length, so that nobody is accused for a hiccup of the machine.
const BEAT: Duration = Duration::from_millis(10);
/// Seconds of a round, and at least so many in `all`: of fewer than a thousand timers the 99.9th percentile is the latest one, and the median over rounds a
/// middle one of latest ones. Nodes show no more than percentiles of their timers, which cannot be put together behind the rounds.
pub const SECS: f64 = 10.0;
const SETTINGS: &[(&str, &str)] = &[
    ("detector.heartbeat_interval", "10ms"),
    ("detector.acceptable_pause", "3s"),
    ("detector.first_interval", "1s"),
    ("sharding.lease", "10s"),
    ("sharding.lease_margin", "2s"),
    ADMIN,
];

/// The limit is a thread that does nothing but wake up as often, while a plain TCP stream takes all that it can.
pub fn measure(args: &BenchArgs, report: &mut Report) -> Result<(), Error> {
    let settings = peers::settings(args, SETTINGS);
    report.compare_p999();
    report.rounds(
        "a thread's timer beside a TCP stream",
        args.runs(),
        || {
            let timer = Run::of(&timer_beside_stream(args.window())?, None);
            let details = timer.latency.iter().map(|latency| ("p999_ms", latency[3] as f64 / 1e6)).collect();
            Ok(Run { details, ..timer })
        },
        || beats(args, &settings),
    )
}

/// How late a thread wakes up that wants to every [`BEAT`], while a stream is written and read as fast as it goes.
fn timer_beside_stream(window: Duration) -> Result<Histogram<u64>, Error> {
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let timer = scope.spawn(|| {
            let (mut seen, mut due) = (limits::histogram(), Instant::now() + BEAT);
            while !ended.load(Ordering::Acquire) {
                super::load::pause_until(due);
                seen.saturating_record(due.elapsed().as_nanos() as u64);
                due += BEAT;
            }
            seen
        });
        let began = Instant::now();
        let mut streamed = Ok(0.0);
        while streamed.is_ok() && began.elapsed() < window {
            streamed = limits::raw_stream(1_000_000);
        }
        ended.store(true, Ordering::Release);
        let seen = timer.join().map_err(|_| "the timer's thread panicked")?;
        streamed.map(|_| seen).map_err(Error::from)
    })
}

/// A new pair of nodes, told as much as it takes from the moment at which it has formed: what they counted over their lives.
fn beats(args: &BenchArgs, settings: &Settings) -> Result<Run, Error> {
    let there = rig::start(settings, &[])?;
    there.host::<BenchEntity>(HostOptions::new(), |_| BenchEntity::default())?;
    let here = rig::start(settings, &[there.addr().to_string()])?;
    let region = here.proxy::<Bench>()?;
    let all = rig::warm(&region, args.entities())?;
    let (told, sent) = local::tell_for(&all, Some(&region), args.window())?;
    local::nothing_is_lost(&all, sent)?;
    let (mine, theirs) = (Delays::of(&here)?, Delays::of(&there)?);
    let worse = |f: fn(&Delays) -> u64| f(&mine).max(f(&theirs));
    let latency = [worse(|d| d.p50), worse(|d| d.p90), worse(|d| d.p99), worse(|d| d.p999), worse(|d| d.max)];
    let details = vec![
        ("told_per_s", told.throughput.unwrap_or(0.0)),
        ("timers", mine.count.min(theirs.count) as f64),
        ("mean_us", mine.mean_us.max(theirs.mean_us)),
        ("p999_ms", latency[3] as f64 / 1e6),
        // Whether it is one turn that takes long, or the thread that does not get a core.
        ("turn_p999_ms", mine.turn_p999_ms.max(theirs.turn_p999_ms)),
        ("turn_max_ms", mine.turn_max_ms.max(theirs.turn_max_ms)),
    ];
    Ok(Run { latency: Some(latency), details, ..Run::default() })
}

/// How late a node's timers were, in nanoseconds.
#[derive(Copy, Clone, PartialEq, Debug)]
struct Delays {
    count: u64,
    mean_us: f64,
    p50: u64,
    p90: u64,
    p99: u64,
    p999: u64,
    max: u64,
    /// Turns of the network thread.
    turn_p999_ms: f64,
    turn_max_ms: f64,
}

impl Delays {
    fn of(cluster: &Cluster) -> Result<Self, Error> {
        Self::read(&Page::of(cluster)?).ok_or_else(|| "the page of metrics has no network_timer_delay_seconds".into())
    }

    fn read(page: &Page) -> Option<Self> {
        let sample = |rest: &str| page.value(&format!("network_timer_delay_seconds{rest}"));
        let at = |quantile: &str| Some((sample(&format!("{{quantile=\"{quantile}\"}}"))? * 1e9) as u64);
        let turn = |quantile: &str| {
            let seconds = page.value(&format!("network_turn_duration_seconds{{quantile=\"{quantile}\"}}"));
            seconds.map_or(0.0, |seconds| seconds * 1e3)
        };
        let (count, sum) = (sample("_count")?, sample("_sum")?);
        (count > 0.0).then_some(())?;
        Some(Self {
            count: count as u64,
            mean_us: sum / count * 1e6,
            p50: at("0.5")?,
            p90: at("0.9")?,
            p99: at("0.99")?,
            p999: at("0.999")?,
            max: at("1")?,
            turn_p999_ms: turn("0.999"),
            turn_max_ms: turn("1"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_are_read_from_the_page() {
        let page = "# HELP x\nwingbeat_network_timer_delay_seconds{quantile=\"0.5\"} 0.0001\n\
                    wingbeat_network_timer_delay_seconds{quantile=\"0.9\"} 0.0002\nwingbeat_network_timer_delay_seconds{quantile=\"0.99\"} 0.002\n\
                    wingbeat_network_timer_delay_seconds{quantile=\"0.999\"} 0.004\nwingbeat_network_timer_delay_seconds{quantile=\"1\"} 0.005\nwingbeat_network_timer_delay_seconds_sum 0.2\n\
                    wingbeat_network_timer_delay_seconds_count 1000\n";
        let delays = Delays::read(&Page(page.into())).unwrap();
        assert_eq!((delays.count, delays.p50, delays.p999), (1000, 100_000, 4_000_000));
        assert_eq!(Delays::read(&Page("wingbeat_network_timer_delay_seconds_count 0\n".into())), None);
    }
}
