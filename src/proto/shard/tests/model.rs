//! Two homes of a shard, many entities, and all that these may wish, fail at and watch, in random order, with moves, refused moves and a right to run
//! that comes and goes. What must hold: every message is handled or given up, once; those of one sender to one entity in their order; no state is lost
//! or another one's; a watch ends once, and only if there is no instance; nothing is left waiting.

use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::proto::rng::Rng;

/// What is done to the two homes, and what has to come of it.
struct Model {
    rng: Rng,
    beds: [Bed; 2],
    /// Which of them runs the shard, and under which epoch.
    home: usize,
    epoch: u64,
    /// The epoch under which it is to run on the other one.
    moving: Option<u64>,
    next: u64,
    /// What has to be handled or given up, and what was.
    open: BTreeSet<String>,
    done: BTreeSet<String>,
    /// The highest number that an entity has handled.
    last: BTreeMap<String, u64>,
    /// What an instance has handled, which is its state.
    state: BTreeMap<String, String>,
    live: BTreeSet<String>,
    /// Open watches: their numbers, and who is watched.
    watches: BTreeMap<u64, String>,
    trace: Vec<String>,
    keys: u64,
    seed: u64,
}

/// Entities: more than start at once, or few to which much happens.
const KEYS: [u64; 2] = [45, 4];
const IDS: [NodeId; 2] = [A, B];

impl Model {
    fn new(seed: u64) -> Self {
        let beds = IDS.map(|id| {
            let mut config = patient();
            config.limits.mailbox = 30;
            let mut bed = Bed::bare(id);
            bed.core = ShardCore::new(Arc::new(config), id, 0, seed);
            bed.until(Time::MAX);
            bed.host.directive = Some(Directive::Restart);
            bed.command(ShardCommand::Host { ty: TY });
            bed
        });
        let mut model = Self {
            rng: Rng::new(seed),
            beds,
            home: 0,
            epoch: 1,
            moving: None,
            next: 0,
            open: BTreeSet::new(),
            done: BTreeSet::new(),
            last: BTreeMap::new(),
            state: BTreeMap::new(),
            live: BTreeSet::new(),
            watches: BTreeMap::new(),
            trace: vec![],
            keys: KEYS[usize::from(seed % 4 >= 2)],
            seed,
        };
        model.beds.iter_mut().for_each(|bed| bed.host.options.attempts = 2);
        model.beds[0].assign(1, 1);
        model
    }

    /// What must not be, behind what has led to it.
    fn bad(&self, what: &str) -> ! {
        let from = self.trace.len().saturating_sub(400);
        panic!("seed {} of `shard_model`: {what}\n{}", self.seed, self.trace[from..].join("\n"));
    }

    /// What the homes have seen since the last look.
    fn collect(&mut self) {
        for n in [0, 1] {
            for line in self.beds[n].log() {
                self.trace.push(format!("    {n}: {line}"));
                let words: Vec<&str> = line.splitn(4, ' ').collect();
                match words[0] {
                    "start" => {
                        let key = words[1].split('@').next().unwrap().to_owned();
                        let state = self.state.entry(key.clone()).or_default().clone();
                        let got = words.get(3).copied().unwrap_or("");
                        if words[2] == "Moved" && got != state || words[2] != "Moved" && !state.is_empty() {
                            self.bad(&format!("{key} started with {got:?} and not {state:?}"));
                        }
                        if self.live.contains(&key) {
                            self.bad("two of them");
                        }
                        if !self.beds[n].host.fail_start.contains(key.as_bytes()) {
                            self.live.insert(key);
                        }
                    }
                    "stop" => {
                        if !self.live.remove(words[1]) {
                            self.bad("stops twice");
                        }
                        if words[2] != "moved" {
                            self.state.remove(words[1]);
                        }
                    }
                    "drop" => self.finish(words[1]),
                    "failure" | "open" => {}
                    "watch" => {
                        let number: u64 = words[1].parse().unwrap();
                        let Some(key) = self.watches.get(&number).cloned() else { self.bad("a watch ends twice") };
                        if self.live.contains(&key) || self.state.get(&key).is_some_and(|s| !s.is_empty()) {
                            self.bad(&format!("watch {number} of {key} ended falsely"));
                        }
                        self.watches.remove(&number);
                    }
                    _ => {
                        let (key, payload) = line.split_once(':').unwrap();
                        if !self.live.contains(key) {
                            self.bad("it is not live");
                        }
                        self.state.entry(key.into()).or_default().push_str(payload);
                        let parts: Vec<&str> = payload.split(':').collect();
                        match parts[0] {
                            "stash" | "own" => {
                                self.open.insert(parts[1].into());
                            }
                            _ => {}
                        }
                        if let Some(number) = payload.strip_prefix('m') {
                            let number: u64 = number.parse().unwrap();
                            if self.last.insert(key.into(), number).is_some_and(|before| before >= number) {
                                self.bad(&format!("{key}: {payload} out of order"));
                            }
                        }
                        if payload.starts_with("boom") {
                            // Tried again, or given up.
                        } else if payload.starts_with('t') {
                            if !self.done.insert(payload.into()) {
                                self.bad("a timer twice");
                            }
                        } else {
                            self.finish(payload);
                        }
                    }
                }
            }
        }
    }

