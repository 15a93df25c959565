//! Turns of entities: start, run, passivate, fail, back off, start again.

use std::time::Duration;

use super::{
    Directive, Host, NoShortWay, Parcel, Place, Sign, StartCause, StopReason, Turn,
    entities::{Entities, Slot, discard_wishes},
    env::{Env, Timer, Turns},
    index::Tag,
    own,
};
use crate::{NodeId, Time, proto::handoff::DropReason};

/// Back-off after the first failure, where the type says nothing else; it doubles with each one in a row.
const BACKOFF: Duration = Duration::from_millis(100);
/// So many starts that failed in a row open the circuit: nothing waits for the entity any more until its back-off has ended.
const STARTS_MAX: u32 = 5;
/// An entity that is not live and got no message for so long after its back-off starts with a clean record.
const FORGET: Duration = Duration::from_secs(10);

/// Longest key, as in an `Envelope`.
const KEY_BYTES: usize = u8::MAX as usize;

/// Whether a message needs room within the bounds of mailboxes.
#[derive(Copy, Clone, PartialEq, Eq)]
enum Room {
    Bounded,
    Granted,
}

impl<H: Host> Entities<H> {
    /// The next message for an entity, in order: runs now if nothing stands before it.
    pub fn deliver(&mut self, t: &mut Turns<'_, H>, parcel: H::Parcel) {
        self.pass(t, parcel, Room::Bounded);
    }

    /// One that came with its shard. It was taken in once, and is not refused for want of room where it comes to: the bounds of whole transfers hold.
    pub fn deliver_moved(&mut self, t: &mut Turns<'_, H>, parcel: H::Parcel) {
        self.pass(t, parcel, Room::Granted);
    }

    fn pass(&mut self, t: &mut Turns<'_, H>, parcel: H::Parcel, room: Room) {
        let sign = parcel.sign();
        if let Some(Sign::OfShard(_)) = sign {
            return t.host.shard_sign(t.place(), parcel);
        }
        if t.expired(&parcel) {
            return t.undelivered(parcel, DropReason::Expired);
        }
        let tag = t.env.tag(parcel.hash());
        let mut found = self.find(tag, parcel.key());
        if self.coming.is_some() && found.is_none_or(|at| self.slot(at).is_some_and(|s| s.entity.is_none())) {
            self.take_in_for(t, &parcel);
            found = self.find(tag, parcel.key());
        }
        match sign {
            Some(Sign::Watch(ask, watching)) => {
                let watched = self.watched(t, found, &watching);
                return t.host.watch_answered(ask, watched);
            }
            Some(Sign::Unwatch(ask, watching)) => {
                self.unwatched(t, found, &watching);
                return t.host.watch_answered(ask, false);
            }
            Some(Sign::OfShard(_)) | None => {}
        }
        let at = match found {
            Some(at) => {
                if self.is_steady(at) && t.may_run() {
                    return self.run_next(t, at, parcel);
                }
                at
            }
            // Nothing that travels has room for it, and every entity may have to travel.
            None if parcel.key().len() > KEY_BYTES => return t.undelivered(parcel, DropReason::Undecodable),
            // If it cannot start, it waits: there has to be room for it.
            None if t.may_run() && t.env.has_room(parcel.size()) => {
                let at = self.insert(tag, parcel.key(), None, None);
                if self.start(t, at, None) && t.may_run() {
                    return self.run_next(t, at, parcel);
                }
                at
            }
            None => self.insert(tag, parcel.key(), None, Some(Box::default())),
        };
        self.append(t, at, parcel, room);
        self.go_on(t, at);
    }

    /// Runs a message in front of which nothing waits, and what waits behind it.
    fn run_next(&mut self, t: &mut Turns<'_, H>, at: u32, parcel: H::Parcel) {
        // What it had put aside may stand in the mailbox now.
        if self.run(t, at, parcel) && self.slot(at).is_some_and(|s| s.side.is_some()) {
            self.go_on(t, at);
        }
    }

