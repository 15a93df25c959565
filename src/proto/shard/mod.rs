//! `ShardCore`: everything that happens to the entities of one worker's shards.
//!
//! The home side of moving a shard: its states and routes (`stay`, `routes`), the gate (`gate`), lanes with two exits (`exits`), what
//! travels (`transfer`, `states`), and the entities themselves (`entities`, `index`, `supervise`), those among them that moved in and have not
//! started (`coming`).

mod coming;
mod entities;
mod env;
mod exits;
mod gate;
mod host;
mod index;
mod keys;
mod messages;
mod numbers;
mod own;
mod routes;
mod states;
mod stay;
mod supervise;
#[cfg(test)]
mod tests;
mod transfer;
mod wish;

pub use env::{SENT_BYTES, mailboxes};
pub use host::{Host, Parcel, Place, Sign, StartCause, StopReason, Turn};
pub use messages::{LaneId, LaneItem, ShardCommand, ShardReport};
pub(crate) use transfer::{WAS_MAX, ids, messages_of, put_ids};
pub use wish::{Aftermath, Directive, SentRecord, TypeOptions, WatchId, WatchRecord, Watching, Wish};

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use self::{
    env::{Cx, Env, Limits, Timer},
    exits::{Exits, Step, Token},
    index::Tag,
    numbers::Numbers,
    stay::Shard,
};
use crate::{
    Config, Epoch, NodeId, ShardKey, Time, TypeId,
    proto::{
        handoff::{DropReason, Forwarded, HandoffItem, Item},
        rng::Rng,
        wheel::Wheel,
    },
};

/// How often the load is reported while it changes.
const LOAD_EVERY: Duration = Duration::from_secs(1);
/// Shards one worker keeps state for; items for more are refused. Far above what a cluster has, and below what fills a memory.
const SHARDS_MAX: usize = 1 << 20;
/// Timers handled at one moment: each may be a turn of an entity, and the right to run may end between two of them.
const TIMERS_AT_ONCE: usize = 16;

/// How far the search for a message's entity has come. Good until a verb other than [`ShardCore::short_way`] comes, or that says that it is not.
#[derive(Copy, Clone, Default, Debug)]
pub struct Approach {
    shard: u32,
    tag: Tag,
    slot: u32,
}

/// The message has to go the long way.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct NoShortWay;

/// What a turn has done to [approaches](Approach).
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Others {
    /// They are as good as they were.
    Good,
    /// They have to be made again.
    Stale,
}

/// Shard of a message, the epoch of the word used, the hash of the key, and whether it came from another node: then the epoch is that of its settled
/// stream.
pub type Route = (ShardKey, Epoch, u64, bool);

/// So many live entities of a few lines each fit into the cache of a core.
const SMALL: usize = 4096;

/// A slot or a shard that there is not.
const NOWHERE: u32 = u32::MAX;

/// The shards of one worker.
pub struct ShardCore<H: Host> {
    env: Env,
    /// Never shortened: what was seen of a shard is not forgotten while the process lives.
    shards: Vec<Shard<H>>,
    numbers: Numbers,
    exits: Exits<H::Parcel>,
    stopped: Option<DropReason>,
}

impl<H: Host> ShardCore<H> {
    /// The core of worker `worker` of the node `me`. Nothing runs before `set_hosting_until` has named a moment that is not past.
    pub fn new(config: Arc<Config>, me: NodeId, worker: u16, seed: u64) -> Self {
        let mut rng = Rng::new(seed).split(u64::from(worker));
        let env = Env {
            me,
            limits: Limits::new(&config),
            linger: config.sharding.route_linger.get(),
            now: Time::ZERO,
            until: Time::ZERO,
            secret: rng.next_u64(),
            removed: BTreeSet::new(),
            hosted: BTreeSet::new(),
            timers: Wheel::new(Time::ZERO),
            resume: VecDeque::new(),
            give_up_at: None,
            stops: vec![],
            ended: vec![],
            ran: false,
            waiting: 0,
            waiting_bytes: 0,
            live: 0,
            bounded: BTreeMap::new(),
            live_of: BTreeMap::new(),
            evictions: 0,
            dirty: vec![],
            load_due: None,
            numbers: 0,
        };
        Self { env, shards: vec![], numbers: Numbers::default(), exits: Exits::default(), stopped: None }
    }

