//! What the nodes show of the membership, and how long it took.

use std::{
    collections::{BTreeMap, BTreeSet},
    rc::Rc,
    sync::Arc,
};

use super::{
    checks::{Change, changes},
    result::{OverNodes, Spread, quantile},
};
use crate::{
    NodeId,
    proto::membership::{ClusterView, MemberStatus},
};

/// A crash done by the scenario.
#[derive(Debug)]
struct Crash {
    id: NodeId,
    at: u64,
    /// Lives that there had been, which are numbered by birth: later ones do not judge it.
    lives: u32,
    /// When each live observer's view first showed it unreachable, down or gone / gone.
    marked: BTreeMap<u32, u64>,
    removed: BTreeMap<u32, u64>,
}

/// One life as an observer.
#[derive(Debug, Default)]
struct Observer {
    view: Option<Arc<ClusterView>>,
    members: u64,
    ups: u64,
    up_count: u32,
    changes: u64,
    flips: BTreeMap<NodeId, u64>,
    /// Whom it holds unreachable, as far as that counts: its own links had no fault when it began to.
    accused: BTreeSet<NodeId>,
    /// Whom it holds unreachable.
    unreachable: BTreeSet<NodeId>,
}

/// Live observers that see the same members up.
#[derive(Debug, Default)]
struct Alike {
    observers: u32,
    up_count: u32,
    /// Of one of them.
    view: Option<Arc<ClusterView>>,
    /// Whether all that live are up there, and of which set of live ones that was found out.
    whole: Option<(u64, bool)>,
}

/// What the world knows about a subject at the moment.
#[derive(Copy, Clone, Debug)]
pub(super) struct Subject {
    pub life: u32,
    /// Running, not told to leave, not downed by the scenario.
    pub live: bool,
    /// Running, not paused, no link fault on it.
    pub blameless: bool,
    /// It was told to leave, or another life replaced it.
    pub expected_to_go: bool,
    /// Some fault was laid on its links: what it alone holds is not what the cluster holds.
    pub touched: bool,
}

/// All measurements of membership.
#[derive(Debug, Default)]
pub(super) struct Measure {
    observers: BTreeMap<u32, Observer>,
    /// Lives that are live in the sense of the contract, and their ids.
    live: BTreeMap<u32, NodeId>,
    /// Counts changes of `live`.
    live_version: u64,
    /// Live observers by what they see: all members with their status, and who is up.
    by_members: BTreeMap<u64, u32>,
    by_ups: BTreeMap<u64, Alike>,
    crashes: Vec<Crash>,
    crash_of: BTreeMap<NodeId, usize>,
    /// Views that hold a life unreachable.
    unreachable: BTreeMap<NodeId, u32>,
    first_action: Option<u64>,
    /// First nodes that are still to start: until then those that run are up everywhere now and then.
    to_start: u32,
    pub sizes: BTreeSet<u32>,
    pub false_unreachable: u64,
    pub false_removals: u64,
    removed: BTreeSet<NodeId>,
    judged: BTreeSet<NodeId>,
    changes_max: u64,
    flips_max: u64,
    dirty: bool,
    /// Live observers that hold somebody unreachable.
    holders: u32,
    pub all_reachable_since: Option<u64>,
    pub converged_since: Option<u64>,
    pub all_up_since: Option<u64>,
    pub ever_all_up: bool,
}

impl Measure {
    /// Changes of views count from the first action on, peaks once all are up that start by themselves.
    pub(super) fn new(first_action: Option<u64>, to_start: u32) -> Self {
        Self { first_action, to_start, ..Self::default() }
    }

    /// One of the first nodes had its start.
    pub(super) fn started(&mut self) {
        self.to_start -= 1;
        self.dirty = true;
    }

    /// A node's process began.
    pub(super) fn born(&mut self, life: u32, id: NodeId) {
        let new = Observer::default();
        self.count(&new, true);
        self.observers.insert(life, new);
        self.live.insert(life, id);
        self.live_version += 1;
        self.dirty = true;
    }

