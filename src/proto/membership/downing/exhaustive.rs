//! Every strategy against every split of a small cluster: two sides never live.
//!
//! A case is a cluster of which each member is joining, up, leaving or exiting, split in any way into groups that hear themselves only, while
//! at most one change is under way that not everybody has heard of: a join, a leave, or what the leader of the whole did last before the
//! split. Who has heard of it: the one who made it, or with the group's leader, or with the whole group. With up to four members the groups
//! come from every pattern of one-way cuts instead, where two members hear each other if neither way is cut.
//!
//! Each group then does as the resolver does, round by round: who must stop stops and is out of reach from then on, who is not the leader
//! waits. A group lives once its leader downs the others.

use std::collections::BTreeMap;

use super::{Decision, Strategy, Voter};
use crate::{NodeAddr, NodeId, proto::membership::MemberStatus};

/// Most members of a check.
pub const NODES_MAX: usize = 7;

/// What a check of one strategy came to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DowningCheck {
    /// The strategy, with what it was told.
    pub strategy: String,
    /// Members of the largest cluster.
    pub nodes: usize,
    /// Cases that were run.
    pub cases: u64,
    /// Cases in which two sides lived.
    pub two_lived: u64,
    /// Cases in which none lived.
    pub none_lived: u64,
    /// The first case in which two sides lived, in words.
    pub first: Option<String>,
}

/// Checks every strategy with clusters of up to `nodes` members (at most [`NODES_MAX`]).
pub fn check_all(nodes: usize) -> Vec<DowningCheck> {
    all(nodes.clamp(1, NODES_MAX)).into_iter().map(|(name, strategy)| check_one(nodes, name, &strategy)).collect()
}

fn check_one(nodes: usize, name: String, strategy: &Strategy) -> DowningCheck {
    let by_age = matches!(strategy, Strategy::KeepOldest { .. });
    check(name, nodes.clamp(1, NODES_MAX), by_age, strategy.stops_each(), &|voters, leads| strategy.decide(voters, leads))
}

/// Every strategy, with everything that it can be told where there are so many members.
fn all(nodes: usize) -> Vec<(String, Strategy)> {
    let mut strategies = vec![
        ("keep-majority".to_owned(), Strategy::KeepMajority),
        ("down-all".to_owned(), Strategy::DownAll),
        ("keep-oldest".to_owned(), Strategy::KeepOldest { down_if_alone: false }),
        ("keep-oldest, down_if_alone".to_owned(), Strategy::KeepOldest { down_if_alone: true }),
    ];
    strategies.extend((1..=nodes).map(|n| (format!("static-quorum of {n}"), Strategy::StaticQuorum(n))));
    strategies.extend((0..nodes).map(|n| (format!("keep-referee, member {n}"), Strategy::KeepReferee(addr(n)))));
    strategies
}

/// One strategy. `by_age`: it looks at who is the oldest. `stops_each`: whoever finds that no side may live stops without word of a leader.
fn check(strategy: String, nodes: usize, by_age: bool, stops_each: bool, decide: &dyn Fn(&[Voter], bool) -> Decision) -> DowningCheck {
    let mut check = DowningCheck { strategy, nodes, cases: 0, two_lived: 0, none_lived: 0, first: None };
    for n in 1..=nodes {
        let splits = splits(n);
        for statuses in all_statuses(n) {
            // The first, one in the middle, the last by address.
            for oldest in if by_age { vec![0, n / 2, n - 1] } else { vec![0] } {
                let before = members(&statuses, oldest);
                for (groups, &weight) in &splits {
                    Run { before: &before, groups, weight, stops_each, decide, check: &mut check }.changes();
                }
            }
        }
    }
    check
}

fn addr(n: usize) -> NodeAddr {
    NodeAddr::new("n", 1 + n as u16)
}

/// Joining, up, leaving and exiting in every combination with somebody who counts.
fn all_statuses(n: usize) -> impl Iterator<Item = Vec<MemberStatus>> {
    use MemberStatus::{Exiting, Joining, Leaving, Up};
    // Beyond four, members on their way out are the leaving ones: 4^7 combinations would take hours.
    let kinds: &[MemberStatus] = if n <= 4 { &[Up, Joining, Leaving, Exiting] } else { &[Up, Joining, Leaving] };
    let combinations = kinds.len().pow(n as u32);
    let one = move |mut code: usize| -> Vec<MemberStatus> {
        let mut next = || {
            let kind = kinds[code % kinds.len()];
            code /= kinds.len();
            kind
        };
        (0..n).map(|_| next()).collect()
    };
    (0..combinations).map(one).filter(|statuses| statuses.iter().any(|&s| super::super::leader::counts(s)))
}

