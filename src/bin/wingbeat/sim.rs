//! `wingbeat sim`: runs a scenario in the simulator.

use std::{
    collections::BTreeMap,
    io::{IsTerminal, Write},
    ops::Range,
    path::PathBuf,
    process::ExitCode,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use wingbeat::sim::{self, Options, RunResult, Scenario, Summary};

/// Arguments of `wingbeat sim`.
#[derive(clap::Args, Clone, Debug)]
pub struct SimArgs {
    /// The scenario file.
    scenario: PathBuf,
    /// The seed; overrides the file's.
    #[arg(long, conflicts_with = "seeds")]
    seed: Option<u64>,
    /// Runs every seed from A to B (excluded), as many at once as there are cores.
    #[arg(long, value_name = "A..B", value_parser = seed_range)]
    seeds: Option<Range<u64>>,
    /// Overrides a key of the scenario or of the configuration, like `nodes=50` or `membership.gossip_interval=200ms`.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Prints who sent what in this window of virtual time, on standard error.
    #[arg(long, value_name = "T0..T1", value_parser = window, conflicts_with = "seeds")]
    trace: Option<(Duration, Duration)>,
    /// Tells how far the run is each time so much virtual time has passed, on standard error.
    #[arg(long, value_name = "SPAN", value_parser = span, conflicts_with = "seeds")]
    progress: Option<Duration>,
    /// Shrinks a scenario that fails while it still fails the same way, and prints what is left.
    #[arg(long, conflicts_with_all = ["seeds", "trace"])]
    minimise: bool,
    /// One JSON object per run on standard output.
    #[arg(long)]
    json: bool,
}

/// Exit code for a scenario that is refused.
const WRONG_USAGE: u8 = 1;
/// Exit code for an expectation or an invariant that failed.
const FAILED: u8 = 3;

/// Runs the subcommand.
pub fn run(args: SimArgs) -> ExitCode {
    let file = args.scenario.display();
    let text = match std::fs::read_to_string(&args.scenario) {
        Ok(text) => text,
        Err(error) => {
            eprintln!("error[E-SIM-001]: cannot read the scenario {file}: {error}; give the path of a scenario file");
            return ExitCode::from(WRONG_USAGE);
        }
    };
    let scenario = match Scenario::parse(&text, &args.set) {
        Ok(scenario) => scenario,
        Err(error) => {
            eprintln!("error[E-SIM-002]: {file}: {error}");
            return ExitCode::from(WRONG_USAGE);
        }
    };
    if args.minimise {
        return shrink(&args, &text, args.seed.unwrap_or(scenario.seed));
    }
    let options = Options { trace: args.trace, progress: args.progress, ..Options::default() };
    let seeds = args.seeds.clone().unwrap_or_else(|| {
        let seed = args.seed.unwrap_or(scenario.seed);
        seed..seed.saturating_add(1)
    });
    let outcome = if args.seeds.is_some() {
        many(&scenario, seeds, &options, |r| print(r, args.json, false))
    } else {
        sim::run(&scenario, seeds.start, &options).map(|r| {
            print(&r, args.json, true);
            vec![r]
        })
    };
    let runs = match outcome {
        Ok(runs) => runs,
        Err(error) => {
            eprintln!("error[E-SIM-002]: {file}: {error}");
            return ExitCode::from(WRONG_USAGE);
        }
    };
    if args.seeds.is_some() {
        summarise(&Summary::of(&runs), args.json);
    }
    if runs.iter().all(RunResult::holds) { ExitCode::SUCCESS } else { ExitCode::from(FAILED) }
}

/// Most runs that shrinking may take.
const SHRINK_RUNS_MAX: u32 = 2_000;

fn shrink(args: &SimArgs, text: &str, seed: u64) -> ExitCode {
    let file = args.scenario.display();
    let mut tell = |step: &str| eprintln!("{step}");
    match sim::minimise(text, &args.set, seed, SHRINK_RUNS_MAX, &mut tell) {
        Ok(Some(m)) if args.json => {
            let r = &m.result;
            say(&serde_json::json!({"scenario": m.text, "seed": seed, "names": m.names, "runs": m.runs, "digest": r.digest}).to_string());
            ExitCode::from(FAILED)
        }
        Ok(Some(m)) => {
            let found = m.result.violations.iter().map(|v| format!("{} at {:.6} s: {}", v.invariant, v.at_s, v.what));
            let found: Vec<String> = found.chain(m.result.failed_why.iter().cloned()).collect();
            say(&format!("# Still fails under seed {seed} after {} runs: {}", m.runs, m.names.join(", ")));
            found.iter().take(3).for_each(|f| say(&format!("# {f}")));
            say(m.text.trim_end());
            ExitCode::from(FAILED)
        }
        Ok(None) => {
            eprintln!("{file} holds under seed {seed}: there is nothing to shrink");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error[E-SIM-002]: {file}: {error}");
            ExitCode::from(WRONG_USAGE)
        }
    }
}

/// Runs all seeds on all cores; `each` sees the results in the order of the seeds.
fn many(
    scenario: &Scenario,
    seeds: Range<u64>,
    options: &Options,
    mut each: impl FnMut(&RunResult),
) -> Result<Vec<RunResult>, sim::ScenarioError> {
    let seeds: Vec<u64> = seeds.collect();
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(seeds.len());
    let next = AtomicUsize::new(0);
    let (tell, told) = std::sync::mpsc::channel();
    let mut early = BTreeMap::new();
    let mut out = Vec::with_capacity(seeds.len());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            let (tell, next, seeds) = (tell.clone(), &next, &seeds);
            scope.spawn(move || {
                while let Some((i, seed)) = Some(next.fetch_add(1, Ordering::Relaxed)).and_then(|i| Some((i, *seeds.get(i)?))) {
                    if tell.send((i, sim::run(scenario, seed, options))).is_err() {
                        return;
                    }
                }
            });
        }
        drop(tell);
        for (i, result) in &told {
            early.insert(i, result);
            while let Some(result) = early.remove(&out.len()) {
                let result = result?;
                each(&result);
                out.push(result);
            }
        }
        Ok(())
    })?;
    Ok(out)
}

