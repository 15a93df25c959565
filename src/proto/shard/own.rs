//! What an entity has of its own beside its mailbox: timers, stash, idle time, watched nodes.
//!
//! Timers, stash and watches belong to the instance: they end with it, and travel when its shard moves. A stashed message is never lost with
//! them; it goes back to the front of the mailbox.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::Duration,
};

use super::{
    Host, Parcel, StopReason, WatchId, Watching, Wish,
    entities::{Entities, Side},
    env::{Env, Timer, Turns},
    transfer::{Cargo, TimerRecord},
};
use crate::{
    NodeId, Time,
    proto::{
        handoff::{DropReason, Envelope},
        wheel::TimerId,
    },
};

/// A timer that is due while the right to run is suspended is looked at again after so long.
const POSTPONE: Duration = Duration::from_millis(50);
/// A period of nothing would be due again at once, for ever.
const PERIOD_MIN: Duration = Duration::from_nanos(1 << 20);
/// A shard's entities are looked through so many times within their idle time.
const SWEEPS: u32 = 4;
/// The shortest time between two sweeps.
const SWEEP_MIN: Duration = Duration::from_millis(10);
/// Slots that are looked at for an entity to evict.
const EVICT_SLOTS: usize = 32;
/// Slots that one sweep looks at before other work has its turn.
const SWEEP_SLOTS: usize = 1024;

/// Present while there is something in it.
pub(super) struct Own<P> {
    pub(super) timers: BTreeMap<u64, OwnTimer>,
    pub(super) stash: VecDeque<P>,
    /// For how long it may be idle, and when it is looked at again.
    idle: Option<(Duration, TimerId)>,
    pub(super) nodes: BTreeMap<NodeId, Envelope>,
    /// Who is to hear when the instance ends.
    watchers: BTreeSet<WatchId>,
}

impl<P> Default for Own<P> {
    fn default() -> Self {
        Self { timers: BTreeMap::new(), stash: VecDeque::new(), idle: None, nodes: BTreeMap::new(), watchers: BTreeSet::new() }
    }
}

impl<P> Own<P> {
    pub(super) fn is_empty(&self) -> bool {
        self.timers.is_empty() && self.stash.is_empty() && self.idle.is_none() && self.nodes.is_empty() && self.watchers.is_empty()
    }

    /// Who is to hear that the instance has ended.
    pub(super) fn take_watchers(&mut self) -> BTreeSet<WatchId> {
        std::mem::take(&mut self.watchers)
    }

    /// Forgets a watch under all its names. False if it is known under none.
    fn forget(&mut self, watching: &Watching) -> bool {
        let known = |own: &mut Self, id| own.watchers.remove(id);
        watching.was.iter().chain([&watching.id]).fold(false, |before, id| known(self, id) | before)
    }
}

/// A message with a due time.
pub(super) struct OwnTimer {
    id: TimerId,
    pub(super) due: Time,
    pub(super) every: Option<Duration>,
    pub(super) message: Envelope,
}

/// A moment in units of about a millisecond, in half the room. Differences hold for 52 days.
pub(super) fn stamp(now: Time) -> u32 {
    // The upper bits are what is lost.
    (now.as_nanos() >> 20) as u32
}

fn idle_for(used: u32, now: Time) -> Duration {
    Duration::from_nanos(u64::from(stamp(now).wrapping_sub(used)) << 20)
}

impl<H: Host> Entities<H> {
    /// Carries out what the entity asked for in the turn that has just ended.
    pub(super) fn grant(&mut self, t: &mut Turns<'_, H>, at: u32, wishes: Vec<Wish<H::Parcel>>) {
        for wish in wishes {
            self.grant_one(t, at, wish);
        }
    }

