//! Errors of operations on a node, and the stable codes of all errors.

use std::{io, net::SocketAddr};

use crate::{NodeAddr, NodeId, config::ConfigErrors};

/// Gives each variant its stable code. A code is never reused; the documentation lists them with cause and remedy.
macro_rules! codes {
    ($($name:ident { $($variant:ident = $code:literal),+ $(,)? })+) => { $(
        impl $name {
            /// Stable code; never reused.
            pub fn code(&self) -> &'static str {
                match self {
                    $(Self::$variant { .. } => $code),+
                }
            }
        }
    )+ };
}
pub(crate) use codes;

/// The node did not start; nothing is left behind.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The configuration has errors. Nothing was opened.
    #[error(transparent)]
    Config(#[from] ConfigErrors),
    /// The address is in use, not of this machine, or not permitted.
    #[error("cannot bind {proto} {addr}: {source}; choose another address in {key}, port 0 takes a free one")]
    Bind {
        /// TCP, UDP or HTTP.
        proto: &'static str,
        /// What was to be bound.
        addr: SocketAddr,
        /// The setting that names it.
        key: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// The system gave no thread.
    #[error("cannot start a thread: {0}; raise the limit of processes or lower node.workers")]
    Thread(#[source] io::Error),
    /// The network poller or its waker could not be made.
    #[error("cannot set up the network thread: {0}")]
    Network(#[source] io::Error),
    /// A panic of a handler could not be caught.
    #[error("built with panic=abort; handlers need unwinding: remove `panic = \"abort\"` from the profile")]
    PanicAbort,
}

/// Nothing was registered on this node, which stays a member.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// The name, or the id made from it, is taken.
    #[error("`{0}` is already registered")]
    Duplicate(String),
    /// The cluster runs the type with another setting.
    #[error("`{name}`: {setting} is {here} here and {cluster} in the cluster")]
    Mismatch {
        /// The type.
        name: String,
        /// What differs.
        setting: &'static str,
        /// This node's value.
        here: String,
        /// The cluster's value.
        cluster: String,
    },
    /// An option has a value that it cannot have.
    #[error("`{name}`: {why}")]
    Invalid {
        /// The type.
        name: String,
        /// What is wrong.
        why: String,
    },
    /// This node is shutting down.
    #[error("this node is shutting down")]
    Shutdown,
}

/// The node is not a member, and goes on trying.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JoinError {
    /// No seed answered in time.
    #[error("no seed answered in time")]
    NoSeed,
    /// A member will not have this node.
    #[error("refused by {by}: {why}")]
    Refused {
        /// Who refused.
        by: NodeAddr,
        /// Why: names each differing setting with both values.
        why: String,
    },
    /// Fewer members came up in time than were waited for.
    #[error("{up} of {wanted} members up in time")]
    Timeout {
        /// Members that are up.
        up: usize,
        /// Members waited for.
        wanted: usize,
    },
    /// This node is shutting down.
    #[error("this node is shutting down")]
    Shutdown,
}

/// An operator's act changed nothing.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ActError {
    /// No such member.
    #[error("no member {0}")]
    NoMember(NodeId),
    /// Possible at another time.
    #[error("not now: {0}")]
    NotNow(String),
    /// Not possible.
    #[error("refused: {0}")]
    Refused(String),
    /// The node that decides could not be reached.
    #[error("the authority did not answer")]
    NoAuthority,
}

/// A question to the cluster has no answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QueryError {
    /// Not all nodes answered.
    #[error("{missing} of {asked} nodes did not answer in time")]
    Timeout {
        /// Nodes asked.
        asked: usize,
        /// Nodes without an answer.
        missing: usize,
    },
    /// This node is shutting down.
    #[error("this node is shutting down")]
    Shutdown,
}

codes! {
    StartError {
        Config = "E-START-001", Bind = "E-START-002", Thread = "E-START-004", PanicAbort = "E-START-005", Network = "E-START-006",
    }
    RegisterError {
        Duplicate = "E-REG-001", Mismatch = "E-REG-002", Invalid = "E-REG-004", Shutdown = "E-REG-005",
    }
    JoinError { NoSeed = "E-JOIN-001", Refused = "E-JOIN-002", Timeout = "E-JOIN-003", Shutdown = "E-JOIN-004" }
    ActError { NoMember = "E-ACT-001", NotNow = "E-ACT-002", Refused = "E-ACT-003", NoAuthority = "E-ACT-004" }
    QueryError { Timeout = "E-QRY-001", Shutdown = "E-QRY-002" }
}
