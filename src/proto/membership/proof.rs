//! Up to when it is proven that nobody has taken over what runs here.
//!
//! A beat that a member answered proves that this node was a member when the beat left, unless that one holds it out of reach: it may be judging it just then,
//! be the cut over or not. Across a split that is not enough: who is cut off together with
//! this node goes on answering it. So nothing is proven while this side would stop if it were judged now, from before it came to be that side. And whoever
//! was away, or alone, or on such a side, or gets no replies from so many that it may be on such a side, is in doubt: it asks more members than it observes,
//! and nothing newer is proven until so many have answered that its side would live with those alone, or each of them has answered or is lost, once it
//! must have been found out who is. Where it asks a part of the members only, three quarters of that part are enough.
//!
//! Some may never answer, and yet not be lost, as others hear them: links can break for good between some only. So who is in doubt is also told whom those
//! hear that answer it, which are in no doubt themselves, and how old that proof is. What of that is no older than what makes a side that lives is proven,
//! once it was so for long enough to find out who is lost: as a cut ends, who answers first may not have heard yet whom the others hold lost.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use super::{
    Membership,
    counters::Count,
    datagram::{read_heard, write_heard},
    detector::Subject,
    downing::{Decision, Strategy, Voter},
    resolve::{Split, sides},
};
use crate::{NodeId, Time, config::Span, proto::wire::Writer};

/// In doubt it asks so many: all there are, or enough that three quarters are not of its own side by chance. Who gets no reply of anybody asks fewer until
/// it does.
const ASKED: usize = 64;
const ASKED_DEAF: usize = 16;

/// Where one in so many of all members is missing, or of those that this node observes itself, so may others be, of whom it only knows that nobody misses
/// them.
const MISSING: usize = 8;
const MISSING_OBSERVED: usize = 3;

/// So many are told of to who is in doubt: as many as fit into a datagram with what else is in it.
const HEARD_MAX: usize = 32;

/// What takes from the worth of an answered beat.
#[derive(Default, Debug)]
pub(crate) struct Proof {
    /// What was proven before this side of a split came to be one that stops, while it is.
    losing: Option<Time>,
    doubt: Option<Doubt>,
    /// The picture of the split is not the one that was looked at.
    new_picture: bool,
    /// When so many last answered that this side would live with those alone. A doubt may come again with the next beat.
    sure: Option<Time>,
    /// When a doubt was last over.
    settled: Option<Time>,
}

/// Whom this node hears may be few.
#[derive(Debug)]
struct Doubt {
    since: Time,
    /// What was proven before.
    proven: Time,
    /// Who was known to be out of reach by then.
    lost: Vec<NodeId>,
    /// Who has answered what was sent since.
    answered: BTreeSet<NodeId>,
    /// When the newest beat left, of this node or of one that answers it, that a member answered without holding its sender lost.
    heard: BTreeMap<NodeId, Time>,
    /// That was added to since it was weighed.
    hears_more: bool,
    /// Since when those were a side that lives, at any time, and until when they last were.
    steady: Option<(Time, Time)>,
}

impl Proof {
    /// Who is out of reach is another set, or nobody. It is weighed with the next beat, as there are many in a row while a split is noticed.
    pub(super) fn see_another_split(&mut self) {
        self.new_picture = true;
    }
}

impl Membership {
    /// When the newest beat left that proves it.
    pub fn proven(&self) -> Option<Time> {
        let Proof { losing, doubt, .. } = &self.proof;
        let newest = self.watch.proven()?;
        Some(losing.iter().copied().chain(doubt.as_ref().map(|doubt| doubt.proven)).fold(newest, Time::min))
    }

    /// This node was away, or alone, or the others only seem to be back.
    pub(super) fn doubt_proof(&mut self, now: Time) {
        let proven = self.proven().unwrap_or(Time::ZERO);
        // Who is alone does not know of anybody.
        let split = self.split.iter().filter(|_| !self.suspicion.isolated);
        let lost = split.flat_map(Split::all_lost).map(|(id, _)| id).collect();
        self.proof.doubt =
            Some(Doubt { since: now, proven, lost, answered: BTreeSet::new(), heard: BTreeMap::new(), hears_more: false, steady: None });
    }

