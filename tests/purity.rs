//! The rules of the rooms, held by reading the sources.
//!
//! `proto/` is driven by the engine and by the simulator alike, so it may hold nothing that only one of them has: no socket, thread or clock, no map
//! whose order differs from run to run, and nothing of the rooms around it. Comments and texts may speak of all of that.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

/// What a room may not name. Paths end at `::` boundaries; `*` at the end stands for a function, that is a lower-case name.
struct Rule {
    rooms: &'static [&'static str],
    except: &'static [&'static str],
    paths: &'static [&'static str],
    /// Forbidden under whatever path.
    names: &'static [&'static str],
    why: &'static str,
}

const RULES: &[Rule] = &[
    Rule {
        rooms: &["proto"],
        except: &[],
        paths: &[
            "crate::engine",
            "crate::net",
            "crate::journal",
            "crate::outside",
            "crate::admin",
            "crate::sim",
            "crate::api",
            "crate::testkit",
        ],
        names: &[],
        why: "the pure core knows nothing of the rooms around it: pass it in as data",
    },
    Rule {
        rooms: &["proto"],
        except: &[],
        paths: &[
            "std::thread",
            "std::fs",
            "std::process",
            "std::env",
            "std::os",
            "std::net::*",
            "std::sync::mpsc",
            "std::io::stdout",
            "std::io::stderr",
        ],
        names: &["TcpStream", "TcpListener", "UdpSocket", "Condvar", "Mutex", "RwLock"],
        why: "the pure core has no threads and does no input or output: return an effect",
    },
    Rule {
        rooms: &["proto"],
        except: &[],
        paths: &["mio", "socket2", "libc", "signal_hook", "parking_lot", "crossbeam", "hdrhistogram"],
        names: &[],
        why: "a package for threads, sockets or the system: the pure core returns effects",
    },
    Rule {
        rooms: &["proto"],
        except: &[],
        paths: &[],
        names: &["Instant", "SystemTime"],
        why: "the pure core reads no clock: time comes in as `Time`",
    },
    Rule {
        rooms: &["proto"],
        except: &[],
        paths: &["std::collections::hash_map", "std::collections::hash_set", "foldhash", "hashbrown"],
        names: &["HashMap", "HashSet", "RandomState"],
        why: "the order of an unordered map leaks into decisions: use `BTreeMap`, `Vec` or an index of your own",
    },
    Rule {
        rooms: &["proto"],
        except: &[],
        paths: &["rand", "getrandom", "fastrand", "oorandom"],
        names: &["thread_rng", "ThreadRng", "OsRng"],
        why: "randomness comes from the seeded `proto::rng::Rng`",
    },
    Rule {
        rooms: &["sim"],
        except: &[],
        paths: &["crate::engine", "crate::net", "crate::admin", "std::thread"],
        names: &["TcpStream", "TcpListener", "UdpSocket"],
        why: "the simulator drives the two cores and nothing real",
    },
    Rule {
        rooms: &["engine", "net"],
        except: &[],
        paths: &["crate::sim", "crate::testkit"],
        names: &[],
        why: "what runs in production does not know its model",
    },
    Rule {
        rooms: &[""],
        except: &["engine/sys.rs", "net/sys.rs", "bin"],
        paths: &["libc::*"],
        names: &[],
        why: "calls of the system are in engine/sys.rs and net/sys.rs only",
    },
];

/// A source file: its path below `src/`, its text.
struct Source {
    path: String,
    text: String,
}

