//! The orderly end of a node.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use parking_lot::{Condvar, Mutex};

use crate::{
    Deadline, StartError, Time,
    api::context::resolve,
    engine::{
        Engine,
        clock::Waited,
        node::{Life, Node},
        sys,
    },
    proto::{membership::Ending, node::Command},
};

/// Why a node ends.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ShutdownReason {
    /// The program asked for it, or dropped the last handle.
    Requested,
    /// A signal, by number.
    Signal(i32),
    /// An operator told the node to leave, and it has left.
    Left,
    /// The cluster, or the node's own resolver, declared it dead: why.
    Downed(String),
    /// The cluster refused it for good: why.
    Refused(String),
}

/// What became of a shutdown.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ShutdownReport {
    /// Why.
    pub reason: ShutdownReason,
    /// From the first request to the end of the last thread.
    pub took: Duration,
    /// What was not done by its deadline.
    pub overran: Vec<String>,
    /// When it ended.
    pub ended: SystemTime,
}

#[derive(Default)]
struct State {
    requested: Option<ShutdownReason>,
    /// It is to end at once, as if it had been killed: without leaving.
    killed: bool,
    report: Option<ShutdownReport>,
    /// Signals are caught for this node.
    catches_signals: bool,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    node: Arc<Node>,
}

/// The thread that waits for the end and brings it about.
#[derive(Clone)]
pub(crate) struct Reaper {
    shared: Arc<Shared>,
}

/// Waits for the end of a shutdown.
#[derive(Clone)]
pub struct ShutdownHandle {
    shared: Arc<Shared>,
}

impl std::fmt::Debug for ShutdownHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ShutdownHandle({})", self.shared.node.addr)
    }
}

impl ShutdownHandle {
    /// Waits for the end; `None`: not done by the deadline.
    pub fn wait(&self, deadline: impl Into<Deadline>) -> Option<ShutdownReport> {
        let node = &self.shared.node;
        let deadline = resolve(node, deadline);
        match node.clock.wait(deadline, || self.shared.state.lock().report.clone()) {
            Waited::Found(report) => return Some(report),
            Waited::Late => return None,
            Waited::Machine => {}
        }
        let mut state = self.shared.state.lock();
        while state.report.is_none() {
            let left = deadline.since(node.now());
            if left.is_zero() {
                return None;
            }
            self.shared.changed.wait_for(&mut state, left);
        }
        state.report.clone()
    }
}

/// How often the reaper looks whether the node's life ended by itself. Off every path; the wait is on a condition otherwise.
const LOOK: Duration = Duration::from_millis(100);

impl Reaper {
    /// What the handles share with who brings the end about.
    pub fn new(node: Arc<Node>) -> Self {
        Self { shared: Arc::new(Shared { state: Mutex::default(), changed: Condvar::new(), node }) }
    }

    /// Starts the thread that waits.
    pub fn spawn(engine: Engine, #[cfg(feature = "admin")] server: Option<crate::admin::ServerHandle>) -> Result<Self, StartError> {
        let reaper = Self::new(engine.node.clone());
        let end = reaper.end();
        let name = "wingbeat-end".to_owned();
        let body = move || {
            run_to_the_end(
                end,
                engine,
                #[cfg(feature = "admin")]
                server,
            );
        };
        std::thread::Builder::new().name(name).spawn(body).map_err(StartError::Thread)?;
        Ok(reaper)
    }

    /// The way to the end, to be gone by one thread.
    pub fn end(&self) -> End {
        End { shared: self.shared.clone(), stage: Stage::Serving, requested: None, began: Time::ZERO, overran: vec![] }
    }

    /// Asks for the end; the first reason counts.
    pub fn request(&self, why: ShutdownReason) {
        self.shared.state.lock().requested.get_or_insert(why);
        self.shared.changed.notify_all();
    }

    /// Ends the node at once, without leaving the cluster.
    pub fn kill(&self) {
        self.shared.state.lock().killed = true;
        self.request(ShutdownReason::Requested);
    }

    /// Whoever waits for the end.
    pub fn handle(&self) -> ShutdownHandle {
        ShutdownHandle { shared: self.shared.clone() }
    }
}

/// The end of a node, step by step.
pub(crate) struct End {
    shared: Arc<Shared>,
    stage: Stage,
    requested: Option<ShutdownReason>,
    began: Time,
    overran: Vec<String>,
}

#[derive(Copy, Clone)]
enum Stage {
    /// Nobody has asked yet.
    Serving,
    /// Shards are handed off until this moment at most.
    Leaving(Time),
    /// Membership is over, or given up.
    Over,
}

