//! The orderly end of a node.

use std::{
    fmt,
    sync::{Arc, OnceLock, Weak},
    time::{Duration, SystemTime},
};

use parking_lot::{Condvar, Mutex};

use crate::{
    Deadline, NodeAddr, RegisterError, StartError, Time,
    api::context::resolve,
    engine::{
        Engine,
        clock::{Clock, Waited},
        node::{Life, Node},
        panics, sys,
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
    /// The cluster, or the node's own resolver, declared it dead: why. Where that happens to one that is ending already, its reason stays what it was, and
    /// [`ShutdownReport::overran`] has this.
    Downed(String),
    /// The cluster refused it for good: why.
    Refused(String),
    /// Its cluster stood beside another one of that name, with members at these addresses, and was the lesser of the two: fewer members in reach, or as
    /// many of which fewer have ever become up. So it is when a seed that starts again hears nobody and founds one.
    /// [`Config::asking`](crate::Config::asking) has the settings with which it joins that.
    Superseded(Vec<NodeAddr>),
    /// A thread of the library's has panicked, which is a bug: which thread. The node ends without leaving the cluster.
    Failed(String),
}

/// What a node does on its way to the end, in this order. Each phase begins when the one before is done, or its time is up.
///
/// [`Cluster::on_shutdown`](crate::Cluster::on_shutdown) adds tasks of the program's own. Those of one phase start together when it begins, each
/// with a deadline of its own.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[non_exhaustive]
pub enum Phase {
    /// Tasks only: take nothing more in from outside. The node serves as ever.
    StopAccepting,
    /// Tasks only: finish what was taken in. The node serves as ever.
    DrainRequests,
    /// The shards are handed off, and the node serves what it still has. Once nothing lives here any more, sends are refused with `Shutdown`, and what
    /// was sent here before has time to arrive: `shutdown.drain_timeout`, and no more than half of `shutdown.leave_timeout`. Then the node leaves the
    /// cluster. All of that takes those two settings together at most. A node that the cluster has removed has left already.
    LeaveCluster,
    /// From now on sends are refused in any case; nothing runs here any more but what is under way. Tasks: write out what must not be lost.
    Flush,
    /// Tasks, then all threads end. A handler that has not returned after ten seconds is left behind with its thread.
    StopEngine,
}

impl Phase {
    const ALL: [Self; 5] = [Self::StopAccepting, Self::DrainRequests, Self::LeaveCluster, Self::Flush, Self::StopEngine];

    fn next(self) -> Option<Self> {
        Self::ALL.into_iter().find(|phase| *phase > self)
    }

    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            Self::StopAccepting => "stop accepting",
            Self::DrainRequests => "drain requests",
            Self::LeaveCluster => "leave the cluster",
            Self::Flush => "flush",
            Self::StopEngine => "stop the engine",
        }
    }
}

/// Something that was not done by its deadline, or failed.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Overrun {
    /// In which phase.
    pub phase: Phase,
    /// What, and how long it had.
    pub what: String,
}

impl fmt::Display for Overrun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.phase.name(), self.what)
    }
}

/// What became of a shutdown.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ShutdownReport {
    /// Why.
    pub reason: ShutdownReason,
    /// From the first request to the end of the last thread.
    pub took: Duration,
    /// What was not done by its deadline, or failed, in the order in which that was seen.
    pub overran: Vec<Overrun>,
    /// When it ended.
    pub ended: SystemTime,
}

/// What the program wants done in a phase.
struct Task {
    phase: Phase,
    name: String,
    limit: Duration,
    run: Box<dyn FnOnce() + Send>,
}

/// A task that has begun.
struct Running {
    name: String,
    until: Time,
    limit: Duration,
    /// Present when it is over: how it failed, if it did.
    over: Arc<OnceLock<Option<&'static str>>>,
}

#[derive(Default)]
struct State {
    requested: Option<ShutdownReason>,
    /// It is to end at once, as if it had been killed: without leaving.
    killed: bool,
    report: Option<ShutdownReport>,
    /// Signals are caught for this node.
    catches_signals: bool,
    tasks: Vec<Task>,
    phase: Option<Phase>,
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
    /// The phase that has begun; `None` while nothing ends.
    pub fn phase(&self) -> Option<Phase> {
        self.shared.state.lock().phase
    }

