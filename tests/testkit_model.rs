//! What entities can do, in the test kit: time, asks, topics and watches, of a lone entity and of entities in a world.
#![allow(missing_docs, clippy::unwrap_used)]

use std::{
    cell::RefCell,
    pin::pin,
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use wingbeat::{
    Answer, AskError, AskQueue, Cluster, Cx, Directive, DropReason, Entity, EntityRef, HostOptions, Nodes, PanicInfo, Passivation,
    RegisterError, Singleton, StopReason, messages,
    testkit::{self, Solo, World, WorldBuilder},
    wire,
};

messages! {
    pub enum ShopMsg for Shop(String) = "test.shop" {
        Open { every_ms: u64 },
        Tick,
        Late,
        Rest { ms: u64 },
        Order { fuel: String } -> u64,
        Ordered { price: Result<u64, String> },
        Guard { whom: String },
        Unguard { whom: String },
        Gone { whom: String },
        News { text: String },
        Shout { text: String },
        Break,
        Leave,
        Seen -> Vec<String>,
        Add { n: u64 } -> u64,
        Far { key: String } -> bool,
        Never -> u64,
    }
}
messages! { pub enum FuelMsg for Fuel(String) = "test.fuel" { Price -> u64, Stop } }
messages! { pub enum NumbersMsg for Numbers(Singleton) = "test.numbers" { Next -> u64 } }
wire!(News = "test.shop.news");

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const LONG: Duration = Duration::from_secs(30);

type Log = Rc<RefCell<Vec<String>>>;

/// Tells what happens, with the moment.
struct State {
    log: Vec<String>,
    kept: Log,
    pump: Option<EntityRef<Fuel>>,
    sum: u64,
    owed: Vec<wingbeat::Promise<u64>>,
}

impl State {
    fn new() -> Self {
        Self { log: vec![], kept: Log::default(), pump: None, sum: 0, owed: vec![] }
    }

    fn note(&mut self, what: impl Into<String>) {
        let what = what.into();
        self.kept.borrow_mut().push(what.clone());
        self.log.push(what);
    }

    fn pump(&self, cx: &Cx<'_, Self>, key: &str) -> EntityRef<Fuel> {
        self.pump.clone().or_else(|| cx.resolve(&wingbeat::EntityId::new(key))).unwrap()
    }
}

impl Entity for State {
    type Type = Shop;

    fn started(&mut self, cx: &mut Cx<'_, Self>) {
        let topic = cx.topic::<News>("news");
        cx.subscribe(&topic);
    }

    fn stopped(&mut self, why: StopReason, _: &mut Cx<'_, Self>) {
        self.note(format!("stopped {why}"));
    }

    fn supervise(panic: &PanicInfo, _: u32) -> Directive {
        assert!(panic.location.contains("testkit_model.rs"), "{}", panic.location);
        Directive::Stop
    }

    fn handle(&mut self, msg: ShopMsg, cx: &mut Cx<'_, Self>) {
        match msg {
            ShopMsg::Open(Open { every_ms }) => {
                cx.timer_every(1, MS * every_ms as u32, Tick);
                cx.timer_once(2, SECOND, Late);
            }
            ShopMsg::Tick(_) => self.note("tick"),
            ShopMsg::Late(_) => {
                cx.timer_cancel(1);
                self.note("late");
            }
            ShopMsg::Rest(Rest { ms }) => cx.idle_timeout(Some(MS * ms as u32)),
            ShopMsg::Order(Order { fuel }, reply) => {
                self.owed.push(cx.defer(reply));
                let pump = self.pump(cx, &fuel);
                cx.ask(&pump, Price, SECOND, |price| Ordered { price: price.map_err(|error: AskError| error.code().to_owned()) });
            }
            ShopMsg::Ordered(Ordered { price }) => {
                let promise = self.owed.pop().unwrap();
                match price {
                    Ok(price) => promise.fulfil(price),
                    Err(why) => promise.reject(why),
                }
            }
            ShopMsg::Guard(Guard { whom }) => cx.watch(&self.pump(cx, &whom), Gone { whom }),
            ShopMsg::Unguard(Unguard { whom }) => cx.unwatch(&self.pump(cx, &whom)),
            ShopMsg::Gone(Gone { whom }) => self.note(format!("{whom} is gone")),
            ShopMsg::News(News { text }) => self.note(text),
            ShopMsg::Shout(Shout { text }) => cx.topic::<News>("news").publish(&News { text }).unwrap(),
            ShopMsg::Break(_) => panic!("on purpose"),
            ShopMsg::Leave(_) => cx.passivate(),
            ShopMsg::Seen(_, reply) => cx.reply(reply, self.log.clone()),
            ShopMsg::Add(Add { n }, reply) => {
                self.sum += n;
                cx.reply(reply, self.sum);
            }
            ShopMsg::Far(Far { key }, reply) => cx.reply(reply, cx.resolve::<Fuel>(&wingbeat::EntityId::new(&key)).is_some()),
            ShopMsg::Never(_, reply) => self.owed.push(cx.defer(reply)),
        }
    }
}

struct Pump;

impl Entity for Pump {
    type Type = Fuel;

    fn handle(&mut self, msg: FuelMsg, cx: &mut Cx<'_, Self>) {
        match msg {
            FuelMsg::Price(_, reply) => cx.reply(reply, 7),
            FuelMsg::Stop(_) => cx.passivate(),
        }
    }
}

struct Count(u64);

impl Entity for Count {
    type Type = Numbers;

    fn handle(&mut self, NumbersMsg::Next(_, reply): NumbersMsg, cx: &mut Cx<'_, Self>) {
        self.0 += 1;
        cx.reply(reply, self.0);
    }
}

// ---- one entity -------------------------------------------------------------------------------------------------------------

fn shop() -> (Solo<State>, Log) {
    let log = Log::default();
    let kept = log.clone();
    (Solo::new("s", move |_| State { kept: kept.clone(), pump: Some(testkit::reference("p")), ..State::new() }), log)
}

#[test]
fn timers_fire_at_their_moment_as_time_is_advanced() {
    let (mut shop, log) = shop();
    shop.tell(Open { every_ms: 300 });
    shop.advance(MS * 299);
    assert!(log.take().is_empty(), "never early");
    shop.advance(MS);
    assert_eq!(log.take(), ["tick"]);
    shop.advance(MS * 700);
    assert_eq!(log.take(), ["tick", "tick", "late"]);
    shop.advance(LONG);
    assert!(log.take().is_empty(), "cancelled");
}

#[test]
fn a_timer_goes_along_with_a_move_and_ends_with_its_instance() {
    let (mut shop, log) = shop();
    shop.tell(Open { every_ms: 600 }).advance(MS * 400);
    shop.move_away().unwrap();
    assert_eq!(log.take(), ["stopped moved"]);
    shop.advance(MS * 199);
    assert!(log.take().is_empty());
    shop.advance(MS * 2);
    assert_eq!(log.take(), ["tick"]);
    shop.tell(Leave).advance(LONG);
    assert_eq!(log.take(), ["stopped passivated"]);
}

#[test]
fn an_idle_entity_leaves_memory_after_its_time_or_that_of_its_host() {
    let (mut shop, log) = shop();
    shop.tell(Rest { ms: 100 }).advance(MS * 99);
    assert!(shop.is_live());
    shop.advance(MS * 30);
    assert!(!shop.is_live());
    assert_eq!(log.take(), ["stopped passivated"]);
    let options = HostOptions::new().passivation(Passivation::idle(SECOND));
    let mut other = Solo::<State>::hosted(options, "o", |_| State::new());
    other.tell(Tick).advance(MS * 900).tell(Tick).advance(MS * 900);
    assert!(other.is_live(), "used meanwhile");
    other.advance(SECOND);
    assert!(!other.is_live());
}

#[test]
fn what_an_entity_asks_is_answered_by_the_test_as_a_message() {
    let (mut shop, _) = shop();
    let before = shop.now();
    assert_eq!(shop.ask(Order { fuel: "p".into() }), Err(AskError::Rejected("E-ASK-003".into())), "nobody has answered");
    assert_eq!(shop.now().since(before), SECOND);
    shop.answer::<Fuel, Price>(|pump, msg| matches!(msg, FuelMsg::Price(..)).then_some(pump.len() as u64));
    assert_eq!(shop.ask(Order { fuel: "p".into() }), Ok(1));
    assert_eq!(shop.sent_to::<Fuel>().len(), 2);
    // The other way: a reference that its own node has made.
    let mut far = Solo::<State>::new("f", |_| State::new());
    far.proxy::<Fuel>().answer::<Fuel, Price>(|pump, _| Some(pump.len() as u64));
    assert_eq!(far.ask(Order { fuel: "pump".into() }), Ok(4));
}

#[test]
fn the_test_ends_what_an_entity_watches() {
    let (mut shop, log) = shop();
    shop.tell(Guard { whom: "p".into() }).advance(LONG);
    assert!(log.take().is_empty());
    assert!(!shop.watched_ends::<Fuel>("q"), "it does not watch that one");
    assert!(shop.watched_ends::<Fuel>("p"));
    assert_eq!(log.take(), ["p is gone"]);
    assert!(!shop.watched_ends::<Fuel>("p"), "once");
    shop.tell(Guard { whom: "p".into() }).tell(Unguard { whom: "p".into() });
    assert!(!shop.watched_ends::<Fuel>("p"));
    assert!(log.take().is_empty() && shop.sent_to::<Fuel>().is_empty());
}

#[test]
fn topics_of_a_lone_entity_are_the_tests() {
    let (mut shop, log) = shop();
    shop.publish("news", News { text: "early".into() });
    assert!(!shop.is_live(), "a value starts nobody");
    shop.tell(Shout { text: "mine".into() });
    shop.publish("news", News { text: "theirs".into() }).publish("other", News { text: "elsewhere".into() });
    assert_eq!(log.take(), ["mine", "theirs"]);
    assert!(shop.published::<News>("other").is_empty());
    assert!(matches!(&shop.published::<News>("news")[..], [News { text }] if text == "mine"));
    assert!(shop.published::<News>("news").is_empty(), "taken");
}

#[test]
fn a_panic_is_located_and_its_message_is_given_up() {
    let (mut shop, _) = shop();
    shop.tell(Break);
    assert!(!shop.is_live());
    let dropped = shop.dropped();
    assert!(dropped.iter().any(|letter| letter.reason == DropReason::Poison), "{dropped:?}");
}

// ---- several nodes ----------------------------------------------------------------------------------------------------------

fn types(node: &Cluster) -> Result<(), RegisterError> {
    node.host::<State>(HostOptions::new().shards(16), |_| State::new())?;
    node.host::<Pump>(HostOptions::new().shards(16).passivation(Passivation::idle(LONG * 20)), |_| Pump)?;
    node.singleton::<Count>(HostOptions::new(), || Count(0)).map(drop)
}

fn both(body: fn(World), simulated: bool) {
    let world: WorldBuilder = if simulated { World::simulated(3) } else { World::real(3) };
    body(world.on_each(types).start());
}

fn seen(world: &World, key: &str) -> Vec<String> {
    world.entity::<Shop>(0, key).ask(Seen, LONG).unwrap()
}

/// Queues and batches, from outside; asks and watches, by entities; a singleton.
fn asks_and_watches(world: World) {
    let queue = AskQueue::new(64);
    for n in 0..50 {
        world.entity::<Shop>(1, format!("s{n}")).ask_into(Add { n }, LONG, n, &queue).unwrap();
    }
    let mut answers = vec![];
    while queue.in_flight() > 0 {
        assert!(queue.wait(&mut answers, LONG) > 0);
    }
    answers.sort_by_key(|answer: &Answer<u64>| answer.tag);
    assert!(answers.iter().all(|answer| answer.result == Ok(answer.tag)) && answers.len() == 50, "{answers:?}");

    let shops = world.node(2).region::<Shop>().unwrap();
    let mut batch = shops.batch();
    for n in 0..50 {
        batch.push(format!("s{n}"), News { text: "by batch".into() });
    }
    let report = batch.send();
    assert_eq!((report.accepted, report.refused.len()), (50, 0));
    world.eventually(LONG, || seen(&world, "s49") == ["by batch"]);
    // More than a ring holds.
    let many = 3000;
    (0..many).for_each(|_| _ = batch.push("flood", News { text: "again".into() }));
    let report = batch.send_within(LONG);
    assert_eq!((report.accepted, report.refused.len()), (many, 0));
    world.eventually(LONG, || seen(&world, "flood").len() == many);

    assert_eq!(world.entity::<Shop>(0, "s0").ask(Order { fuel: "p".into() }, LONG), Ok(7));

    let (shop, pump) = (world.entity::<Shop>(0, "guard"), world.entity::<Fuel>(1, "watched"));
    pump.ask(Price, LONG).unwrap();
    shop.ask(Add { n: 0 }, LONG).unwrap();
    shop.tell(Guard { whom: "watched".into() }).unwrap();
    world.run_for(SECOND / 2);
    assert!(seen(&world, "guard").is_empty());
    pump.tell(Stop).unwrap();
    world.eventually(LONG, || seen(&world, "guard") == ["watched is gone"]);

    let numbers: Vec<u64> = (0..3).map(|node| world.entity::<Numbers>(node, Singleton).ask(Next, LONG).unwrap()).collect();
    assert_eq!(numbers, [1, 2, 3]);
}

#[test]
fn asks_and_watches_in_virtual_time() {
    both(asks_and_watches, true);
}

#[test]
fn asks_and_watches_on_sockets() {
    both(asks_and_watches, false);
}

/// Topics reach all nodes, entities and callers; broadcasts reach live entities.
fn topics_and_broadcasts(world: World) {
    let keys = ["a", "b", "c", "d", "e"];
    for key in keys {
        world.entity::<Shop>(0, key).ask(Add { n: 1 }, LONG).unwrap();
    }
    let (outside, called) = (world.node(2).topic::<News>("news").subscribe(16), Arc::new(AtomicU64::new(0)));
    let calls = called.clone();
    let _kept = world.node(0).topic::<News>("news").on(move |_| _ = calls.fetch_add(1, Ordering::SeqCst));
    world.node(1).topic::<News>("news").publish(&News { text: "to all".into() }).unwrap();
    world.eventually(LONG, || keys.iter().all(|key| seen(&world, key) == ["to all"]));
    world.eventually(LONG, || called.load(Ordering::SeqCst) == 1);
    assert_eq!(outside.try_iter().map(|news| news.text).collect::<Vec<_>>(), ["to all"]);
    world.node(1).region::<Shop>().unwrap().broadcast(Nodes::All, Tick).unwrap();
    world.eventually(LONG, || keys.iter().all(|key| seen(&world, key) == ["to all", "tick"]));
}

#[test]
fn topics_and_broadcasts_in_virtual_time() {
    both(topics_and_broadcasts, true);
}

#[test]
fn topics_and_broadcasts_on_sockets() {
    both(topics_and_broadcasts, false);
}

/// An entity that is watched dies with its node; so do asks, and the subscription of who watches the node is called.
fn a_death_is_told(world: World) {
    let on_last = |key: &String| {
        world.entity::<Fuel>(0, key.as_str()).ask(Price, LONG).unwrap();
        world.owner_of::<Fuel>(key.as_str()) == 2
    };
    let target = (0..).map(|n| format!("p{n}")).find(on_last).unwrap();
    let elsewhere = |key: &String| {
        world.entity::<Shop>(0, key.as_str()).ask(Add { n: 0 }, LONG).unwrap();
        world.owner_of::<Shop>(key.as_str()) != 2
    };
    let guard = (0..).map(|n| format!("g{n}")).find(elsewhere).unwrap();
    world.entity::<Shop>(0, guard.as_str()).tell(Guard { whom: target.clone() }).unwrap();
    let removed = Arc::new(AtomicU64::new(0));
    let count = removed.clone();
    let _kept = world.node(0).watch_node(world.node(2).id(), move |_| _ = count.fetch_add(1, Ordering::SeqCst));
    world.run_for(SECOND);
    assert!(seen(&world, &guard).is_empty());
    world.kill(2);
    world.eventually(LONG * 4, || seen(&world, &guard) == [format!("{target} is gone")]);
    world.eventually(LONG * 4, || removed.load(Ordering::SeqCst) == 1);
}

#[test]
fn a_death_is_told_in_virtual_time() {
    both(a_death_is_told, true);
}

#[test]
fn a_death_is_told_on_sockets() {
    both(a_death_is_told, false);
}

#[test]
fn timers_idle_times_and_deadlines_take_virtual_time_in_a_world() {
    let world = World::simulated(2).seed(3).on_each(types).start();
    let shop = world.entity::<Shop>(0, "s");
    shop.ask(Add { n: 4 }, LONG).unwrap();
    shop.tell(Open { every_ms: 400 }).unwrap();
    world.run_for(SECOND + 10 * MS);
    assert_eq!(seen(&world, "s"), ["tick", "tick", "late"]);
    shop.tell(Rest { ms: 500 }).unwrap();
    world.run_for(SECOND);
    assert_eq!(shop.ask(Add { n: 0 }, LONG), Ok(0), "it had left memory");
    let (queue, before) = (AskQueue::new(1), world.now());
    shop.ask_into(Never, 5 * SECOND, 9, &queue).unwrap();
    let mut answers = vec![];
    queue.wait(&mut answers, LONG);
    assert_eq!(answers.pop().unwrap().result, Err(AskError::Timeout { maybe_ran: true }));
    assert!((5 * SECOND..6 * SECOND).contains(&world.now().since(before)));
    shop.ask_into(Never, LONG, 9, &queue).unwrap();
    let before = world.now();
    assert_eq!(queue.wait(&mut answers, SECOND), 0);
    assert_eq!(world.now().since(before), SECOND, "a wait takes its deadline, and no longer");
}

struct Nobody;

impl Wake for Nobody {
    fn wake(self: Arc<Self>) {}
}

#[test]
fn a_future_is_ready_once_time_has_passed() {
    let world = World::simulated(2).seed(4).on_each(types).start();
    let mut asked = pin!(world.entity::<Shop>(1, "s").ask_async(Add { n: 4 }, LONG));
    let waker = Waker::from(Arc::new(Nobody));
    let mut cx = Context::from_waker(&waker);
    assert!(asked.as_mut().poll(&mut cx).is_pending());
    world.run_for(SECOND);
    assert_eq!(asked.as_mut().poll(&mut cx), Poll::Ready(Ok(4)));
}

#[test]
fn an_entity_asks_through_a_reference_of_another_node() {
    let world = World::simulated(2).seed(5).on_each(|node| node.host::<Pump>(HostOptions::new().shards(8), |_| Pump).map(drop)).start();
    let other = world.node(0).host::<State>(HostOptions::new().shards(8), {
        let pump = world.entity::<Fuel>(1, "p");
        move |_| State { pump: Some(pump.clone()), ..State::new() }
    });
    assert_eq!(other.unwrap().get("s").ask(Order { fuel: "p".into() }, LONG), Ok(7));
}

fn eventful(seed: u64) -> String {
    let world = World::simulated(3).seed(seed).network(MS, MS * 3, 0.05).on_each(types).start();
    for n in 0..20u64 {
        let shop = world.entity::<Shop>(n as usize % 3, format!("s{n}"));
        shop.tell(Open { every_ms: 50 + n }).unwrap();
        shop.tell(Guard { whom: format!("p{n}") }).unwrap();
        shop.tell(Shout { text: format!("{n}") }).unwrap();
    }
    world.run_for(SECOND);
    world.kill(2);
    world.run_for(LONG);
    let seen: Vec<_> = (0..20).map(|n| world.entity::<Shop>(0, format!("s{n}")).ask(Seen, LONG)).collect();
    format!("{seen:?}\n{}", world.story())
}

#[test]
fn a_seed_repeats_timers_watches_and_topics() {
    let first = eventful(11);
    assert!(first.contains("tick") && first.contains("late") && first.contains("is gone"), "{first}");
    assert_eq!(first, eventful(11));
    assert_ne!(first, eventful(12));
}
