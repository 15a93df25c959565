//! The nodes of a soak: where each stands, whether the cluster is whole, and what its members say of each other.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    ops::Range,
    process,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use wingbeat::{Cluster, Config, Event, MemberStatus, NodeId, Subscription, builtin, config::Preset};

use super::{
    load::{Homes, Regions},
    plan::{ANCHOR, NODES},
    watch::Seen,
};
use crate::{
    demo::nodes::{Node, Nodes, Place},
    fail::Failure,
    http::Admin,
};

/// How long a node may take to say where it listens, and the first cluster to form.
const FORMED_WITHIN: Duration = Duration::from_secs(60);
/// How long the cluster must look whole before it counts as such: longer than the coordinator takes to look for shards to move.
const WHOLE_FOR: Duration = Duration::from_millis(1_500);
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// The role of those that may be coordinator; the load's node, which is never faulted, is none of them.
const DUTY: &str = "duty";

/// What membership said of nodes that nothing had been done to.
#[derive(Clone, Debug, Default)]
pub struct Said {
    /// Addresses of nodes whose removal is expected now.
    pub doomed: BTreeSet<String>,
    /// Addresses of nodes that may be held unreachable now.
    pub stopped: BTreeSet<String>,
    /// Removed or declared dead, although they lived.
    pub false_removals: Vec<String>,
    /// Held unreachable, although they lived and were stopped for no longer than anybody is accused for.
    pub suspicions: Vec<String>,
    /// Members removed in all.
    pub removed: u64,
}

impl Said {
    /// Takes in what happened at that time. `names`: addresses of members.
    pub fn take(&mut self, at: f64, event: &Event, name: impl Fn(NodeId) -> Option<String>) {
        match event {
            Event::Member { member, was } if matches!(member.status, MemberStatus::Down | MemberStatus::Removed) => {
                let addr = member.addr.to_string();
                self.removed += u64::from(member.status == MemberStatus::Removed);
                if !self.doomed.contains(&addr) {
                    let was = was.map_or("unknown", MemberStatus::name);
                    self.false_removals.push(format!("{at:.1} s: {addr} became {}, was {was}", member.status.name()));
                }
            }
            Event::Unreachable { node, why, .. } => {
                let addr = name(*node).unwrap_or_else(|| node.to_string());
                if !self.doomed.contains(&addr) && !self.stopped.contains(&addr) {
                    self.suspicions.push(format!("{at:.1} s: {addr}: {why}"));
                }
            }
            _ => {}
        }
    }
}

/// All nodes, and the load's own.
pub struct Stage {
    pub nodes: Nodes,
    /// By number; `None` while one is away. The last place is for one more.
    pub slots: Vec<Option<Node>>,
    stands: Vec<Option<(String, SocketAddr)>>,
    pub cluster: Cluster,
    pub regions: Regions,
    pub said: Arc<Mutex<Said>>,
    pub seen: Arc<Mutex<Seen>>,
    interrupted: Arc<AtomicUsize>,
    /// Messages that nodes dropped, by process and reason: in earlier lives of the process, and in this one as last heard.
    drops: BTreeMap<(u32, String), (u64, u64)>,
    idle: String,
    coordinators: Range<usize>,
    _events: Subscription,
}

