//! What the leader does, and how a split is resolved once its picture stands still, or in part if it never does.
//!
//! While members fail and come back all the time, the picture of who is out of reach never stands still, and nobody would ever be downed: the
//! dead pile up until they are more than the living. So members that have been out of reach for longer than a still picture takes are judged
//! without the rest of it. Everybody who was lost or came back since then is *unsettled*, and counts for whichever side makes the answer safe:
//!
//! * This side lives, and its leader downs those members, if it would live with all that is unsettled on the other side. The other side does the
//!   same sum with the same members against it, so both cannot come to that. (A member that left one side for the other is unsettled at least
//!   where it came to; `examples/downing_check` tries all pairs of sides that have no member in common.)
//! * This side stops if it would lose with all that is unsettled on its side. That is looked at first: by the time that a leader downs a side, that
//!   side has had its chance to see that it lost (a look, and by how much both see a split apart).

use std::{sync::Arc, time::Duration};

use super::{
    Ending, Event, MemberStatus, Membership, Phase,
    clock::Dots,
    downing::{self, Decision, Strategy, Voter},
    leader, roster,
    state::Entry,
};
use crate::{NodeId, Time};

/// A picture of the cluster with somebody unreachable.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Split {
    unreachable: Vec<NodeId>,
    members: Vec<NodeId>,
    /// Since when nothing of it changed.
    since: Time,
    /// When it is judged (again).
    judge_at: Option<Time>,
    /// Since when each of `unreachable` is lost, in their order.
    lost: Vec<Time>,
    /// Who came back or is new, and since when.
    came: Vec<(NodeId, Time)>,
    /// When it is looked at in part, though it does not stand still.
    part_at: Time,
}

/// A picture that does not come to stand still is looked at in part when it could have, and again after this share of that time; not by an alarm of
/// its own, as every heartbeat comes here.
const AGAIN: f64 = 0.125;

impl Split {
    /// Of those who are lost or members since an earlier picture, it keeps since when. A picture in which some of the lost are down, and nothing else
    /// is new, stands as still as the one before.
    fn new(unreachable: Vec<NodeId>, members: Vec<NodeId>, now: Time, stable: Duration, before: Option<Self>) -> Self {
        let judge_at = Some(now + stable);
        let Some(before) = before else {
            let lost = vec![now; unreachable.len()];
            return Self { unreachable, members, since: now, judge_at, lost, came: vec![], part_at: now + stable };
        };
        let is_member = |id: &NodeId| members.binary_search(id).is_ok();
        // All lists are in order.
        let since = |id: &NodeId| before.unreachable.binary_search(id).ok().map(|at| before.lost[at]);
        let back = before.unreachable.iter().filter(|id| is_member(id) && unreachable.binary_search(id).is_err());
        let new = members.iter().filter(|id| before.members.binary_search(id).is_err());
        let came: Vec<(NodeId, Time)> = back.chain(new).map(|&id| (id, now)).collect();
        let left = before.members.iter().any(|id| !is_member(id) && since(id).is_none());
        let still = came.is_empty() && !left && unreachable.iter().all(|id| since(id).is_some());
        let (since_then, judge_at) = if still { (before.since, before.judge_at) } else { (now, judge_at) };
        let lost = unreachable.iter().map(|id| since(id).unwrap_or(now)).collect();
        let came = before.came.into_iter().filter(|(_, at)| now.since(*at) < stable).chain(came).collect();
        Self { unreachable, members, since: since_then, judge_at, lost, came, part_at: before.part_at }
    }

    /// Who is lost for so long.
    fn lost_for(&self, span: Duration, now: Time) -> Vec<NodeId> {
        let both = self.unreachable.iter().zip(&self.lost);
        both.filter(|&(_, &since)| now.since(since) >= span).map(|(&id, _)| id).collect()
    }

    /// Nothing of it is known to be as it was.
    fn restart(&mut self, now: Time, stable: Duration) {
        (self.since, self.judge_at, self.part_at) = (now, Some(now + stable), now + stable);
        self.lost.fill(now);
    }
}

impl Membership {
    /// The leader's actions; true if the state changed.
    pub(super) fn lead(&mut self, now: Time) -> bool {
        if !self.leads() {
            return false;
        }
        self.ask_twins(now);
        if self.config.downing.proof_of_death && self.down_the_gone(now) {
            return true;
        }
        let before = Arc::clone(self.state.members.roster());
        if !leader::act(&mut self.state, &self.verdict, &self.config, now) {
            return false;
        }
        self.touch();
        let after = self.state.members.keys().as_slice();
        let removed: Vec<NodeId> = roster::gone(&before.ids, after).map(|at| before.ids[at]).collect();
        self.tell_downed(now, &removed);
        true
    }

