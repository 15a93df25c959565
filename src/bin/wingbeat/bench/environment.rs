//! The machine that is measured on, and who else uses it.

use std::{
    path::Path,
    process::{Command, Stdio},
};

use serde_json::{Value, json};

use super::one_core;

/// How busy the cores were that this process may use, and how busy it was, so far.
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

    /// Share of these cores that others used since then.
    pub fn foreign_since(&self) -> Option<f64> {
        let now = Self::now()?;
        let total = now.total.checked_sub(self.total).filter(|t| *t > 0)?;
        Some(now.busy.saturating_sub(self.busy).saturating_sub(now.own.saturating_sub(self.own)) as f64 / total as f64)
    }
}

/// Ticks that the cores of this process were busy, and all their ticks, since the machine started.
fn busy_and_total() -> Option<(u64, u64)> {
    ticks(&std::fs::read_to_string("/proc/stat").ok()?, &one_core::cores().ok()?)
}

/// The same of these cores, as `/proc/stat` has them. What others do on cores that this process may not use disturbs nothing here, and a machine
/// of many cores would make little of what they do on the few that it has.
fn ticks(stat: &str, cores: &[usize]) -> Option<(u64, u64)> {
    let of = |name: &str| {
        let (_, rest) = stat.lines().filter_map(|line| line.split_once(' ')).find(|(first, _)| *first == name)?;
        let fields: Vec<u64> = rest.split_whitespace().map_while(|n| n.parse().ok()).take(8).collect();
        let (total, idle) = (fields.iter().sum::<u64>(), fields.get(3)? + fields.get(4)?);
        Some((total - idle, total))
    };
    let each: Option<Vec<(u64, u64)>> = cores.iter().map(|core| of(&format!("cpu{core}"))).collect();
    // A container may number its cores anew: then the sum is of these.
    each.map_or_else(|| of("cpu"), |each| Some(each.into_iter().fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))))
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

/// The machine, the build, and the share of this process's cores that others used.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cores_of_this_process_count_and_no_others() {
        let stat =
            "cpu  60 0 0 40 0 0 0 0 0 0\ncpu0 10 5 5 70 10 0 0 0 9 9\ncpu1 50 0 0 50 0 0 0 0 0 0\ncpu10 90 0 0 10 0 0 0 0 0 0\nintr 7\n";
        assert_eq!(ticks(stat, &[0]), Some((20, 100)));
        assert_eq!(ticks(stat, &[0, 10]), Some((110, 200)));
        assert_eq!(ticks(stat, &[0, 2]), Some((60, 100)), "no such line: all of them");
        assert_eq!(ticks("intr 7\n", &[0]), None);
    }
}
