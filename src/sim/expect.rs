//! What must hold at the end of a run: the `[expect]` table.

use super::{
    result::RunResult,
    tree::{Item, ScenarioError, refuse_unknown},
};

/// How a figure is judged.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Rule {
    /// A time of the run, in seconds, at most; never having happened fails.
    By,
    /// A span in seconds, at most; nothing measured holds.
    SpanAtMost,
    /// A count or rate, at most.
    AtMost,
    /// A count, exactly.
    Equal,
}

const KEYS: &[(&str, Rule)] = &[
    ("converged_by", Rule::By),
    ("all_up_by", Rule::By),
    ("all_reachable_by", Rule::By),
    ("members_up", Rule::Equal),
    ("removed", Rule::Equal),
    ("false_removals", Rule::AtMost),
    ("false_unreachable", Rule::AtMost),
    ("max_view_changes", Rule::AtMost),
    ("max_detect", Rule::SpanAtMost),
    ("max_known", Rule::SpanAtMost),
    ("max_removal", Rule::SpanAtMost),
    ("survivor_groups", Rule::Equal),
    ("survivors", Rule::Equal),
    ("max_dual_active", Rule::SpanAtMost),
    ("max_sizes_seen", Rule::AtMost),
    ("max_flips", Rule::AtMost),
    ("max_bytes_per_node_per_s", Rule::AtMost),
    ("max_peak_bytes_per_node_per_s", Rule::AtMost),
    ("lost", Rule::AtMost),
    ("reordered", Rule::AtMost),
    ("duplicated", Rule::AtMost),
    ("undelivered", Rule::AtMost),
];

/// All expectations of a scenario.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Expect {
    wanted: Vec<(&'static str, Rule, f64)>,
}

impl Expect {
    pub(super) fn read(item: &Item) -> Result<Self, ScenarioError> {
        let t = item.table("expect")?;
        let known: Vec<&str> = KEYS.iter().map(|(k, _)| *k).collect();
        refuse_unknown(t, "[expect]", &known)?;
        let mut wanted = Vec::new();
        for &(key, rule) in KEYS {
            let Some(value) = t.get(key) else { continue };
            let limit = match rule {
                Rule::By | Rule::SpanAtMost => value.duration(key)?.as_secs_f64(),
                Rule::Equal => value.int(key, 0, u32::MAX.into())? as f64,
                Rule::AtMost => value.number(key, 0.0, 1e18)?,
            };
            wanted.push((key, rule, limit));
        }
        Ok(Self { wanted })
    }

    /// The expectations that do not hold, each with what was found.
    pub fn judge(&self, r: &RunResult) -> Vec<(&'static str, String)> {
        self.wanted
            .iter()
            .filter_map(|&(key, rule, limit)| {
                let found = figure(r, key);
                let holds = match (rule, found) {
                    (Rule::By, None) | (Rule::Equal, None) => false,
                    (Rule::SpanAtMost | Rule::AtMost, None) => true,
                    (Rule::Equal, Some(x)) => x == limit,
                    (_, Some(x)) => x <= limit,
                };
                let sign = if rule == Rule::Equal { "=" } else { "<=" };
                (!holds).then(|| (key, format!("{key}: {} (must be {sign} {limit})", shown(key, found))))
            })
            .collect()
    }

    /// Whether this one is asked for.
    pub fn asks_for(&self, key: &str) -> bool {
        self.wanted.iter().any(|(k, ..)| *k == key)
    }
}

/// What was found, where it is no number too.
fn shown(key: &str, found: Option<f64>) -> String {
    match (key, found) {
        ("members_up", None) => "views disagree".into(),
        (_, None) => "never".into(),
        ("max_known", Some(f64::INFINITY)) => "not noticed everywhere".into(),
        ("max_removal", Some(f64::INFINITY)) => "not removed everywhere".into(),
        (_, Some(f64::INFINITY)) => "not noticed".into(),
        (_, Some(x)) => x.to_string(),
    }
}

