//! What a soak says: a page for people, JSON for machines, and the files of `--report`.

use std::{fmt::Write, fs, io, path::Path};

use serde_json::{Value, json};

use super::{
    Soaked,
    judge::{Fault, Latency, Outcome, ends, judged, median},
    plan::{KINDS, Kind},
    watch::{Life, Sample, Second},
};
use crate::{
    bench::plot::{Across, Chart, Series},
    fail::Failure,
    out::note,
};

/// Files of a report, in the order in which they are written.
const FILES: [&str; 5] = ["soak.md", "soak.csv", "soak-load.csv", "soak-memory.svg", "soak-latency.svg"];

const NOT_WHOLE: &str = "not whole when the run ended";

fn mark(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Held => "ok",
        Outcome::Failed => "FAILED",
        Outcome::Open => "open",
    }
}

fn ms(ns: u64) -> f64 {
    ns as f64 / 1e6
}

/// Median, 99th percentile and so on, on one line.
fn latencies(of: &Latency) -> String {
    if of.count == 0 {
        return "none".into();
    }
    let Latency { count, p50_ns, p99_ns, p999_ns, max_ns, .. } = *of;
    format!("p50 {:.2}, p99 {:.2}, p99.9 {:.1}, longest {:.0} ms of {count}", ms(p50_ns), ms(p99_ns), ms(p999_ns), ms(max_ns))
}

/// Counts by name on one line.
fn counts<K: AsRef<str>>(of: impl IntoIterator<Item = (K, u64)>) -> String {
    let all: Vec<String> = of.into_iter().map(|(name, count)| format!("{} {count}", name.as_ref())).collect();
    if all.is_empty() { "none".into() } else { all.join(", ") }
}

/// What came of the load, a line each: name and text.
fn figures(soaked: &Soaked) -> Vec<(&'static str, String)> {
    let found = &soaked.found;
    let sums = &found.sums;
    let by = |map: &std::collections::BTreeMap<&'static str, u64>| counts(map.iter().map(|(name, count)| (*name, *count)));
    let noise = &found.noise;
    let foreign = noise.foreign.map_or_else(|| "unknown".to_owned(), |share| format!("{:.0} %", share * 100.0));
    vec![
        ("messages", format!("{} accepted of {}, {} of them asked, {} answered", sums.accepted, sums.meant, sums.asked, sums.answered)),
        ("refused at once", by(&sums.refused)),
        ("asks that failed", by(&sums.failed)),
        ("dead letters at the sender", by(&sums.dead_letters)),
        ("drops on nodes", counts(found.drops.iter().map(|(name, count)| (name, *count)))),
        ("without faults, first third", latencies(&found.quiet[0])),
        ("second third", latencies(&found.quiet[1])),
        ("last third", latencies(&found.quiet[2])),
        ("while a fault was open", latencies(&found.faulted)),
        ("the load's own lateness", latencies(&found.lateness)),
        ("the load's thread", format!("ran {:.1} s, waited {:.1} s for a core", sums.ran.as_secs_f64(), sums.waited.as_secs_f64())),
        ("members removed", found.said.removed.to_string()),
        (
            "the machine",
            format!(
                "others used {foreign}; an idle thread woke {:.1} ms late in 1 %, {:.0} ms at most; word to a thread that sleeps on another core and back took {} us in the three thirds",
                ms(noise.stall_p99_ns),
                ms(noise.stall_max_ns),
                found.floor.map(|floor| format!("{:.0}", floor as f64 / 1e3)).join(", ")
            ),
        ),
    ]
}

/// Faults of one kind: those that healed, or those after which the cluster was not whole when the run ended.
struct Alike {
    kind: Kind,
    count: usize,
    /// How many seconds it took in the middle, and at most.
    healed: Option<(f64, f64)>,
}

fn alike(faults: &[Fault]) -> Vec<Alike> {
    let of = |kind| {
        let all = || faults.iter().filter(|fault| fault.kind == kind);
        let took: Vec<f64> = all().filter_map(Fault::healed_in).collect();
        let (count, other) = (took.len(), all().count() - took.len());
        let longest = took.iter().copied().fold(0.0, f64::max);
        [Alike { kind, count, healed: Some((median(took), longest)) }, Alike { kind, count: other, healed: None }]
    };
    KINDS.into_iter().flat_map(of).filter(|alike| alike.count > 0).collect()
}