    fn grant_one(&mut self, t: &mut Turns<'_, H>, at: u32, wish: Wish<H::Parcel>) {
        // From the end of the turn: what was before it in the same row, or the turn itself, may have taken longer than a timer is to.
        if matches!(wish, Wish::Timer { .. } | Wish::Idle(_)) {
            t.env.renew(t.host);
        }
        let (now, most) = (t.env.now, t.env.limits.mailbox);
        let Some(slot) = self.slot(at) else { return };
        let side = slot.side.get_or_insert_default();
        let own = side.own.get_or_insert_default();
        match wish {
            Wish::Timer { key, after, again, message } => {
                if own.timers.len() >= most && !own.timers.contains_key(&key) {
                    return t.undelivered(H::Parcel::from_envelope(message), DropReason::Overloaded);
                }
                let every = again.then(|| after.max(PERIOD_MIN));
                self.set_timer(t, at, key, (now + every.unwrap_or(after), every), message);
            }
            Wish::Cancel { key } => {
                if let Some(old) = own.timers.remove(&key) {
                    t.env.timers.cancel(old.id);
                }
            }
            Wish::Stash(parcel) => {
                let most = t.host.options(t.shard.ty).mailbox.unwrap_or(most);
                if own.stash.len() >= most || !t.env.has_room(parcel.size()) {
                    return t.undelivered(parcel, DropReason::StashFull);
                }
                t.env.waiting += 1;
                t.env.waiting_bytes += parcel.size();
                own.stash.push_back(parcel);
            }
            Wish::Unstash => side.unstash(),
            Wish::Idle(after) => {
                let timers = &mut t.env.timers;
                if let Some((_, before)) = own.idle.take() {
                    timers.cancel(before);
                }
                own.idle = after.map(|idle| (idle, timers.insert(now + idle, Timer::Idle { shard: t.number, slot: at })));
            }
            Wish::Own(parcel) => self.queue(t, at, parcel),
            Wish::WatchNode { node, message } => {
                if t.env.removed.contains(&node) {
                    return self.queue(t, at, H::Parcel::from_envelope(message));
                }
                if own.nodes.len() >= most && !own.nodes.contains_key(&node) {
                    return t.undelivered(H::Parcel::from_envelope(message), DropReason::Overloaded);
                }
                own.nodes.insert(node, message);
                self.watching = true;
            }
            Wish::UnwatchNode { node } => drop(own.nodes.remove(&node)),
        }
    }

    /// Somebody wants to hear when the instance ends, or whether it has. True if it lives, or is about to start, and is watched.
    pub(super) fn watched(&mut self, t: &Turns<'_, H>, at: Option<u32>, watching: &Watching) -> bool {
        let Some(slot) = at.and_then(|at| self.slot(at)) else { return false };
        let known = slot.side.as_mut().and_then(|side| side.own.as_mut()).is_some_and(|own| own.forget(watching));
        let comes = slot.side.as_ref().is_some_and(|side| side.adopted.is_some() || !side.mailbox.is_empty());
        if !known && (watching.confirmed || slot.entity.is_none() && !comes) {
            return false;
        }
        let most = t.host.options(t.shard.ty).mailbox.unwrap_or(t.env.limits.mailbox).saturating_mul(2);
        let own = slot.side.get_or_insert_default().own.get_or_insert_default();
        if !known && own.watchers.len() >= most {
            // Who has moved is known under a name of its new home by now.
            own.watchers.retain(|of| !t.env.removed.contains(&of.node));
        }
        if !known && own.watchers.len() >= most {
            tracing::warn!(shard = ?t.shard, limit = most, "an entity has twice as many watchers as its mailbox has room: one of them is told that it has ended");
            return false;
        }
        own.watchers.insert(watching.id);
        true
    }

    /// Who wanted that wants it no more.
    pub(super) fn unwatched(&mut self, t: &mut Turns<'_, H>, at: Option<u32>, watching: &Watching) {
        let Some(at) = at else { return };
        if let Some(own) = self.own(at) {
            own.forget(watching);
            self.rest(t, at);
        }
    }

