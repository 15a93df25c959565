//! Transfers between accounts that may live on different nodes, without losing or making money: `cargo run --example bank`.
//!
//! There is no transaction across entities. Instead every transfer has a number: the paying account takes the money first and asks the other
//! one to take it, again and again until that answers; the receiving account knows the numbers it has seen and counts each once. While all
//! nodes live, or leave in order, the sum stays the same. State is in memory here: what dies with its node is gone.

#![allow(missing_docs, reason = "an example explains itself")]

use std::{
    collections::{BTreeMap, BTreeSet},
    error::Error,
    io::Write,
    time::Duration,
};

use serde::{Deserialize, Serialize};
use wingbeat::*;

messages! {
    pub enum AccountMsg for Account(String) = "example.account" {
        /// Opens or tops up.
        PayIn { amount: u64 } -> u64,
        /// To another account; the answer comes when the money is there.
        Transfer { number: u64, to: EntityId<Account>, amount: u64 } -> Result<u64, String>,
        /// From another account.
        Deposit { number: u64, amount: u64 } -> u64,
        /// What came of asking the other account.
        Deposited { number: u64, result: Result<u64, AskError> },
        /// Time to ask again.
        Again { number: u64 },
        Balance -> u64,
    }
}

/// Money on its way.
#[derive(Clone, Serialize, Deserialize)]
pub struct Outgoing {
    to: EntityId<Account>,
    amount: u64,
}

/// What moves with the account.
#[derive(Clone, Default, Serialize, Deserialize)]
pub struct Book {
    balance: u64,
    seen: BTreeSet<u64>,
    outgoing: BTreeMap<u64, Outgoing>,
}
wire!(Book = "example.book");

#[derive(Default)]
struct AccountState {
    book: Book,
    waiting: BTreeMap<u64, Promise<Result<u64, String>>>,
}

impl AccountState {
    fn offer(&self, number: u64, cx: &mut Cx<'_, Self>) {
        let Some(Outgoing { to, amount }) = self.book.outgoing.get(&number).cloned() else { return };
        if let Some(other) = cx.resolve(&to) {
            let then = move |result| Deposited { number, result };
            cx.ask(&other, Deposit { number, amount }, Duration::from_secs(1), then);
        }
    }
}

impl Entity for AccountState {
    type Type = Account;

    fn handle(&mut self, msg: AccountMsg, cx: &mut Cx<'_, Self>) {
        match msg {
            AccountMsg::PayIn(PayIn { amount }, reply) => {
                self.book.balance += amount;
                cx.reply(reply, self.book.balance);
            }
            AccountMsg::Transfer(Transfer { amount, .. }, reply) if amount > self.book.balance => {
                cx.reply(reply, Err(format!("{} has {}, not {amount}", cx.id(), self.book.balance)));
            }
            AccountMsg::Transfer(Transfer { number, to, amount }, reply) => {
                self.book.balance -= amount;
                self.book.outgoing.insert(number, Outgoing { to, amount });
                self.waiting.insert(number, cx.defer(reply));
                self.offer(number, cx);
            }
            AccountMsg::Deposit(Deposit { number, amount }, reply) => {
                if self.book.seen.insert(number) {
                    self.book.balance += amount;
                }
                cx.reply(reply, self.book.balance);
            }
            AccountMsg::Deposited(Deposited { number, result: Ok(_) }) => {
                self.book.outgoing.remove(&number);
                // After a move the promise has stayed behind: who waits there hears that nobody knows, and may ask for balances.
                if let Some(promise) = self.waiting.remove(&number) {
                    promise.fulfil(Ok(self.book.balance));
                }
            }
            // Whether it has arrived or not: the other account counts it once.
            AccountMsg::Deposited(Deposited { number, result: Err(_) }) => {
                cx.timer_once(number, Duration::from_millis(20), Again { number })
            }
            AccountMsg::Again(Again { number }) => self.offer(number, cx),
            AccountMsg::Balance(Balance, reply) => cx.reply(reply, self.book.balance),
        }
    }

    fn handoff(&mut self, cx: &mut Cx<'_, Self>) -> Result<Handoff, Failure> {
        cx.hand_over(&self.book)
    }

    fn adopted(&mut self, state: HandedOver<'_>, _: &mut Cx<'_, Self>) -> Result<(), Failure> {
        self.book = state.decode()?;
        Ok(())
    }
}

const LIMIT: Duration = Duration::from_secs(30);

/// Everything `main` does: two nodes, ten accounts, and transfers between them while a third node joins and the second one leaves.
pub fn run(out: &mut dyn Write) -> Result<(), Box<dyn Error>> {
    let join = |seed: Option<&Cluster>| -> Result<(Cluster, Region<Account>), Box<dyn Error>> {
        let seeds = seed.map(|first| first.addr().to_string());
        let cluster = Cluster::builder("bank").listen("127.0.0.1:0".parse()?).seeds(seeds).start()?;
        let accounts = cluster.host::<AccountState>(HostOptions::new().shards(20), |_| AccountState::default())?;
        accounts.wait_ready(LIMIT)?;
        Ok((cluster, accounts))
    };
    let (first, accounts) = join(None)?;
    let (second, _) = join(Some(&first))?;
    let names: Vec<String> = (0..10).map(|n| format!("account-{n}")).collect();
    for name in &names {
        accounts.get(name).ask(PayIn { amount: 100 }, LIMIT)?;
    }
    let mut number = 0;
    let mut round = |transfers: u64| -> Result<u64, Box<dyn Error>> {
        let queue = AskQueue::new(1024);
        for _ in 0..transfers {
            number += 1;
            let (from, to) = (&names[number as usize % 10], EntityId::new(&names[(number as usize * 7 + 3) % 10]));
            accounts.get(from).ask_into(Transfer { number, to, amount: number % 40 }, LIMIT, number, &queue)?;
        }
        let (mut answers, mut refused) = (vec![], 0);
        while queue.in_flight() > 0 {
            queue.wait(&mut answers, LIMIT);
            refused += answers.drain(..).filter(|answer| matches!(answer.result, Ok(Err(_)))).count() as u64;
        }
        Ok(refused)
    };
    round(200)?;
    let (third, _) = join(Some(&first))?;
    round(200)?;
    second.shutdown(ShutdownReason::Requested).wait(LIMIT).ok_or("the second node takes too long to leave")?;
    round(200)?;
    // More than there is.
    let refused = accounts.get("account-0").ask(Transfer { number: 0, to: EntityId::new("account-1"), amount: 5_000 }, LIMIT)?;
    writeln!(out, "a transfer of 5000 is refused: {}", refused.is_err())?;
    // What is still on its way arrives; then the sum is what was paid in.
    let mut sum = 0;
    for _ in 0..600 {
        let balances = names.iter().map(|name| accounts.get(name).ask(Balance, LIMIT)).collect::<Result<Vec<u64>, _>>()?;
        sum = balances.iter().sum();
        if sum == 1000 {
            break;
        }
        std::thread::park_timeout(Duration::from_millis(20));
    }
    writeln!(out, "600 transfers between 10 accounts on 3 nodes, of which one joined and one left; the sum is {sum}")?;
    drop((first, third));
    Ok(())
}

#[allow(dead_code, reason = "a test calls `run` alone")]
fn main() -> Result<(), Box<dyn Error>> {
    run(&mut std::io::stdout())
}
