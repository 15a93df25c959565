//! `wingbeat node`: runs a node that hosts the built-in entity types.

use std::{
    io::{self, IsTerminal, Read},
    net::SocketAddr,
    path::PathBuf,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use clap::Args;
use serde_json::json;
use signal_hook::consts::{SIGINT, SIGTERM};
use tracing_subscriber::{filter::Targets, layer::SubscriberExt, util::SubscriberInitExt};
use wingbeat::{Cluster, Config, RegisterError, ShutdownReason, ShutdownReport, StartError, builtin};

use crate::{
    fail::{Exit, Failure},
    heap,
    out::{note, say},
    rejoin,
};

/// Arguments of `wingbeat node`.
#[derive(Args, Clone, Debug)]
pub struct NodeArgs {
    /// Configuration, TOML; everything has a default, and flags win over it
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Where other nodes reach this one, TCP and UDP; port 0 takes a free one
    #[arg(long, value_name = "ADDR", value_parser = to_listen)]
    pub listen: Option<SocketAddr>,
    /// A node to join through; may be given several times, the order counts
    #[arg(long, value_name = "ADDR", value_parser = seed)]
    pub seed: Vec<String>,
    /// Where it answers HTTP; port 0 takes a free one
    #[arg(long, value_name = "ADDR", value_parser = to_listen)]
    pub admin: Option<SocketAddr>,
    /// Where it keeps what must survive a restart
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<String>,
    /// Ends at once when standard input ends: a parent that is gone, however it went, leaves no node behind
    #[arg(long)]
    pub exit_with_parent: bool,
    /// Says where it listens as one JSON object
    #[arg(long)]
    pub json: bool,
}

/// What is logged without `WINGBEAT_LOG`.
const LOG: &str = "info";

/// Runs a node until it has left, was told to end, or was removed.
pub fn run(args: &NodeArgs) -> Result<ExitCode, Failure> {
    heap::keep_small();
    log()?;
    let config = Config::from_layers(args.config.as_deref(), std::env::vars_os(), &args.flags()).map_err(|errors| {
        Failure::usage("E-CLI-010", errors.to_string(), "`wingbeat config --defaults` lists all settings with what they may be")
    })?;
    for warning in config.warnings() {
        tracing::warn!(target: "wingbeat::config", "{warning}");
    }
    // Each life catches signals for itself; one that comes before that, or between two lives, is seen here.
    let told_to_end = Arc::new(AtomicUsize::new(0));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register_usize(signal, told_to_end.clone(), signal as usize).map_err(|error| {
            Failure::usage("E-CLI-016", format!("signals cannot be caught: {error}"), "look at the limits of the process")
        })?;
    }
    let mut cluster = begin(config, &told_to_end)?;
    announce(&cluster, args.json)?;
    if args.exit_with_parent {
        thread::spawn(end_with_parent);
    }
    loop {
        let report = cluster.run_until_signal();
        let Some(next) = rejoin::next_life(&cluster, &report).filter(|_| told_to_end.load(Ordering::Relaxed) == 0) else {
            return Ok(ended(&report));
        };
        // Before the next life begins, which can use its memory.
        drop(cluster);
        cluster = begin(next, &told_to_end)?;
        tracing::warn!(target: "wingbeat::node", old = ?report.reason, id = %cluster.id(), asks = ?cluster.config().cluster.seeds, "started again as a new member");
    }
}

/// Starts one life of the node with its entity types. `told_to_end`: the last signal that was caught, by whomever.
fn begin(config: Config, told_to_end: &AtomicUsize) -> Result<Cluster, Failure> {
    let cluster = Cluster::builder(config).start().map_err(not_started)?;
    // Before anybody is told that it runs: whoever knows may end it.
    cluster.leave_on_signal();
    match builtin::host(&cluster) {
        // It ends, as it was told to.
        Err(RegisterError::Shutdown) if told_to_end.load(Ordering::Relaxed) != 0 => {}
        hosted => {
            hosted.map_err(|error| Failure::usage("E-CLI-012", error.to_string(), "start the node again with what the cluster has"))?;
        }
    }
    // It may have come before this life was there to see it.
    match told_to_end.load(Ordering::Relaxed) {
        0 => {}
        signal => drop(cluster.shutdown(ShutdownReason::Signal(signal as i32))),
    }
    Ok(cluster)
}

