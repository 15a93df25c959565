//! `wingbeat demo`: real processes, real flights, a killed node, the right sums.

pub mod client;
pub mod drive;
pub mod feeder;
pub mod flights;
pub mod lines;
pub mod nodes;
pub mod reference;
pub mod shards;
mod show;
#[cfg(test)]
mod tests;
pub mod verdict;

use std::{
    ops::ControlFlow,
    path::PathBuf,
    process::ExitCode,
    str::FromStr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use clap::Args;
use serde_json::json;

use self::{
    drive::{End, Plan, Watch, drive},
    feeder::Feeder,
    flights::{Flights, Source},
    nodes::{Nodes, Starting},
    shards::{Watcher, up},
    show::Show,
    verdict::Verdict,
};
use crate::{
    fail::{Exit, Failure},
    http::Admin,
    interrupt::{self, asked_to_end},
    out::say,
};

/// How long a paced replay takes.
const PACE: Duration = Duration::from_secs(30);
/// How long the nodes may take to form a cluster.
const UP_WITHIN: Duration = Duration::from_secs(60);
/// How long the comparison waits for the replacement to join. It is not needed for the sums to be right.
const REPLACED_WITHIN: Duration = Duration::from_secs(30);
/// How often the picture is drawn and the nodes are looked after.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How often members are asked for while one waits for them.
const ASK_EVERY: Duration = Duration::from_millis(20);
/// Lines about aircraft that do not agree.
const DIFFERENCES_SHOWN: usize = 50;

/// Replay flights to a cluster of real processes, kill one half way, and compare the sums.
#[derive(Args, Clone, Debug)]
pub struct DemoArgs {
    /// Node processes to start
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(3..=32))]
    nodes: u16,
    /// Replay as fast as the cluster takes it, instead of in 30 seconds
    #[arg(long)]
    max: bool,
    /// When to kill a node, in percent of the flights; `never` kills none
    #[arg(long, value_name = "PERCENT", default_value = "50%")]
    kill_at: KillAt,
    /// Flights to replay, .csv or .csv.gz; default: two weeks of flights from New York
    #[arg(long, value_name = "FILE")]
    data: Option<PathBuf>,
    /// Print one JSON object on standard output
    #[arg(long)]
    json: bool,
}

/// A share of the flights, or never.
#[derive(Copy, Clone, Debug, PartialEq)]
struct KillAt(Option<f64>);

impl FromStr for KillAt {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "never" {
            return Ok(Self(None));
        }
        let percent = text.strip_suffix('%').unwrap_or(text).parse::<f64>().ok().filter(|percent| (0.0..=100.0).contains(percent));
        percent.map(|percent| Self(Some(percent / 100.0))).ok_or_else(|| "expected 0% to 100%, or `never`".into())
    }
}

/// Runs the demo.
pub fn run(args: &DemoArgs) -> Result<ExitCode, Failure> {
    let interrupted = interrupt::flag()?;
    // The file comes first: what is wrong with it is said before anything is started.
    let source = Source::open(args.data.as_deref())?;
    let flights = Arc::new(Flights::read(&source)?);
    let sums = thread::spawn(move || reference::sums(&source.text).map_err(|why| (source.name, why)));
    let show = Show::new(flights.len() as u64, args.json);
    show.say(&format!(
        "{} flights of {} aircraft, {} to {}; {} rows without tail number belong to none",
        flights.len(),
        flights.aircraft().len(),
        flights::shown(flights.in_order()[0].departs),
        flights::shown(flights.in_order()[flights.len() - 1].departs),
        flights.unattributed()
    ));

    let mut nodes = Nodes::new()?;
    let started = Instant::now();
    let all_up = start_all(&mut nodes, args.nodes, &interrupted);
    if let Some(exit) = asked_to_end(&interrupted) {
        return Ok(exit);
    }
    all_up?;
    show.say(&format!("{} nodes up after {:.1} s", args.nodes, started.elapsed().as_secs_f64()));

    let first = nodes.first();
    let plan = Plan { pace: (!args.max).then_some(PACE), ..Plan::new(first.admin) };
    let watcher = Watcher::start(Admin::new(&first.admin.to_string(), None)?);
    let mut stage = Stage::new(args, nodes, watcher, show, &interrupted);
    let fed = Instant::now();
    let (feeder, end) = drive(&flights, &plan, &mut stage)?;
    let seconds = fed.elapsed().as_secs_f64();
    stage.watcher.look();
    stage.show.end();
    if let Some(exit) = asked_to_end(&interrupted) {
        return Ok(exit);
    }

    let expected = sums.join().map_err(|_| broken("summing up the file panicked"))?;
    let expected = expected.map_err(|(name, why)| Failure::usage("E-CLI-023", format!("{name}: {why}"), "correct the file"))?;
    let reports = flights.aircraft().iter().enumerate().map(|(index, aircraft)| (aircraft.tailnum.as_str(), feeder.report(index)));
    let verdict = Verdict::new(&expected, reports);
    let outcome = Outcome { args, flights: &flights, feeder: &feeder, verdict: &verdict, stage: &stage, seconds };
    outcome.show(end)?;
    Ok(if verdict.holds() { ExitCode::SUCCESS } else { Exit::Unhealthy.into() })
}

