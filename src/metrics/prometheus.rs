//! The text format of Prometheus, version 0.0.4.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    fmt::Write as _,
};

use super::Quantiles;

/// Prefix of every name.
const PREFIX: &str = "wingbeat_";
const NS_PER_S: f64 = 1e9;

/// A value of a sample.
#[derive(Copy, Clone, PartialEq, Debug)]
pub enum Number {
    /// A count.
    Int(u64),
    /// A measure in a base unit.
    Float(f64),
}

impl From<u64> for Number {
    fn from(n: u64) -> Self {
        Self::Int(n)
    }
}

impl From<u32> for Number {
    fn from(n: u32) -> Self {
        Self::Int(n.into())
    }
}

impl From<usize> for Number {
    fn from(n: usize) -> Self {
        Self::Int(n as u64)
    }
}

impl From<bool> for Number {
    fn from(yes: bool) -> Self {
        Self::Int(yes.into())
    }
}

impl From<f64> for Number {
    fn from(x: f64) -> Self {
        Self::Float(x)
    }
}

struct Family {
    help: String,
    kind: &'static str,
    samples: String,
}

/// A page of metrics. Samples of one name are kept together in whatever order they are added; names get the prefix `wingbeat_`.
///
/// Characters that a name cannot have become `_`. Never give a label a value per entity key: the page must stay small.
#[derive(Default)]
pub struct Prometheus {
    families: BTreeMap<String, Family>,
}

impl Prometheus {
    /// Type of the page's content.
    pub const CONTENT_TYPE: &'static str = "text/plain; version=0.0.4; charset=utf-8";

    /// An empty page.
    pub fn new() -> Self {
        Self::default()
    }

    /// A number that only grows. `_total` is added to the name.
    pub fn counter(&mut self, name: &str, help: &str, value: u64) {
        self.counter_with(name, help, &[], value);
    }

    /// As [`Prometheus::counter`], with labels.
    pub fn counter_with(&mut self, name: &str, help: &str, labels: &[(&str, &str)], value: u64) {
        let name = format!("{}_total", name.trim_end_matches("_total"));
        self.sample(&name, "counter", help, "", labels, value.into());
    }

    /// A number that goes up and down, in a base unit named at the end of its name.
    pub fn gauge(&mut self, name: &str, help: &str, value: impl Into<Number>) {
        self.gauge_with(name, help, &[], value);
    }

    /// As [`Prometheus::gauge`], with labels.
    pub fn gauge_with(&mut self, name: &str, help: &str, labels: &[(&str, &str)], value: impl Into<Number>) {
        self.sample(name, "gauge", help, "", labels, value.into());
    }

    /// Quantiles of durations, in seconds. The name should end in `_seconds`.
    pub fn summary_seconds(&mut self, name: &str, help: &str, of: &Quantiles) {
        let quantiles = [("0.5", of.p50_ns), ("0.9", of.p90_ns), ("0.99", of.p99_ns), ("0.999", of.p999_ns), ("1", of.max_ns)];
        for (quantile, ns) in quantiles {
            let value = if of.count == 0 { f64::NAN } else { ns as f64 / NS_PER_S };
            self.sample(name, "summary", help, "", &[("quantile", quantile)], value.into());
        }
        self.sample(name, "summary", help, "_sum", &[], (of.sum_ns as f64 / NS_PER_S).into());
        self.sample(name, "summary", help, "_count", &[], of.count.into());
    }

    /// The page as text.
    pub fn finish(self) -> String {
        let mut page = String::new();
        for (name, family) in self.families {
            page.push_str("# HELP ");
            page.push_str(&name);
            page.push(' ');
            escape(&mut page, &family.help, false);
            page.push_str("\n# TYPE ");
            page.push_str(&name);
            page.push(' ');
            page.push_str(family.kind);
            page.push('\n');
            page.push_str(&family.samples);
        }
        page
    }

    fn sample(&mut self, name: &str, kind: &'static str, help: &str, suffix: &str, labels: &[(&str, &str)], value: Number) {
        let name = full_name(name);
        let family = match self.families.entry(name.clone()) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => entry.insert(Family { help: help.into(), kind, samples: String::new() }),
        };
        debug_assert_eq!(family.kind, kind, "{name} has two types");
        let out = &mut family.samples;
        out.push_str(&name);
        out.push_str(suffix);
        for (at, (label, text)) in labels.iter().enumerate() {
            out.push(if at == 0 { '{' } else { ',' });
            out.push_str(label);
            out.push_str("=\"");
            escape(out, text, true);
            out.push('"');
        }
        if !labels.is_empty() {
            out.push('}');
        }
        // Writing to a `String` cannot fail.
        let _ = match value {
            Number::Int(n) => writeln!(out, " {n}"),
            Number::Float(x) if x.is_nan() => writeln!(out, " NaN"),
            Number::Float(x) if x.is_infinite() => writeln!(out, " {}Inf", if x > 0.0 { '+' } else { '-' }),
            Number::Float(x) => writeln!(out, " {x}"),
        };
    }
}

