//! What a measurement says: medians over runs, the spread, the limit beside them, and the machine.

use std::fmt;

use hdrhistogram::Histogram;
use serde_json::{Value, json};

use super::rig::Error;

/// One run of the thing measured, or of its limit.
#[derive(Clone, Debug, Default)]
pub struct Run {
    /// Messages per second.
    pub throughput: Option<f64>,
    /// Nanoseconds: p50, p90, p99, p99.9, highest.
    pub latency: Option<[u64; 5]>,
    /// Allocations of the whole process per message.
    pub allocations: Option<f64>,
}

impl Run {
    /// Latencies, with the throughput that they mean for one in flight or many.
    pub fn of(seen: &Histogram<u64>, throughput: Option<f64>) -> Self {
        let q = |p| seen.value_at_quantile(p);
        Self { throughput, latency: Some([q(0.5), q(0.9), q(0.99), q(0.999), seen.max()]), allocations: None }
    }
}

/// A run of the limit and one of the thing measured, right behind it.
struct Round {
    limit: Run,
    ours: Run,
    /// Share of the machine that others used meanwhile.
    foreign: Option<f64>,
}

impl Round {
    fn is_void(&self) -> bool {
        self.foreign.is_some_and(|f| f > FOREIGN_MAX)
    }
}

/// All runs of one measurement.
pub struct Report {
    name: &'static str,
    config: Value,
    limit: &'static str,
    rounds: Vec<Round>,
    /// Rounds asked for.
    wanted: usize,
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    (!values.is_empty()).then(|| values[values.len() / 2])
}

/// Foreign load above this voids a round, as a share of all cores.
const FOREIGN_MAX: f64 = 0.15;

impl Report {
    /// A report without runs.
    pub fn new(name: &'static str, config: Value) -> Self {
        Self { name, config, limit: "", rounds: vec![], wanted: 0 }
    }

    /// Measures limit and thing in turns until `runs` rounds were quiet, at most twice as often.
    pub fn rounds(
        &mut self,
        limit_name: &'static str,
        runs: u32,
        mut limit: impl FnMut() -> Result<Run, Error>,
        mut ours: impl FnMut() -> Result<Run, Error>,
    ) -> Result<(), Error> {
        (self.limit, self.wanted) = (limit_name, runs as usize);
        while self.quiet() < self.wanted && self.rounds.len() < 2 * self.wanted {
            let load = Load::now();
            let (limit, ours) = (limit()?, ours()?);
            let foreign = load.and_then(|l| l.foreign_since());
            self.rounds.push(Round { limit, ours, foreign });
        }
        Ok(())
    }

    fn quiet(&self) -> usize {
        self.rounds.iter().filter(|r| !r.is_void()).count()
    }

    /// Too few rounds were quiet: the figures are those of all rounds, and prove nothing.
    fn is_void(&self) -> bool {
        self.quiet() < self.wanted.min(5)
    }

    fn counted(&self) -> impl Iterator<Item = &Round> {
        let all = self.is_void();
        self.rounds.iter().filter(move |r| all || !r.is_void())
    }

    fn ours(&self) -> Vec<Run> {
        self.counted().map(|r| r.ours.clone()).collect()
    }

    fn limits(&self) -> Vec<Run> {
        self.counted().map(|r| r.limit.clone()).collect()
    }

    fn median_of(runs: &[Run], f: impl Fn(&Run) -> Option<f64>) -> Option<f64> {
        median(runs.iter().filter_map(f).collect())
    }

    fn latency(runs: &[Run], at: usize) -> Option<u64> {
        Self::median_of(runs, |r| r.latency.map(|l| l[at] as f64)).map(|v| v as u64)
    }

    /// Ours to the limit, round by round, then the median: median latency where the limit has one, else throughput.
    fn ratio(&self) -> Option<f64> {
        let of = |round: &Round| match (&round.ours, &round.limit) {
            (Run { latency: Some(ours), .. }, Run { latency: Some(limit), .. }) => Some(ours[0] as f64 / limit[0] as f64),
            (Run { throughput: Some(ours), .. }, Run { throughput: Some(limit), .. }) => Some(ours / limit),
            _ => None,
        };
        median(self.counted().filter_map(of).collect())
    }

    /// Largest deviation of a run from the median, as a share of it.
    fn spread(&self) -> Option<f64> {
        let of = |r: &Run| r.latency.map(|l| l[0] as f64).or(r.throughput);
        let ours = self.ours();
        let middle = Self::median_of(&ours, of)?;
        let far = ours.iter().filter_map(of).map(|v| (v - middle).abs() / middle).fold(0.0, f64::max);
        Some(far)
    }

    /// Median over the counted rounds.
    fn foreign(&self) -> Option<f64> {
        median(self.counted().filter_map(|r| r.foreign).collect())
    }

