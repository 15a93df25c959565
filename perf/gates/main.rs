//! Instructions per operation, counted by valgrind, beside what `perf/gates.toml` allows. Clocks are noisy on shared machines; this is not.
//!
//! `perf/gates.sh` builds and runs it, `WINGBEAT_GATES=write perf/gates.sh` records what it counts. `gates row NAME [PERCENT]` is what runs under
//! valgrind.
#![allow(missing_docs)]

#[allow(dead_code)]
#[path = "../../src/bin/wingbeat/bench/entity.rs"]
mod entity;
mod rows;

use std::{collections::BTreeMap, env, error::Error, fs, path::Path, process::Command};

use rows::{COUNTED, Planted, ROWS, Row};
use serde::{Deserialize, Serialize};

/// What is planted to see that the gate closes: five operations in a hundred more than are counted.
const PLANTED: Planted = Planted(5);

/// Instructions per operation by name.
type Counts = BTreeMap<String, f64>;

/// The file of gates.
#[derive(Serialize, Deserialize)]
struct Gates {
    /// More instructions than recorded by so many percent close the gate.
    allowed_percent: f64,
    /// As above where nothing was recorded for the compiler, and the newest record of another one has to do.
    other_compiler_percent: f64,
    /// By what `rustc --version` says.
    counts: BTreeMap<String, Counts>,
}

/// What measured counts are held against.
struct Standard<'a> {
    counts: &'a Counts,
    percent: f64,
}

impl Gates {
    /// The counts of that compiler, or of the newest one there is.
    fn standard(&self, compiler: &str) -> Option<Standard<'_>> {
        if let Some(counts) = self.counts.get(compiler) {
            return Some(Standard { counts, percent: self.allowed_percent });
        }
        let (other, counts) = self.counts.iter().max_by_key(|(name, _)| version(name))?;
        println!("NOTHING IS RECORDED FOR {compiler}: held against {other}, within {} % only.", self.other_compiler_percent);
        println!("Record it by `WINGBEAT_GATES=write perf/gates.sh`.");
        Some(Standard { counts, percent: self.other_compiler_percent })
    }
}

/// The numbers in a version.
fn version(name: &str) -> Vec<u32> {
    name.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok()).take(3).collect()
}

impl Standard<'_> {
    /// A line of the table, and whether the gate is open. What was never recorded is shut out.
    fn judge(&self, name: &str, measured: f64) -> (String, bool) {
        let Some(&recorded) = self.counts.get(name) else {
            return (format!("{name:<34} {measured:>10.1} {:>10} {:>9}", "-", "NEW"), false);
        };
        let change = (measured / recorded - 1.0) * 100.0;
        let open = change <= self.percent;
        let verdict = if !open {
            "REFUSED"
        } else if change < -self.percent {
            "record it"
        } else {
            ""
        };
        (format!("{name:<34} {measured:>10.1} {recorded:>10.1} {change:>+8.1}% {verdict}"), open)
    }
}

/// Runs a row under valgrind: instructions per operation.
fn count(row: &Row, planted: Planted) -> Result<f64, Box<dyn Error>> {
    let out = env::temp_dir().join(format!("wingbeat-gates-{}.out", std::process::id()));
    // The processor of the day must not choose how memory is copied.
    let plain = "glibc.cpu.hwcaps=-AVX512F,-AVX512VL,-AVX2,-AVX,-ERMS,-FSRM";
    let done = Command::new("valgrind")
        .env("GLIBC_TUNABLES", plain)
        .args(["--tool=callgrind", &format!("--toggle-collect={COUNTED}"), &format!("--callgrind-out-file={}", out.display())])
        .arg(env::current_exe()?)
        .args(["row", row.name, &planted.0.to_string()])
        .output()
        .map_err(|e| format!("valgrind cannot be run ({e}): install it, for instance by `apt-get install valgrind`"))?;
    if !done.status.success() {
        return Err(format!("{}: {}", row.name, String::from_utf8_lossy(&done.stderr)).into());
    }
    let text = fs::read_to_string(&out)?;
    fs::remove_file(&out)?;
    let total = total(&text).ok_or("valgrind's file has no total")?;
    // Far less than any operation takes: the function was renamed, or inlined.
    if total < Row::OPERATIONS {
        return Err(format!("{}: valgrind has not found {COUNTED}", row.name).into());
    }
    Ok((total as f64 / Row::OPERATIONS as f64 * 10.0).round() / 10.0)
}

