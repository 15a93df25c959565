//! Transfers between accounts that may live on different nodes, without losing or making money: `cargo run --example bank`.
//!
//! There is no transaction across entities. Instead every transfer has a number: the paying account takes the money first and asks the other
//! one to take it, again and again until that answers; the receiving account knows which numbers of which payer it has seen and counts each once.
//! Who sent the transfer repeats it under its number until there is an answer, and the paying account makes each number one transfer.
//!
//! # What is promised
//!
//! No money is made or lost, whether nodes join, leave in order, or are killed in the middle of it. That does not rest on wingbeat alone: state
//! in memory dies with its node, so each account writes its book to storage of its own before anybody hears of a change, and the storage takes
//! nothing from an epoch below the newest it has seen. wingbeat promises that epochs only grow and that an entity with a lower one never runs
//! beside a higher one for longer than its documentation says; the storage promises to keep what it has taken. Here it is a map in this
//! process; in a service it is a table with a column for the epoch.
//!
//! Not promised: that an answer arrives (the paying account's node may die with it), or that a transfer under way is done before its accounts
//! are spoken to again: an account that lost its node goes on with what it owes when its next message starts it elsewhere.

#![allow(missing_docs, clippy::disallowed_types, reason = "an example explains itself, and uses what everybody has")]

use std::{
    collections::{BTreeMap, BTreeSet},
    error::Error,
    io::Write,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use wingbeat::*;

messages! {
    pub enum AccountMsg for Account(String) = "example.account" {
        /// Opens or tops up, once under each number; these numbers have nothing to do with those of transfers.
        PayIn { number: u64, amount: u64 } -> u64,
        /// To another account; the answer comes when the money is there.
        Transfer { number: u64, to: EntityId<Account>, amount: u64 } -> Result<u64, String>,
        /// From another account, whose number it is: another payer may have the same.
        Deposit { from: String, number: u64, amount: u64 } -> u64,
        /// What came of asking the other account.
        Deposited { number: u64, result: Result<u64, AskError> },
        /// Time to ask again.
        Again { number: u64 },
        Balance -> u64,
    }
}

/// What an account knows. All of it is in storage before anybody hears of it.
///
/// The three sets of numbers grow without end. A real program has each payer count its transfers, and keeps per payer up to where all have come and the
/// few above that; or it forgets a number when it is so old that nobody repeats it any more, and refuses what is older.
#[derive(Clone, Default)]
pub struct Book {
    pub balance: u64,
    /// Numbers of what was paid in.
    paid_in: BTreeSet<u64>,
    /// What has come in from other accounts: who paid, and under which number.
    seen: BTreeSet<(String, u64)>,
    /// Money on its way, by number: where to, and how much.
    pub outgoing: BTreeMap<u64, (EntityId<Account>, u64)>,
    /// Numbers of the transfers that have arrived.
    sent: BTreeSet<u64>,
}

/// Stands for a database: it outlives every node, and is asked for nothing but to keep a book and to compare epochs.
#[derive(Clone, Default)]
pub struct Storage(Arc<Mutex<BTreeMap<String, (Epoch, Book)>>>);

impl Storage {
    /// The book as it was written last. From now on nothing of an earlier epoch is written.
    fn load(&self, account: &str, epoch: Epoch) -> Result<Book, &'static str> {
        self.at(account, epoch, |book| book.clone())
    }

    fn save(&self, account: &str, epoch: Epoch, book: &Book) -> Result<(), &'static str> {
        self.at(account, epoch, |kept| *kept = book.clone())
    }

    fn at<R>(&self, account: &str, epoch: Epoch, f: impl FnOnce(&mut Book) -> R) -> Result<R, &'static str> {
        let mut rows = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (newest, book) = rows.entry(account.to_owned()).or_default();
        if epoch < *newest {
            return Err("a later owner has the account");
        }
        *newest = epoch;
        Ok(f(book))
    }

    /// All books, for who audits the bank.
    pub fn books(&self) -> BTreeMap<String, Book> {
        let rows = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        rows.iter().map(|(account, (_, book))| (account.clone(), book.clone())).collect()
    }
}