/// Members in address order; the one at `oldest` is the oldest, those behind it follow.
fn members(statuses: &[MemberStatus], oldest: usize) -> Vec<Voter> {
    let n = statuses.len();
    let member = |(i, &status): (usize, &MemberStatus)| {
        let addr = addr(i);
        let up_number = if status == MemberStatus::Joining { 0 } else { ((i + n - oldest) % n) as u32 + 1 };
        Voter { id: NodeId::new(&addr, 1), addr, status, up_number, reachable: true }
    };
    statuses.iter().enumerate().map(member).collect()
}

/// Ways to fall apart: the group of each member, and in how many ways that comes about. Up to four members by every pattern of one-way cuts,
/// beyond by every partition.
fn splits(n: usize) -> BTreeMap<Vec<u8>, u64> {
    let mut ways = BTreeMap::new();
    if n <= 4 {
        let pairs: Vec<(usize, usize)> = (0..n).flat_map(|a| (0..n).filter(move |&b| b != a).map(move |b| (a, b))).collect();
        for cut in 0..1usize << pairs.len() {
            *ways.entry(components(n, &pairs, cut)).or_default() += 1;
        }
        return ways;
    }
    let mut all: Vec<Vec<u8>> = vec![vec![]];
    for _ in 0..n {
        let longer = |groups: &Vec<u8>| {
            let groups = groups.clone();
            let next = groups.iter().max().map_or(0, |g| g + 1);
            (0..=next).map(move |g| groups.iter().copied().chain([g]).collect())
        };
        all = all.iter().flat_map(longer).collect();
    }
    all.into_iter().map(|groups| (groups, 1)).collect()
}

/// Groups of those that hear each other, directly or through others.
fn components(n: usize, pairs: &[(usize, usize)], cut: usize) -> Vec<u8> {
    let works = |a: usize, b: usize| pairs.iter().enumerate().all(|(i, &pair)| cut >> i & 1 == 0 || (pair != (a, b) && pair != (b, a)));
    let mut groups: Vec<u8> = (0..n as u8).collect();
    for _ in 0..n {
        for a in 0..n {
            for b in 0..n {
                if a != b && works(a, b) {
                    groups[a] = groups[a].min(groups[b]);
                }
            }
        }
    }
    groups
}

/// All cases of one cluster that falls apart in one way.
struct Run<'a> {
    before: &'a [Voter],
    groups: &'a [u8],
    weight: u64,
    stops_each: bool,
    decide: &'a dyn Fn(&[Voter], bool) -> Decision,
    check: &'a mut DowningCheck,
}

