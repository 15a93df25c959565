//! What a measurement says: medians over runs, the spread, the limit beside them, and the machine.

use std::fmt;

use hdrhistogram::Histogram;
use serde_json::{Value, json};

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

/// All runs of one measurement.
pub struct Report {
    name: &'static str,
    config: Value,
    limit: &'static str,
    ours: Vec<Run>,
    limits: Vec<Run>,
    foreign_before: Option<(u64, u64)>,
    own_before: u64,
    void: Option<String>,
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    (!values.is_empty()).then(|| values[values.len() / 2])
}

/// Foreign load above this voids a figure, as a share of all cores.
const FOREIGN_MAX: f64 = 0.15;

impl Report {
    /// A report without runs.
    pub fn new(name: &'static str, config: Value) -> Self {
        Self {
            name,
            config,
            limit: "",
            ours: vec![],
            limits: vec![],
            foreign_before: busy_and_total(),
            own_before: own_ticks(),
            void: None,
        }
    }

    /// Adds a run of the limit.
    pub fn limit(&mut self, name: &'static str, run: Run) {
        self.limit = name;
        self.limits.push(run);
    }

    /// Adds a run of the thing measured.
    pub fn run(&mut self, run: Run) {
        self.ours.push(run);
    }

    fn median_of(runs: &[Run], f: impl Fn(&Run) -> Option<f64>) -> Option<f64> {
        median(runs.iter().filter_map(f).collect())
    }

    fn latency(runs: &[Run], at: usize) -> Option<u64> {
        Self::median_of(runs, |r| r.latency.map(|l| l[at] as f64)).map(|v| v as u64)
    }

    /// Ours to the limit: throughput where the limit has one, else median latency.
    fn ratio(&self) -> Option<f64> {
        let throughput = |runs: &[Run]| Self::median_of(runs, |r| r.throughput);
        match (throughput(&self.ours), throughput(&self.limits), Self::latency(&self.ours, 0), Self::latency(&self.limits, 0)) {
            (_, _, Some(ours), Some(limit)) if limit > 0 => Some(ours as f64 / limit as f64),
            (Some(ours), Some(limit), ..) if limit > 0.0 => Some(ours / limit),
            _ => None,
        }
    }

    /// Largest deviation of a run from the median, as a share of it.
    fn spread(&self) -> Option<f64> {
        let of = |r: &Run| r.latency.map(|l| l[0] as f64).or(r.throughput);
        let middle = Self::median_of(&self.ours, of)?;
        let far = self.ours.iter().filter_map(of).map(|v| (v - middle).abs() / middle).fold(0.0, f64::max);
        Some(far)
    }

    /// Share of the machine that others used since the report was begun.
    fn foreign(&self) -> Option<f64> {
        let ((busy0, total0), (busy1, total1)) = (self.foreign_before?, busy_and_total()?);
        let total = total1.checked_sub(total0).filter(|t| *t > 0)?;
        let own = own_ticks() - self.own_before;
        Some((busy1 - busy0).saturating_sub(own) as f64 / total as f64)
    }

    fn void(&self) -> Option<String> {
        self.void.clone().or_else(|| {
            let foreign = self.foreign()?;
            (foreign > FOREIGN_MAX)
                .then(|| format!("other processes used {:.0} % of the machine; repeat it when it is quiet", foreign * 100.0))
        })
    }

    /// Object of the contract of `bench --json`.
    pub fn to_json(&self) -> Value {
        let throughput = |runs: &[Run]| Self::median_of(runs, |r| r.throughput).map(f64::round);
        json!({
            "name": self.name,
            "config": self.config,
            "throughput_per_s": throughput(&self.ours),
            "latency_ns": {
                "p50": Self::latency(&self.ours, 0), "p90": Self::latency(&self.ours, 1), "p99": Self::latency(&self.ours, 2),
                "p999": Self::latency(&self.ours, 3), "max": Self::latency(&self.ours, 4),
            },
            "limit": {
                "name": self.limit,
                "throughput_per_s": throughput(&self.limits),
                "latency_ns": { "p50": Self::latency(&self.limits, 0), "p99": Self::latency(&self.limits, 2) },
            },
            "ratio": self.ratio(),
            "spread": self.spread(),
            "allocations_per_message": Self::median_of(&self.ours, |r| r.allocations),
            "void": self.void(),
            "environment": environment(self.foreign()),
        })
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let us = |ns: Option<u64>| ns.map_or_else(|| "-".into(), |ns| format!("{:.1} us", ns as f64 / 1e3));
        let rate = |runs: &[Run]| Self::median_of(runs, |r| r.throughput).map_or_else(|| "-".into(), |t| format!("{:.0}/s", t));
        let line =
            |runs: &[Run]| format!("{:>14}  p50 {:>9}  p99 {:>9}", rate(runs), us(Self::latency(runs, 0)), us(Self::latency(runs, 2)));
        writeln!(f, "{:<24}{}", self.name, line(&self.ours))?;
        writeln!(f, "{:<24}{}", format!("limit {}", self.limit), line(&self.limits))?;
        let share = |x: Option<f64>| x.map_or_else(|| "-".into(), |x| format!("{x:.3}"));
        writeln!(f, "ratio {}, spread {}, medians of {} runs", share(self.ratio()), share(self.spread()), self.ours.len())?;
        if let Some(allocations) = Self::median_of(&self.ours, |r| r.allocations) {
            writeln!(f, "allocations per message {allocations:.2}")?;
        }
        if let Some(why) = self.void() {
            writeln!(f, "void: {why}")?;
        }
        Ok(())
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
