//! How two nodes greet each other on a new connection, and when one refuses the other.
//!
//! The dialling side says `Hello`; the other answers `Welcome`, and the session is up, or a `Refusal`. Layout: length 4 (of what follows it),
//! magic 8, kind 1, then fixed fields, then extensions (tag 2, length 2, bytes) up to the end. The layout of greetings never changes, so that
//! any two versions can tell each other why they cannot talk; what later versions add (proof of a key, digest of settings) is an extension.

use std::fmt;

use super::{Malformed, Reader, Writer};
use crate::{NodeAddr, NodeId};

/// First bytes of every greeting, behind its length.
pub const MAGIC: [u8; 8] = *b"wingbeat";
/// Longest greeting, length included: what an unknown peer may make this node hold.
pub const GREETING_BYTES_MAX: usize = 8 << 10;
/// Session numbers are below: they start at 1, so that a larger one is no count, and each has a successor.
pub const SESSION_MAX: u64 = 1 << 48;

const CLUSTER_BYTES_MAX: usize = 255;
const HOST_BYTES_MAX: usize = 253;
const HELLO: u8 = 1;
const WELCOME: u8 = 2;
const REFUSAL: u8 = 3;
/// Tags from here on must be understood.
const MANDATORY: u16 = 1 << 15;

/// Protocol versions that a node speaks, both ends included.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct ProtocolRange {
    /// Lowest.
    pub min: u16,
    /// Highest.
    pub max: u16,
}

impl ProtocolRange {
    /// What this version of the crate speaks.
    pub const MINE: Self = Self { min: 1, max: 1 };

    /// The highest version that both speak.
    pub fn common(self, other: Self) -> Option<u16> {
        let (low, high) = (self.min.max(other.min), self.max.min(other.max));
        (low <= high).then_some(high)
    }
}

impl fmt::Display for ProtocolRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.min, self.max)
    }
}

/// What this side took of an earlier session, so that the other side can count exactly what was lost in it.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Previous {
    /// Number of that session.
    pub session: u64,
    /// Frames of the other side that were taken in.
    pub received: u64,
}

/// A field that a later version added to the greeting.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Extension {
    /// What it is. From 2^15 on a node that does not know it refuses the greeting.
    pub tag: u16,
    /// Its content.
    pub bytes: Vec<u8>,
}

/// First words of the side that dialled.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Hello {
    /// Name of its cluster.
    pub cluster: String,
    /// Versions it speaks.
    pub protocol: ProtocolRange,
    /// Who it is.
    pub node: NodeId,
    /// Where it is reached.
    pub addr: NodeAddr,
    /// Larger than every number that it knows of between the two.
    pub session: u64,
    /// Whom it wants; anybody if `None`.
    pub expects: Option<NodeId>,
    /// What it took of the last session with the node it expects, or with the last one at that address.
    pub previous: Option<Previous>,
    /// Later additions.
    pub extensions: Vec<Extension>,
}

/// The answer that makes a session.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Welcome {
    /// The version spoken from here on.
    pub version: u16,
    /// Who answers.
    pub node: NodeId,
    /// Where it is reached.
    pub addr: NodeAddr,
    /// Number of the session, larger than every number that either side knows of between the two.
    pub session: u64,
    /// What it took of the last session with the node that dialled.
    pub previous: Option<Previous>,
    /// Later additions.
    pub extensions: Vec<Extension>,
}

/// Why a `Hello` is not accepted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// The answering node belongs to another cluster.
    OtherCluster {
        /// Name of the answering node's cluster.
        answers: String,
        /// Name of the dialling node's cluster.
        dials: String,
    },
    /// No version is common.
    Protocol {
        /// Spoken by the answering node.
        answers: ProtocolRange,
        /// Spoken by the dialling node.
        dials: ProtocolRange,
    },
    /// Another life than the one that was meant.
    OtherIncarnation {
        /// Who answers.
        answers: NodeId,
        /// Who was meant.
        asked: NodeId,
    },
    /// A connection between the two exists or is about to: that one is used.
    DuplicateDial,
    /// The dialling node does not say whom it wants, and the two have a session that is up: it uses that one, or dials again and says so if it has
    /// lost it.
    Known {
        /// Who answers.
        answers: NodeId,
    },
    /// The node has dialled itself.
    Itself,
    /// An extension that must be understood and is not.
    Extension(u16),
}

