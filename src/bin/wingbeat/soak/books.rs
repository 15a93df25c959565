//! What the load knows: every stream, every latency, every refusal. Shared by the thread that sends and the ones that look.

use std::{collections::BTreeMap, time::Duration};

use hdrhistogram::Histogram;
use wingbeat::{AskError, Ran, ShardId};

use super::ledger::{Arrived, Faults, Stream};

/// What is found wrong is shown so often, and counted always.
const EXAMPLES_MAX: usize = 20;
/// A dead letter may come a moment after the answer to a later request: what an entity says is judged so much later.
const JUDGED_AFTER: Duration = Duration::from_secs(2);
/// After a fault has healed, shards are handed back and buffers returned for so long; behind that all is calm.
pub const CALM_AFTER: Duration = Duration::from_secs(3);
/// A request that had no answer for so long when a fault began had failed without it.
const OVERDUE: Duration = Duration::from_secs(5);

/// The built-in types that are sent to.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Type {
    Probe,
    Counter,
    Register,
}

/// One entity as the load sees it.
pub struct Entity {
    pub ty: Type,
    pub key: String,
    pub shard: ShardId,
    pub stream: Stream,
    /// Numbers above this one were sent since all is calm; `None` while it is not.
    calm_from: Option<u64>,
}

impl Entity {
    pub fn new(ty: Type, key: String, shard: ShardId) -> Self {
        Self { ty, key, shard, stream: Stream::default(), calm_from: None }
    }
}

/// What was asked.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum What {
    /// A numbered message.
    Numbered(u64),
    /// What the entity has, asked behind this number.
    Look(u64),
}

/// A request on its way.
#[derive(Clone, Debug)]
pub struct Flight {
    pub entity: usize,
    pub what: What,
    era: u32,
    /// When it was meant to go, since the beginning.
    due: Duration,
    /// The state of faults then.
    fault: u32,
    /// Looks are not.
    of_the_load: bool,
}

/// What an answer says of the entity.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Said {
    Nothing,
    Arrived(Arrived),
    Total(u64),
    Value(u64),
}

/// Latencies of a part of the run.
pub fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("the bounds are constants that the crate accepts")
}

/// The same, in memory from the beginning: the load's process is judged for its growth, and the histogram of the last third is none.
fn resident() -> Histogram<u64> {
    let mut all = histogram();
    all.saturating_record(1);
    // Writes to all of it.
    all.clear();
    all
}

/// What happened since it was last taken.
pub struct Interval {
    pub sent: u64,
    pub answered: u64,
    pub failed: u64,
    pub latencies: Histogram<u64>,
}

impl Default for Interval {
    fn default() -> Self {
        Self { sent: 0, answered: 0, failed: 0, latencies: histogram() }
    }
}

/// What came of the load, in sums.
#[derive(Clone, Debug, Default)]
pub struct Sums {
    /// Messages whose time came.
    pub meant: u64,
    /// Accepted, and how many of those were requests.
    pub accepted: u64,
    pub asked: u64,
    pub answered: u64,
    /// Not accepted: told at once, by reason.
    pub refused: BTreeMap<&'static str, u64>,
    /// Requests without an answer, by code of the error.
    pub failed: BTreeMap<&'static str, u64>,
    /// Given up on the sender's node, by reason.
    pub dead_letters: BTreeMap<&'static str, u64>,
    /// Requests and looks whose answer was that they were given up, by reason.
    pub told: BTreeMap<&'static str, u64>,
    /// Requests and looks that failed, and messages that were given up, though no fault explains it.
    pub calm_failures: u64,
    /// Looks at what entities have that were judged.
    pub looks: u64,
    /// The load has ended, and each entity is looked at for the last time.
    pub ending: bool,
    /// Last looks that failed: these entities were not judged to the end.
    pub unseen: u64,
    /// How long the thread of the load ran, and waited for a core while it could have run.
    pub ran: Duration,
    pub waited: Duration,
    pub faults: Faults,
    pub examples: Vec<String>,
}

