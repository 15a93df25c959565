//! The engine as the simulator has it: clients with two exits, rings with delays of their own, words that are seen late.

use std::collections::HashMap;

use foldhash::fast::FixedState;

use super::{
    entity::{SimParcel, key_of},
    process::Process,
    scenario::SendMode,
    world::{Event, Inner, World},
};
use crate::{
    ShardId, ShardKey,
    proto::{
        handoff::{Ask, Envelope, Producer, Push, Word},
        rng::Rng,
        shard::{LaneId, LaneItem},
    },
};

/// From one thread to another at most, nanoseconds.
const LONGEST_PASSAGE: u64 = 20_000_000;
/// One turn of a thread, nanoseconds.
const TURN: u64 = 2_000;
/// An ask's client gives up after this long.
const ASK_DEADLINE: u64 = 1_000_000_000;

/// A queue between two threads: in order, each passage with a delay of its own.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct Fifo {
    last: u64,
}

impl Fifo {
    /// When what is put in now comes out.
    pub(super) fn next(&mut self, now: u64, rng: &mut Rng) -> u64 {
        let draw = rng.next_u64();
        let delay = match draw % 1000 {
            0..970 => (draw >> 32) % (2 * TURN + 1),
            970..998 => (draw >> 32) % (100 * TURN),
            // A thread that was not scheduled for a while.
            _ => (draw >> 32) % LONGEST_PASSAGE,
        };
        self.last = self.last.max(now + delay);
        self.last
    }

    /// When the last comes out that was put in.
    pub(super) const fn end(&self) -> u64 {
        self.last
    }
}

/// A client thread of one process: a producer with a ring to the network thread and one to each worker.
pub(super) struct Client {
    sender: u32,
    /// Names this life of the client in the ledger.
    name: u32,
    producer: Producer,
    pub words: HashMap<ShardKey, Word, FixedState>,
    pub publishes: Fifo,
    to_net: Fifo,
    to_workers: Vec<Fifo>,
}

impl Process {
    /// Its clients send nothing any more: when what they had sent has come through the lanes, workers included.
    pub(super) fn quiesce(&mut self, now: u64) -> u64 {
        self.quiescing = true;
        let lanes = self.clients.iter().flat_map(|c| c.to_workers.iter().chain([&c.to_net]));
        lanes.map(Fifo::end).fold(now, u64::max) + LONGEST_PASSAGE
    }
}

impl World<'_> {
    /// The k-th moment of the workload.
    pub(super) fn tick(&mut self, k: u64) {
        let Some(w) = self.scenario.workload.as_ref().filter(|w| self.now < w.until.as_nanos() as u64) else { return };
        let at = w.from.as_nanos() as u64 + ((k + 1) as f64 * (1e9 / w.rate)) as u64;
        if at < w.until.as_nanos() as u64 {
            self.queue.push(at, Event::Send(k + 1));
        }
        let sender = (k % u64::from(w.senders)) as u32;
        let node = (u64::from(sender) * u64::from(self.scenario.nodes) / u64::from(w.senders)) as usize;
        let entity = self.load.below(w.entities.into()) as u32;
        match self.nodes[node].life {
            Some(life) => self.inside(life, self.now, Inner::Send { sender, entity }),
            None => self.not_sent += 1,
        }
    }

    pub(super) fn client_sends(&mut self, life: u32, sender: u32, entity: u32) {
        let Some(w) = &self.scenario.workload else { return };
        let index = self.lives[life as usize].node;
        let node = &mut self.nodes[index as usize];
        let local = node.clock.local(self.now);
        let Some(p) = node.process.as_mut().filter(|p| !p.ending && !p.quiescing) else {
            self.not_sent += 1;
            return;
        };
        let at = match p.clients.iter().position(|c| c.sender == sender) {
            Some(at) => at,
            None => {
                // A new thread sees the words as they are; later changes reach it with its own delay.
                p.clients.push(Client {
                    sender,
                    name: life * w.senders + sender,
                    producer: Producer::default(),
                    words: p.words.clone(),
                    publishes: Fifo::default(),
                    to_net: Fifo::default(),
                    to_workers: vec![Fifo::default(); p.workers.len()],
                });
                p.clients.len() - 1
            }
        };
        let lane = LaneId(at as u32);
        let c = &mut p.clients[at];
        let key = key_of(entity);
        let shard = ShardKey { ty: self.ty, shard: ShardId((xxhash_rust::xxh3::xxh3_64(key.as_bytes()) % u64::from(w.shards)) as u32) };
        let note = self.ledger.send(c.name, entity, life);
        let ask = (w.mode == SendMode::Ask).then(|| Ask {
            node: p.id,
            correlation: note.id,
            deadline: local + std::time::Duration::from_nanos(ASK_DEADLINE),
        });
        let envelope = Envelope::new(shard, ask, key.as_bytes(), &note.encode()).expect("a probe's key has a few bytes");
        let word = c.words.get(&shard).copied().unwrap_or(Word::ELSEWHERE);
        let plan = c.producer.plan(shard, word);
        for token in plan.tokens.into_iter().flatten() {
            let (at, inner) = match token {
                Push::LeaveNetwork(k) => (c.to_net.next(self.now, &mut self.faults), Inner::ToNet(lane, LaneItem::Leave { shard, k })),
                Push::Through(k, k2) => (c.to_net.next(self.now, &mut self.faults), Inner::ToNet(lane, LaneItem::Through { shard, k, k2 })),
                Push::LeaveWorker(w, k) => {
                    (c.to_workers[usize::from(w)].next(self.now, &mut self.faults), Inner::ToWorker(w, lane, LaneItem::Leave { shard, k }))
                }
            };
            self.queue.push(at, Event::Inner(life, inner));
        }
        let enter = plan.enter;
        let (at, inner) = match plan.exit {
            None => {
                let item = LaneItem::Msg { shard, tag: crate::Epoch::ZERO, enter, parcel: envelope };
                (c.to_net.next(self.now, &mut self.faults), Inner::ToNet(lane, item))
            }
            Some((worker, tag)) => {
                let item = LaneItem::Msg { shard, tag, enter, parcel: SimParcel(envelope) };
                (c.to_workers[usize::from(worker)].next(self.now, &mut self.faults), Inner::ToWorker(worker, lane, item))
            }
        };
        c.producer.done(shard, word);
        self.queue.push(at, Event::Inner(life, inner));
        if ask.is_some() {
            self.inside(life, self.now + ASK_DEADLINE, Inner::AskEnds(note.id));
        }
        self.log(60, index, note.id, || format!("client {sender} sends {note:?} to entity {entity} in {shard:?} by {word:?}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_keeps_its_order_whatever_the_delays() {
        let mut ring = Fifo::default();
        let mut rng = Rng::new(3);
        let out: Vec<u64> = (0..50_000u64).map(|i| ring.next(i * 10, &mut rng)).collect();
        assert!(out.is_sorted());
        assert!((0..50_000u64).zip(&out).any(|(i, o)| o - i * 10 > 5_000_000), "sometimes it takes long");
    }
}
