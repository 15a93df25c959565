//! What the world is told: a snapshot when it changed, and what changed in it.

use std::sync::Arc;

use super::{ClusterView, Event, Member, MemberStatus, Members, Membership, Phase, Removal, reachability::Verdict, state::Folk};
use crate::{NodeId, Time};

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
        let steps = old.members.steps(&view.members);
        if steps.is_empty() && old.leader == view.leader && old.deputies == view.deputies && old.converged == view.converged {
            return;
        }
        if self.phase == Phase::Member && !std::mem::replace(&mut self.buried, true) {
            // Who went before this node came may be named by others as if it were there.
            for (&id, tombstone) in self.state.tombstones.iter() {
                self.out.removed(id, tombstone.how.into());
            }
        }
        for gone in steps.iter().filter(|step| step.is.is_none()).filter_map(|step| step.was) {
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
        for (member, was) in steps.iter().filter_map(|step| Some((step.is?, step.was))) {
            if was.map(|w| w.status) != Some(member.status) {
                self.out.event(Event::Member { member: member.clone(), was: was.map(|w| w.status) });
            }
            match (was.is_none_or(|w| w.reachable), member.reachable) {
                (true, false) => {
                    let why = self.why_unreachable(member, now).into();
                    self.out.event(Event::Unreachable { node: member.id, by: member.observers.clone().into(), why });
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
        let folk = || Arc::clone(&self.state.members);
        let show = || Members::of(folk(), self.verdict.unreachable.iter(), hidden.iter());
        let members = if same {
            self.view.members.clone()
        } else if self.state.members.is_empty() {
            [Member::new(Arc::clone(&self.info), MemberStatus::Joining, 0)].into_iter().collect()
        } else if let Some(pool) = self.pool.as_ref().filter(|_| !self.verdict.unreachable.is_empty()) {
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
