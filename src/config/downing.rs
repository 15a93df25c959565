//! `[downing]`

use super::{
    AutoBool, AutoSpan, DowningStrategy,
    setting::{HOUR, Spec, table},
};
use crate::NodeAddr;

table! {
    /// Which side of a split lives.
    DowningConfig in downing {
        /// How it is decided.
        strategy: DowningStrategy = DowningStrategy::KeepMajority, Spec::any().must_match();
        /// Members and reachability must stay the same this long before a decision; auto: by size, 7 heartbeats at 5 nodes, 30 at 1,000.
        stable_after: AutoSpan = AutoSpan::Auto, Spec::span(100, HOUR).must_match().cost("fail-over takes that much longer; shorter: a pause kills a node");
        /// Members that a side needs to live; for static-quorum.
        quorum_size: Option<u32> = None, Spec::int(1, 10_000).unit("members").must_match();
        /// The member whose side lives; for keep-referee.
        referee: Option<NodeAddr> = None, Spec::any().must_match();
        /// An oldest member that is cut off alone goes down itself; for keep-oldest.
        down_if_alone: bool = true, Spec::any().must_match();
        /// A refused connection to the advertised port, seen by most monitors, proves that the process is gone; auto: where this node listens itself at the loopback's address that it advertises.
        proof_of_death: AutoBool = AutoBool::Auto, Spec::any().cost("a firewall or a forwarder that refuses connections can kill a live node");
    }
}
