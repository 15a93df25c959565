//! What a reader of a trace sees, and the digest over all of it.

use std::{fmt, io::Write};

use super::{process::Life, world::World};
use crate::{
    NodeId,
    proto::{membership::ClusterView, shard::LaneItem, wire::Frame},
};

impl World<'_> {
    /// Everything that happens goes through here: into the digest, and to the reader of a trace.
    pub(super) fn log(&mut self, kind: u64, node: u32, x: u64, what: impl FnOnce() -> String) {
        self.digest.add(self.now);
        self.digest.add(kind << 32 | u64::from(node));
        self.digest.add(x);
        if let Some((from, to)) = self.trace
            && (from..=to).contains(&self.now)
        {
            let (s, ns) = (self.now / 1_000_000_000, self.now % 1_000_000_000);
            // Nobody need read it.
            let _ = writeln!(std::io::stderr(), "{s:>5}.{ns:09}  n{node:<5} {}", self.with_names(what()));
        }
    }

    /// Ids of lives as `n3` or, after restarts, `n3+1`.
    fn with_names(&self, mut text: String) -> String {
        let mut from = 0;
        while let Some(at) = text.as_bytes()[from..].windows(32).position(|w| w.iter().all(u8::is_ascii_hexdigit)).map(|at| at + from) {
            let known = u128::from_str_radix(&text[at..at + 32], 16).ok().and_then(|raw| self.by_id.get(&NodeId::from_raw(raw)));
            from = match known.map(|l| self.lives[*l as usize]) {
                Some(Life { node, generation, .. }) => {
                    let name = if generation > 0 { format!("n{node}+{generation}") } else { format!("n{node}") };
                    text.replace_range(at..at + 32, &name);
                    at + name.len()
                }
                None => at + 32,
            };
        }
        text
    }
}

/// A short text of something long.
pub(super) fn brief(x: &impl fmt::Debug) -> String {
    let mut text = format!("{x:?}");
    if text.len() > 240 {
        let cut = (0..=240).rev().find(|i| text.is_char_boundary(*i)).unwrap_or(0);
        text.truncate(cut);
        text.push_str("..");
    }
    text
}

pub(super) fn brief_lane<P: fmt::Debug>(item: &LaneItem<P>) -> String {
    brief(item)
}

pub(super) fn brief_view(view: &ClusterView) -> String {
    view.members.iter().map(|m| format!("{}{}{} ", m.addr.host, if m.reachable { ":" } else { "!" }, m.status.name())).collect()
}

pub(super) struct Brief<'a>(pub &'a Frame);

impl fmt::Display for Brief<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&brief(self.0))
    }
}
