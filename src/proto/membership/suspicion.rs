//! When silence becomes an accusation: runs pooled with the other monitors, the health of this node itself, and who it can hear at all.

use std::{cell::LazyCell, collections::BTreeMap, time::Duration};

use super::{
    Membership, Phase,
    counters::Count,
    datagram::{self, Part},
    detector::Subject,
    pooled,
    state::Mark,
};
use crate::{NodeId, Time, config::DetectorVerdict};

/// Run of missed replies from which on the other monitors are told.
const HINT_RUN: u32 = 2;
/// Beats at which most subjects are silent after which it is this node that cannot be reached.
const CUT_OFF: u32 = 3;
/// Beats in a row after which a node that is cut off has looked at all members, however many there are.
const EVERYWHERE: u32 = 16;
/// Beats that a node that was alone gives the others to answer once it hears one of them.
const SETTLES: u32 = 3;
/// Loss below which a reply among misses does not end what a subject owes: there chance adds up to no debt.
const STEADY_LOSS: f64 = 0.1;
/// Loss that is assumed where nothing is known of any link.
const UNKNOWN_LOSS: f64 = 0.3;
/// Loss that is assumed at most where all beats were answered, and more than a few were: two or three monitors, which have few, accuse with the least
/// silence that is accepted then.
const CLEAN_LOSS: f64 = 0.028;
/// Score of late wake-ups at most.
const HEALTH_MAX: u32 = 4;
/// Beats without a late wake-up after which the score falls by one.
const HEALTH_BEATS: u32 = 10;

/// What another monitor said of a subject.
#[derive(Copy, Clone, Debug)]
struct Hint {
    /// Number of the datagram: the newest wins.
    counter: u64,
    run: u32,
    at: Time,
}

/// What this node knows beyond its own beats.
#[derive(Clone, Default, Debug)]
pub(crate) struct Suspicion {
    /// Runs that the other monitors of a subject told of.
    hints: BTreeMap<NodeId, BTreeMap<NodeId, Hint>>,
    /// Subjects whose other monitors hold a run of this node that is to be taken back.
    hinted: BTreeMap<NodeId, u32>,
    /// Who beats this node, and when it last did.
    beaten_by: BTreeMap<NodeId, Time>,
    /// When anything of any member came last.
    heard: Option<Time>,
    /// Loss on healthy links, as last known: share of the beats that no reply was got for.
    loss: f64,
    /// The same of beats that were sent once.
    loss_at_once: f64,
    judged: Option<Time>,
    /// Nothing of anybody comes: everybody else is out of reach.
    pub(super) isolated: bool,
    /// Since when something comes again, if this node is still held to be isolated.
    contact: Option<Time>,
    /// No reply comes although others are heard: it is this node that does not work.
    pub(super) sick: bool,
    /// Since when it did not, if it is sick.
    deaf_since: Time,
    /// Late wake-ups, weighed against punctual beats.
    score: u32,
    punctual: u32,
}

impl Suspicion {
    /// Something of a member came.
    pub(super) fn hear(&mut self, now: Time) {
        self.heard = Some(now);
        if self.isolated {
            self.contact.get_or_insert(now);
        }
    }

    pub(super) fn take_beat(&mut self, now: Time, from: NodeId) {
        self.beaten_by.insert(from, now);
    }

    /// Who has beaten this node of late.
    pub(super) fn beaten_by(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.beaten_by.keys().copied()
    }

    /// This node woke up late.
    pub(super) fn late(&mut self, now: Time) {
        self.heard = Some(now);
        (self.isolated, self.contact) = (false, None);
        self.hints.clear();
        (self.score, self.punctual) = ((self.score + 1).min(HEALTH_MAX), 0);
    }

    /// A beat went out when it was due.
    pub(super) fn punctual(&mut self) {
        self.punctual += 1;
        if self.punctual >= HEALTH_BEATS {
            (self.score, self.punctual) = (self.score.saturating_sub(1), 0);
        }
    }

    /// It was alone and hears somebody: when it is known whether that is one of few, at the latest.
    pub(super) fn settles_at(&self, heartbeat: Duration) -> Option<Time> {
        // That is looked at with a beat.
        self.contact.filter(|_| self.isolated).map(|at| at + (SETTLES + 1) * heartbeat)
    }

    /// Few replies are lost on healthy links.
    pub(super) fn is_steady(&self) -> bool {
        self.loss_at_once < STEADY_LOSS
    }

    pub(super) const fn score(&self) -> u32 {
        self.score
    }

    /// When this was last looked at; deadlines up to then have passed.
    pub(super) const fn judged(&self) -> Option<Time> {
        self.judged
    }
}

impl Membership {
    pub(super) fn pools(&self) -> bool {
        self.config.detector.verdict == DetectorVerdict::Pooled
    }

