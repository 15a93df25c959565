//! `bench all`: every row in a process of its own, then one page; with `--report` in a directory, with pictures.

use std::{
    fs, io,
    path::Path,
    process::{Command, ExitCode, Stdio},
};

use clap::ValueEnum;
use serde_json::{Value, json};

use super::{
    BenchArgs, Name,
    environment::commit,
    heartbeat,
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

/// Runs all rows, or those that `--only` names, and prints the page or writes it to `dir`: anew after each row, as who stops it keeps what there is.
pub fn run(args: &BenchArgs, dir: Option<&Path>) -> Result<ExitCode, Failure> {
    let unwritable = |dir: &Path, error: Error| {
        let what = format!("the report could not be written to {}: {error}", dir.display());
        Failure::usage("E-CLI-054", what, "name another directory")
    };
    if let Some(dir) = dir {
        look(dir).map_err(|error| unwritable(dir, error))?;
    }
    let (commit, how) = (commit(), how(args));
    let rows: Vec<&Row> = ROWS.iter().filter(|row| args.only.is_empty() || args.only.iter().any(|id| id == row.id)).collect();
    let mut outcomes: Vec<Outcome> = vec![];
    for row in &rows {
        outcomes.push(outcome(args, dir, row));
        if let Some(dir) = dir {
            let left = rows.len() - outcomes.len();
            let page = page::markdown(&outcomes, &[], &[], &how, commit.as_deref(), left);
            replace(&dir.join(PAGE), &page).map_err(|error| unwritable(dir, error.into()))?;
        }
    }
    let steps = steps(args, &outcomes);
    let failed = outcomes.iter().filter(|outcome| outcome.said.is_err()).count();
    let shown: Vec<_> = pictures(&outcomes, &steps).filter(|_| dir.is_some()).collect();
    let page = page::markdown(&outcomes, &steps, &shown, &how, commit.as_deref(), 0);
    if let Some(dir) = dir {
        replace(&dir.join(PAGE), &page).map_err(|error| unwritable(dir, error.into()))?;
    }
    say(&if args.json {
        let row = |o: &Outcome| json!({"id": o.row.id, "said": o.said.as_ref().ok(), "error": o.said.as_ref().err()});
        json!({"name": "all", "rows": outcomes.iter().map(row).collect::<Vec<_>>()}).to_string()
    } else {
        dir.map_or_else(|| page.trim_end().to_owned(), |dir| dir.join(PAGE).display().to_string())
    })?;
    // Last: what was measured stands without them.
    if let Some(dir) = dir {
        draw(dir, &outcomes, &steps).map_err(|error| unwritable(dir, error))?;
    }
    match failed {
        0 => Ok(ExitCode::SUCCESS),
        _ => Err(Failure::unreachable("E-CLI-051", format!("{failed} rows could not be measured"), "the page says which and why")),
    }
}

fn outcome(args: &BenchArgs, dir: Option<&Path>, row: &'static Row) -> Outcome {
    note(row.args.join(" "));
    let said = runs(args, row).and_then(|runs| {
        let files = dir.map_or_else(|| Ok(vec![]), |dir| files(dir, row))?;
        measured(args, row.args, runs, &files)
    });
    if let Ok((_, aside)) = &said {
        pass_on(row.id, aside);
    }
    Outcome { row, said: said.map(|(said, _)| said).map_err(|error| error.to_string()) }
}

/// What a measurement that did not fail had to say: nobody would hear of it otherwise.
fn pass_on(row: &str, aside: &str) {
    aside.lines().for_each(|line| note(format_args!("{row}: {line}")));
}

/// The flags for the files of a row. What an earlier run has left there goes: if this one fails, it would be taken for what it measured.
fn files(dir: &Path, row: &Row) -> Result<Vec<String>, Error> {
    let endings: &[&str] = if has_latencies(row.args) { &["csv", "hgrm"] } else { &["csv"] };
    let mut flags = vec![];
    for ending in endings {
        let path = dir.join(format!("{}.{ending}", row.id));
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(format!("{}: {error}", path.display()).into()),
            _ => flags.extend([format!("--{ending}"), path.to_string_lossy().into_owned()]),
        }
    }
    Ok(flags)
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
    add("only", (!args.only.is_empty()).then(|| args.only.join(",")));
    add("idle", args.idle.clone());
    args.set.iter().for_each(|(key, value)| add("set", Some(format!("{key}={value}"))));
    how
}

/// Requests on the usual cores with the usual settings: the picture of percentiles shows these.
fn has_latencies(args: &[&str]) -> bool {
    matches!(args, ["local-ask" | "remote-ask", rest @ ..] if !rest.contains(&"--one-core") && !rest.contains(&"--set"))
}

/// What another process of this program says of one measurement, and aside of it on standard error.
fn measured(args: &BenchArgs, what: &[&str], runs: Option<u32>, more: &[String]) -> Result<(Value, String), Error> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("bench").args(flags(args, what, runs)).args(more);
    let output = command.stdin(Stdio::null()).output()?;
    let aside = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    if output.status.success() { Ok((serde_json::from_slice(&output.stdout)?, aside)) } else { Err(aside.into()) }
}

