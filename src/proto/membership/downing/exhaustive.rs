//! Every strategy against every split of a small cluster: two sides never live.
//!
//! A case is a cluster of which each member is joining, up, leaving or exiting, split in any way into groups that hear themselves only, while
//! one change is under way that not everybody has heard of: a join, a leave, or what the leader of the whole did last before the split. With
//! up to four members two such changes are under way at once, and the groups come from every pattern of one-way cuts, where two members hear
//! each other if neither way is cut. The leader acts again only once all have heard what it did before, so there is one action of it.
//!
//! Who has heard of a change, beside the one who made it: with up to five members any of the others, on whatever side. Beyond that every
//! other side as a whole or not at all, and on the side of the change nobody else, the leader of that side, or all of it: a side whose
//! picture stands still has had its rounds of gossip, so its members' views differ by a step at most.
//!
//! With up to five members the change may also be that the leader of a side has found that this side lives without all who are out of reach: some of
//! them, or all, are down, and its joiners are up. Then all fall apart anew, but those who are down, who stay where they are.
//!
//! Each group then does as the resolver does, round by round: who must stop stops and is out of reach from then on, who is not the leader
//! waits. A group lives once its leader downs the others. Where a lease decides, each group in turn is the one that gets it, or none is.

use std::collections::BTreeMap;

use super::{Decision, Strategy, Voter};
use crate::{NodeAddr, NodeId, proto::membership::MemberStatus};

/// Most members of a check.
pub const NODES_MAX: usize = 7;

/// Most members with two changes under way.
const PAIRS_MAX: usize = 4;
/// Most members of which any may have heard of a change.
const ANY_HEARD_MAX: usize = 5;

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

/// A check of one strategy that is still to be run.
pub type PendingCheck = Box<dyn FnOnce() -> DowningCheck + Send>;

/// Checks of every strategy with clusters of up to `nodes` members (at most [`NODES_MAX`]), one each, to be run in any order or side by side.
pub fn checks(nodes: usize) -> Vec<PendingCheck> {
    let nodes = nodes.clamp(1, NODES_MAX);
    let pending = |(name, strategy)| -> PendingCheck { Box::new(move || check_one(nodes, name, &strategy)) };
    all(nodes).into_iter().map(pending).collect()
}

/// Wrong strategies, each of which must be found to let two sides live: what a check that finds nothing is worth.
pub fn planted() -> Vec<DowningCheck> {
    let count = |voters: &[Voter], reachable: bool| voters.iter().filter(|v| v.counts() && v.reachable == reachable).count();
    let half = |voters: &[Voter], _: bool| match count(voters, true) >= count(voters, false) {
        true => Decision::DownOthers,
        false => Decision::DownMine,
    };
    // Joins and leaves that the other side may have seen are not weighed.
    let rash = |voters: &[Voter], _: bool| Strategy::KeepMajority.decide(voters, false);
    // The larger side does not wait for the lease that the smaller one may have got meanwhile.
    let proud = |voters: &[Voter], _: bool| match Strategy::LeaseMajority.decide(voters, true) {
        Decision::AskLease { late: false } => Decision::DownOthers,
        other => other,
    };
    vec![
        check("wrong: half is enough".into(), 3, Rules::PLANTED, &half),
        check("wrong: majority of what is known".into(), 3, Rules::PLANTED, &rash),
        check("wrong: the larger side needs no lease".into(), 3, Rules::PLANTED, &proud),
        check("wrong: any leader raises joiners".into(), 4, Rules { first_raises: false, ..Rules::PLANTED }, &|voters, leads| {
            Strategy::KeepMajority.decide(voters, leads)
        }),
    ]
}

fn check_one(nodes: usize, name: String, strategy: &Strategy) -> DowningCheck {
    let by_age = matches!(strategy, Strategy::KeepOldest { .. });
    check(name, nodes, Rules { by_age, stops_each: strategy.stops_each(), ..Rules::PLAIN }, &|voters, leads| strategy.decide(voters, leads))
}

/// Every strategy, with everything that it can be told where there are so many members.
fn all(nodes: usize) -> Vec<(String, Strategy)> {
    let mut strategies = vec![
        ("keep-majority".to_owned(), Strategy::KeepMajority),
        ("down-all".to_owned(), Strategy::DownAll),
        ("lease-majority".to_owned(), Strategy::LeaseMajority),
        ("keep-oldest".to_owned(), Strategy::KeepOldest { down_if_alone: false }),
        ("keep-oldest, down_if_alone".to_owned(), Strategy::KeepOldest { down_if_alone: true }),
    ];
    strategies.extend((1..=nodes).map(|n| (format!("static-quorum of {n}"), Strategy::StaticQuorum(n))));
    strategies.extend((0..nodes).map(|n| (format!("keep-referee, member {n}"), Strategy::KeepReferee(addr(n)))));
    strategies
}

