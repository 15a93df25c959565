//! What the load knows: every stream, every latency, every refusal. Shared by the thread that sends and the ones that look.

use std::{collections::BTreeMap, time::Duration};

use hdrhistogram::Histogram;
use wingbeat::{AskError, Ran, ShardId};

use super::ledger::{Arrived, Faults, Stream};

/// What is found wrong is shown so often, and counted always.
const EXAMPLES_MAX: usize = 20;
/// A dead letter may come a moment after the answer to a later request: what an entity says is judged so much later.
const JUDGED_AFTER: Duration = Duration::from_secs(2);

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
    /// When it was meant to go, since the beginning; `None` for looks, which are not of the load.
    due: Option<Duration>,
    /// The state of faults when it was meant to go.
    fault: u32,
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
            quiet: [histogram(), histogram(), histogram()],
            faulted: histogram(),
            lateness: histogram(),
            interval: Interval::default(),
            flights: BTreeMap::new(),
            next_tag: 0,
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
            self.fly(Flight { entity, what, era, due: Some(due), fault });
        }
    }

    /// A look at what an entity has was accepted, under the next tag.
    pub fn looking(&mut self, entity: usize) {
        let stream = &self.entities[entity].stream;
        self.fly(Flight { entity, what: What::Look(stream.sent()), era: stream.era(), due: None, fault: 0 });
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
        let Some(due) = flight.due else { return };
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
        if flight.due.is_some() {
            *self.sums.failed.entry(error.code()).or_default() += 1;
            self.interval.failed += 1;
        } else if self.sums.ending {
            self.sums.unseen += 1;
        }
    }

    /// A message was given up on this node after it had been accepted.
    pub fn given_up(&mut self, entity: Option<usize>, seq: Option<u64>, reason: &'static str) {
        *self.sums.dead_letters.entry(reason).or_default() += 1;
        if let Some(entity) = entity {
            self.entities[entity].stream.given_up(seq);
        }
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
        if self.sums.examples.len() < EXAMPLES_MAX {
            let Entity { ty, key, shard, .. } = &self.entities[entity];
            self.sums.examples.push(format!("{ty:?} {key} of shard {}: {}: {faults:?}", shard.0, how()));
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
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn books(ty: Type) -> Books {
        let entity = Entity { ty, key: "e".into(), shard: ShardId(3), stream: Stream::default() };
        Books::new(vec![entity], Duration::ZERO, 30 * SECOND)
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
        books.looking(0);
        let nothing = Said::Arrived(Arrived::default());
        books.answered(0, nothing, (1, "a"), SECOND, 0);
        books.judge(2 * SECOND);
        assert!(!books.sums.faults.any(), "a dead letter may still come");
        books.judge(4 * SECOND);
        assert_eq!((books.sums.faults.lost, books.sums.looks, books.sums.examples.len()), (1, 1, 1));

        books.accepted(0, What::Numbered(2), false, SECOND, 0);
        books.looking(0);
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
}
