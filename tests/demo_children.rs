//! Nodes of a demo never outlive it: not when it is told to end, and not when it is killed.
#![cfg(all(feature = "cli", target_os = "linux"))]
#![allow(missing_docs, clippy::unwrap_used)]

use std::{
    fs,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

const DEADLINE: Duration = Duration::from_secs(60);

/// A demo that is killed when the test is over, however it ends.
struct Demo(Child);

impl Demo {
    fn start() -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_wingbeat"));
        let child = command.arg("demo").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        Self(child)
    }

    /// Process ids of its nodes: their configuration is in a directory that carries the demo's own id.
    fn nodes(&self) -> Vec<u32> {
        let directory = format!("wingbeat-demo-{}/", self.0.id());
        let processes = fs::read_dir("/proc").unwrap().flatten();
        let ids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        ids.filter(|id| {
            let arguments = fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
            *id != self.0.id() && String::from_utf8_lossy(&arguments).contains(&directory)
        })
        .collect()
    }

    fn wait_for(&mut self, what: &str, holds: impl Fn(&Self) -> bool) {
        let deadline = Instant::now() + DEADLINE;
        while !holds(self) {
            assert!(Instant::now() < deadline, "not in time: {what}");
            thread::park_timeout(Duration::from_millis(10));
        }
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn signal(child: &Child, name: &str) {
    assert!(Command::new("kill").args([name, &child.id().to_string()]).status().unwrap().success());
}

#[test]
fn nodes_end_with_a_demo_that_is_told_to_end() {
    for (name, code) in [("-TERM", 143), ("-INT", 130)] {
        let mut demo = Demo::start();
        demo.wait_for("three nodes run", |demo| demo.nodes().len() == 3);
        signal(&demo.0, name);
        assert_eq!(demo.0.wait().unwrap().code(), Some(code));
        assert_eq!(demo.nodes(), [], "nodes are gone when the demo is");
    }
}

#[test]
fn nodes_end_with_a_demo_that_is_killed() {
    let mut demo = Demo::start();
    demo.wait_for("three nodes run", |demo| demo.nodes().len() == 3);
    signal(&demo.0, "-KILL");
    demo.0.wait().unwrap();
    demo.wait_for("no node runs", |demo| demo.nodes().is_empty());
}
