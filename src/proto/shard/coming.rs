//! Entities that moved in and have not started: the one that has something to do starts for that, the others some at a time.
//!
//! To start them all before anything else is half of the time that a moved shard's messages wait for, and most of them wait for one entity.

use std::time::Duration;

use super::{
    Host, Parcel, Sign,
    entities::Entities,
    env::{Timer, Turns},
    states::States,
};
use crate::NodeId;

/// So many start at a time.
const SOME: usize = 32;
/// No more than so many wait for that: each entity that is looked for in between is looked for among all of them.
const COMING_MAX: usize = 4096;
/// To start one costs as much as to look at some of them: who searches so many has another one started sooner, so that searching ends.
const SEARCH: usize = 16;

/// Their states.
pub(super) struct Coming {
    states: States,
    from: NodeId,
    /// What stands in front of it has been taken.
    next: usize,
    /// How many were looked at since some were taken in.
    searched: usize,
}

impl Coming {
    /// The state of the entity with that key, once, and from where it came.
    pub fn take(&mut self, key: &[u8]) -> Option<(&[u8], NodeId)> {
        let (record, searched) = self.states.take(self.next, key);
        self.searched += searched;
        record.map(|record| (record.state, self.from))
    }

    /// Of those that have not started.
    pub fn states(&self) -> &States {
        &self.states
    }
}

impl<H: Host> Entities<H> {
    /// These moved in.
    pub fn expect(&mut self, t: &mut Turns<'_, H>, states: States, from: NodeId) {
        debug_assert!(self.coming.is_none(), "a stay begins with one transfer");
        self.reserve(states.len());
        let most = states.len().saturating_sub(COMING_MAX).max(SOME);
        self.coming = Some(Box::new(Coming { states, from, next: 0, searched: 0 }));
        self.take_in(t, most);
    }

    /// Some more of them start.
    pub fn take_in_some(&mut self, t: &mut Turns<'_, H>) {
        let most = SOME + self.coming.as_ref().map_or(0, |coming| coming.searched / SEARCH);
        self.take_in(t, most);
    }

    fn take_in(&mut self, t: &mut Turns<'_, H>, most: usize) {
        let Some(mut coming) = self.coming.take() else { return };
        coming.searched = 0;
        for _ in 0..most {
            let Some(record) = coming.states.take_next(&mut coming.next) else { return };
            self.adopt(t, xxhash_rust::xxh3::xxh3_64(record.key), record.key, record.state, coming.from);
        }
        self.coming = Some(coming);
        t.env.timers.insert(t.env.now + Duration::from_nanos(1), Timer::Coming { shard: t.number });
    }

    /// All of them start.
    pub fn take_in_all(&mut self, t: &mut Turns<'_, H>) {
        self.take_in(t, usize::MAX);
    }

    /// A message is for an entity that has not started: if it is among these and the message could not wait for that, it starts now. If they
    /// have been searched as often as would have started them, all do.
    pub fn take_in_for(&mut self, t: &mut Turns<'_, H>, parcel: &H::Parcel) {
        let Some(coming) = &self.coming else { return };
        if coming.searched > SEARCH * COMING_MAX {
            self.take_in_all(t);
        } else if matches!(parcel.sign(), Some(Sign::Watch(..))) || !t.env.has_room(parcel.size()) {
            self.take_in_one(t, parcel.key());
        }
    }

    pub(super) fn take_in_one(&mut self, t: &mut Turns<'_, H>, key: &[u8]) {
        let Some(mut coming) = self.coming.take() else { return };
        if let Some((state, from)) = coming.take(key) {
            self.adopt(t, xxhash_rust::xxh3::xxh3_64(key), key, state, from);
        }
        self.coming = Some(coming);
    }
}
