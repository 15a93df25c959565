//! Getting to a session: frames that wait for one, name resolution, dialling, back-off.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    net::SocketAddr,
    time::Duration,
};

use mio::Token;

use super::{
    FIRST_CONN, Net, NetEvent, Timer, Unsent,
    buffer::{Rest, count_frames, shorten_asks},
    conn::{Conn, ConnId, Dialled, Phase, cause_of},
    stream::{Progress, Stream},
    udp,
};
use crate::{
    NodeAddr, NodeId, ShardKey, Time,
    proto::{
        link::{LinkDown, LinkEvent, PAUSE_MIN},
        rng::Rng,
        wire::{Context, Frame, Greeting},
    },
};

/// Pause behind a first dial that was reset. A process that ends closes its links before its port, so that whoever is told first and dials at once is let in
/// by the port and reset with it: a moment later it refuses, which says what has become of the process.
const CLOSING: Duration = Duration::from_millis(2);
/// How long the resolver may take before it is asked again.
const RESOLVE_DEADLINE: Duration = Duration::from_secs(30);
/// Frames kept for "whoever answers" at an address where nobody does: their senders repeat them.
const ANYBODY_FRAMES_MAX: u64 = 64;
/// After so many tries in vain they are dropped, and for a while those that follow get one try each.
const ANYBODY_TRIES: u32 = 6;
/// For so long it is remembered that nobody answered.
const QUIET: Duration = Duration::from_secs(60);

/// Frames for one life of a node, encoded, in order.
#[derive(Debug)]
struct Run {
    node: Option<NodeId>,
    bytes: Vec<u8>,
    frames: u64,
    /// A session has ended in the middle of its first large frame.
    torn: bool,
    /// When the first of them came. What is left to the asks of all counts from then.
    since: Time,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum State {
    Idle,
    /// The resolver may take until this moment.
    Resolving(Time),
    Connecting(ConnId),
    /// The next try is at this moment.
    Waiting(Time),
    /// Nobody answered, and nothing waits. Forgotten at this moment.
    Quiet(Time),
}

/// How long an address is left alone.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Again {
    /// Twice as long with each failure in a row, from this pause on.
    From(Duration),
    /// As long as it may be.
    Longest,
}

/// What is wanted of one address.
#[derive(Debug)]
pub(super) struct Dial {
    runs: VecDeque<Run>,
    state: State,
    failures: u32,
    /// Addresses of this try that were not tried yet.
    candidates: VecDeque<SocketAddr>,
    /// The caller wants one try even without frames.
    asked: bool,
    /// Whom it wants then.
    wanted: Option<NodeId>,
    /// Who answered and holds a session that this node has lost: it lets go of it only if the next greeting says whom it is for.
    holder: Option<NodeId>,
    /// Peers reported as blocked while they have no session.
    blocked: BTreeSet<NodeId>,
}

impl Dial {
    fn new() -> Self {
        Self {
            runs: VecDeque::new(),
            state: State::Idle,
            failures: 0,
            candidates: VecDeque::new(),
            asked: false,
            wanted: None,
            holder: None,
            blocked: BTreeSet::new(),
        }
    }

    /// Bytes waiting.
    pub fn bytes(&self) -> usize {
        self.runs.iter().map(|run| run.bytes.len()).sum()
    }

    pub fn is_connecting(&self) -> bool {
        matches!(self.state, State::Connecting(_) | State::Resolving(_))
    }

    /// The one life that everything here is for.
    pub fn expects(&self) -> Option<NodeId> {
        let Some(first) = self.runs.front() else { return self.wanted };
        first.node.filter(|_| self.runs.iter().all(|run| run.node == first.node))
    }

    /// Nothing is under way.
    fn is_at_rest(&self) -> bool {
        matches!(self.state, State::Idle | State::Quiet(_))
    }

