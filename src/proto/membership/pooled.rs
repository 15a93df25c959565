//! The pooled run test: how many replies in a row the monitors of a subject must miss together before chance is ruled out.
//!
//! A run is the number of missed replies in a row. Where a share `q` of the replies is lost, runs are geometric; the sum over `m` monitors, each
//! run capped so that at least three of them (or all, if there are fewer) must take part, reaches `n` by chance in at most one of 10^8 beats.

use std::sync::LazyLock;

/// Chance per beat that the test convicts a live subject.
#[cfg(test)]
const ERROR: f64 = 1e-8;
/// Most monitors of a subject.
pub(crate) const MONITORS_MAX: usize = 9;
/// Steps of the loss; finer where loss is small.
const STEPS: usize = 32;
/// Above this loss a link says nothing.
const LOSS_MAX: f64 = 0.9;

/// The least sum that convicts, by number of monitors (from one) and step of the loss. Worked out once and for all: the first suspicion is the
/// wrong moment for a tenth of a second of arithmetic on the thread that sends heartbeats. A test works it out again.
const TABLE: [[u16; STEPS]; MONITORS_MAX] = [
    [4, 5, 6, 6, 7, 8, 9, 9, 10, 11, 12, 13, 14, 15, 17, 18, 20, 22, 24, 27, 30, 33, 38, 43, 50, 60, 73, 92, 125, 175, 175, 175],
    [4, 5, 6, 6, 7, 8, 9, 10, 10, 11, 12, 13, 14, 16, 17, 18, 20, 22, 24, 27, 30, 34, 38, 44, 50, 60, 74, 92, 126, 176, 176, 176],
    [4, 5, 6, 6, 8, 8, 9, 9, 11, 12, 12, 14, 15, 15, 17, 18, 21, 23, 24, 27, 30, 33, 39, 44, 51, 60, 74, 93, 126, 177, 177, 177],
    [5, 6, 6, 8, 8, 9, 10, 11, 12, 13, 14, 15, 17, 18, 20, 23, 24, 27, 30, 33, 37, 42, 47, 54, 63, 75, 93, 117, 160, 225, 225, 225],
    [5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 16, 17, 19, 21, 23, 25, 27, 30, 33, 37, 42, 47, 53, 62, 72, 86, 105, 134, 182, 255, 255, 255],
    [5, 6, 7, 8, 9, 11, 12, 13, 14, 15, 17, 18, 20, 22, 24, 27, 30, 33, 36, 41, 45, 51, 58, 67, 78, 94, 115, 147, 200, 281, 281, 281],
    [5, 6, 8, 9, 10, 11, 12, 14, 15, 17, 18, 20, 22, 24, 26, 29, 32, 35, 39, 43, 48, 55, 63, 72, 84, 101, 124, 158, 215, 303, 303, 303],
    [5, 7, 8, 9, 10, 12, 13, 14, 16, 17, 19, 21, 23, 25, 28, 30, 33, 37, 41, 46, 52, 58, 67, 77, 90, 108, 132, 169, 230, 324, 324, 324],
    [5, 7, 8, 9, 11, 12, 13, 15, 16, 18, 20, 22, 24, 26, 29, 32, 35, 39, 44, 48, 54, 62, 70, 81, 95, 114, 140, 179, 244, 343, 343, 343],
];

/// Loss that each step stands for: the highest of it.
static LOSSES: LazyLock<[f64; STEPS]> = LazyLock::new(|| std::array::from_fn(|i| ((i + 1) as f64 / STEPS as f64).powf(1.5).min(LOSS_MAX)));

/// A run that convicts whatever the loss is, if that of each other monitor is as long. A subject remembers 64 beats, so without this end nobody who
/// has one subject left, and believes that most is lost, would ever find out that it is gone.
const RUN_MAX: u32 = 60;

/// The sum at which so many monitors convict where `loss` is the share of missed replies on healthy links.
pub(crate) fn convicts_at(monitors: usize, loss: f64) -> u32 {
    let i = LOSSES.partition_point(|&step| step < loss).min(STEPS - 1);
    let monitors = monitors.clamp(1, MONITORS_MAX);
    u32::from(TABLE[monitors - 1][i]).min(RUN_MAX * monitors as u32)
}

/// The most that one of so many monitors adds to a sum that convicts at `n`.
pub(crate) fn cap(monitors: usize, n: u32) -> u32 {
    n.div_ceil(monitors.clamp(1, 3) as u32)
}

/// Replies that all of three or more monitors must miss in a row, if none misses more: losses come in bursts on one link and another, and nobody
/// is accused sooner anyway.
const EACH: u32 = 3;

/// Whether these runs, one per monitor, convict.
pub(crate) fn convicts(runs: impl Iterator<Item = u32> + Clone, loss: f64) -> bool {
    let monitors = runs.clone().count();
    let least = if monitors < 3 { 0 } else { EACH * monitors as u32 };
    let n = convicts_at(monitors, loss).max(least);
    let most = cap(monitors, n);
    monitors > 0 && runs.map(|run| run.min(most)).sum::<u32>() >= n
}

/// Chance that the capped runs of so many monitors sum up to `n` or more.
#[cfg(test)]
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
    fn the_table_is_what_the_convolution_gives() {
        for (monitors, row) in (1..).zip(TABLE) {
            for (i, n) in row.into_iter().enumerate() {
                assert!(tail(monitors, n, LOSSES[i]) <= ERROR, "{monitors} monitors, step {i}: {n} is too few");
                assert!(n == 2 || tail(monitors, n - 1, LOSSES[i]) > ERROR, "{monitors} monitors, step {i}: {n} is more than it takes");
            }
        }
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
    fn a_minute_of_silence_convicts_whatever_is_lost() {
        for (monitors, loss) in (1..=MONITORS_MAX).flat_map(|n| [0.0, 0.5, 0.8, 0.9, 1.0].map(|loss| (n, loss))) {
            let silent = std::iter::repeat_n(RUN_MAX, monitors);
            assert!(convicts(silent, loss), "{monitors} monitors, loss {loss}");
        }
    }

    #[test]
    fn bursts_on_a_few_links_convict_nobody() {
        // A hundredth of the replies is lost, but where one is, every other one that follows is lost as well.
        assert!(!convicts([4, 4, 4, 0, 0].into_iter(), 0.01) && !convicts([9, 9, 2, 1, 0].into_iter(), 0.01));
        assert!(convicts([3; 5].into_iter(), 0.01) && convicts([5, 5, 5, 0, 0].into_iter(), 0.01));
        assert!(convicts([3; 3].into_iter(), 0.01) && convicts([4; 2].into_iter(), 0.0));
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