    /// A message was handled, or given up.
    fn finish(&mut self, id: &str) {
        if id.starts_with('t') || id == "unstash" {
            return;
        }
        if !self.open.remove(id) || !self.done.insert(id.into()) {
            self.bad(&format!("{id} ended twice, or is of nobody"));
        }
    }

    /// Tells an entity something.
    fn send(&mut self, key: &str, payload: &str) {
        self.put(key, letter(key, payload));
    }

    fn put(&mut self, key: &str, parcel: Letter) {
        self.trace.push(format!("{key} <- {}", text(parcel.envelope.payload())));
        let item = LaneItem::Msg { shard: S, tag: Epoch(self.epoch), enter: None, parcel };
        self.beds[self.home].lane(item);
        self.collect();
        self.settle();
    }

    /// What is under way to the other home.
    fn settle(&mut self) {
        let to = 1 - self.home;
        for report in self.beds[self.home].reports() {
            match report {
                ShardReport::Handoff { item, .. } => self.beds[to].command(ShardCommand::Handoff { from: IDS[self.home], shard: S, item }),
                ShardReport::MoveRefused { .. } => {
                    self.trace.push("refused".into());
                    self.moving = None;
                    self.epoch += 1;
                    let epoch = self.epoch;
                    self.beds[self.home].assign(epoch, 1);
                }
                _ => {}
            }
        }
        if self.moving.is_some() && self.beds[to].core.find(S).is_some_and(|at| self.beds[to].core.shards[at].runs()) {
            self.trace.push(format!("moved to {to}"));
            self.epoch = self.moving.take().unwrap();
            self.home = to;
        }
        self.collect();
    }

    /// Does something.
    fn step(&mut self) {
        let key = format!("k{}", self.rng.below(self.keys));
        self.next += 1;
        let n = self.next;
        let home = self.home;
        match self.rng.below(40) {
            0..12 => {
                self.open.insert(format!("m{n}"));
                self.send(&key, &format!("m{n}"));
            }
            12..15 => {
                self.open.insert(format!("stash:s{n}"));
                self.send(&key, &format!("stash:s{n}"));
            }
            15 | 16 => {
                self.send(&key, "unstash");
            }
            17 => {
                self.open.insert(format!("own:o{n}"));
                self.send(&key, &format!("own:o{n}"));
            }
            18 => {
                self.open.insert(format!("boom{n}"));
                self.send(&key, &format!("boom{n}"));
            }
            19 => {
                self.open.insert(format!("bye{n}"));
                self.send(&key, &format!("bye{n}"));
            }
            20 | 21 => {
                let due = self.rng.below(3000);
                let name = self.rng.below(3);
                self.open.insert(format!("once:{name}:{due}:t{n}"));
                self.send(&key, &format!("once:{name}:{due}:t{n}"));
            }
            22 | 23 => {
                self.watches.insert(n, key.clone());
                self.send(&key, &format!("w#{n}"));
            }
            37 => {
                // Too late if its entity does not start soon.
                self.open.insert(format!("m{n}"));
                let deadline = self.beds[home].now + Duration::from_millis(150);
                let mut asked = letter(&key, &format!("m{n}"));
                asked.envelope.ask = Some(Ask { node: R, correlation: n, deadline });
                self.put(&key, asked);
            }
            36 | 38 => {
                // Told no more, asked about, or named anew.
                let watched = self.watches.iter().nth(self.rng.below(8) as usize).map(|(number, key)| (*number, key.clone()));
                if let Some((number, key)) = watched.filter(|_| self.moving.is_none()) {
                    match self.rng.below(3) {
                        0 => {
                            self.send(&key, &format!("u#{number}"));
                            self.watches.remove(&number);
                        }
                        1 => self.send(&key, &format!("a#{number}")),
                        _ => {
                            self.watches.insert(n, key.clone());
                            self.watches.remove(&number);
                            self.send(&key, &format!("{n}was{number}"));
                        }
                    }
                }
            }
            24 | 25 => {
                let all = [Directive::Restart, Directive::RestartEmpty, Directive::Stop, Directive::Escalate];
                let directive = Some(all[self.rng.below(4) as usize]);
                self.beds.iter_mut().for_each(|bed| bed.host.directive = directive);
            }
            26 | 27 => {
                let bed = &mut self.beds[self.rng.below(2) as usize];
                if !bed.host.fail_start.remove(key.as_bytes()) {
                    bed.host.fail_start.insert(key.into_bytes());
                }
            }
            28 if self.rng.below(4) == 0 => self.beds.iter_mut().for_each(|bed| bed.host.fail_start.clear()),
            29 => {
                let on = self.rng.below(2) as usize;
                let until = if self.rng.below(2) == 0 { self.beds[on].now } else { Time::MAX };
                self.trace.push(format!("{on} until {until:?}"));
                self.beds[on].until(until);
            }
            30..34 => {
                let time = Duration::from_nanos(1 << if self.rng.below(3) == 0 { 29 } else { self.rng.below(34) });
                self.trace.push(format!("{time:?} pass"));
                for bed in &mut self.beds {
                    bed.pass(time);
                }
            }
            34 | 35 if self.moving.is_none() && (self.seed.is_multiple_of(2) || self.rng.below(12) == 0) => {
                self.beds[home].host.refuse_hand_over = self.rng.below(4) == 0;
                self.beds[home].host.refuses = (self.rng.below(4) == 0).then(|| key.clone().into_bytes());
                for at in 0..self.rng.below(4) {
                    let key = format!("k{}", self.rng.below(self.keys));
                    // `o` of `at_hand_over` counts if it was asked for.
                    let wish = match self.rng.below(3) {
                        0 => Wish::Own(letter(&key, &format!("o{n}x{at}"))),
                        1 => Wish::Stash(letter(&key, &format!("s{n}x{at}"))),
                        _ => Wish::Unstash,
                    };
                    self.beds[home].host.at_hand_over.push((key.into_bytes(), wish));
                }
                self.epoch_move();
            }
            _ => {}
        }
        self.collect();
        self.settle();
    }

