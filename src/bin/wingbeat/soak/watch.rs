//! Looks at every process at fixed times, its own among them: memory, descriptors, threads; and at the machine, whether it let anybody run.

use std::{
    collections::BTreeMap,
    fs, process,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use hdrhistogram::Histogram;
use parking_lot::Mutex;

use super::{
    books::{Books, CALM_AFTER, Interval, histogram},
    floor::{self, Floor},
};

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
    /// Of that what the watch itself has written down, which grows by design: 0 in any process but its own.
    pub record: f64,
    /// Memory that is no file: heap and stacks.
    pub anon: f64,
    /// Its share of memory that others have too; 0 where the system does not say, and of the own process.
    pub pss: f64,
    pub descriptors: f64,
    pub threads: f64,
}

impl Sample {
    /// Memory that must not grow.
    pub fn judged(&self) -> f64 {
        self.rss - self.record
    }
}

/// One process, from its start to its end.
#[derive(Clone, Debug, Default)]
pub struct Life {
    pub name: String,
    /// No fault ends it.
    pub anchor: bool,
    pub samples: Vec<Sample>,
}

impl Life {
    /// What the watch had written down at the last look, KiB: above 0 in its own process alone.
    pub fn record(&self) -> f64 {
        self.samples.last().map_or(0.0, |sample| sample.record)
    }
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
    /// What a [trip](super::floor::Floor) to a thread that sleeps took.
    pub floor_ns: u64,
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

    /// What has been written down so far takes so much memory, KiB.
    fn record(&self) -> f64 {
        let samples: usize = self.lives.iter().chain(self.running.values()).map(|life| life.samples.len()).sum();
        (samples * size_of::<Sample>() + self.seconds.len() * size_of::<Second>()) as f64 / 1024.0
    }
}

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
            // Without it the machine is taken to be as fast as ever.
            let (floor, mut trips) = (Floor::start().ok(), Vec::with_capacity(2 * LOOK_EVERY.div_duration_f64(NAP) as usize));
            while !stopped.load(Ordering::Relaxed) {
                let slept = Instant::now();
                thread::park_timeout(NAP);
                stalls.saturating_record(slept.elapsed().saturating_sub(NAP).as_nanos() as u64);
                trips.extend(floor.as_ref().map(Floor::trip));
                if Instant::now() >= next {
                    next += LOOK_EVERY;
                    look(&theirs, &books, fault.load(Ordering::Relaxed) % 2 == 1, began, floor::median(&mut trips));
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

fn look(seen: &Mutex<Seen>, books: &Mutex<Books>, fault: bool, began: Instant, floor_ns: u64) {
    let at = began.elapsed().as_secs_f64();
    let interval = std::mem::take(&mut books.lock().interval);
    let q = |p| if interval.latencies.is_empty() { 0 } else { interval.latencies.value_at_quantile(p) };
    let Interval { sent, answered, failed, .. } = interval;
    let second = Second { at, sent, answered, failed, p50_ns: q(0.5), p99_ns: q(0.99), max_ns: interval.latencies.max(), fault, floor_ns };
    let mut seen = seen.lock();
    seen.seconds.push(second);
    let calm_since = if fault { None } else { Some(seen.calm_since.unwrap_or_else(Instant::now)) };
    seen.calm_since = calm_since;
    let calm = calm_since.is_some_and(|since| since.elapsed() >= CALM_AFTER);
    let record = seen.record();
    for (pid, life) in &mut seen.running {
        // One that has just ended has nothing to look at.
        let sample = sample(*pid, at, calm);
        life.samples.extend(sample.map(|sample| if *pid == process::id() { Sample { record, ..sample } } else { sample }));
    }
}

fn sample(pid: u32, at: f64, calm: bool) -> Option<Sample> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    // The system adds it up under a lock of that process, and who holds it may wait for a core: the load must not wait with it.
    let rollup =
        if pid == process::id() { String::new() } else { fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default() };
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).ok()?.count() as f64;
    let rss = field(&status, "VmRSS:")?;
    let (anon, threads) = (field(&status, "RssAnon:").unwrap_or(0.0), field(&status, "Threads:")?);
    let pss = field(&rollup, "Pss:").unwrap_or(0.0);
    Some(Sample { at, calm, rss, record: 0.0, anon, pss, descriptors, threads })
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

    #[test]
    fn the_own_process_is_looked_at_and_knows_what_was_written_down() {
        let (seen, books) = (Mutex::new(Seen::default()), Mutex::new(Books::new(Vec::new(), Duration::ZERO, LOOK_EVERY)));
        seen.lock().begins(process::id(), "the load", true);
        let mut other = process::Command::new("sleep").arg("60").spawn().unwrap();
        seen.lock().begins(other.id(), "node-1", false);
        (0..100).for_each(|_| look(&seen, &books, false, Instant::now(), 0));
        let of = |pid| seen.lock().running[&pid].samples.last().copied().unwrap();
        assert!(of(process::id()).record > 10.0 && of(process::id()).judged() < of(process::id()).rss);
        assert_eq!(of(other.id()).record, 0.0);
        other.kill().and_then(|()| other.wait()).unwrap();
    }
}
