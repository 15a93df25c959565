//! Each action of a scenario does what the contract says of it, and each selector means whom it says.

use wingbeat::sim::{Options, RunResult, Scenario, run};

const WORKLOAD: &str = "[workload]\nentities = 50\nshards = 24\nsenders = 3\nrate = 50\nmode = \"tell\"\nfrom = \"10s\"\nuntil = \"70s\"\n";

fn at(time: &str, what: &str) -> String {
    format!("[[at]]\ntime = \"{time}\"\n{what}\n")
}

/// Twelve nodes for 80 s with these additions; run twice, and the same both times, where that takes no minutes.
#[track_caller]
fn twelve(additions: &[&str]) -> RunResult {
    let text = format!("nodes = 12\nduration = \"80s\"\nstart_spread = \"1s\"\n{}", additions.join("\n"));
    let scenario = Scenario::parse(&text, &[]).unwrap_or_else(|e| panic!("{e}\n{text}"));
    let once = || run(&scenario, 5, &Options::default()).unwrap_or_else(|e| panic!("{e}\n{text}"));
    let r = once();
    if !cfg!(debug_assertions) {
        let again = once();
        assert_eq!((&r.digest, r.events), (&again.digest, again.events), "{text}");
    }
    assert!(r.holds(), "{text}\n{:?} {:?}", r.failed_why, r.violations);
    r
}

#[test]
#[cfg_attr(debug_assertions, ignore = "seconds without optimisation, which CI has")]
fn selectors_mean_whom_they_say() {
    let regions = "[network]\nregions = 3\nregion_latency = [[\"1ms\", \"20ms\", \"40ms\"], [\"20ms\", \"1ms\", \"30ms\"], [\"40ms\", \"30ms\", \"1ms\"]]";
    for (selector, how_many) in [
        ("3", 1),
        ("3,7", 2),
        ("2..5", 3),
        ("random:4", 4),
        ("random:2 - 0..6", 2),
        ("all - 0..8", 4),
        ("region:2", 4),
        ("leader", 1),
        ("oldest", 1),
        ("youngest", 1),
        ("coordinator", 1),
        ("region:1 - coordinator", 4),
    ] {
        let expect = format!("[expect]\nremoved = {how_many}\nmembers_up = {}\nmax_removal = \"30s\"", 12 - how_many);
        let r = twelve(&[regions, &at("30s", &format!("do = \"crash\"\nnodes = \"{selector}\"")), &expect]);
        assert!(r.detect_s.max.is_some_and(|t| t < 10.0), "{selector}: {:?}", r.detect_s);
    }
}

#[test]
fn restarted_nodes_are_back_at_once_with_new_lives() {
    for wipe in ["", "\nwipe = true"] {
        let restart = at("30s", &format!("do = \"restart\"\nnodes = \"5,6\"{wipe}"));
        twelve(&[&restart, "[expect]\nall_up_by = \"33s\"\nmembers_up = 12\nremoved = 0\nfalse_unreachable = 0"]);
    }
    twelve(&[&at("30s", "do = \"restart\"\nnodes = \"all\""), "[expect]\nall_up_by = \"33s\"\nmembers_up = 12\nremoved = 0"]);
}

#[test]
fn who_is_paused_for_a_while_goes_on() {
    let there = "[expect]\nmembers_up = 12\nremoved = 0\nfalse_unreachable = 0";
    twelve(&[&at("30s", "do = \"pause\"\nnodes = \"random:3 - leader\"\nfor = \"4s\""), there]);
    twelve(&[&at("30s", "do = \"pause\"\nnodes = \"7\""), &at("33s", "do = \"resume\"\nnodes = \"7\""), there]);
}

#[test]
fn a_cut_from_all_leaves_those_named_alone_each() {
    for ends in ["from = \"all\"\nto = \"0..9\"", "from = \"0..9\"\nto = \"all\""] {
        twelve(&[&at("30s", &format!("do = \"link\"\n{ends}\ncut = true\nboth = true")), "[expect]\nsurvivors = 0"]);
    }
}