    /// Members whose processes are proven gone need no `stable_after`.
    fn down_the_gone(&mut self, _now: Time) -> bool {
        let gone: Vec<NodeId> = self.verdict.gone.iter().copied().filter(|id| self.state.status(*id) < Some(MemberStatus::Down)).collect();
        if gone.is_empty() {
            return false;
        }
        let members = self.state.members_mut();
        for id in &gone {
            if let Some(m) = members.get_mut(id) {
                (m.status, m.proven, m.dots) = (MemberStatus::Down, true, Dots::default());
            }
        }
        self.touch();
        true
    }

    /// Starts, restarts or ends the wait for a still picture.
    pub(super) fn follow_split(&mut self, now: Time) {
        self.unconverged_since = if self.standing.converged { None } else { self.unconverged_since.or(Some(now)) };
        let unreachable: Vec<NodeId> = self.lost().collect();
        self.follow_plea(now, &unreachable);
        if unreachable.is_empty() {
            self.split = None;
            return;
        }
        let folk = &self.state.members;
        if self.split.as_ref().is_none_or(|s| s.unreachable != unreachable || !folk.counted().eq(s.members.iter().copied())) {
            let members = folk.counted().collect();
            self.split = Some(Split::new(unreachable, members, now, self.stable_after(), self.split.take()));
            self.plea.new_picture();
        }
    }

    /// This node was away: what it sees is not still.
    pub(super) fn restart_split(&mut self, now: Time) {
        let after = self.stable_after();
        self.plea.was_away(self.watch.proven().unwrap_or(now), now);
        if let Some(split) = &mut self.split {
            split.restart(now, after);
        }
    }

    pub(super) fn resolve_due(&self) -> Option<Time> {
        if self.phase != Phase::Member {
            return None;
        }
        [self.split.as_ref().and_then(|s| s.judge_at), self.auto_down_at(), self.weakly_up_at(), self.plea_due()]
            .into_iter()
            .flatten()
            .min()
    }

    /// Judges a still picture; downs by time or raises joiners weakly where that is set.
    pub(super) fn resolve_on(&mut self, now: Time) {
        if self.phase != Phase::Member {
            return;
        }
        if self.weakly_up_at().is_some_and(|at| at <= now) && leader::weakly_up(&mut self.state, &self.verdict) {
            self.touch();
        }
        if self.auto_down_at().is_some_and(|at| at <= now) {
            let lost: Vec<NodeId> = self.lost().collect();
            self.down_all(&lost);
        }
        if self.split.as_ref().and_then(|s| s.judge_at).is_some_and(|at| at <= now) {
            self.judge_split(now);
        }
        // Not once it stands still: nothing is unsettled then.
        if self.split.as_ref().is_some_and(|s| s.judge_at.is_some() && s.part_at <= now) {
            self.judge_part(now);
        }
        self.plea_on(now);
    }

    pub(super) fn stable_after(&self) -> std::time::Duration {
        downing::stable_after(self.config.downing.stable_after, self.state.members.len(), self.config.detector.heartbeat_interval.get())
    }

    fn auto_down_at(&self) -> Option<Time> {
        let after = self.config.membership.auto_down_after?.get();
        self.split.as_ref().filter(|_| self.leads()).map(|s| s.since + after)
    }

    fn weakly_up_at(&self) -> Option<Time> {
        let after = self.config.membership.weakly_up_after?.get();
        let since = self.unconverged_since.filter(|_| self.leads())?;
        let waits = |(id, m): (&NodeId, &Entry)| m.status == MemberStatus::Joining && !self.verdict.unreachable.contains_key(id);
        self.state.members.iter().any(waits).then(|| since + after)
    }

    fn judge_split(&mut self, now: Time) {
        let voters = self.voters();
        let decision = self.strategy.decide(&voters, self.leads());
        let again = now + self.stable_after();
        if let Some(split) = &mut self.split {
            split.judge_at = (decision != Decision::Nothing).then_some(again);
        }
        let (mine, theirs) = sides(&voters);
        let words = match decision {
            Decision::DownOthers => "this side lives",
            Decision::DownMine => "the other side lives",
            Decision::DownAll => "no side lives",
            Decision::AskLease { late } => return self.plead(now, late),
            Decision::Nothing => return,
        };
        let verdict = format!("{}: {words} ({mine} here, {theirs} out of reach)", self.strategy_name());
        match decision {
            Decision::DownOthers if self.leads() => self.win(now, mine, theirs, &verdict),
            Decision::DownOthers | Decision::Nothing | Decision::AskLease { .. } => {}
            Decision::DownMine => self.lose(mine, theirs, verdict),
            Decision::DownAll => {
                if self.leads() {
                    let all: Vec<NodeId> = self.state.members.keys().copied().filter(|&id| id != self.me).collect();
                    self.down_all(&all);
                    self.tell_downed(now, &all);
                }
                if self.leads() || self.strategy.stops_each() {
                    self.lose(mine, theirs, verdict);
                }
            }
        }
    }

