//! Where shards live, and waiting until they live elsewhere.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use wingbeat::{Cluster, EntityRef, HostOptions, NodeId, Region, ShardState};

use super::{
    BenchArgs,
    entity::{Bench, BenchEntity, Note, Payload},
    peers::{self, Peer, Settings},
    rig::{self, Error, PATIENCE},
};

/// Between two looks at what is waited for.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// This node and another process, both hosting, with entities that are live and marked.
pub struct Two {
    pub cluster: Cluster,
    pub region: Region<Bench>,
    pub other: Peer,
    pub all: Vec<EntityRef<Bench>>,
    settings: Settings,
}

impl Two {
    /// This node is the older one, which gives out the shards.
    pub fn start(args: &BenchArgs, ours: &[(&str, &str)]) -> Result<Self, Error> {
        let settings = peers::settings(args, ours);
        let cluster = rig::start(&settings, &[])?;
        let region = cluster.host::<BenchEntity>(HostOptions::new(), |_| BenchEntity::default())?;
        let other = Peer::start(&settings, Some(&cluster.addr().to_string()))?;
        let all = rig::warm(&region, args.entities())?;
        mark(&all)?;
        Ok(Self { cluster, region, other, all, settings })
    }

    /// One more process that hosts.
    pub fn third(&self) -> Result<Peer, Error> {
        Peer::start(&self.settings, Some(&self.cluster.addr().to_string()))
    }
}

/// The member at this address.
pub fn member(cluster: &Cluster, addr: &str) -> Result<NodeId, Error> {
    let view = cluster.view();
    let found = view.members.iter().find(|member| member.addr.to_string() == addr).map(|member| member.id);
    found.ok_or_else(|| format!("{addr} is no member").into())
}

/// Looks until there is something, or for too long.
pub fn until<R>(what: &str, mut look: impl FnMut() -> Result<Option<R>, Error>) -> Result<R, Error> {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look()? {
            return Ok(found);
        }
        if Instant::now() > end {
            return Err(format!("{what}: not within {} s", PATIENCE.as_secs()).into());
        }
        std::thread::park_timeout(LOOK_EVERY);
    }
}

/// Waits until a node is no member any more.
pub fn until_gone(cluster: &Cluster, node: NodeId) -> Result<(), Error> {
    until("a node that left is removed", || Ok(cluster.view().member(node).is_none().then_some(())))
}

/// Waits until so many nodes run all shards that have a home, as many each as balance asks for: how many each runs.
pub fn until_balanced(region: &Region<Bench>, nodes: usize) -> Result<BTreeMap<NodeId, usize>, Error> {
    until("shards are balanced", || {
        let table = region.table(PATIENCE)?;
        let mut held: BTreeMap<NodeId, usize> = BTreeMap::new();
        // A shard without entities has never had a home.
        for row in table.iter().filter(|row| row.epoch.get() > 0) {
            match row.owner.filter(|_| row.state == ShardState::Active) {
                Some(owner) => *held.entry(owner).or_default() += 1,
                None => return Ok(None),
            }
        }
        let (least, most) = (held.values().min().copied(), held.values().max().copied());
        let even = least.zip(most).is_some_and(|(least, most)| most - least <= 1);
        Ok((held.len() == nodes && even).then_some(held))
    })
}

/// Tells each entity one message, which it must know of at the end wherever it has moved to.
fn mark(all: &[EntityRef<Bench>]) -> Result<(), Error> {
    for entity in all {
        entity.tell_within(Note(Payload([1; 8])), PATIENCE).map_err(|error| error.to_string())?;
    }
    check(all)
}

/// Fails unless each entity still knows of its one message.
pub fn check(all: &[EntityRef<Bench>]) -> Result<(), Error> {
    let (handled, told) = (rig::handled(all)?, all.len() as u64);
    if handled == told {
        Ok(())
    } else {
        Err(format!("the entities were told {told} messages and know of {handled} behind their moves").into())
    }
}
