//! Processes that stand beside the cluster although they belong to it: one that started again and reaches no seed, or one that founded a cluster of its own
//! because it knew nobody to ask, or nobody answered it in time. Members look where they may be, and tell them that there is a cluster.

use std::{
    collections::BTreeSet,
    ops::Bound::{Excluded, Unbounded},
};

use super::{Ending, MemberFrame, Membership, Phase, state::Gone};
use crate::{NodeAddr, NodeId};

/// Removed members that are looked at for one that is to be asked.
const LOOKED_AT_MAX: usize = 64;

/// Where to look, one address of each kind with each heartbeat.
#[derive(Clone, Default, Debug)]
pub(crate) struct Strays {
    /// Members whose link was reset and who were not heard since: another life may be where they were.
    pub(super) silent: BTreeSet<NodeId>,
    /// Which of them was asked last.
    asked: Option<NodeId>,
    /// Which of the configured seeds was asked last.
    seed: usize,
    /// Which of the members that were removed.
    former: Option<NodeId>,
}

impl Strays {
    /// The next one in turn.
    fn next(&mut self) -> Option<NodeId> {
        let after = self.asked.and_then(|asked| self.silent.range((Excluded(asked), Unbounded)).next());
        self.asked = after.or_else(|| self.silent.first()).copied();
        self.asked
    }
}

impl Membership {
    /// Asks who is there.
    pub(super) fn look_for_strays(&mut self) {
        let silent = self.strays.next().and_then(|id| self.addr_of(id)).cloned();
        let leads = self.standing.leader == Some(self.me);
        let (seed, former) = if leads { (self.missing_seed(), self.former_place()) } else { (None, None) };
        for addr in silent.into_iter().chain(seed).chain(former) {
            self.say(addr, MemberFrame::WhoAreYou);
        }
    }

    /// The next seed at whose address this cluster has nobody, or nobody in reach.
    fn missing_seed(&mut self) -> Option<NodeAddr> {
        let seeds = &self.config.cluster.seeds;
        let turn = (0..seeds.len()).map(|step| (self.strays.seed + 1 + step) % seeds.len());
        let mut missing = turn.filter_map(|at| Some((at, seeds[at].parse::<NodeAddr>().ok()?))).filter(|(_, addr)| {
            *addr != self.info.addr && self.state.at(addr).is_none_or(|m| self.verdict.unreachable.contains_key(&m.info.id))
        });
        let (at, addr) = missing.next()?;
        self.strays.seed = at;
        Some(addr)
    }

    /// The next address of a member that was removed as dead, for as long as that is known, and nobody has it: its next life may know no living seed.
    fn former_place(&mut self) -> Option<NodeAddr> {
        let after = self.strays.former.map_or(Unbounded, Excluded);
        let mut turn = self.former.range((after, Unbounded)).chain(&self.former).take(LOOKED_AT_MAX);
        let gone = |id: &NodeId| self.state.tombstones.get(id).is_some_and(|t| t.how != Gone::Left);
        let strays = &mut self.strays;
        let found = turn.find(|&(&id, addr)| {
            strays.former = Some(id);
            gone(&id) && self.state.at(addr).is_none()
        });
        found.map(|(_, addr)| addr.clone())
    }

    /// A node said who it is: one that this cluster does not know is told of it. Who is alone in a cluster that it founded tells nobody, so
    /// that two of those do not both give way.
    pub(super) fn tell_stray(&mut self, from: NodeId, addr: &NodeAddr) {
        let (members, gone) = (&self.state.members, &self.state.tombstones);
        let known = from == self.me || members.contains_key(&from) || gone.contains_key(&from) || self.admissions.waits(from);
        if self.phase == Phase::Member && !known && !self.is_lone_founder() {
            let answer = self.answer(addr);
            self.say(addr.clone(), answer);
        }
    }

    /// Whether this node founded its cluster, and nobody ever came.
    pub(super) fn is_lone_founder(&self) -> bool {
        let lone = self.state.members.len() == 1 && self.state.tombstones.is_empty();
        self.phase == Phase::Member && lone && self.seeker.is_none()
    }

    /// A lone founder hears of a cluster. What it runs may run there too, so it ends: a new life joins.
    pub(super) fn give_way(&mut self, addr: &NodeAddr, others: Vec<NodeAddr>) {
        self.end(Ending::Superseded([vec![addr.clone()], others].concat()));
    }
}
