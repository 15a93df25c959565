//! From a connection to a session.

use super::{
    Net, Timer,
    conn::{ConnId, Phase, Session},
};
use crate::{
    NodeAddr, NodeId,
    proto::{
        link::{LinkDown, LinkEvent},
        wire::{Greeting, Hello, Malformed, Pair, Previous, Refusal, SESSION_MAX, Welcome},
    },
};

impl Net {
    /// Writes a greeting at once: it must not wait for the caller's next flush.
    pub(super) fn say(&mut self, id: ConnId, greeting: &Greeting) {
        if let Some(conn) = self.conns.get_mut(id) {
            let mut bytes = vec![];
            greeting.encode(&mut bytes);
            conn.outbox.append(&bytes);
            conn.write(self.now);
        }
    }

    /// Looks for a greeting in what was read.
    pub(super) fn handle_greeting(&mut self, id: ConnId) {
        let Some(conn) = self.conns.get_mut(id) else { return };
        let dialled = conn.dialled.is_some();
        match Greeting::decode(conn.inbox.unread()) {
            Ok(None) => {}
            Ok(Some((greeting, size))) => {
                conn.inbox.consume(size);
                match greeting {
                    Greeting::Hello(hello) if !dialled => self.handle_hello(id, &hello),
                    Greeting::Welcome(welcome) if dialled => self.handle_welcome(id, &welcome),
                    Greeting::Refusal(refusal) if dialled => self.handle_refusal(id, refusal),
                    _ => self.bad_greeting(id, Malformed::Layout { field: "greeting", why: "not this side's turn to say it" }),
                }
            }
            Err(what) => self.bad_greeting(id, what),
        }
    }

    /// No answer to strangers: it would help only who probes.
    fn bad_greeting(&mut self, id: ConnId, what: Malformed) {
        self.counters.hello_malformed += 1;
        if let Some(ip) = self.conns.get(id).map(|conn| conn.ip) {
            self.log_stranger(ip, &what);
        }
        self.end(id, LinkDown::Protocol(what.to_string()));
    }

    fn handle_hello(&mut self, id: ConnId, hello: &Hello) {
        let Some(ip) = self.conns.get(id).map(|conn| conn.ip) else { return };
        let old = self.sessions.get(&hello.node).copied();
        let up = old.and_then(|old| self.conns.get(old)?.session().map(|s| s.number));
        let pair = Pair { up, dialling: self.is_greeting(hello.node, &hello.addr) };
        match self.greeter.judge(hello, pair, self.last_number(hello.node)) {
            Err(refusal) => {
                self.counters.hello_refused += 1;
                if refusal.is_final() {
                    self.log_stranger(ip, &format_args!("greeting of {} at {}: {refusal}", hello.node, hello.addr));
                }
                self.say(id, &Greeting::Refusal(refusal));
                if let Some(conn) = self.conns.get(id) {
                    conn.stream.finish();
                }
                self.end(id, LinkDown::Closed);
            }
            Ok(accepted) => {
                if let Some(old) = old {
                    self.end(old, LinkDown::Reset);
                }
                let welcome = self.greeter.welcome(accepted, self.previous(hello.node));
                self.say(id, &Greeting::Welcome(welcome));
                self.count_lost_in_flight(hello.node, hello.previous);
                self.name_is_heard_from(&hello.addr, ip);
                self.session_up(id, hello.node, &hello.addr, accepted.session);
            }
        }
    }

    fn handle_welcome(&mut self, id: ConnId, welcome: &Welcome) {
        let Some(conn) = self.conns.get(id) else { return };
        let Some(dialled) = conn.dialled.clone() else { return };
        let (began, ip, me) = (conn.serial, conn.ip, self.greeter.node);
        if welcome.session < dialled.session || welcome.node == me || self.greeter.protocol.common(only(welcome.version)).is_none() {
            return self.bad_greeting(id, Malformed::Layout { field: "welcome", why: "does not fit the hello it answers" });
        }
        if dialled.expects.is_some_and(|node| node != welcome.node) {
            let asked = dialled.expects.unwrap_or(welcome.node);
            return self.handle_refusal(id, Refusal::OtherIncarnation { answers: welcome.node, asked });
        }
        if let Some(old) = self.sessions.get(&welcome.node).copied() {
            let (old_is_newer, old_dialled) =
                self.conns.get(old).map_or((false, false), |c| (c.session().is_some_and(|s| s.serial > began), c.dialled.is_some()));
            // Both sides accepted the other's dial, each not knowing where its own led to. Both now keep the one of the lower id.
            let lower_dialled_old = if me < welcome.node { old_dialled } else { !old_dialled };
            if old_is_newer && lower_dialled_old {
                self.by_addr.insert(dialled.addr.clone(), welcome.node);
                self.adopt_waiting(old, welcome.node, &dialled.addr);
                return self.end(id, LinkDown::Closed);
            }
            self.end(old, LinkDown::Reset);
        }
        self.count_lost_in_flight(welcome.node, welcome.previous);
        self.name_leads_to(&dialled.addr, ip);
        self.session_up(id, welcome.node, &welcome.addr, welcome.session);
        self.answers_at(id, welcome.node, &dialled.addr);
    }

