//! `bench network-turn`: how long the network thread of one of ten thousand members works without a pause. The cluster is simulated; those of its nodes that
//! are looked at have twins, whose turns are taken for real. What has happened to a twin beside the simulation happens to it a few times more when that has
//! ended, since a node has neither the memory of ten thousand others nor their use of the caches around it: the longest turn is the median of those lives'.

use std::time::Duration;

use wingbeat::{
    sim::{self, Options, Scenario, Shadow},
    testkit::{Life, Story, Turn, Twin},
};

use super::{
    BenchArgs,
    report::{Report, Run},
    rig::Error,
};

const MEMBERS: u32 = 10_000;
/// All are up by then, counted from a node's birth, and none has come or gone since.
const FORMED: Duration = Duration::from_secs(28);
/// One as nearly all are: it neither leads, nor gives out shards, nor is a seed.
const SOME: u32 = MEMBERS / 2;
/// Does all of that, and takes in the others.
const LEADER: u32 = 0;
/// Seconds of the cluster's life.
pub const VIRTUAL_S: u32 = 70;
/// Share of its datagrams that a twin may send earlier or later than the other.
const ASTRAY_MAX: f64 = 0.01;

/// Once all are up, some come, some leave, and one crashes.
fn scenario(members: u32) -> Result<Scenario, Error> {
    let last = members - 1;
    let text = format!(
        r#"
name = "network-turn"
nodes = {all}
started = {members}
start_spread = "1s"
duration = "{VIRTUAL_S}s"
[config]
"node.workers" = 1
[network]
latency = "1ms"
jitter = "0.2ms"
[[at]]
time = "30s"
do = "join"
nodes = "{members}..{all}"
[[at]]
time = "35s"
do = "leave"
nodes = "{left}..{last}"
[[at]]
time = "40s"
do = "crash"
nodes = "{last}..{members}"
"#,
        all = members + 4,
        left = last - 3,
    );
    Ok(Scenario::parse(&text, &[])?)
}

/// Lives that a twin has by itself.
const LIVES: usize = 5;

/// What the turns of one node came to.
struct Turns {
    /// Of the life, alone, that is the median by this.
    longest: Turn,
    /// The longest beside the simulation.
    beside: Turn,
    /// These of the same life as the longest.
    p99: Duration,
    forming: Duration,
    count: usize,
    astray: u64,
}

fn longest(turns: &[Turn]) -> Option<Turn> {
    turns.iter().copied().max_by_key(|turn| turn.took)
}

/// Turns before all were up, and since.
fn formed(turns: &[Turn]) -> (&[Turn], &[Turn]) {
    turns.split_at(turns.partition_point(|turn| turn.at < FORMED))
}

/// On a thread of its own, whose memory the simulation has not left in pieces.
fn live(story: &Story) -> Result<Life, Error> {
    let life = std::thread::scope(|scope| scope.spawn(|| story.again()).join());
    Ok(life.map_err(|_| "what has happened again to a twin has made it panic")??)
}

impl Turns {
    fn of(twin: &Twin) -> Result<Self, Error> {
        let first = twin.life();
        let mut lives = (0..LIVES).map(|_| live(twin.story())).collect::<Result<Vec<_>, _>>()?;
        if lives.iter().any(|life| (life.turns.len(), life.said) != (first.turns.len(), first.said)) {
            return Err(format!("{twin:?} did or said something else as the same happened again").into());
        }
        lives.sort_by_key(|life| longest(formed(&life.turns).1).map(|turn| turn.took));
        let (forming, since) = formed(&lives[LIVES / 2].turns);
        let mut took: Vec<Duration> = since.iter().map(|turn| turn.took).collect();
        took.sort_unstable();
        let (Some(longest), Some(beside), Some(forming)) = (longest(since), longest(formed(&first.turns).1), longest(forming)) else {
            return Err("the node that is watched had no turn".into());
        };
        let (p99, count) = (took[took.len() * 99 / 100], first.turns.len());
        Ok(Self { longest, beside, p99, forming: forming.took, count, astray: twin.astray() })
    }
}

