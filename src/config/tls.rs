//! `[tls]`

use super::{
    setting::{Spec, table},
    value::Rule,
};

table! {
    /// Encryption and authentication of peers.
    TlsConfig in tls {
        /// Certificate chain of this node, PEM.
        cert: Option<String> = None, Spec::text(Rule::Path).unused();
        /// Its private key, PEM.
        key: Option<String> = None, Spec::text(Rule::Path).unused();
        /// Certificates that sign the peers', PEM.
        ca: Option<String> = None, Spec::text(Rule::Path).unused();
    }
}
