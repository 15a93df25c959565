//! The list of all settings.

use std::{fmt::Write, sync::LazyLock};

use super::{ConfigError, Setting, suggest};

/// Table, its keys.
const TABLES: [(&str, &[Setting]); 15] = [
    ("cluster", super::cluster::SETTINGS),
    ("entities", super::entities::SETTINGS),
    ("node", super::node::SETTINGS),
    ("admin", super::admin::SETTINGS),
    ("membership", super::membership::SETTINGS),
    ("detector", super::detector::SETTINGS),
    ("downing", super::downing::SETTINGS),
    ("sharding", super::sharding::SETTINGS),
    ("partitions", super::partitions::SETTINGS),
    ("leaderships", super::leaderships::SETTINGS),
    ("store", super::store::SETTINGS),
    ("journal", super::journal::SETTINGS),
    ("tls", super::tls::SETTINGS),
    ("shutdown", super::shutdown::SETTINGS),
    ("limits", super::limits::SETTINGS),
];

static ALL: LazyLock<Vec<Setting>> = LazyLock::new(|| TABLES.into_iter().flat_map(|(_, settings)| settings.iter().copied()).collect());

pub(super) fn all() -> &'static [Setting] {
    &ALL
}

pub(super) fn find(key: &str) -> Option<&'static Setting> {
    ALL.iter().find(|s| s.key == key)
}

pub(super) fn is_table(name: &str) -> bool {
    TABLES.iter().any(|(table, _)| *table == name)
}

/// What the environment variable of a key is called.
pub(super) fn variable(setting: &Setting) -> String {
    format!("WINGBEAT_{}__{}", setting.table().to_ascii_uppercase(), setting.name().to_ascii_uppercase())
}

/// The error for a key that does not exist.
pub(super) fn unknown(key: &str) -> ConfigError {
    let shown = super::value::escaped(key);
    let Some((table, name)) = key.split_once('.') else {
        return unknown_table(key);
    };
    let hint = likely(table, name).map_or_else(
        || {
            if is_table(table) {
                let names: Vec<_> = ALL.iter().filter(|s| s.table() == table).map(Setting::name).collect();
                format!("[{table}] has {}", names.join(", "))
            } else {
                "`wingbeat config --defaults` lists all keys".into()
            }
        },
        |key| format!("did you mean `{key}`?"),
    );
    ConfigError::new("E-CFG-004", shown, format!("unknown key; {hint}"))
}

pub(super) fn unknown_table(name: &str) -> ConfigError {
    let tables = || TABLES.iter().map(|(table, _)| *table);
    let hint = match (suggest::nearest(name, tables()), elsewhere(name)) {
        (Some(table), _) => format!("did you mean [{table}]?"),
        (None, Some(key)) => format!("did you mean `{key}`?"),
        (None, None) => format!("tables are {}", tables().collect::<Vec<_>>().join(", ")),
    };
    ConfigError::new("E-CFG-003", super::value::escaped(name), format!("unknown table; {hint}"))
}

/// The key that was probably meant: in the same table, of the same name in another, or close in both parts.
fn likely(table: &str, name: &str) -> Option<&'static str> {
    let near_table = suggest::nearest(table, TABLES.iter().map(|(t, _)| *t));
    let within = |table: &str| {
        let near = suggest::nearest(name, ALL.iter().filter(|s| s.table() == table).map(Setting::name))?;
        ALL.iter().find(|s| s.table() == table && s.name() == near).map(|s| s.key)
    };
    within(table).or_else(|| near_table.and_then(within)).or_else(|| elsewhere(name))
}

/// A key of this name, or nearly this name, in any table.
fn elsewhere(name: &str) -> Option<&'static str> {
    let near = suggest::nearest(name, ALL.iter().map(Setting::name))?;
    ALL.iter().find(|s| s.name() == near).map(|s| s.key)
}

/// All settings for people; widths by the widest cell.
pub(super) fn text() -> String {
    let mark = |s: &Setting| match (s.must_match(), s.must_match_by_type()) {
        (true, _) => "yes",
        (_, true) => "by type",
        _ => "",
    };
    let default = |s: &Setting| {
        let text = s.default_text();
        if text.is_empty() { "\"\"".into() } else { text }
    };
    let meaning = |s: &Setting| {
        let mut text = s.meaning().to_owned();
        if !s.follows().is_empty() {
            let _ = write!(text, " Default: {}.", s.follows());
        }
        if !s.cost().is_empty() {
            let _ = write!(text, " Cost: {}.", s.cost());
        }
        if !s.has_effect() {
            text.push_str(" No effect in this version.");
        }
        text
    };
    let head = ["KEY", "DEFAULT", "RANGE", "MUST MATCH", "MEANING"].map(String::from);
    let rows = all().iter().map(|s| [s.key.to_owned(), default(s), s.range(), mark(s).to_owned(), meaning(s)]);
    let rows: Vec<[String; 5]> = std::iter::once(head).chain(rows).collect();
    let width = |column: usize| rows.iter().map(|r| r[column].chars().count()).max().unwrap_or(0);
    let widths = [width(0), width(1), width(2), width(3)];
    let mut out = String::new();
    for row in &rows {
        for (cell, width) in row.iter().zip(widths) {
            let _ = write!(out, "{cell:width$}  ");
        }
        out.push_str(&row[4]);
        out.push('\n');
    }
    out
}
