//! What to send next: keeps every aircraft's flights in turn, notices those that did not arrive, and feeds them again.
//!
//! Pure: time comes in, batches come out. An aircraft is in one batch at a time, so its flights cannot overtake each other, whatever the
//! connections do. An aircraft whose line failed is *ailing*: it is asked how far it has come before anything else is sent to it, in
//! batches of its own, so that waiting for it holds nobody else up. One that answers a lower number than before lost its state with its
//! node and is fed again from there.

use std::{collections::VecDeque, time::Duration};

/// One line of a batch.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Line {
    /// Index of the aircraft.
    pub aircraft: u32,
    pub what: What,
}

/// What is sent.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum What {
    /// The flight with this number at its aircraft, from 1.
    Flight(u32),
    /// The question how far it has come.
    Report,
}

/// Lines that travel in one request.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Batch {
    pub lines: Vec<Line>,
    /// Whether its aircraft are ailing.
    pub ailing: bool,
    /// When it was made; since the start of the run.
    pub sent: Duration,
}

/// Where an answer came from: a hash of address and incarnation.
pub type Home = u64;

/// What became of a line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    /// The aircraft answered a flight: so far it has come.
    Applied { applied: u64, home: Home },
    /// The aircraft answered with its report.
    Report { applied: u64, json: String, home: Home },
    /// The aircraft answered that it is not this flight's turn.
    Refused,
    /// No answer from the aircraft: not reached, or not in time.
    Failed(String),
}

/// How long an ailing aircraft is left alone before it is asked again.
const REST: Duration = Duration::from_millis(25);
/// Most flights of one aircraft in one batch, so that one busy aircraft does not fill it.
const RUN_MAX: u32 = 256;

#[derive(Clone, Debug, Default)]
struct Aircraft {
    total: u32,
    /// Flights whose time has come.
    released: u32,
    /// How far it has come, as it last said.
    applied: u32,
    /// Highest number ever sent.
    sent: u32,
    /// Highest `applied` ever heard.
    reached: u32,
    /// In a queue or in a batch.
    busy: bool,
    /// It has to say how far it has come before it gets another flight.
    unsure: bool,
    /// When the first attempt that failed was sent.
    down_since: Option<Duration>,
    /// When the attempt was sent that was refused, until it is known whether another home refused it.
    refused_since: Option<Duration>,
    /// Where its last answer came from.
    home: Option<Home>,
    /// Its last report, with every flight in it.
    report: Option<String>,
}

/// Figures of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Flights that arrived at least once.
    pub arrived: u64,
    /// Flights sent again.
    pub resent: u64,
    /// Lines without an answer from their aircraft.
    pub failed_lines: u64,
    /// Aircraft that had lost what they had applied.
    pub started_anew: u64,
    /// Longest time that an aircraft was unavailable: from the sending of the first attempt that failed, or that another home than before
    /// answered, to the answer.
    pub unavailable_max: Duration,
    /// What the last failed line said.
    pub last_failure: Option<String>,
}

/// Decides what to send next.
pub struct Feeder {
    aircraft: Vec<Aircraft>,
    ready: VecDeque<u32>,
    /// Ailing aircraft, each with the time from which it may be asked again.
    ailing: VecDeque<(Duration, u32)>,
    tally: Tally,
    total: u64,
    confirmed: usize,
    verifying: bool,
    last_progress: Duration,
}

impl Feeder {
    /// With the number of flights of each aircraft.
    pub fn new(flights: impl IntoIterator<Item = u32>) -> Self {
        let aircraft: Vec<_> = flights.into_iter().map(|total| Aircraft { total, ..Aircraft::default() }).collect();
        let total = aircraft.iter().map(|aircraft| u64::from(aircraft.total)).sum();
        Self {
            aircraft,
            total,
            ready: VecDeque::new(),
            ailing: VecDeque::new(),
            tally: Tally::default(),
            confirmed: 0,
            verifying: false,
            last_progress: Duration::ZERO,
        }
    }

    /// The next flight of this aircraft may be sent.
    pub fn release(&mut self, aircraft: u32) {
        let of = &mut self.aircraft[aircraft as usize];
        of.released += 1;
        debug_assert!(of.released <= of.total, "an aircraft has no more flights than it was made with");
        if !of.busy {
            of.busy = true;
            self.ready.push_back(aircraft);
        }
    }

    /// From now on every aircraft that has all its flights is asked for its report.
    pub fn verify(&mut self) {
        if std::mem::replace(&mut self.verifying, true) {
            return;
        }
        for index in 0..self.aircraft.len() {
            if !self.aircraft[index].busy {
                self.aircraft[index].busy = true;
                self.ready.push_back(index as u32);
            }
        }
    }

