//! What is known of each setting, and the macro that records it.

use std::time::Duration;

use super::{
    Config,
    value::{Bounds, Fault, Raw, Rule},
};

/// A key of the configuration: what [`Config::reference`] lists.
#[derive(Copy, Clone)]
pub struct Setting {
    /// `table.key`.
    pub key: &'static str,
    pub(super) meaning: &'static str,
    pub(super) spec: Spec,
    pub(super) range: fn() -> String,
    pub(super) get: fn(&Config) -> String,
    pub(super) set: fn(&mut Config, &Raw) -> Result<(), Fault>,
    pub(super) copy: fn(&mut Config, &Config),
    pub(super) same: fn(&Config, &Config) -> bool,
    pub(super) check: fn(&Config) -> Result<(), Fault>,
}

impl Setting {
    /// The table, the part before the dot.
    pub fn table(&self) -> &'static str {
        self.key.split_once('.').map_or(self.key, |(table, _)| table)
    }

    /// The part after the dot.
    pub fn name(&self) -> &'static str {
        self.key.split_once('.').map_or(self.key, |(_, name)| name)
    }

    /// One line.
    pub fn meaning(&self) -> &'static str {
        self.meaning.trim()
    }

    /// The allowed values, with their unit.
    pub fn range(&self) -> String {
        let range = (self.range)();
        if self.spec.unit.is_empty() { range } else { format!("{range} {}", self.spec.unit) }
    }

    /// The unit of a number; empty where the value has none, or names its own.
    pub fn unit(&self) -> &'static str {
        self.spec.unit
    }

    /// What it costs to raise it, or to change it at all; empty where there is nothing to say.
    pub fn cost(&self) -> &'static str {
        self.spec.cost
    }

    /// How the default follows another setting, in words; empty if it does not.
    pub fn follows(&self) -> String {
        match self.spec.follows {
            None => String::new(),
            Some((interval, n)) => format!("{n} x {}", interval.key()),
        }
    }

    /// The default of the preset `lan`.
    pub fn default_text(&self) -> String {
        (self.get)(&Config::default())
    }

    /// All members must have the same value; a node with another one is refused when it joins.
    pub fn must_match(&self) -> bool {
        self.spec.matching == Match::Join
    }

    /// As [`must_match`](Self::must_match), but compared by entity type when the type is registered.
    pub fn must_match_by_type(&self) -> bool {
        self.spec.matching == Match::Type
    }

    /// `false`: the key is known, and nothing in this version reads it.
    pub fn has_effect(&self) -> bool {
        self.spec.effect
    }

    /// Its value is never shown.
    pub fn is_secret(&self) -> bool {
        self.spec.is_secret()
    }

    /// Changes while the node runs; the others need a restart.
    pub fn is_live(&self) -> bool {
        matches!(self.table(), "limits" | "tls")
    }
}

impl std::fmt::Debug for Setting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.key)
    }
}

/// Where a value must be the same on all nodes.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Match {
    No,
    Join,
    Type,
}

/// The intervals that other times are multiples of.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Interval {
    Gossip,
    Heartbeat,
}

impl Interval {
    pub(super) const fn key(self) -> &'static str {
        match self {
            Self::Gossip => "membership.gossip_interval",
            Self::Heartbeat => "detector.heartbeat_interval",
        }
    }
}

/// What a table says of a key.
#[derive(Copy, Clone, Debug)]
pub(super) struct Spec {
    pub(super) bounds: Bounds,
    pub(super) unit: &'static str,
    pub(super) cost: &'static str,
    pub(super) matching: Match,
    pub(super) effect: bool,
    pub(super) follows: Option<(Interval, u32)>,
}

impl Spec {
    pub(super) const fn any() -> Self {
        Self { bounds: Bounds::Any, unit: "", cost: "", matching: Match::No, effect: true, follows: None }
    }

    pub(super) const fn int(lo: i64, hi: i64) -> Self {
        Self { bounds: Bounds::Int(lo, hi), ..Self::any() }
    }

    pub(super) const fn float(lo: f64, hi: f64) -> Self {
        Self { bounds: Bounds::Float(lo, hi), ..Self::any() }
    }

    /// Bounds in milliseconds.
    pub(super) const fn span(lo: u64, hi: u64) -> Self {
        Self { bounds: Bounds::Span(Duration::from_millis(lo), Duration::from_millis(hi)), ..Self::any() }
    }

    pub(super) const fn text(rule: Rule) -> Self {
        Self { bounds: Bounds::Text(rule), ..Self::any() }
    }

    pub(super) const fn is_secret(&self) -> bool {
        matches!(self.bounds, Bounds::Text(Rule::Secret))
    }

    pub(super) const fn unit(self, unit: &'static str) -> Self {
        Self { unit, ..self }
    }

    pub(super) const fn cost(self, cost: &'static str) -> Self {
        Self { cost, ..self }
    }

    pub(super) const fn must_match(self) -> Self {
        Self { matching: Match::Join, ..self }
    }

    pub(super) const fn must_match_by_type(self) -> Self {
        Self { matching: Match::Type, ..self }
    }

    /// Nothing in this version reads it.
    pub(super) const fn unused(self) -> Self {
        Self { effect: false, ..self }
    }

    pub(super) const fn gossips(self, n: u32) -> Self {
        Self { follows: Some((Interval::Gossip, n)), ..self }
    }

    pub(super) const fn heartbeats(self, n: u32) -> Self {
        Self { follows: Some((Interval::Heartbeat, n)), ..self }
    }
}

/// A day, an hour, a minute, in milliseconds: bounds of durations.
pub(super) const DAY: u64 = 24 * HOUR;
pub(super) const HOUR: u64 = 60 * MINUTE;
pub(super) const MINUTE: u64 = 60_000;

/// Declares a table: the struct, its defaults, and what is known of each key. The doc line of a field is the meaning that users read.
macro_rules! table {
    ($(#[$meta:meta])* $name:ident in $table:ident {
        $($(#[doc = $doc:literal])+ $field:ident: $ty:ty = $default:expr, $spec:expr;)+
    }) => {
        $(#[$meta])*
        #[derive(Clone, PartialEq)]
        #[non_exhaustive]
        pub struct $name { $($(#[doc = $doc])+ pub $field: $ty,)+ }

        impl ::std::fmt::Debug for $name {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                let mut fields = f.debug_struct(stringify!($name));
                $(match ($spec).is_secret() {
                    true => fields.field(stringify!($field), &format_args!("(hidden)")),
                    false => fields.field(stringify!($field), &self.$field),
                };)+
                fields.finish()
            }
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $($field: $default),+ }
            }
        }

        pub(super) const SETTINGS: &[$crate::config::setting::Setting] = &[$(
            $crate::config::setting::Setting {
                key: concat!(stringify!($table), ".", stringify!($field)),
                meaning: concat!($($doc),+),
                spec: $spec,
                range: || <$ty as $crate::config::value::Value>::range(($spec).bounds),
                get: |config| $crate::config::value::Value::show(&config.$table.$field),
                set: |config, raw| {
                    config.$table.$field = $crate::config::value::Value::read(raw, ($spec).bounds)?;
                    Ok(())
                },
                copy: |to, from| to.$table.$field.clone_from(&from.$table.$field),
                same: |a, b| a.$table.$field == b.$table.$field,
                check: |config| $crate::config::value::Value::check(&config.$table.$field, ($spec).bounds),
            },
        )+];
    };
}
pub(super) use table;