    /// A live observer sees what it sees, or no longer.
    fn count(&mut self, o: &Observer, sees: bool) {
        let members = self.by_members.entry(o.members).or_default();
        let alike = self.by_ups.entry(o.ups).or_default();
        let holds = u32::from(!o.unreachable.is_empty());
        self.holders = if sees { self.holders + holds } else { self.holders - holds };
        if sees {
            *members += 1;
            alike.observers += 1;
            alike.up_count = o.up_count;
            alike.view.clone_from(&o.view);
            return;
        }
        *members -= 1;
        alike.observers -= 1;
        if *members == 0 {
            self.by_members.remove(&o.members);
        }
        if alike.observers == 0 {
            self.by_ups.remove(&o.ups);
        }
    }

    /// A node is no longer live in the sense of the contract: told to leave, downed by the scenario, or gone.
    pub(super) fn not_live(&mut self, life: u32) {
        if self.live.remove(&life).is_some() {
            self.live_version += 1;
            self.dirty = true;
            if let Some(o) = self.observers.remove(&life) {
                self.count(&o, false);
                self.observers.insert(life, o);
            }
        }
    }

    /// A node that was taken for gone runs on.
    pub(super) fn live_again(&mut self, life: u32, id: NodeId) {
        if let Some(o) = self.observers.remove(&life) {
            self.count(&o, true);
            self.observers.insert(life, o);
            self.live.insert(life, id);
            self.live_version += 1;
            self.dirty = true;
        }
    }

    /// A process is gone, and its view with it.
    pub(super) fn gone(&mut self, life: u32) {
        self.not_live(life);
        if let Some(o) = self.observers.remove(&life) {
            self.keep_maxima(&o);
            for id in o.accused {
                self.mark(id, false);
            }
        }
    }

    /// Who holds it unreachable or down already, or has removed it, knows by then. Whom nobody shows any more, or yet, nobody has to find.
    pub(super) fn crashed(&mut self, id: NodeId, now: u64) {
        let lives = self.observers.last_key_value().map_or(0, |(life, _)| life + 1);
        let views = || {
            let others = self.live.keys().filter_map(|life| Some((*life, self.observers.get(life)?.view.as_ref()?)));
            others.filter(|(_, view)| view.me != id).map(|(life, view)| (life, view.member(id)))
        };
        let taken_out = self.removed.contains(&id) || views().all(|(_, member)| member.is_none());
        let mut crash = Crash { id, at: now, lives, marked: BTreeMap::new(), removed: BTreeMap::new() };
        for (life, member) in views() {
            let gone = taken_out && member.is_none();
            if gone {
                crash.removed.insert(life, now);
            }
            if gone || member.is_some_and(|m| !m.reachable || m.status == MemberStatus::Down) {
                crash.marked.insert(life, now);
            }
        }
        self.crash_of.insert(id, self.crashes.len());
        self.crashes.push(crash);
    }

    /// The view of that life, as it shows it.
    pub(super) fn view(&self, life: u32) -> Option<&Arc<ClusterView>> {
        self.observers.get(&life)?.view.as_ref()
    }

