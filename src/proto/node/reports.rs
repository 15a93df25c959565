//! What the workers report.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use crate::{
    Epoch, NodeId, ShardKey, Term, Time,
    proto::{
        handoff::{DropReason, HandoffItem},
        region::give_up,
        shard::{ShardCommand, ShardReport},
        sharding::{ControlFrame, FactState, ShardFact},
        wire::Frame,
    },
};

use super::{Due, Members, NodeCore};

/// Facts in one frame: below 100 KiB.
const FACTS_PER_FRAME: usize = 1000;
/// A worker that has not answered by then stands still: in a handler that does not return, for all that is known.
const SURVEY_PATIENCE: Duration = Duration::from_secs(3);

/// Facts that are being gathered for a new coordinator.
#[derive(Debug)]
pub(super) struct Survey {
    id: u64,
    term: Term,
    asker: NodeId,
    waiting: BTreeSet<u16>,
    facts: BTreeMap<ShardKey, ShardFact>,
    /// Number of the newest answer, which was given without those that are waited for; 0 before there is any.
    answered: u64,
}

impl Survey {
    /// Whether that worker stands still, and the coordinator was answered without it.
    pub fn was_answered_without(&self, worker: u16) -> bool {
        self.answered > 0 && self.waiting.contains(&worker)
    }
}

impl<M: Members> NodeCore<M> {
    /// A report from a worker, in the order of that worker's ring.
    pub fn handle_report(&mut self, now: Time, worker: u16, report: ShardReport) {
        self.now = now;
        if self.ended {
            return self.give_up_report(now, report);
        }
        match report {
            ShardReport::Running { shard, start, cur } => {
                self.with_region(|region, peers, out| region.running(now, shard, start, cur, peers, out));
            }
            ShardReport::Ended { shard, cur } => {
                if self.owned.get(&shard).is_none_or(|&(epoch, _)| epoch <= cur) {
                    self.since_survey.remove(&shard);
                }
                if self.given.get(&shard).is_some_and(|epoch| *epoch <= cur) {
                    self.given.remove(&shard);
                }
                self.region.ended(shard, cur);
            }
            ShardReport::Owned { shard, epoch, can_start } => {
                self.owned.insert(shard, (epoch, can_start));
                if self.survey_id > 0 {
                    self.since_survey.insert(shard);
                }
                // A hand-over may overtake the news of its move, and the others would hear of it, but not this node.
                self.learn(now, shard, epoch, self.me);
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
                    self.handed.insert(shard, (chunk.epoch, chunk.base));
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
            ShardReport::Load { loads, over } => self.handle_load(loads, over),
        }
        self.finish(now);
    }

    /// What a worker had passed on before it was told to stop ends here.
    fn give_up_report(&mut self, now: Time, report: ShardReport) {
        match report {
            ShardReport::Back { envelope, .. } => self.give_up(envelope, DropReason::Shutdown),
            ShardReport::Handoff { shard, item, .. } => {
                self.with_relay(|_, _, out| give_up(now, shard, item, DropReason::Shutdown, out));
            }
            _ => {}
        }
    }

    fn handle_load(&mut self, loads: Vec<(ShardKey, u32, u32)>, over: Duration) {
        let seconds = over.as_secs_f32().max(0.001);
        let loads = loads.into_iter().map(|(shard, entities, handled)| (shard, entities, handled as f32 / seconds)).collect();
        self.tell_authority(ControlFrame::Load { loads });
    }

    /// A new coordinator asks, and has this node's answer of that number. The question goes through the workers' rings, behind everything an earlier
    /// coordinator has said.
    pub(super) fn begin_survey(&mut self, now: Time, asker: NodeId, term: Term, have: u64) {
        if let Some(survey) = self.survey.take_if(|s| s.term == term && s.asker == asker) {
            let lost = survey.answered > have;
            self.survey = Some(survey);
            return if lost {
                self.answer_survey()
            };
        }
        self.survey_id += 1;
        // A question that is only repeated, or comes late, is answered again to no use.
        if self.surveyed.replace((term, asker)) != Some((term, asker)) {
            self.since_survey.clear();
        }
        let id = self.survey_id;
        self.survey = Some(Survey { id, term, asker, waiting: (0..self.workers).collect(), facts: BTreeMap::new(), answered: 0 });
        self.timers.set(Due::Survey, now + SURVEY_PATIENCE);
        self.tell_workers(&ShardCommand::Recount { id });
    }

    fn handle_facts(&mut self, worker: u16, id: u64, facts: Vec<ShardFact>) {
        let Some(survey) = self.survey.as_mut().filter(|s| s.id == id) else { return };
        survey.waiting.remove(&worker);
        survey.facts.extend(facts.into_iter().map(|f| (f.shard, f)));
        if survey.waiting.is_empty() || survey.answered > 0 {
            self.answer_survey();
        }
    }

    /// Says what is known; a survey that workers are missing in goes on.
    pub(super) fn answer_survey(&mut self) {
        let Some(mut survey) = self.survey.take() else { return };
        self.answers += 1;
        survey.answered = self.answers;
        let mut all = survey.facts.clone();
        let none = |shard| ShardFact { shard, state: FactState::None, seen: Epoch::ZERO, base: Epoch::ZERO, heard: None, entities: 0 };
        let silent = |shard: ShardKey| survey.waiting.contains(&shard.worker(self.workers));
        for (shard, epoch, home) in self.region.heard() {
            let fact = all.entry(shard).or_insert_with(|| none(shard));
            fact.heard = fact.heard.max(Some((epoch, home)));
            // It may be under way to here.
            if home == self.me && silent(shard) {
                fact.state = FactState::Unknown;
            }
        }
        // What stands in a worker's ring it will act on, in front of the question or behind it.
        for (&shard, &epoch) in &self.given {
            let fact = all.entry(shard).or_insert_with(|| none(shard));
            let is_there = matches!(fact.state, FactState::Running(_) | FactState::Stopping(_));
            if silent(shard) {
                (fact.state, fact.seen) = (FactState::Unknown, epoch);
            } else if epoch > fact.seen && !is_there {
                fact.state = FactState::Receiving(epoch);
            }
        }
        // Said also when the transfer was acknowledged: the new home may have answered before it came, and then nobody else tells of it.
        for (&shard, &(epoch, base)) in &self.handed {
            let fact = all.entry(shard).or_insert_with(|| none(shard));
            if fact.state == FactState::None && fact.seen <= epoch {
                (fact.state, fact.base) = (FactState::HandedOver(epoch), base);
            }
        }
        let facts: Vec<_> = all.into_values().collect();
        let parts = facts.chunks(FACTS_PER_FRAME).count().max(1) as u32;
        for part in 0..parts {
            let first = part as usize * FACTS_PER_FRAME;
            let facts = facts[first..facts.len().min(first + FACTS_PER_FRAME)].to_vec();
            let (number, types) = if part == 0 { (self.registration.number(), self.registration.types().to_vec()) } else { (0, vec![]) };
            let (term, answer, last) = (survey.term, survey.answered, part + 1 == parts);
            self.send_control(survey.asker, ControlFrame::Facts { term, answer, part, last, number, types, facts });
        }
        if survey.waiting.is_empty() {
            self.timers.clear(Due::Survey);
            // What came for a worker that stood still may go to it.
            self.with_known(|relay, known, out| relay.go_in(.., known, out));
        } else {
            self.survey = Some(survey);
        }
    }
}
