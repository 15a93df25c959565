//! `bench all`: every row in a process of its own, then one page; with `--report` in a directory, with pictures.

use std::{
    fs::OpenOptions,
    path::Path,
    process::{Command, ExitCode, Stdio},
};

use clap::ValueEnum;
use serde_json::{Value, json};

use super::{
    BenchArgs, Name,
    environment::commit,
    page::{self, Outcome, Step},
    percentiles,
    plot::{Across, Chart, Series},
    rig::Error,
    targets::{ROWS, Row},
};
use crate::{
    fail::Failure,
    out::{note, say},
};

/// Shares of the peak at which latency is measured.
const STEPS: [f64; 6] = [0.1, 0.25, 0.5, 0.75, 0.9, 1.1];
const PAGE: &str = "bench.md";
/// Files of the pictures, and their titles.
const PERCENTILES: (&str, &str) = ("ask-percentiles.svg", "Latency of asks by percentile");
const CURVE: (&str, &str) = ("ask-throughput-latency.svg", "Latency of remote asks as the rate grows");
const PICTURES: [(&str, &str); 2] = [PERCENTILES, CURVE];

/// Runs all rows, and prints the page or writes it to `dir`.
pub fn run(args: &BenchArgs, dir: Option<&Path>) -> Result<ExitCode, Failure> {
    let unwritable = |dir: &Path, error: Error| {
        let what = format!("the report could not be written to {}: {error}", dir.display());
        Failure::usage("E-CLI-054", what, "name another directory")
    };
    if let Some(dir) = dir {
        look(dir).map_err(|error| unwritable(dir, error))?;
    }
    let commit = commit();
    let outcomes: Vec<Outcome> = ROWS.iter().map(|row| outcome(args, dir, row)).collect();
    let steps = steps(args, &outcomes);
    let failed = outcomes.iter().filter(|outcome| outcome.said.is_err()).count();
    let shown: &[_] = if dir.is_some() { &PICTURES } else { &[] };
    let page = page::markdown(&outcomes, &steps, shown, &how(args), commit.as_deref());
    if let Some(dir) = dir {
        std::fs::write(dir.join(PAGE), &page).map_err(|error| unwritable(dir, error.into()))?;
    }
    say(&if args.json {
        let row = |o: &Outcome| json!({"id": o.row.id, "said": o.said.as_ref().ok(), "error": o.said.as_ref().err()});
        json!({"name": "all", "rows": outcomes.iter().map(row).collect::<Vec<_>>()}).to_string()
    } else {
        dir.map_or_else(|| page.trim_end().to_owned(), |dir| dir.join(PAGE).display().to_string())
    })?;
    // Last: what was measured stands without them.
    if let Some(dir) = dir {
        pictures(dir, &outcomes, &steps).map_err(|error| unwritable(dir, error))?;
    }
    match failed {
        0 => Ok(ExitCode::SUCCESS),
        _ => Err(Failure::unreachable("E-CLI-051", format!("{failed} rows could not be measured"), "the page says which and why")),
    }
}

fn outcome(args: &BenchArgs, dir: Option<&Path>, row: &'static Row) -> Outcome {
    note(row.args.join(" "));
    let mut more = vec![];
    if let Some(dir) = dir {
        let file = |ending: &str| dir.join(format!("{}.{ending}", row.id)).to_string_lossy().into_owned();
        more.extend(["--csv".to_owned(), file("csv")]);
        if has_latencies(row.args) {
            more.extend(["--hgrm".to_owned(), file("hgrm")]);
        }
    }
    let said = runs(args, row).and_then(|runs| measured(args, row.args, runs, &more));
    Outcome { row, said: said.map_err(|error| error.to_string()) }
}

/// Runs of a row: its own number, which its figures need, or more. One long run stays one.
fn runs(args: &BenchArgs, row: &Row) -> Result<Option<u32>, Error> {
    let own = BenchArgs::of(row.args.iter().copied())?;
    Ok(args.runs.map(|runs| if own.name.is_one_long_run() { own.runs() } else { runs.max(own.runs()) }))
}

