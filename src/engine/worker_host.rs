//! What runs the entities of a worker's shards: each call of [`ShardCore`](crate::proto::shard::ShardCore) becomes a turn of an entity, watched and
//! guarded against panics.

use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Duration,
};

use crate::{
    AskError, NodeId, PanicInfo, ShardKey, Time, TypeId,
    engine::{
        exits,
        letter::Letter,
        moment::Moments,
        node::{Node, ToNet},
        out::{Later, OpenAsk, Out},
        panics,
        parcel::{Answered, EngineParcel, message_of},
        ring::fetch,
        senders::Senders,
        signs,
        slow_turns::Busy,
        types::{Env, Instance, Mail, Types, show_bytes},
        watches::{Closed, NewWatch},
    },
    metrics::WorkerCounters,
    proto::{
        handoff::{Ask, DropReason, Envelope, ReplyBody},
        shard::{
            Aftermath, Directive, Host, Parcel, Place, SentRecord, ShardReport, StartCause, StopReason, Turn, TypeOptions, WatchId,
            WatchRecord, Wish,
        },
    },
};

/// Runs entities for this worker's `ShardCore`.
pub struct WorkerHost {
    node: Arc<Node>,
    /// The types it knows.
    pub types: Types,
    /// Messages handled in this turn.
    pub handled: u64,
    /// The way out.
    pub out: Out,
    /// It is read again as a turn of the worker goes on: the right to run may end in the middle of one.
    pub moments: Moments,
    index: u16,
    /// What the watch sees.
    pub busy: Arc<Busy>,
    /// How long the last turn took at least, if that is worth a word.
    slow: Option<Duration>,
    /// The panic of the turn that failed last, and the message it failed on.
    panicked: Option<PanicInfo>,
    failed_on: Option<EngineParcel>,
    /// Entities have moved in that had sent something.
    holding: bool,
}

impl WorkerHost {
    /// That of worker `index`.
    pub fn new(node: Arc<Node>, index: u16, seed: u64) -> Self {
        Self {
            types: Types::default(),
            handled: 0,
            out: Out::new(node.clone(), index, seed),
            moments: Moments::new(node.clock.clone()),
            index,
            busy: node.busy[usize::from(index)].clone(),
            slow: None,
            panicked: None,
            failed_on: None,
            holding: false,
            node,
        }
    }

    /// Names the entity whose turn was slow, if the last one was.
    #[cold]
    fn tell_slow(&self, at: Place, key: &[u8], took: Duration) {
        let (entity_type, key) = self.show(at.shard.ty, key);
        #[cfg(feature = "admin")]
        self.node.slow_turns.add(crate::engine::slow_turns::SlowTurn {
            entity_type: entity_type.to_owned(),
            key: key.clone(),
            shard: at.shard.shard,
            worker: self.index,
            took,
            ended: self.node.now(),
        });
        self.counters().slow_turns.bump(1);
        tracing::warn!(target: "wingbeat::engine", entity_type, %key, shard = at.shard.shard.0, ?took, "slow turn: what else lives on this worker has waited");
    }

    /// Type and key of an entity for people.
    fn show(&self, ty: TypeId, key: &[u8]) -> (&str, String) {
        self.types.get(ty).map_or_else(|| ("?", show_bytes(key)), |entry| (&entry.name, entry.show_key(key)))
    }

    /// What this worker's entities send, if its thread is not being torn down.
    pub fn with_senders<R>(&self, f: impl FnOnce(&mut Senders) -> R) -> Option<R> {
        exits::with(&self.node, |exits| exits.senders().map(f)).flatten()
    }

    /// A link to another node is new: what was said over the one before may not have come.
    pub fn link_up(&mut self) {
        self.out.settling.repeat(&self.node);
        self.out.watches.ask_again(&self.node);
    }

    /// Whether something of what entities have sent waits, or has left with them and is on its way.
    #[inline]
    pub fn settles(&self) -> bool {
        self.holding || self.out.settling.is_under_way()
    }

    /// When something of what entities have sent and waits is to be sent.
    pub fn held_due(&self) -> Option<Time> {
        if self.holding { self.with_senders(|senders| senders.due()).flatten() } else { None }
    }

