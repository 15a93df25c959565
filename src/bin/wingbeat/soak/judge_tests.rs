//! Each planted fault is caught by the verdict that is there for it, and by that one alone.

use super::{super::ledger::Faults, *};

/// A process that was looked at each second, and what it had then.
fn life(seconds: u32, rss: impl Fn(f64) -> f64) -> Life {
    let look = |second: u32| {
        let at = f64::from(second);
        // Looks near a fault are not calm, and are far off.
        let calm = second % 20 >= 8;
        let rss = rss(at) + if calm { f64::from(second * 7 % 5) * 8.0 } else { 9_000.0 };
        Sample { at, calm, rss, record: 0.0, anon: rss / 2.0, pss: rss, descriptors: 30.0, threads: 9.0 }
    };
    Life { name: "place 4, node-4".into(), anchor: true, samples: (0..seconds).map(look).collect() }
}

/// What a clean run of so many minutes finds.
fn clean(minutes: u32) -> Findings {
    let latency = |p99_ns| Latency { count: 10_000, p50_ns: 200_000, p90_ns: 250_000, p99_ns, p999_ns: 2 * p99_ns, max_ns: 3 * p99_ns };
    let fault = |kind| Fault { at: 20.0, kind, whom: "place 1".into(), entities_lost: 0, healed: Some(Ok(4.2)), untold: 0, wrong: None };
    Findings {
        length: Duration::from_secs(60 * u64::from(minutes)),
        warm_up: Duration::from_secs(20),
        lives: vec![life(60 * minutes, |_| 20_000.0)],
        sums: Sums { meant: 360_000, accepted: 360_000, asked: 170_000, answered: 170_000, looks: 4_000, ending: true, ..Sums::default() },
        quiet: [latency(2_000_000), latency(2_100_000), latency(2_200_000)],
        faulted: latency(900_000_000),
        lateness: latency(1_000_000),
        faults: vec![fault(Kind::Kill), fault(Kind::Pause)],
        noise: Noise { foreign: Some(0.03), stall_p99_ns: 1_000_000, stall_max_ns: 40_000_000 },
        ..Findings::default()
    }
}

fn failed(found: &Findings) -> Vec<&'static str> {
    judge(found).into_iter().filter(|verdict| verdict.outcome == Outcome::Failed).map(|verdict| verdict.name).collect()
}

fn outcome(found: &Findings, name: &str) -> Outcome {
    judge(found).into_iter().find(|verdict| verdict.name == name).unwrap().outcome
}

/// The clean run with one thing changed.
fn with(minutes: u32, plant: impl FnOnce(&mut Findings)) -> Findings {
    let mut found = clean(minutes);
    plant(&mut found);
    found
}

#[test]
fn a_clean_run_holds_everything() {
    for minutes in [3, 10, 30, 150] {
        for verdict in judge(&clean(minutes)) {
            let expected = if verdict.name == "memory slope" && minutes < 120 { Outcome::Open } else { Outcome::Held };
            assert_eq!(verdict.outcome, expected, "{minutes} minutes: {verdict:?}");
        }
    }
}

#[test]
fn a_leak_of_a_thirtieth_of_a_mebibyte_a_minute_fails_half_an_hour() {
    assert_eq!(failed(&with(30, |found| found.lives = vec![life(1_800, |at| 20_000.0 + at * 0.6)])), ["memory"]);
    // 3 minutes cannot tell that, and say so; a fast leak they can.
    assert!(failed(&with(3, |found| found.lives = vec![life(180, |at| 20_000.0 + at * 0.6)])).is_empty());
    assert_eq!(failed(&with(3, |found| found.lives = vec![life(180, |at| 20_000.0 + at * 60.0)])), ["memory"]);
}

