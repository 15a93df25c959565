//! Entities that watch each other, also many of them, and again and again.
#![allow(missing_docs, clippy::unwrap_used)]

use std::{
    cell::{Cell, RefCell},
    time::Duration,
};

use wingbeat::{
    Cluster, Config, Cx, Entity, EntityId, EntityType, Failure, HandedOver, Handoff, HostOptions, NodeId, RegisterError, ShardId,
    ShutdownReason, StopReason,
    config::{AutoSpan, Preset, Span},
    messages,
    testkit::World,
};

thread_local! {
    /// What the watchers have heard.
    static HEARD: RefCell<Vec<String>> = const { RefCell::new(vec![]) };
    /// The next start fails.
    static FAILS: Cell<bool> = const { Cell::new(false) };
}

messages! {
    pub enum RoomMsg for Room(u64) = "test.room" { Open {}, Close {} }
}
messages! {
    pub enum GuestMsg for Guest(u64) = "test.guest" {
        Watch { from: u64, to: u64 },
        Unwatch { of: u64 },
        Leave {},
        Closed { of: u64 },
        Nudge {},
        Visit { of: u64 },
    }
}

/// Is watched. Has a state to hand over.
struct Rooms;

impl Entity for Rooms {
    type Type = Room;

    fn handle(&mut self, msg: RoomMsg, cx: &mut Cx<'_, Self>) {
        if let RoomMsg::Close(_) = msg {
            cx.passivate();
        }
    }

    fn handoff(&mut self, cx: &mut Cx<'_, Self>) -> Result<Handoff, Failure> {
        cx.hand_over(&7u64)
    }

    fn adopted(&mut self, _: HandedOver<'_>, _: &mut Cx<'_, Self>) -> Result<(), Failure> {
        Ok(())
    }
}

/// Watches. Has no state.
struct Guests;

impl Entity for Guests {
    type Type = Guest;

    fn started(&mut self, cx: &mut Cx<'_, Self>) {
        if FAILS.replace(false) {
            cx.fail(Failure::new("on purpose"));
        }
    }

    fn handle(&mut self, msg: GuestMsg, cx: &mut Cx<'_, Self>) {
        let room = |cx: &Cx<'_, Self>, of| cx.resolve(&EntityId::<Room>::new(of)).unwrap();
        match msg {
            GuestMsg::Watch(Watch { from, to }) => (from..to).for_each(|of| cx.watch(&room(cx, of), Closed { of })),
            GuestMsg::Unwatch(Unwatch { of }) => cx.unwatch(&room(cx, of)),
            GuestMsg::Leave(_) => cx.passivate(),
            GuestMsg::Closed(Closed { of }) => HEARD.with_borrow_mut(|heard| heard.push(format!("{} of {of}", cx.id()))),
            GuestMsg::Visit(Visit { of }) => room(cx, of).tell(Open {}).unwrap(),
            GuestMsg::Nudge(_) => HEARD.with_borrow_mut(|heard| heard.push(format!("{} nudged", cx.id()))),
        }
    }
}

fn heard() -> Vec<String> {
    HEARD.take()
}

fn both(node: &Cluster) -> Result<(), RegisterError> {
    node.host::<Rooms>(HostOptions::new().shards(1), |_| Rooms)?;
    node.host::<Guests>(HostOptions::new().shards(1), |_| Guests).map(drop)
}

fn hotel(nodes: usize, config: impl FnOnce(&mut Config)) -> World {
    let mut settings = Config::preset(Preset::LocalTest);
    config(&mut settings);
    heard();
    World::simulated(nodes).seed(1).config(settings).on_each(both).start()
}

fn move_to_the_other<T: EntityType<Key = u64>>(world: &World) {
    put::<T>(world, 1 - world.owner_of::<T>(1u64));
}

fn put<T: EntityType<Key = u64>>(world: &World, to: usize) {
    let home = world.owner_of::<T>(1u64);
    if home != to {
        world.node(home).admin().move_shard::<T>(ShardId(0), world.node(to).id()).unwrap();
        world.run_for(Duration::from_secs(10));
        assert_eq!(world.owner_of::<T>(1u64), to);
    }
}

