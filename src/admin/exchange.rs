//! Bytes of one connection in, requests out: everything about HTTP/1.1 framing, nothing about sockets.

use super::{
    gate::Gate,
    http::{Framing, HEAD_BYTES_MAX, Head, Request, parse_head},
    problem::Problem,
};

/// Longest line that gives the size of a chunk, with its extensions.
const CHUNK_LINE_BYTES_MAX: usize = 1024;
/// How often an unfinished head is parsed to find garbage early. Parsing each trickling byte would cost the square of the head.
const EARLY_PARSES_MAX: u32 = 8;

/// What the next step of a connection is.
#[derive(Debug)]
pub(super) enum Step {
    /// More bytes are needed.
    More,
    /// The client waits for a word before it sends the body.
    Continue,
    /// A whole request, and whether the connection may be kept after it.
    Whole(Request, bool),
    /// The request cannot be served, and what follows it cannot be read.
    Refuse(Problem),
}

/// What a connection waits for.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Waiting {
    /// The first byte of a request.
    Request,
    /// The rest of request line and headers.
    Head,
    /// The rest of the body.
    Body,
}

enum Phase {
    Head,
    Body { head: Box<Head>, reader: BodyReader },
}

enum BodyReader {
    Length(usize),
    Chunks(Chunks),
}

struct Chunks {
    body: Vec<u8>,
    at: ChunkPart,
    trailer_bytes: usize,
}

#[derive(Copy, Clone)]
enum ChunkPart {
    Size,
    Data(usize),
    DataEnd,
    Trailer,
}

/// Bounds of requests.
#[derive(Copy, Clone, Debug)]
pub(super) struct RequestBounds {
    pub headers: usize,
    pub body_bytes: usize,
}

/// The reading side of one connection.
pub(super) struct Exchange {
    unread: Vec<u8>,
    phase: Phase,
    /// How far the unread bytes have been searched for the end of the head.
    searched: usize,
    early_parses: u32,
}

impl Exchange {
    pub fn new() -> Self {
        Self { unread: Vec::new(), phase: Phase::Head, searched: 0, early_parses: 0 }
    }

    /// Takes what arrived. Call [`Exchange::step`] until it wants more before giving further bytes: that bounds what is held.
    pub fn push(&mut self, bytes: &[u8]) {
        self.unread.extend_from_slice(bytes);
    }

    pub fn waiting(&self) -> Waiting {
        match &self.phase {
            Phase::Head if self.unread.is_empty() => Waiting::Request,
            Phase::Head => Waiting::Head,
            Phase::Body { .. } => Waiting::Body,
        }
    }

    pub fn step(&mut self, bounds: RequestBounds, gate: &Gate) -> Step {
        let result = match self.phase {
            Phase::Head => self.head(bounds, gate),
            Phase::Body { .. } => self.body(bounds),
        };
        result.unwrap_or_else(Step::Refuse)
    }

    fn head(&mut self, bounds: RequestBounds, gate: &Gate) -> Result<Step, Problem> {
        // Empty lines before a request are left over by old clients.
        let skip = self.unread.iter().take_while(|b| matches!(b, b'\r' | b'\n')).count();
        if skip > 0 {
            self.unread.drain(..skip);
            self.searched = 0;
        }
        if self.unread.is_empty() {
            return Ok(Step::More);
        }
        let ended = has_blank_line(&self.unread, self.searched);
        self.searched = self.unread.len();
        if !ended {
            self.early_parses += 1;
        }
        if ended || self.early_parses <= EARLY_PARSES_MAX {
            let head = &self.unread[..self.unread.len().min(HEAD_BYTES_MAX)];
            if let Some((head, taken)) = parse_head(head, bounds.headers, bounds.body_bytes)? {
                self.unread.drain(..taken);
                return self.begin_body(head, bounds, gate);
            }
        }
        if self.unread.len() >= HEAD_BYTES_MAX { Err(Problem::head_too_large(HEAD_BYTES_MAX)) } else { Ok(Step::More) }
    }

    fn begin_body(&mut self, head: Head, bounds: RequestBounds, gate: &Gate) -> Result<Step, Problem> {
        gate.check(&head.request)?;
        let waits = head.expects_continue && self.unread.is_empty() && head.framing != Framing::Length(0);
        let reader = match head.framing {
            Framing::Length(n) => BodyReader::Length(n),
            Framing::Chunked => BodyReader::Chunks(Chunks { body: Vec::new(), at: ChunkPart::Size, trailer_bytes: 0 }),
        };
        self.phase = Phase::Body { head: Box::new(head), reader };
        if waits { Ok(Step::Continue) } else { self.body(bounds) }
    }

