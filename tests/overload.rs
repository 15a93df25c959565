//! More than twice what a node can handle, told and asked: the rest is refused by name, nothing is lost without a count, memory has a bound, nobody
//! is accused, and when it is over the node answers as before. Alone in its process, whose memory it looks at.
#![cfg(feature = "cli")]
#![allow(missing_docs, clippy::unwrap_used)]

mod support;

use std::{
    fs,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use support::{PATIENCE, http::Client, until_holds};
use wingbeat::{
    AskError, Cluster, Config, Cx, DropReason, Entity, Event, HostOptions, MemberStatus, Ran, Refusal, Region,
    config::{Preset, Workers},
    messages,
};

messages! { pub enum MillMsg for Mill(u64) = "test.mill" { Grain { filler: String }, Grind { filler: String } -> u64, Ground -> u64 } }

/// How long one message takes: with two senders that only encode, far more comes than goes.
const TURN: Duration = Duration::from_micros(100);
/// How long it lasts, and how many messages are handled meanwhile: it works on while it refuses.
const PRESSURE: Duration = Duration::from_secs(5);
const HANDLED: u64 = 2000;
const ENTITIES: u64 = 8;

struct Stones {
    handled: Arc<AtomicU64>,
    ground: u64,
}

impl Stones {
    fn grind(&mut self) {
        let began = Instant::now();
        while began.elapsed() < TURN {
            std::hint::spin_loop();
        }
        self.ground += 1;
        self.handled.fetch_add(1, Ordering::SeqCst);
    }
}

impl Entity for Stones {
    type Type = Mill;

    fn handle(&mut self, msg: MillMsg, cx: &mut Cx<'_, Self>) {
        match msg {
            MillMsg::Grain(_) => self.grind(),
            MillMsg::Grind(_, reply) => {
                self.grind();
                cx.reply(reply, self.ground);
            }
            MillMsg::Ground(_, reply) => cx.reply(reply, self.ground),
        }
    }
}

fn node(seed: Option<&Cluster>) -> Cluster {
    let mut config = Config::preset(Preset::LocalTest);
    config.set("detector.heartbeat_interval", "600ms").unwrap();
    config.cluster.name = format!("overload-{}", std::process::id());
    config.node.listen = "127.0.0.1:0".parse().unwrap();
    config.node.workers = Workers::Count(1);
    config.admin.listen = Some("127.0.0.1:0".parse().unwrap());
    Cluster::builder(config).seeds(seed.map(|seed| seed.addr().to_string())).start().unwrap()
}

/// What became of one sender's messages.
#[derive(Default, Debug)]
struct Sent {
    accepted: u64,
    full: u64,
    no_credit: u64,
    answered: u64,
    dropped: u64,
    late: u64,
}

/// Tells and asks without a pause until told to stop; one in a hundred is asked.
fn send(region: &Region<Mill>, stop: &AtomicBool) -> Sent {
    let (mut sent, answers) = (Sent::default(), Arc::new([const { AtomicU64::new(0) }; 3]));
    for n in 0_u64.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let (mill, filler) = (region.get(n % ENTITIES), "g".repeat(1000));
        if n % 100 == 0 {
            let to = answers.clone();
            mill.ask_then(Grind { filler }, Duration::from_secs(2), move |answer| {
                let of = match &answer {
                    Ok(_) => 0,
                    Err(AskError::Refused(Refusal::Full | Refusal::NoCredit | Refusal::Overloaded)) => 1,
                    Err(AskError::Dropped(DropReason::Overloaded | DropReason::NoCredit | DropReason::Expired)) => 1,
                    Err(error) => {
                        assert!(matches!(error, AskError::Timeout { .. }) && error.ran() == Ran::Maybe, "{error}");
                        2
                    }
                };
                to[of].fetch_add(1, Ordering::SeqCst);
            });
            continue;
        }
        match mill.tell(Grain { filler }) {
            Ok(()) => sent.accepted += 1,
            Err(error) => match error.reason() {
                Refusal::Full => sent.full += 1,
                Refusal::NoCredit => sent.no_credit += 1,
                _ => panic!("{error}"),
            },
        }
    }
    let asked = |of: usize| answers[of].load(Ordering::SeqCst);
    (sent.answered, sent.dropped, sent.late) = (asked(0), asked(1), asked(2));
    sent
}

