//! `wingbeat bench`: one measurement, with the raw limit measured in the same run.

mod alloc;
mod entity;
mod limits;
mod local;
mod remote;
mod report;
mod rig;
mod simulator;

use std::{process::ExitCode, time::Duration};

pub use alloc::Counting;
use clap::{Args, ValueEnum};

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
    /// Runs; the figures are medians over them, interleaved with runs of the limit. Those disturbed by others are repeated, once each
    #[arg(long, default_value_t = 5)]
    runs: u32,
    /// Requests in flight, for `remote-ask`; above 1 its throughput is compared
    #[arg(long, default_value_t = 1)]
    window: u32,
    /// One message at a time instead of batches of 64, for `local-tell` and `remote-tell`
    #[arg(long)]
    single: bool,
    /// Entities that the messages go to
    #[arg(long, default_value_t = 1000)]
    entities: u64,
    /// How idle threads wait: low_latency, balanced, low_cpu
    #[arg(long)]
    idle: Option<String>,
    /// Any other setting of the measured nodes, as KEY=VALUE in TOML
    #[arg(long, value_name = "KEY=VALUE", value_parser = setting)]
    set: Vec<(String, toml::Value)>,
}

fn setting(text: &str) -> Result<(String, toml::Value), String> {
    let (key, value) = text.split_once('=').ok_or("it has no `=`; write for instance limits.ring_items=1024")?;
    // A bare word is a text, as nobody quotes twice in a shell.
    let parsed = toml::from_str::<toml::Table>(&format!("value = {value}")).ok().and_then(|mut table| table.remove("value"));
    let value = parsed.unwrap_or_else(|| toml::Value::String(value.to_owned()));
    Ok((key.trim().to_owned(), value))
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

impl BenchArgs {
    fn idle(&self) -> &str {
        self.idle.as_deref().unwrap_or("balanced")
    }

    /// Settings that differ from those of everybody.
    fn settings(&self) -> Vec<(String, toml::Value)> {
        let idle = ("node.idle".to_owned(), toml::Value::String(self.idle().to_owned()));
        std::iter::once(idle).chain(self.set.iter().cloned()).collect()
    }

    /// Time of one run.
    fn window(&self) -> Duration {
        Duration::from_secs_f64(self.secs)
    }
}

/// Runs one measurement.
pub fn run(args: &BenchArgs) -> ExitCode {
    if !(args.secs > 0.0 && args.secs <= 600.0) || args.runs == 0 || args.window == 0 || args.entities == 0 {
        eprintln!("error[E-CLI-050]: --secs must be above 0 and at most 600; --runs, --window and --entities must be at least 1");
        return ExitCode::from(1);
    }
    let mut report = report(args);
    let measured = match args.name {
        Name::LocalTell => local::tell(args, &mut report),
        Name::LocalAsk => local::ask(args, &mut report),
        Name::RemoteTell => remote::tell(args, &mut report),
        Name::RemoteAsk => remote::ask(args, &mut report),
        Name::Simulator => simulator::measure(args, &mut report),
        Name::Peer => return remote::peer(args),
    };
    match measured {
        Ok(()) => {
            if args.json {
                println!("{}", report.to_json())
            } else {
                print!("{report}")
            }
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error[E-CLI-051]: {} could not be measured: {error}", args.name.text());
            ExitCode::from(2)
        }
    }
}

fn report(args: &BenchArgs) -> Report {
    let config = serde_json::json!({
        "secs": args.secs, "runs": args.runs, "window": args.window, "entities": args.entities, "single": args.single,
        "idle": args.idle(),
        "set": args.set.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>(), "payload_bytes": entity::PAYLOAD_BYTES,
    });
    Report::new(args.name.text(), config)
}
