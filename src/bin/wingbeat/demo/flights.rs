//! The flights file: read once, checked column by column, and put into the order of departure.

use std::{
    collections::HashMap,
    fmt,
    io::{self, Read},
    path::{Path, PathBuf},
};

use csv::ByteRecord;

use crate::fail::Failure;

/// Where a demo without `--data` takes its flights from: part of the program, so that it runs from anywhere.
const BUILT_IN: &[u8] = include_bytes!("../../../../data/flights-14d.csv.gz");
const BUILT_IN_NAME: &str = "flights-14d.csv.gz (built in)";
/// Most bytes that a file may unpack to; what lies beyond is refused instead of filling the memory.
const UNPACKED_BYTES_MAX: u64 = 1 << 30;
/// Between the fields of a row as it is kept. Control characters are refused in a field.
const BETWEEN: u8 = 0x1f;
/// Longest tail number: the longest key of an entity, in bytes.
const TAILNUM_BYTES_MAX: usize = 255;
const TEXT_BYTES_MAX: usize = 64;

/// What a column holds.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Kind {
    Number,
    NumberOrMissing,
    Clock,
    Text,
    Tailnum,
    Instant,
}

/// The columns that a file has to have, in the order in which rows are kept.
pub const COLUMNS: [(&str, Kind); 17] = [
    ("year", Kind::Number),
    ("month", Kind::Number),
    ("day", Kind::Number),
    ("dep_time", Kind::NumberOrMissing),
    ("sched_dep_time", Kind::Clock),
    ("dep_delay", Kind::NumberOrMissing),
    ("arr_time", Kind::NumberOrMissing),
    ("sched_arr_time", Kind::Number),
    ("arr_delay", Kind::NumberOrMissing),
    ("carrier", Kind::Text),
    ("flight", Kind::Number),
    ("tailnum", Kind::Tailnum),
    ("origin", Kind::Text),
    ("dest", Kind::Text),
    ("air_time", Kind::NumberOrMissing),
    ("distance", Kind::Number),
    ("time_hour", Kind::Instant),
];
const SCHED_DEP_TIME: usize = 4;
const DEP_DELAY: usize = 5;
const TAILNUM: usize = 11;
const TIME_HOUR: usize = 16;

/// What is wrong with a file, and where. Lines count from 1; the header is line 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataError {
    pub code: &'static str,
    pub file: String,
    pub line: Option<u64>,
    pub column: Option<Box<str>>,
    pub value: Option<Box<str>>,
    pub why: String,
}

impl fmt::Display for DataError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.file)?;
        if let Some(line) = self.line {
            write!(f, ", line {line}")?;
        }
        if let Some(column) = &self.column {
            write!(f, ", column `{column}`")?;
        }
        if let Some(value) = &self.value {
            write!(f, ", value {value:?}")?;
        }
        write!(f, ": {}", self.why)
    }
}

impl From<DataError> for Failure {
    fn from(error: DataError) -> Self {
        Failure::usage(
            error.code,
            error.to_string(),
            "correct the file, or leave `--data` out to replay the flights that come with the program",
        )
    }
}

/// The unpacked text of a flights file.
pub struct Source {
    pub name: String,
    pub text: Vec<u8>,
}

impl Source {
    /// The file, or what comes with the program.
    pub fn open(path: Option<&Path>) -> Result<Self, DataError> {
        match path {
            None => Self::unpack(BUILT_IN_NAME.into(), BUILT_IN),
            Some(path) => {
                let name = path.display().to_string();
                let packed = read_file(path).map_err(|error| whole(&name, "E-CLI-020", format!("cannot be read: {error}")))?;
                Self::unpack(name, &packed)
            }
        }
    }

    /// Unpacks what begins like gzip; anything else is taken as it is.
    pub fn unpack(name: String, packed: &[u8]) -> Result<Self, DataError> {
        const GZIP: [u8; 2] = [0x1f, 0x8b];
        let mut text = Vec::new();
        let read = match packed.starts_with(&GZIP) {
            true => flate2::read::MultiGzDecoder::new(packed).take(UNPACKED_BYTES_MAX + 1).read_to_end(&mut text),
            false => packed.take(UNPACKED_BYTES_MAX + 1).read_to_end(&mut text),
        };
        if let Err(error) = read {
            let line = 1 + text.iter().filter(|&&byte| byte == b'\n').count() as u64;
            return Err(DataError {
                line: Some(line),
                ..whole(&name, "E-CLI-021", format!("the compressed file is damaged from here on: {error}"))
            });
        }
        match text.len() as u64 > UNPACKED_BYTES_MAX {
            true => Err(whole(&name, "E-CLI-021", format!("more than {UNPACKED_BYTES_MAX} bytes, which is the most that is read"))),
            false => Ok(Self { name, text }),
        }
    }
}

fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    let path = PathBuf::from(path);
    let mut bytes = Vec::new();
    std::fs::File::open(path)?.take(UNPACKED_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn whole(name: &str, code: &'static str, why: String) -> DataError {
    DataError { code, file: name.into(), line: None, column: None, value: None, why }
}

/// One flight that belongs to an aircraft.
#[derive(Copy, Clone, Debug)]
pub struct Flight {
    /// Where its row begins in the kept text.
    at: u32,
    /// Index of the aircraft.
    pub aircraft: u32,
    /// Departure, or for a cancelled flight the scheduled one; minutes since 1970.
    pub departs: i64,
}

/// An aircraft and where its flights are.
#[derive(Clone, Debug)]
pub struct Aircraft {
    pub tailnum: String,
    first: u32,
    len: u32,
}

impl Aircraft {
    /// How many flights it has.
    pub fn flights(&self) -> u32 {
        self.len
    }
}

/// All flights of a file, in order of departure and by aircraft.
pub struct Flights {
    text: Vec<u8>,
    /// In order of departure.
    flights: Vec<Flight>,
    aircraft: Vec<Aircraft>,
    /// Indices into `flights`, aircraft by aircraft, each in order of departure.
    by_aircraft: Vec<u32>,
    unattributed: u64,
}

impl Flights {
    /// Checks and orders a file. The first thing wrong ends it.
    pub fn read(source: &Source) -> Result<Self, DataError> {
        let mut reader = csv::ReaderBuilder::new().flexible(true).from_reader(source.text.as_slice());
        let header = reader.byte_headers().map_err(|error| whole(&source.name, "E-CLI-022", error.to_string()))?;
        let places = places(&source.name, header)?;
        let mut loading = Loading { name: &source.name, text: Vec::with_capacity(source.text.len()), ..Loading::default() };
        let mut row = ByteRecord::new();
        while reader.read_byte_record(&mut row).map_err(|error| whole(&source.name, "E-CLI-023", error.to_string()))? {
            let begins = row.position().map_or(0, csv::Position::byte) as usize;
            loading.add(&row, &places).map_err(|wrong| DataError { line: Some(line_at(&source.text, begins)), ..wrong })?;
        }
        loading.finish()
    }

    /// How many flights belong to an aircraft.
    pub fn len(&self) -> usize {
        self.flights.len()
    }

    /// Rows without a tail number.
    pub fn unattributed(&self) -> u64 {
        self.unattributed
    }

    /// Flights in order of departure.
    pub fn in_order(&self) -> &[Flight] {
        &self.flights
    }

    /// The aircraft, in the order of their first row.
    pub fn aircraft(&self) -> &[Aircraft] {
        &self.aircraft
    }

    /// Appends the row of flight `seq` (from 1) of an aircraft as the members of a JSON object, without the braces.
    pub fn write_members(&self, aircraft: u32, seq: u32, out: &mut Vec<u8>) {
        let first = self.aircraft[aircraft as usize].first;
        let flight = self.flights[self.by_aircraft[(first + seq - 1) as usize] as usize];
        let mut rest = &self.text[flight.at as usize..];
        for (index, (name, kind)) in COLUMNS.iter().enumerate() {
            let end = rest.iter().position(|&byte| byte == BETWEEN).expect("every kept field ends with the separator");
            let (field, after) = rest.split_at(end);
            rest = &after[1..];
            if index > 0 {
                out.push(b',');
            }
            out.push(b'"');
            out.extend_from_slice(name.as_bytes());
            out.extend_from_slice(b"\":");
            match kind {
                Kind::NumberOrMissing if field == b"NA" => out.extend_from_slice(b"null"),
                Kind::Number | Kind::NumberOrMissing | Kind::Clock => out.extend_from_slice(field),
                Kind::Text | Kind::Tailnum | Kind::Instant => write_text(field, out),
            }
        }
    }
}

/// Text as JSON. Control characters were refused when the file was read.
pub fn write_text(text: &[u8], out: &mut Vec<u8>) {
    out.push(b'"');
    for &byte in text {
        if matches!(byte, b'"' | b'\\') {
            out.push(b'\\');
        }
        out.push(byte);
    }
    out.push(b'"');
}

/// Where each of [`COLUMNS`] is in the file.
fn places(name: &str, header: &ByteRecord) -> Result<[usize; COLUMNS.len()], DataError> {
    let wrong = |column: &str, why: String| DataError { line: Some(1), column: Some(column.into()), ..whole(name, "E-CLI-022", why) };
    let found: Vec<String> = header.iter().map(|field| String::from_utf8_lossy(field.trim_ascii()).chars().take(64).collect()).collect();
    if found.iter().all(String::is_empty) {
        return Err(DataError {
            line: Some(1),
            ..whole(name, "E-CLI-022", "is empty: no header with the columns of a flights file".into())
        });
    }
    let mut places = [0; COLUMNS.len()];
    for (place, (column, _)) in places.iter_mut().zip(COLUMNS) {
        let mut at = found.iter().enumerate().filter(|(_, there)| *there == column).map(|(index, _)| index);
        *place = at.next().ok_or_else(|| wrong(column, "is missing in the header".into()))?;
        if at.next().is_some() {
            return Err(wrong(column, "is there twice".into()));
        }
    }
    match found.iter().find(|there| COLUMNS.iter().all(|(column, _)| column != there)) {
        Some(other) => Err(wrong(other, format!("is not a column of a flights file, which are {}", COLUMNS.map(|(c, _)| c).join(",")))),
        None => Ok(places),
    }
}

/// The line of the record that begins there, as people count them. Ends of lines that stand before it, of the one before or of empty lines, belong to it for the
/// reader.
fn line_at(text: &[u8], begins: usize) -> u64 {
    let ends = text[begins..].iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
    let before = &text[..begins + ends];
    let lines = before.iter().enumerate().filter(|(at, byte)| **byte == b'\n' || (**byte == b'\r' && before.get(at + 1) != Some(&b'\n')));
    1 + lines.count() as u64
}

#[derive(Default)]
struct Loading<'a> {
    name: &'a str,
    text: Vec<u8>,
    flights: Vec<Flight>,
    aircraft: Vec<Aircraft>,
    known: HashMap<String, u32>,
    unattributed: u64,
}

