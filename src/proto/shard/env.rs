//! What all shards of a worker share.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::Duration,
};

use super::{Host, LOAD_EVERY, Parcel, Place, ShardReport, gate::Room, index};
use crate::{
    Config, Epoch, NodeId, ShardKey, Time, TypeId,
    proto::{
        handoff::{DropReason, Envelope},
        wheel::Wheel,
    },
};

/// Mailboxes of one worker hold this many times `limits.mailbox` in all: a few entities may be at their limit, not all of them.
const MAILBOXES: usize = 10;
/// All mailboxes of one worker, in bytes.
pub(super) const MAILBOX_BYTES: usize = 256 << 20;
/// A shard holds this many times as many messages as one of its streams.
const HELD_STREAMS: usize = 4;
/// One shard's held messages, in bytes.
pub(super) const HELD_BYTES: usize = 64 << 20;

/// What a worker's entities have sent and may not go yet, in bytes.
pub const SENT_BYTES: usize = 64 << 20;

/// Messages that may wait for the entities of one worker.
pub fn mailboxes(config: &Config) -> usize {
    (config.limits.mailbox as usize).saturating_mul(MAILBOXES)
}

/// Bounds, from the configuration and the constants of this room.
#[derive(Copy, Clone, Debug)]
pub(super) struct Limits {
    pub mailbox: usize,
    pub mailboxes: usize,
    pub mailbox_bytes: usize,
    /// Longest pause before a failing entity is started again.
    pub backoff: Duration,
    pub room: Room,
    /// Of items that wait for an epoch, per shard; signs without a message may take as much again.
    pub awaiting: usize,
    pub awaiting_bytes: usize,
    /// A message waits so long for an epoch.
    pub patience: Duration,
    pub lane_items: usize,
    pub held_items: usize,
    /// Bytes of an envelope that a frame has room for.
    pub envelope: usize,
}

/// What stands in a frame beside an envelope, at most.
const FRAME_AROUND: usize = 1024;

impl Limits {
    /// A message as it travels. `Err`: it cannot.
    pub fn envelope<H: Host>(&self, parcel: H::Parcel, shard: ShardKey, host: &mut H) -> Result<Envelope, (H::Parcel, DropReason)> {
        let envelope = host.encode(shard, parcel).map_err(|(parcel, _)| (parcel, DropReason::Undecodable))?;
        if envelope.bytes.len() > self.envelope { Err((H::Parcel::from_envelope(envelope), DropReason::TooLarge)) } else { Ok(envelope) }
    }

    pub fn new(config: &Config) -> Self {
        let (mailbox, held) = (config.limits.mailbox as usize, config.limits.held_items as usize);
        Self {
            mailbox,
            mailboxes: mailboxes(config),
            mailbox_bytes: MAILBOX_BYTES,
            backoff: config.sharding.restart_backoff.get(),
            room: Room { stream_items: held, shard_items: held.saturating_mul(HELD_STREAMS), shard_bytes: HELD_BYTES },
            awaiting: held,
            awaiting_bytes: HELD_BYTES,
            patience: config.sharding.handoff_timeout.get(),
            lane_items: config.limits.lane_items as usize,
            held_items: held,
            envelope: (config.limits.frame_bytes as usize).saturating_sub(FRAME_AROUND),
        }
    }
}

/// Timers of a worker. Most are never cancelled: one that is late looks at what it was set for, and does nothing.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Timer {
    /// Set when an entity fails: its back-off ends, or its failures are forgotten.
    Entity {
        /// Number of the shard.
        shard: u32,
        /// Slot of the entity.
        slot: u32,
    },
    /// Set by the entity itself, for a message to itself.
    Own {
        /// Number of the shard.
        shard: u32,
        /// Slot of the entity.
        slot: u32,
        /// The entity's name for it.
        key: u64,
    },
    /// Set when an entity chose an idle time of its own: it may have been idle for so long.
    Idle {
        /// Number of the shard.
        shard: u32,
        /// Slot of the entity.
        slot: u32,
    },
    /// Set when the first entity of a shard starts whose type has an idle time: some may have been idle for so long.
    Sweep {
        /// Number of the shard.
        shard: u32,
    },
    /// Set while entities that moved in have not started: some of them do.
    Coming {
        /// Number of the shard.
        shard: u32,
    },
    /// Set while messages wait for an epoch: the first of them has waited for too long.
    Wait {
        /// Number of the shard.
        shard: u32,
    },
    /// Set when a route is added: it has lingered without traffic.
    Route {
        /// Number of the shard.
        shard: u32,
        /// Number of the route.
        route: u64,
    },
}

