//! Large frames that wait to be sent, and what must not go past them. They leave in parts, few of which are under way at a time, so that what may go
//! past them waits for those at most.

use std::{
    collections::{BTreeSet, VecDeque},
    time::Duration,
};

use super::Map;
use crate::{
    ShardId, ShardKey, Time, TypeId,
    proto::wire::{Cut, FrameError, HEADER_BYTES, LinkFrame, Malformed, Order, cut, encode_link, order_of},
};

/// Longer frames travel in parts.
pub const LARGE_BYTES: usize = 64 << 10;
/// A part, with its header.
pub const PART_BYTES: usize = 32 << 10;
const PART_CONTENT: usize = PART_BYTES - HEADER_BYTES;

/// Bytes of parts that may be under way, always.
const WINDOW_MIN: usize = 2 * PART_BYTES;
/// However long the way is.
const WINDOW_MAX: usize = 16 << 20;
/// A part that takes so much longer than the quickest has waited behind others: so many are too many. And a quarter of what the quickest takes, where
/// the way is long.
const QUEUEING: Duration = Duration::from_micros(100);
/// The quickest is found anew among so many, as ways change.
const ROUND: u32 = 256;
/// Frames that the queue keeps room for.
const QUEUE_KEPT: usize = 256;

/// Frames in the order in which they leave.
#[derive(Debug)]
pub struct Bulk {
    queue: VecDeque<Waiting>,
    /// The shards of those.
    shards: Map<u64, Shard>,
    /// How many of the shards were not told to stop.
    open: usize,
    /// Those that were, whether or not something of them still waits.
    shut: BTreeSet<u64>,
    /// Bytes of all that, but for those of the first that have left.
    bytes: usize,
    /// Those.
    begun: usize,
    window: Window,
    /// The room of the last large frame that has left, for the next one: what is given back to the system is paid for page by page.
    spare: Vec<u8>,
}

/// A shard of which something waits.
#[derive(Debug)]
struct Shard {
    frames: u32,
    open: bool,
}

#[derive(Debug)]
struct Waiting {
    shard: Option<u64>,
    frame: Vec<u8>,
    /// Sessions in which parts of it have left.
    tries: u8,
}

/// How much is under way, and how much may be: as much as arrives without waiting for itself.
#[derive(Debug)]
struct Window {
    bytes: usize,
    /// Content of parts since the session began.
    sent: u64,
    taken: u64,
    /// Up to where each part goes that is under way, and when it left.
    under_way: VecDeque<(u64, Time)>,
    quickest: Duration,
    /// Of this round, and how many have come in it.
    quickest_now: Duration,
    count: u32,
}

impl Default for Bulk {
    fn default() -> Self {
        let window = Window {
            bytes: WINDOW_MIN,
            sent: 0,
            taken: 0,
            under_way: VecDeque::new(),
            quickest: Duration::MAX,
            quickest_now: Duration::MAX,
            count: 0,
        };
        Self { queue: VecDeque::new(), shards: Map::default(), open: 0, shut: BTreeSet::new(), bytes: 0, begun: 0, window, spare: vec![] }
    }
}

impl Bulk {
    /// Bytes that wait.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether that frame may leave at once: it is not large, and may go past all that waits.
    #[inline]
    pub fn lets_pass(&self, frame: &[u8]) -> bool {
        frame.len() <= LARGE_BYTES && (self.queue.is_empty() || self.may_pass(frame))
    }

    fn may_pass(&self, frame: &[u8]) -> bool {
        match order_of(frame) {
            Order::Message(shard) => !self.shards.contains_key(&shard),
            Order::Reply => true,
            Order::Shard(_) | Order::Other => false,
        }
    }

    /// Takes a frame in, behind all others.
    pub fn push(&mut self, frame: Vec<u8>) {
        let shard = match order_of(&frame) {
            Order::Message(shard) | Order::Shard(shard) => Some(shard),
            Order::Reply | Order::Other => None,
        };
        if let Some(shard) = shard {
            let entry = self.shards.entry(shard).or_insert_with(|| {
                let open = !self.shut.contains(&shard);
                self.open += usize::from(open);
                Shard { frames: 0, open }
            });
            entry.frames += 1;
        }
        self.bytes += frame.len();
        self.queue.push_back(Waiting { shard, frame, tries: 0 });
    }

