//! What was accepted on a node that leaves gets to where it goes before the node is gone.
//!
//! Once nothing lives here any more, threads can send nothing more either (`Effect::Quiesce`), what they had sent comes through the lanes of this node, and a
//! mark goes behind it to each node that there is a link to: a frame of control goes past nothing. Only then does this node say that it may be removed,
//! as others take nothing from who is removed.

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
        let Some(flush) = &mut self.flush else {
            let until = now + self.config.shutdown.drain_timeout.get();
            self.flush = Some(Flush { until, quiet: false, number: 0, waiting: None });
            self.timers.set(Due::Flush, until);
            self.effects.push_back(Effect::Quiesce);
            return false;
        };
        if now >= flush.until {
            return true;
        }
        if flush.quiet && flush.waiting.is_none() {
            flush.number += 1;
            let linked: BTreeSet<NodeId> = self.peers.linked().collect();
            let mark = ControlFrame::Flush { number: flush.number };
            flush.waiting = Some(linked.clone());
            // Not by way of others, where there is none: it would be behind nothing.
            linked.into_iter().for_each(|node| _ = self.send_frame(node, Frame::Control(mark.clone())));
        }
        self.flush.as_ref().and_then(|flush| flush.waiting.as_ref()).is_some_and(BTreeSet::is_empty)
    }

    /// Something lives here after all, or is under way: what that leads to comes behind the last mark.
    pub(super) fn unflushed(&mut self) {
        if let Some(flush) = &mut self.flush {
            flush.waiting = None;
        }
    }

    /// That node has everything up to the mark.
    pub(super) fn flushed_to(&mut self, node: NodeId, number: u64) {
        let flush = self.flush.as_mut().filter(|flush| flush.number == number);
        if let Some(waiting) = flush.and_then(|flush| flush.waiting.as_mut()) {
            waiting.remove(&node);
        }
    }

    /// No answer of that node is to be expected.
    pub(super) fn flush_lost(&mut self, node: NodeId) {
        if let Some(waiting) = self.flush.as_mut().and_then(|flush| flush.waiting.as_mut()) {
            waiting.remove(&node);
        }
    }

    /// Time is up.
    pub(super) fn flush_expired(&mut self) {
        let Some(flush) = self.flush.as_ref().filter(|_| self.leaving && !self.ended && !self.drained) else { return };
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
