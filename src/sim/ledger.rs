//! What became of every message of the workload.

use std::collections::{BTreeMap, HashMap};

use foldhash::fast::FixedState;

use super::entity::Note;
use crate::proto::handoff::DropReason;

/// What went wrong with one delivery.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Wrong {
    Reordered { after: u32 },
    Duplicate,
    Unknown,
}

#[derive(Copy, Clone, Debug)]
struct Message {
    sender: u32,
    entity: u32,
    seq: u32,
    /// The life of a node in whose memory it was last seen.
    life: u32,
    delivered: bool,
    link_lost: bool,
    dropped: Option<DropReason>,
    answer: Answered,
}

/// How an ask ended at its client.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Answered {
    No,
    Reply,
    Dropped,
    TimedOut,
}

/// Sums at the end of a run.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Sums {
    pub sent: u64,
    pub delivered: u64,
    pub dropped: BTreeMap<String, u64>,
    pub lost: u64,
    pub undelivered: u64,
    pub reordered: u64,
    pub duplicated: u64,
    pub replies: u64,
    pub timeouts: u64,
    /// Some that were lost without a word: (id, sender, entity, number, last seen at which life).
    pub examples: Vec<(u64, u32, u32, u32, u32)>,
}

/// All messages of a run.
///
/// The maps are looked up and never walked, so their order cannot reach anything.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    messages: Vec<Message>,
    next: HashMap<(u32, u32), u32, FixedState>,
    highest: HashMap<(u32, u32), u32, FixedState>,
    reordered: u64,
    duplicated: u64,
}

impl Ledger {
    /// Enters a new message of `sender` (one life of a client) to `entity`.
    pub(super) fn send(&mut self, sender: u32, entity: u32, life: u32) -> Note {
        let seq = self.next.entry((sender, entity)).or_insert(0);
        *seq += 1;
        let note = Note { id: self.messages.len() as u64, sender, seq: *seq };
        self.messages.push(Message {
            sender,
            entity,
            seq: *seq,
            life,
            delivered: false,
            link_lost: false,
            dropped: None,
            answer: Answered::No,
        });
        note
    }

    /// It was seen in the memory of this life.
    pub(super) fn seen_at(&mut self, id: u64, life: u32) {
        if let Some(m) = self.messages.get_mut(id as usize) {
            m.life = life;
        }
    }

    pub(super) fn link_lost(&mut self, id: u64) {
        if let Some(m) = self.messages.get_mut(id as usize) {
            m.link_lost = true;
        }
    }

    pub(super) fn dropped(&mut self, id: u64, reason: DropReason) {
        if let Some(m) = self.messages.get_mut(id as usize) {
            m.dropped.get_or_insert(reason);
        }
    }

    /// An entity handled it; checks the order per sender and entity (E3) and that it is the first time (E4).
    pub(super) fn delivered(&mut self, note: Note, entity: u32) -> Result<(), Wrong> {
        let Some(m) = self.messages.get_mut(note.id as usize).filter(|m| (m.sender, m.seq, m.entity) == (note.sender, note.seq, entity))
        else {
            return Err(Wrong::Unknown);
        };
        if m.delivered {
            self.duplicated += 1;
            return Err(Wrong::Duplicate);
        }
        m.delivered = true;
        let highest = self.highest.entry((note.sender, entity)).or_insert(0);
        if note.seq < *highest {
            self.reordered += 1;
            return Err(Wrong::Reordered { after: *highest });
        }
        *highest = note.seq;
        Ok(())
    }

    /// The client got an answer, or gave up; only the first outcome counts.
    pub(super) fn answered(&mut self, id: u64, answer: Answered) {
        if let Some(m) = self.messages.get_mut(id as usize)
            && m.answer == Answered::No
        {
            m.answer = answer;
        }
    }

    /// Whether some message has neither arrived nor an end that is known.
    pub(super) fn is_open(&self, dead: impl Fn(u32) -> bool) -> bool {
        self.messages.iter().any(|m| !m.delivered && m.dropped.is_none() && !m.link_lost && !dead(m.life))
    }

    /// Sums up. `dead` tells whether a life is over with all that its memory held.
    pub(super) fn sums(&self, dead: impl Fn(u32) -> bool) -> Sums {
        let mut s = Sums { sent: self.messages.len() as u64, reordered: self.reordered, duplicated: self.duplicated, ..Sums::default() };
        for (id, m) in (0..).zip(&self.messages) {
            match m.answer {
                Answered::Reply => s.replies += 1,
                Answered::TimedOut => s.timeouts += 1,
                Answered::No | Answered::Dropped => {}
            }
            if m.delivered {
                s.delivered += 1;
                continue;
            }
            let why = match m.dropped {
                Some(reason) => Some(reason.label()),
                None if m.link_lost => Some(DropReason::LinkLost.label()),
                None if dead(m.life) => Some("crashed"),
                None => None,
            };
            s.undelivered += 1;
            match why {
                Some(label) => *s.dropped.entry(label.to_owned()).or_insert(0) += 1,
                None => {
                    s.lost += 1;
                    if s.examples.len() < 5 {
                        s.examples.push((id, m.sender, m.entity, m.seq, m.life));
                    }
                }
            }
        }
        s
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn planted_disorder_and_doubles_are_caught() {
        let mut l = Ledger::default();
        let notes: Vec<Note> = (0..4).map(|_| l.send(1, 7, 0)).collect();
        assert_eq!(l.delivered(notes[0], 7), Ok(()));
        assert_eq!(l.delivered(notes[2], 7), Ok(()), "a gap is no disorder");
        assert_eq!(l.delivered(notes[1], 7), Err(Wrong::Reordered { after: 3 }));
        assert_eq!(l.delivered(notes[2], 7), Err(Wrong::Duplicate));
        assert_eq!(l.delivered(notes[3], 8), Err(Wrong::Unknown), "at the wrong entity");
        let sums = l.sums(|_| false);
        assert_eq!((sums.sent, sums.delivered, sums.reordered, sums.duplicated, sums.lost), (4, 3, 1, 1, 1));
    }

    #[test]
    fn silence_is_told_from_losses_that_have_a_reason() {
        let mut l = Ledger::default();
        for life in 0..5 {
            l.send(0, 0, life);
        }
        l.dropped(0, DropReason::HomeLost);
        l.link_lost(1);
        l.seen_at(2, 9);
        let sums = l.sums(|life| life == 9);
        assert_eq!(sums.dropped, BTreeMap::from([("home_lost".into(), 1), ("link_lost".into(), 1), ("crashed".into(), 1)]));
        assert_eq!((sums.lost, sums.undelivered), (2, 5));
        assert!(l.is_open(|life| life == 9) && !l.is_open(|_| true));
    }

    #[test]
    fn only_the_first_outcome_of_an_ask_counts() {
        let mut l = Ledger::default();
        let note = l.send(0, 0, 0);
        l.answered(note.id, Answered::TimedOut);
        l.answered(note.id, Answered::Reply);
        assert_eq!((l.sums(|_| false).replies, l.sums(|_| false).timeouts), (0, 1));
    }
}
