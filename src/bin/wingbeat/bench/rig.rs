//! What is measured: a node, or two, with entities that count and echo. Shared with the benches under `benches/`.

use std::{
    ops::Range,
    time::{Duration, Instant},
};

use wingbeat::{Answer, AskError, AskQueue, Batch, Cluster, Config, EntityRef, Refusal, Region, config::Preset};

use super::entity::Told;

/// What can go wrong.
pub type Error = Box<dyn std::error::Error + Send + Sync>;

/// How long a step of the set-up may take.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// What a node of a measurement runs with.
pub fn config(set: &[(String, toml::Value)]) -> Result<Config, Error> {
    let mut config = Config::preset(Preset::LocalTest);
    for (key, value) in [("cluster.name", "bench"), ("node.listen", "127.0.0.1:0")] {
        config.set(key, &toml::Value::String(value.to_owned()))?;
    }
    for (key, value) in set {
        config.set(key, value)?;
    }
    config.validate()?;
    Ok(config)
}

/// A node on loopback that has formed or joined its cluster: fast to form, otherwise as everybody has them but for `set`.
pub fn start(set: &[(String, toml::Value)], seeds: &[String]) -> Result<Cluster, Error> {
    let cluster = Cluster::builder(config(set)?).seeds(seeds).start()?;
    cluster.wait_up(PATIENCE)?;
    Ok(cluster)
}

/// References to the entities 0 to `n`, each of them live.
pub fn warm<T: Told>(region: &Region<T>, n: u64) -> Result<Vec<EntityRef<T>>, Error> {
    region.wait_ready(PATIENCE)?;
    let all: Vec<_> = (0..n).map(|key| region.get(key)).collect();
    handled(&all)?;
    Ok(all)
}

/// Notes of a batch.
pub const BATCH: u64 = 64;
/// Notes between two questions how far the entities have come.
const MARK_EVERY: u64 = 8192;
/// Questions that may be open: so many times `MARK_EVERY` notes are less than a link, and the receiver, may hold, so none is given up.
const MARKS_OPEN: usize = 3;

/// Questions to entities how far they have come. Each is asked again until there is room for it; none allocates anything.
struct Questions<'a, T: Told> {
    all: &'a [EntityRef<T>],
    queue: AskQueue<u64>,
    answers: Vec<Answer<u64>>,
    /// There was no room for these.
    again: Vec<usize>,
}

impl<'a, T: Told> Questions<'a, T> {
    /// No more than `most` may be open.
    fn new(all: &'a [EntityRef<T>], most: usize) -> Self {
        Self { all, queue: AskQueue::new(most), answers: Vec::with_capacity(most), again: Vec::with_capacity(most) }
    }

    fn open(&self) -> usize {
        self.queue.in_flight() + self.again.len()
    }

    fn ask(&mut self, at: usize) -> Result<(), Error> {
        let asked = self.all[at].ask_into(T::count(), PATIENCE, at as u64, &self.queue);
        asked.or_else(|error| self.refused(at, error.reason().clone())).map_err(Into::into)
    }

    /// The ring is full of notes: asked again, behind them.
    fn refused(&mut self, at: usize, reason: Refusal) -> Result<(), Refusal> {
        match reason {
            Refusal::Full | Refusal::NoCredit => {
                self.again.push(at);
                Ok(())
            }
            reason => Err(reason),
        }
    }

    /// Waits until one is answered at least: the sum of the answers.
    fn take(&mut self) -> Result<u64, Error> {
        let patience = Instant::now() + PATIENCE;
        loop {
            for _ in 0..self.again.len() {
                let at = self.again.swap_remove(0);
                self.ask(at)?;
            }
            self.queue.wait(&mut self.answers, PATIENCE);
            let (mut sum, mut taken) = (0, false);
            while let Some(Answer { tag, result, .. }) = self.answers.pop() {
                match result {
                    Ok(count) => (sum, taken) = (sum + count, true),
                    Err(AskError::Refused(reason)) => self.refused(tag as usize, reason)?,
                    Err(error) => return Err(error.into()),
                }
            }
            if taken || self.open() == 0 {
                return Ok(sum);
            }
            if Instant::now() > patience {
                return Err(format!("no room for a question within {PATIENCE:?}").into());
            }
            std::thread::yield_now();
        }
    }
}

/// `n` numbers from `first` on, a batch at a time.
pub fn batches(first: u64, n: u64) -> impl Iterator<Item = Range<u64>> {
    let end = first + n;
    (first..end).step_by(BATCH as usize).map(move |at| at..end.min(at + BATCH))
}

/// Sends notes round robin, waiting for room where there is none, and never so many ahead that a link has to give some up.
pub struct Teller<'a, T: Told> {
    all: &'a [EntityRef<T>],
    /// Messages go in batches.
    batch: Option<Batch<T>>,
    sent: u64,
    marks: Questions<'a, T>,
}

impl<'a, T: Told> Teller<'a, T> {
    /// Nothing is sent yet.
    pub fn new(all: &'a [EntityRef<T>], batch: Option<Batch<T>>) -> Self {
        Self { all, batch, sent: 0, marks: Questions::new(all, MARKS_OPEN) }
    }

    /// Sends `n` more.
    pub fn tell(&mut self, n: u64) -> Result<(), Error> {
        for batch in batches(self.sent, n) {
            for i in batch {
                self.note(i)?;
            }
            self.flush()?;
        }
        self.sent += n;
        Ok(())
    }

    /// Sends one, or adds it to the batch.
    fn note(&mut self, i: u64) -> Result<(), Error> {
        let at = (i % self.all.len() as u64) as usize;
        if i.is_multiple_of(MARK_EVERY) {
            while self.marks.open() >= MARKS_OPEN {
                self.marks.take()?;
            }
            self.marks.ask(at)?;
        }
        let note = T::note(i);
        match &mut self.batch {
            Some(batch) => drop(batch.push(*self.all[at].key(), note)),
            None => self.all[at].tell_within(note, PATIENCE).map_err(|e| e.to_string())?,
        }
        Ok(())
    }

    /// Sends what is in the batch.
    fn flush(&mut self) -> Result<(), Error> {
        let Some(batch) = &mut self.batch else { return Ok(()) };
        match batch.send_within(PATIENCE).refused.first() {
            Some((_, refused)) => Err(refused.reason().to_string().into()),
            None => Ok(()),
        }
    }

    /// Waits until all are handled: how many were sent.
    pub fn finish(mut self) -> Result<u64, Error> {
        while self.marks.open() > 0 {
            self.marks.take()?;
        }
        handled(self.all)?;
        Ok(self.sent)
    }
}

/// How many notes all entities have handled. Each answers behind all notes that this thread sent it before.
pub fn handled<T: Told>(all: &[EntityRef<T>]) -> Result<u64, Error> {
    // Many at once, so that waiting for answers one by one adds nothing to what is measured.
    let mut questions = Questions::new(all, 64);
    let mut sum = 0;
    for at in 0..all.len() {
        while questions.open() >= 64 {
            sum += questions.take()?;
        }
        questions.ask(at)?;
    }
    while questions.open() > 0 {
        sum += questions.take()?;
    }
    Ok(sum)
}
