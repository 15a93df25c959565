//! Control frames: what the authority tells this node, and the way to the authority if it is here.

use crate::{
    Epoch, NodeId, ShardKey, Term, Time,
    proto::{shard::ShardCommand, sharding::ControlFrame, wire::Frame},
};

use super::{Members, MoveStage, NodeCore};

impl<M: Members> NodeCore<M> {
    pub(super) fn handle_control(&mut self, now: Time, from: NodeId, frame: ControlFrame) {
        if self.ended {
            return;
        }
        // Who is no member (yet) may ask. What such a node states would bind the members, and is void.
        if from != self.me && !frame.is_question() && !self.peers.is_member(from) {
            self.counts.control_dropped += 1;
            return tracing::debug!(%from, ?frame, "a node that is no member states something");
        }
        match frame {
            ControlFrame::Registered { term, number, refused } => {
                if self.is_current(term) {
                    self.registered(now, number, refused);
                }
            }
            ControlFrame::NoHost { ty } => {
                if self.registration.is_known(ty) {
                    self.region.no_host(ty);
                }
                // One that comes late does not know of a host that takes them over.
                let moves = self.moves.iter().any(|(shard, seen)| shard.ty == ty && seen.stage == MoveStage::Going);
                // Where not even the number of shards is known, this node hosts nothing that could be stranded.
                if self.registration.shards(ty) > 0 && !moves {
                    self.stranded.insert(ty);
                }
            }
            ControlFrame::Sized { term, types } => {
                if self.is_current(term) {
                    types.into_iter().for_each(|(ty, shards)| self.adopt_number(now, ty, shards));
                }
            }
            ControlFrame::Route { shard, epoch, home } => self.learn(now, shard, epoch, home),
            ControlFrame::Assign { shard, epoch, home, base, term } => {
                if self.is_current(term) && home == self.me && base <= epoch && self.hosts(shard) && self.takes_shards() {
                    self.handle_assign(now, from, shard, epoch, base);
                }
            }
            ControlFrame::Move { shard, epoch, from: old, to, term, .. } => {
                if self.is_current(term) && old != to && (to != self.me || (self.hosts(shard) && self.takes_shards())) {
                    self.handle_move(now, from, shard, epoch, old, to);
                }
            }
            ControlFrame::Recount { term, have } => {
                if self.coordinator.hear(term) {
                    self.begin_survey(now, from, term, have);
                } else {
                    // The asker's term is an old one: it is to ask above the newest.
                    let term = self.coordinator.heard();
                    self.send_control(
                        from,
                        ControlFrame::Facts { term, answer: 0, part: 0, last: true, number: 0, types: vec![], facts: vec![] },
                    );
                }
            }
            // All frames in front of it have been taken in.
            ControlFrame::Flush { number } => _ = self.send_frame(from, Frame::Control(ControlFrame::Flushed { number })),
            ControlFrame::Flushed { number } => self.flushed_to(from, number),
            ControlFrame::MoveAnswer { id, result } => self.move_answered(id, result),
            ControlFrame::TableAnswer { id, last, types, rows } => self.table_answered(id, last, types, rows),
            ControlFrame::TakingOver { id } => self.not_known(id),
            // Said to who is the authority no more, or not yet: it is said again, to whoever is.
            _ if !self.coordinator.is_seated() => self.counts.control_dropped += 1,
            frame => self.with_coordinator(now, |coordinator, out| coordinator.handle_frame(now, from, frame, out)),
        }
    }

    /// Decisions of an authority that was replaced are void (moves.md section 8, C1).
    fn is_current(&mut self, term: Term) -> bool {
        let current = self.coordinator.hear(term);
        self.counts.control_dropped += u64::from(!current);
        current
    }

    /// Whether this node hosts the type, and that has the shard, as far as is known here. Whoever says otherwise is mistaken.
    fn hosts(&mut self, shard: ShardKey) -> bool {
        let hosts = self.registration.hosts(shard);
        self.counts.control_dropped += u64::from(!hosts);
        hosts
    }

    /// Whether this node may be given anything. If not, the authority says it again until it hears of this node's removal.
    fn takes_shards(&mut self) -> bool {
        self.counts.control_dropped += u64::from(self.done);
        !self.done
    }

    /// Takes a record in: this node's stream follows it, and the worker hears of it.
    pub(super) fn learn(&mut self, now: Time, shard: ShardKey, epoch: Epoch, home: NodeId) {
        if self.region.known(shard).is_some_and(|(known, _)| known >= epoch) {
            return;
        }
        if !self.region.may_keep(shard) {
            return self.counts.control_dropped += 1;
        }
        self.move_overtaken(shard, epoch);
        self.tell_worker(shard, ShardCommand::Record { shard, epoch, home });
        self.with_region(|region, peers, out| _ = region.learn(now, shard, epoch, home, peers, out));
        self.with_known(|relay, known, out| relay.heard_of(shard, known, out));
    }

    /// A worker is given what lets it run the shard.
    pub(super) fn give(&mut self, shard: ShardKey, epoch: Epoch) {
        let newest = self.given.entry(shard).or_default();
        *newest = epoch.max(*newest);
    }

    fn handle_assign(&mut self, now: Time, from: NodeId, shard: ShardKey, epoch: Epoch, base: Epoch) {
        match self.owned.get(&shard) {
            Some(&(owned, can_start)) if owned == epoch => {
                self.send_control(from, ControlFrame::Owned { shard, epoch, can_start });
            }
            _ => {
                self.give(shard, epoch);
                self.tell_worker(shard, ShardCommand::Assign { shard, epoch, base });
                self.learn(now, shard, epoch, self.me);
            }
        }
    }

    fn handle_move(&mut self, now: Time, authority: NodeId, shard: ShardKey, epoch: Epoch, from: NodeId, to: NodeId) {
        if from == self.me {
            self.stranded.remove(&shard.ty);
            match self.refusals.get(&shard) {
                Some((refused, why)) if *refused == epoch => {
                    let why = why.clone();
                    return self.send_control(authority, ControlFrame::MoveRefused { shard, epoch, why });
                }
                _ => self.tell_worker(shard, ShardCommand::Move { shard, epoch, to }),
            }
        } else if to == self.me {
            if let Some(&(owned, can_start)) = self.owned.get(&shard).filter(|(owned, _)| *owned == epoch) {
                return self.send_control(authority, ControlFrame::Owned { shard, epoch: owned, can_start });
            }
        } else {
            return;
        }
        self.note_moving(now, shard, from, to, epoch);
        self.learn(now, shard, epoch, to);
    }
}
