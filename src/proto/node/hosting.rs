//! The right to run: until when this node's workers may start turns.
//!
//! A beat that a member answered proves that this node was a member when the beat left (`membership::proof` tells which beats do), and nobody starts its
//! shards sooner than a lease after that: detection and `stable_after` take longer. So a process that was paused, or is cut off, stops by its own clock
//! and not when it hears of its removal. What counts is the instant of sending: an answer that lay in a buffer during a pause proves nothing
//! about the time since.

use std::time::Duration;

use crate::{
    Config, Time,
    proto::membership::{ClusterView, MemberStatus},
};

/// A step of the lease that is worth telling the workers is this part of it.
const STEPS: u32 = 16;

/// Until when the workers may run, and on what that rests.
#[derive(Debug)]
pub(super) struct Hosting {
    lease: Duration,
    /// Others could take over.
    company: bool,
    /// When this node became up, which is the first proof.
    up: Option<Time>,
    told: Time,
}

impl Hosting {
    pub fn new(config: &Config) -> Self {
        Self { lease: config.sharding.lease.get(), company: false, up: None, told: Time::ZERO }
    }

    /// A new view.
    pub fn saw(&mut self, now: Time, view: &ClusterView) {
        let counts = |status| matches!(status, MemberStatus::WeaklyUp | MemberStatus::Up | MemberStatus::Leaving);
        self.company = view.members.iter().any(|m| m.id != view.me && counts(m.status));
        if self.up.is_none() && view.myself().is_some_and(|m| m.status == MemberStatus::Up) {
            self.up = Some(now);
        }
    }

    /// The right lasts.
    pub fn may_run(&self, now: Time) -> bool {
        now < self.told
    }

    /// What to tell the workers, if that is news. `beat`: when the newest beat that proves the membership had left; an earlier one than before where
    /// those since then have turned out to prove nothing.
    pub fn news(&mut self, beat: Option<Time>) -> Option<Time> {
        let proven = self.up?.max(beat.unwrap_or(Time::ZERO));
        let until = if !self.company { Time::MAX } else { proven + self.lease };
        let news = until < self.told || until.since(self.told) >= self.lease / STEPS;
        news.then(|| {
            self.told = until;
            until
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        NodeAddr, NodeId,
        proto::membership::{Member, MemberInfo},
    };

    fn s(n: u64) -> Time {
        Time::from_nanos(n * 1_000_000_000)
    }

    fn view(statuses: &[MemberStatus]) -> ClusterView {
        let member = |(i, &status): (usize, &MemberStatus)| {
            let addr = NodeAddr::new(&format!("n{i}"), 1);
            let id = NodeId::new(&addr, 7);
            Member::new(MemberInfo::bare(id, addr), status, 1)
        };
        let members: Vec<Member> = statuses.iter().enumerate().map(member).collect();
        ClusterView {
            me: members[0].id,
            members: members.into_iter().collect(),
            leader: None,
            deputies: vec![],
            converged: true,
            version: 1,
        }
    }

    #[test]
    fn an_answered_beat_extends_the_right_from_when_it_left() {
        use MemberStatus::{Joining, Up};
        let mut h = Hosting::new(&Config::default());
        h.saw(s(1), &view(&[Joining, Up]));
        assert_eq!(h.news(Some(s(2))), None, "not up yet");
        h.saw(s(3), &view(&[Up, Up]));
        assert_eq!(h.news(Some(s(2))), Some(s(13)));
        assert_eq!(h.news(Some(s(3))), None);
        assert_eq!(h.news(Some(s(4))), Some(s(14)));
        assert_eq!(h.news(Some(s(3))), Some(s(13)), "what was said since proves nothing");
    }

    #[test]
    fn who_is_alone_needs_no_proof_until_company_comes() {
        use MemberStatus::{Down, Up};
        let mut h = Hosting::new(&Config::default());
        h.saw(s(1), &view(&[Up]));
        assert_eq!(h.news(None), Some(Time::MAX));
        h.saw(s(5), &view(&[Up, Up]));
        assert_eq!(h.news(Some(s(5))), Some(s(15)));
        h.saw(s(30), &view(&[Up, Down]));
        assert_eq!(h.news(None), Some(Time::MAX), "who is down takes nothing over");
    }
}