    /// Silence without which nobody is accused: the pause that is accepted, more of it while this node itself runs late.
    pub(super) fn floor(&self) -> Duration {
        let stretch = if self.config.detector.local_health { self.suspicion.score() } else { 0 };
        self.watch.tuning.floor() + self.watch.tuning.heartbeat * stretch
    }

    /// Accuses the silent, by the rule that is set.
    pub(super) fn judge_subjects(&mut self, now: Time) {
        if self.phase != Phase::Member {
            return;
        }
        self.suspicion.judged = Some(now);
        self.watch.due.set(None);
        self.look_at_myself(now);
        // Who hears nothing at all knows nothing of others.
        if self.suspicion.sick || self.suspicion.isolated {
            return;
        }
        let cut_off = LazyCell::new(|| self.cut_off_convicts(now));
        let accused = |(id, subject)| self.accusation(now, id, subject, || *cut_off).map(|mark| (id, mark));
        let silent: Vec<(NodeId, Mark)> = self.unaccused().filter(|&(id, _)| !self.is_asked_alone(id)).filter_map(accused).collect();
        for (id, mark) in silent {
            self.watch.interrupt(id);
            self.set_mark(id, Some(mark));
        }
    }

    /// The same for one of whom another monitor told something.
    fn judge_subject(&mut self, now: Time, id: NodeId) {
        if self.phase != Phase::Member
            || self.suspicion.sick
            || self.suspicion.isolated
            || self.own_mark(id).is_some()
            || self.is_asked_alone(id)
        {
            return;
        }
        let subject = self.watch.subject(id);
        if let Some(mark) = subject.and_then(|subject| self.accusation(now, id, subject, || self.cut_off_convicts(now))) {
            self.watch.interrupt(id);
            self.set_mark(id, Some(mark));
        }
    }

    fn accusation(&self, now: Time, id: NodeId, subject: &Subject, cut_off: impl Fn() -> bool) -> Option<Mark> {
        let tuning = &self.watch.tuning;
        if subject.is_stranger(now) {
            return None;
        }
        let beyond_phi = subject.deadline(tuning).is_some_and(|at| at <= now) && subject.silence(now) >= self.floor();
        if !self.pools() {
            return beyond_phi.then_some(Mark::Silent);
        }
        // Other traffic takes back what this node alone suspects. Runs that are pooled are of replies: a node whose ingress is broken goes on
        // to send.
        if subject.unanswered(now) < self.floor() {
            return None;
        }
        if self.pool_convicts(now, id, self.missing(now, subject)) {
            return Some(Mark::Convicted);
        }
        (beyond_phi && (subject.run(now, tuning) >= pooled::convicts_at(1, self.suspicion.loss) || cut_off())).then_some(Mark::Silent)
    }

    /// What a subject's replies add to the pool: the present run of missed ones, or its debt.
    fn missing(&self, now: Time, subject: &Subject) -> u32 {
        let run = subject.run(now, &self.watch.tuning);
        if self.suspicion.is_steady() { run.max(subject.debt(now, &self.watch.tuning)) } else { run }
    }

    fn missing_of(&self, now: Time, id: NodeId) -> u32 {
        self.watch.subject(id).map_or(0, |subject| self.missing(now, subject))
    }

    /// The monitors of a subject that can be asked, this node left out. One of those whom it accuses, or suspects, is no monitor to it: the next one is.
    fn fellows(&self, now: Time, id: NodeId) -> Vec<NodeId> {
        let own = self.state.rows.get(&self.me).map(|row| &row.marks);
        let silent = |id: NodeId| self.watch.subject(id).is_some_and(|s| s.suspect(now, &self.watch.tuning));
        let skip =
            |id: NodeId| id != self.me && (own.is_some_and(|own| own.has(id)) || self.verdict.unreachable.contains_key(&id) || silent(id));
        let monitors = self.state.members.ring().before(id).filter(|&other| !skip(other)).take(usize::from(self.config.detector.monitors));
        monitors.filter(|&other| other != self.me).collect()
    }

    /// The run test over all monitors of a subject.
    fn pool_convicts(&self, now: Time, id: NodeId, own: u32) -> bool {
        let fresh = 3 * self.watch.tuning.heartbeat;
        let hints = self.suspicion.hints.get(&id);
        let counts = |hint: &Hint| hint.run > 0 && now.since(hint.at) <= fresh;
        // One run does not suffice where several could be told of; where none can be, it must be long.
        if !hints.is_some_and(|h| h.values().any(counts)) && own < pooled::convicts_at(1, self.suspicion.loss) {
            return false;
        }
        let theirs = |other: &NodeId| hints.and_then(|h| h.get(other)).filter(|h| counts(h)).map_or(0, |h| h.run);
        let fellows = self.fellows(now, id);
        let runs = fellows.iter().take(pooled::MONITORS_MAX - 1).map(theirs).chain([own]);
        pooled::convicts(runs, self.suspicion.loss)
    }

