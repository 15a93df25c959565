//! A small HTTP/1.1 client for the driver: one connection that is kept, buffers that are used again.

use std::{
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream},
    time::{Duration, Instant},
};

const CONNECT_WITHIN: Duration = Duration::from_secs(2);
const HEAD_BYTES_MAX: usize = 16 * 1024;
const BODY_BYTES_MAX: usize = 64 * 1024 * 1024;

/// One kept connection to a node.
pub struct Client {
    addr: SocketAddr,
    stream: Option<TcpStream>,
    head: Vec<u8>,
    input: Vec<u8>,
    body: Vec<u8>,
}

/// What the head of a response says.
struct Head {
    status: u16,
    /// Bytes of the head itself.
    len: usize,
    content: Content,
    keep: bool,
}

#[derive(Copy, Clone, PartialEq, Eq)]
enum Content {
    Length(usize),
    Chunked,
    UntilClosed,
}

impl Client {
    pub fn new(addr: SocketAddr) -> Self {
        Self { addr, stream: None, head: Vec::new(), input: Vec::new(), body: Vec::new() }
    }

    /// Posts a body and waits for the whole answer: status and body.
    ///
    /// After an error the connection is given up; the next call makes a new one.
    pub fn post(&mut self, path: &str, body: &[u8], within: Duration) -> io::Result<(u16, &[u8])> {
        let deadline = Instant::now() + within;
        let outcome = self.exchange(path, body, deadline);
        match outcome {
            Ok((status, keep)) => {
                if !keep {
                    self.stream = None;
                }
                Ok((status, &self.body))
            }
            Err(error) => {
                self.stream = None;
                Err(error)
            }
        }
    }

    fn exchange(&mut self, path: &str, body: &[u8], deadline: Instant) -> io::Result<(u16, bool)> {
        self.head.clear();
        write!(
            self.head,
            "POST {path} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/x-ndjson\r\nContent-Length: {}\r\n\r\n",
            self.addr,
            body.len()
        )?;
        let mut stream = match self.stream.take() {
            Some(stream) => stream,
            None => connect(self.addr)?,
        };
        stream.set_write_timeout(Some(left(deadline)?))?;
        stream.write_all(&self.head)?;
        stream.write_all(body)?;
        self.input.clear();
        let head = loop {
            if let Some(head) = parse_head(&self.input)? {
                break head;
            }
            fill(&mut stream, &mut self.input, deadline)?;
        };
        self.body.clear();
        match head.content {
            Content::Length(len) => {
                while self.input.len() < head.len + len {
                    fill(&mut stream, &mut self.input, deadline)?;
                }
                self.body.extend_from_slice(&self.input[head.len..head.len + len]);
            }
            Content::Chunked => self.read_chunks(&mut stream, head.len, deadline)?,
            Content::UntilClosed => {
                while more(&mut stream, &mut self.input, deadline)? {}
                self.body.extend_from_slice(&self.input[head.len..]);
            }
        }
        self.stream = Some(stream);
        Ok((head.status, head.keep))
    }

    fn read_chunks(&mut self, stream: &mut TcpStream, mut at: usize, deadline: Instant) -> io::Result<()> {
        loop {
            let (skip, size) = loop {
                match httparse::parse_chunk_size(&self.input[at..]) {
                    Ok(httparse::Status::Complete(found)) => break found,
                    Ok(httparse::Status::Partial) => fill(stream, &mut self.input, deadline)?,
                    Err(_) => return Err(invalid("a chunk without a size")),
                }
            };
            let size = usize::try_from(size).ok().filter(|size| self.body.len() + size <= BODY_BYTES_MAX);
            let size = size.ok_or_else(|| invalid("a body that is too large"))?;
            at += skip;
            while self.input.len() < at + size + 2 {
                fill(stream, &mut self.input, deadline)?;
            }
            self.body.extend_from_slice(&self.input[at..at + size]);
            at += size + 2;
            if size == 0 {
                return Ok(());
            }
        }
    }
}

fn connect(addr: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&addr, CONNECT_WITHIN)?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::Error::new(io::ErrorKind::TimedOut, "no whole answer in time")) } else { Ok(left) }
}

