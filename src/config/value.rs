//! Values of settings: how they are read, shown and bounded.

use std::{fmt, net::SocketAddr, time::Duration};

use crate::NodeAddr;

/// A duration in configuration: `"200ms"` in text.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Span(pub Duration);

impl Span {
    /// So many milliseconds.
    pub const fn millis(ms: u64) -> Self {
        Self(Duration::from_millis(ms))
    }

    /// So many seconds.
    pub const fn secs(s: u64) -> Self {
        Self(Duration::from_secs(s))
    }

    /// The duration.
    pub const fn get(self) -> Duration {
        self.0
    }
}

impl From<Duration> for Span {
    fn from(duration: Duration) -> Self {
        Self(duration)
    }
}

/// Units of durations, longest first, in nanoseconds.
const UNITS: [(&str, u64); 7] = [
    ("d", 86_400_000_000_000),
    ("h", 3_600_000_000_000),
    ("m", 60_000_000_000),
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1_000),
    ("ns", 1),
];

/// In the longest unit, up to hours, that needs no fraction.
impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = self.0.as_nanos();
        if nanos == 0 {
            return f.write_str("0s");
        }
        let fits = |(_, n): &&(&str, u64)| nanos.is_multiple_of(u128::from(*n));
        let (unit, n) = UNITS[1..].iter().find(fits).expect("every duration is a whole number of nanoseconds");
        write!(f, "{}{unit}", nanos / u128::from(*n))
    }
}

impl std::str::FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, unit) = (&text[..split], text[split..].trim());
        if text.starts_with('-') {
            return Err("a duration cannot be negative".into());
        }
        if number.is_empty() {
            return Err("not a duration: write a number and a unit, such as \"200ms\", \"1.5s\" or \"5m\"".into());
        }
        if unit.is_empty() {
            return Err(format!("no unit: write \"{number}ms\" or \"{number}s\" (units are us, ms, s, m, h, d)"));
        }
        let Some((_, n)) = UNITS.iter().find(|(name, _)| *name == unit) else {
            return Err(format!("unknown unit \"{}\": units are us, ms, s, m, h, d", unit.escape_debug()));
        };
        let nanos = nanos(number, *n).ok_or("not a duration, or longer than 584 years")?;
        Ok(Self(Duration::from_nanos(nanos)))
    }
}

/// `number` times `unit`; a fraction finer than a nanosecond is cut off.
fn nanos(number: &str, unit: u64) -> Option<u64> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let whole = whole.parse::<u64>().ok()?.checked_mul(unit)?;
    let digits = u32::try_from(fraction.len()).ok().filter(|&d| d <= 18)?;
    let part = u128::from(fraction.parse::<u64>().ok()?) * u128::from(unit) / 10u128.pow(digits);
    whole.checked_add(u64::try_from(part).ok()?)
}

/// `"auto"` or a number of worker threads.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Workers {
    /// Cores - 1, at least 1.
    #[default]
    Auto,
    /// So many.
    Count(u16),
}

/// `"auto"` or a duration.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum AutoSpan {
    /// By the size of the cluster.
    #[default]
    Auto,
    /// Fixed.
    After(Span),
}

/// `"auto"`, or `true` or `false`.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum AutoBool {
    /// By where the node listens and what it advertises. That is known once it starts, and decided in the configuration that it runs with; `false` before.
    #[default]
    Auto,
    /// Fixed.
    Is(bool),
}

impl AutoBool {
    /// What holds; `auto` that nobody has decided is `false`.
    pub fn holds(self) -> bool {
        matches!(self, Self::Is(true))
    }

    /// As set, or this in place of `auto`.
    #[must_use]
    pub fn or(self, decided: bool) -> Self {
        match self {
            Self::Auto => Self::Is(decided),
            Self::Is(_) => self,
        }
    }
}