impl Refusal {
    /// Whether asking again is useless until somebody changes a setting or a version.
    pub fn is_final(&self) -> bool {
        !matches!(self, Self::DuplicateDial | Self::Known { .. } | Self::OtherIncarnation { .. })
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OtherCluster { answers, dials } => {
                // One of the two is a stranger's.
                let (answers, dials) = (answers.escape_debug(), dials.escape_debug());
                write!(f, "it belongs to cluster `{answers}`, the dialling node to `{dials}`; set the same cluster.name on both")
            }
            Self::Protocol { answers, dials } => {
                let (older, side) = if answers.max < dials.min { (answers, "answering") } else { (dials, "dialling") };
                write!(
                    f,
                    "it speaks protocol {answers}, the dialling node {dials}; upgrade the {side} node first, from {older} to a version that speaks both"
                )
            }
            Self::OtherIncarnation { answers, asked } => write!(f, "{answers} answers, {asked} was asked for"),
            Self::DuplicateDial => f.write_str("another connection between the two nodes is used"),
            Self::Known { answers } => write!(f, "{answers} answers, which has a session with the dialling node"),
            Self::Itself => f.write_str("the address leads back to the node that dialled it"),
            Self::Extension(tag) => write!(f, "the answering node does not know extension {tag} of the greeting; upgrade it"),
        }
    }
}

/// Anything that is said before a session is up.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Greeting {
    /// From the side that dialled.
    Hello(Hello),
    /// Accepted.
    Welcome(Welcome),
    /// Not accepted.
    Refusal(Refusal),
}

/// What the two nodes have between them at the moment a `Hello` arrives.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct Pair {
    /// Number of the session that is up.
    pub up: Option<u64>,
    /// This side has said `Hello` to the other and waits for its answer.
    pub dialling: bool,
}

/// How a `Hello` was accepted.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Accepted {
    /// Highest version that both speak.
    pub version: u16,
    /// Number of the new session.
    pub session: u64,
}

/// What a node says of itself, and how it judges what others say.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Greeter {
    /// Name of its cluster.
    pub cluster: String,
    /// Versions it speaks.
    pub protocol: ProtocolRange,
    /// Who it is.
    pub node: NodeId,
    /// Where it is reached.
    pub addr: NodeAddr,
}

impl Greeter {
    /// The greeting for a dial, as session `session` at least.
    pub fn hello(&self, session: u64, expects: Option<NodeId>, previous: Option<Previous>) -> Hello {
        Hello {
            cluster: self.cluster.clone(),
            protocol: self.protocol,
            node: self.node,
            addr: self.addr.clone(),
            session,
            expects,
            previous,
            extensions: vec![],
        }
    }

    /// The answer to an accepted `Hello`.
    pub fn welcome(&self, accepted: Accepted, previous: Option<Previous>) -> Welcome {
        let Accepted { version, session } = accepted;
        Welcome { version, node: self.node, addr: self.addr.clone(), session, previous, extensions: vec![] }
    }

    /// Accepts or refuses. `last` is the largest session number that this node has said to the other or knows of between the two.
    ///
    /// Of two simultaneous dials the one of the lower node id survives. Who wants anybody may not know that this is the peer of a session that is up,
    /// whose address has two names; its number need not be one of the two. A `Hello` for this node whose number is not above that of the session was
    /// said before that came about. Otherwise the dialling one has lost the session, and the new one takes its place (moves.md A3).
    pub fn judge(&self, hello: &Hello, pair: Pair, last: u64) -> Result<Accepted, Refusal> {
        if hello.cluster != self.cluster {
            return Err(Refusal::OtherCluster { answers: self.cluster.clone(), dials: hello.cluster.clone() });
        }
        let Some(version) = self.protocol.common(hello.protocol) else {
            return Err(Refusal::Protocol { answers: self.protocol, dials: hello.protocol });
        };
        if let Some(unknown) = hello.extensions.iter().find(|e| e.tag >= MANDATORY) {
            return Err(Refusal::Extension(unknown.tag));
        }
        if hello.node == self.node {
            return Err(Refusal::Itself);
        }
        if let Some(asked) = hello.expects.filter(|asked| *asked != self.node) {
            return Err(Refusal::OtherIncarnation { answers: self.node, asked });
        }
        if pair.up.is_some() && hello.expects.is_none() {
            return Err(Refusal::Known { answers: self.node });
        }
        let said_before = pair.up.is_some_and(|session| hello.session <= session);
        if said_before {
            return Err(Refusal::DuplicateDial);
        }
        if pair.dialling && self.node < hello.node {
            return Err(Refusal::DuplicateDial);
        }
        Ok(Accepted { version, session: hello.session.max(last + 1) })
    }
}

