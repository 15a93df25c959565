//! What the leader does, and how a split is resolved once its picture stands still, or in part if it never does.
//!
//! While members fail and come back all the time, the picture of who is out of reach never stands still, and nobody would ever be downed: the
//! dead pile up until they are more than the living. So members that have been out of reach for longer than a still picture takes are judged
//! without the rest of it. Everybody who was lost or came back since then is *unsettled*, and counts for whichever side makes the answer safe:
//!
//! * This side lives, and its leader downs those members, if it would live with all that is unsettled on the other side. The other side does the
//!   same sum with the same members against it, so both cannot come to that where a strategy asks for a majority, a quorum or a referee. (A member
//!   that left one side for the other is unsettled where it came to.) That is an argument: `examples/downing_check` tries still pictures only.
//! * This side stops if it would lose with all that is unsettled on its side. That is looked at first, and as soon as a still picture would be: a
//!   leader waits longer, by how much both sides see a split apart. Only a side whose own picture never stands still may stop a sixteenth of the
//!   wait later than one whose picture does; before, it did not stop at all.
//!
//! The first who stop on a side that loses take their marks with them, and whom they had observed looks reachable again to those who come
//! later. So whoever sees some of its own side go down judges at once, by what it knew before, and does not wait for the last heartbeats of its time.
//!
//! Where a cut ends about when it is judged, both sides wait a little for whom they hear again: the one that lives for anybody, the one that loses where most
//! answer. What that costs the loser comes out of what the winner waits for it (`Membership::lag_bound`). The side that loses does not count from the end of
//! the cut if the other side may have missed that; see `returns`.
//!
//! The downed are removed on convergence as ever, and there is none while somebody is out of reach. Joiners would wait for it too, and a cluster all of
//! whose members are replaced without a pause would run out of votes. So who downs members by a part of the picture makes joiners up with that. A cut
//! that nobody has seen yet may have left it alone with them, so that they must not make it the larger side:
//!
//! * It raises those only of whom it has known for so long that whoever has not heard of them is seen to be out of reach (`Membership::news_lag`).
//! * It raises as many only as leave it alive if they are all lost again, those that it raised of late as well, and those who are downed, and may not
//!   know, are where they are now. And half of the settled at most.
//! * Only the first of all raises, of those who count and those downed of late, before it downs anybody: who comes back takes the absence of the first for
//!   a proof that nobody was raised without it.
//!
//! All that has a price: 40 members can be replaced at one in 2.5 s (scenario `turnover`), and not at one in 2 s; and where they die in the order of
//! their addresses, faster than the first is downed, joiners wait for a pause.

use std::{sync::Arc, time::Duration};

use super::{
    Ending, Event, MemberStatus, Membership, Phase,
    clock::Dots,
    downing::{self, Decision, Strategy, Voter},
    idmap::Cursor,
    leader,
    returns::Returns,
    roster,
    state::{Entry, Gone},
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
    /// Who was raised by this side of late, and when.
    raised: Vec<(NodeId, Time)>,
    /// Who waits to be up, in order, and since when this node knows, or later.
    joiners: Vec<(NodeId, Time)>,
    /// Who is down and not removed, and since when this node knows, or later.
    down: Vec<(NodeId, Time)>,
    /// When it is looked at in part, though it does not stand still.
    part_at: Time,
    /// How often it was put off, as lost members were heard again.
    put_off: u32,
    /// How many of this side went down meanwhile.
    fallen: usize,
    /// Who was lost for almost long enough as more than one of this side had gone down.
    almost_lost: Vec<NodeId>,
    /// An operator was told that nobody becomes up before those who are lost are back, or gone.
    told_waits: bool,
}

/// An operator, or a restart, takes one.
const FALLEN: usize = 2;
/// Lost members that are named to an operator.
const NAMED_MAX: usize = 8;

/// A picture that does not come to stand still is looked at in part when it could have, and again after this share of that time; not by an alarm of
/// its own, as every heartbeat comes here.
const AGAIN: f64 = 0.0625;

/// So many heartbeats a side waits for lost members that it hears again.
const HEARD_AGAIN: u32 = 3;

