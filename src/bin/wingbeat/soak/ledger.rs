//! What was sent to each entity and what came back: order, loss and duplication, judged from numbers alone. Pure.
//!
//! One thread sends, so each entity sees one numbered stream. A number may be missing at the entity if its sender was told (an error, a dead
//! letter), or if the entity's home was lost meanwhile; nothing else excuses it.

use std::collections::BTreeSet;

/// What is known of one entity's stream.
#[derive(Clone, Debug, Default)]
pub struct Stream {
    /// Highest number that was accepted for sending.
    sent: u64,
    /// Requests without an answer yet.
    pending: BTreeSet<u64>,
    /// May be missing.
    excused: BTreeSet<u64>,
    /// Must be missing: the sender was told that they did not run.
    denied: BTreeSet<u64>,
    /// Given up on this node, without a word which number it was.
    nameless: u64,
    /// Everything up to this number was looked at.
    checked: u64,
    /// The home is being lost: from this number on.
    risk: Option<u64>,
    /// A new life of the entity may have begun behind numbers up to this one.
    reborn: Option<u64>,
    /// Grows when a risk begins or ends.
    era: u32,
    /// What the entity said of this life the last time.
    known: Known,
    /// Highest number that was answered, the epoch it ran in, and where.
    served: Option<(u64, u64, String)>,
}

#[derive(Clone, Debug, Default)]
struct Known {
    /// First number of this life of the entity.
    first: Option<u64>,
    /// Missing in this life, up to `checked`.
    missing: u64,
    duplicates: u64,
    reordered: u64,
    /// Of a counter: its total at `checked`.
    total: u64,
}

/// What a probe says of the stream.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Arrived {
    pub count: u64,
    /// `None` if nothing arrived.
    pub first: Option<u64>,
    pub last: u64,
    pub gaps: u64,
    pub duplicates: u64,
    pub reordered: u64,
}

/// What should not have happened.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    pub reordered: u64,
    pub duplicated: u64,
    /// Missing without any excuse.
    pub lost: u64,
    /// Ran, although the sender was told that they had not.
    pub contradicted: u64,
    /// Served by two homes in one epoch, or in an epoch that was over.
    pub two_homes: u64,
}

impl Faults {
    pub fn any(self) -> bool {
        self != Self::default()
    }

    pub fn add(&mut self, more: Self) {
        self.reordered += more.reordered;
        self.duplicated += more.duplicated;
        self.lost += more.lost;
        self.contradicted += more.contradicted;
        self.two_homes += more.two_homes;
    }
}

impl Stream {
    /// The number of the next message.
    pub fn next(&self) -> u64 {
        self.sent + 1
    }

    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// See [`Stream::check`]: an audit counts only if this did not change since it was asked for.
    pub fn era(&self) -> u32 {
        self.era
    }

    /// The next number was accepted, as a request or not.
    pub fn accept(&mut self, asked: bool) {
        self.sent += 1;
        if asked {
            self.pending.insert(self.sent);
        }
    }

    /// A request has its answer.
    pub fn answered(&mut self, seq: u64) {
        self.pending.remove(&seq);
    }

    /// A request failed; `ran`: whether that is known.
    pub fn failed(&mut self, seq: u64, ran: Option<bool>) {
        self.pending.remove(&seq);
        if ran == Some(true) {
            return;
        }
        self.excused.insert(seq);
        if ran == Some(false) && seq > self.checked {
            self.denied.insert(seq);
        }
    }

    /// A message was given up and its sender told, in a dead letter; false if it is a request, whose own answer says more.
    pub fn given_up(&mut self, seq: Option<u64>) -> bool {
        match seq {
            Some(seq) if self.pending.contains(&seq) => return false,
            Some(seq) => _ = self.excused.insert(seq),
            None => self.nameless += 1,
        }
        true
    }

    /// Its home is about to be lost, and with it the state and what was under way.
    pub fn risk_begins(&mut self) {
        self.era += 1;
        self.risk.get_or_insert(self.checked + 1);
    }