    /// A view changed; returns what. `subject` tells what the world knows of a member, `in_majority` whether that life, which is live, does
    /// not stand still and reaches a majority, which takes longer to find out.
    pub(super) fn saw(
        &mut self,
        life: u32,
        view: Arc<ClusterView>,
        now: u64,
        subject: impl Fn(NodeId) -> Option<Subject>,
        in_majority: impl Fn(u32) -> bool,
    ) -> Vec<Change> {
        let Some(mut o) = self.observers.remove(&life) else { return vec![] };
        let is_live = self.live.contains_key(&life);
        let changes = changes(o.view.as_deref(), &view);
        let touched = subject(view.me).is_some_and(|s| s.touched);
        let held = !o.unreachable.is_empty();
        let (mut members, mut ups, mut up_count) = (o.members, o.ups, o.up_count);
        for &change in &changes {
            let (id, was, is) = match change {
                Change::New(id) => (id, None, view.member(id).map(|m| m.status)),
                Change::Gone(id) => (id, o.view.as_ref().and_then(|v| v.member(id)).map(|m| m.status), None),
                Change::Status(id, was, is) => (id, Some(was), Some(is)),
                Change::Reachable(..) => continue,
            };
            let id = fold(id);
            let sum = |status: Option<MemberStatus>| status.map_or(0, |status| spread(id ^ (status as u64 + 1)));
            let up = |status: Option<MemberStatus>| status == Some(MemberStatus::Up);
            members = members.wrapping_add(sum(is)).wrapping_sub(sum(was));
            ups = ups.wrapping_add(if up(is) { spread(id) } else { 0 }).wrapping_sub(if up(was) { spread(id) } else { 0 });
            up_count = up_count + u32::from(up(is)) - u32::from(up(was));
        }
        for &change in &changes {
            match change {
                Change::New(_) => {}
                Change::Reachable(id, reachable) => {
                    if reachable {
                        o.unreachable.remove(&id)
                    } else {
                        o.unreachable.insert(id)
                    };
                    *o.flips.entry(id).or_default() += 1;
                    let first = if reachable {
                        o.accused.remove(&id) && self.mark(id, false)
                    } else {
                        !touched && o.accused.insert(id) && self.mark(id, true)
                    };
                    if !reachable {
                        self.crash_marked(id, life, now, is_live);
                        if first && subject(id).is_some_and(|s| s.blameless) {
                            self.false_unreachable += 1;
                        }
                    }
                }
                Change::Status(id, _, MemberStatus::Down) => {
                    self.crash_marked(id, life, now, is_live);
                    self.judge(id, &subject, &in_majority);
                }
                Change::Status(..) => {}
                Change::Gone(id) => {
                    o.unreachable.remove(&id);
                    if o.accused.remove(&id) {
                        self.mark(id, false);
                    }
                    self.crash_marked(id, life, now, is_live);
                    if let Some(c) = self.crash_of.get(&id)
                        && is_live
                    {
                        self.crashes[*c].removed.entry(life).or_insert(now);
                    }
                    if !self.removed.contains(&id) && subject(id).is_some_and(|s| !s.expected_to_go && s.life != life) {
                        self.removed.insert(id);
                    }
                    self.judge(id, &subject, &in_majority);
                }
            }
        }
        if ups != o.ups || up_count != o.up_count {
            // The first picture that a node has of the cluster changes none.
            if self.first_action.is_some_and(|t| now >= t) && o.up_count > 0 {
                o.changes += 1;
            }
            if up_count > 0 {
                self.sizes.insert(up_count);
            }
        }
        let holds = !o.unreachable.is_empty();
        if is_live && holds != held {
            self.holders = if holds { self.holders + 1 } else { self.holders - 1 };
            self.dirty = true;
        }
        let other = (members, ups) != (o.members, o.ups);
        self.dirty |= other;
        if is_live && other {
            self.count(&o, false);
        }
        (o.members, o.ups, o.up_count, o.view) = (members, ups, up_count, Some(view));
        if is_live && other {
            self.count(&o, true);
        }
        self.observers.insert(life, o);
        changes
    }

    /// Follows whether all live nodes agree, and whether all are up everywhere. Cheap when nothing changed.
    pub(super) fn settle(&mut self, now: u64) {
        if !std::mem::take(&mut self.dirty) {
            return;
        }
        let Self { live, live_version, by_members, by_ups, .. } = self;
        // Without a view nothing is seen, not even the node itself.
        let converged = by_members.len() == 1 && !by_members.contains_key(&0);
        let all_up = !live.is_empty()
            && by_ups.values().all(|alike| alike.up_count as usize >= live.len())
            && by_ups.values_mut().all(|alike| match alike.whole {
                Some((of, whole)) if of == *live_version => whole,
                _ => {
                    let up = |id: &NodeId| alike.view.as_ref().and_then(|v| v.member(*id)).is_some_and(|m| m.status == MemberStatus::Up);
                    let whole = live.values().all(up);
                    alike.whole = Some((*live_version, whole));
                    whole
                }
            });
        let since = |old: Option<u64>, yes: bool| if yes { old.or(Some(now)) } else { None };
        self.converged_since = since(self.converged_since, converged);
        self.all_reachable_since = since(self.all_reachable_since, all_up && self.holders == 0);
        self.all_up_since = since(self.all_up_since, all_up);
        self.ever_all_up |= all_up && self.to_start == 0;
    }