#[test]
fn a_slow_leak_fails_hours() {
    // 1.1 % per hour, which is not yet 2 % from the first third to the last.
    let leaking = |minutes| with(minutes, |found| found.lives = vec![life(60 * minutes, |at| 20_000.0 + at * 220.0 / 3_600.0)]);
    assert_eq!(failed(&leaking(150)), ["memory slope"]);
    assert!(failed(&leaking(60)).is_empty());
    let says = |found| judge(&found).into_iter().find(|verdict| verdict.name == "memory slope").unwrap().says;
    assert!(says(leaking(60)).starts_with("place 4, node-4: +1."), "it is shown all the same: {}", says(leaking(60)));
    let own = with(150, |found| {
        found.lives.push(life(9_000, |at| 20_000.0 + at * 320.0 / 3_600.0));
        found.lives[1].samples.iter_mut().for_each(|sample| sample.record = 1.0);
    });
    assert!(failed(&own).is_empty(), "what the load's process writes down is known too roughly");
}

#[test]
fn a_median_of_an_even_count_lies_between_the_two_in_the_middle() {
    assert_eq!(median(vec![]), 0.0);
    assert_eq!(median(vec![7.0]), 7.0);
    assert_eq!(median(vec![9.0, 1.0, 2.0]), 2.0);
    assert_eq!(median(vec![9.0, 1.0, 2.0, 4.0]), 3.0);
}

#[test]
fn memory_that_grows_in_the_warm_up_alone_is_flat() {
    assert!(failed(&with(30, |found| found.lives = vec![life(1_800, |at| 20_000.0 + at.min(20.0) * 400.0)])).is_empty());
}

#[test]
fn what_the_first_fault_of_a_kind_takes_is_warm_up() {
    let growing = |until: f64| vec![life(1_800, move |at| 20_000.0 + at.min(until) * 8.0)];
    let each_once = |found: &mut Findings| {
        let fault = |(at, kind): (usize, Kind)| Fault { at: 60.0 * at as f64, kind, ..found.faults[0].clone() };
        found.faults = KINDS.into_iter().enumerate().map(fault).collect();
    };
    assert_eq!(failed(&with(30, |found| found.lives = growing(400.0))), ["memory"], "not each kind came");
    let found = with(30, |found| {
        each_once(found);
        found.lives = growing(350.0);
    });
    assert!(failed(&found).is_empty());
    let leaking = with(30, |found| {
        each_once(found);
        found.lives = vec![life(1_800, |at| 20_000.0 + at * 0.6)];
    });
    assert_eq!(failed(&leaking), ["memory"]);
}

#[test]
fn a_process_that_lived_shortly_is_not_judged() {
    let short = |found: &mut Findings| found.lives.push(Life { anchor: false, ..life(300, |at| 20_000.0 + at * 50.0) });
    assert!(failed(&with(30, short)).is_empty());
}

#[test]
fn what_the_soak_writes_down_is_no_leak_of_its_process() {
    let own = |written_down: f64| {
        with(30, |found| {
            let mut own = life(1_800, |at| 20_000.0 + at * 1.4);
            own.samples.iter_mut().for_each(|sample| sample.record = sample.at * written_down);
            found.lives.push(own);
        })
    };
    assert!(failed(&own(0.6)).is_empty(), "the books grow a little");
    assert_eq!(failed(&own(0.05)), ["memory"], "there is more than that");
}

#[test]
fn descriptors_and_threads_that_pile_up_are_seen() {
    let pile = |samples: &mut Vec<Sample>, of: fn(&mut Sample) -> &mut f64| {
        samples.iter_mut().for_each(|sample| *of(sample) += (sample.at / 20.0).floor());
    };
    assert_eq!(failed(&with(3, |found| pile(&mut found.lives[0].samples, |sample| &mut sample.descriptors))), ["descriptors"]);
    assert_eq!(failed(&with(3, |found| pile(&mut found.lives[0].samples, |sample| &mut sample.threads))), ["threads"]);
}

#[test]
fn wrong_messages_fail_each_their_verdict() {
    let plant = |faults: Faults| failed(&with(3, |found| found.sums.faults = faults));
    assert_eq!(plant(Faults { reordered: 1, ..Faults::default() }), ["order"]);
    assert_eq!(plant(Faults { duplicated: 1, ..Faults::default() }), ["duplicates"]);
    assert_eq!(plant(Faults { lost: 1, ..Faults::default() }), ["losses"]);
    assert_eq!(plant(Faults { two_homes: 1, ..Faults::default() }), ["one home"]);
    assert_eq!(plant(Faults { contradicted: 1, ..Faults::default() }), ["one home"]);
}