impl Stage {
    /// Starts all nodes, the load's last, and waits until they are one cluster.
    pub fn set(idle: &str, coordinators: Range<usize>, began: Instant, interrupted: Arc<AtomicUsize>) -> Result<Self, Failure> {
        let mut nodes = Nodes::of("soak")?;
        let gone = || interrupted.load(Ordering::Relaxed) != 0;
        let (mut slots, mut stands): (Vec<Option<Node>>, Vec<_>) = (Vec::new(), Vec::new());
        let seen = Arc::new(Mutex::new(Seen::default()));
        for number in 0..NODES {
            let seeds = slots.iter().flatten().map(|node: &Node| node.addr.clone()).collect();
            let node = nodes.start(&Place { stands: None, seeds, config: settings(idle, coordinators.contains(&number)) })?.wait(gone)?;
            seen.lock().begins(node.pid(), &life(number, &node), number == ANCHOR);
            stands.push(Some((node.addr.clone(), node.admin)));
            slots.push(Some(node));
        }
        slots.push(None);
        stands.push(None);
        let seeds: Vec<String> = slots.iter().flatten().map(|node| node.addr.clone()).collect();
        let cluster = own_node(idle, &seeds)?;
        seen.lock().begins(process::id(), "the load's process", true);
        let said = Arc::new(Mutex::new(Said::default()));
        // Events speak of ids; members that were there before have no event.
        let present = cluster.view().members.iter().map(|member| (member.id, member.addr.to_string())).collect::<BTreeMap<_, _>>();
        let (heard, names) = (said.clone(), Mutex::new(present));
        let events = cluster.on_event(move |event| {
            let mut names = names.lock();
            if let Event::Member { member, .. } = event {
                names.insert(member.id, member.addr.to_string());
            }
            heard.lock().take(began.elapsed().as_secs_f64(), event, |node| names.get(&node).cloned());
        });
        let regions = Regions::of(&cluster, FORMED_WITHIN).map_err(unformed)?;
        let (idle, drops) = (idle.to_owned(), BTreeMap::new());
        let mut stage =
            Self { nodes, slots, stands, cluster, regions, said, seen, interrupted, drops, idle, coordinators, _events: events };
        stage.wait_whole(FORMED_WITHIN)?.map_err(unformed)?;
        Ok(stage)
    }

    pub fn is_interrupted(&self) -> bool {
        self.interrupted.load(Ordering::Relaxed) != 0
    }

    /// Lets so much time pass, or less if the soak is interrupted.
    pub fn pass(&self, time: Duration) {
        let end = Instant::now() + time;
        while let Some(left) = end.checked_duration_since(Instant::now()).filter(|left| !left.is_zero() && !self.is_interrupted()) {
            thread::park_timeout(left.min(LOOK_EVERY));
        }
    }

    /// Starts a node in a place that is free, on the addresses that it had there before. The place stays free if the soak is interrupted meanwhile.
    pub fn start(&mut self, slot: usize) -> Result<(), Failure> {
        let others = self.slots.iter().flatten().map(|node| node.addr.clone());
        let place = Place {
            stands: self.stands[slot].clone(),
            seeds: others.collect(),
            config: settings(&self.idle, self.coordinators.contains(&slot)),
        };
        let interrupted = self.interrupted.clone();
        let node = match self.nodes.start(&place)?.wait(|| interrupted.load(Ordering::Relaxed) != 0) {
            Err(_) if self.is_interrupted() => return Ok(()),
            started => started?,
        };
        self.seen.lock().begins(node.pid(), &life(slot, &node), slot == ANCHOR);
        if slot < NODES {
            self.stands[slot] = Some((node.addr.clone(), node.admin));
        }
        self.slots[slot] = Some(node);
        Ok(())
    }

    /// Takes the node of a place out of the watch; it is about to end.
    pub fn take(&mut self, slot: usize) -> Option<Node> {
        let node = self.slots[slot].take()?;
        self.seen.lock().ends(node.pid());
        Some(node)
    }

    /// The member at an address, as the load's node sees it.
    pub fn member(&self, addr: &str) -> Option<NodeId> {
        self.cluster.view().members.iter().find(|member| member.status == MemberStatus::Up && member.addr.to_string() == addr).map(|m| m.id)
    }

    /// The place of the coordinator.
    pub fn coordinator(&self) -> Option<usize> {
        let node = self.slots.iter().flatten().next()?;
        let status = Admin::new(&node.admin.to_string(), None).ok()?.get("/api/v1/status").ok()?;
        let addr = status["coordinator"].as_str()?;
        self.slots.iter().position(|node| node.as_ref().is_some_and(|node| node.addr == addr))
    }

