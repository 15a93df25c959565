//! Follows where the shards of the aircraft live, and who is up.

use std::{collections::BTreeMap, sync::Arc, thread, time::Duration};

use parking_lot::{Mutex, MutexGuard};
use serde_json::Value;

use crate::{fail::Failure, http::Admin};

/// How often a node is asked.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// What was last seen.
#[derive(Default)]
pub struct Seen {
    pub shards: Shards,
    /// Addresses of the members that are up and reachable.
    pub up: Vec<String>,
}

/// Asks a node again and again, on a thread of its own: a busy node must not hold up the driver.
pub struct Watcher {
    admin: Arc<Admin>,
    seen: Arc<Mutex<Seen>>,
}

impl Watcher {
    /// Watches until it is dropped.
    pub fn start(admin: Admin) -> Self {
        let (admin, seen) = (Arc::new(admin), Arc::new(Mutex::new(Seen::default())));
        let (asked, shared) = (Arc::clone(&admin), Arc::downgrade(&seen));
        thread::spawn(move || {
            while let Some(seen) = shared.upgrade() {
                look(&asked, &seen);
                drop(seen);
                thread::sleep(LOOK_EVERY);
            }
        });
        Self { admin, seen }
    }

    /// Asks now. A node that is too busy to answer is asked again later.
    pub fn look(&self) {
        look(&self.admin, &self.seen);
    }

    pub fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock()
    }
}

fn look(admin: &Admin, seen: &Mutex<Seen>) {
    // Asked without the lock: an answer may take long.
    let (shards, members) = (admin.get("/api/v1/shards/aircraft"), up(admin));
    let mut seen = seen.lock();
    if let Ok(answer) = shards {
        seen.shards.take(&answer);
    }
    if let Ok(members) = members {
        seen.up = members;
    }
}

/// Addresses of the members that a node sees up and reachable.
pub fn up(admin: &Admin) -> Result<Vec<String>, Failure> {
    let answer = admin.get("/api/v1/members")?;
    let members = answer["members"].as_array().into_iter().flatten();
    let is_up = members.filter(|member| member["status"] == "up" && member["reachable"] == true);
    Ok(is_up.filter_map(|member| member["addr"].as_str().map(Into::into)).collect())
}

/// The homes of the shards as last seen, and how often one changed.
#[derive(Default)]
pub struct Shards {
    homes: BTreeMap<u64, String>,
    /// Shards seen at another home than before.
    pub moved: u64,
}

impl Shards {
    /// Takes in what a node says of them.
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