impl Loading<'_> {
    fn add(&mut self, row: &ByteRecord, places: &[usize; COLUMNS.len()]) -> Result<(), DataError> {
        if row.len() != COLUMNS.len() {
            let why = format!("{} fields, expected {}: the line is damaged or cut off", row.len(), COLUMNS.len());
            return Err(whole(self.name, "E-CLI-023", why));
        }
        let at = self.text.len() as u32;
        for ((column, kind), &place) in COLUMNS.iter().zip(places) {
            let field = &row[place];
            check(*kind, field).map_err(|why| self.wrong(column, field, why))?;
            self.text.extend_from_slice(field);
            self.text.push(BETWEEN);
        }
        let tailnum = &row[places[TAILNUM]];
        if tailnum.is_empty() || tailnum == b"NA" {
            self.unattributed += 1;
            self.text.truncate(at as usize);
            return Ok(());
        }
        let hour = instant(&row[places[TIME_HOUR]]).expect("the column was checked above");
        let scheduled = number(&row[places[SCHED_DEP_TIME]]).expect("the column was checked above");
        let delay = number(&row[places[DEP_DELAY]]).unwrap_or(0);
        let tailnum = std::str::from_utf8(tailnum).expect("the column was checked above");
        let aircraft = self.aircraft_of(tailnum);
        self.aircraft[aircraft as usize].len += 1;
        self.flights.push(Flight { at, aircraft, departs: hour + scheduled % 100 + delay });
        Ok(())
    }

    fn aircraft_of(&mut self, tailnum: &str) -> u32 {
        if let Some(&known) = self.known.get(tailnum) {
            return known;
        }
        let index = self.aircraft.len() as u32;
        self.aircraft.push(Aircraft { tailnum: tailnum.into(), first: 0, len: 0 });
        self.known.insert(tailnum.into(), index);
        index
    }

    fn wrong(&self, column: &str, field: &[u8], why: String) -> DataError {
        let value: String = String::from_utf8_lossy(field).chars().take(64).collect();
        DataError { column: Some(column.into()), value: Some(value.into()), ..whole(self.name, "E-CLI-023", why) }
    }

    fn finish(mut self) -> Result<Flights, DataError> {
        if self.flights.is_empty() {
            return Err(whole(self.name, "E-CLI-024", "no flight with a tail number in it: nothing to replay".into()));
        }
        // Stable: flights that depart in the same minute keep the order of the file.
        self.flights.sort_by_key(|flight| flight.departs);
        let mut next = 0;
        for aircraft in &mut self.aircraft {
            aircraft.first = next;
            next += aircraft.len;
        }
        let mut fill: Vec<u32> = self.aircraft.iter().map(|aircraft| aircraft.first).collect();
        let mut by_aircraft = vec![0; self.flights.len()];
        for (index, flight) in self.flights.iter().enumerate() {
            let slot = &mut fill[flight.aircraft as usize];
            by_aircraft[*slot as usize] = index as u32;
            *slot += 1;
        }
        self.text.shrink_to_fit();
        Ok(Flights { text: self.text, flights: self.flights, aircraft: self.aircraft, by_aircraft, unattributed: self.unattributed })
    }
}

