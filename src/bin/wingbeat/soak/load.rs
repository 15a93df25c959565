//! The load: a node of its own that sends at a fixed rate, whatever the answers do, from one thread.
//!
//! Messages are meant to go in small groups, one each millisecond; latency counts from then, so that a stall of anything, the load included, is seen
//! by all that it kept waiting. How late the load itself was is kept apart.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use serde_json::Value;
use wingbeat::{
    Answer as Answered, AskQueue, Cluster, DeadLetter, EntityRef, EntityType, Region, ShardId, ShardInfo, ShardState, TellError, Wire,
    builtin::{
        counter,
        hosting::{Answer, CounterType, ProbeMsg, ProbeType, RegisterMsg, RegisterType},
        probe, register,
    },
    channel::Receiver,
    proto::rng::Rng,
};

use super::{
    books::{Books, Entity, Said, Type, What},
    ledger::Arrived,
};

/// Entities of each type.
pub const ENTITIES: [(Type, usize); 3] = [(Type::Probe, 2_000), (Type::Counter, 1_000), (Type::Register, 1_000)];
/// How long a request may take: longer than any outage of a soak, so that none gives up early.
const ASK_WITHIN: Duration = Duration::from_secs(20);
/// The one who sends.
const SENDER: &str = "soak";
/// Distance of two groups of messages.
const GROUP_EVERY: Duration = Duration::from_millis(1);
/// Each probe is looked at this often.
const LOOK_EVERY: Duration = Duration::from_secs(30);
/// Room for requests on their way.
const ROOM: usize = 1 << 16;
/// How long everything may take to be answered and looked at in the end.
const END_WITHIN: Duration = Duration::from_secs(60);
/// Looks on their way in the end.
const LOOKS_OPEN: usize = 500;

/// A reference by type.
enum To {
    Probe(EntityRef<ProbeType>),
    Counter(EntityRef<CounterType>),
    Register(EntityRef<RegisterType>),
}

/// The regions of the types that are sent to.
#[derive(Clone)]
pub struct Regions {
    probe: Region<ProbeType>,
    counter: Region<CounterType>,
    register: Region<RegisterType>,
}

/// Homes of all shards: type and number, and the home if it is active there.
pub type Homes = BTreeMap<(Type, u32), Option<wingbeat::NodeId>>;

impl Regions {
    /// Those of a node that hosts the built-in types.
    pub fn of(cluster: &Cluster, within: Duration) -> Result<Self, String> {
        fn ready<T: EntityType>(cluster: &Cluster, within: Duration) -> Result<Region<T>, String> {
            let region = cluster.region::<T>().ok_or("a built-in type is not hosted")?;
            region.wait_ready(within).map_err(|error| format!("{}: {error}", T::TYPE))?;
            Ok(region)
        }
        Ok(Self { probe: ready(cluster, within)?, counter: ready(cluster, within)?, register: ready(cluster, within)? })
    }

    /// Where all shards are.
    pub fn homes(&self) -> Result<Homes, String> {
        const WITHIN: Duration = Duration::from_secs(2);
        let mut homes = Homes::new();
        let tables = [
            (Type::Probe, self.probe.table(WITHIN)),
            (Type::Counter, self.counter.table(WITHIN)),
            (Type::Register, self.register.table(WITHIN)),
        ];
        for (ty, table) in tables {
            let home = |row: &ShardInfo| row.owner.filter(|_| row.state == ShardState::Active);
            homes.extend(table.map_err(|error| error.to_string())?.iter().map(|row| ((ty, row.shard.0), home(row))));
        }
        Ok(homes)
    }
}

/// The running load.
pub struct Load {
    pub books: Arc<Mutex<Books>>,
    /// Odd while a fault is not healed.
    pub fault: Arc<AtomicU32>,
    pub began: Instant,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<(), String>>,
}

