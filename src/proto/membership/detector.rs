//! Phi accrual detector of one subject (Hayashibara et al. 2004), with heartbeats as numbered requests and replies.

use std::{collections::VecDeque, time::Duration};

use crate::{Time, config::DetectorConfig};

/// Beats whose replies are still taken.
const OUTSTANDING: usize = 64;
/// Round trips kept.
const TRIPS: usize = 128;
/// Beats that a debt of missed replies is reckoned over.
const DEBT_BEATS: usize = 20;
/// What one reply takes off the debt; a missed one adds one.
const DEBT_PAID: u32 = 2;
/// Replies one after the other that show that a subject is back, whatever it missed before.
const BACK: u32 = 3;

/// Suspicion of an elapsed time, in units of -log10 of the chance that a beat still comes: the normal distribution's tail in the
/// logistic approximation that the reference table uses.
pub(crate) fn phi(elapsed: f64, mean: f64, sigma: f64) -> f64 {
    let y = (elapsed - mean) / sigma;
    let e = (-y * (1.5976 + 0.070_566 * y * y)).exp();
    if elapsed > mean { -(e / (1.0 + e)).log10() } else { -(1.0 - 1.0 / (1.0 + e)).log10() }
}

/// How many standard deviations above the mean `phi` reaches `threshold`.
pub(crate) fn deviations(threshold: f64) -> f64 {
    let (mut low, mut high) = (-10.0, 40.0);
    for _ in 0..80 {
        let middle = f64::midpoint(low, high);
        if phi(middle, 0.0, 1.0) < threshold { low = middle } else { high = middle }
    }
    high
}

/// Intervals between replies: the last so many, with exact integer sums.
#[derive(Clone, Debug)]
pub(crate) struct Intervals {
    micros: VecDeque<u64>,
    sum: u64,
    squares: u128,
    window: usize,
    /// Of those, in microseconds: asked for with every event, and new only with every reply.
    mean: f64,
    sigma: f64,
}

impl Intervals {
    pub(crate) fn new(window: usize) -> Self {
        Self { micros: VecDeque::new(), sum: 0, squares: 0, window: window.max(2), mean: 0.0, sigma: 0.0 }
    }

    pub(crate) fn record(&mut self, interval: Duration) {
        let us = u64::try_from(interval.as_micros()).unwrap_or(u64::MAX).min(1 << 40);
        if self.micros.len() == self.window
            && let Some(old) = self.micros.pop_front()
        {
            self.sum -= old;
            self.squares -= u128::from(old) * u128::from(old);
        }
        self.micros.push_back(us);
        self.sum += us;
        self.squares += u128::from(us) * u128::from(us);
        let (n, sum) = (self.micros.len() as u128, u128::from(self.sum));
        self.mean = self.sum as f64 / n as f64;
        self.sigma = ((n * self.squares - sum * sum) as f64).sqrt() / n as f64;
    }

    /// Mean in microseconds.
    pub(crate) const fn mean(&self) -> f64 {
        self.mean
    }

    /// Standard deviation in microseconds.
    pub(crate) const fn sigma(&self) -> f64 {
        self.sigma
    }
}

/// What a subject's observation needs of the settings, computed once.
#[derive(Clone, Debug)]
pub(crate) struct Tuning {
    pub(crate) heartbeat: Duration,
    pub(crate) threshold: f64,
    deviations: f64,
    pause_us: f64,
    min_sigma_us: f64,
    first: Duration,
    window: usize,
    /// A reply is missed when it has not come after so long: a little before the next beat.
    answer_due: Duration,
}

impl Tuning {
    pub(crate) fn new(config: &DetectorConfig) -> Self {
        Self {
            heartbeat: config.heartbeat_interval.get(),
            threshold: config.threshold,
            deviations: deviations(config.threshold),
            pause_us: config.acceptable_pause.get().as_micros() as f64,
            min_sigma_us: config.min_std_deviation.get().as_micros().max(1) as f64,
            first: config.first_interval.get(),
            window: usize::from(config.window),
            answer_due: config.heartbeat_interval.get().mul_f64(0.9),
        }
    }