/// A value as it came from a file, the environment or code.
#[derive(Clone, Debug)]
pub(super) enum Raw {
    Text(String),
    /// From the environment or a flag: text that may stand for any kind of value.
    Word(String),
    Int(i128),
    Float(f64),
    Bool(bool),
    Span(Duration),
    List(Vec<Raw>),
    Other(&'static str),
}

impl Raw {
    /// What was given, safe to print: escaped and cut.
    pub(super) fn shown(&self) -> String {
        match self {
            Self::Text(text) => format!("\"{}\"", escaped(text)),
            Self::Word(text) => format!("`{}`", escaped(text)),
            Self::Int(n) => n.to_string(),
            Self::Float(n) => n.to_string(),
            Self::Bool(b) => b.to_string(),
            Self::Span(d) => Span(*d).to_string(),
            Self::List(list) => format!("a list of {}", list.len()),
            Self::Other(kind) => format!("a {kind}"),
        }
    }

    fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) | Self::Word(text) => Some(text),
            _ => None,
        }
    }
}

impl From<&toml::Value> for Raw {
    fn from(value: &toml::Value) -> Self {
        match value {
            toml::Value::String(text) => Self::Text(text.clone()),
            toml::Value::Integer(n) => Self::Int(i128::from(*n)),
            toml::Value::Float(n) => Self::Float(*n),
            toml::Value::Boolean(b) => Self::Bool(*b),
            toml::Value::Array(list) => Self::List(list.iter().map(Self::from).collect()),
            toml::Value::Datetime(_) => Self::Other("date"),
            toml::Value::Table(_) => Self::Other("table"),
        }
    }
}

/// Longest piece of a wrong value that an error repeats, in characters.
const SHOWN_MAX: usize = 80;

/// Control and invisible characters escaped, the rest as it is, cut to a length that a line holds.
pub(super) fn escaped(text: &str) -> String {
    let mut out: String =
        text.chars().take(SHOWN_MAX).flat_map(|c| if is_plain(c) { vec![c] } else { c.escape_debug().collect() }).collect();
    if text.chars().nth(SHOWN_MAX).is_some() {
        out.push('…');
    }
    out
}

/// Neither a control character nor one that cannot be seen or that changes how others look.
fn is_plain(c: char) -> bool {
    matches!(c, '"' | '\'') || c.escape_debug().count() == 1
}

/// What a value may be.
#[derive(Copy, Clone, Debug)]
pub(super) enum Bounds {
    Any,
    Int(i64, i64),
    Float(f64, f64),
    Span(Duration, Duration),
    Text(Rule),
}

/// What a text may be.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Rule {
    /// 1 to 64 bytes, printable.
    Name,
    /// As a name, or empty.
    OptionalName,
    /// Letters, digits, `.`, `-`, `_`; 1 to 64 bytes; at most 64 of them.
    Label,
    /// A node's address; at most 256 of them.
    Addr,
    /// 1 to 256 visible ASCII characters; never shown.
    Secret,
    /// A path.
    Path,
}

/// Why a value is refused.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Fault {
    pub(super) code: &'static str,
    pub(super) why: String,
}

/// Wrong kind of value.
pub(super) const WRONG_KIND: &str = "E-CFG-005";
/// Outside its range.
pub(super) const OUT_OF_RANGE: &str = "E-CFG-006";
/// A text with characters or a length that it may not have.
pub(super) const BAD_TEXT: &str = "E-CFG-007";
/// Not an address.
pub(super) const BAD_ADDRESS: &str = "E-CFG-008";

impl Fault {
    fn kind(raw: &Raw, wanted: impl fmt::Display) -> Self {
        Self { code: WRONG_KIND, why: format!("{} is not {wanted}", raw.shown()) }
    }

    fn range(given: impl fmt::Display, lo: impl fmt::Display, hi: impl fmt::Display) -> Self {
        Self { code: OUT_OF_RANGE, why: format!("{given} is out of range: at least {lo}, at most {hi}") }
    }
}

/// A kind of value that a setting can have.
pub(super) trait Value: Clone + PartialEq {
    fn read(raw: &Raw, bounds: Bounds) -> Result<Self, Fault>;
    /// Text that `read` takes as a word; not for secrets, whose text says only whether there is one.
    fn show(&self) -> String;
    /// For values that were set in code.
    fn check(&self, bounds: Bounds) -> Result<(), Fault> {
        let _ = bounds;
        Ok(())
    }
    /// The allowed values, in words.
    fn range(bounds: Bounds) -> String;
}

