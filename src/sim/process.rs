//! Processes: their parts, and how they start, stop and stand still.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use foldhash::fast::FixedState;

use super::{
    checks::{Observed, Wakes},
    clock::Clock,
    entity::SimHost,
    lanes::{Client, Fifo},
    settings,
    world::{Event, Inner, World},
};
use crate::{
    Config, NodeAddr, NodeId, ShardKey, Time,
    config::OnDowned,
    proto::{
        handoff::Word,
        membership::{Ending, Identity},
        node::{Command, NodeCore},
        shard::ShardCore,
        sharding::TypeInfo,
    },
};

/// One start of a node.
#[derive(Copy, Clone, Debug)]
pub(super) struct Life {
    pub node: u32,
    pub generation: u32,
    pub id: NodeId,
    pub over: bool,
    /// It ended from one moment to the next, with what its memory held. Else all of that has had an end.
    pub crashed: bool,
    /// Names the cluster that it belongs to: another one knows nothing of this one's terms and epochs, until records are durable.
    pub cluster: u64,
}

/// A worker thread.
pub(super) struct Worker {
    pub core: ShardCore<SimHost>,
    pub host: SimHost,
    pub wake_at: u64,
    pub to_net: Fifo,
    pub from_net: Fifo,
    pub hosting: Fifo,
    /// When the handler that it is in returns.
    pub stalled_until: u64,
    /// What has come meanwhile.
    pub late: Vec<Inner>,
}

/// A running process.
pub(super) struct Process {
    pub life: u32,
    pub id: NodeId,
    pub config: Arc<Config>,
    pub core: NodeCore,
    pub wake_at: u64,
    pub wakes: Wakes,
    pub workers: Vec<Worker>,
    pub clients: Vec<Client>,
    pub words: HashMap<ShardKey, Word, FixedState>,
    pub hosting_until: Time,
    pub removed: BTreeSet<NodeId>,
    pub ending: bool,
    /// It leaves, and its clients send nothing any more.
    pub quiescing: bool,
    pub steps: u64,
}

/// A host with its clock; a process runs on it or not.
pub(super) struct Node {
    pub addr: NodeAddr,
    pub config: Arc<Config>,
    pub process: Option<Box<Process>>,
    /// Number in `World::lives` of the running process.
    pub life: Option<u32>,
    pub starts: u32,
    pub paused: bool,
    /// When the longest of its pauses ends; one without a span ends by word only.
    pub pause_ends: u64,
    pub resumed_at: u64,
    /// The others removed it while it was paused: it will find out when it runs again, and until then counts as gone.
    pub written_off: bool,
    pub late: Vec<Inner>,
    pub told_to_leave: bool,
    /// The action by which an operator declared it dead: no longer live, and its removal counts.
    pub downed: Option<usize>,
    /// Until when heartbeat replies do not get through to it; zero if they do, and the end of time without a span.
    pub deaf_until: u64,
    pub clock: Clock,
}

