//! `wingbeat bench`: one measurement, with the raw limit measured in the same run.

mod alloc;
mod entity;
mod limits;
mod local;
mod remote;
mod report;
mod simulator;

use std::{process::ExitCode, time::Duration};

pub use alloc::Counting;
use clap::{Args, ValueEnum};
use wingbeat::{Cluster, Config, config::Preset};

use report::Report;

/// Arguments of `bench`.
#[derive(Args, Debug, Clone)]
pub struct BenchArgs {
    /// What to measure
    name: Name,
    /// One JSON object on standard output
    #[arg(long)]
    json: bool,
    /// Seconds of one run
    #[arg(long, default_value_t = 2.0)]
    secs: f64,
    /// Runs; the figures are medians over them, interleaved with runs of the limit
    #[arg(long, default_value_t = 5)]
    runs: u32,
    /// Requests in flight, for `remote-ask`
    #[arg(long, default_value_t = 1)]
    window: u32,
    /// Entities that the messages go to
    #[arg(long, default_value_t = 1000)]
    entities: u64,
    /// How idle threads wait: low_latency, balanced, low_cpu
    #[arg(long)]
    idle: Option<String>,
}

/// What can be measured.
#[derive(Copy, Clone, PartialEq, Eq, Debug, ValueEnum)]
pub enum Name {
    /// Messages to entities of this node
    LocalTell,
    /// Requests to entities of this node, one in flight
    LocalAsk,
    /// Messages to entities of another process
    RemoteTell,
    /// Requests to entities of another process
    RemoteAsk,
    /// Events per second of the simulator, on one core
    Simulator,
    /// The other process of a remote measurement
    #[value(hide = true)]
    Peer,
}

impl Name {
    fn text(self) -> &'static str {
        match self {
            Self::LocalTell => "local-tell",
            Self::LocalAsk => "local-ask",
            Self::RemoteTell => "remote-tell",
            Self::RemoteAsk => "remote-ask",
            Self::Simulator => "simulator",
            Self::Peer => "peer",
        }
    }
}

/// What can go wrong.
type Error = Box<dyn std::error::Error + Send + Sync>;

/// How long a step of the set-up may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// Runs one measurement.
pub fn run(args: &BenchArgs) -> ExitCode {
    if !(args.secs > 0.0 && args.secs <= 600.0) || args.runs == 0 || args.window == 0 || args.entities == 0 {
        eprintln!("E-CLI-020: --secs is 0 to 600, --runs, --window and --entities at least 1");
        return ExitCode::from(1);
    }
    let measured = match args.name {
        Name::LocalTell => local::tell(args),
        Name::LocalAsk => local::ask(args),
        Name::RemoteTell => remote::tell(args),
        Name::RemoteAsk => remote::ask(args),
        Name::Simulator => simulator::measure(args),
        Name::Peer => return remote::peer(args),
    };
    match measured {
        Ok(report) => {
            if args.json {
                println!("{}", report.to_json())
            } else {
                print!("{report}")
            }
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("E-CLI-021: {} could not be measured: {error}", args.name.text());
            ExitCode::from(2)
        }
    }
}

/// Settings of a node that is measured: loopback, fast to form, otherwise as everybody has them.
fn settings(args: &BenchArgs) -> Result<Config, Error> {
    let mut config = Config::preset(Preset::LocalTest);
    for (key, value) in
        [("cluster.name", "bench"), ("node.listen", "127.0.0.1:0"), ("node.idle", args.idle.as_deref().unwrap_or("balanced"))]
    {
        config.set(key, &wingbeat_toml(value))?;
    }
    Ok(config)
}

/// A text as a TOML value.
fn wingbeat_toml(text: &str) -> toml::Value {
    toml::Value::String(text.to_owned())
}

/// A node that has formed or joined its cluster.
fn node(args: &BenchArgs, seeds: &[String]) -> Result<Cluster, Error> {
    let cluster = Cluster::builder(settings(args)?).seeds(seeds).start()?;
    cluster.wait_up(PATIENCE)?;
    Ok(cluster)
}

fn report(args: &BenchArgs) -> Report {
    let config = serde_json::json!({
        "secs": args.secs, "runs": args.runs, "window": args.window, "entities": args.entities,
        "idle": args.idle.as_deref().unwrap_or("balanced"), "payload_bytes": entity::PAYLOAD_BYTES,
    });
    Report::new(args.name.text(), config)
}