/// A setting that is one of a few words.
pub(super) trait Choice: Copy + PartialEq + Sized {
    const WORDS: &'static [&'static str];
    fn of(word: &str) -> Option<Self>;
    fn word(&self) -> &'static str;
}

impl<T: Choice> Value for T {
    fn read(raw: &Raw, _: Bounds) -> Result<Self, Fault> {
        raw.text().and_then(Self::of).ok_or_else(|| {
            let near = raw.text().and_then(|t| super::suggest::nearest(t, Self::WORDS.iter().copied()));
            let hint = near.map_or(String::new(), |n| format!("; did you mean \"{n}\"?"));
            Fault::kind(raw, format_args!("one of {}{hint}", Self::WORDS.join(", ")))
        })
    }

    fn show(&self) -> String {
        self.word().into()
    }

    fn range(_: Bounds) -> String {
        Self::WORDS.join(" | ")
    }
}

fn whole(raw: &Raw) -> Result<i128, Fault> {
    match raw {
        Raw::Int(n) => Ok(*n),
        Raw::Word(text) => text.trim().parse().map_err(|_| Fault::kind(raw, "a whole number")),
        _ => Err(Fault::kind(raw, "a whole number")),
    }
}

fn int_bounds(bounds: Bounds, max: i128) -> (i128, i128) {
    match bounds {
        Bounds::Int(lo, hi) => (i128::from(lo), i128::from(hi).min(max)),
        _ => (0, max),
    }
}

macro_rules! integers {
    ($($t:ty),+) => { $(
        impl Value for $t {
            fn read(raw: &Raw, bounds: Bounds) -> Result<Self, Fault> {
                let (n, (lo, hi)) = (whole(raw)?, int_bounds(bounds, i128::from(Self::MAX)));
                if !(lo..=hi).contains(&n) {
                    return Err(Fault::range(n, lo, hi));
                }
                Self::try_from(n).map_err(|_| Fault::range(n, lo, hi))
            }

            fn show(&self) -> String {
                self.to_string()
            }

            fn check(&self, bounds: Bounds) -> Result<(), Fault> {
                Self::read(&Raw::Int(i128::from(*self)), bounds).map(drop)
            }

            fn range(bounds: Bounds) -> String {
                let (lo, hi) = int_bounds(bounds, i128::from(Self::MAX));
                format!("{lo} to {hi}")
            }
        }
    )+ };
}
integers!(u8, u16, u32);

impl Value for f64 {
    fn read(raw: &Raw, bounds: Bounds) -> Result<Self, Fault> {
        let n = match raw {
            Raw::Float(n) => *n,
            Raw::Int(n) => *n as Self,
            Raw::Word(text) => text.trim().parse().map_err(|_| Fault::kind(raw, "a number"))?,
            _ => return Err(Fault::kind(raw, "a number")),
        };
        n.check(bounds).map(|()| n)
    }

    fn show(&self) -> String {
        self.to_string()
    }

    fn check(&self, bounds: Bounds) -> Result<(), Fault> {
        match bounds {
            // Also false for NaN.
            Bounds::Float(lo, hi) if !(lo..=hi).contains(self) => Err(Fault::range(self, lo, hi)),
            _ => Ok(()),
        }
    }

    fn range(bounds: Bounds) -> String {
        match bounds {
            Bounds::Float(lo, hi) => format!("{lo} to {hi}"),
            _ => "a number".into(),
        }
    }
}

impl Value for bool {
    fn read(raw: &Raw, _: Bounds) -> Result<Self, Fault> {
        match raw {
            Raw::Bool(b) => Ok(*b),
            Raw::Word(text) if text == "true" => Ok(true),
            Raw::Word(text) if text == "false" => Ok(false),
            _ => Err(Fault::kind(raw, "true or false")),
        }
    }

    fn show(&self) -> String {
        self.to_string()
    }

    fn range(_: Bounds) -> String {
        "true | false".into()
    }
}

