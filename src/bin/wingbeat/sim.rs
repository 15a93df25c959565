//! `wingbeat sim`: runs a scenario in the simulator.

use std::{
    collections::BTreeMap,
    io::IsTerminal,
    ops::Range,
    path::PathBuf,
    process::ExitCode,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use wingbeat::{
    config::Span,
    sim::{self, Options, Place, RunResult, Scenario, ScenarioError, Summary},
};

use crate::{
    fail::{self, Exit, Failure},
    out::{note, say},
};

/// Arguments of `wingbeat sim`.
#[derive(clap::Args, Clone, Debug)]
pub struct SimArgs {
    /// The scenario file. A setting that names a node, like `downing.referee`, has node 3 as `n00003:7301`.
    scenario: PathBuf,
    /// The seed; overrides the file's.
    #[arg(long, value_name = "N", value_parser = fail::seed, allow_negative_numbers = true, conflicts_with = "seeds")]
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

/// Runs the subcommand.
pub fn run(args: &SimArgs) -> Result<ExitCode, Failure> {
    let file = args.scenario.display();
    let bytes = std::fs::read(&args.scenario).map_err(|error| {
        Failure::usage("E-SIM-001", format!("cannot read the scenario {file}: {error}"), "give the path of a scenario file")
    })?;
    let text = String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        Failure::usage("E-SIM-004", format!("the scenario {file} is no UTF-8 text: byte {at} is not (the first is 0)"), "save it as UTF-8")
    })?;
    let refused = |error| refused(args, &error);
    let scenario = Scenario::parse(&text, &args.set).map_err(refused)?;
    if args.minimise {
        return shrink(args, &text, args.seed.unwrap_or(scenario.seed));
    }
    let options = Options { trace: args.trace, progress: args.progress, ..Options::default() };
    let holds = match &args.seeds {
        Some(seeds) => {
            let runs = many(&scenario, seeds, &options, refused, |r| tell(r, args.json, false))?;
            summarise(&Summary::of(&runs), args.json)?;
            runs.iter().all(RunResult::holds)
        }
        None => {
            let r = sim::run(&scenario, args.seed.unwrap_or(scenario.seed), &options).map_err(refused)?;
            tell(&r, args.json, true)?;
            r.holds()
        }
    };
    Ok(if holds { ExitCode::SUCCESS } else { Exit::Unhealthy.into() })
}

/// Most runs that shrinking may take.
const SHRINK_RUNS_MAX: u32 = 2_000;

/// What is wrong with the scenario, and in which file if it is not in an override.
fn refused(args: &SimArgs, error: &ScenarioError) -> Failure {
    let what = match error.place {
        Place::Set(_) => error.to_string(),
        Place::Line(_) | Place::Nowhere => format!("{}: {error}", args.scenario.display()),
    };
    Failure::usage("E-SIM-002", what, "")
}

