//! Distributions of durations.

use std::{fmt, time::Duration};

use parking_lot::Mutex;

/// Longest duration told apart; longer ones count as this.
const LONGEST_NS: u64 = 3_600_000_000_000;
/// Two digits: an error of at most 1 %, some 30 KiB per histogram.
const DIGITS: u8 = 2;

/// A histogram of durations in nanoseconds, for one writer and a rare reader, or for several that [offer](Self::offer) samples; not for each message.
pub struct Histogram(Mutex<Inner>);

struct Inner {
    /// `None` until the first value, so that unused histograms cost nothing.
    values: Option<hdrhistogram::Histogram<u64>>,
    sum_ns: u64,
}

impl Inner {
    fn add(&mut self, duration: Duration) {
        let ns = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX).min(LONGEST_NS);
        self.sum_ns = self.sum_ns.saturating_add(ns);
        if self.values.is_none() {
            self.values = hdrhistogram::Histogram::new_with_bounds(1, LONGEST_NS, DIGITS).ok();
        }
        if let Some(values) = &mut self.values {
            values.saturating_record(ns.max(1));
        }
    }
}

/// What a histogram held at one moment. All durations in nanoseconds; zero without values.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct Quantiles {
    /// Number of values.
    pub count: u64,
    /// Their sum.
    pub sum_ns: u64,
    /// Median.
    pub p50_ns: u64,
    /// 90th percentile.
    pub p90_ns: u64,
    /// 99th percentile.
    pub p99_ns: u64,
    /// 99.9th percentile.
    pub p999_ns: u64,
    /// Largest.
    pub max_ns: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self(Mutex::new(Inner { values: None, sum_ns: 0 }))
    }
}

impl Histogram {
    /// Adds a duration.
    pub fn record(&self, duration: Duration) {
        self.0.lock().add(duration);
    }

    /// Adds a duration, unless somebody else is at it: who may not wait leaves it out.
    pub fn offer(&self, duration: Duration) {
        if let Some(mut inner) = self.0.try_lock() {
            inner.add(duration);
        }
    }

    /// What it holds now.
    pub fn snapshot(&self) -> Quantiles {
        let inner = self.0.lock();
        let Some(values) = &inner.values else { return Quantiles::default() };
        Quantiles {
            count: values.len(),
            sum_ns: inner.sum_ns,
            p50_ns: values.value_at_quantile(0.5),
            p90_ns: values.value_at_quantile(0.9),
            p99_ns: values.value_at_quantile(0.99),
            p999_ns: values.value_at_quantile(0.999),
            max_ns: values.max(),
        }
    }
}

impl fmt::Debug for Histogram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.snapshot().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_within_one_percent() {
        let histogram = Histogram::default();
        assert_eq!(histogram.snapshot(), Quantiles::default());
        for us in 1..=1000 {
            histogram.record(Duration::from_micros(us));
        }
        let seen = histogram.snapshot();
        assert_eq!((seen.count, seen.sum_ns), (1000, 500_500_000));
        for (got, want) in [(seen.p50_ns, 500_000_u64), (seen.p99_ns, 990_000), (seen.max_ns, 1_000_000)] {
            assert!(got.abs_diff(want) * 100 <= want, "{got} instead of {want}");
        }
    }

    #[test]
    fn who_may_not_wait_does_not() {
        let histogram = Histogram::default();
        histogram.offer(Duration::from_micros(1));
        let held = histogram.0.lock();
        histogram.offer(Duration::from_micros(2));
        drop(held);
        assert_eq!((histogram.snapshot().count, histogram.snapshot().sum_ns), (1, 1000));
    }

    #[test]
    fn a_duration_beyond_the_range_counts_as_the_longest() {
        let histogram = Histogram::default();
        histogram.record(Duration::MAX);
        histogram.record(Duration::ZERO);
        assert_eq!(histogram.snapshot().count, 2);
    }
}