impl Value for Span {
    fn read(raw: &Raw, bounds: Bounds) -> Result<Self, Fault> {
        let span = match raw {
            Raw::Span(d) => Self(*d),
            Raw::Text(text) | Raw::Word(text) => {
                text.trim().parse().map_err(|why| Fault { code: WRONG_KIND, why: format!("{}: {why}", raw.shown()) })?
            }
            Raw::Int(n) if *n < 0 => return Err(Fault { code: OUT_OF_RANGE, why: format!("{n}: a duration cannot be negative") }),
            Raw::Int(_) | Raw::Float(_) => {
                return Err(Fault { code: WRONG_KIND, why: format!("{n} has no unit: write \"{n}ms\" or \"{n}s\"", n = raw.shown()) });
            }
            _ => return Err(Fault::kind(raw, "a duration such as \"200ms\"")),
        };
        span.check(bounds).map(|()| span)
    }

    fn show(&self) -> String {
        self.to_string()
    }

    fn check(&self, bounds: Bounds) -> Result<(), Fault> {
        match bounds {
            Bounds::Span(lo, hi) if !(lo..=hi).contains(&self.0) => Err(Fault::range(self, Self(lo), Self(hi))),
            _ => Ok(()),
        }
    }

    fn range(bounds: Bounds) -> String {
        match bounds {
            Bounds::Span(lo, hi) => format!("{} to {}", Self(lo), Self(hi)),
            _ => "a duration".into(),
        }
    }
}

impl Value for AutoSpan {
    fn read(raw: &Raw, bounds: Bounds) -> Result<Self, Fault> {
        if raw.text() == Some("auto") { Ok(Self::Auto) } else { Span::read(raw, bounds).map(Self::After) }
    }

    fn show(&self) -> String {
        match self {
            Self::Auto => "auto".into(),
            Self::After(span) => span.show(),
        }
    }

    fn check(&self, bounds: Bounds) -> Result<(), Fault> {
        match self {
            Self::Auto => Ok(()),
            Self::After(span) => span.check(bounds),
        }
    }

    fn range(bounds: Bounds) -> String {
        format!("auto | {}", Span::range(bounds))
    }
}

impl Value for AutoBool {
    fn read(raw: &Raw, bounds: Bounds) -> Result<Self, Fault> {
        if raw.text() == Some("auto") {
            return Ok(Self::Auto);
        }
        bool::read(raw, bounds).map(Self::Is).map_err(|_| Fault::kind(raw, "\"auto\", true or false"))
    }

    fn show(&self) -> String {
        match self {
            Self::Auto => "auto".into(),
            Self::Is(flag) => flag.show(),
        }
    }

    fn range(bounds: Bounds) -> String {
        format!("auto | {}", bool::range(bounds))
    }
}

impl Value for Workers {
    fn read(raw: &Raw, bounds: Bounds) -> Result<Self, Fault> {
        if raw.text() == Some("auto") { Ok(Self::Auto) } else { u16::read(raw, bounds).map(Self::Count) }
    }

    fn show(&self) -> String {
        match self {
            Self::Auto => "auto".into(),
            Self::Count(n) => n.show(),
        }
    }

    fn check(&self, bounds: Bounds) -> Result<(), Fault> {
        match self {
            Self::Auto => Ok(()),
            Self::Count(n) => n.check(bounds),
        }
    }

    fn range(bounds: Bounds) -> String {
        format!("auto | {}", u16::range(bounds))
    }
}

impl Value for SocketAddr {
    fn read(raw: &Raw, _: Bounds) -> Result<Self, Fault> {
        let text = raw.text().ok_or_else(|| Fault::kind(raw, "an IP address and port such as \"127.0.0.1:7301\""))?;
        text.trim().parse().map_err(|_| {
            let why = format!("{} is not an IP address and port: write \"127.0.0.1:7301\", for IPv6 \"[::1]:7301\"", raw.shown());
            Fault { code: BAD_ADDRESS, why }
        })
    }

    fn show(&self) -> String {
        self.to_string()
    }

    fn range(_: Bounds) -> String {
        "IP:port, port 0 takes a free one".into()
    }
}

impl Value for NodeAddr {
    fn read(raw: &Raw, _: Bounds) -> Result<Self, Fault> {
        let text = raw.text().ok_or_else(|| Fault::kind(raw, "an address such as \"node1:7301\""))?;
        text.trim().parse().map_err(|e: crate::BadAddr| Fault { code: BAD_ADDRESS, why: e.to_string() })
    }

