//! What `wingbeat demo` says of a flights file that is missing, damaged or wrong: file, line, column, value, and exit code 1.
#![cfg(feature = "cli")]
#![allow(missing_docs, clippy::unwrap_used)]

use std::{
    fs,
    path::PathBuf,
    process::{Command, Output},
};

const HEADER: &str = "year,month,day,dep_time,sched_dep_time,dep_delay,arr_time,sched_arr_time,arr_delay,carrier,flight,tailnum,origin,dest,air_time,distance,time_hour";
const ROW: &str = "2013,1,1,517,515,2,830,819,11,UA,1545,N14228,EWR,IAH,227,1400,2013-01-01T10:00:00Z";

/// A file that is gone when the test is over.
struct Temp(PathBuf);

impl Temp {
    fn new(name: &str, bytes: &[u8]) -> Self {
        let path = std::env::temp_dir().join(format!("wingbeat-test-{}-{name}", std::process::id()));
        fs::write(&path, bytes).unwrap();
        Self(path)
    }
}

impl Drop for Temp {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn demo(data: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_wingbeat")).args(["demo", "--max", "--json", "--data", data]).output().unwrap()
}

/// Standard error of a demo that refused its file.
fn refused(name: &str, bytes: &[u8]) -> String {
    let file = Temp::new(name, bytes);
    let path = file.0.display().to_string();
    let output = demo(&path);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(output.stdout.is_empty(), "nothing but the result goes to standard output");
    assert!(said.contains(&path), "the file is named: {said}");
    assert!(said.contains("next: "), "the next step is named: {said}");
    said
}

#[test]
fn a_missing_file_is_named() {
    let output = demo("/no/such/flights.csv");
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(said.contains("E-CLI-020") && said.contains("/no/such/flights.csv"), "{said}");
}

#[test]
fn a_bad_number_names_line_column_and_value() {
    let text = format!("{HEADER}\n{ROW}\n{}\n", ROW.replace(",1400,", ",14oo,"));
    let said = refused("number.csv", text.as_bytes());
    assert!(said.contains("E-CLI-023") && said.contains("line 3, column `distance`, value \"14oo\""), "{said}");
}

#[test]
fn lines_are_those_of_an_editor_however_they_end() {
    let bad = ROW.replace(",1400,", ",14oo,");
    for (name, text, line) in [
        ("crlf.csv", format!("{HEADER}\r\n{ROW}\r\n{bad}\r\n"), 3),
        ("first.csv", format!("{HEADER}\r\n{bad}\r\n"), 2),
        ("empty.csv", format!("{HEADER}\n\n{ROW}\n\n\n{bad}\n"), 6),
        ("empty-crlf.csv", format!("{HEADER}\r\n{ROW}\r\n\r\n{bad}"), 4),
    ] {
        let said = refused(name, text.as_bytes());
        assert!(said.contains(&format!("line {line}, column `distance`")), "{name}: {said}");
    }
}

#[test]
fn a_wrong_column_is_named() {
    let said = refused("column.csv", format!("{}\n{ROW}\n", HEADER.replace("tailnum", "tail")).as_bytes());
    assert!(said.contains("E-CLI-022") && said.contains("line 1, column `tailnum`"), "{said}");
}

#[test]
fn a_cut_off_line_is_named() {
    let said = refused("cut.csv", format!("{HEADER}\n{ROW}\n{}", &ROW[..30]).as_bytes());
    assert!(said.contains("line 3"), "{said}");
}

#[test]
fn an_archive_is_known_by_its_content_and_its_damage_is_named() {
    let packed = include_bytes!("../data/flights-14d.csv.gz");
    let said = refused("damaged.csv", &packed[..packed.len() / 3]);
    assert!(said.contains("E-CLI-021") && said.contains("line "), "{said}");
}

#[test]
fn a_file_without_flights_is_refused() {
    let said = refused("empty.csv", format!("{HEADER}\n{}\n", ROW.replace("N14228", "NA")).as_bytes());
    assert!(said.contains("E-CLI-024"), "{said}");
}

#[test]
fn wrong_usage_ends_with_one() {
    for args in [&["demo", "--nodes", "1"][..], &["demo", "--kill-at", "101%"], &["demo", "--kill-at", "half"], &["fly"], &[]] {
        let output = Command::new(env!("CARGO_BIN_EXE_wingbeat")).args(args).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        assert!(!output.stderr.is_empty(), "{args:?}");
    }
}

#[test]
fn a_node_that_does_not_answer_ends_with_two() {
    let output = Command::new(env!("CARGO_BIN_EXE_wingbeat")).args(["status", "--at", "127.0.0.1:1", "--json"]).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("E-CLI-003") && said.contains("127.0.0.1:1"), "{said}");
}
