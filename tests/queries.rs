//! What a region says of its shards, and when there is room again.
#![allow(missing_docs, clippy::unwrap_used)]

use std::{collections::BTreeSet, time::Duration};

use wingbeat::{
    Cluster, Config, Cx, Entity, HostOptions, QueryError, Refusal, Region, RegisterError, ShardId, ShardState, ShutdownReason, channel,
    config::{Preset, Workers},
    messages,
    testkit::{Solo, World, WorldBuilder},
};

const SECOND: Duration = Duration::from_secs(1);
const LONG: Duration = Duration::from_secs(60);

messages! { pub enum SpotMsg for Spot(u64) = "queries.spot" { Touch -> u64, Look -> String, Calendar -> u64 } }
messages! { pub enum SlowMsg for Slow(u64) = "queries.slow" { Work } }

struct State;

impl Entity for State {
    type Type = Spot;

    fn handle(&mut self, msg: SpotMsg, cx: &mut Cx<'_, Self>) {
        match msg {
            SpotMsg::Touch(Touch, reply) => cx.reply(reply, *cx.id()),
            SpotMsg::Look(Look, reply) => {
                let spots: Region<Spot> = cx.region().unwrap();
                let answers = (
                    spots.owner_of(cx.id()).unwrap_err(),
                    spots.stats(SECOND).unwrap_err(),
                    spots.wait_ready(SECOND).unwrap_err(),
                    cx.region::<Slow>().is_some(),
                );
                cx.reply(reply, format!("{answers:?} {} members", cx.view().members.len()));
            }
            SpotMsg::Calendar(Calendar, reply) => {
                cx.reply(reply, cx.wall_clock().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs());
            }
        }
    }
}

fn host(node: &Cluster) -> Result<(), RegisterError> {
    node.host::<State>(HostOptions::new().shards(12), |_| State).map(drop)
}

fn a_region_knows_its_shards(world: WorldBuilder) {
    let world = world.on_each(host).start();
    let spots: Region<Spot> = world.node(0).region().unwrap();
    for key in 0..100 {
        assert_eq!(world.entity::<Spot>(0, key).ask(Touch, LONG), Ok(key));
    }
    let home = world.node(world.owner_of::<Spot>(7)).id();
    assert_eq!(spots.owner_of(&7), Ok(Some(home)));
    let info = spots.locate(&7, LONG).unwrap();
    assert_eq!((info.owner, Some(info.shard), info.state), (Some(home), spots.shard_of(&7), ShardState::Active));
    // Counts come once a second.
    world.eventually(LONG, || spots.stats(LONG).is_ok_and(|stats| stats.entities == 100 && stats.moving == 0));
    let stats = [0, 1, 2].map(|i| world.node(i).region::<Spot>().unwrap().stats(LONG).unwrap());
    assert_eq!(stats.iter().map(|s| (s.shards_here, s.entities_here)).fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1)), (12, 100));
    let table = spots.table(LONG).unwrap();
    assert_eq!(table.iter().map(|info| info.shard).collect::<Vec<_>>(), (0..12).map(ShardId).collect::<Vec<_>>());
    assert_eq!(table.iter().map(|info| info.owner).collect::<BTreeSet<_>>().len(), 3, "each node has some");
    assert_eq!(table.iter().map(|info| u64::from(info.entities)).sum::<u64>(), 100);

    // On a worker, which others wait for, each question is an error at once.
    assert_eq!(world.entity::<Spot>(0, 7).ask(Look, LONG).unwrap(), "(WouldDeadlock, WouldDeadlock, WouldDeadlock, false) 3 members");
    world.node(0).shutdown(ShutdownReason::Requested).wait(LONG).unwrap();
    assert_eq!((spots.owner_of(&7), spots.table(LONG)), (Err(QueryError::Shutdown), Err(QueryError::Shutdown)));
}

#[test]
fn a_region_knows_its_shards_in_virtual_time() {
    a_region_knows_its_shards(World::simulated(3).seed(4));
}

#[test]
fn a_region_knows_its_shards_on_real_nodes() {
    a_region_knows_its_shards(World::real(3));
}

#[test]
fn a_type_that_nobody_hosts_has_no_homes() {
    let world = World::simulated(1).seed(1).start();
    let spots = world.node(0).proxy::<Spot>().unwrap();
    assert_eq!(spots.owner_of(&1), Ok(None));
    assert!(spots.locate(&1, SECOND).is_err(), "nobody has said how many shards there are");
    assert_eq!(spots.stats(SECOND).map(|stats| stats.shards), Ok(0));
}

#[test]
fn calendars_go_with_virtual_time() {
    let mut spot = Solo::<State>::new(1, |_| State);
    let began = spot.ask(Calendar).unwrap();
    assert!(began >= 1_577_836_800, "{began}");
    spot.advance(3600 * SECOND);
    assert_eq!(spot.ask(Calendar), Ok(began + 3600));
}

/// Holds its worker until the gate opens.
struct Gate(channel::Receiver<()>);

impl Entity for Gate {
    type Type = Slow;

    fn handle(&mut self, _: SlowMsg, _: &mut Cx<'_, Self>) {
        let _ = self.0.recv();
    }
}

#[test]
fn who_found_a_ring_full_hears_when_it_is_not() {
    let mut config = Config::preset(Preset::LocalTest);
    config.node.listen = "127.0.0.1:0".parse().unwrap();
    config.node.workers = Workers::Count(1);
    config.limits.ring_items = 64;
    let cluster = Cluster::builder(config).start().unwrap();
    let (open, gate) = channel::unbounded();
    let slow = cluster.host::<Gate>(HostOptions::new(), move |_| Gate(gate.clone())).unwrap();
    slow.wait_ready(LONG).unwrap();
    // While the route is new, messages go through the network thread, whose ring is full for a moment only.
    let refused = loop {
        if slow.get(1).tell(Work).is_err()
            && let Err(refused) = slow.get(1).tell_within(Work, Duration::from_secs(2))
        {
            break refused;
        }
    };
    assert_eq!(*refused.reason(), Refusal::Full);
    let (room, hear) = channel::bounded(1);
    slow.on_room(&1, move || room.send(()).unwrap());
    assert!(hear.recv_timeout(Duration::from_millis(50)).is_err(), "nothing has been taken out");
    drop(open);
    hear.recv_timeout(LONG).unwrap();
    slow.get(1).tell_within(refused.into_message(), LONG).unwrap();
    // Where there is room it comes at once; and on a node that has ended nobody is left to wait for anything.
    let (room, hear) = channel::bounded(2);
    let again = room.clone();
    slow.on_room(&2, move || room.send(()).unwrap());
    hear.recv_timeout(LONG).unwrap();
    cluster.shutdown(ShutdownReason::Requested).wait(LONG).unwrap();
    slow.on_room(&2, move || again.send(()).unwrap_or_default());
    assert_eq!(*slow.get(2).tell(Work).unwrap_err().reason(), Refusal::Shutdown);
}