    /// A session has ended in the middle of the frame that was pushed last.
    pub fn tried_before(&mut self) {
        if let Some(last) = self.queue.back_mut() {
            last.tries = 1;
        }
    }

    /// Room for a frame.
    pub fn take_spare(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.spare)
    }

    /// Bytes of room that wait for a frame.
    pub fn spare(&self) -> usize {
        self.spare.capacity()
    }

    /// Gives that back, and what the longest queue has needed.
    pub fn settle(&mut self) {
        self.spare = vec![];
        self.queue.shrink_to(QUEUE_KEPT);
        self.shards.shrink_to(QUEUE_KEPT);
    }

    /// Appends what may leave next: a frame, or a part of a large one. False: nothing.
    pub fn pop(&mut self, now: Time, out: &mut Vec<u8>) -> bool {
        let Some(first) = self.queue.front_mut() else { return false };
        let size = first.frame.len();
        let done = if size <= LARGE_BYTES {
            out.extend_from_slice(&first.frame);
            self.bytes -= size;
            true
        } else {
            if self.window.is_full() {
                return false;
            }
            first.tries += u8::from(self.begun == 0);
            let end = size.min(self.begun + PART_CONTENT);
            encode_link(LinkFrame::Part { bytes: &first.frame[self.begun..end], last: end == size }, out);
            self.window.sent(now, end - self.begun);
            self.bytes -= end - self.begun;
            self.begun = end;
            end == size
        };
        if done {
            self.begun = 0;
            let gone = self.queue.pop_front();
            if let Some(Waiting { shard: Some(shard), .. }) = gone
                && let Some(Shard { frames, open }) = self.shards.get_mut(&shard)
            {
                *frames -= 1;
                if *frames == 0 {
                    self.open -= usize::from(*open);
                    self.shards.remove(&shard);
                }
            }
            if let Some(Waiting { mut frame, .. }) = gone.filter(|gone| gone.frame.capacity() > LARGE_BYTES) {
                frame.clear();
                self.spare = frame;
            }
        }
        true
    }

    /// Too much waits: the shards of which something does, but for those that this was said of before.
    pub fn shut(&mut self) -> Vec<ShardKey> {
        if std::mem::take(&mut self.open) == 0 {
            return vec![];
        }
        let open = self.shards.iter_mut().filter_map(|(number, shard)| std::mem::take(&mut shard.open).then_some(*number));
        let shut: Vec<u64> = open.collect();
        self.shut.extend(&shut);
        shut.into_iter().map(shard_of).collect()
    }

    /// There is room again: all shards that were shut.
    pub fn reopen(&mut self) -> Vec<ShardKey> {
        if self.shut.is_empty() {
            return vec![];
        }
        self.shards.values_mut().for_each(|shard| shard.open = true);
        self.open = self.shards.len();
        std::mem::take(&mut self.shut).into_iter().map(shard_of).collect()
    }

    /// The peer has taken in so many bytes of parts since the session began.
    pub fn taken(&mut self, now: Time, upto: u64) -> Result<(), FrameError> {
        if !(self.window.taken..=self.window.sent).contains(&upto) {
            return Err(malformed("taken", "tells of bytes that were not sent"));
        }
        self.window.taken(now, upto);
        Ok(())
    }

    /// Bytes of parts that have left.
    #[cfg(test)]
    pub fn sent(&self) -> u64 {
        self.window.sent
    }

    /// Bytes of parts that have left and were not taken in yet.
    pub fn under_way(&self) -> usize {
        (self.window.sent - self.window.taken) as usize
    }

    /// All frames that have not left as a whole, in their order, and in how many sessions parts of them have: what the peer has of the first is worth
    /// nothing without the rest.
    pub fn into_frames(self) -> impl Iterator<Item = (Vec<u8>, u8)> {
        self.queue.into_iter().map(|waiting| (waiting.frame, waiting.tries))
    }
}

impl Window {
    fn is_full(&self) -> bool {
        self.sent - self.taken >= self.bytes as u64
    }

    fn sent(&mut self, now: Time, bytes: usize) {
        self.sent += bytes as u64;
        self.under_way.push_back((self.sent, now));
    }

