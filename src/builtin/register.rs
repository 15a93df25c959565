//! `register`: one value that can be written, read, and changed if it is what one believes.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{
    Refused,
    body::{Body, BodyError},
};

/// Longest value, in bytes.
pub const VALUE_BYTES_MAX: usize = 32 * 1024;

/// What can be asked of a register.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Op {
    /// Sets the value.
    Write {
        /// The new value.
        value: String,
    },
    /// The value.
    Read,
    /// Sets the value if it is `from`.
    Cas {
        /// What it has to be; `None`: nothing was written yet.
        from: Option<String>,
        /// What it becomes.
        to: String,
    },
}

/// Operations by name.
pub const OPS: &[&str] = &["write", "read", "cas"];

impl Op {
    /// From the name of an operation and its body; `None` when there is no such operation.
    pub fn parse(op: &str, body: &Value) -> Option<Result<Self, BodyError>> {
        match op {
            "write" => Some(parse_write(body)),
            "read" => Some(Body::new(body, &[]).map(|_| Self::Read)),
            "cas" => Some(parse_cas(body)),
            _ => None,
        }
    }
}

fn parse_write(body: &Value) -> Result<Op, BodyError> {
    let body = Body::new(body, &["value"])?;
    Ok(Op::Write { value: body.text("value", VALUE_BYTES_MAX)?.into() })
}

fn parse_cas(body: &Value) -> Result<Op, BodyError> {
    let body = Body::new(body, &["from", "to"])?;
    let from = body.nullable_text("from", VALUE_BYTES_MAX)?.map(Into::into);
    Ok(Op::Cas { from, to: body.text("to", VALUE_BYTES_MAX)?.into() })
}

/// The state of a register.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Register {
    value: Option<String>,
}

impl Register {
    /// Runs an operation; the result is a JSON object.
    pub fn apply(&mut self, op: Op) -> Result<Vec<u8>, Refused> {
        let result = match op {
            Op::Write { value } => {
                self.value = Some(value);
                json!({})
            }
            Op::Read => json!({ "value": self.value }),
            Op::Cas { from, to } => {
                let swapped = self.value == from;
                if swapped {
                    self.value = Some(to);
                }
                json!({ "swapped": swapped, "value": self.value })
            }
        };
        Ok(result.to_string().into_bytes())
    }

    /// The value.
    pub fn value(&self) -> Option<&str> {
        self.value.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(register: &mut Register, op: &str, body: Value) -> Value {
        let op = Op::parse(op, &body).unwrap().unwrap();
        serde_json::from_slice(&register.apply(op).unwrap()).unwrap()
    }

    #[test]
    fn reads_what_was_written() {
        let mut register = Register::default();
        assert_eq!(run(&mut register, "read", json!({})), json!({ "value": null }));
        assert_eq!(run(&mut register, "write", json!({"value": "a\"\n"})), json!({}));
        assert_eq!(run(&mut register, "read", json!({})), json!({ "value": "a\"\n" }));
    }

    #[test]
    fn swaps_only_what_is_expected_and_answers_the_value_after_it() {
        let mut register = Register::default();
        assert_eq!(run(&mut register, "cas", json!({"from": "x", "to": "y"})), json!({"swapped": false, "value": null}));
        assert_eq!(run(&mut register, "cas", json!({"from": null, "to": "y"})), json!({"swapped": true, "value": "y"}));
        assert_eq!(run(&mut register, "cas", json!({"from": "x", "to": "z"})), json!({"swapped": false, "value": "y"}));
        assert_eq!(run(&mut register, "cas", json!({"from": "y", "to": "z"})), json!({"swapped": true, "value": "z"}));
    }

    #[test]
    fn a_value_past_the_limit_is_refused_with_both_sizes() {
        let error = Op::parse("write", &json!({"value": "x".repeat(VALUE_BYTES_MAX + 1)})).unwrap().unwrap_err().to_string();
        assert!(error.contains("32769") && error.contains("32768"), "{error}");
        assert!(Op::parse("cas", &json!({"to": "x"})).unwrap().unwrap_err().to_string().starts_with("`from` is missing"));
    }
}