    /// `peer`, whose session is up on `id`, answers at a dialled address.
    fn answers_at(&mut self, id: ConnId, peer: NodeId, addr: &NodeAddr) {
        self.by_addr.insert(addr.clone(), peer);
        self.adopt_waiting(id, peer, addr);
        // What was meant for another life at that address is told apart by now.
        if self.dials.contains_key(addr) {
            let now = self.now;
            self.dial_other(addr, None, peer, now);
        }
    }

    fn handle_refusal(&mut self, id: ConnId, refusal: Refusal) {
        let Some(dialled) = self.conns.get(id).and_then(|conn| conn.dialled.clone()) else { return };
        let now = self.now;
        self.close_quietly(id);
        match refusal {
            Refusal::DuplicateDial => self.dial_duplicate(&dialled.addr, now),
            Refusal::Known { answers } => match self.session_with(&dialled.addr, Some(answers)) {
                Some(session) => self.answers_at(session, answers, &dialled.addr),
                None => self.dial_holder(&dialled, answers, now),
            },
            Refusal::Itself => self.dial_itself(&dialled.addr, now),
            Refusal::OtherIncarnation { answers, .. } => self.dial_other(&dialled.addr, dialled.expects, answers, now),
            other => {
                tracing::warn!(addr = %dialled.addr, refusal = %other, "greeting refused by the other side");
                self.dial_rejected(&dialled.addr, LinkDown::Rejected(other.to_string()), now);
            }
        }
    }

    fn session_up(&mut self, id: ConnId, peer: NodeId, addr: &NodeAddr, number: u64) {
        let (serial, since) = (self.next_serial(), self.now);
        let Some(conn) = self.conns.get_mut(id) else { return };
        if conn.is_half_open() {
            self.accept.greeted(conn.ip, id);
        }
        conn.phase = Phase::Up(Session { peer, addr: addr.clone(), number, serial, since, received: 0, written_then: 0, blocked: false });
        self.sessions.insert(peer, id);
        self.by_addr.insert(addr.clone(), peer);
        self.counters.sessions_up += 1;
        self.link(LinkEvent::Up { peer, addr: addr.clone(), session: number });
        self.adopt_waiting(id, peer, addr);
    }

    /// The largest session number that this node has said to `peer` or knows of between the two. What a peer says counts for the two alone: it must not
    /// use up the numbers of others. Nobody has counted up to one that is the last: the two begin anew.
    pub(super) fn last_number(&self, peer: NodeId) -> u64 {
        let up = self.sessions.get(&peer).and_then(|id| self.conns.get(*id)?.session()).map_or(0, |session| session.number);
        let known = up.max(self.ended.get(&peer).map_or(0, |ended| ended.last));
        if known + 1 < SESSION_MAX { known.max(self.dialled) } else { self.dialled }
    }

    /// The peer says what it took of the last session: the rest of what was written to it is lost.
    fn count_lost_in_flight(&mut self, peer: NodeId, previous: Option<Previous>) {
        if let (Some(ended), Some(previous)) = (self.ended.get_mut(&peer), previous)
            && ended.session == previous.session
        {
            ended.unanswered = 0;
            self.counters.frames_lost_in_flight += ended.sent.saturating_sub(previous.received);
        }
    }

    /// A connection's deadline: for its greeting, or for the frame that it has begun.
    pub(super) fn conn_due(&mut self, id: ConnId, now: crate::Time) {
        let frame_deadline = self.limits.frame_deadline;
        let Some(conn) = self.conns.get_mut(id) else { return };
        let due = match (&conn.phase, conn.partial_since) {
            (Phase::Up(_), None) => {
                conn.timer_armed = false;
                return;
            }
            // What this side has not come to read yet is not the peer's fault.
            (Phase::Up(_), Some(_)) if conn.in_ready || conn.in_parsing => now + frame_deadline,
            (Phase::Up(_), Some(since)) => since + frame_deadline,
            _ => conn.deadline,
        };
        if due > now {
            conn.timer_armed = conn.session().is_some();
            return self.arm(due, Timer::Conn(id));
        }
        if let Some(session) = conn.session() {
            let (peer, ip, held) = (session.peer, conn.ip, conn.inbox.len() + conn.assembly.len());
            tracing::warn!(target: "wingbeat::net", %peer, %ip, held, limit = ?frame_deadline, "link closed: FrameTimeout, a frame was not whole within limits.frame_deadline");
            self.counters.frame_timeouts += 1;
        } else if conn.is_half_open() {
            self.counters.hello_timeouts += 1;
        }
        self.end(id, LinkDown::TimedOut);
    }
}

fn only(version: u16) -> crate::proto::wire::ProtocolRange {
    crate::proto::wire::ProtocolRange { min: version, max: version }
}
