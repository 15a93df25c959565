//! What a worker's entities have sent, so that one that moves stays one sender.
//!
//! Messages of one lane to one shard keep their order, whatever moves (moves.md). An entity that moves sends by another lane, and what it sends there
//! could overtake what is still on its way from here. So a worker remembers to which shards the entities of each of its shards have sent. When a
//! shard leaves, that goes with it, and the new home holds what its entities send to those shards. Meanwhile the old home sends a mark behind all
//! messages to each of them ([`Settling`](super::settling::Settling)), and tells the new home when it has come to where that shard runs.
//!
//! Only those messages wait: entities run at once, and what they send elsewhere goes. To wait at the old home would be simpler, and wrong: the mark to a
//! shard that moves too may have to wait for its transfer, and that one for a mark to this shard.
//!
//! A type may be sent to before this node has heard its number of shards, in the first moments of its life: that counts as sent to all of them.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use super::{idle::AGAIN_AFTER, slow_turns::Busy};
use crate::{
    Epoch, NodeId, Refusal, ShardId, ShardKey, Time, TypeId,
    proto::{
        handoff::Envelope,
        shard::{SENT_BYTES, SentRecord},
        sharding::{UNSIZED, shard_of},
    },
};

/// Something for each shard, by its type and by its number in that.
struct ByShard<T>(Vec<(TypeId, Vec<T>)>);

impl<T: Default> ByShard<T> {
    #[inline(always)]
    fn slot(&mut self, ty: TypeId, number: usize) -> &mut T {
        let at = self.0.iter().position(|(of, _)| *of == ty).unwrap_or_else(|| self.grow(ty));
        let row = &mut self.0[at].1;
        if row.len() <= number {
            row.resize_with(number + 1, T::default);
        }
        &mut row[number]
    }

    #[cold]
    fn grow(&mut self, ty: TypeId) -> usize {
        self.0.push((ty, vec![]));
        self.0.len() - 1
    }
}

/// Which shards were sent to: a bit for each, and types of which all were.
struct Targets {
    shards: ByShard<u64>,
    all_of: Vec<TypeId>,
}

impl Targets {
    const NONE: Self = Self { shards: ByShard(vec![]), all_of: vec![] };

    #[inline(always)]
    fn add(&mut self, target: ShardKey) {
        if target.shard == UNSIZED {
            return self.add_all(target.ty);
        }
        *self.shards.slot(target.ty, target.shard.0 as usize / 64) |= 1 << (target.shard.0 % 64);
    }

    #[cold]
    fn add_all(&mut self, ty: TypeId) {
        if !self.all_of.contains(&ty) {
            self.all_of.push(ty);
        }
    }

    fn list(mut self, shards_of: &impl Fn(TypeId) -> Option<u32>) -> Vec<ShardKey> {
        for ty in std::mem::take(&mut self.all_of) {
            (0..shards_of(ty).unwrap_or(0)).for_each(|shard| self.add(ShardKey { ty, shard: ShardId(shard) }));
        }
        let mut shards = vec![];
        for (ty, words) in &self.shards.0 {
            for (word, first) in words.iter().zip((0..).step_by(64)) {
                let set = (0..64).filter(|bit| word >> bit & 1 == 1);
                shards.extend(set.map(|bit| ShardKey { ty: *ty, shard: ShardId(first + bit) }));
            }
        }
        shards
    }
}

/// What the entities of one shard send to another one, until all that they sent from an earlier home has got there.
struct Hold {
    /// Shards of that type.
    shards: u32,
    home: NodeId,
    epoch: Epoch,
    /// All of it has, or it is waited for no longer.
    open: bool,
    /// It is waited for no longer then.
    until: Time,
    waiting: VecDeque<Envelope>,
}

/// The senders of one worker: shards, as each of them moves with all its entities.
pub struct Senders {
    busy: Arc<Busy>,
    /// Sender and target of the last message, which is noted and not held.
    last: Option<(ShardKey, ShardKey)>,
    sent: ByShard<Option<Box<Targets>>>,
    holds: BTreeMap<ShardKey, BTreeMap<ShardKey, Hold>>,
    /// Pairs with an open hold.
    open: BTreeSet<(ShardKey, ShardKey)>,
    /// When to try those.
    again_at: Time,
    /// When the first of the other holds is opened.
    due: Option<Time>,
    held_bytes: usize,
    held_items: usize,
    patience: Duration,
}

