//! The sums that every aircraft must have, straight from the text of the file.
//!
//! Nothing here is shared with what feeds the cluster or with the entities: columns are found, numbers read and departures ordered by code
//! of its own, so that one mistake cannot make both sides agree.

use std::collections::BTreeMap;

use csv::StringRecord;

/// What the file says about one aircraft.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    /// Rows of the aircraft.
    pub applied: u64,
    /// Rows with a departure.
    pub flights: u64,
    /// Rows without.
    pub cancelled: u64,
    /// Miles of the departed rows.
    pub distance_miles: i64,
    /// Minutes late at the destination, where known.
    pub arr_delay_min: i64,
    /// Destination of the departed row that left last.
    pub last_airport: Option<String>,
    /// A file has none out of sequence.
    pub out_of_sequence: u64,
}

/// The sums of every aircraft of a file, by tail number.
///
/// The text was checked by the reader that feeds the cluster; if this one cannot read it, the two do not agree, and it says where.
pub fn sums(text: &[u8]) -> Result<BTreeMap<String, Sums>, String> {
    let mut rows = csv::Reader::from_reader(text);
    let header = rows.headers().map_err(|error| error.to_string())?.clone();
    let column = |name: &str| header.iter().position(|there| there.trim() == name).ok_or_else(|| format!("no column {name}"));
    let (tail, departed, planned, late) = (column("tailnum")?, column("dep_time")?, column("sched_dep_time")?, column("dep_delay")?);
    let (miles, arrival, to, hour) = (column("distance")?, column("arr_delay")?, column("dest")?, column("time_hour")?);

    let mut all: BTreeMap<String, Sums> = BTreeMap::new();
    let mut latest: BTreeMap<String, i64> = BTreeMap::new();
    let mut row = StringRecord::new();
    while rows.read_record(&mut row).map_err(|error| error.to_string())? {
        let (Some(name), here) = (row.get(tail).filter(|name| !matches!(*name, "" | "NA")), row.position().map_or(0, |at| at.line()))
        else {
            continue;
        };
        let whole = |index: usize| row[index].parse::<i64>().map_err(|error| format!("line {here}: {:?}: {error}", &row[index]));
        let known = |index: usize| if &row[index] == "NA" { Ok(None) } else { whole(index).map(Some) };
        let sums = all.entry(name.to_owned()).or_default();
        sums.applied += 1;
        sums.arr_delay_min += known(arrival)?.unwrap_or(0);
        if &row[departed] == "NA" {
            sums.cancelled += 1;
            continue;
        }
        sums.flights += 1;
        sums.distance_miles += whole(miles)?;
        // The hour of a place whose clock is half an hour off begins in the middle of one here.
        let left = minutes(&row[hour]).ok_or_else(|| format!("line {here}: {:?}", &row[hour]))?
            + whole(planned)? % 100
            + known(late)?.unwrap_or(0);
        // Of two that left in the same minute, the later row left last.
        let before = latest.entry(name.to_owned()).or_insert(i64::MIN);
        if left >= *before {
            *before = left;
            sums.last_airport = Some(row[to].to_owned());
        }
    }
    Ok(all)
}

/// Minutes from the beginning of the year 2000 to the one that a text names.
fn minutes(text: &str) -> Option<i64> {
    const BEFORE_MONTH: [i64; 12] = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334];
    let (date, clock) = text.split_once('T')?;
    let mut date = date.split('-').map(|part| part.parse::<i64>().ok());
    let (year, month, day) = (date.next()??, date.next()??, date.next()??);
    let mut clock = clock.split(':').map(|part| part.parse::<i64>().ok());
    let (hour, minute) = (clock.next()??, clock.next()??);
    let leap = |year: i64| year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let years: i64 = match year >= 2000 {
        true => (2000..year).map(|y| if leap(y) { 366 } else { 365 }).sum(),
        false => -(year..2000).map(|y| if leap(y) { 366 } else { 365 }).sum::<i64>(),
    };
    let month_days = BEFORE_MONTH.get(usize::try_from(month - 1).ok()?)? + i64::from(month > 2 && leap(year));
    Some(((years + month_days + day - 1) * 24 + hour) * 60 + minute)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::flights::Source;

    #[test]
    fn the_built_in_file_adds_up_to_the_totals_of_its_readme() {
        let all = sums(&Source::open(None).unwrap().text).unwrap();
        assert_eq!(all.len(), 2_631);
        let total = |of: fn(&Sums) -> i64| all.values().map(of).sum::<i64>();
        assert_eq!(total(|sums| sums.applied as i64), 12_208 - 24);
        assert_eq!(total(|sums| sums.flights as i64), 12_126);
        assert_eq!(total(|sums| sums.cancelled as i64), 82 - 24);
        assert_eq!(total(|sums| sums.distance_miles), 12_402_774);
        assert_eq!(total(|sums| sums.arr_delay_min), 17_098);
    }

    #[test]
    fn an_hour_may_begin_at_half_past() {
        let header = "tailnum,dep_time,sched_dep_time,dep_delay,distance,arr_delay,dest,time_hour";
        let later = "N1,500,500,0,1,0,LAX,2013-01-01T10:30:00Z";
        let earlier = "N1,520,520,0,1,0,JFK,2013-01-01T10:00:00Z";
        let text = format!("{header}\n{later}\n{earlier}\n");
        assert_eq!(sums(text.as_bytes()).unwrap()["N1"].last_airport.as_deref(), Some("LAX"));
    }

    #[test]
    fn minutes_follow_the_calendar() {
        let between = |from, to| minutes(to).unwrap() - minutes(from).unwrap();
        assert_eq!(between("2012-02-28T00:00:00Z", "2012-03-01T01:30:00Z"), 49 * 60 + 30);
        assert_eq!(between("2013-02-28T00:00:00Z", "2013-03-01T00:00:00Z"), 24 * 60);
        assert_eq!(between("1999-12-31T23:00:00Z", "2000-01-01T00:00:00Z"), 60);
        assert_eq!(minutes("2013-14-01T00:00:00Z"), None);
    }
}
