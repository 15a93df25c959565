//! Three homes, two streams and an authority in random order: moves, refusals, forgotten routes, a crash.
//!
//! The sender is section 7 of moves.md and the authority section 4, as small as they can be; every record may arrive at any time,
//! again and again. What is checked is section 11: one instance, order, no doubles, and without a fault no loss.

use std::collections::BTreeMap;

use super::*;
use crate::proto::rng::Rng;

#[derive(Copy, Clone, Debug)]
struct Rec {
    epoch: u64,
    home: usize,
    from: Option<usize>,
    base: u64,
}

/// Section 7, of one stream.
struct Sender {
    node: usize,
    tag: Option<(u64, usize)>,
    dirty: bool,
    pending: Option<(u64, usize)>,
    over: Option<u64>,
    ever_over: bool,
    known: Option<(u64, usize)>,
    sent: u32,
}

const NODES: [NodeId; 4] = [A, B, C, R];

struct World {
    rng: Rng,
    beds: Vec<Bed>,
    alive: [bool; 4],
    /// `knows[n][x]`: n has processed the removal of x.
    knows: [[bool; 4]; 4],
    direct: BTreeMap<(usize, usize), VecDeque<Item>>,
    handoff: BTreeMap<(usize, usize), VecDeque<HandoffItem>>,
    acks: BTreeMap<(usize, usize), VecDeque<u64>>,
    probe_acks: VecDeque<(usize, u64, u64)>,
    records: Vec<Rec>,
    confirmed: bool,
    senders: Vec<Sender>,
    /// Stream and number, in the order of handling.
    handled: Vec<(usize, u32)>,
    dropped: Vec<String>,
    trace: Vec<String>,
    deadlines: bool,
    /// Whether all that is asserted of this run held; if not, the trace is printed on the way out.
    held: bool,
}

impl World {
    fn new(seed: u64, second: usize) -> Self {
        let beds = (0..3).map(|n| {
            let mut bed = Bed::bare(NODES[n]);
            bed.core = ShardCore::new(Arc::new(patient()), NODES[n], 0, seed);
            bed.host.stateless = true;
            bed.until(Time::MAX);
            bed.command(ShardCommand::Host { ty: TY });
            bed
        });
        let sender = |node| Sender { node, tag: None, dirty: false, pending: None, over: None, ever_over: false, known: None, sent: 0 };
        Self {
            rng: Rng::new(seed),
            beds: beds.collect(),
            alive: [true; 4],
            knows: [[false; 4]; 4],
            direct: BTreeMap::new(),
            handoff: BTreeMap::new(),
            acks: BTreeMap::new(),
            probe_acks: VecDeque::new(),
            records: vec![Rec { epoch: 1, home: 0, from: None, base: 1 }],
            confirmed: false,
            senders: vec![sender(3), sender(second)],
            handled: vec![],
            dropped: vec![],
            trace: vec![],
            deadlines: false,
            held: false,
        }
    }

    fn newest(&self) -> Rec {
        *self.records.last().unwrap()
    }

    fn write(&mut self, home: usize, from: Option<usize>, base: u64) {
        let epoch = self.newest().epoch + 1;
        self.trace.push(format!("record {epoch}: {from:?} -> {home} base {base}"));
        self.records.push(Rec { epoch, home, from, base });
        self.confirmed = false;
    }

    fn any_alive(&mut self, but: usize) -> usize {
        let nodes: Vec<_> = (0..3).filter(|&n| n != but && self.alive[n]).collect();
        nodes[self.rng.index(nodes.len()).unwrap()]
    }

    /// What node `n` reported since the last step.
    fn collect(&mut self, n: usize) {
        for line in self.beds[n].log() {
            if let Some((stream, number)) = line.strip_prefix("k:").and_then(|m| m.split_once('.')) {
                self.handled.push((stream.parse().unwrap(), number.parse().unwrap()));
            } else if line.starts_with("drop") {
                self.dropped.push(line.clone());
            }
            self.trace.push(format!("  {n}: {line}"));
        }
        for report in self.beds[n].reports() {
            match report {
                ShardReport::Handoff { to, item, .. } => {
                    let to = NODES.iter().position(|x| *x == to).unwrap();
                    self.trace.push(format!("  {n} hands to {to}: {item:?}"));
                    self.handoff.entry((n, to)).or_default().push_back(item);
                }
                ShardReport::StreamAck { stream, p, .. } => {
                    let to = NODES.iter().position(|x| *x == stream).unwrap();
                    self.acks.entry((n, to)).or_default().push_back(p.get());
                }
                ShardReport::ProbeAck { origin, route, number, .. } => {
                    let to = NODES.iter().position(|x| *x == origin).unwrap();
                    self.probe_acks.push_back((to, route, number));
                }
                ShardReport::Owned { epoch, .. } => self.confirmed |= epoch.get() == self.newest().epoch,
                ShardReport::MoveRefused { epoch, .. } => {
                    let r = self.newest();
                    if epoch.get() == r.epoch && !self.confirmed && r.from == Some(n) {
                        self.write(n, None, r.base);
                    }
                }
                _ => {}
            }
        }
        let live: usize = (0..3).filter(|&n| self.alive[n]).map(|n| self.beds[n].core.entities()).sum();
        assert!(live <= 1, "two instances");
    }