#[test]
fn a_loss_that_a_node_counted_is_explained() {
    let counted = |dropped| {
        with(3, |found| {
            found.sums.faults.lost = 2;
            found.drops.insert("late".into(), dropped);
        })
    };
    assert!(failed(&counted(2)).is_empty());
    assert_eq!(failed(&counted(1)), ["losses"]);
}

#[test]
fn a_drop_that_its_sender_was_told_of_explains_no_loss() {
    let told = |told, letters| {
        with(3, |found| {
            found.sums.faults.lost = 2;
            found.drops.insert("late".into(), 5);
            found.sums.told.insert("late", told);
            found.sums.dead_letters.insert("late", letters);
        })
    };
    assert!(failed(&told(3, 0)).is_empty());
    assert_eq!(failed(&told(4, 0)), ["losses"]);
    assert!(failed(&told(4, 1)).is_empty(), "one of them may have been dropped on the sender's node, where nobody counts it as a drop");
}

#[test]
fn a_drop_while_homes_were_lost_explains_no_loss_elsewhere() {
    let counted = |while_lost| {
        with(3, |found| {
            found.sums.faults.lost = 1;
            found.drops.insert("fenced".into(), 2);
            found.faults[0].untold = while_lost;
        })
    };
    assert!(failed(&counted(1)).is_empty());
    assert_eq!(failed(&counted(2)), ["losses"]);
}

#[test]
fn what_fails_while_all_is_calm_fails_it_on_a_quiet_machine() {
    let calm = with(3, |found| found.sums.calm_failures = 1);
    assert_eq!(failed(&calm), ["calm failures"]);
    let noise = Noise { foreign: Some(0.4), ..Noise::default() };
    assert_eq!(outcome(&Findings { noise, ..calm }, "calm failures"), Outcome::Open);
}

#[test]
fn entities_that_were_not_seen_in_the_end_fail_it() {
    assert_eq!(failed(&with(3, |found| found.sums.unseen = 1)), ["all seen"]);
}

#[test]
fn a_removed_node_that_lived_fails_whatever_the_machine_did() {
    let removed = with(3, |found| {
        found.said.false_removals.push("12.0 s: a:1 became down, was up".into());
        found.noise.foreign = Some(0.9);
    });
    assert_eq!(failed(&removed), ["false removals"]);
}

#[test]
fn a_suspicion_fails_on_a_quiet_machine_only() {
    let suspected = |noise| {
        with(3, |found| {
            found.said.suspicions.push("12.0 s: a:1: silent".into());
            found.noise = noise;
        })
    };
    assert_eq!(failed(&suspected(Noise::default())), ["suspicions"]);
    for noise in [
        Noise { foreign: Some(0.4), ..Noise::default() },
        Noise { stall_p99_ns: 30_000_000, ..Noise::default() },
        Noise { stall_max_ns: 700_000_000, ..Noise::default() },
    ] {
        assert_eq!(outcome(&suspected(noise), "suspicions"), Outcome::Open, "{noise:?}");
    }
}

#[test]
fn a_load_that_got_no_core_in_time_judges_no_clock() {
    let starved = with(3, |found| {
        found.lateness.p99_ns = 90_000_000;
        found.sums.waited = Duration::from_secs(9);
    });
    assert_eq!(outcome(&starved, "rate"), Outcome::Open);
    // Over half an hour of a machine that nobody else uses, the soak itself is to blame.
    assert_eq!(failed(&Findings { length: Duration::from_secs(1_800), ..starved }), ["rate"]);
}

