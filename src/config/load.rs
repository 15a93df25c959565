//! Files, the environment, and layers of both.

use std::{
    ffi::{OsStr, OsString},
    fs::File,
    io::Read,
    path::Path,
};

use toml::de::{DeTable, DeValue};

use super::{Config, ConfigError, ConfigErrors, reference, suggest, value::Raw};

/// Largest configuration file.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// What all variables of ours begin with.
const PREFIX: &str = "WINGBEAT_";
/// No settings: the filter of the log, and the seed of tests that use the test kit.
const OTHERS: [&str; 2] = ["WINGBEAT_LOG", crate::testkit::SEED_VARIABLE];

impl Config {
    /// Defaults and this file. Reads the file, opens nothing else.
    ///
    /// # Errors
    /// [`ConfigErrors`]: the file cannot be read, or what is wrong in it; as [`from_toml`](Self::from_toml).
    pub fn load(path: impl AsRef<Path>) -> Result<Self, ConfigErrors> {
        Self::from_toml(&read(path.as_ref())?)
    }

    /// Defaults and this text of a file.
    ///
    /// # Errors
    /// [`ConfigErrors`]: all there are in the text, with key and line. Whether settings fit each other is judged by [`validate`](Self::validate), as later layers may still change
    /// them; where the text has errors of its own, what does not fit is reported with them.
    pub fn from_toml(text: &str) -> Result<Self, ConfigErrors> {
        let mut config = Self::default();
        let mut errors = config.read_toml(text);
        if errors.is_empty() {
            return Ok(config);
        }
        config.add_inconsistencies(&mut errors);
        Err(ConfigErrors(errors))
    }

    /// Lays the environment over it: `WINGBEAT_MEMBERSHIP__GOSSIP_INTERVAL=200ms` sets `membership.gossip_interval`, lists are separated by commas.
    ///
    /// A variable that begins with `WINGBEAT_` and is no setting is an error; `WINGBEAT_LOG` is the filter of the log,
    /// and `WINGBEAT_TEST_SEED` the [test kit](crate::testkit)'s.
    ///
    /// # Errors
    /// [`ConfigErrors`]: every variable that is wrong.
    pub fn with_env(self) -> Result<Self, ConfigErrors> {
        self.with_env_from(std::env::vars_os())
    }

    /// As [`with_env`](Self::with_env), with these variables.
    ///
    /// # Errors
    /// [`ConfigErrors`]: every variable that is wrong.
    pub fn with_env_from<K: Into<OsString>, V: Into<OsString>>(
        mut self,
        vars: impl IntoIterator<Item = (K, V)>,
    ) -> Result<Self, ConfigErrors> {
        let mut errors = self.read_env(vars);
        if errors.is_empty() {
            return Ok(self);
        }
        self.add_inconsistencies(&mut errors);
        Err(ConfigErrors(errors))
    }

    /// All layers in their order, judged as a whole: file, environment, flags (key and text).
    ///
    /// # Errors
    /// [`ConfigErrors`]: those of all layers together.
    pub fn from_layers<K: Into<OsString>, V: Into<OsString>>(
        file: Option<&Path>,
        vars: impl IntoIterator<Item = (K, V)>,
        flags: &[(&str, String)],
    ) -> Result<Self, ConfigErrors> {
        let mut config = Self::default();
        let mut errors = match file.map(read) {
            Some(Ok(text)) => config.read_toml(&text),
            Some(Err(errors)) => errors.0,
            None => vec![],
        };
        errors.extend(config.read_env(vars));
        errors.extend(flags.iter().filter_map(|(key, text)| config.assign(key, &Raw::Word(text.clone())).err()));
        config.add_inconsistencies(&mut errors);
        if errors.is_empty() { Ok(config) } else { Err(ConfigErrors(errors)) }
    }

    fn read_toml(&mut self, text: &str) -> Vec<ConfigError> {
        let (tables, syntax) = DeTable::parse_recoverable(text);
        let mut errors: Vec<ConfigError> = syntax
            .iter()
            .map(|e| {
                let why = super::value::escaped(e.message());
                ConfigError { line: e.span().map(|s| line(text, s.start)), ..ConfigError::new("E-CFG-002", "TOML", why) }
            })
            .collect();
        // What the parser made up to go on after a syntax error is not worth judging.
        if !errors.is_empty() {
            return errors;
        }
        for (name, value) in tables.get_ref() {
            let at = |offset: usize, error: ConfigError| ConfigError { line: Some(line(text, offset)), ..error };
            match value.get_ref() {
                DeValue::Table(keys) if reference::is_table(name.get_ref()) => {
                    for (key, value) in keys {
                        let full = format!("{}.{}", name.get_ref(), key.get_ref());
                        if let Err(error) = self.assign(&full, &raw(value.get_ref())) {
                            errors.push(at(key.span().start, error));
                        }
                    }
                }
                // `"membership.gossip_interval" = "1s"`, as scenario files write it.
                value if name.get_ref().contains('.') => {
                    if let Err(error) = self.assign(name.get_ref(), &raw(value)) {
                        errors.push(at(name.span().start, error));
                    }
                }
                _ if reference::is_table(name.get_ref()) => {
                    let why = format!("is a table: write [{}] and its keys below", name.get_ref());
                    errors.push(at(name.span().start, ConfigError::new("E-CFG-005", name.get_ref().as_ref(), why)));
                }
                _ => errors.push(at(name.span().start, reference::unknown_table(name.get_ref()))),
            }
        }
        errors.sort_by_key(|e| e.line);
        errors
    }