    fn epoch_move(&mut self) {
        let (home, epoch) = (self.home, self.epoch + 1);
        let before: Vec<String> = self.wished();
        before.iter().for_each(|id| _ = self.open.insert(id.clone()));
        self.trace.push(format!("move from {home}, epoch {epoch}"));
        self.moving = Some(epoch);
        // A refusal uses the epoch up.
        self.beds[home].move_to(epoch, IDS[1 - home]);
        if self.beds[home].host.log.is_empty() && !self.beds[home].core.env.may_run() {
            // It waits for the right to run: give that back.
            self.beds[home].until(Time::MAX);
        }
        let left = self.wished();
        self.beds[home].host.at_hand_over.clear();
        left.iter().for_each(|id| _ = self.open.remove(id));
        self.collect_refusal();
    }

    fn collect_refusal(&mut self) {
        if self.beds[self.home].host.reports.iter().any(|r| matches!(r, ShardReport::MoveRefused { .. })) {
            self.epoch += 1;
        }
    }

    fn wished(&self) -> Vec<String> {
        let text_of = |wish: &Wish<Letter>| match wish {
            Wish::Own(letter) | Wish::Stash(letter) => Some(text(letter.envelope.payload())),
            _ => None,
        };
        self.beds[self.home].host.at_hand_over.iter().filter_map(|(_, wish)| text_of(wish)).collect()
    }

    /// Nothing stands in the way any more: what is open has to end.
    fn end(&mut self) {
        self.beds.iter_mut().for_each(|bed| bed.until(Time::MAX));
        self.collect();
        self.settle();
        for bed in &mut self.beds {
            bed.host.fail_start.clear();
            bed.host.refuse_hand_over = false;
            bed.host.refuses = None;
            bed.host.directive = Some(Directive::Stop);
        }
        for _ in 0..60 {
            self.beds.iter_mut().for_each(|bed| bed.pass(Duration::from_secs(1)));
            self.collect();
            self.settle();
        }
        self.trace.push("the end".into());
        for n in 0..self.keys {
            let key = format!("k{n}");
            // What is put aside comes out when the instance ends; the next one puts aside nothing.
            self.open.insert(format!("bye9999{n}"));
            self.send(&key, &format!("bye9999{n}"));
        }
        for _ in 0..60 {
            self.beds.iter_mut().for_each(|bed| bed.pass(Duration::from_secs(1)));
            self.collect();
            self.settle();
        }
        for n in 0..self.keys {
            self.open.insert(format!("bye8888{n}"));
            self.send(&format!("k{n}"), &format!("bye8888{n}"));
        }
        if !self.watches.is_empty() {
            self.bad(&format!("never told: {:?}", self.watches));
        }
        if !self.open.is_empty() {
            self.bad(&format!("lost: {:?}", self.open));
        }
        for bed in &self.beds {
            if (bed.core.env.waiting, bed.core.env.waiting_bytes) != (0, 0) || bed.core.entities() > self.keys as usize {
                self.bad(&format!("{} wait, {} bytes", bed.core.env.waiting, bed.core.env.waiting_bytes));
            }
        }
    }
}

#[test]
fn shard_model() {
    // Others, or more of them, by hand: WINGBEAT_MODEL_FROM=1000 WINGBEAT_MODEL_SEEDS=2000 when it is built.
    let by_hand = |set: Option<&str>, usual| set.map_or(usual, |n| n.parse().unwrap());
    let from = by_hand(option_env!("WINGBEAT_MODEL_FROM"), 0);
    for seed in from..from + by_hand(option_env!("WINGBEAT_MODEL_SEEDS"), 40) {
        let mut model = Model::new(seed);
        for _ in 0..600 {
            model.step();
        }
        model.end();
    }
}
