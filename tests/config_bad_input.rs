//! What a wrong configuration gets: every error at once, each with key, value, limit and next step.

use wingbeat::{Config, ConfigError, config::Preset};

fn errors(text: &str) -> Vec<ConfigError> {
    match Config::from_toml(text) {
        Err(errors) => errors.0,
        Ok(config) => config.validate().err().map_or(vec![], |e| e.0),
    }
}

/// The only error of this text.
#[track_caller]
fn only(text: &str) -> ConfigError {
    let mut all = errors(text);
    assert_eq!(all.len(), 1, "{all:?}");
    all.remove(0)
}

#[track_caller]
fn says(text: &str, code: &str, key: &str, parts: &[&str]) {
    let error = only(text);
    assert_eq!((error.code, error.key.as_str()), (code, key), "{error}");
    for part in parts {
        assert!(error.to_string().contains(part), "{part:?} is not in: {error}");
    }
}

// failures: row 25
#[test]
fn a_misspelt_key_is_named_with_its_line_and_what_was_meant() {
    says(
        "[membership]\n# comment\ngosip_interval = \"1s\"\n",
        "E-CFG-004",
        "membership.gosip_interval",
        &["line 3", "did you mean `membership.gossip_interval`?"],
    );
    says(
        "[membership]\nheartbeat_interval = \"1s\"\n",
        "E-CFG-004",
        "membership.heartbeat_interval",
        &["did you mean `detector.heartbeat_interval`?"],
    );
    says("[memberships]\n", "E-CFG-003", "memberships", &["line 1", "did you mean [membership]?"]);
    says("gossip_interval = \"1s\"\n", "E-CFG-003", "gossip_interval", &["did you mean `membership.gossip_interval`?"]);
    says("[entities]\nbananas = 1\n", "E-CFG-004", "entities.bananas", &["[entities] has durable"]);
    says("[bananas]\nx = 1\n", "E-CFG-003", "bananas", &["tables are cluster,"]);
    says("\"membership.gosip_ttl\" = \"1s\"\n", "E-CFG-004", "membership.gosip_ttl", &["did you mean `membership.gossip_ttl`?"]);
    says("cluster = 3\n", "E-CFG-005", "cluster", &["is a table"]);
}

#[test]
fn all_errors_come_at_once_in_the_order_of_the_file() {
    let all = errors(
        "[cluster]\nnmae = \"x\"\nmin_members = 0\n[node]\nworkers = \"many\"\nidle = \"low-latenzy\"\n[membership]\ngossip_interval = 200\n[limits]\nmessage_bytes = 4194304\n",
    );
    let codes: Vec<_> = all.iter().map(|e| (e.code, e.key.as_str(), e.line)).collect();
    assert_eq!(
        codes,
        [
            ("E-CFG-004", "cluster.nmae", Some(2)),
            ("E-CFG-006", "cluster.min_members", Some(3)),
            ("E-CFG-005", "node.workers", Some(5)),
            ("E-CFG-005", "node.idle", Some(6)),
            ("E-CFG-005", "membership.gossip_interval", Some(8)),
            ("E-CFG-009", "limits.frame_bytes", None),
        ]
    );
    let text = Config::from_toml("[cluster]\na = 1\nb = 2\n").unwrap_err().to_string();
    assert!(text.starts_with("2 errors in the configuration:\n  E-CFG-004 cluster.a (line 2): unknown key"), "{text}");
}

#[test]
fn what_follows_from_an_error_is_not_reported_beside_it() {
    assert_eq!(only("[node]\nlisten = \"0.0.0.0:1\"\nadvertise = \"h:1\"\ninsecure = \"yes\"\n").key, "node.insecure");
}

