//! Sessions that are up: reading, parsing, sending, ending.

use std::{io, time::Duration};

use super::{
    ENDED_MAX, Ended, Net, NetEvent, Timer, Unsent,
    bulk::{LARGE_BYTES, Misfit},
    conn::{Conn, ConnId, Phase, Session, cause_of},
};
use crate::{
    NodeAddr, NodeId, Time,
    proto::{
        handoff::Item,
        link::{LinkDown, LinkEvent},
        wire::{
            Context, Cut, Decoded, Frame, FrameError, GREETING_BYTES_MAX, LinkFrame, Message, cut, decode, encode as encode_frame,
            encode_message, link_frame_in, message_in,
        },
    },
};

/// Bytes read from one link per turn: what a worker's ring holds, and what stays in the caches.
const LINK_READ_MAX: usize = 64 << 10;
/// Bytes read from all links per turn: about a millisecond of work, so that datagrams do not wait longer for it.
const TURN_READ_MAX: usize = 1 << 20;
/// Read buffer of a link.
const INBOX_BYTES: usize = 64 << 10;
/// Read buffer of a connection that has not greeted.
const GREETING_INBOX_BYTES: usize = 1 << 10;
/// Written before the turn ends if so much waits: it neither piles up here nor leaves the socket idle.
const WRITE_EARLY_BYTES: usize = 256 << 10;
/// Buffers that a link has grown are looked at so often. What the largest use since the last look did not need is given back: often enough
/// that a burst is soon forgotten, seldom enough that bursts which keep coming do not make buffers shrink and grow in turns.
const SETTLE_EVERY: Duration = Duration::from_secs(5);
/// User messages and large replies are refused at this many times `limits.link_bytes`; the core was told at one.
const BLOCKED_FACTOR: usize = 2;
/// Nothing is accepted any longer at this many times `limits.link_bytes`.
const OVERFLOW_FACTOR: usize = 4;

/// Whether a frame may be added to `waiting` bytes.
pub(crate) fn check_room(frame: &Frame, waiting: usize, link_bytes: usize) -> Result<(), Unsent> {
    let may_be_refused = match frame {
        Frame::Item { item: Item::Msg { .. }, .. } | Frame::Cast { .. } => true,
        Frame::Reply { body, .. } => body.size() > LARGE_BYTES,
        _ => false,
    };
    if may_be_refused && waiting > link_bytes.saturating_mul(BLOCKED_FACTOR) {
        return Err(Unsent::Blocked { waiting: waiting as u64, max: link_bytes as u64 });
    }
    let max = link_bytes.saturating_mul(OVERFLOW_FACTOR);
    if waiting > max { Err(Unsent::Overflow { waiting: waiting as u64, max: max as u64 }) } else { Ok(()) }
}

/// Appends a frame to a buffer.
pub(super) fn encode(frame: &Frame, cx: Context, max: usize, out: &mut Vec<u8>) -> Result<(), Unsent> {
    match encode_frame(frame, cx, max, out) {
        Ok(_) => Ok(()),
        Err(FrameError::TooLong { size, max }) => Err(Unsent::TooLarge { size, max }),
        // The codec writes all values of its types; only a length can be in the way.
        Err(_) => Err(Unsent::TooLarge { size: 0, max: max as u64 }),
    }
}

impl Net {
    /// Appends a frame to the link with that node; dials if there is none, and keeps the frame until a session is up. It leaves with the next
    /// [`flush`](Self::flush).
    pub fn send_frame(&mut self, now: Time, to: &NodeAddr, node: Option<NodeId>, frame: &Frame) -> Result<(), Unsent> {
        let result = match self.session_with(to, node) {
            Some(id) => self.append(now, id, frame),
            None => self.enqueue(now, to, node, frame),
        };
        match result {
            Ok(()) => self.counters.frames_out += 1,
            Err(_) => self.counters.frames_refused += 1,
        }
        result
    }

