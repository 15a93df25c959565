//! Errors as RFC 9457 problem objects, and the list of their codes.

use serde::{Serialize, Serializer, ser::SerializeMap};

use super::{
    http::Response,
    source::{EntityOutcome, SourceError},
};
use crate::metrics::HttpRefusal;

/// Content type of a problem.
pub const PROBLEM_JSON: &str = "application/problem+json";

/// Something that went wrong with a request: status, stable code, and what to do next.
#[derive(Clone, PartialEq, Debug)]
pub struct Problem {
    /// HTTP status.
    pub status: u16,
    /// Stable code; never reused.
    pub code: &'static str,
    /// The kind of problem in a few words.
    pub title: &'static str,
    /// What was wrong here: thing, value, limit, next step.
    pub detail: String,
    /// Its counter.
    pub refusal: HttpRefusal,
    /// Whether the message may have been handled.
    pub maybe_ran: Option<bool>,
    /// A further header of the answer.
    pub header: Option<Box<(&'static str, String)>>,
    /// A further member of the object.
    pub member: Option<Box<(&'static str, serde_json::Value)>>,
}

impl Problem {
    /// A problem without headers or members of its own.
    pub fn new(refusal: HttpRefusal, status: u16, code: &'static str, title: &'static str, detail: impl Into<String>) -> Self {
        Self { status, code, title, detail: detail.into(), refusal, maybe_ran: None, header: None, member: None }
    }

    /// The same with one more member.
    pub fn with(mut self, member: &'static str, value: impl Into<serde_json::Value>) -> Self {
        self.member = Some(Box::new((member, value.into())));
        self
    }

    pub(super) fn malformed(why: &str) -> Self {
        Self::new(HttpRefusal::Malformed, 400, "E-HTTP-001", "malformed request", why)
    }

    pub(super) fn head_too_large(limit: usize) -> Self {
        let detail = format!("request line and headers exceed {limit} bytes; send fewer or shorter headers");
        Self::new(HttpRefusal::HeadTooLarge, 431, "E-HTTP-002", "request head too large", detail)
    }

    pub(super) fn too_many_headers(limit: usize) -> Self {
        let detail = format!("more than {limit} headers; send fewer, or raise limits.http_headers");
        Self::new(HttpRefusal::TooManyHeaders, 431, "E-HTTP-003", "too many headers", detail)
    }

    pub(super) fn body_too_large(size: &str, limit: usize) -> Self {
        let detail = format!(
            "the body has {size} bytes, at most {limit} are taken; send less at once (limits.http_body bounds writes; a request that reads needs no body)"
        );
        Self::new(HttpRefusal::BodyTooLarge, 413, "E-HTTP-004", "body too large", detail).with("limit", limit)
    }

    pub(super) fn too_slow(part: &str, seconds: f64) -> Self {
        let detail = format!("the {part} of the request did not arrive within {seconds} s; send it faster or in smaller parts");
        Self::new(HttpRefusal::SlowRequest, 408, "E-HTTP-005", "request too slow", detail)
    }

    pub(super) fn too_many_connections(limit: usize) -> Self {
        let detail =
            format!("all {limit} connections are in use; close some, use one for several requests, or raise limits.http_connections");
        let mut problem = Self::new(HttpRefusal::Connections, 503, "E-HTTP-006", "too many connections", detail);
        problem.header = Some(Box::new(("Retry-After", "1".into())));
        problem
    }

    pub(super) fn unsupported(status: u16, why: &str) -> Self {
        Self::new(HttpRefusal::Unsupported, status, "E-HTTP-007", "not supported", why)
    }

    pub(super) fn bad_version() -> Self {
        Self::unsupported(505, "not HTTP/1.0 or HTTP/1.1; speak HTTP/1.1, without TLS")
    }

    pub(super) fn unauthorized(why: &str) -> Self {
        let detail = format!("{why}; send the value of admin.token as `Authorization: Bearer ..`");
        let mut problem = Self::new(HttpRefusal::Unauthorized, 401, "E-HTTP-008", "token needed", detail);
        problem.header = Some(Box::new(("WWW-Authenticate", "Bearer realm=\"wingbeat\"".into())));
        problem
    }

    pub(super) fn forbidden(why: &str) -> Self {
        Self::new(HttpRefusal::Forbidden, 403, "E-HTTP-009", "writes not allowed", why)
    }

    pub(super) fn unknown_route(path: &str, near: &[&str]) -> Self {
        let detail = format!("nothing is at `{}`; near it: {}; `GET /` lists all", shorten(path), super::source::list(near));
        Self::new(HttpRefusal::UnknownRoute, 404, "E-HTTP-010", "no such path", detail).with("near", near.to_vec())
    }

    pub(super) fn absent_route(path: &str, subject: &str) -> Self {
        let detail = format!("`{}` is not available in this version, which has no {subject}; `GET /` lists all paths", shorten(path));
        Self::new(HttpRefusal::NotImplemented, 501, "E-HTTP-022", "not implemented", detail)
    }

    pub(super) fn method(method: &str, path: &str, allow: &str) -> Self {
        let detail = format!("`{}` has {allow}, not {method}", shorten(path));
        let mut problem = Self::new(HttpRefusal::Method, 405, "E-HTTP-011", "method not allowed", detail);
        problem.header = Some(Box::new(("Allow", allow.into())));
        problem
    }

    pub(super) fn bad_parameter(detail: impl Into<String>) -> Self {
        Self::new(HttpRefusal::BadParameter, 400, "E-HTTP-012", "parameter out of range", detail)
    }

    pub(super) fn bad_key(why: &str) -> Self {
        let detail = format!("{why}; a key is UTF-8 text of 1 to {} bytes, percent-encoded in the path", super::query::KEY_BYTES_MAX);
        Self::new(HttpRefusal::BadKey, 400, "E-HTTP-013", "no entity key", detail).with("limit", super::query::KEY_BYTES_MAX)
    }

    pub(super) fn unknown_type(ty: &str, known: &[&str]) -> Self {
        let detail = format!("no entity type `{}`; known: {}", shorten(ty), super::source::list(known));
        Self::new(HttpRefusal::UnknownType, 404, "E-HTTP-014", "unknown entity type", detail).with("known", known.to_vec())
    }

    pub(super) fn unknown_operation(ty: &str, op: &str, known: &[String]) -> Self {
        let detail = format!("type `{ty}` has no operation `{}`; it has {}", shorten(op), super::source::list(known));
        Self::new(HttpRefusal::UnknownOperation, 404, "E-HTTP-015", "unknown operation", detail).with("known", known.to_vec())
    }

    pub(super) fn answers_too_large(size: usize, limit: usize) -> Self {
        let detail = format!(
            "the answers of this batch, or of all that are under way, exceed {limit} bytes, and this one of {size} was not kept; the message was handled: send fewer lines at once"
        );
        let problem = Self::new(HttpRefusal::AnswersTooLarge, 413, "E-HTTP-027", "answers too large", detail).with("limit", limit);
        Self { maybe_ran: Some(true), ..problem }
    }

    pub(super) fn too_many_lines(limit: usize) -> Self {
        let detail = format!("a batch has at most {limit} lines; send several");
        Self::new(HttpRefusal::TooManyLines, 413, "E-HTTP-017", "too many lines", detail).with("limit", limit)
    }

    pub(super) fn wrong_body(detail: impl Into<String>) -> Self {
        Self::new(HttpRefusal::BadBody, 400, "E-HTTP-020", "the body does not fit the operation", detail)
    }

    pub(super) fn no_reliable_mode() -> Self {
        let detail = "mode=reliable does not exist in this version; use mode=ask, and repeat with an id that the entity counts once";
        Self::new(HttpRefusal::NotImplemented, 501, "E-HTTP-022", "not implemented", detail)
    }

    pub(super) fn internal(what: &str) -> Self {
        let detail = format!("{what}; this is a fault of the node, its log may say more");
        Self::new(HttpRefusal::Internal, 500, "E-HTTP-023", "fault of the node", detail)
    }

    /// The object as one line of JSON.
    pub fn to_json(&self) -> Vec<u8> {
        // A map of strings and numbers always has a JSON form.
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// What became of a message, if it failed.
    pub(super) fn of_outcome(status: u16, code: &'static str, title: &'static str, detail: String, maybe_ran: Option<bool>) -> Self {
        let refusal = match status {
            400 => HttpRefusal::BadBody,
            404 => HttpRefusal::NotFound,
            409 => HttpRefusal::Conflict,
            413 => HttpRefusal::BodyTooLarge,
            429 | 503 => HttpRefusal::Unavailable,
            501 => HttpRefusal::NotImplemented,
            504 => HttpRefusal::Timeout,
            _ => HttpRefusal::Internal,
        };
        Self { maybe_ran, ..Self::new(refusal, status, code, title, detail) }
    }

    /// No answer to a message came from the node.
    pub(super) fn unanswered() -> Self {
        Self { maybe_ran: Some(true), ..Self::internal("the node dropped the request without an answer; it may have run") }
    }
}

impl Serialize for Problem {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut map = to.serialize_map(None)?;
        map.serialize_entry("type", &format_args!("urn:wingbeat:error:{}", self.code))?;
        map.serialize_entry("title", self.title)?;
        map.serialize_entry("status", &self.status)?;
        map.serialize_entry("detail", &self.detail)?;
        map.serialize_entry("code", self.code)?;
        if let Some(maybe_ran) = self.maybe_ran {
            map.serialize_entry("maybe_ran", &maybe_ran)?;
        }
        if let Some((name, value)) = self.member.as_deref() {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}

impl From<Problem> for Response {
    fn from(problem: Problem) -> Self {
        let mut body = problem.to_json();
        body.push(b'\n');
        let mut response = Self::new(problem.status, PROBLEM_JSON, body);
        response.headers.extend(problem.header.map(|header| *header));
        response.refused = Some(problem.refusal);
        response
    }
}

impl From<SourceError> for Problem {
    fn from(error: SourceError) -> Self {
        let detail = error.to_string();
        match error {
            SourceError::UnknownType { known, .. } => {
                Self::new(HttpRefusal::UnknownType, 404, "E-HTTP-014", "unknown entity type", detail).with("known", known)
            }
            SourceError::UnknownShard { .. } => Self::new(HttpRefusal::NotFound, 404, "E-HTTP-016", "no such shard", detail),
            SourceError::UnknownMember { known, .. } => {
                Self::new(HttpRefusal::NotFound, 404, "E-HTTP-026", "no such member", detail).with("known", known)
            }
            SourceError::BadKey(why) => Self::bad_key(&why),
            SourceError::Refused(_) => Self::new(HttpRefusal::Conflict, 409, "E-HTTP-018", "refused as things stand", detail),
            SourceError::Unavailable(_) => Self::new(HttpRefusal::Unavailable, 503, "E-HTTP-019", "not possible at the moment", detail),
            SourceError::Shutdown => Self::new(HttpRefusal::Unavailable, 503, "E-HTTP-024", "shutting down", detail),
            SourceError::Timeout(_) => Self::new(HttpRefusal::Timeout, 504, "E-HTTP-021", "no answer in time", detail),
        }
    }
}

impl EntityOutcome {
    pub(super) fn unanswered() -> Self {
        let Problem { status, code, title, detail, maybe_ran, .. } = Problem::unanswered();
        Self::Problem { status, code, title, detail, maybe_ran }
    }
}

/// At most 80 characters of something a client sent, safe to print.
pub(super) fn shorten(text: &str) -> String {
    let mut shown: String = text.chars().take(80).flat_map(char::escape_debug).collect();
    if text.chars().nth(80).is_some() {
        shown.push_str("..");
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_has_the_members_of_the_standard_and_ours() {
        let problem = Problem { maybe_ran: Some(true), ..Problem::body_too_large("12", 10) };
        let json: serde_json::Value = serde_json::from_slice(&problem.to_json()).unwrap();
        assert_eq!(json["type"], "urn:wingbeat:error:E-HTTP-004");
        assert_eq!(json["status"], 413);
        assert_eq!((&json["code"], &json["limit"], &json["maybe_ran"]), (&"E-HTTP-004".into(), &10.into(), &true.into()));
        assert!(json["detail"].as_str().unwrap().contains("12 bytes, at most 10"));
    }

    #[test]
    fn what_a_client_sent_is_shown_short_and_escaped() {
        assert_eq!(shorten("a\u{1b}[31m"), "a\\u{1b}[31m");
        assert!(shorten(&"x".repeat(10_000)).len() < 90);
    }
}
