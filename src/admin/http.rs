//! Requests and answers as HTTP/1.1 writes them.

use std::fmt::Write as _;

use super::problem::{Problem, shorten};
use crate::metrics::HttpRefusal;

/// Most bytes of request line and headers together.
pub const HEAD_BYTES_MAX: usize = 16 << 10;
/// Most bytes of the body of a request that only reads: it means nothing there, and whoever may not write must not fill memory.
const READ_BODY_BYTES_MAX: usize = 16 << 10;
/// What a client that asked first is told when its body is wanted.
pub(super) const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";
/// Content type of JSON answers.
pub const JSON: &str = "application/json";

/// A request method.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Method {
    /// Reads.
    Get,
    /// Reads without the body.
    Head,
    /// Acts.
    Post,
    /// Stores.
    Put,
    /// Deletes.
    Delete,
    /// Anything else, by its name, shortened; no route has it.
    Other(Box<str>),
}

impl Method {
    fn of(name: &str) -> Self {
        match name {
            "GET" => Self::Get,
            "HEAD" => Self::Head,
            "POST" => Self::Post,
            "PUT" => Self::Put,
            "DELETE" => Self::Delete,
            other => Self::Other(shorten(other).into()),
        }
    }

    /// Whether a request with it may change something.
    pub fn writes(&self) -> bool {
        !matches!(self, Self::Get | Self::Head)
    }

    /// Most bytes of a body with it, where writes may have `limit`.
    pub(super) fn body_bytes_max(&self, limit: usize) -> usize {
        if self.writes() { limit } else { limit.min(READ_BODY_BYTES_MAX) }
    }

    /// As written in a request.
    pub fn name(&self) -> &str {
        match self {
            Self::Get => "GET",
            Self::Head => "HEAD",
            Self::Post => "POST",
            Self::Put => "PUT",
            Self::Delete => "DELETE",
            Self::Other(name) => name,
        }
    }
}

/// A whole request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request {
    /// Its method.
    pub method: Method,
    /// Path, still percent-encoded.
    pub path: String,
    /// What follows the question mark, still encoded; empty without one.
    pub query: String,
    /// Headers in order, names in lower case.
    pub headers: Vec<(String, String)>,
    /// The body, decoded if it came in chunks.
    pub body: Vec<u8>,
}

impl Request {
    /// The first header of that name (in lower case).
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(have, _)| have == name).map(|(_, value)| value.as_str())
    }
}

/// How the body of a request is delimited.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Framing {
    /// So many bytes.
    Length(usize),
    /// In chunks.
    Chunked,
}

/// A request whose body is still to come.
#[derive(Debug)]
pub(super) struct Head {
    pub request: Request,
    pub framing: Framing,
    pub keep_alive: bool,
    pub expects_continue: bool,
}

/// Reads request line and headers; `None` if they are not complete yet. With it comes how many bytes they take.
pub(super) fn parse_head(bytes: &[u8], headers_max: usize, body_max: usize) -> Result<Option<(Head, usize)>, Problem> {
    let mut headers = vec![httparse::EMPTY_HEADER; headers_max];
    let mut parsed = httparse::Request::new(&mut headers);
    let taken = match parsed.parse(bytes) {
        Ok(httparse::Status::Complete(taken)) => taken,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(httparse::Error::TooManyHeaders) => return Err(Problem::too_many_headers(headers_max)),
        Err(httparse::Error::Version) => return Err(Problem::bad_version()),
        Err(error) => return Err(Problem::malformed(&format!("not an HTTP/1.1 request: {error}"))),
    };
    let (method, target) = (parsed.method.unwrap_or_default(), parsed.path.unwrap_or_default());
    let latest = parsed.version == Some(1);
    let mut list = Vec::with_capacity(parsed.headers.len());
    for header in parsed.headers.iter() {
        // Values outside ASCII mean nothing to any route; kept readable instead of refused. Other spaces than these are part of a value.
        let value = String::from_utf8_lossy(header.value).trim_matches([' ', '\t']).to_owned();
        list.push((header.name.to_ascii_lowercase(), value));
    }
    let (path, query) = split_target(target)?;
    let request = Request { method: Method::of(method), path, query, headers: list, body: Vec::new() };
    if latest && request.headers.iter().filter(|(name, _)| name == "host").count() != 1 {
        return Err(Problem::malformed("a request of HTTP/1.1 has exactly one `Host` header"));
    }
    let framing = framing(&request, latest, request.method.body_bytes_max(body_max))?;
    let tokens = |name: &str, token: &str| {
        let values = request.headers.iter().filter(|(have, _)| have == name);
        values.flat_map(|(_, value)| value.split(',')).any(|t| t.trim().eq_ignore_ascii_case(token))
    };
    let keep_alive = if latest { !tokens("connection", "close") } else { tokens("connection", "keep-alive") };
    let expects_continue = match request.header("expect") {
        None => false,
        Some(value) if value.eq_ignore_ascii_case("100-continue") => latest,
        Some(value) => {
            return Err(Problem::unsupported(417, &format!("`Expect: {}` is not known; only `100-continue` is", value.escape_debug())));
        }
    };
    Ok(Some((Head { request, framing, keep_alive, expects_continue }, taken)))
}

