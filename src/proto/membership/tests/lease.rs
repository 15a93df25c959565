//! `lease-majority`: whose leader gets the lease lives, whatever happens around the asking.

use super::{
    super::{Ending, Event, MemberStatus},
    fast, millis, secs,
    world::World,
};
use crate::{
    Config, Time,
    config::DowningStrategy,
    proto::lease::{LeaseAnswer, LeaseCall},
};

fn by_lease() -> Config {
    let mut config = fast();
    config.downing.strategy = DowningStrategy::LeaseMajority;
    config
}

/// All of `gone` end, all of `left` are one cluster.
fn resolved(world: &World, left: &[usize], gone: &[usize]) -> bool {
    world.one_cluster(left) && gone.iter().all(|&n| world.ended(n).is_some())
}

/// When somebody first told of a decision, and when the last one did.
fn decided(world: &World) -> (Time, Time) {
    let times = || world.nodes.values().flat_map(|n| &n.events).filter(|(_, e)| matches!(e, Event::Split { .. })).map(|(t, _)| *t);
    (times().min().unwrap(), times().max().unwrap())
}

/// How many sides still stand, by members that have not ended and hold themselves up.
fn survivors(world: &World) -> Vec<usize> {
    let up = |n: &usize| world.ended(*n).is_none() && world.view(*n).iter().any(|(i, s, _)| i == n && *s == MemberStatus::Up);
    world.nodes.keys().copied().filter(up).collect()
}

#[test]
fn the_larger_side_asks_first_and_lives() {
    for seed in 0..10 {
        let mut world = World::cluster(seed, 5, &by_lease());
        world.split(&[1, 3, 5], &[2, 4]);
        world.run_until(secs(30), "resolution", |w| resolved(w, &[1, 3, 5], &[2, 4]));
        assert!(matches!(world.ended(2), Some(Ending::Downed(why)) if why.contains("lease-majority") || why.contains("down")));
        let (first, last) = decided(&world);
        assert!(last.since(first) <= world.nodes[&1].machine.lag_bound());
        let asked: Vec<usize> = world.lease_calls.iter().map(|(_, n, ..)| *n).collect();
        assert_eq!(asked, [1, 2], "the leaders of the two sides, once each");
    }
}

#[test]
fn a_tie_goes_to_the_lowest_address_and_a_crash_needs_the_lease_too() {
    let mut world = World::cluster(1, 4, &by_lease());
    world.split(&[1, 4], &[2, 3]);
    world.run_until(secs(30), "resolution", |w| resolved(w, &[1, 4], &[2, 3]));
    world.reap();
    world.crash(4);
    world.run_until(secs(30), "removal", |w| w.one_cluster(&[1]));
}

#[test]
fn the_smaller_side_lives_if_only_it_reaches_the_lease() {
    for seed in 0..5 {
        let mut world = World::cluster(seed, 5, &by_lease());
        world.no_lease = [1, 3, 5].into();
        world.split(&[1, 3, 5], &[2, 4]);
        world.run_until(secs(40), "resolution", |w| resolved(w, &[2, 4], &[1, 3, 5]));
        let (first, last) = decided(&world);
        assert!(last.since(first) <= world.nodes[&2].machine.lag_bound(), "{:?}", last.since(first));
    }
}

#[test]
fn nobody_lives_where_nobody_reaches_the_lease() {
    let mut world = World::cluster(3, 3, &by_lease());
    world.no_lease = [1, 2, 3].into();
    world.crash(3);
    world.run_until(secs(40), "the end", |w| [1, 2].iter().all(|&n| w.ended(n).is_some()));
    assert!(matches!(world.ended(1), Some(Ending::Downed(why)) if why.contains("could not be asked")));
}

