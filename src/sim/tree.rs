//! A TOML document whose every value knows its line, so that each complaint about a scenario can name line and field.

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use toml::de::{DeTable, DeValue};

/// Longest run, virtual time, and longest span of anything in it: sums of some of them are still moments of the world.
pub(super) const DURATION_MAX: Duration = Duration::from_secs(366 * 86_400);

/// Where something of a scenario was said.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Place {
    /// In this line of the file, from 1.
    Line(usize),
    /// Nowhere: it is missing.
    Nowhere,
    /// By this override.
    Set(Arc<str>),
}

impl Place {
    /// The line in the file; 0 = not in the file.
    pub fn line(&self) -> usize {
        if let Self::Line(line) = *self { line } else { 0 }
    }

    /// The file's lines in their order, then what is missing, then overrides.
    pub(super) fn rank(&self) -> usize {
        match self {
            Self::Line(line) => *line,
            Self::Nowhere => usize::MAX - 1,
            Self::Set(_) => usize::MAX,
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Line(line) => write!(f, "line {line}"),
            Self::Nowhere => f.write_str("nowhere"),
            Self::Set(assignment) => write!(f, "--set {assignment}"),
        }
    }
}

/// What is wrong with a scenario, and where.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub struct ScenarioError {
    /// Where it was said.
    pub place: Place,
    /// What is wrong and what to do.
    pub what: String,
    /// What else is wrong, where all of it is known at once.
    pub more: Vec<ScenarioError>,
}

impl ScenarioError {
    pub(super) fn new(place: Place, what: impl Into<String>) -> Self {
        Self { place, what: what.into(), more: Vec::new() }
    }

    /// All of these as one, in the order of their places; nothing if there are none.
    pub(super) fn all(mut errors: Vec<Self>) -> Option<Self> {
        errors.sort_by_key(|e| e.place.rank());
        let mut errors = errors.into_iter();
        let first = errors.next()?;
        Some(Self { more: errors.collect(), ..first })
    }
}

/// Each in a line of its own.
impl fmt::Display for ScenarioError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            Place::Nowhere => f.write_str(&self.what)?,
            place => write!(f, "{place}: {}", self.what)?,
        }
        self.more.iter().try_for_each(|e| write!(f, "\n  {e}"))
    }
}

/// A value and where it was said.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Item {
    pub place: Place,
    pub value: Value,
}

/// A value.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Value {
    Text(String),
    Int(i64),
    Float(f64),
    Bool(bool),
    List(Vec<Item>),
    Table(BTreeMap<String, Item>),
    /// Something no scenario uses (a date).
    Other,
}

impl Item {
    /// Parses a whole document.
    pub(super) fn document(text: &str) -> Result<Self, ScenarioError> {
        Self::parse(text, &Source::file(text))
    }

    fn parse(text: &str, source: &Source) -> Result<Self, ScenarioError> {
        let table = DeTable::parse(text).map_err(|e| {
            let place = e.span().map_or(Place::Nowhere, |s| source.place(s.start));
            ScenarioError::new(place, format!("no TOML: {}", e.message()))
        })?;
        Ok(Self { place: source.place(0), value: Value::Table(table_of(table.get_ref(), source)?) })
    }

    pub(super) fn error(&self, what: impl Into<String>) -> ScenarioError {
        ScenarioError::new(self.place.clone(), what)
    }

    /// The value, or of many what they are.
    fn shown(&self) -> String {
        match &self.value {
            Value::Text(t) => format!("\"{t}\""),
            Value::Int(i) => i.to_string(),
            Value::Float(x) => format!("{x:?}"),
            Value::Bool(b) => b.to_string(),
            Value::List(_) => "a list".into(),
            Value::Table(_) => "a table".into(),
            Value::Other => "a date".into(),
        }
    }

    pub(super) fn expected(&self, field: &str, want: &str) -> ScenarioError {
        self.error(format!("`{field}` is {}; it must be {want}", self.shown()))
    }

    pub(super) fn text(&self, field: &str) -> Result<&str, ScenarioError> {
        match &self.value {
            Value::Text(t) => Ok(t),
            _ => Err(self.expected(field, "a text in quotes")),
        }
    }

    pub(super) fn bool(&self, field: &str) -> Result<bool, ScenarioError> {
        match self.value {
            Value::Bool(b) => Ok(b),
            _ => Err(self.expected(field, "true or false")),
        }
    }

    /// An integer from `min` to `max`.
    pub(super) fn int(&self, field: &str, min: u64, max: u64) -> Result<u64, ScenarioError> {
        let Value::Int(i) = self.value else { return Err(self.expected(field, &format!("an integer from {min} to {max}"))) };
        match u64::try_from(i) {
            Ok(n) if (min..=max).contains(&n) => Ok(n),
            _ => Err(self.error(format!("`{field}` is {i}; it must be from {min} to {max}"))),
        }
    }

