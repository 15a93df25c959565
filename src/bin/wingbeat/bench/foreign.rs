//! `bench foreign-load`: two nodes tell as much as they can while somebody else wants every core: what gets through, and whether a node is
//! suspected that lives.

use std::{
    cell::Cell,
    hint,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use wingbeat::{Event, MemberStatus};

use super::{
    BenchArgs,
    homes::{self, Two},
    load::Ends,
    local,
    report::{Report, Run},
    rig::Error,
};

/// A worker for each of two cores, in each of the two processes.
const SETTINGS: &[(&str, &str)] = &[("node.workers", "2")];

/// The limit is the same for half the time with the machine for themselves. Both nodes host, so that each has half of the messages to handle.
pub fn measure(args: &BenchArgs, report: &mut Report) -> Result<(), Error> {
    let two = Two::start(args, SETTINGS)?;
    homes::until_balanced(&two.region, 2)?;
    let Two { cluster, region, all, .. } = &two;
    // Suspicions are gossiped, so those of the other node are heard here as well.
    let events = cluster.events();
    // Each entity was told one message when it was started.
    let total = Cell::new(all.len() as u64);
    let tell = |window: Duration| {
        let (run, sent) = local::tell_for(all, Some(region), window)?;
        total.set(total.get() + sent);
        local::nothing_is_lost(all, total.get()).map(|()| Run { allocations: None, ..run })
    };
    report.sum("false_suspicions");
    report.rounds(
        "the same while nothing else runs",
        args.runs(),
        || tell(args.window() / 2),
        || {
            let run = beside_burners(|| tell(args.window()))?;
            let suspicions = events.try_iter().filter(is_suspicion).count();
            let details = vec![("false_suspicions", suspicions as f64), ("seconds", args.secs()), ("burners", cores() as f64)];
            Ok(Run { details, ..run })
        },
    )
}

/// No node is stopped here, and none leaves.
fn is_suspicion(event: &Event) -> bool {
    match event {
        Event::Unreachable { .. } => true,
        Event::Member { member, .. } => matches!(member.status, MemberStatus::Down | MemberStatus::Removed),
        _ => false,
    }
}

fn cores() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// Runs `f` while a thread per core does nothing but use it. To the scheduler they are as any other program's, and they are not taken for load
/// from outside of the measurement.
fn beside_burners<R>(f: impl FnOnce() -> R) -> R {
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        let _ends = Ends(&ended);
        for _ in 0..cores() {
            scope.spawn(|| {
                while !ended.load(Ordering::Acquire) {
                    (0..10_000u32).for_each(|n| _ = hint::black_box(n));
                }
            });
        }
        f()
    })
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Instant};

    use wingbeat::NodeId;

    use super::*;

    #[test]
    fn burners_end_with_what_they_burn_beside() {
        let began = Instant::now();
        assert_eq!(beside_burners(|| 7), 7);
        assert!(began.elapsed() < Duration::from_secs(20));
    }

    #[test]
    fn a_node_held_unreachable_is_suspected_and_one_that_is_reachable_again_is_not() {
        let node = NodeId::from_raw(7);
        assert!(is_suspicion(&Event::Unreachable { node, by: Arc::from([]), why: "silent".into() }));
        assert!(!is_suspicion(&Event::Reachable { node }));
    }
}
