//! Invariants of failures.md, watched at every step: E1, E2, E6 (entities), M1 to M3 and M7 (membership), C1 (coordinator).
//!
//! E3 and E4 are watched by the ledger, which knows every message. R3 is watched here too: a core that has nothing to do is not woken.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use foldhash::fast::FixedState;

use super::result::Violation;
use crate::{
    Epoch, NodeId, ShardKey, Term,
    proto::membership::{ClusterView, MemberStatus, Members},
};

/// Most violations that are listed; the rest are counted.
const LISTED_MAX: usize = 20;

/// Collects what was found wrong.
#[derive(Debug, Default)]
pub(super) struct Findings {
    pub list: Vec<Violation>,
    pub more: u64,
}

impl Findings {
    pub(super) fn add(&mut self, invariant: &str, now: u64, nodes: Vec<u32>, what: String) {
        if self.list.len() < LISTED_MAX {
            self.list.push(Violation { invariant: invariant.to_owned(), at_s: now as f64 / 1e9, nodes, what });
        } else {
            self.more += 1;
        }
    }
}

/// Live instances of entities and shards.
///
/// The maps are looked up and never walked, so their order cannot reach anything.
#[derive(Debug, Default)]
pub(super) struct Instances {
    entities: HashMap<u32, Vec<u32>, FixedState>,
    shards: HashMap<ShardKey, Vec<u32>, FixedState>,
    /// What has two instances, live or past their right to run: (entity, or shard), since when both are live.
    double_entities: BTreeMap<u32, Option<u64>>,
    double_shards: BTreeMap<ShardKey, bool>,
    /// By cluster and entity.
    epochs: HashMap<(u64, u32), Epoch, FixedState>,
    /// By cluster and entity: one that was founded beside another has a history of its own.
    handed: HashMap<(u64, u32), u64, FixedState>,
    dual_max: u64,
}

/// What an instance's step broke.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Broken {
    pub invariant: &'static str,
    pub lives: Vec<u32>,
    pub what: String,
}

impl Instances {
    /// On a node of that cluster, with that state if it was handed one.
    pub(super) fn started(&mut self, entity: u32, life: u32, cluster: u64, state: Option<u64>) -> Option<Broken> {
        let all = self.entities.entry(entity).or_default();
        let again = all.contains(&life);
        all.push(life);
        if all.len() > 1 {
            self.double_entities.entry(entity).or_insert(None);
        }
        if again {
            return Some(Broken {
                invariant: "E1",
                lives: vec![life],
                what: format!("entity {entity} was started again while it lives on the same node"),
            });
        }
        let handed = self.handed.remove(&(cluster, entity));
        match state {
            Some(sum) if handed != Some(sum) => Some(Broken {
                invariant: "E6",
                lives: vec![life],
                what: format!("entity {entity} got another state than its predecessor handed over last"),
            }),
            _ => None,
        }
    }

    pub(super) fn stopped(&mut self, entity: u32, life: u32) -> Option<Broken> {
        let all = self.entities.entry(entity).or_default();
        let Some(at) = all.iter().position(|l| *l == life) else {
            return Some(Broken { invariant: "E1", lives: vec![life], what: format!("entity {entity} was stopped where it did not live") });
        };
        all.swap_remove(at);
        None
    }

    pub(super) fn handed_over(&mut self, entity: u32, cluster: u64, sum: u64) {
        self.handed.insert((cluster, entity), sum);
    }

    /// A turn took place under this epoch of that cluster.
    pub(super) fn turn(&mut self, entity: u32, life: u32, (cluster, epoch): (u64, Epoch)) -> Option<Broken> {
        let last = self.epochs.entry((cluster, entity)).or_default();
        if epoch < *last {
            let what = format!("entity {entity} ran under epoch {} after epoch {}", epoch.get(), last.get());
            return Some(Broken { invariant: "E2", lives: vec![life], what });
        }
        *last = epoch;
        if !self.entities.get(&entity).is_some_and(|all| all.contains(&life)) {
            return Some(Broken {
                invariant: "E1",
                lives: vec![life],
                what: format!("entity {entity} handled a message where it does not live"),
            });
        }
        None
    }

    pub(super) fn shard(&mut self, shard: ShardKey, life: u32, runs: bool) {
        let all = self.shards.entry(shard).or_default();
        // A stay is reported once per epoch of it.
        all.retain(|l| *l != life);
        if runs {
            all.push(life);
            if all.len() > 1 {
                self.double_shards.entry(shard).or_insert(false);
            }
        }
    }