    /// Appends a message to the link with that node, if there is a session, and it has room. False: nothing was done, and
    /// [`send_frame`](Self::send_frame) knows what to do.
    pub fn send_message(&mut self, now: Time, to: NodeId, message: &Message<'_>) -> bool {
        let (limits, cx) = (self.limits, Context { sender: self.greeter.node, now });
        let Some(&id) = self.sessions.get(&to) else { return false };
        let Some(conn) = self.conns.get_mut(id).filter(|conn| conn.ended.is_none()) else { return false };
        // Of what waits behind large frames the core has been told.
        if conn.outbox.ready() > limits.link_bytes || conn.outbox.behind() > limits.link_bytes * BLOCKED_FACTOR {
            return false;
        }
        if conn.outbox.push(|out| encode_message(message, cx, limits.frame_bytes, out)).is_err() {
            return false;
        }
        self.counters.frames_out += 1;
        self.appended(id);
        true
    }

    /// Writes what was appended: one write for each link that has something.
    pub fn flush(&mut self, now: Time) {
        self.now = self.now.max(now);
        while let Some(id) = self.dirty.pop() {
            if let Some(conn) = self.conns.get_mut(id) {
                conn.in_dirty = false;
            }
            self.write(id);
        }
    }

    /// Ends all links, so that peers read all that was written before they see the end: waits until they have closed them too, for as long as `until` at
    /// most, and throws away what they still say, because a socket that is closed with something unread takes back what it has not sent. For a node
    /// that stops: flush until [`unsent_bytes`](Self::unsent_bytes) is 0 first. Nothing but the end may follow.
    pub fn finish(&mut self, until: Time, now: impl Fn() -> Time) {
        self.flush(now());
        self.accept.close();
        let ids: Vec<ConnId> = self.conns.iter().map(|(id, _)| id).collect();
        for id in ids {
            match self.conns.get_mut(id).filter(|conn| conn.session().is_some()) {
                Some(conn) => conn.finish(),
                None => self.close_quietly(id),
            }
        }
        loop {
            let left = until.since(now());
            if self.conns.len() == 0 || left.is_zero() || self.poll(Some(left), &now).is_err() {
                return;
            }
            while self.next(|_, _| true).is_some() {}
        }
    }

    /// Closes the link with a node and forgets all that was read from it and not handed out, and all that waits for it (moves.md A2).
    pub fn close(&mut self, now: Time, node: NodeId, addr: &NodeAddr) {
        self.now = self.now.max(now);
        let mut lost = self.drop_waiting(node);
        let id = self.sessions.get(&node).copied();
        if let Some(conn) = id.and_then(|id| self.remove(id)) {
            let rest = conn.outbox.into_rest();
            lost += rest.frames + rest.lost;
        }
        // It comes never again to say what it took in, as far as is known. If it does, that is counted already.
        if let Some(ended) = self.ended.get_mut(&node) {
            self.counters.frames_lost_in_flight += std::mem::take(&mut ended.unanswered);
            ended.sent = 0;
        }
        if id.is_some() || lost > 0 {
            self.counters.frames_lost += lost;
            self.link(LinkEvent::Down { peer: Some(node), addr: addr.clone(), cause: LinkDown::Closed, lost });
        }
    }

    /// The connection whose session is meant.
    pub(super) fn session_with(&self, to: &NodeAddr, node: Option<NodeId>) -> Option<ConnId> {
        let node = match node {
            Some(node) => node,
            None => *self.by_addr.get(to)?,
        };
        let id = *self.sessions.get(&node)?;
        // One that has failed takes nothing more; its end is reported with the next events.
        self.conns.get(id).filter(|conn| conn.ended.is_none()).map(|_| id)
    }

    fn append(&mut self, now: Time, id: ConnId, frame: &Frame) -> Result<(), Unsent> {
        let (limits, cx) = (self.limits, Context { sender: self.greeter.node, now });
        let Some(conn) = self.conns.get_mut(id) else { return Ok(()) };
        if let Err(unsent) = check_room(frame, conn.outbox.waiting(), limits.link_bytes) {
            if matches!(unsent, Unsent::Overflow { .. }) {
                self.close_too_slow(id);
            }
            return Err(unsent);
        }
        conn.outbox.push(|out| encode(frame, cx, limits.frame_bytes, out))?;
        self.appended(id);
        Ok(())
    }

