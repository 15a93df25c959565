//! Lives that follow one another at an address, and clusters that are founded beside one another for that.

use super::{super::MemberFrame, Ending, MemberStatus, NodeId, Removal, SEEDS, World, addr, fast, millis, proof, secs};
use crate::proto::link::{LinkDown, LinkEvent};

// failures: row 18
#[test]
fn a_node_restarted_on_its_address_replaces_its_earlier_life() {
    for seed in 0..SEEDS {
        for n in [2usize, 3] {
            let mut world = World::cluster(seed, n, &fast());
            for _ in 0..3 {
                let victim = 1 + (seed as usize % n);
                let old = world.nodes[&victim].id;
                world.crash(victim);
                world.run(millis(20));
                let all: Vec<usize> = (1..=n).collect();
                world.start(victim, fast(), &all);
                let took = world.run_until(secs(5), "rejoining", |w| w.one_cluster(&all));
                assert!(took < millis(1500), "seed {seed}: {took:?}");
                let other = 1 + (victim % n);
                assert!(world.nodes[&other].machine.is_removed(old));
                assert_eq!(world.nodes[&other].removed.last(), Some(&(old, Removal::Downed { proven: true })));
            }
        }
    }
}

/// In a storm of news little is worked out of each by itself. But who was accused is observed until it is removed, and whoever hears of that and takes in the
/// next life in one go observes it no longer: [`World`] checks the invariants of a machine after each call.
#[test]
fn a_life_is_replaced_in_a_storm_of_joins() {
    for seed in 0..SEEDS {
        let mut world = World::cluster(seed, 4, &fast());
        let mut all = vec![1, 2, 3, 4];
        world.crash(4);
        world.run_until(secs(5), "missing it", |w| w.view(2).contains(&(4, MemberStatus::Up, false)));
        for joiner in 5..20 {
            world.start(joiner, fast(), &[1]);
            all.push(joiner);
            if joiner == 10 {
                world.start(4, fast(), &[2]);
            }
            world.run(millis(40));
        }
        world.run_until(secs(10), "rejoining", |w| w.one_cluster(&all));
    }
}

/// What is heard late of the links of an earlier life says nothing of the one that lives now, least of all that another one answers there.
#[test]
fn the_end_of_an_earlier_life_is_no_evidence_against_the_next() {
    for seed in 0..SEEDS {
        let mut world = World::cluster(seed, 3, &proof());
        let old = world.nodes[&2].id;
        world.crash(2);
        world.run(millis(20));
        world.start(2, proof(), &[1, 2, 3]);
        world.run_until(secs(5), "rejoining", |w| w.one_cluster(&[1, 2, 3]));
        for cause in [LinkDown::Reset, LinkDown::OtherIncarnation(world.nodes[&2].id)] {
            let event = LinkEvent::Down { peer: Some(old), addr: addr(2), cause, lost: 1 };
            world.with(1, |m, now| m.handle_link(now, &event));
        }
        assert!(world.one_cluster(&[1, 2, 3]), "seed {seed}: {}", world.describe());
        world.run(secs(2));
        assert!(world.one_cluster(&[1, 2, 3]), "seed {seed}: {}", world.describe());
    }
}

/// Its earlier life cannot be removed while a third one stands still; that is no reason to found another cluster.
#[test]
fn a_first_seed_that_must_wait_founds_no_second_cluster() {
    for seed in 0..SEEDS {
        let mut world = World::cluster(seed, 3, &fast());
        world.crash(1);
        world.nodes.get_mut(&3).unwrap().paused = true;
        world.start(1, fast(), &[1, 2, 3]);
        for _ in 0..100 {
            world.run(millis(100));
            let up: Vec<usize> = world.view(1).iter().filter(|(_, status, _)| *status == MemberStatus::Up).map(|(n, ..)| *n).collect();
            assert!(up != [1], "seed {seed}: alone after {:?}: {}", world.now, world.describe());
        }
        world.nodes.get_mut(&3).unwrap().paused = false;
        world.run(secs(10));
        let two = world.one_cluster(&[1, 2]) || world.one_cluster(&[1, 2, 3]);
        assert!(two, "seed {seed}: {}", world.describe());
    }
}