// failures: row 25
#[test]
fn numbers_outside_their_range_are_refused_with_the_range() {
    says("[limits]\nasks = 0\n", "E-CFG-006", "limits.asks", &["0 is out of range", "at least 16", "at most 16777216"]);
    says("[limits]\nasks = -1\n", "E-CFG-006", "limits.asks", &["-1 is out of range"]);
    says("[limits]\nasks = 99999999999999999999999999999999999999999999\n", "E-CFG-006", "limits.asks", &["out of range"]);
    says("[cluster]\nmin_members = 4294967297\n", "E-CFG-006", "cluster.min_members", &["4294967297"]);
    says("[membership]\nmax_datagram = 575\n", "E-CFG-006", "membership.max_datagram", &["at least 576", "at most 65507"]);
    says("[membership]\nmax_datagram = 65508\n", "E-CFG-006", "membership.max_datagram", &["65508"]);
    says(
        "[membership]\nunseen_probability = nan\n",
        "E-CFG-006",
        "membership.unseen_probability",
        &["NaN is out of range: at least 0, at most 1"],
    );
    says("[membership]\nunseen_probability = inf\n", "E-CFG-006", "membership.unseen_probability", &["inf"]);
    says("[detector]\nthreshold = -8.0\n", "E-CFG-006", "detector.threshold", &["-8"]);
    says(
        "[membership]\ngossip_interval = \"0s\"\n",
        "E-CFG-006",
        "membership.gossip_interval",
        &["0s is out of range: at least 10ms, at most 1m"],
    );
    says("[membership]\ngossip_interval = -5\n", "E-CFG-006", "membership.gossip_interval", &["cannot be negative"]);
    says("[membership]\ngossip_interval = \"9999999999999h\"\n", "E-CFG-005", "membership.gossip_interval", &["longer than 584 years"]);
    says("[node]\nworkers = 0\n", "E-CFG-006", "node.workers", &["at least 1"]);
}

// failures: row 25
#[test]
fn values_of_the_wrong_kind_say_what_is_right() {
    says("[membership]\ngossip_interval = 200\n", "E-CFG-005", "membership.gossip_interval", &["200 has no unit: write \"200ms\""]);
    says("[membership]\ngossip_interval = \"200\"\n", "E-CFG-005", "membership.gossip_interval", &["write \"200ms\""]);
    says("[membership]\ngossip_interval = 1979-05-27\n", "E-CFG-005", "membership.gossip_interval", &["a date is not a duration"]);
    says("[node]\ninsecure = \"true\"\n", "E-CFG-005", "node.insecure", &["\"true\" is not true or false"]);
    says("[cluster]\nseeds = \"a:1\"\n", "E-CFG-005", "cluster.seeds", &["not a list in brackets"]);
    says(
        "[downing]\nstrategy = \"keep-majorty\"\n",
        "E-CFG-005",
        "downing.strategy",
        &["one of keep-majority,", "did you mean \"keep-majority\"?"],
    );
    says("[limits]\nasks = 1.5\n", "E-CFG-005", "limits.asks", &["1.5 is not a whole number"]);
    says("[cluster]\nname = [1]\n", "E-CFG-005", "cluster.name", &["text in quotes"]);
}

#[test]
fn addresses_say_what_is_wrong_with_them() {
    says("[cluster]\nseeds = [\"a:1\", \"b\"]\n", "E-CFG-008", "cluster.seeds", &["entry 2", "no port"]);
    says("[cluster]\nseeds = [\"a:0\"]\n", "E-CFG-008", "cluster.seeds", &["entry 1", "port 0"]);
    says("[cluster]\nseeds = [\"a:70000\"]\n", "E-CFG-008", "cluster.seeds", &["port is not a number"]);
    says("[node]\nlisten = \"localhost:7301\"\n", "E-CFG-008", "node.listen", &["write \"127.0.0.1:7301\""]);
    says("[node]\nadvertise = \"::1:7301\"\n", "E-CFG-008", "node.advertise", &["::1"]);
}

