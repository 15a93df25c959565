//! Where shards go: least-shards allocation, and its rebalancing in small steps.

use crate::{NodeId, ShardKey};

/// One host of a type, in address order among the others.
#[derive(Clone, Debug)]
pub(super) struct HostLoad {
    pub node: NodeId,
    /// Shards of the type that are here or under way to here.
    pub shards: usize,
    /// Those that may be moved now.
    pub movable: Vec<ShardKey>,
}

/// The host with the fewest shards, ties by address.
pub(super) fn least(hosts: &[HostLoad], except: Option<NodeId>) -> Option<NodeId> {
    hosts.iter().filter(|h| Some(h.node) != except).min_by_key(|h| h.shards).map(|h| h.node)
}

/// How many shards of a type may be under way for the sake of balance: both limits hold, at least 1.
pub(super) fn limit(total: usize, absolute: u32, relative: f64) -> usize {
    ((total as f64 * relative) as usize).min(absolute as usize).max(1)
}

/// At most `limit` moves, each from the fullest to the emptiest host, while their difference is above `threshold`: as few as it takes.
pub(super) fn rebalance(mut hosts: Vec<HostLoad>, threshold: u32, limit: usize) -> Vec<(ShardKey, NodeId)> {
    let mut moves = vec![];
    while moves.len() < limit {
        let Some(to) = (0..hosts.len()).min_by_key(|&i| hosts[i].shards) else { break };
        // The last of equals is taken, so that low addresses keep what they have.
        let Some(from) = (0..hosts.len()).filter(|&i| !hosts[i].movable.is_empty()).max_by_key(|&i| hosts[i].shards) else { break };
        if hosts[from].shards <= hosts[to].shards + (threshold as usize).max(1) {
            break;
        }
        moves.push((hosts[from].movable.remove(0), hosts[to].node));
        hosts[from].shards -= 1;
        hosts[to].shards += 1;
    }
    moves
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ShardId, TypeId, proto::rng::Rng};

    fn hosts(counts: &[usize]) -> Vec<HostLoad> {
        let mut next = 0;
        let mut shard = || {
            next += 1;
            ShardKey { ty: TypeId(1), shard: ShardId(next) }
        };
        let load = |(i, &n): (usize, &usize)| HostLoad {
            node: NodeId::from_raw(i as u128 + 1),
            shards: n,
            movable: (0..n).map(|_| shard()).collect(),
        };
        counts.iter().enumerate().map(load).collect()
    }

    fn round(counts: &mut [usize], absolute: u32, relative: f64) -> usize {
        let moves = rebalance(hosts(counts), 1, limit(counts.iter().sum(), absolute, relative));
        let owners: Vec<(ShardKey, usize)> =
            hosts(counts).iter().enumerate().flat_map(|(i, h)| h.movable.iter().map(move |s| (*s, i)).collect::<Vec<_>>()).collect();
        for (shard, to) in &moves {
            let from = owners.iter().find(|(s, _)| s == shard).expect("moved shards exist").1;
            counts[from] -= 1;
            counts[to.raw() as usize - 1] += 1;
        }
        moves.len()
    }

    #[test]
    fn allocates_to_the_least_loaded_ties_by_address() {
        let node = |n| Some(NodeId::from_raw(n));
        assert_eq!(least(&hosts(&[3, 1, 2]), None), node(2));
        assert_eq!(least(&hosts(&[1, 1, 1]), None), node(1));
        assert_eq!(least(&hosts(&[1, 1, 1]), node(1)), node(2));
        assert_eq!(least(&hosts(&[1]), node(1)), None);
        assert_eq!(least(&[], None), None);
    }

    #[test]
    fn balances_the_tables_of_the_relative() {
        for (counts, moves) in [
            (vec![1, 2, 0], 1),
            (vec![2, 0, 0], 1),
            (vec![3, 0, 0], 2),
            (vec![4, 4, 0], 2),
            (vec![4, 4, 2], 1),
            (vec![5, 5, 0], 3),
            (vec![50, 50, 0], 33),
            (vec![1, 1, 0], 0),
            (vec![2, 2, 1], 0),
        ] {
            let mut now = counts.clone();
            let made = round(&mut now, 1000, 1.0);
            let (least, most) = (now.iter().min().unwrap(), now.iter().max().unwrap());
            assert!(most - least <= 1, "{counts:?} -> {now:?}");
            assert_eq!(made, moves, "{counts:?}: no more moves than it takes");
        }
    }

    #[test]
    fn limits_bound_a_round() {
        assert_eq!(round(&mut [50, 50, 0], 5, 1.0), 5);
        assert_eq!(round(&mut [50, 50, 0], 1000, 0.1), 10);
        assert_eq!(round(&mut [4, 0, 0], 1000, 0.01), 1, "at least one");
        assert_eq!(round(&mut [3, 0], 0, 1.0), 1);
    }

    #[test]
    fn what_may_not_move_stays() {
        let mut all = hosts(&[4, 2, 0]);
        all[0].movable.clear();
        let moves = rebalance(all, 1, 100);
        assert_eq!(moves.len(), 1);
        assert_eq!(moves[0].1, NodeId::from_raw(3));
        let mut none = hosts(&[4, 0]);
        none[0].movable.clear();
        assert!(rebalance(none, 1, 100).is_empty());
    }

    #[test]
    fn a_larger_threshold_tolerates_more() {
        assert!(rebalance(hosts(&[5, 2]), 3, 100).is_empty());
        assert_eq!(rebalance(hosts(&[6, 2]), 3, 100).len(), 1);
    }

    #[test]
    fn any_start_ends_balanced_within_bounded_rounds() {
        for (regions, shards, rounds, absolute, relative) in
            [(5, 5, 2, 1000, 1.0), (5, 100, 2, 1000, 1.0), (20, 200, 5, 1000, 1.0), (100, 1000, 5, 1000, 1.0), (20, 200, 20, 20, 0.1)]
        {
            for seed in 0..10 {
                let mut rng = Rng::new(seed);
                let mut counts = vec![0; rng.below(regions) as usize + 1];
                let total = rng.below(shards) as usize;
                for _ in 0..total {
                    let i = rng.index(counts.len()).unwrap();
                    counts[i] += 1;
                }
                for _ in 0..rounds {
                    round(&mut counts, absolute, relative);
                }
                assert_eq!(counts.iter().sum::<usize>(), total, "seed {seed}: shards are conserved");
                let spread = counts.iter().max().unwrap() - counts.iter().min().unwrap();
                assert!(spread <= 1, "seed {seed}: {counts:?}");
            }
        }
    }
}
