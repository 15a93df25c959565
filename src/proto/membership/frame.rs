//! What membership says on links.

use std::{fmt, sync::Arc};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{NodeAddr, NodeId};

/// Elements of the state, packed for a link. The same bytes go to all who get the same.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Packed(Arc<Vec<u8>>);

impl std::ops::Deref for Packed {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl From<Vec<u8>> for Packed {
    /// Of bytes that say themselves how they are packed.
    fn from(bytes: Vec<u8>) -> Self {
        Self(Arc::new(bytes))
    }
}

impl fmt::Debug for Packed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Packed({} bytes)", self.0.len())
    }
}

impl Serialize for Packed {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        serde_bytes::Bytes::new(&self.0).serialize(s)
    }
}

impl<'de> Deserialize<'de> for Packed {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        serde_bytes::ByteBuf::deserialize(d).map(|bytes| bytes.into_vec().into())
    }
}

/// Membership's frames on a link. Layout: postcard, within the frame limit.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum MemberFrame {
    /// Are you in a cluster that takes members? Answered by `Answer`.
    Knock {
        /// The address that is asked: whoever answers may advertise another one.
        at: NodeAddr,
    },
    /// Answer to `Knock`.
    Answer {
        /// The address that was asked; if none was, the one that the node advertises.
        at: NodeAddr,
        /// Whether a `Join` makes sense here.
        takes: bool,
        /// The cluster that the node belongs to, be it on its way out; 0: none.
        cluster: u64,
        /// Digest of the settings in which all members of it agree.
        settings: u64,
        /// Some members of its cluster that can be asked too.
        others: Vec<NodeAddr>,
        /// How many of its members it holds reachable, itself among them.
        members: u32,
        /// How many have ever become up in it.
        ups: u32,
        /// Who asks is no member of it, or down.
        out: bool,
    },
    /// Take me in.
    Join(Box<JoinRequest>),
    /// Not yet: an earlier life at the address is being removed. The answer follows, or ask again.
    JoinWait {
        /// Who is to wait.
        joiner: NodeId,
    },
    /// Taken in.
    JoinAccepted {
        /// Who.
        joiner: NodeId,
        /// What goes before the state.
        #[serde(with = "serde_bytes")]
        head: Vec<u8>,
        /// The whole state, the joiner in it.
        body: Packed,
    },
    /// Not taken in.
    JoinRefused {
        /// Who is meant: another life at the same address is not.
        joiner: NodeId,
        /// Asking again is useless.
        permanent: bool,
        /// Names what differs and both values.
        reason: String,
    },
    /// That incarnation was removed for good. For one that looks for a cluster and does not know that it had been taken in; others learn it by gossip.
    Removed {
        /// Who.
        node: NodeId,
    },
    /// Who answers at this address? Answered by `IAm`; the link tells who says so.
    WhoAreYou,
    /// Answer to `WhoAreYou`.
    IAm,
    /// What the receiver asked for, when it is larger than a datagram.
    Gossip {
        /// What goes before the elements.
        #[serde(with = "serde_bytes")]
        head: Vec<u8>,
        /// Elements of the state.
        body: Packed,
    },
    /// A datagram, where none gets through.
    Datagram {
        /// As it would have been sent.
        #[serde(with = "serde_bytes")]
        datagram: Vec<u8>,
        /// The sender gets none, so that it is answered in frames.
        blocked: bool,
    },
    /// A clock larger than a datagram.
    Ask {
        /// Comes back with the answer.
        ask: u32,
        /// Of the sender's version.
        digest: u128,
        /// The sender's clock.
        #[serde(with = "serde_bytes")]
        clock: Vec<u8>,
    },
}

/// What a joiner says of itself.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct JoinRequest {
    /// What it advertises.
    pub addr: NodeAddr,
    /// Its incarnation.
    pub incarnation: u64,
    /// Its roles.
    pub roles: Vec<String>,
    /// What it says of its application's version.
    pub app_version: String,
    /// Name of the cluster it means.
    pub cluster: String,
    /// Lowest and highest protocol version it speaks.
    pub protocol: (u16, u16),
    /// Settings that must be equal in the whole cluster, as key and value, sorted by key.
    pub settings: Vec<(String, String)>,
}
