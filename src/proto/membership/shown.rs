//! Whom a view shows. The state keeps everybody until the leader removes them, so that merges converge in any order; what a merge of two
//! sides brings may already be history, and a view never shows an earlier life of a node after a later one.

use std::collections::BTreeSet;

use super::{MemberStatus, Membership, Removal, state::Entry};
use crate::{NodeId, Time};

impl Membership {
    /// Members that the next view leaves out: those that were down before they were ever shown, and all but one of the lives of one
    /// address that are not down.
    pub(super) fn unshown(&self) -> BTreeSet<NodeId> {
        let mut hidden = BTreeSet::new();
        for (one, others) in self.lives() {
            let alive = |m: &&Entry| m.status < MemberStatus::Down;
            let lives = || std::iter::once(one).chain(others.iter().filter_map(|id| self.state.members.get(id)));
            // What was shown stays; a node that has shown neither takes the one that joined last.
            let keep = lives().filter(alive).max_by_key(|m| (self.was_shown(m), m.joined, m.info.id)).map(|m| m.info.id);
            hidden.extend(lives().filter(|m| if alive(m) { keep != Some(m.info.id) } else { !self.was_shown(m) }).map(|m| m.info.id));
        }
        hidden
    }

    /// Tells of the end of those that were never shown; what runs here may have heard of them from others.
    pub(super) fn hide(&mut self, hidden: BTreeSet<NodeId>) {
        for id in std::mem::replace(&mut self.hidden, hidden) {
            if let Some(tombstone) = self.state.tombstones.get(&id) {
                self.out.removed(id, Removal::from(tombstone.how));
            }
        }
    }

    /// A merge can bring two lives of one address, neither of them down: who answers there is the later one.
    pub(super) fn ask_twins(&mut self, now: Time) {
        let twins: Vec<NodeId> = self
            .lives()
            .filter(|(one, others)| {
                one.status < MemberStatus::Down && others.iter().any(|id| self.state.status(*id) < Some(MemberStatus::Down))
            })
            .map(|(one, _)| one.info.id)
            .collect();
        for id in twins {
            self.ask_who(now, id);
        }
    }

    /// Members by address: one life, and the others there if the address has several. Alone and not down is not worth a look.
    fn lives(&self) -> impl Iterator<Item = (&Entry, &[NodeId])> {
        let (roster, all) = (self.state.members.roster(), &self.state.members);
        let crowds = self.state.members.census().crowds.iter();
        crowds.filter_map(|&(from, to)| Some((all.nth(*roster.by_address.get(from)?), roster.order.get(from + 1..to)?)))
    }

    fn was_shown(&self, member: &Entry) -> bool {
        let id = member.info.id;
        // A view shows those of whom it was made, but for the hidden; the first one this node alone.
        self.shown_of.as_ref().map_or(id == self.me, |(folk, _)| folk.contains_key(&id) && !self.hidden.contains(&id))
    }
}
