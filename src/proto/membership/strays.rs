//! Processes that stand beside the cluster although they belong to it: one that started again and reaches no seed, or one that founded a cluster of its own
//! because it knew nobody to ask, or nobody answered it in time. Members look where they may be, and tell them that there is a cluster.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Bound::{Excluded, Unbounded},
    time::Duration,
};

use super::{
    Ending, MemberStatus, Membership, Phase,
    state::{Entry, Gone},
};
use crate::{NodeAddr, NodeId, Time, config::OnDowned};

/// Removed members that are looked at for one that is to be asked.
const LOOKED_AT_MAX: usize = 64;

/// A greater cluster that was not heard for so many heartbeats has to be so for the whole time again; after so many one of its members is asked now and
/// then, not all, and after so many none.
const RIVAL_SILENT: u32 = 3;
const RIVAL_AWAY: u32 = 10;
const RIVAL_FORGOTTEN: u32 = 3600;

/// A warning about a cluster beside this one is repeated so seldom.
const WARN_EVERY: Duration = Duration::from_secs(60);

/// The leader looks with one heartbeat of so many at most: those addresses may be dead for long.
const LEADER_LOOKS: u32 = 3;

/// For so long it is known who answered under the name of a seed: another node may have it by then.
const NAMED_FOR: Duration = Duration::from_secs(60);

/// Where to look, one address of each kind at a time.
#[derive(Clone, Default, Debug)]
pub(crate) struct Strays {
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
    /// Which address those advertise who answered under the name of a seed, and when they did.
    named: BTreeMap<NodeAddr, (NodeAddr, Time)>,
    /// The cluster that this one is going to give way to, or that was met last.
    rival: Option<Rival>,
    /// When it was warned of a cluster with other settings.
    warned: Option<Time>,
}

/// Another cluster, where, since when it has been found to be the greater one and nothing was heard to the contrary, and when that was heard last.
#[derive(Clone, Debug)]
struct Rival {
    cluster: u64,
    at: Vec<NodeAddr>,
    since: Time,
    heard: Time,
}

/// How a node beside this cluster stands.
pub(super) struct Kin {
    pub(super) takes: bool,
    /// 0: it has none.
    pub(super) cluster: u64,
    /// Digest of its settings.
    pub(super) settings: u64,
    pub(super) others: Vec<NodeAddr>,
    /// As of [`Membership::weight`].
    pub(super) members: u32,
    pub(super) ups: u32,
    /// This node is no member there.
    pub(super) out: bool,
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
    /// Asks who is there. Where removed members were, whoever knows that looks, as who leads may have come after they went: all together as often as
    /// the leader alone.
    pub(super) fn look_for_strays(&mut self, now: Time) {
        let silent = self.strays.next().and_then(|id| self.addr_of(id)).cloned();
        self.strays.beats = (self.strays.beats + 1) % self.looks_with_one_of();
        let (leads, turn) = (self.leads(), self.strays.beats == 0);
        let rival = self.rivals_to_ask(now, turn);
        let seed = if leads && turn { self.missing_seed(now) } else { None };
        // Who starts there founds a cluster unless it hears of this one.
        let first = if leads { self.missing_first() } else { None };
        let looks = if leads { turn } else { !self.former.is_empty() && self.rng.chance(self.share_of_looks()) };
        let former = if looks { self.former_place() } else { None };
        self.strays.open = silent.into_iter().chain(rival).chain(first).chain(seed).chain(former).collect();
        for addr in self.strays.open.clone() {
            self.knock(addr);
        }
    }

    /// Members of the cluster that was met last: there may be nobody left of it where this one looks otherwise.
    fn rivals_to_ask(&mut self, now: Time, turn: bool) -> Vec<NodeAddr> {
        let heartbeat = self.config.detector.heartbeat_interval.get();
        self.strays.rival = self.strays.rival.take().filter(|rival| now.since(rival.heard) <= RIVAL_FORGOTTEN * heartbeat);
        let Some(rival) = &self.strays.rival else { return vec![] };
        if now.since(rival.heard) < RIVAL_AWAY * heartbeat {
            return rival.at.clone();
        }
        let others: Vec<&NodeAddr> = rival.at.iter().filter(|addr| self.state.at(addr).is_none()).collect();
        let one = if turn { self.rng.index(others.len()) } else { None };
        one.map(|at| others[at].clone()).into_iter().collect()
    }