#[test]
fn the_longest_of_several_pauses_counts() {
    let long = at("30s", "do = \"pause\"\nnodes = \"7\"\nfor = \"4s\"");
    let short = at("31s", "do = \"pause\"\nnodes = \"7\"\nfor = \"1s\"");
    let crash = at("33s", "do = \"pause\"\nnodes = \"8\"\nfor = \"1s\"");
    twelve(&[&long, &short, &crash, "[expect]\nmembers_up = 12\nremoved = 0"]);
    let for_good = at("30s", "do = \"pause\"\nnodes = \"7\"");
    twelve(&[&for_good, &short, "[expect]\nmembers_up = 11\nremoved = 1"]);
}

#[test]
fn who_is_removed_while_it_stands_still_is_gone_until_it_runs_again() {
    let pause = at("20s", "do = \"pause\"\nnodes = \"7\"");
    let gone = "[expect]\nmembers_up = 11\nremoved = 1\nsurvivor_groups = 1\nsurvivors = 11";
    twelve(&[&pause, gone, "converged_by = \"50s\""]);
    // It finds out at once and ends.
    twelve(&[&pause, &at("60s", "do = \"resume\"\nnodes = \"7\""), gone, "converged_by = \"65s\""]);
}

#[test]
fn nodes_join_leave_and_are_downed() {
    let join = at("20s", "do = \"join\"\nnodes = \"5..12\"\nspread = \"2s\"\nto = \"3\"");
    twelve(&["started = 5", &join, "[expect]\nmembers_up = 12\nall_up_by = \"26s\"\nmax_view_changes = 8\nsurvivor_groups = 1"]);
    let leave = at("30s", "do = \"leave\"\nnodes = \"youngest\"") + &at("40s", "do = \"leave\"\nnodes = \"3,4\"\nspread = \"3s\"");
    twelve(&[&leave, "[expect]\nmembers_up = 9\nremoved = 0\nfalse_unreachable = 0\nmax_flips = 0"]);
    for by in ["", "\nby = \"5\""] {
        let down = at("30s", &format!("do = \"down\"\nnodes = \"oldest\"{by}"));
        twelve(&[&down, "[expect]\nmembers_up = 11\nremoved = 1\nfalse_removals = 0\nconverged_by = \"33s\""]);
    }
}

#[test]
fn who_takes_itself_out_was_removed_too() {
    let all = "[config]\n\"downing.strategy\" = \"down-all\"";
    let r = twelve(&[all, &at("30s", "do = \"crash\"\nnodes = \"7\""), "[expect]\nmembers_up = 0\nremoved = 11"]);
    // They were well and reached each other; the dead one was removed by nobody.
    assert_eq!(r.false_removals, 11);
    // None of three groups has half of all.
    let three = at("30s", "do = \"partition\"\ngroups = [\"0..5\", \"5..9\"]");
    twelve(&[&three, "[expect]\nremoved = 12\nfalse_removals = 0"]);
    // It finds out late what everybody else knows.
    let pause = at("20s", "do = \"pause\"\nnodes = \"7\"") + &at("60s", "do = \"resume\"\nnodes = \"7\"");
    twelve(&[&pause, "[expect]\nremoved = 1\nfalse_removals = 0"]);
}

#[test]
fn who_stands_still_hears_an_operator_when_it_runs_again() {
    let pause = at("30s", "do = \"pause\"\nnodes = \"3\"");
    let leave = at("31s", "do = \"leave\"\nnodes = \"3\"");
    twelve(&[
        &pause,
        &leave,
        &at("33s", "do = \"resume\"\nnodes = \"3\""),
        "[expect]\nmembers_up = 11\nremoved = 0\nfalse_unreachable = 0",
    ]);
    // For good: it does not leave, but falls silent. Nobody misses it before.
    let r = twelve(&[&pause, &leave, "[expect]\nmembers_up = 11"]);
    assert!(r.converged_at_s.is_some_and(|at| at > 35.0), "{:?}", r.converged_at_s);
    let pause = at("30s", "do = \"pause\"\nnodes = \"0\"\nfor = \"3s\"");
    let down = |by: &str| twelve(&[&pause, &at("31s", &format!("do = \"down\"\nnodes = \"5\"{by}"))]);
    for by in ["", "\nby = \"0\""] {
        let r = down(by);
        assert_eq!((r.members_up, r.not_done.len()), (Some(12), 1), "{by}: {:?}", r.not_done);
        assert_eq!(r.not_done[0].why, "nobody runs who could be told to down it");
    }
    assert_eq!(down("\nby = \"0,4\"").members_up, Some(11), "the other one does it");
}

