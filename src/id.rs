//! Names of nodes, shards and assignments.

use std::{cmp::Ordering, fmt, net::IpAddr, str::FromStr, sync::Arc};

use serde::{Deserialize, Deserializer, Serialize, de::Error as _};

/// `host:port` as a node advertises it.
///
/// Ordered by host bytes, then port as a number; leader, deputies and tie-breaks follow this order.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct NodeAddr {
    /// Lower-case host name or address; IPv6 without brackets, as RFC 5952 writes it.
    pub host: Arc<str>,
    /// TCP and UDP port.
    pub port: u16,
}

/// Why a text is no [`NodeAddr`].
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
#[error("`{text}` is not an address: {why}; write `host:port`, for IPv6 `[::1]:7301`")]
pub struct BadAddr {
    /// What was given.
    pub text: String,
    /// What is wrong with it.
    pub why: &'static str,
}

/// Longest host name accepted, in bytes (the limit of DNS).
pub const HOST_BYTES_MAX: usize = 253;

impl NodeAddr {
    /// Makes an address from its parts, in canonical form (lower case, IPv6 as RFC 5952).
    pub fn new(host: &str, port: u16) -> Self {
        let host = match host.parse::<IpAddr>() {
            Ok(ip) => ip.to_string(),
            Err(_) => host.to_ascii_lowercase(),
        };
        Self { host: host.into(), port }
    }

    /// Whether nobody but this machine reaches it; a name other than `localhost` may lead anywhere.
    pub(crate) fn is_loopback(&self) -> bool {
        &*self.host == "localhost" || self.host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
    }

    /// First 8 bytes of SHA-256 over the text form: the upper half of the ids of all lives at this address.
    pub fn hash64(&self) -> u64 {
        let digest = hmac_sha256::Hash::hash(self.to_string().as_bytes());
        let mut first = [0; 8];
        first.copy_from_slice(&digest[..8]);
        u64::from_be_bytes(first)
    }
}

impl From<std::net::SocketAddr> for NodeAddr {
    fn from(addr: std::net::SocketAddr) -> Self {
        Self { host: addr.ip().to_string().into(), port: addr.port() }
    }
}

impl FromStr for NodeAddr {
    type Err = BadAddr;

    fn from_str(text: &str) -> Result<Self, BadAddr> {
        let bad = |why| BadAddr { text: text.escape_debug().to_string(), why };
        let (host, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let (host, rest) = rest.split_once(']').ok_or_else(|| bad("the bracket is not closed"))?;
                if host.parse::<std::net::Ipv6Addr>().is_err() {
                    return Err(bad("no IPv6 address in the brackets"));
                }
                (host, rest.strip_prefix(':').ok_or_else(|| bad("no port"))?)
            }
            None => text.rsplit_once(':').ok_or_else(|| bad("no port"))?,
        };
        if host.is_empty() {
            return Err(bad("no host"));
        }
        if host.len() > HOST_BYTES_MAX {
            return Err(bad("host longer than 253 bytes"));
        }
        if !text.starts_with('[') && !host.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_')) {
            return Err(bad("host has a character that no host name has"));
        }
        let port = port.parse::<u16>().map_err(|_| bad("port is not a number from 0 to 65535"))?;
        Ok(Self::new(host, port))
    }
}

impl fmt::Display for NodeAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') { write!(f, "[{}]:{}", self.host, self.port) } else { write!(f, "{}:{}", self.host, self.port) }
    }
}

/// One life of a node: 8 bytes of its address's hash, 8 bytes of random incarnation.
///
/// Text form is 32 hex digits. A removed id never comes back.
#[derive(Copy, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct NodeId(u128);

impl NodeId {
    /// The id of the life `incarnation` at `addr`.
    pub fn new(addr: &NodeAddr, incarnation: u64) -> Self {
        Self(u128::from(addr.hash64()) << 64 | u128::from(incarnation))
    }

    /// An id from its 16 bytes as they travel.
    pub const fn from_raw(raw: u128) -> Self {
        Self(raw)
    }

    /// The 16 bytes as they travel.
    pub const fn raw(self) -> u128 {
        self.0
    }

    /// What is common to all lives at one address.
    pub const fn addr_hash(self) -> u64 {
        (self.0 >> 64) as u64
    }

    /// What tells this life from others at the same address.
    pub const fn incarnation(self) -> u64 {
        self.0 as u64
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// Most shards that a type may have: each costs a routing word on every node.
pub const SHARDS_MAX: u32 = 1 << 20;

/// Number of a shard within its entity type, from 0.
#[derive(Copy, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct ShardId(#[serde(deserialize_with = "possible_shard")] pub u32);

/// What comes from outside names shards that a type may have: tables have a row for each up to the largest that was named.
fn possible_shard<'de, D: Deserializer<'de>>(from: D) -> Result<u32, D::Error> {
    let number = u32::deserialize(from)?;
    match number < SHARDS_MAX {
        true => Ok(number),
        false => Err(D::Error::custom(format_args!("shard {number}, at most {}", SHARDS_MAX - 1))),
    }
}

/// An entity type on the wire: the first 4 bytes of the XXH3-64 of its stable name.
///
/// Two types of one node whose names collide are refused when the second is registered.
#[derive(Copy, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct TypeId(pub u32);

impl TypeId {
    /// The id of the type named `name`.
    pub fn of(name: &str) -> Self {
        Self(xxhash_rust::xxh3::xxh3_64(name.as_bytes()) as u32)
    }
}

/// One shard of one type: what has a home, an epoch and an order.
#[derive(Copy, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ShardKey {
    /// Its entity type.
    pub ty: TypeId,
    /// Its number within the type.
    pub shard: ShardId,
}

impl ShardKey {
    /// The worker that owns this shard on a node with `workers` of them, for the life of the process.
    pub fn worker(self, workers: u16) -> u16 {
        // Consecutive shards go to different workers; the type only shifts where the dealing starts.
        ((u64::from(self.shard.0) + u64::from(self.ty.0)) % u64::from(workers.max(1))) as u16
    }
}

impl fmt::Debug for ShardKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}/{}", self.ty.0, self.shard.0)
    }
}

