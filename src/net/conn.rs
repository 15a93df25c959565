//! One connection, and the table of all of them.

use std::net::IpAddr;

use super::{
    buffer::{Inbox, Outbox},
    bulk::Assembly,
    stream::Stream,
};
use crate::{NodeAddr, NodeId, Time, proto::link::LinkDown};

/// Names a connection for as long as it lives; a later one in the same slot has another name.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ConnId {
    pub index: u32,
    serial: u32,
}

/// How far a connection got.
#[derive(Debug)]
pub enum Phase {
    /// Dialled, not connected.
    Connecting,
    /// Dialled, `Hello` said.
    AwaitWelcome,
    /// Accepted, nothing heard.
    AwaitHello,
    /// A session is up.
    Up(Session),
}

/// What both sides have agreed on.
#[derive(Debug)]
pub struct Session {
    pub peer: NodeId,
    /// As the peer advertises it.
    pub addr: NodeAddr,
    pub number: u64,
    /// Position in the order of what happened on this node.
    pub serial: u64,
    pub since: Time,
    /// Frames taken in.
    pub received: u64,
    /// Frames written whole when something last came from the peer.
    pub written_then: u64,
    /// `Blocked` was reported and `Writable` not yet.
    pub blocked: bool,
}

/// A dial's part in a connection.
#[derive(Clone, Debug)]
pub struct Dialled {
    /// The address as it was given, which is the key of the dial.
    pub addr: NodeAddr,
    pub expects: Option<NodeId>,
    /// Session number proposed.
    pub session: u64,
}

/// One connection.
#[derive(Debug)]
pub struct Conn {
    pub stream: Stream,
    pub ip: IpAddr,
    /// `None` if it was accepted.
    pub dialled: Option<Dialled>,
    pub phase: Phase,
    /// Position in the order of what happened on this node.
    pub serial: u64,
    /// By when it must be up.
    pub deadline: Time,
    pub inbox: Inbox,
    pub outbox: Outbox,
    /// What has come of a large frame.
    pub assembly: Assembly,
    /// The socket may have something to read.
    pub in_ready: bool,
    /// The peer has said that nothing more comes, or a write has failed: read to the end, without trusting a short read to be the last.
    pub read_closed: bool,
    /// The socket took no more; it reports when it does again.
    pub stalled: bool,
    /// The peer was told that nothing more comes.
    finished: bool,
    /// In the list of those with frames to write.
    pub in_dirty: bool,
    /// In the list of those with bytes to parse.
    pub in_parsing: bool,
    /// Since when the frame at the front of the inbox is incomplete.
    pub partial_since: Option<Time>,
    /// A frame was parsed since `partial_since` was set.
    pub progressed: bool,
    pub timer_armed: bool,
    /// The peer has taken in parts, so that more may leave.
    pub got_room: bool,
    /// A buffer is larger than usual, and a timer will look whether it still has to be.
    pub settles: bool,
    /// There was no memory for what the socket has.
    pub starved: bool,
    /// Over, once what there is to read is parsed.
    pub ended: Option<LinkDown>,
}

impl Conn {
    pub fn new(stream: Stream, ip: IpAddr, dialled: Option<Dialled>, serial: u64, deadline: Time) -> Self {
        Self {
            stream,
            ip,
            phase: if dialled.is_some() { Phase::Connecting } else { Phase::AwaitHello },
            dialled,
            serial,
            deadline,
            inbox: Inbox::default(),
            outbox: Outbox::default(),
            assembly: Assembly::default(),
            in_ready: false,
            read_closed: false,
            stalled: false,
            finished: false,
            in_dirty: false,
            in_parsing: false,
            partial_since: None,
            progressed: false,
            timer_armed: false,
            got_room: false,
            settles: false,
            starved: false,
            ended: None,
        }
    }

    /// The session, if it is up.
    pub fn session(&self) -> Option<&Session> {
        if let Phase::Up(session) = &self.phase { Some(session) } else { None }
    }

    /// The session, if it is up.
    pub fn session_mut(&mut self) -> Option<&mut Session> {
        if let Phase::Up(session) = &mut self.phase { Some(session) } else { None }
    }

