//! The strategies that name in advance who lives: a number, the oldest, a referee.

use super::{Decision, Voter};
use crate::{NodeAddr, proto::membership::MemberStatus};

/// The side with at least `quorum` members lives. More than 2 * quorum - 1 members in all could give two such sides: then nobody lives. Who is
/// leaving may be gone in the eyes of the other side, which then counts somebody else instead.
pub(super) fn static_quorum(voters: &[Voter], quorum: usize) -> Decision {
    let all = voters.iter().filter(|v| v.counts()).count();
    let here = voters.iter().filter(|v| v.reachable && v.surely_up()).count();
    if all > 2 * quorum - 1 {
        Decision::DownAll
    } else if here >= quorum {
        Decision::DownOthers
    } else {
        Decision::DownMine
    }
}

/// The side of the oldest lives. With `down_if_alone` an oldest that is alone does not, where two others are without it at least, but the side of the
/// next one. The other side may have removed who is exiting here, so this one lives only if it does with and without them.
pub(super) fn keep_oldest(voters: &[Voter], down_if_alone: bool) -> Decision {
    let mut by_age: Vec<&Voter> = voters.iter().filter(|v| v.counts() || v.status == MemberStatus::Exiting && v.up_number > 0).collect();
    by_age.sort_by_key(|v| (v.up_number, &v.addr));
    if by_age.is_empty() {
        return Decision::DownAll;
    }
    let here = |by_age: &[&Voter]| match by_age {
        [] => false,
        [oldest, next, ..] if down_if_alone && is_alone(voters, oldest) => !oldest.reachable && next.reachable,
        [oldest, ..] => oldest.reachable,
    };
    let lives = here(&by_age) && {
        by_age.retain(|v| v.counts());
        here(&by_age)
    };
    if lives { Decision::DownOthers } else { Decision::DownMine }
}

/// Whether nobody is beside the oldest: for its own side, nobody who surely is; for another side, nobody who may be. One other is no more than it is, and
/// may be the one that is cut off, or dead.
fn is_alone(voters: &[Voter], oldest: &Voter) -> bool {
    let (beside, without): (Vec<_>, Vec<_>) = voters.iter().filter(|v| v.id != oldest.id).partition(|v| v.reachable == oldest.reachable);
    let others = without.iter().filter(|v| if oldest.reachable { v.may_be_up() } else { v.surely_up() }).count();
    others >= 2 && beside.iter().all(|v| if oldest.reachable { !v.surely_up() } else { !v.may_be_up() })
}

/// The side of the referee lives; without it, none.
pub(super) fn keep_referee(voters: &[Voter], referee: &NodeAddr) -> Decision {
    let here = voters.iter().any(|v| v.reachable && v.counts() && v.addr == *referee);
    if here { Decision::DownOthers } else { Decision::DownMine }
}

#[cfg(test)]
mod tests {
    use super::{super::tests::split, *};
    use Decision::{DownAll, DownMine, DownOthers};

    #[test]
    fn static_quorum_counts_only_full_members() {
        for (text, expected) in [
            ("A,B,C|D,E", DownOthers),
            ("D,E|A,B,C", DownMine),
            ("A,B,c|D", DownMine),
            ("A,B,C|D,E,F", DownAll),
            ("A,B,C|D,E,f", DownOthers),
        ] {
            assert_eq!(static_quorum(&split(text), 3), expected, "{text}");
        }
    }

    #[test]
    fn the_oldest_keeps_its_side_unless_it_is_alone() {
        for (text, alone, expected) in [
            ("A,B|C,D,E", true, DownOthers),
            ("C,D,E|A,B", true, DownMine),
            ("A|B,C", true, DownMine),
            ("B,C|A", true, DownOthers),
            ("A|B,C", false, DownOthers),
            ("B,C|A", false, DownMine),
            ("A|b", true, DownOthers),
            ("A|B", true, DownOthers),
            ("B|A", true, DownMine),
            // The joiner may be up by now there, and is not known to be here.
            ("A|B,c", true, DownMine),
            ("B,c|A", true, DownMine),
        ] {
            assert_eq!(keep_oldest(&split(text), alone), expected, "{text}");
        }
    }

    #[test]
    fn the_referee_keeps_its_side() {
        let referee = NodeAddr::new("b", 1);
        assert_eq!(keep_referee(&split("B|A,C,D"), &referee), DownOthers);
        assert_eq!(keep_referee(&split("A,C,D|B"), &referee), DownMine);
    }
}
