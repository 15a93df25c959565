//! The strategies that name in advance who lives: a number, the oldest, a referee.

use super::{Decision, Voter};
use crate::NodeAddr;

/// The side with at least `quorum` members lives. More than 2 * quorum - 1 members in all could give two such sides: then nobody lives.
pub(super) fn static_quorum(voters: &[Voter], quorum: usize) -> Decision {
    let all = voters.iter().filter(|v| v.counts()).count();
    let here = voters.iter().filter(|v| v.reachable && v.counts()).count();
    if all > 2 * quorum - 1 {
        Decision::DownAll
    } else if here >= quorum {
        Decision::DownOthers
    } else {
        Decision::DownMine
    }
}

/// The side of the oldest lives; if it is alone and `down_if_alone`, the others do.
pub(super) fn keep_oldest(voters: &[Voter], down_if_alone: bool) -> Decision {
    let counted: Vec<&Voter> = voters.iter().filter(|v| v.counts()).collect();
    let Some(oldest) = counted.iter().min_by_key(|v| (v.up_number, &v.addr)) else { return Decision::DownAll };
    let beside = counted.iter().filter(|v| v.reachable == oldest.reachable).count();
    let alone = down_if_alone && beside == 1 && counted.len() > 1;
    if oldest.reachable != alone { Decision::DownOthers } else { Decision::DownMine }
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