/// What is wrong, as `path:line: ...`.
fn offences(source: &Source, outside: &BTreeSet<String>) -> Vec<String> {
    let tokens = tokens(&source.text);
    let module = module_of(&source.path);
    let paths = paths(&tokens, &module);
    let mut found = vec![];
    let rules =
        RULES.iter().filter(|r| r.rooms.iter().any(|room| is_in(&source.path, room)) && !r.except.iter().any(|e| is_in(&source.path, e)));
    for rule in rules {
        for (line, path) in &paths {
            if rule.paths.iter().any(|p| is_under(path, p)) {
                found.push(format!("src/{}:{line}: `{}`: {}", source.path, path.join("::"), rule.why));
            }
        }
        for token in &tokens {
            if rule.names.contains(&token.text.as_str()) {
                found.push(format!("src/{}:{}: `{}`: {}", source.path, token.line, token.text, rule.why));
            }
        }
    }
    if is_in(&source.path, "proto") {
        // The root of the crate shows what belongs to other rooms.
        for (line, path) in &paths {
            if path.len() >= 2 && path[0] == "crate" && outside.contains(&path[1]) {
                found.push(format!("src/{}:{line}: `{}` belongs to a room around the pure core", source.path, path.join("::")));
            }
        }
    }
    found
}

fn is_in(path: &str, room: &str) -> bool {
    room.is_empty() || path == room || path.strip_suffix(".rs") == Some(room) || path.starts_with(&format!("{room}/"))
}

fn is_under(path: &[String], rule: &str) -> bool {
    let rule: Vec<&str> = rule.split("::").collect();
    let (rule, function) = match rule.as_slice() {
        [head @ .., "*"] => (head, true),
        all => (all, false),
    };
    // A glob import brings in everything, functions too.
    let last = |name: &String| name == "*" || name.starts_with(|c: char| c.is_lowercase());
    path.len() >= rule.len() && path.iter().zip(rule).all(|(a, b)| a == b) && (!function || path.get(rule.len()).is_some_and(last))
}

/// `proto/shard/stay.rs` is `crate::proto::shard::stay`.
fn module_of(path: &str) -> Vec<String> {
    let path = path.strip_suffix(".rs").unwrap_or(path);
    let path = path.strip_suffix("/mod").unwrap_or(path);
    std::iter::once("crate").chain(path.split('/').filter(|p| *p != "lib" && *p != "main")).map(String::from).collect()
}

#[derive(Clone, Debug, PartialEq)]
struct Token {
    line: usize,
    text: String,
}

/// Names and punctuation without comments, texts and numbers' details; `::` is one token.
fn tokens(text: &str) -> Vec<Token> {
    let chars: Vec<char> = text.chars().collect();
    let (mut out, mut i, mut line) = (vec![], 0, 1);
    let at = |i: usize| chars.get(i).copied().unwrap_or('\0');
    while i < chars.len() {
        let start = i;
        match chars[i] {
            '/' if at(i + 1) == '/' => {
                while i < chars.len() && chars[i] != '\n' {
                    i += 1;
                }
            }
            '/' if at(i + 1) == '*' => {
                let mut depth = 0;
                loop {
                    match (at(i), at(i + 1)) {
                        ('/', '*') => (depth, i) = (depth + 1, i + 2),
                        ('*', '/') => (depth, i) = (depth - 1, i + 2),
                        _ => i += 1,
                    }
                    if depth == 0 || i >= chars.len() {
                        break;
                    }
                }
            }
            '"' => i = end_of_text(&chars, i),
            // A raw text or a raw name, with or without `b` or `c` before it.
            'r' | 'b' | 'c' if raw_text(&chars, i).is_some() => i = raw_text(&chars, i).unwrap_or(i + 1),
            '\'' => i = end_of_char(&chars, i),
            c if c.is_alphabetic() || c == '_' => {
                while i < chars.len() && (chars[i].is_alphanumeric() || chars[i] == '_') {
                    i += 1;
                }
                out.push(Token { line, text: chars[start..i].iter().collect() });
            }
            ':' if at(i + 1) == ':' => {
                i += 2;
                out.push(Token { line, text: "::".into() });
            }
            c if c.is_whitespace() => i += 1,
            c => {
                i += 1;
                out.push(Token { line, text: c.into() });
            }
        }
        line += chars[start..i.min(chars.len())].iter().filter(|c| **c == '\n').count();
    }
    out
}

/// Behind the text that begins with the quote at `i`.
fn end_of_text(chars: &[char], mut i: usize) -> usize {
    i += 1;
    while i < chars.len() && chars[i] != '"' {
        i += if chars[i] == '\\' { 2 } else { 1 };
    }
    i + 1
}

