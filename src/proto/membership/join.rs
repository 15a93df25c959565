//! The joiner's side: seeds are asked, the first that answers from within a cluster is joined; only the first seed may form one.

use std::{collections::BTreeSet, time::Duration};

use super::{
    Ending, JoinRequest, MemberFrame, MemberStatus, Membership, Phase, admission,
    codec::Head,
    counters::Count,
    frame::Packed,
    gossip::Elements,
    pool::Pool,
    state::{Entry, State},
    suspicion::Suspicion,
    tunnel::Tunnel,
};
use crate::{
    NodeAddr, NodeId, Time,
    proto::{link::LinkDown, wire::Reader},
};

/// How often an operator is told that no seed has taken this node in.
const WARN_EVERY: Duration = Duration::from_secs(10);

/// A search for a cluster.
#[derive(Clone, Debug)]
pub(crate) struct Seeker {
    /// Whom to ask; not this node itself.
    seeds: Vec<NodeAddr>,
    retry_at: Time,
    warn_at: Time,
    /// When this node forms a cluster of its own; `None` if it may not.
    form_at: Option<Time>,
    /// A join is under way until then.
    joining_until: Option<Time>,
    /// Who answered that it has no cluster either.
    without: BTreeSet<NodeId>,
    /// What went wrong last.
    trouble: Option<String>,
}

impl Membership {
    /// By the configured seeds.
    pub(super) fn seek_from_start(&mut self, now: Time) {
        let mut seeds = vec![];
        for text in self.config.cluster.seeds.clone() {
            match text.parse::<NodeAddr>() {
                Ok(addr) => seeds.push(addr),
                Err(bad) => self.warn("W-JOIN-001", format!("cluster.seeds: {bad}; this entry is not asked")),
            }
        }
        let first = seeds.first() == Some(&self.info.addr);
        let empty = seeds.is_empty();
        seeds.retain(|s| *s != self.info.addr);
        seeds.sort();
        seeds.dedup();
        if seeds.is_empty() && (first || empty) {
            return self.form(now);
        }
        self.phase = Phase::Asking;
        let form_at = first.then(|| now + self.config.membership.seed_timeout.get());
        self.begin_seeking(now, seeds, form_at);
    }

    /// By command.
    pub(super) fn seek(&mut self, now: Time, seeds: &[NodeAddr]) -> Result<(), String> {
        let seeds: Vec<NodeAddr> = seeds.iter().filter(|s| **s != self.info.addr).cloned().collect();
        if seeds.is_empty() {
            return Err("join needs the address of at least one other node".into());
        }
        if self.phase == Phase::Member && self.state.members.len() > 1 {
            return Err(format!(
                "this node belongs to a cluster of {} already: let it leave and start it again to join another",
                self.state.members.len()
            ));
        }
        let form_at = self.seeker.as_ref().and_then(|s| s.form_at);
        if self.phase == Phase::Idle {
            self.phase = Phase::Asking;
        }
        self.begin_seeking(now, seeds, form_at);
        Ok(())
    }

    fn begin_seeking(&mut self, now: Time, seeds: Vec<NodeAddr>, form_at: Option<Time>) {
        self.seeker = Some(Seeker {
            seeds,
            retry_at: now,
            warn_at: now + WARN_EVERY,
            form_at,
            joining_until: None,
            without: BTreeSet::new(),
            trouble: None,
        });
        self.seek_on(now);
    }

    pub(super) fn seek_due(&self) -> Option<Time> {
        let seeker = self.seeker.as_ref()?;
        let times = [Some(seeker.retry_at), Some(seeker.warn_at), seeker.form_at.filter(|_| seeker.joining_until.is_none())];
        times.into_iter().flatten().min()
    }