/// The holder of the lease still has it when the next split comes: one that holds it beats two that do not.
#[test]
fn who_holds_the_lease_keeps_it_over_the_next_split() {
    let mut world = World::cluster(4, 5, &by_lease());
    world.split(&[1, 2, 3], &[4, 5]);
    world.run_until(secs(30), "the first split", |w| resolved(w, &[1, 2, 3], &[4, 5]));
    world.reap();
    // Cut off before the lease falls free.
    let given = world.lease_calls.iter().find(|(.., answer)| matches!(answer, Some(LeaseAnswer::Held(_)))).unwrap().0;
    world.split(&[1], &[2, 3]);
    world.run_until(secs(30), "the second split", |w| resolved(w, &[1], &[2, 3]));
    let waits = world.nodes[&1].machine.waits();
    assert!(waits.hold > waits.apart);
    let again = world.lease_calls.iter().filter(|(_, n, _, answer)| *n == 1 && matches!(answer, Some(LeaseAnswer::Held(_))));
    assert_eq!(again.map(|(t, ..)| *t > given).filter(|later| *later).count(), 1, "{:?}", world.lease_calls);
}

#[test]
fn the_lease_is_given_back_when_the_other_side_can_ask_no_more() {
    let mut world = World::cluster(5, 3, &by_lease());
    world.crash(3);
    world.run_until(secs(30), "removal", |w| w.one_cluster(&[1, 2]));
    let given = world.lease_calls.last().unwrap().0;
    world.run_until(secs(60), "release", |w| w.lease_calls.len() == 2);
    let (at, .., answer) = world.lease_calls.last().unwrap();
    assert_eq!((at.since(given), answer), (world.nodes[&1].machine.waits().hold, &None));
}

/// A picture that never stands still is decided all the same, in bounded time, for one of the sides: the one whose picture is still may ask
/// first although it is the smaller.
#[test]
fn an_unsteady_split_is_decided_in_time() {
    for seed in 0..5 {
        let mut world = World::cluster(seed, 5, &by_lease());
        world.split(&[1, 2, 3], &[4, 5]);
        let waits = world.nodes[&1].machine.waits();
        let began = world.now;
        // The link between 2 and 3, and so the picture of their side, comes and goes.
        for round in 0.. {
            match round % 2 {
                0 => world.split(&[1, 2], &[3]),
                _ => [1, 2].into_iter().for_each(|a| {
                    world.cut.remove(&(a, 3));
                    world.cut.remove(&(3, a));
                }),
            }
            world.run(millis(1300));
            let over = |side: &[usize]| side.iter().all(|&n| world.ended(n).is_some());
            if (over(&[1, 2, 3]) || over(&[4, 5])) && !world.lease_calls.is_empty() {
                break;
            }
            assert!(world.now.since(began) < waits.last_ask + waits.answer + secs(6), "{}", world.describe());
        }
        world.cut.clear();
        world.run(secs(20));
        let left = survivors(&world);
        assert!([&[1, 2, 3][..], &[4, 5]].iter().any(|side| left.iter().all(|n| side.contains(n))), "{}", world.describe());
    }
}

/// A side that slept through the decision and wakes when the lease has fallen free again does not ask for it.
#[test]
fn who_slept_through_the_decision_does_not_ask() {
    for slept in [secs(12), secs(60)] {
        for seed in 0..5 {
            let mut world = World::cluster(seed, 5, &by_lease());
            for n in [1, 2, 3] {
                world.nodes.get_mut(&n).unwrap().paused = true;
            }
            world.split(&[1, 2, 3], &[4, 5]);
            world.run_until(secs(40), "the others decide", |w| w.one_cluster(&[4, 5]));
            world.run(slept);
            for n in [1, 2, 3] {
                world.nodes.get_mut(&n).unwrap().paused = false;
            }
            world.run(secs(40));
            assert_eq!(survivors(&world), [4, 5], "{}", world.describe());
        }
    }
}