    /// Whom it asks in doubt, beside those it observes: the next on the ring that were not known to be lost.
    pub(super) fn asked_in_doubt(&self) -> Vec<NodeId> {
        let Some(doubt) = &self.proof.doubt else { return vec![] };
        let most = if self.suspicion.sick { ASKED_DEAF } else { ASKED };
        self.state.members.ring().after(self.me).filter(|id| doubt.lost.binary_search(id).is_err()).take(most).collect()
    }

    /// A beat was answered that had left then.
    pub(super) fn note_proof(&mut self, now: Time, from: NodeId, sent: Time) {
        let asks_all = self.state.members.len() <= ASKED;
        let Some(doubt) = self.proof.doubt.as_mut().filter(|doubt| sent >= doubt.since) else { return };
        // Where a part is asked, nothing ends a doubt before most of that has answered; what else may is looked at with each beat.
        if doubt.answered.insert(from) && (asks_all || doubt.answered.len() * 4 >= ASKED * 3) {
            self.end_doubt(now);
        }
    }

    pub(super) fn in_doubt(&self) -> bool {
        self.proof.doubt.is_some()
    }

    /// Whether more may be lost than this node knows of, so many that its side stops: nothing is proven that is newer than a silence takes to be noticed.
    pub(super) fn knows_few(&self, now: Time) -> bool {
        let is_old = |at: Option<Time>| at.is_none_or(|at| now.since(at) >= self.watch.patience());
        self.in_doubt() && is_old(self.proven()) && is_old(self.proof.sure)
    }

    /// Whom this node hears, for one that is in doubt. `None`: it may be on the same side.
    pub(super) fn heard(&self, now: Time) -> Option<Vec<u8>> {
        if self.proof.losing.is_some() || self.in_doubt() || self.proof.new_picture {
            return None;
        }
        let mut heard: Vec<(Duration, NodeId)> = self.watch.proven_by().map(|(id, sent)| (now.since(sent), id)).collect();
        heard.sort_unstable();
        let mut w = Writer::default();
        heard.into_iter().take(HEARD_MAX).for_each(|(age, id)| write_heard(&mut w, id, age));
        Some(w.0)
    }

    /// Whom one hears that answers a beat of this node, and does not hold it lost. What comes of that is seen with the next beat, as many answer.
    pub(super) fn take_heard(&mut self, from: NodeId, seq: u64, members: &[u8]) {
        let Ok(members) = read_heard(members) else { return self.counters.add(Count::DropMalformed) };
        let Some(sent) = self.watch.subject(from).and_then(|subject| subject.sent_at(seq)) else { return };
        let Some(doubt) = &mut self.proof.doubt else { return };
        // What it says left its node behind this node's beat.
        let told = members.into_iter().filter(|(id, _)| self.state.members.contains_key(id)).map(|(id, age)| (id, sent - age));
        for (id, at) in told.chain(self.watch.proven_by()) {
            let newest = doubt.heard.entry(id).or_insert(at);
            *newest = at.max(*newest);
        }
        doubt.hears_more = true;
    }

    /// What of all that was told makes a side that lives.
    fn weigh_heard(&mut self, now: Time) {
        let Some(doubt) = self.proof.doubt.as_mut() else { return };
        if !std::mem::take(&mut doubt.hears_more) {
            return;
        }
        let mut heard: Vec<(Time, NodeId)> = doubt.heard.iter().map(|(&id, &at)| (at, id)).collect();
        heard.sort_unstable_by(|a, b| b.cmp(a));
        let lives_with = |count: usize| {
            let known: BTreeSet<NodeId> = heard[..count].iter().map(|&(_, id)| id).collect();
            self.surely_lives(&self.voters_without(|id| id != self.me && !known.contains(&id)))
        };
        let Some(count) = least(heard.len(), lives_with) else { return };
        let (at, patience) = (heard[count - 1].0, self.watch.patience());
        let Some(Doubt { steady, .. }) = &self.proof.doubt else { return };
        let since = steady.filter(|&(_, until)| at.since(until) < patience).map_or(at, |(since, _)| since);
        let enough = now >= self.found_out(since) && now.since(at) < patience;
        if let Some(doubt) = &mut self.proof.doubt {
            doubt.steady = Some((since, at));
            if enough {
                doubt.proven = doubt.proven.max(at);
            }
        }
    }

