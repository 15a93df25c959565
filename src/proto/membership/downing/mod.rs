//! Which side of a split lives: strategies as pure functions of what one side sees.

pub(crate) mod exhaustive;
mod keep_majority;
mod lease_majority;
mod others;

use std::time::Duration;

pub(crate) use lease_majority::Waits;

use super::MemberStatus;
use crate::{
    NodeAddr, NodeId,
    config::{AutoSpan, DowningConfig, DowningStrategy},
};

/// A member as the resolver sees it.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Voter {
    pub(crate) id: NodeId,
    pub(crate) addr: NodeAddr,
    pub(crate) status: MemberStatus,
    pub(crate) up_number: u32,
    /// On this side.
    pub(crate) reachable: bool,
}

impl Voter {
    /// Counts in majorities: up, or leaving and was up.
    pub(super) fn counts(&self) -> bool {
        super::leader::counts(self.status, self.up_number)
    }

    /// Could have become up on its own side without our having heard.
    fn may_be_up(&self) -> bool {
        self.status <= MemberStatus::Leaving
    }

    /// Is certainly still there on its own side.
    fn surely_up(&self) -> bool {
        self.status == MemberStatus::Up
    }
}

/// What a side does.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Decision {
    /// This side lives: down those that cannot be reached.
    DownOthers,
    /// The other side lives: down this one.
    DownMine,
    /// No side may live, or it is not certain which.
    DownAll,
    /// Nobody is downed.
    Nothing,
    /// The side that gets the lease lives; `late`: this one lets the other one ask first.
    AskLease {
        /// It is the smaller one.
        late: bool,
    },
}

/// A strategy with what it needs.
#[derive(Clone, Debug)]
pub(crate) enum Strategy {
    None,
    DownAll,
    KeepMajority,
    StaticQuorum(usize),
    KeepOldest { down_if_alone: bool },
    KeepReferee(NodeAddr),
    LeaseMajority,
}

impl Strategy {
    /// The configured strategy.
    ///
    /// # Errors
    /// Names what is missing.
    pub(crate) fn new(config: &DowningConfig) -> Result<Self, String> {
        match config.strategy {
            DowningStrategy::None => Ok(Self::None),
            DowningStrategy::DownAll => Ok(Self::DownAll),
            DowningStrategy::KeepMajority => Ok(Self::KeepMajority),
            DowningStrategy::KeepOldest => Ok(Self::KeepOldest { down_if_alone: config.down_if_alone }),
            DowningStrategy::StaticQuorum => match config.quorum_size {
                Some(n) if n > 0 => Ok(Self::StaticQuorum(n as usize)),
                _ => Err("downing.strategy = \"static-quorum\" needs downing.quorum_size of at least 1".into()),
            },
            DowningStrategy::KeepReferee => match &config.referee {
                Some(addr) => Ok(Self::KeepReferee(addr.clone())),
                None => Err("downing.strategy = \"keep-referee\" needs downing.referee, the address of a member".into()),
            },
            DowningStrategy::LeaseMajority => Ok(Self::LeaseMajority),
        }
    }

    /// Whether whoever finds that no side may live stops without word of its leader: all on a side come to the same answer.
    pub(crate) fn stops_each(&self) -> bool {
        matches!(self, Self::DownAll | Self::StaticQuorum(_))
    }

    /// Decides for the side whose members are marked reachable. `leads`: by the one who will act on it, whose view is the freshest; it
    /// weighs joins and leaves that the other side may have seen.
    pub(crate) fn decide(&self, voters: &[Voter], leads: bool) -> Decision {
        // Nobody has become up, as far as is known here: nothing runs that could run twice, and nobody becomes up before who is out of reach is back, or
        // declared dead by hand. So there is nothing to protect by ending.
        let nobody_is_up = !voters.iter().any(Voter::counts);
        match self {
            Self::StaticQuorum(_) | Self::KeepOldest { .. } | Self::KeepReferee(_) if nobody_is_up => Decision::Nothing,
            // The side of the lowest goes on without the others.
            Self::KeepMajority if nobody_is_up && !keep_majority::lowest_is_here(voters) => Decision::Nothing,
            Self::None => Decision::Nothing,
            Self::DownAll => Decision::DownAll,
            Self::KeepMajority => keep_majority::decide(voters, leads),
            Self::StaticQuorum(n) => others::static_quorum(voters, *n),
            Self::KeepOldest { down_if_alone } => others::keep_oldest(voters, *down_if_alone),
            Self::KeepReferee(addr) => others::keep_referee(voters, addr),
            Self::LeaseMajority => lease_majority::decide(voters),
        }
    }
}

