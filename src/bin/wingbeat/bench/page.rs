//! The page of `bench all`.

use std::fmt::Write;

use serde_json::Value;

use super::targets::{Check, Row, Unit, number};

/// What came of a row: what `bench --json` said, or why there is nothing.
pub struct Outcome {
    pub row: &'static Row,
    pub said: Result<Value, String>,
}

/// A point of a curve of latency over rate: what was asked for, and what `bench --json` said.
pub struct Step {
    pub rate: f64,
    pub said: Value,
}

/// Rows of the targets that no row here measures.
const ABSENT: &str = "Not measured by this command: TLS, peers beside us, soak.";

/// The page, in Markdown. `pictures` are file names beside it, each with its title; `commit` is what was built, if that is known; `left` rows
/// are still to come.
pub fn markdown(outcomes: &[Outcome], steps: &[Step], pictures: &[(&str, &str)], how: &str, commit: Option<&str>, left: usize) -> String {
    let mut page = String::from("# What was measured\n\n");
    let _ = writeln!(page, "`{how}`\n");
    if left > 0 {
        let _ = writeln!(page, "Not complete: rows that had not been measured yet: {left}.\n");
    }
    environment(&mut page, outcomes, commit);
    page += "Each figure is the median of its rounds, measured in turns with its limit; the ratio is that of the round. Spread is the largest deviation of a \
             round's figure from the median. `void`: too few rounds were quiet, mostly as others used more than 15 % of the cores, so the row proves nothing and holds \
             nothing; why stands below. \
             Slowest core: what the slowest one did right before and behind the rounds (the median), as a share of what one did at best on this page; where it \
             has less, its clock was lower, or somebody outside of this machine, who is in no foreign load, had the rest.\n\n\
             | measurement | figure | limit | ratio | spread | void rounds | foreign load | slowest core | must | aim | holds |\n\
             | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n";
    let speed = |outcome: &Outcome, which: &str| outcome.said.as_ref().ok()?["environment"]["core_steps_per_s"][which].as_f64();
    let best = outcomes.iter().filter_map(|outcome| speed(outcome, "fastest")).reduce(f64::max);
    for outcome in outcomes {
        for check in outcome.row.checks {
            match &outcome.said {
                Ok(said) => line(&mut page, check, said, speed(outcome, "slowest").zip(best).map(|(slowest, best)| slowest / best)),
                Err(why) => drop(writeln!(
                    page,
                    "| {} | failed: {} | | | | | | | {} | {} | **failed** |",
                    check.what,
                    cell(why),
                    check.must,
                    check.aim
                )),
            }
        }
    }
    page += "\nMust and aim are of the ratio, or of the figure itself: for `start`, `memory`, `idle`, `simulator`, `heartbeat-delay`, `failover` with \
             proof of death, allocations, failed requests and suspicions; for `growth` of the larger ratio of bytes and events. `low_cpu` on one core is to be \
             below the best peer, which is in no row here: its bounds are 1.66, coerce's ratio to this limit where it was measured beside us, and three quarters of \
             it. Limits by row:\n\n";
    for outcome in outcomes {
        if let Some(name) = outcome.said.as_ref().ok().and_then(|said| said["limit"]["name"].as_str()) {
            let _ = writeln!(page, "* `{}`: {}", outcome.row.args.join(" "), cell(name));
        }
    }
    void(&mut page, outcomes);
    details(&mut page, outcomes);
    for (file, title) in pictures {
        let _ = writeln!(page, "\n![{title}]({file})");
    }
    curve(&mut page, steps);
    let _ = writeln!(page, "\n{ABSENT}");
    page
}

/// Why rows are void.
fn void(page: &mut String, outcomes: &[Outcome]) {
    let of = |outcome: &Outcome| Some((outcome.row.args.join(" "), outcome.said.as_ref().ok()?["void_because"].as_str()?.to_owned()));
    let all: Vec<_> = outcomes.iter().filter_map(of).collect();
    if !all.is_empty() {
        page.push_str("\nVoid:\n\n");
    }
    for (row, why) in all {
        let _ = writeln!(page, "* `{row}`: {}", cell(&why));
    }
}

