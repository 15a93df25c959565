//! The body of an operation: a JSON object with exactly the fields that the operation names.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{Error as _, MapAccess, Visitor},
};
use serde_json::{Map, Value, map::Entry};

/// What is wrong with a body: which field, what it holds, what it should hold.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BodyError {
    /// The body is no JSON object.
    #[error("the body is {value}: expected a JSON object with {fields}")]
    NotAnObject {
        /// What it is.
        value: String,
        /// The fields of the operation.
        fields: String,
    },
    /// A field that the operation does not have.
    #[error("`{field}` is not a field of this operation: expected {fields}")]
    Unknown {
        /// The field.
        field: String,
        /// The fields of the operation.
        fields: String,
    },
    /// A field that is required and not there.
    #[error("`{field}` is missing: expected {expected}")]
    Missing {
        /// The field.
        field: &'static str,
        /// What it should hold.
        expected: String,
    },
    /// A field of the wrong type or out of range.
    #[error("`{field}` is {value}: expected {expected}")]
    Wrong {
        /// The field.
        field: &'static str,
        /// What it holds, shortened.
        value: String,
        /// What it should hold.
        expected: String,
    },
}

impl BodyError {
    /// The field, where the fault is in one.
    pub fn field(&self) -> Option<&str> {
        match self {
            Self::NotAnObject { .. } => None,
            Self::Unknown { field, .. } => Some(field),
            Self::Missing { field, .. } | Self::Wrong { field, .. } => Some(field),
        }
    }
}

/// An object as it came, of which each field is there once: of two that differ, none is what the sender meant.
pub(super) struct Object(pub Value);

impl<'de> Deserialize<'de> for Object {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_map(Once).map(|map| Self(Value::Object(map)))
    }
}

struct Once;

impl<'de> Visitor<'de> for Once {
    type Value = Map<String, Value>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Self::Value, A::Error> {
        let mut map = Map::new();
        while let Some(name) = fields.next_key::<String>()? {
            match map.entry(name) {
                Entry::Vacant(place) => place.insert(fields.next_value()?),
                Entry::Occupied(first) => return Err(A::Error::custom(format_args!("duplicate field `{}`", shortened(first.key())))),
            };
        }
        Ok(map)
    }
}

/// A body whose field names were checked.
pub(super) struct Body<'a> {
    map: &'a Map<String, Value>,
}

