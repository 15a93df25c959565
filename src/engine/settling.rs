//! Marks behind what entities of shards that have left had sent from here, and what came of them: see [`Senders`](super::senders::Senders).

use std::{collections::BTreeMap, sync::Arc};

use super::{
    node::Node,
    parcel::Answered,
    signs::{self, MARK, Repeated},
};
use crate::{Epoch, ShardKey, Time};

/// Shards that are told of at once, at most.
const TOLD: usize = 512;

/// A shard that has left, and the epoch under which it ran here.
type Stay = (ShardKey, Epoch);

enum Sign {
    /// To a shard that was sent to.
    Mark(ShardKey),
    /// To the new home: marks have come to these.
    Tell(Vec<ShardKey>),
}

/// A sign for that shard.
struct Step {
    stay: Stay,
    sign: Sign,
    /// Nobody waits for it any more then.
    until: Time,
}

/// What one worker has under way.
#[derive(Default)]
pub struct Settling {
    steps: Repeated<Step>,
    /// Where marks have come to, and nobody has been told.
    come: BTreeMap<Stay, (Time, Vec<ShardKey>)>,
    /// There is something, or was when this was last asked for.
    under_way: bool,
}

impl Settling {
    /// A shard has left whose entities had sent to those; its new home waits until then. True: until now there was nothing under way.
    pub fn begin(&mut self, stay: Stay, targets: Vec<ShardKey>, until: Time) -> bool {
        if targets.is_empty() {
            return false;
        }
        targets.into_iter().for_each(|target| self.steps.push(Step { stay, sign: Sign::Mark(target), until }));
        !std::mem::replace(&mut self.under_way, true)
    }

    /// Whether there may be something under way.
    #[inline]
    pub fn is_under_way(&self) -> bool {
        self.under_way
    }

    /// True once, when nothing is under way any more.
    pub fn ends(&mut self) -> bool {
        self.under_way && self.steps.is_empty() && self.come.is_empty() && std::mem::take(&mut self.under_way)
    }

    /// What that answer means, if it is one to a sign of these: what was sent there has come, or comes to nothing as the mark did.
    pub fn answered(&mut self, now: Time, correlation: u64, answered: &Answered) {
        if let Some((step, _)) = self.steps.answered(now, correlation, answered) {
            self.done(step);
        }
    }

    fn done(&mut self, step: Step) {
        if let Sign::Mark(target) = step.sign {
            self.come.entry(step.stay).or_insert_with(|| (step.until, vec![])).1.push(target);
        }
    }

    /// A link is new: what went by the one before may be lost.
    pub fn repeat(&mut self, node: &Node) {
        self.steps.repeat(node);
    }

    /// When [`send`](Self::send) has something to do.
    pub fn due(&self) -> Option<Time> {
        self.steps.due()
    }

    /// Sends what is to be sent. False: there was nothing.
    pub fn send(&mut self, node: &Arc<Node>, worker: u16, now: Time) -> bool {
        for (stay, (until, targets)) in std::mem::take(&mut self.come) {
            let tell = |targets: &[ShardKey]| Step { stay, sign: Sign::Tell(targets.to_vec()), until };
            targets.chunks(TOLD).map(tell).for_each(|step| self.steps.push(step));
        }
        if self.due().is_none_or(|due| due > now) {
            return false;
        }
        let never = self.steps.send(node, worker, now, |step, correlation| {
            let (shard, epoch) = step.stay;
            (step.until > now).then(|| match &step.sign {
                Sign::Mark(target) => signs::to_shard(node, *target, MARK, correlation),
                Sign::Tell(targets) => signs::to_shard(node, shard, &signs::settled(epoch, targets), correlation),
            })
        });
        // To nobody that this node knows: nothing of it is on its way.
        never.into_iter().for_each(|step| self.done(step));
        true
    }
}
