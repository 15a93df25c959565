//! A host that records, and a bed for one core.

mod coming;
mod entities;
mod lanes;
mod model;
mod moves;
mod own;
mod stay;
mod world;

use std::collections::BTreeSet;

use super::*;
use crate::{
    ShardId,
    proto::handoff::{Ask, Envelope, Mode, TransferChunk},
};

pub(super) const TY: TypeId = TypeId(7);
pub(super) const S: ShardKey = ShardKey { ty: TY, shard: ShardId(3) };
pub(super) const A: NodeId = NodeId::from_raw(0xa);
pub(super) const B: NodeId = NodeId::from_raw(0xb);
pub(super) const C: NodeId = NodeId::from_raw(0xc);
/// The node whose stream is watched.
pub(super) const R: NodeId = NodeId::from_raw(0xd);

/// A message: text, and where it was made.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Letter {
    pub envelope: Envelope,
    /// Its encoder fails.
    pub bad: bool,
}

impl Parcel for Letter {
    fn from_envelope(envelope: Envelope) -> Self {
        Self { envelope, bad: false }
    }
    fn into_envelope(self, _: ShardKey) -> Result<Envelope, (Self, String)> {
        if self.bad { Err((self, "no codec".into())) } else { Ok(self.envelope) }
    }
    fn key(&self) -> &[u8] {
        self.envelope.key()
    }
    fn hash(&self) -> u64 {
        xxhash_rust::xxh3::xxh3_64(self.envelope.key())
    }
    fn deadline(&self) -> Option<Time> {
        self.envelope.ask.map(|a| a.deadline)
    }
    fn size(&self) -> usize {
        self.envelope.bytes.len()
    }
    /// A letter that says `watch` or `unwatch` is that, numbered by the length of the key; or `w#7`, `u#7`, with their numbers. `a#7` asks about
    /// number 7, `8was7` gives it another one.
    fn sign(&self) -> Option<Sign> {
        let payload = text(self.envelope.payload());
        let ask = |correlation| Ask { node: R, correlation, deadline: Time::MAX };
        let named = |number| WatchId { node: R, number };
        let watch = |number, was: Option<u64>| {
            let (was, confirmed) = (was.map(named).into_iter().collect(), was.is_some());
            Sign::Watch(ask(number), Watching { id: named(number), was, confirmed })
        };
        // Nobody looks at the answer.
        let unwatch = |number| Sign::Unwatch(ask(0), Watching { id: named(number), was: vec![], confirmed: false });
        let number = |text: &str| text.parse().ok();
        match payload.as_str() {
            "watch" => return Some(watch(self.key().len() as u64, None)),
            "unwatch" => return Some(unwatch(self.key().len() as u64)),
            _ => {}
        }
        if let Some((now, was)) = payload.split_once("was") {
            return Some(watch(number(now)?, Some(number(was)?)));
        }
        let (kind, n) = payload.split_once('#')?;
        match kind {
            "w" => Some(watch(number(n)?, None)),
            "u" => Some(unwatch(number(n)?)),
            _ => Some(watch(number(n)?, number(n))),
        }
    }
}

/// What a host saw, as text: `start k FirstMessage`, `k:m1`, `stop k moved`, `drop m1 late`.
#[derive(Default)]
pub(super) struct Book {
    pub log: Vec<String>,
    pub reports: Vec<ShardReport>,
    pub fail_start: BTreeSet<Vec<u8>>,
    pub refuse_hand_over: bool,
    pub at_hand_over: Vec<(Vec<u8>, Wish<Letter>)>,
    pub refuses: Option<Vec<u8>>,
    pub stateless: bool,
    pub options: TypeOptions,
    /// What becomes of an entity whose turn failed; the message it failed on is given back if `attempts` says so.
    pub directive: Option<Directive>,
    pub failed_on: Option<Letter>,
    pub wishes: Vec<Wish<Letter>>,
    /// Letters that open asks come to.
    pub open_asks: Vec<Letter>,
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

impl Host for Book {
    type Parcel = Letter;
    /// Key, and what it handled, in one text.
    type Entity = (String, String);