    /// One more try was in vain: what has waited for too long does not any longer, and what waits for anybody not after many of them.
    fn give_up(&mut self, now: Time, patience: Duration) -> Vec<Run> {
        let anybody = self.failures >= ANYBODY_TRIES;
        let too_long = |run: &Run| if run.node.is_some() { now.since(run.since) >= patience + collects(patience) } else { anybody };
        let (given_up, kept) = std::mem::take(&mut self.runs).into_iter().partition::<Vec<_>, _>(too_long);
        self.runs = kept.into();
        given_up
    }

    /// Peers that were reported as blocked and have room now.
    fn reopened(&mut self, limit: usize) -> BTreeSet<NodeId> {
        let blocked = std::mem::take(&mut self.blocked);
        let (roomy, full) = blocked.into_iter().partition(|peer| self.bytes_for(Some(*peer)) <= limit);
        self.blocked = full;
        roomy
    }

    /// Nothing is wanted here any longer.
    fn is_over(&self) -> bool {
        self.runs.is_empty() && !self.asked
    }

    fn bytes_for(&self, node: Option<NodeId>) -> usize {
        self.runs.iter().filter(|run| run.node == node).map(|run| run.bytes.len()).sum()
    }

    fn run_for(&mut self, node: Option<NodeId>, now: Time, patience: Duration) -> &mut Run {
        if self.runs.back().is_none_or(|run| run.node != node || now.since(run.since) >= collects(patience)) {
            self.runs.push_back(Run { node, bytes: vec![], frames: 0, torn: false, since: now });
        }
        self.runs.back_mut().expect("a run was pushed just now if there was none")
    }

    /// Takes the runs that `peer` may have.
    fn take_for(&mut self, peer: NodeId) -> Vec<Run> {
        let (mine, others) = std::mem::take(&mut self.runs).into_iter().partition::<Vec<_>, _>(|run| run.node.is_none_or(|n| n == peer));
        self.runs = others.into();
        mine
    }
}

/// For how long frames join a run: they are given up together, once the last that may have joined has waited for the whole time.
fn collects(patience: Duration) -> Duration {
    patience / 8
}

/// How long to wait after so many failures in a row: doubling, with jitter so that nodes that lost the same peer do not return in step. A peer that
/// refuses for good is asked at the `longest` pace, and only while frames wait.
fn backoff(first: Duration, failures: u32, longest: Duration, rng: &mut Rng) -> Duration {
    let base = first.saturating_mul(1 << failures.saturating_sub(1).min(16)).min(longest);
    base.mul_f64(0.75 + rng.unit() / 2.0)
}

impl Net {
    /// Makes sure that a session with whoever answers at `addr` is up or tried once, without sending anything.
    pub fn connect(&mut self, now: Time, addr: &NodeAddr, node: Option<NodeId>) {
        if self.session_with(addr, node).is_some() {
            return;
        }
        let dial = self.dials.entry(addr.clone()).or_insert_with(Dial::new);
        (dial.asked, dial.wanted) = (true, node);
        if dial.is_at_rest() {
            self.start_dial(addr, now);
        }
    }

    /// The resolver's answer to [`NetEvent::Resolve`].
    pub fn resolved(&mut self, now: Time, addr: &NodeAddr, result: Result<Vec<SocketAddr>, String>) {
        if let Ok(found) = &result {
            self.remember_name(addr, found);
        }
        let Some(dial) = self.dials.get_mut(addr).filter(|dial| matches!(dial.state, State::Resolving(_))) else { return };
        if dial.is_over() {
            self.dials.remove(addr);
            return;
        }
        match result {
            Ok(found) if !found.is_empty() => {
                dial.candidates = found.into();
                self.next_candidate(addr, now);
            }
            Ok(_) => self.dial_failed(addr, LinkDown::Unresolved("the name has no address".to_owned()), now),
            Err(error) => self.dial_failed(addr, LinkDown::Unresolved(error), now),
        }
    }

