//! What a run came to.

use super::{
    RunResult,
    measure::Subject,
    process::{Life, Node, Process},
    world::World,
};
use crate::NodeId;

impl World<'_> {
    pub(super) fn subject(&self, id: NodeId) -> Option<Subject> {
        let life = *self.by_id.get(&id)?;
        let l = self.lives[life as usize];
        let node = &self.nodes[l.node as usize];
        let live = self.measure_live(life);
        let running = !l.over;
        let settled = !node.paused && (node.resumed_at == 0 || self.now.saturating_sub(node.resumed_at) > 5_000_000_000);
        let replaced = node.starts > l.generation + 1;
        Some(Subject {
            life,
            live,
            blameless: running && settled && !node.told_to_leave && node.downed.is_none() && !self.net.was_touched(l.node),
            expected_to_go: node.told_to_leave || replaced,
            touched: self.net.was_touched(l.node),
        })
    }

    /// Live in the sense of the contract, for a life whose measurements are being taken.
    fn measure_live(&self, life: u32) -> bool {
        let l = self.lives[life as usize];
        let node = &self.nodes[l.node as usize];
        !l.over && node.life == Some(life) && !node.told_to_leave && node.downed.is_none()
    }

    /// Whether that life does not stand still and reaches a majority.
    pub(super) fn in_majority(&self, life: u32) -> bool {
        let running: Vec<u32> = self.nodes.iter().filter_map(|n| n.life).collect();
        self.reaches_most(life, &running)
    }

    /// Whether that life does not stand still and reaches most of these.
    fn reaches_most(&self, life: u32, lives: &[u32]) -> bool {
        let index = self.lives[life as usize].node;
        let runs = |i: u32| !self.nodes[i as usize].paused;
        let reaches = |i: u32| i == index || !self.net.broken(index, i) && !self.net.broken(i, index);
        let reached = lives.iter().map(|l| self.lives[*l as usize]).filter(|l| !l.over && runs(l.node) && reaches(l.node)).count();
        runs(index) && reached * 2 > lives.len()
    }

    /// A process's membership is over. Whether that is right is a matter of the members it knows: when it ends, others may have ended before it.
    pub(super) fn took_itself_out(&mut self, p: &Process) {
        let members: Vec<u32> = p.core.view().members.iter().filter_map(|m| self.by_id.get(&m.id).copied()).collect();
        let (subject, in_majority) = (self.subject(p.id), self.reaches_most(p.life, &members));
        self.measure.took_itself_out(p.id, subject, in_majority);
    }

    /// What the membership came to at the end of the run.
    pub(super) fn membership_result(&mut self) -> RunResult {
        let [detect, known, removal] = self.measure.crash_times();
        let (survivor_groups, survivors) = self.measure.survivors();
        let (view_changes_max, flips_max) = self.measure.maxima();
        let (bytes_per_node_per_s, peak) = self.traffic.rates(self.end, self.measure.ever_all_up);
        let seconds = |t: u64| t as f64 / 1e9;
        RunResult {
            scenario: self.scenario.name.clone(),
            seed: self.seed,
            nodes: self.scenario.nodes,
            virtual_s: seconds(self.end),
            converged_at_s: self.measure.converged_since.map(seconds),
            all_up_at_s: self.measure.all_up_since.map(seconds),
            all_reachable_at_s: self.measure.all_reachable_since.map(seconds),
            members_up: self.measure.members_up(),
            sizes_seen: self.measure.sizes.len() as u64,
            detect_s: detect.0,
            known_s: known.0,
            removal_s: removal.0,
            undetected: detect.1,
            unknown: known.1,
            unremoved: removal.1,
            view_changes_max,
            false_unreachable: self.measure.false_unreachable,
            false_removals: self.measure.false_removals,
            removed: self.measure.removed(),
            flips_max,
            survivor_groups,
            survivors,
            bytes_per_node_per_s,
            peak_bytes_per_node_per_s: peak,
            ..RunResult::default()
        }
    }

    /// What became of the messages and what was violated; then the expectations.
    pub(super) fn message_result(mut self, r: &mut RunResult) {
        let (lives, nodes) = (&self.lives, &self.nodes);
        let sums = self.ledger.sums(|life| is_gone(lives, nodes, life));
        for (id, sender, entity, seq, life) in &sums.examples {
            let node = self.lives[*life as usize].node;
            let what = format!(
                "message {id} (number {seq} of sender {sender} to entity {entity}) was neither delivered nor reported; last seen at node {node}"
            );
            self.findings.add("E8", self.now, vec![node], what);
        }
        r.events = self.events;
        r.max_datagram_bytes = self.max_datagram;
        r.dual_active_s = self.instances.dual_max() as f64 / 1e9;
        r.sent = sums.sent;
        r.delivered = sums.delivered;
        r.dropped = sums.dropped;
        r.lost = sums.lost;
        r.reordered = sums.reordered;
        r.duplicated = sums.duplicated;
        r.undelivered = sums.undelivered;
        r.replies = sums.replies;
        r.timeouts = sums.timeouts;
        r.not_sent = self.not_sent;
        r.moves = self.moves;
        r.moves_refused = self.moves_refused;
        r.not_done = self.undone();
        r.helped = self.helped;
        r.violations = self.findings.list;
        r.violations_more = self.findings.more;
        r.digest = format!("{:016x}", self.digest.value());
        for (name, why) in self.scenario.expect.judge(r) {
            r.failed.push(name.to_owned());
            r.failed_why.push(why);
        }
    }
}

/// Whether what that life holds will never be seen again, as nobody could help: its process crashed, or stays paused to the end.
pub(super) fn is_gone(lives: &[Life], nodes: &[Node], life: u32) -> bool {
    let l = lives[life as usize];
    l.crashed || !l.over && nodes[l.node as usize].paused
}
