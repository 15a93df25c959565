//! Carrying out the actions of a scenario.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use super::{
    action::{Act, LinkAct},
    network::{Fault, Nodes},
    result::Helped,
    selector::{Scene, Selector},
    settings, undone,
    world::{Event, Inner, World},
};
use crate::{
    NodeAddr, NodeId, ShardId, ShardKey,
    proto::{
        membership::{ClusterView, MemberStatus, by_place},
        node::Command,
    },
};

impl Scene for World<'_> {
    fn count(&self) -> u32 {
        self.scenario.nodes
    }

    fn running(&self, index: u32) -> bool {
        self.is_running(index)
    }

    fn region(&self, index: u32) -> u32 {
        self.net.region(index)
    }

    fn leader(&self) -> Option<u32> {
        self.node_of(self.first_view()?.leader?)
    }

    fn by_age(&self) -> Vec<u32> {
        let Some(view) = self.first_view() else { return Vec::new() };
        let mut up: Vec<_> = view.members.iter().filter(|m| m.is_of_age()).collect();
        up.sort_by_key(|m| (m.up_number, m.addr.clone()));
        up.iter().filter_map(|m| self.node_of(m.id)).collect()
    }

    fn coordinator(&self) -> Option<u32> {
        let view = self.first_view()?;
        let role = self.nodes.first().and_then(|n| n.config.sharding.coordinator_role.clone());
        self.node_of(view.oldest(role.as_deref())?.id)
    }

    fn by_place(&self) -> Vec<u32> {
        let running = self.nodes.iter().filter_map(|n| n.life).map(|life| self.lives[life as usize].id);
        by_place(running.collect()).into_iter().filter_map(|id| self.node_of(id)).collect()
    }
}

/// The shards of the workload, for selectors of shards.
struct Shards(u32);

impl Scene for Shards {
    fn count(&self) -> u32 {
        self.0
    }
    fn running(&self, _index: u32) -> bool {
        true
    }
    fn region(&self, _index: u32) -> u32 {
        0
    }
}

const NOT_RUNNING: &str = "it is not running";

fn nanos(d: Duration) -> u64 {
    d.as_nanos() as u64
}

