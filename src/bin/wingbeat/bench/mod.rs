//! `wingbeat bench`: one measurement, with the raw limit measured in the same run.

mod all;
mod alloc;
mod codec;
mod core_speed;
mod entity;
pub mod environment;
mod failover;
mod foreign;
mod growth;
mod handoff;
mod heartbeat;
mod homes;
mod idle;
mod inside;
mod leave;
mod limits;
mod load;
mod local;
mod network_turn;
pub mod one_core;
mod open_loop;
mod page;
mod peers;
mod percentiles;
pub mod plot;
mod population;
mod rebalance;
mod remote;
mod report;
mod rig;
mod scrape;
mod serde_entity;
mod simulator;
mod targets;
mod timer;

use std::{
    fs::OpenOptions,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

pub use alloc::Counting;
use clap::{Args, FromArgMatches, ValueEnum, builder::PossibleValuesParser};

use open_loop::Rate;
use report::Report;
use rig::Error;

use crate::{fail::Failure, out::say};

/// Arguments of `bench`.
#[derive(Args, Debug, Clone)]
pub struct BenchArgs {
    /// What to measure
    name: Name,
    /// One JSON object on standard output
    #[arg(long)]
    json: bool,
    /// Seconds of one run: 2, 10 for `heartbeat-delay`, whose p99.9 wants a thousand timers, and 60 for `foreign-load`, 180 for `soak`, which are one run each.
    /// What has a number of things to do (`timer`, `start`, `memory`, `growth`) lasts as long as it does whatever is said here; `network-turn` takes none
    #[arg(long)]
    secs: Option<f64>,
    /// Runs: 5, 1 for `foreign-load` and `network-turn`, and 9 for `remote-ask`, whose p99 wants more; `all` makes no fewer of a row. The figures are medians over
    /// them, interleaved with runs of the limit. Those disturbed by others are repeated, once each
    #[arg(long)]
    runs: Option<u32>,
    /// Requests in flight, for `local-ask` and `remote-ask`; above 1 its throughput is compared
    #[arg(long, default_value_t = 1)]
    window: u32,
    /// So many requests per second whatever the answers do, or `half-of-peak`, for `local-ask` and `remote-ask`: latency counts from the
    /// moment at which a request was meant to go
    #[arg(long, value_name = "N|half-of-peak", conflicts_with = "window")]
    rate: Option<Rate>,
    /// Write each round to this file, as CSV
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Write the percentiles of all latencies to this file, as HdrHistogram's tools read them
    #[arg(long, value_name = "FILE")]
    hgrm: Option<PathBuf>,
    /// Directory for the page, the pictures and the files of each row, for `all`
    #[arg(long, value_name = "DIR")]
    report: Option<PathBuf>,
    /// Rows to measure, by the names of their files, for `all`: without it all of them
    #[arg(long, value_name = "ROW[,ROW..]", value_delimiter = ',', hide_possible_values = true,
          value_parser = PossibleValuesParser::new(targets::ROWS.iter().map(|row| row.id)))]
    only: Vec<String>,
    /// One message at a time instead of batches of 64, for `local-tell`, `remote-tell`, `start` and `memory`
    #[arg(long)]
    single: bool,
    /// Sent by an entity among the others on their worker instead of a thread of its own, for `local-tell` and `local-ask`
    #[arg(long, conflicts_with = "rate")]
    inside: bool,
    /// Messages declared by `messages!` and written by serde, for `remote-tell`
    #[arg(long)]
    serde: bool,
    /// All threads of all nodes on one core, for messages and requests
    #[arg(long)]
    one_core: bool,
    /// A request that is alone in flight is written to the socket by its caller, for `remote-ask`: so they are anyway, unless another thread is at the network's
    /// work at that moment, so it changes nothing
    #[arg(long, conflicts_with = "rate")]
    direct: bool,
    /// Encrypted links
    #[arg(long, hide = true)]
    tls: bool,
    /// Entities that the messages go to: 1,000, and for `start` and `memory` 1,000,000
    #[arg(long)]
    entities: Option<u64>,
    /// How idle threads wait: low_latency, balanced, low_cpu
    #[arg(long)]
    idle: Option<String>,
    /// Any other setting of the measured nodes, as KEY=VALUE in TOML
    #[arg(long, value_name = "KEY=VALUE", value_parser = setting)]
    set: Vec<(String, toml::Value)>,
    /// Whom a `peer` joins through
    #[arg(long, value_name = "ADDR", hide = true)]
    seed: Vec<String>,
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
    /// A million timers: setting and cancelling one
    Timer,
    /// The envelope of a message: writing and reading it
    Codec,
    /// Entities started by their first message, per worker
    Start,
    /// Bytes of an idle entity over its key and state
    Memory,
    /// CPU of three nodes without traffic, in percent of a core per node
    Idle,
    /// How long messages wait for a shard that moves between two processes
    Handoff,
    /// What requests notice while one of three nodes leaves in order
    Leave,
    /// Seconds until a third node has its share of the shards
    Rebalance,
    /// A node's process is killed: until its entities answer from elsewhere, part by part
    Failover,
    /// How late heartbeats leave while a link carries all that it can
    HeartbeatDelay,
    /// Messages between two nodes with two workers each while others use every core, and who is suspected meanwhile
    ForeignLoad,
    /// The longest turn of the network thread of one of 10,000 members; the others are simulated
    NetworkTurn,
    /// What a node of 1,000 sends and does between two heartbeats, beside one of 10; simulated
    Growth,
    /// Appends to the node's log
    #[value(hide = true)]
    Journal,
    /// Reads and writes of the replicated store
    #[value(hide = true)]
    Store,
    /// Events per second of the simulator, on one core
    Simulator,
    /// Load, faults and watching for --secs, as `wingbeat soak`: the last third against the first
    Soak,
    /// All of the above but `soak` with what each must come to, as one page; with pictures where --report says
    All,
    /// The other process of a remote measurement
    #[value(hide = true)]
    Peer,
}

