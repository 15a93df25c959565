//! `keep-majority`: the side with more members lives; in a tie the one with the lowest address.

use std::cmp::Ordering;

use super::{Decision, Voter};
use crate::id::address_order;

/// Counts up and leaving members. Where joins and leaves that one side has not heard of could turn the answer, the leader of a side that
/// would live downs everybody rather than risk two sides.
pub(super) fn decide(voters: &[Voter], leads: bool) -> Decision {
    let plain = majority(voters, Voter::counts, Voter::counts);
    // The other side can have raised joiners, or told leavers to exit, only if the leader of the whole was there.
    let led_there = first(voters, Voter::counts).is_some_and(|leader| !leader.reachable);
    if plain == Decision::DownOthers && leads && led_there && majority(voters, Voter::surely_up, Voter::may_be_up) != plain {
        return Decision::DownAll;
    }
    plain
}

fn majority(voters: &[Voter], mine: fn(&Voter) -> bool, theirs: fn(&Voter) -> bool) -> Decision {
    let here = voters.iter().filter(|v| v.reachable && mine(v)).count();
    let there = voters.iter().filter(|v| !v.reachable && theirs(v)).count();
    let lives = match here.cmp(&there) {
        Ordering::Greater => true,
        Ordering::Less => false,
        Ordering::Equal => first(voters, |v| if v.reachable { mine(v) } else { theirs(v) })
            .map_or_else(|| lowest_is_here(voters), |lowest| lowest.reachable),
    };
    if lives { Decision::DownOthers } else { Decision::DownMine }
}

/// Whether the one with the lowest address of all is on this side.
pub(super) fn lowest_is_here(voters: &[Voter]) -> bool {
    first(voters, |_| true).is_some_and(|lowest| lowest.reachable)
}

pub(super) fn first(voters: &[Voter], which: impl Fn(&Voter) -> bool) -> Option<&Voter> {
    voters.iter().filter(|v| which(v)).min_by(|a, b| address_order((&a.addr, a.id), (&b.addr, b.id)))
}

#[cfg(test)]
mod tests {
    use super::{super::tests::split, *};

    #[test]
    fn the_larger_side_lives_and_a_tie_goes_to_the_lowest_address() {
        use Decision::{DownMine, DownOthers};
        for (text, expected) in [
            ("A,C,E|B,D", DownOthers),
            ("B,D|A,C,E", DownMine),
            ("A,B|C,D,E", DownMine),
            ("B|A,C", DownMine),
            ("A,B|C,D", DownOthers),
            ("C,D|A,B", DownMine),
            ("A|B", DownOthers),
            ("B|A", DownMine),
            // Joining members are not counted, but downed with their side.
            ("A,B|C,d,e,f", DownOthers),
            ("C,d,e,f|A,B", DownMine),
            ("A|b", DownOthers),
            ("B|a", DownOthers),
        ] {
            assert_eq!(decide(&split(text), true), expected, "{text}");
        }
    }

    #[test]
    fn joiners_that_the_other_side_may_have_raised_make_the_leader_stop_everything() {
        // The leader of the whole, A, is there: it may have raised f and g.
        assert_eq!(decide(&split("C,D,E|A,B,f,g"), true), Decision::DownAll);
        assert_eq!(decide(&split("C,D,E|A,B,f"), true), Decision::DownAll);
        // C may be exiting by now in A's eyes.
        assert_eq!(decide(&split("C*,D,E|A,B"), true), Decision::DownAll);
        // It is here, so nobody raised f there.
        assert_eq!(decide(&split("A,C,D|B,E,f,g"), true), Decision::DownOthers);
        // Only the one who acts judges so: others may have an older view.
        assert_eq!(decide(&split("C,D,E|A,B,f,g"), false), Decision::DownOthers);
    }

    /// Every split of up to 7 members that all agree on: exactly one side lives.
    #[test]
    fn never_two_sides_live_and_never_none() {
        for n in 1..=7u32 {
            for side in 0..1u32 << n {
                let view = |mine: u32| {
                    let mut voters = split(&"A,B,C,D,E,F,G"[..n as usize * 2 - 1]);
                    for (i, v) in voters.iter_mut().enumerate() {
                        v.reachable = mine >> i & 1 == 1;
                    }
                    decide(&voters, true) == Decision::DownOthers
                };
                let all = (1 << n) - 1;
                let lives = [side, all & !side].iter().filter(|&&s| s != 0 && view(s)).count();
                assert_eq!(lives, 1, "{n} members, side {side:b}");
            }
        }
    }
}
