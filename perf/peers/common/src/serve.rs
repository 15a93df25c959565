//! The other process of a remote measurement.

use std::{
    io::{BufRead, BufReader, Read, Write},
    process::{Child, ChildStdout, Command, Stdio},
};

use crate::Error;

/// The other process; ended when this is dropped.
pub struct Server {
    child: Child,
    /// What it printed first, its address for instance.
    pub says: String,
    _stdout: BufReader<ChildStdout>,
}

impl Server {
    /// Starts this program again as `serve SECS THREADS REST..` and waits for its first line.
    pub fn start(threads: usize, rest: &[&str]) -> Result<Self, Error> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["serve", "0", &threads.to_string()]).args(rest).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn()?;
        let mut stdout = BufReader::new(child.stdout.take().ok_or("the other process has no standard output")?);
        let mut says = String::new();
        stdout.read_line(&mut says)?;
        if says.is_empty() {
            return Err("the other process ended without a word".into());
        }
        Ok(Self { child, says: says.trim().to_owned(), _stdout: stdout })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already. Waiting for it makes its CPU time this process's.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Says `line` and returns when whoever started this process has ended, however that happened.
pub fn until_stdin_ends(line: &str) -> Result<(), Error> {
    println!("{line}");
    std::io::stdout().flush()?;
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}