struct AccountState {
    book: Book,
    storage: Storage,
    waiting: BTreeMap<u64, Promise<Result<u64, String>>>,
}

impl AccountState {
    /// Writes the book. If somebody else has the account by now, this instance ends without a word.
    fn keep(&mut self, cx: &mut Cx<'_, Self>) -> bool {
        let kept = self.storage.save(cx.id(), cx.epoch(), &self.book);
        if let Err(why) = kept {
            cx.fail(Failure::new(why));
        }
        kept.is_ok()
    }

    /// Money comes in, if this is not a repetition.
    fn take_in(&mut self, new: bool, amount: u64, reply: ReplyTag<u64>, cx: &mut Cx<'_, Self>) {
        if new {
            self.book.balance += amount;
        }
        if self.keep(cx) {
            cx.reply(reply, self.book.balance);
        }
    }

    fn offer(&self, number: u64, cx: &mut Cx<'_, Self>) {
        let Some((to, amount)) = self.book.outgoing.get(&number).cloned() else { return };
        if let Some(other) = cx.resolve(&to) {
            let then = move |result| Deposited { number, result };
            cx.ask(&other, Deposit { from: cx.id().clone(), number, amount }, Duration::from_secs(1), then);
        }
    }
}

impl Entity for AccountState {
    type Type = Account;

    fn started(&mut self, cx: &mut Cx<'_, Self>) {
        match self.storage.load(cx.id(), cx.epoch()) {
            Ok(book) => self.book = book,
            Err(why) => return cx.fail(Failure::new(why)),
        }
        for number in self.book.outgoing.keys() {
            self.offer(*number, cx);
        }
    }

