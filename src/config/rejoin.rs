//! The settings with which a node that was downed, or has given way to another cluster, starts again.

use super::Config;
use crate::NodeAddr;

/// Members of the last view that a new life asks, beside its own seeds.
const ASKED_MAX: usize = 16;

impl Config {
    /// The settings of the next life of a node at `me` that was downed, and whose last view had the members `known`.
    ///
    /// It asks its seeds and some of whom it knew, and stays without a cluster until one of them takes it in: a cluster of its own would be a
    /// second one beside that which removed it. Only where no side lived (`down-all`, or a split without a majority) a new one is due, so the
    /// first seed asks all it knew, and forms a cluster when every one of them says that it has none. Silence does not suffice.
    #[must_use]
    pub fn rejoining(&self, me: &NodeAddr, known: impl IntoIterator<Item = NodeAddr>) -> Self {
        Self { rejoins: true, ..self.asking(me, known) }
    }

    /// The settings of the next life of a node at `me` that was [superseded](crate::ShutdownReason::Superseded) by the cluster of `known`: it asks
    /// those too.
    #[must_use]
    pub fn asking(&self, me: &NodeAddr, known: impl IntoIterator<Item = NodeAddr>) -> Self {
        let mut config = self.clone();
        let is_me = |seed: &String| seed.parse().as_ref() == Ok(me);
        let first = self.cluster.seeds.first().is_some_and(is_me);
        let known = known.into_iter().filter(|addr| addr != me).take(if first { usize::MAX } else { ASKED_MAX });
        let others = self.cluster.seeds.iter().filter(|seed| !is_me(seed)).cloned().chain(known.map(|addr| addr.to_string()));
        let mut asked: Vec<String> = first.then(|| me.to_string()).into_iter().collect();
        for seed in others {
            if !asked.contains(&seed) {
                asked.push(seed);
            }
        }
        config.cluster.seeds = asked;
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
    fn others_ask_their_seeds_and_some_more() {
        assert_eq!(asks(&["h:1", "h:2"], 2, 1..=4), ["h:1", "h:3", "h:4"]);
        assert_eq!(asks(&["h:1"], 50, 2..=100).len(), 1 + ASKED_MAX);
        assert_eq!(asks(&[], 2, 1..=3), ["h:1", "h:3"]);
    }
}
