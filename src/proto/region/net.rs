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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const A: NodeId = NodeId::from_raw(1);
    const B: NodeId = NodeId::from_raw(2);
    const C: NodeId = NodeId::from_raw(3);

    struct Sender {
        net: Net,
        gone: Vec<NodeId>,
        now: Time,
    }

    impl Sender {
        fn at_a() -> Self {
            let mut sender = Self { net: Net::default(), gone: vec![], now: Time::from_nanos(1) };
            assert_eq!(sender.route(1, A), []);
            sender
        }

        fn step(&mut self, f: impl FnOnce(&mut Net, &mut Step<'_>)) -> Vec<(NodeId, Item)> {
            let mut out = vec![];
            let gone = self.gone.clone();
            let deadline = self.now + Duration::from_secs(5);
            f(&mut self.net, &mut Step { now: self.now, deadline, is_removed: &|n| gone.contains(&n), out: &mut out });
            self.net.check();
            out
        }

        fn route(&mut self, epoch: u64, home: NodeId) -> Vec<(NodeId, Item)> {
            self.net.learn(Epoch(epoch), home);
            self.step(|net, step| _ = net.follow(step))
        }

        fn ack(&mut self, p: u64) -> Vec<(NodeId, Item)> {
            self.step(|net, step| net.stream_ack(Epoch(p), step))
        }

        fn repeat(&mut self) -> Vec<(NodeId, Item)> {
            self.step(|net, step| net.repeat(step))
        }

        fn removed(&mut self, node: NodeId) -> Vec<(NodeId, Item)> {
            self.gone.push(node);
            self.step(|net, step| {
                net.repeat(step);
                net.follow(step);
            })
        }

        fn send(&mut self) -> (Option<NodeId>, u64, Mode) {
            let (tag, mode) = self.net.stamp();
            (self.net.target(), tag.get(), mode)
        }
    }

    fn fence(p: u64) -> Item {
        Item::Fence { p: Epoch(p) }
    }

    fn over(p: u64, tag: u64) -> Item {
        Item::Over { p: Epoch(p), tag: Epoch(tag) }
    }

    fn settle(tag: u64) -> Item {
        Item::Settle { tag: Epoch(tag) }
    }

    #[test]
    fn a_clean_stream_changes_its_tag_without_a_fence() {
        let mut s = Sender::at_a();
        assert_eq!(s.route(2, B), []);
        assert_eq!(s.send(), (Some(B), 2, Mode::Settled));
        assert_eq!(s.route(1, A), [], "an older record is no news");
        assert_eq!(s.net.tag(), Epoch(2));
    }

    #[test]
    fn a_used_path_is_closed_behind_its_last_message() {
        let mut s = Sender::at_a();
        s.send();
        assert_eq!(s.route(2, B), [(A, fence(1))]);
        assert_eq!(s.send(), (Some(B), 2, Mode::Wait(Epoch(1))), "every unsettled message says so (CE-1)");
        assert_eq!(s.ack(1), [(B, settle(2))]);
        assert_eq!(s.send(), (Some(B), 2, Mode::Settled));
        assert_eq!(s.ack(1), [], "a repeated acknowledgement changes nothing");
    }

    #[test]
    fn one_fence_is_outstanding_then_the_stream_stays() {
        let mut s = Sender::at_a();
        s.send();
        s.route(2, B);
        s.send();
        assert_eq!(s.route(3, C), [], "stays on the old tag (CE-4)");
        assert_eq!(s.send(), (Some(B), 2, Mode::Wait(Epoch(1))));
        assert_eq!(s.ack(1), [(B, settle(2)), (B, fence(2))]);
        assert_eq!(s.send(), (Some(C), 3, Mode::Wait(Epoch(2))));
    }

    #[test]
    fn an_unused_tag_is_skipped_while_a_fence_is_pending() {
        let mut s = Sender::at_a();
        s.send();
        s.route(2, B);
        assert_eq!(s.route(3, C), []);
        assert_eq!(s.send(), (Some(C), 3, Mode::Wait(Epoch(1))));
    }

    #[test]
    fn a_fence_is_repeated_at_its_entry_until_acknowledged() {
        let mut s = Sender::at_a();
        s.send();
        s.route(2, B);
        assert_eq!(s.repeat(), [(A, fence(1))], "CE-6");
        assert_eq!(s.removed(C), [(A, fence(1))], "a removal may have taken it along");
        s.ack(1);
        assert_eq!(s.repeat(), []);
    }

    #[test]
    fn the_removal_of_the_entry_declares_the_path_over() {
        let mut s = Sender::at_a();
        s.send();
        s.route(2, B);
        assert_eq!(s.removed(A), [(B, over(1, 2))], "CE-7");
        assert_eq!(s.send(), (Some(B), 2, Mode::Over(Epoch(1))), "in every message until acknowledged (CE-20)");
        assert_eq!(s.repeat(), [(B, over(1, 2))]);
        assert_eq!(s.ack(1), [], "who ever used Over sends no Settle (CE-21)");
        assert_eq!(s.send(), (Some(B), 2, Mode::Settled));
        s.route(3, C);
        assert_eq!(s.ack(2), [], "not after a later, regular fence either (CE-21)");
    }

    #[test]
    fn the_deadline_declares_the_path_over() {
        let mut s = Sender::at_a();
        s.send();
        s.route(2, B);
        s.now = s.now + Duration::from_secs(5);
        assert_eq!(s.repeat(), [(B, over(1, 2))]);
        assert!(s.net.entry_of_pending().is_none());
    }

    #[test]
    fn a_removed_target_is_followed_by_over() {
        let mut s = Sender::at_a();
        s.send();
        assert_eq!(s.removed(A), []);
        assert_eq!(s.route(2, B), [(B, over(1, 2))]);
        assert_eq!(s.send().2, Mode::Over(Epoch(1)));
        assert_eq!(s.route(3, C), [], "something over: stays");
        assert_eq!(s.ack(1), [(B, fence(2))]);
    }

    #[test]
    fn an_abandoned_path_beside_a_pending_fence_is_declared_after_it() {
        let mut s = Sender::at_a();
        s.send();
        s.route(2, B);
        s.send();
        s.removed(B);
        assert_eq!(s.route(3, A), [], "the fence is still pending");
        assert_eq!(s.send(), (Some(A), 3, Mode::Wait(Epoch(1))));
        assert_eq!(s.ack(1), [(A, over(2, 3))], "CE-24");
        assert_eq!(s.send(), (Some(A), 3, Mode::Over(Epoch(2))));
        assert_eq!(s.ack(2), []);
        assert!(s.net.is_settled());
    }

    #[test]
    fn over_goes_to_the_newest_home_if_its_own_was_unused() {
        let mut s = Sender::at_a();
        s.send();
        s.removed(A);
        s.route(2, B);
        assert_eq!(s.removed(B), [], "nobody to tell");
        assert_eq!(s.route(3, C), [(C, over(1, 3))]);
    }
}