    /// Waits until the cluster is whole and has been for a moment: how long it took until then, or what was missing in the end.
    pub fn wait_whole(&mut self, within: Duration) -> Result<Result<Duration, String>, Failure> {
        let began = Instant::now();
        let mut since: Option<(Instant, Homes)> = None;
        loop {
            self.check()?;
            let missing = match self.whole() {
                Ok(homes) if since.as_ref().is_some_and(|(_, before)| *before == homes) => None,
                Ok(homes) => {
                    since = Some((Instant::now(), homes));
                    None
                }
                Err(missing) => {
                    since = None;
                    Some(missing)
                }
            };
            if let Some((since, _)) = since.as_ref().filter(|(since, _)| since.elapsed() >= WHOLE_FOR) {
                self.hear_drops();
                return Ok(Ok(since.duration_since(began)));
            }
            if began.elapsed() > within + WHOLE_FOR {
                return Ok(Err(missing.unwrap_or_else(|| "shards kept moving".into())));
            }
            if self.is_interrupted() {
                return Ok(Err("interrupted".into()));
            }
            thread::park_timeout(LOOK_EVERY);
        }
    }

    /// Whether all nodes agree on who is there, and all shards have homes; what is missing if not.
    fn whole(&self) -> Result<Homes, String> {
        let mut all: BTreeSet<String> = self.slots.iter().flatten().map(|node| node.addr.clone()).collect();
        all.insert(self.cluster.addr().to_string());
        let view = self.cluster.view();
        let up = |status, reachable| status == MemberStatus::Up && reachable;
        let members: BTreeSet<String> = view.members.iter().filter(|m| up(m.status, m.reachable)).map(|m| m.addr.to_string()).collect();
        if members != all || view.members.len() != all.len() || !view.converged {
            return Err(format!("the load's node sees {} members, {} of them up, not {}", view.members.len(), members.len(), all.len()));
        }
        for node in self.slots.iter().flatten() {
            let admin = Admin::new(&node.admin.to_string(), None).map_err(|failure| failure.what)?;
            let status = admin.get("/api/v1/status").map_err(|failure| failure.what)?;
            if status["status"] != "up" || status["size"] != all.len() || status["converged"] != true || status["moving"] != 0 {
                let of = |name: &str| status[name].to_string();
                let (now, size, converged, moving) = (of("status"), of("size"), of("converged"), of("moving"));
                return Err(format!("{} is {now} among {size}, converged: {converged}, moving: {moving}", node.name));
            }
        }
        let homes = self.regions.homes()?;
        let ids: BTreeSet<NodeId> = view.members.iter().map(|member| member.id).collect();
        let homeless = homes.values().filter(|home| home.is_none_or(|home| !ids.contains(&home))).count();
        // Before the load has begun nobody has asked for any shard.
        if homeless > 0 && homeless < homes.len() {
            return Err(format!("{homeless} of {} shards have no home that runs", homes.len()));
        }
        Ok(homes)
    }

    /// Fails if a node ended that nobody had ended.
    fn check(&mut self) -> Result<(), Failure> {
        for node in self.slots.iter_mut().flatten() {
            if let Some(status) = node.ended() {
                let text = std::fs::read_to_string(node.log()).unwrap_or_default();
                let last: Vec<&str> = text.lines().rev().take(5).collect();
                let what =
                    format!("{} ({}) ended by itself: {status}; its last words, newest first: {}", node.name, node.addr, last.join(" | "));
                return Err(Failure::unhealthy("E-CLI-061", what, "the directory of the logs is named above"));
            }
        }
        Ok(())
    }

    /// Asks every node what it dropped; what one said before it ended stays.
    pub fn hear_drops(&mut self) {
        for node in self.slots.iter().flatten() {
            let answer = Admin::new(&node.admin.to_string(), None).and_then(|admin| admin.get("/api/v1/drops"));
            let Ok(answer) = answer else { continue };
            for (reason, count) in counts(&answer["drops"]) {
                let key = (node.pid(), reason);
                // There are many reasons and many processes, and hardly any drops.
                if count == 0 && !self.drops.contains_key(&key) {
                    continue;
                }
                let (before, last) = self.drops.entry(key).or_default();
                // A node that joined again has begun to count again.
                if count < *last {
                    *before += *last;
                }
                *last = count;
            }
        }
    }