    /// Object of the contract of `bench --json`.
    pub fn to_json(&self) -> Value {
        let throughput = |runs: &[Run]| Self::median_of(runs, |r| r.throughput).map(f64::round);
        let (ours, limits) = (self.ours(), self.limits());
        json!({
            "name": self.name,
            "config": self.config,
            "throughput_per_s": throughput(&ours),
            "latency_ns": {
                "p50": Self::latency(&ours, 0), "p90": Self::latency(&ours, 1), "p99": Self::latency(&ours, 2),
                "p999": Self::latency(&ours, 3), "max": Self::latency(&ours, 4),
            },
            "limit": {
                "name": self.limit,
                "throughput_per_s": throughput(&limits),
                "latency_ns": { "p50": Self::latency(&limits, 0), "p99": Self::latency(&limits, 2) },
            },
            "ratio": self.ratio(),
            "spread": self.spread(),
            "allocations_per_message": Self::median_of(&ours, |r| r.allocations),
            "void": self.is_void(),
            "rounds": { "measured": self.rounds.len(), "void": self.rounds.len() - self.quiet() },
            "environment": environment(self.foreign()),
        })
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let us = |ns: Option<u64>| ns.map_or_else(|| "-".into(), |ns| format!("{:.1} us", ns as f64 / 1e3));
        let rate = |runs: &[Run]| Self::median_of(runs, |r| r.throughput).map_or_else(|| "-".into(), |t| format!("{:.0}/s", t));
        let (ours, limits) = (self.ours(), self.limits());
        let line =
            |runs: &[Run]| format!("{:>14}  p50 {:>9}  p99 {:>9}", rate(runs), us(Self::latency(runs, 0)), us(Self::latency(runs, 2)));
        writeln!(f, "{:<24}{}", self.name, line(&ours))?;
        writeln!(f, "{:<24}{}", format!("limit {}", self.limit), line(&limits))?;
        let share = |x: Option<f64>| x.map_or_else(|| "-".into(), |x| format!("{x:.3}"));
        writeln!(f, "ratio {}, spread {}, medians of {} runs", share(self.ratio()), share(self.spread()), ours.len())?;
        if let Some(allocations) = Self::median_of(&ours, |r| r.allocations) {
            writeln!(f, "allocations per message {allocations:.2}")?;
        }
        if self.is_void() {
            let load = self.foreign().unwrap_or(0.0) * 100.0;
            writeln!(f, "void: others used {load:.0} % of the machine in the median round; repeat it when it is quiet")?;
        }
        Ok(())
    }
}

/// What the machine and this program have used so far.
struct Load {
    busy: u64,
    total: u64,
    own: u64,
}

impl Load {
    fn now() -> Option<Self> {
        let (busy, total) = busy_and_total()?;
        Some(Self { busy, total, own: own_ticks() })
    }

    /// Share of the machine that others used since then.
    fn foreign_since(&self) -> Option<f64> {
        let now = Self::now()?;
        let total = now.total.checked_sub(self.total).filter(|t| *t > 0)?;
        Some(now.busy.saturating_sub(self.busy).saturating_sub(now.own.saturating_sub(self.own)) as f64 / total as f64)
    }
}

/// Ticks that the machine was busy, and all ticks, since it started.
fn busy_and_total() -> Option<(u64, u64)> {
    let stat = std::fs::read_to_string("/proc/stat").ok()?;
    let fields: Vec<u64> = stat.lines().next()?.split_whitespace().skip(1).map_while(|n| n.parse().ok()).take(8).collect();
    let (total, idle) = (fields.iter().sum::<u64>(), fields.get(3)? + fields.get(4)?);
    Some((total - idle, total))
}

/// Ticks that this process and its ended children have used.
fn own_ticks() -> u64 {
    let own = |pid: &str| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let rest = stat.rsplit_once(')')?.1;
        Some(rest.split_whitespace().skip(11).take(4).filter_map(|n| n.parse::<u64>().ok()).sum::<u64>())
    };
    let children = std::fs::read_to_string(format!("/proc/self/task/{}/children", std::process::id())).unwrap_or_default();
    own("self").unwrap_or(0) + children.split_whitespace().filter_map(own).sum::<u64>()
}

fn environment(foreign: Option<f64>) -> Value {
    let cpu = std::fs::read_to_string("/proc/cpuinfo").ok();
    let model =
        cpu.as_deref().and_then(|c| c.lines().find_map(|l| l.strip_prefix("model name"))).map(|l| l.trim_start_matches([' ', '\t', ':']));
    json!({
        "cpu": model,
        "cores": std::thread::available_parallelism().map_or(0, usize::from),
        "os": std::env::consts::OS,
        "arch": std::env::consts::ARCH,
        "version": env!("CARGO_PKG_VERSION"),
        "debug_build": cfg!(debug_assertions),
        "foreign_load": foreign,
    })
}