    fn read_env<K: Into<OsString>, V: Into<OsString>>(&mut self, vars: impl IntoIterator<Item = (K, V)>) -> Vec<ConfigError> {
        let mut ours: Vec<(OsString, OsString)> = vars.into_iter().map(|(k, v)| (k.into(), v.into())).filter(|(k, _)| is_ours(k)).collect();
        ours.sort();
        ours.iter().filter_map(|(name, value)| self.read_variable(name, value).err()).collect()
    }

    fn read_variable(&mut self, name: &OsStr, value: &OsStr) -> Result<(), ConfigError> {
        let shown = super::value::escaped(&name.to_string_lossy());
        let Some(setting) = name.to_str().and_then(|name| Config::reference().iter().find(|s| reference::variable(s) == name)) else {
            return Err(unknown_variable(&shown));
        };
        let text = value.to_str().ok_or_else(|| ConfigError::new("E-CFG-013", shown.as_str(), "the value is not UTF-8"))?;
        // What comes of a variable that is not set elsewhere must not found a cluster of its own, nor open what a file closes.
        if (setting.key == "cluster.seeds" || setting.is_secret()) && text.trim_matches([' ', ',']).is_empty() {
            let why = format!("is set and empty, which would undo what a file says: give {shown} a value, or unset it");
            return Err(ConfigError::new("E-CFG-007", format!("{shown} ({})", setting.key), why));
        }
        self.assign(setting.key, &Raw::Word(text.into())).map_err(|e| ConfigError { key: format!("{shown} ({})", setting.key), ..e })
    }
}

fn is_ours(name: &OsStr) -> bool {
    name.as_encoded_bytes().starts_with(PREFIX.as_bytes()) && OTHERS.iter().all(|other| name != *other)
}

fn unknown_variable(name: &str) -> ConfigError {
    let names: Vec<String> = Config::reference().iter().map(reference::variable).collect();
    let wrong_case = names.iter().find(|n| n.eq_ignore_ascii_case(name)).map(String::as_str);
    // The prefix is right already and would make everything look close.
    let rest = |n: &str| n.strip_prefix(PREFIX).unwrap_or(n).replace("__", "_");
    let rests: Vec<String> = names.iter().map(|n| rest(n)).collect();
    let near = suggest::nearest(&rest(name), rests.iter().map(String::as_str));
    let near = near.and_then(|near| rests.iter().position(|r| r == near)).map(|i| names[i].as_str());
    let hint = match wrong_case.or(near) {
        Some(name) => format!("did you mean {name}?"),
        None => "write WINGBEAT_TABLE__KEY with two underscores between table and key; `wingbeat config --defaults` lists all keys".into(),
    };
    ConfigError::new("E-CFG-012", name, format!("unknown variable; {hint}"))
}

fn read(path: &Path) -> Result<String, ConfigErrors> {
    let name = super::value::escaped(&path.display().to_string());
    let fail = |why: String| ConfigErrors(vec![ConfigError::new("E-CFG-001", name.as_str(), why)]);
    let file = File::open(path).map_err(|e| fail(format!("cannot open the file: {e}")))?;
    let mut bytes = vec![];
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(|e| fail(format!("cannot read the file: {e}")))?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(fail(format!("the file is larger than {FILE_BYTES_MAX} bytes; is it a configuration?")));
    }
    String::from_utf8(bytes).map_err(|e| fail(format!("the file is not UTF-8 at byte {}", e.utf8_error().valid_up_to())))
}

fn line(text: &str, offset: usize) -> u32 {
    let before = text.as_bytes().iter().take(offset).filter(|b| **b == b'\n').count();
    u32::try_from(before + 1).unwrap_or(u32::MAX)
}

fn raw(value: &DeValue<'_>) -> Raw {
    match value {
        DeValue::String(text) => Raw::Text(text.to_string()),
        DeValue::Integer(n) => match i128::from_str_radix(n.as_str(), n.radix()) {
            Ok(n) => Raw::Int(n),
            // More digits than any limit: as large as can be said, so that the range is what the error names.
            Err(_) => Raw::Int(i128::MAX),
        },
        DeValue::Float(n) => n.as_str().parse().map_or(Raw::Other("number"), Raw::Float),
        DeValue::Boolean(b) => Raw::Bool(*b),
        DeValue::Array(list) => Raw::List(list.iter().map(|v| raw(v.get_ref())).collect()),
        DeValue::Datetime(_) => Raw::Other("date"),
        DeValue::Table(_) => Raw::Other("table"),
    }
}