    /// Waits for the end; `None`: not done by the deadline. A worker or the network thread, without which there is no end, does not wait.
    pub fn wait(&self, deadline: impl Into<Deadline>) -> Option<ShutdownReport> {
        let node = &self.shared.node;
        if super::reference::on_engine_thread() {
            return self.shared.state.lock().report.clone();
        }
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
        // What a thread that did not start was to run is lost, so it is given the engine once it has.
        let (give, take) = crossbeam::channel::bounded::<Box<dyn FnOnce() + Send>>(1);
        let wait = move || take.recv().map_or((), |run| run());
        if let Err(source) = std::thread::Builder::new().name(name.clone()).spawn(wait) {
            engine.stop(THREADS);
            return Err(StartError::Thread { name, source });
        }
        let run = move || {
            run_to_the_end(
                end,
                engine,
                #[cfg(feature = "admin")]
                server,
            );
        };
        give.send(Box::new(run)).expect("the thread waits for this and for nothing else");
        Ok(reaper)
    }

    /// The way to the end, to be gone by one thread.
    pub fn end(&self) -> End {
        End { shared: self.shared.clone(), requested: None, began: Time::ZERO, phase: None, tasks: vec![], leaving: None, overran: vec![] }
    }

    /// Has the task run in that phase, if it has not begun.
    pub fn add(&self, phase: Phase, name: &str, limit: Duration, run: Box<dyn FnOnce() + Send>) -> Result<(), RegisterError> {
        let mut state = self.shared.state.lock();
        if state.report.is_some() || state.phase.is_some_and(|begun| begun >= phase) {
            return Err(RegisterError::Shutdown);
        }
        state.tasks.push(Task { phase, name: name.to_owned(), limit, run });
        Ok(())
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
    requested: Option<ShutdownReason>,
    began: Time,
    /// `None` while nobody has asked yet.
    phase: Option<Phase>,
    tasks: Vec<Running>,
    /// Shards are handed off until this moment at most.
    leaving: Option<Time>,
    overran: Vec<Overrun>,
}

/// What the end of a node waits for.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Awaits {
    /// Somebody who asks, or the end of membership.
    Request,
    /// The end of membership, at most so long.
    Life(Duration),
    /// The end of a task, at most so long.
    Task(Duration),
    /// The end of the threads: what refuses sends has been set.
    Threads,
}

impl End {
    /// Goes on as far as it can at this moment.
    pub fn step(&mut self, now: Time) -> Awaits {
        let (killed, requested) = {
            let state = self.shared.state.lock();
            (state.killed, state.requested.clone())
        };
        if self.phase.is_none() {
            if requested.is_none() && self.shared.node.life() == Life::Running {
                return Awaits::Request;
            }
            // Who asks behind the removal has not brought it about.
            let removed = matches!(self.shared.node.life(), Life::Ended(Ending::Downed(_)));
            (self.began, self.requested) = (now, requested.filter(|_| !removed));
            if let Life::Failed(why) = self.shared.node.life() {
                tracing::error!(target: "wingbeat::engine", %why, "this node ends");
            }
            if !killed {
                self.enter(Phase::StopAccepting, now);
            }
        }
        while let Some(phase) = self.phase.filter(|_| !killed) {
            if let Some(awaits) = self.awaits(phase, now) {
                return awaits;
            }
            let Some(next) = phase.next() else { break };
            self.enter(next, now);
        }
        self.shared.node.begin_closing();
        Awaits::Threads
    }

    /// Begins a phase.
    fn enter(&mut self, phase: Phase, now: Time) {
        self.phase = Some(phase);
        let due = {
            let mut state = self.shared.state.lock();
            state.phase = Some(phase);
            let (due, later) = std::mem::take(&mut state.tasks).into_iter().partition(|task| task.phase <= phase);
            state.tasks = later;
            due
        };
        self.begin_tasks(due, phase, now);
        let node = &self.shared.node;
        match phase {
            Phase::LeaveCluster if self.requested.is_some() && node.life() == Life::Running => {
                // The node goes on serving while shards are handed off; the core says when sends are refused.
                let id = node.id;
                node.command(move |n| Command::Leave { id: n, node: id }, None);
                self.leaving = Some(now + self.leave_limit());
            }
            Phase::Flush => drop(node.begin_closing()),
            _ => {}
        }
    }