    /// It has a home again, and what is sent from now on is safe.
    pub fn risk_ends(&mut self) {
        let Some(from) = self.risk.take() else { return };
        self.era += 1;
        self.excused.extend(from..=self.sent);
        self.reborn = Some(self.sent);
    }

    pub fn is_at_risk(&self) -> bool {
        self.risk.is_some()
    }

    /// Whether every request up to this number has its answer.
    pub fn is_settled(&self, upto: u64) -> bool {
        self.pending.first().is_none_or(|first| *first > upto)
    }

    /// A request was answered by this home in this epoch. Epochs follow the order of the messages, and one epoch has one home.
    pub fn served(&mut self, seq: u64, epoch: u64, by: &str) -> Faults {
        let mut faults = Faults::default();
        if let Some((seen, at, home)) = &self.served {
            let backwards = if seq > *seen { epoch < *at } else { epoch > *at };
            faults.two_homes = u64::from(backwards || (epoch == *at && home != by));
        }
        if self.served.as_ref().is_none_or(|(seen, ..)| seq > *seen) {
            match &mut self.served {
                Some((seen, at, home)) => {
                    (*seen, *at) = (seq, epoch);
                    if home != by {
                        by.clone_into(home);
                    }
                }
                none => *none = Some((seq, epoch, by.to_owned())),
            }
        }
        faults
    }

    /// Looks at what a probe says, asked behind number `upto` and answered while no risk began or ended; all requests up to there are answered.
    pub fn check(&mut self, upto: u64, arrived: Arrived) -> Faults {
        let mut faults = Faults::default();
        if upto < self.checked {
            return faults;
        }
        let first = arrived.first.unwrap_or(upto + 1);
        let same_life = self.known.first.is_some_and(|known| known == first) || (self.known.first.is_none() && first == 1);
        let from = if same_life {
            self.checked + 1
        } else {
            faults.add(self.new_life(first));
            self.known = Known { first: Some(first), ..Known::default() };
            first
        };
        self.known.first = Some(first);
        let missing = arrived.gaps + (upto + 1).saturating_sub(first.max(arrived.last + 1));
        // What was missing before and came after all is told apart by the probe itself, as reordered.
        let new = missing.saturating_sub(self.known.missing);
        // Behind the last one that arrived it is known which are missing.
        let last = arrived.last.max(from - 1).min(upto);
        let tail = new.min(upto - last);
        faults.lost += self.unexcused(last + 1, upto, tail) + self.unexcused(from, last, new - tail);
        faults.contradicted += within(&self.denied, from, upto).saturating_sub(new);
        faults.duplicated += arrived.duplicates.saturating_sub(self.known.duplicates);
        faults.reordered += arrived.reordered.saturating_sub(self.known.reordered);
        self.known.missing = missing;
        (self.known.duplicates, self.known.reordered) = (arrived.duplicates, arrived.reordered);
        self.pass(upto);
        faults
    }

    /// A life of the entity begins at `first`: allowed behind a lost home, or where all before it is excused.
    fn new_life(&mut self, first: u64) -> Faults {
        let mut faults = Faults::default();
        let reborn = self.reborn.is_some_and(|upto| first <= upto + 1);
        if !reborn && first > self.checked + 1 {
            let before = first - self.checked - 1;
            faults.lost = self.unexcused(self.checked + 1, first - 1, before);
            // Numbers that had arrived are gone with the state.
            if self.known.first.is_some() {
                faults.lost += 1;
            }
        } else if !reborn {
            // It had arrived, and arrived again at a life that did not know of it.
            faults.lost += 1;
        }
        faults
    }

    /// Looks at the total of a counter, which each number adds one to, behind number `upto`.
    pub fn check_total(&mut self, upto: u64, total: u64) -> Faults {
        let mut faults = Faults::default();
        if upto <= self.checked {
            return faults;
        }
        let (from, expected) = (self.checked + 1, self.known.total + (upto - self.checked));
        faults.duplicated = total.saturating_sub(expected);
        let new = expected.saturating_sub(total);
        if self.reborn.is_none() {
            let open = within(&self.pending, from, upto);
            faults.lost = self.unexcused(from, upto, new).saturating_sub(open);
        }
        self.known.total = total;
        self.pass(upto);
        faults
    }

