//! The network thread: owns the sockets and `NodeCore`, and is the only one that resolves routes.
//!
//! Order of a turn: datagrams, then frames (bounded), then lanes (bounded), then timers; then the effects of all of that; then one write
//! per link and one bell per worker.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    io,
    os::fd::RawFd,
    sync::Arc,
    time::Duration,
};

use foldhash::fast::FixedState;
use mio::Token;

use crate::{
    NodeAddr, NodeId, Nodes, Time, TypeId,
    engine::{
        asker::Mailbox,
        carrier::Carrier,
        doze::Doze,
        duty::{Did, Seen, Turns, Wakes},
        idle::{AGAIN_AFTER, Idler, Rest, UNSURE},
        lane::{Front, Item as _, Ring},
        letter::{Address, Letter},
        names::Names,
        news::News,
        node::{Completion, CoreCounters, Job, Node, ToNet, ToWorker, Vital},
        parcel::{Answered, EngineParcel},
        port::Port,
        short_ways::ShortWays,
        slow_turns::{Inside, LOOK_EVERY, Watch},
        sys,
        types::{Standing, TypeEntry, show_bytes},
    },
    net::{NetEvent, Unsent},
    proto::{
        handoff::{Ask, DropReason, Item, ReplyBody},
        link::LinkEvent,
        membership::{Event, Identity, Member, MemberStatus},
        node::{Command, Effect, NodeCore},
        shard::{LaneItem, Parcel, ShardCommand},
        sharding::TypeInfo,
        wire::{Frame, Message},
    },
};

/// Items taken from one lane before the next one has its turn.
const BATCH: usize = 256;
/// Bytes of messages taken from one lane before the next one has its turn: far below what a link may be over its limit.
const BATCH_BYTES: usize = 32 << 10;
/// A turn that begins so much later than its timer asked for is counted as late.
const LATE: Duration = Duration::from_millis(50);
/// After the end of membership, links are kept so long to write out what was answered last, and for peers to have read it.
const LINGER: Duration = Duration::from_millis(500);
/// Peers have so long to close their ends in any case.
const LINGER_MIN: Duration = Duration::from_millis(100);

/// A network thread without the thread: its work is a row of [`turn`](Self::turn)s, each a function of the moment and of what came in.
pub struct Network<N> {
    node: Arc<Node>,
    net: N,
    core: NodeCore,
    ports: Vec<Port>,
    lanes: Vec<Ring<ToNet>>,
    types: BTreeMap<TypeId, Arc<TypeEntry>>,
    short_ways: ShortWays,
    /// The peer of the last message, if the core has taken it for a sign of life in this turn.
    signed: Option<(NodeId, Time)>,
    completions: BTreeMap<u64, Completion>,
    /// What this turn has to tell threads, in order.
    news: News,
    /// The turn is on a thread of users.
    guest: bool,
    /// What guests' turns have left to the network thread: code of users, and names.
    left: Vec<Job>,
    /// Who got an answer last and was not told.
    asker: Option<&'static Mailbox>,
    next_command: u64,
    /// Small numbers of the peers that requests went to.
    peers: HashMap<NodeId, u32, FixedState>,
    next_peer: u32,
    /// The node leaves and takes nothing from threads any more: the workers whose lanes may still hold something of theirs.
    quiescing: Option<BTreeSet<u16>>,
    quit_at: Option<Time>,
    /// When to offer to workers again what found no room in their rings.
    again_at: Option<Time>,
    /// When counters were last copied for readers.
    counted: Time,
    watch: Watch,
    /// When to look at the workers again.
    watch_at: Option<Time>,
}

/// Counters are copied for readers at most so often.
const COUNT_EVERY: Duration = Duration::from_millis(200);

