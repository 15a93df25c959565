//! What handles, operators and scenarios ask of a node.

use std::{collections::BTreeMap, time::Duration};

use crate::{
    Epoch, Time,
    proto::sharding::{ControlFrame, TableRow, TypeInfo},
};

use super::{Answer, Command, Due, Effect, Members, NodeCore};

/// An operator waits so long for the authority.
const AUTHORITY_DEADLINE: Duration = Duration::from_secs(3);
/// Bound on questions to the authority that are under way.
const REQUESTS_MAX: usize = 1024;

/// Questions to the authority.
#[derive(Debug, Default)]
pub(super) struct Requests {
    last: u64,
    open: BTreeMap<u64, Request>,
}

#[derive(Debug)]
struct Request {
    command: u64,
    types: Vec<TypeInfo>,
    rows: Vec<TableRow>,
}

/// Why it does not join another cluster.
const RUNS_SHARDS: &str =
    "shards of this node's own cluster have homes already, and may have others there: stop it, and start it with these seeds";

impl<M: Members> NodeCore<M> {
    /// A command; its answer is an `Effect::Done` (or `Effect::TypeReady`).
    pub fn handle_command(&mut self, now: Time, command: Command) {
        self.now = now;
        if self.ended {
            return self.refuse_after_end(command);
        }
        match command {
            Command::Register { info } => self.add_type(now, info),
            Command::Join { id, seeds } => {
                let result = match self.region.heard().next() {
                    Some(_) => Err(RUNS_SHARDS.into()),
                    None => self.membership.join(now, &seeds),
                };
                self.done_with(id, result);
            }
            Command::Leave { id, node } => match self.membership.view().is_member(node) {
                true => {
                    let result = self.membership.leave(now, node);
                    self.done_with(id, result);
                }
                false => self.done(id, Answer::NoMember(node)),
            },
            Command::Down { id, node } => match self.membership.view().is_member(node) {
                true => {
                    let result = self.membership.down(now, node);
                    self.done_with(id, result);
                }
                false => self.done(id, Answer::NoMember(node)),
            },
            Command::MoveShard { id, shard, to } => match self.membership.view().is_member(to) {
                true => self.ask_authority(now, id, |id| ControlFrame::MoveRequest { id, shard, to }),
                false => self.done(id, Answer::NoMember(to)),
            },
            Command::Table { id, ty } => self.ask_authority(now, id, |id| ControlFrame::TableRequest { id, ty }),
            Command::Links { id } => {
                let links = self.membership.links(now);
                self.done(id, Answer::Links(links));
            }
            Command::Locate { id, shard } => {
                let known = self.region.known(shard).map(|(epoch, home)| (home, epoch));
                self.done(id, Answer::Located(known));
            }
        }
        self.finish(now);
    }

    fn done(&mut self, id: u64, answer: Answer) {
        self.effects.push_back(Effect::Done { id, answer });
    }

    fn done_with(&mut self, id: u64, result: Result<(), String>) {
        self.done(id, result.map_or_else(Answer::Refused, |()| Answer::Accepted));
    }

    fn refuse_after_end(&mut self, command: Command) {
        let why = || "this node's membership is over; start it again to join".to_string();
        match command {
            Command::Register { info } => self.effects.push_back(Effect::TypeReady { ty: info.ty, result: Err(why()) }),
            Command::Join { id, .. }
            | Command::Leave { id, .. }
            | Command::Down { id, .. }
            | Command::MoveShard { id, .. }
            | Command::Table { id, .. }
            | Command::Links { id }
            | Command::Locate { id, .. } => self.done(id, Answer::Refused(why())),
        }
    }

    fn ask_authority(&mut self, now: Time, command: u64, frame: impl FnOnce(u64) -> ControlFrame) {
        if self.authority.is_none() {
            return self.done(command, Answer::NoAuthority);
        }
        if self.requests.open.len() >= REQUESTS_MAX {
            return self
                .done(command, Answer::Refused(format!("{REQUESTS_MAX} questions to the coordinator are under way; wait for them")));
        }
        self.requests.last += 1;
        let id = self.requests.last;
        self.requests.open.insert(id, Request { command, types: vec![], rows: vec![] });
        self.timers.set(Due::Request(id), now + AUTHORITY_DEADLINE);
        self.tell_authority(frame(id));
    }

    pub(super) fn move_answered(&mut self, id: u64, result: Result<Epoch, String>) {
        self.answer_request(id, |_| result.map_or_else(Answer::Refused, Answer::Epoch));
    }

    pub(super) fn table_answered(&mut self, id: u64, last: bool, types: Vec<TypeInfo>, rows: Vec<TableRow>) {
        let Some(request) = self.requests.open.get_mut(&id) else { return };
        request.types.extend(types);
        request.rows.extend(rows);
        if last {
            self.answer_request(id, |request| Answer::Table { types: request.types, rows: request.rows });
        }
    }

    pub(super) fn not_known(&mut self, id: u64) {
        self.answer_request(id, |_| Answer::NotKnown);
    }

    pub(super) fn request_expired(&mut self, id: u64) {
        self.answer_request(id, |_| Answer::NoAuthority);
    }

    fn answer_request(&mut self, id: u64, answer: impl FnOnce(Request) -> Answer) {
        if let Some(request) = self.requests.open.remove(&id) {
            self.timers.clear(Due::Request(id));
            self.done(request.command, answer(request));
        }
    }

    pub(super) fn end_requests(&mut self) {
        for request in std::mem::take(&mut self.requests.open).into_values() {
            self.done(request.command, Answer::NoAuthority);
        }
    }
}