impl Greeting {
    /// Appends the greeting to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let start = out.len();
        let mut w = Writer(std::mem::take(out));
        w.u32(0).bytes(&MAGIC);
        match self {
            Self::Hello(hello) => {
                w.u8(HELLO).text(&hello.cluster).u16(hello.protocol.min).u16(hello.protocol.max);
                write_node(&mut w, hello.node, &hello.addr, hello.session);
                w.u8(hello.expects.is_some().into()).u128(hello.expects.map_or(0, NodeId::raw));
                write_tail(&mut w, hello.previous, &hello.extensions);
            }
            Self::Welcome(welcome) => {
                w.u8(WELCOME).u16(welcome.version);
                write_node(&mut w, welcome.node, &welcome.addr, welcome.session);
                write_tail(&mut w, welcome.previous, &welcome.extensions);
            }
            Self::Refusal(refusal) => {
                w.u8(REFUSAL);
                write_refusal(&mut w, refusal);
            }
        }
        *out = w.0;
        let length = u32::try_from(out.len() - start - 4).expect("names and addresses are validated to be far below 4 GiB");
        out[start..start + 4].copy_from_slice(&length.to_le_bytes());
    }

    /// Reads a greeting from the front of `input`; `None` = not whole yet. Gives the number of bytes it took.
    pub fn decode(input: &[u8]) -> Result<Option<(Self, usize)>, Malformed> {
        if input.first_chunk::<3>().is_some_and(|b| matches!(b, [0x16, 3, 1..=4])) {
            return Err(Malformed::Layout { field: "greeting", why: "the peer speaks TLS, this node listens without it; set both alike" });
        }
        let Some(raw) = input.first_chunk::<4>() else { return Ok(None) };
        let size = u64::from(u32::from_le_bytes(*raw)) + 4;
        if size > GREETING_BYTES_MAX as u64 {
            return Err(Malformed::TooLarge { field: "length of the greeting", value: size, max: GREETING_BYTES_MAX as u64 });
        }
        let have = &input[4..input.len().min(size as usize)];
        if have.iter().zip(&MAGIC).any(|(byte, magic)| byte != magic) {
            return Err(Malformed::Layout { field: "greeting", why: "does not begin as one; is this the port of a wingbeat node?" });
        }
        if (input.len() as u64) < size {
            return Ok(None);
        }
        let mut r = Reader::new(have);
        r.bytes("magic", MAGIC.len())?;
        let greeting = match r.u8("greeting")? {
            HELLO => Self::Hello(read_hello(&mut r)?),
            WELCOME => Self::Welcome(read_welcome(&mut r)?),
            REFUSAL => Self::Refusal(read_refusal(&mut r)?),
            other => return Err(Malformed::Unknown { field: "greeting", value: other.into() }),
        };
        r.end()?;
        Ok(Some((greeting, size as usize)))
    }
}

fn write_node(w: &mut Writer, node: NodeId, addr: &NodeAddr, session: u64) {
    w.u128(node.raw()).text(&addr.host).u16(addr.port).u64(session);
}

fn read_node(r: &mut Reader<'_>) -> Result<(NodeId, NodeAddr, u64), Malformed> {
    let node = NodeId::from_raw(r.u128("node")?);
    let host = r.text("host", HOST_BYTES_MAX)?;
    let addr = NodeAddr::new(host, r.u16("port")?);
    // What cannot be written as an address cannot be dialled, and would end up in logs.
    if *addr.host != *host || addr.to_string().parse().as_ref() != Ok(&addr) {
        return Err(Malformed::Layout { field: "host", why: "no canonical host name or address" });
    }
    if node.addr_hash() != addr.hash64() {
        return Err(Malformed::Layout { field: "node", why: "the id does not belong to the address" });
    }
    let session = r.u64("session")?;
    if session >= SESSION_MAX {
        return Err(Malformed::TooLarge { field: "session", value: session, max: SESSION_MAX - 1 });
    }
    Ok((node, addr, session))
}