#[test]
fn partitions_cut_and_heal() {
    let cut = at("30s", "do = \"partition\"\ngroups = [\"0..6\", \"6..9\"]");
    twelve(&[&cut, &at("33s", "do = \"heal\""), "[expect]\nmembers_up = 12\nremoved = 0"]);
    // No group of three has half of all.
    let three = at("30s", "do = \"partition\"\ngroups = [\"0..5\", \"5..9\"]");
    twelve(&[&three, "[expect]\nsurvivors = 0\nsurvivor_groups = 0"]);
    let two = at("30s", "do = \"partition\"\ngroups = [\"leader\", \"youngest\"]");
    twelve(&[&two, "[expect]\nmembers_up = 10\nremoved = 2\nsurvivor_groups = 1\nsurvivors = 10"]);
    let rejoin = "[config]\n\"membership.on_downed\" = \"rejoin\"";
    let split = at("20s", "do = \"partition\"\ngroups = [\"0..8\"]") + &at("60s", "do = \"heal\"");
    // Each tries its links again after a pause of some seconds, then asks, is admitted and goes up.
    twelve(&[rejoin, &split, "[expect]\nmembers_up = 12\nremoved = 4\nall_up_by = \"67s\""]);
}

#[test]
fn links_lose_delay_double_cut_and_reset() {
    let link = |fields: &str| at("20s", &format!("do = \"link\"\n{fields}"));
    // All to all is every pair, not none.
    let all = twelve(&[&link("from = \"all\"\nto = \"all\"\ncut = true"), "[expect]\nmax_dual_active = \"0s\""]);
    assert!(all.all_up_at_s.is_none() || all.removed > 0 || all.survivors < 12, "nothing was cut: {all:?}");
    twelve(&[
        &link("from = \"all\"\nto = \"3\"\nloss = 1.0"),
        "[expect]\nremoved = 1\nmembers_up = 11\nfalse_removals = 0\nfalse_unreachable = 0",
    ]);
    twelve(&[
        &link("from = \"3\"\nto = \"all\"\ncut = true"),
        "[expect]\nremoved = 1\nmembers_up = 11\nfalse_removals = 0\nfalse_unreachable = 0",
    ]);
    let slow = link("from = \"3\"\nto = \"all\"\nlatency = \"400ms\"\nboth = true") + &at("50s", "do = \"heal\"");
    twelve(&[&slow, "[expect]\nremoved = 0\nfalse_unreachable = 0\nmax_flips = 0"]);
    let doubled = link("from = \"all\"\nto = \"0..6\"\nduplicate = 0.5\nreorder = 0.5");
    twelve(&[WORKLOAD, &doubled, "[expect]\nremoved = 0\nmax_flips = 0\nlost = 0\nreordered = 0\nduplicated = 0\nundelivered = 0"]);
    let resets = link("from = \"all\"\nto = \"4\"\ntcp_reset = true\nevery = \"2s\"\nboth = true");
    twelve(&[WORKLOAD, &resets, "[expect]\nremoved = 0\nmax_flips = 0\nlost = 0\nreordered = 0\nduplicated = 0"]);
    let flaps = link("from = \"2\"\nto = \"all\"\ncut = true\nevery = \"10s\"\nfor = \"2s\"");
    twelve(&[WORKLOAD, &flaps, "[expect]\nremoved = 0\nlost = 0\nreordered = 0\nduplicated = 0"]);
}

