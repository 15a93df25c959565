//! Up to when it is proven that nobody has taken over what runs here.
//!
//! A beat that a member answered proves that this node was a member when the beat left. Across a split that is not enough: who is cut off together with
//! this node goes on answering it. So nothing is proven while this side would stop if it were judged now, from before it was cut off. And whoever was
//! away, alone, or on such a side is in doubt, and nothing more is proven, until all whom it observes have answered, or must have been found out.

use std::collections::BTreeSet;

use super::{Membership, downing::Decision, resolve::Split, resolve::sides};
use crate::{NodeId, Time, config::Span};

/// What takes from the worth of an answered beat.
#[derive(Default, Debug)]
pub(crate) struct Proof {
    /// What was proven before this side of a split began to be one that stops, while it is.
    losing: Option<Time>,
    doubt: Option<Doubt>,
    /// The picture of the split is not the one that was looked at.
    new_picture: bool,
}

/// Whom this node hears may be few.
#[derive(Debug)]
struct Doubt {
    since: Time,
    /// What was proven before.
    proven: Time,
    /// Who has answered what was sent since.
    answered: BTreeSet<NodeId>,
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
        if let Some(proven) = self.proven() {
            self.proof.doubt = Some(Doubt { since: now, proven, answered: BTreeSet::new() });
        }
    }

    /// A beat was answered that had left then.
    pub(super) fn note_proof(&mut self, now: Time, from: NodeId, sent: Time) {
        if let Some(doubt) = self.proof.doubt.as_mut().filter(|doubt| sent >= doubt.since) {
            doubt.answered.insert(from);
            self.end_doubt(now);
        }
    }

    /// With each beat: what a new picture means, and whether the time of doubt is over.
    pub(super) fn weigh_proof(&mut self, now: Time) {
        if std::mem::take(&mut self.proof.new_picture) {
            self.weigh_picture(now);
        }
        self.end_doubt(now);
    }

    fn weigh_picture(&mut self, now: Time) {
        let stops = match self.strategy.decide(&self.voters(), false) {
            Decision::DownMine => true,
            Decision::DownAll => self.strategy.stops_each(),
            Decision::DownOthers | Decision::AskLease { .. } | Decision::Nothing => false,
        };
        // One may be lost for long, or found last.
        let mut losses: Vec<Time> = self.split.iter().flat_map(Split::all_lost).map(|(_, since)| since).collect();
        losses.sort_unstable();
        match (self.proof.losing, losses.get(losses.len() / 2).filter(|_| stops)) {
            (None, Some(lost)) => {
                let proven = self.proven().unwrap_or(Time::ZERO);
                self.proof.losing = Some(proven.min(*lost - self.watch.patience()));
                self.warn_of_stop();
            }
            // The others may seem to be back only because those are gone who held them for lost.
            (Some(_), None) => {
                self.doubt_proof(now);
                self.proof.losing = None;
            }
            _ => {}
        }
    }

    fn warn_of_stop(&mut self) {
        let (here, there) = sides(&self.voters());
        let (lease, stable_after) = (self.config.sharding.lease, Span(self.stable_after()));
        let text = format!(
            "{there} members are out of reach and {here} are here, which stop if that lasts for {stable_after} (downing.stable_after); nothing is \
             started here once the cut is {lease} old (sharding.lease): look at the network between them"
        );
        self.warn("W-DOWN-001", text);
    }

    fn end_doubt(&mut self, now: Time) {
        // Nobody looks at who is out of reach by what others say: that is in the picture.
        let Some(doubt) = self.proof.doubt.as_ref().filter(|_| !self.proof.new_picture) else { return };
        let lost_before = |id| self.split.as_ref().and_then(|split| split.lost_since(id)).is_some_and(|at| at <= doubt.since);
        let known = |id: NodeId| doubt.answered.contains(&id) || self.own_mark(id).is_some() && lost_before(id);
        if now >= self.found_out(doubt.since) || self.watch.subjects().all(known) {
            self.proof.doubt = None;
        }
    }
}