/// The turns of some nodes of one cluster.
fn turns_of<const N: usize>(nodes: [u32; N], members: u32, seed: u64) -> Result<[Turns; N], Error> {
    let mut twins = nodes.map(Twin::of).into_iter().collect::<Result<Vec<_>, _>>()?;
    let shadows = twins.iter_mut().map(|twin| -> &mut dyn Shadow { twin }).collect();
    let result = sim::run_beside(&scenario(members)?, seed, &Options::default(), shadows)?;
    if let Some(violation) = result.violations.first() {
        return Err(format!("seed {seed} broke {}: {}", violation.invariant, violation.what).into());
    }
    if result.all_up_at_s.is_none() {
        return Err(format!("seed {seed}: {members} nodes were not all up by the end").into());
    }
    let all = twins.iter().map(|twin| {
        let turns = Turns::of(twin)?;
        if turns.astray as f64 > twin.compared() as f64 * ASTRAY_MAX {
            return Err(
                format!("seed {seed}: {twin:?} said something else than its node {} times of {}", turns.astray, twin.compared()).into()
            );
        }
        Ok(turns)
    });
    let all: Vec<Turns> = all.collect::<Result<_, Error>>()?;
    all.try_into().map_err(|_| "each node has a twin".into())
}

/// A seed more with each round.
pub fn measure(args: &BenchArgs, report: &mut Report) -> Result<(), Error> {
    report.figure("longest_ms");
    let ms = |d: Duration| d.as_secs_f64() * 1e3;
    let mut seed = 0;
    report.rounds(
        "nothing",
        args.runs(),
        || Ok(Run::default()),
        || {
            seed += 1;
            let [some, leader] = turns_of([SOME, LEADER], MEMBERS, seed)?;
            let details = vec![
                ("beside_ms", ms(some.beside.took)),
                ("p99_ms", ms(some.p99)),
                ("at_s", some.longest.at.as_secs_f64()),
                ("forming_ms", ms(some.forming)),
                ("turns", some.count as f64),
                ("astray", some.astray as f64),
                ("leader_longest_ms", ms(leader.longest.took)),
                ("leader_beside_ms", ms(leader.beside.took)),
                ("leader_p99_ms", ms(leader.p99)),
                ("leader_at_s", leader.longest.at.as_secs_f64()),
                ("leader_forming_ms", ms(leader.forming)),
                ("leader_turns", leader.count as f64),
                ("leader_astray", leader.astray as f64),
            ];
            Ok(Run { details, ..Run::figure(ms(some.longest.took)) })
        },
    )
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use wingbeat::{Config, NodeAddr, Time, proto::membership::Identity, sim::Heard};

    use super::*;

    /// Another node than the one that is followed: what that hears is not for it.
    struct Stranger(Twin);

    impl Shadow for Stranger {
        fn node(&self) -> u32 {
            self.0.node()
        }
        fn born(&mut self, now: Time, config: &Arc<Config>, me: &Identity, seed: u64) {
            self.0.born(now, config, me, seed + 1);
        }
        fn hears(&mut self, now: Time, what: Heard<'_>) {
            self.0.hears(now, what);
        }
        fn sends(&mut self, to: &NodeAddr, datagram: &[u8]) {
            self.0.sends(to, datagram);
        }
    }

    fn astray(twin: &Twin) -> f64 {
        twin.astray() as f64 / twin.compared() as f64
    }

    #[test]
    fn a_twin_says_what_its_node_says() {
        let (scenario, options) = (scenario(12).unwrap(), Options::default());
        let (mut first, mut other, mut stranger) = (Twin::of(0).unwrap(), Twin::of(5).unwrap(), Stranger(Twin::of(5).unwrap()));
        let alone = sim::run(&scenario, 1, &options).unwrap();
        let beside = sim::run_beside(&scenario, 1, &options, vec![&mut first, &mut other, &mut stranger]).unwrap();
        assert_eq!(alone.digest, beside.digest, "whoever follows has no part in the run");
        for twin in [&first, &other] {
            let turns = Turns::of(twin).unwrap();
            assert!(turns.count > 500 && twin.compared() > 500, "{twin:?}: {}", twin.compared());
            assert!(astray(twin) < ASTRAY_MAX, "{twin:?}: {}", twin.astray());
        }
        assert!(astray(&stranger.0) > ASTRAY_MAX, "made of another seed, and so found out");
    }
}
