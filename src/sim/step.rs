//! Steps of the cores, and what their effects set going.

use super::{
    checks::{Broken, Change},
    datagrams::{parts_of, without_replies},
    entity::{Happened, Note, Outgoing, SimHost},
    lanes::Client,
    ledger::{Answered, Wrong},
    network::Fate,
    process::{Node, Process},
    settings,
    shadow::Heard,
    trace::{Brief, brief, brief_lane, brief_view},
    undone,
    world::{Event, Inner, World},
};
use crate::{
    NodeAddr, NodeId, Time,
    proto::{
        handoff::ReplyBody,
        membership::Ending,
        node::{Answer, Effect, NodeCore},
        shard::{ShardCommand, ShardCore},
        sharding::ControlFrame,
        wire::Frame,
    },
};

/// A process that ends lets its threads finish for this long.
const EXIT_AFTER: u64 = 50_000_000;
/// And this long, if they stand still: as `Engine::stop`.
const EXIT_PATIENCE: u64 = 10_000_000_000;
/// Time between a process's end and its new start when it rejoins.
const REJOIN_AFTER: u64 = 500_000_000;
/// Steps between two calls of the cores' own checks.
const CHECK_EVERY: u64 = if cfg!(debug_assertions) { 256 } else { 4096 };

impl World<'_> {
    pub(super) fn inner(&mut self, life: u32, inner: Inner) {
        let index = self.lives[life as usize].node;
        let node = &mut self.nodes[index as usize];
        if node.life != Some(life) {
            return self.too_late(life, &inner);
        }
        if node.paused {
            // It is in its sockets. What is handed off is with its sender, too.
            if let Inner::Frame { frame, .. } = &inner
                && matches!(**frame, Frame::Item { .. })
            {
                self.seen(frame, life);
            }
            self.nodes[index as usize].late.push(inner);
            return;
        }
        if let Inner::WorkerWake(w, _) | Inner::ToWorker(w, ..) | Inner::Command(w, _) | Inner::Hosting(w, _) = inner
            && let Some(worker) = node.process.as_mut().map(|p| &mut p.workers[usize::from(w)])
            && worker.stalled_until > 0
        {
            return worker.late.push(inner);
        }
        match inner {
            Inner::Datagram(bytes, from) => {
                let bytes = if node.deaf_until > 0 { without_replies(&bytes) } else { Some(bytes) };
                let Some(bytes) = bytes else { return self.log(9, index, u64::from(from), || format!("does not hear n{from}'s reply")) };
                self.log(10, index, u64::from(from), || format!("datagram from n{from}: {}", parts_of(&bytes)));
                self.digest.add_bytes(&bytes);
                self.overheard(index, Heard::Datagram(&bytes));
                self.net_step(life, |core, now| core.handle_datagram(now, &bytes));
            }
            Inner::Frame { peer, frame } => {
                if !matches!(*frame, Frame::Member(_)) && node.process.as_ref().is_some_and(|p| p.removed.contains(&peer)) {
                    return self.frame_lost(&frame);
                }
                self.log(11, index, peer.incarnation(), || format!("frame from {peer}: {}", Brief(&frame)));
                self.seen(&frame, life);
                self.overheard(index, Heard::Frame { peer, frame: &frame });
                self.net_step(life, |core, now| core.handle_frame(now, peer, *frame));
            }
            Inner::Link(event) => {
                self.log(12, index, 0, || format!("link: {event:?}"));
                self.overheard(index, Heard::Link(&event));
                self.net_step(life, |core, now| core.handle_link(now, event));
            }
            Inner::Quiet => {
                self.log(46, index, 0, || "nothing more comes from its clients".into());
                self.net_step(life, NodeCore::handle_quiet);
            }
            Inner::Wake(at) => {
                let Some(p) = node.process.as_mut().filter(|p| p.wake_at == at) else { return };
                p.wake_at = u64::MAX;
                if let Some(broken) = p.wakes.woke(life, at) {
                    p.wake_at = 0;
                    return self.violated(broken);
                }
                self.log(13, index, 0, || "timer".into());
                self.overheard(index, Heard::Timer);
                self.net_step(life, NodeCore::handle_timeout);
            }
            Inner::WorkerWake(w, at) => {
                let Some(p) = node.process.as_mut().filter(|p| p.workers[usize::from(w)].wake_at == at) else { return };
                p.workers[usize::from(w)].wake_at = u64::MAX;
                self.log(14, index, u64::from(w), || format!("timer of worker {w}"));
                self.worker_step(life, w, ShardCore::handle_timeout);
            }
            Inner::ToNet(lane, item) => {
                self.log(15, index, u64::from(lane.0), || format!("lane {} to net: {}", lane.0, brief_lane(&item)));
                self.net_step(life, |core, now| core.handle_lane(now, lane, item));
            }
            Inner::ToWorker(w, lane, item) => {
                self.log(16, index, u64::from(lane.0) << 16 | u64::from(w), || {
                    format!("lane {} to worker {w}: {}", lane.0, brief_lane(&item))
                });
                self.worker_step(life, w, |core, now, host| core.handle_lane(now, lane, item, host));
            }
            Inner::Command(w, command) => {
                self.log(17, index, u64::from(w), || format!("to worker {w}: {}", brief(&command)));
                self.worker_step(life, w, |core, now, host| core.handle_command(now, command, host));
            }
            Inner::Outgoing(w, Outgoing::Report(report)) => {
                self.log(18, index, u64::from(w), || format!("from worker {w}: {}", brief(&report)));
                self.net_step(life, |core, now| core.handle_report(now, w, report));
            }
            Inner::Outgoing(w, Outgoing::Reply { to, correlation, body }) => {
                self.log(19, index, correlation, || format!("reply of worker {w} to {to}: {correlation}"));
                self.net_step(life, |core, now| core.handle_reply(now, to, correlation, body));
            }
            Inner::Word(client, shard, word) => {
                self.log(20, index, word.bits(), || format!("client {client} sees {shard:?}: {word:?}"));
                if let Some(c) = node_client(&mut self.nodes[index as usize], client) {
                    c.words.insert(shard, word);
                }
            }
            Inner::Hosting(w, until) => {
                self.log(21, index, until.as_nanos(), || format!("worker {w} may run until {until:?}"));
                self.worker_step(life, w, |core, now, host| core.set_hosting_until(now, until, host));
            }
            Inner::Returns(w) => {
                self.log(23, index, u64::from(w), || format!("a handler of worker {w} returns"));
                self.returns(life, w);
            }
            Inner::Send { sender, entity } => self.client_sends(life, sender, entity),
            Inner::Lease(id, answer) => {
                self.log(21, index, id, || format!("the lease answers: {answer:?}"));
                self.net_step(life, |core, now| core.handle_lease(now, id, answer));
            }
            Inner::Told(command) => {
                self.log(24, index, 0, || format!("is told: {}", brief(&command)));
                self.net_step(life, |core, now| core.handle_command(now, command));
            }
            Inner::AskEnds(id) => self.ledger.answered(id, Answered::TimedOut),
            Inner::Exit { next, patience } => {
                let stands_still = self.stands_still(index);
                if stands_still && self.now < patience {
                    return self.inside(life, self.now + EXIT_AFTER, Inner::Exit { next, patience });
                }
                // What such a worker holds ends with the process, and nobody tells of it.
                self.lives[life as usize].crashed |= stands_still;
                self.log(22, index, u64::from(next.is_some()), || "process ends".into());
                self.exit(index);
                if let Some(config) = next {
                    self.queue.push(self.now + REJOIN_AFTER, Event::Rejoin(index, config));
                }
            }
        }
    }

    // Steps of the cores.

    /// Whoever follows that node hears it as well.
    fn overheard(&mut self, index: u32, what: Heard<'_>) {
        let now = self.nodes[index as usize].clock.local(self.now);
        self.shadows_of(index).for_each(|shadow| shadow.hears(now, what));
    }

    pub(super) fn net_step(&mut self, life: u32, step: impl FnOnce(&mut NodeCore, Time)) {
        let index = self.lives[life as usize].node;
        let node = &mut self.nodes[index as usize];
        let now = node.clock.local(self.now);
        let Some(mut p) = node.process.take() else { return };
        step(&mut p.core, now);
        self.lives[life as usize].cluster = p.core.cluster();
        while let Some(effect) = p.core.poll_effect() {
            self.effect(index, &mut p, effect);
        }
        p.steps += 1;
        if p.steps % CHECK_EVERY == 0 {
            p.core.check();
        }
        let node = &mut self.nodes[index as usize];
        if let Some(at) = p.core.poll_timeout() {
            let at = node.clock.world(at).max(self.now);
            if at < p.wake_at {
                p.wake_at = at;
                self.queue.push(at, Event::Inner(life, Inner::Wake(at)));
            }
        }
        node.process = Some(p);
    }

    /// Sets a node's clock: what the cores wait for comes at another moment of the world.
    pub(super) fn set_clock(&mut self, index: u32, rate: Option<f64>, leap: u64) {
        let node = &mut self.nodes[index as usize];
        node.clock.set(self.now, rate, leap);
        let Some(p) = node.process.as_mut() else { return };
        p.wake_at = u64::MAX;
        p.workers.iter_mut().for_each(|w| w.wake_at = u64::MAX);
        let (life, workers) = (p.life, p.workers.len() as u16);
        self.net_step(life, |_, _| ());
        for w in 0..workers {
            self.worker_step(life, w, |_, _, _| ());
        }
    }

    fn effect(&mut self, index: u32, p: &mut Process, effect: Effect) {
        match effect {
            Effect::Datagram { to, bytes } => {
                self.shadows_of(index).for_each(|shadow| shadow.sends(&to, &bytes));
                self.send_datagram(index, &to, bytes);
            }
            Effect::Frame { to, node, frame } => {
                if let Frame::Control(
                    ControlFrame::Assign { term, .. } | ControlFrame::Move { term, .. } | ControlFrame::Recount { term, .. },
                ) = &frame
                    && let Some(broken) = self.terms.acted(p.core.cluster(), *term, p.life)
                {
                    self.violated(broken);
                }
                self.send_frame(index, p.life, &to, node, frame);
            }
            Effect::CloseLink { node, addr } => {
                p.removed.insert(node);
                self.close_link(index, p.life, node, &addr);
            }
            Effect::Worker { worker, command } => {
                if let ShardCommand::Assign { shard, epoch, .. } = &command {
                    self.log(30, index, epoch.get(), || format!("assigned {shard:?} at {}", epoch.get()));
                }
                let at = p.workers[usize::from(worker)].from_net.next(self.now, &mut self.faults);
                self.inside(p.life, at, Inner::Command(worker, command));
            }
            Effect::Publish { shard, word } => {
                self.log(31, index, word.bits(), || format!("publishes {shard:?}: {word:?}"));
                p.words.insert(shard, word);
                for (i, c) in p.clients.iter_mut().enumerate() {
                    let at = c.publishes.next(self.now, &mut self.faults);
                    self.queue.push(at, Event::Inner(p.life, Inner::Word(i as u32, shard, word)));
                }
            }
            Effect::HostingUntil(until) => {
                p.hosting_until = until;
                for (w, worker) in p.workers.iter_mut().enumerate() {
                    let at = worker.hosting.next(self.now, &mut self.faults);
                    self.queue.push(at, Event::Inner(p.life, Inner::Hosting(w as u16, until)));
                }
            }
            Effect::Quiesce => {
                let at = p.quiesce(self.now);
                self.inside(p.life, at, Inner::Quiet);
            }
            Effect::Reply { correlation, body } => {
                self.log(32, index, correlation, || format!("ask {correlation} ends: {}", brief(&body)));
                let answer = if matches!(body, ReplyBody::Dropped(_) | ReplyBody::OwnerLost) { Answered::Dropped } else { Answered::Reply };
                self.ledger.answered(correlation, answer);
                if let ReplyBody::Dropped(reason) = body {
                    self.ledger.dropped(correlation, reason);
                }
            }
            Effect::Undelivered { envelope, reason } => {
                let note = Note::decode(envelope.payload());
                self.log(33, index, note.map_or(0, |n| n.id), || format!("gives up {note:?}: {reason}"));
                if let Some(note) = note {
                    self.ledger.dropped(note.id, reason);
                }
            }
            Effect::View(view) => {
                self.log(34, index, view.version, || format!("view {}: {}", view.version, brief_view(&view)));
                let mut measure = std::mem::take(&mut self.measure);
                let changes = measure.saw(p.life, view, self.now, |id| self.subject(id), |life| self.in_majority(life));
                self.measure = measure;
                for gone in changes.iter().filter_map(Change::gone) {
                    self.write_off(gone);
                }
                let (lives, by_id) = (&self.lives, &self.by_id);
                let generation = |id: NodeId| by_id.get(&id).map(|l| (lives[*l as usize].node, lives[*l as usize].generation));
                let wrong = self.observed.get_mut(&p.life).and_then(|o| o.step(&changes, generation));
                if let Some((invariant, what)) = wrong {
                    self.violated(Broken { invariant, lives: vec![p.life], what });
                }
                for gone in changes.iter().filter_map(Change::gone) {
                    self.look_for_two_sides(index, p.life, gone);
                }
            }
            Effect::Event(event) => self.log(35, index, 0, || format!("event: {}", brief(&event))),
            // Every type of a scenario says its number.
            Effect::TypeSized { .. } => {}
            Effect::TypeReady { ty, result } => {
                if let Err(why) = result {
                    let what = format!("type {:08x} was refused: {why}", ty.0);
                    self.violated(Broken { invariant: "E7", lives: vec![p.life], what });
                }
            }
            Effect::Done { id, answer } => {
                self.log(36, index, id, || format!("command {id}: {}", brief(&answer)));
                let why = match answer {
                    Answer::Refused(why) => why,
                    Answer::NoAuthority => "no coordinator answered".to_owned(),
                    Answer::NoMember(node) => format!("the node that was told knows no member {node}"),
                    _ => return,
                };
                match undone::action_of(id) {
                    Some((action, node)) => {
                        self.refused(action, node);
                        self.not_done(action, &[node], &why);
                    }
                    None => self.moves_refused += 1,
                }
            }
            Effect::Resolve(_) => unreachable!("in a scenario a name has one address"),
            Effect::Lease { id, call } => self.ask_lease(index, p.life, id, &call),
            Effect::Ended(how) => {
                self.log(37, index, 0, || format!("membership is over: {how:?}"));
                if p.ending {
                    return;
                }
                p.ending = true;
                if let Ending::Downed(_) = how {
                    self.took_itself_out(p);
                }
                self.measure.not_live(p.life);
                // As the engine's shutdown: workers stop what they run, then the process ends.
                for w in 0..p.workers.len() {
                    let at = p.workers[w].from_net.next(self.now, &mut self.faults);
                    self.inside(p.life, at, Inner::Command(w as u16, ShardCommand::Stop));
                }
                let next = self.next_life(index, p, how);
                self.inside(p.life, self.now + EXIT_AFTER, Inner::Exit { next, patience: self.now + EXIT_PATIENCE });
            }
        }
    }

    /// A view lacks a member that is gone. Where each side was told to go on by itself, both do.
    fn look_for_two_sides(&mut self, index: u32, life: u32, gone: NodeId) {
        let (live, me) = (self.measure.live(), self.lives[life as usize].id);
        let by_itself = self.nodes[index as usize].config.membership.auto_down_after.is_some();
        let Some(&whom) = self.by_id.get(&gone).filter(|whom| !by_itself && live.contains_key(*whom) && live.contains_key(&life)) else {
            return;
        };
        let (Some(mine), Some(theirs)) = (self.observed.get(&life), self.observed.get(&whom)) else { return };
        if let Some((invariant, what)) = mine.split_from(me, theirs, gone) {
            self.violated(Broken { invariant, lives: vec![life, whom], what });
        }
    }

    /// Who is removed while paused does not run any more, as far as anybody can tell.
    fn write_off(&mut self, id: NodeId) {
        if let Some(&life) = self.by_id.get(&id) {
            let node = &mut self.nodes[self.lives[life as usize].node as usize];
            if node.paused && node.life == Some(life) && self.measure.live().contains_key(&life) {
                node.written_off = true;
                self.measure.not_live(life);
            }
        }
    }

    fn worker_step(&mut self, life: u32, w: u16, step: impl FnOnce(&mut ShardCore<SimHost>, Time, &mut SimHost)) {
        let index = self.lives[life as usize].node;
        let node = &mut self.nodes[index as usize];
        let now = node.clock.local(self.now);
        let clock = node.clock;
        let Some(p) = node.process.as_mut() else { return };
        p.steps += 1;
        let check = p.steps % CHECK_EVERY == 0;
        let worker = &mut p.workers[usize::from(w)];
        step(&mut worker.core, now, &mut worker.host);
        if check {
            worker.core.check();
        }
        if let Some(at) = worker.core.poll_timeout() {
            let at = clock.world(at).max(self.now);
            if at < worker.wake_at {
                worker.wake_at = at;
                self.queue.push(at, Event::Inner(life, Inner::WorkerWake(w, at)));
            }
        }
        for outgoing in worker.host.outgoing.drain(..) {
            let at = worker.to_net.next(self.now, &mut self.faults);
            self.queue.push(at, Event::Inner(life, Inner::Outgoing(w, outgoing)));
        }
        if !worker.host.happened.is_empty() {
            let mut happened = std::mem::take(&mut worker.host.happened);
            for h in happened.drain(..) {
                self.happened(life, index, h);
            }
            if let Some(p) = self.nodes[index as usize].process.as_mut() {
                p.workers[usize::from(w)].host.happened = happened;
            }
        }
    }

    fn happened(&mut self, life: u32, index: u32, h: Happened) {
        let cluster = self.lives[life as usize].cluster;
        let broken = match h {
            Happened::Started { entity, at, state } => {
                self.log(40, index, u64::from(entity), || format!("entity {entity} starts in {:?} at {}", at.shard, at.epoch.get()));
                self.instances.started(entity, life, cluster, state)
            }
            Happened::Stopped { entity, why } => {
                self.log(41, index, u64::from(entity), || format!("entity {entity} stops: {why}"));
                self.instances.stopped(entity, life)
            }
            Happened::HandedOver { entity, state } => {
                self.log(42, index, state, || format!("entity {entity} is handed over"));
                self.instances.handed_over(entity, cluster, state);
                None
            }
            Happened::Handled { note, entity, epoch, .. } => {
                self.log(43, index, note.id, || format!("entity {entity} handles {note:?} at {}", epoch.get()));
                self.ledger.seen_at(note.id, life);
                let order = self.ledger.delivered(note, entity).err().map(|wrong| Broken {
                    invariant: if wrong == Wrong::Duplicate { "E4" } else { "E3" },
                    lives: vec![life],
                    what: format!("entity {entity}, sender {}, number {} (message {}): {wrong:?}", note.sender, note.seq, note.id),
                });
                if let Some(broken) = order {
                    self.violated(broken);
                }
                self.instances.turn(entity, life, (cluster, epoch))
            }
            Happened::Undelivered { note, reason } => {
                self.log(44, index, note.map_or(0, |n| n.id), || format!("worker gives up {note:?}: {reason}"));
                if let Some(note) = note {
                    self.ledger.dropped(note.id, reason);
                }
                None
            }
            Happened::Running { shard, yes } => {
                self.log(45, index, u64::from(shard.shard.0), || format!("{shard:?} {}", if yes { "runs" } else { "ended" }));
                self.instances.shard(shard, life, yes);
                None
            }
            Happened::Wrong(what) => Some(Broken { invariant: "E6", lives: vec![life], what }),
        };
        if let Some(broken) = broken {
            self.violated(broken);
        }
    }

    pub(super) fn check_instances(&mut self) {
        let (lives, nodes, now) = (&self.lives, &self.nodes, self.now);
        let live = |life: u32| {
            let l = lives[life as usize];
            let node = &nodes[l.node as usize];
            !l.over && !node.paused && node.process.as_ref().is_some_and(|p| p.life == life && node.clock.local(now) < p.hosting_until)
        };
        let found = self.instances.check(now, live);
        for broken in found {
            self.violated(broken);
        }
    }

    fn send_datagram(&mut self, from: u32, to: &NodeAddr, bytes: Vec<u8>) {
        let size = bytes.len() as u64;
        self.max_datagram = self.max_datagram.max(size);
        self.traffic.sent(from, size, self.now, self.measure.ever_all_up);
        let Some(to) = settings::index_of(to).filter(|i| *i < self.scenario.nodes) else {
            return self.log(50, from, 0, || format!("datagram to {to}, which is nowhere"));
        };
        let fate = self.net.datagram(from, to, &mut self.faults);
        self.log(51, from, u64::from(to), || format!("datagram to n{to}, {size} bytes ({}): {fate:?}", parts_of(&bytes)));
        let Fate::Arrives(delay, twice) = fate else { return };
        // A datagram goes to whoever has the port when it arrives; the life is looked up now, as starts are rare beside datagrams.
        let Some(life) = self.nodes[to as usize].life else { return };
        if let Some(second) = twice {
            self.inside(life, self.now + second, Inner::Datagram(bytes.clone(), from));
        }
        self.inside(life, self.now + delay, Inner::Datagram(bytes, from));
    }
}

fn node_client(node: &mut Node, client: u32) -> Option<&mut Client> {
    node.process.as_mut()?.clients.get_mut(client as usize)
}
