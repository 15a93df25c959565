//! A new coordinator asks every member what it knows, and rebuilds the table from the answers.
//!
//! A member answers also for workers that stand still, and says of which shards it does not know what became of them. Those are left out of the table until
//! it does: such a worker acts on whatever stands in its ring when it wakes.

use std::collections::BTreeMap;

use crate::{
    Epoch, NodeId, ShardKey,
    proto::sharding::{FactState, ShardFact, TypeInfo},
};

/// The question to all members, and what came so far.
#[derive(Debug, Default)]
pub(super) struct Recount {
    /// Who has not answered whole.
    waiting: BTreeMap<NodeId, Awaited>,
    answers: BTreeMap<NodeId, Known>,
    /// What began to run while the answers were gathered.
    owned: BTreeMap<(NodeId, ShardKey), Epoch>,
}

/// An answer that is coming in.
#[derive(Debug, Default)]
struct Awaited {
    /// Number of the answer that came before, and left facts unknown.
    have: u64,
    /// Its own number, and that of its next part.
    next: (u64, u32),
}

/// What one node answered.
#[derive(Debug, Default)]
pub(super) struct Known {
    /// Number of the answer.
    pub answer: u64,
    /// Of the announcement.
    pub number: u64,
    pub types: Vec<TypeInfo>,
    pub facts: Vec<ShardFact>,
}

impl Recount {
    /// Adds one to ask; false if it was asked before.
    pub fn ask(&mut self, node: NodeId) -> bool {
        let new = !self.waiting.contains_key(&node) && !self.answers.contains_key(&node);
        if new {
            self.waiting.insert(node, Awaited::default());
        }
        new
    }

    /// Asks for the rest of an answer that left facts unknown.
    pub fn ask_on(&mut self, node: NodeId, have: u64) {
        self.waiting.insert(node, Awaited { have, ..Awaited::default() });
    }

    /// Who is waited for, and which of its answers is here.
    pub fn waiting(&self) -> impl Iterator<Item = (NodeId, u64)> {
        self.waiting.iter().map(|(node, awaited)| (*node, awaited.have))
    }

    pub fn waits_for(&self, node: NodeId) -> bool {
        self.waiting.contains_key(&node)
    }

    pub fn is_complete(&self) -> bool {
        self.waiting.is_empty()
    }

    /// A removed node need not answer, and what it answered is void.
    pub fn removed(&mut self, node: NodeId) {
        self.waiting.remove(&node);
        self.answers.remove(&node);
        self.owned.retain(|(n, _), _| *n != node);
    }

    /// A hand-over arrived: the node's facts may be older than that, whether they are here already or under way.
    pub fn owned(&mut self, node: NodeId, shard: ShardKey, epoch: Epoch) {
        let newest = self.owned.entry((node, shard)).or_default();
        *newest = epoch.max(*newest);
    }

    /// One part of an answer. A first part begins anew: the question was repeated. What is left of another answer comes too late, by another way.
    pub fn answer(
        &mut self,
        from: NodeId,
        (answer, part): (u64, u32),
        last: bool,
        (number, types): (u64, Vec<TypeInfo>),
        facts: Vec<ShardFact>,
    ) {
        let Some(awaited) = self.waiting.get_mut(&from).filter(|awaited| answer > awaited.have) else { return };
        if part == 0 {
            self.answers.insert(from, Known { answer, ..Known::default() });
        } else if (answer, part) != awaited.next {
            return;
        }
        awaited.next = (answer, part + 1);
        let known = self.answers.entry(from).or_default();
        known.number = known.number.max(number);
        known.types.extend(types);
        known.facts.extend(facts);
        if last {
            self.waiting.remove(&from);
        }
    }

    /// Takes an answer out that has come whole.
    pub fn take(&mut self, node: NodeId) -> Option<Known> {
        if self.waits_for(node) { None } else { self.answers.remove(&node) }
    }

    /// The answers, and what all of them say of each shard.
    pub fn conclude(self) -> (BTreeMap<NodeId, Known>, BTreeMap<ShardKey, ShardFacts>) {
        let mut all: BTreeMap<ShardKey, ShardFacts> = BTreeMap::new();
        for (node, known) in &self.answers {
            for fact in &known.facts {
                all.entry(fact.shard).or_default().push((*node, *fact));
            }
        }
        for ((node, shard), epoch) in self.owned.into_iter().filter(|((node, _), _)| self.answers.contains_key(node)) {
            heed(all.entry(shard).or_default(), node, shard, epoch);
        }
        (self.answers, all)
    }
}

impl Known {
    /// A worker of that node stands still.
    pub fn is_partial(&self) -> bool {
        self.facts.iter().any(|f| f.state == FactState::Unknown)
    }
}