    /// An item of a producer's ring to this worker.
    pub fn handle_lane(&mut self, now: Time, lane: LaneId, item: LaneItem<H::Parcel>, host: &mut H) {
        self.env.now = now;
        match item {
            LaneItem::Msg { shard, parcel, .. } if self.stopped.is_some() => self.back(lane, shard, parcel, host),
            LaneItem::Msg { shard, tag, enter: None, parcel } if self.exits.is_clear() => self.free(lane, shard, tag, parcel, host),
            LaneItem::Msg { shard, tag, enter, parcel } => self.token(lane, shard, Token::Msg { tag, enter, parcel }, host),
            LaneItem::Leave { shard, k } => self.token(lane, shard, Token::Leave(k), host),
            LaneItem::Through { .. } => debug_assert!(false, "Through is for the network thread only"),
            LaneItem::End => {
                if self.exits.end(lane) {
                    host.report(ShardReport::End { lane });
                }
            }
        }
    }

    /// Whether messages may go the short way now; the beginning of some that do.
    #[inline(always)]
    pub fn opens_short_way(&mut self, now: Time) -> bool {
        self.env.now = now;
        self.stopped.is_none() && self.env.may_run()
    }

    /// The short way of a message, first step: whether it may go that way, by nothing but its address. `None`: it has to go the long way, by
    /// `handle_lane` or as an item. Behind [`opens_short_way`](Self::opens_short_way), which said yes.
    ///
    /// In steps, so that the entities of several messages can be searched for at once: most of the search is waiting for memory.
    #[inline(always)]
    pub fn approach(&self, (shard, tag, hash, arrived): Route) -> Option<Approach> {
        let at = self.home(shard, tag, arrived)?;
        let tag = self.env.tag(hash);
        self.shards[at].entities.fetch_cell(tag).then_some(Approach { shard: at as u32, tag, slot: NOWHERE })
    }

    /// The shard's place, if it takes such messages without more ado.
    #[inline(always)]
    fn home(&self, shard: ShardKey, tag: Epoch, arrived: bool) -> Option<usize> {
        if !(arrived || self.exits.is_clear()) {
            return None;
        }
        self.stay(shard, tag, arrived)
    }

    /// As [`home`](Self::home), where no exits change.
    #[inline(always)]
    fn stay(&self, shard: ShardKey, tag: Epoch, arrived: bool) -> Option<usize> {
        let at = self.find(shard)?;
        let home = &self.shards[at];
        let takes = if arrived { home.takes_settled(tag) } else { home.takes(tag) };
        takes.then_some(at)
    }

    /// Second step, for all of them at once: each entity's slot, and what its turn will look at first.
    #[inline(never)]
    pub fn come_near(&self, approaches: &mut [Approach]) {
        for approach in approaches.iter_mut() {
            approach.slot = self.shards[approach.shard as usize].entities.fetch_slot(approach.tag).unwrap_or(NOWHERE);
        }
        // One alone is looked at right behind this.
        if approaches.len() > 1 {
            for approach in approaches {
                self.shards[approach.shard as usize].entities.fetch_entity(approach.slot);
            }
        }
    }

    /// Last step: a turn of the entity with that key. `Err`: the message has to go the long way after all.
    #[inline(always)]
    pub fn short_way(
        &mut self,
        approach: Approach,
        key: &[u8],
        host: &mut H,
        turn: impl FnOnce(&mut H, &Place, &mut H::Entity) -> Turn,
    ) -> Result<Others, NoShortWay> {
        let home = &mut self.shards[approach.shard as usize];
        let place = Place { shard: home.key, epoch: home.cur, now: self.env.now };
        let (number, slot) = (approach.shard, approach.slot);
        let Some(turn) = home.entities.short_way(&mut self.env, (number, slot), key, &place, host, turn)? else { return Ok(Others::Good) };
        self.after_short_way(number, slot, turn, host);
        Ok(Others::Stale)
    }

    /// All three steps for one message: where entities are so few that none of them has to be waited for, that costs half as much. Where messages
    /// [go straight](Self::goes_straight).
    #[inline(always)]
    pub fn straight_way(
        &mut self,
        (shard, tag, hash, arrived): Route,
        key: &[u8],
        host: &mut H,
        turn: impl FnOnce(&mut H, &Place, &mut H::Entity) -> Turn,
    ) -> Result<Others, NoShortWay> {
        debug_assert!(self.exits.is_clear());
        let at = self.stay(shard, tag, arrived).ok_or(NoShortWay)?;
        let tag = self.env.tag(hash);
        let slot = self.shards[at].entities.slot_of(tag).ok_or(NoShortWay)?;
        self.short_way(Approach { shard: at as u32, tag, slot }, key, host, turn)
    }