    /// Silence that means two missed replies in a row.
    pub(crate) fn suspicious(&self) -> Duration {
        self.heartbeat * 5 / 2
    }

    /// Pause that nobody is accused for, and the beat that it swallowed.
    pub(crate) fn floor(&self) -> Duration {
        Duration::from_micros(self.pause_us as u64) + self.heartbeat
    }

    /// Silence after which a subject with ideal intervals is suspected.
    pub(crate) fn patience(&self) -> Duration {
        Duration::from_micros((self.pause_us + self.deviations * self.min_sigma_us) as u64) + self.heartbeat
    }
}

/// One observed node.
#[derive(Clone, Debug)]
pub(crate) struct Subject {
    intervals: Intervals,
    /// Where silence is measured from: the last reply or sign of life; at first one heartbeat after the first beat.
    since: Option<Time>,
    /// The same, where nothing but replies counts: what else a node manages to send does not show that it can be reached.
    unanswered_since: Option<Time>,
    /// Beats up to then are not judged: this node itself was away.
    excused: Option<Time>,
    last_reply: Option<Time>,
    /// When the newest beat left that it answered without holding this node lost.
    proven: Option<Time>,
    /// The last reply or sign of life.
    heard: Option<Time>,
    /// It has answered, or sent something of its own accord: it knows this node.
    met: bool,
    /// Until it is met, or until then, it may not have learned of this node, whose beats it then does not answer.
    stranger_until: Time,
    /// Missed replies that are assumed until it is heard: it was taken in as the neighbour of silent ones.
    assumed: u32,
    /// The running interval contains an outage and is not recorded.
    outage: bool,
    seq: u64,
    sent: VecDeque<Time>,
    /// Bit i: beat `seq - i` was answered.
    answered: u64,
    /// Bit i: beat `seq - i` was sent twice, and which of the two was answered cannot be told.
    twice: u64,
    /// When the last one was.
    repeated: Time,
    trips: VecDeque<u32>,
    /// Of the beats before those that are judged: see `losses`.
    past: Losses,
    /// The same as the present outage began.
    before_outage: Option<Losses>,
}

/// Beats that were missed, or were missed or had to be sent twice, of how many.
#[derive(Copy, Clone, Default, Debug)]
struct Losses {
    missed: u32,
    missed_at_once: u32,
    of: u32,
}

/// With so many beats the link tells enough of itself; with fewer, those from before a pause or an outage count too.
const TELLING: u32 = 20;

impl Subject {
    pub(crate) fn new(tuning: &Tuning) -> Self {
        let mut intervals = Intervals::new(tuning.window);
        let spread = tuning.first / 4;
        intervals.record(tuning.first.saturating_sub(spread));
        intervals.record(tuning.first + spread);
        Self {
            intervals,
            since: None,
            unanswered_since: None,
            excused: None,
            last_reply: None,
            proven: None,
            heard: None,
            met: false,
            stranger_until: Time::ZERO,
            assumed: 0,
            outage: false,
            seq: 0,
            sent: VecDeque::new(),
            answered: 0,
            twice: 0,
            repeated: Time::ZERO,
            trips: VecDeque::new(),
            past: Losses::default(),
            before_outage: None,
        }
    }

    /// This node is new: for so long its silence may mean that it does not know who beats it.
    pub(crate) fn approach(&mut self, until: Time) {
        self.stranger_until = until;
    }

    /// Whether it may not know this node.
    pub(crate) fn is_stranger(&self, now: Time) -> bool {
        !self.met && now < self.stranger_until
    }

    /// Whether it has let beats pass and may not know this node.
    pub(crate) fn ignores(&self) -> bool {
        self.seq > 2 && !self.met
    }

    /// It knows this node: what it left unanswered until now says nothing.
    pub(crate) fn meet(&mut self, now: Time) {
        if self.met {
            return;
        }
        if self.is_stranger(now) {
            self.measure_from(now);
        }
        // Nor of the link: whoever comes in is beaten before it has its welcome.
        self.excused = Some(now);
        self.met = true;
    }