    fn taken(&mut self, now: Time, upto: u64) {
        let was_full = self.is_full();
        self.taken = upto;
        while let Some(&(end, left)) = self.under_way.front()
            && end <= upto
        {
            self.under_way.pop_front();
            let took = now.since(left);
            self.quickest = self.quickest.min(took);
            self.quickest_now = self.quickest_now.min(took);
            self.count += 1;
            if self.count == ROUND {
                (self.quickest, self.quickest_now, self.count) = (self.quickest_now, Duration::MAX, 0);
            }
            if took > self.quickest + self.quickest / 4 + QUEUEING {
                self.bytes = (self.bytes - PART_BYTES).max(WINDOW_MIN);
            } else if was_full {
                self.bytes = (self.bytes + PART_BYTES).min(WINDOW_MAX);
            }
        }
    }
}

/// The shard of a number as frames have it.
fn shard_of(number: u64) -> ShardKey {
    ShardKey { ty: TypeId(number as u32), shard: ShardId((number >> 32) as u32) }
}

/// The parts of a large frame that have arrived.
#[derive(Debug, Default)]
pub struct Assembly {
    frame: Vec<u8>,
    /// It was handed out, and its room waits for the next one.
    whole: bool,
    /// Bytes of parts since the session began, and how many of them the peer knows of.
    taken: u64,
    told: u64,
    /// As if the system had no more memory.
    #[cfg(test)]
    pub starved: bool,
}

/// Why a part was not taken in.
#[derive(Debug)]
pub enum Misfit {
    /// It is none of a frame.
    Frame(FrameError),
    /// There is no memory for it: a peer must not be able to end the process.
    NoMemory,
}

impl Assembly {
    /// Takes in a part: the frame, if that is whole now. None may have more than `max` bytes.
    pub fn add(&mut self, bytes: &[u8], last: bool, max: usize) -> Result<Option<&[u8]>, Misfit> {
        if std::mem::take(&mut self.whole) {
            self.frame.clear();
        }
        if bytes.is_empty() {
            return Err(Misfit::Frame(malformed("part", "has no bytes")));
        }
        let more = bytes.len();
        #[cfg(test)]
        let more = if self.starved { usize::MAX } else { more };
        self.frame.try_reserve(more).map_err(|_| Misfit::NoMemory)?;
        self.frame.extend_from_slice(bytes);
        self.taken += bytes.len() as u64;
        match cut(&self.frame, max).map_err(Misfit::Frame)? {
            Cut::Wait(_) if !last => Ok(None),
            Cut::Frame(size) if last && size == self.frame.len() => {
                self.whole = true;
                Ok(Some(&self.frame))
            }
            _ => Err(Misfit::Frame(malformed("part", "does not end where its frame ends"))),
        }
    }

    /// How much has arrived of a frame that is not whole.
    pub fn len(&self) -> usize {
        if self.whole { 0 } else { self.frame.len() }
    }

    /// The room that it has.
    pub fn room(&self) -> usize {
        self.frame.capacity()
    }

    /// Gives back its room, if it has no use for it now.
    pub fn settle(&mut self) {
        if self.len() == 0 {
            (self.frame, self.whole) = (vec![], false);
        }
    }

    /// Whether the peer is to be told something.
    pub fn has_news(&self) -> bool {
        self.told != self.taken
    }

    /// What the peer is to be told now, if there is anything.
    pub fn news(&mut self) -> Option<u64> {
        (std::mem::replace(&mut self.told, self.taken) != self.taken).then_some(self.taken)
    }
}

