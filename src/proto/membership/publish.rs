//! What the world is told: a snapshot when it changed, and what changed in it.

use std::sync::Arc;

use super::{
    ClusterView, Event, Member, MemberStatus, Members, Membership, Phase, Removal,
    idmap::Cursor,
    reachability::Verdict,
    state::{Entry, Folk},
};
use crate::{NodeId, Time, id::address_order};

/// What one list has and another, later one has not, or otherwise. Both are in address order.
#[derive(Default, Debug)]
struct Steps<'a> {
    gone: Vec<&'a Member>,
    /// Those of the new list that are new or changed, as they are and as they were.
    others: Vec<(&'a Member, Option<&'a Member>)>,
}

impl<'a> Steps<'a> {
    fn between(old: &'a [Member], new: &'a [Member]) -> Self {
        let (mut steps, mut at) = (Self::default(), 0);
        for member in new {
            let was = loop {
                match old.get(at) {
                    Some(was) if was.id == member.id => break Some(was),
                    Some(was) if address_order((&was.addr, was.id), (&member.addr, member.id)).is_lt() => {
                        steps.gone.push(was);
                        at += 1;
                    }
                    _ => break None,
                }
            };
            at += usize::from(was.is_some());
            if was != Some(member) {
                steps.others.push((member, was));
            }
        }
        steps.gone.extend(old.iter().skip(at));
        steps
    }

    fn is_empty(&self) -> bool {
        self.gone.is_empty() && self.others.is_empty()
    }
}

impl Membership {
    /// Compares with what was told last and tells the difference.
    pub(super) fn publish(&mut self, now: Time) {
        if std::mem::replace(&mut self.told, true) {
            return;
        }
        let hidden = self.unshown();
        let same = hidden == self.hidden;
        self.hide(hidden);
        let refresh = std::mem::take(&mut self.refresh);
        let same = same && self.shown_of.as_ref().is_some_and(|of| self.stands_for(of, refresh));
        if !same {
            self.shown_of = Some((Arc::clone(&self.state.members), Arc::clone(&self.verdict)));
        }
        let view = Arc::new(self.snapshot(now, same));
        let old = Arc::clone(&self.view);
        let steps = if old.members.same(&view.members) { Steps::default() } else { Steps::between(&old.members, &view.members) };
        if steps.is_empty() && old.leader == view.leader && old.deputies == view.deputies && old.converged == view.converged {
            return;
        }
        if self.phase == Phase::Member && !std::mem::replace(&mut self.buried, true) {
            // Who went before this node came may be named by others as if it were there.
            for (&id, tombstone) in self.state.tombstones.iter() {
                self.out.removed(id, tombstone.how.into());
            }
        }
        for gone in steps.gone {
            // One round of gossip can bring several steps at once: whoever was downed was down, whether or not a view showed it.
            let mut was = gone.status;
            if let Some(tombstone) = self.state.tombstones.get(&gone.id) {
                let removal = Removal::from(tombstone.how);
                if removal != Removal::Left {
                    was = MemberStatus::Down;
                }
                self.out.removed(gone.id, removal);
            }
            let member = Member { status: MemberStatus::Removed, ..gone.clone() };
            self.out.event(Event::Member { member, was: Some(was) });
        }
        self.view = Arc::clone(&view);
        self.out.view(Arc::clone(&view));
        for (member, was) in steps.others {
            if was.map(|w| w.status) != Some(member.status) {
                self.out.event(Event::Member { member: member.clone(), was: was.map(|w| w.status) });
            }
            match (was.is_none_or(|w| w.reachable), member.reachable) {
                (true, false) => {
                    let why = self.why_unreachable(member, now).into();
                    self.out.event(Event::Unreachable { node: member.id, by: Arc::clone(&member.observers), why });
                }
                (false, true) => self.out.event(Event::Reachable { node: member.id }),
                _ => {}
            }
        }
        if old.leader != view.leader {
            self.out.event(Event::LeaderChanged(view.leader));
        }
        if view.converged && !old.converged {
            self.out.event(Event::Converged { version: view.version });
        }
    }

