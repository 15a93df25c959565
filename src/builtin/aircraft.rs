//! `aircraft`: follows one aircraft through its flights, each applied once and in turn.
//!
//! A flight carries its number at that aircraft, from 1. Only the number that comes next is applied. A lower one was applied before and is
//! answered without effect, so a sender may repeat itself. A higher one is refused with the number that is awaited: a flight before it was
//! lost, reordered, or went down with the node that the aircraft lived on, and the sender has to feed again from there. `applied` in an
//! answer is the highest number that was applied so far, also where the flight is a repetition with a lower one.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{
    Refused,
    body::{Body, BodyError, wrong},
    ranges::Ranges,
};

/// Ranges of numbers kept of flights that came ahead of their turn.
pub const AHEAD_RANGES_MAX: usize = 1_024;
/// Longest text in a column, in bytes.
pub const TEXT_BYTES_MAX: usize = 64;

/// What an aircraft needs to know of a row of the flights file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flight {
    /// Number of the flight at its aircraft, from 1.
    pub seq: u64,
    /// Whether it took off; a cancelled one did not.
    pub departed: bool,
    /// Miles.
    pub distance: i64,
    /// Minutes late at the destination, where known.
    pub arr_delay: Option<i64>,
    /// Where it went.
    pub dest: String,
}

/// What can be asked of an aircraft.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Op {
    /// Applies a flight; the answer's `applied` is the highest number that was applied so far.
    Flight(Flight),
    /// The sums.
    Report,
}

/// Operations by name.
pub const OPS: &[&str] = &["flight", "report"];

/// The columns of the flights file, and the number of the flight.
const FIELDS: &[&str] = &[
    "year",
    "month",
    "day",
    "dep_time",
    "sched_dep_time",
    "dep_delay",
    "arr_time",
    "sched_arr_time",
    "arr_delay",
    "carrier",
    "flight",
    "tailnum",
    "origin",
    "dest",
    "air_time",
    "distance",
    "time_hour",
    "seq",
];

impl Op {
    /// From the name of an operation, the entity's key and the body; `None` when there is no such operation.
    pub fn parse(op: &str, key: &str, body: &Value) -> Option<Result<Self, BodyError>> {
        match op {
            "flight" => Some(parse_flight(key, body)),
            "report" => Some(Body::new(body, &[]).map(|_| Self::Report)),
            _ => None,
        }
    }
}

fn parse_flight(key: &str, body: &Value) -> Result<Op, BodyError> {
    let row = Body::new(body, FIELDS)?;
    let seq = row.integer("seq", 1, 1 << 53)? as u64;
    for column in ["year", "month", "day", "sched_dep_time", "sched_arr_time", "flight"] {
        number(&row, column)?;
    }
    for column in ["dep_delay", "arr_time", "air_time"] {
        number_or_missing(&row, column)?;
    }
    for column in ["carrier", "origin", "time_hour"] {
        row.text(column, TEXT_BYTES_MAX)?;
    }
    let tailnum = row.required("tailnum", || format!("{key:?}, the aircraft it is sent to"))?;
    if tailnum.as_str() != Some(key) {
        return Err(wrong("tailnum", tailnum, format!("{key:?}, the aircraft it is sent to")));
    }
    Ok(Op::Flight(Flight {
        seq,
        departed: number_or_missing(&row, "dep_time")?.is_some(),
        distance: number(&row, "distance")?,
        arr_delay: number_or_missing(&row, "arr_delay")?,
        dest: row.text("dest", TEXT_BYTES_MAX)?.into(),
    }))
}

/// A number of a column. The file is text, so the digits in quotes are as good as the number.
fn number(row: &Body<'_>, column: &'static str) -> Result<i64, BodyError> {
    const EXPECTED: &str = "a whole number";
    let value = row.required(column, || EXPECTED.into())?;
    whole(value).ok_or_else(|| wrong(column, value, EXPECTED))
}

