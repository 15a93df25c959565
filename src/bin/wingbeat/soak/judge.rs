//! Verdicts from what a soak found. Pure: series and sums in, verdicts out.
//!
//! What must never happen is judged in every run. What a clock says is judged only where the machine was quiet enough to tell, and growth only as
//! finely as the run is long: a verdict says what it could not judge.

use std::{collections::BTreeMap, time::Duration};

use super::{
    books::Sums,
    plan::{KINDS, Kind},
    stage::Said,
    watch::{Life, Sample},
};

/// From this length on the bounds of a long soak hold.
const LONG: Duration = Duration::from_secs(20 * 60);
/// From this length on a slope in percent per hour says something.
const SLOPE_FROM: Duration = Duration::from_secs(2 * 3600);
/// Growth of memory from the first third to the last, in a long run.
const GROWTH_MAX: f64 = 0.02;
const SLOPE_PERCENT_PER_H_MAX: f64 = 1.0;
/// So much more may the load's process grow, KiB: what it knows of each entity and of requests on their way takes its most with the longest fault, and
/// what it writes down is known too roughly for a slope.
const BOOKS_KIB_MAX: f64 = 1024.0;
/// Growth in a short run, KiB: what a node's buffers and histograms take up in its first minutes lies well below.
const SHORT_GROWTH_KIB_MAX: f64 = 4096.0;
/// Sockets that may be open by chance in one look and not in another.
const DESCRIPTORS_MORE_MAX: f64 = 3.0;
const THREADS_MORE_MAX: f64 = 0.0;
/// p99 of the last third to that of the first, where the machine is as fast in both.
const DRIFT_MAX: f64 = 1.2;
/// In a short run a third has a few calm stretches of seconds only.
const SHORT_DRIFT_MAX: f64 = 3.0;
/// Below this a drift in a short run is noise.
const SHORT_P99_NS: u64 = 50_000_000;
/// Looks needed at each end of a series.
const LOOKS_LEAST: usize = 5;
/// Share of the meant messages that must be accepted.
const RATE_LEAST: f64 = 0.99;
/// The load itself may be so late in 1 % of its messages.
const LATE_NS_MAX: u64 = 50_000_000;
/// Others used more of the machine than this: clocks prove nothing.
const FOREIGN_MAX: f64 = 0.15;
/// A thread that only sleeps and wakes was late by more than this in 1 % of its naps.
const STALL_NS_MAX: u64 = 10_000_000;
/// It was once late by so much: nearly what a node is accused for.
const STALL_ONCE_NS_MAX: u64 = 300_000_000;

/// Why a run that was told to end cannot tell.
const INTERRUPTED: &str = "interrupted";

/// How late answers came.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Latency {
    pub count: u64,
    pub p50_ns: u64,
    pub p90_ns: u64,
    pub p99_ns: u64,
    pub p999_ns: u64,
    pub max_ns: u64,
}

/// A fault and what came of it.
#[derive(Clone, Debug)]
pub struct Fault {
    /// Seconds since the beginning.
    pub at: f64,
    pub kind: Kind,
    pub whom: String,
    /// Entities whose home was lost by it.
    pub entities_lost: usize,
    /// Seconds from the end of what was done until the cluster was whole; what was missing if it was not in time. `None` if the run was interrupted
    /// before.
    pub healed: Option<Result<f64, String>>,
    /// Drops that nobody was told of while homes were being lost.
    pub untold: u64,
    /// What else was not as it should be.
    pub wrong: Option<String>,
}

impl Fault {
    /// After how many seconds the cluster was whole again.
    pub fn healed_in(&self) -> Option<f64> {
        self.healed.as_ref()?.as_ref().ok().copied()
    }
}

/// The load's thread may wait so long for a core, as a share of the run.
const WAITED_MAX: f64 = 0.02;

/// What the machine did meanwhile.
#[derive(Copy, Clone, Debug, Default)]
pub struct Noise {
    /// Share of all cores that others used.
    pub foreign: Option<f64>,
    pub stall_p99_ns: u64,
    pub stall_max_ns: u64,
}

impl Noise {
    /// Others used so much of the machine that a time proves nothing, whatever it is.
    pub fn is_void(&self) -> bool {
        self.foreign.is_some_and(|share| share > FOREIGN_MAX)
    }
}