    /// Live members at the end: groups that are mutually up, and the size of the largest.
    pub(super) fn survivors(&self) -> (u64, u64) {
        let mut sets: BTreeMap<u64, Rc<BTreeSet<NodeId>>> = BTreeMap::new();
        let live: Vec<(&NodeId, Rc<BTreeSet<NodeId>>)> = self
            .live
            .iter()
            .filter_map(|(l, id)| {
                let o = self.observers.get(l)?;
                Some((id, Rc::clone(sets.entry(o.ups).or_insert_with(|| Rc::new(up_ids(o).collect())))))
            })
            .filter(|(id, ups)| ups.contains(id))
            .collect();
        let mut group: Vec<usize> = (0..live.len()).collect();
        for i in 0..live.len() {
            if group[i] != i {
                continue;
            }
            for j in i + 1..live.len() {
                if group[j] == j && live[i].1.contains(live[j].0) && live[j].1.contains(live[i].0) {
                    group[j] = i;
                }
            }
        }
        let mut sizes: BTreeMap<usize, u64> = BTreeMap::new();
        for g in group {
            *sizes.entry(g).or_default() += 1;
        }
        (sizes.len() as u64, sizes.values().copied().max().unwrap_or(0))
    }

    /// Members that every live view shows up, if all show the same number; none where nobody lives.
    pub(super) fn members_up(&self) -> Option<u64> {
        if self.live.is_empty() {
            return Some(0);
        }
        let mut counts = self.live.keys().filter_map(|l| self.observers.get(l)).map(|o| u64::from(o.up_count));
        let first = counts.next()?;
        counts.all(|c| c == first).then_some(first)
    }

    pub(super) fn removed(&self) -> u64 {
        self.removed.len() as u64
    }

    /// Most changes of the set of up members, and most changes of one member's reachability, in one node's view.
    pub(super) fn maxima(&self) -> (u64, u64) {
        let changes = self.observers.values().map(|o| o.changes).max().unwrap_or(0);
        let flips = self.observers.values().flat_map(|o| o.flips.values()).copied().max().unwrap_or(0);
        (changes.max(self.changes_max), flips.max(self.flips_max))
    }

    /// Detection, knowledge and removal of crashes, with the number of crashes for which each is missing.
    pub(super) fn crash_times(&self) -> [(Spread, u64); 3] {
        let (mut detect, mut known, mut removal) = (Vec::new(), Vec::new(), Vec::new());
        for c in &self.crashes {
            let seconds = |t: u64| (t - c.at) as f64 / 1e9;
            // Judged by those that were there at the crash: all that are there now, and what the others showed while they were live. Who does not show it, as it
            // came into the cluster behind its removal, has nothing to learn.
            let shows = |l: &u32| self.view(*l).is_some_and(|view| view.member(c.id).is_some());
            let last = |times: &BTreeMap<u32, u64>| {
                let waits = self.live.range(..c.lives).any(|(l, _)| !times.contains_key(l) && shows(l));
                times.range(..c.lives).map(|(_, t)| *t).max().filter(|_| !waits)
            };
            detect.extend(c.marked.values().min().map(|t| seconds(*t)));
            known.extend(last(&c.marked).map(seconds));
            removal.extend(last(&c.removed).map(seconds));
        }
        let missing = |xs: &[f64]| (self.crashes.len() - xs.len()) as u64;
        [&detect, &known, &removal].map(|xs| (Spread::of(xs.clone()), missing(xs)))
    }

    pub(super) fn live(&self) -> &BTreeMap<u32, NodeId> {
        &self.live
    }

    /// A member took itself out, or learned that it is out. Where all do, nobody is left to show it.
    pub(super) fn took_itself_out(&mut self, id: NodeId, subject: Option<Subject>, in_majority: bool) {
        if subject.is_some_and(|s| !s.expected_to_go) {
            self.removed.insert(id);
        }
        self.judge(id, &|_| subject, &|_| in_majority);
    }

    fn judge(&mut self, id: NodeId, subject: &impl Fn(NodeId) -> Option<Subject>, in_majority: &impl Fn(u32) -> bool) {
        if self.judged.insert(id)
            && let Some(s) = subject(id)
            && s.live
            && in_majority(s.life)
        {
            self.false_removals += 1;
        }
    }