    /// Something was appended to that connection's outbox: it is written now, or with the next flush.
    fn appended(&mut self, id: ConnId) {
        let limits = self.limits;
        let Some(conn) = self.conns.get_mut(id) else { return };
        if !conn.in_dirty {
            conn.in_dirty = true;
            self.dirty.push(id);
        }
        if conn.outbox.ready() >= WRITE_EARLY_BYTES && !conn.stalled {
            return self.write(id);
        }
        if conn.outbox.waiting() > limits.link_bytes {
            self.look_at_room(id);
        }
    }

    /// Tells of too much that waits, and of room again: of what may leave for all shards, as it is in the way of all; of what waits behind large
    /// frames for those whose messages would, too, and if that is not enough, as others have large ones, for all.
    fn look_at_room(&mut self, id: ConnId) {
        let limit = self.limits.link_bytes;
        let Some(conn) = self.conns.get_mut(id) else { return };
        let Phase::Up(session) = &mut conn.phase else { return };
        let (peer, was, ready, behind) = (session.peer, session.blocked, conn.outbox.ready(), conn.outbox.behind());
        session.blocked = if was { ready >= limit / 2 || behind >= limit } else { ready > limit || behind > limit + limit / 2 };
        let all = (session.blocked != was).then_some((session.blocked, None));
        let bulk = conn.outbox.bulk();
        let (shut, reopened) = match behind {
            waits if waits > limit => (bulk.shut(), vec![]),
            waits if waits < limit / 2 => (vec![], bulk.reopen()),
            _ => Default::default(),
        };
        let some = shut.into_iter().map(|shard| (true, Some(shard))).chain(reopened.into_iter().map(|shard| (false, Some(shard))));
        for (blocked, shard) in all.into_iter().chain(some) {
            self.link(if blocked { LinkEvent::Blocked { peer, shard } } else { LinkEvent::Writable { peer, shard } });
        }
    }

    pub(super) fn write(&mut self, id: ConnId) {
        let Some(conn) = self.conns.get_mut(id) else { return };
        self.counters.link_writes += conn.write(self.now);
        let ended = conn.ended.is_some();
        self.settle_later(id);
        self.look_at_room(id);
        if ended {
            // The peer may have said more before it went.
            self.mark_ready(id);
        }
    }

    pub(super) fn conn_writable(&mut self, id: ConnId) {
        match self.conns.get(id).map(|conn| &conn.phase) {
            Some(Phase::Connecting) => self.dial_progress(id),
            Some(_) => {
                if let Some(conn) = self.conns.get_mut(id) {
                    conn.stalled = false;
                }
                self.write(id);
            }
            None => {}
        }
    }

    pub(super) fn conn_readable(&mut self, id: ConnId, closed: bool) {
        if let Some(conn) = self.conns.get_mut(id)
            && !matches!(conn.phase, Phase::Connecting)
        {
            conn.read_closed |= closed;
            self.mark_ready(id);
        }
    }

    /// Says that there was no memory, if that was so. Whether it was.
    fn tell_starved(&mut self, id: ConnId) -> bool {
        let Some(conn) = self.conns.get_mut(id) else { return false };
        let starved = std::mem::take(&mut conn.starved);
        if starved {
            self.counters.memory_exhausted += 1;
            let (ip, peer, held) = (conn.ip, conn.session().map(|s| s.peer), conn.inbox.len() + conn.assembly.len());
            tracing::error!(target: "wingbeat::net", %ip, ?peer, held, "no memory for what the peer sends: its connection is closed");
        }
        starved
    }

    fn mark_ready(&mut self, id: ConnId) {
        if let Some(conn) = self.conns.get_mut(id)
            && !conn.in_ready
        {
            conn.in_ready = true;
            self.ready.push_back(id);
        }
    }

