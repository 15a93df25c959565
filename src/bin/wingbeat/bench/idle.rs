//! `bench idle`: what three nodes cost that nobody talks to.

use std::{
    io::{BufRead, BufReader},
    process::{Child, ChildStdin, Command, Stdio},
    time::{Duration, Instant},
};

use super::{
    BenchArgs,
    report::{Report, Run},
    rig::{Error, PATIENCE},
};
use crate::http::Admin;

/// Nodes of the cluster.
const NODES: usize = 3;
/// Behind the forming of the cluster, which leaves work for a while.
const SETTLE: Duration = Duration::from_secs(10);
/// A shorter look sees one heartbeat more or less.
const LEAST: Duration = Duration::from_secs(5);

/// A node process; it ends with this.
struct Node {
    child: Child,
    /// The node ends when this does, however that happens.
    _stdin: Option<ChildStdin>,
    addr: String,
    admin: String,
}

impl Drop for Node {
    fn drop(&mut self) {
        // It may have ended already; there is nobody to tell if it cannot be ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Node {
    /// A node with the settings that nobody changed, but for those of `args`.
    fn start(args: &BenchArgs, seed: Option<&str>) -> Result<Self, Error> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["node", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--exit-with-parent", "--json"]);
        command.args(seed.iter().flat_map(|seed| ["--seed", seed]));
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("WINGBEAT_")) {
            command.env_remove(name);
        }
        command.env("WINGBEAT_LOG", "error");
        for (key, value) in args.settings() {
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            command.env(variable(&key), text);
        }
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take().ok_or("a node has no standard output")?);
        let mut node = Self { child, _stdin: stdin, addr: String::new(), admin: String::new() };
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line)?;
        let said: serde_json::Value = serde_json::from_str(&line).map_err(|_| "a node ended before it said where it listens")?;
        let field = |name: &str| said[name].as_str().map(str::to_owned).ok_or_else(|| format!("a node did not say its {name}"));
        (node.addr, node.admin) = (field("addr")?, field("admin")?);
        Ok(node)
    }

    /// Whether it sees the whole cluster.
    fn is_settled(&self) -> bool {
        let status = Admin::new(&self.admin, None).and_then(|admin| admin.get("/api/v1/status"));
        status.is_ok_and(|status| status["size"] == NODES && status["converged"] == true)
    }
}

/// The environment variable of a setting.
fn variable(key: &str) -> String {
    format!("WINGBEAT_{}", key.replace('.', "__").to_ascii_uppercase())
}

/// Nothing is the limit: a cluster that does nothing should cost nothing.
pub fn measure(args: &BenchArgs, report: &mut Report) -> Result<(), Error> {
    report.figure("cpu_percent_per_node");
    let mut nodes: Vec<Node> = Vec::new();
    for _ in 0..NODES {
        let seed = nodes.first().map(|node| node.addr.clone());
        nodes.push(Node::start(args, seed.as_deref())?);
    }
    let began = Instant::now();
    while !nodes.iter().all(Node::is_settled) {
        if began.elapsed() > PATIENCE {
            return Err(format!("{NODES} nodes did not form a cluster within {} s", PATIENCE.as_secs()).into());
        }
        std::thread::park_timeout(Duration::from_millis(100));
    }
    pass(SETTLE);
    let window = args.window().max(LEAST);
    let used = || nodes.iter().map(|node| cpu(node.child.id())).sum::<Result<Duration, Error>>();
    report.rounds(
        "nothing",
        args.runs,
        || Ok(Run::default()),
        || {
            let (began, before) = (Instant::now(), used()?);
            pass(window);
            let share = used()?.saturating_sub(before).as_secs_f64() / began.elapsed().as_secs_f64();
            Ok(Run::figure(100.0 * share / NODES as f64))
        },
    )
}

/// Lets so much time pass.
fn pass(time: Duration) {
    let end = Instant::now() + time;
    while let Some(left) = end.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
        std::thread::park_timeout(left);
    }
}

/// CPU time of all threads of a process, user and system.
fn cpu(pid: u32) -> Result<Duration, Error> {
    let mut sum = 0;
    for thread in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let text = std::fs::read_to_string(thread?.path().join("schedstat"))?;
        sum += running(&text).ok_or("a thread's schedstat has no time")?;
    }
    Ok(Duration::from_nanos(sum))
}

/// The first field of `schedstat`: nanoseconds on a core.
fn running(schedstat: &str) -> Option<u64> {
    schedstat.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_reach_a_node_by_its_environment() {
        assert_eq!(variable("node.idle"), "WINGBEAT_NODE__IDLE");
    }

    #[test]
    fn the_time_of_a_thread_is_the_first_field() {
        assert_eq!(running("123456 789 10\n"), Some(123_456));
        assert_eq!(running("\n"), None);
    }
}