/// Runs the network thread until it is told to quit.
pub fn run(node: Arc<Node>, net: impl Carrier + Send + 'static, mut doze: Doze, me: Identity, seed: u64) {
    let mut idler = Idler::of_engine(node.config.node.idle);
    let (duty, bell) = (&node.duty, node.network.bell());
    let _vital = Vital(&node);
    // Also when a turn panics: the work holds the node, which holds the work.
    let _end = End(&node);
    // Hooks of users run here, and what they would wait for is this thread's to bring.
    crate::api::mark_engine_thread(true);
    duty.begin(Box::new(Network::new(node.clone(), net, me, seed, sys::now())));
    // Sockets have told this thread of something, and it has not looked.
    let (mut seen, mut told) = (Seen::default(), false);
    loop {
        let began = sys::now();
        let needed = duty.needs_me(&mut seen, began) || told;
        let did = if needed { duty.turn(&node) } else { Did::Busy };
        told &= did == Did::Busy;
        match did {
            Did::Over => break,
            Did::Work => idler.worked(began),
            Did::Busy if seen.worked => idler.worked(began),
            Did::Busy | Did::Nothing => {}
        }
        let now = sys::now();
        match idler.rest(now) {
            Rest::Spin => {}
            Rest::Yield => {
                std::thread::yield_now();
                idler.yielded(now, sys::now());
            }
            Rest::Park if told => std::thread::yield_now(),
            Rest::Park => {
                match duty.lie_down(bell, sys::now, UNSURE) {
                    Some(sleep) => told = doze.sleep(sleep),
                    None => std::thread::yield_now(),
                }
                duty.awake(bell);
            }
        }
    }
}

/// Ends the work with the thread.
struct End<'a>(&'a Arc<Node>);

impl Drop for End<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // Nobody else tells workers.
            self.0.workers.iter().for_each(|worker| worker.post(ToWorker::Quit));
        }
        self.0.duty.end();
        self.0.network.end(self.0.give_up_abroad());
    }
}

impl<N> Drop for Network<N> {
    fn drop(&mut self) {
        self.node.network.leave(std::mem::take(&mut self.lanes));
    }
}

impl<N: Carrier + Send> Turns for Network<N> {
    fn turn(&mut self, guest: bool) -> bool {
        self.guest = guest;
        self.measured(Self::turn)
    }

    fn turn_for(&mut self, link: Token) -> bool {
        self.guest = true;
        self.measured(|network, now| {
            let read = network.net.read_from(link, now);
            network.take(read, now)
        })
    }

    fn owes(&self) -> bool {
        !self.left.is_empty()
    }

    fn settle(&mut self) -> bool {
        let left = std::mem::take(&mut self.left);
        let any = !left.is_empty();
        left.into_iter().for_each(|job| job());
        any
    }

    fn pass_on(&mut self) {
        self.guest = true;
        let now = self.node.now();
        self.lanes(now);
        self.hand_out(now);
    }

    fn wakes(&mut self) -> Wakes {
        let mut wakes = Wakes { asker: self.asker.take(), workers: 0 };
        for (worker, port) in self.ports.iter_mut().enumerate() {
            wakes.workers |= u64::from(std::mem::take(&mut port.untold)) << (worker % 64);
        }
        wakes
    }

    fn is_quiet(&self) -> bool {
        Self::is_quiet(self)
    }

    fn due(&self) -> Option<Time> {
        Self::due(self)
    }

    fn has_ended(&self) -> bool {
        self.quit_at.is_some() && self.is_done(self.node.now())
    }

    fn finish(&mut self) {
        let shortest = self.node.now() + LINGER_MIN;
        self.net.finish(self.quit_at.map_or(shortest, |at| at.max(shortest)), || self.node.now());
    }

    fn sleeper(&mut self) -> Option<RawFd> {
        self.net.sleeper()
    }
}

impl<N: Carrier> Network<N> {
    fn measured(&mut self, turn: impl FnOnce(&mut Self, Time) -> bool) -> bool {
        let now = self.node.now();
        let worked = turn(self, now);
        self.node.metrics.network.turns.bump(1);
        self.node.metrics.network_turn.record(self.node.now().since(now));
        worked
    }

    /// The network thread of a node that starts now.
    pub fn new(node: Arc<Node>, net: N, me: Identity, seed: u64, now: Time) -> Self {
        let workers = u16::try_from(node.workers.len()).expect("the number of workers came from a u16");
        let ports = node.workers.iter().map(|door| Port::new(door.open(node.next_lane(), Port::items(&node.config))));
        let mut network = Self {
            core: NodeCore::new(node.config.clone(), me, workers, seed, now),
            ports: ports.collect(),
            lanes: vec![],
            types: BTreeMap::new(),
            short_ways: ShortWays::default(),
            signed: None,
            completions: BTreeMap::new(),
            news: News::default(),
            guest: false,
            left: vec![],
            asker: None,
            next_command: 1,
            peers: HashMap::default(),
            next_peer: 0,
            quiescing: None,
            quit_at: None,
            again_at: None,
            counted: Time::ZERO,
            watch: Watch::new(node.workers.len()),
            // Where one thread does everybody's work, nobody can look while another is at work.
            watch_at: (!node.clock.is_virtual()).then_some(now),
            node,
            net,
        };
        network.core.start(now);
        network.effects(now);
        network.hand_out(now);
        network
    }