    /// The run test over all subjects of this node: so many do not fall silent together by chance.
    fn cut_off_convicts(&self, now: Time) -> bool {
        let (runs, subjects) = self.watch.longest_runs::<{ pooled::MONITORS_MAX }>(now);
        pooled::convicts(runs.into_iter().take(subjects), self.suspicion.loss)
    }

    /// Whether this node is deaf, or cut off from all, and what loss its links have.
    fn look_at_myself(&mut self, now: Time) {
        self.look_whether_sick(now);
        self.measure_loss();
        let floor = self.floor();
        let hears_none = self.pools()
            && self.watch.subjects().next().is_some()
            && self.suspicion.heard.is_none_or(|at| now.since(at) >= floor)
            && self.cut_off_convicts(now);
        if hears_none {
            self.suspicion.contact = None;
        }
        // Who is heard again is not alone, but may be one of few: the others have some beats to answer before they are accused one by one, and until then
        // they are what they were.
        let settles = SETTLES * self.watch.tuning.heartbeat;
        let waits = || self.suspicion.contact.is_some_and(|at| now.since(at) < settles);
        let isolated = hears_none || self.suspicion.isolated && waits();
        if isolated != self.suspicion.isolated {
            self.suspicion.isolated = isolated;
            (self.dirty, self.fresh) = (true, true);
            // What everybody missed together says nothing of the links: taken for their loss, it would hide for long who falls silent next.
            let since = self.suspicion.contact.unwrap_or(now);
            let open: Vec<NodeId> = self.unaccused().map(|(id, _)| id).collect();
            open.into_iter().for_each(|id| if isolated { self.watch.interrupt(id) } else { self.watch.excuse(now, id, since) });
            if !isolated {
                self.suspicion.contact = None;
                // What others told before is old.
                self.suspicion.hints.clear();
                self.watch.cut_off = EVERYWHERE;
                self.was_away(now);
                self.doubt_proof(now);
            }
        }
    }

    fn look_whether_sick(&mut self, now: Time) {
        let heartbeat = self.watch.tuning.heartbeat;
        self.suspicion.beaten_by.retain(|_, at| now.since(*at) <= 5 * heartbeat / 2);
        let monitors = usize::from(self.config.detector.monitors).min(self.state.members.ring().len().saturating_sub(1));
        // Those that were taken in just now as the others are silent say nothing.
        let deaf = self.watch.unanswered_for(now, 3 * heartbeat);
        // Those whose place makes them observers: across a split others come to look at this node, as it does at them.
        let observers = self.state.members.ring().observers(self.me, monitors, |_| false);
        let heard = observers.iter().filter(|id| self.suspicion.beaten_by.contains_key(id)).count();
        let sick = self.config.detector.local_health && monitors > 1 && deaf && heard * 2 > monitors;
        if sick == self.suspicion.sick {
            return;
        }
        self.suspicion.sick = sick;
        // What it misses by its own fault says nothing of its links; but who was not heard at all meanwhile may be gone.
        let open: Vec<NodeId> = self.unaccused().map(|(id, _)| id).collect();
        let since = self.suspicion.deaf_since;
        open.into_iter().for_each(|id| if sick { self.watch.interrupt(id) } else { self.watch.excuse(now, id, since) });
        if sick {
            self.suspicion.deaf_since = now - 3 * heartbeat;
            self.counters.add(Count::Sick);
            self.warn(
                "W-DET-001",
                format!(
                    "no heartbeat of this node is answered, while it hears {heard} of the {monitors} that observe it: it accuses nobody"
                ),
            );
        }
    }

    /// The loss of the links to those that are not accused, their present runs left out.
    fn measure_loss(&mut self) {
        let median = |shares: usize| (shares - 1).div_ceil(2);
        if let Some(at_once) = self.loss_by(Subject::before_run_at_once, median) {
            self.suspicion.loss_at_once = at_once;
            // Where the links are not good, they differ, and three quarters of them are no worse than what counts. Where they are, some bad ones must
            // not make this node blind.
            let most = |shares: usize| median(shares).max((shares - 1) * 3 / 4);
            let loss =
                if at_once < STEADY_LOSS { self.loss_by(Subject::before_run, median) } else { self.loss_by(Subject::before_run, most) };
            self.suspicion.loss = loss.unwrap_or(at_once).min(self.clean_loss());
        } else if self.suspicion.loss == 0.0 {
            (self.suspicion.loss, self.suspicion.loss_at_once) = (UNKNOWN_LOSS, UNKNOWN_LOSS);
        }
    }