// failures: row 8
#[test]
fn hostile_names_are_refused_and_shown_escaped() {
    for (name, shown) in
        [("\\u001b[31mred", "\\u{1b}[31mred"), ("a\\nb", "a\\nb"), ("a\\u0000b", "a\\0b"), ("\\u202egnp", "\\u{202e}gnp"), (" x", "\" x\"")]
    {
        let error = only(&format!("[cluster]\nname = \"{name}\"\n"));
        assert_eq!(error.code, "E-CFG-007");
        let text = error.to_string();
        assert!(text.contains(shown), "{text}");
        assert!(!text.chars().any(char::is_control) && !text.contains('\u{202e}'), "{text:?}");
    }
    says("[cluster]\nname = \"\"\n", "E-CFG-007", "cluster.name", &["1 to 64 bytes"]);
    let long = only(&format!("[cluster]\nname = \"{}\"\n", "x".repeat(65_536)));
    assert!(long.why.contains("65536 bytes, at most 64") && long.why.len() < 300, "{long}");
    says("[cluster]\nroles = [\"ok\", \"a b\"]\n", "E-CFG-007", "cluster.roles", &["entry 2", "\"a b\""]);
    says("[\"\\u001b[2J\"]\n", "E-CFG-003", "\\u{1b}[2J", &["unknown table"]);
    assert_eq!(only("[cluster]\nname = \"Zürich ✈\"\nnmae = 1\n").key, "cluster.nmae", "letters of any language are fine");
}

#[test]
fn a_lease_that_outlasts_the_removal_and_a_short_token_are_warned_of() {
    let codes = |text: &str| Config::from_toml(text).unwrap().warnings().into_iter().map(|w| (w.code, w.key)).collect::<Vec<_>>();
    assert_eq!(codes("[sharding]\nlease = \"60s\"\n"), [("W-CFG-011", "sharding.lease")]);
    assert_eq!(codes("[downing]\nstable_after = \"1s\"\n"), [("W-CFG-011", "sharding.lease")]);
    assert_eq!(codes("[sharding]\nlease = \"12s\"\n"), []);
    assert_eq!(codes("[admin]\ntoken = \"sesame\"\n"), [("W-CFG-010", "admin.token")]);
}

#[test]
fn lists_of_the_environment_may_be_written_as_in_a_file() {
    for text in ["a:1,b:2", "[\"a:1\", 'b:2']", "[a:1,b:2]"] {
        let config = Config::default().with_env_from([("WINGBEAT_CLUSTER__SEEDS", text)]).unwrap();
        assert_eq!(config.cluster.seeds, ["a:1", "b:2"], "{text}");
    }
    let one = Config::default().with_env_from([("WINGBEAT_CLUSTER__SEEDS", "[::1]:7301")]).unwrap();
    assert_eq!(one.cluster.seeds, ["[::1]:7301"]);
}

#[test]
fn a_secret_is_never_repeated() {
    for token in ["\"sesame\\n\"", "\"open sesame, please\"", "[\"open-sesame\"]", "{ open = \"sesame\" }"] {
        let error = only(&format!("[admin]\ntoken = {token}\n")).to_string();
        assert!(!error.contains("sesame"), "{error}");
    }
    assert!(!only("[admin]\ntoken = 1234567890\n").to_string().contains("1234"));
    let config = Config::default().with_env_from([("WINGBEAT_ADMIN__TOKEN", "hush-hush-hush")]).unwrap();
    assert_eq!(config.admin.token.as_deref(), Some("hush-hush-hush"));
    assert!(config.must_match().iter().all(|(_, v)| !v.contains("hush")));
}

// failures: row 24
#[test]
fn times_that_contradict_each_other_show_the_inequality() {
    says(
        "[detector]\nacceptable_pause = \"100ms\"\n",
        "E-CFG-009",
        "detector.acceptable_pause",
        &["100ms < detector.heartbeat_interval (1s)", "set at least 1s"],
    );
    says(
        "[detector]\nacceptable_pause = \"6s\"\n",
        "E-CFG-009",
        "sharding.lease",
        &["10s <= 2 x detector.acceptable_pause (6s) = 12s", "set more than 12s"],
    );
    says("[membership]\ngossip_ttl = \"500ms\"\n", "E-CFG-009", "membership.gossip_ttl", &["500ms < membership.gossip_interval (1s)"]);
    says("[downing]\nstable_after = \"500ms\"\n", "E-CFG-009", "downing.stable_after", &["500ms < detector.heartbeat_interval (1s)"]);
    says("[sharding]\nfence_retry = \"6s\"\n", "E-CFG-009", "sharding.fence_deadline", &["5s < sharding.fence_retry (6s)"]);
    says("[sharding]\nrenew_interval = \"8s\"\n", "E-CFG-009", "sharding.renew_interval", &["2 x 8s > sharding.lease (10s)"]);
}

