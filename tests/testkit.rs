//! The test kit, used as a user of the library would.
#![allow(missing_docs, clippy::unwrap_used)]

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    sync::{Arc, atomic::AtomicU64, atomic::Ordering},
    time::Duration,
};

use wingbeat::{
    AskError, Cx, DropReason, Entity, EntityId, EntityRef, Failure, HandedOver, Handoff, Promise, StartCause, StopReason, messages,
    testkit::{self, Solo},
};

messages! {
    pub enum AccountMsg for Account(String) = "test.account" {
        Deposit { cents: u64 },
        Balance -> u64,
        Transfer { to: String, cents: u64 } -> bool,
        Break,
        Close,
        Later -> u64,
        Fee -> u64,
    }
}
messages! {
    pub enum BankMsg for Bank(u64) = "test.bank" { Rate -> u64, Opened { account: String } }
}

const SECOND: Duration = Duration::from_secs(1);

/// Nothing in it is `Send`.
struct State {
    cents: u64,
    bank: EntityRef<Bank>,
    log: Rc<RefCell<Vec<String>>>,
    owed: Rc<Cell<Option<Promise<u64>>>>,
    fee: Arc<AtomicU64>,
}

impl Entity for State {
    type Type = Account;

    fn handle(&mut self, msg: AccountMsg, cx: &mut Cx<'_, Self>) {
        match msg {
            AccountMsg::Deposit(Deposit { cents }) => self.cents += cents,
            AccountMsg::Balance(Balance, reply) => cx.reply(reply, self.cents),
            AccountMsg::Transfer(Transfer { to, cents }, reply) => {
                let Some(other) = cx.resolve(&EntityId::<Account>::new(&to)) else { return cx.reject(reply, "no such type") };
                let enough = self.cents >= cents;
                if enough {
                    self.cents -= cents;
                    other.tell(Deposit { cents }).unwrap();
                }
                cx.reply(reply, enough);
            }
            AccountMsg::Break(_) => panic!("on purpose"),
            AccountMsg::Close(_) => cx.passivate(),
            AccountMsg::Later(Later, reply) => self.owed.set(Some(cx.defer(reply))),
            AccountMsg::Fee(Fee, reply) => {
                let (fee, promise) = (self.fee.clone(), cx.defer(reply));
                self.bank.ask_then(Rate, SECOND, move |rate| {
                    fee.store(rate.clone().unwrap_or(1), Ordering::SeqCst);
                    match rate {
                        Ok(rate) => promise.fulfil(rate),
                        Err(error) => promise.reject(error.code()),
                    }
                });
            }
        }
    }

    fn started(&mut self, cx: &mut Cx<'_, Self>) {
        if cx.id() == "brief" {
            cx.passivate();
        }
        self.log.borrow_mut().push(format!("started {:?} at epoch {}", cx.cause(), cx.epoch().get()));
        if cx.cause() == StartCause::FirstMessage {
            self.bank.tell(Opened { account: cx.id().clone() }).unwrap();
        }
    }

    fn handoff(&mut self, cx: &mut Cx<'_, Self>) -> Result<Handoff, Failure> {
        if self.cents == 13 { Err(Failure::new("not on a thirteenth")) } else { cx.hand_over(&self.cents) }
    }

    fn adopted(&mut self, state: HandedOver<'_>, cx: &mut Cx<'_, Self>) -> Result<(), Failure> {
        self.cents = state.decode()?;
        cx.timer_once(7, SECOND, Deposit { cents: 1 });
        if self.cents == 666 { Err(Failure::new("not this number")) } else { Ok(()) }
    }

    fn stopped(&mut self, why: StopReason, _: &mut Cx<'_, Self>) {
        self.log.borrow_mut().push(format!("stopped {why}"));
    }
}

#[derive(Clone, Default)]
struct Seen {
    log: Rc<RefCell<Vec<String>>>,
    owed: Rc<Cell<Option<Promise<u64>>>>,
    fee: Arc<AtomicU64>,
}

impl Seen {
    fn log(&self) -> Vec<String> {
        self.log.take()
    }
}

fn account(key: &str) -> (Solo<State>, Seen) {
    let seen = Seen::default();
    let again = seen.clone();
    let solo = Solo::new(key, move |_| {
        let Seen { log, owed, fee } = again.clone();
        State { cents: 0, bank: testkit::reference(1u64), log, owed, fee }
    });
    (solo, seen)
}

#[test]
fn an_entity_starts_with_its_first_message_and_runs_on_the_calling_thread() {
    let (mut account, seen) = account("a");
    assert!(!account.is_live());
    account.tell(Deposit { cents: 5 }).tell(Deposit { cents: 7 });
    assert_eq!(account.ask(Balance), Ok(12));
    assert_eq!(account.state().unwrap().cents, 12);
    assert_eq!(seen.log(), ["started FirstMessage at epoch 1"]);
    let opened = account.sent_to::<Bank>();
    assert!(matches!(&opened[..], [(1, BankMsg::Opened(Opened { account }))] if account == "a"));
    assert!(account.sent_to::<Bank>().is_empty(), "taken");
}

