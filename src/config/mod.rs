//! Every setting, one file per table.
//!
//! Layers, the later one wins: defaults, preset, file, environment, flags and code. Durations carry a unit (`"200ms"`). Times that are multiples of the
//! gossip or heartbeat interval follow it as long as they are not set themselves. Unknown keys are errors with a suggestion, and all errors are reported
//! at once, before anything is opened.

mod check;
mod choice;
mod error;
mod load;
mod reference;
mod rejoin;
mod setting;
mod suggest;
mod value;

mod admin;
mod cluster;
mod detector;
mod downing;
mod entities;
mod journal;
mod leaderships;
mod limits;
mod membership;
mod node;
mod partitions;
mod sharding;
mod shutdown;
mod store;
mod tls;

use std::collections::BTreeSet;

pub use {
    admin::AdminConfig,
    check::ConfigWarning,
    choice::{Allocation, DetectorVerdict, DowningStrategy, Idle, OnDowned, Preset, Remember},
    cluster::ClusterConfig,
    detector::DetectorConfig,
    downing::DowningConfig,
    entities::EntitiesConfig,
    error::{ConfigError, ConfigErrors},
    journal::JournalConfig,
    leaderships::LeadershipsConfig,
    limits::LimitsConfig,
    membership::MembershipConfig,
    node::NodeConfig,
    partitions::PartitionsConfig,
    setting::Setting,
    sharding::ShardingConfig,
    shutdown::ShutdownConfig,
    store::StoreConfig,
    tls::TlsConfig,
    value::{AutoBool, AutoSpan, RoleMin, Span, Workers},
};

use rejoin::Heritage;
use setting::Interval;
use value::Raw;

/// All settings of a node.
///
/// ```
/// use wingbeat::{Config, config::Span};
///
/// let config = Config::from_toml(
///     r#"
///     [cluster]
///     name = "fleet"
///     [membership]
///     gossip_interval = "500ms"
///     "#,
/// )?;
/// assert_eq!(config.membership.gossip_ttl, Span::secs(1), "two intervals");
/// # Ok::<(), wingbeat::ConfigErrors>(())
/// ```
///
/// A field that a program sets itself changes nothing but that field: times that follow an interval do so in files, in variables and by
/// [`set`](Self::set).
#[derive(Clone, PartialEq, Debug, Default)]
#[non_exhaustive]
pub struct Config {
    /// Who belongs together, and how they find each other.
    pub cluster: ClusterConfig,
    /// The built-in entity types of `wingbeat node`.
    pub entities: EntitiesConfig,
    /// This process.
    pub node: NodeConfig,
    /// The HTTP surface of the node.
    pub admin: AdminConfig,
    /// Gossip and the life cycle of members.
    pub membership: MembershipConfig,
    /// The failure detector.
    pub detector: DetectorConfig,
    /// Which side of a split lives.
    pub downing: DowningConfig,
    /// Shards, their homes and their moves.
    pub sharding: ShardingConfig,
    /// Partitions.
    pub partitions: PartitionsConfig,
    /// Leaderships over a ledger.
    pub leaderships: LeadershipsConfig,
    /// The replicated store.
    pub store: StoreConfig,
    /// The node's durable log.
    pub journal: JournalConfig,
    /// Encryption and authentication of peers.
    pub tls: TlsConfig,
    /// Leaving in order.
    pub shutdown: ShutdownConfig,
    /// Every bound on what comes from outside, and on what waits.
    pub limits: LimitsConfig,
    /// Which values were chosen, and what the others follow.
    pub(crate) origin: Origin,
    /// See [`Config::rejoining`].
    pub(crate) heritage: Heritage,
}

/// Which keys were set, and from what the values of the others were made.
#[derive(Clone, Debug, Default)]
pub(crate) struct Origin {
    explicit: BTreeSet<&'static str>,
    basis: Basis,
}

/// Two configurations are equal when their values are, whoever chose them.
impl PartialEq for Origin {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

/// What all values that nobody set are a function of.
#[derive(Copy, Clone, Debug)]
struct Basis {
    preset: Preset,
    gossip: Span,
    heartbeat: Span,
}

impl Basis {
    const fn of(preset: Preset) -> Self {
        let interval = match preset {
            Preset::Lan => Span::secs(1),
            Preset::Wan => Span::secs(2),
            Preset::LocalTest => Span::millis(200),
        };
        Self { preset, gossip: interval, heartbeat: interval }
    }

    /// The configuration in which nobody set anything.
    fn config(self) -> Config {
        let mut config = Config::default();
        config.membership.gossip_interval = self.gossip;
        config.detector.heartbeat_interval = self.heartbeat;
        for setting in Config::reference() {
            if let Some((interval, n)) = setting.spec.follows {
                let interval = if interval == Interval::Gossip { self.gossip } else { self.heartbeat };
                // A multiple outside the bounds keeps its default; the interval itself is in bounds whenever a file set it.
                let _ = (setting.set)(&mut config, &Raw::Span(interval.get().saturating_mul(n)));
            }
        }
        config.cluster.preset = self.preset;
        match self.preset {
            Preset::Lan => {}
            Preset::Wan => {
                config.detector.threshold = 12.0;
                config.detector.min_std_deviation = Span::millis(200);
                config.sharding.fence_deadline = Span::secs(10);
            }
            Preset::LocalTest => {
                config.downing.stable_after = AutoSpan::After(Span::secs(2));
                config.downing.proof_of_death = AutoBool::Is(true);
                config.membership.seed_timeout = Span::millis(500);
                config.sharding.rebalance_interval = Span::millis(500);
                config.sharding.fence_retry = Span::millis(200);
            }
        }
        config
    }
}

impl Default for Basis {
    fn default() -> Self {
        Self::of(Preset::Lan)
    }
}

/// What [`Config::set`] takes: text, and inside of this project values that have been parsed.
#[doc(hidden)]
pub trait SettingValue {
    /// As a file would hold it.
    fn to_setting(&self) -> toml::Value;
}

impl SettingValue for str {
    fn to_setting(&self) -> toml::Value {
        toml::Value::String(self.to_owned())
    }
}

impl SettingValue for String {
    fn to_setting(&self) -> toml::Value {
        self.as_str().to_setting()
    }
}

impl SettingValue for toml::Value {
    fn to_setting(&self) -> toml::Value {
        self.clone()
    }
}

impl Config {
    /// Defaults, and this name of the cluster.
    pub fn named(cluster: impl Into<String>) -> Self {
        let mut config = Self::default();
        config.cluster.name = cluster.into();
        config.origin.explicit.insert("cluster.name");
        config
    }

