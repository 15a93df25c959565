//! Who may write.

use std::net::{IpAddr, SocketAddr};

use super::{http::Request, problem::Problem};

/// Decides about requests that may change something. Reads are open.
pub(super) struct Gate {
    /// Digest of the token: comparing digests takes the same time for every guess, of whatever length.
    token: Option<[u8; 32]>,
    listens_on_loopback: bool,
}

impl Gate {
    pub fn new(listen: SocketAddr, token: Option<&str>) -> Self {
        Self { token: token.map(|t| hmac_sha256::Hash::hash(t.as_bytes())), listens_on_loopback: listen.ip().is_loopback() }
    }

    /// Lets the request pass or says why not.
    pub fn check(&self, request: &Request) -> Result<(), Problem> {
        if !request.method.writes() {
            return Ok(());
        }
        match &self.token {
            Some(token) => match request.header("authorization").map(|value| value.split_once(' ')) {
                Some(Some((scheme, given))) if scheme.eq_ignore_ascii_case("bearer") => {
                    let given = hmac_sha256::Hash::hash(given.trim().as_bytes());
                    if same(token, &given) { Ok(()) } else { Err(Problem::unauthorized("the token is not the right one")) }
                }
                Some(_) => Err(Problem::unauthorized("`Authorization` is not of the form `Bearer ..`")),
                None => Err(Problem::unauthorized("writes need a token here")),
            },
            None if !self.listens_on_loopback => Err(Problem::forbidden(
                "admin.token is not set and admin.listen is not a loopback address; set admin.token to allow writes",
            )),
            // Without a token a web page in a browser on this machine could write as well; browsers say where a write comes from.
            None => match request.header("origin") {
                Some(origin) if !origin_is_local(origin) => {
                    Err(Problem::forbidden("a page of another origin may not write here; set admin.token and send it"))
                }
                _ => Ok(()),
            },
        }
    }
}

/// Compares without stopping at the first difference.
fn same(a: &[u8; 32], b: &[u8; 32]) -> bool {
    std::hint::black_box(a.iter().zip(b).fold(0, |difference, (x, y)| difference | (x ^ y))) == 0
}

fn origin_is_local(origin: &str) -> bool {
    let Some((_, authority)) = origin.split_once("://") else { return false };
    let host = match authority.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => authority.split(':').next().unwrap_or_default(),
    };
    host.eq_ignore_ascii_case("localhost") || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::http::Method;

    fn status(gate: &Gate, method: Method, headers: &[(&str, &str)]) -> u16 {
        let headers = headers.iter().map(|(n, v)| ((*n).into(), (*v).into())).collect();
        let request = Request { method, path: "/".into(), query: String::new(), headers, body: Vec::new() };
        gate.check(&request).err().map_or(200, |p| p.status)
    }

    #[test]
    fn a_token_is_needed_for_writes_when_set() {
        let gate = Gate::new("10.0.0.1:1".parse().unwrap(), Some("secret"));
        assert_eq!(status(&gate, Method::Get, &[]), 200);
        assert_eq!(status(&gate, Method::Post, &[]), 401);
        for (value, expected) in [
            ("Bearer secret", 200),
            ("bearer  secret", 200),
            ("Bearer secre", 401),
            ("Bearer secret2", 401),
            ("Basic secret", 401),
            ("secret", 401),
        ] {
            assert_eq!(status(&gate, Method::Post, &[("authorization", value)]), expected, "{value}");
        }
    }

    #[test]
    fn without_token_only_loopback_writes() {
        assert_eq!(status(&Gate::new("[::1]:1".parse().unwrap(), None), Method::Post, &[]), 200);
        assert_eq!(status(&Gate::new("0.0.0.0:1".parse().unwrap(), None), Method::Delete, &[]), 403);
        assert_eq!(status(&Gate::new("0.0.0.0:1".parse().unwrap(), None), Method::Head, &[]), 200);
    }

    #[test]
    fn pages_of_other_origins_do_not_write() {
        let gate = Gate::new("127.0.0.1:1".parse().unwrap(), None);
        for (origin, expected) in [
            ("http://evil.example", 403),
            ("null", 403),
            ("http://localhost:3", 200),
            ("http://[::1]:3", 200),
            ("http://127.0.0.1.evil.example", 403),
        ] {
            assert_eq!(status(&gate, Method::Post, &[("origin", origin)]), expected, "{origin}");
        }
    }
}