/// Bytes of this process in memory.
fn resident() -> u64 {
    let pages = fs::read_to_string("/proc/self/statm").ok().and_then(|text| text.split(' ').nth(1)?.parse::<u64>().ok());
    pages.unwrap_or(0) * 4096
}

/// The sum of a figure of the metrics page over its labels.
fn metric(node: &Cluster, name: &str) -> u64 {
    let page = Client::connect(node.admin_addr().unwrap()).unwrap().get("/metrics").unwrap().text();
    let values = page.lines().filter_map(|line| line.strip_prefix(name)?.rsplit_once(' ')?.1.parse::<u64>().ok());
    values.sum()
}

#[test]
fn more_than_a_node_can_take_is_refused_and_counted_and_over_at_once() {
    let home = node(None);
    let handled = Arc::new(AtomicU64::new(0));
    let counted = handled.clone();
    home.host::<Stones>(HostOptions::new().shards(16), move |_| Stones { handled: counted.clone(), ground: 0 }).unwrap();
    let far = node(Some(&home));
    let (near_region, far_region) = (home.proxy::<Mill>().unwrap(), far.proxy::<Mill>().unwrap());
    [&home, &far].into_iter().for_each(|node| drop(node.wait_members(2, PATIENCE).unwrap()));
    far_region.wait_ready(PATIENCE).unwrap();
    for mill in 0..ENTITIES {
        assert_eq!((near_region.get(mill).ask(Ground, PATIENCE), far_region.get(mill).ask(Ground, PATIENCE)), (Ok(0), Ok(0)));
    }
    let events = [home.events(), far.events()];
    let (before, stop) = (resident(), Arc::new(AtomicBool::new(false)));
    let senders = [near_region.clone(), far_region.clone()].map(|region| {
        let stop = stop.clone();
        thread::spawn(move || send(&region, &stop))
    });
    let (began, mut most) = (Instant::now(), 0);
    until_holds("some seconds of it", || {
        most = most.max(resident());
        began.elapsed() >= PRESSURE && handled.load(Ordering::SeqCst) >= HANDLED
    });
    stop.store(true, Ordering::Relaxed);
    let sent = senders.map(|sender| sender.join().unwrap());
    let offered: u64 = sent.iter().map(|sent| sent.accepted + sent.full + sent.no_credit).sum();
    let done = handled.load(Ordering::SeqCst);
    assert!(offered > 2 * done, "{offered} were offered and {done} handled: this was no pressure, {sent:?}");

    // It answers a new request, behind no more than what is bounded.
    for mill in 0..ENTITIES {
        until_holds("it answers again, near", || near_region.get(mill).ask(Ground, Duration::from_secs(5)).is_ok());
        until_holds("it answers again, from afar", || far_region.get(mill).ask(Ground, Duration::from_secs(5)).is_ok());
    }
    let accepted: u64 = sent.iter().map(|sent| sent.accepted).sum();
    let dropped = || -> u64 { [&home, &far].iter().map(|node| metric(node, "wingbeat_messages_dropped_total")).sum() };
    until_holds("each message that was accepted was handled, or is counted", || {
        // Requests are in both numbers, so there may be more than what was told.
        handled.load(Ordering::SeqCst) + dropped() >= accepted
    });
    assert!(sent[0].full > 0, "near, there is no room in the queue: {sent:?}");
    assert!(sent[1].full + sent[1].no_credit + dropped() > 0, "from afar, somebody says no: {sent:?}");
    // Two nodes: rings, links with 16 MiB, and what waits for a worker.
    assert!(most.saturating_sub(before) < 384 << 20, "{} MiB more than before", (most - before) >> 20);
    for event in events.iter().flat_map(|events| events.try_iter()) {
        let accuses = match &event {
            Event::Unreachable { .. } | Event::Split { .. } => true,
            Event::Member { member, .. } => matches!(member.status, MemberStatus::Down | MemberStatus::Removed),
            _ => false,
        };
        assert!(!accuses, "{event:?}");
    }
}
