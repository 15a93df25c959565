//! Which paths there are, and which of them a wrong one may have meant.

use std::borrow::Cow;

use super::{
    http::Method,
    problem::{Problem, shorten},
    query::decode_segment,
};

/// What is at a path.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Route {
    Index,
    Alive,
    Ready,
    Startup,
    Status,
    Members,
    Links,
    Types,
    Table,
    Locate,
    Move,
    Handoffs,
    Drops,
    Latency,
    Slow,
    Events,
    Config,
    Metrics,
    Leave,
    Down,
    Entity,
    Batch,
}

/// Every path: method, template, meaning. A segment in braces takes any text.
pub(super) const ROUTES: &[(Method, &str, Route)] = &[
    (Method::Get, "/", Route::Index),
    (Method::Get, "/healthz/alive", Route::Alive),
    (Method::Get, "/healthz/ready", Route::Ready),
    (Method::Get, "/healthz/startup", Route::Startup),
    (Method::Get, "/api/v1/status", Route::Status),
    (Method::Get, "/api/v1/members", Route::Members),
    (Method::Get, "/api/v1/links", Route::Links),
    (Method::Get, "/api/v1/shards", Route::Types),
    (Method::Get, "/api/v1/shards/{type}", Route::Table),
    (Method::Get, "/api/v1/shards/{type}/locate", Route::Locate),
    (Method::Post, "/api/v1/shards/{type}/{shard}/move", Route::Move),
    (Method::Get, "/api/v1/handoffs", Route::Handoffs),
    (Method::Get, "/api/v1/drops", Route::Drops),
    (Method::Get, "/api/v1/latency", Route::Latency),
    (Method::Get, "/api/v1/slow", Route::Slow),
    (Method::Get, "/api/v1/events", Route::Events),
    (Method::Get, "/api/v1/config", Route::Config),
    (Method::Get, "/metrics", Route::Metrics),
    (Method::Post, "/api/v1/members/{addr}/leave", Route::Leave),
    (Method::Post, "/api/v1/members/{addr}/down", Route::Down),
    (Method::Post, "/api/v1/entities/{type}/{key}/{op}", Route::Entity),
    (Method::Post, "/api/v1/batch", Route::Batch),
];

/// Paths whose subject is still to be built, and that subject: no method of theirs does anything, and none is misspelt.
const ABSENT: &[(&str, &str)] = &[
    ("/api/v1/partitions", "partitions"),
    ("/api/v1/leaders", "leaderships"),
    ("/api/v1/store/{name}/{key}", "replicated store"),
    ("/api/v1/rebalance", "rebalancing on request"),
];

/// How many near paths a 404 names.
const NEAR_MAX: usize = 3;
/// Longest path that is compared with others.
const COMPARED_BYTES_MAX: usize = 128;

/// A route with the decoded texts of the segments in braces.
pub(super) struct Found<'a> {
    pub route: Route,
    pub args: Vec<Cow<'a, str>>,
}

/// Finds what is at a path.
pub(super) fn find(method: Method, path: &str) -> Result<Found<'_>, Problem> {
    // Reading without the body goes wherever reading goes.
    let asked = if method == Method::Head { &Method::Get } else { &method };
    let mut allowed = Vec::new();
    for (has, template, route) in ROUTES {
        let Some(args) = matches(template, path) else { continue };
        if has == asked {
            let decoded: Option<Vec<_>> = args.iter().map(|arg| decode_segment(arg)).collect();
            return match decoded {
                Some(args) => Ok(Found { route: *route, args }),
                None if *route == Route::Entity => Err(Problem::bad_key(&format!("`{}` is not percent-encoded UTF-8", shorten(path)))),
                None => Err(Problem::bad_parameter(format!("`{}` is not percent-encoded UTF-8; write `%` as %25", shorten(path)))),
            };
        }
        allowed.push(has);
    }
    match allowed.first() {
        Some(Method::Get) => Err(Problem::method(method.name(), path, "GET, HEAD")),
        Some(other) => Err(Problem::method(method.name(), path, other.name())),
        None => Err(match ABSENT.iter().find(|(template, _)| matches(template, path).is_some()) {
            Some((_, subject)) => Problem::absent_route(path, subject),
            None => Problem::unknown_route(path, &near(path)),
        }),
    }
}

/// The texts of the segments in braces, if the path has this form.
fn matches<'a>(template: &str, path: &'a str) -> Option<Vec<&'a str>> {
    let mut args = Vec::new();
    let (mut wanted, mut given) = (template.split('/'), path.split('/'));
    loop {
        match (wanted.next(), given.next()) {
            (None, None) => return Some(args),
            (Some(want), Some(have)) if want.starts_with('{') => args.push(have),
            (Some(want), Some(have)) if want == have => {}
            _ => return None,
        }
    }
}

