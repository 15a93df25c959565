//! Several node processes that form one cluster.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::{
    process::{Node, unique_name},
    until_holds,
};

pub struct Cluster {
    pub name: String,
    pub nodes: Vec<Node>,
}

impl Cluster {
    /// Starts `n` nodes and waits until each sees all of them up and takes requests.
    #[track_caller]
    pub fn of(n: usize) -> Self {
        Self::with(n, &[])
    }

    /// As [`of`](Self::of), each with these arguments.
    #[track_caller]
    pub fn with(n: usize, args: &[&str]) -> Self {
        let name = unique_name();
        let first = Node::start(&name, args);
        let mut cluster = Self { name, nodes: vec![first] };
        for _ in 1..n {
            cluster.add(args);
        }
        cluster.wait_formed();
        cluster
    }

    /// Starts one more node that joins through the first one in the list.
    #[track_caller]
    pub fn add(&mut self, args: &[&str]) -> usize {
        let mut all = vec!["--seed", &self.nodes[0].addr];
        all.extend_from_slice(args);
        let node = Node::start(&self.name, &all);
        self.nodes.push(node);
        self.nodes.len() - 1
    }

    /// Waits until exactly the nodes of this list are up in each one's view, and each is ready.
    #[track_caller]
    pub fn wait_formed(&self) {
        let all: BTreeSet<String> = self.nodes.iter().map(|node| node.addr.clone()).collect();
        for node in &self.nodes {
            until_holds(&format!("{} sees {all:?} up, converged, and is ready", node.addr), || {
                let members = node.members();
                let up: BTreeSet<String> = node.members_that_are("up").into_iter().collect();
                members.len() == all.len() && up == all && node.status()["converged"] == true && node.get("/healthz/ready").status == 200
            });
        }
    }

    /// Index of the node that is the coordinator.
    #[track_caller]
    pub fn coordinator(&self) -> usize {
        let status = self.nodes[0].status();
        let coordinator = status["coordinator"].as_str().unwrap_or_else(|| panic!("no coordinator: {status}"));
        self.nodes.iter().position(|node| node.addr == coordinator).unwrap()
    }

    /// Takes a node out of the list.
    pub fn remove(&mut self, index: usize) -> Node {
        self.nodes.remove(index)
    }

    /// Waits until every shard of a type that is in use has one owner, the same one wherever it is asked, and none of them moves.
    #[track_caller]
    pub fn wait_one_owner_each(&self, ty: &str) {
        let homes: BTreeSet<&str> = self.nodes.iter().map(|node| node.addr.as_str()).collect();
        until_holds(&format!("each shard of {ty} has one owner"), || {
            let tables: Vec<Option<BTreeMap<u64, String>>> = self.nodes.iter().map(|node| owners(node, ty)).collect();
            let Some(Some(first)) = tables.first() else { return false };
            !first.is_empty()
                && tables.iter().all(|table| table.as_ref() == Some(first))
                && first.values().all(|owner| homes.contains(owner.as_str()))
        });
    }
}

/// Owners of the shards by number, if every row is active and none is there twice.
fn owners(node: &Node, ty: &str) -> Option<BTreeMap<u64, String>> {
    let answer = node.get(&format!("/api/v1/shards/{ty}"));
    if answer.status != 200 {
        return None;
    }
    let table = answer.json();
    let mut owners = BTreeMap::new();
    for row in table["shards"].as_array()? {
        let owner = row["owner"].as_str().filter(|_| row["state"] == "active")?;
        if let Some(other) = owners.insert(row["shard"].as_u64()?, owner.to_owned()) {
            panic!("shard {row} has another row with owner {other}");
        }
    }
    Some(owners)
}

/// A field of the result of an entity operation.
pub fn result<'a>(answer: &'a Value, field: &str) -> &'a Value {
    &answer["result"][field]
}