    /// There is no memory for what the peer sends: nothing that it did, and nothing that could be waited for. It begins anew when there is
    /// memory again.
    pub fn starve(&mut self) {
        self.starved = true;
        self.ended = Some(LinkDown::TimedOut);
    }

    /// Says that nothing more comes, and writes no more.
    pub fn finish(&mut self) {
        self.finished = true;
        self.stream.finish();
    }

    /// Accepted and not greeted yet.
    pub fn is_half_open(&self) -> bool {
        matches!(self.phase, Phase::AwaitHello)
    }

    /// Writes what the socket takes, in so many calls of the system. An error ends the connection once it is read to its end.
    pub fn write(&mut self, now: Time) -> u64 {
        let mut calls = 0;
        if self.ended.is_some() || self.stalled || self.finished {
            return calls;
        }
        let mut wrote = false;
        loop {
            let news = if self.outbox.takes_acknowledgement() { self.assembly.news() } else { None };
            // Once more for one that had to wait for the end of another.
            if wrote && news.is_none() {
                return calls;
            }
            news.into_iter().for_each(|upto| self.outbox.acknowledge(upto));
            let written = self.outbox.write(now, |bytes| {
                calls += 1;
                self.stream.write(bytes)
            });
            match written {
                Ok(true) => wrote = true,
                Ok(false) => {
                    self.stalled = true;
                    return calls;
                }
                Err(e) => {
                    self.ended = Some(cause_of(&e));
                    self.read_closed = true;
                    return calls;
                }
            }
        }
    }
}

/// What an error of a socket means for the link.
pub fn cause_of(error: &std::io::Error) -> LinkDown {
    use std::io::ErrorKind;
    match error.kind() {
        ErrorKind::ConnectionRefused => LinkDown::Refused,
        ErrorKind::ConnectionReset
        | ErrorKind::ConnectionAborted
        | ErrorKind::BrokenPipe
        | ErrorKind::NotConnected
        | ErrorKind::WriteZero => LinkDown::Reset,
        // No route, no descriptor, no local port: nothing that the peer did, so nothing that may count against it at once.
        _ => LinkDown::TimedOut,
    }
}

/// All connections, by slot.
#[derive(Debug, Default)]
pub struct Conns {
    slots: Vec<(u32, Option<Conn>)>,
    free: Vec<u32>,
    len: usize,
}

impl Conns {
    /// Takes a connection in.
    pub fn insert(&mut self, conn: Conn) -> ConnId {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push((0, None));
            u32::try_from(self.slots.len() - 1).expect("descriptors are fewer than 2^32")
        });
        let slot = &mut self.slots[index as usize];
        slot.0 = slot.0.wrapping_add(1);
        slot.1 = Some(conn);
        self.len += 1;
        ConnId { index, serial: slot.0 }
    }

    /// The slot that the next connection gets.
    pub fn next_index(&self) -> usize {
        self.free.last().map_or(self.slots.len(), |index| *index as usize)
    }

    pub fn get(&self, id: ConnId) -> Option<&Conn> {
        self.slots.get(id.index as usize).filter(|slot| slot.0 == id.serial)?.1.as_ref()
    }

    pub fn get_mut(&mut self, id: ConnId) -> Option<&mut Conn> {
        self.slots.get_mut(id.index as usize).filter(|slot| slot.0 == id.serial)?.1.as_mut()
    }

    /// The connection now in a slot.
    pub fn at(&self, index: usize) -> Option<ConnId> {
        let (serial, conn) = self.slots.get(index)?;
        conn.as_ref().map(|_| ConnId { index: index as u32, serial: *serial })
    }

    pub fn remove(&mut self, id: ConnId) -> Option<Conn> {
        let slot = self.slots.get_mut(id.index as usize).filter(|slot| slot.0 == id.serial)?;
        let conn = slot.1.take()?;
        self.free.push(id.index);
        self.len -= 1;
        Some(conn)
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn iter(&self) -> impl Iterator<Item = (ConnId, &Conn)> {
        let named =
            |(index, (serial, conn)): (usize, &(u32, Option<Conn>))| (ConnId { index: index as u32, serial: *serial }, conn.is_some());
        self.slots.iter().enumerate().map(named).filter(|(_, some)| *some).filter_map(|(id, _)| Some((id, self.get(id)?)))
    }
}
