//! The public interface as rustdoc lists it: everything is documented, every call that can fail says how, everything that may grow can grow, and
//! no other crate's types are in it but those that were chosen.
#![cfg(feature = "cli")]
#![allow(missing_docs, clippy::unwrap_used)]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    process::Command,
};

use serde_json::Value;

/// Crates whose types users see. The rest is nobody's business and may be exchanged.
const PUBLIC: &[&str] = &["std", "core", "alloc", "serde", "serde_core", "crossbeam", "crossbeam_channel"];

/// Values whose form is what they are: nothing can be added to them without making them something else.
const CLOSED: &[&str] =
    &["NodeAddr", "ShardId", "ShardKey", "TypeId", "ConfigErrors", "Added", "Singleton", "Span", "RoleMin", "Ran", "Deadline"];

/// What rustdoc knows of the library without its default features; those add nothing that is shown.
fn listing() -> Value {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("listing");
    let mut rustdoc = Command::new(env!("CARGO"));
    rustdoc.args(["doc", "--no-deps", "--lib", "--no-default-features", "--offline", "--target-dir"]).arg(&target);
    // Rustdoc's list for machines is not stable yet: a newer one may need this test to be adapted.
    rustdoc.env("RUSTC_BOOTSTRAP", "1").env("RUSTDOCFLAGS", "-Z unstable-options --output-format json");
    let done = rustdoc.current_dir(env!("CARGO_MANIFEST_DIR")).env_remove("CARGO_ENCODED_RUSTFLAGS").output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    serde_json::from_slice(&fs::read(target.join("doc/wingbeat.json")).unwrap()).unwrap()
}

struct Api {
    listing: Value,
    /// Items that users can name or reach, with what they are and where.
    items: BTreeMap<u64, (String, String)>,
}

fn kind_of(item: &Value) -> &str {
    item["inner"].as_object().and_then(|inner| inner.keys().next()).map_or("?", String::as_str)
}

impl Api {
    fn new() -> Self {
        let listing = listing();
        let root = listing["root"].as_u64().unwrap();
        let mut api = Self { listing, items: BTreeMap::new() };
        api.visit(root, "");
        api
    }

    fn item(&self, id: u64) -> Option<&Value> {
        self.listing["index"].get(id.to_string())
    }

    fn visit(&mut self, id: u64, path: &str) {
        let Some(item) = self.item(id).cloned() else { return };
        let (kind, inner) = (kind_of(&item).to_owned(), &item["inner"]);
        let inner = &inner[&kind];
        if kind == "use" {
            return if let Some(id) = inner["id"].as_u64() {
                self.visit(id, path)
            };
        }
        let path = match item["name"].as_str() {
            Some(name) if path.is_empty() => name.to_owned(),
            Some(name) => format!("{path}::{name}"),
            None => path.to_owned(),
        };
        if self.items.insert(id, (kind.clone(), path.clone())).is_some() {
            return;
        }
        let inherent = |id: &u64| {
            let block = self.item(*id).map(|item| &item["inner"]["impl"]);
            block.filter(|block| block["trait"].is_null()).map(|block| ids(&block["items"])).unwrap_or_default()
        };
        let below: Vec<u64> = match kind.as_str() {
            "module" | "trait" => ids(&inner["items"]),
            "struct" => {
                let fields = [ids(&inner["kind"]["plain"]["fields"]), ids(&inner["kind"]["tuple"])].concat();
                ids(&inner["impls"]).iter().flat_map(inherent).chain(fields).collect()
            }
            "enum" => ids(&inner["impls"]).iter().flat_map(inherent).chain(ids(&inner["variants"])).collect(),
            "variant" => ids(&inner["kind"]["struct"]["fields"]),
            _ => vec![],
        };
        below.into_iter().for_each(|id| self.visit(id, &path));
    }

    fn each(&self) -> impl Iterator<Item = (&str, &str, &Value)> {
        self.items.iter().map(|(id, (kind, path))| (kind.as_str(), path.as_str(), self.item(*id).unwrap()))
    }