/// What the facts about one shard come to.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    /// It runs there, under the newest epoch known.
    Runs { home: NodeId, epoch: Epoch, base: Epoch },
    /// It runs there, or stopped there and was not handed over, but newer epochs are known: assign it there, above them.
    Keep { home: NodeId, base: Epoch },
    /// Only that node may come to have it: the other end of the move is gone. Of what is on its way the first parts may leave while the last instances there end.
    Receives { home: NodeId, base: Epoch },
    /// A move whose ends both may have it.
    Moving { from: NodeId, to: NodeId, epoch: Epoch, base: Epoch },
    /// Nobody has it.
    Unowned,
}

/// Facts of one shard by node.
pub(super) type ShardFacts = Vec<(NodeId, ShardFact)>;

/// A hand-over arrived at that node, which its fact may be older than. While that says that it is not known what else the worker was told, it stands.
pub(super) fn heed(facts: &mut ShardFacts, node: NodeId, shard: ShardKey, epoch: Epoch) {
    let runs = ShardFact { shard, state: FactState::Running(epoch), seen: epoch, base: epoch, heard: Some((epoch, node)), entities: 0 };
    match facts.iter_mut().find(|(n, _)| *n == node) {
        Some((_, fact)) if fact.state == FactState::Unknown || fact.seen >= epoch => {}
        Some((_, fact)) => *fact = runs,
        None => facts.push((node, runs)),
    }
}

/// Whether it is left open who has the shard: a worker that stands still may have it, or come to. Not if somebody else runs it under the newest epoch that
/// anybody was told of: then nothing that such a worker has in its ring lets it run the shard, as nobody is given it before its home has handed it over.
pub(super) fn is_open(facts: &[(NodeId, ShardFact)]) -> bool {
    facts.iter().any(|(_, f)| f.state == FactState::Unknown) && !matches!(judge(facts).1, Verdict::Runs { .. })
}

/// The highest epoch anybody acted on or heard of, and what the facts come to.
pub(super) fn judge(facts: &[(NodeId, ShardFact)]) -> (Epoch, Verdict) {
    let heard = facts.iter().filter_map(|(_, f)| f.heard);
    let floor = facts.iter().map(|(_, f)| f.seen.max(acted(f))).chain(heard.clone().map(|(e, _)| e)).max().unwrap_or_default();
    let newest = |wanted: fn(&FactState) -> Option<Epoch>| {
        facts.iter().filter_map(move |(n, f)| wanted(&f.state).map(|e| (e, *n, f.base))).max_by_key(|&(e, n, _)| (e, n))
    };
    if let Some((epoch, home, base)) = newest(|s| if let FactState::Running(e) = s { Some(*e) } else { None }) {
        return (floor, if epoch == floor { Verdict::Runs { home, epoch, base } } else { Verdict::Keep { home, base } });
    }
    let home_at = |epoch| heard.clone().find(|&(e, _)| e == epoch).map(|(_, home)| home);
    if let Some((epoch, from, base)) = newest(|s| if let FactState::Stopping(e) = s { Some(*e) } else { None }) {
        return (
            floor,
            match home_at(epoch).filter(|&to| epoch == floor && to != from) {
                Some(to) => Verdict::Moving { from, to, epoch, base },
                None => Verdict::Keep { home: from, base },
            },
        );
    }
    let handed = newest(|s| if let FactState::HandedOver(e) = s { Some(*e) } else { None }).filter(|&(e, ..)| e == floor);
    let receiving = newest(|s| if let FactState::Receiving(e) = s { Some(*e) } else { None });
    let verdict = match (handed, receiving) {
        (Some((epoch, from, base)), Some((e, to, _))) if e == epoch => Verdict::Moving { from, to, epoch, base },
        (Some((epoch, from, base)), _) => match home_at(epoch).filter(|&to| to != from) {
            Some(to) => Verdict::Moving { from, to, epoch, base },
            None => Verdict::Unowned,
        },
        // The old home did not survive: the row "A removed", base = the move's epoch.
        (None, Some((epoch, home, _))) => Verdict::Receives { home, base: epoch },
        (None, None) => Verdict::Unowned,
    };
    (floor, verdict)
}