/// The command that made the page.
fn how(args: &BenchArgs) -> String {
    let mut how = "wingbeat bench all".to_owned();
    let mut add = |flag: &str, value: Option<String>| how.extend(value.map(|value| format!(" --{flag} {value}")));
    add("secs", args.secs.map(|secs| secs.to_string()));
    add("runs", args.runs.map(|runs| runs.to_string()));
    add("entities", args.entities.map(|entities| entities.to_string()));
    add("idle", args.idle.clone());
    args.set.iter().for_each(|(key, value)| add("set", Some(format!("{key}={value}"))));
    how
}

/// Requests on the usual cores with the usual settings: the picture of percentiles shows these.
fn has_latencies(args: &[&str]) -> bool {
    matches!(args, ["local-ask" | "remote-ask", rest @ ..] if !rest.contains(&"--one-core") && !rest.contains(&"--set"))
}

/// What another process of this program says of one measurement.
fn measured(args: &BenchArgs, what: &[&str], runs: Option<u32>, more: &[String]) -> Result<Value, Error> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("bench").args(flags(args, what, runs)).args(more);
    let output = command.stdin(Stdio::null()).output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).trim().to_owned().into());
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// What a row is measured with. Its own flags stand behind those of the user, so they win: they are what it is about.
fn flags(args: &BenchArgs, what: &[&str], runs: Option<u32>) -> Vec<String> {
    let (name, own) = what.split_first().map_or(("", &[][..]), |(name, own)| (*name, own));
    let mut flags = vec![name.to_owned(), "--json".to_owned()];
    let mut add = |flag: &str, value: Option<String>| flags.extend(value.into_iter().flat_map(|value| [flag.to_owned(), value]));
    let measured = Name::from_str(name, false);
    let secs = args.secs.filter(|_| !measured.as_ref().is_ok_and(|name| name.is_one_long_run()));
    add("--secs", secs.map(|secs| secs.to_string()));
    add("--runs", runs.map(|runs| runs.to_string()));
    if measured.is_ok_and(Name::has_nodes) {
        add("--idle", args.idle.clone().filter(|_| !own.contains(&"--idle")));
        add("--entities", args.entities.map(|entities| entities.to_string()));
        args.set.iter().for_each(|(key, value)| add("--set", Some(format!("{key}={value}"))));
    }
    flags.extend(own.iter().map(|flag| (*flag).to_owned()));
    flags
}

/// Latency as the rate grows towards the peak that a row has found, and beyond; empty if it has found none.
fn steps(args: &BenchArgs, outcomes: &[Outcome]) -> Vec<Step> {
    let half = outcomes.iter().find(|outcome| outcome.row.id == "remote-ask-half").and_then(|outcome| outcome.said.as_ref().ok());
    let Some(half) = half.and_then(|said| said["details"]["rate_per_s"].as_f64()) else { return Vec::new() };
    let mut steps = Vec::new();
    for share in STEPS {
        let rate = (2.0 * half * share).round().max(1.0);
        note(format_args!("remote-ask --rate {rate}"));
        match measured(args, &["remote-ask", "--rate", &rate.to_string()], Some(1), &[]) {
            Ok(said) => steps.push(Step { rate, said }),
            // The page shows the rates that there are.
            Err(error) => note(format_args!("not measured: {error}")),
        }
    }
    steps
}

/// Makes the directory and the files that it is to hold, before an hour is spent on them.
fn look(dir: &Path) -> Result<(), Error> {
    std::fs::create_dir_all(dir)?;
    for file in [PAGE, PERCENTILES.0, CURVE.0] {
        OpenOptions::new().append(true).create(true).open(dir.join(file)).map_err(|error| format!("{file}: {error}"))?;
    }
    Ok(())
}

/// Writes the pictures.
fn pictures(dir: &Path, outcomes: &[Outcome], steps: &[Step]) -> Result<(), Error> {
    let mut series = Vec::new();
    for outcome in outcomes.iter().filter(|outcome| has_latencies(outcome.row.args) && outcome.said.is_ok()) {
        let lines = percentiles::parse(&std::fs::read_to_string(dir.join(format!("{}.hgrm", outcome.row.id)))?);
        // The last line is the longest of all, at a share of 1 that no axis of nines reaches.
        let points = lines.iter().filter(|line| line.share < 1.0).map(|line| (line.share, line.value)).collect();
        series.push(Series { label: outcome.row.id.to_owned(), points });
    }
    let percentiles = Chart {
        title: PERCENTILES.1.into(),
        across: Across::Percentiles,
        across_label: "percentile".into(),
        up_label: "microseconds".into(),
        series,
    };
    std::fs::write(dir.join(PERCENTILES.0), percentiles.svg())?;
    std::fs::write(dir.join(CURVE.0), curve(steps).svg())?;
    Ok(())
}