/// The page that a person reads in a minute.
pub fn page(soaked: &Soaked) -> String {
    let (options, found) = (&soaked.options, &soaked.found);
    let mut page = format!(
        "soak of {:.0} s, seed {}, {} messages/s, {} faults\n\n",
        options.length.as_secs_f64(),
        options.seed,
        options.rate,
        found.faults.len()
    );
    for verdict in &soaked.verdicts {
        let _ = writeln!(page, "{:<7}{:<15} {}", mark(verdict.outcome), verdict.name, verdict.says);
    }
    page.push('\n');
    for (name, text) in figures(soaked) {
        let _ = writeln!(page, "{name:<28} {text}");
    }
    for Alike { kind, count, healed } in alike(&found.faults) {
        let came = healed.map_or_else(
            || NOT_WHOLE.to_owned(),
            |(middle, longest)| format!("whole again after {middle:.1} s in the middle, {longest:.1} s at most"),
        );
        let _ = writeln!(page, "{kind:<8} {count:>3}, {came}");
    }
    for example in &found.sums.examples {
        let _ = writeln!(page, "wrong: {example}");
    }
    if let Some(logs) = &soaked.logs {
        let _ = writeln!(page, "logs of the nodes: {}", logs.display());
    }
    let (failed, open) = (soaked.of(Outcome::Failed), soaked.of(Outcome::Open));
    page.push_str(&match (failed.is_empty(), open.is_empty()) {
        (false, _) => format!("\nFAILED: {}", failed.join(", ")),
        (true, true) => "\nall verdicts hold".to_owned(),
        (true, false) => format!("\nno verdict failed; this run cannot tell: {}", open.join(", ")),
    });
    page
}

fn latency_json(of: &Latency) -> Value {
    json!({"count": of.count, "p50": of.p50_ns, "p90": of.p90_ns, "p99": of.p99_ns, "p999": of.p999_ns, "max": of.max_ns})
}

/// Everything, for machines.
pub fn json(soaked: &Soaked) -> Value {
    let (options, found) = (&soaked.options, &soaked.found);
    let sums = &found.sums;
    let fault = |fault: &Fault| {
        json!({"at_s": fault.at, "kind": fault.kind.name(), "whom": fault.whom, "entities_lost": fault.entities_lost,
               "healed_s": fault.healed_in(), "missing": fault.healed.clone().and_then(Result::err), "wrong": fault.wrong,
               "untold_drops": fault.untold})
    };
    let life = |life: &Life| {
        let of = |get: fn(&Sample) -> f64| ends(found, life, get).map(|ends| json!([ends.first, ends.last]));
        json!({"name": life.name, "anchor": life.anchor, "looks": life.samples.len(), "rss_kib": of(|s| s.rss), "record_kib": of(|s| s.record),
               "anon_kib": of(|s| s.anon), "pss_kib": of(|s| s.pss), "descriptors": of(|s| s.descriptors), "threads": of(|s| s.threads)})
    };
    json!({
        "name": "soak",
        "seconds": options.length.as_secs_f64(),
        "seed": options.seed,
        "rate_per_s": options.rate,
        "idle": options.idle,
        "holds": soaked.holds(), "open": soaked.of(Outcome::Open),
        "failed": soaked.verdicts.iter().filter(|v| v.outcome == Outcome::Failed).map(|v| v.name).collect::<Vec<_>>(),
        "verdicts": soaked.verdicts.iter().map(|v| json!({"name": v.name, "outcome": mark(v.outcome), "says": v.says})).collect::<Vec<_>>(),
        "messages": {
            "meant": sums.meant, "accepted": sums.accepted, "asked": sums.asked, "answered": sums.answered, "refused": sums.refused,
            "failed": sums.failed, "dead_letters": sums.dead_letters, "dropped": found.drops, "reordered": sums.faults.reordered,
            "duplicated": sums.faults.duplicated, "lost": sums.faults.lost, "two_homes": sums.faults.two_homes,
            "contradicted": sums.faults.contradicted, "calm_failures": sums.calm_failures, "told": sums.told, "examples": sums.examples,
        },
        "latency_ns": {
            "thirds": found.quiet.iter().map(latency_json).collect::<Vec<_>>(), "faulted": latency_json(&found.faulted),
            "lateness": latency_json(&found.lateness),
        },
        "membership": {"removed": found.said.removed, "false_removals": found.said.false_removals, "suspicions": found.said.suspicions},
        "faults": found.faults.iter().map(fault).collect::<Vec<_>>(),
        "processes": found.lives.iter().map(life).collect::<Vec<_>>(),
        "load": {"ran_s": sums.ran.as_secs_f64(), "waited_s": sums.waited.as_secs_f64()},
        "noise": {"stall_p99_ns": found.noise.stall_p99_ns, "stall_max_ns": found.noise.stall_max_ns, "floor_ns": found.floor},
        "environment": soaked.environment,
    })
}

