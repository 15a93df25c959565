//! What was accepted on a node that leaves gets to where it goes before the node is gone.
//!
//! Once nothing lives here any more, threads can send nothing more either (`Effect::Quiesce`), what they had sent comes through the lanes of this node, and a
//! mark goes behind it to each node that something may be on its way to: a frame of control goes past nothing. Only then does this node say that it may be
//! removed, as others take nothing from who is removed. What has come to a node and waits there for its shard is that node's to answer for.

use std::collections::BTreeSet;

use crate::{
    NodeId, Time,
    proto::{membership::Event, sharding::ControlFrame, wire::Frame},
};

use super::{Due, Effect, Members, NodeCore};

/// How far that is.
#[derive(Debug)]
pub(super) struct Flush {
    /// Nobody is waited for any longer then.
    until: Time,
    /// Nothing else is.
    ready: bool,
    /// What threads had sent has come through the lanes.
    quiet: bool,
    /// Number of the newest mark, and who has not answered it; `None` before it is sent.
    number: u64,
    waiting: Option<BTreeSet<NodeId>>,
}

impl<M: Members> NodeCore<M> {
    /// All that threads of this node had sent before they could send no more has come through its lanes: answers `Effect::Quiesce`.
    pub fn handle_quiet(&mut self, now: Time) {
        self.now = now;
        if let Some(flush) = &mut self.flush {
            flush.quiet = true;
        }
        self.finish(now);
    }

    /// Goes on with it. True if nothing is waited for, or no longer.
    pub(super) fn flushed(&mut self, now: Time) -> bool {
        let limits = &self.config.shutdown;
        // There must be time left to leave in order.
        let limit = limits.drain_timeout.get().min(limits.leave_timeout.get() / 2);
        let Some(flush) = &mut self.flush else {
            let until = now + limit;
            self.flush = Some(Flush { until, ready: true, quiet: false, number: 0, waiting: None });
            self.effects.push_back(Effect::Quiesce);
            if !limit.is_zero() {
                self.timers.set(Due::Flush, until);
            }
            return limit.is_zero();
        };
        flush.ready = true;
        if now >= flush.until {
            return true;
        }
        if flush.quiet && flush.waiting.is_none() {
            flush.number += 1;
            let (peers, number) = (&self.peers, flush.number);
            let to: BTreeSet<NodeId> =
                peers.linked().chain(self.dialled_for.iter().copied()).filter(|node| peers.is_member(*node)).collect();
            flush.waiting = Some(to.clone());
            to.into_iter().for_each(|node| self.mark(node, number));
        }
        self.flush.as_ref().and_then(|flush| flush.waiting.as_ref()).is_some_and(BTreeSet::is_empty)
    }

    /// Not by way of others, where there is no link: it would be behind nothing.
    fn mark(&mut self, node: NodeId, number: u64) {
        self.send_frame(node, Frame::Control(ControlFrame::Flush { number }));
    }

    /// A session to that node is new: the last one may have lost the mark.
    pub(super) fn mark_again(&mut self, node: NodeId) {
        let waits = |flush: &&Flush| flush.waiting.as_ref().is_some_and(|waiting| waiting.contains(&node));
        if let Some(number) = self.flush.as_ref().filter(waits).map(|flush| flush.number) {
            self.mark(node, number);
        }
    }

    /// Something lives here after all, or is under way: what that leads to comes behind the last mark.
    pub(super) fn unflushed(&mut self) {
        if let Some(flush) = &mut self.flush {
            (flush.ready, flush.waiting) = (false, None);
        }
    }

    /// That node has everything up to the mark.
    pub(super) fn flushed_to(&mut self, node: NodeId, number: u64) {
        let flush = self.flush.as_mut().filter(|flush| flush.number == number);
        if let Some(waiting) = flush.and_then(|flush| flush.waiting.as_mut()) {
            waiting.remove(&node);
        }
    }

    /// That node is gone.
    pub(super) fn flush_lost(&mut self, node: NodeId) {
        if let Some(waiting) = self.flush.as_mut().and_then(|flush| flush.waiting.as_mut()) {
            waiting.remove(&node);
        }
    }

    /// Time is up.
    pub(super) fn flush_expired(&mut self) {
        let Some(flush) = self.flush.as_ref().filter(|flush| flush.ready && !self.ended && !self.drained) else { return };
        let after = self.config.shutdown.drain_timeout;
        let text = match &flush.waiting {
            Some(waiting) if waiting.is_empty() => return,
            Some(waiting) => {
                let who: Vec<String> = waiting.iter().take(10).map(ToString::to_string).collect();
                format!(
                    "{} has not confirmed within shutdown.drain_timeout ({after}) what was sent there: some of it may be lost",
                    who.join(", ")
                )
            }
            None => format!("what was sent here has not left within shutdown.drain_timeout ({after}): some of it may be lost"),
        };
        self.effects.push_back(Effect::Event(Event::Warning { code: "W-LEAVE-002", text: text.into() }));
    }
}
