//! The JSON shapes of the answers, with the field names that scripts outside rely on.
//!
//! Nodes are written as `host:port`. What a node does not know at the moment is `null`, never a made-up number.

use std::time::Duration;

use serde::{Serialize, Serializer};

use crate::NodeAddr;

/// Largest integer that every JSON reader keeps exact.
const EXACT_MAX: u64 = 1 << 53;

/// An incarnation: always 16 hex digits, because it uses all 64 bits.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Incarnation(pub u64);

impl Serialize for Incarnation {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&format_args!("{:016x}", self.0))
    }
}

/// An epoch: a number up to 2^53, a string of hex digits above.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct EpochNumber(pub u64);

impl Serialize for EpochNumber {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        if self.0 <= EXACT_MAX { to.serialize_u64(self.0) } else { to.collect_str(&format_args!("{:x}", self.0)) }
    }
}

impl From<crate::Epoch> for EpochNumber {
    fn from(epoch: crate::Epoch) -> Self {
        Self(epoch.get())
    }
}

/// A node as `host:port`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Host(pub NodeAddr);

impl Serialize for Host {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&self.0)
    }
}

impl From<NodeAddr> for Host {
    fn from(addr: NodeAddr) -> Self {
        Self(addr)
    }
}

impl From<&NodeAddr> for Host {
    fn from(addr: &NodeAddr) -> Self {
        Self(addr.clone())
    }
}

/// One check of a health probe.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Check {
    /// What is looked at, e.g. `member_up`.
    pub name: String,
    /// Whether it holds.
    pub ok: bool,
    /// What was seen, and what to do if it does not hold.
    pub detail: String,
}

/// One life of one node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Life {
    /// Where it is reached.
    pub addr: Host,
    /// Which of the lives at that address.
    pub incarnation: Incarnation,
}

/// Answer of `/api/v1/status`.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Status {
    /// Name of the cluster.
    pub cluster: String,
    /// The node that answers.
    #[serde(rename = "self")]
    pub myself: Life,
    /// Where this node stands: `joining`, `up`, ...
    pub status: String,
    /// Members in this node's view.
    pub size: usize,
    /// The leader, if there is one.
    pub leader: Option<Host>,
    /// The next ones after the leader.
    pub deputies: Vec<Host>,
    /// The oldest member.
    pub oldest: Option<Host>,
    /// The node that assigns shards.
    pub coordinator: Option<Host>,
    /// Version of this node's view.
    pub view_version: u64,
    /// Everybody has seen this view and nobody is unreachable.
    pub converged: bool,
    /// Shards on the move, as far as this node knows.
    pub moving: u64,
    /// What an operator should look at, one sentence each.
    pub warnings: Vec<String>,
}

/// One row of `/api/v1/members`.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Member {
    /// Where it is reached.
    pub addr: Host,
    /// Which of the lives at that address.
    pub incarnation: Incarnation,
    /// Where it stands.
    pub status: String,
    /// The cluster's verdict.
    pub reachable: bool,
    /// Who holds it unreachable.
    pub observers: Vec<Host>,
    /// Its roles.
    pub roles: Vec<String>,
    /// Order of becoming up, from 1; 0 before.
    pub up_number: u64,
    /// What it says of its application's version.
    pub app_version: String,
    /// Shards that it hosts; `None` if not known here.
    pub shards: Option<u64>,
    /// Live entities there; `None` if not known here.
    pub entities: Option<u64>,
}

/// Round trip times in microseconds.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Rtt {
    /// Median; `None` without a sample.
    pub p50: Option<u64>,
    /// 99th percentile; `None` without a sample.
    pub p99: Option<u64>,
}

/// One row of `/api/v1/links`: how one node sees another.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Link {
    /// Who measures.
    pub observer: Host,
    /// Who is measured.
    pub subject: Host,
    /// Suspicion now, by the time since the last reply.
    pub phi: Option<f64>,
    /// Suspicion at which the observer calls the subject unreachable, unless runs of missed replies are pooled (`detector.verdict`).
    pub threshold: f64,
    /// Round trips of heartbeats.
    pub rtt_us: Rtt,
    /// Fraction of heartbeats without answer, 0 to 1.
    pub loss: f64,
    /// `ok`, `suspect`, `unreachable`, `new`.
    pub state: String,
}