/// What the end of a node waits for.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Awaits {
    /// Somebody who asks, or the end of membership.
    Request,
    /// The end of membership, at most so long.
    Life(Duration),
    /// The end of the threads: what refuses sends has been set.
    Threads,
}

impl End {
    /// Goes on as far as it can at this moment.
    pub fn step(&mut self, now: Time) -> Awaits {
        let node = self.shared.node.clone();
        let limit = node.config.shutdown.leave_timeout.get() + node.config.shutdown.drain_timeout.get();
        let running = node.life() == Life::Running;
        let killed = self.shared.state.lock().killed;
        if matches!(self.stage, Stage::Serving) {
            let requested = self.shared.state.lock().requested.clone();
            if requested.is_none() && running {
                return Awaits::Request;
            }
            self.began = now;
            self.requested = requested;
            self.stage = Stage::Over;
            if self.requested.is_some() && running && !killed {
                // While shards are handed off the node goes on serving; only then are sends refused.
                let id = node.id;
                node.command(move |n| Command::Leave { id: n, node: id }, None);
                self.stage = Stage::Leaving(now + limit);
            }
        }
        if let Stage::Leaving(until) = self.stage
            && running
            && !killed
        {
            if now < until {
                return Awaits::Life(until.since(now));
            }
            self.overran.push(format!("leaving the cluster took longer than {limit:?}; what was not handed off is lost"));
        }
        self.stage = Stage::Over;
        node.begin_closing();
        Awaits::Threads
    }

    /// All threads have ended: tells who waits. `life` is what the node had come to before they did.
    pub fn finish(self, now: Time, life: Life) {
        self.shared.node.set_life(Life::Stopped);
        let reason = match (self.requested, life) {
            (_, Life::Ended(Ending::Downed(why))) => ShutdownReason::Downed(why),
            (_, Life::Ended(Ending::Refused(why))) => ShutdownReason::Refused(why),
            (Some(why), _) => why,
            (None, _) => ShutdownReason::Left,
        };
        let report = ShutdownReport { reason, took: now.since(self.began), overran: self.overran, ended: SystemTime::now() };
        self.shared.state.lock().report = Some(report);
        self.shared.changed.notify_all();
    }
}

/// Runs on the reaper's thread from start to end of the node.
fn run_to_the_end(mut end: End, engine: Engine, #[cfg(feature = "admin")] server: Option<crate::admin::ServerHandle>) {
    let (shared, node) = (end.shared.clone(), engine.node.clone());
    loop {
        match end.step(node.now()) {
            Awaits::Request => {
                let mut state = shared.state.lock();
                if state.requested.is_none() {
                    shared.changed.wait_for(&mut state, LOOK);
                }
            }
            Awaits::Life(limit) => {
                // Looks up now and then, as it may be killed meanwhile.
                node.wait_life(limit.min(LOOK), |life| *life != Life::Running);
            }
            Awaits::Threads => break,
        }
    }
    let life = node.life();
    #[cfg(feature = "admin")]
    if let Some(mut server) = server {
        server.shutdown();
    }
    engine.stop();
    end.finish(node.now(), life);
}

/// Signals that arrive this close together are one: `timeout` and others signal the process and then its group, and shards must not be lost to that.
const SAME_SIGNAL: Duration = Duration::from_millis(5);

/// From now on signals start the end, and a second one is the end.
pub(crate) fn leave_on_signal(reaper: &Reaper) {
    use signal_hook::consts::{SIGINT, SIGTERM};
    if std::mem::replace(&mut reaper.shared.state.lock().catches_signals, true) {
        return;
    }
    match signal_hook::iterator::Signals::new([SIGINT, SIGTERM]) {
        Ok(mut signals) => {
            let reaper = reaper.clone();
            // Ends with the process: a node that has stopped for another reason is about to be dropped by its program.
            std::thread::spawn(move || {
                let mut first = None;
                for signal in signals.forever() {
                    let now = sys::now();
                    if now.since(*first.get_or_insert(now)) >= SAME_SIGNAL {
                        tracing::warn!(target: "wingbeat::shutdown", signal, "second signal: quitting at once");
                        std::process::exit(128 + signal);
                    }
                    if first == Some(now) {
                        tracing::info!(target: "wingbeat::shutdown", signal, "leaving the cluster");
                        reaper.request(ShutdownReason::Signal(signal));
                    }
                }
            });
        }
        Err(error) => tracing::error!(target: "wingbeat::shutdown", %error, "signals cannot be caught; the node ends only by request"),
    }
}

/// Blocks until the node has stopped.
pub(crate) fn run_until_signal(reaper: &Reaper) -> ShutdownReport {
    leave_on_signal(reaper);
    loop {
        if let Some(report) = reaper.handle().wait(Duration::from_secs(3600)) {
            return report;
        }
    }
}
