//! Shrinks a scenario that fails while it still fails the same way.
//!
//! Greedy, until no step helps: halves and then single entries of `[[at]]` go, the network becomes plain, the load smaller, the run shorter,
//! the nodes fewer. What counts as the same failure is a name in common: of a violated invariant, or of a failed expectation. Expectations
//! speak of one size and one length of run, so where only they fail both stay.

use std::{collections::BTreeSet, time::Duration};

use toml::{Table, Value};

use super::{Options, RunResult, Scenario, ScenarioError, run, tree::Place};

/// A smaller scenario that still fails, or one that holds as it was.
#[derive(Clone, PartialEq, Debug)]
pub struct Minimised {
    /// Its text.
    pub text: String,
    /// What it was judged by: the names that fail; none if it holds.
    pub names: Vec<String>,
    /// Runs that it took.
    pub runs: u32,
    /// The run of what is left.
    pub result: RunResult,
}

struct Shrinking<'a> {
    seed: u64,
    names: BTreeSet<String>,
    best: Table,
    result: RunResult,
    runs: u32,
    runs_max: u32,
    tell: &'a mut dyn FnMut(&str),
}

/// Shrinks the scenario of `text` (with overrides, as [`Scenario::parse`] takes them) under one seed, in at most `runs_max` runs.
/// `tell` hears of each step that helped. A scenario that holds is left as it is.
///
/// # Errors
/// If the scenario is refused.
pub fn minimise(
    text: &str,
    overrides: &[String],
    seed: u64,
    runs_max: u32,
    tell: &mut dyn FnMut(&str),
) -> Result<Minimised, ScenarioError> {
    let result = run(&Scenario::parse(text, overrides)?, seed, &Options::default())?;
    let names = names_of(&result);
    let document = Scenario::document(text, overrides)?;
    let best = document.table("scenario")?.iter().map(|(k, v)| (k.clone(), v.to_toml())).collect();
    let mut s = Shrinking { seed, names, best, result, runs: 1, runs_max, tell };
    while !s.names.is_empty() {
        let before = s.best.clone();
        s.fewer_actions();
        s.plainer_network();
        s.smaller_load();
        if !s.result.violations.is_empty() {
            s.shorter();
            s.fewer_nodes();
        }
        if s.best == before || s.runs >= s.runs_max {
            break;
        }
    }
    let text = toml::to_string(&s.best).map_err(|e| ScenarioError::new(Place::Nowhere, format!("what is left cannot be written: {e}")))?;
    Ok(Minimised { text, names: s.names.into_iter().collect(), runs: s.runs, result: s.result })
}

/// What fails in a run. Where invariants are violated, expectations say nothing more.
fn names_of(r: &RunResult) -> BTreeSet<String> {
    match r.violations.is_empty() {
        true => r.failed.iter().cloned().collect(),
        false => r.violations.iter().map(|v| v.invariant.clone()).collect(),
    }
}