    /// One heartbeat of how many is for a look: who comes back and knows nobody else is told of the cluster well within the time that it has to
    /// hear of one, which some settings make short.
    fn looks_with_one_of(&self) -> u32 {
        let (heartbeat, patience) = (self.config.detector.heartbeat_interval.get(), self.config.membership.seed_timeout.get());
        let beats = patience.as_nanos() * 3 / 5 / heartbeat.as_nanos().max(1);
        u32::try_from(beats).unwrap_or(LEADER_LOOKS).clamp(1, LEADER_LOOKS)
    }

    fn share_of_looks(&self) -> f64 {
        1.0 / (f64::from(self.looks_with_one_of()) * self.state.members.len().max(1) as f64)
    }

    /// The next seed at whose address this cluster has nobody, or nobody in reach.
    fn missing_seed(&mut self, now: Time) -> Option<NodeAddr> {
        self.strays.named.retain(|_, (_, heard)| now.since(*heard) <= NAMED_FOR);
        let seeds = &self.config.cluster.seeds;
        let turn = (0..seeds.len()).map(|step| (self.strays.seed + 1 + step) % seeds.len());
        let mut missing = turn.filter_map(|at| Some((at, seeds[at].parse::<NodeAddr>().ok()?))).filter(|(_, name)| self.is_missing(name));
        let (at, addr) = missing.next()?;
        self.strays.seed = at;
        Some(addr)
    }

    /// The first seed, if this cluster has nobody there, or nobody in reach.
    fn missing_first(&self) -> Option<NodeAddr> {
        self.config.cluster.seeds.first()?.parse().ok().filter(|name| self.is_missing(name))
    }

