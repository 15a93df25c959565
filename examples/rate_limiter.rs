//! A token bucket per key, for a million keys; those that nobody uses leave memory: `cargo run --release --example rate_limiter`.

#![allow(missing_docs, reason = "an example explains itself")]

use std::{
    error::Error,
    io::Write,
    sync::atomic::{AtomicI64, Ordering},
    time::Duration,
};

use wingbeat::*;

messages! {
    pub enum BucketMsg for Bucket(u64) = "example.bucket" {
        /// May one more request pass?
        Allow -> bool,
    }
}

/// Requests that may come at once.
const BURST: f64 = 2.0;
/// Requests per second in the long run.
const RATE: f64 = 1.0;
/// A bucket that was not used for so long is full again: to forget it loses nothing.
const FORGET: Duration = Duration::from_secs(2);

/// Buckets in memory.
static LIVE: AtomicI64 = AtomicI64::new(0);

struct BucketState {
    tokens: f64,
    at: Time,
}

impl Entity for BucketState {
    type Type = Bucket;

    fn started(&mut self, cx: &mut Cx<'_, Self>) {
        LIVE.fetch_add(1, Ordering::Relaxed);
        self.at = cx.now();
    }

    fn handle(&mut self, BucketMsg::Allow(Allow, reply): BucketMsg, cx: &mut Cx<'_, Self>) {
        // The turn's time: no clock is read here.
        let passed = cx.now().since(self.at).as_secs_f64();
        (self.tokens, self.at) = ((self.tokens + passed * RATE).min(BURST), cx.now());
        let allowed = self.tokens >= 1.0;
        if allowed {
            self.tokens -= 1.0;
        }
        cx.reply(reply, allowed);
    }

    fn stopped(&mut self, _: StopReason, _: &mut Cx<'_, Self>) {
        LIVE.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Everything `main` does: a request for each of so many keys, then five at once for one of them.
pub fn run(out: &mut dyn Write, keys: u64) -> Result<(), Box<dyn Error>> {
    let limit = Duration::from_secs(60);
    let cluster = Cluster::builder("rate_limiter").listen("127.0.0.1:0".parse()?).start()?;
    let options = HostOptions::new().shards(100).passivation(Passivation::idle(FORGET));
    let buckets = cluster.host::<BucketState>(options, |_| BucketState { tokens: BURST, at: Time::ZERO })?;
    buckets.wait_ready(limit)?;
    let queue = AskQueue::new(4096);
    let (mut answers, mut allowed) = (vec![], 0u64);
    let mut take = |answers: &mut Vec<Answer<bool>>| answers.drain(..).for_each(|answer| allowed += u64::from(answer.result == Ok(true)));
    for key in 0..keys {
        let bucket = buckets.get(key);
        // A queue that is full for the moment gives the request back: answers are taken, and it is sent again.
        while let Err(error) = bucket.ask_into(Allow, limit, key, &queue) {
            if !matches!(error.reason(), Refusal::Full | Refusal::NoCredit) {
                return Err(error.into());
            }
            queue.wait(&mut answers, limit);
            take(&mut answers);
        }
    }
    while queue.in_flight() > 0 {
        queue.wait(&mut answers, limit);
        take(&mut answers);
    }
    writeln!(out, "{keys} keys, {allowed} requests allowed")?;
    let bucket = buckets.get(keys);
    for tag in 0..5 {
        bucket.ask_into(Allow, limit, tag, &queue)?;
    }
    while queue.in_flight() > 0 {
        queue.wait(&mut answers, limit);
    }
    // One entity's answers come in the order of its requests.
    let burst: Vec<bool> = answers.drain(..).map(|answer| answer.result).collect::<Result<_, _>>()?;
    writeln!(out, "five at once for one key: {burst:?}")?;
    while LIVE.load(Ordering::Relaxed) > 0 {
        std::thread::park_timeout(Duration::from_millis(50));
    }
    writeln!(out, "all have left memory")?;
    Ok(())
}

#[allow(dead_code, reason = "a test calls `run` alone")]
fn main() -> Result<(), Box<dyn Error>> {
    run(&mut std::io::stdout(), 1_000_000)
}