    fn tell(&mut self, n: usize, r: Rec) {
        let bed = &mut self.beds[n];
        let (epoch, home) = (Epoch(r.epoch), NODES[r.home]);
        match r.from {
            None if r.home == n => bed.command(ShardCommand::Assign { shard: S, epoch, base: Epoch(r.base) }),
            Some(from) if from == n => bed.command(ShardCommand::Move { shard: S, epoch, to: home }),
            _ => bed.command(ShardCommand::Record { shard: S, epoch, home }),
        }
        self.collect(n);
    }

    fn append(&mut self, s: usize, to: usize, item: Item) {
        let from = self.senders[s].node;
        self.direct.entry((from, to)).or_default().push_back(item);
    }

    fn send(&mut self, s: usize) {
        let x = &mut self.senders[s];
        let Some((tag, home)) = x.tag.filter(|t| !self.knows[x.node][t.1]) else { return };
        let mode = match (x.pending, x.over) {
            (Some((p, _)), _) => wait(p),
            (None, Some(p)) => Mode::Over(Epoch(p)),
            _ => Mode::Settled,
        };
        let item = message(tag, mode, &format!("{s}.{}", x.sent));
        self.trace.push(format!("{s}.{} to {home} tag {tag} {mode:?}", x.sent));
        (x.sent, x.dirty) = (x.sent + 1, true);
        self.append(s, home, item);
    }

    fn say_over(&mut self, s: usize) {
        let x = &self.senders[s];
        if let (Some(p), Some((tag, home)), None) = (x.over, x.tag, x.pending)
            && !self.knows[x.node][home]
        {
            self.append(s, home, Item::Over { p: Epoch(p), tag: Epoch(tag) });
        }
    }

    fn learn(&mut self, s: usize, r: Rec) {
        let x = &mut self.senders[s];
        if x.known.is_none_or(|k| r.epoch > k.0) && !self.knows[x.node][r.home] {
            x.known = Some((r.epoch, r.home));
        }
        self.advance(s);
    }

    fn advance(&mut self, s: usize) {
        let x = &mut self.senders[s];
        let Some(new) = x.known.filter(|k| x.tag.is_none_or(|t| k.0 > t.0) && !self.knows[x.node][k.1]) else { return };
        let Some((tag, home)) = x.tag.filter(|_| x.dirty) else {
            x.tag = Some(new);
            return;
        };
        if self.knows[x.node][home] {
            (x.ever_over, x.over, x.tag, x.dirty) = (true, Some(tag), Some(new), false);
            self.say_over(s);
        } else if x.pending.is_none() && x.over.is_none() {
            (x.pending, x.tag, x.dirty) = (Some((tag, home)), Some(new), false);
            self.append(s, home, Item::Fence { p: Epoch(tag) });
        }
    }

    fn stream_ack(&mut self, s: usize, p: u64) {
        let x = &mut self.senders[s];
        let pending = x.pending.is_some_and(|q| q.0 == p);
        let over = x.over == Some(p);
        if !pending && !over {
            return;
        }
        if pending {
            x.pending = None;
        }
        if over {
            x.over = None;
        }
        if x.over.is_some() {
            self.say_over(s);
        } else if let (false, Some((tag, home))) = (x.ever_over, x.tag) {
            self.append(s, home, Item::Settle { tag: Epoch(tag) });
        }
        self.advance(s);
    }

    fn retry(&mut self, s: usize) {
        match self.senders[s].pending {
            Some((p, node)) => self.append(s, node, Item::Fence { p: Epoch(p) }),
            None => self.say_over(s),
        }
    }

