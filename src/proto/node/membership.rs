//! What membership's outputs mean for the rest of the node.

use std::{sync::Arc, time::Duration};

use crate::{
    NodeId, ShardKey, Time,
    proto::{
        coordinator::CoordinatorOut,
        membership::{ClusterView, Ending, Event, MemberOutput, MemberStatus, Peer, Removal},
        shard::ShardCommand,
        sharding::ControlFrame,
        wire::Frame,
    },
};

use super::{Effect, Members, MoveSeen, MoveStage, NodeCore, hosting::Hosting};

impl<M: Members> NodeCore<M> {
    pub(super) fn handle_output(&mut self, now: Time, output: MemberOutput) {
        match output {
            MemberOutput::Datagram { to, bytes } => self.effects.push_back(Effect::Datagram { to, bytes }),
            MemberOutput::Frame { to: Peer::Addr(to), frame } => {
                self.effects.push_back(Effect::Frame { to, node: None, frame: Frame::Member(frame) });
            }
            MemberOutput::Frame { to: Peer::Node(node), frame } => {
                if !self.send_frame(node, Frame::Member(frame)) {
                    self.counts.control_dropped += 1;
                }
            }
            MemberOutput::Resolve(name) => self.effects.push_back(Effect::Resolve(name)),
            MemberOutput::Lease { id, call } => self.effects.push_back(Effect::Lease { id, call }),
            MemberOutput::View(view) => self.handle_view(now, view),
            MemberOutput::Event(event) => self.effects.push_back(Effect::Event(event)),
            MemberOutput::Removed { node, how } => self.handle_removed(now, node, how),
            MemberOutput::Ended(ending) => self.end(now, ending),
        }
    }

    fn handle_view(&mut self, now: Time, view: Arc<ClusterView>) {
        if self.ended {
            return self.effects.push_back(Effect::View(view));
        }
        let cluster = self.membership.cluster();
        if std::mem::replace(&mut self.cluster, cluster) != cluster && !self.moves_in(now, &view) {
            return;
        }
        self.leaving = view.myself().is_some_and(|m| matches!(m.status, MemberStatus::Leaving | MemberStatus::Exiting));
        self.peers.set_view(&view);
        self.hosting.saw(now, &view);
        self.update_hosting(now);
        self.effects.push_back(Effect::View(view.clone()));
        let authority = view.oldest(self.config.sharding.coordinator_role.as_deref()).map(|m| m.id);
        let changed = authority != self.authority;
        self.authority = authority;
        self.seat_waits = !self.hosting.may_run(now);
        if !self.seat_waits {
            self.with_coordinator(now, |coordinator, out| coordinator.handle_view(now, view, out));
        }
        if changed {
            self.registration.forget();
            self.ask_authority_again(now);
            self.repeat_owned();
        }
        self.with_region(|region, peers, out| region.retry_buffered(now, peers, out));
    }

    /// This node belongs to another cluster than before. False if it cannot stay: what it runs for its own one may run there too.
    fn moves_in(&mut self, now: Time, view: &ClusterView) -> bool {
        if self.region.heard().next().is_some() {
            let there = view.members.iter().filter(|m| m.id != self.me).map(|m| m.addr.clone()).collect();
            self.end(now, Ending::Superseded(there));
            return false;
        }
        self.coordinator.forget();
        self.registration.forget();
        self.stranded.clear();
        self.hosting = Hosting::new(&self.config);
        true
    }

    /// The authority changed, or a new session to it is up: what it may not have got goes again.
    pub(super) fn ask_authority_again(&mut self, now: Time) {
        self.register(now);
        self.with_region(|region, peers, out| region.ask_again(now, peers, out));
    }

    fn handle_removed(&mut self, now: Time, node: NodeId, how: Removal) {
        let (addr, news) = self.peers.remove(node);
        self.ways_round.removed(node);
        self.flush_lost(node);
        self.dialled_for.remove(&node);
        if !news || node == self.me {
            return;
        }
        if let Some(addr) = addr {
            self.effects.push_back(Effect::CloseLink { node, addr });
        }
        self.tell_workers(&ShardCommand::Removed { node });
        self.with_region(|region, peers, out| region.removed(now, node, peers, out));
        self.with_known(|relay, known, out| relay.removed(now, node, known, out));
        let lag = self.membership.lag_bound();
        self.with_coordinator(now, |coordinator, out| coordinator.handle_removed(now, node, how, lag, out));
    }

    /// Tells the workers how long they may run, where that is news. Who has no right to run is no authority either: a node that wakes up
    /// from a long pause finds the news of its own removal behind that of others.
    pub(super) fn update_hosting(&mut self, now: Time) {
        if self.ended {
            return;
        }
        if let Some(until) = self.hosting.news(self.membership.proven()) {
            self.effects.push_back(Effect::HostingUntil(until));
        }
        if self.seat_waits && self.hosting.may_run(now) {
            self.seat_waits = false;
            let view = self.membership.view().clone();
            self.with_coordinator(now, |coordinator, out| coordinator.handle_view(now, view, out));
        }
    }

    /// What began to run since an authority last asked may be known to nobody who lives.
    fn repeat_owned(&mut self) {
        for shard in self.since_survey.clone() {
            if let Some(&(epoch, can_start)) = self.owned.get(&shard) {
                self.tell_authority(ControlFrame::Owned { shard, epoch, can_start });
            }
        }
    }