    /// The process of that life is gone, with what lived in it.
    pub(super) fn forget(&mut self, life: u32) {
        // Order does not matter: each entry is treated alike.
        for all in self.entities.values_mut() {
            all.retain(|l| *l != life);
        }
        for all in self.shards.values_mut() {
            all.retain(|l| *l != life);
        }
    }

    /// Cheap when nothing is double. `live`: the node of that life runs and has the right to.
    pub(super) fn check(&mut self, now: u64, live: impl Fn(u32) -> bool) -> Vec<Broken> {
        let mut found = Vec::new();
        if self.double_entities.is_empty() && self.double_shards.is_empty() {
            return found;
        }
        let both = |all: Option<&Vec<u32>>| -> Vec<u32> { all.into_iter().flatten().copied().filter(|l| live(*l)).collect() };
        let entities = &self.entities;
        let longest = &mut self.dual_max;
        self.double_entities.retain(|entity, since| {
            let lives = both(entities.get(entity));
            match (lives.len() > 1, *since) {
                (true, None) => {
                    *since = Some(now);
                    found.push(Broken { invariant: "E1", what: format!("entity {entity} has {} live instances", lives.len()), lives });
                }
                (true, Some(start)) => *longest = (*longest).max(now - start),
                (false, Some(start)) => {
                    *longest = (*longest).max(now - start);
                    *since = None;
                }
                (false, None) => {}
            }
            entities.get(entity).is_some_and(|all| all.len() > 1)
        });
        let shards = &self.shards;
        self.double_shards.retain(|shard, told| {
            let lives = both(shards.get(shard));
            if lives.len() > 1 && !*told {
                *told = true;
                found.push(Broken { invariant: "E1", what: format!("shard {shard:?} runs on {} nodes", lives.len()), lives });
            }
            shards.get(shard).is_some_and(|all| all.len() > 1)
        });
        found
    }

    /// Longest time with two live instances, nanoseconds.
    pub(super) fn dual_max(&self) -> u64 {
        self.dual_max
    }
}

/// What one observer has seen of the membership.
#[derive(Debug, Default)]
pub(super) struct Observed {
    gone: BTreeSet<NodeId>,
    /// Latest start seen per node index, where it is not the first.
    newest: BTreeMap<u32, u32>,
}

impl Observed {
    /// Judges the step from one view to the next by what changed. `generation`: node index and number of the start of a life.
    pub(super) fn step(&mut self, changes: &[Change], generation: impl Fn(NodeId) -> Option<(u32, u32)>) -> Option<(&'static str, String)> {
        let mut wrong = None;
        for change in changes {
            match *change {
                Change::Gone(id) => {
                    self.gone.insert(id);
                }
                Change::New(id) => {
                    if self.gone.contains(&id) {
                        wrong = Some(("M3", format!("{id} is back after it was removed")));
                    }
                    if let Some((index, generation)) = generation(id) {
                        let newest = self.newest.get(&index).copied().unwrap_or(0);
                        if generation < newest {
                            wrong = Some(("M1", format!("an earlier life of node {index} appeared after a later one")));
                        }
                        if generation > newest {
                            self.newest.insert(index, generation);
                        }
                    }
                }
                Change::Status(id, before, after) if after < before => {
                    wrong = Some(("M2", format!("{id} went from {} back to {}", before.name(), after.name())));
                }
                Change::Status(..) | Change::Reachable(..) => {}
            }
        }
        wrong
    }
}

impl Observed {
    /// M7: whether this one, `me`, and the other one have put each other out of their clusters. Both run.
    pub(super) fn split_from(&self, me: NodeId, other: &Self, whom: NodeId) -> Option<(&'static str, String)> {
        let both = self.gone.contains(&whom) && other.gone.contains(&me);
        both.then(|| ("M7", format!("{me} and {whom} have removed each other and run on: both sides of a split live")))
    }
}

/// One difference between two views.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Change {
    New(NodeId),
    Gone(NodeId),
    Status(NodeId, MemberStatus, MemberStatus),
    Reachable(NodeId, bool),
}

impl Change {
    /// Who went.
    pub(super) fn gone(&self) -> Option<NodeId> {
        if let Self::Gone(id) = *self { Some(id) } else { None }
    }
}

