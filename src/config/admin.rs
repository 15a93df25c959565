//! `[admin]`

use std::net::SocketAddr;

use super::{
    setting::{Spec, table},
    value::Rule,
};

table! {
    /// The HTTP surface of the node.
    AdminConfig in admin {
        /// Address of the HTTP listener.
        listen: Option<SocketAddr> = None, Spec::any();
        /// Bearer token that writes need; without one they are open on loopback only.
        token: Option<String> = None, Spec::text(Rule::Secret);
    }
}