    fn start(&mut self, at: &Place, key: &[u8], cause: StartCause, state: Option<(&[u8], NodeId)>) -> Result<Self::Entity, String> {
        let state = state.map_or(String::new(), |(state, _)| text(state));
        self.log.push(format!("start {}@{} {cause:?} {state}", text(key), at.epoch.get()).trim_end().into());
        if self.fail_start.contains(key) { Err("cannot".into()) } else { Ok((text(key), state)) }
    }
    fn handle(&mut self, _: &Place, entity: &mut Self::Entity, parcel: Letter) -> Turn {
        let payload = text(parcel.envelope.payload());
        self.log.push(format!("{}:{payload}", entity.0));
        entity.1 += &payload;
        own::wish(self, &entity.0, &payload, &parcel);
        self.failed_on = Some(parcel);
        match payload.as_str() {
            x if x.starts_with("boom") => Turn::Failed,
            x if x.starts_with("bye") => Turn::Passivate,
            _ => Turn::Continue,
        }
    }
    fn hand_over(&mut self, _: &Place, key: &[u8], entity: &mut Self::Entity, out: &mut Vec<u8>) -> Result<bool, Box<str>> {
        let mine: Vec<_> = self.at_hand_over.extract_if(.., |(of, _)| of == key).map(|(_, wish)| wish).collect();
        self.wishes.extend(mine);
        if self.refuse_hand_over || self.refuses.as_deref() == Some(key) {
            return Err("not now".into());
        }
        out.extend_from_slice(entity.1.as_bytes());
        Ok(!self.stateless)
    }
    fn hurry(&mut self) {
        self.log.push("hurry".into());
    }
    fn stop(&mut self, _: &Place, _: &[u8], entity: Self::Entity, why: StopReason) {
        self.log.push(format!("stop {} {why}", entity.0));
    }
    fn circuit_opened(&mut self, _: &Place, key: &[u8], why: &str) {
        self.log.push(format!("open {} {why}", text(key)));
    }
    fn undelivered(&mut self, _: ShardKey, parcel: Letter, reason: DropReason) {
        self.log.push(format!("drop {} {}", text(parcel.envelope.payload()), reason.label()));
    }
    fn report(&mut self, report: ShardReport) {
        self.reports.push(report);
    }
    fn options(&self, _: TypeId) -> TypeOptions {
        self.options
    }
    fn take_wishes(&mut self) -> Vec<Wish<Letter>> {
        std::mem::take(&mut self.wishes)
    }
    fn aftermath(&mut self, _: Place, failures: u32) -> Aftermath<Letter> {
        let Some(directive) = self.directive else { return Aftermath { directive: Directive::Restart, parcel: None } };
        self.log.push(format!("failure {failures}"));
        Aftermath { directive, parcel: self.failed_on.take() }
    }
    fn watch_answered(&mut self, ask: Ask, watched: bool) {
        if !watched && ask.correlation > 0 {
            self.log.push(format!("watch {} has ended", ask.correlation));
        }
    }
    fn watched_ended(&mut self, watch: WatchId) {
        self.log.push(format!("watch {} has ended", watch.number));
    }
    fn leaving(&mut self, _: Place) -> Vec<Letter> {
        std::mem::take(&mut self.open_asks)
    }
}

/// How long messages wait for a home.
pub(super) const PATIENCE: Duration = Duration::from_secs(30 * 86_400);

/// Settings of a world that lasts less than that, whatever it does.
pub(super) fn patient() -> Config {
    let mut config = Config::default();
    config.sharding.handoff_timeout = crate::config::Span::secs(PATIENCE.as_secs());
    config
}

/// One core with its host.
pub(super) struct Bed {
    pub core: ShardCore<Book>,
    pub host: Book,
    pub now: Time,
}

impl Bed {
    /// A core that hosts the type and may run for ever.
    pub fn new(me: NodeId) -> Self {
        let mut bed = Self::bare(me);
        bed.core.set_hosting_until(bed.now, Time::MAX, &mut bed.host);
        bed.command(ShardCommand::Host { ty: TY });
        bed
    }

    /// A core with small limits that hosts nothing yet.
    pub fn bare(me: NodeId) -> Self {
        let mut config = patient();
        config.limits.mailbox = 4;
        config.limits.held_items = 3;
        config.limits.lane_items = 3;
        Self { core: ShardCore::new(Arc::new(config), me, 0, 1), host: Book::default(), now: Time::from_nanos(1_000) }
    }

    pub fn command(&mut self, command: ShardCommand) {
        self.core.handle_command(self.now, command, &mut self.host);
        self.core.check();
    }

