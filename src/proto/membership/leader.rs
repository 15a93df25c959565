//! Leader, deputies and convergence: read off the state, without election.

use super::{
    MemberStatus,
    clock::Dots,
    codec::UP_MAX,
    reachability::Verdict,
    state::{Entry, Gone, State, TOMBSTONES_MAX},
};
use crate::{NodeId, Time, config::Config, id::address_order};

/// Who stands where, as this node derives it from the state and the verdict.
#[derive(Clone, Default, PartialEq, Debug)]
pub(crate) struct Standing {
    pub(crate) leader: Option<NodeId>,
    pub(crate) deputies: Vec<NodeId>,
    pub(crate) converged: bool,
}

impl Standing {
    pub(crate) fn derive(&mut self, state: &State, verdict: &Verdict, deputies: usize) {
        let reachable = || {
            let members = state.members.roster().order.iter().filter(|id| !verdict.unreachable.contains_key(id));
            members.filter_map(|id| state.members.get(id))
        };
        let mut heads: Vec<NodeId> = reachable().filter(|m| m.counts()).map(|m| m.info.id).take(1 + deputies).collect();
        if heads.is_empty() {
            heads = reachable().filter(|m| m.status != MemberStatus::Down).map(|m| m.info.id).take(1 + deputies).collect();
        }
        self.leader = heads.first().copied();
        self.deputies = heads.split_off(heads.len().min(1));
        self.converged = converged(state, verdict, false);
    }

    #[cfg(test)]
    pub(crate) fn of(state: &State, verdict: &Verdict, deputies: usize) -> Self {
        let mut standing = Self::default();
        standing.derive(state, verdict, deputies);
        standing
    }
}

/// Whether a member of this status and number takes part in convergence and majorities. A joiner that was told to leave does not: it was admitted by one
/// side of a split alone, perhaps, and whoever may be told to leave by anybody must not become a vote by it.
pub(crate) const fn counts(status: MemberStatus, up_number: u32) -> bool {
    matches!(status, MemberStatus::Up | MemberStatus::Leaving) && up_number > 0
}

/// Every up and leaving member has seen this version, and nobody is unreachable unless down or exiting.
pub(crate) fn converged(state: &State, verdict: &Verdict, past_unreachable: bool) -> bool {
    let lost = |id: &NodeId| verdict.unreachable.contains_key(id);
    let blocked = || state.members.statuses(verdict.unreachable.keys()).any(|(_, status)| status < MemberStatus::Exiting);
    (past_unreachable || !blocked()) && state.seen_by_all(|id| past_unreachable && lost(id))
}

/// All that the leader may do now, in one step; false if nothing. The caller ticks the clock. `joins`: who may be up though it has
/// not converged.
pub(crate) fn act(state: &mut State, verdict: &Verdict, config: &Config, joins: &[NodeId], now: Time) -> bool {
    if converged(state, verdict, false) {
        // Those that go may be all that were up; whoever comes up behind them goes on from their numbers.
        let last = state.members.census().last_up;
        // Removal first: the seen marks are of this version, and say nothing of the exits that it begins.
        let removed = remove_finished(state, now);
        let joiners = waiting(state, verdict);
        return removed | promote_behind(last, state, config, &joiners) | exit_leavers(state);
    }
    promote(state, config, joins)
}

/// Joiners that can be told to be weakly up: reachable, and waiting.
pub(crate) fn weakly_up(state: &mut State, verdict: &Verdict) -> bool {
    let waiting: Vec<NodeId> = waiting(state, verdict).into_iter().filter(|id| state.status(*id) == Some(MemberStatus::Joining)).collect();
    waiting.into_iter().fold(false, |any, id| state.raise(id, MemberStatus::WeaklyUp) | any)
}

/// Reachable members that are not up yet, in order of joining.
pub(crate) fn waiting(state: &State, verdict: &Verdict) -> Vec<NodeId> {
    let mut joiners: Vec<&Entry> =
        state.members.values().filter(|m| m.status < MemberStatus::Up && !verdict.unreachable.contains_key(&m.info.id)).collect();
    joiners.sort_by(|a, b| a.joined.cmp(&b.joined).then_with(|| address_order((&a.info.addr, a.info.id), (&b.info.addr, b.info.id))));
    joiners.iter().map(|m| m.info.id).collect()
}

/// Who leads the whole, with those who are out of reach.
pub(crate) fn first_of_all(state: &State) -> Option<NodeId> {
    state.members.roster().order.iter().copied().find(|id| state.members.get(id).is_some_and(Entry::counts))
}

/// Makes those joiners up: the first ones once there are as many members as the configuration asks for. A cluster that has begun goes on with fewer,
/// where the rest of a rolling restart would wait for ever.
pub(crate) fn promote(state: &mut State, config: &Config, joiners: &[NodeId]) -> bool {
    // The leader asks again and again, and what follows walks all members.
    !joiners.is_empty() && promote_behind(state.members.census().last_up, state, config, joiners)
}