// failures: row 24
#[test]
fn sizes_that_contradict_each_other_show_the_inequality() {
    says(
        "[limits]\nframe_bytes = 1048576\n",
        "E-CFG-009",
        "limits.frame_bytes",
        &["limits.message_bytes (1048576) + 1024", "at least 1049600"],
    );
    says("[limits]\nlink_bytes = 65536\n", "E-CFG-009", "limits.link_bytes", &["limits.frame_bytes (2097152)"]);
}

// failures: row 23
#[test]
fn an_address_that_nobody_reaches_is_refused_with_a_suggestion() {
    says(
        "[node]\nlisten = \"0.0.0.0:7301\"\ninsecure = true\n",
        "E-CFG-010",
        "node.listen",
        &["set node.advertise = \"<name or address of this host>:7301\""],
    );
    says("[node]\nadvertise = \"0.0.0.0:7301\"\n", "E-CFG-010", "node.advertise", &["0.0.0.0:7301 is no address"]);
    says("[cluster]\nseeds = [\"10.0.0.7:7301\"]\n", "E-CFG-010", "node.listen", &["the seed 10.0.0.7:7301 is on another host"]);
    says("[cluster]\nseeds = [\"10.0.0.7:7301\"]\n[node]\nadvertise = \"localhost:1\"\n", "E-CFG-010", "node.advertise", &["loopback"]);
    assert_eq!(errors("[cluster]\nseeds = [\"127.0.0.1:7302\", \"localhost:7303\"]\n"), []);
}

#[test]
fn an_open_port_must_be_asked_for() {
    says("[node]\nlisten = \"10.0.0.1:7301\"\n", "E-CFG-011", "node.listen", &["10.0.0.1:7301", "node.insecure = true"]);
    let open = Config::from_toml("[node]\nlisten = \"10.0.0.1:7301\"\ninsecure = true\n").unwrap();
    open.validate().unwrap();
    assert!(open.warnings().iter().any(|w| w.code == "W-CFG-005"));
}

// failures: row 23
#[test]
fn seeds_that_do_not_fit_are_warned_of() {
    let warned = |text: &str| Config::from_toml(text).unwrap().warnings().iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
    let seeds = |first: &str| format!("[cluster]\nseeds = [\"{first}\", \"127.0.0.1:7302\"]\n");
    let referee = "[downing]\nstrategy = \"keep-referee\"\nreferee = \"127.0.0.1:7302\"\n";
    let other = warned(&format!("{}{referee}", seeds("127.0.0.1:7303")));
    assert!(other.contains("W-CFG-009 cluster.seeds: the first one, 127.0.0.1:7303, is not downing.referee (127.0.0.1:7302)"), "{other}");
    assert_eq!(warned(&format!("{}{referee}", seeds("127.0.0.1:7302"))), "");
    assert_eq!(warned(&seeds("127.0.0.1:7303")), "", "there is no referee");
    // Only a name server knows.
    let name = warned(&seeds("node1.example.com:7301"));
    assert!(name.contains("W-CFG-012 cluster.seeds: node1.example.com:7301 may be another host"), "{name}");
    assert_eq!(warned(&seeds("localhost:7301")), "");
    let reached = "[node]\nlisten = \"10.0.0.1:7301\"\ninsecure = true\n";
    assert!(!warned(&format!("{}{reached}", seeds("node1.example.com:7301"))).contains("W-CFG-012"));
}