#[test]
fn who_is_alone_gives_way_to_a_cluster_that_goes_on_and_to_no_other() {
    let mut world = World::cluster(0, 2, &fast());
    world.start(3, fast(), &[]);
    world.run(millis(100));
    // Nobody answers there.
    let (from, at) = (NodeId::new(&addr(9), 1), addr(9));
    let digest = fast().digest();
    let stranger = |takes, clustered, others: &[usize], settings| MemberFrame::Answer {
        at: addr(9),
        takes,
        cluster: u64::from(clustered),
        settings,
        others: others.iter().map(|&n| addr(n)).collect(),
        members: 3,
        ups: 3,
        out: false,
    };
    let hears = |world: &mut World, n: usize, asked: bool, answer: &MemberFrame| {
        world.with(n, |m, now| {
            if asked {
                m.handle_frame(now, from, &at, MemberFrame::IAm);
            }
            m.handle_frame(now, from, &at, answer.clone());
        });
        world.run(millis(10));
        world.ended(n).cloned()
    };
    assert_eq!(hears(&mut world, 3, true, &stranger(false, true, &[2], digest + 1)), None, "it would be refused there");
    assert_eq!(hears(&mut world, 3, true, &stranger(false, false, &[2], digest)), None, "who has no cluster knows of none");
    assert_eq!(hears(&mut world, 3, true, &stranger(false, true, &[], digest)), None, "that cluster ends with who speaks");
    let goes_on = stranger(false, true, &[2], digest);
    assert_eq!(hears(&mut world, 3, false, &goes_on), None, "nobody has asked");
    assert_eq!(hears(&mut world, 3, true, &goes_on), Some(Ending::Superseded(vec![addr(9), addr(2)])));
    let mut round = 0;
    while hears(&mut world, 2, true, &goes_on).is_none() {
        round += 1;
        world.run(millis(100));
        assert!(round < 40, "it has been sure for long");
        if round == 15 {
            world.run(secs(1));
        }
    }
    assert!(round > 30, "it is not alone, so it makes sure, and anew after a silence: {round}");
    assert_eq!(world.ended(2), Some(&Ending::Superseded(vec![addr(9), addr(2)])));
}

/// As its datagrams may be lost.
#[test]
fn who_is_told_over_a_link_that_it_was_removed_ends_if_a_member_says_so() {
    let mut world = World::cluster(0, 3, &fast());
    let (me, member) = (world.nodes[&2].id, world.nodes[&1].id);
    let mut hear = |from: NodeId, at: usize, node: NodeId| {
        world.with(2, |m, now| m.handle_frame(now, from, &addr(at), MemberFrame::Removed { node }));
        world.ended(2).cloned()
    };
    assert_eq!(hear(NodeId::new(&addr(9), 1), 9, me), None, "a stranger says it");
    assert_eq!(hear(member, 1, member), None, "it is of another one");
    assert_eq!(hear(member, 1, me), Some(Ending::Downed("this node was removed from the cluster".into())));
}

/// Two of three members, which have removed the first seed, that was dead; and its id.
fn without_first_seed(seed: u64) -> (World, NodeId) {
    let mut world = World::cluster(seed, 3, &fast());
    let old = world.nodes[&1].id;
    world.crash(1);
    world.run_until(secs(30), "removed", |w| w.nodes[&2].machine.is_removed(old) && w.one_cluster(&[2, 3]));
    (world, old)
}

/// Members look where their seed should be, also long after they have removed it.
#[test]
fn a_seed_that_is_back_after_its_removal_is_told_by_the_leader() {
    for seed in 0..SEEDS {
        let (mut world, _) = without_first_seed(seed);
        world.start(1, fast(), &[1]);
        world.run_until(
            secs(5),
            "told",
            |w| matches!(w.ended(1), Some(Ending::Superseded(by)) if by.contains(&addr(2)) && by.contains(&addr(3))),
        );
    }
}