impl Senders {
    /// Of the worker that is so busy. Up to `held_items` messages wait for a shard, and each for `patience`.
    pub fn new(busy: Arc<Busy>, held_items: usize, patience: Duration) -> Self {
        Self {
            busy,
            last: None,
            sent: ByShard(vec![]),
            holds: BTreeMap::new(),
            open: BTreeSet::new(),
            again_at: Time::ZERO,
            due: None,
            held_bytes: 0,
            held_items,
            patience,
        }
    }

    /// Notes that a message is to be sent there; by the entity at work, if there is one. False: [`hold`](Self::hold) it.
    #[inline]
    pub fn may_go(&mut self, target: ShardKey) -> bool {
        let Some(from) = self.busy.shard_inside() else { return true };
        self.last == Some((from, target)) || self.note(from, target)
    }

    #[inline(never)]
    fn note(&mut self, from: ShardKey, target: ShardKey) -> bool {
        if let Some(holds) = self.holds_of(from) {
            let held = if target.shard == UNSIZED { holds.keys().any(|of| of.ty == target.ty) } else { holds.contains_key(&target) };
            if held {
                return false;
            }
        }
        self.sent_by(from).add(target);
        self.last = Some((from, target));
        true
    }

    #[inline(always)]
    fn holds_of(&self, from: ShardKey) -> Option<&BTreeMap<ShardKey, Hold>> {
        if self.holds.is_empty() { None } else { self.holds.get(&from) }
    }

    /// The shard for which that one's messages to the entity with that hash are held, if they are.
    pub fn held(&self, from: ShardKey, mut target: ShardKey, hash: u64) -> Option<ShardKey> {
        let holds = self.holds_of(from)?;
        if target.shard == UNSIZED {
            let (_, any) = holds.iter().find(|(of, _)| of.ty == target.ty)?;
            target.shard = shard_of(hash, any.shards);
        }
        holds.contains_key(&target).then_some(target)
    }

    /// The shard for which a message of the entity at work to that target, with that hash, is to be [held](Self::hold). `None`: it may go after all,
    /// which is noted.
    pub fn waits_for(&mut self, target: ShardKey, hash: u64) -> Option<ShardKey> {
        let from = self.busy.shard_inside()?;
        let held = self.held(from, target, hash);
        if held.is_none() {
            self.sent_by(from).add(target);
        }
        held
    }

    #[inline(always)]
    fn sent_by(&mut self, from: ShardKey) -> &mut Targets {
        self.sent.slot(from.ty, from.shard.0 as usize).get_or_insert_with(|| Box::new(Targets::NONE))
    }

    /// Keeps a message of the entity at work until it may go.
    pub fn hold(&mut self, target: ShardKey, message: Envelope) -> Result<(), Refusal> {
        let hold = self.busy.shard_inside().and_then(|from| self.holds.get_mut(&from)?.get_mut(&target));
        let bytes = message.size();
        match hold {
            Some(hold) if hold.waiting.len() < self.held_items && self.held_bytes + bytes <= SENT_BYTES => {
                self.held_bytes += bytes;
                hold.waiting.push_back(message);
                Ok(())
            }
            _ => Err(Refusal::Full),
        }
    }

    /// The shard leaves, where its epoch was that: what goes with it, and the shards that were sent to from here.
    pub fn leave(
        &mut self,
        shard: ShardKey,
        (home, epoch): (NodeId, Epoch),
        shards_of: impl Fn(TypeId) -> Option<u32>,
    ) -> (Vec<SentRecord>, Vec<ShardKey>) {
        self.last = None;
        let mut sent = self.sent.slot(shard.ty, shard.shard.0 as usize).take().map_or(Targets::NONE, |sent| *sent);
        let mut records = BTreeMap::new();
        for (target, hold) in self.holds.remove(&shard).unwrap_or_default() {
            self.held_bytes -= bytes_of(&hold.waiting);
            if self.open.remove(&(shard, target)) {
                // Its home then has told all that it will.
                sent.add(target);
            }
            let Hold { shards, home, epoch, waiting, .. } = hold;
            records.insert(target, SentRecord { target, shards, home, epoch, held: waiting.into() });
        }
        let sent = sent.list(&shards_of);
        for &target in &sent {
            // Nobody knows no more of a type that it has sent to.
            let shards = shards_of(target.ty).unwrap_or(target.shard.0 + 1);
            let record = records.entry(target).or_insert_with(|| SentRecord { target, shards, home, epoch, held: vec![] });
            (record.home, record.epoch) = (home, epoch);
        }
        (records.into_values().collect(), sent)
    }

