//! The least HTTP client that can keep a connection and read one answer after the other.

use std::{
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream},
};

use serde_json::Value;

use super::PATIENCE;

/// An answer, read whole.
#[derive(Clone, Debug)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
}

impl Answer {
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {} {}", self.head, self.text()))
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        let fields = self.head.lines().filter_map(|line| line.split_once(": "));
        fields.filter(|(field, _)| field.eq_ignore_ascii_case(name)).map(|(_, value)| value).next()
    }

    /// Checks that it is a problem object of this status and code; returns its detail.
    #[track_caller]
    pub fn problem(&self, status: u16, code: &str) -> String {
        assert_eq!(self.status, status, "{} {}", self.head, self.text());
        assert_eq!(self.header("content-type"), Some("application/problem+json"));
        let json = self.json();
        assert_eq!((&json["status"], &json["code"]), (&status.into(), &code.into()), "{json}");
        assert!(json["type"].is_string() && json["title"].is_string(), "{json}");
        json["detail"].as_str().unwrap().to_owned()
    }
}

/// One connection.
pub struct Client {
    socket: TcpStream,
    unread: Vec<u8>,
}

impl Client {
    pub fn connect(addr: SocketAddr) -> io::Result<Self> {
        let socket = TcpStream::connect(addr)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        socket.set_write_timeout(Some(PATIENCE))?;
        socket.set_nodelay(true)?;
        Ok(Self { socket, unread: Vec::new() })
    }

    pub fn send(&mut self, bytes: impl AsRef<[u8]>) -> io::Result<()> {
        self.socket.write_all(bytes.as_ref())
    }

    /// The next bytes; an end of the connection is an error.
    fn more(&mut self) -> io::Result<()> {
        let mut bytes = [0; 16384];
        loop {
            match self.socket.read(&mut bytes) {
                Ok(0) => {
                    let unread = String::from_utf8_lossy(&self.unread);
                    return Err(io::Error::new(io::ErrorKind::UnexpectedEof, format!("ended after {unread:?}")));
                }
                Ok(n) => {
                    self.unread.extend_from_slice(&bytes[..n]);
                    return Ok(());
                }
                // A read with a time limit ends so where the whole process was stopped and goes on, with no signal handled.
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Reads up to and including `mark`.
    pub fn until(&mut self, mark: &str) -> io::Result<String> {
        loop {
            if let Some(at) = self.unread.windows(mark.len()).position(|window| window == mark.as_bytes()) {
                let rest = self.unread.split_off(at + mark.len());
                return Ok(String::from_utf8_lossy(&std::mem::replace(&mut self.unread, rest)).into_owned());
            }
            self.more()?;
        }
    }

    pub fn head(&mut self) -> io::Result<Answer> {
        let head = self.until("\r\n\r\n")?;
        let status = head.split(' ').nth(1).and_then(|word| word.parse().ok());
        let status = status.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, head.clone()))?;
        Ok(Answer { status, head, body: Vec::new() })
    }

    pub fn answer(&mut self) -> io::Result<Answer> {
        let mut answer = self.head()?;
        let length = answer.header("content-length").and_then(|text| text.parse().ok()).unwrap_or(0);
        while self.unread.len() < length {
            self.more()?;
        }
        let rest = self.unread.split_off(length);
        answer.body = std::mem::replace(&mut self.unread, rest);
        Ok(answer)
    }

    pub fn get(&mut self, path: &str) -> io::Result<Answer> {
        self.send(format!("GET {path} HTTP/1.1\r\nHost: h\r\n\r\n"))?;
        self.answer()
    }

    pub fn post(&mut self, path: &str, body: &str) -> io::Result<Answer> {
        self.send(post(path, "", body))?;
        self.answer()
    }
}

/// The bytes of a POST; `headers` are whole lines, each with its line end.
pub fn post(path: &str, headers: &str, body: &str) -> String {
    format!("POST {path} HTTP/1.1\r\nHost: h\r\n{headers}Content-Length: {}\r\n\r\n{body}", body.len())
}
