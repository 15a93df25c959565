//! The joiner's side: seeds are asked, the first that answers from within a cluster is joined; only the first seed may form one, and not by mere silence
//! where it has heard that there is one.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    time::Duration,
};

use super::{
    Ending, JoinRequest, MemberFrame, MemberStatus, Membership, Phase, admission,
    codec::Head,
    counters::Count,
    frame::Packed,
    gossip::Elements,
    pool::Pool,
    proof::Proof,
    state::{Entry, State},
    strays::{Kin, Strays},
    suspicion::Suspicion,
    tunnel::Tunnel,
};
use crate::{
    NodeAddr, NodeId, Time,
    proto::{
        link::{LinkDown, longest_pause},
        wire::Reader,
    },
};

/// How often an operator is told that no seed has taken this node in.
const WARN_EVERY: Duration = Duration::from_secs(10);

/// A search for a cluster.
#[derive(Clone, Debug)]
pub(crate) struct Seeker {
    /// Whom to ask; not this node itself.
    seeds: Vec<NodeAddr>,
    /// The first one of the configuration, who founds a cluster if there is none: by another name it may be this node. Of several behind one name it
    /// is the first that is there.
    first: Option<NodeAddr>,
    /// The addresses of seeds whose name has several, each a seed of its own, in an order that does not depend on the resolver. Others may be behind
    /// the name later.
    behind: BTreeMap<NodeAddr, Vec<NodeAddr>>,
    /// This node's, as advertised and as others see it.
    own: BTreeSet<NodeAddr>,
    /// How many that may become.
    seeds_max: usize,
    retry_at: Time,
    warn_at: Time,
    /// When this node forms a cluster of its own if nobody answers, as the first seed; `None` if it may not. It does so earlier once all have said twice
    /// that they have none.
    form_at: Option<Time>,
    /// Since when all have said that they have none: they are asked once more, as members may be about to find them.
    none_since: Option<Time>,
    /// They have been asked once more.
    asked_twice: bool,
    /// There is a cluster, or was one: if it is silent now, a new one would be a second one beside it.
    heard: bool,
    /// A join is under way until then.
    joining_until: Option<Time>,
    /// Since when one that is alone in its cluster has offered to take this node in.
    alone: Option<Time>,
    /// Which address those advertise who answered under the name of a seed.
    named: BTreeMap<NodeAddr, NodeAddr>,
    /// Who answered that it has no cluster either, as advertised.
    without: BTreeSet<NodeAddr>,
    /// Whose port refused the last connection.
    refusing: BTreeSet<NodeAddr>,
    /// Who is there, as there is a link, as advertised: what it answers may be slow to come.
    there: BTreeSet<NodeAddr>,
    /// What went wrong last.
    trouble: Option<String>,
}

/// Seeds that are named to an operator.
const NAMED_MAX: usize = 8;
/// How many intervals between two knocks a join may take.
const PATIENCE: u32 = 3;
/// How many intervals between two knocks a node that was downed waits for another cluster than one of a single node.
const LONE_WAIT: u32 = 6;
/// How often the time doubles after which a first seed founds a cluster that gave way in the lives before.
const PATIENCE_DOUBLINGS: u32 = 4;
/// How many members that it reaches a node names to a joiner, and how many that it does not: those who downed it may be among them.
const OTHERS_MAX: usize = 4;
/// How many one that was a member names of those whom it asks itself.
const ASKED_MAX: usize = 16;
/// How many such hints a joiner follows in one search.
const HINTS_MAX: usize = 64;
/// Who might found a cluster asks so many of those who have connected themselves.
const THERE_MAX: usize = 64;
/// Heartbeats for which a first seed waits at least when all have said that they have no cluster.
const FOUND_WITHIN: u32 = 2;
/// How many times as long as for others it waits for the answers of those who are there.
const AWAITED: u32 = 2;

/// Characters of another node's words that are repeated.
const WORDS_MAX: usize = 500;

/// What another node says, for a log or a terminal: on one line, without control characters, and not for ever.
fn printable(text: &str) -> String {
    let plain = |c: char| if c.is_control() { '\u{fffd}' } else { c };
    text.chars().take(WORDS_MAX).map(plain).collect()
}