fn split_target(target: &str) -> Result<(String, String), Problem> {
    let origin = match target.strip_prefix("http://") {
        // A proxy's form; the authority is of no interest here.
        Some(rest) => rest.find('/').map_or("/", |at| &rest[at..]),
        None => target,
    };
    if !origin.starts_with('/') {
        return Err(Problem::malformed(&format!("`{}` is not a path; it begins with `/`", target.escape_debug())));
    }
    let origin = origin.split('#').next().unwrap_or_default();
    let (path, query) = origin.split_once('?').unwrap_or((origin, ""));
    Ok((path.into(), query.into()))
}

/// How long the body is. Ambiguity is refused: two readers that disagree about it is how requests are smuggled.
fn framing(request: &Request, latest: bool, body_max: usize) -> Result<Framing, Problem> {
    let mut lengths = request.headers.iter().filter(|(name, _)| name == "content-length").map(|(_, value)| value);
    let mut codings = request.headers.iter().filter(|(name, _)| name == "transfer-encoding").map(|(_, value)| value);
    let (length, coding) = (lengths.next(), codings.next());
    match (length, coding) {
        (Some(_), Some(_)) => Err(Problem::malformed("both `Content-Length` and `Transfer-Encoding`; send one")),
        (None, None) => Ok(Framing::Length(0)),
        (None, Some(coding)) => {
            if !latest || codings.next().is_some() || !coding.eq_ignore_ascii_case("chunked") {
                return Err(Problem::unsupported(501, "of transfer codings only `chunked`, of HTTP/1.1, is known"));
            }
            Ok(Framing::Chunked)
        }
        (Some(text), None) => {
            if lengths.any(|other| other != text) {
                return Err(Problem::malformed("several different `Content-Length` headers; send one"));
            }
            if text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit()) {
                return Err(Problem::malformed(&format!("`Content-Length: {}` is not a number of bytes", text.escape_debug())));
            }
            // What exceeds 64 bits exceeds the limit as well.
            match text.parse::<u64>().ok().and_then(|n| usize::try_from(n).ok()).filter(|n| *n <= body_max) {
                Some(length) => Ok(Framing::Length(length)),
                None => Err(Problem::body_too_large(text, body_max)),
            }
        }
    }
}

/// An answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Response {
    /// Its status.
    pub status: u16,
    /// Type of the body.
    pub content_type: &'static str,
    /// Headers beside the usual ones.
    pub headers: Vec<(&'static str, String)>,
    /// The body.
    pub body: Vec<u8>,
    /// Why the request was refused, to be counted.
    pub refused: Option<HttpRefusal>,
}

impl Response {
    /// An answer with a body.
    pub fn new(status: u16, content_type: &'static str, body: Vec<u8>) -> Self {
        Self { status, content_type, headers: Vec::new(), body, refused: None }
    }

    /// A JSON answer.
    pub fn json(status: u16, body: &impl serde::Serialize) -> Self {
        match serde_json::to_vec(body) {
            Ok(mut body) => {
                body.push(b'\n');
                Self::new(status, JSON, body)
            }
            Err(error) => Problem::internal(&format!("the answer could not be written as JSON: {error}")).into(),
        }
    }