/// One line: no row may break the table.
fn cell(text: &str) -> String {
    text.trim().replace('|', "/").lines().collect::<Vec<_>>().join(" ")
}

fn environment(page: &mut String, outcomes: &[Outcome], commit: Option<&str>) {
    let all = || outcomes.iter().filter_map(|outcome| outcome.said.as_ref().ok());
    let Some(said) = all().find(|row| row["config"]["secs"].is_number()).or_else(|| all().next()) else { return };
    // One that lasts for longer has fewer, as its line says.
    let alike = all().filter(|row| row["config"]["secs"] == said["config"]["secs"]);
    let runs = alike.filter_map(|row| row["config"]["runs"].as_u64()).min().unwrap_or(0);
    let secs = said["config"]["secs"].as_f64().map_or_else(String::new, |secs| format!(" of {secs} s"));
    let commit = commit.map_or_else(String::new, |commit| format!(" of commit {commit}"));
    let of = |name: &str| said["environment"][name].as_str().unwrap_or("unknown").to_owned();
    let debug = if said["environment"]["debug_build"] == true { ", **debug build: figures mean nothing**" } else { "" };
    let (cores, config) = (&said["environment"]["cores"], &said["config"]);
    let _ = writeln!(
        page,
        "{}, {cores} cores, {} {}, wingbeat {}{commit}{debug}; at least {runs} rounds{secs}, idle preset {}, messages of {} bytes.\n",
        of("cpu"),
        of("os"),
        of("arch"),
        of("version"),
        config["idle"].as_str().unwrap_or("unknown"),
        config["payload_bytes"],
    );
}

/// `speed` is that of the slowest core, as a share of the best.
fn line(page: &mut String, check: &Check, said: &Value, speed: Option<f64>) {
    let at = |pointer: &str| said.pointer(pointer).and_then(Value::as_f64);
    let written = |pointer: &str| at(pointer).map_or_else(|| "-".to_owned(), |value| check.unit.write(value));
    // A figure that is compared with nothing has no ratio either.
    let ratio = match (check.limit, check.figure) {
        ("", _) => None,
        (_, "/latency_ns/p99") => at("/ratio_p99"),
        _ => at("/ratio"),
    };
    let share = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{:.0} %", value * 100.0));
    let _ = writeln!(
        page,
        "| {} | {} | {} | {} | {} | {} of {} | {} | {} | {} | {} | {} |",
        check.what,
        written(check.figure),
        written(check.limit),
        ratio.map_or_else(|| "-".to_owned(), number),
        share(at(&format!("/spreads{}", check.figure))),
        said["rounds"]["void"],
        said["rounds"]["measured"],
        share(at("/environment/foreign_load")),
        share(speed),
        check.must,
        check.aim,
        check.judge(said),
    );
}

fn details(page: &mut String, outcomes: &[Outcome]) {
    let mut lines = String::new();
    for outcome in outcomes {
        let Ok(said) = &outcome.said else { continue };
        let peak = said["config"]["peak_per_s"].as_f64().map(|peak| format!("peak_per_s {}", number(peak)));
        for (part, details, peak) in [("", &said["details"], peak), ("limit's ", &said["limit"]["details"], None)] {
            let figures = details.as_object().into_iter().flatten();
            let figures = figures.filter_map(|(name, value)| Some(format!("{name} {}", number(value.as_f64()?))));
            let all: Vec<String> = peak.into_iter().chain(figures).collect();
            if all.is_empty() {
                continue;
            }
            let _ = writeln!(lines, "* `{}`: {part}{}", outcome.row.args.join(" "), all.join(", "));
        }
    }
    if !lines.is_empty() {
        let _ = write!(page, "\nWhat figures are made of:\n\n{lines}");
    }
}