impl Split {
    /// As it is seen for the first time.
    fn new(unreachable: Vec<NodeId>, members: Vec<NodeId>, now: Time, stable: Duration) -> Self {
        let (lost, judge_at) = (vec![now; unreachable.len()], Some(now + stable));
        let part_at = now + stable;
        Self {
            unreachable,
            members,
            since: now,
            judge_at,
            lost,
            came: vec![],
            raised: vec![],
            joiners: vec![],
            down: vec![],
            part_at,
            put_off: 0,
            fallen: 0,
            almost_lost: vec![],
            told_waits: false,
        }
    }

    /// As it is seen now, with since when of those who are lost, or have come within `memory`. `lives`: whether that one is a member, and not down.
    /// Where some of the lost are down or removed, and nothing else is new, it stands as still as before.
    fn follow(
        &mut self,
        unreachable: Vec<NodeId>,
        members: Vec<NodeId>,
        now: Time,
        [stable, memory]: [Duration; 2],
        lives: impl Fn(NodeId) -> bool,
    ) {
        // All lists are in order.
        let (mut was_lost, mut is_lost) = (Cursor::of(&self.unreachable), Cursor::of(&unreachable));
        let (mut was_member, mut is_member) = (Cursor::of(&self.members), Cursor::of(&members));
        let back = self.unreachable.iter().filter(|id| is_lost.find(**id).is_none() && lives(**id));
        let new = members.iter().filter(|id| was_member.find(**id).is_none());
        let mut came: Vec<(NodeId, Time)> = back.chain(new).map(|&id| (id, now)).collect();
        let left = self.members.iter().any(|&id| is_member.find(id).is_none() && self.unreachable.binary_search(&id).is_err());
        let lost: Vec<Option<Time>> = unreachable.iter().map(|&id| was_lost.find(id).map(|at| self.lost[at])).collect();
        if !came.is_empty() || left || lost.contains(&None) {
            (self.since, self.judge_at, self.put_off) = (now, Some(now + stable), 0);
        }
        self.lost = lost.into_iter().map(|since| since.unwrap_or(now)).collect();
        came.extend(self.came.iter().filter(|(_, at)| now.since(*at) < memory));
        // The newest of each.
        came.sort_by_key(|&(id, at)| (id, std::cmp::Reverse(at)));
        came.dedup_by_key(|&mut (id, _)| id);
        (self.unreachable, self.members, self.came) = (unreachable, members, came);
    }

    /// This side has raised those who are new among the members: its own work, so the picture stands as still as before.
    fn note_raised(&mut self, members: Vec<NodeId>, now: Time) {
        let new = members.iter().filter(|id| self.members.binary_search(id).is_err());
        self.raised.extend(new.map(|&id| (id, now)));
        self.members = members;
    }

    /// Those wait to be up.
    fn note_joiners(&mut self, joiners: impl Iterator<Item = NodeId>, now: Time) {
        self.joiners = since_when(&self.joiners, joiners, now);
    }

    /// Those are down.
    fn note_down(&mut self, down: impl Iterator<Item = NodeId>, now: Time) {
        self.down = since_when(&self.down, down, now);
    }

    /// Whether somebody out of reach may not have heard that those who are down since then are: news take so long to come and losses to be seen.
    fn is_news(&self, down_since: Time, lag: Duration) -> bool {
        self.lost.iter().min().is_some_and(|&lost| lost < down_since + lag)
    }

    /// Since when it is out of reach.
    pub(super) fn lost_since(&self, id: NodeId) -> Option<Time> {
        self.unreachable.binary_search(&id).ok().map(|at| self.lost[at])
    }

