//! `bench idle`: what three nodes cost that nobody talks to, in CPU time and memory, and how long such nodes take to form a cluster.

use std::{
    io::{BufRead, BufReader},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
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

/// A node process that has not said yet where it listens.
struct Starting {
    node: Node,
    said: BufReader<ChildStdout>,
}

impl Starting {
    /// Waits until the node listens.
    fn wait(mut self) -> Result<Node, Error> {
        let mut line = String::new();
        self.said.read_line(&mut line)?;
        let said: serde_json::Value = serde_json::from_str(&line).map_err(|_| "a node ended before it said where it listens")?;
        let field = |name: &str| said[name].as_str().map(str::to_owned).ok_or_else(|| format!("a node did not say its {name}"));
        (self.node.addr, self.node.admin) = (field("addr")?, field("admin")?);
        Ok(self.node)
    }
}

impl Node {
    /// A node with the settings that nobody changed, but for those of `args` and these.
    fn start(args: &BenchArgs, more: &[(&str, &str)], seed: Option<&str>) -> Result<Starting, Error> {
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
        command.envs(more.iter().map(|(key, value)| (variable(key), *value)));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take().ok_or("a node has no standard output")?);
        let node = Self { child, _stdin: stdin, addr: String::new(), admin: String::new() };
        Ok(Starting { node, said: BufReader::new(stdout) })
    }

    fn status(&self) -> Option<serde_json::Value> {
        Admin::new(&self.admin, None).and_then(|admin| admin.get("/api/v1/status")).ok()
    }

    /// Whether it sees the whole cluster.
    fn is_settled(&self) -> bool {
        self.status().is_some_and(|status| status["size"] == NODES && status["converged"] == true)
    }

    /// Whether it sees the whole cluster up, itself included.
    fn is_up(&self) -> bool {
        self.is_settled() && self.status().is_some_and(|status| status["status"] == "up")
    }
}

/// All nodes: the first one, and the others through it as soon as it listens.
fn start_all(args: &BenchArgs, more: &[(&str, &str)]) -> Result<Vec<Node>, Error> {
    let first = Node::start(args, more, None)?.wait()?;
    let others: Vec<_> = (1..NODES).map(|_| Node::start(args, more, Some(&first.addr))).collect::<Result<_, _>>()?;
    std::iter::once(Ok(first)).chain(others.into_iter().map(Starting::wait)).collect()
}

/// Looks every so often until all of them are that far.
fn until_all(nodes: &[Node], every: Duration, are: impl Fn(&Node) -> bool) -> Result<(), Error> {
    let began = Instant::now();
    while !nodes.iter().all(&are) {
        if began.elapsed() > PATIENCE {
            return Err(format!("{NODES} nodes did not form a cluster within {} s", PATIENCE.as_secs()).into());
        }
        std::thread::park_timeout(every);
    }
    Ok(())
}

/// From the start of the first process until all of three are up everywhere, with intervals for loopback: nobody waits for seeds that may come
/// later.
fn formed(args: &BenchArgs) -> Result<Duration, Error> {
    let began = Instant::now();
    let nodes = start_all(args, &[("cluster.preset", "local_test")])?;
    until_all(&nodes, Duration::from_millis(2), Node::is_up)?;
    Ok(began.elapsed())
}

/// The environment variable of a setting.
fn variable(key: &str) -> String {
    format!("WINGBEAT_{}", key.replace('.', "__").to_ascii_uppercase())
}

/// Nothing is the limit: a cluster that does nothing should cost nothing.
pub fn measure(args: &BenchArgs, report: &mut Report) -> Result<(), Error> {
    report.figure("cpu_percent_per_node");
    let nodes = start_all(args, &[])?;
    until_all(&nodes, Duration::from_millis(100), Node::is_settled)?;
    pass(SETTLE);
    let window = args.window().max(LEAST);
    let used = || nodes.iter().map(|node| cpu(node.child.id())).sum::<Result<Duration, Error>>();
    report.rounds(
        "nothing",
        args.runs(),
        || Ok(Run::default()),
        || {
            let (began, before) = (Instant::now(), used()?);
            pass(window);
            let share = used()?.saturating_sub(before).as_secs_f64() / began.elapsed().as_secs_f64();
            let memory = nodes.iter().map(|node| resident(node.child.id())).collect::<Result<Vec<_>, _>>()?;
            let details = vec![
                ("resident_mib", memory.into_iter().max().unwrap_or(0) as f64 / 1024.0),
                ("formed_ms", formed(args)?.as_secs_f64() * 1e3),
            ];
            Ok(Run { details, ..Run::figure(100.0 * share / NODES as f64) })
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

/// Memory of a process that is in RAM, in KiB.
fn resident(pid: u32) -> Result<u64, Error> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    resident_of(&status).ok_or_else(|| "the status of a process has no VmRSS".into())
}

fn resident_of(status: &str) -> Option<u64> {
    status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?.trim().strip_suffix(" kB")?.trim().parse().ok()
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
    fn resident_memory_is_read_in_kib() {
        assert_eq!(resident_of("VmPeak:\t 99 kB\nVmRSS:\t    7164 kB\nThreads:\t4\n"), Some(7164));
        assert_eq!(resident_of("VmPeak: 99 kB\n"), None);
    }

    #[test]
    fn the_time_of_a_thread_is_the_first_field() {
        assert_eq!(running("123456 789 10\n"), Some(123_456));
        assert_eq!(running("\n"), None);
    }
}