#[test]
fn clocks_and_deafness_accuse_nobody() {
    let quiet = "[expect]\nremoved = 0\nfalse_unreachable = 0\nmax_view_changes = 0\nmembers_up = 12";
    let clocks = at("20s", "do = \"clock\"\nnodes = \"4\"\nwall = \"-1h\"")
        + &at("25s", "do = \"clock\"\nnodes = \"5\"\nrate = 1.05")
        + &at("30s", "do = \"clock\"\nnodes = \"6\"\nsuspend = \"60s\"");
    twelve(&[&clocks, quiet]);
    twelve(&[&at("20s", "do = \"deaf\"\nnodes = \"4\"\nto = \"replies\"\nfor = \"30s\""), quiet]);
}

#[test]
fn shards_move_where_they_are_told() {
    let moves =
        at("30s", "do = \"move\"\nshards = \"random:5\"\nto = \"3\"") + &at("35s", "do = \"move\"\nshards = \"0..4\"\nto = \"youngest\"");
    let r = twelve(&[WORKLOAD, &moves, "[expect]\nlost = 0\nreordered = 0\nduplicated = 0\nundelivered = 0\nmax_dual_active = \"0s\""]);
    // Where a shard is already it is not moved to.
    assert!(r.moves == 9 && r.moves_refused < 5, "{} {}", r.moves, r.moves_refused);
}

#[test]
#[cfg_attr(debug_assertions, ignore = "seconds without optimisation, which CI has")]
fn every_strategy_decides_its_way() {
    for (strategy, more, left) in [
        ("keep-majority", "", 7),
        ("static-quorum", "\"downing.quorum_size\" = 7", 7),
        ("keep-oldest", "", 5),
        ("keep-referee", "\"downing.referee\" = \"n00009:7301\"", 7),
        ("lease-majority", "", 7),
        ("down-all", "", 0),
        ("none", "", 12),
    ] {
        let config = format!("[config]\n\"downing.strategy\" = \"{strategy}\"\n{more}");
        let split = at("30s", "do = \"partition\"\ngroups = [\"0..5\"]");
        twelve(&[&config, &split, &format!("[expect]\nsurvivors = {left}\nmax_dual_active = \"0s\"")]);
    }
}

#[test]
fn where_each_side_is_told_to_go_on_both_do() {
    let config = "[config]\n\"downing.strategy\" = \"none\"\n\"membership.auto_down_after\" = \"5s\"";
    twelve(&[config, &at("30s", "do = \"partition\"\ngroups = [\"0..5\"]"), "[expect]\nsurvivor_groups = 2\nsurvivors = 7"]);
}

#[test]
fn what_an_action_cannot_do_is_said() {
    let crash = at("20s", "do = \"crash\"\nnodes = \"7\"");
    let none = |what: &str| {
        let r = twelve(&[WORKLOAD, &crash, &at("60s", what)]);
        let said: Vec<(Vec<u32>, String)> = r.not_done.iter().map(|u| (u.nodes.clone(), u.why.clone())).collect();
        assert!(r.not_done.iter().all(|u| u.at_s == 60.0 && u.line > 10), "{:?}", r.not_done);
        said
    };
    let dead = |why: &str| vec![(vec![7], why.to_owned())];
    for what in ["do = \"crash\"", "do = \"pause\"", "do = \"leave\"", "do = \"deaf\"", "do = \"clock\"\nrate = 1.05"] {
        assert_eq!(none(&format!("{what}\nnodes = \"7\"")), dead("it is not running"), "{what}");
    }
    assert_eq!(none("do = \"resume\"\nnodes = \"7\""), dead("it is not paused"));
    assert_eq!(none("do = \"join\"\nnodes = \"7\""), []);
    assert_eq!(none("do = \"join\"\nnodes = \"6,7\""), [(vec![6], "it is running already".to_owned())]);
    // One each 100 s, of which the run has less: only the first one's turn comes.
    let spread = none("do = \"leave\"\nnodes = \"0..6\"\nspread = \"600s\"");
    assert_eq!(spread, [(vec![1, 2, 3, 4, 5], "the run ends before its turn comes".to_owned())]);
    // Removed long ago: nobody shows it.
    assert_eq!(none("do = \"down\"\nnodes = \"7\""), dead("the node that was told to down it shows no such member"));
    assert_eq!(none("do = \"down\"\nnodes = \"5\"\nby = \"7\"")[0].1, "nobody runs who could be told to down it");
    assert_eq!(none("do = \"move\"\nshards = \"1\"\nto = \"7\""), dead("it is not running"));
    for what in [
        "do = \"crash\"\nnodes = \"3 - 3\"",
        "do = \"deaf\"\nnodes = \"3 - 3\"",
        "do = \"clock\"\nnodes = \"3 - 3\"\nrate = 1.05",
        "do = \"link\"\nfrom = \"leader - all\"\nto = \"3\"\ncut = true",
        "do = \"link\"\nfrom = \"3\"\nto = \"leader - all\"\ncut = true",
        "do = \"partition\"\ngroups = [\"leader - all\"]",
        "do = \"join\"\nnodes = \"7\"\nto = \"leader - all\"",
    ] {
        assert_eq!(none(what), [(vec![], "the selector means nobody".to_owned())], "{what}");
    }
}

