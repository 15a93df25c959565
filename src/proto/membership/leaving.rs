//! How a membership ends: leaving in order, being downed, learning of it.

use super::{Ending, MemberStatus, Membership, Phase, counters::Count, resolve::Split, state::Gone};
use crate::{NodeId, Time};

/// This node's way out.
#[derive(Clone, Default, Debug)]
pub(crate) struct Farewell {
    /// Hand-offs are done.
    pub(crate) drained: bool,
    /// Or are not, and are not waited for any longer.
    overdue: bool,
    /// Since when this node is exiting.
    since: Option<Time>,
    /// Last sign that the cluster still knows this node.
    contact: Option<Time>,
}

impl Membership {
    /// Tells a member to leave.
    pub(super) fn begin_leave(&mut self, node: NodeId) -> Result<(), String> {
        if node == self.me && (self.phase != Phase::Member || self.state.members.len() == 1) {
            self.end(Ending::Left);
            return Ok(());
        }
        if !self.state.members.contains_key(&node) {
            return Err(self.no_member(node));
        }
        if self.state.raise(node, MemberStatus::Leaving) {
            self.touch();
        }
        Ok(())
    }

    /// Declares a member dead, by hand. If it was not out of reach for as long as a decision takes, its right to run may be as new as can be.
    pub(super) fn declare_down(&mut self, now: Time, node: NodeId) -> Result<(), String> {
        if !self.state.members.contains_key(&node) {
            return Err(self.no_member(node));
        }
        let long_lost = |(id, since): (NodeId, Time)| id == node && now.since(since) >= self.stable_after();
        let abrupt = !self.split.iter().flat_map(Split::all_lost).any(long_lost);
        if self.state.raise(node, MemberStatus::Down) {
            if let Some(m) = self.state.members_mut().get_mut(&node).filter(|_| abrupt) {
                m.gone = m.gone.max(Gone::Abrupt);
            }
            self.touch();
            self.tell_downed(now, &[node]);
        }
        Ok(())
    }

    /// Says goodbye to nodes that were downed or removed, so that those that live end at once.
    pub(super) fn tell_downed(&mut self, now: Time, nodes: &[NodeId]) {
        for &node in nodes {
            if node != self.me {
                self.send_notice(now, node);
            }
        }
    }

    /// Ends the membership if the state says that it is over.
    pub(super) fn meets_its_fate(&mut self, now: Time) -> bool {
        let leaving = self.farewell.since.is_some();
        let ending = match (self.state.tombstones.get(&self.me), self.status()) {
            (Some(t), _) if t.how == Gone::Left => Ending::Left,
            (Some(_), _) => Ending::Downed("this node was removed from the cluster".into()),
            (None, Some(MemberStatus::Down)) if leaving && self.farewell.drained => self.left(),
            (None, Some(MemberStatus::Down)) => Ending::Downed("this node was declared down".into()),
            (None, Some(MemberStatus::Exiting)) => {
                self.farewell.since.get_or_insert(now);
                self.farewell.contact.get_or_insert(now);
                return false;
            }
            _ => return false,
        };
        // The others must not have to wait for silence.
        self.tell_own_end(now);
        self.end(ending);
        true
    }

    /// A member says that this node was removed.
    pub(super) fn end_removed(&mut self, now: Time) {
        self.tell_own_end(now);
        self.end(if self.farewell.drained { self.left() } else { Ending::Downed("this node was removed from the cluster".into()) });
    }

    pub(super) fn farewell_due(&self) -> Option<Time> {
        let since = self.farewell.since.filter(|_| self.phase == Phase::Member)?;
        let give_up = since + self.config.shutdown.leave_timeout.get();
        let forgotten = self.farewell.contact.filter(|_| self.farewell.drained).map(|at| at + 2 * self.watch.patience());
        forgotten.into_iter().chain(Some(give_up)).min()
    }

    /// An exiting node whose hand-offs take too long downs itself, so that others wait for its right to run; one that is drained and hears
    /// nothing any more has left.
    pub(super) fn farewell_on(&mut self, now: Time) {
        if self.farewell_due().is_none_or(|at| at > now) {
            return;
        }
        if self.farewell.drained {
            return self.end(self.left());
        }
        let after = self.config.shutdown.leave_timeout.get();
        self.warn("W-LEAVE-001", format!("hand-offs were not done within shutdown.leave_timeout ({after:?}): this node downs itself"));
        self.state.raise(self.me, MemberStatus::Down);
        self.touch();
        self.counters.add(Count::LeaveForced);
        (self.farewell.drained, self.farewell.overdue) = (true, true);
    }

    fn left(&self) -> Ending {
        if self.farewell.overdue { Ending::Overdue } else { Ending::Left }
    }

    /// Something of the cluster reached this node.
    pub(super) fn hears_cluster(&mut self, now: Time) {
        if let Some(at) = &mut self.farewell.contact {
            *at = now;
        }
    }

    fn no_member(&self, node: NodeId) -> String {
        let known: Vec<String> = self.state.members.values().take(10).map(|m| format!("{} ({})", m.info.addr, m.info.id)).collect();
        format!("{node} is no member; members are {}", known.join(", "))
    }
}
