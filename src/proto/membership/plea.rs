//! Asking the lease which side of a split lives: when, how often, and until when it is held.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    Membership,
    downing::{Strategy, Waits},
    resolve::sides,
};
use crate::{
    NodeId, Term, Time,
    proto::lease::{LeaseAnswer, LeaseCall},
};

/// Where this node stands with the lease.
#[derive(Debug, Default)]
pub(crate) struct Plea {
    /// The members that are out of reach, and those that are held reachable again without having replied.
    lost: BTreeMap<NodeId, Lost>,
    /// This node was away, and what it loses now it may have lost then.
    away: Option<Away>,
    step: Step,
    calls: u64,
    held: Option<Held>,
}

#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
enum Step {
    #[default]
    Idle,
    AskAt(Time),
    Asked {
        call: u64,
        /// An answer after this is none.
        until: Time,
    },
}

#[derive(Copy, Clone, Debug)]
struct Lost {
    since: Time,
    /// When it was held reachable again, and whether this node observed it then. That others say no more that it is not is no sign of it: their
    /// word does not count once they are down.
    back: Option<(Time, bool)>,
}

#[derive(Debug)]
struct Away {
    /// Last sign of the cluster before.
    from: Time,
    /// When it found out.
    back: Time,
    /// Whom it observed then, and who has not replied since.
    silent: BTreeSet<NodeId>,
}

#[derive(Copy, Clone, Debug)]
struct Held {
    term: Term,
    until: Time,
}

impl Plea {
    /// Who is out of reach, or a member at all, has changed: what is under way is about another split.
    pub(super) fn new_picture(&mut self) {
        self.step = Step::Idle;
    }

    fn first_loss(&self) -> Option<Time> {
        self.lost.values().filter(|lost| lost.back.is_none()).map(|lost| lost.since).min()
    }
}

impl Membership {
    pub(super) fn by_lease(&self) -> bool {
        matches!(self.strategy, Strategy::LeaseMajority)
    }

    pub(super) fn waits(&self) -> Waits {
        Waits::new(self.stable_after(), self.picture_lag(), self.config.detector.heartbeat_interval.get())
    }

    fn lease_name(&self) -> String {
        format!("{}/downing", self.config.cluster.name)
    }

    /// This node heard nothing for a while, and finds out anew who is out of reach: what it loses again was lost since then.
    pub(super) fn was_away(&mut self, now: Time) {
        if !self.by_lease() {
            return;
        }
        self.forget_away(now);
        let last_sign = self.watch.proven().unwrap_or(now);
        let lost = self.plea.first_loss().map_or(last_sign, |first| first.min(last_sign));
        let from = self.plea.away.as_ref().map_or(lost, |away| away.from);
        self.plea.away = Some(Away { from, back: now, silent: self.watch.subjects().collect() });
    }

    /// Until when others have found out whom they observe, and was lost up to then: whoever of them is lost later was there at that time.
    /// Whom this node observes itself must have replied, as with many replies lost it can take longer to convict anybody.
    pub(super) fn found_out(&self, back: Time) -> Time {
        back + 2 * self.watch.patience() + self.picture_lag()
    }

    /// Whether a beat of this node was answered by it since then; `None` if this node does not observe it.
    fn has_replied(&self, id: NodeId, then: Time) -> Option<bool> {
        self.watch.subject(id).map(|subject| subject.replied_after(then))
    }

    /// Whether it was held reachable again, and is.
    fn is_back(&self, now: Time, id: NodeId, lost: Lost) -> bool {
        let Some((at, observed)) = lost.back else { return false };
        let replied = self.has_replied(id, lost.since).filter(|_| observed);
        replied.unwrap_or_else(|| now >= self.found_out(at))
    }

    /// Forgets it once all that was lost meanwhile is found out.
    fn forget_away(&mut self, now: Time) {
        let Some(mut away) = self.plea.away.take() else { return };
        away.silent.retain(|&id| self.has_replied(id, away.back) == Some(false));
        if now < self.found_out(away.back) || !away.silent.is_empty() {
            self.plea.away = Some(away);
        }
    }

    pub(super) fn follow_plea(&mut self, now: Time, unreachable: &[NodeId]) {
        if !self.by_lease() {
            return;
        }
        self.forget_away(now);
        // Others may have decided about it since then.
        let away = self.plea.away.as_ref();
        // So may they where nobody answers this node: it takes long to tell then which of them and itself is deaf.
        let unsure = self.watch.proven().map_or(now, |proven| now.min(proven + self.watch.patience()));
        let since = |id: &NodeId| match away {
            Some(away) if now < self.found_out(away.back) || away.silent.contains(id) => away.from.min(unsure),
            _ => unsure,
        };
        let mut lost = BTreeMap::new();
        for id in unreachable {
            let before = self.plea.lost.get(id).filter(|before| !self.is_back(now, *id, **before));
            let since = before.map_or_else(|| since(id), |before| before.since);
            lost.insert(*id, Lost { since, back: None });
        }
        for (&id, before) in &self.plea.lost {
            let back = before.back.unwrap_or_else(|| (now, self.watch.subject(id).is_some()));
            let kept = Lost { back: Some(back), ..*before };
            if self.state.is_in(id) && !lost.contains_key(&id) && !self.is_back(now, id, kept) {
                lost.insert(id, kept);
            }
        }
        self.plea.lost = lost;
    }