    /// Keeps a frame until a session is up, and dials.
    pub(super) fn enqueue(&mut self, now: Time, to: &NodeAddr, node: Option<NodeId>, frame: &Frame) -> Result<(), Unsent> {
        let dial = self.dials.entry(to.clone()).or_insert_with(Dial::new);
        let waiting = dial.bytes_for(node);
        let limits = self.limits;
        if node.is_none() {
            let waiting = dial.runs.iter().filter(|run| run.node.is_none()).map(|run| run.frames).sum();
            if waiting >= ANYBODY_FRAMES_MAX {
                return Err(Unsent::Unanswered { waiting, max: ANYBODY_FRAMES_MAX });
            }
        }
        super::session::check_room(frame, waiting, limits.link_bytes)?;
        let run = dial.run_for(node, now, self.patience);
        let cx = Context { sender: self.greeter.node, now: run.since };
        if let Err(unsent) = super::session::encode(frame, cx, limits.frame_bytes, &mut run.bytes) {
            dial.runs.retain(|run| run.frames > 0);
            // Nothing would ever end a dial that was made for this frame alone.
            if dial.state == State::Idle {
                self.dials.remove(to);
            }
            return Err(unsent);
        }
        run.frames += 1;
        if let Some(peer) = node
            && dial.bytes_for(node) > limits.link_bytes
            && dial.blocked.insert(peer)
        {
            self.events.push_back(NetEvent::Link(LinkEvent::Blocked { peer, shard: None }));
        }
        if dial.is_at_rest() {
            self.start_dial(to, now);
        }
        Ok(())
    }

    /// Keeps what an ended session had not begun to write, in front of what came later. `at_once`: the peer is dialled without a pause.
    pub(super) fn carry_over(&mut self, now: Time, addr: &NodeAddr, peer: NodeId, rest: Rest, blocked: bool, at_once: bool) {
        let limit = self.limits.link_bytes;
        let Rest { bytes, frames, torn, .. } = rest;
        let still_blocked = bytes.len() > limit;
        match (blocked, still_blocked) {
            (true, false) => self.unblock(peer, [None]),
            (false, true) => self.link(LinkEvent::Blocked { peer, shard: None }),
            _ => {}
        }
        if bytes.is_empty() {
            return;
        }
        // Not from here: another connection with the peer may be coming up in the same turn.
        let at = if at_once { now } else { now + backoff(PAUSE_MIN, 1, self.longest_pause, &mut self.rng) };
        let dial = self.dials.entry(addr.clone()).or_insert_with(Dial::new);
        dial.runs.push_front(Run { node: Some(peer), bytes, frames, torn, since: now });
        if still_blocked {
            dial.blocked.insert(peer);
        }
        if dial.is_at_rest() {
            dial.state = State::Waiting(at);
            self.arm(at, Timer::Dial(addr.clone()));
        }
    }

    fn start_dial(&mut self, addr: &NodeAddr, now: Time) {
        let Some(dial) = self.dials.get_mut(addr) else { return };
        dial.candidates.clear();
        match udp::literal(addr) {
            Some(socket) => {
                dial.candidates.push_back(socket);
                self.next_candidate(addr, now);
            }
            None => {
                let until = now + RESOLVE_DEADLINE;
                dial.state = State::Resolving(until);
                self.events.push_back(NetEvent::Resolve { addr: addr.clone() });
                self.arm(until, Timer::Dial(addr.clone()));
            }
        }
    }

