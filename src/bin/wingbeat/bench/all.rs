//! `bench all --report`: every row in a process of its own, then one page with pictures.

use std::{
    path::Path,
    process::{Command, ExitCode, Stdio},
};

use serde_json::{Value, json};

use super::{
    BenchArgs,
    page::{self, Outcome, Step},
    percentiles,
    plot::{Across, Chart, Series},
    rig::Error,
    targets::ROWS,
};

/// Shares of the peak at which latency is measured.
const STEPS: [f64; 6] = [0.1, 0.25, 0.5, 0.75, 0.9, 1.1];
const PERCENTILES: &str = "ask-percentiles.svg";
const CURVE: &str = "ask-throughput-latency.svg";

/// Runs all rows and writes the page.
pub fn run(args: &BenchArgs, dir: &Path) -> ExitCode {
    match report(args, dir) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(failed) => {
            eprintln!("error[E-CLI-051]: {failed} rows could not be measured; the page says which and why");
            ExitCode::from(2)
        }
        Err(error) => {
            eprintln!("error[E-CLI-051]: the report could not be written to {}: {error}", dir.display());
            ExitCode::from(2)
        }
    }
}

/// How many rows failed.
fn report(args: &BenchArgs, dir: &Path) -> Result<usize, Error> {
    std::fs::create_dir_all(dir)?;
    let mut outcomes = Vec::new();
    for row in ROWS {
        eprintln!("{}", row.args.join(" "));
        let file = |ending: &str| dir.join(format!("{}.{ending}", row.id)).to_string_lossy().into_owned();
        let mut more = vec!["--csv".to_owned(), file("csv")];
        if has_latencies(row.args) {
            more.extend(["--hgrm".to_owned(), file("hgrm")]);
        }
        let said = measured(args, row.args, args.runs, &more).map_err(|error| error.to_string());
        outcomes.push(Outcome { row, said });
    }
    let steps = steps(args, &outcomes);
    let pictures = pictures(dir, &outcomes, &steps)?;
    let how = format!("wingbeat bench all --secs {} --runs {}", args.secs, args.runs);
    std::fs::write(dir.join("bench.md"), page::markdown(&outcomes, &steps, &pictures, &how))?;
    let rows: Vec<Value> =
        outcomes.iter().map(|o| json!({"id": o.row.id, "said": o.said.as_ref().ok(), "error": o.said.as_ref().err()})).collect();
    if args.json {
        println!("{}", json!({"name": "all", "rows": rows}));
    } else {
        println!("{}", dir.join("bench.md").display());
    }
    Ok(outcomes.iter().filter(|outcome| outcome.said.is_err()).count())
}

/// Requests on the usual cores with the usual settings: the picture of percentiles shows these.
fn has_latencies(args: &[&str]) -> bool {
    matches!(args, ["local-ask" | "remote-ask", rest @ ..] if !rest.contains(&"--one-core") && !rest.contains(&"--set"))
}

/// What another process of this program says of one measurement.
fn measured(args: &BenchArgs, what: &[&str], runs: u32, more: &[String]) -> Result<Value, Error> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("bench").args(what).args(["--json", "--secs", &args.secs.to_string(), "--runs", &runs.to_string()]).args(more);
    if !what.contains(&"--idle") {
        command.args(["--idle", args.idle()]);
    }
    for (key, value) in &args.set {
        command.args(["--set", &format!("{key}={value}")]);
    }
    if let Some(entities) = args.entities {
        command.args(["--entities", &entities.to_string()]);
    }
    let output = command.stdin(Stdio::null()).output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).trim().to_owned().into());
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// Latency as the rate grows towards the peak that a row has found, and beyond; empty if it has found none.
fn steps(args: &BenchArgs, outcomes: &[Outcome]) -> Vec<Step> {
    let half = outcomes.iter().find(|outcome| outcome.row.id == "remote-ask-half").and_then(|outcome| outcome.said.as_ref().ok());
    let Some(half) = half.and_then(|said| said["details"]["rate_per_s"].as_f64()) else { return Vec::new() };
    let mut steps = Vec::new();
    for share in STEPS {
        let rate = (2.0 * half * share).round().max(1.0);
        eprintln!("remote-ask --rate {rate}");
        match measured(args, &["remote-ask", "--rate", &rate.to_string()], 1, &[]) {
            Ok(said) => steps.push(Step { rate, said }),
            // The page shows the rates that there are.
            Err(error) => eprintln!("not measured: {error}"),
        }
    }
    steps
}

/// Writes the pictures; their files and titles.
fn pictures(dir: &Path, outcomes: &[Outcome], steps: &[Step]) -> Result<Vec<(&'static str, &'static str)>, Error> {
    let mut series = Vec::new();
    for outcome in outcomes.iter().filter(|outcome| has_latencies(outcome.row.args) && outcome.said.is_ok()) {
        let lines = percentiles::parse(&std::fs::read_to_string(dir.join(format!("{}.hgrm", outcome.row.id)))?);
        // The last line is the longest of all, at a share of 1 that no axis of nines reaches.
        let points = lines.iter().filter(|line| line.share < 1.0).map(|line| (line.share, line.value)).collect();
        series.push(Series { label: outcome.row.id.to_owned(), points });
    }
    let percentiles = Chart {
        title: "Latency of asks by percentile".into(),
        across: Across::Percentiles,
        across_label: "percentile".into(),
        up_label: "microseconds".into(),
        series,
    };
    std::fs::write(dir.join(PERCENTILES), percentiles.svg())?;
    std::fs::write(dir.join(CURVE), curve(steps).svg())?;
    Ok(vec![(PERCENTILES, "Latency of asks by percentile"), (CURVE, "Latency of remote asks as the rate grows")])
}

fn curve(steps: &[Step]) -> Chart {
    let of = |label: &str, name: &str| {
        let point = |step: &Step| Some((step.said["throughput_per_s"].as_f64()?, step.said["latency_ns"][name].as_f64()? / 1e3));
        Series { label: label.into(), points: steps.iter().filter_map(point).collect() }
    };
    Chart {
        title: "Latency of remote asks as the rate grows".into(),
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
    fn a_curve_has_a_point_per_rate_and_percentile() {
        let said = |rate: f64| json!({"throughput_per_s": rate, "latency_ns": {"p50": 10_000, "p99": 50_000, "p999": 200_000}});
        let steps: Vec<Step> = [1000.0, 5000.0].map(|rate| Step { rate, said: said(rate) }).into();
        let chart = curve(&steps);
        assert_eq!(chart.series.iter().map(|s| s.points.len()).collect::<Vec<_>>(), [2, 2, 2]);
        assert_eq!(chart.series[1].points[1], (5000.0, 50.0));
    }
}
