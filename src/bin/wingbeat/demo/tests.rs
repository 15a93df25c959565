//! The driver against a node that is only HTTP and aircraft, with faults on demand.

use std::{
    collections::HashMap,
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    ops::ControlFlow,
    sync::Arc,
    thread,
    time::Duration,
};

use parking_lot::Mutex;
use serde_json::{Value, json};
use wingbeat::builtin::{Operation, aircraft::Aircraft};

use super::{
    drive::{End, Plan, Watch, drive},
    feeder::Feeder,
    flights::{Flights, Source},
    reference,
    verdict::Verdict,
};
use crate::fail::Failure;

/// What the fake node does wrong.
#[derive(Clone, Default)]
struct Faults {
    /// After so many flights every second aircraft loses its state and is away for as many lines as given after it.
    crash: Option<(u64, u64)>,
    /// Every so many flights one is applied, but the answer says that it is not known whether it was.
    lost_answers: Option<u64>,
    /// Every so many flights one is answered as applied, and is not.
    lies: Option<u64>,
    /// Every so many requests the connection breaks after the work was done.
    breaks: Option<u64>,
}

#[derive(Default)]
struct Node {
    faults: Faults,
    aircraft: HashMap<String, Aircraft>,
    flights: u64,
    requests: u64,
    away: u64,
}

impl Node {
    fn start(faults: Faults) -> (SocketAddr, Arc<Mutex<Self>>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let node = Arc::new(Mutex::new(Self { faults, ..Self::default() }));
        let shared = Arc::clone(&node);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let node = Arc::clone(&shared);
                thread::spawn(move || serve(stream, &node));
            }
        });
        (addr, node)
    }

    fn line(&mut self, line: &str) -> Value {
        let line: Value = serde_json::from_str(line).unwrap();
        let part = |name: &str| line[name].as_str().unwrap();
        let key = part("key");
        let Operation::Aircraft(op) = Operation::parse(part("type"), key, part("op"), &line["body"]).unwrap() else { panic!("{line}") };
        let late = json!({"status": 504, "code": "E-ASK-003", "detail": "no answer in time"});
        let in_lost_half = |key: &str| key.bytes().map(u64::from).sum::<u64>() % 2 == 0;
        if self.away > 0 && in_lost_half(key) {
            self.away -= 1;
            return late;
        }
        let is_flight = part("op") == "flight";
        self.flights += u64::from(is_flight);
        if let Some((_, away)) = self.faults.crash.take_if(|&mut (at, _)| self.flights >= at) {
            self.aircraft.retain(|key, _| !in_lost_half(key));
            self.away = away;
        }
        let every = |n: Option<u64>| is_flight && n.is_some_and(|n| self.flights.is_multiple_of(n));
        if every(self.faults.lies) {
            return json!({"result": {"applied": line["body"]["seq"]}});
        }
        let lost = every(self.faults.lost_answers);
        match self.aircraft.entry(key.into()).or_default().apply(op) {
            _ if lost => late,
            Ok(result) => json!({"result": serde_json::from_slice::<Value>(&result).unwrap(), "served_by": "fake:1:00", "epoch": 1}),
            Err(refused) => json!({"status": 409, "code": "E-ASK-008", "detail": refused.to_string()}),
        }
    }
}

fn serve(mut stream: TcpStream, node: &Mutex<Node>) {
    let mut input = Vec::new();
    loop {
        let head = loop {
            if let Some(end) = input.windows(4).position(|four| four == b"\r\n\r\n") {
                break end + 4;
            }
            if !more(&mut stream, &mut input) {
                return;
            }
        };
        let text = String::from_utf8_lossy(&input[..head]).to_lowercase();
        let length = text.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap().trim().parse::<usize>().unwrap();
        while input.len() < head + length {
            if !more(&mut stream, &mut input) {
                return;
            }
        }
        let body = String::from_utf8(input[head..head + length].to_vec()).unwrap();
        input.drain(..head + length);
        let mut node = node.lock();
        let answers: String = body.lines().map(|line| format!("{}\n", node.line(line))).collect();
        node.requests += 1;
        if node.faults.breaks.is_some_and(|n| node.requests.is_multiple_of(n)) {
            return;
        }
        drop(node);
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", answers.len());
        if stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(answers.as_bytes())).is_err() {
            return;
        }
    }
}