/// All of it.
pub struct Books {
    pub entities: Vec<Entity>,
    pub sums: Sums,
    /// Requests that met no fault, by third of the run.
    pub quiet: [Histogram<u64>; 3],
    /// Requests that were under way while a fault was not healed.
    pub faulted: Histogram<u64>,
    /// How late messages were sent: what the load itself adds.
    pub lateness: Histogram<u64>,
    pub interval: Interval,
    flights: BTreeMap<u64, Flight>,
    next_tag: u64,
    /// When each fault began, and when it had healed, in turns.
    turns: Vec<Duration>,
    calm: bool,
    /// Answers to looks that are judged later: when, whose, era, behind which number, what.
    unjudged: std::collections::VecDeque<(Duration, usize, u32, u64, Arrived)>,
    /// The time that latencies are kept of.
    from: Duration,
    upto: Duration,
}

impl Books {
    pub fn new(entities: Vec<Entity>, from: Duration, upto: Duration) -> Self {
        Self {
            entities,
            sums: Sums::default(),
            quiet: [resident(), resident(), resident()],
            faulted: resident(),
            lateness: resident(),
            interval: Interval::default(),
            flights: BTreeMap::new(),
            next_tag: 0,
            turns: Vec::new(),
            calm: false,
            unjudged: std::collections::VecDeque::new(),
            from,
            upto,
        }
    }

    pub fn in_flight(&self) -> usize {
        self.flights.len()
    }

    pub fn unjudged(&self) -> usize {
        self.unjudged.len()
    }

    /// The tag of the next request.
    pub fn next_tag(&self) -> u64 {
        self.next_tag
    }

    /// The state of faults as of now, which is odd while one is not healed.
    pub fn faults_are(&mut self, fault: u32, now: Duration) {
        self.turns.resize(fault as usize, now);
        let calm = self.is_calm(fault, now);
        if calm != self.calm {
            self.calm = calm;
            self.entities.iter_mut().for_each(|entity| entity.calm_from = calm.then(|| entity.stream.sent()));
        }
    }

    /// Whether no fault was open then, in that state of faults, and none had healed only just before.
    fn is_calm(&self, fault: u32, at: Duration) -> bool {
        let healed = fault.checked_sub(1).and_then(|healed| self.turns.get(healed as usize));
        fault.is_multiple_of(2) && healed.is_none_or(|healed| at >= *healed + CALM_AFTER)
    }

    /// A message of the load was accepted, as a request under the next tag or not.
    pub fn accepted(&mut self, entity: usize, what: What, asked: bool, due: Duration, fault: u32) {
        let stream = &mut self.entities[entity].stream;
        if matches!(what, What::Numbered(_)) {
            stream.accept(asked);
        }
        let era = stream.era();
        self.sums.accepted += 1;
        self.interval.sent += 1;
        if asked {
            self.sums.asked += 1;
            self.fly(Flight { entity, what, era, due, fault, of_the_load: true });
        }
    }

    /// A look at what an entity has was accepted, under the next tag.
    pub fn looking(&mut self, entity: usize, now: Duration, fault: u32) {
        let stream = &self.entities[entity].stream;
        let (what, era) = (What::Look(stream.sent()), stream.era());
        self.fly(Flight { entity, what, era, due: now, fault, of_the_load: false });
    }

    fn fly(&mut self, flight: Flight) {
        self.flights.insert(self.next_tag, flight);
        self.next_tag += 1;
    }

    /// What was asked under that tag.
    pub fn asked(&self, tag: u64) -> Option<(Type, What)> {
        self.flights.get(&tag).map(|flight| (self.entities[flight.entity].ty, flight.what))
    }