/// Rooms: far more than a ring has room for.
const ROOMS: u64 = 4_000;

fn open_rooms(world: &World) {
    for from in (0..ROOMS).step_by(200) {
        (from..from + 200).for_each(|key| world.entity::<Room>(0, key).tell(Open {}).unwrap());
        world.run_for(Duration::from_millis(100));
    }
}

/// All rooms close: number 1 hears it of each of them, once.
fn all_close(world: &World) {
    for from in (0..ROOMS).step_by(200) {
        (from..from + 200).for_each(|key| world.entity::<Room>(0, key).tell(Close {}).unwrap());
        world.run_for(Duration::from_millis(100));
    }
    world.run_for(Duration::from_secs(2));
    let (mut heard, mut all) = (heard(), (0..ROOMS).map(|of| format!("1 of {of}")).collect::<Vec<_>>());
    heard.sort_unstable();
    all.sort_unstable();
    assert_eq!(heard, all);
}

#[test]
fn who_watches_more_at_once_than_a_ring_has_room_for_is_told_of_each_end() {
    for nodes in [1, 2] {
        let world = hotel(nodes, |_| {});
        open_rooms(&world);
        world.entity::<Guest>(0, 1u64).tell(Watch { from: 0, to: ROOMS }).unwrap();
        world.run_for(Duration::from_secs(5));
        assert_eq!(heard(), [""; 0], "all live on");
        all_close(&world);
    }
}

#[test]
fn many_watches_travel_with_who_watches() {
    let world = hotel(2, |_| {});
    open_rooms(&world);
    world.entity::<Guest>(0, 1u64).tell(Watch { from: 0, to: ROOMS }).unwrap();
    world.run_for(Duration::from_secs(5));
    for _ in 0..2 {
        move_to_the_other::<Guest>(&world);
        assert_eq!(heard(), [""; 0], "a move is no end");
    }
    move_to_the_other::<Room>(&world);
    assert_eq!(heard(), [""; 0], "nor is one of who is watched");
    all_close(&world);
}

/// More visits than watchers are heard, of never more than one guest at a time.
fn visits(visit: impl Fn(&World, u64)) {
    let world = hotel(1, |config| config.limits.mailbox = 100);
    world.entity::<Room>(0, 5u64).tell(Open {}).unwrap();
    world.run_for(Duration::from_secs(1));
    for n in 0..250 {
        visit(&world, n);
        world.run_for(Duration::from_millis(10));
    }
    world.entity::<Guest>(0, 1_000u64).tell(Watch { from: 5, to: 6 }).unwrap();
    world.run_for(Duration::from_secs(1));
    assert_eq!(heard(), [""; 0], "number 5 lives on");
    world.entity::<Room>(0, 5u64).tell(Close {}).unwrap();
    world.run_for(Duration::from_secs(1));
    assert!(heard().contains(&"1000 of 5".to_owned()));
}

#[test]
fn who_watches_again_and_again_is_one_watcher() {
    visits(|world, _| world.entity::<Guest>(0, 1u64).tell(Watch { from: 5, to: 6 }).unwrap());
}

#[test]
fn who_watches_no_more_is_no_watcher() {
    visits(|world, n| {
        world.entity::<Guest>(0, n).tell(Watch { from: 5, to: 6 }).unwrap();
        world.entity::<Guest>(0, n).tell(Unwatch { of: 5 }).unwrap();
    });
}

#[test]
fn who_has_ended_is_no_watcher() {
    visits(|world, n| {
        world.entity::<Guest>(0, n).tell(Watch { from: 5, to: 6 }).unwrap();
        world.entity::<Guest>(0, n).tell(Leave {}).unwrap();
    });
}