    fn show(&self) -> String {
        self.to_string()
    }

    fn range(_: Bounds) -> String {
        "host:port".into()
    }
}

/// Members of a role that must be there: `"backend=3"`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RoleMin {
    /// The role.
    pub role: String,
    /// So many members have it, at least.
    pub members: u32,
}

impl fmt::Display for RoleMin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.role, self.members)
    }
}

impl Value for RoleMin {
    fn read(raw: &Raw, bounds: Bounds) -> Result<Self, Fault> {
        let wanted = || Fault::kind(raw, "a role and how many members have it, such as \"backend=3\"");
        let (role, members) = raw.text().and_then(|t| t.split_once('=')).ok_or_else(wanted)?;
        let read = Self { role: role.trim().to_owned(), members: members.trim().parse().map_err(|_| wanted())? };
        read.check(bounds).map(|()| read)
    }

    fn show(&self) -> String {
        self.to_string()
    }

    fn check(&self, bounds: Bounds) -> Result<(), Fault> {
        self.role.check(Bounds::Text(Rule::Label))?;
        let (lo, hi) = int_bounds(bounds, i128::from(u32::MAX));
        if (lo..=hi).contains(&i128::from(self.members)) { Ok(()) } else { Err(Fault::range(self, lo, hi)) }
    }

    fn range(bounds: Bounds) -> String {
        let (lo, hi) = int_bounds(bounds, i128::from(u32::MAX));
        format!("\"role={lo}\" to \"role={hi}\"")
    }
}

impl Value for String {
    fn read(raw: &Raw, bounds: Bounds) -> Result<Self, Fault> {
        let text = raw.text().ok_or_else(|| Fault::kind(raw, "text in quotes"))?;
        // A space in front of an address means nothing, and would make it none for everybody who reads it later.
        let text = if matches!(bounds, Bounds::Text(Rule::Addr)) { text.trim() } else { text }.to_owned();
        text.check(bounds).map(|()| text)
    }

    fn show(&self) -> String {
        self.clone()
    }

    fn check(&self, bounds: Bounds) -> Result<(), Fault> {
        match bounds {
            Bounds::Text(rule) => rule.check(self),
            _ => Ok(()),
        }
    }

    fn range(bounds: Bounds) -> String {
        match bounds {
            Bounds::Text(rule) => rule.in_words().into(),
            _ => "text".into(),
        }
    }
}

/// `"off"` (for text: `""`) stands for none.
impl<T: Value + Off> Value for Option<T> {
    fn read(raw: &Raw, bounds: Bounds) -> Result<Self, Fault> {
        if raw.text() == Some(T::OFF) || matches!((raw, T::OFF), (Raw::Bool(false), "off")) {
            return Ok(None);
        }
        T::read(raw, bounds).map(Some)
    }

    fn show(&self) -> String {
        match self {
            None => T::OFF.into(),
            Some(value) => value.show(),
        }
    }

    fn check(&self, bounds: Bounds) -> Result<(), Fault> {
        self.as_ref().map_or(Ok(()), |value| value.check(bounds))
    }

    fn range(bounds: Bounds) -> String {
        if T::OFF.is_empty() { T::range(bounds) } else { format!("{} | {}", T::OFF, T::range(bounds)) }
    }
}

/// How "none" is written.
pub(super) trait Off {
    const OFF: &'static str = "off";
}
impl Off for Span {}
impl Off for SocketAddr {}
impl Off for u32 {}
impl Off for NodeAddr {
    const OFF: &'static str = "";
}
impl Off for String {
    const OFF: &'static str = "";
}

fn list(raw: &Raw) -> Result<Vec<Raw>, Fault> {
    match raw {
        Raw::List(list) => Ok(list.clone()),
        Raw::Word(text) => Ok(bare(text).split(',').map(str::trim).filter(|t| !t.is_empty()).map(|t| Raw::Word(t.into())).collect()),
        _ => Err(Fault::kind(raw, "a list in brackets")),
    }
}