/// Instructions in all, as callgrind's file ends.
fn total(text: &str) -> Option<u64> {
    text.lines().rev().find_map(|line| line.strip_prefix("totals:"))?.trim().parse().ok()
}

fn compiler() -> Result<String, Box<dyn Error>> {
    let said = Command::new("rustc").arg("--version").output()?;
    Ok(String::from_utf8(said.stdout)?.split_whitespace().take(2).collect::<Vec<_>>().join(" "))
}

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = env::args().skip(1).collect();
    match &args[..] {
        [] => gate(),
        [row, name, rest @ ..] if row == "row" => {
            let row = ROWS.iter().find(|row| row.name == name).ok_or_else(|| format!("no row is named {name:?}"))?;
            row.run(Planted(rest.first().map_or(Ok(0), |n| n.parse())?));
            Ok(())
        }
        _ => Err("usage: gates [row NAME [PERCENT]]".into()),
    }
}

fn gate() -> Result<(), Box<dyn Error>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("perf/gates.toml");
    let (mut gates, compiler): (Gates, _) = (toml::from_str(&fs::read_to_string(&path)?)?, compiler()?);
    let measured = ROWS.iter().map(|row| Ok((row.name.to_owned(), count(row, Planted(0))?))).collect::<Result<Counts, Box<dyn Error>>>()?;
    if env::var("WINGBEAT_GATES").is_ok_and(|what| what == "write") {
        gates.counts.insert(compiler.clone(), measured.clone());
        fs::write(&path, toml::to_string(&gates)?)?;
        println!("recorded for {compiler}: {}", path.display());
    }
    let standard = gates.standard(&compiler).ok_or("nothing is recorded: WINGBEAT_GATES=write perf/gates.sh")?;
    println!("{:<34} {:>10} {:>10} {:>9}", format!("instructions, {compiler}"), "measured", "recorded", "change");
    let mut refused = vec![];
    for row in ROWS {
        let (line, open) = standard.judge(row.name, measured[row.name]);
        println!("{line}");
        if !open {
            refused.push(row.name);
        }
    }
    // The gate must close for a slow-down of the codec; with another compiler's counts against what was just measured.
    let known = gates.counts.get(&compiler).unwrap_or(&measured);
    let strict = Standard { counts: known, percent: gates.allowed_percent };
    let mut unseen = vec![];
    for row in ROWS.iter().filter(|row| row.is_codec) {
        let (line, open) = strict.judge(row.name, count(row, PLANTED)?);
        println!("planted: {line}");
        if open {
            unseen.push(row.name);
        }
    }
    if !refused.is_empty() {
        return Err(format!(
            "more than {} % above what perf/gates.toml allows: {refused:?}. If it is worth it, say why and record it: WINGBEAT_GATES=write perf/gates.sh",
            standard.percent
        )
        .into());
    }
    if !unseen.is_empty() {
        return Err(format!(
            "a planted slow-down of 5 % was not refused: {unseen:?}. Where a row has become faster, record it: WINGBEAT_GATES=write perf/gates.sh"
        )
        .into());
    }
    println!("All within {} %, and a planted slow-down of 5 % in the codec is refused.", standard.percent);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_is_refused_and_so_is_what_was_never_recorded() {
        let counts = Counts::from([("a".to_owned(), 100.0)]);
        let standard = Standard { counts: &counts, percent: 2.0 };
        let open = |name: &str, measured| standard.judge(name, measured).1;
        assert!(open("a", 100.0) && open("a", 101.9) && open("a", 50.0));
        assert!(!open("a", 102.1) && !open("b", 1.0));
    }

    #[test]
    fn another_compiler_is_held_against_the_newest_record_and_less_strictly() {
        let of = |n: f64| Counts::from([("a".to_owned(), n)]);
        let counts = BTreeMap::from([("rustc 1.9.0".to_owned(), of(1.0)), ("rustc 1.10.0".to_owned(), of(2.0))]);
        let gates = Gates { allowed_percent: 2.0, other_compiler_percent: 15.0, counts };
        let of = |compiler: &str| gates.standard(compiler).map(|standard| (standard.counts["a"], standard.percent));
        assert_eq!(of("rustc 1.9.0"), Some((1.0, 2.0)));
        assert_eq!(of("rustc 1.11.0"), Some((2.0, 15.0)));
    }

    #[test]
    fn the_total_of_callgrinds_file_is_read() {
        assert_eq!(total("version: 1\nfn=(1) a\n5 7\n\ntotals: 12345\n"), Some(12_345));
        assert_eq!(total("summary: 1"), None);
    }
}