    /// That came with the shard. `settled`: there is nobody who would tell when it may go.
    pub fn adopt(&mut self, now: Time, shard: ShardKey, record: SentRecord, settled: bool) {
        let SentRecord { target, shards, home, epoch, held } = record;
        if settled && held.is_empty() {
            return;
        }
        self.last = None;
        let (until, waiting) = (now + self.patience, VecDeque::from(held));
        self.held_bytes += bytes_of(&waiting);
        self.due = Some(self.due.map_or(until, |due| due.min(until)));
        self.holds.entry(shard).or_default().insert(target, Hold { shards, home, epoch, open: false, until, waiting });
        if settled {
            self.set_open(shard, target);
        }
    }

    fn set_open(&mut self, shard: ShardKey, target: ShardKey) {
        if let Some(hold) = self.holds.get_mut(&shard).and_then(|holds| holds.get_mut(&target)) {
            hold.open = true;
            self.open.insert((shard, target));
        }
    }

    /// All that the shard's entities sent to those shards from that home, under that epoch, has got there.
    pub fn settled(&mut self, shard: ShardKey, home: NodeId, epoch: Epoch, targets: &[ShardKey]) {
        for &target in targets {
            let hold = self.holds.get(&shard).and_then(|holds| holds.get(&target));
            if hold.is_some_and(|hold| (hold.home, hold.epoch) == (home, epoch)) {
                self.set_open(shard, target);
            }
        }
    }

    /// That node will tell nothing any more, and what it sent has got there, or never will.
    pub fn removed(&mut self, node: NodeId) {
        self.open_where(|hold| hold.home == node);
    }

    fn open_where(&mut self, mut which: impl FnMut(&Hold) -> bool) {
        let all = self.holds.iter().flat_map(|(shard, holds)| holds.iter().map(move |(target, hold)| (*shard, *target, hold)));
        let found: Vec<_> = all.filter(|(.., hold)| which(hold)).map(|(shard, target, _)| (shard, target)).collect();
        found.into_iter().for_each(|(shard, target)| self.set_open(shard, target));
    }

    /// Opens what has waited for too long: by then what was on its way has come, or was given up for having waited as long.
    fn expire(&mut self, now: Time) {
        if self.due.is_none_or(|due| due > now) {
            return;
        }
        self.open_where(|hold| hold.until <= now);
        let holds = self.holds.values().flat_map(BTreeMap::values);
        self.due = holds.filter(|hold| !hold.open).map(|hold| hold.until).min();
    }

    /// When [`take_open`](Self::take_open) has something.
    pub fn due(&self) -> Option<Time> {
        let open = (!self.open.is_empty()).then_some(self.again_at);
        open.into_iter().chain(self.due).min()
    }

    /// What may go now: of each sender all that waits for one shard, in its order. [`put_back`](Self::put_back) is next.
    pub fn take_open(&mut self, now: Time) -> Vec<(ShardKey, ShardKey, VecDeque<Envelope>)> {
        let mut taken = vec![];
        self.expire(now);
        if self.again_at > now {
            return taken;
        }
        for (shard, target) in std::mem::take(&mut self.open) {
            if let Some(hold) = self.holds.get_mut(&shard).and_then(|holds| holds.get_mut(&target)) {
                let waiting = std::mem::take(&mut hold.waiting);
                self.held_bytes -= bytes_of(&waiting);
                taken.push((shard, target, waiting));
            }
        }
        taken
    }

    /// What is left of that found no room. With nothing left, messages go there as others do.
    pub fn put_back(&mut self, now: Time, (shard, target): (ShardKey, ShardKey), went: bool, left: VecDeque<Envelope>) {
        if went {
            self.sent_by(shard).add(target);
        }
        let Some(holds) = self.holds.get_mut(&shard) else { return };
        if left.is_empty() {
            holds.remove(&target);
            if holds.is_empty() {
                self.holds.remove(&shard);
            }
        } else if let Some(hold) = holds.get_mut(&target) {
            self.held_bytes += bytes_of(&left);
            self.again_at = now + AGAIN_AFTER;
            hold.waiting = left;
            self.open.insert((shard, target));
        }
    }

    /// Whether anything waits, or would.
    pub fn holds_any(&self) -> bool {
        !self.holds.is_empty()
    }

    /// All that is held, as the worker ends.
    pub fn take_all(&mut self) -> Vec<Envelope> {
        let holds = std::mem::take(&mut self.holds).into_values().flat_map(BTreeMap::into_values);
        holds.flat_map(|hold| hold.waiting).collect()
    }
}

