//! Actions that came to nothing: what a scenario asks for and the world cannot do is said in the result, not passed over.

use std::collections::BTreeMap;

use serde::Serialize;

use super::world::World;

/// Nodes of an action for which it did nothing.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Undone {
    /// Where the action stands in the file.
    pub line: usize,
    /// When it first came to nothing, seconds of the run.
    pub at_s: f64,
    /// For whom; nobody if its selector meant nobody.
    pub nodes: Vec<u32>,
    /// Why.
    pub why: String,
}

/// By action and reason.
#[derive(Debug, Default)]
pub(super) struct Undones(BTreeMap<(usize, String), (u64, Vec<u32>)>);

/// Commands of actions are numbered above this, those of moves below.
const BY_ACTION: u32 = 32;

/// Names the command that an action gives about a node.
pub(super) fn command(action: usize, node: u32) -> u64 {
    (action as u64 + 1) << BY_ACTION | u64::from(node)
}

/// Action and node of a command; nothing for a move.
pub(super) fn action_of(command: u64) -> Option<(usize, u32)> {
    let action = usize::try_from(command >> BY_ACTION).ok()?.checked_sub(1)?;
    Some((action, command as u32))
}

impl World<'_> {
    /// That action did nothing for these nodes.
    pub(super) fn not_done(&mut self, action: usize, nodes: &[u32], why: &str) {
        self.log(71, nodes.first().copied().unwrap_or(0), action as u64, || format!("NOTHING DONE: {why}"));
        let (_, all) = self.undones.0.entry((action, why.to_owned())).or_insert_with(|| (self.now, Vec::new()));
        all.extend(nodes);
    }

    pub(super) fn undone(&self) -> Vec<Undone> {
        let of = |((action, why), (at, nodes)): (&(usize, String), &(u64, Vec<u32>))| Undone {
            line: self.scenario.actions[*action].line,
            at_s: *at as f64 / 1e9,
            nodes: nodes.clone(),
            why: why.clone(),
        };
        self.undones.0.iter().map(of).collect()
    }
}
