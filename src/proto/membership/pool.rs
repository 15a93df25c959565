//! What machines in one process share: equal versions, and what was worked out of the same inputs. A thousand simulated nodes that stand at
//! the same version hold it once, and the second to merge the same delta into the same version does no work. Nothing that a machine does
//! depends on whether it has a pool.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Weak},
};

use super::{
    Members,
    codec::Body,
    members::WeakMembers,
    reachability::Verdict,
    state::{Folk, Version},
};
use crate::proto::wire::Malformed;

/// Shared by the machines that were given clones of it.
#[derive(Clone)]
pub struct Pool(Arc<dyn Keeper>);

/// Has the shelves, and lets one at a time to them: how is the affair of whoever drives the machines.
pub trait Keeper: Send + Sync {
    /// Calls `visit` once.
    fn with(&self, visit: &mut dyn FnMut(&mut Shelves));
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Pool")
    }
}

/// What is shared.
#[derive(Default, Debug)]
pub struct Shelves {
    empty: Arc<Version>,
    versions: BTreeMap<u128, Vec<Weak<Version>>>,
    /// Versions at which the dead ones are looked for again.
    full: usize,
    folks: BTreeMap<u128, Vec<Weak<Folk>>>,
    read: Memo<Version, Arc<Version>>,
    /// Part and result, if it is another version, by version and place of the part, which is kept so that its place stays its own.
    merged: Memo<Version, (Arc<Version>, Option<Arc<Version>>)>,
    answers: Memo<Version, Answer>,
    judged: Memo<Version, Arc<Verdict>>,
    /// Held only by those who show them: a picture of the cluster has many verdicts.
    shown: Memo<Folk, WeakMembers>,
}

/// What a clock is answered with: what its owner lacks, and whether it knows more.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) body: Option<Arc<Body>>,
    pub(crate) ahead: bool,
}

/// Results by the version, or members, that they were made of, and the other input.
#[derive(Debug)]
struct Memo<K, V> {
    known: BTreeMap<(usize, u128), (Weak<K>, V)>,
    full: usize,
}

impl<K, V> Default for Memo<K, V> {
    fn default() -> Self {
        Self { known: BTreeMap::new(), full: SMALL }
    }
}

const SMALL: usize = 256;
/// More results than this are not kept: most will never be asked for again.
const LARGE: usize = 1024;

impl<K, V: Clone> Memo<K, V> {
    fn get(&self, version: &Arc<K>, input: u128) -> Option<V> {
        // As long as the weak reference stands, nothing else can come to lie there.
        self.known.get(&(Arc::as_ptr(version) as usize, input)).filter(|(of, _)| of.strong_count() > 0).map(|(_, value)| value.clone())
    }

    fn put(&mut self, version: &Arc<K>, input: u128, value: V) {
        if self.known.len() >= self.full {
            self.known.retain(|_, (of, _)| of.strong_count() > 0);
            if self.known.len() > LARGE {
                self.known.clear();
            }
            self.full = SMALL.max(self.known.len() * 2);
        }
        self.known.insert((Arc::as_ptr(version) as usize, input), (Arc::downgrade(version), value));
    }
}

/// Forgets what nobody holds.
fn sweep<K>(shelf: &mut BTreeMap<u128, Vec<Weak<K>>>) {
    shelf.retain(|_, alike| {
        alike.retain(|one| one.strong_count() > 0);
        !alike.is_empty()
    });
}

/// Replaces it by an equal one that others hold.
fn share<K: PartialEq>(shelf: &mut BTreeMap<u128, Vec<Weak<K>>>, digest: u128, one: &mut Arc<K>) {
    let alike = shelf.entry(digest).or_default();
    let equal = alike.iter().filter_map(Weak::upgrade).find(|other| Arc::ptr_eq(other, one) || **other == **one);
    if let Some(other) = equal {
        *one = other;
    } else {
        alike.retain(|one| one.strong_count() > 0);
        alike.push(Arc::downgrade(one));
    }
}