    /// Begins to look for an entity: true if there may be one.
    #[inline(always)]
    pub fn fetch_cell(&self, tag: Tag) -> bool {
        self.index.first(tag).inspect(|cell| H::fetch(*cell)).is_some()
    }

    /// The slot that is in all likelihood the entity's.
    #[inline(always)]
    pub fn slot_of(&self, tag: Tag) -> Option<u32> {
        self.index.first_slot(tag)
    }

    /// Goes on: that slot.
    #[inline(always)]
    pub fn fetch_slot(&self, tag: Tag) -> Option<u32> {
        let at = self.slot_of(tag)?;
        H::fetch(self.slots.get(at as usize)?);
        Some(at)
    }

    /// Goes on: what a turn of that entity looks at.
    #[inline(always)]
    pub fn fetch_entity(&self, at: u32) {
        if let Some(Some(Slot { key, entity: Some(entity), .. })) = self.slots.get(at as usize) {
            self.keys.first(key).inspect(|key| H::fetch(*key));
            H::fetch_entity(entity);
        }
    }

    /// A turn of the entity in that slot, if it has that key, is live, and nothing stands in front of it. What it came to, unless there is nothing
    /// to do about that.
    #[inline(always)]
    pub fn short_way(
        &mut self,
        env: &mut Env,
        (number, at): (u32, u32),
        key: &[u8],
        place: &Place,
        host: &mut H,
        turn: impl FnOnce(&mut H, &Place, &mut H::Entity) -> Turn,
    ) -> Result<Option<Turn>, NoShortWay> {
        let Some(Some(slot)) = self.slots.get_mut(at as usize) else { return Err(NoShortWay) };
        let Some(entity) = &mut slot.entity else { return Err(NoShortWay) };
        // `None` in the steady state.
        if !self.keys.is(&slot.key, key) || slot.side.as_ref().is_some_and(|side| !side.mailbox.is_empty()) {
            return Err(NoShortWay);
        }
        let turn = turn(host, place, entity);
        slot.used = own::stamp(env.now);
        let has_side = slot.side.is_some();
        if self.handled == 0 {
            self.first_handled(env, number);
        }
        self.handled += 1;
        let plain = !has_side && turn == Turn::Continue && !host.has_wishes();
        Ok((!plain).then_some(turn))
    }

    /// Something is handled, for the first time since the last report: this is in the list for the next one.
    #[cold]
    fn first_handled(&mut self, env: &mut Env, number: u32) {
        self.touch(env, number);
    }

    /// What a turn has led to, and what it had put aside: that may stand in the mailbox now.
    pub fn after_turn(&mut self, t: &mut Turns<'_, H>, at: u32, turn: Turn) {
        if self.ended(t, at, turn) && self.slot(at).is_some_and(|s| s.side.is_some()) {
            self.go_on(t, at);
        }
    }

    /// Live, and nothing waits.
    fn is_steady(&mut self, at: u32) -> bool {
        self.slot(at).is_some_and(|s| s.entity.is_some() && s.side.as_ref().is_none_or(|x| x.mailbox.is_empty()))
    }

    /// An entity that moved in with its state.
    pub fn adopt(&mut self, t: &mut Turns<'_, H>, hash: u64, key: &[u8], state: &[u8], from: NodeId) {
        let tag = t.env.tag(hash);
        // Its timers may have been taken in before; an instance has not.
        let found = self.find(tag, key);
        if found.is_none() && t.may_run() {
            let at = self.insert(tag, key, None, None);
            if self.start(t, at, Some((state, from))) && self.slot(at).is_some_and(|s| s.side.is_some()) {
                self.go_on(t, at);
            }
            return;
        }
        let at = found.unwrap_or_else(|| self.insert(tag, key, None, Some(Box::default())));
        if let Some(slot) = self.slot(at).filter(|s| s.entity.is_none())
            && let Some(side) = slot.side.as_mut().filter(|x| x.adopted.is_none())
        {
            side.adopted = Some((state.to_vec(), from));
            self.go_on(t, at);
        }
    }