    fn crash_marked(&mut self, id: NodeId, by: u32, now: u64, live: bool) {
        if let Some(c) = self.crash_of.get(&id)
            && live
        {
            self.crashes[*c].marked.entry(by).or_insert(now);
        }
    }

    /// Counts the views that hold it unreachable; true if this is the first one.
    fn mark(&mut self, id: NodeId, unreachable: bool) -> bool {
        let n = self.unreachable.entry(id).or_default();
        if unreachable {
            *n += 1;
        } else {
            *n = n.saturating_sub(1);
        }
        unreachable && *n == 1
    }

    fn keep_maxima(&mut self, o: &Observer) {
        self.changes_max = self.changes_max.max(o.changes);
        self.flips_max = self.flips_max.max(o.flips.values().copied().max().unwrap_or(0));
    }
}

fn up_ids(o: &Observer) -> impl Iterator<Item = NodeId> {
    o.view.iter().flat_map(|v| &v.members).filter(|m| m.status == MemberStatus::Up).map(|m| m.id)
}

fn fold(id: NodeId) -> u64 {
    id.addr_hash() ^ id.incarnation().rotate_left(32)
}

fn spread(x: u64) -> u64 {
    let x = (x ^ (x >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    let x = (x ^ (x >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    x ^ (x >> 32)
}

/// Bytes sent, per node.
#[derive(Debug, Default)]
pub(super) struct Traffic {
    nodes: Vec<Sent>,
    since: u64,
}

#[derive(Clone, Debug, Default)]
struct Sent {
    total: u64,
    second: u64,
    in_second: u64,
    peak: u64,
}

impl Traffic {
    pub(super) fn new(nodes: u32) -> Self {
        Self { nodes: vec![Sent::default(); nodes as usize], since: 0 }
    }

    pub(super) fn sent(&mut self, node: u32, bytes: u64, now: u64, peaks: bool) {
        let s = &mut self.nodes[node as usize];
        s.total += bytes;
        let second = now / 1_000_000_000;
        if second != s.second {
            (s.second, s.in_second) = (second, 0);
        }
        s.in_second += bytes;
        if peaks {
            s.peak = s.peak.max(s.in_second);
        }
    }

    /// Means are taken from here on, and what `first` came before belongs to no peak.
    pub(super) fn restart(&mut self, now: u64, first: bool) {
        self.since = now;
        for s in &mut self.nodes {
            s.total = 0;
            if first {
                s.in_second = 0;
            }
        }
    }

    /// Over the time since the last restart, and the highest second. `peaks`: whether there was one that counts.
    pub(super) fn rates(&self, end: u64, peaks: bool) -> (OverNodes, Option<f64>) {
        let peak = self.nodes.iter().map(|s| s.peak).max().filter(|_| peaks).map(|p| p as f64);
        let seconds = end.saturating_sub(self.since) as f64 / 1e9;
        // Who was never started, or was gone before, would make the others' share look smaller.
        let mut rates: Vec<f64> = self.nodes.iter().filter(|s| s.total > 0 && seconds > 0.0).map(|s| s.total as f64 / seconds).collect();
        if rates.is_empty() && peaks && seconds > 0.0 {
            // All were up, and since then nobody has sent anything, as one that is left alone.
            rates.push(0.0);
        }
        rates.sort_by(f64::total_cmp);
        let mean = (!rates.is_empty()).then(|| rates.iter().sum::<f64>() / rates.len() as f64);
        (OverNodes { mean, p99: quantile(&rates, 0.99), max: quantile(&rates, 1.0) }, peak)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        NodeAddr,
        proto::membership::{Member, MemberInfo},
    };

    const SECOND: u64 = 1_000_000_000;

    fn id(n: u32) -> NodeId {
        NodeId::new(&NodeAddr::new(&format!("n{n:05}"), 1), 1)
    }

    fn view(me: u32, members: &[(u32, MemberStatus, bool)]) -> Arc<ClusterView> {
        let member = |&(n, status, reachable): &(u32, MemberStatus, bool)| {
            let info = MemberInfo::bare(id(n), NodeAddr::new(&format!("n{n:05}"), 1));
            Member { reachable, ..Member::new(info, status, n + 1) }
        };
        let members = members.iter().map(member).collect();
        Arc::new(ClusterView { me: id(me), members, leader: None, deputies: vec![], converged: true, version: 1 })
    }

    /// Three nodes, up everywhere at second 1, and what the world says of them.
    struct World {
        measure: Measure,
        blameless: bool,
        live: bool,
        /// A fault lies on the links of this one.
        touched: Option<u32>,
    }

    impl World {
        fn formed() -> Self {
            let mut w = Self { measure: Measure::new(Some(2 * SECOND), 0), blameless: true, live: true, touched: None };
            (0..3).for_each(|n| w.measure.born(n, id(n)));
            (0..3).for_each(|n| w.sees(n, 1, &[(0, true), (1, true), (2, true)]));
            w
        }

        fn sees(&mut self, observer: u32, second: u64, up: &[(u32, bool)]) {
            let all: Vec<_> = up.iter().map(|&(n, reachable)| (n, MemberStatus::Up, reachable)).collect();
            let (blameless, live, at_fault) = (self.blameless, self.live, self.touched);
            let subject = |who: NodeId| {
                let life = (0..3).find(|n| id(*n) == who)?;
                Some(Subject { life, live, blameless, expected_to_go: false, touched: at_fault == Some(life) })
            };
            self.measure.saw(observer, view(observer, &all), second * SECOND, subject, |_| live);
            self.measure.settle(second * SECOND);
        }
    }

    #[test]
    fn a_planted_false_accusation_is_counted_once_cluster_wide() {
        let mut w = World::formed();
        w.sees(0, 3, &[(0, true), (1, true), (2, false)]);
        w.sees(1, 4, &[(0, true), (1, true), (2, false)]);
        assert_eq!((w.measure.false_unreachable, w.measure.maxima()), (1, (0, 1)));
        assert_eq!((w.measure.all_up_since, w.measure.all_reachable_since), (Some(SECOND), None));
        w.sees(0, 5, &[(0, true), (1, true), (2, true)]);
        w.sees(0, 6, &[(0, true), (1, true), (2, false)]);
        assert_eq!((w.measure.false_unreachable, w.measure.maxima().1), (1, 3), "the other view holds it all the time");
        w.sees(0, 7, &[(0, true), (1, true), (2, true)]);
        w.sees(1, 7, &[(0, true), (1, true), (2, true)]);
        assert_eq!(w.measure.all_reachable_since, Some(7 * SECOND));
        w.blameless = false;
        w.sees(0, 7, &[(0, true), (1, false), (2, false)]);
        assert_eq!(w.measure.false_unreachable, 1, "its links have a fault");
    }

    #[test]
    fn what_a_node_holds_that_is_cut_off_is_not_what_the_cluster_holds() {
        let mut w = World::formed();
        w.touched = Some(0);
        w.sees(0, 3, &[(0, true), (1, false), (2, false)]);
        assert_eq!(w.measure.false_unreachable, 0);
        w.sees(1, 4, &[(0, true), (1, true), (2, false)]);
        assert_eq!(w.measure.false_unreachable, 1, "one that nothing was done to holds it too");
    }

    #[test]
    fn all_are_up_for_the_first_time_once_all_have_started() {
        let mut w = World::formed();
        assert!(w.measure.ever_all_up);
        w.measure = Measure::new(None, 2);
        w.measure.born(0, id(0));
        w.measure.started();
        w.sees(0, 0, &[(0, true)]);
        assert!(w.measure.all_up_since.is_some() && !w.measure.ever_all_up, "the other one starts in the same moment");
        w.measure.born(1, id(1));
        w.measure.started();
        (0..2).for_each(|n| w.sees(n, 1, &[(0, true), (1, true)]));
        assert!(w.measure.ever_all_up);
    }

    #[test]
    fn the_highest_second_counts_though_nothing_was_sent_after_it() {
        let mut t = Traffic::new(2);
        t.sent(0, 500, SECOND, false);
        assert_eq!((t.rates(5 * SECOND, false).0.mean, t.rates(5 * SECOND, false).1), (Some(100.0), None), "never all up");
        t.restart(2 * SECOND, true);
        t.sent(1, 300, 3 * SECOND, true);
        assert_eq!((t.rates(5 * SECOND, true).0.mean, t.rates(5 * SECOND, true).1), (Some(100.0), Some(300.0)));
        // All that are left are up again, and silent.
        t.restart(4 * SECOND, false);
        let zero = OverNodes { mean: Some(0.0), p99: Some(0.0), max: Some(0.0) };
        assert_eq!(t.rates(5 * SECOND, true), (zero, Some(300.0)));
        assert_eq!(t.rates(4 * SECOND, true), (OverNodes::default(), Some(300.0)), "up in the last moment: nobody had time to send");
        assert_eq!(Traffic::new(2).rates(5 * SECOND, false), (OverNodes::default(), None));
    }

    #[test]
    fn a_planted_false_removal_is_counted() {
        let mut w = World::formed();
        w.sees(0, 3, &[(0, true), (1, true)]);
        w.sees(1, 3, &[(0, true), (1, true)]);
        assert_eq!((w.measure.false_removals, w.measure.removed()), (1, 1));
        assert_eq!(w.measure.maxima().0, 1, "one change of the set, per node");
        assert_eq!((w.measure.all_up_since, w.measure.converged_since), (None, None));
    }

    #[test]
    fn a_crash_is_timed_from_first_mark_to_last_removal() {
        let mut w = World::formed();
        assert_eq!(w.measure.all_up_since, Some(SECOND));
        w.live = false;
        w.measure.crashed(id(2), 10 * SECOND);
        w.measure.gone(2);
        w.sees(0, 14, &[(0, true), (1, true), (2, false)]);
        assert_eq!(w.measure.crash_times()[1].1, 1, "the other one does not know yet");
        w.sees(1, 16, &[(0, true), (1, true), (2, false)]);
        w.sees(0, 20, &[(0, true), (1, true)]);
        w.sees(1, 21, &[(0, true), (1, true)]);
        let times = w.measure.crash_times();
        assert_eq!(times.each_ref().map(|(s, missing)| (s.max, *missing)), [(Some(4.0), 0), (Some(6.0), 0), (Some(11.0), 0)]);
        assert_eq!((w.measure.false_removals, w.measure.survivors()), (0, (1, 2)));
    }

    #[test]
    fn whoever_crashes_behind_its_removal_or_when_it_is_missed_is_known() {
        let mut w = World::formed();
        w.sees(0, 5, &[(0, true), (1, true), (2, false)]);
        w.live = false;
        w.measure.crashed(id(2), 10 * SECOND);
        w.measure.gone(2);
        w.sees(1, 12, &[(0, true), (1, true), (2, false)]);
        (0..2).for_each(|by| w.sees(by, 15, &[(0, true), (1, true)]));
        let times = w.measure.crash_times();
        assert_eq!(times.each_ref().map(|(s, missing)| (s.max, *missing)), [(Some(0.0), 0), (Some(2.0), 0), (Some(5.0), 0)]);
        let mut w = World::formed();
        (0..2).for_each(|by| w.sees(by, 5, &[(0, true), (1, true)]));
        w.measure.crashed(id(2), 10 * SECOND);
        w.measure.gone(2);
        assert_eq!(w.measure.crash_times().map(|(s, missing)| (s.max, missing)), [(Some(0.0), 0); 3]);
    }

    #[test]
    fn a_crash_is_judged_by_those_that_were_live_until_they_stopped() {
        let mut w = World::formed();
        w.live = false;
        w.measure.crashed(id(2), 10 * SECOND);
        w.measure.gone(2);
        w.sees(0, 14, &[(0, true), (1, true)]);
        w.measure.gone(0);
        assert_eq!(w.measure.crash_times().map(|(_, missing)| missing), [0, 1, 1], "the other one still waits");
        w.measure.born(3, id(0));
        w.sees(1, 16, &[(1, true)]);
        w.measure.gone(1);
        let times = w.measure.crash_times();
        assert_eq!(times.map(|(s, missing)| (s.max, missing)), [(Some(4.0), 0), (Some(6.0), 0), (Some(6.0), 0)]);
    }
}
