//! Whether settings fit each other, and what is allowed but unwise.

use std::{collections::BTreeSet, fmt, net::IpAddr};

use super::{AutoSpan, Config, ConfigError, ConfigErrors, DowningStrategy, Span, Workers};
use crate::NodeAddr;

/// A shorter token is warned of.
const TOKEN_BYTES: usize = 8;
/// Heartbeats that `downing.stable_after = "auto"` is at least.
const STABLE_AUTO_MIN: u32 = 7;

/// Allowed, and probably not what was meant.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ConfigWarning {
    /// Stable code, `W-CFG-nnn`.
    pub code: &'static str,
    /// The key concerned.
    pub key: &'static str,
    /// What follows from it, and what to do.
    pub why: String,
}

impl fmt::Display for ConfigWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.code, self.key, self.why)
    }
}

/// Two settings that do not fit, or one that does not fit the world.
struct Misfit {
    /// The first is the one to name; none of them may have an error of its own.
    keys: Vec<&'static str>,
    code: &'static str,
    why: String,
}

/// Settings that contradict each other.
const INCONSISTENT: &str = "E-CFG-009";
/// Needs something that a configuration cannot give.
const NO_LEASE: &str = "E-CFG-014";
/// An address that others cannot reach.
const UNREACHABLE: &str = "E-CFG-010";
/// Open to others without protection.
const UNPROTECTED: &str = "E-CFG-011";
/// Asked for, and not built in.
const NO_SURFACE: &str = "E-CFG-015";

impl Config {
    /// Judges all values and whether they fit each other. Every error is reported, not only the first. Opens nothing.
    ///
    /// `downing.strategy = "lease-majority"` also needs a lease, which is given to [`ClusterBuilder::lease`](crate::ClusterBuilder::lease):
    /// [`start`](crate::ClusterBuilder::start) refuses to do without.
    ///
    /// # Errors
    /// [`ConfigErrors`]: all there are, each with key, reason and what is allowed.
    pub fn validate(&self) -> Result<(), ConfigErrors> {
        self.validate_with(true)
    }

    /// As [`validate`](Self::validate), for a node that has a lease to ask or not.
    pub(crate) fn validate_with(&self, lease: bool) -> Result<(), ConfigErrors> {
        let mut errors: Vec<ConfigError> =
            Self::reference().iter().filter_map(|s| (s.check)(self).err().map(|f| ConfigError::new(f.code, s.key, f.why))).collect();
        self.add_inconsistencies(&mut errors);
        if self.downing.strategy == DowningStrategy::LeaseMajority && !lease {
            let why = "\"lease-majority\" decides by a lease outside the cluster, and this node was given none: a program gives one with \
                       ClusterBuilder::lease, the wingbeat binary has none; choose \"keep-majority\" without";
            errors.push(ConfigError::new(NO_LEASE, "downing.strategy", why));
        }
        if errors.is_empty() { Ok(()) } else { Err(ConfigErrors(errors)) }
    }

    /// Adds what does not fit, leaving out what follows from an error that is already there.
    pub(super) fn add_inconsistencies(&self, errors: &mut Vec<ConfigError>) {
        let bad: Vec<String> = errors.iter().map(|e| e.key.clone()).collect();
        let is_bad = |key: &&str| bad.iter().any(|b| b == key || b.contains(&format!("({key})")));
        let misfits = self.misfits();
        errors.extend(misfits.into_iter().filter(|m| !m.keys.iter().any(is_bad)).map(|m| ConfigError::new(m.code, m.keys[0], m.why)));
    }

    fn misfits(&self) -> Vec<Misfit> {
        let mut found = vec![];
        self.times(&mut found);
        self.sizes(&mut found);
        self.addresses(&mut found);
        self.downing_needs(&mut found);
        self.cores(&mut found);
        found
    }

