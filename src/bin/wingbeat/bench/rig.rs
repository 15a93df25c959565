//! What is measured: a node, or two, with entities that count and echo. Shared with the benches under `benches/`.

use std::time::Duration;

use wingbeat::{AskError, Batch, Cluster, Config, EntityRef, Refusal, Region, channel, config::Preset};

use super::entity::Told;

/// What can go wrong.
pub type Error = Box<dyn std::error::Error + Send + Sync>;

/// How long a step of the set-up may take.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// A node on loopback that has formed or joined its cluster: fast to form, otherwise as everybody has them but for `set`.
pub fn start(set: &[(String, toml::Value)], seeds: &[String]) -> Result<Cluster, Error> {
    let mut config = Config::preset(Preset::LocalTest);
    for (key, value) in [("cluster.name", "bench"), ("node.listen", "127.0.0.1:0")] {
        config.set(key, &toml::Value::String(value.to_owned()))?;
    }
    for (key, value) in set {
        config.set(key, value)?;
    }
    let cluster = Cluster::builder(config).seeds(seeds).start()?;
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

/// Notes between two questions how far the entities have come.
const MARK_EVERY: u64 = 8192;
/// Questions that may be open: so many times `MARK_EVERY` notes are less than a link, and the receiver, may hold, so none is given up.
const MARKS_OPEN: usize = 3;

/// Sends notes round robin, waiting for room where there is none, and never so many ahead that a link has to give some up.
pub struct Teller<'a, T: Told> {
    all: &'a [EntityRef<T>],
    /// Messages go in batches.
    batch: Option<Batch<T>>,
    sent: u64,
    open: usize,
    tx: channel::Sender<Mark>,
    rx: channel::Receiver<Mark>,
}

/// An answer, and of which entity.
type Mark = (usize, Result<u64, AskError>);

impl<'a, T: Told> Teller<'a, T> {
    /// Nothing is sent yet.
    pub fn new(all: &'a [EntityRef<T>], batch: Option<Batch<T>>) -> Self {
        let (tx, rx) = channel::unbounded();
        Self { all, batch, sent: 0, open: 0, tx, rx }
    }

    /// Sends `n` more.
    pub fn tell(&mut self, n: u64) -> Result<(), Error> {
        for i in self.sent..self.sent + n {
            let at = (i % self.all.len() as u64) as usize;
            let note = T::note(i);
            match &mut self.batch {
                Some(batch) => drop(batch.push(*self.all[at].key(), note)),
                None => self.all[at].tell_within(note, PATIENCE).map_err(|e| e.to_string())?,
            }
            if i % MARK_EVERY == 0 {
                self.flush()?;
                while self.open >= MARKS_OPEN {
                    self.take()?;
                }
                self.open += 1;
                self.question(at);
            }
        }
        self.sent += n;
        self.flush()
    }

    /// Sends what is in the batch.
    fn flush(&mut self) -> Result<(), Error> {
        let Some(batch) = &mut self.batch else { return Ok(()) };
        match batch.send_within(PATIENCE).refused.first() {
            Some((_, refused)) => Err(refused.reason().to_string().into()),
            None => Ok(()),
        }
    }

    fn question(&self, at: usize) {
        let tx = self.tx.clone();
        self.all[at].ask_then(T::count(), PATIENCE, move |answer| drop(tx.send((at, answer))));
    }

    fn take(&mut self) -> Result<(), Error> {
        match self.rx.recv_timeout(PATIENCE)? {
            (_, Ok(_)) => {
                self.open -= 1;
                Ok(())
            }
            // The ring is full of notes: asked again, behind them.
            (at, Err(AskError::Refused(Refusal::Full | Refusal::NoCredit))) => {
                self.question(at);
                Ok(())
            }
            (_, Err(error)) => Err(error.into()),
        }
    }

    /// Waits until all are handled: how many were sent.
    pub fn finish(mut self) -> Result<u64, Error> {
        while self.open > 0 {
            self.take()?;
        }
        handled(self.all)?;
        Ok(self.sent)
    }
}

/// How many notes all entities have handled. Each answers behind all notes that this thread sent it before.
pub fn handled<T: Told>(all: &[EntityRef<T>]) -> Result<u64, Error> {
    let (tx, rx) = channel::unbounded();
    let (mut sum, mut next, mut in_flight, mut again) = (0, 0, 0, Vec::new());
    // Many at once, so that waiting for answers one by one adds nothing to what is measured.
    while next < all.len() || in_flight > 0 || !again.is_empty() {
        while in_flight < 64 && (next < all.len() || !again.is_empty()) {
            let at = again.pop().unwrap_or_else(|| {
                next += 1;
                next - 1
            });
            let tx = tx.clone();
            all[at].ask_then(T::count(), PATIENCE, move |answer| drop(tx.send((at, answer))));
            in_flight += 1;
        }
        let (at, answer) = rx.recv_timeout(PATIENCE)?;
        in_flight -= 1;
        match answer {
            Ok(count) => sum += count,
            // The ring still holds notes; the way over the helper thread gives it time.
            Err(AskError::Refused(Refusal::Full | Refusal::NoCredit)) => again.push(at),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(sum)
}
