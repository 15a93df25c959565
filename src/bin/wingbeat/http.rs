//! Questions to a node over HTTP.

use std::{
    io::{BufRead, BufReader, Read},
    time::Duration,
};

use serde_json::Value;

use crate::fail::{Exit, Failure};

const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// A stream of events says each 15 s that it is there.
const SILENT_FOR: Duration = Duration::from_secs(45);
const CONNECT_WITHIN: Duration = Duration::from_secs(2);
const BODY_BYTES_MAX: u64 = 64 << 20;

/// A node's admin address, and the token that its writes may need.
pub struct Admin {
    base: String,
    token: Option<String>,
    agent: ureq::Agent,
}

impl Admin {
    pub fn new(at: &str, token: Option<String>) -> Result<Self, Failure> {
        let host_only = |host: &str| !host.is_empty() && (!host.contains(':') || (host.starts_with('[') && host.ends_with(']')));
        let bare = at.strip_prefix("http://").unwrap_or(at).trim_end_matches('/');
        let wrong = |why: &str| {
            Failure::usage("E-CLI-002", format!("`--at {at}`: {why}"), "give the admin address of a node, such as 127.0.0.1:8301")
        };
        if at.starts_with("https://") {
            return Err(wrong("nodes answer plain http only"));
        }
        let port = bare.rsplit_once(':').and_then(|(host, port)| host_only(host).then(|| port.parse::<u16>().ok()).flatten());
        if port.is_none_or(|port| port == 0) || bare.contains(['/', '?', '#', '@']) || !bare.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(wrong("is not host:port, with brackets around an IPv6 address"));
        }
        // What a header can hold; more is no token of any node.
        if token.as_ref().is_some_and(|token| token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic())) {
            let what = "the token is empty, or has characters besides printable ASCII";
            return Err(Failure::usage("E-CLI-002", what, "give the node's `admin.token`"));
        }
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_connect(Some(CONNECT_WITHIN))
            .proxy(None)
            .max_redirects(0)
            .build();
        Ok(Self { base: format!("http://{bare}"), token, agent: config.into() })
    }

    /// The JSON at a path.
    pub fn get(&self, path: &str) -> Result<Value, Failure> {
        let request = self.agent.get(self.url(path)).config().timeout_global(Some(ANSWER_WITHIN)).build();
        self.json(path, request.call())
    }

    /// Posts nothing to a path: an act.
    pub fn act(&self, path: &str) -> Result<Value, Failure> {
        let mut request = self.agent.post(self.url(path));
        if let Some(token) = &self.token {
            request = request.header("Authorization", format!("Bearer {token}"));
        }
        self.json(path, request.config().timeout_global(Some(ANSWER_WITHIN)).build().send_empty())
    }

    /// The data of each server-sent event, as it comes, until `each` says no. That the stream ends before is an error: the node is gone, or about to go.
    pub fn follow(&self, path: &str, mut each: impl FnMut(&str) -> bool) -> Result<(), Failure> {
        // The head of the answer comes at once. Events may come much later, but signs of life do not.
        let config = self.agent.get(self.url(path)).config();
        let request = config.timeout_recv_response(Some(ANSWER_WITHIN)).timeout_per_read(Some(SILENT_FOR)).build();
        let request = request.header("Accept", "text/event-stream");
        let response = request.call().map_err(|error| self.unreachable(&error))?;
        if response.status() != 200 {
            self.json(path, Ok(response))?;
            return Ok(());
        }
        for line in BufReader::new(response.into_body().into_reader()).lines() {
            let line = line.map_err(|error| Failure::unreachable("E-CLI-003", format!("{}: {error}", self.base), "ask again"))?;
            if let Some(data) = line.strip_prefix("data:")
                && !each(data.trim_start())
            {
                return Ok(());
            }
        }
        let what = format!("{}: the stream of events has ended", self.base);
        Err(Failure::unreachable("E-CLI-003", what, "the node has stopped or stops: follow another one"))
    }

    fn url(&self, path: &str) -> String {
        format!("{}{path}", self.base)
    }

    fn json(&self, path: &str, answer: Result<ureq::http::Response<ureq::Body>, ureq::Error>) -> Result<Value, Failure> {
        let response = answer.map_err(|error| self.unreachable(&error))?;
        let status = response.status().as_u16();
        let mut text = Vec::new();
        let read = response.into_body().into_reader().take(BODY_BYTES_MAX).read_to_end(&mut text);
        read.map_err(|error| Failure::unreachable("E-CLI-003", format!("{}: {error}", self.base), "ask again"))?;
        let body: Value = match text.is_empty() {
            true => Value::Null,
            false => serde_json::from_slice(&text).map_err(|error| {
                let what = format!("{}{path} answered {status} and no JSON: {error}", self.base);
                Failure::unreachable("E-CLI-004", what, "check that `--at` is the admin address of a wingbeat node")
            })?,
        };
        match status {
            200..=299 => Ok(body),
            _ => Err(problem(&self.base, status, &body)),
        }
    }

    fn unreachable(&self, error: &ureq::Error) -> Failure {
        let what = format!("{} does not answer: {error}", self.base);
        Failure::unreachable("E-CLI-003", what, "check that the node runs and that `--at` is its admin address")
    }
}