    /// A turn for a message of this worker's own, without a stop. `Err`: it has to go by [`handle_own`](Self::handle_own).
    pub fn own_way(
        &mut self,
        now: Time,
        shard: ShardKey,
        key: &[u8],
        hash: u64,
        host: &mut H,
        turn: impl FnOnce(&mut H, &Place, &mut H::Entity) -> Turn,
    ) -> Result<(), NoShortWay> {
        if !self.opens_short_way(now) {
            return Err(NoShortWay);
        }
        let at = self.find(shard).filter(|at| self.shards[*at].runs()).ok_or(NoShortWay)?;
        let tag = self.env.tag(hash);
        let slot = self.shards[at].entities.slot_of(tag).ok_or(NoShortWay)?;
        self.short_way(Approach { shard: at as u32, tag, slot }, key, host, turn).map(drop)
    }

    /// Whether messages go all of their way at once: entities are so few that what they are made of stays in the cache, and no exits change, which
    /// would be a look for each message. No turn of an entity alone changes that.
    #[inline]
    pub fn goes_straight(&self) -> bool {
        self.env.live <= SMALL && self.exits.is_clear()
    }

    /// What a turn has led to.
    #[inline(never)]
    fn after_short_way(&mut self, number: u32, slot: u32, turn: Turn, host: &mut H) {
        self.env.ran = true;
        let home = &mut self.shards[number as usize];
        let mut cx = Cx { env: &mut self.env, host };
        let mut turns = home.turns(&mut cx);
        home.entities.after_turn(&mut turns, slot, turn);
    }

    /// A command of the network thread, in the order of its ring.
    pub fn handle_command(&mut self, now: Time, command: ShardCommand, host: &mut H) {
        self.env.now = now;
        if let Some(reason) = self.stopped {
            return self.after_stop(command, reason, host);
        }
        match command {
            ShardCommand::Host { ty } => {
                if self.env.hosted.insert(ty) {
                    let mut cx = Cx { env: &mut self.env, host };
                    self.shards.iter_mut().filter(|s| s.key.ty == ty).for_each(|s| s.host(&mut cx));
                }
            }
            ShardCommand::Assign { shard, epoch, base } => self.with(shard, host, |s, cx| s.assign(cx, epoch, base)),
            ShardCommand::Move { shard, epoch, to } => self.with(shard, host, |s, cx| s.move_to(cx, epoch, to)),
            ShardCommand::Record { shard, epoch, home } => self.with(shard, host, |s, cx| s.record(cx, epoch, home)),
            ShardCommand::Item { stream, shard, item } => match self.number(shard) {
                Some(at) => self.shards[at].direct(&mut Cx { env: &mut self.env, host }, stream, item),
                None => refuse_item(shard, item, DropReason::MoveBufferFull, host),
            },
            ShardCommand::Handoff { from, shard, item } => match self.number(shard) {
                Some(at) => self.shards[at].handoff(&mut Cx { env: &mut self.env, host }, from, item),
                None => {
                    tracing::error!(?shard, limit = SHARDS_MAX, "more shards than one worker keeps: what is handed over is given up");
                    refuse_handed(self.env.now, shard, item, DropReason::MoveBufferFull, host);
                }
            },
            ShardCommand::Removed { node } => {
                if self.env.removed.insert(node) {
                    host.removed(node);
                    let mut cx = Cx { env: &mut self.env, host };
                    self.shards.iter_mut().for_each(|s| s.removed(&mut cx, node));
                }
            }
            ShardCommand::Open { lane, shard, k, yes } => {
                for token in self.exits.open(lane, shard, k, yes) {
                    self.token(lane, shard, token, host);
                }
                if self.exits.finished(lane) {
                    host.report(ShardReport::End { lane });
                }
            }
            ShardCommand::ProbeAck { shard, route, number } => {
                if let Some(at) = self.find(shard) {
                    self.shards[at].routes.acked(route, number);
                }
            }
            ShardCommand::Recount { id } => {
                let mut facts: Vec<_> = self.shards.iter().filter_map(Shard::fact).collect();
                facts.sort_by_key(|f| f.shard);
                host.report(ShardReport::Facts { id, facts });
            }
            ShardCommand::Stop => self.stop(host),
        }
        self.ended_stays();
    }

