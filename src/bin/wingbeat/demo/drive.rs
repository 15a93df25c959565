//! Feeds the flights to a cluster through one node: a few connections, each with one batch on its way.

use std::{
    net::SocketAddr,
    ops::ControlFlow,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use crossbeam::channel::{Receiver, RecvTimeoutError, Sender, bounded, unbounded};

use super::{
    client::Client,
    feeder::{Answer, Batch, Feeder},
    flights::Flights,
    lines,
};
use crate::fail::Failure;

/// How to feed.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Admin address of the node that is driven.
    pub node: SocketAddr,
    /// How long the flights should take; `None`: as fast as they are taken.
    pub pace: Option<Duration>,
    /// Connections for healthy aircraft; one more serves the ailing ones.
    pub connections: usize,
    /// Most lines of a batch.
    pub lines_max: usize,
    /// How long an aircraft has to answer a line.
    pub line_timeout: Duration,
    /// The run is given up when nothing has moved for so long.
    pub patience: Duration,
}

impl Plan {
    pub fn new(node: SocketAddr) -> Self {
        Self { node, pace: None, connections: 3, lines_max: 1_000, line_timeout: Duration::from_secs(1), patience: Duration::from_secs(60) }
    }
}

/// Looks on while flights are fed.
pub trait Watch {
    /// How many flights, in order of departure, may be on the way or arrived: the others wait for something on the stage.
    fn may_release(&self, total: usize) -> usize;
    /// Called many times a second. `Break` ends the run at once.
    fn tick(&mut self, feeder: &Feeder, departed_until: i64, now: Duration) -> Result<ControlFlow<()>, Failure>;
    /// Every flight has arrived once: whether it is time for the reports.
    fn may_verify(&mut self, now: Duration) -> bool;
}

/// How a run ended.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// Every aircraft gave its report with all its flights.
    Done,
    /// Nothing moved for as long as patience lasts.
    Stuck,
    /// The onlooker said so.
    Stopped,
}

/// Longest time between two looks at what there is to do.
const TICK: Duration = Duration::from_millis(10);
/// What a request takes beyond the time that its lines have.
const REQUEST_SPARE: Duration = Duration::from_secs(10);
/// Batches of aircraft that wait in turn; flights beyond are not released, so that they go out in order of departure.
const BATCHES_AHEAD: usize = 2;

struct Finished {
    batch: Batch,
    outcome: Result<Vec<Answer>, Trouble>,
}

enum Trouble {
    /// The request did not get through; the lines may have.
    Broken(String),
    /// Sending again would not help.
    Pointless(String),
}

/// Feeds all flights and asks every aircraft for its report.
pub fn drive(flights: &Arc<Flights>, plan: &Plan, watch: &mut dyn Watch) -> Result<(Feeder, End), Failure> {
    let (done_tx, done) = unbounded();
    let healthy = connections(plan.connections, flights, plan, &done_tx);
    let ailing = connections(1, flights, plan, &done_tx);
    Drive {
        feeder: Feeder::new(flights.aircraft().iter().map(|aircraft| aircraft.flights())),
        flights,
        plan,
        started: Instant::now(),
        released: 0,
        healthy: Lane { jobs: healthy, idle: plan.connections },
        ailing: Lane { jobs: ailing, idle: 1 },
        done,
    }
    .run(watch)
}

/// Connections of one kind. They end when the sender of their jobs is dropped.
struct Lane {
    jobs: Sender<Batch>,
    idle: usize,
}

struct Drive<'a> {
    feeder: Feeder,
    flights: &'a Arc<Flights>,
    plan: &'a Plan,
    started: Instant,
    /// How many flights, in order of departure, may be sent.
    released: usize,
    healthy: Lane,
    ailing: Lane,
    done: Receiver<Finished>,
}

