//! What the harnesses in Rust share: arguments, loops, clocks and the line that each measurement prints.
//!
//! The loops are those of `wingbeat bench`: 64 bytes, 1,000 actors in turn; a told message counts when it was handled, which every 8,192nd one is
//! asked about, with at most three such questions open, so that no mailbox and no connection holds more than 32,768 messages.

pub mod alloc;
mod serve;

use std::{
    collections::VecDeque,
    future::Future,
    process::{Command, ExitCode},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use hdrhistogram::Histogram;
pub use serve::{Server, until_stdin_ends};

/// Whatever went wrong.
pub type Error = Box<dyn std::error::Error + Send + Sync>;

/// The 64 bytes of every message.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Payload(pub [u64; 8]);

impl Payload {
    /// As bytes, little-endian.
    pub fn to_bytes(self) -> [u8; 64] {
        let mut bytes = [0; 64];
        for (to, word) in bytes.chunks_exact_mut(8).zip(self.0) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// From what `to_bytes` made; `None` if it is shorter.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let mut words = [0; 8];
        for (word, from) in words.iter_mut().zip(bytes.get(..64)?.as_chunks::<8>().0) {
            *word = u64::from_le_bytes(*from);
        }
        Some(Self(words))
    }
}

/// An actor, from here or from afar, as the loops see it.
pub trait Peer: Clone + Send + Sync + 'static {
    /// Tasks that tell at the same time, each to its own share of the actors: more than one only where a tell waits for its receipt.
    const TELLERS: usize = 1;
    /// A question is answered behind everything told before it.
    const ORDERED: bool = true;

    /// Sends without an answer; waits only for room.
    fn tell(&self, payload: Payload) -> impl Future<Output = Result<(), Error>> + Send;
    /// Sends, and returns what comes back.
    fn ask(&self, payload: Payload) -> impl Future<Output = Result<Payload, Error>> + Send;
    /// How many told messages it has handled.
    fn count(&self) -> impl Future<Output = Result<u64, Error>> + Send;
}

/// Which measurements; the last is the other process of `Remote`.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Group {
    Local,
    Remote,
    Population,
    Serve,
}

/// Arguments: `GROUP SECS [THREADS [REST..]]`.
pub struct Args {
    pub group: Group,
    pub secs: f64,
    /// Threads of the runtime.
    pub threads: Option<usize>,
    pub rest: Vec<String>,
}

impl Args {
    fn parse() -> Result<Self, Error> {
        let mut args = std::env::args().skip(1);
        let group = match args.next().as_deref() {
            Some("local") => Group::Local,
            Some("remote") => Group::Remote,
            Some("population") => Group::Population,
            Some("serve") => Group::Serve,
            other => return Err(format!("{other:?} is no group; use local, remote or population, then the seconds of one run").into()),
        };
        let secs = args.next().map_or(Ok(1.0), |s| s.parse())?;
        let threads = args.next().map(|s| s.parse()).transpose()?;
        Ok(Self { group, secs, threads, rest: args.collect() })
    }

    pub fn threads(&self) -> usize {
        self.threads.unwrap_or(1)
    }

    pub fn window(&self) -> Duration {
        Duration::from_secs_f64(self.secs)
    }
}

/// Runs what the arguments say.
pub fn main(run: impl FnOnce(&Args) -> Result<(), Error>) -> ExitCode {
    match Args::parse().and_then(|args| run(&args)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}

/// Runs what the arguments say once for each number of threads worth trying here, one and as many as there are cores, each in a process of its own:
/// some runtimes exist once per process, and no run finds what the one before has left in the allocator.
pub fn main_by_threads(run: impl FnOnce(&Args) -> Result<(), Error>) -> ExitCode {
    main(|args| {
        if args.threads.is_some() {
            return run(args);
        }
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        for n in if cores == 1 { vec![1] } else { vec![1, cores] } {
            let mut again = Command::new(std::env::current_exe()?);
            let status = again.args(std::env::args().skip(1)).arg(n.to_string()).status()?;
            if !status.success() {
                return Err(format!("with {}: {status}", threads(n)).into());
            }
        }
        Ok(())
    })
}

/// Actors that messages go to.
pub const ACTORS: u64 = 1000;
/// Actors that are started and weighed.
pub const POPULATION: u64 = 250_000;

/// A runtime of tokio with `threads` threads. With one the current thread is all there is: nothing is ever handed to another.
pub fn runtime(threads: usize) -> Result<tokio::runtime::Runtime, Error> {
    let mut builder = if threads == 1 {
        tokio::runtime::Builder::new_current_thread()
    } else {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        builder.worker_threads(threads);
        builder
    };
    Ok(builder.enable_all().build()?)
}

/// Runs `work` as a task of a runtime with `threads` threads. `block_on` alone would keep it on a thread that is none of the runtime's workers.
pub fn on_runtime<T: Send + 'static>(threads: usize, work: impl Future<Output = Result<T, Error>> + Send + 'static) -> Result<T, Error> {
    runtime(threads)?.block_on(async { tokio::spawn(work).await? })
}

