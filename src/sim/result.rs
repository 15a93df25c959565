//! What a run found.

use std::collections::BTreeMap;

use serde::Serialize;

use super::undone::Undone;

/// Median, 99th percentile and maximum, seconds; nothing if nothing was measured.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
#[allow(missing_docs)]
pub struct Spread {
    pub p50: Option<f64>,
    pub p99: Option<f64>,
    pub max: Option<f64>,
}

/// Mean, 99th percentile and maximum over nodes.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
#[allow(missing_docs)]
pub struct OverNodes {
    pub mean: Option<f64>,
    pub p99: Option<f64>,
    pub max: Option<f64>,
}

/// A broken invariant.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Violation {
    /// Which one: the name in failures.md.
    pub invariant: String,
    /// When, seconds of the run.
    pub at_s: f64,
    /// Whose.
    pub nodes: Vec<u32>,
    /// What was found.
    pub what: String,
}

/// A node that was told of one more to ask as it started, as none of its seeds ran while others did.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Helped {
    /// Where the action stands in the file that started it; none for one of the first starts.
    pub line: Option<usize>,
    /// When, seconds of the run.
    pub at_s: f64,
    /// Who started.
    pub node: u32,
    /// Whom it asks beside its seeds.
    pub asks: u32,
}

/// The result of one run; its JSON is a contract.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
#[allow(missing_docs)]
pub struct RunResult {
    pub scenario: String,
    pub seed: u64,
    pub nodes: u32,
    pub virtual_s: f64,
    pub wall_s: f64,
    pub events: u64,
    pub converged_at_s: Option<f64>,
    pub all_up_at_s: Option<f64>,
    /// Since when all live nodes are up in every live view, and nobody is held unreachable in any.
    pub all_reachable_at_s: Option<f64>,
    pub members_up: Option<u64>,
    pub sizes_seen: u64,
    pub detect_s: Spread,
    pub known_s: Spread,
    pub removal_s: Spread,
    /// Crashes that no live view showed by the end / not every live view / that were not removed everywhere.
    pub undetected: u64,
    pub unknown: u64,
    pub unremoved: u64,
    pub view_changes_max: u64,
    pub false_unreachable: u64,
    pub false_removals: u64,
    pub removed: u64,
    pub flips_max: u64,
    pub survivor_groups: u64,
    pub survivors: u64,
    pub bytes_per_node_per_s: OverNodes,
    pub peak_bytes_per_node_per_s: Option<f64>,
    pub max_datagram_bytes: u64,
    pub dual_active_s: f64,
    pub sent: u64,
    pub delivered: u64,
    pub dropped: BTreeMap<String, u64>,
    pub lost: u64,
    pub reordered: u64,
    pub duplicated: u64,
    pub undelivered: u64,
    pub replies: u64,
    pub timeouts: u64,
    /// Sends that did not happen as the client's node was not running.
    pub not_sent: u64,
    /// Moves asked for, and those that the coordinator refused.
    pub moves: u64,
    pub moves_refused: u64,
    /// Actions that did nothing, as there was nobody to do it to.
    pub not_done: Vec<Undone>,
    /// Starts that were not by the seed list alone.
    pub helped: Vec<Helped>,
    pub violations: Vec<Violation>,
    /// More violations than are listed.
    pub violations_more: u64,
    pub failed: Vec<String>,
    /// What was found instead, one line per failed expectation.
    pub failed_why: Vec<String>,
    pub digest: String,
}

impl RunResult {
    /// Nothing was violated and every expectation holds.
    pub fn holds(&self) -> bool {
        self.violations.is_empty() && self.failed.is_empty()
    }