    /// One turn without waiting. True if there was anything to do.
    pub fn turn(&mut self, now: Time) -> bool {
        let polled = self.net.poll(Some(Duration::ZERO), || self.node.now()).map(drop);
        self.take(polled, now)
    }

    /// The turn behind the look at the sockets.
    fn take(&mut self, polled: io::Result<()>, now: Time) -> bool {
        if let Err(error) = polled {
            tracing::error!(target: "wingbeat::net", %error, "polling the sockets failed");
        }
        let mut worked = self.sockets(now);
        let passed_on = self.lanes(now);
        worked |= passed_on;
        worked |= !passed_on && self.is_quiesced() && self.quiesced(now);
        worked |= self.timers(now);
        if worked && now.since(self.counted) >= COUNT_EVERY {
            self.counted = now;
            self.node.set_core_state(self.core.moving(), CoreCounters { protocol: self.core.counters(), sockets: self.net.counters() });
        }
        if self.watch_at.is_some_and(|at| at <= now) {
            self.watch_at = Some(now + LOOK_EVERY);
            self.watch_workers(now);
        }
        if worked || self.ports.iter().any(|port| port.used || !port.waiting.is_empty()) {
            // A worker that makes room is awake, and so is this thread until nothing waits for it.
            worked |= self.hand_out(now);
        }
        worked
    }

    /// The end of a turn: what workers get is published, one write made per link, and threads are told. Workers first: one that is awake sees its part
    /// while the write, a call of the system, takes its time. True if something had waited for room, and has found it.
    fn hand_out(&mut self, now: Time) -> bool {
        if cfg!(debug_assertions) {
            self.core.check();
        }
        let moved = self.ports.iter_mut().fold(false, |moved, port| port.flush() | moved);
        self.again_at = self.ports.iter().any(|port| !port.waiting.is_empty()).then(|| now + AGAIN_AFTER);
        self.net.flush(now);
        self.news.tell(&self.node, self.guest.then_some(&mut self.left));
        moved
    }

    fn workers(&self) -> u16 {
        u16::try_from(self.ports.len()).expect("the number of workers came from a u16")
    }

    fn sockets(&mut self, now: Time) -> bool {
        let mut worked = false;
        let workers = self.workers();
        loop {
            let Self { net, core, ports, short_ways, node, signed, .. } = self;
            let mut taken = 0;
            let event = net.next(|peer, message| {
                if *signed != Some((peer, now)) {
                    *signed = core.sign(now, peer).then_some((peer, now));
                }
                let straight = signed.is_some()
                    && short_ways.from(core, peer, message.shard, message.tag)
                    && ports[usize::from(message.shard.worker(workers))].arrived(peer, message);
                taken += u64::from(straight);
                straight
            });
            node.metrics.network.frames_received.bump(taken);
            worked |= taken > 0;
            let Some(event) = event else { break };
            worked = true;
            match event {
                NetEvent::Datagram { bytes, from } => {
                    self.node.metrics.network.datagrams_received.bump(1);
                    let strange = self.core.strange_datagrams();
                    self.core.handle_datagram(now, &bytes);
                    if self.core.strange_datagrams() != strange {
                        self.net.log_stranger(from.ip(), &format_args!("a datagram of {} bytes that no node sends", bytes.len()));
                    }
                }
                NetEvent::Frame { peer, frame: Frame::Cast { ty, topic, bytes } } => {
                    self.node.metrics.network.frames_received.bump(1);
                    self.cast_arrived(peer, ty, topic, bytes);
                }
                // What the core would say of it, if nothing has to be done first.
                NetEvent::Frame { peer, frame: Frame::Reply { correlation, body } } if self.core.sign(now, peer) => {
                    self.node.metrics.network.frames_received.bump(1);
                    self.answered(correlation, body);
                    continue;
                }
                NetEvent::Frame { peer, frame } => {
                    self.node.metrics.network.frames_received.bump(1);
                    self.core.handle_frame(now, peer, frame);
                }
                // The core takes whole frames for signs of life.
                NetEvent::Traffic(_) => {}
                NetEvent::Link(event) => {
                    if matches!(event, LinkEvent::Up { .. }) {
                        self.node.workers.iter().for_each(|worker| worker.post(ToWorker::LinkUp));
                    }
                    self.core.handle_link(now, event);
                }
                NetEvent::Resolve { addr } => self.look_up(addr),
            }
            self.effects(now);
        }
        worked
    }