    /// Something of it was sent: there may be no more.
    pub fn look_at_held(&mut self) {
        self.holding = self.with_senders(|senders| senders.holds_any()).unwrap_or(false);
    }

    pub fn counters(&self) -> &WorkerCounters {
        &self.node.metrics.workers[usize::from(self.index)]
    }

    fn turn<R>(&mut self, at: &Place, key: &[u8], what: &'static str, f: impl FnOnce(&mut Env<'_>) -> R) -> Result<R, Box<PanicInfo>> {
        self.busy.enter(at.shard, key);
        let result = self.entered(at, what, f);
        if let Some(took) = self.slow.take() {
            self.tell_slow(*at, key, took);
        }
        result
    }

    /// As [`turn`](Self::turn), where the watch knows already who it is, and the caller says so of a slow turn.
    fn entered<R>(&mut self, at: &Place, what: &'static str, f: impl FnOnce(&mut Env<'_>) -> R) -> Result<R, Box<PanicInfo>> {
        let mut env = Env { node: &self.node, at, out: &mut self.out };
        // The entity is dropped after a panic, so no broken state is seen again.
        let result = catch_unwind(AssertUnwindSafe(|| f(&mut env)));
        self.leave();
        result.map_err(|panic| self.panic_info(at, what, panic))
    }

    /// A turn is over.
    #[inline(always)]
    pub fn leave(&mut self) {
        if self.busy.leave() {
            self.slow = self.busy.slow(self.node.now());
        }
    }

    #[cold]
    pub fn panic_info(&self, at: &Place, what: &'static str, panic: Box<dyn Any + Send>) -> Box<PanicInfo> {
        let handling = match self.types.get(at.shard.ty).and_then(|entry| entry.host()) {
            Some(host) if what == HANDLE => host.message_name(self.out.handling),
            _ => what,
        };
        let (location, message) = panics::told(panic);
        Box::new(PanicInfo { message, location, handling })
    }

    /// Whether a message is too late, to be kept, or no message to an instance.
    #[inline(always)]
    pub fn takes_long_way(&self, now: Time, letter: &Letter<'_>, ty: TypeId) -> bool {
        letter.asker().0.is_some_and(|ask| ask.deadline <= now || letter.is_sign()) || self.types.keeps(ty)
    }

    /// The next turns answer that ask, in all likelihood.
    #[inline]
    pub fn will_answer(&self, ask: &Ask) {
        if ask.node == self.node.id {
            self.node.slots.fetch(ask.correlation);
        }
    }

    /// One message, one turn, where its sender has put it. Whoever calls looks after panics.
    #[inline(always)]
    pub fn handle_letter(&mut self, at: &Place, key: &[u8], entity: &mut Box<dyn Instance>, letter: &mut Letter<'_>) -> Turn {
        self.busy.enter(at.shard, key);
        let mut env = Env { node: &self.node, at, out: &mut self.out };
        let turn = entity.handle(&mut env, &mut Mail::Letter(letter));
        if self.busy.leave() {
            self.was_seen(at, &**entity);
        }
        turn
    }

    /// The turn of that entity has just ended, and may have been slow.
    #[cold]
    fn was_seen(&mut self, at: &Place, entity: &dyn Instance) {
        self.slow = self.busy.slow(self.node.now());
        self.was_slow(at, entity);
    }

    /// One message, one turn, on its own.
    pub fn handle_parcel(&mut self, at: &Place, entity: &mut Box<dyn Instance>, slot: &mut Option<EngineParcel>) -> Turn {
        let Some(parcel) = slot.as_ref() else { return Turn::Continue };
        self.handled += 1;
        let keeps = self.types.keeps(at.shard.ty);
        self.busy.enter(at.shard, parcel.key());
        let ask = parcel.ask();
        let mut mail = Mail::parcel(slot, &ask);
        let turn = self.entered(at, HANDLE, |env| {
            if keeps {
                mail.keep(at.shard);
            }
            entity.handle(env, &mut mail)
        });
        if self.slow.is_some() {
            self.was_slow(at, &**entity);
        }
        turn.unwrap_or_else(|panic| self.panicked(at, &entity.key(), &mut mail, *panic))
    }

    /// Names the entity of the turn that has just ended, if that was slow.
    #[cold]
    pub fn was_slow(&mut self, at: &Place, entity: &dyn Instance) {
        if let Some(took) = self.slow.take() {
            self.tell_slow(*at, &entity.key(), took);
        }
    }

    #[cold]
    pub fn panicked(&mut self, at: &Place, key: &[u8], mail: &mut Mail<'_, '_>, panic: PanicInfo) -> Turn {
        self.tell_panic(*at, key, &panic);
        self.panicked = Some(panic);
        // If it had put the message aside, that is where it is, as well perhaps.
        let kept = mail.left();
        let aside =
            self.out.wishes.iter().position(|wish| matches!(wish, Wish::Stash(parcel) if self.is_copy(at.shard, parcel, kept.as_ref())));
        let aside = aside.map(|aside| self.out.wishes.remove(aside));
        let aside = aside.and_then(|wish| if let Wish::Stash(parcel) = wish { Some(parcel) } else { None });
        self.failed_on = kept.or(aside);
        // What is left of the message tells its asker when it is given up.
        if self.failed_on.is_none() {
            self.node.bury_parts(at.shard, key, None, DropReason::Poison);
            // If the handler had answered before it panicked, the slot is empty and this answer is dropped there.
            if let (Some(ask), _) = mail.asker() {
                self.out.answer(*ask, Answered::Wire(ReplyBody::EntityFailed));
            }
        }
        Turn::Failed
    }

    /// Whether what was put aside may be the message that was kept, if that was.
    fn is_copy(&self, shard: ShardKey, aside: &EngineParcel, kept: Option<&EngineParcel>) -> bool {
        let Some(kept) = kept else { return true };
        let encoded = |parcel: &EngineParcel| self.guarded(shard.ty, "encode", || parcel.to_envelope(shard).ok()).flatten();
        let (Some(aside), Some(kept)) = (encoded(aside), encoded(kept)) else { return false };
        message_of(&aside) == message_of(&kept)
    }

    /// Counts and reports a panic.
    #[cold]
    fn tell_panic(&self, at: Place, key: &[u8], panic: &PanicInfo) {
        self.counters().handler_panics.bump(1);
        let Some(kept_back) = self.node.panic_log.pass(self.node.now()) else { return };
        let (entity_type, key) = self.show(at.shard.ty, key);
        let PanicInfo { message, location, handling } = panic;
        tracing::error!(target: "wingbeat::engine", entity_type, %key, shard = at.shard.shard.0, epoch = at.epoch.get(), handling, %location, said = %message, kept_back, "a handler panicked; lines like this come once a second at most");
    }

    /// Runs code of users that is no turn of an entity of that type: see [`Out::guarded`].
    pub fn guarded<R>(&self, ty: TypeId, what: &'static str, f: impl FnOnce() -> R) -> Option<R> {
        self.out.guarded(self.types.get(ty).map_or("?", |entry| &entry.name), what, f)
    }

    /// Drops what is of the making of users of that type: its end may panic.
    pub fn discard<T>(&self, ty: TypeId, what: T) {
        self.guarded(ty, "drop", || drop(what));
    }

    /// What the ask's answer becomes: a message to the entity that asked.
    pub fn then(&mut self, at: Place, open: OpenAsk, answered: Result<Answered, AskError>) -> Option<EngineParcel> {
        let OpenAsk { key, then, .. } = open;
        match self.turn(&at, key.bytes(), "then", |_| then(answered)) {
            Ok(msg) => Some(EngineParcel::told(key, msg)),
            Err(panic) => {
                self.tell_panic(at, key.bytes(), &panic);
                self.node.bury_parts(at.shard, key.bytes(), None, DropReason::Poison);
                None
            }
        }
    }
}