fn curve(page: &mut String, steps: &[Step]) {
    if steps.is_empty() {
        return;
    }
    page.push_str(
        "\nRemote asks at a fixed rate, latency from the moment at which each was meant to go:\n\n\
         | rate | reached | p50 | p99 | p99.9 | longest | |\n| --- | --- | --- | --- | --- | --- | --- |\n",
    );
    for Step { rate, said } in steps {
        let us = |name: &str| said["latency_ns"][name].as_f64().map_or_else(|| "-".to_owned(), |ns| Unit::Time.write(ns));
        let reached = said["throughput_per_s"].as_f64().map_or_else(|| "-".to_owned(), |rate| format!("{}/s", number(rate)));
        let void = if said["void"] == true { "void" } else { "" };
        let _ =
            writeln!(page, "| {}/s | {reached} | {} | {} | {} | {} | {void} |", number(*rate), us("p50"), us("p99"), us("p999"), us("max"));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{super::targets::ROWS, *};

    fn said() -> Value {
        json!({
            "config": {"runs": 5, "secs": 2.0, "idle": "balanced", "payload_bytes": 64}, "throughput_per_s": 2.37e6, "ratio": 0.119, "ratio_p99": null,
            "limit": {"name": "S_raw | stream", "throughput_per_s": 20.4e6}, "spread": 0.05, "spreads": {"throughput_per_s": 0.05}, "void": false, "rounds": {"measured": 6, "void": 1},
            "allocations_per_message": 0.0, "details": {"rate_per_s": 1000.0},
            "environment": {"cpu": "a cpu", "cores": 2, "os": "linux", "arch": "x86_64", "version": "1", "foreign_load": 0.04, "debug_build": false,
                "core_steps_per_s": {"slowest": 6e8, "fastest": 8e8}},
        })
    }

    fn row(id: &str) -> &'static Row {
        ROWS.iter().find(|row| row.id == id).unwrap()
    }

    #[test]
    fn a_row_says_figure_limit_ratio_and_what_it_holds() {
        let page = markdown(
            &[Outcome { row: row("remote-tell"), said: Ok(said()) }],
            &[],
            &[("a.svg", "asks")],
            "wingbeat bench all",
            Some("12ab"),
            7,
        );
        assert!(
            page.contains(
                "| remote tell, batches | 2.37 M/s | 20.40 M/s | 0.119 | 5 % | 1 of 6 | 4 % | 75 % | >= 0.15 | >= 0.3 | **missed** |"
            ),
            "{page}"
        );
        assert!(page.contains("| allocations per remote tell, sender | 0 | - | - |"), "{page}");
        assert!(
            page.contains("a cpu, 2 cores, linux x86_64, wingbeat 1 of commit 12ab; at least 5 rounds of 2 s,")
                && page.contains("had not been measured yet: 7.")
                && page.contains("![asks](a.svg)")
                && page.contains("rate_per_s 1000")
        );
    }

    #[test]
    fn void_rows_are_marked_and_failed_ones_say_why() {
        let mut void = said();
        (void["void"], void["void_because"]) = (true.into(), "others used all".into());
        let failed = Err("no\nanswer | in time".to_owned());
        let page = markdown(
            &[Outcome { row: row("remote-tell"), said: Ok(void) }, Outcome { row: row("codec"), said: failed }],
            &[],
            &[],
            "x",
            None,
            0,
        );
        assert!(page.contains(">= 0.3 | void |") && page.contains("* `remote-tell`: others used all\n"), "{page}");
        assert!(!page.contains("Not complete"), "{page}");
        assert!(page.contains("| failed: no answer / in time |") && page.contains("**failed**"), "{page}");
    }

    #[test]
    fn every_line_of_the_table_has_all_columns() {
        let outcomes: Vec<_> =
            ROWS.iter().map(|row| Outcome { row, said: if row.id == "idle" { Err("x".into()) } else { Ok(said()) } }).collect();
        let step = Step { rate: 1000.0, said: said() };
        let page = markdown(&outcomes, &[step], &[], "x", None, 0);
        for line in page.lines().filter(|line| line.starts_with('|')) {
            let columns = line.matches('|').count() - 1;
            assert!(columns == 11 || columns == 7, "{columns}: {line}");
        }
    }
}