    /// A number from `min` to `max`.
    pub(super) fn number(&self, field: &str, min: f64, max: f64) -> Result<f64, ScenarioError> {
        let x = match self.value {
            Value::Int(i) => i as f64,
            Value::Float(x) => x,
            _ => return Err(self.expected(field, &format!("a number from {min} to {max}"))),
        };
        if (min..=max).contains(&x) { Ok(x) } else { Err(self.error(format!("`{field}` is {x}; it must be from {min} to {max}"))) }
    }

    /// A duration with a unit, no longer than the longest run.
    pub(super) fn duration(&self, field: &str) -> Result<Duration, ScenarioError> {
        let text = match &self.value {
            Value::Text(t) => t,
            _ => return Err(self.expected(field, "a duration with its unit, like \"200ms\"")),
        };
        let span = parse_duration(text)
            .ok_or_else(|| self.expected(field, "a duration with its unit: ns, us, ms, s, m, h or d, like \"200ms\""))?;
        if span > DURATION_MAX {
            return Err(self.expected(field, "at most 366d"));
        }
        Ok(span)
    }

    pub(super) fn list(&self, field: &str) -> Result<&[Item], ScenarioError> {
        match &self.value {
            Value::List(l) => Ok(l),
            _ => Err(self.expected(field, "a list")),
        }
    }

    pub(super) fn table(&self, field: &str) -> Result<&BTreeMap<String, Item>, ScenarioError> {
        match &self.value {
            Value::Table(t) => Ok(t),
            _ => Err(self.expected(field, "a table")),
        }
    }

    fn table_mut(&mut self) -> Option<&mut BTreeMap<String, Item>> {
        if let Value::Table(t) = &mut self.value { Some(t) } else { None }
    }

    /// The same value for the configuration's own reader.
    pub(super) fn to_toml(&self) -> toml::Value {
        match &self.value {
            Value::Text(t) => toml::Value::String(t.clone()),
            Value::Int(i) => toml::Value::Integer(*i),
            Value::Float(x) => toml::Value::Float(*x),
            Value::Bool(b) => toml::Value::Boolean(*b),
            Value::List(l) => toml::Value::Array(l.iter().map(Self::to_toml).collect()),
            Value::Table(t) => toml::Value::Table(t.iter().map(|(k, v)| (k.clone(), v.to_toml())).collect()),
            Value::Other => toml::Value::String(String::new()),
        }
    }
}

/// Complains about the first key of `table` that is not in `known`.
pub(super) fn refuse_unknown(table: &BTreeMap<String, Item>, place: &str, known: &[&str]) -> Result<(), ScenarioError> {
    for (key, item) in table {
        if !known.contains(&key.as_str()) {
            return Err(item.error(format!("unknown key `{key}` in {place}{}", did_you_mean(key, known))));
        }
    }
    Ok(())
}

/// "; did you mean `x`?" if one of `known` is close, else the list of what there is.
pub(super) fn did_you_mean(word: &str, known: &[&str]) -> String {
    let best = known.iter().map(|k| (distance(word, k), *k)).min();
    match best {
        Some((d, k)) if d <= ((word.len() + 1) / 3).clamp(1, 4) => format!("; did you mean `{k}`?"),
        _ => format!("; there are: {}", known.join(", ")),
    }
}

/// Edits (insert, delete, replace) between two words.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().take(64).collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.chars().take(64).enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, cb) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(ca != *cb);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

/// A duration such as `200ms`, `1.5s`; one number and one unit.
pub(super) fn parse_duration(text: &str) -> Option<Duration> {
    let text = text.trim();
    let unit = text.find(|c: char| c.is_ascii_alphabetic())?;
    let (number, unit) = text.split_at(unit);
    let nanos_per: u64 = match unit {
        "ns" => 1,
        "us" | "µs" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" | "min" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        "d" => 86_400_000_000_000,
        _ => return None,
    };
    let number = number.trim();
    if let Ok(whole) = number.parse::<u64>() {
        return Some(Duration::from_nanos(whole.checked_mul(nanos_per)?));
    }
    let x: f64 = number.parse().ok()?;
    let nanos = x * nanos_per as f64;
    (x >= 0.0 && nanos < 1e19).then(|| Duration::from_nanos(nanos as u64))
}

