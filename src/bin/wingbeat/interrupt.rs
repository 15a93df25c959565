//! Signals that ask a long command to end in order.

use std::{
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::fail::{Exit, Failure};

/// Set to the number of a signal that asks this process to end. That its terminal goes does not, if that was ignored when it began, as `nohup` has it. A shell
/// has what it starts in the background ignore Ctrl-C too, which is another matter: who sends that to this process means it.
pub fn flag() -> Result<Arc<AtomicUsize>, Failure> {
    let flag = Arc::new(AtomicUsize::new(0));
    let no_terminal = std::fs::read_to_string("/proc/self/status").is_ok_and(|status| ignored(&status) & (1 << (SIGHUP - 1)) != 0);
    for signal in [SIGINT, SIGTERM, SIGHUP].into_iter().filter(|signal| *signal != SIGHUP || !no_terminal) {
        signal_hook::flag::register_usize(signal, flag.clone(), signal as usize).map_err(|error| {
            Failure::unhealthy("E-CLI-031", format!("cannot catch signal {signal}: {error}"), "this is a fault of the program")
        })?;
    }
    Ok(flag)
}

/// How a process that was asked to end does so.
pub fn asked_to_end(flag: &AtomicUsize) -> Option<ExitCode> {
    match flag.load(Ordering::Relaxed) as i32 {
        0 => None,
        SIGINT => Some(Exit::Interrupted.into()),
        _ => Some(Exit::Terminated.into()),
    }
}

/// The signals that a process ignores, a bit each from the lowest, by what Linux says of it.
fn ignored(status: &str) -> u64 {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_signals_are_found() {
        let status = "Name:\twingbeat\nSigBlk:\t0000000000000002\nSigIgn:\t0000000000001001\nSigCgt:\t0000000000000000\n";
        assert_eq!(ignored(status) & (1 << (SIGHUP - 1)), 1);
        assert_eq!(ignored(status) & (1 << (SIGTERM - 1)), 0);
        assert_eq!(ignored(""), 0);
    }
}