    fn measure_from(&mut self, now: Time) {
        if let Some(since) = &mut self.unanswered_since {
            *since = (*since).max(now);
        }
    }

    /// Counts silence from `since` on: its neighbours are silent since then.
    pub(crate) fn backdate(&mut self, since: Time) {
        (self.since, self.unanswered_since) = (Some(since), Some(since));
        self.assumed = 2;
    }

    /// Replies missed in a row; a reply is missed when it is not there as the next beat is due. Nothing else that comes breaks the run.
    pub(crate) fn run(&self, now: Time, tuning: &Tuning) -> u32 {
        if self.is_stranger(now) {
            return 0;
        }
        let due = tuning.answer_due;
        let ended = |at: usize, sent: Time| self.answered >> at & 1 == 1 || self.excused.is_some_and(|until| until >= sent);
        let trailing = self.sent.iter().rev().enumerate().take_while(|&(at, &sent)| !ended(at, sent));
        let missed = trailing.filter(|(_, sent)| now.since(**sent) >= due).count() as u32;
        if self.heard.is_some() { missed } else { missed + self.assumed }
    }

    /// Missed replies less what the others made good, as far as the newest beats tell. On a link that loses most of what it carries a run ends with
    /// any reply that comes through; a debt grows in spite of them. Chance adds to it hardly more than to a run where few replies are lost.
    pub(crate) fn debt(&self, now: Time, tuning: &Tuning) -> u32 {
        if self.is_stranger(now) {
            return 0;
        }
        let (mut debt, mut answered) = (0u32, 0);
        let newest = self.sent.len().min(DEBT_BEATS);
        for (at, &sent) in self.sent.range(self.sent.len() - newest..).enumerate().map(|(i, sent)| (newest - 1 - i, sent)) {
            if self.answered >> at & 1 == 1 {
                answered += 1;
                debt = if answered >= BACK { 0 } else { debt.saturating_sub(DEBT_PAID) };
            } else if self.excused.is_some_and(|until| until >= sent) {
                debt = 0;
            } else if now.since(sent) >= tuning.answer_due {
                (debt, answered) = (debt + 1, 0);
            }
        }
        debt
    }

    /// The newest replies came one after the other: it is back. Where links are good (`steady`), replies that stood alone among misses show that
    /// a row of them may be chance, and ask for a longer one; an outage, in which nothing came, does not.
    pub(crate) fn recovered(&self, now: Time, tuning: &Tuning, steady: bool) -> bool {
        let due = tuning.answer_due;
        let waits = self.sent.back().is_some_and(|&sent| self.answered & 1 == 0 && now.since(sent) < due);
        let answered = self.answered >> u32::from(waits);
        let row = answered.trailing_ones();
        let (mut among, mut alone) = (0, 0);
        for at in row..self.sent.len().min(row as usize + DEBT_BEATS) as u32 {
            if answered >> at & 1 == 1 {
                alone += 1;
            } else {
                among += std::mem::take(&mut alone);
            }
        }
        row >= BACK + if steady { BACK.min(among) } else { 0 }
    }

    /// Beats missed and beats judged before the present run.
    pub(crate) fn before_run(&self) -> (u32, u32) {
        let losses = self.losses();
        (losses.missed, losses.of)
    }

    /// The same, where a beat that had to be sent twice is a missed one.
    pub(crate) fn before_run_at_once(&self) -> (u32, u32) {
        let losses = self.losses();
        (losses.missed_at_once, losses.of)
    }

    fn losses(&self) -> Losses {
        let judged = self.judged();
        let (missed, late) = (judged & !self.answered, judged & (!self.answered | self.twice));
        let now = Losses { missed: missed.count_ones(), missed_at_once: late.count_ones(), of: judged.count_ones() };
        let past = if now.of < TELLING { self.past } else { Losses::default() };
        // Never more than some windows of it.
        let share = |all: u32| if past.of > OUTSTANDING as u32 { all / 2 } else { all };
        Losses {
            missed: now.missed + share(past.missed),
            missed_at_once: now.missed_at_once + share(past.missed_at_once),
            of: now.of + share(past.of),
        }
    }