/// Puts `key=value` into the document: a scenario's key by its path (`nodes`, `network.loss`), or a configuration key
/// (`membership.gossip_interval`, with or without `config.` before it). `scenario_tables`: the paths of the tables that a scenario has.
pub(super) fn override_with(document: &mut Item, assignment: &str, scenario_tables: &[&str]) -> Result<(), ScenarioError> {
    let place = Place::Set(assignment.into());
    let bad = |what: &str| ScenarioError::new(place.clone(), what);
    let (key, value) = assignment.split_once('=').ok_or_else(|| bad("write key=value"))?;
    let key = key.trim().replace('"', "");
    let below = |table: &str| key.strip_prefix(table)?.strip_prefix('.');
    // The longest: one of them may lie in another.
    let inside = scenario_tables.iter().filter_map(|table| Some((*table, below(table)?))).max_by_key(|(table, _)| table.len());
    let (table, rest) = match inside {
        Some(inside) => inside,
        None if key.contains('.') => ("config", below("config").unwrap_or(&key)),
        None => ("", key.as_str()),
    };
    if rest.is_empty() {
        return Err(bad("no key before the `=`"));
    }
    let value = match value_of_text(value.trim(), &place) {
        // The setting knows whether it is a number: 1.10 may be a version. So is a name what it is written as.
        Value::Int(_) | Value::Float(_) | Value::Bool(_) if table == "config" || key == "name" => Value::Text(value.trim().to_owned()),
        value => value,
    };
    let mut inner = document;
    for part in table.split('.').filter(|part| !part.is_empty()) {
        let new = || Item { place: place.clone(), value: Value::Table(BTreeMap::new()) };
        inner = inner.table_mut().ok_or_else(|| bad(&no_table(table)))?.entry(part.to_owned()).or_insert_with(new);
    }
    let inner = inner.table_mut().ok_or_else(|| bad(&no_table(table)))?;
    // Written the other way it would be there twice.
    if let Some((part, below)) = rest.split_once('.')
        && let Some(part) = inner.get_mut(part).and_then(Item::table_mut)
    {
        part.remove(below);
    }
    inner.insert(rest.to_owned(), Item { place: place.clone(), value });
    Ok(())
}

fn no_table(name: &str) -> String {
    format!("`{name}` is no table in this scenario")
}

/// TOML if it is, otherwise a bare text, so that `--set a.b=200ms` needs no quotes.
fn value_of_text(text: &str, place: &Place) -> Value {
    let source = format!("x = {text}");
    if let Ok(Item { value: Value::Table(mut t), .. }) = Item::parse(&source, &Source::Override(place.clone()))
        && t.len() == 1
        && let Some(item) = t.remove("x")
        && item.value != Value::Other
    {
        return item.value;
    }
    Value::Text(text.to_owned())
}

/// What a text comes from.
enum Source {
    /// A file, with the offsets at which its lines start.
    File(Vec<usize>),
    Override(Place),
}

impl Source {
    fn file(text: &str) -> Self {
        Self::File(std::iter::once(0).chain(text.bytes().enumerate().filter(|(_, b)| *b == b'\n').map(|(i, _)| i + 1)).collect())
    }

    fn place(&self, offset: usize) -> Place {
        match self {
            Self::File(starts) => Place::Line(starts.partition_point(|start| *start <= offset)),
            Self::Override(place) => place.clone(),
        }
    }
}

fn table_of(table: &DeTable<'_>, source: &Source) -> Result<BTreeMap<String, Item>, ScenarioError> {
    let mut out = BTreeMap::new();
    for (key, value) in table {
        let place = source.place(key.span().start);
        let value = value_of(value.get_ref(), &place, source)?;
        out.insert(key.get_ref().to_string(), Item { place, value });
    }
    Ok(out)
}