    fn next_candidate(&mut self, addr: &NodeAddr, now: Time) {
        let Some(dial) = self.dials.get_mut(addr) else { return };
        let Some(socket) = dial.candidates.pop_front() else { return };
        let expects = dial.expects().or(dial.holder);
        self.counters.dials += 1;
        let mut stream = match Stream::dial(socket) {
            Ok(stream) => stream,
            Err(e) => return self.dial_failed(addr, cause_of(&e), now),
        };
        let session = expects.map_or(self.dialled, |peer| self.last_number(peer)) + 1;
        self.dialled += 1;
        if let Some(ended) = expects.and_then(|peer| self.ended.get_mut(&peer)) {
            ended.last = session;
        }
        let dialled = Dialled { addr: addr.clone(), expects, session };
        let deadline = now + self.limits.hello_deadline;
        let serial = self.next_serial();
        let index = self.conns.next_index();
        if let Err(e) = stream.register(self.poll.registry(), self.watchers.as_ref(), Token(FIRST_CONN + index)) {
            return self.dial_failed(addr, cause_of(&e), now);
        }
        let id = self.conns.insert(Conn::new(stream, socket.ip(), Some(dialled), serial, deadline));
        if let Some(dial) = self.dials.get_mut(addr) {
            dial.state = State::Connecting(id);
        }
        self.arm(deadline, Timer::Conn(id));
    }

    /// A dialled socket became writable: says `Hello` if it is connected.
    pub(super) fn dial_progress(&mut self, id: ConnId) {
        let Some(conn) = self.conns.get_mut(id) else { return };
        match conn.stream.progress() {
            Progress::Pending => {}
            Progress::Failed(e) => self.end(id, cause_of(&e)),
            Progress::Done => {
                conn.stream.prepare();
                conn.phase = Phase::AwaitWelcome;
                let Some(dialled) = conn.dialled.clone() else { return };
                let previous = dialled.expects.or_else(|| self.last_life_at(&dialled.addr)).and_then(|peer| self.previous(peer));
                let hello = self.greeter.hello(dialled.session, dialled.expects, previous);
                self.say(id, &Greeting::Hello(hello));
            }
        }
    }

    /// The connection of a dial is gone before a session was up.
    pub(super) fn dial_failed(&mut self, addr: &NodeAddr, cause: LinkDown, now: Time) {
        let Some(dial) = self.dials.get_mut(addr) else { return };
        if !dial.candidates.is_empty() {
            return self.next_candidate(addr, now);
        }
        self.counters.dials_failed += 1;
        let peer = dial.expects();
        self.retry_later(addr, now, Again::From(if cause == LinkDown::Reset { CLOSING } else { PAUSE_MIN }));
        let Some(dial) = self.dials.get_mut(addr) else { return };
        let given_up = dial.give_up(now, self.patience);
        let reopened = if given_up.is_empty() { BTreeSet::new() } else { dial.reopened(self.limits.link_bytes / 2) };
        self.tell_down(addr, &cause, Some(peer), given_up);
        reopened.into_iter().for_each(|peer| self.unblock(peer, [None]));
    }

    /// There is no session with `wanted`, nor with those whom these frames were for, which are lost.
    fn tell_down(&mut self, addr: &NodeAddr, cause: &LinkDown, wanted: Option<Option<NodeId>>, dropped: Vec<Run>) {
        let mut lost: BTreeMap<Option<NodeId>, u64> = wanted.into_iter().map(|peer| (peer, 0)).collect();
        for run in dropped {
            *lost.entry(run.node).or_default() += run.frames;
        }
        for (peer, lost) in lost {
            self.counters.frames_lost += lost;
            self.link(LinkEvent::Down { peer, addr: addr.clone(), cause: cause.clone(), lost });
        }
    }

    /// Another connection with the same peer is used: waits for it to come up, and tries again if it does not.
    pub(super) fn dial_duplicate(&mut self, addr: &NodeAddr, now: Time) {
        self.retry_later(addr, now, Again::From(PAUSE_MIN));
    }

    /// `answers` holds a session that this node has lost: it is dialled again as the one that is wanted. At once, unless it was so already.
    pub(super) fn dial_holder(&mut self, dialled: &Dialled, answers: NodeId, now: Time) {
        let Some(dial) = self.dials.get_mut(&dialled.addr) else { return };
        dial.holder = Some(answers);
        match dialled.expects {
            None => self.start_dial(&dialled.addr, now),
            Some(_) => self.retry_later(&dialled.addr, now, Again::From(PAUSE_MIN)),
        }
    }