/// The differences, in the order of the members.
pub(super) fn changes(was: Option<&ClusterView>, now: &ClusterView) -> Vec<Change> {
    let empty = Members::default();
    let steps = was.map_or(&empty, |w| &w.members).steps(&now.members);
    let mut out = Vec::new();
    for step in steps {
        match (step.was, step.is) {
            (Some(a), Some(b)) => {
                if a.status != b.status {
                    out.push(Change::Status(a.id, a.status, b.status));
                }
                if a.reachable != b.reachable {
                    out.push(Change::Reachable(a.id, b.reachable));
                }
            }
            (Some(a), None) => out.push(Change::Gone(a.id)),
            (None, Some(b)) => {
                out.push(Change::New(b.id));
                if !b.reachable {
                    out.push(Change::Reachable(b.id, false));
                }
            }
            (None, None) => {}
        }
    }
    out
}

/// C1: one acting coordinator per term.
#[derive(Debug, Default)]
pub(super) struct Terms(BTreeMap<(u64, Term), u32>);

impl Terms {
    /// A frame of an authority of that cluster under `term` left this life.
    pub(super) fn acted(&mut self, cluster: u64, term: Term, life: u32) -> Option<Broken> {
        let first = *self.0.entry((cluster, term)).or_insert(life);
        (first != life).then(|| Broken {
            invariant: "C1",
            lives: vec![first, life],
            what: format!("two nodes act as coordinator in term {}", term.get()),
        })
    }
}

/// A core that is woken by its own timers more often than this in one second is in a loop.
const WAKES_PER_SECOND_MAX: u32 = 50_000;

/// R3: how often one core's timers woke it in this second of virtual time.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct Wakes {
    second: u64,
    count: u32,
}