impl World<'_> {
    /// The settings with which a process whose membership is over starts again, if it does; as `wingbeat node`.
    pub(super) fn next_life(&self, index: u32, ended: &Process, how: Ending) -> Option<Arc<Config>> {
        let (config, addr) = (&ended.config, &self.nodes[index as usize].addr);
        let next = match how {
            Ending::Downed(_) if config.membership.on_downed == OnDowned::Rejoin => {
                config.rejoining(addr, ended.core.view().members.iter().map(|m| m.addr.clone()))
            }
            Ending::Superseded(by) => config.asking(addr, by),
            _ => return None,
        };
        Some(Arc::new(next))
    }

    pub(super) fn start(&mut self, index: u32, config: Arc<Config>) {
        let node = &mut self.nodes[index as usize];
        if node.life.is_some() {
            return;
        }
        let incarnation = self.protocol.next_u64();
        let seed = self.protocol.next_u64();
        let me = Identity { addr: node.addr.clone(), incarnation };
        let id = me.id();
        let life = self.lives.len() as u32;
        self.lives.push(Life { node: index, generation: node.starts, id, over: false, crashed: false, cluster: 0 });
        self.by_id.insert(id, life);
        node.starts += 1;
        node.life = Some(life);
        node.paused = false;
        node.told_to_leave = false;
        node.downed = None;
        node.late.clear();
        let now = node.clock.local(self.now);
        let workers = settings::workers(&config);
        let worker = |w: u16| Worker {
            core: ShardCore::new(config.clone(), id, w, seed ^ u64::from(w + 1)),
            host: SimHost::default(),
            wake_at: u64::MAX,
            to_net: Fifo::default(),
            from_net: Fifo::default(),
            hosting: Fifo::default(),
            stalled_until: 0,
            late: Vec::new(),
        };
        let process = Process {
            life,
            id,
            core: NodeCore::new(config.clone(), me.clone(), workers, seed, now).pooled(self.pool.clone()),
            config: config.clone(),
            wake_at: u64::MAX,
            wakes: Wakes::default(),
            workers: (0..workers).map(worker).collect(),
            clients: Vec::new(),
            words: HashMap::default(),
            hosting_until: Time::ZERO,
            removed: BTreeSet::new(),
            ending: false,
            quiescing: false,
            steps: 0,
        };
        node.process = Some(Box::new(process));
        self.measure.born(life, id);
        self.observed.insert(life, Observed::default());
        self.log(1, index, id.incarnation(), || format!("starts as {id}"));
        self.shadows_of(index).for_each(|shadow| shadow.born(now, &config, &me, seed));
        let info = self.scenario.workload.as_ref().map(|w| TypeInfo { name: "probe".into(), ty: self.ty, shards: w.shards, host: true });
        self.net_step(life, |core, now| {
            core.start(now);
            if let Some(info) = info {
                core.handle_command(now, Command::Register { info });
            }
        });
    }

    /// The process on `node` is gone from one moment to the next, with its memory.
    pub(super) fn kill(&mut self, index: u32) {
        if let Some(life) = self.nodes[index as usize].life {
            self.lives[life as usize].crashed = true;
        }
        self.exit(index);
    }

    /// The process on `node` is gone. What is still in its rings is given up, as by the threads of a node that shuts down, unless it crashed.
    pub(super) fn exit(&mut self, index: u32) {
        let node = &mut self.nodes[index as usize];
        let Some(life) = node.life.take() else { return };
        let held = node.process.take().into_iter().flat_map(|p| p.workers).flat_map(|worker| worker.late);
        let late: Vec<Inner> = held.chain(std::mem::take(&mut node.late)).collect();
        (node.paused, node.written_off) = (false, false);
        // What its host had received for it goes with it.
        for inner in late {
            self.too_late(life, &inner);
        }
        self.lives[life as usize].over = true;
        self.instances.forget(life);
        self.measure.gone(life);
        self.observed.remove(&life);
        self.links_of_dead(index);
    }

    /// Stops everything inside it, for a span or until it is resumed by word.
    pub(super) fn pause(&mut self, index: u32, span: Option<u64>) {
        let ends = span.map_or(u64::MAX, |span| self.now.saturating_add(span));
        let node = &mut self.nodes[index as usize];
        if node.life.is_none() {
            return;
        }
        node.pause_ends = if node.paused { ends.max(node.pause_ends) } else { ends };
        node.paused = true;
        if span.is_some() {
            self.queue.push(ends, Event::Resume(index));
        }
    }

    /// The end of a pause has come; a longer one may have been laid over it.
    pub(super) fn pause_ends(&mut self, index: u32) {
        if self.nodes[index as usize].pause_ends <= self.now {
            self.resume(index);
        }
    }

    /// A handler of its first worker takes so long.
    pub(super) fn stall(&mut self, index: u32, span: u64) {
        let until = self.now.saturating_add(span);
        let Some(p) = &mut self.nodes[index as usize].process else { return };
        p.workers[0].stalled_until = until.max(p.workers[0].stalled_until);
        self.queue.push(until, Event::Inner(p.life, Inner::Returns(0)));
    }

    /// A handler has not returned.
    pub(super) fn stands_still(&self, index: u32) -> bool {
        self.nodes[index as usize].process.iter().flat_map(|p| &p.workers).any(|worker| worker.stalled_until > 0)
    }

    /// A handler may have returned: its worker finds what has come meanwhile.
    pub(super) fn returns(&mut self, life: u32, w: u16) {
        let Some(p) = &mut self.nodes[self.lives[life as usize].node as usize].process else { return };
        let worker = &mut p.workers[usize::from(w)];
        if worker.stalled_until <= self.now {
            worker.stalled_until = 0;
            for inner in std::mem::take(&mut worker.late) {
                self.inner(life, inner);
            }
        }
    }

    /// Heartbeat replies do not reach it, for a span or until a heal.
    pub(super) fn deafen(&mut self, index: u32, span: Option<u64>) {
        let until = span.map_or(u64::MAX, |span| self.now.saturating_add(span));
        self.net.touch(&[index]);
        let node = &mut self.nodes[index as usize];
        node.deaf_until = node.deaf_until.max(until);
        if span.is_some() {
            self.queue.push(until, Event::Hears(index));
        }
    }

    /// The end of a time without replies has come; a longer one may have been laid over it.
    pub(super) fn hears(&mut self, index: u32) {
        let node = &mut self.nodes[index as usize];
        if node.deaf_until <= self.now {
            node.deaf_until = 0;
        }
    }

    pub(super) fn resume(&mut self, index: u32) {
        let now = self.now;
        let node = &mut self.nodes[index as usize];
        if !node.paused {
            return;
        }
        node.paused = false;
        node.resumed_at = now;
        let written_off = std::mem::take(&mut node.written_off);
        let Some(life) = node.life else { return };
        if written_off && !node.told_to_leave && node.downed.is_none() {
            self.measure.live_again(life, self.lives[life as usize].id);
        }
        let node = &mut self.nodes[index as usize];
        for inner in std::mem::take(&mut node.late) {
            self.queue.push(now, Event::Inner(life, inner));
        }
        self.log(2, index, 0, || "runs again".into());
    }

    pub(super) fn is_running(&self, index: u32) -> bool {
        self.nodes[index as usize].life.is_some()
    }
}