#[test]
fn who_has_moved_is_no_watcher_where_it_was() {
    let world = hotel(2, |config| config.limits.mailbox = 10);
    world.entity::<Room>(0, 5u64).tell(Open {}).unwrap();
    world.run_for(Duration::from_secs(1));
    world.entity::<Guest>(0, 1u64).tell(Watch { from: 5, to: 6 }).unwrap();
    world.run_for(Duration::from_secs(1));
    for _ in 0..22 {
        move_to_the_other::<Guest>(&world);
    }
    assert_eq!(heard(), [""; 0]);
    world.entity::<Room>(0, 5u64).tell(Close {}).unwrap();
    world.run_for(Duration::from_secs(1));
    assert_eq!(heard(), ["1 of 5"]);
}

#[test]
fn a_watch_of_one_without_a_state_outlives_a_first_start_that_fails_on_the_new_home() {
    for fails in [false, true] {
        let world = hotel(2, |_| {});
        world.entity::<Room>(0, 5u64).tell(Open {}).unwrap();
        world.run_for(Duration::from_secs(1));
        world.entity::<Guest>(0, 1u64).tell(Watch { from: 5, to: 6 }).unwrap();
        world.run_for(Duration::from_secs(5));
        move_to_the_other::<Guest>(&world);
        FAILS.set(fails);
        world.entity::<Guest>(0, 1u64).tell(Nudge {}).unwrap();
        world.run_for(Duration::from_secs(5));
        world.entity::<Room>(0, 5u64).tell(Close {}).unwrap();
        world.run_for(Duration::from_secs(5));
        assert_eq!(heard(), ["1 nudged", "1 of 5"], "fails: {fails}");
    }
}

/// Room 5 and its guests, each shard where it is wanted.
fn settle(world: &World, rooms: usize, guests: usize) {
    world.entity::<Room>(0, 5u64).tell(Open {}).unwrap();
    world.entity::<Guest>(0, 1u64).tell(Leave {}).unwrap();
    world.run_for(Duration::from_secs(2));
    put::<Room>(world, rooms);
    put::<Guest>(world, guests);
    world.entity::<Room>(0, 5u64).tell(Open {}).unwrap();
    world.run_for(Duration::from_secs(2));
}

#[test]
fn all_who_may_watch_one_may_move_at_once_and_watch_again() {
    for seed in 1..10 {
        let mut settings = Config::preset(Preset::LocalTest);
        settings.limits.mailbox = 10;
        let world = World::simulated(3).seed(seed).network(Duration::from_millis(1), Duration::from_millis(20), 0.0);
        let world = world.config(settings).on_each(both).start();
        settle(&world, 2, 1);
        (0..10u64).for_each(|n| world.entity::<Guest>(0, n).tell(Watch { from: 5, to: 6 }).unwrap());
        world.run_for(Duration::from_secs(5));
        put::<Guest>(&world, 0);
        (0..10u64).for_each(|n| world.entity::<Guest>(0, n).tell(Watch { from: 5, to: 6 }).unwrap());
        world.run_for(Duration::from_secs(5));
        assert_eq!(heard(), [""; 0], "seed {seed}");
    }
}

#[test]
fn who_watches_again_without_room_for_another_ask_has_its_own_one() {
    let world = hotel(1, |config| config.limits.asks = 16);
    (0..16u64).for_each(|n| world.entity::<Room>(0, n).tell(Open {}).unwrap());
    world.run_for(Duration::from_secs(1));
    // Some room is kept for asks that do not last.
    world.entity::<Guest>(0, 1u64).tell(Watch { from: 0, to: 15 }).unwrap();
    world.entity::<Guest>(0, 1u64).tell(Watch { from: 5, to: 6 }).unwrap();
    world.run_for(Duration::from_secs(1));
    assert_eq!(heard(), ["1 of 14"]);
    world.entity::<Room>(0, 5u64).tell(Close {}).unwrap();
    world.run_for(Duration::from_secs(1));
    assert_eq!(heard(), ["1 of 5"]);
}