impl fmt::Display for ShardId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Grows with each assignment of a shard. Give it to storage as a fencing token.
#[derive(Copy, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
#[serde(try_from = "u64", into = "u64")]
pub struct Epoch(pub(crate) u64);

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Past [`Epoch::ACCEPTED_MAX`].
#[derive(Copy, Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("epoch {0} is above {max}, the largest that is taken from outside", max = Epoch::ACCEPTED_MAX.get())]
pub struct EpochTooLarge(u64);

impl TryFrom<u64> for Epoch {
    type Error = EpochTooLarge;

    fn try_from(raw: u64) -> Result<Self, EpochTooLarge> {
        Self::from_raw(raw).ok_or(EpochTooLarge(raw))
    }
}

impl From<Epoch> for u64 {
    fn from(epoch: Epoch) -> Self {
        epoch.0
    }
}

impl Epoch {
    /// Below every assignment.
    pub const ZERO: Self = Self(0);
    /// Largest epoch: 40 bits, so that it fits into a routing word beside the worker.
    pub const MAX: Self = Self((1 << 40) - 1);
    /// Largest epoch that is taken from outside, the lower half of all. Whoever is told of an epoch counts on from there, and nobody counts through half of
    /// 40 bits in the life of a cluster: what lies above is damaged or forged.
    pub const ACCEPTED_MAX: Self = Self(Self::MAX.0 >> 1);

    /// The number, for storage.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The next assignment's epoch.
    ///
    /// # Panics
    /// Past [`Epoch::MAX`]: 2^40 assignments of one shard do not happen in the life of a cluster, so it is a broken invariant.
    pub fn next(self) -> Self {
        assert!(self < Self::MAX, "epoch {} exceeds the 40 bits of a routing word", self.0);
        Self(self.0 + 1)
    }

    /// An epoch from its number, as it was stored or sent; `None` above [`Epoch::ACCEPTED_MAX`].
    pub fn from_raw(raw: u64) -> Option<Self> {
        (raw <= Self::ACCEPTED_MAX.0).then_some(Self(raw))
    }
}

/// Grows with each change of an authority. Give it to storage as a fencing token.
#[derive(Copy, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
pub struct Term(pub(crate) u64);

impl Term {
    /// Made by whoever counts terms: a lease or a store outside.
    pub const fn new(n: u64) -> Self {
        Self(n)
    }

    /// The number, for storage.
    pub const fn get(self) -> u64 {
        self.0
    }
}

/// Order of two lives: by address, then incarnation. Decides leader, deputies and ties.
pub fn address_order(a: (&NodeAddr, NodeId), b: (&NodeAddr, NodeId)) -> Ordering {
    a.0.cmp(b.0).then(a.1.incarnation().cmp(&b.1.incarnation()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_one_text_form() {
        for (given, shown) in [("LocalHost:1", "localhost:1"), ("[0:0::1]:7301", "[::1]:7301"), ("10.0.0.1:65535", "10.0.0.1:65535")] {
            assert_eq!(given.parse::<NodeAddr>().unwrap().to_string(), shown);
        }
    }

    #[test]
    fn bad_addresses_say_what_is_wrong() {
        for (given, why) in [
            ("host", "no port"),
            (":1", "no host"),
            ("h:65536", "port is not a number from 0 to 65535"),
            ("[::1:7", "the bracket is not closed"),
            ("[x]:7", "no IPv6 address in the brackets"),
            ("a b:7", "host has a character that no host name has"),
            ("a\u{1b}[0m:7", "host has a character that no host name has"),
        ] {
            let error = given.parse::<NodeAddr>().unwrap_err();
            assert_eq!(error.why, why, "{given:?}");
            assert!(!error.to_string().contains('\u{1b}'));
        }
    }

    #[test]
    fn order_is_host_then_port_as_number() {
        let mut all: Vec<NodeAddr> = ["b:1", "a:10", "a:9"].iter().map(|a| a.parse().unwrap()).collect();
        all.sort();
        assert_eq!(all.iter().map(ToString::to_string).collect::<Vec<_>>(), ["a:9", "a:10", "b:1"]);
    }

    #[test]
    fn an_epoch_from_outside_leaves_half_of_the_routing_word_to_count_on() {
        assert_eq!(Epoch::try_from(Epoch::ACCEPTED_MAX.get()), Ok(Epoch::ACCEPTED_MAX));
        for above in [Epoch::ACCEPTED_MAX.get() + 1, Epoch::MAX.get(), u64::MAX] {
            let bytes = postcard::to_allocvec(&above).unwrap();
            assert!(postcard::from_bytes::<Epoch>(&bytes).is_err());
        }
    }

    #[test]
    fn an_id_carries_address_and_incarnation() {
        let addr = NodeAddr::new("localhost", 7301);
        let id = NodeId::new(&addr, 0xfeed);
        assert_eq!((id.addr_hash(), id.incarnation()), (addr.hash64(), 0xfeed));
        assert_eq!(id.to_string().len(), 32);
    }
}
