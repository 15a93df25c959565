//! What the library links without features, and that the stated Rust version suffices for it.

use std::{collections::BTreeMap, process::Command};

/// Crates in the library without features, at most; crates that only run at build time do not count.
const CRATES_MAX: usize = 45;

/// Crates that no build of the library may pull in by default.
const UNWANTED: &[&str] = &[
    "tokio",
    "async-std",
    "smol",
    "async-executor",
    "futures-executor",
    "openssl",
    "openssl-sys",
    "native-tls",
    "clap",
    "rustls",
    "bincode",
    "rand",
];

fn cargo(args: &[&str]) -> String {
    let out = Command::new(env!("CARGO"))
        .args(args)
        .args(["--manifest-path", concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"), "--locked"])
        .output()
        .expect("cargo runs");
    assert!(out.status.success(), "cargo {}: {}", args.join(" "), String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).expect("cargo prints UTF-8")
}

/// Name and version of each crate in this print of `cargo tree --prefix none`, without those that only run at build time.
fn counted(tree: &str) -> BTreeMap<String, String> {
    let build_time = ["proc-macro2", "quote", "syn", "unicode-ident"];
    let line = |line: &str| {
        let mut words = line.split_whitespace();
        let (name, version) = (words.next()?, words.next()?);
        let is_macro = line.contains("(proc-macro)");
        (!is_macro && !build_time.contains(&name) && name != "wingbeat").then(|| (format!("{name} {version}"), name.to_owned()))
    };
    tree.lines().filter_map(line).collect()
}

#[test]
fn the_library_without_features_links_few_crates() {
    let found = counted(&cargo(&["tree", "-e", "normal", "--no-default-features", "--prefix", "none"]));
    let list: Vec<&str> = found.keys().map(String::as_str).collect();
    println!("{} crates: {}", list.len(), list.join(", "));
    assert!(list.len() <= CRATES_MAX, "{} crates, at most {CRATES_MAX}: {}", list.len(), list.join(", "));
    assert!(list.len() > 10, "the list was not read: {list:?}");
}

#[test]
fn no_build_of_the_library_pulls_in_a_runtime() {
    for features in [&["--no-default-features"][..], &[]] {
        let found = counted(&cargo(&[&["tree", "-e", "normal", "--prefix", "none"], features].concat()));
        let unwanted: Vec<&String> = found.values().filter(|name| UNWANTED.contains(&name.as_str())).collect();
        assert!(unwanted.is_empty(), "with {features:?}: {unwanted:?}");
    }
}

#[test]
fn build_time_crates_do_not_count() {
    let tree = "wingbeat v0.1.0 (/x)\nserde v1.0.1\nserde_derive v1.0.1 (proc-macro)\nsyn v3.0.9\nquote v1.0.1\nserde v1.0.1 (*)\ntoml v1.2.1+spec-1.1.0\n\n";
    assert_eq!(counted(tree).into_keys().collect::<Vec<_>>(), ["serde v1.0.1", "toml v1.2.1+spec-1.1.0"]);
}

/// Major and minor of a version text.
fn version(text: &str) -> (u32, u32) {
    let mut parts = text.split('.').map(|p| p.parse().expect("a number"));
    (parts.next().expect("a major number"), parts.next().unwrap_or(0))
}

#[test]
fn the_stated_rust_version_suffices_for_every_dependency() {
    let metadata = cargo(&["metadata", "--format-version", "1", "--all-features", "--filter-platform", &host()]);
    let found = rust_versions(&metadata);
    let ours = found.iter().find(|(name, _)| name == "wingbeat").map(|(_, v)| version(v)).expect("rust-version is stated");
    let newer: Vec<_> = found.iter().filter(|(_, v)| version(v) > ours).collect();
    assert!(found.len() > 10, "the metadata was not read: {found:?}");
    println!("{found:?}");
    assert!(newer.is_empty(), "rust-version is {ours:?}, these need more: {newer:?}");
}

/// The platform of this machine: what other platforms need is not downloaded.
fn host() -> String {
    let out = Command::new(std::env::var_os("RUSTC").unwrap_or("rustc".into())).arg("-vV").output().expect("rustc runs");
    let text = String::from_utf8(out.stdout).expect("rustc prints UTF-8");
    text.lines().find_map(|l| l.strip_prefix("host: ")).expect("rustc names its host").to_owned()
}

/// Name and `rust_version` of each package of `cargo metadata` that states one.
///
/// The order of the fields is cargo's: name first, `rust_version` later in the same object. Reading it by text keeps a JSON parser out of the tests of a
/// build without features.
fn rust_versions(metadata: &str) -> Vec<(String, String)> {
    let packages = metadata.split_once("\"workspace_members\"").map_or(metadata, |(packages, _)| packages);
    let value = |text: &str, key: &str| {
        let rest = text.split_once(key)?.1;
        rest.strip_prefix('"')?.split_once('"').map(|(value, _)| value.to_owned())
    };
    // Every package, and nothing else, has a manifest.
    packages
        .split("\"manifest_path\":")
        .collect::<Vec<_>>()
        .windows(2)
        .filter_map(|pair| {
            let name = pair[0].rfind("{\"name\":\"").and_then(|_| package_name(pair[0]))?;
            Some((name, value(pair[1], "\"rust_version\":")?))
        })
        .collect()
}

fn package_name(before_manifest: &str) -> Option<String> {
    // The package's own object begins with name, version and id; dependencies and targets have no id.
    let at = before_manifest.rfind("\",\"id\":\"")?;
    let name = before_manifest[..at].rfind("\"name\":\"")? + "\"name\":\"".len();
    before_manifest[name..].split('"').next().map(String::from)
}