    fn mark_parsing(&mut self, id: ConnId) {
        if let Some(conn) = self.conns.get_mut(id)
            && !conn.in_parsing
        {
            conn.in_parsing = true;
            self.parsing.push_back(id);
        }
    }

    /// Reads from the links that have something, each in its turn, within the budgets.
    pub(super) fn read_links(&mut self) {
        let mut left = TURN_READ_MAX;
        for _ in 0..self.ready.len() {
            if left == 0 {
                return;
            }
            let Some(id) = self.ready.pop_front() else { return };
            if let Some(conn) = self.conns.get_mut(id) {
                conn.in_ready = false;
            }
            left = left.saturating_sub(self.read_link(id, left.min(LINK_READ_MAX)));
        }
    }

    /// Reads from one connection. Bytes read.
    fn read_link(&mut self, id: ConnId, budget: usize) -> usize {
        let frame_bytes = self.limits.frame_bytes;
        let Some(conn) = self.conns.get_mut(id) else { return 0 };
        let up = conn.session().is_some();
        let (least, wanted, budget) =
            if up { (INBOX_BYTES, frame_bytes, budget) } else { (GREETING_INBOX_BYTES, GREETING_BYTES_MAX, GREETING_BYTES_MAX) };
        if conn.in_parsing && conn.inbox.len() >= LINK_READ_MAX.max(frame_bytes) {
            // The caller has not taken what was read before.
            self.mark_ready(id);
            return 0;
        }
        let (read, more) = fill(conn, least, wanted, budget, &mut self.counters.link_reads);
        self.counters.link_bytes_in += read as u64;
        self.tell_starved(id);
        if more {
            self.mark_ready(id);
        }
        if !up {
            self.handle_greeting(id);
        }
        let Some(conn) = self.conns.get_mut(id) else { return read };
        match (&mut conn.phase, &conn.ended) {
            (Phase::Up(session), _) => {
                if read > 0 {
                    session.written_then = conn.outbox.written();
                    self.events.push_back(NetEvent::Traffic(session.peer));
                }
                self.mark_parsing(id);
            }
            (_, Some(cause)) => {
                let cause = cause.clone();
                self.end(id, cause);
            }
            _ => {}
        }
        read
    }