/// What a row is measured with. Its own flags stand behind those of the user, so they win: they are what it is about.
fn flags(args: &BenchArgs, what: &[&str], runs: Option<u32>) -> Vec<String> {
    let (name, own) = what.split_first().map_or(("", &[][..]), |(name, own)| (*name, own));
    let mut flags = vec![name.to_owned(), "--json".to_owned()];
    let mut add = |flag: &str, value: Option<String>| flags.extend(value.into_iter().flat_map(|value| [flag.to_owned(), value]));
    let measured = |has: fn(Name) -> bool| Name::from_str(name, false).is_ok_and(has);
    let secs = args.secs.filter(|_| measured(|name| name.has_time() && !name.is_one_long_run()));
    // A tail wants as many as it has by itself, and more do no harm.
    let least = if measured(|name| name == Name::HeartbeatDelay) { heartbeat::SECS } else { 0.0 };
    add("--secs", secs.map(|secs| secs.max(least).to_string()));
    add("--runs", runs.map(|runs| runs.to_string()));
    if measured(Name::has_nodes) {
        add("--idle", args.idle.clone().filter(|_| !own.contains(&"--idle")));
        args.set.iter().for_each(|(key, value)| add("--set", Some(format!("{key}={value}"))));
    }
    if measured(Name::has_entities) {
        add("--entities", args.entities.filter(|_| !own.contains(&"--entities")).map(|entities| entities.to_string()));
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
            Ok((said, aside)) => {
                pass_on("remote-ask", &aside);
                steps.push(Step { rate, said });
            }
            // The page shows the rates that there are.
            Err(error) => note(format_args!("not measured: {error}")),
        }
    }
    steps
}

/// Makes the directory, and looks whether it takes the files that it is to hold, before an hour is spent on them.
fn look(dir: &Path) -> Result<(), Error> {
    fs::create_dir_all(dir)?;
    for file in [PAGE, PERCENTILES.0, CURVE.0] {
        super::look(&dir.join(file)).map_err(|error| format!("{file}: {error}"))?;
    }
    Ok(())
}

/// Puts a text in the place of a file, so that whoever reads it, or stops this, has the one or the other.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    let new = path.with_extension("new");
    fs::write(&new, text)?;
    fs::rename(&new, path)
}

/// Rows whose percentiles are drawn.
fn drawn(outcomes: &[Outcome]) -> impl Iterator<Item = &Outcome> {
    outcomes.iter().filter(|outcome| has_latencies(outcome.row.args) && outcome.said.is_ok())
}

/// The pictures that there is something for.
fn pictures(outcomes: &[Outcome], steps: &[Step]) -> impl Iterator<Item = (&'static str, &'static str)> {
    let there = [(PERCENTILES, drawn(outcomes).next().is_some()), (CURVE, !steps.is_empty())];
    there.into_iter().filter(|(_, there)| *there).map(|(picture, _)| picture)
}

/// Draws them.
fn draw(dir: &Path, outcomes: &[Outcome], steps: &[Step]) -> Result<(), Error> {
    let mut series = Vec::new();
    for outcome in drawn(outcomes) {
        let lines = percentiles::parse(&fs::read_to_string(dir.join(format!("{}.hgrm", outcome.row.id)))?);
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
    let curve = curve(steps);
    for (file, _) in pictures(outcomes, steps) {
        fs::write(dir.join(file), if file == CURVE.0 { &curve } else { &percentiles }.svg())?;
    }
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
        assert_eq!(row, "local-ask --json --secs 1 --idle low_latency --set node.workers=1 --entities 50 --set node.workers=2");
        assert_eq!(flags(&args, &["remote-ask", "--idle", "low_cpu"], Some(1)).join(" ").matches("--idle").count(), 1);
        assert_eq!(flags(&args, &["codec"], None).join(" "), "codec --json --secs 1", "it has no nodes");
        for row in [&["foreign-load"][..], &["timer"], &["memory", "--entities", "1000000"]] {
            assert!(!flags(&args, row, Some(1)).join(" ").contains("--secs"), "{row:?}: it has a time of its own, or none");
        }
        assert_eq!(flags(&args, &["memory", "--entities", "1000000"], None).join(" ").matches("--entities").count(), 1);
        assert!(!flags(&args, &["idle"], None).join(" ").contains("--entities"), "it has none");
        assert!(flags(&args, &["heartbeat-delay"], None).join(" ").contains("--secs 10 "), "its p99.9 wants a thousand");
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
        fs::create_dir(dir.join(CURVE.0)).unwrap();
        let error = look(&dir).unwrap_err().to_string();
        fs::remove_dir_all(&dir).unwrap();
        assert!(error.starts_with(CURVE.0), "{error}");
    }

    /// Who gives the same flags to all rows must not be refused by one of them an hour later.
    #[test]
    fn every_row_takes_the_flags_of_all() {
        let args =
            BenchArgs::of(["all", "--secs", "1", "--runs", "5", "--entities", "2000", "--idle", "balanced", "--set", "node.workers=1"])
                .unwrap();
        for row in ROWS {
            let flags = flags(&args, row.args, runs(&args, row).unwrap());
            BenchArgs::of(flags.iter().map(String::as_str)).unwrap().check().unwrap_or_else(|error| panic!("{}: {error}", row.id));
        }
    }

    #[test]
    fn a_page_takes_the_place_of_the_one_before_and_old_files_of_a_row_go() {
        let dir = std::env::temp_dir().join(format!("wingbeat-all-files-{}", std::process::id()));
        look(&dir).unwrap();
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 0, "nothing stays that says nothing");
        replace(&dir.join(PAGE), "one").unwrap();
        replace(&dir.join(PAGE), "two").unwrap();
        let row = ROWS.iter().find(|row| row.id == "remote-ask").unwrap();
        fs::write(dir.join("remote-ask.csv"), "old").unwrap();
        let flags = files(&dir, row).unwrap();
        let (page, left) = (fs::read_to_string(dir.join(PAGE)).unwrap(), fs::read_dir(&dir).unwrap().count());
        fs::remove_dir_all(&dir).unwrap();
        assert_eq!((page.as_str(), left), ("two", 1), "{flags:?}");
        assert!(flags.len() == 4 && flags[0] == "--csv" && flags[3].ends_with("remote-ask.hgrm"), "{flags:?}");
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
