//! Why HTTP requests are turned away.

use super::Counter;

macro_rules! refusals {
    ($($(#[$m:meta])* $name:ident = $label:literal;)+) => {
        /// Why a request or a connection of the HTTP surface was refused.
        #[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        #[non_exhaustive]
        pub enum HttpRefusal { $($(#[$m])* $name),+ }

        impl HttpRefusal {
            /// All reasons, in the order of their counters.
            pub const ALL: &'static [Self] = &[$(Self::$name),+];
            /// Label of the counter.
            pub const fn label(self) -> &'static str { match self { $(Self::$name => $label),+ } }
        }
    };
}

refusals! {
    /// All connections are in use.
    Connections = "connections";
    /// Not HTTP.
    Malformed = "malformed";
    /// Request line and headers exceed their bytes.
    HeadTooLarge = "head_too_large";
    /// Too many headers.
    TooManyHeaders = "too_many_headers";
    /// The body exceeds its bytes.
    BodyTooLarge = "body_too_large";
    /// The answers to a batch exceed their bytes.
    AnswersTooLarge = "answers_too_large";
    /// The client did not send the request in time.
    SlowRequest = "slow_request";
    /// The client did not read the answer in time.
    SlowReader = "slow_reader";
    /// A feature of HTTP that is not served.
    Unsupported = "unsupported";
    /// No or a wrong token.
    Unauthorized = "unauthorized";
    /// Writes are not allowed from there.
    Forbidden = "forbidden";
    /// No such path.
    UnknownRoute = "unknown_route";
    /// The path has other methods.
    Method = "method";
    /// A part of the path or query is out of range.
    BadParameter = "bad_parameter";
    /// The entity key is empty, too long or no text.
    BadKey = "bad_key";
    /// No such entity type.
    UnknownType = "unknown_type";
    /// The type has no such operation.
    UnknownOperation = "unknown_operation";
    /// No such member, shard or other thing.
    NotFound = "not_found";
    /// The body does not fit.
    BadBody = "bad_body";
    /// More lines than a batch may have.
    TooManyLines = "too_many_lines";
    /// No answer in time.
    Timeout = "timeout";
    /// Refused as things stand.
    Conflict = "conflict";
    /// The node cannot at the moment.
    Unavailable = "unavailable";
    /// Does not exist in this version.
    NotImplemented = "not_implemented";
    /// A fault of the node.
    Internal = "internal";
}

/// Refusals by reason.
#[derive(Debug)]
pub struct Refusals {
    /// One counter per [`HttpRefusal::ALL`], in that order.
    counts: Box<[Counter]>,
}

impl Default for Refusals {
    fn default() -> Self {
        Self { counts: HttpRefusal::ALL.iter().map(|_| Counter::default()).collect() }
    }
}

impl Refusals {
    /// Counts one refusal.
    pub fn add(&self, reason: HttpRefusal) {
        self.counts[reason as usize].add(1);
    }

    /// How many were refused for this reason.
    pub fn get(&self, reason: HttpRefusal) -> u64 {
        self.counts[reason as usize].get()
    }

    /// Label and count of every reason.
    pub fn all(&self) -> Vec<(&'static str, u64)> {
        HttpRefusal::ALL.iter().zip(&self.counts).map(|(reason, count)| (reason.label(), count.get())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_unique_and_positions_match() {
        let labels: std::collections::BTreeSet<_> = HttpRefusal::ALL.iter().map(|r| r.label()).collect();
        assert_eq!(labels.len(), HttpRefusal::ALL.len());
        assert!(HttpRefusal::ALL.iter().enumerate().all(|(at, reason)| *reason as usize == at));
    }
}