    /// All who are out of reach, and since when.
    pub(super) fn all_lost(&self) -> impl Iterator<Item = (NodeId, Time)> + '_ {
        self.unreachable.iter().copied().zip(self.lost.iter().copied())
    }

    /// Some of this side are down: whom it knows then to be lost for so long is not forgotten. Called once of each of them, as who is down is no member here
    /// afterwards.
    fn note_fallen(&mut self, almost: Duration, now: Time, is_down: impl Fn(NodeId) -> bool) {
        let mut lost = Cursor::of(&self.unreachable);
        let fallen = self.members.iter().filter(|id| lost.find(**id).is_none() && is_down(**id)).count();
        self.fallen += fallen;
        if fallen > 0 && self.fallen >= FALLEN {
            (self.almost_lost, self.part_at) = (self.lost_for(almost, now), now);
        }
    }

    /// It is not judged sooner.
    fn wait_until(&mut self, at: Time) {
        self.judge_at = self.judge_at.map(|judge_at| judge_at.max(at));
        self.part_at = self.part_at.max(at);
    }

    /// Who is lost for so long.
    fn lost_for(&self, span: Duration, now: Time) -> Vec<NodeId> {
        self.all_lost().filter(|&(_, since)| now.since(since) >= span).map(|(id, _)| id).collect()
    }

    /// Who came back or is new for less than so long, in order.
    fn came_within(&self, span: Duration, now: Time) -> Vec<NodeId> {
        self.came.iter().filter(|(_, at)| now.since(*at) < span).map(|&(id, _)| id).collect()
    }

    /// Nothing of it is known to be as it was.
    fn restart(&mut self, now: Time, stable: Duration) {
        (self.since, self.judge_at, self.part_at) = (now, Some(now + stable), now + stable);
        self.lost.fill(now);
        self.came.iter_mut().chain(&mut self.down).chain(&mut self.joiners).for_each(|(_, at)| *at = now);
    }
}

/// Those, in order, each since when it was among them before, or now.
fn since_when(before: &[(NodeId, Time)], those: impl Iterator<Item = NodeId>, now: Time) -> Vec<(NodeId, Time)> {
    let since = |id: &NodeId| before.binary_search_by_key(id, |&(id, _)| id).map_or(now, |at| before[at].1);
    those.map(|id| (id, since(&id))).collect()
}

impl Membership {
    /// The leader's actions; true if the state changed.
    pub(super) fn lead(&mut self, now: Time) -> bool {
        if !self.leads() {
            return false;
        }
        self.ask_twins(now);
        if self.config.downing.proof_of_death.holds() && self.down_the_gone(now) {
            return true;
        }
        let before = Arc::clone(self.state.members.roster());
        let joins = self.joins_pass(now);
        if !leader::act(&mut self.state, &self.verdict, &self.config, &joins, now) {
            return false;
        }
        self.touch();
        let after = self.state.members.keys().as_slice();
        let removed: Vec<NodeId> = roster::gone(&before.ids, after).map(|at| before.ids[at]).collect();
        self.tell_downed(now, &removed);
        if removed.iter().any(|id| self.state.tombstones.get(id).is_some_and(|t| t.how == Gone::Proven)) {
            self.spread.hurry();
        }
        true
    }

    /// Joiners that need not wait for who is out of reach: where that is set, all others have seen them, and this side would live without all that is
    /// out of reach or unsettled, so that a side that would stop does not grow by joins until it is the larger one.
    fn joins_pass(&self, now: Time) -> Vec<NodeId> {
        let wanted = self.config.membership.converge_past_unreachable && leader::converged(&self.state, &self.verdict, true);
        let Some(split) = self.split.as_ref().filter(|_| wanted) else { return vec![] };
        let joiners = leader::waiting(&self.state, &self.verdict);
        let worst = self.without(&split.came_within(self.sure_after(), now));
        match self.strategy.decide(&worst, true) {
            Decision::DownOthers if leader::first_of_all(&self.state) == Some(self.me) && self.lives_with_ghosts(&worst) => {
                self.that_fit(joiners, &[worst, self.ghosts()].concat(), true)
            }
            // Who downs by hand judges by hand.
            Decision::Nothing if matches!(self.strategy, Strategy::None) => joiners,
            // Where nobody has become up, each side of a cut could get as many as it waits for.
            Decision::Nothing => vec![],
            // Who asks for the lease last must know when members were first lost, which a joiner does not.
            Decision::AskLease { .. } | Decision::DownOthers | Decision::DownMine | Decision::DownAll => vec![],
        }
    }

