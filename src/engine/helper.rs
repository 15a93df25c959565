//! The helper thread: callbacks of users, so that none runs on a thread that others wait for.

use std::time::Duration;

use crossbeam::channel::Receiver;

use super::panics;
use crate::{engine::node::Job, metrics::Metrics};

/// A callback that takes longer is reported.
const SLOW: Duration = Duration::from_millis(10);

/// Runs jobs until every sender is gone.
pub fn run(jobs: &Receiver<Job>, metrics: &Metrics) {
    while let Ok(job) = jobs.recv() {
        run_one(job, metrics);
    }
}

/// Runs one job.
pub fn run_one(job: Job, metrics: &Metrics) {
    let before = super::sys::now();
    if panics::caught(job).is_none() {
        metrics.shared.callbacks_panicked.add(1);
        tracing::error!(target: "wingbeat::engine", "a callback panicked; the helper thread goes on");
    }
    let took = super::sys::now().since(before);
    if took > SLOW {
        metrics.shared.callbacks_slow.add(1);
        tracing::warn!(target: "wingbeat::engine", ?took, "a callback held the helper thread up");
    }
}