    /// The next batch of at most `max` lines: of healthy aircraft, or of ailing ones whose rest is over.
    pub fn next_batch(&mut self, ailing: bool, max: usize, now: Duration) -> Option<Batch> {
        let mut batch = Batch { lines: Vec::new(), ailing, sent: now };
        while batch.lines.len() < max {
            let next = match ailing {
                false => self.ready.pop_front(),
                true if self.ailing.front().is_some_and(|&(from, _)| from <= now) => self.ailing.pop_front().map(|(_, aircraft)| aircraft),
                true => None,
            };
            let Some(aircraft) = next else { break };
            self.add_lines(aircraft, max, &mut batch.lines);
        }
        (!batch.lines.is_empty()).then_some(batch)
    }

    fn add_lines(&mut self, index: u32, max: usize, lines: &mut Vec<Line>) {
        let aircraft = &mut self.aircraft[index as usize];
        if aircraft.unsure || aircraft.applied >= aircraft.released {
            lines.push(Line { aircraft: index, what: What::Report });
            return;
        }
        let room = (max - lines.len()) as u32;
        let last = aircraft.released.min(aircraft.applied + RUN_MAX.min(room));
        for seq in aircraft.applied + 1..=last {
            lines.push(Line { aircraft: index, what: What::Flight(seq) });
        }
        self.tally.resent += u64::from(aircraft.sent.min(last).saturating_sub(aircraft.applied));
        aircraft.sent = aircraft.sent.max(last);
    }

    /// Takes the answers to a batch, one to each line.
    pub fn answered(&mut self, batch: &Batch, answers: &[Answer], now: Duration) {
        debug_assert_eq!(batch.lines.len(), answers.len(), "every line has an answer");
        let mut from = 0;
        while from < batch.lines.len() {
            let aircraft = batch.lines[from].aircraft;
            let to = batch.lines[from..].iter().position(|line| line.aircraft != aircraft).map_or(batch.lines.len(), |len| from + len);
            for (line, answer) in batch.lines[from..to].iter().zip(&answers[from..to]) {
                self.answer(*line, answer, batch.sent, now);
            }
            self.settle(aircraft, now);
            from = to;
        }
    }

    /// The request failed as a whole: nobody knows which of its lines arrived.
    pub fn failed(&mut self, batch: &Batch, why: &str, now: Duration) {
        let answers = vec![Answer::Failed(why.into()); batch.lines.len()];
        self.answered(batch, &answers, now);
    }

    fn answer(&mut self, line: Line, answer: &Answer, sent: Duration, now: Duration) {
        let aircraft = &mut self.aircraft[line.aircraft as usize];
        if let Answer::Failed(why) = answer {
            self.tally.failed_lines += 1;
            self.tally.last_failure = Some(why.clone());
            aircraft.unsure = true;
            aircraft.down_since.get_or_insert(sent);
            return;
        }
        let down_since = aircraft.down_since.take();
        let (applied, home) = match (answer, line.what) {
            (Answer::Applied { applied, home }, What::Flight(seq)) if *applied >= u64::from(seq) => (*applied, Some(*home)),
            (Answer::Report { applied, home, .. }, _) => {
                aircraft.unsure = false;
                (*applied, Some(*home))
            }
            // Refused, or an answer that does not fit: only the aircraft itself knows how far it is.
            _ => {
                aircraft.unsure = true;
                (aircraft.applied.into(), None)
            }
        };
        let moved = home.is_some() && aircraft.home.is_some() && aircraft.home != home;
        // A message may have waited for the new home without failing: then its own wait is what the aircraft was unavailable for.
        let waited_since = moved.then(|| aircraft.refused_since.unwrap_or(sent));
        if let Some(since) = down_since.or(waited_since) {
            self.tally.unavailable_max = self.tally.unavailable_max.max(now.saturating_sub(since));
        }
        if home.is_none() {
            aircraft.refused_since.get_or_insert(sent);
            return;
        }
        (aircraft.home, aircraft.refused_since) = (home, None);
        let applied = applied.min(u64::from(u32::MAX)) as u32;
        if applied < aircraft.applied && line.what == What::Report {
            self.tally.started_anew += 1;
        }
        aircraft.applied = applied;
        let new = applied.min(aircraft.total).saturating_sub(aircraft.reached);
        aircraft.reached += new;
        self.tally.arrived += u64::from(new);
        if new > 0 {
            self.last_progress = now;
        }
        if let (true, Answer::Report { json, .. }) = (self.verifying && applied >= aircraft.total, answer)
            && aircraft.report.replace(json.clone()).is_none()
        {
            self.confirmed += 1;
            self.last_progress = now;
        }
    }

