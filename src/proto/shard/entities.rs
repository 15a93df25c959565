//! The entities of one shard: a slab, found by key.

use std::collections::VecDeque;

use super::{
    Host, Parcel, StopReason, Wish,
    coming::Coming,
    env::{Env, Turns},
    index::{Index, Tag},
    keys::{self, KeyAt, Keys},
    own::Own,
    states::States,
    transfer::{Cargo, TRANSFER_BYTES},
};
use crate::{NodeId, Time, proto::handoff::DropReason};

/// An entity, live or with something that waits for its start.
pub(super) struct Slot<H: Host> {
    pub(super) key: KeyAt,
    /// Stamp of its last message from outside.
    pub(super) used: u32,
    pub(super) entity: Option<H::Entity>,
    /// Absent in the steady state: a message runs when it arrives.
    pub(super) side: Option<Box<Side<H::Parcel>>>,
}

// A million of them are a million times this.
const _: () = assert!(size_of::<Option<SizeOfSlot>>() == 40);
/// What a slot holds in production, whose entities are boxes.
type SizeOfSlot = (KeyAt, u32, Option<Box<dyn std::any::Any>>, Option<Box<u8>>);

/// What an entity has beside itself while it is suspended, moved in but not started, or failing.
pub(super) struct Side<P> {
    pub(super) mailbox: VecDeque<P>,
    /// State handed over by that node, for the start.
    pub(super) adopted: Option<(Vec<u8>, NodeId)>,
    /// Failures in a row; those of the start among them.
    pub(super) failures: u32,
    pub(super) start_failures: u32,
    /// No start before then.
    pub(super) retry_at: Time,
    /// The timer that counts.
    pub(super) timer: Option<Time>,
    /// It is in the queue of those that go on when the right to run is back.
    pub(super) queued: bool,
    /// How often the message at the front of the mailbox has been tried.
    pub(super) attempts: u32,
    /// Its timers, what it put aside, and the like.
    pub(super) own: Option<Box<Own<P>>>,
}

impl<P> Default for Side<P> {
    fn default() -> Self {
        Self {
            mailbox: VecDeque::new(),
            adopted: None,
            failures: 0,
            start_failures: 0,
            retry_at: Time::ZERO,
            timer: None,
            queued: false,
            attempts: 0,
            own: None,
        }
    }
}

impl<P> Side<P> {
    /// What is told of the message at the front of the mailbox as it is given up, behind which nothing counts as tried: that its entity failed on it, if
    /// it did, since its asker must not be told that it had not run.
    pub(super) fn front_given_up(&mut self, reason: DropReason) -> DropReason {
        if std::mem::take(&mut self.attempts) > 0 { DropReason::Poison } else { reason }
    }
}

/// Entities for which room is made at once.
const RESERVED_MAX: usize = 1 << 16;

/// All entities of one shard. What a message looks at comes first.
#[repr(C)]
pub(super) struct Entities<H: Host> {
    pub(super) index: Index,
    pub(super) slots: Vec<Option<Slot<H>>>,
    /// Messages handled since the last report.
    pub(super) handled: u64,
    pub(super) keys: Keys,
    /// In the list of shards to report on.
    pub(super) dirty: bool,
    /// A sweep is due some time, and where it goes on.
    pub(super) sweeping: bool,
    /// Some entity has watched a node.
    pub(super) watching: bool,
    live: u32,
    free: Vec<u32>,
    pub(super) swept: usize,
    /// Moved in, and not started.
    pub(super) coming: Option<Box<Coming>>,
}

impl<H: Host> Default for Entities<H> {
    fn default() -> Self {
        Self {
            index: Index::default(),
            slots: vec![],
            handled: 0,
            keys: Keys::default(),
            dirty: false,
            sweeping: false,
            watching: false,
            live: 0,
            free: vec![],
            swept: 0,
            coming: None,
        }
    }
}

impl<H: Host> Entities<H> {
    /// Live instances.
    pub fn live(&self) -> u32 {
        self.live
    }

    /// No instance, and nothing that waits for one.
    pub fn is_empty(&self) -> bool {
        self.index.len() == 0 && self.coming.is_none()
    }

    /// Keys of the live instances.
    pub fn live_keys(&self) -> impl Iterator<Item = &[u8]> {
        self.slots.iter().flatten().filter(|s| s.entity.is_some()).map(|s| self.keys.get(&s.key))
    }

    /// The slot of `key`.
    #[inline]
    pub fn find(&self, tag: Tag, key: &[u8]) -> Option<u32> {
        self.index.find(tag, |slot| self.slots[slot as usize].as_ref().is_some_and(|s| self.keys.is(&s.key, key)))
    }

    /// All slots by number, used or not.
    pub(super) fn numbers(&self) -> std::ops::Range<u32> {
        0..u32::try_from(self.slots.len()).expect("fewer than 2^32 entities fit into memory")
    }