/// What a turn with a message is called.
pub const HANDLE: &str = "handle";

impl Host for WorkerHost {
    type Parcel = EngineParcel;
    type Entity = Box<dyn Instance>;

    fn now(&mut self, _: Time) -> Time {
        self.moments.renew();
        self.moments.last().now
    }

    fn start(&mut self, at: &Place, key: &[u8], cause: StartCause, state: Option<(&[u8], NodeId)>) -> Result<Self::Entity, String> {
        let Some(host) = self.types.get(at.shard.ty).and_then(|e| e.host()) else { return Err("the type is not hosted here".to_owned()) };
        let started = self.turn(at, key, "start", |env| host.start(env, key, cause, state)).unwrap_or_else(|panic| {
            self.tell_panic(*at, key, &panic);
            Err(panic.message)
        });
        if started.is_err() {
            self.out.start_failed(&self.node, at.shard, key);
        }
        self.counters().entities_started.bump(u64::from(started.is_ok()));
        started
    }

    fn circuit_opened(&mut self, at: &Place, key: &[u8], why: &str) {
        let (entity_type, key) = self.show(at.shard.ty, key);
        tracing::warn!(target: "wingbeat::engine", entity_type, %key, shard = at.shard.shard.0, epoch = at.epoch.get(), %why, "an entity keeps failing to start; what waits for it is given up");
    }