/// A list in a variable or a flag may be written as in a file, too: no entry has brackets or quotes at its ends.
fn bare(text: &str) -> String {
    let Some(inner) = text.trim().strip_prefix('[').and_then(|t| t.strip_suffix(']')) else { return text.into() };
    // An IPv6 address alone is in brackets as well, and has its port behind them.
    inner.split(',').map(|entry| entry.trim().trim_matches(['"', '\''])).collect::<Vec<_>>().join(",")
}

/// Longest list of a setting.
const LIST_MAX: usize = 256;

impl<T: Value + Item> Value for Vec<T> {
    fn read(raw: &Raw, bounds: Bounds) -> Result<Self, Fault> {
        let list = list(raw)?;
        if list.len() > LIST_MAX {
            return Err(Fault { code: OUT_OF_RANGE, why: format!("{} entries, at most {LIST_MAX}", list.len()) });
        }
        let nth =
            |(i, raw): (usize, &Raw)| T::read(raw, bounds).map_err(|f| Fault { code: f.code, why: format!("entry {}: {}", i + 1, f.why) });
        list.iter().enumerate().map(nth).collect()
    }

    fn show(&self) -> String {
        self.iter().map(Value::show).collect::<Vec<_>>().join(",")
    }

    fn check(&self, bounds: Bounds) -> Result<(), Fault> {
        if self.len() > LIST_MAX {
            return Err(Fault { code: OUT_OF_RANGE, why: format!("{} entries, at most {LIST_MAX}", self.len()) });
        }
        let nth =
            |(i, item): (usize, &T)| item.check(bounds).map_err(|f| Fault { code: f.code, why: format!("entry {}: {}", i + 1, f.why) });
        self.iter().enumerate().try_for_each(nth)
    }

    fn range(bounds: Bounds) -> String {
        format!("list: {}", T::range(bounds))
    }
}

/// What a list can hold.
pub(super) trait Item {}
impl Item for String {}
impl Item for u16 {}
impl Item for RoleMin {}

impl Rule {
    fn check(self, text: &str) -> Result<(), Fault> {
        let bad = |why: String| Err(Fault { code: BAD_TEXT, why });
        let shown = || if self == Self::Secret { "it".into() } else { format!("\"{}\"", escaped(text)) };
        let long = |max: usize| bad(format!("{} has {} bytes, at most {max}", shown(), text.len()));
        match self {
            Self::Addr => {
                let addr = text.parse::<NodeAddr>().map_err(|e| Fault { code: BAD_ADDRESS, why: e.to_string() })?;
                if addr.port == 0 {
                    let why = format!("\"{addr}\" has port 0: nobody can be asked there; name the port that the node listens on");
                    return Err(Fault { code: BAD_ADDRESS, why });
                }
                Ok(())
            }
            Self::Name if text.is_empty() => bad("empty: give a name of 1 to 64 bytes".into()),
            Self::Name | Self::OptionalName if text.len() > 64 => long(64),
            Self::Name | Self::OptionalName if !text.chars().all(is_plain) || text.trim() != text => {
                bad(format!("{} has control or invisible characters, or begins or ends with a space: use printable ones", shown()))
            }
            Self::Label if text.is_empty() => bad("empty: give a name of 1 to 64 bytes".into()),
            Self::Label if text.len() > 64 => long(64),
            Self::Label if !text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_')) => {
                bad(format!("{} has other characters than letters, digits, \".\", \"-\" and \"_\"", shown()))
            }
            Self::Secret if !(1..=256).contains(&text.len()) => bad(format!("it has {} bytes: at least 1, at most 256", text.len())),
            Self::Secret if !text.bytes().all(|b| b.is_ascii_graphic()) => {
                bad("it has spaces, control characters or characters outside ASCII, which no HTTP header carries".into())
            }
            Self::Path if text.len() > 4096 => long(4096),
            Self::Path if text.chars().any(char::is_control) => bad(format!("{} has control characters", shown())),
            _ => Ok(()),
        }
    }

    const fn in_words(self) -> &'static str {
        match self {
            Self::Name => "1 to 64 bytes, printable",
            Self::OptionalName => "up to 64 bytes, printable",
            Self::Label => "letters, digits, . - _",
            Self::Addr => "host:port",
            Self::Secret => "1 to 256 visible characters",
            Self::Path => "a path",
        }
    }
}