/// What holds beside a strategy's own answer.
#[derive(Copy, Clone)]
struct Rules {
    /// It looks at who is the oldest.
    by_age: bool,
    /// Whoever finds that no side may live stops without word of a leader.
    stops_each: bool,
    /// Only who leads the whole raises joiners while somebody is out of reach.
    first_raises: bool,
    /// One cluster in which two sides live is enough.
    one_is_enough: bool,
}

impl Rules {
    const PLAIN: Self = Self { by_age: false, stops_each: false, first_raises: true, one_is_enough: false };
    const PLANTED: Self = Self { one_is_enough: true, ..Self::PLAIN };
}

/// One strategy.
fn check(strategy: String, nodes: usize, rules: Rules, decide: &dyn Fn(&[Voter], bool) -> Decision) -> DowningCheck {
    let mut check = DowningCheck { strategy, nodes, cases: 0, two_lived: 0, none_lived: 0, first: None };
    for n in 1..=nodes {
        let splits = splits(n);
        for statuses in all_statuses(n) {
            if rules.one_is_enough && check.two_lived > 0 {
                return check;
            }
            // The first, one in the middle, the last by address.
            for oldest in if rules.by_age { vec![0, n / 2, n - 1] } else { vec![0] } {
                let before = members(&statuses, oldest);
                for (groups, &weight) in &splits {
                    Run { before: &before, groups, weight, rules, decide, check: &mut check }.changes();
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
    (0..combinations).map(one).filter(|statuses| statuses.iter().any(|&s| matches!(s, Up | Leaving)))
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

/// Something that happened to the membership just before the split.
struct Change {
    what: &'static str,
    by: usize,
    /// Members with another status, and the number with which they are up.
    raised: Vec<(usize, MemberStatus, u32)>,
    /// Members that are gone.
    removed: Vec<usize>,
    /// The one who made it has admitted somebody.
    admits: bool,
    /// Only the leader does it.
    leads: bool,
}

/// A member's view: voters, and for each the member beside which it runs; who was admitted runs as long as the split lasts.
#[derive(Clone)]
struct View {
    voters: Vec<Voter>,
    at: Vec<usize>,
}

/// All cases of one cluster that falls apart in one way.
struct Run<'a> {
    before: &'a [Voter],
    groups: &'a [u8],
    weight: u64,
    rules: Rules,
    decide: &'a dyn Fn(&[Voter], bool) -> Decision,
    check: &'a mut DowningCheck,
}

impl Run<'_> {
    /// Nothing under way, and each change, or each two, that may be.
    fn changes(&mut self) {
        let base = View { voters: self.before.to_vec(), at: (0..self.before.len()).collect() };
        self.cases(&mut [base.clone()], &[], &[]);
        let changes = self.all_changes();
        let n = self.before.len();
        for a in &changes {
            let mut views = [base.clone(), self.view(&[a])];
            for heard in if n <= ANY_HEARD_MAX { self.any_heard(a.by) } else { self.sides_heard(a.by) } {
                self.cases(&mut views, &[heard], &[a]);
            }
        }
        if n > PAIRS_MAX {
            return;
        }
        for (i, a) in changes.iter().enumerate() {
            for b in changes[i + 1..].iter().filter(|b| !(a.leads && b.leads)) {
                let mut views = [base.clone(), self.view(&[a]), self.view(&[b]), self.view(&[a, b])];
                for heard_a in self.any_heard(a.by) {
                    for heard_b in self.any_heard(b.by) {
                        self.cases(&mut views, &[heard_a, heard_b], &[a, b]);
                    }
                }
            }
        }
    }

    fn all_changes(&self) -> Vec<Change> {
        let mut all = vec![];
        for (i, v) in self.before.iter().enumerate() {
            if v.status <= MemberStatus::Up {
                let raised = vec![(i, MemberStatus::Leaving, v.up_number)];
                all.push(Change { what: "a leave", by: i, raised, removed: vec![], admits: false, leads: false });
            }
            all.push(Change { what: "a join", by: i, raised: vec![], removed: vec![], admits: true, leads: false });
        }
        let Some(leader) = leader(self.before, |_| true) else { return all };
        let mut last = self.before.iter().map(|v| v.up_number).max().unwrap_or(0);
        let mut raised = vec![];
        for (i, v) in self.before.iter().enumerate() {
            match v.status {
                MemberStatus::Joining => {
                    last += 1;
                    raised.push((i, MemberStatus::Up, last));
                }
                MemberStatus::Leaving => raised.push((i, MemberStatus::Exiting, v.up_number)),
                _ => {}
            }
        }
        let removed: Vec<usize> = (0..self.before.len()).filter(|&i| self.before[i].status == MemberStatus::Exiting).collect();
        let act = |what, raised, removed| Change { what, by: leader, raised, removed, admits: false, leads: true };
        if !raised.is_empty() && !removed.is_empty() {
            all.push(act("joiners went up, leavers exit and the exiting are removed", raised.clone(), removed.clone()));
        }
        if !raised.is_empty() {
            all.push(act("joiners went up and leavers exit", raised, vec![]));
        }
        if !removed.is_empty() {
            all.push(act("the exiting are removed", vec![], removed));
        }
        if self.before.len() <= ANY_HEARD_MAX {
            for lost in 1..1u32 << self.before.len() {
                all.extend((0..=lost).filter(|down| down & lost == *down).filter_map(|down| self.going_on(lost, down)));
            }
        }
        all
    }

    /// What the leader of those who are not `lost` does if they live without them: some are `down`, and joiners are up. None if it does not, or if
    /// somebody who is down is beside one of the others now.
    fn going_on(&self, lost: u32, down: u32) -> Option<Change> {
        let has = |set: u32, i: usize| set >> i & 1 == 1;
        let all = 0..self.before.len();
        if all.clone().any(|i| has(down, i) && self.side(i) & !down != 0) {
            return None;
        }
        let by = leader(self.before, |i| !has(lost, i))?;
        if self.rules.first_raises && leader(self.before, |_| true) != Some(by) {
            return None;
        }
        let mut voters = self.before.to_vec();
        for (i, voter) in voters.iter_mut().enumerate() {
            voter.reachable = !has(lost, i);
        }
        // Whoever holds a lease lives with any members.
        if !matches!((self.decide)(&voters, true), Decision::DownOthers | Decision::AskLease { .. }) {
            return None;
        }
        let last = voters.iter().map(|v| v.up_number).max().unwrap_or(0);
        let joiners = all.clone().filter(|&i| !has(lost, i) && voters[i].status == MemberStatus::Joining);
        let raised = joiners.zip(last + 1..).map(|(i, number)| (i, MemberStatus::Up, number)).collect();
        let removed = all.filter(|&i| has(down, i)).collect();
        Some(Change { what: "some are down and joiners went up", by, raised, removed, admits: false, leads: true })
    }

    /// The cluster in the eyes of those who have heard of these changes.
    fn view(&self, changes: &[&Change]) -> View {
        let mut view = View { voters: self.before.to_vec(), at: (0..self.before.len()).collect() };
        for change in changes {
            for &(i, status, up_number) in &change.raised {
                let v = &mut view.voters[i];
                (v.status, v.up_number) = (v.status.max(status), v.up_number.max(up_number));
            }
        }
        for change in changes.iter().filter(|c| c.admits) {
            let addr = addr(view.voters.len());
            view.voters.push(Voter { id: NodeId::new(&addr, 1), addr, status: MemberStatus::Joining, up_number: 0, reachable: true });
            view.at.push(ADMITTED + change.by);
        }
        let gone: Vec<usize> = changes.iter().flat_map(|c| c.removed.iter().copied()).collect();
        let mut kept = view.at.iter().map(|at| !gone.contains(at));
        view.voters.retain(|_| kept.next().unwrap_or(true));
        view.at.retain(|at| !gone.contains(at));
        view
    }

    /// Every set of members with that one in it.
    fn any_heard(&self, by: usize) -> Vec<u32> {
        (0..1u32 << self.before.len()).filter(|set| set >> by & 1 == 1).collect()
    }

    /// Every other side as a whole or not, and of its own side itself, the leader too, or all.
    fn sides_heard(&self, by: usize) -> Vec<u32> {
        let mine = self.side(by);
        let head = leader(self.before, |i| mine >> i & 1 == 1).map_or(0, |i| 1u32 << i);
        let mut sets = vec![1u32 << by, 1 << by | head, mine];
        sets.sort_unstable();
        sets.dedup();
        let mut others: Vec<u32> = (0..self.before.len()).map(|i| self.side(i)).filter(|side| *side != mine).collect();
        others.sort_unstable();
        others.dedup();
        for side in others {
            sets.extend(sets.clone().iter().map(|set| set | side));
        }
        sets
    }

    fn side(&self, of: usize) -> u32 {
        (0..self.groups.len()).filter(|&i| self.groups[i] == self.groups[of]).fold(0, |set, i| set | 1 << i)
    }

    /// One case, or one for each side that may get the lease if somebody asks for it.
    fn cases(&mut self, views: &mut [View], heard: &[u32], changes: &[&Change]) {
        if !self.case(views, heard, changes, None) {
            return;
        }
        let mut sides = self.groups.to_vec();
        sides.sort_unstable();
        sides.dedup();
        for side in sides {
            self.case(views, heard, changes, Some(side));
        }
    }

    /// One case: view `k` is that of the members who have heard of the changes in the bits of `k`. `given`: the group that gets the lease.
    /// True if somebody asked for it.
    fn case(&mut self, views: &mut [View], heard: &[u32], changes: &[&Change], given: Option<u8>) -> bool {
        self.check.cases += self.weight;
        let n = self.before.len();
        let mut running = (1u32 << n) - 1;
        let (mut lives, mut asked, mut holder): (Option<u8>, bool, Option<usize>) = (None, false, None);
        for _ in 0..=n {
            let round = running;
            for i in (0..n).filter(|i| round >> i & 1 == 1) {
                let side = self.side(i);
                let knows = heard.iter().enumerate().fold(0, |k, (bit, set)| k | ((set >> i & 1) as usize) << bit);
                let view = &mut views[knows];
                for (v, &at) in view.voters.iter_mut().zip(&view.at) {
                    v.reachable = if at >= ADMITTED { side >> (at - ADMITTED) & 1 == 1 } else { (side & round) >> at & 1 == 1 };
                }
                if view.voters.iter().all(|v| v.reachable) {
                    continue;
                }
                let view = &views[knows];
                let leads = leader(&view.voters, |k| view.voters[k].reachable).is_some_and(|k| view.at[k] == i);
                let mut decision = (self.decide)(&view.voters, leads);
                if let (Decision::AskLease { .. }, true) = (decision, leads) {
                    asked = true;
                    // Whoever of the group asks first holds it, and it is held in the name of one node.
                    let mine = given == Some(self.groups[i]) && *holder.get_or_insert(i) == i;
                    decision = if mine { Decision::DownOthers } else { Decision::DownAll };
                }
                match decision {
                    Decision::DownMine => running &= !(1 << i),
                    // Its leader tells the whole side.
                    Decision::DownAll if leads => running &= !side,
                    Decision::DownAll if self.rules.stops_each => running &= !(1 << i),
                    Decision::DownOthers if leads => match lives {
                        Some(group) if group != self.groups[i] => {
                            self.two_lived(heard, changes);
                            return asked;
                        }
                        _ => lives = Some(self.groups[i]),
                    },
                    Decision::DownAll | Decision::DownOthers | Decision::Nothing | Decision::AskLease { .. } => {}
                }
            }
            if running == round {
                break;
            }
        }
        if lives.is_none() && self.groups.iter().any(|g| *g != self.groups[0]) {
            self.check.none_lived += self.weight;
        }
        asked
    }

    fn two_lived(&mut self, heard: &[u32], changes: &[&Change]) {
        self.check.two_lived += self.weight;
        let (before, groups) = (self.before, self.groups);
        self.check.first.get_or_insert_with(|| {
            let members: Vec<String> = before.iter().map(|v| format!("{} {} {}", v.addr, v.status.name(), v.up_number)).collect();
            let under_way = |(change, set): (&&Change, &u32)| format!("{} by member {}, heard by {set:#b}", change.what, change.by);
            let mut changes: Vec<String> = changes.iter().zip(heard).map(under_way).collect();
            if changes.is_empty() {
                changes.push("nothing under way".into());
            }
            format!("{}; groups {groups:?}; {}", members.join(", "), changes.join("; "))
        });
    }
}

/// Place of somebody new beside the member who admitted it.
const ADMITTED: usize = 100;

/// Who leads those members that fit.
fn leader(members: &[Voter], fits: impl Fn(usize) -> bool) -> Option<usize> {
    let first = |counts: bool| (0..members.len()).find(|&i| fits(i) && (!counts || members[i].counts()));
    first(true).or_else(|| first(false))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_sides_never_live_with_up_to_three_members() {
        // A build without optimisation has the time for three; the example `downing_check` takes as many as it is told, `.ci/run` five.
        for (name, strategy) in all(3) {
            let check = check_one(3, name, &strategy);
            assert!(check.cases > 50_000, "{check:?}");
            assert_eq!((check.two_lived, &check.first), (0, &None), "{check:?}");
        }
    }

    #[test]
    fn planted_wrong_strategies_are_found() {
        let found = planted();
        assert!(found.iter().all(|check| check.two_lived > 0 && check.first.is_some()), "{found:?}");
        assert!(found[1].first.as_ref().is_some_and(|case| case.contains("joiners went up") || case.contains("leave")), "{found:?}");
    }
}