/// Names are no addresses to listen at: one may stand for several, or for none of this machine.
fn to_listen(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| "give an IP address and a port, like 127.0.0.1:7301 or [::1]:7301; a name goes into node.advertise".into())
}

/// What comes from a variable that is not set must not found a cluster of its own.
fn seed(text: &str) -> Result<String, String> {
    match text.split(',').any(|entry| entry.trim().is_empty()) {
        true => Err("an entry is empty; give host:port, or leave the flag out to found a cluster".into()),
        false => Ok(text.to_owned()),
    }
}

impl NodeArgs {
    /// The flags as settings.
    fn flags(&self) -> Vec<(&'static str, String)> {
        let mut flags = Vec::new();
        let mut add = |key, value: Option<String>| flags.extend(value.map(|value| (key, value)));
        add("node.listen", self.listen.map(|addr| addr.to_string()));
        add("admin.listen", self.admin.map(|addr| addr.to_string()));
        add("node.data_dir", self.data_dir.clone());
        add("cluster.seeds", (!self.seed.is_empty()).then(|| self.seed.join(",")));
        flags
    }
}

/// Logs to standard error; standard output belongs to the announcement.
fn log() -> Result<(), Failure> {
    let wanted = std::env::var("WINGBEAT_LOG").unwrap_or_else(|_| LOG.into());
    let filter: Targets = wanted.parse().map_err(|error| {
        Failure::usage(
            "E-CLI-013",
            format!("WINGBEAT_LOG is {wanted:?}: {error}"),
            "write a level, or targets with levels: `info,wingbeat::net=debug`",
        )
    })?;
    let layer = tracing_subscriber::fmt::layer().with_writer(io::stderr).with_ansi(io::stderr().is_terminal());
    tracing_subscriber::registry().with(layer).with(filter).init();
    Ok(())
}

fn not_started(error: StartError) -> Failure {
    let next = match &error {
        StartError::Config(_) => "`wingbeat config --defaults` lists all settings with what they may be",
        StartError::Bind { .. } => "",
        _ => "look at the limits of the process and of the machine",
    };
    Failure::usage("E-CLI-011", format!("{} {error}", error.code()), next)
}

/// Says where the node listens, for whoever started it.
fn announce(cluster: &Cluster, json: bool) -> Result<(), Failure> {
    let (addr, admin) = (cluster.addr(), cluster.admin_addr());
    let incarnation = format!("{:016x}", cluster.id().incarnation());
    let name = &cluster.config().cluster.name;
    if json {
        let admin = admin.map(|admin| admin.to_string());
        return say(&json!({"cluster": name, "addr": addr.to_string(), "incarnation": incarnation, "admin": admin}).to_string());
    }
    let admin = admin.map_or_else(|| "no HTTP (`--admin 127.0.0.1:8301` opens it)".into(), |admin| format!("http://{admin}"));
    say(&format!("node {addr}:{incarnation} of cluster {name:?}, {admin}"))
}

/// Standard input is a pipe that the parent holds and never writes to: its end is the parent's end.
fn end_with_parent() {
    let mut ignored = [0; 64];
    let mut input = io::stdin().lock();
    loop {
        match input.read(&mut ignored) {
            Ok(0) => break,
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
    std::process::exit(Exit::Unreachable as i32);
}

/// The exit code that the end of a node has, and a word about it where it is not 0.
fn ended(report: &ShutdownReport) -> ExitCode {
    for late in &report.overran {
        note(format_args!("warning: {late}"));
    }
    match &report.reason {
        ShutdownReason::Downed(why) => {
            let next = "if nobody declared it down by hand, find out why it and others did not hear from each other; started again, it joins as a new member";
            note(Failure::unhealthy("E-CLI-014", format!("the cluster removed this node: {why}"), next));
            Exit::Unhealthy.into()
        }
        ShutdownReason::Refused(why) => {
            let next = "correct the configuration; a refusal is final and is not tried again";
            note(Failure::usage("E-CLI-015", format!("the cluster does not take this node: {why}"), next));
            Exit::Usage.into()
        }
        ShutdownReason::Failed(why) => {
            let next = "what its threads said before is in its log; start it again and it joins as a new member";
            note(Failure::unhealthy("E-CLI-017", format!("this node has failed: {why}"), next));
            Exit::Unhealthy.into()
        }
        _ => ExitCode::SUCCESS,
    }
}
