//! The node processes of a demo or a soak. They never outlive it: they are killed when this is dropped, and a node whose standard input ends
//! (because who started it is gone, however it went) ends itself.

use std::{
    fs::{self, File},
    io,
    net::SocketAddr,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
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
    log: PathBuf,
    child: Child,
}

impl Node {
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it writes to standard error.
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// Sends it a signal by name, such as `TERM`.
    pub fn signal(&self, name: &str) -> Result<(), Failure> {
        let sent = Command::new("kill").arg(format!("-{name}")).arg(self.pid().to_string()).status();
        let sent = sent.and_then(|status| if status.success() { Ok(()) } else { Err(io::Error::other(format!("`kill` {status}"))) });
        sent.map_err(|error| cannot(&format!("send SIG{name} to"), Path::new(&self.name), &error))
    }

    /// Kills it with SIGKILL and waits for its end.
    pub fn kill(&mut self) -> Result<(), Failure> {
        let killed = self.child.kill().and_then(|()| self.child.wait());
        killed.map(drop).map_err(|error| cannot("kill", Path::new(&self.name), &error))
    }

    /// How it ended, if it did.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        end(&mut self.child);
    }
}

/// Where a node is to run, and what with.
#[derive(Clone, Debug, Default)]
pub struct Place {
    /// Addresses that it had before; free ones where there are none.
    pub stands: Option<(String, SocketAddr)>,
    /// Nodes to join through; without any it forms a cluster.
    pub seeds: Vec<String>,
    /// Its configuration, TOML.
    pub config: String,
}

/// All nodes of a demo and the directory with their configuration and logs.
pub struct Nodes {
    dir: PathBuf,
    started: usize,
    nodes: Vec<Node>,
    /// The directory stays when all is over.
    kept: bool,
}

impl Nodes {
    /// Those of the demo.
    pub fn new() -> Result<Self, Failure> {
        Self::of("demo")
    }

    /// None yet, and a directory for them; `what` they are for is a part of its name.
    pub fn of(what: &str) -> Result<Self, Failure> {
        let dir = std::env::temp_dir().join(format!("wingbeat-{what}-{}", std::process::id()));
        fs::create_dir_all(&dir).map_err(|error| cannot(&format!("make the directory of the {what}"), &dir, &error))?;
        Ok(Self { dir, started: 0, nodes: Vec::new(), kept: false })
    }

    /// Where configuration and logs are.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Leaves that directory there in the end.
    pub fn keep(&mut self) {
        self.kept = true;
    }

    /// Starts the process of one more node, which joins through the first one.
    pub fn spawn(&mut self) -> Result<Starting, Failure> {
        let seeds = self.nodes.first().map(|first| first.addr.clone()).into_iter().collect();
        self.start(&Place { stands: None, seeds, config: config() })
    }

    /// Starts the process of a node.
    pub fn start(&mut self, place: &Place) -> Result<Starting, Failure> {
        let name = format!("node-{}", self.started);
        self.started += 1;
        let (out, log) = (self.dir.join(format!("{name}.out")), self.dir.join(format!("{name}.log")));
        let file = |path: &Path| File::create(path).map_err(|error| cannot("write", path, &error));
        let program = std::env::current_exe().map_err(|error| cannot("find", Path::new("the program itself"), &error))?;
        let mut command = Command::new(program);
        let settings = self.dir.join(format!("{name}.toml"));
        fs::write(&settings, &place.config).map_err(|error| cannot("write", &settings, &error))?;
        command.arg("node").arg("--config").arg(settings);
        let free = || "127.0.0.1:0".to_owned();
        let (listen, admin) = place.stands.as_ref().map_or_else(|| (free(), free()), |(addr, admin)| (addr.clone(), admin.to_string()));
        command.args(["--listen", &listen, "--admin", &admin, "--exit-with-parent", "--json"]);
        command.args(place.seeds.iter().flat_map(|seed| ["--seed", seed]));
        // What the user has set for nodes of their own must not change the ones of the demo.
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("WINGBEAT_")) {
            command.env_remove(name);
        }
        command.stdin(Stdio::piped()).stdout(file(&out)?).stderr(file(&log)?);
        // A group of its own: Ctrl-C at the terminal reaches who started it, and ends its nodes itself.
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
        node.kill()?;
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
        self.nodes.clear();
        if !self.kept {
            // Logs are of no use after the end; what went wrong was quoted.
            let _ = fs::remove_dir_all(&self.dir);
        }
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
            let (name, log) = (self.name.clone(), self.log.clone());
            return Ok(Some(Node { name, addr: announced.addr, admin, log, child }));
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