    /// Looks at the value of a register, which is the number of the last write that arrived (0: none), read behind number `upto`.
    pub fn check_value(&mut self, upto: u64, value: u64) -> Faults {
        let mut faults = Faults::default();
        if upto < self.checked {
            return faults;
        }
        // A value from the future, or an older one over a newer one.
        faults.reordered = u64::from(value > upto);
        if self.reborn.is_none() && value < upto {
            let from = value.max(self.checked) + 1;
            let open = within(&self.pending, from, upto);
            faults.lost = self.unexcused(from, upto, (upto + 1).saturating_sub(from)).saturating_sub(open);
            // What had been read before is gone, or an older value came back over it.
            faults.lost += u64::from(value < self.known.total);
        }
        self.known.total = value;
        self.pass(upto);
        faults
    }

    /// How many of `missing` numbers within bounds nothing excuses.
    fn unexcused(&mut self, from: u64, upto: u64, missing: u64) -> u64 {
        let left = missing.saturating_sub(within(&self.excused, from, upto));
        let nameless = left.min(self.nameless);
        self.nameless -= nameless;
        left - nameless
    }

    /// Everything up to here was looked at.
    fn pass(&mut self, upto: u64) {
        self.checked = self.checked.max(upto);
        self.excused = self.excused.split_off(&(self.checked + 1));
        self.denied = self.denied.split_off(&(self.checked + 1));
        if self.reborn.is_some_and(|reborn| reborn <= self.checked) {
            self.reborn = None;
        }
    }
}