    /// Judges those who are lost for longer than a still picture takes.
    fn judge_part(&mut self, now: Time) {
        let stable = self.stable_after();
        // Later than the other side, so that what has long been lost goes together, and after it has seen who won.
        let sure = (stable.mul_f64(1.0 + AGAIN) + self.picture_lag()).max(stable.mul_f64(1.5));
        let Some(split) = &mut self.split else { return };
        split.part_at = now + stable.mul_f64(AGAIN);
        let (lost, surely_lost) = (split.lost_for(stable, now), split.lost_for(sure, now));
        if lost.is_empty() {
            return;
        }
        let came: Vec<NodeId> = split.came.iter().filter(|&&(_, at)| now.since(at) < stable).map(|&(id, _)| id).collect();
        let (mut best, leads) = (self.voters(), self.leads());
        let mut worst = best.clone();
        for voter in &mut best {
            voter.reachable |= lost.binary_search(&voter.id).is_err();
        }
        // Who has no vote decides nothing for the other side.
        for voter in worst.iter_mut().filter(|voter| voter.counts()) {
            voter.reachable &= !came.contains(&voter.id);
        }
        match self.strategy.decide(&best, leads) {
            Decision::DownMine => self.lose_part(best.len(), lost.len(), "the other side lives"),
            Decision::DownAll if self.strategy.stops_each() => self.lose_part(best.len(), lost.len(), "no side lives"),
            Decision::DownOthers if leads && !surely_lost.is_empty() && self.strategy.decide(&worst, leads) == Decision::DownOthers => {
                let (mine, theirs) = (best.len() - surely_lost.len(), surely_lost.len());
                let verdict = format!("{}: this side lives whoever of {mine} is here ({theirs} long out of reach)", self.strategy_name());
                self.announce(mine, theirs, &verdict);
                self.down_all(&surely_lost);
                self.tell_downed(now, &surely_lost);
            }
            _ => {}
        }
    }

    fn lose_part(&mut self, all: usize, theirs: usize, words: &str) {
        let verdict = format!("{}: {words} whoever of {} is here ({theirs} long out of reach)", self.strategy_name(), all - theirs);
        self.lose(all - theirs, theirs, verdict);
    }

    /// This side lives: whoever is out of reach is down.
    pub(super) fn win(&mut self, now: Time, mine: usize, theirs: usize, verdict: &str) {
        self.announce(mine, theirs, verdict);
        let lost: Vec<NodeId> = self.lost().collect();
        self.down_all(&lost);
        self.tell_downed(now, &lost);
    }

    fn announce(&mut self, mine: usize, theirs: usize, verdict: &str) {
        self.out.event(Event::Split { mine, theirs, verdict: verdict.into() });
    }

    pub(super) fn lose(&mut self, mine: usize, theirs: usize, verdict: String) {
        self.announce(mine, theirs, &verdict);
        let left = self.farewell.drained && self.status() == Some(MemberStatus::Exiting);
        self.end(if left { Ending::Left } else { Ending::Downed(verdict) });
    }

    pub(super) fn down_all(&mut self, nodes: &[NodeId]) {
        if nodes.iter().fold(false, |any, &id| self.state.raise(id, MemberStatus::Down) | any) {
            self.touch();
        }
    }

    fn strategy_name(&self) -> &'static str {
        match self.strategy {
            Strategy::None => "none",
            Strategy::DownAll => "down-all",
            Strategy::KeepMajority => "keep-majority",
            Strategy::StaticQuorum(_) => "static-quorum",
            Strategy::KeepOldest { .. } => "keep-oldest",
            Strategy::KeepReferee(_) => "keep-referee",
            Strategy::LeaseMajority => "lease-majority",
        }
    }

    pub(super) fn voters(&self) -> Vec<Voter> {
        self.state
            .members
            .values()
            .filter(|m| m.status < MemberStatus::Down)
            .map(|m| Voter {
                id: m.info.id,
                addr: m.info.addr.clone(),
                status: m.status,
                up_number: m.up_number,
                reachable: !self.verdict.unreachable.contains_key(&m.info.id),
            })
            .collect()
    }
}

/// How many are here, and how many out of reach.
pub(super) fn sides(voters: &[Voter]) -> (usize, usize) {
    let here = voters.iter().filter(|v| v.reachable).count();
    (here, voters.len() - here)
}
