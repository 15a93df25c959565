//! The pooled run test: how many replies in a row the monitors of a subject must miss together before chance is ruled out.
//!
//! A run is the number of missed replies in a row. Where a share `q` of the replies is lost, runs are geometric; the sum over `m` monitors, each
//! run capped so that at least three of them (or all, if there are fewer) must take part, reaches `n` by chance in at most one of 10^8 beats.

use std::sync::LazyLock;

/// Chance per beat that the test convicts a live subject.
const ERROR: f64 = 1e-8;
/// Most monitors of a subject.
pub(crate) const MONITORS_MAX: usize = 9;
/// Steps of the loss; finer where loss is small.
const STEPS: usize = 32;
/// Above this loss a link says nothing.
const LOSS_MAX: f64 = 0.9;

static TABLE: LazyLock<[[u16; STEPS]; MONITORS_MAX]> = LazyLock::new(|| {
    let mut table = [[0; STEPS]; MONITORS_MAX];
    for (monitors, row) in (1..).zip(&mut table) {
        let mut least = 2;
        for (i, entry) in row.iter_mut().enumerate() {
            while tail(monitors, least, step(i)) > ERROR {
                least += 1;
            }
            *entry = least;
        }
    }
    table
});

/// Loss that the step stands for: the highest of it.
fn step(i: usize) -> f64 {
    ((i + 1) as f64 / STEPS as f64).powf(1.5).min(LOSS_MAX)
}

/// The sum at which so many monitors convict where `loss` is the share of missed replies on healthy links.
pub(crate) fn convicts_at(monitors: usize, loss: f64) -> u32 {
    let i = (0..STEPS).find(|&i| loss <= step(i)).unwrap_or(STEPS - 1);
    u32::from(TABLE[monitors.clamp(1, MONITORS_MAX) - 1][i])
}

/// The most that one of so many monitors adds to a sum that convicts at `n`.
pub(crate) fn cap(monitors: usize, n: u32) -> u32 {
    n.div_ceil(monitors.clamp(1, 3) as u32)
}

/// Whether these runs, one per monitor, convict.
pub(crate) fn convicts(runs: impl Iterator<Item = u32> + Clone, loss: f64) -> bool {
    let monitors = runs.clone().count();
    let n = convicts_at(monitors, loss);
    let most = cap(monitors, n);
    monitors > 0 && runs.map(|run| run.min(most)).sum::<u32>() >= n
}

/// Chance that the capped runs of so many monitors sum up to `n` or more.
fn tail(monitors: usize, n: u16, loss: f64) -> f64 {
    let n = usize::from(n);
    let most = cap(monitors, n as u32) as i32;
    let run = |k: i32| if k < most { loss.powi(k) * (1.0 - loss) } else { loss.powi(most) };
    let runs: Vec<f64> = (0..=most).map(run).collect();
    let mut below = vec![0.0; n];
    below[0] = 1.0;
    for _ in 0..monitors {
        let mut next = vec![0.0; n];
        for (i, &p) in below.iter().enumerate().filter(|(_, p)| **p > 0.0) {
            for (k, &r) in runs.iter().enumerate().take(n - i) {
                next[i + k] += p * r;
            }
        }
        below = next;
    }
    1.0 - below.iter().sum::<f64>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::rng::Rng;

    #[test]
    fn the_table_is_the_least_sum_that_keeps_the_error() {
        // Five monitors at one-way losses of 1, 5, 10, 20 and 30 %.
        for (loss, n) in [(0.02, 6), (0.10, 11), (0.19, 15), (0.36, 25), (0.51, 39)] {
            assert!(tail(5, n, loss) <= ERROR && tail(5, n - 1, loss) > ERROR, "{loss}: {n}");
            let stepped = convicts_at(5, loss);
            assert!(stepped >= u32::from(n) && stepped <= u32::from(n) * 6 / 5 + 1, "{loss}: {stepped}");
        }
        assert_eq!((convicts_at(1, 0.0), convicts_at(5, 0.0)), (4, 5));
        assert!(convicts_at(9, 1.0) <= 400, "{}", convicts_at(9, 1.0));
    }

    #[test]
    fn three_must_take_part_or_all_where_there_are_fewer() {
        for loss in [0.0, 0.1, 0.5] {
            assert!(!convicts([1000, 1000, 0, 0, 0].into_iter(), loss));
            assert!(convicts([1000, 1000, 1000, 0, 0].into_iter(), loss));
            assert!(!convicts([1000, 0].into_iter(), loss) && convicts([1000, 1000].into_iter(), loss));
            assert!(convicts([1000].into_iter(), loss) && !convicts([3].into_iter(), loss));
            assert!(!convicts(std::iter::empty(), loss));
        }
    }

    #[test]
    fn simulated_runs_meet_the_computed_chance() {
        let (mut rng, loss, n, mut hits) = (Rng::new(5), 0.4, 9, 0u32);
        let rounds = 200_000;
        for _ in 0..rounds {
            let sum: u32 = (0..5).map(|_| (0..3).take_while(|_| rng.chance(loss)).count() as u32).sum();
            hits += u32::from(sum >= n);
        }
        let expected = tail(5, n as u16, loss);
        assert!((f64::from(hits) / f64::from(rounds) - expected).abs() < 0.002, "{hits} of {rounds}, {expected} expected");
    }
}
