//! What this node observes: heartbeats to its subjects on the ring, suspicion, signs of life, refused ports.

use std::{
    cell::Cell,
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use super::{
    LinkReport, MemberFrame, MemberStatus, Membership, Phase,
    counters::Count,
    datagram::{Part, ReplayWindow},
    detector::{Subject, Tuning},
    idmap::IdMap,
    state::{Mark, Row},
};
use crate::{
    Config, NodeAddr, NodeId, Time,
    proto::link::{LinkDown, LinkEvent},
};

/// Members up to which a node that may be cut off observes everybody at once.
const SMALL: usize = 64;

/// Beats for which a member that has joined tells those who do not answer who it is.
const NEW_BEATS: u32 = 60;

/// Part of a heartbeat after which a beat without an answer is sent once more.
const AGAIN_AFTER: f64 = 0.4;

/// Subjects up to which each is looked at when its time comes.
const FEW: usize = 16;

/// Observations of this node.
#[derive(Clone, Debug)]
pub(crate) struct Watch {
    pub(crate) tuning: Tuning,
    /// Beats in a row at which most subjects were silent, as far as this node still looked for others.
    pub(super) cut_off: u32,
    subjects: BTreeMap<NodeId, Subject>,
    /// Those of them that are asked in doubt alone, by many at once: their silence is for their observers to judge.
    for_proof: BTreeSet<NodeId>,
    beat_at: Option<Time>,
    /// When beats without an answer are sent once more.
    again_at: Option<Time>,
    /// When something is due, at the earliest: what is heard meanwhile only puts it off. `None`: to be worked out.
    pub(super) due: Cell<Option<Time>>,
    windows: IdMap<ReplayWindow>,
    /// Members came or went since what is kept of them was looked through.
    pub(crate) others: bool,
    /// Members whose link was reset, and when it was noticed.
    reset: BTreeMap<NodeId, Time>,
    /// Members whose port refused since.
    refused: BTreeMap<NodeId, Time>,
    /// When a subject's address was last asked who answers there.
    asked: BTreeMap<NodeId, Time>,
    /// When this node joined.
    joined: Time,
    /// When the newest beat had left that was answered by one that holds this node reachable.
    proven: Option<Time>,
    /// When the last answer came.
    answered: Option<Time>,
}

impl Watch {
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            tuning: Tuning::new(&config.detector),
            cut_off: 0,
            subjects: BTreeMap::new(),
            for_proof: BTreeSet::new(),
            beat_at: None,
            again_at: None,
            due: Cell::new(None),
            windows: IdMap::default(),
            others: false,
            reset: BTreeMap::new(),
            refused: BTreeMap::new(),
            asked: BTreeMap::new(),
            joined: Time::ZERO,
            proven: None,
            answered: None,
        }
    }

    /// The replay window of a sender.
    pub(crate) fn window(&mut self, sender: NodeId) -> &mut ReplayWindow {
        self.windows.get_or_insert_with(sender, ReplayWindow::new)
    }

    pub(crate) fn subjects(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.subjects.keys().copied()
    }

    /// Measures everybody's silence anew: this node was away, or out of reach of all.
    fn restart(&mut self, now: Time) {
        self.subjects.values_mut().for_each(|s| s.restart(now));
        (self.answered, self.cut_off) = (Some(now), 0);
        self.due.set(None);
    }

    /// Forgets everything, for a new cluster.
    pub(crate) fn reset(&mut self, now: Time) {
        self.joined = now;
        self.subjects.clear();
        self.for_proof.clear();
        self.windows = IdMap::default();
        self.reset.clear();
        self.refused.clear();
        self.asked.clear();
        self.proven = None;
        self.answered = None;
        (self.beat_at, self.again_at, self.cut_off) = (None, None, 0);
        self.due.set(None);
    }

    pub(crate) fn subject(&self, id: NodeId) -> Option<&Subject> {
        self.subjects.get(&id)
    }

    /// What follows is not an interval between beats.
    pub(crate) fn interrupt(&mut self, id: NodeId) {
        if let Some(subject) = self.subjects.get_mut(&id) {
            subject.interrupt();
        }
    }

    /// It is held silent no more.
    fn is_back(&mut self, now: Time, id: NodeId) {
        if let Some(subject) = self.subjects.get_mut(&id) {
            subject.is_back(now);
        }
    }

    /// This node was deaf since then.
    pub(super) fn excuse(&mut self, now: Time, id: NodeId, since: Time) {
        if let Some(subject) = self.subjects.get_mut(&id) {
            subject.excuse(now, since);
        }
    }

    /// It sent something as to a member.
    pub(super) fn met(&mut self, now: Time, id: NodeId) {
        if let Some(subject) = self.subjects.get_mut(&id) {
            subject.meet(now);
        }
    }

    /// The longest runs of missed replies, as many of them as fit, the longest first; the number of subjects if that is less.
    pub(crate) fn longest_runs<const N: usize>(&self, now: Time) -> ([u32; N], usize) {
        let mut longest = [0; N];
        for run in self.subjects.values().map(|s| s.run(now, &self.tuning)) {
            let at = longest.partition_point(|&longer| longer >= run);
            if at < N {
                longest[at..].rotate_right(1);
                longest[at] = run;
            }
        }
        (longest, self.subjects.len().min(N))
    }

    /// When the last beat that was answered so was sent.
    pub(crate) fn proven(&self) -> Option<Time> {
        self.proven
    }

    /// Nobody has answered for so long, although somebody was asked several times.
    pub(crate) fn unanswered_for(&self, now: Time, span: Duration) -> bool {
        self.answered.is_none_or(|at| now.since(at) >= span) && self.subjects.values().any(|s| s.seq() >= 3)
    }

    /// That one is observed, and was heard not long ago.
    pub(crate) fn hears(&self, id: NodeId, now: Time) -> bool {
        self.subjects.get(&id).is_some_and(|subject| subject.answers(now, &self.tuning))
    }

    /// Most of those that are observed have answered not long ago: they hear this node too.
    pub(super) fn most_answer(&self, those: impl Iterator<Item = NodeId>, now: Time) -> bool {
        let (mut observed, mut answered) = (0, 0);
        for subject in those.filter_map(|id| self.subjects.get(&id)) {
            observed += 1;
            answered += usize::from(subject.last_reply().is_some_and(|at| now.since(at) < self.tuning.suspicious()));
        }
        answered * 2 > observed
    }

    /// Who has answered a beat without holding this node lost, and when the newest of those had left.
    pub(super) fn proven_by(&self) -> impl Iterator<Item = (NodeId, Time)> + '_ {
        self.subjects.iter().filter_map(|(&id, subject)| Some((id, subject.proven()?)))
    }

    /// Those that are observed but for some: how many there are, and who of them has not replied for longer than healthy ones take, and since when, in
    /// order. Who may not know this node yet owes no reply.
    pub(super) fn unreplying(&self, now: Time, but: impl Fn(NodeId) -> bool) -> (usize, Vec<(Time, NodeId)>) {
        let mut observed = 0;
        let mut silent = vec![];
        for (&id, subject) in self.subjects.iter().filter(|(id, subject)| !but(**id) && !subject.is_stranger(now)) {
            observed += 1;
            let unanswered = subject.unanswered(now);
            if unanswered >= self.tuning.patience() {
                silent.push((now - unanswered, id));
            }
        }
        silent.sort_unstable();
        (observed, silent)
    }

    /// Most are silent, and that one is among them.
    pub(super) fn knows_silent(&self, id: NodeId) -> bool {
        self.cut_off > 0 && self.subjects.get(&id).is_some_and(|subject| subject.run_is_open())
    }

    /// Silence after which a healthy subject is suspected.
    pub(crate) fn patience(&self) -> Duration {
        self.tuning.patience()
    }
}