    /// Crates whose items are named anywhere in `value`.
    fn crates_in(&self, value: &Value, found: &mut BTreeSet<String>) {
        match value {
            Value::Object(map) => {
                if let (Some(id), Some(Value::String(_))) = (map.get("id").and_then(Value::as_u64), map.get("path"))
                    && let Some(summary) = self.listing["paths"].get(id.to_string())
                {
                    let number = summary["crate_id"].as_u64().unwrap();
                    let name = self.listing["external_crates"][number.to_string()]["name"].as_str();
                    found.extend(name.filter(|_| number != 0).map(str::to_owned));
                }
                map.values().for_each(|value| self.crates_in(value, found));
            }
            Value::Array(values) => values.iter().for_each(|value| self.crates_in(value, found)),
            _ => {}
        }
    }
}

fn ids(list: &Value) -> Vec<u64> {
    list.as_array().map(|list| list.iter().filter_map(Value::as_u64).collect()).unwrap_or_default()
}

fn is_open(item: &Value) -> bool {
    item["attrs"].as_array().is_some_and(|attrs| attrs.iter().any(|attr| attr.to_string().contains("non_exhaustive")))
}

#[test]
fn the_public_interface_is_documented_can_grow_and_shows_no_other_crate() {
    let api = Api::new();
    let mut wrong = vec![];
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    for (kind, path, item) in api.each() {
        *seen.entry(kind).or_default() += 1;
        let name = path.rsplit("::").next().unwrap_or_default();
        let docs = item["docs"].as_str().unwrap_or_default();
        let is_place = kind == "struct_field" && name.chars().all(|c| c.is_ascii_digit());
        if docs.trim().is_empty() && !is_place {
            wrong.push(format!("{path} ({kind}) is not documented"));
        }
        if kind == "function"
            && item["inner"]["function"]["sig"]["output"]["resolved_path"]["path"] == "Result"
            && !docs.contains("# Errors")
        {
            wrong.push(format!("{path} does not say what its errors mean"));
        }
        if kind == "enum" && !is_open(item) && !CLOSED.contains(&name) {
            wrong.push(format!("{path} is an enum and not #[non_exhaustive]"));
        }
        if kind == "struct" && !is_open(item) && !CLOSED.contains(&name) {
            let kind = &item["inner"]["struct"]["kind"];
            let (plain, tuple) = (ids(&kind["plain"]["fields"]), ids(&kind["tuple"]));
            let hidden =
                kind["plain"]["has_stripped_fields"] == true || kind["tuple"].as_array().is_some_and(|t| t.iter().any(Value::is_null));
            if !hidden && plain.len() + tuple.len() > 0 {
                wrong.push(format!("{path} has only public fields and is not #[non_exhaustive]"));
            }
        }
        let mut crates = BTreeSet::new();
        // What is listed below an item is looked at by itself; of the traits that a type has, those of other crates count that it has by hand.
        if !matches!(kind, "module" | "macro") {
            api.crates_in(&item["inner"], &mut crates);
        }
        wrong.extend(crates.iter().filter(|name| !PUBLIC.contains(&name.as_str())).map(|name| format!("{path} shows a type of {name}")));
    }
    for (_, item) in api.listing["index"].as_object().unwrap() {
        let block = &item["inner"]["impl"];
        if block.is_object() && block["blanket_impl"].is_null() && block["is_synthetic"] == false {
            let mut crates = BTreeSet::new();
            api.crates_in(&block["trait"], &mut crates);
            api.crates_in(&block["for"], &mut crates);
            let of_ours = api.item(block["for"]["resolved_path"]["id"].as_u64().unwrap_or(u64::MAX)).is_some();
            wrong.extend(crates.iter().filter(|name| of_ours && !PUBLIC.contains(&name.as_str())).map(|name| {
                format!("{} is implemented for {}, a trait of {name}", block["trait"]["path"], block["for"]["resolved_path"]["path"])
            }));
        }
    }
    println!("{seen:?}");
    assert!(api.items.len() > 500, "only {} items were found: the format of the list has changed, adapt this test", api.items.len());
    assert!(wrong.is_empty(), "{} things:\n{}", wrong.len(), wrong.join("\n"));
}