    /// Messages that nodes dropped in all, by reason.
    pub fn drops(&self) -> BTreeMap<String, u64> {
        let mut sums = BTreeMap::new();
        for ((_, reason), (before, last)) in self.drops.iter().filter(|(_, (before, last))| before + last > 0) {
            *sums.entry(reason.clone()).or_default() += before + last;
        }
        sums
    }
}

/// Counts by reason, as an object or as rows.
fn counts(drops: &serde_json::Value) -> Vec<(String, u64)> {
    let rows = drops.as_array().into_iter().flatten();
    let rows = rows.filter_map(|row| Some((row["reason"].as_str()?.to_owned(), row["count"].as_u64()?)));
    let object = drops.as_object().into_iter().flatten();
    rows.chain(object.filter_map(|(reason, count)| Some((reason.clone(), count.as_u64()?)))).collect()
}

/// A process is known by its place and its own name.
fn life(slot: usize, node: &Node) -> String {
    format!("place {slot}, {}", node.name)
}

fn unformed(why: String) -> Failure {
    Failure::unreachable("E-CLI-060", format!("the nodes did not form a cluster: {why}"), "try again on a machine that is less busy")
}

/// Name of the cluster: apart from any other on the machine.
fn name() -> String {
    format!("wingbeat-soak-{}", process::id())
}

/// Settings of a node that may be coordinator or not.
fn settings(idle: &str, duty: bool) -> String {
    let roles = if duty { format!("roles = [\"{DUTY}\"]\n") } else { String::new() };
    format!(
        "[cluster]\nname = \"{}\"\npreset = \"local_test\"\n{roles}\n[node]\nworkers = 1\nidle = \"{idle}\"\n\n[membership]\non_downed = \"rejoin\"\n\n\
         [sharding]\ncoordinator_role = \"{DUTY}\"\n",
        name()
    )
}

/// The load's own node: a member that hosts as the others do, so that a part of the load stays on its node.
fn own_node(idle: &str, seeds: &[String]) -> Result<Cluster, Failure> {
    let start = || -> Result<Cluster, Box<dyn std::error::Error>> {
        let mut config = Config::preset(Preset::LocalTest);
        let settings = [
            ("cluster.name", name()),
            ("node.listen", "127.0.0.1:0".into()),
            ("node.workers", "1".into()),
            ("node.idle", idle.into()),
            ("sharding.coordinator_role", DUTY.into()),
        ];
        for (key, value) in settings {
            config.set(key, &value)?;
        }
        let cluster = Cluster::builder(config).seeds(seeds).start()?;
        builtin::host(&cluster)?;
        cluster.wait_members(NODES + 1, FORMED_WITHIN)?;
        Ok(cluster)
    };
    start().map_err(|error| unformed(error.to_string()))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;

    #[test]
    fn drops_are_read_as_rows_and_as_an_object() {
        assert_eq!(counts(&json!([{"reason": "late", "count": 3}])), [("late".to_owned(), 3)]);
        assert_eq!(counts(&json!({"late": 3})), [("late".to_owned(), 3)]);
    }

    #[test]
    fn a_suspicion_counts_unless_the_node_was_stopped() {
        let node = NodeId::from_raw(7);
        let event = Event::Unreachable { node, by: Arc::from([]), why: "silent".into() };
        let mut said = Said::default();
        said.take(1.0, &event, |_| Some("a:1".into()));
        assert_eq!(said.suspicions, ["1.0 s: a:1: silent"]);
        said.stopped.insert("a:1".into());
        said.take(2.0, &event, |_| Some("a:1".into()));
        assert_eq!(said.suspicions.len(), 1);
    }
}