fn print(r: &RunResult, json: bool, whole: bool) {
    if json {
        match serde_json::to_string(r) {
            Ok(line) => say(&line),
            Err(error) => eprintln!("error[E-SIM-003]: the result of seed {} cannot be written as JSON: {error}", r.seed),
        }
        return;
    }
    let colour = std::io::stdout().is_terminal();
    let verdict = match (r.holds(), colour) {
        (true, true) => "\x1b[32mholds\x1b[0m",
        (true, false) => "holds",
        (false, true) => "\x1b[31mFAILED\x1b[0m",
        (false, false) => "FAILED",
    };
    say(&format!(
        "{} seed {}: {verdict}, {} nodes, {} s in {:.2} s, {} events, digest {}",
        r.scenario, r.seed, r.nodes, r.virtual_s, r.wall_s, r.events, r.digest
    ));
    if whole {
        table(r);
    }
    for v in &r.violations {
        say(&format!("  violation of {} at {:.6} s, nodes {:?}: {}", v.invariant, v.at_s, v.nodes, v.what));
    }
    if r.violations_more > 0 {
        say(&format!("  and {} more", r.violations_more));
    }
    for u in &r.not_done {
        let whom = if u.nodes.is_empty() { String::new() } else { format!(" to {}", some_of(&u.nodes)) };
        say(&format!("  line {} did nothing{whom} at {:.3} s: {}", u.line, u.at_s, u.why));
    }
    for why in &r.failed_why {
        say(&format!("  expected {why}"));
    }
    if !r.holds() {
        say(&format!("  again with: --seed {}; who sent what: --trace T0..T1", r.seed));
    }
}

/// Nodes by name, as many as a line holds.
fn some_of(nodes: &[u32]) -> String {
    const SHOWN: usize = 8;
    let names: Vec<String> = nodes.iter().take(SHOWN).map(|n| format!("n{n}")).collect();
    let more = if nodes.len() > SHOWN { format!(" and {} more", nodes.len() - SHOWN) } else { String::new() };
    names.join(", ") + &more
}

