//! Requests at a fixed rate, whatever the answers do: latency counts from the moment at which a request was meant to go, so that a stall is
//! seen by all that it kept waiting.

use std::{
    str::FromStr,
    time::{Duration, Instant},
};

use wingbeat::{Answer, AskQueue, EntityRef, Refusal};

use super::{
    alloc,
    entity::{Bench, Echo, Payload},
    limits, local,
    report::{Report, Run},
    rig::{Error, PATIENCE},
};

/// Requests in flight when the peak is looked for.
const IN_FLIGHT: u64 = 128;
/// Room for answers: what comes on top waits, and its waiting counts.
const ROOM: usize = 1 << 16;
/// The system wakes who sleeps about so late; shorter waits are spent yielding.
const OVERSLEEP: Duration = Duration::from_micros(200);
/// Highest rate that makes sense to ask for.
const RATE_MAX: f64 = 100e6;

/// What `--rate` says.
#[derive(Copy, Clone, PartialEq, Debug)]
pub enum Rate {
    /// Requests per second.
    PerSecond(f64),
    /// Half of what goes through with 128 in flight, measured first.
    HalfOfPeak,
}

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "half-of-peak" {
            return Ok(Self::HalfOfPeak);
        }
        match text.parse() {
            Ok(rate) if (1.0..=RATE_MAX).contains(&rate) => Ok(Self::PerSecond(rate)),
            _ => Err(format!("it is neither `half-of-peak` nor a number of requests per second from 1 to {RATE_MAX:.0}")),
        }
    }
}

impl std::fmt::Display for Rate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::PerSecond(rate) => write!(f, "{rate}"),
            Self::HalfOfPeak => f.write_str("half-of-peak"),
        }
    }
}

/// The rate in requests per second; its peak is measured if it is needed, and while nobody disturbs.
pub fn rate_of(rate: Rate, all: &[EntityRef<Bench>], window: Duration, report: &mut Report) -> Result<f64, Error> {
    let rate = match rate {
        Rate::PerSecond(rate) => rate,
        Rate::HalfOfPeak => {
            let peak = report.before(|| peak(all, window))?;
            report.with("peak_per_s", peak.round());
            peak / 2.0
        }
    };
    report.with("rate_per_s", rate);
    Ok(rate)
}

/// Answers that came, each checked to be that of its question.
fn taken(answers: &mut Vec<Answer<Payload>>, mut each: impl FnMut(u64)) -> Result<u64, Error> {
    let n = answers.len() as u64;
    for Answer { tag, result, .. } in answers.drain(..) {
        local::check_answer(tag, &result?)?;
        each(tag);
    }
    Ok(n)
}

/// Sends request `i`; false if there is no room now.
fn sent(all: &[EntityRef<Bench>], i: u64, queue: &AskQueue<Payload>) -> Result<bool, Error> {
    let entity = &all[(i % all.len() as u64) as usize];
    match entity.ask_into(Echo(Payload([i; 8])), PATIENCE, i, queue) {
        Ok(()) => Ok(true),
        Err(error) if matches!(error.reason(), Refusal::Full | Refusal::NoCredit) => Ok(false),
        Err(error) => Err(error.to_string().into()),
    }
}

/// Requests per second with 128 in flight, each answer letting the next request go.
fn peak(all: &[EntityRef<Bench>], window: Duration) -> Result<f64, Error> {
    let (queue, mut answers) = (AskQueue::new(IN_FLIGHT as usize), Vec::new());
    let (began, mut next, mut done) = (Instant::now(), 0, 0);
    loop {
        let open = began.elapsed() < window;
        while open && next - done < IN_FLIGHT && sent(all, next, &queue)? {
            next += 1;
        }
        if !open && next == done {
            return Ok(done as f64 / began.elapsed().as_secs_f64());
        }
        if queue.wait(&mut answers, PATIENCE) == 0 && next > done {
            return Err("no answer in time".into());
        }
        done += taken(&mut answers, |_| ())?;
    }
}

/// When request `i` is meant to go, since the first.
fn due(i: u64, rate: f64) -> Duration {
    Duration::from_secs_f64(i as f64 / rate)
}

/// Sends `rate` requests per second for `window`, and waits for the last answer.
pub fn at_rate(all: &[EntityRef<Bench>], rate: f64, window: Duration) -> Result<Run, Error> {
    let (queue, mut answers, mut seen) = (AskQueue::new(ROOM), Vec::new(), limits::histogram());
    let total = ((window.as_secs_f64() * rate) as u64).max(1);
    let (result, allocated) = alloc::counted(|| {
        let (began, mut next, mut done) = (Instant::now(), 0u64, 0u64);
        while done < total {
            let mut refused = false;
            while next < total && due(next, rate) <= began.elapsed() {
                if !sent(all, next, &queue)? {
                    // It goes as soon as there is room; that it waits counts.
                    refused = true;
                    break;
                }
                next += 1;
            }
            if queue.poll(&mut answers) > 0 {
                let now = began.elapsed();
                done += taken(&mut answers, |i| seen.saturating_record(now.saturating_sub(due(i, rate)).as_nanos() as u64))?;
                continue;
            }
            if began.elapsed() > due(total, rate) + PATIENCE {
                return Err(format!("{} of {total} requests have no answer in time", total - done).into());
            }
            let spare = if next < total { due(next, rate).saturating_sub(began.elapsed()) } else { PATIENCE };
            if refused || spare < OVERSLEEP {
                std::thread::yield_now();
            } else if queue.in_flight() > 0 {
                queue.wait(&mut answers, spare - OVERSLEEP);
                let now = began.elapsed();
                done += taken(&mut answers, |i| seen.saturating_record(now.saturating_sub(due(i, rate)).as_nanos() as u64))?;
            } else {
                std::thread::park_timeout(spare - OVERSLEEP);
            }
        }
        Ok::<_, Error>(began.elapsed())
    });
    let took: Duration = result?;
    let reached = total as f64 / took.as_secs_f64();
    let allocations = Some(allocated as f64 / total as f64);
    // The rate that was meant stands beside the one that was reached.
    Ok(Run { allocations, details: vec![("rate_per_s", rate)], ..Run::of(&seen, Some(reached)) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_a_number_or_half_of_the_peak() {
        assert_eq!("half-of-peak".parse(), Ok(Rate::HalfOfPeak));
        assert_eq!("2500".parse(), Ok(Rate::PerSecond(2500.0)));
        for wrong in ["0", "-1", "NaN", "1e99", "peak", ""] {
            assert!(wrong.parse::<Rate>().is_err(), "{wrong:?}");
        }
        for rate in [Rate::HalfOfPeak, Rate::PerSecond(1500.5)] {
            assert_eq!(rate.to_string().parse(), Ok(rate));
        }
    }

    #[test]
    fn requests_are_due_at_even_distances() {
        assert_eq!((due(0, 1000.0), due(1, 1000.0), due(1000, 1000.0)), (Duration::ZERO, Duration::from_millis(1), Duration::from_secs(1)));
    }
}