impl Membership {
    /// False once the membership is over. A node whose own timers ran late was away: it measures everybody's silence anew.
    pub(super) fn awake(&mut self, now: Time) -> bool {
        let late = self.watch.beat_at.is_some_and(|due| now.since(due) > self.watch.tuning.heartbeat);
        if late && self.phase == Phase::Member {
            self.doubt_proof(now);
            if self.config.detector.local_health {
                self.counters.add(Count::Late);
                self.restart_split(now);
                self.watch.restart(now);
                self.suspicion.late(now);
                (self.dirty, self.fresh) = (true, true);
                self.watch.beat_at = Some(now);
                self.watch.due.set(None);
            }
        }
        self.phase != Phase::Ended
    }

    /// Something authentic came from a peer: it lives.
    pub(super) fn take_sign_of_life(&mut self, now: Time, from: NodeId) {
        if from != self.me && self.state.members.contains_key(&from) {
            self.hear_member(now, from);
        }
    }

    /// The same of what is known to be another member.
    pub(super) fn hear_member(&mut self, now: Time, from: NodeId) {
        self.hears_cluster(now);
        self.suspicion.hear(now);
        self.strays.silent.remove(&from);
        if let Some(subject) = self.watch.subjects.get_mut(&from) {
            self.returns.hear(now, from);
            subject.sign_of_life(now);
            // A datagram that was under way when the port refused proves nothing. Where runs are pooled, a conviction stands until replies come
            // again: what a half-broken node sends does not show that it can be reached.
            if !self.pools() && self.own_mark(from) == Some(Mark::Silent) {
                self.set_mark(from, None);
                self.watch.is_back(now, from);
            }
        }
    }