#[test]
fn who_was_not_declared_dead_after_all_is_still_judged() {
    let over = at("30s", "do = \"down\"\nnodes = \"8\"");
    // Told to a node whose membership has just ended: it does nothing, and says so.
    let refused = at("30.03s", "do = \"down\"\nnodes = \"3\"\nby = \"8\"");
    let r = twelve(&[&over, &refused, "[expect]\nmembers_up = 11\nremoved = 1\nsurvivors = 11"]);
    assert_eq!(r.not_done.iter().map(|u| &u.nodes[..]).collect::<Vec<_>>(), [&[3][..]], "{:?}", r.not_done);
    // The same while somebody else does it: that one counts.
    let by_leader = at("30.02s", "do = \"down\"\nnodes = \"3\"");
    twelve(&[&over, &by_leader, &refused, "[expect]\nmembers_up = 10\nremoved = 2\nsurvivors = 10"]);
}

#[test]
fn the_longest_of_several_times_without_replies_counts() {
    let long = at("20s", "do = \"deaf\"\nnodes = \"7\"\nto = \"replies\"\nfor = \"30s\"");
    let short = at("25s", "do = \"deaf\"\nnodes = \"7\"\nto = \"replies\"\nfor = \"1s\"");
    // The run is the same but for the act and the end of its span.
    assert_eq!(twelve(&[&long]).events + 2, twelve(&[&long, &short]).events);
    let for_good = at("20s", "do = \"deaf\"\nnodes = \"7\"\nto = \"replies\"");
    assert_eq!(twelve(&[&for_good]).events + 2, twelve(&[&for_good, &short]).events);
}

/// A hundred nodes for 50 s with these additions.
#[track_caller]
fn hundred(additions: &[&str]) -> RunResult {
    let text = format!("nodes = 100\nduration = \"50s\"\nstart_spread = \"1s\"\n{}", additions.join("\n"));
    let scenario = Scenario::parse(&text, &[]).unwrap_or_else(|e| panic!("{e}\n{text}"));
    let r = run(&scenario, 5, &Options::default()).unwrap_or_else(|e| panic!("{e}\n{text}"));
    assert!(r.holds(), "{text}\n{:?} {:?}", r.failed_why, r.violations);
    r
}

#[test]
fn a_deaf_node_among_many_finds_that_it_is_deaf_and_stirs_up_nothing() {
    let deaf = at("15s", "do = \"deaf\"\nnodes = \"7\"\nto = \"replies\"");
    let quiet = "[expect]\nremoved = 0\nmax_flips = 0\nmax_view_changes = 0\nmax_bytes_per_node_per_s = 600";
    hundred(&[&deaf, quiet]);
}