impl<'a> Body<'a> {
    /// Refuses anything but an object with some of these fields.
    pub fn new(body: &'a Value, fields: &[&'static str]) -> Result<Self, BodyError> {
        let Value::Object(map) = body else {
            return Err(BodyError::NotAnObject { value: shown(body), fields: listed(fields) });
        };
        match map.keys().find(|name| !fields.contains(&name.as_str())) {
            Some(name) => Err(BodyError::Unknown { field: shortened(name), fields: listed(fields) }),
            None => Ok(Self { map }),
        }
    }

    /// A whole number in these bounds.
    pub fn integer(&self, field: &'static str, min: i64, max: i64) -> Result<i64, BodyError> {
        let expected = || format!("a whole number from {min} to {max}");
        let value = self.required(field, expected)?;
        value.as_i64().filter(|n| (min..=max).contains(n)).ok_or_else(|| wrong(field, value, expected()))
    }

    /// Text of at most `max` bytes.
    pub fn text(&self, field: &'static str, max: usize) -> Result<&'a str, BodyError> {
        let value = self.required(field, || format!("text of at most {max} bytes"))?;
        bounded_text(field, value, max, "text")
    }

    /// Text of at most `max` bytes, or null, or no such field.
    pub fn optional_text(&self, field: &'static str, max: usize) -> Result<Option<&'a str>, BodyError> {
        match self.map.get(field) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => bounded_text(field, value, max, "text or null").map(Some),
        }
    }

    /// Text of at most `max` bytes or null; the field has to be there.
    pub fn nullable_text(&self, field: &'static str, max: usize) -> Result<Option<&'a str>, BodyError> {
        match self.required(field, || format!("text of at most {max} bytes, or null"))? {
            Value::Null => Ok(None),
            value => bounded_text(field, value, max, "text or null").map(Some),
        }
    }

    /// The field, whatever it holds.
    pub fn required(&self, field: &'static str, expected: impl FnOnce() -> String) -> Result<&'a Value, BodyError> {
        self.map.get(field).ok_or_else(|| BodyError::Missing { field, expected: expected() })
    }
}

/// A field that holds the wrong thing.
pub(super) fn wrong(field: &'static str, value: &Value, expected: impl Into<String>) -> BodyError {
    BodyError::Wrong { field, value: shown(value), expected: expected.into() }
}

fn bounded_text<'a>(field: &'static str, value: &'a Value, max: usize, kind: &str) -> Result<&'a str, BodyError> {
    match value {
        Value::String(text) if text.len() <= max => Ok(text),
        Value::String(text) => Err(BodyError::Wrong {
            field,
            value: format!("text of {} bytes", text.len()),
            expected: format!("{kind} of at most {max} bytes"),
        }),
        other => Err(wrong(field, other, format!("{kind} of at most {max} bytes"))),
    }
}

fn listed(fields: &[&'static str]) -> String {
    match fields {
        [] => "no fields".into(),
        some => some.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", "),
    }
}

/// A value as an error shows it: objects and long texts are not repeated whole.
fn shown(value: &Value) -> String {
    match value {
        Value::Object(_) => "an object".into(),
        Value::Array(_) => "an array".into(),
        Value::String(text) => format!("{:?}", shortened(text)),
        other => other.to_string(),
    }
}

fn shortened(text: &str) -> String {
    const SHOWN_CHARS_MAX: usize = 64;
    match text.char_indices().nth(SHOWN_CHARS_MAX) {
        Some((cut, _)) => format!("{}…", text[..cut].escape_debug()),
        None => text.escape_debug().to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_fault_names_field_value_and_what_is_expected() {
        let error = Body::new(&json!([1]), &["n"]).err().unwrap();
        assert_eq!(error.to_string(), "the body is an array: expected a JSON object with `n`");
        let error = Body::new(&json!({"m": 1}), &["n", "id"]).err().unwrap();
        assert_eq!(error.to_string(), "`m` is not a field of this operation: expected `n`, `id`");
        let body = json!({"n": "x"});
        let error = Body::new(&body, &["n"]).unwrap().integer("n", 1, 9).unwrap_err();
        assert_eq!(error.to_string(), "`n` is \"x\": expected a whole number from 1 to 9");
        let body = json!({});
        let error = Body::new(&body, &["n"]).unwrap().integer("n", 1, 9).unwrap_err();
        assert_eq!((error.field(), error.to_string().as_str()), (Some("n"), "`n` is missing: expected a whole number from 1 to 9"));
    }

    #[test]
    fn a_field_that_is_there_twice_is_named() {
        let object = |text: &str| serde_json::from_str::<Object>(text).map(|object| object.0).map_err(|error| error.to_string());
        assert_eq!(object(r#" {"n": 1, "id": {"n": 2}} "#), Ok(json!({"n": 1, "id": {"n": 2}})));
        assert!(object(r#"{"n": 1, "n": 1}"#).unwrap_err().starts_with("duplicate field `n` at line 1"));
        assert!(object(&format!(r#"{{"{0}": 1, "{0}": 1}}"#, "x".repeat(9_000))).unwrap_err().len() < 200);
        for text in ["[]", "1", "{\"n\": 1", "{} {}"] {
            assert!(object(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_long_or_hostile_value_is_shortened_and_escaped() {
        let body = json!({"n": "\u{1b}[31m".repeat(100)});
        let error = Body::new(&body, &["n"]).unwrap().integer("n", 0, 1).unwrap_err().to_string();
        assert!(error.len() < 600 && !error.contains('\u{1b}'), "{error}");
    }
}