/// The object of the contract of `bench --json`: the last third against the first.
pub fn bench_json(soaked: &Soaked) -> Value {
    let (options, found) = (&soaked.options, &soaked.found);
    let [first, _, last] = found.quiet;
    let share = |a: u64, b: u64| (b > 0).then(|| a as f64 / b as f64);
    json!({
        "name": "soak",
        "config": {"secs": options.length.as_secs_f64(), "seed": options.seed, "rate_per_s": options.rate, "idle": options.idle},
        "throughput_per_s": found.sums.accepted as f64 / found.length.as_secs_f64(),
        "latency_ns": {"p50": last.p50_ns, "p90": last.p90_ns, "p99": last.p99_ns, "p999": last.p999_ns, "max": last.max_ns},
        "limit": {"name": "first third", "throughput_per_s": options.rate, "latency_ns": {"p50": first.p50_ns, "p99": first.p99_ns}},
        "ratio": share(last.p50_ns, first.p50_ns),
        "ratio_p99": share(last.p99_ns, first.p99_ns),
        "spread": null,
        "allocations_per_message": null,
        "void": found.noise.is_void(),
        "environment": soaked.environment,
        "soak": json(soaked),
    })
}

/// Makes the directory, and sees whether all files can be written to it.
pub fn prepare(dir: &Path) -> Result<(), Failure> {
    let look = |path: &Path| fs::OpenOptions::new().append(true).create(true).open(path).map(drop);
    fs::create_dir_all(dir).map_err(|error| unwritable(dir, &error))?;
    FILES.iter().map(|name| dir.join(name)).try_for_each(|path| look(&path).map_err(|error| unwritable(&path, &error)))
}

fn unwritable(path: &Path, error: &io::Error) -> Failure {
    Failure::usage("E-CLI-065", format!("cannot write the report to {}: {error}", path.display()), "name another directory")
}

/// Writes all files; those of a run that was interrupted take the place of no others.
pub fn write(soaked: &Soaked, dir: &Path) -> Result<(), Failure> {
    let holds_text = |name: &&str| fs::metadata(dir.join(name)).is_ok_and(|file| file.len() > 0);
    if soaked.found.interrupted && FILES.iter().any(holds_text) {
        note(format_args!("interrupted: the report that is in {} stays", dir.display()));
        return Ok(());
    }
    let texts = [markdown(soaked), processes_csv(soaked), load_csv(soaked), memory_chart(soaked).svg(), latency_chart(soaked).svg()];
    fs::create_dir_all(dir).map_err(|error| unwritable(dir, &error))?;
    let all = FILES.iter().map(|name| dir.join(name)).zip(texts);
    all.into_iter().try_for_each(|(path, text)| fs::write(&path, text).map_err(|error| unwritable(&path, &error)))
}

/// Writes the load, second by second.
pub fn write_load(soaked: &Soaked, path: &Path) -> Result<(), Failure> {
    fs::write(path, load_csv(soaked)).map_err(|error| unwritable(path, &error))
}

fn markdown(soaked: &Soaked) -> String {
    let (options, found) = (&soaked.options, &soaked.found);
    let text = |name: &str| soaked.environment[name].as_str().unwrap_or("unknown").to_owned();
    let minutes = options.length.as_secs_f64() / 60.0;
    let commit = soaked.commit.as_ref().map_or_else(String::new, |commit| format!(" of commit {commit}"));
    let mut page = format!(
        "# Soak\n\n`wingbeat soak --minutes {minutes} --seed {} --rate {} --idle {}`\n\n{}, {} cores, {} {}, wingbeat {}{commit}{}. Five node processes and the \
         load's node, preset `local_test`, one worker each; a fault each {} to {} s, the next one when the cluster is whole again. `open`: this run \
         cannot tell.\n\n| | verdict | what was found |\n| --- | --- | --- |\n",
        options.seed,
        options.rate,
        options.idle,
        text("cpu"),
        soaked.environment["cores"],
        text("os"),
        text("arch"),
        text("version"),
        if soaked.environment["debug_build"] == true { ", debug build" } else { "" },
        soaked.spacing.0.as_secs(),
        soaked.spacing.1.as_secs(),
    );
    for verdict in &soaked.verdicts {
        let _ = writeln!(page, "| {} | {} | {} |", mark(verdict.outcome), verdict.name, cell(&verdict.says));
    }
    page.push_str("\n| | |\n| --- | --- |\n");
    for (name, text) in figures(soaked) {
        let _ = writeln!(page, "| {name} | {} |", cell(&text));
    }
    page.push_str("\n| fault | times | whole again after, median | longest |\n| --- | --- | --- | --- |\n");
    for Alike { kind, count, healed } in alike(&found.faults) {
        let cells = healed.map_or_else(|| format!("{NOT_WHOLE} |"), |(middle, longest)| format!("{middle:.1} s | {longest:.1} s"));
        let _ = writeln!(page, "| {kind} | {count} | {cells} |");
    }
    page.push_str("\n![Memory of each process](soak-memory.svg)\n\n![Latency over time](soak-latency.svg)\n\n");
    page.push_str(
        "`soak.csv` has each look at each process, `soak-load.csv` each second of the load. Latency counts from the moment at which a message was meant \
         to go. Of memory, descriptors and threads the medians of the first and the last third of the calm looks behind the warm-up are compared \
         (in a long run behind the first fault of each kind too), for processes that lived through most of the run, and \
         the load's own without what it writes down of the run. No fault ends the one in place 4, which is the coordinator if the seed is odd.\n",
    );
    if !found.sums.examples.is_empty() {
        page.push_str("\nWrong:\n\n");
        for example in &found.sums.examples {
            let _ = writeln!(page, "* {}", cell(example));
        }
    }
    page
}

