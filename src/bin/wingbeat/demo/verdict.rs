//! Compares what every aircraft reported with what the file says.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::reference::Sums;

/// What an aircraft reports, as far as it is compared.
#[derive(Deserialize)]
struct Report {
    applied: u64,
    flights: u64,
    cancelled: u64,
    distance_miles: i64,
    arr_delay_min: i64,
    last_airport: Option<String>,
    out_of_sequence: u64,
}

/// The outcome of the comparison.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Aircraft in the file.
    pub aircraft: usize,
    /// Those whose report equals the file.
    pub agree: usize,
    /// Flights applied, by all reports.
    pub applied: u64,
    /// One line for each that does not agree.
    pub differences: Vec<String>,
}

impl Verdict {
    /// Compares the reports, by tail number, with the sums of the file.
    pub fn new<'a>(expected: &BTreeMap<String, Sums>, reports: impl IntoIterator<Item = (&'a str, Option<&'a str>)>) -> Self {
        let mut verdict = Self { aircraft: expected.len(), ..Self::default() };
        let mut missing: BTreeMap<&str, &Sums> = expected.iter().map(|(tailnum, sums)| (tailnum.as_str(), sums)).collect();
        for (tailnum, report) in reports {
            let sums = missing.remove(tailnum);
            verdict.add(tailnum, report, sums);
        }
        verdict.differences.extend(missing.keys().map(|tailnum| format!("{tailnum}: is in the file and was not fed")));
        verdict.differences.sort();
        verdict
    }

    fn add(&mut self, tailnum: &str, report: Option<&str>, sums: Option<&Sums>) {
        let differences = match (report, sums) {
            (_, None) => vec!["is not in the file".to_owned()],
            (None, Some(sums)) => vec![format!("gave no report with all its {} flights", sums.applied)],
            (Some(report), Some(sums)) => match serde_json::from_str::<Report>(report) {
                Err(error) => vec![format!("its report cannot be read: {error}")],
                Ok(report) => {
                    self.applied += report.applied;
                    differences(&report, sums)
                }
            },
        };
        match differences.is_empty() {
            true => self.agree += 1,
            false => self.differences.push(format!("{tailnum}: {}", differences.join("; "))),
        }
    }

    /// Every aircraft of the file agrees, and there is none beside them.
    pub fn holds(&self) -> bool {
        self.agree == self.aircraft && self.differences.is_empty()
    }
}

fn differences(report: &Report, sums: &Sums) -> Vec<String> {
    let airport = |name: &Option<String>| name.clone().unwrap_or_else(|| "none".into());
    let pairs = [
        ("applied", report.applied.to_string(), sums.applied.to_string()),
        ("flights", report.flights.to_string(), sums.flights.to_string()),
        ("cancelled", report.cancelled.to_string(), sums.cancelled.to_string()),
        ("distance_miles", report.distance_miles.to_string(), sums.distance_miles.to_string()),
        ("arr_delay_min", report.arr_delay_min.to_string(), sums.arr_delay_min.to_string()),
        ("last_airport", airport(&report.last_airport), airport(&sums.last_airport)),
        ("out_of_sequence", report.out_of_sequence.to_string(), sums.out_of_sequence.to_string()),
    ];
    let wrong = pairs.into_iter().filter(|(_, says, file)| says != file);
    wrong.map(|(name, says, file)| format!("{name} is {says}, the file has {file}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: &str = r#"{"applied":2,"flights":1,"cancelled":1,"distance_miles":10,"arr_delay_min":-3,"last_airport":"IAH","out_of_sequence":0,"more":1}"#;

    fn expected() -> BTreeMap<String, Sums> {
        let sums = Sums {
            applied: 2,
            flights: 1,
            cancelled: 1,
            distance_miles: 10,
            arr_delay_min: -3,
            last_airport: Some("IAH".into()),
            out_of_sequence: 0,
        };
        BTreeMap::from([("N1".to_owned(), sums)])
    }

    #[test]
    fn equal_sums_agree() {
        let verdict = Verdict::new(&expected(), [("N1", Some(REPORT))]);
        assert!(verdict.holds());
        assert_eq!((verdict.aircraft, verdict.agree, verdict.applied), (1, 1, 2));
    }

    #[test]
    fn every_figure_that_differs_is_named() {
        for (figure, says) in [
            ("\"applied\":2", "applied is 3, the file has 2"),
            ("\"flights\":1", "flights is 3, the file has 1"),
            ("\"cancelled\":1", "cancelled is 3, the file has 1"),
            ("\"distance_miles\":10", "distance_miles is 3, the file has 10"),
            ("\"arr_delay_min\":-3", "arr_delay_min is 3, the file has -3"),
            ("\"out_of_sequence\":0", "out_of_sequence is 3, the file has 0"),
        ] {
            let (name, _) = figure.split_once(':').unwrap();
            let report = REPORT.replace(figure, &format!("{name}:3"));
            let verdict = Verdict::new(&expected(), [("N1", Some(report.as_str()))]);
            assert!(!verdict.holds());
            assert_eq!(verdict.differences, [format!("N1: {says}")]);
        }
        let report = REPORT.replace("\"IAH\"", "null");
        assert_eq!(Verdict::new(&expected(), [("N1", Some(report.as_str()))]).differences, ["N1: last_airport is none, the file has IAH"]);
    }

    #[test]
    fn an_aircraft_too_many_too_few_or_silent_does_not_agree() {
        let verdict = Verdict::new(&expected(), [("N1", Some(REPORT)), ("N2", Some(REPORT))]);
        assert!(!verdict.holds() && verdict.agree == 1);
        assert_eq!(Verdict::new(&expected(), []).differences, ["N1: is in the file and was not fed"]);
        assert_eq!(Verdict::new(&expected(), [("N1", None)]).differences, ["N1: gave no report with all its 2 flights"]);
    }
}
