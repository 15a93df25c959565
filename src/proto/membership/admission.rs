//! The contacted member's side of a join: who is admitted, and what is wrong with those who are not.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use super::{
    JoinRequest, MemberFrame, MemberStatus, Membership, Phase,
    clock::Dots,
    codec,
    counters::Count,
    gossip::whole,
    idmap::IdMap,
    state::{Entry, Gone, MEMBERS_MAX, MemberInfo},
};
use crate::{Config, NodeAddr, NodeId, Time, proto::link::LinkDown};

/// Lowest and highest protocol version of this build.
pub(crate) const PROTOCOL: (u16, u16) = (1, 1);
/// Most joiners that wait.
const NEWCOMERS_MAX: usize = MEMBERS_MAX;
/// How many are sent the state in one go, and bytes beyond which no more are: others wait for what else this node has to say.
const WELCOMES: usize = 8;
const WELCOME_BYTES: usize = 1 << 20;
/// Until the next: nothing, but another turn of whoever drives this.
const NEXT_TURN: Duration = Duration::from_nanos(1);
/// Most settings of a request.
const SETTINGS_MAX: usize = 256;

/// A joiner that waits for its turn, or at whose address an earlier life is still a member.
#[derive(Clone, Debug)]
struct Newcomer {
    info: Arc<MemberInfo>,
    /// Order of arrival.
    number: u64,
}

/// Joiners on their way in. Those that come soon after others wait and are admitted together: each admission is another version that all
/// have to hear of, and each joiner is sent the whole state.
#[derive(Clone, Default, Debug)]
pub(crate) struct Admissions {
    newcomers: BTreeMap<NodeId, Newcomer>,
    number: u64,
    last: Option<Time>,
    /// Admitted, and to be sent the state.
    welcome: VecDeque<(NodeId, NodeAddr)>,
    /// When the first of them are.
    welcome_at: Option<Time>,
}

impl Admissions {
    /// Whether it has asked to be taken in.
    pub(super) fn waits(&self, node: NodeId) -> bool {
        self.newcomers.contains_key(&node)
    }
}

/// What is wrong with a request, in words that name both sides; `None` if nothing.
fn objection(config: &Config, request: &JoinRequest) -> Option<String> {
    let shown = |text: &str| text.chars().take(codec::LABEL_BYTES_MAX).collect::<String>().escape_debug().to_string();
    let mine = &config.cluster.name;
    if request.cluster != *mine {
        return Some(format!("cluster.name is `{mine}` here and `{}` on the joining node", shown(&request.cluster)));
    }
    let (low, high) = request.protocol;
    if low > PROTOCOL.1 || high < PROTOCOL.0 {
        let upgrade = if high < PROTOCOL.0 { "upgrade the joining node" } else { "upgrade the cluster first" };
        return Some(format!("protocol {}..={} here, {low}..={high} on the joining node: {upgrade}", PROTOCOL.0, PROTOCOL.1));
    }
    if request.settings.len() > SETTINGS_MAX {
        return Some(format!("{} settings in the request, at most {SETTINGS_MAX}", request.settings.len()));
    }
    let theirs = |key: &str| request.settings.iter().find(|(k, _)| k == key).map(|(_, v)| v.as_str());
    let differing: Vec<String> = config
        .must_match()
        .iter()
        .filter(|(key, value)| theirs(key).is_some_and(|t| t != value))
        .map(|(key, value)| format!("{key} is `{value}` here and `{}` on the joining node", shown(theirs(key).unwrap_or(""))))
        .collect();
    (!differing.is_empty()).then(|| differing.join("; "))
}

