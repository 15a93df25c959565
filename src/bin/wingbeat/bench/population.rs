//! `bench start` and `bench memory`: a million entities, from their first message to idleness.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use wingbeat::{Cluster, EntityRef, HostOptions, Region, ShutdownReason, config::Workers};

use super::{
    BenchArgs, alloc,
    entity::{Bench, BenchEntity, Count},
    limits,
    report::{Report, Run},
    rig::{self, Error, PATIENCE},
};

/// Entities that are there before anything is measured, so that rings and tables of the node have come to their usual size.
const WARM: u64 = 1000;

/// A node and references to entities that do not exist yet.
struct Ground {
    cluster: Cluster,
    region: Region<Bench>,
    new: Vec<EntityRef<Bench>>,
    started: Arc<AtomicU64>,
}

fn ground(args: &BenchArgs) -> Result<Ground, Error> {
    let cluster = rig::start(&args.settings(), &[])?;
    let started = Arc::new(AtomicU64::new(0));
    let count = started.clone();
    let region = cluster.host::<BenchEntity>(HostOptions::new(), move |_| {
        count.fetch_add(1, Ordering::Relaxed);
        BenchEntity::default()
    })?;
    rig::warm(&region, WARM)?;
    let new = (WARM..WARM + args.entities()).map(|key| region.get(key)).collect();
    Ok(Ground { cluster, region, new, started })
}

impl Drop for Ground {
    /// Ends the node and waits for it: what it gives back must not be weighed with the next one.
    fn drop(&mut self) {
        let _ = self.cluster.shutdown(ShutdownReason::Requested).wait(PATIENCE);
    }
}

impl Ground {
    /// Tells each new entity something, and waits until the last is started. By a thread that ends, so that its rings do, which are no entities'.
    fn populate(&self, single: bool) -> Result<Duration, Error> {
        let (before, began) = (self.started.load(Ordering::Relaxed), Instant::now());
        let tell = || {
            let mut teller = rig::Teller::new(&self.new, (!single).then(|| self.region.batch()));
            teller.tell(self.new.len() as u64).map_err(|error| error.to_string())
        };
        // Joined, which waits for the end of what belongs to the thread.
        std::thread::scope(|threads| threads.spawn(tell).join()).map_err(|_| "the thread that tells entities has panicked")??;
        while self.started.load(Ordering::Relaxed) - before < self.new.len() as u64 {
            if began.elapsed() > PATIENCE {
                return Err(format!(
                    "{} of {} entities were started in time",
                    self.started.load(Ordering::Relaxed) - before,
                    self.new.len()
                )
                .into());
            }
            std::thread::yield_now();
        }
        Ok(began.elapsed())
    }

    /// Waits until the worker has seen that the thread that told entities has ended: it looks into all lanes between two answers.
    fn settle(&self) -> Result<(), Error> {
        (0..2).try_for_each(|_| self.region.get(0).ask(Count, PATIENCE).map(drop).map_err(Error::from))
    }

    /// Fails unless each entity has handled the one message that it was told.
    fn check(&self) -> Result<(), Error> {
        let (handled, told) = (rig::handled(&self.new)?, self.new.len() as u64);
        if handled == told { Ok(()) } else { Err(format!("{told} messages were sent and {handled} handled").into()) }
    }

    fn workers(&self) -> f64 {
        match self.cluster.config().node.workers {
            Workers::Count(n) => f64::from(n.max(1)),
            // As many as the node starts by itself.
            _ => std::thread::available_parallelism().map_or(1, |n| n.get().saturating_sub(1).max(1)) as f64,
        }
    }
}

/// `start`: the limit is a map that makes an entry for each key that comes through a channel.
pub fn start(args: &BenchArgs, report: &mut Report) -> Result<(), Error> {
    report.rounds(
        "crossbeam channel, an entry made per message",
        args.runs(),
        || Ok(Run { throughput: Some(limits::channel_start(args.entities())), ..Run::default() }),
        || {
            // A node of its own, so that a round does not find the tables of the round before.
            let ground = ground(args)?;
            let (took, allocated) = alloc::counted(|| ground.populate(args.single));
            let rate = args.entities() as f64 / took?.as_secs_f64();
            ground.check()?;
            let allocations = Some(allocated as f64 / args.entities() as f64);
            Ok(Run { throughput: Some(rate / ground.workers()), allocations, ..Run::default() })
        },
    )
}

/// Key and state of the measured entity.
const KEY_AND_STATE: usize = size_of::<u64>() + size_of::<BenchEntity>();

/// `memory`: what a million entities leave in use, when they have handled a message each.
pub fn memory(args: &BenchArgs, report: &mut Report) -> Result<(), Error> {
    report.figure("bytes_per_entity");
    report.rounds(
        "key and state alone",
        args.runs(),
        || {
            let n = args.entities();
            let (map, bytes) = alloc::weighed(|| {
                (0..n).map(|key| (key, [0u64; 2])).collect::<std::collections::HashMap<_, _, foldhash::fast::RandomState>>()
            });
            let details = vec![("map_bytes_per_entry", bytes as f64 / map.len() as f64)];
            Ok(Run { details, ..Run::figure(KEY_AND_STATE as f64) })
        },
        || {
            let ground = ground(args)?;
            let (done, bytes) = alloc::weighed(|| ground.populate(args.single).and_then(|_| ground.settle()));
            done?;
            ground.check()?;
            let each = bytes as f64 / args.entities() as f64;
            Ok(Run { details: vec![("bytes_in_all", each)], ..Run::figure(each - KEY_AND_STATE as f64) })
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_measured_entity_has_a_key_of_8_and_a_state_of_16_bytes() {
        assert_eq!(KEY_AND_STATE, 24);
    }
}
