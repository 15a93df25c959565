//! Real node processes. They are killed when their handle is dropped, and end by themselves when the test process is gone.

use std::{
    io::{BufRead, BufReader, Read},
    net::{SocketAddr, TcpListener, UdpSocket},
    os::unix::process::ExitStatusExt,
    process::{Child, ChildStdin, Command, ExitStatus, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    thread::JoinHandle,
};

use parking_lot::Mutex;
use serde_json::Value;

use super::{
    http::{Answer, Client},
    until,
};

/// A command of the binary under test, free of what the user has set for nodes of their own.
pub fn wingbeat() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_wingbeat"));
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("WINGBEAT_")) {
        command.env_remove(name);
    }
    command
}

/// As [`wingbeat`], under limits as the shell's `ulimit` sets them.
pub fn limited(limits: &[&str]) -> Command {
    let binary = wingbeat();
    let mut command = Command::new("sh");
    let set: String = limits.iter().map(|limit| format!("ulimit {limit} && ")).collect();
    command.args(["-c", &format!("{set}exec \"$0\" \"$@\"")]).arg(binary.get_program());
    for (name, value) in binary.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command
}

/// What a command that ends by itself did.
#[derive(Debug)]
pub struct Ended {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

/// Runs a command that ends by itself.
pub fn run(args: &[&str]) -> Ended {
    ended(wingbeat().args(args))
}

pub fn ended(command: &mut Command) -> Ended {
    let alone = SPAWNING.lock();
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(alone);
    let output = child.wait_with_output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Ended { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}

/// A name of a cluster that no other test has, also none of another process.
pub fn unique_name() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("test-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// A process that is just being made has copies of all sockets until it runs its own program: nobody looks for free ports meanwhile.
static SPAWNING: Mutex<()> = Mutex::new(());

/// A loopback address whose port is free for TCP and UDP, and stays so: it lies below those that systems give to outgoing connections.
pub fn free_addr() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    until("a free port", || {
        let nth = std::process::id().wrapping_mul(101).wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
        let addr = format!("127.0.0.1:{}", 10_000 + nth % 20_000);
        let _alone = SPAWNING.lock();
        (TcpListener::bind(&addr).is_ok() && UdpSocket::bind(&addr).is_ok()).then_some(addr)
    })
}

/// A running `wingbeat node`.
pub struct Node {
    pub addr: String,
    pub admin: SocketAddr,
    pub incarnation: String,
    child: Child,
    /// Its end is the node's end.
    _input: ChildStdin,
    log: Arc<Mutex<String>>,
    reader: Option<JoinHandle<()>>,
}

impl Node {
    /// Starts a node and waits until it says where it listens; `args` follow the usual ones. It is patient with nodes whose machine has
    /// no time for them, as a machine that runs tests often has not; a killed process is known at once all the same.
    #[track_caller]
    pub fn start(cluster: &str, args: &[&str]) -> Self {
        Self::start_with(cluster, args, &[("WINGBEAT_CLUSTER__PRESET", "local_test"), ("WINGBEAT_DETECTOR__HEARTBEAT_INTERVAL", "600ms")])
    }

    #[track_caller]
    pub fn start_with(cluster: &str, args: &[&str], env: &[(&str, &str)]) -> Self {
        Self::start_by(wingbeat(), cluster, args, env)
    }

    /// As [`start_with`](Self::start_with), by a command that runs the binary in its own way.
    #[track_caller]
    pub fn start_by(mut command: Command, cluster: &str, args: &[&str], env: &[(&str, &str)]) -> Self {
        command.args(["node", "--json", "--exit-with-parent"]).args(args);
        if !args.contains(&"--listen") {
            command.args(["--listen", &free_addr()]);
        }
        if !args.contains(&"--admin") {
            command.args(["--admin", "127.0.0.1:0"]);
        }
        command.env("WINGBEAT_CLUSTER__NAME", cluster).envs(env.iter().copied());
        let alone = SPAWNING.lock();
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(alone);
        let (input, out, err) = (child.stdin.take().unwrap(), child.stdout.take().unwrap(), child.stderr.take().unwrap());
        let log = Arc::new(Mutex::new(String::new()));
        let kept = log.clone();
        let reader = std::thread::spawn(move || {
            let mut lines = BufReader::new(err);
            let mut line = Vec::new();
            while lines.read_until(b'\n', &mut line).is_ok_and(|n| n > 0) {
                kept.lock().push_str(&String::from_utf8_lossy(&std::mem::take(&mut line)));
            }
        });
        let mut said = String::new();
        let mut out = BufReader::new(out);
        out.read_line(&mut said).unwrap();
        let Ok(announced) = serde_json::from_str::<Value>(&said) else {
            let _ = child.kill();
            let _ = reader.join();
            panic!("no announcement but {said:?}: {}", log.lock());
        };
        // What comes after the announcement would be a fault; it is read so that the node never waits for a reader.
        std::thread::spawn(move || out.read_to_end(&mut Vec::new()));
        let text = |name: &str| announced[name].as_str().unwrap().to_owned();
        let (addr, admin, incarnation) = (text("addr"), text("admin").parse().unwrap(), text("incarnation"));
        Self { addr, admin, incarnation, child, _input: input, log, reader: Some(reader) }
    }

    /// A new connection to its HTTP surface.
    #[track_caller]
    pub fn client(&self) -> Client {
        Client::connect(self.admin).unwrap_or_else(|error| panic!("{} does not listen: {error}\n{}", self.admin, self.log()))
    }

    #[track_caller]
    pub fn get(&self, path: &str) -> Answer {
        self.client().get(path).unwrap_or_else(|error| panic!("GET {path} at {}: {error}\n{}", self.addr, self.log()))
    }

    /// Requests to entities are given more than the second that they have by default, which is short for several processes that share two busy cores.
    #[track_caller]
    pub fn post(&self, path: &str, body: &str) -> Answer {
        let patient = if path.starts_with("/api/v1/entities/") && !path.contains('?') { "?timeout_ms=20000" } else { "" };
        let path = &format!("{path}{patient}");
        self.client().post(path, body).unwrap_or_else(|error| panic!("POST {path} at {}: {error}\n{}", self.addr, self.log()))
    }

    #[track_caller]
    pub fn status(&self) -> Value {
        self.get("/api/v1/status").json()
    }

    #[track_caller]
    pub fn members(&self) -> Vec<Value> {
        self.get("/api/v1/members").json()["members"].as_array().unwrap().clone()
    }

    /// Addresses of the members with this status.
    #[track_caller]
    pub fn members_that_are(&self, status: &str) -> Vec<String> {
        let members = self.members();
        let wanted = members.iter().filter(|member| member["status"] == status);
        wanted.map(|member| member["addr"].as_str().unwrap().to_owned()).collect()
    }

    /// What it wrote to standard error so far.
    pub fn log(&self) -> String {
        self.log.lock().clone()
    }

    /// The number of the process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal by name, as in `TERM`.
    pub fn signal(&self, name: &str) {
        assert!(Command::new("kill").args([&format!("-{name}"), &self.child.id().to_string()]).status().unwrap().success());
    }

    /// SIGKILL, and waits for the end.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Waits for the process to end by itself.
    #[track_caller]
    pub fn wait(&mut self) -> ExitStatus {
        let status = until(&format!("the end of {}", self.addr), || self.child.try_wait().unwrap());
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
        status
    }

    /// Waits for the end and returns the exit code; a death by signal fails the test.
    #[track_caller]
    pub fn exit_code(&mut self) -> i32 {
        let status = self.wait();
        status.code().unwrap_or_else(|| panic!("ended by signal {:?}\n{}", status.signal(), self.log()))
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            if let Some(reader) = self.reader.take() {
                let _ = reader.join();
            }
            eprintln!("---- log of {} ----\n{}", self.addr, self.log());
        }
    }
}