impl Load {
    /// Begins to send so many messages a second. Latencies are kept of what is due between these two times.
    pub fn start(cluster: &Cluster, regions: &Regions, seed: u64, rate: u64, from: Duration, upto: Duration) -> Result<Self, String> {
        let (mut refs, mut entities) = (Vec::new(), Vec::new());
        for (ty, count) in ENTITIES {
            for number in 0..count {
                let key = format!("e{number}");
                let (to, shard) = match ty {
                    Type::Probe => (To::Probe(regions.probe.get(key.as_str())), regions.probe.shard_of(&key)),
                    Type::Counter => (To::Counter(regions.counter.get(key.as_str())), regions.counter.shard_of(&key)),
                    Type::Register => (To::Register(regions.register.get(key.as_str())), regions.register.shard_of(&key)),
                };
                refs.push(to);
                entities.push(Entity::new(ty, key, shard.unwrap_or(ShardId(0))));
            }
        }
        let books = Arc::new(Mutex::new(Books::new(entities, from, upto)));
        let (stop, fault, began) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)), Instant::now());
        let sender = Sender {
            refs,
            by_key: books
                .lock()
                .entities
                .iter()
                .enumerate()
                .map(|(at, entity)| ((entity.ty, entity.key.clone().into_bytes()), at))
                .collect(),
            books: books.clone(),
            fault: fault.clone(),
            stop: stop.clone(),
            queue: AskQueue::new(ROOM),
            letters: cluster.dead_letters(),
            rng: Rng::new(seed).split(2),
            began,
            group: (rate * GROUP_EVERY.as_millis() as u64 / 1_000).max(1),
            looks: 0,
        };
        let thread = thread::Builder::new().name("soak-load".into()).spawn(move || sender.run()).map_err(|error| error.to_string())?;
        Ok(Self { books, fault, began, stop, thread })
    }

    pub fn is_running(&self) -> bool {
        !self.thread.is_finished()
    }

    /// Stops sending, waits for what is under way, and looks at every entity once more. What the load knows in the end.
    pub fn finish(self) -> Result<Arc<Mutex<Books>>, String> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| "the load panicked".to_owned())??;
        Ok(self.books)
    }
}

struct Sender {
    refs: Vec<To>,
    by_key: BTreeMap<(Type, Vec<u8>), usize>,
    books: Arc<Mutex<Books>>,
    fault: Arc<AtomicU32>,
    stop: Arc<AtomicBool>,
    queue: AskQueue<Answer>,
    letters: Receiver<DeadLetter>,
    rng: Rng,
    began: Instant,
    /// Messages of a group.
    group: u64,
    /// Looks that were due so far.
    looks: u64,
}

impl Sender {
    fn run(mut self) -> Result<(), String> {
        let mut groups = 0u32;
        while !self.stop.load(Ordering::Relaxed) {
            let now = self.began.elapsed();
            while GROUP_EVERY * groups <= now {
                self.send_group(GROUP_EVERY * groups);
                groups += 1;
            }
            self.look_in_turn(now);
            self.take(Duration::ZERO);
            self.take((GROUP_EVERY * groups).saturating_sub(self.began.elapsed()));
        }
        let (ran, waited) = on_core();
        {
            let mut books = self.books.lock();
            (books.sums.ran, books.sums.waited) = (ran, waited);
        }
        self.settle()
    }

    fn send_group(&mut self, due: Duration) {
        let fault = self.fault.load(Ordering::Relaxed);
        let books = self.books.clone();
        let mut books = books.lock();
        for _ in 0..self.group {
            let late = self.began.elapsed().saturating_sub(due);
            books.lateness.saturating_record(late.as_nanos() as u64);
            self.send(&mut books, due, fault);
        }
    }

    /// One message of a drawn kind to a drawn entity. What is refused is not sent again: its number is given to the next one.
    fn send(&mut self, books: &mut Books, due: Duration, fault: u32) {
        // Six in ten go to probes, two to counters, two to registers; half of each are asked, but a third of those at registers read.
        let draw = self.rng.below(10);
        let (first, count) = match draw {
            0..6 => (0, ENTITIES[0].1),
            6..8 => (ENTITIES[0].1, ENTITIES[1].1),
            _ => (ENTITIES[0].1 + ENTITIES[1].1, ENTITIES[2].1),
        };
        let at = first + self.rng.below(count as u64) as usize;
        let (asked, reads) = (self.rng.chance(0.5), self.rng.chance(0.3));
        let (seq, tag, queue) = (books.entities[at].stream.next(), books.next_tag(), &self.queue);
        let number = |result: Result<(), &'static str>| result.map(|()| (What::Numbered(seq), asked));
        let sent = match &self.refs[at] {
            To::Probe(to) => number(sent(to, probe::Op::Note { sender: SENDER.into(), seq }, asked, tag, queue)),
            To::Counter(to) => number(sent(to, counter::Op::Add { n: 1, id: None }, asked, tag, queue)),
            To::Register(to) if reads => sent(to, register::Op::Read, true, tag, queue).map(|()| (What::Look(seq - 1), true)),
            To::Register(to) => number(sent(to, register::Op::Write { value: seq.to_string() }, asked, tag, queue)),
        };
        books.sums.meant += 1;
        match sent {
            Ok((what, asked)) => books.accepted(at, what, asked, due, fault),
            Err(code) => *books.sums.refused.entry(code).or_default() += 1,
        }
    }

