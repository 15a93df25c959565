//! What a measurement says: medians over runs, the spread, the limit beside them, and the machine.

use std::fmt;

use hdrhistogram::Histogram;
use serde_json::{Value, json};

use super::{
    core_speed::CoreSpeed,
    environment::{Load, environment},
    rig::Error,
};

/// One run of the thing measured, or of its limit.
#[derive(Clone, Debug, Default)]
pub struct Run {
    /// Messages per second.
    pub throughput: Option<f64>,
    /// Nanoseconds: p50, p90, p99, p99.9, highest.
    pub latency: Option<[u64; 5]>,
    /// Allocations of the whole process per message.
    pub allocations: Option<f64>,
    /// What is compared if it is neither a rate nor a latency; [`Report::figure`] names it.
    pub figure: Option<f64>,
    /// What the figure is made of, by name.
    pub details: Vec<(&'static str, f64)>,
    /// Every latency.
    pub seen: Option<Histogram<u64>>,
    /// Why it proves nothing, whatever others did meanwhile.
    pub doubt: Option<&'static str>,
}

impl Run {
    /// Latencies, with the throughput that they mean for one in flight or many.
    pub fn of(seen: &Histogram<u64>, throughput: Option<f64>) -> Self {
        let q = |p| seen.value_at_quantile(p);
        Self { throughput, latency: Some([q(0.5), q(0.9), q(0.99), q(0.999), seen.max()]), seen: Some(seen.clone()), ..Self::default() }
    }

    /// One figure that is neither a rate nor a latency.
    pub fn figure(value: f64) -> Self {
        Self { figure: Some(value), ..Self::default() }
    }

    fn detail(&self, name: &str) -> Option<f64> {
        self.details.iter().find(|(n, _)| *n == name).map(|(_, value)| *value)
    }
}

/// A run of the limit and one of the thing measured, right behind it.
struct Round {
    limit: Run,
    ours: Run,
    /// Share of the cores that others used meanwhile.
    foreign: Option<f64>,
    /// Of the cores, right before and right behind.
    speed: Option<CoreSpeed>,
}

impl Round {
    /// Why it proves nothing, if it does not.
    fn void(&self) -> Option<&'static str> {
        self.limit.doubt.or(self.ours.doubt).or(disturbed(self.foreign))
    }

    fn is_void(&self) -> bool {
        self.void().is_some()
    }
}

/// Why such a share of the cores in use by others proves nothing. One that nobody knows is not taken for none.
fn disturbed(foreign: Option<f64>) -> Option<&'static str> {
    match foreign {
        Some(foreign) if foreign <= FOREIGN_MAX => None,
        Some(_) => Some(OTHERS),
        None => Some("this system does not say what others used"),
    }
}

const OTHERS: &str = "others used more than 15 % of the cores";

/// All runs of one measurement.
pub struct Report {
    name: &'static str,
    config: Value,
    limit: &'static str,
    rounds: Vec<Round>,
    /// Rounds asked for.
    wanted: usize,
    /// Why what was found out before the rounds makes all of them void.
    doubt: Option<&'static str>,
    /// Name of the figure of each run, if it has one.
    figure: Option<&'static str>,
    /// The 99.9th percentile is compared with this one of the limit, not median with median.
    tails: Option<usize>,
    /// Details that stand at the top of the JSON object, as sums over all rounds.
    sums: Vec<&'static str>,
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let (low, high) = (values.len().checked_sub(1)? / 2, values.len() / 2);
    // Of an even count there are two in the middle.
    Some(if low == high { values[low] } else { (values[low] + values[high]) / 2.0 })
}

/// Foreign load above this voids a round, as a share of the cores that this process may use.
const FOREIGN_MAX: f64 = 0.15;

impl Report {
    /// A report without runs.
    pub fn new(name: &'static str, config: Value) -> Self {
        Self { name, config, limit: "", rounds: vec![], wanted: 0, doubt: None, figure: None, tails: None, sums: vec![] }
    }

    /// Says what the figure of each run is; its name in JSON.
    pub fn figure(&mut self, name: &'static str) {
        self.figure = Some(name);
    }

    /// A detail that is counted, and stands at the top of the JSON object as the sum over all rounds: void ones too, as what is lost is lost,
    /// and a median would hide what happened once.
    pub fn sum(&mut self, name: &'static str) {
        self.sums.push(name);
    }

    fn sum_of(&self, name: &str) -> f64 {
        let details = self.rounds.iter().flat_map(|round| &round.ours.details);
        details.filter(|(detail, _)| *detail == name).map(|(_, value)| value).sum()
    }