fn malformed(frame: &'static str, why: &'static str) -> FrameError {
    FrameError::Malformed { frame, what: Malformed::Layout { field: "bytes", why } }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Epoch, NodeId,
        proto::{
            handoff::{Envelope, Item, Mode, ReplyBody},
            rng::Rng,
            wire::{Context, Frame, encode, link_frame_in},
        },
    };

    const LATER: Time = Time::from_nanos(1_000_000_000);

    fn bytes_of(frame: &Frame) -> Vec<u8> {
        let mut out = vec![];
        encode(frame, Context { sender: NodeId::from_raw(1), now: Time::ZERO }, 4 << 20, &mut out).unwrap();
        out
    }

    fn message(shard: u32, number: u64, bytes: usize) -> Vec<u8> {
        let shard = ShardKey { ty: TypeId(1), shard: ShardId(shard) };
        let envelope = Envelope::new(shard, None, &number.to_le_bytes(), &vec![7; bytes]).unwrap();
        bytes_of(&Frame::Item { shard, item: Item::Msg { tag: Epoch(1), mode: Mode::Settled, envelope } })
    }

    /// Whole frames out of what a link carries, and what is acknowledged.
    fn arrive(mut bytes: &[u8], assembly: &mut Assembly) -> Vec<Vec<u8>> {
        let mut frames = vec![];
        while !bytes.is_empty() {
            let Ok(Cut::Frame(size)) = cut(bytes, 4 << 20) else { panic!("whole frames") };
            match link_frame_in(&bytes[..size]) {
                Some(Ok(LinkFrame::Part { bytes, last })) => frames.extend(assembly.add(bytes, last, 4 << 20).unwrap().map(<[u8]>::to_vec)),
                Some(other) => panic!("{other:?}"),
                None => frames.push(bytes[..size].to_vec()),
            }
            bytes = &bytes[size..];
        }
        frames
    }

    #[test]
    fn any_mix_of_frames_arrives_whole_and_in_the_order_of_each_shard() {
        for seed in 0..200 {
            let mut rng = Rng::new(seed);
            let (mut bulk, mut assembly, mut wire) = (Bulk::default(), Assembly::default(), vec![]);
            let (mut sent, mut arrived) = (vec![], vec![]);
            for number in 0..60 {
                let size = [10, 1_000, 60_000, LARGE_BYTES, 200_000][rng.below(5) as usize];
                let frame = match rng.below(5) {
                    0 => bytes_of(&Frame::Cast { ty: TypeId(2), topic: number, bytes: vec![1; size].into() }),
                    1 => bytes_of(&Frame::Reply { correlation: number, body: ReplyBody::Value(vec![1; size].into()) }),
                    _ => message(rng.below(3) as u32, number, size),
                };
                if bulk.lets_pass(&frame) {
                    wire.extend_from_slice(&frame)
                } else {
                    bulk.push(frame.clone())
                }
                sent.push(frame);
                while rng.below(3) == 0 && bulk.pop(LATER, &mut wire) {}
                if rng.below(3) == 0 {
                    arrived.extend(arrive(&std::mem::take(&mut wire), &mut assembly));
                    assembly.news().into_iter().for_each(|upto| bulk.taken(LATER, upto).unwrap());
                }
            }
            while bulk.len() > 0 || !wire.is_empty() {
                while bulk.pop(LATER, &mut wire) {}
                arrived.extend(arrive(&std::mem::take(&mut wire), &mut assembly));
                assembly.news().into_iter().for_each(|upto| bulk.taken(LATER, upto).unwrap());
            }
            assert!(bulk.shards.is_empty() && bulk.queue.is_empty() && bulk.window.under_way.is_empty(), "seed {seed}");
            let in_order = |of: &dyn Fn(&Order) -> bool| {
                let pick = |frames: &[Vec<u8>]| frames.iter().filter(|frame| of(&order_of(frame))).cloned().collect::<Vec<_>>();
                assert!(pick(&sent) == pick(&arrived), "seed {seed}");
            };
            (0..3u64).for_each(|shard| in_order(&|order| *order == Order::Message(1 | shard << 32)));
            in_order(&|order| *order == Order::Other);
            assert_eq!(sent.len(), arrived.len());
        }
    }

    #[test]
    fn what_may_pass_passes_and_what_must_not_does_not() {
        let mut bulk = Bulk::default();
        assert!(bulk.lets_pass(&message(1, 0, 10)) && !bulk.lets_pass(&message(1, 0, LARGE_BYTES)));
        bulk.push(message(1, 0, 100_000));
        assert!(!bulk.lets_pass(&message(1, 1, 10)) && bulk.lets_pass(&message(2, 1, 10)));
        let reply = bytes_of(&Frame::Reply { correlation: 1, body: ReplyBody::NoReply });
        let acknowledgement = bytes_of(&Frame::HandoffAck { shard: ShardKey { ty: TypeId(1), shard: ShardId(2) }, upto: 1 });
        assert!(bulk.lets_pass(&reply) && !bulk.lets_pass(&acknowledgement));
        bulk.push(acknowledgement);
        assert!(!bulk.lets_pass(&message(2, 1, 10)), "what stands in there holds its shard as well");
    }

    #[test]
    fn each_shard_is_shut_once_until_all_are_opened_again() {
        let mut bulk = Bulk::default();
        let shard = |n| ShardKey { ty: TypeId(1), shard: ShardId(n) };
        let sorted = |mut shards: Vec<ShardKey>| {
            shards.sort_unstable();
            shards
        };
        bulk.push(message(1, 0, 50_000));
        bulk.push(message(2, 0, 50_000));
        assert_eq!(sorted(bulk.shut()), [shard(1), shard(2)]);
        bulk.push(message(1, 1, 50_000));
        bulk.push(message(3, 0, 50_000));
        assert_eq!(bulk.shut(), [shard(3)]);
        while bulk.pop(LATER, &mut vec![]) {}
        bulk.push(message(2, 1, 50_000));
        assert_eq!(bulk.shut(), [], "it is shut though none of its frames waited");
        assert_eq!(sorted(bulk.reopen()), [shard(1), shard(2), shard(3)]);
        assert_eq!((bulk.shut(), sorted(bulk.reopen())), (vec![shard(2)], vec![shard(2)]));
    }

    #[test]
    fn few_parts_are_under_way_where_they_wait_for_each_other_and_many_where_the_way_is_long() {
        // Bytes under way once that has settled, for a way that takes so long and carries so many bytes in a second.
        let settled = |way: Duration, rate: f64| {
            let mut bulk = Bulk::default();
            let (mut now, mut free, mut out) = (Time::ZERO, Time::ZERO, vec![]);
            let mut arrivals = VecDeque::new();
            for _ in 0..20_000 {
                if bulk.len() < 1 << 20 {
                    bulk.push(message(1, 0, 1 << 20));
                }
                let before = bulk.window.sent;
                if bulk.pop(now, &mut out) {
                    out.clear();
                    let sent = bulk.window.sent;
                    free = free.max(now) + Duration::from_secs_f64((sent - before) as f64 / rate);
                    arrivals.push_back((free + way, sent));
                } else if let Some((at, upto)) = arrivals.pop_front() {
                    now = now.max(at);
                    bulk.taken(now, upto).unwrap();
                }
            }
            bulk.window.sent - bulk.window.taken
        };
        // Loopback: some 60 us and 2 GB/s. What waits then delays others by 0.2 ms at most.
        let near = settled(Duration::from_micros(60), 2e9);
        assert!(near <= 460_000, "{near}");
        // A tenth of a second and 100 MB/s: 10 MB fill the way.
        let far = settled(Duration::from_millis(100), 1e8);
        assert!((8_000_000..=16 << 20).contains(&far), "{far}");
    }

    #[test]
    fn more_than_was_sent_is_not_taken() {
        let mut bulk = Bulk::default();
        bulk.push(message(1, 0, 100_000));
        let mut out = vec![];
        while bulk.pop(LATER, &mut out) {}
        assert_eq!(out.len(), WINDOW_MIN.div_ceil(PART_CONTENT) * PART_BYTES, "as much as may be under way");
        assert!(bulk.taken(LATER, bulk.window.sent + 1).is_err());
        assert!(bulk.taken(LATER, 100).is_ok() && bulk.taken(LATER, 99).is_err());
        assert!(bulk.into_frames().eq([(message(1, 0, 100_000), 1)]), "it was not sent as a whole");
    }

    #[test]
    fn parts_that_are_no_frame_are_refused_before_they_take_more_room_than_one() {
        let frame = message(1, 0, 100_000);
        let refused = |parts: &[(&[u8], bool)], max: usize| {
            let mut assembly = Assembly::default();
            parts.iter().find_map(|(bytes, last)| assembly.add(bytes, *last, max).map(|_| ()).err())
        };
        let max = frame.len();
        assert!(refused(&[(&frame[..3], false), (&frame[3..5_000], false), (&frame[5_000..], true)], max).is_none());
        assert!(matches!(refused(&[(&frame[..4], false)], max - 1), Some(Misfit::Frame(FrameError::TooLong { .. }))));
        let malformed =
            |parts: &[(&[u8], bool)]| matches!(refused(parts, max), Some(Misfit::Frame(FrameError::Malformed { frame: "part", .. })));
        assert!(
            malformed(&[(&frame[..50], false), (&[], false)])
                && malformed(&[(&frame, false)])
                && malformed(&[(&frame[..50], true)])
                && malformed(&[(&frame[..50], false), (&frame, false)])
        );
        let mut assembly = Assembly { starved: true, ..Assembly::default() };
        assert!(matches!(assembly.add(&frame, true, max), Err(Misfit::NoMemory)));
    }
}
