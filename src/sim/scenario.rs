//! Scenario files: contracts.md, "Scenario files". Everything unknown is refused with line and field.

use std::{collections::BTreeMap, time::Duration};

use super::{
    action::{self, Action, Bounds},
    expect::Expect,
    selector::Selector,
    tree::{Item, Place, ScenarioError, Value, override_with, refuse_unknown},
};
use crate::Config;

/// Most nodes of one scenario: addresses of the simulator have five digits.
pub const NODES_MAX: u32 = 100_000;

const TOP: &[&str] =
    &["name", "nodes", "started", "seeds", "start_spread", "seed", "duration", "roles", "config", "network", "workload", "at", "expect"];
const TABLES: &[&str] = &["roles", "network", "network.burst", "workload", "expect"];
const NETWORK: &[&str] = &["latency", "jitter", "loss", "duplicate", "reorder", "reorder_by", "burst", "regions", "region_latency"];
const WORKLOAD: &[&str] = &["entities", "shards", "senders", "rate", "mode", "from", "until"];

/// What is to be run.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Its name.
    pub name: String,
    /// How many nodes there are at all.
    pub nodes: u32,
    /// How many run from the beginning.
    pub started: u32,
    /// How many of the first are in everybody's seed list.
    pub seeds: u32,
    /// Over which time the starts are spread.
    pub start_spread: Duration,
    /// What the run's draws come from.
    pub seed: u64,
    /// Virtual length.
    pub duration: Duration,
    /// Which nodes have which role.
    pub roles: Vec<(String, Selector)>,
    /// Configuration: key, where it is set, value.
    pub config: Vec<(String, Place, toml::Value)>,
    /// The network.
    pub network: NetworkSpec,
    /// The clients, if any.
    pub workload: Option<Workload>,
    /// What happens, in order of time, then of the file.
    pub actions: Vec<Action>,
    /// What must hold.
    pub expect: Expect,
}

/// The network between nodes.
#[derive(Clone, PartialEq, Debug)]
pub struct NetworkSpec {
    /// One way, mean.
    pub latency: Duration,
    /// Its standard deviation.
    pub jitter: Duration,
    /// Fraction of datagrams lost. A frame of a link comes late instead, by a retransmission for each time it is lost, as over TCP.
    pub loss: f64,
    /// Fraction doubled.
    pub duplicate: f64,
    /// Fraction held back.
    pub reorder: f64,
    /// For how long at most.
    pub reorder_by: Duration,
    /// Bursts of loss (Gilbert's two states), per directed pair.
    pub burst: Option<Burst>,
    /// Number of regions; nodes are dealt round robin.
    pub regions: u32,
    /// Mean latency between regions, row = from.
    pub region_latency: Vec<Vec<Duration>>,
}

/// Gilbert's model of losses that come together.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct Burst {
    /// Share of datagrams sent in the bad state.
    pub bad: f64,
    /// Mean number of datagrams in a row in the bad state.
    pub mean: f64,
    /// Loss in the bad state.
    pub loss: f64,
}

/// Clients that send numbered messages.
#[derive(Clone, PartialEq, Debug)]
pub struct Workload {
    /// Number of `probe` entities.
    pub entities: u32,
    /// Number of shards of the type.
    pub shards: u32,
    /// Number of clients, each on a node of its own, spread evenly.
    pub senders: u32,
    /// Messages per second in total.
    pub rate: f64,
    /// How they are sent.
    pub mode: SendMode,
    /// From when.
    pub from: Duration,
    /// Until when.
    pub until: Duration,
}

/// How the workload sends.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum SendMode {
    /// At most once, no answer.
    Tell,
    /// With an answer within a second.
    Ask,
}

impl Scenario {
    /// Parses a file's text, with overrides (`key=value`) put over it.
    pub fn parse(text: &str, overrides: &[String]) -> Result<Self, ScenarioError> {
        read(&Self::document(text, overrides)?)
    }