    fn leave_limit(&self) -> Duration {
        let limits = &self.shared.node.config.shutdown;
        limits.leave_timeout.get() + limits.drain_timeout.get()
    }

    fn begin_tasks(&mut self, tasks: Vec<Task>, phase: Phase, now: Time) {
        for Task { name, limit, run, .. } in tasks {
            let over = Arc::<OnceLock<Option<&'static str>>>::default();
            let (said, shared) = (over.clone(), self.shared.clone());
            let body = move || {
                let failed = panics::caught(run).is_none().then_some("panicked");
                let _ = said.set(failed);
                drop(shared.state.lock());
                shared.changed.notify_all();
            };
            match &self.shared.node.clock {
                // A task may hang, and the others must not wait for it.
                Clock::Machine => {
                    if let Err(error) = std::thread::Builder::new().name("wingbeat-task".to_owned()).spawn(body) {
                        self.overran.push(Overrun { phase, what: format!("`{name}` did not run: no thread: {error}") });
                        continue;
                    }
                }
                Clock::Virtual(_) => self.shared.node.help(Box::new(body)),
            }
            self.tasks.push(Running { name, until: now + limit, limit, over });
        }
    }

    /// What the phase still waits for. Notes what has overrun.
    fn awaits(&mut self, phase: Phase, now: Time) -> Option<Awaits> {
        // What it has lives nowhere else before it is gone.
        if phase < Phase::LeaveCluster && matches!(self.shared.node.life(), Life::Failed(_)) {
            return None;
        }
        let overran = &mut self.overran;
        self.tasks.retain(|task| {
            let failed = match task.over.get() {
                Some(None) => return false,
                Some(Some(failed)) => format!("`{}` {failed}", task.name),
                None if now < task.until => return true,
                None => format!("`{}` was not done within {:?}", task.name, task.limit),
            };
            overran.push(Overrun { phase, what: failed });
            false
        });
        if let Some(until) = self.leaving.filter(|_| self.shared.node.life() == Life::Running) {
            if now < until {
                return Some(Awaits::Life(until.since(now)));
            }
            let what = format!("leaving took longer than {:?}; what was not handed off is lost", self.leave_limit());
            self.overran.push(Overrun { phase, what });
        }
        self.leaving = None;
        let next = self.tasks.iter().map(|task| task.until.since(now)).min();
        next.map(Awaits::Task)
    }

    fn has_news(&self) -> bool {
        self.tasks.iter().any(|task| task.over.get().is_some())
    }

    /// Threads that have not ended in time.
    pub fn threads_overran(&mut self, left: &[String]) {
        let what = |name: &String| {
            format!("thread `{name}` has not ended within {THREADS:?}: a handler that does not return holds it, or what it waits for")
        };
        self.overran.extend(left.iter().map(|name| Overrun { phase: Phase::StopEngine, what: what(name) }));
    }

    /// All threads have ended: tells who waits. `life` is what the node had come to before they did.
    pub fn finish(mut self, now: Time, life: Life) {
        self.shared.node.set_life(Life::Stopped);
        if life == Life::Ended(Ending::Overdue) {
            let after = self.shared.node.config.shutdown.leave_timeout;
            let what = format!("hand-offs were not done within shutdown.leave_timeout ({after}); what was not handed over is lost");
            self.overran.push(Overrun { phase: Phase::LeaveCluster, what });
        }
        let reason = match (self.requested, life) {
            // It was on its way out, and nobody who knows that takes the end for a failure: those it could have handed over to may be gone.
            (Some(asked), Life::Ended(Ending::Downed(why))) => {
                let what = format!("removed from the cluster before it had left: {why}; what was not handed over is lost");
                self.overran.push(Overrun { phase: Phase::LeaveCluster, what });
                asked
            }
            (None, Life::Ended(Ending::Downed(why))) => ShutdownReason::Downed(why),
            (_, Life::Ended(Ending::Refused(why))) => ShutdownReason::Refused(why),
            (_, Life::Failed(why)) => ShutdownReason::Failed(why),
            (None, Life::Ended(Ending::Superseded(by))) => ShutdownReason::Superseded(by),
            (Some(why), _) => why,
            (None, _) => ShutdownReason::Left,
        };
        let report = ShutdownReport { reason, took: now.since(self.began), overran: self.overran, ended: self.shared.node.clock.wall() };
        self.shared.state.lock().report = Some(report);
        self.shared.changed.notify_all();
        self.shared.node.drop_hosts();
    }
}