    /// The end of this node's membership: nothing runs after it, whatever led to it.
    fn end(&mut self, now: Time, ending: Ending) {
        if self.ended {
            return;
        }
        // Nobody takes over what the last one runs, which ends in order.
        if ending != Ending::Left || self.membership.view().members.iter().any(|member| member.id != self.me) {
            self.effects.push_back(Effect::HostingUntil(Time::ZERO));
        }
        self.tell_workers(&ShardCommand::Stop);
        self.close(now);
        self.effects.push_back(Effect::Ended(ending));
    }

    /// Nothing comes behind this, whether membership is over or not: gives up what waits here.
    pub fn close(&mut self, now: Time) {
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        self.routes += 1;
        self.with_region(|region, _, out| region.end(out));
        self.with_relay(|relay, _, out| relay.end(now, out));
        self.coordinator.end();
        self.inbox.clear();
        self.survey = None;
        self.end_requests();
    }

    /// A node on its way out says when nothing of it is needed any more.
    pub(super) fn update_drained(&mut self, now: Time) {
        let leaving = self.leaving;
        if self.ended || (!leaving && !self.drained) {
            return;
        }
        let view = self.membership.view();
        let takers = view.members.iter().any(|m| m.id != self.me && m.status == MemberStatus::Up);
        let exits = view.members.iter().any(|m| m.id == self.me && m.status >= MemberStatus::Exiting);
        let stranded = |shard: ShardKey| self.stranded.contains(&shard.ty);
        // What was assigned to this node is on its way to a worker, or to this node, before it runs.
        let expects = || self.region.heard().any(|(shard, _, home)| home == self.me && !stranded(shard));
        // Signs are repeated, and wait for homes that there may never be again.
        let settled = self.settling.values().all(|since| now.since(*since) >= self.config.sharding.fence_deadline.get());
        let sent = || settled && self.relay.unacknowledged() == 0 && !self.region.buffers_messages();
        let handed_over = || !expects() && sent() && self.coordinator.is_quiet();
        let runs = self.region.hosted().next().is_some();
        // Nobody takes over what runs here, but somebody may be given it the moment this node is removed: all leave, or a host of that type comes.
        let abandons = leaving && exits && (!takers || (runs && self.region.hosted().all(stranded) && handed_over()));
        let ready = leaving && !runs && (abandons || handed_over());
        // Not before all have heard that it leaves: it serves until then, and may be given something.
        let drained = ready && (self.drained || (exits && self.flushed(now)));
        if !ready {
            self.unflushed();
        }
        self.done |= abandons || (drained && exits);
        if abandons && !std::mem::replace(&mut self.abandoned, true) {
            self.tell_workers(&ShardCommand::Stop);
        }
        if drained != self.drained {
            self.drained = drained;
            self.membership.set_drained(now, drained);
        }
    }

    pub(super) fn coordinator_out(&mut self, now: Time, out: CoordinatorOut) {
        match out {
            CoordinatorOut::Send(to, frame) => self.send_control(to, frame),
            CoordinatorOut::Moving { shard, from, to, epoch } => self.note_moving(now, shard, from, to, epoch),
            CoordinatorOut::Moved { shard, to, epoch, took } => {
                self.note_moving_quietly(now, shard, to, epoch);
                self.note_moved(now, shard, Some(to), Some(took));
            }
            CoordinatorOut::Warn { code, text } => self.effects.push_back(Effect::Event(Event::Warning { code, text: text.into() })),
        }
    }

    fn note_moving_quietly(&mut self, now: Time, shard: ShardKey, to: NodeId, epoch: crate::Epoch) -> bool {
        let news = self.moves.get(&shard).is_none_or(|seen| seen.epoch < epoch);
        if news {
            let overtaken = self.region.known(shard).is_some_and(|(known, _)| known > epoch);
            let stage = if overtaken { MoveStage::Overtaken } else { MoveStage::Going };
            self.moves.insert(shard, MoveSeen { epoch, to, since: now, stage });
        }
        news
    }

    /// A record of that epoch is in force: an older move is not waited for any longer.
    pub(super) fn move_overtaken(&mut self, shard: ShardKey, epoch: crate::Epoch) {
        if let Some(seen) = self.moves.get_mut(&shard).filter(|seen| seen.epoch < epoch && seen.stage == MoveStage::Going) {
            seen.stage = MoveStage::Overtaken;
        }
    }

    /// Announces a move once, whoever tells of it first: the coordinator here, or the frame to an end.
    pub(super) fn note_moving(&mut self, now: Time, shard: ShardKey, from: NodeId, to: NodeId, epoch: crate::Epoch) {
        if self.note_moving_quietly(now, shard, to, epoch) {
            let entity_type = self.registration.name(shard.ty);
            self.effects.push_back(Effect::Event(Event::ShardMoving { entity_type, shard: shard.shard, from: Some(from), to, epoch }));
        }
    }

    /// The newest announced move has arrived at `to`; once.
    pub(super) fn note_moved(&mut self, now: Time, shard: ShardKey, to: Option<NodeId>, took: Option<Duration>) {
        let Some(seen) = self.moves.get_mut(&shard).filter(|seen| seen.stage != MoveStage::Arrived && Some(seen.to) == to) else { return };
        seen.stage = MoveStage::Arrived;
        let (to, epoch, took) = (seen.to, seen.epoch, took.unwrap_or_else(|| now.since(seen.since)));
        let entity_type = self.registration.name(shard.ty);
        self.effects.push_back(Effect::Event(Event::ShardMoved { entity_type, shard: shard.shard, to, epoch, took }));
    }
}
