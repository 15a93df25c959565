//! The producer's side of a change of exit (moves.md section 13, X2).

use std::collections::BTreeMap;

use super::Word;
use crate::{Epoch, ShardKey};

/// What one producer used last for each shard.
#[derive(Debug, Default)]
pub struct Producer {
    last: BTreeMap<ShardKey, Word>,
}

/// One push into one of the producer's rings, in the order in which they must happen.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Push {
    /// `Leave(k)` into the ring of the network thread.
    LeaveNetwork(Epoch),
    /// `Leave(k)` into the ring of this worker.
    LeaveWorker(u16, Epoch),
    /// `Enter(k)` and `Leave(k2)` into the ring of the network thread.
    Through(Epoch, Epoch),
}

/// How to send one message: the tokens first, then the item.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Plan {
    /// Tokens before the item.
    pub tokens: [Option<Push>; 2],
    /// The worker's ring, with the tag; `None` = the ring of the network thread.
    pub exit: Option<(u16, Epoch)>,
    /// Flag of the item: `Enter(k)`.
    pub enter: Option<Epoch>,
}

impl Producer {
    /// How to send a message for `shard`, whose word was just loaded. Changes nothing: call `done` once room for all pushes was found and they were made.
    pub fn plan(&self, shard: ShardKey, word: Word) -> Plan {
        let last = self.last.get(&shard).copied().unwrap_or_default();
        let (old, new) = (last.exit(), word.exit());
        let plan = |tokens, enter| Plan { tokens, exit: new, enter };
        match (old, new) {
            _ if last == word => plan([None, None], None),
            (None, None) => plan([None, None], None),
            (None, Some((_, k))) => plan([Some(Push::LeaveNetwork(k)), None], Some(k)),
            (Some((worker, k)), None) => plan([Some(Push::LeaveWorker(worker, k)), None], Some(k)),
            (Some((worker, k)), Some((_, k2))) => plan([Some(Push::LeaveWorker(worker, k)), Some(Push::Through(k, k2))], Some(k2)),
        }
    }

    /// The plan for `word` was carried out whole.
    pub fn done(&mut self, shard: ShardKey, word: Word) {
        if word == Word::ELSEWHERE {
            self.last.remove(&shard)
        } else {
            self.last.insert(shard, word)
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ShardId, TypeId};

    const S: ShardKey = ShardKey { ty: TypeId(1), shard: ShardId(2) };

    #[test]
    fn each_change_of_exit_has_its_tokens() {
        let mut p = Producer::default();
        let (w1, w2) = (Word::local(0, Epoch(1)), Word::local(0, Epoch(4)));
        assert_eq!(p.plan(S, Word::ELSEWHERE), Plan { tokens: [None, None], exit: None, enter: None });
        assert_eq!(
            p.plan(S, w1),
            Plan { tokens: [Some(Push::LeaveNetwork(Epoch(1))), None], exit: Some((0, Epoch(1))), enter: Some(Epoch(1)) }
        );
        p.done(S, w1);
        assert_eq!(p.plan(S, w1), Plan { tokens: [None, None], exit: Some((0, Epoch(1))), enter: None });
        assert_eq!(
            p.plan(S, w2),
            Plan {
                tokens: [Some(Push::LeaveWorker(0, Epoch(1))), Some(Push::Through(Epoch(1), Epoch(4)))],
                exit: Some((0, Epoch(4))),
                enter: Some(Epoch(4))
            }
        );
        assert_eq!(
            p.plan(S, Word::ELSEWHERE),
            Plan { tokens: [Some(Push::LeaveWorker(0, Epoch(1))), None], exit: None, enter: Some(Epoch(1)) }
        );
    }

    #[test]
    fn what_was_refused_changes_nothing() {
        let p = Producer::default();
        let w = Word::local(1, Epoch(9));
        assert_eq!(p.plan(S, w), p.plan(S, w), "a plan that was not carried out is made again in full (L9)");
    }
}