impl Wakes {
    /// The core asked to be woken at `now`, nanoseconds, and was.
    pub(super) fn woke(&mut self, life: u32, now: u64) -> Option<Broken> {
        let second = now / 1_000_000_000;
        *self = Self { second, count: if second == self.second { self.count + 1 } else { 1 } };
        (self.count > WAKES_PER_SECOND_MAX).then(|| Broken {
            invariant: "R3",
            lives: vec![life],
            what: format!("the node's core was woken more than {WAKES_PER_SECOND_MAX} times in one second"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        NodeAddr, ShardId, TypeId,
        proto::membership::{Member, MemberInfo},
    };

    #[test]
    fn a_planted_second_instance_is_caught_and_timed() {
        let mut i = Instances::default();
        assert_eq!(i.started(7, 0, 1, None), None);
        assert!(i.check(10, |_| true).is_empty());
        i.started(7, 1, 1, None);
        let found = i.check(20, |_| true);
        assert_eq!((found[0].invariant, found[0].lives.clone()), ("E1", vec![0, 1]));
        assert!(i.check(25, |_| true).is_empty(), "told once");
        i.stopped(7, 0);
        i.check(30, |_| true);
        assert_eq!(i.dual_max(), 10);
    }

    #[test]
    fn an_instance_past_its_right_to_run_is_not_live() {
        let mut i = Instances::default();
        i.started(7, 0, 1, None);
        i.started(7, 1, 1, None);
        assert!(i.check(20, |life| life == 1).is_empty());
        assert_eq!(i.check(21, |_| true).len(), 1, "it has the right again");
    }

    #[test]
    fn planted_faults_of_entities_are_caught() {
        let mut i = Instances::default();
        i.started(7, 0, 1, None);
        assert_eq!(i.started(7, 0, 1, None).unwrap().invariant, "E1");
        assert_eq!(i.stopped(8, 0).unwrap().invariant, "E1");
        assert_eq!(i.turn(7, 0, (1, Epoch(5))), None);
        assert_eq!(i.turn(7, 0, (1, Epoch(4))).unwrap().invariant, "E2");
        assert_eq!(i.turn(7, 0, (2, Epoch(1))), None, "another cluster");
        assert_eq!(i.turn(9, 0, (1, Epoch(4))).unwrap().invariant, "E1", "no such instance");
        i.handed_over(7, 1, 0xfeed);
        assert_eq!(i.started(7, 3, 1, Some(0xbeef)).unwrap().invariant, "E6");
        i.handed_over(6, 1, 0xfeed);
        assert_eq!(i.started(6, 2, 2, None), None, "in another cluster");
        i.stopped(6, 2);
        assert_eq!(i.started(6, 3, 1, Some(0xfeed)), None);
    }

    #[test]
    fn a_shard_that_runs_twice_is_caught() {
        let shard = ShardKey { ty: TypeId(1), shard: ShardId(2) };
        let mut i = Instances::default();
        i.shard(shard, 0, true);
        i.shard(shard, 0, true);
        assert!(i.check(1, |_| true).is_empty());
        i.shard(shard, 1, true);
        assert_eq!(i.check(2, |_| true).len(), 1);
    }

    fn view(members: &[(u32, u64, MemberStatus, bool)]) -> ClusterView {
        let member = |&(index, incarnation, status, reachable): &(u32, u64, MemberStatus, bool)| {
            let addr = NodeAddr::new(&format!("n{index:05}"), 1);
            let id = NodeId::new(&addr, incarnation);
            Member { reachable, ..Member::new(MemberInfo::bare(id, addr), status, 1) }
        };
        ClusterView {
            me: NodeId::from_raw(0),
            members: members.iter().map(member).collect(),
            leader: None,
            deputies: vec![],
            converged: false,
            version: 1,
        }
    }

    #[test]
    fn planted_faults_of_membership_are_caught() {
        use MemberStatus::{Down, Up};
        let generation = |id: NodeId| Some((0, id.incarnation() as u32));
        let (up1, up2) = (view(&[(0, 1, Up, true)]), view(&[(0, 2, Up, true)]));
        let (down, none) = (view(&[(0, 1, Down, true)]), view(&[]));
        let mut o = Observed::default();
        assert_eq!(o.step(&changes(None, &down), generation), None);
        assert_eq!(o.step(&changes(Some(&down), &up1), generation).unwrap().0, "M2");
        assert_eq!(o.step(&changes(Some(&up1), &none), generation), None);
        assert_eq!(o.step(&changes(Some(&none), &up1), generation).unwrap().0, "M3");
        let mut o = Observed::default();
        assert_eq!(o.step(&changes(None, &up2), generation), None);
        assert_eq!(o.step(&changes(Some(&up2), &up1), generation).unwrap().0, "M1");
    }

    #[test]
    fn differences_are_found_wherever_they_stand() {
        use MemberStatus::{Joining, Up};
        let a = view(&[(0, 1, Up, true), (1, 1, Joining, true), (3, 1, Up, true)]);
        let b = view(&[(1, 1, Up, false), (2, 1, Joining, true), (3, 2, Up, true)]);
        let kinds: Vec<_> = changes(Some(&a), &b)
            .iter()
            .map(|c| match c {
                Change::New(_) => 'n',
                Change::Gone(_) => 'g',
                Change::Status(..) => 's',
                Change::Reachable(..) => 'r',
            })
            .collect();
        assert_eq!(kinds.iter().collect::<String>(), "gsrngn");
    }

    #[test]
    fn two_sides_that_both_live_are_caught() {
        use MemberStatus::Up;
        let generation = |id: NodeId| Some((0, id.incarnation() as u32));
        let both = view(&[(0, 1, Up, true), (1, 1, Up, true)]);
        let (left, right) = (view(&[(0, 1, Up, true)]), view(&[(1, 1, Up, true)]));
        let one_of = |view: &ClusterView| view.members.iter().next().unwrap().id;
        let (one, other) = (one_of(&left), one_of(&right));
        let (mut a, mut b) = (Observed::default(), Observed::default());
        for (o, mine) in [(&mut a, &left), (&mut b, &both)] {
            assert_eq!(o.step(&changes(None, &both), generation), None);
            assert_eq!(o.step(&changes(Some(&both), mine), generation), None);
        }
        assert!(a.split_from(one, &b, other).is_none(), "one of them removed the other");
        assert_eq!(b.step(&changes(Some(&both), &right), generation), None);
        assert_eq!(a.split_from(one, &b, other).unwrap().0, "M7");
    }

    #[test]
    fn two_coordinators_in_one_term_are_caught() {
        let mut t = Terms::default();
        assert_eq!(t.acted(1, Term(1), 0), None);
        assert_eq!(t.acted(1, Term(2), 1), None);
        assert_eq!(t.acted(1, Term(1), 1).unwrap().invariant, "C1");
    }

    /// A core that is awake all the time, whether its clock stands or goes on by a hair, against one that works hard.
    #[test]
    fn a_core_that_never_rests_is_caught() {
        for step in [0u64, 1, 10_000] {
            let mut w = Wakes::default();
            let found = (0..200_000u64).find_map(|n| w.woke(3, 7_000_000_000 + n * step));
            assert_eq!(found.map(|f| (f.invariant, f.lives)), Some(("R3", vec![3])), "{step}");
        }
        let mut w = Wakes::default();
        assert!((0..200_000u64).all(|n| w.woke(3, n * 100_000).is_none()), "ten thousand times a second");
    }
}