    fn times(&self, found: &mut Vec<Misfit>) {
        let (m, d, s) = (&self.membership, &self.detector, &self.sharding);
        let mut at_least = |(key, value): (&'static str, Span), (than, low): (&'static str, Span), why: &str| {
            if value < low {
                let why = format!("{value} < {than} ({low}): {why}; set at least {low}, or lower {than}");
                found.push(Misfit { keys: vec![key, than], code: INCONSISTENT, why });
            }
        };
        let heartbeat = ("detector.heartbeat_interval", d.heartbeat_interval);
        let gossip = ("membership.gossip_interval", m.gossip_interval);
        let pause = ("detector.acceptable_pause", d.acceptable_pause);
        at_least(pause, heartbeat, "every node would be suspected between two heartbeats");
        at_least(("membership.gossip_ttl", m.gossip_ttl), gossip, "gossip would be too old before the next round");
        if let Some(after) = m.weakly_up_after {
            at_least(("membership.weakly_up_after", after), gossip, "a member would never have time to join in order");
        }
        if let AutoSpan::After(after) = self.downing.stable_after {
            at_least(("downing.stable_after", after), heartbeat, "one lost heartbeat would decide a split");
        }
        at_least(("sharding.fence_deadline", s.fence_deadline), ("sharding.fence_retry", s.fence_retry), "no fence would ever be repeated");
        if s.lease.get() <= d.acceptable_pause.get().saturating_mul(2) {
            let double = Span(d.acceptable_pause.get().saturating_mul(2));
            let why = format!(
                "{} <= 2 x detector.acceptable_pause ({}) = {double}: a pause that no member is accused for would cost a node its shards; \
                 set more than {double}, or lower detector.acceptable_pause",
                s.lease, d.acceptable_pause
            );
            found.push(Misfit { keys: vec!["sharding.lease", "detector.acceptable_pause"], code: INCONSISTENT, why });
        }
        if s.renew_interval.get().saturating_mul(2) > s.lease.get() {
            let why = format!("2 x {} > sharding.lease ({}): one lost renewal would end the right to run", s.renew_interval, s.lease);
            found.push(Misfit { keys: vec!["sharding.renew_interval", "sharding.lease"], code: INCONSISTENT, why });
        }
    }

    fn sizes(&self, found: &mut Vec<Misfit>) {
        let l = &self.limits;
        // Header, key and a fence's epoch stand in the frame beside the message.
        const AROUND: u32 = 1024;
        if l.frame_bytes < l.message_bytes.saturating_add(AROUND) {
            let needed = l.message_bytes.saturating_add(AROUND);
            let why = format!(
                "{} < limits.message_bytes ({}) + {AROUND}: the largest message would fit into no frame; set at least {needed}",
                l.frame_bytes, l.message_bytes
            );
            found.push(Misfit { keys: vec!["limits.frame_bytes", "limits.message_bytes"], code: INCONSISTENT, why });
        }
        if l.link_bytes < l.frame_bytes {
            let why = format!(
                "{} < limits.frame_bytes ({}): the largest frame could never be queued; set at least {}",
                l.link_bytes, l.frame_bytes, l.frame_bytes
            );
            found.push(Misfit { keys: vec!["limits.link_bytes", "limits.frame_bytes"], code: INCONSISTENT, why });
        }
    }

