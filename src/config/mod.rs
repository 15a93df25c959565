//! Every setting, one struct per table.

mod error;

use std::time::Duration;

pub use error::{ConfigError, ConfigErrors};

/// A duration in configuration: `"200ms"` in text.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Span(pub Duration);

impl Span {
    /// So many milliseconds.
    pub const fn millis(ms: u64) -> Self {
        Self(Duration::from_millis(ms))
    }
    /// The duration.
    pub const fn get(self) -> Duration {
        self.0
    }
}

/// A set of defaults for an environment.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Preset {
    /** One data centre. */
    #[default]
    Lan,
    /** Several regions. */
    Wan,
    /** Loopback: fast intervals, proof of death. */
    LocalTest,
}
/// What a node that was downed does.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum OnDowned {
    /** Its process ends. */
    #[default]
    Stop,
    /** It starts again under a new incarnation. */
    Rejoin,
}
/// How observers' rows become the cluster's verdict.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum DetectorVerdict {
    /** Runs of missed replies, pooled. */
    #[default]
    Pooled,
    /** A majority of the monitors. */
    Quorum,
    /** One observer suffices. */
    One,
}
/// Which side of a split lives.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum DowningStrategy {
    /** . */
    #[default]
    KeepMajority,
    /** . */
    StaticQuorum,
    /** . */
    KeepOldest,
    /** . */
    KeepReferee,
    /** . */
    DownAll,
    /** . */
    LeaseMajority,
    /** . */
    None,
}
/// How idle threads wait.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Idle {
    /** Yields, then parks. */
    #[default]
    Balanced,
    /** Spins. */
    LowLatency,
    /** Parks at once. */
    LowCpu,
}
/// `"auto"` or a number of worker threads.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Workers {
    /** Cores - 1, at least 1. */
    #[default]
    Auto,
    /** So many. */
    Count(u16),
}
/// `"auto"` or a duration.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum AutoSpan {
    /** By the size of the cluster. */
    #[default]
    Auto,
    /** Fixed. */
    After(Span),
}

macro_rules! table {
    ($name:ident { $($field:ident: $ty:ty = $default:expr),+ $(,)? }) => {
        #[allow(missing_docs)] #[derive(Clone, PartialEq, Debug)] #[non_exhaustive]
        pub struct $name { $(pub $field: $ty),+ }
        impl Default for $name { fn default() -> Self { Self { $($field: $default),+ } } }
    };
}
table!(ClusterConfig { name: String = "wingbeat".into(), seeds: Vec<String> = vec![], roles: Vec<String> = vec![], app_version: String = String::new(), min_members: u32 = 1, preset: Preset = Preset::Lan });
table!(EntitiesConfig { durable: Vec<String> = vec![] });
table!(NodeConfig { listen: std::net::SocketAddr = std::net::SocketAddr::from(([127, 0, 0, 1], 7301)), advertise: Option<crate::NodeAddr> = None, workers: Workers = Workers::Auto, pin: Vec<u16> = vec![], idle: Idle = Idle::Balanced, data_dir: Option<String> = None, insecure: bool = false });
table!(AdminConfig { listen: Option<std::net::SocketAddr> = None, token: Option<String> = None });
table!(MembershipConfig { gossip_interval: Span = Span::millis(1000), seed_timeout: Span = Span::millis(5000), join_retry: Span = Span::millis(1000), deputies: u8 = 2, weakly_up_after: Option<Span> = Some(Span::millis(7000)), auto_down_after: Option<Span> = None, converge_past_unreachable: bool = false, gossip_ttl: Span = Span::millis(2000), unseen_probability: f64 = 0.8, reduce_above: u32 = 400, tombstones: Span = Span::millis(86_400_000), on_downed: OnDowned = OnDowned::Stop, max_datagram: u16 = 1200 });
table!(DetectorConfig {
    heartbeat_interval: Span = Span::millis(1000),
    threshold: f64 = 8.0,
    acceptable_pause: Span = Span::millis(3000),
    min_std_deviation: Span = Span::millis(100),
    window: u16 = 1000,
    first_interval: Span = Span::millis(1000),
    monitors: u8 = 5,
    verdict: DetectorVerdict = DetectorVerdict::Pooled,
    local_health: bool = true
});
table!(DowningConfig { strategy: DowningStrategy = DowningStrategy::KeepMajority, stable_after: AutoSpan = AutoSpan::Auto, quorum_size: Option<u32> = None, referee: Option<crate::NodeAddr> = None, down_if_alone: bool = true, proof_of_death: bool = false });
table!(ShardingConfig { shards: u32 = 100, rebalance_interval: Span = Span::millis(10_000), rebalance_threshold: u32 = 1, rebalance_absolute: u32 = 20, rebalance_relative: f64 = 0.1, min_dwell: Span = Span::millis(0), buffer_messages: u32 = 100_000, lease: Span = Span::millis(10_000), lease_margin: Span = Span::millis(2000), handoff_timeout: Span = Span::millis(60_000), transfer_timeout: Span = Span::millis(60_000), fence_deadline: Span = Span::millis(5000), fence_retry: Span = Span::millis(1000), route_linger: Span = Span::millis(30_000), coordinator_role: Option<String> = None });
table!(ShutdownConfig { drain_timeout: Span = Span::millis(5000), leave_timeout: Span = Span::millis(30_000) });
table!(LimitsConfig {
    message_bytes: u32 = 1 << 20,
    frame_bytes: u32 = 2 << 20,
    mailbox: u32 = 10_000,
    lane_items: u32 = 4096,
    link_bytes: u32 = 16 << 20,
    frame_deadline: Span = Span::millis(10_000),
    half_open: u32 = 256,
    hello_deadline: Span = Span::millis(5000),
    asks: u32 = 65_536,
    held_items: u32 = 10_000,
    http_body: u32 = 8 << 20,
    http_headers: u32 = 64,
    http_connections: u32 = 256
});

/// All settings of a node.
#[derive(Clone, PartialEq, Debug, Default)]
#[non_exhaustive]
#[allow(missing_docs)]
pub struct Config {
    pub cluster: ClusterConfig,
    pub entities: EntitiesConfig,
    pub node: NodeConfig,
    pub admin: AdminConfig,
    pub membership: MembershipConfig,
    pub detector: DetectorConfig,
    pub downing: DowningConfig,
    pub sharding: ShardingConfig,
    pub shutdown: ShutdownConfig,
    pub limits: LimitsConfig,
}