/// The same behind that number.
fn promote_behind(last: u32, state: &mut State, config: &Config, joiners: &[NodeId]) -> bool {
    if joiners.is_empty() {
        return false;
    }
    let present = || state.members.values().filter(|m| m.status <= MemberStatus::Leaving).count();
    let of = |role: &str| {
        let has = |m: &&Entry| m.status <= MemberStatus::Leaving && m.info.roles.iter().any(|r| r == role);
        state.members.values().filter(has).count()
    };
    let missing = || config.cluster.min_members_of.iter().any(|least| of(&least.role) < least.members as usize);
    if last == 0 && (present() < config.cluster.min_members as usize || missing()) {
        return false;
    }
    let members = state.members_mut();
    for (id, number) in joiners.iter().zip(last + 1..) {
        if let Some(m) = members.get_mut(id) {
            (m.status, m.up_number, m.dots) = (MemberStatus::Up, number.min(UP_MAX), Dots::default());
        }
    }
    true
}

fn exit_leavers(state: &mut State) -> bool {
    let leaving: Vec<NodeId> = state.members.iter().filter(|(_, m)| m.status == MemberStatus::Leaving).map(|(&id, _)| id).collect();
    leaving.into_iter().fold(false, |any, id| state.raise(id, MemberStatus::Exiting) | any)
}

/// Exiting ones that have given their seen mark (their hand-offs are done), and the downed.
fn remove_finished(state: &mut State, now: Time) -> bool {
    let finished: Vec<(NodeId, Gone)> = state
        .members
        .iter()
        .filter_map(|(&id, m)| match m.status {
            MemberStatus::Exiting if state.has_seen(id) => Some((id, Gone::Left)),
            MemberStatus::Down => Some((id, m.gone.max(Gone::Downed))),
            _ => None,
        })
        // No more than are remembered: who is forgotten before others have heard of it stays with them.
        .take(TOMBSTONES_MAX)
        .collect();
    for &(id, how) in &finished {
        state.remove(id, how, now);
    }
    !finished.is_empty()
}

#[cfg(test)]
mod tests {
    use super::{
        super::{Member, MemberInfo},
        *,
    };
    use crate::NodeAddr;

    const NOW: Time = Time::from_nanos(1);

    fn state(statuses: &[MemberStatus]) -> (State, Vec<NodeId>) {
        let (mut state, mut ids) = (State::default(), vec![]);
        for (&status, port) in statuses.iter().zip(1..) {
            let addr = NodeAddr::new("h", port);
            let id = NodeId::new(&addr, 1);
            let info = MemberInfo::bare(id, addr);
            let up_number = if status < MemberStatus::Up { 0 } else { u32::from(port) };
            let entry = Entry { joined: u32::from(10_000 - port), ..Member::new(info, status, up_number).into() };
            state.members_mut().insert(id, entry);
            ids.push(id);
        }
        assert!(ids.iter().all(|&id| state.see(id)));
        (state, ids)
    }

    fn lost(ids: &[NodeId]) -> Verdict {
        Verdict { unreachable: ids.iter().map(|&id| (id, [].into())).collect(), ..Verdict::default() }
    }

    #[test]
    fn the_leader_is_the_first_reachable_that_is_up_or_leaving() {
        use MemberStatus::{Down, Exiting, Joining, Leaving, Up};
        let leader = |statuses: &[MemberStatus], cut: &[usize]| {
            let (state, ids) = state(statuses);
            let cut: Vec<NodeId> = cut.iter().map(|&i| ids[i]).collect();
            Standing::of(&state, &lost(&cut), 2).leader.map(|id| ids.iter().position(|&i| i == id).unwrap())
        };
        assert_eq!(leader(&[Joining, Up, Up], &[]), Some(1));
        assert_eq!(leader(&[Exiting, Up, Leaving], &[1]), Some(2));
        assert_eq!(leader(&[Down, Joining, Exiting], &[]), Some(1));
        assert_eq!(leader(&[Down], &[]), None);
    }

    #[test]
    fn a_joiner_that_was_told_to_leave_leads_nobody_and_is_not_waited_for() {
        let (mut s, ids) = state(&[MemberStatus::Joining, MemberStatus::Up]);
        assert!(s.raise(ids[0], MemberStatus::Leaving));
        assert_eq!(Standing::of(&s, &Verdict::default(), 2).leader, Some(ids[1]));
        assert_eq!(first_of_all(&s), Some(ids[1]));
        s.clear_seen();
        s.see(ids[1]);
        assert!(converged(&s, &Verdict::default(), false));
    }

    #[test]
    fn what_is_asked_of_the_first_ones_is_not_asked_of_later_ones() {
        let (mut s, ids) = state(&[MemberStatus::Up, MemberStatus::Joining]);
        let mut config = Config::default();
        config.cluster.min_members = 3;
        config.set("cluster.min_members_of", &toml::Value::String("front=1".into())).unwrap();
        assert!(act(&mut s, &Verdict::default(), &config, &[], NOW));
        assert_eq!(s.status(ids[1]), Some(MemberStatus::Up));
    }