impl Seeker {
    /// Asks those too; returns who is new.
    fn follow(&mut self, others: Vec<NodeAddr>, me: &NodeAddr) -> Vec<NodeAddr> {
        let known = self.seeds.len();
        for addr in others.into_iter().filter(|addr| addr != me && addr.port != 0) {
            if self.seeds.len() < self.seeds_max && !self.seeds.contains(&addr) {
                self.seeds.push(addr);
            }
        }
        self.seeds[known..].to_vec()
    }

    /// There is a cluster. `for_good`: if it falls silent, that is no reason to found another one.
    fn put_off(&mut self, until: Time, for_good: bool) {
        self.heard |= for_good;
        (self.none_since, self.asked_twice) = (None, false);
        self.form_at = self.form_at.map(|at| at.max(until));
    }

    /// Somebody who advertises `addr` answers under that name.
    fn hear(&mut self, name: NodeAddr, addr: &NodeAddr) {
        self.refusing.remove(&name);
        self.refusing.remove(addr);
        if name != *addr && self.targets().any(|target| *target == name) {
            self.named.insert(name, addr.clone());
        }
    }

    /// The seeds, of a name with several addresses each of those.
    fn targets(&self) -> impl Iterator<Item = &NodeAddr> {
        let behind = |seed| self.behind.get(seed).map_or(std::slice::from_ref(seed), Vec::as_slice);
        self.seeds.iter().flat_map(behind).filter(|addr| !self.own.contains(*addr))
    }

    /// Whom it asks, each once, by the advertised address as far as that is known.
    fn asked(&self) -> BTreeSet<&NodeAddr> {
        self.targets().map(|seed| self.named.get(seed).unwrap_or(seed)).collect()
    }

    /// Whether that is the address of the first seed, or one of those.
    fn is_of_first(&self, addr: &NodeAddr) -> bool {
        self.first.as_ref().is_some_and(|first| first == addr || self.behind.get(first).is_some_and(|all| all.contains(addr)))
    }

    /// Addresses of the first seed's name that come before this node's: it founds nothing unless nobody is there.
    fn ahead(&self) -> impl Iterator<Item = &NodeAddr> {
        let all = self.first.as_ref().and_then(|first| self.behind.get(first));
        all.into_iter().flatten().take_while(|addr| !self.own.contains(*addr))
    }

    /// Nobody is at that address of a name at another one of which somebody has no cluster, or this node is; or it is of the other family, of which each node
    /// that has one may have an address, and no way may lead there.
    fn is_spare(&self, addr: &NodeAddr, proves: bool) -> bool {
        let without = |other: &NodeAddr| self.own.contains(other) || self.without.contains(self.named.get(other).unwrap_or(other));
        let stands_in = |other: &NodeAddr| without(other) && ((proves && self.refusing.contains(addr)) || family(other) != family(addr));
        self.behind.values().any(|all| all.contains(addr) && all.iter().any(stands_in))
    }

    /// Whether somebody who is there has not said that it has no cluster, and there is time to wait for that.
    fn awaits(&self, now: Time, patience: Duration) -> bool {
        self.form_at.is_some_and(|at| now < at + AWAITED * patience) && !self.there.is_subset(&self.without)
    }

    /// Whether a cluster is to be formed. `proves`: a refused connection proves that no process is there. It does so too where most say that they
    /// have no cluster: one that lives on without those is not to be expected.
    fn forms(&self, now: Time, proves: bool) -> bool {
        let founds = self.joining_until.is_none() && self.ahead().all(|addr| self.refusing.contains(addr));
        let Some(form_at) = self.form_at.filter(|_| founds) else { return false };
        let (spare, asked) = self.spare_and_asked(proves);
        let without = asked.iter().filter(|addr| self.without.contains(**addr)).count();
        let proves = proves || (without + 1) * 2 > asked.len() + 1;
        let gone = |addr: &&NodeAddr| self.without.contains(*addr) || (proves && self.refusing.contains(*addr));
        let silent = form_at <= now && (!self.heard || asked.iter().all(gone));
        silent || (self.asked_twice && self.all_are_without(&spare, &asked))
    }