    fn lanes(&mut self, now: Time) -> bool {
        while let Some(lane) = self.node.network.take_new() {
            self.lanes.push(lane);
        }
        let mut worked = false;
        let mut ended = vec![];
        let mut lanes = std::mem::take(&mut self.lanes);
        for lane in &mut lanes {
            let (id, mut bytes) = (lane.id, 0);
            let mut free = self.core.lane_is_free(id);
            for _ in 0..BATCH {
                let next = lane.with_next(|front| match front {
                    Front::Letter(letter) => {
                        bytes += letter.encoded().map_or(0, <[u8]>::len);
                        if free && self.short_way(now, &letter) { None } else { ToNet::of_letter(letter) }
                    }
                    Front::Item(item) => Some(item),
                });
                let Some(item) = next else { break };
                worked = true;
                if let Some(item) = item {
                    bytes += item.outside();
                    if matches!(item, ToNet::Lane(LaneItem::End)) {
                        ended.push(id);
                    }
                    self.incoming(now, id, item);
                    // In front of what follows in the lane, which may go a shorter way.
                    self.effects(now);
                    free = self.core.lane_is_free(id);
                }
                if bytes >= BATCH_BYTES {
                    break;
                }
            }
            lane.release();
            if self.net.has_events() {
                // A link that has no more room: known before the next lane adds to it.
                self.sockets(now);
            }
        }
        self.lanes = lanes;
        let node = self.node.clone();
        // What is posted while this goes on waits for the next turn, as its sender may be fast for ever.
        for _ in 0..BATCH {
            let Some(item) = node.network.take_posted() else { break };
            worked = true;
            // Posted items belong to no lane; the id is not used for them.
            self.incoming(now, crate::proto::shard::LaneId(u32::MAX), item);
            self.effects(now);
        }
        if !ended.is_empty() {
            self.lanes.retain(|lane| !ended.contains(&lane.id));
        }
        worked
    }

    /// Straight from a lane to the link of the node where the shard lives, if nothing stands in front of it. False: nothing was done.
    #[inline]
    fn short_way(&mut self, now: Time, letter: &Letter<'_>) -> bool {
        let (Address { shard, key, ask, .. }, Some(payload)) = (letter.address(), letter.encoded()) else { return false };
        let Some((to, tag)) = self.short_ways.to(&mut self.core, shard) else { return false };
        let sent = self.net.send_message(now, to, &Message { shard, tag, ask, key, payload });
        if sent {
            self.node.metrics.network.frames_sent.bump(1);
            if let Some(ask) = ask {
                self.note_ask(to, ask);
            }
        }
        sent
    }

    fn incoming(&mut self, now: Time, lane: crate::proto::shard::LaneId, item: ToNet) {
        match item {
            ToNet::Lane(item) => self.core.handle_lane(now, lane, item),
            ToNet::Report(worker, report) => self.core.handle_report(now, worker, *report),
            ToNet::Reply { to, correlation, body } => match self.core.reply_way(to).cloned() {
                Some(addr) => {
                    let body = body.fitted(self.node.config.limits.frame_bytes as usize);
                    self.send(now, &addr, Some(to), Frame::Reply { correlation, body });
                }
                None => self.core.handle_reply(now, to, correlation, body),
            },
            ToNet::Command(make, completion) => {
                let id = self.next_command;
                self.next_command += 1;
                if let Some(completion) = completion {
                    self.completions.insert(id, completion);
                }
                self.core.handle_command(now, make(id));
            }
            ToNet::Type(entry, host) => {
                self.types.insert(entry.id, entry.clone());
                if host {
                    for port in &mut self.ports {
                        port.push(ToWorker::Type(entry.clone()));
                        port.push(ToWorker::Command(ShardCommand::Host { ty: entry.id }));
                    }
                }
                let info = TypeInfo { name: entry.name.to_string(), ty: entry.id, shards: entry.shards().unwrap_or(0), host };
                self.core.handle_command(now, Command::Register { info });
            }
            ToNet::Cast(nodes, frame) => self.cast(now, &nodes, &frame),
            ToNet::Resolved(addr, result) => {
                if let Ok(found) = &result {
                    self.core.handle_resolved(now, &addr, found.iter().copied().map(NodeAddr::from).collect());
                }
                self.net.resolved(now, &addr, result);
            }
            ToNet::Lease(id, answer) => self.core.handle_lease(now, id, answer),
            ToNet::Quiet(worker) => {
                if let Some(left) = &mut self.quiescing {
                    left.remove(&worker);
                }
            }
            ToNet::Quit => {
                self.quit_at.get_or_insert(now + LINGER);
                self.core.close(now);
                for port in &mut self.ports {
                    port.push(ToWorker::Command(ShardCommand::Stop));
                    port.push(ToWorker::Quit);
                }
            }
        }
    }