/// How long threads may take to end.
const THREADS: Duration = Duration::from_secs(10);

/// Runs on the reaper's thread from start to end of the node.
fn run_to_the_end(mut end: End, engine: Engine, #[cfg(feature = "admin")] server: Option<crate::admin::ServerHandle>) {
    // What the threads had is free when this is dropped, and the node as well unless somebody still looks at it. A life ends seldom, and a process
    // that begins another one would otherwise keep the pages of both: other threads get other heaps.
    let _pages = sys::GiveBackPages::default();
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
            Awaits::Task(limit) => {
                let mut state = shared.state.lock();
                if !end.has_news() && !state.killed {
                    shared.changed.wait_for(&mut state, limit.min(LOOK));
                }
            }
            Awaits::Threads => break,
        }
    }
    let life = node.life();
    #[cfg(feature = "admin")]
    if let Some(mut server) = server {
        server.shutdown();
    }
    end.threads_overran(&engine.stop(THREADS));
    #[cfg(feature = "admin")]
    node.exposed.clear();
    end.finish(node.now(), life);
}

/// Signals that arrive this close together are one: `timeout` and others signal the process and then its group, and shards must not be lost to that.
const SAME_SIGNAL: Duration = Duration::from_millis(5);

/// A node that signals end.
struct Listener {
    /// Weak: a node that is over, because it was removed and its program began another life, must not stay for signals.
    node: Weak<Shared>,
    /// When the first signal came to it.
    first: Option<Time>,
}

/// Signals are the process's, so one thread catches them for all of its nodes.
#[derive(Default)]
struct Signals {
    caught: bool,
    nodes: Vec<Listener>,
    /// When a signal was last for a node.
    heeded: Option<Time>,
}

static SIGNALS: Mutex<Signals> = Mutex::new(Signals { caught: false, nodes: Vec::new(), heeded: None });

/// From now on signals start the end, and a second one is the end.
pub(crate) fn leave_on_signal(reaper: &Reaper) {
    use signal_hook::consts::{SIGINT, SIGTERM};
    if std::mem::replace(&mut reaper.shared.state.lock().catches_signals, true) {
        return;
    }
    let mut signals = SIGNALS.lock();
    signals.nodes.retain(|listener| listener.node.strong_count() > 0);
    signals.nodes.push(Listener { node: Arc::downgrade(&reaper.shared), first: None });
    if signals.caught {
        return;
    }
    match signal_hook::iterator::Signals::new([SIGINT, SIGTERM]) {
        Ok(mut arriving) => {
            // Ends with the process.
            let body = move || arriving.forever().for_each(signalled);
            match std::thread::Builder::new().name("wingbeat-signals".into()).spawn(body) {
                Ok(_) => signals.caught = true,
                Err(error) => tracing::error!(target: "wingbeat::shutdown", %error, "no thread for signals; the node ends only by request"),
            }
        }
        Err(error) => tracing::error!(target: "wingbeat::shutdown", %error, "signals cannot be caught; the node ends only by request"),
    }
}

/// Tells every node that lives; where the signal is not the first one, or nobody is left to leave, the process ends at once.
fn signalled(signal: i32) {
    let now = sys::now();
    let mut signals = SIGNALS.lock();
    let Signals { nodes, heeded, .. } = &mut *signals;
    let again = heeded.is_some_and(|at| now.since(at) < SAME_SIGNAL);
    let mut living = false;
    for listener in nodes {
        let Some(shared) = listener.node.upgrade() else { continue };
        (living, *heeded) = (true, Some(now));
        let first = *listener.first.get_or_insert(now);
        if now.since(first) >= SAME_SIGNAL {
            tracing::warn!(target: "wingbeat::shutdown", signal, "second signal: quitting at once");
            std::process::exit(128 + signal);
        }
        if first == now {
            tracing::info!(target: "wingbeat::shutdown", signal, "leaving the cluster");
            Reaper { shared }.request(ShutdownReason::Signal(signal));
        }
    }
    // The other half of a signal that the last node was quick to heed is no new one.
    if !living && !again {
        std::process::exit(128 + signal);
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