/// All that a soak found.
#[derive(Clone, Debug, Default)]
pub struct Findings {
    pub length: Duration,
    /// Looks before this time count for nothing; see also [`steady_from`](Self::steady_from).
    pub warm_up: Duration,
    pub lives: Vec<Life>,
    pub sums: Sums,
    /// Requests that met no fault, by third.
    pub quiet: [Latency; 3],
    /// What the machine itself took for word to a thread that sleeps on another core and back meanwhile, nanoseconds; 0 if nobody knows.
    pub floor: [u64; 3],
    /// Requests that were under way while a fault was not healed.
    pub faulted: Latency,
    /// How late the load itself was.
    pub lateness: Latency,
    /// Messages dropped on the nodes, by reason.
    pub drops: BTreeMap<String, u64>,
    pub faults: Vec<Fault>,
    pub said: Said,
    /// Lines of logs that tell of a panic.
    pub panics: Vec<String>,
    pub noise: Noise,
    /// Why the run ended before its time.
    pub broken: Option<String>,
    /// It was told to end before its time: `length` is how long it lasted.
    pub interrupted: bool,
}

impl Findings {
    /// From when on looks at a process count. In a long run also each kind of fault has to have come once: what it takes at most, in buffers and in
    /// what the allocator keeps of each size for each thread, is first taken with the first one.
    fn steady_from(&self, life: &Life) -> f64 {
        let began = life.samples.first().map_or(0.0, |sample| sample.at);
        let warm = began + self.warm_up.as_secs_f64();
        let first = |kind: Kind| self.faults.iter().find(|fault| fault.kind == kind && fault.at >= began).map(|fault| fault.at);
        let firsts: Option<Vec<f64>> = KINDS.into_iter().map(first).collect();
        firsts.filter(|_| self.length >= LONG).into_iter().flatten().fold(warm, f64::max)
    }
}

/// What came of one question.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    Held,
    Failed,
    /// This run cannot tell.
    Open,
}

/// The answer to one question.
#[derive(Clone, Debug)]
pub struct Verdict {
    pub name: &'static str,
    pub outcome: Outcome,
    pub says: String,
}

impl Verdict {
    fn new(name: &'static str, held: bool, says: impl Into<String>) -> Self {
        Self { name, outcome: if held { Outcome::Held } else { Outcome::Failed }, says: says.into() }
    }

    fn open(name: &'static str, says: impl Into<String>) -> Self {
        Self { name, outcome: Outcome::Open, says: says.into() }
    }

    /// What fails because of the machine's noise, or as the run was cut short, proves nothing.
    fn unless(self, excuse: Option<String>) -> Self {
        match excuse {
            Some(excuse) if self.outcome == Outcome::Failed => self.not_judged(&excuse),
            _ => self,
        }
    }

    fn not_judged(self, why: &str) -> Self {
        Self::open(self.name, format!("{}; not judged: {why}", self.says))
    }
}

/// All verdicts, in the order in which they matter.
pub fn judge(found: &Findings) -> Vec<Verdict> {
    let faults = found.sums.faults;
    let (dropped, untold) = (found.drops.values().sum::<u64>(), unexcused(found));
    let none = |count: usize, what: &[String]| if count == 0 { "none".to_owned() } else { format!("{count}: {}", what.join("; ")) };
    let mut verdicts = vec![
        end(found),
        Verdict::new("order", faults.reordered == 0, format!("{} messages out of order", faults.reordered)),
        Verdict::new("duplicates", faults.duplicated == 0, format!("{} messages handled twice", faults.duplicated)),
        Verdict::new(
            "losses",
            faults.lost <= untold,
            format!(
                "{} messages missing that their sender was not told of and no lost home explains; nodes counted {dropped} drops by reason, \
                 {untold} of which nobody was told and no home was being lost meanwhile",
                faults.lost
            ),
        ),
        Verdict::new("calm failures", found.sums.calm_failures == 0, calm_failures(found.sums.calm_failures)).unless(noise(found)),
        Verdict::new(
            "one home",
            faults.two_homes + faults.contradicted == 0,
            format!(
                "{} answers by a second home or from an epoch that was over; {} messages ran of which the sender was told they had not",
                faults.two_homes, faults.contradicted
            ),
        ),
        Verdict::new(
            "all seen",
            found.sums.unseen == 0 && (found.sums.looks > 0 || found.broken.is_some()),
            format!("{} looks at what entities have were judged, {} of the last ones failed", found.sums.looks, found.sums.unseen),
        )
        .unless(found.interrupted.then(|| INTERRUPTED.to_owned())),
        Verdict::new(
            "false removals",
            found.said.false_removals.is_empty(),
            none(found.said.false_removals.len(), &found.said.false_removals),
        ),
        Verdict::new("panics", found.panics.is_empty(), none(found.panics.len(), &found.panics)),
        healing(found),
    ];
    let suspicions = &found.said.suspicions;
    verdicts.push(Verdict::new("suspicions", suspicions.is_empty(), none(suspicions.len(), suspicions)).unless(noise(found)));
    verdicts.extend([memory(found), slope(found), steady(found, "descriptors", DESCRIPTORS_MORE_MAX, |s| s.descriptors)]);
    verdicts.extend([steady(found, "threads", THREADS_MORE_MAX, |s| s.threads), latency(found), rate(found)]);
    verdicts
}