/// Who prints: name and version of the peer.
#[derive(Clone)]
pub struct Printer {
    pub peer: &'static str,
    pub version: String,
    /// What is tried here, for instance the threads of the runtime.
    pub variant: String,
}

/// Name of a variant.
pub fn threads(n: usize) -> String {
    if n == 1 { "1 thread".into() } else { format!("{n} threads") }
}

/// The version of a package in a lock file.
pub fn version(lock: &str, package: &str) -> String {
    let mut lines = lock.lines().skip_while(|line| *line != format!("name = \"{package}\""));
    lines.nth(1).and_then(|line| line.split('"').nth(1)).unwrap_or("unknown").to_owned()
}

impl Printer {
    pub fn new(peer: &'static str, version: String) -> Self {
        Self { peer, version, variant: String::new() }
    }

    pub fn with(&self, variant: String) -> Self {
        Self { variant, ..self.clone() }
    }

    fn line(&self, measurement: &str, rest: &str) {
        let Self { peer, version, variant } = self;
        println!(r#"{{"peer":"{peer}","version":"{version}","variant":"{variant}","measurement":"{measurement}",{rest}}}"#);
    }

    /// A measurement begins: what others used before is not its concern.
    pub fn begin(&self) {
        println!(r#"{{"begin":true}}"#);
    }

    /// A rate or a size without latencies.
    pub fn value(&self, measurement: &str, unit: &str, value: f64, n: u64) {
        self.line(measurement, &format!(r#""unit":"{unit}","value":{value:.1},"p50":null,"p99":null,"p999":null,"n":{n}"#));
    }

    /// Latencies in nanoseconds, and the rate that went with them.
    pub fn latencies(&self, measurement: &str, seen: &Histogram<u64>, took: Duration) {
        let [p50, p99, p999] = [0.5, 0.99, 0.999].map(|q| seen.value_at_quantile(q));
        let (n, rate) = (seen.len(), seen.len() as f64 / took.as_secs_f64());
        self.line(measurement, &format!(r#""unit":"asks/s","value":{rate:.1},"p50":{p50},"p99":{p99},"p999":{p999},"n":{n}"#));
    }

    /// This peer has no such thing, and why.
    pub fn lacks(&self, measurement: &str, why: &str) {
        let why = why.replace(['"', '\\', '\n'], " ");
        self.line(measurement, &format!(r#""lacks":"{why}""#));
    }
}

/// A histogram of nanoseconds up to a minute, three digits.
pub fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("the bounds are constants that the crate accepts")
}

/// Messages between two questions how far the actors have come.
const MARK_EVERY: u64 = 8192;
const MARKS_OPEN: usize = 3;
/// Messages between two looks at the clock.
const STRIDE: u64 = 64;

/// Sum of what all have handled.
pub async fn handled<P: Peer>(all: &[P]) -> Result<u64, Error> {
    let mut sum = 0;
    for some in all.chunks(64) {
        let asked: Vec<_> = some.iter().cloned().map(|peer| tokio::spawn(async move { peer.count().await })).collect();
        for count in asked {
            sum += count.await??;
        }
    }
    Ok(sum)
}

async fn tell_some<P: Peer>(all: Arc<[P]>, teller: usize, began: Instant, window: Duration) -> Result<u64, Error> {
    let share = &all[teller * all.len() / P::TELLERS..(teller + 1) * all.len() / P::TELLERS];
    let (mut sent, mut marks) = (0u64, VecDeque::new());
    while began.elapsed() < window {
        for _ in 0..STRIDE.div_ceil(P::TELLERS as u64) {
            let peer = &share[(sent % share.len() as u64) as usize];
            peer.tell(Payload([sent; 8])).await?;
            if sent % MARK_EVERY == 0 {
                let peer = peer.clone();
                marks.push_back(tokio::spawn(async move { peer.count().await }));
                if marks.len() > MARKS_OPEN
                    && let Some(mark) = marks.pop_front()
                {
                    mark.await??;
                }
            }
            sent += 1;
        }
        // As cooperative as any task should be.
        tokio::task::yield_now().await;
    }
    for mark in marks {
        mark.await??;
    }
    Ok(sent)
}

async fn tell_for<P: Peer>(all: &[P], window: Duration) -> Result<(u64, Duration), Error> {
    let before = handled(all).await?;
    let (began, shared) = (Instant::now(), Arc::<[P]>::from(all));
    let tellers: Vec<_> = (0..P::TELLERS).map(|teller| tokio::spawn(tell_some(shared.clone(), teller, began, window))).collect();
    let mut sent = 0;
    for teller in tellers {
        sent += teller.await??;
    }
    // The answers come behind everything told, so that the time ends with the last one handled.
    let mut done = handled(all).await? - before;
    while !P::ORDERED && done < sent && began.elapsed() < window + Duration::from_secs(10) {
        done = handled(all).await? - before;
    }
    let took = began.elapsed();
    if done == sent { Ok((sent, took)) } else { Err(format!("{sent} messages were sent and {done} handled").into()) }
}

async fn ask_for<P: Peer>(all: &[P], window: Duration) -> Result<(Histogram<u64>, Duration), Error> {
    let (began, mut seen, mut i) = (Instant::now(), histogram(), 0u64);
    while began.elapsed() < window {
        let sent = Instant::now();
        let back = all[(i % all.len() as u64) as usize].ask(Payload([i; 8])).await?;
        seen.saturating_record(sent.elapsed().as_nanos() as u64);
        if back.0 != [i; 8] {
            return Err(format!("request {i} got the answer of another: {back:?}").into());
        }
        i += 1;
    }
    Ok((seen, began.elapsed()))
}

async fn ask_many<P: Peer>(all: &[P], in_flight: u64, window: Duration) -> Result<(Histogram<u64>, Duration), Error> {
    let (began, all) = (Instant::now(), Arc::<[P]>::from(all));
    let tasks: Vec<_> = (0..in_flight)
        .map(|task| {
            let all = all.clone();
            tokio::spawn(async move {
                let (mut seen, mut i) = (histogram(), task);
                while began.elapsed() < window {
                    let sent = Instant::now();
                    let back = all[(i % all.len() as u64) as usize].ask(Payload([i; 8])).await?;
                    seen.saturating_record(sent.elapsed().as_nanos() as u64);
                    if back.0 != [i; 8] {
                        return Err(format!("request {i} got the answer of another: {back:?}").into());
                    }
                    i += in_flight;
                }
                Ok::<_, Error>(seen)
            })
        })
        .collect();
    let mut seen = histogram();
    for task in tasks {
        seen.add(task.await??)?;
    }
    Ok((seen, began.elapsed()))
}

/// Warm-up of each loop, as a share of the run.
const WARM: f64 = 0.3;

async fn tell_and_ask<P: Peer>(printer: &Printer, prefix: &str, all: &[P], window: Duration) -> Result<(), Error> {
    printer.begin();
    tell_for(all, window.mul_f64(WARM)).await?;
    let (sent, took) = tell_for(all, window).await?;
    printer.value(&format!("{prefix}-tell"), "messages/s", sent as f64 / took.as_secs_f64(), sent);
    printer.begin();
    ask_for(all, window.mul_f64(WARM)).await?;
    let (seen, took) = ask_for(all, window).await?;
    printer.latencies(&format!("{prefix}-ask"), &seen, took);
    Ok(())
}

/// Everything that is measured within one process.
pub async fn local<P: Peer>(printer: Printer, all: Vec<P>, window: Duration) -> Result<(), Error> {
    tell_and_ask(&printer, "local", &all, window).await
}

/// Everything that is measured between two processes.
pub async fn remote<P: Peer>(printer: Printer, all: Vec<P>, window: Duration) -> Result<(), Error> {
    tell_and_ask(&printer, "remote", &all, window).await?;
    printer.begin();
    ask_many(&all, 128, window.mul_f64(WARM)).await?;
    let (seen, took) = ask_many(&all, 128, window).await?;
    printer.latencies("remote-ask-128", &seen, took);
    Ok(())
}

/// Actors that have handled a first message.
static STARTED: AtomicU64 = AtomicU64::new(0);

/// What every actor does with a told message: counts it.
pub fn handle(payload: &[u8], notes: &mut u64) {
    std::hint::black_box(payload);
    if *notes == 0 {
        STARTED.fetch_add(1, Ordering::Relaxed);
    }
    *notes += 1;
}

/// `start` and `memory`: `start_all` starts so many actors and tells each a message; it is done when all were handled.
pub async fn population<P: Peer, F: Future<Output = Result<Vec<P>, Error>>>(
    printer: Printer,
    start_all: impl Fn(u64) -> F,
) -> Result<(), Error> {
    let populate = async |n: u64| {
        let before = STARTED.load(Ordering::Relaxed);
        let all = start_all(n).await?;
        for actor in &all {
            actor.tell(Payload([0; 8])).await?;
        }
        while STARTED.load(Ordering::Relaxed) - before < n {
            tokio::task::yield_now().await;
        }
        Ok::<_, Error>(all)
    };
    printer.begin();
    // So that tables of the runtime have come to their usual size.
    drop(populate(ACTORS).await?);
    let began = Instant::now();
    let ((all, took), bytes) = alloc::weighed(async { (populate(POPULATION).await, began.elapsed()) }).await;
    let all = all?;
    printer.value("memory", "bytes", bytes as f64 / POPULATION as f64, POPULATION);
    printer.value("start", "actors/s", POPULATION as f64 / took.as_secs_f64(), POPULATION);
    drop(all);
    Ok(())
}
