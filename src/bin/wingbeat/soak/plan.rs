//! Which fault comes when, and whom it meets: all of it follows from the seed.

use std::{fmt, ops::Range, time::Duration};

use wingbeat::proto::rng::Rng;

/// Node processes that are there from the beginning.
pub const NODES: usize = 5;
/// The node that no fault ends, so that one process is watched from the first minute to the last; it meets all other faults. With an odd seed it
/// is the coordinator, so that what a coordinator piles up is seen; with an even one those that are ended take turns.
pub const ANCHOR: usize = NODES - 1;
/// Shortest time from the beginning of one fault to that of the next.
const SHORTEST: Duration = Duration::from_secs(10);
/// Longest time, in a run of any length.
const LONGEST: Duration = Duration::from_secs(60);
/// A short run has time for about so many faults, so that each kind comes.
const FAULTS_LEAST: u32 = 9;

/// Kinds of faults.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Kind {
    /// SIGTERM: hands its shards off, leaves, ends with 0; started again on the same address.
    Leave,
    /// SIGKILL; started again on the same address, at once or only after the others have removed it.
    Kill,
    /// SIGSTOP for less than what anybody is accused for: no membership event may follow.
    Pause,
    /// SIGSTOP until the others have removed it; runs again, and joins as a new member in the same process.
    Outage,
    /// SIGSTOP and SIGCONT in turns for some seconds: a peer that reads slowly.
    Choppy,
    /// Connections from outside that trickle bytes, or never read what they asked for.
    Trickle,
    /// One more node joins, takes its share of the shards, and leaves.
    Joiner,
}

/// All of them.
pub const KINDS: [Kind; 7] = [Kind::Leave, Kind::Kill, Kind::Pause, Kind::Outage, Kind::Choppy, Kind::Trickle, Kind::Joiner];

impl Kind {
    /// The process is a new one afterwards.
    pub fn ends_the_process(self) -> bool {
        matches!(self, Self::Leave | Self::Kill)
    }

    /// Within which the cluster must be whole again, counted from the end of what was done to it; generous, as two cores carry all of it.
    pub fn heals_within(self) -> Duration {
        match self {
            Self::Pause | Self::Choppy | Self::Trickle => Duration::from_secs(20),
            Self::Leave | Self::Joiner | Self::Kill | Self::Outage => Duration::from_secs(45),
        }
    }

    /// In reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Leave => "leave",
            Self::Kill => "kill",
            Self::Pause => "pause",
            Self::Outage => "outage",
            Self::Choppy => "choppy",
            Self::Trickle => "trickle",
            Self::Joiner => "joiner",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// One fault.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Step {
    /// From the beginning of the fault before; later if that one has not healed.
    pub after: Duration,
    pub kind: Kind,
    /// Whom it meets: a number of a node, or whoever is the coordinator then.
    pub whom: Whom,
    /// How long it is paused, is choppy, or stays away after a kill.
    pub lasts: Duration,
}

/// Whom a fault meets.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Whom {
    Node(usize),
    /// The node that assigns shards, wherever that is then.
    Coordinator,
}

/// An endless plan: each kind once, in a drawn order, then again. In the first round the anchor meets all that it survives: what a fault makes a process
/// need at most, it has then needed, and what comes on top later is growth.
pub struct Plan {
    rng: Rng,
    longest: Duration,
    deck: Vec<Kind>,
    round: u32,
    coordinators: Range<usize>,
}

impl Plan {
    /// For a run of that length.
    pub fn new(seed: u64, length: Duration) -> Self {
        let longest = (length / FAULTS_LEAST).clamp(SHORTEST + Duration::from_secs(2), LONGEST);
        let coordinators = if seed.is_multiple_of(2) { 0..ANCHOR } else { ANCHOR..NODES };
        Self { rng: Rng::new(seed).split(1), longest, deck: Vec::new(), round: 0, coordinators }
    }

    /// The places of those that may be coordinator.
    pub fn coordinators(&self) -> Range<usize> {
        self.coordinators.clone()
    }

    /// Between which two times the next fault comes.
    pub fn spacing(&self) -> (Duration, Duration) {
        (SHORTEST, self.longest)
    }

    fn within(&mut self, range: Range<Duration>) -> Duration {
        let span = range.end.saturating_sub(range.start).as_millis() as u64;
        range.start + Duration::from_millis(self.rng.below(span.max(1)))
    }

