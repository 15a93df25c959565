//! Requests at an even rate while something happens to the cluster: how long each waited, from the moment at which it was meant to go.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use hdrhistogram::Histogram;
use wingbeat::{Answer, AskQueue, EntityRef, Refusal};

use super::{
    entity::{Bench, Echo, Payload},
    limits,
    rig::Error,
};
use crate::out::note;

/// Room for answers: what comes on top waits, and its waiting counts.
const ROOM: usize = 1 << 16;
/// The system wakes who sleeps about so late; shorter waits are spent yielding.
const OVERSLEEP: Duration = Duration::from_micros(200);

/// A request and what came of it.
#[derive(Clone, Debug)]
pub struct Asked {
    /// Which entity, by its place among all.
    pub entity: usize,
    /// When it was meant to go, since the first.
    pub meant: Duration,
    /// From then to its answer.
    pub took: Duration,
    /// Why there was no answer, or another one.
    pub failed: Option<String>,
}

impl Asked {
    /// When its answer came, since the first was meant to go.
    pub fn done(&self) -> Duration {
        self.meant + self.took
    }
}

/// Requests of a rate to these entities, round robin.
pub struct Load<'a> {
    pub all: &'a [EntityRef<Bench>],
    pub per_s: f64,
    /// Time that each request has.
    pub limit: Duration,
}

/// Sets it when dropped, however that comes.
pub struct Ends<'a>(pub &'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

impl Load<'_> {
    /// Runs `act` on a thread of its own, and asks until it has returned and all is answered. `act` gets the moment of the first request.
    pub fn during<R: Send>(&self, act: impl FnOnce(Instant) -> Result<R, Error> + Send) -> Result<(Vec<Asked>, R), Error> {
        let ended = AtomicBool::new(false);
        let flag = &ended;
        std::thread::scope(|scope| {
            let began = Instant::now();
            let actor = scope.spawn(move || {
                let _ends = Ends(flag);
                act(began)
            });
            let asked = self.ask(began, flag);
            let result = actor.join().map_err(|_| "what was to be measured panicked")??;
            Ok((asked?, result))
        })
    }

    /// Nothing happens for so long.
    pub fn alone(&self, window: Duration) -> Result<Vec<Asked>, Error> {
        let (asked, ()) = self.during(|began| {
            pause_until(began + window);
            Ok(())
        })?;
        Ok(asked)
    }

    fn due(&self, i: u64) -> Duration {
        Duration::from_secs_f64(i as f64 / self.per_s)
    }

    fn at(&self, i: u64) -> usize {
        (i % self.all.len() as u64) as usize
    }

    fn ask(&self, began: Instant, ended: &AtomicBool) -> Result<Vec<Asked>, Error> {
        let (queue, mut answers, mut asked) = (AskQueue::new(ROOM), Vec::new(), Vec::new());
        let (mut next, mut last) = (0u64, None);
        loop {
            // Behind the end, so that the last moments of what happens are seen from outside as well.
            if last.is_none() && ended.load(Ordering::Acquire) {
                last = Some(began.elapsed());
            }
            let mut refused = false;
            while last.is_none_or(|last| self.due(next) <= last) && self.due(next) <= began.elapsed() {
                match self.all[self.at(next)].ask_into(Echo(Payload([next; 8])), self.limit, next, &queue) {
                    Ok(()) => next += 1,
                    // It goes as soon as there is room; that it waits counts.
                    Err(error) if matches!(error.reason(), Refusal::Full | Refusal::NoCredit) => {
                        refused = true;
                        break;
                    }
                    Err(error) => {
                        asked.push(self.outcome(next, began, Some(error.reason().to_string())));
                        next += 1;
                    }
                }
            }
            if queue.poll(&mut answers) > 0 {
                self.take(&mut answers, began, &mut asked);
                continue;
            }
            let all_sent = last.is_some_and(|last| self.due(next) > last);
            if all_sent && queue.in_flight() == 0 {
                return Ok(asked);
            }
            if last.is_some_and(|last| began.elapsed() > last + 2 * self.limit) {
                return Err(format!("{} requests have no answer in time", queue.in_flight()).into());
            }
            let spare = if all_sent { self.limit } else { self.due(next).saturating_sub(began.elapsed()) };
            if !refused && queue.in_flight() > 0 {
                // Awake for longer than until the next one is due, if that is soon.
                queue.wait(&mut answers, if spare < OVERSLEEP { spare } else { spare - OVERSLEEP });
                self.take(&mut answers, began, &mut asked);
            } else if refused || spare < OVERSLEEP {
                std::thread::yield_now();
            } else {
                std::thread::park_timeout(spare - OVERSLEEP);
            }
        }
    }

    fn take(&self, answers: &mut Vec<Answer<Payload>>, began: Instant, asked: &mut Vec<Asked>) {
        for Answer { tag, result, .. } in answers.drain(..) {
            let failed = match result {
                Ok(back) if back.0 == [tag; 8] => None,
                Ok(back) => Some(format!("got the answer of another: {:?}", back.0)),
                Err(error) => Some(error.to_string()),
            };
            asked.push(self.outcome(tag, began, failed));
        }
    }

    fn outcome(&self, i: u64, began: Instant, failed: Option<String>) -> Asked {
        let meant = self.due(i);
        Asked { entity: self.at(i), meant, took: began.elapsed().saturating_sub(meant), failed }
    }
}

/// Waits until then.
pub fn pause_until(end: Instant) {
    while let Some(left) = end.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
        std::thread::park_timeout(left);
    }
}

/// Latencies of those that were answered.
pub fn latencies<'a>(asked: impl IntoIterator<Item = &'a Asked>) -> Histogram<u64> {
    let mut seen = limits::histogram();
    for ask in asked.into_iter().filter(|ask| ask.failed.is_none()) {
        seen.saturating_record(ask.took.as_nanos() as u64);
    }
    seen
}

/// How many failed; the first reason goes to standard error, as a count alone helps nobody.
pub fn failed(asked: &[Asked]) -> f64 {
    let mut failed = asked.iter().filter(|ask| ask.failed.is_some());
    let Some(first) = failed.next() else { return 0.0 };
    let n = 1 + failed.count();
    let why = first.failed.as_deref().unwrap_or_default();
    note(format_args!("{n} of {} requests failed; one meant to go at {:?}: {why}", asked.len(), first.meant));
    n as f64
}

/// The longest wait among those that were meant to go within this time.
pub fn longest(asked: &[Asked], from: Duration, to: Duration) -> Option<Duration> {
    asked.iter().filter(|ask| (from..=to).contains(&ask.meant)).map(|ask| ask.took).max()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(meant: u64, took: u64, failed: Option<&str>) -> Asked {
        let ms = Duration::from_millis;
        Asked { entity: 0, meant: ms(meant), took: ms(took), failed: failed.map(str::to_owned) }
    }

    #[test]
    fn a_wait_counts_for_the_time_in_which_it_began() {
        let all = [asked(1, 9, None), asked(5, 3, None), asked(6, 4, Some("late")), asked(20, 50, None)];
        let ms = Duration::from_millis;
        assert_eq!(longest(&all, ms(4), ms(8)), Some(ms(4)), "one that failed has waited as well");
        assert_eq!(longest(&all, ms(8), ms(10)), None);
        assert_eq!((latencies(&all).len(), failed(&all)), (3, 1.0));
        assert_eq!(all[3].done(), ms(70));
    }
}