/// One line: no row may break the table.
fn cell(text: &str) -> String {
    text.trim().replace('|', "/").lines().collect::<Vec<_>>().join(" ")
}

fn processes_csv(soaked: &Soaked) -> String {
    let mut text = String::from("at_s,process,calm,rss_kib,anon_kib,pss_kib,descriptors,threads,record_kib\n");
    for life in &soaked.found.lives {
        let name = life.name.replace(',', "");
        for s in &life.samples {
            let Sample { at, calm, rss, record, anon, pss, descriptors, threads } = s;
            let _ = writeln!(text, "{at:.1},{name},{calm},{rss},{anon},{pss},{descriptors},{threads},{record:.1}");
        }
    }
    text
}

fn load_csv(soaked: &Soaked) -> String {
    let mut text = String::from("at_s,fault,sent,answered,failed,p50_ns,p99_ns,max_ns,floor_ns\n");
    for s in &soaked.seconds {
        let Second { at, fault, sent, answered, failed, p50_ns, p99_ns, max_ns, floor_ns } = s;
        let _ = writeln!(text, "{at:.1},{fault},{sent},{answered},{failed},{p50_ns},{p99_ns},{max_ns},{floor_ns}");
    }
    text
}

fn memory_chart(soaked: &Soaked) -> Chart {
    let point = |s: &Sample| (s.at, s.rss / 1024.0);
    let shown = soaked.found.lives.iter().filter(|life| life.samples.len() > 1);
    // There may be hundreds of processes: those that are judged have names.
    let named: Vec<&str> = judged(&soaked.found).map(|life| life.name.as_str()).collect();
    let label = |life: &Life| if named.contains(&life.name.as_str()) { life.name.replace("place ", "") } else { String::new() };
    Chart {
        title: "Resident memory of each process".into(),
        across: Across::Linear,
        across_label: "seconds".into(),
        up_label: "MiB".into(),
        series: shown.map(|life| Series { label: label(life), points: life.samples.iter().map(point).collect() }).collect(),
    }
}