impl Run<'_> {
    /// Nothing under way, and each change that may be.
    fn changes(&mut self) {
        let n = self.before.len();
        self.case(&mut self.before.to_vec(), 0, "nothing under way");
        for i in 0..n {
            if self.before[i].status == MemberStatus::Up {
                let mut after = self.before.to_vec();
                after[i].status = MemberStatus::Leaving;
                self.heard(after, i, "a leave");
            }
            // Somebody new, whom only this group has admitted.
            let mut after = self.before.to_vec();
            let addr = addr(n);
            after.push(Voter { id: NodeId::new(&addr, 1), addr, status: MemberStatus::Joining, up_number: 0, reachable: true });
            self.heard(after, i, "a join");
        }
        let Some(leader) = leader(self.before, |_| true) else { return };
        let mut after = self.before.to_vec();
        let mut last = after.iter().map(|v| v.up_number).max().unwrap_or(0);
        for v in &mut after {
            match v.status {
                MemberStatus::Joining => {
                    last += 1;
                    (v.status, v.up_number) = (MemberStatus::Up, last);
                }
                MemberStatus::Leaving => v.status = MemberStatus::Exiting,
                _ => {}
            }
        }
        self.heard(after, leader, "joiners went up and leavers exit");
        let mut after = self.before.to_vec();
        after.retain(|v| v.status != MemberStatus::Exiting);
        if after.len() < n {
            self.heard(after, leader, "the exiting are removed");
        }
    }

    /// The change made by `origin` has reached itself, the leader of its group too, or all of its group.
    fn heard(&mut self, mut after: Vec<Voter>, origin: usize, what: &str) {
        let all = self.side(origin);
        let head = leader(self.before, |i| all >> i & 1 == 1).map_or(0, |i| 1u32 << i);
        let mut sets = vec![1u32 << origin, 1 << origin | head, all];
        sets.sort_unstable();
        sets.dedup();
        for set in sets {
            self.case(&mut after, set, what);
        }
    }

    fn side(&self, of: usize) -> u32 {
        (0..self.groups.len()).filter(|&i| self.groups[i] == self.groups[of]).fold(0, |set, i| set | 1 << i)
    }

    /// One case: members in `heard` know `after`, the others `before`.
    fn case(&mut self, after: &mut [Voter], heard: u32, what: &str) {
        self.check.cases += self.weight;
        let n = self.before.len();
        let mut old = self.before.to_vec();
        // Where the members of the newer view stand in the older one; the new one runs beside whoever admitted it.
        let places: Vec<usize> = after.iter().map(|v| old.iter().position(|b| b.id == v.id).unwrap_or(n)).collect();
        let same: Vec<usize> = (0..n).collect();
        let mut running = (1u32 << n) - 1;
        let mut lives: Option<u8> = None;
        for _ in 0..=n {
            let round = running;
            for i in (0..n).filter(|i| round >> i & 1 == 1) {
                let side = self.side(i);
                let (view, places) = if heard >> i & 1 == 1 { (&mut *after, &places) } else { (&mut old[..], &same) };
                for (v, &place) in view.iter_mut().zip(places) {
                    v.reachable = place == n || (side & round) >> place & 1 == 1;
                }
                if view.iter().all(|v| v.reachable) {
                    continue;
                }
                let leads = leader(view, |at| view[at].reachable).is_some_and(|at| places[at] == i);
                match (self.decide)(view, leads) {
                    Decision::DownMine => running &= !(1 << i),
                    // Its leader tells the whole side.
                    Decision::DownAll if leads => running &= !side,
                    Decision::DownAll if self.stops_each => running &= !(1 << i),
                    Decision::DownOthers if leads => match lives {
                        Some(group) if group != self.groups[i] => return self.two_lived(heard, what),
                        _ => lives = Some(self.groups[i]),
                    },
                    Decision::DownAll | Decision::DownOthers | Decision::Nothing => {}
                }
            }
            if running == round {
                break;
            }
        }
        if lives.is_none() && self.groups.iter().any(|g| *g != self.groups[0]) {
            self.check.none_lived += self.weight;
        }
    }

    fn two_lived(&mut self, heard: u32, what: &str) {
        self.check.two_lived += self.weight;
        let (before, groups) = (self.before, self.groups);
        self.check.first.get_or_insert_with(|| {
            let members: Vec<String> = before.iter().map(|v| format!("{} {} {}", v.addr, v.status.name(), v.up_number)).collect();
            format!("{}; groups {groups:?}; {what}, heard by {heard:#b}", members.join(", "))
        });
    }
}

/// Who leads those members that fit.
fn leader(members: &[Voter], fits: impl Fn(usize) -> bool) -> Option<usize> {
    let first = |counts: bool| (0..members.len()).find(|&i| fits(i) && (!counts || members[i].counts()));
    first(true).or_else(|| first(false))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_sides_never_live_with_up_to_five_members() {
        for (name, strategy) in all(5) {
            // A build without optimisation has the time for some with five; the example `downing_check` runs all with as many as it is told.
            let nodes = if ["keep-majority", "static-quorum of 3"].contains(&name.as_str()) { 5 } else { 4 };
            let check = check_one(nodes, name, &strategy);
            assert!(check.cases > 100_000, "{check:?}");
            assert_eq!((check.two_lived, &check.first), (0, &None), "{check:?}");
        }
    }

    #[test]
    fn planted_wrong_strategies_are_found() {
        let count = |voters: &[Voter], reachable: bool| voters.iter().filter(|v| v.counts() && v.reachable == reachable).count();
        // In a tie both live.
        let half = |voters: &[Voter], _: bool| match count(voters, true) >= count(voters, false) {
            true => Decision::DownOthers,
            false => Decision::DownMine,
        };
        let found = check("half is enough".into(), 3, false, false, &half);
        assert!(found.two_lived > 0 && found.first.is_some(), "{found:?}");
        // Joins and leaves that the other side may have seen are not weighed.
        let rash = |voters: &[Voter], _: bool| Strategy::KeepMajority.decide(voters, false);
        let found = check("majority of what is known".into(), 4, false, false, &rash);
        assert!(found.two_lived > 0, "{found:?}");
        assert!(found.first.as_ref().is_some_and(|case| case.contains("joiners went up") || case.contains("leave")), "{found:?}");
    }
}