    fn handle(&mut self, at: &Place, entity: &mut Self::Entity, parcel: EngineParcel) -> Turn {
        self.handle_parcel(at, entity, &mut Some(parcel))
    }

    fn hand_over(&mut self, at: &Place, key: &[u8], entity: &mut Self::Entity, out: &mut Vec<u8>) -> Result<bool, Box<str>> {
        self.turn(at, key, "handoff", |env| entity.hand_over(env, out)).unwrap_or_else(|panic| {
            self.tell_panic(*at, key, &panic);
            Err(panic.message.into())
        })
    }

    fn stop(&mut self, at: &Place, key: &[u8], entity: Self::Entity, why: StopReason) {
        self.counters().entities_stopped.bump(1);
        // The instance is gone either way.
        if let Err(panic) = self.turn(at, key, "stopped", |env| entity.stop(env, why)) {
            self.tell_panic(*at, key, &panic);
        }
        self.out.unsubscribe(None, at.shard, key);
        self.out.watches.close(&self.node, at.shard, key, &Closed::All);
    }

    #[inline(always)]
    fn fetch<T>(what: &T) {
        fetch(what);
    }

    #[inline(always)]
    fn fetch_entity(entity: &Self::Entity) {
        fetch(&**entity);
    }

    fn options(&self, ty: TypeId) -> TypeOptions {
        self.types.get(ty).map_or_else(TypeOptions::default, |entry| entry.options())
    }

    #[inline]
    fn has_wishes(&self) -> bool {
        !self.out.wishes.is_empty()
    }

    fn take_wishes(&mut self) -> Vec<Wish<EngineParcel>> {
        std::mem::take(&mut self.out.wishes)
    }

    fn aftermath(&mut self, at: Place, failures: u32) -> Aftermath<EngineParcel> {
        let parcel = self.failed_on.take();
        // An entity that gave up by itself was not asked.
        let Some(panic) = self.panicked.take() else { return Aftermath { directive: Directive::Restart, parcel } };
        let host = self.types.get(at.shard.ty).and_then(|e| e.host());
        let directive = match host.map(|host| self.turn(&at, &[], "supervise", |_| host.supervise(&panic, failures - 1))) {
            Some(Ok(directive)) => directive,
            Some(Err(panic)) => {
                self.tell_panic(at, &[], &panic);
                Directive::Restart
            }
            None => Directive::Restart,
        };
        Aftermath { directive, parcel }
    }

    fn watch_answered(&mut self, ask: Ask, watched: bool) {
        self.out.answer(ask, Answered::Wire(if watched { signs::yes() } else { ReplyBody::NoReply }));
    }

    fn watched_ended(&mut self, watch: WatchId) {
        let ask = Ask { node: watch.node, correlation: watch.number, deadline: Time::MAX };
        self.out.answer(ask, Answered::Wire(ReplyBody::NoReply));
    }