/// The failure that a problem object of a node tells of.
fn problem(base: &str, status: u16, body: &Value) -> Failure {
    let text = |name: &str| body[name].as_str().unwrap_or_default();
    let shown: Vec<&str> = ["code", "detail"].into_iter().map(text).filter(|text| !text.is_empty()).collect();
    let exit = match status {
        408 | 502..=504 => Exit::Unreachable,
        // As things stand, or by a fault of the node.
        409 | 500 => Exit::Unhealthy,
        _ => Exit::Usage,
    };
    let what = format!("{base} answered {status}: {}", if shown.is_empty() { "without a reason".into() } else { shown.join(" ") });
    let next = match status {
        401 => "give the node's token with `--token`, or in WINGBEAT_ADMIN__TOKEN",
        _ => "",
    };
    Failure { code: "E-CLI-005", exit, what, next: next.into() }
}

/// A part of a path, with what has a meaning there percent-encoded.
pub fn encoded(part: &str) -> String {
    let mut out = String::with_capacity(part.len());
    for byte in part.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b':' => out.push(byte.into()),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_address_is_checked_before_anything_is_sent() {
        for wrong in
            ["8301", ":8301", "localhost", "127.0.0.1:0", "127.0.0.1:99999", "https://a:1", "a:1/x", "\u{e4}:1", "a b:1", "::1:8301"]
        {
            let failure = Admin::new(wrong, None).err().unwrap();
            assert_eq!((failure.code, failure.exit), ("E-CLI-002", Exit::Usage), "{wrong}");
        }
        for right in ["127.0.0.1:8301", "http://localhost:1/", "[::1]:8301"] {
            assert!(Admin::new(right, None).is_ok(), "{right}");
        }
    }

    #[test]
    fn a_problem_keeps_its_code_and_gets_an_exit_code() {
        let body = json!({"status": 504, "code": "E-ASK-003", "detail": "no answer in time"});
        let failure = problem("http://a:1", 504, &body);
        assert_eq!(failure.exit, Exit::Unreachable);
        assert!(failure.what.contains("E-ASK-003 no answer in time"), "{failure}");
        assert_eq!(problem("http://a:1", 404, &Value::Null).exit, Exit::Usage);
        assert!([409, 500].iter().all(|status| problem("http://a:1", *status, &Value::Null).exit == Exit::Unhealthy));
        assert!(problem("http://a:1", 403, &Value::Null).next.is_empty(), "no token opens what is not open to tokens");
    }

    #[test]
    fn keys_are_encoded() {
        assert_eq!(encoded("N1/ä &"), "N1%2F%C3%A4%20%26");
    }
}