    /// Those from whom nothing is to be expected, and whom it asks beside them.
    fn spare_and_asked(&self, proves: bool) -> (Vec<&NodeAddr>, Vec<&NodeAddr>) {
        self.asked().into_iter().partition(|addr| self.is_spare(addr, proves || !self.heard))
    }

    /// Whether all have said that they have no cluster.
    fn all_are_without(&self, spare: &[&NodeAddr], asked: &[&NodeAddr]) -> bool {
        // Whoever was at the only addresses that there are may be out of reach.
        let alone = asked.is_empty() && spare.iter().any(|addr| !addr.is_loopback());
        !alone && asked.iter().all(|addr| self.without.contains(*addr))
    }

    /// Notes that all have said that they have no cluster. True if they have for so long that they are to be asked once more: whoever has just started may
    /// know of none because its members have not found it yet.
    fn asks_once_more(&mut self, now: Time, proves: bool, wait: Duration) -> bool {
        if self.form_at.is_none() || self.asked_twice || self.joining_until.is_some() {
            return false;
        }
        let (spare, asked) = self.spare_and_asked(proves);
        self.none_since = self.none_since.or_else(|| self.all_are_without(&spare, &asked).then_some(now));
        self.asked_twice = self.none_since.is_some_and(|since| since + wait <= now);
        if self.asked_twice {
            self.without.clear();
        }
        self.asked_twice
    }

    /// What an operator is told while no cluster is found.
    fn complaint(&self) -> String {
        let mut asked: Vec<String> = self.seeds.iter().take(NAMED_MAX).map(ToString::to_string).collect();
        if self.seeds.len() > NAMED_MAX {
            asked.push(format!("{} more", self.seeds.len() - NAMED_MAX));
        }
        let trouble = self.trouble.as_deref().unwrap_or("no answer");
        let mut text = format!("no cluster found yet; asking {} again ({trouble})", asked.join(", "));
        if self.form_at.is_some() && self.heard {
            let (without, all) = (self.without.len(), self.asked().len());
            text += &format!(
                "; as there was a cluster, a new one is formed only when all of them say that they have none, or most do and the others refuse \
                 connections: {without} of {all} did; if the others are gone for good, start this process again"
            );
        }
        text
    }
}

/// Of the address of a node, if it is none of a name.
fn ip(addr: &NodeAddr) -> Option<IpAddr> {
    addr.host.parse().ok()
}