    /// So many of the joiners that this side lives with them up as well, whether they are in reach then or not.
    fn that_fit(&self, mut joiners: Vec<NodeId>, voters: &[Voter], reachable: bool) -> Vec<NodeId> {
        let newest = voters.iter().map(|v| v.up_number).max().unwrap_or(0).saturating_add(1);
        let lives = |most: usize| {
            let mut voters = voters.to_vec();
            for voter in voters.iter_mut().filter(|v| joiners[..most].contains(&v.id)) {
                (voter.status, voter.up_number, voter.reachable) = (MemberStatus::Up, newest, reachable);
            }
            self.strategy.decide(&voters, true) == Decision::DownOthers
        };
        // With each of them it is less likely.
        let counts: Vec<usize> = (1..=joiners.len()).collect();
        joiners.truncate(counts.partition_point(|&most| lives(most)));
        joiners
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
                (m.status, m.gone, m.dots) = (MemberStatus::Down, Gone::Proven, Dots::default());
            }
        }
        self.touch();
        self.spread.hurry();
        true
    }

    /// Starts, restarts or ends the wait for a still picture.
    pub(super) fn follow_split(&mut self, now: Time) {
        self.unconverged_since = if self.standing.converged { None } else { self.unconverged_since.or(Some(now)) };
        let unreachable = self.all_lost();
        self.follow_plea(now, &unreachable);
        self.follow_returns(now, &unreachable);
        if unreachable.is_empty() {
            if self.split.take().is_some() {
                self.proof.see_another_split();
            }
            return;
        }
        let folk = &self.state.members;
        if self.split.as_ref().is_none_or(|s| s.unreachable != unreachable || !folk.counted().eq(s.members.iter().copied())) {
            let (members, spans) = (folk.counted().collect(), [self.stable_after(), self.sure_after()]);
            let lives = |id| self.state.is_in(id);
            let (almost, is_down) = (spans[0].saturating_sub(self.picture_lag()), |id| self.state.status(id) == Some(MemberStatus::Down));
            match &mut self.split {
                Some(split) => {
                    split.note_fallen(almost, now, is_down);
                    split.follow(unreachable, members, now, spans, lives);
                }
                none => *none = Some(Split::new(unreachable, members, now, spans[0])),
            }
            if let Some(split) = &mut self.split {
                split.note_down(self.state.members.down().filter(|(_, m)| m.gone != Gone::Proven).map(|(id, _)| id), now);
                if !self.returns.is_empty() {
                    split.part_at = now;
                }
            }
            self.plea.new_picture();
            self.proof.see_another_split();
        }
        if let Some(split) = &mut self.split {
            split.note_joiners(self.state.members.joiners(), now);
        }
    }

    /// This node was away: what it sees is not still.
    pub(super) fn restart_split(&mut self, now: Time) {
        let after = self.stable_after();
        self.was_away(now);
        self.returns = Returns::default();
        if let Some(split) = &mut self.split {
            split.restart(now, after);
        }
    }

    pub(super) fn resolve_due(&self) -> Option<Time> {
        if self.phase != Phase::Member {
            return None;
        }
        let fallen = self.split.as_ref().filter(|s| !s.almost_lost.is_empty()).map(|s| s.part_at);
        [fallen, self.split.as_ref().and_then(|s| s.judge_at), self.auto_down_at(), self.weakly_up_at(), self.plea_due()]
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
        if self.auto_down_at().is_some_and(|at| at <= now)
            && let (Some(after), Some(split)) = (self.config.membership.auto_down_after, &self.split)
        {
            let lost = split.lost_for(after.get(), now);
            self.down_all(&lost);
        }
        // It may have been found again, and whoever wins waits as long for who is.
        if let (Some(split), Some(at)) = (&mut self.split, self.suspicion.settles_at(self.config.detector.heartbeat_interval.get())) {
            split.wait_until(at);
        }
        if self.split.as_ref().and_then(|s| s.judge_at).is_some_and(|at| at <= now) {
            self.judge_split(now);
        }
        // Not once it stands still, as nothing is unsettled then, and not with what was just done that the picture does not show yet.
        let still_a_member = self.phase == Phase::Member && !self.dirty;
        if still_a_member && self.split.as_ref().is_some_and(|s| s.judge_at.is_some() && s.part_at <= now) {
            self.judge_part(now);
        }
        self.plea_on(now);
    }

    pub(super) fn stable_after(&self) -> std::time::Duration {
        downing::stable_after(self.config.downing.stable_after, self.state.members.len(), self.config.detector.heartbeat_interval.get())
    }

    fn auto_down_at(&self) -> Option<Time> {
        let after = self.config.membership.auto_down_after?.get();
        self.split.as_ref().filter(|_| self.leads()).and_then(|s| Some(*s.lost.iter().min()? + after))
    }

    fn weakly_up_at(&self) -> Option<Time> {
        let after = self.config.membership.weakly_up_after?.get();
        let since = self.unconverged_since.filter(|_| self.leads())?;
        let waits = |id: NodeId| self.state.status(id) == Some(MemberStatus::Joining) && !self.verdict.unreachable.contains_key(&id);
        self.state.members.joiners().any(waits).then(|| since + after)
    }

    fn judge_split(&mut self, now: Time) {
        let (voters, leads) = (self.voters(), self.leads());
        let mut decision = self.strategy.decide(&voters, leads);
        if decision == Decision::DownOthers && leads && !self.lives_with_ghosts(&voters) {
            // Where nobody has become up nobody ends of that: those that are gone will have heard.
            let is_up = voters.iter().chain(&self.ghosts()).any(Voter::counts);
            decision = if is_up { Decision::DownAll } else { Decision::Nothing };
        }
        if decision == Decision::DownOthers && leads && (self.doubts_win(now) || self.puts_off_win(now))
            || decision == Decision::DownMine && self.puts_off_loss(now)
        {
            return;
        }
        let again = now + self.stable_after();
        let waits = decision == Decision::Nothing && !matches!(self.strategy, Strategy::None);
        if let Some(split) = &mut self.split {
            // Joiners that come do not change the picture, and may change this.
            split.judge_at = (decision != Decision::Nothing || waits).then_some(again);
            if waits && leads && !std::mem::replace(&mut split.told_waits, true) {
                self.warn_of_waiting();
            }
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

    fn warn_of_waiting(&mut self) {
        let lost = self.split.iter().flat_map(|split| &split.unreachable);
        let mut lost: Vec<String> = lost.filter_map(|id| self.addr_of(*id)).take(NAMED_MAX + 1).map(ToString::to_string).collect();
        if lost.len() > NAMED_MAX {
            lost[NAMED_MAX] = "more".into();
        }
        let text = format!(
            "nobody has become up yet, and nobody does while {} is out of reach: start it again there, or declare it dead by hand if it is gone for good",
            lost.join(", ")
        );
        self.warn("W-DOWN-002", text);
    }

    /// This node may be on a side that stops, and not know who else is lost: who pauses measures all silences anew, and of whom it misses it may wait for the
    /// opinion of others that pause. Of what is known to be lost alone it would live on without the rest.
    fn doubts_win(&mut self, now: Time) -> bool {
        let few = self.knows_few(now);
        if let Some(split) = self.split.as_mut().filter(|_| few) {
            split.wait_until(now + self.config.detector.heartbeat_interval.get());
        }
        few
    }

    /// Some of the lost are heard again: they are in reach after some replies in a row, or do not hear this side.
    fn puts_off_win(&mut self, now: Time) -> bool {
        let heard = self.lost().any(|id| self.watch.hears(id, now));
        let Some(split) = self.split.as_mut().filter(|split| heard && split.put_off < HEARD_AGAIN) else { return false };
        split.put_off += 1;
        split.judge_at = Some(now + self.config.detector.heartbeat_interval.get());
        true
    }

    /// Most of the lost that are observed answer again, so the cut has ended, and the other side hears this one as well. One that answers is not enough: it may
    /// be the one link that a cut has left, and who wins does not know of it and does not wait.
    fn puts_off_loss(&mut self, now: Time) -> bool {
        let healed = self.watch.most_answer(self.lost(), now);
        let Some(split) = self.split.as_mut().filter(|split| healed && split.put_off < HEARD_AGAIN) else { return false };
        split.put_off += 1;
        split.wait_until(now + self.config.detector.heartbeat_interval.get());
        true
    }

    /// How long members are lost that a part of the picture downs: longer than the other side needs to see that it has lost, and so long that what
    /// was lost at about the same time goes together.
    fn sure_after(&self) -> Duration {
        let stable = self.stable_after();
        (stable.mul_f64(1.0 + AGAIN) + self.picture_lag()).max(stable.mul_f64(1.5))
    }

    /// Judges those who are lost for longer than a still picture takes.
    fn judge_part(&mut self, now: Time) {
        let (stable, sure) = (self.stable_after(), self.sure_after());
        let pace = self.contact_pace();
        let Some(split) = &mut self.split else { return };
        split.part_at = now + stable.mul_f64(AGAIN);
        let (mut lost, surely_lost) = (split.lost_for(stable, now), split.lost_for(sure, now));
        let almost_lost = std::mem::take(&mut split.almost_lost);
        if !almost_lost.iter().any(|&id| self.watch.hears(id, now)) {
            lost.extend(almost_lost);
        }
        lost.extend(self.returns.lost_for(stable, now, pace, |id| split.lost_since(id)));
        lost.sort_unstable();
        if lost.is_empty() {
            return;
        }
        let came = split.came_within(sure, now);
        let (mut best, worst, leads) = (self.voters(), self.without(&came), self.leads());
        for voter in &mut best {
            voter.reachable = lost.binary_search(&voter.id).is_err();
        }
        let (mine, theirs) = sides(&best);
        let name = self.strategy_name();
        let says = |words: &str| format!("{name}: {words} whoever of {mine} is here ({theirs} long out of reach)");
        let haunted = !self.lives_with_ghosts(&worst);
        let if_worst = self.strategy.decide(&worst, leads);
        match self.strategy.decide(&best, leads) {
            Decision::DownMine if self.puts_off_loss(now) => {}
            Decision::DownMine => self.lose(mine, theirs, says("the other side lives")),
            Decision::DownAll if if_worst == Decision::DownAll && self.strategy.stops_each() => {
                self.lose(mine, theirs, says("no side lives"))
            }
            Decision::DownOthers if leads && self.doubts_win(now) => {}
            Decision::DownOthers if if_worst == Decision::DownOthers && leads && !haunted && !surely_lost.is_empty() => {
                self.announce(mine, theirs, &says("this side lives"));
                let (raises, ghosts) = (self.leads_all_of_late(now), self.ghosts());
                self.down_all(&surely_lost);
                if raises {
                    self.raise_some(now, [worst, ghosts].concat());
                }
                self.tell_downed(now, &surely_lost);
            }
            _ => {}
        }
    }

    /// This side lives: whoever is out of reach is down.
    pub(super) fn win(&mut self, now: Time, mine: usize, theirs: usize, verdict: &str) {
        self.announce(mine, theirs, verdict);
        let lost = self.all_lost();
        self.down_all(&lost);
        self.tell_downed(now, &lost);
    }

    /// Whether this is the first of all who count or were downed of late: of those who do not know that yet, some may look for who was raised where the
    /// first of all is (see `keep_majority`).
    fn leads_all_of_late(&self, now: Time) -> bool {
        let (sure, state) = (self.sure_after(), &self.state);
        let Some(split) = &self.split else { return false };
        let of_late = |id: &NodeId| split.down.iter().any(|&(down, since)| down == *id && now.since(since) < sure);
        let first = state.members.roster().order.iter().find(|id| state.members.get(id).is_some_and(Entry::counts) || of_late(id));
        first == Some(&self.me)
    }

    /// This side lives while nothing stands still, so there is no convergence, and joiners cannot wait for it: the living would run out of votes. Whoever
    /// is not here has lost without them; who is here, and may not be, knows them (see the head of this file). `worst` is before those are downed who
    /// are now, with the ghosts.
    fn raise_some(&mut self, now: Time, mut worst: Vec<Voter>) {
        let lag = self.news_lag();
        let Some(split) = &mut self.split else { return };
        split.raised.retain(|&(_, at)| now.since(at) < lag);
        let raised: Vec<NodeId> = split.raised.iter().map(|&(id, _)| id).collect();
        let known =
            |id: &NodeId| split.joiners.binary_search_by_key(id, |&(id, _)| id).is_ok_and(|at| now.since(split.joiners[at].1) >= lag);
        let mut joiners = leader::waiting(&self.state, &self.verdict);
        joiners.retain(known);
        for voter in worst.iter_mut().filter(|v| raised.contains(&v.id)) {
            voter.reachable = false;
        }
        let settled = worst.iter().filter(|v| v.reachable && v.counts()).count();
        joiners.truncate((settled / 2).saturating_sub(raised.len()));
        let joiners = self.that_fit(joiners, &worst, false);
        if leader::promote(&mut self.state, &self.config, &joiners) {
            if let Some(split) = &mut self.split {
                split.note_raised(self.state.members.counted().collect(), now);
            }
            self.touch();
        }
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
            .map(|m| voter(m, m.status, !self.verdict.unreachable.contains_key(&m.info.id)))
            .collect()
    }

    /// All voters, as if those (in order) were out of reach too.
    fn without(&self, came: &[NodeId]) -> Vec<Voter> {
        let mut voters = self.voters();
        for voter in &mut voters {
            voter.reachable &= came.binary_search(&voter.id).is_err();
        }
        voters
    }

    /// Whether this side would live, too, if those who were found to be down lived with somebody who is out of reach and has not heard of it: a cut
    /// that ends while it is judged, and another one at once, makes them a side that this one does not see. For the leader, who acts, and who
    /// knows since when they are down.
    fn lives_with_ghosts(&self, voters: &[Voter]) -> bool {
        let ghosts = self.ghosts();
        ghosts.is_empty() || self.strategy.decide(&[voters, &ghosts].concat(), true) == Decision::DownOthers
    }

    /// After so long, whoever has not heard of something is seen to be out of reach: four rounds to hear of it, beside what it takes to miss somebody.
    fn news_lag(&self) -> Duration {
        self.picture_lag() + 2 * self.config.membership.gossip_interval.get()
    }

    fn ghosts(&self) -> Vec<Voter> {
        let Some(split) = &self.split else { return vec![] };
        let lag = self.news_lag();
        let news = split.down.iter().filter(|&&(_, since)| split.is_news(since, lag));
        let down = news.filter_map(|(id, _)| self.state.members.get(id)).filter(|m| m.status == MemberStatus::Down);
        down.map(|m| voter(m, if m.up_number > 0 { MemberStatus::Up } else { MemberStatus::Joining }, false)).collect()
    }
}

fn voter(m: &Entry, status: MemberStatus, reachable: bool) -> Voter {
    Voter { id: m.info.id, addr: m.info.addr.clone(), status, up_number: m.up_number, reachable }
}

/// How many are here, and how many out of reach.
pub(super) fn sides(voters: &[Voter]) -> (usize, usize) {
    let here = voters.iter().filter(|v| v.reachable).count();
    (here, voters.len() - here)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_sees_its_side_stop_remembers_whom_it_had_almost_lost() {
        let at = |seconds: u64| Time::from_nanos(seconds * 1_000_000_000);
        let [lost, lost_later, mine, other, last] = [1, 2, 3, 4, 5].map(NodeId::from_raw);
        let stable = Duration::from_secs(20);
        let all = vec![lost, lost_later, mine, other, last];
        let mut split = Split::new(vec![lost], all.clone(), at(100), stable);
        let spans = [stable, 2 * stable];
        split.follow(vec![lost, lost_later], all, at(110), spans, |_| true);
        let almost = stable - Duration::from_secs(6);
        split.note_fallen(almost, at(115), |id| id == lost);
        assert!(split.almost_lost.is_empty(), "one of the other side");
        split.note_fallen(almost, at(115), |id| id == mine);
        assert!(split.almost_lost.is_empty(), "one alone may be an operator's work");
        split.follow(vec![lost, lost_later], vec![lost, lost_later, other, last], at(115), spans, |_| true);
        split.note_fallen(almost, at(116), |id| id == other);
        assert_eq!((split.almost_lost.as_slice(), split.part_at), (&[lost][..], at(116)), "judged at once");
        // Their marks go with them, and whom they had observed seems to be back.
        split.follow(vec![lost_later], vec![lost, lost_later, last], at(116), spans, |_| true);
        assert_eq!(split.almost_lost, [lost]);
    }
}