fn end(found: &Findings) -> Verdict {
    const NAME: &str = "end";
    match &found.broken {
        Some(why) => Verdict::new(NAME, false, why),
        None if found.interrupted => Verdict::open(NAME, format!("{INTERRUPTED} after {:.0} s", found.length.as_secs_f64())),
        None => Verdict::new(NAME, true, "it ran to its end"),
    }
}

/// Drops that may explain a loss. What is dropped while homes are being lost is that of their entities, and their streams are excused already: it must not
/// excuse one more elsewhere.
fn unexcused(found: &Findings) -> u64 {
    untold(&found.drops, &found.sums).saturating_sub(found.faults.iter().map(|fault| fault.untold).sum())
}

/// Messages dropped on nodes whose sender may not have been told: an answer that says so comes from the node that dropped the request, or from
/// the sender's own, which has letters of it. The others are excused already, and must not excuse one more.
pub fn untold(drops: &BTreeMap<String, u64>, sums: &Sums) -> u64 {
    let Sums { told, dead_letters, .. } = sums;
    let of = |counts: &BTreeMap<&'static str, u64>, reason: &str| counts.get(reason).copied().unwrap_or(0);
    let elsewhere = |reason: &str| of(told, reason).saturating_sub(of(dead_letters, reason));
    drops.iter().map(|(reason, dropped)| dropped.saturating_sub(elsewhere(reason))).sum()
}

fn calm_failures(count: u64) -> String {
    match count {
        0 => "none".into(),
        _ => format!("{count} requests failed or messages were given up that were sent while no fault was open or had just healed"),
    }
}

/// Why clocks prove nothing in this run, if so. In a long one a core that the soak itself kept busy is no excuse.
fn noise(found: &Findings) -> Option<String> {
    let Noise { foreign, stall_p99_ns, stall_max_ns } = found.noise;
    let ms = |ns: u64| ns as f64 / 1e6;
    let waited = found.sums.waited.as_secs_f64();
    match foreign {
        Some(share) if found.noise.is_void() => Some(format!("other programs used {:.0} % of the machine", share * 100.0)),
        _ if found.length >= LONG => None,
        _ if waited > WAITED_MAX * found.length.as_secs_f64() => Some(format!("the load's thread waited {waited:.1} s for a core")),
        _ if stall_p99_ns > STALL_NS_MAX => Some(format!("1 % of the naps of an idle thread were {:.0} ms late", ms(stall_p99_ns))),
        _ if stall_max_ns > STALL_ONCE_NS_MAX => Some(format!("an idle thread was {:.0} ms late", ms(stall_max_ns))),
        _ => None,
    }
}

fn healing(found: &Findings) -> Verdict {
    const NAME: &str = "healing";
    let wrong = |fault: &Fault| {
        let what = fault.healed.as_ref().and_then(|healed| healed.as_ref().err()).or(fault.wrong.as_ref())?;
        Some(format!("{} of {} at {:.0} s: {what}", fault.kind, fault.whom, fault.at))
    };
    let all: Vec<String> = found.faults.iter().filter_map(wrong).collect();
    let healed: Vec<f64> = found.faults.iter().filter_map(Fault::healed_in).collect();
    let in_time = healed.iter().copied().reduce(f64::max).map_or_else(
        || "none had healed".to_owned(),
        |longest| format!("{} faults healed in their bounds, the slowest in {longest:.1} s", healed.len()),
    );
    match found.faults.len() {
        0 => Verdict::open(NAME, "the run was too short for a fault"),
        _ if !all.is_empty() => Verdict::new(NAME, false, all.join("; ")),
        n if healed.len() < n => Verdict::open(NAME, format!("{in_time}; not judged: the last one, {INTERRUPTED}")),
        _ => Verdict::new(NAME, true, in_time),
    }
}

