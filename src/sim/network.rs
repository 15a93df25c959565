//! The network between nodes: what becomes of a datagram, and which paths are open.

use std::{collections::BTreeMap, time::Duration};

use super::{
    lognormal::LogNormal,
    scenario::{Burst, NetworkSpec},
};
use crate::proto::rng::Rng;

/// A fault laid over some directed pairs.
#[derive(Clone, Debug)]
pub(super) struct Fault {
    /// Names it, to lift it again.
    pub id: u64,
    pub from: Nodes,
    pub to: Nodes,
    pub loss: Option<f64>,
    pub latency: Option<u64>,
    pub duplicate: Option<f64>,
    pub reorder: Option<f64>,
    pub cut: bool,
}

/// A set of node indices.
#[derive(Clone, Debug, Default)]
pub(super) struct Nodes(Vec<u64>);

impl Nodes {
    pub(super) fn of(indices: &[u32]) -> Self {
        let mut words = Vec::new();
        for i in indices {
            let at = *i as usize / 64;
            if words.len() <= at {
                words.resize(at + 1, 0);
            }
            words[at] |= 1 << (i % 64);
        }
        Self(words)
    }

    pub(super) fn has(&self, i: u32) -> bool {
        self.0.get(i as usize / 64).is_some_and(|w| w >> (i % 64) & 1 == 1)
    }
}

/// The fate of one datagram.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Fate {
    Lost,
    /// Delays in nanoseconds; the second one if it was doubled.
    Arrives(u64, Option<u64>),
}

pub(super) struct Network {
    spec: NetworkSpec,
    plain: LogNormal,
    /// Row-major by region pair; empty with one region.
    regional: Vec<LogNormal>,
    /// Extra distributions of link faults, by mean.
    special: BTreeMap<u64, LogNormal>,
    partitions: Vec<Vec<u16>>,
    faults: Vec<Fault>,
    /// Pairs in the bad state of Gilbert's model.
    bad: BTreeMap<(u32, u32), bool>,
    /// Nodes whose paths some fault has touched, ever or for how long does not matter: marks against them are no mistakes.
    touched: Nodes,
}

impl Network {
    pub(super) fn new(spec: &NetworkSpec) -> Self {
        let nanos = |d: Duration| d.as_nanos() as u64;
        let jitter = nanos(spec.jitter);
        Self {
            plain: LogNormal::new(nanos(spec.latency), jitter),
            regional: spec.region_latency.iter().flatten().map(|l| LogNormal::new(nanos(*l), jitter)).collect(),
            special: BTreeMap::new(),
            partitions: Vec::new(),
            faults: Vec::new(),
            bad: BTreeMap::new(),
            touched: Nodes::default(),
            spec: spec.clone(),
        }
    }

    pub(super) fn region(&self, node: u32) -> u32 {
        node % self.spec.regions
    }

    /// Cuts the links between groups; nodes in no group form one more.
    pub(super) fn partition(&mut self, groups: &[Vec<u32>], nodes: u32) {
        let mut of = vec![u16::MAX; nodes as usize];
        for (g, members) in groups.iter().enumerate() {
            for m in members {
                of[*m as usize] = g as u16;
            }
        }
        self.partitions.push(of);
        self.touch(&(0..nodes).collect::<Vec<_>>());
    }

    pub(super) fn add(&mut self, fault: Fault) {
        if let Some(mean) = fault.latency {
            self.special.entry(mean).or_insert_with(|| LogNormal::new(mean, self.spec.jitter.as_nanos() as u64));
        }
        self.faults.push(fault);
    }

    pub(super) fn lift(&mut self, id: u64) {
        self.faults.retain(|f| f.id != id);
    }

    pub(super) fn heal(&mut self) {
        self.partitions.clear();
        self.faults.clear();
    }

    pub(super) fn touch(&mut self, nodes: &[u32]) {
        for n in nodes {
            let at = *n as usize / 64;
            if self.touched.0.len() <= at {
                self.touched.0.resize(at + 1, 0);
            }
            self.touched.0[at] |= 1 << (n % 64);
        }
    }

    pub(super) fn was_touched(&self, node: u32) -> bool {
        self.touched.has(node)
    }

    /// Whether nothing sent from `a` reaches `b`.
    pub(super) fn cut(&self, a: u32, b: u32) -> bool {
        self.partitions.iter().any(|p| p[a as usize] != p[b as usize])
            || self.faults.iter().any(|f| (f.cut || f.loss.is_some_and(|l| l >= 1.0)) && f.from.has(a) && f.to.has(b))
    }

    /// Whether so little of what is sent from `a` reaches `b` that nobody can count on it: nothing, or a fault takes half of it.
    pub(super) fn broken(&self, a: u32, b: u32) -> bool {
        self.cut(a, b) || self.faults.iter().any(|f| f.loss.is_some_and(|l| l >= 0.5) && f.from.has(a) && f.to.has(b))
    }

    /// One way, for frames and connections.
    pub(super) fn latency(&self, a: u32, b: u32, rng: &mut Rng) -> u64 {
        let special = self.faults.iter().rev().find(|f| f.latency.is_some() && f.from.has(a) && f.to.has(b));
        let distribution = match special.and_then(|f| f.latency) {
            Some(mean) => &self.special[&mean],
            None if self.regional.is_empty() => &self.plain,
            None => &self.regional[(self.region(a) * self.spec.regions + self.region(b)) as usize],
        };
        distribution.draw(rng)
    }