fn more(stream: &mut TcpStream, input: &mut Vec<u8>) -> bool {
    let mut part = [0; 16 * 1024];
    match stream.read(&mut part) {
        Ok(read) if read > 0 => {
            input.extend_from_slice(&part[..read]);
            true
        }
        _ => false,
    }
}

struct Quiet;

impl Watch for Quiet {
    fn may_release(&self, total: usize) -> usize {
        total
    }

    fn tick(&mut self, _: &Feeder, _: i64, _: Duration) -> Result<ControlFlow<()>, Failure> {
        Ok(ControlFlow::Continue(()))
    }

    fn may_verify(&mut self, _: Duration) -> bool {
        true
    }
}

fn replay(faults: Faults) -> (Feeder, End, Verdict) {
    let source = Source::open(None).unwrap();
    let flights = Arc::new(Flights::read(&source).unwrap());
    let (addr, _node) = Node::start(faults);
    let plan = Plan { lines_max: 200, patience: Duration::from_secs(20), ..Plan::new(addr) };
    let (feeder, end) = drive(&flights, &plan, &mut Quiet).unwrap();
    let expected = reference::sums(&source.text).unwrap();
    let reports = flights.aircraft().iter().enumerate().map(|(index, aircraft)| (aircraft.tailnum.as_str(), feeder.report(index)));
    let verdict = Verdict::new(&expected, reports);
    (feeder, end, verdict)
}

#[test]
fn every_aircraft_agrees_when_nothing_fails() {
    let (feeder, end, verdict) = replay(Faults::default());
    assert_eq!((end, verdict.agree, verdict.applied), (End::Done, 2_631, 12_184));
    assert!(verdict.holds());
    assert_eq!((feeder.tally().resent, feeder.tally().failed_lines, feeder.tally().unavailable_max), (0, 0, Duration::ZERO));
}

#[test]
fn aircraft_that_lost_their_state_are_fed_again_until_they_agree() {
    let (feeder, end, verdict) = replay(Faults { crash: Some((6_000, 3_000)), ..Faults::default() });
    assert_eq!((end, &verdict.differences[..]), (End::Done, &[][..]));
    let tally = feeder.tally();
    assert!(tally.resent > 1_000 && tally.started_anew > 500 && tally.failed_lines >= 3_000, "{tally:?}");
    assert!(tally.unavailable_max > Duration::ZERO);
}

#[test]
fn a_crash_after_the_last_flight_is_found_by_the_reports() {
    let (feeder, end, verdict) = replay(Faults { crash: Some((12_184, 0)), ..Faults::default() });
    assert_eq!((end, &verdict.differences[..]), (End::Done, &[][..]));
    assert!(feeder.tally().started_anew > 500);
}

#[test]
fn answers_that_get_lost_and_connections_that_break_change_no_sum() {
    let (feeder, end, verdict) = replay(Faults { lost_answers: Some(100), breaks: Some(7), ..Faults::default() });
    assert_eq!((end, &verdict.differences[..]), (End::Done, &[][..]));
    assert!(feeder.tally().failed_lines > 100);
}

#[test]
fn a_flight_that_was_acknowledged_and_not_applied_is_found_and_fed_again() {
    let (feeder, end, verdict) = replay(Faults { lies: Some(1_000), ..Faults::default() });
    assert_eq!((end, &verdict.differences[..]), (End::Done, &[][..]));
    assert!(feeder.tally().resent > 0);
}

#[test]
fn a_node_that_is_no_node_ends_the_run_with_what_it_said() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let mut stream: TcpStream = stream;
            let _ = stream.read(&mut [0; 1024]);
            let _ = stream.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\nlost");
        }
    });
    let flights = Arc::new(Flights::read(&Source::open(None).unwrap()).unwrap());
    let failure = drive(&flights, &Plan { lines_max: 1, ..Plan::new(addr) }, &mut Quiet).err().unwrap();
    assert!(failure.what.contains("404") && failure.what.contains("lost"), "{failure}");
}

#[test]
fn a_silent_node_is_given_up_when_patience_ends() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    drop(listener);
    let flights = Arc::new(Flights::read(&Source::open(None).unwrap()).unwrap());
    let plan = Plan { patience: Duration::from_millis(300), ..Plan::new(addr) };
    let (feeder, end) = drive(&flights, &plan, &mut Quiet).unwrap();
    assert_eq!(end, End::Stuck);
    assert!(feeder.tally().last_failure.is_some());
}