    /// This node answers itself. Others may be at the other addresses of that name.
    pub(super) fn dial_itself(&mut self, addr: &NodeAddr, now: Time) {
        match self.dials.get(addr).is_some_and(|dial| !dial.candidates.is_empty()) {
            true => self.next_candidate(addr, now),
            false => self.dial_rejected(addr, LinkDown::Itself, now),
        }
    }

    /// The peer refuses for good: nothing waits for it any longer.
    pub(super) fn dial_rejected(&mut self, addr: &NodeAddr, cause: LinkDown, now: Time) {
        let Some(dial) = self.dials.get_mut(addr) else { return };
        let peer = dial.expects();
        let dropped = std::mem::take(&mut dial.runs).into();
        let blocked = std::mem::take(&mut dial.blocked);
        self.counters.dials_failed += 1;
        self.retry_later(addr, now, Again::Longest);
        self.tell_down(addr, &cause, Some(peer), dropped);
        blocked.into_iter().for_each(|peer| self.unblock(peer, [None]));
    }

    /// `answers` answers at `addr`: drops what was meant for its other lives. Of a node with another address this tells nothing but that the name
    /// leads elsewhere: it may be at the next of its addresses, or where the name leads tomorrow.
    pub(super) fn dial_other(&mut self, addr: &NodeAddr, asked: Option<NodeId>, answers: NodeId, now: Time) {
        let replaced = |peer: NodeId| peer != answers && peer.addr_hash() == answers.addr_hash();
        if asked.is_some_and(|asked| !replaced(asked)) {
            return self.dial_failed(addr, LinkDown::Elsewhere(answers), now);
        }
        let Some(dial) = self.dials.get_mut(addr) else { return };
        (dial.asked, dial.wanted, dial.holder) = (false, None, None);
        let (others, kept) = std::mem::take(&mut dial.runs).into_iter().partition::<VecDeque<_>, _>(|run| run.node.is_some_and(replaced));
        dial.runs = kept;
        let blocked: BTreeSet<NodeId> = dial.blocked.iter().copied().filter(|peer| replaced(*peer)).collect();
        dial.blocked.retain(|peer| !replaced(*peer));
        self.tell_down(addr, &LinkDown::OtherIncarnation(answers), asked.map(Some), others.into());
        blocked.into_iter().for_each(|peer| self.unblock(peer, [None]));
        self.retry_later(addr, now, Again::From(PAUSE_MIN));
    }

    /// There is room for a peer again: for messages of these shards, or of all.
    pub(super) fn unblock(&mut self, peer: NodeId, shards: impl IntoIterator<Item = Option<ShardKey>>) {
        shards.into_iter().for_each(|shard| self.link(LinkEvent::Writable { peer, shard }));
    }

    fn retry_later(&mut self, addr: &NodeAddr, now: Time, again: Again) {
        let Some(dial) = self.dials.get_mut(addr) else { return };
        let (first, failures) = match again {
            Again::From(first) => (first, dial.failures.saturating_add(1)),
            Again::Longest => (PAUSE_MIN, u32::MAX),
        };
        dial.failures = failures;
        let at = now + backoff(first, failures, self.longest_pause, &mut self.rng);
        dial.state = State::Waiting(at);
        dial.candidates.clear();
        (dial.asked, dial.wanted) = (false, None);
        self.arm(at, Timer::Dial(addr.clone()));
    }