    /// Compares the 99.9th percentile with the limit's 99th.
    pub fn compare_tails(&mut self) {
        self.tails = Some(2);
    }

    /// Compares the 99.9th percentiles.
    pub fn compare_p999(&mut self) {
        self.tails = Some(3);
    }

    /// Says with what else the measurement was done, under this name in `config`.
    pub fn with(&mut self, name: &str, value: f64) {
        self.config[name] = json!(value);
    }

    /// Finds out what the rounds need, in up to three tries until one was quiet. If none was, the rounds rest on nothing and are void.
    pub fn before<R>(&mut self, mut look: impl FnMut() -> Result<R, Error>) -> Result<R, Error> {
        const TRIES: u32 = 3;
        let mut tries = 1;
        loop {
            let load = Load::now();
            let found = look()?;
            self.doubt = disturbed(load.and_then(|load| load.foreign_since()))
                .map(|_| "nothing was quiet before the rounds, when their rate was measured");
            if self.doubt.is_none() || tries == TRIES {
                return Ok(found);
            }
            tries += 1;
        }
    }

    /// Measures limit and thing in turns until `runs` rounds were quiet, at most twice as often. Where nobody knows what was quiet, more rounds are
    /// of no use.
    pub fn rounds(
        &mut self,
        limit_name: &'static str,
        runs: u32,
        mut limit: impl FnMut() -> Result<Run, Error>,
        mut ours: impl FnMut() -> Result<Run, Error>,
    ) -> Result<(), Error> {
        (self.limit, self.wanted) = (limit_name, runs as usize);
        let most = if Load::now().is_some() { 2 * self.wanted } else { self.wanted };
        while self.quiet() < self.wanted && self.rounds.len() < most {
            let (before, load) = (CoreSpeed::now(), Load::now());
            let (limit, ours) = (limit()?, ours()?);
            let foreign = load.and_then(|l| l.foreign_since());
            let speed = before.zip(CoreSpeed::now()).map(|(before, behind)| before.and(behind));
            self.rounds.push(Round { limit, ours, foreign, speed });
        }
        Ok(())
    }

    fn quiet(&self) -> usize {
        self.rounds.iter().filter(|r| !r.is_void()).count()
    }

    /// The figures prove nothing.
    fn is_void(&self) -> bool {
        self.doubt.is_some() || self.too_few_quiet()
    }

    /// Then the figures are those of all rounds.
    fn too_few_quiet(&self) -> bool {
        self.quiet() < self.wanted
    }

    /// Why it is void, each reason once.
    fn void_because(&self) -> Option<String> {
        let of_rounds = self.rounds.iter().filter_map(Round::void).filter(|_| self.too_few_quiet());
        let mut reasons: Vec<&str> = self.doubt.into_iter().chain(of_rounds).collect();
        reasons.sort_unstable();
        reasons.dedup();
        self.is_void().then(|| reasons.join("; "))
    }

    fn counted(&self) -> impl Iterator<Item = &Round> {
        let all = self.too_few_quiet();
        self.rounds.iter().filter(move |r| all || !r.is_void())
    }

    fn ours(&self) -> Vec<&Run> {
        self.counted().map(|r| &r.ours).collect()
    }

    fn limits(&self) -> Vec<&Run> {
        self.counted().map(|r| &r.limit).collect()
    }

    fn median_of(runs: &[&Run], f: impl Fn(&Run) -> Option<f64>) -> Option<f64> {
        median(runs.iter().filter_map(|run| f(run)).collect())
    }

    fn latency(runs: &[&Run], at: usize) -> Option<u64> {
        Self::median_of(runs, |r| r.latency.map(|l| l[at] as f64)).map(|v| v as u64)
    }

    /// Ours to the limit, round by round, then the median: figures where they have one, else latencies where the limit has one, else throughput.
    fn ratio(&self) -> Option<f64> {
        let (ours_at, limit_at) = self.tails.map_or((0, 0), |limit_at| (3, limit_at));
        let of = |round: &Round| match (&round.ours, &round.limit) {
            (Run { figure: Some(ours), .. }, Run { figure: Some(limit), .. }) => Some(ours / limit),
            (Run { latency: Some(ours), .. }, Run { latency: Some(limit), .. }) => Some(ours[ours_at] as f64 / limit[limit_at] as f64),
            (Run { throughput: Some(ours), .. }, Run { throughput: Some(limit), .. }) => Some(ours / limit),
            _ => None,
        };
        median(self.counted().filter_map(of).collect())
    }