fn curve(steps: &[Step]) -> Chart {
    let of = |label: &str, name: &str| {
        let point = |step: &Step| Some((step.said["throughput_per_s"].as_f64()?, step.said["latency_ns"][name].as_f64()? / 1e3));
        Series { label: label.into(), points: steps.iter().filter_map(point).collect() }
    };
    Chart {
        title: CURVE.1.into(),
        across: Across::Linear,
        across_label: "requests per second, reached".into(),
        up_label: "microseconds from the intended send time".into(),
        series: vec![of("p50", "p50"), of("p99", "p99"), of("p99.9", "p999")],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_flags_of_a_row_win_over_those_of_the_user() {
        let line = ["all", "--report", "d", "--set", "node.workers=1", "--idle", "low_latency", "--entities", "50", "--secs", "1"];
        let args = BenchArgs::of(line).unwrap();
        let row = flags(&args, &["local-ask", "--set", "node.workers=2"], None).join(" ");
        assert_eq!(row, "local-ask --json --secs 1 --idle low_latency --entities 50 --set node.workers=1 --set node.workers=2");
        assert_eq!(flags(&args, &["remote-ask", "--idle", "low_cpu"], Some(1)).join(" ").matches("--idle").count(), 1);
        assert_eq!(flags(&args, &["codec"], None).join(" "), "codec --json --secs 1", "it has no nodes");
        assert_eq!(flags(&args, &["foreign-load"], Some(1)).join(" ").matches("--secs").count(), 0, "a minute is what it is about");
        assert_eq!(how(&args), "wingbeat bench all --secs 1 --entities 50 --idle low_latency --set node.workers=1");
    }

    #[test]
    fn the_user_may_raise_the_runs_of_a_row_but_not_lower_them() {
        let row = |id: &str| ROWS.iter().find(|row| row.id == id).unwrap();
        let of = |all: &[&str], id: &str| runs(&BenchArgs::of(["all"].iter().chain(all).copied()).unwrap(), row(id)).unwrap();
        assert_eq!(of(&["--runs", "5"], "remote-ask"), Some(9), "its p99 wants nine");
        assert_eq!(of(&["--runs", "12"], "remote-ask"), Some(12));
        assert_eq!((of(&["--runs", "1"], "codec"), of(&["--runs", "7"], "codec")), (Some(5), Some(7)));
        assert_eq!(of(&[], "remote-ask"), None);
        assert_eq!((of(&["--runs", "5"], "foreign-load"), of(&["--runs", "5"], "network-turn")), (Some(1), Some(1)), "one long run");
    }

    #[test]
    fn what_cannot_be_written_is_seen_before_anything_is_measured() {
        let dir = std::env::temp_dir().join(format!("wingbeat-all-{}", std::process::id()));
        look(&dir).unwrap();
        std::fs::remove_file(dir.join(CURVE.0)).unwrap();
        std::fs::create_dir(dir.join(CURVE.0)).unwrap();
        let error = look(&dir).unwrap_err().to_string();
        std::fs::remove_dir_all(&dir).unwrap();
        assert!(error.starts_with(CURVE.0), "{error}");
    }

    #[test]
    fn a_curve_has_a_point_per_rate_and_percentile() {
        let said = |rate: f64| json!({"throughput_per_s": rate, "latency_ns": {"p50": 10_000, "p99": 50_000, "p999": 200_000}});
        let steps: Vec<Step> = [1000.0, 5000.0].map(|rate| Step { rate, said: said(rate) }).into();
        let chart = curve(&steps);
        assert_eq!(chart.series.iter().map(|s| s.points.len()).collect::<Vec<_>>(), [2, 2, 2]);
        assert_eq!(chart.series[1].points[1], (5000.0, 50.0));
    }
}