    fn crash(&mut self, x: usize) {
        self.trace.push(format!("crash of {x}"));
        self.alive[x] = false;
        let r = self.newest();
        match (r.from, self.confirmed) {
            (Some(from), false) if x == from => self.write(r.home, None, r.epoch),
            (Some(from), false) if x == r.home => self.write(from, None, r.epoch + 1),
            _ if x == r.home => {
                let to = self.any_alive(x);
                self.write(to, None, r.epoch + 1);
            }
            _ => {}
        }
    }

    fn process_removal(&mut self, n: usize, x: usize) {
        if !self.alive[n] || std::mem::replace(&mut self.knows[n][x], true) {
            return;
        }
        self.trace.push(format!("{n} learns the removal of {x}"));
        for (lost, kept) in [(x, n), (n, x)] {
            self.direct.remove(&(lost, kept));
            self.handoff.remove(&(lost, kept));
            self.acks.remove(&(lost, kept));
        }
        if n < 3 {
            self.beds[n].removed(NODES[x]);
            self.collect(n);
        }
        for s in 0..self.senders.len() {
            let sender = &mut self.senders[s];
            if sender.node != n {
                continue;
            }
            if let Some((p, _)) = sender.pending.filter(|p| p.1 == x) {
                (sender.over, sender.pending, sender.ever_over) = (sender.over.max(Some(p)), None, true);
                self.say_over(s);
            }
            self.advance(s);
        }
    }

    fn step(&mut self) {
        let n = self.rng.below(3) as usize;
        let s = self.rng.below(2) as usize;
        let at = |rng: &mut Rng, len: usize| rng.index(len);
        match self.rng.below(10) {
            0 if self.alive[n] => {
                let i = at(&mut self.rng, self.records.len()).unwrap();
                self.tell(n, self.records[i]);
            }
            1 if self.alive[self.senders[s].node] => {
                let i = at(&mut self.rng, self.records.len()).unwrap();
                self.learn(s, self.records[i]);
            }
            2 if self.alive[self.senders[s].node] => self.send(s),
            3 | 4 => self.deliver_direct(),
            5 | 6 => self.deliver_handoff(),
            7 => self.deliver_ack(),
            8 if self.rng.below(4) == 0 && self.alive[n] => {
                self.beds[n].pass(Duration::from_secs(30));
                self.collect(n);
            }
            8 => {
                if let Some((n, route, number)) = self.probe_acks.pop_front().filter(|a| self.alive[a.0]) {
                    self.beds[n].command(ShardCommand::ProbeAck { shard: S, route, number });
                    self.collect(n);
                }
            }
            _ if !self.alive[self.senders[s].node] => {}
            _ => match self.rng.below(16) {
                0 | 1 => self.retry(s),
                2 if self.deadlines => self.fence_deadline(s),
                _ => {}
            },
        }
    }

    fn fence_deadline(&mut self, s: usize) {
        let x = &mut self.senders[s];
        if let Some((p, _)) = x.pending.take() {
            (x.over, x.ever_over) = (x.over.max(Some(p)), true);
            self.trace.push(format!("fence deadline of {s}: over {p}"));
            self.say_over(s);
        }
    }

    fn deliver_direct(&mut self) {
        let lanes: Vec<_> = self.direct.iter().filter(|(k, q)| !q.is_empty() && self.alive[k.1]).map(|(k, _)| *k).collect();
        let Some(i) = self.rng.index(lanes.len()) else { return };
        let (from, to) = lanes[i];
        let item = self.direct.get_mut(&(from, to)).unwrap().pop_front().unwrap();
        self.trace.push(format!("{to} gets of {from}: {item:?}"));
        self.beds[to].command(ShardCommand::Item { stream: NODES[from], shard: S, item });
        self.collect(to);
    }

    fn deliver_handoff(&mut self) {
        let lanes: Vec<_> = self.handoff.iter().filter(|(k, q)| !q.is_empty() && self.alive[k.1]).map(|(k, _)| *k).collect();
        let Some(i) = self.rng.index(lanes.len()) else { return };
        let (from, to) = lanes[i];
        let item = self.handoff.get_mut(&(from, to)).unwrap().pop_front().unwrap();
        self.trace.push(format!("{to} takes over from {from}: {item:?}"));
        self.beds[to].command(ShardCommand::Handoff { from: NODES[from], shard: S, item });
        self.collect(to);
    }