    /// The right to run, as the worker read it at that moment of its turn. From past to future: what waited is handled.
    pub fn set_hosting_until(&mut self, now: Time, until: Time, host: &mut H) {
        (self.env.now, self.env.until) = (now, until);
        if !self.env.may_run() || (self.env.resume.is_empty() && self.env.stops.is_empty()) {
            return;
        }
        let mut cx = Cx { env: &mut self.env, host };
        cx.env.give_up_at = None;
        for (at, slot) in std::mem::take(&mut cx.env.resume) {
            let shard = &mut self.shards[at as usize];
            let mut turns = shard.turns(&mut cx);
            shard.entities.resume(&mut turns, slot);
        }
        for at in std::mem::take(&mut cx.env.stops) {
            self.shards[at as usize].stop(&mut cx);
        }
        self.ended_stays();
    }

    /// A message of this worker's own to one of its entities, behind what waits there. Given back if the shard does not run here.
    pub fn handle_own(&mut self, now: Time, shard: ShardKey, parcel: H::Parcel, host: &mut H) -> Result<(), H::Parcel> {
        self.env.now = now;
        match self.find(shard).filter(|at| self.stopped.is_none() && self.shards[*at].runs()) {
            Some(at) => {
                self.shards[at].deliver(&mut Cx { env: &mut self.env, host }, parcel);
                Ok(())
            }
            None => Err(parcel),
        }
    }

    /// Timers that are due, some at a time.
    pub fn handle_timeout(&mut self, now: Time, host: &mut H) {
        self.env.now = now;
        for _ in 0..TIMERS_AT_ONCE {
            let Some((due, timer)) = self.env.timers.pop(now) else { break };
            let mut cx = Cx { env: &mut self.env, host };
            match timer {
                Timer::Entity { shard, slot } => {
                    let shard = &mut self.shards[shard as usize];
                    let mut turns = shard.turns(&mut cx);
                    shard.entities.wake(&mut turns, slot, due);
                }
                Timer::Own { shard, slot, key } => {
                    let shard = &mut self.shards[shard as usize];
                    let mut turns = shard.turns(&mut cx);
                    shard.entities.fire(&mut turns, slot, key);
                }
                Timer::Idle { shard, slot } => {
                    let shard = &mut self.shards[shard as usize];
                    let mut turns = shard.turns(&mut cx);
                    shard.entities.idle(&mut turns, slot);
                }
                Timer::Sweep { shard } => {
                    let shard = &mut self.shards[shard as usize];
                    let mut turns = shard.turns(&mut cx);
                    shard.entities.sweep(&mut turns);
                }
                Timer::Coming { shard } => {
                    let shard = &mut self.shards[shard as usize];
                    let mut turns = shard.turns(&mut cx);
                    shard.entities.take_in_some(&mut turns);
                }
                Timer::Wait { shard } => self.shards[shard as usize].expire(&mut cx),
                Timer::Route { shard, route } => self.shards[shard as usize].linger(&mut cx, route),
            }
        }
        if let Some(due) = self.env.load_due.take_if(|due| *due <= now) {
            self.report_load(LOAD_EVERY + now.since(due), host);
        }
        if self.env.give_up_at.is_some_and(|due| due <= now) {
            self.give_up_waiting(host);
        }
    }

    /// When `handle_timeout` has something to do.
    pub fn poll_timeout(&self) -> Option<Time> {
        [self.env.timers.next(), self.env.load_due, self.env.give_up_at].into_iter().flatten().min()
    }

    /// Live instances.
    pub fn entities(&self) -> usize {
        self.env.live
    }

    /// Runs `f` on a live entity (test kit and simulator).
    pub fn with_entity<R>(&mut self, shard: ShardKey, key: &[u8], f: impl FnOnce(&mut H::Entity) -> R) -> Option<R> {
        let at = self.find(shard)?;
        let tag = self.env.tag(xxhash_rust::xxh3::xxh3_64(key));
        self.shards[at].entities.with(tag, key, f)
    }

    /// A live entity, to look at (test kit).
    pub fn entity(&self, shard: ShardKey, key: &[u8]) -> Option<&H::Entity> {
        let tag = self.env.tag(xxhash_rust::xxh3::xxh3_64(key));
        self.shards[self.find(shard)?].entities.get(tag, key)
    }

