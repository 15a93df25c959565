//! Processes that stand beside the cluster although they belong to it: one that started again and reaches no seed, or one that founded a cluster of its own
//! because it knew nobody to ask, or nobody answered it in time. Members look where they may be, and tell them that there is a cluster.

use std::{
    collections::BTreeSet,
    ops::Bound::{Excluded, Unbounded},
    time::Duration,
};

use super::{Ending, MemberFrame, Membership, Phase, state::Gone};
use crate::{NodeAddr, NodeId, Time};

/// Removed members that are looked at for one that is to be asked.
const LOOKED_AT_MAX: usize = 64;

/// For so long after it became a member a node gives way to a cluster that knows its place and is as large as its own.
const YOUNG: Duration = Duration::from_secs(60);

/// The leader looks with one heartbeat of so many: those addresses may be dead for long.
const LEADER_LOOKS: u32 = 3;

/// Where to look, one address of each kind at a time.
#[derive(Clone, Debug)]
pub(crate) struct Strays {
    /// When this node became a member.
    since: Time,
    /// Members whose link was reset and who were not heard since: another life may be where they were.
    pub(super) silent: BTreeSet<NodeId>,
    /// Which of them was asked last.
    asked: Option<NodeId>,
    /// Heartbeats since the leader has looked.
    beats: u32,
    /// Which of the configured seeds was asked last.
    seed: usize,
    /// Which of the members that were removed.
    former: Option<NodeId>,
    /// Who was asked in this heartbeat and has not answered.
    open: BTreeSet<NodeAddr>,
}

/// How a node beside this cluster stands.
pub(super) struct Kin {
    pub(super) takes: bool,
    /// 0: it has none.
    pub(super) cluster: u64,
    /// Digest of its settings.
    pub(super) settings: u64,
    pub(super) others: Vec<NodeAddr>,
}

impl Strays {
    pub(super) fn since(now: Time) -> Self {
        Self { since: now, silent: BTreeSet::new(), asked: None, beats: 0, seed: 0, former: None, open: BTreeSet::new() }
    }

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
        self.strays.beats = (self.strays.beats + 1) % LEADER_LOOKS;
        let leads = self.strays.beats == 0 && self.standing.leader == Some(self.me);
        let (seed, former) = if leads { (self.missing_seed(), self.former_place()) } else { (None, None) };
        self.strays.open = silent.into_iter().chain(seed).chain(former).collect();
        for addr in self.strays.open.clone() {
            self.say(addr, MemberFrame::Knock);
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

    /// Somebody else is where a member is or was.
    pub(super) fn ask_stray(&mut self, from: NodeId, addr: &NodeAddr) {
        if self.phase == Phase::Member && !self.knows(from) && self.strays.open.insert(addr.clone()) {
            self.say(addr.clone(), MemberFrame::Knock);
        }
    }

    fn knows(&self, node: NodeId) -> bool {
        let (members, gone) = (&self.state.members, &self.state.tombstones);
        node == self.me || members.contains_key(&node) || gone.contains_key(&node) || self.admissions.waits(node)
    }

    /// A node that this cluster does not know is told of it, if it was asked; or this node belongs to the other one's cluster, as its own was founded
    /// beside that. What it runs may run there too, so it ends: a new life joins.
    pub(super) fn meet_stray(&mut self, now: Time, from: NodeId, addr: &NodeAddr, kin: Kin) {
        let asked = self.strays.open.remove(addr);
        if kin.cluster == self.state.uid || self.knows(from) {
            return;
        }
        // A cluster that ends with who answers is none to join.
        let goes_on = kin.cluster != 0 && (kin.takes || !kin.others.is_empty());
        if goes_on && self.belongs_to(now, addr, &kin.others) {
            // It would be refused there.
            if kin.settings != self.config.digest() {
                let text = format!(
                    "{addr} belongs to another cluster of this name, with other settings: give one another name, or both the same settings"
                );
                return self.warn("W-JOIN-004", text);
            }
            self.end(Ending::Superseded([vec![addr.clone()], kin.others].concat()));
        } else if asked {
            let answer = self.answer(addr);
            self.say(addr.clone(), answer);
        }
    }

    /// Whether this node belongs to the cluster of those rather than to its own: that is no smaller (of two that are equal the one of the lower address stays,
    /// so that not both go), and nobody ever came into this one, or this node has just come, or where those are some of this cluster were.
    fn belongs_to(&self, now: Time, addr: &NodeAddr, others: &[NodeAddr]) -> bool {
        let (mine, theirs) = (self.state.members.len(), 1 + others.len());
        let stays = theirs < mine || theirs == mine && self.info.addr < *addr;
        let fresh = mine == 1 && self.state.tombstones.is_empty() || now.since(self.strays.since) < YOUNG;
        let here = |addr: &NodeAddr| self.state.at(addr).is_some() || self.former.values().any(|former| former == addr);
        !stays && (fresh || others.iter().chain([addr]).all(here))
    }
}