    /// Writes status line and headers.
    pub(super) fn write_head(&self, keep_alive: bool, length: Option<usize>) -> Vec<u8> {
        let mut head = String::with_capacity(256);
        // Writing to a `String` cannot fail.
        let _ = write!(head, "HTTP/1.1 {} {}\r\n", self.status, reason(self.status));
        let _ = write!(head, "Content-Type: {}\r\nCache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n", self.content_type);
        for (name, value) in &self.headers {
            let _ = write!(head, "{name}: {}\r\n", value.replace(|c: char| c.is_control(), " "));
        }
        if let Some(length) = length {
            let _ = write!(head, "Content-Length: {length}\r\n");
        }
        let _ = write!(head, "Connection: {}\r\n\r\n", if keep_alive { "keep-alive" } else { "close" });
        head.into_bytes()
    }
}

/// The usual words for a status.
pub fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        202 => "Accepted",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        409 => "Conflict",
        413 => "Content Too Large",
        417 => "Expectation Failed",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        500 => "Internal Server Error",
        501 => "Not Implemented",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        505 => "HTTP Version Not Supported",
        _ => "Unknown",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Option<(Head, usize)>, Problem> {
        parse_head(text.as_bytes(), 4, 1000)
    }

    fn whole(text: &str) -> Head {
        parse(text).unwrap().unwrap().0
    }

    #[test]
    fn a_head_is_read_as_it_is_meant() {
        let head = whole("POST /a%20b?x=1#f HTTP/1.1\r\nHOST: h\r\nContent-Length: 5\r\nExpect: 100-Continue\r\n\r\n");
        assert_eq!((&head.request.method, head.request.path.as_str(), head.request.query.as_str()), (&Method::Post, "/a%20b", "x=1"));
        assert_eq!((head.framing, head.keep_alive, head.expects_continue), (Framing::Length(5), true, true));
        assert_eq!(head.request.header("host"), Some("h"));
    }

    #[test]
    fn connections_are_kept_as_each_version_says() {
        for (head, keep) in [
            ("GET / HTTP/1.1\r\nHost: h\r\n\r\n", true),
            ("GET / HTTP/1.1\r\nHost: h\r\nConnection: Foo, CLOSE\r\n\r\n", false),
            ("GET / HTTP/1.0\r\n\r\n", false),
            ("GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n", true),
        ] {
            assert_eq!(whole(head).keep_alive, keep, "{head}");
        }
    }

    #[test]
    fn targets_of_proxies_are_understood() {
        assert_eq!(whole("GET http://h:1/x?y HTTP/1.1\r\nHost: h\r\n\r\n").request.path, "/x");
        assert_eq!(whole("GET http://h HTTP/1.1\r\nHost: h\r\n\r\n").request.path, "/");
    }

    #[test]
    fn what_cannot_be_served_is_refused_with_its_status() {
        let post = "POST / HTTP/1.1\r\nHost: h\r\n";
        for (text, status) in [
            ("GET * HTTP/1.1\r\nHost: h\r\n\r\n".to_owned(), 400),
            ("GET / HTTP/1.1\r\n\r\n".to_owned(), 400),
            ("GET / HTTP/2.0\r\nHost: h\r\n\r\n".to_owned(), 505),
            ("\u{16}\u{3}\u{1}\r\n\r\n".to_owned(), 400),
            (format!("{post}a: 1\r\nb: 1\r\nc: 1\r\nd: 1\r\n\r\n"), 431),
            (format!("{post}Content-Length: 1001\r\n\r\n"), 413),
            ("GET / HTTP/1.1\r\nHost: h\r\nContent-Length: 16385\r\n\r\n".to_owned(), 413),
            (format!("{post}Content-Length: 99999999999999999999999\r\n\r\n"), 413),
            (format!("{post}Content-Length: -1\r\n\r\n"), 400),
            (format!("{post}Content-Length: +1\r\n\r\n"), 400),
            (format!("{post}Content-Length: 1\r\nContent-Length: 2\r\n\r\n"), 400),
            (format!("{post}Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n"), 400),
            (format!("{post}Transfer-Encoding: gzip, chunked\r\n\r\n"), 501),
            ("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n".to_owned(), 501),
            (format!("{post}Expect: tea\r\n\r\n"), 417),
        ] {
            assert_eq!(parse(&text).err().map(|p| p.status), Some(status), "{text}");
        }
    }

    #[test]
    fn headers_of_answers_cannot_be_split() {
        let mut response = Response::new(200, JSON, Vec::new());
        response.headers.push(("X", "a\r\nSet-Cookie: b".into()));
        let head = String::from_utf8(response.write_head(true, Some(0))).unwrap();
        assert!(head.contains("X: a  Set-Cookie: b\r\n"), "{head}");
    }
}
