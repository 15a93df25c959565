//! From a scenario's `[config]` to the configuration of its nodes.

use std::{collections::BTreeMap, sync::Arc};

use super::{
    Scenario,
    selector::Scene,
    tree::{Place, ScenarioError},
};
use crate::{
    Config, ConfigErrors, NodeAddr,
    config::{DowningStrategy, Workers},
    proto::rng::Rng,
};

/// Workers of a node when the scenario leaves it open: the least number that has two of anything.
const WORKERS_AUTO: u16 = 2;

/// Address of a node: texts sort as the indices do.
pub(super) fn address(index: u32) -> NodeAddr {
    NodeAddr::new(&format!("n{index:05}"), 7301)
}

/// Index of the node with this address.
pub(super) fn index_of(addr: &NodeAddr) -> Option<u32> {
    addr.host.strip_prefix('n')?.parse().ok()
}

/// The configuration of every node; equal ones are shared. `lots`: who has a role that is given by lot.
pub(super) fn configs(scenario: &Scenario, lots: &mut Rng) -> Result<Vec<Arc<Config>>, ScenarioError> {
    let mut base = base(scenario)?;
    base.cluster.seeds = (0..scenario.seeds).map(|i| address(i).to_string()).collect();
    let mut roles_of: Vec<Vec<String>> = vec![base.cluster.roles.clone(); scenario.nodes as usize];
    for (role, selector) in &scenario.roles {
        for i in selector.resolve(&Unborn(scenario), lots) {
            roles_of[i as usize].push(role.clone());
        }
    }
    let mut shared: BTreeMap<Vec<String>, Arc<Config>> = BTreeMap::new();
    let configs = roles_of.into_iter().map(|mut roles| {
        roles.sort();
        roles.dedup();
        let make = || {
            let mut config = base.clone();
            config.cluster.roles.clone_from(&roles);
            Arc::new(config)
        };
        shared.entry(roles.clone()).or_insert_with(make).clone()
    });
    Ok(configs.collect())
}

/// What all nodes have in common. Everything that is wrong with it is told at once.
fn base(scenario: &Scenario) -> Result<Config, ScenarioError> {
    let mut base = Config::default();
    let (mut errors, mut unset) = (Vec::new(), Vec::new());
    // A preset is a set of defaults, so it goes first wherever it stands.
    let mut settings: Vec<_> = scenario.config.iter().collect();
    settings.sort_by_key(|(key, ..)| key != "cluster.preset");
    for (key, place, value) in settings {
        if let Err(error) = base.set(key, value) {
            errors.push(ScenarioError::new(place.clone(), error.to_string()));
            unset.push(key);
        }
    }
    let place_of = |key: &str| scenario.config.iter().find(|(k, ..)| k == key).map(|(_, place, _)| place.clone());
    if let Some(place) = place_of("cluster.seeds") {
        let what = "`cluster.seeds`: in a scenario the seeds are the first nodes; say how many with `seeds = 3` at the top";
        errors.push(ScenarioError::new(place, what));
    }
    // A node would refuse to start, and a run without nodes holds what it should not.
    if let Err(ConfigErrors(found)) = base.validate() {
        // What has its default only because its value was refused is no second error.
        let follows = |text: &str| unset.iter().any(|key| text.contains(key.as_str()));
        for error in found.iter().filter(|e| !follows(&e.key) && !follows(&e.why)) {
            // The key to change may have its default, and not fit one that the file sets.
            let named = || scenario.config.iter().find(|(key, ..)| error.why.contains(key.as_str())).map(|(_, place, _)| place.clone());
            let place = place_of(&error.key).or_else(named).unwrap_or(Place::Nowhere);
            errors.push(ScenarioError::new(place, error.to_string()));
        }
    }
    // No side would have it: all stop at the first loss, and the run says nothing of the strategy.
    let is_node = |addr: &NodeAddr| index_of(addr).is_some_and(|i| i < scenario.nodes && address(i) == *addr);
    if base.downing.strategy == DowningStrategy::KeepReferee
        && let Some(addr) = base.downing.referee.as_ref().filter(|addr| !is_node(addr))
    {
        let what = format!("`downing.referee`: no node is \"{addr}\"; the nodes are {} to {}", address(0), address(scenario.nodes - 1));
        errors.push(ScenarioError::new(place_of("downing.referee").unwrap_or(Place::Nowhere), what));
    }
    ScenarioError::all(errors).map_or(Ok(base), Err)
}

/// Number of workers of a node.
pub(super) fn workers(config: &Config) -> u16 {
    match config.node.workers {
        Workers::Count(n) => n.max(1),
        _ => WORKERS_AUTO,
    }
}

/// The world before anything runs, for selectors of roles.
struct Unborn<'a>(&'a Scenario);

