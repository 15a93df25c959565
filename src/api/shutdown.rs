//! The orderly end of a node.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use parking_lot::{Condvar, Mutex};

use crate::{
    Deadline, StartError,
    api::context::resolve,
    engine::{Engine, node::Life, sys},
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
    report: Option<ShutdownReport>,
    /// Signals are caught for this node.
    catches_signals: bool,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    node: Arc<crate::engine::node::Node>,
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
        let deadline = resolve(deadline);
        let mut state = self.shared.state.lock();
        while state.report.is_none() {
            let left = deadline.since(sys::now());
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
    /// Starts waiting.
    pub fn spawn(engine: Engine, #[cfg(feature = "admin")] server: Option<crate::admin::ServerHandle>) -> Result<Self, StartError> {
        let shared = Arc::new(Shared { state: Mutex::default(), changed: Condvar::new(), node: engine.node.clone() });
        let reaper = Self { shared: shared.clone() };
        let name = "wingbeat-end".to_owned();
        let body = move || {
            let report = end(
                &shared,
                engine,
                #[cfg(feature = "admin")]
                server,
            );
            shared.state.lock().report = Some(report);
            shared.changed.notify_all();
        };
        std::thread::Builder::new().name(name).spawn(body).map_err(StartError::Thread)?;
        Ok(reaper)
    }

    /// Asks for the end; the first reason counts.
    pub fn request(&self, why: ShutdownReason) {
        self.shared.state.lock().requested.get_or_insert(why);
        self.shared.changed.notify_all();
    }

    /// Whoever waits for the end.
    pub fn handle(&self) -> ShutdownHandle {
        ShutdownHandle { shared: self.shared.clone() }
    }
}

/// Runs on the reaper's thread from start to end of the node.
fn end(shared: &Shared, engine: Engine, #[cfg(feature = "admin")] server: Option<crate::admin::ServerHandle>) -> ShutdownReport {
    let node = engine.node.clone();
    let requested = loop {
        let mut state = shared.state.lock();
        if let Some(why) = state.requested.clone() {
            break Some(why);
        }
        if node.life() != Life::Running {
            break None;
        }
        shared.changed.wait_for(&mut state, LOOK);
    };
    let began = sys::now();
    let mut overran = vec![];
    if requested.is_some() && node.life() == Life::Running {
        // While shards are handed off the node goes on serving; only then are sends refused.
        let id = node.id;
        node.command(move |n| Command::Leave { id: n, node: id }, None);
        let limit = node.config.shutdown.leave_timeout.get() + node.config.shutdown.drain_timeout.get();
        if !node.wait_life(limit, |life| *life != Life::Running) {
            overran.push(format!("leaving the cluster took longer than {limit:?}; what was not handed off is lost"));
        }
    }
    let life = node.life();
    node.begin_closing();
    #[cfg(feature = "admin")]
    if let Some(mut server) = server {
        server.shutdown();
    }
    engine.stop();
    node.set_life(Life::Stopped);
    let reason = match (requested, life) {
        (_, Life::Ended(Ending::Downed(why))) => ShutdownReason::Downed(why),
        (_, Life::Ended(Ending::Refused(why))) => ShutdownReason::Refused(why),
        (Some(why), _) => why,
        (None, _) => ShutdownReason::Left,
    };
    ShutdownReport { reason, took: sys::now().since(began), overran, ended: SystemTime::now() }
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