#[test]
fn latency_that_drifts_is_seen_in_a_long_run_and_much_of_it_in_a_short_one() {
    let drifted = |minutes, p99_ns| with(minutes, |found| found.quiet[2].p99_ns = p99_ns);
    assert_eq!(failed(&drifted(30, 2_600_000)), ["latency"]);
    // A third more, on a machine that takes a tenth more itself, or a fifth.
    for (floor, expected) in [([50_000, 0, 55_000], &["latency"][..]), ([50_000, 0, 60_000], &[]), ([0, 0, 60_000], &["latency"])] {
        assert_eq!(failed(&Findings { floor, ..drifted(30, 2_660_000) }), expected, "{floor:?}");
    }
    assert_eq!(
        failed(&Findings { floor: [60_000, 0, 30_000], ..drifted(30, 2_350_000) }),
        [""; 0],
        "a faster machine is no reason to be faster"
    );
    assert!(failed(&drifted(3, 2_600_000)).is_empty());
    assert_eq!(failed(&drifted(3, 80_000_000)), ["latency"]);
    let noisy = with(30, |found| {
        found.quiet[2].p99_ns = 2_600_000;
        found.noise.foreign = Some(0.3);
    });
    assert_eq!(outcome(&noisy, "latency"), Outcome::Open);
}

#[test]
fn latency_is_not_judged_to_be_well_either_where_others_used_the_machine() {
    for minutes in [3, 30] {
        let noise = Noise { foreign: Some(0.22), ..Noise::default() };
        let open: Vec<_> =
            judge(&with(minutes, |found| found.noise = noise)).into_iter().filter(|verdict| verdict.outcome != Outcome::Held).collect();
        assert_eq!(open.iter().map(|verdict| verdict.name).collect::<Vec<_>>(), ["memory slope", "latency"], "{open:?}");
    }
}

#[test]
fn a_fault_that_did_not_heal_or_went_otherwise_fails() {
    assert_eq!(failed(&with(3, |found| found.faults[0].healed = Some(Err("a shard has no home".into())))), ["healing"]);
    assert_eq!(failed(&with(3, |found| found.faults[1].wrong = Some("it ended with 1".into()))), ["healing"]);
    assert_eq!(outcome(&with(3, |found| found.faults.clear()), "healing"), Outcome::Open);
}

#[test]
fn what_an_interruption_left_unknown_is_open_and_what_was_found_fails() {
    let interrupted = |plant: fn(&mut Findings)| {
        with(3, |found| {
            found.interrupted = true;
            found.faults[1].healed = None;
            found.sums.unseen = 3;
            plant(found);
        })
    };
    let cut = interrupted(|_| ());
    assert!(failed(&cut).is_empty());
    for name in ["end", "all seen", "healing"] {
        let verdict = judge(&cut).into_iter().find(|verdict| verdict.name == name).unwrap();
        assert_eq!(verdict.outcome, Outcome::Open, "{name}");
        assert!(verdict.says.contains("interrupted"), "{}", verdict.says);
    }
    assert_eq!(failed(&interrupted(|found| found.sums.faults.lost = 1)), ["losses"]);
    assert_eq!(failed(&interrupted(|found| found.faults[0].wrong = Some("it ended with 1".into()))), ["healing"]);
    assert_eq!(failed(&interrupted(|found| found.broken = Some("node-1 ended by itself".into()))), ["end"]);
}

#[test]
fn a_load_that_is_not_taken_or_not_sent_in_time_fails() {
    let refused = with(3, |found| found.sums.accepted = 340_000);
    assert_eq!(failed(&refused), ["rate"]);
    let noise = Noise { foreign: Some(0.89), ..Noise::default() };
    assert_eq!(outcome(&Findings { noise, ..refused }, "rate"), Outcome::Open, "the nodes had no cores");
    assert_eq!(failed(&with(3, |found| found.lateness.p99_ns = 90_000_000)), ["rate"]);
}

#[test]
fn panics_and_a_broken_run_fail() {
    assert_eq!(failed(&with(3, |found| found.panics.push("node-1: panicked at x".into()))), ["panics"]);
    assert_eq!(failed(&with(3, |found| found.broken = Some("node-1 ended by itself".into()))), ["end"]);
}