/// Medians of the first and the last third of what a process had while all was calm, after its warm-up.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Ends {
    pub first: f64,
    pub last: f64,
    /// Seconds from the first look to the last.
    pub span: f64,
}

/// `None` if there are too few looks.
pub fn ends(found: &Findings, life: &Life, of: impl Fn(&Sample) -> f64) -> Option<Ends> {
    let calm = counted(found, life);
    let third = calm.len() / 3;
    if third < LOOKS_LEAST {
        return None;
    }
    let middle = |part: &[&Sample]| median(part.iter().map(|sample| of(sample)).collect());
    Some(Ends { first: middle(&calm[..third]), last: middle(&calm[calm.len() - third..]), span: calm[calm.len() - 1].at - calm[0].at })
}

/// Calm looks behind the warm-up, which begins anew with each process.
fn counted<'a>(found: &Findings, life: &'a Life) -> Vec<&'a Sample> {
    let from = found.steady_from(life);
    life.samples.iter().filter(|sample| sample.calm && sample.at >= from).collect()
}

/// The one in the middle, or between the two that are; 0 of nothing.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let half = values.len() / 2;
    match values.get(half) {
        Some(upper) if values.len().is_multiple_of(2) => f64::midpoint(values[half - 1], *upper),
        middle => middle.copied().unwrap_or(0.0),
    }
}

/// Slope of memory in percent per hour: the median of the slopes between far looks, which single outliers do not move.
pub fn slope_percent_per_h(found: &Findings, life: &Life) -> Option<f64> {
    let calm = counted(found, life);
    let half = calm.len() / 2;
    if half < LOOKS_LEAST {
        return None;
    }
    let level = median(calm.iter().map(|sample| sample.judged()).collect());
    let slope = |(a, b): (&&Sample, &&Sample)| (b.judged() - a.judged()) / (b.at - a.at).max(1e-3);
    let middle = median(calm.iter().zip(&calm[half..]).map(slope).collect());
    (level > 0.0).then(|| middle / level * 100.0 * 3600.0)
}

/// Processes that are judged for growth: those that lived through most of the run.
pub fn judged(found: &Findings) -> impl Iterator<Item = &Life> {
    let least = found.length.as_secs_f64() * 0.6;
    let lived = |life: &Life| life.samples.last().zip(life.samples.first()).map_or(0.0, |(last, first)| last.at - first.at);
    found.lives.iter().filter(move |life| life.anchor || lived(life) >= least)
}

fn memory(found: &Findings) -> Verdict {
    const NAME: &str = "memory";
    let (mut held, mut says) = (true, Vec::new());
    for life in judged(found) {
        let Some(Ends { first, last, span }) = ends(found, life, Sample::judged) else { continue };
        let (growth, record) = ((last - first) / first.max(1.0), life.record());
        let books = if record > 0.0 { BOOKS_KIB_MAX } else { 0.0 };
        held &= last - first <= if found.length >= LONG { GROWTH_MAX * first + books } else { SHORT_GROWTH_KIB_MAX };
        let without = if record > 0.0 { format!(", without {:.1} MiB of the soak's own record", record / 1024.0) } else { String::new() };
        says.push(format!(
            "{}: {:.1} -> {:.1} MiB ({:+.1} %) in {:.0} s{without}",
            life.name,
            first / 1024.0,
            last / 1024.0,
            growth * 100.0,
            span
        ));
    }
    if says.is_empty() {
        return Verdict::open(NAME, "no process has enough calm looks");
    }
    let bound = if found.length >= LONG {
        format!("at most {:.0} % are allowed, and {:.0} MiB more for the books of the load", GROWTH_MAX * 100.0, BOOKS_KIB_MAX / 1024.0)
    } else {
        format!("a run below {} minutes judges an absolute bound, {:.0} MiB", LONG.as_secs() / 60, SHORT_GROWTH_KIB_MAX / 1024.0)
    };
    Verdict::new(NAME, held, format!("{}; {bound}", says.join("; ")))
}