    /// Share of datagrams lost from `a` to `b` just now.
    pub(super) fn loss(&mut self, a: u32, b: u32, rng: &mut Rng) -> f64 {
        let mut loss = self.spec.loss;
        for f in &self.faults {
            if f.loss.is_some() && f.from.has(a) && f.to.has(b) {
                loss = f.loss.unwrap_or(loss).max(loss);
            }
        }
        if let Some(burst) = self.spec.burst
            && self.step_burst(burst, a, b, rng)
        {
            return loss.max(burst.loss);
        }
        loss
    }

    pub(super) fn datagram(&mut self, a: u32, b: u32, rng: &mut Rng) -> Fate {
        let loss = self.loss(a, b, rng);
        if self.cut(a, b) || (loss > 0.0 && rng.chance(loss)) {
            return Fate::Lost;
        }
        let mut duplicate = self.spec.duplicate;
        let mut reorder = self.spec.reorder;
        for f in self.faults.iter().filter(|f| f.from.has(a) && f.to.has(b)) {
            duplicate = f.duplicate.unwrap_or(duplicate);
            reorder = f.reorder.unwrap_or(reorder);
        }
        let mut delay = self.latency(a, b, rng);
        if reorder > 0.0 && rng.chance(reorder) {
            delay += rng.below(self.spec.reorder_by.as_nanos() as u64 + 1);
        }
        let twice = (duplicate > 0.0 && rng.chance(duplicate)).then(|| self.latency(a, b, rng));
        Fate::Arrives(delay, twice)
    }

    /// Moves the pair's state on by one datagram; true = bad.
    fn step_burst(&mut self, burst: Burst, a: u32, b: u32, rng: &mut Rng) -> bool {
        let leave = 1.0 / burst.mean;
        let enter = (leave * burst.bad / (1.0 - burst.bad)).min(1.0);
        let state = self.bad.entry((a, b)).or_insert(false);
        let flip = if *state { leave } else { enter };
        if rng.chance(flip) {
            *state = !*state;
        }
        *state
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(change: impl FnOnce(&mut NetworkSpec)) -> Network {
        let mut spec = NetworkSpec::default();
        change(&mut spec);
        Network::new(&spec)
    }

    fn lost(n: &mut Network, a: u32, b: u32, of: u32) -> u32 {
        let mut rng = Rng::new(3);
        (0..of).filter(|_| n.datagram(a, b, &mut rng) == Fate::Lost).count() as u32
    }

    #[test]
    fn loss_is_as_asked_for() {
        let mut n = network(|s| s.loss = 0.1);
        assert!((900..1100).contains(&lost(&mut n, 0, 1, 10_000)));
        assert_eq!(lost(&mut network(|_| ()), 0, 1, 1000), 0);
    }

    #[test]
    fn bursts_have_their_share_and_their_length() {
        let mut n = network(|s| s.burst = Some(Burst { bad: 0.1, mean: 20.0, loss: 1.0 }));
        let mut rng = Rng::new(9);
        let fates: Vec<bool> = (0..200_000).map(|_| n.datagram(0, 1, &mut rng) == Fate::Lost).collect();
        let bad = fates.iter().filter(|l| **l).count();
        let runs = fates.windows(2).filter(|w| !w[0] && w[1]).count();
        assert!((0.09..0.11).contains(&(bad as f64 / 200_000.0)), "{bad}");
        assert!((18.0..22.0).contains(&(bad as f64 / runs as f64)), "{runs}");
    }

    #[test]
    fn cuts_are_one_way_and_partitions_both() {
        let mut n = network(|_| ());
        let fault = |id, from: &[u32], to: &[u32]| Fault {
            id,
            from: Nodes::of(from),
            to: Nodes::of(to),
            loss: None,
            latency: None,
            duplicate: None,
            reorder: None,
            cut: true,
        };
        n.add(fault(1, &[0], &[1, 70]));
        assert!(n.cut(0, 1) && n.cut(0, 70) && !n.cut(1, 0) && !n.cut(0, 2));
        n.lift(1);
        assert!(!n.cut(0, 1));
        n.partition(&[vec![0, 1], vec![2]], 5);
        assert!(!n.cut(0, 1) && n.cut(0, 2) && n.cut(2, 0) && n.cut(2, 3) && !n.cut(3, 4), "the rest forms one more group");
        n.heal();
        assert!(!n.cut(0, 2));
    }

    #[test]
    fn regions_have_their_own_latency() {
        let mut n = network(|s| {
            s.regions = 2;
            s.jitter = Duration::ZERO;
            s.region_latency =
                vec![vec![Duration::from_millis(1), Duration::from_millis(50)], vec![Duration::from_millis(40), Duration::from_millis(2)]];
        });
        let mut rng = Rng::new(1);
        assert_eq!(n.datagram(0, 1, &mut rng), Fate::Arrives(50_000_000, None));
        assert_eq!(n.datagram(1, 0, &mut rng), Fate::Arrives(40_000_000, None));
        assert_eq!(n.datagram(1, 3, &mut rng), Fate::Arrives(2_000_000, None));
    }

    #[test]
    fn doubles_and_late_ones_occur() {
        let mut n = network(|s| {
            s.duplicate = 0.2;
            s.reorder = 0.2;
            s.jitter = Duration::ZERO;
        });
        let mut rng = Rng::new(1);
        let fates: Vec<Fate> = (0..1000).map(|_| n.datagram(0, 1, &mut rng)).collect();
        let doubled = fates.iter().filter(|f| matches!(f, Fate::Arrives(_, Some(_)))).count();
        let late = fates.iter().filter(|f| matches!(f, Fate::Arrives(d, _) if *d > 1_000_000)).count();
        assert!((150..250).contains(&doubled) && (150..250).contains(&late), "{doubled} {late}");
    }
}