    /// Looks at one probe after another, so that each has its turn in time.
    fn look_in_turn(&mut self, now: Duration) {
        let probes = ENTITIES[0].1 as u64;
        let due = (now.as_secs_f64() / LOOK_EVERY.as_secs_f64() * probes as f64) as u64;
        while self.looks < due {
            self.look((self.looks % probes) as usize);
            self.looks += 1;
        }
    }

    /// Asks an entity what it has; false if that was refused.
    fn look(&self, at: usize) -> bool {
        let mut books = self.books.lock();
        let (tag, queue) = (books.next_tag(), &self.queue);
        let asked = match &self.refs[at] {
            To::Probe(to) => sent(to, probe::Op::Report, true, tag, queue),
            To::Counter(to) => sent(to, counter::Op::Get, true, tag, queue),
            To::Register(to) => sent(to, register::Op::Read, true, tag, queue),
        };
        if asked.is_ok() {
            books.looking(at, self.began.elapsed(), self.fault.load(Ordering::Relaxed));
        }
        asked.is_ok()
    }

    /// Takes what came in, waiting so long for the first answer.
    fn take(&mut self, wait: Duration) {
        let mut answers = Vec::new();
        if wait.is_zero() {
            self.queue.poll(&mut answers);
        } else if self.queue.in_flight() > 0 {
            self.queue.wait(&mut answers, wait);
        } else {
            thread::park_timeout(wait);
        }
        let fault = self.fault.load(Ordering::Relaxed);
        let now = self.began.elapsed();
        let mut books = self.books.lock();
        books.faults_are(fault, now);
        // Letters first: one of a message that was given up is there before the answer to what was sent behind it.
        for letter in self.letters.try_iter() {
            let ty = [Type::Probe, Type::Counter, Type::Register].into_iter().find(|ty| name(*ty) == &*letter.entity_type);
            let entity = ty.and_then(|ty| self.by_key.get(&(ty, letter.key.to_vec())));
            books.given_up(
                entity.copied(),
                ty.zip(letter.bytes.as_deref()).and_then(|(ty, bytes)| number_in(ty, bytes)),
                letter.reason.label(),
            );
        }
        for Answered { tag, result, .. } in answers {
            match result {
                Ok(answer) => {
                    let said = books.asked(tag).map_or(Said::Nothing, |(ty, what)| read(ty, what, &answer.result));
                    books.answered(tag, said, (answer.epoch, &answer.served_by), now, fault);
                }
                Err(error) => books.failed(tag, &error),
            }
        }
        books.judge(now);
    }

    /// Waits for what is under way, then looks at every entity once more.
    fn settle(&mut self) -> Result<(), String> {
        let deadline = self.began.elapsed() + END_WITHIN;
        let total = self.refs.len();
        let (mut next, mut drained) = (0, false);
        loop {
            drained |= self.books.lock().in_flight() == 0;
            while drained && next < total && self.books.lock().in_flight() < LOOKS_OPEN && self.look(next) {
                next += 1;
            }
            self.take(GROUP_EVERY * 5);
            let mut books = self.books.lock();
            books.sums.ending = drained;
            if next == total && books.in_flight() == 0 && books.unjudged() == 0 {
                return Ok(());
            }
            if self.began.elapsed() > deadline {
                return Err(format!("{} requests were not answered {} s after the end", books.in_flight(), END_WITHIN.as_secs()));
            }
        }
    }
}

