//! The floor: no actors, only crossbeam's bounded channel to a thread that looks the key up in a map. What any library on such a channel adds to
//! this is its own.
//!
//! Tuned: `foldhash` instead of the standard hash; 4,096 messages in the channel for telling, which is more than a thread gets behind; one for
//! asking. There is no other process and nothing that could be started.

use std::{
    collections::HashMap,
    process::ExitCode,
    time::{Duration, Instant},
};

use crossbeam_channel::bounded;
use peer_common::{ACTORS, Args, Error, Group, Payload, Printer, histogram, version};

type Table = HashMap<u64, u64, foldhash::fast::RandomState>;

fn table() -> Table {
    (0..ACTORS).map(|key| (key, 0)).collect()
}

/// Messages sent within `window` and the time until the last was handled.
fn tell(window: Duration) -> Result<(u64, Duration), Error> {
    let (tx, rx) = bounded::<(u64, Payload)>(4096);
    let consumer = std::thread::spawn(move || {
        let mut table = table();
        for (key, payload) in rx {
            std::hint::black_box(payload);
            *table.entry(key).or_default() += 1;
        }
        table.values().sum::<u64>()
    });
    let (began, mut sent) = (Instant::now(), 0);
    while began.elapsed() < window {
        for _ in 0..64 {
            tx.send((sent % ACTORS, Payload([sent; 8])))?;
            sent += 1;
        }
    }
    drop(tx);
    let handled = consumer.join().map_err(|_| "the consumer panicked")?;
    if handled == sent { Ok((sent, began.elapsed())) } else { Err(format!("{sent} messages were sent and {handled} handled").into()) }
}

fn ask(printer: &Printer, window: Duration) -> Result<(), Error> {
    let (tx, rx) = bounded::<(u64, Payload)>(1);
    let (back_tx, back_rx) = bounded::<Payload>(1);
    let server = std::thread::spawn(move || {
        let mut table = table();
        for (key, payload) in rx {
            *table.entry(key).or_default() += 1;
            if back_tx.send(payload).is_err() {
                break;
            }
        }
    });
    let (began, mut seen, mut i) = (Instant::now(), histogram(), 0u64);
    while began.elapsed() < window {
        let sent = Instant::now();
        tx.send((i % ACTORS, Payload([i; 8])))?;
        let back = back_rx.recv()?;
        seen.saturating_record(sent.elapsed().as_nanos() as u64);
        if back.0 != [i; 8] {
            return Err(format!("request {i} got another answer").into());
        }
        i += 1;
    }
    printer.latencies("local-ask", &seen, began.elapsed());
    drop(tx);
    server.join().map_err(|_| "the server panicked".into())
}

fn run(args: &Args) -> Result<(), Error> {
    let printer = Printer::new("crossbeam-channel", version(include_str!("../Cargo.lock"), "crossbeam-channel"));
    match args.group {
        Group::Local => {
            printer.begin();
            tell(args.window().mul_f64(0.3))?;
            let (sent, took) = tell(args.window())?;
            printer.value("local-tell", "messages/s", sent as f64 / took.as_secs_f64(), sent);
            printer.begin();
            ask(&printer, args.window())
        }
        Group::Remote => {
            for measurement in ["remote-ask", "remote-ask-128", "remote-tell"] {
                printer.lacks(measurement, "a channel ends at the process");
            }
            Ok(())
        }
        Group::Population => {
            for measurement in ["memory", "start"] {
                printer.lacks(measurement, "a channel has no actors");
            }
            Ok(())
        }
        Group::Serve => Err("a channel has no other process".into()),
    }
}

fn main() -> ExitCode {
    peer_common::main(run)
}