#[test]
fn a_move_takes_state_along_and_a_crash_does_not() {
    let (mut account, seen) = account("a");
    account.tell(Deposit { cents: 5 });
    account.move_away().unwrap();
    assert_eq!(seen.log(), ["started FirstMessage at epoch 1", "stopped moved", "started Moved at epoch 2"]);
    assert_eq!(account.ask(Balance), Ok(5));
    account.tell(Close);
    assert!(!account.is_live());
    account.move_away().unwrap();
    assert_eq!(account.ask(Balance), Ok(0), "it had left memory, so there was nothing to take along");
    account.tell(Deposit { cents: 9 }).crash();
    assert!(!account.is_live());
    assert_eq!(account.ask(Balance), Ok(0));
    assert_eq!(seen.log(), ["stopped passivated", "started FirstMessage at epoch 3", "started FirstMessage at epoch 4"]);
}

#[test]
fn a_move_that_is_refused_leaves_the_entity_where_it_is() {
    let (mut account, _) = account("a");
    account.tell(Deposit { cents: 13 });
    let why = account.move_away().unwrap_err().to_string();
    assert!(why.contains("not on a thirteenth"), "{why}");
    assert_eq!(account.ask(Balance), Ok(13));
    account.tell(Deposit { cents: 653 });
    assert!(account.move_away().unwrap_err().to_string().contains("adopted"));
    assert_eq!(account.ask(Balance), Ok(0), "it has started as new");
    account.advance(2 * SECOND);
    assert_eq!(account.ask(Balance), Ok(0), "what the instance that took nothing had set up for itself ended with it");
}

#[test]
fn one_that_passivates_as_it_starts_handles_what_it_was_started_for_and_leaves() {
    let (mut account, seen) = account("brief");
    assert_eq!(account.tell(Deposit { cents: 5 }).ask(Balance), Ok(0), "each had an instance of its own");
    assert!(!account.is_live());
    let once = ["started FirstMessage at epoch 1", "stopped passivated"];
    assert_eq!(seen.log(), [once, once].concat());
}

#[test]
fn what_it_asks_is_answered_by_the_test_or_times_out_in_virtual_time() {
    let (mut account, seen) = account("a");
    let before = account.now();
    let error = account.ask(Fee).unwrap_err();
    assert_eq!(error, AskError::Rejected("E-ASK-003".into()), "nobody answered the bank's rate");
    assert_eq!(account.now().since(before), SECOND, "and that took exactly its deadline");
    account.answer::<Bank, Rate>(|bank, msg| matches!(msg, BankMsg::Rate(..)).then_some(bank + 41));
    let before = account.now();
    assert_eq!(account.ask(Fee), Ok(42));
    assert_eq!((account.now(), seen.fee.load(Ordering::SeqCst)), (before, 42), "an answer at once takes no time");
    let rates = account.sent_to::<Bank>().iter().filter(|(_, msg)| matches!(msg, BankMsg::Rate(..))).count();
    assert_eq!(rates, 2);
}

#[test]
fn a_callback_may_wait_and_lone_entities_share_their_clock() {
    let ((mut account, seen), (mut other, _)) = (account("a"), account("b"));
    account.tell(Deposit { cents: 5 });
    other.tell(Break);
    assert!(!other.is_live());
    let began = account.now();
    assert_eq!(account.ask_within(Later, 10 * SECOND), Err(AskError::Timeout { maybe_ran: true }));
    assert_eq!((other.now(), other.now().since(began)), (account.now(), 10 * SECOND));
    drop(seen.owed.take());
    assert_eq!(other.ask(Balance), Ok(0), "its back-off is over");
    assert_eq!(other.now().since(began), 10 * SECOND);
}

#[test]
fn an_answer_that_is_owed_comes_when_the_promise_is_kept() {
    let (mut account, seen) = account("a");
    let before = account.now();
    let late = account.ask_within(Later, SECOND).unwrap_err();
    assert_eq!(late, AskError::Timeout { maybe_ran: true });
    assert_eq!(account.now().since(before), SECOND);
    let promise = seen.owed.take().unwrap();
    assert!(promise.is_expired(), "its clock is the virtual one");
    drop(promise);
}

#[test]
fn a_panic_fails_the_instance_and_the_next_one_starts_after_a_back_off() {
    let (mut account, seen) = account("a");
    account.tell(Deposit { cents: 5 }).tell(Break);
    assert!(!account.is_live());
    let before = account.now();
    assert_eq!(account.ask(Balance), Ok(0));
    assert!(account.now() > before, "the back-off has passed");
    assert_eq!(seen.log().last().unwrap(), "started Restarted at epoch 1");
}

#[test]
fn other_entities_of_its_own_type_are_elsewhere() {
    let (mut account, _) = account("a");
    account.tell(Deposit { cents: 5 });
    assert_eq!(account.ask(Transfer { to: "b".into(), cents: 3 }), Ok(true));
    assert_eq!(account.ask(Transfer { to: "a".into(), cents: 2 }), Ok(true));
    let sent = account.sent_to::<Account>();
    assert!(matches!(&sent[..], [(to, AccountMsg::Deposit(Deposit { cents: 3 }))] if to == "b"), "what it tells itself comes back");
    assert_eq!(account.ask(Balance), Ok(2));
    assert!(account.dropped().is_empty());
}

#[test]
fn what_was_given_up_is_shown() {
    let (mut account, _) = account("a");
    account.tell(Break);
    let error = account.ask_within(Balance, Duration::from_millis(1)).unwrap_err();
    assert_eq!(error, AskError::Timeout { maybe_ran: true }, "the instance was still in its back-off");
    account.advance(10 * SECOND);
    let dropped = account.dropped();
    assert!(dropped.iter().any(|letter| &*letter.key == b"a" && letter.reason == DropReason::Expired), "{dropped:?}");
    assert!(account.dropped().is_empty(), "taken");
}
