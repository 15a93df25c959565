//! `--inside`: an entity tells and asks the others, on the worker that they share. No thread waits for another one.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use hdrhistogram::Histogram;
use parking_lot::Mutex;
use wingbeat::{AskError, Batch, Cluster, Cx, Entity, EntityRef, HostOptions, Promise, Region};

use super::{
    alloc,
    entity::{Bench, Echo, Note, Payload},
    limits,
    report::Run,
    rig::{BATCH, Error, PATIENCE},
};

wingbeat::messages! {
    /// What the entity in the middle gets; its requests are answered with how many messages that were.
    pub enum DriverMsg for Driving(u64) = "bench.driver" {
        TellFor { nanos: u64, batches: bool } -> u64,
        AskFor { nanos: u64 } -> u64,
        /// Behind the notes before, as it comes the same way.
        TellMore {},
        Answered { words: [u64; 8] },
        Failed { why: String },
    }
}

/// Latencies of the requests, for who has started the measurement.
type Seen = Arc<Mutex<Histogram<u64>>>;

/// Tells or asks the others in turn.
struct Driver {
    all: Vec<EntityRef<Bench>>,
    region: Region<Bench>,
    seen: Seen,
    /// The measurement that runs.
    run: Option<Running>,
}

struct Running {
    began: Instant,
    window: Duration,
    done: u64,
    /// When the request in flight was sent.
    sent: Instant,
    /// The latencies of this run.
    latencies: Histogram<u64>,
    batch: Option<Batch<Bench>>,
    over: Promise<u64>,
}

impl Driver {
    fn begin(&mut self, nanos: u64, batch: Option<Batch<Bench>>, over: Promise<u64>) {
        let now = Instant::now();
        let window = Duration::from_nanos(nanos);
        self.run = Some(Running { began: now, window, done: 0, sent: now, latencies: limits::histogram(), batch, over });
    }

    fn tell(&mut self, cx: &mut Cx<'_, Self>) {
        let Some(run) = &mut self.run else { return };
        if run.began.elapsed() >= run.window {
            return self.end();
        }
        for i in run.done..run.done + BATCH {
            let to = &self.all[(i % self.all.len() as u64) as usize];
            let note = Note(Payload([i; 8]));
            match &mut run.batch {
                Some(batch) => drop(batch.push(*to.key(), note)),
                None => {
                    if let Err(error) = cx.tell(to, note) {
                        return self.fail(&error);
                    }
                }
            }
        }
        if let Some(batch) = &mut run.batch
            && let Some((_, error)) = batch.send().refused.first()
        {
            let why = error.to_string();
            return self.fail(&why);
        }
        run.done += BATCH;
        if let Err(error) = cx.tell(&cx.this(), TellMore {}) {
            self.fail(&error);
        }
    }

    fn ask(&mut self, cx: &mut Cx<'_, Self>) {
        let Some(run) = &mut self.run else { return };
        let to = &self.all[(run.done % self.all.len() as u64) as usize];
        run.sent = Instant::now();
        cx.ask(to, Echo(Payload([run.done; 8])), PATIENCE, |answer: Result<Payload, AskError>| match answer {
            Ok(Payload(words)) => DriverMsg::Answered(Answered { words }),
            Err(error) => DriverMsg::Failed(Failed { why: error.to_string() }),
        });
    }

    fn answered(&mut self, words: [u64; 8], cx: &mut Cx<'_, Self>) {
        let Some(run) = &mut self.run else { return };
        let now = Instant::now();
        run.latencies.saturating_record(now.duration_since(run.sent).as_nanos() as u64);
        if words != [run.done; 8] {
            let why = format!("request {} got the answer of another: {words:?}", run.done);
            return self.fail(&why);
        }
        run.done += 1;
        if now.duration_since(run.began) >= run.window { self.end() } else { self.ask(cx) }
    }

    fn end(&mut self) {
        if let Some(run) = self.run.take() {
            *self.seen.lock() = run.latencies;
            run.over.fulfil(run.done);
        }
    }

    fn fail(&mut self, why: &dyn std::fmt::Display) {
        if let Some(run) = self.run.take() {
            run.over.reject(why.to_string());
        }
    }
}

impl Entity for Driver {
    type Type = Driving;

    fn handle(&mut self, msg: DriverMsg, cx: &mut Cx<'_, Self>) {
        match msg {
            DriverMsg::TellFor(TellFor { nanos, batches }, over) => {
                let batch = batches.then(|| self.region.batch());
                self.begin(nanos, batch, cx.defer(over));
                self.tell(cx);
            }
            DriverMsg::AskFor(AskFor { nanos }, over) => {
                self.begin(nanos, None, cx.defer(over));
                self.ask(cx);
            }
            DriverMsg::TellMore(_) => self.tell(cx),
            DriverMsg::Answered(Answered { words }) => self.answered(words, cx),
            DriverMsg::Failed(Failed { why }) => self.fail(&why),
        }
    }
}

/// The entity in the middle, for whoever measures.
pub struct Inside {
    driver: EntityRef<Driving>,
    seen: Seen,
}

impl Inside {
    /// On a node that hosts `all`.
    pub fn new(cluster: &Cluster, region: &Region<Bench>, all: &[EntityRef<Bench>]) -> Result<Self, Error> {
        let seen = Seen::new(Mutex::new(limits::histogram()));
        let (all, region, theirs) = (all.to_vec(), region.clone(), seen.clone());
        let driver = cluster.host::<Driver>(HostOptions::new(), move |_| Driver {
            all: all.clone(),
            region: region.clone(),
            seen: theirs.clone(),
            run: None,
        })?;
        driver.wait_ready(PATIENCE)?;
        Ok(Self { driver: driver.get(0), seen })
    }

    /// Sends notes round robin for about `window`, until all were handled: the run, and how many were sent.
    pub fn tell_for(&self, batches: bool, window: Duration) -> Result<(Run, u64), Error> {
        let nanos = window.as_nanos() as u64;
        let (result, allocated) = alloc::counted(|| {
            let began = Instant::now();
            let sent = self.driver.ask(TellFor { nanos, batches }, window + PATIENCE)?;
            Ok::<_, Error>((sent, began.elapsed()))
        });
        let (sent, took) = result?;
        let throughput = Some(sent as f64 / took.as_secs_f64());
        Ok((Run { throughput, allocations: Some(allocated as f64 / sent as f64), ..Run::default() }, sent))
    }

    /// Asks round robin, one in flight, for `window`.
    pub fn ask_for(&self, window: Duration) -> Result<Run, Error> {
        let nanos = window.as_nanos() as u64;
        let (done, allocated) = alloc::counted(|| self.driver.ask(AskFor { nanos }, window + PATIENCE));
        let done = done?;
        let seen = self.seen.lock();
        let allocations = Some(allocated as f64 / done as f64);
        Ok(Run { allocations, ..Run::of(&seen, Some(done as f64 / window.as_secs_f64())) })
    }
}
