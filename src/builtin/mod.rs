//! The entity types that `wingbeat node` hosts, so that any HTTP client can drive and check a cluster without writing Rust.
//!
//! Each file holds one type: its operations as they come in, its state, and what an operation does to it. Nothing here knows of nodes.
//! Bodies are checked on the node that received the request, before anything is sent; what only the entity can know is a [`Refused`].

pub mod aircraft;
mod body;
pub mod counter;
pub mod hosting;
pub mod probe;
mod ranges;
pub mod register;

use serde_json::Value;

pub use body::BodyError;
pub use hosting::host;
pub use ranges::Ranges;

/// The entity types by name.
pub const TYPES: &[&str] = &["aircraft", "counter", "probe", "register"];

/// An operation that the entity itself refused; it changed nothing that the operation is about.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refused {
    /// A counter would leave the range of its total.
    #[error("{total} plus {n} leaves the range of a total, {} to {}", i64::MIN, i64::MAX)]
    Overflow {
        /// The total as it stays.
        total: i64,
        /// What was to be added.
        n: i64,
    },
    /// A flight came ahead of its turn.
    #[error("flight {seq} is ahead of its turn: {awaited} is awaited, feed again from there")]
    Ahead {
        /// The flight that came.
        seq: u64,
        /// The one that is next.
        awaited: u64,
    },
    /// A probe follows as many senders as it can.
    #[error("this probe follows {max} senders, which is the most: use another key")]
    TooManySenders {
        /// The bound.
        max: usize,
    },
    /// What arrived from a sender has too many holes to be kept exactly.
    #[error("what arrived from {sender:?} has {max} holes, which is the most: close them or use another sender")]
    TooManyHoles {
        /// The sender.
        sender: String,
        /// The bound.
        max: usize,
    },
}

/// Why a request did not become an operation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// No such entity type.
    #[error("`{name}` is not an entity type of this node: expected one of {}", TYPES.join(", "))]
    UnknownType {
        /// What was asked for.
        name: String,
    },
    /// The type has no such operation.
    #[error("`{op}` is not an operation of `{entity_type}`: expected one of {}", ops.join(", "))]
    UnknownOp {
        /// The type.
        entity_type: &'static str,
        /// What was asked for.
        op: String,
        /// What there is.
        ops: &'static [&'static str],
    },
    /// The body does not fit the operation.
    #[error(transparent)]
    Body(#[from] BodyError),
}

/// An operation of one of the types.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Of an aircraft.
    Aircraft(aircraft::Op),
    /// Of a counter.
    Counter(counter::Op),
    /// Of a probe.
    Probe(probe::Op),
    /// Of a register.
    Register(register::Op),
}

impl Operation {
    /// Checks type, operation and body of a request for the entity `key`.
    pub fn parse(entity_type: &str, key: &str, op: &str, body: &Value) -> Result<Self, RequestError> {
        let (entity_type, ops, parsed) = match entity_type {
            "aircraft" => ("aircraft", aircraft::OPS, aircraft::Op::parse(op, key, body).map(|op| op.map(Self::Aircraft))),
            "counter" => ("counter", counter::OPS, counter::Op::parse(op, body).map(|op| op.map(Self::Counter))),
            "probe" => ("probe", probe::OPS, probe::Op::parse(op, body).map(|op| op.map(Self::Probe))),
            "register" => ("register", register::OPS, register::Op::parse(op, body).map(|op| op.map(Self::Register))),
            other => return Err(RequestError::UnknownType { name: other.chars().take(64).collect() }),
        };
        let unknown = || RequestError::UnknownOp { entity_type, op: op.chars().take(64).collect(), ops };
        Ok(parsed.ok_or_else(unknown)??)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_request_becomes_an_operation_of_its_type() {
        assert_eq!(Operation::parse("counter", "c", "get", &json!({})), Ok(Operation::Counter(counter::Op::Get)));
        assert_eq!(Operation::parse("probe", "p", "report", &json!({})), Ok(Operation::Probe(probe::Op::Report)));
        assert_eq!(Operation::parse("aircraft", "N1", "report", &json!({})), Ok(Operation::Aircraft(aircraft::Op::Report)));
        assert_eq!(Operation::parse("register", "r", "read", &json!({})), Ok(Operation::Register(register::Op::Read)));
    }

    #[test]
    fn an_unknown_type_or_operation_is_refused_with_what_there_is() {
        let error = Operation::parse("plane", "N1", "get", &json!({})).unwrap_err();
        assert_eq!(error.to_string(), "`plane` is not an entity type of this node: expected one of aircraft, counter, probe, register");
        let error = Operation::parse("counter", "c", "drop", &json!({})).unwrap_err();
        assert_eq!(error.to_string(), "`drop` is not an operation of `counter`: expected one of add, get");
    }
}