    pub(super) fn document(text: &str, overrides: &[String]) -> Result<Item, ScenarioError> {
        let mut document = Item::document(text)?;
        for o in overrides {
            override_with(&mut document, o, TABLES)?;
        }
        Ok(document)
    }
}

fn read(document: &Item) -> Result<Scenario, ScenarioError> {
    let top = document.table("scenario")?;
    refuse_unknown(top, "the scenario", TOP)?;
    let missing = |key: &str, example: &str| ScenarioError::new(Place::Nowhere, format!("`{key}` is missing; add `{key} = {example}`"));
    let int = |key: &str, default: u64, min: u64, max: u64| top.get(key).map_or(Ok(default), |i| i.int(key, min, max));
    let nodes = top.get("nodes").ok_or_else(|| missing("nodes", "10"))?.int("nodes", 1, NODES_MAX.into())? as u32;
    let duration_item = top.get("duration").ok_or_else(|| missing("duration", "\"60s\""))?;
    let duration = duration_item.duration("duration")?;
    if duration.is_zero() {
        return Err(duration_item.expected("duration", "above 0"));
    }
    let network = top.get("network").map_or_else(|| Ok(NetworkSpec::default()), |n| read_network(n, nodes))?;
    let workload = top.get("workload").map(|w| read_workload(w, nodes, duration)).transpose()?;
    let roles = match top.get("roles") {
        None => Vec::new(),
        Some(item) => item
            .table("roles")?
            .iter()
            .map(|(role, s)| {
                // As a node's own setting, which the list of one stands for.
                let as_setting = Config::default().set("cluster.roles", &toml::Value::Array(vec![role.as_str().into()]));
                as_setting.map_err(|error| s.error(format!("`roles`: {}", error.why)))?;
                let chosen = selector(s, &format!("roles.{role}"), nodes)?;
                match chosen.fits_unborn() && chosen.top_region().is_none_or(|r| r < network.regions) {
                    true => Ok((role.clone(), chosen)),
                    false => Err(s.error(format!(
                        "`roles.{role}` is \"{chosen}\"; roles are given before anything runs: by \"3\", \"3,7\", \"10..20\", \"random:5\", \"all\" or a region \
                         that [network] has"
                    ))),
                }
            })
            .collect::<Result<_, ScenarioError>>()?,
    };
    let mut config = Vec::new();
    if let Some(item) = top.get("config") {
        flatten(item.table("config")?, "", &mut config);
        for (i, (key, place, _)) in config.iter().enumerate() {
            if let Some((_, other, _)) = config[..i].iter().find(|(k, ..)| k == key) {
                return Err(ScenarioError::new(place.clone(), format!("`{key}` is written twice, in {other} too")));
            }
        }
    }
    let mut actions = Vec::new();
    if let Some(item) = top.get("at") {
        let bounds = Bounds { nodes, regions: network.regions, shards: workload.as_ref().map(|w| w.shards), duration };
        for entry in item.list("at")? {
            actions.push(action::read(entry, &bounds)?);
        }
    }
    actions.sort_by_key(|a| a.at);
    Ok(Scenario {
        name: top.get("name").map_or(Ok("unnamed"), |n| n.text("name"))?.to_owned(),
        nodes,
        started: int("started", nodes.into(), 1, nodes.into())? as u32,
        seeds: int("seeds", 1, 1, nodes.into())? as u32,
        start_spread: top.get("start_spread").map_or(Ok(Duration::ZERO), |s| s.duration("start_spread"))?,
        seed: int("seed", 1, 0, i64::MAX as u64)?,
        duration,
        roles,
        config,
        network,
        expect: top.get("expect").map_or_else(|| Ok(Expect::default()), Expect::read)?,
        workload,
        actions,
    })
}

/// Both `"a.b" = 1` and `a.b = 1` (a table in TOML) name the key `a.b`.
fn flatten(table: &BTreeMap<String, Item>, prefix: &str, out: &mut Vec<(String, Place, toml::Value)>) {
    for (key, item) in table {
        let key = if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
        match &item.value {
            // Below the second level a table is a value (shard counts by type).
            Value::Table(inner) if !key.contains('.') => flatten(inner, &key, out),
            _ => out.push((key, item.place.clone(), item.to_toml())),
        }
    }
}