    /// A watch that came with the watched entity, which ends if [nobody came](Self::end_unless_it_came).
    pub fn adopt_watched(&mut self, t: &mut Turns<'_, H>, key: &[u8], id: WatchId) {
        let at = self.place_of(t, key);
        if let Some(slot) = self.slot(at) {
            slot.side.get_or_insert_default().own.get_or_insert_default().watchers.insert(id);
        }
    }

    /// All that came with the shard is here: who is watched, has not started and does not come is none.
    pub fn end_unless_it_came(&mut self, t: &mut Turns<'_, H>, key: &[u8]) {
        self.take_in_one(t, key);
        if let Some(at) = self.find(t.env.tag(xxhash_rust::xxh3::xxh3_64(key)), key) {
            self.rest(t, at);
        }
    }

    /// The instances there hand no state over: they end with the move.
    pub(super) fn end_watched(&mut self, t: &mut Turns<'_, H>, stateless: Vec<u32>) {
        for at in stateless {
            let watchers = self.own(at).map(Own::take_watchers);
            watchers.into_iter().flatten().for_each(|watch| t.host.watched_ended(watch));
        }
    }

    fn own(&mut self, at: u32) -> Option<&mut Own<H::Parcel>> {
        self.slot(at)?.side.as_mut()?.own.as_deref_mut()
    }

    fn set_timer(&mut self, t: &mut Turns<'_, H>, at: u32, key: u64, (due, every): (Time, Option<Duration>), message: Envelope) {
        let Some(slot) = self.slot(at) else { return };
        let own = slot.side.get_or_insert_default().own.get_or_insert_default();
        let id = t.env.timers.insert(due, Timer::Own { shard: t.number, slot: at, key });
        if let Some(old) = own.timers.insert(key, OwnTimer { id, due, every, message }) {
            t.env.timers.cancel(old.id);
        }
    }

    /// An entity's own timer is due.
    pub fn fire(&mut self, t: &mut Turns<'_, H>, at: u32, key: u64) {
        let (may_run, now) = (t.may_run(), t.env.now);
        let again = Timer::Own { shard: t.number, slot: at, key };
        let Some(own) = self.own(at) else { return };
        let Some(timer) = own.timers.get_mut(&key) else { return };
        if !may_run {
            timer.due = now + POSTPONE;
            timer.id = t.env.timers.insert(timer.due, again);
            return;
        }
        let message = match timer.every {
            Some(every) => {
                // Missed periods are not made up for, and the next one is not cut short.
                let next = timer.due + every;
                timer.due = if next > now { next } else { now + every };
                timer.id = t.env.timers.insert(timer.due, again);
                timer.message.clone()
            }
            None => match own.timers.remove(&key) {
                Some(timer) => timer.message,
                None => return,
            },
        };
        self.own_message(t, at, H::Parcel::from_envelope(message));
    }

    /// That node was removed.
    pub fn node_removed(&mut self, t: &mut Turns<'_, H>, node: NodeId) {
        if !self.watching {
            return;
        }
        for at in self.numbers() {
            let Some(own) = self.own(at) else { continue };
            match own.nodes.remove(&node) {
                Some(message) => self.own_message(t, at, H::Parcel::from_envelope(message)),
                None => self.rest(t, at),
            }
        }
    }

    /// A message that the entity has for itself. Not a use of it: see `idle_for`.
    fn own_message(&mut self, t: &mut Turns<'_, H>, at: u32, parcel: H::Parcel) {
        // One that starts with it begins to be idle then.
        let used = self.slot(at).filter(|s| s.entity.is_some()).map(|s| s.used);
        self.queue(t, at, parcel);
        self.go_on(t, at);
        if let (Some(used), Some(slot)) = (used, self.slot(at)) {
            slot.used = used;
        }
    }