fn check(kind: Kind, field: &[u8]) -> Result<(), String> {
    let text = |max: usize| match std::str::from_utf8(field) {
        Err(_) => Err("is not UTF-8".to_owned()),
        Ok(text) if text.chars().any(char::is_control) => Err("holds a control character".to_owned()),
        Ok(text) if text.len() > max => Err(format!("{} bytes, at most {max}", text.len())),
        Ok(_) => Ok(()),
    };
    let is_number = || number(field).map(|_| ()).ok_or_else(|| "is not a whole number".to_owned());
    match kind {
        Kind::Number => is_number(),
        Kind::NumberOrMissing if field == b"NA" => Ok(()),
        Kind::NumberOrMissing => number(field).map(|_| ()).ok_or_else(|| "is neither a whole number nor NA".to_owned()),
        Kind::Clock => {
            is_number()?;
            match number(field) {
                Some(clock) if (0..=2400).contains(&clock) && clock % 100 < 60 => Ok(()),
                _ => Err("is not a time of day as HHMM".into()),
            }
        }
        Kind::Text if field.is_empty() => Err("is empty".into()),
        Kind::Text => text(TEXT_BYTES_MAX),
        Kind::Tailnum => text(TAILNUM_BYTES_MAX),
        Kind::Instant => instant(field).map(|_| ()).ok_or_else(|| "is not an instant as 2013-01-01T10:00:00Z".to_owned()),
    }
}

/// A number written so that it can be copied into JSON: no plus, no leading zeros.
fn number(field: &[u8]) -> Option<i64> {
    let digits = field.strip_prefix(b"-").unwrap_or(field);
    let plain = digits == b"0" && field.len() == 1 || digits.first().is_some_and(|first| (b'1'..=b'9').contains(first));
    let value: i32 = plain.then(|| std::str::from_utf8(field).ok()?.parse().ok())??;
    Some(value.into())
}

/// `YYYY-MM-DDTHH:MM:SSZ` as minutes since 1970; seconds have to be there and are not counted.
fn instant(field: &[u8]) -> Option<i64> {
    const SHAPE: &[u8; 20] = b"0000-00-00T00:00:00Z";
    let fits = field.len() == SHAPE.len()
        && field.iter().zip(SHAPE).all(|(is, shape)| if *shape == b'0' { is.is_ascii_digit() } else { is == shape });
    let part = |from: usize, to: usize| field[from..to].iter().fold(0i64, |sum, digit| sum * 10 + i64::from(digit - b'0'));
    let (year, month, day) = fits.then(|| (part(0, 4), part(5, 7), part(8, 10)))?;
    let (hour, minute) = (part(11, 13), part(14, 16));
    let valid = (1..=12).contains(&month) && (1..=31).contains(&day) && hour < 24 && minute < 60;
    valid.then(|| (days_since_1970(year, month, day) * 24 + hour) * 60 + minute)
}

/// Days of the civil calendar, counted in years that begin in March, so that the leap day is the last of a year.
fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