    /// The share of missed beats on the link at that place among all, the best first, and what few samples leave open. `missed`: how many beats of how many.
    fn loss_by(&self, missed: impl Fn(&Subject) -> (u32, u32), place: impl Fn(usize) -> usize) -> Option<f64> {
        let (mut shares, mut judged_all) = (vec![], 0);
        for (missed, judged) in self.unaccused().map(|(_, subject)| missed(subject)) {
            if judged > 0 {
                shares.push(f64::from(missed) / f64::from(judged));
                judged_all += judged;
            }
        }
        shares.sort_by(f64::total_cmp);
        let (share, samples) = (*shares.get(place(shares.len().max(1)))?, f64::from(judged_all));
        let unsure = 1.5 / (samples + 5.0) + (share * (1.0 - share) / samples).sqrt() * (20.0 / samples).min(1.0);
        Some((share + unsure).min(1.0))
    }

    /// The most that is lost where each beat was answered at once, if each was. A cluster of two or three that has just formed has judged few beats, by whose
    /// number alone it would hold its links for bad for a minute.
    fn clean_loss(&self) -> f64 {
        let beats = self.unaccused().map(|(_, subject)| subject.before_run_at_once());
        let (missed, judged) = beats.fold((0, 0), |(missed, judged), (m, of)| (missed + m, judged + of));
        if missed == 0 { CLEAN_LOSS.max(UNKNOWN_LOSS * 0.6f64.powi(i32::try_from(judged).unwrap_or(i32::MAX))) } else { 1.0 }
    }

    /// Tells the other monitors of subjects that miss replies, and of those that no longer do.
    pub(super) fn send_hints(&mut self, now: Time) {
        // Who is cut off from most for several beats in a row, or hears no reply of anybody, has nothing to tell of them.
        if !self.pools() || self.watch.cut_off > CUT_OFF || self.suspicion.sick || self.suspicion.isolated {
            return;
        }
        let runs: Vec<(NodeId, u32)> = self
            .watch
            .subjects()
            .filter(|&id| !self.is_asked_alone(id))
            .map(|id| (id, self.missing_of(now, id)))
            .filter(|&(_, run)| run >= HINT_RUN)
            .collect();
        let mut told: BTreeMap<NodeId, u32> = runs.iter().copied().collect();
        let back: Vec<NodeId> = self.suspicion.hinted.keys().copied().filter(|id| !told.contains_key(id)).collect();
        let mut by_fellow: BTreeMap<NodeId, Vec<(NodeId, u8)>> = BTreeMap::new();
        for (subject, run) in runs.into_iter().chain(back.into_iter().map(|id| (id, 0))) {
            for fellow in self.fellows(now, subject) {
                by_fellow.entry(fellow).or_default().push((subject, u8::try_from(run).unwrap_or(u8::MAX)));
            }
        }
        let room = (self.datagram_max() - datagram::ENVELOPE_BYTES) / (datagram::PART_BYTES + 17);
        for (fellow, hints) in by_fellow {
            for chunk in hints.chunks(room.max(1)) {
                let parts: Vec<Part<'_>> = chunk.iter().map(|&(subject, run)| Part::Hint { subject, run }).collect();
                self.counters.add_n(Count::HintsSent, parts.len() as u64);
                self.send_parts(fellow, &parts);
            }
        }
        std::mem::swap(&mut self.suspicion.hinted, &mut told);
    }

    /// The run of a subject was broken: who was told of it is told so at once.
    pub(super) fn withdraw_hint(&mut self, now: Time, subject: NodeId) {
        if !self.suspicion.hinted.contains_key(&subject) || self.missing_of(now, subject) >= HINT_RUN {
            return;
        }
        self.suspicion.hinted.remove(&subject);
        for fellow in self.fellows(now, subject) {
            self.counters.add(Count::HintsSent);
            self.send_parts(fellow, &[Part::Hint { subject, run: 0 }]);
        }
    }

    /// Another monitor tells of its run.
    pub(super) fn take_hint(&mut self, now: Time, from: NodeId, counter: u64, subject: NodeId, run: u8) {
        if !self.pools() || self.watch.subject(subject).is_none() || from == subject {
            return self.counters.add(Count::HintsStray);
        }
        let hint = Hint { counter, run: u32::from(run), at: now };
        let known = self.suspicion.hints.entry(subject).or_default().entry(from).or_insert(hint);
        if known.counter <= counter {
            *known = hint;
        }
        if run > 0 {
            self.judge_subject(now, subject);
        }
    }

    /// Forgets who is no subject any more.
    pub(super) fn prune_hints(&mut self) {
        let Self { suspicion, watch, state, .. } = self;
        suspicion.hints.retain(|id, _| watch.subject(*id).is_some());
        for by in suspicion.hints.values_mut() {
            by.retain(|id, _| state.members.contains_key(id));
        }
        suspicion.hinted.retain(|id, _| watch.subject(*id).is_some());
        suspicion.beaten_by.retain(|id, _| state.members.contains_key(id));
    }
}
