//! actix, which has no other process.
//!
//! Tuned: the actors are either on the arbiter of the sender, where nothing is handed to another thread, or on one of their own
//! (`2 threads`); `try_send` with a mailbox of 4,096 where there is room, and `send` where there is none, as `do_send` has no bound; answers as
//! `MessageResult`, without a box.

use actix::prelude::*;
use peer_common::{ACTORS, Args, Error, Group, Payload, Peer, Printer, alloc::Weighing, handle, local, population, threads, version};

#[global_allocator]
static ALLOCATOR: Weighing = Weighing;

#[derive(Default)]
struct Counter {
    notes: u64,
}

impl Actor for Counter {
    type Context = Context<Self>;
}

struct Note(Payload);
struct Echo(Payload);
struct Count;

impl Message for Note {
    type Result = ();
}

impl Message for Echo {
    type Result = Payload;
}

impl Message for Count {
    type Result = u64;
}

impl Handler<Note> for Counter {
    type Result = ();

    fn handle(&mut self, note: Note, _: &mut Context<Self>) {
        handle(&note.0.to_bytes(), &mut self.notes);
    }
}

impl Handler<Echo> for Counter {
    type Result = MessageResult<Echo>;

    fn handle(&mut self, echo: Echo, _: &mut Context<Self>) -> MessageResult<Echo> {
        MessageResult(echo.0)
    }
}

impl Handler<Count> for Counter {
    type Result = u64;

    fn handle(&mut self, _: Count, _: &mut Context<Self>) -> u64 {
        self.notes
    }
}

#[derive(Clone)]
struct Here(Addr<Counter>);

impl Peer for Here {
    async fn tell(&self, payload: Payload) -> Result<(), Error> {
        match self.0.try_send(Note(payload)) {
            Ok(()) => Ok(()),
            Err(SendError::Full(note)) => Ok(self.0.send(note).await?),
            Err(closed) => Err(closed.to_string().into()),
        }
    }

    async fn ask(&self, payload: Payload) -> Result<Payload, Error> {
        Ok(self.0.send(Echo(payload)).await?)
    }

    async fn count(&self) -> Result<u64, Error> {
        Ok(self.0.send(Count).await?)
    }
}

const MAILBOX: usize = 4096;

async fn start_all(n: u64, arbiter: Option<ArbiterHandle>) -> Result<Vec<Here>, Error> {
    let mut all = Vec::new();
    for _ in 0..n {
        let addr = match &arbiter {
            Some(arbiter) => Counter::start_in_arbiter(arbiter, |context| {
                context.set_mailbox_capacity(MAILBOX);
                Counter::default()
            }),
            None => Counter::create(|context| {
                context.set_mailbox_capacity(MAILBOX);
                Counter::default()
            }),
        };
        all.push(Here(addr));
    }
    Ok(all)
}

fn run(args: &Args) -> Result<(), Error> {
    let (group, n, window) = (args.group, args.threads(), args.window());
    let printer = Printer::new("actix", version(include_str!("../Cargo.lock"), "actix")).with(threads(n));
    if group == Group::Remote {
        if n == 1 {
            for measurement in ["remote-ask", "remote-ask-128", "remote-tell"] {
                printer.lacks(measurement, "no actors of other processes");
            }
        }
        return Ok(());
    }
    System::new().block_on(async move {
        let arbiter = (n > 1).then(Arbiter::new);
        let handle = arbiter.as_ref().map(Arbiter::handle);
        match group {
            Group::Local => local(printer, start_all(ACTORS, handle).await?, window).await,
            Group::Population => population(printer, |n| start_all(n, handle.clone())).await,
            Group::Remote | Group::Serve => Err("no actors of other processes".into()),
        }
    })
}

fn main() -> std::process::ExitCode {
    peer_common::main_by_threads(run)
}
