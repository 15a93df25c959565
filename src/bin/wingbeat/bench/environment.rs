//! The machine that is measured on, and who else uses it.

use std::{
    path::Path,
    process::{Command, Stdio},
};

use serde_json::{Value, json};

/// What the machine and this program have used so far.
pub struct Load {
    busy: u64,
    total: u64,
    own: u64,
}

impl Load {
    /// As of now; `None` where the system does not say.
    pub fn now() -> Option<Self> {
        let (busy, total) = busy_and_total()?;
        Some(Self { busy, total, own: own_ticks() })
    }

    /// Share of the machine that others used since then.
    pub fn foreign_since(&self) -> Option<f64> {
        let now = Self::now()?;
        let total = now.total.checked_sub(self.total).filter(|t| *t > 0)?;
        Some(now.busy.saturating_sub(self.busy).saturating_sub(now.own.saturating_sub(self.own)) as f64 / total as f64)
    }
}

/// Ticks that the machine was busy, and all ticks, since it started.
fn busy_and_total() -> Option<(u64, u64)> {
    let stat = std::fs::read_to_string("/proc/stat").ok()?;
    let fields: Vec<u64> = stat.lines().next()?.split_whitespace().skip(1).map_while(|n| n.parse().ok()).take(8).collect();
    let (total, idle) = (fields.iter().sum::<u64>(), fields.get(3)? + fields.get(4)?);
    Some((total - idle, total))
}

/// Ticks that this process and its ended children have used.
fn own_ticks() -> u64 {
    let own = |pid: &str| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let rest = stat.rsplit_once(')')?.1;
        Some(rest.split_whitespace().skip(11).take(4).filter_map(|n| n.parse::<u64>().ok()).sum::<u64>())
    };
    let children = std::fs::read_to_string(format!("/proc/self/task/{}/children", std::process::id())).unwrap_or_default();
    own("self").unwrap_or(0) + children.split_whitespace().filter_map(own).sum::<u64>()
}

/// The commit of the working directory, if that is the repository of this program, and whether its sources differ from it.
pub fn commit() -> Option<String> {
    let git = |args: &[&str]| Command::new("git").args(args).stderr(Stdio::null()).output().ok();
    if !Path::new("src/bin/wingbeat/bench").is_dir() {
        return None;
    }
    let head = git(&["rev-parse", "--short=12", "HEAD"]).filter(|head| head.status.success())?;
    let same = git(&["diff", "--quiet", "HEAD", "--", "src", "Cargo.toml", "Cargo.lock"])?.status.success();
    let head = String::from_utf8(head.stdout).ok()?;
    Some(format!("{}{}", head.trim(), if same { "" } else { " with changes" }))
}

/// The machine, the build, and the share of the machine that others used.
pub fn environment(foreign: Option<f64>) -> Value {
    let cpu = std::fs::read_to_string("/proc/cpuinfo").ok();
    let model =
        cpu.as_deref().and_then(|c| c.lines().find_map(|l| l.strip_prefix("model name"))).map(|l| l.trim_start_matches([' ', '\t', ':']));
    json!({
        "cpu": model,
        "cores": std::thread::available_parallelism().map_or(0, usize::from),
        "os": std::env::consts::OS,
        "arch": std::env::consts::ARCH,
        "version": env!("CARGO_PKG_VERSION"),
        "debug_build": cfg!(debug_assertions),
        "foreign_load": foreign,
    })
}