    /// To the other nodes that are meant. One that has no room misses it.
    fn cast(&mut self, now: Time, nodes: &Nodes, frame: &Frame) {
        let view = self.node.view();
        let present =
            |m: &&Member| m.id != view.me && matches!(m.status, MemberStatus::WeaklyUp | MemberStatus::Up | MemberStatus::Leaving);
        for member in view.members.iter().filter(present).filter(|m| nodes.contain(view.me, m)) {
            if let Err(why) = self.net.send_frame(now, &member.addr, Some(member.id), frame) {
                self.node.metrics.shared.casts_unsent.add(1);
                tracing::debug!(target: "wingbeat::net", peer = %member.addr, %why, "a published value was not sent");
            }
        }
    }

    /// From another node, for whom it concerns here.
    fn cast_arrived(&mut self, peer: NodeId, ty: TypeId, topic: u64, bytes: Box<[u8]>) {
        if self.node.view().member(peer).is_none() {
            return self.node.metrics.drops.add(DropReason::SenderRemoved, 1);
        }
        if ty == TypeId(0) {
            return self.node.topics.arrived(&self.node, topic, bytes);
        }
        let bytes: Arc<[u8]> = bytes.into();
        for port in self.ports.iter_mut() {
            if port.has_room(bytes.len()) {
                port.push(ToWorker::Broadcast(ty, bytes.clone()));
            } else {
                self.node.metrics.drops.add(DropReason::Overloaded, 1);
            }
        }
    }

    /// Names the entity whose code a worker does not come out of.
    fn watch_workers(&mut self, now: Time) {
        for (worker, busy) in self.node.busy.iter().enumerate() {
            if let Some(inside) = self.watch.look(now, worker, busy) {
                let Inside { shard, took, .. } = inside;
                let entity_type = self.types.get(&shard.ty).map_or("?", |entry| &entry.name);
                // Its type would write it in the user's way, who may be waiting for this thread.
                let key = inside.key(show_bytes);
                tracing::warn!(target: "wingbeat::engine", worker, entity_type, %key, shard = shard.shard.0, ?took, "an entity's code does not return; what else lives on this worker waits");
            }
        }
    }

    fn timers(&mut self, now: Time) -> bool {
        let (mut worked, mut protocol) = (false, None);
        if self.net.poll_timeout().is_some_and(|due| due <= now) {
            self.net.handle_timeout(now);
            worked = true;
        }
        if let Some(due) = self.core.poll_timeout()
            && due <= now
        {
            if now.since(due) > LATE {
                self.node.metrics.network.late_turns.bump(1);
            }
            self.core.handle_timeout(now);
            (worked, protocol) = (true, Some(due));
        }
        if self.node.asks_due().is_some_and(|due| due <= now) {
            self.node.expire_asks(now, self.guest.then_some(&mut self.left));
            worked = true;
        }
        if worked {
            self.effects(now);
        }
        if let Some(due) = protocol {
            // What the timer sends has been sent: what came in front of it in this turn counts as well.
            self.node.metrics.timer_delay.record(self.node.now().since(due));
        }
        worked
    }

    /// A frame for another node.
    fn send(&mut self, now: Time, to: &NodeAddr, node: Option<NodeId>, frame: Frame) {
        match self.net.send_frame(now, to, node, &frame) {
            Ok(()) => self.node.metrics.network.frames_sent.bump(1),
            Err(unsent) => self.unsent(now, (to, node), frame, &unsent),
        }
    }