fn value_of(value: &DeValue<'_>, place: &Place, source: &Source) -> Result<Value, ScenarioError> {
    Ok(match value {
        DeValue::String(s) => Value::Text(s.to_string()),
        DeValue::Integer(i) => match i64::from_str_radix(i.as_str(), i.radix()) {
            Ok(i) => Value::Int(i),
            Err(_) => return Err(ScenarioError::new(place.clone(), format!("{i} is larger than any number used here"))),
        },
        DeValue::Float(x) => match x.as_str().parse::<f64>() {
            Ok(x) if x.is_finite() => Value::Float(x),
            _ => return Err(ScenarioError::new(place.clone(), format!("{x} is no finite number"))),
        },
        DeValue::Boolean(b) => Value::Bool(*b),
        DeValue::Datetime(_) => Value::Other,
        DeValue::Array(list) => {
            let mut items = Vec::new();
            for item in list.iter() {
                let place = source.place(item.span().start);
                let value = value_of(item.get_ref(), &place, source)?;
                items.push(Item { place, value });
            }
            Value::List(items)
        }
        DeValue::Table(t) => Value::Table(table_of(t, source)?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_knows_its_line() {
        let doc = Item::document("a = 1\n\n[t]\nb = [1,\n \"x\"]\n[[at]]\nc = 2\n").unwrap();
        let root = doc.table("").unwrap();
        assert_eq!(root["a"].place, Place::Line(1));
        let b = &root["t"].table("t").unwrap()["b"];
        assert_eq!((b.place.line(), b.list("b").unwrap()[1].place.line()), (4, 5));
        assert_eq!(root["at"].list("at").unwrap()[0].table("at").unwrap()["c"].place.line(), 7);
    }

    #[test]
    fn a_broken_document_names_the_line() {
        assert_eq!(Item::document("a = 1\nb = = 2\n").unwrap_err().place.line(), 2);
    }

    #[test]
    fn durations_need_a_unit() {
        assert_eq!(parse_duration("200ms"), Some(Duration::from_millis(200)));
        assert_eq!(parse_duration("1.5s"), Some(Duration::from_millis(1500)));
        for bad in ["200", "ms", "-1s", "1 fortnight", "99999999999999999999s"] {
            assert_eq!(parse_duration(bad), None, "{bad}");
        }
    }

    #[test]
    fn overrides_reach_scenario_and_configuration() {
        let mut doc = Item::document("nodes = 3\n").unwrap();
        let tables = &["network", "expect"];
        for set in ["nodes=50", "network.loss = 0.5", "config.\"membership.gossip_interval\"=200ms", "cluster.app_version=1.10"] {
            override_with(&mut doc, set, tables).unwrap();
        }
        let root = doc.table("").unwrap();
        assert_eq!(root["nodes"].value, Value::Int(50));
        assert_eq!(root["network"].table("").unwrap()["loss"].value, Value::Float(0.5));
        let config = root["config"].table("").unwrap();
        assert_eq!(config["membership.gossip_interval"].value, Value::Text("200ms".into()));
        assert_eq!(config["cluster.app_version"].value, Value::Text("1.10".into()), "no number");
        assert!(override_with(&mut doc, "nodes", tables).unwrap_err().what.contains("key=value"));
    }

    #[test]
    fn overrides_reach_into_tables_of_tables() {
        for text in ["[network]\nburst = { bad = 0.1, loss = 1.0 }\n", "[network.burst]\nloss = 0.1\n", ""] {
            let mut doc = Item::document(text).unwrap();
            override_with(&mut doc, "network.burst.loss=0.5", &["network", "network.burst"]).unwrap();
            let network = &doc.table("").unwrap()["network"];
            let burst = network.table("").unwrap()["burst"].table("").unwrap();
            assert_eq!(burst["loss"].value, Value::Float(0.5), "{text}");
        }
        let mut doc = Item::document("[network]\nburst = 3\n").unwrap();
        let error = override_with(&mut doc, "network.burst.loss=0.5", &["network", "network.burst"]).unwrap_err();
        assert_eq!(error.to_string(), "--set network.burst.loss=0.5: `network.burst` is no table in this scenario");
    }

    #[test]
    fn a_name_is_a_text_whatever_it_looks_like() {
        for name in ["foo", "5", "1.5", "true"] {
            let mut doc = Item::document("").unwrap();
            override_with(&mut doc, &format!("name={name}"), &[]).unwrap();
            assert_eq!(doc.table("").unwrap()["name"].value, Value::Text(name.into()));
        }
    }

    #[test]
    fn what_an_override_says_is_in_no_line() {
        let mut doc = Item::document("nodes = 3\n").unwrap();
        override_with(&mut doc, "roles={ a = [\"x\"] }", &[]).unwrap();
        let list = &doc.table("").unwrap()["roles"].table("").unwrap()["a"];
        let set = Place::Set("roles={ a = [\"x\"] }".into());
        assert_eq!((&list.place, &list.list("").unwrap()[0].place), (&set, &set));
    }

    #[test]
    fn many_errors_stand_in_the_order_of_the_file() {
        let at = |place: Place| ScenarioError::new(place, "wrong");
        let all = ScenarioError::all(vec![at(Place::Set("a=1".into())), at(Place::Nowhere), at(Place::Line(7)), at(Place::Line(3))]);
        assert_eq!(all.unwrap().to_string(), "line 3: wrong\n  line 7: wrong\n  wrong\n  --set a=1: wrong");
        assert_eq!(ScenarioError::all(vec![]), None);
    }

    #[test]
    fn close_words_are_suggested() {
        assert_eq!(did_you_mean("nodez", &["nodes", "seed"]), "; did you mean `nodes`?");
        assert!(did_you_mean("wipe", &["time", "do", "nodes"]).contains("there are"), "half of it is no slip");
        assert!(did_you_mean("something", &["nodes", "seed"]).contains("there are: nodes, seed"));
    }
}