fn acted(fact: &ShardFact) -> Epoch {
    match fact.state {
        FactState::None | FactState::Unknown => Epoch::ZERO,
        FactState::Running(e) | FactState::Stopping(e) | FactState::Receiving(e) | FactState::HandedOver(e) => e,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ShardId, TypeId};

    const A: NodeId = NodeId::from_raw(1);
    const B: NodeId = NodeId::from_raw(2);
    const C: NodeId = NodeId::from_raw(3);

    fn fact(node: NodeId, state: FactState, seen: u64, heard: Option<(u64, NodeId)>) -> (NodeId, ShardFact) {
        let shard = ShardKey { ty: TypeId(1), shard: ShardId(0) };
        (node, ShardFact { shard, state, seen: Epoch(seen), base: Epoch(1), heard: heard.map(|(e, n)| (Epoch(e), n)), entities: 0 })
    }

    #[test]
    fn who_runs_it_keeps_it() {
        let runs = fact(A, FactState::Running(Epoch(3)), 3, Some((3, A)));
        let sender = fact(B, FactState::None, 0, Some((2, C)));
        assert_eq!(judge(&[runs, sender]), (Epoch(3), Verdict::Runs { home: A, epoch: Epoch(3), base: Epoch(1) }));
        let told_of_a_move = fact(B, FactState::None, 0, Some((4, C)));
        assert_eq!(judge(&[runs, told_of_a_move]), (Epoch(4), Verdict::Keep { home: A, base: Epoch(1) }));
        let refused = fact(A, FactState::Running(Epoch(3)), 4, Some((4, B)));
        assert_eq!(judge(&[refused]), (Epoch(4), Verdict::Keep { home: A, base: Epoch(1) }));
    }

    #[test]
    fn a_move_in_any_stage_has_two_owners() {
        let moving = Verdict::Moving { from: A, to: B, epoch: Epoch(2), base: Epoch(1) };
        let stopping = fact(A, FactState::Stopping(Epoch(2)), 2, Some((2, B)));
        let handed = fact(A, FactState::HandedOver(Epoch(2)), 2, Some((2, B)));
        let receiving = fact(B, FactState::Receiving(Epoch(2)), 0, None);
        assert_eq!(judge(&[stopping]), (Epoch(2), moving));
        assert_eq!(judge(&[handed]), (Epoch(2), moving));
        assert_eq!(judge(&[handed, receiving]), (Epoch(2), moving));
        assert_eq!(judge(&[receiving]), (Epoch(2), Verdict::Receives { home: B, base: Epoch(2) }), "only B may get it (CE-13)");
        let runs = fact(B, FactState::Running(Epoch(2)), 2, Some((2, B)));
        assert_eq!(judge(&[handed, runs]), (Epoch(2), Verdict::Runs { home: B, epoch: Epoch(2), base: Epoch(1) }));
    }

    #[test]
    fn answers_given_at_different_times_agree() {
        let handed = fact(A, FactState::HandedOver(Epoch(2)), 2, Some((2, B)));
        let before_it_came = fact(B, FactState::None, 0, Some((2, B)));
        let moving = Verdict::Moving { from: A, to: B, epoch: Epoch(2), base: Epoch(1) };
        assert_eq!(judge(&[handed, before_it_came]), (Epoch(2), moving), "the transfer came to B behind its answer");
        let before_it_left = fact(A, FactState::Running(Epoch(1)), 1, Some((1, A)));
        let runs = fact(B, FactState::Running(Epoch(2)), 2, Some((2, B)));
        assert_eq!(judge(&[before_it_left, runs]).1, Verdict::Runs { home: B, epoch: Epoch(2), base: Epoch(1) });
    }

    #[test]
    fn a_stop_overtaken_by_newer_records_is_cancelled() {
        let stopping = fact(A, FactState::Stopping(Epoch(2)), 2, Some((2, B)));
        let newer = fact(C, FactState::None, 0, Some((3, A)));
        assert_eq!(judge(&[stopping, newer]), (Epoch(3), Verdict::Keep { home: A, base: Epoch(1) }));
    }

    #[test]
    fn what_nobody_has_keeps_its_epochs() {
        let heard = fact(A, FactState::None, 0, Some((5, C)));
        let had = fact(B, FactState::None, 6, Some((5, C)));
        assert_eq!(judge(&[heard, had]), (Epoch(6), Verdict::Unowned));
    }

    #[test]
    fn parts_come_in_order_and_a_repeated_question_begins_anew() {
        let mut recount = Recount::default();
        assert!(recount.ask(A) && !recount.ask(A));
        let facts = |n| vec![fact(A, FactState::None, n, None).1];
        recount.answer(A, (1, 0), false, (0, vec![]), facts(1));
        recount.answer(A, (1, 2), true, (0, vec![]), facts(9));
        assert!(!recount.is_complete(), "a part is missing");
        recount.answer(A, (2, 0), false, (0, vec![]), facts(1));
        recount.answer(A, (1, 1), true, (0, vec![]), facts(9));
        assert!(!recount.is_complete(), "that is of the answer before");
        recount.answer(A, (1, 0), false, (0, vec![]), facts(1));
        recount.answer(A, (1, 1), true, (0, vec![]), facts(2));
        assert!(recount.is_complete());
        assert_eq!(recount.conclude().0[&A].facts.len(), 2);
    }
}