    /// With each beat: what a new picture means, what silence does, and whether the time of doubt is over.
    pub(super) fn weigh_proof(&mut self, now: Time) {
        if std::mem::take(&mut self.proof.new_picture) {
            self.weigh_picture(now);
        }
        self.weigh_silence(now);
        self.weigh_heard(now);
        self.end_doubt(now);
    }

    /// Who is silent is lost only once others agree, and they may take their time, or be silent themselves. The other side needs none of them, so nothing is
    /// proven from the silence on that makes this side one that stops, or that is of most whom this node asks.
    fn weigh_silence(&mut self, now: Time) {
        let Proof { losing: None, doubt: None, .. } = self.proof else { return };
        let is_lost = |id| self.split.as_ref().is_some_and(|split| split.lost_since(id).is_some());
        let (observed, silent) = self.watch.unreplying(now, is_lost);
        let doubtful = |count: usize| {
            let first: BTreeSet<NodeId> = silent[..count].iter().map(|&(_, id)| id).collect();
            count * 2 > observed || !self.surely_lives(&self.voters_without(|id| first.contains(&id) || is_lost(id)))
        };
        if let Some(count) = least(silent.len(), doubtful) {
            let since = silent[count - 1].0;
            self.doubt_proof(now);
            if let Some(doubt) = &mut self.proof.doubt {
                doubt.proven = doubt.proven.min(since);
            }
        } else if self.may_miss_more(now, silent.len(), is_lost) {
            self.doubt_proof(now);
        }
    }

    /// Whether so many are missing that those are asked whom this node does not observe itself, as its side would stop without them: who observes them may
    /// be of this side and stand still, time and again, and miss nobody. Asked again only once silence would be noticed that has begun since.
    fn may_miss_more(&self, now: Time, silent: usize, is_lost: impl Fn(NodeId) -> bool) -> bool {
        let patience = self.watch.patience();
        // Where nobody is downed, a split lasts, and they would be asked for as long.
        if matches!(self.strategy, Strategy::None) || self.proof.settled.is_some_and(|at| now.since(at) < patience) {
            return false;
        }
        let lost = self.split.iter().flat_map(Split::all_lost).count();
        let (observed, lost_observed) = (self.watch.subjects().count(), self.watch.subjects().filter(|&id| is_lost(id)).count());
        let many = (lost + silent) * MISSING >= self.state.members.len() || (lost_observed + silent) * MISSING_OBSERVED >= observed;
        let hears = |subject: &Subject| subject.is_stranger(now) || subject.unanswered(now) < patience;
        many && !self.surely_lives(&self.voters_without(|id| id != self.me && !self.watch.subject(id).is_some_and(hears)))
    }

    fn weigh_picture(&mut self, now: Time) {
        let stops = self.split.is_some() && self.would_stop(&self.voters());
        match (self.proof.losing, stops) {
            (None, true) => {
                let proven = self.proven().unwrap_or(Time::ZERO);
                self.proof.losing = Some(proven.min(self.losing_since() - self.watch.patience()));
                self.warn_of_stop();
            }
            // The others may seem to be back only because those are gone who held them for lost.
            (Some(_), false) => {
                self.doubt_proof(now);
                self.proof.losing = None;
            }
            _ => {}
        }
    }