    /// A request was answered by this home, in this epoch.
    pub fn answered(&mut self, tag: u64, said: Said, served: (u64, &str), now: Duration, fault: u32) {
        let Some(flight) = self.flights.remove(&tag) else { return };
        let stream = &mut self.entities[flight.entity].stream;
        let upto = match flight.what {
            What::Numbered(seq) => {
                stream.answered(seq);
                seq
            }
            What::Look(upto) => upto,
        };
        let mut faults = Faults::default();
        if matches!(flight.what, What::Numbered(_)) {
            faults.add(stream.served(upto, served.0, served.1));
        }
        let sound = flight.era == stream.era() && !stream.is_at_risk();
        match said {
            Said::Arrived(arrived) if sound => self.unjudged.push_back((now + JUDGED_AFTER, flight.entity, flight.era, upto, arrived)),
            Said::Total(total) if sound => faults.add(stream.check_total(upto, total)),
            Said::Value(value) if sound => faults.add(stream.check_value(upto, value)),
            _ => {}
        }
        if sound && matches!(said, Said::Total(_) | Said::Value(_)) {
            self.sums.looks += 1;
        }
        self.found(flight.entity, faults, || format!("{:?} answered {said:?} from {} in epoch {}", flight.what, served.1, served.0));
        self.timed(&flight, now, fault);
    }

    fn timed(&mut self, flight: &Flight, now: Duration, fault: u32) {
        let Flight { due, of_the_load: true, .. } = *flight else { return };
        self.sums.answered += 1;
        self.interval.answered += 1;
        let took = now.saturating_sub(due).as_nanos() as u64;
        self.interval.latencies.saturating_record(took);
        if due < self.from || due >= self.upto {
            return;
        }
        let third = ((due - self.from).as_secs_f64() / (self.upto - self.from).as_secs_f64() * 3.0) as usize;
        let quiet = flight.fault == fault && fault.is_multiple_of(2);
        if quiet { &mut self.quiet[third.min(2)] } else { &mut self.faulted }.saturating_record(took);
    }

    /// A request failed.
    pub fn failed(&mut self, tag: u64, error: &AskError) {
        let Some(flight) = self.flights.remove(&tag) else { return };
        let ran = match error.ran() {
            Ran::No => Some(false),
            Ran::Yes => Some(true),
            _ => None,
        };
        if let What::Numbered(seq) = flight.what {
            self.entities[flight.entity].stream.failed(seq, ran);
        }
        if let AskError::Dropped(reason) = error {
            *self.sums.told.entry(reason.label()).or_default() += 1;
        }
        let next_fault = self.turns.get(flight.fault as usize);
        if self.is_calm(flight.fault, flight.due) && next_fault.is_none_or(|began| *began >= flight.due + OVERDUE) {
            let due = flight.due.as_secs_f64();
            self.calm_failure(flight.entity, || format!("{:?} of {due:.1} s: {}, {error}", flight.what, error.code()));
        }
        if flight.of_the_load {
            *self.sums.failed.entry(error.code()).or_default() += 1;
            self.interval.failed += 1;
        } else if self.sums.ending {
            self.sums.unseen += 1;
        }
    }

    /// A message was given up on this node after it had been accepted. One without a number may be of any time.
    pub fn given_up(&mut self, entity: Option<usize>, seq: Option<u64>, reason: &'static str) {
        *self.sums.dead_letters.entry(reason).or_default() += 1;
        let Some(at) = entity else { return };
        let Entity { stream, calm_from, .. } = &mut self.entities[at];
        let told = stream.given_up(seq);
        if let Some(seq) = seq.filter(|seq| told && calm_from.is_some_and(|from| *seq > from)) {
            self.calm_failure(at, || format!("number {seq} was given up: {reason}"));
        }
    }

    /// What has no fault to explain it failed.
    fn calm_failure(&mut self, entity: usize, how: impl FnOnce() -> String) {
        self.sums.calm_failures += 1;
        self.show(entity, || format!("{}, and no fault was open", how()));
    }