/// Behind a prefixed text at `i`, if there is one: `r"..."`, `br#"..."#`, `b"..."`, `c"..."`.
fn raw_text(chars: &[char], i: usize) -> Option<usize> {
    let mut j = i;
    if i > 0 && (chars[i - 1].is_alphanumeric() || chars[i - 1] == '_') {
        return None;
    }
    if matches!(chars[j], 'b' | 'c') {
        j += 1;
    }
    if chars.get(j) != Some(&'r') {
        return (j > i && chars.get(j) == Some(&'"')).then(|| end_of_text(chars, j));
    }
    j += 1;
    let hashes = chars[j..].iter().take_while(|c| **c == '#').count();
    j += hashes;
    if chars.get(j) != Some(&'"') {
        return None;
    }
    let close: Vec<char> = std::iter::once('"').chain(std::iter::repeat_n('#', hashes)).collect();
    (j + 1..chars.len()).find(|&k| chars[k..].starts_with(&close)).map_or(Some(chars.len()), |k| Some(k + close.len()))
}

/// Behind a character at `i`; a lifetime only loses its tick.
fn end_of_char(chars: &[char], i: usize) -> usize {
    match (chars.get(i + 1), chars.get(i + 2)) {
        (Some('\\'), _) => (i + 3..chars.len()).find(|&k| chars[k] == '\'').map_or(chars.len(), |k| k + 1),
        (Some(_), Some('\'')) => i + 3,
        _ => i + 1,
    }
}

/// All paths that the file names, in full: `use` trees are taken apart, `super`, `self` and the crate's own name are resolved.
fn paths(tokens: &[Token], module: &[String]) -> Vec<(usize, Vec<String>)> {
    let (mut out, mut i) = (vec![], 0);
    while i < tokens.len() {
        let is_path = is_name(&tokens[i].text) || tokens[i].text == "::";
        if tokens[i].text == "use" {
            i = tree(tokens, i + 1, &[], &mut out);
        } else if is_path && (i == 0 || tokens[i - 1].text != "::") {
            i = tree(tokens, i, &[], &mut out);
        } else {
            i += 1;
        }
    }
    out.retain(|(_, path)| path.len() > 1 || path.first().is_some_and(|p| p.starts_with(char::is_lowercase)));
    out.into_iter().map(|(line, path)| (line, resolve(path, module))).collect()
}

/// One `use` tree or path from token `i`; gives the token behind it.
fn tree(tokens: &[Token], mut i: usize, prefix: &[String], out: &mut Vec<(usize, Vec<String>)>) -> usize {
    let mut path = prefix.to_vec();
    let text = |i: usize| tokens.get(i).map_or("", |t: &Token| t.text.as_str());
    let line = tokens.get(i).map_or(0, |t| t.line);
    loop {
        match text(i) {
            "::" => i += 1,
            "*" if i > 0 && text(i - 1) == "::" => {
                path.push("*".into());
                out.push((line, path));
                return i + 1;
            }
            "{" if !path.is_empty() && text(i - 1) == "::" || path.is_empty() && i > 0 && text(i - 1) == "use" => {
                i += 1;
                while i < tokens.len() && text(i) != "}" {
                    if text(i) == "," {
                        i += 1;
                    } else {
                        let next = tree(tokens, i, &path, out);
                        i = next.max(i + 1);
                    }
                }
                return i + 1;
            }
            name if is_name(name) && (path.len() == prefix.len() || text(i - 1) == "::") => {
                if name != "self" || path.is_empty() {
                    path.push(name.into());
                }
                i += 1;
            }
            _ => {
                // A generic argument or a new name follows; the caller reads on there.
                out.push((line, path));
                return if text(i) == "as" { i + 2 } else { i };
            }
        }
    }
}

fn is_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