    /// 99th percentile to that of the limit, round by round, then the median.
    fn ratio_p99(&self) -> Option<f64> {
        let of = |round: &Round| Some(round.ours.latency?[2] as f64 / round.limit.latency?[2] as f64);
        median(self.counted().filter_map(of).collect())
    }

    /// Spread of what is compared.
    fn spread(&self) -> Option<f64> {
        let at = if self.tails.is_some() { 3 } else { 0 };
        self.spread_of(|run| run.figure.or(run.latency.map(|all| all[at] as f64)).or(run.throughput))
    }

    /// Largest deviation of a run from the median, as a share of it.
    fn spread_of(&self, of: impl Fn(&Run) -> Option<f64>) -> Option<f64> {
        let ours = self.ours();
        let middle = Self::median_of(&ours, &of).filter(|middle| *middle != 0.0)?;
        Some(ours.iter().filter_map(|run| of(run)).map(|value| ((value - middle) / middle).abs()).fold(0.0, f64::max))
    }

    /// Spread of each figure, by the names that [`to_json`](Self::to_json) has for them.
    fn spreads(&self) -> Value {
        let latency = |at: usize| self.spread_of(|run| run.latency.map(|all| all[at] as f64));
        let mut spreads = json!({
            "throughput_per_s": self.spread_of(|run| run.throughput),
            "latency_ns": { "p50": latency(0), "p90": latency(1), "p99": latency(2), "p999": latency(3), "max": latency(4) },
        });
        if let Some(name) = self.figure {
            spreads[name] = json!(self.spread_of(|run| run.figure));
        }
        for (name, _) in Self::details(&self.ours()) {
            spreads["details"][name] = json!(self.spread_of(|run| run.detail(name)));
        }
        spreads
    }

    /// What the figures are made of: medians by name, as runs say them.
    fn details(runs: &[&Run]) -> Vec<(&'static str, f64)> {
        let names = runs.first().map_or(&[][..], |run| &run.details);
        let of = |name| Self::median_of(runs, |run| run.detail(name));
        names.iter().filter_map(|(name, _)| Some((*name, of(*name)?))).collect()
    }

    /// Median over the counted rounds.
    fn foreign(&self) -> Option<f64> {
        median(self.counted().filter_map(|r| r.foreign).collect())
    }

    /// The slowest core of each counted round, as a median, and the fastest of all rounds.
    fn speed(&self) -> Option<CoreSpeed> {
        let slowest = median(self.counted().filter_map(|r| Some(r.speed?.slowest)).collect())?;
        let fastest = self.rounds.iter().filter_map(|r| Some(r.speed?.fastest)).reduce(f64::max)?;
        Some(CoreSpeed { slowest, fastest })
    }

    /// All latencies of the counted rounds in one; `None` if there are none.
    pub fn latencies(&self) -> Option<Histogram<u64>> {
        let mut all: Option<Histogram<u64>> = None;
        for seen in self.ours().iter().filter_map(|run| run.seen.as_ref()) {
            match &mut all {
                // Both come from one constructor, so their bounds agree.
                Some(all) => all.add(seen).ok()?,
                None => all = Some(seen.clone()),
            }
        }
        all
    }

    /// A line for each round and part, limit first, void rounds included; empty where there is no such figure. Details come last, by name.
    pub fn csv(&self) -> String {
        let mut names: Vec<&str> = vec![];
        for (name, _) in self.rounds.iter().flat_map(|round| round.ours.details.iter().chain(&round.limit.details)) {
            if !names.contains(name) {
                names.push(name);
            }
        }
        let mut text = String::from("round,part,void,throughput_per_s,p50_ns,p90_ns,p99_ns,p999_ns,max_ns,allocations_per_message,");
        text += &[&[self.figure.unwrap_or("figure")], &names[..]].concat().join(",");
        text.push('\n');
        let optional = |value: Option<f64>| value.map_or_else(String::new, |value| value.to_string());
        for (number, round) in self.rounds.iter().enumerate() {
            for (part, run) in [("limit", &round.limit), (self.name, &round.ours)] {
                let latency = run.latency.map_or_else(|| ",,,,".to_owned(), |all| all.map(|ns| ns.to_string()).join(","));
                let (rate, allocations, figure) = (optional(run.throughput), optional(run.allocations), optional(run.figure));
                text += &format!("{},{part},{},{rate},{latency},{allocations},{figure}", number + 1, round.is_void());
                text.extend(names.iter().map(|name| format!(",{}", optional(run.detail(name)))));
                text.push('\n');
            }
        }
        text
    }

