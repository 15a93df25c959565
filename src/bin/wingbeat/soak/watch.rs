//! Looks at every node process at fixed times: memory, descriptors, threads; and at the machine, whether it let anybody run.

use std::{
    collections::BTreeMap,
    fs,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use hdrhistogram::Histogram;
use parking_lot::Mutex;

use super::books::{Books, Interval, histogram};

/// How often processes are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long the watch sleeps between two looks at whether the machine lets it run.
const NAP: Duration = Duration::from_millis(20);

/// What one look at a process found. Sizes in KiB.
#[derive(Copy, Clone, PartialEq, Debug, Default)]
pub struct Sample {
    /// Seconds since the load began.
    pub at: f64,
    /// No fault was open, and none had been for a while: figures of such looks are compared.
    pub calm: bool,
    pub rss: f64,
    /// Memory that is no file: heap and stacks.
    pub anon: f64,
    /// Its share of memory that others have too; 0 where the system does not say.
    pub pss: f64,
    pub descriptors: f64,
    pub threads: f64,
}

/// One process, from its start to its end.
#[derive(Clone, Debug, Default)]
pub struct Life {
    pub name: String,
    /// No fault ends it.
    pub anchor: bool,
    pub samples: Vec<Sample>,
}

/// A second of the load.
#[derive(Copy, Clone, Debug, Default)]
pub struct Second {
    pub at: f64,
    pub sent: u64,
    pub answered: u64,
    pub failed: u64,
    pub p50_ns: u64,
    pub p99_ns: u64,
    pub max_ns: u64,
    pub fault: bool,
}

/// All that was seen.
#[derive(Default)]
pub struct Seen {
    /// By process id, of those that run; and of those that ended.
    running: BTreeMap<u32, Life>,
    pub lives: Vec<Life>,
    pub seconds: Vec<Second>,
    /// How late the watch itself woke, in nanoseconds.
    pub stalls: Option<Histogram<u64>>,
    /// Since when all is calm.
    calm_since: Option<Instant>,
}

impl Seen {
    /// A process has started.
    pub fn begins(&mut self, pid: u32, name: &str, anchor: bool) {
        self.running.insert(pid, Life { name: name.into(), anchor, samples: Vec::new() });
    }

    /// A process is about to end.
    pub fn ends(&mut self, pid: u32) {
        self.lives.extend(self.running.remove(&pid));
    }
}

/// After a fault has healed, shards are handed back and buffers returned for so long.
const CALM_AFTER: Duration = Duration::from_secs(3);

/// Looks until it is told to stop.
pub struct Watch {
    pub seen: Arc<Mutex<Seen>>,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Watch {
    pub fn start(seen: Arc<Mutex<Seen>>, books: Arc<Mutex<Books>>, fault: Arc<AtomicU32>, began: Instant) -> Result<Self, String> {
        let stop = Arc::new(AtomicBool::new(false));
        let (theirs, stopped) = (seen.clone(), stop.clone());
        let watching = move || {
            let (mut next, mut stalls) = (Instant::now(), histogram());
            while !stopped.load(Ordering::Relaxed) {
                let slept = Instant::now();
                thread::park_timeout(NAP);
                stalls.saturating_record(slept.elapsed().saturating_sub(NAP).as_nanos() as u64);
                if Instant::now() >= next {
                    next += LOOK_EVERY;
                    look(&theirs, &books, fault.load(Ordering::Relaxed) % 2 == 1, began);
                }
            }
            theirs.lock().stalls = Some(stalls);
        };
        let thread = thread::Builder::new().name("soak-watch".into()).spawn(watching).map_err(|error| error.to_string())?;
        Ok(Self { seen, stop, thread })
    }

    /// Everything that was seen, lives that have not ended included.
    pub fn finish(self) -> Seen {
        self.stop.store(true, Ordering::Relaxed);
        // It cannot panic: it only reads and counts. If it did, what it saw is judged all the same.
        let _ = self.thread.join();
        let mut seen = std::mem::take(&mut *self.seen.lock());
        let running = std::mem::take(&mut seen.running);
        seen.lives.extend(running.into_values());
        seen.lives.sort_by(|a, b| a.name.cmp(&b.name));
        seen
    }
}

fn look(seen: &Mutex<Seen>, books: &Mutex<Books>, fault: bool, began: Instant) {
    let at = began.elapsed().as_secs_f64();
    let interval = std::mem::take(&mut books.lock().interval);
    let q = |p| if interval.latencies.is_empty() { 0 } else { interval.latencies.value_at_quantile(p) };
    let Interval { sent, answered, failed, .. } = interval;
    let second = Second { at, sent, answered, failed, p50_ns: q(0.5), p99_ns: q(0.99), max_ns: interval.latencies.max(), fault };
    let mut seen = seen.lock();
    seen.seconds.push(second);
    let calm_since = if fault { None } else { Some(seen.calm_since.unwrap_or_else(Instant::now)) };
    seen.calm_since = calm_since;
    let calm = calm_since.is_some_and(|since| since.elapsed() >= CALM_AFTER);
    for (pid, life) in &mut seen.running {
        // One that has just ended has nothing to look at.
        life.samples.extend(sample(*pid, at, calm));
    }
}

fn sample(pid: u32, at: f64, calm: bool) -> Option<Sample> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).ok()?.count() as f64;
    let rss = field(&status, "VmRSS:")?;
    let (anon, threads) = (field(&status, "RssAnon:").unwrap_or(0.0), field(&status, "Threads:")?);
    Some(Sample { at, calm, rss, anon, pss: field(&rollup, "Pss:").unwrap_or(0.0), descriptors, threads })
}

/// The number behind a name at the beginning of a line.
fn field(text: &str, name: &str) -> Option<f64> {
    text.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_seen_in_full() {
        let sample = sample(std::process::id(), 1.5, true).unwrap();
        assert!(sample.rss > 500.0 && sample.anon > 0.0 && sample.anon <= sample.rss, "{sample:?}");
        assert!(sample.threads >= 1.0 && sample.descriptors >= 3.0, "{sample:?}");
    }

    #[test]
    fn fields_are_found_by_the_whole_name() {
        assert_eq!(field("Pss_Dirty: 7 kB\nPss:     123 kB\n", "Pss:"), Some(123.0));
        assert_eq!(field("", "Pss:"), None);
    }

    #[test]
    fn a_life_ends_with_its_process() {
        let mut seen = Seen::default();
        seen.begins(7, "node-1", false);
        seen.ends(7);
        seen.ends(7);
        assert_eq!((seen.lives.len(), seen.running.len()), (1, 0));
    }
}