fn figure(r: &RunResult, key: &str) -> Option<f64> {
    let n = |x: u64| Some(x as f64);
    match key {
        "converged_by" => r.converged_at_s,
        "all_up_by" => r.all_up_at_s,
        "all_reachable_by" => r.all_reachable_at_s,
        "members_up" => r.members_up.map(|x| x as f64),
        "removed" => n(r.removed),
        "false_removals" => n(r.false_removals),
        "false_unreachable" => n(r.false_unreachable),
        "max_view_changes" => n(r.view_changes_max),
        // A crash that nobody noticed by the end has no finite time: it is counted apart and fails every limit.
        "max_detect" => {
            if r.undetected > 0 {
                Some(f64::INFINITY)
            } else {
                r.detect_s.max
            }
        }
        "max_known" => {
            if r.unknown > 0 {
                Some(f64::INFINITY)
            } else {
                r.known_s.max
            }
        }
        "max_removal" => {
            if r.unremoved > 0 {
                Some(f64::INFINITY)
            } else {
                r.removal_s.max
            }
        }
        "survivor_groups" => n(r.survivor_groups),
        "survivors" => n(r.survivors),
        "max_dual_active" => Some(r.dual_active_s),
        "max_sizes_seen" => n(r.sizes_seen),
        "max_flips" => n(r.flips_max),
        "max_bytes_per_node_per_s" => r.bytes_per_node_per_s.mean,
        "max_peak_bytes_per_node_per_s" => r.peak_bytes_per_node_per_s,
        "lost" => n(r.lost),
        "reordered" => n(r.reordered),
        "duplicated" => n(r.duplicated),
        "undelivered" => n(r.undelivered),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judge(text: &str, r: &RunResult) -> Vec<&'static str> {
        let doc = Item::document(text).unwrap();
        Expect::read(&doc).unwrap().judge(r).into_iter().map(|(k, _)| k).collect()
    }

    #[test]
    fn each_rule_is_applied() {
        let mut r = RunResult { removed: 2, lost: 1, converged_at_s: Some(5.0), members_up: Some(3), ..RunResult::default() };
        assert!(judge("removed = 2\nlost = 1\nconverged_by = \"5s\"\nmembers_up = 3", &r).is_empty());
        assert_eq!(
            judge("removed = 3\nlost = 0\nconverged_by = \"4s\"\nmembers_up = 4", &r),
            ["converged_by", "members_up", "removed", "lost"]
        );
        assert_eq!(judge("all_up_by = \"9s\"", &r), ["all_up_by"], "never is not in time");
        assert!(judge("max_detect = \"1s\"", &r).is_empty(), "nothing crashed");
        r.undetected = 1;
        assert_eq!(judge("max_detect = \"1s\"", &r), ["max_detect"], "a crash nobody noticed");
    }

    #[test]
    fn what_is_no_number_is_said_in_words() {
        let r = RunResult { undetected: 1, unknown: 1, unremoved: 1, ..RunResult::default() };
        let wanted = "all_up_by = \"9s\"\nmembers_up = 3\nmax_detect = \"1s\"\nmax_known = \"1s\"\nmax_removal = \"1s\"\nremoved = 2";
        let all = Expect::read(&Item::document(wanted).unwrap()).unwrap().judge(&r);
        assert_eq!(
            all.iter().map(|(_, why)| why.as_str()).collect::<Vec<_>>(),
            [
                "all_up_by: never (must be <= 9)",
                "members_up: views disagree (must be = 3)",
                "removed: 0 (must be = 2)",
                "max_detect: not noticed (must be <= 1)",
                "max_known: not noticed everywhere (must be <= 1)",
                "max_removal: not removed everywhere (must be <= 1)",
            ]
        );
    }

    #[test]
    fn a_number_that_no_count_can_equal_is_refused() {
        let error = Expect::read(&Item::document("removed = 0.5").unwrap()).unwrap_err();
        assert!(error.what.contains("`removed`"), "{error}");
    }

    #[test]
    fn every_key_of_the_contract_has_a_figure() {
        let r = RunResult {
            converged_at_s: Some(1.0),
            all_up_at_s: Some(1.0),
            all_reachable_at_s: Some(1.0),
            members_up: Some(1),
            ..RunResult::default()
        };
        let without: Vec<_> = KEYS.iter().filter(|(k, _)| figure(&r, k).is_none()).map(|(k, _)| *k).collect();
        assert_eq!(
            without,
            ["max_detect", "max_known", "max_removal", "max_bytes_per_node_per_s", "max_peak_bytes_per_node_per_s"],
            "those not measured in an empty run"
        );
    }
}