fn write_tail(w: &mut Writer, previous: Option<Previous>, extensions: &[Extension]) {
    let Previous { session, received } = previous.unwrap_or(Previous { session: 0, received: 0 });
    w.u64(session).u64(received);
    for e in extensions {
        let len = u16::try_from(e.bytes.len()).expect("extensions of this crate are far below 64 KiB");
        w.u16(e.tag).u16(len).bytes(&e.bytes);
    }
}

fn read_tail(r: &mut Reader<'_>) -> Result<(Option<Previous>, Vec<Extension>), Malformed> {
    let previous = Previous { session: r.u64("previous session")?, received: r.u64("frames received")? };
    let mut extensions = vec![];
    while r.left() > 0 {
        let (tag, len) = (r.u16("extension")?, r.u16("extension")?);
        extensions.push(Extension { tag, bytes: r.bytes("extension", len.into())?.to_vec() });
    }
    Ok(((previous.session > 0).then_some(previous), extensions))
}

fn read_hello(r: &mut Reader<'_>) -> Result<Hello, Malformed> {
    let cluster = r.text("cluster", CLUSTER_BYTES_MAX)?.to_owned();
    let protocol = ProtocolRange { min: r.u16("protocol")?, max: r.u16("protocol")? };
    let (node, addr, session) = read_node(r)?;
    let expects = match (r.u8("expected node")?, r.u128("expected node")?) {
        (0, _) => None,
        (1, raw) => Some(NodeId::from_raw(raw)),
        (other, _) => return Err(Malformed::Unknown { field: "expected node", value: other.into() }),
    };
    let (previous, extensions) = read_tail(r)?;
    Ok(Hello { cluster, protocol, node, addr, session, expects, previous, extensions })
}

fn read_welcome(r: &mut Reader<'_>) -> Result<Welcome, Malformed> {
    let version = r.u16("version")?;
    let (node, addr, session) = read_node(r)?;
    let (previous, extensions) = read_tail(r)?;
    Ok(Welcome { version, node, addr, session, previous, extensions })
}

fn write_refusal(w: &mut Writer, refusal: &Refusal) {
    match refusal {
        Refusal::OtherCluster { answers, dials } => w.u8(1).text(answers).text(dials),
        Refusal::Protocol { answers, dials } => w.u8(2).u16(answers.min).u16(answers.max).u16(dials.min).u16(dials.max),
        Refusal::OtherIncarnation { answers, asked } => w.u8(3).u128(answers.raw()).u128(asked.raw()),
        Refusal::DuplicateDial => w.u8(4),
        Refusal::Itself => w.u8(5),
        Refusal::Extension(tag) => w.u8(6).u16(*tag),
        Refusal::Known { answers } => w.u8(7).u128(answers.raw()),
    };
}

fn read_refusal(r: &mut Reader<'_>) -> Result<Refusal, Malformed> {
    Ok(match r.u8("refusal")? {
        1 => Refusal::OtherCluster {
            answers: r.text("cluster", CLUSTER_BYTES_MAX)?.to_owned(),
            dials: r.text("cluster", CLUSTER_BYTES_MAX)?.to_owned(),
        },
        2 => Refusal::Protocol {
            answers: ProtocolRange { min: r.u16("protocol")?, max: r.u16("protocol")? },
            dials: ProtocolRange { min: r.u16("protocol")?, max: r.u16("protocol")? },
        },
        3 => Refusal::OtherIncarnation { answers: NodeId::from_raw(r.u128("node")?), asked: NodeId::from_raw(r.u128("node")?) },
        4 => Refusal::DuplicateDial,
        5 => Refusal::Itself,
        6 => Refusal::Extension(r.u16("extension")?),
        7 => Refusal::Known { answers: NodeId::from_raw(r.u128("node")?) },
        other => return Err(Malformed::Unknown { field: "refusal", value: other.into() }),
    })
}

#[cfg(test)]
#[path = "hello_tests.rs"]
mod tests;
