//! The command line: one file per subject, JSON for machines, tables for people.
// They panic where nobody reads: see `out`.
#![warn(clippy::print_stdout, clippy::print_stderr)]

mod ask;
mod bench;
mod config;
mod demo;
mod fail;
mod heap;
mod http;
mod interrupt;
mod node;
mod out;
mod rejoin;
mod sim;
mod soak;
mod table;

use std::process::ExitCode;

use clap::{
    Parser, Subcommand,
    error::{ContextKind, ContextValue, ErrorKind},
};

use self::{
    fail::{Exit, Failure},
    out::{note, say},
    table::colours,
};

/// Clustering for latency-sensitive services: run a node, watch it work, ask a cluster
#[derive(Parser, Debug)]
#[command(name = "wingbeat", version, max_term_width = 120)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Replay real flights to a cluster of real processes, kill one half way, and compare the sums
    Demo(demo::DemoArgs),
    /// Run a node that hosts the built-in entity types, until SIGTERM
    Node(node::NodeArgs),
    /// Run a scenario in the simulator
    Sim(sim::SimArgs),
    /// Measure, with the raw limit of the machine in the same run
    Bench(bench::BenchArgs),
    /// Load, faults and watching for a long time, and verdicts in the end
    Soak(soak::SoakArgs),
    /// What a node thinks of itself and its cluster
    Status(ask::At),
    /// The members of the cluster
    Members(ask::At),
    /// How nodes see each other
    Links(ask::At),
    /// Where the shards of an entity type live
    Shards(ask::Shards),
    /// Where one entity lives
    Where(ask::Where),
    /// Shards on the move
    Handoffs(ask::At),
    /// What happened lately
    Events(ask::Events),
    /// Messages that were accepted and not handled, by reason
    Drops(ask::At),
    /// How long requests, turns and timers of a node take, and the last turns that were slow
    Latency(ask::At),
    /// What a node runs with, or every setting that there is
    Config(config::ConfigArgs),
    /// Hand the shards of a member to others and take it out of the cluster
    Leave(ask::Act),
    /// Declare a member dead
    Down(ask::Act),
}

/// Commands whose subject is still to be built, and that subject: whoever knows them from elsewhere is not told that they are misspelt.
const ABSENT: &[(&str, &str)] = &[
    ("partitions", "partitions"),
    ("leaders", "leaderships"),
    ("store", "replicated store"),
    ("doctor", "check of a cluster's settings"),
    ("plan", "dry runs"),
    ("drain", "draining without leaving"),
    ("rebalance", "rebalancing on request"),
    ("top", "live terminal view"),
];

/// The command that was asked for and does not exist yet, if that is what is wrong.
fn absent(error: &clap::Error) -> Option<Failure> {
    let Some(ContextValue::String(asked)) = error.get(ContextKind::InvalidSubcommand) else { return None };
    let (name, subject) = ABSENT.iter().find(|(name, _)| error.kind() == ErrorKind::InvalidSubcommand && name == asked)?;
    let what = format!("command `{name}` is not available in this version, which has no {subject}");
    Some(Failure::usage("E-CLI-007", what, "`wingbeat --help` lists what there is"))
}

/// Counts allocations for `bench`; otherwise the system's allocator.
#[global_allocator]
static ALLOCATOR: bench::Counting = bench::Counting;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version are what was asked for; everything else is wrong usage, which has the exit code 1 here.
            if !error.use_stderr() {
                let text = error.render();
                let text = if colours() { text.ansi().to_string() } else { text.to_string() };
                return ended(say(text.trim_end()).map(|()| ExitCode::SUCCESS));
            }
            if let Some(failure) = absent(&error) {
                return ended(Err(failure));
            }
            note(error.render().to_string().replacen("error:", "error[E-CLI-001]:", 1).trim_end());
            return Exit::Usage.into();
        }
    };
    ended(run(&cli.command))
}

/// The exit code of what was done, or of what was wrong, which is told.
fn ended(done: Result<ExitCode, Failure>) -> ExitCode {
    done.unwrap_or_else(|failure| {
        note(&failure);
        failure.exit.into()
    })
}

fn run(command: &Command) -> Result<ExitCode, Failure> {
    match command {
        Command::Demo(args) => demo::run(args),
        Command::Node(args) => node::run(args),
        Command::Sim(args) => sim::run(args),
        Command::Bench(args) => bench::run(args),
        Command::Soak(args) => soak::run(args),
        Command::Status(at) => ask::status(at),
        Command::Members(at) => ask::members(at),
        Command::Links(at) => ask::links(at),
        Command::Shards(args) => ask::shards(args),
        Command::Where(args) => ask::locate(args),
        Command::Handoffs(at) => ask::handoffs(at),
        Command::Events(args) => ask::events(args),
        Command::Drops(at) => ask::drops(at),
        Command::Latency(at) => ask::latency(at),
        Command::Config(args) => config::run(args),
        Command::Leave(args) => ask::leave(args),
        Command::Down(args) => ask::down(args),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