/// A number of a column that may be missing: null or `NA`, as the file has it.
fn number_or_missing(row: &Body<'_>, column: &'static str) -> Result<Option<i64>, BodyError> {
    const EXPECTED: &str = "a whole number, \"NA\" or null";
    match row.required(column, || EXPECTED.into())? {
        Value::Null => Ok(None),
        Value::String(text) if text == "NA" => Ok(None),
        value => whole(value).map(Some).ok_or_else(|| wrong(column, value, EXPECTED)),
    }
}

/// Numbers that no sum of flights overflows with.
fn whole(value: &Value) -> Option<i64> {
    let number = match value {
        Value::Number(number) => number.as_i64()?,
        Value::String(text) => text.parse().ok()?,
        _ => return None,
    };
    (i64::from(i32::MIN)..=i64::from(i32::MAX)).contains(&number).then_some(number)
}

/// The state of an aircraft: its sums so far.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Aircraft {
    applied: u64,
    flights: u64,
    cancelled: u64,
    distance_miles: i64,
    arr_delay_min: i64,
    last_airport: Option<String>,
    duplicates: u64,
    /// Numbers that came ahead of their turn and were not applied since.
    ahead: Ranges,
}

impl Aircraft {
    /// Runs an operation; the result is a JSON object.
    pub fn apply(&mut self, op: Op) -> Result<Vec<u8>, Refused> {
        match op {
            Op::Flight(flight) => {
                self.fly(flight)?;
                Ok(format!(r#"{{"applied":{}}}"#, self.applied).into_bytes())
            }
            Op::Report => Ok(self.report().to_string().into_bytes()),
        }
    }

    /// Applies the flight if it is its turn; false if it was applied before.
    pub fn fly(&mut self, flight: Flight) -> Result<bool, Refused> {
        let awaited = self.applied + 1;
        if flight.seq < awaited {
            self.duplicates += 1;
            return Ok(false);
        }
        if flight.seq > awaited {
            if self.ahead.spans() < AHEAD_RANGES_MAX || !self.ahead.would_split(flight.seq) {
                self.ahead.insert(flight.seq);
            }
            return Err(Refused::Ahead { seq: flight.seq, awaited });
        }
        self.applied = flight.seq;
        self.ahead.remove_up_to(flight.seq);
        if flight.departed {
            self.flights += 1;
            self.distance_miles += flight.distance;
            self.last_airport = Some(flight.dest);
        } else {
            self.cancelled += 1;
        }
        self.arr_delay_min += flight.arr_delay.unwrap_or(0);
        Ok(true)
    }

    /// How far it has come: every flight up to this number was applied, none after it.
    pub fn applied(&self) -> u64 {
        self.applied
    }

    /// Flights that came ahead of their turn and are still missing.
    pub fn out_of_sequence(&self) -> u64 {
        self.ahead.len()
    }

    fn report(&self) -> Value {
        json!({
            "applied": self.applied,
            "flights": self.flights,
            "cancelled": self.cancelled,
            "distance_miles": self.distance_miles,
            "arr_delay_min": self.arr_delay_min,
            "last_airport": self.last_airport,
            "out_of_sequence": self.out_of_sequence(),
            "duplicates": self.duplicates,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(seq: u64) -> Value {
        json!({"year": 2013, "month": 1, "day": 1, "dep_time": 517, "sched_dep_time": 515, "dep_delay": 2, "arr_time": 830,
               "sched_arr_time": 819, "arr_delay": 11, "carrier": "UA", "flight": 1545, "tailnum": "N14228", "origin": "EWR",
               "dest": "IAH", "air_time": 227, "distance": 1400, "time_hour": "2013-01-01T10:00:00Z", "seq": seq})
    }

    fn parse(body: &Value) -> Result<Op, String> {
        Op::parse("flight", "N14228", body).unwrap().map_err(|error| error.to_string())
    }

    fn send(aircraft: &mut Aircraft, body: &Value) -> Result<Value, Refused> {
        aircraft.apply(parse(body).unwrap()).map(|bytes| serde_json::from_slice(&bytes).unwrap())
    }

    #[test]
    fn sums_grow_flight_by_flight() {
        let mut aircraft = Aircraft::default();
        assert_eq!(send(&mut aircraft, &row(1)), Ok(json!({"applied": 1})));
        let mut cancelled = row(2);
        for column in ["dep_time", "dep_delay", "arr_time", "arr_delay", "air_time"] {
            cancelled[column] = json!("NA");
        }
        cancelled["dest"] = json!("ORD");
        assert_eq!(send(&mut aircraft, &cancelled), Ok(json!({"applied": 2})));
        let mut diverted = row(3);
        diverted["arr_delay"] = Value::Null;
        diverted["dest"] = json!("MIA");
        assert_eq!(send(&mut aircraft, &diverted), Ok(json!({"applied": 3})));
        let report: Value = serde_json::from_slice(&aircraft.apply(Op::Report).unwrap()).unwrap();
        assert_eq!(
            report,
            json!({"applied": 3, "flights": 2, "cancelled": 1, "distance_miles": 2800, "arr_delay_min": 11, "last_airport": "MIA",
                   "out_of_sequence": 0, "duplicates": 0})
        );
    }

    #[test]
    fn a_repeated_flight_is_answered_without_effect() {
        let mut aircraft = Aircraft::default();
        send(&mut aircraft, &row(1)).unwrap();
        let before = aircraft.clone();
        assert_eq!(send(&mut aircraft, &row(1)), Ok(json!({"applied": 1})));
        assert_eq!(aircraft, Aircraft { duplicates: 1, ..before });
    }

    #[test]
    fn a_flight_ahead_of_its_turn_is_refused_with_the_number_awaited() {
        let mut aircraft = Aircraft::default();
        assert_eq!(send(&mut aircraft, &row(3)), Err(Refused::Ahead { seq: 3, awaited: 1 }));
        assert_eq!(send(&mut aircraft, &row(3)), Err(Refused::Ahead { seq: 3, awaited: 1 }));
        assert_eq!((aircraft.applied(), aircraft.out_of_sequence()), (0, 1));
        for seq in 1..=3 {
            send(&mut aircraft, &row(seq)).unwrap();
        }
        assert_eq!((aircraft.applied(), aircraft.out_of_sequence()), (3, 0));
    }

    #[test]
    fn what_is_kept_of_flights_ahead_is_bounded() {
        let mut aircraft = Aircraft::default();
        for hole in 1..=2 * AHEAD_RANGES_MAX as u64 {
            send(&mut aircraft, &row(hole * 2)).unwrap_err();
        }
        assert_eq!(aircraft.out_of_sequence(), AHEAD_RANGES_MAX as u64);
    }

    #[test]
    fn an_aircraft_goes_on_where_it_was_after_a_move() {
        let mut aircraft = Aircraft::default();
        send(&mut aircraft, &row(1)).unwrap();
        let moved: Aircraft = postcard::from_bytes(&postcard::to_stdvec(&aircraft).unwrap()).unwrap();
        assert_eq!(moved, aircraft);
    }

    #[test]
    fn numbers_may_be_the_text_of_the_file() {
        let mut text = row(1);
        text["distance"] = json!("1400");
        text["dep_time"] = json!("517");
        assert_eq!(parse(&text), parse(&row(1)));
    }

    #[test]
    fn a_wrong_column_is_refused_by_name_and_value() {
        let with = |column: &str, value: Value| {
            let mut body = row(1);
            body[column] = value;
            parse(&body).unwrap_err()
        };
        assert_eq!(with("distance", json!("far")), "`distance` is \"far\": expected a whole number");
        assert_eq!(with("distance", Value::Null), "`distance` is null: expected a whole number");
        assert_eq!(with("arr_delay", json!(1.5)), "`arr_delay` is 1.5: expected a whole number, \"NA\" or null");
        assert!(with("distance", json!(i64::MAX)).starts_with("`distance` is 9223372036854775807"));
        assert!(with("seq", json!(0)).starts_with("`seq` is 0"));
        assert!(with("tailnum", json!("N1")).contains("\"N14228\", the aircraft it is sent to"));
        assert!(with("hour", json!(5)).starts_with("`hour` is not a field"));
        let mut short = row(1);
        short.as_object_mut().unwrap().remove("air_time");
        assert!(parse(&short).unwrap_err().starts_with("`air_time` is missing"));
    }
}