    /// The idle time that an entity chose itself may be over.
    pub fn idle(&mut self, t: &mut Turns<'_, H>, at: u32) {
        let now = t.env.now;
        let Some(slot) = self.slot(at) else { return };
        let used = slot.used;
        let Some((idle, timer)) = slot.side.as_mut().and_then(|s| s.own.as_mut()).and_then(|own| own.idle.as_mut()) else { return };
        let left = idle.saturating_sub(idle_for(used, now));
        if left.is_zero() && t.may_run() {
            return self.passivate(t, at, StopReason::Passivated);
        }
        *timer = t.env.timers.insert(now + left.max(Duration::from_nanos(1 << 20)), Timer::Idle { shard: t.number, slot: at });
    }

    /// Has the shard's entities looked through for idle ones from now on, if their type has an idle time. Whether it has a bound as well, which
    /// [`make_room`](Self::make_room) keeps.
    pub(super) fn begin_sweeps(&mut self, t: &mut Turns<'_, H>) -> bool {
        if self.sweeping {
            return t.env.bounded.contains_key(&t.number);
        }
        let options = t.host.options(t.shard.ty);
        if let Some(idle) = options.idle {
            self.sweeping = true;
            t.env.timers.insert(t.env.now + (idle / SWEEPS).max(SWEEP_MIN), Timer::Sweep { shard: t.number });
        }
        options.live.is_some()
    }

    /// Looks at some entities: those that were idle for long enough leave memory.
    pub fn sweep(&mut self, t: &mut Turns<'_, H>) {
        let now = t.env.now;
        let Some(idle) = t.host.options(t.shard.ty).idle else {
            self.sweeping = false;
            return;
        };
        let slots = self.numbers().len();
        let until = (self.swept + SWEEP_SLOTS).min(slots);
        for at in self.swept..until {
            let at = at as u32;
            let is_idle = self.slot(at).is_some_and(|s| {
                let free = s.side.as_ref().is_none_or(|x| x.mailbox.is_empty() && x.own.as_ref().is_none_or(|own| own.idle.is_none()));
                s.entity.is_some() && free && idle_for(s.used, now) >= idle
            });
            if is_idle && t.may_run() {
                self.passivate(t, at, StopReason::Passivated);
            }
        }
        self.swept = until;
        let next = if until < slots {
            Duration::from_nanos(1)
        } else {
            self.swept = 0;
            (idle / SWEEPS).max(SWEEP_MIN)
        };
        // Not before, so that one that has started meanwhile did not begin another.
        self.sweeping = self.live() > 0;
        if self.sweeping {
            t.env.timers.insert(now + next, Timer::Sweep { shard: t.number });
        }
    }

    /// An entity has started. If there are more than the type's bound on this worker, another one of its shard leaves memory: of some that are
    /// looked at, the one that was used longest ago.
    pub(super) fn make_room(&mut self, t: &mut Turns<'_, H>, at: u32) {
        let Some(most) = t.host.options(t.shard.ty).live else { return };
        if t.env.bounded.insert(t.number, t.shard.ty).is_none() {
            // Those of this shard were not counted before; afterwards each is when it starts or ends.
            *t.env.live_of.entry(t.shard.ty).or_default() += self.live() as usize;
        }
        if t.env.live_of.get(&t.shard.ty).is_none_or(|live| *live <= most) {
            return;
        }
        let (now, slots) = (t.env.now, self.numbers().len());
        let looked_at = EVICT_SLOTS.min(slots);
        let first = t.env.evictions % slots.max(1);
        t.env.evictions = t.env.evictions.wrapping_add(looked_at);
        let oldest = (first..first + looked_at)
            .map(|i| (i % slots) as u32)
            .filter(|other| *other != at)
            .filter_map(|other| {
                let slot = self.slot(other).filter(|slot| slot.entity.is_some())?;
                let free = slot.side.as_ref().is_none_or(|x| x.mailbox.is_empty() && x.own.as_ref().is_none_or(|own| own.stash.is_empty()));
                free.then(|| (idle_for(slot.used, now), other))
            })
            .max();
        if let Some((_, oldest)) = oldest {
            self.passivate(t, oldest, StopReason::Evicted);
        }
    }

