//! Follows where the shards of the aircraft live.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::{fail::Failure, http::Admin};

/// The homes of the shards as last seen, and how often one changed.
#[derive(Default)]
pub struct Shards {
    homes: BTreeMap<u64, String>,
    /// Shards seen at another home than before.
    pub moved: u64,
}

impl Shards {
    /// Asks a node and takes in what it says.
    pub fn look(&mut self, admin: &Admin) -> Result<(), Failure> {
        let answer = admin.get("/api/v1/shards/aircraft")?;
        self.take(&answer);
        Ok(())
    }

    fn take(&mut self, answer: &Value) {
        for row in answer["shards"].as_array().into_iter().flatten() {
            // A shard without a home has not moved yet: it counts when it is seen at the next one.
            let (Some(shard), Some(owner)) = (row["shard"].as_u64(), row["owner"].as_str()) else { continue };
            match self.homes.insert(shard, owner.to_owned()) {
                Some(before) if before != owner => self.moved += 1,
                _ => {}
            }
        }
    }

    /// How many shards a node holds.
    pub fn held_by(&self, addr: &str) -> usize {
        self.homes.values().filter(|home| *home == addr).count()
    }

    /// How many each of these nodes holds, for people.
    pub fn shown<'a>(&self, nodes: impl Iterator<Item = (&'a str, &'a str)>) -> String {
        nodes.map(|(name, addr)| format!("{name}: {}", self.held_by(addr))).collect::<Vec<_>>().join(" ")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_shard_counts_as_moved_when_it_is_seen_at_another_home() {
        let mut shards = Shards::default();
        let rows = |a: Value, b: Value| json!({"shards": [{"shard": 0, "owner": a}, {"shard": 1, "owner": b}]});
        shards.take(&rows(json!("x:1"), Value::Null));
        shards.take(&rows(json!("x:1"), json!("y:1")));
        assert_eq!(shards.moved, 0, "the first home is no move");
        shards.take(&rows(Value::Null, json!("y:1")));
        shards.take(&rows(json!("z:1"), json!("y:1")));
        assert_eq!((shards.moved, shards.held_by("z:1"), shards.held_by("x:1")), (1, 1, 0));
        assert_eq!(shards.shown([("n0", "y:1"), ("n1", "z:1")].into_iter()), "n0: 1 n1: 1");
    }
}