impl Scene for Unborn<'_> {
    fn count(&self) -> u32 {
        self.0.nodes
    }
    fn running(&self, _index: u32) -> bool {
        true
    }
    fn region(&self, index: u32) -> u32 {
        index % self.0.network.regions
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_sort_as_indices_do() {
        let mut all: Vec<NodeAddr> = [9, 10, 99_999, 100, 0].map(address).to_vec();
        all.sort();
        assert_eq!(all.iter().map(|a| index_of(a).unwrap()).collect::<Vec<_>>(), [0, 9, 10, 100, 99_999]);
    }

    #[test]
    fn nodes_with_the_same_roles_share_their_configuration() {
        let s = Scenario::parse("nodes = 6\nduration = \"1s\"\nroles = { backend = \"0..4\" }\n", &[]).unwrap();
        let c = configs(&s, &mut Rng::new(1)).unwrap();
        assert!(Arc::ptr_eq(&c[0], &c[3]) && Arc::ptr_eq(&c[4], &c[5]) && !Arc::ptr_eq(&c[3], &c[4]));
        assert_eq!(c[0].cluster.roles, ["backend"]);
        assert_eq!(c[5].cluster.seeds, [address(0).to_string()]);
    }

    #[test]
    fn each_random_role_has_its_own_lots() {
        let s = Scenario::parse("nodes = 40\nduration = \"1s\"\nroles = { a = \"random:9\", b = \"random:9\" }\n", &[]).unwrap();
        let with = |role: &str, seed: u64| -> Vec<usize> {
            let configs = configs(&s, &mut Rng::new(seed)).unwrap();
            (0..40).filter(|i| configs[*i].cluster.roles.iter().any(|r| r == role)).collect()
        };
        assert_eq!((with("a", 1).len(), with("a", 1)), (9, with("a", 1)));
        assert_ne!(with("a", 1), with("b", 1));
        assert_ne!(with("a", 1), with("a", 2));
    }

    // failures: row 24
    #[test]
    fn settings_with_which_no_node_would_start_are_refused() {
        for (settings, line, what) in [
            ("\"downing.strategy\" = \"static-quorum\"", 4, "quorum_size"),
            ("\"cluster.seeds\" = [\"a:1\"]", 4, "`seeds = 3`"),
            (
                "\"downing.strategy\" = \"keep-referee\"\n\"downing.referee\" = \"n2:7301\"",
                5,
                "`downing.referee`: no node is \"n2:7301\"; the nodes are n00000:7301 to n00005:7301",
            ),
            ("\"downing.strategy\" = \"keep-referee\"\n\"downing.referee\" = \"n00006:7301\"", 5, "n00000:7301 to n00005:7301"),
            (
                "\"detector.heartbeat_interval\" = \"2s\"\n\"detector.acceptable_pause\" = \"1s\"",
                5,
                "E-CFG-009 detector.acceptable_pause: 1s < detector.heartbeat",
            ),
            ("\"sharding.shards\" = 8\n\"detector.acceptable_pause\" = \"1m\"", 5, "E-CFG-009 sharding.lease: "),
        ] {
            let s = Scenario::parse(&format!("nodes = 6\nduration = \"1s\"\n[config]\n{settings}\n"), &[]).unwrap();
            let error = configs(&s, &mut Rng::new(1)).unwrap_err();
            assert_eq!(error.place.line(), line, "{error}");
            assert!(error.what.contains(what), "{error}");
        }
    }

    #[test]
    fn the_last_node_may_be_the_referee() {
        let settings = "\"downing.strategy\" = \"keep-referee\"\n\"downing.referee\" = \"n00005:7301\"";
        let s = Scenario::parse(&format!("nodes = 6\nduration = \"1s\"\n[config]\n{settings}\n"), &[]).unwrap();
        configs(&s, &mut Rng::new(1)).unwrap();
    }

    #[test]
    fn what_an_override_sets_is_judged_as_what_the_file_does() {
        let s = Scenario::parse("nodes = 6\nduration = \"1s\"\n", &["cluster.seeds=[\"a:1\"]".into()]).unwrap();
        let error = configs(&s, &mut Rng::new(1)).unwrap_err();
        assert!(error.to_string().starts_with("--set cluster.seeds=[\"a:1\"]: `cluster.seeds`: in a scenario"), "{error}");
    }

    #[test]
    fn all_that_is_wrong_is_told_at_once() {
        let settings = "\"member.gossip\" = \"1s\"\n\"detector.threshold\" = \"soon\"\n\"downing.strategy\" = \"static-quorum\"\n";
        let text = format!("nodes = 6\nduration = \"1s\"\n[config]\n{settings}\"downing.quorum_size\" = 0\n");
        let s = Scenario::parse(&text, &["membership.gossip_interval=often".into()]).unwrap();
        let error = configs(&s, &mut Rng::new(1)).unwrap_err();
        let places: Vec<_> = std::iter::once(&error).chain(&error.more).map(|e| e.place.clone()).collect();
        let lines = [4, 5, 7].map(Place::Line);
        // Without a quorum that may be, that one is missing is no error more.
        assert_eq!(places, [&lines[..], &[Place::Set("membership.gossip_interval=often".into())]].concat(), "{error}");
    }

    #[test]
    fn an_unknown_configuration_key_names_its_line() {
        let s = Scenario::parse("nodes = 6\nduration = \"1s\"\n[config]\n\"member.gossip\" = \"1s\"\n", &[]).unwrap();
        let error = configs(&s, &mut Rng::new(1)).unwrap_err();
        assert_eq!(error.place.line(), 4);
        assert!(error.what.contains("member.gossip"));
    }
}