    /// A heartbeat was answered. `lost`: by one that holds this node out of reach, and may be about to have it removed.
    pub(super) fn take_reply(&mut self, now: Time, from: NodeId, seq: u64, lost: bool) {
        let floor = self.floor();
        let Watch { subjects, tuning, due, .. } = &mut self.watch;
        let sent = subjects.get_mut(&from).and_then(|s| {
            let sent = s.reply(now, seq);
            sent.filter(|_| !lost).into_iter().for_each(|sent| s.prove(sent));
            // A steadier subject is suspected earlier.
            let next = s.silent_for(floor).into_iter().chain([due.get(), s.deadline(tuning)]);
            due.set(due.get().and(next.flatten().min()));
            sent
        });
        let proof = sent.filter(|_| !lost);
        self.watch.proven = self.watch.proven.max(proof);
        self.watch.answered = sent.map(|_| now).or(self.watch.answered);
        self.counters.add(if sent.is_some() { Count::RepliesTaken } else { Count::RepliesStray });
        if let Some(sent) = proof {
            self.note_proof(now, from, sent);
        }
        let refused_before = sent.is_some_and(|sent| self.watch.refused.get(&from).is_none_or(|&at| sent > at));
        let back = !self.pools()
            || self.own_mark(from) == Some(Mark::Refused)
            || self.watch.subjects.get(&from).is_some_and(|s| s.recovered(now, &self.watch.tuning, self.suspicion.is_steady()));
        if refused_before && back && self.own_mark(from).is_some() {
            self.watch.refused.remove(&from);
            self.set_mark(from, None);
            self.watch.is_back(now, from);
        }
        if sent.is_some() {
            self.withdraw_hint(now, from);
        }
    }

    /// What a link's change says about its peer.
    pub(super) fn take_link(&mut self, now: Time, event: &LinkEvent) {
        match event {
            LinkEvent::Up { peer, addr, .. } => {
                self.seeker_link_up(addr);
                self.watch.reset.remove(peer);
                self.watch.refused.remove(peer);
                self.take_sign_of_life(now, *peer);
                if self.own_mark(*peer).is_some() {
                    self.set_mark(*peer, None);
                    self.watch.is_back(now, *peer);
                }
            }
            LinkEvent::Down { peer, addr, cause, .. } => {
                self.seeker_link_down(now, addr, cause);
                self.newcomer_link_down(addr, cause);
                self.weigh_link_down(now, *peer, addr, cause);
                self.look_behind(now, *peer, addr, cause);
            }
            LinkEvent::Blocked { .. } | LinkEvent::Writable { .. } => {}
        }
    }

    /// Proof of death: a reset link is redialled; what refuses then, or belongs to another life, is gone. A time-out proves nothing.
    fn weigh_link_down(&mut self, now: Time, peer: Option<NodeId>, addr: &NodeAddr, cause: &LinkDown) {
        if !self.config.downing.proof_of_death.holds() || self.phase != Phase::Member {
            return;
        }
        // A life that is named is meant, be it gone: what is heard late of its links says nothing of the next one at the address.
        let meant = peer.or_else(|| self.state.at(addr).map(|m| m.info.id));
        let Some(id) = meant.filter(|id| *id != self.me && self.state.members.contains_key(id)) else { return };
        match cause {
            LinkDown::Reset => {
                self.watch.reset.insert(id, now);
                self.ask_who(now, id);
            }
            LinkDown::Refused | LinkDown::OtherIncarnation(_) => {
                let known_reset = self.watch.reset.contains_key(&id) || self.refused_by_others(id);
                if known_reset && self.watch.subjects.contains_key(&id) && self.own_mark(id) != Some(Mark::Refused) {
                    self.watch.refused.insert(id, now);
                    self.set_mark(id, Some(Mark::Refused));
                    self.spread.hurry();
                }
            }
            _ => {}
        }
    }

