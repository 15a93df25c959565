//! `wingbeat soak`: five node processes and a load for minutes or hours, a fault every now and then, and verdicts in the end.
//!
//! `plan` draws the faults from a seed and `faults` does them; `stage` keeps the nodes; `load` sends and `books` and `ledger` keep what must be true of
//! it; `watch` looks at the processes; `judge` gives verdicts on all of that, and `report` writes them down.

mod books;
mod faults;
mod floor;
mod judge;
mod ledger;
mod load;
mod plan;
mod report;
mod stage;
mod watch;

use std::{
    path::PathBuf,
    process::ExitCode,
    sync::{Arc, atomic::AtomicUsize},
    time::{Duration, Instant},
};

use clap::Args;
use hdrhistogram::Histogram;
use wingbeat::{Config, config::Preset};

use self::{
    judge::{Findings, Latency, Noise, Outcome, Verdict},
    load::Load,
    plan::{Plan, Step},
    stage::Stage,
    watch::{Second, Watch},
};
use crate::{
    bench::environment,
    fail::{self, Exit, Failure},
    heap,
    interrupt::{self, asked_to_end},
    out::{note, say},
};

/// Messages per second.
const RATE: u64 = 2_000;
/// No fault begins so shortly before the end: it has to heal while the load still runs.
const LAST_FAULT: Duration = Duration::from_secs(20);
pub const MINUTES_MAX: f64 = 7.0 * 24.0 * 60.0;

/// Load, faults and watching for a long time, and verdicts in the end.
#[derive(Args, Clone, Debug)]
pub struct SoakArgs {
    /// How long the load lasts. From 20 on it is judged as a long soak, from 120 on the slope of memory is judged, too
    #[arg(long, value_name = "M", default_value_t = 30.0)]
    minutes: f64,
    /// Which faults come in which order, and which messages; drawn and printed if it is not given
    #[arg(long, value_name = "N", value_parser = fail::seed, allow_negative_numbers = true)]
    seed: Option<u64>,
    /// Messages per second, in steps of 1,000
    #[arg(long, value_name = "N", default_value_t = RATE, value_parser = clap::value_parser!(u64).range(1_000..=100_000))]
    rate: u64,
    /// How idle threads of the nodes wait: low_latency, balanced, low_cpu. Six nodes on few cores want the last
    #[arg(long, default_value = "low_cpu")]
    idle: String,
    /// Writes soak.md, soak.csv and pictures to this directory
    #[arg(long, value_name = "DIR")]
    report: Option<PathBuf>,
    /// Print one JSON object on standard output
    #[arg(long)]
    json: bool,
}

/// What is to be done.
#[derive(Clone, Debug)]
pub struct Options {
    pub length: Duration,
    pub seed: u64,
    pub rate: u64,
    pub idle: String,
}

/// What came of it.
pub struct Soaked {
    pub options: Options,
    /// Shortest and longest time between two faults.
    pub spacing: (Duration, Duration),
    pub found: Findings,
    pub verdicts: Vec<Verdict>,
    pub seconds: Vec<Second>,
    pub environment: serde_json::Value,
    /// What was built, if that is known.
    pub commit: Option<String>,
    /// Where the logs were left, if something failed.
    pub logs: Option<PathBuf>,
}

impl Soaked {
    /// No verdict failed. There may be some of which this run cannot tell.
    pub fn holds(&self) -> bool {
        self.of(Outcome::Failed).is_empty()
    }

    /// Which verdicts came out so.
    pub fn of(&self, outcome: Outcome) -> Vec<&'static str> {
        self.verdicts.iter().filter(|verdict| verdict.outcome == outcome).map(|verdict| verdict.name).collect()
    }
}

/// Runs a soak.
pub fn run(args: &SoakArgs) -> Result<ExitCode, Failure> {
    if !(args.minutes > 0.0 && args.minutes <= MINUTES_MAX) {
        let what = format!("--minutes {} is out of range: above 0, at most {MINUTES_MAX:.0}", args.minutes);
        return Err(Failure::usage("E-CLI-063", what, "30 is a soak, 3 a short one"));
    }
    if let Some(dir) = &args.report {
        // Before hours are spent on what it is to hold.
        report::prepare(dir)?;
    }
    let length = Duration::from_secs_f64(60.0 * args.minutes);
    let options = Options { length, seed: seed(args.seed), rate: args.rate / 1_000 * 1_000, idle: args.idle.clone() };
    perform(options, args.json, report::json, |soaked| args.report.iter().try_for_each(|dir| report::write(soaked, dir)))
}

/// `wingbeat bench soak`: the same, and the object of the contract of `bench --json`. `csv` gets the load, second by second.
pub fn bench(secs: f64, idle: Option<&str>, json: bool, csv: Option<&std::path::Path>) -> Result<ExitCode, Failure> {
    let options = Options { length: Duration::from_secs_f64(secs), seed: seed(None), rate: RATE, idle: idle.unwrap_or("low_cpu").into() };
    perform(options, json, report::bench_json, |soaked| csv.iter().try_for_each(|path| report::write_load(soaked, path)))
}