fn latency_chart(soaked: &Soaked) -> Chart {
    let line = |label: &str, of: fn(&Second) -> u64| Series {
        label: label.into(),
        points: soaked.seconds.iter().filter(|s| s.answered > 0).map(|s| (s.at, ms(of(s)))).collect(),
    };
    Chart {
        title: "Requests, each second".into(),
        across: Across::Linear,
        across_label: "seconds".into(),
        up_label: "ms".into(),
        series: vec![line("p50", |s| s.p50_ns), line("p99", |s| s.p99_ns), line("longest", |s| s.max_ns)],
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{
        super::{Options, judge},
        *,
    };

    fn soaked() -> Soaked {
        let mut found = judge::Findings { length: Duration::from_secs(180), ..judge::Findings::default() };
        found.faults.push(Fault {
            at: 30.0,
            kind: Kind::Kill,
            whom: "place 1".into(),
            entities_lost: 9,
            healed: Some(Ok(3.4)),
            untold: 0,
            wrong: None,
        });
        found.sums.faults.lost = 2;
        found.sums.examples.push("probe | e1\nlost".into());
        found.lives.push(Life {
            name: "place 4, node-4".into(),
            anchor: true,
            samples: vec![Sample { rss: 2048.0, ..Sample::default() }; 2],
        });
        let verdicts = judge::judge(&found);
        let options = Options { length: found.length, seed: 7, rate: 2_000, idle: "low_cpu".into() };
        let spacing = (Duration::from_secs(10), Duration::from_secs(20));
        Soaked {
            options,
            spacing,
            found,
            verdicts,
            seconds: vec![super::super::Second::default()],
            environment: json!({}),
            commit: Some("12ab".into()),
            logs: None,
        }
    }

    #[test]
    fn the_page_names_what_failed_and_the_seed() {
        let page = page(&soaked());
        assert!(
            page.contains("seed 7") && page.contains("FAILED losses") && page.contains("kill       1, whole again after 3.4 s"),
            "{page}"
        );
        assert!(page.ends_with("\nFAILED: losses, all seen, rate"), "{page}");
    }

    #[test]
    fn machines_get_the_same() {
        let all = json(&soaked());
        assert_eq!(all["holds"], false);
        assert_eq!(all["failed"], json!(["losses", "all seen", "rate"]));
        assert_eq!(all["messages"]["lost"], 2);
        let bench = bench_json(&soaked());
        for field in [
            "name",
            "config",
            "throughput_per_s",
            "latency_ns",
            "limit",
            "ratio",
            "spread",
            "allocations_per_message",
            "void",
            "environment",
        ] {
            assert!(bench.get(field).is_some(), "{field}");
        }
    }

    #[test]
    fn every_row_of_a_table_has_its_columns() {
        let text = markdown(&soaked());
        for line in text.lines().filter(|line| line.starts_with('|')) {
            assert!(matches!(line.matches('|').count(), 3..=5), "{line}");
        }
        assert!(text.contains("* probe / e1 lost"));
    }

    #[test]
    fn series_are_written_line_by_line() {
        assert_eq!(processes_csv(&soaked()).lines().nth(1), Some("0.0,place 4 node-4,false,2048,0,0,0,0,0.0"));
        assert_eq!(load_csv(&soaked()).lines().count(), 2);
    }

    #[test]
    fn what_was_not_whole_in_the_end_is_no_time() {
        let mut soaked = soaked();
        soaked.found.faults.push(Fault { healed: None, ..soaked.found.faults[0].clone() });
        soaked.found.faults.push(Fault { kind: Kind::Outage, healed: None, ..soaked.found.faults[0].clone() });
        let text = page(&soaked);
        assert!(
            text.contains(
                "kill       1, whole again after 3.4 s in the middle, 3.4 s at most\nkill       1, not whole when the run ended\n"
            ),
            "{text}"
        );
        assert!(text.contains("outage     1, not whole when the run ended\n"), "{text}");
        assert!(markdown(&soaked).contains("| outage | 1 | not whole when the run ended | |\n"));
    }

    #[test]
    fn the_head_says_what_was_built() {
        let text = markdown(&Soaked { environment: json!({"version": "1"}), ..soaked() });
        assert!(text.contains(", wingbeat 1 of commit 12ab. Five"), "{text}");
    }

    #[test]
    fn a_run_that_was_interrupted_takes_no_other_ones_place() {
        let dir = std::env::temp_dir().join(format!("wingbeat-soak-report-test-{}", std::process::id()));
        let soak_md = || std::fs::read_to_string(dir.join("soak.md")).unwrap();
        let mut cut = soaked();
        cut.found.interrupted = true;
        prepare(&dir).unwrap();
        write(&cut, &dir).unwrap();
        assert_eq!(soak_md(), markdown(&cut), "there was none");
        let mut whole = soaked();
        whole.options.seed = 8;
        prepare(&dir).unwrap();
        write(&whole, &dir).unwrap();
        write(&cut, &dir).unwrap();
        assert_eq!(soak_md(), markdown(&whole));
        std::fs::remove_file(dir.join("soak.csv")).and_then(|()| std::fs::create_dir(dir.join("soak.csv"))).unwrap();
        let refused = prepare(&dir).unwrap_err();
        assert!(refused.code == "E-CLI-065" && refused.what.contains("soak.csv"), "{refused}");
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn processes_that_are_judged_have_names_in_the_picture() {
        let mut soaked = soaked();
        let short = Life { name: "place 1, node-7".into(), anchor: false, ..soaked.found.lives[0].clone() };
        soaked.found.lives.insert(0, short);
        let labels: Vec<String> = memory_chart(&soaked).series.into_iter().map(|series| series.label).collect();
        assert_eq!(labels, ["", "4, node-4"]);
    }
}