impl Shrinking<'_> {
    /// Keeps the candidate if it is accepted, differs, and fails in the same way.
    fn try_one(&mut self, what: &str, candidate: Table) -> bool {
        if candidate == self.best || self.runs >= self.runs_max {
            return false;
        }
        let parsed = toml::to_string(&candidate).ok().and_then(|text| Scenario::parse(&text, &[]).ok());
        let Some(scenario) = parsed else { return false };
        self.runs += 1;
        let Ok(result) = run(&scenario, self.seed, &Options::default()) else { return false };
        if names_of(&result).is_disjoint(&self.names) {
            return false;
        }
        (self.tell)(&format!("run {}: {what}", self.runs));
        (self.best, self.result) = (candidate, result);
        true
    }

    fn actions(&self) -> Vec<Value> {
        self.best.get("at").and_then(Value::as_array).cloned().unwrap_or_default()
    }

    /// Leaves out ever smaller stretches of the actions.
    fn fewer_actions(&mut self) {
        let mut stretch = self.actions().len();
        while stretch > 0 {
            let mut from = 0;
            while from < self.actions().len() {
                let mut rest = self.actions();
                let to = rest.len().min(from + stretch);
                rest.drain(from..to);
                let what = format!("without {} of {} actions", to - from, self.actions().len());
                let mut candidate = self.best.clone();
                if rest.is_empty() {
                    candidate.remove("at");
                } else {
                    candidate.insert("at".into(), Value::Array(rest));
                }
                if !self.try_one(&what, candidate) {
                    from = to;
                }
            }
            stretch /= 2;
        }
    }

    fn plainer_network(&mut self) {
        let keys: Vec<String> = self.best.get("network").and_then(Value::as_table).map(|n| n.keys().cloned().collect()).unwrap_or_default();
        for key in keys.iter().filter(|k| *k != "region_latency") {
            let mut candidate = self.best.clone();
            if let Some(network) = candidate.get_mut("network").and_then(Value::as_table_mut) {
                network.remove(key);
                if key == "regions" {
                    network.remove("region_latency");
                }
                if network.is_empty() {
                    candidate.remove("network");
                }
            }
            self.try_one(&format!("without network.{key}"), candidate);
        }
        let mut candidate = self.best.clone();
        candidate.remove("start_spread");
        self.try_one("all start at once", candidate);
    }

    fn smaller_load(&mut self) {
        let mut candidate = self.best.clone();
        candidate.remove("workload");
        if self.try_one("without load", candidate) {
            return;
        }
        for key in ["senders", "shards", "entities", "rate"] {
            while let Some(n) = self.best.get("workload").and_then(|w| w.get(key)).and_then(Value::as_integer).filter(|n| *n > 1) {
                let mut candidate = self.best.clone();
                if let Some(w) = candidate.get_mut("workload").and_then(Value::as_table_mut) {
                    w.insert(key.into(), Value::Integer(n / 2));
                }
                if !self.try_one(&format!("{key} {}", n / 2), candidate) {
                    break;
                }
            }
        }
    }

    /// Ends just behind the first violation, and begins the load later.
    fn shorter(&mut self) {
        let Some(at) = self.result.violations.iter().map(|v| v.at_s).reduce(f64::min) else { return };
        let end = Duration::from_secs_f64(at.max(0.0).ceil() + 1.0);
        let text = |d: Duration| Value::String(format!("{}s", d.as_secs_f64()));
        let mut candidate = self.best.clone();
        candidate.remove("expect");
        candidate.insert("duration".into(), text(end));
        if let Some(w) = candidate.get_mut("workload").and_then(Value::as_table_mut) {
            w.insert("until".into(), text(end));
        }
        if let Some(actions) = candidate.get_mut("at").and_then(Value::as_array_mut) {
            let time = |a: &Value| super::tree::parse_duration(a.get("time")?.as_str()?);
            actions.retain(|a| time(a).is_some_and(|t| t <= end));
        }
        self.try_one(&format!("{} s long", end.as_secs()), candidate);
    }

    fn fewer_nodes(&mut self) {
        while let Some(n) = self.best.get("nodes").and_then(Value::as_integer).filter(|n| *n > 1) {
            let fewer = [n / 2, n - 1].into_iter().filter(|f| *f > 0 && *f < n).any(|fewer| {
                let mut candidate = self.best.clone();
                candidate.remove("expect");
                candidate.insert("nodes".into(), Value::Integer(fewer));
                for (table, key) in [(None, "started"), (None, "seeds"), (Some("workload"), "senders")] {
                    let place = match table {
                        None => Some(&mut candidate),
                        Some(t) => candidate.get_mut(t).and_then(Value::as_table_mut),
                    };
                    if let Some(place) = place
                        && place.get(key).and_then(Value::as_integer).is_some_and(|x| x > fewer)
                    {
                        place.insert(key.into(), Value::Integer(fewer));
                    }
                }
                self.try_one(&format!("{fewer} nodes"), candidate)
            });
            if !fewer {
                break;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Without a crash nobody is removed, so this expectation fails however little is left of the rest.
    const FAILS: &str = r#"
nodes = 3
duration = "12s"
start_spread = "1s"
[network]
loss = 0.01
jitter = "1ms"
[[at]]
time = "8s"
do = "heal"
[[at]]
time = "9s"
do = "pause"
nodes = "1"
for = "100ms"
[expect]
removed = 1
"#;

    #[test]
    fn what_does_not_matter_goes() {
        let mut steps = Vec::new();
        let m = minimise(FAILS, &[], 1, 100, &mut |s| steps.push(s.to_owned())).unwrap();
        assert_eq!(m.names, ["removed"]);
        let left = Scenario::parse(&m.text, &[]).unwrap();
        assert!(left.actions.is_empty() && left.network.loss == 0.0, "{}", m.text);
        assert_eq!(left.nodes, 3, "expectations speak of one size");
        assert!(!steps.is_empty() && m.runs <= 100);
    }

    #[test]
    fn the_load_goes_with_what_is_expected_of_it() {
        let text = FAILS.replace("removed = 1", "removed = 1\nlost = 0") + "[workload]\nentities = 2\nrate = 5\n";
        let m = minimise(&text, &[], 1, 100, &mut |_| ()).unwrap();
        assert!(Scenario::parse(&m.text, &[]).unwrap().workload.is_none(), "{}", m.text);
    }

    #[test]
    fn what_holds_cannot_be_shrunk() {
        let m = minimise(&FAILS.replace("removed = 1", "removed = 0"), &[], 1, 100, &mut |_| ()).unwrap();
        assert!(m.names.is_empty() && m.runs == 1 && m.result.holds());
        assert_eq!(Scenario::parse(&m.text, &[]).unwrap().actions.len(), 2, "{}", m.text);
    }
}