    /// The answer to an ask of this node.
    fn answered(&mut self, correlation: u64, body: ReplyBody) {
        if let Some(asker) = self.node.complete_untold(correlation, Answered::Wire(body), self.guest.then_some(&mut self.left))
            && let Some(before) = self.asker.replace(asker)
        {
            before.bell().ring();
        }
    }

    /// Carries out what the core wants done.
    fn effects(&mut self, now: Time) {
        while let Some(effect) = self.core.poll_effect() {
            match effect {
                Effect::Datagram { to, bytes } => {
                    self.node.metrics.network.datagrams_sent.bump(1);
                    self.net.send_datagram(now, &to, &bytes);
                }
                Effect::Frame { to, node, frame } => {
                    if let (Some(to), Frame::Item { item: Item::Msg { envelope, .. }, .. }) = (node, &frame)
                        && let Some(ask) = envelope.ask
                    {
                        self.note_ask(to, ask);
                    }
                    self.send(now, &to, node, frame);
                }
                Effect::CloseLink { node, addr } => self.net.close(now, node, &addr),
                Effect::Worker { worker, command } => self.command_worker(now, worker, command),
                Effect::Publish { shard, word } => {
                    let published = self.types.get(&shard.ty).is_some_and(|entry| entry.publish(shard.shard, word));
                    debug_assert!(published, "words are published for shards of registered types only: {shard:?}");
                }
                Effect::HostingUntil(until) => {
                    self.node.set_hosting_until(until);
                    for door in &self.node.workers {
                        door.bell().ring();
                    }
                }
                Effect::Reply { correlation, body } => self.answered(correlation, body),
                Effect::Undelivered { envelope, reason } => {
                    let shard = envelope.shard;
                    self.node.bury(shard, &EngineParcel::from_envelope(envelope), reason);
                }
                Effect::View(view) => self.node.set_view(view),
                Effect::Event(event) => {
                    if let Event::ShardMoved { took, .. } = &event {
                        self.node.metrics.handoff.record(*took);
                    }
                    self.end_asks(&event);
                    self.news.event(event);
                }
                Effect::TypeReady { ty, result } => {
                    if let Some(entry) = self.types.get(&ty) {
                        if let Err(why) = &result {
                            tracing::error!(target: "wingbeat::sharding", entity_type = %entry.name, %why, "the coordinator refused the type");
                        }
                        entry.set_standing(result.map_or_else(Standing::Refused, |()| Standing::Ready));
                    }
                }
                Effect::TypeSized { ty, shards } => {
                    if let Some(entry) = self.types.get(&ty) {
                        entry.set_shards(shards);
                    }
                }
                Effect::Done { id, answer } => {
                    if let Some(completion) = self.completions.remove(&id) {
                        self.news.done(completion, answer);
                    }
                }
                Effect::Quiesce => self.quiesce(),
                Effect::Resolve(name) => self.look_up(name),
                Effect::Lease { id, call } => self.node.ask_lease(id, call),
                Effect::Ended(ending) => self.news.ended(ending),
            }
        }
    }

    /// From now on threads are told that the node shuts down.
    fn quiesce(&mut self) {
        self.node.begin_closing();
        self.ports.iter_mut().for_each(|port| port.push(ToWorker::Quiesce));
        self.quiescing = Some((0..).take(self.ports.len()).collect());
    }

    /// Workers have passed on what they had, and behind that nothing was in any lane in this turn.
    fn is_quiesced(&self) -> bool {
        self.quiescing.as_ref().is_some_and(BTreeSet::is_empty)
    }

    fn quiesced(&mut self, now: Time) -> bool {
        self.quiescing = None;
        self.core.handle_quiet(now);
        self.effects(now);
        true
    }

    /// Remembers which peer has the request of an ask of this node.
    fn note_ask(&mut self, to: NodeId, ask: Ask) {
        if ask.node == self.node.id {
            let next = &mut self.next_peer;
            let peer = *self.peers.entry(to).or_insert_with(|| {
                *next += 1;
                *next
            });
            self.node.slots.sent_to(ask.correlation, peer);
        }
    }

