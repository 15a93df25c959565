//! `[sharding]`

use super::{
    Allocation, Remember, Span,
    setting::{DAY, HOUR, MINUTE, Spec, table},
    value::Rule,
};
use crate::proto::sharding::SHARDS_MAX;

table! {
    /// Shards, their homes and their moves.
    ShardingConfig in sharding {
        /// Shards per entity type, where the type does not say; about ten times the largest planned number of nodes. Fixed while any node is up.
        shards: u32 = 100, Spec::int(1, SHARDS_MAX as i64).unit("shards").must_match_by_type().cost("8 bytes of routes per type and node");
        /// Where new shards go.
        allocation: Allocation = Allocation::LeastShards, Spec::any().unused();
        /// The coordinator looks for shards to move this often.
        rebalance_interval: Span = Span::secs(10), Spec::span(10, HOUR);
        /// Difference between the fullest and the emptiest node that is left alone.
        rebalance_threshold: u32 = 1, Spec::int(1, 10_000).unit("shards");
        /// Shards that move per round, at most.
        rebalance_absolute: u32 = 20, Spec::int(1, 65_536).unit("shards").cost("more shards wait at the same time");
        /// Share of a type's shards that moves per round, at most (at least one).
        rebalance_relative: f64 = 0.1, Spec::float(0.001, 1.0);
        /// A shard stays at a new home at least this long before it is moved for balance.
        min_dwell: Span = Span::millis(0), Spec::span(0, DAY);
        /// Messages for shards without a known home that a node holds, in all.
        buffer_messages: u32 = 100_000, Spec::int(1, 10_000_000).unit("messages").cost("memory: the messages themselves");
        /// Right to run, counted from the newest beat that a member answered.
        lease: Span = Span::secs(10), Spec::span(100, HOUR).must_match().heartbeats(10).cost("runs on that long when cut off; must be shorter than detection and stable_after");
        /// Time by which a losing side is assumed to have stopped after the winning side decided.
        lease_margin: Span = Span::secs(2), Spec::span(10, HOUR).must_match().heartbeats(2).cost("a dead node's shards start that much later");
        /// A node renews its right to run this often.
        renew_interval: Span = Span::secs(1), Spec::span(10, HOUR).heartbeats(1).unused();
        /// The survivors may re-form the authority over shards when its majority is gone for good.
        reform: bool = true, Spec::any().must_match().unused();
        /// Time after which a shard that does not stop has its messages refused. As long does a told message wait for a home, or for a connection with it.
        handoff_timeout: Span = Span::secs(60), Spec::span(100, HOUR);
        /// Time after which a transfer of state that makes no progress is reported.
        transfer_timeout: Span = Span::secs(60), Spec::span(100, HOUR).unused();
        /// Time after which messages held behind a lost fence are let go.
        fence_deadline: Span = Span::secs(5), Spec::span(100, HOUR).cost("messages of a sender whose old route broke wait that long");
        /// A fence without acknowledgement is sent again this often.
        fence_retry: Span = Span::secs(1), Spec::span(10, HOUR);
        /// A route to a former home is kept at least this long.
        route_linger: Span = Span::secs(30), Spec::span(100, DAY).cost("40 bytes per shard and past home");
        /// Time after which a shard that does not stop loses its effects, and starts elsewhere.
        force_after: Option<Span> = None, Spec::span(1000, DAY).cost("code outside the context of an entity may still run").unused();
        /// Role of the nodes that may host the coordinator; empty: any.
        coordinator_role: Option<String> = None, Spec::text(Rule::Label).must_match();
        /// Idle time after which an entity leaves memory.
        passivate_after: Option<Span> = Some(Span::millis(2 * MINUTE)), Spec::span(100, 30 * DAY).unused();
        /// What starts again by itself after a move or a crash.
        remember: Remember = Remember::No, Spec::any().unused();
        /// Longest pause before an entity that keeps failing is started again, where its host does not say.
        restart_backoff: Span = Span::secs(10), Spec::span(10, HOUR);
        /// Remembered entities started per second and node.
        recovery_rate: u32 = 1000, Spec::int(1, 1_000_000).unit("per second").unused();
    }
}