    pub(super) fn dial_due(&mut self, addr: &NodeAddr, now: Time) {
        let Some(dial) = self.dials.get_mut(addr) else { return };
        match dial.state {
            State::Waiting(at) if at <= now && !dial.is_over() => self.start_dial(addr, now),
            State::Waiting(at) if at <= now && dial.failures >= ANYBODY_TRIES => {
                let until = now + QUIET;
                dial.state = State::Quiet(until);
                self.arm(until, Timer::Dial(addr.clone()));
            }
            State::Waiting(at) | State::Quiet(at) if at <= now => drop(self.dials.remove(addr)),
            State::Resolving(until) if until <= now => {
                self.dial_failed(addr, LinkDown::Unresolved("the resolver did not answer in time".to_owned()), now)
            }
            _ => {}
        }
    }

    /// Whether this node has said `Hello` to `peer` at its address and waits for the answer.
    pub(super) fn is_greeting(&self, peer: NodeId, addr: &NodeAddr) -> bool {
        let Some(State::Connecting(id)) = self.dials.get(addr).map(|dial| &dial.state) else { return false };
        let Some(conn) = self.conns.get(*id) else { return false };
        let expects = conn.dialled.as_ref().and_then(|dialled| dialled.expects);
        matches!(conn.phase, Phase::AwaitWelcome) && expects.is_none_or(|node| node == peer)
    }

    /// A session with `peer` is up on `id`: gives it the frames that wait for it at `addr`, and ends the dial if nothing else is wanted there.
    pub(super) fn adopt_waiting(&mut self, id: ConnId, peer: NodeId, addr: &NodeAddr) {
        let Some(dial) = self.dials.get_mut(addr) else { return };
        let mut runs = dial.take_for(peer);
        let blocked = dial.blocked.remove(&peer);
        let pending = match dial.state {
            State::Connecting(other) if other != id => Some(other),
            _ => None,
        };
        (dial.asked, dial.wanted, dial.holder) = (false, None, None);
        let over = dial.is_over();
        let Some(conn) = self.conns.get_mut(id) else { return };
        for run in &mut runs {
            shorten_asks(&mut run.bytes, self.now.since(run.since));
            conn.outbox.append_rest(&run.bytes, run.torn);
        }
        if let Some(session) = conn.session_mut() {
            session.blocked |= blocked;
        }
        if over {
            self.dials.remove(addr);
            // Its dial is no longer there, so that its end is no failure.
            if let Some(pending) = pending {
                self.end(pending, LinkDown::Closed);
            }
        }
        // There may be nothing else that has the caller flush.
        self.write(id);
    }

    /// Throws away what waits for `node`. Frames dropped.
    pub(super) fn drop_waiting(&mut self, node: NodeId) -> u64 {
        let mut lost = 0;
        let mut pending = vec![];
        self.dials.retain(|_, dial| {
            let before = dial.runs.len();
            lost += dial.runs.iter().filter(|run| run.node == Some(node)).map(|run| count_frames(&run.bytes)).sum::<u64>();
            dial.runs.retain(|run| run.node != Some(node));
            dial.blocked.remove(&node);
            let concerned = before != dial.runs.len() || dial.wanted == Some(node);
            if dial.wanted == Some(node) {
                (dial.asked, dial.wanted) = (false, None);
            }
            if concerned
                && dial.is_over()
                && let State::Connecting(id) = dial.state
            {
                pending.push(id);
                return false;
            }
            true
        });
        for id in pending {
            self.end(id, LinkDown::Closed);
        }
        lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::link::PAUSE_MAX;

    #[test]
    fn pauses_double_up_to_a_bound_and_are_spread() {
        let mut rng = Rng::new(1);
        for (failures, base) in [(0, 50), (1, 50), (2, 100), (3, 200), (6, 1600), (7, 2000), (u32::MAX, 2000)] {
            let pauses: BTreeSet<Duration> = (0..20).map(|_| backoff(PAUSE_MIN, failures, PAUSE_MAX, &mut rng)).collect();
            let base = Duration::from_millis(base);
            assert!(pauses.iter().all(|p| *p >= base * 3 / 4 && *p <= base * 5 / 4), "{failures}: {pauses:?}");
            assert!(pauses.len() > 10);
        }
    }
}