pub(super) fn selector(item: &Item, field: &str, count: u32) -> Result<Selector, ScenarioError> {
    let text = match &item.value {
        Value::Int(i) => i.to_string(),
        _ => item.text(field)?.to_owned(),
    };
    Selector::parse(&text, count).map_err(|why| item.error(format!("`{field}`: {why}")))
}

impl Default for NetworkSpec {
    fn default() -> Self {
        Self {
            latency: Duration::from_millis(1),
            jitter: Duration::from_micros(200),
            loss: 0.0,
            duplicate: 0.0,
            reorder: 0.0,
            reorder_by: Duration::from_millis(5),
            burst: None,
            regions: 1,
            region_latency: Vec::new(),
        }
    }
}

fn read_network(item: &Item, nodes: u32) -> Result<NetworkSpec, ScenarioError> {
    let t = item.table("network")?;
    refuse_unknown(t, "[network]", NETWORK)?;
    let default = NetworkSpec::default();
    let fraction = |key: &str| t.get(key).map_or(Ok(0.0), |x| x.number(key, 0.0, 1.0));
    let span = |key: &str, d: Duration| t.get(key).map_or(Ok(d), |x| x.duration(key));
    let burst = match t.get("burst") {
        None => None,
        Some(b) => {
            let inner = b.table("burst")?;
            refuse_unknown(inner, "`burst`", &["bad", "mean", "loss"])?;
            let field = |key: &str, min: f64, max: f64| {
                inner
                    .get(key)
                    .ok_or_else(|| b.error(format!("`burst` lacks `{key}`; write {{ bad = 0.02, mean = 20, loss = 0.5 }}")))?
                    .number(key, min, max)
            };
            Some(Burst { bad: field("bad", 0.0, 0.99)?, mean: field("mean", 1.0, 1e9)?, loss: field("loss", 0.0, 1.0)? })
        }
    };
    let regions = t.get("regions").map_or(Ok(1), |r| r.int("regions", 1, nodes.into()))? as u32;
    let mut region_latency = Vec::new();
    if let Some(matrix) = t.get("region_latency") {
        let rows = matrix.list("region_latency")?;
        for row in rows {
            let row_items = row.list("region_latency")?;
            if row_items.len() != regions as usize {
                return Err(row.error(format!("`region_latency` has a row of {} for {regions} regions", row_items.len())));
            }
            region_latency.push(row_items.iter().map(|x| x.duration("region_latency")).collect::<Result<Vec<_>, _>>()?);
        }
        if rows.len() != regions as usize {
            return Err(matrix.error(format!("`region_latency` has {} rows for {regions} regions", rows.len())));
        }
    } else if regions > 1 {
        let at = t.get("regions").unwrap_or(item);
        return Err(at.error("`regions` needs `region_latency`: one row of latencies per region"));
    }
    Ok(NetworkSpec {
        latency: span("latency", default.latency)?,
        jitter: span("jitter", default.jitter)?,
        loss: fraction("loss")?,
        duplicate: fraction("duplicate")?,
        reorder: fraction("reorder")?,
        reorder_by: span("reorder_by", default.reorder_by)?,
        burst,
        regions,
        region_latency,
    })
}

