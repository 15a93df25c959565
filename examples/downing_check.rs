//! Checks every downing strategy against every split of a small cluster: `cargo run --release --example downing_check -- 7`.
//!
//! Prints one line per strategy with the number of cases; ends with 3 if two sides live in any of them. Five members take seconds, seven hours.

use std::{io::Write as _, process::ExitCode};

use wingbeat::proto::membership::{DOWNING_CHECK_NODES_MAX, check_downing};

fn main() -> ExitCode {
    let wanted = std::env::args().nth(1).unwrap_or_else(|| "5".into());
    let Some(nodes) = wanted.parse().ok().filter(|n| (1..=DOWNING_CHECK_NODES_MAX).contains(n)) else {
        let _ = writeln!(std::io::stderr(), "error: {wanted:?} is no number of members; give 1 to {DOWNING_CHECK_NODES_MAX}");
        return ExitCode::from(1);
    };
    let mut sound = true;
    for check in check_downing(nodes) {
        let _ = writeln!(
            std::io::stdout(),
            "{}: {} cases with up to {} members, two sides live in {}, none in {}",
            check.strategy,
            check.cases,
            check.nodes,
            check.two_lived,
            check.none_lived
        );
        if let Some(case) = check.first {
            sound = false;
            let _ = writeln!(std::io::stdout(), "  {case}");
        }
    }
    ExitCode::from(if sound { 0 } else { 3 })
}