    /// Whether nobody of this cluster is where that seed is, or nobody in reach.
    fn is_missing(&self, name: &NodeAddr) -> bool {
        let addr = self.strays.named.get(name).map_or(name, |(addr, _)| addr);
        let in_reach = |m: &Entry| m.status <= MemberStatus::Exiting && !self.verdict.unreachable.contains_key(&m.info.id);
        *addr != self.info.addr && !self.state.at(addr).is_some_and(in_reach)
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

    /// Who advertises `addr` answers under that name, which is looked for only if it is that of a seed.
    pub(super) fn remember_name(&mut self, now: Time, name: &NodeAddr, addr: &NodeAddr) {
        if name != addr && self.config.cluster.seeds.iter().any(|seed| seed.parse().as_ref() == Ok(name)) {
            self.strays.named.insert(name.clone(), (addr.clone(), now));
        }
    }

    /// Somebody else is where a member is or was.
    pub(super) fn ask_stray(&mut self, from: NodeId, addr: &NodeAddr) {
        if self.phase == Phase::Member && !self.knows(from) && self.strays.open.insert(addr.clone()) {
            self.knock(addr.clone());
        }
    }

    fn knows(&self, node: NodeId) -> bool {
        let (members, gone) = (&self.state.members, &self.state.tombstones);
        node == self.me || members.contains_key(&node) || gone.contains_key(&node) || self.admissions.waits(node)
    }

    /// A node that this cluster does not know is told of it, if it was asked; or its cluster is the greater one, and this node ends, as what it runs may run
    /// there too: a new life joins. So it is with the other part of this very cluster, if neither has the other's members any more.
    ///
    /// Only an answer ends a node, not what anybody says unasked; and what has stood for a while only one that is as good after the time in which the
    /// other cluster finds out which of its members are dead.
    pub(super) fn meet_stray(&mut self, now: Time, from: NodeId, addr: &NodeAddr, at: &NodeAddr, kin: Kin) {
        let asked = self.strays.open.remove(at);
        if asked {
            self.remember_name(now, at, addr);
        }
        let twin = kin.cluster == self.state.uid && kin.out && !self.state.is_in(from);
        // It founded another one before it knew that it had been taken in here, and was removed, as it did not answer.
        let strays = kin.cluster != 0 && kin.cluster != self.state.uid && self.state.tombstones.contains_key(&from);
        if !twin && !strays && (kin.cluster == self.state.uid || self.knows(from)) {
            return;
        }
        // A cluster that ends with who answers is none to join.
        let goes_on = kin.cluster != 0 && (kin.takes || !kin.others.is_empty());
        if !(goes_on && self.is_less_than(addr, &kin)) {
            if asked {
                self.remember_lesser(now, addr, &kin);
                let answer = self.answer(from, addr);
                self.say(addr.clone(), answer);
            }
        } else if !asked {
            self.strays.open.insert(addr.clone());
            self.knock(addr.clone());
        } else if kin.settings != self.config.digest() {
            // It would be refused there.
            self.warn_of_settings(now, addr);
        } else {
            let at = [vec![addr.clone()], kin.others].concat();
            if self.is_sure(now, &at, kin.cluster) {
                let stops = twin && self.config.membership.on_downed == OnDowned::Stop;
                self.end(if stops {
                    Ending::Downed("two parts of the cluster had removed each other, and the other one is the greater".into())
                } else {
                    Ending::Superseded(at)
                });
            }
        }
    }

    /// Where a lesser cluster is. Who is there may end before it is sure, and nobody else may know of both.
    fn remember_lesser(&mut self, now: Time, addr: &NodeAddr, kin: &Kin) {
        if kin.cluster != 0 && self.strays.rival.as_ref().is_none_or(|rival| rival.cluster == kin.cluster) {
            let at = [vec![addr.clone()], kin.others.clone()].concat();
            let heard = now - RIVAL_AWAY * self.config.detector.heartbeat_interval.get();
            self.strays.rival = Some(Rival { cluster: kin.cluster, at, since: now, heard });
        }
    }

    fn warn_of_settings(&mut self, now: Time, addr: &NodeAddr) {
        if self.strays.warned.is_none_or(|at| now.since(at) >= WARN_EVERY) {
            self.strays.warned = Some(now);
            let text = format!(
                "{addr} belongs to another cluster of this name, with other settings: give one another name, or both the same settings"
            );
            self.warn("W-JOIN-004", text);
        }
    }

    /// How many members this node holds reachable, itself among them, and how many have ever become up.
    pub(super) fn weight(&self) -> (u32, u32) {
        let (members, census) = (&self.state.members, self.state.members.census());
        ((members.len() - census.down.count() - self.lost().count()) as u32, census.last_up)
    }

    /// Whether the other cluster has more members, or as many and a longer history; else their numbers decide, so that not both go. One in which nobody
    /// ever became up, as they wait for more, is the lesser one however many they are.
    fn is_less_than(&self, addr: &NodeAddr, kin: &Kin) -> bool {
        let (members, ups) = self.weight();
        (ups > 0, members, ups, self.state.uid, addr) < (kin.ups > 0, kin.members, kin.ups, kin.cluster, &self.info.addr)
    }

    /// Whether it is for long enough that this cluster has been the lesser one. At once if nobody else is in it. Who answers may have been away, and
    /// count on members that are dead.
    fn is_sure(&mut self, now: Time, at: &[NodeAddr], cluster: u64) -> bool {
        if self.state.members.len() == 1 {
            return true;
        }
        let patience = RIVAL_SILENT * self.config.detector.heartbeat_interval.get();
        let rival = self.strays.rival.take().filter(|rival| rival.cluster == cluster && now.since(rival.heard) <= patience);
        let since = rival.map_or(now, |rival| rival.since);
        self.strays.rival = Some(Rival { cluster, at: at.to_vec(), since, heard: now });
        now.since(since) >= 2 * self.picture_lag()
    }
}
