//! Turns of entities: start, run, passivate, fail, back off, start again.

use std::time::Duration;

use super::{
    Host, Parcel, StartCause, StopReason, Turn,
    entities::{Entities, Side},
    env::{Timer, Turns},
};
use crate::{NodeId, Time, proto::handoff::DropReason};

/// Back-off after the first failure; it doubles with each one in a row.
const BACKOFF: Duration = Duration::from_millis(100);
/// Longest back-off.
const BACKOFF_MAX: Duration = Duration::from_secs(10);
/// So many starts that failed in a row open the circuit: nothing waits for the entity any more until its back-off has ended.
const STARTS_MAX: u32 = 5;
/// An entity that is not live and got no message for so long after its back-off starts with a clean record.
const FORGET: Duration = Duration::from_secs(10);

/// Longest key, as in an `Envelope`.
const KEY_BYTES: usize = u8::MAX as usize;

impl<H: Host> Entities<H> {
    /// The next message for an entity, in order: runs now if nothing stands before it.
    pub fn deliver(&mut self, t: &mut Turns<'_, H>, parcel: H::Parcel) {
        if t.expired(&parcel) {
            return t.undelivered(parcel, DropReason::Expired);
        }
        let tag = t.env.tag(parcel.hash());
        let at = match self.find(tag, parcel.key()) {
            Some(at) => {
                let steady = self.slot(at).is_some_and(|s| s.entity.is_some() && s.side.as_ref().is_none_or(|x| x.mailbox.is_empty()));
                if steady && t.env.may_run() {
                    self.run(t, at, parcel);
                    return;
                }
                at
            }
            // Nothing that travels has room for it, and every entity may have to travel.
            None if parcel.key().len() > KEY_BYTES => return t.undelivered(parcel, DropReason::Undecodable),
            None => self.insert(tag, parcel.key(), None, Some(Box::default())),
        };
        self.queue(t, at, parcel);
        self.go_on(t, at);
    }

    /// An entity that moved in with its state.
    pub fn adopt(&mut self, t: &mut Turns<'_, H>, hash: u64, key: &[u8], state: Vec<u8>, from: NodeId) {
        let tag = t.env.tag(hash);
        if self.find(tag, key).is_none() {
            let at = self.insert(tag, key, None, Some(Box::new(Side { adopted: Some((state, from)), ..Side::default() })));
            self.go_on(t, at);
        }
    }

    /// Does what waits for the entity, as far as it can be done now.
    pub fn go_on(&mut self, t: &mut Turns<'_, H>, at: u32) {
        loop {
            let Some(slot) = self.slot(at) else { return };
            let live = slot.entity.is_some();
            let Some(side) = slot.side.as_mut() else { return };
            if !t.env.may_run() {
                if !side.queued {
                    side.queued = true;
                    t.env.resume.push_back((t.number, at));
                }
                return;
            }
            if !live && t.env.now < side.retry_at {
                return;
            }
            if side.adopted.is_some() {
                if !self.start(t, at) {
                    return;
                }
                continue;
            }
            let Some(parcel) = side.mailbox.pop_front() else { return self.rest(t, at) };
            t.env.waiting -= 1;
            t.env.waiting_bytes -= parcel.size();
            if t.expired(&parcel) {
                t.undelivered(parcel, DropReason::Expired);
            } else if !live && !self.start(t, at) {
                return self.unpop(t, at, parcel);
            } else if !self.run(t, at, parcel) {
                return;
            }
        }
    }

    /// The right to run is back.
    pub fn resume(&mut self, t: &mut Turns<'_, H>, at: u32) {
        if let Some(side) = self.slot(at).and_then(|s| s.side.as_mut()) {
            side.queued = false;
            self.go_on(t, at);
        }
    }

    /// An entity's timer fired at the moment it was set for.
    pub fn wake(&mut self, t: &mut Turns<'_, H>, at: u32, set_for: Time) {
        let Some(slot) = self.slot(at) else { return };
        let live = slot.entity.is_some();
        let Some(side) = slot.side.as_mut().filter(|x| x.timer == Some(set_for)) else { return };
        side.timer = None;
        if side.adopted.is_some() || !side.mailbox.is_empty() {
            self.go_on(t, at);
        } else if !live && side.retry_at + FORGET > t.env.now {
            let due = side.retry_at + FORGET;
            side.timer = Some(due);
            t.env.timers.insert((due, Timer::Entity { shard: t.number, slot: at }));
        } else if !live {
            self.remove(at);
        }
    }