    /// Bits of the beats before the present run that are not excused.
    fn judged(&self) -> u64 {
        let excused = self.excused.map_or(0, |until| self.sent.partition_point(|&sent| sent <= until));
        let lowest = |count: u32| 1u64.checked_shl(count).map_or(u64::MAX, |bit| bit - 1);
        lowest((self.sent.len() - excused) as u32) & !lowest(self.answered.trailing_zeros())
    }

    pub(crate) const fn seq(&self) -> u64 {
        self.seq
    }

    /// Two beats in a row have gone unanswered, and nothing else came.
    pub(crate) fn suspect(&self, now: Time, tuning: &Tuning) -> bool {
        self.seq >= 2 && !self.is_stranger(now) && self.since.is_some_and(|since| now.since(since) >= tuning.suspicious())
    }

    /// It answered after that.
    pub(crate) fn replied_after(&self, then: Time) -> bool {
        self.last_reply.is_some_and(|at| at > then)
    }

    /// It was taken in as the neighbour of silent ones, and was not heard since.
    pub(crate) const fn is_assumed_silent(&self) -> bool {
        self.assumed > 0 && self.heard.is_none()
    }

    /// The beat before the newest has no answer, nor has the newest.
    pub(crate) const fn run_is_open(&self) -> bool {
        self.seq >= 2 && self.answered & 3 == 0
    }

    /// It was heard not long ago.
    pub(crate) fn answers(&self, now: Time, tuning: &Tuning) -> bool {
        self.heard.is_some_and(|at| now.since(at) < tuning.suspicious())
    }

    /// Numbers the next beat.
    pub(crate) fn beat(&mut self, now: Time, tuning: &Tuning) -> u64 {
        self.since.get_or_insert(now + tuning.heartbeat);
        self.unanswered_since.get_or_insert(now + tuning.heartbeat);
        self.seq += 1;
        self.answered <<= 1;
        if self.sent.len() == OUTSTANDING {
            self.sent.pop_front();
        }
        self.twice <<= 1;
        self.sent.push_back(now);
        self.seq
    }

    /// The number of the newest beat, if it has no answer, is not excused, and one could have come: an answer usually takes less than that.
    pub(crate) fn beat_again(&mut self, now: Time) -> Option<u64> {
        let sent = *self.sent.back()?;
        let usual = Duration::from_micros(self.trip(0.5)?);
        let open = self.answered & 1 == 0 && self.excused.is_none_or(|until| until < sent) && usual < now.since(sent);
        open.then(|| {
            self.twice |= 1;
            self.repeated = now;
            self.seq
        })
    }

    /// How many beats ago that one left, and when.
    fn beat_of(&self, seq: u64) -> Option<(usize, Time)> {
        let age = usize::try_from(self.seq.checked_sub(seq)?).ok()?;
        Some((age, *self.sent.get(self.sent.len().checked_sub(age + 1)?)?))
    }

    /// When that beat left, if that is not long ago.
    pub(crate) fn sent_at(&self, seq: u64) -> Option<Time> {
        self.beat_of(seq).map(|(_, sent)| sent)
    }

    /// A beat that left then was answered without holding this node lost.
    pub(crate) fn prove(&mut self, sent: Time) {
        self.proven = self.proven.max(Some(sent));
    }

    pub(crate) fn proven(&self) -> Option<Time> {
        self.proven
    }