/// Shown in every run, as it says how much of a growth within its bound goes on; judged in one of hours.
fn slope(found: &Findings) -> Verdict {
    const NAME: &str = "memory slope";
    let (mut held, mut says) = (true, Vec::new());
    for life in judged(found) {
        let Some(slope) = slope_percent_per_h(found, life) else { continue };
        let exempt = life.record() > 0.0;
        held &= exempt || slope < SLOPE_PERCENT_PER_H_MAX;
        says.push(format!("{}: {slope:+.2} % per hour{}", life.name, if exempt { ", which is exempt" } else { "" }));
    }
    if says.is_empty() {
        return Verdict::open(NAME, "no process has enough calm looks");
    }
    let verdict = Verdict::new(NAME, held, format!("{}; less than {SLOPE_PERCENT_PER_H_MAX} % per hour is allowed", says.join("; ")));
    if found.length < SLOPE_FROM {
        return verdict.not_judged(&format!("a run below {} minutes is too short for it", SLOPE_FROM.as_secs() / 60));
    }
    verdict
}

fn steady(found: &Findings, name: &'static str, more_max: f64, of: impl Fn(&Sample) -> f64) -> Verdict {
    let all: Vec<(&Life, Ends)> = judged(found).filter_map(|life| Some((life, ends(found, life, &of)?))).collect();
    if all.is_empty() {
        return Verdict::open(name, "no process has enough calm looks");
    }
    let says: Vec<String> = all.iter().map(|(life, ends)| format!("{}: {:.0} -> {:.0}", life.name, ends.first, ends.last)).collect();
    Verdict::new(name, all.iter().all(|(_, ends)| ends.last <= ends.first + more_max), says.join("; "))
}

fn latency(found: &Findings) -> Verdict {
    const NAME: &str = "latency";
    let [first, _, last] = found.quiet;
    if first.count == 0 || last.count == 0 {
        return Verdict::open(NAME, "a third of the run has no calm requests");
    }
    let drift = last.p99_ns as f64 / first.p99_ns.max(1) as f64;
    let ms = |ns: u64| ns as f64 / 1e6;
    let says = format!(
        "p99 without faults {:.2} ms in the first third, {:.2} ms in the last: {drift:.2} times",
        ms(first.p99_ns),
        ms(last.p99_ns)
    );
    let verdict = if found.length >= LONG {
        let [before, _, now] = found.floor.map(|floor| floor as f64 / 1e3);
        let slower = if before > 0.0 { (now / before).max(1.0) } else { 1.0 };
        let most = DRIFT_MAX * slower;
        let because = format!(
            "word to a thread that sleeps on another core and back took {before:.0} us and {now:.0}, so at most {most:.2} are allowed"
        );
        Verdict::new(NAME, drift <= most, format!("{says}; {because}"))
    } else {
        let held = drift <= SHORT_DRIFT_MAX || last.p99_ns <= SHORT_P99_NS;
        let bound = format!("a short run allows {SHORT_DRIFT_MAX} times, or {:.0} ms", ms(SHORT_P99_NS));
        Verdict::new(NAME, held, format!("{says}; {bound}"))
    };
    match noise(found) {
        // Two times are compared, and noise may have made either of them what it is.
        Some(noise) if found.noise.is_void() => verdict.not_judged(&noise),
        noise => verdict.unless(noise),
    }
}

fn rate(found: &Findings) -> Verdict {
    let Sums { meant, accepted, refused, .. } = &found.sums;
    let share = *accepted as f64 / (*meant).max(1) as f64;
    let late = found.lateness.p99_ns;
    let says = format!(
        "{accepted} of {meant} messages accepted ({:.2} %), {} refused; the load was late by {:.1} ms at most in 99 %",
        share * 100.0,
        refused.values().sum::<u64>(),
        late as f64 / 1e6
    );
    let held = Verdict::new("rate", share >= RATE_LEAST, says.clone());
    // Too many refusals are the cluster's, unless others had the cores; being late may be the machine's.
    let noise = noise(found);
    if held.outcome == Outcome::Failed {
        held.unless(noise.filter(|_| found.noise.is_void()))
    } else {
        Verdict::new("rate", late <= LATE_NS_MAX, says).unless(noise)
    }
}

#[cfg(test)]
#[path = "judge_tests.rs"]
mod tests;