fn broken(what: &str) -> Failure {
    Failure::unhealthy("E-CLI-031", what, "this is a fault of the program")
}

/// Starts the nodes, the first one alone, and waits until all of them are up.
fn start_all(nodes: &mut Nodes, count: u16, interrupted: &AtomicUsize) -> Result<(), Failure> {
    let gone = || interrupted.load(Ordering::Relaxed) != 0;
    let first = nodes.spawn()?.wait(gone)?;
    nodes.add(first);
    let others: Result<Vec<Starting>, Failure> = (1..count).map(|_| nodes.spawn()).collect();
    for starting in others? {
        let node = starting.wait(gone)?;
        nodes.add(node);
    }
    let deadline = Instant::now() + UP_WITHIN;
    let asks: Vec<Admin> = nodes.iter().map(|node| Admin::new(&node.admin.to_string(), None)).collect::<Result<_, _>>()?;
    // Every node has to see every other one, so that no request of the driver meets a node that is only joining.
    for admin in &asks {
        loop {
            let seen = up(admin).map_or(0, |up| up.len());
            if seen >= usize::from(count) || gone() {
                break;
            }
            nodes.check()?;
            if Instant::now() > deadline {
                let what = format!("{seen} of {count} nodes were up after {} s", UP_WITHIN.as_secs());
                return Err(Failure::unreachable("E-CLI-044", what, "try again on a machine that is less busy"));
            }
            thread::sleep(ASK_EVERY);
        }
    }
    Ok(())
}

/// The killed node's replacement, step by step.
enum Replacement {
    None,
    Starting(Starting),
    Joining { addr: String, since: Duration },
    Up,
    Late,
}

/// What happens on the stage while the flights are fed: the kill, the replacement, the picture.
struct Stage<'a> {
    nodes: Nodes,
    watcher: Watcher,
    show: Show,
    interrupted: &'a AtomicUsize,
    kill_at: Option<f64>,
    /// The line was reached: the next flights are on their way, and the node is killed under them.
    kill_next: bool,
    killed: Option<String>,
    replacement: Replacement,
    next_look: Duration,
    in_verification: bool,
}

impl<'a> Stage<'a> {
    fn new(args: &DemoArgs, nodes: Nodes, watcher: Watcher, show: Show, interrupted: &'a AtomicUsize) -> Self {
        Self {
            nodes,
            watcher,
            show,
            interrupted,
            kill_at: args.kill_at.0,
            kill_next: false,
            killed: None,
            replacement: Replacement::None,
            next_look: Duration::ZERO,
            in_verification: false,
        }
    }

    fn shown(&self) -> String {
        self.watcher.seen().shards.shown(self.nodes.iter().map(|node| (node.name.as_str(), node.addr.as_str())))
    }

    /// Kills the node that holds the most shards; never the one that the driver talks to.
    fn kill(&mut self, feeder: &Feeder) -> Result<(), Failure> {
        let victims = self.nodes.iter().enumerate().skip(1);
        let held = victims.map(|(index, node)| (index, self.watcher.seen().shards.held_by(&node.addr)));
        let Some((index, count)) = held.max_by_key(|&(_, count)| count) else { return Ok(()) };
        let name = self.nodes.iter().nth(index).map(|node| node.name.clone()).unwrap_or_default();
        let addr = self.nodes.kill(index)?;
        let tally = feeder.tally();
        self.show.say(&format!("killed {name} ({addr}) with {count} shards after {} of {} flights", tally.arrived, feeder.total()));
        self.killed = Some(addr);
        self.replacement = Replacement::Starting(self.nodes.spawn()?);
        Ok(())
    }

    fn replace(&mut self, now: Duration) -> Result<(), Failure> {
        match &mut self.replacement {
            Replacement::Starting(starting) => {
                if let Some(node) = starting.poll()? {
                    let addr = node.addr.clone();
                    self.show.say(&format!("started {} ({addr}) in its place", node.name));
                    self.nodes.add(node);
                    self.replacement = Replacement::Joining { addr, since: now };
                }
            }
            Replacement::Joining { addr, since } => {
                if self.watcher.seen().up.contains(addr) {
                    self.show.say(&format!("{addr} is up"));
                    self.replacement = Replacement::Up;
                } else if now > *since + REPLACED_WITHIN {
                    self.show.say(&format!("warning: {addr} did not join within {} s", REPLACED_WITHIN.as_secs()));
                    self.replacement = Replacement::Late;
                }
            }
            Replacement::None | Replacement::Up | Replacement::Late => {}
        }
        Ok(())
    }
}

