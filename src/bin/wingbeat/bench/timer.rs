//! `bench timer`: a million timers on the wheel that holds those of a worker's entities, beside a binary heap of as many.

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
/// So many of them are set at a time, before they are cancelled: a wheel that only grew would be timed for the system's pages.
const AT_A_TIME: usize = 1000;
/// Has no divisor in common with `AT_A_TIME`, so that each is cancelled once.
const STRIDE: usize = 379;
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

/// A cancelled timer's entry stays where it is until the wheel meets it: that later work is a part of expiry, which is stated beside.
fn wheel() -> Result<Run, Error> {
    let (mut moments, mut wheel) = (Moments(1), Wheel::new(Time::ZERO));
    let at = |moments: &mut Moments| Time::from_nanos(moments.next());
    // As large as what a worker's timers carry.
    for n in 0..SET as u64 {
        wheel.insert(at(&mut moments), [n; 3]);
    }
    let mut ids = Vec::with_capacity(AT_A_TIME);
    let (mut insert, mut cancel, mut cancelled) = (Duration::ZERO, Duration::ZERO, 0);
    let ((), allocated) = alloc::counted(|| {
        for _ in 0..PASSING / AT_A_TIME {
            ids.clear();
            let began = Instant::now();
            for n in 0..AT_A_TIME as u64 {
                ids.push(wheel.insert(at(&mut moments), [n; 3]));
            }
            let set = Instant::now();
            // In another order than they were set, as owners do.
            cancelled += (0..AT_A_TIME).filter(|i| wheel.cancel(ids[i * STRIDE % AT_A_TIME])).count();
            insert += set - began;
            cancel += set.elapsed();
        }
    });
    if cancelled != PASSING {
        return Err(format!("{cancelled} timers were cancelled instead of {PASSING}").into());
    }
    // Time passes by a millisecond at a time, as a busy thread looks.
    let (mut fired, mut now, mut last) = (0, Time::ZERO, Time::ZERO);
    let began = Instant::now();
    while !wheel.is_empty() {
        now = now + Duration::from_millis(1);
        while wheel.next().is_some_and(|next| next <= now) {
            while let Some((due, _)) = wheel.pop(now) {
                if due < last {
                    return Err("timers expired out of order".into());
                }
                (fired, last) = (fired + 1, due);
            }
        }
    }
    let expire = began.elapsed();
    if fired != SET {
        return Err(format!("{fired} timers expired instead of {SET}").into());
    }
    let (insert, cancel, expire) = (each(insert, PASSING), each(cancel, PASSING), each(expire, SET));
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
