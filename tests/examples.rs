//! What the examples print.
#![cfg(feature = "cli")]
#![allow(missing_docs, clippy::unwrap_used)]

#[path = "../examples/bank.rs"]
mod bank;
#[path = "../examples/chat.rs"]
mod chat;
#[path = "../examples/embedded_in_tokio.rs"]
mod embedded_in_tokio;
#[path = "../examples/flights.rs"]
mod flights;
#[path = "../examples/rate_limiter.rs"]
mod rate_limiter;

use std::{fmt::Debug, time::Duration};

use wingbeat::{Cluster, EntityId};

const LIMIT: Duration = Duration::from_secs(30);

/// What an example prints, without the line's end.
fn printed<E: Debug>(run: impl FnOnce(&mut Vec<u8>) -> Result<(), E>) -> String {
    let mut out = vec![];
    run(&mut out).expect("the example runs to its end");
    String::from_utf8(out).expect("it prints text").trim_end().to_owned()
}

#[test]
fn flights_adds_up_what_each_aircraft_flew() {
    assert_eq!(
        printed(|out| flights::run(out)),
        "N14228 flew 2 times, 2485 miles, -3 minutes late in all, last to MIA\n\
         N24211 flew 2 times, 2920 miles, 6 minutes late in all, last to AUS\n\
         N619AA flew 1 times, 1089 miles, 2 minutes late in all, last to MIA\n\
         N804JB flew 3 times, 6637 miles, -9 minutes late in all, last to SFO"
    );
}

#[test]
fn bank_neither_makes_nor_loses_money_while_nodes_come_and_leave() {
    assert_eq!(
        printed(|out| bank::run(out)),
        "a transfer of 5000 is refused: true\n\
         600 transfers between 10 accounts on 3 nodes, of which one joined and one left; the sum is 10000"
    );
}

#[test]
fn bank_counts_a_number_once_for_each_payer_and_apart_from_what_was_paid_in() {
    let cluster = Cluster::builder("bank").listen("127.0.0.1:0".parse().unwrap()).start().unwrap();
    let accounts = bank::host(&cluster, &bank::Storage::default()).unwrap();
    accounts.wait_ready(LIMIT).unwrap();
    let pay_in = |name: &str| accounts.get(name).ask(bank::PayIn { number: 7, amount: 50 }, LIMIT).unwrap();
    let transfer = |from: &str, amount| {
        let transfer = bank::Transfer { number: 7, to: EntityId::new("cleo"), amount };
        accounts.get(from).ask(transfer, LIMIT).unwrap().unwrap()
    };
    let names = ["ann", "bob", "cleo"];
    assert_eq!(names.map(pay_in), [50, 50, 50]);
    assert_eq!((transfer("ann", 10), transfer("bob", 20)), (40, 30));
    // Each of them again.
    assert_eq!((transfer("ann", 10), transfer("bob", 20)), (40, 30));
    assert_eq!(names.map(pay_in), [40, 30, 80]);
    // As if the answer had not come: the payer asks the other account again.
    let deposit = |from: &str| accounts.get("cleo").ask(bank::Deposit { from: from.into(), number: 7, amount: 10 }, LIMIT).unwrap();
    assert_eq!((deposit("ann"), deposit("bob"), deposit("dan")), (80, 80, 90));
}

#[test]
fn rate_limiter_forgets_the_keys_that_nobody_uses() {
    assert_eq!(
        printed(|out| rate_limiter::run(out, 20_000)),
        "20000 keys, 20000 requests allowed\n\
         five at once for one key: [true, true, false, false, false]\n\
         all have left memory"
    );
}

#[test]
fn chat_brings_each_line_to_who_is_in_the_room() {
    assert_eq!(
        printed(|out| chat::run(out)),
        "ann is registered: true, and again: false\n\
         bob is registered: true, and again: false\n\
         cleo is registered: true, and again: false\n\
         here are ann, bob, cleo\n\
         ann has heard [\"bob: hi ann\", \"bob: yes\"]\n\
         bob has heard [\"ann: hello\", \"ann: has cleo gone?\"]\n\
         cleo has heard [\"ann: hello\", \"bob: hi ann\"]"
    );
}

#[test]
fn embedded_in_tokio_awaits_answers_on_a_runtime_of_the_users() {
    assert_eq!(
        printed(|out| embedded_in_tokio::run(out)),
        "100 requests to 10 counters; together with 4990 more they are at 4950\n\
         c1 is at 460"
    );
}
