//! What the workers report.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    Epoch, NodeId, ShardKey, Term, Time,
    proto::{
        handoff::HandoffItem,
        shard::{ShardCommand, ShardReport},
        sharding::{ControlFrame, FactState, ShardFact},
        wire::Frame,
    },
};

use super::{Members, NodeCore};

/// Facts in one frame: below 100 KiB.
const FACTS_PER_FRAME: usize = 1000;

/// Facts that are being gathered for a new coordinator.
#[derive(Debug)]
pub(super) struct Survey {
    id: u64,
    term: Term,
    asker: NodeId,
    waiting: BTreeSet<u16>,
    facts: BTreeMap<ShardKey, ShardFact>,
}

impl<M: Members> NodeCore<M> {
    /// A report from a worker, in the order of that worker's ring.
    pub fn handle_report(&mut self, now: Time, worker: u16, report: ShardReport) {
        self.now = now;
        if self.ended {
            if let ShardReport::Back { envelope, .. } = report {
                self.give_up(envelope, crate::proto::handoff::DropReason::Shutdown);
            }
            return;
        }
        match report {
            ShardReport::Running { shard, start, cur } => {
                self.with_region(|region, peers, out| region.running(now, shard, start, cur, peers, out));
            }
            ShardReport::Ended { shard, cur } => {
                if self.owned.get(&shard).is_none_or(|&(epoch, _)| epoch <= cur) {
                    self.since_survey.remove(&shard);
                }
                self.region.ended(shard, cur);
            }
            ShardReport::Owned { shard, epoch, can_start } => {
                self.owned.insert(shard, (epoch, can_start));
                if self.survey_id > 0 {
                    self.since_survey.insert(shard);
                }
                if self.moves.get(&shard).is_some_and(|seen| seen.epoch == epoch) {
                    self.note_moved(now, shard, Some(self.me), None);
                }
                self.tell_authority(ControlFrame::Owned { shard, epoch, can_start });
            }
            ShardReport::MoveRefused { shard, epoch, why } => {
                self.refusals.insert(shard, (epoch, why.clone()));
                self.tell_authority(ControlFrame::MoveRefused { shard, epoch, why });
            }
            ShardReport::Handoff { to, shard, item } => {
                if let HandoffItem::Transfer(chunk) = &item
                    && chunk.last
                {
                    self.handed.insert(shard, chunk.epoch);
                }
                if to == self.me {
                    self.tell_worker(shard, ShardCommand::Handoff { from: to, shard, item });
                } else {
                    self.with_relay(|relay, peers, out| relay.push(now, to, shard, item, peers, out));
                }
            }
            ShardReport::StreamAck { stream, shard, p } => {
                if stream == self.me {
                    self.with_region(|region, peers, out| region.stream_ack(now, shard, p, peers, out));
                } else {
                    self.send_frame(stream, Frame::StreamAck { shard, p });
                }
            }
            ShardReport::ProbeAck { origin, shard, route, number } => {
                if origin == self.me {
                    self.tell_worker(shard, ShardCommand::ProbeAck { shard, route, number });
                } else {
                    self.send_frame(origin, Frame::ProbeAck { shard, route, number });
                }
            }
            ShardReport::Back { envelope, .. } => self.with_region(|region, peers, out| region.send(now, envelope, peers, out)),
            ShardReport::Left { lane, shard, k } => {
                self.with_region(|region, peers, out| region.handle_left(now, lane, shard, k, peers, out));
            }
            // Everything of the lane that had to meet has met by tokens of its own.
            ShardReport::End { .. } => {}
            ShardReport::Unknown { shard, aim } => {
                let mut known = None;
                self.with_region(|region, peers, out| known = region.unknown(now, shard, aim, peers, out));
                if let Some((epoch, home)) = known {
                    self.tell_worker(shard, ShardCommand::Record { shard, epoch, home });
                }
            }
            ShardReport::Facts { id, facts } => self.handle_facts(worker, id, facts),
            ShardReport::Settling { under_way: true } => _ = self.settling.insert(worker, now),
            ShardReport::Settling { under_way: false } => _ = self.settling.remove(&worker),
            ShardReport::Load { loads } => self.handle_load(now, worker, loads),
        }
        self.finish(now);
    }

    fn handle_load(&mut self, now: Time, worker: u16, loads: Vec<(ShardKey, u32, u32)>) {
        let before = self.load_at.insert(worker, now);
        let seconds = before.map_or(1.0, |t| now.since(t).as_secs_f32()).max(0.001);
        let loads = loads.into_iter().map(|(shard, entities, handled)| (shard, entities, handled as f32 / seconds)).collect();
        self.tell_authority(ControlFrame::Load { loads });
    }

    /// A new coordinator asks. The question goes through the workers' rings, behind everything an earlier one has said.
    pub(super) fn begin_survey(&mut self, asker: NodeId, term: Term) {
        if self.survey.as_ref().is_some_and(|s| s.term == term && s.asker == asker) {
            return;
        }
        self.survey_id += 1;
        // A question that is only repeated, or comes late, is answered again to no use.
        if self.surveyed.replace((term, asker)) != Some((term, asker)) {
            self.since_survey.clear();
        }
        let id = self.survey_id;
        self.survey = Some(Survey { id, term, asker, waiting: (0..self.workers).collect(), facts: BTreeMap::new() });
        self.tell_workers(&ShardCommand::Recount { id });
    }

    fn handle_facts(&mut self, worker: u16, id: u64, facts: Vec<ShardFact>) {
        let Some(mut survey) = self.survey.take_if(|s| s.id == id) else { return };
        survey.waiting.remove(&worker);
        survey.facts.extend(facts.into_iter().map(|f| (f.shard, f)));
        if survey.waiting.is_empty() { self.answer_survey(survey) } else { self.survey = Some(survey) }
    }

    fn answer_survey(&mut self, mut survey: Survey) {
        let none = |shard| ShardFact { shard, state: FactState::None, seen: Epoch::ZERO, base: Epoch::ZERO, heard: None };
        for (shard, epoch, home) in self.region.heard() {
            let fact = survey.facts.entry(shard).or_insert_with(|| none(shard));
            fact.heard = fact.heard.max(Some((epoch, home)));
        }
        // Said also when the transfer was acknowledged: the new home may have answered before it came, and then nobody else tells of it.
        for (&shard, &epoch) in &self.handed {
            let fact = survey.facts.entry(shard).or_insert_with(|| none(shard));
            if fact.state == FactState::None && fact.seen <= epoch {
                fact.state = FactState::HandedOver(epoch);
            }
        }
        let facts: Vec<_> = survey.facts.into_values().collect();
        let parts = facts.chunks(FACTS_PER_FRAME).count().max(1) as u32;
        for part in 0..parts {
            let first = part as usize * FACTS_PER_FRAME;
            let facts = facts[first..facts.len().min(first + FACTS_PER_FRAME)].to_vec();
            let (number, types) = if part == 0 { (self.registration.number(), self.registration.types().to_vec()) } else { (0, vec![]) };
            let (term, answer, last) = (survey.term, survey.id, part + 1 == parts);
            self.send_control(survey.asker, ControlFrame::Facts { term, answer, part, last, number, types, facts });
        }
    }
}