    fn handle(&mut self, msg: AccountMsg, cx: &mut Cx<'_, Self>) {
        match msg {
            AccountMsg::PayIn(PayIn { number, amount }, reply) => {
                let new = self.book.paid_in.insert(number);
                self.take_in(new, amount, reply, cx);
            }
            AccountMsg::Deposit(Deposit { from, number, amount }, reply) => {
                let new = self.book.seen.insert((from, number));
                self.take_in(new, amount, reply, cx);
            }
            AccountMsg::Transfer(Transfer { number, .. }, reply) if self.book.sent.contains(&number) => {
                cx.reply(reply, Ok(self.book.balance));
            }
            // Repeated while it is on its way: whoever asked last gets the answer.
            AccountMsg::Transfer(Transfer { number, .. }, reply) if self.book.outgoing.contains_key(&number) => {
                self.waiting.insert(number, cx.defer(reply));
            }
            AccountMsg::Transfer(Transfer { amount, .. }, reply) if amount > self.book.balance => {
                cx.reply(reply, Err(format!("{} has {}, not {amount}", cx.id(), self.book.balance)));
            }
            AccountMsg::Transfer(Transfer { number, to, amount }, reply) => {
                self.book.balance -= amount;
                self.book.outgoing.insert(number, (to, amount));
                if self.keep(cx) {
                    self.waiting.insert(number, cx.defer(reply));
                    self.offer(number, cx);
                }
            }
            AccountMsg::Deposited(Deposited { number, result: Ok(_) }) => {
                if self.book.outgoing.remove(&number).is_some() {
                    self.book.sent.insert(number);
                }
                if self.keep(cx)
                    && let Some(promise) = self.waiting.remove(&number)
                {
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
}

/// Has accounts run on that node.
pub fn host(node: &Cluster, storage: &Storage) -> Result<Region<Account>, RegisterError> {
    let storage = storage.clone();
    let new = move |_: &String| AccountState { book: Book::default(), storage: storage.clone(), waiting: BTreeMap::new() };
    node.host::<AccountState>(HostOptions::new().shards(20), new)
}

/// A transfer as its sender knows it.
#[derive(Clone)]
pub struct Order {
    pub number: u64,
    pub from: String,
    pub to: String,
    pub amount: u64,
}

const LIMIT: Duration = Duration::from_secs(30);

/// Sends the transfers, many at a time, and each again under its number until an account has answered. The numbers of those that were made.
pub fn send_all(accounts: &Region<Account>, orders: &[Order], patience: Duration) -> Result<BTreeSet<u64>, TellError<AccountMsg>> {
    let queue = AskQueue::new(1024);
    let (mut open, mut made, mut answers): (BTreeMap<u64, Order>, _, _) = (BTreeMap::new(), BTreeSet::new(), vec![]);
    open.extend(orders.iter().map(|order| (order.number, order.clone())));
    while !open.is_empty() {
        let before = open.len();
        for Order { number, from, to, amount } in open.values().cloned() {
            match accounts.get(&from).ask_into(Transfer { number, to: EntityId::new(&to), amount }, patience, number, &queue) {
                // What finds no room now has not run, and is sent again in the next round.
                Err(error) if !matches!(error.reason(), Refusal::Full | Refusal::NoCredit) => return Err(error),
                _ => {}
            }
        }
        while queue.in_flight() > 0 {
            queue.wait(&mut answers, LIMIT);
        }
        for answer in answers.drain(..) {
            if let Ok(outcome) = answer.result {
                open.remove(&answer.tag);
                if outcome.is_ok() {
                    made.insert(answer.tag);
                }
            }
        }
        // Nobody has answered, and who is asked again at once has no more to say.
        if open.len() == before {
            std::thread::park_timeout(Duration::from_millis(5));
        }
    }
    Ok(made)
}

/// Transfers between ten accounts, in no order to speak of.
pub fn orders(numbers: std::ops::Range<u64>) -> Vec<Order> {
    let name = |n: u64| format!("account-{}", n % 10);
    numbers.map(|number| Order { number, from: name(number), to: name(number * 7 + 3), amount: number % 9 + 1 }).collect()
}

/// Everything `main` does: two nodes, ten accounts, and transfers between them while a third node joins and the second one leaves.
pub fn run(out: &mut dyn Write) -> Result<(), Box<dyn Error>> {
    let storage = Storage::default();
    let join = |seed: Option<&Cluster>| -> Result<(Cluster, Region<Account>), Box<dyn Error>> {
        let seeds = seed.map(|first| first.addr().to_string());
        let cluster = Cluster::builder("bank").listen("127.0.0.1:0".parse()?).seeds(seeds).start()?;
        let accounts = host(&cluster, &storage)?;
        accounts.wait_ready(LIMIT)?;
        Ok((cluster, accounts))
    };
    let (first, accounts) = join(None)?;
    let (second, _) = join(Some(&first))?;
    for n in 0..10 {
        accounts.get(format!("account-{n}")).ask(PayIn { number: n, amount: 1_000 }, LIMIT)?;
    }
    let mut made = send_all(&accounts, &orders(0..200), LIMIT)?;
    let (third, _) = join(Some(&first))?;
    made.extend(send_all(&accounts, &orders(200..400), LIMIT)?);
    second.shutdown(ShutdownReason::Requested).wait(LIMIT).ok_or("the second node takes too long to leave")?;
    made.extend(send_all(&accounts, &orders(400..600), LIMIT)?);
    // More than there is.
    let refused = accounts.get("account-0").ask(Transfer { number: 600, to: EntityId::new("account-1"), amount: 5_000 }, LIMIT)?;
    writeln!(out, "a transfer of 5000 is refused: {}", refused.is_err())?;
    let mut sum = 0;
    for (name, book) in storage.books() {
        let balance = accounts.get(&name).ask(Balance, LIMIT)?;
        assert!(balance == book.balance && book.outgoing.is_empty(), "{name} says what is written, and owes nothing");
        sum += balance;
    }
    writeln!(out, "{} transfers between 10 accounts on 3 nodes, of which one joined and one left; the sum is {sum}", made.len())?;
    drop((first, third));
    Ok(())
}

#[allow(dead_code, reason = "a test calls `run` alone")]
fn main() -> Result<(), Box<dyn Error>> {
    run(&mut std::io::stdout())
}
