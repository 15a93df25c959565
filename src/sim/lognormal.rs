//! Log-normal delays by IEEE basic operations only, so that a seed gives the same bits in every build.

use super::tree::DURATION_MAX;
use crate::proto::rng::Rng;

const POINTS: usize = 1024;

/// Quantiles of a log-normal distribution with a given mean and standard deviation, in nanoseconds.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct LogNormal {
    quantiles: Vec<f64>,
}

impl LogNormal {
    pub(super) fn new(mean_ns: u64, deviation_ns: u64) -> Self {
        let mean = mean_ns as f64;
        if mean_ns == 0 || deviation_ns == 0 {
            return Self { quantiles: vec![mean] };
        }
        let ratio = deviation_ns as f64 / mean;
        let variance = ln(1.0 + ratio * ratio);
        let sigma = variance.sqrt();
        let points = (0..=POINTS).map(|i| {
            // The outermost points stand for the tails beyond them.
            let p = (i as f64 / POINTS as f64).clamp(0.1 / POINTS as f64, 1.0 - 0.1 / POINTS as f64);
            // A deviation far above the mean has tails that no clock counts.
            (mean * exp(sigma * normal_quantile(p) - variance / 2.0)).min(DURATION_MAX.as_nanos() as f64)
        });
        Self { quantiles: points.collect() }
    }

    /// One draw, nanoseconds.
    pub(super) fn draw(&self, rng: &mut Rng) -> u64 {
        if self.quantiles.len() == 1 {
            return self.quantiles[0] as u64;
        }
        let x = rng.unit() * POINTS as f64;
        let i = x as usize;
        let (a, b) = (self.quantiles[i], self.quantiles[i + 1]);
        (a + (b - a) * (x - i as f64)) as u64
    }
}

/// Natural logarithm for x > 0: halvings to [0.5, 1), then the series of artanh.
fn ln(mut x: f64) -> f64 {
    const LN_2: f64 = std::f64::consts::LN_2;
    let mut shift = 0.0;
    while x >= 1.0 {
        x *= 0.5;
        shift += LN_2;
    }
    while x < 0.5 {
        x *= 2.0;
        shift -= LN_2;
    }
    let y = (x - 1.0) / (x + 1.0);
    let square = y * y;
    let (mut term, mut sum) = (y, 0.0);
    for k in 0..24 {
        sum += term / f64::from(2 * k + 1);
        term *= square;
    }
    2.0 * sum + shift
}

/// e^x by Taylor's series around 0 after halving, then squaring back.
fn exp(x: f64) -> f64 {
    let small = x / 1024.0;
    let (mut term, mut sum) = (1.0, 1.0);
    for k in 1..12 {
        term = term * small / f64::from(k);
        sum += term;
    }
    (0..10).fold(sum, |y, _| y * y)
}

/// Acklam's rational approximation of the normal quantile (relative error below 1.2e-9).
fn normal_quantile(p: f64) -> f64 {
    const A: [f64; 6] = [
        -3.969_683_028_665_376e1,
        2.209_460_984_245_205e2,
        -2.759_285_104_469_687e2,
        1.383_577_518_672_69e2,
        -3.066_479_806_614_716e1,
        2.506_628_277_459_239,
    ];
    const B: [f64; 5] =
        [-5.447_609_879_822_406e1, 1.615_858_368_580_409e2, -1.556_989_798_598_866e2, 6.680_131_188_771_972e1, -1.328_068_155_288_572e1];
    const C: [f64; 6] = [
        -7.784_894_002_430_293e-3,
        -3.223_964_580_411_365e-1,
        -2.400_758_277_161_838,
        -2.549_732_539_343_734,
        4.374_664_141_464_968,
        2.938_163_982_698_783,
    ];
    const D: [f64; 4] = [7.784_695_709_041_462e-3, 3.224_671_290_700_398e-1, 2.445_134_137_142_996, 3.754_408_661_907_416];
    const LOW: f64 = 0.02425;
    let tail = |q: f64| {
        (((((C[0] * q + C[1]) * q + C[2]) * q + C[3]) * q + C[4]) * q + C[5]) / ((((D[0] * q + D[1]) * q + D[2]) * q + D[3]) * q + 1.0)
    };
    if p < LOW {
        tail((-2.0 * ln(p)).sqrt())
    } else if p > 1.0 - LOW {
        -tail((-2.0 * ln(1.0 - p)).sqrt())
    } else {
        let q = p - 0.5;
        let r = q * q;
        (((((A[0] * r + A[1]) * r + A[2]) * r + A[3]) * r + A[4]) * r + A[5]) * q
            / (((((B[0] * r + B[1]) * r + B[2]) * r + B[3]) * r + B[4]) * r + 1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_functions_agree_with_the_library() {
        for x in [0.001, 0.3, 0.5, 1.0, 2.5, 100.0] {
            assert!((ln(x) - f64::ln(x)).abs() < 1e-12, "ln {x}");
        }
        for x in [-5.0, -0.1, 0.0, 0.7, 3.0] {
            assert!((exp(x) / f64::exp(x) - 1.0).abs() < 1e-10, "exp {x}");
        }
    }

    #[test]
    fn mean_and_deviation_are_as_asked_for() {
        let d = LogNormal::new(1_000_000, 200_000);
        let mut rng = Rng::new(5);
        let draws: Vec<f64> = (0..200_000).map(|_| d.draw(&mut rng) as f64).collect();
        let mean = draws.iter().sum::<f64>() / draws.len() as f64;
        let deviation = (draws.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / draws.len() as f64).sqrt();
        assert!((mean / 1e6 - 1.0).abs() < 0.01, "mean {mean}");
        assert!((deviation / 2e5 - 1.0).abs() < 0.05, "deviation {deviation}");
    }

    #[test]
    fn no_jitter_is_no_jitter() {
        assert_eq!(LogNormal::new(7, 0).draw(&mut Rng::new(1)), 7);
    }

    #[test]
    fn no_draw_is_longer_than_the_longest_run() {
        let longest = DURATION_MAX.as_nanos() as u64;
        let slow = LogNormal::new(longest, longest);
        let mut rng = Rng::new(1);
        assert_eq!((0..10_000).map(|_| slow.draw(&mut rng)).max(), Some(longest));
    }
}
