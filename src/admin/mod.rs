//! The HTTP surface of a node: health, status, entity operations, metrics.
//!
//! One thread with its own `mio::Poll` ([`server`]) speaks HTTP/1.1 and knows nothing of clusters; [`routes`] turns requests into calls
//! of a [`Source`], which is all that this room sees of the node. Answers may come from any thread of the node.

mod batch;
mod connection;
mod entities;
pub mod events;
mod exchange;
mod gate;
pub mod http;
pub mod model;
mod patience;
pub mod problem;
mod query;
mod reactor;
mod responder;
mod route_table;
pub mod routes;
pub mod server;
pub mod source;

pub use events::EventRing;
#[doc(hidden)]
pub use exchange::read_requests;
pub use http::{Method, Request, Response};
pub use problem::Problem;
pub use responder::{Responder, StreamWriter};
pub use routes::Api;
pub use server::{Handler, Limits, Listening, Server, ServerHandle};
pub use source::{Done, EntityCall, EntityOutcome, EntityType, Mode, Probe, Source, SourceError};
