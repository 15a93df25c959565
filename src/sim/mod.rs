//! The simulator: any number of nodes in one thread and virtual time, driving the very cores that production runs.
//!
//! A run is a function of its scenario and its seed: faults, protocol choices, workload, clocks and roles draw from generators of their own split
//! from it.

mod action;
mod acts;
mod checks;
mod clock;
mod datagrams;
mod digest;
mod entity;
mod expect;
mod lanes;
mod lease;
mod ledger;
mod links;
mod lognormal;
mod measure;
mod minimise;
mod network;
mod outcome;
mod pool;
mod process;
mod queue;
mod result;
mod scenario;
mod selector;
mod settings;
mod shadow;
mod step;
mod trace;
mod tree;
mod undone;
mod world;

pub use action::{Act, Action, LinkAct};
pub use expect::Expect;
pub use minimise::{Minimised, minimise};
pub use result::{FigureSummary, Helped, OverNodes, RunResult, Spread, Summary, Violation};
pub use scenario::{Burst, NetworkSpec, Scenario, SendMode, Workload};
pub use selector::{Scene, Selector};
pub use shadow::{Heard, Shadow};
pub use tree::{Place, ScenarioError};
pub use undone::Undone;

use std::time::Duration;

/// How a run is watched, and what no scenario asks for.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Print who sent what in this window of virtual time.
    pub trace: Option<(Duration, Duration)>,
    /// Tell how far the run is, each time so much virtual time has passed.
    pub progress: Option<Duration>,
    /// One frame in twenty takes up to 0.3 s longer, as large ones do, and what may go past large frames goes past it.
    pub large_frames: bool,
}

/// Runs a scenario under a seed.
///
/// # Errors
/// If its configuration is refused; nothing has run then.
pub fn run(scenario: &Scenario, seed: u64, options: &Options) -> Result<RunResult, ScenarioError> {
    run_beside(scenario, seed, options, vec![])
}

/// As [`run`], with what follows some of the nodes.
///
/// # Errors
/// As [`run`].
pub fn run_beside<'a>(
    scenario: &'a Scenario,
    seed: u64,
    options: &Options,
    shadows: Vec<&'a mut dyn Shadow>,
) -> Result<RunResult, ScenarioError> {
    world::World::new(scenario, seed, options, shadows)?.run()
}