    fn addresses(&self, found: &mut Vec<Misfit>) {
        let (listen, port) = (self.node.listen.ip(), self.node.listen.port());
        let advertised_ip = match &self.node.advertise {
            Some(addr) => addr.host.parse::<IpAddr>().ok(),
            None => Some(listen),
        };
        match &self.node.advertise {
            None if listen.is_unspecified() => {
                let why = format!(
                    "{} listens on all addresses, and nothing says at which one others reach it; set node.advertise = \"<name or address of this host>:{port}\"",
                    self.node.listen
                );
                found.push(Misfit { keys: vec!["node.listen", "node.advertise"], code: UNREACHABLE, why });
            }
            Some(addr) if advertised_ip.is_some_and(|ip| ip.is_unspecified()) => {
                let why = format!(
                    "{addr} is no address that others can reach; set the name or address of this host, such as \"node1:{}\"",
                    addr.port
                );
                found.push(Misfit { keys: vec!["node.advertise"], code: UNREACHABLE, why });
            }
            _ => {}
        }
        let remote = self.cluster.seeds.iter().find(|seed| {
            let ip = seed.parse::<NodeAddr>().ok().and_then(|a| a.host.parse::<IpAddr>().ok());
            ip.is_some_and(|ip| !ip.is_loopback() && !ip.is_unspecified())
        });
        if let (true, Some(seed)) = (self.advertises_loopback(), remote) {
            let key = if self.node.advertise.is_some() { "node.advertise" } else { "node.listen" };
            let why = format!(
                "a loopback address, while the seed {seed} is on another host, which could not answer; \
                 set node.listen to an address of this host, and node.advertise if others see another one"
            );
            found.push(Misfit { keys: vec![key, "cluster.seeds"], code: UNREACHABLE, why });
        }
        if !listen.is_loopback() && !self.node.insecure {
            let why = format!(
                "{} can be reached from other hosts, and this version neither encrypts nor authenticates peers; \
                 listen on 127.0.0.1, or say node.insecure = true if the network is trusted",
                self.node.listen
            );
            found.push(Misfit { keys: vec!["node.listen", "node.insecure"], code: UNPROTECTED, why });
        }
        if cfg!(not(feature = "admin")) && self.admin.listen.is_some() {
            let why = "this program was built without the HTTP surface: build wingbeat with its feature `admin`, or leave the key out";
            found.push(Misfit { keys: vec!["admin.listen"], code: NO_SURFACE, why: why.to_owned() });
        }
        let same_port = self.admin.listen.filter(|a| a.port() != 0 && a.port() == port);
        if let Some(admin) = same_port.filter(|a| a.ip() == listen || a.ip().is_unspecified() || listen.is_unspecified()) {
            let why = format!("{admin} is taken by node.listen ({}); choose another port", self.node.listen);
            found.push(Misfit { keys: vec!["admin.listen", "node.listen"], code: INCONSISTENT, why });
        }
    }

    fn advertises_loopback(&self) -> bool {
        match &self.node.advertise {
            Some(addr) => addr.is_loopback(),
            None => self.node.listen.ip().is_loopback(),
        }
    }

    fn downing_needs(&self, found: &mut Vec<Misfit>) {
        let (key, missing) = match self.downing.strategy {
            DowningStrategy::StaticQuorum if self.downing.quorum_size.is_none() => ("downing.quorum_size", "static-quorum"),
            DowningStrategy::KeepReferee if self.downing.referee.is_none() => ("downing.referee", "keep-referee"),
            _ => return,
        };
        let why = format!("not set, and downing.strategy = \"{missing}\" decides by it");
        found.push(Misfit { keys: vec![key, "downing.strategy"], code: INCONSISTENT, why });
    }

    fn cores(&self, found: &mut Vec<Misfit>) {
        let pin = &self.node.pin;
        if pin.iter().collect::<BTreeSet<_>>().len() < pin.len() {
            found.push(Misfit { keys: vec!["node.pin"], code: INCONSISTENT, why: "names a core twice: two workers would share it".into() });
        }
        if let Workers::Count(workers) = self.node.workers
            && !pin.is_empty()
            && pin.len() != usize::from(workers)
        {
            let why = format!("{} cores for {workers} workers (node.workers): name one each, or none", pin.len());
            found.push(Misfit { keys: vec!["node.pin", "node.workers"], code: INCONSISTENT, why });
        }
    }