impl Name {
    /// Whether nodes are measured, which have settings.
    fn has_nodes(self) -> bool {
        !matches!(self, Self::Timer | Self::Codec | Self::NetworkTurn | Self::Growth | Self::Simulator)
    }

    /// Whether it lasts for as long as it is told; others end when they have done so many things.
    fn has_time(self) -> bool {
        !matches!(self, Self::Timer | Self::Start | Self::Memory | Self::Growth | Self::NetworkTurn)
    }

    /// Whether messages go to entities, or entities are what is counted.
    fn has_entities(self) -> bool {
        self.has_nodes() && self != Self::Idle
    }

    /// `all` gives it neither `--secs` nor more runs.
    fn is_one_long_run(self) -> bool {
        matches!(self, Self::ForeignLoad | Self::NetworkTurn)
    }

    fn text(self) -> &'static str {
        match self {
            Self::LocalTell => "local-tell",
            Self::LocalAsk => "local-ask",
            Self::RemoteTell => "remote-tell",
            Self::RemoteAsk => "remote-ask",
            Self::Timer => "timer",
            Self::Codec => "codec",
            Self::Start => "start",
            Self::Memory => "memory",
            Self::Idle => "idle",
            Self::Handoff => "handoff",
            Self::Leave => "leave",
            Self::Rebalance => "rebalance",
            Self::Failover => "failover",
            Self::HeartbeatDelay => "heartbeat-delay",
            Self::ForeignLoad => "foreign-load",
            Self::NetworkTurn => "network-turn",
            Self::Growth => "growth",
            Self::Journal => "journal",
            Self::Store => "store",
            Self::Simulator => "simulator",
            Self::Soak => "soak",
            Self::All => "all",
            Self::Peer => "peer",
        }
    }
}

