//! What the examples `bank` and `chat` promise when a node is killed under them.
#![allow(missing_docs, clippy::unwrap_used)]

#[allow(dead_code)]
#[path = "../examples/bank.rs"]
mod bank;
#[allow(dead_code)]
#[path = "../examples/chat.rs"]
mod chat;

use std::{collections::BTreeMap, time::Duration};

use wingbeat::{
    AskQueue,
    testkit::{World, WorldBuilder},
};

const SECOND: Duration = Duration::from_secs(1);
const LONG: Duration = Duration::from_secs(60);

/// Traffic between ten accounts; in the middle of it the node is killed that has the first one. It stays away, or comes back.
fn transfers_around_a_death(world: WorldBuilder, storage: &bank::Storage, comes_back: bool) {
    let theirs = storage.clone();
    let world = world.on_each(move |node| bank::host(node, &theirs).map(drop)).start();
    for n in 0..10 {
        let account = world.entity::<bank::Account>(0, format!("account-{n}"));
        world.eventually(LONG, || account.ask(bank::PayIn { number: n, amount: 100 }, SECOND).is_ok());
    }
    let victim = match world.owner_of::<bank::Account>("account-3") {
        0 => 1,
        other => other,
    };
    let accounts = world.node(0).region::<bank::Account>().unwrap();
    let orders = bank::orders(100..700);
    let (before, after) = orders.split_at(200);
    let mut made = bank::send_all(&accounts, before, SECOND).unwrap();
    // Under way while the node dies: nobody waits for these answers, and they are asked for again below.
    let lost = AskQueue::new(1024);
    for bank::Order { number, from, to, amount } in &after[..200] {
        let transfer = bank::Transfer { number: *number, to: wingbeat::EntityId::new(to), amount: *amount };
        accounts.get(from).ask_into(transfer, SECOND, *number, &lost).unwrap();
    }
    for _ in 0..world.seed() % 40 {
        world.step();
    }
    world.kill(victim);
    if comes_back {
        world.run_for(Duration::from_millis(200));
        world.restart(victim);
    }
    made.extend(bank::send_all(&accounts, after, SECOND).unwrap());

    let balance = |name: &str| accounts.get(name).ask(bank::Balance, SECOND);
    let mut expected: BTreeMap<String, i64> = (0..10).map(|n| (format!("account-{n}"), 100)).collect();
    for bank::Order { from, to, amount, .. } in orders.iter().filter(|order| made.contains(&order.number)) {
        *expected.get_mut(from).unwrap() -= *amount as i64;
        *expected.get_mut(to).unwrap() += *amount as i64;
    }
    assert!(made.len() > 300, "{} transfers were made", made.len());
    for (name, cents) in &expected {
        world.eventually(LONG, || balance(name).is_ok());
        assert_eq!(balance(name).map(|balance| balance as i64), Ok(*cents), "{name}");
    }
    let books = storage.books();
    assert!(books.values().all(|book| book.outgoing.is_empty()), "every transfer was answered, so none is under way");
    assert_eq!(books.values().map(|book| book.balance).sum::<u64>(), 1000);
}

#[test]
fn bank_makes_and_loses_no_money_when_a_node_is_killed() {
    for seed in 1..=12 {
        transfers_around_a_death(World::simulated(3).seed(seed), &bank::Storage::default(), seed % 2 == 0);
    }
}

#[test]
fn bank_makes_and_loses_no_money_on_a_network_that_loses() {
    for seed in 21..=24 {
        let world = World::simulated(3).seed(seed).network(Duration::from_millis(2), Duration::from_millis(3), 0.05);
        transfers_around_a_death(world, &bank::Storage::default(), seed % 2 == 0);
    }
}

#[test]
fn bank_makes_and_loses_no_money_when_a_real_node_is_killed() {
    transfers_around_a_death(World::real(3), &bank::Storage::default(), true);
}

/// The numbers of a speaker's lines that somebody heard.
fn numbers(heard: &[String], speaker: &str) -> Vec<u32> {
    let of_speaker = heard.iter().filter_map(|line| line.strip_prefix(speaker)?.strip_prefix(": line "));
    of_speaker.map(|number| number.parse().unwrap()).collect()
}

/// Three people talk through the nodes that live, and enter again and again; in the middle of it the node is killed that has one of them.
fn a_talk_around_a_death(world: WorldBuilder, comes_back: bool) {
    let world = world.on_each(|node| chat::host(node).map(drop)).start();
    let names = ["ann", "bob", "cleo"];
    let person = |name: &str| world.entity::<chat::Person>(0, name);
    let victim = {
        names.iter().for_each(|name| world.eventually(LONG, || person(name).ask(chat::Enter, SECOND).is_ok()));
        match names.map(|name| world.owner_of::<chat::Person>(name)) {
            [0, 0, 0] => 1,
            homes => homes.into_iter().find(|home| *home != 0).unwrap(),
        }
    };
    let say = |name: &str, number: u32| {
        let line = chat::Line { from: name.into(), text: format!("line {number}") };
        world.node(0).topic("lounge").publish(&line).unwrap();
    };
    for number in 0..60 {
        names.iter().for_each(|name| say(name, number));
        if number == 30 {
            for _ in 0..world.seed() % 40 {
                world.step();
            }
            world.kill(victim);
        }
        if number == 40 && comes_back {
            world.restart(victim);
        }
        world.run_for(Duration::from_millis(5));
        if number % 10 == 0 {
            // Whose node has died is in the room again as soon as there is another one.
            names.iter().for_each(|name| world.eventually(LONG, || person(name).ask(chat::Enter, SECOND).is_ok()));
        }
    }
    // Who is in the room hears what comes from now on, all of it, once and in order; of what came before no more than that.
    names.iter().for_each(|name| world.eventually(LONG, || person(name).ask(chat::Enter, SECOND).is_ok()));
    (60..70).for_each(|number| names.iter().for_each(|name| say(name, number)));
    for listener in names {
        let heard = || person(listener).ask(chat::Heard, SECOND).unwrap_or_default();
        let others = names.into_iter().filter(|name| *name != listener);
        for speaker in others {
            world.eventually(LONG, || numbers(&heard(), speaker).last() == Some(&69));
            let numbers = numbers(&heard(), speaker);
            assert!(numbers.is_sorted_by(|a, b| a < b), "{listener} heard {speaker} twice or out of order: {numbers:?}");
            assert!(numbers.ends_with(&(60..70).collect::<Vec<_>>()), "{listener} has missed {speaker}: {numbers:?}");
        }
    }
}

#[test]
fn chat_brings_no_line_twice_when_a_node_is_killed() {
    for seed in 1..=12 {
        a_talk_around_a_death(World::simulated(3).seed(seed), seed % 2 == 0);
    }
}

#[test]
fn chat_brings_no_line_twice_when_a_real_node_is_killed() {
    a_talk_around_a_death(World::real(3), true);
}