fn table(r: &RunResult) {
    let seconds = |x: Option<f64>| x.map_or_else(|| "-".to_owned(), |x| format!("{x:.3} s"));
    let rows = [
        ("all up at", seconds(r.all_up_at_s)),
        ("all reachable at", seconds(r.all_reachable_at_s)),
        ("converged at", seconds(r.converged_at_s)),
        ("sizes seen", r.sizes_seen.to_string()),
        ("detected after, longest", seconds(r.detect_s.max)),
        ("known after, longest", seconds(r.known_s.max)),
        ("removed after, longest", seconds(r.removal_s.max)),
        ("view changes, most", r.view_changes_max.to_string()),
        ("false unreachable, false removals", format!("{}, {}", r.false_unreachable, r.false_removals)),
        ("members removed", r.removed.to_string()),
        ("survivors", format!("{} in {} group(s)", r.survivors, r.survivor_groups)),
        ("bytes per node and second", r.bytes_per_node_per_s.mean.map_or_else(|| "-".to_owned(), |x| format!("{x:.0}"))),
        ("sent, delivered", format!("{}, {}", r.sent, r.delivered)),
        (
            "dropped",
            if r.dropped.is_empty() {
                "0".to_owned()
            } else {
                r.dropped.iter().map(|(k, n)| format!("{k} {n}")).collect::<Vec<_>>().join(", ")
            },
        ),
        ("lost, reordered, duplicated", format!("{}, {}, {}", r.lost, r.reordered, r.duplicated)),
    ];
    for (name, value) in rows {
        say(&format!("  {name:<34} {value}"));
    }
}

fn summarise(s: &Summary, json: bool) {
    if json {
        match serde_json::to_string(s) {
            Ok(line) => say(&line),
            Err(error) => eprintln!("error[E-SIM-003]: the summary cannot be written as JSON: {error}"),
        }
        return;
    }
    say(&format!(
        "{} seeds, {} failed{}",
        s.seeds,
        s.failed_seeds.len(),
        if s.failed_seeds.is_empty() { String::new() } else { format!(": {:?}", s.failed_seeds) }
    ));
    say(&format!("  {:<28} {:>12} {:>12} {:>12} {:>12}", "", "minimum", "median", "p99", "maximum"));
    for (name, f) in &s.figures {
        let show = |x: Option<f64>| x.map_or_else(|| "-".to_owned(), |x| format!("{x:.3}"));
        say(&format!("  {name:<28} {:>12} {:>12} {:>12} {:>12}", show(f.min), show(f.median), show(f.p99), show(f.max)));
    }
}

/// Standard output may be a pipe that its reader closed; that ends the process quietly, as for other tools.
fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    if writeln!(out, "{line}").and_then(|()| out.flush()).is_err() {
        std::process::exit(0);
    }
}

fn seed_range(text: &str) -> Result<Range<u64>, String> {
    let wrong = || format!("\"{text}\" is no range of seeds; write A..B (B excluded), like 1..101");
    let (a, b) = text.split_once("..").ok_or_else(wrong)?;
    let (a, b) = (a.trim().parse().map_err(|_| wrong())?, b.trim().parse().map_err(|_| wrong())?);
    if a < b { Ok(a..b) } else { Err(format!("the range of seeds {a}..{b} is empty; B must be above A")) }
}

fn seconds(text: &str) -> Option<Duration> {
    text.trim().trim_end_matches('s').parse::<f64>().ok().and_then(|x| Duration::try_from_secs_f64(x).ok())
}

fn span(text: &str) -> Result<Duration, String> {
    let wrong = || format!("\"{text}\" is no span; write seconds above 0, like 10s");
    seconds(text).filter(|span| !span.is_zero()).ok_or_else(wrong)
}

fn window(text: &str) -> Result<(Duration, Duration), String> {
    let wrong = || format!("\"{text}\" is no window; write T0..T1 in seconds, like 12.5s..13s");
    let (a, b) = text.split_once("..").ok_or_else(wrong)?;
    match (seconds(a), seconds(b)) {
        (Some(a), Some(b)) if a <= b => Ok((a, b)),
        _ => Err(wrong()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_and_windows_are_checked() {
        assert_eq!(seed_range("1..3"), Ok(1..3));
        assert!(seed_range("3..3").unwrap_err().contains("empty"));
        assert!(seed_range("3").unwrap_err().contains("A..B"));
        assert_eq!(window("1.5s..2"), Ok((Duration::from_millis(1500), Duration::from_secs(2))));
        assert!(window("2..1").is_err());
        assert_eq!(span("2.5s"), Ok(Duration::from_millis(2500)));
        assert!(span("0s").is_err() && span("soon").is_err());
    }
}