impl BenchArgs {
    /// What the words behind `wingbeat bench` ask for.
    fn of<'a>(words: impl IntoIterator<Item = &'a str>) -> Result<Self, clap::Error> {
        let command = Self::augment_args(clap::Command::new("bench").no_binary_name(true));
        Self::from_arg_matches(&command.try_get_matches_from(words)?)
    }

    fn entities(&self) -> u64 {
        self.entities.unwrap_or(if matches!(self.name, Name::Start | Name::Memory) { 1_000_000 } else { 1000 })
    }

    fn idle(&self) -> &str {
        self.idle.as_deref().unwrap_or("balanced")
    }

    /// Settings that differ from those of everybody.
    fn settings(&self) -> Vec<(String, toml::Value)> {
        let idle = ("node.idle".to_owned(), toml::Value::String(self.idle().to_owned()));
        std::iter::once(idle).chain(self.set.iter().cloned()).collect()
    }

    /// What is known by name, and not there to be measured.
    fn absent(&self) -> Option<String> {
        let (what, why) = match self.name {
            Name::Journal => ("journal", "this build has no journal"),
            Name::Store => ("store", "this build has no replicated store"),
            _ if self.tls => ("--tls", "links of this build are not encrypted"),
            _ => return None,
        };
        Some(format!("{what} cannot be measured: {why}; `wingbeat bench --help` names what can"))
    }

    /// A flag that means nothing for what is measured would be measured as if it did.
    fn mismatch(&self) -> Option<String> {
        let name = self.name.text();
        if self.name == Name::All && (self.csv.is_some() || self.hgrm.is_some() || self.single || self.window > 1) {
            return Some(
                "`all` has rows with and without --window and --single, and with --report DIR files of rounds and percentiles for each; leave these flags out"
                    .into(),
            );
        }
        if self.csv.is_some() && self.csv == self.hgrm {
            return Some("--csv and --hgrm name one file, which can hold only one of them".into());
        }
        let asks = matches!(self.name, Name::LocalAsk | Name::RemoteAsk);
        let latencies = asks || matches!(self.name, Name::Handoff | Name::Leave | Name::Failover);
        if self.rate.is_some() && !asks {
            return Some(format!("--rate is for local-ask and remote-ask; {name} has no rate that could be held"));
        }
        if self.hgrm.is_some() && !latencies {
            return Some(format!("--hgrm is for measurements of latency; {name} has no latencies (--csv has its rounds)"));
        }
        let messages = asks || matches!(self.name, Name::LocalTell | Name::RemoteTell);
        if self.one_core && !messages && self.name != Name::Peer {
            return Some(format!("--one-core is for messages and requests, whose limits know of it; the limit of {name} does not"));
        }
        if self.inside && !matches!(self.name, Name::LocalTell | Name::LocalAsk) {
            return Some(format!("--inside is for local-tell and local-ask; what {name} measures is sent from elsewhere"));
        }
        if self.direct && (self.name != Name::RemoteAsk || self.window > 1) {
            return Some(format!(
                "--direct is for remote-ask with one request in flight; many are written in rows, and what {name} measures otherwise has no such requests"
            ));
        }
        if self.serde && !matches!(self.name, Name::RemoteTell | Name::Peer) {
            return Some(format!("--serde is for remote-tell, which writes a message each time; {name} has no such messages"));
        }
        if self.window > 1 && !asks && self.name != Name::Peer {
            return Some(format!("--window is for local-ask and remote-ask; {name} has no requests that could be in flight together"));
        }
        if self.window > 1 && self.inside {
            return Some("--inside asks one after the other; leave --window out".into());
        }
        let tells = matches!(self.name, Name::LocalTell | Name::RemoteTell | Name::Start | Name::Memory);
        if self.single && !tells {
            return Some(format!(
                "--single is for local-tell, remote-tell, start and memory, which send in batches without it; {name} sends none"
            ));
        }
        if self.name == Name::Soak && (!self.set.is_empty() || self.entities.is_some() || self.runs.is_some_and(|runs| runs != 1)) {
            return Some(
                "soak is one run and takes --secs, --idle, --csv and --json here; `wingbeat soak --report DIR` writes more files".into(),
            );
        }
        if !self.name.has_nodes() && (self.idle.is_some() || !self.set.is_empty() || self.entities.is_some()) {
            return Some(format!("--idle, --set and --entities are for measurements of nodes; {name} starts none"));
        }
        if self.entities.is_some() && self.name == Name::Idle {
            return Some("--entities is for what has entities; the nodes of idle have none".into());
        }
        if self.secs.is_some() && self.name == Name::NetworkTurn {
            return Some("--secs is for what runs in real time; network-turn simulates as long as its cluster takes".into());
        }
        if self.report.is_some() && self.name != Name::All {
            return Some(format!("--report is for `all`, whose page it is to hold; {name} has --csv and --hgrm"));
        }
        if !self.only.is_empty() && self.name != Name::All {
            return Some(format!("--only is for `all`, whose rows it names; {name} is one measurement"));
        }
        None
    }

    /// What can be said before anything is measured.
    fn check(&self) -> Result<(), Failure> {
        let longest = if self.name == Name::Soak { 60.0 * crate::soak::MINUTES_MAX } else { 600.0 };
        if !(self.secs() > 0.0 && self.secs() <= longest) || self.runs() == 0 || self.window == 0 || self.entities() == 0 {
            let what = format!("--secs must be above 0 and at most {longest}; --runs, --window and --entities must be at least 1");
            return Err(Failure::usage("E-CLI-050", what, ""));
        }
        if self.entities() > ENTITIES_MAX || self.window > WINDOW_MAX {
            let what = format!("--entities may be at most {ENTITIES_MAX}, --window {WINDOW_MAX}: more have no place in memory");
            return Err(Failure::usage("E-CLI-050", what, ""));
        }
        let spread = matches!(self.name, Name::Leave | Name::Rebalance | Name::Failover);
        if spread && self.entities() < SPREAD_MIN {
            let (name, entities) = (self.name.text(), self.entities());
            let what = format!("--entities {entities}: {name} needs at least {SPREAD_MIN}, so that each of its three nodes has some");
            return Err(Failure::usage("E-CLI-050", what, ""));
        }
        if let Some(problem) = self.mismatch() {
            return Err(Failure::usage("E-CLI-052", problem, ""));
        }
        rig::config(&self.settings()).map_err(misconfigured)?;
        if let Some(problem) = self.absent() {
            return Err(Failure::usage("E-CLI-053", problem, ""));
        }
        // Before minutes are spent on what they are to hold.
        self.csv.iter().chain(&self.hgrm).try_for_each(|path| look(path).map_err(|error| unwritable(path, &error)))
    }

    /// Seconds of one run. A soak is none in 2 s, a load of others has to be borne for a minute, a simulated cluster has its own time, and of a hundred
    /// timers a second the 99.9th percentile is that of a thousand.
    fn secs(&self) -> f64 {
        self.secs.unwrap_or(match self.name {
            Name::Soak => 180.0,
            Name::ForeignLoad => 60.0,
            Name::HeartbeatDelay => heartbeat::SECS,
            Name::NetworkTurn => f64::from(network_turn::VIRTUAL_S),
            _ => 2.0,
        })
    }

    /// A tail is the median of more runs.
    fn runs(&self) -> u32 {
        self.runs.unwrap_or(match self.name {
            Name::RemoteAsk if self.window == 1 && self.rate.is_none() => 9,
            name if name.is_one_long_run() => 1,
            _ => 5,
        })
    }

    /// Time of one run.
    fn window(&self) -> Duration {
        Duration::from_secs_f64(self.secs())
    }
}