fn family(addr: &NodeAddr) -> Option<bool> {
    ip(addr).map(|ip| ip.is_ipv6())
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
        let (named_first, first) = (seeds.first().cloned(), seeds.first() == Some(&self.info.addr));
        let empty = seeds.is_empty();
        seeds.retain(|s| *s != self.info.addr);
        seeds.sort();
        seeds.dedup();
        if seeds.is_empty() && (first || empty) {
            return self.form();
        }
        self.phase = Phase::Asking;
        let form_at = first.then(|| now + self.seed_patience());
        // There is a cluster that downed this node, or was.
        self.begin_seeking(now, seeds, named_first.filter(|_| !first), form_at, self.config.heritage.downed);
    }

    /// The first seed waits so long for others before it founds a cluster. Who gave way again and again takes its time.
    fn seed_patience(&self) -> Duration {
        self.config.membership.seed_timeout.get() * (1 << self.config.heritage.superseded.min(PATIENCE_DOUBLINGS))
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
        let (form_at, heard) = self.seeker.as_ref().map_or((None, false), |s| (s.form_at, s.heard));
        if self.phase == Phase::Idle {
            self.phase = Phase::Asking;
        }
        self.begin_seeking(now, seeds, None, form_at, heard);
        Ok(())
    }

    fn begin_seeking(&mut self, now: Time, seeds: Vec<NodeAddr>, first: Option<NodeAddr>, form_at: Option<Time>, heard: bool) {
        self.seeker = Some(Seeker {
            seeds_max: seeds.len() + HINTS_MAX,
            seeds,
            behind: BTreeMap::new(),
            own: [self.info.addr.clone()].into(),
            first,
            retry_at: now,
            warn_at: now + WARN_EVERY,
            form_at,
            none_since: None,
            asked_twice: false,
            heard,
            joining_until: None,
            alone: None,
            named: BTreeMap::new(),
            without: BTreeSet::new(),
            refusing: BTreeSet::new(),
            there: BTreeSet::new(),
            trouble: None,
        });
        self.seek_on(now);
    }

    pub(super) fn seek_due(&self) -> Option<Time> {
        let seeker = self.seeker.as_ref()?;
        // Who waits for more than silence looks each time it asks, or as it is refused.
        let waits = seeker.joining_until.is_some() || seeker.heard || seeker.ahead().next().is_some() || !seeker.there.is_empty();
        let form_at = seeker.form_at.filter(|_| !waits);
        let again_at = seeker.none_since.filter(|_| !seeker.asked_twice).map(|since| since + self.found_patience());
        let times = [Some(seeker.retry_at), Some(seeker.warn_at), form_at, again_at];
        times.into_iter().flatten().min()
    }

    /// Asks again, warns, forms a cluster, as due.
    pub(super) fn seek_on(&mut self, now: Time) {
        let retry = self.config.membership.join_retry.get();
        let Some(seeker) = &mut self.seeker else { return };
        if seeker.joining_until.is_some_and(|at| at <= now) {
            seeker.joining_until = None;
        }
        // Where others come first, it matters whether they are there now.
        if seeker.ahead().next().is_none() && self.forms(now) {
            return self.form();
        }
        let (proves, wait) = (self.config.downing.proof_of_death.holds(), self.found_patience());
        let Some(seeker) = &mut self.seeker else { return };
        if seeker.asks_once_more(now, proves, wait) || seeker.retry_at <= now {
            seeker.retry_at = now + retry;
            // Who had none a while ago may have one by now, and be where nobody was.
            seeker.without.clear();
            let ahead: Vec<NodeAddr> = seeker.ahead().cloned().collect();
            seeker.refusing.retain(|addr| !ahead.contains(addr));
            if seeker.joining_until.is_none() {
                let names: Vec<NodeAddr> = seeker.behind.keys().cloned().collect();
                let targets: BTreeSet<NodeAddr> = seeker.targets().chain(&seeker.there).cloned().collect();
                names.into_iter().for_each(|name| self.out.resolve(name));
                targets.into_iter().for_each(|target| self.knock(target));
            }
        }
        let Some(seeker) = &mut self.seeker else { return };
        if seeker.warn_at <= now {
            seeker.warn_at = now + WARN_EVERY;
            let text = seeker.complaint();
            self.warn("W-JOIN-002", text);
        }
    }

    /// Members of a cluster look at the first seed's address with each heartbeat, but not during the pause behind a dial that was refused.
    fn found_patience(&self) -> Duration {
        let pause = longest_pause(self.config.membership.seed_timeout.get());
        (FOUND_WITHIN * self.config.detector.heartbeat_interval.get()).max(pause * 3 / 2)
    }

    /// Whether this node founds a cluster now.
    fn forms(&self, now: Time) -> bool {
        let (proves, patience) = (self.config.downing.proof_of_death.holds(), self.seed_patience());
        self.seeker.as_ref().is_some_and(|seeker| seeker.forms(now, proves) && !seeker.awaits(now, patience))
    }

    /// Somebody is there, and may know of a cluster though it is none of the seeds.
    pub(super) fn seeker_link_up(&mut self, addr: &NodeAddr) {
        let Some(seeker) = self.seeker.as_mut().filter(|seeker| seeker.form_at.is_some()) else { return };
        if seeker.there.len() < THERE_MAX && seeker.there.insert(addr.clone()) && !seeker.asked().contains(addr) {
            self.knock(addr.clone());
        }
    }

    /// Founds a cluster of one.
    fn form(&mut self) {
        self.seeker = None;
        self.strays = Strays::default();
        self.phase = Phase::Member;
        self.state = State::founded(self.rng.next_u64());
        self.state.members_mut().insert(self.me, Entry::joining(self.info.clone(), 1));
        self.touch();
    }

    /// A link to a seed did not come about, or ended.
    pub(super) fn seeker_link_down(&mut self, now: Time, addr: &NodeAddr, cause: &LinkDown) {
        if *cause == LinkDown::Itself {
            let me = self.info.addr.clone();
            self.remember_name(now, addr, &me);
        }
        let Some(seeker) = &mut self.seeker else { return };
        // Another one may answer there next time.
        seeker.there.remove(seeker.named.get(addr).unwrap_or(addr));
        seeker.named.retain(|name, at| name != addr && at != addr);
        seeker.without.remove(addr);
        if !seeker.targets().any(|target| target == addr) {
            return;
        }
        match cause {
            LinkDown::Refused => seeker.refusing.insert(addr.clone()),
            _ => seeker.refusing.remove(addr),
        };
        match cause {
            LinkDown::Rejected(reason) => {
                let reason = format!("{addr} refused the greeting: {reason}");
                self.refused(reason);
            }
            LinkDown::Itself => self.leads_back(now, addr),
            LinkDown::Unresolved(error) => seeker.trouble = Some(format!("{addr}: the host name has no address: {error}")),
            LinkDown::Refused => {
                seeker.trouble = Some(format!("{addr}: connection refused"));
                let counts = seeker.is_spare(addr, true) || seeker.ahead().any(|ahead| ahead == addr);
                if counts && self.forms(now) {
                    self.form();
                }
            }
            LinkDown::TimedOut => seeker.trouble = Some(format!("{addr}: no connection in time")),
            LinkDown::Protocol(what) => seeker.trouble = Some(format!("{addr}: {what}")),
            LinkDown::Elsewhere(node) => seeker.trouble = Some(format!("{addr}: another node answers there, {node}")),
            LinkDown::Reset | LinkDown::OtherIncarnation(_) | LinkDown::Closed => {}
        }
    }

    /// The name of a seed has these addresses.
    pub(super) fn take_addresses(&mut self, now: Time, name: &NodeAddr, mut found: Vec<NodeAddr>) {
        let form_at = now + self.seed_patience();
        let Some(seeker) = self.seeker.as_mut().filter(|seeker| seeker.seeds.contains(name)) else { return };
        found.sort();
        found.dedup();
        let before: Vec<NodeAddr> = seeker.targets().cloned().collect();
        match found.len() {
            // It is dialled by its name.
            0 | 1 => seeker.behind.remove(name),
            _ => seeker.behind.insert(name.clone(), found),
        };
        if seeker.own.iter().any(|addr| seeker.is_of_first(addr)) {
            seeker.form_at.get_or_insert(form_at);
        }
        let new: Vec<NodeAddr> = seeker.targets().filter(|target| !before.contains(target)).cloned().collect();
        for target in new.into_iter().filter(|target| target != name) {
            self.knock(target);
        }
    }

    /// That seed is this node, by another name than it tells others.
    fn leads_back(&mut self, now: Time, addr: &NodeAddr) {
        let patience = self.seed_patience();
        let Some(seeker) = &mut self.seeker else { return };
        seeker.seeds.retain(|seed| seed != addr);
        seeker.own.insert(addr.clone());
        if seeker.is_of_first(addr) {
            seeker.form_at.get_or_insert(now + patience);
        }
        let nobody_else = seeker.targets().next().is_none();
        match (nobody_else, seeker.form_at) {
            (true, Some(_)) => self.form(),
            (true, None) => self.refused(format!("{addr} leads back to this node, and there is nobody else to ask")),
            _ => {}
        }
    }

    /// A frame of a peer.
    pub(super) fn take_frame(&mut self, now: Time, from: NodeId, addr: &NodeAddr, frame: MemberFrame) {
        match frame {
            MemberFrame::Knock { at } => self.answer_knock(from, addr, at),
            MemberFrame::Answer { at, takes, cluster, settings, others, members, ups, out }
                if self.phase == Phase::Member && self.seeker.is_none() =>
            {
                self.meet_stray(now, from, addr, &at, Kin { takes, cluster, settings, others, members, ups, out });
            }
            MemberFrame::Answer { at, takes, cluster, others, .. } => {
                if let Some(seeker) = &mut self.seeker {
                    seeker.hear(at, addr);
                }
                match takes {
                    true => self.take_invitation(now, from, addr, others),
                    false => self.take_no(now, addr, cluster != 0, others),
                }
            }
            MemberFrame::Join(request) => self.take_join(now, from, addr, &request),
            MemberFrame::JoinWait { joiner } if joiner == self.me => self.extend_join(now),
            MemberFrame::JoinAccepted { joiner, head, body } if joiner == self.me => self.take_acceptance(now, from, &head, &body),
            MemberFrame::JoinRefused { joiner, permanent, reason } if joiner == self.me => {
                self.take_refusal(permanent, format!("{addr}: {}", printable(&reason)));
            }
            MemberFrame::Removed { node } if node == self.me && self.seeker.is_some() => self.take_removal(addr),
            // The state says it as well, by datagrams, if those arrive. Of two parts that have removed each other neither believes the other.
            MemberFrame::Removed { node } if node == self.me && self.phase == Phase::Member && self.state.is_in(from) => {
                self.end_removed(now);
            }
            MemberFrame::JoinWait { .. }
            | MemberFrame::JoinAccepted { .. }
            | MemberFrame::JoinRefused { .. }
            | MemberFrame::Removed { .. } => {
                self.counters.add(Count::FrameStranger);
            }
            MemberFrame::WhoAreYou => self.say(addr.clone(), MemberFrame::IAm),
            MemberFrame::IAm => {
                self.take_identity(from, addr);
                self.ask_stray(from, addr);
            }
            MemberFrame::Datagram { datagram, blocked } => self.take_tunnelled(now, from, &datagram, blocked),
            MemberFrame::Ask { ask, digest, clock } => self.take_ask_frame(now, from, ask, digest, &clock),
            MemberFrame::Gossip { head, body } => self.take_gossip_frame(now, from, &head, &body),
        }
    }

    /// `at`: under which name this node was asked.
    fn answer_knock(&mut self, from: NodeId, addr: &NodeAddr, at: NodeAddr) {
        if from == self.me {
            return;
        }
        // Two nodes alone that were told to join each other: the one with the lower address stays.
        if let Some(seeker) = self.seeker.as_ref().filter(|_| self.phase == Phase::Member)
            && seeker.asked().contains(addr)
            && self.info.addr < *addr
        {
            self.seeker = None;
        }
        let answer = self.answer_under(at, from, addr, self.takes_members());
        self.say(addr.clone(), answer);
    }

    /// To that node at that address, which has not knocked.
    pub(super) fn answer(&self, asker: NodeId, addr: &NodeAddr) -> MemberFrame {
        self.answer_as(asker, addr, self.takes_members())
    }

    pub(super) fn answer_as(&self, asker: NodeId, addr: &NodeAddr, takes: bool) -> MemberFrame {
        self.answer_under(self.info.addr.clone(), asker, addr, takes)
    }

    fn answer_under(&self, at: NodeAddr, asker: NodeId, addr: &NodeAddr, takes: bool) -> MemberFrame {
        let cluster = if self.phase == Phase::Member { self.state.uid } else { 0 };
        let (members, ups) = self.weight();
        MemberFrame::Answer {
            at,
            takes,
            cluster,
            settings: self.config.digest(),
            others: self.others(addr),
            members,
            ups,
            out: !self.state.is_in(asker),
        }
    }

    /// Whom the node at that address can ask too: it may know nobody else, and this node may end before it has an answer.
    pub(super) fn others(&self, asker: &NodeAddr) -> Vec<NodeAddr> {
        // Who was a member, and has no cluster now, knows that there was one.
        if let Some(seeker) = self.seeker.as_ref().filter(|s| s.heard && self.phase == Phase::Asking) {
            return seeker.seeds.iter().filter(|addr| *addr != asker).take(ASKED_MAX).cloned().collect();
        }
        let reached = |m: &&Entry| !self.verdict.unreachable.contains_key(&m.info.id);
        let up = |m: &&Entry| m.status == MemberStatus::Up && m.info.id != self.me && m.info.addr != *asker;
        let reached = self.state.members.values().filter(reached).filter(up).take(OTHERS_MAX);
        let lost = self.lost().filter_map(|id| self.state.members.get(&id)).filter(up).take(OTHERS_MAX);
        reached.chain(lost).map(|m| m.info.addr.clone()).collect()
    }

    /// Whether this node may admit others.
    pub(super) fn takes_members(&self) -> bool {
        self.phase == Phase::Member && self.seeker.is_none() && self.status().is_some_and(|s| s <= MemberStatus::Up)
    }

    /// The node that answers may take this one in.
    fn take_invitation(&mut self, now: Time, from: NodeId, addr: &NodeAddr, others: Vec<NodeAddr>) {
        let (request, me, until) = (self.request(), self.me, self.next_ask(now));
        let (rejoins, retry, for_good) = (self.config.heritage.downed, self.config.membership.join_retry.get(), self.hears_for_good());
        let Some(seeker) = &mut self.seeker else { return };
        seeker.without.remove(addr);
        if seeker.joining_until.is_some() || from == me {
            return;
        }
        // It may have been founded where nobody was heard, beside the cluster that this node was in: then it gives way as soon as that finds it.
        if rejoins && others.is_empty() && now < *seeker.alone.get_or_insert(now) + LONE_WAIT * retry {
            return;
        }
        // It may leave before it has taken this node in: then there are others to ask.
        seeker.follow(others, &self.info.addr);
        seeker.joining_until = Some(now + self.config.membership.join_retry.get() * PATIENCE);
        seeker.put_off(until, for_good);
        self.say(addr.clone(), MemberFrame::Join(Box::new(request)));
    }

    /// The node that answers takes nobody.
    fn take_no(&mut self, now: Time, addr: &NodeAddr, clustered: bool, others: Vec<NodeAddr>) {
        let (until, rejoins, for_good) = (self.next_ask(now), self.config.heritage.downed, self.hears_for_good());
        let Some(seeker) = &mut self.seeker else { return };
        match clustered {
            true => seeker.without.remove(addr),
            false => seeker.without.insert(addr.clone()),
        };
        if clustered {
            seeker.put_off(until, for_good);
            // Its cluster ends with it.
            seeker.heard = rejoins || for_good && !others.is_empty();
        }
        let mut new = vec![];
        if clustered || seeker.form_at.is_some() {
            new = seeker.follow(others, &self.info.addr);
        }
        // All others are without a cluster, twice: waiting longer would not bring one.
        if self.forms(now) {
            return self.form();
        }
        let (proves, wait) = (self.config.downing.proof_of_death.holds(), self.found_patience());
        if let Some(seeker) = &mut self.seeker
            && seeker.asks_once_more(now, proves, wait)
        {
            seeker.retry_at = now;
        }
        for addr in new {
            self.knock(addr);
        }
    }

    /// It had been taken in, did not learn of it, and was removed again.
    fn take_removal(&mut self, addr: &NodeAddr) {
        let why = format!("{addr} says that it was removed before it knew that it had been taken in");
        if self.phase == Phase::Asking { self.end(Ending::Downed(why)) } else { self.refused(why) }
    }

    /// Who gave way to a cluster that falls silent then may found its own again: nobody had joined it, and nobody downed it.
    fn hears_for_good(&self) -> bool {
        self.config.heritage.superseded == 0
    }

    /// When a cluster that was heard of has been asked again in vain.
    fn next_ask(&self, now: Time) -> Time {
        now + self.config.membership.join_retry.get() * PATIENCE + self.config.membership.seed_timeout.get()
    }

    fn extend_join(&mut self, now: Time) {
        let (until, for_good) = (self.next_ask(now), self.hears_for_good());
        if let Some(seeker) = &mut self.seeker {
            seeker.joining_until = Some(now + self.config.membership.join_retry.get() * PATIENCE);
            seeker.put_off(until, for_good);
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
        let admitted = decoded.filter(|(_, v)| v.is_in(self.me));
        let Some((head, version)) = admitted else { return self.counters.add(Count::FrameMalformed) };
        self.seeker = None;
        self.phase = Phase::Member;
        self.watch.reset(now);
        self.proof = Proof::default();
        self.suspicion = Suspicion::default();
        self.tunnel = Tunnel::default();
        self.strays = Strays::default();
        self.buried = false;
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

    /// Asks whoever answers there.
    pub(super) fn knock(&mut self, at: NodeAddr) {
        self.say(at.clone(), MemberFrame::Knock { at });
    }

    /// Over the link to whoever answers at the address.
    pub(super) fn say(&mut self, to: NodeAddr, frame: MemberFrame) {
        self.counters.add(Count::FramesOut);
        self.out.frame(to, frame);
    }
}
