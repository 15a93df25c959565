//! Where the values of a configuration come from.

use std::time::Duration;

use wingbeat::{
    Config,
    config::{AutoSpan, DowningStrategy, Idle, OnDowned, Preset, Span, Workers},
};

fn none() -> [(&'static str, &'static str); 0] {
    []
}

#[test]
fn nothing_set_means_valid_defaults() {
    let config = Config::from_toml("").unwrap();
    assert_eq!(config, Config::default());
    config.validate().unwrap();
    assert_eq!(config.warnings(), []);
    for preset in [Preset::Lan, Preset::Wan, Preset::LocalTest] {
        Config::preset(preset).validate().unwrap();
        assert_eq!(Config::preset(preset).cluster.preset, preset);
    }
    assert_eq!(Config::preset(Preset::Lan), Config::default());
    assert_eq!(Config::from("fleet").cluster.name, "fleet");
}

#[test]
fn every_kind_of_value_is_read_from_a_file() {
    let config = Config::from_toml(
        r#"
        [cluster]
        name = "fleet"
        seeds = ["node1:7301", "[::1]:7302"]
        roles = ["fleet", "gateway"]
        min_members = 3
        [node]
        listen = "127.0.0.1:0"
        advertise = "Node1:7301"
        workers = 2
        pin = [0, 1]
        idle = "low_latency"
        [admin]
        listen = "127.0.0.1:8080"
        token = "a-long-secret"
        [membership]
        gossip_interval = "500ms"
        weakly_up_after = "off"
        converge_past_unreachable = true
        unseen_probability = 0.5
        on_downed = "rejoin"
        [detector]
        threshold = 10
        [downing]
        strategy = "static-quorum"
        quorum_size = 2
        stable_after = "10s"
        "#,
    )
    .unwrap();
    config.validate().unwrap();
    assert_eq!(config.cluster.seeds, ["node1:7301", "[::1]:7302"]);
    assert_eq!(config.node.workers, Workers::Count(2));
    assert_eq!(config.node.advertise.as_ref().unwrap().to_string(), "node1:7301");
    assert_eq!(config.node.idle, Idle::LowLatency);
    assert_eq!(config.membership.weakly_up_after, None);
    assert_eq!(config.membership.on_downed, OnDowned::Rejoin);
    assert_eq!(config.membership.unseen_probability, 0.5);
    assert_eq!(config.detector.threshold, 10.0);
    assert_eq!(config.downing.strategy, DowningStrategy::StaticQuorum);
    assert_eq!(config.downing.stable_after, AutoSpan::After(Span::secs(10)));
    assert_eq!(config.get("admin.token").as_deref(), Some("(set)"), "a secret is never shown");
    assert!(!format!("{config:?}").contains("a-long-secret"));
    assert_eq!(config.get("cluster.roles").as_deref(), Some("fleet,gateway"));
    assert_eq!(config.get("no.such"), None);
}