fn fill(stream: &mut TcpStream, input: &mut Vec<u8>, deadline: Instant) -> io::Result<()> {
    match more(stream, input, deadline)? {
        true => Ok(()),
        false => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the node closed the connection")),
    }
}

/// Reads what there is; false when the other side has closed.
fn more(stream: &mut TcpStream, input: &mut Vec<u8>, deadline: Instant) -> io::Result<bool> {
    const STEP: usize = 64 * 1024;
    if input.len() > BODY_BYTES_MAX {
        return Err(invalid("a body that is too large"));
    }
    stream.set_read_timeout(Some(left(deadline)?))?;
    let before = input.len();
    input.resize(before + STEP, 0);
    let read = loop {
        match stream.read(&mut input[before..]) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                break Err(io::Error::new(io::ErrorKind::TimedOut, "no whole answer in time"));
            }
            other => break other,
        }
    };
    input.truncate(before + *read.as_ref().unwrap_or(&0));
    read.map(|read| read > 0)
}

fn parse_head(input: &[u8]) -> io::Result<Option<Head>> {
    let mut headers = [httparse::EMPTY_HEADER; 32];
    let mut response = httparse::Response::new(&mut headers);
    let len = match response.parse(input) {
        Ok(httparse::Status::Complete(len)) => len,
        Ok(httparse::Status::Partial) if input.len() <= HEAD_BYTES_MAX => return Ok(None),
        Ok(httparse::Status::Partial) => return Err(invalid("a head that is too large")),
        Err(error) => return Err(invalid(&format!("no HTTP response: {error}"))),
    };
    let value = |name: &str| {
        let header = response.headers.iter().find(|header| header.name.eq_ignore_ascii_case(name))?;
        std::str::from_utf8(header.value).ok()
    };
    let content = match (value("transfer-encoding"), value("content-length")) {
        (Some(coding), _) if coding.eq_ignore_ascii_case("chunked") => Content::Chunked,
        (Some(_), _) => return Err(invalid("an unknown transfer encoding")),
        (None, Some(length)) => match length.parse() {
            Ok(length) if length <= BODY_BYTES_MAX => Content::Length(length),
            _ => return Err(invalid("a content length that is no number or too large")),
        },
        (None, None) => Content::UntilClosed,
    };
    let closes = value("connection").is_some_and(|value| value.eq_ignore_ascii_case("close")) || content == Content::UntilClosed;
    let status = response.code.ok_or_else(|| invalid("a response without status"))?;
    Ok(Some(Head { status, len, content, keep: !closes }))
}

fn invalid(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// Answers each request of one connection with the next of these texts, written in two halves.
    fn node(answers: &'static [&'static str]) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            for answer in answers {
                let mut request = vec![0; 4096];
                let mut len = 0;
                while !request[..len].ends_with(b"hello") {
                    len += stream.read(&mut request[len..]).unwrap();
                }
                let (first, second) = answer.as_bytes().split_at(answer.len() / 2);
                stream.write_all(first).unwrap();
                stream.flush().unwrap();
                stream.write_all(second).unwrap();
            }
        });
        addr
    }

    #[test]
    fn the_connection_is_kept_and_both_framings_are_read() {
        let addr = node(&[
            "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\none",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\ntwo\r\n5\r\n-more\r\n0\r\n\r\n",
            "HTTP/1.1 503 Busy\r\nconnection: close\r\n\r\nthree",
        ]);
        let mut client = Client::new(addr);
        let within = Duration::from_secs(10);
        assert_eq!(client.post("/", b"hello", within).unwrap(), (200, &b"one"[..]));
        assert_eq!(client.post("/", b"hello", within).unwrap(), (200, &b"two-more"[..]));
        assert_eq!(client.post("/", b"hello", within).unwrap(), (503, &b"three"[..]));
        assert!(client.post("/", b"hello", Duration::from_millis(200)).is_err(), "nobody listens any more");
    }

    #[test]
    fn an_answer_that_never_ends_is_given_up_at_the_deadline() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = Client::new(listener.local_addr().unwrap());
        let error = client.post("/", b"", Duration::from_millis(50)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