    /// Asks again, warns, forms a cluster, as due.
    pub(super) fn seek_on(&mut self, now: Time) {
        let retry = self.config.membership.join_retry.get();
        let Some(seeker) = &mut self.seeker else { return };
        if seeker.joining_until.is_some_and(|at| at <= now) {
            seeker.joining_until = None;
        }
        if seeker.joining_until.is_none() && seeker.form_at.is_some_and(|at| at <= now) {
            return self.form(now);
        }
        if seeker.retry_at <= now {
            seeker.retry_at = now + retry;
            if seeker.joining_until.is_none() {
                for seed in seeker.seeds.clone() {
                    self.say(seed, MemberFrame::Knock);
                }
            }
        }
        let Some(seeker) = &mut self.seeker else { return };
        if seeker.warn_at <= now {
            seeker.warn_at = now + WARN_EVERY;
            let seeds: Vec<String> = seeker.seeds.iter().map(ToString::to_string).collect();
            let trouble = seeker.trouble.clone().unwrap_or_else(|| "no answer".into());
            self.warn("W-JOIN-002", format!("no cluster found yet; asking {} again ({trouble})", seeds.join(", ")));
        }
    }

    /// Founds a cluster of one.
    fn form(&mut self, _now: Time) {
        self.seeker = None;
        self.phase = Phase::Member;
        self.state = State::founded(self.rng.next_u64());
        self.state.members_mut().insert(self.me, Entry::joining(self.info.clone(), 1));
        self.touch();
    }

    /// A link to a seed did not come about, or ended.
    pub(super) fn seeker_link_down(&mut self, addr: &NodeAddr, cause: &LinkDown) {
        let Some(seeker) = self.seeker.as_mut().filter(|s| s.seeds.contains(addr)) else { return };
        match cause {
            LinkDown::Rejected(reason) => {
                let reason = format!("{addr} refused the greeting: {reason}");
                self.refused(reason);
            }
            LinkDown::Unresolved(error) => seeker.trouble = Some(format!("{addr}: the host name has no address: {error}")),
            LinkDown::Refused => seeker.trouble = Some(format!("{addr}: connection refused")),
            LinkDown::TimedOut => seeker.trouble = Some(format!("{addr}: no connection in time")),
            LinkDown::Protocol(what) => seeker.trouble = Some(format!("{addr}: {what}")),
            LinkDown::Reset | LinkDown::OtherIncarnation(_) | LinkDown::Closed => {}
        }
    }

    /// A frame of a peer.
    pub(super) fn take_frame(&mut self, now: Time, from: NodeId, addr: &NodeAddr, frame: MemberFrame) {
        match frame {
            MemberFrame::Knock => self.answer_knock(from, addr),
            MemberFrame::Answer { takes, clustered } => self.take_answer(now, from, addr, takes, clustered),
            MemberFrame::Join(request) => self.take_join(now, from, addr, &request),
            MemberFrame::JoinWait { joiner } if joiner == self.me => self.extend_join(now),
            MemberFrame::JoinAccepted { joiner, head, body } if joiner == self.me => self.take_acceptance(now, from, &head, &body),
            MemberFrame::JoinRefused { joiner, permanent, reason } if joiner == self.me => {
                self.take_refusal(permanent, format!("{addr}: {reason}"));
            }
            MemberFrame::JoinWait { .. } | MemberFrame::JoinAccepted { .. } | MemberFrame::JoinRefused { .. } => {
                self.counters.add(Count::FrameStranger);
            }
            MemberFrame::WhoAreYou => self.say(addr.clone(), MemberFrame::IAm),
            MemberFrame::IAm => self.take_identity(from, addr),
            MemberFrame::Datagram { datagram, blocked } => self.take_tunnelled(now, from, &datagram, blocked),
            MemberFrame::Ask { ask, digest, clock } => self.take_ask_frame(now, from, ask, digest, &clock),
            MemberFrame::Gossip { head, body } => self.take_gossip_frame(now, from, &head, &body),
        }
    }

    fn answer_knock(&mut self, from: NodeId, addr: &NodeAddr) {
        if from == self.me {
            return;
        }
        // Two nodes alone that were told to join each other: the one with the lower address stays.
        if let Some(seeker) = self.seeker.as_ref().filter(|_| self.phase == Phase::Member)
            && seeker.seeds.contains(addr)
            && self.info.addr < *addr
        {
            self.seeker = None;
        }
        let answer = self.answer();
        self.say(addr.clone(), answer);
    }

    pub(super) fn answer(&self) -> MemberFrame {
        MemberFrame::Answer { takes: self.takes_members(), clustered: self.phase == Phase::Member }
    }