/// One row of `/api/v1/shards`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct TypeRow {
    /// Name of the entity type.
    #[serde(rename = "type")]
    pub ty: String,
    /// How many shards it has.
    pub shards: u32,
    /// Live entities in the cluster, as their homes reported within about a second.
    pub entities: Option<u64>,
}

/// One row of `/api/v1/shards/{type}`.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct ShardRow {
    /// Number within the type.
    pub shard: u32,
    /// Its home; `None` while it has none.
    pub owner: Option<Host>,
    /// The assignment's epoch.
    pub epoch: EpochNumber,
    /// `starting`, `active`, `moving`, `unowned`.
    pub state: String,
    /// Live entities, as its home reported within about a second.
    pub entities: Option<u64>,
    /// Messages handled per second lately; `None` if not measured.
    pub rate_per_s: Option<f64>,
}

/// Answer of `/api/v1/shards/{type}/locate`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Location {
    /// Number within the type.
    pub shard: u32,
    /// Its home; `None` while it has none.
    pub owner: Option<Host>,
    /// The assignment's epoch.
    pub epoch: EpochNumber,
    /// As in [`ShardRow::state`].
    pub state: String,
}

/// One row of `/api/v1/handoffs`: a shard on the move.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Handoff {
    /// Name of the entity type.
    #[serde(rename = "type")]
    pub ty: String,
    /// Number within the type.
    pub shard: u32,
    /// Where it leaves.
    pub from: Option<Host>,
    /// Where it goes.
    pub to: Option<Host>,
    /// Epoch that it will have there.
    pub epoch: EpochNumber,
    /// How far it is.
    pub state: String,
    /// Since when it moves, in milliseconds; `None` if not known here.
    pub age_ms: Option<u64>,
}

/// One row of `/api/v1/latency`: how long something took, of which there are many. `None` where nothing was measured.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct LatencyRow {
    /// What was measured, as in [`Latency::of`](crate::metrics::Latency::of).
    pub of: &'static str,
    /// How many were measured since the node began.
    pub count: u64,
    /// Median, in nanoseconds.
    pub p50_ns: Option<u64>,
    /// 99th percentile.
    pub p99_ns: Option<u64>,
    /// 99.9th percentile.
    pub p999_ns: Option<u64>,
    /// Longest that was measured.
    pub max_ns: Option<u64>,
}

impl From<&crate::metrics::Latency> for LatencyRow {
    fn from(latency: &crate::metrics::Latency) -> Self {
        let ns = |took: Duration| (latency.count > 0).then(|| u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
        let crate::metrics::Latency { of, count, p50, p99, p999, max } = *latency;
        Self { of, count, p50_ns: ns(p50), p99_ns: ns(p99), p999_ns: ns(p999), max_ns: ns(max) }
    }
}

/// One row of `/api/v1/slow`: a turn of an entity's code that took long, during which nothing else on its worker ran.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct SlowTurn {
    /// Name of the entity type.
    #[serde(rename = "type")]
    pub ty: String,
    /// The entity's key; of a long one that has not ended, its beginning.
    pub key: String,
    /// Number of its shard.
    pub shard: u32,
    /// Number of the worker.
    pub worker: u16,
    /// How long it took, or has taken by now, at least.
    pub took_ms: u64,
    /// How long ago it ended; `None` if it has not.
    pub ended_ms_ago: Option<u64>,
}

/// One row of `/api/v1/config`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Setting {
    /// Table and key, joined by a dot.
    pub key: String,
    /// What is in force, as it is written in TOML.
    pub value: String,
    /// What would be in force without any setting.
    pub default: String,
    /// Where the value comes from: `default`, `set` (by file, environment, flag or program), `derived` (from a preset or another setting).
    pub origin: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stay_exact_for_every_reader() {
        assert_eq!(serde_json::to_string(&Incarnation(0xab)).unwrap(), "\"00000000000000ab\"");
        assert_eq!(serde_json::to_string(&EpochNumber(1 << 53)).unwrap(), "9007199254740992");
        assert_eq!(serde_json::to_string(&EpochNumber((1 << 53) + 1)).unwrap(), "\"20000000000001\"");
        assert_eq!(serde_json::to_string(&Host(NodeAddr::new("::1", 7))).unwrap(), "\"[::1]:7\"");
    }
}