fn read_workload(item: &Item, nodes: u32, duration: Duration) -> Result<Workload, ScenarioError> {
    let t = item.table("workload")?;
    refuse_unknown(t, "[workload]", WORKLOAD)?;
    let int = |key: &str, default: u64, max: u64| t.get(key).map_or(Ok(default), |i| i.int(key, 1, max));
    let mode = match t.get("mode") {
        None => SendMode::Tell,
        Some(m) => match m.text("mode")? {
            "tell" => SendMode::Tell,
            "ask" => SendMode::Ask,
            "reliable" => {
                return Err(m.error("`mode` \"reliable\" is not available in this version: acknowledged sending does not exist yet; use \"tell\" or \"ask\""));
            }
            other => return Err(m.error(format!("`mode` is \"{other}\"; it must be \"tell\", \"ask\" or \"reliable\""))),
        },
    };
    let from = t.get("from").map_or(Ok(Duration::ZERO), |x| x.duration("from"))?;
    // What is sent in the last moment cannot be judged, so by default sending ends before the run does.
    let until = t.get("until").map_or(Ok(duration.saturating_sub(Duration::from_secs(5)).max(from)), |x| x.duration("until"))?;
    if until < from || until > duration {
        let at = t.get("until").or(t.get("from")).unwrap_or(item);
        return Err(at.error(format!("[workload] runs `from` {from:?} `until` {until:?}; it must lie within the run ({duration:?})")));
    }
    Ok(Workload {
        entities: int("entities", 100, 10_000_000)? as u32,
        shards: int("shards", 100, 1_000_000)? as u32,
        senders: int("senders", 1, nodes.into())? as u32,
        rate: t.get("rate").map_or(Ok(100.0), |x| x.number("rate", 0.001, 10_000_000.0))?,
        mode,
        from,
        until,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONTRACT: &str = r#"
name = "crash-10-of-1000"
nodes = 1000
started = 1000
seeds = 1
start_spread = "1s"
seed = 1
duration = "120s"
roles = { backend = "0..500" }
[config]
"membership.gossip_interval" = "1s"
detector.threshold = 12
[network]
latency = "1ms"
jitter = "0.2ms"
loss = 0.0
regions = 2
region_latency = [["1ms","50ms"],["50ms","1ms"]]
burst = { bad = 0.02, mean = 20, loss = 0.5 }
[workload]
entities = 1000
shards = 100
senders = 3
rate = 500
mode = "tell"
from = "10s"
until = "100s"
[[at]]
time = "30s"
do = "crash"
nodes = "10..20"
[expect]
converged_by = "60s"
"#;

    #[test]
    fn the_contracts_example_is_understood() {
        let s = Scenario::parse(CONTRACT, &[]).unwrap();
        assert_eq!((s.name.as_str(), s.nodes, s.seeds, s.duration), ("crash-10-of-1000", 1000, 1, Duration::from_secs(120)));
        assert_eq!(
            s.config.iter().map(|(k, place, _)| (k.as_str(), place.line())).collect::<Vec<_>>(),
            [("detector.threshold", 12), ("membership.gossip_interval", 11)]
        );
        assert_eq!(s.network.region_latency[0][1], Duration::from_millis(50));
        assert_eq!(s.workload.unwrap().mode, SendMode::Tell);
        assert_eq!((s.actions.len(), s.actions[0].at), (1, Duration::from_secs(30)));
    }

    #[test]
    fn whatever_is_wrong_is_named_with_its_line() {
        for (change, line, what) in [
            (("nodes = 1000", "nodez = 1000"), 3, "did you mean `nodes`?"),
            (("nodes = 1000", "nodes = 0"), 3, "from 1 to 100000"),
            (("loss = 0.0", "loss = 1.5"), 16, "from 0 to 1"),
            (("latency = \"1ms\"", "latency = 1"), 14, "with its unit"),
            (("mode = \"tell\"", "mode = \"reliable\""), 25, "not available in this version"),
            (("do = \"crash\"", "do = \"crahs\""), 30, "did you mean `crash`?"),
            (("nodes = \"10..20\"", "nodes = \"10..2000\""), 31, "must end from 10 to 1000"),
            (("nodes = \"10..20\"", "node = \"10..20\""), 31, "did you mean `nodes`?"),
            (("converged_by = \"60s\"", "converged_at = \"60s\""), 33, "did you mean `converged_by`?"),
            (("regions = 2", "regions = 3"), 18, "for 3 regions"),
            (("jitter = \"0.2ms\"", "jitter = \"18446744073s\""), 15, "`jitter` is \"18446744073s\"; it must be at most 366d"),
            (("duration = \"120s\"", "duration = \"400d\""), 8, "`duration` is \"400d\"; it must be at most 366d"),
            (("duration = \"120s\"", "duration = \"0s\""), 8, "`duration` is \"0s\"; it must be above 0"),
            (("nodes = 1000", "nodes = 3.5"), 3, "`nodes` is 3.5; it must be an integer"),
            (("threshold = 12", "threshold = 12\n\"detector.threshold\" = 9"), 13, "`detector.threshold` is written twice, in line 12 too"),
            (("until = \"100s\"", "until = \"200s\""), 27, "within the run"),
            (("until = \"100s\"", "until = \"5s\""), 27, "within the run"),
            (("from = \"10s\"\nuntil = \"100s\"", "from = \"200s\""), 26, "within the run"),
            (("time = \"30s\"", "time = \"300s\""), 29, "after the end"),
            (("bad = 0.02, ", ""), 19, "lacks `bad`"),
            (("nodes = \"10..20\"", "nodes = \"region:1 - region:2\""), 31, "`nodes`: selector \"region:2\": [network] has regions 0 to 1"),
            (("region_latency = [[\"1ms\",\"50ms\"],[\"50ms\",\"1ms\"]]\n", ""), 17, "needs `region_latency`"),
        ] {
            let text = CONTRACT.replacen(change.0, change.1, 1);
            assert_ne!(text, CONTRACT, "{change:?}");
            let error = Scenario::parse(&text, &[]).unwrap_err();
            assert!(error.what.contains(what), "{change:?}: {error}");
            assert_eq!(error.place.line(), line, "{change:?}: {error}");
        }
        let error = Scenario::parse("nodes = 3\n", &[]).unwrap_err();
        assert!(error.what.contains("`duration` is missing"));
    }

    #[test]
    fn roles_are_given_to_whom_is_known_before_the_run() {
        for selector in ["leader", "all - oldest", "region:1"] {
            let text = format!("nodes = 6\nduration = \"1s\"\nroles = {{ backend = \"{selector}\" }}\n");
            let error = Scenario::parse(&text, &[]).unwrap_err();
            assert!(error.what.contains("before anything runs"), "{error}");
        }
    }

    #[test]
    fn roles_have_names_that_a_node_may_be_given() {
        for (role, why) in [("\"\"", "empty"), ("\"back end\"", "other characters"), (&*"r".repeat(65), "at most 64")] {
            let text = format!("nodes = 6\nduration = \"1s\"\nroles = {{ {role} = \"all\" }}\n");
            let error = Scenario::parse(&text, &[]).unwrap_err();
            assert!(error.place.line() == 3 && error.what.contains("`roles`") && error.what.contains(why), "{error}");
        }
    }

    #[test]
    fn overrides_replace_what_the_file_says() {
        let s =
            Scenario::parse(CONTRACT, &["nodes=2000".into(), "started=2000".into(), "membership.gossip_interval=200ms".into()]).unwrap();
        assert_eq!((s.nodes, s.started), (2000, 2000));
        assert!(s.config.iter().any(|(k, _, v)| k == "membership.gossip_interval" && v.as_str() == Some("200ms")));
        let s = Scenario::parse(CONTRACT, &["detector.threshold=9".into()]).unwrap();
        let found: Vec<_> = s.config.iter().filter(|(k, ..)| k == "detector.threshold").map(|(_, _, v)| v.as_str()).collect();
        assert_eq!(found, [Some("9")], "however it is written there");
        let error = Scenario::parse(CONTRACT, &["nodes=many".into()]).unwrap_err();
        assert!(error.to_string().starts_with("--set nodes=many: `nodes` is \"many\""), "{error}");
        let error = Scenario::parse(CONTRACT, &["network.burst.loss=2".into()]).unwrap_err();
        assert!(error.to_string().starts_with("--set network.burst.loss=2: `loss` is 2"), "{error}");
        let s = Scenario::parse(CONTRACT, &["network.burst.loss=0.25".into(), "name=5".into()]).unwrap();
        assert_eq!((s.network.burst.unwrap().loss, s.name.as_str()), (0.25, "5"));
    }
}
