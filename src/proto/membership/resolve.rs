//! What the leader does, and how a split is resolved once its picture stands still.

use std::sync::Arc;

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
            let judge_at = Some(now + self.stable_after());
            self.split = Some(Split { unreachable, members: folk.counted().collect(), since: now, judge_at });
            self.plea.new_picture();
        }
    }

    /// This node was away: what it sees is not still.
    pub(super) fn restart_split(&mut self, now: Time) {
        let after = self.stable_after();
        self.plea.was_away(self.watch.proven().unwrap_or(now), now);
        if let Some(split) = &mut self.split {
            (split.since, split.judge_at) = (now, Some(now + after));
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