    /// Judges what entities said long enough ago.
    pub fn judge(&mut self, now: Duration) {
        while self.unjudged.front().is_some_and(|(at, ..)| *at <= now) {
            let Some((_, entity, era, upto, arrived)) = self.unjudged.pop_front() else { return };
            let stream = &mut self.entities[entity].stream;
            // What cannot be judged now is looked at again in a later round.
            if stream.era() != era || stream.is_at_risk() || !stream.is_settled(upto) {
                self.sums.unseen += u64::from(self.sums.ending);
                continue;
            }
            let faults = stream.check(upto, arrived);
            self.sums.looks += 1;
            self.found(entity, faults, || format!("behind number {upto} it says {arrived:?}"));
        }
    }

    fn found(&mut self, entity: usize, faults: Faults, how: impl FnOnce() -> String) {
        if !faults.any() {
            return;
        }
        self.sums.faults.add(faults);
        self.show(entity, || format!("{}: {faults:?}", how()));
    }

    fn show(&mut self, entity: usize, how: impl FnOnce() -> String) {
        if self.sums.examples.len() < EXAMPLES_MAX {
            let Entity { ty, key, shard, .. } = &self.entities[entity];
            self.sums.examples.push(format!("{ty:?} {key} of shard {}: {}", shard.0, how()));
        }
    }

    /// The homes of these shards are about to be lost; how many entities that are.
    pub fn risk_begins(&mut self, at: impl Fn(Type, ShardId) -> bool) -> usize {
        let risky = self.entities.iter_mut().filter(|entity| at(entity.ty, entity.shard));
        risky.map(|entity| entity.stream.risk_begins()).count()
    }

    /// Every shard has a home again.
    pub fn risk_ends(&mut self) {
        self.entities.iter_mut().for_each(|entity| entity.stream.risk_ends());
    }
}

#[cfg(test)]
mod tests {
    use wingbeat::DropReason;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn books(ty: Type) -> Books {
        Books::new(vec![Entity::new(ty, "e".into(), ShardId(3))], Duration::ZERO, 30 * SECOND)
    }

    #[test]
    fn latencies_count_from_the_meant_time_and_by_third() {
        let mut books = books(Type::Probe);
        for (second, fault_then) in [(1, 0), (11, 0), (21, 0), (29, 1)] {
            books.accepted(0, What::Numbered(books.entities[0].stream.next()), true, second * SECOND, 0);
            books.answered(books.next_tag() - 1, Said::Nothing, (1, "a"), (second + 2) * SECOND, fault_then);
        }
        assert_eq!(books.quiet.each_ref().map(|third| third.len()), [1, 1, 1]);
        assert_eq!(books.faulted.len(), 1);
        assert!(books.quiet[1].max() >= 2_000_000_000);
    }

    #[test]
    fn a_probe_is_judged_once_all_answers_are_in_and_not_over_a_lost_home() {
        let mut books = books(Type::Probe);
        books.accepted(0, What::Numbered(1), false, SECOND, 0);
        books.looking(0, SECOND, 0);
        let nothing = Said::Arrived(Arrived::default());
        books.answered(0, nothing, (1, "a"), SECOND, 0);
        books.judge(2 * SECOND);
        assert!(!books.sums.faults.any(), "a dead letter may still come");
        books.judge(4 * SECOND);
        assert_eq!((books.sums.faults.lost, books.sums.looks, books.sums.examples.len()), (1, 1, 1));

        books.accepted(0, What::Numbered(2), false, SECOND, 0);
        books.looking(0, SECOND, 0);
        assert_eq!(books.risk_begins(|ty, shard| (ty, shard) == (Type::Probe, ShardId(3))), 1);
        books.risk_ends();
        books.answered(1, nothing, (1, "a"), SECOND, 0);
        books.judge(9 * SECOND);
        assert_eq!(books.sums.faults.lost, 1);
    }