#[test]
fn the_smaller_side_of_a_split_looks_no_further_than_it_finds_who_answers() {
    let cut = at("15s", "do = \"partition\"\ngroups = [\"0..30\"]");
    let none = "[config]\n\"downing.strategy\" = \"none\"";
    hundred(&[none, &cut, "[expect]\nremoved = 0\nmax_bytes_per_node_per_s = 2000"]);
}

#[test]
fn actions_of_one_time_find_those_before_them_done() {
    let started = "started = 11\n";
    let r = twelve(&[started, &at("30s", "do = \"join\"\nnodes = \"11\""), &at("30s", "do = \"pause\"\nnodes = \"11\"\nfor = \"2s\"")]);
    assert_eq!(r.not_done, [], "the joiner runs as it is paused");
    let r = twelve(&[&at("30s", "do = \"leave\"\nnodes = \"5\""), &at("30s", "do = \"crash\"\nnodes = \"5\"")]);
    assert_eq!(r.not_done, [], "it was told to leave before it crashed");
}

#[test]
fn the_oldest_is_one_that_is_not_down() {
    // One is out of reach, so that the downed one cannot be removed at once.
    let actions = [
        at("20s", "do = \"crash\"\nnodes = \"7\""),
        at("22s", "do = \"down\"\nnodes = \"oldest\""),
        at("23s", "do = \"crash\"\nnodes = \"oldest\""),
    ];
    let r = twelve(&[&actions.concat(), "[expect]\nmembers_up = 9"]);
    assert_eq!(r.not_done, []);
}

/// Whom the nodes that started asked beside their seeds, and by which line.
fn helped(r: &RunResult) -> Vec<(Option<usize>, f64, u32, u32)> {
    r.helped.iter().map(|h| (h.line, h.at_s, h.node, h.asks)).collect()
}

#[test]
fn who_starts_while_no_seed_runs_asks_a_member_and_that_is_said() {
    let crash = at("20s", "do = \"crash\"\nnodes = \"0\"");
    let r = twelve(&[&crash, &at("40s", "do = \"restart\"\nnodes = \"0,5\""), "[expect]\nmembers_up = 12"]);
    // Of two that restart the first finds none of its seeds, the second one its seed again.
    assert_eq!(helped(&r), [(Some(9), 40.0, 0, 1)]);
    // The first that runs is cut off as it starts, and no member yet: the first member is asked.
    let cut = at("25s", "do = \"partition\"\ngroups = [\"1\"]") + &at("26s", "do = \"restart\"\nnodes = \"1\"");
    let r = twelve(&[&crash, &cut, &at("27s", "do = \"restart\"\nnodes = \"7\""), "[expect]\nsurvivors = 10"]);
    assert_eq!(helped(&r), [(Some(13), 26.0, 1, 2), (Some(18), 27.0, 7, 2)]);
    assert_eq!(twelve(&[]).helped, []);
}

#[test]
fn who_is_told_to_join_through_itself_founds_nothing() {
    let join = |to: &str| twelve(&["started = 10", &at("30s", &format!("do = \"join\"\nnodes = \"10,11\"\nto = \"{to}\""))]);
    let r = join("10");
    assert_eq!(r.not_done.iter().map(|u| (&u.nodes[..], &*u.why)).collect::<Vec<_>>(), [(&[10][..], "it was told to join through itself")]);
    let r = join("10,3");
    assert_eq!((r.not_done, r.members_up), (vec![], Some(12)));
}

#[test]
fn bytes_are_limited_though_who_is_left_alone_sends_nothing() {
    let text = |limits: &str| {
        let cut = at("40s", "do = \"partition\"\ngroups = [\"0..1\"]");
        format!(
            "nodes = 2\nstart_spread = \"1s\"\nduration = \"100s\"\n{}{cut}[expect]\n{limits}",
            WORKLOAD.replace("senders = 3", "senders = 2")
        )
    };
    let once = |limits: &str| run(&Scenario::parse(&text(limits), &[]).unwrap(), 3, &Options::default()).unwrap();
    let r = once("max_peak_bytes_per_node_per_s = 1\nmax_bytes_per_node_per_s = 1");
    assert_eq!((&r.failed[..], r.bytes_per_node_per_s.mean), (&["max_peak_bytes_per_node_per_s".to_owned()][..], Some(0.0)));
    assert!(r.peak_bytes_per_node_per_s.is_some_and(|peak| peak > 500.0), "{:?}", r.peak_bytes_per_node_per_s);
}

