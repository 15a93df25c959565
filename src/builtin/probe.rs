//! `probe`: notes numbered messages and reports what was lost, doubled or reordered on the way.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::{
    Refused,
    body::{Body, BodyError},
    ranges::Ranges,
};

/// Senders that one probe follows.
pub const SENDERS_MAX: usize = 10_000;
/// Longest name of a sender, in bytes.
pub const SENDER_BYTES_MAX: usize = 255;
/// Ranges of numbers kept for one sender: 16 bytes for each hole in what arrived.
pub const RANGES_MAX: usize = 100_000;
/// Highest number of a message; the largest integer that every JSON reader keeps exact.
pub const SEQ_MAX: u64 = 1 << 53;

/// What can be asked of a probe.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Op {
    /// Notes a message.
    Note {
        /// Who sent it.
        sender: String,
        /// Its number at that sender.
        seq: u64,
    },
    /// What arrived, by sender.
    Report,
}

/// Operations by name.
pub const OPS: &[&str] = &["note", "report"];

impl Op {
    /// From the name of an operation and its body; `None` when there is no such operation.
    pub fn parse(op: &str, body: &Value) -> Option<Result<Self, BodyError>> {
        match op {
            "note" => Some(parse_note(body)),
            "report" => Some(Body::new(body, &[]).map(|_| Self::Report)),
            _ => None,
        }
    }
}

fn parse_note(body: &Value) -> Result<Op, BodyError> {
    let body = Body::new(body, &["sender", "seq"])?;
    let sender = body.text("sender", SENDER_BYTES_MAX)?.into();
    Ok(Op::Note { sender, seq: body.integer("seq", 0, SEQ_MAX as i64)? as u64 })
}

/// What arrived from one sender.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Arrivals {
    /// Messages, duplicates included.
    pub count: u64,
    /// Messages whose number had arrived before.
    pub duplicates: u64,
    /// First arrivals of a number lower than the highest seen.
    pub reordered: u64,
    /// Every number that arrived.
    pub seen: Ranges,
}

impl Arrivals {
    fn note(&mut self, seq: u64) {
        let highest = self.seen.last();
        self.count += 1;
        if !self.seen.insert(seq) {
            self.duplicates += 1;
        } else if highest.is_some_and(|highest| seq < highest) {
            self.reordered += 1;
        }
    }

    fn report(&self) -> Value {
        json!({
            "count": self.count,
            "first": self.seen.first(),
            "last": self.seen.last(),
            "gaps": self.seen.gaps(),
            "duplicates": self.duplicates,
            "reordered": self.reordered,
        })
    }
}

/// The state of a probe.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Probe {
    senders: BTreeMap<String, Arrivals>,
}

impl Probe {
    /// Runs an operation; the result is a JSON object.
    pub fn apply(&mut self, op: Op) -> Result<Vec<u8>, Refused> {
        match op {
            Op::Note { sender, seq } => self.note(sender, seq).map(|()| b"{}".to_vec()),
            Op::Report => {
                let senders: Map<_, _> = self.senders.iter().map(|(name, arrivals)| (name.clone(), arrivals.report())).collect();
                Ok(json!({ "senders": senders }).to_string().into_bytes())
            }
        }
    }

    /// Notes a message.
    pub fn note(&mut self, sender: String, seq: u64) -> Result<(), Refused> {
        if let Some(arrivals) = self.senders.get_mut(&sender) {
            // Figures that are not exact would be worse than none: what cannot be kept is refused.
            if arrivals.seen.spans() >= RANGES_MAX && arrivals.seen.would_split(seq) {
                return Err(Refused::TooManyHoles { sender, max: RANGES_MAX });
            }
            arrivals.note(seq);
            return Ok(());
        }
        if self.senders.len() >= SENDERS_MAX {
            return Err(Refused::TooManySenders { max: SENDERS_MAX });
        }
        self.senders.entry(sender).or_default().note(seq);
        Ok(())
    }

    /// What arrived from a sender.
    pub fn arrivals(&self, sender: &str) -> Option<&Arrivals> {
        self.senders.get(sender)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(numbers: &[u64]) -> Value {
        let mut probe = Probe::default();
        for &seq in numbers {
            let op = Op::parse("note", &json!({"sender": "s1", "seq": seq})).unwrap().unwrap();
            assert_eq!(probe.apply(op).unwrap(), b"{}");
        }
        let report: Value = serde_json::from_slice(&probe.apply(Op::Report).unwrap()).unwrap();
        report["senders"]["s1"].clone()
    }

    #[test]
    fn a_clean_stream_has_no_faults() {
        let clean = json!({"count": 4, "first": 1, "last": 4, "gaps": 0, "duplicates": 0, "reordered": 0});
        assert_eq!(after(&[1, 2, 3, 4]), clean);
    }

    #[test]
    fn gaps_are_numbers_missing_between_first_and_last() {
        assert_eq!(after(&[2, 5, 6]), json!({"count": 3, "first": 2, "last": 6, "gaps": 2, "duplicates": 0, "reordered": 0}));
    }

    #[test]
    fn a_late_first_arrival_is_reordered_and_closes_its_gap() {
        assert_eq!(after(&[1, 3, 2, 4]), json!({"count": 4, "first": 1, "last": 4, "gaps": 0, "duplicates": 0, "reordered": 1}));
    }

    #[test]
    fn a_repetition_is_a_duplicate_and_not_reordered() {
        assert_eq!(after(&[1, 2, 1, 2, 3]), json!({"count": 5, "first": 1, "last": 3, "gaps": 0, "duplicates": 2, "reordered": 0}));
    }

    #[test]
    fn senders_are_kept_apart_and_bounded() {
        let mut probe = Probe::default();
        for sender in 0..SENDERS_MAX {
            probe.note(format!("s{sender}"), 1).unwrap();
        }
        assert_eq!(probe.note("one too many".into(), 1), Err(Refused::TooManySenders { max: SENDERS_MAX }));
        probe.note("s0".into(), 2).unwrap();
        assert_eq!(probe.arrivals("s0").unwrap().count, 2);
        assert_eq!(probe.arrivals("s1").unwrap().count, 1);
    }

    #[test]
    fn a_stream_with_too_many_holes_is_refused_and_can_still_close_them() {
        let mut probe = Probe::default();
        for hole in 0..RANGES_MAX as u64 {
            probe.note("s".into(), hole * 2).unwrap();
        }
        let next = RANGES_MAX as u64 * 2;
        assert_eq!(probe.note("s".into(), next), Err(Refused::TooManyHoles { sender: "s".into(), max: RANGES_MAX }));
        probe.note("s".into(), 1).unwrap();
        probe.note("s".into(), next).unwrap();
    }

    #[test]
    fn what_was_noted_survives_a_move() {
        let mut probe = Probe::default();
        probe.note("s".into(), 1).unwrap();
        let mut moved: Probe = postcard::from_bytes(&postcard::to_stdvec(&probe).unwrap()).unwrap();
        moved.note("s".into(), 1).unwrap();
        assert_eq!(moved.arrivals("s").unwrap().duplicates, 1);
    }
}