fn resolve(path: Vec<String>, module: &[String]) -> Vec<String> {
    match path[0].as_str() {
        "wingbeat" => std::iter::once("crate".into()).chain(path[1..].iter().cloned()).collect(),
        "core" | "alloc" => std::iter::once("std".into()).chain(path[1..].iter().cloned()).collect(),
        "self" => module.iter().chain(&path[1..]).cloned().collect(),
        "super" => {
            let ups = path.iter().take_while(|p| *p == "super").count();
            let base = module.len().saturating_sub(ups).max(1);
            module[..base].iter().chain(&path[ups..]).cloned().collect()
        }
        _ => path,
    }
}

/// Names that the crate's root shows and that belong to rooms around the pure core.
fn shown_by_rooms(read: impl Fn(&str) -> Option<String>) -> BTreeSet<String> {
    let rooms = ["api", "engine", "net", "journal", "outside", "admin", "sim", "testkit"];
    let mut names = BTreeSet::new();
    for (_, path) in paths(&tokens(&read("lib.rs").unwrap_or_default()), &module_of("lib.rs")) {
        let path: Vec<&str> = path.iter().map(String::as_str).filter(|p| *p != "crate").collect();
        match path.as_slice() {
            [room, .., "*"] if rooms.contains(room) => {
                let text = read(&format!("{room}/mod.rs")).or_else(|| read(&format!("{room}.rs"))).unwrap_or_default();
                let all = paths(&tokens(&text), &["crate".into(), (*room).into()]);
                names.extend(all.into_iter().filter_map(|(_, p)| p.last().filter(|n| n.starts_with(char::is_uppercase)).cloned()));
            }
            [room, .., name] if rooms.contains(room) => {
                names.insert((*name).into());
            }
            _ => {}
        }
    }
    names
}

fn sources(dir: &Path, root: &Path, out: &mut Vec<Source>) {
    let mut entries: Vec<PathBuf> = fs::read_dir(dir).expect("src is there").map(|e| e.expect("src can be listed").path()).collect();
    entries.sort();
    for path in entries {
        if path.is_dir() {
            sources(&path, root, out);
        } else if path.extension().is_some_and(|e| e == "rs") {
            let text = fs::read_to_string(&path).expect("sources are UTF-8");
            let path = path.strip_prefix(root).expect("below src").to_string_lossy().replace('\\', "/");
            out.push(Source { path, text });
        }
    }
}

fn src() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

#[test]
fn the_rooms_keep_their_rules() {
    let (root, mut all) = (src(), vec![]);
    sources(&root, &root, &mut all);
    assert!(all.iter().any(|s| s.path == "proto/mod.rs"), "the pure core was not found");
    let outside = shown_by_rooms(|path| fs::read_to_string(root.join(path)).ok());
    assert!(outside.contains("AskError"), "what the root shows of the api was not found: {outside:?}");
    let found: Vec<String> = all.iter().flat_map(|s| offences(s, &outside)).collect();
    assert!(found.is_empty(), "{} offences:\n{}", found.len(), found.join("\n"));
}

/// Whether this text, as a file of the pure core, is an offence.
#[track_caller]
fn planted(path: &str, text: &str) -> Vec<String> {
    offences(&Source { path: path.into(), text: text.into() }, &BTreeSet::from(["Cluster".into()]))
}

