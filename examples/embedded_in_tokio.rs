//! A service that runs on Tokio asks entities: `cargo run --example embedded_in_tokio`.
//!
//! wingbeat needs no runtime and starts none. Answers are futures of the standard library, and whoever wants thousands of them gives a
//! completion queue a hook that wakes a task.

#![allow(missing_docs, reason = "an example explains itself")]

use std::{error::Error, io::Write, sync::Arc, time::Duration};

use tokio::sync::Notify;
use wingbeat::*;

messages! {
    pub enum CounterMsg for Counter(String) = "example.counter" {
        Add { n: u64 },
        Total -> u64,
    }
}

struct CounterState(u64);

impl Entity for CounterState {
    type Type = Counter;

    fn handle(&mut self, msg: CounterMsg, cx: &mut Cx<'_, Self>) {
        match msg {
            CounterMsg::Add(Add { n }) => self.0 += n,
            CounterMsg::Total(Total, reply) => cx.reply(reply, self.0),
        }
    }
}

const LIMIT: Duration = Duration::from_secs(30);

/// One request of the service: `tell` never blocks, and the answer is awaited.
async fn serve(counters: Region<Counter>, key: String, n: u64) -> Result<u64, Box<dyn Error + Send + Sync>> {
    let counter = counters.get(key);
    counter.tell(Add { n })?;
    Ok(counter.ask_async(Total, LIMIT).await?)
}

/// All totals at once, through a queue.
async fn sum(counters: &Region<Counter>, keys: u64) -> Result<u64, Box<dyn Error + Send + Sync>> {
    let (queue, notify) = (AskQueue::new(1024), Arc::new(Notify::new()));
    let waker = notify.clone();
    queue.set_wake(Arc::new(move || waker.notify_one()));
    let (mut answers, mut sum, mut next) = (vec![], 0, 0);
    while next < keys || queue.in_flight() > 0 {
        while next < keys {
            match counters.get(format!("c{next}")).ask_into(Total, LIMIT, next, &queue) {
                Ok(()) => next += 1,
                // There is room again when answers have been taken.
                Err(error) if matches!(error.reason(), Refusal::Full | Refusal::NoCredit) && queue.in_flight() > 0 => break,
                Err(error) => return Err(error.into()),
            }
        }
        if queue.poll(&mut answers) == 0 {
            notify.notified().await;
        }
        for answer in answers.drain(..) {
            sum += answer.result?;
        }
    }
    Ok(sum)
}

/// Everything `main` does.
pub fn run(out: &mut dyn Write) -> Result<(), Box<dyn Error + Send + Sync>> {
    let cluster = Cluster::builder("tokio").listen("127.0.0.1:0".parse()?).start()?;
    let counters = cluster.host::<CounterState>(HostOptions::new(), |_| CounterState(0))?;
    counters.wait_ready(LIMIT)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    runtime.block_on(async {
        let requests: Vec<_> = (0..100).map(|n| tokio::spawn(serve(counters.clone(), format!("c{}", n % 10), n))).collect();
        for request in requests {
            request.await??;
        }
        writeln!(out, "100 requests to 10 counters; together with 4990 more they are at {}", sum(&counters, 5_000).await?)?;
        // The runtime's own limits work on it like on any future.
        let in_time = tokio::time::timeout(LIMIT, counters.get("c1").ask_async(Total, LIMIT)).await??;
        writeln!(out, "c1 is at {in_time}")?;
        Ok(())
    })
}

#[allow(dead_code, reason = "a test calls `run` alone")]
fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    run(&mut std::io::stdout())
}