fn bytes_of(waiting: &VecDeque<Envelope>) -> usize {
    waiting.iter().map(Envelope::size).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn shard(n: u32) -> ShardKey {
        ShardKey { ty: TypeId(1), shard: ShardId(n) }
    }

    const FROM: ShardKey = shard(7);
    const HERE: NodeId = NodeId::from_raw(1);
    const THERE: NodeId = NodeId::from_raw(2);
    const PATIENCE: Duration = Duration::from_secs(9);

    fn message(n: u8) -> Envelope {
        Envelope::new(shard(0), None, b"k", &[n]).unwrap()
    }

    fn record(target: u32, held: &[u8]) -> SentRecord {
        SentRecord { target: shard(target), shards: 300, home: THERE, epoch: Epoch(3), held: held.iter().map(|n| message(*n)).collect() }
    }

    /// With an entity of `FROM` at work.
    fn at_work(held_items: usize) -> Senders {
        let busy = Arc::new(Busy::default());
        busy.enter(FROM, b"k");
        Senders::new(busy, held_items, PATIENCE)
    }

    fn leave(senders: &mut Senders, epoch: u64) -> (Vec<SentRecord>, Vec<ShardKey>) {
        senders.leave(FROM, (HERE, Epoch(epoch)), |_| Some(300))
    }

    /// What may go, as numbers.
    fn open(senders: &mut Senders, now: Time) -> Vec<(u32, Vec<u8>)> {
        let all = senders.take_open(now).into_iter();
        all.map(|(_, target, waiting)| {
            senders.put_back(now, (FROM, target), !waiting.is_empty(), VecDeque::new());
            (target.shard.0, waiting.iter().map(|message| message.payload()[0]).collect())
        })
        .collect()
    }

    #[test]
    fn a_shard_takes_along_where_its_entities_have_sent() {
        let mut senders = at_work(10);
        let targets = [200, 3, 64, 3, 63];
        assert!(targets.iter().all(|n| senders.may_go(shard(*n))));
        // Nobody's, and another shard's.
        senders.busy.leave();
        assert!(senders.may_go(shard(5)));
        senders.busy.enter(shard(8), b"k");
        assert!(senders.may_go(shard(6)) && senders.may_go(ShardKey { ty: TypeId(2), shard: UNSIZED }));
        let (records, sent) = leave(&mut senders, 4);
        assert_eq!(sent, [3, 63, 64, 200].map(shard));
        assert!(records.iter().all(|r| (r.home, r.epoch) == (HERE, Epoch(4)) && r.held.is_empty()));
        assert_eq!(records.iter().map(|r| r.target).collect::<Vec<_>>(), sent);
        assert_eq!(leave(&mut senders, 5), (vec![], vec![]), "and nothing twice");
    }

    #[test]
    fn what_goes_to_them_waits_until_all_before_it_has_got_there() {
        let mut senders = at_work(10);
        senders.adopt(Time::ZERO, FROM, record(3, &[1]), false);
        senders.adopt(Time::ZERO, FROM, record(4, &[]), false);
        assert_eq!((senders.may_go(shard(3)), senders.may_go(shard(5))), (false, true));
        assert_eq!(senders.hold(shard(3), message(2)), Ok(()));
        for (home, epoch, target) in [(HERE, 3, 3), (THERE, 2, 3), (THERE, 3, 5)] {
            senders.settled(FROM, home, Epoch(epoch), &[shard(target)]);
        }
        assert_eq!(open(&mut senders, Time::ZERO), [], "that was of another one");
        senders.settled(FROM, THERE, Epoch(3), &[shard(3)]);
        assert!(!senders.may_go(shard(3)), "in front of it goes what waits");
        assert_eq!(open(&mut senders, Time::ZERO), [(3, vec![1, 2])]);
        assert_eq!((senders.may_go(shard(3)), senders.may_go(shard(4))), (true, false));
        assert_eq!(senders.held_bytes, 0);
    }

    #[test]
    fn what_found_no_room_keeps_its_place() {
        let mut senders = at_work(10);
        senders.adopt(Time::ZERO, FROM, record(3, &[1, 2, 3]), false);
        senders.settled(FROM, THERE, Epoch(3), &[shard(3)]);
        let [(_, target, waiting)] = &mut senders.take_open(Time::ZERO)[..] else { panic!("one") };
        waiting.pop_front();
        senders.put_back(Time::ZERO, (FROM, *target), true, std::mem::take(waiting));
        assert_eq!(senders.hold(shard(3), message(4)), Ok(()));
        assert_eq!(open(&mut senders, Time::ZERO), [], "a moment later");
        let due = senders.due().unwrap();
        assert_eq!(open(&mut senders, due), [(3, vec![2, 3, 4])]);
    }

    #[test]
    fn one_that_moves_on_takes_along_what_waits_and_for_whom() {
        let mut senders = at_work(10);
        for target in 3..7 {
            senders.adopt(Time::ZERO, FROM, record(target, &[]), false);
            assert_eq!(senders.hold(shard(target), message(target as u8)), Ok(()));
        }
        // 4 may go; 5 has gone; 6 has found no room.
        senders.settled(FROM, THERE, Epoch(3), &[shard(5)]);
        assert_eq!(open(&mut senders, Time::ZERO), [(5, vec![5])]);
        senders.settled(FROM, THERE, Epoch(3), &[shard(6)]);
        let [(_, target, waiting)] = &mut senders.take_open(Time::ZERO)[..] else { panic!("one") };
        senders.put_back(Time::ZERO, (FROM, *target), false, std::mem::take(waiting));
        senders.settled(FROM, THERE, Epoch(3), &[shard(4)]);
        let (records, sent) = leave(&mut senders, 4);
        assert_eq!(sent, [4, 5, 6].map(shard), "of 3 nothing went from here");
        let told = |r: &SentRecord| (r.target.shard.0, r.home, r.held.len());
        assert_eq!(records.iter().map(told).collect::<Vec<_>>(), [(3, THERE, 1), (4, HERE, 1), (5, HERE, 0), (6, HERE, 1)]);
        assert_eq!((senders.held_bytes, senders.holds_any(), senders.take_open(Time::MAX).len()), (0, false, 0));
    }

    #[test]
    fn a_home_that_is_gone_and_one_that_says_nothing_are_not_waited_for_for_ever() {
        let mut senders = at_work(10);
        senders.adopt(Time::ZERO, FROM, record(3, &[1]), false);
        senders.removed(HERE);
        assert_eq!(open(&mut senders, Time::ZERO), []);
        senders.removed(THERE);
        assert_eq!(open(&mut senders, Time::ZERO), [(3, vec![1])]);
        senders.adopt(Time::ZERO, FROM, record(4, &[2]), true);
        assert_eq!(open(&mut senders, Time::ZERO), [(4, vec![2])], "it was gone already");
        senders.adopt(Time::ZERO, FROM, record(5, &[]), true);
        assert!(!senders.holds_any());
        senders.adopt(Time::ZERO, FROM, record(6, &[3]), false);
        assert_eq!(senders.due(), Some(Time::ZERO + PATIENCE));
        assert_eq!(open(&mut senders, Time::ZERO + PATIENCE), [(6, vec![3])]);
        assert_eq!(senders.due(), None);
    }

    #[test]
    fn what_waits_is_bounded_in_items_and_bytes() {
        let mut senders = at_work(2);
        senders.adopt(Time::ZERO, FROM, record(3, &[]), false);
        assert_eq!((senders.hold(shard(3), message(1)), senders.hold(shard(3), message(2))), (Ok(()), Ok(())));
        assert_eq!(senders.hold(shard(3), message(3)), Err(Refusal::Full));
        senders.adopt(Time::ZERO, FROM, record(4, &[]), false);
        senders.held_bytes = SENT_BYTES;
        assert_eq!(senders.hold(shard(4), message(3)), Err(Refusal::Full));
        assert_eq!(senders.take_all().len(), 2);
    }

    #[test]
    fn to_where_nothing_has_gone_is_not_taken_along_again() {
        let mut senders = at_work(10);
        senders.adopt(Time::ZERO, FROM, record(3, &[]), false);
        senders.settled(FROM, THERE, Epoch(3), &[shard(3)]);
        assert_eq!(open(&mut senders, Time::ZERO), [(3, vec![])]);
        assert_eq!(leave(&mut senders, 4), (vec![], vec![]), "nothing was sent from here");
    }

    #[test]
    fn before_the_number_of_shards_is_known_each_of_them_may_be_meant() {
        const UNKNOWN: ShardKey = ShardKey { ty: TypeId(1), shard: UNSIZED };
        let mut senders = at_work(10);
        assert!(senders.may_go(UNKNOWN));
        let (records, sent) = senders.leave(FROM, (HERE, Epoch(4)), |_| Some(3));
        assert_eq!((sent.len(), records.iter().all(|record| record.shards == 3)), (3, true));
        senders.adopt(Time::ZERO, FROM, record(3, &[]), false);
        assert!(!senders.may_go(UNKNOWN));
        assert_eq!((senders.waits_for(UNKNOWN, 303), senders.waits_for(UNKNOWN, 304)), (Some(shard(3)), None));
        assert_eq!(leave(&mut senders, 5).1.len(), 300, "it may have gone to any of them");
    }
}