    /// A reply: when its beat was sent, or `None` if it matches no open beat (a beat has one credit).
    pub(crate) fn reply(&mut self, now: Time, seq: u64) -> Option<Time> {
        let (age, sent) = self.beat_of(seq)?;
        if self.answered >> age & 1 == 1 {
            return None;
        }
        self.meet(now);
        self.answered |= 1 << age;
        // A reply that comes sooner after the repetition than any did is one to the first.
        if age == 0
            && self.twice & 1 == 1
            && self.trips.iter().min().is_some_and(|&us| now.since(self.repeated) < Duration::from_micros(u64::from(us)))
        {
            self.twice &= !1;
        }
        if self.twice >> age & 1 == 0 {
            if self.trips.len() == TRIPS {
                self.trips.pop_front();
            }
            self.trips.push_back(u32::try_from(now.since(sent).as_micros()).unwrap_or(u32::MAX));
        }
        if let Some(last) = self.last_reply
            && !self.outage
        {
            self.intervals.record(now.since(last));
        }
        self.outage = false;
        self.last_reply = Some(now);
        self.heard = Some(now);
        (self.since, self.unanswered_since) = (Some(now), Some(now));
        Some(sent)
    }

    /// It lives, whatever its replies do.
    pub(crate) fn sign_of_life(&mut self, now: Time) {
        self.heard = Some(now);
        if let Some(since) = &mut self.since {
            *since = (*since).max(now);
        }
    }

    /// What follows is not an interval between beats: suspicion began.
    pub(crate) fn interrupt(&mut self) {
        self.outage = true;
        self.before_outage = Some(self.losses());
    }

    /// It is back, and what it left unanswered meanwhile tells nothing of the link.
    pub(crate) fn is_back(&mut self, now: Time) {
        if let Some(before) = self.before_outage.take() {
            self.past = before;
            self.excused = self.excused.max(Some(now));
        }
    }

    /// The judge was deaf since then: what was left unanswered tells nothing of the link, if anything else came over it.
    pub(crate) fn excuse(&mut self, now: Time, since: Time) {
        match self.heard {
            Some(at) if at >= since => self.is_back(now),
            _ => self.before_outage = None,
        }
    }

    /// Measures silence from now: this node itself was away.
    pub(crate) fn restart(&mut self, now: Time) {
        self.past = self.before_outage.unwrap_or_else(|| self.losses());
        self.sign_of_life(now);
        self.outage = true;
        self.excused = Some(now);
        self.measure_from(now);
    }

    /// When phi reaches the threshold if nothing comes.
    pub(crate) fn deadline(&self, tuning: &Tuning) -> Option<Time> {
        let sigma = self.intervals.sigma().max(tuning.min_sigma_us);
        let us = self.intervals.mean() + tuning.pause_us + tuning.deviations * sigma;
        self.since.map(|since| since + Duration::from_micros(us.max(1.0).ceil() as u64))
    }

    /// When it has been silent, and when it has not replied, for so long.
    pub(crate) fn silent_for(&self, span: Duration) -> [Option<Time>; 2] {
        [self.since, self.unanswered_since].map(|since| since.map(|at| at + span))
    }

    /// Time without a reply.
    pub(crate) fn unanswered(&self, now: Time) -> Duration {
        self.unanswered_since.map_or(Duration::ZERO, |since| now.since(since))
    }

    /// Silence so far.
    pub(crate) fn silence(&self, now: Time) -> Duration {
        self.since.map_or(Duration::ZERO, |since| now.since(since))
    }

    /// Suspicion now.
    pub(crate) fn phi(&self, now: Time, tuning: &Tuning) -> f64 {
        let Some(since) = self.since else { return 0.0 };
        let sigma = self.intervals.sigma().max(tuning.min_sigma_us);
        phi(now.since(since).as_micros() as f64, self.intervals.mean() + tuning.pause_us, sigma).min(999.0)
    }

    /// Round trip of which `share` are not above, in microseconds.
    pub(crate) fn trip(&self, share: f64) -> Option<u64> {
        let mut sorted: Vec<u32> = self.trips.iter().copied().collect();
        sorted.sort_unstable();
        let rank = (share * sorted.len() as f64).ceil().max(1.0) as usize;
        sorted.get(rank - 1).map(|&us| u64::from(us))
    }

