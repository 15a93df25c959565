//! Other processes of this program that host the measured entities, as other machines would.

use std::{
    io::{BufRead, BufReader, Read, Write},
    process::{Child, ChildStdin, Command, Stdio},
};

use wingbeat::HostOptions;

use super::{
    BenchArgs,
    entity::BenchEntity,
    rig::{self, Error, PATIENCE},
    serde_entity::DerivedEntity,
};

/// Settings as the command line takes them.
pub type Settings = Vec<(String, toml::Value)>;

/// What the nodes of a measurement have on top of what the user chose, which wins.
pub fn settings(args: &BenchArgs, ours: &[(&str, &str)]) -> Settings {
    let own = ours.iter().map(|(key, value)| ((*key).to_owned(), toml::Value::String((*value).to_owned())));
    own.chain(args.settings()).collect()
}

/// The other process: hosts the entities until its standard input ends.
pub fn run(args: &BenchArgs) -> Result<(), Error> {
    let cluster = rig::start(&args.settings(), &args.seed)?;
    if args.serde {
        cluster.host::<DerivedEntity>(HostOptions::new(), |_| DerivedEntity::default())?.wait_ready(PATIENCE)?;
    } else {
        cluster.host::<BenchEntity>(HostOptions::new(), |_| BenchEntity::default())?.wait_ready(PATIENCE)?;
    }
    writeln!(std::io::stdout(), "{}", cluster.addr())?;
    std::io::stdout().flush()?;
    // Ends when whoever measures ends, however that happens.
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

/// A process that hosts the entities; killed when this is dropped.
pub struct Peer {
    child: Child,
    /// The process ends when this does.
    _stdin: Option<ChildStdin>,
    /// Where its node listens.
    pub addr: String,
}

impl Drop for Peer {
    fn drop(&mut self) {
        // It may have ended already; there is nobody to tell if it cannot be ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Peer {
    /// A node with these settings that is up: of a cluster of its own without a seed.
    pub fn start(settings: &Settings, seed: Option<&str>) -> Result<Self, Error> {
        Self::with(settings, seed.iter().flat_map(|seed| ["--seed", seed]))
    }

    /// As [`start`](Self::start), with more flags of `bench`.
    pub fn with<'a>(settings: &Settings, flags: impl IntoIterator<Item = &'a str>) -> Result<Self, Error> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["bench", "peer"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        for (key, value) in settings {
            command.args(["--set", &format!("{key}={value}")]);
        }
        command.args(flags);
        let mut child = command.spawn()?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take().ok_or("the peer has no standard output")?);
        let mut peer = Self { child, _stdin: stdin, addr: String::new() };
        let mut first = String::new();
        BufReader::new(stdout).read_line(&mut first)?;
        peer.addr = first.trim().to_owned();
        if peer.addr.is_empty() { Err("the peer ended before it said where it listens".into()) } else { Ok(peer) }
    }

    /// Ends the process at once, without a good-bye: when this returns it is gone.
    pub fn kill(&mut self) -> Result<(), Error> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }
}