    /// The defaults of an environment.
    pub fn preset(preset: Preset) -> Self {
        let basis = Basis::of(preset);
        let mut config = basis.config();
        config.origin.basis = basis;
        config
    }

    /// Sets one key, as a flag or code does: wins over file, environment and preset.
    ///
    /// `value` is the text of any kind of value: `"200ms"`, `"5"`, `"true"`, lists separated by commas. Times that follow the key are adjusted.
    ///
    /// # Errors
    /// [`ConfigError`] with the key and what it may be; nothing is changed.
    pub fn set<V: SettingValue + ?Sized>(&mut self, key: &str, value: &V) -> Result<(), ConfigError> {
        let value = value.to_setting();
        let raw = match &value {
            toml::Value::String(text) => Raw::Word(text.clone()),
            other => Raw::from(other),
        };
        self.assign(key, &raw)
    }

    /// The text form of a key's value; for secrets whether there is one. `None` for an unknown key.
    pub fn get(&self, key: &str) -> Option<String> {
        let setting = reference::find(key)?;
        let text = (setting.get)(self);
        Some(if setting.is_secret() && !text.is_empty() { "(set)".into() } else { text })
    }

    /// Whether the key was set, by a file, the environment, a flag or [`set`](Self::set).
    pub fn is_set(&self, key: &str) -> bool {
        self.origin.explicit.contains(key)
    }

    /// The value of that key was chosen, by whoever changes the field.
    pub(crate) fn mark_set(&mut self, key: &'static str) {
        self.origin.explicit.insert(key);
    }

    /// The settings that all members must share, with their values, in a fixed order.
    pub fn must_match(&self) -> Vec<(String, String)> {
        let of = |s: &Setting| (s.key.to_owned(), (s.get)(self));
        Self::reference().iter().filter(|s| s.must_match()).map(of).collect()
    }

    /// A digest of [`must_match`](Self::must_match): equal digests, equal settings.
    pub fn digest(&self) -> u64 {
        let mut text = String::new();
        for (key, value) in self.must_match() {
            // Names hold no control characters, so that a line is one setting.
            text.extend([key.as_str(), "=", value.as_str(), "\n"]);
        }
        xxhash_rust::xxh3::xxh3_64(text.as_bytes())
    }

    /// Every setting, table by table.
    pub fn reference() -> &'static [Setting] {
        reference::all()
    }

    /// Every setting as a table for people: key, default, range, must match, meaning.
    pub fn reference_text() -> String {
        reference::text()
    }

    /// The address that other nodes are told, with the port that was bound.
    pub fn advertised(&self, bound_port: u16) -> crate::NodeAddr {
        match &self.node.advertise {
            Some(addr) if addr.port != 0 => addr.clone(),
            Some(addr) => crate::NodeAddr { host: addr.host.clone(), port: bound_port },
            None => crate::NodeAddr { host: self.node.listen.ip().to_string().into(), port: bound_port },
        }
    }

    fn assign(&mut self, key: &str, raw: &Raw) -> Result<(), ConfigError> {
        let setting = reference::find(key).ok_or_else(|| reference::unknown(key))?;
        (setting.set)(self, raw).map_err(|fault| {
            // What is wrong with a secret's text says so without the text; a value of another kind would be shown.
            let why = if setting.is_secret() && fault.code == value::WRONG_KIND { "not text in quotes".into() } else { fault.why };
            ConfigError::new(fault.code, key, why)
        })?;
        self.origin.explicit.insert(setting.key);
        self.settle();
        Ok(())
    }

    /// Lets the values that nobody set follow preset and intervals. A value that differs from what it was made as was changed in code, and stays.
    fn settle(&mut self) {
        let old = self.origin.basis;
        let was = old.config();
        let mut basis = Basis::of(self.cluster.preset);
        if self.is_set(Interval::Gossip.key()) || self.membership.gossip_interval != old.gossip {
            basis.gossip = self.membership.gossip_interval;
        }
        if self.is_set(Interval::Heartbeat.key()) || self.detector.heartbeat_interval != old.heartbeat {
            basis.heartbeat = self.detector.heartbeat_interval;
        }
        let becomes = basis.config();
        for setting in Self::reference() {
            if !self.origin.explicit.contains(setting.key) && (setting.same)(self, &was) {
                (setting.copy)(self, &becomes);
            }
        }
        self.origin.basis = basis;
    }
}

impl From<&str> for Config {
    fn from(name: &str) -> Self {
        Self::named(name)
    }
}

impl From<String> for Config {
    fn from(name: String) -> Self {
        Self::named(name)
    }
}