    /// The picture stands still: the leader asks, at once or a little later.
    pub(super) fn plead(&mut self, now: Time, late: bool) {
        let Some(first) = self.plea.first_loss().filter(|_| self.leads() && self.plea.step == Step::Idle) else { return };
        let waits = self.waits();
        let at = if late { (now + waits.late).min(first + waits.forced) } else { now };
        self.plea.step = Step::AskAt(at.max(now));
    }

    pub(super) fn plea_due(&self) -> Option<Time> {
        if !self.by_lease() {
            return None;
        }
        let release = self.release_due();
        let ask = self.plea.first_loss().filter(|_| self.leads()).map(|f| match self.plea.step {
            Step::Idle => f + self.waits().forced,
            Step::AskAt(at) => at,
            Step::Asked { until, .. } => until,
        });
        [release, ask].into_iter().flatten().min()
    }

    pub(super) fn plea_on(&mut self, now: Time) {
        if self.plea_due().is_none_or(|at| at > now) {
            return;
        }
        self.ask_on(now);
        // Not before: who has waited in vain for an answer gives back what it holds.
        if self.release_due().is_some_and(|at| at <= now) {
            self.release_lease();
        }
    }

    fn ask_on(&mut self, now: Time) {
        let Some(first) = self.plea.first_loss().filter(|_| self.leads()) else { return };
        match self.plea.step {
            Step::Asked { until, .. } if until <= now => self.unanswered(now, "it did not answer in time"),
            Step::AskAt(at) if at <= now => self.ask_lease(now, first),
            Step::Idle if first + self.waits().forced <= now => self.ask_lease(now, first),
            Step::Asked { .. } | Step::Idle | Step::AskAt(_) => {}
        }
    }

    fn ask_lease(&mut self, now: Time, first: Time) {
        let waits = self.waits();
        if now > first + waits.last_ask {
            return self.lose_plea(now, "it is too late to ask for the lease, as others may have had it and given it back");
        }
        let up: Vec<NodeId> = self.state.members.counted().collect();
        if !up.is_empty() && up.iter().all(|id| self.verdict.unreachable.contains_key(id)) {
            return self.lose_plea(now, "nobody here was up as the others were lost, and knows when that was");
        }
        self.plea.calls += 1;
        let call = self.plea.calls;
        self.plea.step = Step::Asked { call, until: now + waits.answer };
        let name = self.lease_name();
        self.out.lease(call, LeaseCall::Acquire { name, owner: self.me, ttl: waits.hold });
    }

    /// The lease answered.
    pub(super) fn take_lease(&mut self, now: Time, call: u64, answer: LeaseAnswer) {
        let waits = self.waits();
        let asked = match self.plea.step {
            Step::Asked { call: asked, until } if asked == call && self.leads() => Some(until),
            _ => None,
        };
        if let LeaseAnswer::Held(term) = answer {
            // Given at some time after it was asked for; who asked for another split keeps it too, and asks again in time.
            let given = asked.map_or(now, |until| until - waits.answer);
            self.plea.held = Some(Held { term, until: given + waits.hold });
        }
        let Some(until) = asked else { return };
        match answer {
            // Who was paused over the answer cannot know whether it still holds.
            LeaseAnswer::Held(_) if now <= until => {
                self.plea.step = Step::Idle;
                let (mine, theirs) = sides(&self.voters());
                self.win(
                    now,
                    mine,
                    theirs,
                    &format!("lease-majority: this side has the lease and lives ({mine} here, {theirs} out of reach)"),
                );
            }
            LeaseAnswer::Held(_) => self.unanswered(now, "its answer came too late"),
            LeaseAnswer::Taken => self.lose_plea(now, "another side has the lease"),
            LeaseAnswer::Failed(why) => self.unanswered(now, &why),
        }
    }

    /// Tries again while there is time.
    fn unanswered(&mut self, now: Time, why: &str) {
        let waits = self.waits();
        let next = now + waits.again;
        match self.plea.first_loss() {
            Some(first) if next <= first + waits.last_ask => self.plea.step = Step::AskAt(next),
            _ => self.lose_plea(now, &format!("the lease could not be asked ({why}), so another side may have it")),
        }
    }

    /// This side stops: its members are told by their leader, who has the only answer.
    fn lose_plea(&mut self, now: Time, why: &str) {
        let voters = self.voters();
        let (mine, theirs) = sides(&voters);
        let here: Vec<NodeId> = voters.iter().filter(|v| v.reachable && v.id != self.me).map(|v| v.id).collect();
        self.down_all(&here);
        self.tell_downed(now, &here);
        self.lose(mine, theirs, format!("lease-majority: {why} ({mine} here, {theirs} out of reach)"));
    }

    /// When what is held is given back: not while it is asked for again, as its term is the same then.
    fn release_due(&self) -> Option<Time> {
        self.plea.held.filter(|_| !matches!(self.plea.step, Step::Asked { .. })).map(|held| held.until)
    }

    fn release_lease(&mut self) {
        if let Some(held) = self.plea.held.take() {
            let name = self.lease_name();
            self.out.lease(0, LeaseCall::Release { name, term: held.term });
        }
    }
}