    #[inline]
    pub(super) fn slot(&mut self, slot: u32) -> Option<&mut Slot<H>> {
        self.slots.get_mut(slot as usize)?.as_mut()
    }

    /// Makes room for so many more; for no more than a bound, as it is another node that says so.
    pub(super) fn reserve(&mut self, count: usize) {
        let count = count.min(RESERVED_MAX);
        self.slots.reserve_exact(count.saturating_sub(self.free.len()));
        self.index.reserve(count);
    }

    /// Adds an entity that is not in here.
    pub(super) fn insert(&mut self, tag: Tag, key: &[u8], entity: Option<H::Entity>, side: Option<Box<Side<H::Parcel>>>) -> u32 {
        let slot = Some(Slot { key: self.keys.add(key), entity, side, used: 0 });
        let at = match self.free.pop() {
            Some(at) => {
                self.slots[at as usize] = slot;
                at
            }
            None => {
                if self.slots.len() == self.slots.capacity() {
                    self.slots.reserve_exact(keys::room(self.slots.len()));
                }
                self.slots.push(slot);
                u32::try_from(self.slots.len() - 1).expect("fewer than 2^32 entities fit into memory")
            }
        };
        self.index.insert(tag, at);
        at
    }

    /// Forgets an entity that is not live.
    pub(super) fn remove(&mut self, env: &Env, at: u32) {
        let Some(slot) = self.slots[at as usize].take() else { return };
        debug_assert!(slot.entity.is_none(), "a live entity is stopped first");
        self.index.remove(env.tag(xxhash_rust::xxh3::xxh3_64(self.keys.get(&slot.key))), at);
        self.keys.forget(&slot.key);
        self.free.push(at);
        if self.is_empty() {
            (self.slots, self.free, self.keys) = (vec![], vec![], Keys::default());
        } else if self.keys.is_half_empty(self.slots.len()) {
            let old = std::mem::take(&mut self.keys);
            for slot in self.slots.iter_mut().flatten() {
                let key = slot.key;
                slot.key = self.keys.add(old.get(&key));
            }
        }
    }

    /// Counts a start (`+1`) or the end (`-1`) of an instance.
    pub(super) fn count_live(&mut self, env: &mut Env, number: u32, started: bool) {
        if started {
            self.live += 1;
            env.live += 1;
        } else {
            self.live -= 1;
            env.live -= 1;
        }
        env.count_bounded(number, started);
        self.touch(env, number);
    }

    /// The shard's load has changed.
    #[inline]
    pub(super) fn touch(&mut self, env: &mut Env, number: u32) {
        if !self.dirty {
            self.dirty = true;
            env.load_changed(number);
        }
    }

    /// Ends the instance there. False if there is none.
    pub(super) fn stop_one(&mut self, t: &mut Turns<'_, H>, at: u32, why: StopReason) -> bool {
        let Some(slot) = self.slots.get_mut(at as usize).and_then(Option::as_mut) else { return false };
        let Some(entity) = slot.entity.take() else { return false };
        t.host.stop(&t.place(), self.keys.get(&slot.key), entity, why);
        t.env.ran = true;
        discard_wishes(t);
        self.count_live(t.env, t.number, false);
        true
    }

    /// Asks every live entity for its state. If one refuses, all live on.
    pub fn hand_over(&mut self, t: &mut Turns<'_, H>) -> Result<States, String> {
        let (mut wished, mut stateless) = (vec![], vec![]);
        let states = self.ask_for_states(t, &mut wished, &mut stateless);
        // What they asked for meanwhile is theirs, wherever they live next.
        let slots: Vec<u32> = wished.iter().map(|(at, _)| *at).collect();
        for (at, wishes) in wished {
            self.grant(t, at, wishes);
        }
        if states.is_ok() {
            self.end_watched(t, stateless);
        } else {
            slots.into_iter().for_each(|at| self.go_on(t, at));
        }
        states
    }

    fn ask_for_states(
        &mut self,
        t: &mut Turns<'_, H>,
        wished: &mut Vec<(u32, Vec<Wish<H::Parcel>>)>,
        stateless: &mut Vec<u32>,
    ) -> Result<States, String> {
        let place = t.place();
        let mut states = States::default();
        t.env.ran = true;
        let Self { slots, keys, coming, .. } = self;
        for (slot, at) in slots.iter_mut().zip(0..) {
            let Some(slot) = slot else { continue };
            let key = keys.get(&slot.key);
            if let Some(entity) = &mut slot.entity {
                let added = states.add(key, |out| t.host.hand_over(&place, key, entity, out));
                let wishes = if t.host.has_wishes() { t.host.take_wishes() } else { vec![] };
                if !wishes.is_empty() {
                    wished.push((at, wishes));
                }
                let added = added.map_err(|why| format!("entity {}: its state cannot be handed over: {why}", key.escape_ascii()))?;
                if !added {
                    stateless.push(at);
                }
            } else if let Some((state, _)) = slot.side.as_ref().and_then(|side| side.adopted.as_ref()) {
                states.push(key, state);
            }
            if states.bytes() > TRANSFER_BYTES {
                break;
            }
        }
        coming.iter().flat_map(|coming| coming.states().iter()).for_each(|record| states.push(record.key, record.state));
        if states.bytes() > TRANSFER_BYTES {
            return Err(format!("the states of its entities exceed {TRANSFER_BYTES} bytes, the most that moves at once; use more shards"));
        }
        Ok(states)
    }