/// How long this thread has run, and waited for a core.
fn on_core() -> (Duration, Duration) {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let mut fields = text.split_whitespace().map(|field| Duration::from_nanos(field.parse().unwrap_or(0)));
    (fields.next().unwrap_or_default(), fields.next().unwrap_or_default())
}

fn name(ty: Type) -> &'static str {
    match ty {
        Type::Probe => ProbeType::TYPE,
        Type::Counter => CounterType::TYPE,
        Type::Register => RegisterType::TYPE,
    }
}

/// Sends a message, or asks it; on refusal the code of its reason.
fn sent<T, R>(to: &EntityRef<T>, op: R, asked: bool, tag: u64, queue: &AskQueue<Answer>) -> Result<(), &'static str>
where
    T: EntityType,
    R: wingbeat::Request<T, Reply = Answer>,
{
    let code = |error: TellError<T::Msg>| error.code();
    if asked { to.ask_into(op, ASK_WITHIN, tag, queue).map_err(code) } else { to.tell(op).map_err(code) }
}

/// The number in a message that was given up.
fn number_in(ty: Type, mut bytes: &[u8]) -> Option<u64> {
    match ty {
        Type::Probe => match ProbeMsg::decode(*ProbeMsg::VERSIONS.end(), &mut bytes).ok()? {
            ProbeMsg::Run(probe::Op::Note { seq, .. }, _) => Some(seq),
            ProbeMsg::Run(..) => None,
        },
        Type::Register => match RegisterMsg::decode(*RegisterMsg::VERSIONS.end(), &mut bytes).ok()? {
            RegisterMsg::Run(register::Op::Write { value }, _) => value.parse().ok(),
            RegisterMsg::Run(..) => None,
        },
        Type::Counter => None,
    }
}

/// What an answer says.
fn read(ty: Type, what: What, result: &[u8]) -> Said {
    let parsed = || serde_json::from_slice::<Value>(result).unwrap_or_default();
    match (ty, what) {
        (Type::Probe, What::Look(_)) => {
            let row = &parsed()["senders"][SENDER];
            let number = |name: &str| row[name].as_u64().unwrap_or(0);
            let (count, last, gaps) = (number("count"), number("last"), number("gaps"));
            let (duplicates, reordered) = (number("duplicates"), number("reordered"));
            Said::Arrived(Arrived { count, first: row["first"].as_u64(), last, gaps, duplicates, reordered })
        }
        (Type::Counter, _) => Said::Total(parsed()["total"].as_u64().unwrap_or(0)),
        (Type::Register, What::Look(_)) => Said::Value(parsed()["value"].as_str().and_then(|value| value.parse().ok()).unwrap_or(0)),
        _ => Said::Nothing,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read_by_type() {
        let report = br#"{"senders":{"soak":{"count":4,"first":2,"last":6,"gaps":1,"duplicates":0,"reordered":0}}}"#;
        let arrived = Arrived { count: 4, first: Some(2), last: 6, gaps: 1, duplicates: 0, reordered: 0 };
        assert_eq!(read(Type::Probe, What::Look(6), report), Said::Arrived(arrived));
        assert_eq!(read(Type::Probe, What::Look(0), br#"{"senders":{}}"#), Said::Arrived(Arrived::default()));
        assert_eq!(read(Type::Counter, What::Numbered(7), br#"{"total":7,"duplicate":false}"#), Said::Total(7));
        assert_eq!(read(Type::Register, What::Look(1), br#"{"value":"12"}"#), Said::Value(12));
        assert_eq!(read(Type::Register, What::Look(1), br#"{"value":null}"#), Said::Value(0));
        assert_eq!(read(Type::Probe, What::Numbered(1), b"{}"), Said::Nothing);
    }

    #[test]
    fn the_number_of_a_dead_letter_is_in_its_bytes() {
        let msg = ProbeMsg::Run(probe::Op::Note { sender: SENDER.into(), seq: 77 }, wingbeat::ReplyTag::default());
        let mut bytes = Vec::new();
        msg.encode(*ProbeMsg::VERSIONS.end(), &mut bytes).unwrap();
        assert_eq!(number_in(Type::Probe, &bytes), Some(77));
        assert_eq!(number_in(Type::Register, b"\xff"), None);
    }
}