    /// Whether this node may admit others.
    pub(super) fn takes_members(&self) -> bool {
        self.phase == Phase::Member && self.seeker.is_none() && self.status().is_some_and(|s| s <= MemberStatus::Up)
    }

    fn take_answer(&mut self, now: Time, from: NodeId, addr: &NodeAddr, takes: bool, clustered: bool) {
        let patience = 3 * self.config.membership.join_retry.get();
        let request = self.request();
        let timeout = self.config.membership.seed_timeout.get();
        let Some(seeker) = &mut self.seeker else { return };
        if !takes {
            if clustered {
                seeker.without.remove(&from);
            } else {
                seeker.without.insert(from);
            }
            // All others are without a cluster: waiting longer would not bring one.
            if seeker.form_at.is_some() && seeker.without.len() >= seeker.seeds.len() && seeker.joining_until.is_none() {
                self.form(now);
            }
        } else if seeker.joining_until.is_none() && from != self.me {
            seeker.joining_until = Some(now + patience);
            // There is a cluster: if it does not answer in time it is asked again before another one is founded.
            seeker.form_at = seeker.form_at.map(|at| at.max(now + patience + timeout));
            self.say(addr.clone(), MemberFrame::Join(Box::new(request)));
        }
    }

    fn extend_join(&mut self, now: Time) {
        let patience = 3 * self.config.membership.join_retry.get();
        let timeout = self.config.membership.seed_timeout.get();
        if let Some(seeker) = &mut self.seeker {
            seeker.joining_until = Some(now + patience);
            seeker.form_at = seeker.form_at.map(|at| at.max(now + patience + timeout));
            seeker.trouble = Some("an earlier life at this address is being removed".into());
        }
    }

    fn take_acceptance(&mut self, now: Time, from: NodeId, head: &[u8], body: &Packed) {
        let alone = self.phase == Phase::Asking || (self.phase == Phase::Member && self.state.members.len() == 1);
        if self.seeker.is_none() || !alone {
            return;
        }
        let nothing = self.pool.as_ref().map(Pool::empty).unwrap_or_default();
        let head = Head::read(&mut Reader::new(head));
        let decoded = head.and_then(|head| self.read_elements(&nothing, Elements::Packed(body)).map(|version| (head, version))).ok();
        let admitted = decoded.filter(|(_, v)| v.status(self.me).is_some_and(|s| s < MemberStatus::Down));
        let Some((head, version)) = admitted else { return self.counters.add(Count::FrameMalformed) };
        self.seeker = None;
        self.phase = Phase::Member;
        self.watch.reset(now);
        self.suspicion = Suspicion::default();
        self.tunnel = Tunnel::default();
        let buried = head.buried(now, &version);
        self.state = State::taken_over(head.uid, version, buried, &head.seen);
        self.changed();
        self.derive();
        self.report_seen(&[from]);
    }

    fn take_refusal(&mut self, permanent: bool, reason: String) {
        if self.seeker.is_none() {
            return;
        }
        if permanent {
            self.refused(reason);
        } else if let Some(seeker) = &mut self.seeker {
            seeker.joining_until = None;
            seeker.trouble = Some(reason);
        }
    }

    /// For good: a node without a cluster ends; one with a cluster of its own keeps it.
    fn refused(&mut self, reason: String) {
        self.seeker = None;
        if self.phase == Phase::Member {
            self.warn("W-JOIN-003", format!("joining was refused for good: {reason}"));
        } else {
            self.end(Ending::Refused(reason));
        }
    }

    fn request(&self) -> JoinRequest {
        JoinRequest {
            addr: self.info.addr.clone(),
            incarnation: self.me.incarnation(),
            roles: self.info.roles.to_vec(),
            app_version: self.info.app_version.to_string(),
            cluster: self.config.cluster.name.clone(),
            protocol: admission::PROTOCOL,
            settings: self.config.must_match(),
        }
    }

    /// Over the link to whoever answers at the address.
    pub(super) fn say(&mut self, to: NodeAddr, frame: MemberFrame) {
        self.counters.add(Count::FramesOut);
        self.out.frame(to, frame);
    }
}