#[test]
fn who_is_missed_before_it_crashes_is_found_and_removed() {
    let paused = at("20s", "do = \"pause\"\nnodes = \"7\"");
    let expect = "[expect]\nmax_detect = \"10s\"\nmax_known = \"10s\"\nmax_removal = \"30s\"";
    for crash in ["26s", "60s"] {
        twelve(&[&paused, &at(crash, "do = \"crash\"\nnodes = \"7\""), expect]);
    }
}

#[test]
fn a_workload_without_time_sends_nothing() {
    let empty = WORKLOAD.replace("70s", "10s");
    assert_eq!(twelve(&[&empty]).sent, 0);
}

#[test]
fn an_operator_downs_all_that_are_named() {
    let three = "[expect]\nremoved = 3\nmembers_up = 9\nsurvivors = 9";
    for (nodes, by) in [("0..3", ""), ("0..3", "\nby = \"8\""), ("0..3", "\nby = \"1\""), ("leader,5,6", ""), ("4..7", "")] {
        let nodes = nodes.replace("leader", "0");
        let r = twelve(&[&at("30s", &format!("do = \"down\"\nnodes = \"{nodes}\"{by}")), three]);
        assert_eq!(r.not_done, [], "{nodes}{by}");
    }
    // The leader runs no more, and nobody has noticed: whoever does not know that asks somebody else.
    let crash = at("30s", "do = \"crash\"\nnodes = \"0\"");
    let r = twelve(&[&crash, &at("31s", "do = \"down\"\nnodes = \"0\""), "[expect]\nmembers_up = 11\nmax_removal = \"4s\""]);
    assert_eq!(r.not_done, []);
}

#[test]
fn who_came_behind_a_removal_is_not_waited_for() {
    let cut_off = at("10s", "do = \"partition\"\ngroups = [\"11\"]") + &at("12s", "do = \"join\"\nnodes = \"11\"");
    let crash = at("20s", "do = \"crash\"\nnodes = \"3\"");
    twelve(&["started = 11", &cut_off, &crash, "[expect]\nmax_known = \"20s\"\nmax_removal = \"30s\""]);
    let heal = at("50s", "do = \"heal\"");
    twelve(&["started = 11", &cut_off, &crash, &heal, "[expect]\nmembers_up = 11\nmax_known = \"20s\"\nmax_removal = \"30s\""]);
}

#[test]
fn a_joiners_first_picture_is_no_change() {
    let r = twelve(&["started = 11", &at("30s", "do = \"join\"\nnodes = \"11\""), "[expect]\nmembers_up = 12"]);
    assert_eq!(r.view_changes_max, 1);
}

#[test]
fn a_node_is_in_one_group() {
    let r = twelve(&[&at("30s", "do = \"partition\"\ngroups = [\"leader\", \"0..12\"]"), "[expect]\nsurvivors = 11\nremoved = 1"]);
    assert_eq!(r.not_done.iter().map(|u| (&u.nodes[..], &*u.why)).collect::<Vec<_>>(), [(&[0][..], "it is in an earlier group already")]);
}

#[test]
fn a_fault_that_comes_again_is_between_the_same_nodes() {
    // Others would be held unreachable each time.
    let link = "do = \"link\"\nfrom = \"all\"\nto = \"random:1\"\ncut = true\nboth = true\nfor = \"6s\"\nevery = \"12s\"";
    let config = "[config]\n\"downing.strategy\" = \"none\"";
    let r = twelve(&[config, &at("20s", link)]);
    assert!(r.flips_max >= 6, "one node comes and goes: {}", r.flips_max);
}