    /// The state as everybody outside sees it. Before this node belongs to a cluster: itself, joining.
    /// `same`: the members and what is thought of them are those of the last one.
    pub(super) fn snapshot(&self, _now: Time, same: bool) -> ClusterView {
        let Self { standing, hidden, .. } = self;
        let shown = |id: &&NodeId| hidden.is_empty() || !hidden.contains(id);
        let version = self.view.version + 1;
        let list = || {
            let (roster, entries) = (self.state.members.roster(), self.state.members.values().as_slice());
            roster.by_address.iter().map(|&at| self.member(&entries[at as usize])).collect()
        };
        let all = || self.state.members.shown(|| Members::placed(list(), Arc::clone(&self.state.members.roster().by_id)));
        let show = || -> Members {
            let roster = self.state.members.roster();
            let mut list: Vec<Member> = list();
            let mut places = Cursor::of(&roster.ids);
            for (&id, by) in &self.verdict.unreachable {
                if let Some(member) = places.find(id).and_then(|at| list.get_mut(roster.by_id[at] as usize)) {
                    (member.reachable, member.observers) = (false, Arc::clone(by));
                }
            }
            let judged = Members::placed(list, Arc::clone(&roster.by_id));
            if hidden.is_empty() { judged } else { judged.iter().filter(|m| !hidden.contains(&m.id)).cloned().collect() }
        };
        let members = if same {
            self.view.members.clone()
        } else if self.state.members.is_empty() {
            vec![self.member(&Entry::joining(Arc::clone(&self.info), 0))].into()
        } else if hidden.is_empty() && self.verdict.unreachable.is_empty() {
            all().clone()
        } else if let Some(pool) = &self.pool {
            pool.shown(&self.state.members, self.verdict.digest(hidden), show)
        } else {
            show()
        };
        ClusterView {
            me: self.me,
            members,
            leader: standing.leader.filter(|id| shown(&id)),
            deputies: standing.deputies.iter().filter(shown).copied().collect(),
            converged: standing.converged,
            version,
        }
    }

    /// Whether a list made of those shows what is so now. More observers of somebody who is shown unreachable can wait for the next round: when
    /// many go at once, each merge brings some.
    fn stands_for(&self, (folk, verdict): &(Arc<Folk>, Arc<Verdict>), exactly: bool) -> bool {
        let (old, new) = (&verdict.unreachable, &self.verdict.unreachable);
        let alike = || !exactly && old.len() == new.len() && old.keys().eq(new.keys());
        Arc::ptr_eq(folk, &self.state.members) && (Arc::ptr_eq(verdict, &self.verdict) || alike())
    }

    /// Shows what waited for a round.
    pub(super) fn refresh_view(&mut self) {
        if self.shown_of.as_ref().is_some_and(|(_, verdict)| !Arc::ptr_eq(verdict, &self.verdict)) {
            (self.refresh, self.told, self.dirty) = (true, false, true);
        }
    }

    /// One whom everybody reaches.
    fn member(&self, entry: &Entry) -> Member {
        Member {
            id: entry.info.id,
            addr: entry.info.addr.clone(),
            status: entry.status,
            roles: Arc::clone(&entry.info.roles),
            app_version: Arc::clone(&entry.info.app_version),
            up_number: u64::from(entry.up_number),
            reachable: true,
            observers: Arc::clone(&self.nobody),
        }
    }

    fn why_unreachable(&self, member: &Member, now: Time) -> String {
        let refused = self.verdict.gone.contains(&member.id);
        let by = member.observers.len();
        match self.phi_of(member.id, now) {
            _ if refused => format!("its port refuses connections, as {by} of its monitors found"),
            Some(phi) if member.observers.contains(&self.me) => format!("heartbeats unanswered, phi {phi:.1}; {by} monitors agree"),
            _ => format!("{by} monitors got no answer"),
        }
    }
}