    /// Puts the aircraft where it belongs now that its batch is back.
    fn settle(&mut self, index: u32, now: Duration) {
        let aircraft = &mut self.aircraft[index as usize];
        let to_feed = aircraft.unsure || aircraft.applied < aircraft.released;
        let to_ask = self.verifying && aircraft.report.is_none();
        aircraft.busy = to_feed || to_ask;
        if aircraft.down_since.is_some() {
            self.ailing.push_back((now + REST, index));
        } else if aircraft.busy {
            self.ready.push_back(index);
        }
    }

    /// Aircraft that wait for a batch of healthy ones.
    pub fn waiting(&self) -> usize {
        self.ready.len()
    }

    /// Every flight arrived at least once.
    pub fn all_arrived(&self) -> bool {
        self.tally.arrived == self.total
    }

    /// Every aircraft gave a report with all its flights.
    pub fn done(&self) -> bool {
        self.confirmed == self.aircraft.len()
    }

    /// When a flight last arrived for the first time, or an aircraft last gave its report.
    pub fn last_progress(&self) -> Duration {
        self.last_progress
    }

    /// How many flights there are.
    pub fn total(&self) -> u64 {
        self.total
    }

    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    /// The report of an aircraft, once it had all its flights.
    pub fn report(&self, aircraft: usize) -> Option<&str> {
        self.aircraft[aircraft].report.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn flights(batch: &Batch) -> Vec<(u32, u32)> {
        let number = |line: &Line| match line.what {
            What::Flight(seq) => (line.aircraft, seq),
            What::Report => (line.aircraft, 0),
        };
        batch.lines.iter().map(number).collect()
    }

    fn released(counts: &[u32]) -> Feeder {
        let mut feeder = Feeder::new(counts.iter().copied());
        for (index, &count) in counts.iter().enumerate() {
            (0..count).for_each(|_| feeder.release(index as u32));
        }
        feeder
    }

    fn applied(applied: u64) -> Answer {
        Answer::Applied { applied, home: 1 }
    }

    fn report(applied: u64) -> Answer {
        Answer::Report { applied, json: format!("{{\"applied\":{applied}}}"), home: 1 }
    }

    #[test]
    fn flights_go_out_in_turn_and_an_aircraft_is_in_one_batch_at_a_time() {
        let mut feeder = released(&[3, 1]);
        let first = feeder.next_batch(false, 2, MS).unwrap();
        assert_eq!(flights(&first), [(0, 1), (0, 2)]);
        let second = feeder.next_batch(false, 9, MS).unwrap();
        assert_eq!(flights(&second), [(1, 1)]);
        assert_eq!(feeder.next_batch(false, 9, MS), None);
        feeder.answered(&first, &[applied(1), applied(2)], 2 * MS);
        assert_eq!(flights(&feeder.next_batch(false, 9, MS).unwrap()), [(0, 3)]);
        assert_eq!(feeder.tally().resent, 0);
    }

    #[test]
    fn a_failed_line_makes_the_aircraft_ailing_until_it_answers() {
        let mut feeder = released(&[2]);
        let batch = feeder.next_batch(false, 9, 5 * MS).unwrap();
        feeder.answered(&batch, &[applied(1), Answer::Failed("504".into())], 10 * MS);
        assert_eq!(feeder.next_batch(false, 9, 10 * MS), None);
        assert_eq!(feeder.next_batch(true, 9, 11 * MS), None, "it rests first");
        let ask = feeder.next_batch(true, 9, 10 * MS + REST).unwrap();
        assert_eq!(flights(&ask), [(0, 0)]);
        feeder.answered(&ask, &[Answer::Failed("504".into())], 50 * MS);
        let ask = feeder.next_batch(true, 9, 80 * MS).unwrap();
        feeder.answered(&ask, &[report(1)], 105 * MS);
        assert_eq!(feeder.tally().unavailable_max, 100 * MS, "from the first attempt that failed");
        assert_eq!(flights(&feeder.next_batch(false, 9, 105 * MS).unwrap()), [(0, 2)]);
        assert_eq!((feeder.tally().resent, feeder.tally().failed_lines), (1, 2));
    }

    #[test]
    fn an_aircraft_that_lost_its_state_is_fed_from_the_beginning() {
        let mut feeder = Feeder::new([3]);
        feeder.release(0);
        feeder.release(0);
        let batch = feeder.next_batch(false, 9, MS).unwrap();
        feeder.answered(&batch, &[applied(1), applied(2)], MS);
        feeder.release(0);
        let batch = feeder.next_batch(false, 9, MS).unwrap();
        feeder.answered(&batch, &[Answer::Refused], MS);
        let ask = feeder.next_batch(false, 9, MS).unwrap();
        assert_eq!(flights(&ask), [(0, 0)], "a refusal is an answer: the aircraft is not ailing");
        feeder.answered(&ask, &[report(0)], MS);
        assert_eq!(flights(&feeder.next_batch(false, 9, MS).unwrap()), [(0, 1), (0, 2), (0, 3)]);
        assert_eq!((feeder.tally().resent, feeder.tally().started_anew, feeder.tally().arrived), (3, 1, 2));
    }

    #[test]
    fn a_state_lost_without_a_sign_is_found_when_the_reports_are_asked() {
        let mut feeder = released(&[2, 1]);
        let batch = feeder.next_batch(false, 9, MS).unwrap();
        feeder.answered(&batch, &[applied(1), applied(2), applied(1)], MS);
        assert!(feeder.all_arrived() && !feeder.done());
        feeder.verify();
        let ask = feeder.next_batch(false, 9, MS).unwrap();
        assert_eq!(flights(&ask), [(0, 0), (1, 0)]);
        feeder.answered(&ask, &[report(0), report(1)], MS);
        assert!(!feeder.done());
        let again = feeder.next_batch(false, 9, MS).unwrap();
        assert_eq!(flights(&again), [(0, 1), (0, 2)]);
        feeder.answered(&again, &[applied(1), applied(2)], MS);
        let ask = feeder.next_batch(false, 9, MS).unwrap();
        feeder.answered(&ask, &[report(2)], MS);
        assert!(feeder.done());
        assert_eq!(feeder.report(0), Some("{\"applied\":2}"));
        assert_eq!(feeder.tally().arrived, 3, "what arrives again is not counted again");
    }

    #[test]
    fn a_request_that_failed_whole_is_asked_for_again() {
        let mut feeder = released(&[1]);
        let batch = feeder.next_batch(false, 9, MS).unwrap();
        feeder.failed(&batch, "connection reset", 2 * MS);
        assert_eq!(feeder.tally().last_failure.as_deref(), Some("connection reset"));
        let ask = feeder.next_batch(true, 9, 500 * MS).unwrap();
        feeder.answered(&ask, &[report(1)], 500 * MS);
        assert!(feeder.all_arrived(), "it had arrived after all");
    }

    #[test]
    fn an_aircraft_with_more_flights_than_the_file_is_done_and_left_to_the_comparison() {
        let mut feeder = released(&[1]);
        feeder.verify();
        let batch = feeder.next_batch(false, 9, MS).unwrap();
        feeder.answered(&batch, &[applied(1)], MS);
        let ask = feeder.next_batch(false, 9, MS).unwrap();
        feeder.answered(&ask, &[report(7)], MS);
        assert!(feeder.done() && feeder.report(0) == Some("{\"applied\":7}"));
    }

    #[test]
    fn a_wait_for_a_new_home_counts_though_nothing_failed() {
        let mut feeder = released(&[3]);
        for (seq, home, sent, answered) in [(1, 1, 1, 5), (2, 1, 10, 90), (3, 2, 100, 130)] {
            let batch = feeder.next_batch(false, 1, sent * MS).unwrap();
            feeder.answered(&batch, &[Answer::Applied { applied: seq, home }], answered * MS);
        }
        assert_eq!(feeder.tally().unavailable_max, 30 * MS, "slow answers of the same home are no outage");
    }

    #[test]
    fn a_refusal_by_a_new_home_counts_from_its_sending() {
        let mut feeder = released(&[2]);
        let batch = feeder.next_batch(false, 1, MS).unwrap();
        feeder.answered(&batch, &[applied(1)], 2 * MS);
        let batch = feeder.next_batch(false, 1, 10 * MS).unwrap();
        feeder.answered(&batch, &[Answer::Refused], 60 * MS);
        let ask = feeder.next_batch(false, 1, 61 * MS).unwrap();
        feeder.answered(&ask, &[Answer::Report { applied: 0, json: "{}".into(), home: 2 }], 70 * MS);
        assert_eq!(feeder.tally().unavailable_max, 60 * MS);
    }
}
