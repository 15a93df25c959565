//! What a node counts, from its page of metrics.

use std::{
    io::{Read, Write},
    net::TcpStream,
    time::{Duration, Instant},
};

use wingbeat::Cluster;

use super::{
    load,
    rig::{Error, PATIENCE},
};

/// Opens the page.
pub const ADMIN: (&str, &str) = ("admin.listen", "127.0.0.1:0");
/// Largest page that is read.
const PAGE_MAX: u64 = 4 << 20;
/// A node that rests copies what its network thread has counted for readers with one of its heartbeats, five times a second at most.
const COUNTED_WITHIN: Duration = Duration::from_millis(450);

/// The page of metrics of a node.
#[derive(Debug)]
pub struct Page(pub String);

impl Page {
    /// As of now.
    pub fn of(cluster: &Cluster) -> Result<Self, Error> {
        let admin = cluster.admin_addr().ok_or("the node has no HTTP")?;
        let mut stream = TcpStream::connect(admin)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(format!("GET /metrics HTTP/1.1\r\nHost: {admin}\r\nConnection: close\r\n\r\n").as_bytes())?;
        let mut text = String::new();
        stream.take(PAGE_MAX).read_to_string(&mut text)?;
        Ok(Self(text))
    }

    /// The value of the sample with this name and these labels, as they are written.
    pub fn value(&self, sample: &str) -> Option<f64> {
        let line = self.0.lines().find_map(|line| line.strip_prefix("wingbeat_")?.strip_prefix(sample)?.strip_prefix(' '))?;
        line.trim().parse().ok()
    }

    /// The sum of all samples with this name, whatever their labels.
    fn sum(&self, name: &str) -> f64 {
        let of = |line: &str| {
            let rest = line.strip_prefix("wingbeat_")?.strip_prefix(name)?;
            let labels = rest.starts_with('{') || rest.starts_with(' ');
            rest.rsplit_once(' ').filter(|_| labels)?.1.parse::<f64>().ok()
        };
        self.0.lines().filter_map(of).sum()
    }
}

/// Calls of the system that a node has made so far: of its network thread those to sockets, of all threads those to sleep. A thread that is woken was
/// asleep, so that there are as many calls again of those who woke it, at most.
#[derive(Clone, Debug)]
pub struct Calls([f64; 4]);

/// What is counted, by the name of each detail, and the samples that make it up.
const COUNTED: [(&str, &[&str]); 4] = [
    ("writes_per_message", &["net_link_writes_total"]),
    ("reads_per_message", &["net_link_reads_total"]),
    ("polls_per_message", &["net_polls_total"]),
    ("sleeps_per_message", &["net_polls_asleep_total", "worker_parks_total"]),
];

impl Calls {
    /// Of a node that rests: what it counts is told to readers a moment later.
    pub fn of(cluster: &Cluster) -> Result<Self, Error> {
        load::pause_until(Instant::now() + COUNTED_WITHIN);
        let page = Page::of(cluster)?;
        Ok(Self(COUNTED.map(|(_, samples)| samples.iter().map(|sample| page.sum(sample)).sum())))
    }

    /// Since then, for each of so many messages.
    pub fn per_message(&self, before: &Self, messages: f64) -> Vec<(&'static str, f64)> {
        COUNTED.iter().zip(self.0.iter().zip(before.0)).map(|((name, _), (now, before))| (*name, (now - before) / messages)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_found_by_their_whole_name() {
        let page = Page(
            "# HELP wingbeat_a_total x\nwingbeat_a_total_more 9\nwingbeat_a_total{worker=\"0\"} 2\nwingbeat_a_total{worker=\"1\"} 3\nwingbeat_b 0.5\n"
                .into(),
        );
        assert_eq!((page.sum("a_total"), page.sum("b"), page.sum("c")), (5.0, 0.5, 0.0));
        assert_eq!((page.value("b"), page.value("a_total{worker=\"1\"}"), page.value("a")), (Some(0.5), Some(3.0), None));
    }

    #[test]
    fn calls_are_told_for_each_message() {
        let (before, now) = (Calls([1.0, 2.0, 3.0, 4.0]), Calls([101.0, 2.0, 53.0, 5.0]));
        let all = now.per_message(&before, 100.0);
        assert_eq!(all[0], ("writes_per_message", 1.0));
        assert_eq!(all.iter().map(|(_, n)| *n).collect::<Vec<_>>(), [1.0, 0.0, 0.5, 0.01]);
    }
}