    #[test]
    fn errors_are_counted_by_code_and_excuse_the_number() {
        let mut books = books(Type::Counter);
        books.accepted(0, What::Numbered(1), true, SECOND, 0);
        books.failed(0, &AskError::Timeout { maybe_ran: true });
        books.accepted(0, What::Numbered(2), true, SECOND, 0);
        books.answered(1, Said::Total(1), (1, "a"), SECOND, 0);
        assert!(!books.sums.faults.any(), "{:?}", books.sums);
        assert_eq!(books.sums.failed.get("E-ASK-003"), Some(&1));
        books.accepted(0, What::Numbered(3), true, SECOND, 0);
        books.answered(2, Said::Total(1), (1, "a"), SECOND, 0);
        assert_eq!(books.sums.faults.lost, 1);
    }

    /// A request that was meant to go in that second, in that state of faults, and failed in the other.
    fn failing(books: &mut Books, due: u32, fault: u32, failed: u32, fault_then: u32) -> u64 {
        let before = books.sums.calm_failures;
        books.faults_are(fault, due * SECOND);
        books.accepted(0, What::Numbered(books.entities[0].stream.next()), true, due * SECOND, fault);
        books.faults_are(fault_then, failed * SECOND);
        books.failed(books.next_tag() - 1, &AskError::Timeout { maybe_ran: true });
        books.sums.calm_failures - before
    }

    #[test]
    fn a_request_that_failed_while_all_was_calm_is_told_apart() {
        let mut books = books(Type::Probe);
        assert_eq!(failing(&mut books, 2, 0, 3, 0), 1, "no fault was ever open");
        assert_eq!(failing(&mut books, 4, 0, 6, 1), 0, "a fault began");
        assert_eq!(failing(&mut books, 7, 1, 27, 2), 0, "it was asked in a fault");
        assert_eq!(failing(&mut books, 29, 2, 60, 2), 0, "the fault had healed only just before");
        assert_eq!(failing(&mut books, 61, 2, 62, 2), 1);
        assert_eq!(failing(&mut books, 63, 2, 69, 3), 1, "the fault began when it had long been due");
        assert_eq!(books.sums.examples.len(), 3);
        books.faults_are(4, 80 * SECOND);
        books.looking(0, 90 * SECOND, 4);
        books.failed(books.next_tag() - 1, &AskError::NoReply);
        assert_eq!(books.sums.calm_failures, 4, "a look is a request, too");
    }

    #[test]
    fn a_message_given_up_counts_if_it_was_sent_since_all_is_calm() {
        let mut books = books(Type::Probe);
        let tell = |books: &mut Books, second: u32, fault: u32| {
            books.faults_are(fault, second * SECOND);
            books.accepted(0, What::Numbered(books.entities[0].stream.next()), false, second * SECOND, fault);
        };
        tell(&mut books, 1, 0);
        books.given_up(Some(0), Some(1), "no_credit");
        assert_eq!(books.sums.calm_failures, 1);
        tell(&mut books, 2, 0);
        tell(&mut books, 3, 1);
        books.given_up(Some(0), Some(2), "home_lost");
        tell(&mut books, 9, 2);
        books.faults_are(2, 20 * SECOND);
        books.given_up(Some(0), Some(3), "expired");
        books.given_up(Some(0), Some(4), "expired");
        books.given_up(Some(0), None, "expired");
        assert_eq!(books.sums.calm_failures, 1, "those were sent in a fault, behind one, or nobody knows when");
        tell(&mut books, 21, 2);
        books.given_up(Some(0), Some(5), "expired");
        assert_eq!(books.sums.calm_failures, 2);
    }

    #[test]
    fn a_request_that_was_given_up_is_counted_once_and_by_reason() {
        let mut books = books(Type::Probe);
        books.faults_are(0, SECOND);
        books.accepted(0, What::Numbered(1), true, SECOND, 0);
        books.given_up(Some(0), Some(1), "no_credit");
        books.failed(0, &AskError::Dropped(DropReason::NoCredit));
        assert_eq!((books.sums.calm_failures, books.sums.told.get("no_credit")), (1, Some(&1)));
    }
}