    /// All figures by name, for summaries.
    pub fn figures(&self) -> Vec<(&'static str, Option<f64>)> {
        let n = |x: u64| Some(x as f64);
        vec![
            ("wall_s", Some(self.wall_s)),
            ("events", n(self.events)),
            ("converged_at_s", self.converged_at_s),
            ("all_up_at_s", self.all_up_at_s),
            ("all_reachable_at_s", self.all_reachable_at_s),
            ("sizes_seen", n(self.sizes_seen)),
            ("detect_s_max", self.detect_s.max),
            ("known_s_max", self.known_s.max),
            ("removal_s_max", self.removal_s.max),
            ("view_changes_max", n(self.view_changes_max)),
            ("false_unreachable", n(self.false_unreachable)),
            ("false_removals", n(self.false_removals)),
            ("removed", n(self.removed)),
            ("flips_max", n(self.flips_max)),
            ("survivor_groups", n(self.survivor_groups)),
            ("survivors", n(self.survivors)),
            ("bytes_per_node_per_s_mean", self.bytes_per_node_per_s.mean),
            ("peak_bytes_per_node_per_s", self.peak_bytes_per_node_per_s),
            ("max_datagram_bytes", n(self.max_datagram_bytes)),
            ("dual_active_s", Some(self.dual_active_s)),
            ("sent", n(self.sent)),
            ("delivered", n(self.delivered)),
            ("lost", n(self.lost)),
            ("reordered", n(self.reordered)),
            ("duplicated", n(self.duplicated)),
            ("undelivered", n(self.undelivered)),
        ]
    }
}

/// Minimum, median, 99th percentile and maximum of one figure over seeds.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
#[allow(missing_docs)]
pub struct FigureSummary {
    pub min: Option<f64>,
    pub median: Option<f64>,
    pub p99: Option<f64>,
    pub max: Option<f64>,
    /// Seeds in which there was no such figure.
    pub absent: u64,
}

/// The last object of a run over many seeds.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
#[allow(missing_docs)]
pub struct Summary {
    pub summary: bool,
    pub scenario: String,
    pub seeds: u64,
    pub failed_seeds: Vec<u64>,
    pub figures: BTreeMap<&'static str, FigureSummary>,
}

impl Summary {
    /// Over these runs.
    pub fn of(runs: &[RunResult]) -> Self {
        let mut figures: BTreeMap<&'static str, (Vec<f64>, u64)> = BTreeMap::new();
        for r in runs {
            for (name, value) in r.figures() {
                let entry = figures.entry(name).or_default();
                match value {
                    Some(x) => entry.0.push(x),
                    None => entry.1 += 1,
                }
            }
        }
        let summary = |(mut xs, absent): (Vec<f64>, u64)| {
            xs.sort_by(f64::total_cmp);
            FigureSummary { min: quantile(&xs, 0.0), median: quantile(&xs, 0.5), p99: quantile(&xs, 0.99), max: quantile(&xs, 1.0), absent }
        };
        Self {
            summary: true,
            scenario: runs.first().map_or_else(String::new, |r| r.scenario.clone()),
            seeds: runs.len() as u64,
            failed_seeds: runs.iter().filter(|r| !r.holds()).map(|r| r.seed).collect(),
            figures: figures.into_iter().map(|(k, v)| (k, summary(v))).collect(),
        }
    }
}

/// The value at fraction `q` of sorted `xs` (nearest rank).
pub(super) fn quantile(xs: &[f64], q: f64) -> Option<f64> {
    let last = xs.len().checked_sub(1)?;
    let rank = (q * xs.len() as f64).ceil() as usize;
    Some(xs[rank.saturating_sub(1).min(last)])
}

impl Spread {
    pub(super) fn of(mut xs: Vec<f64>) -> Self {
        xs.sort_by(f64::total_cmp);
        Self { p50: quantile(&xs, 0.5), p99: quantile(&xs, 0.99), max: quantile(&xs, 1.0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_nearest_ranks() {
        let s = Spread::of((1..=100).map(f64::from).rev().collect());
        assert_eq!((s.p50, s.p99, s.max), (Some(50.0), Some(99.0), Some(100.0)));
        assert_eq!(Spread::of(vec![]), Spread::default());
    }

    #[test]
    fn a_summary_counts_what_is_absent_and_what_failed() {
        let ok = RunResult { seed: 1, all_up_at_s: Some(2.0), ..RunResult::default() };
        let bad = RunResult { seed: 2, failed: vec!["lost".into()], ..RunResult::default() };
        let s = Summary::of(&[ok, bad]);
        assert_eq!(s.failed_seeds, [2]);
        assert_eq!(
            s.figures["all_up_at_s"],
            FigureSummary { min: Some(2.0), median: Some(2.0), p99: Some(2.0), max: Some(2.0), absent: 1 }
        );
    }
}