#[test]
fn every_planted_offender_is_caught() {
    for text in [
        "use crate::engine::Lane;",
        "use crate::{id::X, net::link};",
        "use crate::{proto::{wire}, sim};",
        "use super::super::super::admin::Page;",
        "use wingbeat::api::Region;",
        "use crate::Cluster;",
        "fn f() { wingbeat::Cluster::start() }",
        "pub(in crate::proto) use crate::journal::Record as R;",
        "fn f() { crate::outside::kafka::connect() }",
        "use std::net::TcpStream;",
        "use std::{fmt, net::{IpAddr, UdpSocket}};",
        "use std::net::*;",
        "fn f() -> std::net::TcpListener { todo!() }",
        "use std::thread;",
        "use std::{fmt, thread::JoinHandle};",
        "fn f() { std::thread::sleep(d) }",
        "use std::thread as t;",
        "use std::time::Instant;",
        "use std::time::{Duration, SystemTime as Wall};",
        "fn f() -> u64 { ::std::time::Instant::now() }",
        "use std::collections::HashMap;",
        "use std::collections::{BTreeMap, HashSet};",
        "use std::collections::hash_map::Entry;",
        "struct S { m: std::collections::HashMap<u32, Vec<u8>> }",
        "use foldhash::fast::FixedState;",
        "use core::hash; use std::hash::RandomState;",
        "fn f() { rand::random::<u64>() }",
        "let r = thread_rng();",
        "use mio::Poll;",
        "fn f() { libc::getpid() }",
        "use parking_lot::Mutex;",
        "use std::sync::{Arc, Mutex};",
        "use {std::fs, std::fmt};",
        "use std::env::var;",
        "/* a /* nested */ comment */ use std::thread;",
        "const A: &str = \"quoted \\\" text\"; use std::thread;",
        "const A: &str = r#\"raw \" text\"#; use std::thread;",
        "fn f<'a>(c: char) -> bool { c == '\"' && c != '\\'' } use std::thread;",
        "mod tests { use super::*; use std::collections::HashMap; }",
        "macro_rules! m { () => { std::thread::yield_now() } }",
    ] {
        let found = planted("proto/shard/stay.rs", text);
        assert!(!found.is_empty(), "not caught: {text}");
        assert!(found[0].starts_with("src/proto/shard/stay.rs:1: `"), "{found:?}");
    }
}

#[test]
fn what_is_allowed_is_left_alone() {
    for text in [
        "// use std::thread;\n/// `HashMap` and std::net::TcpStream\n//! Instant\n",
        "/* use crate::engine; /* HashSet */ SystemTime */",
        "const A: &str = \"use std::thread; HashMap\"; const B: &[u8] = br##\"Instant \"# crate::net\"##;",
        "const C: &str = \"line\n use std::thread; \\\" Instant\";",
        "use crate::{config::Config, Epoch, NodeId, proto::{wire::Frame, shard}};",
        "use super::{Gate, gate::Held}; use super::super::wire;",
        "use std::{collections::{BTreeMap, VecDeque}, fmt, net::{IpAddr, SocketAddr}, time::Duration};",
        "fn f(addr: std::net::SocketAddr) -> std::time::Duration { self.thread.random() }",
        "enum E { Engine, Net } mod net; fn admin() {} struct Thread;",
        "fn f(engine: u8) { let net = engine; self.net::<u8>(); shard::env::Env::new() }",
        "fn f<'a>(x: &'a str) -> char { let c = 'r'; let d = b'\\''; c }",
        "use crate::proto::node::Command; use self::inner::Clusters;",
    ] {
        assert_eq!(planted("proto/shard/stay.rs", text), [""; 0], "{text}");
    }
}

#[test]
fn rules_hold_in_their_rooms_only() {
    let thread = "use std::{thread, time::Instant}; use crate::net::Link;";
    assert!(planted("engine/worker.rs", thread).is_empty());
    assert!(planted("protocol.rs", thread).is_empty(), "another room whose name begins alike");
    assert_eq!(planted("sim/world.rs", thread).len(), 2);
    assert_eq!(planted("proto.rs", thread).len(), 3);
    assert_eq!(planted("net/udp.rs", "fn f() { libc::poll(a, b, c) }").len(), 1);
    assert!(planted("net/udp.rs", "fn f() -> i32 { libc::EINPROGRESS }").is_empty(), "a constant is no call");
    assert!(planted("net/sys.rs", "fn f() { libc::poll(a, b, c) }").is_empty());
    assert_eq!(planted("engine/worker.rs", "use crate::{proto::wire, sim::World};").len(), 1);
}

#[test]
fn an_offence_names_file_and_line() {
    let found = planted("proto/node/mod.rs", "//! Core.\n\nuse std::{\n    fmt,\n    thread,\n};\n");
    assert_eq!(
        found,
        ["src/proto/node/mod.rs:5: `std::thread`: the pure core has no threads and does no input or output: return an effect"]
    );
}