/// How many of the flights that share is.
fn line(share: f64, total: u64) -> u64 {
    (share * total as f64).ceil() as u64
}

impl Watch for Stage<'_> {
    fn may_release(&self, total: usize) -> usize {
        match self.kill_at {
            Some(share) if !self.kill_next => line(share, total as u64) as usize,
            _ => total,
        }
    }

    fn tick(&mut self, feeder: &Feeder, departed_until: i64, now: Duration) -> Result<ControlFlow<()>, Failure> {
        if self.interrupted.load(Ordering::Relaxed) != 0 {
            return Ok(ControlFlow::Break(()));
        }
        let arrived = feeder.tally().arrived;
        if self.killed.is_none() && self.kill_at.is_some_and(|share| arrived >= line(share, feeder.total())) {
            if self.kill_next {
                self.kill(feeder)?;
            } else {
                self.watcher.look();
                self.kill_next = true;
            }
        }
        if now >= self.next_look {
            self.next_look = now + LOOK_EVERY;
            self.nodes.check()?;
            self.replace(now)?;
            let shards = self.shown();
            self.show.progress(arrived, feeder.total(), &flights::shown(departed_until), &shards, now);
        }
        Ok(ControlFlow::Continue(()))
    }

    fn may_verify(&mut self, _now: Duration) -> bool {
        let killed = self.killed.is_some() || self.kill_at.is_none();
        let ready = killed && !matches!(self.replacement, Replacement::Starting(_) | Replacement::Joining { .. });
        if ready && !std::mem::replace(&mut self.in_verification, true) {
            self.next_look = Duration::ZERO;
            self.watcher.look();
            self.show.say(&format!("every flight has arrived; shards: {}; asking every aircraft for its sums", self.shown()));
        }
        ready
    }
}

/// Everything that the result is made of.
struct Outcome<'a> {
    args: &'a DemoArgs,
    flights: &'a Flights,
    feeder: &'a Feeder,
    verdict: &'a Verdict,
    stage: &'a Stage<'a>,
    seconds: f64,
}

impl Outcome<'_> {
    fn show(&self, end: End) -> Result<(), Failure> {
        if end == End::Stuck {
            self.stage.show.say(&format!("gave up: {}", self.feeder.tally().last_failure.as_deref().unwrap_or("nothing moved any more")));
        }
        for difference in self.verdict.differences.iter().take(DIFFERENCES_SHOWN) {
            self.stage.show.say(difference);
        }
        if self.verdict.differences.len() > DIFFERENCES_SHOWN {
            self.stage.show.say(&format!("and {} more", self.verdict.differences.len() - DIFFERENCES_SHOWN));
        }
        match self.args.json {
            true => say(&self.json().to_string()),
            false => self.tell(),
        }
    }

    fn json(&self) -> serde_json::Value {
        let tally = self.feeder.tally();
        json!({
            "aircraft": self.verdict.aircraft,
            "agree": self.verdict.agree,
            "flights": self.flights.len(),
            "unattributed": self.flights.unattributed(),
            "applied": self.verdict.applied,
            "resent": tally.resent,
            "nodes": self.args.nodes,
            "killed": u32::from(self.stage.killed.is_some()),
            "moved_shards": self.stage.watcher.seen().shards.moved,
            "unavailable_ms_max": tally.unavailable_max.as_millis() as u64,
            "seconds": (self.seconds * 1_000.0).round() / 1_000.0,
            "flights_per_s": (self.flights.len() as f64 / self.seconds.max(0.001)).round(),
            "failed_lines": tally.failed_lines,
            "started_anew": tally.started_anew,
        })
    }

    fn tell(&self) -> Result<(), Failure> {
        let tally = self.feeder.tally();
        say(&format!(
            "{} flights applied in {:.1} s ({:.0} a second), {} of them sent again; {} shards moved; an aircraft was unavailable for {:.1} s at most; \
             {} rows belong to no aircraft",
            self.verdict.applied,
            self.seconds,
            self.flights.len() as f64 / self.seconds.max(0.001),
            tally.resent,
            self.stage.watcher.seen().shards.moved,
            tally.unavailable_max.as_secs_f64(),
            self.flights.unattributed()
        ))?;
        say(&format!("{}/{} aircraft agree", self.verdict.agree, self.verdict.aircraft))
    }
}