fn full_name(name: &str) -> String {
    let clean = name.chars().map(|c| if c.is_ascii_alphanumeric() || c == '_' { c } else { '_' });
    PREFIX.chars().chain(clean).collect()
}

fn escape(out: &mut String, text: &str, quotes: bool) {
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '"' if quotes => out.push_str("\\\""),
            _ => out.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;
    use crate::metrics::Metrics;

    /// Reads a page as strictly as the format is written; returns the samples by name and labels.
    fn parse(page: &str) -> BTreeMap<String, f64> {
        let mut samples = BTreeMap::new();
        let mut done = BTreeSet::new();
        let mut family: Option<(String, Option<String>)> = None;
        assert!(page.is_empty() || page.ends_with('\n'));
        for line in page.lines() {
            if let Some(rest) = line.strip_prefix("# HELP ") {
                let (name, help) = rest.split_once(' ').expect("HELP has a text");
                assert!(!help.is_empty() && is_name(name), "{line}");
                assert!(done.insert(name.to_owned()), "{name} appears twice");
                family = Some((name.to_owned(), None));
            } else if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').expect("TYPE has a type");
                let open = family.as_mut().expect("TYPE comes after HELP");
                assert_eq!(open.0, name);
                assert!(matches!(kind, "counter" | "gauge" | "summary"), "{line}");
                assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
                open.1 = Some(kind.to_owned());
            } else {
                let (name, kind) = family.as_ref().expect("a sample comes after HELP");
                let kind = kind.as_deref().expect("a sample comes after TYPE");
                let (series, value) = line.rsplit_once(' ').expect("a sample has a value");
                let base = series.split('{').next().expect("split gives one part at least");
                let suffix = base.strip_prefix(name.as_str()).expect("samples of a family stay together");
                assert!(suffix.is_empty() || kind == "summary" && matches!(suffix, "_sum" | "_count"), "{line}");
                if let Some(labels) = series.strip_prefix(base).and_then(|l| l.strip_prefix('{')) {
                    check_labels(labels);
                }
                assert!(samples.insert(series.to_owned(), value.parse().expect("a number")).is_none(), "{series} appears twice");
            }
        }
        samples
    }

    fn is_name(name: &str) -> bool {
        name.starts_with(PREFIX) && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    }

    fn check_labels(mut rest: &str) {
        loop {
            let (label, after) = rest.split_once("=\"").expect("a label has a value");
            assert!(label.chars().all(|c| c.is_ascii_alphanumeric() || c == '_'), "{label}");
            let mut chars = after.char_indices();
            let end = loop {
                match chars.next().expect("the value is closed") {
                    (_, '\\') => assert!(matches!(chars.next(), Some((_, '\\' | 'n' | '"')))),
                    (at, '"') => break at,
                    _ => {}
                }
            };
            match &after[end + 1..] {
                "}" => return,
                more => rest = more.strip_prefix(',').expect("labels are separated by commas"),
            }
        }
    }

    #[test]
    fn the_whole_page_of_a_node_is_valid() {
        let metrics = Metrics::new(2);
        metrics.workers[1].messages_handled.bump(3);
        metrics.drops.add(crate::proto::handoff::DropReason::MailboxFull, 4);
        metrics.network_turn.record(std::time::Duration::from_millis(2));
        let mut page = Prometheus::new();
        metrics.write(&mut page);
        let samples = parse(&page.finish());
        assert_eq!(samples["wingbeat_worker_messages_handled_total{worker=\"1\"}"], 3.0);
        assert_eq!(samples["wingbeat_messages_dropped_total{reason=\"mailbox_full\"}"], 4.0);
        assert_eq!(samples["wingbeat_network_turn_duration_seconds_count"], 1.0);
        assert!(samples["wingbeat_http_request_duration_seconds{quantile=\"0.5\"}"].is_nan());
    }

    #[test]
    fn hostile_labels_and_texts_are_escaped() {
        let mut page = Prometheus::new();
        page.gauge_with("odd-name", "back\\slash\nand line", &[("a", "quote\" \\ \n end"), ("b", "} {")], 1.5);
        page.gauge("plain", "Infinite.", f64::INFINITY);
        let text = page.finish();
        assert_eq!(text.lines().count(), 6);
        assert!(text.contains(r#"wingbeat_odd_name{a="quote\" \\ \n end",b="} {"} 1.5"#), "{text}");
        assert_eq!(parse(&text).len(), 2);
    }

    #[test]
    fn samples_of_one_name_stay_together() {
        let mut page = Prometheus::new();
        for worker in ["0", "1"] {
            page.counter_with("a", "A.", &[("worker", worker)], 1);
            page.counter_with("b_total", "B.", &[("worker", worker)], 2);
        }
        assert_eq!(parse(&page.finish()).len(), 4);
    }
}