impl Shelves {
    fn share(&mut self, version: &mut Arc<Version>) {
        if self.versions.len() >= self.full {
            sweep(&mut self.versions);
            sweep(&mut self.folks);
            self.full = SMALL.max(self.versions.len() * 2);
        }
        if let Some(version) = Arc::get_mut(version) {
            share(&mut self.folks, version.members.digest(), &mut version.members);
        }
        share(&mut self.versions, version.digest(), version);
    }
}

impl Pool {
    /// A pool whose shelves are there.
    pub fn new(keeper: Arc<dyn Keeper>) -> Self {
        Self(keeper)
    }

    fn visit<R>(&self, visit: impl FnOnce(&mut Shelves) -> R) -> R {
        let (mut visit, mut result) = (Some(visit), None);
        self.0.with(&mut |shelves| result = visit.take().map(|visit| visit(shelves)));
        result.expect("a keeper calls its visitor")
    }

    /// Replaces the version by an equal one that others hold.
    pub(crate) fn share(&self, version: &mut Arc<Version>) {
        self.visit(|shelves| shelves.share(version));
    }

    /// A version without anything in it.
    pub(crate) fn empty(&self) -> Arc<Version> {
        self.visit(|shelves| Arc::clone(&shelves.empty))
    }

    /// Elements read from `bytes` by one that knows `version`.
    pub(crate) fn read(
        &self,
        version: &Arc<Version>,
        bytes: &[u8],
        read: impl FnOnce() -> Result<Version, Malformed>,
    ) -> Result<Arc<Version>, Malformed> {
        let input = xxhash_rust::xxh3::xxh3_128(bytes);
        if let Some(part) = self.visit(|shelves| shelves.read.get(version, input)) {
            return Ok(part);
        }
        let part = Arc::new(read()?);
        self.visit(|shelves| shelves.read.put(version, input, Arc::clone(&part)));
        Ok(part)
    }

    /// What a version becomes by a part.
    pub(crate) fn merge(&self, version: &mut Arc<Version>, part: &Arc<Version>) {
        self.visit(|shelves| {
            let input = Arc::as_ptr(part) as usize as u128;
            if let Some((_, merged)) = shelves.merged.get(version, input) {
                *version = merged.unwrap_or_else(|| Arc::clone(version));
                return;
            }
            let mut merged = Arc::clone(version);
            let other = Version::merge(&mut merged, part);
            shelves.share(&mut merged);
            shelves.merged.put(version, input, (Arc::clone(part), other.then(|| Arc::clone(&merged))));
            *version = merged;
        });
    }

    /// Members as a view shows them under the verdict that `input` names.
    pub(crate) fn shown(&self, folk: &Arc<Folk>, input: u128, show: impl FnOnce() -> Members) -> Members {
        if let Some(known) = self.visit(|shelves| shelves.shown.get(folk, input)).and_then(|known| known.upgrade()) {
            return known;
        }
        let new = show();
        self.visit(|shelves| shelves.shown.put(folk, input, new.downgrade()));
        new
    }

    /// The verdict on a version's rows of one who has no part in them.
    pub(crate) fn judged(&self, version: &Arc<Version>) -> Option<Arc<Verdict>> {
        self.visit(|shelves| shelves.judged.get(version, 0))
    }

    /// That it was found.
    pub(crate) fn found(&self, version: &Arc<Version>, verdict: &Arc<Verdict>) {
        self.visit(|shelves| shelves.judged.put(version, 0, Arc::clone(verdict)));
    }

    /// What the owner of `clock` is answered by one that stands at `version`.
    pub(crate) fn answer(
        &self,
        version: &Arc<Version>,
        clock: &[u8],
        answer: impl FnOnce() -> Result<Answer, Malformed>,
    ) -> Result<Answer, Malformed> {
        let input = xxhash_rust::xxh3::xxh3_128(clock);
        if let Some(known) = self.visit(|shelves| shelves.answers.get(version, input)) {
            return Ok(known);
        }
        let new = answer()?;
        self.visit(|shelves| shelves.answers.put(version, input, new.clone()));
        Ok(new)
    }
}
