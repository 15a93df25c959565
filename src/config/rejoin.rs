//! The settings with which a node that was downed, or has given way to another cluster, starts again.

use super::Config;
use crate::NodeAddr;

/// Members that a new life asks beside its own seeds.
const ASKED_MAX: usize = 16;

/// What a life has of those before it.
#[derive(Copy, Clone, Default, PartialEq, Debug)]
pub(crate) struct Heritage {
    /// A cluster downed it.
    pub(crate) downed: bool,
    /// So many lives in a row gave way to another cluster.
    pub(crate) superseded: u32,
    /// So many of the seeds, the last ones, are no setting but members that it had heard of.
    hints: usize,
}

impl Config {
    /// The settings of the next life of a node at `me` that was downed; these are those of the life that ended, whose last view had the members
    /// `known`.
    ///
    /// It asks its seeds and some of whom it knew, and stays without a cluster until one of them takes it in: a cluster of its own would be a
    /// second one beside that which removed it. Only where no side lived (`down-all`, or a split without a majority) a new one is due, so the
    /// first seed asks all it knew, and forms a cluster when every one of them says that it has none, or most do and the others refuse connections.
    /// Silence does not suffice.
    #[must_use]
    pub fn rejoining(&self, me: &NodeAddr, known: impl IntoIterator<Item = NodeAddr>) -> Self {
        self.next_life(me, known, true)
    }

    /// The settings of the next life of a node at `me` that was [superseded](crate::ShutdownReason::Superseded) by the cluster of `known`: it asks
    /// those too. These are those of the life that ended.
    #[must_use]
    pub fn asking(&self, me: &NodeAddr, known: impl IntoIterator<Item = NodeAddr>) -> Self {
        self.next_life(me, known, false)
    }

    fn next_life(&self, me: &NodeAddr, known: impl IntoIterator<Item = NodeAddr>, downed: bool) -> Self {
        let mut config = self.clone();
        let (own, heard_of) = self.cluster.seeds.split_at(self.cluster.seeds.len().saturating_sub(self.heritage.hints));
        let is_me = |seed: &String| seed.parse().as_ref() == Ok(me);
        // Who has no list was to found a cluster, and may again.
        let first = own.first().is_none_or(is_me);
        let mut known: Vec<String> = known.into_iter().filter(|addr| addr != me).map(|addr| addr.to_string()).collect();
        // Who was never in knows what the life before it knew.
        if known.is_empty() {
            known = heard_of.to_vec();
        }
        known.truncate(if first { usize::MAX } else { ASKED_MAX });
        let mut asked: Vec<String> = first.then(|| me.to_string()).into_iter().collect();
        let mut add = |seed: &String| {
            if !is_me(seed) && !asked.contains(seed) {
                asked.push(seed.clone());
            }
            asked.len()
        };
        let settings = own.iter().map(&mut add).last().unwrap_or(usize::from(first));
        let all = known.iter().map(&mut add).last().unwrap_or(settings);
        config.cluster.seeds = asked;
        let superseded = if downed { 0 } else { self.heritage.superseded + 1 };
        config.heritage = Heritage { downed, superseded, hints: all - settings };
        config
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addr(port: u16) -> NodeAddr {
        NodeAddr::new("h", port)
    }

    fn asks(seeds: &[&str], me: u16, known: impl Iterator<Item = u16>) -> Vec<String> {
        let mut config = Config::default();
        config.cluster.seeds = seeds.iter().map(ToString::to_string).collect();
        config.rejoining(&addr(me), known.map(addr)).cluster.seeds
    }

    #[test]
    fn the_first_seed_stays_it_and_asks_all() {
        assert_eq!(asks(&["h:1", "h:2"], 1, 1..=3), ["h:1", "h:2", "h:3"]);
        assert_eq!(asks(&["h:1"], 1, 1..=100).len(), 100);
    }

    #[test]
    fn who_was_never_in_asks_whom_its_earlier_life_knew_and_nobody_older() {
        let mut first = Config::default();
        first.cluster.seeds = vec!["h:1".into()];
        let second = first.asking(&addr(1), [addr(2)]);
        let third = second.rejoining(&addr(1), []);
        assert_eq!(third.cluster.seeds, ["h:1", "h:2"]);
        assert_eq!(third.rejoining(&addr(1), [addr(1), addr(3)]).cluster.seeds, ["h:1", "h:3"]);
    }

    #[test]
    fn others_ask_their_seeds_and_some_more() {
        assert_eq!(asks(&["h:1", "h:2"], 2, 1..=4), ["h:1", "h:3", "h:4"]);
        assert_eq!(asks(&["h:1"], 50, 2..=100).len(), 1 + ASKED_MAX);
        assert_eq!(asks(&[], 2, 1..=3), ["h:2", "h:1", "h:3"], "who was alone may found again");
    }
}