    pub fn lane(&mut self, item: LaneItem<Letter>) {
        self.core.handle_lane(self.now, LaneId(1), item, &mut self.host);
        self.core.check();
    }

    pub fn until(&mut self, until: Time) {
        self.core.set_hosting_until(self.now, until, &mut self.host);
        self.core.check();
    }

    pub fn pass(&mut self, time: Duration) {
        self.now = self.now + time;
        // Some at a time, as a worker does.
        loop {
            self.core.handle_timeout(self.now, &mut self.host);
            self.core.check();
            if self.core.poll_timeout().is_none_or(|due| due > self.now) {
                break;
            }
        }
    }

    pub fn assign(&mut self, epoch: u64, base: u64) {
        self.command(ShardCommand::Assign { shard: S, epoch: Epoch(epoch), base: Epoch(base) });
    }

    pub fn move_to(&mut self, epoch: u64, to: NodeId) {
        self.command(ShardCommand::Move { shard: S, epoch: Epoch(epoch), to });
    }

    pub fn record(&mut self, epoch: u64, home: NodeId) {
        self.command(ShardCommand::Record { shard: S, epoch: Epoch(epoch), home });
    }

    pub fn removed(&mut self, node: NodeId) {
        self.command(ShardCommand::Removed { node });
    }

    pub fn item(&mut self, item: Item) {
        self.command(ShardCommand::Item { stream: R, shard: S, item });
    }

    /// A direct message of stream `R`.
    pub fn msg(&mut self, tag: u64, mode: Mode, text: &str) {
        self.item(message(tag, mode, text));
    }

    pub fn forwarded(&mut self, from: NodeId, aim: u64, after: &[NodeId], item: Item) {
        let item = HandoffItem::Forwarded(Forwarded { aim: Epoch(aim), after: after.to_vec(), stream: R, item });
        self.command(ShardCommand::Handoff { from, shard: S, item });
    }

    /// Hands what another bed sent to this one over, in order.
    pub fn take_from(&mut self, from: NodeId, items: Vec<HandoffItem>) {
        for item in items {
            self.command(ShardCommand::Handoff { from, shard: S, item });
        }
    }

    /// What was logged since the last call.
    pub fn log(&mut self) -> Vec<String> {
        std::mem::take(&mut self.host.log)
    }

    /// What was reported since the last call.
    pub fn reports(&mut self) -> Vec<ShardReport> {
        std::mem::take(&mut self.host.reports)
    }

    /// What was put into the hand-off lane to `to` since the last call of this or `reports`; other reports are lost.
    pub fn handed_to(&mut self, to: NodeId) -> Vec<HandoffItem> {
        let mine = |r| match r {
            ShardReport::Handoff { to: t, item, .. } if t == to => Some(item),
            _ => None,
        };
        self.reports().into_iter().filter_map(mine).collect()
    }
}

pub(super) fn letter(key: &str, payload: &str) -> Letter {
    Letter { envelope: envelope(key, payload), bad: false }
}

pub(super) fn envelope(key: &str, payload: &str) -> Envelope {
    Envelope::new(S, None, key.as_bytes(), payload.as_bytes()).unwrap()
}

pub(super) fn message(tag: u64, mode: Mode, payload: &str) -> Item {
    Item::Msg { tag: Epoch(tag), mode, envelope: envelope("k", payload) }
}

pub(super) fn wait(p: u64) -> Mode {
    Mode::Wait(Epoch(p))
}

pub(super) fn running(start: u64, cur: u64) -> ShardReport {
    ShardReport::Running { shard: S, start: Epoch(start), cur: Epoch(cur) }
}

pub(super) fn owned(epoch: u64, can_start: bool) -> ShardReport {
    ShardReport::Owned { shard: S, epoch: Epoch(epoch), can_start }
}

pub(super) fn ack(p: u64) -> ShardReport {
    ShardReport::StreamAck { stream: R, shard: S, p: Epoch(p) }
}

pub(super) fn forwarded(aim: u64, after: &[NodeId], item: Item) -> HandoffItem {
    HandoffItem::Forwarded(Forwarded { aim: Epoch(aim), after: after.to_vec(), stream: R, item })
}

pub(super) fn empty_transfer(epoch: u64, base: u64, last: bool) -> HandoffItem {
    HandoffItem::Transfer(TransferChunk { epoch: Epoch(epoch), base: Epoch(base), last, bytes: Arc::default() })
}
