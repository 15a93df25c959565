//! The sender of one stream (moves.md section 7): which home, under which tag, and how the path before is closed.

use crate::{
    Epoch, NodeId, Time,
    proto::handoff::{Item, Mode},
};

/// An unacknowledged fence.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct Pending {
    /// Tag and aim of the closed path.
    pub p: Epoch,
    /// Where that path begins.
    pub entry: NodeId,
    /// When it is given up.
    pub deadline: Time,
}

/// State of the stream (this node, shard).
#[derive(Debug, Default)]
pub(crate) struct Net {
    /// Newest record heard of.
    known: Option<(Epoch, NodeId)>,
    /// The record in use.
    route: Option<(Epoch, NodeId)>,
    /// Something was sent under the present tag.
    dirty: bool,
    pending: Option<Pending>,
    over: Option<Epoch>,
    /// A stream that ever used `Over` sends no `Settle` (CE-21).
    ever_over: bool,
}

/// What a step of the stream needs to know.
pub(crate) struct Step<'a> {
    pub now: Time,
    /// When a fence sent now is given up.
    pub deadline: Time,
    pub is_removed: &'a dyn Fn(NodeId) -> bool,
    /// What to send where, in order.
    pub out: &'a mut Vec<(NodeId, Item)>,
}

impl Net {
    /// Takes a record in; `false` if it is no news. `follow` acts on it.
    pub fn learn(&mut self, epoch: Epoch, home: NodeId) -> bool {
        let news = self.known.is_none_or(|(known, _)| epoch > known);
        if news {
            self.known = Some((epoch, home));
        }
        news
    }

    pub fn known(&self) -> Option<(Epoch, NodeId)> {
        self.known
    }

    pub fn tag(&self) -> Epoch {
        self.route.map_or(Epoch::ZERO, |(tag, _)| tag)
    }

    pub fn target(&self) -> Option<NodeId> {
        self.route.map(|(_, node)| node)
    }

    /// No fence and no abandoned path is unacknowledged.
    pub fn is_settled(&self) -> bool {
        self.pending.is_none() && self.over.is_none()
    }

    pub fn entry_of_pending(&self) -> Option<NodeId> {
        self.pending.map(|p| p.entry)
    }

    pub fn fence_deadline(&self) -> Option<Time> {
        self.pending.map(|p| p.deadline)
    }

    fn mode(&self) -> Mode {
        match (self.pending, self.over) {
            (Some(pending), _) => Mode::Wait(pending.p),
            (None, Some(p)) => Mode::Over(p),
            (None, None) => Mode::Settled,
        }
    }

    /// Tag and mode for a message that is sent now; the caller has checked that the target can be sent to.
    pub fn stamp(&mut self) -> (Epoch, Mode) {
        self.dirty = true;
        (self.tag(), self.mode())
    }

    /// Rows "newer route k": goes over to the newest known record, if that is allowed now.
    pub fn follow(&mut self, step: &mut Step<'_>) -> bool {
        let Some((k, home)) = self.known.filter(|&(k, _)| k > self.tag()) else { return false };
        if let (true, Some((tag, node))) = (self.dirty, self.route) {
            if (step.is_removed)(node) {
                self.ever_over = true;
                self.over = Some(tag);
            } else if self.is_settled() {
                step.out.push((node, Item::Fence { p: tag }));
                self.pending = Some(Pending { p: tag, entry: node, deadline: step.deadline });
            } else {
                // One fence outstanding: stay on the old tag, whose messages are forwarded (CE-4).
                return false;
            }
        }
        self.route = Some((k, home));
        self.dirty = false;
        self.declare_over(step);
        true
    }

    /// `Over` in the present lane, unless a fence is still pending: then it follows that fence's acknowledgement (CE-24).
    fn declare_over(&self, step: &mut Step<'_>) {
        if let (Some(p), None, Some((tag, node))) = (self.over, self.pending, self.route)
            && !(step.is_removed)(node)
        {
            step.out.push((node, Item::Over { p, tag }));
        }
    }

    /// The home has met the end of the path under `p`.
    pub fn stream_ack(&mut self, p: Epoch, step: &mut Step<'_>) {
        if self.pending.is_some_and(|pending| pending.p == p) {
            self.pending = None;
        } else if self.over == Some(p) && self.pending.is_none() {
            self.over = None;
        } else {
            return;
        }
        if self.over.is_some() {
            self.declare_over(step);
        } else if let (false, Some((tag, node))) = (self.ever_over, self.route)
            && !(step.is_removed)(node)
        {
            step.out.push((node, Item::Settle { tag }));
        }
        self.follow(step);
    }

    /// Repeats what is not acknowledged: after `fence_retry`, on a new session to where it goes, when a removal was learned.
    pub fn repeat(&mut self, step: &mut Step<'_>) {
        match self.pending {
            Some(pending) if pending.deadline <= step.now || (step.is_removed)(pending.entry) => {
                self.over = self.over.max(Some(pending.p));
                self.pending = None;
                self.ever_over = true;
                self.declare_over(step);
                // A stream that had to stay because of the fence still stays: its path is declared over, not acknowledged.
            }
            Some(pending) => step.out.push((pending.entry, Item::Fence { p: pending.p })),
            None => self.declare_over(step),
        }
    }

    /// Asserts what holds between any two steps.
    pub fn check(&self) {
        assert!(self.over.is_none() || self.ever_over, "an abandoned path is remembered");
        assert!(self.pending.is_none_or(|p| p.p < self.tag()), "a fence closes a path before the present one");
        assert!(self.over.is_none_or(|p| p < self.tag()), "an abandoned path lies before the present one");
        assert!(!self.dirty || self.route.is_some(), "nothing is sent without a route");
        assert!(self.known.map(|(e, _)| e) >= self.route.map(|(e, _)| e), "the route in use is known");
    }
}