/// What all shards of a worker share.
pub(super) struct Env {
    pub me: NodeId,
    pub limits: Limits,
    pub linger: Duration,
    pub now: Time,
    /// Something of an entity's has run since: that may have taken long.
    pub ran: bool,
    /// The right to run ends then.
    pub until: Time,
    pub secret: u64,
    pub removed: BTreeSet<NodeId>,
    pub hosted: BTreeSet<TypeId>,
    pub timers: Wheel<Timer>,
    /// Entities with something to do when the right to run is back.
    pub resume: VecDeque<(u32, u32)>,
    /// By then it has been gone for too long, and their messages are given up.
    pub give_up_at: Option<Time>,
    /// Shards whose stop waits for it.
    pub stops: Vec<u32>,
    /// Shards whose stay ended in this verb.
    pub ended: Vec<ShardKey>,
    /// In mailboxes.
    pub waiting: usize,
    pub waiting_bytes: usize,
    /// Live entities.
    pub live: usize,
    /// Shards, by number, whose types have a bound of live entities.
    pub bounded: BTreeMap<u32, TypeId>,
    /// Live entities of those types.
    pub live_of: BTreeMap<TypeId, usize>,
    /// Searches for an entity to evict, so that each begins where the one before ended.
    pub evictions: usize,
    /// Shards whose load changed since the last report.
    pub dirty: Vec<u32>,
    pub load_due: Option<Time>,
    /// For numbers of routes and probes.
    pub numbers: u64,
}

impl Env {
    /// A turn may start, as the first of a call.
    #[inline]
    pub fn may_run(&self) -> bool {
        self.now < self.until
    }

    /// A turn may start: that is asked before each, as those of one call may take longer than the right to run lasts.
    #[inline]
    pub fn may_run_on<H: Host>(&mut self, host: &mut H) -> bool {
        self.renew(host);
        self.may_run()
    }

    /// The load of that shard has changed, for the first time since the last report.
    #[cold]
    pub fn load_changed(&mut self, number: u32) {
        self.dirty.push(number);
        self.load_due.get_or_insert(self.now + LOAD_EVERY);
    }

    /// It is the moment behind what has run.
    #[inline]
    pub fn renew<H: Host>(&mut self, host: &mut H) {
        if std::mem::take(&mut self.ran) {
            self.now = host.now(self.now);
        }
    }

    /// That entity has something to do when the right to run is back. What waits for it is given up with what waits for the first such entity, so that it
    /// may not have waited as long.
    pub fn suspend(&mut self, shard: u32, slot: u32) {
        self.give_up_at.get_or_insert(self.now + self.limits.patience);
        self.resume.push_back((shard, slot));
    }

    /// One more message, of so many bytes, may wait.
    #[inline]
    pub fn has_room(&self, bytes: usize) -> bool {
        self.waiting < self.limits.mailboxes && self.waiting_bytes + bytes <= self.limits.mailbox_bytes
    }

    #[inline]
    pub fn tag(&self, hash: u64) -> index::Tag {
        index::tag(hash, self.secret)
    }

    /// An entity of that shard started, or ended.
    pub fn count_bounded(&mut self, number: u32, started: bool) {
        if !self.bounded.is_empty()
            && let Some(live) = self.bounded.get(&number).and_then(|ty| self.live_of.get_mut(ty))
        {
            *live = if started { *live + 1 } else { *live - 1 };
        }
    }

    pub fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }
}

/// One verb's access to everything but the shard at hand.
pub(super) struct Cx<'a, H> {
    pub env: &'a mut Env,
    pub host: &'a mut H,
}

impl<H: Host> Cx<'_, H> {
    pub fn report(&mut self, report: ShardReport) {
        self.host.report(report);
    }
}

/// One shard's entities at work.
pub(super) struct Turns<'a, H> {
    pub env: &'a mut Env,
    pub host: &'a mut H,
    pub shard: ShardKey,
    pub number: u32,
    pub epoch: Epoch,
}

impl<H: Host> Turns<'_, H> {
    /// A turn may start.
    #[inline]
    pub fn may_run(&mut self) -> bool {
        self.env.may_run_on(self.host)
    }

    #[inline]
    pub fn place(&self) -> Place {
        Place { shard: self.shard, epoch: self.epoch, now: self.env.now }
    }

    pub fn undelivered(&mut self, parcel: H::Parcel, reason: DropReason) {
        self.host.undelivered(self.shard, parcel, reason);
    }

    pub fn expired(&self, parcel: &H::Parcel) -> bool {
        parcel.deadline().is_some_and(|deadline| deadline <= self.env.now)
    }
}