    /// Who is at the address of a member whose link was reset: if it is another life, that may not know of this cluster.
    fn look_behind(&mut self, now: Time, peer: Option<NodeId>, addr: &NodeAddr, cause: &LinkDown) {
        match cause {
            LinkDown::Reset => {
                if let Some(id) = peer.filter(|&id| id != self.me && self.state.members.contains_key(&id)) {
                    self.strays.silent.insert(id);
                    self.ask_who(now, id);
                }
            }
            LinkDown::OtherIncarnation(id) => self.ask_stray(*id, addr),
            _ => {}
        }
    }

    fn refused_by_others(&self, id: NodeId) -> bool {
        let refuses =
            |(&observer, row): (&NodeId, &Row)| row.marks.refuses() && observer != self.me && row.marks.get(id) == Some(Mark::Refused);
        self.state.rows.iter().any(refuses)
    }

    /// Has the engine dial the address.
    pub(super) fn ask_who(&mut self, now: Time, id: NodeId) {
        let every = self.watch.tuning.heartbeat;
        if self.watch.asked.get(&id).is_some_and(|&at| now.since(at) < every / 4) {
            return;
        }
        if let Some(addr) = self.addr_of(id).cloned() {
            self.watch.asked.insert(id, now);
            self.counters.add(Count::FramesOut);
            self.out.frame(addr, MemberFrame::WhoAreYou);
        }
    }

    /// Observes whom the ring says, and whom it holds unreachable until they answer or go.
    ///
    /// Suspects are walked past before they are marked, and a node most of whose subjects are silent observes everybody, or in a large
    /// cluster looks further with each beat: it may be this node that is cut off, and its side of a split must know so as soon as the other
    /// one. Who is taken in for that reason counts as silent for as long as the suspects are, until it answers.
    pub(super) fn assign_watch(&mut self, now: Time) {
        let own = self.state.rows.get(&self.me).map(|r| r.marks.clone()).unwrap_or_default();
        let suspects: Vec<NodeId> =
            self.watch.subjects.iter().filter(|(_, s)| s.suspect(now, &self.watch.tuning)).map(|(&id, _)| id).collect();
        let skip = |id: NodeId| own.has(id) || self.verdict.unreachable.contains_key(&id) || suspects.binary_search(&id).is_ok();
        // Those it has looked further to have not been asked often enough to be suspects; counted as if they had answered, they would end the search.
        let assumed =
            |(id, s): &(&NodeId, &Subject)| self.watch.cut_off > 0 && s.is_assumed_silent() && suspects.binary_search(id).is_err();
        let silent = suspects.len() + self.watch.subjects.iter().filter(assumed).count();
        let cut_off = silent * 2 > self.watch.subjects.len() && !self.suspicion.sick && !self.suspicion.isolated;
        if !self.suspicion.isolated {
            self.watch.cut_off = if cut_off { self.watch.cut_off.max(1) } else { 0 };
        }
        let (ring, monitors) = (self.state.members.ring(), usize::from(self.config.detector.monitors));
        let (mut wanted, enough) = if cut_off { self.look_further(now, skip) } else { (ring.subjects(self.me, monitors, skip), false) };
        wanted.extend(own.subjects());
        if !enough && (cut_off || self.suspicion.sick) {
            // Of a small side of a split, who answers may be all there are. And whoever observes this node will answer, unless it is this one that
            // gets no replies.
            let answering = self.watch.subjects.iter().filter(|(_, s)| s.answers(now, &self.watch.tuning)).map(|(&id, _)| id);
            // One that was removed just now may have answered just before.
            wanted.extend(answering.filter(|id| self.state.members.contains_key(id)));
            wanted.extend(self.suspicion.beaten_by().filter(|&id| ring.place_of(id).is_some()));
        }
        wanted.sort_unstable();
        let asked = self.asked_in_doubt();
        self.watch.for_proof = asked.iter().copied().filter(|id| wanted.binary_search(id).is_err()).collect();
        wanted.extend(asked);
        wanted.sort_unstable();
        wanted.dedup();
        let Self { watch, state, strays, returns, .. } = self;
        watch.due.set(None);
        watch.subjects.retain(|id, _| {
            let stays = wanted.binary_search(id).is_ok();
            if !stays {
                returns.unobserve(*id);
            }
            stays
        });
        let since = now - watch.tuning.suspicious();
        // A member answers no stranger, and gossip takes a number of rounds that grows like this to reach everybody. In a small cluster nobody is
        // suspected sooner anyway.
        let rounds = watch.tuning.heartbeat * (usize::BITS - state.members.len().leading_zeros());
        let known_by_all = watch.joined + rounds;
        for id in wanted {
            watch.subjects.entry(id).or_insert_with(|| {
                let mut subject = Subject::new(&watch.tuning);
                // The welcome of one that is joining may be late as well: until it has that it knows nobody.
                let joins = state.status(id) == Some(MemberStatus::Joining);
                subject.approach(if joins { known_by_all.max(now + 2 * rounds) } else { known_by_all });
                if !suspects.is_empty() {
                    subject.backdate(since);
                }
                subject
            });
        }
        if std::mem::take(&mut watch.others) {
            watch.windows.retain(|id, _| state.members.contains_key(id));
            strays.silent.retain(|id| state.members.contains_key(id));
            for seen in [&mut watch.reset, &mut watch.refused, &mut watch.asked] {
                seen.retain(|id, _| state.members.contains_key(id));
            }
        }
        // The last one of its cluster looks for others.
        if watch.subjects.is_empty() && state.tombstones.is_empty() {
            watch.beat_at = None;
        } else {
            watch.beat_at.get_or_insert(now);
        }
        self.prune_hints();
        if self.config.downing.proof_of_death.holds() && self.state.rows.values().any(|row| row.marks.refuses()) {
            let suspects: Vec<NodeId> = self.watch.subjects().filter(|&id| self.own_mark(id) != Some(Mark::Refused)).collect();
            for id in suspects.into_iter().filter(|&id| self.refused_by_others(id)).collect::<Vec<_>>() {
                self.ask_who(now, id);
            }
        }
    }

