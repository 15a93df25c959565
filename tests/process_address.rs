//! Nodes and the addresses that they go by.
#![cfg(feature = "cli")]
#![allow(missing_docs, clippy::unwrap_used)]

mod support;

use support::{
    process::{Node, free_addr, unique_name},
    until_holds,
};

// failures: row 22
#[test]
fn a_node_that_is_its_own_first_seed_by_another_name_founds_a_cluster() {
    let (name, addr) = (unique_name(), free_addr());
    let alias = addr.replace("127.0.0.1", "localhost");
    let first = Node::start(&name, &["--listen", &addr, "--seed", &alias]);
    until_holds("it is a member of its own cluster", || first.members_that_are("up") == [addr.clone()]);
    let second = Node::start(&name, &["--seed", &alias]);
    until_holds("another one joins by that name", || first.members_that_are("up").len() == 2 && second.members_that_are("up").len() == 2);
}

// failures: rows 17, 19
#[test]
fn a_node_that_claims_the_address_of_a_member_is_refused_and_the_member_lives_on() {
    let name = unique_name();
    let first = Node::start(&name, &[]);
    let mut member = Node::start(&name, &["--seed", &first.addr]);
    until_holds("two are up", || first.members_that_are("up").len() == 2);
    let claim = [
        ("WINGBEAT_CLUSTER__PRESET", "local_test"),
        ("WINGBEAT_DETECTOR__HEARTBEAT_INTERVAL", "600ms"),
        ("WINGBEAT_NODE__ADVERTISE", &*member.addr),
    ];
    let mut copy = Node::start_with(&name, &["--seed", &first.addr], &claim);
    assert_eq!(copy.exit_code(), 1);
    let log = copy.log();
    assert!(log.contains("two nodes use") && log.contains(&member.incarnation) && log.contains(&copy.incarnation), "{log}");
    assert!(member.is_running());
    let lives = |node: &Node| {
        node.members().iter().any(|m| m["addr"] == *member.addr && m["incarnation"] == *member.incarnation && m["status"] == "up")
    };
    assert!(lives(&first), "{:?}", first.members());
}