    /// Decodes the next frame of a connection. `None`: there is no whole one, and the connection is done with for this turn.
    pub(super) fn parse_one(&mut self, id: ConnId, take: &mut impl FnMut(NodeId, &Message<'_>) -> bool) -> Option<NetEvent> {
        let (max, now) = (self.limits.frame_bytes, self.now);
        let problem = loop {
            let Some(conn) = self.conns.get_mut(id) else {
                self.parsing.pop_front();
                return None;
            };
            let Phase::Up(session) = &mut conn.phase else { break None };
            let (frame, size) = match cut(conn.inbox.unread(), max) {
                Ok(Cut::Frame(size)) => (&conn.inbox.unread()[..size], size),
                Ok(Cut::Wait(_)) => break None,
                Err(e) => break Some(e),
            };
            // While a large frame comes, another part of it counts, or anything that its parts stand behind; not what keeps the link alive.
            conn.progressed |= conn.assembly.len() == 0;
            let cx = Context { sender: session.peer, now };
            if message_in(frame, cx).is_some_and(|message| take(session.peer, &message)) {
                conn.inbox.consume(size);
                conn.progressed = true;
                session.received += 1;
                self.counters.frames_in += 1;
                continue;
            }
            let decoded = match link_frame_in(frame) {
                None => {
                    conn.progressed = true;
                    Some(decode(frame, cx))
                }
                Some(Ok(LinkFrame::Part { bytes, last })) => match conn.assembly.add(bytes, last, max) {
                    Ok(whole) => {
                        conn.progressed = true;
                        whole.map(|frame| decode(frame, cx))
                    }
                    Err(Misfit::Frame(problem)) => break Some(problem),
                    Err(Misfit::NoMemory) => {
                        conn.starve();
                        break None;
                    }
                },
                Some(Ok(LinkFrame::Taken(upto))) => match conn.outbox.bulk().taken(now, upto) {
                    Ok(()) => {
                        conn.got_room = true;
                        None
                    }
                    Err(problem) => break Some(problem),
                },
                Some(Err(problem)) => break Some(problem),
            };
            conn.inbox.consume(size);
            // What belongs to the link itself is counted by neither side.
            let Some(decoded) = decoded else { continue };
            session.received += 1;
            match decoded {
                Ok(Decoded::Frame(frame)) => {
                    self.counters.frames_in += 1;
                    return Some(NetEvent::Frame { peer: session.peer, frame });
                }
                Ok(Decoded::Skipped(_)) => self.counters.frames_skipped += 1,
                Err(e) => break Some(e),
            }
        };
        self.parsing.pop_front();
        self.parsed(id, problem);
        None
    }

    /// Everything whole in the inbox is handed out.
    fn parsed(&mut self, id: ConnId, problem: Option<FrameError>) {
        let (now, frame_deadline) = (self.now, self.limits.frame_deadline);
        let starved = self.tell_starved(id);
        let Some(conn) = self.conns.get_mut(id) else { return };
        conn.in_parsing = false;
        if let Some(problem) = problem {
            let (ip, peer) = (conn.ip, conn.session().map(|s| s.peer));
            tracing::warn!(%ip, ?peer, %problem, "link closed");
            self.counters.frames_malformed += 1;
            return self.end(id, LinkDown::Protocol(problem.to_string()));
        }
        if let Some(cause) = conn.ended.clone()
            && (starved || !conn.in_ready)
        {
            return self.end(id, cause);
        }
        if conn.inbox.is_empty() && conn.assembly.len() == 0 {
            conn.partial_since = None;
        } else if conn.partial_since.is_none() || conn.progressed {
            conn.partial_since = Some(now);
            if !conn.timer_armed {
                conn.timer_armed = true;
                self.arm(now + frame_deadline, Timer::Conn(id));
            }
        }
        self.settle_later(id);
        let Some(conn) = self.conns.get_mut(id) else { return };
        conn.progressed = false;
        // Neither waits for a turn that has other work.
        if conn.assembly.has_news() | std::mem::take(&mut conn.got_room) {
            self.write(id);
        }
    }

    /// Time to look what room a link has needed. It is looked at again only while it has more than the usual, so that a quiet node waits.
    pub(super) fn settle(&mut self, id: ConnId, now: Time) {
        let Some(conn) = self.conns.get_mut(id) else { return };
        conn.inbox.settle(INBOX_BYTES);
        conn.outbox.settle();
        conn.assembly.settle();
        conn.settles = false;
        self.now = self.now.max(now);
        self.settle_later(id);
    }

    /// Has a look taken at the room of a link, if that is more than usual.
    fn settle_later(&mut self, id: ConnId) {
        let Some(conn) = self.conns.get_mut(id) else { return };
        let large = conn.inbox.room().max(conn.assembly.room()) > INBOX_BYTES || conn.outbox.is_large();
        if large && !std::mem::replace(&mut conn.settles, true) {
            self.arm(self.now + SETTLE_EVERY, Timer::Settle(id));
        }
    }

    fn close_too_slow(&mut self, id: ConnId) {
        let Some(mut conn) = self.remove(id) else { return };
        self.counters.sessions_too_slow += 1;
        conn.stream.abort();
        let Phase::Up(session) = conn.phase else { return };
        let (waiting, shut) = (conn.outbox.len(), conn.outbox.bulk().reopen());
        let rest = conn.outbox.into_rest();
        let lost = rest.frames + rest.lost;
        self.counters.frames_lost += lost;
        let Session { peer, addr, .. } = session;
        let limit = self.limits.link_bytes;
        tracing::warn!(target: "wingbeat::net", %peer, waiting, limit, lost, "link closed: the peer takes nothing, and four times limits.link_bytes wait for it");
        self.link(LinkEvent::Down { peer: Some(peer), addr, cause: LinkDown::TimedOut, lost });
        self.unblock(peer, shut.into_iter().map(Some).chain([None]));
    }

    /// Ends a connection whose dial, if it had one, is dealt with elsewhere.
    pub(super) fn close_quietly(&mut self, id: ConnId) {
        drop(self.remove(id));
    }

    /// Ends a connection, whatever it was.
    pub(super) fn end(&mut self, id: ConnId, cause: LinkDown) {
        let Some(mut conn) = self.remove(id) else { return };
        let now = self.now;
        match (conn.phase, conn.dialled) {
            (Phase::Up(session), _) => {
                let Session { peer, addr, blocked, since, .. } = session;
                let shut = conn.outbox.bulk().reopen();
                let rest = conn.outbox.into_rest();
                self.counters.frames_lost += rest.lost;
                // Who was reset may be gone, and whoever is to know waits behind the rest for what is said at its port. Not where sessions end as soon as they
                // are up.
                let at_once = cause == LinkDown::Reset && now.since(since) >= self.longest_pause;
                self.link(LinkEvent::Down { peer: Some(peer), addr: addr.clone(), cause, lost: rest.lost });
                self.unblock(peer, shut.into_iter().map(Some));
                if let Some(bytes) = rest.given_up {
                    tracing::warn!(target: "wingbeat::net", %peer, bytes, "a frame is given up: two links have ended while it was under way. Is limits.frame_bytes the same on both nodes?");
                }
                self.carry_over(now, &addr, peer, rest, blocked, at_once);
            }
            (_, Some(dialled)) => self.dial_failed(&dialled.addr, cause, now),
            _ => {}
        }
    }

    /// Takes a connection out of every table.
    fn remove(&mut self, id: ConnId) -> Option<Conn> {
        let mut conn = self.conns.remove(id)?;
        conn.stream.deregister(self.poll.registry(), self.watchers.as_ref());
        if conn.dialled.is_none() {
            if conn.is_half_open() {
                self.accept.greeted(conn.ip, id);
            }
            self.forget_ip(conn.ip);
        }
        if let Phase::Up(session) = &conn.phase {
            self.counters.sessions_down += 1;
            self.counters.link_bytes_discarded += (conn.inbox.len() + conn.assembly.len()) as u64;
            let peer = session.peer;
            if self.sessions.get(&peer) == Some(&id) {
                self.sessions.remove(&peer);
                self.by_addr.retain(|_, node| *node != peer);
            }
            if self.ended.len() >= ENDED_MAX
                && !self.ended.contains_key(&peer)
                && let Some(oldest) = self.ended.iter().min_by_key(|(_, ended)| ended.at).map(|(peer, _)| *peer)
            {
                self.ended.remove(&oldest);
            }
            let unanswered_from = session.written_then;
            let (session, received, sent) = (session.number, session.received, conn.outbox.written().saturating_sub(1));
            let last = session.max(self.ended.get(&peer).map_or(0, |ended| ended.last));
            let unanswered = conn.outbox.written().saturating_sub(unanswered_from);
            self.ended.insert(peer, Ended { session, last, sent, received, unanswered, at: self.now });
        }
        Some(conn)
    }
}

/// Reads until the socket or the budget is empty. Bytes read, and whether there may be more; `calls` counts those of the system.
fn fill(conn: &mut Conn, least: usize, wanted: usize, budget: usize, calls: &mut u64) -> (usize, bool) {
    let mut total = 0;
    while total < budget {
        let Ok(space) = conn.inbox.space(least, wanted) else {
            conn.starve();
            return (total, false);
        };
        let room = space.len();
        *calls += 1;
        match conn.stream.read(space) {
            Ok(0) => {
                // Behind an error that a write was told of, the end of the stream says no more.
                conn.ended.get_or_insert(LinkDown::Reset);
                return (total, false);
            }
            Ok(n) => {
                conn.inbox.filled(n);
                total += n;
                // A short read has emptied the socket; what comes later is reported anew.
                if n < room && !conn.read_closed {
                    return (total, false);
                }
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return (total, false),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => {
                conn.ended.get_or_insert_with(|| cause_of(&e));
                return (total, false);
            }
        }
    }
    (total, true)
}