#[test]
fn other_contradictions_are_found() {
    says("[admin]\nlisten = \"127.0.0.1:7301\"\n", "E-CFG-009", "admin.listen", &["taken by node.listen"]);
    says("[downing]\nstrategy = \"static-quorum\"\n", "E-CFG-009", "downing.quorum_size", &["not set"]);
    says("[downing]\nstrategy = \"keep-referee\"\n", "E-CFG-009", "downing.referee", &["not set"]);
    assert_eq!(errors("[downing]\nstrategy = \"lease-majority\"\n"), [], "a lease is no setting");
    says("[node]\npin = [1, 1]\n", "E-CFG-009", "node.pin", &["twice"]);
    says("[node]\nworkers = 1\npin = [0, 1]\n", "E-CFG-009", "node.pin", &["2 cores for 1 workers"]);
}

#[test]
fn a_node_without_a_lease_does_not_start_with_lease_majority() {
    let config = Config::from_toml("[downing]\nstrategy = \"lease-majority\"\n[node]\nlisten = \"127.0.0.1:0\"\n").unwrap();
    let refused = wingbeat::Cluster::builder(config).start().unwrap_err().to_string();
    assert!(refused.contains("E-CFG-014 downing.strategy") && refused.contains("ClusterBuilder::lease"), "{refused}");
}

#[test]
fn values_set_in_code_are_judged_too() {
    let mut config = Config::preset(Preset::Lan);
    config.cluster.name = "a\u{1b}b".into();
    config.detector.threshold = f64::NAN;
    config.cluster.seeds = vec!["nowhere".into()];
    let keys: Vec<_> = config.validate().unwrap_err().0.into_iter().map(|e| e.key).collect();
    assert_eq!(keys, ["cluster.name", "cluster.seeds", "detector.threshold"]);
    let error = config.set("no.such", &toml::Value::from(1)).unwrap_err();
    assert_eq!(error.code, "E-CFG-004");
    assert_eq!(
        Config::default().set("sharding.sards", &toml::Value::from(1)).unwrap_err().why,
        "unknown key; did you mean `sharding.shards`?"
    );
}

#[test]
fn unknown_variables_are_errors_with_a_suggestion() {
    let error = |name: &str, value: &str| {
        let mut errors = Config::default().with_env_from([(name, value)]).unwrap_err().0;
        assert_eq!(errors.len(), 1);
        errors.remove(0)
    };
    for (name, meant) in [
        ("WINGBEAT_MEMBERSHIP__GOSIP_INTERVAL", "WINGBEAT_MEMBERSHIP__GOSSIP_INTERVAL"),
        ("WINGBEAT_MEMBERSHIP_GOSSIP_INTERVAL", "WINGBEAT_MEMBERSHIP__GOSSIP_INTERVAL"),
        ("WINGBEAT_membership__gossip_interval", "WINGBEAT_MEMBERSHIP__GOSSIP_INTERVAL"),
        ("WINGBEAT_CLUSTER__SEED", "WINGBEAT_CLUSTER__SEEDS"),
    ] {
        let e = error(name, "1s");
        assert_eq!((e.code, e.key.as_str()), ("E-CFG-012", name));
        assert!(e.why.contains(&format!("did you mean {meant}?")), "{e}");
    }
    assert!(error("WINGBEAT_X", "1").why.contains("two underscores"));
    let e = error("WINGBEAT_MEMBERSHIP__GOSSIP_INTERVAL", "200");
    assert_eq!(
        e.to_string(),
        "E-CFG-005 WINGBEAT_MEMBERSHIP__GOSSIP_INTERVAL (membership.gossip_interval): `200`: no unit: write \"200ms\" or \"200s\" (units are us, ms, s, m, h, d)"
    );
}

#[test]
#[cfg(unix)]
fn a_variable_that_is_not_text_is_an_error() {
    use std::{ffi::OsString, os::unix::ffi::OsStringExt};
    let vars = [(OsString::from("WINGBEAT_CLUSTER__NAME"), OsString::from_vec(vec![0xff, 0xfe]))];
    assert_eq!(Config::default().with_env_from(vars).unwrap_err().0[0].code, "E-CFG-013");
    let vars = [(OsString::from_vec(b"WINGBEAT_\xff".to_vec()), OsString::from("x"))];
    assert_eq!(Config::default().with_env_from(vars).unwrap_err().0[0].code, "E-CFG-012");
}