    /// Share of the beats without a reply; the newest is not judged yet.
    pub(crate) fn loss(&self) -> f64 {
        let judged = self.sent.len().saturating_sub(1) as u32;
        if judged == 0 {
            return 0.0;
        }
        let window = u64::MAX >> (64 - judged);
        1.0 - f64::from((self.answered >> 1 & window).count_ones()) / f64::from(judged)
    }

    pub(crate) const fn last_reply(&self) -> Option<Time> {
        self.last_reply
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Span;

    fn ms(n: u64) -> Time {
        Time::from_nanos(n * 1_000_000)
    }

    fn tuning() -> Tuning {
        Tuning::new(&DetectorConfig::default())
    }

    #[test]
    fn phi_meets_the_reference_table() {
        for (elapsed, expected) in [(500.0, 0.1), (1000.0, 0.3), (1200.0, 1.6), (1400.0, 4.7), (1600.0, 10.8), (1700.0, 15.3)] {
            let got = phi(elapsed, 1000.0, 100.0);
            assert!((got - expected).abs() <= 0.1, "phi({elapsed}) = {got}, expected {expected}");
        }
    }

    #[test]
    fn the_deadline_is_where_phi_crosses() {
        for threshold in [1.0, 8.0, 12.0] {
            let y = deviations(threshold);
            assert!((phi(y, 0.0, 1.0) - threshold).abs() < 1e-6);
        }
        let (t, mut s) = (tuning(), Subject::new(&tuning()));
        for n in 0..100 {
            let seq = s.beat(ms(n * 1000), &t);
            s.reply(ms(n * 1000 + 1), seq).unwrap();
        }
        let deadline = s.deadline(&t).unwrap();
        assert!(s.phi(deadline, &t) >= 8.0 && s.phi(deadline - Duration::from_millis(5), &t) < 8.0);
        // One interval, the pause, and a little more than half a second: below 4.6 heartbeats.
        assert!(deadline.since(ms(99_001)) < Duration::from_millis(4_700), "{:?}", deadline.since(ms(99_001)));
    }

    #[test]
    fn a_beat_has_one_credit() {
        let (t, mut s) = (tuning(), Subject::new(&tuning()));
        let (a, b) = (s.beat(ms(0), &t), s.beat(ms(1000), &t));
        assert_eq!(s.reply(ms(1001), b), Some(ms(1000)));
        assert_eq!(s.reply(ms(1002), b), None);
        assert_eq!(s.reply(ms(1003), a), Some(ms(0)));
        assert_eq!((s.reply(ms(1004), 99), s.reply(ms(1004), 0)), (None, None));
    }

    #[test]
    fn silence_from_the_first_beat_on_is_noticed() {
        let (t, mut s) = (tuning(), Subject::new(&tuning()));
        assert_eq!(s.deadline(&t), None);
        s.beat(ms(0), &t);
        let deadline = s.deadline(&t).unwrap();
        assert!(deadline > ms(5_000) && deadline < ms(8_000), "{deadline:?}");
    }

    #[test]
    fn a_beat_without_an_answer_is_repeated_and_has_one_credit() {
        let (t, mut s) = (tuning(), Subject::new(&tuning()));
        assert_eq!(s.beat_again(ms(0)), None);
        let seq = s.beat(ms(0), &t);
        assert_eq!(s.beat_again(ms(400)), None, "nobody knows how long an answer takes");
        s.reply(ms(410), seq);
        let seq = s.beat(ms(1000), &t);
        assert_eq!(s.beat_again(ms(1400)), None, "it may be on its way");
        s.reply(ms(1002), seq);
        for _ in 0..3 {
            let seq = s.beat(ms(2000), &t);
            s.reply(ms(2002), seq);
        }
        let seq = s.beat(ms(3000), &t);
        assert_eq!(s.beat_again(ms(3400)), Some(seq));
        assert_eq!((s.reply(ms(3403), seq), s.trip(1.0)), (Some(ms(3000)), Some(410_000)), "one of the two is answered");
        assert_eq!((s.reply(ms(3404), seq), s.beat_again(ms(3500))), (None, None));
        let seq = s.beat(ms(4000), &t);
        assert_eq!((s.beat_again(ms(4400)), s.reply(ms(4401), seq)), (Some(seq), Some(ms(4000))));
        assert_eq!((s.before_run(), s.before_run_at_once()), ((0, 6), (1, 6)), "the last one was late, not lost");
        s.beat(ms(5000), &t);
        s.restart(ms(5100));
        assert_eq!((s.beat_again(ms(5400)), s.before_run()), (None, (0, 6)), "nobody waits for that answer, and the link is the same");
    }

    /// Beats `from` on, one each second; those of the numbers that `lost` names are not answered.
    fn beats(s: &mut Subject, from: std::ops::Range<u64>, lost: impl Fn(u64) -> bool) {
        for n in from {
            let seq = s.beat(ms(n * 1000), &tuning());
            if !lost(n) {
                s.reply(ms(n * 1000 + 1), seq);
            }
        }
    }

    #[test]
    fn beats_that_came_before_the_welcome_tell_nothing_of_the_link() {
        let mut s = Subject::new(&tuning());
        beats(&mut s, 0..10, |n| n < 2);
        assert_eq!(s.before_run(), (0, 7), "and the first that was answered ends them");
        beats(&mut s, 10..12, |n| n == 10);
        assert_eq!(s.before_run(), (1, 9), "those that are lost later do");
    }

    #[test]
    fn neither_a_pause_nor_an_outage_tells_of_the_link_what_was_known_before_does() {
        let mut s = Subject::new(&tuning());
        beats(&mut s, 0..30, |n| n % 10 == 5);
        assert_eq!(s.before_run(), (3, 29));
        // This node was away while two of its beats were under way.
        beats(&mut s, 30..32, |_| true);
        s.restart(ms(60_000));
        assert_eq!(s.before_run(), (3, 29));
        beats(&mut s, 61..65, |_| false);
        assert_eq!(s.before_run(), (3, 33));
        beats(&mut s, 65..85, |_| false);
        assert_eq!(s.before_run(), (0, 24), "the newest beats tell enough");
        // The other one was.
        beats(&mut s, 85..95, |_| true);
        s.interrupt();
        beats(&mut s, 95..100, |_| false);
        assert_eq!(s.before_run(), (10, 39));
        s.is_back(ms(99_900));
        assert_eq!(s.before_run(), (0, 24));
        beats(&mut s, 100..101, |_| false);
        s.is_back(ms(101_500));
        assert_eq!(s.before_run(), (0, 25), "it was not away");
    }

    #[test]
    fn what_is_remembered_of_a_link_is_bounded() {
        let mut s = Subject::new(&tuning());
        for n in 0..1000 {
            beats(&mut s, n * 10..n * 10 + 9, |n| n % 3 == 0);
            s.restart(ms(n * 10_000 + 9_500));
        }
        let (missed, of) = s.before_run();
        assert!(of < 2 * OUTSTANDING as u32 && (0.2..0.4).contains(&(f64::from(missed) / f64::from(of))), "{missed} of {of}");
    }

    #[test]
    fn who_may_not_know_this_node_yet_owes_it_nothing() {
        let (t, met) = (tuning(), |beats: u64| {
            let mut s = Subject::new(&tuning());
            s.approach(ms(10_000));
            (0..beats).for_each(|n| assert_eq!(s.beat(ms(n * 1000), &tuning()), n + 1));
            s
        });
        let s = met(8);
        assert_eq!((s.run(ms(7_950), &t), s.debt(ms(7_950), &t), s.suspect(ms(7_950), &t)), (0, 0, false));
        let s = met(11);
        assert_eq!((s.run(ms(10_950), &t), s.suspect(ms(10_950), &t)), (11, true), "it has had time enough");
        let mut s = met(8);
        s.sign_of_life(ms(7_400));
        assert!(s.is_stranger(ms(7_400)), "a link shows that it lives, not whom it knows");
        s.meet(ms(7_500));
        assert_eq!(s.run(ms(7_950), &t), 0, "it did not know this node when those came");
        for n in 8..11 {
            s.beat(ms(n * 1000), &t);
        }
        assert_eq!((s.run(ms(10_950), &t), s.debt(ms(10_950), &t)), (3, 3), "now it does");
        let mut s = Subject::new(&t);
        (0..3).for_each(|n| assert_eq!(s.beat(ms(n * 1000), &t), n + 1));
        assert_eq!(s.run(ms(2_950), &t), 3, "this node has been there for long");
    }

    #[test]
    fn an_outage_does_not_poison_the_statistics() {
        let (t, mut s) = (tuning(), Subject::new(&tuning()));
        let mut at = 0;
        let mut beat = |s: &mut Subject, gap: u64| {
            at += gap;
            let seq = s.beat(ms(at), &t);
            s.reply(ms(at + 1), seq).unwrap();
            s.deadline(&t).unwrap().since(ms(at + 1))
        };
        let before = (0..50).map(|_| beat(&mut s, 1000)).last().unwrap();
        s.interrupt();
        beat(&mut s, 300_000);
        let after = beat(&mut s, 1000);
        assert!(after <= before, "{after:?} {before:?}");
    }

    #[test]
    fn a_debt_outlives_a_reply_and_ends_with_three() {
        let (t, mut s) = (tuning(), Subject::new(&tuning()));
        let mut debts = vec![];
        for (n, answered) in [1, 0, 0, 0, 0, 1, 0, 0, 0, 1, 1, 0, 1, 1, 1, 0].into_iter().enumerate() {
            let seq = s.beat(ms(n as u64 * 1000), &t);
            if answered == 1 {
                s.reply(ms(n as u64 * 1000 + 1), seq).unwrap();
            }
            debts.push(s.debt(ms(n as u64 * 1000 + 950), &t));
        }
        assert_eq!(debts, [0, 1, 2, 3, 4, 2, 3, 4, 5, 3, 1, 2, 0, 0, 0, 1]);
        s.restart(ms(16_000));
        assert_eq!(s.debt(ms(16_000), &t), 0, "this node itself was away");
    }

    #[test]
    fn after_an_outage_three_replies_suffice_and_on_a_lossy_link_a_longer_row_is_needed() {
        let back_after = |before: &str, steady: bool| {
            let (t, mut s, mut row) = (tuning(), Subject::new(&tuning()), 0);
            let mut beats = before.chars().map(|c| c == '1').chain([true; 20]);
            for n in 0.. {
                let (seq, answered) = (s.beat(ms(n * 1000), &t), beats.next().unwrap());
                if answered {
                    s.reply(ms(n * 1000 + 1), seq).unwrap();
                }
                row = if n as usize >= before.len() { row + 1 } else { 0 };
                if row > 0 && s.recovered(ms(n * 1000 + 2), &t, steady) {
                    return row;
                }
            }
            unreachable!()
        };
        for outage in ["1111111110000000000", "11111111110000000000000000000000000000", "0000000"] {
            assert_eq!(back_after(outage, true), 3, "{outage}");
        }
        assert_eq!(back_after("1111100010000", true), 4, "one came through");
        assert_eq!(back_after("1111100100010000100001000000", true), 6);
        assert_eq!(back_after("1111100100010000100001000000", false), 3, "where many are lost everywhere they say nothing");
    }

    #[test]
    fn loss_is_the_share_of_unanswered_beats() {
        let (t, mut s) = (tuning(), Subject::new(&tuning()));
        for n in 0..41 {
            let seq = s.beat(ms(n * 1000), &t);
            if n % 4 != 0 {
                s.reply(ms(n * 1000 + 2), seq);
            }
        }
        assert!((s.loss() - 0.25).abs() < 1e-9, "{}", s.loss());
        assert_eq!((s.trip(0.5), s.trip(0.99)), (Some(2000), Some(2000)));
    }

    #[test]
    fn a_small_deviation_is_raised_to_the_least_one() {
        let config = DetectorConfig { min_std_deviation: Span::millis(400), ..DetectorConfig::default() };
        assert!(Tuning::new(&config).patience() > tuning().patience());
    }
}