/// How long the picture must stand still before it is decided, by size of the cluster, in heartbeats.
const STABLE: [(usize, u32); 6] = [(5, 7), (10, 10), (20, 13), (50, 17), (100, 20), (1000, 30)];

/// `downing.stable_after` for a cluster of so many members.
pub(crate) fn stable_after(setting: AutoSpan, members: usize, heartbeat: Duration) -> Duration {
    match setting {
        AutoSpan::After(span) => span.get(),
        AutoSpan::Auto => heartbeat.mul_f64(beats(members)),
    }
}

fn beats(members: usize) -> f64 {
    let mut last = STABLE[0];
    for next in STABLE {
        if members <= next.0 {
            let share = members.saturating_sub(last.0) as f64 / (next.0 - last.0).max(1) as f64;
            return f64::from(last.1) + share * f64::from(next.1 - last.1);
        }
        last = next;
    }
    f64::from(last.1)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// `"A,B*|c"`: letters are members in address order, the first side is ours; lower case joining, `*` leaving, `'` exiting.
    pub(crate) fn split(text: &str) -> Vec<Voter> {
        let mut voters = vec![];
        for (side, reachable) in text.split('|').zip([true, false]) {
            for name in side.split(',').filter(|n| !n.is_empty()) {
                let letter = name.chars().next().unwrap();
                let status = match (letter.is_lowercase(), &name[1..]) {
                    (true, _) => MemberStatus::Joining,
                    (_, "*") => MemberStatus::Leaving,
                    (_, "'") => MemberStatus::Exiting,
                    _ => MemberStatus::Up,
                };
                let addr = NodeAddr::new(&letter.to_string(), 1);
                let up_number = if letter.is_lowercase() { 0 } else { u32::from(letter) - 64 };
                voters.push(Voter { id: NodeId::new(&addr, 1), addr, status, up_number, reachable });
            }
        }
        voters
    }

    #[test]
    fn the_wait_grows_with_the_cluster() {
        for (members, expected) in
            [(1, 7.0), (5, 7.0), (10, 10.0), (15, 11.5), (20, 13.0), (50, 17.0), (100, 20.0), (1000, 30.0), (9000, 30.0)]
        {
            assert!((beats(members) - expected).abs() < 1e-9, "{members}: {}", beats(members));
        }
        assert_eq!(stable_after(AutoSpan::Auto, 3, Duration::from_millis(200)), Duration::from_millis(1400));
    }

    #[test]
    fn where_nobody_has_become_up_nobody_ends() {
        let referee = Strategy::KeepReferee(NodeAddr::new("a", 1));
        let oldest = Strategy::KeepOldest { down_if_alone: true };
        for strategy in [&Strategy::KeepMajority, &Strategy::StaticQuorum(3), &oldest, &referee] {
            assert_eq!(strategy.decide(&split("b,c,d|a"), true), Decision::Nothing, "{strategy:?}");
            assert_ne!(strategy.decide(&split("a,b,c|d"), true), Decision::DownMine, "{strategy:?}");
            assert_ne!(strategy.decide(&split("a,b,c|d"), true), Decision::DownAll, "{strategy:?}");
        }
        assert_eq!(Strategy::KeepMajority.decide(&split("a,b,c|d"), true), Decision::DownOthers);
    }

    #[test]
    fn a_strategy_that_lacks_what_it_decides_by_is_refused_by_name() {
        let refused = |strategy| Strategy::new(&DowningConfig { strategy, ..DowningConfig::default() }).unwrap_err();
        assert!(refused(DowningStrategy::StaticQuorum).contains("quorum_size"));
        assert!(refused(DowningStrategy::KeepReferee).contains("referee"));
    }
}
