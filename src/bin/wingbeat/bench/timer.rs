//! `bench timer`: a million timers on the library's wheel, beside a binary heap of as many.

use std::{
    cmp::Reverse,
    collections::BinaryHeap,
    hint::black_box,
    time::{Duration, Instant},
};

use wingbeat::{Time, proto::wheel::Wheel};

use super::{
    BenchArgs, alloc,
    report::{Report, Run},
    rig::Error,
};

/// Timers that are set at any time.
const SET: usize = 1_000_000;
/// Timers that are set and cancelled in one measurement, on top of those that stay set.
const PASSING: usize = 200_000;
/// Has no divisor in common with `PASSING`, so that each is cancelled once.
const STRIDE: usize = 7919;
/// Moments lie within this of the present.
const HORIZON: u64 = 60_000_000_000;

/// Moments that look random and are the same in each run.
struct Moments(u64);

impl Moments {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 20) % HORIZON
    }
}

fn each(took: Duration, n: usize) -> f64 {
    took.as_nanos() as f64 / n as f64
}

/// Wheel and heap in turns.
pub fn measure(args: &BenchArgs, report: &mut Report) -> Result<(), Error> {
    report.figure("ns_per_timer");
    report.rounds("binary heap: push and pop at 1 M timers", args.runs(), || Ok(heap()), wheel)
}

/// Sets a timer and takes the earliest out, a million others being set.
fn heap() -> Run {
    let mut moments = Moments(1);
    let mut heap: BinaryHeap<Reverse<(u64, u64)>> = (0..SET as u64).map(|token| Reverse((moments.next(), token))).collect();
    let began = Instant::now();
    for token in 0..PASSING as u64 {
        // From the present on, which is what was taken out last: a heap whose new timers are all early would be faster than any real one.
        let now = heap.pop().map_or(0, |Reverse((at, _))| at);
        heap.push(Reverse((now + moments.next(), token)));
    }
    let ns = each(began.elapsed(), PASSING);
    black_box(&heap);
    Run::figure(ns)
}

/// A timer is cancelled by its owner, who gives its slot a new generation; the wheel brings the old token when its time comes, and the owner
/// sees that it no longer fits. That later work is the cost of expiry, and is stated beside.
fn wheel() -> Result<Run, Error> {
    let (mut moments, mut wheel) = (Moments(1), Wheel::new(Time::ZERO));
    let mut generations = vec![0u32; SET + PASSING];
    let at = |moments: &mut Moments| Time::from_nanos(moments.next());
    for slot in 0..SET {
        wheel.insert(at(&mut moments), (slot as u32, 0u32));
    }
    let ((insert, cancel), allocated) = alloc::counted(|| {
        let began = Instant::now();
        for slot in SET..SET + PASSING {
            wheel.insert(at(&mut moments), (slot as u32, 0));
        }
        let insert = began.elapsed();
        let began = Instant::now();
        for i in 0..PASSING {
            // In another order than they were set, as owners do.
            generations[SET + i * STRIDE % PASSING] += 1;
        }
        black_box(&mut generations);
        (insert, began.elapsed())
    });
    if wheel.len() != SET + PASSING {
        return Err(format!("{} timers are set instead of {}", wheel.len(), SET + PASSING).into());
    }
    // Time passes by a millisecond at a time, as a busy thread looks.
    let (mut fired, mut valid, mut now) = (Vec::new(), 0, 0);
    let began = Instant::now();
    while !wheel.is_empty() {
        now += 1_000_000;
        wheel.advance(Time::from_nanos(now), &mut fired);
        valid += fired.drain(..).filter(|(slot, generation)| generations[*slot as usize] == *generation).count();
    }
    let expire = began.elapsed();
    if valid != SET {
        return Err(format!("{valid} timers expired instead of {SET}").into());
    }
    let (insert, cancel, expire) = (each(insert, PASSING), each(cancel, PASSING), each(expire, SET + PASSING));
    let details = vec![("insert_ns", insert), ("cancel_ns", cancel), ("expire_ns", expire), ("all_three_ns", insert + cancel + expire)];
    Ok(Run { details, allocations: Some(allocated as f64 / PASSING as f64), ..Run::figure(insert + cancel) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_lie_within_the_horizon_and_differ() {
        let mut moments = Moments(1);
        let mut seen: Vec<u64> = (0..1000).map(|_| moments.next()).collect();
        assert!(seen.iter().all(|at| *at < HORIZON));
        seen.sort_unstable();
        seen.dedup();
        assert!(seen.len() > 990);
    }
}
