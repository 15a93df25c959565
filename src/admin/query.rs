//! Percent-encoding, query parameters and the bounds of what they carry.

use std::{borrow::Cow, time::Duration};

use super::{
    problem::{Problem, shorten},
    source::{Mode, list},
};

/// Most bytes of an entity key.
pub const KEY_BYTES_MAX: usize = 255;
/// Milliseconds to wait for a reply when nothing is asked for.
const TIMEOUT_MS_DEFAULT: u64 = 1000;
/// Longest wait for a reply, in milliseconds.
const TIMEOUT_MS_MAX: u64 = 600_000;

/// Decodes one segment of a path. `None` if a percent sign is not followed by two hex digits or the bytes are not UTF-8.
pub(super) fn decode_segment(text: &str) -> Option<Cow<'_, str>> {
    decode(text, false)
}

fn decode(text: &str, plus_is_space: bool) -> Option<Cow<'_, str>> {
    if !text.bytes().any(|b| b == b'%' || b == b'+' && plus_is_space) {
        return Some(Cow::Borrowed(text));
    }
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        match bytes[at] {
            b'%' => {
                let digit = |at: usize| bytes.get(at).and_then(|b| char::from(*b).to_digit(16));
                // Two hex digits make one byte.
                out.push((digit(at + 1)? * 16 + digit(at + 2)?) as u8);
                at += 3;
            }
            b'+' if plus_is_space => {
                out.push(b' ');
                at += 1;
            }
            b => {
                out.push(b);
                at += 1;
            }
        }
    }
    String::from_utf8(out).ok().map(Cow::Owned)
}

/// The parameters behind the question mark, encoded as forms are.
pub(super) struct Query<'a> {
    pairs: Vec<(Cow<'a, str>, Cow<'a, str>)>,
}

impl<'a> Query<'a> {
    /// Reads them; other names than `known` and repeated names are refused.
    pub fn parse(text: &'a str, known: &[&str]) -> Result<Self, Problem> {
        let mut pairs: Vec<(Cow<'a, str>, Cow<'a, str>)> = Vec::new();
        for pair in text.split('&').filter(|p| !p.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let (Some(name), Some(value)) = (decode(name, true), decode(value, true)) else {
                return Err(Problem::bad_parameter(format!("`{}` is not percent-encoded UTF-8; write `%` as %25", shorten(pair))));
            };
            if !known.contains(&&*name) {
                return Err(Problem::bad_parameter(format!("unknown parameter `{}`; known here: {}", shorten(&name), list(known))));
            }
            if pairs.iter().any(|(have, _)| *have == name) {
                return Err(Problem::bad_parameter(format!("parameter `{name}` is given twice; give it once")));
            }
            pairs.push((name, value));
        }
        Ok(Self { pairs })
    }

    /// The value of a parameter.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.pairs.iter().find(|(have, _)| have == name).map(|(_, value)| &**value)
    }

    /// The value of a parameter that must be there.
    pub fn need(&self, name: &str, what: &str) -> Result<&str, Problem> {
        self.get(name).ok_or_else(|| Problem::bad_parameter(format!("parameter `{name}` is missing; add `?{name}=` with {what}")))
    }

    /// `timeout_ms`, or the default.
    pub fn timeout(&self) -> Result<Duration, Problem> {
        let Some(text) = self.get("timeout_ms") else { return Ok(Duration::from_millis(TIMEOUT_MS_DEFAULT)) };
        match text.parse::<u64>() {
            Ok(ms) if (1..=TIMEOUT_MS_MAX).contains(&ms) => Ok(Duration::from_millis(ms)),
            _ => Err(Problem::bad_parameter(format!(
                "timeout_ms is `{}`, not a whole number from 1 to {TIMEOUT_MS_MAX} (milliseconds)",
                shorten(text)
            ))),
        }
    }

    /// `last_event_id`, if it is there.
    pub fn last_event_id(&self) -> Result<Option<u64>, Problem> {
        let Some(text) = self.get("last_event_id") else { return Ok(None) };
        let bad = |_| Problem::bad_parameter(format!("last_event_id is `{}`, not the `id` of an event, a whole number", shorten(text)));
        text.parse().map(Some).map_err(bad)
    }

    /// `mode`, or the default.
    pub fn mode(&self) -> Result<Mode, Problem> {
        match self.get("mode") {
            None | Some("ask") => Ok(Mode::Ask),
            Some("tell") => Ok(Mode::Tell),
            Some("reliable") => Ok(Mode::Reliable),
            Some(other) => Err(Problem::bad_parameter(format!("mode is `{}`; it is one of `ask`, `tell`, `reliable`", shorten(other)))),
        }
    }
}

/// Refuses what cannot be the key of an entity.
pub(super) fn check_key(key: &str) -> Result<(), Problem> {
    match key.len() {
        0 => Err(Problem::bad_key("the key is empty")),
        1..=KEY_BYTES_MAX => Ok(()),
        n => Err(Problem::bad_key(&format!("the key has {n} bytes"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_are_decoded_or_refused() {
        assert_eq!(decode_segment("a+b%2Fc%c3%A9").as_deref(), Some("a+b/cé"));
        assert_eq!(decode_segment("plain").as_deref(), Some("plain"));
        for bad in ["%", "%4", "%zz", "%ff", "%c3", "%+1"] {
            assert_eq!(decode_segment(bad), None, "{bad}");
        }
    }

    #[test]
    fn queries_follow_forms() {
        let query = Query::parse("key=a+b%2B&&timeout_ms=5", &["key", "timeout_ms"]).unwrap_or_else(|p| panic!("{p:?}"));
        assert_eq!(query.get("key"), Some("a b+"));
        assert_eq!(query.timeout().unwrap(), Duration::from_millis(5));
        assert_eq!(query.mode().unwrap(), Mode::Ask);
    }

    #[test]
    fn every_wrong_parameter_names_itself() {
        let known = ["timeout_ms", "mode"];
        for (text, word) in [
            ("timeout=5", "timeout_ms"),
            ("timeout_ms=0", "600000"),
            ("timeout_ms=600001", "600001"),
            ("timeout_ms=-1", "-1"),
            ("timeout_ms=1e3", "1e3"),
            ("timeout_ms=", "whole number"),
            ("mode=shout", "shout"),
            ("mode=ask&mode=ask", "twice"),
            ("mode=%zz", "%25"),
        ] {
            let problem = Query::parse(text, &known).and_then(|q| q.mode().and(q.timeout()).map(|_| ())).unwrap_err();
            assert_eq!(problem.status, 400);
            assert!(problem.detail.contains(word), "{text}: {}", problem.detail);
        }
    }

    #[test]
    fn keys_have_bounds() {
        assert!(check_key("k").is_ok() && check_key(&"k".repeat(255)).is_ok());
        assert!(check_key("").is_err());
        assert!(check_key(&"k".repeat(256)).unwrap_err().detail.contains("256 bytes"));
    }
}