#[test]
fn a_type_has_room_for_watchers_by_its_own_mailbox() {
    let mut settings = Config::preset(Preset::LocalTest);
    settings.limits.mailbox = 10;
    let both = |node: &Cluster| -> Result<(), RegisterError> {
        node.host::<Rooms>(HostOptions::new().shards(1).mailbox(100), |_| Rooms)?;
        node.host::<Guests>(HostOptions::new().shards(1), |_| Guests).map(drop)
    };
    heard();
    let world = World::simulated(1).seed(1).config(settings).on_each(both).start();
    world.entity::<Room>(0, 5u64).tell(Open {}).unwrap();
    world.run_for(Duration::from_secs(1));
    (0..201u64).for_each(|n| world.entity::<Guest>(0, n).tell(Watch { from: 5, to: 6 }).unwrap());
    world.run_for(Duration::from_secs(1));
    assert_eq!(heard(), ["200 of 5"], "there is a bound");
}

#[test]
fn who_watches_an_entity_of_a_type_without_a_host_hears_that_there_is_none() {
    heard();
    let both = |node: &Cluster| -> Result<(), RegisterError> {
        node.proxy::<Room>().map(drop)?;
        node.host::<Guests>(HostOptions::new().shards(1), |_| Guests).map(drop)
    };
    let world = World::simulated(1).seed(1).config(Config::preset(Preset::LocalTest)).on_each(both).start();
    world.entity::<Guest>(0, 1u64).tell(Watch { from: 5, to: 6 }).unwrap();
    world.run_for(Duration::from_secs(600));
    assert_eq!(heard(), ["1 of 5"]);
}

#[test]
fn a_watch_that_is_given_up_on_its_way_for_want_of_room_is_sent_again() {
    let small = |config: &mut Config| {
        config.limits.held_items = 64;
        config.limits.lane_items = 64;
        config.sharding.buffer_messages = 256;
    };
    for (from, to) in [(0, 1), (1, 0)] {
        let world = hotel(2, small);
        settle(&world, from, 0);
        for at in (0..1_000).step_by(50) {
            (at..at + 50).for_each(|n| world.entity::<Room>(0, n).tell(Open {}).unwrap());
            world.run_for(Duration::from_millis(100));
        }
        world.entity::<Guest>(0, 1u64).tell(Watch { from: 0, to: 1_000 }).unwrap();
        world.run_for(Duration::from_secs(5));
        assert_eq!(heard(), [""; 0]);
        put::<Room>(&world, to);
        assert_eq!(heard(), [""; 0], "from {from} to {to}");
    }
}

messages! {
    pub enum LastMsg for Last(u64) = "test.last" { Live {}, Gone {} }
}

/// Says something to itself with its last call.
struct Late;

impl Entity for Late {
    type Type = Last;