/// It was taken in, did not hear of it, founded a cluster of its own, and was removed as it did not answer: each knows that the other is no member.
#[test]
fn who_founded_a_cluster_beside_the_one_that_has_removed_it_gives_way() {
    for seed in 0..SEEDS {
        let (mut world, old) = without_first_seed(seed);
        let mut config = fast();
        config.cluster.seeds = vec![addr(1).to_string()];
        world.start_life(1, config, old.incarnation());
        world.run_until(secs(5), "told", |w| matches!(w.ended(1), Some(Ending::Superseded(_))));
    }
}

/// Who is asked is there, and what it answers is slow to come.
#[test]
fn a_first_seed_does_not_found_while_a_member_has_a_link_to_it() {
    let mut world = World::new(3);
    let mut config = fast();
    config.cluster.seeds = vec![addr(1).to_string(), addr(2).to_string()];
    let patience = config.membership.seed_timeout.get();
    world.split(&[1], &[9]);
    world.start_as(1, config);
    let (stranger, at) = (NodeId::new(&addr(9), 1), addr(9));
    world.with(1, |m, now| m.handle_link(now, &LinkEvent::Up { peer: stranger, addr: at.clone(), session: 1 }));
    world.run(patience * 2);
    assert!(world.nodes[&1].machine.cluster() == 0, "it has not answered");
    let none = MemberFrame::Answer { at: at.clone(), takes: false, cluster: 0, settings: 0, others: vec![], members: 0, ups: 0, out: true };
    world.with(1, |m, now| m.handle_frame(now, stranger, &at, none));
    assert!(world.nodes[&1].machine.cluster() != 0, "nobody who is there has one");
}

/// The only one that a joiner knows invites it, and is gone before it has taken it in.
#[test]
fn who_was_invited_has_others_to_ask() {
    for seed in 0..SEEDS {
        let mut world = World::cluster(seed, 3, &fast());
        world.start(4, fast(), &[1]);
        world.run_until(secs(1), "invited", |w| w.is_asked_to_admit(1));
        world.crash(1);
        world.run_until(secs(30), "taken in", |w| w.one_cluster(&[2, 3, 4]));
    }
}

/// Node 3 joins through node 2 and crashes, and starts again through node 1, which has not heard of its first life; both ids.
fn two_lives_on_two_sides(world: &mut World) -> (NodeId, NodeId) {
    world.split(&[1], &[2]);
    world.start(3, fast(), &[2]);
    let earlier = world.nodes[&3].id;
    world.run_until(secs(1), "joining one side", |w| w.nodes[&2].machine.view().member(earlier).is_some());
    world.crash(3);
    world.start(3, fast(), &[1]);
    let later = world.nodes[&3].id;
    world.run_until(secs(1), "joining the other side", |w| w.nodes[&1].machine.view().member(later).is_some());
    (earlier, later)
}

// failures: M1
#[test]
fn a_merge_brings_no_earlier_life_after_a_later_one() {
    for seed in 0..SEEDS {
        let mut world = World::cluster(seed, 2, &fast());
        let (earlier, later) = two_lives_on_two_sides(&mut world);
        if seed % 2 == 0 {
            // One side knows that it is dead; otherwise whoever leads finds out who answers at the address.
            world.with(2, |m, now| m.down(now, earlier)).unwrap();
        }
        world.cut.clear();
        while !world.one_cluster(&[1, 2, 3]) {
            let late = |w: &World, n: usize| w.nodes[&n].machine.view().member(earlier).is_some();
            assert!(!late(&world, 1) && !late(&world, 3), "seed {seed}\n{}", world.describe());
            world.run(millis(1));
            assert!(world.now < crate::Time::ZERO + secs(60), "seed {seed}\n{}", world.describe());
        }
        for n in 1..=3 {
            assert!(world.nodes[&n].machine.view().member(later).is_some());
            assert!(world.nodes[&n].machine.is_removed(earlier), "seed {seed}, node {n}");
        }
        assert!(world.nodes[&1].removed.iter().all(|(id, _)| *id == earlier), "nobody else went");
    }
}