    /// Does what waits for the entity, as far as it can be done now.
    pub fn go_on(&mut self, t: &mut Turns<'_, H>, at: u32) {
        loop {
            let Some(slot) = self.slot(at) else { return };
            let live = slot.entity.is_some();
            let Some(side) = slot.side.as_mut() else { return };
            if !t.may_run() {
                if !side.queued {
                    side.queued = true;
                    t.env.suspend(t.number, at);
                }
                return;
            }
            if !live && t.env.now < side.retry_at {
                return;
            }
            if side.adopted.is_some() {
                if !self.start(t, at, None) {
                    return;
                }
                continue;
            }
            if !live && side.mailbox.front().is_some_and(|parcel| !t.expired(parcel)) {
                if !self.start(t, at, None) {
                    return self.rest(t, at);
                }
                continue;
            }
            let Some(parcel) = side.mailbox.pop_front() else { return self.rest(t, at) };
            t.env.waiting -= 1;
            t.env.waiting_bytes -= parcel.size();
            if t.expired(&parcel) {
                let reason = side.front_given_up(DropReason::Expired);
                t.undelivered(parcel, reason);
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

    /// The right to run has been gone for too long: what waits for it in this mailbox does not any longer.
    pub fn give_up(&mut self, t: &mut Turns<'_, H>, at: u32) {
        self.empty(t, at, DropReason::Fenced);
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
            t.env.timers.insert(due, Timer::Entity { shard: t.number, slot: at });
        } else if !live {
            (side.failures, side.start_failures, side.attempts) = (0, 0, 0);
            self.rest(t, at);
        }
    }

    /// Appends to the mailbox, within its bounds.
    pub(super) fn queue(&mut self, t: &mut Turns<'_, H>, at: u32, parcel: H::Parcel) {
        self.append(t, at, parcel, Room::Bounded);
    }

    /// Likewise, whatever waits there.
    pub(super) fn grant_room(&mut self, t: &mut Turns<'_, H>, at: u32, parcel: H::Parcel) {
        self.append(t, at, parcel, Room::Granted);
    }

    fn append(&mut self, t: &mut Turns<'_, H>, at: u32, parcel: H::Parcel, room: Room) {
        let (now, limits) = (t.env.now, t.env.limits);
        let most = t.host.options(t.shard.ty).mailbox.unwrap_or(limits.mailbox);
        let Some(slot) = self.slot(at) else { return t.undelivered(parcel, DropReason::Stopped) };
        let live = slot.entity.is_some();
        let side = slot.side.get_or_insert_default();
        if !live && side.start_failures >= STARTS_MAX && now < side.retry_at {
            return t.undelivered(parcel, DropReason::CircuitOpen);
        }
        let size = parcel.size();
        if room == Room::Bounded && (side.mailbox.len() >= most || !t.env.has_room(size)) {
            t.undelivered(parcel, DropReason::MailboxFull);
        } else {
            side.mailbox.push_back(parcel);
            t.env.waiting += 1;
            t.env.waiting_bytes += size;
        }
    }

    /// Makes the instance, of what it `brings` along, or of what has waited for that, or came with its shard. False if it failed; it is tried again
    /// after a back-off.
    fn start(&mut self, t: &mut Turns<'_, H>, at: u32, brings: Option<(&[u8], NodeId)>) -> bool {
        let place = t.place();
        let Self { slots, keys, coming, .. } = self;
        let Some(slot) = slots.get_mut(at as usize).and_then(Option::as_mut) else { return false };
        // Absent for an entity that starts at once.
        let side = slot.side.as_deref();
        let waited = side.and_then(|side| side.adopted.as_ref()).map(|(state, from)| (state.as_slice(), *from));
        let brings = match (brings, coming) {
            (None, Some(coming)) if waited.is_none() => coming.take(keys.get(&slot.key)),
            _ => brings,
        };
        let state = brings.or(waited);
        let cause = match side.map_or(0, |side| side.failures) {
            _ if state.is_some() => StartCause::Moved,
            0 => StartCause::FirstMessage,
            _ => StartCause::Restarted,
        };
        let started = t.host.start(&place, keys.get(&slot.key), cause, state);
        t.env.ran = true;
        match started {
            Ok(entity) => {
                if let Some(side) = &mut slot.side {
                    (side.adopted, side.start_failures) = (None, 0);
                }
                slot.entity = Some(entity);
                slot.used = own::stamp(t.env.now);
                self.count_live(t.env, t.number, true);
                let bounded = self.begin_sweeps(t);
                let wishes = t.host.take_wishes();
                self.grant(t, at, wishes);
                if bounded {
                    self.make_room(t, at);
                }
                true
            }
            Err(why) => {
                let side = slot.side.get_or_insert_default();
                side.start_failures += 1;
                if side.start_failures == STARTS_MAX {
                    t.host.circuit_opened(&place, keys.get(&slot.key), &why);
                }
                if let Some((state, from)) = brings {
                    side.adopted = Some((state.to_vec(), from));
                }
                discard_wishes(t);
                self.back_off(t, at);
                false
            }
        }
    }

    /// One turn. False if the entity failed, so that what waits must wait on.
    fn run(&mut self, t: &mut Turns<'_, H>, at: u32, parcel: H::Parcel) -> bool {
        let place = t.place();
        self.handled += 1;
        self.touch(t.env, t.number);
        let Some(slot) = self.slot(at) else { return false };
        let Some(entity) = slot.entity.as_mut() else { return false };
        let turn = t.host.handle(&place, entity, parcel);
        t.env.ran = true;
        slot.used = own::stamp(t.env.now);
        self.ended(t, at, turn)
    }

    /// The turn of an entity is over. False if it failed, so that what waits must wait on.
    fn ended(&mut self, t: &mut Turns<'_, H>, at: u32, turn: Turn) -> bool {
        let Some(slot) = self.slot(at) else { return false };
        if turn == Turn::Continue {
            if let Some(side) = &mut slot.side {
                (side.failures, side.attempts) = (0, 0);
            } else if !t.host.has_wishes() {
                return true;
            }
            let wishes = t.host.take_wishes();
            self.grant(t, at, wishes);
            self.rest(t, at);
            return true;
        }
        if turn == Turn::Failed {
            return self.failed(t, at);
        }
        // What it put aside in this turn is not lost with it.
        let wishes = t.host.take_wishes();
        self.grant(t, at, wishes);
        self.stop_one(t, at, StopReason::Passivated);
        self.end_own(t, at);
        if let Some(side) = self.slot(at).and_then(|s| s.side.as_mut()) {
            (side.failures, side.attempts) = (0, 0);
        }
        self.rest(t, at);
        true
    }

    /// The turn of an entity failed: ends the instance, and does what is to be done about it. Always false: what waits must wait on.
    fn failed(&mut self, t: &mut Turns<'_, H>, at: u32) -> bool {
        let (place, attempts) = (t.place(), t.host.options(t.shard.ty).attempts);
        let failures = self.slot(at).and_then(|s| s.side.as_ref()).map_or(0, |x| x.failures) + 1;
        // What it wished for before it failed counts as done, so that nothing it put aside is lost.
        let wishes = t.host.take_wishes();
        self.grant(t, at, wishes);
        let aftermath = t.host.aftermath(place, failures);
        self.stop_one(t, at, StopReason::Failed);
        self.end_own(t, at);
        let Some(slot) = self.slot(at) else { return false };
        let side = slot.side.get_or_insert_default();
        if let Some(parcel) = aftermath.parcel {
            side.attempts += 1;
            if aftermath.directive == Directive::Restart && side.attempts < attempts {
                t.env.waiting += 1;
                t.env.waiting_bytes += parcel.size();
                side.mailbox.push_front(parcel);
            } else {
                side.attempts = 0;
                t.undelivered(parcel, DropReason::Poison);
            }
        } else {
            // They were of the message that stood in front, and that is gone.
            side.attempts = 0;
        }
        match aftermath.directive {
            Directive::Restart => self.back_off(t, at),
            Directive::RestartEmpty => {
                self.empty(t, at, DropReason::Stopped);
                self.back_off(t, at);
            }
            Directive::Stop => {
                self.empty(t, at, DropReason::Stopped);
                if let Some(side) = self.slot(at).and_then(|s| s.side.as_mut()) {
                    (side.failures, side.attempts) = (0, 0);
                }
                self.rest(t, at);
            }
            Directive::Escalate => {
                // Those that have not started are no instances, and what they were handed over is nowhere else.
                for other in self.numbers() {
                    if other == at || self.slot(other).is_some_and(|s| s.entity.is_some()) {
                        self.stop_one(t, other, StopReason::Failed);
                        self.end_own(t, other);
                        self.empty(t, other, DropReason::Stopped);
                        if let Some(side) = self.slot(other).and_then(|s| s.side.as_mut()) {
                            (side.failures, side.attempts) = (0, 0);
                        }
                        self.rest(t, other);
                    }
                }
            }
        }
        false
    }

    /// Gives up what waits for an entity.
    fn empty(&mut self, t: &mut Turns<'_, H>, at: u32, reason: DropReason) {
        let Some(side) = self.slot(at).and_then(|s| s.side.as_mut()) else { return };
        let mut front = side.front_given_up(reason);
        for parcel in std::mem::take(&mut side.mailbox) {
            t.env.waiting -= 1;
            t.env.waiting_bytes -= parcel.size();
            t.undelivered(parcel, std::mem::replace(&mut front, reason));
        }
    }

    /// Nothing may be left to do: gives back what only waiting needs.
    pub(super) fn rest(&mut self, t: &mut Turns<'_, H>, at: u32) {
        let Some(slot) = self.slot(at) else { return };
        let live = slot.entity.is_some();
        if let Some(side) = slot.side.as_mut() {
            if !live && side.failures > 0 && side.timer.is_none() {
                let due = t.env.now + FORGET;
                side.timer = Some(due);
                t.env.timers.insert(due, Timer::Entity { shard: t.number, slot: at });
            }
            if !live && side.mailbox.is_empty() && side.adopted.is_none() {
                // It was to start for what is gone now.
                let watchers = side.own.as_mut().map(|own| own.take_watchers());
                watchers.into_iter().flatten().for_each(|watch| t.host.watched_ended(watch));
            }
            side.own = side.own.take().filter(|own| !own.is_empty());
            if !side.mailbox.is_empty() || side.adopted.is_some() || side.failures > 0 || side.queued || side.own.is_some() {
                return;
            }
        }
        slot.side = None;
        if slot.entity.is_none() {
            self.remove(t.env, at);
        }
    }

    /// Counts a failure and sets the moment of the next start.
    fn back_off(&mut self, t: &mut Turns<'_, H>, at: u32) {
        // From the end of what failed: that may have taken longer than the pause.
        t.env.renew(t.host);
        let now = t.env.now;
        let pauses = t.host.options(t.shard.ty).backoff.unwrap_or((BACKOFF, t.env.limits.backoff));
        let Some(side) = self.slot(at).map(|s| s.side.get_or_insert_default()) else { return };
        side.failures += 1;
        let (first, longest) = pauses;
        let due = now + first.saturating_mul(1 << (side.failures - 1).min(20)).min(longest);
        (side.retry_at, side.timer) = (due, Some(due));
        t.env.timers.insert(due, Timer::Entity { shard: t.number, slot: at });
        if side.start_failures >= STARTS_MAX {
            self.empty(t, at, DropReason::CircuitOpen);
        }
    }
}