    fn handle(&mut self, _: LastMsg, _: &mut Cx<'_, Self>) {}

    fn stopped(&mut self, _: StopReason, cx: &mut Cx<'_, Self>) {
        cx.watch_node(NodeId::from_raw(7), Gone {});
    }
}

#[test]
fn what_is_said_to_oneself_as_the_node_ends_is_a_dead_letter() {
    let world = World::simulated(1).seed(1).on_each(|node| node.host::<Late>(HostOptions::new().shards(1), |_| Late).map(drop)).start();
    (0..200u64).for_each(|key| world.entity::<Last>(0, key).tell(Live {}).unwrap());
    world.run_for(Duration::from_secs(1));
    let letters = world.node(0).dead_letters();
    assert!(world.node(0).shutdown(ShutdownReason::Requested).wait(Duration::from_secs(60)).is_some());
    assert_eq!(letters.try_iter().count(), 200);
}

/// A watch that set out to the old home while the shard moved, and was passed on from there.
fn watched_by_way_of_the_old_home() -> World {
    heard();
    let world = World::simulated(3).seed(1).network(Duration::from_millis(5), Duration::from_millis(5), 0.0);
    let world = world.config(Config::preset(Preset::LocalTest)).on_each(both).start();
    settle(&world, 0, 2);
    // Node 2 knows the way.
    world.entity::<Guest>(2, 1u64).tell(Watch { from: 5, to: 6 }).unwrap();
    world.run_for(Duration::from_secs(2));
    world.node(0).admin().move_shard::<Room>(ShardId(0), world.node(1).id()).unwrap();
    for n in 100..300u64 {
        world.entity::<Guest>(2, n).tell(Watch { from: 5, to: 6 }).unwrap();
        world.run_for(Duration::from_micros(500));
    }
    world.run_for(Duration::from_secs(10));
    assert_eq!((world.owner_of::<Room>(5u64), world.owner_of::<Guest>(1u64)), (1, 2));
    assert_eq!(heard(), [""; 0], "a move is no end");
    world
}

#[test]
fn the_end_of_the_old_home_is_no_end_of_who_has_moved() {
    let world = watched_by_way_of_the_old_home();
    world.kill(0);
    world.run_for(Duration::from_secs(60));
    assert_eq!(heard(), [""; 0], "the room lives on at node 1");
}

#[test]
fn the_end_of_the_new_home_is_heard_by_who_watched_by_way_of_the_old_one() {
    let world = watched_by_way_of_the_old_home();
    world.kill(1);
    world.run_for(Duration::from_secs(60));
    assert_eq!(heard().len(), 201, "each of them watches one that is gone");
}

/// At node 1, and its watcher has heard nothing before that.
fn room_5_lives_on_until_it_is_closed(world: &World) {
    assert_eq!(world.owner_of::<Room>(5u64), 1);
    assert_eq!(heard(), [""; 0], "the room lives on");
    world.entity::<Room>(1, 5u64).tell(Close {}).unwrap();
    world.run_for(Duration::from_secs(5));
    assert_eq!(heard(), ["1 of 5"]);
}

#[test]
fn a_watch_that_finds_no_home_in_time_is_no_end() {
    heard();
    let mut settings = Config::preset(Preset::LocalTest);
    settings.sharding.handoff_timeout = Span::secs(1);
    let world = World::simulated(3).seed(1).config(settings).on_each(both).start();
    settle(&world, 1, 2);
    // Until another one has its place, nobody says where the room is.
    world.kill(0);
    world.entity::<Guest>(2, 1u64).tell(Watch { from: 5, to: 6 }).unwrap();
    world.run_for(Duration::from_secs(60));
    room_5_lives_on_until_it_is_closed(&world);
}

#[test]
fn the_end_is_heard_though_the_link_breaks_with_the_note_in_it() {
    heard();
    let mut settings = Config::preset(Preset::LocalTest);
    // Nobody is given up for a link that is cut for 20 seconds.
    settings.downing.stable_after = AutoSpan::After(Span::secs(120));
    let world = World::simulated(3).seed(2).config(settings).on_each(both).start();
    settle(&world, 1, 2);
    (100..110u64).for_each(|of| world.entity::<Room>(1, of).tell(Open {}).unwrap());
    world.run_for(Duration::from_secs(1));
    world.entity::<Guest>(2, 1u64).tell(Watch { from: 100, to: 110 }).unwrap();
    world.run_for(Duration::from_secs(1));
    world.cut(&[&[2]]);
    (100..110u64).for_each(|of| world.entity::<Room>(1, of).tell(Close {}).unwrap());
    world.run_for(Duration::from_secs(20));
    world.heal();
    world.run_for(Duration::from_secs(120));
    assert_eq!((world.owner_of::<Room>(100u64), world.owner_of::<Guest>(1u64)), (1, 2), "all are where they were");
    let mut heard = heard();
    heard.sort_unstable();
    assert_eq!(heard, (100..110).map(|of| format!("1 of {of}")).collect::<Vec<_>>());
}

#[test]
fn a_watch_is_made_though_the_link_breaks_with_the_sign_in_it() {
    heard();
    let mut settings = Config::preset(Preset::LocalTest);
    settings.downing.stable_after = AutoSpan::After(Span::secs(120));
    let world = World::simulated(3).seed(2).config(settings).on_each(both).start();
    settle(&world, 1, 2);
    (100..110u64).for_each(|of| world.entity::<Room>(1, of).tell(Open {}).unwrap());
    world.run_for(Duration::from_secs(1));
    // The other way round: the rooms' node is cut off.
    world.entity::<Guest>(2, 1u64).tell(Watch { from: 5, to: 6 }).unwrap();
    world.run_for(Duration::from_secs(1));
    world.cut(&[&[1]]);
    world.entity::<Guest>(2, 1u64).tell(Watch { from: 100, to: 110 }).unwrap();
    world.run_for(Duration::from_secs(20));
    world.heal();
    world.run_for(Duration::from_secs(120));
    assert_eq!((world.owner_of::<Room>(100u64), world.owner_of::<Guest>(1u64)), (1, 2), "all are where they were");
    assert_eq!(heard(), [""; 0]);
    (100..110u64).for_each(|of| world.entity::<Room>(1, of).tell(Close {}).unwrap());
    world.run_for(Duration::from_secs(10));
    let mut heard = heard();
    heard.sort_unstable();
    assert_eq!(heard, (100..110).map(|of| format!("1 of {of}")).collect::<Vec<_>>());
}

#[test]
fn who_watches_no_more_takes_no_room_though_the_link_broke_with_its_sign_in_it() {
    heard();
    let mut settings = Config::preset(Preset::LocalTest);
    settings.limits.mailbox = 10;
    settings.downing.stable_after = AutoSpan::After(Span::secs(120));
    let world = World::simulated(3).seed(2).config(settings).on_each(both).start();
    settle(&world, 1, 2);
    for _ in 0..8 {
        (0..10u64).for_each(|n| world.entity::<Guest>(2, n).tell(Watch { from: 5, to: 6 }).unwrap());
        world.run_for(Duration::from_secs(1));
        world.cut(&[&[1]]);
        (0..10u64).for_each(|n| world.entity::<Guest>(2, n).tell(Unwatch { of: 5 }).unwrap());
        world.run_for(Duration::from_secs(20));
        world.heal();
        world.run_for(Duration::from_secs(30));
    }
    assert_eq!((world.owner_of::<Room>(5u64), world.owner_of::<Guest>(1u64)), (1, 2), "all are where they were");
    assert_eq!(heard(), [""; 0], "the room lives, and no more than ten watch it at a time");
}

#[test]
fn an_end_while_one_of_the_two_moves_is_heard_though_another_instance_starts_at_once() {
    for seed in 0..18 {
        heard();
        let world = World::simulated(3).seed(seed).network(Duration::from_millis(1), Duration::from_millis(5), 0.0);
        let world = world.config(Config::preset(Preset::LocalTest)).on_each(both).start();
        settle(&world, 1, 2);
        world.entity::<Guest>(2, 1u64).tell(Watch { from: 5, to: 6 }).unwrap();
        world.run_for(Duration::from_secs(2));
        let home = world.node(0).id();
        let moves = [seed % 3 != 1, seed % 3 != 0];
        if moves[0] {
            world.node(1).admin().move_shard::<Room>(ShardId(0), home).unwrap();
        }
        if moves[1] {
            world.node(2).admin().move_shard::<Guest>(ShardId(0), home).unwrap();
        }
        world.run_for(Duration::from_micros(1_500 * (seed / 3)));
        world.entity::<Room>(1, 5u64).tell(Close {}).unwrap();
        world.entity::<Room>(1, 5u64).tell(Open {}).unwrap();
        world.run_for(Duration::from_secs(20));
        assert_eq!(heard(), ["1 of 5"], "seed {seed}");
        assert_eq!((world.owner_of::<Room>(5u64) == 0, world.owner_of::<Guest>(1u64) == 0), (moves[0], moves[1]));
        // And nobody watches the other one.
        world.entity::<Room>(1, 5u64).tell(Close {}).unwrap();
        world.run_for(Duration::from_secs(5));
        assert_eq!(heard(), [""; 0], "seed {seed}");
    }
}

messages! {
    pub enum FlatMsg for Flat(u64) = "test.flat" { Enter {}, Quit {} }
}

/// Puts aside what it is told to end with until it lives elsewhere.
struct Flats {
    moved: bool,
}

impl Entity for Flats {
    type Type = Flat;