    /// Stops every instance, and takes everything that waited out: per entity in its order. `cargo` takes what goes with the entities.
    pub fn stop_all(&mut self, t: &mut Turns<'_, H>, why: StopReason, mut cargo: Option<&mut Cargo>) -> Vec<H::Parcel> {
        let (place, mut waiting) = (t.place(), vec![]);
        self.coming = None;
        for mut slot in std::mem::take(&mut self.slots).into_iter().flatten() {
            if let Some(entity) = slot.entity {
                t.host.stop(&place, self.keys.get(&slot.key), entity, why);
                t.env.ran = true;
                discard_wishes(t);
                self.count_live(t.env, t.number, false);
            }
            if let Some(side) = &mut slot.side {
                let watchers = side.end_own(t.env, self.keys.get(&slot.key), cargo.as_deref_mut());
                watchers.into_iter().for_each(|watch| t.host.watched_ended(watch));
            }
            let Some(side) = slot.side else { continue };
            let mut has_failed = side.attempts > 0;
            for parcel in side.mailbox {
                t.env.waiting -= 1;
                t.env.waiting_bytes -= parcel.size();
                // Elsewhere nobody would know that, and tell its asker that it had not run.
                match std::mem::take(&mut has_failed) && (cargo.is_none() || parcel.deadline().is_some()) {
                    true => t.undelivered(parcel, DropReason::Poison),
                    false => waiting.push(parcel),
                }
            }
        }
        (self.free, self.index, self.keys) = (vec![], Index::default(), Keys::default());
        waiting
    }

    /// As `stop_all`, into what travels. What cannot be encoded is given up here.
    pub fn pack(&mut self, t: &mut Turns<'_, H>, states: States) -> Cargo {
        let watches = t.host.leaving_watches(t.place());
        let mut cargo = Cargo { states, watches, ..Cargo::default() };
        for parcel in self.stop_all(t, StopReason::Moved, Some(&mut cargo)) {
            match t.env.limits.envelope(parcel, t.shard, t.host) {
                Ok(envelope) => cargo.mail.push(envelope),
                Err((parcel, reason)) => t.undelivered(parcel, reason),
            }
        }
        // Behind their last words.
        cargo.sent = t.host.leaving_sent(t.place());
        cargo
    }

    /// Runs `f` on a live instance.
    pub fn with<R>(&mut self, tag: Tag, key: &[u8], f: impl FnOnce(&mut H::Entity) -> R) -> Option<R> {
        let at = self.find(tag, key)?;
        self.slot(at)?.entity.as_mut().map(f)
    }

    /// A live instance.
    pub fn get(&self, tag: Tag, key: &[u8]) -> Option<&H::Entity> {
        let at = self.find(tag, key)?;
        self.slots.get(at as usize)?.as_ref()?.entity.as_ref()
    }

    /// Asserts that the counters agree. Returns messages waiting, and their bytes.
    pub fn check(&self) -> (usize, usize) {
        let slots = || self.slots.iter().flatten();
        assert_eq!(slots().count(), self.index.len(), "each entity has one cell");
        assert_eq!(slots().count() + self.free.len(), self.slots.len(), "each free slot is listed once");
        assert_eq!(slots().filter(|s| s.entity.is_some()).count(), self.live as usize, "live entities");
        assert!(slots().all(|s| s.entity.is_some() || s.side.is_some()), "an entity that is not live waits for something");
        let sides = || slots().filter_map(|s| s.side.as_ref());
        let waiting = || sides().flat_map(|side| side.mailbox.iter().chain(side.own.iter().flat_map(|own| &own.stash)));
        (waiting().count(), waiting().map(|p| p.size()).sum())
    }
}

/// What the last call of an instance asked for: nobody is left to get it.
pub(super) fn discard_wishes<H: Host>(t: &mut Turns<'_, H>) {
    for wish in t.host.take_wishes() {
        if let Wish::Own(parcel) | Wish::Stash(parcel) = wish {
            t.undelivered(parcel, DropReason::Stopped);
        }
    }
}