    fn draw(&mut self) -> Kind {
        if self.deck.is_empty() {
            self.deck = KINDS.to_vec();
            self.round += 1;
        }
        let at = self.rng.index(self.deck.len()).expect("the deck was filled");
        self.deck.swap_remove(at)
    }
}

impl Iterator for Plan {
    type Item = Step;

    fn next(&mut self) -> Option<Step> {
        let after = self.within(SHORTEST..self.longest);
        let kind = self.draw();
        let mortal = kind.ends_the_process() || kind == Kind::Outage;
        // Every second one that ends a node's part meets the coordinator, unless that is the anchor.
        let coordinator = mortal && self.rng.chance(0.5) && !self.coordinators.contains(&ANCHOR);
        let drawn = self.rng.below(if mortal { ANCHOR } else { NODES } as u64) as usize;
        let node = if self.round == 1 && !mortal { ANCHOR } else { drawn };
        let ms = Duration::from_millis;
        let lasts = match kind {
            // Accused is who was silent for a heartbeat and `acceptable_pause`, together 800 ms in the preset used.
            Kind::Pause => self.within(ms(150)..ms(450)),
            Kind::Choppy => self.within(ms(3_000)..ms(6_000)),
            Kind::Trickle => self.within(ms(6_000)..ms(8_000)),
            Kind::Kill if self.rng.chance(0.5) => Duration::ZERO,
            Kind::Kill => self.within(ms(2_000)..ms(6_000)),
            Kind::Outage => self.within(ms(500)..ms(2_000)),
            Kind::Leave => self.within(ms(0)..ms(2_000)),
            Kind::Joiner => self.within(ms(2_000)..ms(5_000)),
        };
        Some(Step { after, kind, whom: if coordinator { Whom::Coordinator } else { Whom::Node(node) }, lasts })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(seed: u64, minutes: u64) -> Vec<Step> {
        Plan::new(seed, Duration::from_secs(60 * minutes)).take(70).collect()
    }

    #[test]
    fn the_same_seed_gives_the_same_plan_and_another_one_another() {
        assert_eq!(plan(7, 30), plan(7, 30));
        assert_ne!(plan(7, 30), plan(8, 30));
    }

    #[test]
    fn each_kind_comes_once_before_any_comes_again() {
        for round in plan(3, 3).chunks(KINDS.len()) {
            let mut kinds: Vec<Kind> = round.iter().map(|step| step.kind).collect();
            kinds.sort();
            assert_eq!(kinds, KINDS);
        }
    }

    #[test]
    fn faults_are_ten_to_sixty_seconds_apart_and_closer_in_a_short_run() {
        for (minutes, longest) in [(3, 20), (30, 60)] {
            for step in plan(11, minutes) {
                assert!(step.after >= SHORTEST && step.after <= Duration::from_secs(longest), "{step:?}");
            }
        }
    }

    #[test]
    fn the_anchor_is_never_ended_and_meets_the_rest() {
        for seed in [5, 6] {
            let all = plan(seed, 30);
            assert!(all.iter().all(|step| step.whom != Whom::Node(ANCHOR) || !(step.kind.ends_the_process() || step.kind == Kind::Outage)));
            assert!(all.iter().any(|step| step.whom == Whom::Node(ANCHOR)));
            let spared = Plan::new(seed, Duration::from_secs(60)).coordinators().contains(&ANCHOR);
            assert_ne!(
                all.iter().any(|step| step.whom == Whom::Coordinator),
                spared,
                "seed {seed}: it is ended where that is not the anchor"
            );
        }
    }

    #[test]
    fn the_anchor_meets_in_the_first_round_what_it_survives() {
        for seed in 1..20 {
            let all = plan(seed, 30);
            let (first, rest) = all.split_at(KINDS.len());
            let survives = |step: &&Step| matches!(step.kind, Kind::Pause | Kind::Choppy | Kind::Trickle);
            assert_eq!(first.iter().filter(survives).filter(|step| step.whom == Whom::Node(ANCHOR)).count(), 3, "seed {seed}");
            assert!(rest.iter().filter(survives).any(|step| step.whom != Whom::Node(ANCHOR)), "seed {seed}: others meet them later");
        }
    }

    #[test]
    fn a_pause_stays_below_what_anybody_is_accused_for() {
        for step in plan(9, 30).into_iter().filter(|step| step.kind == Kind::Pause) {
            assert!(step.lasts < Duration::from_millis(600), "{step:?}");
        }
    }
}
