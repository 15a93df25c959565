//! The contacted member's side of a join: who is admitted, and what is wrong with those who are not.

use std::sync::Arc;

use super::{
    JoinRequest, MemberFrame, MemberStatus, Membership,
    clock::Dots,
    codec,
    counters::Count,
    state::{Entry, Info, MEMBERS_MAX},
};
use crate::{Config, NodeAddr, NodeId, Time, proto::link::LinkDown};

/// Lowest and highest protocol version of this build.
pub(crate) const PROTOCOL: (u16, u16) = (1, 1);
/// Most joiners that wait for the removal of their earlier lives.
const NEWCOMERS_MAX: usize = 1_024;
/// Most settings of a request.
const SETTINGS_MAX: usize = 256;

/// A joiner at whose address an earlier life is still a member.
#[derive(Clone, Debug)]
pub(crate) struct Newcomer {
    info: Arc<Info>,
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
            let answer = self.answer();
            return self.say(addr.clone(), answer);
        }
        if let Some(reason) = objection(&self.config, request) {
            return self.refuse(from, addr, reason);
        }
        let mut roles = request.roles.clone();
        roles.sort();
        roles.dedup();
        let info = Info { id: from, addr: request.addr.clone(), roles: roles.into(), app_version: request.app_version.as_str().into() };
        if NodeId::new(&request.addr, request.incarnation) != from || request.addr != *addr || !codec::fits(&info) {
            return self.refuse(
                from,
                addr,
                format!("the request does not fit the node {from} at {addr} that sends it, or its roles are too long"),
            );
        }
        if self.state.tombstones.contains_key(&from) || self.state.status(from) == Some(MemberStatus::Down) {
            return self.refuse(
                from,
                addr,
                format!("{from} was removed from this cluster: start the node again, it then has a new incarnation"),
            );
        }
        if self.state.members.contains_key(&from) {
            return self.accept_joiner(now, from, addr.clone());
        }
        if self.state.members.len() >= MEMBERS_MAX {
            let reason = format!("the cluster has {MEMBERS_MAX} members, which is the limit");
            self.counters.add(Count::JoinsRefused);
            return self.say(addr.clone(), MemberFrame::JoinRefused { joiner: from, permanent: false, reason });
        }
        if self.state.at(addr).is_none() {
            self.admit(Arc::new(info));
            return self.accept_joiner(now, from, addr.clone());
        }
        // An earlier life stands in the state: who answers at the address decides which of the two is real.
        self.newcomers.retain(|_, n| n.info.addr != *addr);
        if self.newcomers.len() < NEWCOMERS_MAX {
            self.newcomers.insert(from, Newcomer { info: Arc::new(info) });
            self.say(addr.clone(), MemberFrame::WhoAreYou);
        }
        self.say(addr.clone(), MemberFrame::JoinWait { joiner: from });
    }

    /// The address of an earlier life answers: the joiner itself proves that life dead; another one shows that two nodes share the address.
    pub(super) fn take_identity(&mut self, from: NodeId, addr: &NodeAddr) {
        let waiting: Vec<NodeId> = self.newcomers.iter().filter(|(_, n)| n.info.addr == *addr).map(|(&id, _)| id).collect();
        for &joiner in waiting.iter().filter(|&&joiner| joiner != from) {
            self.newcomers.remove(&joiner);
            self.counters.add(Count::JoinsRefused);
            let reason = format!("two nodes use {addr}: {from} answers there, {joiner} wants to join; give one another address");
            // Over the joiner's own link: the address is the other one's.
            self.out.frame_to(joiner, MemberFrame::JoinRefused { joiner, permanent: true, reason });
        }
        // Or two sides of a split that healed had admitted one life each.
        let member = self.state.status(from).is_some_and(|s| s < MemberStatus::Down);
        if member || waiting.contains(&from) {
            let others: Vec<NodeId> =
                self.state.members.keys().copied().filter(|id| id.addr_hash() == from.addr_hash() && *id != from).collect();
            for id in others {
                if let Some(m) = self.state.members.get_mut(&id).filter(|m| !m.proven) {
                    (m.proven, m.dots) = (true, Dots::default());
                    self.state.raise(id, MemberStatus::Down);
                    self.touch();
                }
            }
        }
    }

    /// The link on which an address was asked ended: ask again, unless it told who is there.
    pub(super) fn newcomer_link_down(&mut self, addr: &NodeAddr, cause: &LinkDown) {
        if self.newcomers.values().any(|n| n.info.addr == *addr) {
            match cause {
                LinkDown::OtherIncarnation(id) => self.take_identity(*id, addr),
                LinkDown::Reset => self.say(addr.clone(), MemberFrame::WhoAreYou),
                _ => {}
            }
        }
    }

    /// Takes in those whose earlier lives are gone; true if there were any.
    pub(super) fn admit_newcomers(&mut self) -> bool {
        let free: Vec<NodeId> = self.newcomers.iter().filter(|(_, n)| self.state.at(&n.info.addr).is_none()).map(|(&id, _)| id).collect();
        let mut admitted = false;
        for id in free {
            if let Some(newcomer) = self.newcomers.remove(&id)
                && self.takes_members()
                && !self.state.tombstones.contains_key(&id)
            {
                let addr = newcomer.info.addr.clone();
                self.admit(newcomer.info);
                self.welcome.push((id, addr));
                admitted = true;
            }
        }
        admitted
    }

    /// Sends the state to those admitted while it settled.
    pub(super) fn welcome_newcomers(&mut self, now: Time) {
        for (id, addr) in std::mem::take(&mut self.welcome) {
            self.accept_joiner(now, id, addr);
        }
    }

    fn admit(&mut self, info: Arc<Info>) {
        self.counters.add(Count::JoinsAdmitted);
        let joined = self.state.members.values().map(|m| m.joined).max().unwrap_or(0).saturating_add(1);
        self.state.members.insert(info.id, Entry::joining(info, joined));
        self.touch();
    }

    fn accept_joiner(&mut self, now: Time, joiner: NodeId, addr: NodeAddr) {
        let state = self.whole_state(now);
        self.say(addr, MemberFrame::JoinAccepted { joiner, state });
    }

    fn refuse(&mut self, joiner: NodeId, addr: &NodeAddr, reason: String) {
        self.counters.add(Count::JoinsRefused);
        self.say(addr.clone(), MemberFrame::JoinRefused { joiner, permanent: true, reason });
    }
}