    fn body(&mut self, bounds: RequestBounds) -> Result<Step, Problem> {
        let Phase::Body { head, reader } = &mut self.phase else { return Ok(Step::More) };
        match reader {
            BodyReader::Length(n) if *n <= self.unread.len() => Ok(self.finish_length()),
            BodyReader::Length(_) => Ok(Step::More),
            BodyReader::Chunks(chunks) => {
                let (taken, whole) = chunks.read(&self.unread, head.request.method.body_bytes_max(bounds.body_bytes))?;
                self.unread.drain(..taken);
                if !whole {
                    return Ok(Step::More);
                }
                let body = std::mem::take(&mut chunks.body);
                Ok(self.finish(body))
            }
        }
    }

    fn finish_length(&mut self) -> Step {
        let Phase::Body { reader: BodyReader::Length(n), .. } = &self.phase else { return Step::More };
        // Pipelined bytes are few: the body keeps the buffer, they move.
        let rest = self.unread.split_off(*n);
        let body = std::mem::replace(&mut self.unread, rest);
        self.finish(body)
    }

    fn finish(&mut self, body: Vec<u8>) -> Step {
        self.searched = 0;
        self.early_parses = 0;
        match std::mem::replace(&mut self.phase, Phase::Head) {
            Phase::Body { mut head, .. } => {
                head.request.body = body;
                Step::Whole(head.request, head.keep_alive)
            }
            Phase::Head => Step::More,
        }
    }
}

impl Chunks {
    /// Decodes what is there; returns how much was used and whether the body is whole.
    fn read(&mut self, bytes: &[u8], body_max: usize) -> Result<(usize, bool), Problem> {
        let mut at = 0;
        loop {
            let rest = &bytes[at..];
            match self.at {
                ChunkPart::Size => {
                    let line = &rest[..rest.len().min(CHUNK_LINE_BYTES_MAX)];
                    // Without a digit it would be a size of nothing; and who takes each LF for the end of a line would find another body.
                    let is_size = line.first().is_none_or(u8::is_ascii_hexdigit);
                    match httparse::parse_chunk_size(line) {
                        Ok(httparse::Status::Complete((taken, size))) if is_size && !line[..taken - 1].contains(&b'\n') => {
                            at += taken;
                            let total = usize::try_from(size).ok().and_then(|n| n.checked_add(self.body.len())).filter(|n| *n <= body_max);
                            let Some(total) = total else {
                                return Err(Problem::body_too_large(
                                    &format!("at least {}", size.saturating_add(self.body.len() as u64)),
                                    body_max,
                                ));
                            };
                            let size = total - self.body.len();
                            self.at = if size == 0 { ChunkPart::Trailer } else { ChunkPart::Data(size) };
                        }
                        Ok(httparse::Status::Partial) if is_size && rest.len() < CHUNK_LINE_BYTES_MAX => return Ok((at, false)),
                        _ => return Err(Problem::malformed("the size of a chunk is not a line with a hexadecimal number")),
                    }
                }
                ChunkPart::Data(left) => {
                    let take = left.min(rest.len());
                    self.body.extend_from_slice(&rest[..take]);
                    at += take;
                    if take < left {
                        self.at = ChunkPart::Data(left - take);
                        return Ok((at, false));
                    }
                    self.at = ChunkPart::DataEnd;
                }
                ChunkPart::DataEnd => match rest {
                    [b'\r', b'\n', ..] => {
                        at += 2;
                        self.at = ChunkPart::Size;
                    }
                    [] | [b'\r'] => return Ok((at, false)),
                    _ => return Err(Problem::malformed("a chunk is longer than its size")),
                },
                ChunkPart::Trailer => match rest.iter().position(|b| *b == b'\n') {
                    Some(end) => {
                        at += end + 1;
                        if matches!(&rest[..end], [] | [b'\r']) {
                            return Ok((at, true));
                        }
                        self.trailer_bytes += end + 1;
                        if self.trailer_bytes > HEAD_BYTES_MAX {
                            return Err(Problem::head_too_large(HEAD_BYTES_MAX));
                        }
                    }
                    None if self.trailer_bytes + rest.len() > HEAD_BYTES_MAX => return Err(Problem::head_too_large(HEAD_BYTES_MAX)),
                    None => return Ok((at, false)),
                },
            }
        }
    }
}

/// Whether a head ends in these bytes, of which the first `searched` are known.
fn has_blank_line(bytes: &[u8], searched: usize) -> bool {
    let from = searched.saturating_sub(3);
    bytes[from..].windows(2).any(|w| w == b"\n\n") || bytes[from..].windows(3).any(|w| w == b"\n\r\n")
}