impl Membership {
    /// A node asks to be taken in.
    pub(super) fn take_join(&mut self, now: Time, from: NodeId, addr: &NodeAddr, request: &JoinRequest) {
        if !self.takes_members() {
            let answer = self.answer(from, addr);
            return self.say(addr.clone(), answer);
        }
        if let Some(reason) = objection(&self.config, request) {
            return self.refuse(from, addr, reason);
        }
        let mut roles = request.roles.clone();
        roles.sort();
        roles.dedup();
        let info =
            MemberInfo { id: from, addr: request.addr.clone(), roles: roles.into(), app_version: request.app_version.as_str().into() };
        if NodeId::new(&request.addr, request.incarnation) != from || request.addr != *addr || !codec::fits(&info) {
            return self.refuse(
                from,
                addr,
                format!("the request does not fit the node {from} at {addr} that sends it, or its roles are too long"),
            );
        }
        if self.state.tombstones.contains_key(&from) || self.state.status(from) == Some(MemberStatus::Down) {
            self.counters.add(Count::JoinsRefused);
            return self.say(addr.clone(), MemberFrame::Removed { node: from });
        }
        if self.state.members.contains_key(&from) {
            // It asks again, and may be waiting for its turn.
            if !self.admissions.welcome.iter().any(|(id, _)| *id == from) {
                self.welcome(now, from, addr.clone());
            }
            return;
        }
        if self.state.members.len() >= MEMBERS_MAX {
            let reason = format!("the cluster has {MEMBERS_MAX} members, which is the limit");
            self.counters.add(Count::JoinsRefused);
            return self.say(addr.clone(), MemberFrame::JoinRefused { joiner: from, permanent: false, reason });
        }
        let replaces = self.state.at(addr).is_some();
        self.announce_newcomer(Arc::new(info));
        if replaces {
            self.ask_former(addr);
            self.out.frame_to(from, MemberFrame::JoinWait { joiner: from });
        }
    }

    /// A joiner waits for its turn.
    fn announce_newcomer(&mut self, info: Arc<MemberInfo>) {
        let waiting = &mut self.admissions;
        if waiting.newcomers.contains_key(&info.id) {
            return;
        }
        waiting.newcomers.retain(|id, _| id.addr_hash() != info.id.addr_hash());
        if waiting.newcomers.len() < NEWCOMERS_MAX {
            waiting.number += 1;
            waiting.newcomers.insert(info.id, Newcomer { info, number: waiting.number });
            self.dirty = true;
        }
    }

    /// Who answers at the address of a member that another life wants to replace decides which of the two is real. The member itself is asked, over its
    /// link, or by a dial that says whom it expects: the link of who joins is one that it has dialled, whatever address it claims.
    fn ask_former(&mut self, addr: &NodeAddr) {
        if let Some(former) = self.state.at(addr).map(|m| m.info.id) {
            self.counters.add(Count::FramesOut);
            self.out.frame_to(former, MemberFrame::WhoAreYou);
        }
    }

    /// The address of an earlier life answers: the joiner itself proves that life dead; another one shows that two nodes share the address.
    pub(super) fn take_identity(&mut self, from: NodeId, addr: &NodeAddr) {
        let waiting: Vec<NodeId> = self.newcomers_at(addr).collect();
        for &joiner in waiting.iter().filter(|&&joiner| joiner != from) {
            self.admissions.newcomers.remove(&joiner);
            self.counters.add(Count::JoinsRefused);
            let reason = format!("two nodes use {addr}: {from} answers there, {joiner} wants to join; give one another address");
            self.warn("W-JOIN-005", reason.clone());
            // Over the joiner's own link: the address is the other one's.
            self.out.frame_to(joiner, MemberFrame::JoinRefused { joiner, permanent: true, reason });
        }
        // Or two sides of a split that healed had admitted one life each.
        let member = self.state.is_in(from);
        if member || waiting.contains(&from) {
            let others: Vec<NodeId> =
                self.state.members.keys().copied().filter(|id| id.addr_hash() == from.addr_hash() && *id != from).collect();
            for id in others {
                if self.state.members.get(&id).is_some_and(|m| m.gone != Gone::Proven)
                    && let Some(m) = self.state.members_mut().get_mut(&id)
                {
                    (m.gone, m.dots) = (Gone::Proven, Dots::default());
                    self.state.raise(id, MemberStatus::Down);
                    self.touch();
                }
            }
        }
    }

    /// The link on which an address was asked ended: ask again, unless it told who is there.
    pub(super) fn newcomer_link_down(&mut self, addr: &NodeAddr, cause: &LinkDown) {
        if self.newcomers_at(addr).next().is_some() {
            match cause {
                LinkDown::OtherIncarnation(id) => self.take_identity(*id, addr),
                LinkDown::Reset => self.ask_former(addr),
                _ => {}
            }
        }
    }

    fn newcomers_at<'a>(&'a self, addr: &'a NodeAddr) -> impl Iterator<Item = NodeId> + 'a {
        self.admissions.newcomers.iter().filter(|(_, n)| n.info.addr == *addr).map(|(&id, _)| id)
    }