#[test]
fn later_layers_win() {
    let dir = std::env::temp_dir().join(format!("wingbeat-config-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let file = dir.join("node.toml");
    std::fs::write(&file, "[cluster]\nname = \"file\"\n[limits]\nmailbox = 1\nasks = 100\nhttp_headers = 20\n").unwrap();
    let env = [("WINGBEAT_LIMITS__ASKS", "200"), ("WINGBEAT_LIMITS__HTTP_HEADERS", "30"), ("PATH", "/bin"), ("WINGBEAT_LOG", "debug")];
    let config =
        Config::from_layers(Some(&file), env, &[("limits.http_headers", "40".into()), ("cluster.seeds", "a:1,b:2".into())]).unwrap();
    std::fs::remove_dir_all(&dir).unwrap();
    assert_eq!(config.limits.mailbox, 1, "file over default");
    assert_eq!(config.limits.asks, 200, "environment over file");
    assert_eq!(config.limits.http_headers, 40, "flag over environment");
    assert_eq!(config.cluster.seeds, ["a:1", "b:2"]);
    assert!(config.is_set("limits.mailbox") && !config.is_set("limits.lane_items"));
}

#[test]
fn a_preset_lies_below_the_file_wherever_it_is_named() {
    let file = "[cluster]\npreset = \"local_test\"\n[membership]\ngossip_interval = \"300ms\"\n[downing]\nproof_of_death = false\n";
    let config = Config::from_toml(file).unwrap();
    assert_eq!(config.membership.gossip_interval, Span::millis(300), "set in the file");
    assert!(!config.downing.proof_of_death.holds(), "set in the file");
    assert_eq!(config.detector.heartbeat_interval, Span::millis(200), "from the preset");
    let late = Config::from_toml("[membership]\ngossip_interval = \"300ms\"\n[downing]\nproof_of_death = false\n").unwrap();
    assert_eq!(late.with_env_from([("WINGBEAT_CLUSTER__PRESET", "local_test")]).unwrap(), config);
}

#[test]
fn local_test_is_what_the_demo_needs() {
    let c = Config::preset(Preset::LocalTest);
    assert_eq!((c.membership.gossip_interval, c.detector.heartbeat_interval), (Span::millis(200), Span::millis(200)));
    assert_eq!((c.detector.acceptable_pause, c.sharding.lease), (Span::millis(600), Span::secs(2)));
    assert_eq!(c.downing.stable_after, AutoSpan::After(Span::secs(2)));
    assert!(c.downing.proof_of_death.holds() && c.membership.seed_timeout < Span::secs(1));
    let wan = Config::preset(Preset::Wan);
    assert_eq!((wan.detector.threshold, wan.detector.heartbeat_interval), (12.0, Span::secs(2)));
}

#[test]
fn times_follow_the_interval_they_are_multiples_of() {
    let config =
        Config::from_toml("[membership]\ngossip_interval = \"3s\"\n[detector]\nheartbeat_interval = \"500ms\"\nfirst_interval = \"4s\"\n")
            .unwrap();
    let (m, d, s) = (&config.membership, &config.detector, &config.sharding);
    assert_eq!((m.gossip_ttl, m.weakly_up_after, m.seed_timeout), (Span::secs(6), Some(Span::secs(21)), Span::secs(15)));
    assert_eq!((d.acceptable_pause, d.first_interval), (Span::millis(1500), Span::secs(4)), "what was set stays");
    assert_eq!((s.lease, s.lease_margin), (Span::secs(5), Span::secs(1)));
    config.validate().unwrap();
}

#[test]
fn what_code_changed_stays_when_something_is_set() {
    let mut config = Config::default();
    config.membership.gossip_ttl = Span::secs(9);
    config.node.listen = "127.0.0.1:9".parse().unwrap();
    config.set("membership.gossip_interval", &toml::Value::from("4s")).unwrap();
    config.set("cluster.preset", &toml::Value::from("local_test")).unwrap();
    assert_eq!(config.membership.gossip_ttl, Span::secs(9));
    assert_eq!(config.node.listen.port(), 9);
    assert_eq!(config.membership.gossip_interval, Span::secs(4));
    assert_eq!(config.membership.weakly_up_after, Some(Span::secs(28)));
    assert_eq!(config.detector.heartbeat_interval, Span::millis(200));
}

#[test]
fn an_interval_that_code_changed_directly_is_followed_from_then_on() {
    let mut config = Config::default();
    config.detector.heartbeat_interval = Span::millis(100);
    config.set("limits.asks", &toml::Value::from(100)).unwrap();
    assert_eq!(config.detector.acceptable_pause, Span::millis(300));
}

#[test]
fn values_may_be_set_in_their_own_kind_or_as_text() {
    let mut config = Config::default();
    for (key, value, shown) in [
        ("membership.gossip_interval", toml::Value::from("200ms"), "200ms"),
        ("limits.asks", toml::Value::from("1024"), "1024"),
        ("limits.asks", toml::Value::from(2048), "2048"),
        ("detector.local_health", toml::Value::from("false"), "false"),
        ("detector.threshold", toml::Value::from("8.5"), "8.5"),
        ("cluster.roles", toml::Value::from("a, b,"), "a,b"),
        ("cluster.roles", toml::Value::from(vec!["c"]), "c"),
        ("node.workers", toml::Value::from("3"), "3"),
        ("node.workers", toml::Value::from("auto"), "auto"),
        ("node.pin", toml::Value::from("1,0"), "1,0"),
        ("downing.stable_after", toml::Value::from("auto"), "auto"),
        ("downing.proof_of_death", toml::Value::from("auto"), "auto"),
        ("downing.proof_of_death", toml::Value::from(true), "true"),
        ("membership.auto_down_after", toml::Value::from("off"), "off"),
    ] {
        config.set(key, &value).unwrap();
        assert_eq!(config.get(key).as_deref(), Some(shown), "{key}");
    }
}

#[test]
fn durations_need_a_unit_and_print_in_one() {
    for (text, ms) in
        [("200ms", 200.0), ("1s", 1000.0), ("5m", 300_000.0), ("2h", 7_200_000.0), ("1.5s", 1500.0), ("250us", 0.25), ("1d", 86_400_000.0)]
    {
        let span: Span = text.parse().unwrap();
        assert_eq!(span.get(), Duration::from_secs_f64(ms / 1000.0), "{text}");
        assert_eq!(span.to_string().parse(), Ok(span), "{text}");
    }
    for (span, text) in [(Span::millis(1500), "1500ms"), (Span::secs(60), "1m"), (Span::millis(86_400_000), "24h"), (Span::default(), "0s")]
    {
        assert_eq!(span.to_string(), text);
    }
    for (text, why) in [
        ("200", "no unit"),
        ("1.5", "no unit"),
        ("-1s", "negative"),
        ("s", "not a duration"),
        ("", "not a duration"),
        ("NaN", "not a duration"),
        ("1 fortnight", "unknown unit"),
        ("99999999999999999999s", "longer than"),
        ("999999999h", "longer than"),
        ("1.2.3s", "not a duration"),
        ("1.s", "not a duration"),
    ] {
        let error = text.parse::<Span>().unwrap_err();
        assert!(error.contains(why), "{text}: {error}");
    }
}

#[test]
fn what_all_nodes_must_share_is_named_and_digested() {
    let (a, mut b) = (Config::named("fleet"), Config::named("fleet"));
    assert_eq!(a.digest(), b.digest());
    b.set("limits.asks", &toml::Value::from(99)).unwrap();
    b.set("detector.threshold", &toml::Value::from(9)).unwrap();
    assert_eq!(a.digest(), b.digest(), "these may differ");
    b.set("detector.heartbeat_interval", &toml::Value::from("2s")).unwrap();
    assert_ne!(a.digest(), b.digest());
    let differing: Vec<String> = a.must_match().into_iter().zip(b.must_match()).filter(|(x, y)| x != y).map(|(x, _)| x.0).collect();
    assert_eq!(differing, ["detector.heartbeat_interval", "sharding.lease", "sharding.lease_margin"]);
    let keys: Vec<String> = a.must_match().into_iter().map(|(k, _)| k).collect();
    assert!(keys.contains(&"cluster.name".into()) && !keys.contains(&"sharding.shards".into()), "the shard count is compared by type");
}

#[test]
fn the_reference_describes_every_key() {
    let all = Config::reference();
    for (i, s) in all.iter().enumerate() {
        assert!(!s.meaning().is_empty() && s.meaning().ends_with('.'), "{s:?}");
        assert!(!s.range().is_empty(), "{s:?}");
        assert!(all[..i].iter().all(|other| other.key != s.key), "{s:?} twice");
        let mut config = Config::default();
        let default = s.default_text();
        if !(default.is_empty() && s.key != "cluster.app_version") {
            config
                .set(s.key, &toml::Value::from(default.as_str()))
                .unwrap_or_else(|e| panic!("the default of {s:?} is no value of it: {e}"));
            assert_eq!(config, Config::default(), "{s:?}");
        }
    }
    for key in
        ["cluster.name", "sharding.reform", "tls.cert", "journal.sync", "store.replicas", "leaderships.session", "partitions.rebalance"]
    {
        assert!(all.iter().any(|s| s.key == key), "{key}");
    }
    let text = Config::reference_text();
    assert_eq!(text.lines().count(), all.len() + 1);
    let line = text.lines().find(|l| l.starts_with("detector.heartbeat_interval")).unwrap();
    assert!(line.contains("1s") && line.contains("10ms to 1m") && line.contains("yes"), "{line}");
    assert!(!Config::reference().iter().find(|s| s.key == "limits.asks").unwrap().must_match());
    assert!(all.iter().filter(|s| s.is_live()).all(|s| matches!(s.table(), "limits" | "tls")));
}

#[test]
fn the_advertised_port_is_the_one_that_was_bound() {
    let mut config = Config::default();
    assert_eq!(config.advertised(4242).to_string(), "127.0.0.1:4242");
    config.set("node.advertise", &toml::Value::from("node1:0")).unwrap();
    assert_eq!(config.advertised(4242).to_string(), "node1:4242");
    config.set("node.advertise", &toml::Value::from("node1:7301")).unwrap();
    assert_eq!(config.advertised(4242).to_string(), "node1:7301");
    assert_eq!(Config::default().with_env_from(none()).unwrap(), Config::default());
}

#[test]
fn an_empty_variable_undoes_nothing_that_a_file_says() {
    let file = Config::from_toml("[cluster]\nseeds = [\" a:1\", \"b:2 \"]\n[admin]\ntoken = \"secret\"\n").unwrap();
    assert_eq!(file.cluster.seeds, ["a:1", "b:2"], "a space beside an address means nothing");
    for (name, value) in [("WINGBEAT_CLUSTER__SEEDS", ""), ("WINGBEAT_CLUSTER__SEEDS", " , "), ("WINGBEAT_ADMIN__TOKEN", "")] {
        let said = file.clone().with_env_from([(name, value)]).unwrap_err().to_string();
        assert!(said.contains(name) && said.contains("E-CFG-007") && said.contains("unset it"), "{said}");
    }
    assert!(file.must_match().iter().any(|(key, _)| key == "sharding.coordinator_role"), "all have to know who it is");
}