/// Bodies of the requests that arrive in parts of that size, and the status with which the rest is refused. For fuzz targets, which stand
/// outside this crate.
#[doc(hidden)]
pub fn read_requests(bytes: &[u8], part: usize) -> (Vec<Vec<u8>>, Option<u16>) {
    let gate = Gate::new(std::net::SocketAddr::from(([127, 0, 0, 1], 1)), None);
    let (mut exchange, mut bodies) = (Exchange::new(), vec![]);
    for part in bytes.chunks(part.max(1)) {
        exchange.push(part);
        loop {
            match exchange.step(RequestBounds { headers: 32, body_bytes: 4096 }, &gate) {
                Step::More => break,
                Step::Continue => {}
                Step::Whole(request, _) => bodies.push(request.body),
                Step::Refuse(problem) => return (bodies, Some(problem.status)),
            }
        }
    }
    (bodies, None)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BOUNDS: RequestBounds = RequestBounds { headers: 8, body_bytes: 100 };

    fn gate() -> Gate {
        Gate::new("127.0.0.1:1".parse().unwrap(), None)
    }

    /// Steps until more is needed; bodies of whole requests and the status of a refusal.
    fn run(exchange: &mut Exchange, bytes: &[u8], bodies: &mut Vec<Vec<u8>>) -> Option<u16> {
        exchange.push(bytes);
        loop {
            match exchange.step(BOUNDS, &gate()) {
                Step::More => return None,
                Step::Continue => {}
                Step::Whole(request, _) => bodies.push(request.body),
                Step::Refuse(problem) => return Some(problem.status),
            }
        }
    }

    const STREAM: &str = "\r\nPOST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\none\
        GET /b HTTP/1.1\r\nHost: h\r\n\r\n\
        POST /c HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\ntwo\r\n2\r\n!!\r\n0\r\nTrailer: t\r\n\r\n\
        POST /d HTTP/1.1\nHost: h\nContent-Length: 4\n\nlast";

    #[test]
    fn requests_are_the_same_however_they_are_cut() {
        for size in 1..STREAM.len() {
            let (mut exchange, mut bodies) = (Exchange::new(), Vec::new());
            for part in STREAM.as_bytes().chunks(size) {
                assert_eq!(run(&mut exchange, part, &mut bodies), None, "parts of {size}");
            }
            assert_eq!(bodies, [&b"one"[..], b"", b"two!!", b"last"], "parts of {size}");
            assert_eq!(exchange.waiting(), Waiting::Request);
        }
    }

    #[test]
    fn a_client_that_asks_is_told_to_go_on_once() {
        let mut exchange = Exchange::new();
        exchange.push(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n");
        assert!(matches!(exchange.step(BOUNDS, &gate()), Step::Continue));
        assert!(matches!(exchange.step(BOUNDS, &gate()), Step::More));
        assert_eq!(exchange.waiting(), Waiting::Body);
        exchange.push(b"ok");
        assert!(matches!(exchange.step(BOUNDS, &gate()), Step::Whole(..)));
    }

    #[test]
    fn chunks_are_bounded_before_they_are_taken() {
        let head = "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n";
        for (chunks, status) in [
            ("65\r\n".to_owned(), 413),
            (format!("64\r\n{}\r\n1\r\n", "x".repeat(100)), 413),
            ("ffffffffffffffff\r\n".to_owned(), 413),
            ("1\r\nxx\r\n".to_owned(), 400),
            ("zz\r\n".to_owned(), 400),
            ("\r\n\r\n".to_owned(), 400),
            (";x\r\n\r\n".to_owned(), 400),
            ("5;\nABCDE\r\nabcde\r\n".to_owned(), 400),
            (format!("1;{}", "e".repeat(2000)), 400),
            (format!("0\r\nT: {}", "t".repeat(20_000)), 431),
            (format!("0\r\n{}", "T: t\r\n".repeat(4000)), 431),
        ] {
            let (mut exchange, mut bodies) = (Exchange::new(), Vec::new());
            assert_eq!(run(&mut exchange, format!("{head}{chunks}").as_bytes(), &mut bodies), Some(status), "{}", &chunks[..4]);
        }
    }

    #[test]
    fn an_endless_head_is_refused_at_its_limit() {
        let (mut exchange, mut bodies) = (Exchange::new(), Vec::new());
        assert_eq!(run(&mut exchange, b"GET / HTTP/1.1\r\nHost: h\r\nX: ", &mut bodies), None);
        let refused = (0..HEAD_BYTES_MAX).find_map(|_| run(&mut exchange, b"x", &mut bodies));
        assert_eq!(refused, Some(431));
        assert!(exchange.unread.len() <= HEAD_BYTES_MAX);
    }

    proptest! {
        #[test]
        fn any_bytes_give_requests_or_a_refusal(parts in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..200), 0..20)) {
            let (mut exchange, mut bodies) = (Exchange::new(), Vec::new());
            for part in parts {
                if run(&mut exchange, &part, &mut bodies).is_some() {
                    break;
                }
                prop_assert!(exchange.unread.len() <= HEAD_BYTES_MAX + BOUNDS.body_bytes + 200);
            }
        }

        #[test]
        fn damaged_requests_do_not_panic(at in 0..STREAM.len(), byte in any::<u8>(), size in 1usize..60) {
            let mut stream = STREAM.as_bytes().to_vec();
            stream[at] = byte;
            let (mut exchange, mut bodies) = (Exchange::new(), Vec::new());
            for part in stream.chunks(size) {
                if run(&mut exchange, part, &mut bodies).is_some() {
                    break;
                }
            }
        }
    }
}
