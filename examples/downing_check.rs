//! Checks every downing strategy against every split of a small cluster: `cargo run --release --example downing_check -- 7`.
//!
//! Prints one line per strategy with the number of cases; ends with 3 if two sides live in any of them, or if a planted wrong strategy is not
//! found. One strategy per core at a time.

use std::{io::Write as _, process::ExitCode};

use parking_lot::Mutex;
use wingbeat::proto::membership::{DOWNING_CHECK_NODES_MAX, DowningCheck, downing_checks, planted_downing_checks};

fn say(line: &str) {
    let _ = writeln!(std::io::stdout(), "{line}");
}

fn report(check: &DowningCheck) {
    say(&format!(
        "{}: {} cases with up to {} members, two sides live in {}, none in {}",
        check.strategy, check.cases, check.nodes, check.two_lived, check.none_lived
    ));
    if let Some(case) = &check.first {
        say(&format!("  {case}"));
    }
}

fn main() -> ExitCode {
    let wanted = std::env::args().nth(1).unwrap_or_else(|| "5".into());
    let Some(nodes) = wanted.parse().ok().filter(|n| (1..=DOWNING_CHECK_NODES_MAX).contains(n)) else {
        let _ = writeln!(std::io::stderr(), "error: {wanted:?} is no number of members; give 1 to {DOWNING_CHECK_NODES_MAX}");
        return ExitCode::from(1);
    };
    let planted = planted_downing_checks();
    planted.iter().for_each(report);
    let pending = Mutex::new(downing_checks(nodes).into_iter());
    let done = Mutex::new(vec![]);
    let work = || {
        loop {
            let next = pending.lock().next();
            let Some(check) = next else { break };
            let check = check();
            report(&check);
            done.lock().push(check);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, |n| n.get()) {
            scope.spawn(work);
        }
    });
    let done = done.into_inner();
    let cases: u64 = done.iter().map(|check| check.cases).sum();
    let wrong = done.iter().filter(|check| check.two_lived > 0).count();
    let missed = planted.iter().filter(|check| check.two_lived == 0).count();
    say(&format!("{} strategies, {cases} cases: {wrong} let two sides live; {missed} planted wrong ones were not found", done.len()));
    ExitCode::from(if wrong == 0 && missed == 0 && !done.is_empty() { 0 } else { 3 })
}