    /// What is allowed but probably not meant, for the log and the status.
    pub fn warnings(&self) -> Vec<ConfigWarning> {
        let mut found = vec![];
        let mut warn = |code, key, why: String| found.push(ConfigWarning { code, key, why });
        for setting in Self::reference().iter().filter(|s| !s.has_effect() && self.is_set(s.key)) {
            warn("W-CFG-001", setting.key, "has no effect in this version".into());
        }
        if self.membership.auto_down_after.is_some() {
            warn("W-CFG-002", "membership.auto_down_after", "both sides of a split down each other and go on: entities run twice".into());
        }
        if self.downing.strategy == DowningStrategy::None && self.membership.auto_down_after.is_none() {
            warn("W-CFG-003", "downing.strategy", "\"none\": the shards of a lost node stay away until an operator downs it".into());
        }
        if self.cluster.seeds.is_empty() && self.cluster.min_members > 1 {
            let why = format!(
                "empty, while cluster.min_members is {}: this node waits for others that it does not look for",
                self.cluster.min_members
            );
            warn("W-CFG-004", "cluster.seeds", why);
        }
        if let (Some(first), Some(referee)) = (self.cluster.seeds.first(), &self.downing.referee)
            && self.downing.strategy == DowningStrategy::KeepReferee
            && first.parse::<NodeAddr>().is_ok_and(|first| first != *referee)
        {
            let why = format!(
                "the first one, {first}, is not downing.referee ({referee}): cut off from it and started again, it founds a cluster beside the one that lives"
            );
            warn("W-CFG-009", "cluster.seeds", why);
        }
        let by_name = self
            .cluster
            .seeds
            .iter()
            .find(|seed| seed.parse::<NodeAddr>().is_ok_and(|a| !a.is_loopback() && a.host.parse::<IpAddr>().is_err()));
        if let (true, Some(seed)) = (self.advertises_loopback(), by_name) {
            let why = format!(
                "{seed} may be another host, which cannot answer a node at a loopback address; set node.listen to an address of this host"
            );
            warn("W-CFG-012", "cluster.seeds", why);
        }
        if self.node.insecure && !self.node.listen.ip().is_loopback() {
            warn(
                "W-CFG-005",
                "node.insecure",
                format!("whoever reaches {} can join the cluster and send to its entities", self.node.listen),
            );
        }
        if self.admin.listen.is_some_and(|a| !a.ip().is_loopback()) && self.admin.token.is_none() {
            warn("W-CFG-006", "admin.token", "not set, and admin.listen is not loopback: writes over HTTP are refused".into());
        }
        if self.admin.token.as_ref().is_some_and(|token| token.len() < TOKEN_BYTES) {
            warn("W-CFG-010", "admin.token", format!("is short and can be guessed: take at least {TOKEN_BYTES} characters"));
        }
        // From the last answered beat to the start of a lost node's shards elsewhere, at the earliest.
        let stable_after = match self.downing.stable_after {
            AutoSpan::After(span) => span.get(),
            _ => self.detector.heartbeat_interval.get().saturating_mul(STABLE_AUTO_MIN),
        };
        let elsewhere = self.detector.acceptable_pause.get().saturating_add(stable_after).saturating_add(self.sharding.lease_margin.get());
        if self.sharding.lease.get() > elsewhere {
            let why = format!(
                "{} > {elsewhere:?} (detector.acceptable_pause + downing.stable_after + sharding.lease_margin): a node that was paused may \
                 still run shards that others have started; lower it, or raise downing.stable_after",
                self.sharding.lease
            );
            warn("W-CFG-011", "sharding.lease", why);
        }
        if u64::from(self.sharding.shards) < u64::from(self.cluster.min_members) * 10 {
            let why = format!(
                "{} shards for {} members or more: ten times as many shards as members balance well",
                self.sharding.shards, self.cluster.min_members
            );
            warn("W-CFG-007", "sharding.shards", why);
        }
        if self.downing.quorum_size.is_some() && self.downing.strategy != DowningStrategy::StaticQuorum {
            warn("W-CFG-008", "downing.quorum_size", format!("has no effect with downing.strategy = \"{}\"", self.downing.strategy));
        }
        if self.downing.referee.is_some() && self.downing.strategy != DowningStrategy::KeepReferee {
            warn("W-CFG-008", "downing.referee", format!("has no effect with downing.strategy = \"{}\"", self.downing.strategy));
        }
        found
    }
}