    /// On the ring as far as there are enough that answer, and whether there are: a side of a split that has those need not look at all of the other one. In
    /// a large cluster at most twice as far with each beat.
    fn look_further(&self, now: Time, skip: impl Fn(NodeId) -> bool) -> (Vec<NodeId>, bool) {
        let (ring, monitors) = (self.state.members.ring(), usize::from(self.config.detector.monitors));
        let bound = if ring.len() <= SMALL { usize::MAX } else { monitors.saturating_mul(1 << self.watch.cut_off.min(16)) };
        let (mut wanted, mut counted, mut answering) = (vec![], 0, 0);
        for id in ring.after(self.me) {
            wanted.push(id);
            counted += usize::from(!skip(id));
            answering += usize::from(!skip(id) && self.watch.hears(id, now));
            if counted == bound || answering == monitors {
                break;
            }
        }
        (wanted, answering == monitors)
    }

    /// When to look at the subjects, or earlier.
    pub(super) fn watch_due(&self) -> Option<Time> {
        if self.phase != Phase::Member {
            return None;
        }
        self.watch.due.get().or_else(|| {
            let due = self.watch_due_now();
            self.watch.due.set(due);
            due
        })
    }

    /// Of many subjects, those whose time comes within a twentieth of a heartbeat are looked at together.
    fn watch_due_now(&self) -> Option<Time> {
        let pause = if self.watch.subjects.len() > FEW { self.watch.tuning.heartbeat / 20 } else { Duration::ZERO };
        let earliest = self.suspicion.judged().map(|at| at + pause);
        let floor = self.floor();
        let dues = self.unaccused().flat_map(|(_, s)| s.silent_for(floor).into_iter().chain([s.deadline(&self.watch.tuning)])).flatten();
        let judged = self.suspicion.judged();
        let dues = dues.filter(|&at| judged.is_none_or(|judged| at > judged)).map(|at| earliest.map_or(at, |earliest| at.max(earliest)));
        dues.chain(self.watch.beat_at).chain(self.watch.again_at).min()
    }

