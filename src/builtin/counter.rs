//! `counter`: a total that counts every numbered addition once.

use std::{
    collections::{HashSet, VecDeque},
    sync::Arc,
};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{
    Refused,
    body::{Body, BodyError},
};

/// How many ids of additions an entity remembers. When one more comes, the oldest is forgotten: a repetition of it would count again, so a
/// sender may have this many additions on the way before it must stop repeating the oldest.
pub const IDS_MAX: usize = 100_000;
/// Longest id, in bytes.
pub const ID_BYTES_MAX: usize = 255;

/// What can be asked of a counter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Op {
    /// Adds `n`; with an id that was seen before, nothing.
    Add {
        /// What to add; may be negative.
        n: i64,
        /// Names the addition, so that it can be repeated safely.
        id: Option<String>,
    },
    /// The total.
    Get,
}

/// Operations by name.
pub const OPS: &[&str] = &["add", "get"];

impl Op {
    /// From the name of an operation and its body; `None` when there is no such operation.
    pub fn parse(op: &str, body: &Value) -> Option<Result<Self, BodyError>> {
        match op {
            "add" => Some(parse_add(body)),
            "get" => Some(Body::new(body, &[]).map(|_| Self::Get)),
            _ => None,
        }
    }
}

fn parse_add(body: &Value) -> Result<Op, BodyError> {
    let body = Body::new(body, &["n", "id"])?;
    Ok(Op::Add { n: body.integer("n", i64::MIN, i64::MAX)?, id: body.optional_text("id", ID_BYTES_MAX)?.map(Into::into) })
}

/// The state of a counter.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(from = "Kept", into = "Kept")]
pub struct Counter {
    total: i64,
    order: VecDeque<Arc<str>>,
    seen: HashSet<Arc<str>>,
}

/// What travels: the set of ids is made again from their order.
#[derive(Serialize, Deserialize)]
struct Kept {
    total: i64,
    order: VecDeque<Arc<str>>,
}

impl From<Kept> for Counter {
    fn from(kept: Kept) -> Self {
        Self { total: kept.total, seen: kept.order.iter().cloned().collect(), order: kept.order }
    }
}

impl From<Counter> for Kept {
    fn from(counter: Counter) -> Self {
        Self { total: counter.total, order: counter.order }
    }
}

impl Counter {
    /// Runs an operation; the result is a JSON object.
    pub fn apply(&mut self, op: Op) -> Result<Vec<u8>, Refused> {
        match op {
            Op::Add { n, id } => {
                let duplicate = !self.add(n, id.as_deref())?;
                Ok(format!(r#"{{"total":{},"duplicate":{duplicate}}}"#, self.total).into_bytes())
            }
            Op::Get => Ok(format!(r#"{{"total":{}}}"#, self.total).into_bytes()),
        }
    }

    /// Adds; false when the id was seen before.
    pub fn add(&mut self, n: i64, id: Option<&str>) -> Result<bool, Refused> {
        if id.is_some_and(|id| self.seen.contains(id)) {
            return Ok(false);
        }
        // The sum comes first: an addition that is refused leaves no id behind, so it can be repeated with another number.
        self.total = self.total.checked_add(n).ok_or(Refused::Overflow { total: self.total, n })?;
        if let Some(id) = id {
            self.remember(id.into());
        }
        Ok(true)
    }

    /// The total.
    pub fn total(&self) -> i64 {
        self.total
    }

    fn remember(&mut self, id: Arc<str>) {
        if self.order.len() >= IDS_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.seen.remove(&oldest);
        }
        self.order.push_back(Arc::clone(&id));
        self.seen.insert(id);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn text(result: Result<Vec<u8>, Refused>) -> String {
        String::from_utf8(result.unwrap()).unwrap()
    }

    #[test]
    fn the_same_id_counts_once() {
        let mut counter = Counter::default();
        let add = Op::parse("add", &json!({"n": 2, "id": "c1-17"})).unwrap().unwrap();
        assert_eq!(text(counter.apply(add.clone())), r#"{"total":2,"duplicate":false}"#);
        assert_eq!(text(counter.apply(add)), r#"{"total":2,"duplicate":true}"#);
        assert_eq!(text(counter.apply(Op::Get)), r#"{"total":2}"#);
    }

    #[test]
    fn without_an_id_every_addition_counts() {
        let mut counter = Counter::default();
        assert!(counter.add(1, None).unwrap() && counter.add(-4, None).unwrap());
        assert_eq!(counter.total(), -3);
    }

    #[test]
    fn an_overflow_is_refused_and_changes_nothing() {
        let mut counter = Counter::default();
        counter.add(i64::MAX, Some("a")).unwrap();
        assert_eq!(counter.add(1, Some("b")), Err(Refused::Overflow { total: i64::MAX, n: 1 }));
        assert_eq!(counter.total(), i64::MAX);
        assert!(counter.add(-1, Some("b")).unwrap(), "the refused addition left its id behind");
    }

    #[test]
    fn the_oldest_id_is_forgotten_at_the_bound() {
        let mut counter = Counter::default();
        for id in 0..=IDS_MAX {
            assert!(counter.add(1, Some(&id.to_string())).unwrap());
        }
        assert!(!counter.add(1, Some("1")).unwrap());
        assert!(counter.add(1, Some("0")).unwrap());
        assert_eq!(counter.order.len(), IDS_MAX);
    }

    #[test]
    fn ids_survive_a_move() {
        let mut counter = Counter::default();
        counter.add(5, Some("x")).unwrap();
        let bytes = postcard::to_stdvec(&counter).unwrap();
        let mut moved: Counter = postcard::from_bytes(&bytes).unwrap();
        assert!(!moved.add(5, Some("x")).unwrap());
        assert_eq!(moved.total(), 5);
    }

    #[test]
    fn a_wrong_body_is_refused_by_name() {
        let error = |body: Value| Op::parse("add", &body).unwrap().unwrap_err().to_string();
        assert!(error(json!({})).starts_with("`n` is missing"));
        assert!(error(json!({"n": 1.5})).starts_with("`n` is 1.5: expected a whole number"));
        assert!(error(json!({"n": 18_446_744_073_709_551_615u64})).starts_with("`n` is 18446744073709551615"));
        assert!(error(json!({"n": 1, "id": 7})).starts_with("`id` is 7: expected text or null"));
        assert!(error(json!({"n": 1, "id": "x".repeat(256)})).contains("text of 256 bytes"));
        assert!(Op::parse("get", &json!({"n": 1})).unwrap().is_err());
        assert!(Op::parse("remove", &json!({})).is_none());
    }
}