    #[test]
    fn all_joiners_go_up_at_once_in_order_of_joining() {
        let (mut state, ids) = state(&[MemberStatus::Joining; 4]);
        assert!(act(&mut state, &Verdict::default(), &Config::default(), &[], NOW));
        let numbers: Vec<u32> = ids.iter().map(|id| state.members[id].up_number).collect();
        assert_eq!(numbers, [4, 3, 2, 1]);
    }

    #[test]
    fn who_comes_up_behind_all_the_others_goes_on_from_their_numbers() {
        use MemberStatus::{Down, Joining};
        let (mut s, ids) = state(&[Down, Down, Joining]);
        let mut config = Config::default();
        config.cluster.min_members = 3;
        assert!(act(&mut s, &lost(&ids[..2]), &config, &[], NOW));
        assert!(s.tombstones.contains_key(&ids[1]));
        assert_eq!((s.status(ids[2]), s.members[&ids[2]].up_number), (Some(MemberStatus::Up), 3));
    }

    #[test]
    fn no_more_are_removed_at_once_than_are_remembered() {
        use MemberStatus::{Down, Up};
        let mut statuses = vec![Down; TOMBSTONES_MAX + 1];
        statuses.push(Up);
        let (mut s, ids) = state(&statuses);
        let lost = lost(&ids[..=TOMBSTONES_MAX]);
        assert!(act(&mut s, &lost, &Config::default(), &[], NOW));
        assert!(ids.iter().all(|id| s.members.contains_key(id) || s.tombstones.contains_key(id)));
        assert_eq!((s.members.len(), s.tombstones.len()), (2, TOMBSTONES_MAX));
    }

    #[test]
    fn joiners_wait_for_the_least_number() {
        let mut config = Config::default();
        config.cluster.min_members = 3;
        let (mut two, _) = state(&[MemberStatus::Joining; 2]);
        assert!(!act(&mut two, &Verdict::default(), &config, &[], NOW));
        let (mut three, _) = state(&[MemberStatus::Joining; 3]);
        assert!(act(&mut three, &Verdict::default(), &config, &[], NOW));
    }

    #[test]
    fn an_exiting_member_is_removed_when_it_gives_its_mark() {
        let (mut state, ids) = state(&[MemberStatus::Up, MemberStatus::Exiting]);
        state.clear_seen();
        state.see(ids[0]);
        assert!(!act(&mut state, &Verdict::default(), &Config::default(), &[], NOW));
        state.see(ids[1]);
        assert!(act(&mut state, &Verdict::default(), &Config::default(), &[], NOW));
        assert_eq!(state.tombstones[&ids[1]].how, Gone::Left);
    }

    #[test]
    fn joiners_wait_for_enough_members_of_each_role() {
        let (mut s, ids) = state(&[MemberStatus::Joining; 3]);
        let mut config = Config::default();
        config.set("cluster.min_members_of", &toml::Value::String("backend=2, front=1".into())).unwrap();
        let has = |s: &mut State, id: NodeId, role: &str| {
            let m = s.members_mut().get_mut(&id).unwrap();
            m.info = MemberInfo { roles: [role.to_owned()].into(), ..(*m.info).clone() }.into();
        };
        has(&mut s, ids[0], "backend");
        has(&mut s, ids[1], "front");
        assert!(!act(&mut s, &Verdict::default(), &config, &[], NOW));
        has(&mut s, ids[2], "backend");
        assert!(act(&mut s, &Verdict::default(), &config, &[], NOW));
        assert!(ids.iter().all(|id| s.status(*id) == Some(MemberStatus::Up)));
    }

    #[test]
    fn an_unreachable_member_stops_the_leader_unless_joins_may_pass() {
        let (mut s, ids) = state(&[MemberStatus::Up, MemberStatus::Up, MemberStatus::Joining]);
        s.clear_seen();
        s.see(ids[0]);
        s.see(ids[2]);
        let lost = lost(&ids[1..2]);
        assert!(!converged(&s, &lost, false) && converged(&s, &lost, true));
        assert!(!act(&mut s, &lost, &Config::default(), &[], NOW));
        assert!(act(&mut s, &lost, &Config::default(), &ids[2..], NOW));
        assert_eq!(s.status(ids[2]), Some(MemberStatus::Up));
    }

    #[test]
    fn joining_exiting_and_down_members_do_not_hold_convergence_up() {
        use MemberStatus::{Down, Exiting, Joining, Up};
        let (mut s, ids) = state(&[Up, Joining, Exiting, Down]);
        s.clear_seen();
        s.see(ids[0]);
        assert!(converged(&s, &lost(&ids[2..]), false));
        assert!(!converged(&s, &lost(&ids[1..2]), false));
    }
}