/// Soaks, and tells what was found before it is written anywhere. One that was interrupted has found what it has found.
fn perform(
    options: Options,
    json: bool,
    as_json: impl Fn(&Soaked) -> serde_json::Value,
    write: impl Fn(&Soaked) -> Result<(), Failure>,
) -> Result<ExitCode, Failure> {
    Config::preset(Preset::LocalTest)
        .set("node.idle", &toml::Value::String(options.idle.clone()))
        .map_err(|error| Failure::usage("E-CLI-010", format!("--idle: {error}"), "low_cpu is the usual one for a soak"))?;
    let interrupted = interrupt::flag()?;
    let soaked = match (soak(options, interrupted.clone(), !json), asked_to_end(&interrupted)) {
        // What is missing is what it was told to leave.
        (Err(_), Some(exit)) => return Ok(exit),
        (soaked, _) => soaked?,
    };
    say(&if json { as_json(&soaked).to_string() } else { report::page(&soaked) })?;
    write(&soaked)?;
    Ok(match asked_to_end(&interrupted) {
        Some(exit) => exit,
        None if soaked.holds() => ExitCode::SUCCESS,
        None => Exit::Unhealthy.into(),
    })
}

/// A seed that people can type.
fn seed(given: Option<u64>) -> u64 {
    given.unwrap_or_else(|| std::time::UNIX_EPOCH.elapsed().map_or(1, |since| since.as_micros() as u64 % 1_000_000))
}

/// Time that counts for nothing: buffers fill, entities start.
fn warm_up(length: Duration) -> Duration {
    if length >= Duration::from_secs(600) { Duration::from_secs(120) } else { (length / 6).min(Duration::from_secs(20)) }
}

/// The soak itself.
pub fn soak(options: Options, interrupted: Arc<AtomicUsize>, shown: bool) -> Result<Soaked, Failure> {
    let tell = |text: String| {
        if shown {
            note(text)
        }
    };
    let broken = |why: String| Failure::unhealthy("E-CLI-031", why, "this is a fault of the program");
    // This process is a node, too, and is judged like the others.
    heap::keep_small();
    let own_panics = hear_panics();
    // As of now: the sources may be others when hours have passed.
    let commit = environment::commit();
    let (length, warm_up) = (options.length, warm_up(options.length));
    let plan = Plan::new(options.seed, length);
    let spacing = plan.spacing();
    let (least, most) = (spacing.0.as_secs(), spacing.1.as_secs());
    tell(format!("seed {}: {} messages/s for {:.0} s, a fault each {least} to {most} s", options.seed, options.rate, length.as_secs_f64()));
    let mut stage = Stage::set(&options.idle, plan.coordinators(), Instant::now(), interrupted)?;
    tell(format!("{} node processes and the load's node are up; logs in {}", plan::NODES, stage.nodes.dir().display()));
    let machine = environment::Load::now();
    let load = Load::start(&stage.cluster, &stage.regions, options.seed, options.rate, warm_up, length).map_err(broken)?;
    let watch = Watch::start(stage.seen.clone(), load.books.clone(), load.fault.clone(), load.began).map_err(broken)?;

    let mut found = Findings { length, warm_up, ..Findings::default() };
    if let Err(failure) = drive(&mut stage, &load, plan, &mut found, &tell) {
        found.broken = Some(failure.what);
    }
    if stage.is_interrupted() {
        // What it was cut down to is judged by what it is.
        (found.interrupted, found.length) = (true, load.began.elapsed());
    }
    let seen = watch.finish();
    let foreign = machine.and_then(|machine| machine.foreign_since());
    stage.hear_drops();
    found.drops = stage.drops();
    let books = load.books.clone();
    if let Err(why) = load.finish() {
        found.broken.get_or_insert(why);
    }
    stage.hear_drops();
    found.drops = stage.drops();
    found.said = stage.said.lock().clone();
    found.panics = panics(stage.nodes.dir());
    found.panics.append(&mut own_panics.lock());
    let stalls = seen.stalls.map(|stalls| latency_of(&stalls)).unwrap_or_default();
    found.noise = Noise { foreign, stall_p99_ns: stalls.p99_ns, stall_max_ns: stalls.max_ns };
    found.lives = seen.lives;
    found.floor = floor::by_third(&seen.seconds, warm_up, found.length);
    let books = books.lock();
    found.sums = books.sums.clone();
    found.quiet = books.quiet.each_ref().map(latency_of);
    (found.faulted, found.lateness) = (latency_of(&books.faulted), latency_of(&books.lateness));
    let verdicts = judge::judge(&found);
    let environment = environment::environment(foreign);
    let mut soaked = Soaked { options, spacing, found, verdicts, seconds: seen.seconds, environment, commit, logs: None };
    if !soaked.holds() {
        stage.nodes.keep();
        soaked.logs = Some(stage.nodes.dir().to_owned());
    }
    Ok(soaked)
}