impl World<'_> {
    pub(super) fn act(&mut self, i: usize) {
        let action = &self.scenario.actions[i];
        self.log(70, 0, i as u64, || format!("ACTION {:?}", action.act));
        match &action.act {
            Act::Crash { nodes } => {
                for n in self.found(i, nodes) {
                    match self.is_running(n) {
                        true => self.crash(n),
                        false => self.not_done(i, &[n], NOT_RUNNING),
                    }
                }
            }
            Act::Restart { nodes, .. } => {
                // All are down before the first is up again: a restart of the whole cluster is a new cluster.
                let all = self.found(i, nodes);
                for n in &all {
                    self.kill(*n);
                }
                for n in all {
                    self.start_beside(n, Some(i));
                }
            }
            Act::Pause { nodes, span } => {
                for n in self.found(i, nodes) {
                    match self.is_running(n) {
                        true => self.pause(n, span.map(nanos)),
                        false => self.not_done(i, &[n], NOT_RUNNING),
                    }
                }
            }
            Act::Resume { nodes } => {
                for n in self.found(i, nodes) {
                    match self.nodes[n as usize].paused {
                        true => self.resume(n),
                        false => self.not_done(i, &[n], "it is not paused"),
                    }
                }
            }
            Act::Stall { nodes, span } => {
                for n in self.found(i, nodes) {
                    match self.is_running(n) {
                        true => self.stall(n, nanos(*span)),
                        false => self.not_done(i, &[n], NOT_RUNNING),
                    }
                }
            }
            Act::Join { nodes, spread, to } => {
                let seeds: Vec<_> = to.iter().flat_map(|s| self.found(i, s)).map(settings::address).collect();
                if to.is_some() && seeds.is_empty() {
                    return;
                }
                let all = self.found(i, nodes);
                for (k, n) in all.iter().enumerate() {
                    match nanos(*spread) / all.len() as u64 * k as u64 {
                        // What follows in the file at the same time finds it done.
                        0 => self.join(*n, seeds.clone(), i),
                        after => self.later(i, *n, after, Event::Join(*n, seeds.clone(), i)),
                    }
                }
            }
            Act::Leave { nodes, spread } => {
                let all = self.found(i, nodes);
                for (k, n) in all.iter().enumerate() {
                    match nanos(*spread) / all.len() as u64 * k as u64 {
                        0 => self.leave(*n, i),
                        after => self.later(i, *n, after, Event::Leave(*n, i)),
                    }
                }
            }
            Act::Down { nodes, by } => {
                let (told, dead) = (self.which(by), self.found(i, nodes));
                let by = self.operates(&told, *by == Selector::Leader, &dead);
                // Whoever declares itself dead is over with that.
                let (itself, others): (Vec<u32>, Vec<u32>) = dead.into_iter().partition(|n| Some(*n) == by);
                for n in others.into_iter().chain(itself) {
                    self.down(i, n, by);
                }
            }
            Act::Partition { groups } => {
                let mut groups: Vec<Vec<u32>> = groups.iter().map(|g| self.found(i, g)).collect();
                let mut placed = BTreeSet::new();
                for group in &mut groups {
                    group.retain(|n| {
                        let first = placed.insert(*n);
                        if !first {
                            self.not_done(i, &[*n], "it is in an earlier group already");
                        }
                        first
                    });
                }
                groups.retain(|group| !group.is_empty());
                if !groups.is_empty() {
                    self.net.partition(&groups, self.scenario.nodes);
                }
            }
            Act::Heal => {
                self.net.heal();
                self.nodes.iter_mut().for_each(|n| n.deaf_until = 0);
                self.repeating.clear();
                self.flush_all();
            }
            Act::Link(link) => self.link(i, link),
            Act::Deaf { nodes, span } => {
                for n in self.found(i, nodes) {
                    match self.is_running(n) {
                        true => self.deafen(n, span.map(nanos)),
                        false => self.not_done(i, &[n], NOT_RUNNING),
                    }
                }
            }
            Act::Clock { nodes, rate, suspend } => {
                for n in self.found(i, nodes) {
                    match self.is_running(n) {
                        true => self.set_clock(n, *rate, suspend.map_or(0, nanos)),
                        false => self.not_done(i, &[n], NOT_RUNNING),
                    }
                }
            }
            Act::Move { shards, to } => {
                let count = self.scenario.workload.as_ref().map_or(0, |w| w.shards);
                for shard in shards.resolve(&Shards(count), &mut self.faults) {
                    self.move_shard(i, shard, to);
                }
            }
        }
    }

    fn which(&mut self, s: &Selector) -> Vec<u32> {
        let mut rng = self.faults.clone();
        let all = s.resolve(self, &mut rng);
        self.faults = rng;
        all
    }

    /// Whom an action means; that it is nobody is said.
    fn found(&mut self, action: usize, s: &Selector) -> Vec<u32> {
        let all = self.which(s);
        if all.is_empty() {
            self.not_done(action, &[], "the selector means nobody");
        }
        all
    }

    /// The turn of a node in an action that is spread over some time.
    fn later(&mut self, action: usize, n: u32, after: u64, event: Event) {
        match self.now + after <= self.end {
            true => self.queue.push(self.now + after, event),
            false => self.not_done(action, &[n], "the run ends before its turn comes"),
        }
    }

    fn first_view(&self) -> Option<&ClusterView> {
        self.measure.live().keys().filter(|l| self.is_unpaused(**l)).find_map(|l| self.measure.view(*l)).map(|v| &**v)
    }

    fn is_unpaused(&self, life: u32) -> bool {
        !self.nodes[self.lives[life as usize].node as usize].paused
    }

    fn node_of(&self, id: NodeId) -> Option<u32> {
        self.by_id.get(&id).map(|l| self.lives[*l as usize].node)
    }

    fn crash(&mut self, n: u32) {
        if let Some(life) = self.nodes[n as usize].life {
            let id = self.lives[life as usize].id;
            self.measure.crashed(id, self.now);
            self.kill(n);
        }
    }

    /// Starts a node with its own seed list. Where nobody in it runs beside the node itself while others do, whoever starts it gives it one
    /// of them to ask, as an operator would: otherwise it would never find the cluster, or the first seed would form a second one. A member
    /// that it reaches is asked if there is one: who only waits to be one itself has nothing to tell.
    pub(super) fn start_beside(&mut self, n: u32, action: Option<usize>) {
        if self.is_running(n) {
            return;
        }
        let (all, seeds) = (self.scenario.nodes, self.scenario.seeds);
        let first = (0..all).find(|o| self.is_running(*o)).filter(|o| *o >= seeds);
        let fit = |o: &u32| self.is_member(*o) && !self.net.cut(n, *o) && !self.net.cut(*o, n);
        let helper = first.map(|first| (first..all).find(fit).unwrap_or(first));
        let seeds = helper.iter().flat_map(|helper| (0..seeds).chain([*helper])).map(settings::address).collect::<Vec<_>>();
        if let Some(asks) = helper {
            let line = action.map(|i| self.scenario.actions[i].line);
            self.helped.push(Helped { line, at_s: self.now as f64 / 1e9, node: n, asks });
        }
        self.start_asking(n, &seeds);
    }

    /// Whether it runs and shows itself up.
    fn is_member(&self, n: u32) -> bool {
        let view = self.nodes[n as usize].life.and_then(|life| self.measure.view(life));
        view.is_some_and(|view| view.member(view.me).is_some_and(|m| m.status == MemberStatus::Up))
    }

    /// Starts a node with this seed list, or its own.
    fn start_asking(&mut self, n: u32, seeds: &[NodeAddr]) {
        let mut config = self.nodes[n as usize].config.clone();
        if !seeds.is_empty() {
            Arc::make_mut(&mut config).cluster.seeds = seeds.iter().map(ToString::to_string).collect();
        }
        self.start(n, config);
    }

    pub(super) fn join(&mut self, n: u32, seeds: Vec<NodeAddr>, action: usize) {
        match (self.is_running(n), seeds.is_empty()) {
            (true, _) => self.not_done(action, &[n], "it is running already"),
            (false, true) => self.start_beside(n, Some(action)),
            (false, false) if seeds.iter().all(|seed| *seed == settings::address(n)) => {
                // It would found a cluster of its own beside the others.
                self.not_done(action, &[n], "it was told to join through itself");
            }
            (false, false) => self.start_asking(n, &seeds),
        }
    }

    pub(super) fn leave(&mut self, n: u32, action: usize) {
        let Some(life) = self.nodes[n as usize].life else { return self.not_done(action, &[n], NOT_RUNNING) };
        self.nodes[n as usize].told_to_leave = true;
        self.measure.not_live(life);
        let node = self.lives[life as usize].id;
        self.inner(life, Inner::Told(Command::Leave { id: undone::command(action, n), node }));
    }

    /// Who is told to declare those dead: whoever was named, unless that one stands still and would do it late, or never. Where it is only the leader, and that
    /// runs no more or is one of several, an operator goes to somebody else.
    fn operates(&self, told: &[u32], any: bool, dead: &[u32]) -> Option<u32> {
        let stands = |n: &u32| self.is_running(*n) && !self.nodes[*n as usize].paused;
        let named = told.iter().copied().find(stands);
        let unfit = match told.iter().find(|n| self.is_running(**n)) {
            Some(leader) => dead.len() > 1 && dead.contains(leader),
            None => true,
        };
        let other = (0..self.scenario.nodes).find(|n| any && unfit && stands(n) && !dead.contains(n));
        other.or(named)
    }

    fn down(&mut self, action: usize, n: u32, by: Option<u32>) {
        let Some(by) = by.and_then(|b| self.nodes[b as usize].life) else {
            return self.not_done(action, &[n], "nobody runs who could be told to down it");
        };
        // The newest life that the acting node shows at that address, running or not.
        let addr = settings::address(n);
        let Some(node) = self.measure.view(by).and_then(|v| v.members.iter().rev().find(|m| m.addr == addr).map(|m| m.id)) else {
            return self.not_done(action, &[n], "the node that was told to down it shows no such member");
        };
        if let Some(life) = self.nodes[n as usize].life {
            self.nodes[n as usize].downed.get_or_insert(action);
            self.measure.not_live(life);
        }
        self.inner(by, Inner::Told(Command::Down { id: undone::command(action, n), node }));
    }

    /// An action came to nothing: whom nobody declared dead after all counts as live again. Who was told to leave was told so nevertheless.
    pub(super) fn refused(&mut self, action: usize, n: u32) {
        let node = &mut self.nodes[n as usize];
        if node.downed != Some(action) {
            return;
        }
        node.downed = None;
        // Whose membership is over is on its way out, and who is written off counts once it runs.
        let there = node.process.as_ref().is_some_and(|p| !p.ending) && !node.told_to_leave && !node.written_off;
        if let Some(life) = node.life.filter(|_| there) {
            self.measure.live_again(life, self.lives[life as usize].id);
        }
    }

    fn move_shard(&mut self, action: usize, shard: u32, to: &Selector) {
        let all = self.found(action, to);
        let Some(target) = self.faults.index(all.len()).map(|i| all[i]) else { return };
        let Some(to) = self.nodes[target as usize].life.map(|l| self.lives[l as usize].id) else {
            return self.not_done(action, &[target], NOT_RUNNING);
        };
        // Asked for at some node that runs, as an operator would; it goes through the coordinator from there.
        let running: Vec<u32> = (0..self.scenario.nodes).filter(|n| self.is_running(*n) && !self.nodes[*n as usize].paused).collect();
        let Some(life) = self.faults.index(running.len()).and_then(|i| self.nodes[running[i] as usize].life) else {
            return self.not_done(action, &[target], "nobody runs who could be asked for the move");
        };
        self.moves += 1;
        let shard = ShardKey { ty: self.ty, shard: ShardId(shard) };
        let id = self.moves;
        self.net_step(life, |core, now| core.handle_command(now, Command::MoveShard { id, shard, to }));
    }

    /// The entry `i` of the scenario lays its fault over the links.
    fn link(&mut self, i: usize, link: &LinkAct) {
        // What is repeated is that fault, between the same nodes.
        let (from, to) = self
            .repeating
            .remove(&i)
            .filter(|(from, to)| !from.is_empty() && !to.is_empty())
            .unwrap_or_else(|| (self.found(i, &link.from), self.found(i, &link.to)));
        if !from.is_empty() && !to.is_empty() {
            self.lay(i, link, &from, &to);
        }
        if let Some(span) = link.span {
            self.queue.push(self.now + nanos(span), Event::Lift(i as u64 + 1));
        }
        if let Some(every) = link.every {
            self.repeating.insert(i, (from, to));
            self.queue.push(self.now + nanos(every), Event::Repeat(i));
        }
    }

    fn lay(&mut self, i: usize, link: &LinkAct, from: &[u32], to: &[u32]) {
        // Of all nodes and some the fault is those ones', among themselves too; whoever else sees them silent is not to blame.
        if !link.from.is_all() || link.to.is_all() {
            self.net.touch(from);
        }
        if !link.to.is_all() || link.from.is_all() {
            self.net.touch(to);
        }
        let fault = |from: &[u32], to: &[u32]| Fault {
            id: i as u64 + 1,
            from: Nodes::of(from),
            to: Nodes::of(to),
            loss: link.loss,
            latency: link.latency.map(nanos),
            duplicate: link.duplicate,
            reorder: link.reorder,
            cut: link.cut,
        };
        self.net.add(fault(from, to));
        if link.both {
            self.net.add(fault(to, from));
        }
        if link.tcp_reset {
            for a in from {
                for b in to {
                    self.reset(*a, *b);
                }
            }
        }
    }

    pub(super) fn repeat_link(&mut self, i: usize) {
        if self.repeating.contains_key(&i)
            && let Act::Link(link) = &self.scenario.actions[i].act
        {
            self.net.lift(i as u64 + 1);
            self.link(i, link);
        }
    }

    pub(super) fn lift(&mut self, id: u64) {
        self.net.lift(id);
        self.flush_all();
    }
}