/// How many of them lie within bounds, both included.
fn within(numbers: &BTreeSet<u64>, from: u64, upto: u64) -> u64 {
    if from > upto { 0 } else { numbers.range(from..=upto).count() as u64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLEAN: Faults = Faults { reordered: 0, duplicated: 0, lost: 0, contradicted: 0, two_homes: 0 };

    fn told(n: u64) -> Stream {
        let mut stream = Stream::default();
        (0..n).for_each(|_| stream.accept(false));
        stream
    }

    fn all(first: u64, last: u64) -> Arrived {
        Arrived { count: last + 1 - first, first: Some(first), last, ..Arrived::default() }
    }

    #[test]
    fn a_stream_that_arrived_is_clean() {
        let mut stream = told(10);
        assert_eq!(stream.check(10, all(1, 10)), CLEAN);
        stream.accept(false);
        assert_eq!(stream.check(11, all(1, 11)), CLEAN);
        assert_eq!(told(0).check(0, Arrived::default()), CLEAN);
    }

    #[test]
    fn a_message_that_vanished_is_lost_wherever_it_was() {
        assert_eq!(told(10).check(10, Arrived { count: 9, gaps: 1, ..all(1, 10) }), Faults { lost: 1, ..CLEAN });
        assert_eq!(told(10).check(10, all(1, 8)), Faults { lost: 2, ..CLEAN });
        assert_eq!(told(10).check(10, all(3, 10)), Faults { lost: 2, ..CLEAN });
        assert_eq!(told(10).check(10, Arrived::default()), Faults { lost: 10, ..CLEAN });
    }

    #[test]
    fn it_is_counted_once_and_the_next_one_too() {
        let mut stream = told(10);
        assert_eq!(stream.check(10, all(1, 9)).lost, 1);
        stream.accept(false);
        assert_eq!(stream.check(11, Arrived { count: 10, gaps: 1, ..all(1, 11) }), CLEAN);
        stream.accept(false);
        assert_eq!(stream.check(12, Arrived { count: 10, gaps: 1, ..all(1, 11) }).lost, 1);
    }

    #[test]
    fn doubled_and_reordered_messages_are_seen() {
        let arrived = Arrived { duplicates: 2, reordered: 1, ..all(1, 10) };
        let mut stream = told(10);
        assert_eq!(stream.check(10, arrived), Faults { duplicated: 2, reordered: 1, ..CLEAN });
        assert_eq!(stream.check(10, arrived), CLEAN, "counted once");
    }

    #[test]
    fn what_the_sender_was_told_of_is_excused() {
        let mut stream = told(4);
        stream.accept(true);
        stream.accept(false);
        stream.failed(5, None);
        stream.given_up(Some(6));
        assert_eq!(stream.check(6, all(1, 4)), CLEAN);
        let mut stream = told(4);
        stream.given_up(None);
        assert_eq!(stream.check(4, all(1, 2)), Faults { lost: 1, ..CLEAN });
    }

    #[test]
    fn a_request_that_did_not_run_must_not_have_arrived() {
        let mut stream = told(1);
        stream.accept(true);
        stream.failed(2, Some(false));
        assert_eq!(stream.clone().check(2, all(1, 1)), CLEAN);
        assert_eq!(stream.check(2, all(1, 2)), Faults { contradicted: 1, ..CLEAN });
    }

    #[test]
    fn a_lost_home_excuses_its_state_and_what_was_under_way_and_nothing_later() {
        let mut stream = told(10);
        assert_eq!(stream.check(10, all(1, 10)), CLEAN);
        (0..5).for_each(|_| stream.accept(false));
        stream.risk_begins();
        (0..5).for_each(|_| stream.accept(false));
        stream.risk_ends();
        (0..5).for_each(|_| stream.accept(false));
        assert_eq!(stream.clone().check(25, all(18, 25)), CLEAN);
        assert_eq!(stream.clone().check(25, Arrived { gaps: 1, count: 7, ..all(18, 25) }).lost, 0, "19 or 20 was under way");
        assert_eq!(stream.clone().check(25, all(21, 25)), CLEAN);
        assert!(stream.clone().check(25, all(23, 25)).lost >= 2);
        assert_eq!(stream.check(25, all(18, 24)).lost, 1);
    }

    #[test]
    fn state_that_was_lost_without_a_reason_is_seen() {
        let mut stream = told(10);
        assert_eq!(stream.check(10, all(1, 10)), CLEAN);
        (0..5).for_each(|_| stream.accept(false));
        assert!(stream.check(15, all(11, 15)).lost > 0);
    }

    #[test]
    fn totals_show_lost_and_doubled_additions() {
        let mut stream = told(10);
        assert_eq!(stream.check_total(4, 4), CLEAN);
        assert_eq!(stream.clone().check_total(10, 10), CLEAN);
        assert_eq!(stream.clone().check_total(10, 9), Faults { lost: 1, ..CLEAN });
        assert_eq!(stream.clone().check_total(10, 11), Faults { duplicated: 1, ..CLEAN });
        stream.risk_begins();
        stream.risk_ends();
        assert_eq!(stream.check_total(10, 1), CLEAN);
    }

    #[test]
    fn values_show_lost_writes_and_older_ones_that_came_back() {
        let mut stream = told(5);
        assert_eq!(stream.check_value(5, 5), CLEAN);
        stream.accept(false);
        assert_eq!(stream.clone().check_value(6, 6), CLEAN);
        assert_eq!(stream.clone().check_value(6, 5), Faults { lost: 1, ..CLEAN });
        assert_eq!(stream.clone().check_value(5, 3), Faults { lost: 1, ..CLEAN });
        assert_eq!(stream.clone().check_value(6, 7), Faults { reordered: 1, ..CLEAN });
        stream.risk_begins();
        stream.risk_ends();
        assert_eq!(stream.check_value(6, 0), CLEAN);
    }

    #[test]
    fn one_epoch_has_one_home_and_epochs_follow_the_messages() {
        let mut stream = told(9);
        assert_eq!(stream.served(1, 4, "a"), CLEAN);
        assert_eq!(stream.served(3, 5, "b"), CLEAN);
        assert_eq!(stream.served(2, 4, "a"), CLEAN, "an answer that comes late");
        assert_eq!(stream.served(4, 5, "a").two_homes, 1);
        assert_eq!(stream.served(5, 4, "a").two_homes, 1);
    }
}