    /// A member that was down is gone: what it was asked and has not answered, it never will. Of a member that left in order, an answer
    /// can still come from wherever its shards went.
    fn end_asks(&mut self, event: &Event) {
        let Event::Member { member, was } = event else { return };
        if member.status != MemberStatus::Removed {
            return;
        }
        if let Some(peer) = self.peers.remove(&member.id)
            && *was == Some(MemberStatus::Down)
        {
            let lost: Vec<u64> = self.node.slots.at(peer).collect();
            for correlation in lost {
                if let Some(asker) =
                    self.node.complete_untold(correlation, Answered::Wire(ReplyBody::OwnerLost), self.guest.then_some(&mut self.left))
                {
                    asker.bell().ring();
                }
            }
        }
    }

    fn command_worker(&mut self, now: Time, worker: u16, command: ShardCommand) {
        let port = &mut self.ports[usize::from(worker)];
        if port.takes(&command) {
            return port.push(ToWorker::Command(command));
        }
        // A message is given up. A sign, or what a coordinator says, is repeated by its sender, once a second for as long as the worker does not answer.
        if let Some(Item::Msg { envelope, .. }) = command.item() {
            self.node.bury(envelope.shard, &EngineParcel::from_envelope(envelope.clone()), DropReason::Overloaded);
            if let Some(ask) = envelope.ask {
                self.core.handle_reply(now, ask.node, ask.correlation, ReplyBody::Dropped(DropReason::Overloaded));
            }
        }
    }

    /// A frame did not fit. A message is given up like any other; what controls a move is repeated by its sender.
    fn unsent(&mut self, now: Time, (to, node): (&NodeAddr, Option<NodeId>), frame: Frame, why: &Unsent) {
        match frame {
            // It ran, and its asker hears why there is no answer.
            Frame::Reply { correlation, body } if matches!(why, Unsent::Blocked { .. }) => {
                let text = format!("the reply has {} bytes, and {why}; ask for less at once, or raise the limit on all nodes", body.size());
                self.send(now, to, node, Frame::Reply { correlation, body: ReplyBody::Rejected(text) });
            }
            Frame::Item { shard, item: Item::Msg { envelope, .. } } => {
                let ask = envelope.ask;
                self.node.bury(shard, &EngineParcel::from_envelope(envelope), DropReason::NoCredit);
                if let Some(ask) = ask {
                    self.core.handle_reply(now, ask.node, ask.correlation, ReplyBody::Dropped(DropReason::NoCredit));
                }
            }
            other => tracing::error!(target: "wingbeat::net", %why, kind = ?std::mem::discriminant(&other), "a frame was not sent"),
        }
    }

    /// Has a name looked up. A guest leaves that to the network thread: see [`Names::look_up`].
    fn look_up(&mut self, addr: NodeAddr) {
        let node = self.node.clone();
        let ask = move || Names::look_up(&node, addr);
        if self.guest {
            self.left.push(Box::new(ask));
        } else {
            ask();
        }
    }

    /// Whether a turn has nothing to do before something comes in or a timer is due.
    pub fn is_quiet(&self) -> bool {
        self.node.network.is_quiet() && self.lanes.iter().all(|l| l.is_empty()) && !self.net.has_work() && !self.is_quiesced()
    }

    /// When a turn has something to do even if nothing comes in.
    pub fn due(&self) -> Option<Time> {
        // Workers that are still there ring when they are gone: the bell alone, so a look that comes behind it must find that.
        let at_end = self.quit_at.filter(|_| self.node.has_no_workers());
        let end = at_end.map(|at| if self.net.unsent_bytes() == 0 { Time::ZERO } else { at });
        let all = [self.net.poll_timeout(), self.core.poll_timeout(), self.node.asks_due(), self.again_at, self.watch_at, end];
        all.into_iter().flatten().min()
    }

    /// Whether the thread has been told to quit, the workers are gone, and the last frames had time to leave.
    pub fn is_done(&self, now: Time) -> bool {
        // What workers said last is in their lanes, however late that was.
        let all_said = || self.node.has_no_workers() && self.lanes.iter().all(Ring::is_empty);
        self.quit_at.is_some_and(|at| all_said() && (now >= at || self.net.unsent_bytes() == 0))
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, SocketAddr};

    use super::*;

    /// Sockets by which nothing comes and nothing goes.
    struct Silence;