fn shrink(args: &SimArgs, text: &str, seed: u64) -> Result<ExitCode, Failure> {
    let m = sim::minimise(text, &args.set, seed, SHRINK_RUNS_MAX, &mut |step| note(step)).map_err(|error| refused(args, &error))?;
    if m.result.holds() {
        note(format_args!("{} holds under seed {seed}: there is nothing to shrink", args.scenario.display()));
        if args.json {
            say_json(&m.result)?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    if args.json {
        let r = &m.result;
        say(&serde_json::json!({"scenario": m.text, "seed": seed, "names": m.names, "runs": m.runs, "digest": r.digest}).to_string())?;
    } else {
        let violations = m.result.violations.iter().map(|v| format!("# {} at {:.6} s: {}", v.invariant, v.at_s, v.what));
        let failed = m.result.failed_why.iter().map(|why| format!("# {why}"));
        let mut lines = vec![format!("# Still fails under seed {seed} after {} runs: {}", m.runs, m.names.join(", "))];
        lines.extend(violations.chain(failed).take(3));
        lines.push(m.text.trim_end().to_owned());
        say(&lines.join("\n"))?;
    }
    Ok(Exit::Unhealthy.into())
}

/// Runs all seeds on all cores; `each` sees the results in the order of the seeds.
fn many(
    scenario: &Scenario,
    seeds: &Range<u64>,
    options: &Options,
    refused: impl Fn(ScenarioError) -> Failure,
    mut each: impl FnMut(&RunResult) -> Result<(), Failure>,
) -> Result<Vec<RunResult>, Failure> {
    let count = seeds.end - seeds.start;
    let cores = std::thread::available_parallelism().map_or(1, usize::from) as u64;
    let next = AtomicU64::new(0);
    let (tell, told) = std::sync::mpsc::channel();
    let mut early = BTreeMap::new();
    let mut out = Vec::new();
    std::thread::scope(|scope| -> Result<(), Failure> {
        // Dropped before the threads are waited for: nobody begins another seed then.
        let told = told;
        for _ in 0..cores.min(count) {
            let (tell, next) = (tell.clone(), &next);
            scope.spawn(move || {
                loop {
                    let i = next.fetch_add(1, Ordering::Relaxed);
                    if i >= count || tell.send((i, sim::run(scenario, seeds.start + i, options))).is_err() {
                        return;
                    }
                }
            });
        }
        drop(tell);
        for (i, result) in &told {
            early.insert(i, result);
            while let Some(result) = early.remove(&(out.len() as u64)) {
                let result = result.map_err(&refused)?;
                each(&result)?;
                out.push(result);
            }
        }
        Ok(())
    })?;
    Ok(out)
}

/// Says what came of a run, as a line of JSON or as text.
fn tell(r: &RunResult, json: bool, whole: bool) -> Result<(), Failure> {
    if json {
        return say_json(r);
    }
    let colour = std::io::stdout().is_terminal();
    let verdict = match (r.holds(), colour) {
        (true, true) => "\x1b[32mholds\x1b[0m",
        (true, false) => "holds",
        (false, true) => "\x1b[31mFAILED\x1b[0m",
        (false, false) => "FAILED",
    };
    let mut lines = vec![format!(
        "{} seed {}: {verdict}, {} nodes, {} s in {:.2} s, {} events, digest {}",
        r.scenario, r.seed, r.nodes, r.virtual_s, r.wall_s, r.events, r.digest
    )];
    if whole {
        lines.extend(table(r));
    }
    lines
        .extend(r.violations.iter().map(|v| format!("  violation of {} at {:.6} s, nodes {:?}: {}", v.invariant, v.at_s, v.nodes, v.what)));
    if r.violations_more > 0 {
        lines.push(format!("  and {} more", r.violations_more));
    }
    for u in &r.not_done {
        let whom = if u.nodes.is_empty() { String::new() } else { format!(" to {}", some_of(&u.nodes)) };
        lines.push(format!("  line {} did nothing{whom} at {:.3} s: {}", u.line, u.at_s, u.why));
    }
    for h in r.helped.iter().take(SHOWN) {
        let line = h.line.map_or_else(String::new, |line| format!("line {line}: "));
        lines.push(format!("  {line}n{} started at {:.3} s and asks n{} too, as none of its seeds ran", h.node, h.at_s, h.asks));
    }
    if r.helped.len() > SHOWN {
        lines.push(format!("  and {} more such starts", r.helped.len() - SHOWN));
    }
    lines.extend(r.failed_why.iter().map(|why| format!("  expected {why}")));
    if !r.holds() {
        lines.push(format!("  again with: --seed {}; who sent what: --trace T0..T1", r.seed));
    }
    say(&lines.join("\n"))
}

fn say_json(what: &impl serde::Serialize) -> Result<(), Failure> {
    let line = serde_json::to_string(what).map_err(|error| {
        Failure::usage("E-SIM-003", format!("the result cannot be written as JSON: {error}"), "this is a fault of the program")
    })?;
    say(&line)
}

/// Most nodes that a line names, and most notes of one kind.
const SHOWN: usize = 8;

/// Nodes by name, as many as a line holds.
fn some_of(nodes: &[u32]) -> String {
    let names: Vec<String> = nodes.iter().take(SHOWN).map(|n| format!("n{n}")).collect();
    let more = if nodes.len() > SHOWN { format!(" and {} more", nodes.len() - SHOWN) } else { String::new() };
    names.join(", ") + &more
}

fn table(r: &RunResult) -> impl Iterator<Item = String> {
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
    rows.into_iter().map(|(name, value)| format!("  {name:<34} {value}"))
}

fn summarise(s: &Summary, json: bool) -> Result<(), Failure> {
    if json {
        return say_json(s);
    }
    let failed = if s.failed_seeds.is_empty() { String::new() } else { format!(": {:?}", s.failed_seeds) };
    let mut lines = vec![
        format!("{} seeds, {} failed{failed}", s.seeds, s.failed_seeds.len()),
        format!("  {:<28} {:>12} {:>12} {:>12} {:>12}", "", "minimum", "median", "p99", "maximum"),
    ];
    for (name, f) in &s.figures {
        let show = |x: Option<f64>| x.map_or_else(|| "-".to_owned(), |x| format!("{x:.3}"));
        lines.push(format!("  {name:<28} {:>12} {:>12} {:>12} {:>12}", show(f.min), show(f.median), show(f.p99), show(f.max)));
    }
    say(&lines.join("\n"))
}

/// Most seeds of one range: their results are kept for the summary.
const SEEDS_MAX: u64 = 100_000;

fn seed_range(text: &str) -> Result<Range<u64>, String> {
    let wrong = || format!("\"{text}\" is no range of seeds; write A..B (B excluded), like 1..101");
    let (a, b) = text.split_once("..").ok_or_else(wrong)?;
    let (a, b): (u64, u64) = (a.trim().parse().map_err(|_| wrong())?, b.trim().parse().map_err(|_| wrong())?);
    match b.checked_sub(a) {
        None | Some(0) => Err(format!("the range of seeds {a}..{b} is empty; B must be above A")),
        Some(1..=SEEDS_MAX) => Ok(a..b),
        Some(count) => Err(format!("the range {a}..{b} has {count} seeds, at most {SEEDS_MAX} go at once; run parts of it")),
    }
}

/// As in a configuration; what has no unit is seconds.
fn duration(text: &str) -> Option<Duration> {
    match text.trim().parse::<f64>() {
        Ok(seconds) => Duration::try_from_secs_f64(seconds).ok(),
        Err(_) => text.trim().parse::<Span>().ok().map(Span::get),
    }
}

fn span(text: &str) -> Result<Duration, String> {
    let wrong = || format!("\"{text}\" is no span; write a time above 0, like 10s or 200ms");
    duration(text).filter(|span| !span.is_zero()).ok_or_else(wrong)
}

fn window(text: &str) -> Result<(Duration, Duration), String> {
    let wrong = || format!("\"{text}\" is no window; write T0..T1, like 12.5s..13s or 200ms..1s");
    let (a, b) = text.split_once("..").ok_or_else(wrong)?;
    match (duration(a), duration(b)) {
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
        assert_eq!(window("1ms..2ms"), Ok((Duration::from_millis(1), Duration::from_millis(2))));
        assert_eq!(window("1m..2m"), Ok((Duration::from_secs(60), Duration::from_secs(120))));
        for wrong in ["2..1", "1sss..2", "1..", "..2", "1s", "nan..inf", "-1..2"] {
            assert!(window(wrong).is_err(), "{wrong}");
        }
        assert_eq!(span("100ms"), Ok(Duration::from_millis(100)));
        assert_eq!(span("2.5s"), Ok(Duration::from_millis(2500)));
        assert!(span("0s").is_err() && span("soon").is_err());
    }
}