    /// Object of the contract of `bench --json`.
    pub fn to_json(&self) -> Value {
        let throughput = |runs: &[&Run]| Self::median_of(runs, |r| r.throughput).map(f64::round);
        let (ours, limits) = (self.ours(), self.limits());
        let mut object = json!({
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
                "latency_ns": { "p50": Self::latency(&limits, 0), "p99": Self::latency(&limits, 2), "p999": Self::latency(&limits, 3) },
            },
            "ratio": self.ratio(),
            "ratio_p99": self.ratio_p99(),
            "spread": self.spread(),
            "spreads": self.spreads(),
            "allocations_per_message": Self::median_of(&ours, |r| r.allocations),
            "void": self.is_void(),
            "void_because": self.void_because(),
            "rounds": { "measured": self.rounds.len(), "void": self.rounds.len() - self.quiet() },
            "environment": environment(self.foreign()),
        });
        object["environment"]["core_steps_per_s"] =
            json!(self.speed().map(|CoreSpeed { slowest, fastest }| json!({ "slowest": slowest.round(), "fastest": fastest.round() })));
        if let Some(name) = self.figure {
            object[name] = json!(Self::median_of(&ours, |r| r.figure));
            object["limit"][name] = json!(Self::median_of(&limits, |r| r.figure));
        }
        for name in &self.sums {
            object[*name] = json!(self.sum_of(name));
        }
        for (part, runs) in [(None, &ours), (Some("limit"), &limits)] {
            let details: serde_json::Map<_, _> =
                Self::details(runs).into_iter().map(|(name, value)| (name.to_owned(), json!(value))).collect();
            if !details.is_empty() {
                let of = match part {
                    Some(part) => &mut object[part],
                    None => &mut object,
                };
                of["details"] = details.into();
            }
        }
        object
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let us = |ns: Option<u64>| ns.map_or_else(|| "-".into(), |ns| format!("{:.1} us", ns as f64 / 1e3));
        let rate = |runs: &[&Run]| Self::median_of(runs, |r| r.throughput).map_or_else(|| "-".into(), |t| format!("{:.0}/s", t));
        let (ours, limits) = (self.ours(), self.limits());
        let line = |runs: &[&Run]| match (self.figure, Self::median_of(runs, |r| r.figure)) {
            (Some(name), Some(value)) => format!("{value:>14.2}  {name}"),
            _ => {
                let tail = if self.tails.is_some() {
                    format!("  p99.9 {:>9}  max {:>9}", us(Self::latency(runs, 3)), us(Self::latency(runs, 4)))
                } else {
                    String::new()
                };
                format!("{:>14}  p50 {:>9}  p99 {:>9}{tail}", rate(runs), us(Self::latency(runs, 0)), us(Self::latency(runs, 2)))
            }
        };
        writeln!(f, "{:<24}{}", self.name, line(&ours))?;
        writeln!(f, "limit {}: {}", self.limit, line(&limits).trim_start())?;
        for (name, value) in Self::details(&ours) {
            writeln!(f, "  {name} {value:.2}")?;
        }
        for (name, value) in Self::details(&limits) {
            writeln!(f, "  limit: {name} {value:.2}")?;
        }
        let share = |x: Option<f64>| x.map_or_else(|| "-".into(), |x| format!("{x:.3}"));
        let p99 = self.ratio_p99().map_or_else(String::new, |ratio| format!(", of p99 {ratio:.3}"));
        writeln!(f, "ratio {}{p99}, spread {}, medians of {} runs", share(self.ratio()), share(self.spread()), ours.len())?;
        for name in &self.sums {
            writeln!(f, "{name} in all rounds: {}", self.sum_of(name))?;
        }
        if let Some(allocations) = Self::median_of(&ours, |r| r.allocations) {
            writeln!(f, "allocations per message {allocations:.2}")?;
        }
        if let Some(CoreSpeed { slowest, fastest }) = self.speed().filter(|speed| speed.slowest < (1.0 - FOREIGN_MAX) * speed.fastest) {
            let left = slowest / fastest * 100.0;
            writeln!(
                f,
                "slow: a core had {left:.0} % of the speed that one had at best: a lower clock, or somebody outside of this machine had the rest"
            )?;
        }
        if let Some(why) = self.void_because() {
            let load = self
                .foreign()
                .map_or_else(String::new, |load| format!("; others used {:.0} % of the cores in the median one", load * 100.0));
            let (quiet, all, wanted) = (self.quiet(), self.rounds.len(), self.wanted);
            writeln!(f, "void: {why}. {quiet} of {all} rounds were quiet, and {wanted} are needed{load}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(wanted: usize, rounds: impl IntoIterator<Item = Round>) -> Report {
        let mut report = Report::new("idle", json!({}));
        report.figure("cpu");
        (report.wanted, report.rounds) = (wanted, rounds.into_iter().collect());
        report
    }

    fn round(foreign: f64) -> Round {
        let ours = Run { details: vec![("formed_ms", 550.5), ("failed", 0.0)], ..Run::figure(0.3) };
        let limit = Run { details: vec![("failed", 1.0), ("copies", 2.0)], ..Run::default() };
        Round { limit, ours, foreign: Some(foreign), speed: Some(CoreSpeed { slowest: 1.0 - foreign, fastest: 1.0 }) }
    }

    #[test]
    fn as_many_rounds_must_be_quiet_as_are_wanted() {
        let of = |quiet: usize| report(9, (0..18).map(|at| round(if at < quiet { 0.0 } else { 0.2 }))).is_void();
        assert!(of(8) && !of(9));
    }

    #[test]
    fn a_round_that_nobody_can_vouch_for_is_void_and_says_why() {
        let of = |change: fn(&mut Round)| {
            let mut one = round(0.0);
            change(&mut one);
            report(1, [one]).to_json()
        };
        let (quiet, unknown) = (of(|_| ()), of(|round| round.foreign = None));
        assert_eq!((&quiet["void"], &quiet["void_because"]), (&json!(false), &json!(null)));
        assert_eq!((&unknown["void"], &unknown["void_because"]), (&json!(true), &json!("this system does not say what others used")));
        assert_eq!(of(|round| round.foreign = Some(0.2))["void_because"], OTHERS);
        assert_eq!(of(|round| round.limit.doubt = Some("no limit"))["void_because"], "no limit");
        let mut rate = report(1, [round(0.0)]);
        rate.doubt = Some("no rate");
        assert_eq!((rate.to_json()["void"].clone(), rate.void_because().as_deref()), (json!(true), Some("no rate")));
    }

    #[test]
    fn the_median_of_an_even_count_lies_between_the_two_in_the_middle() {
        assert_eq!(median(vec![]), None);
        assert_eq!((median(vec![3.0]), median(vec![4.0, 1.0, 3.0, 2.0]), median(vec![5.0, 1.0, 2.0])), (Some(3.0), Some(2.5), Some(2.0)));
    }

    #[test]
    fn the_ratio_of_the_tail_stands_beside_that_of_the_middle() {
        let run = |ns: u64| Run { latency: Some([ns, ns, 3 * ns, ns, ns]), ..Run::default() };
        let mut report = Report::new("remote-ask", json!({}));
        (report.wanted, report.rounds) = (1, vec![Round { limit: run(10), ours: run(20), foreign: Some(0.0), speed: None }]);
        assert!(report.to_string().contains("ratio 2.000, of p99 2.000, spread"), "{report}");
    }

    #[test]
    fn a_core_that_was_slow_is_told() {
        let of = |slow: f64| report(3, [0.0, slow, slow, 0.0, slow].map(round));
        let speed = of(0.5).speed();
        assert_eq!(speed, Some(CoreSpeed { slowest: 0.5, fastest: 1.0 }), "the median of all, as too few were quiet");
        assert!(of(0.5).to_string().contains("slow: a core had 50 % of the speed"), "{}", of(0.5));
        assert!(!of(0.1).to_string().contains("slow"), "{}", of(0.1));
        assert_eq!(of(0.1).to_json()["environment"]["core_steps_per_s"], json!({ "slowest": 1.0, "fastest": 1.0 }));
    }

    #[test]
    fn what_figures_are_made_of_has_columns() {
        let text = report(1, [round(0.0)]).csv();
        let lines: Vec<_> = text.lines().collect();
        assert!(lines[0].ends_with(",allocations_per_message,cpu,formed_ms,failed,copies"), "{text}");
        assert_eq!(lines[1..], ["1,limit,false,,,,,,,,,,1,2", "1,idle,false,,,,,,,,0.3,550.5,0,"]);
        assert!(lines.iter().all(|line| line.matches(',').count() == lines[0].matches(',').count()), "{text}");
    }
}