    /// A live entity leaves memory.
    fn passivate(&mut self, t: &mut Turns<'_, H>, at: u32, why: StopReason) {
        if self.stop_one(t, at, why) {
            self.end_own(t, at);
            if self.slot(at).is_some_and(|s| s.side.is_some()) {
                self.go_on(t, at);
            } else {
                self.rest(t, at);
            }
        }
    }

    /// The instance is gone: what belonged to it ends.
    pub(super) fn end_own(&mut self, t: &mut Turns<'_, H>, at: u32) {
        if let Some(side) = self.slot(at).and_then(|s| s.side.as_mut()) {
            // Nothing travels, so nobody looks at the key.
            side.end_own(t.env, &[], None).into_iter().for_each(|watch| t.host.watched_ended(watch));
        }
    }

    /// What the open asks of the shard's entities come to, into their mailboxes, which travel: each of them has been promised.
    pub fn leave(&mut self, t: &mut Turns<'_, H>) {
        let place = t.place();
        for parcel in t.host.leaving(place) {
            let at = self.place_of(t, parcel.key());
            self.grant_room(t, at, parcel);
        }
    }

    /// A timer that moved in. Its entity need not be live: the message starts it.
    pub fn adopt_timer(&mut self, t: &mut Turns<'_, H>, timer: TimerRecord) {
        let at = self.place_of(t, &timer.key);
        let every = timer.every.map(|every| every.max(PERIOD_MIN));
        self.set_timer(t, at, timer.timer, (timer.due, every), timer.message);
    }

    /// A watch of a node that moved in, and was not removed meanwhile.
    pub fn adopt_watch(&mut self, t: &mut Turns<'_, H>, node: NodeId, message: Envelope) {
        let at = self.place_of(t, message.key());
        if let Some(slot) = self.slot(at) {
            slot.side.get_or_insert_default().own.get_or_insert_default().nodes.insert(node, message);
            self.watching = true;
        }
    }

    fn place_of(&mut self, t: &Turns<'_, H>, key: &[u8]) -> u32 {
        let tag = t.env.tag(xxhash_rust::xxh3::xxh3_64(key));
        self.find(tag, key).unwrap_or_else(|| self.insert(tag, key, None, Some(Box::default())))
    }
}

impl<P> Side<P> {
    /// What was put aside comes next.
    pub(super) fn unstash(&mut self) {
        if let Some(own) = &mut self.own {
            for parcel in std::mem::take(&mut own.stash).into_iter().rev() {
                self.mailbox.push_front(parcel);
            }
        }
    }

    /// Ends what is the instance's own, or puts it into what travels; returns who watched it. What it had put aside goes back to the front of
    /// the mailbox.
    pub(super) fn end_own(&mut self, env: &mut Env, key: &[u8], cargo: Option<&mut Cargo>) -> BTreeSet<WatchId> {
        self.unstash();
        let Some(mut own) = self.own.take() else { return BTreeSet::new() };
        let watchers = own.take_watchers();
        let idle = own.idle.map(|(_, id)| id);
        for id in own.timers.values().map(|timer| timer.id).chain(idle) {
            env.timers.cancel(id);
        }
        if let Some(cargo) = cargo {
            let record =
                |(timer, x): (u64, OwnTimer)| TimerRecord { key: key.into(), timer, due: x.due, every: x.every, message: x.message };
            cargo.timers.extend(own.timers.into_iter().map(record));
            cargo.nodes.extend(own.nodes);
            cargo.watched.extend(watchers.into_iter().map(|watch| (key.into(), watch)));
            return BTreeSet::new();
        }
        watchers
    }
}