/// The templates that differ least from a path.
fn near(path: &str) -> Vec<&'static str> {
    let mut end = path.len().min(COMPARED_BYTES_MAX);
    while !path.is_char_boundary(end) {
        end -= 1;
    }
    let path = &path[..end];
    let mut scored: Vec<(usize, &'static str)> = ROUTES
        .iter()
        .map(|(_, template, _)| {
            let whole = distance(&segments(template), &segments(path));
            // `/status` means `/api/v1/status`.
            let tail = template.strip_prefix("/api/v1").map_or(whole, |t| distance(&segments(t), &segments(path)) + 1);
            (whole.min(tail), *template)
        })
        .filter(|(score, _)| *score <= path.len() / 3 + 2)
        .collect();
    scored.sort();
    scored.dedup_by(|a, b| a.1 == b.1);
    scored.into_iter().take(NEAR_MAX).map(|(_, template)| template).collect()
}

fn segments(path: &str) -> Vec<&str> {
    path.split('/').collect()
}

/// Edits between two paths: a missing segment costs 4, a changed one its changed letters, one in braces takes any text.
fn distance(template: &[&str], path: &[&str]) -> usize {
    let pairs: usize = template
        .iter()
        .zip(path)
        .map(|(want, have)| if want.starts_with('{') { usize::from(have.is_empty()) } else { edits(want, have) })
        .sum();
    pairs + template.len().abs_diff(path.len()) * 4
}

/// Levenshtein distance over bytes.
fn edits(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut corner = row[0];
        row[0] = i + 1;
        for (j, y) in b.bytes().enumerate() {
            let replaced = corner + usize::from(x != y);
            corner = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(corner + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_lead_to_routes_with_decoded_arguments() {
        let found = find(Method::Post, "/api/v1/entities/counter/a%2Fb%20c/add").unwrap_or_else(|p| panic!("{p:?}"));
        assert_eq!((found.route, found.args), (Route::Entity, vec!["counter".into(), "a/b c".into(), "add".into()]));
        assert_eq!(find(Method::Head, "/metrics").map(|f| f.route).unwrap_or_else(|p| panic!("{p:?}")), Route::Metrics);
    }

    #[test]
    fn a_wrong_method_names_the_right_ones() {
        let problem = find(Method::Post, "/api/v1/status").err().unwrap();
        assert_eq!((problem.status, problem.header), (405, Some(Box::new(("Allow", "GET, HEAD".into())))));
        let problem = find(Method::Other("PATCH".into()), "/api/v1/batch").err().unwrap();
        assert_eq!((problem.status, problem.header), (405, Some(Box::new(("Allow", "POST".into())))));
        assert_eq!(problem.detail, "`/api/v1/batch` has POST, not PATCH");
    }

    #[test]
    fn a_wrong_path_names_near_ones() {
        for (path, meant) in [
            ("/api/v1/statuss", "/api/v1/status"),
            ("/status", "/api/v1/status"),
            ("/api/v1/members/", "/api/v1/members"),
            ("/healthz/live", "/healthz/alive"),
            ("/healthz", "/healthz/alive"),
            ("/api/v1/entity/counter/a/add", "/api/v1/entities/{type}/{key}/{op}"),
            ("/metric", "/metrics"),
        ] {
            let problem = find(Method::Get, path).err().unwrap();
            assert_eq!(problem.status, 404);
            assert!(problem.detail.contains(meant), "{path}: {}", problem.detail);
        }
        let far = find(Method::Get, &"/x".repeat(5000)).err().unwrap();
        assert!(far.detail.len() < 400);
    }

    #[test]
    fn what_does_not_exist_yet_is_not_taken_for_misspelt() {
        for (method, path) in [
            (Method::Get, "/api/v1/leaders"),
            (Method::Get, "/api/v1/partitions"),
            (Method::Post, "/api/v1/rebalance"),
            (Method::Delete, "/api/v1/store/prices/a%2Fb"),
        ] {
            let problem = find(method, path).err().unwrap();
            assert_eq!((problem.status, problem.code), (501, "E-HTTP-022"), "{path}");
            assert!(problem.detail.contains("not available in this version"), "{path}: {}", problem.detail);
        }
        assert_eq!(find(Method::Get, "/api/v1/leader").err().unwrap().status, 404);
    }

    #[test]
    fn what_is_no_text_is_refused() {
        assert_eq!(find(Method::Post, "/api/v1/entities/counter/%ff/add").err().unwrap().code, "E-HTTP-013");
        assert_eq!(find(Method::Get, "/api/v1/shards/%zz").err().unwrap().status, 400);
    }
}