    /// Those at whose addresses no life is left in the state, in order of arrival.
    fn admissible(&self) -> Vec<(u64, NodeId)> {
        let free = self.admissions.newcomers.iter().filter(|(_, n)| self.is_free(n));
        let mut free: Vec<(u64, NodeId)> = free.map(|(&id, n)| (n.number, id)).collect();
        free.sort_unstable();
        free
    }

    /// Whether no life is left in the state at its address.
    fn is_free(&self, newcomer: &Newcomer) -> bool {
        self.state.at(&newcomer.info.addr).is_none()
    }

    /// Whether somebody waits to be admitted.
    pub(super) fn has_newcomers(&self) -> bool {
        !self.admissions.newcomers.is_empty()
    }

    /// When joiners are to be admitted.
    pub(super) fn admission_due(&self) -> Option<Time> {
        if self.phase != Phase::Member || !self.admissions.newcomers.values().any(|n| self.is_free(n)) {
            return None;
        }
        // Far below the patience of a joiner.
        let membership = &self.config.membership;
        let pause = (membership.gossip_interval.get() / 10).min(membership.join_retry.get());
        Some(self.admissions.last.map_or(Time::ZERO, |last| last + pause))
    }

    pub(super) fn admission_on(&mut self, now: Time) {
        self.dirty |= self.admission_due().is_some_and(|at| at <= now);
    }

    /// Takes in all that wait, if it is time; true if there were any.
    pub(super) fn admit_newcomers(&mut self, now: Time) -> bool {
        if self.admission_due().is_none_or(|at| at > now) {
            return false;
        }
        self.admissions.last = Some(now);
        let takes = self.takes_members();
        let mut room = MEMBERS_MAX.saturating_sub(self.state.members.len());
        let mut joined = self.state.members.census().last_joined;
        let mut new = IdMap::default();
        for (_, id) in self.admissible() {
            let Some(newcomer) = self.admissions.newcomers.remove(&id) else { continue };
            if !takes || room == 0 {
                let answer = self.answer_as(newcomer.info.id, &newcomer.info.addr, false);
                self.say(newcomer.info.addr.clone(), answer);
            } else if !self.state.tombstones.contains_key(&id) {
                (room, joined) = (room - 1, joined.saturating_add(1).min(codec::SMALL_MAX));
                self.counters.add(Count::JoinsAdmitted);
                self.welcome(now, id, newcomer.info.addr.clone());
                new.insert(id, Entry::joining(newcomer.info, joined));
            }
        }
        if new.is_empty() {
            return false;
        }
        self.state.members_mut().merge(&new, |_, _| {});
        self.touch();
        true
    }

    /// It is to be sent the state.
    fn welcome(&mut self, now: Time, id: NodeId, addr: NodeAddr) {
        self.admissions.welcome.push_back((id, addr));
        self.admissions.welcome_at.get_or_insert(now + NEXT_TURN);
    }

    /// When some of the admitted are sent the state.
    pub(super) fn welcome_due(&self) -> Option<Time> {
        self.admissions.welcome_at
    }

    /// Sends it to some of them. It stands: what it was derived of is what they get.
    pub(super) fn welcome_on(&mut self, now: Time) {
        if self.phase != Phase::Member || self.admissions.welcome_at.is_none_or(|at| at > now) {
            return;
        }
        let body = whole(&self.state.version);
        let head = self.head(now, 0, &body, self.state.seen_bitmap());
        let packed = body.packed(self.plain_max());
        for _ in 0..(WELCOME_BYTES / packed.len().max(1)).clamp(1, WELCOMES) {
            let Some((joiner, addr)) = self.admissions.welcome.pop_front() else { break };
            // Or it has gone meanwhile.
            if self.state.is_in(joiner) {
                self.say(addr, MemberFrame::JoinAccepted { joiner, head: head.clone(), body: packed.clone() });
            }
        }
        self.admissions.welcome_at = (!self.admissions.welcome.is_empty()).then(|| now + NEXT_TURN);
    }

    fn refuse(&mut self, joiner: NodeId, addr: &NodeAddr, reason: String) {
        self.counters.add(Count::JoinsRefused);
        self.say(addr.clone(), MemberFrame::JoinRefused { joiner, permanent: true, reason });
    }
}