    impl Carrier for Silence {
        fn poll(&mut self, _: Option<Duration>, now: impl Fn() -> Time) -> io::Result<Time> {
            Ok(now())
        }
        fn sleeper(&mut self) -> Option<RawFd> {
            None
        }
        fn next(&mut self, _: impl FnMut(NodeId, &Message<'_>) -> bool) -> Option<NetEvent> {
            None
        }
        fn send_message(&mut self, _: Time, _: NodeId, _: &Message<'_>) -> bool {
            false
        }
        fn has_events(&self) -> bool {
            false
        }
        fn has_work(&self) -> bool {
            false
        }
        fn poll_timeout(&self) -> Option<Time> {
            None
        }
        fn handle_timeout(&mut self, _: Time) {}
        fn send_datagram(&mut self, _: Time, _: &NodeAddr, _: &[u8]) {}
        fn send_frame(&mut self, _: Time, _: &NodeAddr, _: Option<NodeId>, _: &Frame) -> Result<(), Unsent> {
            Ok(())
        }
        fn finish(&mut self, _: Time, _: impl Fn() -> Time) {}
        fn flush(&mut self, _: Time) {}
        fn close(&mut self, _: Time, _: NodeId, _: &NodeAddr) {}
        fn resolved(&mut self, _: Time, _: &NodeAddr, _: Result<Vec<SocketAddr>, String>) {}
        fn log_stranger(&mut self, _: IpAddr, _: &dyn std::fmt::Display) {}
        fn unsent_bytes(&self) -> usize {
            0
        }
        fn counters(&self) -> Vec<(&'static str, u64)> {
            vec![]
        }
    }

    /// As of a node whose leaving has taken too long: nobody has told it that its membership is over.
    #[test]
    fn what_waits_for_a_home_when_the_engine_stops_is_a_dead_letter() {
        let (node, me) = (Node::lone(Some(1)), Identity { addr: NodeAddr::new("here", 1), incarnation: 1 });
        let now = node.now();
        let mut network = Network::new(node.clone(), Silence, me, 1, now);
        let shard = crate::ShardKey { ty: crate::TypeId::of("test"), shard: crate::ShardId(1) };
        let parcel = crate::proto::handoff::Envelope::new(shard, None, b"k", b"text").expect("the key is short");
        let item = LaneItem::Msg { shard, tag: crate::Epoch::ZERO, enter: None, parcel };
        network.incoming(now, crate::proto::shard::LaneId(0), ToNet::Lane(item));
        network.incoming(now, crate::proto::shard::LaneId(0), ToNet::Quit);
        network.effects(now);
        assert_eq!(node.metrics.drops.get(DropReason::Shutdown), 1);
    }

    #[test]
    fn what_a_worker_said_last_is_taken_however_late_it_was() {
        let (node, me) = (Node::lone(None), Identity { addr: NodeAddr::new("here", 1), incarnation: 1 });
        let now = node.now();
        let mut network = Network::new(node.clone(), Silence, me, 1, now);
        node.network.post(ToNet::Quit);
        while network.turn(now) {}
        let said = 2 * BATCH;
        let pushed = crate::engine::exits::with(&node, |exits| {
            let pushed = (0..said).filter(|_| exits.network().push(ToNet::Quiet(0)).is_ok()).count();
            exits.network().publish();
            pushed
        });
        assert_eq!(pushed, Some(said));
        // Also behind the end, if its handler took longer than anybody waits.
        node.network.close();
        node.worker_done();
        let late = now + 2 * LINGER;
        network.turn(late);
        assert!(!network.is_done(late), "half of it is in the lane");
        while network.turn(late) {}
        assert!(network.is_done(late));
    }

    #[test]
    fn a_worker_that_makes_no_room_is_looked_at_now_and_then() {
        let (node, me) = (Node::lone(Some(1)), Identity { addr: NodeAddr::new("here", 1), incarnation: 1 });
        let now = node.now();
        let mut network = Network::new(node.clone(), Silence, me, 1, now);
        let mut ring = node.workers[0].take_new().expect("the network thread has a lane to each worker");
        (0..1_000).for_each(|_| network.ports[0].push(ToWorker::Quiesce));
        while network.turn(now) {}
        let later = now + AGAIN_AFTER;
        assert_eq!((network.is_quiet(), network.due().map(|due| due <= later)), (true, Some(true)));
        assert!(ring.pop().is_some());
        let before = network.ports[0].waiting.len();
        assert!(network.turn(later), "what has found room is something that there was to do");
        assert!(network.ports[0].waiting.len() < before);
        while !network.ports[0].waiting.is_empty() {
            while ring.pop().is_some() {}
            network.turn(later);
        }
        assert_eq!(network.again_at, None);
    }
}