    fn removed(&mut self, node: NodeId) {
        self.with_senders(|senders| senders.removed(node));
        self.out.watches.ask_again(&self.node);
    }

    fn leaving_watches(&mut self, at: Place) -> Vec<WatchRecord> {
        self.out.watches.leave(&self.node, at.shard)
    }

    fn watch(&mut self, at: Place, watch: WatchRecord) {
        let WatchRecord { ty, target, was, confirmed, message } = watch;
        let open = NewWatch { shard: at.shard, target: (ty, target), message, moved_in: Some((was, confirmed)) };
        if let Err(message) = self.out.watches.open(&self.node, self.index, open) {
            // Cannot be watched from here, so it counts as ended: behind what is being taken in.
            self.out.later(Later::Own(at.shard, EngineParcel::from_envelope(message)));
        }
    }

    fn leaving_sent(&mut self, at: Place) -> Vec<SentRecord> {
        let home = self.node.id;
        let shards_of = |ty| self.node.type_entry(ty)?.shards();
        let left = self.with_senders(|senders| senders.leave(at.shard, (home, at.epoch), shards_of));
        let Some((records, targets)) = left else { return vec![] };
        let until = at.now + self.node.config.sharding.handoff_timeout.get();
        if self.out.settling.begin((at.shard, at.epoch), targets, until) {
            self.report(ShardReport::Settling { under_way: true });
        }
        records
    }

    fn sent(&mut self, at: Place, record: SentRecord, settled: bool) {
        self.holding = true;
        self.with_senders(|senders| senders.adopt(at.now, at.shard, record, settled));
    }

    fn shard_sign(&mut self, at: Place, parcel: EngineParcel) {
        let EngineParcel::Wire { envelope, .. } = parcel else { return };
        let Some(ask) = envelope.ask else { return };
        match signs::settled_in(&envelope) {
            Some(Ok((epoch, targets))) => _ = self.with_senders(|senders| senders.settled(at.shard, ask.node, epoch, &targets)),
            Some(Err(error)) => tracing::error!(shard = ?at.shard, from = ?ask.node, %error, "malformed sign"),
            None => {}
        }
        self.out.answer(ask, Answered::Wire(ReplyBody::NoReply));
    }

    fn leaving(&mut self, at: Place) -> Vec<EngineParcel> {
        let mut open: Vec<u64> = self.out.asks.iter().filter(|(_, open)| open.shard == at.shard).map(|(ask, _)| *ask).collect();
        open.sort_unstable();
        let mut moved = vec![];
        for correlation in open {
            // An answer that is on its way to this thread finds nobody any more.
            drop(self.node.slots.take(correlation));
            if let Some(open) = self.out.asks.remove(&correlation) {
                moved.extend(self.then(at, open, Err(AskError::Moved)));
            }
        }
        moved
    }

    fn undelivered(&mut self, shard: ShardKey, parcel: EngineParcel, reason: DropReason) {
        if reason == DropReason::Expired {
            self.counters().asks_expired.bump(1);
        }
        self.node.bury(shard, &parcel, reason);
        if let Some(ask) = parcel.ask() {
            let body = if reason == DropReason::Poison { ReplyBody::EntityFailed } else { ReplyBody::Dropped(reason) };
            self.out.answer(ask, Answered::Wire(body));
        }
        self.discard(shard.ty, parcel);
    }

    fn encode(&mut self, shard: ShardKey, parcel: EngineParcel) -> Result<Envelope, (EngineParcel, String)> {
        if matches!(parcel, EngineParcel::Wire { .. }) {
            return parcel.into_envelope(shard);
        }
        let encoded = self.guarded(shard.ty, "encode", || parcel.to_envelope(shard));
        match encoded.unwrap_or_else(|| Err("its encoder panicked".to_owned())) {
            Ok(envelope) => {
                self.discard(shard.ty, parcel);
                Ok(envelope)
            }
            Err(why) => Err((parcel, why)),
        }
    }

    fn report(&mut self, report: ShardReport) {
        self.out.push(ToNet::Report(self.index, Box::new(report)));
    }

    fn hurry(&mut self) {
        self.out.flush();
    }
}
