//! `wingbeat node`: runs a node that hosts the built-in entity types.

use std::{net::SocketAddr, path::PathBuf};

use clap::Args;

/// Run a node until SIGTERM.
#[derive(Args, Clone, Debug)]
pub struct NodeArgs {
    /// Configuration, TOML; everything has a default, and flags win over it
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Where other nodes reach this one, TCP and UDP; port 0 takes a free one
    #[arg(long, value_name = "ADDR")]
    pub listen: Option<SocketAddr>,
    /// A node to join through; may be given several times, the order counts
    #[arg(long, value_name = "ADDR")]
    pub seed: Vec<String>,
    /// Where it answers HTTP; port 0 takes a free one
    #[arg(long, value_name = "ADDR")]
    pub admin: Option<SocketAddr>,
    /// Where it keeps what must survive a restart
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<String>,
    /// Ends at once when standard input ends: a parent that is gone, however it went, leaves no node behind
    #[arg(long)]
    pub exit_with_parent: bool,
    /// Says where it listens as one JSON object
    #[arg(long)]
    pub json: bool,
}
