//! Marks behind what entities of shards that have left had sent from here, and what came of them: see [`Senders`](super::senders::Senders).
//!
//! Each step is a sign that is answered, and sent again if it is not: one that came twice changes nothing.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use super::{
    node::Node,
    parcel::Answered,
    signs::{self, MARK, Way, says_nothing},
    slot::Waiter,
    slot_table::UNTIMED,
};
use crate::{Epoch, ShardKey, Time, proto::handoff::ReplyBody};

/// Signs that are sent at once, at most.
const AT_ONCE: usize = 256;
/// What found no room is sent again so long after that.
const AGAIN_AFTER: Duration = Duration::from_millis(1);
/// What was not answered is sent again so long after that.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// Shards that are told of at once, at most.
const TOLD: usize = 512;

/// A shard that has left, and the epoch under which it ran here.
type Stay = (ShardKey, Epoch);

/// A sign to be sent.
enum Sign {
    /// To a shard that was sent to.
    Mark(ShardKey),
    /// To the new home: marks have come to these.
    Tell(Vec<ShardKey>),
}

/// A sign that is not answered yet.
struct Step {
    stay: Stay,
    sign: Sign,
    /// Nobody waits for it any more then.
    until: Time,
}

/// What one worker has under way.
#[derive(Default)]
pub struct Settling {
    unsent: VecDeque<Step>,
    /// When to try these.
    again_at: Time,
    /// By the number of the ask, with the moment when to ask again.
    open: BTreeMap<u64, (Step, Time)>,
    /// When to look for those.
    retry_at: Time,
    /// Where marks have come to, and nobody has been told.
    come: BTreeMap<Stay, (Time, Vec<ShardKey>)>,
    /// There is, or was when this was last asked for.
    under_way: bool,
}

impl Settling {
    fn is_idle(&self) -> bool {
        self.unsent.is_empty() && self.open.is_empty() && self.come.is_empty()
    }

    /// A shard has left whose entities had sent to those; its new home waits until then. True: until now there was nothing under way.
    pub fn begin(&mut self, stay: Stay, targets: Vec<ShardKey>, until: Time) -> bool {
        if targets.is_empty() {
            return false;
        }
        self.again_at = Time::ZERO;
        self.unsent.extend(targets.into_iter().map(|target| Step { stay, sign: Sign::Mark(target), until }));
        !std::mem::replace(&mut self.under_way, true)
    }

    /// Whether there may be something under way.
    #[inline]
    pub fn is_under_way(&self) -> bool {
        self.under_way
    }

    /// True once, when nothing is under way any more.
    pub fn ends(&mut self) -> bool {
        self.under_way && self.is_idle() && std::mem::take(&mut self.under_way)
    }

    /// What that answer means, if it is one to a sign of these.
    pub fn answered(&mut self, now: Time, correlation: u64, answered: &Answered) {
        let Some((step, _)) = self.open.remove(&correlation) else { return };
        match answered {
            // Where it went first is not where it may have been passed on to.
            Answered::Wire(ReplyBody::OwnerLost) => self.later(now, step),
            Answered::Wire(ReplyBody::Dropped(reason)) if says_nothing(*reason) => self.later(now, step),
            // Whatever else it is: what was sent there has come, or comes to nothing as the mark did.
            _ => self.done(step),
        }
    }

    fn done(&mut self, step: Step) {
        if let Sign::Mark(target) = step.sign {
            let come = self.come.entry(step.stay).or_insert_with(|| (step.until, vec![]));
            come.1.push(target);
        }
    }

    fn later(&mut self, now: Time, step: Step) {
        self.again_at = now + AGAIN_AFTER;
        self.unsent.push_back(step);
    }

    /// When [`send`](Self::send) has something to do.
    pub fn due(&self) -> Option<Time> {
        let unsent = (!self.unsent.is_empty()).then_some(self.again_at);
        unsent.into_iter().chain((!self.open.is_empty()).then_some(self.retry_at)).min()
    }

    /// Sends what is to be sent. False: there was nothing.
    pub fn send(&mut self, node: &Arc<Node>, worker: u16, now: Time) -> bool {
        for (stay, (until, targets)) in std::mem::take(&mut self.come) {
            self.again_at = Time::ZERO;
            let tell = |targets: &[ShardKey]| Step { stay, sign: Sign::Tell(targets.to_vec()), until };
            self.unsent.extend(targets.chunks(TOLD).map(tell));
        }
        if self.due().is_none_or(|due| due > now) {
            return false;
        }
        self.retry(node, now);
        for _ in 0..self.unsent.len().min(AT_ONCE) {
            let Some(step) = self.unsent.pop_front() else { break };
            if step.until <= now {
                continue;
            }
            let Some(correlation) = node.slots.open(Waiter::Entity(worker), UNTIMED) else {
                self.later(now, step);
                break;
            };
            let (shard, epoch) = step.stay;
            let way = match &step.sign {
                Sign::Mark(target) => signs::to_shard(node, *target, MARK, correlation),
                Sign::Tell(targets) => signs::to_shard(node, shard, &signs::settled(epoch, targets), correlation),
            };
            if !matches!(way, Way::Sent) {
                drop(node.slots.take(correlation));
            }
            match way {
                Way::Sent => {
                    let due = now + RETRY_AFTER;
                    self.retry_at = if self.open.is_empty() { due } else { self.retry_at.min(due) };
                    self.open.insert(correlation, (step, due));
                }
                Way::Later => self.later(now, step),
                // To nobody that this node knows: nothing of it is on its way.
                Way::Never => self.done(step),
            }
        }
        true
    }

    /// What has had no answer for too long is to be sent again.
    fn retry(&mut self, node: &Arc<Node>, now: Time) {
        if self.open.is_empty() || self.retry_at > now {
            return;
        }
        for (correlation, (step, _)) in self.open.extract_if(.., |_, (_, due)| *due <= now) {
            drop(node.slots.take(correlation));
            self.unsent.push_back(step);
        }
        self.retry_at = self.open.values().map(|(_, due)| *due).min().unwrap_or(now);
    }
}