/// One fault after the other, until the time is over.
fn drive(stage: &mut Stage, load: &Load, plan: Plan, found: &mut Findings, tell: &impl Fn(String)) -> Result<(), Failure> {
    let until = |stage: &Stage, time: Duration| stage.pass(time.saturating_sub(load.began.elapsed()));
    let unhealed = |why: String| Failure::unhealthy("E-CLI-064", why, "look at the logs of the nodes");
    let whole = |stage: &mut Stage, when: &str| match stage.wait_whole(Duration::from_secs(60))? {
        Err(_) if stage.is_interrupted() => Ok(()),
        came => came.map(drop).map_err(|why| unhealed(format!("{when}: {why}"))),
    };
    until(stage, found.warm_up);
    whole(stage, "after the warm-up")?;
    let mut last = load.began.elapsed();
    for step in plan {
        let due = last + step.after;
        if due + LAST_FAULT > found.length || stage.is_interrupted() {
            break;
        }
        until(stage, due);
        if !load.is_running() {
            return Err(unhealed("the load ended before its time".into()));
        }
        last = load.began.elapsed();
        let Step { kind, lasts, .. } = step;
        let fault = faults::act(stage, load, &step)?;
        let came = match (&fault.healed, &fault.wrong) {
            (Some(Ok(took)), None) => format!("whole after {took:.1} s"),
            (Some(Ok(took)), Some(wrong)) => format!("{wrong}; whole after {took:.1} s"),
            (Some(Err(missing)), _) => format!("NOT whole in time: {missing}"),
            (None, _) => "not whole when the run ended".into(),
        };
        tell(format!("{:>7.1} s  {kind:<8}{} ({:.1} s): {came}", fault.at, fault.whom, lasts.as_secs_f64()));
        let missing = fault.healed.clone().and_then(Result::err);
        found.faults.push(fault);
        if let Some(missing) = missing {
            return Err(unhealed(format!("a cluster that is not whole cannot go on: {missing}")));
        }
    }
    until(stage, found.length);
    whole(stage, "in the end")
}

fn latency_of(seen: &Histogram<u64>) -> Latency {
    let q = |p| if seen.is_empty() { 0 } else { seen.value_at_quantile(p) };
    Latency { count: seen.len(), p50_ns: q(0.5), p90_ns: q(0.9), p99_ns: q(0.99), p999_ns: q(0.999), max_ns: seen.max() }
}

/// Lines of logs in that directory that tell of a panic or an abort, or of a log that says nothing as it cannot be read.
fn panics(dir: &std::path::Path) -> Vec<String> {
    const SIGNS: [&str; 3] = ["panicked at", "memory allocation of", "stack overflow"];
    let unread = |what: &std::path::Path, error: std::io::Error| vec![format!("{} cannot be read: {error}", what.display())];
    let files = match std::fs::read_dir(dir).and_then(Iterator::collect::<Result<Vec<_>, _>>) {
        Ok(files) => files,
        Err(error) => return unread(dir, error),
    };
    let logs = files.iter().map(std::fs::DirEntry::path).filter(|path| path.extension().is_some_and(|end| end == "log"));
    let lines = logs.flat_map(|path| {
        let text = match std::fs::read(&path) {
            Ok(text) => text,
            Err(error) => return unread(&path, error),
        };
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let text = String::from_utf8_lossy(&text);
        text.lines().filter(|line| SIGNS.iter().any(|sign| line.contains(sign))).map(|line| format!("{name}: {line}")).collect()
    });
    lines.collect()
}

/// What panics in this process from now on, beside being told as before: the load's node has no log.
fn hear_panics() -> Arc<parking_lot::Mutex<Vec<String>>> {
    let heard = Arc::<parking_lot::Mutex<Vec<String>>>::default();
    let (found, before) = (heard.clone(), std::panic::take_hook());
    std::panic::set_hook(Box::new(move |info| {
        found.lock().push(format!("the load's node: {}", info.to_string().replace('\n', " ")));
        before(info);
    }));
    heard
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panics_are_found_in_logs_and_nowhere_else() {
        let dir = std::env::temp_dir().join(format!("wingbeat-soak-test-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("node-1.log"), "all is well\nthread 'w0' panicked at x.rs:1\n").unwrap();
        std::fs::write(dir.join("node-1.out"), "panicked at").unwrap();
        assert_eq!(panics(&dir), ["node-1: thread 'w0' panicked at x.rs:1"]);
        std::fs::write(dir.join("node-2.log"), b"\xff\nmemory allocation of 7 bytes failed\n").unwrap();
        assert!(panics(&dir).contains(&"node-2: memory allocation of 7 bytes failed".to_owned()));
        std::fs::remove_dir_all(&dir).unwrap();
        assert_eq!(panics(&dir).len(), 1, "that nothing can be read is not that there was nothing");
    }

    #[test]
    fn a_length_that_makes_no_sense_is_refused_before_anything_starts() {
        for minutes in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            let args = SoakArgs { minutes, seed: None, rate: RATE, idle: "low_cpu".into(), report: None, json: false };
            assert_eq!(run(&args).unwrap_err().code, "E-CLI-063");
        }
    }

    #[test]
    fn a_short_run_warms_up_shortly() {
        let of = |secs| warm_up(Duration::from_secs(secs)).as_secs();
        assert_eq!((of(60), of(180), of(1_800)), (10, 20, 120));
    }
}