    /// Shard and key of each live instance of a type.
    pub fn live_of(&self, ty: TypeId) -> Vec<(ShardKey, Box<[u8]>)> {
        let of_type = self.shards.iter().filter(|s| s.key.ty == ty);
        of_type.flat_map(|s| s.entities.live_keys().map(|key| (s.key, key.into()))).collect()
    }

    /// Live instances: (shard, key, epoch), for checkers.
    pub fn live(&self) -> impl Iterator<Item = (ShardKey, &[u8], Epoch)> {
        self.shards.iter().flat_map(|s| s.entities.live_keys().map(|key| (s.key, key, s.cur)))
    }

    /// Asserts the invariants (debug builds and the simulator, after every step).
    pub fn check(&self) {
        let sums = self.shards.iter().map(Shard::check).fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1));
        assert_eq!(sums, (self.env.waiting, self.env.waiting_bytes), "messages and bytes in mailboxes");
        assert_eq!(self.shards.iter().map(|s| s.entities.live() as usize).sum::<usize>(), self.env.live, "live entities");
        assert_eq!(self.numbers.len(), self.shards.len(), "each shard is found");
        self.exits.check();
    }

    // ---- private ------------------------------------------------------------------------------------------------------------

    /// The right to run has been gone for too long.
    fn give_up_waiting(&mut self, host: &mut H) {
        self.env.give_up_at = Some(self.env.now + self.env.limits.patience);
        let mut cx = Cx { env: &mut self.env, host };
        for at in 0..cx.env.resume.len() {
            let (shard, slot) = cx.env.resume[at];
            let shard = &mut self.shards[shard as usize];
            let mut turns = shard.turns(&mut cx);
            shard.entities.give_up(&mut turns, slot);
        }
    }

    #[inline(always)]
    fn find(&self, shard: ShardKey) -> Option<usize> {
        let at = self.numbers.at_hand(shard).unwrap_or_else(|| self.search(shard)) as usize;
        (at < self.shards.len()).then_some(at)
    }

    #[inline(never)]
    fn search(&self, shard: ShardKey) -> u32 {
        self.numbers.find(shard, || self.tag(shard), |at| self.shards[at as usize].key == shard).unwrap_or(NOWHERE)
    }

    #[inline]
    fn tag(&self, shard: ShardKey) -> u32 {
        self.env.tag(u64::from(shard.ty.0) << 32 | u64::from(shard.shard.0))
    }

    /// The place of a shard, made if there is room.
    fn number(&mut self, shard: ShardKey) -> Option<usize> {
        if let Some(at) = self.find(shard) {
            return Some(at);
        }
        if self.shards.len() >= SHARDS_MAX {
            return None;
        }
        let number = u32::try_from(self.shards.len()).expect("SHARDS_MAX is below 2^32");
        self.numbers.insert(shard, self.tag(shard), number);
        if self.shards.len() == self.shards.capacity() {
            // Half a kilobyte each, and they stay.
            self.shards.reserve_exact(keys::room(self.shards.len()));
        }
        self.shards.push(Shard::new(shard, number));
        Some(self.shards.len() - 1)
    }

    fn with(&mut self, shard: ShardKey, host: &mut H, f: impl FnOnce(&mut Shard<H>, &mut Cx<'_, H>)) {
        match self.number(shard) {
            Some(at) => f(&mut self.shards[at], &mut Cx { env: &mut self.env, host }),
            None => tracing::error!(?shard, limit = SHARDS_MAX, "more shards than one worker keeps: the command is ignored"),
        }
    }

    /// Whether so many items may be taken from a lane. If not, the lane waits for its other exit, which opens by a command.
    #[inline]
    pub fn has_room(&self, lane: LaneId, items: usize) -> bool {
        let limits = &self.env.limits;
        self.exits.is_clear() || self.exits.has_room(lane, items, limits.lane_items, limits.held_items)
    }

    /// A lane's item that nothing holds: to its entity if the stay contains its tag, else back (X4).
    fn free(&mut self, lane: LaneId, shard: ShardKey, tag: Epoch, parcel: H::Parcel, host: &mut H) {
        match self.find(shard) {
            Some(at) if self.shards[at].takes(tag) => self.shards[at].deliver(&mut Cx { env: &mut self.env, host }, parcel),
            _ => self.back(lane, shard, parcel, host),
        }
    }

    fn back(&mut self, lane: LaneId, shard: ShardKey, parcel: H::Parcel, host: &mut H) {
        if let Some(reason) = self.stopped {
            return host.undelivered(shard, parcel, reason);
        }
        match self.env.limits.envelope(parcel, shard, host) {
            Ok(envelope) => host.report(ShardReport::Back { lane, envelope }),
            Err((parcel, reason)) => host.undelivered(shard, parcel, reason),
        }
    }

    fn token(&mut self, lane: LaneId, shard: ShardKey, token: Token<H::Parcel>, host: &mut H) {
        let limits = self.env.limits;
        match self.exits.step(lane, shard, token, limits.lane_items, limits.held_items) {
            Step::Done => {}
            Step::Free(tag, parcel) => self.free(lane, shard, tag, parcel, host),
            Step::Back(parcel) => self.back(lane, shard, parcel, host),
            Step::Left(k) => host.report(ShardReport::Left { lane, shard, k }),
            Step::Full(parcel) => host.undelivered(shard, parcel, DropReason::HeldFull),
        }
    }

    /// Lanes that went back because of `Open(k, no)` need that no more: the tags say so now.
    fn ended_stays(&mut self) {
        for shard in std::mem::take(&mut self.env.ended) {
            self.exits.stay_ended(shard);
        }
    }

    fn report_load(&mut self, over: Duration, host: &mut H) {
        let mut loads = vec![];
        for at in std::mem::take(&mut self.env.dirty) {
            let shard = &mut self.shards[at as usize];
            let handled = u32::try_from(std::mem::take(&mut shard.entities.handled)).unwrap_or(u32::MAX);
            loads.push((shard.key, shard.entities.live(), handled));
            // Once more, behind the last message: its rate is none then.
            shard.entities.dirty = handled > 0;
            if handled > 0 {
                self.env.dirty.push(at);
                self.env.load_due.get_or_insert(self.env.now + LOAD_EVERY);
            }
        }
        loads.sort_unstable_by_key(|row| row.0);
        host.report(ShardReport::Load { loads, over });
    }

    fn stop(&mut self, host: &mut H) {
        let why = if self.env.may_run() { StopReason::Shutdown } else { StopReason::Fenced };
        let mut cx = Cx { env: &mut self.env, host };
        self.shards.iter_mut().for_each(|s| s.shut(&mut cx, why));
        self.env.resume.clear();
        self.env.stops.clear();
        self.env.timers.clear();
        self.env.give_up_at = None;
        self.stopped = Some(if why == StopReason::Fenced { DropReason::Fenced } else { DropReason::Shutdown });
        for (shard, lane, queue) in self.exits.take() {
            for token in queue {
                match token {
                    Token::Msg { parcel, .. } => self.back(lane, shard, parcel, host),
                    // Signs go on, so that the other side is not left waiting.
                    Token::Leave(k) => host.report(ShardReport::Left { lane, shard, k }),
                    Token::Enter(_) => {}
                }
            }
        }
        self.exits.take_ended().into_iter().for_each(|lane| host.report(ShardReport::End { lane }));
    }

    fn after_stop(&mut self, command: ShardCommand, reason: DropReason, host: &mut H) {
        match command {
            ShardCommand::Item { shard, item, .. } => refuse_item(shard, item, reason, host),
            ShardCommand::Handoff { shard, item, .. } => refuse_handed(self.env.now, shard, item, reason, host),
            ShardCommand::Recount { id } => host.report(ShardReport::Facts { id, facts: vec![] }),
            _ => {}
        }
    }
}

fn refuse_handed<H: Host>(now: Time, shard: ShardKey, item: HandoffItem, reason: DropReason, host: &mut H) {
    match item {
        HandoffItem::Forwarded(Forwarded { item, .. }) => refuse_item(shard, item, reason, host),
        HandoffItem::Transfer(chunk) => {
            for envelope in messages_of(shard, &chunk.bytes, now) {
                host.undelivered(shard, H::Parcel::from_envelope(envelope), reason);
            }
        }
        HandoffItem::Probe { .. } => {}
    }
}

fn refuse_item<H: Host>(shard: ShardKey, item: Item, reason: DropReason, host: &mut H) {
    if let Item::Msg { envelope, .. } = item {
        host.undelivered(shard, H::Parcel::from_envelope(envelope), reason);
    }
}