/// Day and time of day of a departure, for people.
pub fn shown(minutes: i64) -> String {
    let (days, minute) = (minutes.div_euclid(24 * 60), minutes.rem_euclid(24 * 60));
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = (month_from_march + 2) % 12 + 1;
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    format!("{year}-{month:02}-{day:02} {:02}:{:02}", minute / 60, minute % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "year,month,day,dep_time,sched_dep_time,dep_delay,arr_time,sched_arr_time,arr_delay,carrier,flight,tailnum,origin,dest,air_time,distance,time_hour";
    const ROW: &str = "2013,1,1,517,515,2,830,819,11,UA,1545,N14228,EWR,IAH,227,1400,2013-01-01T10:00:00Z";

    fn read(text: &str) -> Result<Flights, DataError> {
        Flights::read(&Source::unpack("f.csv".into(), text.as_bytes())?)
    }

    fn with(column: usize, value: &str) -> DataError {
        let mut fields: Vec<&str> = ROW.split(',').collect();
        fields[column] = value;
        read(&format!("{HEADER}\n{ROW}\n{}\n", fields.join(","))).err().unwrap()
    }

    #[test]
    fn the_built_in_file_has_the_totals_that_its_readme_states() {
        let flights = Flights::read(&Source::open(None).unwrap()).unwrap();
        assert_eq!((flights.len(), flights.aircraft().len(), flights.unattributed()), (12_208 - 24, 2_631, 24));
        assert!(flights.in_order().is_sorted_by_key(|flight| flight.departs));
        let most = flights.aircraft().iter().max_by_key(|aircraft| aircraft.flights()).unwrap();
        assert_eq!((most.tailnum.as_str(), most.flights()), ("N730MQ", 34));
    }

    #[test]
    fn a_row_becomes_members_of_a_json_object() {
        let flights = read(&format!("{HEADER}\n{ROW}\n")).unwrap();
        let mut out = vec![b'{'];
        flights.write_members(0, 1, &mut out);
        out.push(b'}');
        let row: serde_json::Value = serde_json::from_slice(&out).unwrap();
        assert_eq!(row["dep_time"], 517);
        assert_eq!(row["tailnum"], "N14228");
        assert_eq!(row.as_object().unwrap().len(), 17);
    }

    #[test]
    fn order_is_by_departure_and_a_delay_counts() {
        let late = ROW.replace(",2,830", ",600,830").replace("1545", "1");
        let cancelled = ROW.replace("517,515,2", "NA,516,NA").replace("1545", "2");
        let flights = read(&format!("{HEADER}\n{late}\n{cancelled}\n{ROW}\n")).unwrap();
        let departs: Vec<i64> = flights.in_order().iter().map(|flight| flight.departs - flights.in_order()[0].departs).collect();
        assert_eq!(departs, [0, 1, 599]);
        let mut first = Vec::new();
        flights.write_members(0, 1, &mut first);
        assert!(String::from_utf8(first).unwrap().contains("\"flight\":2"));
    }

    #[test]
    fn columns_may_stand_in_another_order() {
        let turn = |line: &str| line.split(',').rev().collect::<Vec<_>>().join(",");
        let flights = read(&format!("{}\n{}\n", turn(HEADER), turn(ROW))).unwrap();
        assert_eq!(flights.aircraft()[0].tailnum, "N14228");
    }

    #[test]
    fn a_wrong_header_names_the_column() {
        let error = read(&format!("{}\n{ROW}\n", HEADER.replace("distance", "miles"))).err().unwrap();
        assert_eq!((error.line, error.column.as_deref(), error.code), (Some(1), Some("distance"), "E-CLI-022"));
        let error = read(&format!("{HEADER},hour\n")).err().unwrap();
        assert_eq!(error.column.as_deref(), Some("hour"));
        assert!(read("").err().unwrap().why.contains("is empty"));
    }

    #[test]
    fn a_bad_value_names_line_column_and_value() {
        assert_eq!(with(15, "far").to_string(), "f.csv, line 3, column `distance`, value \"far\": is not a whole number");
        assert_eq!(with(4, "560").why, "is not a time of day as HHMM");
        assert_eq!(with(8, "1e3").why, "is neither a whole number nor NA");
        assert_eq!(with(16, "2013-01-01 10:00").column.as_deref(), Some("time_hour"));
        assert_eq!(with(15, "99999999999").value.as_deref(), Some("99999999999"));
        assert_eq!(with(13, "").why, "is empty");
    }

    #[test]
    fn a_line_that_is_cut_off_is_named() {
        let error = read(&format!("{HEADER}\n{ROW}\n2013,1,1\n")).err().unwrap();
        assert_eq!((error.line, error.code), (Some(3), "E-CLI-023"));
    }

    #[test]
    fn a_damaged_archive_is_named_with_the_line_reached() {
        let error = Source::unpack("f.gz".into(), &BUILT_IN[..BUILT_IN.len() / 2]).err().unwrap();
        assert!(error.line.unwrap() > 100 && error.code == "E-CLI-021", "{error}");
        let error = Source::open(Some(Path::new("no/such/file.csv"))).err().unwrap();
        assert!(error.to_string().starts_with("no/such/file.csv: cannot be read"), "{error}");
    }

    #[test]
    fn instants_are_the_calendar_s() {
        assert_eq!(instant(b"1970-01-02T00:01:00Z"), Some(24 * 60 + 1));
        assert_eq!(instant(b"2013-01-01T10:00:00Z").map(shown).as_deref(), Some("2013-01-01 10:00"));
        assert_eq!(instant(b"2024-02-29T23:59:00Z").map(shown).as_deref(), Some("2024-02-29 23:59"));
        assert_eq!(instant(b"2013-13-01T10:00:00Z"), None);
    }
}