impl Drive<'_> {
    fn run(mut self, watch: &mut dyn Watch) -> Result<(Feeder, End), Failure> {
        loop {
            let now = self.started.elapsed();
            self.release(now, watch.may_release(self.flights.len()));
            if self.feeder.all_arrived() && watch.may_verify(now) {
                self.feeder.verify();
            }
            self.send(now);
            if self.feeder.done() {
                return Ok((self.feeder, End::Done));
            }
            let departed = self.flights.in_order()[self.released.saturating_sub(1)].departs;
            if watch.tick(&self.feeder, departed, now)?.is_break() {
                return Ok((self.feeder, End::Stopped));
            }
            if now > self.feeder.last_progress().max(self.due_last()) + self.plan.patience {
                return Ok((self.feeder, End::Stuck));
            }
            self.take()?;
        }
    }

    fn release(&mut self, now: Duration, limit: usize) {
        let in_order = &self.flights.in_order()[..limit.min(self.flights.len())];
        let ahead = self.plan.connections * self.plan.lines_max * BATCHES_AHEAD;
        while self.released < in_order.len() && self.feeder.waiting() < ahead && self.due(self.released) <= now {
            self.feeder.release(in_order[self.released].aircraft);
            self.released += 1;
        }
    }

    /// When a flight departs on the clock of the run.
    fn due(&self, index: usize) -> Duration {
        let in_order = self.flights.in_order();
        let (Some(pace), Some(first), Some(last)) = (self.plan.pace, in_order.first(), in_order.last()) else { return Duration::ZERO };
        let span = (last.departs - first.departs).max(1);
        pace.mul_f64((in_order[index].departs - first.departs) as f64 / span as f64)
    }

    fn due_last(&self) -> Duration {
        if self.released < self.flights.len() { self.due(self.released) } else { Duration::ZERO }
    }

    fn send(&mut self, now: Duration) {
        for (lane, ailing) in [(&mut self.healthy, false), (&mut self.ailing, true)] {
            while lane.idle > 0
                && let Some(batch) = self.feeder.next_batch(ailing, self.plan.lines_max, now)
            {
                lane.idle -= 1;
                lane.jobs.send(batch).expect("connections end only when this sender is dropped");
            }
        }
    }

    fn take(&mut self) -> Result<(), Failure> {
        let mut next = match self.done.recv_timeout(TICK) {
            Ok(finished) => Some(finished),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => {
                return Err(Failure::unhealthy("E-CLI-031", "every connection of the driver ended", "this is a fault of the program"));
            }
        };
        while let Some(Finished { batch, outcome }) = next {
            let lane = if batch.ailing { &mut self.ailing } else { &mut self.healthy };
            lane.idle += 1;
            let now = self.started.elapsed();
            match outcome {
                Ok(answers) => self.feeder.answered(&batch, &answers, now),
                Err(Trouble::Broken(why)) => self.feeder.failed(&batch, &why, now),
                Err(Trouble::Pointless(why)) => {
                    let what = format!("{}: {why}", self.plan.node);
                    return Err(Failure::unhealthy("E-CLI-030", what, "this is a fault of the program or of the node"));
                }
            }
            next = self.done.try_recv().ok();
        }
        Ok(())
    }
}

fn connections(count: usize, flights: &Arc<Flights>, plan: &Plan, done: &Sender<Finished>) -> Sender<Batch> {
    let (jobs, todo) = bounded::<Batch>(count);
    for _ in 0..count {
        let (todo, done, flights, plan) = (todo.clone(), done.clone(), Arc::clone(flights), plan.clone());
        thread::spawn(move || serve(&todo, &done, &flights, &plan));
    }
    jobs
}

/// One connection: a batch at a time, until there are no more.
fn serve(todo: &Receiver<Batch>, done: &Sender<Finished>, flights: &Flights, plan: &Plan) {
    let path = format!("/api/v1/batch?timeout_ms={}", plan.line_timeout.as_millis());
    let mut client = Client::new(plan.node);
    let mut body = Vec::new();
    for batch in todo {
        body.clear();
        lines::write(&batch, flights, &mut body);
        let outcome = exchange(&mut client, &path, &body, &batch, plan.line_timeout + REQUEST_SPARE);
        if done.send(Finished { batch, outcome }).is_err() {
            return;
        }
    }
}

fn exchange(client: &mut Client, path: &str, body: &[u8], batch: &Batch, within: Duration) -> Result<Vec<Answer>, Trouble> {
    match client.post(path, body, within) {
        Err(error) => Err(Trouble::Broken(error.to_string())),
        Ok((200, answer)) => lines::read(batch, answer).map_err(Trouble::Pointless),
        Ok((status, answer)) => {
            let shown: String = String::from_utf8_lossy(answer).chars().take(300).collect();
            let why = format!("status {status} to a batch of {} lines: {}", batch.lines.len(), shown.trim());
            match status {
                408 | 429 | 500..=599 => Err(Trouble::Broken(why)),
                _ => Err(Trouble::Pointless(why)),
            }
        }
    }
}
