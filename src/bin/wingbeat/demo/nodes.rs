//! The node processes of a demo. They never outlive it: they are killed when this is dropped, and a node whose standard input ends (because
//! the demo is gone, however it went) ends itself.

use std::{
    fs::{self, File},
    io,
    net::SocketAddr,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use serde::Deserialize;

use crate::fail::Failure;

/// How long a node may take until it says where it listens.
const ANNOUNCED_WITHIN: Duration = Duration::from_secs(20);
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// What a node says on standard output when it has started.
#[derive(Clone, Debug, Deserialize)]
pub struct Announcement {
    /// Where other nodes reach it.
    pub addr: String,
    /// Where it answers HTTP.
    pub admin: Option<SocketAddr>,
}

/// One running node.
pub struct Node {
    pub name: String,
    pub addr: String,
    pub admin: SocketAddr,
    child: Child,
}

/// All nodes of a demo and the directory with their configuration and logs.
pub struct Nodes {
    dir: PathBuf,
    started: usize,
    nodes: Vec<Node>,
}

impl Nodes {
    pub fn new() -> Result<Self, Failure> {
        let dir = std::env::temp_dir().join(format!("wingbeat-demo-{}", std::process::id()));
        let made = fs::create_dir_all(&dir).and_then(|()| fs::write(dir.join("node.toml"), config()));
        made.map_err(|error| cannot("make the directory of the demo", &dir, &error))?;
        Ok(Self { dir, started: 0, nodes: Vec::new() })
    }

    /// Starts the process of one more node, which joins through the first one.
    pub fn spawn(&mut self) -> Result<Starting, Failure> {
        let name = format!("node-{}", self.started);
        self.started += 1;
        let (out, log) = (self.dir.join(format!("{name}.out")), self.dir.join(format!("{name}.log")));
        let file = |path: &Path| File::create(path).map_err(|error| cannot("write", path, &error));
        let program = std::env::current_exe().map_err(|error| cannot("find", Path::new("the program itself"), &error))?;
        let mut command = Command::new(program);
        command.arg("node").arg("--config").arg(self.dir.join("node.toml"));
        command.args(["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--exit-with-parent", "--json"]);
        if let Some(first) = self.nodes.first() {
            command.args(["--seed", &first.addr]);
        }
        // What the user has set for nodes of their own must not change the ones of the demo.
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("WINGBEAT_")) {
            command.env_remove(name);
        }
        command.stdin(Stdio::piped()).stdout(file(&out)?).stderr(file(&log)?);
        // A group of its own: Ctrl-C at the terminal reaches the demo, which ends its nodes itself.
        command.process_group(0);
        let child = command.spawn().map_err(|error| cannot("start a node with", command.get_program().as_ref(), &error))?;
        Ok(Starting { name, out, log, child: Some(child), since: Instant::now() })
    }

    /// Takes a started node into the demo's care.
    pub fn add(&mut self, node: Node) -> &Node {
        self.nodes.push(node);
        self.nodes.last().expect("one was just pushed")
    }

    pub fn iter(&self) -> impl Iterator<Item = &Node> {
        self.nodes.iter()
    }

    /// The node that the driver talks to.
    pub fn first(&self) -> &Node {
        self.nodes.first().expect("the driver's node is started before anything else and never taken out")
    }

    /// Kills a node with SIGKILL and forgets it; its address. The driver's node is never killed.
    pub fn kill(&mut self, index: usize) -> Result<String, Failure> {
        assert!(index > 0, "the driver's node stays");
        let mut node = self.nodes.remove(index);
        let killed = node.child.kill().and_then(|()| node.child.wait());
        killed.map_err(|error| cannot("kill", Path::new(&node.name), &error))?;
        Ok(node.addr.clone())
    }

    /// Fails if a node ended by itself.
    pub fn check(&mut self) -> Result<(), Failure> {
        for node in &mut self.nodes {
            if let Ok(Some(status)) = node.child.try_wait() {
                let log = self.dir.join(format!("{}.log", node.name));
                return Err(ended(&node.name, &status.to_string(), &log));
            }
        }
        Ok(())
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        for node in &mut self.nodes {
            end(&mut node.child);
        }
        // Logs are of no use after the end; what went wrong was quoted.
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// A node process that has not said yet where it listens. Killed when dropped.
pub struct Starting {
    name: String,
    out: PathBuf,
    log: PathBuf,
    child: Option<Child>,
    since: Instant,
}

impl Starting {
    /// Waits until the node listens, or until `give_up` says so.
    pub fn wait(mut self, give_up: impl Fn() -> bool) -> Result<Node, Failure> {
        loop {
            if let Some(node) = self.poll()? {
                return Ok(node);
            }
            if give_up() {
                return Err(Failure::unhealthy("E-CLI-043", format!("{}: given up while it started", self.name), ""));
            }
            thread::sleep(LOOK_EVERY);
        }
    }

    /// The node, if it listens.
    pub fn poll(&mut self) -> Result<Option<Node>, Failure> {
        let child = self.child.as_mut().expect("taken only when the node is returned");
        if let Ok(Some(status)) = child.try_wait() {
            return Err(ended(&self.name, &status.to_string(), &self.log));
        }
        let said = fs::read_to_string(&self.out).unwrap_or_default();
        if let Some((line, _)) = said.split_once('\n') {
            let announced: Announcement = serde_json::from_str(line).map_err(|error| {
                Failure::unhealthy("E-CLI-042", format!("{} said {line:?}: {error}", self.name), "this is a fault of the program")
            })?;
            let admin = announced.admin.ok_or_else(|| {
                Failure::unhealthy("E-CLI-042", format!("{} has no admin address", self.name), "this is a fault of the program")
            })?;
            let child = self.child.take().expect("it was there above");
            return Ok(Some(Node { name: self.name.clone(), addr: announced.addr, admin, child }));
        }
        match self.since.elapsed() > ANNOUNCED_WITHIN {
            true => Err(ended(&self.name, &format!("no word within {} s", ANNOUNCED_WITHIN.as_secs()), &self.log)),
            false => Ok(None),
        }
    }
}

impl Drop for Starting {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            end(child);
        }
    }
}

fn end(child: &mut Child) {
    // Both fail only when the process is gone already.
    let _ = child.kill();
    let _ = child.wait();
}

/// Configuration of every node of this demo. The name keeps it apart from any other cluster on the machine.
fn config() -> String {
    format!("[cluster]\nname = \"wingbeat-demo-{}\"\npreset = \"local_test\"\n", std::process::id())
}

fn cannot(verb: &str, path: &Path, error: &io::Error) -> Failure {
    Failure::usage("E-CLI-040", format!("cannot {verb} {}: {error}", path.display()), "check permissions and free space, or set TMPDIR")
}

fn ended(name: &str, how: &str, log: &Path) -> Failure {
    const SHOWN_LINES: usize = 10;
    let text = fs::read_to_string(log).unwrap_or_default();
    let mut tail: Vec<&str> = text.lines().rev().take(SHOWN_LINES).collect();
    tail.reverse();
    let said = if tail.is_empty() { "it said nothing".into() } else { format!("its last words:\n    {}", tail.join("\n    ")) };
    Failure::unhealthy("E-CLI-041", format!("{name} did not stay: {how}; {said}"), "start it by hand with `wingbeat node` to see more")
}