    /// The first loss with which this side is one that stops, which it is.
    fn losing_since(&self) -> Time {
        let mut losses: Vec<(Time, NodeId)> = self.split.iter().flat_map(Split::all_lost).map(|(id, since)| (since, id)).collect();
        losses.sort_unstable();
        let stops_with = |count: usize| {
            let lost: BTreeSet<NodeId> = losses[..count].iter().map(|&(_, id)| id).collect();
            self.would_stop(&self.voters_without(|id| lost.contains(&id)))
        };
        least(losses.len(), stops_with).map_or(losses.last(), |count| losses.get(count - 1)).map_or(Time::ZERO, |&(since, _)| since)
    }

    /// As its leader judges, who weighs joins and leaves that the other side may have seen: where that ends this side, its word may not come to all, and the
    /// other side goes on. Who asks late for the lease may ask too late.
    fn would_stop(&self, voters: &[Voter]) -> bool {
        matches!(self.judged(voters), Decision::DownMine | Decision::DownAll | Decision::AskLease { late: true })
    }

    /// Whatever the other side may have done by now.
    fn surely_lives(&self, voters: &[Voter]) -> bool {
        self.judged(voters) == Decision::DownOthers
    }

    /// Where nobody is downed but by hand, or by time on both sides, that may be whoever is on the smaller one.
    fn judged(&self, voters: &[Voter]) -> Decision {
        match &self.strategy {
            Strategy::None => Strategy::KeepMajority.decide(voters, true),
            strategy => strategy.decide(voters, true),
        }
    }

    /// All voters, if those were the ones out of reach.
    fn voters_without(&self, is_lost: impl Fn(NodeId) -> bool) -> Vec<Voter> {
        let mut voters = self.voters();
        voters.iter_mut().for_each(|voter| voter.reachable = !is_lost(voter.id));
        voters
    }

    fn warn_of_stop(&mut self) {
        let (here, there) = sides(&self.voters());
        let (lease, stable_after) = (self.config.sharding.lease, Span(self.stable_after()));
        let stop = match &self.strategy {
            Strategy::None => "wait for them, or to be declared down by hand".to_owned(),
            Strategy::LeaseMajority => format!("stop if that lasts for {stable_after} (downing.stable_after), unless they get the lease"),
            _ => format!("stop if that lasts for {stable_after} (downing.stable_after)"),
        };
        let text = format!(
            "{there} members are out of reach and {here} are here, which {stop}; nothing is started here once they are cut off for {lease} \
             (sharding.lease): look at the network between them"
        );
        self.warn("W-DOWN-001", text);
    }

    fn end_doubt(&mut self, now: Time) {
        // What others know of who is out of reach is weighed first.
        let Some(doubt) = self.proof.doubt.as_ref().filter(|_| !self.proof.new_picture) else { return };
        let found_out = now >= self.found_out(doubt.since);
        let is_lost = |id| self.split.as_ref().is_some_and(|split| split.lost_since(id).is_some());
        let asked = self.asked_in_doubt();
        // Who may not know this node yet owes no reply.
        let is_stranger = |id| self.watch.subject(id).is_some_and(|subject| subject.is_stranger(now));
        // Who has lost somebody lives if its leader gets the lease, which this node hears of as the lost are removed.
        let is_known = |id| doubt.answered.contains(&id) || is_stranger(id) || found_out && !self.by_lease() && is_lost(id);
        let known = asked.iter().filter(|&&id| is_known(id)).count();
        let voters = self.voters_without(|id| id != self.me && !doubt.answered.contains(&id));
        // Where all are asked, the one who is left can be the one that counts.
        let asks_all = asked.len() + doubt.lost.len() + 1 >= self.state.members.len();
        let needed = if asks_all { asked.len() } else { (asked.len() * 3).div_ceil(4) };
        let sure = self.surely_lives(&voters);
        if sure {
            self.proof.sure = Some(now);
        }
        if sure || known >= needed {
            (self.proof.doubt, self.proof.settled) = (None, Some(now));
        }
    }
}

/// The least count of one to `most` that is enough, of which each greater one is, too.
fn least(most: usize, is_enough: impl Fn(usize) -> bool) -> Option<usize> {
    let counts: Vec<usize> = (1..=most).collect();
    counts.get(counts.partition_point(|&count| !is_enough(count))).copied()
}