    fn deliver_ack(&mut self) {
        let lanes: Vec<_> = self.acks.iter().filter(|(k, q)| !q.is_empty() && self.alive[k.1]).map(|(k, _)| *k).collect();
        let Some(i) = self.rng.index(lanes.len()) else { return };
        let p = self.acks.get_mut(&lanes[i]).unwrap().pop_front().unwrap();
        for s in 0..2 {
            if self.senders[s].node == lanes[i].1 {
                self.stream_ack(s, p);
            }
        }
    }

    /// Everybody learns everything, until nothing is under way.
    fn settle(&mut self) {
        for _ in 0..60 {
            for x in (0..3).filter(|&x| !self.alive[x]).collect::<Vec<_>>() {
                (0..4).for_each(|n| self.process_removal(n, x));
            }
            for n in (0..3).filter(|&n| self.alive[n]).collect::<Vec<_>>() {
                self.tell(n, self.newest());
            }
            for s in (0..2).filter(|&s| self.alive[self.senders[s].node]).collect::<Vec<_>>() {
                self.learn(s, self.newest());
                self.retry(s);
            }
            for _ in 0..30 {
                self.deliver_direct();
                self.deliver_handoff();
                self.deliver_ack();
            }
        }
    }

    fn numbers(&self, s: usize) -> Vec<u32> {
        self.handled.iter().filter(|h| h.0 == s).map(|h| h.1).collect()
    }
}

struct Plan {
    moves: usize,
    refusals: bool,
    crash: bool,
    deadlines: bool,
}

fn run(seed: u64, plan: &Plan) -> World {
    let second = (seed % 3) as usize;
    let mut w = World::new(seed, second);
    w.deadlines = plan.deadlines;
    let (mut moves, mut crash) = (plan.moves, plan.crash);
    for _ in 0..400 {
        w.step();
        let busy = w.senders[0].sent > 0 && w.rng.below(12) == 0;
        if busy && moves > 0 && w.confirmed {
            moves -= 1;
            let from = w.newest().home;
            let to = w.any_alive(from);
            w.beds[from].host.refuse_hand_over = plan.refusals && w.rng.below(3) == 0;
            w.write(to, Some(from), w.newest().base);
        }
        if busy && crash && w.rng.below(6) == 0 {
            crash = false;
            let x = w.rng.below(3) as usize;
            w.crash(x);
        }
        if let Some(x) = (0..3).find(|&x| !w.alive[x])
            && w.rng.below(10) == 0
        {
            let n = w.rng.below(4) as usize;
            w.process_removal(n, x);
        }
    }
    w.settle();
    for s in 0..2 {
        let numbers = w.numbers(s);
        if !numbers.is_sorted_by(|a, b| a < b) {
            panic!("seed {seed}: stream {s} out of order: {numbers:?}");
        }
    }
    w
}

fn runs(seeds: u64, plan: &Plan) {
    for seed in 0..seeds {
        let mut w = run(seed, plan);
        let home = w.newest().home;
        assert!(w.beds[home].core.shards[0].runs(), "seed {seed}: the shard is owned");
        for bed in w.beds.iter().enumerate().filter(|(n, _)| w.alive[*n]).map(|(_, bed)| bed) {
            let shard = &bed.core.shards[0];
            assert_eq!(shard.waiting(), 0, "seed {seed}: nothing waits for ever");
        }
        if !plan.crash && !plan.deadlines {
            for s in 0..2 {
                let all: Vec<u32> = (0..w.senders[s].sent).collect();
                assert_eq!(w.numbers(s), all, "seed {seed}: no loss, no double: {:?}", w.dropped);
            }
        }
        w.held = true;
    }
}

#[test]
fn moves_lose_nothing_and_keep_order() {
    runs(120, &Plan { moves: 6, refusals: false, crash: false, deadlines: false });
}

#[test]
fn refused_moves_lose_nothing_and_keep_order() {
    runs(120, &Plan { moves: 6, refusals: true, crash: false, deadlines: false });
}

#[test]
fn a_crash_between_moves_costs_messages_and_never_order() {
    runs(120, &Plan { moves: 5, refusals: true, crash: true, deadlines: false });
}

#[test]
fn fence_deadlines_cost_messages_and_never_order() {
    runs(120, &Plan { moves: 6, refusals: true, crash: false, deadlines: true });
    runs(120, &Plan { moves: 4, refusals: true, crash: true, deadlines: true });
}

impl Drop for World {
    fn drop(&mut self) {
        if !self.held {
            eprintln!("what happened:\n{}", self.trace.join("\n"));
        }
    }
}
