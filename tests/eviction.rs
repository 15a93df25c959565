//! Entities that leave memory because there are too many.
#![allow(missing_docs, clippy::unwrap_used)]

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use wingbeat::{
    Cluster, Config, Cx, Entity, HostOptions, Passivation, RegisterError, ShutdownReason, StopReason, channel,
    config::{Preset, Workers},
    messages,
    testkit::World,
};

messages! { pub enum ItemMsg for Item(u64) = "evict.item" { Touch -> u32, Wait, Go } }

const LONG: Duration = Duration::from_secs(60);

/// Live instances by key: how many of each, and how many have ended so far.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<(BTreeMap<u64, u32>, u32)>>);

impl Seen {
    fn live(&self) -> usize {
        self.0.lock().0.len()
    }
}

struct State {
    seen: Seen,
    touched: u32,
    waits: bool,
}

impl Entity for State {
    type Type = Item;

    fn started(&mut self, cx: &mut Cx<'_, Self>) {
        let live = self.seen.0.lock().0.insert(*cx.id(), 1);
        assert_eq!(live, None, "one instance of {}", cx.id());
    }

    fn handle(&mut self, msg: ItemMsg, cx: &mut Cx<'_, Self>) {
        match msg {
            msg @ ItemMsg::Touch(..) if self.waits => cx.stash(msg),
            ItemMsg::Touch(Touch, reply) => {
                self.touched += 1;
                cx.reply(reply, self.touched);
            }
            ItemMsg::Wait(_) => self.waits = true,
            ItemMsg::Go(_) => {
                self.waits = false;
                cx.unstash();
            }
        }
    }

    fn stopped(&mut self, why: StopReason, cx: &mut Cx<'_, Self>) {
        let mut seen = self.seen.0.lock();
        assert_eq!(seen.0.remove(cx.id()), Some(1));
        seen.1 += u32::from(why == StopReason::Evicted);
    }
}

fn hosting(seen: &Seen, limit: usize) -> impl Fn(&Cluster) -> Result<(), RegisterError> + 'static {
    let seen = seen.clone();
    move |node| {
        let (seen, options) = (seen.clone(), HostOptions::new().shards(4).passivation(Passivation::never().limit(limit)));
        node.host::<State>(options, move |_| State { seen: seen.clone(), touched: 0, waits: false }).map(drop)
    }
}

fn one_worker() -> Config {
    let mut config = Config::preset(Preset::LocalTest);
    config.node.workers = Workers::Count(1);
    config
}

#[test]
fn no_more_than_the_limit_stay_and_those_that_are_used_are_among_them() {
    let seen = Seen::default();
    let world = World::simulated(1).seed(1).config(one_worker()).on_each(hosting(&seen, 100)).start();
    let touch = |key: u64| world.entity::<Item>(0, key).ask(Touch, LONG).unwrap();
    for key in 0..2000 {
        touch(10_000 + key);
        assert!(seen.live() <= 104, "{} are live", seen.live());
        // Few that are used all the time.
        touch(key % 10);
        world.run_for(Duration::from_millis(2));
    }
    assert!(seen.live() >= 96, "{} are live: too many have left", seen.live());
    let evicted = seen.0.lock().1 as usize;
    assert_eq!(evicted + seen.live(), 2010, "all others made room, and those ten stayed");
    assert!((0..10).map(touch).all(|touched| touched > 150), "who is used stays");
}

#[test]
fn who_has_put_something_aside_stays() {
    let seen = Seen::default();
    let world = World::simulated(1).seed(2).config(one_worker()).on_each(hosting(&seen, 20)).start();
    let waiting = world.entity::<Item>(0, 7);
    waiting.tell(Wait).unwrap();
    let (answer, hear) = channel::bounded(1);
    waiting.ask_then(Touch, LONG, move |touched| answer.send(touched).unwrap());
    for key in 100..500 {
        world.entity::<Item>(0, key).ask(Touch, LONG).unwrap();
    }
    waiting.tell(Go).unwrap();
    world.eventually(LONG, || !hear.is_empty());
    assert_eq!(hear.recv().unwrap(), Ok(1), "by the instance that was told to wait");
    assert!(seen.live() <= 24);
}

#[test]
fn the_limit_holds_on_each_node_while_shards_move() {
    let seen = Seen::default();
    let world = World::simulated(3).seed(3).on_each(hosting(&seen, 40)).start();
    let all = |from: u64| {
        for key in from..from + 300 {
            world.eventually(LONG, || world.entity::<Item>(0, key).ask(Touch, LONG).is_ok());
        }
    };
    all(0);
    assert!(seen.live() <= 3 * 40 + 2 * 4, "{} are live", seen.live());
    world.node(2).shutdown(ShutdownReason::Requested).wait(LONG).unwrap();
    all(1000);
    assert!(seen.live() <= 2 * 40 + 2 * 4, "{} are live", seen.live());
}
