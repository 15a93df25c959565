//! The percentile file of HdrHistogram, which its plotter and many tools read: values in microseconds.

use std::fmt::Write;

use hdrhistogram::Histogram;

/// Lines per halving of the distance to 100 %.
const TICKS: u32 = 5;
const NS_PER_UNIT: f64 = 1000.0;

/// One line: so many values up to here.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct Line {
    /// In microseconds.
    pub value: f64,
    /// From 0 to 1.
    pub share: f64,
    /// Values up to here.
    pub count: u64,
}

/// The file of a histogram of nanoseconds.
pub fn file(seen: &Histogram<u64>) -> String {
    let mut text = String::from("       Value     Percentile TotalCount 1/(1-Percentile)\n\n");
    let mut count = 0;
    for step in seen.iter_quantiles(TICKS) {
        count += step.count_since_last_iteration();
        let (value, share) = (step.value_iterated_to() as f64 / NS_PER_UNIT, step.quantile_iterated_to());
        // Writing to a text does not fail.
        let _ = write!(text, "{value:12.3} {share:2.12} {count:10}");
        let _ = if share < 1.0 { writeln!(text, " {:14.2}", 1.0 / (1.0 - share)) } else { writeln!(text) };
    }
    let of = |value: f64| value / NS_PER_UNIT;
    let _ = writeln!(text, "#[Mean    = {:12.3}, StdDeviation   = {:12.3}]", of(seen.mean()), of(seen.stdev()));
    let _ = writeln!(text, "#[Max     = {:12.3}, Total count    = {:12}]", of(seen.max() as f64), seen.len());
    let sub_buckets = (2 * 10u64.pow(seen.sigfig().into())).next_power_of_two();
    let _ = writeln!(text, "#[Buckets = {:12}, SubBuckets     = {sub_buckets:12}]", seen.buckets());
    text
}

/// Its lines; what is no line of values is passed over.
pub fn parse(text: &str) -> Vec<Line> {
    let line = |line: &str| {
        let mut fields = line.split_whitespace();
        let (value, share, count) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
        ((0.0..=1.0).contains(&share) && f64::is_finite(value)).then_some(Line { value, share, count })
    };
    text.lines().filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn thousand() -> Histogram<u64> {
        let mut seen = Histogram::new_with_bounds(1, 60_000_000_000, 3).unwrap();
        (1..=1000).for_each(|us: u64| seen.record(us * 1000).unwrap());
        seen
    }

    #[test]
    fn what_is_written_is_read_again() {
        let lines = parse(&file(&thousand()));
        assert!(lines.len() > 20);
        assert!(lines.windows(2).all(|w| w[0].value <= w[1].value && w[0].share <= w[1].share && w[0].count <= w[1].count));
        let last = lines.last().unwrap();
        assert_eq!((last.share, last.count), (1.0, 1000));
        assert!((last.value - 1000.0).abs() < 2.0, "{}", last.value);
        let middle = lines.iter().find(|line| line.share >= 0.5).unwrap();
        assert!((middle.value - 500.0).abs() < 2.0, "{}", middle.value);
    }

    #[test]
    fn it_ends_as_the_usual_tools_expect() {
        let text = file(&thousand());
        assert!(text.starts_with("       Value     Percentile TotalCount 1/(1-Percentile)\n\n"));
        assert!(text.contains("#[Max     =") && text.contains("Total count    =         1000]"));
        assert!(!text.contains("inf") && !text.contains("NaN"));
    }

    #[test]
    fn lines_that_are_none_are_passed_over() {
        let text = "Value Percentile\n\n 1.5 0.5 7 2.00\n nonsense\n 2.0 1.5 8\n 3.0 1.0 9\n#[Max = 3]\n";
        assert_eq!(parse(text), [Line { value: 1.5, share: 0.5, count: 7 }, Line { value: 3.0, share: 1.0, count: 9 }]);
        assert_eq!(parse(""), []);
    }
}
