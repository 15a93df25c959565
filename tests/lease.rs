//! `lease-majority` between real nodes: two in this process that share a lease, and one in another process that is killed.
#![cfg(feature = "cli")]
#![allow(missing_docs, clippy::unwrap_used)]

mod support;

use std::{
    process::{Command, Stdio},
    time::Duration,
};

use support::{PATIENCE, until_holds};
use wingbeat::{
    Cluster, Config, JoinError, Lease, LeaseError, MemberStatus, MemoryLease, NodeId, Term,
    config::{AutoBool, DowningStrategy, Preset},
};

const SEED: &str = "WINGBEAT_TEST_LEASE_SEED";

fn node(lease: impl Lease, seeds: &[String]) -> Cluster {
    let mut config = Config::preset(Preset::LocalTest);
    config.cluster.name = "leased".into();
    config.downing.strategy = DowningStrategy::LeaseMajority;
    // A refused port would prove the death without the lease.
    config.downing.proof_of_death = AutoBool::Is(false);
    Cluster::builder(config).listen("127.0.0.1:0".parse().unwrap()).seeds(seeds.to_vec()).lease(lease).start().unwrap()
}

fn up(cluster: &Cluster) -> usize {
    cluster.view().members.iter().filter(|m| m.status == MemberStatus::Up).count()
}

/// Answers as a lease would that nobody reaches.
struct Unreachable;

impl Lease for Unreachable {
    fn acquire(&mut self, _: &str, _: NodeId, _: Duration) -> Result<Option<Term>, LeaseError> {
        Err(LeaseError::new("connection refused"))
    }

    fn release(&mut self, _: &str, _: Term) -> Result<(), LeaseError> {
        Err(LeaseError::new("connection refused"))
    }
}

/// Not a test of its own: the process that the tests below start, and kill.
#[test]
fn the_third_node() {
    if let Ok(seed) = std::env::var(SEED) {
        node(MemoryLease::new(), &[seed]).run_until_signal();
    }
}

/// Two nodes here with these leases and one in another process; then that one is killed.
fn killed(first: impl Lease, second: impl Lease) -> [Cluster; 2] {
    let first = node(first, &[]);
    let seed = first.addr().to_string();
    let second = node(second, std::slice::from_ref(&seed));
    let mut third = Command::new(std::env::current_exe().unwrap());
    third.args(["--exact", "the_third_node"]).env(SEED, &seed).stdout(Stdio::null()).stderr(Stdio::null());
    let mut third = third.spawn().unwrap();
    let formed = first.wait_members(3, PATIENCE).is_ok() && second.wait_members(3, PATIENCE).is_ok();
    third.kill().unwrap();
    third.wait().unwrap();
    assert!(formed, "three nodes are up");
    [first, second]
}

#[test]
fn who_has_the_lease_removes_the_killed_node() {
    let lease = MemoryLease::new();
    let nodes = killed(lease.clone(), lease.clone());
    until_holds("two are left", || nodes.iter().all(|n| n.view().members.len() == 2 && up(n) == 2));
    // The leader holds it still, so nobody else would get it now.
    let other = NodeId::new(&"stranger:1".parse().unwrap(), 1);
    assert_eq!(lease.clone().acquire("leased/downing", other, Duration::from_secs(1)), Ok(None));
}

#[test]
fn nodes_that_cannot_ask_the_lease_end() {
    let nodes = killed(Unreachable, Unreachable);
    until_holds("both have ended", || nodes.iter().all(|n| n.wait_up(Duration::ZERO) == Err(JoinError::Shutdown)));
}