    /// Beats and suspicions that are due.
    pub(super) fn watch_on(&mut self, now: Time) {
        if self.phase != Phase::Member || self.watch_due().is_none_or(|at| at > now) {
            return;
        }
        self.watch.due.set(None);
        if self.watch.beat_at.is_some_and(|at| at <= now) {
            let next = self.watch.beat_at.map_or(now, |at| at + self.watch.tuning.heartbeat);
            self.watch.beat_at = Some(if next > now { next } else { now + self.watch.tuning.heartbeat });
            self.suspicion.punctual();
            self.watch_tunnel(now);
            if self.watch.cut_off > 0 && !self.suspicion.isolated {
                self.watch.cut_off += 1;
            }
            self.judge_subjects(now);
            self.assign_watch(now);
            self.weigh_proof(now);
            self.send_hints(now);
            self.look_for_strays(now);
            self.watch.again_at = (!self.suspicion.is_steady()).then(|| now + self.watch.tuning.heartbeat.mul_f64(AGAIN_AFTER));
            let Watch { subjects, tuning, .. } = &mut self.watch;
            let beats: Vec<(NodeId, u64)> = subjects.iter_mut().map(|(&id, s)| (id, s.beat(now, tuning))).collect();
            let doubt = self.in_doubt();
            for (id, seq) in beats {
                self.counters.add(Count::BeatsSent);
                self.send_parts(id, &[Part::Beat { seq, doubt }]);
            }
            if now < self.watch.joined + NEW_BEATS * self.watch.tuning.heartbeat {
                let strangers: Vec<NodeId> = self.unaccused().filter(|(_, s)| s.ignores()).map(|(id, _)| id).collect();
                strangers.into_iter().for_each(|id| self.introduce_myself(now, id));
            }
        }
        if self.watch.again_at.is_some_and(|at| at <= now) {
            self.watch.again_at = None;
            self.beat_again(now);
        }
        if self.watch_due_now().is_some_and(|at| at <= now) {
            self.judge_subjects(now);
        }
    }

    /// Where links are not good, a lost beat or reply is made good before it counts: where a third of all datagrams is lost, a quarter of the beats is
    /// missed instead of half of them, and the dead are told from the unlucky in half the time; and who was accused answers so many in a row in time. Where
    /// they are good, who misses some is to stand out.
    fn beat_again(&mut self, now: Time) {
        let beats: Vec<(NodeId, u64)> = self.watch.subjects.iter_mut().filter_map(|(&id, s)| Some((id, s.beat_again(now)?))).collect();
        let doubt = self.in_doubt();
        for (id, seq) in beats {
            self.counters.add(Count::BeatsRepeated);
            self.send_parts(id, &[Part::Beat { seq, doubt }]);
        }
    }

    /// This node's observations, by address of the subject.
    pub(super) fn reports(&self, now: Time) -> Vec<LinkReport> {
        let by_address = self.state.members.roster().order.iter().filter_map(|id| self.watch.subjects.get(id).map(|s| (*id, s)));
        by_address
            .map(|(id, s)| {
                let phi = s.phi(now, &self.watch.tuning);
                LinkReport {
                    subject: id,
                    phi,
                    threshold: self.watch.tuning.threshold,
                    rtt_us_p50: s.trip(0.5),
                    rtt_us_p99: s.trip(0.99),
                    loss: s.loss(),
                    state: match (self.own_mark(id), s.last_reply()) {
                        (Some(_), _) => "unreachable",
                        (None, None) => "new",
                        (None, Some(_)) if phi >= 1.0 => "suspect",
                        _ => "ok",
                    },
                    last_reply: s.last_reply(),
                }
            })
            .collect()
    }

    /// Suspicion of a subject now, for the reason of an event.
    pub(super) fn phi_of(&self, id: NodeId, now: Time) -> Option<f64> {
        self.watch.subjects.get(&id).map(|s| s.phi(now, &self.watch.tuning))
    }

    pub(super) fn own_mark(&self, id: NodeId) -> Option<Mark> {
        self.state.rows.get(&self.me).and_then(|r| r.marks.get(id))
    }

    /// The subjects that this node does not accuse. Both stand in order of the ids, and there can be a thousand of each.
    pub(super) fn unaccused(&self) -> impl Iterator<Item = (NodeId, &Subject)> {
        let row = self.state.rows.get(&self.me);
        let mut accused = row.into_iter().flat_map(|row| row.marks.subjects()).peekable();
        let subjects = self.watch.subjects.iter().map(|(&id, subject)| (id, subject));
        subjects.filter(move |&(id, _)| {
            while accused.next_if(|&other| other < id).is_some() {}
            accused.peek() != Some(&id)
        })
    }

    /// Whether others judge that subject.
    pub(super) fn is_asked_alone(&self, id: NodeId) -> bool {
        self.watch.for_proof.contains(&id)
    }

    /// Changes this node's row.
    pub(super) fn set_mark(&mut self, id: NodeId, mark: Option<Mark>) {
        self.watch.due.set(None);
        let row = self.state.rows_mut().get_or_insert_with(self.me, Row::default);
        (row.version, row.dot) = (row.version + 1, 0);
        row.marks.set(id, mark);
        self.touch();
    }
}