fn misconfigured(error: Error) -> Failure {
    Failure::usage("E-CLI-010", error.to_string(), "`wingbeat config --defaults` lists all settings with what they may be")
}

/// Fails if this file cannot be written; leaves none that was not there.
fn look(path: &Path) -> std::io::Result<()> {
    let is_new = !path.exists();
    OpenOptions::new().append(true).create(true).open(path)?;
    if is_new { std::fs::remove_file(path) } else { Ok(()) }
}

fn unwritable(path: &Path, error: &std::io::Error) -> Failure {
    Failure::usage("E-CLI-054", format!("{} cannot be written: {error}", path.display()), "name another file")
}

/// Entities and requests beyond these would have no place in memory.
const ENTITIES_MAX: u64 = 100_000_000;
const WINDOW_MAX: u32 = 1 << 20;
/// With fewer entities a node of three may get none, and be waited for.
const SPREAD_MIN: u64 = 10;

/// Runs one measurement.
pub fn run(args: &BenchArgs) -> Result<ExitCode, Failure> {
    args.check()?;
    let failed = |error: Error| Failure::unreachable("E-CLI-051", format!("{} could not be measured: {error}", args.name.text()), "");
    if args.one_core {
        one_core::bind().map_err(failed)?;
    }
    let mut report = report(args);
    match args.name {
        Name::LocalTell => local::tell(args, &mut report),
        Name::LocalAsk => local::ask(args, &mut report),
        Name::RemoteTell => remote::tell(args, &mut report),
        Name::RemoteAsk => remote::ask(args, &mut report),
        Name::Timer => timer::measure(args, &mut report),
        Name::Codec => codec::measure(args, &mut report),
        Name::Start => population::start(args, &mut report),
        Name::Memory => population::memory(args, &mut report),
        Name::Idle => idle::measure(args, &mut report),
        Name::Handoff => handoff::measure(args, &mut report),
        Name::Leave => leave::measure(args, &mut report),
        Name::Rebalance => rebalance::measure(args, &mut report),
        Name::Failover => failover::measure(args, &mut report),
        Name::HeartbeatDelay => heartbeat::measure(args, &mut report),
        Name::ForeignLoad => foreign::measure(args, &mut report),
        Name::NetworkTurn => network_turn::measure(args, &mut report),
        Name::Growth => growth::measure(args, &mut report),
        Name::Simulator => simulator::measure(args, &mut report),
        Name::Soak => return crate::soak::bench(args.secs(), args.idle.as_deref(), args.json, args.csv.as_deref()),
        Name::Peer => return peers::run(args).map(|()| ExitCode::SUCCESS).map_err(failed),
        Name::Journal | Name::Store => Err("this build cannot measure it".into()),
        Name::All => return all::run(args, args.report.as_deref()),
    }
    .map_err(failed)?;
    // First what stands on a screen: files may have become impossible to write since they were looked at.
    say(&if args.json { report.to_json().to_string() } else { report.to_string().trim_end().to_owned() })?;
    let write = |path: &Path, text: String| std::fs::write(path, text).map_err(|error| unwritable(path, &error));
    if let Some(path) = &args.csv {
        write(path, report.csv())?;
    }
    if let Some(path) = &args.hgrm {
        let latencies = report.latencies().ok_or_else(|| failed("no latencies were measured".into()))?;
        write(path, percentiles::file(&latencies))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn report(args: &BenchArgs) -> Report {
    let config = serde_json::json!({
        "secs": args.name.has_time().then(|| args.secs()), "runs": args.runs(), "window": args.window, "entities": args.entities(), "single": args.single, "direct": args.direct,
        "inside": args.inside, "serde": args.serde, "one_core": args.one_core,
        "rate": args.rate.map(|rate| rate.to_string()), "idle": args.idle(),
        "set": args.set.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>(), "payload_bytes": entity::PAYLOAD_BYTES,
    });
    Report::new(args.name.text(), config)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The words of a line as a shell has them that knows `$preset` only; quotes stand around whole words.
    fn words(line: &str) -> Vec<String> {
        let parts = line.split('"').enumerate();
        let of = |(at, part): (usize, &str)| match at % 2 {
            0 => part.split_whitespace().map(str::to_owned).collect(),
            _ => vec![part.replace("$preset", "low_cpu")],
        };
        parts.flat_map(of).collect()
    }

    /// Harnesses of other systems run for an hour before one of these lines would be seen to be refused.
    #[test]
    fn every_line_of_the_harness_beside_peers_is_a_measurement() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/perf/peers/wingbeat/harness.sh");
        let text = std::fs::read_to_string(file).unwrap();
        let lines: Vec<_> = text.lines().filter_map(|line| line.trim().strip_prefix("bench ")).map(words).collect();
        assert!(lines.len() >= 10, "{lines:?}");
        for line in lines {
            // Two words are of the harness itself; it adds these, and the time where there is one.
            let timed = if ["memory", "start"].contains(&line[0].as_str()) { &[][..] } else { &["--secs", "1"] };
            let flags = line.iter().skip(2).map(String::as_str).chain(["--json", "--runs", "1"]).chain(timed.iter().copied());
            BenchArgs::of(flags)
                .unwrap_or_else(|error| panic!("{line:?}: {error}"))
                .check()
                .unwrap_or_else(|error| panic!("{line:?}: {error}"));
        }
    }
}
