//! `[node]`

use std::net::SocketAddr;

use super::{
    Idle, Workers,
    setting::{Spec, table},
    value::Rule,
};
use crate::NodeAddr;

table! {
    /// This process.
    NodeConfig in node {
        /// Address that TCP and UDP are bound to.
        listen: SocketAddr = SocketAddr::from(([127, 0, 0, 1], 7301)), Spec::any();
        /// Address that other nodes reach this one at; empty: what it listens on.
        advertise: Option<NodeAddr> = None, Spec::any();
        /// Threads that run entities; auto: cores - 1, at least 1.
        workers: Workers = Workers::Auto, Spec::int(1, 1024).unit("threads").cost("more than cores makes latency worse");
        /// Cores that the workers are pinned to, in order; empty: not pinned.
        pin: Vec<u16> = vec![], Spec::int(0, 4095).unit("core numbers");
        /// How idle threads wait.
        idle: Idle = Idle::Balanced, Spec::any().cost("low_latency keeps a core busy per thread for 20 ms after its last work");
        /// Directory for what must survive this process; empty: nothing does.
        data_dir: Option<String> = None, Spec::text(Rule::Path).unused();
        /// Allows addresses other than loopback without encryption and authentication of peers.
        insecure: bool = false, Spec::any().cost("whoever reaches the port can join the cluster");
    }
}