#[test]
fn a_file_that_is_no_configuration_is_named() {
    let error = Config::load("no/such/file.toml").unwrap_err().0.remove(0);
    assert_eq!((error.code, error.key.as_str()), ("E-CFG-001", "no/such/file.toml"));
    let error = only("[cluster]\nname = \n");
    assert_eq!((error.code, error.line), ("E-CFG-002", Some(2)), "{error}");
    assert!(errors("[cluster\nname = 3 3\n").iter().all(|e| e.code == "E-CFG-002"));
    says("[cluster]\nname = \"a\"\nname = \"b\"\n", "E-CFG-002", "TOML", &["line 3"]);
}

#[test]
fn errors_of_all_layers_come_together() {
    let errors = Config::from_layers(
        None,
        [("WINGBEAT_NOPE", "1")],
        &[("detector.acceptable_pause", "1ms".into()), ("node.listen", "10.0.0.1:1".into())],
    );
    let codes: Vec<_> = errors.unwrap_err().0.into_iter().map(|e| e.code).collect();
    assert_eq!(codes, ["E-CFG-012", "E-CFG-006", "E-CFG-011"]);
}

#[test]
fn keys_without_effect_are_accepted_with_a_warning() {
    let config = Config::from_toml(
        "[entities]\ndurable = [\"counter\"]\n[tls]\ncert = \"c.pem\"\n[store]\nreplicas = 5\n[sharding]\nallocation = \"least-shards\"\n",
    )
    .unwrap();
    let warnings: Vec<_> = config.warnings().into_iter().map(|w| (w.code, w.key)).collect();
    let none = "W-CFG-001";
    assert_eq!(warnings, [(none, "entities.durable"), (none, "sharding.allocation"), (none, "store.replicas"), (none, "tls.cert")]);
    assert_eq!(config.warnings()[0].to_string(), "W-CFG-001 entities.durable: has no effect in this version");
}

#[test]
fn what_is_allowed_but_unwise_is_warned_about() {
    let config = Config::from_toml(
        "[cluster]\nmin_members = 20\n[membership]\nauto_down_after = \"10s\"\n[downing]\nquorum_size = 3\n[admin]\nlisten = \"0.0.0.0:80\"\n",
    )
    .unwrap();
    let codes: Vec<_> = config.warnings().into_iter().map(|w| w.code).collect();
    assert_eq!(codes, ["W-CFG-002", "W-CFG-004", "W-CFG-006", "W-CFG-007", "W-CFG-008"]);
}

proptest::proptest! {
    #[test]
    fn any_text_is_a_configuration_or_printable_errors(text in "(\\[[a-z]{1,10}\\]\n)?([a-z_.\"]{1,12} ?= ?[-\"a-z0-9.\u{1b}\\[\\]{}]{0,12}\n?){0,4}\\PC{0,20}") {
        if let Err(errors) = Config::from_toml(&text) {
            proptest::prop_assert!(!errors.0.is_empty());
            for error in errors.0 {
                proptest::prop_assert!(!error.to_string().chars().any(char::is_control), "{error:?}");
            }
        }
    }

    #[test]
    fn any_word_is_a_value_or_a_printable_error(nth in 0usize..100, word in "[-0-9.a-z, :\\[\\]\u{1b}\u{202e}é]{0,24}|[0-9]{1,40}(us|ms|s|m|h|d)?|-?[0-9]{1,30}|nan|inf|off|auto") {
        let setting = &Config::reference()[nth % Config::reference().len()];
        let mut config = Config::default();
        match config.set(setting.key, &toml::Value::from(word.as_str())) {
            Ok(()) => {
                let shown = config.get(setting.key).expect("the key is known");
                if !setting.is_secret() {
                    let mut again = Config::default();
                    again.set(setting.key, &toml::Value::from(shown.as_str())).expect("what is shown can be set");
                    proptest::prop_assert_eq!(again.get(setting.key), Some(shown));
                }
                let _ = config.validate();
            }
            Err(error) => proptest::prop_assert!(!error.to_string().chars().any(char::is_control), "{error:?}"),
        }
    }
}