/// Any cut of five, at any moment of another fault, with answers of the lease that get lost: one side at most.
#[test]
fn two_sides_never_live() {
    for seed in 0..60u64 {
        let mut rng = crate::proto::rng::Rng::new(seed);
        let mut world = World::cluster(seed, 5, &by_lease());
        let side: Vec<bool> = (0..5).map(|_| rng.chance(0.5)).collect();
        let (a, b): (Vec<usize>, Vec<usize>) = (1..=5).partition(|&n| side[n - 1]);
        world.no_lease = (1..=5).filter(|_| rng.chance(0.2)).collect();
        if rng.chance(0.3) {
            world.crash(1 + rng.below(5) as usize);
        }
        world.split(&a, &b);
        world.run(millis(rng.below(4000)));
        let left: Vec<usize> = world.nodes.keys().copied().collect();
        let paused = left[rng.below(left.len() as u64) as usize];
        world.nodes.get_mut(&paused).unwrap().paused = rng.chance(0.3);
        world.run(millis(rng.below(8000)));
        world.nodes.get_mut(&paused).unwrap().paused = false;
        world.run(secs(40));
        let left = survivors(&world);
        let one_side = left.iter().all(|n| a.contains(n)) || left.iter().all(|n| b.contains(n));
        assert!(one_side || a.is_empty() || b.is_empty(), "seed {seed}: {left:?} of {a:?} and {b:?}\n{}", world.describe());
    }
}

/// A joiner whose side goes down without it does not know when the split began, and the lease may have been given back by the time at which it asks.
#[test]
fn a_joiner_that_is_left_over_does_not_ask() {
    for seed in 0..10 {
        let mut world = World::cluster(seed, 5, &by_lease());
        world.split(&[1, 3, 5], &[2, 4, 6]);
        let lost = |w: &World| w.view(2).iter().filter(|m| !m.2).count();
        world.run_until(secs(10), "a cut", |w| lost(w) == 3);
        world.start(6, by_lease(), &[2]);
        world.run_until(secs(5), "a join", |w| w.view(6).len() == 6);
        world.split(&[6], &[1, 2, 3, 4, 5]);
        world.run_until(secs(60), "an end", |w| w.ended(6).is_some());
        assert!(world.lease_calls.iter().all(|(_, n, ..)| *n != 6), "seed {seed}: {:?}", world.lease_calls);
        world.run_until(secs(60), "resolution", |w| resolved(w, &[1, 3, 5], &[2, 4]));
    }
}

/// It is asked for again under the same term: to give back the first time would end the second one as well.
#[test]
fn a_lease_that_is_asked_for_again_is_not_given_back() {
    let mut between = 0;
    for late in 0..30 {
        let mut world = World::cluster(5, 4, &by_lease());
        let waits = world.nodes[&1].machine.waits();
        world.crash(4);
        let lost = world.now;
        world.run_until(secs(30), "the first time", |w| !w.lease_calls.is_empty());
        let asked = world.lease_calls[0].0;
        // To ask takes as long after another crash, and this time there is no answer.
        world.run(millis(50));
        world.no_lease = [1].into();
        world.run(waits.hold - asked.since(lost) - millis(750) + millis(50) * late);
        world.crash(3);
        world.run(asked.since(lost) + secs(2));
        let again: Vec<Time> = world.lease_calls[1..].iter().filter(|(_, _, call, _)| is_asked(call)).map(|call| call.0).collect();
        let waits_for_answer = |at: Time| again.iter().any(|&asked| asked <= at && at < asked + waits.answer);
        between += usize::from(waits_for_answer(asked + waits.hold));
        for (at, _, call, _) in &world.lease_calls[1..] {
            assert!(is_asked(call) || !waits_for_answer(*at), "given back at {at:?}, asked for again at {again:?}");
        }
    }
    assert!(between > 0, "at times the first time ends between question and answer");
}

fn is_asked(call: &LeaseCall) -> bool {
    matches!(call, LeaseCall::Acquire { .. })
}