    /// Appends to the mailbox, within its bounds.
    fn queue(&mut self, t: &mut Turns<'_, H>, at: u32, parcel: H::Parcel) {
        let (now, limits) = (t.env.now, t.env.limits);
        let Some(slot) = self.slot(at) else { return t.undelivered(parcel, DropReason::Stopped) };
        let live = slot.entity.is_some();
        let side = slot.side.get_or_insert_default();
        if !live && side.start_failures >= STARTS_MAX && now < side.retry_at {
            return t.undelivered(parcel, DropReason::CircuitOpen);
        }
        let size = parcel.size();
        let full = side.mailbox.len() >= limits.mailbox || t.env.waiting >= limits.mailboxes;
        if full || t.env.waiting_bytes + size > limits.mailbox_bytes {
            t.undelivered(parcel, DropReason::MailboxFull);
        } else {
            side.mailbox.push_back(parcel);
            t.env.waiting += 1;
            t.env.waiting_bytes += size;
        }
    }

    /// Makes the instance. False if it failed; it is tried again after a back-off.
    fn start(&mut self, t: &mut Turns<'_, H>, at: u32) -> bool {
        let place = t.place();
        let Some(slot) = self.slot(at) else { return false };
        let side = slot.side.get_or_insert_default();
        let cause = match (&side.adopted, side.failures) {
            (Some(_), _) => StartCause::Moved,
            (None, 0) => StartCause::FirstMessage,
            (None, _) => StartCause::Restarted,
        };
        let state = side.adopted.as_ref().map(|(state, from)| (state.as_slice(), *from));
        match t.host.start(place, &slot.key, cause, state) {
            Ok(entity) => {
                (side.adopted, side.start_failures) = (None, 0);
                slot.entity = Some(entity);
                self.count_live(t.env, t.number, true);
                true
            }
            Err(_) => {
                side.start_failures += 1;
                self.back_off(t, at);
                false
            }
        }
    }

    /// One turn. False if the entity failed, so that what waits must wait on.
    fn run(&mut self, t: &mut Turns<'_, H>, at: u32, parcel: H::Parcel) -> bool {
        let place = t.place();
        self.handled = self.handled.saturating_add(1);
        self.touch(t.env, t.number);
        let Some(slot) = self.slot(at) else { return false };
        let Some(entity) = slot.entity.as_mut() else { return false };
        let turn = t.host.handle(place, entity, parcel);
        if turn == Turn::Continue {
            if let Some(side) = &mut slot.side {
                side.failures = 0;
                self.rest(t, at);
            }
            return true;
        }
        let why = if turn == Turn::Failed { StopReason::Failed } else { StopReason::Passivated };
        if let Some(entity) = slot.entity.take() {
            t.host.stop(place, entity, why);
            self.count_live(t.env, t.number, false);
        }
        if turn == Turn::Failed {
            self.back_off(t, at);
            return false;
        }
        if let Some(side) = self.slot(at).and_then(|s| s.side.as_mut()) {
            side.failures = 0;
        }
        self.rest(t, at);
        true
    }

    /// Nothing may be left to do: gives back what only waiting needs.
    fn rest(&mut self, t: &mut Turns<'_, H>, at: u32) {
        let Some(slot) = self.slot(at) else { return };
        let live = slot.entity.is_some();
        if let Some(side) = slot.side.as_mut() {
            if !live && side.failures > 0 && side.timer.is_none() {
                let due = t.env.now + FORGET;
                side.timer = Some(due);
                t.env.timers.insert((due, Timer::Entity { shard: t.number, slot: at }));
            }
            if !side.mailbox.is_empty() || side.adopted.is_some() || side.failures > 0 || side.queued {
                return;
            }
        }
        slot.side = None;
        if slot.entity.is_none() {
            self.remove(at);
        }
    }

    /// Counts a failure and sets the moment of the next start.
    fn back_off(&mut self, t: &mut Turns<'_, H>, at: u32) {
        let now = t.env.now;
        let Some(side) = self.slot(at).map(|s| s.side.get_or_insert_default()) else { return };
        side.failures += 1;
        let due = now + BACKOFF.saturating_mul(1 << (side.failures - 1).min(20)).min(BACKOFF_MAX);
        (side.retry_at, side.timer) = (due, Some(due));
        t.env.timers.insert((due, Timer::Entity { shard: t.number, slot: at }));
        if side.start_failures >= STARTS_MAX {
            for parcel in std::mem::take(&mut side.mailbox) {
                t.env.waiting -= 1;
                t.env.waiting_bytes -= parcel.size();
                t.undelivered(parcel, DropReason::CircuitOpen);
            }
        }
    }

    /// A message whose entity could not be started goes back to the front, unless nothing waits for that entity any more.
    fn unpop(&mut self, t: &mut Turns<'_, H>, at: u32, parcel: H::Parcel) {
        match self.slot(at).and_then(|s| s.side.as_mut()).filter(|x| x.start_failures < STARTS_MAX) {
            Some(side) => {
                t.env.waiting += 1;
                t.env.waiting_bytes += parcel.size();
                side.mailbox.push_front(parcel);
            }
            None => t.undelivered(parcel, DropReason::CircuitOpen),
        }
    }
}