    fn handle(&mut self, msg: FlatMsg, cx: &mut Cx<'_, Self>) {
        match msg {
            FlatMsg::Quit(_) if self.moved => cx.passivate(),
            FlatMsg::Quit(_) => cx.stash(msg),
            FlatMsg::Enter(_) => {}
        }
    }

    fn handoff(&mut self, cx: &mut Cx<'_, Self>) -> Result<Handoff, Failure> {
        cx.hand_over(&7u64)
    }

    fn adopted(&mut self, _: HandedOver<'_>, _: &mut Cx<'_, Self>) -> Result<(), Failure> {
        self.moved = true;
        Ok(())
    }
}

messages! {
    pub enum TenantMsg for Tenant(u64) = "test.tenant" { Look { of: u64 }, Empty { of: u64 } }
}

struct Tenants;

impl Entity for Tenants {
    type Type = Tenant;

    fn handle(&mut self, msg: TenantMsg, cx: &mut Cx<'_, Self>) {
        match msg {
            TenantMsg::Look(Look { of }) => {
                let flat = cx.resolve(&EntityId::<Flat>::new(of)).unwrap();
                cx.watch(&flat, Empty { of });
            }
            TenantMsg::Empty(Empty { of }) => HEARD.with_borrow_mut(|heard| heard.push(format!("{} of {of}", cx.id()))),
        }
    }
}

#[test]
fn one_that_ends_with_what_came_with_it_is_heard_though_another_one_starts_with_the_next_message() {
    for another in [false, true] {
        heard();
        let flats = |node: &Cluster| -> Result<(), RegisterError> {
            node.host::<Flats>(HostOptions::new().shards(1), |_| Flats { moved: false })?;
            node.host::<Tenants>(HostOptions::new().shards(1), |_| Tenants).map(drop)
        };
        let world = World::simulated(2).seed(1).config(Config::preset(Preset::LocalTest)).on_each(flats).start();
        world.entity::<Flat>(0, 1u64).tell(Enter {}).unwrap();
        world.run_for(Duration::from_secs(2));
        world.entity::<Tenant>(0, 1u64).tell(Look { of: 1 }).unwrap();
        world.entity::<Flat>(0, 1u64).tell(Quit {}).unwrap();
        if another {
            // This one is put aside by nobody that has moved: it starts the next instance, and that puts it aside.
            world.entity::<Flat>(0, 1u64).tell(Quit {}).unwrap();
        }
        world.run_for(Duration::from_secs(2));
        assert_eq!(heard(), [""; 0]);
        put::<Flat>(&world, 1 - world.owner_of::<Flat>(1u64));
        world.run_for(Duration::from_secs(30));
        assert_eq!(heard(), ["1 of 1"], "another: {another}");
    }
}

#[test]
fn who_moves_often_while_the_watched_ones_home_is_cut_off_hears_no_end() {
    heard();
    let mut settings = Config::preset(Preset::LocalTest);
    settings.downing.stable_after = AutoSpan::After(Span::secs(1_000));
    let world = World::simulated(3).seed(2).config(settings).on_each(both).start();
    settle(&world, 1, 2);
    world.entity::<Guest>(2, 1u64).tell(Watch { from: 5, to: 6 }).unwrap();
    world.run_for(Duration::from_secs(2));
    // So what it sends from its next homes, watches among it, waits for this.
    world.entity::<Guest>(2, 1u64).tell(Visit { of: 5 }).unwrap();
    world.run_for(Duration::from_secs(2));
    world.cut(&[&[1]]);
    for n in 0..10 {
        let (home, to) = if n % 2 == 0 { (2, 0) } else { (0, 2) };
        world.node(home).admin().move_shard::<Guest>(ShardId(0), world.node(to).id()).unwrap();
        world.run_for(Duration::from_secs(1));
        assert_eq!(world.owner_of::<Guest>(1u64), to);
    }
    world.heal();
    world.run_for(Duration::from_secs(60));
    room_5_lives_on_until_it_is_closed(&world);
}
